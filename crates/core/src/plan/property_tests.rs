//! Tests random histories of a small site. After a plan was executed, nothing is left to plan. Nobody is suspended for
//! an unproved absence. A suspended account has no access after two cycles, even in a namespace that somebody deletes.
//! No generation is used twice.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use proptest::prelude::*;
use serde_json::json;

use super::scan::Scan;
use super::testing::{World, prod};
use super::{AccountPlan, Action, Bounds, Plan, Planner, compare, derived, hash};
use crate::desired::{Deriver, DesiredState, Transition};
use crate::identity::{AccountId, AccountKind, ClusterName, DirectoryId};
use crate::inventory::Rare;
use crate::kinds::{ManagedKind, ObjectKey, Stage, WatchedKind};
use crate::ledger::{Absence, Failure, Lifecycle, Note, Order, OrderKind, Suspension};
use crate::policy::Limit;
use crate::snapshot::Completeness;

/// An event for the account with this number, or for all accounts.
#[derive(Debug, Clone)]
enum Happening {
    Absent(usize, u64),
    Back(usize),
    Disabled(usize, bool),
    Rename(usize),
    Ordered(usize, OrderKind),
    Held(usize, bool),
    Loses(usize),
    Fails(usize),
    Edited(usize),
    Vanished(usize),
    /// Somebody deletes the account's namespace, which is gone some cycles later.
    Terminating(usize),
    Source(bool),
    Cluster(bool),
    Hours(i64),
    Limit(u64),
    Quota(u8),
    Role(bool),
    Blind(bool),
}

fn happening() -> impl Strategy<Value = Happening> {
    let who = 0..ACCOUNTS;
    let order = prop_oneof![Just(OrderKind::Suspend), Just(OrderKind::Resume), Just(OrderKind::Revoke)];
    prop_oneof![
        (who.clone(), 0_u64..48).prop_map(|(who, hours)| Happening::Absent(who, hours)),
        who.clone().prop_map(Happening::Back),
        (who.clone(), any::<bool>()).prop_map(|(who, on)| Happening::Disabled(who, on)),
        who.clone().prop_map(Happening::Rename),
        (who.clone(), order).prop_map(|(who, order)| Happening::Ordered(who, order)),
        (who.clone(), any::<bool>()).prop_map(|(who, on)| Happening::Held(who, on)),
        who.clone().prop_map(Happening::Loses),
        who.clone().prop_map(Happening::Terminating),
        who.prop_map(Happening::Fails),
        (0_usize..40).prop_map(Happening::Edited),
        (0_usize..40).prop_map(Happening::Vanished),
        any::<bool>().prop_map(Happening::Source),
        any::<bool>().prop_map(Happening::Cluster),
        (1_i64..80).prop_map(Happening::Hours),
        (0_u64..4).prop_map(Happening::Limit),
        (1_u8..4).prop_map(Happening::Quota),
        any::<bool>().prop_map(Happening::Role),
        any::<bool>().prop_map(Happening::Blind),
    ]
}

/// The site has four tools with two maintainers each, two people (one of them an admin), one student, and the group of
/// admins.
const ACCOUNTS: usize = 8;

fn site() -> (World, Vec<AccountId>) {
    let mut world = World::new();
    let alice = world.add(AccountKind::User, "alice", Some(20_001));
    let bob = world.add(AccountKind::User, "bob", Some(20_002));
    let student = world.add(AccountKind::User, "student", Some(20_003));
    world.account(&student).dn = "uid=student,ou=students,dc=example,dc=org".to_owned();
    let admins = world.add(AccountKind::Group, "k8s-admins", None);
    world.join(&admins, &alice);
    let mut ids = vec![alice.clone(), bob.clone(), student, admins];
    for number in 0..4 {
        let tool = world.add(AccountKind::Tool, &format!("tool{number}"), Some(52_500 + number));
        world.join(&tool, &alice);
        world.join(&tool, &bob);
        ids.push(tool);
    }
    assert_eq!(ids.len(), ACCOUNTS);
    (world, ids)
}

