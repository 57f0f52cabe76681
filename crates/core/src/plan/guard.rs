//! Turns a [`Plan`] into an [`ApprovedPlan`], and refuses what limits, incomplete reads or holds do not allow.
//!
//! If a removal exceeds a limit, only that removal is refused. All else continues, including other changes of the same
//! account ([`AccountPlan::otherwise`]). Only [`guard`] makes an [`ApprovedPlan`].

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::Serialize;

use super::budget::{ACCESS, BUDGETS, Budget, MEMBERS, RESUMED};
use super::confine::confine;
use super::hold::keeps;
use super::limit::{Limited, Verdict, judge, spent};
use super::limit_usage::{LimitUse, near_limits};
use super::pace::{Paced, Progress, pace};
use super::realm::guard::is_of_realm;
use super::reaper::{Waiting, cap};
use super::subjects::without_refused_returns;
use super::{AccountPlan, Plan, hash, loss};
use crate::desired::Transition;
use crate::identity::{AccountId, AccountKind, AccountName, ClusterName};
use crate::ledger::approval::{APPROVAL_HOLDS, is_approved};
use crate::ledger::change::{Change, RefusalRecord};
use crate::ledger::pace::PaceRecord;
use crate::ledger::{Account, LedgerState, Lifecycle, Spending, Spent, Suspension, Tenant};
use crate::policy::{Limits, Policy};
use crate::shared_map::SharedMap;
use crate::snapshot::Completeness;

/// [`Refusal::limit`] if a read was not complete.
pub const COMPLETENESS: &str = "completeness";

/// [`Refusal::limit`] if attributes vanished from a source, and the change is doubted.
pub const ATTRIBUTES: &str = "attributes";
/// [`Refusal::limit`] if an import is doubted.
pub const IMPORT: &str = "import";
/// [`Refusal::limit`] if servers disagree about an absence.
pub const ABSENCE: &str = "absence";
/// [`Refusal::limit`] if several groups became empty at once, and that is doubted.
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
    /// Refusals because of doubts about what sources report.
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
            doubts: super::doubt::refusals(ledger),
            unconfined: BTreeSet::new(),
        }
    }

    fn is_complete(&self, source: &str) -> bool {
        self.completeness.get(source) == Some(&Completeness::Complete)
    }
}

/// The numbers of accounts by class, and the groups. They are updated by the differences between two ledgers.
#[derive(Debug, Default)]
pub(super) struct Counts {
    accounts: SharedMap<AccountId, Account>,
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
    /// Updates the counts to those of `ledger`.
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

fn first_class(account: &Account, tenants: &SharedMap<(AccountId, ClusterName), Tenant>) -> String {
    let from = (account.id.clone(), ClusterName(String::new()));
    let first = tenants.range(from..).next().filter(|((id, _), _)| *id == account.id);
    first.map_or_else(|| format!("{}s", account.kind), |(_, tenant)| tenant.class.clone())
}

/// The class by which `[limits]` counts each account: the class of its first tenant row, else its kind in the plural.
pub(super) struct Classes<'a>(BTreeMap<&'a AccountId, &'a str>);

impl<'a> Classes<'a> {
    pub(super) fn of(ledger: &'a LedgerState) -> Self {
        let mut first: BTreeMap<&AccountId, &str> = BTreeMap::new();
        for ((id, _), tenant) in &ledger.tenants {
            first.entry(id).or_insert(&tenant.class);
        }
        Self(first)
    }

    pub(super) fn class(&self, account: &Account) -> String {
        self.0.get(&account.id).map_or_else(|| format!("{}s", account.kind), |class| (*class).to_owned())
    }
}

/// Changes that the guard refuses for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// The key in `[limits]`, or [`COMPLETENESS`], [`ATTRIBUTES`], [`IMPORT`], [`ABSENCE`] or
    /// [`EMPTIED`].
    pub limit: String,
    /// The class that the limit counts. For [`COMPLETENESS`], the source.
    pub class: String,
    /// The number of changes that the limit allows.
    pub allowed: u64,
    /// The number of changes that were planned.
    pub wanted: u64,
    /// `suspensions`, `suspensions by a mark`, `removals of access`, `removals`, `members`, `deletions`, `resumptions`,
    /// `realm users` or `realm roles`. For [`ATTRIBUTES`], the attribute.
    pub what: String,
    /// The accounts whose changes are refused.
    pub accounts: Vec<AccountName>,
    /// The hash to approve. `None` for [`COMPLETENESS`], which cannot be approved.
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
    pub fn progress(&self, ledger: &LedgerState) -> Vec<Progress> {
        self.paced.under_way.iter().map(|(class, pace)| Progress::of_class(class, pace, ledger)).collect()
    }

