//! `bursard` as systemd runs it: readiness, watchdog, signals and the control socket. Members of its group can always
//! read the ledger.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use bursar_testkit::process::Process;
use bursar_testkit::ready::{DEADLINE, wait_for};
use rustix::process::Signal;
use serde_json::Value;

use crate::world::World;

pub struct Daemon {
    pub process: Process,
    /// A thread reads the notifications as they come, as systemd does. Otherwise the socket would fill up and block the
    /// daemon.
    notifications: Receiver<String>,
}

impl Daemon {
    pub fn start(world: &World) -> Self {
        let socket = world.folder.join("notify.sock");
        let _ = std::fs::remove_file(&socket);
        let notifications = UnixDatagram::bind(&socket).expect("the folder is writable");
        let (heard, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length) = notifications.recv(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
                if text.lines().any(|line| heard.send(line.to_owned()).is_err()) {
                    return;
                }
            }
        });
        let mut command = Command::new(env!("CARGO_BIN_EXE_bursard"));
        command.arg("--config").arg(world.config());
        command.env("NOTIFY_SOCKET", &socket).env("WATCHDOG_USEC", "1000000");
        let process = Process::start("bursard", &command, &world.folder.join("bursard.log"));
        Self { process, notifications: lines }
    }

    /// Starts the daemon, and waits until it is ready.
    pub fn ready(world: &World) -> Self {
        let daemon = Self::start(world);
        daemon.notified("READY=1");
        daemon
    }

    /// Waits until the first cycle is over.
    pub fn cycled(&self, world: &World) {
        self.process.wait_until("the first cycle is over", DEADLINE, || status(world)["last_cycle"].is_object());
    }

    /// Waits for a line of `sd_notify(3)`.
    pub fn notified(&self, awaited: &str) {
        loop {
            let line = self.notifications.recv_timeout(DEADLINE).unwrap_or_else(|error| {
                panic!("no {awaited} came: {error}\n{}", self.process.log_end());
            });
            if line == awaited {
                return;
            }
        }
    }

    pub fn stop(self) {
        self.process.signal(Signal::TERM);
        let status = self.process.wait(DEADLINE);
        assert!(status.success(), "{status}\n{}", self.process.log_end());
    }
}

