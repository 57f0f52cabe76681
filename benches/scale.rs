//! Measures memory and CPU time of the daemon's process by number of tenants, without any server. The directory and the
//! cluster are simulated; the ledger and the stages are real. Run `cargo bench --bench scale`, or with numbers of
//! tenants: `cargo bench --bench scale -- 3500 10000`.
//!
//! Each figure comes from a separate process, as for a daemon: one process creates the site, and another starts with
//! the ledger of that site.

#![expect(clippy::disallowed_methods, reason = "a benchmark measures time")]

mod figures;
mod site;

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File};
use std::path::Path;
use std::process;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bursar::contract::Sealer;

use bursar::evolve::{Evolved, Inputs, evolve};
use bursar::inventory::{ClusterInventory, Inventory, ObservedObject};
use bursar::ledger::LedgerState;
use bursar::plan::Planner;
use bursar::snapshot::DirectorySnapshot;
use bursar::store::restore::{Restoring, restore};
use bursar::store::{FILE, Store};
use bursar_testkit::folder::Folder;

use figures::{median, milliseconds};
use site::Site;

/// Numbers of tenants if no arguments are given.
const SIZES: [&str; 3] = ["1000", "10000", "100000"];
/// Cycles in which nothing changed. The median is printed.
const CYCLES: u32 = 9;

fn main() {
    let arguments: Vec<String> = env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("the system allows a runtime");
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["make", folder, tenants] => {
            runtime.block_on(make(Path::new(folder), tenants.parse().expect("the argument is a number")))
        }
        ["start", folder, tenants] => {
            runtime.block_on(start(Path::new(folder), tenants.parse().expect("the argument is a number")))
        }
        sizes => {
            let folder = Folder::create("bench-scale");
            figures::table(if sizes.is_empty() { &SIZES } else { sizes }, |size| {
                let place = folder.path().join(size).display().to_string();
                ["make", "start"].map(|step| vec![step.to_owned(), place.clone(), size.to_owned()]).into()
            });
        }
    }
}

/// Creates the site: all tenants are planned, approved and recorded in one cycle.
async fn make(folder: &Path, tenants: u32) {
    let site = Site::bootstrapped(folder, tenants).await;
    let objects = site.store.state().objects.len();
    println!("objects\t{objects}");
    println!("peak memory of the cycle that makes all, MiB\t{}", figures::memory_of(process::id(), "VmHWM"));
    site.store.close().await.expect("the ledger closes");
    println!("ledger, MB\t{}", fs::metadata(folder.join(FILE)).expect("the ledger exists").len() / 1_000_000);
    let mut backup = File::open(folder.join(FILE)).expect("the ledger exists");
    let how = Restoring { actor: "bench", older: false, ledger_id: "standby", now: site.now };
    let began = Instant::now();
    restore(&folder.join("standby"), &mut backup, how).await.expect("the ledger can be restored");
    println!("restore on a standby host, s\t{:.1}", began.elapsed().as_secs_f64());
}

/// Starts with the ledger of an existing site, and runs cycles in which nothing changed.
async fn start(folder: &Path, tenants: u32) {
    let began = (Instant::now(), own_cpu());
    let (store, lock) = Store::open(folder).await.expect("the ledger can be opened");
    println!("memory with the ledger alone, MiB\t{}", figures::memory_of(process::id(), "VmRSS"));
    let inventory = shown(store.state());
    println!("start: ledger opened, made-up cluster listed, ms\t{:.0}", milliseconds(began.0.elapsed()));
    let policy = site::policy(folder);
    let sealer = Sealer::from_seed(&[7; 32]).expect("32 bytes are a seed");
    let directory = site::directory(tenants);
    let now = "2026-11-21T06:00:00Z".parse().expect("the time is valid");
    let mut planner = Planner::default();
    let mut cycle = |heard: Option<&DirectorySnapshot>| {
        let before = (own_cpu(), Instant::now());
        let ledger = store.state();
        let inputs = Inputs { ledger, heard, inventory: &inventory, policy: &policy, sealer: &sealer, now };
        let Evolved { plan, .. } = evolve(inputs, &mut planner);
        assert!(plan.is_empty(), "there is nothing to do: {:?}", plan.accounts.first());
        (before.1.elapsed(), own_cpu() - before.0)
    };
    cycle(Some(&directory));
    println!("start to the end of the first cycle, ms\t{:.0}", milliseconds(began.0.elapsed()));
    println!("the same, CPU s of the start\t{:.1}", own_cpu() - began.1);
    println!("peak memory of the start, MiB\t{}", figures::memory_of(process::id(), "VmHWM"));
    for (what, heard) in [("with an unchanged read", Some(&directory)), ("without a read", None)] {
        let (times, used): (Vec<Duration>, Vec<f64>) = (0..CYCLES).map(|_| cycle(heard)).unzip();
        println!("cycle in which nothing changed, {what}, ms\t{:.1}", milliseconds(median(times)));
        println!("the same, {what}, CPU ms\t{:.1}", used.iter().sum::<f64>() / f64::from(CYCLES) * 1e3);
    }
    drop(directory);
    // The allocator gives freed memory back to the system some time later, at its next request.
    tokio::time::sleep(Duration::from_secs(12)).await;
    cycle(None);
    tokio::time::sleep(Duration::from_secs(2)).await;
    println!("memory at rest, MiB\t{}", figures::memory_of(process::id(), "VmRSS"));
    drop((store, lock));
}

/// Returns a cluster that shows what the ledger recorded.
fn shown(ledger: &LedgerState) -> Inventory {
    let found = |(key, record): (&_, &bursar::ledger::ObjectRecord)| {
        let (uid, digest) = (record.uid.clone(), record.observed.clone());
        (Clone::clone(key), ObservedObject { uid, digest, ..ObservedObject::default() })
    };
    let objects = ledger.objects.iter().map(found).collect();
    let cluster = ClusterInventory { objects, ..ClusterInventory::default() };
    Inventory { clusters: BTreeMap::from([(site::cluster(), Arc::new(cluster))]), ..Inventory::default() }
}

/// Returns the CPU time of this process so far, in seconds: the sum of its threads' nanoseconds (Linux,
/// `Documentation/scheduler/sched-stats`).
fn own_cpu() -> f64 {
    let threads = fs::read_dir("/proc/self/task").expect("Linux has /proc").flatten();
    let nanoseconds = threads.filter_map(|thread| {
        let stat = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        stat.split(' ').next()?.parse::<f64>().ok()
    });
    nanoseconds.sum::<f64>() / 1e9
}
