//! The ledger: what Bursar remembers of accounts, deliveries, orders and refusals.
//!
//! All memory that decisions use is in [`LedgerState`]. The store loads it once and changes it only together with its
//! rows, so a cycle in which nothing changed reads and writes nothing.

pub mod accounts;
pub mod adopted;
pub mod approval;
pub mod chain;
pub mod change;
pub mod cluster_recovery;
mod credential;
pub mod doubt;
pub mod exception;
mod failure;
pub mod gaps;
pub mod idle;
pub mod missing;
mod order;
pub mod pace;
pub mod people;
pub mod quota;
pub mod realm;
pub mod revocation;
pub mod server;
pub mod suspension;
pub mod term;
pub mod transition;
pub mod workspace_uid;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use self::accounts::Accounts;
use self::adopted::AdoptedNamespace;
pub use self::credential::{Certificate, CredentialKey, Delivery, UnknownCertificate};
use self::doubt::{Doubt, DoubtKey};
use self::exception::{Exception, ExceptionKey};
pub use self::failure::{
    ADOPTED, CERTIFICATE, FOREIGN, Failure, HOMES_REMOVAL, LAST_REMOVAL_RETRY, LAST_RETRY, LATER_REMOVAL, MISSING_HOME,
    OVERWRITTEN, REMOVAL,
};
pub use self::gaps::{Absence, Ending};
use self::idle::Idleness;
pub use self::order::{Note, Order, OrderKind};
use self::pace::PaceRecord;
use self::quota::{OverrideKey, QuotaOverride};
use self::realm::RealmAccount;
use self::revocation::BulkRevocation;
use self::server::{ServerState, SourceMark};

pub use self::suspension::Suspension;
use crate::identity::{
    AccountId, AccountKind, AccountName, ClusterName, DirectoryId, Gid, NamespaceName, PosixIdentity, Uid,
    kubernetes_name,
};
use crate::json_text::JsonText;
use crate::kinds::ObjectKey;
use crate::packed_text::{DigestText, UuidText};
use crate::shared_map::SharedMap;
use crate::snapshot::{Comparison, Completeness, RejectedEntry, Role, Way};

