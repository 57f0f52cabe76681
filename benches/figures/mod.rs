//! Measurement functions of the benchmarks.

#![allow(dead_code, reason = "each benchmark uses some of the items")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use bursar::settings::Settings;
use bursar_testkit::slapd::{BASE_DN, READER_PASSWORD};
use bursar_testkit::world_file::WorldFile;

/// The same allocator as the daemon's.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Returns the median, because on a machine with other work the mean is meaningless.
pub fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

pub fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Returns the peak memory of this process.
pub fn peak_memory() -> String {
    format!("peak memory: {} MiB", memory_of(std::process::id(), "VmHWM"))
}

/// Returns a value of a process's `status` in MiB: `VmRSS` for its memory, `VmHWM` for the peak (proc(5)).
pub fn memory_of(id: u32, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{id}/status")).expect("the process runs");
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kilobytes: u64 = value.and_then(|text| text.trim().strip_suffix(" kB")?.parse().ok()).expect("the line exists");
    kilobytes / 1024
}

/// Prints a table with a column for each size. The figures of a column come from separate processes of this program,
/// with the arguments that `steps` returns; each line of their output is a name, a tab and a figure.
pub fn table(sizes: &[&str], steps: impl Fn(&str) -> Vec<Vec<String>>) {
    let mut lines: Vec<(String, Vec<String>)> = Vec::new();
    for size in sizes {
        for arguments in steps(size) {
            let mut command = Command::new(std::env::current_exe().expect("the program knows its own path"));
            let output = command.args(&arguments).stderr(Stdio::inherit()).output().expect("the step runs");
            assert!(output.status.success(), "{arguments:?}: {}", output.status);
            for line in String::from_utf8_lossy(&output.stdout).lines() {
                let (what, figure) = line.split_once('\t').expect("a line has a name and a figure");
                match lines.iter_mut().find(|(known, _)| known == what) {
                    Some((_, figures)) => figures.push(figure.to_owned()),
                    None => lines.push((what.to_owned(), vec![figure.to_owned()])),
                }
            }
        }
    }
    println!("\n| | {} |\n|---|{}", sizes.join(" | "), "---|".repeat(sizes.len()));
    for (what, figures) in lines {
        println!("| {what} | {} |", figures.join(" | "));
    }
}

/// Resets [`peak_memory`] (proc(5), `clear_refs`).
pub fn forget_peak_memory() {
    // If this fails, the next figure includes the peak of earlier work.
    let _ = fs::write("/proc/self/clear_refs", "5");
}

/// Returns the CPU time of a running process so far, in seconds, without its children (proc(5), `stat`).
pub fn cpu_of(id: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).expect("the process runs");
    let fields = stat.rsplit_once(") ").map(|(_, rest)| rest).unwrap_or_default().split(' ').skip(11).take(2);
    fields.map(|ticks| ticks.parse::<f64>().expect("the field is a number")).sum::<f64>() / TICKS
}

/// Returns the CPU time so far, in seconds, by name: of this process, and of its running children with their own ended
/// children (proc(5), `stat`). Unlike elapsed time, it does not depend on other work on the machine.
pub fn cpu() -> BTreeMap<String, f64> {
    let own = std::process::id().to_string();
    let mut used: BTreeMap<String, f64> = BTreeMap::new();
    for process in fs::read_dir("/proc").expect("Linux has /proc").flatten() {
        let stat = fs::read_to_string(process.path().join("stat")).unwrap_or_default();
        // The name may contain any character, so fields are counted from the last parenthesis.
        let Some((head, rest)) = stat.rsplit_once(") ") else { continue };
        let (id, name) = head.split_once(" (").unwrap_or_default();
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let ticks = |field: usize| fields.get(field).and_then(|text| text.parse::<f64>().ok()).unwrap_or_default();
        let own_time = ticks(11) + ticks(12);
        let (name, ticks) = match () {
            () if id == own => ("bench", own_time),
            () if fields.get(1) == Some(&own.as_str()) => (name, own_time + ticks(13) + ticks(14)),
            () => continue,
        };
        *used.entry(name.to_owned()).or_default() += ticks / TICKS;
    }
    used
}

/// `USER_HZ`, which is 100 in all interfaces of Linux (time(7)).
const TICKS: f64 = 100.0;

/// Returns the settings of the tests' sites, with all files in `folder`.
pub fn settings(folder: &Path, ldap: (&str, &Path), cluster: (&str, &Path)) -> Settings {
    let file = WorldFile { name: "bench", folder, base: BASE_DN, admins: "^[a-z-]+$", ldap, cluster };
    let text = file.fill(include_str!("../../tests/it/world.toml"));
    let path = folder.join("bursar.toml");
    fs::write(folder.join("ldap-password"), READER_PASSWORD).expect("the folder is writable");
    fs::write(&path, text).expect("the folder is writable");
    Settings::load_with(&path, &BTreeMap::new()).unwrap_or_else(|errors| panic!("{errors}"))
}
