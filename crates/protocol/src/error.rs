//! The closed list of errors of work in a home. [`remedy`](HomeError::remedy) has the remedy for each.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// An error of work in a home. It travels over the socket, is stored in the ledger as text, and is shown to
/// administrators.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum HomeError {
    /// ENOSPC.
    #[error("no space left on the file system of `{}`", shown(path))]
    NoSpace {
        /// The path at which the error occurred.
        path: PathBuf,
    },
    /// ENOSPC although blocks are free: the file system has no free inode.
    #[error("the file system of `{}` has no room for another file (its inodes are used up)", shown(path))]
    NoInodes {
        /// The path at which the error occurred.
        path: PathBuf,
    },
    /// EDQUOT.
    #[error(
        "the disk quota of uid {uid} (or of its group or folder) for `{}` is used up; {}",
        shown(path),
        room(*size, *free)
    )]
    Quota {
        /// The path at which the error occurred.
        path: PathBuf,
        /// The uid in the request, which owns the files that are made.
        uid: u32,
        /// The size in bytes that the file system reports at the path; 0 if unknown. Many file systems report a
        /// folder's quota as their size.
        size: u64,
        /// The free bytes that the file system reports at the path.
        free: u64,
    },
    /// ESTALE.
    #[error("stale file handle at `{}`: the file server no longer knows what the mount refers to", shown(path))]
    Stale {
        /// The path at which the error occurred.
        path: PathBuf,
    },
    /// EACCES or EPERM, as the owner of the home.
    #[error("access to `{}` is denied even to the owner of the home", shown(path))]
    AccessDenied {
        /// The path at which the error occurred.
        path: PathBuf,
    },
    /// EACCES or EPERM because of an attribute that binds even the owner (`chattr +i`, `+a`).
    #[error("`{}` is marked as immutable or append-only", shown(path))]
    Immutable {
        /// The file or folder with the attribute.
        path: PathBuf,
    },
    /// ENOKEY, EKEYEXPIRED and the like: the export requires Kerberos, and the account has no ticket on this host.
    #[error("`{}` is on an export that requires a Kerberos ticket of the account", shown(path))]
    NoTicket {
        /// The path at which the error occurred.
        path: PathBuf,
    },
    /// ETIMEDOUT, ENOTCONN and the like: the mount has given up on its server.
    #[error("the file server of `{}` does not respond ({message})", shown(path))]
    NotConnected {
        /// The path at which the error occurred.
        path: PathBuf,
        /// The text of the system's error.
        message: String,
    },
    /// EIO, EUCLEAN.
    #[error("the file system of `{}` reports damage or a lost write", shown(path))]
    Damaged {
        /// The path at which the error occurred.
        path: PathBuf,
    },
    /// EBUSY, ETXTBSY.
    #[error("`{}` is in use by the system (something may be mounted on it)", shown(path))]
    Busy {
        /// The file or folder in use.
        path: PathBuf,
    },
    /// EROFS.
    #[error("`{}` is on a read-only file system", shown(path))]
    ReadOnly {
        /// The path at which the error occurred.
        path: PathBuf,
    },
    /// The home does not exist.
    #[error("home `{}` does not exist", shown(home))]
    MissingHome {
        home: PathBuf,
        /// The owner that the home should have.
        uid: u32,
        /// The group that the home should have.
        gid: u32,
    },
    /// The folder that contains the homes does not exist, or its file system is not mounted.
    #[error("`{}`, which contains the homes, does not exist, or its file system is not mounted", shown(prefix))]
    MissingPrefix {
        /// The prefix, or a folder or mount point beneath it.
        prefix: PathBuf,
    },
    /// EACCES or EPERM for root, in a folder in which homes are to be made.
    #[error("root cannot create anything in `{}`: its export squashes root", shown(prefix))]
    Squashed { prefix: PathBuf },
    /// The home, the file or its directory belongs to another user.
    #[error("`{}` belongs to uid {found}", shown(path))]
    WrongOwner {
        /// The home, or a path in it.
        path: PathBuf,
        /// The uid of the actual owner.
        found: u32,
    },
    /// The request names a home outside every configured prefix.
    #[error("home `{}` is not beneath any configured prefix", shown(home))]
    NotBeneathPrefix {
        /// The home in the request.
        home: PathBuf,
    },
    /// A path that cannot be a home or a kubeconfig: it has control characters or `..`, or is too long.
    #[error("path `{}`: {detail}", shown(path))]
    BadPath {
        /// The path in the request.
        path: PathBuf,
        detail: String,
    },
    /// A path that `bursar-homed` is not configured to write.
    #[error("`{}` is not a kubeconfig that bursar-homed may write", shown(path))]
    PathNotAllowed {
        /// The path in the request, relative to the home.
        path: PathBuf,
    },
    /// The uid belongs to the system, or is not valid.
    #[error("uid {uid} is outside {least} to 2147483647: bursar-homed never acts as such an account")]
    UidTooLow {
        /// The uid in the request.
        uid: u32,
        least: u32,
    },
    /// The gid belongs to the system, or is not valid.
    #[error("gid {gid} is outside {least} to 2147483647: bursar-homed never acts as such a group")]
    GidTooLow {
        /// The gid in the request.
        gid: u32,
        least: u32,
    },
    /// A component of the path is a symbolic link.
    #[error("`{}` is, or leads through, a symbolic link", shown(path))]
    Symlink {
        /// The path that was refused.
        path: PathBuf,
    },
    /// The path leads to another file system that is mounted inside the home, or that a user mounted over it.
    #[error("`{}` lies on a file system that is mounted inside the home, or that a user mounted over it", shown(path))]
    OtherFileSystem {
        /// The path that was refused.
        path: PathBuf,
    },
    /// A file was expected, and a FIFO, a device, a socket or a directory was found.
    #[error("`{}` is {found}, not a regular file", shown(path))]
    NotARegularFile {
        path: PathBuf,
        /// What was found, such as `a directory` or `a named pipe`.
        found: String,
    },
    /// A directory was expected, and a file was found.
    #[error("`{}` is not a directory", shown(path))]
    NotADirectory { path: PathBuf },
    /// The kubeconfig is larger than the limit.
    #[error("`{}` has {size} bytes; at most {limit} are read", shown(path))]
    TooLarge {
        path: PathBuf,
        /// Its size in bytes.
        size: u64,
        /// The most bytes that are read.
        limit: u64,
    },
    /// The file cannot be parsed as a kubeconfig, so entries cannot be merged into it.
    #[error("`{}` is not a kubeconfig: {detail}", shown(path))]
    NotYaml {
        path: PathBuf,
        /// The position and the kind of the error, without any text of the file.
        detail: String,
    },
    /// The file is YAML that is nested too deeply, or whose aliases expand to too much.
    #[error("`{}` is too complex to be read as a kubeconfig: {detail}", shown(path))]
    TooComplex {
        path: PathBuf,
        /// Which limit was exceeded.
        detail: String,
    },
    /// An entry with one of Bursar's names was made by the user.
    #[error("{entry} in `{}` is not Bursar's", shown(path))]
    ForeignEntry {
        path: PathBuf,
        /// The kind and the name of the entry, such as ``context `prod` ``.
        entry: String,
    },
    /// Another program writes the file, or holds its lock.
    #[error("`{}` is in use: {why}", shown(path))]
    InUse {
        path: PathBuf,
        /// The evidence that the file is in use.
        why: String,
    },
    /// There is nothing to restore.
    #[error("`{}` does not exist: Bursar has not replaced a file of the user", shown(path))]
    NothingKept {
        /// The path that a kept file would have.
        path: PathBuf,
    },
    /// The deadline of the request passed.
    #[error("no answer from `{}` within {seconds} s", shown(home))]
    TimedOut {
        home: PathBuf,
        /// The deadline in seconds.
        seconds: u64,
    },
    /// The request was not tried: the prefix does not respond at present, or the server is at its limit.
    #[error("not tried: {detail}")]
    Unavailable { detail: String },
    /// The request is malformed.
    #[error("bursar-homed cannot read the request: {detail}")]
    BadRequest { detail: String },
    /// The client is not the daemon.
    #[error("uid {uid} may not send requests: only the daemon's user may")]
    Forbidden {
        /// The uid of the client.
        uid: u32,
    },
    /// The home does not exist, and this prefix does not permit `bursar-homed` to create it.
    #[error("home `{}` does not exist and may not be created here", shown(home))]
    CreateNotAllowed {
        home: PathBuf,
        /// The owner that the home should have.
        uid: u32,
        /// The group that the home should have.
        gid: u32,
    },
    /// The worker ended without an answer.
    #[error("the worker ended without an answer: {detail}")]
    WorkerDied {
        /// How the worker ended.
        detail: String,
    },
    /// The request writes SSH keys, and `bursar-homed` was not started with `--ssh-keys`.
    #[error("SSH keys may not be written by this bursar-homed")]
    SshKeysNotAllowed,
    /// Bursar's block in the file cannot be distinguished from the rest.
    #[error("`{}` cannot be changed: {detail}", shown(path))]
    BrokenBlock {
        path: PathBuf,
        /// How often the marks occur.
        detail: String,
    },
    /// Any other error of the system.
    #[error("{operation} `{}`: {message} (errno {errno})", shown(path))]
    Io {
        /// The system call.
        operation: String,
        /// The path that the system call was for.
        path: PathBuf,
        errno: i32,
        message: String,
    },
}

