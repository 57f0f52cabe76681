//! Loads the whole state from the rows, once, when the ledger is opened.

use std::collections::{BTreeMap, HashSet};

use serde::de::DeserializeOwned;
use sqlx::SqliteConnection;

use super::StoreError;
use super::record::{
    ACCOUNT, ADOPTED_NAMESPACE, APPROVAL, ARCHIVE, AccountRow, AdoptedRow, ApprovalRow, ArchiveRow, BULK_REVOCATION,
    CERTIFICATE, CLUSTER_MARK, CertificateRow, ClusterMarkRow, DELIVERY, DOUBT, DoubtRow, EXCEPTION, ExceptionRow,
    FAILURE, HOLD, HOMES_SHOWN, HoldRow, HomesRow, IDLENESS, InCluster, LAST_USE, MEMBERSHIP, MarkRow, MembershipRow,
    OBJECT, ORDER, ObjectRow, OfAccount, OfCredential, OrderRow, OverrideRow, Own, PACE, PERSON, PaceRow, PersonRow,
    QUOTA_OVERRIDE, REALM_ACCOUNT, REFUSAL, REJECTED_ENTRY, REQUESTED, RealmRow, Requested, RevocationRow, SETTLED,
    SOURCE_MARK, SPENT, SSH_DELIVERY, STOPPED_WORKLOAD, StoppedRow, TENANT, UID_HISTORY, UNKNOWN_CERTIFICATE, USED_UID,
    UidRow, UnknownRow, UseRow, UsedUidRow,
};
use super::table::Table;
use crate::identity::{AccountId, ClusterName};
use crate::ledger::chain::GENESIS;
use crate::ledger::{Account, CredentialKey, LedgerState, Order, SourceState};
use crate::shared_text::SharedText;

const ALL: &str = "true";

pub async fn state(connection: &mut SqliteConnection) -> Result<LedgerState, StoreError> {
    let (ledger_id, last_generation, learned_at, older_than_rules): (String, i64, Option<String>, bool) =
        sqlx::query_as("SELECT id, last_generation, learned_at, older_than_rules FROM ledger")
            .fetch_one(&mut *connection)
            .await?;
    let mut names = Names::default();
    Ok(LedgerState {
        ledger_id,
        older_than_rules,
        last_generation: last_generation.unsigned_abs(),
        learned_at: learned_at.and_then(|at| at.parse().ok()),
        sources: sources(connection).await?,
        marks: mapped(connection, &SOURCE_MARK, MarkRow::read).await?,
        doubts: DOUBT.load::<DoubtRow>(connection, ALL).await?.into_iter().filter_map(DoubtRow::read).collect(),
        cluster_marks: mapped(connection, &CLUSTER_MARK, |row: ClusterMarkRow| (row.cluster, row.generation)).await?,
        homes_shown: mapped(connection, &HOMES_SHOWN, |row: HomesRow| ((row.source, row.kind), row.accounts)).await?,
        accounts: accounts(connection).await?.into_values().collect(),
        uid_history: mapped(connection, &UID_HISTORY, |row: UidRow| (row.uid, row.account_id)).await?,
        used_uids: mapped(connection, &USED_UID, |row: UsedUidRow| (row.uid, row.at)).await?,
        persons: mapped(connection, &PERSON, |row: PersonRow| (row.account_id, row.value)).await?,
        holds: HOLD
            .load::<HoldRow>(connection, ALL)
            .await?
            .into_iter()
            .filter_map(|row| Some((row.account_id, row.note?)))
            .collect(),
        orders: orders(connection).await?,
        approvals: APPROVAL
            .load::<ApprovalRow>(connection, ALL)
            .await?
            .into_iter()
            .filter_map(|row| Some((row.hash, row.until?)))
            .collect(),
        refusals: REFUSAL.load(connection, "true ORDER BY place").await?,
        spent: SPENT.load(connection, "true ORDER BY rowid").await?,
        tenants: in_clusters(TENANT.load(connection, ALL).await?, &mut names),
        settled: mapped(connection, &SETTLED, |mut row: InCluster<Own>| {
            names.share(&mut row.cluster.0);
            ((row.account_id, row.cluster), row.value.own)
        })
        .await?,
        overrides: QUOTA_OVERRIDE
            .load::<OverrideRow>(connection, ALL)
            .await?
            .into_iter()
            .filter_map(OverrideRow::read)
            .collect(),
        exceptions: EXCEPTION
            .load::<ExceptionRow>(connection, ALL)
            .await?
            .into_iter()
            .filter_map(ExceptionRow::read)
            .collect(),
        paces: PACE.load::<PaceRow>(connection, ALL).await?.into_iter().map(PaceRow::read).collect(),
        idle: in_clusters(IDLENESS.load(connection, ALL).await?, &mut names),
        adopted: mapped(connection, &ADOPTED_NAMESPACE, |row: AdoptedRow| ((row.cluster, row.namespace), row.value))
            .await?,
        last_use: mapped(connection, &LAST_USE, |row: UseRow| (row.account_id, row.at)).await?,
        revocations: mapped(connection, &BULK_REVOCATION, |row: RevocationRow| (row.class, row.revocation)).await?,
        objects: mapped(connection, &OBJECT, |mut row: ObjectRow| {
            row.key.names().into_iter().for_each(|name| names.share(name));
            (row.key.into(), row.record)
        })
        .await?,
        certificates: CERTIFICATE
            .load::<CertificateRow>(connection, "newest = 1")
            .await?
            .into_iter()
            .map(|row| (names.of(row.certificate.key), row.certificate.value))
            .collect(),
        deliveries: mapped(connection, &DELIVERY, |row: OfCredential<_>| (names.of(row.key), row.value)).await?,
        requested: mapped(connection, &REQUESTED, |row: OfCredential<Requested>| (row.key, row.value.public_key))
            .await?,
        unknown_certificates: mapped(connection, &UNKNOWN_CERTIFICATE, |row: UnknownRow| {
            ((row.cluster, row.fingerprint), row.value)
        })
        .await?,
        ssh_deliveries: mapped(connection, &SSH_DELIVERY, |row: OfAccount<_>| (row.account_id, row.value)).await?,
        stopped: mapped(connection, &STOPPED_WORKLOAD, |row: StoppedRow| {
            ((row.account_id, row.key.into()), row.stopped)
        })
        .await?,
        archives: mapped(connection, &ARCHIVE, |row: ArchiveRow| (row.file, row.archive)).await?,
        rejected: REJECTED_ENTRY.load(connection, ALL).await?.into_iter().collect(),
        realm_accounts: mapped(connection, &REALM_ACCOUNT, |row: RealmRow| ((row.account_id, row.realm), row.user))
            .await?,
        failures: in_clusters(FAILURE.load(connection, ALL).await?, &mut names),
    })
}

