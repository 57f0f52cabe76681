//! Compares one cycle that sets up 300 new tools with a bare loop. The cycle uses the whole product: directory, ledger,
//! plan, objects, certificates, and kubeconfigs through a real `bursar-homed`. The bare loop only creates the same
//! objects and requests as many certificates on the same API server. Run `make bench`.
//!
//! The rate of the controller manager's client is raised from Kubernetes' default of 20 requests per second to 200
//! (burst 300). Otherwise only its signer would be measured.

#![expect(clippy::disallowed_methods, reason = "a benchmark measures time")]

#[path = "bootstrap/bare.rs"]
mod bare;
mod figures;
#[allow(dead_code, reason = "tests use the other items")]
#[path = "../tests/it/template.rs"]
mod template;
#[allow(dead_code, reason = "tests use the other items")]
#[path = "../tests/it/world.rs"]
mod world;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use bare::How;
use bursar::contract::Sealer;
use bursar::desired::derive;
use bursar::store::ReadStore;
use bursar_testkit::Servers;
use bursar_testkit::ldif::tool_ldif;
use bursar_testkit::ready::wait_for;
use serde_json::Value;
use world::World;

const TOOLS: u32 = 300;
/// Each round has one run of Bursar, and one of each bare loop.
const ROUNDS: u32 = 3;
/// The bare loops: how they write, and how many tenants they process at a time. Beyond 16, a small control plane gets
/// slower. Bursar is compared with the fastest loop of each kind.
const LOOPS: [(How, usize); 6] =
    [(How::Post, 8), (How::Post, 16), (How::Post, 24), (How::Apply, 8), (How::Apply, 16), (How::Apply, 24)];
/// The daemon's user name at the API server.
const DAEMON: &str = "bursar:daemon";

/// The processes whose CPU time is shown: name in the kernel, and heading of the column.
const PROCESSES: [(&str, &str); 5] = [
    ("bench", "loop itself"),
    ("bursar-homed", "homed"),
    ("kube-apiserver", "API server"),
    ("etcd", "etcd"),
    ("kube-controller", "controllers"),
];

fn main() {
    let mut world = World::new("boot");
    let ratios: Vec<[f64; 2]> = (0..ROUNDS).map(|round| compare(&mut world, round)).collect();
    for (nth, what) in ["apply", "post"].into_iter().enumerate() {
        let mut ratios: Vec<f64> = ratios.iter().map(|both| both[nth]).collect();
        ratios.sort_by(f64::total_cmp);
        println!("bootstrap against {what}: ratios {ratios:.2?}, median {:.2} (goal 0.85)", ratios[ratios.len() / 2]);
    }
    println!("{}", figures::peak_memory());
}

/// Returns Bursar's speed relative to the fastest loop that applies and to the fastest loop that posts.
fn compare(world: &mut World, round: u32) -> [f64; 2] {
    let cluster = &Servers::shared().cluster;
    // Starts the runtime, so that its watches and connections exist before the measurement.
    world.cycle();
    add_tools(world, round);
    let mark = cluster.audit_mark();
    let ours = Row::of("Bursar".to_owned(), || {
        let began = Instant::now();
        let report = world.cycle();
        let took = began.elapsed();
        // A home of an earlier round may be due for a check.
        assert!(report.changed >= u64::from(TOOLS) && report.failing.is_empty(), "{report:#?}");
        took
    });
    wait_for("the audit log has the requests", Duration::from_secs(10), || {
        (requests(mark).values().sum::<usize>() > 1000).then_some(())
    });
    let asked = requests(mark);
    world.stop();

    let manifests = manifests(world, round);
    let objects: usize = manifests.iter().map(Vec::len).sum();
    let kubeconfig = world.state_dir().join("clusters/test.kubeconfig");
    let bare: Vec<Row> = LOOPS
        .iter()
        .enumerate()
        .map(|(nth, (how, width))| {
            let renamed = rename(&manifests, round, nth);
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
            let runtime = runtime.expect("the system allows a runtime");
            let what = match how {
                How::Post => format!("bare loop, {width} at a time"),
                How::Apply => format!("bare loop that applies, {width} at a time"),
            };
            Row::of(what, || runtime.block_on(bare::create(&kubeconfig, renamed, *how, *width)))
        })
        .collect();
    println!("\nBootstrap of {TOOLS} tools: {objects} objects, {TOOLS} certificates (round {} of {ROUNDS})", round + 1);
    Row::print_head();
    ours.print();
    bare.iter().for_each(Row::print);
    println!("Bursar's requests: {asked:?}");
    [How::Apply, How::Post].map(|how| {
        let of_this = LOOPS.iter().zip(&bare).filter(|((other, _), _)| *other == how);
        let fastest = of_this.map(|(_, row)| row.took).min().unwrap_or_default();
        fastest.as_secs_f64() / ours.took.as_secs_f64()
    })
}

