//! Handles a disk that is full, failing or read-only. The store then keeps serving reads and refuses writes, and the
//! daemon goes on running and tries to recover the store.

use std::path::Path;

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions as _, Connection as _};

use super::{BUSY, BUSY_FOR, CycleLock, EMPTY, FILE, MIGRATIONS, Store, StoreError, code, has_content, write};

/// Free space in bytes that the ledger's disk must have before a cycle begins. With less, a change to a cluster could
/// be made and then not be recorded. A record takes a few kilobytes, and the records of all accounts in progress (32
/// per cluster) less than one megabyte; the rest is for the growth of the WAL between two checkpoints (4 MB) and for
/// other programs that write to the disk.
pub const RESERVE: u64 = 16 << 20;

// SQLite's primary result codes (sqlite.org/rescode.html) of errors that the disk causes, and not the statement.
const LOCKED: u32 = 6;
const READ_ONLY: u32 = 8;
const IO: u32 = 10;
const FULL: u32 = 13;
const CANNOT_OPEN: u32 = 14;

impl StoreError {
    /// Whether only writing fails, and a retry may succeed without any change to Bursar.
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
    /// Whether the last write failed. Memory is then as it was before that write, and nothing more is written until
    /// [`Store::recover`] succeeds.
    #[must_use]
    pub const fn is_stuck(&self) -> bool {
        self.stuck
    }

    /// Fails if the disk has too little free space to record the changes of a cycle.
    pub fn has_room(&self) -> Result<(), StoreError> {
        room(&self.path, RESERVE)
    }

    /// Proves that the ledger can be written now, with an update that changes no value.
    pub async fn prove(&mut self, _lock: &CycleLock) -> Result<(), StoreError> {
        self.must_not_be_stuck()?;
        let proved = prove(&mut self.connection).await;
        self.took(proved)
    }

    /// Opens and loads the file again after a write failed, because only the file tells whether that write was
    /// committed.
    pub async fn recover(&mut self, _lock: &CycleLock) -> Result<(), StoreError> {
        self.has_room()?;
        let path = self.path.join(FILE);
        // Migrations would turn such a file into an empty ledger. A file that is missing may come back with its disk.
        if has_content(&path).is_ok_and(|has| !has) {
            return Err(StoreError::Lost { path, why: EMPTY });
        }
        let mut connection = connect(&path).await?;
        MIGRATIONS.run(&mut connection).await?;
        write::draw_id(&mut connection).await?;
        prove(&mut connection).await?;
        let anew = Self::of(&self.path, connection, false).await?;
        // The old connection holds nothing that is not in the file.
        let _ = std::mem::replace(self, anew).connection.close().await;
        Ok(())
    }

    pub(super) fn must_not_be_stuck(&self) -> Result<(), StoreError> {
        if self.stuck { Err(StoreError::Stuck) } else { Ok(()) }
    }

    /// Remembers whether a write failed.
    pub(super) fn took<T>(&mut self, written: sqlx::Result<T>) -> Result<T, StoreError> {
        self.stuck |= written.is_err();
        Ok(written?)
    }
}

/// Opens a connection for the only writer.
pub(super) async fn connect(path: &Path) -> sqlx::Result<SqliteConnection> {
    SqliteConnectOptions::new()
        .filename(path)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true)
        // A long read makes the WAL grow. The limit shrinks the file when the WAL starts again, not only when the
        // daemon stops.
        .pragma("journal_size_limit", "4194304")
        .busy_timeout(BUSY_FOR)
        .connect()
        .await
}

/// Fails unless user `bursar` can use `needed` more bytes on the disk of `path`.
pub(super) fn room(path: &Path, needed: u64) -> Result<(), StoreError> {
    let found = rustix::fs::statvfs(path);
    let found = found.map_err(|errno| StoreError::File { path: path.to_owned(), source: errno.into() })?;
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    if free >= needed {
        return Ok(());
    }
    Err(StoreError::Room { path: path.to_owned(), free: free >> 20, needed: needed.div_ceil(1 << 20) })
}

/// An UPDATE that sets the same value still writes its page.
async fn prove(connection: &mut SqliteConnection) -> sqlx::Result<()> {
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    sqlx::query("UPDATE ledger SET last_generation = last_generation").execute(&mut *transaction).await?;
    transaction.commit().await
}
