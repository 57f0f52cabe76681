//! SSH keys that are delivered over the socket into ordinary and hostile homes.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use base64::Engine as _;
use bursar_protocol::{Answer, HomeTarget, Work};
use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::{Homed, UID, make_directory, make_file, names_in};

/// Returns a public key of type `ssh-ed25519` with 32 bytes of this value.
pub fn key(byte: u8) -> String {
    let mut blob = b"\0\0\0\x0bssh-ed25519\0\0\0\x20".to_vec();
    blob.extend([byte; 32]);
    format!("ssh-ed25519 {} ann@laptop", base64::engine::general_purpose::STANDARD.encode(blob))
}

fn keys(lines: &[String]) -> Work {
    Work::SshKeys { keys: lines.to_vec() }
}

fn block(lines: &[String]) -> String {
    let begin = "# BEGIN bursar: from the directory, overwritten; put your own keys above or below";
    format!("{begin}\n{}\n# END bursar\n", lines.join("\n"))
}

async fn reason(homed: &Homed, target: &HomeTarget, work: Work) -> String {
    match homed.ask(target, work).await {
        Ok(answer) => format!("{answer:?}"),
        Err(error) => {
            assert!(error.remedy().len() > 20 && !error.to_string().contains(char::is_control), "{error:?}");
            error.reason().to_owned()
        }
    }
}

#[tokio::test]
async fn keys_are_added_beside_other_lines_and_removed_again() {
    let (homed, target) = Homed::with_home(&["--ssh-keys"]);
    let file = target.home.join(".ssh/authorized_keys");
    assert_eq!(homed.ask(&target, keys(&[])).await, Ok(Answer::SshKeys { changed: false, mount: None }));
    assert_eq!(names_in(&target.home), Vec::<String>::new(), "without keys, no folder is made");

    let both = [key(1), key(2)];
    let mount = Some(super::mount_of(&target));
    let answer = |changed| Ok(Answer::SshKeys { changed, mount: mount.clone() });
    assert_eq!(homed.ask(&target, keys(&both)).await, answer(true));
    assert_eq!(homed.ask(&target, keys(&both)).await, answer(false));
    let mode = |path: &Path| {
        let found = fs::metadata(path).expect("the path exists");
        (found.uid(), found.permissions().mode() & 0o777)
    };
    assert_eq!((mode(&file), mode(&target.home.join(".ssh"))), ((UID, 0o600), (UID, 0o700)));
    assert_eq!(fs::read_to_string(&file).expect("the file is UTF-8"), block(&both));

    for own in
        ["ssh-rsa AAAA me", "# mine\r\nssh-rsa AAAA me\r\n", "command=\"x\" ssh-rsa AAAA me\n\n", "\u{fffd}\u{1}\n"]
    {
        make_file(&file, UID, own.as_bytes());
        assert_eq!(homed.ask(&target, keys(&both[..1])).await, answer(true), "{own}");
        let whole = if own.ends_with('\n') { own.to_owned() } else { format!("{own}\n") };
        let found = fs::read_to_string(&file).expect("the file is UTF-8");
        assert_eq!(found, format!("{whole}{}", block(&both[..1])));
        fs::write(&file, format!("{found}below\n")).expect("the file is writable");
        assert_eq!(homed.ask(&target, keys(&[])).await, answer(true), "{own}");
        assert_eq!(fs::read_to_string(&file).expect("the file is UTF-8"), format!("{whole}below\n"));
    }
    assert_eq!(names_in(&target.home.join(".ssh")), ["authorized_keys"]);
}

#[tokio::test]
async fn a_file_never_grows_so_large_that_its_keys_could_not_be_removed() {
    let (homed, target) = Homed::with_home(&["--ssh-keys"]);
    make_directory(&target.home.join(".ssh"), UID);
    let file = target.home.join(".ssh/authorized_keys");
    let own = vec![b'#'; 1024 * 1024 - 200];
    make_file(&file, UID, &own);
    assert!(reason(&homed, &target, keys(&[key(1)])).await.starts_with("SshKeys"), "the file has room for one key");
    assert_eq!(reason(&homed, &target, keys(&[key(1), key(2)])).await, "too-large");
    assert!(reason(&homed, &target, keys(&[])).await.starts_with("SshKeys"), "the key is removed");
    assert_eq!(fs::read(&file).expect("the file is readable").trim_ascii_end(), own);
}

