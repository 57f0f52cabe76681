//! The files beside a kubeconfig: the copy of the user's part, the token files and backups. If a user puts other things
//! in the places of these files, no credential is issued in vain, and Bursar's key is still removed from the home.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use bursar_protocol::{Answer, Inspection, PlannedEntries, SuspensionNotice, UserProof, Work};

use super::{Homed, OUR_USER, UID, entries, make_directory, make_file, names_in, test_delivery, with_our_key, write};

const KEPT: &str = "config.bursar-kept";

fn inspect() -> Work {
    Work::Inspect { names: entries("1").names() }
}

fn remove() -> Work {
    Work::RemoveKubeconfig { names: entries("1").names() }
}

fn mark(how: &str, path: &Path) {
    let marked = Command::new("chattr").arg(how).arg(path).status().expect("chattr is installed");
    assert!(marked.success(), "chattr {how} {}", path.display());
}

/// Puts an obstacle in the place of a file.
type Plant = fn(&Path);

#[tokio::test]
async fn a_copy_is_reported_although_the_file_is_lost() {
    let (homed, target) = Homed::with_home(&[]);
    let config = target.home.join(".kube/config");
    make_directory(&target.home.join(".kube"), UID);
    make_file(&config, UID, b"# mine\n");
    homed.write(&target).await.expect("the home is writable");
    fs::remove_file(&config).expect("the file exists");
    let asked = homed.ask(&target, inspect()).await.expect("homed accepts the request");
    assert!(matches!(&asked, Answer::Inspected(Inspection { exists: false, kept: Some(7), .. })), "{asked:?}");
    homed.ask(&target, Work::RestoreKubeconfig).await.expect("the copy is there");
    assert_eq!(fs::read(&config).expect("the file is readable"), b"# mine\n");
}

#[tokio::test]
async fn a_restoration_that_fails_leaves_the_copy() {
    let (homed, target) = Homed::with_home(&[]);
    let (config, kept) = (target.home.join(".kube/config"), target.home.join(".kube").join(KEPT));
    make_directory(&target.home.join(".kube"), UID);
    make_file(&config, UID, b"users:\n- {name: me, user: {token: hunter2}}\n");
    homed.write(&target).await.expect("the home is writable");
    make_file(&config, UID, b"# nothing else is left\n");
    // Everything but the rename succeeds.
    mark("+i", &config);
    let restored = homed.ask(&target, Work::RestoreKubeconfig).await;
    mark("-i", &config);
    assert_eq!(restored.expect_err("the file cannot be replaced").reason(), "immutable");
    let copy = fs::read_to_string(&kept).expect("the file is readable");
    assert!(copy.contains("hunter2"), "{copy}");
    assert_eq!(names_in(&target.home.join(".kube")), ["config", KEPT]);
    homed.ask(&target, Work::RestoreKubeconfig).await.expect("the file can be replaced");
    assert!(fs::read_to_string(&config).expect("the file is readable").contains("hunter2"));
    let copy = fs::read_to_string(&kept).expect("the file is readable");
    assert!(copy.starts_with("# nothing else is left") && !copy.contains("hunter2"), "{copy}");
    assert_eq!(names_in(&target.home.join(".kube")), ["config", KEPT]);
}

