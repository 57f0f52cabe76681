//! The ledger in SQLite: the rows of [`LedgerState`], written only together with it. One writer, who holds the
//! [`CycleLock`]; readers open the file read-only, also while the daemon runs.

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
mod write;

use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::Date;
use sqlx::Connection as _;
use sqlx::sqlite::SqliteConnection;

pub use disk::RESERVE;
pub use lock::CycleLock;
pub use read::{ReadStore, VerifyError};
pub use readers::holding_the_wal;

use crate::ledger::LedgerState;

/// The ledger's file in the state folder.
pub const FILE: &str = "ledger.db";

/// What can go wrong with the ledger.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Somebody else writes.
    #[error("another process holds the ledger's lock: bursard runs, or a `bursar` that changes something")]
    Busy,
    /// A file or folder cannot be used.
    #[error("cannot use {path}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Somebody reads a ledger that no daemon had open, and SQLite cannot begin its WAL meanwhile.
    #[error("{0} is locked by a reader; retry when the reader has closed it")]
    Read(PathBuf),
    /// The file is not as SQLite left it.
    #[error("the ledger is damaged ({0}). Stop bursard, move ledger.db aside and run: bursar ledger restore BACKUP")]
    Corrupt(String),
    /// There is no room to remember what would be done.
    #[error("{path}: only {free} MiB are free, but {needed} MiB are needed; free some space")]
    Room {
        /// Where.
        path: PathBuf,
        /// How much is free.
        free: u64,
        /// How much must be.
        needed: u64,
    },
    /// An earlier write failed.
    #[error("the last write to the ledger failed; it is retried")]
    Stuck,
    /// SQLite refused.
    #[error("the ledger's database refuses the operation")]
    Sqlite(#[from] sqlx::Error),
    /// The schema could not be brought up to date.
    #[error("cannot bring the ledger's schema up to date")]
    Migrate(#[from] sqlx::migrate::MigrateError),
    /// A row does not parse: somebody wrote to the file, or a newer Bursar did.
    #[error("a row of table {table} does not parse")]
    Row {
        table: &'static str,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
}

/// The open ledger of the one writer.
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
    /// The newest cycle.
    last_cycle: i64,
    /// The day on which rows of what ended were last reduced.
    reduced_on: Option<Date>,
    /// The newest cycle's report, as it is when it is no longer the newest; `None`: as it is.
    last_report: Option<String>,
}

impl Store {
    /// Opens the ledger in `state_dir`, and makes it (folder 0750, file 0640) where there is none. On a disk that takes no
    /// writes it is only read, and is stuck.
    ///
    /// # Errors
    /// [`StoreError::Busy`] if another process writes, [`StoreError::Corrupt`] if the file is damaged.
    pub async fn open(state_dir: &Path) -> Result<(Self, CycleLock), StoreError> {
        make_folder(state_dir)?;
        let lock = CycleLock::take(state_dir)?;
        let path = state_dir.join(FILE);
        make_file(&path)?;
        let (connection, stuck) = match writable(&path).await {
            Ok(connection) => (connection, false),
            Err(StoreError::Sqlite(error)) if code(&error) == Some(BUSY) => return Err(StoreError::Read(path)),
            Err(error) if error.is_of_the_disk() => (read::connect(&path).await.map_err(|_| error)?, true),
            Err(error) => return Err(error),
        };
        Ok((Self::of(state_dir, connection, stuck).await?, lock))
    }

    /// What a file holds.
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

    /// Id and hash of the newest event: what shows later that nothing was cut off the end of the history.
    #[must_use]
    pub fn head(&self) -> (i64, &str) {
        (self.head.0, &self.head.1)
    }

    /// Closes the file so that a plain `sqlite3` of a group member reads it: without a WAL, which only a writer could
    /// recover. Where somebody has it open at this moment the WAL stays, and is no obstacle, for its files are there.
    pub async fn close(mut self) -> Result<(), StoreError> {
        let closed = match sqlx::query("PRAGMA journal_mode = DELETE").execute(&mut self.connection).await {
            Err(error) if code(&error) != Some(BUSY) => Err(error.into()),
            _ => self.connection.close().await.map_err(StoreError::from),
        };
        // On a disk that takes no writes the WAL stays; the next process that opens the ledger finds what is in it.
        closed.or_else(|error| if error.is_of_the_disk() { Ok(()) } else { Err(error) })
    }
}

/// What the daemon knows of a cycle when it is done.
#[derive(Debug, Clone, PartialEq)]
pub struct CycleEnd {
    /// When it began.
    pub began: Timestamp,
    /// When it ended.
    pub ended: Timestamp,
    /// What set it off.
    pub trigger: String,
    /// What each source answered.
    pub sources: std::collections::BTreeMap<String, crate::ledger::SourceState>,
    /// What came of it, as JSON.
    pub report: serde_json::Value,
    /// What is kept of that when another cycle has ended; `None`: all.
    pub shorter: Option<serde_json::Value>,
}

/// The file, whole and with the schema of this version.
async fn writable(path: &Path) -> Result<SqliteConnection, StoreError> {
    let mut connection = disk::connect(path).await.map_err(damaged)?;
    match make_ready(&mut connection).await {
        Ok(()) => Ok(connection),
        Err(error) => {
            // Awaited, because the caller then moves the file, or opens it again.
            let _ = connection.close().await;
            Err(error)
        }
    }
}

async fn make_ready(connection: &mut SqliteConnection) -> Result<(), StoreError> {
    check(connection).await?;
    sqlx::migrate!("./migrations").run(&mut *connection).await?;
    Ok(write::draw_id(connection).await?)
}

async fn check(connection: &mut SqliteConnection) -> Result<(), StoreError> {
    let verdict: String = sqlx::query_scalar("PRAGMA quick_check(1)").fetch_one(connection).await.map_err(damaged)?;
    if verdict == "ok" { Ok(()) } else { Err(StoreError::Corrupt(verdict)) }
}

/// The state folder, readable by the group whatever the umask is. One that is there stays as it is.
fn make_folder(path: &Path) -> Result<(), StoreError> {
    let failed = |source| StoreError::File { path: path.to_owned(), source };
    if path.is_dir() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o750).create(path).map_err(failed)?;
    fs::set_permissions(path, Permissions::from_mode(0o750)).map_err(failed)
}

/// The ledger's file, readable by the group whatever the umask is. SQLite gives its own files the mode of this one.
fn make_file(path: &Path) -> Result<(), StoreError> {
    let failed = |source| StoreError::File { path: path.to_owned(), source };
    match OpenOptions::new().create_new(true).write(true).mode(0o640).open(path) {
        Ok(file) => file.set_permissions(Permissions::from_mode(0o640)).map_err(failed),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(failed(error)),
    }
}

/// The path of what SQLite puts beside a ledger: `-wal`, `-shm`, `-journal`.
fn with(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

/// How long a lock that somebody else holds is waited for.
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

/// An error, and whether it says that the file is not whole.
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
