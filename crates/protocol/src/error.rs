//! Why something could not be done in a home: a closed list. What cures each stands in [`remedy`](HomeError::remedy).

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A reason. It travels over the socket, is stored in the ledger as text, and is what an administrator reads.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum HomeError {
    /// ENOSPC.
    #[error("no space left on the file system of `{}`", shown(path))]
    NoSpace {
        /// Where it was noticed.
        path: PathBuf,
    },
    /// ENOSPC, while blocks are free: the file system has no inode left.
    #[error("the file system of `{}` has no room for another file (its inodes are used up)", shown(path))]
    NoInodes {
        /// Where it was noticed.
        path: PathBuf,
    },
    /// EDQUOT.
    #[error(
        "the disk quota of uid {uid} (or of its group or folder) for `{}` is used up; {}",
        shown(path),
        room(*size, *free)
    )]
    Quota {
        /// Where it was noticed.
        path: PathBuf,
        /// Whose request it was: files are made as this user.
        uid: u32,
        /// Bytes that the file system says it has there; 0: unknown. Where a folder's quota counts, many say the quota.
        size: u64,
        /// How many of them it says are free.
        free: u64,
    },
    /// ESTALE.
    #[error("stale file handle at `{}`: the file server no longer knows what the mount refers to", shown(path))]
    Stale {
        /// Where it was noticed.
        path: PathBuf,
    },
    /// EACCES or EPERM.
    #[error("access to `{}` denied, although asked as its owner", shown(path))]
    AccessDenied {
        /// Where it was noticed.
        path: PathBuf,
    },
    /// EACCES or EPERM, for a mark that holds even for the owner (`chattr +i`, `+a`).
    #[error("`{}` is marked as immutable or append-only", shown(path))]
    Immutable {
        /// What carries the mark.
        path: PathBuf,
    },
    /// ENOKEY, EKEYEXPIRED and the like: the export wants Kerberos, and nobody has a ticket for the account here.
    #[error("`{}` is on an export that wants a Kerberos ticket of the account", shown(path))]
    NoTicket {
        /// Where it was noticed.
        path: PathBuf,
    },
    /// ETIMEDOUT, ENOTCONN and the like: a mount that gave up on its server.
    #[error("the file server of `{}` is not reached ({message})", shown(path))]
    NotConnected {
        /// Where it was noticed.
        path: PathBuf,
        /// What the mount said.
        message: String,
    },
    /// EIO, EUCLEAN.
    #[error("the file system of `{}` reports a damage or a lost write", shown(path))]
    Damaged {
        /// Where it was noticed.
        path: PathBuf,
    },
    /// EBUSY, ETXTBSY.
    #[error("`{}` is in use by the system (something may be mounted on it)", shown(path))]
    Busy {
        /// What it is about.
        path: PathBuf,
    },
    /// EROFS.
    #[error("`{}` is on a read-only file system", shown(path))]
    ReadOnly {
        /// Where it was noticed.
        path: PathBuf,
    },
    /// There is no such directory.
    #[error("home `{}` does not exist", shown(home))]
    MissingHome {
        /// The home.
        home: PathBuf,
        /// Owner that it should have.
        uid: u32,
        /// Group that it should have.
        gid: u32,
    },
    /// The folder of the homes itself is not there, or nothing is mounted there.
    #[error("`{}`, the folder of the homes, is not there, or its file system is not mounted", shown(prefix))]
    MissingPrefix {
        /// The prefix, or a folder or mount point beneath it.
        prefix: PathBuf,
    },
    /// EACCES or EPERM for root, where homes are to be made.
    #[error("root may make nothing in `{}`: its export squashes root", shown(prefix))]
    Squashed {
        /// The prefix.
        prefix: PathBuf,
    },
    /// The home, the file or its directory belongs to somebody else.
    #[error("`{}` belongs to uid {found}", shown(path))]
    WrongOwner {
        /// The home, or what is in it.
        path: PathBuf,
        /// Whose it is.
        found: u32,
    },
    /// The request names a path outside every configured prefix.
    #[error("home `{}` is not beneath any configured prefix", shown(home))]
    NotBeneathPrefix {
        /// The home as asked for.
        home: PathBuf,
    },
    /// A path that no home and no kubeconfig has: control characters, `..`, longer than a path may be.
    #[error("path `{}`: {detail}", shown(path))]
    BadPath {
        /// The path as asked for.
        path: PathBuf,
        /// What is wrong with it.
        detail: String,
    },
    /// A file that is not among those that `bursar-homed` may write.
    #[error("`{}` is not a kubeconfig that bursar-homed may write", shown(path))]
    PathNotAllowed {
        /// The path as asked for, relative to the home.
        path: PathBuf,
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
    #[error("`{}` is, or leads through, a symbolic link", shown(path))]
    Symlink {
        /// The path that was refused.
        path: PathBuf,
    },
    /// The path leads to another mount inside the home.
    #[error("`{}` lies on another file system that is mounted inside the home", shown(path))]
    OtherFileSystem {
        /// The path that was refused.
        path: PathBuf,
    },
    /// A FIFO, a device, a socket or a directory where a file should be.
    #[error("`{}` is {found}, not a regular file", shown(path))]
    NotARegularFile {
        /// What it is about.
        path: PathBuf,
        /// `a directory`, `a named pipe`.
        found: String,
    },
    /// A file where a directory should be.
    #[error("`{}` is not a directory", shown(path))]
    NotADirectory {
        /// What it is about.
        path: PathBuf,
    },
    /// The kubeconfig is larger than any kubeconfig.
    #[error("`{}` has {size} bytes, more than the {limit} that are read", shown(path))]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size in bytes.
        size: u64,
        /// What is read at most.
        limit: u64,
    },
    /// The file is no kubeconfig that could be merged into.
    #[error("`{}` is not a kubeconfig: {detail}", shown(path))]
    NotYaml {
        /// The file.
        path: PathBuf,
        /// Where and what; never a piece of the file.
        detail: String,
    },
    /// The file is YAML that stands for more than any kubeconfig: nested or aliased without end.
    #[error("`{}` is too complex to be read as a kubeconfig: {detail}", shown(path))]
    TooComplex {
        /// The file.
        path: PathBuf,
        /// What is too much.
        detail: String,
    },
    /// What stands under one of our names is the user's own.
    #[error("{entry} in `{}` is not Bursar's", shown(path))]
    ForeignEntry {
        /// The file.
        path: PathBuf,
        /// ``context `prod` ``.
        entry: String,
    },
    /// Another program writes the file, or says that it does.
    #[error("`{}` is in use: {why}", shown(path))]
    InUse {
        /// The file.
        path: PathBuf,
        /// By what it is seen.
        why: String,
    },
    /// Nothing to restore.
    #[error("`{}` is not there: Bursar has replaced nothing of the user's", shown(path))]
    NothingKept {
        /// Where it would be.
        path: PathBuf,
    },
    /// The deadline of the request passed.
    #[error("no answer from `{}` within {seconds} s", shown(home))]
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
    #[error("bursar-homed cannot read the request: {detail}")]
    BadRequest {
        /// What is wrong with it.
        detail: String,
    },
    /// Someone else than the daemon asks.
    #[error("uid {uid} may not send requests: only the daemon's user may")]
    Forbidden {
        /// Who asked.
        uid: u32,
    },
    /// The home may not be made here.
    #[error("home `{}` does not exist and may not be made here", shown(home))]
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
    /// Keys were to be written, and root did not allow it.
    #[error("SSH keys may not be written by this bursar-homed")]
    SshKeysNotAllowed,
    /// A file in which our block cannot be told from the rest.
    #[error("`{}` cannot be changed: {detail}", shown(path))]
    BrokenBlock {
        /// The file.
        path: PathBuf,
        /// How often the marks are there.
        detail: String,
    },
    /// Any other error of the system.
    #[error("{operation} `{}`: {message} (errno {errno})", shown(path))]
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

