//! Every change of the ledger, as a value: what a read showed, what a plan intends, what its execution did, what an
//! administrator ordered.
//!
//! The store writes the rows of a [`Change`] and calls [`LedgerState::apply`] with the same value, so the memory and
//! the file stay equal. A test loads the file and compares them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

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
    SourceState, Spending, StoppedWorkload, Tenant, UnknownCertificate,
};
use crate::identity::{AccountId, AccountKind, AccountName, ClusterName, NamespaceName, Uid};
use crate::json_text::JsonText;
use crate::kinds::ObjectKey;
use crate::packed_text::DigestText;
use crate::snapshot::RejectedEntry;

/// One change. If several changes are for the same entry, the last wins. `None` removes the entry.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// A new account, or the complete new content of a known one, including its members.
    Account(Arc<Account>),
    /// A uid belongs to this account from now on.
    Uid(Uid, AccountId),
    /// At this time, a cluster showed a workspace with this uid, which belongs to no account of the ledger.
    UsedUid(Uid, Timestamp),
    /// The value that identifies the account's person in every source.
    Person(AccountId, String),
    /// An account becomes a tenant in a cluster.
    Tenant(AccountId, ClusterName, Tenant),
    /// All entries of the last read that failed a check.
    Rejected(BTreeSet<RejectedEntry>),
    /// A hold begins or ends.
    Hold(AccountId, Option<Note>),
    /// An order is recorded.
    Order(Order),
    /// An order is carried out.
    OrderDone(i64),
    /// The refused set with this hash is approved until this time; `None` if it is no longer approved.
    Approval(String, Option<Timestamp>),
    /// Everything that the guard refused in this cycle. It replaces the list of the last cycle.
    Refusals(Vec<RefusalRecord>),
    /// This amount of a limit was used for this class at this time.
    Spent(Spending, String, u64, Timestamp),
    /// An object of a tenant was applied; `None` if it is gone.
    Object(ObjectKey, Option<ObjectRecord>),
    /// The newest certificate or token.
    Certificate(CredentialKey, Option<Certificate>),
    /// The kubeconfig or notice that was delivered to a home for this credential; `None` if nothing of Bursar is there
    /// any more.
    Delivery(CredentialKey, Option<Delivery>),
    /// The cluster is asked to sign a certificate for the key with this digest; `None` if the certificate is recorded.
    Requested(CredentialKey, Option<String>),
    /// A certificate with this fingerprint was signed for a request in the daemon's name that Bursar did not make.
    UnknownCertificate(ClusterName, String, UnknownCertificate),
    /// The SSH keys that were delivered to a home.
    SshDelivery(AccountId, Option<Delivery>),
    /// A suspension stopped a workload; `None` if the workload was resumed.
    Stopped(AccountId, ObjectKey, Option<StoppedWorkload>),
    /// A namespace was archived in the file of this name.
    Archive(String, Archive),
    /// The user that an account has in the realm of this name.
    RealmAccount(AccountId, String, RealmAccount),
    /// A step failed; `None` if it is no longer pending.
    Failure(AccountId, ClusterName, Option<Failure>),
    /// Everything of a tenant is as desired. The text is the digest `DesiredTenant::own` at that time.
    Settled(AccountId, ClusterName, DigestText),
    /// An override is set or removed.
    Override(OverrideKey, Option<QuotaOverride>),
    /// An exception is set or removed.
    Exception(ExceptionKey, Option<Exception>),
    /// The progress of a class's change through its tenants; `None` if it is complete.
    Pace(String, Option<PaceRecord>),
    /// Nothing runs in a namespace; `None` if something runs there again.
    Idle(AccountId, ClusterName, Option<Idleness>),
    /// A foreign namespace is adopted or has no owner; `None` if no class adopts it any more, and nothing of Bursar is
    /// left in it.
    Adopted(ClusterName, NamespaceName, Option<AdoptedNamespace>),
    /// The account was last asked for at this time.
    Used(AccountId, Timestamp),
    /// The revocation of a class begins or continues; `None` if it is complete.
    Revocation(String, Option<BulkRevocation>),
    /// The ledger gets another id, because it was restored or rebuilt, or takes over the clusters.
    LedgerId(String),
    /// The ledger was rebuilt or restored, or took over the clusters, at this time.
    Learned(Timestamp),
    /// The highest generation that was assigned.
    LastGeneration(u64),
    /// The mark of a cluster may be raised to this generation.
    ClusterMark(ClusterName, u64),
    /// The replication state that the servers of a source last showed.
    SourceMark(String, Option<SourceMark>),
    /// There is a doubt about what a source reports; `None` if the doubt is resolved.
    Doubt(DoubtKey, Option<Doubt>),
    /// The number of accounts of a source and kind that show their home in the directory.
    HomesShown(String, AccountKind, u64),
    /// The last answer of each source. It is stored in the cycle's row, so if nothing changed in a directory, no other
    /// row is written.
    Sources(BTreeMap<String, SourceState>),
}

