//! Objects with Bursar's label that the ledger does not know: the inventory finds them, `plan` and `doctor` report
//! them, and bindings among them are removed within the limits.

use bursar_testkit::control_plane::ControlPlaneOptions;
use bursar_testkit::ready::{DEADLINE, wait_for};

use crate::quiet::own_servers;
use crate::world::{World, all_is_well};

fn stray(world: &World, namespace: &str) {
    let file = world.folder.join("stray.yaml");
    let text = format!(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata:\n  name: bursar-stray\n  namespace: \
         {namespace}\n  labels: {{app.kubernetes.io/managed-by: bursar}}\nroleRef: {{apiGroup: \
         rbac.authorization.k8s.io, kind: ClusterRole, name: view}}\nsubjects:\n- {{apiGroup: \
         rbac.authorization.k8s.io, kind: User, name: mallory}}\n"
    );
    std::fs::write(&file, text).expect("the folder is writable");
    world.kubectl(&["create", "-f", file.to_str().expect("the path is UTF-8")]);
}

#[test]
fn a_binding_with_our_label_that_is_not_in_the_ledger_is_reported_and_removed_within_the_limits() {
    // The test has its own servers. On shared servers, its ledger would not know the objects of other tests.
    let servers = own_servers(&ControlPlaneOptions::default());
    let mut world = World::on(servers, "stray", "\n[limits]\nremove_access_per_cycle = { count = 0 }\n");
    world.tool("foo", 62_851, &[]);
    all_is_well(&world.cycle());
    let namespace = world.namespace("foo");
    stray(&world, &namespace);
    let binding = ["get", "rolebinding", "bursar-stray", "-n", &namespace, "--ignore-not-found", "-o", "name"];
    let told = format!("rolebinding {namespace}/bursar-stray in test carries Bursar's label and is not in the ledger");
    wait_for("the plan reports the binding", DEADLINE, || world.plan().text.contains(&told).then_some(()));
    let report = world.cycle();
    assert_eq!((report.exit_code(), report.unknown.len()), (3, 1), "{report:#?}");
    assert!(!world.kubectl(&binding).is_empty(), "the limit of 0 keeps the binding");
    world.configure("remove_access_per_cycle = { count = 0 }", "remove_access_per_cycle = { count = 1 }");
    world.reload();
    wait_for("the binding is removed", DEADLINE, || {
        world.cycle();
        world.kubectl(&binding).is_empty().then_some(())
    });
    wait_for("nothing is unknown", DEADLINE, || world.plan().text.contains("0 to change").then_some(()));
    assert!(!world.plan().text.contains("bursar-stray"));
}
