//! Copies of the ledger: made beside a running daemon, verified before they count, the newest kept in
//! `state_dir/backups`.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::read::VerifyError;
use super::{FILE, ReadStore, StoreError, disk, make_file, make_folder};

/// Backups kept: two weeks of nights, which is longer than anybody is away who would notice.
const KEPT: usize = 14;

/// In the state folder.
const FOLDER: &str = "backups";
/// `ledger-20270101T040000Z.db`: names sort as times do.
const NAME: &str = "ledger-%Y%m%dT%H%M%SZ.db";

/// A copy that was verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backup {
    /// Where it is.
    pub path: PathBuf,
    /// When it was begun.
    pub at: Timestamp,
    /// Events in it.
    pub events: i64,
    /// Hash of the newest of them.
    pub head: String,
}

/// Makes one more in `state_dir`, and removes those that are not kept. Half a backup never has the name of one.
///
/// # Errors
/// The disk does not take it: never the room that the ledger itself needs.
pub async fn nightly(ledger: &mut ReadStore, state_dir: &Path, now: Timestamp) -> Result<Backup, StoreError> {
    let folder = state_dir.join(FOLDER);
    make_folder(&folder)?;
    let size = fs::metadata(state_dir.join(FILE)).map_or(0, |file| file.len());
    disk::room(&folder, size + disk::RESERVE)?;
    let path = folder.join(now.to_zoned(TimeZone::UTC).strftime(NAME).to_string());
    let half = folder.join("half.db");
    let copied = copy(ledger, &half).await;
    let done = copied.and_then(|head| fs::rename(&half, &path).map(|()| head).map_err(file(&path)));
    let (events, head) = done.inspect_err(|_| {
        // The next one replaces what cannot be removed now.
        let _ = fs::remove_file(&half);
    })?;
    prune(&folder).map_err(file(&folder))?;
    Ok(Backup { path, at: now, events, head })
}

/// When the newest was made; `None`: there is none.
#[must_use]
pub fn newest(state_dir: &Path) -> Option<Timestamp> {
    let names = names(&state_dir.join(FOLDER)).ok()?;
    let time = |name: &String| jiff::civil::DateTime::strptime(NAME, name).ok()?.to_zoned(TimeZone::UTC).ok();
    names.iter().rev().find_map(time).map(|time| time.timestamp())
}

/// Copies the whole ledger into `path`, with its mode, and reads it back.
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

/// Removes all but the newest.
fn prune(folder: &Path) -> io::Result<()> {
    let names = names(folder)?;
    let old = names.len().saturating_sub(KEPT);
    names.iter().take(old).try_for_each(|name| fs::remove_file(folder.join(name)))
}

/// Names of the backups, the oldest first. Other files that somebody put there stay.
fn names(folder: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if jiff::civil::DateTime::strptime(NAME, &name).is_ok() {
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
    async fn fourteen_are_kept_and_nothing_else_is_touched() {
        let folder = tempfile::TempDir::new().expect("a folder");
        let state_dir = folder.path();
        let (store, _lock) = Store::open(state_dir).await.expect("a ledger");
        assert_eq!(newest(state_dir), None);
        let night = |number: i64| Timestamp::from_second(1_790_000_000 + number * 86_400).expect("a time");
        let mut ledger = ReadStore::open(&state_dir.join(FILE)).await.expect("a ledger");
        for number in 0..16 {
            nightly(&mut ledger, state_dir, night(number)).await.expect("a backup");
            fs::write(state_dir.join("backups/mine.db"), b"mine").expect("written");
        }
        assert_eq!(newest(state_dir), Some(night(15)));
        let names = names(&state_dir.join(FOLDER)).expect("a folder");
        assert_eq!(names.len(), KEPT);
        assert!(state_dir.join("backups/mine.db").exists() && !state_dir.join("backups/half.db").exists());
        let mut copy = ReadStore::open(&state_dir.join(FOLDER).join(&names[0])).await.expect("a backup");
        assert_eq!(copy.state().await.expect("a state"), *store.state());
        let mode = fs::metadata(state_dir.join(FOLDER).join(&names[0])).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
    }
}
