//! Reads and writes files in one home, through directory descriptors that stay open.
//!
//! Runs in the worker, as the owner of the home. Each name is resolved by `openat2` beneath the directory above it,
//! without symbolic links, magic links or mounts inside the home. If another process swaps a component meanwhile, the
//! call is refused or harmless. Local file systems and NFS share one code path: a temporary file in the same directory
//! (`O_TMPFILE` does not exist on NFS), fsync, rename, fsync of the directory.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use bursar_protocol::{HomeError, HomeTarget};
use rustix::fs::{
    self, AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, ResolveFlags, Stat, StatxAttributes, StatxFlags,
};
use rustix::io::Errno;
use zeroize::Zeroizing;

use crate::errno::from_errno;
use crate::exchange::Version;
use crate::mounts;

/// The largest kubeconfig that is read, in bytes: the limit of a Secret in Kubernetes. Real kubeconfigs have some
/// kilobytes. A user can make a sparse file of a terabyte at no cost, so the limit bounds what we read.
pub const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// The smallest size of a test write in bytes: a kubeconfig with two CA bundles. It is more than one block, so that
/// quotas count it.
const TEST_WRITE_BYTES: usize = 16 * 1024;

/// The number of directory entries that are searched for our temporary files. `.kube` has a handful. A directory that a
/// user filled with millions of files must not use up the deadline.
const MAX_SWEPT_ENTRIES: usize = 4096;

const TEMPORARY_PREFIX: &str = ".bursar-";
const TEMPORARY_SUFFIX: &str = ".tmp";

const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);
/// In the home, mounts are refused too: a user could mount a FUSE file system there that never answers.
pub(super) const IN_HOME: ResolveFlags = BENEATH.union(ResolveFlags::NO_XDEV);

/// The open directory of a home, which belongs to its user.
#[derive(Debug)]
pub struct Home {
    directory: OwnedFd,
    path: PathBuf,
    uid: u32,
    mount: Option<PathBuf>,
}

/// Opens a directory for path resolution only, which needs no permission to list it.
const PLACE: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Opens the plain relative `path` beneath a prefix, with [`PLACE`]. If it does not exist, the error is `missing`.
pub(super) fn open_beneath(
    prefix: &Path,
    path: &Path,
    missing: impl FnOnce() -> HomeError,
) -> Result<OwnedFd, HomeError> {
    let whole = prefix.join(path);
    let above = fs::openat(CWD, prefix, PLACE, Mode::empty()).map_err(|errno| match errno {
        Errno::NOENT | Errno::NOTDIR => HomeError::MissingPrefix { prefix: prefix.to_owned() },
        other => from_errno("openat", prefix, other),
    })?;
    fs::openat2(&above, path, PLACE, Mode::empty(), BENEATH).map_err(|errno| match errno {
        Errno::NOENT => missing(),
        Errno::XDEV => HomeError::NotBeneathPrefix { home: whole.clone() },
        other => from_errno("openat2", &whole, other),
    })
}

/// Returns the mount point of the file system that contains a folder. Unlike a device number, it survives a reboot of
/// the host. `None` if the folder does not exist or the kernel does not report mount points.
pub(super) fn mount_of(folder: &Path) -> Option<PathBuf> {
    let folder = std::fs::canonicalize(folder).ok()?;
    let is_mounted = |place: &&Path| {
        fs::statx(CWD, *place, AtFlags::empty(), StatxFlags::TYPE)
            .is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
    };
    folder.ancestors().find(is_mounted).map(Path::to_owned)
}

/// Whether a file system is mounted at `place`. Returns `true` if the call fails with any error other than a missing
/// folder, because that error is reported when the home is opened.
pub(super) fn is_mount_point(place: &Path) -> bool {
    match fs::statx(CWD, place, AtFlags::empty(), StatxFlags::TYPE) {
        Ok(found) => found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT),
        Err(errno) => !matches!(errno, Errno::NOENT | Errno::NOTDIR),
    }
}

