//! Tests bindings that apply although the cluster does not show them, or although somebody is deleting them.

use crate::identity::AccountId;
use crate::kinds::ObjectKey;
use crate::ledger::{Failure, LATER_REMOVAL, OrderKind, REMOVAL};
use crate::plan::testing::{World, prod};
use crate::plan::{AccountPlan, Action};

fn world() -> (World, AccountId, ObjectKey) {
    let (mut world, foo) = World::with_foo();
    world.cycles(2);
    let binding = world.bound.keys().next().expect("the account has a binding").clone();
    (world, foo, binding)
}

fn deletes(world: &World, binding: &ObjectKey) -> bool {
    let (approved, _) = world.guarded();
    let mut steps = approved.accounts().iter().flat_map(AccountPlan::steps);
    steps.any(|action| matches!(action, Action::Delete { key, .. } if key == binding))
}

#[test]
fn an_unlabelled_binding_stays_in_the_ledger_until_it_is_deleted() {
    let (mut world, foo, binding) = world();
    world.cluster().objects.remove(&binding);
    world.account(&foo).disabled = Some("mark".to_owned());
    assert!(deletes(&world, &binding), "{}", world.plan());
    let (approved, _) = world.guarded();
    world.execute_until(&approved, 0);
    assert!(world.ledger.objects.contains_key(&binding), "only the answer to the deletion removes the record");
    assert!(deletes(&world, &binding), "{}", world.plan());
    world.cycle();
    assert!(world.bound.is_empty() && !world.ledger.objects.contains_key(&binding));
    assert!(world.plan().is_empty(), "{}", world.plan());
}

#[test]
fn a_revocation_of_a_held_account_deletes_an_unlabelled_binding() {
    let (mut world, foo, binding) = world();
    world.cluster().objects.remove(&binding);
    world.hold(&foo);
    world.order(&foo, OrderKind::Revoke);
    world.cycle();
    assert!(world.bound.is_empty(), "{:?}", world.bound);
    world.cycle();
    assert!(world.bound.is_empty(), "a hold stops the new binding: {:?}", world.bound);
    world.ledger.holds.remove(&foo);
    world.cycles(2);
    assert!(world.bound.contains_key(&binding));
    assert!(world.plan().is_empty(), "{}", world.plan());
}

#[test]
fn a_suspension_deletes_a_binding_that_somebody_recreated() {
    let (mut world, foo, binding) = world();
    world.cluster().objects.get_mut(&binding).expect("the world has the object").uid = "another".into();
    world.account(&foo).disabled = Some("mark".to_owned());
    let (approved, _) = world.guarded();
    world.execute_until(&approved, 0);
    assert!(world.ledger.objects.contains_key(&binding), "only the answer to the deletion removes the record");
    world.cycle();
    assert!(world.bound.is_empty() && !world.ledger.objects.contains_key(&binding));
    assert!(world.plan().is_empty(), "{}", world.plan());
}

#[test]
fn a_suspension_deletes_a_binding_that_a_finalizer_keeps() {
    let (mut world, foo, binding) = world();
    world.cluster().objects.get_mut(&binding).expect("the world has the object").deleting = true;
    assert!(world.plan().is_empty(), "the binding needs no step: {}", world.plan());
    world.account(&foo).disabled = Some("mark".to_owned());
    world.cycle();
    assert!(world.bound.is_empty());
    assert!(world.plan().is_empty(), "the deletion is not repeated: {}", world.plan());
}

#[test]
fn a_revocation_deletes_a_binding_that_a_finalizer_keeps_and_recreates_it() {
    let (mut world, foo, binding) = world();
    world.cluster().objects.get_mut(&binding).expect("the world has the object").deleting = true;
    world.order(&foo, OrderKind::Revoke);
    world.cycle();
    assert!(world.bound.is_empty());
    world.cluster().objects.remove(&binding);
    world.cycles(2);
    assert!(world.bound.contains_key(&binding));
    assert!(world.plan().is_empty(), "{}", world.plan());
}

#[test]
fn a_failed_removal_of_workloads_delays_no_change_of_a_binding() {
    for (step, delays) in [(LATER_REMOVAL, false), (REMOVAL, true)] {
        let (mut world, alice, algebra) = World::in_course();
        let (since, next_try) = (world.now, world.now + jiff::SignedDuration::from_secs(30));
        world.order(&alice, OrderKind::Revoke);
        // An earlier attempt recorded the revocation.
        let (approved, _) = world.guarded();
        world.execute_until(&approved, 0);
        let failure = Failure { step: step.to_owned(), reason: "Outlived".to_owned(), since, attempts: 5, next_try };
        world.ledger.failures.insert((algebra.clone(), prod()), failure);
        let (approved, _) = world.guarded();
        let plan = approved.accounts().iter().find(|plan| plan.id == algebra);
        let changes = plan.is_some_and(|plan| plan.narrowing.iter().any(|it| matches!(it, Action::Apply { .. })));
        assert_eq!(changes, !delays, "{step}: {}", world.plan());
    }
}
