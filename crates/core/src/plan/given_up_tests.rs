//! Tests a class that gives up a cluster while the suspension there is refused or held. Revoked credentials, and people
//! who have to leave, still lose their access there.

use std::collections::BTreeSet;

use crate::identity::{AccountId, AccountKind, ClusterName};
use crate::inventory::ObservedObject;
use crate::json_text::JsonText;
use crate::kinds::{ManagedKind, ObjectKey, Stage};
use crate::ledger::{Lifecycle, OrderKind};
use crate::plan::AccountPlan;
use crate::plan::testing::{World, prod};
use crate::policy::{CredentialKind, Limit};

const NONE: Limit = Limit { count: 0, percent: None };

fn gpu() -> ClusterName {
    ClusterName("gpu".into())
}

/// Sets the limit of suspensions to 0.
fn refuse(world: &mut World) {
    world.policy.limits.suspend_per_cycle = NONE;
}

/// Removes cluster gpu from the class.
fn give_up(world: &mut World, name: &str) {
    world.class(name).clusters = vec![prod()];
}

/// Returns the names in the account's bindings in a cluster, as last written.
fn named(world: &World, id: &AccountId, cluster: &ClusterName) -> BTreeSet<String> {
    let records = world.ledger.objects.iter();
    let bindings =
        records.filter(|(key, it)| key.cluster == *cluster && key.kind.stage() == Stage::Access && it.account == *id);
    let subjects = bindings.filter_map(|(_, it)| it.detail.as_ref().map(JsonText::value));
    let names = subjects.flat_map(|it| it.as_array().cloned().unwrap_or_default());
    names.filter_map(|subject| subject["name"].as_str().map(str::to_owned)).collect()
}

fn group(world: &World, id: &AccountId) -> String {
    let account = &world.ledger.accounts[id];
    format!("bursar:{}#{}", account.account_name(), account.generation)
}

/// Returns a tool in two clusters.
fn tool() -> (World, AccountId) {
    tool_in(World::new())
}

fn tool_in(mut world: World) -> (World, AccountId) {
    world.another_cluster("gpu");
    let ann = world.add(AccountKind::User, "ann", Some(20_001));
    let foo = world.add(AccountKind::Tool, "foo", Some(52_503));
    world.join(&foo, &ann);
    world.cycles(3);
    assert!(world.plan().is_empty(), "{}", world.plan());
    (world, foo)
}

/// Returns a workspace with alice and bob in two clusters.
fn workspace() -> (World, [AccountId; 3]) {
    let (mut world, alice, algebra) = World::in_course();
    let bob = world.add(AccountKind::User, "bob", Some(20_002));
    "uid=bob,ou=students,dc=example,dc=org".clone_into(&mut world.account(&bob).dn);
    world.join(&algebra, &bob);
    world.another_cluster("gpu");
    for name in ["student", "course"] {
        world.class(name).clusters.push(gpu());
    }
    (0..2).for_each(|_| world.cycles(3));
    assert!(world.plan().is_empty(), "{}", world.plan());
    (world, [alice, bob, algebra])
}

fn is_done(world: &World) {
    let (approved, _) = world.guarded();
    let left: Vec<_> = approved.accounts().iter().filter(|plan| plan.changes_something()).collect();
    assert!(left.is_empty(), "{left:#?}");
}

#[test]
fn a_revocation_also_ends_the_old_generation_in_a_given_up_cluster() {
    for (is_held, is_gone) in [(false, false), (true, false), (false, true), (true, true)] {
        let (mut world, foo) = tool();
        let old = group(&world, &foo);
        if is_held {
            world.hold(&foo);
        } else {
            refuse(&mut world);
        }
        if is_gone {
            drop(world.policy.classes.remove("tool"));
        } else {
            give_up(&mut world, "tool");
        }
        world.cycles(3);
        assert_eq!(
            named(&world, &foo, &gpu()),
            BTreeSet::from([old.clone()]),
            "{is_held} {is_gone}: the suspension waits"
        );
        world.order(&foo, OrderKind::Revoke);
        world.cycles(3);
        let now = group(&world, &foo);
        assert_ne!(now, old);
        for cluster in [prod(), gpu()] {
            assert_eq!(named(&world, &foo, &cluster), BTreeSet::from([now.clone()]), "{is_held} {is_gone} {cluster}");
        }
        assert!(is_gone || !world.ledger.is_being_revoked(&foo), "the revocation is complete");
        is_done(&world);
    }
}