/// The content of the ledger, as the pure stages see it. A clone shares the maps that grow with the number of accounts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LedgerState {
    /// The id that was generated when the ledger was created. The owner object of each cluster names it.
    pub ledger_id: String,
    /// Whether the ledger was created before the API server evaluated rules of Bursar. If so, rules without a mode in
    /// the policy only audit.
    pub older_than_rules: bool,
    /// The highest generation that was ever assigned.
    pub last_generation: u64,
    /// The highest generation that this ledger may have written to the mark of each cluster. A higher mark proves that
    /// the ledger was rolled back, even if new accounts and orders have raised `last_generation` since then.
    pub cluster_marks: BTreeMap<ClusterName, u64>,
    /// When the ledger was rebuilt or restored, or took over the clusters. Objects that clusters show and the ledger
    /// does not know may be older than this time.
    pub learned_at: Option<Timestamp>,
    /// The last answer of each source.
    pub sources: BTreeMap<String, SourceState>,
    /// The replication state that the servers of each source last showed.
    pub marks: BTreeMap<String, SourceMark>,
    /// Statements of sources that Bursar does not believe yet.
    pub doubts: BTreeMap<DoubtKey, Doubt>,
    /// How many accounts of each source and kind showed their home in the directory, in the last complete read in which
    /// homes were not doubted.
    pub homes_shown: BTreeMap<(String, AccountKind), u64>,
    /// Every account that was ever seen.
    pub accounts: Accounts,
    /// The value that identifies the account's person in every source.
    pub persons: SharedMap<AccountId, String>,
    /// Every uid that was ever recorded, and its account.
    pub uid_history: SharedMap<Uid, AccountId>,
    /// Uids of workspaces that clusters showed and no account has, and when they were noticed.
    pub used_uids: SharedMap<Uid, Timestamp>,
    /// Tenants that an administrator put on hold.
    pub holds: BTreeMap<AccountId, Note>,
    /// Orders of administrators that the next plan carries out.
    pub orders: Vec<Order>,
    /// Hashes of approved changes, and the end of each approval.
    pub approvals: BTreeMap<String, Timestamp>,
    /// The refusals of the guard in the last cycle.
    pub refusals: Vec<change::RefusalRecord>,
    /// The amounts of the daily limits that the last 24 hours used.
    pub spent: Vec<Spent>,
    /// The tenant that each account has in a cluster.
    pub tenants: SharedMap<(AccountId, ClusterName), Tenant>,
    /// The digest [`crate::desired::DesiredTenant::own`] of each tenant when the whole tenant was last as desired;
    /// empty if unknown. If the objects differ although the digest is the same, the policy has changed.
    pub settled: SharedMap<(AccountId, ClusterName), DigestText>,
    /// Amounts of quotas that administrators set for an account instead of the class's.
    pub overrides: SharedMap<OverrideKey, QuotaOverride>,
    /// Admission rules from which administrators excepted accounts.
    pub exceptions: SharedMap<ExceptionKey, Exception>,
    /// Changes of the policy that are still being rolled out, by class.
    pub paces: BTreeMap<String, PaceRecord>,
    /// When each account was last asked for.
    pub last_use: SharedMap<AccountId, Timestamp>,
    /// Namespaces in which nothing ran at the last look.
    pub idle: SharedMap<(AccountId, ClusterName), Idleness>,
    /// Foreign namespaces that a class adopts.
    pub adopted: SharedMap<(ClusterName, NamespaceName), AdoptedNamespace>,
    /// Revocations of whole classes that are not finished yet.
    pub revocations: BTreeMap<String, BulkRevocation>,
    /// Objects that were applied, each with the answer of the API server.
    pub objects: SharedMap<ObjectKey, ObjectRecord>,
    /// The newest certificate or token of each account in each cluster. Hosts with credentials of their own have one
    /// each.
    pub certificates: SharedMap<CredentialKey, Certificate>,
    /// The kubeconfig that was delivered to each home.
    pub deliveries: SharedMap<CredentialKey, Delivery>,
    /// The SHA-256 (hex) of the public key for which a cluster was last asked to sign a certificate, until the
    /// certificate is recorded. If the process was killed in between, the request is still in the cluster.
    pub requested: SharedMap<CredentialKey, String>,
    /// Certificates that were signed for requests in the daemon's name that the daemon did not make, by fingerprint.
    pub unknown_certificates: BTreeMap<(ClusterName, String), UnknownCertificate>,
    /// The SSH keys that were delivered to homes.
    pub ssh_deliveries: SharedMap<AccountId, Delivery>,
    /// Workloads that a suspension stopped.
    pub stopped: SharedMap<(AccountId, ObjectKey), StoppedWorkload>,
    /// Archived namespaces, by file name. Archives are never forgotten.
    pub archives: SharedMap<String, Archive>,
    /// Entries of the last read that failed a check.
    pub rejected: BTreeSet<RejectedEntry>,
    /// Users of accounts in Keycloak realms, by account and realm.
    pub realm_accounts: SharedMap<(AccountId, String), RealmAccount>,
    /// Steps that failed, and when each is retried.
    pub failures: SharedMap<(AccountId, ClusterName), Failure>,
}

