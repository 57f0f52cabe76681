//! Suspension, resumption, revocation, holds and limits: what an account loses, what comes back, and who may decide.

use bursar::daemon;
use bursar::orders::request::{OrderRequest, SuspendUntil};
use bursar_testkit::Servers;
use bursar_testkit::ldif::{disable_ldif, enable_ldif, replace_ldif, tool_account_dn, tool_group_dn};
use jiff::SignedDuration;

use crate::world::{World, all_is_well, stderr, target};

const AT_ONCE: &str = "\n[lifecycle]\nabsent_for = \"0s\"\n";

fn works(world: &World, tool: &str) -> bool {
    world.kubectl_as_tool(tool, &["get", "pods"]).status.success()
}

/// Moves an entry out of every base that is read, or back. The entry keeps its `entryUUID`.
fn move_entry(dn: &str, superior: &str) {
    let rdn = dn.split(',').next().expect("a DN has an RDN");
    let record = format!("dn: {dn}\nchangetype: modrdn\nnewrdn: {rdn}\ndeleteoldrdn: 1\nnewsuperior: {superior}\n");
    Servers::shared().slapd.modify_ldif(&record);
}

#[test]
fn a_tool_that_leaves_the_directory_loses_access_until_it_returns() {
    let mut world = World::with("gone", AT_ONCE);
    world.tool("foo", 62_001, &[]);
    world.tool("stays", 62_002, &[]);
    all_is_well(&world.cycle());
    let namespace = world.namespace("foo");
    world.kubectl(&["create", "deployment", "web", "--image=example.org/web", "--replicas=3", "-n", &namespace]);
    let old = world.folder.join("old-kubeconfig");
    std::fs::copy(world.kubeconfig("foo"), &old).expect("the file can be copied");

    let account = tool_account_dn(&world.base, "foo");
    let (rdn, home) = account.split_once(',').expect("the DN has several parts");
    move_entry(&account, &world.base);
    let report = world.cycle();
    assert_eq!(world.state("foo"), "suspended", "{report:#?}");
    let bindings = world.kubectl(&["get", "rolebindings", "-n", &namespace, "-o", "name"]);
    assert!(!bindings.contains("bursar"), "{bindings}");
    assert!(!world.kubectl_with(&old, &["get", "pods"]).status.success(), "the old certificate still works");
    assert!(!world.kubeconfig("foo").exists() || !works(&world, "foo"));
    let replicas = ["get", "deployment", "web", "-n", &namespace, "-o", "jsonpath={.spec.replicas}"];
    assert_eq!(world.kubectl(&replicas), "0");
    assert!(works(&world, "stays"));

    move_entry(&format!("{rdn},{}", world.base), home);
    all_is_well(&world.cycle());
    assert_eq!(world.state("foo"), "active");
    assert!(works(&world, "foo"));
    assert_eq!(world.kubectl(&replicas), "3");
    assert!(!world.kubectl_with(&old, &["get", "pods"]).status.success(), "the old certificate works again");
}

#[test]
fn a_disabled_mark_suspends_at_once_and_its_end_resumes() {
    let mut world = World::new("marked");
    world.tool("foo", 62_011, &[]);
    all_is_well(&world.cycle());
    let namespace = world.namespace("foo");
    world.kubectl(&["create", "deployment", "web", "--image=example.org/web", "--replicas=2", "-n", &namespace]);
    let slapd = &Servers::shared().slapd;
    slapd.modify_ldif(&disable_ldif(&tool_account_dn(&world.base, "foo")));
    world.cycle();
    assert_eq!(world.state("foo"), "suspended");
    slapd.modify_ldif(&enable_ldif(&tool_account_dn(&world.base, "foo")));
    all_is_well(&world.cycle());
    assert_eq!(world.state("foo"), "active");
    assert!(works(&world, "foo"));
    let replicas = ["get", "deployment", "web", "-n", &namespace, "-o", "jsonpath={.spec.replicas}"];
    assert_eq!(world.kubectl(&replicas), "2");
}

