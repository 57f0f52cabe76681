//! Returns the changes that the ledger must record before the first step: states, generations, tenants, budgets.
//!
//! If the daemon is killed afterwards, the next plan contains the remaining steps. The desired state follows from the
//! recorded state. A suspension that has begun also has a failure record, which is cleared only at the end of the
//! account's steps.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::credential;
use super::guard::ApprovedPlan;
use super::quota::lapsed;
use super::{AccountPlan, Action, Plan, stops};
use crate::desired::{Regeneration, Transition};
use crate::identity::{AccountId, ClusterName};
use crate::inventory::Inventory;
use crate::json_text::JsonText;
use crate::kinds::{Detail, ObjectKey};
use crate::ledger::change::{Change, Event};
use crate::ledger::{Account, Ending, LedgerState, Lifecycle, Note};

impl ApprovedPlan {
    /// Returns the changes and their events. They have to be written in one transaction before the first step.
    #[must_use]
    pub fn intents(&self, now: Timestamp) -> (Vec<Change>, Vec<Event>) {
        let Self { accounts, hash, spent, used, refusals, paced, reaped_later: _, near: _ } = self;
        let mut changes: Vec<Change> = accounts.iter().flat_map(|plan| changes(plan, now)).collect();
        let generation = accounts.iter().filter(|plan| plan.regenerated.is_some()).map(|plan| plan.generation).max();
        changes.extend(generation.map(Change::LastGeneration));
        let spent = spent.iter().filter(|(_, amount)| **amount > 0);
        changes.extend(spent.map(|((spending, class), amount)| Change::Spent(*spending, class.clone(), *amount, now)));
        changes.extend(used.iter().map(|approval| Change::Approval(approval.clone(), None)));
        changes.extend(refusals.clone().map(Change::Refusals));
        changes.extend(paced.records.iter().map(|(class, record)| Change::Pace(class.clone(), record.clone())));
        let mut events: Vec<Event> = accounts.iter().flat_map(|plan| events(plan, now)).collect();
        events.extend(paced.events.iter().cloned());
        for event in &mut events {
            event.plan = Some(hash.clone());
        }
        (changes, events)
    }
}

/// Returns a change that skips a generation, if the plan removes access or an exception ends, and the plan raises no
/// account's generation. The clusters' marks hold the last generation, so the skipped generation reveals a ledger that
/// was rolled back to a state before the removal.
#[must_use]
pub fn burnt(approved: &ApprovedPlan, ledger: &LedgerState) -> Option<Change> {
    let takes = |action: &Action| match action {
        Action::Apply { key, manifest, .. } => {
            let wanted = manifest.value();
            names(ledger, key).iter().any(|name| !wanted["subjects"].as_array().is_some_and(|all| all.contains(name)))
        }
        Action::Delete { key, .. } => !names(ledger, key).is_empty(),
        _ => false,
    };
    let plans = approved.accounts();
    let is_new = plans.iter().any(|plan| plan.regenerated.is_some());
    let loses = |plan: &AccountPlan| !plan.leaving.is_empty() || plan.steps().any(takes);
    let ends = || lapsed(ledger).0.iter().any(|change| matches!(change, Change::Exception(_, None)));
    (!is_new && (plans.iter().any(loses) || ends())).then(|| Change::LastGeneration(ledger.last_generation + 1))
}

/// Returns the subjects of a binding as last written.
fn names(ledger: &LedgerState, key: &ObjectKey) -> Vec<Value> {
    let record = ledger.objects.get(key).filter(|_| key.kind.detail() == Detail::Subjects);
    match record.and_then(|record| record.detail.as_ref()).map(JsonText::value) {
        Some(Value::Array(names)) => names,
        _ => Vec::new(),
    }
}

