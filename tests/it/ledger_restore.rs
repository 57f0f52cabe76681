//! `bursar ledger restore`: which backups it refuses, and what it keeps. A kill during a restore leaves a complete
//! ledger.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use bursar_testkit::ready::{DEADLINE, poll, wait_for};
use rustix::process::Signal;

use crate::cli::Site;

fn sqlite3(ledger: &Path, statement: &str) -> String {
    let output = Command::new("sqlite3").arg(ledger).arg(statement).output().expect("sqlite3 is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Returns a site with a ledger, and the path of a backup of that ledger.
fn site() -> (Site, PathBuf) {
    let site = Site::new();
    site.run("sync --once", 0);
    let backup = site.path("backup.db");
    site.run(&format!("ledger backup {}", backup.display()), 0);
    (site, backup)
}

fn ledger(site: &Site) -> PathBuf {
    site.path("state/ledger.db")
}

fn id(ledger: &Path) -> String {
    sqlite3(ledger, "SELECT id FROM ledger")
}

/// Returns the files that replaced ledgers were moved to.
fn replaced(site: &Site) -> Vec<PathBuf> {
    let files = fs::read_dir(site.path("state"))
        .expect("the folder exists")
        .map(|entry| entry.expect("the folder is readable").path());
    let mut files: Vec<PathBuf> =
        files.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().contains("replaced"))).collect();
    files.sort();
    files
}

#[test]
fn a_restored_backup_gets_a_new_id_and_the_old_ledger_stays_beside_it() {
    let (site, backup) = site();
    site.run("hold user alice --reason audit", 0);
    let before = id(&ledger(&site));
    let restore = format!("ledger restore {}", backup.display());
    assert!(site.run(&restore, 1).contains("--older"), "a restore that forgets events needs --older");
    assert_eq!(id(&ledger(&site)), before);
    assert!(replaced(&site).is_empty());

    let report = site.json(&format!("{restore} --older"), 0);
    assert_eq!(report["forgotten"], 1, "{report}");
    assert_ne!(id(&ledger(&site)), before);
    assert_eq!(report["ledger"].as_str(), Some(id(&ledger(&site)).as_str()));
    assert_eq!(sqlite3(&ledger(&site), "SELECT last_generation FROM ledger"), "1000");
    assert_eq!(sqlite3(&ledger(&site), "SELECT count(*) FROM hold"), "0");
    let [beside] = &replaced(&site)[..] else { panic!("{:?}", replaced(&site)) };
    assert_eq!((id(beside), sqlite3(beside, "SELECT count(*) FROM hold")), (before, "1".to_owned()));
    assert_eq!(site.json("ledger verify", 0)["ok"], true);
    let last = sqlite3(&ledger(&site), "SELECT action FROM event ORDER BY id DESC LIMIT 1");
    assert_eq!(last, "restored");
    site.run("sync --once", 0);
}

#[test]
fn verify_names_the_event_that_was_changed_removed_or_moved_and_checks_a_given_head() {
    let (site, backup) = site();
    for reason in ["one", "two", "three"] {
        site.run(&format!("hold user alice --reason {reason}"), 0);
    }
    let head = site.json("ledger verify", 0)["head"].as_str().expect("verify prints the head").to_owned();
    let last: i64 = sqlite3(&ledger(&site), "SELECT max(id) FROM event").parse().expect("sqlite3 prints the id");
    site.run(&format!("ledger verify --head {head}"), 0);
    site.run("ledger verify --head 00", 64);
    let said = site.run(&format!("ledger verify --head {head} --ledger {}", backup.display()), 1);
    assert!(said.contains("truncated or rewritten"), "{said}");
    let swap = format!(
        "UPDATE event SET id = 0 WHERE id = {last}; UPDATE event SET id = {last} WHERE id = {last} - 1; \
         UPDATE event SET id = {last} - 1 WHERE id = 0"
    );
    for (forgery, found) in [
        (format!("UPDATE event SET ticket = 'T0' WHERE id = {last}"), format!("event {last} was changed")),
        (
            format!("DELETE FROM event WHERE id = {last} - 1"),
            format!("event {last} stands where event {} should", last - 1),
        ),
        (swap, format!("event {} does not continue", last - 1)),
    ] {
        let forged = site.path("forged.db");
        fs::copy(ledger(&site), &forged).expect("the ledger can be copied");
        let free = "DROP TRIGGER event_is_never_changed; DROP TRIGGER event_is_never_removed";
        sqlite3(&forged, &format!("{free}; {forgery}"));
        let said = site.run(&format!("ledger verify --ledger {}", forged.display()), 1);
        assert!(said.contains(&found), "{forgery}: {said}");
    }
}

#[test]
fn a_daemon_makes_backups_on_schedule_and_logs_the_head() {
    let site = Site::new();
    site.configure("[schedule]\nbackup = \"* * * * *\"\n");
    let daemon = site.daemon();
    site.run("sync", 0);
    site.run("hold user alice --reason audit", 0);
    let copies = || {
        let files = fs::read_dir(site.path("state/backups")).into_iter().flatten();
        files
            .map(|file| file.expect("the folder is readable").path())
            .find(|path| path.to_string_lossy().contains("ledger-"))
    };
    let copy = wait_for("the backup of the next minute is there", DEADLINE, copies);
    let said = site.json(&format!("ledger verify --ledger {}", copy.display()), 0);
    let status = || site.json("status", 0)["backup"]["newest"].is_string().then_some(());
    wait_for("status shows the backup", DEADLINE, status);
    daemon.signal(Signal::TERM);
    assert!(daemon.wait(DEADLINE).success(), "{}", daemon.log_end());
    let log = fs::read_to_string(site.path("bursard.log")).expect("the daemon writes a log");
    assert!(log.contains(said["head"].as_str().expect("verify prints the head")), "{log}");
    assert!(log.lines().any(|line| line.contains("history") && line.contains("head")), "{log}");
}

