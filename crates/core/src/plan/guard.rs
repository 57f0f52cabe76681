//! Turns a [`Plan`] into an [`ApprovedPlan`], and refuses what limits, incomplete reads or holds do not allow.
//!
//! If a removal exceeds a limit, only that removal is refused. All other changes continue, including those of the same
//! account ([`AccountPlan::otherwise`]). Only [`guard`] makes an [`ApprovedPlan`].

mod limits;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::Serialize;

use self::limits::LimitEvaluator;
use super::budget::BUDGETS;
use super::confine::confine;
use super::hold::keeps;
use super::limit_usage::{LimitUse, near_limits};
use super::pace::{Paced, PolicyProgress, pace};
use super::realm::guard::is_of_realm;
use super::reaper::{Waiting, cap};
use super::subjects::without_refused_returns;
use super::{AccountPlan, Plan, hash};
use crate::identity::{AccountId, AccountKind, AccountName, ClusterName};
use crate::ledger::accounts::Accounts;
use crate::ledger::approval::APPROVAL_HOLDS;
use crate::ledger::change::{Change, RefusalRecord};
use crate::ledger::pace::PaceRecord;
use crate::ledger::{Account, LedgerState, Lifecycle, Spending, Spent, Tenant};
use crate::policy::{Limits, Policy};
use crate::shared_map::SharedMap;
use crate::snapshot::Completeness;

/// [`Refusal::limit`] if a read was not complete.
pub const COMPLETENESS: &str = "completeness";

/// [`Refusal::limit`] if attributes vanished from a source, and their loss is doubted.
pub const ATTRIBUTES: &str = "attributes";
/// [`Refusal::limit`] if an import is doubted.
pub const IMPORT: &str = "import";
/// [`Refusal::limit`] if servers disagree about an absence.
pub const ABSENCE: &str = "absence";
/// [`Refusal::limit`] if several groups became empty in the same read, and their loss of members is doubted.
pub const EMPTIED: &str = "emptied";

/// The inputs of [`guard`] besides the plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Bounds {
    /// `[limits]`.
    pub limits: Limits,
    /// The number of active accounts of each class.
    pub tenants: BTreeMap<String, u64>,
    /// The number of members of the accounts of each class.
    pub members: BTreeMap<String, u64>,
    /// The completeness of each source's last read. A source that was never read is absent.
    pub completeness: BTreeMap<String, Completeness>,
    /// The source of each directory group.
    pub groups: BTreeMap<AccountId, String>,
    /// The amounts that recent changes used of the daily limits.
    pub spent: Vec<Spent>,
    /// The hashes of approved parts and sets, and when the approval expires.
    pub approvals: BTreeMap<String, Timestamp>,
    /// The refusals of the last cycle, except those in the realm.
    pub refusals: Vec<RefusalRecord>,
    /// The refusals of the last cycle in the realm. The realm has a guard of its own ([`super::realm::guard`]).
    pub realm_refusals: Vec<RefusalRecord>,
    /// Changes of the policy that are in progress, by class.
    pub paces: BTreeMap<String, PaceRecord>,
    /// Classes whose policy change is paused, because an account that got the change fails.
    pub stopped: BTreeSet<String>,
    /// [`Policy::revision`] of each class.
    pub revisions: BTreeMap<String, String>,
    /// The number of idle accounts that may be suspended in one cycle.
    pub idle_per_cycle: u64,
    /// The number of pods that may be deleted in one cycle because their lifetime is over.
    pub pods_per_cycle: u64,
    /// Accounts with a failed step.
    pub failing: BTreeSet<AccountId>,
    /// Refusals because of doubts about the statements of sources.
    pub doubts: Vec<Refusal>,
    /// Clusters in which nothing is granted or repaired, because the daemon's confinement is not confirmed.
    pub unconfined: BTreeSet<ClusterName>,
}

impl Bounds {
    /// Reads the bounds from the ledger and the configuration.
    #[must_use]
    pub fn of(ledger: &LedgerState, policy: &Policy) -> Self {
        let mut counts = Counts::default();
        counts.follow(ledger);
        Self::with(&counts, ledger, policy)
    }

    /// Like [`Bounds::of`], with accounts that are counted already.
    pub(super) fn with(counts: &Counts, ledger: &LedgerState, policy: &Policy) -> Self {
        let (realm_refusals, refusals) = ledger.refusals.iter().cloned().partition(is_of_realm);
        Self {
            limits: policy.limits.clone(),
            tenants: counts.classes.iter().map(|(class, count)| (class.clone(), count.served)).collect(),
            members: counts.classes.iter().map(|(class, count)| (class.clone(), count.members)).collect(),
            completeness: ledger.sources.iter().map(|(name, it)| (name.clone(), it.completeness.clone())).collect(),
            groups: counts.groups.clone(),
            spent: ledger.spent.clone(),
            approvals: ledger.approvals.clone(),
            refusals,
            realm_refusals,
            paces: ledger.paces.clone(),
            stopped: ledger
                .paces
                .iter()
                .filter(|(_, pace)| !ledger.stopped_by(pace).is_empty())
                .map(|(class, _)| class.clone())
                .collect(),
            revisions: policy.classes.keys().map(|class| (class.clone(), policy.revision(class))).collect(),
            idle_per_cycle: policy.reapers.namespaces.as_ref().map_or(0, |idle| idle.per_cycle),
            pods_per_cycle: policy.reapers.pods.as_ref().map_or(0, |pods| pods.per_cycle),
            failing: ledger
                .failures
                .iter()
                .filter(|(_, failure)| failure.attempts > 0 && !failure.is_of_realm() && !failure.is_of_adopted())
                .map(|((id, _), _)| id.clone())
                .collect(),
            doubts: super::doubt::refusals(ledger, policy.lifecycle.absent_for),
            unconfined: BTreeSet::new(),
        }
    }

