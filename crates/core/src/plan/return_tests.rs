//! Tests that an unfinished suspension continues while the guard refuses the resumption.

use crate::identity::{AccountId, AccountKind, ClusterName};
use crate::kinds::{ManagedKind, Stage};
use crate::ledger::Lifecycle;
use crate::plan::Action;
use crate::plan::testing::World;
use crate::policy::Limit;
use crate::snapshot::Completeness;

fn b() -> ClusterName {
    ClusterName("b".into())
}

/// Returns a tool that was suspended while cluster b did not answer, and that is enabled again when b answers.
fn returned() -> (World, AccountId) {
    let mut world = World::new();
    world.another_cluster("b");
    let foo = world.add(AccountKind::Tool, "foo", Some(52_503));
    let ann = world.add(AccountKind::User, "ann", Some(20_001));
    world.join(&foo, &ann);
    world.cycles(2);
    let away = world.inventory.clusters.remove(&b()).expect("the world has the cluster");
    world.account(&foo).disabled = Some("mark".to_owned());
    world.cycles(2);
    world.account(&foo).disabled = None;
    world.policy.limits.resume_per_cycle = Limit { count: 0, percent: None };
    world.inventory.clusters.insert(b(), away);
    (world, foo)
}

fn is_narrowed(world: &World) -> bool {
    let binds = |key: &&crate::kinds::ObjectKey| key.kind.stage() == Stage::Access && key.cluster == b();
    !world.ledger.objects.keys().any(|key| binds(&key))
        && world.ledger.stopped.keys().any(|(_, key)| key.cluster == b())
        && world.inventory.clusters[&b()].objects.keys().all(|key| key.kind != ManagedKind::RoleBinding)
}

#[test]
fn an_unfinished_suspension_continues_while_a_limit_refuses_the_return() {
    let (mut world, foo) = returned();
    world.cycles(2);
    assert!(is_narrowed(&world));
    assert_eq!(world.ledger.accounts[&foo].state, Lifecycle::Suspended);
    let (approved, _) = world.guarded();
    assert!(approved.accounts().iter().all(|plan| !plan.changes_something()), "{:?}", approved.accounts());
    world.policy.limits.resume_per_cycle = Limit { count: 1, percent: None };
    world.cycles(2);
    assert!(world.plan().is_empty(), "{}", world.plan());
    assert_eq!(world.ledger.accounts[&foo].state, Lifecycle::Active);
}

#[test]
fn an_unfinished_suspension_continues_while_a_hold_blocks_the_return() {
    let (mut world, foo) = returned();
    world.hold(&foo);
    world.policy.limits.resume_per_cycle = Limit { count: 1, percent: None };
    world.cycles(2);
    assert!(is_narrowed(&world));
    assert_eq!(world.ledger.accounts[&foo].state, Lifecycle::Suspended);
}

#[test]
fn a_member_who_may_not_leave_does_not_delay_the_return_or_evade_its_limit() {
    let (mut world, foo) = returned();
    let ann = world.id(AccountKind::User, "ann");
    let ann = world.account(&ann).directory_id.clone();
    world.account(&foo).leaving.insert(ann.clone());
    world.policy.limits.remove_members_per_cycle = Limit { count: 0, percent: None };
    world.cycles(2);
    assert!(is_narrowed(&world));
    assert_eq!(world.ledger.accounts[&foo].state, Lifecycle::Suspended);
    assert!(world.ledger.accounts[&foo].leaving.contains(&ann));
    world.policy.limits.resume_per_cycle = Limit { count: 1, percent: None };
    world.cycle();
    assert_eq!(world.ledger.accounts[&foo].state, Lifecycle::Active);
    assert!(world.ledger.accounts[&foo].leaving.contains(&ann));
}

#[test]
fn a_return_is_limited_even_if_an_incomplete_read_keeps_a_member() {
    let (mut world, foo) = returned();
    let ann = world.id(AccountKind::User, "ann");
    let ann = world.account(&ann).directory_id.clone();
    world.account(&foo).leaving.insert(ann);
    world.source(Completeness::Partial { why: "size limit".to_owned() });
    world.cycles(2);
    assert_eq!(world.ledger.accounts[&foo].state, Lifecycle::Suspended);
    let steps = world.guarded().0;
    let resumes = |action: &Action| matches!(action, Action::ResumeWorkloads { .. });
    assert!(!steps.accounts().iter().flat_map(crate::plan::AccountPlan::steps).any(resumes));
}
