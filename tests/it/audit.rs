//! `bursar webhook audit` in a cluster without a webhook: it judges existing objects and writes nothing.

use std::path::Path;
use std::process::{Command, Output};

use bursar_testkit::control_plane::ControlPlaneOptions;
use bursar_testkit::process::run;
use serde_json::{Value, json};

use crate::quiet::{asked_by_all, own_servers};
use crate::world::{World, all_is_well};

const RULES: &str = "\n[class.tool.admission]\nhosts = { mode = \"warn\", allow = [\"{name}.tools.example.org\"] }\n";

fn command(config: &Path, admin: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bursar"));
    command.arg("--config").arg(config).args(["webhook", "audit", "--admin-kubeconfig"]).arg(admin);
    command
}

fn audit(world: &World, config: &Path) -> (Option<i32>, Value) {
    let mut command = command(config, &world.servers.cluster.admin_kubeconfig);
    let Output { status, stdout, stderr } = command.arg("--json").output().expect("bursar is built");
    let said = String::from_utf8_lossy(&stderr).into_owned();
    (status.code(), serde_json::from_slice(&stdout).unwrap_or_else(|_| panic!("{said}")))
}

fn make(world: &World, object: &Value) {
    let mut kubectl = world.servers.cluster.kubectl();
    kubectl.args(["create", "-f", "-"]);
    let made = run(kubectl, &object.to_string());
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

fn pod(uid: u32) -> Value {
    json!({
        "securityContext": {"runAsNonRoot": true, "runAsUser": uid, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{
            "name": "web", "image": "example.org/web",
            "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
        }],
    })
}

#[test]
fn the_audit_judges_existing_objects_and_writes_nothing() {
    let mut world = World::on(own_servers(&ControlPlaneOptions::default()), "auditing", RULES);
    world.tool("foo", 62_901, &[]);
    world.tool("bar", 62_902, &[]);
    all_is_well(&world.cycle());
    let (code, before) = audit(&world, &world.config());
    assert_eq!((code, &before["found"]), (Some(0), &json!([])), "{before:#}");
    assert!(before["not_judged"].as_array().is_some_and(|all| !all.is_empty()));
    assert_eq!(before["off"]["tool"][0], "images");

    let namespace = world.namespace("foo");
    world.servers.cluster.wait_for_pods(&namespace);
    let metadata = |name: &str| json!({"name": name, "namespace": namespace});
    let labels = json!({"app": "web"});
    make(&world, &json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata("other"), "spec": pod(4711)}));
    make(&world, &json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata("plain"), "spec": pod(62_901)}));
    let mut scheduled = pod(0);
    scheduled["nodeName"] = json!("node-1");
    make(
        &world,
        &json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata("root"),
            "spec": {
                "replicas": 0, "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": scheduled},
            },
        }),
    );
    make(
        &world,
        &json!({
            "apiVersion": "v1", "kind": "Service", "metadata": metadata("taker"),
            "spec": {"ports": [{"port": 80}], "externalIPs": ["192.0.2.7"]},
        }),
    );
    make(
        &world,
        &json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": metadata("theft"),
            "spec": {"rules": [{"host": "bar.tools.example.org"}]},
        }),
    );
    // Tenants wrote the owners of these replica sets themselves, and no controller scales them.
    let uid_of = |kind: &str, name: &str| {
        world.kubectl(&["get", kind, name, "-n", &namespace, "-o", "jsonpath={.metadata.uid}"])
    };
    let owner = |api_version: &str, kind: &str, name: &str, uid: String| json!([{"apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "controller": true}]);
    let mine = json!({"app": "mine"});
    for (name, owners) in [
        ("forged", owner("v1", "ConfigMap", "kube-root-ca.crt", uid_of("configmap", "kube-root-ca.crt"))),
        ("unselected", owner("apps/v1", "Deployment", "root", uid_of("deployment", "root"))),
    ] {
        let spec = json!({
            "replicas": 0, "selector": {"matchLabels": mine},
            "template": {"metadata": {"labels": mine}, "spec": pod(0)},
        });
        let metadata = json!({"name": name, "namespace": namespace, "labels": mine, "ownerReferences": owners});
        make(&world, &json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata, "spec": spec}));
    }
    let mark = world.servers.cluster.audit_mark();
    let (code, audited) = audit(&world, &world.config());
    let found: Vec<(&str, &str, &str)> = audited["found"]
        .as_array()
        .expect("the findings are a list")
        .iter()
        .map(|found| {
            assert_eq!((&found["account"], &found["class"]), (&json!("tool:foo"), &json!("tool")), "{found}");
            let text = |key: &str| found[key].as_str().unwrap_or_default();
            (text("object"), text("rule"), text("mode"))
        })
        .collect();
    assert_eq!(code, Some(1));
    let expected = [
        ("deployments/root", "scheduling", "enforce"),
        ("deployments/root", "uid", "enforce"),
        ("ingresses/theft", "hosts", "warn"),
        ("pods/other", "uid", "enforce"),
        ("pods/plain", "filled in", "enforce"),
        ("replicasets/forged", "uid", "enforce"),
        ("replicasets/unselected", "uid", "enforce"),
        ("services/taker", "services", "enforce"),
    ];
    for one in expected {
        assert!(found.contains(&one), "{one:?} is not in {audited:#}");
    }
    // Only requests of this administrator count, because controllers write too.
    let asked: Vec<_> =
        asked_by_all(&world.servers.cluster, mark).into_iter().filter(|request| request.user == "admin").collect();
    assert!(asked.iter().any(|request| request.verb == "list" && request.uri.contains("/ingresses")), "{asked:#?}");
    let written: Vec<_> = asked.iter().filter(|request| !["get", "list"].contains(&request.verb.as_str())).collect();
    assert!(written.is_empty(), "{written:#?}");

    // The audit uses the rules of `--config`, and it names each kind that may not be listed.
    let other = world.folder.join("other.toml");
    let text = std::fs::read_to_string(world.config()).expect("the world has a configuration");
    let text = text.replace("[class.tool.admission]\n", "[class.tool.admission]\nuid = \"audit\"\n");
    std::fs::write(&other, text).expect("the folder is writable");
    let (_, audited) = audit(&world, &other);
    let modes: Vec<&Value> =
        audited["found"].as_array().expect("the findings are a list").iter().filter(|it| it["rule"] == "uid").collect();
    assert!(!modes.is_empty() && modes.iter().all(|it| it["mode"] == "audit"), "{audited:#}");
    let daemon = world.state_dir().join("clusters/test.kubeconfig");
    let output = command(&world.config(), &daemon).output().expect("bursar is built");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.code() == Some(1) && said.contains("! not checked: "), "{said}");
}