#[test]
fn an_ordered_suspension_ends_only_by_resume() {
    let mut world = World::new("ordered");
    world.tool("foo", 62_021, &[]);
    all_is_well(&world.cycle());
    world.order(&OrderRequest::Suspend(target("foo"))).expect("the order is accepted");
    assert_eq!(world.state("foo"), "suspended");
    let kubeconfig = || std::fs::read_to_string(world.kubeconfig("foo")).expect("the kubeconfig stays");
    assert!(!kubeconfig().contains("client-key-data"), "no key stays");
    let told = stderr(&world.kubectl_as_tool("foo", &["get", "pods"]));
    assert!(told.contains("tool foo is suspended since 2") && told.contains("; ask the administrators of"), "{told}");
    let report = world.cycle();
    assert_eq!((report.changed, world.state("foo").as_str()), (0, "suspended"), "{report:#?}");
    all_is_well(&world.order(&OrderRequest::Resume(target("foo"))).expect("the order is accepted"));
    assert!(works(&world, "foo"));
    // If the tenant changed the kubeconfig, Bursar's part is removed all the same, without delay.
    let config = world.kubeconfig("foo");
    let own = "contexts: [{name: test, context: {cluster: mine, user: me}}]\n";
    std::fs::write(&config, own).expect("the folder is writable");
    all_is_well(&world.order(&OrderRequest::Suspend(target("foo"))).expect("the order is accepted"));
    let left = std::fs::read_to_string(&config).expect("the kubeconfig stays");
    assert!(left.contains("me") && !left.contains("exec"), "{left}");
    std::fs::remove_file(&config).expect("the kubeconfig stays");
    all_is_well(&world.order(&OrderRequest::Resume(target("foo"))).expect("the order is accepted"));
    let refusal = world.order(&OrderRequest::Resume(target("foo"))).expect_err("the account is not suspended");
    assert!(refusal.text.contains("not suspended"), "{}", refusal.text);
    let refusal = world.order(&OrderRequest::Suspend(target("nobody"))).expect_err("the account is unknown");
    assert_eq!(refusal.exit_code, 4);
}

#[test]
fn a_suspension_with_an_end_time_ends_by_itself() {
    let mut world = World::new("untilend");
    world.tool("foo", 62_081, &[]);
    all_is_well(&world.cycle());
    let until = |hours| {
        OrderRequest::SuspendUntil(SuspendUntil {
            target: target("foo"),
            until: daemon::now() + SignedDuration::from_hours(hours),
        })
    };
    let refusal = world.order(&until(-1)).expect_err("the end time is in the past");
    assert_eq!(refusal.exit_code, 64, "{}", refusal.text);
    world.order(&until(1)).expect("the order is accepted");
    let suspended = world.status().suspended;
    assert!(matches!(&*suspended, [one] if one.to_string().contains("tool foo until")), "{suspended:?}");
    let why = world.bursar("why tool foo");
    assert!(why.contains("`bursar resume` ends it earlier"), "{why}");
    // Another end time replaces the first, but the same one again is refused.
    let later = until(2);
    world.order(&later).expect("the order is accepted");
    assert!(world.order(&later).expect_err("the end time is the same").text.contains("already until"));
    world.order(&until(1)).expect("the order is accepted");
    world.cycle();
    assert!(!works(&world, "foo"));
    world.stop();
    world.clock = || daemon::now() + SignedDuration::from_hours(2);
    all_is_well(&world.cycle());
    assert_eq!(world.state("foo"), "active");
    assert!(works(&world, "foo"));
    let resumed = world.rows("SELECT actor, reason FROM history WHERE action = 'resumed'");
    assert_eq!((&resumed[0]["actor"], &resumed[0]["reason"]), (&"bursar".into(), &"its suspension has ended".into()));
}

