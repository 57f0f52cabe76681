//! What of a plan may be done: limits, completeness, holds, approvals. PURE: no runtime, no client, no file system, no
//! clock.
//!
//! What is over a limit is refused, that account's removal alone; the rest goes on, and so does whatever else the
//! refused account needs ([`AccountPlan::otherwise`]). Only [`guard`] makes an [`ApprovedPlan`].

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use super::budget::{BUDGETS, Budget};
use super::near::{LimitUse, near};
use super::pace::{Paced, Progress, pace};
use super::reaper::{Waiting, cap};
use super::{AccountPlan, Plan, hash};
use crate::desired::Transition;
use crate::identity::{AccountId, AccountName, ClusterName};
use crate::ledger::change::{Change, RefusalRecord};
use crate::ledger::pace::PaceRecord;
use crate::ledger::{LedgerState, Lifecycle, Spending, Spent, Suspension};
use crate::policy::{Limits, Policy};
use crate::snapshot::Completeness;

/// How long an approval holds: long enough for the next cycle, too short to be forgotten.
pub const APPROVAL_HOLDS: SignedDuration = SignedDuration::from_hours(1);

/// What is refused for want of a complete read, instead of a key of `[limits]`.
pub const COMPLETENESS: &str = "completeness";

/// A day of the limits.
const DAY: SignedDuration = SignedDuration::from_hours(24);

/// Everything that bounds what may be done at once.
#[derive(Debug, Clone, PartialEq)]
pub struct Bounds {
    /// `[limits]`.
    pub limits: Limits,
    /// Served accounts by class.
    pub tenants: BTreeMap<String, u64>,
    /// Their members by class.
    pub members: BTreeMap<String, u64>,
    /// What each source last answered; a source that is absent here never did.
    pub completeness: BTreeMap<String, Completeness>,
    /// The source of each directory group.
    pub groups: BTreeMap<AccountId, String>,
    /// What the last 24 hours used.
    pub spent: Vec<Spent>,
    /// Parts that may pass, and until when.
    pub approvals: BTreeMap<String, Timestamp>,
    /// What the last cycle refused.
    pub refusals: Vec<RefusalRecord>,
    /// Changes of the policy that are under way.
    pub paces: BTreeMap<String, PaceRecord>,
    /// Classes of which one that got the newest change fails since.
    pub stopped: BTreeSet<String>,
    /// [`Policy::revision`] of each class.
    pub revisions: BTreeMap<String, String>,
    /// Accounts that may be suspended in one cycle because nothing runs.
    pub idle_per_cycle: u64,
    /// Pods that may be ended in one cycle.
    pub pods_per_cycle: u64,
    /// Who fails.
    pub failing: BTreeSet<AccountId>,
}

impl Bounds {
    /// As the ledger and the configuration say.
    #[must_use]
    pub fn of(ledger: &LedgerState, policy: &Policy) -> Self {
        let mut first: BTreeMap<&AccountId, &str> = BTreeMap::new();
        for ((id, _), tenant) in &ledger.tenants {
            first.entry(id).or_insert(&tenant.class);
        }
        let mut bounds = Self {
            limits: policy.limits.clone(),
            tenants: BTreeMap::new(),
            members: BTreeMap::new(),
            completeness: ledger.sources.iter().map(|(name, it)| (name.clone(), it.completeness.clone())).collect(),
            groups: BTreeMap::new(),
            spent: ledger.spent.clone(),
            approvals: ledger.approvals.clone(),
            refusals: ledger.refusals.clone(),
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
                .filter(|(_, failure)| failure.attempts > 0 && !failure.is_of_realm())
                .map(|((id, _), _)| id.clone())
                .collect(),
        };
        for account in ledger.accounts.values() {
            let class =
                first.get(&account.id).map_or_else(|| format!("{}s", account.kind), |class| (*class).to_owned());
            *bounds.members.entry(class.clone()).or_default() += account.members.len() as u64;
            *bounds.tenants.entry(class).or_default() += u64::from(account.state == Lifecycle::Active);
            if account.kind == crate::identity::AccountKind::Group {
                bounds.groups.insert(account.id.clone(), account.source.clone());
            }
        }
        bounds
    }

