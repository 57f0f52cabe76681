//! Replaces a file that the user's own programs write too, without losing a change of either side.
//!
//! `kubectl config` (client-go, `tools/clientcmd`: `ModifyConfig` and `lockFile`) makes `config.lock` with `O_EXCL` and
//! mode 0, truncates the file, writes it in place and removes the lock. A program that finds the lock gives up. Homed
//! takes the same lock, only for the last check and the rename. Editors and many tools use no lock: if they change the
//! file before the rename, its inode, size or times differ, and homed merges again. kubectl reads the file before it
//! takes the lock, so it can write back the old content. Therefore the daemon inspects the file again after each
//! delivery.
//!
//! Ages are measured against the timestamps of files that homed creates, because the file server's clock may differ
//! from ours.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bursar_protocol::{HomeError, shown};
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use zeroize::Zeroizing;

use crate::files::{Directory, Existing, IN_HOME};

/// If a file changed within this time, another program may still be writing it. The time is also longer than one tick
/// of the file system's clock (at most 10 ms), within which two changes get the same timestamp.
const MOMENT: Duration = Duration::from_millis(100);
/// The pause between two checks of another program's lock. kubectl holds its lock for some milliseconds.
const PAUSE: Duration = Duration::from_millis(20);
/// The age at which a lock is overridden. No program holds a lock this long, so the process that made it was killed.
/// client-go never overrides a lock, and asks the user to delete it.
const ABANDONED: Duration = Duration::from_mins(1);
/// A lock whose inode changed within this time is not overridden, however old it seems. An NFS client that creates a
/// file with `O_EXCL` may store a number in its modification time, and corrects it with its next call (RFC 1813, 3.3.8).
/// Until then, the lock seems to be from 1970.
const FRESH: Duration = Duration::from_millis(500);
/// The number of merges before the lock is released. A program that changes the file this often ignores the lock
/// anyway, and others must not wait for our lock meanwhile.
const ROUNDS: u32 = 3;

/// The content of our locks. Their mode, which they have from the start, distinguishes them too: kubectl's locks have
/// mode 0.
const MARK: &[u8] = b"bursar-homed\n";
const LOCK_MODE: Mode = Mode::RUSR;

/// The deadline for waiting for another program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience(Instant);

impl Patience {
    #[expect(clippy::disallowed_methods, reason = "bounds a wait")]
    pub(super) fn of(time: Duration) -> Self {
        Self(Instant::now() + time)
    }

    #[expect(clippy::disallowed_methods, reason = "bounds a wait")]
    pub(super) fn is_over(self) -> bool {
        Instant::now() >= self.0
    }
}

/// The new content; `None` if the file stays as it is.
pub(super) type Content = Option<Zeroizing<Vec<u8>>>;

/// The result of [`exchange`].
#[derive(Debug)]
pub(super) struct Exchanged<T> {
    /// The value that the last call of `merge` returned.
    pub(super) value: T,
    /// Whether the file was written.
    pub(super) changed: bool,
    /// The age in seconds of another program's lock that was overridden; `None` if there was none.
    pub(super) overridden: Option<u64>,
}