impl Home {
    /// Opens the target's home beneath its prefix.
    pub fn open(prefix: &Path, target: &HomeTarget) -> Result<Self, HomeError> {
        let path = target.home.clone();
        let relative = path.strip_prefix(prefix).map_err(|_| HomeError::NotBeneathPrefix { home: path.clone() })?;
        let missing = || HomeError::MissingHome { home: path.clone(), uid: target.uid, gid: target.gid };
        let directory = open_beneath(prefix, relative, missing)?;
        let found = fs::fstat(&directory).map_err(|errno| from_errno("fstat", &path, errno))?;
        if found.st_uid != target.uid {
            return Err(HomeError::WrongOwner { path, found: found.st_uid });
        }
        let mount = mounts::of_open_directory(&directory).or_else(|| mount_of(&path));
        Ok(Self { directory, path, uid: target.uid, mount })
    }

    /// Returns the mount point of the home's file system: the home itself if an automounter mounts each home. It was
    /// looked up when the home was opened, because a user may mount something at this path during the work.
    pub(super) fn mount(&self) -> Option<PathBuf> {
        self.mount.clone()
    }

    pub(super) fn directory(&self) -> &OwnedFd {
        &self.directory
    }

    /// Opens the directory of a file of this home; `None` if it does not exist.
    pub fn directory_of(&self, file: &Path) -> Result<Option<Directory<'_>>, HomeError> {
        self.open_parent(file)
    }

    /// Opens the directory of a file of this home. If it does not exist, it is created with mode 0700.
    pub fn make_directory_of(&self, file: &Path) -> Result<Directory<'_>, HomeError> {
        if let Some(directory) = self.open_parent(file)? {
            return Ok(directory);
        }
        let mut above = PathBuf::new();
        for component in file.parent().into_iter().flat_map(Path::components) {
            let missing = || from_errno("openat2", self.path.join(&above), Errno::NOENT);
            let held = self.open_directory(&above)?.ok_or_else(missing)?;
            let held = Directory { home: self, held, path: self.path.join(&above), most: MAX_FILE_BYTES };
            match fs::mkdirat(&held.held, component.as_os_str(), Mode::RWXU) {
                Ok(()) => {
                    held.sync()?;
                    above.push(component);
                }
                Err(Errno::EXIST) => above.push(component),
                Err(errno) => return Err(held.failed("mkdirat", Path::new(component.as_os_str()), errno)),
            }
        }
        self.open_parent(file)?.ok_or_else(|| from_errno("openat2", self.path.join(above), Errno::NOENT))
    }

    fn open_parent(&self, file: &Path) -> Result<Option<Directory<'_>>, HomeError> {
        let parent = file.parent().unwrap_or(Path::new(""));
        let held = self.open_directory(parent)?;
        Ok(held.map(|held| Directory { home: self, held, path: self.path.join(parent), most: MAX_FILE_BYTES }))
    }

    /// Opens a directory so that it can be listed and synced; `None` if it does not exist. Every directory on the path
    /// must belong to the user, because the owner of a folder could replace a kubeconfig in it.
    fn open_directory(&self, path: &Path) -> Result<Option<OwnedFd>, HomeError> {
        let mut whole = self.path.clone();
        let mut held: Option<OwnedFd> = None;
        for component in path.components() {
            whole.push(component);
            let failed = |call: &str, errno| from_errno(call, &whole, errno);
            let above = held.as_ref().unwrap_or(&self.directory);
            let place = match fs::openat2(above, component.as_os_str(), PLACE, Mode::empty(), IN_HOME) {
                Ok(place) => place,
                Err(Errno::NOENT) => return Ok(None),
                Err(errno) => return Err(failed("openat2", errno)),
            };
            let found = fs::fstat(&place).map_err(|errno| failed("fstat", errno))?;
            if found.st_uid != self.uid {
                return Err(HomeError::WrongOwner { path: whole, found: found.st_uid });
            }
            held = Some(place);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        fs::openat2(held.as_ref().unwrap_or(&self.directory), ".", flags, Mode::empty(), IN_HOME)
            .map(Some)
            .map_err(|errno| from_errno("openat2", whole, errno))
    }
}

/// An open directory of a home.
#[derive(Debug)]
pub struct Directory<'home> {
    home: &'home Home,
    held: OwnedFd,
    path: PathBuf,
    /// The size in bytes of the largest file that is read.
    most: u64,
}

