//! Files in one home, reached only through directory descriptors that are held.
//!
//! Runs in the worker, as the owner of the home. Each name is resolved by `openat2` beneath the directory above it,
//! without symbolic links, magic links or mounts inside the home, so what another process swaps meanwhile is refused
//! or harmless. One code path for local file systems and NFS: a temporary file in the same directory (`O_TMPFILE`
//! does not exist on NFS), fsync, rename, fsync of the directory.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use bursar_protocol::{HomeError, HomeTarget};
use rustix::fs::{self, AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use zeroize::Zeroizing;

use crate::errno::from_errno;
use crate::exchange::Version;

/// Largest kubeconfig that is read, in bytes; the same as a Secret's limit in Kubernetes. Real ones have some
/// kilobytes; a sparse file of a terabyte costs a user nothing and must cost us nothing.
pub const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// Bytes of a test write: a kubeconfig with two CA bundles, and more than one block, so that quotas count it.
const TEST_WRITE_BYTES: usize = 16 * 1024;

/// Entries of a directory that are looked at for temporary files of ours. `.kube` holds a handful; a directory that
/// a user filled with millions must not use up the deadline.
const MAX_SWEPT_ENTRIES: usize = 4096;

const TEMPORARY_PREFIX: &str = ".bursar-";
const TEMPORARY_SUFFIX: &str = ".tmp";

const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);
/// In the home also no mounts: a user could mount a FUSE file system there that never answers.
const IN_HOME: ResolveFlags = BENEATH.union(ResolveFlags::NO_XDEV);

/// A home, held open and known to be its user's.
#[derive(Debug)]
pub struct Home {
    directory: OwnedFd,
    path: PathBuf,
    uid: u32,
}

/// A directory as a place only: no permission to list it is needed.
const PLACE: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Opens `path` (relative, plain) beneath a prefix, as a place; `missing` is the reason if it is not there.
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

/// The mount point of the file system that a folder is on. Unlike a device number it stays the same when the host
/// boots. `None`: the folder is not there, or the kernel does not say.
pub(super) fn mount_of(folder: &Path) -> Option<PathBuf> {
    let folder = std::fs::canonicalize(folder).ok()?;
    let is_mounted = |place: &&Path| {
        fs::statx(CWD, *place, AtFlags::empty(), StatxFlags::TYPE)
            .is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
    };
    folder.ancestors().find(is_mounted).map(Path::to_owned)
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
        Ok(Self { directory, path, uid: target.uid })
    }

    /// The mount point of the file system that its folder is on.
    pub(super) fn mount(&self) -> Option<PathBuf> {
        mount_of(self.path.parent()?)
    }

    /// The held directory.
    pub(super) fn directory(&self) -> &OwnedFd {
        &self.directory
    }

    /// The directory of a file of this home; `None` if it is not there.
    pub fn directory_of(&self, file: &Path) -> Result<Option<Directory<'_>>, HomeError> {
        self.open_parent(file)
    }

    /// The directory of a file of this home, made if it is not there, mode 0700.
    pub fn make_directory_of(&self, file: &Path) -> Result<Directory<'_>, HomeError> {
        if let Some(directory) = self.open_parent(file)? {
            return Ok(directory);
        }
        let mut above = PathBuf::new();
        for component in file.parent().into_iter().flat_map(Path::components) {
            let missing = || from_errno("openat2", self.path.join(&above), Errno::NOENT);
            let held = self.open_directory(&above)?.ok_or_else(missing)?;
            let held = Directory { home: self, held, path: self.path.join(&above) };
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
        Ok(held.map(|held| Directory { home: self, held, path: self.path.join(parent) }))
    }

    /// With permission to list and to sync; `None` if it is not there. Every directory on the way must be the user's:
    /// in another's folder a kubeconfig can be exchanged by that other.
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

/// A directory of a home, held open.
#[derive(Debug)]
pub struct Directory<'home> {
    home: &'home Home,
    held: OwnedFd,
    path: PathBuf,
}

/// A file as it was found.
#[derive(Debug)]
pub struct Existing {
    /// The content; it may hold the user's credentials, so it is overwritten when dropped.
    pub content: Zeroizing<Vec<u8>>,
    /// Permission bits.
    pub mode: u32,
    /// Owner: always the home's.
    pub owner: u32,
    /// By which a later change is told.
    pub version: Version,
    file: File,
}