/// The measurement of one run.
struct Row {
    what: String,
    took: Duration,
    /// CPU seconds in the order of [`PROCESSES`].
    cpu: [f64; PROCESSES.len()],
}

impl Row {
    fn of(what: String, run: impl FnOnce() -> Duration) -> Self {
        let before = figures::cpu();
        let took = run();
        let after = figures::cpu();
        let of = |used: &BTreeMap<String, f64>, name| used.get(name).copied().unwrap_or_default();
        Self { what, took, cpu: PROCESSES.map(|(name, _)| of(&after, name) - of(&before, name)) }
    }

    fn print_head() {
        let columns = PROCESSES.map(|(_, column)| column).join(" | ");
        println!("| | s | tools/s | CPU s: {columns} |\n|---|---|---{} |", "|---".repeat(PROCESSES.len()));
    }

    fn print(&self) {
        let seconds = self.took.as_secs_f64();
        let cpu = self.cpu.map(|seconds| format!("{seconds:.1}")).join(" | ");
        println!("| {} | {seconds:.1} | {:.1} | {cpu} |", self.what, f64::from(TOOLS) / seconds);
    }
}

/// Returns Bursar's requests since a mark in the audit log, by verb.
fn requests(mark: u64) -> BTreeMap<String, usize> {
    let mut verbs = BTreeMap::new();
    let requests = Servers::shared().cluster.requests_since(mark);
    for request in requests.into_iter().filter(|request| request.user == DAEMON) {
        *verbs.entry(request.verb).or_default() += 1;
    }
    verbs
}

/// Returns the name of a tool, for example `t0zq007`. All names of a round have the same length, and no other word
/// contains the prefix.
fn tool_name(round: u32, number: u32) -> String {
    format!("{}{number:03}", prefix("t", round))
}

fn prefix(kind: &str, round: u32) -> String {
    format!("{kind}{round}zq")
}

fn add_tools(world: &World, round: u32) {
    let tools = (0..TOOLS).map(|number| {
        let (name, uid) = (tool_name(round, number), 70_000 + round * TOOLS + number);
        let home = world.home(&name);
        fs::create_dir_all(&home).expect("the parent folder is writable");
        std::os::unix::fs::chown(&home, Some(uid), Some(uid))
            .expect("the benchmark runs as root, who may change owners");
        fs::set_permissions(&home, fs::Permissions::from_mode(0o700))
            .expect("the benchmark runs as root, who may change modes");
        tool_ldif(&world.base, &name, uid, &[])
    });
    world.add(&tools.collect::<String>());
}

/// Returns the manifests that the daemon applied, by tool, in the order in which it applied them.
fn manifests(world: &World, round: u32) -> Vec<Vec<Value>> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("the system allows a runtime");
    let ledger = runtime.block_on(async {
        let mut ledger = ReadStore::open(&world.state_dir().join("ledger.db")).await.expect("the ledger can be opened");
        ledger.state().await.expect("the ledger can be loaded")
    });
    let seal = fs::read(world.state_dir().join("seal.key")).expect("the seal key is readable");
    let sealer = Sealer::from_seed(&seal).expect("the seal key is valid");
    let desired = derive(&ledger, &world.settings().policy, &sealer, bursar::daemon::now());
    let of_round = desired.accounts.values().filter(|account| account.account.name.starts_with(&prefix("t", round)));
    let mut tools = Vec::new();
    for account in of_round {
        let mut objects: Vec<_> = account.clusters.values().flat_map(|tenant| &tenant.objects).collect();
        objects.sort_by_key(|(key, _)| key.kind.stage());
        tools.push(
            objects
                .into_iter()
                .map(|(_, object)| object.manifest.as_ref().expect("every object has a manifest").value())
                .collect(),
        );
    }
    assert_eq!(tools.len(), TOOLS as usize);
    tools
}

/// Returns the manifests for other tools, with names of the same length.
fn rename(manifests: &[Vec<Value>], round: u32, nth: usize) -> Vec<Vec<Value>> {
    let kind = ["b", "c", "d", "e", "f", "g"][nth];
    let renamed = |manifest: &Value| {
        let text = manifest.to_string().replace(&prefix("t", round), &prefix(kind, round));
        serde_json::from_str(&text).expect("a manifest stays JSON when names are replaced")
    };
    manifests.iter().map(|objects| objects.iter().map(renamed).collect()).collect()
}
