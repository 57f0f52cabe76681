//! Every schema that a ledger ever had, with data, becomes the present one.
//!
//! The sample of a schema is made by all migrations up to it, each followed by its own file in `tests/data/ledgers`: what
//! sqlx recorded of the migration, checksum included, so that an edited migration is refused; and rows that only programs
//! from then on wrote. For a new migration, take the first from a ledger's dump (`sqlite3 ledger.db .dump`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use bursar::store::{FILE, ReadStore, Store};
use bursar_testkit::folder::Folder;
use bursar_testkit::process::run;
use jiff::Timestamp;

use crate::ledger::{VIEWS, printed, runtime, sqlite3};

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

/// The file of this number.
fn file(folder: &str, number: &str) -> PathBuf {
    let mut files = fs::read_dir(beneath(folder)).expect("a folder").map(|entry| entry.expect("an entry").path());
    let is_it = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(number));
    files.find(is_it).unwrap_or_else(|| panic!("{number} is not in {folder}"))
}

/// A ledger as a version of that schema left it.
fn left_by(number: &str, ledger: &Path) {
    // The checks of a column do not concern NULL, which is no JSON to SQLite 3.40.
    let mut script = String::from("PRAGMA ignore_check_constraints = ON;\n");
    for number in numbers("migrations").iter().filter(|earlier| earlier.as_str() <= number) {
        for folder in ["migrations", "tests/data/ledgers"] {
            script += &fs::read_to_string(file(folder, number)).expect("a script");
        }
    }
    let mut command = Command::new("sqlite3");
    command.arg("-bail").arg(ledger);
    let made = run(command, &script);
    assert!(made.status.success(), "{number}: {}", String::from_utf8_lossy(&made.stderr));
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
