//! What `bursar init` makes, once for the cluster that all tests share: a cluster belongs to one ledger, so every
//! world begins with a copy of the same empty one.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

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
    init(world, &state, &ledger_id);
    state
}

fn init(_world: &World, state: &Path, ledger_id: &str) {
    let cluster = &Servers::shared().cluster;
    fs::create_dir_all(state.join("clusters")).expect("a folder");
    fs::copy(&cluster.admin_kubeconfig, state.join("clusters/test.kubeconfig")).expect("a kubeconfig");
    fs::write(state.join("seal.key"), [7; 32]).expect("a key");
    cluster.run(&["create", "namespace", "bursar"], "");
    let literal = format!("--from-literal=ledger={ledger_id}");
    cluster.run(&["create", "configmap", "bursar-owner", "-n", "bursar", &literal], "");
    for role in ["bursar-tenant", "bursar-impersonate-admin"] {
        cluster.run(&["create", "clusterrole", role, "--verb=get,list,create", "--resource=pods"], "");
    }
}
