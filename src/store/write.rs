//! Writes the ledger: a batch of changes with the events that describe them, or the row of a cycle. Each write is one
//! transaction. After the commit, the same changes are applied in memory.

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use sqlx::{Connection as _, SqliteConnection};

use super::batch::Batch;
use super::table::{ROWS_AT_A_TIME, array, row};
use super::{CycleEnd, CycleLock, Store, StoreError};
use crate::ledger::chain;
use crate::ledger::change::{Change, Event};

/// Number of cycles whose rows are kept: one week at one cycle a minute. Without a limit they would grow by a gigabyte
/// a year; the history, which is kept forever, already records every change.
const CYCLES_KEPT: i64 = 10_000;
/// How long an expired certificate or token is remembered with its fingerprint, account and times. Two years, because
/// audit events are rarely examined later.
const ENDED_KEPT: SignedDuration = SignedDuration::from_hours(2 * 365 * 24);
/// How long the use of a limit is remembered. Limits look back a day; the rest allows for a clock that is set forward
/// and back again.
const SPENT_KEPT: SignedDuration = SignedDuration::from_hours(7 * 24);

/// Gives a new ledger its id, from SQLite's random numbers, which the kernel seeds. An existing id stays.
pub async fn draw_id(connection: &mut SqliteConnection) -> sqlx::Result<()> {
    sqlx::query("INSERT INTO ledger (one, id) VALUES (1, lower(hex(randomblob(16)))) ON CONFLICT (one) DO NOTHING")
        .execute(connection)
        .await
        .map(drop)
}

impl Store {
    /// Writes the changes and the events that describe them in one transaction, and then applies the changes in memory.
    /// If only sources changed and there are no events, nothing is written to the file.
    pub async fn write(
        &mut self,
        _lock: &CycleLock,
        changes: &[Change],
        events: &[Event],
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let in_memory_only = changes.iter().all(|change| matches!(change, Change::Sources(_)));
        if in_memory_only && events.is_empty() {
            for change in changes {
                self.state.apply(change);
            }
            return Ok(());
        }
        self.must_not_be_stuck()?;
        let batch = Batch::of(&self.state, changes, now);
        let mut head = self.head.clone();
        let written = write(&mut self.connection, batch, &mut head, events, now).await;
        self.took(written)?;
        self.head = head;
        for change in changes {
            self.state.apply(change);
        }
        Ok(())
    }

    /// Applies only what the sources answered, and only in memory, so that `status` still shows it while the ledger
    /// cannot be written.
    pub fn hear(&mut self, changes: &[Change]) {
        changes
            .iter()
            .filter(|change| matches!(change, Change::Sources(_)))
            .for_each(|change| self.state.apply(change));
    }

    /// Writes the row of a cycle and applies its sources in memory. Returns the cycle's number.
    pub async fn finish(&mut self, _lock: &CycleLock, end: CycleEnd) -> Result<i64, StoreError> {
        let id = self.last_cycle + 1;
        let forgotten = end.ended.saturating_sub(SPENT_KEPT).unwrap_or(Timestamp::MIN);
        self.must_not_be_stuck()?;
        let day = end.ended.to_zoned(TimeZone::UTC).date();
        let reduces_ended = self.reduced_on != Some(day);
        let reduce = Reduce { older: self.last_report.take(), ended: reduces_ended };
        let written = write_cycle(&mut self.connection, id, &end, forgotten, reduce).await;
        self.took(written)?;
        self.reduced_on = Some(day);
        self.last_report = end.shorter.map(|report| report.to_string());
        self.last_cycle = id;
        if reduces_ended {
            let forgotten = no_longer_kept(end.ended);
            self.state.unknown_certificates.retain(|_, unknown| unknown.not_after >= forgotten);
        }
        self.state.spent.retain(|spent| spent.at >= forgotten);
        self.state.approvals.retain(|_, until| *until > end.ended);
        self.state.sources = end.sources;
        Ok(id)
    }

    /// The number of the cycle that is running or begins next.
    #[must_use]
    pub const fn next_cycle(&self) -> i64 {
        self.last_cycle + 1
    }
}

async fn write(
    connection: &mut SqliteConnection,
    batch: Batch<'_>,
    head: &mut (i64, String),
    events: &[Event],
    now: Timestamp,
) -> sqlx::Result<()> {
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    sqlx::query("PRAGMA defer_foreign_keys = ON").execute(&mut *transaction).await?;
    batch.write(&mut transaction).await?;
    write_events(&mut transaction, head, events, now).await?;
    transaction.commit().await
}

