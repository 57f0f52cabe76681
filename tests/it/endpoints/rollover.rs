//! The CA of the API server's certificate is replaced step by step, as in `docs/clusters.md`. Every kubeconfig works at
//! every moment.

use std::fs;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bursar_testkit::control_plane::ControlPlaneOptions;
use bursar_testkit::pki::Authority;
use bursar_testkit::ready::{DEADLINE, wait_for};
use jiff::Timestamp;

use crate::doctor::wrong;
use crate::quiet::own_servers;
use crate::world::{World, stderr};

const TOOLS: [&str; 4] = ["bar", "baz", "foo", "qux"];

fn check_all_work(world: &World) {
    for tool in TOOLS {
        let got = world.kubectl_as_tool(tool, &["get", "pods"]);
        assert!(got.status.success(), "{tool}: {}", stderr(&got));
    }
}

/// Returns how many homes have exactly this bundle.
fn with_bundle(world: &World, bundle: &str) -> usize {
    TOOLS.iter().filter(|tool| super::config(world, tool).contains(&BASE64.encode(bundle))).count()
}

/// Checks that `bursar doctor` reports the end of the CA and names the next step.
fn check_doctor_names_next_step(world: &World, next: &str) {
    let (found, _) = wrong(world, &[]);
    let [(_, text, remedy)] = &found[..] else { panic!("{found:#?}") };
    assert!(text.contains("its CA expires") && remedy.contains(next), "{found:#?}");
}

#[test]
fn a_ca_is_replaced_while_every_kubeconfig_keeps_working() {
    let day = Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date() + jiff::Span::new().days(20);
    let month_and_day = |number: i8| u8::try_from(number).expect("a month and a day are positive");
    let last =
        Authority::until("the old one", (day.year().into(), month_and_day(day.month()), month_and_day(day.day())));
    let next = Authority::new("the next one");
    let (old, new) = (last.identity().certificate.clone(), next.identity().certificate.clone());
    let further_ca = format!("{old}{new}");
    let servers = own_servers(&ControlPlaneOptions { further_ca, ..ControlPlaneOptions::default() });
    let mut world = World::on(servers.clone(), "rollover", "\n[limits]\nchange_per_cycle = { count = 2 }\n");
    for (tool, uid) in TOOLS.iter().zip(62_731..) {
        world.tool(tool, uid, &[]);
    }
    let bundle = world.folder.join("k8s-ca.pem");
    let put = |content: &str| fs::write(&bundle, content).expect("the folder is writable");
    put(&old);
    servers.cluster.serve_as(&last.server(&["kubernetes"]), &bundle);
    world.configure(&servers.cluster.ca_pem.display().to_string(), &bundle.display().to_string());
    assert_eq!(world.cycle().exit_code(), 0);
    assert_eq!(with_bundle(&world, &old), 4);

    check_doctor_names_next_step(&world, "to the file of `ca`, keep the old one");

    // The new CA alone comes too early: a kubeconfig with it would not work, so it is not delivered.
    put(&new);
    world.reload();
    for _ in 0..2 {
        let report = world.cycle();
        assert_eq!(report.failing.len(), 1, "only one tool is tried: {report:#?}");
        assert!(report.failing[0].reason.contains("endpoint internal"), "{report:#?}");
    }
    assert_eq!(with_bundle(&world, &old), 4);
    check_all_work(&world);

    // 1. Both CAs: one tool first, then two in a cycle. The tool that failed before is retried in addition, when its
    //    retry is due.
    let both = format!("{old}{new}");
    put(&both);
    world.reload();
    let mut seen = Vec::new();
    wait_for("all homes have both CAs", DEADLINE, || {
        world.cycle();
        check_all_work(&world);
        seen.push(with_bundle(&world, &both));
        (seen.last() == Some(&4)).then_some(())
    });
    let most = seen.windows(2).map(|pair| pair[1] - pair[0]).max();
    assert!(seen[0] < 3 && most <= Some(3), "the change is paced: {seen:?}");
    assert_eq!(world.cycle().exit_code(), 0);
    let own = world.state_dir().join("clusters/test.kubeconfig");
    let own = || fs::read_to_string(&own).expect("the daemon has a kubeconfig");
    assert!(own().contains(&BASE64.encode(&both)), "the daemon uses both CAs too");

    check_doctor_names_next_step(&world, "give the API server a certificate of the new CA");

    // 2. The API server gets a certificate of the new CA.
    let fingerprints: Vec<String> = TOOLS.iter().map(|tool| super::config(&world, tool)).collect();
    servers.cluster.serve_as(&next.server(&["kubernetes"]), &{
        put(&new);
        bundle.clone()
    });
    put(&both);
    check_all_work(&world);
    assert_eq!(wrong(&world, &[]).0, [], "the old CA is not needed any more");
    assert_eq!(world.cycle().exit_code(), 0);
    assert!(
        TOOLS.iter().map(|tool| super::config(&world, tool)).eq(fingerprints),
        "no kubeconfig changes in this step"
    );

    // 3. Only the new CA is left.
    put(&new);
    world.reload();
    wait_for("all homes have the new CA alone", DEADLINE, || {
        world.cycle();
        check_all_work(&world);
        (with_bundle(&world, &new) == 4).then_some(())
    });
    assert_eq!(world.cycle().exit_code(), 0);
    assert!(own().contains(&BASE64.encode(&new)));
    world.tool("last", 62_739, &[]);
    assert_eq!(world.cycle().exit_code(), 0);
    assert!(world.kubectl_as_tool("last", &["get", "pods"]).status.success());
    assert_eq!(world.status().clusters["test"].endpoints, [].into());
}
