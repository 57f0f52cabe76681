//! Queries over the views of the ledger, with each row as JSON. Nothing is written, so every member of group `bursar`
//! can read while the daemon runs.

use std::path::Path;

use serde_json::{Map, Value};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteRow};
use sqlx::{Column as _, ConnectOptions as _, Connection as _, Row as _, SqlSafeStr, TypeInfo as _, ValueRef as _};

use super::{StoreError, Temporary, load};
use crate::identity::AccountId;
use crate::ledger::LedgerState;
use crate::ledger::chain::{self, Broken, GENESIS, Link};
use crate::ledger::change::Event;

/// Number of events that are checked at a time. It limits memory to some megabytes, even for a history of years.
const VERIFIED_AT_ONCE: i64 = 10_000;

/// A ledger open for reading.
#[derive(Debug)]
pub struct ReadStore {
    connection: SqliteConnection,
}

/// Why a history could not be verified.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// An event was changed or is missing.
    #[error(transparent)]
    Broken(#[from] Broken),
    /// The history could not be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl ReadStore {
    /// Opens the file at `path`.
    pub async fn open(path: &Path) -> Result<Self, StoreError> {
        Ok(Self { connection: connect(path).await.map_err(super::damaged)? })
    }

    /// Returns a reader of the schema of this version. An old backup has an earlier schema, and so has the ledger from
    /// an upgrade until the start of the new daemon. In this case, the reader gets a migrated copy, and the file itself
    /// stays as it is.
    pub async fn up_to_date(mut self) -> Result<Self, StoreError> {
        let query = "SELECT max(version) FROM _sqlx_migrations";
        let version: Option<i64> = match sqlx::query_scalar(query).fetch_one(&mut self.connection).await {
            Ok(version) => version,
            Err(error) if super::code(&error) == Some(super::BUSY) => return Err(error.into()),
            // It is not a ledger, and the first query says so.
            Err(_) => return Ok(self),
        };
        if version >= super::MIGRATIONS.iter().map(|migration| migration.version).max() {
            return Ok(self);
        }
        let failed = |source| StoreError::File { path: std::env::temp_dir(), source };
        let folder = Temporary::new().map_err(failed)?;
        let copy = folder.0.join(super::FILE);
        self.copy_into(&copy).await?;
        self.close().await;
        // The folder is removed when this function returns. The open file stays readable until it is closed.
        let mut connection = SqliteConnectOptions::new().filename(&copy).connect().await?;
        super::MIGRATIONS.run(&mut connection).await?;
        Ok(Self { connection })
    }

    /// Closes the file and waits until it is closed.
    pub(super) async fn close(self) {
        // A reader has nothing to write, so a failure loses nothing.
        let _ = self.connection.close().await;
    }

    /// Returns the rows of a SELECT, with the columns in its order.
    pub async fn rows(
        &mut self,
        query: impl SqlSafeStr,
        binds: &[String],
    ) -> Result<Vec<Map<String, Value>>, StoreError> {
        let query = binds.iter().fold(sqlx::query(query), |query, bind| query.bind(bind.clone()));
        let rows = query.fetch_all(&mut self.connection).await?;
        Ok(rows
            .iter()
            .map(|row| {
                row.columns().iter().map(|column| (column.name().to_owned(), value(row, column.ordinal()))).collect()
            })
            .collect())
    }

    /// Makes all later reads show the same moment, until the file is closed.
    pub async fn keep_the_moment(&mut self) -> Result<(), StoreError> {
        sqlx::query("BEGIN").execute(&mut self.connection).await?;
        Ok(())
    }

    /// Loads the whole state as it is at one moment, although the daemon may be writing.
    pub async fn state(&mut self) -> Result<LedgerState, StoreError> {
        let mut moment = self.connection.begin().await?;
        load::state(&mut moment).await
    }

    /// Returns the report of the last cycle; `None` before the first.
    pub async fn last_report(&mut self) -> Result<Option<Value>, StoreError> {
        let text: Option<String> = sqlx::query_scalar("SELECT report FROM cycle ORDER BY id DESC LIMIT 1")
            .fetch_optional(&mut self.connection)
            .await?;
        let report = text.as_deref().map(serde_json::from_str).transpose();
        report.map_err(|source| StoreError::Row { table: "cycle", source })
    }

    /// Checks the integrity of the file, its indexes and its foreign keys.
    pub async fn check(&mut self) -> Result<(), StoreError> {
        let verdict: String = sqlx::query_scalar("PRAGMA integrity_check(1)")
            .fetch_one(&mut self.connection)
            .await
            .map_err(super::damaged)?;
        let stray = sqlx::query("PRAGMA foreign_key_check").fetch_optional(&mut self.connection).await?;
        match stray {
            _ if verdict != "ok" => Err(StoreError::Corrupt(verdict)),
            Some(_) => Err(StoreError::Corrupt("a row refers to a row that does not exist".to_owned())),
            None => Ok(()),
        }
    }

    /// Verifies the whole history, and returns the id and hash of its newest event.
    pub async fn verify(&mut self) -> Result<(i64, String), VerifyError> {
        let mut head = (0, GENESIS.to_owned());
        loop {
            let links = self.links(head.0).await?;
            if links.is_empty() {
                return Ok(head);
            }
            head = chain::verify(head, &links)?;
        }
    }

    /// Writes a copy of the current ledger to `path`, which must not exist yet (`VACUUM INTO`). The daemon may be
    /// running.
    pub async fn copy_into(&mut self, path: &Path) -> Result<(), StoreError> {
        let path = path.to_string_lossy().into_owned();
        sqlx::query("VACUUM INTO ?1").bind(path).execute(&mut self.connection).await?;
        Ok(())
    }

    async fn links(&mut self, after: i64) -> Result<Vec<Link>, VerifyError> {
        let rows = sqlx::query(
            "SELECT id, at, previous, hash, actor, account, account_id, action, reason, ticket, plan, detail
             FROM event WHERE id > ?1 ORDER BY id LIMIT ?2",
        )
        .bind(after)
        .bind(VERIFIED_AT_ONCE)
        .fetch_all(&mut self.connection)
        .await
        .map_err(StoreError::from)?;
        rows.iter().map(link).collect()
    }
}

