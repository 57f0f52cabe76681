//! Tests in the model when credentials are delivered, proved, inspected and removed, and in which order.

use std::time::Duration;

use bursar_protocol::Grant;

use super::*;
use crate::identity::AccountKind;
use crate::kinds::{ManagedKind, ObjectKey};
use crate::ledger::{Failure, Lifecycle, OrderKind};
use crate::plan::testing::World;
use crate::plan::{AccountPlan, Holder};
use crate::policy::{CredentialKind, OidcRule};

fn world(kind: CredentialKind) -> (World, AccountId) {
    let mut world = World::new();
    *world.credential("tool") = kind;
    let foo = world.add(AccountKind::Tool, "foo", Some(52_503));
    world.cycle();
    assert!(world.plan().is_empty(), "{}", world.plan());
    (world, foo)
}

fn tokens() -> (World, AccountId) {
    let hosts = ["ce1", "ce2"].map(|host| HostName(host.to_owned())).to_vec();
    let directory = Some("/srv/{host}/{name}".into());
    world(CredentialKind::ServiceAccount { lifetime: Duration::from_hours(1), hosts, directory })
}

#[test]
fn a_service_account_that_somebody_deletes_is_created_again_at_once_each_time() {
    let (mut world, _) = tokens();
    let is_account = |key: &&ObjectKey| key.kind == ManagedKind::ServiceAccount;
    let key = world.ledger.objects.keys().find(is_account).expect("the tool has a service account").clone();
    for _ in 0..6 {
        world.cluster().objects.remove(&key);
        world.cycle();
        assert!(world.cluster().objects.contains_key(&key), "a tenant could create an account of this name");
    }
}

fn said(world: &World) -> String {
    world.plan().to_string().lines().next().unwrap_or_default().to_owned()
}

#[test]
fn each_host_has_its_token_and_only_the_token_of_a_deleted_secret_is_replaced() {
    let (mut world, foo) = tokens();
    let places: Vec<_> = world.ledger.deliveries.values().map(|delivery| delivery.path.clone()).collect();
    assert_eq!(places, ["/srv/ce1/foo/.kube/config", "/srv/ce2/foo/.kube/config"].map(std::path::PathBuf::from));
    let subjects: Vec<_> = world.ledger.certificates.values().map(|it| it.subject.clone()).collect();
    let generation = world.ledger.accounts[&foo].generation;
    assert_eq!(subjects, vec![format!("system:serviceaccount:tool-foo:bursar-g{generation}"); 2]);
    world.cluster().objects.retain(|key, _| key.name != "bursar-host-ce2");
    assert_eq!(
        said(&world),
        "~ tool foo  52503  secret bursar-host-ce2 edited by somebody else  secret, token for ce2, kubeconfig"
    );
    world.cycle();
    assert!(world.plan().is_empty());
}

