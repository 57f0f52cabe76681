//! Stopping and resuming the workloads of a suspended tenant.

use bursar::identity::NamespaceName;
use bursar::kinds::ObjectKey;
use bursar::ledger::StoppedWorkload;
use bursar::plan::Action;
use bursar_testkit::Servers;
use serde_json::{Value, json};

use super::world::{World, cluster, kubectl};

#[tokio::test(flavor = "multi_thread")]
async fn workloads_are_stopped_and_restored() {
    let mut world = World::new("execute-workloads").await;
    let actions = vec![world.apply(&world.namespace_manifest())];
    world.must(actions).await;
    Servers::shared().cluster.wait_for_pods(&world.namespace);
    for workload in workloads() {
        world.create(&workload);
    }
    let namespace = NamespaceName::try_from(world.namespace.clone()).expect("the name is valid");
    let stop = Action::StopWorkloads { cluster: cluster(), namespace: namespace.clone() };
    world.must(vec![stop.clone()]).await;
    let stopped: Vec<String> =
        world.ledger.stopped.keys().map(|(_, key)| format!("{} {}", key.kind, key.name)).collect();
    let expected = [
        "DaemonSet every",
        "Deployment three",
        "ReplicaSet one",
        "StatefulSet changed",
        "StatefulSet two",
        "CronJob nightly",
        "Job long",
        "Pod bare",
        "ReplicationController old",
    ];
    assert_eq!(stopped, expected);
    let replicas = |kind: &str, name: &str| world.get(kind, name)["spec"]["replicas"].clone();
    assert_eq!([replicas("deployment", "three"), replicas("statefulset", "two"), replicas("rc", "old")], [0, 0, 0]);
    assert_eq!([replicas("replicaset", "one"), replicas("deployment", "idle")], [0, 0]);
    assert_eq!(world.get("cronjob", "nightly")["spec"]["suspend"], true);
    assert_eq!(world.get("job", "long")["spec"]["suspend"], true);
    assert!(world.get("daemonset", "every")["spec"]["template"]["spec"]["nodeSelector"].is_object());
    kubectl(&["wait", "pod", "bare", "-n", "execute-workloads", "--for=delete", "--timeout=240s"]);

    // A repeated stop changes nothing and keeps the records.
    let before = world.ledger.stopped.clone();
    world.must(vec![stop]).await;
    assert_eq!(world.ledger.stopped, before);

    kubectl(&["scale", "statefulset", "changed", "-n", "execute-workloads", "--replicas=7"]);
    kubectl(&["delete", "rc", "old", "-n", "execute-workloads"]);
    world.create(&json!({
        "apiVersion": "v1", "kind": "ReplicationController", "metadata": {"name": "old"},
        "spec": {"replicas": 0, "selector": {"app": "old"}, "template": template("old")},
    }));
    let stopped: Vec<(ObjectKey, StoppedWorkload)> =
        world.ledger.stopped.iter().map(|((_, key), workload)| (key.clone(), workload.clone())).collect();
    world.must(vec![Action::ResumeWorkloads { cluster: cluster(), namespace, stopped }]).await;
    assert!(world.ledger.stopped.is_empty());
    let replicas = |kind: &str, name: &str| world.get(kind, name)["spec"]["replicas"].clone();
    assert_eq!([replicas("deployment", "three"), replicas("statefulset", "two")], [3, 2]);
    assert_eq!(replicas("statefulset", "changed"), 7, "the tenant changed it since");
    assert_eq!(replicas("rc", "old"), 0, "another object with the same name");
    assert_eq!(replicas("deployment", "idle"), 0, "it was stopped before the suspension");
    assert_eq!(world.get("cronjob", "nightly")["spec"]["suspend"], false);
    assert_eq!(world.get("job", "long")["spec"]["suspend"], false);
    assert!(world.get("daemonset", "every")["spec"]["template"]["spec"]["nodeSelector"].is_null());
    let words: Vec<&str> = world.events.iter().map(|event| event.action.as_str()).collect();
    assert_eq!(words, ["objects written", "workloads stopped", "workloads resumed"]);
}

fn template(name: &str) -> Value {
    json!({"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "c", "image": "example.org/i"}]}})
}

fn workloads() -> Vec<Value> {
    let scaled = |api_version: &str, kind: &str, name: &str, replicas: u64| {
        json!({
            "apiVersion": api_version, "kind": kind, "metadata": {"name": name},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template(name)},
        })
    };
    let mut job = template("job");
    job["spec"]["restartPolicy"] = json!("Never");
    vec![
        scaled("apps/v1", "Deployment", "three", 3),
        scaled("apps/v1", "Deployment", "idle", 0),
        scaled("apps/v1", "StatefulSet", "two", 2),
        scaled("apps/v1", "StatefulSet", "changed", 4),
        scaled("apps/v1", "ReplicaSet", "one", 1),
        json!({
            "apiVersion": "v1", "kind": "ReplicationController", "metadata": {"name": "old"},
            "spec": {"replicas": 1, "selector": {"app": "old"}, "template": template("old")},
        }),
        json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "every"},
            "spec": {"selector": {"matchLabels": {"app": "every"}}, "template": template("every")},
        }),
        json!({
            "apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "nightly"},
            "spec": {"schedule": "0 3 * * *", "jobTemplate": {"spec": {"template": job}}},
        }),
        json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "long"}, "spec": {"template": job}}),
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bare"},
            "spec": {"containers": [{"name": "c", "image": "example.org/i"}]},
        }),
    ]
}
