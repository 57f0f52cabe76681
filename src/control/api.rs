//! The messages that `bursar` and `bursard` exchange over the control socket: HTTP/1.1 with JSON bodies.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/status` | [`Status`] |
//! | `GET /v1/plan`, or `POST` with a [`PlanRequest`] | [`PlanAnswer`] |
//! | `POST /v1/sync` | [`CycleReport`], when the cycle that began after the request is done; `reading` has the sources that have not answered yet |
//! | `POST /v1/sync/rest` with that `reading` | the [`CycleReport`] of the cycle that used the next answer, with the rest of `reading` |
//! | `POST /v1/orders` with an array of `OrderRequest` | [`OrderAnswer`] |
//! | `POST /v1/ensure` with an `EnsureRequest` | `EnsureAnswer`, at once |
//! | `POST /v1/own/show` and `/v1/own/why` with an [`OwnRequest`] | as `bursar show` and `bursar why` with `--json` |
//! | `POST /v1/own/who` with a [`WhoRequest`] | as `bursar who --json` |
//! | `GET /metrics` | Prometheus text |
//! | `GET /healthz` | `ok`; `degraded: ` and why the ledger takes no writes; or 503 and why the daemon hangs |
//!
//! The requests under `/v1/own` need no rights: every user may ask about their own accounts. Every status other than
//! 200 carries a `RequestRefusal`.

pub mod proof;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::proof::RevocationProof;
use crate::desired::Notice;
use crate::identity::AccountName;
use crate::ledger::SourceState;
use crate::ledger::change::RefusalRecord;
use crate::ledger::missing::Missing;
use crate::ledger::suspension::TemporarySuspension;
use crate::orders::request::{RequestRefusal, Trigger};
use crate::plan::adopted::Unowned;
use crate::plan::limit_usage::LimitUse;
use crate::plan::pace::PolicyProgress;
use crate::plan::quota::OverQuota;
use crate::plan::revocation::RevocationProgress;
use crate::plan::unknown::Unknown;
use crate::plan::wording::counted_entries;
use crate::report::unfinished::Unfinished;
use crate::report::who::what::What;
use crate::snapshot::RejectedEntry;

/// A question about an account from a caller who may not read everything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnRequest {
    /// If absent, the caller's own account.
    pub of: Option<AccountName>,
}

/// A question about something in a log, from a caller who may not read everything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WhoRequest {
    pub what: What,
}

/// The state of the daemon and of everything that it manages.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The site's name from the configuration.
    pub site: String,
    /// The last answer of each directory.
    pub sources: BTreeMap<String, SourceState>,
    /// How many entries each read in progress has received so far, by source.
    #[serde(default)]
    pub reading: BTreeMap<String, u64>,
    pub clusters: BTreeMap<String, ClusterStatus>,
    /// The last cycle that ended.
    pub last_cycle: Option<CycleReport>,
    /// The number of accounts in each state.
    pub accounts: BTreeMap<String, u64>,
    /// Entries that failed a check.
    pub rejected: Vec<RejectedEntry>,
    /// Accounts that a directory no longer shows. They are suspended if they stay missing.
    #[serde(default)]
    pub missing: Vec<Missing>,
    /// Namespaces that a class would adopt, but that have no owner.
    #[serde(default)]
    pub unowned: Vec<Unowned>,
    /// Suspensions by order that have an end.
    #[serde(default)]
    pub suspended: Vec<TemporarySuspension>,
    /// Tenants with a failing step, with the reason.
    pub failing: Vec<Failing>,
    /// Orders and decisions about accounts that are not finished.
    #[serde(default)]
    pub unfinished: Vec<Unfinished>,
    /// Changes that a limit refuses.
    pub refusals: Vec<RefusalRecord>,
    /// Changes of the policy that are in progress.
    #[serde(default)]
    pub pace: Vec<PolicyProgress>,
    /// Revocations of classes that are in progress.
    #[serde(default)]
    pub revocations: Vec<RevocationProgress>,
    /// When the first certificate expires.
    pub next_expiry: Option<Timestamp>,
    /// Why the ledger takes no writes. Until it does, nothing is written anywhere.
    #[serde(default)]
    pub ledger: Option<LedgerTrouble>,
    /// The length of the ledger's WAL in MiB, and the processes whose long reads make it grow.
    #[serde(default)]
    pub wal: Option<(u64, Vec<String>)>,
    /// The ledger's nightly backups.
    #[serde(default)]
    pub backup: BackupStatus,
    /// The realm that Bursar writes to.
    #[serde(default)]
    pub realm: Option<RealmStatus>,
    /// Why the last reload was refused, or how the file differs from the configuration in force; `None` if neither is so.
    #[serde(default)]
    pub configuration: Option<String>,
}