/// The last answer of a source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceState {
    /// The server that answered.
    pub server: Option<String>,
    /// Completeness of the last read.
    pub completeness: Completeness,
    /// Entries in the last read.
    pub entries: u64,
    /// Duration of the last read, in milliseconds.
    pub took_ms: u64,
    /// When the source was last read, completely or not.
    pub read_at: Timestamp,
    /// When the source last answered completely.
    pub complete_at: Option<Timestamp>,
    /// Where the uids and gids of the last read came from, as a text for administrators; `None` if there is no choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numbers: Option<String>,
    /// How the last complete read was made.
    #[serde(default)]
    pub way: Way,
    /// The result of the last comparison of the source's changes with a full read; `None` until there was one.
    #[serde(default)]
    pub compared: Option<Compared>,
    /// Consecutive reads that were not complete.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failures: u32,
    /// The replication state of each server when it was last asked.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub servers: BTreeMap<String, ServerState>,
    /// Members that the source's groups and tools name, and for which no source has an entry.
    #[serde(default, skip_serializing_if = "Unresolved::is_empty")]
    pub unresolved: Unresolved,
}

/// The number of members without an entry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unresolved {
    /// The number of groups and tools that name such a member.
    pub groups: u64,
    /// The number of such members. A member counts once in every group that names it.
    pub members: u64,
    /// The groups that name the most such members, at most [`Self::EXAMPLES`], each with one of the members.
    pub examples: Vec<UnresolvedIn>,
    /// A digest that changes if a group or tool begins or ceases to name such a member; empty if there is no such
    /// member.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub digest: String,
}

impl Unresolved {
    /// `bursar status` prints one line for each example. The totals also include the other groups.
    pub const EXAMPLES: usize = 10;

    const fn is_empty(&self) -> bool {
        self.members == 0
    }
}

/// The members without an entry that one group or tool names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnresolvedIn {
    pub group: AccountName,
    /// The number of such members.
    pub members: u64,
    /// One of the members, as the group names it.
    pub example: String,
}

/// A comparison of a full read with the entries that were kept up to date by changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compared {
    pub at: Timestamp,
    /// The differences, which the full read repaired.
    #[serde(flatten)]
    pub found: Comparison,
}

impl LedgerState {
    /// Whether an administrator gave an order that only a read of the directories carries out.
    #[must_use]
    pub fn waits_for_a_read(&self) -> bool {
        self.orders.iter().any(|order| order.what.is_of_reads()) || self.marks.values().any(|mark| mark.accepted)
    }

    /// Whether such an order waits for a read of `source`.
    #[must_use]
    pub fn waits_for(&self, source: &str) -> bool {
        let is_decided = |order: &Order| order.is_decided_by(source, self);
        self.marks.get(source).is_some_and(|mark| mark.accepted) || self.orders.iter().any(is_decided)
    }

    /// Returns the time of the last request for the account, unless a wrong clock set it to a time after `now`.
    #[must_use]
    pub fn asked(&self, account: &AccountId, now: Timestamp) -> Option<Timestamp> {
        self.last_use.get(account).copied().filter(|used| *used <= now)
    }

    /// Returns the tenants of an account, sorted by cluster.
    pub fn tenants_of<'a>(&'a self, account: &'a AccountId) -> impl Iterator<Item = (&'a ClusterName, &'a Tenant)> {
        let from = (account.clone(), ClusterName::default());
        let own = self.tenants.range(from..).take_while(move |((id, _), _)| id == account);
        own.map(|((_, cluster), tenant)| (cluster, tenant))
    }

    /// Returns the failures of an account, sorted by cluster.
    pub fn failures_of<'a>(&'a self, account: &'a AccountId) -> impl Iterator<Item = (&'a ClusterName, &'a Failure)> {
        let from = (account.clone(), ClusterName::default());
        let own = self.failures.range(from..).take_while(move |((id, _), _)| id == account);
        own.map(|((_, cluster), failure)| (cluster, failure))
    }
}

/// The pause between an incomplete read and the next read of a source with an interval. It doubles with each further
/// incomplete read.
const RETRY: Duration = Duration::from_secs(30);