#[tokio::test]
async fn the_test_of_a_delivery_tries_the_files_beside_the_kubeconfig() {
    let homed = Homed::start(&[]);
    let plants: [(&str, Plant, &str); 3] = [
        ("folder", |path| make_directory(path, UID), "not-a-regular-file"),
        ("link", |path| symlink("gone", path).expect("the folder is writable"), "symlink"),
        ("roots", |path| make_file(path, 0, b""), "wrong-owner"),
    ];
    for (name, plant, reason) in plants {
        let target = homed.home(name);
        make_directory(&target.home.join(".kube"), UID);
        make_file(&target.home.join(".kube/config"), UID, b"# mine\n");
        plant(&target.home.join(".kube").join(KEPT));
        let tried = homed.ask(&target, test_delivery()).await;
        assert_eq!(tried.expect_err("the copy cannot be written").reason(), reason);
        // A file that contains nothing of the user's needs no copy.
        make_file(&target.home.join(".kube/config"), UID, b"");
        assert_eq!(homed.ask(&target, test_delivery()).await, Ok(Answer::Writable));
    }
    let plants: [(&str, Plant, &str); 3] = [
        ("file", |folder| make_file(folder, UID, b""), "not-a-directory"),
        ("foreign", |folder| make_directory(folder, UID + 1), "wrong-owner"),
        (
            "linked",
            |folder| {
                make_directory(folder, UID);
                symlink("gone", folder.join("token")).expect("the folder is writable");
            },
            "symlink",
        ),
    ];
    for (name, plant, reason) in plants {
        let target = homed.home(name);
        make_directory(&target.home.join(".kube"), UID);
        plant(&target.home.join(".kube").join(OUR_USER));
        let Work::TestDelivery { planned, replace_unparsable } = test_delivery() else {
            unreachable!("test_delivery returns this request")
        };
        let planned = PlannedEntries { token: true, ..planned };
        let tried = homed.ask(&target, Work::TestDelivery { planned, replace_unparsable }).await;
        assert_eq!(tried.expect_err("the token cannot be written").reason(), reason);
        assert_eq!(homed.ask(&target, test_delivery()).await, Ok(Answer::Writable), "a certificate needs no folder");
    }
}

#[tokio::test]
async fn objects_in_the_places_of_our_files_do_not_keep_our_key_in_the_home() {
    let homed = Homed::start(&[]);
    let plants: [(&str, Plant); 5] = [
        ("file", |kube| make_file(&kube.join(OUR_USER), UID, b"")),
        ("link", |kube| symlink("gone", kube.join(OUR_USER)).expect("the folder is writable")),
        ("foreign", |kube| make_directory(&kube.join(OUR_USER), UID + 1)),
        ("kept", |kube| make_directory(&kube.join(KEPT), UID)),
        ("token", |kube| {
            make_directory(&kube.join(OUR_USER), UID);
            make_directory(&kube.join(OUR_USER).join("token"), UID);
        }),
    ];
    for (name, plant) in plants {
        let target = homed.home(name);
        let config = target.home.join(".kube/config");
        let says = |text: &str| fs::read_to_string(&config).expect("the file is readable").contains(text);
        homed.write(&target).await.expect("the home is writable");
        plant(&target.home.join(".kube"));
        let found = homed.ask(&target, inspect()).await;
        assert!(matches!(found, Ok(Answer::Inspected(Inspection { key_matches: true, .. }))), "{name}: {found:?}");
        let mut notice = entries("1");
        let [account, since, contact] = ["tool foo", "2026-05-03", "help@example.org"].map(str::to_owned);
        notice.user.proof = UserProof::Notice(SuspensionNotice { account, since, until: None, contact });
        let left = homed.ask(&target, write(notice)).await;
        assert!(matches!(left, Ok(Answer::Written(_))) && !says("client-key-data"), "{name}: {left:?}");
        homed.write(&target).await.expect("the home is writable");
        assert!(says("client-key-data"), "{name}");
        let removed = homed.ask(&target, remove()).await;
        assert!(matches!(removed, Ok(Answer::Removed { changed: true })) && !says(OUR_USER), "{name}: {removed:?}");
    }
    // If a token file of Bursar cannot be removed, the request fails, but only after Bursar's entries are removed.
    let target = homed.home("marked");
    homed.write(&target).await.expect("the home is writable");
    let folder = target.home.join(".kube").join(OUR_USER);
    make_directory(&folder, UID);
    make_file(&folder.join("token"), UID, b"");
    mark("+i", &folder);
    let removed = homed.ask(&target, remove()).await;
    mark("-i", &folder);
    assert_eq!(removed.expect_err("the token cannot be removed").reason(), "immutable");
    let text = fs::read_to_string(target.home.join(".kube/config")).expect("the file is readable");
    assert!(!text.contains("client-key-data"), "{text}");
}

