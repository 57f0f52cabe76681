//! What somebody else breaks is repaired in the next cycle, or shown as failing with its reason. No other tenant is
//! delayed.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::Instant;

use bursar::daemon;
use bursar::identity::AccountKind;
use bursar::orders::request::{OrderRequest, Target};
use bursar_testkit::Servers;
use bursar_testkit::ldif::{replace_ldif, tool_account_dn};
use bursar_testkit::ready::{DEADLINE, wait_for};
use jiff::SignedDuration;

use crate::world::{World, all_is_well};

#[test]
fn an_edited_quota_and_a_deleted_binding_are_repaired_in_one_cycle() {
    let mut world = World::new("drift");
    world.tool("foo", 62_201, &[]);
    world.cycle();
    world.idle_cycle();
    let namespace = world.namespace("foo");
    let edit = [
        "patch",
        "resourcequota",
        "bursar",
        "-n",
        &namespace,
        "--type=merge",
        "-p",
        r#"{"spec":{"hard":{"pods":"999"}}}"#,
    ];
    world.kubectl(&edit);
    world.kubectl(&["delete", "rolebinding", "bursar-bursar-tenant", "-n", &namespace]);
    world.wait_for_drift(&["tool foo", "quota", "role binding"]);
    let report = world.cycle();
    assert_eq!((report.exit_code(), report.changed), (0, 1), "{report:#?}");
    let pods = ["get", "resourcequota", "bursar", "-n", &namespace, "-o", "jsonpath={.spec.hard.pods}"];
    assert_eq!(world.kubectl(&pods), "16");
    assert!(world.kubectl_as_tool("foo", &["get", "pods"]).status.success());
}

#[test]
fn a_home_that_moves_gets_its_kubeconfig_before_the_old_one_is_removed() {
    let mut world = World::new("moves");
    world.tool("foo", 62_291, &[]);
    world.cycle();
    world.idle_cycle();
    let moves = |world: &World, home: &str| {
        let account = tool_account_dn(&world.base, "foo");
        let home = world.home(home).display().to_string();
        world.servers.slapd.modify_ldif(&replace_ldif(&account, "homeDirectory", &[&home]));
    };
    // The new home does not exist yet.
    moves(&world, "foo2");
    let report = world.cycle();
    assert_eq!(report.failing.len(), 1, "{report:#?}");
    assert!(world.works(&world.kubeconfig("foo")), "the old kubeconfig stays until the new one is delivered");
    world.home_of("foo2", 62_291);
    world.cycles_until("the new kubeconfig works", |world| world.works(&world.kubeconfig("foo2")));
    assert!(!world.works(&world.kubeconfig("foo")), "the entries left the old file");
    world.idle_cycle();
    // The owner of the old home can no longer write in it.
    let folder = world.home("foo2").join(".kube");
    std::os::unix::fs::chown(&folder, Some(0), Some(0)).expect("tests run as root");
    world.home_of("foo3", 62_291);
    moves(&world, "foo3");
    wait_for("an old home that cannot be written does not keep the account from the new one", DEADLINE, || {
        (world.cycle().exit_code() == 0 && world.works(&world.kubeconfig("foo3"))).then_some(())
    });
    let left = world.rows("SELECT action FROM history WHERE action = 'kubeconfig left in a former home'");
    assert_eq!(left.len(), 1);
    // The old path becomes a link to the new one.
    fs::rename(world.home("foo3"), world.home("foo4")).expect("the parent folder is writable");
    std::os::unix::fs::symlink(world.home("foo4"), world.home("foo3")).expect("the parent folder is writable");
    moves(&world, "foo4");
    all_is_well(&world.cycle());
    assert!(world.works(&world.kubeconfig("foo4")), "the credential stays in the file to which both paths lead");
}

#[test]
fn a_credential_that_kubectl_writes_back_over_a_notice_is_removed() {
    let mut world = World::new("wroteback");
    world.tool("foo", 62_293, &[]);
    world.cycle();
    let config = world.kubeconfig("foo");
    let read = || fs::read_to_string(&config).expect("the file is readable");
    let (before, key) = (read(), "client-key-data");
    assert!(before.contains(key), "{before}");
    let (name, reason) = ("foo".to_owned(), Some("a test".to_owned()));
    let target = Target { kind: AccountKind::Tool, name, reason, ticket: None };
    world.order(&OrderRequest::Suspend(target)).expect("the order is accepted");
    let notice = read();
    assert!(notice.contains("suspended") && !notice.contains(key), "{notice}");
    fs::write(&config, &before).expect("the file is writable");
    world.cycles_until("the notice is back", |_| read() == notice);
}

