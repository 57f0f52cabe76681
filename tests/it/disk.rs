//! If the disk of the ledger is full or read-only, the daemon still reads, writes nothing anywhere, reports this, and
//! recovers by itself.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use bursar_testkit::ready::{DEADLINE, poll, wait_for};
use serde_json::Value;

use crate::daemon::{Daemon, curl, post, status};
use crate::world::World;

/// A small disk for one test. It is unmounted when this is dropped.
pub struct Disk {
    path: PathBuf,
}

impl Disk {
    /// Mounts a new disk at `path` and moves the content of `path` onto it.
    pub fn beneath(path: &Path) -> Self {
        let aside = path.with_extension("aside");
        fs::rename(path, &aside).expect("the parent folder is writable");
        fs::create_dir(path).expect("the parent folder is writable");
        mount(&["-t", "tmpfs", "-o", "size=40m,mode=0750", "none"], path);
        let copied = Command::new("cp").arg("-a").arg(aside.join(".")).arg(path).status().expect("cp is installed");
        assert!(copied.success());
        Self { path: path.to_owned() }
    }

    fn ballast(&self) -> PathBuf {
        self.path.join("ballast")
    }

    /// Fills the disk to the last byte.
    pub fn fill(&self) {
        let mut file = fs::File::create(self.ballast()).expect("the disk has room for a file");
        for size in [1 << 20, 4096, 1] {
            while file.write_all(&vec![1; size]).is_ok() {}
        }
    }

    pub fn empty(&self) {
        fs::remove_file(self.ballast()).expect("the ballast exists");
    }

    pub fn set(&self, mode: &str) {
        mount(&["-o", &format!("remount,{mode}")], &self.path);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // `umount --lazy` also works while a process has files open there.
        let _ = Command::new("umount").arg("--lazy").arg(&self.path).status();
    }
}

fn mount(arguments: &[&str], path: &Path) {
    let output = Command::new("mount").args(arguments).arg(path).output().expect("mount is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn stuck_ledger(world: &World) -> Option<Value> {
    Some(status(world)["ledger"].clone()).filter(|ledger| !ledger.is_null())
}

fn namespaces(world: &World) -> String {
    world.kubectl(&["get", "namespaces", "-o", "name"])
}

#[test]
fn a_full_disk_stops_writing_and_nothing_else_until_there_is_room_again() {
    let mut world = World::new("full");
    world.tool("foo", 65_001, &[]);
    let kubeconfig = world.kubeconfig("foo");
    world.cycles_until("the kubeconfig is delivered", |_| kubeconfig.exists());
    world.stop();
    let disk = Disk::beneath(&world.state_dir());
    let daemon = Daemon::ready(&world);
    daemon.cycled(&world);
    assert_eq!(curl(&world, "GET", "/healthz"), "ok\n");

    disk.fill();
    world.tool("bar", 65_002, &[]);
    fs::remove_file(&kubeconfig).expect("the kubeconfig exists");
    world.kubectl(&["delete", "resourcequota", "bursar", "-n", &world.namespace("foo")]);
    let answer = post(&world, "/v1/sync", &Value::Null);
    assert!(answer["text"].as_str().is_some_and(|text| text.contains("the ledger takes no writes")), "{answer}");
    let ledger = wait_for("the status counts what waits", DEADLINE, || {
        stuck_ledger(&world).filter(|ledger| ledger["waiting"].as_u64() == Some(2))
    });
    assert!(ledger["why"].as_str().is_some_and(|why| why.contains("MiB are free")), "{ledger}");
    assert!(curl(&world, "GET", "/healthz").starts_with("degraded: the ledger takes no writes: "));
    assert!(curl(&world, "GET", "/metrics").contains("bursar_ledger_stuck 1"));
    let said = world.bursar("status");
    let promised =
        include_str!("../../docs/runbooks/disk-full.md").lines().find(|line| line.contains("has taken no writes"));
    for part in promised.expect("the runbook has the line").trim().split("2027-01-01T04:00:00Z") {
        let part = part.split("/var").next().unwrap_or(part);
        assert!(said.contains(part), "{part:?} in {said}");
    }
    let plan: Value = serde_json::from_str(&curl(&world, "GET", "/v1/plan")).expect("the text is JSON");
    assert!(plan["text"].as_str().is_some_and(|text| text.contains("tool bar")), "{plan}");
    let written = || {
        namespaces(&world).contains(&world.namespace("bar"))
            || kubeconfig.exists()
            || world.home("bar").join(".kube").exists()
            || world.kubectl(&["get", "resourcequota", "-n", &world.namespace("foo"), "-o", "name"]).contains("bursar")
    };
    assert!(!poll(Duration::from_secs(12), written), "something was written");
    daemon.stop();
    let daemon = Daemon::ready(&world);
    wait_for("a restarted daemon reports it", DEADLINE, || {
        stuck_ledger(&world).filter(|ledger| ledger["waiting"] == 2)
    });
    assert!(!poll(Duration::from_secs(6), written), "something was written");

    disk.empty();
    wait_for("both tools are delivered and the ledger takes writes", DEADLINE, || {
        let tools = world.rows("SELECT name FROM tools WHERE delivered_at IS NOT NULL");
        (tools.len() == 2 && stuck_ledger(&world).is_none()).then_some(())
    });
    assert!(written());
    assert_eq!(curl(&world, "GET", "/healthz"), "ok\n");
    assert!(curl(&world, "GET", "/metrics").contains("bursar_ledger_stuck 0"));
    daemon.stop();
}

#[test]
fn a_daemon_that_starts_on_a_read_only_disk_reads_and_recovers_when_it_is_writable() {
    let mut world = World::new("readonly");
    world.tool("foo", 65_011, &[]);
    world.cycle();
    world.stop();
    let disk = Disk::beneath(&world.state_dir());
    disk.set("ro");
    world.tool("bar", 65_012, &[]);
    let daemon = Daemon::ready(&world);
    let ledger = wait_for("the daemon reports it", DEADLINE, || {
        // Tool bar waits. Tool foo waits too if its delivery is due for its second check.
        stuck_ledger(&world).filter(|ledger| ledger["waiting"].as_u64() >= Some(1))
    });
    assert!(ledger["why"].as_str().is_some_and(|why| why.contains("read")), "{ledger}");
    let hold = serde_json::json!([{"order": "hold", "kind": "tool", "name": "foo", "reason": "an audit"}]);
    let answer = post(&world, "/v1/orders", &hold);
    assert!(answer["text"].as_str().is_some_and(|text| text.contains("nothing was done")), "{answer}");
    assert!(!namespaces(&world).contains(&world.namespace("bar")));
    disk.set("rw");
    wait_for("bar is served", DEADLINE, || {
        (world.rows("SELECT name FROM tools WHERE delivered_at IS NOT NULL").len() == 2).then_some(())
    });
    daemon.stop();
}
