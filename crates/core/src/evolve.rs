//! One cycle as a pure function: from the ledger, and what directories and clusters show, to what will be remembered
//! and what may be done. `bursar plan` prints its result and a cycle carries it out.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::contract::Sealer;
use crate::desired::groups_without_uid;
use crate::inventory::Inventory;
use crate::inventory::realm::RealmInventory;
use crate::ledger::LedgerState;
use crate::ledger::change::{Change, Event};
use crate::ledger::transition::{Transition, transition};
use crate::ledger::workspace_uid;
use crate::plan::guard::{Bounds, guard};
use crate::plan::intents::{burnt, overcome};
use crate::plan::quota::lapsed;
use crate::plan::realm::RealmPlan;
use crate::plan::realm::guard::{ApprovedRealmPlan, RealmBounds};
use crate::plan::revocation::advance;
use crate::plan::{self, ApprovedPlan, Plan, PlanInputs, Planner, Refusal, adopted, idle};
use crate::policy::{Policy, Realm};
use crate::snapshot::DirectorySnapshot;

/// All that a cycle decides from.
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a> {
    /// What is remembered.
    pub ledger: &'a LedgerState,
    /// What the directories answered; `None`: none was asked.
    pub heard: Option<&'a DirectorySnapshot>,
    /// What the clusters show.
    pub inventory: &'a Inventory,
    /// The configuration in force.
    pub policy: &'a Policy,
    /// Seals what is made.
    pub sealer: &'a Sealer,
    /// After all was read.
    pub now: Timestamp,
}

/// One transaction of the ledger.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Writes {
    /// For the state.
    pub changes: Vec<Change>,
    /// For the history.
    pub events: Vec<Event>,
}

/// The result of one evolution. Its ledgers are copies: the writer drops them before it writes, or the first change
/// copies the store's own ledger.
#[derive(Debug, Clone, PartialEq)]
pub struct Evolved {
    /// What was observed, to be remembered whatever is decided.
    pub seen: Writes,
    /// The ledger with it.
    pub known: LedgerState,
    /// What is to be done.
    pub plan: Plan,
    /// The part of the plan that may be done.
    pub approved: ApprovedPlan,
    /// The parts that may not be done, and why.
    pub refusals: Vec<Refusal>,
    /// What the ledger must have before any of it is done.
    pub intended: Writes,
    /// The ledger with that, too.
    pub after: LedgerState,
}

/// Decides. `planner` only saves work: any gives the same result.
#[must_use]
pub fn evolve(inputs: Inputs<'_>, planner: &mut Planner) -> Evolved {
    let Inputs { ledger: _, heard: _, inventory, policy, sealer, now } = inputs;
    let (seen, known) = observe(inputs);
    let plan = planner.plan(PlanInputs { ledger: &known, inventory, policy, sealer, now });
    let unconfined = if policy.require_confinement { inventory.unconfined.clone() } else { BTreeSet::new() };
    let bounds = Bounds { unconfined, ..planner.bounds(&known, policy) };
    let (approved, refusals) = guard(plan.clone(), &bounds, now);
    let intended = intend(&plan, &approved, &known, inventory, now);
    let mut after = known.clone();
    after.apply_all(&intended.changes);
    Evolved { seen, known, plan, approved, refusals, intended, after }
}

/// What follows in the realm.
#[derive(Debug, Clone, PartialEq)]
pub struct Followed {
    /// What is to be done there.
    pub plan: RealmPlan,
    /// The part of the plan that may be done.
    pub approved: ApprovedRealmPlan,
    /// The parts that may not be done, and why.
    pub refusals: Vec<Refusal>,
}

/// Decides for the realm. It reads of the ledger only what is there before anything is done in clusters, so a preview gives
/// it [`Evolved::after`] and a cycle what the store has when it was done.
#[must_use]
pub fn follow(
    ledger: &LedgerState,
    realm: &Realm,
    seen: &RealmInventory,
    bounds: &RealmBounds,
    now: Timestamp,
) -> Followed {
    let plan = plan::realm::plan(ledger, realm, seen, now);
    let (approved, refusals) = plan::realm::guard::guard(plan.clone(), bounds, now);
    Followed { plan, approved, refusals }
}

/// What directories and clusters show, each counted on what was seen before it.
fn observe(inputs: Inputs<'_>) -> (Writes, LedgerState) {
    let Inputs { ledger, heard, inventory, policy, sealer: _, now } = inputs;
    let (mut seen, mut known) = (Writes::default(), ledger.clone());
    if let Some(snapshot) = heard {
        let Transition { changes, events } = transition(&known, snapshot, policy, now);
        seen.take(&mut known, changes, events);
    }
    let (changes, events) = workspace_uid::assign(&known, &groups_without_uid(&known, policy));
    seen.take(&mut known, changes, events);
    if let Some(rules) = &policy.reapers.namespaces {
        let changes = idle::count(&known, inventory, rules, now);
        seen.take(&mut known, changes, Vec::new());
    }
    let changes = known.count_terms(now);
    seen.take(&mut known, changes, Vec::new());
    let (changes, events) = adopted::look(&known, inventory, policy, now);
    seen.take(&mut known, changes, events);
    (seen, known)
}

fn intend(plan: &Plan, approved: &ApprovedPlan, known: &LedgerState, inventory: &Inventory, now: Timestamp) -> Writes {
    let (changes, events) = approved.intents(now);
    let mut intended = Writes { changes, events };
    intended.changes.extend(burnt(approved, known));
    intended.changes.extend(overcome(plan, known, inventory, now));
    for (changes, events) in [lapsed(known), advance(approved, known, now)] {
        intended.changes.extend(changes);
        intended.events.extend(events);
    }
    intended
}

impl Writes {
    fn take(&mut self, known: &mut LedgerState, changes: Vec<Change>, events: Vec<Event>) {
        known.apply_all(&changes);
        self.changes.extend(changes);
        self.events.extend(events);
    }
}

#[cfg(test)]
mod tests;
