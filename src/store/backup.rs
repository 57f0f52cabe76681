//! Backups of the ledger in `state_dir/backups`. They are made while the daemon runs, verified, and compressed. The
//! newest [`KEPT`] are kept.

use std::fs::{self, File, Permissions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::read::VerifyError;
use super::{FILE, ReadStore, StoreError, disk, make_file, make_folder};

/// The number of nightly backups that are kept. Administrators are rarely away for two weeks, so one of them notices a
/// fault before the last good backup is removed.
const KEPT: usize = 14;

/// The name of the folder in the state folder.
const FOLDER: &str = "backups";
/// For example `ledger-20270101T040000Z.db.zst`. Sorted by name, the backups are sorted by time.
const NAME: &str = "ledger-%Y%m%dT%H%M%SZ.db.zst";
/// The name of backups that an older version of Bursar made without compression.
const PLAIN_NAME: &str = "ledger-%Y%m%dT%H%M%SZ.db";
/// zstd's default. A ledger shrinks to about a fifth, at more than 100 MB a second.
const LEVEL: i32 = 3;
/// The first bytes of a zstd file (RFC 8878).
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// A verified backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backup {
    pub path: PathBuf,
    pub at: Timestamp,
    /// The id of the newest event.
    pub events: i64,
    /// The hash of the newest event.
    pub head: String,
}

/// Makes a backup in `state_dir`, and removes the oldest backups if there are more than [`KEPT`]. A backup gets its
/// name only when it is complete.
///
/// # Errors
/// [`StoreError::Room`] if the backup would leave less free space than the ledger itself needs.
pub async fn nightly(ledger: &mut ReadStore, state_dir: &Path, now: Timestamp) -> Result<Backup, StoreError> {
    let folder = self::folder(state_dir);
    make_folder(&folder)?;
    let size = fs::metadata(state_dir.join(FILE)).map_or(0, |file| file.len());
    // Room for the copy and for the compressed file, which takes at most half as much.
    disk::room(&folder, size + size / 2 + disk::RESERVE)?;
    let path = folder.join(now.to_zoned(TimeZone::UTC).strftime(NAME).to_string());
    let (half, packed) = (folder.join("half.db"), folder.join("half.db.zst"));
    let copied = copy(ledger, &half).await;
    let done = copied.and_then(|head| {
        compress(&half, &packed).map_err(file(&packed))?;
        fs::rename(&packed, &path).map(|()| head).map_err(file(&path))
    });
    for file in [&half, &packed] {
        // If a file cannot be removed now, the next backup replaces it.
        let _ = fs::remove_file(file);
    }
    let (events, head) = done?;
    prune(&folder).map_err(file(&folder))?;
    Ok(Backup { path, at: now, events, head })
}

/// The folder of the ledger's backups.
#[must_use]
pub fn folder(state_dir: &Path) -> PathBuf {
    state_dir.join(FOLDER)
}

/// When the newest backup was begun; `None` if there is none. A backup with a time after `now` was made while the clock
/// was ahead. Its age is unknown, so it is ignored.
#[must_use]
pub fn newest(state_dir: &Path, now: Timestamp) -> Option<Timestamp> {
    let names = names(&folder(state_dir)).ok()?;
    names.iter().rev().filter_map(|name| time_of(name)).find(|at| *at <= now)
}

/// When the backup of this name was begun; `None` if this is not the name of a backup.
fn time_of(name: &str) -> Option<Timestamp> {
    let time = |format| jiff::civil::DateTime::strptime(format, name).ok();
    Some(time(NAME).or_else(|| time(PLAIN_NAME))?.to_zoned(TimeZone::UTC).ok()?.timestamp())
}

/// Whether a file is a compressed backup.
pub fn is_packed(path: &Path) -> io::Result<bool> {
    let mut begin = Vec::new();
    File::open(path)?.take(MAGIC.len() as u64).read_to_end(&mut begin)?;
    Ok(begin == MAGIC)
}

/// Copies the content of a backup into `to`, and decompresses it if necessary.
pub fn unpack(backup: &mut impl Read, to: &mut impl Write) -> io::Result<u64> {
    let mut begin = Vec::new();
    backup.take(MAGIC.len() as u64).read_to_end(&mut begin)?;
    let is_packed = begin == MAGIC;
    let mut whole = begin.as_slice().chain(backup);
    if is_packed { io::copy(&mut zstd::Decoder::new(whole)?, to) } else { io::copy(&mut whole, to) }
}

/// Writes `from` compressed to `to`, and compares the decompressed content with `from`.
fn compress(from: &Path, to: &Path) -> io::Result<()> {
    let mut plain = File::open(from)?;
    let mut packed = zstd::Encoder::new(File::create(to)?, LEVEL)?;
    packed.include_checksum(true)?;
    io::copy(&mut plain, &mut packed)?;
    let written = packed.finish()?;
    written.set_permissions(Permissions::from_mode(0o640))?;
    written.sync_all()?;
    let mut same = Same(BufReader::new(File::open(from)?));
    let read = unpack(&mut File::open(to)?, &mut BufWriter::new(&mut same))?;
    let is_whole = read == fs::metadata(from)?.len();
    if is_whole { Ok(()) } else { Err(io::Error::other("a compressed backup is shorter than its ledger")) }
}

