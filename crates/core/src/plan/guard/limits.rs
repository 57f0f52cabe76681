//! Applies the limits and the completeness of reads to a plan, and collects what they refuse.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::{Bounds, COMPLETENESS, Refusal};
use crate::desired::Transition;
use crate::identity::{AccountId, AccountName};
use crate::ledger::approval::is_approved;
use crate::ledger::{Spending, Suspension};
use crate::plan::budget::{ACCESS, Budget, MEMBERS, RESUMED};
use crate::plan::limit::{Limited, Verdict, judge, spent};
use crate::plan::{AccountPlan, hash, loss};

/// Returns the sort key that decides which accounts pass a limit first: disabled accounts, then the accounts that have
/// been absent longest, then by name.
fn precedence(plan: &AccountPlan) -> (bool, std::cmp::Reverse<u64>, &AccountName, &AccountId) {
    let disabled = matches!(plan.transition, Some(Transition::Suspend(Suspension::Disabled { .. })));
    let absent = plan.before.absence.map_or(0, |absence| absence.seconds);
    (!disabled, std::cmp::Reverse(absent), &plan.account, &plan.id)
}

/// Applies limits and completeness, and collects what they refuse.
pub(super) struct LimitEvaluator<'a> {
    bounds: &'a Bounds,
    now: Timestamp,
    pub(super) refusals: Vec<Refusal>,
    pub(super) refused: BTreeSet<AccountId>,
    /// Accounts that were refused in an earlier pass of [`LimitEvaluator::remaining`].
    refused_before: BTreeSet<AccountId>,
    /// Accounts whose members may not leave now.
    members_stay: BTreeSet<AccountId>,
    /// Workspaces in which some people must stay because their removal is refused. All other steps in them may be done.
    keep_people: BTreeSet<AccountId>,
    not_resumed: BTreeSet<AccountId>,
    /// Held accounts whose suspension waits for their release.
    pub(super) held: BTreeSet<AccountId>,
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
    pub(super) fn new(bounds: &'a Bounds, now: Timestamp) -> Self {
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

    fn refuse(
        &mut self,
        (limit, class, what): (&str, &str, &str),
        (allowed, wanted): (u64, u64),
        plans: &[&AccountPlan],
        part: fn(&AccountPlan) -> String,
    ) {
        let (limit, class, what) = (limit.to_owned(), class.to_owned(), what.to_owned());
        let accounts = plans.iter().map(|plan| plan.account.clone()).collect();
        let parts: Vec<String> = plans.iter().map(|plan| part(plan)).collect();
        let hash = (limit != COMPLETENESS).then(|| hash::of_parts(&parts));
        self.refused.extend(plans.iter().map(|plan| plan.id.clone()));
        self.refusals.push(Refusal { limit, class, allowed, wanted, what, accounts, hash, parts });
    }

    /// Refuses removals that depend on a missing entry, if the last read of the entry's source was not complete. The
    /// entry may exist although the read does not show it.
    pub(super) fn completeness(&mut self, accounts: &[&AccountPlan]) {
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
            self.refuse((COMPLETENESS, source, "removals"), (0, plans.len() as u64), &plans, hash::part);
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
        // Any source may have the entry of an account that the ledger does not know.
        let all = plan.ownerless.then(|| bounds.completeness.keys().map(String::as_str)).into_iter().flatten();
        own.into_iter()
            .chain(all)
            .chain(plan.rests_on.iter().filter_map(|group| bounds.groups.get(group).map(String::as_str)))
            .collect()
    }

    pub(super) fn limit(&mut self, accounts: &[&AccountPlan], budget: &Budget) {
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
        let size = (budget.size)(self.bounds, class);
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
            let refused: Vec<&AccountPlan> = refused.iter().map(|place| plans[*place]).collect();
            if what == RESUMED {
                self.not_resumed.extend(refused.iter().map(|plan| plan.id.clone()));
            }
            if spending == MEMBERS.limited.spending {
                self.members_stay.extend(refused.iter().map(|plan| plan.id.clone()));
            }
            self.refuse((limit, class, what), (left, amounts.iter().sum()), &refused, budget.part);
        }
    }

    /// Refuses the plans that depend on the change of a refused account. If the removal of people from a workspace
    /// depends on such a change, these people stay in the workspace, but its leaving members still leave.
    pub(super) fn dependants(&mut self, accounts: &[&AccountPlan]) {
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
    pub(super) fn remaining(&mut self, accounts: Vec<AccountPlan>) -> Vec<AccountPlan> {
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

    /// Judges the alternatives of refused accounts, because members may leave within a limit of their own, even if the
    /// account's removal is refused.
    pub(super) fn leavings(&mut self, accounts: Vec<AccountPlan>) -> Vec<AccountPlan> {
        let instead = accounts.iter().filter(|plan| self.refused_before.contains(&plan.id));
        let instead: Vec<&AccountPlan> = instead.collect();
        self.completeness(&instead);
        self.limit(&instead, &MEMBERS);
        self.dependants(&instead);
        self.remaining(accounts)
    }

    /// Applies the limit for removals of access that the configuration causes. Drops the steps that exceed the limit.
    pub(super) fn access(&mut self, accounts: &mut Vec<AccountPlan>) {
        self.limit(&accounts.iter().collect::<Vec<_>>(), &ACCESS);
        accounts.iter_mut().filter(|plan| self.refused.contains(&plan.id)).for_each(loss::keep);
        accounts.retain(|plan| !plan.is_idle());
    }

    /// Returns the amounts that the remaining accounts use of the limits, and the approvals that they use. Steps that
    /// wait for the pace of a change use nothing yet.
    pub(super) fn used(&self, accounts: &[AccountPlan]) -> (BTreeMap<(Spending, String), u64>, BTreeSet<String>) {
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
