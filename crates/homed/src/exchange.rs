//! Replaces a file of the user that the user's own programs write too, so that nobody's change is lost.
//!
//! `kubectl config` (client-go, `tools/clientcmd`: `ModifyConfig` and `lockFile`) makes `config.lock` with `O_EXCL` and mode
//! 0, truncates the file, writes it in place and removes the lock. A program that finds the lock gives up. So we hold it
//! too, and only for the last look, the comparison and the rename. Editors and many tools know no lock: what they change
//! until the rename is noticed by the file's inode, size and times, and merged again. kubectl has read the file before it
//! locks, and so may write back what was there before: the daemon looks again after each delivery.
//!
//! Ages are told by the times that the file system gives to files that we make: a file server's clock is not ours.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bursar_protocol::{HomeError, shown};
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use zeroize::Zeroizing;

use crate::files::{Directory, Existing};

/// A file that changed within this time may not be whole yet; and a second change within one tick of the file system's
/// clock (at most 10 ms) could not be told from the first.
const MOMENT: Duration = Duration::from_millis(100);
/// Between two looks at somebody else's lock. kubectl holds one for some milliseconds.
const PAUSE: Duration = Duration::from_millis(20);
/// Nobody holds a lock that long: the process that made it was killed. client-go never overrides a lock, and asks
/// people to delete it.
const ABANDONED: Duration = Duration::from_mins(1);
/// Merges under one lock. A program that writes faster than this does not know the lock either, and other deliveries
/// wait for it.
const ROUNDS: u32 = 3;

/// What our locks say. They are told by their mode too, which they have from their first moment on: kubectl's have 0.
const MARK: &[u8] = b"bursar-homed\n";
const LOCK_MODE: Mode = Mode::RUSR;

/// The moment until which somebody is waited for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience(Instant);

impl Patience {
    #[expect(clippy::disallowed_methods, reason = "bounds a wait")]
    pub(super) fn of(time: Duration) -> Self {
        Self(Instant::now() + time)
    }

    #[expect(clippy::disallowed_methods, reason = "bounds a wait")]
    fn is_over(self) -> bool {
        Instant::now() >= self.0
    }
}

/// What is to stand there: `None`, what does already.
pub(super) type Content = Option<Zeroizing<Vec<u8>>>;

/// What came of it.
#[derive(Debug)]
pub(super) struct Exchanged<T> {
    /// What `merge` said of what was written.
    pub(super) value: T,
    /// The file was written.
    pub(super) changed: bool,
    /// Seconds that somebody else's lock had been there, which was overridden.
    pub(super) overridden: Option<u64>,
}

/// Replaces a file by what `merge` makes of it; that is asked again for each change that somebody else makes meanwhile.
/// `before` is given what `merge` said, when nothing but the rename is left to do.
pub(super) fn exchange<T>(
    directory: &Directory<'_>,
    name: &Path,
    patience: Patience,
    mut merge: impl FnMut(Option<&Existing>) -> Result<(Content, T), HomeError>,
    before: impl Fn(&T) -> Result<(), HomeError>,
) -> Result<Exchanged<T>, HomeError> {
    // Once, and before there is a file of ours: it takes them all.
    directory.sweep();
    sweep_lock(directory, name);
    let mut lock: Option<Lock<'_, '_>> = None;
    let mut rounds = 0;
    loop {
        let existing = read(directory, name)?;
        let merged = merge(existing.as_ref());
        if merged.is_err() && !is_still(directory, name, existing.as_ref(), None)? {
            // It was not whole: that is no reason.
            give_up(directory, name, patience)?;
            continue;
        }
        let (content, value) = merged?;
        let overridden = |lock: &Option<Lock<'_, '_>>| lock.as_ref().and_then(|lock| lock.overridden);
        let Some(content) = content else {
            return Ok(Exchanged { value, changed: false, overridden: overridden(&lock) });
        };
        let temporary = directory.temporary(&content)?;
        if lock.is_none() {
            lock = Some(Lock::take(directory, name, temporary.made_at()?, patience)?);
        }
        let made_at = lock.as_ref().map(|lock| lock.made_at);
        if is_still(directory, name, existing.as_ref(), made_at)? {
            // The file is closed by this: see `Temporary::put`.
            let version = existing.map(|existing| existing.version);
            before(&value)?;
            // That wrote files too, and took its time. Nothing but the rename follows this look.
            if directory.version(name)? == version {
                temporary.put(name)?;
                let overridden = overridden(&lock);
                drop(lock);
                directory.sync()?;
                return Ok(Exchanged { value, changed: true, overridden });
            }
        }
        drop(temporary);
        rounds += 1;
        if rounds >= ROUNDS {
            (lock, rounds) = (None, 0);
        }
        give_up(directory, name, patience)?;
    }
}

