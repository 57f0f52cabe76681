//! Changes to rows: one transaction for each batch, a handful of statements whatever its size, and the same change in
//! memory when the transaction is through.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde_json::json;
use sqlx::{Connection as _, SqliteConnection};

use super::record::{
    ACCOUNT, ACTIVITY, APPROVAL, AccountRow, ActivityRow, ApprovalRow, CERTIFICATE, CertificateRow, DELIVERY, FAILURE,
    HOLD, HoldRow, InCluster, KeyColumns, OBJECT, ORDER, ObjectRow, OrderRow, REFUSAL, REJECTED_ENTRY, SPENT,
    STOPPED_WORKLOAD, StoppedRow, TENANT, UID_HISTORY, UidRow,
};
use super::table::{Rows, Table, row};
use super::{CycleEnd, CycleLock, Store, StoreError};
use crate::identity::{AccountId, ClusterName, DirectoryId};
use crate::ledger::change::{Change, Event};
use crate::ledger::{Account, Certificate, LedgerState, Lifecycle, chain};

/// The open end of an interval. Text, for `jiff`'s last timestamp is a day before it.
pub const OPEN_END: &str = "9999-12-31T23:59:59Z";

/// Gives a new ledger its id. SQLite's own random numbers come from the kernel.
pub async fn draw_id(connection: &mut SqliteConnection) -> sqlx::Result<()> {
    sqlx::query("INSERT INTO ledger (one, id) VALUES (1, lower(hex(randomblob(16)))) ON CONFLICT (one) DO NOTHING")
        .execute(connection)
        .await
        .map(drop)
}

impl Store {
    /// Makes the changes, and writes the events that tell of them, in one transaction and in memory. Nothing to write
    /// is no transaction.
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
        let batch = Batch::of(&self.state, changes, now);
        let mut head = self.head.clone();
        let mut transaction = self.connection.begin_with("BEGIN IMMEDIATE").await?;
        sqlx::query("PRAGMA defer_foreign_keys = ON").execute(&mut *transaction).await?;
        batch.write(&mut transaction).await?;
        write_events(&mut transaction, &mut head, events, now).await?;
        transaction.commit().await?;
        self.head = head;
        for change in changes {
            self.state.apply(change);
        }
        Ok(())
    }

    /// Ends a cycle: its row, and the sources in memory. Gives the cycle's number.
    pub async fn finish(&mut self, _lock: &CycleLock, end: CycleEnd) -> Result<i64, StoreError> {
        let id = self.last_cycle + 1;
        let sources = row(&end.sources).to_string();
        sqlx::query("INSERT INTO cycle (id, began, ended, trigger, sources, report) VALUES (?, ?, ?, ?, ?, ?)")
            .bind(id)
            .bind(format!("{:.0}", end.began))
            .bind(format!("{:.0}", end.ended))
            .bind(end.trigger)
            .bind(sources)
            .bind(end.report.to_string())
            .execute(&mut self.connection)
            .await?;
        self.last_cycle = id;
        self.state.sources = end.sources;
        Ok(id)
    }

    /// The number of the cycle that is running or about to.
    #[must_use]
    pub const fn next_cycle(&self) -> i64 {
        self.last_cycle + 1
    }
}

async fn write_events(
    connection: &mut SqliteConnection,
    head: &mut (i64, String),
    events: &[Event],
    now: Timestamp,
) -> sqlx::Result<()> {
    let at = format!("{now:.0}");
    let rows: Vec<_> = events
        .iter()
        .map(|event| {
            let id = head.0 + 1;
            let hash = chain::hash(&head.1, id, &at, event);
            let previous = std::mem::replace(head, (id, hash.clone())).1;
            json!({"id": id, "at": at, "event": event, "detail": event.detail.to_string(), "previous": previous, "hash": hash})
        })
        .collect();
    sqlx::query(
        "INSERT INTO event (id, at, actor, account, account_id, action, reason, ticket, plan, detail, previous, hash)
         SELECT value ->> 'id', value ->> 'at', value ->> '$.event.actor', value ->> '$.event.account',
                value ->> '$.event.account_id', value ->> '$.event.action', value ->> '$.event.reason',
                value ->> '$.event.ticket', value ->> '$.event.plan', value ->> 'detail', value ->> 'previous',
                value ->> 'hash'
         FROM json_each(?1)",
    )
    .bind(row(&rows).to_string())
    .execute(connection)
    .await
    .map(drop)
}

/// The rows of one transaction, table by table.
struct Batch {
    rows: BTreeMap<&'static str, Rows>,
    memberships: Memberships,
    /// Fingerprints of the newest certificates.
    newest: BTreeMap<(AccountId, ClusterName), Option<String>>,
    /// Tables whose rows are replaced whole.
    replaced: Vec<&'static Table>,
    last_generation: Option<u64>,
    now: Timestamp,
}

