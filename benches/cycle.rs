//! Measures a cycle in which nothing changed, stage by stage, at 1,000 and 10,000 tenants. The read of the directory
//! (`benches/directory.rs`) and the watches, which send no requests, are not included. Run `make bench`.

#![expect(clippy::disallowed_methods, reason = "a benchmark measures time")]

mod figures;
mod site;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use bursar::store::FILE;
use bursar_testkit::folder::Folder;

use figures::{median, milliseconds, peak_memory};
use site::Site;

/// Runs of each stage. The median is printed.
const ROUNDS: usize = 9;

fn main() {
    let folder = Folder::create("bench-cycle");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("the system allows a runtime");
    let few = runtime.block_on(measure(&folder.path().join("1000"), 1_000));
    let many = runtime.block_on(measure(&folder.path().join("10000"), 10_000));
    println!("\nNo-op cycle, median of {ROUNDS} runs, ms");
    println!("| stage | 1,000 tenants | 10,000 tenants | ratio |\n|---|---|---|---|");
    for ((stage, few), (_, many)) in few.stages.iter().zip(&many.stages) {
        let ratio = many.as_secs_f64() / few.as_secs_f64();
        println!("| {stage} | {:.2} | {:.2} | {ratio:.1} |", milliseconds(*few), milliseconds(*many));
    }
    for figures in [few, many] {
        println!("{}", figures.content);
    }
    println!("{}", peak_memory());
}

/// The measurements at one size.
struct Figures {
    stages: Vec<(&'static str, Duration)>,
    content: String,
}

async fn measure(folder: &Path, tenants: u32) -> Figures {
    let mut site = Site::bootstrapped(folder, tenants).await;
    let mut rounds: BTreeMap<usize, Vec<Duration>> = BTreeMap::new();
    let mut names = Vec::new();
    // The first cycle of a process derives everything. Later ones derive only what changed.
    let first = site.cycle().await;
    let derive_first = first[2].1;
    for _ in 0..ROUNDS {
        let stages = site.cycle().await;
        names = stages.iter().map(|(name, _)| *name).collect();
        for (place, (_, took)) in stages.into_iter().enumerate() {
            rounds.entry(place).or_default().push(took);
        }
    }
    let medians: Vec<Duration> = rounds.into_values().map(median).collect();
    let whole = medians.iter().sum();
    let mut stages: Vec<_> = names.into_iter().zip(medians).collect();
    stages.push(("**whole no-op cycle**", whole));
    stages.push(("derive, first time in a process", derive_first));
    let state = site.store.state();
    let (accounts, objects) = (state.accounts.len(), state.objects.len());
    let (close, open) = site.reopened(folder).await;
    stages.push(("ledger: close", close));
    stages.push(("ledger: open, check and load", open));
    let megabytes = fs::metadata(folder.join(FILE)).expect("the ledger exists").len() / 1_000_000;
    let content = format!("{tenants} tenants: {accounts} accounts, {objects} objects, ledger of {megabytes} MB");
    Figures { stages, content }
}
