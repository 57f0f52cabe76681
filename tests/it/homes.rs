//! `bursar-homed`, the real program, in hostile homes. Needs root: it becomes other users.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bursar::homes::breaker::BreakerSettings;
use bursar::homes::client::{HomedClient, HomedClientError};
use bursar::homes::server::{self, HomedSettings};
use bursar::homes::{
    Answer, Bounds, ClusterEntry, ContextEntry, HomeError, HomeTarget, Inspection, KubeconfigEntries, Prefix, Request,
    SecretText, UserEntry, Work, Written,
};
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_bursar-homed");
const UID: u32 = 52503;

/// A server with its own folder of homes.
struct Homed {
    folder: TempDir,
    child: Child,
    client: HomedClient,
}

impl Drop for Homed {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Homed {
    fn start(arguments: &[&str]) -> Self {
        let folder = folder();
        let child = command(folder.path(), arguments).spawn().expect("bursar-homed starts");
        Self::waited_for(folder, child)
    }

    fn waited_for(folder: TempDir, child: Child) -> Self {
        let socket = folder.path().join("homed.sock");
        wait_for("the socket of bursar-homed", || UnixStream::connect(&socket).is_ok());
        let client = HomedClient::new(socket, Duration::from_secs(10));
        Self { folder, child, client }
    }

    fn home(&self, name: &str) -> HomeTarget {
        let home = self.folder.path().join("homes").join(name);
        make_directory(&home, UID);
        HomeTarget::new(home, UID, UID)
    }

    async fn ask(&self, target: &HomeTarget, work: Work) -> Result<Answer, HomeError> {
        match self.client.call(&Request::new(target.clone(), work)).await {
            Ok(answer) => Ok(answer),
            Err(HomedClientError::Home(error)) => Err(error),
            Err(error) => panic!("{error}: {:?}", std::error::Error::source(&error)),
        }
    }

    async fn write(&self, target: &HomeTarget) -> Result<Answer, HomeError> {
        self.ask(target, write(entries("1"))).await
    }

    async fn refused(&self, target: &HomeTarget, reason: &str) {
        let error = self.write(target).await.expect_err(reason);
        assert_eq!(error.reason(), reason, "{error}");
    }
}

fn folder() -> TempDir {
    assert!(rustix::process::geteuid().is_root(), "these tests become other users: run them as root");
    let folder = TempDir::new().expect("a folder");
    fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).expect("mode");
    fs::create_dir(folder.path().join("homes")).expect("homes");
    folder
}

fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.arg("--socket").arg(folder.join("homed.sock")).arg("--prefix").arg(folder.join("homes"));
    if !arguments.contains(&"--client-user") {
        command.args(["--client-user", "0"]);
    }
    command.args(arguments).stderr(Stdio::null());
    command
}

fn make_directory(path: &Path, uid: u32) {
    fs::create_dir(path).expect("directory");
    fs::set_permissions(path, PermissionsExt::from_mode(0o700)).expect("mode");
    chown(path, Some(uid), Some(uid)).expect("owner");
}

fn make_file(path: &Path, uid: u32, content: &[u8]) {
    fs::write(path, content).expect("file");
    chown(path, Some(uid), Some(uid)).expect("owner");
}

fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "waited for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn entries(version: &str) -> KubeconfigEntries {
    let key = rcgen::KeyPair::generate().expect("key");
    let certificate = rcgen::CertificateParams::new(vec![]).expect("params").self_signed(&key).expect("signs");
    KubeconfigEntries {
        clusters: vec![ClusterEntry {
            name: "toolforge".into(),
            server: format!("https://10.0.0.{version}:6443"),
            ca_pem: certificate.pem(),
            tls_server_name: None,
            proxy: None,
        }],
        user: UserEntry {
            name: "tool-foo".into(),
            certificate_pem: certificate.pem(),
            key_pem: SecretText::new(key.serialize_pem()),
        },
        contexts: vec![ContextEntry {
            name: "toolforge".into(),
            cluster: "toolforge".into(),
            user: "tool-foo".into(),
            namespace: Some("tool-foo".into()),
        }],
    }
}

