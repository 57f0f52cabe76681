//! Rows of the ledger's tables, and their conversion from and to the values in memory. Only the store knows the
//! columns.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::interval::OPEN_END;
use super::table::{Table, row};
use crate::contract::exception::ExceptedRule;
use crate::identity::{AccountId, AccountKind, ClusterName, DirectoryId, Gid, NamespaceName, PosixIdentity, Uid};
use crate::kinds::{ObjectKey, ObjectKind, ObjectName};
use crate::ledger::adopted::AdoptedNamespace;
use crate::ledger::doubt::{Doubt, DoubtKey};
use crate::ledger::exception::{Exception, ExceptionKey};
use crate::ledger::gaps::Proved;
use crate::ledger::pace::PaceRecord;
use crate::ledger::quota::{OverrideKey, QuotaOverride};
use crate::ledger::realm::RealmAccount;
use crate::ledger::revocation::BulkRevocation;
use crate::ledger::server::{Moved, SourceMark};
use crate::ledger::{
    Absence, Account, Archive, Certificate, CredentialKey, Ending, Lifecycle, Note, ObjectRecord, Order, OrderKind,
    StoppedWorkload, Suspension, UnknownCertificate,
};
use crate::packed_text::DigestText;
use crate::shared_text::SharedText;
use crate::snapshot::freshness::Marks;

macro_rules! tables {
    ($($constant:ident = $name:literal, key [$($key:literal),*], plain [$($plain:literal),*], json [$($json:literal),*];)*) => {$(
        pub static $constant: Table = Table { name: $name, key: &[$($key),*], plain: &[$($plain),*], json: &[$($json),*] };
    )*};
}

tables! {
    ACCOUNT = "account", key ["id"],
        plain ["kind", "name", "kubernetes_name", "source", "directory_id", "dn", "uid", "gid", "home", "mail",
               "display_name", "disabled", "state", "since", "generation", "sid"],
        json ["groups", "ssh_keys", "absence", "suspension", "revocation", "ending", "former_dns"];
    MEMBERSHIP = "membership", key ["account_id", "member", "at_start", "role"], plain ["leaving_since", "at_end"], json [];
    UID_HISTORY = "uid_history", key ["uid"], plain ["account_id"], json [];
    USED_UID = "used_uid", key ["uid"], plain ["at"], json [];
    TENANT = "tenant", key ["account_id", "cluster"], plain ["class", "namespace", "created_at"], json [];
    SETTLED = "settled", key ["account_id", "cluster"], plain ["own"], json [];
    QUOTA_OVERRIDE = "quota_override", key ["account_id", "resource", "cluster"], plain ["amount", "until"], json ["note", "proved"];
    EXCEPTION = "exception", key ["account_id", "rule", "cluster"], plain ["until"], json ["note", "proved"];
    PACE = "pace", key ["class"], plain ["revision", "began", "at", "done", "waiting", "stopped"], json ["last"];
    BULK_REVOCATION = "bulk_revocation", key ["class"], plain ["at", "done"], json ["last", "earlier", "note"];
    LAST_USE = "last_use", key ["account_id"], plain ["at"], json [];
    IDLENESS = "idleness", key ["account_id", "cluster"], plain ["since", "counted_at", "seconds", "due", "warned_at"], json [];
    ADOPTED_NAMESPACE = "adopted_namespace", key ["cluster", "namespace"],
        plain ["uid", "class", "owner", "named", "account_id", "why", "since"], json [];
    PERSON = "person", key ["account_id"], plain ["value"], json [];
    HOLD = "hold", key ["account_id"], plain [], json ["note"];
    ORDER = "\"order\"", key ["id"], plain ["account_id", "what", "bulk", "object"], json ["note"];
    APPROVAL = "approval", key ["hash"], plain ["until"], json [];
    REFUSAL = "refusal", key ["place"], plain ["hash", "limit", "why"], json ["accounts", "parts"];
    SPENT = "spent", key [], plain ["spending", "class", "amount", "at"], json [];
    OBJECT = "object", key ["cluster", "api_version", "kind", "namespace", "name"],
        plain ["account_id", "uid", "wanted", "observed"], json ["detail"];
    CERTIFICATE = "certificate", key ["fingerprint"],
        plain ["account_id", "cluster", "host", "generation", "subject", "not_before", "not_after", "renew_after",
               "bound_to", "newest"],
        json [];
    DELIVERY = "delivery", key ["account_id", "cluster", "host"], plain ["path", "home", "mount", "digest", "at", "checked_at"], json [];
    REQUESTED = "requested_certificate", key ["account_id", "cluster", "host"], plain ["public_key"], json [];
    UNKNOWN_CERTIFICATE = "unknown_certificate", key ["cluster", "fingerprint"], plain ["text", "since", "not_after"], json [];
    SSH_DELIVERY = "ssh_delivery", key ["account_id"], plain ["path", "home", "mount", "digest", "at", "checked_at"], json [];
    STOPPED_WORKLOAD = "stopped_workload",
        key ["account_id", "cluster", "api_version", "kind", "namespace", "name"], plain ["uid", "replicas", "at"],
        json [];
    ARCHIVE = "archive", key ["file"],
        plain ["account_id", "cluster", "namespace", "generation", "digest", "bytes", "objects", "secrets", "left_out",
               "at"],
        json [];
    REALM_ACCOUNT = "realm_account", key ["account_id", "realm"],
        plain ["user_id", "asked", "adopted", "name", "mail", "display_name", "enabled", "mail_due", "mailed_at"], json [];
    FAILURE = "failure", key ["account_id", "cluster"],
        plain ["step", "reason", "since", "attempts", "next_try"], json [];
    SOURCE_MARK = "source_mark", key ["source"], plain ["server", "at", "accepted"], json ["marks", "moved"];
    DOUBT = "doubt", key ["source", "kind", "question"], plain ["since", "before", "now", "proof"], json ["accounts", "counted"];
    CLUSTER_MARK = "cluster_mark", key ["cluster"], plain ["generation"], json [];
    HOMES_SHOWN = "homes_shown", key ["source", "kind"], plain ["accounts"], json [];
    REJECTED_ENTRY = "rejected_entry", key ["place"], plain ["source", "kind", "dn", "name", "id", "disabled", "why"], json ["reason"];
}

