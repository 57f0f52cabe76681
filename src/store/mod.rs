//! The ledger in SQLite: the rows of [`LedgerState`]. Every change is written to the file and to memory together. Only
//! the holder of the [`CycleLock`] writes; readers open the file read-only, also while the daemon runs.

pub mod backup;
mod batch;
mod disk;
pub mod facts;
mod interval;
mod load;
mod lock;
mod read;
mod readers;
mod record;
pub mod restore;
mod table;
mod temporary;
mod write;

use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::Date;
use sqlx::Connection as _;
use sqlx::migrate::{MigrateError, Migrator};
use sqlx::sqlite::SqliteConnection;

pub use disk::RESERVE;
pub use lock::CycleLock;
pub(crate) use lock::FileLock;
pub use read::{ReadStore, VerifyError};
pub use readers::holding_the_wal;
pub use temporary::Temporary;

use crate::ledger::LedgerState;

/// The ledger's file in the state folder.
pub const FILE: &str = "ledger.db";
/// The file in the state folder with the seed of the seal (`contract::Sealer`). `bursar init` creates it after the
/// ledger, so this file without a ledger proves that the ledger was lost.
pub const SEAL_KEY: &str = "seal.key";
/// The reason in [`StoreError::Lost`] for a file without content.
const EMPTY: &str = "the file is empty";
/// The schema of this version, as the steps from an empty file.
static MIGRATIONS: Migrator = sqlx::migrate!("./migrations");

/// Why an operation on the ledger failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Neither `bursar init` nor a cycle was run yet.
    #[error("{0}: there is no ledger yet; `bursar init` or the first cycle creates it")]
    Absent(PathBuf),
    /// There was a ledger. A new empty one in its place would look like the right one.
    #[error(
        "{path}: {why}, so the ledger was lost; run: bursar ledger restore BACKUP, or without a backup: bursar ledger \
         rebuild; after both: bursar takeover (/usr/share/doc/bursar/runbooks/lost-ledger.md)"
    )]
    Lost { path: PathBuf, why: &'static str },
    /// Another process is the writer.
    #[error("another process holds the ledger's lock: bursard runs, or a `bursar` command that changes something")]
    Busy,
    /// A file or folder cannot be used.
    #[error("cannot use {path}")]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A process reads a ledger that no daemon had open. SQLite cannot switch the file to WAL mode until the read ends.
    #[error("{0} is locked by a reader; retry when the reader has closed it")]
    Read(PathBuf),
    /// Another program, such as `sqlite3`, writes or locks the file.
    #[error("another program, such as sqlite3, holds the ledger's lock; retry when it ends")]
    Locked,
    /// SQLite finds the file damaged.
    #[error("the ledger is damaged ({0}). Stop bursard, move ledger.db aside and run: bursar ledger restore BACKUP")]
    Corrupt(String),
    /// The disk has too little free space to record the changes of a cycle.
    #[error("{path}: only {free} MiB are free, but {needed} MiB are needed; free some space")]
    Room {
        path: PathBuf,
        /// In MiB, as is `needed`.
        free: u64,
        needed: u64,
    },
    /// An earlier write failed.
    #[error("the last write to the ledger failed; it is retried")]
    Stuck,
    /// SQLite returned an error.
    #[error("the ledger's database refuses the operation")]
    Sqlite(#[from] sqlx::Error),
    /// The ledger has a migration that this version does not know.
    #[error(
        "a newer version of Bursar wrote the ledger; install that version, or restore a backup \
         (/usr/share/doc/bursar/upgrade.md)"
    )]
    Newer,
    /// The migrations failed.
    #[error("cannot bring the ledger's schema up to date")]
    Migrate(#[source] MigrateError),
    /// A row does not parse, because it was written by hand or by a newer version of Bursar.
    #[error("a row of table {table} does not parse")]
    Row {
        table: &'static str,
        #[source]
        source: serde_json::Error,
    },
}

/// The ledger, open for its only writer.
#[derive(Debug)]
pub struct Store {
    /// The state folder.
    path: PathBuf,
    connection: SqliteConnection,
    /// See [`Store::is_stuck`].
    stuck: bool,
    state: LedgerState,
    /// Id and hash of the newest event.
    head: (i64, String),
    /// The number of the newest cycle.
    last_cycle: i64,
    /// The day on which the rows of expired certificates were last reduced.
    reduced_on: Option<Date>,
    /// A shorter form of the report of the newest cycle. It replaces that report when the next cycle ends. `None` if
    /// the report needs no shorter form.
    last_report: Option<String>,
}

