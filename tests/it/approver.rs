//! A cluster whose approver is away for long, is not there yet when the daemon starts, or is told of requests that change.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use bursar::daemon;
use bursar::execute::keypair::{Names, NewKey};
use bursar::identity::AccountKind;
use bursar::orders::request::{OrderRequest, Target};
use bursar_testkit::control_plane::ControlPlaneOptions;
use bursar_testkit::ready::wait_for;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::approver_site::{install, start};
use crate::quiet::own_servers;
use crate::world::{World, all_is_well, stderr};

const DEADLINE: Duration = Duration::from_mins(7);

/// How far the clock of the first test is ahead, in hours.
static AHEAD: AtomicI64 = AtomicI64::new(0);

fn ahead() -> Timestamp {
    daemon::now() + SignedDuration::from_hours(AHEAD.load(Ordering::Relaxed))
}

fn in_24_days() -> Timestamp {
    daemon::now() + SignedDuration::from_hours(24 * 24)
}

fn target(tool: &str) -> Target {
    Target { kind: AccountKind::Tool, name: tool.to_owned(), reason: Some("stolen".to_owned()), ticket: None }
}

fn own_certificate(world: &mut World) -> Option<Timestamp> {
    world.status().clusters.into_values().find_map(|cluster| cluster.own_certificate_until)
}

#[test]
fn an_approver_that_is_away_for_a_day_loses_nothing_and_keeps_no_revocation_waiting() {
    let mut world = World::on(own_servers(&ControlPlaneOptions::default()), "apaway", "");
    for (uid, tool) in (66_801..).zip(["stays", "stolen", "leaves"]) {
        world.tool(tool, uid, &[]);
    }
    all_is_well(&world.cycle());
    let old = |world: &World, tool: &str| world.folder.join(format!("old-{tool}"));
    for tool in ["stays", "stolen", "leaves"] {
        std::fs::copy(world.home(tool).join(".kube/config"), old(&world, tool)).expect("a copy");
    }
    world.stop();
    install(&world);
    world.clock = ahead;
    // Whom the approver keeps waiting for a certificate takes no time from whom a removal is about.
    for (uid, tool) in (66_811..).zip(["newa", "newb", "newc"]) {
        world.tool(tool, uid, &[]);
    }
    world.give(&[OrderRequest::Revoke(target("stolen")), OrderRequest::Suspend(target("leaves"))]);
    let refused = std::thread::scope(|scope| {
        let (stolen, leaves) = (old(&world, "stolen"), old(&world, "leaves"));
        let servers = world.servers.clone();
        let refused = scope.spawn(move || {
            let began = Instant::now();
            wait_for("both are refused", DEADLINE, || {
                let asks = |kubeconfig| servers.cluster.kubectl_as(kubeconfig).args(["get", "pods"]).output();
                let refuses = |kubeconfig| stderr(&asks(kubeconfig).expect("kubectl")).contains("Forbidden");
                (refuses(&stolen) && refuses(&leaves)).then_some(())
            });
            began.elapsed()
        });
        let began = Instant::now();
        let report = world.cycle();
        let (refused, cycle) = (refused.join().expect("refused"), began.elapsed());
        let why = |tool: &str| report.failing.iter().find(|it| it.account.name == tool).map(|it| it.reason.clone());
        for tool in ["stolen", "newa"] {
            let why = why(tool).unwrap_or_else(|| panic!("{tool} is reported: {report:#?}"));
            assert!(why.contains("the approver did not approve"), "{why}");
        }
        println!("refused after {refused:?}; the cycle took {cycle:?}");
        assert!(refused < cycle, "{refused:?} of {cycle:?}");
        refused
    });
    // For an approval 30 s are waited.
    assert!(refused < Duration::from_secs(29), "{refused:?}");

    for _ in 0..24 {
        AHEAD.fetch_add(1, Ordering::Relaxed);
        world.cycle();
        assert!(world.works(&old(&world, "stays")));
    }
    let waiting: Vec<String> = world.status().unfinished.iter().map(ToString::to_string).collect();
    assert!(waiting.iter().any(|one| one.contains("tool:stolen: revoke")), "{waiting:?}");
    assert!(world.metrics().contains("bursar_failing"), "{}", world.metrics());
    assert!(!world.works(&old(&world, "stolen")) && !world.works(&old(&world, "leaves")));

    let _approver = start(&world);
    let has_access = |world: &World, tool: &str| world.works(&world.home(tool).join(".kube/config"));
    wait_for("all that waited is signed", DEADLINE, || {
        AHEAD.fetch_add(1, Ordering::Relaxed);
        let report = world.cycle();
        (report.exit_code() == 0 && ["stolen", "newa", "newb", "newc"].iter().all(|tool| has_access(&world, tool)))
            .then_some(())
    });
    assert!(has_access(&world, "stays") && !world.works(&old(&world, "stolen")) && !has_access(&world, "leaves"));
    assert!(world.status().unfinished.is_empty());
    let left = world.kubectl(&["get", "csr", "-o", "name"]);
    assert_eq!(left, "", "no request is left behind");
}

