//! Tests which differences of the confinement are reported, and what can make the host an administrator.

use std::collections::BTreeSet;
use std::path::Path;

use super::difference::REVISION;
use super::*;
use crate::bootstrap::needs::{Adopting, Confinement};
use crate::plan::testing::{World, prod};
use crate::policy::Class;

#[test]
fn defaults_of_the_server_are_ignored_and_weaker_values_are_reported() {
    let wanted = json!({"spec": {
        "failurePolicy": "Fail", "rules": [{"resources": ["pods"], "scope": "Namespaced"}], "objectSelector": {},
    }});
    let mut stored = wanted.clone();
    stored["spec"]["matchConditions"] = json!([]);
    stored["spec"]["matchPolicy"] = json!("Equivalent");
    stored["status"] = json!({"observedGeneration": 1});
    assert_eq!(difference(&wanted, &stored), None);
    for (field, value, path) in [
        ("failurePolicy", json!("Ignore"), "spec.failurePolicy"),
        ("objectSelector", json!({"matchLabels": {"a": "b"}}), "spec.objectSelector"),
        ("rules", json!([]), "spec.rules"),
        ("rules", json!([{"resources": ["nodes"], "scope": "Namespaced"}]), "spec.rules[0].resources[0]"),
        ("matchConditions", json!([{"name": "never", "expression": "false"}]), "spec.matchConditions"),
    ] {
        let mut weak = stored.clone();
        weak["spec"][field] = value;
        assert_eq!(difference(&wanted, &weak).as_deref(), Some(path));
    }
}

#[test]
fn a_changed_policy_and_one_of_another_version_are_reported() {
    let [mut policy, _] = daemon_admission_policy(&Needs::default(), &Confinement::default());
    note(&mut policy);
    let mut stored = policy.clone();
    stored["spec"]["matchConstraints"]["matchPolicy"] = json!("Equivalent");
    assert_eq!(changed_since_noted(&policy, &stored), None);
    // A policy that `init` made from another configuration.
    let needs = Needs { roles: BTreeSet::from(["view".to_owned()]), ..Needs::default() };
    let [mut other, _] = daemon_admission_policy(&needs, &Confinement::default());
    note(&mut other);
    assert_eq!(changed_since_noted(&policy, &other), None);
    other["spec"]["failurePolicy"] = json!("Ignore");
    assert!(changed_since_noted(&policy, &other).is_some_and(|why| why.contains("changed since")));
    stored["metadata"]["annotations"][REVISION] = json!("0");
    assert!(changed_since_noted(&policy, &stored).is_some_and(|why| why.contains("another version")));
}

#[test]
fn without_an_approver_the_host_can_become_administrator() {
    let needs = Needs::default();
    assert!(
        sentence(&ways_to_administrator(&needs, &Said::default()))
            .expect("the host can become administrator")
            .contains("approver install")
    );
}

#[test]
fn roles_in_the_whole_cluster_by_certificates_can_lead_to_administrator() {
    let mut world = World::new();
    let tool = world.policy.classes["tool"].clone();
    let admin = Class { name: "admin".to_owned(), namespace: None, roles: vec!["view".to_owned()], ..tool };
    assert!(admin.impersonate.is_empty());
    world.policy.classes.insert(admin.name.clone(), admin);
    let ways = ways_to_administrator(&Needs::of(&world.policy, &prod(), &world.ledger), &Said::default());
    assert!(ways.iter().any(|way| way.starts_with("class admin impersonates, or has roles in")), "{ways:?}");
    world.policy.classes.remove("admin");
    let ways = ways_to_administrator(&Needs::of(&world.policy, &prod(), &world.ledger), &Said::default());
    assert!(ways.iter().all(|way| !way.contains("by certificates")), "{ways:?}");
}

#[test]
fn classes_that_impersonate_are_administrators_by_the_directory() {
    let mut world = World::new();
    world.policy.classes.retain(|_, class| class.impersonate.is_empty());
    assert_eq!(administrators_by_directory(&world.policy, &prod()), None);
    let tool = world.policy.classes["tool"].clone();
    let impersonate = vec!["bursar:cluster-admin".to_owned()];
    // The credential does not matter: neither certificates nor OIDC decide who is in the class.
    for credential in [tool.credential.clone(), None] {
        let (name, impersonate) = ("admin".to_owned(), impersonate.clone());
        let admin = Class { name, namespace: None, impersonate, credential, ..tool.clone() };
        world.policy.classes.insert(admin.name.clone(), admin);
        let said = administrators_by_directory(&world.policy, &prod()).expect("a class impersonates");
        assert!(said.ends_with("cluster administrator: class admin (impersonates bursar:cluster-admin)"), "{said}");
    }
    assert_eq!(administrators_by_directory(&world.policy, &ClusterName("another".into())), None);
}

