//! Bursar is killed in the middle of a suspension and of a resumption. At each moment, every workload either has its
//! former state, or the ledger has recorded that state.

use std::collections::BTreeMap;

use bursar_testkit::Servers;
use bursar_testkit::ldif::{disable_ldif, enable_ldif, tool_account_dn};
use serde_json::{Value, json};

use crate::world::World;

const DEPLOYMENTS: u64 = 12;

/// The number of replicas of each workload, by `Kind/name`. A workload without replicas has `null` if it is suspended,
/// otherwise `true`.
type Workloads = BTreeMap<String, Value>;

#[test]
fn workloads_return_exactly_although_bursar_is_killed_during_suspension_and_resumption() {
    let mut world = World::new("midway");
    world.tool("foo", 62_081, &[]);
    assert_eq!(world.cycle().exit_code(), 0);
    world.stop();
    world.servers.cluster.wait_for_pods(&world.namespace("foo"));
    create(&world);
    let before = workloads(&world);
    assert_eq!(before.len() as u64, DEPLOYMENTS + 4, "{before:?}");
    let slapd = &Servers::shared().slapd;
    let account = tool_account_dn(&world.base, "foo");

    slapd.modify_ldif(&disable_ldif(&account));
    world.killed_when(|world| state(world) == "suspended", |_| false);
    check_nothing_is_lost(&world, &before);
    world.killed_when(|world| !kept(world).is_empty(), |_| false);
    check_nothing_is_lost(&world, &before);
    world.killed_when(|world| workloads(world)["Deployment/web1"] == 0, |_| false);
    check_nothing_is_lost(&world, &before);
    let report = world.cycle();
    world.stop();
    let stopped = workloads(&world);
    assert!(stopped.values().all(|now| *now == 0 || now.is_null()), "{stopped:?}");
    check_nothing_is_lost(&world, &before);
    assert!(!bare_pod_exists(&world), "{report:#?}");

    scale(&world, "web1", 7);
    let mut expected = before;
    expected.insert("Deployment/web1".to_owned(), json!(7));
    slapd.modify_ldif(&enable_ldif(&account));
    world.killed_when(|world| state(world) == "active", |_| false);
    check_nothing_is_lost(&world, &expected);
    world.killed_when(|world| workloads(world)["Deployment/web2"] != 0, |_| false);
    check_nothing_is_lost(&world, &expected);
    assert_eq!(world.cycle().exit_code(), 0);
    assert_eq!(workloads(&world), expected);
    assert!(kept(&world).is_empty());
    assert!(!bare_pod_exists(&world), "a bare pod is not created again");

    scale(&world, "web3", 0);
    assert_eq!(world.cycle().exit_code(), 0);
    assert_eq!(workloads(&world)["Deployment/web3"], 0, "the tenant decides from then on");
}

fn check_nothing_is_lost(world: &World, before: &Workloads) {
    let (now, kept) = (workloads(world), kept(world));
    for (name, was) in before {
        let known = kept.get(name);
        assert!(now[name] == *was || known == Some(was), "{name} was {was}, is {}, kept: {known:?}", now[name]);
    }
}

fn state(world: &World) -> String {
    world.rows("SELECT state FROM tools")[0]["state"].as_str().expect("a state is text").to_owned()
}

fn kept(world: &World) -> Workloads {
    let rows = world.rows("SELECT kind || '/' || name AS name, replicas FROM stopped_workload WHERE kind <> 'Pod'");
    let was = |replicas: &Value| if replicas.is_null() { json!(true) } else { replicas.clone() };
    rows.iter().map(|row| (row["name"].as_str().expect("a name is text").to_owned(), was(&row["replicas"]))).collect()
}

/// Returns the workloads that have no owner.
fn workloads(world: &World) -> Workloads {
    let kinds = "deployments,statefulsets,replicasets,cronjobs,jobs";
    let listed = world.kubectl(&["get", kinds, "-n", &world.namespace("foo"), "-o", "json"]);
    let listed: Value = serde_json::from_str(&listed).expect("kubectl prints JSON");
    let objects = listed["items"].as_array().expect("kubectl prints a list").iter();
    let top_level = objects.filter(|object| object["metadata"]["ownerReferences"].is_null());
    let named = top_level.map(|object| {
        let text = |value: &Value| value.as_str().expect("a name is text").to_owned();
        let running = if object["spec"]["suspend"] == true { Value::Null } else { json!(true) };
        let now = object["spec"].get("replicas").cloned().unwrap_or(running);
        (format!("{}/{}", text(&object["kind"]), text(&object["metadata"]["name"])), now)
    });
    named.collect()
}

