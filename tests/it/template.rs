//! What `bursar init` makes, once for the cluster that all tests share: a cluster belongs to one ledger, so every
//! world begins with a copy of the same empty one.

use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

use bursar::access::{self, InitRequest};
use bursar::identity::ClusterName;
use bursar::ledger::store::Store;

use crate::servers::Servers;
use crate::world::World;

/// Gives `world` the state folder of a site that was just initialised.
pub fn initialise(world: &World) {
    static TEMPLATE: OnceLock<PathBuf> = OnceLock::new();
    let template = TEMPLATE.get_or_init(|| make(world));
    let state = world.state_dir();
    fs::create_dir_all(state.join("clusters")).expect("a state folder");
    for file in ["ledger.db", "seal.key", "clusters/test.kubeconfig"] {
        fs::copy(template.join(file), state.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
    }
}

fn make(world: &World) -> PathBuf {
    let servers = Servers::shared();
    let state = servers.folder().join("template");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let ledger_id = runtime.block_on(async {
        let (store, _lock) = Store::open(&state).await.expect("a ledger");
        let id = store.state().ledger_id.clone();
        store.close().await.expect("closed");
        id
    });
    let settings = world.settings();
    let request = InitRequest {
        policy: &settings.policy,
        cluster: &ClusterName("test".to_owned()),
        admin_kubeconfig: &servers.cluster.admin_kubeconfig,
        daemon_kubeconfig: &state.join("clusters/test.kubeconfig"),
        state_dir: &state,
        ledger_id: &ledger_id,
    };
    runtime.block_on(access::init(request)).expect("bursar init");
    state
}
