//! fork(2) without exec, in one place: the only `unsafe` of this crate.
//!
//! What makes it dangerous is other threads: a copy of their locks stays locked for ever in the child. So who forks must
//! hold [`SingleThreaded`].

use nix::errno::Errno;
use nix::unistd::ForkResult;
use rustix::process::Pid;

/// Proof that this process had one thread when it was asked. Its holder starts none.
#[derive(Debug)]
pub(super) struct SingleThreaded(());

impl SingleThreaded {
    /// `None` if there are other threads.
    pub(super) fn check() -> Option<Self> {
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        status.lines().any(|line| line.split_whitespace().eq(["Threads:", "1"])).then_some(Self(()))
    }
}

/// Makes a copy of this process: `None` in the copy, its process id here.
#[expect(unsafe_code, reason = "fork(2) has no safe form")]
pub(super) fn fork(_: &SingleThreaded) -> Result<Option<Pid>, Errno> {
    // SAFETY: The child of a process with one thread is that thread: it may do all that its parent may (POSIX restricts
    // children of processes with more threads only). The token says that there was one thread, and `spawner::run`, which
    // alone has one, calls nothing that starts another.
    match unsafe { nix::unistd::fork() }? {
        ForkResult::Child => Ok(None),
        // A process id is never 0 or negative.
        ForkResult::Parent { child } => Pid::from_raw(child.as_raw()).map(Some).ok_or(Errno::EINVAL),
    }
}