#[test]
fn an_ordered_suspension_covers_a_given_up_cluster_despite_an_incomplete_read() {
    let (mut world, foo) = tool();
    give_up(&mut world, "tool");
    refuse(&mut world);
    let leaving = world.account(&foo).members.keys().next().cloned();
    world.account(&foo).leaving.extend(leaving);
    world.source(crate::snapshot::Completeness::Partial { why: "size limit".to_owned() });
    world.order(&foo, OrderKind::Suspend);
    world.cycles(3);
    assert_eq!(world.ledger.accounts[&foo].state, Lifecycle::Suspended);
    assert!(named(&world, &foo, &gpu()).is_empty() && named(&world, &foo, &prod()).is_empty());
}

#[test]
fn a_leaving_member_revokes_the_certificate_of_a_tool_without_a_class() {
    let (mut world, foo) = tool();
    let old = group(&world, &foo);
    refuse(&mut world);
    world.policy.classes.remove("tool");
    let leaving = world.account(&foo).members.keys().next().cloned();
    world.account(&foo).leaving.extend(leaving);
    world.cycles(3);
    assert!(!named(&world, &foo, &gpu()).contains(&old), "{:?}", named(&world, &foo, &gpu()));
    assert!(!named(&world, &foo, &prod()).contains(&old), "{:?}", named(&world, &foo, &prod()));
}

#[test]
fn a_revocation_deletes_an_unlabelled_binding_in_a_given_up_cluster() {
    let (mut world, foo) = tool();
    let old = group(&world, &foo);
    refuse(&mut world);
    give_up(&mut world, "tool");
    let is_binding = |key: &ObjectKey| key.kind.stage() == Stage::Access;
    world.in_cluster(&gpu()).objects.retain(|key, _| !is_binding(key));
    world.cycles(3);
    assert_eq!(named(&world, &foo, &gpu()), BTreeSet::from([old]), "the removal of the binding waits");
    world.order(&foo, OrderKind::Revoke);
    world.cycles(3);
    assert!(named(&world, &foo, &gpu()).is_empty(), "{:?}", named(&world, &foo, &gpu()));
}

#[test]
fn no_binding_in_a_given_up_cluster_names_the_next_service_account() {
    let mut world = World::new();
    let hosts = vec![crate::identity::HostName("ce1".to_owned())];
    let lifetime = std::time::Duration::from_hours(1);
    let kind = CredentialKind::ServiceAccount { lifetime, hosts, directory: Some("/srv/{host}/{name}".into()) };
    *world.credential("tool") = kind;
    let (mut world, foo) = tool_in(world);
    refuse(&mut world);
    give_up(&mut world, "tool");
    world.cycles(3);
    assert_eq!(named(&world, &foo, &gpu()).len(), 1, "the removal of the binding waits");
    world.order(&foo, OrderKind::Revoke);
    world.cycles(3);
    assert!(named(&world, &foo, &gpu()).is_empty(), "{:?}", named(&world, &foo, &gpu()));
    assert_eq!(named(&world, &foo, &prod()).len(), 1);
    is_done(&world);
}

#[test]
fn a_suspended_person_leaves_a_workspace_in_a_given_up_cluster() {
    for is_held in [false, true] {
        let (mut world, [alice, bob, algebra]) = workspace();
        if is_held {
            world.hold(&algebra);
        } else {
            refuse(&mut world);
        }
        give_up(&mut world, "course");
        world.account(&alice).disabled = Some("mark".to_owned());
        world.cycles(3);
        assert_eq!(world.ledger.accounts[&alice].state, Lifecycle::Suspended);
        for cluster in [prod(), gpu()] {
            let staying = BTreeSet::from([group(&world, &bob)]);
            assert_eq!(named(&world, &algebra, &cluster), staying, "held: {is_held}, {cluster}");
        }
        is_done(&world);
    }
}

#[test]
fn a_person_whose_suspension_is_refused_stays_in_a_workspace_in_a_given_up_cluster() {
    for is_held in [false, true] {
        let (mut world, [alice, bob, algebra]) = workspace();
        if is_held {
            world.hold(&algebra);
        } else {
            refuse(&mut world);
        }
        give_up(&mut world, "course");
        world.policy.limits.disable_per_cycle = NONE;
        world.account(&alice).disabled = Some("mark".to_owned());
        world.cycles(3);
        let all = BTreeSet::from([group(&world, &alice), group(&world, &bob)]);
        for cluster in [prod(), gpu()] {
            assert_eq!(named(&world, &algebra, &cluster), all, "held: {is_held}, {cluster}");
        }
    }
}

