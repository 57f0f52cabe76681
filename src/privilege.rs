//! Changes a process from root to user `bursar` before it opens anything in the state folder, so that root never owns a
//! file there.

use std::ffi::CString;

use nix::unistd::{Gid, Uid, User, getgrouplist, setegid, seteuid, setgroups, setresgid, setresuid};

/// The user that the daemon runs as.
pub const USER: &str = "bursar";

/// Changes the process to [`USER`], if it runs as root and that user exists. Packages create the user; a checkout on a
/// machine without the user continues as root. Must be called before any thread is started.
///
/// # Errors
/// The system refused. Then nothing should be opened.
pub fn become_bursar() -> nix::Result<()> {
    if !Uid::effective().is_root() {
        return Ok(());
    }
    let Some(user) = own_user()? else { return Ok(()) };
    let name = CString::new(USER).map_err(|_| nix::Error::EINVAL)?;
    setgroups(&getgrouplist(&name, user.gid)?)?;
    setresgid(user.gid, user.gid, user.gid)?;
    setresuid(user.uid, user.uid, user.uid)?;
    keep_memory_private()
}

/// Returns [`USER`], if it exists. In a debug build, `BURSAR_TEST_STAY_ROOT` keeps a checkout at root on a machine with
/// an installed package, because the package's user could not read the checkout's files.
fn own_user() -> nix::Result<Option<User>> {
    if cfg!(debug_assertions) && std::env::var_os("BURSAR_TEST_STAY_ROOT").is_some() {
        return Ok(None);
    }
    User::from_name(USER)
}

/// Protects this program's memory, which holds keys: no core file is written, and no process of the same user may read
/// the memory (`prctl(2)`, `PR_SET_DUMPABLE`). A change of the user resets this to the host's `fs.suid_dumpable`, which
/// is not 0 where core files are collected, so this is repeated after each change of the user.
pub fn keep_memory_private() -> nix::Result<()> {
    nix::sys::prctl::set_dumpable(false)
}

/// Runs `work` as [`USER`], if this process is root and that user exists, and becomes root again afterwards. For
/// `init`, which needs both users. The whole process changes its user, so nothing else may run meanwhile.
pub async fn as_bursar<T>(work: impl Future<Output = T>) -> nix::Result<T> {
    let user = if Uid::effective().is_root() { own_user()? } else { None };
    let Some(user) = user else { return Ok(work.await) };
    setegid(user.gid)?;
    seteuid(user.uid)?;
    keep_memory_private()?;
    let done = work.await;
    seteuid(Uid::from_raw(0))?;
    setegid(Gid::from_raw(0))?;
    keep_memory_private()?;
    Ok(done)
}
