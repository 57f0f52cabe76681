//! Measures the time from "disabled in LDAP" and from `bursar revoke` until the old certificate is refused, with a
//! running `bursard` whose source has `persist = true`, on a real slapd, API server and `bursar-homed`. Run `cargo
//! bench --bench removal`.
//!
//! During the first measurements, the daemon is idle. During the second ones, one tool in ten fails (its home belongs
//! to another user), and as many new tools are set up. `BURSAR_BENCH_TOOLS` is the number of tools [1000]. The time
//! starts before `ldapmodify` or `bursar`, and ends with the first 403 to requests that are sent continuously with the
//! old certificate.

#![expect(clippy::disallowed_methods, reason = "a benchmark measures time")]

mod figures;
#[allow(dead_code, reason = "tests use the other items")]
#[path = "../tests/it/template.rs"]
mod template;
#[allow(dead_code, reason = "tests use the other items")]
#[path = "../tests/it/world.rs"]
mod world;

use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bursar_testkit::ldif::{disable_ldif, tool_account_dn, tool_ldif};
use bursar_testkit::process::Process;
use bursar_testkit::ready::wait_for;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use world::World;

/// The number of removals of each kind, both idle and under load.
const REMOVALS: u32 = 100;
const DEADLINE: Duration = Duration::from_mins(2);
/// The interval between two requests with the old certificate.
const LOOK: Duration = Duration::from_millis(2);
/// Raises the daily limits, which would hold back removals.
const LIMITS: &str = "\n[schedule]\ncycle = \"0 0 1 1 *\"\n\n[limits]\n\
    disable_per_cycle = { count = 100000 }\ndisable_per_day = { count = 100000 }\n";

fn main() {
    let tools: u32 = std::env::var("BURSAR_BENCH_TOOLS").ok().and_then(|text| text.parse().ok()).unwrap_or(1000);
    assert!(tools >= 4 * REMOVALS, "four removals of {REMOVALS} need as many tools");
    let mut world = World::with("rem", LIMITS);
    world.configure("preset    = \"toolforge\"\n", "preset    = \"toolforge\"\npersist   = true\n");
    add(&world, "tool", 100_000, tools);
    assert_eq!(world.cycle().exit_code(), 0, "the existing tools");
    world.stop();
    let mut command = Command::new(env!("CARGO_BIN_EXE_bursard"));
    command.arg("--config").arg(world.config());
    let daemon = Process::start("bursard", &command, &world.folder.join("bursard.log"));
    wait_for("bursard is told of changes", DEADLINE, || {
        daemon.log_end().contains("the server pushes changes").then_some(())
    });
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("the system allows a runtime");
    let mut numbers = 0..tools;
    let mut measure = |what: &str| {
        for (name, begin) in [("disabled in LDAP", disable as Begin), ("bursar revoke", revoke as Begin)] {
            let names = numbers.by_ref().take(REMOVALS as usize).map(|number| format!("tool{number}"));
            let times = names.map(|tool| removal(&world, &runtime, &tool, begin)).collect();
            print(&format!("{name}, {what}, {tools} tools"), times);
        }
    };
    measure("idle");
    let failing = tools / 10;
    for number in tools - failing..tools {
        let home = world.home(&format!("tool{number}"));
        chown(home, Some(1), Some(1)).expect("the benchmark runs as root, who may change owners");
    }
    let all: Vec<String> = (tools - failing..tools).map(|number| format!("tool{number}")).collect();
    for tool in &all {
        world.bursar_starts(&["revoke", "tool", tool, "--reason", "bench"]);
    }
    add(&world, "new", 200_000, failing);
    measure(&format!("{failing} fail and {failing} are made"));
}

/// Starts a removal without waiting for its end.
type Begin = fn(&World, &str);

fn disable(world: &World, tool: &str) {
    let (base, tool) = (world.base.clone(), tool.to_owned());
    let servers = std::sync::Arc::clone(&world.servers);
    std::thread::spawn(move || servers.slapd.modify_ldif(&disable_ldif(&tool_account_dn(&base, &tool))));
}

fn revoke(world: &World, tool: &str) {
    world.bursar_starts(&["revoke", "tool", tool, "--reason", "bench"]);
}

trait Starts {
    fn bursar_starts(&self, arguments: &[&str]);
}

impl Starts for World {
    fn bursar_starts(&self, arguments: &[&str]) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bursar"));
        command.arg("--config").arg(self.config()).args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().expect("bursar is built");
        std::thread::spawn(move || child.wait());
    }
}

fn add(world: &World, prefix: &str, first_uid: u32, count: u32) {
    let mut ldif = String::new();
    for number in 0..count {
        let (name, uid) = (format!("{prefix}{number}"), first_uid + number);
        world.home_of(&name, uid);
        ldif += &tool_ldif(&world.base, &name, uid, &[]);
        ldif.push('\n');
    }
    world.add(&ldif);
}

fn removal(world: &World, runtime: &tokio::runtime::Runtime, tool: &str, start: Begin) -> Duration {
    let old = copy(world, tool);
    runtime.block_on(async {
        let file = Kubeconfig::read_from(&old).expect("the kubeconfig is readable");
        let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
            .await
            .expect("the kubeconfig has a context");
        let namespace = config.default_namespace.clone();
        let pods: Api<Pod> = Api::namespaced(Client::try_from(config).expect("the kubeconfig is valid"), &namespace);
        pods.list(&ListParams::default()).await.expect("the old certificate is accepted");
        let began = Instant::now();
        start(world, tool);
        loop {
            match pods.list(&ListParams::default()).await {
                Err(kube::Error::Api(status)) if status.code == 403 => return began.elapsed(),
                _ => assert!(began.elapsed() < DEADLINE, "{tool} has access"),
            }
            tokio::time::sleep(LOOK).await;
        }
    })
}

fn copy(world: &World, tool: &str) -> PathBuf {
    let kubeconfig = world.home(tool).join(".kube/config");
    let old = world.folder.join("old");
    let found = |path: &Path| std::fs::copy(path, &old).is_ok();
    wait_for("the tool's kubeconfig", DEADLINE, || found(&kubeconfig).then_some(()));
    old
}

fn print(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |share: usize| figures::milliseconds(times[(times.len() - 1) * share / 100]);
    println!(
        "{what}: the old certificate is refused after p50 {:.0} ms, p99 {:.0} ms, longest {:.0} ms",
        at(50),
        at(99),
        at(100)
    );
}