/// A refusal of the guard, as `status` and `approve` show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusalRecord {
    /// Hash of the refused set.
    pub hash: String,
    /// The key in `[limits]`, or `completeness`, `attributes`, `import`, `absence` or `emptied`.
    pub limit: String,
    /// The reason, as a text for administrators.
    pub why: String,
    /// The accounts that are refused.
    pub accounts: Vec<AccountName>,
    /// Hash of each account's part of the set, in the order of `accounts`. An approval of the set is recorded as one
    /// approval for each part (`plan::guard::approve`), so that it applies to any subset.
    #[serde(default)]
    pub parts: Vec<String>,
}

/// One row of the history (table `event`). The store only appends rows, and chains them by hashes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The actor: a login name, or `bursar`.
    pub actor: String,
    /// The account that the event concerns.
    pub account: Option<AccountName>,
    /// The account's immutable id.
    pub account_id: Option<AccountId>,
    /// What happened, in one or two words that never change (`created`, `suspended`, `certificate issued`, …).
    pub action: String,
    pub reason: String,
    /// The administrator's ticket.
    pub ticket: Option<String>,
    /// Hash of the plan that caused the event.
    pub plan: Option<String>,
    /// What changed, as JSON. It never contains a secret.
    pub detail: JsonText,
}

impl Event {
    /// Returns an event that Bursar itself caused and that concerns no account.
    #[must_use]
    pub fn new(action: impl Into<String>, reason: impl Into<String>, detail: impl Into<JsonText>) -> Self {
        Self {
            actor: "bursar".to_owned(),
            account: None,
            account_id: None,
            action: action.into(),
            reason: reason.into(),
            ticket: None,
            plan: None,
            detail: detail.into(),
        }
    }

    /// Adds the account.
    #[must_use]
    pub fn about(self, account: &Account) -> Self {
        Self { account: Some(account.account_name()), account_id: Some(account.id.clone()), ..self }
    }

    /// Replaces actor and ticket with those of an administrator's order.
    #[must_use]
    pub fn by(self, note: &Note) -> Self {
        Self { actor: note.actor.clone(), ticket: note.ticket.clone(), ..self }
    }
}

impl LedgerState {
    /// Applies the changes in memory, in this order.
    pub fn apply_all(&mut self, changes: &[Change]) {
        for change in changes {
            self.apply(change);
        }
    }

    /// Applies the change in memory.
    pub fn apply(&mut self, change: &Change) {
        match change.clone() {
            Change::Account(account) => self.accounts.insert(account),
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
            Change::Requested(key, digest) => self.requested.set(key, digest),
            Change::UnknownCertificate(cluster, fingerprint, unknown) => {
                set(&mut self.unknown_certificates, (cluster, fingerprint), Some(unknown));
            }
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
            Change::LedgerId(id) => {
                self.ledger_id = id;
                // No mark names the new id yet.
                self.cluster_marks.clear();
            }
            Change::Learned(at) => self.learned_at = Some(at),
            Change::LastGeneration(generation) => self.last_generation = generation,
            Change::ClusterMark(cluster, generation) => set(&mut self.cluster_marks, cluster, Some(generation)),
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