/// A file that is written and not in its place yet. It goes when this is dropped.
pub(super) struct Temporary<'d, 'home> {
    directory: &'d Directory<'home>,
    name: Option<PathBuf>,
    file: File,
}

impl Temporary<'_, '_> {
    /// When it was written, by the clock of the file system.
    pub(super) fn made_at(&self) -> Result<i128, HomeError> {
        let found = fs::fstat(&self.file).map_err(|errno| from_errno("fstat", &self.directory.path, errno))?;
        Ok(Version::of(&found).changed_at())
    }

    /// Puts it under a name: either the old file is there or this one, never a part. This process must not hold the old file
    /// open: an NFS client would first rename that out of the way, and for a moment there would be none.
    pub(super) fn put(mut self, name: &Path) -> Result<(), HomeError> {
        let Some(temporary) = self.name.take() else { return Ok(()) };
        let held = &self.directory.held;
        fs::renameat(held, &temporary, held, name).map_err(|errno| {
            let _ = fs::unlinkat(held, &temporary, AtFlags::empty());
            self.directory.failed("renameat", name, errno)
        })
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
    /// Path of a file here, for messages.
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

    /// What the file system says here: where the quota is the folder's, many count by it. A user's own quota only the file
    /// server can tell.
    fn quota(&self, name: &Path) -> Option<HomeError> {
        let found = fs::fstatvfs(&self.held).ok()?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        let (size, free) = (bytes(found.f_blocks), bytes(found.f_bavail));
        Some(HomeError::Quota { path: self.path_of(name), uid: self.home.uid, size, free })
    }

    /// The mark, if there is one, that even an owner's permissions do not count against.
    fn marked(&self, name: &Path) -> Option<HomeError> {
        let marks = StatxAttributes::IMMUTABLE | StatxAttributes::APPEND;
        let is_marked = |name: &Path, flags| {
            fs::statx(&self.held, name, flags, StatxFlags::TYPE)
                .is_ok_and(|found| found.stx_attributes.intersects(marks))
        };
        if is_marked(Path::new(""), AtFlags::EMPTY_PATH) {
            return Some(HomeError::Immutable { path: self.path.clone() });
        }
        is_marked(name, AtFlags::SYMLINK_NOFOLLOW).then(|| HomeError::Immutable { path: self.path_of(name) })
    }

    /// Reads a regular file of the home's owner; `None` if there is none.
    pub fn read(&self, name: &Path) -> Result<Option<Existing>, HomeError> {
        // Looked at before it is opened only for the sake of a better reason; what counts is the look after.
        match fs::statat(&self.held, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(self.failed("fstatat", name, errno)),
            Ok(found) => self.check(name, &found)?,
        }
        // Non-blocking: a FIFO put there meanwhile must not make us wait for a writer.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let mut file = match fs::openat2(&self.held, name, flags, Mode::empty(), IN_HOME) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(self.failed("openat2", name, errno)),
        };
        let found = fs::fstat(&file).map_err(|errno| self.failed("fstat", name, errno))?;
        self.check(name, &found)?;
        let too_large = |size| HomeError::TooLarge { path: self.path_of(name), size, limit: MAX_FILE_BYTES };
        let size = u64::try_from(found.st_size).unwrap_or(u64::MAX);
        if size > MAX_FILE_BYTES {
            return Err(too_large(size));
        }
        let mut content = Zeroizing::new(Vec::with_capacity(usize::try_from(size).unwrap_or(0) + 1));
        let read = (&mut file).take(MAX_FILE_BYTES + 1).read_to_end(&mut content);
        read.map_err(|error| self.failed("read", name, errno_of(&error)))?;
        if content.len() as u64 > MAX_FILE_BYTES {
            return Err(too_large(content.len() as u64));
        }
        let version = Version::of(&found);
        Ok(Some(Existing { content, mode: found.st_mode & 0o7777, owner: found.st_uid, version, file }))
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

    /// Takes away what others may do with a file that holds a private key. `false` if they may nothing.
    pub fn make_private(&self, name: &Path, existing: &Existing) -> Result<bool, HomeError> {
        let others = Mode::from_raw_mode(existing.mode) & (Mode::RWXG | Mode::RWXO);
        if others.is_empty() {
            return Ok(false);
        }
        fs::fchmod(&existing.file, Mode::RUSR | Mode::WUSR).map_err(|errno| self.failed("fchmod", name, errno))?;
        Ok(true)
    }

    /// What a file is now; `None` if there is none. It is opened, so that a file server is asked and no cache.
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

    /// The directory itself.
    pub(super) fn held(&self) -> &OwnedFd {
        &self.held
    }

    /// Writes a file, mode 0600, that is to be put under a name.
    pub(super) fn temporary(&self, content: &[u8]) -> Result<Temporary<'_, '_>, HomeError> {
        let name = temporary_name();
        match self.write_new(&name, content) {
            Ok(file) => Ok(Temporary { directory: self, name: Some(name), file }),
            Err(error) => {
                let _ = fs::unlinkat(&self.held, &name, AtFlags::empty());
                Err(error)
            }
        }
    }

    /// Puts a file there as a whole, mode 0600, whatever is there.
    pub fn replace(&self, name: &Path, content: &[u8]) -> Result<(), HomeError> {
        self.temporary(content)?.put(name)?;
        self.sync()
    }

    /// Puts a file there unless it is there just so. `true` if anything was changed.
    pub fn keep_at(&self, name: &Path, content: &[u8]) -> Result<bool, HomeError> {
        match self.read(name)?.filter(|existing| existing.content.as_slice() == content) {
            Some(existing) => self.make_private(name, &existing),
            None => self.replace(name, content).map(|()| true),
        }
    }

    /// Removes a file; `false` if there is none.
    pub fn remove(&self, name: &Path) -> Result<bool, HomeError> {
        match fs::unlinkat(&self.held, name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(self.failed("unlinkat", name, errno)),
        }
    }

    /// Removes a directory; one in which something else is stays.
    pub fn remove_directory(&self, name: &Path) -> Result<(), HomeError> {
        match fs::unlinkat(&self.held, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
            Err(errno) => Err(self.failed("unlinkat", name, errno)),
        }
    }

    /// Writes a file that must not be there yet. A copy: a second name of the user's file would follow what a program
    /// writes into it in place.
    pub fn write_copy(&self, name: &Path, content: &[u8]) -> Result<(), HomeError> {
        self.write_new(name, content)?;
        self.sync()
    }

    /// Writes and removes a file as large as a kubeconfig.
    pub fn test_write(&self) -> Result<(), HomeError> {
        self.sweep();
        let temporary = temporary_name();
        let written = self.write_new(&temporary, &vec![b'#'; TEST_WRITE_BYTES]);
        let removed = fs::unlinkat(&self.held, &temporary, AtFlags::empty());
        written?;
        removed.map_err(|errno| self.failed("unlinkat", &temporary, errno))
    }

    fn write_new(&self, name: &Path, content: &[u8]) -> Result<File, HomeError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = fs::openat(&self.held, name, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|errno| self.failed("openat", name, errno))?;
        let mut file = File::from(file);
        file.write_all(content).map_err(|error| self.failed("write", name, errno_of(&error)))?;
        // NFS tells of a full disk or quota only here.
        file.sync_all().map_err(|error| self.failed("fsync", name, errno_of(&error)))?;
        Ok(file)
    }

