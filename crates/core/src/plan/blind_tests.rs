//! Tests clusters that do not show objects of some kinds: steps that depend on such a kind wait, and all other steps go
//! on.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Action;
use super::testing::World;
use crate::identity::{AccountKind, HostName};
use crate::kinds::{ManagedKind, ObjectKey, Stage, WatchedKind};
use crate::ledger::OrderKind;
use crate::policy::CredentialKind;

fn blind(world: &mut World, kinds: &[ManagedKind]) {
    world.cluster().blind = kinds.iter().map(|kind| WatchedKind::from(*kind)).collect();
}

fn written(world: &World) -> BTreeSet<String> {
    let plan = world.plan();
    let steps = plan.accounts.iter().flat_map(super::AccountPlan::steps);
    let keys = steps.filter_map(|step| match step {
        Action::Apply { key, .. } | Action::Delete { key, .. } => Some(key.kind.to_string()),
        _ => None,
    });
    keys.collect()
}

fn named(world: &World) -> BTreeSet<String> {
    world.bound.values().flatten().cloned().collect()
}

fn tokens(world: &mut World) {
    let directory = Some("/srv/{host}/{name}".into());
    let hosts = vec![HostName("ce1".to_owned())];
    *world.credential("tool") = CredentialKind::ServiceAccount { lifetime: Duration::from_hours(1), hosts, directory };
}

const TOKENS: [ManagedKind; 2] = [ManagedKind::ServiceAccount, ManagedKind::Secret];

#[test]
fn a_kind_that_is_not_shown_delays_only_its_own_objects() {
    let mut world = World::new();
    let ann = world.add(AccountKind::User, "ann", Some(20_001));
    "uid=ann,ou=students,dc=example,dc=org".clone_into(&mut world.account(&ann).dn);
    world.cycles(2);
    let claim = |key: &&ObjectKey| key.kind == ManagedKind::PersistentVolumeClaim;
    let claims = |world: &World| world.ledger.objects.keys().filter(claim).count();
    assert_eq!(claims(&world), 1);
    blind(&mut world, &[ManagedKind::PersistentVolumeClaim]);
    // The inventory of such a kind may be wrong, so a missing claim must not matter.
    let key = world.ledger.objects.keys().find(claim).expect("the account has a claim").clone();
    world.cluster().objects.remove(&key);
    assert!(world.plan().is_empty() && world.plan().notices.is_empty(), "{}", world.plan());

    let class = world.class("student");
    class.quota.insert("pods".to_owned(), "3".to_owned());
    class.volumes.clear();
    let plan = world.plan();
    assert!(plan.notices.iter().any(|it| it.text.contains("PersistentVolumeClaim") && it.text.contains(" waits: ")));
    let kinds = written(&world);
    assert!(kinds.contains("ResourceQuota") && !kinds.contains("PersistentVolumeClaim"), "{kinds:?}");
    world.cycles(3);
    assert_eq!(claims(&world), 1, "the claim is kept in the ledger while its kind is not shown");
    world.account(&ann).disabled = Some("mark".to_owned());
    world.cycle();
    assert!(world.bound.is_empty() && !world.ledger.objects.keys().any(|key| key.kind.stage() == Stage::Access));

    blind(&mut world, &[]);
    world.cycles(2);
    assert_eq!(claims(&world), 0);
    assert!(world.plan().is_empty() && world.plan().notices.is_empty(), "{}", world.plan());
}

#[test]
fn no_binding_names_a_service_account_while_its_kind_is_not_shown() {
    let mut world = World::new();
    tokens(&mut world);
    blind(&mut world, &TOKENS);
    let foo = world.add(AccountKind::Tool, "foo", Some(52_503));
    world.cycles(3);
    assert_eq!(named(&world), BTreeSet::new());
    assert!(world.ledger.deliveries.is_empty() && world.ledger.settled.is_empty());
    assert!(world.plan().is_empty() && !world.plan().notices.is_empty(), "{}", world.plan());

    blind(&mut world, &[]);
    world.cycles(2);
    let name = |world: &World| format!("bursar-g{}", world.ledger.accounts[&foo].generation);
    assert_eq!(named(&world), BTreeSet::from([name(&world)]));
    assert!(world.ledger.deliveries.len() == 1 && world.plan().is_empty(), "{}", world.plan());
}

#[test]
fn tokens_are_renewed_revoked_and_suspended_while_their_kinds_are_not_shown() {
    let mut world = World::new();
    tokens(&mut world);
    let foo = world.add(AccountKind::Tool, "foo", Some(52_503));
    world.cycles(2);
    let renewed = |world: &World| world.ledger.certificates.values().map(|it| it.not_after).max();
    let before = renewed(&world);
    blind(&mut world, &TOKENS);
    world.now += jiff::SignedDuration::from_hours(120);
    world.cycle();
    assert!(renewed(&world) > before, "{}", world.plan());

    world.order(&foo, OrderKind::Revoke);
    let plan = world.plan();
    let proves = |step: &Action| matches!(step, Action::ProveRevoked { .. });
    assert!(plan.accounts.iter().flat_map(super::AccountPlan::steps).any(proves), "{plan}");
    world.cycle();
    assert_eq!(named(&world), BTreeSet::new());
    let made =
        |world: &World| world.ledger.objects.keys().filter(|key| key.kind == ManagedKind::ServiceAccount).count();
    assert_eq!(made(&world), 0, "the tokens end with their service account");
    assert!(world.plan().is_empty(), "{:#?}", world.plan().accounts);

    blind(&mut world, &[]);
    world.cycles(2);
    assert_eq!((named(&world).len(), made(&world)), (1, 1));
    blind(&mut world, &TOKENS);
    world.order(&foo, OrderKind::Suspend);
    world.cycle();
    assert_eq!((world.bound.len(), made(&world)), (0, 0));
}
