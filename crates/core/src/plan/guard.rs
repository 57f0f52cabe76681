//! Decides which parts of a plan may be done: limits, completeness, holds, approvals.
//!
//! If an account's removal is over a limit, that removal alone is refused; the rest goes on, and so does everything
//! else that the refused account needs ([`AccountPlan::otherwise`]). Only [`guard`] makes an [`ApprovedPlan`].

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

/// The reason of a refusal because a read was not complete, in place of a key of `[limits]`.
pub const COMPLETENESS: &str = "completeness";

/// What is refused because it is doubted, instead of a key of `[limits]`: attributes that vanished, an import, an absence
/// about which servers disagree.
pub const ATTRIBUTES: &str = "attributes";
/// See [`ATTRIBUTES`].
pub const IMPORT: &str = "import";
/// See [`ATTRIBUTES`].
pub const ABSENCE: &str = "absence";

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
    /// What it refused in the realm, which has bounds of its own.
    pub realm_refusals: Vec<RefusalRecord>,
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
    /// What sources say and is not believed.
    pub doubts: Vec<Refusal>,
    /// Clusters in which nothing is granted or repaired.
    pub unconfined: BTreeSet<ClusterName>,
}

impl Bounds {
    /// As the ledger and the configuration say.
    #[must_use]
    pub fn of(ledger: &LedgerState, policy: &Policy) -> Self {
        let mut counts = Counts::default();
        counts.follow(ledger);
        Self::with(&counts, ledger, policy)
    }

    /// The same where the accounts of `ledger` are counted already.
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
                .filter(|(_, failure)| failure.attempts > 0 && !failure.is_of_realm())
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

/// How many accounts there are by class, and the groups, counted on from one ledger to the next.
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
    /// Counts the accounts of `ledger`.
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

/// The class by which `[limits]` counts each account: the first that made it a tenant, or its kind.
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
    /// `suspensions`, `suspensions by a mark`, `removals of access`, `members`, `deletions`, `resumptions`, `realm users` or
    /// `realm roles`; of [`ATTRIBUTES`] the attribute.
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
        let actions = self.accounts.iter().flat_map(|plan| plan.steps().map(|action| (&plan.id, action.cluster())));
        actions.collect()
    }
}

/// The changes by which an administrator lets through what was refused: each part once, within the hour. `None`:
/// nothing of that hash waits.
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
    let mut limits = LimitEvaluator::new(bounds, now);
    limits.held =
        plan.accounts.iter().filter(|plan| plan.held.is_some() && keeps(plan)).map(|it| it.id.clone()).collect();
    let accounts: Vec<AccountPlan> = plan.accounts.into_iter().filter_map(unless_held).collect();
    // First: without the members who may not leave an account returns all the same.
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

/// Returns the part of a held account's plan that passes the hold.
fn unless_held(plan: AccountPlan) -> Option<AccountPlan> {
    if plan.held.is_some() { plan.otherwise.map(|plan| *plan) } else { Some(plan) }
}

/// Those who are let through first: disabled, then longest absent, then by name.
fn precedence(plan: &AccountPlan) -> (bool, std::cmp::Reverse<u64>, &AccountName, &AccountId) {
    let disabled = matches!(plan.transition, Some(Transition::Suspend(Suspension::Disabled { .. })));
    let absent = plan.before.absence.map_or(0, |absence| absence.seconds);
    (!disabled, std::cmp::Reverse(absent), &plan.account, &plan.id)
}

/// What limits and completeness have said so far.
struct LimitEvaluator<'a> {
    bounds: &'a Bounds,
    now: Timestamp,
    refusals: Vec<Refusal>,
    refused: BTreeSet<AccountId>,
    /// Accounts whose own removal, or all of it, was refused before what is judged now.
    refused_before: BTreeSet<AccountId>,
    /// Accounts whose members may not leave.
    members_stay: BTreeSet<AccountId>,
    /// Workspaces of which some people may not be removed, and of which nothing else is refused.
    keep_people: BTreeSet<AccountId>,
    not_resumed: BTreeSet<AccountId>,
    /// Held accounts whose suspension waits for their release.
    held: BTreeSet<AccountId>,
    /// What each account that was let through uses.
    uses: BTreeMap<AccountId, Vec<Use>>,
    /// Approvals of a whole set.
    whole: BTreeSet<String>,
}

/// What an account uses of one budget.
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

    /// A missing answer is never an empty answer: nothing that rests on absence from a source that is not complete now.
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

    /// An account that loses something because a group loses its members waits for that group. A workspace keeps the
    /// people who may not be removed themselves; the members who leave it do not wait for them.
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

    /// What is done instead of what was refused.
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
            // Without the members who leave it would return all the same.
            let returns = kept.transition == Some(Transition::Resume) && self.not_resumed.contains(&kept.id);
            if returns { kept.otherwise.map(|plan| *plan) } else { Some(kept) }
        };
        let remaining = accounts.into_iter().filter_map(remains).collect();
        self.refused_before.extend(refused);
        remaining
    }

    /// Members and people leave whether or not the account's own removal is refused, within the limits of their own.
    fn leavings(&mut self, accounts: Vec<AccountPlan>) -> Vec<AccountPlan> {
        let instead = accounts.iter().filter(|plan| self.refused_before.contains(&plan.id));
        let instead: Vec<&AccountPlan> = instead.collect();
        self.completeness(&instead);
        self.limit(&instead, &MEMBERS);
        self.dependants(&instead);
        self.remaining(accounts)
    }

    /// Takes out what the configuration takes away, where that is too much at once.
    fn access(&mut self, accounts: &mut Vec<AccountPlan>) {
        self.limit(&accounts.iter().collect::<Vec<_>>(), &ACCESS);
        accounts.iter_mut().filter(|plan| self.refused.contains(&plan.id)).for_each(loss::keep);
        accounts.retain(|plan| !plan.is_idle());
    }

    /// What those who are left use of limits and approvals. What waits for the pace of a change uses nothing yet.
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
