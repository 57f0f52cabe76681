//! Why something could not be done in a home: a closed list, each with what is wrong and what cures it.

use std::path::PathBuf;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A reason. It travels over the socket, is stored in the ledger as text, and is what an administrator reads.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum HomeError {
    /// ENOSPC.
    #[error("no space left on the file system of `{}`", path.display())]
    NoSpace {
        /// Where it was noticed.
        path: PathBuf,
    },
    /// EDQUOT.
    #[error("the disk quota for `{}` is used up", path.display())]
    Quota {
        /// Where it was noticed.
        path: PathBuf,
    },
    /// ESTALE.
    #[error("stale file handle at `{}`: the file server no longer knows what the mount refers to", path.display())]
    Stale {
        /// Where it was noticed.
        path: PathBuf,
    },
    /// EACCES or EPERM.
    #[error("access to `{}` denied, although asked as its owner", path.display())]
    AccessDenied {
        /// Where it was noticed.
        path: PathBuf,
    },
    /// EROFS.
    #[error("`{}` is on a read-only file system", path.display())]
    ReadOnly {
        /// Where it was noticed.
        path: PathBuf,
    },
    /// There is no such directory.
    #[error("home `{}` does not exist", home.display())]
    MissingHome {
        /// The home.
        home: PathBuf,
        /// Owner that it should have.
        uid: u32,
        /// Group that it should have.
        gid: u32,
    },
    /// The home or the file belongs to somebody else.
    #[error("`{}` belongs to uid {found}", path.display())]
    WrongOwner {
        /// The home, or what is in it.
        path: PathBuf,
        /// Whose it is.
        found: u32,
    },
    /// The request names a path outside every configured prefix.
    #[error("home `{}` is not beneath any configured prefix", home.display())]
    NotBeneathPrefix {
        /// The home as asked for.
        home: PathBuf,
    },
    /// A uid of the system, or none at all.
    #[error("uid {uid} is outside {least} to 2147483647: nothing is ever done as such an account")]
    UidTooLow {
        /// The uid as asked for.
        uid: u32,
        /// Smallest that is accepted.
        least: u32,
    },
    /// A gid of the system, or none at all.
    #[error("gid {gid} is outside {least} to 2147483647: nothing is ever done as such a group")]
    GidTooLow {
        /// The gid as asked for.
        gid: u32,
        /// Smallest that is accepted.
        least: u32,
    },
    /// A component of the path is a symbolic link.
    #[error("`{}` is, or leads through, a symbolic link", path.display())]
    Symlink {
        /// The path that was refused.
        path: PathBuf,
    },
    /// The path leads to another mount inside the home.
    #[error("`{}` lies on another file system that is mounted inside the home", path.display())]
    OtherFileSystem {
        /// The path that was refused.
        path: PathBuf,
    },
    /// A FIFO, a device, a socket or a directory where a file should be.
    #[error("`{}` is not a regular file", path.display())]
    NotARegularFile {
        /// What it is about.
        path: PathBuf,
    },
    /// A file where a directory should be.
    #[error("`{}` is not a directory", path.display())]
    NotADirectory {
        /// What it is about.
        path: PathBuf,
    },
    /// The kubeconfig is larger than any kubeconfig.
    #[error("`{}` has {size} bytes, more than the {limit} that are read", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size in bytes.
        size: u64,
        /// What is read at most.
        limit: u64,
    },
    /// The file is no kubeconfig that could be merged into.
    #[error("`{}` is not a kubeconfig: {detail}", path.display())]
    NotYaml {
        /// The file.
        path: PathBuf,
        /// Where and what; never a piece of the file.
        detail: String,
    },
    /// The deadline of the request passed.
    #[error("no answer from `{}` within {seconds} s", home.display())]
    TimedOut {
        /// The home.
        home: PathBuf,
        /// The deadline.
        seconds: u64,
    },
    /// Not tried: this prefix does not answer at present, or the server is at its limit.
    #[error("not tried: {detail}")]
    Unavailable {
        /// Why.
        detail: String,
    },
    /// The request itself is wrong.
    #[error("bad request: {detail}")]
    BadRequest {
        /// What is wrong with it.
        detail: String,
    },
    /// Someone else than the daemon asks.
    #[error("uid {uid} may not ask: only the user of the daemon may")]
    Forbidden {
        /// Who asked.
        uid: u32,
    },
    /// The home may not be made here.
    #[error("home `{}` does not exist and may not be made here", home.display())]
    CreateNotAllowed {
        /// The home.
        home: PathBuf,
        /// Owner that it should have.
        uid: u32,
        /// Group that it should have.
        gid: u32,
    },
    /// The child ended without an answer.
    #[error("the worker ended without an answer: {detail}")]
    WorkerDied {
        /// How it ended.
        detail: String,
    },
    /// Any other error of the system.
    #[error("{operation} `{}`: {message} (errno {errno})", path.display())]
    Io {
        /// The system call.
        operation: String,
        /// Its subject.
        path: PathBuf,
        /// The number.
        errno: i32,
        /// Its text.
        message: String,
    },
}