/// A file that exists, with its content.
#[derive(Debug)]
pub struct Existing {
    /// It may contain the user's credentials, so the memory is overwritten on drop.
    pub content: Zeroizing<Vec<u8>>,
    /// Permission bits.
    pub mode: u32,
    /// The uid of the owner, who always owns the home too.
    pub owner: u32,
    /// Differs after the file was changed or replaced.
    pub version: Version,
    file: File,
}

/// A complete file under a name of its own. If it is dropped before [`Temporary::put`], the file is removed.
pub(super) struct Temporary<'d, 'home> {
    directory: &'d Directory<'home>,
    name: Option<PathBuf>,
    file: File,
}

impl Temporary<'_, '_> {
    /// Returns when the file was written, in nanoseconds since 1970 by the clock of the file system.
    pub(super) fn made_at(&self) -> Result<i128, HomeError> {
        let found = fs::fstat(&self.file).map_err(|errno| from_errno("fstat", &self.directory.path, errno))?;
        Ok(Version::of(&found).changed_at())
    }

    /// Renames the file to `name`: at any moment, either the complete old file or the complete new one has that name.
    /// This process must not have the old file open, because an NFS client would first rename the old file away, and
    /// for a moment no file would have the name.
    pub(super) fn put(mut self, name: &Path) -> Result<(), HomeError> {
        let Some(temporary) = &self.name else { return Ok(()) };
        let held = &self.directory.held;
        fs::renameat(held, temporary, held, name).map_err(|errno| self.directory.failed("renameat", name, errno))?;
        self.name = None;
        Ok(())
    }

    /// Renames the file to `name`. If that fails, the file keeps its own name, because it may be the only copy.
    pub(super) fn put_or_stay(mut self, name: &Path) -> Result<(), HomeError> {
        let Some(own) = self.name.take() else { return Ok(()) };
        let held = &self.directory.held;
        fs::renameat(held, &own, held, name).map_err(|errno| self.directory.failed("renameat", name, errno))
    }

    /// Renames the file to `name`. Returns `false` if a file has that name already.
    pub(super) fn put_new(mut self, name: &Path) -> Result<bool, HomeError> {
        let Some(temporary) = &self.name else { return Ok(true) };
        match rename_new(&self.directory.held, temporary, name) {
            Ok(()) => {
                self.name = None;
                Ok(true)
            }
            Err(Errno::EXIST) => Ok(false),
            Err(errno) => Err(self.directory.failed("renameat2", name, errno)),
        }
    }
}

impl Drop for Temporary<'_, '_> {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            let _ = fs::unlinkat(&self.directory.held, name, AtFlags::empty());
        }
    }
}

