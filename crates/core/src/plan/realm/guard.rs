//! Turns a [`RealmPlan`] into an [`ApprovedRealmPlan`]. Disabled users and removed roles have limits of their own.
//!
//! If a step exceeds a limit, only that step is refused. Only [`guard`] makes an [`ApprovedRealmPlan`]. A step uses its
//! budget and its approval only when it is done, so a step that fails or waits for the next cycle uses nothing.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use sha2::{Digest, Sha256};

use super::{RealmAction, RealmPlan, RealmStep, lost_with, user_of, workspaces};
use crate::identity::{AccountId, AccountKind, AccountName};
use crate::inventory::realm::RealmInventory;
use crate::ledger::approval::is_approved;
use crate::ledger::change::{Change, RefusalRecord};
use crate::ledger::realm::RealmAccount;
use crate::ledger::{LedgerState, Lifecycle, Spending, Spent};
use crate::plan::guard::{Refusal, first_class};
use crate::plan::hash;
use crate::plan::limit::{Limited, Verdict, judge, spent};
use crate::plan::limit_usage::{LimitUse, tighter, worth_saying};
use crate::policy::{Limits, Realm};

/// [`Refusal::what`] for users that are disabled.
pub(in crate::plan) const USERS: &str = "realm users";
/// [`Refusal::what`] for roles that are removed from users.
pub(in crate::plan) const ROLES: &str = "realm roles";

/// The budget for disabling users.
static DISABLED: Limited = Limited {
    spending: Spending::RealmDisable,
    what: USERS,
    per_cycle: ("realm_disable_per_cycle", |limits| limits.realm_disable_per_cycle),
    per_day: ("realm_disable_per_day", |limits| limits.realm_disable_per_day),
};

/// The budget for removing roles from users.
static TAKEN: Limited = Limited {
    spending: Spending::RealmRemoveRoles,
    what: ROLES,
    per_cycle: ("realm_remove_roles_per_cycle", |limits| limits.realm_remove_roles_per_cycle),
    per_day: ("realm_remove_roles_per_day", |limits| limits.realm_remove_roles_per_day),
};

/// The inputs of [`guard`] besides the plan.
#[derive(Debug, Clone, PartialEq)]
pub struct RealmBounds {
    limits: Limits,
    /// The number of users in the realm that Bursar created or adopted, by class.
    users: BTreeMap<String, u64>,
    /// The number of roles that these users have, by class. The holders of a deleted workspace's roles are counted in
    /// the class of the workspace.
    roles: BTreeMap<String, u64>,
    spent: Vec<Spent>,
    approvals: BTreeMap<String, Timestamp>,
    /// The refusals of the last cycle in the realm.
    refusals: Vec<RefusalRecord>,
    /// The refusals of the last cycle in clusters.
    others: Vec<RefusalRecord>,
}

impl RealmBounds {
    /// Reads the bounds from the ledger, the configuration and the realm.
    #[must_use]
    pub fn of(ledger: &LedgerState, realm: &Realm, limits: &Limits, seen: &RealmInventory) -> Self {
        let (mut users, mut roles) = (BTreeMap::<String, u64>::new(), BTreeMap::<String, u64>::new());
        let people = ledger.accounts.values().filter(|account| account.kind == AccountKind::User);
        let mut owners = BTreeMap::new();
        for person in people {
            let Some(user) = user_of(ledger, realm, person).filter(|user| seen.users.contains_key(*user)) else {
                continue;
            };
            let class = first_class(person, &ledger.tenants);
            *users.entry(class.clone()).or_default() += 1;
            owners.insert(user, class);
        }
        for class in seen.roles.values().flat_map(|role| &role.holders).filter_map(|user| owners.get(user.as_str())) {
            *roles.entry(class.clone()).or_default() += 1;
        }
        let deleted = workspaces(ledger).into_values().filter(|group| group.state == Lifecycle::Deleted);
        for group in deleted {
            let there = super::both_roles(group).into_iter().filter_map(|name| seen.roles.get(&name));
            *roles.entry(first_class(group, &ledger.tenants)).or_default() += there.map(lost_with).sum::<u64>();
        }
        let (refusals, others) = ledger.refusals.iter().cloned().partition(is_of_realm);
        let (spent, approvals) = (ledger.spent.clone(), ledger.approvals.clone());
        Self { limits: limits.clone(), users, roles, spent, approvals, refusals, others }
    }

    fn sizes(&self, budget: &Limited) -> &BTreeMap<String, u64> {
        if budget.spending == Spending::RealmDisable { &self.users } else { &self.roles }
    }
}

/// A realm's plan of which every step may be executed. Only [`guard`] makes one.
#[derive(Debug, Clone, PartialEq)]
pub struct ApprovedRealmPlan {
    steps: Vec<ApprovedStep>,
    overcome: Vec<AccountId>,
    corrected: Vec<(AccountId, RealmAccount)>,
    /// The refusals to record; `None` if they are in the ledger already.
    refusals: Option<Vec<RefusalRecord>>,
    near: Vec<LimitUse>,
}

