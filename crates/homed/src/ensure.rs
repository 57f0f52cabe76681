//! Makes a missing home. This is the only work that is done as root, and only if the settings allow it.
//!
//! The directory is made under a temporary name, given to the user, and renamed, so that a home never belongs to root
//! even if the worker is killed. The skeleton is copied later, as the user. Nothing that exists is ever changed.

use std::ffi::{OsStr, OsString};
use std::fs::{File, read_dir};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use bursar_protocol::{HomeError, HomeTarget};
use rustix::fs::{self, AtFlags, Dir, Gid, Mode, OFlags, RenameFlags, Uid, XattrFlags};
use rustix::io::Errno;

use crate::bounds::Prefix;
use crate::errno::from_errno;
use crate::files::{IN_HOME, errno_of, look, open_beneath, rename_new};

/// The most files and directories of a skeleton that are copied, and the deepest level. `/etc/skel` has about five
/// files.
const MAX_SKELETON_ENTRIES: usize = 500;
const MAX_SKELETON_DEPTH: usize = 8;

/// The SELinux label of a home. A service that makes a folder in `/home` would leave it with the label of `/home`, and
/// sshd reads no keys in such a home. With this label, the policy labels `.kube` and `.ssh` when they are made.
const HOME_LABEL: &[u8] = b"system_u:object_r:user_home_dir_t:s0\0";

/// Makes the directory of the target beneath its prefix, with [`HOME_LABEL`] if it is a home and SELinux is on. Returns
/// `false` if the name exists already.
pub(super) fn make_home(prefix: &Prefix, target: &HomeTarget, is_home: bool) -> Result<bool, HomeError> {
    let home = &target.home;
    let not_allowed = || not_allowed(target);
    let (parent, name) = parent(prefix, target)?;
    match fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => return Ok(false),
        Err(Errno::NOENT) => {}
        Err(errno) => return Err(from_errno("fstatat", home, errno)),
    }
    must_be_roots(prefix, &parent, target)?;
    // The export squashes root. The remedy of this error names the command for the file server.
    let failed = |call: &str, errno| match errno {
        Errno::ACCESS | Errno::PERM => not_allowed(),
        other => from_errno(call, home, other),
    };
    let temporary = temporary(name);
    let made =
        make_empty(&parent, &temporary, target, is_home).map_err(|(call, errno)| failed(call, errno)).and_then(|()| {
            match fs::renameat_with(&parent, &temporary, &parent, name, RenameFlags::NOREPLACE) {
                Ok(()) => Ok(true),
                Err(Errno::EXIST) => Ok(false),
                // Older NFS has no NOREPLACE. A plain rename of the empty directory can replace only an empty directory.
                Err(Errno::INVAL | Errno::NOSYS) => fs::renameat(&parent, &temporary, &parent, name)
                    .map(|()| true)
                    .map_err(|errno| failed("renameat", errno)),
                Err(errno) => Err(failed("renameat2", errno)),
            }
        });
    if !matches!(made, Ok(true)) {
        let _ = fs::unlinkat(&parent, &temporary, AtFlags::REMOVEDIR);
        return made;
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let held = fs::openat(&parent, ".", flags, Mode::empty()).map_err(|errno| failed("openat", errno))?;
    sync(&held).map_err(|errno| failed("fsync", errno))?;
    made
}

/// Tests whether a home could be made: makes a directory, gives it to the user, and removes it.
pub(super) fn test_create(prefix: &Prefix, target: &HomeTarget) -> Result<(), HomeError> {
    let (parent, name) = parent(prefix, target)?;
    must_be_roots(prefix, &parent, target)?;
    let temporary = temporary(name);
    let made = make_empty(&parent, &temporary, target, false);
    let _ = fs::unlinkat(&parent, &temporary, AtFlags::REMOVEDIR);
    made.map_err(|(call, errno)| match errno {
        Errno::ACCESS | Errno::PERM => HomeError::Squashed { prefix: prefix.path.clone() },
        other => from_errno(call, &prefix.path, other),
    })
}

fn not_allowed(target: &HomeTarget) -> HomeError {
    HomeError::CreateNotAllowed { home: target.home.clone(), uid: target.uid, gid: target.gid }
}

