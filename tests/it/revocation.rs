//! `bursar revoke` returns when the API server refuses the old certificate and the new one is delivered. The revocation
//! of a whole class finishes even if daemon and command are killed in the middle.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use bursar_testkit::Servers;
use bursar_testkit::control_plane::ControlPlaneOptions;
use bursar_testkit::process::Process;
use bursar_testkit::ready::{DEADLINE, wait_for};

use crate::daemon::{Daemon, status};
use crate::quiet::own_servers;
use crate::recovery::steps;
use crate::world::{World, all_is_well, stderr};

const RUNBOOK: &str = include_str!("../../docs/runbooks/stolen-laptop.md");
const TOOLS: [&str; 6] = ["ta", "tb", "tc", "td", "te", "tf"];

fn stolen(world: &World, tool: &str) -> PathBuf {
    world.folder.join(format!("stolen-{tool}"))
}

/// Makes a site with tools, and copies their kubeconfigs as a thief would.
fn site_on(servers: Arc<Servers>, name: &str, first_uid: u32, tools: &[&str]) -> World {
    let mut world = World::on(servers, name, "\n[limits]\nchange_per_cycle = { count = 2 }\n");
    for (uid, tool) in (first_uid..).zip(tools) {
        world.tool(tool, uid, &[]);
    }
    all_is_well(&world.cycle());
    for tool in tools {
        std::fs::copy(world.kubeconfig(tool), stolen(&world, tool)).expect("the file can be copied");
    }
    world.stop();
    world
}

fn refused_and_replaced(world: &World, tool: &str) {
    let refused = world.kubectl_with(&stolen(world, tool), &["get", "pods"]);
    assert!(stderr(&refused).contains("Forbidden"), "{tool}: {}", stderr(&refused));
    let works = world.kubectl_as_tool(tool, &["get", "pods"]);
    assert!(works.status.success(), "{tool}: {}", stderr(&works));
}

/// Returns how often each account was revoked.
fn revoked(world: &World) -> BTreeMap<String, i64> {
    let rows = world.rows("SELECT account, count(*) AS times FROM history WHERE action = 'revoked' GROUP BY account");
    let row = |row: &serde_json::Map<String, serde_json::Value>| {
        (
            row["account"].as_str().expect("the value is a string").to_owned(),
            row["times"].as_i64().expect("the value is a number"),
        )
    };
    rows.iter().map(row).collect()
}

#[test]
fn a_revocation_returns_when_the_old_certificate_is_refused_and_the_new_one_delivered() {
    // The test has its own cluster, because bindings that are made by hand there affect every revocation.
    let world = site_on(Arc::new(Servers::start()), "revoke", 62_801, &["foo"]);
    let daemon = Daemon::ready(&world);
    let done = world.run(&["revoke", "tool", "foo", "--reason", "laptop stolen"]);
    assert!(done.status.success(), "{}", stderr(&done));
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    let file = world.kubeconfig("foo").display().to_string();
    for proof in ["tool:foo: generation ", "the API server of test refuses older credentials (asked 20", file.as_str()]
    {
        assert!(said.contains(proof), "{proof}: {said}");
    }
    refused_and_replaced(&world, "foo");
    let proofs = world.rows("SELECT detail FROM history WHERE action = 'old credentials refused'");
    assert_eq!(proofs.len(), 1, "{proofs:?}");

    // A binding that was made by hand keeps what it grants to the old certificate. Then the revocation is not proved,
    // but the owner still gets the new certificate.
    let namespace = world.namespace("foo");
    for (name, whom) in [("by-hand", "--user=tool:foo"), ("for-all", "--group=bursar:tools")] {
        world.kubectl(&["create", "rolebinding", name, "--clusterrole=view", whom, "-n", &namespace]);
        let failed = world.run(&["revoke", "tool", "foo", "--reason", "again"]);
        assert_eq!(failed.status.code(), Some(1));
        let said = stderr(&failed);
        assert!(
            said.contains(&format!("RoleBinding {name} in namespace {namespace} gives ClusterRole view")),
            "{said}"
        );
        assert!(world.kubectl_as_tool("foo", &["get", "pods"]).status.success());
        world.kubectl(&["delete", "rolebinding", name, "-n", &namespace]);
    }
    // The same holds for a copied binding with Bursar's label in a namespace that the ledger does not know.
    world.kubectl(&["create", "namespace", "shared"]);
    let copied = world.kubectl(&["get", "rolebinding", "bursar-bursar-tenant", "-n", &namespace, "-o", "json"]);
    let mut copied: serde_json::Value = serde_json::from_str(&copied).expect("the text is JSON");
    copied["metadata"] =
        serde_json::json!({"name": "copied", "namespace": "shared", "labels": copied["metadata"]["labels"]});
    world.servers.cluster.run(&["create", "-f", "-"], &copied.to_string());
    wait_for("the watch shows the copied binding", DEADLINE, || {
        let planned = world.run(&["plan"]);
        String::from_utf8_lossy(&planned.stdout).contains("rolebinding shared/copied").then_some(())
    });
    let failed = world.run(&["revoke", "tool", "foo", "--reason", "again"]);
    assert_eq!(failed.status.code(), Some(1));
    let said = stderr(&failed);
    assert!(said.contains("RoleBinding copied in namespace shared gives ClusterRole bursar-tenant"), "{said}");
    world.kubectl(&["delete", "rolebinding", "copied", "-n", "shared"]);
    world.kubectl(&["delete", "namespace", "shared", "--wait=false"]);

    let proofs = "SELECT detail FROM history WHERE action = 'old credentials refused'";
    assert_eq!(world.rows(proofs).len(), 1);
    let done = world.run(&["revoke", "tool", "foo", "--reason", "again"]);
    assert!(done.status.success(), "{}", stderr(&done));
    assert_eq!(world.rows(proofs).len(), 2);
    daemon.stop();
}

