//! Measures the time from a change in the directory to a working kubeconfig: 200 new tools, one after the other, with a
//! running `bursard` whose source has `persist = true`, on a real slapd, API server and `bursar-homed`. Run
//! `cargo bench --bench change`.
//!
//! The time starts before `ldapadd` and ends when the API server has answered a request with the new file. Nothing else
//! starts a cycle: the schedule runs once a year.

#![expect(clippy::disallowed_methods, reason = "a benchmark measures time")]

mod figures;
#[allow(dead_code, reason = "tests use the other items")]
#[path = "../tests/it/template.rs"]
mod template;
#[allow(dead_code, reason = "tests use the other items")]
#[path = "../tests/it/world.rs"]
mod world;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use bursar_testkit::ldif::tool_ldif;
use bursar_testkit::process::Process;
use bursar_testkit::ready::wait_for;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use world::World;

const CHANGES: u32 = 200;
/// The number of tools that exist before the measurement.
const BEFORE: u32 = 50;
const DEADLINE: Duration = Duration::from_mins(2);
/// The interval between two checks of the home.
const LOOK: Duration = Duration::from_millis(1);

fn main() {
    let mut world = World::with("chg", "\n[schedule]\ncycle = \"0 0 1 1 *\"\n");
    world.configure("preset    = \"toolforge\"\n", "preset    = \"toolforge\"\npersist   = true\n");
    for number in 0..BEFORE {
        world.tool(&format!("old{number}"), 71_000 + number, &[]);
    }
    assert_eq!(world.cycle().exit_code(), 0, "the existing tools");
    world.stop();
    let mut command = Command::new(env!("CARGO_BIN_EXE_bursard"));
    command.arg("--config").arg(world.config());
    let daemon = Process::start("bursard", &command, &world.folder.join("bursard.log"));
    wait_for("bursard is told of changes", DEADLINE, || {
        daemon.log_end().contains("the server pushes changes").then_some(())
    });
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("the system allows a runtime");
    let mut times: Vec<Duration> = (0..CHANGES).map(|number| change(&world, &runtime, number)).collect();
    times.sort();
    let at = |share: usize| figures::milliseconds(times[times.len() * share / 100]);
    println!(
        "LDAP change to usable kubeconfig, {CHANGES} new tools: p50 {:.0} ms (goal 1000), p90 {:.0} ms, p99 {:.0} ms \
         (goal 2000), longest {:.0} ms",
        at(50),
        at(90),
        at(99),
        figures::milliseconds(times[times.len() - 1])
    );
}

fn change(world: &World, runtime: &tokio::runtime::Runtime, number: u32) -> Duration {
    let name = format!("new{number}");
    world.home_of(&name, 72_000 + number);
    let kubeconfig = world.home(&name).join(".kube/config");
    let began = Instant::now();
    world.add(&tool_ldif(&world.base, &name, 72_000 + number, &[]));
    while !kubeconfig.exists() {
        assert!(began.elapsed() < DEADLINE, "{name} has no kubeconfig");
        std::thread::sleep(LOOK);
    }
    runtime.block_on(works(&kubeconfig));
    began.elapsed()
}

/// Sends requests with the file until the API server grants one.
async fn works(kubeconfig: &Path) {
    let file = Kubeconfig::read_from(kubeconfig).expect("the kubeconfig is readable");
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
        .await
        .expect("the kubeconfig has a context");
    let namespace = config.default_namespace.clone();
    let client = Client::try_from(config).expect("the kubeconfig is valid");
    let pods: Api<Pod> = Api::namespaced(client, &namespace);
    let end = Instant::now() + DEADLINE;
    while let Err(error) = pods.list(&ListParams::default()).await {
        assert!(Instant::now() < end, "{}: {error}", kubeconfig.display());
    }
}
