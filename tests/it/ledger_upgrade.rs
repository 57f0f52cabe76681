//! A ledger of every earlier schema, with data, becomes one of the current schema.
//!
//! To make the sample of a schema, a test runs all migrations up to it, and after each migration the file in
//! `tests/data/ledgers` with the same number. That file has two parts. The first is the record of sqlx about the
//! migration, with its checksum, so that an edited migration is refused. The second are rows that programs write only
//! since this schema. For a new migration, copy that record from a dump of a ledger (`sqlite3 ledger.db .dump`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use bursar::ledger::LedgerState;
use bursar::store::{FILE, ReadStore, Store};
use bursar_testkit::folder::Folder;
use bursar_testkit::process::run;
use jiff::Timestamp;

use crate::ledger::{VIEWS, printed, sqlite3};
use crate::world::runtime;

fn beneath(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Returns the numbers of the files in a folder. The number of `0001_ledger.sql` is 0001.
fn numbers(folder: &str) -> Vec<String> {
    let files = fs::read_dir(beneath(folder))
        .expect("the folder exists")
        .map(|entry| entry.expect("the folder is readable").file_name());
    let mut numbers: Vec<String> =
        files.map(|name| name.to_string_lossy().chars().take_while(char::is_ascii_digit).collect()).collect();
    numbers.sort();
    numbers
}

/// Returns the path of the file with this number.
fn file(folder: &str, number: &str) -> PathBuf {
    let mut files = fs::read_dir(beneath(folder))
        .expect("the folder exists")
        .map(|entry| entry.expect("the folder is readable").path());
    let is_it = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(number));
    files.find(is_it).unwrap_or_else(|| panic!("{number} is not in {folder}"))
}

/// Writes a ledger as a program with that schema left it.
fn write_ledger_of(number: &str, ledger: &Path) {
    // The checks of a column do not apply to NULL, but SQLite 3.40 does not accept NULL as JSON.
    let mut script = String::from("PRAGMA ignore_check_constraints = ON;\n");
    for number in numbers("migrations").iter().filter(|earlier| earlier.as_str() <= number) {
        for folder in ["migrations", "tests/data/ledgers"] {
            script += &fs::read_to_string(file(folder, number)).expect("the script is readable");
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
fn every_earlier_schema_is_upgraded_without_a_loss_of_data() {
    let runtime = runtime();
    for number in numbers("tests/data/ledgers") {
        let folder = Folder::create(&format!("upgrade-{number}"));
        let ledger = folder.path().join(FILE);
        write_ledger_of(&number, &ledger);
        let count = |table: &str| printed(&sqlite3(&ledger, &format!("SELECT count(*) FROM \"{table}\"")));
        let kept = ["account", "membership", "activity", "uid_history", "tenant", "certificate", "event"];
        let before = kept.map(count);
        assert!(before.iter().all(|count| !count.ends_with("\n0\n")), "{number}: a table of the sample is empty");

        // `bursar init` runs before the daemon of the new version, so commands read the former schema too.
        let file = fs::read(&ledger).expect("the ledger is readable");
        let early = runtime.block_on(async {
            let mut reader = ReadStore::open(&ledger).await.expect("the ledger is readable").up_to_date().await;
            reader.as_mut().expect("a copy is upgraded").state().await.expect("the copy can be loaded")
        });
        assert!(file == fs::read(&ledger).expect("the ledger is readable"), "{number}: a reader changed the file");

        let (mut store, lock) = runtime.block_on(Store::open(folder.path())).expect("the ledger is upgraded");
        // Not the whole ledgers: a migration writes the time at which it runs.
        let of = |ledger: &LedgerState| {
            (ledger.accounts.clone(), ledger.tenants.clone(), ledger.objects.clone(), ledger.certificates.clone())
        };
        assert_eq!(of(store.state()), of(&early), "{number}");
        assert_eq!(kept.map(count), before, "{number}");
        let account = store.state().accounts.values().next().expect("the sample has an account").clone();
        let renamed = bursar::ledger::Account { name: "renamed".to_owned(), ..account };
        let change = [bursar::ledger::change::Change::Account(renamed.into())];
        let now: Timestamp = "2030-01-01T00:00:00Z".parse().expect("the time is valid");
        runtime.block_on(store.write(&lock, &change, &[], now)).expect("the upgraded ledger accepts writes");
        let memory = store.state().clone();
        runtime.block_on(store.close()).expect("the ledger closes");

        let file = runtime.block_on(async {
            let mut reader = ReadStore::open(&ledger).await.expect("the ledger is readable");
            reader.check().await.expect("the file is intact");
            reader.verify().await.expect("the history is intact");
            reader.state().await.expect("the ledger can be loaded")
        });
        assert_eq!(file, memory, "{number}");
        for view in VIEWS {
            printed(&sqlite3(&ledger, &format!("SELECT * FROM {view}")));
        }
    }
}