fn happen(world: &mut World, ids: &[AccountId], what: &Happening) {
    let now = world.now;
    let note = Note { actor: "root".to_owned(), reason: "because".to_owned(), ticket: None, at: now };
    match what {
        Happening::Absent(who, hours) => {
            let absence = Absence { since: now, counted_at: now, seconds: hours * 3600, due: now };
            world.account(&ids[*who]).absence = Some(absence);
        }
        Happening::Back(who) => world.account(&ids[*who]).absence = None,
        Happening::Disabled(who, on) => world.account(&ids[*who]).disabled = on.then(|| "mark: yes".to_owned()),
        Happening::Rename(who) => world.account(&ids[*who]).name.push('x'),
        Happening::Ordered(who, what) => {
            let id = world.ledger.orders.last().map_or(1, |order| order.id + 1);
            world.ledger.orders.push(Order {
                id,
                account: ids[*who].clone(),
                what: *what,
                note,
                bulk: None,
                object: None,
            });
        }
        Happening::Held(who, true) => drop(world.ledger.holds.insert(ids[*who].clone(), note)),
        Happening::Held(who, false) => drop(world.ledger.holds.remove(&ids[*who])),
        Happening::Loses(who) => {
            let account = world.account(&ids[*who]);
            let first: Option<DirectoryId> = account.members.keys().next().cloned();
            account.leaving.extend(first);
        }
        Happening::Fails(who) => {
            let failure = Failure {
                step: "apply".to_owned(),
                reason: "no".to_owned(),
                since: now,
                attempts: 1,
                next_try: now + SignedDuration::from_mins(1),
            };
            world.ledger.failures.insert((ids[*who].clone(), prod()), failure);
        }
        Happening::Edited(nth) => {
            if world.inventory.clusters.contains_key(&prod())
                && let Some(found) = world.cluster().objects.values_mut().nth(*nth)
            {
                found.digest = "edited".into();
            }
        }
        Happening::Vanished(nth) => {
            if world.inventory.clusters.contains_key(&prod()) {
                let key = world.cluster().objects.keys().nth(*nth).cloned();
                key.map(|key| world.cluster().objects.remove(&key));
            }
        }
        Happening::Terminating(who) => {
            let tenant = world.ledger.tenants.get(&(ids[*who].clone(), prod()));
            let key = tenant.and_then(|tenant| Some(ObjectKey::namespace(&prod(), tenant.namespace.as_ref()?)));
            if let Some(key) = key
                && let Some(found) = world.cluster().objects.get_mut(&key)
            {
                found.deleting = true;
            }
        }
        Happening::Source(true) => world.source(Completeness::Complete),
        Happening::Source(false) => world.source(Completeness::Partial { why: "cut".to_owned() }),
        Happening::Cluster(_) => {}
        Happening::Hours(hours) => world.now += SignedDuration::from_hours(*hours),
        Happening::Limit(count) => {
            let limit = Limit { count: *count, percent: None };
            let limits = &mut world.policy.limits;
            (limits.suspend_per_cycle, limits.suspend_per_day) = (limit, limit);
            (limits.disable_per_cycle, limits.disable_per_day) = (limit, limit);
            (limits.remove_access_per_cycle, limits.remove_access_per_day) = (limit, limit);
        }
        Happening::Blind(on) => {
            if world.inventory.clusters.contains_key(&prod()) {
                let kinds = ManagedKind::ALL.iter().map(|kind| WatchedKind::from(*kind));
                world.cluster().blind = kinds.filter(|kind| *on && !kind.is_essential()).collect();
            }
        }
        Happening::Role(given) => {
            let tool = world.class("tool");
            tool.roles.truncate(1);
            tool.roles.extend(given.then(|| "view".to_owned()));
        }
        Happening::Quota(pods) => {
            world.class("tool").quota.insert("pods".to_owned(), pods.to_string());
        }
    }
}

/// Removes the namespaces that somebody deleted, with all objects in them.
fn end_deletions(world: &mut World) {
    let objects = &mut world.cluster().objects;
    let going = objects.iter().filter(|(key, found)| key.kind == ManagedKind::Namespace && found.deleting);
    let going: BTreeSet<String> = going.map(|(key, _)| key.name.to_string()).collect();
    let is_in = |key: &ObjectKey| key.namespace.as_deref().is_some_and(|namespace| going.contains(namespace));
    let is_going = |key: &ObjectKey| key.kind == ManagedKind::Namespace && going.contains(key.name.as_str());
    objects.retain(|key, _| !is_going(key) && !is_in(key));
    world.bound.retain(|key, _| key.cluster != prod() || !is_in(key));
}