impl Directory<'_> {
    /// Lets files of up to `most` bytes be read.
    pub(super) fn reading(self, most: usize) -> Self {
        Self { most: most as u64, ..self }
    }

    /// Returns the path of a file in this directory, for messages.
    #[must_use]
    pub fn path_of(&self, name: &Path) -> PathBuf {
        self.path.join(name)
    }

    pub(super) fn failed(&self, operation: &str, name: &Path, errno: Errno) -> HomeError {
        match errno {
            Errno::ACCESS | Errno::PERM => self.marked(name),
            Errno::NOSPC if has_no_inodes(&self.held) => Some(HomeError::NoInodes { path: self.path.clone() }),
            Errno::DQUOT => self.quota(name),
            _ => None,
        }
        .unwrap_or_else(|| from_errno(operation, self.path_of(name), errno))
    }

    /// Returns the error for an exceeded quota, with the size and free space of the file system. If a quota applies to
    /// a folder, many file systems report these numbers for the quota. Only the file server knows the quota of a user.
    fn quota(&self, name: &Path) -> Option<HomeError> {
        let found = fs::fstatvfs(&self.held).ok()?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        let (size, free) = (bytes(found.f_blocks), bytes(found.f_bavail));
        Some(HomeError::Quota { path: self.path_of(name), uid: self.home.uid, size, free })
    }

    /// Returns an error if the directory or the file is marked immutable or append-only, which binds the owner too.
    fn marked(&self, name: &Path) -> Option<HomeError> {
        let marks = StatxAttributes::IMMUTABLE | StatxAttributes::APPEND;
        let is_marked = |place: &OwnedFd| {
            fs::statx(place, "", AtFlags::EMPTY_PATH, StatxFlags::TYPE)
                .is_ok_and(|found| found.stx_attributes.intersects(marks))
        };
        if is_marked(&self.held) {
            return Some(HomeError::Immutable { path: self.path.clone() });
        }
        let place = look(&self.held, name).ok()?;
        is_marked(&place).then(|| HomeError::Immutable { path: self.path_of(name) })
    }

    /// Returns the metadata of the file with this name; `None` if it does not exist. Links are not followed.
    pub(super) fn look(&self, name: &Path) -> Result<Option<Stat>, HomeError> {
        match look(&self.held, name) {
            Ok(place) => fs::fstat(&place).map(Some).map_err(|errno| self.failed("fstat", name, errno)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.failed("openat2", name, errno)),
        }
    }

    /// Reads a regular file of the home's owner; `None` if there is none.
    pub fn read(&self, name: &Path) -> Result<Option<Existing>, HomeError> {
        // This check only gives a better error. The check after the open is the one that counts.
        match self.look(name)? {
            None => return Ok(None),
            Some(found) => self.check(name, &found)?,
        }
        // Non-blocking: if the file was replaced by a FIFO meanwhile, the open must not wait for a writer.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let mut file = match fs::openat2(&self.held, name, flags, Mode::empty(), IN_HOME) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(self.failed("openat2", name, errno)),
        };
        let found = fs::fstat(&file).map_err(|errno| self.failed("fstat", name, errno))?;
        self.check(name, &found)?;
        let size = u64::try_from(found.st_size).unwrap_or(u64::MAX);
        self.limit(name, size)?;
        let mut content = Zeroizing::new(Vec::with_capacity(usize::try_from(size).unwrap_or(0) + 1));
        let read = (&mut file).take(self.most + 1).read_to_end(&mut content);
        read.map_err(|error| self.failed("read", name, errno_of(&error)))?;
        self.limit(name, content.len() as u64)?;
        let version = Version::of(&found);
        Ok(Some(Existing { content, mode: found.st_mode & 0o7777, owner: found.st_uid, version, file }))
    }

    /// Returns an error if a file of this size is too large to be read. Such a file is not written either, because our
    /// entries in it could never be changed or removed.
    pub(super) fn limit(&self, name: &Path, size: u64) -> Result<(), HomeError> {
        let too_large = || HomeError::TooLarge { path: self.path_of(name), size, limit: self.most };
        if size > self.most { Err(too_large()) } else { Ok(()) }
    }

    fn check(&self, name: &Path, found: &Stat) -> Result<(), HomeError> {
        let path = self.path_of(name);
        match FileType::from_raw_mode(found.st_mode) {
            FileType::RegularFile if found.st_uid == self.home.uid => Ok(()),
            FileType::RegularFile => Err(HomeError::WrongOwner { path, found: found.st_uid }),
            FileType::Symlink => Err(HomeError::Symlink { path }),
            other => Err(HomeError::NotARegularFile { path, found: kind_of(other).to_owned() }),
        }
    }

    /// Removes the permissions of group and others from a file that contains a private key. Returns `false` if they had
    /// none.
    pub fn make_private(&self, name: &Path, existing: &Existing) -> Result<bool, HomeError> {
        let others = Mode::from_raw_mode(existing.mode) & (Mode::RWXG | Mode::RWXO);
        if others.is_empty() {
            return Ok(false);
        }
        fs::fchmod(&existing.file, Mode::RUSR | Mode::WUSR).map_err(|errno| self.failed("fchmod", name, errno))?;
        Ok(true)
    }

    /// Returns the current version of a file; `None` if it does not exist. The file is opened, because an NFS client
    /// asks the server at an open, and otherwise answers from its cache.
    pub(super) fn version(&self, name: &Path) -> Result<Option<Version>, HomeError> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        match fs::openat2(&self.held, name, flags, Mode::empty(), IN_HOME) {
            Ok(file) => fs::fstat(&file)
                .map(|found| Some(Version::of(&found)))
                .map_err(|errno| self.failed("fstat", name, errno)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.failed("openat2", name, errno)),
        }
    }

    pub(super) fn held(&self) -> &OwnedFd {
        &self.held
    }

    /// Writes a file with mode 0600 under a temporary name.
    pub(super) fn temporary(&self, content: &[u8]) -> Result<Temporary<'_, '_>, HomeError> {
        self.named(temporary_name(), content)
    }

    /// Writes a file with mode 0600 under a name that no file has. If the worker is killed, [`sweep`](Self::sweep) does
    /// not remove the file.
    pub(super) fn named(&self, name: PathBuf, content: &[u8]) -> Result<Temporary<'_, '_>, HomeError> {
        let file = self.write_new(&name, content)?;
        Ok(Temporary { directory: self, name: Some(name), file })
    }

    /// Creates or replaces a file in one step, with mode 0600.
    pub fn replace(&self, name: &Path, content: &[u8]) -> Result<(), HomeError> {
        self.temporary(content)?.put(name)?;
        self.sync()
    }

    /// Writes over the bytes of a file that differ from `content`, which has the same length. This needs no room on most
    /// file systems.
    pub(super) fn overwrite(&self, name: &Path, existing: &Existing, content: &[u8]) -> Result<(), HomeError> {
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = fs::openat2(&self.held, name, flags, Mode::empty(), IN_HOME)
            .map_err(|errno| self.failed("openat2", name, errno))?;
        let found = fs::fstat(&file).map_err(|errno| self.failed("fstat", name, errno))?;
        if Version::of(&found) != existing.version {
            return Err(HomeError::InUse { path: self.path_of(name), why: "another program writes it".to_owned() });
        }
        let file = File::from(file);
        let differs = |at: &usize| existing.content.get(*at) != content.get(*at);
        let (Some(first), Some(last)) = ((0..content.len()).find(differs), (0..content.len()).rfind(differs)) else {
            return Ok(());
        };
        file.write_all_at(&content[first..=last], first as u64)
            .and_then(|()| file.sync_all())
            .map_err(|error| self.failed("write", name, errno_of(&error)))
    }

    /// Creates or replaces a file, unless it has this content already. Returns whether anything changed.
    pub fn keep_at(&self, name: &Path, content: &[u8]) -> Result<bool, HomeError> {
        match self.read(name)?.filter(|existing| existing.content.as_slice() == content) {
            Some(existing) => self.make_private(name, &existing),
            None => self.replace(name, content).map(|()| true),
        }
    }

    /// Removes a file. Returns `false` if it did not exist.
    pub fn remove(&self, name: &Path) -> Result<bool, HomeError> {
        match fs::unlinkat(&self.held, name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(self.failed("unlinkat", name, errno)),
        }
    }

    /// Removes a directory if it is empty.
    pub fn remove_directory(&self, name: &Path) -> Result<(), HomeError> {
        match fs::unlinkat(&self.held, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
            Err(errno) => Err(self.failed("unlinkat", name, errno)),
        }
    }

    /// Tests whether this many bytes, or at least the size of a usual kubeconfig, can be written here, by writing a
    /// file and removing it. Returns the current time of the file system, in nanoseconds since 1970.
    pub(super) fn test_write(&self, bytes: usize) -> Result<i128, HomeError> {
        self.sweep();
        let temporary = temporary_name();
        let written = self.write_new(&temporary, &vec![b'#'; bytes.max(TEST_WRITE_BYTES)])?;
        let removed = fs::unlinkat(&self.held, &temporary, AtFlags::empty());
        let found = fs::fstat(&written).map_err(|errno| self.failed("fstat", &temporary, errno))?;
        removed.map_err(|errno| self.failed("unlinkat", &temporary, errno))?;
        Ok(Version::of(&found).changed_at())
    }

    /// Writes a file under a name that no file has. If that fails, no file is left.
    fn write_new(&self, name: &Path, content: &[u8]) -> Result<File, HomeError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = fs::openat2(&self.held, name, flags, Mode::RUSR | Mode::WUSR, IN_HOME)
            .map_err(|errno| self.failed("openat2", name, errno))?;
        let mut file = File::from(file);
        let written = file
            .write_all(content)
            .map_err(|error| self.failed("write", name, errno_of(&error)))
            // NFS reports a full disk or an exceeded quota only here.
            .and_then(|()| file.sync_all().map_err(|error| self.failed("fsync", name, errno_of(&error))));
        if let Err(error) = written {
            // An NFS client would rename an open file instead of removing it.
            drop(file);
            let _ = fs::unlinkat(&self.held, name, AtFlags::empty());
            return Err(error);
        }
        Ok(file)
    }

    pub(super) fn sync(&self) -> Result<(), HomeError> {
        match fs::fsync(&self.held) {
            // File systems that cannot sync a directory have nothing to sync in it.
            Ok(()) | Err(Errno::INVAL | Errno::NOTSUP) => Ok(()),
            Err(errno) => Err(from_errno("fsync", &self.path, errno)),
        }
    }

    /// Returns the names in this directory that begin with `prefix`.
    pub(super) fn beginning_with(&self, prefix: &Path) -> Vec<PathBuf> {
        let Ok(entries) = Dir::read_from(&self.held) else { return Vec::new() };
        let names = entries.take(MAX_SWEPT_ENTRIES).flatten().map(|entry| entry.file_name().to_bytes().to_vec());
        let prefix = prefix.as_os_str().as_encoded_bytes();
        names.filter(|name| name.starts_with(prefix)).map(|name| OsString::from_vec(name).into()).collect()
    }

    /// Removes temporary files of killed workers. The server runs one worker per home at a time, so none of the files
    /// is in use. Errors are ignored, because old temporary files do not prevent a write.
    pub(super) fn sweep(&self) {
        let Ok(entries) = Dir::read_from(&self.held) else { return };
        for entry in entries.take(MAX_SWEPT_ENTRIES).flatten() {
            let name = entry.file_name().to_bytes();
            if name.starts_with(TEMPORARY_PREFIX.as_bytes()) && name.ends_with(TEMPORARY_SUFFIX.as_bytes()) {
                let _ = fs::unlinkat(&self.held, entry.file_name(), AtFlags::empty());
            }
        }
    }
}

