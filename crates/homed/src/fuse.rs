//! Finds FUSE file systems that users mounted at or above a home, without asking any file system.
//!
//! If the program behind such a file system reads a request and never answers, not even SIGKILL ends the process that
//! waits for it. A person with a few such homes could use up the workers of an export. Inside a home,
//! [`files`](crate::files) crosses no mount.

use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use bursar_protocol::{HomeError, HomeTarget};

use crate::bounds::Prefix;

/// Refuses a home that lies on such a file system.
pub(super) fn refuse_users_own(prefix: &Prefix, target: &HomeTarget) -> Result<(), HomeError> {
    // The prefix is the administrator's, and may lead through symlinks; the kernel's table has real paths.
    let real = std::fs::canonicalize(&prefix.path).unwrap_or_else(|_| prefix.path.clone());
    users_own(&real, target.home.strip_prefix(&prefix.path).unwrap_or(Path::new("")))
        .map_or(Ok(()), |path| Err(HomeError::OtherFileSystem { path }))
}

/// Returns where such a file system is mounted beneath `prefix`, at or above its folder `home`.
pub(super) fn users_own(prefix: &Path, home: &Path) -> Option<PathBuf> {
    // If the table cannot be read, only the deadline protects the worker.
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let mut mounts = table.split(|byte| *byte == b'\n').filter_map(of_user);
    let whole = prefix.join(home);
    mounts.find(|mount| whole.starts_with(mount) && mount.starts_with(prefix) && mount != prefix)
}

/// Returns the mount point of a line of `/proc/self/mountinfo` (proc(5)) if a user other than root mounted a FUSE file
/// system there.
fn of_user(line: &[u8]) -> Option<PathBuf> {
    let mut fields = line.split(|byte| *byte == b' ');
    let point = fields.nth(4)?;
    let mut after = fields.skip_while(|field| *field != b"-").skip(1);
    let (kind, _source, options) = (after.next()?, after.next()?, after.next()?);
    let mut options = options.split(|byte| *byte == b',');
    let is_users = options.any(|option| option.strip_prefix(b"user_id=").is_some_and(|uid| uid != b"0"));
    (kind.starts_with(b"fuse") && is_users).then(|| PathBuf::from(std::ffi::OsString::from_vec(unescaped(point))))
}

/// Returns a field without the escapes of the kernel, such as `\040` for a blank.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, behind @ ..] = rest {
        let escaped = || {
            let digits = std::str::from_utf8(behind.get(..3).filter(|_| *first == b'\\')?).ok()?;
            u8::from_str_radix(digits, 8).ok()
        };
        if let Some(byte) = escaped() {
            plain.push(byte);
            rest = &behind[3..];
        } else {
            plain.push(*first);
            rest = behind;
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_fuse_mounts_of_users_are_found() {
        let line =
            |rest: &str| of_user(format!("60 22 0:47 / /srv/my\\040tools/a rw,nosuid shared:2 {rest}").as_bytes());
        let found = line("master:1 - fuse.sshfs a@b:/ rw,user_id=52503,group_id=52503");
        assert_eq!(found, Some(PathBuf::from("/srv/my tools/a")));
        assert_eq!(line("- fuse none rw,user_id=1000"), Some(PathBuf::from("/srv/my tools/a")));
        for other in [
            "- fuse.glusterfs server:/homes rw,user_id=0,group_id=0,allow_other",
            "- nfs4 server:/homes rw,user_id=1000",
            "- fuse.x none",
            "",
        ] {
            assert_eq!(line(other), None, "{other}");
        }
    }
}