#[derive(Serialize, Deserialize)]
pub struct AccountRow {
    pub id: AccountId,
    kind: AccountKind,
    name: String,
    kubernetes_name: String,
    source: String,
    directory_id: DirectoryId,
    dn: String,
    uid: Option<Uid>,
    gid: Option<Gid>,
    groups: Option<BTreeSet<Gid>>,
    home: Option<PathBuf>,
    mail: Option<String>,
    display_name: Option<String>,
    #[serde(default)]
    ssh_keys: Option<BTreeSet<String>>,
    disabled: Option<String>,
    absence: Option<Absence>,
    state: Lifecycle,
    since: Timestamp,
    suspension: Option<Box<Suspension>>,
    generation: u64,
    revocation: Option<Box<Note>>,
    ending: Option<Ending>,
    sid: Option<String>,
    #[serde(default)]
    former_dns: Option<BTreeMap<String, Timestamp>>,
}

impl From<Account> for AccountRow {
    fn from(account: Account) -> Self {
        let posix = account.posix;
        Self {
            uid: posix.as_ref().map(|posix| posix.uid),
            gid: posix.as_ref().map(|posix| posix.gid).or(account.gid),
            groups: posix.map(|posix| posix.groups),
            id: account.id,
            kind: account.kind,
            name: account.name,
            kubernetes_name: account.kubernetes_name,
            source: account.source,
            directory_id: account.directory_id,
            dn: account.dn,
            home: account.home,
            mail: account.mail,
            display_name: account.display_name,
            ssh_keys: Some(account.ssh_keys).filter(|keys| !keys.is_empty()),
            disabled: account.disabled,
            absence: account.absence,
            state: account.state,
            since: account.since,
            suspension: account.suspension,
            generation: account.generation,
            revocation: account.revocation,
            ending: account.ending,
            sid: account.sid,
            former_dns: Some(account.former_dns).filter(|dns| !dns.is_empty()),
        }
    }
}

