//! Programs are killed in the middle of deliveries. They leave no half-written and no stray file, and everything is
//! delivered in the end.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bursar_homed::client::HomedClient;
use bursar_protocol::{HomeError, HomeTarget, Request};
use futures::StreamExt as _;
use rustix::process::Signal;

use super::{
    Homed, UID, command, entries, folder, make_directory, names_in, parses, signal, soak, wait_for, workers_of, write,
};

/// If this variable is set, this binary runs as a daemon that delivers, and that a test kills.
const DELIVERER: &str = "BURSAR_TEST_DELIVERER";
const HOMES_AT_A_TIME: usize = 8;

fn homes_of(folder: &Path) -> Vec<PathBuf> {
    let mut homes: Vec<PathBuf> = fs::read_dir(folder.join("homes"))
        .expect("the folder is readable")
        .map(|entry| entry.expect("the folder is readable").path())
        .collect();
    homes.sort();
    homes
}

/// Runs one cycle: delivers to every home that is not in `done`. Failed deliveries are left for the next cycle.
async fn cycle(socket: &Path, homes: &[PathBuf], version: &str, done: &mut BTreeSet<PathBuf>) {
    let client = HomedClient::new(socket, Duration::from_secs(10));
    let left: Vec<&PathBuf> = homes.iter().filter(|home| !done.contains(*home)).collect();
    let delivered = futures::stream::iter(left).map(async |home| {
        let work = write(entries(version));
        let answer = client.call(&Request::new(HomeTarget::new(home, UID, UID), work)).await;
        answer.is_ok().then(|| home.clone())
    });
    let delivered: Vec<_> = delivered.buffer_unordered(HOMES_AT_A_TIME).collect().await;
    done.extend(delivered.into_iter().flatten());
}

fn check_no_half_file(homes: &[PathBuf]) {
    for config in homes.iter().map(|home| home.join(".kube/config")).filter(|config| config.exists()) {
        assert!(parses(&config), "{}", config.display());
    }
}

fn check_all_delivered(homes: &[PathBuf]) {
    for home in homes {
        assert_eq!(names_in(&home.join(".kube")), ["config"], "{}", home.display());
        assert!(parses(&home.join(".kube/config")), "{}", home.display());
    }
}

fn make_homes(folder: &Path, count: usize) -> Vec<PathBuf> {
    for number in 0..count {
        make_directory(&folder.join(format!("homes/h{number:04}")), UID);
    }
    homes_of(folder)
}

/// Not a test: the daemon that the next test kills.
#[tokio::test]
#[ignore = "is started by a_daemon_that_is_killed_leaves_whole_files_and_its_successor_delivers_all"]
async fn deliverer() {
    let folder = PathBuf::from(std::env::var_os(DELIVERER).expect("the test sets this variable"));
    let homes = homes_of(&folder);
    for version in 1..200 {
        cycle(&folder.join("homed.sock"), &homes, &version.to_string(), &mut BTreeSet::new()).await;
    }
}

#[tokio::test]
async fn a_daemon_that_is_killed_leaves_whole_files_and_its_successor_delivers_all() {
    let server = Homed::start(&[]);
    let homes = make_homes(server.folder.path(), soak(40, 200));
    for round in 0..soak(6, 40) {
        let mut daemon = Command::new(std::env::current_exe().expect("the test knows its own path"))
            .args(["--exact", "homes::kill::deliverer", "--ignored"])
            .env(DELIVERER, server.folder.path())
            .stdout(std::process::Stdio::null())
            .process_group(0)
            .spawn()
            .expect("the program is built");
        wait_for("a kubeconfig is delivered", || homes.iter().any(|home| home.join(".kube/config").exists()));
        tokio::time::sleep(Duration::from_millis(37 * (round as u64 % 7) + 5)).await;
        daemon.kill().expect("the process can be killed");
        daemon.wait().expect("the process can be waited for");
        check_no_half_file(&homes);
    }
    let mut done = BTreeSet::new();
    cycle(&server.folder.path().join("homed.sock"), &homes, "250", &mut done).await;
    assert_eq!(done.len(), homes.len());
    check_all_delivered(&homes);
}