#[test]
fn a_deleted_namespace_is_created_again_with_everything_in_it() {
    let mut world = World::new("razed");
    world.tool("foo", 62_211, &[]);
    world.cycle();
    let namespace = world.namespace("foo");
    world.kubectl(&["delete", "namespace", &namespace]);
    // The watches report the deletions of the different kinds one after another.
    wait_for("foo works and has its claim again", DEADLINE, || {
        let report = world.cycle();
        assert_eq!(report.failing.len(), 0, "{report:#?}");
        let claim = world.kubectl(&["get", "pvc", "-n", &namespace, "-o", "name"]);
        let works = world.kubectl_as_tool("foo", &["get", "pods"]).status.success();
        (works && claim.contains("persistentvolumeclaim/home")).then_some(())
    });
}

#[test]
fn a_foreign_namespace_is_left_unchanged_and_reported() {
    let mut world = World::new("foreign");
    let namespace = world.namespace("foo");
    world.kubectl(&["create", "namespace", &namespace]);
    world.tool("foo", 62_221, &[]);
    world.tool("bar", 62_222, &[]);
    let report = world.cycle();
    let failing: Vec<_> = report.failing.iter().map(|failing| failing.account.to_string()).collect();
    assert_eq!(failing, ["tool:foo"], "{report:#?}");
    assert!(report.failing[0].reason.contains("bursar adopt"), "{}", report.failing[0].reason);
    let labels = world.kubectl(&["get", "namespace", &namespace, "-o", "jsonpath={.metadata.labels}"]);
    assert!(!labels.contains("bursar"), "{labels}");
    assert!(world.kubectl_as_tool("bar", &["get", "pods"]).status.success());
}

#[test]
fn a_missing_home_fails_only_its_own_tool_until_it_is_there_again() {
    let mut world = World::new("homeless");
    world.tool("foo", 62_231, &[]);
    world.tool("bar", 62_232, &[]);
    let home = world.home("foo");
    fs::remove_dir(&home).expect("the home is empty");
    let report = world.cycle();
    assert_eq!(report.failing.len(), 1, "{report:#?}");
    assert!(report.failing[0].reason.contains("home"), "{}", report.failing[0].reason);
    assert!(world.kubectl_as_tool("bar", &["get", "pods"]).status.success());
    assert_eq!(
        world.rows("SELECT own FROM settled").len(),
        2,
        "a failing tool is settled too, so later policy changes are paced"
    );
    fs::create_dir(&home).expect("the parent folder is writable");
    std::os::unix::fs::chown(&home, Some(62_231), Some(62_231)).expect("tests run as root, who may change owners");
    fs::set_permissions(&home, fs::Permissions::from_mode(0o700)).expect("tests run as root, who may change modes");
    wait_for("the retry succeeds", DEADLINE, || world.cycle().failing.is_empty().then_some(()));
    assert!(world.kubectl_as_tool("foo", &["get", "pods"]).status.success());
}

#[test]
fn without_homed_everything_but_deliveries_goes_on() {
    let mut world = World::new("nohomed");
    world.tool("foo", 62_241, &[]);
    world.kill_homed();
    let report = world.cycle();
    assert_eq!(report.failing.len(), 1, "{report:#?}");
    assert!(report.failing[0].reason.contains("bursar-homed"), "{}", report.failing[0].reason);
    let quota = world.kubectl(&["get", "resourcequota", "-n", &world.namespace("foo"), "-o", "name"]);
    assert!(quota.contains("resourcequota/bursar"), "{quota}");
    let requests = world.rows("SELECT fingerprint FROM certificate");
    assert!(requests.is_empty(), "the daemon requested a certificate that it cannot deliver");
}

#[test]
fn members_of_the_admin_group_have_a_cluster_wide_binding() {
    let mut world = World::new("admins");
    world.person("admins-zoe", 62_251);
    world.person("admins-yan", 62_252);
    world.group("k8s-admins", &["admins-zoe", "admins-yan"]);
    world.tool("foo", 62_253, &[]);
    all_is_well(&world.cycle());
    let own = world.kubeconfig_of("admins-zoe");
    assert!(world.kubectl_with(&own, &["get", "pods", "-A"]).status.success());
    assert!(!world.kubectl_with(&own, &["get", "secrets", "-A"]).status.success());
    let as_admin = ["get", "secrets", "-A", "--as", "bursar:cluster-admin"];
    assert!(world.kubectl_with(&own, &as_admin).status.success());
    let somebody_else = ["get", "pods", "-A", "--as", "system:admin"];
    assert!(!world.kubectl_with(&own, &somebody_else).status.success());
    assert_eq!(world.rows("SELECT name FROM admins").len(), 2);
}

