//! Runs `bursar-webhook approve` beside the API server of a world.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use bursar::bootstrap::AccessError;
use bursar::bootstrap::approver::{self, ApproverLocation, ApproverReport, ApproverRequest};
use bursar::contract::Sealer;
use bursar::identity::ClusterName;
use bursar::store::ReadStore;
use bursar_testkit::binaries::program;
use bursar_testkit::ports::free_port;
use bursar_testkit::process::Process;
use bursar_testkit::ready::DEADLINE;

use crate::world::{World, runtime};

/// Runs `bursar approver install --write` and returns the folder of its files. From then on, the daemon approves
/// nothing.
pub fn install(world: &World) -> PathBuf {
    let folder = world.folder.join("approver");
    as_administrator(world, async |request| {
        approver::install(request, ApproverLocation::Outside { folder: &folder }).await
    });
    folder
}

/// Installs or removes the approver with the rights of the cluster's administrator.
pub fn as_administrator(
    world: &World,
    act: impl AsyncFnOnce(ApproverRequest<'_>) -> Result<ApproverReport, AccessError>,
) {
    let settings = world.settings();
    let seed = fs::read(world.state_dir().join("seal.key")).expect("the daemon has made its seal key");
    runtime().block_on(async {
        let mut store =
            ReadStore::open(&world.state_dir().join("ledger.db")).await.expect("the daemon has made a ledger");
        let ledger = store.state().await.expect("the ledger is readable");
        let request = ApproverRequest {
            policy: &settings.policy,
            cluster: &ClusterName("test".into()),
            ledger: &ledger,
            admin_kubeconfig: &world.servers.cluster.admin_kubeconfig,
            public_key: Sealer::from_seed(&seed).expect("the seal key is valid").public_key(),
            administrators: None,
        };
        act(request).await.expect("the administrator may do this");
    });
}

/// Whether the approver with this port for probes is ready.
pub fn is_ready(health: u16) -> bool {
    let answer = Command::new("curl").args(["-sf", &format!("http://127.0.0.1:{health}/readyz")]).output();
    answer.is_ok_and(|answer| answer.status.success())
}

/// Starts the approver and waits until it is ready.
pub fn start(world: &World) -> Process {
    start_at(world, free_port())
}

/// Like [`start`], with this port for probes.
pub fn start_at(world: &World, health: u16) -> Process {
    let mut command = Command::new(program("bursar-webhook"));
    command.arg("approve").arg("--dir").arg(world.folder.join("approver"));
    command.args(["--health", &format!("127.0.0.1:{health}")]);
    let approver = Process::start("bursar-webhook approve", &command, &world.folder.join("approver.log"));
    approver.wait_until("/readyz of the approver returns 200", DEADLINE, || is_ready(health));
    approver
}
