//! The ledger in SQLite: the rows of [`LedgerState`], written only together with it. One writer, who holds the
//! [`CycleLock`]; readers open the file read-only, also while the daemon runs.

mod load;
mod lock;
mod read;
mod record;
mod table;
mod write;

use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions as _, Connection as _};

pub use lock::CycleLock;
pub use read::ReadStore;

use super::LedgerState;

/// The ledger's file in the state folder.
pub const FILE: &str = "ledger.db";

/// What can go wrong with the ledger.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Somebody else writes.
    #[error("another process holds the ledger's lock: bursard runs, or a `bursar` that changes something")]
    Busy,
    /// A file or folder cannot be used.
    #[error("{path}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The file is not as SQLite left it.
    #[error("the ledger is damaged ({0}). Stop bursard, move ledger.db aside and run: bursar ledger restore BACKUP")]
    Corrupt(String),
    /// SQLite refused.
    #[error("the ledger")]
    Sqlite(#[from] sqlx::Error),
    /// The schema could not be brought up to date.
    #[error("the ledger's schema")]
    Migrate(#[from] sqlx::migrate::MigrateError),
    /// A row does not parse: somebody wrote to the file, or a newer Bursar did.
    #[error("a row of table {table} does not parse")]
    Row {
        /// Of which table.
        table: &'static str,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
}

/// The open ledger of the one writer.
#[derive(Debug)]
pub struct Store {
    connection: SqliteConnection,
    state: LedgerState,
    /// Id and hash of the newest event.
    head: (i64, String),
    /// The newest cycle.
    last_cycle: i64,
}

impl Store {
    /// Opens the ledger in `state_dir`, and makes it (folder 0750, file 0640) where there is none.
    ///
    /// # Errors
    /// [`StoreError::Busy`] if another process writes, [`StoreError::Corrupt`] if the file is damaged.
    pub async fn open(state_dir: &Path) -> Result<(Self, CycleLock), StoreError> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o750)
            .create(state_dir)
            .map_err(|source| StoreError::File { path: state_dir.to_owned(), source })?;
        let lock = CycleLock::take(state_dir)?;
        let path = state_dir.join(FILE);
        // SQLite gives its own files the mode of this one.
        OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o640)
            .open(&path)
            .map_err(|source| StoreError::File { path: path.clone(), source })?;
        let mut connection = SqliteConnectOptions::new()
            .filename(&path)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .busy_timeout(Duration::from_secs(5))
            .connect()
            .await
            .map_err(damaged)?;
        check(&mut connection).await?;
        sqlx::migrate!("./migrations").run(&mut connection).await?;
        write::draw_id(&mut connection).await?;
        let loaded = load::state(&mut connection).await?;
        let head = load::head(&mut connection).await?;
        let last_cycle = load::last_cycle(&mut connection).await?;
        Ok((Self { connection, state: loaded, head, last_cycle }, lock))
    }

    /// The ledger's content.
    #[must_use]
    pub const fn state(&self) -> &LedgerState {
        &self.state
    }

    /// Closes the file so that a plain `sqlite3` of a group member reads it: without a WAL, which only a writer could
    /// recover. While somebody reads, the WAL stays, and so does what it takes to read it.
    pub async fn close(mut self) -> Result<(), StoreError> {
        match sqlx::query("PRAGMA journal_mode = DELETE").execute(&mut self.connection).await {
            Err(error) if !is_busy(&error) => return Err(error.into()),
            _ => {}
        }
        self.connection.close().await?;
        Ok(())
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
    pub sources: std::collections::BTreeMap<String, super::SourceState>,
    /// What came of it, as JSON.
    pub report: serde_json::Value,
}

async fn check(connection: &mut SqliteConnection) -> Result<(), StoreError> {
    let verdict: String = sqlx::query_scalar("PRAGMA quick_check(1)").fetch_one(connection).await.map_err(damaged)?;
    if verdict == "ok" { Ok(()) } else { Err(StoreError::Corrupt(verdict)) }
}

/// `SQLITE_BUSY`, 5, and its extended codes.
fn is_busy(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code().and_then(|code| code.parse::<u32>().ok()));
    code.is_some_and(|code| code & 0xff == 5)
}

/// SQLite's own words for a file that is no database (`SQLITE_NOTADB`, 26) or not whole (`SQLITE_CORRUPT`, 11).
fn damaged(error: sqlx::Error) -> StoreError {
    let code = error.as_database_error().and_then(|error| error.code().map(std::borrow::Cow::into_owned));
    match code.as_deref() {
        Some("11" | "26") => StoreError::Corrupt(error.to_string()),
        _ => StoreError::Sqlite(error),
    }
}

#[cfg(test)]
mod tests;