/// The state of a realm that Bursar writes to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RealmStatus {
    pub name: String,
    /// When it was last read completely.
    pub read_at: Option<Timestamp>,
    /// The number of its users that belong to accounts of the ledger.
    pub users: u64,
    /// The number of steps that are left to the next cycle.
    pub waiting: u64,
    /// Why nothing can be done in the realm.
    pub trouble: Option<RealmTrouble>,
    /// Accounts that cannot have a user in the realm, with the reason.
    pub notices: Vec<Notice>,
}

/// A realm in which nothing can be done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RealmTrouble {
    /// The error with its causes.
    pub why: String,
    pub since: Timestamp,
    /// The number of failed attempts.
    pub attempts: u64,
    /// The realm is not tried again before this time.
    pub next_try: Timestamp,
}

/// A ledger that takes no writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerTrouble {
    /// The error with its causes.
    pub why: String,
    pub since: Timestamp,
    /// The number of accounts that have something to do when the ledger takes writes again.
    pub waiting: u64,
}

/// The backups in the state folder.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupStatus {
    /// When the newest was made.
    pub newest: Option<Timestamp>,
    /// Why the last backup failed; `None` if it succeeded.
    pub failed: Option<String>,
}

/// The state of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// Whether the watches that access depends on are up to date, and nothing keeps the daemon from working there.
    pub ready: bool,
    /// Why the cluster is not ready, or why nothing is written there.
    pub trouble: Option<String>,
    /// The number of Bursar's objects in the cluster.
    pub objects: u64,
    /// Endpoints that refused a credential or were unreachable at the last check, with the reason and the remedy.
    #[serde(default)]
    pub endpoints: BTreeMap<String, String>,
    /// What is wrong with the daemon's confinement there.
    #[serde(default)]
    pub confinement: Vec<String>,
    /// Why this host could make itself the cluster's administrator; absent if it could not.
    #[serde(default)]
    pub administrator: Option<String>,
    /// How the approver's rules differ from the configuration, the ledger and the seal key; absent if they agree, or if
    /// there is no approver.
    #[serde(default)]
    pub approver: Option<String>,
    /// When the daemon's own certificate expires; absent if the daemon uses an administrator's kubeconfig.
    #[serde(default)]
    pub own_certificate_until: Option<Timestamp>,
    /// Certificates that were signed for requests in the daemon's name that Bursar did not make.
    #[serde(default)]
    pub unknown_certificates: Vec<String>,
    /// The webhook's answer to the last test review that the API server sent to it; absent if no webhook is installed,
    /// or if none was sent yet.
    #[serde(default)]
    pub webhook: Option<WebhookAnswer>,
    /// The rules that are not enforced, because no webhook is installed.
    #[serde(default)]
    pub unenforced: Option<String>,
    /// Adopted namespaces whose level of Pod Security is weaker than their class requires.
    #[serde(default)]
    pub weaker: Vec<String>,
}

/// An answer of the webhook.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WebhookAnswer {
    /// When the webhook was asked.
    pub at: Timestamp,
    /// What was wrong with the answer; `None` if it was right.
    pub trouble: Option<String>,
}