impl Store {
    /// Opens the ledger in `state_dir`. On a disk that cannot be written to, the ledger is opened read-only and is
    /// stuck.
    ///
    /// # Errors
    /// [`StoreError::Absent`] and [`StoreError::Lost`] if there is none, [`StoreError::Busy`] if another process writes,
    /// [`StoreError::Corrupt`] if the file is damaged.
    pub async fn open(state_dir: &Path) -> Result<(Self, CycleLock), StoreError> {
        must_exist(&state_dir.join(FILE))?;
        Self::locked(state_dir, CycleLock::take(state_dir)?).await
    }

    /// Like [`Store::open`], but creates the ledger if there is none (folder 0750, file 0640). Only the first
    /// `bursar init`, the first cycle, and `bursar ledger rebuild` may do this.
    pub async fn create(state_dir: &Path) -> Result<(Self, CycleLock), StoreError> {
        make_folder(state_dir)?;
        let lock = CycleLock::take(state_dir)?;
        make_file(&state_dir.join(FILE))?;
        Self::locked(state_dir, lock).await
    }

    async fn locked(state_dir: &Path, lock: CycleLock) -> Result<(Self, CycleLock), StoreError> {
        let path = state_dir.join(FILE);
        let (connection, stuck) = match writable(&path).await {
            Ok(connection) => (connection, false),
            Err(StoreError::Sqlite(error)) if code(&error) == Some(BUSY) => return Err(StoreError::Read(path)),
            Err(error) if error.is_of_the_disk() => (read::connect(&path).await.map_err(|_| error)?, true),
            Err(error) => return Err(error),
        };
        Ok((Self::of(state_dir, connection, stuck).await?, lock))
    }

    /// Loads the content of an open file.
    async fn of(state_dir: &Path, mut connection: SqliteConnection, stuck: bool) -> Result<Self, StoreError> {
        let state = load::state(&mut connection).await?;
        let head = load::head(&mut connection).await?;
        let last_cycle = load::last_cycle(&mut connection).await?;
        Ok(Self {
            path: state_dir.to_owned(),
            connection,
            stuck,
            state,
            head,
            last_cycle,
            reduced_on: None,
            last_report: None,
        })
    }

    /// The ledger's content.
    #[must_use]
    pub const fn state(&self) -> &LedgerState {
        &self.state
    }

    /// Id and hash of the newest event. A later check can compare them, to find events that were cut off the end of the
    /// history.
    #[must_use]
    pub fn head(&self) -> (i64, &str) {
        (self.head.0, &self.head.1)
    }

    /// Closes the file and removes its WAL, so that members of the group can read it with plain `sqlite3`: only a
    /// process that may write can recover a WAL. If another process has the file open, the WAL and its index stay, and
    /// readers can use them.
    pub async fn close(mut self) -> Result<(), StoreError> {
        let closed = match sqlx::query("PRAGMA journal_mode = DELETE").execute(&mut self.connection).await {
            Err(error) if code(&error) != Some(BUSY) => Err(error.into()),
            _ => self.connection.close().await.map_err(StoreError::from),
        };
        // On a disk that cannot be written to, the WAL stays; the next process that opens the ledger reads it.
        closed.or_else(|error| if error.is_of_the_disk() { Ok(()) } else { Err(error) })
    }
}

/// The end of a cycle, as the ledger records it.
#[derive(Debug, Clone, PartialEq)]
pub struct CycleEnd {
    pub began: Timestamp,
    pub ended: Timestamp,
    /// What started the cycle.
    pub trigger: String,
    /// The result of each source.
    pub sources: std::collections::BTreeMap<String, crate::ledger::SourceState>,
    /// The report of the cycle, as JSON.
    pub report: serde_json::Value,
    /// The report that is kept after the next cycle has ended; `None` to keep `report`.
    pub shorter: Option<serde_json::Value>,
}

impl From<MigrateError> for StoreError {
    fn from(error: MigrateError) -> Self {
        match error {
            MigrateError::VersionMissing(_) => Self::Newer,
            other => Self::Migrate(other),
        }
    }
}

/// Whether the file has content. One without content is what remains of a lost ledger.
pub fn has_content(ledger: &Path) -> io::Result<bool> {
    Ok(fs::metadata(ledger)?.len() > 0)
}

/// Whether the state folder has neither a ledger nor the key of the seals, as before the first `bursar init`. A first
/// `init` that was killed leaves a file without content.
#[must_use]
pub fn is_before_init(state_dir: &Path) -> bool {
    let ledger = state_dir.join(FILE);
    let has_none = match has_content(&ledger) {
        Ok(has) => !has && !with(&ledger, "-wal").exists(),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    };
    has_none && !state_dir.join(SEAL_KEY).exists()
}

