//! Every file system that is full, read-only, limited or mounted in a wrong place has its own reason, and the existing
//! file stays complete.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bursar_protocol::{Answer, HomeError, HomeTarget, Work, Written};
use rustix::process::{Pid, Signal, kill_process};

use super::ssh::key;
use super::{Homed, UID, command, entries, folder, names_in, parses, soak, test_delivery, with_our_key, write};

/// A server in its own mount namespace, which ends with the server. Other processes see the mounts of `script` only
/// through `/proc`. In the script, `$homes` is the prefix, and `home NAME` makes a home.
struct Mounted {
    homed: Homed,
}

impl Mounted {
    fn with(script: &str, arguments: &[&str]) -> Self {
        let folder = folder();
        let before = format!("set -eu; homes=$1; shift\n{HOME}\n");
        let inner = command(folder.path(), arguments);
        let child = Command::new("unshare")
            .args(["-m", "--propagation", "private", "sh", "-c"])
            .args([format!("{before}{script}\nexec \"$@\""), "sh".to_owned()])
            .arg(folder.path().join("homes"))
            .arg(inner.get_program())
            .args(inner.get_args())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("unshare is installed");
        Self { homed: Homed::waited_for(folder, child) }
    }

    fn target(&self, name: &str) -> HomeTarget {
        HomeTarget::new(self.homed.folder.path().join("homes").join(name), UID, UID)
    }

    /// Runs a script among the mounts of the server.
    fn run(&self, script: &str) {
        let homes = self.homed.folder.path().join("homes");
        let ran = Command::new("nsenter")
            .args(["-m", "-t", &self.homed.child.id().to_string(), "sh", "-c"])
            .args([format!("set -eu; homes=$1\n{HOME}\n{script}"), "sh".to_owned()])
            .arg(homes)
            .status();
        assert!(ran.expect("nsenter is installed").success(), "{script}");
    }

    /// Delivers an SSH key, and returns the target with the mount point that homed reported.
    async fn with_key(&self, name: &str) -> HomeTarget {
        let target = self.target(name);
        let answer = self.homed.ask(&target, Work::SshKeys { keys: vec![key(1)] }).await;
        let Ok(Answer::SshKeys { changed: true, mount: Some(mount) }) = answer else { panic!("{answer:?}") };
        HomeTarget { mount: Some(mount), ..target }
    }

    /// Returns the path at which the test sees the server's view of a home.
    fn seen(&self, name: &str) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.homed.child.id()));
        root.join(self.target(name).home.strip_prefix("/").expect("the path is absolute"))
    }

    /// Returns the reason why a delivery into this home is refused. Checks that `.kube` is unchanged.
    async fn refused(&self, name: &str) -> &'static str {
        let kube = self.seen(name).join(".kube");
        let state = || (names_in(&kube), fs::read(kube.join("config")).ok());
        let before = state();
        let target = self.target(name);
        let error = self.homed.ask(&target, write(entries("9"))).await.expect_err(name);
        assert!(error.remedy().len() > 20, "{}", error.remedy());
        let tried = self.homed.ask(&target, Work::TestWrite { replace_unparsable: false }).await;
        assert_eq!(tried.expect_err(name).reason(), error.reason(), "{name}");
        assert_eq!(state(), before, "{name}");
        error.reason()
    }
}

/// A shell function for the scripts that makes a home.
const HOME: &str = "home() { install -d -o 52503 -g 52503 -m 0700 $homes/$1 $homes/$1/.kube; }";

fn no_keys() -> Work {
    Work::SshKeys { keys: Vec::new() }
}

fn reason(answer: Result<Answer, HomeError>) -> String {
    answer.map_or_else(|error| error.reason().to_owned(), |answer| format!("{answer:?}"))
}

fn fill(home: &Path) {
    let mut filler = File::create(home.join("filler")).expect("the home is writable");
    chown(home.join("filler"), Some(UID), Some(UID)).expect("tests run as root, who may change owners");
    for size in [65_536, 4_096, 1_024, 1] {
        while filler.write_all(&vec![0; size]).is_ok() {}
    }
    let _ = filler.sync_all();
}