pub fn curl(world: &World, method: &str, path: &str) -> String {
    let output = Command::new("curl")
        .args(["--silent", "--show-error", "--request", method, "--unix-socket"])
        .arg(world.folder.join("control.sock"))
        .arg(format!("http://bursard{path}"))
        .output()
        .expect("curl is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn post(world: &World, path: &str, body: &Value) -> Value {
    let output = Command::new("curl")
        .args(["--silent", "--show-error", "--header", "content-type: application/json", "--data"])
        .arg(body.to_string())
        .arg("--unix-socket")
        .arg(world.folder.join("control.sock"))
        .arg(format!("http://bursard{path}"))
        .output()
        .expect("curl is installed");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
}

pub fn status(world: &World) -> Value {
    serde_json::from_str(&curl(world, "GET", "/v1/status")).expect("the text is JSON")
}

/// Returns what plain `sqlite3` prints for a user who may read the ledger but not write it.
fn read_as_group_member(world: &World) -> String {
    const READER: u32 = 61_999;
    let ledger = world.state_dir().join("ledger.db");
    // The package gives the state folder and its files to group `bursar`. Here the reader's own group takes that place.
    for path in [
        world.state_dir(),
        ledger.clone(),
        world.state_dir().join("ledger.db-wal"),
        world.state_dir().join("ledger.db-shm"),
    ] {
        if path.exists() {
            std::os::unix::fs::chown(&path, None, Some(READER)).expect("tests run as root, who may change owners");
        }
    }
    let mode = std::fs::metadata(&ledger).expect("the ledger exists").permissions().mode() & 0o777;
    assert_eq!(mode, 0o640);
    let output = Command::new("sqlite3")
        .arg(&ledger)
        .arg("SELECT name, state FROM tools")
        .uid(READER)
        .gid(READER)
        .current_dir("/")
        .output()
        .expect("sqlite3 is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
fn the_ledger_is_readable_while_the_daemon_runs_after_it_stopped_and_after_it_was_killed() {
    let mut world = World::new("readable");
    world.tool("foo", 61401, &[]);
    world.stop();
    let daemon = Daemon::ready(&world);
    daemon.cycled(&world);
    assert_eq!(read_as_group_member(&world), "foo|active");
    daemon.process.kill();
    assert_eq!(read_as_group_member(&world), "foo|active");
    let daemon = Daemon::ready(&world);
    daemon.stop();
    assert!(!world.state_dir().join("ledger.db-wal").exists());
    assert_eq!(read_as_group_member(&world), "foo|active");
}

#[test]
fn the_daemon_tells_systemd_that_it_is_ready_alive_reloading_and_stopping() {
    let world = World::new("notify");
    let daemon = Daemon::ready(&world);
    daemon.notified("WATCHDOG=1");
    daemon.process.signal(Signal::HUP);
    daemon.notified("RELOADING=1");
    daemon.notified("READY=1");
    daemon.process.signal(Signal::TERM);
    daemon.notified("STOPPING=1");
    assert!(daemon.process.wait(DEADLINE).success());
}

#[test]
fn a_wrong_configuration_does_not_replace_the_one_in_force() {
    let world = World::new("reload");
    let daemon = Daemon::ready(&world);
    let right = std::fs::read_to_string(world.config()).expect("the world has a configuration");
    std::fs::write(world.config(), right.replace("site = \"reload\"", "sight = \"reload\""))
        .expect("the folder is writable");
    daemon.process.signal(Signal::HUP);
    daemon.notified("RELOADING=1");
    daemon.notified("READY=1");
    assert_eq!(status(&world)["site"], "reload");
    std::fs::write(world.config(), right.replace("site = \"reload\"", "site = \"another\""))
        .expect("the folder is writable");
    daemon.process.signal(Signal::HUP);
    daemon.notified("RELOADING=1");
    daemon.notified("READY=1");
    assert_eq!(status(&world)["site"], "another");
    daemon.stop();
}

#[test]
fn the_control_socket_answers_status_plan_sync_and_metrics() {
    let world = World::new("control");
    world.tool("foo", 61402, &[]);
    let daemon = Daemon::ready(&world);
    let report: Value = serde_json::from_str(&curl(&world, "POST", "/v1/sync")).expect("the text is JSON");
    assert_eq!((&report["failing"], &report["trigger"]), (&Value::Array(Vec::new()), &Value::from("sync")), "{report}");
    let plan: Value = serde_json::from_str(&curl(&world, "GET", "/v1/plan")).expect("the text is JSON");
    assert_eq!(plan["exit_code"], 0, "{plan}");
    assert_eq!(status(&world)["clusters"]["test"]["ready"], true);
    let metrics = curl(&world, "GET", "/metrics");
    assert!(metrics.contains("bursar_accounts{state=\"active\"} 1"), "{metrics}");
    daemon.stop();
}

#[test]
fn an_order_cuts_a_long_cycle_short_and_the_rest_is_done_after_it() {
    const OTHERS: u32 = 60;
    let mut world = World::new("cut");
    world.tool("foo", 61_600, &[]);
    world.cycle();
    world.stop();
    for number in 1..=OTHERS {
        world.tool(&format!("c{number}"), 61_600 + number, &[]);
    }
    let daemon = Daemon::ready(&world);
    let lost = |reason: &str| serde_json::json!({"order": "revoke", "kind": "tool", "name": "foo", "reason": reason});
    let missing = serde_json::json!({"order": "hold", "kind": "tool", "name": "nobody", "reason": "no such tool"});
    let answer = post(&world, "/v1/orders", &serde_json::json!([lost("a laptop"), missing]));
    assert_eq!(answer["refused"][0]["exit_code"], 4, "{answer}");
    let report = &answer["report"];
    assert_eq!((&report["trigger"], &report["failing"]), (&"order".into(), &Value::Array(Vec::new())), "{answer}");
    let active = |world: &World| world.rows("SELECT name FROM tools WHERE delivered_at IS NOT NULL").len();
    assert_eq!(curl(&world, "GET", "/healthz"), "ok\n");
    wait_for("all other tools are delivered", DEADLINE, || (active(&world) == OTHERS as usize + 1).then_some(()));
    daemon.stop();
    // A delivery is dated with the second in which its cycle began.
    let later = "SELECT name FROM tools WHERE name <> 'foo' AND unixepoch(delivered_at) >= \
                 (SELECT unixepoch(ended) FROM cycle WHERE trigger = 'order')";
    assert!(!world.rows(later).is_empty(), "the order waited for the whole bootstrap");
    let cycles = world.rows("SELECT trigger FROM cycle ORDER BY id");
    let triggers: Vec<_> = cycles.iter().skip(1).filter_map(|cycle| cycle["trigger"].as_str()).collect();
    // If the order comes before the first cycle begins, the order is carried out first.
    assert!(matches!(triggers[..], ["start", "order", "start", ..] | ["order", "start", ..]), "{cycles:?}");
}

#[test]
fn a_daemon_killed_again_and_again_during_a_bootstrap_ends_where_an_undisturbed_one_does() {
    const TOOLS: u32 = 20;
    let mut world = World::new("killed");
    for number in 0..TOOLS {
        world.tool(&format!("t{number}"), 61_500 + number, &[]);
    }
    // An undisturbed bootstrap takes about two seconds. The kills are spread over this time, and the last ones come
    // near its end.
    for milliseconds in [300, 500, 600, 700, 800, 900, 1000, 1100, 1300, 1600] {
        let daemon = Daemon::start(&world);
        let _ = bursar_testkit::ready::poll(Duration::from_millis(milliseconds), || false);
        daemon.process.kill();
    }
    wait_for("a cycle has nothing left to do", DEADLINE, || {
        let report = world.cycle();
        (report.failing.is_empty() && (report.actions, report.unchanged) == (0, u64::from(TOOLS))).then_some(())
    });
    let requests = world.kubectl(&["get", "csr", "-l", "app.kubernetes.io/managed-by=bursar", "-o", "name"]);
    for account in world.rows("SELECT id FROM tools") {
        let id = account["id"].as_str().expect("an id is a string");
        assert!(!requests.contains(id), "a certificate request was left behind:\n{requests}");
    }
    for number in 0..TOOLS {
        let tool = format!("t{number}");
        let own = world.kubectl_as_tool(&tool, &["auth", "can-i", "create", "pods"]);
        assert_eq!(String::from_utf8_lossy(&own.stdout).trim(), "yes", "{tool}: {}", crate::world::stderr(&own));
        let stray = std::fs::read_dir(world.home(&tool).join(".kube")).expect("the folder is readable").count();
        assert_eq!(stray, 1, "{tool}: a half file was left behind");
    }
}
