//! The process that forks, and what its copies are when they work.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bursar_protocol::{Answer, HomeTarget, Work};
use rustix::process::Signal;

use super::{
    Homed, UID, children_of, command, entries, folder, make_directory, make_file, signal, status_of, wait_for,
    workers_of, write,
};

/// A worker that has become `UID` and has its home open or not, stopped as that user could.
fn stop_a_worker(server: u32, is_at_work: bool, until: &AtomicBool) -> u32 {
    while !until.load(Ordering::Relaxed) {
        for worker in workers_of(server) {
            if status_of(worker, "Uid:").contains(&UID.to_string()) {
                signal(worker, Signal::STOP);
                let in_a_home = |to: &PathBuf| to.components().any(|part| part.as_os_str() == "homes");
                if status_of(worker, "State:").starts_with('T')
                    && descriptors_of(worker).iter().any(in_a_home) == is_at_work
                {
                    return worker;
                }
                signal(worker, Signal::CONT);
            }
        }
    }
    panic!("no worker could be stopped");
}

/// What a process has open.
fn descriptors_of(process: u32) -> Vec<PathBuf> {
    let descriptors = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten();
    descriptors.filter_map(|held| fs::read_link(held.ok()?.path()).ok()).collect()
}

/// Looks at a worker that is stopped in the middle of its work, until the server ends it.
async fn with_a_stopped_worker<T: Send + 'static>(
    homed: &Homed,
    target: &HomeTarget,
    look: impl FnOnce(u32) -> T + Send + 'static,
) -> T {
    let done = Arc::new(AtomicBool::new(false));
    let stopper = std::thread::spawn({
        let (server, done) = (homed.child.id(), done.clone());
        move || look(stop_a_worker(server, true, &done))
    });
    let both = [entries("1"), entries("2")];
    let mut rounds = 0;
    while rounds < 20_000 && homed.ask(target, write(both[rounds % 2].clone())).await.is_ok() {
        rounds += 1;
    }
    done.store(true, Ordering::Relaxed);
    stopper.join().expect("a worker that could be stopped")
}

#[tokio::test]
async fn four_capabilities_are_enough() {
    let folder = folder();
    let prefix = folder.path().join("homes");
    let inner = command(folder.path(), &["--deadline", "5s", "--create-prefix", prefix.to_str().expect("UTF-8")]);
    let child = Command::new("setpriv")
        .args(["--bounding-set=-all,+setuid,+setgid,+chown,+kill", "--no-new-privs", "--"])
        .arg(inner.get_program())
        .args(inner.get_args())
        .spawn()
        .expect("setpriv");
    let homed = Homed::waited_for(folder, child);
    let target = HomeTarget { groups: vec![UID, UID + 7], ..HomeTarget::new(prefix.join("foo"), UID, UID) };
    let ensured = homed.ask(&target, Work::EnsureHome { create: true, skeleton: true }).await;
    assert_eq!(ensured, Ok(Answer::HomeReady { created: true }));
    homed.write(&target).await.expect("writes");

    // A worker that its user stops is killed, although it is another user's.
    with_a_stopped_worker(&homed, &target, |_| ()).await;
    let server = homed.child.id();
    wait_for("the end of the stopped worker", || workers_of(server).is_empty());
    homed.write(&target).await.expect("goes on");
}

#[tokio::test]
async fn a_worker_is_the_user_for_good_and_holds_its_own_request_only() {
    let homed = Homed::start(&["--deadline", "5s"]);
    let target = HomeTarget { groups: vec![UID, UID + 7], ..homed.home("foo") };
    homed.write(&target).await.expect("writes");
    let [spawner] = children_of(homed.child.id())[..] else { panic!("one spawner") };
    let checked = with_a_stopped_worker(&homed, &target, move |worker| {
        // It would kill what is looked at.
        signal(spawner, Signal::STOP);
        let says = |name| status_of(worker, name);
        let ids = |id: u32| [id.to_string().as_str(); 4].join("\t");
        assert_eq!((says("Uid:"), says("Gid:")), (ids(UID), ids(UID)));
        assert_eq!(says("Groups:"), format!("{UID} {}", UID + 7));
        assert_eq!((says("CapPrm:"), says("CapEff:"), says("Threads:")), ("0".repeat(16), "0".repeat(16), "1".into()));
        assert_eq!((says("NoNewPrivs:"), says("PPid:")), ("1".to_owned(), spawner.to_string()));
        let proc = format!("/proc/{worker}");
        assert_eq!(fs::read(format!("{proc}/environ")).expect("readable"), b"");
        // Not the server's, not the spawner's: one socket, over which it was asked.
        let held = descriptors_of(worker);
        assert_eq!(held.iter().filter(|held| held.to_string_lossy().starts_with("socket:")).count(), 1, "{held:?}");
        // The user may stop it, and neither read its memory nor take its descriptors.
        let looked = Command::new("setpriv")
            .args([format!("--reuid={UID}"), format!("--regid={UID}"), "--clear-groups".to_owned()])
            .args(["ls", &format!("{proc}/fd")])
            .output()
            .expect("setpriv");
        assert!(!looked.status.success(), "{}", String::from_utf8_lossy(&looked.stdout));
        signal(spawner, Signal::CONT);
    });
    checked.await;
}