#[test]
fn a_class_that_adopts_namespaces_can_lead_to_administrator() {
    let selector = crate::policy::Selector::parse("a=b").expect("the selector is valid");
    let adopting = Adopting {
        selector,
        pod_security: None,
        roles: BTreeSet::new(),
        service_account_roles: BTreeSet::new(),
        resources: BTreeSet::new(),
    };
    let needs = Needs { adopted: BTreeMap::from([("profile".to_owned(), adopting)]), ..Needs::default() };
    let ways = ways_to_administrator(&needs, &Said::default());
    assert!(ways.iter().any(|way| way.contains("class profile adopts namespaces")), "{ways:?}");
}

/// The ways to administrator are computed from the configuration, but until `init` runs, the policy of the former
/// configuration is in force.
#[test]
fn a_policy_from_a_wider_configuration_is_reported_as_outdated() {
    let made_of = |needs: &Needs| {
        let [mut policy, _] = daemon_admission_policy(needs, &Confinement::default());
        note(&mut policy);
        policy
    };
    let wider = made_of(&Needs { levels: BTreeSet::from(["privileged"]), ..Needs::default() });
    let name = ("ValidatingAdmissionPolicy".to_owned(), DAEMON_ADMISSION_POLICY.to_owned());
    let seen = BTreeMap::from([(name, Seen::Present(Box::new(wider)))]);
    let watch = ConfinementWatch {
        seen: Arc::new(Mutex::new(seen)),
        version: Arc::new(AtomicU64::new(1)),
        rules: Vec::new(),
        _tasks: Vec::new(),
    };
    let expected = Expected { manifest: made_of(&Needs::default()), repairable: false, noted: true, rule: false };
    let Compared { breaches, unlisted } = watch.compare(&[expected]);
    assert!(unlisted.is_empty(), "{unlisted:?}");
    let [Breach { outdated: true, what, .. }] = &breaches[..] else { panic!("{breaches:?}") };
    assert_eq!(what, "was made from an older configuration; run bursar init");
}

#[test]
fn a_webhook_that_this_host_did_not_install_is_reported() {
    let name = |(kind, _): (&str, &str), name: &str| (kind.to_owned(), name.to_owned());
    let seen = BTreeMap::from([
        (name(VALIDATING_HOOKS, WEBHOOK), Seen::Absent),
        (name(MUTATING_HOOKS, WEBHOOK), Seen::Forbidden),
        (name(VALIDATING_POLICY, DAEMON_ADMISSION_POLICY), Seen::Present(Box::default())),
    ]);
    let watch = ConfinementWatch {
        seen: Arc::new(Mutex::new(seen)),
        version: Arc::new(AtomicU64::new(1)),
        rules: Vec::new(),
        _tasks: Vec::new(),
    };
    let foreign = || watch.foreign(Path::new("/nonexistent"), &prod()).expect("there is no record");
    assert_eq!(foreign(), None);
    watch.seen.lock().insert(name(VALIDATING_HOOKS, APPROVALS), Seen::NotYet);
    let Compared { breaches, unlisted } = watch.compare(&[]);
    assert_eq!(unlisted, ["ValidatingWebhookConfiguration bursar-approvals"], "it may be foreign");
    let [Breach { object, outdated: false, .. }] = &breaches[..] else { panic!("{breaches:?}") };
    assert_eq!(object, "MutatingWebhookConfiguration bursar-webhook");
    watch.seen.lock().insert(name(VALIDATING_HOOKS, APPROVALS), Seen::Present(Box::default()));
    let what = foreign().expect("the configuration is foreign");
    assert!(what.ends_with(": ValidatingWebhookConfiguration bursar-approvals"), "{what}");
}

#[test]
fn a_breach_is_reported_even_if_another_object_cannot_be_watched() {
    let object = |name: &str| json!({"kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": name}});
    let expected = ["forbidden", "not-yet", "gone"].map(|name| Expected {
        manifest: object(name),
        repairable: true,
        noted: false,
        rule: false,
    });
    let name = |name: &str| ("ValidatingAdmissionPolicyBinding".to_owned(), name.to_owned());
    let seen = BTreeMap::from([(name("forbidden"), Seen::Forbidden), (name("gone"), Seen::Absent)]);
    let watch = ConfinementWatch {
        seen: Arc::new(Mutex::new(seen)),
        version: Arc::new(AtomicU64::new(1)),
        rules: Vec::new(),
        _tasks: Vec::new(),
    };
    let Compared { breaches, unlisted } = watch.compare(&expected);
    let found: Vec<(&str, bool)> = breaches.iter().map(|breach| (breach.what.as_str(), breach.repairable)).collect();
    assert_eq!(
        found,
        [("cannot be watched; run bursar init", false), ("is gone; the daemon writes it again", true)],
        "{breaches:?}"
    );
    assert_eq!(unlisted, ["ValidatingAdmissionPolicyBinding not-yet"]);
}
