//! A small process that does nothing but fork: each request is done by a copy of it, which becomes the user.
//!
//! To start a program for each request would cost several times what the request does. So the server starts
//! `bursar-homed spawner` once, with an empty environment, one thread and nothing in its memory, and hands it a socket for
//! each request, over which that copy ([`worker`](super::worker)) is asked and answers. The spawner sees no request. It
//! ends with the server, its copies end with it, and the server starts another if it ends by itself.

use std::io::{Error, ErrorKind, IoSlice, IoSliceMut, Result};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use rustix::process::{PidfdFlags, Signal, WaitOptions};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::sync::Mutex;

use super::fork::{SingleThreaded, fork};
use super::worker;

/// The argument with which the server starts this very program, also after an upgrade of the package.
pub const ARGUMENT: &str = "spawner";
const PROGRAM: &str = "/proc/self/exe";

/// A worker that ended is waited for when the next is asked for, at the latest after this time.
const REAP_AFTER: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

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
    // A descriptor that a child can close: it must not be able to ask for another, or to answer in our place.
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
        let Some((_, Some(socket))) = receive(control.as_fd())? else { return Ok(ExitCode::SUCCESS) };
        let child = match fork(&alone) {
            Ok(None) => {
                drop(control);
                return Ok(worker::run(StdStream::from(socket), own));
            }
            Ok(Some(child)) => {
                children += 1;
                // Nobody else has this number: the child is not waited for before the next turn.
                rustix::process::pidfd_open(child, PidfdFlags::empty())
            }
            Err(errno) => Err(Errno::from_raw_os_error(errno as i32)),
        };
        drop(socket);
        let code = child.as_ref().err().map_or(0, |errno| errno.raw_os_error());
        send(control.as_fd(), code, child.as_ref().ok().map(AsFd::as_fd))?;
    }
}

/// Waits for children that ended; how many. How one ended that was killed is told nowhere else.
fn reap() -> usize {
    let mut ended = 0;
    while let Ok(Some((child, status))) = rustix::process::wait(WaitOptions::NOHANG) {
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
    control: UnixStream,
    _process: Child,
}

/// A process for one request.
#[derive(Debug)]
pub(super) struct Worker {
    /// Order and request go in, its answer comes out.
    pub(super) socket: UnixStream,
    process: OwnedFd,
}

impl Spawner {
    /// A worker, from the spawner that runs or a new one. One that does not answer within `patience` is ended, and its
    /// workers with it.
    pub(super) async fn worker(&self, patience: Duration) -> Result<Worker> {
        let mut place = self.0.lock().await;
        // Taken out: whoever is cut off in the middle leaves none that is a word behind.
        let asked = async |running: &Running| tokio::time::timeout(patience, running.worker()).await?;
        if let Some(running) = place.take()
            && let Ok(answer) = asked(&running).await
        {
            *place = Some(running);
            return Ok(answer?);
        }
        let running = Running::start()?;
        let answer = asked(&running).await?;
        *place = Some(running);
        Ok(answer?)
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

    /// The outer error is the spawner's end, the inner why it cannot fork.
    async fn worker(&self) -> Result<std::result::Result<Worker, Errno>> {
        let (socket, theirs) = pair()?;
        let control = self.control.as_fd();
        self.control.async_io(Interest::WRITABLE, || send(control, 0, Some(theirs.as_fd()))).await?;
        drop(theirs);
        match self.control.async_io(Interest::READABLE, || receive(control)).await? {
            Some((_, Some(process))) => Ok(Ok(Worker { socket, process })),
            Some((code, None)) => Ok(Err(Errno::from_raw_os_error(code))),
            None => Err(ErrorKind::BrokenPipe.into()),
        }
    }
}

impl Worker {
    /// Ends it, and waits until it is gone, which closes its socket: one that is stuck in the kernel dies when its file
    /// server answers.
    pub(super) async fn end(mut self) {
        let _ = rustix::process::pidfd_send_signal(&self.process, Signal::KILL);
        let _ = tokio::io::copy(&mut self.socket, &mut tokio::io::sink()).await;
    }
}

/// Two ends: ours for the runtime, and one for another process, which waits at it.
fn pair() -> Result<(UnixStream, StdStream)> {
    let (ours, theirs) = StdStream::pair()?;
    ours.set_nonblocking(true)?;
    Ok((UnixStream::from_std(ours)?, theirs))
}

/// Each end sends a message only after it had the other's last one, so that a stream keeps them apart.
fn send(control: BorrowedFd<'_>, code: i32, handed: Option<BorrowedFd<'_>>) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(handed.as_slice()));
    rustix::net::sendmsg(control, &[IoSlice::new(&code.to_ne_bytes())], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// One message: its number, and what was handed over. `None` at the end.
fn receive(control: BorrowedFd<'_>) -> Result<Option<(i32, Option<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut code = [0; size_of::<i32>()];
    let received =
        rustix::net::recvmsg(control, &mut [IoSliceMut::new(&mut code)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let handed = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut handed) => handed.next(),
        _ => None,
    });
    Ok(Some((i32::from_ne_bytes(code), handed)))
}