#[tokio::test]
async fn full_read_only_and_foreign_file_systems_have_their_own_reasons() {
    let script = r"
        home full; mount -t tmpfs -o size=192k,mode=755 tmpfs $homes/full; home full; chown $(stat -c %u:%g $homes/full/.kube) $homes/full
        home crowded; mount -t tmpfs -o nr_inodes=6,mode=755 tmpfs $homes/crowded; home crowded; chown $(stat -c %u:%g $homes/crowded/.kube) $homes/crowded
        home frozen; mount --bind $homes/frozen $homes/frozen; mount -o remount,bind,ro $homes/frozen
        home covered; mount -t tmpfs -o mode=700,uid=52503 tmpfs $homes/covered/.kube
        home stamped; install -o 52503 -m 0600 /dev/null $homes/stamped/file; install -o 52503 /dev/null $homes/stamped/.kube/config; mount --bind $homes/stamped/file $homes/stamped/.kube/config
        home looped; mount --bind $homes $homes/looped/.kube
        home fused; mkdir $homes/src; chown 52503 $homes/src; bindfs -o nonempty $homes/src $homes/fused/.kube
        home own; mount -t tmpfs -o mode=700,uid=52503 tmpfs $homes/own
    ";
    let world = Mounted::with(script, &["--prefix", "/nonexistent/bursar-homes"]);
    for name in ["full", "crowded", "own"] {
        world.homed.write(&world.target(name)).await.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    let (key, ours) = with_our_key("1");
    for name in ["full", "crowded"] {
        world.homed.ask(&world.target(name), write(ours.clone())).await.expect("there is room");
    }
    fill(&world.seen("full"));
    for number in 0..6 {
        let _ = File::create(world.seen("crowded").join(format!("f{number}")));
    }
    for (name, reason) in [("full", "no-space"), ("crowded", "no-inodes")] {
        assert_eq!(world.refused(name).await, reason);
        // Without room for a new file, the key is overwritten in the old one.
        let text = || fs::read_to_string(world.seen(name).join(".kube/config")).expect("the file is readable");
        let before = text();
        assert!(before.contains(&key));
        let removed = world.homed.ask(&world.target(name), Work::RemoveKubeconfig { names: ours.names() }).await;
        assert_eq!(removed.expect_err("there is no room").reason(), reason);
        let blank: String = key.chars().map(|c| if c == '=' { c } else { 'A' }).collect();
        assert_eq!(text(), before.replace(&key, &blank), "{name}");
    }
    assert_eq!(world.refused("frozen").await, "read-only");
    for name in ["covered", "stamped", "looped", "fused"] {
        assert_eq!(world.refused(name).await, "other-file-system", "{name}");
    }
    // A home may be a mount itself, as automounters do it.
    assert!(parses(&world.seen("own").join(".kube/config")));
    let nowhere = HomeTarget::new("/nonexistent/bursar-homes/foo", UID, UID);
    let error = world.homed.write(&nowhere).await.expect_err("the prefix does not exist");
    assert_eq!(error.reason(), "missing-prefix");
    assert!(error.remedy().contains("RequiresMountsFor=/nonexistent/bursar-homes"), "{}", error.remedy());
}

#[tokio::test]
async fn a_used_up_quota_has_its_own_reason_and_concerns_only_its_account() {
    // A btrfs image with a subvolume for each home, because not every kernel supports quotas for ext4.
    let script = r"
        image=$homes/../image; truncate -s 128M $image; mkfs.btrfs -q $image; mount -o loop $image $homes
        btrfs -q quota enable $homes; for name in foo bar; do btrfs -q subvolume create $homes/$name; done
        home foo; home bar; chown -R 52504:52504 $homes/bar; btrfs -q qgroup limit 1M $homes/foo
    ";
    let world = Mounted::with(script, &[]);
    world.homed.write(&world.target("foo")).await.expect("the home is within its quota");
    fill(&world.seen("foo"));
    assert!(
        fs::metadata(world.seen("foo/filler")).expect("the filler exists").len() < 2 << 20,
        "the quota does not hold"
    );
    let error = world.homed.write(&world.target("foo")).await.expect_err("the quota is used up");
    assert_eq!(error.reason(), "quota");
    let said = error.to_string();
    assert!(said.starts_with("the disk quota of uid 52503 (or of its group or folder) for `"), "{said}");
    // btrfs reports the use of the whole image, which does not show how full the quota is. The remedy names the command
    // for that.
    assert!(said.ends_with(" % full there, of 128.0 MiB"), "{said}");
    assert!(error.remedy().contains("`quota -s -u 52503`"), "{}", error.remedy());
    let other = HomeTarget { uid: UID + 1, gid: UID + 1, ..world.target("bar") };
    world.homed.write(&other).await.expect("another account has its own quota");
}

#[tokio::test]
async fn immutable_and_append_only_files_have_their_own_reason() {
    let homed = Homed::start(&[]);
    let mark = |how: &str, path: &Path| {
        let marked = Command::new("chattr").arg(how).arg(path).status().expect("chattr is installed");
        assert!(marked.success(), "chattr {how} {}", path.display());
    };
    for (name, below, how) in [
        ("immutable-file", ".kube/config", "i"),
        ("append-only-file", ".kube/config", "a"),
        ("immutable-folder", ".kube", "i"),
        ("append-only-folder", ".kube", "a"),
        ("immutable-home", "", "i"),
    ] {
        let target = homed.home(name);
        if !below.is_empty() {
            homed.write(&target).await.expect("the home is not marked yet");
        }
        let marked = target.home.join(below);
        mark(&format!("+{how}"), &marked);
        let answer = homed.ask(&target, write(entries("2"))).await;
        mark(&format!("-{how}"), &marked);
        let error = answer.expect_err(name);
        assert_eq!(error.reason(), "immutable", "{name}: {error}");
        assert!(error.remedy().contains("chattr -i -a"), "{}", error.remedy());
        homed.ask(&target, write(entries("3"))).await.expect("the mark is removed");
        let left: Vec<String> = names_in(&target.home.join(".kube"));
        assert_eq!(left, ["config"], "{name}");
    }
}

#[tokio::test]
async fn a_disk_that_fills_during_writes_keeps_every_file_complete() {
    let script =
        r"mount -t tmpfs -o size=512k,mode=755 tmpfs $homes; home foo; install -d -o 52504 -m 0700 $homes/other";
    let world = Mounted::with(script, &[]);
    world.homed.write(&world.target("foo")).await.expect("the disk still has space");
    let config = world.seen("foo").join(".kube/config");
    let filler = world.seen("other").join("filler");
    let (mut written, mut full) = (0, 0);
    for round in 0..soak(60, 2_000) {
        let size = 400_000 + (round * 7_919) % 140_000;
        let _ = fs::write(&filler, vec![0; size]);
        match world.homed.ask(&world.target("foo"), write(entries(&(round % 200).to_string()))).await {
            Ok(_) => written += 1,
            Err(error) if error.reason() == "no-space" => full += 1,
            Err(error) => panic!("{error}"),
        }
        assert!(parses(&config), "after {written} written and {full} refused");
        assert_eq!(fs::metadata(&config).expect("the kubeconfig exists").permissions().mode() & 0o777, 0o600);
    }
    assert!(written > 5 && full > 5, "{written} written, {full} refused");
    let _ = fs::remove_file(&filler);
    world.homed.write(&world.target("foo")).await.expect("the disk has space again");
    assert_eq!(names_in(config.parent().expect("the file is in a folder")), ["config"]);
}

#[tokio::test]
async fn a_folder_on_a_bare_mount_point_is_not_taken_for_the_home() {
    let script = "mkdir $homes/../export; mount --bind $homes/../export $homes; home foo
        set -- \"$@\" --create-prefix $homes --ssh-keys";
    let world = Mounted::with(script, &[]);
    let target = world.with_key("foo").await;
    assert_eq!(target.mount.as_deref(), target.home.parent(), "the mount of the home");
    world.homed.write(&target).await.expect("the home is writable");
    world.run("umount $homes");
    let refused = async |work: Work| {
        let name = format!("{work:?}");
        assert_eq!(reason(world.homed.ask(&target, work).await), "missing-prefix", "{name}");
    };
    let create = Work::EnsureHome { create: true, skeleton: true };
    for work in [create.clone(), Work::MakeDirectory { shared: true }, no_keys()] {
        refused(work).await;
    }
    assert_eq!(names_in(&world.seen("")), Vec::<String>::new(), "nothing is made on the bare mount point");
    // Another program makes a home there, for example pam_mkhomedir.
    world.run("home foo");
    let names = entries("1").names();
    for work in [
        create,
        no_keys(),
        Work::SshKeys { keys: vec![key(2)] },
        Work::Inspect { names: names.clone() },
        Work::RemoveKubeconfig { names },
        Work::RestoreKubeconfig,
        test_delivery(),
        write(entries("2")),
    ] {
        refused(work).await;
    }
    assert_eq!(names_in(&world.seen("foo/.kube")), Vec::<String>::new());
    world.run("mount --bind $homes/../export $homes");
    let answer = world.homed.ask(&target, no_keys()).await;
    assert!(matches!(answer, Ok(Answer::SshKeys { changed: true, .. })), "{answer:?}");
}

#[tokio::test]
async fn a_home_with_a_mount_of_its_own_never_counts_as_gone() {
    let script = "home foo; home bar; mount -t tmpfs -o mode=700,uid=52503,gid=52503 tmpfs $homes/foo
        set -- \"$@\" --ssh-keys";
    let world = Mounted::with(script, &[]);
    let target = world.with_key("foo").await;
    assert_eq!(target.mount.as_ref(), Some(&target.home));
    // An automounter that cannot mount a home answers that there is none.
    world.run("umount $homes/foo; rm -r $homes/foo");
    for work in [no_keys(), Work::RemoveKubeconfig { names: entries("1").names() }] {
        let error = world.homed.ask(&target, work).await.expect_err("the file system is not mounted");
        assert_eq!(error.reason(), "missing-prefix");
        assert!(error.remedy().contains("--former-mount"), "{}", error.remedy());
    }
}

#[tokio::test]
async fn homes_of_a_former_mount_are_found_where_they_are_now() {
    let world = Mounted::with("home foo; set -- \"$@\" --former-mount $homes", &[]);
    let at = |name: &str, mount: Option<PathBuf>| HomeTarget { mount, ..world.target(name) };
    let homes = world.homed.folder.path().join("homes");
    world.homed.write(&at("foo", Some(homes.clone()))).await.expect("the home was moved to this file system");
    for mount in [None, Some(homes.join("gone")), Some(homes.clone())] {
        let gone = world.homed.ask(&at("gone", mount), no_keys()).await;
        assert_eq!(reason(gone), "missing-home");
    }
    let elsewhere = world.homed.ask(&at("foo", Some("/nonexistent".into())), no_keys()).await;
    assert_eq!(reason(elsewhere), "missing-prefix", "another mount still counts");
    world.run("rm -r $homes");
    assert_eq!(reason(world.homed.ask(&at("foo", Some(homes)), no_keys()).await), "missing-home");
}

#[tokio::test]
async fn the_test_of_a_delivery_needs_the_room_of_the_delivery() {
    let script =
        "home foo; mount -t tmpfs -o size=128k,mode=755 tmpfs $homes/foo; home foo; chown 52503:52503 $homes/foo";
    let world = Mounted::with(script, &[]);
    let config = world.seen("foo/.kube/config");
    fs::write(&config, format!("# {}\nx-mine: 1\n", "x".repeat(60 * 1024))).expect("the disk has space");
    chown(&config, Some(UID), Some(UID)).expect("tests run as root, who may change owners");
    fs::write(world.seen("foo/filler"), vec![0; 32 * 1024]).expect("the disk has space");
    let ask = async |work: Work| reason(world.homed.ask(&world.target("foo"), work).await);
    assert_eq!(ask(Work::TestWrite { replace_unparsable: false }).await, "Writable", "a small file has room");
    assert_eq!((ask(test_delivery()).await, ask(write(entries("1"))).await), ("no-space".into(), "no-space".into()));
    fs::remove_file(world.seen("foo/filler")).expect("the filler exists");
    fs::write(&config, "x-mine: 1\n").expect("the disk has space");
    assert_eq!(ask(test_delivery()).await, "Writable");
    assert_eq!(names_in(&world.seen("foo/.kube")), ["config"]);
}

/// Processes that the test stopped, and that nothing else would end.
struct Stopped(Vec<Pid>);

impl Drop for Stopped {
    fn drop(&mut self) {
        for process in &self.0 {
            let _ = kill_process(*process, Signal::KILL);
        }
    }
}

#[tokio::test]
async fn a_file_system_that_a_user_mounted_over_a_home_is_not_asked() {
    // Many machines let only root open /dev/fuse, and fusermount wants to know its user's name.
    let script = "mknod -m 0666 $homes/../fuse c 10 229; mount --bind $homes/../fuse /dev/fuse
        (cat /etc/passwd; echo foo:x:52503:52503::/:/bin/sh) >$homes/../passwd; mount --bind $homes/../passwd /etc/passwd
        home src; home foo; mkdir $homes/deep; chown 52503 $homes/deep; home deep/bar; home well
        for over in foo deep; do
            setpriv --reuid 52503 --regid 52503 --clear-groups bindfs --no-allow-other -f -o nonempty $homes/src $homes/$over &
            echo $! >>$homes/../bindfs
            until grep -q \" $homes/$over \" /proc/self/mountinfo; do sleep 0.02; done
        done";
    let world = Mounted::with(script, &["--deadline", "3s"]);
    let processes =
        fs::read_to_string(world.homed.folder.path().join("bindfs")).expect("the script wrote the process ids");
    let processes =
        processes.lines().map(|id| id.parse().ok().and_then(Pid::from_raw).expect("each line is a process id"));
    let stopped = Stopped(processes.collect());
    stopped.0.iter().for_each(|process| kill_process(*process, Signal::STOP).expect("bindfs runs"));
    for name in ["foo", "deep/bar", "foo"] {
        for work in [write(entries("1")), no_keys(), Work::EnsureHome { create: true, skeleton: true }] {
            let asked = world.homed.ask(&world.target(name), work).await;
            assert_eq!(reason(asked), "other-file-system", "{name}");
        }
    }
    world.homed.write(&world.target("well")).await.expect("other homes are served");
}

/// A shell function that mounts a FUSE file system of the user on a file. Its program never answers. The function needs
/// the number of a free descriptor. Every process that keeps the descriptor open keeps the file system alive.
const HANG: &str = "hang() { eval \"exec $1<>/dev/fuse\"
    mount -i -t fuse -o fd=$1,rootmode=$2,user_id=52503,group_id=52503 none $3; }";