/// Replaces a file with the content that `merge` returns. If another program changes the file meanwhile, `merge` is
/// called again. `before` gets the value of `merge` immediately before the rename; it can be called more than once.
/// After the rename, `after` gets what `before` returned.
pub(super) fn exchange<T, B>(
    directory: &Directory<'_>,
    name: &Path,
    patience: Patience,
    mut merge: impl FnMut(Option<&Existing>) -> Result<(Content, T), HomeError>,
    before: impl Fn(&T) -> Result<B, HomeError>,
    after: impl FnOnce(B) -> Result<(), HomeError>,
) -> Result<Exchanged<T>, HomeError> {
    // `sweep` removes all temporary files, so it is called only here, before this function makes one.
    directory.sweep();
    sweep_lock(directory, name);
    let mut lock: Option<Lock<'_, '_>> = None;
    let mut rounds = 0;
    loop {
        let existing = read(directory, name)?;
        let merged = merge(existing.as_ref());
        if merged.is_err() && !is_still(directory, name, existing.as_ref(), None)? {
            // The file has changed since it was read, so the error of `merge` may be about an incomplete file.
            give_up(directory, name, patience)?;
            continue;
        }
        let (content, value) = merged?;
        let overridden = |lock: &Option<Lock<'_, '_>>| lock.as_ref().and_then(|lock| lock.overridden);
        let Some(content) = content else {
            return Ok(Exchanged { value, changed: false, overridden: overridden(&lock) });
        };
        directory.limit(name, content.len() as u64)?;
        let temporary = directory.temporary(&content)?;
        if lock.is_none() {
            lock = Some(Lock::take(directory, name, Some(temporary.made_at()?), patience)?);
        }
        let made_at = lock.as_ref().map(|lock| lock.made_at);
        if is_still(directory, name, existing.as_ref(), made_at)? {
            // Consumes `existing` and so closes the old file; see `Temporary::put`.
            let version = existing.map(|existing| existing.version);
            let prepared = before(&value)?;
            // `before` wrote files and took time, so the version is checked again. Only the rename follows this check.
            let is_put = match version {
                _ if directory.version(name)? != version => false,
                None => temporary.put_new(name)?,
                Some(_) => temporary.put(name).map(|()| true)?,
            };
            if is_put {
                after(prepared)?;
                let overridden = overridden(&lock);
                drop(lock);
                directory.sync()?;
                return Ok(Exchanged { value, changed: true, overridden });
            }
        }
        rounds += 1;
        if rounds >= ROUNDS {
            (lock, rounds) = (None, 0);
        }
        give_up(directory, name, patience)?;
    }
}

/// Writes what `change` returns, which has the same length, into the file itself, if there is no room for another file.
pub(super) fn overwrite(
    directory: &Directory<'_>,
    name: &Path,
    patience: Patience,
    change: impl Fn(&[u8]) -> Option<Zeroizing<Vec<u8>>>,
) -> Result<(), HomeError> {
    let _lock = match Lock::take(directory, name, None, patience) {
        // There may be no free inode for a lock file. If another program holds the lock, the kernel reports that first.
        Err(HomeError::NoSpace { .. } | HomeError::NoInodes { .. } | HomeError::Quota { .. }) => None,
        lock => Some(lock?),
    };
    loop {
        let Some(existing) = read(directory, name)? else { return Ok(()) };
        let Some(changed) = change(&existing.content) else { return Ok(()) };
        if is_still(directory, name, Some(&existing), None)? {
            return directory.overwrite(name, &existing, &changed);
        }
        give_up(directory, name, patience)?;
    }
}

/// Tests whether [`exchange`] could write the file now: takes the lock, and waits until no other program writes the
/// file. `now` is the current time of the file system.
pub(super) fn test_exchange(
    directory: &Directory<'_>,
    name: &Path,
    now: i128,
    patience: Patience,
) -> Result<(), HomeError> {
    let lock = Lock::take(directory, name, Some(now), patience)?;
    while !is_still(directory, name, read(directory, name)?.as_ref(), Some(lock.made_at))? {
        give_up(directory, name, patience)?;
    }
    Ok(())
}

fn give_up(directory: &Directory<'_>, name: &Path, patience: Patience) -> Result<(), HomeError> {
    if patience.is_over() {
        let why = "another program keeps writing it".to_owned();
        return Err(HomeError::InUse { path: directory.path_of(name), why });
    }
    Ok(())
}

/// Reads a file. If it is empty, it is read once more after [`MOMENT`], because a program that writes in place begins
/// with an empty file.
fn read(directory: &Directory<'_>, name: &Path) -> Result<Option<Existing>, HomeError> {
    let existing = directory.read(name)?;
    if existing.as_ref().is_some_and(|existing| existing.content.is_empty()) {
        std::thread::sleep(MOMENT);
        return directory.read(name);
    }
    Ok(existing)
}