/// Whether a binding in the ledger gives the account access.
fn is_bound(world: &World, account: &AccountId) -> bool {
    let mut objects = world.ledger.objects.iter();
    objects.any(|(key, record)| record.account == *account && key.kind.stage() == Stage::Access)
}

/// Returns the configuration of a property test with few cases, because each has dozens of cycles. `PROPTEST_CASES`
/// overrides their number.
pub(super) fn cases(few: u32) -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(asked.unwrap_or(few)) }
}

/// Returns the desired state without manifests, because an incremental derivation keeps only some of them.
fn light(desired: &DesiredState) -> DesiredState {
    let mut light = desired.clone();
    for object in light.accounts.values_mut().flat_map(|it| &mut it.clusters).flat_map(|(_, it)| &mut it.objects) {
        object.1.manifest = None;
    }
    light
}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn a_plan_that_was_executed_leaves_nothing_to_plan(
        history in prop::collection::vec(prop::collection::vec(happening(), 1..5), 1..12),
    ) {
        let (mut world, ids) = site();
        let (mut deriver, mut planner) = (Deriver::default(), Planner::default());
        let mut generations: BTreeSet<u64> = BTreeSet::new();
        for happenings in &history {
            for what in happenings {
                happen(&mut world, &ids, what);
            }
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
            let scan = Scan::of(&desired, &world.ledger, &world.inventory, &world.policy, world.now);
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
            world.cycle();
            for account in world.ledger.accounts.values().filter(|it| it.state == Lifecycle::Suspended) {
                let lost = world.ledger.holds.contains_key(&account.id) || !is_bound(&world, &account.id);
                prop_assert!(lost, "{} is suspended and still has access", &account.name);
            }
            end_deletions(&mut world);
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
            for account in world.ledger.accounts.values().filter(|it| !world.ledger.holds.contains_key(&it.id)) {
                let served = account.state == Lifecycle::Active;
                prop_assert_eq!(is_bound(&world, &account.id), served, "{} is {:?}", &account.name, account.state);
            }
        }
    }

    #[test]
    fn a_refused_set_keeps_its_hash_in_the_next_cycle(later in 1_i64..5000, generation in 0_u64..5000, quota in 1_u8..9) {
        let (mut world, ids) = site();
        world.cycles(3);
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
        world.cycles(6);
        world.now += SignedDuration::from_mins(1);
    }
    let (approved, _) = world.guarded();
    let left: Vec<_> = approved.accounts().iter().filter(|plan| plan.changes_something()).collect();
    assert!(left.is_empty(), "{left:#?}");
}

#[test]
fn a_suspension_continues_after_the_daemon_was_killed() {
    let (mut world, ids) = site();
    world.cycles(3);
    happen(&mut world, &ids, &Happening::Disabled(4, true));
    let (approved, _) = world.guarded();
    let actions = approved.accounts()[0].steps().count();
    for done in 0..actions {
        let (mut world, ids) = site();
        world.cycles(3);
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
        world.class("tool").clusters = vec![prod()];
    };
    let sealed_again = |world: &mut World| {
        let foo = world.id(AccountKind::Tool, "foo");
        world.account(&foo).disabled = Some("mark".to_owned());
        world.cycles(2);
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
        world.cycles(2);
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
        world.cycles(3);
        happen(&mut world, &ids, &Happening::Disabled(4, true));
        world.cycles(3);
        assert!(!world.ledger.stopped.is_empty());
        happen(&mut world, &ids, &Happening::Disabled(4, false));
        world
    };
    let actions = suspended().guarded().0.accounts()[0].steps().count();
    for done in 0..actions {
        let mut world = suspended();
        let (approved, _) = world.guarded();
        world.execute_until(&approved, done);
        world.cycles(3);
        assert!(world.ledger.stopped.is_empty(), "after {done}");
        assert!(world.plan().is_empty(), "after {done}: {}", world.plan());
    }
}