#[tokio::test]
async fn a_person_who_stops_the_workers_of_several_accounts_closes_the_export_for_nobody() {
    let homed = Homed::start(&["--deadline", "10s", "--backoff", "60s"]);
    let server = homed.child.id();
    let target = |uid: u32| {
        let home = homed.folder.path().join(format!("homes/h{uid}"));
        make_directory(&home, uid);
        make_directory(&home.join(".kube"), uid);
        HomeTarget::new(home, uid, uid)
    };
    let theirs = UID + 1..UID + 4;
    let targets: Vec<_> = theirs.clone().map(target).collect();
    for target in &targets {
        // Their workers wait for this lock, long enough to be stopped.
        make_file(&target.home.join(".kube/config.lock"), target.uid, b"");
    }
    let stopper = std::thread::spawn(move || {
        for uid in theirs {
            let is_theirs = |worker: &u32| status_of(*worker, "Uid:").contains(&uid.to_string());
            wait_for("a worker of each", || workers_of(server).iter().any(is_theirs));
            workers_of(server).into_iter().filter(is_theirs).for_each(|worker| signal(worker, Signal::STOP));
        }
    });
    let asked = targets.iter().map(|target| homed.write(target));
    for answer in futures::future::join_all(asked).await {
        let why = answer.expect_err("stopped");
        assert_eq!(why.reason(), "worker-died", "{why}");
    }
    stopper.join().expect("it stops them");
    homed.write(&target(UID + 4)).await.expect("somebody else's");
}

#[tokio::test]
async fn a_worker_that_is_stopped_when_it_has_answered_is_ended() {
    let homed = Homed::start(&["--deadline", "2s"]);
    let (target, server) = (homed.home("foo"), homed.child.id());
    let mut tries = 0..200;
    let stopped = loop {
        tries.next().expect("a worker that has answered");
        let done = Arc::new(AtomicBool::new(false));
        let stopper = std::thread::spawn({
            let done = done.clone();
            move || stop_a_worker(server, false, &done)
        });
        // One that is stopped before it opens the home is late.
        let mut has_answered = true;
        while has_answered && !stopper.is_finished() {
            has_answered = homed.write(&target).await.is_ok();
        }
        done.store(true, Ordering::Relaxed);
        let worker = stopper.join().expect("a worker that could be stopped");
        if has_answered && workers_of(server).contains(&worker) {
            break worker;
        }
    };
    wait_for("the end of the stopped worker", || !workers_of(server).contains(&stopped));
    homed.write(&target).await.expect("goes on");
}

#[tokio::test]
async fn a_spawner_that_ends_or_hangs_is_replaced_and_none_outlives_its_server() {
    let mut homed = Homed::start(&["--deadline", "5s"]);
    let target = homed.home("foo");
    // A request may reach it before or after its last breath: often enough to see both.
    let often = std::iter::repeat_n(Signal::KILL, 40);
    for how in often.chain([Signal::STOP]) {
        homed.write(&target).await.expect("writes");
        let [spawner] = children_of(homed.child.id())[..] else { panic!("one spawner") };
        signal(spawner, how);
        if how == Signal::STOP {
            // Nobody is told which process to kill, for there is none.
            homed.refused(&target, "unavailable").await;
        }
        homed.write(&target).await.expect("goes on");
        let found = children_of(homed.child.id());
        wait_for("the end of the spawner", || !children_of(homed.child.id()).contains(&spawner));
        assert!(found.iter().any(|other| *other != spawner), "{found:?}");
    }
    let spawners = children_of(homed.child.id());
    assert_eq!(spawners.len(), 1);
    homed.child.kill().expect("killed");
    homed.child.wait().expect("ended");
    wait_for("the end of the spawner", || !Path::new(&format!("/proc/{}", spawners[0])).exists());
}