#[tokio::test]
async fn a_homed_that_is_killed_leaves_whole_files_and_the_next_cycle_delivers_all() {
    let folder = folder();
    let homes = make_homes(folder.path(), soak(200, 1_000));
    let socket = folder.path().join("homed.sock");
    let finished = Arc::new(AtomicBool::new(false));
    // Like systemd, restart the program at once.
    let killer = std::thread::spawn({
        let finished = finished.clone();
        let mut commands: Vec<Command> = (0..400).map(|_| command(folder.path(), &[])).collect();
        let mut server = commands.remove(0).spawn().expect("the program is built");
        move || {
            let mut kills = 0;
            while !finished.load(Ordering::Relaxed)
                && let Some(mut next) = commands.pop()
            {
                std::thread::sleep(Duration::from_millis(40 + 31 * (kills % 6)));
                server.kill().expect("the process can be killed");
                server.wait().expect("the process can be waited for");
                kills += 1;
                server = next.spawn().expect("the program is built");
            }
            (server, kills)
        }
    });
    wait_for("the socket of bursar-homed", || socket.exists());
    let mut done = BTreeSet::new();
    let mut cycles = 0;
    while done.len() < homes.len() {
        cycle(&socket, &homes, "1", &mut done).await;
        check_no_half_file(&homes);
        cycles += 1;
        assert!(cycles < 1_000, "{} of {} after {cycles} cycles", done.len(), homes.len());
    }
    finished.store(true, Ordering::Relaxed);
    let (mut server, kills) = killer.join().expect("the thread does not panic");
    assert!(kills > 2, "{kills} kills in {cycles} cycles");
    // A renewal removes what killed workers left.
    wait_for("the socket of bursar-homed", || std::os::unix::net::UnixStream::connect(&socket).is_ok());
    let mut renewed = BTreeSet::new();
    cycle(&socket, &homes, "2", &mut renewed).await;
    server.kill().expect("the process can be killed");
    server.wait().expect("the process can be waited for");
    assert_eq!(renewed.len(), homes.len());
    check_all_delivered(&homes);
}

#[tokio::test]
async fn a_killed_worker_leaves_no_half_written_file() {
    let server = Homed::start(&[]);
    let target = server.home("foo");
    let config = target.home.join(".kube/config");
    server.write(&target).await.expect("the home is writable");
    let stop = Arc::new(AtomicBool::new(false));
    let killer = std::thread::spawn({
        let (server, stop) = (server.child.id(), stop.clone());
        move || {
            let mut pause = 0;
            while !stop.load(Ordering::Relaxed) {
                // Kill each worker later in its life than the one before, and then begin again.
                pause = (pause + 170) % 8_000;
                for worker in workers_of(server) {
                    std::thread::sleep(Duration::from_micros(pause));
                    signal(worker, Signal::KILL);
                }
            }
        }
    });
    let both = [entries("1"), entries("2")];
    let (mut written, mut died) = (0, 0);
    // If the machine is busy, most kills come too late.
    while died < soak(25, 250) {
        let round = written + died;
        assert!(round < 20_000, "{written} written, {died} killed");
        match server.ask(&target, write(both[round % 2].clone())).await {
            Ok(_) => written += 1,
            Err(HomeError::WorkerDied { .. }) => died += 1,
            Err(error) => panic!("{error}"),
        }
        assert!(parses(&config), "after {written} written and {died} killed");
    }
    stop.store(true, Ordering::Relaxed);
    killer.join().expect("the thread does not panic");
    server.ask(&target, write(entries("3"))).await.expect("the home is writable");
    assert_eq!(names_in(&target.home.join(".kube")), ["config"], "temporary files are removed");
}
