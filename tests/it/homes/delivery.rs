//! Deliveries into well-behaved homes, and removals from them.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, chown, symlink};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use bursar_protocol::{
    Answer, HomeTarget, Inspection, KubeconfigEntries, SecretText, SuspensionNotice, TokenFiles, UserProof, Work,
    Written,
};
use bursar_testkit::binaries::program;

use super::{
    Homed, OUR_USER, UID, children_of, command, entries, folder, make_directory, make_file, names_in, parses, wait_for,
    with_our_key, workers_of, write,
};

#[tokio::test]
async fn a_kubeconfig_is_written_inspected_and_removed_as_its_owner() {
    let (homed, target) = Homed::with_home(&[]);
    let config = target.home.join(".kube/config");
    let ours = entries("1");
    let names = ours.names();

    let writable =
        homed.ask(&target, Work::TestWrite { replace_unparsable: false }).await.expect("homed accepts the request");
    assert_eq!(writable, Answer::Writable);
    assert_eq!(names_in(&target.home.join(".kube")), Vec::<String>::new());
    let nothing = homed.ask(&target, Work::Inspect { names: names.clone() }).await.expect("homed accepts the request");
    let mount = Some(super::mount_of(&target));
    assert_eq!(nothing, Answer::Inspected(Inspection { mount: mount.clone(), ..Inspection::default() }));

    let first = homed.ask(&target, write(ours.clone())).await.expect("the home is writable");
    let Answer::Written(Written { changed: true, entries_digest, backup: None, overridden_lock: None, mount: at }) =
        first
    else {
        panic!("{first:?}")
    };
    assert_eq!(at, mount);
    let metadata = fs::metadata(&config).expect("the path exists");
    assert_eq!((metadata.uid(), metadata.gid(), metadata.mode() & 0o7777), (UID, UID, 0o600));
    assert_eq!(fs::metadata(target.home.join(".kube")).expect("the path exists").mode() & 0o7777, 0o700);
    assert!(parses(&config));

    let again = homed.ask(&target, write(ours.clone())).await.expect("the home is writable");
    assert!(matches!(again, Answer::Written(Written { changed: false, .. })), "{again:?}");
    let unchanged = fs::metadata(&config).expect("the file exists");
    assert_eq!(
        (unchanged.ino(), unchanged.mtime_nsec()),
        (metadata.ino(), metadata.mtime_nsec()),
        "the file is not written again"
    );

    let found = homed.ask(&target, Work::Inspect { names: names.clone() }).await.expect("homed accepts the request");
    let Answer::Inspected(found) = found else { panic!("{found:?}") };
    assert!(found.exists && found.parses && found.key_matches);
    assert_eq!((found.owner, found.mode), (Some(UID), Some(0o600)));
    assert_eq!(found.current_context.as_deref(), Some("toolforge"));
    assert_eq!(found.entries_digest, Some(entries_digest));

    let removed = homed.ask(&target, Work::RemoveKubeconfig { names }).await.expect("homed accepts the request");
    assert_eq!(removed, Answer::Removed { changed: true });
    assert!(!fs::read_to_string(&config).expect("the file is readable").contains("tool-foo"));
    assert_eq!(names_in(&target.home.join(".kube")), ["config"]);
}

/// Returns entries with a token whose only distinguishing claim is its id.
fn with_token(id: &str) -> KubeconfigEntries {
    let payload = format!(r#"{{"jti":"{id}","sub":"system:serviceaccount:tool-foo:bursar-g7","nbf":1,"exp":2}}"#);
    let payload = base64::Engine::encode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, payload);
    let files = TokenFiles {
        token: SecretText::new(format!("e30.{payload}.c2ln")),
        ca_pem: "a CA".to_owned(),
        namespace: "tool-foo".to_owned(),
        service_host: "api.example.org".to_owned(),
        service_port: 6443,
    };
    let mut entries = entries("1");
    entries.user.proof = UserProof::Token(files);
    entries
}

