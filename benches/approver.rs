//! Certificates a second at the signer's default pace (20 requests a second, burst 30): approved by the daemon itself, and by
//! a `bursar-webhook approve` beside the API server. `make bench`.

#![expect(clippy::disallowed_methods, reason = "a bench measures time")]

#[allow(dead_code, reason = "the tests use the rest of it")]
#[path = "../tests/it/template.rs"]
mod template;
#[allow(dead_code, reason = "the tests use the rest of it")]
#[path = "../tests/it/world.rs"]
mod world;

use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bursar::bootstrap::approver::{self, ApproverRequest, Place};
use bursar::contract::Sealer;
use bursar::identity::ClusterName;
use bursar::store::ReadStore;
use bursar_testkit::Servers;
use bursar_testkit::binaries::program;
use bursar_testkit::control_plane::ControlPlaneOptions;
use bursar_testkit::ldif::tool_ldif;
use bursar_testkit::ports::free_port;
use bursar_testkit::process::Process;
use bursar_testkit::sample;
use bursar_testkit::slapd::SlapdOptions;
use world::World;

/// Certificates of each run: more than the signer's burst.
const TOOLS: u32 = 300;

fn main() {
    let pace = ControlPlaneOptions { controller_qps: 20, controller_burst: 30, ..ControlPlaneOptions::default() };
    let servers = Arc::new(Servers::start_with(&pace, &SlapdOptions::default(), |_| sample::toolforge()));
    let mut world = World::on(servers, "paced", "");
    world.cycle();
    let by_itself = issue(&mut world, 0);
    world.stop();
    let approver = install(&world);
    let by_approver = issue(&mut world, 1);
    drop(approver);
    println!(
        "{TOOLS} new tools, certificates a second: {by_itself:.1} approved by the daemon, {by_approver:.1} by an approver"
    );
    println!("ratio {:.2} (goal 0.95)", by_approver / by_itself);
}

fn issue(world: &mut World, round: u32) -> f64 {
    for number in 0..TOOLS {
        let (name, uid) = (format!("r{round}t{number}"), 70_000 + round * TOOLS + number);
        world.home_of(&name, uid);
        world.add(&tool_ldif(&world.base, &name, uid, &[]));
    }
    let began = Instant::now();
    let report = world.cycle();
    assert!(report.failing.is_empty(), "{report:#?}");
    f64::from(TOOLS) / began.elapsed().as_secs_f64()
}

fn install(world: &World) -> Process {
    let folder = world.folder.join("approver");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let settings = world.settings();
    let seed = fs::read(world.state_dir().join("seal.key")).expect("a key");
    runtime.block_on(async {
        let mut store = ReadStore::open(&world.state_dir().join("ledger.db")).await.expect("a ledger");
        let ledger = store.state().await.expect("a ledger");
        let request = ApproverRequest {
            policy: &settings.policy,
            cluster: &ClusterName("test".to_owned()),
            ledger: &ledger,
            admin_kubeconfig: &world.servers.cluster.admin_kubeconfig,
            public_key: Sealer::from_seed(&seed).expect("a key").public_key(),
            administrators: None,
        };
        approver::install(request, Place::Outside { folder: &folder }).await.expect("installed");
    });
    let health = free_port();
    let mut command = Command::new(program("bursar-webhook"));
    command.arg("approve").arg("--dir").arg(&folder).args(["--health", &format!("127.0.0.1:{health}")]);
    let approver = Process::start("bursar-webhook approve", &command, &world.folder.join("approver.log"));
    approver.wait_until("200 from its /readyz", Duration::from_mins(1), || {
        let answer = Command::new("curl").args(["-sf", &format!("http://127.0.0.1:{health}/readyz")]).output();
        answer.is_ok_and(|answer| answer.status.success())
    });
    approver
}