    fn is_complete(&self, source: &str) -> bool {
        self.completeness.get(source) == Some(&Completeness::Complete)
    }
}

/// The numbers of accounts by class, and the groups. They are updated from the differences between two ledgers.
#[derive(Debug, Default)]
pub(super) struct Counts {
    accounts: Accounts,
    tenants: SharedMap<(AccountId, ClusterName), Tenant>,
    classes: BTreeMap<String, Count>,
    groups: BTreeMap<AccountId, String>,
}

#[derive(Debug, Default)]
struct Count {
    accounts: u64,
    served: u64,
    members: u64,
}

impl Counts {
    /// Updates the counts to the state of `ledger`.
    pub(super) fn follow(&mut self, ledger: &LedgerState) {
        let accounts = std::mem::replace(&mut self.accounts, ledger.accounts.clone());
        let tenants = std::mem::replace(&mut self.tenants, ledger.tenants.clone());
        let changed = ledger.accounts.differences(&accounts).into_iter().map(|(id, ..)| id);
        let moved = ledger.tenants.differences(&tenants).into_iter().map(|((id, _), ..)| id);
        for id in changed.chain(moved).collect::<BTreeSet<_>>() {
            if let Some(account) = accounts.get(id) {
                let (class, served) = (first_class(account, &tenants), u64::from(account.state == Lifecycle::Active));
                let count = self.classes.entry(class.clone()).or_default();
                count.accounts -= 1;
                count.served -= served;
                count.members -= account.members.len() as u64;
                if count.accounts == 0 {
                    self.classes.remove(&class);
                }
                self.groups.remove(id);
            }
            if let Some(account) = ledger.accounts.get(id) {
                let count = self.classes.entry(first_class(account, &ledger.tenants)).or_default();
                count.accounts += 1;
                count.served += u64::from(account.state == Lifecycle::Active);
                count.members += account.members.len() as u64;
                if account.kind == AccountKind::Group {
                    self.groups.insert(id.clone(), account.source.clone());
                }
            }
        }
    }
}

/// Returns the class by which `[limits]` counts an account: the class of its first tenant row, otherwise its kind in
/// the plural.
pub(super) fn first_class(account: &Account, tenants: &SharedMap<(AccountId, ClusterName), Tenant>) -> String {
    let from = (account.id.clone(), ClusterName::default());
    let first = tenants.range(from..).next().filter(|((id, _), _)| *id == account.id);
    first.map_or_else(|| format!("{}s", account.kind), |(_, tenant)| tenant.class.clone())
}

/// Changes that the guard refuses for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// The key in `[limits]`, or [`COMPLETENESS`], [`ATTRIBUTES`], [`IMPORT`], [`ABSENCE`] or [`EMPTIED`].
    pub limit: String,
    /// The class that the limit counts. If `limit` is not a key in `[limits]`, the source.
    pub class: String,
    /// The number of changes that the limit allows. For a doubt, the number of accounts now.
    pub allowed: u64,
    /// The number of changes that were planned. For a doubt, the number of accounts before.
    pub wanted: u64,
    /// `suspensions`, `suspensions by a mark`, `removals of access`, `removals`, `members`, `deletions`, `resumptions`,
    /// `realm users` or `realm roles`. For [`ATTRIBUTES`], the attribute; for [`ABSENCE`], the answers of the servers.
    pub what: String,
    /// The accounts whose changes are refused.
    pub accounts: Vec<AccountName>,
    /// The hash to approve; `None` if the refusal cannot be approved.
    pub hash: Option<String>,
    /// The hash of each account's part.
    #[serde(skip)]
    pub parts: Vec<String>,
}

impl Refusal {
    /// Returns the refusal in the form that the ledger keeps.
    #[must_use]
    pub fn record(&self) -> RefusalRecord {
        RefusalRecord {
            hash: hash::of_parts(&self.parts),
            limit: self.limit.clone(),
            why: self.to_string(),
            accounts: self.accounts.clone(),
            parts: self.parts.clone(),
        }
    }
}

/// A plan of which every step may be executed. Only [`guard`] makes one.
#[derive(Debug, Clone, PartialEq)]
pub struct ApprovedPlan {
    pub(super) accounts: Vec<AccountPlan>,
    pub(super) hash: String,
    pub(super) spent: BTreeMap<(Spending, String), u64>,
    /// Approvals that this plan uses up.
    pub(super) used: BTreeSet<String>,
    /// The refusals to record; `None` if they are in the ledger already.
    pub(super) refusals: Option<Vec<RefusalRecord>>,
    pub(super) paced: Paced,
    pub(super) reaped_later: Waiting,
    pub(super) near: Vec<LimitUse>,
}