impl HomeError {
    /// The reason for an errno of a call on `path`.
    #[must_use]
    pub fn from_errno(operation: &str, path: impl Into<PathBuf>, errno: Errno) -> Self {
        let path = path.into();
        match errno {
            Errno::NOSPC => Self::NoSpace { path },
            Errno::DQUOT => Self::Quota { path },
            Errno::STALE => Self::Stale { path },
            Errno::ACCESS | Errno::PERM => Self::AccessDenied { path },
            Errno::ROFS => Self::ReadOnly { path },
            Errno::LOOP => Self::Symlink { path },
            Errno::XDEV => Self::OtherFileSystem { path },
            Errno::NOTDIR => Self::NotADirectory { path },
            Errno::ISDIR | Errno::NXIO => Self::NotARegularFile { path },
            other => Self::Io {
                operation: operation.to_owned(),
                path,
                errno: other.raw_os_error(),
                message: std::io::Error::from(other).kind().to_string(),
            },
        }
    }

    /// One word for ledger, metrics and logs.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoSpace { .. } => "no-space",
            Self::Quota { .. } => "quota",
            Self::Stale { .. } => "stale",
            Self::AccessDenied { .. } => "access-denied",
            Self::ReadOnly { .. } => "read-only",
            Self::MissingHome { .. } => "missing-home",
            Self::WrongOwner { .. } => "wrong-owner",
            Self::NotBeneathPrefix { .. } => "not-beneath-prefix",
            Self::UidTooLow { .. } => "uid-too-low",
            Self::GidTooLow { .. } => "gid-too-low",
            Self::Symlink { .. } => "symlink",
            Self::OtherFileSystem { .. } => "other-file-system",
            Self::NotARegularFile { .. } => "not-a-regular-file",
            Self::NotADirectory { .. } => "not-a-directory",
            Self::TooLarge { .. } => "too-large",
            Self::NotYaml { .. } => "not-yaml",
            Self::TimedOut { .. } => "timed-out",
            Self::Unavailable { .. } => "unavailable",
            Self::BadRequest { .. } => "bad-request",
            Self::Forbidden { .. } => "forbidden",
            Self::CreateNotAllowed { .. } => "create-not-allowed",
            Self::WorkerDied { .. } => "worker-died",
            Self::Io { .. } => "io",
        }
    }

    /// What the administrator can do about it.
    #[must_use]
    pub fn cure(&self) -> String {
        match self {
            Self::NoSpace { .. } => "free space on the file server; the delivery is tried again by itself".into(),
            Self::Quota { .. } => "raise the account's disk quota, or have its owner delete something".into(),
            Self::Stale { path } => {
                format!("remount the export that holds `{}` on this host", path.display())
            }
            Self::AccessDenied { path } => format!(
                "check modes and ACLs from the prefix down to `{}`; \
                 on an export that squashes root, make what is missing on the file server",
                path.display()
            ),
            Self::ReadOnly { .. } => {
                "mount it writable; if it is writable for others, the unit of bursar-homed hides it \
                 (ProtectSystem=, ProtectHome=, ReadOnlyPaths=)"
                    .into()
            }
            Self::MissingHome { home, uid, gid } | Self::CreateNotAllowed { home, uid, gid } => format!(
                "on the file server: install -d -o {uid} -g {gid} -m 0700 {}; \
                 or let Bursar make homes (class and prefix must both say so)",
                home.display()
            ),
            Self::WrongOwner { path, .. } => {
                format!("find out why `{}` is not the account's, then chown it on the file server", path.display())
            }
            Self::NotBeneathPrefix { .. } => "correct the account's home in the directory, \
                 or add the prefix to the configuration and to bursar-homed"
                .into(),
            Self::UidTooLow { .. } => "correct uidNumber in the directory".into(),
            Self::GidTooLow { .. } => "correct gidNumber, or the account's groups, in the directory".into(),
            Self::Symlink { path } => format!(
                "have `{}` replaced by a real file or directory; if homes lie behind symlinks, \
                 configure their real path as the prefix",
                path.display()
            ),
            Self::OtherFileSystem { path } => {
                format!("unmount what is mounted at or above `{}` inside the home", path.display())
            }
            Self::NotARegularFile { path } | Self::NotADirectory { path } => {
                format!("have the account's owner move `{}` away", path.display())
            }
            Self::TooLarge { path, .. } => format!("have the account's owner move `{}` away", path.display()),
            Self::NotYaml { .. } => {
                "have the account's owner repair the file or move it away, or let the class replace such files \
                 (a copy is kept beside)"
                    .into()
            }
            Self::TimedOut { .. } => "check the file server and the mount; other exports are not affected".into(),
            Self::Unavailable { .. } => "nothing: it is tried again by itself".into(),
            Self::BadRequest { .. } => "restart bursard and bursar-homed: they are not of one version".into(),
            Self::Forbidden { .. } => "ask as the daemon's user, or correct --client-user of bursar-homed".into(),
            Self::WorkerDied { .. } => "read `journalctl -u bursar-homed`".into(),
            Self::Io { .. } => "check the file system of that path".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_errno_of_a_home_has_its_own_reason() {
        let reason = |errno| HomeError::from_errno("openat2", "/home/a", errno).reason();
        assert_eq!(reason(Errno::NOSPC), "no-space");
        assert_eq!(reason(Errno::DQUOT), "quota");
        assert_eq!(reason(Errno::STALE), "stale");
        assert_eq!(reason(Errno::ACCESS), "access-denied");
        assert_eq!(reason(Errno::LOOP), "symlink");
        assert_eq!(reason(Errno::IO), "io");
    }

    #[test]
    fn a_missing_home_names_the_command_that_makes_it() {
        let missing = HomeError::MissingHome { home: "/srv/homes/foo".into(), uid: 52503, gid: 52504 };
        assert!(missing.cure().contains("install -d -o 52503 -g 52504 -m 0700 /srv/homes/foo"));
    }
}