/// Returns the changes that remove failures which are over without a retry: the step is no longer needed, or somebody
/// else remedied the failure. A failure that still waits for its retry stays.
#[must_use]
pub fn overcome(plan: &Plan, ledger: &LedgerState, inventory: &Inventory, now: Timestamp) -> Vec<Change> {
    let plans: BTreeMap<&AccountId, &AccountPlan> = plan.accounts.iter().map(|plan| (&plan.id, plan)).collect();
    let acts = |id: &AccountId, cluster: &ClusterName| {
        plans.get(id).is_some_and(|plan| plan.steps().any(|action| action.cluster() == cluster))
    };
    let over = ledger.failures.iter().filter(|((id, cluster), failure)| {
        let is_known = inventory.clusters.contains_key(cluster) || plan.abandoned.contains_key(cluster);
        // The failure counts deliveries in a row, so it lasts until the inspections after the last delivery are done.
        let is_counting = failure.is_of_overwritten() && credential::awaits_look(ledger, id, cluster);
        !failure.waits(now) && is_known && !acts(id, cluster) && !is_counting
    });
    over.map(|((id, cluster), _)| Change::Failure(id.clone(), cluster.clone(), None)).collect()
}

fn changes(plan: &AccountPlan, now: Timestamp) -> Vec<Change> {
    let mut changes = Vec::new();
    let after = after(plan, now);
    if after != *plan.before {
        changes.push(Change::Account(after.into()));
    }
    changes.extend(plan.orders.iter().map(|id| Change::OrderDone(*id)));
    for (cluster, tenant) in &plan.places {
        changes.push(Change::Tenant(plan.id.clone(), cluster.clone(), tenant.clone()));
    }
    changes.extend(plan.forgotten.iter().map(|key| Change::Object(key.clone(), None)));
    changes.extend(plan.labelled.iter().map(|(key, record)| Change::Object(key.clone(), Some(record.clone()))));
    changes.extend(plan.adopted.iter().map(|adoption| {
        let (key, given) = adoption.given(&plan.id, now);
        Change::Override(key, Some(given))
    }));
    // Without a change of the lifecycle state, a suspension in one cluster begins only if the guard kept its step.
    let stops = stops(plan.steps());
    let is_done = |cluster: &ClusterName| plan.transition.is_some() || stops.contains(cluster);
    let begun = plan.begun.iter().filter(|(cluster, failure)| !failure.is_begun() || is_done(cluster));
    changes.extend(
        begun.map(|(cluster, failure)| Change::Failure(plan.id.clone(), cluster.clone(), Some(failure.clone()))),
    );
    changes
}

/// Returns the account after the plan.
fn after(plan: &AccountPlan, now: Timestamp) -> Account {
    let mut after = plan.before.as_ref().clone();
    let (state, suspension) = match &plan.transition {
        None => (after.state, after.suspension.clone()),
        Some(Transition::Create | Transition::Resume) => (Lifecycle::Active, None),
        Some(Transition::Suspend(why)) => (Lifecycle::Suspended, Some(Box::new(why.clone()))),
        Some(Transition::Archive | Transition::Delete { .. }) => (Lifecycle::Archived, after.suspension.clone()),
        Some(Transition::Gone) => (Lifecycle::Deleted, after.suspension.clone()),
    };
    // The time until the next phase is counted from the beginning of this phase.
    after.ending = match &plan.transition {
        None => after.ending,
        Some(Transition::Delete { .. }) => Some(Ending::Deletion { at: now }),
        Some(_) => None,
    };
    if state != after.state {
        after.since = now;
    }
    after.state = state;
    after.suspension = suspension;
    after.generation = plan.generation;
    if plan.regenerated.is_some() || state == Lifecycle::Suspended {
        after.revocation = None;
    }
    for member in plan.leaving.keys() {
        after.members.remove(member);
        after.leaving.remove(member);
    }
    after
}

