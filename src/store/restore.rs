//! Replaces the ledger with a backup. The backup is checked before any file is changed, the files are exchanged in one
//! step, and the replaced ledger is kept next to the new one.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::json;

use super::backup::unpack;
use super::read::VerifyError;
use super::{CycleLock, FILE, ReadStore, Store, StoreError, has_content, make_file, make_folder, with, writable};
use crate::ledger::chain::Broken;
use crate::ledger::change::{Change, Event};
use crate::ledger::cluster_recovery::GENERATIONS_SKIPPED;

/// Endings of the files that SQLite puts next to a ledger. If they stayed, SQLite would apply them to the new ledger.
const BESIDE: &[&str] = &["-wal", "-shm", "-journal"];

/// Why a backup was not restored. The ledger is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The ledger, or the copy of the backup, cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The backup cannot be opened or read.
    #[error("the backup cannot be used; choose another one")]
    Backup(#[source] StoreError),
    /// The backup is damaged. [`StoreError::Corrupt`] would give the wrong remedy, because the ledger itself is good.
    #[error("the backup cannot be used; choose another one: {0}")]
    Damaged(String),
    /// The backup's history was altered.
    #[error("the backup's history was altered or is incomplete; choose another backup")]
    Chain(#[source] Broken),
    /// A newer version of Bursar wrote the backup.
    #[error("the backup was written by a newer version of Bursar; install that version")]
    Newer,
    /// The current ledger has newer events than the backup.
    #[error(
        "the backup ends with event {backup}, but the current ledger is intact and ends with event {current}: all events \
         in between would be lost; to restore the backup anyway, add --older"
    )]
    Older {
        /// The id of its last event.
        backup: i64,
        /// The id of the current ledger's last event.
        current: i64,
    },
}

impl RestoreError {
    /// Wraps an error that the backup causes.
    fn of_backup(error: StoreError) -> Self {
        match error {
            StoreError::Corrupt(why) => Self::Damaged(why),
            other => Self::Backup(other),
        }
    }
}

/// The result of a restore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// The new id of the ledger.
    pub ledger_id: String,
    /// The id of the backup's last event.
    pub events: i64,
    /// The path to which the replaced ledger was moved; `None` if there was none.
    pub replaced: Option<PathBuf>,
    /// The number of events that the replaced ledger had in addition; `None` if it was damaged or there was none.
    pub forgotten: Option<i64>,
}

/// How a backup is restored.
#[derive(Debug, Clone, Copy)]
pub struct Restoring<'a> {
    /// The actor that the history records.
    pub actor: &'a str,
    /// Whether the backup is restored even if the current ledger has newer events.
    pub older: bool,
    /// A new id for the ledger, so that a copy never owns a cluster by accident.
    pub ledger_id: &'a str,
    pub now: Timestamp,
}

/// Replaces the ledger in `state_dir` with the content of `backup`.
///
/// # Errors
/// [`StoreError::Busy`] while a daemon runs.
pub async fn restore(state_dir: &Path, backup: &mut File, how: Restoring<'_>) -> Result<Restored, RestoreError> {
    make_folder(state_dir)?;
    let lock = CycleLock::take(state_dir)?;
    let path = state_dir.join(FILE);
    let beside = beside(state_dir, how.now);
    let prepared = prepare(&beside, backup, how, &lock, state_dir).await;
    let done = match prepared {
        Ok(prepared) => put(&path, &beside, prepared, how).await,
        Err(error) => Err(error),
    };
    done.inspect_err(|_| {
        for end in [""].iter().chain(BESIDE) {
            // This is only a copy of the backup; leaving it does no harm.
            let _ = fs::remove_file(with(&beside, end));
        }
    })
}

struct Prepared {
    events: i64,
    head: String,
}

/// Writes the backup to `copy` and checks it. Then migrates it to the schema of this version, gives it a new id, and
/// raises its generations.
async fn prepare(
    copy: &Path,
    backup: &mut File,
    how: Restoring<'_>,
    lock: &CycleLock,
    state_dir: &Path,
) -> Result<Prepared, RestoreError> {
    make_file(copy)?;
    let failed = |source| StoreError::File { path: copy.to_owned(), source };
    let mut file = File::options().write(true).open(copy).map_err(failed)?;
    // An error with a code of the operating system concerns a file; any other error comes from the decompression.
    unpack(backup, &mut file).map_err(|error| match error.raw_os_error() {
        Some(_) => RestoreError::Store(failed(error)),
        None => RestoreError::Damaged(error.to_string()),
    })?;
    file.sync_all().map_err(failed)?;
    let mut reader = ReadStore::open(copy).await.map_err(RestoreError::of_backup)?;
    let verified = verified(&mut reader).await;
    reader.close().await;
    let (events, head) = verified?;
    let connection = writable(copy).await.map_err(|error| match error {
        StoreError::Newer => RestoreError::Newer,
        other => RestoreError::of_backup(other),
    })?;
    let mut store = Store::of(state_dir, connection, false).await.map_err(RestoreError::of_backup)?;
    let before = &store.state;
    let changes = [
        Change::LedgerId(how.ledger_id.to_owned()),
        Change::Learned(how.now),
        Change::LastGeneration(before.last_generation + GENERATIONS_SKIPPED),
    ];
    let detail = json!({"of_ledger": before.ledger_id, "ledger": how.ledger_id, "events": events});
    let event = Event { actor: how.actor.to_owned(), ..Event::new("restored", "from a backup", detail) };
    store.write(lock, &changes, &[event], how.now).await?;
    store.close().await?;
    Ok(Prepared { events, head })
}