/// Returns how full a file system is, in whole percents, so that the text does not change with every byte: each new
/// text is reported as a new failure. A client of NFS cannot learn how full a user's quota is.
fn room(size: u64, free: u64) -> String {
    if size == 0 {
        return "its file system does not say how full it is".to_owned();
    }
    let used = u128::from(size.saturating_sub(free));
    format!("its file system is {} % full there, of {}", (used * 100).div_ceil(u128::from(size)), amount(size))
}

/// Formats a number of bytes.
fn amount(bytes: u64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let Some((unit, shift)) = units.into_iter().find(|(_, shift)| bytes >> shift > 0) else {
        return format!("{bytes} bytes");
    };
    format!("{}.{} {unit}", bytes >> shift, (((bytes >> (shift - 10)) & 1023) * 10) >> 10)
}

/// Formats a path for messages. Paths come from directories and homes, so control characters are escaped.
#[must_use]
pub fn shown(path: &Path) -> String {
    path.to_string_lossy().chars().fold(String::new(), |mut text, c| {
        if c.is_control() {
            text.extend(c.escape_default());
        } else {
            text.push(c);
        }
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_of_a_missing_home_is_the_command_that_creates_it() {
        let missing = HomeError::MissingHome { home: "/srv/homes/foo".into(), uid: 52503, gid: 52504 };
        assert!(missing.remedy().contains("install -d -o 52503 -g 52504 -m 0700 /srv/homes/foo"));
    }

    #[test]
    fn an_exhausted_quota_names_its_user_and_how_full_it_is() {
        let quota = |size, free| HomeError::Quota { path: "/home/foo/.kube".into(), uid: 52503, size, free };
        let said = quota(0, 0).to_string();
        assert!(said.contains("uid 52503") && said.ends_with("does not say how full it is"), "{said}");
        // A folder's quota, which its file system reports as its size.
        let full = quota(10 << 30, 4096);
        assert!(full.to_string().ends_with("its file system is 100 % full there, of 10.0 GiB"), "{full}");
        assert!(full.remedy().contains("the quota of this folder"), "{}", full.remedy());
        // A user's quota, which only the file server knows.
        let user = quota(3 << 40, (1 << 40) + (1 << 29));
        assert!(user.to_string().ends_with("is 67 % full there, of 3072.0 GiB"), "{user}");
        assert!(user.remedy().contains("`quota -s -u 52503`"), "{}", user.remedy());
    }

    #[test]
    fn a_path_cannot_forge_a_line_of_the_journal() {
        let error = HomeError::NotBeneathPrefix { home: "/home/a\nerror: all is lost\u{1b}[2J".into() };
        assert!(!error.to_string().contains(['\n', '\u{1b}']), "{error}");
        assert!(!error.remedy().contains('\n'));
    }
}
