//! Identifies the peer of the control socket, and derives its rights from its credentials (`SO_PEERCRED`, unix(7)).

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs;

use nix::unistd::{Gid, Group, Uid, User, getgrouplist};
use tokio::net::unix::UCred;

/// The group whose members may give orders, if they are also in [`READER_GROUP`].
pub const ADMIN_GROUP: &str = "bursar-admin";
/// The group whose members may read.
pub const READER_GROUP: &str = "bursar";

/// One caller of the control socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The name for the history: the user who logged in, even if they then used `sudo`.
    pub actor: String,
    /// The uid of the peer.
    pub uid: u32,
    /// The uid's name on this host.
    pub name: Option<String>,
    /// Whether the caller may give orders: root, the daemon's own user, or a member of both [`ADMIN_GROUP`] and
    /// [`READER_GROUP`].
    pub may_order: bool,
    /// Whether the caller may read all accounts: root, the daemon's own user, or a member of [`READER_GROUP`].
    pub may_read: bool,
    /// Whether the caller can read every password and file that the daemon can: root or the daemon's own user.
    pub may_read_secrets: bool,
}

/// A process at the other end of a connection, as the kernel reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Its user.
    pub uid: u32,
    /// Its process, if the kernel knows it.
    pub pid: Option<i32>,
}

impl From<UCred> for Peer {
    fn from(credentials: UCred) -> Self {
        Self { uid: credentials.uid(), pid: credentials.pid() }
    }
}

impl Peer {
    /// Whether this is root or the daemon's own user. They need no groups for their rights.
    #[must_use]
    pub fn is_trusted(&self) -> bool {
        let uid = Uid::from_raw(self.uid);
        uid.is_root() || uid == Uid::effective()
    }
}

impl Caller {
    /// Returns the caller for the credentials that the kernel reports. These contain only the primary group, so the
    /// full list of groups is looked up. A uid without a user has no groups, and so no rights.
    #[must_use]
    pub fn of(peer: Peer) -> Self {
        let user = User::from_uid(Uid::from_raw(peer.uid)).ok().flatten();
        // The lookup of groups asks all name services, so root and the daemon's own user must not wait for it.
        let groups = user.as_ref().filter(|_| !peer.is_trusted()).map(group_names).unwrap_or_default();
        let (may_order, may_read) = rights(peer.is_trusted(), &groups);
        let name = user.map(|user| user.name);
        let actor = login_uid(peer.pid).and_then(name_of).or_else(|| name.clone());
        let actor = actor.unwrap_or_else(|| peer.uid.to_string());
        Self { actor, uid: peer.uid, name, may_order, may_read, may_read_secrets: peer.is_trusted() }
    }

    /// Returns root or the daemon's own user without asking a name service: numbers take the place of names.
    #[must_use]
    pub fn unnamed(peer: Peer) -> Self {
        let actor = login_uid(peer.pid).unwrap_or(peer.uid).to_string();
        let may_read_secrets = peer.is_trusted();
        let (may_order, may_read) = rights(may_read_secrets, &BTreeSet::new());
        Self { actor, uid: peer.uid, name: None, may_order, may_read, may_read_secrets }
    }
}

/// Returns whether the caller may give orders, and whether they may read. Giving orders requires the right to read,
/// because the answer shows what only readers may see.
fn rights(is_trusted: bool, groups: &BTreeSet<String>) -> (bool, bool) {
    let may_read = is_trusted || groups.contains(READER_GROUP);
    (is_trusted || (may_read && groups.contains(ADMIN_GROUP)), may_read)
}

/// Returns the name of the user who runs this process, for the history, as the daemon would see it. Must be called
/// before the process changes its user.
#[must_use]
pub fn own_name() -> String {
    let uid = Uid::current();
    let pid = i32::try_from(std::process::id()).ok();
    let user = || User::from_uid(uid).ok().flatten().map(|user| user.name);
    login_uid(pid).and_then(name_of).or_else(user).unwrap_or_else(|| uid.to_string())
}

fn group_names(user: &User) -> BTreeSet<String> {
    let Ok(name) = CString::new(user.name.as_str()) else { return BTreeSet::new() };
    let groups: Vec<Gid> = getgrouplist(&name, user.gid).unwrap_or_default();
    groups.into_iter().filter_map(|gid| Group::from_gid(gid).ok().flatten()).map(|group| group.name).collect()
}

/// Returns `/proc/PID/loginuid`, which survives `sudo` (`pam_loginuid(8)`). It appears only in the history and gives no
/// rights, so a reused pid does no harm.
fn login_uid(pid: Option<i32>) -> Option<u32> {
    let text = fs::read_to_string(format!("/proc/{}/loginuid", pid?)).ok()?;
    text.trim().parse().ok().filter(|uid| *uid != u32::MAX)
}

fn name_of(uid: u32) -> Option<String> {
    User::from_uid(Uid::from_raw(uid)).ok().flatten().map(|user| user.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_need_both_groups_and_reading_needs_the_first() {
        let of = |groups: &[&str]| rights(false, &groups.iter().map(|group| (*group).to_owned()).collect());
        assert_eq!(of(&["bursar", "bursar-admin"]), (true, true));
        assert_eq!(of(&["bursar", "staff"]), (false, true));
        assert_eq!(of(&["bursar-admin"]), (false, false));
        assert_eq!(rights(true, &BTreeSet::new()), (true, true));
    }

    #[tokio::test]
    async fn our_own_user_may_order() {
        let (ours, _theirs) = tokio::net::UnixStream::pair().expect("a socket pair is created");
        let peer = Peer::from(ours.peer_cred().expect("the kernel knows the peer"));
        for caller in [Caller::of(peer), Caller::unnamed(peer)] {
            assert!(caller.may_order && caller.may_read && caller.may_read_secrets, "{caller:?}");
        }
    }

    #[test]
    fn a_caller_without_a_name_has_no_rights_unless_trusted() {
        let nobody = Uid::effective().as_raw() + 61_000;
        let caller = Caller::unnamed(Peer { uid: nobody, pid: None });
        assert!(!caller.may_order && !caller.may_read && !caller.may_read_secrets, "{caller:?}");
        assert_eq!(caller.actor, nobody.to_string());
    }
}
