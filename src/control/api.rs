//! What `bursar` and `bursard` say to each other over the control socket: HTTP/1.1 with JSON bodies. PURE: no
//! runtime, no client, no file system, no clock.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/status` | [`Status`] |
//! | `GET /v1/plan`, or `POST` with a [`PlanRequest`] | [`PlanAnswer`] |
//! | `POST /v1/sync` | [`CycleReport`], when the cycle that began after the request is done |
//! | `POST /v1/orders` with an array of `OrderRequest` | [`OrderAnswer`] |
//! | `POST /v1/ensure` with an `EnsureRequest` | `EnsureAnswer`, at once |
//! | `POST /v1/own/show` and `/v1/own/why` with an [`OwnRequest`] | as `bursar show` and `why` with `--json`, to anybody, of their own |
//! | `POST /v1/own/who` with a [`WhoRequest`] | as `bursar who --json`, to anybody, of their own |
//! | `GET /metrics` | Prometheus text |
//! | `GET /healthz` | `ok`, `degraded: ` and why the ledger takes no writes, or 503 and why the loop does not turn |
//!
//! Everything else than 200 carries a `Refusal`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::desired::Notice;
use crate::identity::AccountName;
use crate::inventory::Touched;
use crate::ledger::SourceState;
use crate::ledger::change::RefusalRecord;
use crate::ledger::missing::Missing;
use crate::ledger::suspension;
use crate::orders::request::{Refusal, Trigger};
use crate::plan::adopted::Unowned;
use crate::plan::limit_usage::LimitUse;
use crate::plan::pace::Progress;
use crate::plan::quota::OverQuota;
use crate::plan::revocation;
use crate::plan::unknown::Unknown;
use crate::report::unfinished::Unfinished;
use crate::report::who::What;
use crate::snapshot::RejectedEntry;

/// The account that a caller who may not read all asks about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnRequest {
    /// Their own account where it is absent.
    pub of: Option<AccountName>,
}

/// What a caller who may not read all met in a log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WhoRequest {
    /// It.
    pub what: What,
}

/// How things stand.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// From the configuration.
    pub site: String,
    /// What each directory last answered.
    pub sources: BTreeMap<String, SourceState>,
    /// How each cluster is.
    pub clusters: BTreeMap<String, ClusterStatus>,
    /// The last cycle that ended.
    pub last_cycle: Option<CycleReport>,
    /// Accounts by state.
    pub accounts: BTreeMap<String, u64>,
    /// Entries that failed a check.
    pub rejected: Vec<RejectedEntry>,
    /// Accounts that a directory no longer shows, and that are suspended if that goes on.
    #[serde(default)]
    pub missing: Vec<Missing>,
    /// Namespaces that a class would adopt, and that are nobody's.
    #[serde(default)]
    pub unowned: Vec<Unowned>,
    /// Ordered suspensions with an end.
    #[serde(default)]
    pub suspended: Vec<suspension::Ending>,
    /// What fails, and why.
    pub failing: Vec<Failing>,
    /// What was ordered or decided about an account and is not done to its end.
    #[serde(default)]
    pub unfinished: Vec<Unfinished>,
    /// What a limit refuses.
    pub refusals: Vec<RefusalRecord>,
    /// Changes of the policy that are under way.
    #[serde(default)]
    pub pace: Vec<Progress>,
    /// Revocations of classes that are under way.
    #[serde(default)]
    pub revocations: Vec<revocation::Progress>,
    /// When the first certificate ends.
    pub next_expiry: Option<Timestamp>,
    /// Why the ledger takes no writes, and so nothing is written anywhere.
    #[serde(default)]
    pub ledger: Option<LedgerTrouble>,
    /// Length of the ledger's WAL in MiB, and who reads so long that it grows.
    #[serde(default)]
    pub wal: Option<(u64, Vec<String>)>,
    /// The ledger's nightly backups.
    #[serde(default)]
    pub backup: BackupStatus,
    /// The realm that is written to.
    #[serde(default)]
    pub realm: Option<RealmStatus>,
    /// How the file differs from the configuration in force.
    #[serde(default)]
    pub configuration: Option<String>,
}