#[tokio::test]
async fn a_token_is_delivered_and_removed_with_its_folder() {
    let (homed, target) = Homed::with_home(&[]);
    let (folder, names) = (target.home.join(".kube").join(OUR_USER), entries("1").names());
    let token_id = async || {
        let found =
            homed.ask(&target, Work::Inspect { names: names.clone() }).await.expect("homed accepts the request");
        assert!(!format!("{found:?}").contains("e30."), "{found:?}");
        let Answer::Inspected(found) = found else { panic!("{found:?}") };
        found.token_id
    };
    let (one, two) = (with_token("one"), with_token("two"));
    for (id, entries) in [("one", &one), ("two", &two)] {
        homed.ask(&target, write(entries.clone())).await.expect("the home is writable");
        assert_eq!(token_id().await.as_deref(), Some(id));
    }
    assert_eq!(names_in(&folder), ["ca.crt", "kubernetes.env", "namespace", "token"]);
    let environment = fs::read_to_string(folder.join("kubernetes.env")).expect("the file is readable");
    assert!(environment.starts_with("KUBERNETES_SERVICE_HOST=api.example.org\nKUBERNETES_SERVICE_PORT=6443\n"));
    let again = homed.ask(&target, write(two)).await.expect("the home is writable");
    assert!(matches!(again, Answer::Written(Written { changed: false, .. })), "{again:?}");

    // A file that the user adds stays. A link that replaces the folder is not followed.
    make_file(&folder.join("mine"), UID, b"mine");
    homed.ask(&target, Work::RemoveKubeconfig { names: names.clone() }).await.expect("homed accepts the request");
    assert_eq!(names_in(&folder), ["mine"]);
    let elsewhere = target.home.join("elsewhere");
    make_directory(&elsewhere, UID);
    fs::rename(&folder, target.home.join("kept")).expect("the parent folder is writable");
    symlink(&elsewhere, &folder).expect("the folder is writable");
    let error = homed.ask(&target, write(with_token("three"))).await.expect_err("the folder is a symlink");
    assert!(matches!(error.reason(), "symlink" | "not-a-directory" | "wrong-owner"), "{error:?}");
    assert!(names_in(&elsewhere).is_empty());

    // A certificate replaces the token.
    let target = homed.home("bar");
    for entries in [with_token("one"), entries("1")] {
        homed.ask(&target, write(entries)).await.expect("the home is writable");
    }
    assert_eq!(names_in(&target.home.join(".kube")), ["config"]);
}

#[tokio::test]
async fn a_notice_replaces_a_key_and_a_token() {
    let (homed, target) = Homed::with_home(&[]);
    let config = target.home.join(".kube/config");
    let notice = SuspensionNotice {
        account: "tool foo".to_owned(),
        since: "2026-11-22T21:00:00Z".to_owned(),
        until: Some("2026-12-01".to_owned()),
        contact: "$(touch /tmp/run); 'help'".to_owned(),
    };
    let said = notice.text();
    let mut told = entries("1");
    told.user.proof = UserProof::Notice(notice.clone());
    for before in [entries("1"), with_token("id-1")] {
        homed.ask(&target, write(before)).await.expect("the home is writable");
        let written = homed.ask(&target, write(told.clone())).await.expect("the home is writable");
        assert!(matches!(written, Answer::Written(Written { changed: true, .. })), "{written:?}");
        let text = fs::read_to_string(&config).expect("the file is readable");
        assert!(!text.contains("client-key-data") && !text.contains("client-certificate-data"), "{text}");
        assert!(!text.contains("tokenFile"), "{text}");
        assert_eq!(names_in(&target.home.join(".kube")), ["config"], "the token's folder is removed");
        let asked = Command::new("kubectl")
            .env("KUBECONFIG", &config)
            .args(["get", "pods"])
            .output()
            .expect("kubectl is installed");
        let stderr = String::from_utf8_lossy(&asked.stderr).into_owned();
        assert!(!asked.status.success() && stderr.contains(&said), "{stderr}");
        let again = homed.ask(&target, write(told.clone())).await.expect("the home is writable");
        assert!(matches!(again, Answer::Written(Written { changed: false, .. })), "{again:?}");
    }
    // The credential returns, and nothing of the notice is left.
    homed.ask(&target, write(entries("1"))).await.expect("the home is writable");
    let text = fs::read_to_string(&config).expect("the file is readable");
    assert!(text.contains("client-key-data") && !text.contains("exec"), "{text}");
    told.user.proof = UserProof::Notice(SuspensionNotice { contact: "a\u{1b}[2Jb".to_owned(), ..notice });
    assert!(homed.ask(&target, write(told)).await.is_err(), "a notice with control characters is refused");
}