    pub(super) fn spent(&self, spending: Spending, class: &str, now: Timestamp) -> u64 {
        let day = self.spent.iter().filter(|spent| spent.spending == spending && spent.class == class);
        day.filter(|spent| spent.at + DAY > now).map(|spent| spent.amount).sum()
    }

    fn is_complete(&self, source: &str) -> bool {
        self.completeness.get(source) == Some(&Completeness::Complete)
    }

    fn approves(&self, hash: &str, now: Timestamp) -> bool {
        self.approvals.get(hash).is_some_and(|until| *until > now)
    }
}

/// What a limit, or a source that did not answer completely, holds back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// The key in `[limits]`, or [`COMPLETENESS`].
    pub limit: String,
    /// The class that the limit counts; of [`COMPLETENESS`] the source.
    pub class: String,
    /// How many the limit let through.
    pub allowed: u64,
    /// How many there were.
    pub wanted: u64,
    /// `suspensions`, `members` or `deletions`.
    pub what: String,
    /// Whom it holds back.
    pub accounts: Vec<AccountName>,
    /// What to approve; what rests on a read that was not complete cannot be.
    pub hash: Option<String>,
    /// Hash of each account's part.
    #[serde(skip)]
    pub parts: Vec<String>,
}

impl Refusal {
    /// As the ledger keeps it.
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

/// A plan that may be executed, all of it. Only [`guard`] makes one.
#[derive(Debug, Clone, PartialEq)]
pub struct ApprovedPlan {
    pub(super) accounts: Vec<AccountPlan>,
    pub(super) hash: String,
    pub(super) spent: BTreeMap<(Spending, String), u64>,
    /// Approvals that this uses up.
    pub(super) used: BTreeSet<String>,
    /// `None`: as the ledger has them.
    pub(super) refusals: Option<Vec<RefusalRecord>>,
    pub(super) paced: Paced,
    pub(super) reaped_later: Waiting,
    pub(super) near: Vec<LimitUse>,
}

impl ApprovedPlan {
    /// What is to be done, account by account.
    #[must_use]
    pub fn accounts(&self) -> &[AccountPlan] {
        &self.accounts
    }

    /// Names the plan in the history.
    #[must_use]
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// How far changes of the policy are after this.
    #[must_use]
    pub fn progress(&self, ledger: &LedgerState) -> Vec<Progress> {
        self.paced.under_way.iter().map(|(class, pace)| Progress::of_class(class, pace, ledger)).collect()
    }

    /// What reapers leave to later cycles.
    #[must_use]
    pub const fn reaped_later(&self) -> &Waiting {
        &self.reaped_later
    }

    /// Limits of which little is left after this.
    #[must_use]
    pub fn near(&self) -> &[LimitUse] {
        &self.near
    }