/// Installs an admission policy of the site that refuses this operation in this namespace.
fn refuse(world: &World, name: &str, group: &str, resource: &str, operation: &str, namespace: &str) -> String {
    let rule = format!(
        r#"
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {{name: {name}}}
spec:
  matchConstraints:
    namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {namespace}}}}}
    resourceRules:
      - {{apiGroups: ["{group}"], apiVersions: [v1], operations: [{operation}], resources: [{resource}]}}
  validations: [{{expression: "false", message: refused by the site}}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {{name: {name}}}
spec: {{policyName: {name}, validationActions: [Deny]}}
"#
    );
    world.servers.cluster.run(&["apply", "-f", "-"], &rule);
    rule
}

fn in_force(world: &World, probe: &[&str]) {
    wait_for("the rule is in force", DEADLINE, || {
        let mut command = world.servers.cluster.kubectl();
        command.args(probe).arg("--dry-run=server");
        stderr(&command.output().expect("kubectl is installed")).contains("refused by the site").then_some(())
    });
}

#[test]
fn a_revocation_removes_the_old_access_even_if_the_mark_cannot_be_raised() {
    let world = site_on(own_servers(&ControlPlaneOptions::default()), "unmarked", 62_831, &["foo"]);
    let rule = refuse(&world, "no-mark", "", "configmaps", "UPDATE", "bursar");
    in_force(&world, &["annotate", "configmap", "bursar-mark", "-n", "bursar", "a=b"]);
    let daemon = Daemon::ready(&world);
    let failed = world.run(&["revoke", "tool", "foo", "--reason", "stolen"]);
    assert_eq!(failed.status.code(), Some(1));
    assert!(stderr(&failed).contains("bursar-mark"), "{}", stderr(&failed));
    let refused = world.kubectl_with(&stolen(&world, "foo"), &["get", "pods"]);
    assert!(stderr(&refused).contains("Forbidden"), "{}", stderr(&refused));
    world.servers.cluster.run(&["delete", "-f", "-"], &rule);
    wait_for("the new certificate works", 2 * DEADLINE, || {
        world.kubectl_as_tool("foo", &["get", "pods"]).status.success().then_some(())
    });
    refused_and_replaced(&world, "foo");
    daemon.stop();
}

#[test]
fn a_failed_removal_is_retried_without_a_schedule() {
    let mut world = World::with("unsched", "\n[schedule]\ncycle = \"0 0 1 1 *\"\nfull_read = \"0 0 1 1 *\"\n");
    world.tool("foo", 62_879, &[]);
    assert_eq!(world.cycle().exit_code(), 0);
    world.stop();
    let namespace = world.namespace("foo");
    let daemon = Daemon::ready(&world);
    let rule = refuse(&world, "no-removal", "rbac.authorization.k8s.io", "rolebindings", "DELETE", &namespace);
    in_force(&world, &["delete", "rolebinding", "bursar-bursar-tenant", "-n", &namespace]);
    let failed = world.run(&["suspend", "tool", "foo", "--reason", "mining"]);
    assert_eq!(failed.status.code(), Some(1), "{}", stderr(&failed));
    let bound = || world.kubectl(&["get", "rolebindings", "-n", &namespace, "-o", "name"]);
    assert!(bound().contains("bursar-bursar-tenant"), "{}", bound());
    world.servers.cluster.run(&["delete", "-f", "-"], &rule);
    wait_for("the binding is removed", DEADLINE, || (!bound().contains("bursar-bursar-tenant")).then_some(()));
    daemon.stop();
}

#[test]
fn the_runbook_of_a_stolen_laptop_works() {
    // The test has its own cluster: sites that share one have tools with the same names and generations.
    let world = site_on(Arc::new(Servers::start()), "laptop", 62_821, &["foo", "bar"]);
    let daemon = Daemon::ready(&world);
    let rows =
        world.rows("SELECT fingerprint FROM certificate c JOIN tools t ON t.id = c.account_id WHERE t.name = 'foo'");
    let fingerprint = rows[0]["fingerprint"].as_str().expect("the value is a string");
    let steps =
        ["Revoke it", "Who used it", "If nobody"].map(|part| steps(RUNBOOK, part, &[("FINGERPRINT", fingerprint)]));
    for words in steps.concat() {
        let done = world.run(&words[1..].iter().map(String::as_str).collect::<Vec<_>>());
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success(), "{words:?}: {said}{}", stderr(&done));
        if words[1] == "certs" {
            assert!(said.contains("tool:foo"), "{said}");
        }
    }
    for tool in ["foo", "bar"] {
        refused_and_replaced(&world, tool);
    }
    daemon.stop();
}

