//! Removes the subjects to whom the guard refused access from the bindings of a plan.
//!
//! A plan that resumes a person is accompanied by plans that name the person in the bindings of workspaces. If the
//! guard refuses the resumption, by a limit or because the confinement is not confirmed, the workspaces continue
//! without that person.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::hold::follows;
use super::{AccountPlan, Action};
use crate::desired::Transition;
use crate::digest::digest;
use crate::identity::{AccountId, ClusterName};
use crate::inventory::Inventory;
use crate::json_text::JsonText;
use crate::kinds::{ObjectKey, Stage};
use crate::ledger::LedgerState;
use crate::packed_text::DigestText;

/// The present state of the bindings that a plan changes.
pub type Standing = BTreeMap<ObjectKey, Binding>;

/// The state of a binding in its cluster.
#[derive(Debug, Clone, PartialEq)]
pub struct Binding {
    /// The subjects of the last manifest that Bursar wrote; `None` if an old ledger did not record them.
    subjects: Option<Vec<Value>>,
    /// The digest of that manifest; `None` if somebody has changed the binding since.
    unchanged: Option<DigestText>,
}

pub(super) fn standing(plan: &AccountPlan, ledger: &LedgerState, inventory: &Inventory) -> Standing {
    let bindings = plan.steps().filter_map(|action| match action {
        Action::Apply { key, uid: Some(_), .. } | Action::Delete { key, .. } if key.kind.stage() == Stage::Access => {
            Some(key)
        }
        _ => None,
    });
    let known = bindings.filter_map(|key| {
        let record = ledger.objects.get(key)?;
        let found = inventory.clusters.get(&key.cluster)?.objects.get(key)?;
        let is_unchanged = found.digest == record.observed && found.uid == record.uid;
        let subjects = record.detail.as_ref().map(JsonText::value).and_then(|it| it.as_array().cloned());
        Some((key.clone(), Binding { subjects, unchanged: is_unchanged.then(|| record.wanted.clone()) }))
    });
    known.collect()
}

/// Removes people from the bindings of workspaces if their own creation or resumption is not in `accounts`.
pub(super) fn without_refused_returns(accounts: &mut Vec<AccountPlan>) {
    let begin: BTreeSet<AccountId> = accounts.iter().filter(|plan| begins(plan)).map(|plan| plan.id.clone()).collect();
    for plan in accounts.iter_mut() {
        let mut refused = std::mem::take(&mut plan.returning);
        refused.retain(|id, _| !begin.contains(id));
        if !refused.is_empty() {
            retain(plan, |key, subject| !refused.values().any(|named| named.get(&key.cluster) == Some(subject)));
        }
    }
    accounts.retain(|plan| !plan.is_idle());
}

/// Whether the plan gives an account access that it did not have.
pub(super) fn begins(plan: &AccountPlan) -> bool {
    matches!(plan.transition, Some(Transition::Create | Transition::Resume))
}

/// Removes new subjects from the bindings in `clusters`, and new bindings from the plan. A binding that exists but is
/// not in the ledger is written, because it may name somebody who has to lose access.
pub(super) fn without_new(plan: &mut AccountPlan, clusters: &BTreeSet<ClusterName>) {
    let standing = plan.standing.clone();
    retain(plan, |key, subject| {
        let known = standing.get(key).filter(|_| clusters.contains(&key.cluster));
        let before = known.and_then(|known| known.subjects.as_ref());
        before.is_none_or(|before| before.iter().any(|it| follows(subject, it)))
    });
    plan.retain_steps(|_, action| match action {
        Action::Apply { key, uid, .. } if key.kind.stage() == Stage::Access && clusters.contains(&key.cluster) => {
            uid.is_some() || standing.contains_key(key)
        }
        _ => true,
    });
}

/// Keeps the subjects of bindings for which `keeps` returns `true`. A binding that then equals the present one is not
/// written.
fn retain(plan: &mut AccountPlan, keeps: impl Fn(&ObjectKey, &Value) -> bool) {
    let less = |action: &Action| without(action, |key, subject| keeps(key, subject));
    let changed: BTreeMap<usize, Action> =
        plan.steps().enumerate().filter_map(|(place, action)| Some((place, less(action)?))).collect();
    let clusters = changed.values().map(|action| action.cluster().clone()).collect::<BTreeSet<_>>();
    // This plan does not reach the desired state in these clusters.
    plan.settles.retain(|(cluster, _)| !clusters.contains(cluster));
    let standing = plan.standing.clone();
    plan.replace_steps(|place| changed.get(&place));
    plan.retain_steps(|place, action| !changed.contains_key(&place) || is_left(action, &standing));
}

/// Returns the action with only the subjects that `keeps` accepts. `None` if `keeps` accepts all of them, or if the
/// action writes no binding.
fn without(action: &Action, keeps: impl Fn(&ObjectKey, &Value) -> bool) -> Option<Action> {
    let Action::Apply { key, manifest, uid, reason, .. } = action else { return None };
    let mut manifest = (key.kind.stage() == Stage::Access).then(|| manifest.value())?;
    let subjects = manifest["subjects"].as_array()?;
    let kept: Vec<Value> = subjects.iter().filter(|subject| keeps(key, subject)).cloned().collect();
    if kept.len() == subjects.len() {
        return None;
    }
    manifest["subjects"] = json!(kept);
    let (wanted, manifest) = (digest(&manifest).into(), JsonText::from(&manifest));
    Some(Action::Apply { key: key.clone(), manifest, wanted, uid: uid.clone(), reason: reason.clone() })
}

