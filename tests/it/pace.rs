//! A change of the policy in a real cluster reaches one tenant first, then a limited number in each cycle, and no
//! further tenant while the change fails.

use std::fs;

use bursar::control::api::CycleReport;
use bursar_testkit::ready::{DEADLINE, wait_for};

use crate::world::{World, all_is_well};

const TOOLS: [&str; 5] = ["ta", "tb", "tc", "td", "te"];

fn site(name: &str, first_uid: u32) -> World {
    let mut world = World::with(name, "\n[limits]\nchange_per_cycle = { count = 3 }\n");
    for (uid, tool) in (first_uid..).zip(TOOLS) {
        world.tool(tool, uid, &[]);
    }
    all_is_well(&world.cycle());
    world
}

fn replace(world: &mut World, from: &str, to: &str) {
    let config = fs::read_to_string(world.config()).expect("the world has a configuration");
    assert!(config.contains(from), "{config}");
    fs::write(world.config(), config.replace(from, to)).expect("the folder is writable");
    world.stop();
}

/// Returns how many tools have a quota with this many pods.
fn with_pods(world: &World, pods: &str) -> usize {
    let of = |tool: &&str| {
        let path = ["get", "resourcequota", "bursar", "-n", &world.namespace(tool), "-o", "jsonpath={.spec.hard.pods}"];
        world.kubectl(&path) == pods
    };
    TOOLS.iter().filter(|tool| of(tool)).count()
}

fn progress(report: &CycleReport) -> Vec<(u64, u64)> {
    report.pace.iter().map(|progress| (progress.done, progress.waiting)).collect()
}

#[test]
fn a_changed_class_reaches_one_tenant_first_then_a_limited_number_per_cycle() {
    let mut world = site("paced", 62_601);
    replace(&mut world, "pods = \"16\"", "pods = \"24\"");
    let plan = world.plan();
    assert!(plan.text.contains("pods 16 → 24"), "{}", plan.text);
    assert!(plan.text.contains("4 of 5 tenants wait for later cycles"), "{}", plan.text);
    assert_eq!(progress(&world.cycle()), [(1, 4)]);
    assert_eq!(with_pods(&world, "24"), 1);
    // A waiting tenant is still repaired, and a new tenant does not wait.
    let namespace = world.namespace("te");
    world.kubectl(&["delete", "rolebinding", "bursar-bursar-tenant", "-n", &namespace]);
    world.wait_for_drift(&["tool te", "role binding"]);
    world.tool("new", 62_609, &[]);
    assert_eq!(progress(&world.cycle()), [(4, 1)]);
    assert_eq!(with_pods(&world, "24"), 4);
    assert!(world.kubectl_as_tool("te", &["get", "pods"]).status.success());
    assert!(world.kubectl_as_tool("new", &["get", "pods"]).status.success());
    assert_eq!(progress(&world.cycle()), [(5, 0)]);
    assert_eq!(with_pods(&world, "24"), 5);
    assert!(world.cycle().pace.is_empty());
    let told = world.rows("SELECT action FROM history WHERE action LIKE 'policy change %' ORDER BY at");
    assert_eq!(
        told.iter().map(|row| &row["action"]).collect::<Vec<_>>(),
        ["policy change begun", "policy change done"]
    );
    // A check of a delivery counts as a change, but not as an action.
    wait_for("a cycle has nothing to do", DEADLINE, || {
        let report = world.cycle();
        assert_eq!((report.exit_code(), report.actions), (0, 0), "{report:#?}");
        (report.changed == 0).then_some(())
    });
}

#[test]
fn a_change_that_fails_for_the_first_tenant_reaches_nobody_else() {
    let mut world = site("stopped", 62_611);
    // The daemon may not bind a role that the configuration did not name when `init` ran.
    replace(&mut world, "roles        = [\"bursar-tenant\"]", "roles        = [\"bursar-tenant\", \"admin\"]");
    let report = world.cycle();
    let failing: Vec<_> = report.failing.iter().map(|failing| failing.account.to_string()).collect();
    assert_eq!(failing, ["tool:ta"], "{report:#?}");
    for _ in 0..2 {
        let report = world.cycle();
        assert_eq!(report.failing.len(), 1, "{report:#?}");
        assert_eq!(report.pace[0].stopped_by.len(), 1, "{report:#?}");
    }
    for tool in TOOLS {
        assert!(world.kubectl_as_tool(tool, &["get", "pods"]).status.success(), "{tool} keeps its access");
    }
    replace(&mut world, "roles        = [\"bursar-tenant\", \"admin\"]", "roles        = [\"bursar-tenant\"]");
    wait_for("nothing fails and nothing waits", DEADLINE, || {
        let report = world.cycle();
        (report.failing.is_empty() && report.pace.is_empty()).then_some(())
    });
}
