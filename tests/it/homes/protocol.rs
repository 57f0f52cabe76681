//! What any client may send to the socket, and what a compromised daemon can do: change only our entries, only in homes
//! beneath the prefixes, and only as their owners.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use bursar_protocol::{Answer, EntryNames, HomeError, HomeTarget, Request, Response, SecretText, UserProof, Work};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::{Homed, OUR_USER, UID, entries, make_directory, make_file, names_in, soak, write};

/// Sends bytes and ends the stream. Returns everything that is answered.
fn said(socket: &Path, words: &[u8]) -> Vec<u8> {
    let mut stream = UnixStream::connect(socket).expect("the server listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("the timeout is not zero");
    // The server may close the connection before everything is sent.
    let _ = stream.write_all(words);
    let _ = stream.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => answer,
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => answer,
        Err(error) => panic!("neither an answer nor a close: {error}"),
    }
}

/// Whether the answer is empty, or consists of whole lines with valid answers.
fn is_clean(answer: &[u8]) -> bool {
    answer.is_empty()
        || (answer.ends_with(b"\n")
            && answer.split_inclusive(|byte| *byte == b'\n').all(|line| {
                serde_json::from_slice::<Response>(line)
                    .is_ok_and(|response| !matches!(response.result, Err(HomeError::WorkerDied { .. })))
            }))
}

/// Returns a valid request with some bytes changed, truncated, repeated or rotated.
fn almost(valid: Vec<u8>) -> impl Strategy<Value = Vec<u8>> {
    let change = (any::<prop::sample::Index>(), any::<u8>());
    let changes = prop::collection::vec(change, 0..6);
    (changes, any::<prop::sample::Index>(), 0..4_usize).prop_map(move |(changes, cut, how)| {
        let mut words = valid.clone();
        for (place, byte) in changes {
            let place = place.index(words.len());
            words[place] = byte;
        }
        match how {
            0 => words.truncate(cut.index(words.len())),
            1 => words.extend_from_slice(&valid),
            2 => words.rotate_left(cut.index(valid.len())),
            _ => {}
        }
        words
    })
}

