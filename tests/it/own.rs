//! What people see of their own accounts, and that they see nothing else: over the control socket by their uid, and in
//! the cluster by their certificate.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Output};

use bursar::identity::AccountKind;
use bursar::orders::request::{OrderRequest, Target, Trigger};
use bursar_testkit::ldif::{disable_ldif, tool_account_dn};
use bursar_testkit::ready::{DEADLINE, poll, wait_for};
use serde_json::Value;

use crate::daemon::{Daemon, status};
use crate::world::{World, stderr};

const ANN: u32 = 63_401;
const BEN: u32 = 63_402;
const EVE: u32 = 63_421;

fn bursar(world: &World, uid: u32, arguments: &[&str]) -> Output {
    world.command(arguments).uid(uid).gid(uid).current_dir("/").output().expect("bursar is built")
}

fn json(world: &World, uid: u32, arguments: &[&str]) -> Value {
    let output = bursar(world, uid, &[&["--json"], arguments].concat());
    assert!(output.status.success(), "{arguments:?} by {uid}: {}", stderr(&output));
    serde_json::from_slice(&output.stdout).expect("bursar prints JSON")
}

/// The answer must be the same for accounts of others and for unknown accounts.
fn refused(world: &World, uid: u32, arguments: &[&str]) -> String {
    let output = bursar(world, uid, arguments);
    assert_eq!(output.status.code(), Some(77), "{arguments:?} by {uid}: {}", stderr(&output));
    assert!(output.stdout.is_empty());
    stderr(&output)
}

#[test]
fn people_can_query_only_their_own_accounts() {
    let mut world = World::new("own");
    world.person("own-ann", ANN);
    world.person("own-ben", BEN);
    world.group("k8s-admins", &["own-ann", "own-ben"]);
    world.tool("foo", 63_403, &["own-ann"]);
    world.tool("bar", 63_404, &["own-ben"]);
    assert_eq!(world.cycle().exit_code(), 0);
    world.stop();
    let daemon = Daemon::ready(&world);
    daemon.cycled(&world);

    let own = json(&world, ANN, &["show"]);
    assert_eq!(own["account"], "user:own-ann");
    assert_eq!(own["ledger"]["uid"], ANN);
    assert!(own["member_of"].as_array().is_some_and(|of| of.iter().any(|one| one["account"] == "tool:foo")), "{own}");
    assert_eq!(json(&world, ANN, &["show", "user", "own-ann"]), own);
    let tool = json(&world, ANN, &["show", "tool", "foo"]);
    assert_eq!(tool["namespaces"][0]["namespace"], world.namespace("foo"));
    assert!(tool["quotas"].as_array().is_some_and(|quotas| !quotas.is_empty()), "{tool}");
    wait_for("every step of the tool is done", DEADLINE, || {
        let why = json(&world, ANN, &["why", "tool", "foo"]);
        why["steps"].as_array().is_some_and(|steps| steps.iter().all(|step| step["ok"] == true)).then_some(())
    });
    let text = bursar(&world, ANN, &["why"]);
    assert!(String::from_utf8_lossy(&text.stdout).starts_with("user:own-ann\n+ "), "{text:?}");

    let nobody = refused(&world, ANN, &["show", "tool", "nobody"]);
    for (uid, arguments) in [
        (ANN, ["show", "tool", "bar"].as_slice()),
        (ANN, &["why", "tool", "bar"]),
        (ANN, &["show", "user", "own-ben"]),
        // She is in this group, but it is no workspace.
        (ANN, &["show", "group", "k8s-admins"]),
        (BEN, &["show", "tool", "foo"]),
        // A tool may not ask, and a uid that is in no directory has no account.
        (63_403, &["show"]),
        (63_499, &["why"]),
    ] {
        assert_eq!(refused(&world, uid, arguments), nobody, "{arguments:?} by {uid}");
    }
    for others in [["status"].as_slice(), &["tools"], &["plan"], &["history", "tool", "foo"]] {
        refused(&world, ANN, others);
    }
    daemon.stop();

    // A suspended person gets the same answer as an unknown one.
    let target =
        Target { kind: AccountKind::User, name: "own-ann".to_owned(), reason: Some("away".to_owned()), ticket: None };
    world.order(&OrderRequest::Suspend(target)).expect("the order is accepted");
    world.stop();
    let daemon = Daemon::ready(&world);
    assert_eq!(refused(&world, ANN, &["show"]), nobody);
    daemon.stop();
}