/// Opens the directory above the target. Returns it with the name of the target in it.
fn parent<'t>(prefix: &Prefix, target: &'t HomeTarget) -> Result<(OwnedFd, &'t OsStr), HomeError> {
    let not_allowed = || not_allowed(target);
    let (Some(parent), Some(name)) = (target.home.parent(), target.home.file_name()) else {
        return Err(not_allowed());
    };
    let relative = parent.strip_prefix(&prefix.path).map_err(|_| not_allowed())?;
    let relative = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
    Ok((open_beneath(&prefix.path, relative, not_allowed)?, name))
}

/// Checks that only root can write in the directory. Otherwise another user could replace the new directory before it
/// is given away.
fn must_be_roots(prefix: &Prefix, parent: &OwnedFd, target: &HomeTarget) -> Result<(), HomeError> {
    let path = target.home.parent().unwrap_or(&prefix.path);
    if !prefix.allow_create {
        return Err(not_allowed(target));
    }
    let found = fs::fstat(parent).map_err(|errno| from_errno("fstat", path, errno))?;
    if found.st_uid != rustix::process::geteuid().as_raw() {
        return Err(HomeError::WrongOwner { path: path.to_owned(), found: found.st_uid });
    }
    if found.st_mode & 0o022 != 0 {
        return Err(not_allowed(target));
    }
    Ok(())
}

fn temporary(name: &OsStr) -> OsString {
    let mut temporary = OsString::from(".bursar-");
    temporary.push(name);
    temporary.push(".tmp");
    temporary
}

/// Makes a directory under a temporary name and gives it to the user. A directory of a killed worker is removed first;
/// the server runs one worker per home at a time.
fn make_empty(
    parent: &OwnedFd,
    temporary: &OsStr,
    target: &HomeTarget,
    is_home: bool,
) -> Result<(), (&'static str, Errno)> {
    let _ = fs::unlinkat(parent, temporary, AtFlags::REMOVEDIR);
    fs::mkdirat(parent, temporary, Mode::RWXU).map_err(|errno| ("mkdirat", errno))?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = fs::openat(parent, temporary, flags, Mode::empty()).map_err(|errno| ("openat", errno))?;
    if is_home {
        // Fails without SELinux, with a policy that has no such label, and on most network file systems.
        let _ = fs::fsetxattr(&directory, "security.selinux", HOME_LABEL, XattrFlags::REPLACE);
    }
    if rustix::process::geteuid().is_root() {
        let (uid, gid) = (Uid::from_raw(target.uid), Gid::from_raw(target.gid));
        fs::fchown(&directory, Some(uid), Some(gid)).map_err(|errno| ("fchown", errno))?;
    }
    sync(&directory).map_err(|errno| ("fsync", errno))
}

