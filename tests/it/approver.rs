//! An approver that is away for long, that starts after the daemon, or that sees requests change.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use bursar::daemon;
use bursar::execute::keypair::{Names, NewKey};
use bursar::orders::request::OrderRequest;
use bursar_testkit::control_plane::ControlPlaneOptions;
use bursar_testkit::ports::free_port;
use bursar_testkit::ready::wait_for;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::approver_site::{install, is_ready, start, start_at};
use crate::quiet::{Right, asked, granted, own_servers, right};
use crate::rollback::{again, command_line};
use crate::world::{World, all_is_well, stderr, target};

const DEADLINE: Duration = Duration::from_mins(7);

/// How many hours the clock of the first test is ahead.
static AHEAD: AtomicI64 = AtomicI64::new(0);

fn ahead() -> Timestamp {
    daemon::now() + SignedDuration::from_hours(AHEAD.load(Ordering::Relaxed))
}

fn in_24_days() -> Timestamp {
    daemon::now() + SignedDuration::from_hours(24 * 24)
}

fn own_certificate(world: &mut World) -> Option<Timestamp> {
    world.status().clusters.into_values().find_map(|cluster| cluster.own_certificate_until)
}

#[test]
fn an_approver_that_is_away_for_a_day_loses_nothing_and_delays_no_revocation() {
    let mut world = World::on(own_servers(&ControlPlaneOptions::default()), "apaway", "");
    for (uid, tool) in (66_801..).zip(["stays", "stolen", "leaves"]) {
        world.tool(tool, uid, &[]);
    }
    all_is_well(&world.cycle());
    let old = |world: &World, tool: &str| world.folder.join(format!("old-{tool}"));
    for tool in ["stays", "stolen", "leaves"] {
        std::fs::copy(world.kubeconfig(tool), old(&world, tool)).expect("the old kubeconfig can be copied");
    }
    world.stop();
    install(&world);
    world.clock = ahead;
    // Accounts that wait for the approver must not delay the removal of access from others.
    for (uid, tool) in (66_811..).zip(["newa", "newb", "newc"]) {
        world.tool(tool, uid, &[]);
    }
    world.give(&[OrderRequest::Revoke(target("stolen")), OrderRequest::Suspend(target("leaves"))]);
    let refused = std::thread::scope(|scope| {
        let (stolen, leaves) = (old(&world, "stolen"), old(&world, "leaves"));
        let servers = world.servers.clone();
        let refused = scope.spawn(move || {
            let began = Instant::now();
            wait_for("the API server refuses both accounts", DEADLINE, || {
                let asks = |kubeconfig| servers.cluster.kubectl_as(kubeconfig).args(["get", "pods"]).output();
                let refuses =
                    |kubeconfig| stderr(&asks(kubeconfig).expect("kubectl is installed")).contains("Forbidden");
                (refuses(&stolen) && refuses(&leaves)).then_some(())
            });
            began.elapsed()
        });
        let began = Instant::now();
        let report = world.cycle();
        let (refused, cycle) = (refused.join().expect("the API server refused both in time"), began.elapsed());
        let why = |tool: &str| report.failing.iter().find(|it| it.account.name == tool).map(|it| it.reason.clone());
        for tool in ["stolen", "newa"] {
            let why = why(tool).unwrap_or_else(|| panic!("{tool} is reported: {report:#?}"));
            assert!(why.contains("the approver did not approve"), "{why}");
        }
        println!("refused after {refused:?}; the cycle took {cycle:?}");
        assert!(refused < cycle, "{refused:?} of {cycle:?}");
        refused
    });
    // The daemon waits 30 s for an approval.
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
    let has_access = |world: &World, tool: &str| world.works(&world.kubeconfig(tool));
    wait_for("every waiting certificate is issued", DEADLINE, || {
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
fn a_start_without_an_approver_revokes_at_once_and_renews_the_daemons_certificate_later() {
    let mut world = World::on(own_servers(&ControlPlaneOptions::default()), "apcold", "");
    world.configure("lifetime = \"7d\"", "lifetime = \"30d\"");
    for (uid, tool) in (66_821..).zip(["foo", "bar"]) {
        world.tool(tool, uid, &[]);
    }
    all_is_well(&world.cycle());
    let before = own_certificate(&mut world).expect("the daemon has a certificate");
    let stolen = world.steal("bar");
    world.stop();
    let granted_before = granted(&world);
    install(&world);
    let (mark, left) = (world.servers.cluster.audit_mark(), granted(&world));

    // The certificates of the daemon and of the tools are due for renewal, but no approver runs yet.
    world.clock = in_24_days;
    world.give(&[OrderRequest::Revoke(target("bar"))]);
    let began = Instant::now();
    world.cycle();
    assert!(!world.works(&stolen), "a revocation does not wait");
    println!("the first cycle took {:?}", began.elapsed());
    assert!(world.status().clusters["test"].ready, "{:?}", world.trouble());
    assert_eq!(own_certificate(&mut world), Some(before), "the daemon still has its old certificate");
    world.stop();

    let _approver = start(&world);
    wait_for("the daemon and all tools have new certificates", DEADLINE, || {
        let report = world.cycle();
        let renewed = own_certificate(&mut world).is_some_and(|until| until > before);
        if !renewed {
            // The daemon asks for its own certificate once an hour, and at every start.
            world.stop();
        }
        (report.exit_code() == 0 && renewed).then_some(())
    });
    assert!(["foo", "bar"].iter().all(|tool| world.works(&world.kubeconfig(tool))));
    assert!(!world.works(&stolen));

    // The daemon lost the right to approve and no other, and used only the rights that are left. A test in `quiet` shows
    // that the daemon uses each of these.
    let of_requests = |resource: &str, verb: &str| -> Right {
        ("certificates.k8s.io".to_owned(), resource.to_owned(), verb.to_owned())
    };
    let lost: BTreeSet<Right> = granted_before.symmetric_difference(&left).cloned().collect();
    let approval = [of_requests("certificatesigningrequests/approval", "patch"), of_requests("signers", "approve")];
    assert_eq!(lost, BTreeSet::from(approval));
    let requests = asked(&world, mark);
    // Kubernetes' own Role lets the daemon read the client authorities.
    let others = requests.iter().filter(|request| !request.uri.contains("/namespaces/kube-system/"));
    let used: BTreeSet<Right> = others.filter_map(right).collect();
    let beyond: Vec<&Right> = used.difference(&left).collect();
    assert!(beyond.is_empty(), "used but not granted: {beyond:#?}");
    assert!(used.contains(&of_requests("certificatesigningrequests", "create")), "{used:#?}");
}

#[test]
fn a_request_that_changes_while_it_waits_is_judged_as_it_is_now() {
    let mut world = World::on(own_servers(&ControlPlaneOptions::default()), "apchange", "");
    world.tool("foo", 66_831, &[]);
    all_is_well(&world.cycle());
    world.stop();
    install(&world);
    let _approver = start(&world);

    // This request is like the daemon's, but the seal of the tool's namespace does not verify. So the request waits.
    let generation =
        world.rows("SELECT generation FROM tools")[0]["generation"].as_u64().expect("the ledger has a generation");
    let key = NewKey::generate().expect("a key can be generated");
    let group = format!("bursar:tool:foo#{generation}");
    let organizations = [Some("bursar:tools"), Some(group.as_str())];
    let id = world.rows("SELECT id FROM tools")[0]["id"].as_str().expect("the ledger has an ID").to_owned();
    let pem = key
        .request(Names { common_name: "tool:foo", organizations, serial_number: Some(&id) })
        .expect("a key signs its own request");
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
    let log = || std::fs::read_to_string(world.folder.join("approver.log")).expect("the approver writes a log");
    wait_for("the approver leaves the request waiting", DEADLINE, || log().contains("not approved yet").then_some(()));
    // This change makes a new version of the request. An approval of the older version would conflict for ever.
    world.kubectl(&["annotate", "csr", "changes", "example.org/changed=yes"]);
    annotated(&sealed);
    wait_for("the approver approves the request", DEADLINE, || {
        let said = world.kubectl(&["get", "csr", "changes", "-o", "jsonpath={.status.conditions[*].type}"]);
        (said == "Approved").then_some(())
    });
}

#[test]
fn an_approver_is_ready_again_after_a_broken_watch_even_if_there_is_no_request() {
    let mut world = World::on(own_servers(&ControlPlaneOptions::default()), "apbroken", "");
    world.tool("foo", 66_841, &[]);
    all_is_well(&world.cycle());
    world.stop();
    install(&world);
    let health = free_port();
    let _approver = start_at(&world, health);
    let api_server = world.servers.cluster.api_server().expect("the cluster has its own API server");
    let server = command_line(api_server);
    api_server.kill();
    wait_for("the approver is not ready", DEADLINE, || (!is_ready(health)).then_some(()));
    let _api_server = again(api_server, &server);
    wait_for("the approver is ready again", DEADLINE, || is_ready(health).then_some(()));
}
