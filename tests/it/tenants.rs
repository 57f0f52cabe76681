//! A tenant from its entry in LDAP to the use of the cluster.

use std::os::unix::fs::MetadataExt as _;

use bursar_testkit::ready::{DEADLINE, wait_for};

use crate::world::{World, all_is_well, stderr};

#[test]
fn a_tool_of_the_directory_works_in_its_own_namespace_and_nowhere_else() {
    let mut world = World::new("works");
    world.person("works-alice", 2101);
    world.tool("foo", 61001, &["works-alice"]);
    world.tool("bar", 61002, &[]);
    let report = world.cycle();
    assert_eq!((report.exit_code(), report.failing.len()), (0, 0), "{report:#?}");

    let own = world.kubectl_as_tool("foo", &["get", "pods"]);
    assert!(own.status.success(), "{}", stderr(&own));
    let elsewhere = world.kubectl_as_tool("foo", &["get", "pods", "-n", &world.namespace("bar")]);
    assert!(stderr(&elsewhere).contains("Forbidden"), "{}", stderr(&elsewhere));

    let kinds = "resourcequota,limitrange,networkpolicy,rolebinding,persistentvolumeclaim";
    let there = world.kubectl(&["get", kinds, "-n", &world.namespace("foo"), "-o", "name"]);
    for kind in kinds.split(',') {
        assert!(there.contains(kind), "no {kind} in:\n{there}");
    }
    let file = std::fs::metadata(world.kubeconfig("foo")).expect("the path exists");
    assert_eq!((file.uid(), file.gid(), file.mode() & 0o777), (61001, 61001, 0o600));
}

#[test]
fn a_cycle_with_nothing_to_do_writes_nothing() {
    let mut world = World::new("quiet");
    world.tool("foo", 61101, &[]);
    all_is_well(&world.cycle());
    // Each delivery is checked again after 2 s. That does not count as an action.
    wait_for("a cycle has nothing to do", DEADLINE, || {
        let cycle = world.cycle();
        assert_eq!(cycle.actions, 0, "{cycle:#?}");
        ((cycle.changed, cycle.unchanged) == (0, 1)).then_some(())
    });
}