#[tokio::test]
async fn a_users_own_entries_and_current_context_survive() {
    let (homed, target) = Homed::with_home(&[]);
    make_directory(&target.home.join(".kube"), UID);
    let config = target.home.join(".kube/config");
    let theirs = "apiVersion: v1\nclusters:\n- {name: mine, cluster: {server: 'https://mine'}}\ncontexts:\n- {name: mine, context: {cluster: mine, user: me}}\ncurrent-context: mine\nkind: Config\nusers:\n- {name: me, user: {token: hunter2}}\nx-note: 0o17\n";
    make_file(&config, UID, theirs.as_bytes());
    homed.write(&target).await.expect("the home is writable");
    let text = fs::read_to_string(&config).expect("the file is readable");
    for line in theirs.lines() {
        assert!(text.contains(&format!("{line}\n")), "{line} in {text}");
    }
    let answer =
        homed.ask(&target, Work::Inspect { names: entries("1").names() }).await.expect("homed accepts the request");
    assert!(!format!("{answer:?}").contains("hunter2"));
    assert!(parses(&config));
}

#[tokio::test]
async fn an_unparsable_kubeconfig_is_replaced_only_if_the_class_allows_it() {
    let (homed, target) = Homed::with_home(&[]);
    make_directory(&target.home.join(".kube"), UID);
    let config = target.home.join(".kube/config");
    make_file(&config, UID, b"a: b: c: hunter2\n");
    let error = homed.write(&target).await.expect_err("the file is not YAML");
    assert_eq!(error.reason(), "not-yaml");
    assert!(!error.to_string().contains("hunter2"), "{error}");
    let error =
        homed.ask(&target, Work::TestWrite { replace_unparsable: false }).await.expect_err("the file is not YAML");
    assert_eq!(error.reason(), "not-yaml");
    assert_eq!(fs::read(&config).expect("the file is readable"), b"a: b: c: hunter2\n");

    let work = || Work::WriteKubeconfig { entries: entries("1"), replace_unparsable: true };
    for asked in [work(), Work::TestWrite { replace_unparsable: true }] {
        let error = homed.ask(&target, asked).await.expect_err("the file may still be written");
        assert_eq!(error.reason(), "in-use", "{error}");
    }
    assert_eq!(names_in(&target.home.join(".kube")), ["config"], "no backup is made without a replacement");
    make_old(&config);
    let answer = homed.ask(&target, work()).await.expect("homed accepts the request");
    let Answer::Written(Written { backup: Some(backup), changed: true, .. }) = answer else { panic!("{answer:?}") };
    assert!(backup.starts_with("config.bursar-backup-2"), "{backup}");
    assert_eq!(names_in(&target.home.join(".kube")), ["config".to_owned(), backup.clone()]);
    let kept = target.home.join(".kube").join(backup);
    assert_eq!(fs::read(&kept).expect("the file is readable"), b"a: b: c: hunter2\n");
    assert!(parses(&config));
}

#[tokio::test]
async fn a_kubeconfig_that_kubectl_reads_is_never_replaced() {
    let homed = Homed::start(&[]);
    let own = |name: &str, more: &str| {
        format!("apiVersion: v1\nkind: Config\nclusters:\n- name: {name}\n  cluster: {{server: https://mine}}\n{more}")
    };
    let utf16 = |bytes: fn(u16) -> [u8; 2]| {
        "\u{feff}".encode_utf16().chain(own("mine", "").encode_utf16()).flat_map(bytes).collect::<Vec<u8>>()
    };
    let texts = [
        ("utf16le", utf16(u16::to_le_bytes)),
        ("utf16be", utf16(u16::to_be_bytes)),
        ("quoted", own("\"a\nb\"", "").into_bytes()),
        ("comment", own("\"a\"#c", "").into_bytes()),
        ("directive", own("mine", "%YAML 1.1\n").into_bytes()),
        ("behind", own("mine", "...\n}}}\n").into_bytes()),
    ];
    for (name, text) in texts {
        let target = homed.home(name);
        let config = target.home.join(".kube/config");
        make_directory(&target.home.join(".kube"), UID);
        make_file(&config, UID, &text);
        let kubectl = bursar_testkit::binaries::control_plane().join("kubectl");
        let kubectl = Command::new(kubectl).args(["config", "view", "--kubeconfig"]).arg(&config).output();
        let shown = kubectl.expect("kubectl is installed");
        assert!(shown.status.success(), "{name}: {}", String::from_utf8_lossy(&shown.stderr));
        make_old(&config);
        for asked in [
            Work::TestWrite { replace_unparsable: true },
            Work::WriteKubeconfig { entries: entries("1"), replace_unparsable: true },
        ] {
            let error = homed.ask(&target, asked).await.expect_err(name);
            assert_eq!(error.reason(), "not-yaml", "{name}: {error}");
        }
        assert_eq!(fs::read(&config).expect("the file is readable"), text, "{name}");
        assert_eq!(names_in(&target.home.join(".kube")), ["config"], "{name}");
    }
}

