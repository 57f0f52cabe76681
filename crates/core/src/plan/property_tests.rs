//! Tests random histories of a small site: after a plan was executed, nothing is left to plan; nobody is suspended for
//! an unproved absence; no generation is used twice; and access that was taken away does not come back, even if the
//! ledger is rolled back or a copy of it takes over.

mod happening;

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;
use proptest::prelude::*;

use self::happening::{Happening, LedgerCopy, happen, happening, site, with_workspace};
use super::scan::Scan;
use super::testing::{World, prod};
use super::{AccountPlan, Action, Bounds, Planner, compare, derived, hash};
use crate::desired::{Deriver, DesiredState, Transition, of_generation_group};
use crate::identity::{AccountId, AccountKind, ClusterName};
use crate::inventory::Rare;
use crate::kinds::{ManagedKind, ObjectKey, Stage};
use crate::ledger::{Lifecycle, Suspension};
use crate::snapshot::Completeness;

/// There are only a few cases, because each has a dozen cycles. `PROPTEST_CASES` overrides their number.
fn histories() -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(asked.unwrap_or(24)) }
}

/// Returns the desired state without manifests, because an incremental derivation keeps only some of them.
fn light(desired: &DesiredState) -> DesiredState {
    let mut light = desired.clone();
    for object in light.accounts.values_mut().flat_map(|it| &mut it.clusters).flat_map(|(_, it)| &mut it.objects) {
        object.1.manifest = None;
    }
    light
}

