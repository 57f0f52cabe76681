//! File servers that hang: deliveries to their own tenants fail within the deadline, other tenants do not wait, and
//! recovery needs no help.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bursar_homed::client::HomedClient;
use bursar_protocol::{HomeTarget, Request};
use bursar_testkit::ready::DEADLINE;
use rustix::process::{Pid, Signal, kill_process};

use super::{Homed, UID, command, entries, folder, make_directory, status_of, wait_for, write};

/// A real file system whose server can be stopped: bindfs on a folder, in a mount namespace that ends with homed.
struct FileServer {
    homed: Homed,
    sick: PathBuf,
    server: Pid,
}

impl FileServer {
    fn start(accounts: impl Iterator<Item = u32>) -> Self {
        let folder = folder();
        let [stored, sick] = ["stored", "sick"].map(|name| folder.path().join(name));
        fs::create_dir(&stored).expect("the parent folder is writable");
        fs::create_dir(&sick).expect("the parent folder is writable");
        for uid in accounts {
            make_directory(&stored.join(format!("h{uid}")), uid);
            make_directory(&folder.path().join(format!("homes/h{uid}")), uid);
        }
        let script = r#"setpriv --pdeathsig KILL bindfs -f "$1" "$2" & echo $! >"$3"
            until mountpoint -q "$2"; do sleep 0.02; done; shift 3; exec "$@""#;
        let arguments = ["--prefix", sick.to_str().expect("the path is UTF-8"), "--deadline", "5s", "--backoff", "1s"];
        let inner = command(folder.path(), &arguments);
        let note = folder.path().join("bindfs.pid");
        let child = Command::new("unshare")
            .args(["-m", "--propagation", "private", "sh", "-c", script, "sh"])
            .args([&stored, &sick, &note])
            .arg(inner.get_program())
            .args(inner.get_args())
            .stderr(Stdio::null())
            .spawn()
            .expect("unshare is installed");
        let homed = Homed::waited_for(folder, child);
        let text = fs::read_to_string(note).expect("the file is readable");
        let server = text.trim().parse().ok().and_then(Pid::from_raw).expect("a process id is not zero");
        Self { homed, sick, server }
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.server, signal).expect("the file server runs");
    }

    fn stop(&self) {
        self.signal(Signal::STOP);
        // A thread that has not stopped yet could take one more request, and a process that waits for its answer cannot
        // be killed.
        let tasks = format!("/proc/{}/task", self.server.as_raw_nonzero());
        let is_stopped = |task: std::io::Result<fs::DirEntry>| {
            let thread = task
                .expect("the process has a thread")
                .file_name()
                .to_string_lossy()
                .parse()
                .expect("the process has a thread");
            status_of(thread, "State:").starts_with('T')
        };
        wait_for("all threads of bindfs are stopped", || {
            fs::read_dir(&tasks).expect("the folder is readable").all(is_stopped)
        });
    }

    /// Delivers, and returns the reason of a failure (or "ok") and how long it took.
    async fn deliver(&self, prefix: &Path, uid: u32, version: &str) -> (&'static str, Duration) {
        let began = Instant::now();
        let target = HomeTarget::new(prefix.join(format!("h{uid}")), uid, uid);
        let answer = self.homed.ask(&target, write(entries(version))).await;
        (answer.map_or_else(|error| error.reason(), |_| "ok"), began.elapsed())
    }
}

impl Drop for FileServer {
    fn drop(&mut self) {
        let _ = kill_process(self.server, Signal::KILL);
    }
}

#[tokio::test]
async fn a_hanging_file_server_is_skipped_and_tried_again_later() {
    let accounts = 2_001..2_007;
    let world = FileServer::start(accounts.clone());
    let well = world.homed.folder.path().join("homes");
    for uid in accounts.clone() {
        assert_eq!(world.deliver(&world.sick, uid, "1").await.0, "ok");
        assert_eq!(world.deliver(&well, uid, "1").await.0, "ok");
    }

    world.stop();
    // One account alone does not open the breaker.
    for _ in 0..4 {
        assert_eq!(world.deliver(&world.sick, 2_001, "2").await.0, "timed-out");
    }
    let sick = futures::future::join_all(accounts.clone().map(|uid| world.deliver(&world.sick, uid, "2")));
    let others = futures::future::join_all(accounts.clone().map(|uid| world.deliver(&well, uid, "2")));
    let (sick, others) = tokio::join!(sick, others);
    for (reason, took) in sick {
        assert_eq!(reason, "timed-out");
        assert!(took < Duration::from_millis(9_500), "{took:?}");
    }
    for (reason, took) in others {
        assert_eq!(reason, "ok");
        assert!(took < Duration::from_millis(4_500), "deliveries to other file systems are not delayed: {took:?}");
    }
    // The breaker is open: no worker is started for this export.
    let (reason, took) = world.deliver(&world.sick, 2_001, "2").await;
    assert!(reason == "unavailable" && took < Duration::from_millis(2_500), "{reason} after {took:?}");
    assert_eq!(world.deliver(&well, 2_001, "3").await.0, "ok");

    world.signal(Signal::CONT);
    let deadline = Instant::now() + DEADLINE;
    while world.deliver(&world.sick, 2_001, "3").await.0 != "ok" {
        assert!(Instant::now() < deadline, "the export was not tried again");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for uid in accounts {
        assert_eq!(world.deliver(&world.sick, uid, "4").await.0, "ok");
    }
}

#[tokio::test]
async fn a_mount_without_a_server_has_its_own_reason() {
    let world = FileServer::start(2_001..2_002);
    assert_eq!(world.deliver(&world.sick, 2_001, "1").await.0, "ok");
    world.signal(Signal::KILL);
    wait_for("bindfs has ended", || {
        fs::read_to_string(format!("/proc/{}/stat", world.server)).map_or(true, |stat| stat.contains(") Z"))
    });
    assert_eq!(world.deliver(&world.sick, 2_001, "2").await.0, "not-connected");
}

#[tokio::test]
async fn a_client_without_homed_names_the_unit_to_start() {
    let client = HomedClient::new("/nonexistent/homed.sock", Duration::from_secs(1));
    let request = Request::new(HomeTarget::new("/home/foo", UID, UID), write(entries("1")));
    let error = client.call(&request).await.expect_err("no server listens");
    assert!(error.to_string().contains("systemctl start bursar-homed.socket"), "{error}");
}