/// The shortest time between two reads of a source for logins. A person with a new account waits up to this long at the
/// login, and a loop of login requests starts no more cycles than this.
const LOGINS_GAP: SignedDuration = SignedDuration::from_secs(5);
/// After a read for a login, the source is not read for another login during this many times the duration of the read.
/// So reads for logins take at most a fifth of the server's time.
const LOGINS_SHARE: u64 = 4;

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl SourceState {
    /// Whether the source is to be asked again. If its last read was incomplete, it is asked before `interval` ends,
    /// and less often with each further failure. The source counts as due after nine tenths of the time: cycles begin
    /// at fixed times, but the time counts from the end of the last read.
    #[must_use]
    pub fn is_due(&self, interval: Duration, now: Timestamp) -> bool {
        let gap = now.duration_since(self.read_at);
        let over = Duration::try_from(gap).is_ok_and(|gap| gap * 10 >= interval * 9);
        let pause = (RETRY * 2_u32.saturating_pow(self.failures.saturating_sub(1).min(16))).min(interval);
        let again = self.completeness != Completeness::Complete
            && (self.failures == 0 || Duration::try_from(gap).is_ok_and(|gap| gap * 10 >= pause * 9));
        over || gap.is_negative() || again
    }

    /// Whether the source may be asked again for a person at a login.
    #[must_use]
    pub fn is_due_for_logins(&self, now: Timestamp) -> bool {
        let gap = now.duration_since(self.read_at);
        let took = i64::try_from(self.took_ms.saturating_mul(LOGINS_SHARE)).unwrap_or(i64::MAX);
        gap.is_negative() || gap >= SignedDuration::from_millis(took).max(LOGINS_GAP)
    }
}

/// A tool, a user or a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// The id in the ledger, which never changes.
    pub id: AccountId,
    pub kind: AccountKind,
    /// The current name in the directory.
    pub name: String,
    /// The name in Kubernetes, which `{name}` stands for. It is derived from the account's first name and never
    /// changes.
    pub kubernetes_name: String,
    /// The source that has its entry.
    pub source: String,
    /// The id in the directory, which never changes.
    pub directory_id: DirectoryId,
    /// The DN of the last entry that was seen.
    pub dn: String,
    /// The last valid identity.
    pub posix: Option<PosixIdentity>,
    /// The gid that a group or tool gives its members.
    pub gid: Option<Gid>,
    /// The last valid home.
    pub home: Option<PathBuf>,
    pub mail: Option<String>,
    pub display_name: Option<String>,
    /// The SSH keys of a person, unchecked, as the directory has them.
    pub ssh_keys: BTreeSet<String>,
    /// The mark that disables the account in the directory.
    pub disabled: Option<String>,
    /// The people who maintain a tool or belong to a group, each with the role.
    pub members: BTreeMap<DirectoryId, Role>,
    /// The members whom complete reads no longer name, and whose removal no plan was allowed to carry out yet.
    pub leaving: BTreeSet<DirectoryId>,
    /// The absence; `None` while complete reads show the account.
    pub absence: Option<Absence>,
    pub state: Lifecycle,
    /// When `state` began.
    pub since: Timestamp,
    pub suspension: Option<Box<Suspension>>,
    /// The present generation: only its certificates are valid. 0 if there was none yet.
    pub generation: u64,
    /// The note of an administrator who asked for a new generation; `None` once a plan has assigned it.
    pub revocation: Option<Box<Note>>,
    /// The progress towards the end of the account. Set while complete reads count towards that end, and after the
    /// deletion was allowed.
    pub ending: Option<Ending>,
    /// The id by which other domains of its forest name the account (`objectSid`, in lower case).
    pub sid: Option<String>,
    /// Former DNs and names, and when each was replaced.
    pub former_dns: BTreeMap<String, Timestamp>,
}