    pub(super) fn sync(&self) -> Result<(), HomeError> {
        match fs::fsync(&self.held) {
            // File systems that cannot sync a directory have nothing to sync in it.
            Ok(()) | Err(Errno::INVAL | Errno::NOTSUP) => Ok(()),
            Err(errno) => Err(from_errno("fsync", &self.path, errno)),
        }
    }

    /// The names here that begin so.
    pub(super) fn beginning_with(&self, prefix: &Path) -> Vec<PathBuf> {
        let Ok(entries) = Dir::read_from(&self.held) else { return Vec::new() };
        let names = entries.take(MAX_SWEPT_ENTRIES).flatten().map(|entry| entry.file_name().to_bytes().to_vec());
        let prefix = prefix.as_os_str().as_encoded_bytes();
        names.filter(|name| name.starts_with(prefix)).map(|name| OsString::from_vec(name).into()).collect()
    }

    /// Removes temporary files that a killed worker left behind. The server runs one worker a home at a time, so
    /// none of them is in use. A failure is no reason not to write.
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

/// Whether blocks are not what is missing. File systems that count no inodes say 0 of 0.
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

/// The errno of an error of the standard library; EIO if it has none.
pub(super) fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::WriteZero => Errno::NOSPC,
        _ => Errno::IO,
    })
}