/// Reads a file until two reads in a row agree. If `patience` ends first, returns [`HomeError::InUse`].
pub(super) fn settled(
    directory: &Directory<'_>,
    name: &Path,
    patience: Patience,
) -> Result<Option<Existing>, HomeError> {
    loop {
        let existing = read(directory, name)?;
        if is_still(directory, name, existing.as_ref(), None)? {
            return Ok(existing);
        }
        give_up(directory, name, patience)?;
    }
}

/// Whether a file has not changed since it was read. `made_at` is the current time of the file system. If the file
/// changed less than [`MOMENT`] before that time, or if `made_at` is `None`, the function waits and compares the
/// content too.
fn is_still(
    directory: &Directory<'_>,
    name: &Path,
    existing: Option<&Existing>,
    made_at: Option<i128>,
) -> Result<bool, HomeError> {
    let Some(existing) = existing else { return Ok(directory.read(name)?.is_none()) };
    let is_settled = made_at.is_some_and(|now| now - existing.version.changed_at() > nanoseconds(MOMENT));
    if !is_settled {
        std::thread::sleep(MOMENT);
        let again = directory.read(name)?;
        return Ok(again.is_some_and(|again| again.version == existing.version && again.content == existing.content));
    }
    // `version` opens the file again, because only an open asks the file server.
    Ok(directory.version(name)? == Some(existing.version))
}

fn nanoseconds(time: Duration) -> i128 {
    i128::try_from(time.as_nanos()).unwrap_or(i128::MAX)
}

/// Identifies a state of a file without its content: a file that is replaced or rewritten gets another version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    inode: u64,
    size: i64,
    modified: i128,
    changed: i128,
}

impl Version {
    pub(super) fn of(found: &Stat) -> Self {
        let time = |seconds: i64, rest: u64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
        Self {
            inode: found.st_ino,
            size: found.st_size,
            modified: time(found.st_mtime, found.st_mtime_nsec),
            changed: time(found.st_ctime, found.st_ctime_nsec),
        }
    }

    /// Returns when the content was last written, in nanoseconds since 1970 by the clock of the file system.
    pub(super) fn changed_at(&self) -> i128 {
        self.modified
    }

    /// Returns when a file was made, if it was not changed since. A user can set the modification time, so a time later
    /// than the last change of the inode is ignored: a lock dated tomorrow counts as new.
    fn made_at(&self) -> i128 {
        self.modified.min(self.changed)
    }
}

/// A `config.lock` that we hold. It is removed on drop.
struct Lock<'d, 'home> {
    directory: &'d Directory<'home>,
    name: PathBuf,
    /// Open until the lock is removed, so that no other lock gets its inode. `None` while the lock is removed, because
    /// an NFS client would rename an open file instead.
    file: Option<OwnedFd>,
    made_at: i128,
    overridden: Option<u64>,
}

impl Drop for Lock<'_, '_> {
    fn drop(&mut self) {
        // The lock may have been removed meanwhile, and another program may hold its own lock.
        let own = self.file.as_ref().and_then(|file| fs::fstat(file).ok()).map(|own| own.st_ino);
        if self.directory.look(&self.name).is_ok_and(|found| found.map(|found| found.st_ino) == own) {
            self.file = None;
            let _ = self.directory.remove(&self.name);
        }
    }
}

