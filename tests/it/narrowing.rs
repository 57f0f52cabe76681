//! Access is taken away although another mechanism stands in the way: invented controllers, holds, or namespaces that
//! are being deleted.

use bursar::orders::request::OrderRequest;
use bursar_testkit::Servers;
use bursar_testkit::ldif::{disable_ldif, tool_account_dn};
use bursar_testkit::ready::{DEADLINE, poll};

use crate::world::{World, all_is_well, stderr, target};

/// A pod that every Pod Security level allows.
const POD: &str = r#"{"spec": {"containers": [{"name": "p", "image": "example.org/i", "securityContext": {
    "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": true,
    "seccompProfile": {"type": "RuntimeDefault"}}}]}}"#;

#[test]
fn a_suspended_namespace_refuses_all_pods_and_an_invented_controller_is_ignored() {
    let mut world = World::new("nopods");
    world.tool("foo", 62_701, &[]);
    all_is_well(&world.cycle());
    let namespace = world.namespace("foo");
    world.kubectl(&["create", "configmap", "owner", "-n", &namespace]);
    let uid = world.kubectl(&["get", "configmap", "owner", "-n", &namespace, "-o", "jsonpath={.metadata.uid}"]);
    world.kubectl(&["create", "deployment", "web", "--image=example.org/web", "--replicas=2", "-n", &namespace]);
    let owner = format!(
        r#"{{"metadata":{{"ownerReferences":[{{"apiVersion":"v1","kind":"ConfigMap","name":"owner","uid":"{uid}","controller":true}}]}}}}"#
    );
    world.kubectl(&["patch", "deployment", "web", "-n", &namespace, "--type=merge", "-p", &owner]);
    world.order(&OrderRequest::Suspend(target("foo"))).expect("the order is accepted");
    let replicas = ["get", "deployment", "web", "-n", &namespace, "-o", "jsonpath={.spec.replicas}"];
    assert_eq!(world.kubectl(&replicas), "0");

    let admin = &Servers::shared().cluster.admin_kubeconfig;
    let run = ["run", "p", "--image=example.org/i", "-n", &namespace, "--overrides", POD];
    let refused = world.kubectl_with(admin, &run);
    assert!(stderr(&refused).contains("bursar-suspended"), "{}", stderr(&refused));
    // If a user deletes the quota, the daemon creates it again.
    world.kubectl(&["delete", "quota", "bursar-suspended", "-n", &namespace]);
    let again = poll(DEADLINE, || {
        world.cycle();
        !world.kubectl(&["get", "quota", "bursar-suspended", "-n", &namespace, "--ignore-not-found"]).is_empty()
    });
    assert!(again);

    all_is_well(&world.order(&OrderRequest::Resume(target("foo"))).expect("the order is accepted"));
    assert_eq!(world.kubectl(&replicas), "2");
    let runs = poll(DEADLINE, || world.kubectl_with(admin, &run).status.success());
    assert!(runs, "{}", stderr(&world.kubectl_with(admin, &run)));
}

#[test]
fn a_suspension_ends_access_to_a_namespace_that_is_being_deleted() {
    let mut world = World::new("leaving");
    world.tool("foo", 62_711, &[]);
    all_is_well(&world.cycle());
    let namespace = world.namespace("foo");
    // A finalizer keeps the workload, and thereby the namespace.
    world.kubectl(&["create", "deployment", "web", "--image=example.org/web", "--replicas=2", "-n", &namespace]);
    let kept = r#"{"metadata":{"finalizers":["example.org/keep"]}}"#;
    world.kubectl(&["patch", "deployment", "web", "-n", &namespace, "--type=merge", "-p", kept]);
    world.kubectl(&["delete", "namespace", &namespace, "--wait=false"]);
    let phase = ["get", "namespace", &namespace, "-o", "jsonpath={.status.phase}"];
    assert!(poll(DEADLINE, || world.kubectl(&phase) == "Terminating"));
    Servers::shared().slapd.modify_ldif(&disable_ldif(&tool_account_dn(&world.base, "foo")));
    let gone = poll(DEADLINE, || {
        world.cycle();
        let state = world.rows("SELECT state FROM tools")[0]["state"].clone();
        let kubeconfig = std::fs::read_to_string(world.kubeconfig("foo")).unwrap_or_default();
        state == "suspended" && !kubeconfig.contains("client-key")
    });
    assert!(gone, "{:?} {:?}", world.rows("SELECT * FROM failing"), world.plan().text);
    let none = r#"{"metadata":{"finalizers":null}}"#;
    world.kubectl(&["patch", "deployment", "web", "-n", &namespace, "--type=merge", "-p", none]);
}