fn events(plan: &AccountPlan, now: Timestamp) -> Vec<Event> {
    let bursar = Note { actor: "bursar".to_owned(), reason: String::new(), ticket: None, at: Timestamp::UNIX_EPOCH };
    let event = |action: &str, note: &Note, reason: String, detail: Value| Event {
        account: Some(plan.account.clone()),
        account_id: Some(plan.id.clone()),
        ..Event::new(action, reason, detail).by(note)
    };
    let places = json!(
        plan.places
            .iter()
            .map(|(cluster, tenant)| (cluster.to_string(), json!(tenant.namespace)))
            .collect::<serde_json::Map<_, _>>()
    );
    let life = plan.transition.as_ref().map(|transition| match transition {
        Transition::Create => event("created", &bursar, "new".to_owned(), json!({"namespaces": places})),
        Transition::Resume => match &plan.ordered {
            Some(note) => event("resumed", note, note.reason.clone(), json!({})),
            None => event("resumed", &bursar, super::display::returned(plan).to_owned(), json!({})),
        },
        Transition::Archive => event("archived", &bursar, super::display::waited(plan), json!({})),
        Transition::Delete { .. } => event("deletion begun", &bursar, super::display::waited(plan), json!({})),
        Transition::Gone => event("deleted", &bursar, "nothing is left of its namespaces".to_owned(), json!({})),
        Transition::Suspend(why) => {
            let mut detail = json!({"generation": plan.generation});
            if let Some(term) = why.term() {
                detail["until"] = json!(term.until);
            }
            match why.ordered() {
                Some(note) => event("suspended", note, note.reason.clone(), detail),
                None => event("suspended", &bursar, super::display::cause(why, plan), detail),
            }
        }
    });
    let revoked = plan.regenerated.as_ref().and_then(|regenerated| match regenerated {
        Regeneration::Revoked(note) => {
            Some(event("revoked", note, note.reason.clone(), json!({"generation": plan.generation})))
        }
        Regeneration::First | Regeneration::Suspended => None,
    });
    let left = plan.leaving.iter().map(|(id, name)| {
        event("member removed", &bursar, format!("{name} is no longer in the directory's list"), json!({"member": id}))
    });
    let adopted = plan.adopted.iter().map(|adoption| {
        let (_, given) = adoption.given(&plan.id, now);
        let reason = format!("{}; {}", adoption.said(), given.note.reason);
        event("quota override adopted", &given.note, reason, json!(adoption))
    });
    life.into_iter().chain(revoked).chain(left).chain(adopted).collect()
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use crate::contract::exception::ExceptedRule;
    use crate::identity::AccountKind;
    use crate::ledger::Note;
    use crate::ledger::exception::{Exception, ExceptionKey};
    use crate::plan::testing::World;
    use crate::snapshot::Role;

    #[test]
    fn a_lost_role_in_a_workspace_skips_a_generation_and_a_new_member_does_not() {
        let (mut world, alice, algebra) = World::in_course();
        let last = |world: &mut World| {
            world.cycles(3);
            assert!(world.plan().is_empty(), "{}", world.plan());
            world.ledger.last_generation
        };
        let entry = world.ledger.accounts[&alice].directory_id.clone();
        world.account(&algebra).members.insert(entry.clone(), Role::Manager);
        let began = last(&mut world);
        world.account(&algebra).members.insert(entry.clone(), Role::Member);
        assert_eq!(last(&mut world), began + 1, "a manager who becomes a member");
        world.account(&algebra).leaving.insert(entry);
        assert_eq!(last(&mut world), began + 2, "a member who leaves");
        world.join(&algebra, &alice);
        assert_eq!(last(&mut world), began + 2, "a member who joins");
        // If an account gets a new generation, no further generation is skipped.
        world.add(AccountKind::Tool, "foo", Some(52_503));
        assert_eq!(last(&mut world), began + 3);
    }

    #[test]
    fn an_exception_that_ends_by_its_date_skips_a_generation() {
        let mut world = World::new();
        let account = world.add(AccountKind::Tool, "foo", Some(52_503));
        world.cycles(3);
        let (until, began) = (world.now + SignedDuration::from_hours(3), world.ledger.last_generation);
        let note = Note { actor: "ann".to_owned(), reason: "course".to_owned(), ticket: None, at: world.now };
        let key = ExceptionKey { account, rule: ExceptedRule::ALL[0], cluster: None };
        world.ledger.exceptions.insert(key, Exception { until, note, proved: None });
        for _ in 0..600 {
            world.cycle();
            let ended = u64::from(world.ledger.exceptions.is_empty());
            assert_eq!(world.ledger.last_generation, began + ended);
            world.now += SignedDuration::from_mins(1);
        }
        assert!(world.ledger.exceptions.is_empty());
    }
}