/// Whether the action is still needed. It is not needed if the binding already has this state, or if a new binding
/// would have no subjects.
fn is_left(action: &Action, standing: &Standing) -> bool {
    let Action::Apply { key, manifest, wanted, uid, .. } = action else { return true };
    let names_nobody = || manifest.value()["subjects"].as_array().is_none_or(Vec::is_empty);
    standing.get(key).is_none_or(|known| known.unchanged.as_ref() != Some(wanted)) && (uid.is_some() || !names_nobody())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use crate::identity::AccountKind;
    use crate::ledger::Lifecycle;
    use crate::plan::testing::{World, prod};
    use crate::policy::Limit;

    /// Returns the names in the workspace's bindings, without generations.
    fn members(world: &World) -> BTreeSet<String> {
        let bound = world.bound.iter().filter(|(key, _)| key.namespace.as_deref() == Some("workspace-algebra"));
        let names = bound.flat_map(|(_, names)| names.iter().map(|name| name.split('#').next().unwrap_or_default()));
        names.map(str::to_owned).collect()
    }

    fn of(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| format!("bursar:user:{name}")).collect()
    }

    fn student(world: &mut World, name: &str, uid: i64) -> crate::identity::AccountId {
        let id = world.add(AccountKind::User, name, Some(uid));
        world.account(&id).dn = format!("uid={name},ou=students,dc=example,dc=org");
        id
    }

    /// Returns a world in which alice is suspended and then enabled again, while bob stays active.
    fn alice_returns() -> (World, crate::identity::AccountId, crate::identity::AccountId) {
        let (mut world, alice, algebra) = World::in_course();
        let bob = student(&mut world, "bob", 20_002);
        world.join(&algebra, &bob);
        world.account(&alice).disabled = Some("mark".to_owned());
        world.cycles(3);
        assert_eq!(members(&world), of(&["bob"]));
        world.account(&alice).disabled = None;
        (world, alice, algebra)
    }

    #[test]
    fn a_return_that_a_limit_refuses_is_refused_in_workspaces_too() {
        let (mut world, alice, algebra) = alice_returns();
        world.policy.limits.resume_per_cycle = Limit { count: 0, percent: None };
        let carl = student(&mut world, "carl", 20_003);
        world.join(&algebra, &carl);
        for _ in 0..2 {
            world.cycle();
            assert_eq!(members(&world), of(&["bob", "carl"]), "the return of alice delays nobody else");
        }
        assert_eq!(world.ledger.accounts[&alice].state, Lifecycle::Suspended);
        let (approved, refusals) = world.guarded();
        assert!(approved.accounts().iter().all(|plan| !plan.changes_something()), "{:?}", approved.accounts());
        assert_eq!(refusals.len(), 1);
        let bob = world.id(AccountKind::User, "bob");
        world.now += jiff::SignedDuration::from_hours(25);
        world.account(&bob).disabled = Some("mark".to_owned());
        world.cycle();
        assert_eq!(members(&world), of(&["carl"]), "the return of alice delays no removal");
        world.policy.limits.resume_per_cycle = Limit { count: 5, percent: None };
        world.cycle();
        assert_eq!(members(&world), of(&["alice", "carl"]));
        world.account(&bob).disabled = None;
        world.cycles(2);
        assert!(world.plan().is_empty(), "{}", world.plan());
    }

    #[test]
    fn a_held_person_is_not_added_back_to_workspaces() {
        let (mut world, alice, _) = alice_returns();
        world.hold(&alice);
        world.cycles(2);
        assert_eq!(members(&world), of(&["bob"]));
        world.ledger.holds.clear();
        world.cycle();
        assert_eq!(members(&world), of(&["alice", "bob"]));
    }

    #[test]
    fn a_held_person_joins_no_workspace() {
        let (mut world, _, algebra) = World::in_course();
        let dave = student(&mut world, "dave", 20_004);
        world.join(&algebra, &dave);
        world.hold(&dave);
        world.cycles(2);
        assert_eq!(members(&world), of(&["alice"]));
        world.ledger.holds.clear();
        world.cycle();
        assert_eq!(members(&world), of(&["alice", "dave"]));
    }

    #[test]
    fn a_resumed_workspace_does_not_wait_for_its_held_people() {
        let (mut world, alice, algebra) = World::in_course();
        for id in [&alice, &algebra] {
            world.account(id).disabled = Some("mark".to_owned());
        }
        world.cycles(3);
        assert!(members(&world).is_empty());
        for id in [&alice, &algebra] {
            world.account(id).disabled = None;
        }
        world.hold(&alice);
        world.cycle();
        assert_eq!(world.ledger.accounts[&algebra].state, Lifecycle::Active);
        assert!(members(&world).is_empty());
        assert!(world.inventory.clusters.contains_key(&prod()));
    }
}