    /// The accounts and clusters that are worked on, for those who show progress.
    #[must_use]
    pub fn places(&self) -> BTreeSet<(&AccountId, &ClusterName)> {
        let actions =
            self.accounts.iter().flat_map(|plan| plan.actions.iter().map(|action| (&plan.id, action.cluster())));
        actions.collect()
    }
}

/// The changes by which an administrator lets through what was refused: each part once, within the hour. `None`: nothing
/// of that hash waits.
#[must_use]
pub fn approve(ledger: &LedgerState, hash: &str, now: Timestamp) -> Option<Vec<Change>> {
    let approvable = || ledger.refusals.iter().filter(|refusal| refusal.limit != COMPLETENESS);
    let all: Vec<&String> = approvable().flat_map(|refusal| &refusal.parts).collect();
    let parts = match approvable().find(|refusal| refusal.hash == hash) {
        Some(refusal) => refusal.parts.iter().collect(),
        None if !all.is_empty() && hash::of_parts(all.iter().copied()) == hash => all,
        None => return None,
    };
    Some(parts.into_iter().map(|part| Change::Approval(part.clone(), Some(now + APPROVAL_HOLDS))).collect())
}

/// The hash of everything that a limit refused, as `bursar approve` takes it.
#[must_use]
pub fn refused_hash(refusals: &[Refusal]) -> Option<String> {
    let parts: Vec<&String> =
        refusals.iter().filter(|refusal| refusal.hash.is_some()).flat_map(|it| &it.parts).collect();
    (!parts.is_empty()).then(|| hash::of_parts(parts))
}

/// Takes out what must not be done now.
#[must_use]
pub fn guard(plan: Plan, bounds: &Bounds, now: Timestamp) -> (ApprovedPlan, Vec<Refusal>) {
    let mut court = Court::new(bounds, now);
    let accounts: Vec<AccountPlan> = plan.accounts.into_iter().filter(|plan| plan.held.is_none()).collect();
    court.completeness(&accounts);
    let idle = super::idle::over(&accounts, bounds.idle_per_cycle);
    court.refused.extend(idle.iter().map(|plan| plan.id.clone()));
    let idle = idle.iter().map(|plan| plan.account.clone()).collect();
    for budget in &BUDGETS {
        court.limit(&accounts, budget);
    }
    court.dependants(&accounts);
    let Court { refusals, refused, spent, used, .. } = court;
    let mut accounts: Vec<AccountPlan> = accounts
        .into_iter()
        .filter_map(|plan| if refused.contains(&plan.id) { plan.otherwise.map(|plan| *plan) } else { Some(plan) })
        .collect();
    let paced = pace(&mut accounts, bounds, now);
    let reaped_later = Waiting { pods: cap(&mut accounts, bounds.pods_per_cycle), idle };
    let records: Vec<RefusalRecord> = refusals.iter().map(Refusal::record).collect();
    let parts: Vec<String> = accounts.iter().map(hash::part).collect();
    let approved = ApprovedPlan {
        hash: hash::of_parts(&parts),
        accounts,
        near: near(bounds, &spent, &refusals, now),
        spent,
        used,
        paced,
        reaped_later,
        refusals: (records != bounds.refusals).then_some(records),
    };
    (approved, refusals)
}

/// Those who are let through first: disabled, then longest absent, then by name.
fn precedence(plan: &AccountPlan) -> (bool, std::cmp::Reverse<u64>, &AccountName, &AccountId) {
    let disabled = matches!(plan.transition, Some(Transition::Suspend(Suspension::Disabled { .. })));
    let absent = plan.before.absence.map_or(0, |absence| absence.seconds);
    (!disabled, std::cmp::Reverse(absent), &plan.account, &plan.id)
}

/// The guard at work.
struct Court<'a> {
    bounds: &'a Bounds,
    now: Timestamp,
    refusals: Vec<Refusal>,
    refused: BTreeSet<AccountId>,
    spent: BTreeMap<(Spending, String), u64>,
    used: BTreeSet<String>,
}

impl<'a> Court<'a> {
    fn new(bounds: &'a Bounds, now: Timestamp) -> Self {
        Self {
            bounds,
            now,
            refusals: Vec::new(),
            refused: BTreeSet::new(),
            spent: BTreeMap::new(),
            used: BTreeSet::new(),
        }
    }

    fn refuse(&mut self, mut refusal: Refusal, plans: &[&AccountPlan]) {
        refusal.accounts = plans.iter().map(|plan| plan.account.clone()).collect();
        refusal.parts = plans.iter().map(|plan| hash::part(plan)).collect();
        refusal.hash = (refusal.limit != COMPLETENESS).then(|| hash::of_parts(&refusal.parts));
        self.refused.extend(plans.iter().map(|plan| plan.id.clone()));
        self.refusals.push(refusal);
    }

    /// A missing answer is never an empty answer: nothing that rests on absence from a source that is not complete now.
    fn completeness(&mut self, accounts: &[AccountPlan]) {
        let mut by_source: BTreeMap<&str, Vec<&AccountPlan>> = BTreeMap::new();
        for plan in accounts {
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
            self.refuse(refusal, &plans);
        }
    }

    /// The sources in which something has to be absent for this plan to be right.
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