/// Opens the file, link or directory with this name, only to read its metadata. `stat` with a path would cross a mount
/// on the name, and a FUSE file system that a user mounted on a file may never answer.
pub(super) fn look(directory: &OwnedFd, name: &Path) -> Result<OwnedFd, Errno> {
    fs::openat2(directory, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty(), IN_HOME)
}

/// Renames a file to a name that no file has. If one has it, returns [`Errno::EXIST`].
pub(super) fn rename_new(directory: &OwnedFd, from: &Path, to: &Path) -> Result<(), Errno> {
    match fs::renameat_with(directory, from, directory, to, RenameFlags::NOREPLACE) {
        // NFS does not support NOREPLACE. A hard link never replaces a file either. A few file systems support neither;
        // there, the rename may replace a file.
        Err(Errno::INVAL | Errno::NOSYS) => match fs::linkat(directory, from, directory, to, AtFlags::empty()) {
            Ok(()) => fs::unlinkat(directory, from, AtFlags::empty()),
            Err(Errno::PERM | Errno::NOTSUP | Errno::NOSYS) => fs::renameat(directory, from, directory, to),
            Err(errno) => Err(errno),
        },
        renamed => renamed,
    }
}

/// Whether the file system is out of inodes although it has free blocks. File systems that do not count inodes report 0
/// of 0.
fn has_no_inodes(held: &OwnedFd) -> bool {
    fs::fstatvfs(held).is_ok_and(|found| found.f_files > 0 && found.f_favail == 0 && found.f_bavail > 0)
}

fn kind_of(kind: FileType) -> &'static str {
    match kind {
        FileType::Directory => "a directory",
        FileType::Fifo => "a named pipe",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        _ => "something unknown",
    }
}

fn temporary_name() -> PathBuf {
    PathBuf::from(format!("{TEMPORARY_PREFIX}{}{TEMPORARY_SUFFIX}", uuid::Uuid::new_v4().simple()))
}

/// Returns the errno of an error of the standard library. If the error has none, returns ENOSPC if its kind is "storage
/// full", otherwise EIO.
pub(super) fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::WriteZero => Errno::NOSPC,
        _ => Errno::IO,
    })
}
