//! fork(2) without exec: the only `unsafe` code of this crate.
//!
//! fork(2) is dangerous if there are other threads, because a lock that another thread holds stays locked in the child
//! for ever. Therefore a caller of [`fork`] must hold [`SingleThreaded`].

use nix::errno::Errno;
use nix::unistd::ForkResult;
use rustix::process::Pid;

/// Proof that this process had one thread at the time of the check. The holder must not start another.
#[derive(Debug)]
pub(super) struct SingleThreaded(());

impl SingleThreaded {
    /// Returns `None` if there are other threads.
    pub(super) fn check() -> Option<Self> {
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        status.lines().any(|line| line.split_whitespace().eq(["Threads:", "1"])).then_some(Self(()))
    }
}

/// Forks this process. Returns the child's process id in the parent, and `None` in the child.
#[expect(unsafe_code, reason = "fork(2) has no safe form")]
pub(super) fn fork(_: &SingleThreaded) -> Result<Option<Pid>, Errno> {
    // SAFETY: The parent has one thread, so the child may do everything that the parent may (POSIX restricts only
    // children of processes with several threads). The token proves that there was one thread, and `spawner::run`, the
    // only holder of a token, calls nothing that starts another.
    match unsafe { nix::unistd::fork() }? {
        ForkResult::Child => Ok(None),
        // The error cannot occur, because a process id is never 0 or negative.
        ForkResult::Parent { child } => Pid::from_raw(child.as_raw()).map(Some).ok_or(Errno::EINVAL),
    }
}
