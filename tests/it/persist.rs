//! A directory that reports its changes, and a daemon that follows these changes.

use bursar::orders::request::Trigger;
use bursar::snapshot::Way;
use bursar_testkit::Servers;
use bursar_testkit::ldif::{disable_ldif, replace_ldif, tool_account_dn, tool_ldif, toolforge_units_ldif, unit_ldif};
use bursar_testkit::process::Process;
use bursar_testkit::ready::{DEADLINE, wait_for};
use bursar_testkit::sample::sentinel_ldif;
use bursar_testkit::slapd::{BASE_DN, DISABLED_POLICY_DN, Slapd, SlapdOptions};

use crate::daemon::{Daemon, curl, status};
use crate::doctor::wrong;
use crate::world::{World, all_is_well};

/// Returns a world with a schedule of once a year, so that only changes of the directory start a cycle.
fn persistent(name: &str) -> World {
    let mut world = World::with(name, "\n[schedule]\ncycle = \"0 0 1 1 *\"\nfull_read = \"0 0 1 1 *\"\n");
    world.configure("preset    = \"toolforge\"\n", "preset    = \"toolforge\"\npersist   = true\n");
    world
}

fn way(world: &World) -> String {
    status(world)["sources"]["people"]["way"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn changes_of_the_directory_are_carried_out_without_a_schedule() {
    let world = persistent("told");
    let daemon = Daemon::ready(&world);
    wait_for("the source reports its changes", DEADLINE, || (way(&world) == "persist").then_some(()));
    world.tool("foo", 62_901, &[]);
    let kubeconfig = world.kubeconfig("foo");
    wait_for("foo has a kubeconfig", DEADLINE, || kubeconfig.exists().then_some(()));
    wait_for("the kubeconfig of foo works", DEADLINE, || world.works(&kubeconfig).then_some(()));

    let metrics = curl(&world, "GET", "/metrics");
    assert!(metrics.contains("bursar_source_way{source=\"people\",way=\"persist\"} 1"), "{metrics}");
    assert!(world.bursar("status").contains(", changes pushed by the server"));
    // A disabled account loses access just as fast.
    let account = tool_account_dn(&world.base, "foo");
    world.servers.slapd.modify_ldif(&replace_ldif(&account, "pwdPolicySubentry", &[DISABLED_POLICY_DN]));
    wait_for("the kubeconfig of foo no longer works", DEADLINE, || (!world.works(&kubeconfig)).then_some(()));
    let triggers: Vec<_> =
        world.rows("SELECT DISTINCT trigger FROM cycle").into_iter().map(|row| row["trigger"].clone()).collect();
    assert!(triggers.contains(&"change".into()) && !triggers.contains(&"schedule".into()), "{triggers:?}");
    daemon.stop();
}

#[test]
fn work_that_hangs_delays_neither_a_change_in_the_directory_nor_an_order() {
    let mut world = persistent("hurry");
    // On a busy machine, the calls of kubectl below may take longer than the default.
    world.configure("[homes]\n", "[homes]\ndeadline = \"60s\"\n");
    for (uid, tool) in (62_921..).zip(["disabled", "revoked"]) {
        world.tool(tool, uid, &[]);
    }
    let daemon = Daemon::ready(&world);
    let has_access = |tool: &str| world.kubeconfig(tool).exists() && world.works(&world.kubeconfig(tool));
    wait_for("both tools have access", DEADLINE, || (has_access("disabled") && has_access("revoked")).then_some(()));
    wait_for("the source reports its changes", DEADLINE, || (way(&world) == "persist").then_some(()));
    let revoked = std::fs::read(world.kubeconfig("revoked")).expect("the kubeconfig is readable");

    let frozen = world.frozen_homed();
    world.tool("slow", 62_923, &[]);
    let namespace = world.namespace("slow");
    let begun = || world.kubectl(&["get", "rolebindings", "-n", &namespace, "-o", "name"]);
    wait_for("the new tool waits for its home", DEADLINE, || (!begun().is_empty()).then_some(()));
    // A step that ran into its deadline would be recorded as failed.
    let failed = || world.rows("SELECT reason FROM failing WHERE account = 'tool:slow' OR reason LIKE '%homed%'");
    world.servers.slapd.modify_ldif(&disable_ldif(&tool_account_dn(&world.base, "disabled")));
    wait_for("the disabled tool has no access", DEADLINE, || (!has_access("disabled")).then_some(()));
    assert!(failed().is_empty(), "{:?}", failed());
    let revoke = world.command(&["revoke", "tool", "revoked", "--reason", "stolen"]);
    let order = Process::start("bursar revoke", &revoke, &world.folder.join("revoke.log"));
    wait_for("the old certificate is refused", DEADLINE, || (!has_access("revoked")).then_some(()));
    assert!(failed().is_empty(), "{:?}", failed());

    drop(frozen);
    wait_for("the order ends", DEADLINE, || order.ended());
    wait_for("the new tool has access", DEADLINE, || has_access("slow").then_some(()));
    wait_for("the revoked tool has a new certificate", DEADLINE, || has_access("revoked").then_some(()));
    assert!(
        !has_access("disabled")
            && std::fs::read(world.kubeconfig("revoked")).expect("the kubeconfig is readable") != revoked
    );
    daemon.stop();
}

/// Starts an LDAP server for this world alone and configures it.
fn own_directory(world: &mut World, options: SlapdOptions) -> Slapd {
    let held = unit_ldif(BASE_DN, &world.name) + &toolforge_units_ldif(&world.base) + &sentinel_ldif(&world.base);
    let slapd = Slapd::start(&SlapdOptions { bulk_load: held, ..options });
    let shared = &Servers::shared().slapd;
    world.configure(&shared.ldaps_url, &slapd.ldaps_url);
    world.configure(&shared.ca_pem.display().to_string(), &slapd.ca_pem.display().to_string());
    slapd
}

#[test]
fn the_nightly_full_read_repairs_what_no_change_reported() {
    let mut world = World::new("unseen");
    let slapd = own_directory(&mut world, SlapdOptions::default());
    let homes = format!("homeDirectory: {}/", world.folder.join("homes").display());
    world.home_of("foo", 62_911);
    slapd.add_ldif(&tool_ldif(&world.base, "foo", 62_911, &[]).replace("homeDirectory: /", &homes));
    all_is_well(&world.cycle());
    let foo = tool_account_dn(&world.base, "foo");
    slapd.modify_ldif(&disable_ldif(&foo));
    all_is_well(&world.cycle());
    let state = |world: &World| world.rows("SELECT state FROM tools WHERE name = 'foo'")[0]["state"].clone();
    assert_eq!(state(&world), "suspended");

    slapd.edit_unseen(|dump| {
        let lines = dump.lines().filter(|line| !line.starts_with("pwdPolicySubentry:"));
        lines.map(|line| line.to_owned() + "\n").collect()
    });
    all_is_well(&world.cycle());
    assert_eq!((state(&world), way_of(&mut world)), ("suspended".into(), Way::Incremental));
    all_is_well(&world.cycle_by(Trigger::FullRead));
    assert_eq!((state(&world), way_of(&mut world)), ("active".into(), Way::Incremental));
    let compared = world.status().sources["people"].compared.clone().expect("a full read compares the entries");
    assert_eq!(compared.found.examples, ["tool foo was out of date"]);
    assert!(world.metrics().contains("bursar_source_differences{source=\"people\"} 1"));
    let told = world.rows("SELECT reason FROM event WHERE action = 'directory repaired'").remove(0);
    assert_eq!(told["reason"], "a full read of source people differs from the entries kept up to date by changes");
    assert!(world.bursar("status").contains(" repaired differences (1): tool foo was out of date"));

    all_is_well(&world.cycle_by(Trigger::FullRead));
    for _ in 0..2 {
        let metrics = world.metrics();
        assert!(metrics.contains("bursar_source_differences{source=\"people\"} 0"));
        assert!(metrics.contains("bursar_suspended_pods{cluster=\"test\"} 0"), "counted each night: {metrics}");
    }
    assert!(!world.bursar("status").contains("repaired"));
}

fn way_of(world: &mut World) -> Way {
    world.status().sources["people"].way
}

#[test]
fn doctor_finds_a_server_that_reports_no_changes() {
    let mut world = persistent("nottold");
    let _bare = own_directory(&mut world, SlapdOptions { syncprov: false, ..SlapdOptions::default() });
    let (found, exit) = wrong(&world, &[]);
    let [(subject, text, remedy)] = &found[..] else { panic!("{found:#?}") };
    assert_eq!((subject.as_str(), exit), ("source people, persist", Some(1)));
    assert!(text.contains("does not report changes") && remedy.contains("overlay syncprov"), "{found:#?}");
}