impl<'d, 'home> Lock<'d, 'home> {
    /// Takes the lock of a file. If another program holds it, waits until `patience` ends. `now` is the current time of
    /// the file system; without it, no lock is overridden.
    fn take(
        directory: &'d Directory<'home>,
        file: &Path,
        now: Option<i128>,
        patience: Patience,
    ) -> Result<Self, HomeError> {
        let name = lock_name(file);
        let mut waited = 0_u32;
        let mut overridden = None;
        loop {
            if let Some((file, held)) = directory.make_lock(&name, LOCK_MODE, MARK)? {
                let made_at = Version::of(&held).modified;
                return Ok(Self { directory, name, file: Some(file), made_at, overridden });
            }
            let Some(found) = directory.look(&name)? else { continue };
            let version = Version::of(&found);
            let made_at = version.made_at();
            let now = now.map_or(made_at, |now| now + nanoseconds(PAUSE * waited));
            // A lock dated far in the future comes from a wrong clock and would never become old, so it is overridden
            // too.
            let age = (now - made_at).unsigned_abs();
            let is_fresh = (-nanoseconds(ABANDONED)..=nanoseconds(FRESH)).contains(&(now - version.changed));
            if age > ABANDONED.as_nanos() && !is_fresh {
                directory.remove_lock(&name, &found, file)?;
                let seconds = u64::try_from(age / 1_000_000_000).unwrap_or(u64::MAX);
                eprintln!("removed the abandoned lock {}: it was {seconds} s old", shown(&directory.path_of(&name)));
                overridden = Some(seconds);
                continue;
            }
            if patience.is_over() {
                let path = directory.path_of(file);
                let lock = shown(&directory.path_of(&name));
                return Err(HomeError::InUse { path, why: format!("another program holds `{lock}`") });
            }
            std::thread::sleep(PAUSE);
            waited = waited.saturating_add(1);
        }
    }
}

/// Removes the lock of a killed worker. The server runs one worker per home at a time, so no worker holds it.
pub(super) fn sweep_lock(directory: &Directory<'_>, file: &Path) {
    let name = lock_name(file);
    let Ok(Some(found)) = directory.look(&name) else { return };
    let is_of_our_kind = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile
        && found.st_mode & 0o7777 == LOCK_MODE.as_raw_mode();
    // If the worker was killed between creating the lock and writing its mark, the file is empty.
    let has_mark = || directory.read(&name).is_ok_and(|lock| lock.is_some_and(|lock| MARK.starts_with(&lock.content)));
    if is_of_our_kind && has_mark() {
        let _ = directory.remove(&name);
    }
}

