//! Quota overrides in a real cluster: they are set, end, are adopted, are refused, or are below what is in use.

use std::fs;

use bursar::daemon;
use bursar::desired::quota::without_default;
use bursar::identity::AccountKind;
use bursar::orders::request::{OrderRequest, QuotaSet, QuotaUnset, Target};
use bursar_testkit::ready::{DEADLINE, wait_for};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::world::{World, all_is_well, text};

fn target(ticket: Option<&str>) -> Target {
    let (name, ticket) = ("foo".to_owned(), ticket.map(str::to_owned));
    Target { kind: AccountKind::Tool, name, reason: None, ticket }
}

fn set(amount: &str, until: Option<Timestamp>) -> OrderRequest {
    let (resource, amount) = amount.split_once('=').expect("the test gives a resource and an amount");
    OrderRequest::QuotaSet(QuotaSet {
        target: target(Some("T123")),
        amounts: [(resource.to_owned(), amount.to_owned())].into(),
        until,
        cluster: None,
    })
}

fn unset(resource: &str) -> OrderRequest {
    OrderRequest::QuotaUnset(QuotaUnset { target: target(None), resources: vec![resource.to_owned()], cluster: None })
}

/// Returns `spec.hard` of the quota in the cluster.
fn hard(world: &World) -> Value {
    let json = ["get", "resourcequota", "bursar", "-n", &world.namespace("foo"), "-o", "jsonpath={.spec.hard}"];
    serde_json::from_str(&world.kubectl(&json)).expect("kubectl prints JSON")
}

/// Adds a line to the class of tools.
fn configure(world: &mut World, line: &str) {
    let config = fs::read_to_string(world.config()).expect("the world has a configuration");
    fs::write(world.config(), config.replace("[class.tool]\n", &format!("[class.tool]\n{line}\n")))
        .expect("the folder is writable");
    world.stop();
}

fn edit(world: &World, patch: &str) {
    world.kubectl(&["patch", "resourcequota", "bursar", "-n", &world.namespace("foo"), "--type=merge", "-p", patch]);
}

#[test]
fn an_override_reaches_the_cluster_at_once_and_ends_by_itself() {
    let mut world = World::new("given");
    world.tool("foo", 62_501, &[]);
    world.cycle();
    let until = daemon::now() + SignedDuration::from_hours(1);
    all_is_well(&world.order(&set("pods=32", Some(until))).expect("the order is accepted"));
    world.order(&set("limits.cpu=8", None)).expect("the order is accepted");
    assert_eq!((&hard(&world)["pods"], &hard(&world)["limits.cpu"]), (&"32".into(), &"8".into()));
    let row = &world.rows("SELECT * FROM quotas WHERE resource = 'pods'")[0];
    assert_eq!((&row["amount"], &row["override_ticket"]), (&"32".into(), &"T123".into()));
    assert_eq!(row["override_until"], format!("{until:.0}"));
    world.idle_cycle();

    world.stop();
    world.clock = || daemon::now() + SignedDuration::from_hours(2);
    let plan = world.plan();
    assert!(plan.text.contains("pods 32 → 16 (override T123 ended)"), "{}", plan.text);
    world.cycle();
    assert_eq!((&hard(&world)["pods"], &hard(&world)["limits.cpu"]), (&"16".into(), &"8".into()));
    let ended = world.rows("SELECT account, ticket FROM history WHERE action = 'quota override ended'");
    assert_eq!((&ended[0]["account"], &ended[0]["ticket"]), (&"tool:foo".into(), &"T123".into()));
    assert_eq!(world.rows("SELECT resource FROM quota_override").len(), 1);
    world.order(&unset("limits.cpu")).expect("the order is accepted");
    assert_eq!(hard(&world)["limits.cpu"], Value::Null);
    world.idle_cycle();
}

#[test]
fn a_locked_resource_cannot_be_overridden() {
    let mut world = World::new("locked");
    configure(&mut world, "quota_locked = [\"services.nodeports\"]");
    world.tool("foo", 62_511, &[]);
    world.cycle();
    let refusal = world.order(&set("services.nodeports=5", None)).expect_err("the resource is locked");
    assert_eq!(refusal.exit_code, 64);
    assert!(refusal.text.contains("quota_locked"), "{}", refusal.text);
    assert_eq!(hard(&world)["services.nodeports"], "0");
}