#[test]
fn a_revocation_makes_another_service_account_and_a_suspension_leaves_none() {
    let (mut world, foo) = tokens();
    let before = world.ledger.accounts[&foo].generation;
    world.order(&foo, OrderKind::Revoke);
    let plan = world.plan();
    let actions: Vec<Action> = plan.accounts[0].steps().cloned().collect();
    let place = |is: &dyn Fn(&Action) -> bool| actions.iter().position(is).expect("the plan has this action");
    let proved = place(
        &|it| matches!(it, Action::ProveRevoked { alone: Holder::User(user), .. } if user.ends_with(&before.to_string())),
    );
    let gone = place(&|it| matches!(it, Action::Delete { key, .. } if key.kind == ManagedKind::ServiceAccount));
    let bound = place(&|it| matches!(it, Action::Apply { key, .. } if key.kind == ManagedKind::RoleBinding));
    let delivered = place(&|it| matches!(it, Action::Deliver { .. }));
    assert!(bound < gone && gone < proved && proved < delivered, "{plan}");
    world.cycle();
    let accounts = |world: &World| {
        let objects = world.ledger.objects.keys().filter(|key| key.kind == ManagedKind::ServiceAccount);
        objects.map(|key| key.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(accounts(&world), [format!("bursar-g{}", world.ledger.accounts[&foo].generation)]);
    assert!(world.plan().is_empty(), "{}", world.plan());
    world.order(&foo, OrderKind::Suspend);
    world.cycle();
    assert!(accounts(&world).is_empty() && world.ledger.deliveries.values().all(Delivery::is_notice));
}

#[test]
fn a_revocation_proves_every_older_generation() {
    let (mut world, foo) = tokens();
    let key = world.ledger.certificates.keys().next().expect("foo has tokens").clone();
    let older = Certificate {
        generation: 7,
        subject: "system:serviceaccount:tool-foo:bursar-g7".to_owned(),
        ..world.ledger.certificates[&key].clone()
    };
    world.ledger.apply(&Change::Certificate(key, Some(older)));
    let generation = world.ledger.accounts[&foo].generation;
    world.order(&foo, OrderKind::Revoke);
    let plan = world.plan();
    let proved: Vec<&Holder> = plan.accounts[0]
        .steps()
        .filter_map(|step| if let Action::ProveRevoked { alone, .. } = step { Some(alone) } else { None })
        .collect();
    let holder = |generation| Holder::User(format!("system:serviceaccount:tool-foo:bursar-g{generation}"));
    assert_eq!(proved, [&holder(7), &holder(generation)]);
}

#[test]
fn a_binding_names_a_service_account_only_after_its_creation() {
    for killed_after in 0..8 {
        let (mut world, foo) = tokens();
        world.policy.limits.remove_access_per_cycle = crate::policy::Limit { count: 0, percent: None };
        let before = world.ledger.accounts[&foo].generation;
        world.order(&foo, OrderKind::Revoke);
        let (approved, refusals) = world.guarded();
        assert!(refusals.is_empty(), "a revocation does not count as a removal of access: {refusals:?}");
        world.execute_until(&approved, killed_after);
        let named = |world: &World| world.bound.values().flatten().cloned().collect::<std::collections::BTreeSet<_>>();
        let is_there = |world: &World, name: &str| {
            let objects = &world.inventory.clusters[&crate::plan::testing::prod()].objects;
            objects.keys().any(|key| key.kind == ManagedKind::ServiceAccount && key.name == *name)
        };
        let old = format!("bursar-g{before}");
        for name in named(&world).iter().filter(|name| **name != old) {
            assert!(is_there(&world, name), "{name} after {killed_after} steps");
        }
        assert_eq!(named(&world).contains(&old), killed_after == 0);
        world.cycle();
        let new = format!("bursar-g{}", world.ledger.accounts[&foo].generation);
        assert_eq!(named(&world), std::collections::BTreeSet::from([new]), "after {killed_after} steps");
        assert!(world.plan().is_empty(), "{}", world.plan());
    }
}

#[test]
fn a_held_account_gets_its_binding_with_the_new_service_account() {
    let (mut world, foo) = tokens();
    world.hold(&foo);
    world.order(&foo, OrderKind::Revoke);
    world.cycles(2);
    let new = format!("bursar-g{}", world.ledger.accounts[&foo].generation);
    assert_eq!(world.bound.values().flatten().collect::<Vec<_>>(), [&new]);
}

/// The service account is created between the two writes of its binding. A failure or the death of the daemon may
/// separate the two writes.
#[test]
fn a_held_account_gets_its_binding_after_an_interrupted_replacement() {
    for stopped_after in 0..8 {
        let (mut world, foo) = tokens();
        world.hold(&foo);
        world.order(&foo, OrderKind::Revoke);
        let (approved, _) = world.guarded();
        world.execute_until(&approved, stopped_after);
        world.cycles(2);
        let new = format!("bursar-g{}", world.ledger.accounts[&foo].generation);
        assert_eq!(world.bound.values().flatten().collect::<Vec<_>>(), [&new], "after {stopped_after} steps");
        let (rest, _) = world.guarded();
        assert!(rest.accounts().iter().all(|plan| !plan.changes_something()), "after {stopped_after} steps");
    }
}

fn bound(world: &World) -> Vec<String> {
    world.bound.values().flatten().cloned().collect()
}

#[test]
fn a_change_of_the_class_ends_no_tokens_of_a_held_account() {
    for kind_changes in [true, false] {
        let (mut world, foo) = tokens();
        world.hold(&foo);
        match world.credential("tool") {
            CredentialKind::ServiceAccount { hosts, .. } if !kind_changes => drop(hosts.pop()),
            kind => *kind = CredentialKind::Certificate { lifetime: Duration::from_hours(24) },
        }
        let objects = |world: &World| {
            let objects = &world.inventory.clusters[&crate::plan::testing::prod()].objects;
            objects.keys().cloned().collect::<Vec<_>>()
        };
        let before = (objects(&world), world.bound.clone());
        world.cycles(2);
        assert_eq!((objects(&world), world.bound.clone()), before, "another kind: {kind_changes}");
    }
}

/// Under a hold or a limit, the account keeps its credential, but a revocation replaces it by a credential of the kind
/// that its class gives.
#[test]
fn a_binding_names_the_credential_that_replaced_a_revoked_one_of_another_kind() {
    let hosts = vec![HostName("ce1".to_owned())];
    let token = CredentialKind::ServiceAccount {
        lifetime: Duration::from_hours(1),
        hosts,
        directory: Some("/srv/{host}/{name}".into()),
    };
    let certificate = CredentialKind::Certificate { lifetime: Duration::from_hours(24) };
    let kinds = [(&token, &certificate), (&certificate, &token)];
    for ((from, to), is_held) in kinds.into_iter().flat_map(|kinds| [true, false].map(|is_held| (kinds, is_held))) {
        let (mut world, foo) = self::world(from.clone());
        world.policy.limits.remove_access_per_cycle = crate::policy::Limit { count: 0, percent: None };
        if is_held {
            world.hold(&foo);
        }
        *world.credential("tool") = to.clone();
        world.order(&foo, OrderKind::Revoke);
        world.cycles(3);
        let generation = world.ledger.accounts[&foo].generation;
        let (group, account) = (format!("bursar:tool:foo#{generation}"), format!("bursar-g{generation}"));
        let held = world.ledger.certificates_of(&foo).find(|(_, held)| held.generation == generation);
        let held = held.map(|(_, held)| held.subject.contains("serviceaccount"));
        let named = if *to == token { account } else { group };
        let case = format!("held: {is_held}, to {to:?}");
        assert_eq!((held, bound(&world)), (Some(*to == token), vec![named]), "{case}");
    }
}

#[test]
fn a_notice_replaces_the_kubeconfig_while_the_account_is_suspended() {
    let (mut world, foo) = world(CredentialKind::Certificate { lifetime: Duration::from_hours(24 * 7) });
    world.policy.contact = Some("help@example.org".to_owned());
    world.order(&foo, OrderKind::Suspend);
    let plan = world.plan();
    let notices = plan.accounts[0].steps().filter_map(|action| match action {
        Action::RemoveKubeconfig { notice: Some(notice), .. } => Some(notice.notice.text()),
        _ => None,
    });
    let notices: Vec<String> = notices.collect();
    assert_eq!(notices, ["tool foo is suspended since 2026-05-03T12:00:00Z; ask help@example.org"]);
    world.cycle();
    let key = CredentialKey::new(foo.clone(), crate::plan::testing::prod());
    assert!(world.ledger.deliveries[&key].is_notice() && world.plan().is_empty(), "{}", world.plan());
    // kubectl may have read the file before, and write the credential back.
    for look in LOOKS {
        world.now = world.ledger.deliveries[&key].at + jiff::SignedDuration::from_secs(look);
        let steps: Vec<Action> = world.plan().accounts.iter().flat_map(AccountPlan::steps).cloned().collect();
        let is_look = |step: &Action| {
            matches!(step, Action::InspectKubeconfig { expected: Expected::Notice(notice), .. }
                if notice.notice.text() == notices[0])
        };
        assert!(steps.len() == 1 && is_look(&steps[0]), "{steps:?}");
        world.cycle();
        assert!(world.plan().accounts.is_empty(), "{}", world.plan());
    }
    assert_eq!(next_look(&world.ledger.deliveries[&key]), None);
    // The notice is replaced if the contact changes.
    world.policy.contact = None;
    assert!(said(&world).contains("kubeconfig replaced by a notice"), "{}", world.plan());
    world.cycle();
    world.order(&foo, OrderKind::Resume);
    assert!(!world.ledger.is_being_revoked(&foo));
    assert!(said(&world).ends_with("certificate, kubeconfig"), "{}", world.plan());
    world.cycle();
    assert!(!world.ledger.deliveries[&key].is_notice() && world.plan().is_empty(), "{}", world.plan());
}

fn steps(world: &World) -> Vec<Action> {
    world.plan().accounts.iter().flat_map(AccountPlan::steps).cloned().collect()
}

fn is_look_after_removal(step: &Action, file: &Path) -> bool {
    matches!(step, Action::InspectKubeconfig { home, expected: Expected::Nothing, .. } if home.file() == file)
}

#[test]
fn a_suspension_removes_the_entries_of_a_delivery_that_was_not_recorded() {
    let (mut world, foo) = world(CredentialKind::Certificate { lifetime: Duration::from_hours(24 * 7) });
    let key = CredentialKey::new(foo.clone(), crate::plan::testing::prod());
    let old = world.ledger.deliveries[&key].clone();
    world.account(&foo).home = Some("/data/other/foo".into());
    world.order(&foo, OrderKind::Suspend);
    let places = |world: &World| -> Vec<(PathBuf, Option<PathBuf>)> {
        let plan = world.plan();
        let removed = plan.accounts[0].steps().filter_map(|action| match action {
            Action::RemoveKubeconfig { home, unrecorded, .. } => {
                Some((home.file(), unrecorded.as_ref().map(|home| home.file())))
            }
            _ => None,
        });
        removed.collect()
    };
    assert_eq!(places(&world), [(old.path.clone(), None)]);
    world.ledger.requested.set(key.clone(), Some("public key".to_owned()));
    assert_eq!(places(&world), [(old.path.clone(), Some("/data/other/foo/.kube/config".into()))]);
    // The first delivery was under way.
    let pending = old.clone().pending();
    world.ledger.deliveries.set(key.clone(), Some(pending));
    assert_eq!(places(&world).len(), 1);
    world.cycle();
    assert!(world.ledger.deliveries[&key].is_removed() && world.plan().is_empty(), "{}", world.plan());
    // kubectl may have read the file before, and write the credential back. The inspections need no cluster.
    world.inventory.clusters.remove(&crate::plan::testing::prod()).expect("the world has this cluster");
    for look in LOOKS {
        world.now = world.ledger.deliveries[&key].at + jiff::SignedDuration::from_secs(look);
        let steps = steps(&world);
        assert!(steps.len() == 1 && is_look_after_removal(&steps[0], &old.path), "{steps:?}");
        world.cycle();
        assert!(world.plan().accounts.is_empty(), "{}", world.plan());
    }
    assert!(world.ledger.deliveries.get(&key).is_none());
}

#[test]
fn removals_and_inspections_go_on_after_the_account_is_deleted() {
    let certificate = || CredentialKind::Certificate { lifetime: Duration::from_hours(24 * 7) };
    for is_removed in [true, false] {
        let (mut world, foo) = world(certificate());
        let key = CredentialKey::new(foo.clone(), crate::plan::testing::prod());
        let delivered = world.ledger.deliveries[&key].clone();
        world.order(&foo, OrderKind::Suspend);
        world.cycle();
        // If the entries are not removed yet, the home was broken until now.
        let row = if is_removed { delivered.clone().removed(world.now) } else { delivered.clone() };
        world.ledger.deliveries.set(key.clone(), Some(row));
        world.ledger.tenants.remove(&(foo.clone(), crate::plan::testing::prod()));
        world.account(&foo).state = Lifecycle::Deleted;
        if !is_removed {
            let found = steps(&world);
            assert!(matches!(&found[..], [Action::RemoveKubeconfig { .. }]), "{found:?}");
            world.cycle();
        }
        for look in LOOKS {
            assert_eq!(steps(&world), []);
            world.now = world.ledger.deliveries[&key].at + jiff::SignedDuration::from_secs(look);
            let found = steps(&world);
            assert!(found.len() == 1 && is_look_after_removal(&found[0], &delivered.path), "{found:?}");
            world.cycle();
        }
        assert!(world.ledger.deliveries.get(&key).is_none());
        assert_eq!((world.account(&foo).state, steps(&world)), (Lifecycle::Deleted, Vec::new()));
    }
}

#[test]
fn a_resumption_does_not_wait_for_a_former_home_that_was_left_already() {
    let (mut world, foo) = world(CredentialKind::Certificate { lifetime: Duration::from_hours(24 * 7) });
    let key = CredentialKey::new(foo.clone(), crate::plan::testing::prod());
    world.account(&foo).home = Some("/data/other/foo".into());
    world.order(&foo, OrderKind::Suspend);
    world.cycle();
    assert!(world.ledger.deliveries[&key].is_removed());
    world.order(&foo, OrderKind::Resume);
    let plan = world.plan();
    let is_new = |step: &Action| matches!(step, Action::Deliver { former: None, .. });
    assert!(plan.accounts[0].steps().any(is_new), "{plan}");
    world.cycle();
    assert!(world.ledger.deliveries[&key].may_hold_a_credential() && world.plan().is_empty(), "{}", world.plan());
}

#[test]
fn a_delivery_whose_answer_was_lost_is_repeated_as_missing() {
    let (mut world, foo) = world(CredentialKind::Certificate { lifetime: Duration::from_hours(24 * 7) });
    let key = CredentialKey::new(foo, crate::plan::testing::prod());
    let pending = world.ledger.deliveries[&key].clone().pending();
    world.ledger.deliveries.set(key.clone(), Some(pending));
    let plan = world.plan();
    let is_missing = |step: &Action| matches!(step, Action::Deliver { reason: Reason::Missing, former: None, .. });
    assert!(plan.accounts[0].steps().any(is_missing), "{plan}");
    world.cycle();
    assert!(!world.ledger.deliveries[&key].is_pending() && world.plan().is_empty(), "{}", world.plan());
}

#[test]
fn a_delivery_into_another_file_names_the_old_one() {
    type Change = fn(&mut World, &AccountId);
    let home: Change = |world, foo| world.account(foo).home = Some("/data/other/foo".into());
    let file: Change = |world, _| {
        let class = world.class("tool");
        class.home.as_mut().expect("the class has a home").kubeconfig = ".kube/bursar".into();
    };
    for (change, new, is_row_old) in [
        (home, "/data/other/foo/.kube/config", false),
        (home, "/data/other/foo/.kube/config", true),
        (file, "/data/project/foo/.kube/bursar", false),
    ] {
        let (mut world, foo) = world(CredentialKind::Certificate { lifetime: Duration::from_hours(24 * 7) });
        let key = CredentialKey::new(foo.clone(), crate::plan::testing::prod());
        let old = world.ledger.deliveries[&key].clone();
        if is_row_old {
            world.ledger.deliveries.set(key.clone(), Some(Delivery { home: None, ..old.clone() }));
        }
        change(&mut world, &foo);
        let (approved, refusals) = world.guarded();
        assert_eq!(refusals, [], "no access is lost");
        let mut steps = approved.accounts()[0].steps();
        let names_it = |step: &Action| {
            matches!(step, Action::Deliver { former: Some(former), home, .. }
                if former.file() == old.path && home.file() == std::path::Path::new(new))
        };
        assert!(steps.any(names_it), "{new}");
        world.cycle();
        assert_eq!(world.ledger.deliveries[&key].path, std::path::Path::new(new));
        assert!(world.plan().is_empty(), "{}", world.plan());
    }
}

/// The delivery itself replaces the old entries. If a separate step removed them, a retry of that step could remove the
/// new entries.
#[test]
fn a_credential_of_another_kind_or_host_replaces_the_old_one_in_its_file() {
    let token = |host: &str| CredentialKind::ServiceAccount {
        lifetime: Duration::from_hours(1),
        hosts: vec![HostName(host.to_owned())],
        directory: None,
    };
    let certificate = CredentialKind::Certificate { lifetime: Duration::from_hours(24) };
    for (from, to) in [(token("ce1"), token("ce2")), (token("ce1"), certificate.clone()), (certificate, token("ce1"))] {
        let (mut world, foo) = world(from);
        let old = world.ledger.deliveries.keys().next().expect("foo has a delivery").clone();
        *world.credential("tool") = to;
        // In the second round, the ledger still has the row of the old credential, as a former version left it.
        for _ in 0..2 {
            let row = world.ledger.deliveries.values().next().expect("foo has a delivery").clone();
            world.ledger.deliveries.set(old.clone(), Some(row));
            let plan = world.plan();
            let mut steps = plan.accounts[0].steps();
            assert!(!steps.any(|step| matches!(step, Action::RemoveKubeconfig { .. })), "{plan}");
            world.cycles(3);
            let keys: Vec<&CredentialKey> = world.ledger.deliveries_of(&foo).map(|(key, _)| key).collect();
            assert!(keys.len() == 1 && *keys[0] != old, "{keys:?}");
            assert!(world.ledger.certificates_of(&foo).all(|(key, _)| key == keys[0]), "{keys:?}");
            assert!(world.plan().is_empty(), "{}", world.plan());
        }
    }
}

#[test]
fn a_revoked_credential_is_replaced_at_once_even_if_the_home_moved() {
    let (mut world, foo) = world(CredentialKind::Certificate { lifetime: Duration::from_hours(24 * 7) });
    world.account(&foo).home = Some("/data/other/foo".into());
    world.order(&foo, OrderKind::Revoke);
    world.cycle();
    let key = CredentialKey::new(foo, crate::plan::testing::prod());
    assert!(world.ledger.deliveries[&key].path.starts_with("/data/other/foo"), "{}", world.plan());
}

#[test]
fn credentials_of_an_oidc_issuer_are_never_renewed() {
    let (mut world, foo) = tokens();
    let rule = OidcRule {
        issuer: "https://sso.example.org".to_owned(),
        client_id: "kubernetes".to_owned(),
        scopes: Vec::new(),
        grant: Grant::Auto,
        user: "sso:{name}".to_owned(),
    };
    *world.credential("tool") = CredentialKind::Oidc(rule);
    let plan = world.plan();
    assert!(plan.to_string().contains("kubeconfig of ce2 removed"), "{plan}");
    world.cycle();
    assert!(world.plan().is_empty(), "{}", world.plan());
    let key = CredentialKey::new(foo, crate::plan::testing::prod());
    assert!(world.ledger.certificates.is_empty() && world.ledger.deliveries.contains_key(&key));
    world.now += jiff::SignedDuration::from_hours(24 * 365);
    let plan = world.plan();
    let actions: Vec<Action> = plan.accounts[0].steps().cloned().collect();
    assert!(actions.iter().all(|action| matches!(action, Action::InspectKubeconfig { .. })), "{actions:?}");
}

#[test]
fn a_delivery_is_inspected_after_two_seconds_and_after_a_minute() {
    let kind = CredentialKind::Certificate { lifetime: Duration::from_hours(24 * 7) };
    let (mut world, foo) = world(kind);
    let key = CredentialKey::new(foo, crate::plan::testing::prod());
    let looks = |world: &World| {
        let accounts = world.plan().accounts;
        accounts.iter().flat_map(|plan| plan.actions.iter()).filter(|action| action.is_look()).count()
    };
    let after = |world: &mut World, seconds| {
        world.now = world.ledger.deliveries[&key].at + jiff::SignedDuration::from_secs(seconds);
        looks(world)
    };
    assert_eq!((after(&mut world, 0), after(&mut world, 1), after(&mut world, 2)), (0, 0, 1));
    world.cycle();
    assert_eq!((after(&mut world, 3), after(&mut world, 59), after(&mut world, 60)), (0, 0, 1));
    world.cycle();
    assert_eq!((after(&mut world, 61), next_look(&world.ledger.deliveries[&key])), (0, None));
}

#[test]
fn entries_that_somebody_removes_after_each_delivery_are_delivered_at_most_hourly() {
    let (mut world, foo) = world(CredentialKind::Certificate { lifetime: Duration::from_hours(24 * 7) });
    let key = CredentialKey::new(foo.clone(), crate::plan::testing::prod());
    let end = world.now + jiff::SignedDuration::from_hours(24);
    let (mut delivered, place) = (0, (foo.clone(), key.cluster.clone()));
    while world.now < end {
        let plan = world.plan();
        let steps: Vec<&Action> = plan.accounts.iter().flat_map(AccountPlan::steps).collect();
        delivered += steps.iter().filter(|step| matches!(step, Action::Deliver { .. })).count();
        assert!(delivered < 40, "at {}", world.now);
        let is_look = steps.iter().any(|step| step.is_look());
        let before = world.ledger.deliveries[&key].clone();
        world.cycle();
        // Does the same as the execution of an inspection that finds the delivery broken.
        if is_look {
            if next_look(&before).is_some() {
                let place = place.clone();
                let failure = Failure::overwritten("why".to_owned(), world.ledger.failures.get(&place), world.now);
                world.ledger.failures.insert(place, failure);
            }
            world.ledger.deliveries.set(key.clone(), Some(Delivery { checked_at: None, ..before }));
        }
        let soon = world.now + jiff::SignedDuration::from_secs(1);
        world.now = match world.ledger.failures.get(&place).filter(|failure| failure.waits(world.now)) {
            Some(failure) => failure.next_try,
            None if world.ledger.deliveries[&key].checked_at.is_none() => soon,
            None => next_due(&world.ledger, &foo, world.now).max(soon),
        };
    }
    assert!(delivered > 20, "{delivered} deliveries");
    // When a delivery has stayed correct for a minute, the count begins again.
    for _ in 0..5 {
        world.now += jiff::SignedDuration::from_hours(1);
        world.cycle();
    }
    assert!(world.ledger.failures.is_empty(), "{:?}", world.ledger.failures);
    assert!(world.ledger.deliveries[&key].checked_at.is_some() && world.plan().is_empty(), "{}", world.plan());
}

#[test]
fn homes_are_inspected_every_six_hours_and_not_all_at_once() {
    let at = |second| Timestamp::from_second(second).expect("the time is in range");
    let id = |number: i64| crate::identity::DirectoryId(number.to_string());
    let ids: Vec<AccountId> = (0..1000).map(|number| AccountId::derive("ledger", "people", &id(number))).collect();
    let due = |id: &AccountId, minute: i64| {
        last_slot(id, at(1_800_000_000 + minute * 60)) > 1_800_000_000 + (minute - 1) * 60
    };
    let by_minute: Vec<usize> = (1..=360).map(|minute| ids.iter().filter(|id| due(id, minute)).count()).collect();
    assert_eq!(by_minute.iter().sum::<usize>(), 1000, "each home is inspected once in six hours");
    assert!(by_minute.iter().max() < Some(&20), "{by_minute:?}");
}