#[test]
fn a_person_leaves_workspaces_of_a_given_up_cluster_when_the_suspension_is_allowed() {
    let (mut world, [alice, bob, algebra]) = workspace();
    refuse(&mut world);
    give_up(&mut world, "student");
    world.cycles(3);
    let all = BTreeSet::from([group(&world, &alice), group(&world, &bob)]);
    assert_eq!(named(&world, &algebra, &gpu()), all);
    let limits = &mut world.policy.limits;
    limits.suspend_per_cycle = Limit { count: 9, percent: None };
    limits.suspend_per_day = limits.suspend_per_cycle;
    world.cycles(3);
    assert!(named(&world, &algebra, &gpu()).is_empty() && named(&world, &alice, &gpu()).is_empty());
    // The person's access in cluster gpu does not return if a suspension is refused elsewhere.
    world.policy.limits.disable_per_cycle = NONE;
    world.account(&alice).disabled = Some("mark".to_owned());
    world.cycles(3);
    assert!(named(&world, &algebra, &gpu()).is_empty() && named(&world, &alice, &gpu()).is_empty());
    assert_eq!(named(&world, &algebra, &prod()), all);
}

#[test]
fn a_held_person_stays_in_workspaces_of_a_given_up_cluster() {
    for is_refused in [false, true] {
        let (mut world, [alice, bob, algebra]) = workspace();
        if is_refused {
            refuse(&mut world);
        }
        world.hold(&alice);
        give_up(&mut world, "student");
        world.cycles(3);
        let named = named(&world, &algebra, &gpu());
        assert!(named.contains(&group(&world, &alice)), "refused: {is_refused}, {named:?}");
        assert_eq!(named.contains(&group(&world, &bob)), is_refused);
    }
}

#[test]
fn a_revocation_updates_a_role_in_the_whole_given_up_cluster() {
    let mut world = World::new();
    world.another_cluster("gpu");
    world.class("admin").clusters.push(gpu());
    let alice = world.add(AccountKind::User, "alice", Some(20_001));
    let admins = world.add(AccountKind::Group, "k8s-admins", None);
    world.join(&admins, &alice);
    world.cycles(3);
    let old = group(&world, &alice);
    refuse(&mut world);
    give_up(&mut world, "admin");
    world.cycles(3);
    assert_eq!(named(&world, &alice, &gpu()), BTreeSet::from([old.clone()]), "the removal of the binding waits");
    world.order(&alice, OrderKind::Revoke);
    world.cycles(3);
    assert_eq!(named(&world, &alice, &gpu()), BTreeSet::from([group(&world, &alice)]));
    assert_ne!(group(&world, &alice), old);
    is_done(&world);
}

#[test]
fn a_revocation_removes_unknown_bindings_from_a_given_up_cluster() {
    for is_held in [false, true] {
        let (mut world, foo) = tool();
        if is_held {
            world.hold(&foo);
        } else {
            refuse(&mut world);
        }
        give_up(&mut world, "tool");
        world.cycles(3);
        let key = ObjectKey::new(&gpu(), ManagedKind::RoleBinding, Some("tool-foo"), "bursar-stray");
        let found = ObservedObject { uid: "stray".into(), ..ObservedObject::default() };
        world.in_cluster(&gpu()).objects.insert(key.clone(), found);
        world.cycles(3);
        let is_there = |world: &World| world.inventory.clusters[&gpu()].objects.contains_key(&key);
        assert!(is_there(&world), "held: {is_held}");
        world.order(&foo, OrderKind::Revoke);
        world.cycles(3);
        assert!(!is_there(&world), "held: {is_held}");
        is_done(&world);
    }
}

#[test]
fn a_revocation_continues_after_the_daemon_was_killed() {
    for killed_after in 0..8 {
        let (mut world, foo) = tool();
        let old = group(&world, &foo);
        refuse(&mut world);
        give_up(&mut world, "tool");
        world.cycles(3);
        world.order(&foo, OrderKind::Revoke);
        let (approved, _) = world.guarded();
        let steps = approved.accounts().iter().map(|plan: &AccountPlan| plan.steps().count()).sum::<usize>();
        world.execute_until(&approved, killed_after.min(steps));
        world.cycles(3);
        assert!(!named(&world, &foo, &gpu()).contains(&old), "after {killed_after}");
        assert!(!world.ledger.is_being_revoked(&foo), "after {killed_after}");
        is_done(&world);
    }
}