#[test]
fn an_edited_quota_becomes_an_override_if_the_class_adopts_edits() {
    let mut world = World::new("adopting");
    configure(&mut world, "drift = { quota = \"adopt\" }\nquota_locked = [\"services.nodeports\"]");
    world.tool("foo", 62_521, &[]);
    world.cycle();
    world.idle_cycle();
    edit(&world, r#"{"spec":{"hard":{"pods":"20","limits.cpu":"4","services.nodeports":"3"}}}"#);
    world.wait_for_drift(&["pods 16 → 20 becomes an override"]);
    wait_for("a cycle changes nothing", DEADLINE, || (world.cycle().changed == 0).then_some(()));
    let there = hard(&world);
    assert_eq!((&there["pods"], &there["limits.cpu"]), (&"20".into(), &"4".into()));
    assert_eq!(there["services.nodeports"], "0", "a locked amount is restored");
    let rows = world.rows("SELECT resource, amount, note ->> 'actor' AS actor FROM quota_override ORDER BY 1");
    assert_eq!((rows.len(), &rows[1]["amount"], &rows[1]["actor"]), (2, &"20".into(), &"unknown".into()));
    let told = world.rows("SELECT actor, reason FROM history WHERE action = 'quota override adopted'");
    assert!(told[0]["reason"].as_str().is_some_and(|reason| reason.contains("kubectl")), "{told:?}");
    world.order(&unset("pods")).expect("the order is accepted");
    assert_eq!(hard(&world)["pods"], "16");
    world.idle_cycle();
}

#[test]
fn an_edited_quota_stays_and_is_shown_if_the_class_says_report() {
    let mut world = World::new("reporting");
    configure(&mut world, "drift = { quota = \"report\" }");
    world.tool("foo", 62_531, &[]);
    world.cycle();
    edit(&world, r#"{"spec":{"hard":{"pods":"20"}}}"#);
    world.wait_for_drift(&["its class has drift = report"]);
    world.idle_cycle();
    assert_eq!(hard(&world)["pods"], "20");
    assert!(world.rows("SELECT resource FROM quota_override").is_empty());
}

#[test]
fn a_quota_below_what_is_in_use_is_set_and_shown() {
    let mut world = World::new("tight");
    world.tool("foo", 62_541, &[]);
    world.cycle();
    world.order(&set("configmaps=5", None)).expect("the order is accepted");
    let namespace = world.namespace("foo");
    // Every namespace has one config map: `kube-root-ca.crt`.
    wait_for("the API server counts the config map", DEADLINE, || {
        let used = ["get", "resourcequota", "bursar", "-n", &namespace, "-o", "jsonpath={.status.used.configmaps}"];
        (world.kubectl(&used) == "1").then_some(())
    });
    let over = wait_for("the daemon reports the exceeded quota", DEADLINE, || {
        let report = world.order(&set("configmaps=0", None)).expect("the order is accepted");
        report.over_quota.into_iter().next()
    });
    assert_eq!((over.resource.as_str(), over.amount.as_str(), over.used.as_str()), ("configmaps", "0", "1"));
    assert_eq!(hard(&world)["configmaps"], "0");
    assert!(world.plan().text.contains("below the 1 in use"), "{}", world.plan().text);
}

/// Runs `bursar` while no daemon runs.
fn bursar(world: &World, arguments: &str) -> (Option<i32>, String) {
    let output = world.run(&arguments.split_whitespace().collect::<Vec<_>>());
    (output.status.code(), text(&output))
}

#[test]
fn quota_commands_set_list_import_and_unset() {
    let mut world = World::new("typed");
    world.tool("foo", 62_551, &[]);
    world.tool("bar", 62_552, &[]);
    world.cycle();
    world.stop();
    let run = |world: &World, arguments: &str, exit: i32| {
        let (code, text) = bursar(world, arguments);
        assert_eq!(code, Some(exit), "{arguments}: {text}");
        text
    };
    run(&world, "quota set tool foo limits.cpu=8 --ticket T123 --until 2099-01-01", 0);
    for wrong in ["pods", "pods=many", "pod=3", "pods=3 --until 2001-01-01", "pods=3 --until soon", ""] {
        run(&world, &format!("quota set tool foo {wrong}"), 64);
    }
    run(&world, "quota set tool nobody pods=3", 4);
    run(&world, "quota unset tool foo pods", 1);
    let listed: Value = serde_json::from_str(&run(&world, "--json quota list", 0)).expect("bursar prints JSON");
    assert_eq!((&listed[0]["account"], &listed[0]["ticket"]), (&"tool:foo".into(), &"T123".into()));
    assert_eq!(listed[0]["until"], "2099-01-01T00:00:00Z");
    assert!(run(&world, "quota list", 0).contains("limits.cpu"));

    let (file, again) = (world.folder.join("quotas"), world.folder.join("quotas.json"));
    fs::write(&file, "# ours\ntool bar pods=32 --ticket T9\n").expect("the folder is writable");
    fs::write(&again, listed.to_string()).expect("the folder is writable");
    run(&world, &format!("quota import {}", file.display()), 0);
    run(&world, &format!("quota import {}", again.display()), 0);
    fs::write(&file, "tool bar pods\n").expect("the folder is writable");
    assert!(run(&world, &format!("quota import {}", file.display()), 64).contains("line 1"));
    assert!(run(&world, "quota list tool bar", 0).contains("T9"));
    assert!(run(&world, "why tool bar", 0).contains("pods 32 instead of 16"));
    world.cycle();
    assert_eq!(hard(&world)["limits.cpu"], "8");
    world.stop();
    assert!(run(&world, "show tool foo", 0).contains("T123"));
    run(&world, "quota unset tool foo limits.cpu --reason done", 0);
    let history = run(&world, "history tool foo", 0);
    assert!(history.contains("quota override set") && history.contains("quota override unset"), "{history}");
    world.cycle();
    assert_eq!(hard(&world)["limits.cpu"], Value::Null);
}

#[test]
fn the_api_server_refuses_a_plain_pod_by_the_resources_without_a_default() {
    const RESOURCES: [&str; 4] = ["limits.cpu", "limits.memory", "requests.cpu", "requests.memory"];
    let world = World::new("traps");
    let mut class = world.settings().policy.classes["tool"].clone();
    let [cpu, memory] = ["cpu", "memory"].map(|resource| json!({resource: "1Mi"}));
    let ranges = [
        None,
        Some(json!([{"type": "Container", "default": memory, "defaultRequest": cpu}])),
        Some(json!([{"type": "Container", "max": memory, "min": cpu}])),
        Some(json!([{"type": "Container", "default": {"cpu": "1", "memory": "1Mi"}}])),
        Some(json!([{"type": "PersistentVolumeClaim", "max": {"storage": "1Gi"}}])),
    ];
    for (number, limits) in ranges.into_iter().enumerate() {
        let namespace = &format!("traps-{number}");
        world.kubectl(&["create", "namespace", namespace]);
        if let Some(limits) = &limits {
            let range = json!({
                "apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "defaults", "namespace": namespace},
                "spec": {"limits": limits},
            });
            world.servers.cluster.run(&["create", "-f", "-"], &range.to_string());
        }
        let hard = RESOURCES.map(|resource| format!("{resource}=4Gi")).join(",");
        world.kubectl(&["create", "quota", "all", &format!("--hard={hard}"), "-n", namespace]);
        class.limit_range = limits;
        let expected = without_default(&class, RESOURCES);
        // A controller puts the quota in force, and makes the service account, a moment after they exist.
        wait_for(&format!("a plain pod in {namespace} lacks exactly {expected:?}"), DEADLINE, || {
            let admin = &world.servers.cluster.admin_kubeconfig;
            let pod = ["run", "plain", "--image=registry.example.org/plain", "--dry-run=server", "-n", namespace];
            let tried = world.kubectl_with(admin, &pod);
            let said = String::from_utf8_lossy(&tried.stderr).into_owned();
            let lacks: Vec<&str> =
                RESOURCES.into_iter().filter(|resource| said.contains(&format!("{resource} for: plain"))).collect();
            let in_force = world.kubectl(&["get", "quota", "all", "-n", namespace, "-o", "jsonpath={.status.hard}"]);
            (!in_force.is_empty() && tried.status.success() == expected.is_empty() && lacks == expected).then_some(())
        });
    }
}