/// A step that may be executed. Only [`guard`] makes one.
#[derive(Debug, Clone, PartialEq)]
pub struct ApprovedStep {
    step: RealmStep,
    /// The budget that the step uses when it is done.
    spends: Option<Spending>,
    /// The approval by which the step passes, if any.
    approval: Option<String>,
}

impl ApprovedRealmPlan {
    /// Returns the steps, in the order of their execution.
    #[must_use]
    pub fn steps(&self) -> &[ApprovedStep] {
        &self.steps
    }

    /// Returns the limits that are nearly used up after this plan.
    #[must_use]
    pub fn near(&self) -> &[LimitUse] {
        &self.near
    }

    /// Returns the changes that the ledger needs before the first step: failures that are over, corrected rows,
    /// refusals, and a timestamp for each new user. If the daemon is killed while it creates a user, the next plan
    /// recognises the user by this timestamp.
    #[must_use]
    pub fn intents(&self, ledger: &LedgerState, rules: &Realm, now: Timestamp) -> Vec<Change> {
        let Self { steps, overcome, corrected, refusals, near: _ } = self;
        let place = rules.place();
        let over = overcome.iter().map(|id| Change::Failure(id.clone(), place.clone(), None));
        let corrected = corrected.iter().cloned();
        let corrected = corrected.map(|(id, row)| Change::RealmAccount(id, rules.name.clone(), row));
        let refused = refusals.clone().map(Change::Refusals);
        let made = steps.iter().filter_map(|ApprovedStep { step, .. }| match &step.action {
            RealmAction::RealmCreate { username, email, display_name, .. } => {
                Some((step, username, email, display_name))
            }
            _ => None,
        });
        let rows = made.zip(now.as_millisecond()..).filter_map(|((step, username, email, display_name), asked)| {
            let key = (step.id.clone(), rules.name.clone());
            // An earlier request may have created the user, so its timestamp stays.
            if ledger.realm_accounts.get(&key).is_some_and(|row| row.user_id.is_none()) {
                return None;
            }
            let row = RealmAccount {
                user_id: None,
                asked,
                adopted: false,
                name: username.clone(),
                mail: email.clone(),
                display_name: display_name.clone(),
                enabled: true,
                mail_due: rules.mail,
                mailed_at: None,
            };
            Some(Change::RealmAccount(key.0, key.1, row))
        });
        over.chain(corrected).chain(refused).chain(rows).collect()
    }
}

impl ApprovedStep {
    /// Returns the step itself.
    #[must_use]
    pub const fn step(&self) -> &RealmStep {
        &self.step
    }

    /// Returns the changes that record what the step used of limits and approvals. Call it only after the step is done.
    #[must_use]
    pub fn used(&self, now: Timestamp) -> Vec<Change> {
        let Self { step, spends, approval } = self;
        let spent = (*spends).map(|spending| Change::Spent(spending, step.class.clone(), step.counts, now));
        spent.into_iter().chain(approval.clone().map(|part| Change::Approval(part, None))).collect()
    }
}

/// Whether a limit of the realm caused the refusal.
#[must_use]
pub fn is_of_realm(refusal: &RefusalRecord) -> bool {
    [&DISABLED, &TAKEN].into_iter().any(|budget| budget.has_key(&refusal.limit))
}

/// Returns the change that removes the realm's refusals from the ledger, for a realm that the configuration no longer
/// names.
#[must_use]
pub fn forgotten(ledger: &LedgerState) -> Option<Change> {
    let (of_realm, others): (Vec<_>, Vec<_>) = ledger.refusals.iter().cloned().partition(is_of_realm);
    (!of_realm.is_empty()).then_some(Change::Refusals(others))
}

/// Removes the steps that must not be done now from the plan. Returns the rest, and the refusals.
#[must_use]
pub fn guard(plan: RealmPlan, bounds: &RealmBounds, now: Timestamp) -> (ApprovedRealmPlan, Vec<Refusal>) {
    let RealmPlan { realm, steps, notices: _, overcome, corrected } = plan;
    let mut limits =
        LimitEvaluator { realm: &realm, bounds, now, refusals: Vec::new(), refused: BTreeSet::new(), near: Vec::new() };
    let mut approvals = BTreeMap::new();
    for budget in [&DISABLED, &TAKEN] {
        approvals.extend(limits.limit(&steps, budget));
    }
    let LimitEvaluator { refusals, refused, near, .. } = limits;
    let approved = steps.into_iter().enumerate().filter(|(place, _)| !refused.contains(place));
    let approved = approved.map(|(place, step)| ApprovedStep {
        spends: budget_of(&step).map(|budget| budget.spending),
        approval: approvals.remove(&place),
        step,
    });
    let records: Vec<RefusalRecord> = refusals.iter().map(Refusal::record).collect();
    let approved = ApprovedRealmPlan {
        steps: approved.collect(),
        overcome,
        corrected,
        refusals: (records != bounds.refusals).then(|| [bounds.others.clone(), records].concat()),
        near: worth_saying(near.into_iter(), &refusals),
    };
    (approved, refusals)
}

