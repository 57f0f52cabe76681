//! Objects with Bursar's label that the ledger does not know: the inventory finds them, `plan` and `doctor` report
//! them, and bindings among them are removed within the limits.

use bursar::control::api::CycleReport;
use bursar::daemon;
use bursar_testkit::control_plane::ControlPlaneOptions;
use bursar_testkit::ldif::{person_dn, tool_account_dn};
use bursar_testkit::ready::{DEADLINE, wait_for};
use jiff::{SignedDuration, Timestamp};

use crate::quiet::own_servers;
use crate::rollback::{restore, snapshot, takeover};
use crate::world::{World, all_is_well, stderr};

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
    world.cycles_until("the binding is removed", |world| world.kubectl(&binding).is_empty());
    wait_for("nothing is unknown", DEADLINE, || world.plan().text.contains("0 to change").then_some(()));
    assert!(!world.plan().text.contains("bursar-stray"));
    a_restored_ledger_removes_access_that_it_does_not_know(&mut world);
}

fn in_25_hours() -> Timestamp {
    daemon::now() + SignedDuration::from_hours(25)
}

/// The ledger is restored from a backup that is older than bar and carol, who have left the directory in the meantime.
fn a_restored_ledger_removes_access_that_it_does_not_know(world: &mut World) {
    world.stop();
    let backup = snapshot(world);
    world.tool("bar", 62_852, &[]);
    world.person("carol", 62_853);
    world.group("k8s-admins", &["carol"]);
    all_is_well(&world.cycle());
    world.stop();
    let homes = [world.home("bar"), world.folder.join("homes/home/carol")];
    let kubeconfigs = homes.map(|home| home.join(".kube/config"));
    let work = |world: &World| kubeconfigs.each_ref().map(|kubeconfig| world.works(kubeconfig));
    assert_eq!(work(world), [true; 2]);
    let group = format!("cn=k8s-admins,ou=groups,{}", world.base);
    for dn in [tool_account_dn(&world.base, "bar"), person_dn(&world.base, "carol"), group] {
        world.servers.slapd.delete(&dn);
    }
    // The seal of bar's namespace would show `takeover` the account. Carol has no namespace.
    world.kubectl(&["annotate", "namespace", &world.namespace("bar"), "bursar.dev/seal-"]);
    // No class could have made this binding, so another program may need it.
    world.kubectl(&["create", "namespace", "other-baz"]);
    stray(world, "other-baz");
    restore(world, &backup);
    let output = takeover(world);
    assert!(output.status.success(), "{}", stderr(&output));
    let later = |report: &CycleReport| report.unknown.iter().filter(|it| it.what.contains("is removed after")).count();
    wait_for("the bindings of bar and carol are reported", DEADLINE, || (later(&world.cycle()) == 3).then_some(()));
    assert_eq!(work(world), [true; 2], "access stays for 24 hours");
    world.stop();
    world.clock = in_25_hours;
    let plan = world.plan().text;
    assert!(["- tool bar ", "- user carol "].iter().all(|line| plan.contains(line)), "{plan}");
    wait_for("nobody has access that the ledger does not know", DEADLINE, || {
        world.cycle();
        (work(world) == [false; 2]).then_some(())
    });
    let removed = "SELECT DISTINCT account FROM event WHERE action = 'unknown access removed' ORDER BY account";
    let removed: Vec<_> = world.rows(removed).into_iter().map(|row| row["account"].clone()).collect();
    assert_eq!(removed, ["tool:bar", "user:carol"]);
    assert!(world.works(&world.kubeconfig("foo")));
    world.kubectl(&["get", "rolebinding", "bursar-stray", "-n", "other-baz"]);
}