/// Returns the name that client-go uses for the lock of a file.
fn lock_name(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

impl Directory<'_> {
    /// Creates a lock; returns `None` if the name exists already.
    fn make_lock(&self, name: &Path, mode: Mode, content: &[u8]) -> Result<Option<(OwnedFd, Stat)>, HomeError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match fs::openat2(self.held(), name, flags, mode, IN_HOME) {
            Ok(file) => file,
            Err(Errno::EXIST) => return Ok(None),
            Err(errno) => return Err(self.failed("openat2", name, errno)),
        };
        // If the disk is full, the lock stays empty, and works all the same.
        let _ = rustix::io::write(&file, content);
        let found = fs::fstat(&file).map_err(|errno| self.failed("fstat", name, errno))?;
        Ok(Some((file, found)))
    }

    /// Removes the lock `found` of a file, which may be a folder too, if it still has this name.
    fn remove_lock(&self, name: &Path, found: &Stat, file: &Path) -> Result<(), HomeError> {
        if self.look(name)?.is_none_or(|now| now.st_ino != found.st_ino) {
            return Ok(());
        }
        let flags = match FileType::from_raw_mode(found.st_mode) {
            FileType::Directory => AtFlags::REMOVEDIR,
            _ => AtFlags::empty(),
        };
        match fs::unlinkat(self.held(), name, flags) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => {
                let kind = std::io::Error::from(errno).kind();
                let why = format!("its old lock `{}` cannot be removed: {kind}", shown(&self.path_of(name)));
                Err(HomeError::InUse { path: self.path_of(file), why })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use bursar_protocol::HomeTarget;

    use super::*;
    use crate::files::Home;

    /// Makes a home `home` in a folder.
    fn home(folder: &Path) -> Home {
        let path = folder.join("home");
        std::fs::create_dir(&path).expect("the folder is writable");
        let uid = std::fs::metadata(&path).expect("the home exists").uid();
        Home::open(folder, &HomeTarget::new(path, uid, uid)).expect("the home exists")
    }

    fn directory(home: &Home) -> Directory<'_> {
        home.directory_of(Path::new("config")).expect("the folder is readable").expect("the folder exists")
    }

    /// If the old file were open, an NFS client would rename it away before the new one takes its place.
    #[test]
    fn a_file_is_closed_before_another_takes_its_place() {
        let folder = tempfile::tempdir().expect("the temporary folder is writable");
        let home = home(folder.path());
        let directory = directory(&home);
        let path = folder.path().join("home/config");
        std::fs::write(&path, "theirs").expect("the home is writable");
        let is_open = || {
            let held = std::fs::read_dir("/proc/self/fd").expect("/proc is readable");
            held.flatten().any(|held| std::fs::read_link(held.path()).is_ok_and(|held| held == path))
        };
        let merge = |existing: Option<&Existing>| {
            assert!(existing.is_some() && is_open(), "the old file must be open here, or the test proves nothing");
            Ok((Some(Zeroizing::new(b"ours".to_vec())), ()))
        };
        let before = |(): &()| {
            assert!(!is_open());
            Ok(())
        };
        let done = exchange(&directory, Path::new("config"), Patience::of(Duration::from_secs(9)), merge, before, Ok);
        assert!(done.expect("the exchange succeeds").changed);
        assert_eq!(std::fs::read_to_string(&path).expect("the file exists"), "ours");
        // A file that was made meanwhile stays.
        let temporary = || directory.temporary(b"other").expect("the home is writable");
        assert!(!temporary().put_new(Path::new("config")).expect("the name can be tried"));
        assert_eq!(std::fs::read_to_string(&path).expect("the file exists"), "ours");
        assert!(temporary().put_new(Path::new("new")).expect("the name is free"));
        let mut names: Vec<_> = std::fs::read_dir(path.with_file_name(""))
            .expect("the home is readable")
            .flatten()
            .map(|it| it.file_name())
            .collect();
        names.sort();
        assert_eq!(names, ["config", "new"]);
    }

    /// A restoration is interrupted between its two renames.
    #[test]
    fn the_replaced_part_stays_if_a_restoration_is_interrupted() {
        let folder = tempfile::tempdir().expect("the temporary folder is writable");
        let home = home(folder.path());
        let directory = directory(&home);
        let path = folder.path().join("home");
        std::fs::create_dir(path.join("config.bursar-kept")).expect("the home is writable");
        let backup = PathBuf::from("config.bursar-backup-20260131T235959Z");
        let replaced = || directory.named(backup.clone(), b"theirs");
        // The first rename fails.
        drop(replaced().expect("the home is writable"));
        assert!(!path.join(&backup).exists());
        // The second rename fails.
        let spare = replaced().expect("the home is writable");
        spare.put_or_stay(Path::new("config.bursar-kept")).expect_err("a folder has this name");
        directory.sweep();
        assert_eq!(std::fs::read_to_string(path.join(&backup)).expect("the file stays"), "theirs");
        // An existing backup is neither overwritten nor removed.
        assert!(replaced().is_err());
        assert!(path.join(&backup).exists());
    }

    /// The time of a file that an NFS client is creating.
    #[test]
    fn a_new_lock_with_the_time_of_1970_is_not_overridden_at_once() {
        let folder = tempfile::tempdir().expect("the temporary folder is writable");
        let home = home(folder.path());
        let directory = directory(&home);
        let path = folder.path().join("home/config.lock");
        let lock = std::fs::File::create(&path).expect("the home is writable");
        lock.set_modified(std::time::SystemTime::UNIX_EPOCH).expect("the owner may change times");
        let now = directory.temporary(b"").expect("the home is writable").made_at().expect("the file has a time");
        let take = |patience| Lock::take(&directory, Path::new("config"), Some(now), Patience::of(patience));
        assert!(matches!(take(Duration::ZERO), Err(HomeError::InUse { .. })));
        assert!(path.exists());
        assert!(take(Duration::from_secs(9)).expect("the lock is abandoned").overridden.is_some());
        assert!(!path.exists());
    }
}