/// Loads a table and turns each row into an entry of a collection.
async fn mapped<R: DeserializeOwned, T, C: FromIterator<T>>(
    connection: &mut SqliteConnection,
    table: &Table,
    entry: impl FnMut(R) -> T,
) -> Result<C, StoreError> {
    Ok(table.load::<R>(connection, ALL).await?.into_iter().map(entry).collect())
}

/// Id and hash of the newest event.
pub async fn head(connection: &mut SqliteConnection) -> Result<(i64, String), StoreError> {
    let head = sqlx::query_as("SELECT id, hash FROM event ORDER BY id DESC LIMIT 1").fetch_optional(connection).await?;
    Ok(head.unwrap_or_else(|| (0, GENESIS.to_owned())))
}

/// Number of the newest cycle; 0 before the first.
pub async fn last_cycle(connection: &mut SqliteConnection) -> Result<i64, StoreError> {
    Ok(sqlx::query_scalar("SELECT coalesce(max(id), 0) FROM cycle").fetch_one(connection).await?)
}

async fn sources(connection: &mut SqliteConnection) -> Result<BTreeMap<String, SourceState>, StoreError> {
    let text: Option<String> =
        sqlx::query_scalar("SELECT sources FROM cycle ORDER BY id DESC LIMIT 1").fetch_optional(connection).await?;
    let sources = text.as_deref().map(serde_json::from_str).transpose();
    Ok(sources.map_err(|source| StoreError::Row { table: "cycle", source })?.unwrap_or_default())
}

async fn accounts(connection: &mut SqliteConnection) -> Result<BTreeMap<AccountId, Account>, StoreError> {
    let mut accounts: BTreeMap<AccountId, Account> = ACCOUNT
        .load::<AccountRow>(connection, ALL)
        .await?
        .into_iter()
        .map(|row| (row.id.clone(), row.into()))
        .collect();
    let open = format!("at_end = '{}'", super::interval::OPEN_END);
    for row in MEMBERSHIP.load::<MembershipRow>(connection, &open).await? {
        let Some(account) = accounts.get_mut(&row.account_id) else { continue };
        if row.leaving_since.is_some() {
            account.leaving.insert(row.member.clone());
        }
        account.members.insert(row.member, row.role);
    }
    Ok(accounts)
}

async fn orders(connection: &mut SqliteConnection) -> Result<Vec<Order>, StoreError> {
    let rows: Vec<OrderRow> = ORDER.load(connection, "true ORDER BY id").await?;
    Ok(rows
        .into_iter()
        .filter_map(|row| {
            let OrderRow { id, account_id, what, note, bulk, object } = row;
            Some(Order { id, account: account_id?, what: what?, note: note?, bulk, object })
        })
        .collect())
}

fn in_clusters<T, C: FromIterator<((AccountId, ClusterName), T)>>(rows: Vec<InCluster<T>>, names: &mut Names) -> C {
    let entry = |mut row: InCluster<T>| {
        names.share(&mut row.cluster.0);
        ((row.account_id, row.cluster), row.value)
    };
    rows.into_iter().map(entry).collect()
}

/// The names that were loaded so far. Equal names share their memory, because the objects of all tenants have the same
/// few names.
#[derive(Default)]
struct Names(HashSet<SharedText>);

impl Names {
    fn share(&mut self, name: &mut SharedText) {
        match self.0.get(name) {
            Some(known) => *name = known.clone(),
            None => drop(self.0.insert(name.clone())),
        }
    }

    fn of(&mut self, mut key: CredentialKey) -> CredentialKey {
        self.share(&mut key.cluster.0);
        key
    }
}
