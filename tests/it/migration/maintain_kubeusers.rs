//! docs/migration/maintain-kubeusers.md in a cluster like Toolforge's.

use std::fs;
use std::path::{Path, PathBuf};

use bursar_testkit::control_plane::ControlPlaneOptions;
use bursar_testkit::ready::{DEADLINE, wait_for};
use serde_json::{Value, json};

use super::{Client, Page, amounts, binding, certificate, deploy, file_at_home, identity, kubeconfig, make, role, who};
use crate::daemon::Daemon;
use crate::quiet::own_servers;
use crate::runbooks::follow;
use crate::world::{World, stderr};

const PAGE: &str = include_str!("../../../docs/migration/maintain-kubeusers.md");
const PODS: &[&str] = &["get", "pods"];

/// Returns the quota that every tool got, with the amounts in `raised` replaced.
fn quota(tool: &str, raised: &Value) -> Value {
    let mut hard = json!({
        "requests.cpu": "2", "requests.memory": "6Gi", "limits.cpu": "2", "limits.memory": "8Gi", "pods": "4",
        "services": "1", "services.nodeports": "0", "replicationcontrollers": "1", "secrets": "10",
        "configmaps": "10", "persistentvolumeclaims": "3",
    });
    for (resource, amount) in raised.as_object().expect("the value is an object") {
        hard[resource] = amount.clone();
    }
    let name = format!("tool-{tool}");
    json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name, "namespace": name},
        "spec": {"hard": hard},
    })
}

/// Creates what maintain-kubeusers made for a tool in the cluster.
fn in_the_cluster(world: &World, tool: &str, raised: &Value) {
    let name = format!("tool-{tool}");
    let labels = json!({"name": name, "tenancy": "tool"});
    let limits = json!([{
        "type": "Container", "default": {"cpu": "500m", "memory": "512Mi"},
        "defaultRequest": {"cpu": "150m", "memory": "256Mi"}, "max": {"cpu": "1", "memory": "4Gi"},
        "min": {"cpu": "50m", "memory": "100Mi"},
    }]);
    make(
        world,
        &[
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}),
            quota(tool, raised),
            json!({
                "apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": name, "namespace": name},
                "spec": {"limits": limits},
            }),
            binding(&name, &format!("{tool}-tool-binding"), "tools-user", ("User", tool)),
            json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": "maintain-kubeusers", "namespace": name},
                "data": {"status": "user created: 2026-01-02T03:04:05", "expires": "2027-01-02T03:04:05"},
            }),
        ],
    );
    deploy(world, &name);
}

/// Writes what maintain-kubeusers wrote in a home: certificate and key in files, and a context with the cluster's name.
fn in_the_home(world: &World, home: &Path, folder: &str, name: &str, namespace: &str, group: &str) -> PathBuf {
    let identity = certificate(world, name, group);
    let files = [("client.crt", identity.certificate), ("client.key", identity.key)];
    let files = files.map(|(file, text)| file_at_home(home, &format!("{folder}/{file}"), &text));
    let user = json!({"client-certificate": files[0], "client-key": files[1]});
    let config = kubeconfig(world, "test", namespace, (&format!("tf-{name}"), user));
    file_at_home(home, ".kube/config", &config.to_string())
}

fn toolforge(world: &World) {
    let everything = ["pods", "pods/log", "configmaps", "services", "deployments"];
    make(
        world,
        &[
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "maintain-kubeusers"}}),
            role("tools-user", &everything, &["get", "list", "watch", "create", "update", "delete"]),
            json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": "maintain-kubeusers", "namespace": "maintain-kubeusers"},
                "data": {"dana": "2027-01-02T03:04:05"},
            }),
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
                "metadata": {"name": "dana-view-binding"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
                "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "dana"}],
            }),
        ],
    );
    world.kubectl(&["create", "deployment", "maintain-kubeusers", "--image=x", "-n", "maintain-kubeusers"]);
    world.tool("foo", 61_001, &[]);
    world.tool("bar", 61_002, &[]);
    world.tool("new", 61_003, &[]);
    world.person("dana", 61_004);
    world.group("k8s-admins", &["dana"]);
    in_the_cluster(world, "foo", &json!({}));
    in_the_cluster(world, "bar", &json!({"limits.cpu": "6", "pods": "12"}));
    // A tool that was deleted in the directory long ago.
    in_the_cluster(world, "gone", &json!({}));
    for tool in ["foo", "bar"] {
        in_the_home(world, &world.home(tool), ".toolskube", tool, &format!("tool-{tool}"), "toolforge");
    }
}

