//! A small process that does nothing but fork: each request is done by a copy of it, which becomes the user.
//!
//! To start a program for each request would cost several times what the request does. So the server starts
//! `bursar-homed spawner` once, with an empty environment, one thread and nothing in its memory, and hands it two sockets
//! for each request: one for the copy ([`worker`](crate::worker)), over which that is asked and answers; and one by which the
//! server is told which process it is, should it have to be killed. Nobody waits for the spawner, and it sees no request.
//! It ends with the server, its copies end with it, and the server starts another if it ends by itself.

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

/// The argument with which the server starts this very program, also after an upgrade of the package.
pub const ARGUMENT: &str = "spawner";
const PROGRAM: &str = "/proc/self/exe";

/// A worker that ended or was stopped is waited for when the next is asked for, at the latest after this time: much
/// less than the deadline of a request.
const REAP_AFTER: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// The spawner itself: forks for each socket that comes in over standard input, until that ends. Returns in each child
/// too, when it has answered.
///
/// Must be called before anything starts a thread.
#[must_use]
pub fn run() -> ExitCode {
    serve().unwrap_or_else(|error| {
        eprintln!("bursar-homed {ARGUMENT}: {error}");
        ExitCode::FAILURE
    })
}

fn serve() -> Result<ExitCode> {
    let alone = SingleThreaded::check().ok_or_else(|| Error::other("there are other threads"))?;
    // A descriptor that a child can close: it must not be able to ask for another.
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
                // Nobody else has this number: the child is not waited for before the next turn.
                let process = rustix::process::pidfd_open(child, PidfdFlags::empty())?;
                // A server that has its answer does not want to know.
                let _ = send(life.as_fd(), &[process.as_fd()]);
            }
            // That request has no answer; the next may have.
            Err(error) => eprintln!("bursar-homed {ARGUMENT}: fork: {error}"),
        }
    }
}

/// Waits for children that ended; how many. How one ended that was killed is told nowhere else.
///
/// A child that was stopped is killed: its user did that, and at the deadline it would look as if its export was late.
fn reap() -> usize {
    let mut ended = 0;
    while let Ok(Some((child, status))) = rustix::process::wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
        if status.stopped() {
            eprintln!("bursar-homed {ARGUMENT}: worker {child} was stopped, and is killed");
            let _ = rustix::process::kill_process(child, Signal::KILL);
            continue;
        }
        ended += 1;
        if let Some(signal) = status.terminating_signal() {
            eprintln!("bursar-homed {ARGUMENT}: worker {child} was ended by signal {signal}");
        }
    }
    ended
}

/// The server's end of the spawner.
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
    /// Order and request go in, its answer comes out. It ends with the process.
    pub(super) socket: UnixStream,
    life: StdStream,
}

impl Spawner {
    /// A worker, from the spawner that runs or from a new one.
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

    /// Ends a spawner that hangs, and its workers with it.
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
    /// Kills it. `Err`: it was never made, for the spawner does not get as far.
    pub(super) fn kill(&self) -> Result<()> {
        let [process, _] = receive(self.life.as_fd())?;
        Ok(rustix::process::pidfd_send_signal(process.ok_or(ErrorKind::NotFound)?, Signal::KILL)?)
    }

    /// Waits until it is gone: one that is stuck in the kernel dies when its file server answers.
    pub(super) async fn gone(&mut self) {
        let _ = tokio::io::copy(&mut self.socket, &mut tokio::io::sink()).await;
    }
}

/// Two ends: ours, which never waits, and one for another process, which does.
fn pair() -> Result<(StdStream, StdStream)> {
    let (ours, theirs) = StdStream::pair()?;
    ours.set_nonblocking(true)?;
    Ok((ours, theirs))
}

/// One byte, and what is handed over with it, which keeps it apart from the next.
fn send(socket: BorrowedFd<'_>, handed: &[BorrowedFd<'_>]) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(handed));
    rustix::net::sendmsg(socket, &[IoSlice::new(&[0])], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// What is handed over with the next byte; nothing at the end.
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