fn bare_pod_exists(world: &World) -> bool {
    !world
        .kubectl(&["get", "pod", "bare", "--ignore-not-found", "-n", &world.namespace("foo"), "-o", "name"])
        .is_empty()
}

fn scale(world: &World, name: &str, replicas: u64) {
    let replicas = format!("--replicas={replicas}");
    world.kubectl(&["scale", "deployment", name, &replicas, "-n", &world.namespace("foo")]);
}

fn create(world: &World) {
    let scaled = |kind: &str, name: &str, replicas: u64| {
        json!({
            "apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template(name)},
        })
    };
    let mut batch = template("batch");
    batch["spec"]["restartPolicy"] = json!("Never");
    // The bare pod comes first because the quota has room for it only then.
    let bare =
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bare"}, "spec": template("bare")["spec"]});
    let mut items = vec![bare];
    items.extend((0..DEPLOYMENTS).map(|number| scaled("Deployment", &format!("web{number}"), number)));
    items.extend([
        scaled("StatefulSet", "store", 2),
        scaled("ReplicaSet", "alone", 3),
        json!({
            "apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "nightly"},
            "spec": {"schedule": "0 3 * * *", "jobTemplate": {"spec": {"template": batch}}},
        }),
        json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "long"}, "spec": {"template": batch}}),
    ]);
    let file = world.folder.join("workloads.json");
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    std::fs::write(&file, list.to_string()).expect("the folder is writable");
    world.kubectl(&["create", "-n", &world.namespace("foo"), "-f", &file.display().to_string()]);
}

fn template(name: &str) -> Value {
    let locked = json!({
        "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": true,
        "seccompProfile": {"type": "RuntimeDefault"},
    });
    json!({
        "metadata": {"labels": {"app": name}},
        "spec": {"containers": [{"name": "c", "image": "example.org/i", "securityContext": locked}]},
    })
}

#[test]
fn a_suspension_ends_pods_with_a_grace_of_years_and_pods_of_an_unmanaged_job() {
    let mut world = World::new("lastpods");
    world.tool("foo", 62_091, &[]);
    assert_eq!(world.cycle().exit_code(), 0);
    let namespace = world.namespace("foo");
    world.servers.cluster.wait_for_pods(&namespace);
    let create =
        |object: &Value| world.servers.cluster.run(&["create", "-n", &namespace, "-f", "-"], &object.to_string());
    let mut endless = template("x");
    endless["spec"]["restartPolicy"] = json!("Never");
    endless["spec"]["terminationGracePeriodSeconds"] = json!(315_360_000);
    create(&json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "nobodys"},
        "spec": {"managedBy": "example.com/nobody", "template": endless}}));
    let uid = world.kubectl(&["get", "job", "nobodys", "-n", &namespace, "-o", "jsonpath={.metadata.uid}"]);
    let owner = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "nobodys", "uid": uid, "controller": true});
    for (name, owners) in [("ending", json!([])), ("followed", json!([owner]))] {
        let labels = json!({"batch.kubernetes.io/controller-uid": uid});
        create(&json!({"apiVersion": "v1", "kind": "Pod", "spec": endless["spec"],
            "metadata": {"name": name, "labels": labels, "ownerReferences": owners}}));
        // The API server removes a pod without a node at once, so this one gets a node.
        let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
            "target": {"apiVersion": "v1", "kind": "Node", "name": "nowhere"}});
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}/binding");
        world.servers.cluster.run(&["create", "--raw", &path, "-f", "-"], &binding.to_string());
    }
    world.kubectl(&["delete", "pod", "ending", "-n", &namespace, "--wait=false"]);

    Servers::shared().slapd.modify_ldif(&disable_ldif(&tool_account_dn(&world.base, "foo")));
    assert_eq!(world.cycle().exit_code(), 0);
    let pods = world.kubectl(&["get", "pods", "-n", &namespace, "-o", "json"]);
    let pods: Value = serde_json::from_str(&pods).expect("kubectl prints JSON");
    for pod in pods["items"].as_array().expect("kubectl prints a list") {
        let seconds = pod["metadata"]["deletionGracePeriodSeconds"].as_i64();
        assert!(seconds.is_some_and(|seconds| seconds <= 30), "{}: {seconds:?}", pod["metadata"]["name"]);
    }
}
