//! The spawner process, and what its worker processes may do while they work.

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

/// Stops a worker that has become `UID`, as that user could. If `is_at_work` is true, the worker has the home open,
/// otherwise not.
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

/// Returns the paths of the open descriptors of a process.
fn descriptors_of(process: u32) -> Vec<PathBuf> {
    let descriptors = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten();
    descriptors.filter_map(|held| fs::read_link(held.ok()?.path()).ok()).collect()
}

/// Calls `look` on a worker that is stopped in the middle of its work, before the server ends it.
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
    stopper.join().expect("a worker could be stopped")
}

#[tokio::test]
async fn four_capabilities_are_enough() {
    let folder = folder();
    let prefix = folder.path().join("homes");
    let inner =
        command(folder.path(), &["--deadline", "5s", "--create-prefix", prefix.to_str().expect("the path is UTF-8")]);
    let child = Command::new("setpriv")
        .args(["--bounding-set=-all,+setuid,+setgid,+chown,+kill", "--no-new-privs", "--"])
        .arg(inner.get_program())
        .args(inner.get_args())
        .spawn()
        .expect("setpriv is installed");
    let homed = Homed::waited_for(folder, child);
    let target = HomeTarget { groups: vec![UID, UID + 7], ..HomeTarget::new(prefix.join("foo"), UID, UID) };
    let ensured = homed.ask(&target, Work::EnsureHome { create: true, skeleton: true }).await;
    assert_eq!(ensured, Ok(Answer::HomeReady { created: true }));
    homed.write(&target).await.expect("the home is writable");

    // If a user stops a worker, the server kills it, although it runs as that user.
    with_a_stopped_worker(&homed, &target, |_| ()).await;
    let server = homed.child.id();
    wait_for("the stopped worker is killed", || workers_of(server).is_empty());
    homed.write(&target).await.expect("homed still delivers");
}

#[tokio::test]
async fn a_worker_cannot_regain_rights_and_has_only_its_own_socket() {
    let homed = Homed::start(&["--deadline", "5s"]);
    let target = HomeTarget { groups: vec![UID, UID + 7], ..homed.home("foo") };
    homed.write(&target).await.expect("the home is writable");
    let [spawner] = children_of(homed.child.id())[..] else { panic!("homed does not have exactly one spawner") };
    let checked = with_a_stopped_worker(&homed, &target, move |worker| {
        // Otherwise the spawner would kill the worker during the checks.
        signal(spawner, Signal::STOP);
        let says = |name| status_of(worker, name);
        let ids = |id: u32| [id.to_string().as_str(); 4].join("\t");
        assert_eq!((says("Uid:"), says("Gid:")), (ids(UID), ids(UID)));
        assert_eq!(says("Groups:"), format!("{UID} {}", UID + 7));
        assert_eq!((says("CapPrm:"), says("CapEff:"), says("Threads:")), ("0".repeat(16), "0".repeat(16), "1".into()));
        assert_eq!((says("NoNewPrivs:"), says("PPid:")), ("1".to_owned(), spawner.to_string()));
        let proc = format!("/proc/{worker}");
        assert_eq!(fs::read(format!("{proc}/environ")).expect("root may read the environment of a process"), b"");
        // The worker has a single socket, over which it got its request. It has no socket of the server or the spawner.
        let held = descriptors_of(worker);
        assert_eq!(held.iter().filter(|held| held.to_string_lossy().starts_with("socket:")).count(), 1, "{held:?}");
        // The user may stop the worker, but cannot read its memory or its descriptors.
        let looked = Command::new("setpriv")
            .args([format!("--reuid={UID}"), format!("--regid={UID}"), "--clear-groups".to_owned()])
            .args(["ls", &format!("{proc}/fd")])
            .output()
            .expect("setpriv is installed");
        assert!(!looked.status.success(), "{}", String::from_utf8_lossy(&looked.stdout));
        signal(spawner, Signal::CONT);
    });
    checked.await;
}

#[tokio::test]
async fn stopped_workers_of_several_accounts_do_not_close_the_export_for_others() {
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
        // Their workers wait for this lock long enough to be stopped.
        make_file(&target.home.join(".kube/config.lock"), target.uid, b"");
    }
    let stopper = std::thread::spawn(move || {
        for uid in theirs {
            let is_theirs = |worker: &u32| status_of(*worker, "Uid:").contains(&uid.to_string());
            wait_for("each account has a worker", || workers_of(server).iter().any(is_theirs));
            workers_of(server).into_iter().filter(is_theirs).for_each(|worker| signal(worker, Signal::STOP));
        }
    });
    let asked = targets.iter().map(|target| homed.write(target));
    for answer in futures::future::join_all(asked).await {
        let why = answer.expect_err("the worker was stopped");
        assert_eq!(why.reason(), "worker-died", "{why}");
    }
    stopper.join().expect("the thread does not panic");
    homed.write(&target(UID + 4)).await.expect("another account is still served");
}

#[tokio::test]
async fn a_worker_that_is_stopped_after_its_answer_is_killed() {
    let homed = Homed::start(&["--deadline", "2s"]);
    let (target, server) = (homed.home("foo"), homed.child.id());
    let mut tries = 0..200;
    let stopped = loop {
        tries.next().expect("a worker was stopped after its answer");
        let done = Arc::new(AtomicBool::new(false));
        let stopper = std::thread::spawn({
            let done = done.clone();
            move || stop_a_worker(server, false, &done)
        });
        // A worker that is stopped before it opens the home has not answered.
        let mut has_answered = true;
        while has_answered && !stopper.is_finished() {
            has_answered = homed.write(&target).await.is_ok();
        }
        done.store(true, Ordering::Relaxed);
        let worker = stopper.join().expect("a worker could be stopped");
        if has_answered && workers_of(server).contains(&worker) {
            break worker;
        }
    };
    wait_for("the stopped worker is killed", || !workers_of(server).contains(&stopped));
    homed.write(&target).await.expect("homed still delivers");
}

#[tokio::test]
async fn a_dead_or_hanging_spawner_is_replaced_and_ends_with_its_server() {
    let (mut homed, target) = Homed::with_home(&["--deadline", "5s"]);
    // A request may arrive before or after the death of the spawner. Many rounds cover both.
    let often = std::iter::repeat_n(Signal::KILL, 40);
    for how in often.chain([Signal::STOP]) {
        homed.write(&target).await.expect("the home is writable");
        let [spawner] = children_of(homed.child.id())[..] else { panic!("homed does not have exactly one spawner") };
        signal(spawner, how);
        if how == Signal::STOP {
            // The answer names no process to kill, because no worker exists.
            homed.refused(&target, "unavailable").await;
        }
        homed.write(&target).await.expect("homed still delivers");
        let found = children_of(homed.child.id());
        wait_for("the old spawner ends", || !children_of(homed.child.id()).contains(&spawner));
        assert!(found.iter().any(|other| *other != spawner), "{found:?}");
    }
    let spawners = children_of(homed.child.id());
    assert_eq!(spawners.len(), 1);
    homed.child.kill().expect("the server runs");
    homed.child.wait().expect("the child can be waited for");
    wait_for("the spawner ends with its server", || !Path::new(&format!("/proc/{}", spawners[0])).exists());
}
