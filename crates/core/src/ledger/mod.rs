//! What Bursar remembers: accounts, what was delivered to them, what was asked and refused.
//!
//! [`LedgerState`] is the whole memory a decision may use. The store loads it once and changes it only together
//! with its rows, so a cycle in which nothing changed reads and writes nothing.

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

use self::adopted::AdoptedNamespace;
pub use self::credential::{Certificate, CredentialKey, Delivery};
use self::doubt::{Doubt, DoubtKey};
use self::exception::{Exception, ExceptionKey};
pub use self::failure::{CERTIFICATE, FOREIGN, Failure, LAST_REMOVAL_RETRY, LAST_RETRY, REMOVAL};
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

/// The ledger's content, as the pure stages see it. What grows with the accounts is shared by its copies.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LedgerState {
    /// Drawn when the ledger was made; the cluster's owner object names it.
    pub ledger_id: String,
    /// The ledger is older than the rules that the API server evaluates: those that nobody chose only audit.
    pub older_than_rules: bool,
    /// The highest generation ever given out.
    pub last_generation: u64,
    /// When it was rebuilt, restored, or took over: what clusters show and it does not know may be from before.
    pub learned_at: Option<Timestamp>,
    /// What each source last answered.
    pub sources: BTreeMap<String, SourceState>,
    /// How far the servers of each source were.
    pub marks: BTreeMap<String, SourceMark>,
    /// What sources say and is not believed yet.
    pub doubts: BTreeMap<DoubtKey, Doubt>,
    /// How many accounts of each source and kind showed where their homes are, when they last were as they should be.
    pub homes_shown: BTreeMap<(String, AccountKind), u64>,
    /// Every account ever seen.
    pub accounts: SharedMap<AccountId, Account>,
    /// What tells the person of an account apart in every source that has them.
    pub persons: SharedMap<AccountId, String>,
    /// Every uid ever recorded, and whose it is.
    pub uid_history: SharedMap<Uid, AccountId>,
    /// Uids of workspaces that clusters showed and no account has, and since when that is known.
    pub used_uids: SharedMap<Uid, Timestamp>,
    /// Tenants an administrator wants left alone.
    pub holds: BTreeMap<AccountId, Note>,
    /// Administrators' orders that the next plan carries out.
    pub orders: Vec<Order>,
    /// Hashes that may pass the limits, and until when.
    pub approvals: BTreeMap<String, Timestamp>,
    /// What a limit held back in the last cycle.
    pub refusals: Vec<change::RefusalRecord>,
    /// What of the limits the last 24 hours used.
    pub spent: Vec<Spent>,
    /// Accounts that were made tenants.
    pub tenants: SharedMap<(AccountId, ClusterName), Tenant>,
    /// What of its own each tenant had when all of it was last as it should be
    /// ([`crate::desired::DesiredTenant::own`]); empty where that is not known. A difference of anything else is the
    /// policy's.
    pub settled: SharedMap<(AccountId, ClusterName), String>,
    /// What administrators gave beside the classes.
    pub overrides: SharedMap<OverrideKey, QuotaOverride>,
    /// From which admission rules administrators excepted accounts.
    pub exceptions: SharedMap<ExceptionKey, Exception>,
    /// Changes of the policy that are under way, by class.
    pub paces: BTreeMap<String, PaceRecord>,
    /// When each account was last asked for.
    pub last_use: SharedMap<AccountId, Timestamp>,
    /// Namespaces in which nothing ran when they were last looked at.
    pub idle: SharedMap<(AccountId, ClusterName), Idleness>,
    /// Namespaces that others created and a class adopts.
    pub adopted: SharedMap<(ClusterName, NamespaceName), AdoptedNamespace>,
    /// Revocations of whole classes that are under way.
    pub revocations: BTreeMap<String, BulkRevocation>,
    /// What the API server was told, and what it answered.
    pub objects: SharedMap<ObjectKey, ObjectRecord>,
    /// The newest certificate or token of each account in each cluster, and on each host that has one of its own.
    pub certificates: SharedMap<CredentialKey, Certificate>,
    /// What stands in each home.
    pub deliveries: SharedMap<CredentialKey, Delivery>,
    /// SSH keys that stand in homes.
    pub ssh_deliveries: SharedMap<AccountId, Delivery>,
    /// Workloads that a suspension stopped.
    pub stopped: SharedMap<(AccountId, ObjectKey), StoppedWorkload>,
    /// Namespaces in files, by the file's name; none is ever forgotten.
    pub archives: SharedMap<String, Archive>,
    /// Entries of the last read that failed a check.
    pub rejected: BTreeSet<RejectedEntry>,
    /// Users that accounts have in realms of Keycloak, by account and realm.
    pub realm_accounts: SharedMap<(AccountId, String), RealmAccount>,
    /// Steps that failed, and when they are tried again.
    pub failures: SharedMap<(AccountId, ClusterName), Failure>,
}