/// How a realm that is written to is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RealmStatus {
    /// Its name.
    pub name: String,
    /// When it was last read whole.
    pub read_at: Option<Timestamp>,
    /// Users that are ours.
    pub users: u64,
    /// Steps that are left to the next cycle.
    pub waiting: u64,
    /// Why nothing is done there.
    pub trouble: Option<RealmTrouble>,
    /// Who cannot have a user there.
    pub notices: Vec<Notice>,
}

/// A realm in which nothing can be done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RealmTrouble {
    /// Why, with its cause.
    pub why: String,
    /// Since when.
    pub since: Timestamp,
    /// How often.
    pub attempts: u64,
    /// Not before.
    pub next_try: Timestamp,
}

/// A ledger that takes no writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerTrouble {
    /// Why, with its cause.
    pub why: String,
    /// Since when.
    pub since: Timestamp,
    /// Accounts for which something is to be done when it takes them again.
    pub waiting: u64,
}

/// The backups in the state folder.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupStatus {
    /// When the newest was made.
    pub newest: Option<Timestamp>,
    /// Why there is no newer one.
    pub failed: Option<String>,
}

/// How a cluster is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// The watches of what access is made of are up to date, and nothing keeps the daemon from working there.
    pub ready: bool,
    /// What keeps them from it, or why nothing is written there.
    pub trouble: Option<String>,
    /// Objects of ours.
    pub objects: u64,
    /// Endpoints that do not take credentials, with why and the remedy.
    #[serde(default)]
    pub endpoints: BTreeMap<String, String>,
    /// What is wrong with what confines the daemon there.
    #[serde(default)]
    pub confinement: Vec<String>,
    /// Why who has this host has the cluster; absent: they have not.
    #[serde(default)]
    pub administrator: Option<String>,
    /// When the daemon's own certificate ends; absent for an administrator's own kubeconfig.
    #[serde(default)]
    pub own_certificate_until: Option<Timestamp>,
    /// Certificates that were signed for requests of the daemon, and that it did not ask for.
    #[serde(default)]
    pub unknown_certificates: Vec<String>,
    /// The webhook's answer to the last review that the daemon had the API server ask; absent: none is installed, or none was
    /// asked yet.
    #[serde(default)]
    pub webhook: Option<WebhookAnswer>,
    /// What nobody enforces, because no webhook is installed.
    #[serde(default)]
    pub unenforced: Option<String>,
    /// Adopted namespaces with a weaker level of Pod Security than their class asks for.
    #[serde(default)]
    pub weaker: Vec<String>,
}

/// An answer of the webhook.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WebhookAnswer {
    /// When it was asked.
    pub at: Timestamp,
    /// Why it did not answer as it should.
    pub trouble: Option<String>,
}

/// A tenant with a failing step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failing {
    /// Whose.
    pub account: AccountName,
    /// Where.
    pub cluster: String,
    /// Which step.
    pub step: String,
    /// Why, with the remedy.
    pub reason: String,
    /// Since when.
    pub since: Timestamp,
    /// How often.
    pub attempts: u64,
    /// Not before.
    pub next_try: Timestamp,
}