/// Syncs a directory, so that new and renamed entries survive a crash. Some file systems cannot sync directories, and
/// do not need it.
fn sync(directory: &OwnedFd) -> Result<(), Errno> {
    match fs::fsync(directory) {
        Ok(()) | Err(Errno::INVAL | Errno::NOTSUP) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Lets the group of a new directory write in it, and own what is made in it. Runs as the user, because root without
/// `CAP_FSETID` may not set the bit. If the directory is not empty or has another mode, the user already uses it, and
/// it stays as it is.
pub(super) fn give_group_on(path: &Path, place: &OwnedFd) -> Result<(), HomeError> {
    let failed = |call: &str, errno| from_errno(call, path, errno);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let held = fs::openat(place, ".", flags, Mode::empty()).map_err(|errno| failed("openat", errno))?;
    let found = fs::fstat(&held).map_err(|errno| failed("fstat", errno))?;
    if found.st_mode & 0o7777 != 0o700 || !is_empty(&held) {
        return Ok(());
    }
    fs::fchmod(&held, Mode::RWXU | Mode::RWXG | Mode::SGID).map_err(|errno| failed("fchmod", errno))
}

/// Whether an existing directory belongs to the group and is writable for it, because it was made for another member.
/// Changes nothing.
pub(super) fn is_the_groups(prefix: &Path, target: &HomeTarget) -> Result<bool, HomeError> {
    let path = &target.home;
    let relative = path.strip_prefix(prefix).map_err(|_| HomeError::NotBeneathPrefix { home: path.clone() })?;
    let missing = || HomeError::MissingHome { home: path.clone(), uid: target.uid, gid: target.gid };
    let held = open_beneath(prefix, relative, missing)?;
    let found = fs::fstat(&held).map_err(|errno| from_errno("fstat", path, errno))?;
    let groups = Mode::RWXG | Mode::SGID;
    Ok(found.st_gid == target.gid && Mode::from_raw_mode(found.st_mode).contains(groups))
}

/// Marks a home whose skeleton is being copied. If the worker is killed, the next worker finds the mark and continues
/// the copy.
const UNFINISHED: &str = ".bursar-skeleton";
/// The name of a file of the skeleton until it is complete.
const TEMPORARY: &str = ".bursar-skeleton.tmp";

/// Copies regular files and directories of the skeleton, as the user, into a home that is new or empty, or in which a
/// copy was interrupted. Existing files stay, no mount is crossed, and each file is copied completely or not at all.
pub(super) fn copy_skeleton(skeleton: &Path, home: &Path, place: &OwnedFd, created: bool) -> Result<(), HomeError> {
    let failed = |call: &str, errno| from_errno(call, home, errno);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let held = fs::openat(place, ".", flags, Mode::empty()).map_err(|errno| failed("openat", errno))?;
    if !(created || look(&held, Path::new(UNFINISHED)).is_ok() || is_empty(&held)) {
        return Ok(());
    }
    let mark = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    fs::openat2(&held, UNFINISHED, mark, Mode::RUSR | Mode::WUSR, IN_HOME).map_err(|errno| failed("openat2", errno))?;
    let mut left = MAX_SKELETON_ENTRIES;
    copy_directory(skeleton, home, &held, &mut left, 0)?;
    fs::unlinkat(&held, UNFINISHED, AtFlags::empty()).map_err(|errno| failed("unlinkat", errno))
}

fn is_empty(held: &OwnedFd) -> bool {
    let is_name = |name: &[u8]| !matches!(name, b"." | b"..");
    Dir::read_from(held)
        .is_ok_and(|mut entries| !entries.any(|entry| entry.is_ok_and(|entry| is_name(entry.file_name().to_bytes()))))
}

/// Whether no file has this name. After any other error, nothing is copied.
fn is_free(directory: &OwnedFd, name: &OsStr) -> bool {
    look(directory, Path::new(name)).is_err_and(|errno| errno == Errno::NOENT)
}

fn copy_directory(from: &Path, home: &Path, to: &OwnedFd, left: &mut usize, depth: usize) -> Result<(), HomeError> {
    let unread = |path: &Path, error: &std::io::Error| from_errno("read", path, errno_of(error));
    let _ = fs::unlinkat(to, TEMPORARY, AtFlags::empty());
    for entry in read_dir(from).map_err(|error| unread(from, &error))? {
        let entry = entry.map_err(|error| unread(from, &error))?;
        let (path, name) = (entry.path(), entry.file_name());
        *left = left.saturating_sub(1);
        if *left == 0 || depth > MAX_SKELETON_DEPTH {
            break;
        }
        let found = entry.metadata().map_err(|error| unread(&path, &error))?;
        let mode = Mode::from_raw_mode(found.permissions().mode() & 0o777);
        let failed = |call: &str, errno| from_errno(call, home.join(&name), errno);
        if found.is_dir() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let copied = match fs::mkdirat(to, &name, mode | Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => fs::openat2(to, &name, flags, Mode::empty(), IN_HOME),
                Err(errno) => Err(errno),
            };
            let copied = copied.map_err(|errno| failed("mkdirat", errno))?;
            copy_directory(&path, &home.join(&name), &copied, left, depth + 1)?;
        } else if found.is_file() && is_free(to, &name) {
            let mut source = File::open(&path).map_err(|error| unread(&path, &error))?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = fs::openat2(to, TEMPORARY, flags, mode, IN_HOME).map_err(|errno| failed("openat2", errno))?;
            let mut file = File::from(file);
            std::io::copy(&mut source, &mut file)
                .and_then(|_| file.sync_all())
                .map_err(|error| failed("write", errno_of(&error)))?;
            match rename_new(to, Path::new(TEMPORARY), Path::new(&name)) {
                // The user made this file meanwhile.
                Err(Errno::EXIST) => fs::unlinkat(to, TEMPORARY, AtFlags::empty()),
                renamed => renamed,
            }
            .map_err(|errno| failed("renameat", errno))?;
        }
    }
    sync(to).map_err(|errno| from_errno("fsync", home, errno))
}
