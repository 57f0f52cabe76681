//! A realm that fails at any moment. Nothing else stops, and the realm is tried again without help.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bursar::daemon;
use bursar::identity::ClusterName;
use bursar::orders::request::{OrderRequest, Trigger};
use bursar_testkit::Servers;
use bursar_testkit::ldif::{group_of_names_ldif, person_dn};
use bursar_testkit::ready::{DEADLINE, poll, wait_for};
use jiff::SignedDuration;
use serde_json::json;

use super::{RIGHTS, SECRET, WORKSPACES, connection, realm, requests, roles, set, target, user, world};
use crate::daemon::{Daemon, status};
use crate::keycloak::proxy::{Fate, between};
use crate::world::{World, all_is_well};

const PASSES: u8 = 0;

#[test]
fn an_outage_of_the_realm_stops_nothing_else_and_recovery_needs_no_help() {
    let realm = realm("rlout", &[], &RIGHTS);
    let (mode, cuts) = (Arc::new(AtomicU8::new(1)), Arc::new(AtomicU64::new(0)));
    let (seen, cut) = (Arc::clone(&mode), Arc::clone(&cuts));
    let judge = move |path: &str| match seen.load(Ordering::Relaxed) {
        1 => Fate::Answered(503, ""),
        2 => Fate::Answered(429, ""),
        3 => Fate::Answered(200, "<html>"),
        4 => Fate::Silent,
        // The request is carried out but its answer is lost, for users, roles and assignments.
        5 if !path.contains('?') && !path.contains("token") && cut.fetch_add(1, Ordering::Relaxed) % 2 == 0 => {
            Fate::Lost
        }
        _ => Fate::Passed,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("the system allows a runtime");
    let (config, _) = runtime.block_on(between(&realm, judge));
    let own = connection(&realm, &config.url, SECRET) + "timeout = \"5s\"\n";
    let mut world = world("rlout", &format!("[realm]\nclient = \"{WORKSPACES}\"\n{own}"));
    world.person("rlout-a", 64_401);
    let dn = format!("cn=rlout-lab,ou=groups,{}", world.base);
    world.add(&group_of_names_ldif(&dn, "rlout-lab", &[person_dn(&world.base, "rlout-a")]));
    let kubeconfig = world.kubeconfig_of("rlout-a");

    for (fate, why) in [(1, "503"), (2, "429"), (3, "could not be parsed"), (4, "no answer within 5s")] {
        mode.store(fate, Ordering::Relaxed);
        let report = world.cycle();
        assert!(report.realm.as_ref().is_some_and(|said| said.contains(why)), "{report:#?}");
        assert_eq!((report.exit_code(), report.failing.len()), (1, 0), "{report:#?}");
        assert!(world.works(&kubeconfig), "{why}");
    }
    // Scheduled cycles leave the realm alone for a while.
    let begun = Instant::now();
    assert!(world.cycle_by(Trigger::Schedule).realm.is_some());
    assert!(begun.elapsed() < Duration::from_secs(1) || requests(&mut world, &realm).1 == 0);
    let plan = world.plan();
    assert!(plan.text.contains("! realm rlout: "), "{}", plan.text);

    // Every other answer to a write is lost.
    mode.store(5, Ordering::Relaxed);
    let done = poll(DEADLINE, || world.cycle().exit_code() == 0);
    assert!(done, "{:?}", world.status().realm);
    assert!(cuts.load(Ordering::Relaxed) > 2);
    assert_eq!(roles(&realm, "rlout-a"), set(&["workspace-rlout-lab:member"]));
    let rows = world.rows("SELECT origin FROM realm_users");
    assert_eq!(rows.len(), 1, "the user is recognised as made by Bursar: {rows:?}");
    let count = world.rows("SELECT count(*) AS n FROM history WHERE action = 'realm user created'");
    assert_eq!(count[0]["n"], 1);

    // However long the outage lasts, a login that must be removed waits at most a minute after the realm is back.
    mode.store(1, Ordering::Relaxed);
    (0..8).for_each(|_| drop(world.cycle()));
    let trouble = world.status().realm.and_then(|realm| realm.trouble).expect("the realm has trouble");
    assert!(trouble.attempts >= 8 && trouble.next_try <= daemon::now() + SignedDuration::from_mins(1), "{trouble:?}");

    // An order during the outage is reported as unfinished, and is done when the realm is back.
    world.stop();
    let daemon = Daemon::ready(&world);
    let (code, said) = crate::runbooks::follow(&world, "bursar suspend user rlout-a --reason left");
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("user:rlout-a: suspend") && said.contains("realm rlout, where the user may"), "{said}");
    assert!(!world.works(&kubeconfig));
    assert_eq!(user(&realm, "rlout-a")["enabled"], true);
    assert_eq!(status(&world)["unfinished"].as_array().map(Vec::len), Some(1));
    mode.store(PASSES, Ordering::Relaxed);
    let disabled = poll(Duration::from_secs(90), || user(&realm, "rlout-a")["enabled"] == false);
    assert!(disabled, "{}", status(&world)["realm"]);
    wait_for("no order is unfinished", DEADLINE, || (status(&world)["unfinished"] == json!([])).then_some(()));
    daemon.stop();
    assert!(poll(DEADLINE, || world.cycle().exit_code() == 0), "{:?}", world.status().realm);
    assert_eq!(user(&realm, "rlout-a")["enabled"], false);
    assert_eq!(roles(&realm, "rlout-a"), set(&[]));
    assert!(world.metrics().contains("bursar_realm_failing 0\n"));
}

