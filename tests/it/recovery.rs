//! A lost ledger is rebuilt, and another host takes over a cluster, as the runbooks say. These tests have their own
//! servers, because a cluster has one owner.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use bursar::orders::request::OrderRequest;
use bursar_testkit::control_plane::ControlPlaneOptions;
use bursar_testkit::ldif::{disable_ldif, tool_account_dn};
use bursar_testkit::process::Process;
use bursar_testkit::ready::{DEADLINE, poll, wait_for};
use rustix::process::Signal;
use serde_json::Value;

use crate::daemon::Daemon;
use crate::quiet::own_servers;
use crate::world::{World, target, text};

const ARCHIVED_AT_ONCE: &str = "[lifecycle]\nretention = \"0s\"\ndelete_after = \"40d\"\n";

fn bursar(config: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bursar"));
    command.arg("--config").arg(config).arg("--json").args(arguments);
    command
}

fn ends(config: &Path, arguments: &[&str], exit: i32) -> Value {
    let output = bursar(config, arguments).output().expect("bursar is built");
    assert_eq!(output.status.code(), Some(exit), "{arguments:?}: {}", text(&output));
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

const LOST_LEDGER: &str = include_str!("../../docs/runbooks/lost-ledger.md");
const STOLEN_HOST: &str = include_str!("../../docs/runbooks/stolen-control-host.md");

/// Returns the commands in the `sh` blocks of a section of a runbook. `here` maps words of the runbook to their values
/// in the test.
pub fn steps(runbook: &str, section: &str, here: &[(&str, &str)]) -> Vec<Vec<String>> {
    let part = runbook.split("\n## ").find(|part| part.starts_with(section)).expect("the text has this part");
    let blocks = part.split("```sh\n").skip(1).filter_map(|block| block.split("```").next());
    let is_command = |line: &&str| ["bursar ", "kubectl ", "rm "].iter().any(|program| line.starts_with(program));
    let lines = blocks.flat_map(str::lines).map(str::trim_start).filter(is_command);
    lines
        .map(|line| words(&here.iter().fold(line.to_owned(), |line, (there, here)| line.replace(there, here))))
        .collect()
}

/// Splits a line into words as a shell does, if its only quotes are double quotes.
fn words(line: &str) -> Vec<String> {
    let parts = line.split('"').enumerate();
    parts
        .flat_map(|(index, part)| match index % 2 {
            0 => part.split_whitespace().map(str::to_owned).collect(),
            _ => vec![part.to_owned()],
        })
        .collect()
}

/// Runs a step, which must succeed.
fn follow(config: &Path, step: &[String]) -> Value {
    let arguments: Vec<&str> = step.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["bursar", rest @ ..] => ends(config, rest, 0),
        ["rm", file] => {
            fs::remove_file(file).expect("the file exists");
            Value::Null
        }
        other => panic!("{other:?}"),
    }
}

/// Returns the facts of the ledger that a rebuild must find again.
fn standing(world: &World) -> Vec<serde_json::Map<String, Value>> {
    world.rows(
        "SELECT a.id, a.kind, a.name, a.kubernetes_name, a.uid, a.state, a.generation, c.fingerprint, t.namespace
         FROM account a LEFT JOIN certificate c ON c.account_id = a.id AND c.newest = 1 AND a.state = 'active'
         LEFT JOIN tenant t ON t.account_id = a.id WHERE a.state <> 'new' ORDER BY a.kind, a.name",
    )
}

fn written(path: PathBuf) -> SystemTime {
    fs::metadata(path).and_then(|file| file.modified()).expect("the path exists")
}