impl ApprovedPlan {
    /// Returns the plan of each account.
    #[must_use]
    pub fn accounts(&self) -> &[AccountPlan] {
        &self.accounts
    }

    /// Returns the hash that identifies the plan in the history.
    #[must_use]
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// Returns the progress of policy changes after this plan.
    #[must_use]
    pub fn progress(&self, ledger: &LedgerState) -> Vec<PolicyProgress> {
        self.paced.under_way.iter().map(|(class, pace)| PolicyProgress::of_class(class, pace, ledger)).collect()
    }

    /// Returns the pods and accounts that the reapers leave to later cycles.
    #[must_use]
    pub const fn reaped_later(&self) -> &Waiting {
        &self.reaped_later
    }

    /// Returns the limits that are nearly used up after this plan.
    #[must_use]
    pub fn near(&self) -> &[LimitUse] {
        &self.near
    }
}

/// Returns the ledger changes that approve the refusal, or all refusals, with this hash. Each part may then pass once
/// before the approval expires ([`APPROVAL_HOLDS`]). Returns `None` if the hash matches no refusal.
#[must_use]
pub fn approve(ledger: &LedgerState, hash: &str, now: Timestamp) -> Option<Vec<Change>> {
    let approvable =
        || ledger.refusals.iter().filter(|refusal| refusal.limit != COMPLETENESS && !refusal.parts.is_empty());
    let all: Vec<&String> = approvable().flat_map(|refusal| &refusal.parts).collect();
    let parts = match approvable().find(|refusal| refusal.hash == hash) {
        Some(refusal) => refusal.parts.iter().collect(),
        None if !all.is_empty() && hash::of_parts(all.iter().copied()) == hash => all,
        None => return None,
    };
    Some(parts.into_iter().map(|part| Change::Approval(part.clone(), Some(now + APPROVAL_HOLDS))).collect())
}

/// Returns the hash with which `bursar approve` approves all refusals; `None` if none can be approved.
#[must_use]
pub fn refused_hash(refusals: &[Refusal]) -> Option<String> {
    let parts: Vec<&String> =
        refusals.iter().filter(|refusal| refusal.hash.is_some()).flat_map(|it| &it.parts).collect();
    (!parts.is_empty()).then(|| hash::of_parts(parts))
}

/// Removes the changes that must not be made now from the plan. Returns the rest, and the refusals.
#[must_use]
pub fn guard(plan: Plan, bounds: &Bounds, now: Timestamp) -> (ApprovedPlan, Vec<Refusal>) {
    let mut limits = LimitEvaluator::new(bounds, now);
    limits.held =
        plan.accounts.iter().filter(|plan| plan.held.is_some() && keeps(plan)).map(|it| it.id.clone()).collect();
    let accounts: Vec<AccountPlan> = plan.accounts.into_iter().filter_map(unless_held).collect();
    // Resumptions are judged first, because the alternative of an account whose members may not leave still resumes the
    // account.
    let [resumptions, removals @ ..] = &BUDGETS;
    let all: Vec<&AccountPlan> = accounts.iter().collect();
    limits.limit(&all, resumptions);
    limits.completeness(&all);
    let idle = super::idle::over(&accounts, bounds.idle_per_cycle);
    limits.refused.extend(idle.iter().map(|plan| plan.id.clone()));
    let idle = idle.iter().map(|plan| plan.account.clone()).collect();
    for budget in removals {
        limits.limit(&all, budget);
    }
    limits.dependants(&all);
    let accounts = limits.remaining(accounts);
    let mut accounts = limits.leavings(accounts);
    limits.access(&mut accounts);
    confine(&mut accounts, &bounds.unconfined);
    without_refused_returns(&mut accounts);
    let paced = pace(&mut accounts, bounds, now);
    let (spent, used) = limits.used(&accounts);
    let mut refusals = limits.refusals;
    refusals.extend(bounds.doubts.iter().cloned());
    let reaped_later = Waiting { pods: cap(&mut accounts, bounds.pods_per_cycle), idle };
    let records: Vec<RefusalRecord> = refusals.iter().map(Refusal::record).collect();
    let parts: Vec<String> = accounts.iter().map(hash::part).collect();
    let approved = ApprovedPlan {
        hash: hash::of_parts(&parts),
        accounts,
        near: near_limits(bounds, &spent, &refusals, now),
        spent,
        used,
        paced,
        reaped_later,
        refusals: (records != bounds.refusals).then(|| [records, bounds.realm_refusals.clone()].concat()),
    };
    (approved, refusals)
}

/// Returns the plan, or for a held account the part that is carried out in spite of the hold.
fn unless_held(plan: AccountPlan) -> Option<AccountPlan> {
    if plan.held.is_some() { plan.otherwise.map(|plan| *plan) } else { Some(plan) }
}