#[tokio::test]
async fn a_file_system_that_a_user_mounted_on_a_file_is_not_asked() {
    let script = format!(
        r#"{HANG}
        home config; install -o 52503 /dev/null $homes/config/.kube/config; hang 5 100000 $homes/config/.kube/config
        home lock; install -o 52503 /dev/null $homes/lock/.kube/config.lock; hang 6 100000 $homes/lock/.kube/config.lock
        home kept; printf '# mine\n' >$homes/kept/.kube/config; chown 52503 $homes/kept/.kube/config
        install -o 52503 /dev/null $homes/kept/.kube/config.bursar-kept; hang 7 100000 $homes/kept/.kube/config.bursar-kept
        home keys; install -d -o 52503 $homes/keys/.ssh; install -o 52503 /dev/null $homes/keys/.ssh/authorized_keys
        hang 8 100000 $homes/keys/.ssh/authorized_keys
        for name in marked filled deep; do home $name; install -o 52503 /dev/null $homes/$name/.bursar-skeleton; done
        hang 9 100000 $homes/marked/.bursar-skeleton
        install -o 52503 /dev/null $homes/filled/.profile; hang 3 100000 $homes/filled/.profile
        install -d -o 52503 $homes/deep/bin; hang 4 40000 $homes/deep/bin
        mkdir -p $homes/../skel/bin; touch $homes/../skel/.profile; chmod -R a+rX $homes/../skel
        home well; set -- "$@" --ssh-keys --create-prefix $homes --skeleton $homes/../skel"#
    );
    let patience = Duration::from_secs(3);
    let world = Mounted::with(&script, &["--deadline", "3s"]);
    let names = entries("1").names();
    for (name, work) in [
        ("config", Work::Inspect { names: names.clone() }),
        ("config", write(entries("1"))),
        ("config", Work::RemoveKubeconfig { names }),
        ("lock", write(entries("1"))),
        ("lock", test_delivery()),
        ("kept", write(entries("1"))),
        ("kept", test_delivery()),
        ("kept", Work::RestoreKubeconfig),
        ("keys", Work::SshKeys { keys: vec![key(1)] }),
        ("deep", Work::EnsureHome { create: true, skeleton: true }),
    ] {
        let (asked, began) = (format!("{work:?} in {name}"), Instant::now());
        assert_eq!(reason(world.homed.ask(&world.target(name), work).await), "other-file-system", "{asked}");
        // A worker that hangs has this reason too, but only after the deadline.
        assert!(began.elapsed() < patience, "{asked}: {:?}", began.elapsed());
    }
    for name in ["marked", "filled"] {
        let asked = world.homed.ask(&world.target(name), Work::EnsureHome { create: true, skeleton: true }).await;
        assert_eq!(asked, Ok(Answer::HomeReady { created: false }), "{name}");
    }
    world.homed.write(&world.target("well")).await.expect("other homes are served");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mount_over_the_home_during_the_work_is_not_asked() {
    let script = "home foo; touch $homes/foo/.kube/config.lock; chown 52503 $homes/foo/.kube/config.lock";
    let world = Arc::new(Mounted::with(script, &[]));
    let target = world.target("foo");
    let kube = File::open(world.seen("foo/.kube")).expect("the folder is readable");
    let user = std::thread::spawn({
        let world = Arc::clone(&world);
        move || {
            let kube = PathBuf::from(format!("/proc/self/fd/{}", kube.as_raw_fd()));
            let waits =
                || names_in(&kube).iter().any(|name| Path::new(name).extension().is_some_and(|end| end == "tmp"));
            super::wait_for("the worker waits for the lock", waits);
            world.run(&format!("{HANG}\nhang 5 40000 $homes/foo"));
            fs::remove_file(kube.join("config.lock")).expect("the lock exists");
        }
    });
    let answer = world.homed.write(&target).await;
    user.join().expect("the thread does not panic");
    let Ok(Answer::Written(Written { mount, .. })) = answer else { panic!("{answer:?}") };
    assert_eq!(mount, Some(super::mount_of(&target)));
}

#[tokio::test]
async fn a_backup_that_does_not_fit_is_not_left_half_written() {
    let script =
        "home foo; mount -t tmpfs -o size=160k,mode=755 tmpfs $homes/foo; home foo; chown 52503:52503 $homes/foo";
    let world = Mounted::with(script, &[]);
    let config = world.seen("foo/.kube/config");
    fs::write(&config, format!("junk: [{}", "x".repeat(60 * 1024))).expect("the home is writable");
    chown(&config, Some(UID), Some(UID)).expect("tests run as root, who may change owners");
    let old = std::time::SystemTime::now() - std::time::Duration::from_mins(5);
    File::open(&config).and_then(|file| file.set_modified(old)).expect("tests run as root, who may change times");
    fs::write(world.seen("foo/filler"), vec![0; 40 * 1024]).expect("the home is writable");
    let work = Work::WriteKubeconfig { entries: entries("1"), replace_unparsable: true };
    assert_eq!(reason(world.homed.ask(&world.target("foo"), work.clone()).await), "no-space");
    assert_eq!(names_in(&world.seen("foo/.kube")), ["config"]);
    fs::remove_file(world.seen("foo/filler")).expect("the file exists");
    world.homed.ask(&world.target("foo"), work).await.expect("the backup has room");
    assert!(parses(&config) && names_in(&world.seen("foo/.kube")).len() == 2);
}