#[test]
fn tools_work_at_every_moment_and_keep_what_they_have() {
    let servers = own_servers(&ControlPlaneOptions::default());
    let audit = servers.cluster.audit_log.clone().expect("the cluster writes an audit log").display().to_string();
    let words = [
        ("--cluster toolforge", "--cluster test"),
        ("set-context toolforge", "set-context test"),
        ("--user=bursar-toolforge", "--user=bursar-test"),
        ("[\"toolforge\"]", "[\"test\"]"),
        ("/var/log/kubernetes/audit.log", audit.as_str()),
    ];
    let (mut world, mut page) = Page::open(&servers, "mku", PAGE, &words);
    toolforge(&world);
    let admin_home = world.folder.join("homes/home/dana");
    let admin = in_the_home(&world, &admin_home, ".admkube", "dana", "default", "admins");
    let tools = ["foo", "bar"].map(|tool| world.kubeconfig(tool));
    let copy = world.folder.join("copy");
    fs::copy(&tools[0], &copy).expect("the file can be copied");
    wait_for("the old certificates work", DEADLINE, || (world.works(&copy) && world.works(&tools[1])).then_some(()));
    let namespaces = ["tool-foo", "tool-bar", "tool-gone"];
    let before = namespaces.map(|namespace| identity(&world, namespace));
    let quotas = ["foo", "bar"].map(|tool| amounts(&world, &format!("tool-{tool}"), &format!("tool-{tool}")));
    let at_home = tools.each_ref().map(|kubeconfig| Client::start(&world, kubeconfig, PODS));
    let with_a_copy = Client::start(&world, &copy, PODS);
    let admins = Client::start(&world, &admin, &["get", "namespaces"]);

    page.done(&world);
    world.restart_homed(&["--take-over", "test"]);
    page.done(&world);
    let daemon = Daemon::ready(&world);
    page.ends(&world, 1);
    wait_for("only the foreign namespaces fail", DEADLINE, || {
        follow(&world, "bursar sync");
        let (_, said) = follow(&world, "bursar status");
        let fails: Vec<_> = said.lines().filter(|line| line.starts_with("fails: ")).collect();
        (fails.len() == 2 && fails.iter().all(|line| line.contains("`bursar adopt namespace tool-"))).then_some(())
    });
    assert_eq!(who(&world, &admin, &[]), "user:dana");
    assert_eq!(tools.each_ref().map(|kubeconfig| who(&world, kubeconfig, &[])), ["foo", "bar"]);

    page.done(&world);
    let given = world.rows("SELECT DISTINCT a.name FROM quota_override q JOIN account a ON a.id = q.account_id");
    assert!(given.len() == 1 && given[0]["name"] == "bar", "{given:?}");
    let said = page.done(&world);
    assert!(said.contains("tool:foo"), "{said}");
    assert_eq!(who(&world, &tools[0], &[]), "tool:foo");
    page.done(&world);
    assert_eq!(who(&world, &tools[0], &[]), "foo", "the old context is in use again");
    page.done(&world);
    assert_eq!(who(&world, &tools[0], &[]), "tool:foo", "the new context is in use again");
    let said = page.ends(&world, 4);
    assert!(said.contains("no tool \"gone\""), "{said}");
    page.done(&world);
    assert_eq!(who(&world, &tools[1], &[]), "tool:bar");
    assert_eq!(["foo", "bar"].map(|tool| amounts(&world, &format!("tool-{tool}"), "bursar")), quotas);
    assert!(world.works(&world.kubeconfig("new")), "a tool that only Bursar knows works too");

    let said = page.done(&world);
    assert!(
        said.lines().any(|line| line.trim_start().ends_with(" foo")),
        "the audit log shows the copy that is still in use: {said}"
    );
    with_a_copy.end();
    page.done(&world);
    wait_for("old certificates are refused", DEADLINE, || {
        stderr(&world.kubectl_with(&copy, PODS)).contains("Forbidden").then_some(())
    });
    page.done(&world);
    world.restart_homed(&[]);
    page.done(&world);
    page.ended();

    admins.end();
    at_home.into_iter().for_each(Client::end);
    assert_eq!(namespaces.map(|namespace| identity(&world, namespace)), before);
    for namespace in ["tool-foo", "tool-bar"] {
        let left = world.kubectl(&["get", "quota,limits,rolebindings,configmaps", "-n", namespace, "-o", "name"]);
        let theirs = |line: &&str| !line.contains("/bursar") && !line.contains("kube-root-ca");
        assert_eq!(left.lines().filter(theirs).count(), 0, "{left}");
    }
    let file = fs::read_to_string(&tools[0]).expect("the kubeconfig is readable");
    assert!(!file.contains("tf-foo") && file.contains("bursar-test"), "{file}");
    assert!(!world.home("foo").join(".toolskube/client.key").exists());
    daemon.stop();
}