/// A writer that fails unless it gets the bytes that `R` returns.
struct Same<R>(R);

impl<R: Read> Write for Same<R> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut other = vec![0; bytes.len()];
        self.0.read_exact(&mut other)?;
        let same = other == bytes;
        same.then_some(bytes.len()).ok_or_else(|| io::Error::other("a compressed backup differs from its ledger"))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Copies the whole ledger into `path` with the ledger's mode, and verifies the copy.
async fn copy(ledger: &mut ReadStore, path: &Path) -> Result<(i64, String), StoreError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(file(path)(error)),
        _ => {}
    }
    make_file(path)?;
    ledger.copy_into(path).await?;
    let written = File::open(path).and_then(|copy| copy.sync_all());
    written.and_then(|()| fs::set_permissions(path, Permissions::from_mode(0o640))).map_err(file(path))?;
    let mut copy = ReadStore::open(path).await?;
    copy.check().await?;
    copy.verify().await.map_err(|error| match error {
        VerifyError::Broken(broken) => StoreError::Corrupt(broken.to_string()),
        VerifyError::Store(error) => error,
    })
}

/// Removes all but the [`KEPT`] newest backups.
fn prune(folder: &Path) -> io::Result<()> {
    let names = names(folder)?;
    let old = names.len().saturating_sub(KEPT);
    names.iter().take(old).try_for_each(|name| fs::remove_file(folder.join(name)))
}

/// Names of the backups, oldest first. Other files in the folder are ignored.
fn names(folder: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if time_of(&name).is_some() {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn file(path: &Path) -> impl Fn(io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::File { path: path.clone(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Store;

    #[tokio::test]
    async fn the_newest_backups_are_kept_and_other_files_stay() {
        let folder = tempfile::TempDir::new().expect("the temporary folder is writable");
        let state_dir = folder.path();
        let (store, _lock) = Store::create(state_dir).await.expect("the ledger opens");
        let night = |number: i64| Timestamp::from_second(1_790_000_000 + number * 86_400).expect("the time is valid");
        assert_eq!(newest(state_dir, night(0)), None);
        let mut ledger = ReadStore::open(&state_dir.join(FILE)).await.expect("the ledger opens");
        for number in 0..16 {
            nightly(&mut ledger, state_dir, night(number)).await.expect("the backup is written");
            fs::write(state_dir.join("backups/mine.db"), b"mine").expect("the folder is writable");
        }
        assert_eq!(newest(state_dir, night(15)), Some(night(15)));
        assert_eq!(newest(state_dir, night(14)), Some(night(14)), "the clock was ahead");
        let names = names(&state_dir.join(FOLDER)).expect("the folder exists");
        assert_eq!(names.len(), KEPT);
        assert!(state_dir.join("backups/mine.db").exists() && !state_dir.join("backups/half.db").exists());
        let (packed, plain) = (state_dir.join(FOLDER).join(&names[0]), state_dir.join("plain.db"));
        let mut unpacked = File::create(&plain).expect("the folder is writable");
        unpack(&mut File::open(&packed).expect("the backup exists"), &mut unpacked).expect("the backup decompresses");
        assert!(
            fs::metadata(&packed).expect("the file exists").len() * 4
                < fs::metadata(&plain).expect("the file exists").len()
        );
        let mut copy = ReadStore::open(&plain).await.expect("the backup opens");
        assert_eq!(copy.state().await.expect("the ledger is readable"), *store.state());
        let mode = fs::metadata(state_dir.join(FOLDER).join(&names[0])).expect("the file exists").permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
    }

    #[test]
    fn plain_and_compressed_backups_are_read_and_broken_ones_are_refused() {
        let folder = tempfile::TempDir::new().expect("the temporary folder is writable");
        let path = |name: &str| folder.path().join(name);
        let plain: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
        fs::write(path("plain"), &plain).expect("the folder is writable");
        compress(&path("plain"), &path("packed")).expect("the file compresses");
        let unpacked = |name: &str| {
            let mut to = Vec::new();
            unpack(&mut File::open(path(name)).expect("the file exists"), &mut to).map(|_| to)
        };
        assert!(unpacked("plain").expect("read") == plain && unpacked("packed").expect("read") == plain);
        let mut broken = fs::read(path("packed")).expect("the file exists");
        let middle = broken.len() / 2;
        broken[middle] ^= 1;
        fs::write(path("broken"), &broken).expect("the folder is writable");
        fs::write(path("short"), &broken[..middle]).expect("the folder is writable");
        assert!(unpacked("broken").is_err() && unpacked("short").is_err());
    }
}
