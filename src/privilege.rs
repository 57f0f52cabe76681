//! Root becomes user `bursar` before anything in the state folder is opened, so that no file there is ever root's.

use std::ffi::CString;

use nix::unistd::{Gid, Uid, User, getgrouplist, setegid, seteuid, setgroups, setresgid, setresuid};

/// The user that the daemon runs as.
pub const USER: &str = "bursar";

/// Becomes [`USER`], if this process is root and that user exists (in a package's installation it always does; a
/// checkout that is tried as root goes on as root). Must be called before any thread is started.
///
/// # Errors
/// The system refused; then nothing should be opened.
pub fn become_bursar() -> nix::Result<()> {
    if !nix::unistd::Uid::effective().is_root() {
        return Ok(());
    }
    let Some(user) = own_user()? else { return Ok(()) };
    let name = CString::new(USER).map_err(|_| nix::Error::EINVAL)?;
    setgroups(&getgrouplist(&name, user.gid)?)?;
    setresgid(user.gid, user.gid, user.gid)?;
    setresuid(user.uid, user.uid, user.uid)
}

/// [`USER`], if there is one. A checkout that is tried as root stays root also beside an installed package, whose user could
/// not read the checkout's files; a release has no such way.
fn own_user() -> nix::Result<Option<User>> {
    if cfg!(debug_assertions) && std::env::var_os("BURSAR_TEST_STAY_ROOT").is_some() {
        return Ok(None);
    }
    User::from_name(USER)
}

/// Keeps this program's memory, where keys are, to itself: no core file has it, and no process of the same user may look
/// into it (`prctl(2)`, `PR_SET_DUMPABLE`).
///
/// # Errors
/// The system refused.
pub fn keep_memory_private() -> std::io::Result<()> {
    Ok(rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?)
}

/// Does `work` as [`USER`], if this process is root and that user exists, and is root again afterwards. For `init`, which
/// needs both. The whole process changes, so nothing else may be under way.
///
/// # Errors
/// The system refused.
pub async fn as_bursar<T>(work: impl Future<Output = T>) -> nix::Result<T> {
    let user = if Uid::effective().is_root() { own_user()? } else { None };
    let Some(user) = user else { return Ok(work.await) };
    setegid(user.gid)?;
    seteuid(user.uid)?;
    let done = work.await;
    seteuid(Uid::from_raw(0))?;
    setegid(Gid::from_raw(0))?;
    Ok(done)
}