/// Converts a row into a link of the chain. A row that does not parse was not written by Bursar, so it counts as
/// changed.
fn link(row: &SqliteRow) -> Result<Link, VerifyError> {
    let id: i64 = row.try_get("id").map_err(StoreError::from)?;
    let changed = || VerifyError::from(Broken::Changed(id));
    let text = |column| row.try_get::<String, _>(column).map_err(|_| changed());
    let maybe = |column| row.try_get::<Option<String>, _>(column).map_err(|_| changed());
    let event = Event {
        actor: text("actor")?,
        account: maybe("account")?.map(|name| name.parse().map_err(|_| changed())).transpose()?,
        account_id: maybe("account_id")?.map(|id| AccountId(id.into())),
        action: text("action")?,
        reason: text("reason")?,
        ticket: maybe("ticket")?,
        plan: maybe("plan")?,
        detail: serde_json::from_str(&text("detail")?).map_err(|_| changed())?,
    };
    Ok(Link { id, at: text("at")?, event, previous: text("previous")?, hash: text("hash")? })
}

/// Opens a read-only connection.
pub(super) async fn connect(path: &Path) -> sqlx::Result<SqliteConnection> {
    let options = SqliteConnectOptions::new().filename(path).busy_timeout(super::BUSY_FOR);
    if super::with(path, "-journal").exists() {
        // A writer was killed while it opened or closed the file. If this process may write, this read rolls the
        // unfinished transaction back. Otherwise the read-only connection reports the error.
        let mut writer = options.clone().connect().await?;
        let _ = sqlx::query("SELECT 1 FROM sqlite_schema").fetch_optional(&mut writer).await;
        let _ = writer.close().await;
    }
    options.read_only(true).connect().await
}

fn value(row: &SqliteRow, ordinal: usize) -> Value {
    let Ok(raw) = row.try_get_raw(ordinal) else { return Value::Null };
    if raw.is_null() {
        return Value::Null;
    }
    match raw.type_info().name() {
        "INTEGER" | "BOOLEAN" => row.try_get::<i64, _>(ordinal).map(Value::from),
        "REAL" => row.try_get::<f64, _>(ordinal).map(Value::from),
        _ => row.try_get::<String, _>(ordinal).map(Value::from),
    }
    .unwrap_or_default()
}