#[test]
fn a_held_tool_is_revoked_and_suspended_by_order_and_by_nothing_else() {
    let mut world = World::new("heldorder");
    world.tool("foo", 62_721, &[]);
    all_is_well(&world.cycle());
    let stolen = world.steal("foo");
    world.order(&OrderRequest::Hold(target("foo"))).expect("the order is accepted");
    all_is_well(&world.order(&OrderRequest::Revoke(target("foo"))).expect("the order is accepted"));
    let refused = world.kubectl_with(&stolen, &["get", "pods"]);
    assert!(stderr(&refused).contains("Forbidden"), "{}", stderr(&refused));
    assert!(world.kubectl_as_tool("foo", &["get", "pods"]).status.success(), "the replacement is delivered");

    Servers::shared().slapd.modify_ldif(&disable_ldif(&tool_account_dn(&world.base, "foo")));
    world.cycle();
    assert!(
        world.kubectl_as_tool("foo", &["get", "pods"]).status.success(),
        "a mark in the directory waits for the release"
    );
    std::fs::copy(world.kubeconfig("foo"), &stolen).expect("the kubeconfig can be copied");
    world.order(&OrderRequest::Suspend(target("foo"))).expect("the order is accepted");
    let refused = world.kubectl_with(&stolen, &["get", "pods"]);
    assert!(stderr(&refused).contains("Forbidden"), "{}", stderr(&refused));
    assert_eq!(world.rows("SELECT state FROM tools")[0]["state"], "suspended");
}

/// Returns a world with a tool, a copy of its kubeconfig, and the name of the binding that gives it access.
fn with_a_copy(name: &str, uid: u32) -> (World, std::path::PathBuf, String) {
    let mut world = World::new(name);
    world.tool("kept", uid, &[]);
    all_is_well(&world.cycle());
    let stolen = world.steal("kept");
    assert!(world.works(&stolen));
    let binding = world.kubectl(&["get", "rolebindings", "-n", &world.namespace("kept"), "-o", "name"]);
    (world, stolen, binding.trim().to_owned())
}

#[test]
fn a_suspension_removes_a_binding_that_lost_its_label_while_the_daemon_was_stopped() {
    let (mut world, stolen, binding) = with_a_copy("unlabel", 62_728);
    let namespace = world.namespace("kept");
    world.stop();
    world.kubectl(&["label", &binding, "-n", &namespace, "app.kubernetes.io/managed-by-"]);
    Servers::shared().slapd.modify_ldif(&disable_ldif(&tool_account_dn(&world.base, "kept")));
    let gone = poll(DEADLINE, || {
        world.cycle();
        world.kubectl(&["get", "rolebindings", "-n", &namespace, "-o", "name"]).is_empty()
    });
    assert!(gone, "{:?} {:?}", world.rows("SELECT * FROM failing"), world.plan().text);
    let refused = world.kubectl_with(&stolen, &["get", "pods"]);
    assert!(stderr(&refused).contains("Forbidden"), "{}", stderr(&refused));
}

#[test]
fn a_held_tool_whose_binding_lost_its_label_is_revoked() {
    let (mut world, stolen, binding) = with_a_copy("unlabheld", 62_730);
    let namespace = world.namespace("kept");
    world.order(&OrderRequest::Hold(target("kept"))).expect("the order is accepted");
    world.stop();
    world.kubectl(&["label", &binding, "-n", &namespace, "app.kubernetes.io/managed-by-"]);
    world.order(&OrderRequest::Revoke(target("kept"))).expect("the order is accepted");
    let gone = poll(DEADLINE, || {
        world.cycle();
        stderr(&world.kubectl_with(&stolen, &["get", "pods"])).contains("Forbidden")
    });
    assert!(gone, "{:?} {:?}", world.rows("SELECT * FROM failing"), world.plan().text);
    all_is_well(&world.order(&OrderRequest::Release(target("kept"))).expect("the order is accepted"));
    assert!(world.works(&world.kubeconfig("kept")));
    assert!(!world.works(&stolen));
}

#[test]
fn a_suspension_empties_a_binding_that_a_finalizer_keeps() {
    let (mut world, stolen, binding) = with_a_copy("finalize", 62_729);
    let namespace = world.namespace("kept");
    let kept = r#"{"metadata":{"finalizers":["example.org/keep"]}}"#;
    world.kubectl(&["patch", &binding, "-n", &namespace, "--type=merge", "-p", kept]);
    world.kubectl(&["delete", &binding, "-n", &namespace, "--wait=false"]);
    assert!(world.works(&stolen), "RBAC uses the binding until it is gone");
    world.order(&OrderRequest::Suspend(target("kept"))).expect("the order is accepted");
    let refused = world.kubectl_with(&stolen, &["get", "pods"]);
    assert!(stderr(&refused).contains("Forbidden"), "{}", stderr(&refused));
    assert_eq!(world.kubectl(&["get", &binding, "-n", &namespace, "-o", "jsonpath={.subjects}"]), "");
    let none = r#"{"metadata":{"finalizers":null}}"#;
    world.kubectl(&["patch", &binding, "-n", &namespace, "--type=merge", "-p", none]);
}