#[test]
fn a_tenant_reads_its_own_namespace_and_quota_and_no_other() {
    let mut world = World::new("ownns");
    world.tool("foo", 63_411, &[]);
    world.tool("bar", 63_412, &[]);
    assert_eq!(world.cycle().exit_code(), 0);
    let (own, other) = (world.namespace("foo"), world.namespace("bar"));
    let reads = |namespace: &str, what: &[&str]| {
        let arguments = [&["get"], what, &["-n", namespace]].concat();
        world.kubectl_as_tool("foo", &arguments).status.success()
    };
    let all: [&[&str]; 4] = [&["resourcequota", "bursar"], &["limitrange", "bursar"], &["networkpolicies"], &["pods"]];
    // The API server learns of bindings by a watch of its own.
    assert!(poll(DEADLINE, || reads(&own, &["namespace", &own])));
    for what in all {
        assert!(reads(&own, what), "{what:?}");
        assert!(!reads(&other, what), "{what:?}");
    }
    assert!(!reads(&own, &["namespace", &other]));
    assert!(!reads(&own, &["namespaces"]), "a tenant may not list the names of other namespaces");
}

/// A person who sends the same request to the daemon without end, over one connection after another, until this is
/// dropped.
struct Asking(Child);

impl Asking {
    fn begin(world: &World, path: &str, body: &str) -> Self {
        let socket = world.folder.join("control.sock");
        let curl = format!(
            "while :; do curl --silent --max-time 5 --output /dev/null --unix-socket {} --header 'content-type: \
             application/json' --data '{body}' 'http://bursard{path}?[1-1000]'; done",
            socket.display()
        );
        let mut shell = Command::new("setpriv");
        shell.args(["--pdeathsig=KILL", "bash", "-c", &curl]);
        Self(shell.uid(EVE).gid(EVE).process_group(0).current_dir("/").spawn().expect("bash is installed"))
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let group = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process_group(group, rustix::process::Signal::KILL).expect("the shell still runs");
        self.0.wait().expect("the shell was killed");
    }
}

/// A directory that never answers makes each cycle that reads it longer than a person waits at a login.
#[test]
fn endless_requests_of_people_delay_neither_orders_nor_marks() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("the system has a free port");
    let url = format!("ldap://{}", silent.local_addr().expect("a listener has an address"));
    let more = format!(
        "\n[[source]]\nname = \"slow\"\ntype = \"ldap\"\nurls = [{url:?}]\nallow_plaintext = true\ntimeout = \"20m\"\n\
         [source.users]\nbase = \"ou=people,dc=slow\"\n\n[limits]\ndisable_per_cycle = {{ count = 2 }}\n\
         disable_per_day = {{ count = 2 }}\n"
    );
    let mut world = World::with("askers", &more);
    world.person("askers-eve", EVE);
    world.group("k8s-admins", &["askers-eve"]);
    world.tool("foo", 63_422, &["askers-eve"]);
    world.tool("bar", 63_423, &[]);
    world.tool("baz", 63_424, &[]);
    assert!(world.cycle_by(Trigger::Schedule).failing.is_empty());
    world.stop();
    world.servers.slapd.modify_ldif(&disable_ldif(&tool_account_dn(&world.base, "bar")));
    let asked = [
        ("/v1/own/show", "{}"),
        ("/v1/own/why", "{}"),
        ("/v1/ensure", r#"{"kind": "user", "name": "askers-eve"}"#),
        ("/v1/ensure", r#"{"kind": "user", "name": "nobody"}"#),
    ];
    let asking = asked.map(|(path, body)| Asking::begin(&world, path, body));
    let daemon = Daemon::ready(&world);
    let is_suspended = |tool: &str| {
        let rows = world.rows("SELECT name FROM tools WHERE state = 'suspended'");
        rows.iter().any(|row| row["name"] == tool).then_some(())
    };
    wait_for("bar is suspended because of its mark", DEADLINE, || is_suspended("bar"));
    let suspended = bursar(&world, 0, &["suspend", "tool", "foo", "--reason", "mining"]);
    assert!(suspended.status.success(), "{}", stderr(&suspended));
    is_suspended("foo").expect("foo is suspended when the order is answered");
    assert!(status(&world)["last_cycle"].is_object());
    daemon.notified("WATCHDOG=1");
    drop(asking);

    // `bursar sync` uses the answer of one directory without waiting for the other one, which hangs.
    world.servers.slapd.modify_ldif(&disable_ldif(&tool_account_dn(&world.base, "baz")));
    let printed = world.folder.join("sync.txt");
    let file = File::create(&printed).expect("the folder is writable");
    let mut sync = world.command(&["sync"]).stdout(file).spawn().expect("bursar is built");
    let still = "source slow: still reading, 0 entries; there is no earlier answer";
    wait_for("sync has printed its first cycle", DEADLINE, || {
        fs::read_to_string(&printed).expect("the file exists").contains(still).then_some(())
    });
    let shown =
        || (fs::read_to_string(&printed).expect("the file exists"), world.rows("SELECT name, state FROM tools"));
    assert!(is_suspended("baz").is_some(), "baz is not suspended when the first cycle is printed: {:#?}", shown());
    assert!(sync.try_wait().expect("the process is a child").is_none(), "sync waits for the other directory");
    sync.kill().expect("the process still runs");
    sync.wait().expect("the process was killed");
    daemon.stop();
}