impl Batch {
    fn of(state: &LedgerState, changes: &[Change], now: Timestamp) -> Self {
        let mut batch = Self {
            rows: BTreeMap::new(),
            memberships: Memberships::default(),
            newest: BTreeMap::new(),
            replaced: Vec::new(),
            last_generation: None,
            now,
        };
        // Of several values of one account only the last is written, compared with what the file holds.
        let mut accounts: BTreeMap<&AccountId, &Account> = BTreeMap::new();
        for change in changes {
            match change {
                Change::Account(account) => {
                    accounts.insert(&account.id, account);
                }
                other => batch.add(other),
            }
        }
        for (id, account) in accounts {
            batch.add_account(state.accounts.get(id), account);
        }
        batch
    }

    fn set(&mut self, table: &'static Table, row: serde_json::Value, keep: bool) {
        self.rows.entry(table.name).or_insert_with(|| Rows::of(table)).set(row, keep);
    }

    fn replace(&mut self, table: &'static Table, rows: impl Iterator<Item = serde_json::Value>) {
        self.replaced.push(table);
        self.rows.insert(table.name, Rows::of(table));
        for (place, mut row) in rows.enumerate() {
            row["place"] = place.into();
            self.set(table, row, true);
        }
    }

    fn add(&mut self, change: &Change) {
        match change.clone() {
            Change::Account(_) | Change::Sources(_) => {}
            Change::Uid(uid, account_id) => self.set(&UID_HISTORY, row(&UidRow { uid, account_id }), true),
            Change::Tenant(account, cluster, tenant) => self.set_in_cluster(&TENANT, account, cluster, Some(tenant)),
            Change::Rejected(rejected) => self.replace(&REJECTED_ENTRY, rejected.iter().map(row)),
            Change::Hold(account_id, note) => {
                let keep = note.is_some();
                self.set(&HOLD, row(&HoldRow { account_id, note }), keep);
            }
            Change::Order(order) => self.set(&ORDER, row(&OrderRow::from(order)), true),
            Change::OrderDone(id) => self.set(&ORDER, json!({"id": id}), false),
            Change::Approval(hash, until) => {
                let keep = until.is_some();
                self.set(&APPROVAL, row(&ApprovalRow { hash, until }), keep);
            }
            Change::Refusals(refusals) => self.replace(&REFUSAL, refusals.iter().map(row)),
            Change::Spent(spending, class, amount, at) => {
                self.set(&SPENT, row(&crate::ledger::Spent { spending, class, amount, at }), true);
            }
            Change::Object(key, record) => match record {
                Some(record) => self.set(&OBJECT, row(&ObjectRow { key: key.into(), record }), true),
                None => self.set(&OBJECT, row(&KeyColumns::from(key)), false),
            },
            Change::Certificate(account, cluster, certificate) => {
                self.add_certificate(account, cluster, certificate);
            }
            Change::Delivery(account, cluster, delivery) => self.set_in_cluster(&DELIVERY, account, cluster, delivery),
            Change::Stopped(account_id, key, stopped) => {
                let keep = stopped.is_some();
                let stopped = stopped.unwrap_or(crate::ledger::StoppedWorkload {
                    uid: String::new(),
                    replicas: None,
                    at: self.now,
                });
                self.set(&STOPPED_WORKLOAD, row(&StoppedRow { account_id, key: key.into(), stopped }), keep);
            }
            Change::Failure(account, cluster, failure) => self.set_in_cluster(&FAILURE, account, cluster, failure),
            Change::LastGeneration(generation) => self.last_generation = Some(generation),
        }
    }

    fn set_in_cluster<T: serde::Serialize>(
        &mut self,
        table: &'static Table,
        account_id: AccountId,
        cluster: ClusterName,
        value: Option<T>,
    ) {
        match value {
            Some(value) => self.set(table, row(&InCluster { account_id, cluster, value }), true),
            None => self.set(table, row(&InCluster { account_id, cluster, value: serde_json::Map::new() }), false),
        }
    }

    /// Every certificate stays, for it may still be asked who held it; at most one of an account in a cluster is the
    /// newest.
    fn add_certificate(&mut self, account_id: AccountId, cluster: ClusterName, value: Option<Certificate>) {
        let fingerprint = value.as_ref().map(|certificate| certificate.fingerprint.clone());
        self.newest.insert((account_id.clone(), cluster.clone()), fingerprint);
        if let Some(value) = value {
            let certificate = InCluster { account_id, cluster, value };
            self.set(&CERTIFICATE, row(&CertificateRow { certificate, newest: 0 }), true);
        }
    }

