//! Makes the decisions of one cycle as a pure function. From the ledger and the state of directories and clusters,
//! [`evolve`] computes what to record and what to do. `bursar plan` prints the result, and a cycle executes it.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::contract::Sealer;
use crate::desired::groups_without_uid;
use crate::inventory::Inventory;
use crate::inventory::realm::RealmInventory;
use crate::ledger::LedgerState;
use crate::ledger::change::{Change, Event};
use crate::ledger::transition::{ReadChanges, transition};
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

/// The inputs of a cycle.
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a> {
    pub ledger: &'a LedgerState,
    /// The answers of the directories; `None` if no directory was asked.
    pub heard: Option<&'a DirectorySnapshot>,
    pub inventory: &'a Inventory,
    /// The configuration in force.
    pub policy: &'a Policy,
    /// Seals the namespaces.
    pub sealer: &'a Sealer,
    /// The time of the cycle. All other inputs were read before it.
    pub now: Timestamp,
}

/// The content of one transaction of the ledger.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Writes {
    /// Changes of the state.
    pub changes: Vec<Change>,
    /// Entries of the history.
    pub events: Vec<Event>,
}

/// The result of [`evolve`]. Its ledgers share their parts with the store's. The caller has to drop these ledgers
/// before it writes to the store; otherwise the first change copies the shared parts.
#[derive(Debug, Clone, PartialEq)]
pub struct Evolved {
    /// The observations to record. They do not depend on the plan.
    pub seen: Writes,
    /// The ledger after `seen`.
    pub known: LedgerState,
    /// The plan before the guard.
    pub plan: Plan,
    /// The part of the plan that may be executed.
    pub approved: ApprovedPlan,
    /// The parts that the guard refuses, and why.
    pub refusals: Vec<Refusal>,
    /// The rows that the ledger must record before the first step.
    pub intended: Writes,
}

impl Evolved {
    /// Returns the ledger after `seen` and `intended`. A cycle does not need it: the store applies the same changes.
    #[must_use]
    pub fn after(&self) -> LedgerState {
        let mut after = self.known.clone();
        after.apply_all(&self.intended.changes);
        after
    }
}

/// Makes the decisions of one cycle. `planner` only saves work: the result does not depend on it.
#[must_use]
pub fn evolve(inputs: Inputs<'_>, planner: &mut Planner) -> Evolved {
    let Inputs { ledger: _, heard: _, inventory, policy, sealer, now } = inputs;
    let (seen, known) = observe(inputs);
    let plan = planner.plan(PlanInputs { ledger: &known, inventory, policy, sealer, now });
    let unconfined = if policy.require_confinement { inventory.unconfined.clone() } else { BTreeSet::new() };
    let bounds = Bounds { unconfined, ..planner.bounds(&known, policy) };
    let (approved, refusals) = guard(plan.clone(), &bounds, now);
    let intended = intend(&plan, &approved, &known, inventory, now);
    Evolved { seen, known, plan, approved, refusals, intended }
}

/// The plan of the realm, and what its guard decides.
#[derive(Debug, Clone, PartialEq)]
pub struct Followed {
    /// The plan before the guard.
    pub plan: RealmPlan,
    /// The part of the plan that may be executed.
    pub approved: ApprovedRealmPlan,
    /// The parts that the guard refuses, and why.
    pub refusals: Vec<Refusal>,
}

/// Plans the realm. This plan depends only on rows of the ledger that are written before the first step in any cluster.
/// So a preview passes [`Evolved::after`], and a cycle passes the store's ledger after the execution.
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

/// Returns the changes that directories and clusters cause, and the ledger after them. Each part sees the ledger with
/// the changes of the parts before it.
fn observe(inputs: Inputs<'_>) -> (Writes, LedgerState) {
    let Inputs { ledger, heard, inventory, policy, sealer: _, now } = inputs;
    let (mut seen, mut known) = (Writes::default(), ledger.clone());
    if let Some(snapshot) = heard {
        let ReadChanges { changes, events } = transition(&known, snapshot, policy, now);
        seen.take(&mut known, changes, events);
    }
    let (changes, events) = workspace_uid::assign(&known, &groups_without_uid(&known, policy));
    seen.take(&mut known, changes, events);
    if let Some(rules) = &policy.reapers.namespaces {
        let changes = idle::count(&known, inventory, rules, now);
        seen.take(&mut known, changes, Vec::new());
    }
    let changes = [known.count_terms(now), known.old_removals(now)].concat();
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