impl From<AccountRow> for Account {
    /// The members are empty, because they have their own table.
    fn from(row: AccountRow) -> Self {
        let posix = match (row.uid, row.gid) {
            (Some(uid), Some(gid)) => Some(PosixIdentity { uid, gid, groups: row.groups.unwrap_or_default() }),
            _ => None,
        };
        Self {
            id: row.id,
            kind: row.kind,
            name: row.name,
            kubernetes_name: row.kubernetes_name,
            source: row.source,
            directory_id: row.directory_id,
            dn: row.dn,
            // A workspace has both a uid and the gid of its group.
            gid: row.gid.filter(|_| posix.is_none() || row.kind == AccountKind::Group),
            posix,
            home: row.home,
            mail: row.mail,
            display_name: row.display_name,
            ssh_keys: row.ssh_keys.unwrap_or_default(),
            disabled: row.disabled,
            members: BTreeMap::new(),
            leaving: BTreeSet::new(),
            absence: row.absence,
            state: row.state,
            since: row.since,
            suspension: row.suspension,
            generation: row.generation,
            revocation: row.revocation,
            ending: row.ending,
            sid: row.sid,
            former_dns: row.former_dns.unwrap_or_default(),
        }
    }
}

#[derive(Clone, Serialize, Deserialize)]
pub struct MembershipRow {
    pub account_id: AccountId,
    pub member: DirectoryId,
    pub at_start: Timestamp,
    pub role: crate::snapshot::Role,
    pub leaving_since: Option<Timestamp>,
    pub at_end: String,
}

#[derive(Serialize, Deserialize)]
pub struct UidRow {
    pub uid: Uid,
    pub account_id: AccountId,
}

#[derive(Serialize, Deserialize)]
pub struct UsedUidRow {
    pub uid: Uid,
    pub at: Timestamp,
}

/// A value that an account has at most once per cluster, such as a tenant or a failure.
#[derive(Serialize, Deserialize)]
pub struct InCluster<T> {
    pub account_id: AccountId,
    pub cluster: ClusterName,
    #[serde(flatten)]
    pub value: T,
}

/// The value that identifies the person of an account.
#[derive(Serialize, Deserialize)]
pub struct PersonRow {
    pub account_id: AccountId,
    pub value: String,
}

#[derive(Serialize, Deserialize)]
pub struct AdoptedRow {
    pub cluster: ClusterName,
    pub namespace: NamespaceName,
    #[serde(flatten)]
    pub value: AdoptedNamespace,
}

/// A value that an account has at most once per cluster and host, such as a certificate or a delivery.
#[derive(Serialize, Deserialize)]
pub struct OfCredential<T> {
    #[serde(flatten)]
    pub key: CredentialKey,
    #[serde(flatten)]
    pub value: T,
}

/// The key of a requested certificate.
#[derive(Serialize, Deserialize)]
pub struct Requested {
    pub public_key: String,
}

#[derive(Serialize, Deserialize)]
pub struct UnknownRow {
    pub cluster: ClusterName,
    pub fingerprint: String,
    #[serde(flatten)]
    pub value: UnknownCertificate,
}

/// A value that an account has at most once, such as the SSH keys in its home.
#[derive(Serialize, Deserialize)]
pub struct OfAccount<T> {
    pub account_id: AccountId,
    #[serde(flatten)]
    pub value: T,
}

#[derive(Serialize, Deserialize)]
pub struct RealmRow {
    pub account_id: AccountId,
    pub realm: String,
    #[serde(flatten)]
    pub user: RealmAccount,
}

#[derive(Serialize, Deserialize)]
pub struct HoldRow {
    pub account_id: AccountId,
    pub note: Option<Note>,
}

#[derive(Serialize, Deserialize)]
pub struct OrderRow {
    pub id: i64,
    pub account_id: Option<AccountId>,
    pub what: Option<OrderKind>,
    pub note: Option<Note>,
    pub bulk: Option<String>,
    pub object: Option<String>,
}

impl From<Order> for OrderRow {
    fn from(Order { id, account, what, note, bulk, object }: Order) -> Self {
        Self { id, account_id: Some(account), what: Some(what), note: Some(note), bulk, object }
    }
}

/// `accepted` is stored as 0 or 1, because STRICT tables have no boolean type.
#[derive(Serialize, Deserialize)]
pub struct MarkRow {
    source: String,
    server: String,
    at: Timestamp,
    accepted: u8,
    marks: Marks,
    moved: Option<Moved>,
}