#[test]
fn a_revoked_certificate_is_refused_and_the_new_one_works() {
    let mut world = World::new("revoked");
    world.tool("foo", 62_031, &[]);
    all_is_well(&world.cycle());
    let stolen = world.steal("foo");
    assert!(world.kubectl_with(&stolen, &["get", "pods"]).status.success());
    all_is_well(&world.order(&OrderRequest::Revoke(target("foo"))).expect("the order is accepted"));
    let refused = world.kubectl_with(&stolen, &["get", "pods"]);
    assert!(stderr(&refused).contains("Forbidden"), "{}", stderr(&refused));
    assert!(works(&world, "foo"));
}

#[test]
fn a_held_tool_is_in_the_plan_but_is_not_changed() {
    let mut world = World::new("held");
    world.tool("foo", 62_041, &[]);
    all_is_well(&world.cycle());
    world.order(&OrderRequest::Hold(target("foo"))).expect("the order is accepted");
    Servers::shared().slapd.modify_ldif(&disable_ldif(&tool_account_dn(&world.base, "foo")));
    world.cycle();
    assert_eq!(world.state("foo"), "active");
    let plan = world.plan();
    assert!(plan.text.contains("foo") && plan.text.contains("held"), "{}", plan.text);
    world.order(&OrderRequest::Release(target("foo"))).expect("the order is accepted");
    assert_eq!(world.state("foo"), "suspended");
}

#[test]
fn a_maintainer_who_leaves_keeps_no_working_certificate() {
    let mut world = World::new("leaver");
    world.person("leaver-ann", 62_051);
    world.person("leaver-ben", 62_052);
    world.tool("foo", 62_053, &["leaver-ann", "leaver-ben"]);
    all_is_well(&world.cycle());
    let kept = world.folder.join("kept");
    std::fs::copy(world.kubeconfig("foo"), &kept).expect("the kubeconfig can be copied");
    let stays = bursar_testkit::ldif::person_dn(&world.base, "leaver-ben");
    let leave = replace_ldif(&tool_group_dn(&world.base, "foo"), "member", &[&stays]);
    Servers::shared().slapd.modify_ldif(&leave);
    all_is_well(&world.cycle());
    assert!(!world.kubectl_with(&kept, &["get", "pods"]).status.success());
    assert!(works(&world, "foo"));
    let members = world.rows("SELECT member FROM memberships WHERE account = 'tool:foo'");
    assert_eq!(members.len(), 1, "{members:?} {:?}", world.rows("SELECT * FROM membership"));
    let left = world.rows("SELECT at_end FROM access_on WHERE account = 'tool:foo' AND member = 'user:leaver-ann'");
    assert!(left.iter().all(|row| !row["at_end"].as_str().is_some_and(|end| end.starts_with("9999"))), "{left:?}");
}

#[test]
fn too_many_suspensions_wait_until_an_administrator_approves_exactly_these() {
    let more = format!("{AT_ONCE}[limits]\nsuspend_per_cycle = {{ count = 2 }}\nsuspend_per_day = {{ count = 2 }}\n");
    let mut world = World::with("limits", &more);
    let tools = ["ta", "tb", "tc", "td"];
    for (number, tool) in (0..).zip(tools) {
        world.tool(tool, 62_061 + number, &[]);
    }
    world.tool("stays", 62_069, &[]);
    all_is_well(&world.cycle());
    for tool in tools {
        Servers::shared().slapd.delete(&tool_account_dn(&world.base, tool));
    }
    let report = world.cycle();
    assert_eq!(report.exit_code(), 3, "{report:#?}");
    let suspended = |world: &World| tools.iter().filter(|tool| world.state(tool) == "suspended").count();
    assert_eq!(suspended(&world), 2);
    let plan = world.plan();
    assert_eq!(plan.exit_code, 3);
    let hash = plan.plan["refused"]["hash"].as_str().expect("a refused plan has a hash").to_owned();
    assert!(plan.text.contains(&format!("bursar approve {hash}")), "{}", plan.text);
    world.order(&OrderRequest::Approve { hash }).expect("the order is accepted");
    assert_eq!(suspended(&world), 4);
    assert!(works(&world, "stays"));
}