/// What a source last answered.
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
    /// When it was last read at all.
    pub read_at: Timestamp,
    /// When it last answered completely.
    pub complete_at: Option<Timestamp>,
    /// Where uids and gids came from in the last read, for people; absent where there is no choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numbers: Option<String>,
    /// How it was last read completely.
    #[serde(default)]
    pub way: Way,
    /// What the last comparison of its changes with a full read found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compared: Option<Compared>,
    /// Reads in a row that were not complete.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failures: u32,
    /// How its servers were when each was last asked.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub servers: BTreeMap<String, ServerState>,
    /// Members that its groups and tools name and that no source has an entry of.
    #[serde(default, skip_serializing_if = "Unresolved::is_empty")]
    pub unresolved: Unresolved,
}

/// Members without an entry, counted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unresolved {
    /// How many groups and tools name such a member.
    pub groups: u64,
    /// How many they are, each counted in every group that names it.
    pub members: u64,
    /// The groups that name the most of them, at most [`Self::EXAMPLES`], each with one of the names.
    pub examples: Vec<UnresolvedIn>,
}

impl Unresolved {
    /// A line on a terminal each; the sum tells of the others.
    pub const EXAMPLES: usize = 10;

    const fn is_empty(&self) -> bool {
        self.members == 0
    }
}

/// The members without an entry of one group or tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnresolvedIn {
    /// Its name.
    pub group: AccountName,
    /// How many.
    pub members: u64,
    /// One of them, as the group names it.
    pub example: String,
}

/// A comparison of what changes have made with a full read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compared {
    /// When.
    pub at: Timestamp,
    /// What was different, and is repaired.
    #[serde(flatten)]
    pub found: Comparison,
}

impl LedgerState {
    /// Whether something was ordered that only a read of the directories carries out.
    #[must_use]
    pub fn waits_for_a_read(&self) -> bool {
        self.orders.iter().any(|order| order.what.is_of_reads()) || self.marks.values().any(|mark| mark.accepted)
    }

    /// What an account became a tenant by, sorted by cluster.
    pub fn tenants_of<'a>(&'a self, account: &'a AccountId) -> impl Iterator<Item = (&'a ClusterName, &'a Tenant)> {
        let from = (account.clone(), ClusterName(String::new()));
        let own = self.tenants.range(from..).take_while(move |((id, _), _)| id == account);
        own.map(|((_, cluster), tenant)| (cluster, tenant))
    }
}

/// How long a source with an interval is left alone after one read that was not complete; twice as long after each more.
const RETRY: Duration = Duration::from_secs(30);

/// How long a source is left alone at least before somebody at a login has it asked again. They wait so long for an account
/// that is new, and a loop of requests sets off no more cycles than this.
const LOGINS_GAP: SignedDuration = SignedDuration::from_secs(5);
/// Reads for logins take at most a fifth of a server's time.
const LOGINS_SHARE: u64 = 4;

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl SourceState {
    /// Whether it is to be asked again after `interval`: sooner where it did not answer completely, and later each time that it
    /// does not. A tenth early, because cycles come by the clock and a read ends later than it begins.
    #[must_use]
    pub fn is_due(&self, interval: Duration, now: Timestamp) -> bool {
        let gap = now.duration_since(self.read_at);
        let over = Duration::try_from(gap).is_ok_and(|gap| gap * 10 >= interval * 9);
        let pause = (RETRY * 2_u32.saturating_pow(self.failures.saturating_sub(1).min(16))).min(interval);
        let again = self.completeness != Completeness::Complete
            && (self.failures == 0 || Duration::try_from(gap).is_ok_and(|gap| gap * 10 >= pause * 9));
        over || gap.is_negative() || again
    }

    /// Whether it may be asked again for somebody at a login.
    #[must_use]
    pub fn is_due_for_logins(&self, now: Timestamp) -> bool {
        let gap = now.duration_since(self.read_at);
        let took = i64::try_from(self.took_ms.saturating_mul(LOGINS_SHARE)).unwrap_or(i64::MAX);
        gap.is_negative() || gap >= SignedDuration::from_millis(took).max(LOGINS_GAP)
    }
}