/// What a cycle did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CycleReport {
    /// Row of table `cycle`.
    pub id: i64,
    /// What set it off.
    pub trigger: Trigger,
    /// When it began.
    pub began: Timestamp,
    /// When it ended.
    pub ended: Timestamp,
    /// Accounts with something to do.
    pub changed: u64,
    /// Accounts that were as they should be.
    pub unchanged: u64,
    /// Actions carried out.
    pub actions: u64,
    /// Accounts left to the next cycle, because an order or the end of the daemon cut this one short.
    #[serde(default)]
    pub left: u64,
    /// Accounts that fail now.
    pub failing: Vec<Failing>,
    /// Entries that failed a check.
    pub rejected: u64,
    /// Sources whose read was Partial, with why.
    pub partial: BTreeMap<String, String>,
    /// What a limit held back.
    pub refusals: Vec<RefusalRecord>,
    /// Limits of which little is left.
    #[serde(default)]
    pub near: Vec<LimitUse>,
    /// Changes of the policy that are under way.
    #[serde(default)]
    pub pace: Vec<Progress>,
    /// Quotas that give less than is in use.
    #[serde(default)]
    pub over_quota: Vec<OverQuota>,
    /// Objects with Bursar's label in clusters that the ledger does not know.
    #[serde(default)]
    pub unknown: Vec<Unknown>,
    /// Revocations of classes that are under way.
    #[serde(default)]
    pub revocations: Vec<revocation::Progress>,
    /// What was ordered or decided about an account and is not done to its end.
    #[serde(default)]
    pub unfinished: Vec<Unfinished>,
    /// Accounts that were revoked and do not have their new certificate yet.
    #[serde(default)]
    pub being_revoked: BTreeSet<AccountName>,
    /// Clusters that are not reachable, and in which tenants have something to wait for.
    #[serde(default)]
    pub away: BTreeMap<String, Away>,
    /// Why nothing could be done in the realm that is written to.
    #[serde(default)]
    pub realm: Option<String>,
    /// In older rows of the ledger: how many entries each list had beside those that are there.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub left_out: BTreeMap<String, u64>,
}

/// A cluster that is not reachable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Away {
    /// Why.
    pub why: Option<String>,
    /// Tenants that wait for it.
    pub tenants: u64,
}

/// Entries of each list that older rows of the ledger keep: enough to recognise the trouble. Ten thousand rows are kept, and
/// each of them could name every account.
const EXAMPLES: usize = 20;

impl CycleReport {
    /// Counts and examples: what the ledger keeps of a report that is no longer the newest. `None`: all of it.
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

    /// How long what is left takes at this cycle's pace; `None`: nothing is left, or nobody can say.
    #[must_use]
    pub fn remaining(&self) -> Option<SignedDuration> {
        let done = self.changed.checked_sub(self.left).filter(|done| *done > 0 && self.left > 0)?;
        let took = self.ended.duration_since(self.began).as_secs().max(1);
        let seconds = i64::try_from(self.left).ok()?.checked_mul(took)? / i64::try_from(done).ok()?;
        Some(SignedDuration::from_secs(seconds))
    }

    /// What `bursar sync` exits with: 3 when a limit held something back, 1 when an account fails, a source is Partial or
    /// tenants wait for a cluster, 0 when all is as it should be.
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

/// Which plan is asked for; the default is the next cycle's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanRequest {
    /// By this configuration instead of the one in force.
    pub config: Option<ConfigText>,
    /// With what falls due until then.
    pub at: Option<Timestamp>,
}

/// A configuration as its reader found it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfigText {
    /// Where it is; the files that it names may be relative to that.
    pub file: PathBuf,
    /// Its content.
    pub text: String,
}

/// A plan, as text and as data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanAnswer {
    /// For people: `Display` of the plan.
    pub text: String,
    /// For programs: `bursar plan --json`.
    pub plan: Value,
    /// 0 nothing to do, 2 changes, 3 changes of which a part is refused.
    pub exit_code: u8,
}

/// Orders were written down and, where a daemon runs, carried out by the cycle in `report`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct OrderAnswer {
    /// For people: what happened, an order a line.
    pub text: String,
    /// Orders that could not be written down; the others were.
    pub refused: Vec<Refusal>,
    /// Accounts about whom something was ordered that a cycle has to carry out.
    #[serde(default)]
    pub ordered: BTreeSet<AccountName>,
    /// Those of them whose order is about access: a home that fails leaves it open.
    #[serde(default)]
    pub of_access: BTreeSet<AccountName>,
    /// Orders that were written down and are not carried out to their end: exit code 3 where a limit refuses one, else 1.
    #[serde(default)]
    pub open: Vec<Refusal>,
    /// Those of them whose certificates are to be worth nothing.
    #[serde(default)]
    pub revoked: Vec<AccountName>,
    /// What proves it, for each revoked account.
    #[serde(default)]
    pub proofs: Vec<RevocationProof>,
    /// The cycle that carried it out.
    pub report: Option<CycleReport>,
}

