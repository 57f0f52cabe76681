//! Turns the errno of a failed system call into a [`HomeError`].

use std::path::PathBuf;

use bursar_protocol::HomeError;
use rustix::io::Errno;

/// Returns the error for a system call on `path` that failed with `errno`.
pub(super) fn from_errno(operation: &str, path: impl Into<PathBuf>, errno: Errno) -> HomeError {
    let path = path.into();
    let message = || std::io::Error::from(errno).kind().to_string();
    match errno {
        Errno::NOSPC => HomeError::NoSpace { path },
        Errno::DQUOT => HomeError::Quota { path, uid: rustix::process::geteuid().as_raw(), size: 0, free: 0 },
        Errno::STALE => HomeError::Stale { path },
        Errno::ACCESS | Errno::PERM => HomeError::AccessDenied { path },
        Errno::NOKEY | Errno::KEYEXPIRED | Errno::KEYREVOKED | Errno::KEYREJECTED => HomeError::NoTicket { path },
        Errno::ROFS => HomeError::ReadOnly { path },
        Errno::LOOP => HomeError::Symlink { path },
        Errno::XDEV => HomeError::OtherFileSystem { path },
        Errno::NOTDIR => HomeError::NotADirectory { path },
        Errno::ISDIR => HomeError::NotARegularFile { path, found: "a directory".to_owned() },
        Errno::NXIO => HomeError::NotARegularFile { path, found: "a pipe, a socket or a device".to_owned() },
        // The file server recalls a delegation of another host; or a program of the user holds a lease.
        Errno::AGAIN => HomeError::InUse { path, why: "another program or host has a lease on it".to_owned() },
        Errno::BUSY | Errno::TXTBSY => HomeError::Busy { path },
        Errno::NAMETOOLONG => HomeError::BadPath { path, detail: "longer than the file system allows".to_owned() },
        Errno::IO | Errno::UCLEAN => HomeError::Damaged { path },
        Errno::TIMEDOUT
        | Errno::NOTCONN
        | Errno::CONNREFUSED
        | Errno::CONNRESET
        | Errno::CONNABORTED
        | Errno::HOSTDOWN
        | Errno::HOSTUNREACH
        | Errno::NETUNREACH
        | Errno::REMOTEIO => HomeError::NotConnected { path, message: message() },
        other => {
            HomeError::Io { operation: operation.to_owned(), path, errno: other.raw_os_error(), message: message() }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_errno_of_a_home_has_its_own_reason() {
        let reason = |errno| from_errno("openat2", "/home/a", errno).reason();
        assert_eq!(reason(Errno::NOSPC), "no-space");
        assert_eq!(reason(Errno::DQUOT), "quota");
        assert_eq!(reason(Errno::STALE), "stale");
        assert_eq!(reason(Errno::ACCESS), "access-denied");
        assert_eq!(reason(Errno::LOOP), "symlink");
        assert_eq!(reason(Errno::IO), "damaged");
        assert_eq!(reason(Errno::AGAIN), "in-use");
        assert_eq!(reason(Errno::NOTCONN), "not-connected");
        assert_eq!(reason(Errno::KEYEXPIRED), "no-ticket");
        assert_eq!(reason(Errno::BUSY), "busy");
        assert_eq!(reason(Errno::INVAL), "io");
    }
}