#[tokio::test]
async fn only_plain_keys_are_written_and_only_with_the_option_of_homed() {
    let (homed, shut) = (Homed::start(&["--ssh-keys"]), Homed::start(&[]));
    let (target, closed) = (homed.home("foo"), shut.home("foo"));
    assert_eq!(reason(&shut, &closed, keys(&[key(1)])).await, "ssh-keys-not-allowed");
    assert_eq!(
        reason(&shut, &closed, keys(&[])).await,
        "SshKeys { changed: false, mount: None }",
        "a removal is always allowed"
    );
    for line in [
        format!("command=\"/bin/sh\" {}", key(1)),
        format!("{}\n{}", key(1), "# END bursar\nssh-rsa AAAA"),
        format!("{}\r# END bursar", key(1)),
        "ssh-ed25519 AAAA".to_owned(),
        String::new(),
    ] {
        let answer = reason(&homed, &target, keys(&[key(2), line.clone()])).await;
        // White space within a line becomes one space, so two lines become one key with a comment.
        if answer.starts_with("SshKeys { changed: true,") {
            let text = fs::read_to_string(target.home.join(".ssh/authorized_keys")).expect("the file is UTF-8");
            assert_eq!(text.lines().count(), 4, "{line:?}: {text}");
        } else {
            assert_eq!(answer, "bad-request", "{line:?}");
        }
    }
    assert_eq!(reason(&homed, &target, keys(&vec![key(1); 65])).await, "bad-request");
}

#[tokio::test]
async fn hostile_files_are_refused_with_a_reason_and_left_unchanged() {
    type Plant = fn(&Path, &Path);
    let homed = Homed::start(&["--ssh-keys"]);
    let outside = homed.folder.path().join("outside");
    make_directory(&outside, UID + 1);
    make_file(&outside.join("authorized_keys"), UID + 1, b"theirs\n");
    let cases: [(&str, &str, Plant); 14] = [
        ("folder-link", "symlink", |home, outside| symlink(outside, home.join(".ssh")).expect("the home is writable")),
        ("folder-file", "not-a-directory", |home, _| make_file(&home.join(".ssh"), UID, b"")),
        ("folder-others", "wrong-owner", |home, _| make_directory(&home.join(".ssh"), UID + 1)),
        ("link", "symlink", |home, outside| {
            symlink(outside.join("authorized_keys"), ssh(home).join("authorized_keys"))
                .expect("the folder is writable");
        }),
        ("link-own", "symlink", |home, _| {
            make_file(&home.join("real"), UID, b"");
            symlink("../real", ssh(home).join("authorized_keys")).expect("the folder is writable");
        }),
        ("directory", "not-a-regular-file", |home, _| make_directory(&ssh(home).join("authorized_keys"), UID)),
        ("pipe", "not-a-regular-file", |home, _| {
            let pipe = ssh(home).join("authorized_keys");
            mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).expect("the folder is writable");
            std::os::unix::fs::chown(&pipe, Some(UID), None).expect("tests run as root, who may change owners");
        }),
        ("others", "wrong-owner", |home, _| make_file(&ssh(home).join("authorized_keys"), UID + 1, b"")),
        ("hard-link", "wrong-owner", |home, outside| {
            fs::hard_link(outside.join("authorized_keys"), ssh(home).join("authorized_keys"))
                .expect("the folder is writable");
        }),
        ("huge", "too-large", |home, _| {
            let file = ssh(home).join("authorized_keys");
            make_file(&file, UID, b"");
            fs::File::options()
                .write(true)
                .open(&file)
                .expect("the file is writable")
                .set_len(1 << 40)
                .expect("the file system allows sparse files");
        }),
        ("twice", "broken-block", |home, _| {
            let text = [block(&[key(1)]), block(&[key(2)])].concat();
            make_file(&ssh(home).join("authorized_keys"), UID, text.as_bytes());
        }),
        ("no-end", "broken-block", |home, _| {
            make_file(&ssh(home).join("authorized_keys"), UID, b"# BEGIN bursar\nssh-rsa AAAA me\n");
        }),
        ("no-begin", "broken-block", |home, _| {
            make_file(&ssh(home).join("authorized_keys"), UID, b"ssh-rsa AAAA me\r\n# END bursar\r\n");
        }),
        ("unreadable", "access-denied", |home, _| {
            let file = ssh(home).join("authorized_keys");
            make_file(&file, UID, b"ssh-rsa AAAA me\n");
            fs::set_permissions(&file, fs::Permissions::from_mode(0o000))
                .expect("tests run as root, who may change modes");
        }),
    ];
    for (name, expected, plant) in cases {
        let target = homed.home(name);
        plant(&target.home, &outside);
        let around =
            |path: &Path| fs::symlink_metadata(path).map(|found| (found.mode(), found.uid(), found.len())).ok();
        let places = [target.home.join(".ssh"), target.home.join(".ssh/authorized_keys")];
        let before = places.each_ref().map(|path| around(path));
        assert_eq!(reason(&homed, &target, keys(&[key(1)])).await, expected, "{name}");
        let removed = reason(&homed, &target, keys(&[])).await;
        assert_eq!(removed, expected, "{name}");
        assert_eq!(places.each_ref().map(|path| around(path)), before, "{name}");
    }
    assert_eq!(fs::read(outside.join("authorized_keys")).expect("the file exists"), b"theirs\n");
    assert_eq!(names_in(&outside), ["authorized_keys"]);
}

fn ssh(home: &Path) -> std::path::PathBuf {
    make_directory(&home.join(".ssh"), UID);
    home.join(".ssh")
}