fn write(entries: KubeconfigEntries) -> Work {
    Work::WriteKubeconfig { entries, replace_unparsable: false }
}

fn names_in(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .expect("a directory")
        .map(|entry| entry.expect("entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

fn parses(path: &Path) -> bool {
    let text = fs::read_to_string(path).expect("a kubeconfig");
    kube::config::Kubeconfig::from_yaml(&text).is_ok_and(|config| {
        config.auth_infos.iter().any(|user| {
            user.name == "tool-foo" && user.auth_info.as_ref().is_some_and(|auth| auth.client_key_data.is_some())
        })
    })
}

#[tokio::test]
async fn kubeconfig_is_written_inspected_and_removed_as_its_owner() {
    let homed = Homed::start(&[]);
    let target = homed.home("foo");
    let config = target.home.join(".kube/config");
    let ours = entries("1");
    let names = ours.names();

    let writable = homed.ask(&target, Work::TestWrite { replace_unparsable: false }).await.expect("writable");
    assert_eq!(writable, Answer::Writable);
    assert_eq!(names_in(&target.home.join(".kube")), Vec::<String>::new());
    let nothing = homed.ask(&target, Work::Inspect { names: names.clone() }).await.expect("inspects");
    assert_eq!(nothing, Answer::Inspected(Inspection::default()));

    let first = homed.ask(&target, write(ours.clone())).await.expect("writes");
    let Answer::Written(Written { changed: true, entries_digest, backup: None }) = first else { panic!("{first:?}") };
    let metadata = fs::metadata(&config).expect("written");
    assert_eq!((metadata.uid(), metadata.gid(), metadata.mode() & 0o7777), (UID, UID, 0o600));
    assert_eq!(fs::metadata(target.home.join(".kube")).expect("made").mode() & 0o7777, 0o700);
    assert!(parses(&config));

    let again = homed.ask(&target, write(ours.clone())).await.expect("writes");
    assert!(matches!(again, Answer::Written(Written { changed: false, .. })), "{again:?}");
    let unchanged = fs::metadata(&config).expect("there");
    assert_eq!((unchanged.ino(), unchanged.mtime_nsec()), (metadata.ino(), metadata.mtime_nsec()), "no write at all");

    let found = homed.ask(&target, Work::Inspect { names: names.clone() }).await.expect("inspects");
    let Answer::Inspected(found) = found else { panic!("{found:?}") };
    assert!(found.exists && found.parses && found.key_matches);
    assert_eq!((found.owner, found.mode), (Some(UID), Some(0o600)));
    assert_eq!(found.current_context.as_deref(), Some("toolforge"));
    assert_eq!(found.entries_digest, Some(entries_digest));

    let removed = homed.ask(&target, Work::RemoveKubeconfig { names }).await.expect("removes");
    assert_eq!(removed, Answer::Removed { changed: true });
    assert!(!fs::read_to_string(&config).expect("stays").contains("tool-foo"));
    assert_eq!(names_in(&target.home.join(".kube")), ["config"]);
}

#[tokio::test]
async fn a_users_own_entries_and_current_context_survive() {
    let homed = Homed::start(&[]);
    let target = homed.home("foo");
    make_directory(&target.home.join(".kube"), UID);
    let config = target.home.join(".kube/config");
    let theirs = "apiVersion: v1\nclusters:\n- {name: mine, cluster: {server: 'https://mine'}}\ncontexts:\n- {name: mine, context: {cluster: mine, user: me}}\ncurrent-context: mine\nkind: Config\nusers:\n- {name: me, user: {token: hunter2}}\nx-note: 0o17\n";
    make_file(&config, UID, theirs.as_bytes());
    homed.write(&target).await.expect("writes");
    let text = fs::read_to_string(&config).expect("written");
    for kept in ["token: hunter2", "current-context: mine", "server: \"https://mine\"", "x-note: 0o17"] {
        let plain = kept.replace('"', "");
        assert!(text.contains(kept) || text.contains(&plain), "{kept} in {text}");
    }
    let answer = homed.ask(&target, Work::Inspect { names: entries("1").names() }).await.expect("inspects");
    assert!(!format!("{answer:?}").contains("hunter2"));
    assert!(parses(&config));
}

#[tokio::test]
async fn symlinked_directory_file_and_home_are_refused() {
    let homed = Homed::start(&[]);
    let outside = homed.folder.path().join("outside");
    make_directory(&outside, UID);
    make_file(&outside.join("config"), UID, b"theirs: 1\n");

    let target = homed.home("linked-directory");
    symlink(&outside, target.home.join(".kube")).expect("symlink");
    homed.refused(&target, "symlink").await;

    let target = homed.home("linked-file");
    make_directory(&target.home.join(".kube"), UID);
    symlink(outside.join("config"), target.home.join(".kube/config")).expect("symlink");
    homed.refused(&target, "symlink").await;

    let link = homed.folder.path().join("homes/linked-home");
    symlink(&outside, &link).expect("symlink");
    homed.refused(&HomeTarget::new(&link, UID, UID), "symlink").await;

    assert_eq!(names_in(&outside), ["config"]);
    assert_eq!(fs::read(outside.join("config")).expect("there"), b"theirs: 1\n");
}

#[tokio::test]
async fn a_directory_swapped_for_a_symlink_while_writing_leads_nowhere() {
    let homed = Homed::start(&[]);
    let target = homed.home("foo");
    let outside = homed.folder.path().join("outside");
    make_directory(&outside, UID);
    make_file(&outside.join("config"), UID, b"theirs: 1\n");
    make_directory(&target.home.join(".kube"), UID);
    symlink(&outside, target.home.join("link")).expect("symlink");

    let stop = Arc::new(AtomicBool::new(false));
    let swaps = Arc::new(AtomicU32::new(0));
    let swapper = std::thread::spawn({
        let (home, stop, swaps) = (File::open(&target.home).expect("home"), stop.clone(), swaps.clone());
        move || {
            while !stop.load(Ordering::Relaxed) {
                let exchange = rustix::fs::RenameFlags::EXCHANGE;
                rustix::fs::renameat_with(&home, ".kube", &home, "link", exchange).expect("swap");
                swaps.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    });
    let both = [entries("1"), entries("2")];
    let (mut written, mut refused) = (0, 0);
    for round in 0..2_000 {
        match homed.ask(&target, write(both[round % 2].clone())).await {
            Ok(_) => written += 1,
            Err(HomeError::Symlink { .. }) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    stop.store(true, Ordering::Relaxed);
    swapper.join().expect("swapper");
    assert!(written > 50 && refused > 50, "{written} written, {refused} refused, {swaps:?} swaps");
    assert_eq!(names_in(&outside), ["config"]);
    assert_eq!(fs::read(outside.join("config")).expect("there"), b"theirs: 1\n");
}

#[tokio::test]
async fn files_that_are_no_files_of_the_user_are_refused() {
    let homed = Homed::start(&[]);
    let with_directory = |name: &str| {
        let target = homed.home(name);
        make_directory(&target.home.join(".kube"), UID);
        let config = target.home.join(".kube/config");
        (target, config)
    };

    let (target, config) = with_directory("foreign");
    make_file(&config, UID + 1, b"");
    homed.refused(&target, "wrong-owner").await;

    let (target, config) = with_directory("fifo");
    let (fifo, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
    rustix::fs::mknodat(rustix::fs::CWD, &config, fifo, mode, 0).expect("fifo");
    homed.refused(&target, "not-a-regular-file").await;

    let (target, config) = with_directory("directory");
    make_directory(&config, UID);
    homed.refused(&target, "not-a-regular-file").await;

    let (target, config) = with_directory("huge");
    make_file(&config, UID, b"");
    File::options().write(true).open(&config).expect("opens").set_len(1 << 30).expect("sparse");
    homed.refused(&target, "too-large").await;

    let target = homed.home("file-as-directory");
    make_file(&target.home.join(".kube"), UID, b"");
    homed.refused(&target, "not-a-directory").await;

    let (target, _) = with_directory("roots");
    chown(target.home.join(".kube"), Some(0), Some(0)).expect("owner");
    homed.refused(&target, "access-denied").await;
}

#[tokio::test]
async fn homes_that_are_missing_or_anothers_are_refused() {
    let homed = Homed::start(&[]);
    let target = HomeTarget::new(homed.folder.path().join("homes/nobody"), UID, UID);
    homed.refused(&target, "missing-home").await;
    let error = homed.write(&target).await.expect_err("missing");
    assert!(error.cure().contains("install -d -o 52503"), "{}", error.cure());

    let foreign = homed.home("foreign");
    chown(&foreign.home, Some(UID + 1), Some(UID + 1)).expect("owner");
    fs::set_permissions(&foreign.home, PermissionsExt::from_mode(0o777)).expect("mode");
    assert_eq!(homed.write(&foreign).await, Err(HomeError::WrongOwner { path: foreign.home.clone(), found: UID + 1 }));
}

#[tokio::test]
async fn requests_are_checked_again_whatever_the_daemon_says() {
    let homed = Homed::start(&[]);
    let good = homed.home("foo");
    let outside = homed.folder.path().join("outside");
    make_directory(&outside, UID);
    let prefix = homed.folder.path().join("homes");
    for home in [outside.clone(), prefix.join("../outside"), prefix.join("foo/../../outside"), prefix, "outside".into()]
    {
        homed.refused(&HomeTarget { home, ..good.clone() }, "not-beneath-prefix").await;
    }
    for uid in [0, 999, u32::MAX] {
        homed.refused(&HomeTarget { uid, ..good.clone() }, "uid-too-low").await;
    }
    homed.refused(&HomeTarget { gid: 0, ..good.clone() }, "gid-too-low").await;
    homed.refused(&HomeTarget { groups: vec![42], ..good.clone() }, "gid-too-low").await;
    let mut ours = entries("1");
    ours.contexts[0].cluster = "another".into();
    assert_eq!(homed.ask(&good, write(ours)).await.expect_err("wrong").reason(), "bad-request");
    for kubeconfig in ["../config", "/etc/passwd", ".kube/../../x"] {
        homed.refused(&HomeTarget { kubeconfig: kubeconfig.into(), ..good.clone() }, "bad-request").await;
    }
    assert_eq!(names_in(&outside), Vec::<String>::new());
    assert_eq!(names_in(&good.home), Vec::<String>::new());
}

#[tokio::test]
async fn only_the_configured_user_may_ask() {
    let homed = Homed::start(&["--client-user", "4242"]);
    let target = homed.home("foo");
    assert_eq!(homed.write(&target).await, Err(HomeError::Forbidden { uid: 0 }));
    assert_eq!(names_in(&target.home), Vec::<String>::new());
}

#[tokio::test]
async fn garbage_and_endless_requests_are_refused_and_the_server_goes_on() {
    let homed = Homed::start(&["--deadline", "1s"]);
    let target = homed.home("foo");
    let socket = homed.folder.path().join("homed.sock");
    let valid = serde_json::to_value(Request::new(target.clone(), write(entries("1")))).expect("JSON");
    let mut odd_version = valid.clone();
    odd_version["version"] = 99.into();
    let mut odd_work = valid.clone();
    odd_work["work"] = serde_json::json!({ "run": "rm" });
    let said: Vec<Vec<u8>> = vec![
        b"\n".to_vec(),
        b"hello\n".to_vec(),
        b"\0\xff\xfe\n".to_vec(),
        b"{}\n".to_vec(),
        b"{\"version\":1".to_vec(),
        vec![b'x'; 600 * 1024],
        "[".repeat(100_000).into_bytes(),
        format!("{odd_version}\n").into_bytes(),
        format!("{odd_work}\n").into_bytes(),
    ];
    for words in said {
        let mut stream = UnixStream::connect(&socket).expect("connects");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("timeout");
        let _ = stream.write_all(&words);
        let mut answer = [0; 16 * 1024];
        let read = stream.read(&mut answer).expect("an answer");
        let answer = String::from_utf8_lossy(&answer[..read]);
        assert!(answer.contains("bad_request"), "{answer}");
    }
    homed.write(&target).await.expect("still serves");
}

#[tokio::test]
async fn what_does_not_parse_is_kept_beside_only_if_told_so() {
    let homed = Homed::start(&[]);
    let target = homed.home("foo");
    make_directory(&target.home.join(".kube"), UID);
    let config = target.home.join(".kube/config");
    make_file(&config, UID, b"a: b: c: hunter2\n");
    let error = homed.write(&target).await.expect_err("refused");
    assert_eq!(error.reason(), "not-yaml");
    assert!(!error.to_string().contains("hunter2"), "{error}");
    let error = homed.ask(&target, Work::TestWrite { replace_unparsable: false }).await.expect_err("refused");
    assert_eq!(error.reason(), "not-yaml");
    assert_eq!(fs::read(&config).expect("untouched"), b"a: b: c: hunter2\n");

    let work = Work::WriteKubeconfig { entries: entries("1"), replace_unparsable: true };
    let answer = homed.ask(&target, work).await.expect("replaces");
    let Answer::Written(Written { backup: Some(backup), changed: true, .. }) = answer else { panic!("{answer:?}") };
    assert!(backup.starts_with("config.bursar-backup-2"), "{backup}");
    assert_eq!(names_in(&target.home.join(".kube")), ["config".to_owned(), backup.clone()]);
    let kept = target.home.join(".kube").join(backup);
    assert_eq!(fs::read(&kept).expect("kept"), b"a: b: c: hunter2\n");
    assert!(parses(&config));
}

#[tokio::test]
async fn a_full_disk_is_its_own_reason_and_leaves_the_old_file() {
    let folder = folder();
    let prefix = folder.path().join("homes");
    let script = r#"mount -t tmpfs -o size=192k,mode=755 tmpfs "$1" && mkdir -m 0700 "$1/foo" && chown "$2:$2" "$1/foo" && shift 2 && exec "$@""#;
    let inner = command(folder.path(), &[]);
    let child = Command::new("unshare")
        .args(["-m", "--propagation", "private", "sh", "-c", script, "sh"])
        .args([prefix.as_os_str(), UID.to_string().as_ref()])
        .arg(inner.get_program())
        .args(inner.get_args())
        .spawn()
        .expect("unshare");
    let homed = Homed::waited_for(folder, child);
    let target = HomeTarget::new(prefix.join("foo"), UID, UID);
    homed.write(&target).await.expect("there is space yet");
    let seen = PathBuf::from(format!("/proc/{}/root", homed.child.id()))
        .join(target.home.strip_prefix("/").expect("absolute"));
    let before = fs::read(seen.join(".kube/config")).expect("written");
    let mut filler = File::create(seen.join("filler")).expect("filler");
    while filler.write_all(&[0; 4096]).is_ok() {}

    assert_eq!(homed.write(&target).await.expect_err("full").reason(), "no-space");
    let error = homed.ask(&target, Work::TestWrite { replace_unparsable: false }).await.expect_err("full");
    assert_eq!(error.reason(), "no-space");
    assert_eq!(fs::read(seen.join(".kube/config")).expect("there"), before);
    assert_eq!(names_in(&seen.join(".kube")), ["config"]);
}

#[tokio::test]
async fn a_killed_worker_leaves_no_half_file() {
    let homed = Homed::start(&[]);
    let target = homed.home("foo");
    let config = target.home.join(".kube/config");
    homed.write(&target).await.expect("writes");
    let stop = Arc::new(AtomicBool::new(false));
    let killer = std::thread::spawn({
        let (server, stop) = (homed.child.id(), stop.clone());
        move || {
            let children = format!("/proc/{server}/task/{server}/children");
            let mut pause = 0;
            while !stop.load(Ordering::Relaxed) {
                // Later and later into the life of a worker, then from the start again.
                pause = (pause + 170) % 8_000;
                for child in fs::read_to_string(&children).unwrap_or_default().split_whitespace() {
                    std::thread::sleep(Duration::from_micros(pause));
                    let pid = child.parse().ok().and_then(rustix::process::Pid::from_raw).expect("pid");
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                }
            }
        }
    });
    let both = [entries("1"), entries("2")];
    let (mut written, mut died) = (0, 0);
    for round in 0..400 {
        match homed.ask(&target, write(both[round % 2].clone())).await {
            Ok(_) => written += 1,
            Err(HomeError::WorkerDied { .. }) => died += 1,
            Err(error) => panic!("{error}"),
        }
        assert!(parses(&config), "after {written} written and {died} killed");
    }
    stop.store(true, Ordering::Relaxed);
    killer.join().expect("killer");
    assert!(died > 50, "{written} written, {died} killed");
    homed.ask(&target, write(entries("3"))).await.expect("writes");
    assert_eq!(names_in(&target.home.join(".kube")), ["config"], "temporary files are swept");
}

#[tokio::test]
async fn homes_are_made_only_where_both_say_so() {
    let other = folder();
    let made = other.path().join("made");
    fs::create_dir(&made).expect("prefix");
    let skeleton = other.path().join("skel");
    fs::create_dir_all(skeleton.join("bin")).expect("skeleton");
    fs::write(skeleton.join(".profile"), "umask 077\n").expect("skeleton");
    let homed = Homed::start(&[
        "--create-prefix",
        made.to_str().expect("UTF-8"),
        "--skeleton",
        skeleton.to_str().expect("UTF-8"),
    ]);
    let ensure = |create| Work::EnsureHome { create, skeleton: true };

    let target = HomeTarget::new(made.join("foo"), UID, UID + 1);
    let error = homed.ask(&target, ensure(false)).await.expect_err("not asked for");
    assert_eq!(error.reason(), "missing-home");
    assert_eq!(homed.ask(&target, ensure(true)).await, Ok(Answer::HomeReady { created: true }));
    assert_eq!(homed.ask(&target, ensure(true)).await, Ok(Answer::HomeReady { created: false }));
    let metadata = fs::metadata(&target.home).expect("made");
    assert_eq!((metadata.uid(), metadata.gid(), metadata.mode() & 0o7777), (UID, UID + 1, 0o700));
    assert_eq!(names_in(&target.home), [".profile", "bin"]);
    assert_eq!(fs::metadata(target.home.join(".profile")).expect("copied").uid(), UID);
    assert_eq!(names_in(&made), ["foo"]);

    let target = HomeTarget::new(homed.folder.path().join("homes/foo"), UID, UID);
    let error = homed.ask(&target, ensure(true)).await.expect_err("not allowed there");
    assert_eq!(error.reason(), "create-not-allowed");
    symlink(other.path(), made.join("bar")).expect("symlink");
    let error = homed.ask(&HomeTarget::new(made.join("bar"), UID, UID), ensure(true)).await.expect_err("a symlink");
    assert_eq!(error.reason(), "symlink");
    assert_eq!(fs::metadata(other.path()).expect("there").uid(), 0);
}

/// Stops the next worker that has become `UID`, as that user could.
fn stop_a_worker(server: u32, until: &AtomicBool) {
    let children = format!("/proc/{server}/task/{server}/children");
    while !until.load(Ordering::Relaxed) {
        for child in fs::read_to_string(&children).unwrap_or_default().split_whitespace() {
            let is_user = fs::metadata(format!("/proc/{child}/status")).is_ok()
                && fs::read_to_string(format!("/proc/{child}/status"))
                    .is_ok_and(|status| status.contains(&format!("Uid:\t{UID}")));
            if let (true, Some(pid)) = (is_user, child.parse().ok().and_then(rustix::process::Pid::from_raw)) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::STOP);
            }
        }
    }
}

#[tokio::test]
async fn four_capabilities_are_enough() {
    let folder = folder();
    let prefix = folder.path().join("homes");
    let inner = command(folder.path(), &["--deadline", "1s", "--create-prefix", prefix.to_str().expect("UTF-8")]);
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

    // A worker that its user stops is late and is killed, although it is another user's.
    let done = Arc::new(AtomicBool::new(false));
    let stopper = std::thread::spawn({
        let (server, done) = (homed.child.id(), done.clone());
        move || stop_a_worker(server, &done)
    });
    let both = [entries("1"), entries("2")];
    let mut rounds = 0;
    while homed.ask(&target, write(both[rounds % 2].clone())).await.is_ok() {
        rounds += 1;
        assert!(rounds < 2_000, "no worker could be stopped");
    }
    done.store(true, Ordering::Relaxed);
    stopper.join().expect("stopper");
    let server = homed.child.id();
    wait_for("the end of the stopped worker", || {
        fs::read_to_string(format!("/proc/{server}/task/{server}/children")).is_ok_and(|children| children.is_empty())
    });
    homed.write(&target).await.expect("goes on");
}

#[tokio::test]
async fn without_root_it_serves_its_own_user_only() {
    let folder = folder();
    let prefix = folder.path().join("homes");
    for path in [folder.path(), &prefix] {
        chown(path, Some(UID), Some(UID)).expect("owner");
    }
    let child = command(folder.path(), &[]).uid(UID).gid(UID).spawn().expect("starts");
    let homed = Homed::waited_for(folder, child);
    homed.write(&homed.home("foo")).await.expect("its own");
    make_directory(&prefix.join("bar"), UID + 1);
    homed.refused(&HomeTarget::new(prefix.join("bar"), UID + 1, UID + 1), "unavailable").await;
}

#[tokio::test]
async fn an_export_that_hangs_fails_its_own_tenants_and_nobody_elses() {
    let folder = folder();
    let (sick, well) = (folder.path().join("sick"), folder.path().join("homes"));
    fs::create_dir(&sick).expect("prefix");
    // A worker that is stuck as soon as it hears of the sick export; otherwise the real one.
    let program = folder.path().join("worker");
    let script = format!(
        "#!/bin/sh\ninput=$(/bin/cat)\ncase \"$input\" in *'\"home\":\"{}'*) exec /bin/sleep 1000;; esac\nprintf '%s' \"$input\" | {PROGRAM} worker\n",
        sick.display()
    );
    fs::write(&program, script).expect("script");
    fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).expect("mode");
    let prefix = |path: &Path| Prefix { path: path.to_owned(), allow_create: false };
    let bounds = Bounds::new(vec![prefix(&sick), prefix(&well)]);
    let settings = HomedSettings {
        deadline: Duration::from_millis(700),
        worker_program: program,
        breaker: BreakerSettings { backoff: Duration::from_mins(10), ..BreakerSettings::default() },
        ..HomedSettings::new(bounds, 0, bursar::daemon::now)
    };
    let socket = folder.path().join("homed.sock");
    let listener = server::listener(Some(&socket)).expect("listens");
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let served = tokio::spawn(server::serve(listener, settings, async move { drop(stopped.await) }));
    let client = HomedClient::new(&socket, Duration::from_secs(1));
    let ask = async |prefix: &Path, uid: u32| {
        let target = HomeTarget::new(prefix.join(format!("h{uid}")), uid, uid);
        match client.call(&Request::new(target, Work::EnsureHome { create: false, skeleton: false })).await {
            Ok(_) => "ok",
            Err(HomedClientError::Home(error)) => error.reason(),
            Err(error) => panic!("{error}"),
        }
    };
    make_directory(&well.join("h1001"), 1001);
    // One account alone opens nothing.
    for _ in 0..4 {
        assert_eq!(ask(&sick, 1001).await, "timed-out");
    }
    let late = tokio::join!(ask(&sick, 1002), ask(&sick, 1003), ask(&well, 1001));
    assert_eq!(late, ("timed-out", "timed-out", "ok"));
    let began = Instant::now();
    assert_eq!(ask(&sick, 1004).await, "unavailable");
    assert!(began.elapsed() < Duration::from_millis(500), "at once");
    assert_eq!(ask(&well, 1001).await, "ok");
    drop(stop);
    served.await.expect("no panic").expect("ends well");
}

#[tokio::test]
async fn a_client_without_a_server_is_told_which_unit_to_start() {
    let client = HomedClient::new("/nonexistent/homed.sock", Duration::from_secs(1));
    let request = Request::new(HomeTarget::new("/home/foo", UID, UID), write(entries("1")));
    let error = client.call(&request).await.expect_err("nobody listens");
    assert!(error.to_string().contains("systemctl start bursar-homed.socket"), "{error}");
}

#[tokio::test]
async fn a_client_survives_a_restart_of_the_server() {
    let mut homed = Homed::start(&[]);
    let target = homed.home("foo");
    homed.write(&target).await.expect("writes");
    homed.child.kill().expect("killed");
    homed.child.wait().expect("gone");
    homed.child = command(homed.folder.path(), &[]).spawn().expect("starts again");
    let socket = homed.folder.path().join("homed.sock");
    wait_for("the socket of bursar-homed", || UnixStream::connect(&socket).is_ok());
    homed.write(&target).await.expect("writes");
}

#[tokio::test]
async fn the_socket_of_systemd_is_taken_over_and_sigterm_ends_it_well() {
    let folder = folder();
    let listener = std::os::unix::net::UnixListener::bind(folder.path().join("homed.sock")).expect("listens");
    // As systemd does: the socket is descriptor 3 and LISTEN_PID is the process itself.
    let script = r#"exec 3<&0 </dev/null; export LISTEN_PID=$$ LISTEN_FDS=1; exec "$@""#;
    let child = Command::new("sh")
        .args(["-c", script, "sh", PROGRAM, "--client-user", "0", "--prefix"])
        .arg(folder.path().join("homes"))
        .stdin(std::os::fd::OwnedFd::from(listener))
        .spawn()
        .expect("starts");
    let mut homed = Homed::waited_for(folder, child);
    homed.write(&homed.home("foo")).await.expect("writes");
    let pid = i32::try_from(homed.child.id()).ok().and_then(rustix::process::Pid::from_raw).expect("pid");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("told to end");
    assert_eq!(homed.child.wait().expect("ends").code(), Some(0));
}

#[test]
fn wrong_arguments_and_settings_have_their_exit_codes() {
    let code = |arguments: &[&str]| {
        let output = Command::new(PROGRAM).args(arguments).output().expect("runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert_eq!(code(&["--prefx", "/home"]).0, Some(64));
    let (status, text) = code(&["--client-user", "0", "--prefix", "/srv"]);
    assert_eq!(status, Some(78), "{text}");
    assert!(text.contains("bursar-homed.socket"), "{text}");
    let (status, text) = code(&["--client-user", "no-such-user", "--prefix", "/srv"]);
    assert_eq!(status, Some(78), "{text}");
    assert!(text.contains("no-such-user"), "{text}");
}
