//! Measures a ledger of 10,000 tools with a history of 1,000,000 events: a cycle, the history, `access_on`, a check and
//! a backup, with the programs that an administrator uses. Run `cargo bench --bench ledger`.
//!
//! The history covers four years: each tool got a new certificate every two weeks, and one tool in twenty another
//! maintainer each time. The store writes it, so the chain is real.

#![expect(clippy::disallowed_methods, reason = "a benchmark measures time")]

mod figures;
mod site;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bursar::ledger::change::{Change, Event};
use bursar::ledger::{Account, Certificate, CredentialKey, Delivery};
use bursar::snapshot::Role;
use bursar::store::FILE;
use bursar_testkit::folder::Folder;
use jiff::SignedDuration;
use serde_json::{Value, json};

use figures::{median, milliseconds, peak_memory};
use site::{Site, cluster, person_id};

const TOOLS: u32 = 10_000;
const EVENTS: i64 = 1_000_000;
/// Runs of each measurement. The median is printed.
const ROUNDS: usize = 5;

fn main() {
    let folder = Folder::create("bench-ledger");
    let folder = folder.path();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("the system allows a runtime");
    runtime.block_on(cycles(folder));
    programs(folder);
    println!("{}", peak_memory());
}

/// Measures a cycle with nothing to do before and after the history, and a restart after it.
async fn cycles(folder: &Path) {
    let mut site = Site::bootstrapped(folder, TOOLS).await;
    site.cycle().await;
    let before = cycle(&mut site).await;
    let began = Instant::now();
    let mut rounds = 0;
    while site.store.head().0 < EVENTS {
        site.now += SignedDuration::from_hours(14 * 24);
        fortnight(&mut site, rounds).await;
        rounds += 1;
    }
    let events = site.store.head().0;
    let rate = f64::from(TOOLS * rounds) / began.elapsed().as_secs_f64();
    println!("\n{events} events, written with their changes in {rounds} transactions, {rate:.0} tools a second");
    as_in_the_directory(&mut site).await;
    site.cycle().await;
    let after = cycle(&mut site).await;
    println!("no-op cycle: {:.1} ms before, {:.1} ms after", milliseconds(before), milliseconds(after));
    let (_, open) = site.reopened(folder).await;
    let megabytes = fs::metadata(folder.join(FILE)).expect("the ledger exists").len() / 1_000_000;
    println!("open, check and load: {:.0} ms; ledger of {megabytes} MB", milliseconds(open));
}

async fn cycle(site: &mut Site) -> Duration {
    let mut whole = Vec::new();
    for _ in 0..ROUNDS {
        whole.push(site.cycle().await.into_iter().map(|(_, took)| took).sum());
    }
    median(whole)
}

/// Gives every tool another certificate. One tool in twenty gets another maintainer, or loses the one that it got ten
/// months ago.
async fn fortnight(site: &mut Site, round: u32) {
    let tools: Vec<Account> = site.store.state().accounts.values().filter(|it| it.generation > 0).cloned().collect();
    let (mut changes, mut events) = (Vec::new(), Vec::new());
    for (number, tool) in (0..).zip(tools) {
        let key = CredentialKey::new(tool.id.clone(), cluster());
        let fingerprint = format!("{round:032x}{number:032x}");
        let told = |action: &str, detail| event(&tool, action, detail);
        events.push(told("certificate issued", json!({"fingerprint": fingerprint, "cluster": "test"})));
        let certificate = &site.store.state().certificates[&key];
        let certificate = Certificate {
            fingerprint: fingerprint.into(),
            not_before: site.now,
            not_after: site.now + SignedDuration::from_hours(21 * 24),
            renew_after: site.now + SignedDuration::from_hours(14 * 24),
            ..certificate.clone()
        };
        changes.push(Change::Certificate(key, Some(certificate)));
        if number % 20 == round % 20 {
            let guest = person_id((number + 5_000) % TOOLS);
            events.push(told("members changed", json!({"member": guest.0})));
            let mut tool = tool;
            if tool.members.remove(&guest).is_none() {
                tool.members.insert(guest, Role::Member);
            }
            changes.push(Change::Account(tool.into()));
        }
    }
    site.store.write(&site.lock, &changes, &events, site.now).await.expect("the ledger can be written");
}