    /// Returns what the reapers leave to later cycles.
    #[must_use]
    pub const fn reaped_later(&self) -> &Waiting {
        &self.reaped_later
    }

    /// Returns the limits that are nearly used up after this plan.
    #[must_use]
    pub fn near(&self) -> &[LimitUse] {
        &self.near
    }

    /// Returns the accounts and clusters in which the plan has steps. Progress displays count them.
    #[must_use]
    pub fn places(&self) -> BTreeSet<(&AccountId, &ClusterName)> {
        let actions = self.accounts.iter().flat_map(|plan| plan.steps().map(|action| (&plan.id, action.cluster())));
        actions.collect()
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

/// Removes what must not be done now from the plan. Returns the rest, and the refusals.
#[must_use]
pub fn guard(plan: Plan, bounds: &Bounds, now: Timestamp) -> (ApprovedPlan, Vec<Refusal>) {
    let mut limits = LimitEvaluator::new(bounds, now);
    limits.held =
        plan.accounts.iter().filter(|plan| plan.held.is_some() && keeps(plan)).map(|it| it.id.clone()).collect();
    let accounts: Vec<AccountPlan> = plan.accounts.into_iter().filter_map(unless_held).collect();
    // Resumptions are judged first: if the members of an account may not leave, its alternative still resumes it.
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

/// Returns the plan, or for a held account the part of it that passes the hold.
fn unless_held(plan: AccountPlan) -> Option<AccountPlan> {
    if plan.held.is_some() { plan.otherwise.map(|plan| *plan) } else { Some(plan) }
}

/// The sort key that decides which accounts pass a limit first: disabled accounts, then the longest absent, then by
/// name.
fn precedence(plan: &AccountPlan) -> (bool, std::cmp::Reverse<u64>, &AccountName, &AccountId) {
    let disabled = matches!(plan.transition, Some(Transition::Suspend(Suspension::Disabled { .. })));
    let absent = plan.before.absence.map_or(0, |absence| absence.seconds);
    (!disabled, std::cmp::Reverse(absent), &plan.account, &plan.id)
}

/// Applies limits and completeness, and collects what they refuse.
struct LimitEvaluator<'a> {
    bounds: &'a Bounds,
    now: Timestamp,
    refusals: Vec<Refusal>,
    refused: BTreeSet<AccountId>,
    /// Accounts that were refused in an earlier pass of [`LimitEvaluator::remaining`].
    refused_before: BTreeSet<AccountId>,
    /// Accounts whose members may not leave now.
    members_stay: BTreeSet<AccountId>,
    /// Workspaces in which some people must stay because their removal is refused. All else in them may be done.
    keep_people: BTreeSet<AccountId>,
    not_resumed: BTreeSet<AccountId>,
    /// Held accounts whose suspension waits for their release.
    held: BTreeSet<AccountId>,
    /// The amounts that each account uses if it is not refused.
    uses: BTreeMap<AccountId, Vec<Use>>,
    /// Approvals of a whole set that were used.
    whole: BTreeSet<String>,
}

/// The amount of one budget that an account uses.
struct Use {
    spending: Spending,
    class: String,
    amount: u64,
    approval: Option<String>,
}

impl<'a> LimitEvaluator<'a> {
    fn new(bounds: &'a Bounds, now: Timestamp) -> Self {
        Self {
            bounds,
            now,
            refusals: Vec::new(),
            refused: BTreeSet::new(),
            refused_before: BTreeSet::new(),
            members_stay: BTreeSet::new(),
            keep_people: BTreeSet::new(),
            not_resumed: BTreeSet::new(),
            held: BTreeSet::new(),
            uses: BTreeMap::new(),
            whole: BTreeSet::new(),
        }
    }

    fn refuse(&mut self, mut refusal: Refusal, plans: &[&AccountPlan], part: fn(&AccountPlan) -> String) {
        refusal.accounts = plans.iter().map(|plan| plan.account.clone()).collect();
        refusal.parts = plans.iter().map(|plan| part(plan)).collect();
        refusal.hash = (refusal.limit != COMPLETENESS).then(|| hash::of_parts(&refusal.parts));
        self.refused.extend(plans.iter().map(|plan| plan.id.clone()));
        self.refusals.push(refusal);
    }

    /// Refuses removals that rest on a missing entry, if the last read of its source was not complete. The entry may
    /// exist although this read lacks it.
    fn completeness(&mut self, accounts: &[&AccountPlan]) {
        let mut by_source: BTreeMap<&str, Vec<&AccountPlan>> = BTreeMap::new();
        for plan in accounts.iter().copied() {
            if !plan.leaving.is_empty() && !self.bounds.is_complete(&plan.before.source) {
                self.members_stay.insert(plan.id.clone());
            }
            if let Some(source) = self.sources(plan).into_iter().find(|source| !self.bounds.is_complete(source)) {
                by_source.entry(source).or_default().push(plan);
            }
        }
        for (source, plans) in by_source {
            let refusal = Refusal {
                limit: COMPLETENESS.to_owned(),
                class: source.to_owned(),
                allowed: 0,
                wanted: plans.len() as u64,
                what: "removals".to_owned(),
                accounts: Vec::new(),
                hash: None,
                parts: Vec::new(),
            };
            self.refuse(refusal, &plans, hash::part);
        }
    }

    /// Returns the sources in which an entry has to be absent for this plan to be right.
    fn sources<'p>(&self, plan: &'p AccountPlan) -> BTreeSet<&'p str>
    where
        'a: 'p,
    {
        let absent = matches!(plan.transition, Some(Transition::Suspend(Suspension::Absent)));
        let ends = matches!(plan.transition, Some(Transition::Archive | Transition::Delete { .. }));
        let own = (absent || ends || !plan.leaving.is_empty()).then_some(plan.before.source.as_str());
        let bounds = self.bounds;
        own.into_iter()
            .chain(plan.rests_on.iter().filter_map(|group| bounds.groups.get(group).map(String::as_str)))
            .collect()
    }

    fn limit(&mut self, accounts: &[&AccountPlan], budget: &Budget) {
        let mut by_class: BTreeMap<&str, Vec<&AccountPlan>> = BTreeMap::new();
        for plan in accounts.iter().copied() {
            if (budget.amount)(plan) > 0 && !self.refused.contains(&plan.id) {
                by_class.entry(&plan.class).or_default().push(plan);
            }
        }
        for (class, mut plans) in by_class {
            plans.sort_by_key(|plan| precedence(plan));
            self.limit_class(class, &plans, budget);
        }
    }

    fn limit_class(&mut self, class: &str, plans: &[&AccountPlan], budget: &Budget) {
        let amounts: Vec<u64> = plans.iter().map(|plan| (budget.amount)(plan)).collect();
        let Limited { spending, what, .. } = budget.limited;
        let size = (budget.size)(self.bounds).get(class).copied().unwrap_or_default();
        let day = spent(&self.bounds.spent, spending, class, self.now);
        let (limit, left) = budget.limited.left(&self.bounds.limits, size, day);
        let let_through = self.uses.values().flatten().filter(|it| it.spending == spending && it.class == class);
        let left = left.saturating_sub(let_through.map(|it| it.amount).sum());
        let approves = |hash: &str| is_approved(&self.bounds.approvals, hash, self.now);
        let judged = judge(&amounts, left, approves, |place| (budget.part)(plans[place]));
        let Verdict { refused, mut approved, whole } = judged;
        self.whole.extend(whole);
        for (place, plan) in plans.iter().enumerate().filter(|(place, _)| !refused.contains(place)) {
            let approval = approved.remove(&place).filter(|part| is_approved(&self.bounds.approvals, part, self.now));
            let used = Use { spending, class: class.to_owned(), amount: amounts[place], approval };
            self.uses.entry(plan.id.clone()).or_default().push(used);
        }
        if !refused.is_empty() {
            let refusal = Refusal {
                limit: limit.to_owned(),
                class: class.to_owned(),
                allowed: left,
                wanted: amounts.iter().sum(),
                what: what.to_owned(),
                accounts: Vec::new(),
                hash: None,
                parts: Vec::new(),
            };
            let refused: Vec<&AccountPlan> = refused.iter().map(|place| plans[*place]).collect();
            if what == RESUMED {
                self.not_resumed.extend(refused.iter().map(|plan| plan.id.clone()));
            }
            if spending == MEMBERS.limited.spending {
                self.members_stay.extend(refused.iter().map(|plan| plan.id.clone()));
            }
            self.refuse(refusal, &refused, budget.part);
        }
    }

    /// Refuses the plans that rest on a refused account. If a workspace rests on the refused removal of people, these
    /// people stay in it, but its leaving members still leave.
    fn dependants(&mut self, accounts: &[&AccountPlan]) {
        let stays = |id: &AccountId| {
            [&self.refused, &self.refused_before, &self.held].into_iter().any(|some| some.contains(id))
        };
        let waits = |plan: &AccountPlan| plan.rests_on.iter().any(stays);
        let keeps = |plan: &AccountPlan| {
            let kept = plan.otherwise.as_deref().filter(|kept| kept.keeps_people);
            kept.is_some_and(|kept| !waits(kept))
        };
        let waiting = accounts.iter().copied().filter(|plan| !self.refused.contains(&plan.id) && waits(plan));
        let (keeping, waiting): (Vec<_>, Vec<_>) = waiting.partition(|plan| keeps(plan));
        let ids = |plans: Vec<&AccountPlan>| plans.into_iter().map(|plan| plan.id.clone()).collect::<Vec<_>>();
        let (keeping, waiting) = (ids(keeping), ids(waiting));
        self.keep_people.extend(keeping);
        self.refused.extend(waiting);
    }

    /// Replaces refused plans by their alternatives.
    fn remaining(&mut self, accounts: Vec<AccountPlan>) -> Vec<AccountPlan> {
        let (refused, keep_people) = (std::mem::take(&mut self.refused), std::mem::take(&mut self.keep_people));
        self.uses.retain(|id, _| !refused.contains(id));
        let is_refused_too = |kept: &AccountPlan| {
            kept.keeps_people || (!kept.leaving.is_empty() && self.members_stay.contains(&kept.id))
        };
        let remains = |plan: AccountPlan| {
            if keep_people.contains(&plan.id) {
                return plan.otherwise.map(|plan| *plan);
            }
            if !refused.contains(&plan.id) {
                return Some(plan);
            }
            let mut kept = *plan.otherwise?;
            while is_refused_too(&kept) {
                kept = *kept.otherwise?;
            }
            // The alternative may still resume the account although its resumption was refused.
            let returns = kept.transition == Some(Transition::Resume) && self.not_resumed.contains(&kept.id);
            if returns { kept.otherwise.map(|plan| *plan) } else { Some(kept) }
        };
        let remaining = accounts.into_iter().filter_map(remains).collect();
        self.refused_before.extend(refused);
        remaining
    }

    /// Judges the alternatives of refused accounts, because members may leave within their own limits even if the
    /// account's removal is refused.
    fn leavings(&mut self, accounts: Vec<AccountPlan>) -> Vec<AccountPlan> {
        let instead = accounts.iter().filter(|plan| self.refused_before.contains(&plan.id));
        let instead: Vec<&AccountPlan> = instead.collect();
        self.completeness(&instead);
        self.limit(&instead, &MEMBERS);
        self.dependants(&instead);
        self.remaining(accounts)
    }

    /// Applies the limit of access that is removed because of the configuration. Drops the steps that exceed it.
    fn access(&mut self, accounts: &mut Vec<AccountPlan>) {
        self.limit(&accounts.iter().collect::<Vec<_>>(), &ACCESS);
        accounts.iter_mut().filter(|plan| self.refused.contains(&plan.id)).for_each(loss::keep);
        accounts.retain(|plan| !plan.is_idle());
    }

    /// Returns what the remaining accounts use of limits and approvals. Steps that wait for the pace of a change use
    /// nothing yet.
    fn used(&self, accounts: &[AccountPlan]) -> (BTreeMap<(Spending, String), u64>, BTreeSet<String>) {
        let (mut spent, mut approvals) = (BTreeMap::new(), self.whole.clone());
        for (plan, used) in accounts.iter().filter_map(|plan| Some((plan, self.uses.get(&plan.id)?))) {
            for Use { spending, class, amount, approval } in used {
                let of_access = *spending == ACCESS.limited.spending;
                let amount = if of_access { (ACCESS.amount)(plan) } else { *amount };
                if amount > 0 {
                    *spent.entry((*spending, class.clone())).or_default() += amount;
                    approvals.extend(approval.clone());
                }
            }
        }
        (spent, approvals)
    }
}