#[test]
fn a_lost_ledger_is_rebuilt_without_suspensions_or_new_certificates() {
    let mut world = World::on(own_servers(&ControlPlaneOptions::default()), "lost", ARCHIVED_AT_ONCE);
    for (uid, tool) in (65_101..).zip(["foo", "bar", "off"]) {
        world.tool(tool, uid, &["alice"]);
    }
    world.person("alice", 65_111);
    world.person("carol", 65_112);
    world.group("k8s-admins", &["carol"]);
    world.cycle();
    world.order(&OrderRequest::Revoke(target("foo"))).expect("the order is accepted");
    world.order(&OrderRequest::Suspend(target("bar"))).expect("the order is accepted");
    world.servers.slapd.modify_ldif(&disable_ldif(&tool_account_dn(&world.base, "off")));
    let report = wait_for("a cycle has nothing to do", DEADLINE, || {
        let report = world.cycle();
        (report.exit_code() == 0 && report.actions == 0).then_some(report)
    });
    assert!(report.failing.is_empty());
    world.stop();
    let before = standing(&world);
    assert_eq!(before.len(), 4, "{before:#?}");
    let files_of = |world: &World| world.rows("SELECT * FROM archives");
    let archived = files_of(&world);
    assert_eq!(archived.len(), 1, "{archived:#?}");
    let kubeconfigs = |world: &World| {
        let carol = world.kubeconfig_of("carol");
        [written(world.kubeconfig("foo")), written(carol)]
    };
    let files = kubeconfigs(&world);
    let last =
        world.rows("SELECT last_generation FROM ledger")[0]["last_generation"].as_i64().expect("the value is a number");

    let config = world.config();
    ends(&config, &["ledger", "rebuild"], 1); // the ledger exists
    fs::remove_file(world.state_dir().join("ledger.db")).expect("the file exists");
    world.servers.slapd.stop();
    ends(&config, &["ledger", "rebuild"], 1); // without the directory, absent accounts are unknown
    world.servers.slapd.start_again();
    for milliseconds in [100, 200, 300] {
        let mut command = bursar(&config, &["ledger", "rebuild"]);
        let mut killed = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("bursar is built");
        let _ = poll(Duration::from_millis(milliseconds), || false);
        killed.kill().expect("an ended process can be killed too");
        killed.wait().expect("the process can be waited for");
        for file in ["ledger.db", "ledger.db-wal", "ledger.db-shm"] {
            let _ = fs::remove_file(world.state_dir().join(file));
        }
    }
    let admin = world.servers.cluster.admin_kubeconfig.display().to_string();
    let (access, aside) = (world.state_dir().join("clusters"), world.folder.join("clusters"));
    fs::rename(&access, &aside).expect("the daemon's access is lost too");
    ends(&config, &["ledger", "rebuild"], 1);
    let without = ends(&config, &["ledger", "rebuild", "--admin-kubeconfig", &admin], 0);
    fs::remove_file(world.state_dir().join("ledger.db")).expect("the file exists");
    fs::rename(&aside, &access).expect("the file exists");
    let here = [("/root/admin.kubeconfig", admin.as_str())];
    let mut steps = steps(LOST_LEDGER, "Without a backup", &here);
    steps.retain(|step| step[1] != "quota"); // no quota differs here
    assert_eq!(steps.len(), 2, "{steps:?}");
    let rebuilt = follow(&config, &steps[0]);
    assert_eq!(rebuilt["certificates"], 2, "{rebuilt:#}");
    let unknown: Vec<&str> = rebuilt["unknown"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    assert!(unknown.iter().any(|doubt| doubt.contains("tool:bar is suspended for an unknown reason")), "{unknown:#?}");
    assert!(
        !unknown.iter().any(|doubt| doubt.contains("tool:off")),
        "the directory shows why the tool is suspended: {unknown:#?}"
    );
    assert!(rebuilt["last_generation"].as_i64() >= Some(last + 1000), "{rebuilt:#}");
    assert_eq!((&without["certificates"], &without["unknown"]), (&rebuilt["certificates"], &rebuilt["unknown"]));
    ends(&config, &["sync", "--once"], 78); // this ledger does not own the cluster yet
    follow(&config, &steps[1]);

    let report = world.cycle();
    assert_eq!((report.exit_code(), report.partial.len()), (0, 0), "{report:#?}");
    world.idle_cycle();
    assert_eq!(standing(&world), before);
    assert_eq!(files_of(&world), archived);
    assert_eq!(kubeconfigs(&world), files, "kubeconfigs are not written again");
    let own = world.kubectl_as_tool("foo", &["auth", "can-i", "create", "pods"]);
    assert_eq!(String::from_utf8_lossy(&own.stdout).trim(), "yes");
    ends(&config, &["ledger", "verify"], 0);
}

#[test]
fn after_a_takeover_the_former_owner_cannot_write() {
    let mut world = World::on(own_servers(&ControlPlaneOptions::default()), "stolen", "");
    world.tool("foo", 65_201, &[]);
    world.cycle();
    world.stop();
    let backup = world.folder.join("backup.db");
    ends(&world.config(), &["ledger", "backup", &backup.display().to_string()], 0);
    // The backup does not contain this revocation.
    world.order(&OrderRequest::Revoke(target("foo"))).expect("the order is accepted");
    world.stop();
    let generation = |ledger: &str| {
        let rows = Command::new("sqlite3")
            .arg(ledger)
            .arg("SELECT generation FROM tools")
            .output()
            .expect("sqlite3 is installed");
        String::from_utf8_lossy(&rows.stdout).trim().parse::<u64>().expect("the value is a number")
    };
    let former = world.state_dir();
    let revoked = generation(&former.join("ledger.db").display().to_string());
    let daemon = Daemon::ready(&world);

    // The standby host has its own folder, a copy of the seal's key, the same homes and the same directory.
    let standby = world.folder.join("standby");
    fs::create_dir_all(&standby).expect("the parent folder is writable");
    fs::copy(former.join("seal.key"), standby.join("seal.key")).expect("the file can be copied");
    let config = world.folder.join("standby.toml");
    let text = fs::read_to_string(world.config()).expect("the world has a configuration");
    let text = text
        .replace(&format!("{}/state", world.folder.display()), &standby.display().to_string())
        .replace("control.sock", "standby.sock");
    fs::write(&config, text).expect("the folder is writable");
    let (admin, copy) = (world.servers.cluster.admin_kubeconfig.display().to_string(), backup.display().to_string());
    let key = standby.join("seal.key").display().to_string();
    let here = [
        ("/root/admin.kubeconfig", admin.as_str()),
        ("/root/ledger.db", copy.as_str()),
        ("/var/lib/bursar/seal.key", key.as_str()),
        ("--cluster prod", "--cluster test"),
    ];
    let bindings = || world.kubectl(&["get", "rolebindings", "-n", &world.namespace("foo"), "-o", "name"]);
    assert!(bindings().contains("bursar-"), "{}", bindings());
    for step in steps(STOLEN_HOST, "The first ten minutes", &here) {
        let arguments: Vec<&str> = step.iter().skip(1).map(String::as_str).collect();
        world.kubectl(&arguments);
    }
    assert!(!bindings().contains("bursar"), "{}", bindings());
    let [restore, takeover, status] = &steps(STOLEN_HOST, "Take the clusters over", &here)[..] else { panic!("steps") };
    let arguments: Vec<&str> = takeover.iter().skip(1).map(String::as_str).collect();
    ends(&config, &arguments, 78); // there is no ledger yet
    follow(&config, restore);
    for milliseconds in [60, 150, 300] {
        let mut command = bursar(&config, &arguments);
        let mut killed = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("bursar is built");
        let _ = poll(Duration::from_millis(milliseconds), || false);
        killed.kill().expect("an ended process can be killed too");
        killed.wait().expect("the process can be waited for");
    }
    let report = follow(&config, takeover);
    follow(&config, status);
    assert_eq!(report["clusters"][0], "test", "{report}");

    assert_eq!(daemon.process.wait(DEADLINE).code(), Some(78), "{}", daemon.process.log_end());
    wait_for("the former owner's credential has lost its rights", DEADLINE, || {
        let kubeconfig = former.join("clusters/test.kubeconfig");
        let may = world.kubectl_with(&kubeconfig, &["auth", "can-i", "list", "namespaces"]);
        (String::from_utf8_lossy(&may.stdout).trim() == "no").then_some(())
    });

    wait_for("a cycle has nothing to do", DEADLINE, || {
        (ends(&config, &["sync", "--once"], 0)["actions"] == 0).then_some(())
    });
    let ledger = standby.join("ledger.db").display().to_string();
    assert_eq!(generation(&ledger), revoked, "a revocation that is missing in the backup is still in force");
    let own = world.kubectl_as_tool("foo", &["auth", "can-i", "create", "pods"]);
    assert_eq!(String::from_utf8_lossy(&own.stdout).trim(), "yes", "{}", crate::world::stderr(&own));
    let seal = |world: &World| {
        world.kubectl(&["get", "namespace", &world.namespace("foo"), "-o", "jsonpath={.metadata.annotations}"])
    };
    let before = seal(&world);
    let steps = steps(STOLEN_HOST, "Make the rest worthless", &here);
    assert_eq!(steps.len(), 3, "{steps:?}");
    for step in &steps {
        follow(&config, step);
    }
    ends(&config, &["sync", "--once"], 0);
    assert_ne!(seal(&world), before, "the namespace is sealed with the new key");
    assert!(generation(&ledger) > revoked, "all earlier certificates are revoked");

    let mut command = Command::new(env!("CARGO_BIN_EXE_bursard"));
    command.arg("--config").arg(&config);
    let successor = Process::start("bursard", &command, &world.folder.join("standby.log"));
    successor.wait_until("the control socket", DEADLINE, || world.folder.join("standby.sock").exists());
    successor.signal(Signal::TERM);
    assert!(successor.wait(DEADLINE).success(), "{}", successor.log_end());
}
