//! Compares full reads of several sites from a real slapd over TLS by Bursar and by `ldapsearch`. Bursar checks the
//! entries and resolves memberships; the output of `ldapsearch` is discarded. Both use the same pages, filters and
//! attributes. Run `make bench`.

#![expect(clippy::disallowed_methods, reason = "a benchmark measures time")]

mod figures;

use std::fmt::Write as _;
use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bursar::daemon;
use bursar::policy::Policy;
use bursar::snapshot::Completeness;
use bursar_directory::entry::assemble::KINDS;
use bursar_directory::source::PAGE_SIZE;
use bursar_directory::{Pass, SourceConfig, SyncCache, fetch};
use bursar_testkit::folder::Folder;
use bursar_testkit::ldif::{group_of_names_ldif, person_dn, person_ldif, tool_ldif, toolforge_units_ldif};
use bursar_testkit::slapd::{BASE_DN, READER_DN, READER_PASSWORD, Slapd, SlapdOptions};
use figures::{forget_peak_memory, median, milliseconds, peak_memory, settings};

/// Number of reads by each program. The medians are compared.
const ROUNDS: usize = 9;

fn main() {
    // Two crates of the daemon use TLS, and both need this default provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    people_only();
    tools_and_people();
    many_people_and_groups();
}

/// One tree with one entry per person.
fn people_only() {
    let people: String = (0..20_000).map(person).collect();
    measure("20,000 people", toolforge_units_ldif(BASE_DN) + &people, |source| {
        source.tools = None;
        source.groups = None;
    });
}

/// The form of Toolforge: a tool is an account and a group of three maintainers, in one tree.
fn tools_and_people() {
    let mut ldif = toolforge_units_ldif(BASE_DN);
    for number in 0..10_000 {
        ldif += &person(number);
    }
    for number in 0..5_000 {
        let maintainers: Vec<String> = (0..3).map(|step| format!("person{}", (number + step * 7) % 10_000)).collect();
        let maintainers: Vec<&str> = maintainers.iter().map(String::as_str).collect();
        ldif += &tool_ldif(BASE_DN, &format!("tool{number}"), 100_000 + number, &maintainers);
    }
    measure("5,000 tools (10,000 entries) and 10,000 people", ldif, |_| {});
}

/// A large site: 50,000 people and 5,000 groups of ten. One group in five also contains three other groups.
fn many_people_and_groups() {
    let mut ldif = toolforge_units_ldif(BASE_DN);
    for number in 0..50_000 {
        ldif += &person(number);
    }
    for number in 0..5_000_u32 {
        let people =
            (0..10).map(|step| person_dn(BASE_DN, &format!("person{}", (number * 10 + step * 4_999) % 50_000)));
        let nested = (1..=3).map(|step| group_dn(number + step)).filter(|_| number % 5 == 0 && number < 4_990);
        let members: Vec<String> = people.chain(nested).collect();
        ldif += &group_of_names_ldif(&group_dn(number), &format!("group{number}"), &members);
    }
    measure("50,000 people and 5,000 groups, a fifth of them nested", ldif, |source| source.tools = None);
}

fn group_dn(number: u32) -> String {
    format!("cn=group{number},ou=groups,{BASE_DN}")
}

fn person(number: u32) -> String {
    person_ldif(BASE_DN, &format!("person{number}"), 1_000_000 + number)
}

fn measure(what: &str, ldif: String, change: impl FnOnce(&mut SourceConfig)) {
    let folder = Folder::create("bench-directory");
    // The policy allows homes only there. Entries with another home would be rejected.
    let homes = format!("homeDirectory: {}/homes/", folder.path().display());
    let bulk_load = ldif.replace("homeDirectory: /", &homes);
    // The text is freed here, so that it does not count as memory of a read.
    drop(ldif);
    let slapd = Slapd::start(&SlapdOptions { bulk_load, ..SlapdOptions::default() });
    let ca = slapd.ca_pem.as_path();
    let settings = settings(folder.path(), (&slapd.ldaps_url, ca), ("https://k8s.example.org:6443", ca));
    let mut source = settings.sources().expect("the password is readable").remove(0);
    source.sentinels.clear();
    change(&mut source);
    let searches = searches(&slapd, &source);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("the system allows a runtime");
    let sources = [source];
    forget_peak_memory();
    let (mut theirs, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let began = Instant::now();
        for search in &searches {
            ldapsearch(search, &slapd);
        }
        theirs.push(began.elapsed());
        ours.push(runtime.block_on(read(&sources, &Pass::Once, &settings.policy)));
    }
    let peak = peak_memory();
    let (theirs, ours) = (median(theirs), median(ours));
    let mut line = format!("{what}: ldapsearch {:.0} ms, Bursar {:.0} ms", milliseconds(theirs), milliseconds(ours));
    let _ = write!(line, ", ratio {:.2} (goal 0.8); {}", theirs.as_secs_f64() / ours.as_secs_f64(), peak);
    println!("{line}");
    println!("{}", by_changes(&runtime, &sources, &settings.policy));
}

/// Measures reads of changes: a first refresh, and then reads in which nothing changed.
fn by_changes(runtime: &tokio::runtime::Runtime, sources: &[SourceConfig], policy: &Policy) -> String {
    forget_peak_memory();
    let pass = Pass::Changes(SyncCache::default());
    let first = runtime.block_on(read(sources, &pass, policy));
    let nothing = (0..ROUNDS).map(|_| runtime.block_on(read(sources, &pass, policy))).collect();
    format!(
        "  by changes: first {:.0} ms, nothing changed {:.0} ms (connecting, and checking what is kept); {}",
        milliseconds(first),
        milliseconds(median(nothing)),
        peak_memory()
    )
}

async fn read(sources: &[SourceConfig], pass: &Pass, policy: &Policy) -> Duration {
    let began = Instant::now();
    let snapshot = fetch(sources, pass, policy, daemon::now()).await;
    let took = began.elapsed();
    let [read] = snapshot.reads.as_slice() else { panic!("there is one source") };
    assert_eq!((&read.completeness, read.rejected.first()), (&Completeness::Complete, None));
    assert!(read.entries.len() >= 15_000, "{} entries", read.entries.len());
    took
}

/// Returns the arguments of `ldapsearch` for each search that a read of `source` makes.
fn searches(slapd: &Slapd, source: &SourceConfig) -> Vec<Vec<String>> {
    let trees = KINDS.into_iter().filter_map(|kind| Some((kind, source.tree(kind)?)));
    let page = format!("pr={PAGE_SIZE}/noprompt");
    let fixed = ["-x", "-LLL", "-o", "ldif-wrap=no", "-H", &slapd.ldaps_url, "-D", READER_DN, "-w", READER_PASSWORD];
    trees
        .map(|(kind, tree)| {
            let search = ["-E", &page, "-b", &tree.base, &tree.filter];
            let arguments = fixed.iter().copied().chain(search).map(str::to_owned);
            arguments.chain(source.attributes.wanted(kind)).collect()
        })
        .collect()
}

fn ldapsearch(arguments: &[String], slapd: &Slapd) {
    let null = fs::File::create("/dev/null").expect("Linux has /dev/null");
    let status = Command::new("ldapsearch")
        .env("LDAPTLS_CACERT", &slapd.ca_pem)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(null)
        .status()
        .expect("ldapsearch (`make packages` installs it)");
    assert!(status.success(), "ldapsearch: {status}");
}
