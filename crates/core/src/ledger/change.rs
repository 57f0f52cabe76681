//! Every way the ledger can change, as a value: what a read taught, what a plan intends, what came of it, what an
//! administrator ordered.
//!
//! The store writes the rows of a [`Change`] and calls [`LedgerState::apply`] with the same value, so memory and
//! file cannot drift apart; a test loads the file and compares.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::adopted::AdoptedNamespace;
use super::doubt::{Doubt, DoubtKey};
use super::exception::{Exception, ExceptionKey};
use super::idle::Idleness;
use super::pace::PaceRecord;
use super::quota::{OverrideKey, QuotaOverride};
use super::realm::RealmAccount;
use super::revocation::BulkRevocation;
use super::server::SourceMark;
use super::{
    Account, Archive, Certificate, CredentialKey, Delivery, Failure, LedgerState, Note, ObjectRecord, Order,
    SourceState, Spending, StoppedWorkload, Tenant,
};
use crate::identity::{AccountId, AccountKind, AccountName, ClusterName, NamespaceName, Uid};
use crate::kinds::ObjectKey;
use crate::snapshot::RejectedEntry;

/// One change; the last value wins. `None` ends what was there.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// A new account, or the whole new content of a known one, memberships included.
    Account(Box<Account>),
    /// A uid is from now on this account's.
    Uid(Uid, AccountId),
    /// A workspace that no account is had this uid, as a cluster showed then.
    UsedUid(Uid, Timestamp),
    /// This tells the account's person apart.
    Person(AccountId, String),
    /// A tenant in a cluster.
    Tenant(AccountId, ClusterName, Tenant),
    /// All entries of the last read that failed a check.
    Rejected(BTreeSet<RejectedEntry>),
    /// A hold begins or ends.
    Hold(AccountId, Option<Note>),
    /// An order is written down.
    Order(Order),
    /// An order is carried out.
    OrderDone(i64),
    /// A refused set may pass until then, or has passed.
    Approval(String, Option<Timestamp>),
    /// What the guard refused in this cycle, whole; empty: nothing.
    Refusals(Vec<RefusalRecord>),
    /// So much of a limit is used now, in a class.
    Spent(Spending, String, u64, Timestamp),
    /// An object of a tenant.
    Object(ObjectKey, Option<ObjectRecord>),
    /// The newest certificate.
    Certificate(CredentialKey, Option<Certificate>),
    /// What stands in a home.
    Delivery(CredentialKey, Option<Delivery>),
    /// What stands in a home of SSH keys.
    SshDelivery(AccountId, Option<Delivery>),
    /// A workload that was stopped, or is resumed.
    Stopped(AccountId, ObjectKey, Option<StoppedWorkload>),
    /// A namespace was written into the file of this name.
    Archive(String, Archive),
    /// A user in a realm of that name.
    RealmAccount(AccountId, String, RealmAccount),
    /// A step failed, or no longer does.
    Failure(AccountId, ClusterName, Option<Failure>),
    /// All of a tenant is as it should be, with this of its own.
    Settled(AccountId, ClusterName, String),
    /// An override is given, or ends.
    Override(OverrideKey, Option<QuotaOverride>),
    /// An exception is given, or ends.
    Exception(ExceptionKey, Option<Exception>),
    /// How far a change of a class has come; `None`: it is through.
    Pace(String, Option<PaceRecord>),
    /// Nothing runs in a namespace, or something does again.
    Idle(AccountId, ClusterName, Option<Idleness>),
    /// A namespace that others created is adopted, is nobody's, or is left alone for good.
    Adopted(ClusterName, NamespaceName, Option<AdoptedNamespace>),
    /// Somebody asked for the account then.
    Used(AccountId, Timestamp),
    /// The revocation of a class begins, goes on, or is over.
    Revocation(String, Option<BulkRevocation>),
    /// Another id of the ledger: it is a copy, or another host's now.
    LedgerId(String),
    /// The ledger was rebuilt or restored, or took over, then.
    Learned(Timestamp),
    /// The counter of generations.
    LastGeneration(u64),
    /// How far the servers of a source were.
    SourceMark(String, Option<SourceMark>),
    /// A source is doubted, or no longer.
    Doubt(DoubtKey, Option<Doubt>),
    /// The number of accounts of a source and kind that show where their homes are.
    HomesShown(String, AccountKind, u64),
    /// What each source answered. It is kept with the cycle's row, so an unchanged directory writes no other.
    Sources(BTreeMap<String, SourceState>),
}

/// What a limit held back, as `status` and `approve` see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusalRecord {
    /// Hash of the refused set.
    pub hash: String,
    /// The key in `[limits]`, or `completeness`.
    pub limit: String,
    /// For people.
    pub why: String,
    /// Whom.
    pub accounts: Vec<AccountName>,
    /// Hash of each account's own part of the set, in the order of `accounts`. An approval of the set is written down
    /// as one of each part (`plan::guard::approve`), so that it holds for any part of the set.
    #[serde(default)]
    pub parts: Vec<String>,
}