    fn limit(&mut self, accounts: &[AccountPlan], budget: &Budget) {
        let mut by_class: BTreeMap<&str, Vec<&AccountPlan>> = BTreeMap::new();
        for plan in accounts {
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
        let wanted = plans.iter().map(|plan| (budget.amount)(plan)).sum();
        let (limit, left) = self.left(class, budget);
        let over = |budget: &Budget, plans: &[&'_ AccountPlan], mut left: u64| -> BTreeSet<AccountId> {
            let over = plans.iter().filter(|plan| {
                let amount = (budget.amount)(plan);
                let fits = amount <= left;
                left -= if fits { amount } else { 0 };
                !fits
            });
            over.map(|plan| plan.id.clone()).collect()
        };
        let approved = self.approved(plans, &over(budget, plans, left));
        let used: u64 = plans.iter().filter(|plan| approved.contains(&plan.id)).map(|plan| (budget.amount)(plan)).sum();
        let others: Vec<&AccountPlan> = plans.iter().copied().filter(|plan| !approved.contains(&plan.id)).collect();
        let refused = over(budget, &others, left.saturating_sub(used));
        let (refused, passed): (Vec<&AccountPlan>, Vec<&AccountPlan>) =
            plans.iter().copied().partition(|plan| refused.contains(&plan.id));
        let spent: u64 = passed.iter().map(|plan| (budget.amount)(plan)).sum();
        if spent > 0 {
            *self.spent.entry((budget.spending, class.to_owned())).or_default() += spent;
        }
        if !refused.is_empty() {
            let refusal = Refusal {
                limit: limit.to_owned(),
                class: class.to_owned(),
                allowed: left,
                wanted,
                what: budget.what.to_owned(),
                accounts: Vec::new(),
                hash: None,
                parts: Vec::new(),
            };
            self.refuse(refusal, &refused);
        }
    }

    /// The tighter of the two limits, and what it leaves.
    fn left(&self, class: &str, budget: &Budget) -> (&'static str, u64) {
        let size = (budget.size)(self.bounds).get(class).copied().unwrap_or_default();
        let per_cycle = (budget.per_cycle.1)(&self.bounds.limits).allowed(size);
        let spent = self.bounds.spent(budget.spending, class, self.now);
        let per_day = (budget.per_day.1)(&self.bounds.limits).allowed(size).saturating_sub(spent);
        if per_day < per_cycle { (budget.per_day.0, per_day) } else { (budget.per_cycle.0, per_cycle) }
    }

    /// Who passes by an approval, of its own part or of the whole set that is over the limit.
    fn approved(&mut self, plans: &[&AccountPlan], over: &BTreeSet<AccountId>) -> BTreeSet<AccountId> {
        if self.bounds.approvals.is_empty() {
            return BTreeSet::new();
        }
        let over: Vec<(&AccountPlan, String)> =
            plans.iter().filter(|plan| over.contains(&plan.id)).map(|plan| (*plan, hash::part(plan))).collect();
        let whole = hash::of_parts(over.iter().map(|(_, part)| part));
        let whole_approved = self.bounds.approves(&whole, self.now);
        if whole_approved {
            self.used.insert(whole);
        }
        let mut approved = BTreeSet::new();
        for (plan, part) in over {
            let part_approved = self.bounds.approves(&part, self.now);
            if part_approved {
                self.used.insert(part);
            }
            if whole_approved || part_approved {
                approved.insert(plan.id.clone());
            }
        }
        approved
    }

    /// Who loses something because a group loses them waits for that group.
    fn dependants(&mut self, accounts: &[AccountPlan]) {
        let waiting: Vec<&AccountPlan> = accounts
            .iter()
            .filter(|plan| !self.refused.contains(&plan.id) && plan.rests_on.iter().any(|it| self.refused.contains(it)))
            .collect();
        self.refused.extend(waiting.iter().map(|plan| plan.id.clone()));
        for plan in waiting {
            for budget in &BUDGETS {
                if let Some(spent) = self.spent.get_mut(&(budget.spending, plan.class.clone())) {
                    *spent = spent.saturating_sub((budget.amount)(plan));
                }
            }
        }
    }
}