/// A tenant with a failing step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failing {
    pub account: AccountName,
    pub cluster: String,
    /// The name of the step.
    pub step: String,
    /// The reason, with the remedy.
    pub reason: String,
    pub since: Timestamp,
    /// The number of failed attempts.
    pub attempts: u64,
    /// The step is not tried again before this time.
    pub next_try: Timestamp,
}

/// What a cycle did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CycleReport {
    /// The id of its row in table `cycle`.
    pub id: i64,
    /// What started the cycle.
    pub trigger: Trigger,
    /// When it began.
    pub began: Timestamp,
    /// When it ended.
    pub ended: Timestamp,
    /// The number of accounts with something to do.
    pub changed: u64,
    /// The number of accounts that were already as desired.
    pub unchanged: u64,
    /// The number of actions that were carried out.
    pub actions: u64,
    /// The number of accounts that are left to the next cycle, because an order or the end of the daemon cut this one
    /// short.
    #[serde(default)]
    pub left: u64,
    /// Accounts that fail now.
    pub failing: Vec<Failing>,
    /// Entries that failed a check.
    pub rejected: u64,
    /// Sources whose read was Partial or Stale, with the reason.
    pub partial: BTreeMap<String, String>,
    /// Changes that a limit held back.
    pub refusals: Vec<RefusalRecord>,
    /// Limits that are nearly used up.
    #[serde(default)]
    pub near: Vec<LimitUse>,
    /// Changes of the policy that are in progress.
    #[serde(default)]
    pub pace: Vec<PolicyProgress>,
    /// Quotas that are below what is in use.
    #[serde(default)]
    pub over_quota: Vec<OverQuota>,
    /// Objects in the clusters that have Bursar's label, but are not in the ledger.
    #[serde(default)]
    pub unknown: Vec<Unknown>,
    /// Revocations of classes that are in progress.
    #[serde(default)]
    pub revocations: Vec<RevocationProgress>,
    /// Orders and decisions about accounts that are not finished.
    #[serde(default)]
    pub unfinished: Vec<Unfinished>,
    /// Accounts that were revoked and do not have their new certificate yet.
    #[serde(default)]
    pub being_revoked: BTreeSet<AccountName>,
    /// Unreachable clusters in which tenants have changes that wait.
    #[serde(default)]
    pub away: BTreeMap<String, Away>,
    /// Why nothing could be done in the realm that Bursar writes to.
    #[serde(default)]
    pub realm: Option<String>,
    /// Sources that have not answered yet. Their last answers were used; the cycle that takes the next ones follows.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub reading: BTreeMap<String, StillReading>,
    /// In older rows of the ledger: the number of entries that each list had in addition to those that are kept.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub left_out: BTreeMap<String, u64>,
}

/// A source whose read is in progress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StillReading {
    /// The number of entries received so far.
    pub entries: u64,
    /// When the source was last read.
    pub last: Option<Timestamp>,
    /// The number of the caller's request for the present state of the source; 0 if the caller made none.
    pub request: u64,
}

impl fmt::Display for StillReading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { entries, last, request: _ } = self;
        write!(f, "still reading, {}; ", counted_entries(*entries))?;
        match last {
            Some(at) => write!(f, "the last answer of {at:.0} is used"),
            None => f.write_str("there is no earlier answer"),
        }
    }
}

/// An unreachable cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Away {
    pub why: Option<String>,
    /// The number of tenants that wait for the cluster.
    pub tenants: u64,
}

/// The number of entries of each list that an older row of the ledger keeps, which is enough to recognise the problem.
/// Ten thousand rows are kept, and without this limit each could name every account.
const EXAMPLES: usize = 20;

