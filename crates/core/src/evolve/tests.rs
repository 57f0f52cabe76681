//! Tests that a plan uses the observations of its own cycle, so that previews and cycles agree.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;

use super::*;
use crate::desired::Transition;
use crate::inventory::pods::{Lifetime, ObservedPod};
use crate::ledger::{CredentialKey, Suspension};
use crate::plan::testing::{World, prod};
use crate::policy::NamespaceReaper;

fn evolved(world: &World) -> Evolved {
    let World { ledger, inventory, policy, sealer, now, .. } = world;
    evolve(Inputs { ledger, heard: None, inventory, policy, sealer, now: *now }, &mut Planner::default())
}

#[test]
fn a_namespace_that_is_used_again_is_not_announced_as_idle() {
    let (mut world, _) = World::with_foo();
    world.policy.reapers.namespaces = Some(NamespaceReaper {
        idle_for: Duration::from_hours(4),
        warn_for: Duration::from_hours(1),
        per_cycle: 9,
        evidence: BTreeMap::new(),
    });
    world.inventory.pods.insert(prod(), Arc::default());
    let idle = |world: &World| {
        let plan = evolved(world).plan;
        let why = plan.accounts.into_iter().find_map(|account| account.transition.clone());
        matches!(why, Some(Transition::Suspend(Suspension::Idle { .. })))
    };
    for _ in 0..12 {
        let Evolved { approved, known, .. } = evolved(&world);
        world.ledger = known;
        if idle(&world) {
            break;
        }
        world.execute(&approved);
        world.now += SignedDuration::from_hours(1);
    }
    assert!(idle(&world), "after hours without pods, the namespace is idle");
    let pods = Arc::make_mut(world.inventory.pods.get_mut(&prod()).expect("the cluster shows its pods"));
    let pod = ObservedPod {
        uid: "web".to_owned(),
        created: world.now,
        started: Some(world.now),
        lifetime: Lifetime::Unsaid,
        job: None,
        finished: false,
        ends_by: None,
        told: None,
        maker: None,
    };
    pods.pods.insert(("tool-foo".to_owned(), "web".to_owned()), pod);
    assert!(!idle(&world), "a pod that was just created counts in the same cycle");
}

#[test]
fn a_removal_whose_inspections_fail_is_forgotten_after_a_day() {
    let (mut world, foo) = World::with_foo();
    world.cycle();
    let (key, at) = (CredentialKey::new(foo, prod()), world.now);
    let removed = world.ledger.deliveries[&key].clone().removed(at);
    for (hours, is_kept) in [(0, true), (23, true), (25, false), (-23, true), (-25, false)] {
        world.now = at + SignedDuration::from_hours(hours);
        assert!(evolved(&world).known.deliveries.contains_key(&key), "a delivery is kept");
        let delivered = world.ledger.deliveries.insert(key.clone(), removed.clone());
        assert_eq!(evolved(&world).known.deliveries.contains_key(&key), is_kept, "after {hours} hours");
        world.ledger.deliveries.set(key.clone(), delivered);
    }
}