/// One row of the history (table `event`): append-only and hash-chained by the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Who made it happen: a login name, or `bursar`.
    pub actor: String,
    /// To whom.
    pub account: Option<AccountName>,
    /// The account's immutable id.
    pub account_id: Option<AccountId>,
    /// What: one word or two, stable (`created`, `suspended`, `certificate issued`, …).
    pub action: String,
    /// Why.
    pub reason: String,
    /// The administrator's ticket.
    pub ticket: Option<String>,
    /// Hash of the plan that did it.
    pub plan: Option<String>,
    /// What changed, as JSON; never a secret.
    pub detail: serde_json::Value,
}

impl Event {
    /// What Bursar did by itself, about no account.
    #[must_use]
    pub fn new(action: impl Into<String>, reason: impl Into<String>, detail: serde_json::Value) -> Self {
        Self {
            actor: "bursar".to_owned(),
            account: None,
            account_id: None,
            action: action.into(),
            reason: reason.into(),
            ticket: None,
            plan: None,
            detail,
        }
    }

    /// The same about an account.
    #[must_use]
    pub fn about(self, account: &Account) -> Self {
        Self { account: Some(account.account_name()), account_id: Some(account.id.clone()), ..self }
    }

    /// The same by an administrator's order.
    #[must_use]
    pub fn by(self, note: &Note) -> Self {
        Self { actor: note.actor.clone(), ticket: note.ticket.clone(), ..self }
    }
}

impl LedgerState {
    /// Makes the changes in memory, in this order.
    pub fn apply_all(&mut self, changes: &[Change]) {
        for change in changes {
            self.apply(change);
        }
    }

    /// Makes the change in memory.
    pub fn apply(&mut self, change: &Change) {
        match change.clone() {
            Change::Account(account) => self.accounts.set(account.id.clone(), Some(*account)),
            Change::Uid(uid, account) => self.uid_history.set(uid, Some(account)),
            Change::UsedUid(uid, at) => self.used_uids.set(uid, Some(at)),
            Change::Person(account, person) => self.persons.set(account, Some(person)),
            Change::Tenant(account, cluster, tenant) => self.tenants.set((account, cluster), Some(tenant)),
            Change::Rejected(rejected) => self.rejected = rejected,
            Change::Hold(account, note) => set(&mut self.holds, account, note),
            Change::Order(order) => {
                self.orders.retain(|known| known.id != order.id);
                self.orders.push(order);
                self.orders.sort_by_key(|order| order.id);
            }
            Change::OrderDone(id) => self.orders.retain(|order| order.id != id),
            Change::Approval(hash, until) => set(&mut self.approvals, hash, until),
            Change::Refusals(refusals) => self.refusals = refusals,
            Change::Spent(spending, class, amount, at) => {
                self.spent.push(super::Spent { spending, class, amount, at });
            }
            Change::Object(key, record) => self.objects.set(key, record),
            Change::Certificate(key, certificate) => self.certificates.set(key, certificate),
            Change::Delivery(key, delivery) => self.deliveries.set(key, delivery),
            Change::SshDelivery(account, delivery) => self.ssh_deliveries.set(account, delivery),
            Change::Stopped(account, key, stopped) => self.stopped.set((account, key), stopped),
            Change::Archive(file, archive) => self.archives.set(file, Some(archive)),
            Change::RealmAccount(id, realm, user) => self.realm_accounts.set((id, realm), Some(user)),
            Change::Failure(account, cluster, failure) => self.failures.set((account, cluster), failure),
            Change::Settled(account, cluster, own) => self.settled.set((account, cluster), Some(own)),
            Change::Override(key, given) => self.overrides.set(key, given),
            Change::Exception(key, given) => self.exceptions.set(key, given),
            Change::Pace(class, pace) => set(&mut self.paces, class, pace),
            Change::Idle(account, cluster, idle) => self.idle.set((account, cluster), idle),
            Change::Adopted(cluster, namespace, row) => self.adopted.set((cluster, namespace), row),
            Change::Used(account, at) => self.last_use.set(account, Some(at)),
            Change::Revocation(class, revocation) => set(&mut self.revocations, class, revocation),
            Change::LedgerId(id) => self.ledger_id = id,
            Change::Learned(at) => self.learned_at = Some(at),
            Change::LastGeneration(generation) => self.last_generation = generation,
            Change::SourceMark(source, mark) => set(&mut self.marks, source, mark),
            Change::Doubt(key, doubt) => set(&mut self.doubts, key, doubt),
            Change::HomesShown(source, kind, count) => set(&mut self.homes_shown, (source, kind), Some(count)),
            Change::Sources(sources) => self.sources = sources,
        }
    }
}

fn set<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) {
    match value {
        Some(value) => map.insert(key, value),
        None => map.remove(&key),
    };
}