#[tokio::test]
async fn a_removal_leaves_no_key_in_a_file_that_is_refused_nor_in_a_backup() {
    let homed = Homed::start(&[]);
    let own = "contexts:\n- {name: mine, context: {cluster: toolforge, user: bursar-toolforge}}\n";
    for (name, from, to, reason) in [
        ("anchored", "clusters:\n", "clusters: &all\n", Some("not-yaml")),
        ("twice", "kind: Config\n", "kind: Config\ncurrent-context: b\n", Some("not-yaml")),
        ("tabbed", "kind: Config\n", "kind: Config\n\t\n", Some("not-yaml")),
        ("fine", "contexts:\n", own, None),
    ] {
        let target = homed.home(name);
        let config = target.home.join(".kube/config");
        let read = |path: &Path| fs::read_to_string(path).expect("the file is readable");
        let (key, ours) = with_our_key("1");
        homed.ask(&target, write(ours.clone())).await.expect("the home is writable");
        let before = read(&config);
        let text = before.replacen(from, to, 1);
        assert!(text != before && text.contains(&key), "{name}");
        make_file(&config, UID, text.as_bytes());
        let (kept, backup) =
            (config.with_file_name(KEPT), config.with_file_name("config.bursar-backup-20250101T000000Z"));
        make_file(&kept, UID, b"# mine\n");
        make_file(&backup, UID, before.as_bytes());
        let removed = homed.ask(&target, Work::RemoveKubeconfig { names: ours.names() }).await;
        assert_eq!(removed.err().map(|error| error.reason()), reason, "{name}");
        if reason.is_some() {
            assert_eq!(read(&config), text.replace(&key, ""), "{name}");
        } else {
            assert!(read(&config).contains(own) && !read(&config).contains(&key), "{}", read(&config));
        }
        assert_eq!(kept.exists(), reason.is_some(), "{name}");
        assert_eq!(read(&backup), before.replace(&key, ""), "{name}");
    }
}

#[tokio::test]
async fn any_number_of_backups_does_not_keep_our_key_in_the_home() {
    let homed = Homed::start(&[]);
    let (key, ours) = with_our_key("1");
    let mut notice = ours.clone();
    let [account, since, contact] = ["tool foo", "2026-05-03", "help@example.org"].map(str::to_owned);
    notice.user.proof = UserProof::Notice(SuspensionNotice { account, since, until: None, contact });
    // As many keys as fit into the largest file that is read: each is decoded.
    let (other, _) = with_our_key("2");
    let junk = format!("{other}\n").repeat(1024 * 1024 / (other.len() + 1));
    for (name, work) in [("removed", Work::RemoveKubeconfig { names: ours.names() }), ("noticed", write(notice))] {
        let target = homed.home(name);
        homed.ask(&target, write(ours.clone())).await.expect("the home is writable");
        let config = target.home.join(".kube/config");
        let backup = |number| config.with_file_name(format!("config.bursar-backup-{number}"));
        make_file(&backup(0), UID, junk.as_bytes());
        (1..300).for_each(|number| fs::hard_link(backup(0), backup(number)).expect("the folder is writable"));
        let answer = homed.ask(&target, work).await;
        assert!(matches!(answer, Ok(Answer::Removed { .. } | Answer::Written(_))), "{name}: {answer:?}");
        assert!(!fs::read_to_string(&config).expect("the file is readable").contains(&key), "{name}");
    }
}

#[tokio::test]
async fn a_removal_overwrites_only_the_key_of_its_cluster_in_a_file_that_is_too_large() {
    let (homed, target) = Homed::with_home(&[]);
    let config = target.home.join(".kube/config");
    let ((key, ours), (other_key, mut others)) = (with_our_key("1"), with_our_key("2"));
    others.user.name = "bursar-other".into();
    for cluster in &mut others.clusters {
        cluster.name = "other".into();
    }
    for context in &mut others.contexts {
        (context.name, context.cluster) = ("other".into(), "other".into());
        context.user.clone_from(&others.user.name);
    }
    for entries in [&ours, &others] {
        homed.ask(&target, write(entries.clone())).await.expect("the home is writable");
    }
    let read = || fs::read_to_string(&config).expect("the file is readable");
    let text = format!("{}# {}\n", read(), "x".repeat(2 * 1024 * 1024));
    assert!(text.contains(&key) && text.contains(&other_key));
    make_file(&config, UID, text.as_bytes());
    let removed = homed.ask(&target, Work::RemoveKubeconfig { names: ours.names() }).await;
    assert_eq!(removed.expect_err("the file is too large").reason(), "too-large");
    let blank: String = key.chars().map(|c| if c == '=' { c } else { 'A' }).collect();
    assert!(read() == text.replace(&key, &blank), "the key is not blank, or something else changed");
}