fn give_up(directory: &Directory<'_>, name: &Path, patience: Patience) -> Result<(), HomeError> {
    if patience.is_over() {
        let why = "another program keeps writing it".to_owned();
        return Err(HomeError::InUse { path: directory.path_of(name), why });
    }
    Ok(())
}

/// Reads a file; one that is empty once more, for that is how a program begins to write it in place.
fn read(directory: &Directory<'_>, name: &Path) -> Result<Option<Existing>, HomeError> {
    let existing = directory.read(name)?;
    if existing.as_ref().is_some_and(|existing| existing.content.is_empty()) {
        std::thread::sleep(MOMENT);
        return directory.read(name);
    }
    Ok(existing)
}

/// Reads a file that nobody is writing, as far as that shows.
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

/// Whether a file is as it was read. `made_at`: the time of the file system now; one that changed shortly before, or is
/// looked at without that time, is waited for and read again.
fn is_still(
    directory: &Directory<'_>,
    name: &Path,
    existing: Option<&Existing>,
    made_at: Option<i128>,
) -> Result<bool, HomeError> {
    let Some(existing) = existing else { return Ok(directory.read(name)?.is_none()) };
    let moment = i128::try_from(MOMENT.as_nanos()).unwrap_or(i128::MAX);
    let is_settled = made_at.is_some_and(|now| now - existing.version.changed_at() > moment);
    if !is_settled {
        std::thread::sleep(MOMENT);
        let again = directory.read(name)?;
        return Ok(again.is_some_and(|again| again.version == existing.version && again.content == existing.content));
    }
    // Opened again: only that asks a file server.
    Ok(directory.version(name)? == Some(existing.version))
}

/// What a file is without its content: another one, or one that was written since, differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    inode: u64,
    size: i64,
    modified: i128,
    changed: i128,
}

impl Version {
    /// The version of a file that was just looked at.
    pub(super) fn of(found: &Stat) -> Self {
        let nanoseconds = |seconds: i64, rest: u64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
        Self {
            inode: found.st_ino,
            size: found.st_size,
            modified: nanoseconds(found.st_mtime, found.st_mtime_nsec),
            changed: nanoseconds(found.st_ctime, found.st_ctime_nsec),
        }
    }

    /// When its content was last written. Nanoseconds since 1970, by the clock of its file system.
    pub(super) fn changed_at(&self) -> i128 {
        self.modified
    }

    /// When it was made, if nobody touched it since. A user may set the time of modification, and only to an earlier one
    /// is it believed: the lock of tomorrow is one of now.
    fn made_at(&self) -> i128 {
        self.modified.min(self.changed)
    }
}

/// `config.lock`, held. It goes when this is dropped.
struct Lock<'d, 'home> {
    directory: &'d Directory<'home>,
    name: PathBuf,
    inode: u64,
    made_at: i128,
    overridden: Option<u64>,
}

impl Drop for Lock<'_, '_> {
    fn drop(&mut self) {
        // Somebody may have removed it, and another program locked since.
        if self.directory.look(&self.name).is_ok_and(|found| found.is_some_and(|found| found.st_ino == self.inode)) {
            let _ = self.directory.remove(&self.name);
        }
    }
}

