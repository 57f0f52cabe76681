//! Turns ledger changes into rows, and writes them with a few statements per table, however many changes there are.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::json;
use sqlx::SqliteConnection;

use super::interval::Intervals;
use super::record::{
    ACCOUNT, ADOPTED_NAMESPACE, APPROVAL, ARCHIVE, AccountRow, AdoptedRow, ApprovalRow, ArchiveRow, BULK_REVOCATION,
    CERTIFICATE, CLUSTER_MARK, CertificateRow, ClusterMarkRow, DELIVERY, DOUBT, DoubtRow, EXCEPTION, ExceptionRow,
    FAILURE, HOLD, HOMES_SHOWN, HoldRow, HomesRow, IDLENESS, InCluster, KeyColumns, LAST_USE, MarkRow, OBJECT, ORDER,
    ObjectRow, OfAccount, OfCredential, OrderRow, OverrideRow, Own, PACE, PERSON, PaceRow, PersonRow, QUOTA_OVERRIDE,
    REALM_ACCOUNT, REFUSAL, REJECTED_ENTRY, REQUESTED, RealmRow, Requested, RevocationRow, SETTLED, SOURCE_MARK, SPENT,
    SSH_DELIVERY, STOPPED_WORKLOAD, StoppedRow, TENANT, UID_HISTORY, UNKNOWN_CERTIFICATE, USED_UID, UidRow, UnknownRow,
    UseRow, UsedUidRow, doubt_key,
};
use super::table::{ROWS_AT_A_TIME, Rows, Table, arrays, row};
use crate::identity::{AccountId, ClusterName};
use crate::ledger::change::Change;
use crate::ledger::{Account, Certificate, CredentialKey, LedgerState, Spent, StoppedWorkload};
use crate::packed_text::DigestText;

/// The rows of one transaction, table by table.
pub struct Batch<'a> {
    /// The last value of each changed account. Accounts are most of a bootstrap, so their rows are made at the time of
    /// the write, a part at a time.
    accounts: BTreeMap<&'a AccountId, &'a Account>,
    rows: BTreeMap<&'static str, Rows>,
    intervals: Intervals,
    /// The fingerprint of the newest certificate of each credential; `None` if it no longer has one.
    newest: BTreeMap<CredentialKey, Option<DigestText>>,
    /// Tables of which every row is deleted before the new rows are written.
    replaced: Vec<&'static Table>,
    last_generation: Option<u64>,
    ledger_id: Option<String>,
    learned_at: Option<Timestamp>,
    now: Timestamp,
}

impl<'a> Batch<'a> {
    /// Returns the rows that `changes` write to a ledger file that holds `state`.
    pub fn of(state: &LedgerState, changes: &'a [Change], now: Timestamp) -> Self {
        let mut batch = Self {
            accounts: BTreeMap::new(),
            rows: BTreeMap::new(),
            intervals: Intervals::default(),
            newest: BTreeMap::new(),
            replaced: Vec::new(),
            last_generation: None,
            ledger_id: None,
            learned_at: None,
            now,
        };
        // If `changes` sets an account several times, only the last value is written. Its intervals are computed from
        // the difference between that value and `state`.
        for change in changes {
            match change {
                Change::Account(account) => {
                    batch.accounts.insert(&account.id, account);
                }
                other => batch.add(other),
            }
        }
        for (id, account) in &batch.accounts {
            batch.intervals.add(state.accounts.get(id), account);
        }
        batch
    }