#[test]
fn a_namespace_that_others_prepared_is_not_adopted_because_of_its_labels() {
    let mut world = World::new("prepared");
    world.tool("foo", 62_281, &[]);
    assert_eq!(world.cycle().exit_code(), 0);
    let found = world.kubectl(&["get", "namespace", &world.namespace("foo"), "-o", "json"]);
    let mut prepared: serde_json::Value = serde_json::from_str(&found).expect("kubectl prints JSON");
    let metadata = prepared["metadata"].take();
    prepared["metadata"] = serde_json::json!({
        "name": world.namespace("bar"), "labels": metadata["labels"], "annotations": metadata["annotations"],
    });
    prepared["metadata"]["labels"]
        .as_object_mut()
        .expect("the namespace has labels")
        .remove("kubernetes.io/metadata.name");
    for part in ["spec", "status"] {
        prepared.as_object_mut().expect("kubectl prints an object").remove(part);
    }
    for watched in [false, true] {
        world.servers.cluster.run(&["create", "-f", "-"], &prepared.to_string());
        if !watched {
            world.tool("bar", 62_282, &[]);
        }
        wait_for("the namespace is reported as foreign", DEADLINE, || {
            let report = world.cycle();
            report.failing.iter().any(|failing| failing.reason.contains("bursar adopt namespace")).then_some(())
        });
        let bound = world.kubectl(&["get", "rolebindings", "-n", &world.namespace("bar"), "-o", "name"]);
        assert_eq!(bound, "");
        world.kubectl(&["delete", "namespace", &world.namespace("bar")]);
    }
}

/// Like a site's own policy, this refuses every request for tool bar.
const REFUSING: &str = r#"
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: no-bar}
spec:
  matchConstraints:
    resourceRules:
      - {apiGroups: [certificates.k8s.io], apiVersions: [v1], operations: [CREATE], resources: [certificatesigningrequests]}
      - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}
  validations: [{expression: "!object.metadata.name.startsWith('bursar-tool-bar')", message: not for bar}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: no-bar}
spec: {policyName: no-bar, validationActions: [Deny]}
"#;

#[test]
fn a_certificate_that_is_refused_or_never_issued_fails_only_its_own_tool() {
    let servers = Arc::new(Servers::start());
    let mut world = World::on(servers.clone(), "unsigned", "");
    world.tool("foo", 62_271, &[]);
    world.cycle();
    let controllers = servers.cluster.controller_manager().expect("these servers have a controller manager");
    world.servers.cluster.run(&["apply", "-f", "-"], REFUSING);
    wait_for("the policy is in force", DEADLINE, || {
        let mut probe = world.servers.cluster.kubectl();
        probe.args(["create", "configmap", "bursar-tool-bar", "--dry-run=server"]);
        (!probe.output().expect("kubectl is installed").status.success()).then_some(())
    });
    let frozen = controllers.frozen();
    world.tool("bar", 62_272, &[]);
    world.tool("baz", 62_273, &[]);
    let namespace = world.namespace("foo");
    let cluster = &servers.cluster;
    cluster.run(&["delete", "rolebinding", "bursar-bursar-tenant", "-n", &namespace], "");
    world.wait_for_drift(&["tool foo", "role binding"]);
    let report = std::thread::scope(|scope| {
        let repaired = scope.spawn(|| {
            wait_for("the binding of foo is repaired", DEADLINE, || {
                let found = cluster.run(&["get", "rolebindings", "-n", &namespace, "-o", "name"], "");
                found.contains("bursar-bursar-tenant").then(Instant::now)
            })
        });
        let (report, ended) = (world.cycle(), Instant::now());
        assert!(
            repaired.join().expect("the thread does not panic") < ended,
            "the repair of foo does not wait for the signer"
        );
        report
    });
    let failing: Vec<_> = report.failing.iter().map(|failing| failing.account.to_string()).collect();
    assert_eq!(failing, ["tool:bar", "tool:baz"], "{report:#?}");
    assert!(report.failing[0].reason.contains("not for bar"), "{report:#?}");
    assert!(report.failing[1].reason.contains("no certificate within 30 s"), "{report:#?}");
    drop(frozen);
    cluster.run(&["delete", "-f", "-"], REFUSING);
    world.clock = || daemon::now() + SignedDuration::from_mins(2);
    world.stop();
    wait_for("both tools have their certificates", DEADLINE, || (world.cycle().failing.is_empty()).then_some(()));
    for tool in ["bar", "baz"] {
        assert!(world.kubectl_as_tool(tool, &["get", "pods"]).status.success(), "{tool}");
    }
}
