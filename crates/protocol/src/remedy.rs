//! The reason word of each [`HomeError`], and its remedy for administrators.

use std::path::Path;

use crate::{HomeError, shown};

impl HomeError {
    /// Returns one word for ledger, metrics and logs.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoSpace { .. } => "no-space",
            Self::NoInodes { .. } => "no-inodes",
            Self::Quota { .. } => "quota",
            Self::Stale { .. } => "stale",
            Self::AccessDenied { .. } => "access-denied",
            Self::Immutable { .. } => "immutable",
            Self::NoTicket { .. } => "no-ticket",
            Self::NotConnected { .. } => "not-connected",
            Self::Damaged { .. } => "damaged",
            Self::Busy { .. } => "busy",
            Self::ReadOnly { .. } => "read-only",
            Self::MissingHome { .. } => "missing-home",
            Self::MissingPrefix { .. } => "missing-prefix",
            Self::Squashed { .. } => "squashed",
            Self::WrongOwner { .. } => "wrong-owner",
            Self::NotBeneathPrefix { .. } => "not-beneath-prefix",
            Self::BadPath { .. } => "bad-path",
            Self::PathNotAllowed { .. } => "path-not-allowed",
            Self::UidTooLow { .. } => "uid-too-low",
            Self::GidTooLow { .. } => "gid-too-low",
            Self::Symlink { .. } => "symlink",
            Self::OtherFileSystem { .. } => "other-file-system",
            Self::NotARegularFile { .. } => "not-a-regular-file",
            Self::NotADirectory { .. } => "not-a-directory",
            Self::TooLarge { .. } => "too-large",
            Self::NotYaml { .. } => "not-yaml",
            Self::TooComplex { .. } => "too-complex",
            Self::ForeignEntry { .. } => "foreign-entry",
            Self::InUse { .. } => "in-use",
            Self::NothingKept { .. } => "nothing-kept",
            Self::TimedOut { .. } => "timed-out",
            Self::Unavailable { .. } => "unavailable",
            Self::BadRequest { .. } => "bad-request",
            Self::Forbidden { .. } => "forbidden",
            Self::CreateNotAllowed { .. } => "create-not-allowed",
            Self::WorkerDied { .. } => "worker-died",
            Self::SshKeysNotAllowed => "ssh-keys-not-allowed",
            Self::BrokenBlock { .. } => "broken-block",
            Self::Io { .. } => "io",
        }
    }

    /// Returns what the administrator can do.
    #[must_use]
    #[expect(clippy::too_many_lines, reason = "a table, one arm for each error")]
    pub fn remedy(&self) -> String {
        match self {
            Self::NoSpace { .. } => "free some space on the file server; the delivery is retried automatically".into(),
            Self::NoInodes { .. } => "delete files, or recreate the file system with more inodes (see `df -i`)".into(),
            Self::Quota { uid, size, free, .. } => quota(*uid, *size, *free),
            Self::Stale { path } => {
                format!("remount the export that holds `{}` on this host", shown(path))
            }
            Self::AccessDenied { path } => format!(
                "check modes and ACLs from the prefix down to `{}`; \
                 on an export that squashes root, create what is missing on the file server",
                shown(path)
            ),
            Self::Immutable { path } => {
                format!(
                    "on the file server: lsattr -d `{0}`; then, if the flag was set by mistake: chattr -i -a `{0}`",
                    shown(path)
                )
            }
            Self::NoTicket { .. } => {
                "export the homes to this host with sec=sys as well: the daemon has no Kerberos ticket of the user"
                    .into()
            }
            Self::NotConnected { path, .. } => format!(
                "check the file server and the network; if both work, remount the file system that holds `{}`",
                shown(path)
            ),
            Self::Damaged { .. } => {
                "read the kernel's log here and on the file server; a soft mount also says this when its server is slow"
                    .into()
            }
            Self::Busy { path } => format!("find what is mounted on `{}` with `findmnt`, and unmount it", shown(path)),
            Self::ReadOnly { .. } => {
                "mount it writable; if it is writable for others, the unit of bursar-homed hides it \
                 (ProtectSystem=, ProtectHome=, ReadOnlyPaths=)"
                    .into()
            }
            Self::MissingHome { home, uid, gid } | Self::CreateNotAllowed { home, uid, gid } => format!(
                "on the file server: install -d -o {uid} -g {gid} -m 0700 {}; \
                 or let Bursar create homes (set create in the class's home, and --create-prefix in homed.env)",
                shown(home)
            ),
            Self::MissingPrefix { prefix } => format!(
                "mount the export at `{0}`, or correct --prefix in /etc/bursar/homed.env; \
                 RequiresMountsFor={0} in a drop-in of bursar-homed.service makes it wait for the mount; \
                 if nothing is to be mounted there any more, add --former-mount {0} to homed.env",
                shown(prefix)
            ),
            Self::Squashed { prefix } => format!(
                "either export `{0}` to this host with no_root_squash, or take --create-prefix {0} out of \
                 /etc/bursar/homed.env and `create` and `directory` out of the classes: the file server must then create homes",
                shown(prefix)
            ),
            Self::WrongOwner { path, .. } => {
                format!(
                    "find out why `{}` does not belong to the account, then chown it on the file server",
                    shown(path)
                )
            }
            Self::NotBeneathPrefix { .. } => "correct the account's home in the directory, \
                 or add the prefix to the configuration and to bursar-homed"
                .into(),
            Self::BadPath { .. } => {
                "correct the account's home in the directory, or the class's `home.kubeconfig`".into()
            }
            Self::PathNotAllowed { path } => format!(
                "correct the class's `home.kubeconfig`, or add --kubeconfig {} to /etc/bursar/homed.env",
                shown(path)
            ),
            Self::UidTooLow { .. } => "correct uidNumber in the directory".into(),
            Self::GidTooLow { .. } => "correct gidNumber, or the account's groups, in the directory".into(),
            Self::Symlink { path } => format!(
                "have `{}` replaced by a real file or directory; if homes lie behind symlinks, \
                 configure their real path as the prefix",
                shown(path)
            ),
            Self::OtherFileSystem { path } => {
                format!("unmount the file system at or above `{}`, inside the home or over it", shown(path))
            }
            Self::NotARegularFile { path, .. }
            | Self::NotADirectory { path }
            | Self::TooLarge { path, .. }
            | Self::TooComplex { path, .. } => format!("have the account's owner move `{}` away", shown(path)),
            Self::ForeignEntry { path, entry } => format!(
                "have the account's owner rename or delete {entry} in `{}`; or, if a former system wrote it for everybody, \
                 add --take-over NAME to /etc/bursar/homed.env",
                shown(path)
            ),
            Self::InUse { path, .. } => in_use(path),
            Self::NothingKept { .. } => "no action needed: the file in the home is the user's own".into(),
            Self::NotYaml { .. } => NOT_YAML.into(),
            Self::TimedOut { .. } => "check the file server and the mount; other exports are not affected".into(),
            Self::Unavailable { .. } => "no action needed: it is retried automatically".into(),
            Self::BadRequest { .. } => "restart bursard and bursar-homed: their versions differ".into(),
            Self::Forbidden { .. } => "ask as the daemon's user, or correct --client-user of bursar-homed".into(),
            Self::WorkerDied { .. } => "read `journalctl -u bursar-homed`".into(),
            Self::SshKeysNotAllowed => {
                "add --ssh-keys to /etc/bursar/homed.env, or take `ssh_keys` out of the class's `home`".into()
            }
            Self::BrokenBlock { path, .. } => {
                format!("have the lines from `# BEGIN bursar` to `# END bursar` removed from `{}`", shown(path))
            }
            Self::Io { .. } => "check the file system of that path".into(),
        }
    }
}

const NOT_YAML: &str = "have the account's owner repair the file or move it away; if the text is not YAML at all, \
    set home = { replace_unparsable = true } in the class, and Bursar replaces the file (and keeps a dated copy next to it)";

/// If fewer bytes are free, even a kubeconfig does not fit. In that case, the size that the file system reports is
/// taken for the folder's quota.
const NO_ROOM: u64 = 64 << 10;

fn quota(uid: u32, size: u64, free: u64) -> String {
    let remedy = "raise the quota, or have the owner of the home delete something";
    if size > 0 && free < NO_ROOM {
        return format!("on the file server: the quota of this folder is used up (`df -h` shows it); {remedy}");
    }
    format!("on the file server: `quota -s -u {uid}` shows how full it is; {remedy}")
}

fn in_use(path: &Path) -> String {
    let path = shown(path);
    format!(
        "no action needed: it is retried automatically; a lock older than a minute is overridden, or delete `{path}.lock`"
    )
}