#[tokio::test]
async fn a_backup_contains_none_of_our_keys() {
    let (homed, target) = Homed::with_home(&[]);
    let kube = target.home.join(".kube");
    let config = kube.join("config");
    let ((first, entries), (second, others)) = (with_our_key("1"), with_our_key("2"));
    homed.ask(&target, write(entries.clone())).await.expect("the home is writable");
    let text = fs::read_to_string(&config).expect("the file is readable");
    assert!(text.contains(&first));
    let broken = format!("a: b: hunter2\n{text}");
    fs::write(&config, &broken).expect("the folder is writable");
    make_old(&config);
    // A backup that a former version left.
    let former = kube.join("config.bursar-backup-20250101T000000Z");
    make_file(&former, UID, broken.as_bytes());
    let answer = homed.ask(&target, Work::WriteKubeconfig { entries: others.clone(), replace_unparsable: true }).await;
    let Ok(Answer::Written(Written { backup: Some(backup), .. })) = answer else { panic!("{answer:?}") };
    assert!(fs::read_to_string(&config).expect("the file is readable").contains(&second));
    homed.ask(&target, Work::RemoveKubeconfig { names: others.names() }).await.expect("homed accepts the request");
    for name in names_in(&kube) {
        let text = fs::read_to_string(kube.join(&name)).expect("the file is readable");
        assert!(!text.contains(&first) && !text.contains(&second), "{name}");
    }
    for backup in [kube.join(backup), former] {
        assert_eq!(
            fs::read_to_string(&backup).expect("the file is readable"),
            broken.replace(&first, ""),
            "{}",
            backup.display()
        );
        assert_eq!(fs::metadata(&backup).expect("the path exists").mode() & 0o7777, 0o600);
    }
}

/// Sets the file's time back so far that no program can still be writing it.
fn make_old(path: &Path) {
    let file = fs::File::options().write(true).open(path).expect("the file is writable");
    let modified = fs::metadata(path).expect("the file exists").modified().expect("the file system keeps times");
    file.set_modified(modified - Duration::from_mins(2)).expect("tests run as root, who may change times");
}

#[tokio::test]
async fn homes_are_made_only_if_the_request_and_the_prefix_allow_it() {
    let other = folder();
    let made = other.path().join("made");
    fs::create_dir(&made).expect("the parent folder is writable");
    let skeleton = other.path().join("skel");
    fs::create_dir_all(skeleton.join("bin")).expect("the parent folder is writable");
    fs::write(skeleton.join(".profile"), "umask 077\n").expect("the folder is writable");
    let homed = Homed::start(&[
        "--create-prefix",
        made.to_str().expect("the path is UTF-8"),
        "--skeleton",
        skeleton.to_str().expect("the path is UTF-8"),
    ]);
    let ensure = |create| Work::EnsureHome { create, skeleton: true };

    let target = HomeTarget::new(made.join("foo"), UID, UID + 1);
    let error = homed.ask(&target, ensure(false)).await.expect_err("the class does not ask for it");
    assert_eq!(error.reason(), "missing-home");
    assert_eq!(homed.ask(&target, ensure(true)).await, Ok(Answer::HomeReady { created: true }));
    assert_eq!(homed.ask(&target, ensure(true)).await, Ok(Answer::HomeReady { created: false }));
    let metadata = fs::metadata(&target.home).expect("the path exists");
    assert_eq!((metadata.uid(), metadata.gid(), metadata.mode() & 0o7777), (UID, UID + 1, 0o700));
    assert_eq!(names_in(&target.home), [".profile", "bin"]);
    assert_eq!(fs::metadata(target.home.join(".profile")).expect("the path exists").uid(), UID);
    assert_eq!(names_in(&made), ["foo"]);

    let target = HomeTarget::new(homed.folder.path().join("homes/foo"), UID, UID);
    let error = homed.ask(&target, ensure(true)).await.expect_err("the prefix does not allow it");
    assert_eq!(error.reason(), "create-not-allowed");
    symlink(other.path(), made.join("bar")).expect("the folder is writable");
    let error =
        homed.ask(&HomeTarget::new(made.join("bar"), UID, UID), ensure(true)).await.expect_err("the home is a symlink");
    assert_eq!(error.reason(), "symlink");
    assert_eq!(fs::metadata(other.path()).expect("the file exists").uid(), 0);
}