#[test]
fn a_class_is_revoked_once_although_daemon_and_command_are_killed() {
    // The test has its own cluster: sites that share one have tools with the same names and generations.
    let mut world = site_on(Arc::new(Servers::start()), "bulk", 62_811, &TOOLS);
    let arguments = ["revoke", "--all", "--class", "tool", "--reason", "control host stolen", "--ticket", "T7"];
    for killed_after in [1, 3] {
        let daemon = Daemon::ready(&world);
        let follows = Process::start("bursar", &world.command(&arguments), &world.folder.join("revoke.log"));
        wait_for("enough accounts are revoked", DEADLINE, || (revoked(&world).len() >= killed_after).then_some(()));
        daemon.process.kill();
        follows.kill();
    }
    let daemon = Daemon::ready(&world);
    let done = world.run(&arguments);
    assert!(done.status.success(), "{}", stderr(&done));
    let once: BTreeMap<String, i64> = TOOLS.iter().map(|tool| (format!("tool:{tool}"), 1)).collect();
    assert_eq!(revoked(&world), once);
    for tool in TOOLS {
        refused_and_replaced(&world, tool);
    }
    assert!(status(&world)["revocations"].as_array().is_some_and(Vec::is_empty));
    let told = world.rows("SELECT ticket, detail FROM history WHERE action = 'class revoked'");
    assert_eq!((told.len(), &told[0]["ticket"]), (1, &"T7".into()), "{told:?}");
    // After the end of a revocation, the same command starts another one.
    let again = world.run(&["--json", "revoke", "--all", "--class", "tool", "--reason", "again"]);
    let answer: serde_json::Value = serde_json::from_slice(&again.stdout).expect("the text is JSON");
    assert_eq!(answer["revocation"]["done"], TOOLS.len(), "{answer}");
    assert!(revoked(&world).values().all(|times| *times == 2));
    // As for a single account, a binding that was made by hand keeps what it grants, and is reported.
    let namespace = world.namespace(TOOLS[0]);
    let whom = format!("--user=tool:{}", TOOLS[0]);
    world.kubectl(&["create", "rolebinding", "by-hand", "--clusterrole=view", &whom, "-n", &namespace]);
    let bound = world.run(&["revoke", "--all", "--class", "tool", "--reason", "bound"]);
    let said = stderr(&bound);
    assert_eq!(bound.status.code(), Some(1), "{said}");
    let expected =
        format!("tool:{} in test: RoleBinding by-hand in namespace {namespace} gives ClusterRole view", TOOLS[0]);
    assert!(said.contains(&expected) && said.matches(" in test: ").count() == 1, "{said}");
    world.kubectl(&["delete", "rolebinding", "by-hand", "-n", &namespace]);
    assert!(world.run(&["revoke", "--all", "--class", "tool", "--reason", "clean"]).status.success());
    // The revocation is not over before the last account has its new certificate.
    let (folder, aside) = (world.home("td").join(".kube"), world.home("td").join("aside"));
    std::fs::rename(&folder, &aside).expect("the parent folder is writable");
    std::fs::write(&folder, "no folder").expect("the folder is writable");
    let times = revoked(&world);
    for _ in 0..2 {
        let open = world.run(&["revoke", "--all", "--class", "tool", "--reason", "broken"]);
        let (said, told) = (stderr(&open), String::from_utf8_lossy(&open.stdout).into_owned());
        assert_eq!(open.status.code(), Some(1), "{said}");
        assert!(said.contains("tool:td: revoke waits for home in test") && said.contains("not finished"), "{said}");
        assert!(told.contains("5 of 6 are revoked, 0 waiting, 1 under way"), "{told}");
        assert!(revoked(&world).iter().all(|(tool, now)| *now == times[tool] + 1), "each account is revoked once");
    }
    std::fs::remove_file(&folder).expect("the file exists");
    std::fs::rename(&aside, &folder).expect("the parent folder is writable");
    wait_for("the revocation is over", 4 * DEADLINE, || {
        status(&world)["revocations"].as_array().is_some_and(Vec::is_empty).then_some(())
    });
    let nobody = world.run(&["revoke", "--all", "--class", "none", "--reason", "x"]);
    assert_eq!(nobody.status.code(), Some(4), "{}", stderr(&nobody));
    // The daemon revokes although the configuration file now has errors, and the check for other bindings works too.
    world.configure("[class.tool]", "[lifecycl]\n[class.tool]");
    let despite = world.run(&["revoke", "--all", "--class", "tool", "--reason", "file"]);
    let said = stderr(&despite);
    assert!(despite.status.success() && !said.contains("it is not known whether"), "{said}");
    daemon.stop();
}
