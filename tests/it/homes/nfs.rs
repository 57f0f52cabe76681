//! Tests that need a real NFS mount. `tests/nfs.sh` starts the server and runs these tests in a virtual machine with an
//! NFS client in its kernel. The mounts are at `$BURSAR_TEST_NFS/{homes,plain,full,read-only,stale}`.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use bursar_protocol::{HomeTarget, Work};

use super::{Homed, UID, entries, make_directory, names_in, parses, soak, write};

fn mounts() -> PathBuf {
    PathBuf::from(std::env::var_os("BURSAR_TEST_NFS").expect("tests/nfs.sh sets BURSAR_TEST_NFS"))
}

fn start(export: &str) -> (Homed, PathBuf) {
    let prefix = mounts().join(export);
    let server =
        Homed::start(&["--prefix", prefix.to_str().expect("the path is UTF-8"), "--deadline", "3s", "--backoff", "1s"]);
    (server, prefix)
}

#[tokio::test]
#[ignore = "needs NFS: tests/nfs.sh"]
async fn refusals_of_an_nfs_server_have_their_own_reason() {
    for (export, reason) in [("full", "no-space"), ("read-only", "read-only"), ("stale", "stale")] {
        let (server, prefix) = start(export);
        let target = HomeTarget::new(prefix.join("foo"), UID, UID);
        server.refused(&target, reason).await;
    }
    let (server, prefix) = start("homes");
    let target = HomeTarget::new(prefix.join("not-there"), UID, UID);
    // The server squashes root there, so homed makes no home, and the remedy says what to do on the file server.
    let creating = Homed::start(&["--create-prefix", prefix.to_str().expect("the path is UTF-8")]);
    let error = creating
        .ask(&target, Work::EnsureHome { create: true, skeleton: true })
        .await
        .expect_err("the server squashes root");
    assert_eq!(error.reason(), "create-not-allowed");
    assert!(error.remedy().contains("install -d -o 52503"), "{}", error.remedy());
    // The check of `bursar doctor`: if root is squashed, it is refused; otherwise it leaves nothing behind.
    let probe = |prefix: &std::path::Path| HomeTarget::new(prefix.join("probe"), UID, UID);
    let squashed = creating.ask(&probe(&prefix), Work::TestCreate).await.expect_err("the server squashes root");
    assert_eq!(squashed.reason(), "squashed");
    let plain = mounts().join("plain");
    let making = Homed::start(&["--create-prefix", plain.to_str().expect("the path is UTF-8")]);
    making.ask(&probe(&plain), Work::TestCreate).await.expect("this export does not squash root");
    assert!(names_in(&plain).iter().all(|name| !name.contains("probe")), "{:?}", names_in(&plain));
    server.refused(&target, "missing-home").await;
}

#[tokio::test]
#[ignore = "needs NFS: tests/nfs.sh"]
async fn requests_to_an_unreachable_nfs_server_time_out_until_it_returns() {
    let (server, prefix) = start("homes");
    let homes: Vec<HomeTarget> = (0..4)
        .map(|number| {
            let uid = UID + number;
            make_directory(&mounts().join(format!("plain/cut-{number}")), uid);
            HomeTarget::new(prefix.join(format!("cut-{number}")), uid, uid)
        })
        .collect();
    let local = server.home("local");
    for target in homes.iter().chain([&local]) {
        server.write(target).await.expect("the server is reachable");
    }
    let link = |state: &str| Command::new("ip").args(["link", "set", "eth0", state]).status().expect("ip is installed");
    assert!(link("down").success());
    let late = futures::future::join_all(homes.iter().map(|target| server.ask(target, write(entries("2")))));
    let began = Instant::now();
    let (late, other) = tokio::join!(late, server.ask(&local, write(entries("2"))));
    assert!(link("up").success());
    Command::new("ip").args(["route", "add", "default", "via", "10.0.2.2"]).status().expect("ip is installed");
    other.expect("a local home does not wait");
    for answer in late {
        assert_eq!(answer.expect_err("the server is unreachable").reason(), "timed-out");
    }
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    let deadline = Instant::now() + Duration::from_mins(4);
    for target in &homes {
        while let Err(error) = server.ask(target, write(entries("3"))).await {
            assert!(Instant::now() < deadline, "{error}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        assert_eq!(
            names_in(&mounts().join("plain").join(target.home.file_name().expect("a home has a name")).join(".kube")),
            ["config"]
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs NFS: tests/nfs.sh"]
async fn kubectl_and_deliveries_on_different_nfs_clients_keep_each_others_changes() {
    let (server, prefix) = start("first");
    make_directory(&mounts().join("plain/two"), UID);
    let target = HomeTarget::new(prefix.join("two"), UID, UID);
    let (delivered, _) = super::kubectl::race(&server, &target, &mounts().join("second/two"), 500).await;
    assert!(delivered > 10, "{delivered} deliveries");
}

#[tokio::test]
#[ignore = "needs NFS: tests/nfs.sh"]
async fn deliveries_over_nfs_are_complete() {
    let (server, prefix) = start("homes");
    let seen = mounts().join("plain/whole");
    make_directory(&seen, UID);
    let target = HomeTarget::new(prefix.join("whole"), UID, UID);
    for version in 0..soak(20, 500) {
        server.ask(&target, write(entries(&(version % 200).to_string()))).await.expect("the home is writable");
        assert!(parses(&seen.join(".kube/config")));
    }
    assert_eq!(names_in(&seen.join(".kube")), ["config"]);
    assert!(fs::symlink_metadata(seen.join(".kube/config")).is_ok_and(|found| found.is_file()));
}