impl Account {
    /// Returns an account that is seen for the first time. Every optional field is empty.
    #[must_use]
    pub fn new(id: AccountId, name: AccountName, source: &str, directory_id: DirectoryId, since: Timestamp) -> Self {
        Self {
            id,
            kind: name.kind,
            kubernetes_name: kubernetes_name(&name.name),
            name: name.name,
            source: source.to_owned(),
            directory_id,
            dn: String::new(),
            posix: None,
            gid: None,
            home: None,
            mail: None,
            display_name: None,
            ssh_keys: BTreeSet::new(),
            disabled: None,
            members: BTreeMap::new(),
            leaving: BTreeSet::new(),
            absence: None,
            state: Lifecycle::New,
            since,
            suspension: None,
            generation: 0,
            revocation: None,
            ending: None,
            sid: None,
            former_dns: BTreeMap::new(),
        }
    }

    /// `tool:foo`.
    #[must_use]
    pub fn account_name(&self) -> AccountName {
        AccountName { kind: self.kind, name: self.name.clone() }
    }
}

/// A namespace that was archived in a file of `state_dir/archive`. The file was read back and compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Archive {
    #[serde(rename = "account_id")]
    pub account: AccountId,
    pub cluster: ClusterName,
    pub namespace: NamespaceName,
    /// Generation of the account at that time. An archive from an earlier suspension does not count for the present
    /// one.
    pub generation: u64,
    /// Hex SHA-256 of the file.
    pub digest: String,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Number of objects in the file, including Secrets.
    pub objects: u64,
    /// Number of Secrets in the file. They are encrypted.
    pub secrets: u64,
    /// Number of Secrets that were left out because no recipient is configured.
    pub left_out: u64,
    pub at: Timestamp,
}

/// The stage of an account's life (`state` in the views).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Lifecycle {
    /// Seen, but not a tenant yet.
    New,
    /// A tenant with access.
    Active,
    /// A tenant without access. Its objects and data stay.
    Suspended,
    /// A tenant whose namespaces are archived and will be deleted.
    Archived,
    /// A former tenant whose namespaces are deleted. The archives and the ledger's rows stay.
    Deleted,
}

impl Lifecycle {
    /// Returns the word that the views use.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Active => "active",
            Self::Suspended => "suspended",
            Self::Archived => "archived",
            Self::Deleted => "deleted",
        }
    }
}

/// The kinds of changes that daily limits count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Spending {
    Suspend,
    /// Tenants suspended because of a mark in a directory.
    Disable,
    /// Places that lost access for a reason other than a suspension or a member who left.
    RemoveAccess,
    Delete,
    RemoveMembers,
    /// Users disabled in the realm.
    RealmDisable,
    /// Roles removed from users of the realm.
    RealmRemoveRoles,
    /// Tenants that regain access because a directory shows them again.
    Resume,
}

/// An amount that counts towards a daily limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spent {
    pub spending: Spending,
    pub class: String,
    pub amount: u64,
    /// When the amount was used. It no longer counts 24 hours later.
    pub at: Timestamp,
}

/// The place of an account in a cluster. It never changes after its creation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenant {
    /// The class that first took the account.
    pub class: String,
    /// `None` for classes without a namespace, such as administrators.
    pub namespace: Option<NamespaceName>,
    pub created_at: Timestamp,
}

/// The ledger's record of an applied object. If both digests (hex SHA-256) are unchanged, nothing is to be done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectRecord {
    #[serde(rename = "account_id")]
    pub account: AccountId,
    /// The `metadata.uid` that the API server assigned.
    pub uid: UuidText,
    /// Digest of the manifest that was applied.
    pub wanted: DigestText,
    /// Digest of the managed fields in the API server's answer.
    pub observed: DigestText,
    /// The part of the object that later plans and reports need, such as `spec.hard` of a quota.
    pub detail: Option<JsonText>,
}

/// A workload that a suspension stopped, with its state before the suspension.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoppedWorkload {
    /// `metadata.uid`. A new object with the same name is not resumed.
    pub uid: String,
    /// `spec.replicas` before the suspension; `None` for bare pods and for kinds with `spec.suspend`.
    pub replicas: Option<i32>,
    pub at: Timestamp,
}