/// Checks that bindings name only the present generations of active accounts, and that no account has a lower
/// generation than before. `highest` has the generations that accounts had.
fn no_access_is_back(world: &World, highest: &mut BTreeMap<AccountId, u64>) -> Result<(), TestCaseError> {
    for account in world.ledger.accounts.values() {
        let before = highest.insert(account.id.clone(), account.generation).unwrap_or_default();
        prop_assert!(before <= account.generation, "{} has generation {} again", account.name, account.generation);
    }
    for (key, name) in world.bound.iter().flat_map(|(key, names)| names.iter().map(move |name| (key, name))) {
        let Some((_, generation)) = of_generation_group(name) else { continue };
        let mut holders = world.ledger.accounts.values().filter(|account| account.generation == generation);
        prop_assert!(holders.any(|holder| holder.state == Lifecycle::Active), "{key:?} names {name}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(histories())]

    #[test]
    fn a_plan_that_was_executed_leaves_nothing_to_plan(
        history in prop::collection::vec(prop::collection::vec(happening(), 1..5), 1..12),
        has_workspace in any::<bool>(),
    ) {
        let (mut world, ids) = site();
        if has_workspace {
            with_workspace(&mut world, &ids);
        }
        let (mut deriver, mut planner) = (Deriver::default(), Planner::default());
        let mut generations: BTreeSet<u64> = BTreeSet::new();
        let (mut copy, mut highest) = (LedgerCopy::default(), BTreeMap::new());
        for happenings in &history {
            for what in happenings {
                happen(&mut world, &ids, what);
                copy.happens(&mut world, what).map_err(TestCaseError::fail)?;
            }
            world.look();
            let answers = happenings.iter().rev().find_map(|what| match what {
                Happening::Cluster(answers) => Some(*answers),
                _ => None,
            });
            let away = (answers == Some(false)).then(|| world.inventory.clusters.remove(&prod())).flatten();
            let desired = world.desired();
            let remembered = deriver.derive(&world.ledger, &world.policy, &world.sealer, world.now);
            prop_assert_eq!(light(remembered), light(&desired), "the incremental derivation equals a full one");
            let incremental = planner.plan(world.inputs());
            prop_assert_eq!(&world.plan(), &incremental, "the incremental plan equals the full plan");
            let remembered = derived(&mut deriver, world.inputs());
            prop_assert_eq!(&world.plan(), &remembered, "a dropped manifest is built again if it is needed");
            let scan = Scan::of(&desired, &world.ledger, &world.inventory, world.now);
            let closely = compare(&desired, &world.ledger, &world.inventory, &scan, world.now, true);
            prop_assert_eq!(&world.plan(), &closely, "nothing is to do for a tenant that the scan calls settled");

            let (approved, _) = world.guarded();
            let complete = world.ledger.sources.values().all(|source| source.completeness == Completeness::Complete);
            for plan in approved.accounts() {
                let absent = plan.transition == Some(Transition::Suspend(Suspension::Absent));
                prop_assert!(!absent || complete, "{} is suspended without proof", plan.account);
                prop_assert!(plan.leaving.is_empty() || complete, "{} loses members without proof", plan.account);
                prop_assert!(plan.held.is_none());
                if plan.regenerated.is_some() {
                    prop_assert!(generations.iter().all(|known| *known < plan.generation));
                }
            }
            generations.extend(approved.accounts().iter().map(|plan| plan.generation));
            world.execute(&approved);

            if let Some(there) = away {
                world.inventory.clusters.insert(prod(), there);
                world.cycle();
            }
            world.now += SignedDuration::from_mins(1);
            for _ in 0..5 {
                let incremental = planner.plan(world.inputs());
                prop_assert_eq!(world.plan(), incremental, "the incremental plan equals the full plan");
                prop_assert_eq!(planner.bounds(&world.ledger, &world.policy), Bounds::of(&world.ledger, &world.policy));
                world.cycle();
            }
            let (approved, refusals) = world.guarded();
            let left: Vec<_> = approved.accounts().iter().filter(|plan| plan.changes_something()).collect();
            prop_assert!(left.is_empty(), "{left:#?}");
            prop_assert!(!refusals.is_empty() || world.plan().is_empty(), "{}", world.plan());
            no_access_is_back(&world, &mut highest)?;
            // A namespace that is being deleted gets no new bindings.
            let is_being_deleted = |id: &AccountId| {
                let tenant = world.ledger.tenants.get(&(id.clone(), prod()));
                let namespace = tenant.and_then(|tenant| tenant.namespace.as_ref());
                namespace.is_some_and(|namespace| {
                    let found = world.inventory.clusters.get(&prod()).map(|cluster| &cluster.objects);
                    found.and_then(|found| found.get(&ObjectKey::namespace(&prod(), namespace))).is_some_and(|it| it.deleting)
                })
            };
            let tenants = world.ledger.accounts.values().filter(|account| account.kind != AccountKind::Group);
            let tenants = tenants.filter(|account| account.state != Lifecycle::Active || !is_being_deleted(&account.id));
            for account in tenants.filter(|it| !world.ledger.holds.contains_key(&it.id)) {
                let bound = world.ledger.objects.iter().any(|(key, record)| {
                    record.account == account.id && key.kind.stage() == Stage::Access
                });
                let served = account.state == Lifecycle::Active;
                prop_assert_eq!(bound, served, "{} is {:?}", &account.name, account.state);
            }
        }
    }

    #[test]
    fn a_refused_set_keeps_its_hash_in_the_next_cycle(later in 1_i64..5000, generation in 0_u64..5000, quota in 1_u8..9) {
        let (mut world, ids) = site();
        for _ in 0..3 {
            world.cycle();
        }
        happen(&mut world, &ids, &Happening::Limit(1));
        for who in 4..8 {
            happen(&mut world, &ids, &Happening::Absent(who, 30));
        }
        let hashes = |world: &World| -> Vec<String> {
            world.plan().accounts.iter().filter(|plan| plan.transition.is_some()).map(hash::part).collect()
        };
        let before = hashes(&world);
        prop_assert_eq!(before.len(), 4);
        prop_assert_eq!(hash::of_parts(before.iter()), hash::of_parts(before.iter().rev()));
        world.now += SignedDuration::from_secs(later);
        world.ledger.last_generation += generation;
        happen(&mut world, &ids, &Happening::Quota(quota));
        prop_assert_eq!(before, hashes(&world));
    }
}

#[test]
fn a_held_suspended_tenant_without_its_namespace_has_nothing_to_stop() {
    let (mut world, ids) = site();
    let happenings =
        [Happening::Absent(1, 0), Happening::Absent(5, 24), Happening::Held(5, true), Happening::Vanished(34)];
    for what in &happenings {
        happen(&mut world, &ids, what);
        for _ in 0..6 {
            world.cycle();
        }
        world.now += SignedDuration::from_mins(1);
    }
    let (approved, _) = world.guarded();
    let left: Vec<_> = approved.accounts().iter().filter(|plan| plan.changes_something()).collect();
    assert!(left.is_empty(), "{left:#?}");
}

#[test]
fn a_suspension_continues_after_the_daemon_was_killed() {
    let (mut world, ids) = site();
    for _ in 0..3 {
        world.cycle();
    }
    happen(&mut world, &ids, &Happening::Disabled(4, true));
    let (approved, _) = world.guarded();
    let actions = approved.accounts()[0].steps().count();
    for done in 0..actions {
        let (mut world, ids) = site();
        for _ in 0..3 {
            world.cycle();
        }
        happen(&mut world, &ids, &Happening::Disabled(4, true));
        let (approved, _) = world.guarded();
        world.execute_until(&approved, done);
        let rest = world.plan();
        let stops = rest.accounts.iter().flat_map(AccountPlan::steps);
        assert!(stops.into_iter().any(|action| matches!(action, Action::StopWorkloads { .. })), "after {done}: {rest}");
        world.cycle();
        assert!(world.plan().is_empty(), "after {done}: {}", world.plan());
    }
}

#[test]
fn a_given_up_cluster_and_a_repaired_seal_continue_after_the_daemon_was_killed() {
    let b = ClusterName("b".into());
    let given_up = |world: &mut World| {
        world.policy.classes.get_mut("tool").expect("the policy has this class").clusters = vec![prod()];
    };
    let sealed_again = |world: &mut World| {
        let foo = world.id(AccountKind::Tool, "foo");
        world.account(&foo).disabled = Some("mark".to_owned());
        (0..2).for_each(|_| drop(world.cycle()));
        let key = ObjectKey::namespace(
            &ClusterName("b".into()),
            &"tool-foo".to_owned().try_into().expect("the text is a namespace name"),
        );
        let objects = &mut world.in_cluster(&key.cluster).objects;
        objects.get_mut(&key).expect("the world has the object").digest = "edited".to_owned().into();
    };
    let stops = |action: &Action| matches!(action, Action::StopWorkloads { cluster, .. } if *cluster == b);
    for happens in [&given_up as &dyn Fn(&mut World), &sealed_again] {
        let mut world = World::new();
        world.another_cluster("b");
        world.add(AccountKind::Tool, "foo", Some(52_503));
        (0..2).for_each(|_| drop(world.cycle()));
        happens(&mut world);
        let (approved, _) = world.guarded();
        let place = approved.accounts()[0].steps().position(stops).expect("the plan stops workloads");
        world.execute_until(&approved, place);
        let rest = world.plan();
        assert!(rest.accounts.iter().flat_map(AccountPlan::steps).any(stops), "{rest}");
        world.cycle();
        assert!(world.plan().is_empty() && world.ledger.failures.is_empty(), "{}", world.plan());
    }
}

#[test]
fn a_resumption_continues_after_the_daemon_was_killed() {
    let suspended = || {
        let (mut world, ids) = site();
        for _ in 0..3 {
            world.cycle();
        }
        happen(&mut world, &ids, &Happening::Disabled(4, true));
        for _ in 0..3 {
            world.cycle();
        }
        assert!(!world.ledger.stopped.is_empty());
        happen(&mut world, &ids, &Happening::Disabled(4, false));
        world
    };
    let actions = suspended().guarded().0.accounts()[0].steps().count();
    for done in 0..actions {
        let mut world = suspended();
        let (approved, _) = world.guarded();
        world.execute_until(&approved, done);
        for _ in 0..3 {
            world.cycle();
        }
        assert!(world.ledger.stopped.is_empty(), "after {done}");
        assert!(world.plan().is_empty(), "after {done}: {}", world.plan());
    }
}

#[test]
fn repairs_that_a_program_undoes_wait_longer_unless_they_remove_access() {
    let mut world = World::new();
    let foo = world.add(AccountKind::Tool, "foo", Some(52_503));
    world.cycle();
    let of = |world: &World, kind: ManagedKind| {
        let found = world.ledger.objects.keys().find(|key| key.kind == kind);
        found.expect("the account has an object").clone()
    };
    let (policy, binding) = (of(&world, ManagedKind::NetworkPolicy), of(&world, ManagedKind::RoleBinding));
    let edit = |world: &mut World, key: &ObjectKey| {
        let found = world.cluster().objects.get_mut(key).expect("the world has the object");
        found.digest = "edited".into();
        found.rare = Rare { rival: Some("argocd".to_owned()), ..Rare::default() }.if_any();
    };
    let repairs = |world: &mut World, key: &ObjectKey| {
        let minutes = (0..60).filter(|_| {
            edit(world, key);
            let (approved, _) = world.guarded();
            let repaired = approved.accounts().iter().flat_map(AccountPlan::steps).count() > 0;
            world.execute(&approved);
            world.now += SignedDuration::from_mins(1);
            repaired
        });
        minutes.count()
    };
    assert_eq!(repairs(&mut world, &policy), 9, "three repairs at once, then after 1, 2, 4, 8 and 16 minutes");
    edit(&mut world, &policy);
    let plan = world.plan();
    let notice = plan.notices.iter().find(|notice| notice.text.contains("argocd")).expect("the plan has this notice");
    assert!(notice.text.contains("NetworkPolicy") && notice.text.contains("drift = { network"), "{}", notice.text);
    assert_eq!(notice.account.name, world.ledger.accounts[&foo].name);
    assert_eq!(repairs(&mut world, &binding), 60, "the binding is repaired every minute");
}

#[test]
fn applied_objects_share_the_ledgers_keys_and_keep_no_manifest() {
    let mut world = World::new();
    world.add(AccountKind::Tool, "foo", Some(52_503));
    world.cycle();
    world.cycle();
    let mut deriver = Deriver::default();
    let desired = deriver.derive(&world.ledger, &world.policy, &world.sealer, world.now);
    let objects = desired.accounts.values().flat_map(|it| it.clusters.values()).flat_map(|it| &it.objects);
    let objects: Vec<_> = objects.collect();
    assert_eq!(objects.len(), world.ledger.objects.len());
    for (key, object) in objects {
        let (known, _) = world.ledger.objects.get_key_value(key).expect("the ledger has the object");
        assert_eq!(key.address(), known.address(), "{key:?}");
        assert_eq!(object.manifest, None, "{key:?}");
    }
}