/// What proves that older credentials of an account are worth nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevocationProof {
    /// Whose.
    pub account: AccountName,
    /// The only generation whose credentials are good.
    pub generation: u64,
    /// When the API server of each cluster answered that it allows older credentials nothing.
    pub refused: BTreeMap<String, String>,
    /// Bindings of others, in each cluster, that name their holder: what they give stays.
    #[serde(default)]
    pub bound_by_others: BTreeMap<String, Vec<String>>,
    /// Files with the new credential, with when each was written.
    pub delivered: BTreeMap<String, Timestamp>,
    /// What an eviction found, by cluster and namespace.
    #[serde(default)]
    pub evicted: BTreeMap<String, Evicted>,
    /// `deployment/web`: what was stopped, and can be started again.
    #[serde(default)]
    pub stopped: BTreeSet<String>,
    /// Clusters with an older credential about which their API server was not asked yet.
    #[serde(default)]
    pub unproved: BTreeSet<String>,
}

/// What an eviction found in a namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evicted {
    /// Names of the Secrets with tokens that were removed.
    pub secrets: Vec<String>,
    /// What others changed since the time that the administrator named.
    pub changed: Vec<Touched>,
}

impl RevocationProof {
    /// What is left for an administrator to do, if anything is.
    #[must_use]
    pub fn open(&self) -> Option<Refusal> {
        let bindings: Vec<String> = self
            .bound_by_others
            .iter()
            .map(|(cluster, bindings)| format!("in {cluster}: {}", bindings.join("; ")))
            .collect();
        let mut open = Vec::new();
        if !bindings.is_empty() {
            open.push(format!(
                "bindings that are not Bursar's name the holder of older credentials, {}; delete them, then run \
                 `bursar revoke` again",
                bindings.join(", ")
            ));
        }
        if !self.unproved.is_empty() {
            let clusters = self.unproved.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            open.push(format!("not proved yet that the API server of {clusters} refuses the older credentials"));
        }
        let text = format!("{}: {}", self.account, open.join("; "));
        (!open.is_empty()).then_some(Refusal { exit_code: 1, text })
    }

    /// Whether the API server of the cluster was asked about the older credentials.
    #[must_use]
    pub fn is_asked(&self, cluster: &str) -> bool {
        self.refused.contains_key(cluster) || self.bound_by_others.contains_key(cluster)
    }
}

impl std::fmt::Display for RevocationProof {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { account, generation, refused, bound_by_others: _, delivered, evicted, stopped, unproved: _ } = self;
        write!(f, "{account}: generation {generation}")?;
        refused.iter().try_for_each(|(cluster, at)| {
            write!(f, "; the API server of {cluster} refuses older credentials (asked {at})")
        })?;
        delivered.iter().try_for_each(|(file, at)| write!(f, "; new credential in {file} ({at:.0})"))?;
        for (place, Evicted { secrets, changed }) in evicted {
            let removed = if secrets.is_empty() { "none".to_owned() } else { secrets.join(", ") };
            write!(f, "\n  {place}: service account default made again; token Secrets removed: {removed}")?;
            changed
                .iter()
                .try_for_each(|Touched { at, object, by }| write!(f, "\n  changed {at:.0} by {by}: {object}"))?;
        }
        if !evicted.is_empty() && !stopped.is_empty() {
            let stopped: Vec<&str> = stopped.iter().map(String::as_str).collect();
            write!(f, "\n  stopped: {}; `bursar resume --start` starts what you name", stopped.join(", "))?;
        }
        Ok(())
    }
}