#[test]
fn a_cold_start_waits_for_no_approver_and_its_own_certificate_comes_with_it() {
    let mut world = World::on(own_servers(&ControlPlaneOptions::default()), "apcold", "");
    world.configure("lifetime = \"7d\"", "lifetime = \"30d\"");
    for (uid, tool) in (66_821..).zip(["foo", "bar"]) {
        world.tool(tool, uid, &[]);
    }
    all_is_well(&world.cycle());
    let before = own_certificate(&mut world).expect("it has one");
    let stolen = world.folder.join("stolen");
    std::fs::copy(world.home("bar").join(".kube/config"), &stolen).expect("a copy");
    world.stop();
    install(&world);

    // Its own certificate is due, and so are those of the tools; nothing that approves runs yet.
    world.clock = in_24_days;
    world.give(&[OrderRequest::Revoke(target("bar"))]);
    let began = Instant::now();
    world.cycle();
    assert!(!world.works(&stolen), "a revocation does not wait");
    println!("the first cycle took {:?}", began.elapsed());
    assert!(world.status().clusters["test"].ready, "{:?}", world.trouble());
    assert_eq!(own_certificate(&mut world), Some(before), "it is still the old one");
    world.stop();

    let _approver = start(&world);
    wait_for("all is renewed", DEADLINE, || {
        let report = world.cycle();
        let renewed = own_certificate(&mut world).is_some_and(|until| until > before);
        if !renewed {
            // Asked for again within the hour, and at every start.
            world.stop();
        }
        (report.exit_code() == 0 && renewed).then_some(())
    });
    assert!(["foo", "bar"].iter().all(|tool| world.works(&world.home(tool).join(".kube/config"))));
    assert!(!world.works(&stolen));
}

#[test]
fn a_request_that_changes_while_it_waits_is_judged_as_it_is_now() {
    let mut world = World::on(own_servers(&ControlPlaneOptions::default()), "apchange", "");
    world.tool("foo", 66_831, &[]);
    all_is_well(&world.cycle());
    world.stop();
    install(&world);
    let _approver = start(&world);

    // As the daemon asks, but for a namespace that the hint does not name and the seal does not match: it waits.
    let generation = world.rows("SELECT generation FROM tools")[0]["generation"].as_u64().expect("a number");
    let key = NewKey::generate().expect("a key");
    let group = format!("bursar:tool:foo#{generation}");
    let organizations = [Some("bursar:tools"), Some(group.as_str())];
    let id = world.rows("SELECT id FROM tools")[0]["id"].as_str().expect("an id").to_owned();
    let pem =
        key.request(Names { common_name: "tool:foo", organizations, serial_number: Some(&id) }).expect("a request");
    let request = json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"name": "changes", "labels": {"app.kubernetes.io/managed-by": "bursar"}},
        "spec": {
            "request": base64::Engine::encode(&base64::engine::general_purpose::STANDARD, pem),
            "usages": ["client auth", "digital signature"], "signerName": "kubernetes.io/kube-apiserver-client",
            "expirationSeconds": 3600,
        },
    });
    let namespace = world.namespace("foo");
    let seal = ["get", "namespace", &namespace, "-o", "jsonpath={.metadata.annotations.bursar\\.dev/seal}"];
    let sealed = world.kubectl(&seal);
    let annotated = |seal: &str| {
        world.kubectl(&["annotate", "namespace", &namespace, "--overwrite", &format!("bursar.dev/seal={seal}")]);
    };
    annotated("none");
    let daemon = world.state_dir().join("clusters/test.kubeconfig");
    let mut create = world.servers.cluster.kubectl_as(&daemon);
    create.args(["create", "-f", "-"]);
    let created = bursar_testkit::process::run(create, &request.to_string());
    assert!(created.status.success(), "{}", stderr(&created));
    let log = || std::fs::read_to_string(world.folder.join("approver.log")).expect("a log");
    wait_for("it waits", DEADLINE, || log().contains("not approved yet").then_some(()));
    // Another version of the request: an approval of the former one would conflict, and it would wait for ever.
    world.kubectl(&["annotate", "csr", "changes", "example.org/changed=yes"]);
    annotated(&sealed);
    wait_for("it is approved", DEADLINE, || {
        let said = world.kubectl(&["get", "csr", "changes", "-o", "jsonpath={.status.conditions[*].type}"]);
        (said == "Approved").then_some(())
    });
}
