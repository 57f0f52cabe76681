//! Exceptions from admission rules: from the order, through the seal, to their end.

use bursar::contract::exception::ExceptedRule;
use bursar::daemon;
use bursar::identity::AccountKind;
use bursar::orders::request::{ExceptionSet, OrderRequest, Target};
use jiff::SignedDuration;
use serde_json::Value;

use crate::world::{World, all_is_well, text};

/// Returns the exceptions and the seal in the namespace of tool foo.
fn sealed(world: &World) -> (String, String) {
    let annotation = |name: &str| {
        let path = format!("jsonpath={{.metadata.annotations.bursar\\.dev/{name}}}");
        world.kubectl(&["get", "namespace", &world.namespace("foo"), "-o", &path])
    };
    (annotation("exceptions"), annotation("seal"))
}

#[test]
fn an_exception_is_sealed_at_once_and_ends_after_proved_time() {
    let mut world = World::new("excepted");
    world.tool("foo", 62_561, &[]);
    world.cycle();
    let (none, before) = sealed(&world);
    assert_eq!(none, "");
    let target =
        Target { kind: AccountKind::Tool, name: "foo".to_owned(), reason: None, ticket: Some("T1".to_owned()) };
    let until = daemon::now() + SignedDuration::from_hours(2);
    let rules = vec![ExceptedRule::Volumes, ExceptedRule::Images];
    let order = OrderRequest::ExceptionSet(ExceptionSet { target, rules, until, cluster: None });
    all_is_well(&world.order(&order).expect("the order is accepted"));
    let (given, after) = sealed(&world);
    assert_eq!(given, "images,volumes");
    assert_ne!(before, after);
    world.idle_cycle();

    // If the clock jumps, or the daemon was off, at most an hour is proved.
    world.stop();
    world.clock = || daemon::now() + SignedDuration::from_hours(50);
    world.cycle();
    assert_eq!(sealed(&world).0, "images,volumes");
    world.stop();
    world.clock = || daemon::now() + SignedDuration::from_hours(51);
    world.cycle();
    assert_eq!(sealed(&world), (String::new(), before));
    let ended = world.rows("SELECT account, ticket FROM history WHERE action = 'exception ended'");
    assert_eq!((ended.len(), &ended[0]["account"], &ended[0]["ticket"]), (2, &"tool:foo".into(), &"T1".into()));
    assert!(world.rows("SELECT * FROM exceptions").is_empty());
}

#[test]
fn the_command_sets_lists_and_unsets_exceptions() {
    let mut world = World::new("exccli");
    world.tool("foo", 62_562, &[]);
    world.cycle();
    world.stop();
    let run = |world: &World, arguments: &str, exit: i32| {
        let output = world.run(&arguments.split_whitespace().collect::<Vec<_>>());
        assert_eq!(output.status.code(), Some(exit), "{arguments}: {}", text(&output));
        text(&output)
    };
    run(&world, "exception set tool foo images --until 2099-01-01 --ticket T123", 0);
    for wrong in [
        "uid --until 2099-01-01 --ticket T1",
        "services --until 2099-01-01 --ticket T1",
        "images --ticket T1",
        "images --until 2099-01-01",
        "images --until 2001-01-01 --ticket T1",
        "images --until 2099-01-01 --ticket T1 --cluster nowhere",
    ] {
        run(&world, &format!("exception set tool foo {wrong}"), 64);
    }
    run(&world, "exception set tool nobody images --until 2099-01-01 --ticket T1", 4);
    run(&world, "exception unset tool foo volumes", 1);
    let listed: Value = serde_json::from_str(&run(&world, "--json exception list", 0)).expect("bursar prints JSON");
    assert_eq!((&listed[0]["account"], &listed[0]["rule"]), (&"tool:foo".into(), &"images".into()));
    assert_eq!((&listed[0]["ticket"], &listed[0]["until"]), (&"T123".into(), &"2099-01-01T00:00:00Z".into()));
    assert!(run(&world, "exception list tool foo", 0).contains("T123"));
    assert!(run(&world, "why tool foo", 0).contains("excepted from rule images until 2099-01-01 (T123)"));
    assert!(run(&world, "show tool foo", 0).contains("T123"));
    world.cycle();
    assert_eq!(sealed(&world).0, "images");
    world.stop();
    run(&world, "exception unset tool foo images --reason done", 0);
    assert!(run(&world, "exception list", 0).contains("no exceptions"));
    let history = run(&world, "history tool foo", 0);
    assert!(history.contains("exception set") && history.contains("exception unset"), "{history}");
    world.cycle();
    assert_eq!(sealed(&world).0, "");
}