/// A tool, user or group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// Immutable.
    pub id: AccountId,
    /// What it is.
    pub kind: AccountKind,
    /// Its current name in the directory.
    pub name: String,
    /// The name for Kubernetes, made once and frozen: what `{name}` stands for.
    pub kubernetes_name: String,
    /// The source that has it.
    pub source: String,
    /// The directory's immutable id.
    pub directory_id: DirectoryId,
    /// Where it last was.
    pub dn: String,
    /// Last good identity.
    pub posix: Option<PosixIdentity>,
    /// Own gid of a group.
    pub gid: Option<Gid>,
    /// Last good home.
    pub home: Option<PathBuf>,
    /// Mail address of a person.
    pub mail: Option<String>,
    /// Display name of a person.
    pub display_name: Option<String>,
    /// SSH keys of a person, as the directory has them, unchecked.
    pub ssh_keys: BTreeSet<String>,
    /// The mark that disables it in the directory.
    pub disabled: Option<String>,
    /// People who maintain it or belong to it.
    pub members: BTreeMap<DirectoryId, Role>,
    /// Those of `members` whom complete reads no longer name, and whose leaving no plan was allowed to carry out yet.
    pub leaving: BTreeSet<DirectoryId>,
    /// Set while it is missing from complete reads.
    pub absence: Option<Absence>,
    /// Where it is in its life.
    pub state: Lifecycle,
    /// When `state` began.
    pub since: Timestamp,
    /// Why it is suspended.
    pub suspension: Option<Suspension>,
    /// The generation whose certificates are good; 0 before the first.
    pub generation: u64,
    /// Set when something asks for a new generation that the plan has not carried out yet.
    pub revocation: Option<Note>,
    /// How far its end is; set while complete reads count towards it, and when its deletion was let through.
    pub ending: Option<Ending>,
    /// What other domains of its forest call it (`objectSid`, in lower case).
    pub sid: Option<String>,
    /// Where it was and what it was called before, and until when.
    pub former_dns: BTreeMap<String, Timestamp>,
}

impl Account {
    /// One that is seen for the first time, with nothing in it that may be absent.
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

/// A namespace in a file of `state_dir/archive`, as it was when it was written, read back and compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Archive {
    /// Whose.
    #[serde(rename = "account_id")]
    pub account: AccountId,
    /// From which cluster.
    pub cluster: ClusterName,
    pub namespace: NamespaceName,
    /// Generation of the account at that time: an archive of an earlier suspension does not count for the present one.
    pub generation: u64,
    /// Hex SHA-256 of the file.
    pub digest: String,
    /// Its size.
    pub bytes: u64,
    /// How many objects are in it, Secrets included.
    pub objects: u64,
    /// How many of them are Secrets, encrypted.
    pub secrets: u64,
    /// How many Secrets are not in it, for there was no recipient.
    pub left_out: u64,
    /// When.
    pub at: Timestamp,
}

/// Where an account is in its life (`state` in the views).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Lifecycle {
    /// Seen, not served yet.
    New,
    /// Served.
    Active,
    /// Its access is gone, its things stay.
    Suspended,
    /// Exported; its namespace is about to go.
    Archived,
    /// Its namespace is gone; its data is not.
    Deleted,
}

impl Lifecycle {
    /// The word of the views.
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

/// A limit's budget of a day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Spending {
    /// Tenants suspended.
    Suspend,
    /// Tenants suspended by a mark in a directory.
    Disable,
    /// Places that lost access by neither a suspension nor a member who left.
    RemoveAccess,
    /// Namespaces deleted.
    Delete,
    /// Members removed.
    RemoveMembers,
    /// Users disabled in the realm.
    RealmDisable,
    /// Roles taken from users of the realm.
    RealmRemoveRoles,
    /// Tenants that get their access back because a directory says so.
    Resume,
}

/// One use of a limit's budget.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spent {
    /// Which budget.
    pub spending: Spending,
    pub class: String,
    /// How many.
    pub amount: u64,
    /// When; 24 hours later it is free again.
    pub at: Timestamp,
}

/// An account's place in a cluster, frozen when it was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenant {
    /// The first class that took it.
    pub class: String,
    /// Its namespace; absent for admins.
    pub namespace: Option<NamespaceName>,
    /// When.
    pub created_at: Timestamp,
}

/// The two digests (hex SHA-256) that make "nothing to do" a comparison.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectRecord {
    /// Whose it is.
    #[serde(rename = "account_id")]
    pub account: AccountId,
    /// `metadata.uid` that the server gave it.
    pub uid: UuidText,
    /// Digest of what we wanted.
    pub wanted: DigestText,
    /// Digest of the fields we manage in the server's answer.
    pub observed: DigestText,
    /// What people read of it: a quota's `spec.hard`.
    pub detail: Option<JsonText>,
}

/// A workload that a suspension stopped, with what it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoppedWorkload {
    /// `metadata.uid`: another object of the name is not resumed.
    pub uid: String,
    /// `spec.replicas` before; absent for what is suspended by `spec.suspend`, and for bare pods.
    pub replicas: Option<i32>,
    /// When.
    pub at: Timestamp,
}