#[test]
fn the_ledger_cannot_be_replaced_while_the_daemon_runs() {
    let (site, backup) = site();
    let daemon = site.daemon();
    site.run(&format!("ledger restore {}", backup.display()), 75);
    site.run("ledger rebuild", 75);
    daemon.signal(Signal::TERM);
    assert!(daemon.wait(DEADLINE).success(), "{}", daemon.log_end());
    site.run(&format!("ledger restore {} --older", backup.display()), 0);
}

#[test]
fn an_incomplete_backup_is_refused_and_changes_nothing() {
    let (site, backup) = site();
    let before = fs::read(ledger(&site)).expect("the site has a ledger");
    let spoiled = |name: &str, spoil: &dyn Fn(&Path)| {
        let path = site.path(name);
        fs::copy(&backup, &path).expect("the backup can be copied");
        spoil(&path);
        let said = site.run(&format!("ledger restore {} --older", path.display()), 1);
        assert!(!said.contains("move ledger.db aside"), "the current ledger is intact: {said}");
        said
    };
    let said = spoiled("noise", &|path| {
        fs::write(path, b"not a database at all, but long enough").expect("the folder is writable");
    });
    assert!(said.contains("the backup cannot be used; choose another one"), "{said}");
    let said = spoiled("empty", &|path| fs::write(path, b"").expect("the folder is writable"));
    assert!(said.contains("the backup cannot be used; choose another one"), "{said}");
    let said = spoiled("cut", &|path| {
        let whole = fs::read(path).expect("the backup is readable");
        fs::write(path, &whole[..whole.len() / 2]).expect("the folder is writable");
    });
    assert!(said.contains("the backup cannot be used; choose another one"), "{said}");
    let said = spoiled("packed", &|path| {
        fs::write(path, b"\x28\xb5\x2f\xfd and no more of zstd").expect("the folder is writable");
    });
    assert!(said.contains("the backup cannot be used; choose another one"), "{said}");
    let forged = "DROP TRIGGER event_is_never_changed; UPDATE event SET reason = 'nothing' WHERE id = 1";
    let said = spoiled("forged", &|path| drop(sqlite3(path, forged)));
    assert!(said.contains("event 1 was changed"), "{said}");
    let newer = "INSERT INTO _sqlx_migrations VALUES (9999, 'later', '2030-01-01', 1, x'00', 1)";
    let said = spoiled("newer", &|path| drop(sqlite3(path, newer)));
    assert!(said.contains("newer version"), "{said}");
    let said = site.run(&format!("ledger restore {}", site.path("nowhere").display()), 1);
    assert!(said.contains("nowhere: ") && said.contains("state/backups"), "{said}");
    assert_eq!(fs::read(ledger(&site)).expect("the site has a ledger"), before);
    assert!(replaced(&site).is_empty(), "{:?}", replaced(&site));
}

#[test]
fn a_damaged_ledger_is_replaced_with_its_wal() {
    let (site, backup) = site();
    let mut content = fs::read(ledger(&site)).expect("the site has a ledger");
    content[100..2000].fill(0xff);
    fs::write(ledger(&site), content).expect("the folder is writable");
    assert!(site.run("sync --once", 1).contains("bursar ledger restore BACKUP"));
    fs::write(site.path("state/ledger.db-wal"), b"of the damaged one").expect("the folder is writable");
    site.run(&format!("ledger restore {}", backup.display()), 0);
    assert_eq!(site.json("ledger verify", 0)["ok"], true);
    assert!(!site.path("state/ledger.db-wal").exists());
    assert!(!replaced(&site).is_empty());
    site.run("sync --once", 0);
}

#[test]
fn a_lost_ledger_is_restored_from_a_backup() {
    let (site, backup) = site();
    fs::remove_file(ledger(&site)).expect("the site has a ledger");
    site.run(&format!("ledger restore {}", backup.display()), 0);
    assert!(site.run("users", 0).contains("alice"));
}

#[test]
fn a_killed_restore_leaves_either_ledger_complete() {
    let (site, backup) = site();
    for milliseconds in [5, 10, 15, 20, 30, 40, 60, 80, 120] {
        let mut command = site.command(&format!("ledger restore {} --older", backup.display()));
        let mut killed = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("bursar is built");
        let _ = poll(Duration::from_millis(milliseconds), || false);
        killed.kill().expect("a process that has ended can be killed too");
        killed.wait().expect("the child can be waited for");
        assert_eq!(site.json("ledger verify", 0)["ok"], true, "after {milliseconds} ms");
        assert!(site.run("users", 0).contains("alice"));
    }
    site.run(&format!("ledger restore {} --older", backup.display()), 0);
    site.run("sync --once", 0);
}