/// Fails if there is no ledger, or only what remains of a lost one.
pub fn must_exist(ledger: &Path) -> Result<(), StoreError> {
    let path = ledger.to_owned();
    match has_content(ledger) {
        Ok(true) => Ok(()),
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(StoreError::File { path, source }),
        _ if ledger.parent().is_some_and(is_before_init) => Err(StoreError::Absent(path)),
        Ok(false) => Err(StoreError::Lost { path, why: EMPTY }),
        Err(_) => Err(StoreError::Lost { path, why: "the file is missing, but seal.key is there" }),
    }
}

/// Opens the file for writing, checks it, and migrates it to the schema of this version.
async fn writable(path: &Path) -> Result<SqliteConnection, StoreError> {
    let mut connection = disk::connect(path).await.map_err(damaged)?;
    match make_ready(&mut connection).await {
        Ok(()) => Ok(connection),
        Err(error) => {
            // The close is awaited, because the caller then moves the file or opens it again.
            let _ = connection.close().await;
            Err(error)
        }
    }
}

async fn make_ready(connection: &mut SqliteConnection) -> Result<(), StoreError> {
    check(connection).await?;
    let query = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'
        AND NOT EXISTS (SELECT 1 FROM sqlite_master WHERE name = '_sqlx_migrations')";
    let foreign: i64 = sqlx::query_scalar(query).fetch_one(&mut *connection).await?;
    if foreign > 0 {
        return Err(StoreError::Corrupt("it is a database of another program".to_owned()));
    }
    MIGRATIONS.run(&mut *connection).await?;
    Ok(write::draw_id(connection).await?)
}

async fn check(connection: &mut SqliteConnection) -> Result<(), StoreError> {
    let verdict: String = sqlx::query_scalar("PRAGMA quick_check(1)").fetch_one(connection).await.map_err(damaged)?;
    if verdict == "ok" { Ok(()) } else { Err(StoreError::Corrupt(verdict)) }
}

/// Creates the state folder, which the group can read whatever the umask is. An existing folder is not changed.
fn make_folder(path: &Path) -> Result<(), StoreError> {
    let failed = |source| StoreError::File { path: path.to_owned(), source };
    if path.is_dir() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o750).create(path).map_err(failed)?;
    fs::set_permissions(path, Permissions::from_mode(0o750)).map_err(failed)
}

/// Creates the ledger's file, which the group can read whatever the umask is. SQLite gives its own files the same mode.
/// An existing file is not changed.
fn make_file(path: &Path) -> Result<(), StoreError> {
    let failed = |source| StoreError::File { path: path.to_owned(), source };
    match OpenOptions::new().create_new(true).write(true).mode(0o640).open(path) {
        Ok(file) => file.set_permissions(Permissions::from_mode(0o640)).map_err(failed),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(failed(error)),
    }
}

/// The path of a file that SQLite puts next to a ledger: `-wal`, `-shm`, `-journal`.
fn with(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

/// How long SQLite waits for a lock of another process.
const BUSY_FOR: Duration = Duration::from_secs(5);

// SQLite's primary result codes (sqlite.org/rescode.html).
const BUSY: u32 = 5;
const CORRUPT: u32 = 11;
const NOT_A_DATABASE: u32 = 26;

/// The primary result code; the higher bits of SQLite's extended codes only refine it.
fn code(error: &sqlx::Error) -> Option<u32> {
    let extended: u32 = error.as_database_error()?.code()?.parse().ok()?;
    Some(extended & 0xff)
}

impl StoreError {
    /// Returns the error as a reader reports it: SQLite's codes for a lock and for a damaged file have their own errors.
    #[must_use]
    pub fn of_reader(self) -> Self {
        match self {
            Self::Sqlite(error) if code(&error) == Some(BUSY) => Self::Locked,
            Self::Sqlite(error) => damaged(error),
            other => other,
        }
    }
}

/// Turns an SQLite error into [`StoreError::Corrupt`] if it says that the file is damaged.
fn damaged(error: sqlx::Error) -> StoreError {
    match code(&error) {
        Some(CORRUPT | NOT_A_DATABASE) => StoreError::Corrupt(error.to_string()),
        _ => StoreError::Sqlite(error),
    }
}

#[cfg(test)]
mod access_tests;
#[cfg(test)]
mod adopted_tests;
#[cfg(test)]
mod tests;
