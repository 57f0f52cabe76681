//! Tests of the executor and the watches with a real API server.

pub mod outage;
mod workloads;
pub mod world;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bursar::archive::Archives;
use bursar::desired::watched::managed_kinds;
use bursar::execute::apply::Claim;
use bursar::execute::{Effects, Extent, Recorder, Run, execute};
use bursar::kinds::{ObjectKey, ObjectKind, WatchedKind};
use bursar::ledger::LedgerState;
use bursar::ledger::change::Change;
use bursar::observed::cluster::{ClusterWatch, connect};
use bursar::plan::Action;
use bursar_homed::client::HomedClient;
use bursar_testkit::Servers;
use bursar_testkit::ready::{DEADLINE, wait_for};
use jiff::SignedDuration;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::quiet::asked_by_all;

use self::world::{ENDED, NOW, World, approved, cluster, kubectl, manifest, quota};

#[tokio::test(flavor = "multi_thread")]
async fn new_objects_are_created_and_their_watch_events_are_not_drift() {
    let mut world = World::new("execute-new").await;
    let mark = Servers::shared().cluster.audit_mark();
    let binding = manifest(
        "rbac.authorization.k8s.io/v1",
        "RoleBinding",
        "bursar-view",
        json!({
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "bursar:tool:foo#1"}],
        }),
    );
    let policy = manifest(
        "networking.k8s.io/v1",
        "NetworkPolicy",
        "bursar-default-deny",
        json!({"spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}}),
    );
    let manifests = [world.namespace_manifest(), quota("16"), policy, binding];
    let actions: Vec<Action> = manifests.iter().map(|manifest| world.apply(manifest)).collect();
    world.must(actions).await;
    let keys: Vec<ObjectKey> = world.ledger.objects.keys().cloned().collect();
    assert_eq!(keys.len(), 4);
    for key in &keys {
        assert!(world.is_settled(key), "{key:?} right after the write");
    }
    // New objects are created without a prior read.
    let asked = asked_by_all(&Servers::shared().cluster, mark);
    let ours = asked.iter().filter(|request| format!("{request:?}").contains("execute-new"));
    let ours: Vec<_> = ours.filter(|request| request.user == "admin" && request.verb != "watch").collect();
    assert_eq!(ours.len(), 4, "{ours:#?}");

    // A later edit by somebody else shows that all events of our writes have arrived.
    kubectl(&["label", "resourcequota", "bursar", "-n", "execute-new", "theirs=yes"]);
    kubectl(&["annotate", "namespace", "execute-new", "theirs=yes"]);
    tokio::time::timeout(Duration::from_secs(2), world.until("never", &keys[0], |found| found.is_none()))
        .await
        .expect_err("no object is deleted");
    for key in &keys {
        assert!(world.is_settled(key), "{key:?} after its watch events");
    }
    assert_eq!(world.events.len(), 1, "{:?}", world.events);
}

/// Here a policy of the test refuses quotas and one label until the policy is deleted. To the executor, this looks like
/// the daemon's own policy when the API server evaluates it with a stale namespace.
#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_our_policy_refuses_is_retried_if_the_namespace_was_just_written() {
    let mut world = World::new("execute-stale").await;
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "execute-stale"},
        "spec": {
            "matchConstraints": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "execute-stale"}},
                "resourceRules": [{
                    "apiGroups": [""], "apiVersions": ["v1"], "resources": ["resourcequotas", "namespaces"],
                    "operations": ["CREATE", "UPDATE"],
                }],
            },
            "validations": [{
                "expression": "request.resource.resource == 'namespaces' && \
                    !('refused' in object.metadata.?labels.orValue({}))",
                "message": "bursar-cage: the namespace is stale",
            }],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "execute-stale"},
        "spec": {"policyName": "execute-stale", "validationActions": ["Deny"]},
    });
    let cluster = &Servers::shared().cluster;
    cluster.run(&["create", "-f", "-"], &policy.to_string());
    cluster.run(&["create", "-f", "-"], &binding.to_string());
    let actions = vec![world.apply(&world.namespace_manifest())];
    world.must(actions).await;
    let is_refused = || {
        let quota = ["create", "quota", "probe", "--hard=pods=1", "-n", "execute-stale", "--dry-run=server"];
        (!cluster.kubectl().args(quota).output().expect("kubectl is installed").status.success()).then_some(())
    };
    wait_for("the policy is in force", DEADLINE, is_refused);

    let stopper = manifest("v1", "ResourceQuota", "bursar-suspended", json!({"spec": {"hard": {"pods": "0"}}}));
    let mut refused = world.namespace_manifest();
    refused["metadata"]["labels"]["refused"] = json!("yes");
    for (manifests, why) in [
        (vec![quota("16")], "the namespace was not written"),
        (vec![world.namespace_manifest(), stopper], "all other accounts wait for what takes access away"),
        (vec![refused], "the namespace itself is never stale"),
    ] {
        let actions = manifests.iter().map(|manifest| world.apply(manifest)).collect();
        let begun = std::time::Instant::now();
        let failure = world.must_fail(actions).await;
        assert!(failure.reason.contains("the namespace is stale"), "{}", failure.reason);
        assert!(begun.elapsed() < Duration::from_secs(4), "it was retried, but {why}");
    }

    let deleting = std::thread::spawn(|| {
        std::thread::sleep(Duration::from_secs(1));
        kubectl(&["delete", "validatingadmissionpolicybinding", "execute-stale"]);
    });
    let actions = vec![world.apply(&world.namespace_manifest()), world.apply(&quota("16"))];
    world.must(actions).await;
    deleting.join().expect("the thread does not panic");
    kubectl(&["delete", "validatingadmissionpolicy", "execute-stale"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn drift_is_noticed_and_repaired() {
    let mut world = World::new("execute-drift").await;
    let actions = vec![world.apply(&world.namespace_manifest()), world.apply(&quota("16"))];
    world.must(actions).await;
    let key = world.key("v1", "ResourceQuota", "bursar");
    let before = world.observed(&key).expect("the quota is observed");
    kubectl(&["patch", "resourcequota", "bursar", "-n", "execute-drift", "-p", r#"{"spec":{"hard":{"pods":"99"}}}"#]);
    world.until("drift", &key, |found| found.is_some_and(|found| found.digest != before.digest)).await;
    assert!(!world.is_settled(&key));
    let actions = vec![world.apply(&quota("16"))];
    world.must(actions).await;
    assert!(world.is_settled(&key));
    assert_eq!(world.get("resourcequota", "bursar")["spec"]["hard"]["pods"], "16");

    kubectl(&["delete", "resourcequota", "bursar", "-n", "execute-drift"]);
    world.until("deletion", &key, |found| found.is_none()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_whose_label_was_removed_stays_ours() {
    let mut world = World::new("execute-label").await;
    let actions = vec![world.apply(&world.namespace_manifest()), world.apply(&quota("16"))];
    world.must(actions).await;
    let key = world.key("v1", "ResourceQuota", "bursar");
    kubectl(&["label", "resourcequota", "bursar", "-n", "execute-label", "app.kubernetes.io/managed-by-"]);
    world.until("label gone", &key, |found| found.is_none()).await;
    let actions = vec![world.apply(&quota("16"))];
    world.must(actions).await;
    assert!(world.is_settled(&key));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_object_is_not_changed() {
    let mut world = World::new("execute-foreign").await;
    kubectl(&["create", "namespace", "execute-foreign"]);
    world.create(&json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "bursar"}, "spec": {"hard": {"pods": "3"}},
    }));
    let before = world.without_status("resourcequota", "bursar");
    let actions = vec![world.apply(&world.namespace_manifest()), world.apply(&quota("16"))];
    let failure = world.must_fail(actions).await;
    assert_eq!(failure.step, "foreign");
    assert!(failure.reason.contains("bursar adopt namespace execute-foreign"), "{}", failure.reason);
    let actions = vec![world.apply(&quota("16"))];
    let again = world.must_fail(actions).await;
    assert!(again.reason.contains("bursar adopt object resourcequota execute-foreign/bursar"), "{}", again.reason);
    assert_eq!(again.attempts, 2);
    assert_eq!(world.without_status("resourcequota", "bursar"), before);
    assert!(world.ledger.objects.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_somebody_created_meanwhile_is_not_changed() {
    let mut world = World::new("execute-race").await;
    let actions = vec![world.apply(&world.namespace_manifest())];
    world.must(actions).await;
    // An object with the same values as the object that the executor applies, and a different one. Both exist although
    // the executor expects none.
    for pods in ["16", "3"] {
        world.create(&json!({
            "apiVersion": "v1", "kind": "ResourceQuota",
            "metadata": {"name": "bursar", "annotations": {"whose": "theirs"}}, "spec": {"hard": {"pods": pods}},
        }));
        let before = world.get("resourcequota", "bursar");
        let key = world.key("v1", "ResourceQuota", "bursar");
        let effects = &world.effects.clusters[&cluster()];
        let manifest = quota("16");
        let refused = bursar::execute::apply::apply(&effects.server, &key, &manifest, None, Claim::Ours).await;
        let error = refused.expect_err("the object belongs to somebody else");
        assert_eq!(error.step(), "foreign", "{error:?}");
        let after = world.get("resourcequota", "bursar");
        assert_eq!(after["spec"], before["spec"]);
        // Controllers write `status`, and so the version and the managed fields, at any time.
        for field in ["labels", "annotations", "uid"] {
            assert_eq!(after["metadata"][field], before["metadata"][field], "{field}");
        }
        let managers = after["metadata"]["managedFields"].to_string();
        assert!(!managers.contains(r#""bursar""#), "{managers}");
        kubectl(&["delete", "resourcequota", "bursar", "-n", "execute-race"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_somebody_recreated_is_not_taken_over() {
    let mut world = World::new("execute-anew").await;
    let actions = vec![world.apply(&world.namespace_manifest()), world.apply(&quota("16"))];
    world.must(actions).await;
    let ours = world.apply(&quota("32"));
    let key = world.key("v1", "ResourceQuota", "bursar");
    let delete = world.delete(&key);
    kubectl(&["delete", "resourcequota", "bursar", "-n", "execute-anew"]);
    world.create(&json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "bursar"}, "spec": {"hard": {"pods": "3"}},
    }));
    let before = world.without_status("resourcequota", "bursar");
    let failure = world.must_fail(vec![ours]).await;
    assert_eq!(failure.step, "foreign", "{}", failure.reason);
    world.must(vec![delete]).await;
    assert_eq!(world.without_status("resourcequota", "bursar"), before, "the object was neither applied nor deleted");
    assert!(world.ledger.failures.is_empty(), "a completed run clears the account's failure");

    kubectl(&["delete", "resourcequota", "bursar", "-n", "execute-anew"]);
    let actions = vec![world.apply(&quota("32"))];
    world.must(actions).await;
    assert!(world.is_settled(&key));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_known_object_that_was_deleted_is_created_again() {
    let mut world = World::new("execute-gone").await;
    let actions = vec![world.apply(&world.namespace_manifest()), world.apply(&quota("16"))];
    world.must(actions).await;
    let with_old_uid = world.apply(&quota("16"));
    kubectl(&["delete", "resourcequota", "bursar", "-n", "execute-gone"]);
    world.must(vec![with_old_uid]).await;
    let key = world.key("v1", "ResourceQuota", "bursar");
    world.until("the new object", &key, |found| found.is_some()).await;
    assert!(world.is_settled(&key));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_removes_the_object_and_its_record() {
    let mut world = World::new("execute-delete").await;
    let binding = manifest(
        "rbac.authorization.k8s.io/v1",
        "RoleBinding",
        "bursar-view",
        json!({"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}}),
    );
    let actions = vec![world.apply(&world.namespace_manifest()), world.apply(&binding)];
    world.must(actions).await;
    let key = world.key("rbac.authorization.k8s.io/v1", "RoleBinding", "bursar-view");
    let delete = world.delete(&key);
    world.must(vec![delete.clone()]).await;
    assert_eq!((world.observed(&key), world.ledger.objects.get(&key)), (None, None));
    assert_eq!(kubectl(&["get", "rolebinding", "-n", "execute-delete", "-o", "name"]), "");
    world.must(vec![delete]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_that_is_being_deleted_fails_its_tenant_until_it_is_gone() {
    let mut world = World::new("execute-going").await;
    let actions = vec![world.apply(&world.namespace_manifest())];
    world.must(actions).await;
    // An object with a foreign finalizer keeps the namespace from being deleted.
    world.create(&json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "holds", "finalizers": ["example.org/holds"]},
    }));
    let key = world.key("v1", "Namespace", "execute-going");
    let delete = world.delete(&key);
    world.must(vec![delete]).await;
    assert!(world.observed(&key).expect("the namespace still exists").deleting);
    let actions = vec![world.apply(&quota("16"))];
    let failure = world.must_fail(actions).await;
    assert!(failure.reason.contains("namespace execute-going is being deleted"), "{}", failure.reason);
    let actions = vec![world.apply(&world.namespace_manifest())];
    let failure = world.must_fail(actions).await;
    assert!(failure.reason.contains("Namespace execute-going is being deleted"), "{}", failure.reason);
    kubectl(&["patch", "configmap", "holds", "-n", "execute-going", "-p", r#"{"metadata":{"finalizers":null}}"#]);
    world.until("namespace gone", &key, |found| found.is_none()).await;
    let actions = vec![world.apply(&quota("16"))];
    let failure = world.must_fail(actions).await;
    assert!(failure.reason.contains("its namespace does not exist"), "{}", failure.reason);
    let actions = vec![world.apply(&world.namespace_manifest()), world.apply(&quota("16"))];
    world.must(actions).await;
    assert!(world.ledger.failures.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_released_volume_becomes_available_again() {
    let mut world = World::new("execute-volume").await;
    let volume = |path: &str| {
        manifest(
            "v1",
            "PersistentVolume",
            "execute-volume-home",
            json!({"spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"], "storageClassName": "",
                "persistentVolumeReclaimPolicy": "Retain", "nfs": {"server": "nfs.example.org", "path": path},
                "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "home",
                    "namespace": "execute-volume"},
            }}),
        )
    };
    let claim = manifest(
        "v1",
        "PersistentVolumeClaim",
        "home",
        json!({"spec": {
            "accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeName": "execute-volume-home",
            "resources": {"requests": {"storage": "1Gi"}},
        }}),
    );
    let actions = vec![world.apply(&world.namespace_manifest()), world.apply(&volume("/home")), world.apply(&claim)];
    world.must(actions).await;
    let key = world.key("v1", "PersistentVolume", "execute-volume-home");
    phase("execute-volume-home", "Bound");
    kubectl(&["delete", "pvc", "home", "-n", "execute-volume"]);
    phase("execute-volume-home", "Released");
    world.until("released", &key, |found| found.is_some_and(|found| found.digest == "released")).await;
    let claim_key = world.key("v1", "PersistentVolumeClaim", "home");
    world.until("claim gone", &claim_key, |found| found.is_none()).await;
    let actions = vec![world.apply(&volume("/home")), world.apply(&claim)];
    world.must(actions).await;
    phase("execute-volume-home", "Bound");
    world.until("settled", &key, |found| found.is_some_and(|found| found.digest != "released")).await;
    assert!(world.is_settled(&key) && world.is_settled(&claim_key));

    let actions = vec![world.apply(&volume("/elsewhere"))];
    let failure = world.must_fail(actions).await;
    assert_eq!(failure.step, "volume");
    assert!(
        failure.reason.contains("another server or path, but those of a volume cannot change"),
        "{}",
        failure.reason
    );
}

fn phase(volume: &str, wanted: &str) {
    let wanted = format!("jsonpath={{.status.phase}}={wanted}");
    kubectl(&["wait", "pv", volume, "--for", &wanted, "--timeout=240s"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_object_stops_its_tenant_and_the_ledger_has_the_reason() {
    let mut world = World::new("execute-failing").await;
    let broken = manifest("v1", "ResourceQuota", "bursar", json!({"spec": {"hard": {"pods": "many"}}}));
    let later = manifest(
        "rbac.authorization.k8s.io/v1",
        "RoleBinding",
        "bursar-view",
        json!({"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}}),
    );
    let actions = vec![world.apply(&world.namespace_manifest()), world.apply(&broken), world.apply(&later)];
    let failure = world.must_fail(actions).await;
    assert_eq!(failure.step, "apply");
    assert_eq!(failure.next_try, ENDED + SignedDuration::from_secs(5), "counted from the end of the step");
    assert!(failure.reason.starts_with("ResourceQuota bursar in namespace execute-failing: "), "{}", failure.reason);
    let kinds: Vec<&str> = world.ledger.objects.keys().map(|key| key.kind.as_str()).collect();
    assert_eq!(kinds, ["Namespace"], "completed actions are recorded, and later ones are not begun");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_that_records_nothing_stops_the_execution() {
    let world = World::new("execute-unrecorded").await;
    let (recorder, records) = Recorder::channel();
    drop(records);
    let stop = CancellationToken::new();
    let plan = approved(vec![world.apply(&world.namespace_manifest())]);
    let run =
        Run { ledger: &world.ledger, now: NOW, clock: || NOW, extent: Extent::All, stop: &stop, slice_over: &stop };
    let report = execute(&plan, &world.effects, run, &recorder).await;
    assert_eq!(report.failed, 1);
    assert!(stop.is_cancelled());
    let report = execute(&plan, &world.effects, run, &recorder).await;
    assert_eq!((report.left, report.failed), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_that_takes_long_is_left_between_two_steps_when_the_slice_is_over() {
    let mut world = World::new("execute-slice").await;
    let namespace = "execute-slice".to_owned().try_into().expect("the text is a namespace name");
    let resume = Action::ResumeWorkloads { cluster: cluster(), namespace, stopped: Vec::new() };
    let plan = approved(vec![world.apply(&world.namespace_manifest()), resume, world.apply(&quota("16"))]);
    let (ledger, stop, slice_over) = (LedgerState::default(), CancellationToken::new(), CancellationToken::new());
    let (recorder, mut records) = Recorder::channel();
    let run =
        Run { ledger: &ledger, now: NOW, clock: || ENDED, extent: Extent::All, stop: &stop, slice_over: &slice_over };
    let executed = async {
        let report = execute(&plan, &world.effects, run, &recorder).await;
        drop(recorder);
        report
    };
    let stored = async {
        let mut changes = Vec::new();
        while let Some(record) = records.recv().await {
            slice_over.cancel();
            changes.extend(record.changes);
            record.stored.send(()).expect("the executor waits");
        }
        changes
    };
    let (report, changes) = tokio::join!(executed, stored);
    assert_eq!((report.done, report.failed, report.left), (0, 0, 1));
    let is_namespace =
        |change: &Change| matches!(change, Change::Object(key, Some(_)) if key.kind.as_str() == "Namespace");
    assert!(changes.len() == 1 && changes.iter().all(is_namespace), "{changes:?}");
    let quota = vec![world.apply(&quota("16"))];
    world.must(quota).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_is_down_has_no_inventory_and_reports_why() {
    let uri = format!("https://127.0.0.1:{}", bursar_testkit::ports::free_port());
    let client =
        connect(kube::Config::new(uri.parse().expect("the URL is valid"))).expect("the TLS settings are valid");
    let watch = ClusterWatch::start(&client, cluster(), managed_kinds(), Arc::default());
    let error = watch.wait_until_ready(Duration::from_secs(2)).await.expect_err("no server listens");
    assert!(error.to_string().contains("refused"), "{error}");
    let health = watch.health();
    assert!(watch.inventory().is_none() && !health.ready);
    assert_eq!(health.waiting_for.len(), managed_kinds().len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_that_the_cluster_lacks_fails_only_its_own_objects() {
    let mut kinds = managed_kinds();
    let listing = |api_version: &str, kind: &str, only: Option<&str>| WatchedKind {
        kind: ObjectKind::of(api_version, kind),
        only: only.map(str::to_owned),
    };
    kinds.push(listing("monitoring.example.org/v1", "ServiceMonitor", None));
    kinds.push(listing("v1", "Secret", Some("bursar-pull")));
    let mut world = World::watching("execute-kinds", kinds).await;
    let secret = |name: &str| manifest("v1", "Secret", name, json!({"stringData": {"a": "b"}}));
    let actions =
        vec![world.apply(&world.namespace_manifest()), world.apply(&secret("bursar-pull")), world.apply(&secret("x"))];
    world.must(actions).await;
    world.create(&json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "y", "labels": {"app.kubernetes.io/managed-by": "bursar"}},
    }));
    let pull = world.key("v1", "Secret", "bursar-pull");
    assert!(world.is_settled(&pull));
    kubectl(&["delete", "secret", "bursar-pull", "-n", "execute-kinds"]);
    world.until("secret gone", &pull, |found| found.is_none()).await;
    assert_eq!(world.observed(&world.key("v1", "Secret", "y")), None, "only the Secret with the given name is watched");
    let monitor = manifest("monitoring.example.org/v1", "ServiceMonitor", "m", json!({}));
    let actions = vec![world.apply(&monitor)];
    let failure = world.must_fail(actions).await;
    assert!(failure.reason.contains("install the definition of ServiceMonitor"), "{}", failure.reason);
}

#[test]
fn execution_is_a_send_future() {
    // This compiles only if the future is `Send`.
    fn is_send<T: Send>(_: T) {}
    let (recorder, _records) = Recorder::channel();
    let effects = Effects {
        clusters: BTreeMap::new(),
        homes: HomedClient::new("/nonexistent", Duration::from_secs(1)),
        archives: Archives::of(std::path::Path::new("/nonexistent"), None),
    };
    let (plan, ledger, stop) = (approved(Vec::new()), LedgerState::default(), CancellationToken::new());
    is_send(execute(
        &plan,
        &effects,
        Run { ledger: &ledger, now: NOW, clock: || NOW, extent: Extent::All, stop: &stop, slice_over: &stop },
        &recorder,
    ));
}