async fn verified(backup: &mut ReadStore) -> Result<(i64, String), RestoreError> {
    backup.check().await.map_err(RestoreError::of_backup)?;
    backup.verify().await.map_err(|error| match error {
        VerifyError::Broken(broken) => RestoreError::Chain(broken),
        VerifyError::Store(error) => RestoreError::of_backup(error),
    })
}

/// Moves the prepared backup to the name of the ledger, and the ledger to the name of the backup.
async fn put(path: &Path, beside: &Path, prepared: Prepared, how: Restoring<'_>) -> Result<Restored, RestoreError> {
    let failed = |source| StoreError::File { path: path.to_owned(), source };
    let restored = |replaced, forgotten| Restored {
        ledger_id: how.ledger_id.to_owned(),
        events: prepared.events,
        replaced,
        forgotten,
    };
    if !path.exists() {
        aside(path, beside).map_err(failed)?;
        fs::rename(beside, path).and_then(|()| sync(path)).map_err(failed)?;
        return Ok(restored(None, None));
    }
    let current = current(path).await?;
    let forgotten = current.as_ref().map(|(last, head)| {
        let same = *last == prepared.events && *head == prepared.head;
        if same { 0 } else { (last - prepared.events).max(1) }
    });
    if let Some((current, _)) = current
        && current > prepared.events
        && !how.older
    {
        return Err(RestoreError::Older { backup: prepared.events, current });
    }
    // The WAL of an intact ledger was written into its file above. If the ledger is damaged, its WAL and journal move
    // with it.
    aside(path, beside).map_err(failed)?;
    exchange(path, beside).and_then(|()| sync(path)).map_err(failed)?;
    Ok(restored(Some(beside.to_owned()), forgotten))
}

/// Id and hash of the newest event of the current ledger; `None` if it is damaged or has no content. SQLite would delete
/// the WAL of a file without content when it opens the file.
async fn current(path: &Path) -> Result<Option<(i64, String)>, RestoreError> {
    if has_content(path).is_ok_and(|has| !has) {
        return Ok(None);
    }
    let Ok(connection) = writable(path).await else { return Ok(None) };
    let Ok(store) = Store::of(path, connection, false).await else { return Ok(None) };
    let head = store.head.clone();
    store.close().await?;
    if with(path, "-wal").exists() {
        return Err(StoreError::Read(path.to_owned()).into());
    }
    Ok(Some(head))
}

/// Moves the files that SQLite put next to `path` to the same place next to `beside`.
fn aside(path: &Path, beside: &Path) -> io::Result<()> {
    for end in BESIDE {
        match fs::rename(with(path, end), with(beside, end)) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Exchanges two files in one step, if the file system can. Otherwise there is a moment without a ledger: a daemon that
/// started then would find that another ledger owns the clusters, and stop.
fn exchange(path: &Path, beside: &Path) -> io::Result<()> {
    match renameat_with(CWD, path, CWD, beside, RenameFlags::EXCHANGE) {
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
            let moving = with(beside, ".new");
            fs::rename(beside, &moving)?;
            fs::rename(path, beside)?;
            fs::rename(moving, path)
        }
        other => other.map_err(io::Error::from),
    }
}

fn sync(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

/// The path to which the replaced ledger is moved: `ledger-replaced-20270101T040000Z.db`.
fn beside(state_dir: &Path, now: Timestamp) -> PathBuf {
    let name = |number: u32| {
        let more = if number == 0 { String::new() } else { format!("-{number}") };
        let at = now.to_zoned(TimeZone::UTC).strftime("%Y%m%dT%H%M%SZ");
        state_dir.join(format!("ledger-replaced-{at}{more}.db"))
    };
    // Only tests restore twice in a second.
    (0..100).map(name).find(|path| !path.exists()).unwrap_or_else(|| name(0))
}