    fn add_account(&mut self, before: Option<&Account>, account: &Account) {
        self.set(&ACCOUNT, row(&AccountRow::from(account.clone())), true);
        let was_active = before.filter(|before| before.state == Lifecycle::Active);
        let is_active = account.state == Lifecycle::Active;
        if let (Some(before), false) = (was_active, is_active) {
            self.set_activity(account, before.since, format!("{:.0}", self.now));
        }
        if is_active {
            // Where it was active already, `since` is the same and so is the row.
            self.set_activity(account, account.since, OPEN_END.to_owned());
        }
        self.add_members(before, account);
    }

    fn set_activity(&mut self, account: &Account, at_start: Timestamp, at_end: String) {
        self.set(&ACTIVITY, row(&ActivityRow { account_id: account.id.clone(), at_start, at_end }), true);
    }

    fn add_members(&mut self, before: Option<&Account>, account: &Account) {
        let known = |of: &Account, member: &DirectoryId| {
            of.members.get(member).map(|role| (*role, of.leaving.contains(member)))
        };
        let members = before.into_iter().flat_map(|before| before.members.keys()).chain(account.members.keys());
        for member in members.collect::<BTreeSet<_>>() {
            let was = before.and_then(|before| known(before, member));
            let is = known(account, member);
            let mut membership = json!({"account_id": account.id, "member": member});
            match (was, is) {
                (Some((old, _)), Some((new, leaving))) if old == new => {
                    membership["leaving"] = u8::from(leaving).into();
                    self.memberships.marked.push(membership);
                }
                (_, Some((role, leaving))) => {
                    membership["role"] = row(&role);
                    membership["leaving"] = u8::from(leaving).into();
                    self.memberships.ended.push(membership.clone());
                    self.memberships.begun.push(membership);
                }
                (_, None) => self.memberships.ended.push(membership),
            }
        }
    }

    async fn write(self, connection: &mut SqliteConnection) -> sqlx::Result<()> {
        for table in self.replaced {
            let statement = format!("DELETE FROM {}", table.name);
            sqlx::query(sqlx::AssertSqlSafe(statement)).execute(&mut *connection).await?;
        }
        for (_, rows) in self.rows {
            rows.write(connection).await?;
        }
        mark_newest(connection, self.newest).await?;
        self.memberships.write(connection, self.now).await?;
        if let Some(generation) = self.last_generation {
            let generation = i64::try_from(generation).unwrap_or(i64::MAX);
            sqlx::query("UPDATE ledger SET last_generation = ?").bind(generation).execute(&mut *connection).await?;
        }
        Ok(())
    }
}

async fn mark_newest(
    connection: &mut SqliteConnection,
    newest: BTreeMap<(AccountId, ClusterName), Option<String>>,
) -> sqlx::Result<()> {
    let rows: Vec<_> =
        newest.iter().map(|((account, cluster), fingerprint)| json!([account, cluster, fingerprint])).collect();
    if rows.is_empty() {
        return Ok(());
    }
    sqlx::query(
        "UPDATE certificate SET newest = fingerprint IS given.value ->> 2 FROM json_each(?1) AS given
         WHERE account_id = given.value ->> 0 AND cluster = given.value ->> 1",
    )
    .bind(row(&rows).to_string())
    .execute(connection)
    .await
    .map(drop)
}

/// Intervals of memberships: memory knows only the open ones, and not when they began.
#[derive(Default)]
struct Memberships {
    ended: Vec<serde_json::Value>,
    begun: Vec<serde_json::Value>,
    marked: Vec<serde_json::Value>,
}

impl Memberships {
    async fn write(self, connection: &mut SqliteConnection, now: Timestamp) -> sqlx::Result<()> {
        const END: &str = "UPDATE membership SET at_end = ?2 FROM json_each(?1) AS given
             WHERE account_id = given.value ->> 'account_id' AND member = given.value ->> 'member' AND at_end = ?3";
        const BEGIN: &str = "INSERT INTO membership (account_id, member, role, leaving, at_start, at_end)
             SELECT value ->> 'account_id', value ->> 'member', value ->> 'role', value ->> 'leaving', ?2, ?3
             FROM json_each(?1) WHERE true
             ON CONFLICT (account_id, member, at_start, role)
             DO UPDATE SET at_end = excluded.at_end, leaving = excluded.leaving";
        const MARK: &str = "UPDATE membership SET leaving = given.value ->> 'leaving' FROM json_each(?1) AS given
             WHERE account_id = given.value ->> 'account_id' AND member = given.value ->> 'member' AND at_end = ?3
               AND ?2 IS NOT NULL";
        for (statement, rows) in [(END, self.ended), (BEGIN, self.begun), (MARK, self.marked)] {
            if rows.is_empty() {
                continue;
            }
            sqlx::query(statement)
                .bind(row(&rows).to_string())
                .bind(format!("{now:.0}"))
                .bind(OPEN_END)
                .execute(&mut *connection)
                .await?;
        }
        Ok(())
    }
}