/// The ledger may be an old one, and only a cluster can show that.
#[test]
fn until_a_cluster_answers_access_in_the_realm_is_only_removed() {
    let realm = realm("rlold", &[], &RIGHTS);
    let own = connection(&realm, &realm.server.url, SECRET);
    let mut world = world("rlold", &format!("[realm]\nclient = \"{WORKSPACES}\"\n{own}"));
    world.person("rlold-a", 64_411);
    world.person("rlold-b", 64_412);
    all_is_well(&world.cycle());
    realm.change("rlold-a", &json!({"enabled": false}));
    world.stop();
    let kubeconfig = world.settings().clusters[&ClusterName("test".into())].clone();
    let hidden = kubeconfig.with_extension("hidden");
    std::fs::rename(&kubeconfig, &hidden).expect("the folder is writable");
    world.order(&OrderRequest::Suspend(target("rlold-b"))).expect("the order is accepted");
    world.cycle();
    assert_eq!(user(&realm, "rlold-b")["enabled"], false);
    assert_eq!(user(&realm, "rlold-a")["enabled"], false, "nobody knows whether the ledger is up to date");
    assert_eq!(world.status().realm.map(|realm| realm.waiting), Some(1));
    std::fs::rename(&hidden, &kubeconfig).expect("the folder is writable");
    let is_enabled = |world: &mut World| {
        let is_back = poll(DEADLINE, || {
            world.cycle();
            user(&realm, "rlold-a")["enabled"] == true
        });
        assert!(is_back, "{:?}", world.status().realm);
    };
    is_enabled(&mut world);

    // A reload that is refused leaves the connection to the realm as it was.
    let secret = Servers::shared().folder().join("realm-rlold/secret");
    std::fs::remove_file(&secret).expect("the folder is writable");
    let refused = world.try_reload().expect_err("the secret cannot be read").to_string();
    assert!(refused.contains("realm-rlold/secret"), "{refused}");
    realm.change("rlold-a", &json!({"enabled": false}));
    is_enabled(&mut world);

    // A reload drops the connection to the only cluster, which has shown that the ledger is up to date.
    std::fs::write(&secret, SECRET).expect("the folder is writable");
    std::fs::rename(&kubeconfig, &hidden).expect("the folder is writable");
    world.reload();
    realm.change("rlold-a", &json!({"enabled": false}));
    is_enabled(&mut world);
    assert!(!world.status().clusters["test"].ready, "the cluster is away");
}