#[test]
fn repairs_that_a_program_undoes_wait_longer_unless_the_object_is_essential() {
    let mut world = World::new();
    let secret =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "proxy", "namespace": "tool-{name}"}});
    world.class("tool").manifests.push(secret);
    let foo = world.add(AccountKind::Tool, "foo", Some(52_503));
    world.cycle();
    let of = |world: &World, kind: ManagedKind| {
        let found = world.ledger.objects.keys().find(|key| key.kind == kind);
        found.expect("the account has an object").clone()
    };
    let secret = of(&world, ManagedKind::Secret);
    let edit = |world: &mut World, key: &ObjectKey| {
        let found = world.cluster().objects.get_mut(key).expect("the world has the object");
        found.digest = "edited".into();
        found.rare = Rare { rival: Some("argocd".to_owned()), ..Rare::default() }.if_any();
    };
    let delete = |world: &mut World, key: &ObjectKey| drop(world.cluster().objects.remove(key));
    let applies = |plan: &[AccountPlan], key: &ObjectKey| {
        let is_repair = |action: &Action| matches!(action, Action::Apply { key: applied, .. } if applied == key);
        plan.iter().flat_map(AccountPlan::steps).any(is_repair)
    };
    let repairs = |world: &mut World, key: &ObjectKey, undo: &dyn Fn(&mut World, &ObjectKey)| {
        let minutes = (0..60).filter(|_| {
            undo(world, key);
            let (approved, _) = world.guarded();
            let repaired = applies(approved.accounts(), key);
            world.execute(&approved);
            world.now += SignedDuration::from_mins(1);
            repaired
        });
        minutes.count()
    };
    assert_eq!(repairs(&mut world, &secret, &edit), 9, "three repairs at once, then after 1, 2, 4, 8 and 16 minutes");
    edit(&mut world, &secret);
    let plan = world.plan();
    let notice = plan.notices.iter().find(|notice| notice.text.contains("argocd")).expect("the plan has this notice");
    assert!(notice.text.contains("Secret") && notice.text.contains("drift = { manifests"), "{}", notice.text);
    assert_eq!(notice.account.name, world.ledger.accounts[&foo].name);
    world.now += SignedDuration::from_hours(2);
    assert_eq!(repairs(&mut world, &secret, &delete), 9, "a program that deletes the object is not answered faster");
    let told =
        |plan: &Plan| plan.notices.iter().any(|notice| notice.text.contains("was deleted again after each of 9"));
    assert!(told(&world.plan()));
    let now = world.now;
    let until = world.cluster().next_repair(now, now).expect("a repair waits");
    assert!(!applies(&world.plan().accounts, &secret));
    let mut later = world.clone();
    later.now = until;
    assert!(applies(&later.plan().accounts, &secret), "a cycle at that time repairs the object");
    world.class("tool").manifests[0]["type"] = json!("example.org/proxy");
    assert!(applies(&world.plan().accounts, &secret), "a change by an administrator does not wait");

    for kind in [ManagedKind::NetworkPolicy, ManagedKind::LimitRange, ManagedKind::RoleBinding] {
        let key = of(&world, kind);
        assert_eq!(repairs(&mut world, &key, &edit), 60, "{key} is repaired every minute");
        assert_eq!(repairs(&mut world, &key, &delete), 60, "{key} is created every minute");
    }
}

#[test]
fn a_namespace_that_somebody_deletes_again_and_again_comes_back_with_all_its_objects() {
    let (mut world, _) = World::with_foo();
    world.cycle();
    let all = world.cluster().objects.len();
    for _ in 0..6 {
        world.cluster().objects.retain(|key, _| key.kind != ManagedKind::Namespace && key.namespace.is_none());
        let (approved, _) = world.guarded();
        world.execute(&approved);
        assert_eq!(world.cluster().objects.len(), all);
        assert!(world.plan().is_empty(), "{}", world.plan());
    }
}

#[test]
fn applied_objects_share_the_ledgers_keys_and_keep_no_manifest() {
    let (mut world, _) = World::with_foo();
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