/// How full a file system says it is, in steps of a hundredth: a failure is told again when its text changes. Nothing
/// tells a client of NFS how full a user's quota is.
fn room(size: u64, free: u64) -> String {
    if size == 0 {
        return "its file system does not say how full it is".to_owned();
    }
    let used = u128::from(size.saturating_sub(free));
    format!("its file system is {} % full there, of {}", (used * 100).div_ceil(u128::from(size)), amount(size))
}

/// Bytes for people.
fn amount(bytes: u64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let Some((unit, shift)) = units.into_iter().find(|(_, shift)| bytes >> shift > 0) else {
        return format!("{bytes} bytes");
    };
    format!("{}.{} {unit}", bytes >> shift, (((bytes >> (shift - 10)) & 1023) * 10) >> 10)
}

/// A path for people. It came from a directory or a home: its control characters are shown, not obeyed.
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
    fn a_missing_home_names_the_command_that_makes_it() {
        let missing = HomeError::MissingHome { home: "/srv/homes/foo".into(), uid: 52503, gid: 52504 };
        assert!(missing.remedy().contains("install -d -o 52503 -g 52504 -m 0700 /srv/homes/foo"));
    }

    #[test]
    fn a_used_up_quota_says_whose_it_is_and_how_full() {
        let quota = |size, free| HomeError::Quota { path: "/home/foo/.kube".into(), uid: 52503, size, free };
        let said = quota(0, 0).to_string();
        assert!(said.contains("uid 52503") && said.ends_with("does not say how full it is"), "{said}");
        // The folder's own: its file system counts by it.
        let full = quota(10 << 30, 4096);
        assert!(full.to_string().ends_with("its file system is 100 % full there, of 10.0 GiB"), "{full}");
        assert!(full.remedy().contains("the quota of this folder"), "{}", full.remedy());
        // The user's: only the file server knows.
        let user = quota(3 << 40, (1 << 40) + (1 << 29));
        assert!(user.to_string().ends_with("is 67 % full there, of 3072.0 GiB"), "{user}");
        assert!(user.remedy().contains("`quota -s -u 52503`"), "{}", user.remedy());
    }

    #[test]
    fn a_path_cannot_write_a_line_of_the_journal() {
        let error = HomeError::NotBeneathPrefix { home: "/home/a\nerror: all is lost\u{1b}[2J".into() };
        assert!(!error.to_string().contains(['\n', '\u{1b}']), "{error}");
        assert!(!error.remedy().contains('\n'));
    }
}
