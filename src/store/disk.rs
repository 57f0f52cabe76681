//! A disk that is full, failing or read-only: the ledger that lies on it can be read and not written. That is a
//! state of the store, which tries again when asked, and does not end the process that holds it.

use std::path::Path;

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions as _, Connection as _};

use super::{BUSY, BUSY_FOR, CycleLock, FILE, Store, StoreError, code, write};

/// What must be free on the ledger's disk before anything is begun, in bytes. A record is a few kilobytes, and those of
/// the accounts that are under way at a time (32 a cluster) are below one megabyte; the rest is for the WAL's growth
/// between two checkpoints (4 MB) and for other programs that write there meanwhile. With less, something could be done
/// to a cluster and then not be remembered.
pub const RESERVE: u64 = 16 << 20;

// SQLite's primary result codes (sqlite.org/rescode.html) of what is the disk's fault, and not the statement's.
const LOCKED: u32 = 6;
const READ_ONLY: u32 = 8;
const IO: u32 = 10;
const FULL: u32 = 13;
const CANNOT_OPEN: u32 = 14;

impl StoreError {
    /// Whether only writing fails, and may work again without anybody touching Bursar.
    #[must_use]
    pub fn is_of_the_disk(&self) -> bool {
        let of_the_disk =
            |error: &sqlx::Error| matches!(code(error), Some(BUSY | LOCKED | READ_ONLY | IO | FULL | CANNOT_OPEN));
        match self {
            Self::Room { .. } | Self::Stuck => true,
            Self::Sqlite(error) | Self::Migrate(sqlx::migrate::MigrateError::Execute(error)) => of_the_disk(error),
            _ => false,
        }
    }
}

impl Store {
    /// Whether the last write failed. Memory is then as it was before it, and nothing more is written until
    /// [`Store::recover`] went well.
    #[must_use]
    pub const fn is_stuck(&self) -> bool {
        self.stuck
    }

    /// Whether there is room to remember what a cycle does.
    pub fn has_room(&self) -> Result<(), StoreError> {
        room(&self.path, RESERVE)
    }

    /// Proves that the ledger takes a write now, by one that changes nothing.
    pub async fn prove(&mut self, _lock: &CycleLock) -> Result<(), StoreError> {
        self.must_not_be_stuck()?;
        let proved = prove(&mut self.connection).await;
        self.took(proved)
    }

    /// Opens the file again after a write failed, and loads it: only the file knows whether what failed is in it after
    /// all.
    pub async fn recover(&mut self, _lock: &CycleLock) -> Result<(), StoreError> {
        self.has_room()?;
        let mut connection = connect(&self.path.join(FILE)).await?;
        sqlx::migrate!("./migrations").run(&mut connection).await?;
        write::draw_id(&mut connection).await?;
        prove(&mut connection).await?;
        let anew = Self::of(&self.path, connection, false).await?;
        // The old one holds nothing that is not in the file.
        let _ = std::mem::replace(self, anew).connection.close().await;
        Ok(())
    }

    pub(super) fn must_not_be_stuck(&self) -> Result<(), StoreError> {
        if self.stuck { Err(StoreError::Stuck) } else { Ok(()) }
    }

    /// Notes whether a write went through.
    pub(super) fn took<T>(&mut self, written: sqlx::Result<T>) -> Result<T, StoreError> {
        self.stuck |= written.is_err();
        Ok(written?)
    }
}

/// A connection of the one writer.
pub(super) async fn connect(path: &Path) -> sqlx::Result<SqliteConnection> {
    SqliteConnectOptions::new()
        .filename(path)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true)
        // What a long read made of the WAL is given back when the WAL starts again, and not only when the daemon stops.
        .pragma("journal_size_limit", "4194304")
        .busy_timeout(BUSY_FOR)
        .connect()
        .await
}

/// Whether so many bytes are free for user `bursar` where `path` is.
pub(super) fn room(path: &Path, needed: u64) -> Result<(), StoreError> {
    let found = rustix::fs::statvfs(path);
    let found = found.map_err(|errno| StoreError::File { path: path.to_owned(), source: errno.into() })?;
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    if free >= needed {
        return Ok(());
    }
    Err(StoreError::Room { path: path.to_owned(), free: free >> 20, needed: needed.div_ceil(1 << 20) })
}

/// An UPDATE to what stands there still writes its page.
async fn prove(connection: &mut SqliteConnection) -> sqlx::Result<()> {
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    sqlx::query("UPDATE ledger SET last_generation = last_generation").execute(&mut *transaction).await?;
    transaction.commit().await
}