    #[expect(clippy::needless_pass_by_value, reason = "each caller makes the row for this call")]
    fn set(&mut self, table: &'static Table, row: serde_json::Value, keep: bool) {
        self.rows.entry(table.name).or_insert_with(|| Rows::of(table)).set(&row, keep);
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
            Change::UsedUid(uid, at) => self.set(&USED_UID, row(&UsedUidRow { uid, at }), true),
            Change::Person(account_id, value) => self.set(&PERSON, row(&PersonRow { account_id, value }), true),
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
                self.set(&SPENT, row(&Spent { spending, class, amount, at }), true);
            }
            Change::Object(key, record) => match record {
                Some(record) => self.set(&OBJECT, row(&ObjectRow { key: key.into(), record }), true),
                None => self.set(&OBJECT, row(&KeyColumns::from(key)), false),
            },
            Change::Certificate(key, certificate) => self.add_certificate(key, certificate),
            Change::Delivery(key, Some(value)) => self.set(&DELIVERY, row(&OfCredential { key, value }), true),
            Change::Delivery(key, None) => self.set(&DELIVERY, row(&key), false),
            Change::Requested(key, Some(public_key)) => {
                self.set(&REQUESTED, row(&OfCredential { key, value: Requested { public_key } }), true);
            }
            Change::Requested(key, None) => self.set(&REQUESTED, row(&key), false),
            Change::UnknownCertificate(cluster, fingerprint, value) => {
                self.set(&UNKNOWN_CERTIFICATE, row(&UnknownRow { cluster, fingerprint, value }), true);
            }
            Change::SshDelivery(account_id, Some(value)) => {
                self.set(&SSH_DELIVERY, row(&OfAccount { account_id, value }), true);
            }
            Change::SshDelivery(account_id, None) => self.set(&SSH_DELIVERY, json!({"account_id": account_id}), false),
            Change::Stopped(account_id, key, stopped) => {
                let keep = stopped.is_some();
                let stopped = stopped.unwrap_or(StoppedWorkload { uid: String::new(), replicas: None, at: self.now });
                self.set(&STOPPED_WORKLOAD, row(&StoppedRow { account_id, key: key.into(), stopped }), keep);
            }
            Change::Archive(file, archive) => self.set(&ARCHIVE, row(&ArchiveRow { file, archive }), true),
            Change::RealmAccount(account_id, realm, user) => {
                self.set(&REALM_ACCOUNT, row(&RealmRow { account_id, realm, user }), true);
            }
            Change::Failure(account, cluster, failure) => self.set_in_cluster(&FAILURE, account, cluster, failure),
            Change::Settled(account, cluster, own) => {
                self.set_in_cluster(&SETTLED, account, cluster, Some(Own { own }));
            }
            Change::Override(key, given) => {
                let keep = given.is_some();
                self.set(&QUOTA_OVERRIDE, row(&OverrideRow::new(key, given)), keep);
            }
            Change::Exception(key, given) => {
                let keep = given.is_some();
                self.set(&EXCEPTION, row(&ExceptionRow::new(key, given)), keep);
            }
            Change::Pace(class, Some(pace)) => self.set(&PACE, row(&PaceRow::new(class, pace)), true),
            Change::Pace(class, None) => self.set(&PACE, json!({"class": class}), false),
            Change::Idle(account, cluster, idle) => self.set_in_cluster(&IDLENESS, account, cluster, idle),
            Change::Adopted(cluster, namespace, Some(value)) => {
                self.set(&ADOPTED_NAMESPACE, row(&AdoptedRow { cluster, namespace, value }), true);
            }
            Change::Adopted(cluster, namespace, None) => {
                self.set(&ADOPTED_NAMESPACE, json!({"cluster": cluster, "namespace": namespace}), false);
            }
            Change::Used(account_id, at) => self.set(&LAST_USE, row(&UseRow { account_id, at }), true),
            Change::Revocation(class, Some(revocation)) => {
                self.set(&BULK_REVOCATION, row(&RevocationRow { class, revocation }), true);
            }
            Change::Revocation(class, None) => self.set(&BULK_REVOCATION, json!({"class": class}), false),
            Change::LedgerId(id) => {
                self.replace(&CLUSTER_MARK, std::iter::empty());
                self.ledger_id = Some(id);
            }
            Change::Learned(at) => self.learned_at = Some(at),
            Change::LastGeneration(generation) => self.last_generation = Some(generation),
            Change::ClusterMark(cluster, generation) => {
                self.set(&CLUSTER_MARK, row(&ClusterMarkRow { cluster, generation }), true);
            }
            Change::SourceMark(source, Some(mark)) => self.set(&SOURCE_MARK, row(&MarkRow::new(source, mark)), true),
            Change::SourceMark(source, None) => self.set(&SOURCE_MARK, json!({"source": source}), false),
            Change::Doubt(key, Some(doubt)) => self.set(&DOUBT, row(&DoubtRow::new(key, doubt)), true),
            Change::Doubt(key, None) => self.set(&DOUBT, doubt_key(&key), false),
            Change::HomesShown(source, kind, accounts) => {
                self.set(&HOMES_SHOWN, row(&HomesRow { source, kind, accounts }), true);
            }
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

    /// Keeps every certificate, because an administrator may still ask who held it. At most one row
    /// of each credential (account, cluster, host) is marked as the newest.
    fn add_certificate(&mut self, key: CredentialKey, value: Option<Certificate>) {
        let fingerprint = value.as_ref().map(|certificate| certificate.fingerprint.clone());
        self.newest.insert(key.clone(), fingerprint);
        if let Some(value) = value {
            let certificate = OfCredential { key, value };
            self.set(&CERTIFICATE, row(&CertificateRow { certificate, newest: 0 }), true);
        }
    }

    /// Writes the batch within the caller's transaction.
    pub async fn write(self, connection: &mut SqliteConnection) -> sqlx::Result<()> {
        for table in self.replaced {
            let statement = format!("DELETE FROM {}", table.name);
            sqlx::query(sqlx::AssertSqlSafe(statement)).execute(&mut *connection).await?;
        }
        let accounts: Vec<&Account> = self.accounts.into_values().collect();
        for some in accounts.chunks(ROWS_AT_A_TIME) {
            let mut rows = Rows::of(&ACCOUNT);
            for account in some {
                rows.set(&row(&AccountRow::from(Account::clone(account))), true);
            }
            rows.write(connection).await?;
        }
        for (_, rows) in self.rows {
            rows.write(connection).await?;
        }
        mark_newest(connection, self.newest).await?;
        self.intervals.write(connection, self.now).await?;
        if let Some(id) = self.ledger_id {
            sqlx::query("UPDATE ledger SET id = ?").bind(id).execute(&mut *connection).await?;
        }
        if let Some(at) = self.learned_at {
            let at = at.to_string();
            sqlx::query("UPDATE ledger SET learned_at = ?").bind(at).execute(&mut *connection).await?;
        }
        if let Some(generation) = self.last_generation {
            let generation = i64::try_from(generation).unwrap_or(i64::MAX);
            sqlx::query("UPDATE ledger SET last_generation = ?").bind(generation).execute(&mut *connection).await?;
        }
        Ok(())
    }
}

async fn mark_newest(
    connection: &mut SqliteConnection,
    newest: BTreeMap<CredentialKey, Option<DigestText>>,
) -> sqlx::Result<()> {
    let row_of = |(key, fingerprint): (&CredentialKey, &Option<DigestText>)| {
        json!([key.account, key.cluster, fingerprint, key.host]).to_string().into_boxed_str()
    };
    let rows: Vec<_> = newest.iter().map(row_of).collect();
    for array in arrays(&rows) {
        sqlx::query(
            "UPDATE certificate SET newest = fingerprint IS given.value ->> 2 FROM json_each(?1) AS given
             WHERE account_id = given.value ->> 0 AND cluster = given.value ->> 1 AND host = given.value ->> 3",
        )
        .bind(array)
        .execute(&mut *connection)
        .await?;
    }
    Ok(())
}