#[tokio::test]
async fn without_root_homed_serves_only_its_own_user() {
    let folder = folder();
    let prefix = folder.path().join("homes");
    for path in [folder.path(), &prefix] {
        chown(path, Some(UID), Some(UID)).expect("tests run as root, who may change owners");
    }
    let child = command(folder.path(), &[]).uid(UID).gid(UID).spawn().expect("bursar-homed is built");
    let homed = Homed::waited_for(folder, child);
    let target = homed.home("foo");
    let lock = target.home.join(".kube/config.lock");
    make_directory(&target.home.join(".kube"), UID);
    make_file(&lock, UID, b"");
    // While the worker waits for the lock, it has a key in its memory, which belongs to the same user as the test's
    // server. Such a process is protected only if the kernel gives its files in `/proc` to root.
    let server = homed.child.id();
    let looked = std::thread::spawn(move || {
        wait_for("the memory of all processes is private", || {
            let workers = workers_of(server);
            let mut all = children_of(server).into_iter().chain(workers.clone()).chain([server]);
            let is_private = |process: u32| {
                fs::metadata(format!("/proc/{process}/environ")).is_ok_and(|environment| environment.uid() == 0)
            };
            !workers.is_empty() && all.all(is_private)
        });
        fs::remove_file(lock).expect("the lock exists");
    });
    homed.write(&target).await.expect("its own user's home is served");
    looked.join().expect("the thread does not panic");
    make_directory(&prefix.join("bar"), UID + 1);
    homed.refused(&HomeTarget::new(prefix.join("bar"), UID + 1, UID + 1), "unavailable").await;
}

#[tokio::test]
async fn a_client_survives_a_restart_of_the_server() {
    let (mut homed, target) = Homed::with_home(&[]);
    homed.write(&target).await.expect("the home is writable");
    homed.child.kill().expect("the process can be killed");
    homed.child.wait().expect("the process can be waited for");
    homed.child = command(homed.folder.path(), &[]).spawn().expect("bursar-homed is built");
    let socket = homed.folder.path().join("homed.sock");
    wait_for("the socket of bursar-homed", || UnixStream::connect(&socket).is_ok());
    homed.write(&target).await.expect("the home is writable");
}

#[tokio::test]
async fn homed_uses_the_socket_of_systemd_and_exits_cleanly_on_sigterm() {
    let folder = folder();
    let listener =
        std::os::unix::net::UnixListener::bind(folder.path().join("homed.sock")).expect("the folder is writable");
    // Like systemd: the socket is descriptor 3, and LISTEN_PID is the process itself.
    let script = r#"exec 3<&0 </dev/null; export LISTEN_PID=$$ LISTEN_FDS=1; exec "$@""#;
    let child = Command::new("sh")
        .args(["-c", script, "sh"])
        .arg(program("bursar-homed"))
        .args(["--client-user", "0", "--prefix"])
        .arg(folder.path().join("homes"))
        .stdin(std::os::fd::OwnedFd::from(listener))
        .spawn()
        .expect("bursar-homed is built");
    let mut homed = Homed::waited_for(folder, child);
    homed.write(&homed.home("foo")).await.expect("the home is writable");
    let pid = i32::try_from(homed.child.id())
        .ok()
        .and_then(rustix::process::Pid::from_raw)
        .expect("a process id is not zero");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("the process runs");
    assert_eq!(homed.child.wait().expect("the process can be waited for").code(), Some(0));
}