#[tokio::test]
async fn every_message_gets_an_answer_or_a_close() {
    let (homed, target) = Homed::with_home(&["--deadline", "5s"]);
    let socket = homed.folder.path().join("homed.sock");
    let line = |work: Work| {
        let mut line = serde_json::to_vec(&Request::new(target.clone(), work)).expect("the value has a JSON form");
        line.push(b'\n');
        line
    };
    let ours = entries("1");
    let names = ours.names();
    let valid = [
        line(Work::Inspect { names: names.clone() }),
        line(Work::TestWrite { replace_unparsable: true }),
        line(Work::EnsureHome { create: true, skeleton: true }),
        line(write(ours)),
        line(Work::RemoveKubeconfig { names }),
        line(Work::SshKeys { keys: vec![super::ssh::key(1)] }),
    ];
    let raw = prop::collection::vec(any::<u8>(), 0..2_000);
    let json = r#"[{}\[\]",:a-z0-9\\ \n]{0,400}"#.prop_map(String::into_bytes);
    let mutated = prop::sample::select(valid.to_vec()).prop_flat_map(almost);
    let words = prop_oneof![1 => raw, 1 => json, 3 => mutated];
    let cases = u32::try_from(soak(400, 20_000)).expect("the number is small");
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let outcome = runner.run(&words, |words| {
        let answer = said(&socket, &words);
        prop_assert!(is_clean(&answer), "{}", String::from_utf8_lossy(&answer));
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
    // The same process still serves.
    homed.write(&target).await.expect("homed accepts the request");
    assert!(Path::new(&format!("/proc/{}", homed.child.id())).exists());
    assert_eq!(
        names_in(target.home.parent().expect("the path has a parent")),
        ["foo"],
        "nothing is written outside the home"
    );
}

/// A compromised daemon can choose every field of every request. It must not reach `outside` (not beneath a prefix),
/// `other` (the home of another account) or the user's own entries.
#[tokio::test]
async fn a_compromised_daemon_reaches_only_our_entries() {
    let homed = Homed::start(&[]);
    let mine = homed.home("mine");
    let outside = homed.folder.path().join("outside");
    make_directory(&outside, UID);
    let other = homed.folder.path().join("homes/other");
    make_directory(&other, UID + 1);
    make_directory(&mine.home.join(".kube"), UID);
    let config = mine.home.join(".kube/config");
    let theirs = "apiVersion: v1\nclusters:\n- {name: lab, cluster: {server: 'https://lab', certificate-authority: ca.pem}}\ncontexts:\n- {name: lab, context: {cluster: lab, user: me}}\ncurrent-context: lab\nkind: Config\nusers:\n- {name: me, user: {token: hunter2}}\n";
    make_file(&config, UID, theirs.as_bytes());
    let reason = async |target: &HomeTarget, work: Work| match homed.ask(target, work).await {
        Ok(answer) => format!("{answer:?}"),
        Err(error) => error.reason().to_owned(),
    };

    // The request has names of the user's own entries instead of Bursar's.
    let mut context = entries("1");
    context.contexts[0].name = "lab".into();
    assert_eq!(reason(&mine, write(context)).await, "foreign-entry");
    let mut cluster = entries("1");
    cluster.clusters[0].name = "lab".into();
    cluster.contexts[0].cluster = "lab".into();
    assert_eq!(reason(&mine, write(cluster)).await, "foreign-entry");
    let mut user = entries("1");
    user.user.name = "me".into();
    user.contexts[0].user = "me".into();
    assert_eq!(reason(&mine, write(user)).await, "bad-request");
    let names =
        |user: &str| EntryNames { clusters: vec!["lab".into()], user: user.into(), contexts: vec!["lab".into()] };
    assert_eq!(reason(&mine, Work::RemoveKubeconfig { names: names("me") }).await, "bad-request");
    assert_eq!(reason(&mine, Work::RemoveKubeconfig { names: names(OUR_USER) }).await, "Removed { changed: false }");
    assert_eq!(reason(&mine, Work::Inspect { names: names("me") }).await, "bad-request");
    let looked = reason(&mine, Work::Inspect { names: names(OUR_USER) }).await;
    assert!(!looked.contains("hunter2") && looked.contains("certificate_pem: None"), "{looked}");
    assert_eq!(fs::read_to_string(&config).expect("the file is readable"), theirs);

    // The request has text that would begin a new line in the kubeconfig or in another file.
    let mut injected = entries("1");
    injected.clusters[0].server = "https://x\n- name: evil\n".into();
    injected.contexts[0].namespace = Some("a\"}]\nusers: []\n#".into());
    injected.user.proof = UserProof::Certificate {
        certificate_pem: String::new(),
        key_pem: SecretText::new("x\nssh-ed25519 AAAA\n".into()),
    };
    let answer = homed.ask(&mine, write(injected)).await.expect("injected text is quoted");
    assert!(matches!(answer, Answer::Written(_)));
    let read = kube::config::Kubeconfig::from_yaml(&fs::read_to_string(&config).expect("the file is readable"))
        .expect("the kubeconfig is valid");
    assert_eq!(read.auth_infos.iter().map(|user| user.name.as_str()).collect::<Vec<_>>(), ["me", OUR_USER]);
    assert_eq!(read.current_context.as_deref(), Some("lab"));
    assert!(
        !fs::read_to_string(&config).expect("the file is readable").lines().any(|line| line.starts_with("ssh-ed25519"))
    );

    // The request names other files, other homes and other accounts.
    let at = |home: &Path, uid: u32, kubeconfig: &str| HomeTarget {
        kubeconfig: kubeconfig.into(),
        ..HomeTarget::new(home, uid, uid)
    };
    for file in [".bash_profile", ".ssh/authorized_keys", ".kube/cache", ".profile"] {
        for work in [write(entries("1")), Work::TestWrite { replace_unparsable: true }] {
            assert_eq!(reason(&at(&mine.home, UID, file), work).await, "path-not-allowed", "{file}");
        }
    }
    assert_eq!(reason(&at(&outside, UID, ".kube/config"), write(entries("1"))).await, "not-beneath-prefix");
    assert_eq!(reason(&at(&other, UID, ".kube/config"), write(entries("1"))).await, "wrong-owner");
    assert_eq!(reason(&at(&mine.home, UID + 1, ".kube/config"), write(entries("1"))).await, "wrong-owner");
    assert_eq!(reason(&at(&mine.home, 0, ".kube/config"), write(entries("1"))).await, "uid-too-low");
    let new = mine.home.with_file_name("new");
    let ensured = reason(&at(&new, UID, ".kube/config"), Work::EnsureHome { create: true, skeleton: true }).await;
    assert_eq!(ensured, "create-not-allowed");
    assert_eq!(reason(&at(&new, UID, ".kube/config"), Work::TestCreate).await, "create-not-allowed");
    assert_eq!(reason(&at(&outside.join("new"), UID, ".kube/config"), Work::TestCreate).await, "not-beneath-prefix");
    assert_eq!(names_in(&mine.home), [".kube"]);
    assert_eq!(names_in(&outside), Vec::<String>::new());
    assert_eq!(names_in(&other), Vec::<String>::new());
    let found = fs::metadata(&config).expect("the file exists");
    assert_eq!((found.uid(), found.mode() & 0o7777), (UID, 0o600));
}

#[tokio::test]
async fn entries_of_a_former_system_are_taken_over_only_if_root_allows_it() {
    let theirs = b"clusters:\n- {name: toolforge, cluster: {server: 'https://old'}}\ncontexts:\n- {name: toolforge, context: {cluster: toolforge, user: tf-foo}}\nusers:\n- {name: tf-foo, user: {client-certificate: x}}\n";
    for (arguments, expected) in [(&[][..], Err("foreign-entry")), (&["--take-over", "toolforge"][..], Ok(()))] {
        let (homed, target) = Homed::with_home(arguments);
        make_directory(&target.home.join(".kube"), UID);
        make_file(&target.home.join(".kube/config"), UID, theirs);
        let answer = homed.write(&target).await;
        assert_eq!(answer.map(|_| ()).map_err(|error| error.reason()), expected);
        let text = fs::read_to_string(target.home.join(".kube/config")).expect("the file is readable");
        assert_eq!(text.contains(OUR_USER), expected.is_ok());
        assert!(text.contains("tf-foo"), "the former system's user entry stays");
    }
}

#[tokio::test]
async fn homed_checks_all_requests_itself() {
    let (homed, good) = Homed::with_home(&[]);
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
    assert_eq!(
        homed.ask(&good, write(ours)).await.expect_err("the context names another cluster").reason(),
        "bad-request"
    );
    assert_eq!(names_in(&outside), Vec::<String>::new());
    assert_eq!(names_in(&good.home), Vec::<String>::new());
}

#[tokio::test]
async fn only_the_configured_user_is_served() {
    let (homed, target) = Homed::with_home(&["--client-user", "4242"]);
    assert_eq!(homed.write(&target).await, Err(HomeError::Forbidden { uid: 0 }));
    assert_eq!(names_in(&target.home), Vec::<String>::new());
}

#[tokio::test]
async fn garbage_and_endless_requests_are_refused_and_the_server_keeps_running() {
    let (homed, target) = Homed::with_home(&["--deadline", "3s"]);
    let socket = homed.folder.path().join("homed.sock");
    let valid =
        serde_json::to_value(Request::new(target.clone(), write(entries("1")))).expect("the value has a JSON form");
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
        let mut stream = UnixStream::connect(&socket).expect("the server listens");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("the timeout is not zero");
        let _ = stream.write_all(&words);
        let mut answer = [0; 16 * 1024];
        let read = stream.read(&mut answer).expect("the server answers");
        let answer = String::from_utf8_lossy(&answer[..read]);
        assert!(answer.contains("bad_request"), "{answer}");
    }
    homed.write(&target).await.expect("homed accepts the request");
}