/// Makes the ledger agree with the directory and the homes, so that the next cycle has nothing to do.
async fn as_in_the_directory(site: &mut Site) {
    let state = site.store.state();
    let entries: BTreeMap<_, _> = site.snapshot.reads[0].entries.iter().map(|entry| (&entry.id, entry)).collect();
    let members = state.accounts.values().map(|account| {
        let members = entries[&account.directory_id].members.clone();
        Change::Account(Account { members, ..account.clone() }.into())
    });
    let deliveries = state.deliveries.iter().map(|(key, delivery)| {
        let delivery = Delivery { at: site.now, checked_at: Some(site.now), ..delivery.clone() };
        Change::Delivery(key.clone(), Some(delivery))
    });
    let changes: Vec<Change> = members.chain(deliveries).collect();
    site.store.write(&site.lock, &changes, &[], site.now).await.expect("the ledger can be written");
}

fn event(tool: &Account, action: &str, detail: Value) -> Event {
    Event {
        actor: "bursar".to_owned(),
        account: Some(tool.account_name()),
        account_id: Some(tool.id.clone()),
        action: action.to_owned(),
        reason: "a bench made it up".to_owned(),
        ticket: None,
        plan: None,
        detail: detail.into(),
    }
}

/// Measures an administrator's commands. For comparison with commands that read or copy the whole file, `sha256sum` and
/// `cp` are measured too.
fn programs(folder: &Path) {
    let ledger = folder.join(FILE).display().to_string();
    let copy = folder.join("copy.db").display().to_string();
    let config = folder.join("bursar.toml").display().to_string();
    let bursar =
        |arguments: &[&str]| [&["bursar", "--config", &config, "--ledger", &ledger], arguments].concat().join(" ");
    let access =
        "SELECT * FROM access_on WHERE account = 'tool:tool77' AND at_start <= '2028-01-01' AND at_end >= '2028-01-01'";
    let rows = [
        ("history of one tool", bursar(&["history", "tool", "tool77"])),
        ("the newest 100 of all", bursar(&["history", "--last", "100"])),
        ("why", bursar(&["why", "tool", "tool77"])),
        ("access_on one day, of one tool", format!("sqlite3 {ledger} \"{access}\"")),
        (
            "access_on one day, of all",
            format!("sqlite3 {ledger} \"{}\"", access.replace("account = 'tool:tool77' AND ", "")),
        ),
        ("verify", bursar(&["ledger", "verify"])),
        ("sha256sum of the file", format!("sha256sum {ledger}")),
        ("backup, verified", bursar(&["ledger", "backup", &copy])),
        ("cp and sync", format!("cp {ledger} {copy} && sync {copy}")),
    ];
    println!("\n| command | ms |\n|---|---|");
    for (what, command) in rows {
        let took = median((0..ROUNDS).map(|_| timed(folder, &command)).collect());
        println!("| {what} | {:.0} |", milliseconds(took));
    }
}

fn timed(folder: &Path, command: &str) -> Duration {
    // A backup does not replace a file.
    let _ = fs::remove_file(folder.join("copy.db"));
    let mut shell = Command::new("bash");
    let programs =
        Path::new(env!("CARGO_BIN_EXE_bursar")).parent().expect("the path has a parent").display().to_string();
    let path = format!("{programs}:{}", std::env::var("PATH").unwrap_or_default());
    shell.args(["-c", command]).env("PATH", path).stdout(Stdio::null());
    let began = Instant::now();
    assert!(shell.status().expect("bash is installed").success(), "{command}");
    began.elapsed()
}