impl MarkRow {
    pub fn new(source: String, mark: SourceMark) -> Self {
        let SourceMark { server, marks, at, moved, accepted } = mark;
        Self { source, server, at, accepted: accepted.into(), marks, moved }
    }

    pub fn read(self) -> (String, SourceMark) {
        let Self { source, server, at, accepted, marks, moved } = self;
        (source, SourceMark { server, marks, at, moved, accepted: accepted != 0 })
    }
}

/// `question` is JSON as text, because it is part of the key.
#[derive(Serialize, Deserialize)]
pub struct DoubtRow {
    source: String,
    kind: AccountKind,
    question: String,
    since: Timestamp,
    before: u64,
    now: u64,
    proof: Option<String>,
    accounts: Option<BTreeSet<AccountId>>,
    counted: Option<Absence>,
}

/// The key columns of a doubt.
#[must_use]
pub fn doubt_key(DoubtKey { source, kind, question }: &DoubtKey) -> serde_json::Value {
    serde_json::json!({"source": source, "kind": kind, "question": row(question).to_string()})
}

impl DoubtRow {
    pub fn new(key: DoubtKey, doubt: Doubt) -> Self {
        let (DoubtKey { source, kind, question }, Doubt { since, before, now, accounts, proof, counted }) =
            (key, doubt);
        let question = row(&question).to_string();
        Self { source, kind, question, since, before, now, proof, accounts: Some(accounts), counted }
    }

    pub fn read(self) -> Option<(DoubtKey, Doubt)> {
        let Self { source, kind, question, since, before, now, proof, accounts, counted } = self;
        let question = serde_json::from_str(&question).ok()?;
        let doubt = Doubt { since, before, now, accounts: accounts.unwrap_or_default(), proof, counted };
        Some((DoubtKey { source, kind, question }, doubt))
    }
}

#[derive(Serialize, Deserialize)]
pub struct HomesRow {
    pub source: String,
    pub kind: AccountKind,
    pub accounts: u64,
}

#[derive(Serialize, Deserialize)]
pub struct ClusterMarkRow {
    pub cluster: ClusterName,
    pub generation: u64,
}

#[derive(Serialize, Deserialize)]
pub struct ArchiveRow {
    pub file: String,
    #[serde(flatten)]
    pub archive: Archive,
}

#[derive(Serialize, Deserialize)]
pub struct ApprovalRow {
    pub hash: String,
    pub until: Option<Timestamp>,
}

/// The columns that identify an object of a cluster. Every table about such objects has them.
#[derive(Serialize, Deserialize)]
pub struct KeyColumns {
    cluster: ClusterName,
    api_version: String,
    kind: String,
    namespace: SharedText,
    name: SharedText,
}

impl KeyColumns {
    /// Returns the names that many rows have in common, so that the loaded rows can share their memory.
    pub fn names(&mut self) -> [&mut SharedText; 3] {
        [&mut self.cluster.0, &mut self.namespace, &mut self.name]
    }
}

impl From<ObjectKey> for KeyColumns {
    fn from(key: ObjectKey) -> Self {
        let ObjectName { cluster, kind, namespace, name } = (*key).clone();
        Self {
            cluster,
            api_version: kind.api_version().to_owned(),
            kind: kind.as_str().to_owned(),
            namespace: namespace.unwrap_or_default(),
            name,
        }
    }
}

impl From<KeyColumns> for ObjectKey {
    fn from(KeyColumns { cluster, api_version, kind, namespace, name }: KeyColumns) -> Self {
        let (kind, namespace) = (ObjectKind::of(&api_version, &kind), Some(namespace).filter(|n| !n.is_empty()));
        ObjectName { cluster, kind, namespace, name }.into()
    }
}

#[derive(Serialize, Deserialize)]
pub struct ObjectRow {
    #[serde(flatten)]
    pub key: KeyColumns,
    #[serde(flatten)]
    pub record: ObjectRecord,
}

#[derive(Serialize, Deserialize)]
pub struct CertificateRow {
    #[serde(flatten)]
    pub certificate: OfCredential<Certificate>,
    pub newest: u8,
}

#[derive(Serialize, Deserialize)]
pub struct StoppedRow {
    pub account_id: AccountId,
    #[serde(flatten)]
    pub key: KeyColumns,
    #[serde(flatten)]
    pub stopped: StoppedWorkload,
}

