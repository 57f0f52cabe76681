//! Reads the kernel's table of mounts, without asking any file system: finds FUSE file systems that users mounted, and
//! the mount point of an open directory.
//!
//! If the program behind a FUSE file system reads a request and never answers, not even SIGKILL ends the process that
//! waits for it. A person with a few such homes could use up the workers of an export. Inside a home,
//! [`files`](crate::files) crosses no mount.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use bursar_protocol::{HomeError, HomeTarget};
use rustix::fs::{self, AtFlags, StatxFlags};

use crate::bounds::Prefix;

/// Refuses a home on a FUSE file system that a user mounted.
pub(super) fn refuse_users_own(prefix: &Prefix, target: &HomeTarget) -> Result<(), HomeError> {
    // The prefix is the administrator's, and may lead through symlinks; the kernel's table has real paths.
    let real = std::fs::canonicalize(&prefix.path).unwrap_or_else(|_| prefix.path.clone());
    let whole = real.join(target.home.strip_prefix(&prefix.path).unwrap_or(Path::new("")));
    let mut found = users_own(&real).into_iter();
    found.find(|mount| whole.starts_with(mount)).map_or(Ok(()), |path| Err(HomeError::OtherFileSystem { path }))
}

/// Returns the mount point of a FUSE file system that a user mounted at, above or beneath a folder of a prefix. `real`
/// is the real path of the prefix.
pub(super) fn around(real: &Path, home: &Path) -> Option<PathBuf> {
    let whole = real.join(home);
    users_own(real).into_iter().find(|mount| whole.starts_with(mount) || mount.starts_with(&whole))
}

/// Returns the mount points of FUSE file systems that users mounted beneath a prefix, whose real path is `real`.
fn users_own(real: &Path) -> Vec<PathBuf> {
    let table = table();
    let mounts = table.split(|byte| *byte == b'\n').filter_map(of_user);
    mounts.filter(|mount| mount.starts_with(real) && mount != real).collect()
}

/// Returns the mount point of the file system that contains an open directory. Unlike a path, the directory cannot be
/// replaced by another file system meanwhile. `None` if the kernel does not report the mount (before Linux 5.8).
pub(super) fn of_open_directory(directory: &OwnedFd) -> Option<PathBuf> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = fs::statx(directory, "", flags, StatxFlags::MNT_ID).ok()?;
    let has_id = found.stx_mask & StatxFlags::MNT_ID.bits() != 0;
    let id = has_id.then(|| found.stx_mnt_id.to_string())?;
    let table = table();
    let mut lines = table.split(|byte| *byte == b'\n').map(|line| line.split(|byte| *byte == b' '));
    let mut fields = lines.find_map(|mut fields| (fields.next()? == id.as_bytes()).then_some(fields))?;
    fields.nth(3).map(path)
}

/// Returns `/proc/self/mountinfo` (proc(5)). If it cannot be read, only the deadline protects the worker.
fn table() -> Vec<u8> {
    std::fs::read("/proc/self/mountinfo").unwrap_or_default()
}

fn path(field: &[u8]) -> PathBuf {
    std::ffi::OsString::from_vec(unescaped(field)).into()
}

/// Returns the mount point of a line of the table if a user other than root mounted a FUSE file system there.
fn of_user(line: &[u8]) -> Option<PathBuf> {
    let mut fields = line.split(|byte| *byte == b' ');
    let point = fields.nth(4)?;
    let mut after = fields.skip_while(|field| *field != b"-").skip(1);
    let (kind, _source, options) = (after.next()?, after.next()?, after.next()?);
    let mut options = options.split(|byte| *byte == b',');
    let is_users = options.any(|option| option.strip_prefix(b"user_id=").is_some_and(|uid| uid != b"0"));
    (kind.starts_with(b"fuse") && is_users).then(|| path(point))
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
    fn an_open_directory_has_the_mount_point_of_its_path() {
        let folder = tempfile::tempdir().expect("the temporary folder is writable");
        for path in [Path::new("/proc/self"), folder.path()] {
            let open = std::fs::File::open(path).expect("the folder is readable").into();
            assert_eq!(of_open_directory(&open), crate::files::mount_of(path), "{}", path.display());
        }
    }

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