/// Writes the row of a cycle. Deletes expired approvals, uses of limits that no limit looks back to, and the oldest
/// cycles.
async fn write_cycle(
    connection: &mut SqliteConnection,
    id: i64,
    end: &CycleEnd,
    forgotten: Timestamp,
    reduce: Reduce,
) -> sqlx::Result<()> {
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    if reduce.ended {
        reduce_ended(&mut transaction, end.ended).await?;
    }
    if let Some(report) = reduce.older {
        sqlx::query("UPDATE cycle SET report = ? WHERE id = ?")
            .bind(report)
            .bind(id - 1)
            .execute(&mut *transaction)
            .await?;
    }
    sqlx::query("INSERT INTO cycle (id, began, ended, trigger, sources, report) VALUES (?, ?, ?, ?, ?, ?)")
        .bind(id)
        .bind(format!("{:.0}", end.began))
        .bind(format!("{:.0}", end.ended))
        .bind(&end.trigger)
        .bind(row(&end.sources).to_string())
        .bind(end.report.to_string())
        .execute(&mut *transaction)
        .await?;
    sqlx::query("DELETE FROM cycle WHERE id <= ?").bind(id - CYCLES_KEPT).execute(&mut *transaction).await?;
    for (statement, before) in
        [("DELETE FROM spent WHERE at < ?", forgotten), ("DELETE FROM approval WHERE until <= ?", end.ended)]
    {
        sqlx::query(statement).bind(format!("{before:.0}")).execute(&mut *transaction).await?;
    }
    transaction.commit().await
}

/// What is shortened at the end of a cycle.
struct Reduce {
    /// The shorter report of the previous cycle.
    older: Option<String>,
    /// Whether the rows of expired certificates and tokens are reduced.
    ended: bool,
}

/// Returns the time before which a certificate must have expired to be forgotten at `now`.
fn no_longer_kept(now: Timestamp) -> Timestamp {
    now.saturating_sub(ENDED_KEPT).unwrap_or(Timestamp::MIN)
}

/// Reduces replaced certificates and tokens that have expired to the columns that `bursar certs who` shows, and deletes
/// the oldest ones.
async fn reduce_ended(connection: &mut SqliteConnection, now: Timestamp) -> sqlx::Result<()> {
    let forgotten = no_longer_kept(now);
    for (statement, before) in [
        ("DELETE FROM certificate WHERE newest = 0 AND not_after < ?", forgotten),
        ("DELETE FROM unknown_certificate WHERE not_after < ?", forgotten),
        (
            "UPDATE certificate SET cluster = '', host = '', subject = '', renew_after = not_after, bound_to = NULL
             WHERE newest = 0 AND not_after < ? AND subject <> ''",
            now,
        ),
    ] {
        sqlx::query(statement).bind(format!("{before:.0}")).execute(&mut *connection).await?;
    }
    Ok(())
}

async fn write_events(
    connection: &mut SqliteConnection,
    head: &mut (i64, String),
    events: &[Event],
    now: Timestamp,
) -> sqlx::Result<()> {
    let at = format!("{now:.0}");
    // The rows of all events of a large change would need too much memory.
    for some in events.chunks(ROWS_AT_A_TIME) {
        let rows = some.iter().map(|event| {
            let id = head.0 + 1;
            let hash = chain::hash(&head.1, id, &at, event);
            let previous = std::mem::replace(head, (id, hash.clone())).1;
            let Event { actor, account, account_id, action, reason, ticket, plan, detail } = event;
            let row = json!({
                "id": id, "at": at, "actor": actor, "account": account, "account_id": account_id, "action": action,
                "reason": reason, "ticket": ticket, "plan": plan, "detail": detail.text(), "previous": previous,
                "hash": hash,
            });
            row.to_string().into_boxed_str()
        });
        let rows: Vec<Box<str>> = rows.collect();
        sqlx::query(
            "INSERT INTO event (id, at, actor, account, account_id, action, reason, ticket, plan, detail, previous,
                                hash)
             SELECT value ->> 'id', value ->> 'at', value ->> 'actor', value ->> 'account', value ->> 'account_id',
                    value ->> 'action', value ->> 'reason', value ->> 'ticket', value ->> 'plan', value ->> 'detail',
                    value ->> 'previous', value ->> 'hash'
             FROM json_each(?1)",
        )
        .bind(array(&rows))
        .execute(&mut *connection)
        .await?;
    }
    Ok(())
}