impl<'d, 'home> Lock<'d, 'home> {
    /// Takes the lock of a file, or waits for it. `now`: the time of the file system.
    fn take(directory: &'d Directory<'home>, file: &Path, now: i128, patience: Patience) -> Result<Self, HomeError> {
        let name = lock_name(file);
        let mut waited = 0_u32;
        let mut overridden = None;
        loop {
            if let Some(held) = directory.make_lock(&name, LOCK_MODE, MARK)? {
                let made = Version::of(&held);
                return Ok(Self { directory, name, inode: made.inode, made_at: made.modified, overridden });
            }
            let Some(found) = directory.look(&name)? else { continue };
            let now = now + i128::try_from((PAUSE * waited).as_nanos()).unwrap_or(0);
            // One from far ahead was made by a clock that was wrong: nobody can say when it is old.
            let age = (now - Version::of(&found).made_at()).unsigned_abs();
            if age > ABANDONED.as_nanos() {
                directory.remove_anything(&name, &found)?;
                let seconds = u64::try_from(age / 1_000_000_000).unwrap_or(u64::MAX);
                eprintln!("{}: overridden, it was {seconds} s old", shown(&directory.path_of(&name)));
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

/// Removes a lock of ours that a killed worker left. The server runs one worker a home at a time, so nobody holds it.
pub(super) fn sweep_lock(directory: &Directory<'_>, file: &Path) {
    let name = lock_name(file);
    let Ok(Some(found)) = directory.look(&name) else { return };
    let is_of_our_kind = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile
        && found.st_mode & 0o7777 == LOCK_MODE.as_raw_mode();
    // Killed between making and marking it, it is empty.
    let says_so = || directory.read(&name).is_ok_and(|lock| lock.is_some_and(|lock| MARK.starts_with(&lock.content)));
    if is_of_our_kind && says_so() {
        let _ = directory.remove(&name);
    }
}

/// As client-go names it.
fn lock_name(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

impl Directory<'_> {
    /// What is there under a name, a link itself.
    fn look(&self, name: &Path) -> Result<Option<Stat>, HomeError> {
        match fs::statat(self.held(), name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.failed("fstatat", name, errno)),
        }
    }

    /// Makes a file that must not be there; `None` if something is.
    fn make_lock(&self, name: &Path, mode: Mode, content: &[u8]) -> Result<Option<Stat>, HomeError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match fs::openat(self.held(), name, flags, mode) {
            Ok(file) => file,
            Err(Errno::EXIST) => return Ok(None),
            Err(errno) => return Err(self.failed("openat", name, errno)),
        };
        // A full disk leaves it empty, which does as well.
        let _ = rustix::io::write(&file, content);
        fs::fstat(&file).map(Some).map_err(|errno| self.failed("fstat", name, errno))
    }

    /// Removes what was found under a name, of whatever kind, if it is still that.
    fn remove_anything(&self, name: &Path, found: &Stat) -> Result<(), HomeError> {
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
                let why = format!("it cannot be removed: {}", std::io::Error::from(errno).kind());
                Err(HomeError::InUse { path: self.path_of(name), why })
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

    /// What an NFS client does to a file that is open: it renames it out of the way first.
    #[test]
    fn a_file_is_closed_before_another_takes_its_place() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("home/config");
        std::fs::create_dir(folder.path().join("home")).expect("a home");
        std::fs::write(&path, "theirs").expect("a file");
        let uid = std::fs::metadata(&path).expect("a file").uid();
        let target = HomeTarget::new(folder.path().join("home"), uid, uid);
        let home = Home::open(folder.path(), &target).expect("a home");
        let directory = home.directory_of(Path::new("config")).expect("readable").expect("there");
        let is_open = || {
            let held = std::fs::read_dir("/proc/self/fd").expect("descriptors");
            held.flatten().any(|held| std::fs::read_link(held.path()).is_ok_and(|held| held == path))
        };
        let merge = |existing: Option<&Existing>| {
            assert!(existing.is_some() && is_open(), "so that this test would see it");
            Ok((Some(Zeroizing::new(b"ours".to_vec())), ()))
        };
        let before = |(): &()| {
            assert!(!is_open());
            Ok(())
        };
        let done = exchange(&directory, Path::new("config"), Patience::of(Duration::from_secs(9)), merge, before);
        assert!(done.expect("written").changed);
        assert_eq!(std::fs::read_to_string(&path).expect("a file"), "ours");
    }
}
