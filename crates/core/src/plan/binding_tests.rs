//! Bindings that hold although the cluster does not show them, or although somebody deleted them.

use crate::identity::{AccountId, AccountKind};
use crate::kinds::ObjectKey;
use crate::ledger::{Note, Order, OrderKind};
use crate::plan::testing::World;
use crate::plan::{AccountPlan, Action};

fn world() -> (World, AccountId, ObjectKey) {
    let mut world = World::new();
    let foo = world.add(AccountKind::Tool, "foo", Some(52_503));
    (0..2).for_each(|_| drop(world.cycle()));
    let binding = world.bound.keys().next().expect("the account has a binding").clone();
    (world, foo, binding)
}

fn deletes(world: &World, binding: &ObjectKey) -> bool {
    let (approved, _) = world.guarded();
    let mut steps = approved.accounts().iter().flat_map(AccountPlan::steps);
    steps.any(|action| matches!(action, Action::Delete { key, .. } if key == binding))
}

#[test]
fn a_binding_without_its_label_is_deleted_and_known_until_then() {
    let (mut world, foo, binding) = world();
    world.cluster().objects.remove(&binding);
    world.account(&foo).disabled = Some("mark".to_owned());
    assert!(deletes(&world, &binding), "{}", world.plan());
    let (approved, _) = world.guarded();
    world.execute_until(&approved, 0);
    assert!(world.ledger.objects.contains_key(&binding), "the answer to the deletion forgets it");
    assert!(deletes(&world, &binding), "{}", world.plan());
    world.cycle();
    assert!(world.bound.is_empty() && !world.ledger.objects.contains_key(&binding));
    assert!(world.plan().is_empty(), "{}", world.plan());
}

#[test]
fn a_revocation_of_a_held_account_takes_a_binding_without_its_label() {
    let (mut world, foo, binding) = world();
    world.cluster().objects.remove(&binding);
    let note = Note { actor: "root".to_owned(), reason: "stolen".to_owned(), ticket: None, at: world.now };
    world.ledger.holds.insert(foo.clone(), note.clone());
    let order = Order { id: 1, account: foo.clone(), what: OrderKind::Revoke, note, bulk: None, object: None };
    world.ledger.orders.push(order);
    world.cycle();
    assert!(world.bound.is_empty(), "{:?}", world.bound);
    world.cycle();
    assert!(world.bound.is_empty(), "a hold stops what gives access: {:?}", world.bound);
    world.ledger.holds.remove(&foo);
    (0..2).for_each(|_| drop(world.cycle()));
    assert!(world.bound.contains_key(&binding));
    assert!(world.plan().is_empty(), "{}", world.plan());
}

#[test]
fn a_binding_that_a_finalizer_keeps_is_emptied() {
    let (mut world, foo, binding) = world();
    world.cluster().objects.get_mut(&binding).expect("the world has it").deleting = true;
    assert!(world.plan().is_empty(), "it goes by itself: {}", world.plan());
    world.account(&foo).disabled = Some("mark".to_owned());
    world.cycle();
    assert!(world.bound.is_empty());
    assert!(world.plan().is_empty(), "once is enough: {}", world.plan());
}

#[test]
fn a_revocation_takes_a_binding_that_a_finalizer_keeps_and_makes_it_again() {
    let (mut world, foo, binding) = world();
    world.cluster().objects.get_mut(&binding).expect("the world has it").deleting = true;
    let note = Note { actor: "root".to_owned(), reason: "stolen".to_owned(), ticket: None, at: world.now };
    world.ledger.orders.push(Order { id: 1, account: foo, what: OrderKind::Revoke, note, bulk: None, object: None });
    world.cycle();
    assert!(world.bound.is_empty());
    world.cluster().objects.remove(&binding);
    (0..2).for_each(|_| drop(world.cycle()));
    assert!(world.bound.contains_key(&binding));
    assert!(world.plan().is_empty(), "{}", world.plan());
}