impl CycleReport {
    /// Returns the counts and examples that the ledger keeps when the report is no longer the newest; `None` if it
    /// keeps everything.
    #[must_use]
    pub fn shorter(&self) -> Option<Self> {
        let mut row = self.clone();
        let mut left_out: BTreeMap<String, u64> = BTreeMap::new();
        let mut cut = |list: &str, entries: usize| {
            let more = entries.saturating_sub(EXAMPLES) as u64;
            if more > 0 {
                *left_out.entry(list.to_owned()).or_default() += more;
            }
        };
        cut("failing", row.failing.len());
        row.failing.truncate(EXAMPLES);
        cut("over_quota", row.over_quota.len());
        row.over_quota.truncate(EXAMPLES);
        cut("unknown", row.unknown.len());
        row.unknown.truncate(EXAMPLES);
        cut("unfinished", row.unfinished.len());
        row.unfinished.truncate(EXAMPLES);
        cut("being_revoked", row.being_revoked.len());
        row.being_revoked = row.being_revoked.into_iter().take(EXAMPLES).collect();
        cut("refusals", row.refusals.len());
        row.refusals.truncate(EXAMPLES);
        for refusal in &mut row.refusals {
            cut("refused accounts", refusal.accounts.len());
            refusal.accounts.truncate(EXAMPLES);
            refusal.parts.truncate(EXAMPLES);
        }
        (!left_out.is_empty()).then_some(Self { left_out, ..row })
    }

    /// Returns how long the rest takes at this cycle's pace; `None` if nothing is left, or if the cycle finished no
    /// account.
    #[must_use]
    pub fn remaining(&self) -> Option<SignedDuration> {
        let done = self.changed.checked_sub(self.left).filter(|done| *done > 0 && self.left > 0)?;
        let took = self.ended.duration_since(self.began).as_secs().max(1);
        let seconds = i64::try_from(self.left).ok()?.checked_mul(took)? / i64::try_from(done).ok()?;
        Some(SignedDuration::from_secs(seconds))
    }

    /// Returns the exit code of `bursar sync`: 3 if a limit held something back; 1 if an account fails, a source is
    /// Partial, tenants wait for a cluster or nothing can be done in the realm; else 0.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match () {
            () if !self.refusals.is_empty() => 3,
            () if !self.failing.is_empty() || !self.partial.is_empty() => 1,
            () if !self.away.is_empty() || self.realm.is_some() => 1,
            () => 0,
        }
    }
}

/// Selects the plan; the default is the plan of the next cycle.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanRequest {
    /// Plan with this configuration instead of the one in force.
    pub config: Option<ConfigText>,
    /// Include what falls due until this time.
    pub at: Option<Timestamp>,
}

/// A configuration file as the caller read it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfigText {
    /// The path of the file. Relative paths in the file start at its folder.
    pub file: PathBuf,
    pub text: String,
}

/// A plan, as text and as data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanAnswer {
    /// The plan's `Display`, for people.
    pub text: String,
    /// As in `bursar plan --json`, for programs.
    pub plan: Value,
    /// 0 if there is nothing to do, 2 if there are changes, 3 if some changes are refused.
    pub exit_code: u8,
}

/// The answer to orders. The orders are recorded and, if a daemon runs, the cycle in `report` carried them out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct OrderAnswer {
    /// What happened, one line for each order.
    pub text: String,
    /// Orders that could not be recorded. All other orders were recorded.
    pub refused: Vec<RequestRefusal>,
    /// Accounts with an order that a cycle has to carry out.
    #[serde(default)]
    pub ordered: BTreeSet<AccountName>,
    /// Those accounts of `ordered` whose order is about access. Such an order stays open while a delivery to a home
    /// fails.
    #[serde(default)]
    pub of_access: BTreeSet<AccountName>,
    /// Orders that were recorded, but are not finished; the exit code is 3 if a limit refuses one, else 1.
    #[serde(default)]
    pub open: Vec<RequestRefusal>,
    /// The accounts of `ordered` whose older certificates are revoked.
    #[serde(default)]
    pub revoked: Vec<AccountName>,
    /// The proof of the revocation, for each revoked account.
    #[serde(default)]
    pub proofs: Vec<RevocationProof>,
    /// The cycle that carried out the orders.
    pub report: Option<CycleReport>,
}
