//! A small process that only forks: each request is handled by a fork, which becomes the user.
//!
//! Starting a program for each request would cost several times as much as the request itself. Therefore the server
//! starts `bursar-homed spawner` once, with an empty environment, one thread and nothing in its memory. For each
//! request, the server passes it two sockets. The fork ([`worker`](crate::worker)) gets one of them, and reads the
//! request and writes the answer there. Through the other, the spawner sends the server a handle of the fork, so that
//! the server can kill it. The spawner never sees a request. The spawner ends with the server, and its forks end with
//! the spawner. If the spawner ends earlier, the server starts another.

use std::io::{Error, ErrorKind, IoSlice, IoSliceMut, Result};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::process::{ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use rustix::process::{PidfdFlags, Signal, WaitOptions};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};

use crate::fork::{SingleThreaded, fork};
use crate::worker;

/// The argument with which the server starts its own program as the spawner.
pub const ARGUMENT: &str = "spawner";
/// The running program, even if an upgrade of the package has replaced its file.
const PROGRAM: &str = "/proc/self/exe";

/// The longest time until the spawner notices that a worker ended or was stopped: much less than the deadline of a
/// request.
const REAP_AFTER: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// Runs the spawner: forks for each pair of sockets that arrives over standard input, until standard input ends. Also
/// returns in each child, after the child has answered.
///
/// Must be called before any thread is started.
#[must_use]
pub fn run() -> ExitCode {
    serve().unwrap_or_else(|error| {
        eprintln!("bursar-homed {ARGUMENT}: {error}");
        ExitCode::FAILURE
    })
}

fn serve() -> Result<ExitCode> {
    let alone = SingleThreaded::check().ok_or_else(|| Error::other("there are other threads"))?;
    // A descriptor that each child closes, so that it cannot request another fork.
    let control = std::io::stdin().as_fd().try_clone_to_owned()?;
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let own = rustix::process::getpid();
    let mut children = 0;
    loop {
        children -= reap();
        if children > 0 && rustix::event::poll(&mut [PollFd::new(&control, PollFlags::IN)], Some(&REAP_AFTER))? == 0 {
            continue;
        }
        let [Some(socket), Some(life)] = receive(control.as_fd())? else { return Ok(ExitCode::SUCCESS) };
        match fork(&alone) {
            Ok(None) => {
                drop((control, life));
                return Ok(worker::run(StdStream::from(socket), own));
            }
            Ok(Some(child)) => {
                children += 1;
                // No other process can have this number, because `reap` waits for the child only in the next turn.
                let process = rustix::process::pidfd_open(child, PidfdFlags::empty())?;
                // A server that has its answer already may have closed its end of the socket.
                let _ = send(life.as_fd(), &[process.as_fd()]);
            }
            // This request gets no answer, but the next fork may succeed.
            Err(error) => eprintln!("bursar-homed {ARGUMENT}: fork: {error}"),
        }
    }
}

/// Waits for children that ended, and returns their number. Logs the signal of each child that was killed, because
/// nothing else reports it.
///
/// If a child was stopped, its user stopped it. The child is killed, because otherwise its export would count as late
/// at the deadline.
fn reap() -> usize {
    let mut ended = 0;
    while let Ok(Some((child, status))) = rustix::process::wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
        if status.stopped() {
            eprintln!("bursar-homed {ARGUMENT}: worker {child} was stopped by a signal; killing it");
            let _ = rustix::process::kill_process(child, Signal::KILL);
            continue;
        }
        ended += 1;
        if let Some(signal) = status.terminating_signal() {
            eprintln!("bursar-homed {ARGUMENT}: worker {child} was killed by signal {signal}");
        }
    }
    ended
}

/// The server's handle of the spawner.
#[derive(Debug, Default)]
pub(super) struct Spawner(Mutex<Option<Running>>);

#[derive(Debug)]
struct Running {
    control: StdStream,
    _process: Child,
}

/// A process for one request.
#[derive(Debug)]
pub(super) struct Worker {
    /// Carries order and request to the worker, and the worker's answer back. The stream ends when the process ends.
    pub(super) socket: UnixStream,
    life: StdStream,
}

impl Spawner {
    /// Starts a worker. If no spawner runs, starts one.
    pub(super) fn worker(&self) -> Result<Worker> {
        let (socket, workers) = pair()?;
        let (life, spawners) = pair()?;
        let handed = [workers.as_fd(), spawners.as_fd()];
        let mut place = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_told = place.as_ref().is_some_and(|running| send(running.control.as_fd(), &handed).is_ok());
        if !is_told {
            let running = Running::start()?;
            send(running.control.as_fd(), &handed)?;
            *place = Some(running);
        }
        Ok(Worker { socket: UnixStream::from_std(socket)?, life })
    }

    /// Ends a spawner that hangs, and with it its workers.
    pub(super) fn end(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Running {
    fn start() -> Result<Self> {
        let (control, theirs) = pair()?;
        let process = Command::new(PROGRAM)
            .arg0("bursar-homed")
            .arg(ARGUMENT)
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        Ok(Self { control, _process: process })
    }
}

impl Worker {
    /// Kills the worker. Returns an error if the spawner has not forked it yet.
    pub(super) fn kill(&self) -> Result<()> {
        let [process, _] = receive(self.life.as_fd())?;
        Ok(rustix::process::pidfd_send_signal(process.ok_or(ErrorKind::NotFound)?, Signal::KILL)?)
    }

    /// Waits until the process is gone. If it is stuck in the kernel, it dies when its file server answers.
    pub(super) async fn gone(&mut self) {
        let _ = tokio::io::copy(&mut self.socket, &mut tokio::io::sink()).await;
    }
}

/// Returns a pair of connected sockets: a non-blocking one for us, and a blocking one for another process.
fn pair() -> Result<(StdStream, StdStream)> {
    let (ours, theirs) = StdStream::pair()?;
    ours.set_nonblocking(true)?;
    Ok((ours, theirs))
}

/// Sends these descriptors with one byte. The byte separates them from the next descriptors.
fn send(socket: BorrowedFd<'_>, handed: &[BorrowedFd<'_>]) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(handed));
    rustix::net::sendmsg(socket, &[IoSlice::new(&[0])], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives the descriptors of the next byte; none at the end of the stream.
fn receive(socket: BorrowedFd<'_>) -> Result<[Option<OwnedFd>; 2]> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut handed = ancillary.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(handed) => handed.collect(),
        _ => Vec::new(),
    });
    Ok([handed.next(), handed.next()])
}