/// The digest that the tenant's own part of the desired state had when the tenant last needed no change
/// ([`LedgerState::settled`](crate::ledger::LedgerState::settled)).
#[derive(Serialize, Deserialize)]
pub struct Own {
    pub own: DigestText,
}

#[derive(Serialize, Deserialize)]
pub struct OverrideRow {
    account_id: AccountId,
    resource: String,
    /// Empty for every cluster.
    cluster: String,
    #[serde(default)]
    amount: String,
    /// A timestamp. The column is text, because an override without an end has [`OPEN_END`], which is later than
    /// `jiff`'s last timestamp.
    #[serde(default)]
    until: String,
    note: Option<Note>,
    #[serde(default)]
    proved: Option<Proved>,
}

impl OverrideRow {
    pub fn new(key: OverrideKey, given: Option<QuotaOverride>) -> Self {
        let until = given.as_ref().and_then(|given| given.until);
        Self {
            account_id: key.account,
            resource: key.resource,
            cluster: key.cluster.map(|cluster| cluster.to_string()).unwrap_or_default(),
            amount: given.as_ref().map(|given| given.amount.clone()).unwrap_or_default(),
            until: until.map_or_else(|| OPEN_END.to_owned(), |until| format!("{until:.0}")),
            proved: given.as_ref().and_then(|given| given.proved),
            note: given.map(|given| given.note),
        }
    }

    pub fn read(self) -> Option<(OverrideKey, QuotaOverride)> {
        let cluster = Some(self.cluster).filter(|cluster| !cluster.is_empty()).map(ClusterName::from);
        let key = OverrideKey { account: self.account_id, resource: self.resource, cluster };
        let until = self.until.parse().ok().filter(|_| self.until != OPEN_END);
        Some((key, QuotaOverride { amount: self.amount, until, note: self.note?, proved: self.proved }))
    }
}

#[derive(Serialize, Deserialize)]
pub struct ExceptionRow {
    account_id: AccountId,
    rule: ExceptedRule,
    /// Empty for every cluster.
    cluster: String,
    #[serde(default)]
    until: Timestamp,
    note: Option<Note>,
    #[serde(default)]
    proved: Option<Proved>,
}

impl ExceptionRow {
    pub fn new(key: ExceptionKey, given: Option<Exception>) -> Self {
        let cluster = key.cluster.map(|cluster| cluster.to_string()).unwrap_or_default();
        let (until, note, proved) = match given {
            Some(Exception { until, note, proved }) => (until, Some(note), proved),
            None => (Timestamp::UNIX_EPOCH, None, None),
        };
        Self { account_id: key.account, rule: key.rule, cluster, until, note, proved }
    }

    pub fn read(self) -> Option<(ExceptionKey, Exception)> {
        let cluster = Some(self.cluster).filter(|cluster| !cluster.is_empty()).map(ClusterName::from);
        let key = ExceptionKey { account: self.account_id, rule: self.rule, cluster };
        Some((key, Exception { until: self.until, note: self.note?, proved: self.proved }))
    }
}

#[derive(Serialize, Deserialize)]
pub struct UseRow {
    pub account_id: AccountId,
    pub at: Timestamp,
}

#[derive(Serialize, Deserialize)]
pub struct RevocationRow {
    pub class: String,
    #[serde(flatten)]
    pub revocation: BulkRevocation,
}

/// `stopped` is stored as 0 or 1, because STRICT tables have no boolean type.
#[derive(Serialize, Deserialize)]
pub struct PaceRow {
    class: String,
    revision: String,
    began: Timestamp,
    at: Timestamp,
    done: u64,
    waiting: u64,
    stopped: u8,
    last: BTreeSet<AccountId>,
}

impl PaceRow {
    pub fn new(class: String, pace: PaceRecord) -> Self {
        let PaceRecord { revision, began, at, last, done, waiting, stopped } = pace;
        Self { class, revision, began, at, done, waiting, stopped: stopped.into(), last }
    }

    pub fn read(self) -> (String, PaceRecord) {
        let Self { class, revision, began, at, done, waiting, stopped, last } = self;
        (class, PaceRecord { revision, began, at, last, done, waiting, stopped: stopped != 0 })
    }
}
