//! Two programs write the same file: the real kubectl in a loop against continuous deliveries, and locks of every kind
//! and age.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use bursar_protocol::{Answer, HomeTarget, Inspection, Work, Written};
use bursar_testkit::ready::DEADLINE;

use super::{
    Homed, OUR_USER, UID, entries, make_directory, make_file, names_in, parses, soak, test_delivery, wait_for, write,
};

/// Copies kubectl to a folder in which every user may run it.
fn kubectl(folder: &Path) -> PathBuf {
    let path = folder.join("kubectl");
    let source = std::env::var_os("BURSAR_TEST_KUBECTL")
        .map_or_else(|| bursar_testkit::binaries::control_plane().join("kubectl"), PathBuf::from);
    fs::copy(source, &path).expect("kubectl is installed");
    fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("tests run as root, who may change modes");
    path
}

/// Adds a context as a user does, and tries again while the lock refuses it. Returns how often it was refused.
fn set_context(kubectl: &Path, home: &Path, name: &str) -> usize {
    let mut refused = 0;
    loop {
        let output = Command::new(kubectl)
            .args(["config", "set-context", name, "--cluster=mine", "--user=me"])
            .env_clear()
            .env("HOME", home)
            .uid(UID)
            .gid(UID)
            .output()
            .expect("kubectl runs");
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            return refused;
        }
        assert!(said.contains("config.lock"), "{said}");
        refused += 1;
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns the user's contexts, and the server of our cluster.
fn stands(config: &Path) -> (Vec<String>, Option<String>) {
    let config = kube::config::Kubeconfig::read_from(config).expect("the kubeconfig is readable");
    let server = config.clusters.iter().find(|cluster| cluster.name == "toolforge");
    let server = server.and_then(|cluster| cluster.cluster.as_ref()?.server.clone());
    let contexts = config.contexts.into_iter().map(|context| context.name).filter(|name| name.starts_with("mine-"));
    (contexts.collect(), server)
}

/// Adds `count` contexts with kubectl in the home `users`, while homed delivers into `target`, which is the same home,
/// perhaps through another mount. Each delivery is inspected, and repeated until it is in the file. Returns the number
/// of deliveries, and how many had to be repeated because kubectl wrote back an older version.
pub async fn race(homed: &Homed, target: &HomeTarget, users: &Path, count: usize) -> (usize, usize) {
    let programs = tempfile::tempdir().expect("the system allows a temporary folder");
    fs::set_permissions(programs.path(), PermissionsExt::from_mode(0o755))
        .expect("tests run as root, who may change modes");
    let program = kubectl(programs.path());
    let (done, refused) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let user = std::thread::spawn({
        let (done, refused, home) = (done.clone(), refused.clone(), users.to_owned());
        move || {
            for number in 0..count {
                let times = set_context(&program, &home, &format!("mine-{number}"));
                refused.fetch_add(times, Ordering::Relaxed);
            }
            done.store(true, Ordering::Relaxed);
        }
    });
    let (mut delivered, mut repeated) = (0, 0);
    let ask = async |work: &Work| {
        let deadline = Instant::now() + DEADLINE;
        loop {
            match homed.ask(target, work.clone()).await {
                Ok(Answer::Written(Written { entries_digest, .. })) => return Some(entries_digest),
                Ok(Answer::Inspected(Inspection { entries_digest, .. })) => return entries_digest,
                Err(error) if error.reason() == "in-use" && Instant::now() < deadline => {}
                answer => panic!("{answer:?}"),
            }
        }
    };
    let deliver = async |version: usize| {
        let entries = entries(&(version % 250).to_string());
        let look = Work::Inspect { names: entries.names() };
        let work = write(entries);
        // A delivery that kubectl reverts again and again has not arrived.
        for tries in 0..10 {
            let written = ask(&work).await;
            tokio::time::sleep(Duration::from_millis(30)).await;
            if ask(&look).await == written {
                return tries;
            }
        }
        panic!("delivery {version} does not arrive");
    };
    let config = users.join(".kube/config");
    while !done.load(Ordering::Relaxed) {
        delivered += 1;
        repeated += deliver(delivered).await;
    }
    user.join().expect("the thread does not panic");
    // Like the daemon: check after 2 s, and repeat the delivery if it was reverted.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let wanted = format!("https://10.0.0.{}:6443", delivered % 250);
    if stands(&config).1.as_ref() != Some(&wanted) {
        repeated += 1 + deliver(delivered).await;
    }
    let (contexts, server) = stands(&config);
    assert_eq!(server.as_ref(), Some(&wanted), "the last delivery is in the file");
    let missing: Vec<String> =
        (0..count).map(|number| format!("mine-{number}")).filter(|name| !contexts.contains(name)).collect();
    assert!(missing.is_empty(), "{} of {count} contexts of the user are lost: {missing:?}", missing.len());
    assert!(parses(&config));
    let left = names_in(&users.join(".kube"));
    let is_left =
        |name: &String| [Some("lock"), Some("tmp")].contains(&Path::new(name).extension().and_then(|end| end.to_str()));
    assert!(!left.iter().any(is_left), "{left:?}");
    println!(
        "{count} contexts by kubectl ({} times refused by the lock) and {delivered} deliveries, {repeated} repeated",
        refused.load(Ordering::Relaxed)
    );
    (delivered, repeated)
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_and_deliveries_do_not_lose_each_others_changes() {
    let (homed, target) = Homed::with_home(&[]);
    let (delivered, _) = race(&homed, &target, &target.home, soak(100, 500)).await;
    assert!(delivered > 10, "{delivered} deliveries");
}

/// Makes `.kube` with a user's kubeconfig and a lock. Returns the path of the lock.
fn locked(target: &HomeTarget, age: Option<Duration>) -> PathBuf {
    make_directory(&target.home.join(".kube"), UID);
    make_file(&target.home.join(".kube/config"), UID, b"x-mine: 1\n");
    let lock = target.home.join(".kube/config.lock");
    make_file(&lock, UID, b"");
    fs::set_permissions(&lock, PermissionsExt::from_mode(0o0)).expect("tests run as root, who may change files");
    if let Some(age) = age {
        let file = fs::File::open(&lock).expect("root may read any file");
        file.set_modified(SystemTime::now() - age).expect("tests run as root, who may change times");
    }
    lock
}

#[tokio::test]
async fn a_lock_of_another_program_is_waited_for_and_named() {
    let (homed, target) = Homed::with_home(&["--deadline", "10s"]);
    let lock = locked(&target, None);
    let error = homed.write(&target).await.expect_err("another program holds the lock");
    assert_eq!(error.reason(), "in-use", "{error}");
    assert!(error.to_string().contains("config.lock") && error.remedy().contains("retried automatically"), "{error}");
    assert_eq!(fs::read(target.home.join(".kube/config")).expect("the file is readable"), b"x-mine: 1\n");
    assert!(lock.exists() && names_in(&target.home.join(".kube")) == ["config", "config.lock"]);
    // A test write needs no lock, but the test of a delivery waits for it. If the lock is removed meanwhile, that test
    // succeeds.
    let names = entries("1").names();
    homed.ask(&target, Work::TestWrite { replace_unparsable: false }).await.expect("a test write needs no lock");
    // A credential must not be issued for a file that cannot be written afterwards.
    let tried = homed.ask(&target, test_delivery()).await.expect_err("the file is locked");
    assert_eq!(tried.reason(), "in-use", "{tried}");
    let began = Instant::now();
    let remover = std::thread::spawn({
        let lock = lock.clone();
        move || {
            std::thread::sleep(Duration::from_millis(500));
            fs::remove_file(lock).expect("the file exists");
        }
    });
    homed.write(&target).await.expect("homed accepts the request");
    assert!(began.elapsed() > Duration::from_millis(400));
    remover.join().expect("the thread does not panic");
    assert!(parses(&target.home.join(".kube/config")) && !lock.exists());
    homed.ask(&target, Work::RemoveKubeconfig { names }).await.expect("homed accepts the request");
}

/// Replaces a lock by something else.
type Plant = fn(&Path);

#[tokio::test]
async fn an_abandoned_lock_of_any_kind_is_overridden_and_reported() {
    let homed = Homed::start(&["--deadline", "3s"]);
    let kinds: [(&str, Plant); 4] = [
        ("file", |_| {}),
        ("folder", |lock| {
            fs::remove_file(lock).expect("the file exists");
            make_directory(lock, UID);
        }),
        ("link", |lock| {
            fs::remove_file(lock).expect("the file exists");
            symlink("/nowhere", lock).expect("the folder is writable");
        }),
        ("roots", |lock| chown(lock, Some(0), Some(0)).expect("tests run as root, who may change files")),
    ];
    for (kind, plant) in kinds {
        let target = homed.home(kind);
        let lock = locked(&target, None);
        plant(&lock);
        let old = rustix::fs::Timespec { tv_sec: rustix_now() - 90, tv_nsec: 0 };
        let times = rustix::fs::Timestamps { last_access: old, last_modification: old };
        rustix::fs::utimensat(rustix::fs::CWD, &lock, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
            .expect("tests run as root, who may change times");
        let answer = homed.write(&target).await;
        let Ok(Answer::Written(Written { overridden_lock: Some(age), .. })) = answer else {
            panic!("{kind}: {answer:?}")
        };
        assert!((85..120).contains(&age), "{kind}: {age}");
        assert_eq!(names_in(&target.home.join(".kube")), ["config", "config.bursar-kept"], "{kind}");
    }
    // A lock with a time in the future counts as new.
    let target = homed.home("tomorrow");
    let lock = locked(&target, None);
    fs::File::open(&lock)
        .and_then(|file| file.set_modified(SystemTime::now() + Duration::from_hours(24)))
        .expect("tests run as root, who may change times");
    homed.refused(&target, "in-use").await;
}

fn rustix_now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("the clock is after 1970");
    i64::try_from(since.as_secs()).expect("the clock is after 1970")
}

#[tokio::test]
async fn a_lock_of_any_age_is_waited_for_or_overridden() {
    let homed = Homed::start(&["--deadline", "3s"]);
    let now = SystemTime::now();
    let ages = [0, 5, 30, 90, 3_600, 86_400, 366 * 86_400].map(Duration::from_secs);
    let since_1970 = now.duration_since(SystemTime::UNIX_EPOCH).expect("the clock is after 1970");
    let ask = async |age: Duration| {
        let target = homed.home(&format!("age-{}", age.as_secs()));
        let lock = locked(&target, Some(age));
        let answer = homed.write(&target).await;
        match answer {
            Ok(Answer::Written(Written { overridden_lock: Some(found), .. })) if !lock.exists() => {
                assert!(found.abs_diff(age.as_secs()) < 30, "{age:?}: {found}");
                true
            }
            Err(error) if error.reason() == "in-use" && lock.exists() => false,
            answer => panic!("{age:?}: {answer:?}"),
        }
    };
    let ages = ages.into_iter().chain([since_1970]);
    let answers = futures::future::join_all(ages.map(async |age| (age, ask(age).await))).await;
    for (age, is_overridden) in answers {
        assert_eq!(is_overridden, age > Duration::from_mins(1), "{age:?}");
    }
}

#[tokio::test]
async fn the_lock_of_a_killed_worker_is_removed_by_the_next_request() {
    let (homed, target) = Homed::with_home(&[]);
    for (content, is_ours) in [(&b"bursar-homed\n"[..], true), (b"", true), (b"mine", false)] {
        let kube = target.home.join(".kube");
        if !kube.exists() {
            make_directory(&kube, UID);
            make_file(&kube.join("config"), UID, b"x-mine: 1\n");
        }
        let lock = kube.join("config.lock");
        make_file(&lock, UID, content);
        fs::set_permissions(&lock, PermissionsExt::from_mode(0o400)).expect("tests run as root, who may change modes");
        let asked =
            homed.ask(&target, Work::Inspect { names: entries("1").names() }).await.expect("homed accepts the request");
        assert!(matches!(asked, Answer::Inspected(_)));
        assert_eq!(lock.exists(), !is_ours, "{content:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_grows_during_a_delivery_is_in_use_or_keeps_its_content() {
    let (homed, target) = Homed::with_home(&["--deadline", "10s"]);
    make_directory(&target.home.join(".kube"), UID);
    let config = target.home.join(".kube/config");
    make_file(&config, UID, b"x-mine: 1\n");
    let done = Arc::new(AtomicBool::new(false));
    let writer = std::thread::spawn({
        let (done, config) = (done.clone(), config.clone());
        move || {
            while !done.load(Ordering::Relaxed) {
                let mut file = fs::File::options().append(true).open(&config).expect("the file is writable");
                std::io::Write::write_all(&mut file, b"# and more\n").expect("the file is writable");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    });
    for _ in 0..3 {
        match homed.write(&target).await {
            Ok(Answer::Written(_)) => {}
            Err(error) => assert_eq!(error.reason(), "in-use", "{error}"),
            other => panic!("{other:?}"),
        }
        assert!(fs::read_to_string(&config).expect("the file is readable").contains("x-mine: 1\n"));
    }
    done.store(true, Ordering::Relaxed);
    writer.join().expect("the thread does not panic");
    homed.write(&target).await.expect("nobody writes");
    assert!(parses(&config) && fs::read_to_string(&config).expect("the file is readable").contains("x-mine: 1\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_test_of_a_delivery_refuses_a_file_that_is_touched_again_and_again() {
    let (homed, target) = Homed::with_home(&["--deadline", "2s"]);
    make_directory(&target.home.join(".kube"), UID);
    let config = target.home.join(".kube/config");
    make_file(&config, UID, b"x-mine: 1\n");
    let done = Arc::new(AtomicBool::new(false));
    let toucher = std::thread::spawn({
        let (done, config) = (done.clone(), config.clone());
        move || {
            while !done.load(Ordering::Relaxed) {
                let file = fs::File::open(&config).expect("the file exists");
                file.set_modified(SystemTime::now()).expect("the file is writable");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    });
    let tried = homed.ask(&target, test_delivery()).await;
    done.store(true, Ordering::Relaxed);
    toucher.join().expect("the thread does not panic");
    assert_eq!(tried.expect_err("the file changes all the time").reason(), "in-use");
    homed.ask(&target, test_delivery()).await.expect("nobody changes the file");
    assert_eq!(names_in(&target.home.join(".kube")), ["config"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_written_in_place_keeps_its_whole_content() {
    let (homed, target) = Homed::with_home(&[]);
    make_directory(&target.home.join(".kube"), UID);
    let config = target.home.join(".kube/config");
    let whole = format!("x-mine: 1\n{}x-end: 1\n", "x-more: 1 # much of it\n".replace("x-more", "k"));
    // Homed reads an empty file again after 100 ms. Repeat until the writer was faster than that.
    let mut took = Duration::MAX;
    while took > Duration::from_millis(100) {
        make_file(&config, UID, b"");
        let began = Instant::now();
        let writer = std::thread::spawn({
            let (config, whole) = (config.clone(), whole.clone());
            move || {
                std::thread::sleep(Duration::from_millis(40));
                // Many tools write without a lock: they empty the file first, and then write the content.
                fs::write(&config, whole).expect("the folder is writable");
                began.elapsed()
            }
        });
        homed.write(&target).await.expect("the home is writable");
        took = writer.join().expect("the thread does not panic");
    }
    let text = fs::read_to_string(&config).expect("the file is readable");
    assert!(text.starts_with(&whole) && parses(&config), "{text}");
}

#[tokio::test]
async fn the_users_part_of_the_previous_file_is_kept_and_can_be_restored() {
    let (homed, target) = Homed::with_home(&[]);
    let (kube, names) = (target.home.join(".kube"), entries("1").names());
    let (config, kept) = (kube.join("config"), kube.join("config.bursar-kept"));
    homed.write(&target).await.expect("the home is writable");
    assert_eq!(names_in(&kube), ["config"], "nothing is kept if the file held nothing of the user's");
    let error = homed.ask(&target, Work::RestoreKubeconfig).await.expect_err("there is no backup");
    assert_eq!(error.reason(), "nothing-kept");
    let own = "# mine\nusers:\n- {name: me, user: {token: hunter2}}\n";
    make_file(&config, UID, own.as_bytes());
    homed.write(&target).await.expect("the home is writable");
    assert_eq!(fs::read_to_string(&kept).expect("the file is readable"), own);
    assert_eq!(fs::metadata(&kept).expect("the path exists").permissions().mode() & 0o7777, 0o600);
    // The user's entry is lost by mistake. The next delivery would replace the kept file, so it must be restored before
    // that.
    let now = fs::read_to_string(&config).expect("the file is readable");
    fs::write(&config, now.replace("- {name: me, user: {token: hunter2}}\n", "")).expect("the folder is writable");
    let look = homed.ask(&target, Work::Inspect { names: names.clone() }).await.expect("homed accepts the request");
    let Answer::Inspected(Inspection { ours, kept: Some(bytes), .. }) = look else { panic!("{look:?}") };
    assert_eq!((bytes, ours.users.contains(OUR_USER)), (own.len() as u64, true));
    let restored = homed.ask(&target, Work::RestoreKubeconfig).await.expect("homed accepts the request");
    assert_eq!(restored, Answer::Restored { changed: true, complete: true });
    let text = fs::read_to_string(&config).expect("the file is readable");
    assert!(text.starts_with("# mine\nusers:\n- {name: me, user: {token: hunter2}}\n") && parses(&config), "{text}");
    let old = fs::read_to_string(&kept).expect("the copy of the replaced file is readable");
    assert!(!old.contains("client-key-data") && !old.contains("hunter2"), "{old}");
    homed.ask(&target, Work::RemoveKubeconfig { names }).await.expect("homed accepts the request");
    assert_eq!(names_in(&kube), ["config"], "the kept file is removed together with our entries");
}

#[tokio::test]
async fn the_test_write_finds_obstacles_before_a_credential_is_issued() {
    let homed = Homed::start(&["--kubeconfig", ".kube/k8s"]);
    let target = HomeTarget { kubeconfig: ".kube/k8s".into(), ..homed.home("foo") };
    let try_it = async || homed.ask(&target, test_delivery()).await;
    assert_eq!(try_it().await, Ok(Answer::Writable));
    let own = b"contexts:\n- {name: toolforge, context: {cluster: mine, user: me}}\n";
    make_file(&target.home.join(".kube/k8s"), UID, own);
    assert_eq!(try_it().await.expect_err("the context belongs to the user").reason(), "foreign-entry");
    assert_eq!(names_in(&target.home.join(".kube")), ["k8s"]);
    assert_eq!(fs::read(target.home.join(".kube/k8s")).expect("the file is readable"), own);
    // A request that does not concern the kubeconfig is accepted even if root did not allow the kubeconfig path.
    let other = HomeTarget { kubeconfig: ".kube/config".into(), ..target.clone() };
    homed.ask(&other, Work::EnsureHome { create: false, skeleton: false }).await.expect("homed accepts the request");
    homed.ask(&other, Work::SshKeys { keys: Vec::new() }).await.expect("homed accepts the request");
    homed.refused(&other, "path-not-allowed").await;
}

#[tokio::test]
async fn a_missing_home_is_distinguished_from_an_unmounted_export() {
    let (homed, target) = Homed::with_home(&[]);
    let names = entries("1").names();
    let remove = async || homed.ask(&target, Work::RemoveKubeconfig { names: names.clone() }).await;
    fs::remove_dir(&target.home).expect("the folder exists");
    assert_eq!(remove().await.expect_err("the prefix is empty").reason(), "missing-prefix");
    make_directory(&target.home.with_file_name("other"), UID);
    assert_eq!(remove().await.expect_err("the home is missing").reason(), "missing-home");
}

#[tokio::test]
async fn a_home_is_missing_only_if_its_file_system_is_mounted() {
    let homed = Homed::start(&[]);
    let prefix = homed.folder.path().join("homes");
    for folder in ["a", "a/alice", "b"] {
        make_directory(&prefix.join(folder), UID);
    }
    let names = entries("1").names();
    let without = async |home: &str, mount: Option<&Path>| {
        let target = HomeTarget { mount: mount.map(Path::to_owned), ..HomeTarget::new(prefix.join(home), UID, UID) };
        let keys = homed.ask(&target, Work::SshKeys { keys: Vec::new() }).await.expect_err("the home is missing");
        let entries =
            homed.ask(&target, Work::RemoveKubeconfig { names: names.clone() }).await.expect_err("the home is missing");
        assert_eq!(keys, entries, "{home}");
        (keys.reason(), keys.remedy())
    };
    // Exports are often mounted on folders beneath the prefix.
    for home in ["b/bob", "c/carl"] {
        let (reason, remedy) = without(home, None).await;
        let folder = prefix.join(home.split_once('/').expect("the home is in a folder").0);
        let folder = folder.to_str().expect("the path is UTF-8");
        assert!(reason == "missing-prefix" && remedy.contains(folder), "{reason}: {remedy}");
    }
    let mount = Some(super::mount_of(&homed.home("foo")));
    // The last home of a folder, and a home whose folder is gone too, count as gone if their file system is mounted.
    for home in ["a/ann", "b/bob", "c/carl"] {
        assert_eq!(without(home, mount.as_deref()).await.0, "missing-home", "{home}");
    }
    let away = prefix.join("a");
    let (reason, remedy) = without("a/ann", Some(&away)).await;
    assert!(
        reason == "missing-prefix" && remedy.contains(away.to_str().expect("the path is UTF-8")),
        "{reason}: {remedy}"
    );
}

#[tokio::test]
async fn a_removal_deletes_keys_that_a_killed_worker_left() {
    let (homed, target) = Homed::with_home(&[]);
    homed.write(&target).await.expect("the home is writable");
    let kube = target.home.join(".kube");
    make_file(&kube.join(".bursar-00.tmp"), UID, b"a key");
    make_directory(&kube.join(OUR_USER), UID);
    make_file(&kube.join(OUR_USER).join(".bursar-11.tmp"), UID, b"a token");
    homed
        .ask(&target, Work::RemoveKubeconfig { names: entries("1").names() })
        .await
        .expect("homed accepts the request");
    assert_eq!(names_in(&kube), ["config"]);
}

/// The user changes the file during each merge, so homed merges again until its processor time is used up. The deadline
/// is so long that nothing else ends the request.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_takes_too_long_delays_only_its_owner() {
    let homed = Homed::start(&["--cpu-seconds", "1", "--deadline", "50s", "--backoff", "60s"]);
    let entry = "- {name: a, context: {user: b}}\n";
    let text = format!("contexts:\n{}", entry.repeat(512 * 1024 / entry.len()));
    for number in 0..4 {
        let uid = UID + number;
        let home = homed.folder.path().join(format!("homes/h{number}"));
        let config = home.join(".kube/config");
        make_directory(&home, uid);
        make_directory(&home.join(".kube"), uid);
        make_file(&config, uid, text.as_bytes());
        let done = Arc::new(AtomicBool::new(false));
        let user = std::thread::spawn({
            let done = done.clone();
            move || {
                while !done.load(Ordering::Relaxed) {
                    let mode = PermissionsExt::from_mode(0o600);
                    fs::set_permissions(&config, mode).expect("tests run as root, who may change modes");
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        });
        let (target, deadline) = (HomeTarget::new(&home, uid, uid), Instant::now() + DEADLINE);
        let error = loop {
            match homed.write(&target).await {
                Err(error) => break error,
                // The thread was not scheduled during a whole merge.
                Ok(_) => assert!(Instant::now() < deadline, "the file was not changed during a merge"),
            }
        };
        done.store(true, Ordering::Relaxed);
        user.join().expect("the thread does not panic");
        assert_eq!(error.reason(), "too-complex", "{error}");
    }
    homed.write(&homed.home("other")).await.expect("deliveries to other owners are not delayed");
    wait_for("all workers have ended", || super::workers_of(homed.child.id()).is_empty());
}