/// Returns the budget that a step uses, if any.
fn budget_of(step: &RealmStep) -> Option<&'static Limited> {
    if step.counts == 0 {
        return None;
    }
    match step.action {
        RealmAction::RealmDisable { .. } => Some(&DISABLED),
        RealmAction::RealmUnassign { .. } | RealmAction::RealmRemoveRole { .. } => Some(&TAKEN),
        RealmAction::RealmEnable { .. }
        | RealmAction::RealmRecognise { .. }
        | RealmAction::RealmAdopt { .. }
        | RealmAction::RealmCreate { .. }
        | RealmAction::RealmUpdate { .. }
        | RealmAction::RealmMakeRole { .. }
        | RealmAction::RealmAssign { .. }
        | RealmAction::RealmMail { .. }
        | RealmAction::RealmRename { .. } => None,
    }
}

/// Applies the limits, and collects the refusals. Steps are identified by their index in the plan.
struct LimitEvaluator<'a> {
    realm: &'a str,
    bounds: &'a RealmBounds,
    now: Timestamp,
    refusals: Vec<Refusal>,
    refused: BTreeSet<usize>,
    near: Vec<LimitUse>,
}

impl LimitEvaluator<'_> {
    /// Applies one budget. Returns the approvals by which steps pass.
    fn limit(&mut self, steps: &[RealmStep], budget: &Limited) -> BTreeMap<usize, String> {
        let sizes = self.bounds.sizes(budget);
        let mut by_class: BTreeMap<&str, Vec<usize>> = sizes.keys().map(|class| (class.as_str(), Vec::new())).collect();
        for (place, step) in steps.iter().enumerate() {
            if budget_of(step).is_some_and(|its| its.spending == budget.spending) {
                by_class.entry(&step.class).or_default().push(place);
            }
        }
        let mut approvals = BTreeMap::new();
        for (class, mut places) in by_class {
            let size = sizes.get(class).copied().unwrap_or_default();
            places.sort_by_key(|place| (steps[*place].since, &steps[*place].account, &steps[*place].id));
            approvals.extend(self.limit_class((class, size), steps, &places, budget));
        }
        approvals
    }

    fn limit_class(
        &mut self,
        (class, size): (&str, u64),
        steps: &[RealmStep],
        places: &[usize],
        budget: &Limited,
    ) -> BTreeMap<usize, String> {
        let (realm, bounds, now) = (self.realm, self.bounds, self.now);
        let day = spent(&bounds.spent, budget.spending, class, now);
        let (limit, left) = budget.left(&bounds.limits, size, day);
        let amounts: Vec<u64> = places.iter().map(|place| steps[*place].counts).collect();
        let approves = |hash: &str| is_approved(&bounds.approvals, hash, now);
        let Verdict { refused, approved, whole: _ } =
            judge(&amounts, left, approves, |nth| part(realm, &steps[places[nth]]));
        let passed = amounts.iter().enumerate().filter(|(nth, _)| !refused.contains(nth));
        let by_plan = passed.map(|(_, amount)| amount).sum();
        self.near.push(tighter(budget, &bounds.limits, class, size, (by_plan, day)));
        if !refused.is_empty() {
            let held: Vec<&RealmStep> = refused.iter().map(|nth| &steps[places[*nth]]).collect();
            let accounts: Vec<AccountName> = held.iter().map(|step| step.account.clone()).collect();
            let parts: Vec<String> = held.iter().map(|step| part(realm, step)).collect();
            self.refusals.push(Refusal {
                limit: limit.to_owned(),
                class: class.to_owned(),
                allowed: left,
                wanted: amounts.iter().sum(),
                what: budget.what.to_owned(),
                accounts,
                hash: Some(hash::of_parts(&parts)),
                parts,
            });
        }
        self.refused.extend(refused.into_iter().map(|nth| places[nth]));
        approved.into_iter().map(|(nth, part)| (places[nth], part)).collect()
    }
}

/// Returns the hash of a step. It is the same in every cycle in which the step does the same.
fn part(realm: &str, step: &RealmStep) -> String {
    let (what, roles): (&str, BTreeSet<&str>) = match &step.action {
        RealmAction::RealmUnassign { roles, .. } => ("take", roles.iter().map(|role| role.name.as_str()).collect()),
        RealmAction::RealmRemoveRole { role } => ("remove", BTreeSet::from([role.as_str()])),
        _ => ("disable", BTreeSet::new()),
    };
    let (mut hash, id) = (Sha256::new(), step.id.0.to_string());
    for text in ["realm", realm, &id, what].into_iter().chain(roles) {
        hash.update((text.len() as u64).to_be_bytes());
        hash.update(text);
    }
    hex::encode(hash.finalize())
}
