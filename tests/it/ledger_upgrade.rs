//! Every schema that a ledger ever had, with data, becomes the present one. A migration adds a sample, a dump of a ledger
//! of its schema, and nothing here.
//!
//! The newest sample is written by
//! `cargo test --test it -- --ignored --exact ledger_upgrade::write_the_sample_of_this_schema`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bursar::store::{FILE, ReadStore, Store};
use bursar_testkit::folder::Folder;
use jiff::Timestamp;

use crate::ledger::{VIEWS, printed, runtime, sqlite3, story};

fn beneath(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Numbers of files: `0001_ledger.sql` is 0001.
fn numbers(folder: &str) -> Vec<String> {
    let files = fs::read_dir(beneath(folder)).expect("a folder").map(|entry| entry.expect("an entry").file_name());
    let mut numbers: Vec<String> =
        files.map(|name| name.to_string_lossy().chars().take_while(char::is_ascii_digit).collect()).collect();
    numbers.sort();
    numbers
}

fn sample(number: &str) -> PathBuf {
    beneath("tests/data/ledgers").join(format!("{number}.sql"))
}

/// A ledger as a version of that schema left it.
fn left_by(number: &str, ledger: &Path) {
    let dump = fs::File::open(sample(number)).expect("a sample");
    // The checks of a column do not concern NULL, which is no JSON to SQLite 3.40.
    let lenient = ["-bail", "-cmd", "PRAGMA ignore_check_constraints = ON"];
    let made = Command::new("sqlite3").args(lenient).arg(ledger).stdin(dump).status().expect("sqlite3");
    assert!(made.success(), "{number}");
}

#[test]
fn every_migration_has_a_sample() {
    assert_eq!(numbers("tests/data/ledgers"), numbers("migrations"), "see the head of this file");
}

#[test]
fn every_earlier_schema_with_data_becomes_this_one_and_loses_nothing() {
    let runtime = runtime();
    for number in numbers("tests/data/ledgers") {
        let folder = Folder::create(&format!("upgrade-{number}"));
        let ledger = folder.path().join(FILE);
        left_by(&number, &ledger);
        let count = |table: &str| printed(&sqlite3(&ledger, &format!("SELECT count(*) FROM \"{table}\"")));
        let kept = ["account", "membership", "activity", "uid_history", "tenant", "certificate", "event"];
        let before = kept.map(count);
        assert!(before.iter().all(|count| !count.ends_with("\n0\n")), "{number}: a table of the sample is empty");

        let (mut store, lock) = runtime.block_on(Store::open(folder.path())).expect("it is brought up to date");
        assert_eq!(kept.map(count), before, "{number}");
        let account = store.state().accounts.values().next().expect("somebody").clone();
        let renamed = bursar::ledger::Account { name: "renamed".to_owned(), ..account };
        let change = [bursar::ledger::change::Change::Account(Box::new(renamed))];
        let now: Timestamp = "2030-01-01T00:00:00Z".parse().expect("a time");
        runtime.block_on(store.write(&lock, &change, &[], now)).expect("it is written to");
        let memory = store.state().clone();
        runtime.block_on(store.close()).expect("closed");

        let file = runtime.block_on(async {
            let mut reader = ReadStore::open(&ledger).await.expect("readable");
            reader.check().await.expect("whole");
            reader.verify().await.expect("the history holds");
            reader.state().await.expect("loaded")
        });
        assert_eq!(file, memory, "{number}");
        for view in VIEWS {
            printed(&sqlite3(&ledger, &format!("SELECT * FROM {view}")));
        }
    }
}

#[test]
#[ignore = "writes a file of the sources"]
fn write_the_sample_of_this_schema() {
    let folder = Folder::create("sample");
    let runtime = runtime();
    let store = runtime.block_on(story(folder.path()));
    runtime.block_on(store.close()).expect("closed");
    let number = numbers("migrations").pop().expect("a migration");
    fs::create_dir_all(beneath("tests/data/ledgers")).expect("a folder");
    let dump = fs::File::create(sample(&number)).expect("a file");
    let mut command = Command::new("sqlite3");
    let made = command.arg(folder.path().join(FILE)).arg(".dump").stdout(Stdio::from(dump)).status();
    assert!(made.expect("sqlite3").success());
}
