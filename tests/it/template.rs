//! Runs `bursar init` once for each cluster. A cluster belongs to one ledger, so every world on it begins with a copy
//! of the same empty ledger. A second `init` would remove what its own configuration does not need, although other
//! worlds need it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use bursar::bootstrap::{self, InitRequest};
use bursar::identity::ClusterName;
use bursar::store::Store;
use bursar_testkit::Servers;

use crate::world::World;

/// In addition to the classes of `world.toml`: everything that worlds on the shared servers need from `bursar init`.
const ANY: &str = r#"
[class.any]
from         = "users"
when         = { group = "any" }
clusters     = ["test"]
namespace    = "any-u-{name}"
roles        = ["bursar-tenant", "view"]
pod_security = "baseline"
volumes      = [{ name = "own", kind = "personal", size = "1Gi", storage_class = "any" }]
"#;

/// Gives `world` the state folder of a site just after `bursar init`.
pub fn initialise(world: &World) {
    // The template folder of each cluster, by the cluster's URL. While a template is made, other worlds wait for it.
    static TEMPLATES: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let template = {
        let mut templates = TEMPLATES.lock().unwrap_or_else(PoisonError::into_inner);
        let template = templates.entry(world.servers.cluster.url.clone()).or_insert_with(|| {
            let shared = Servers::shared();
            if Arc::ptr_eq(&world.servers, shared) {
                make(&World::bare(shared.clone(), "any", ANY))
            } else {
                make(world)
            }
        });
        template.clone()
    };
    let state = world.state_dir();
    fs::create_dir_all(state.join("clusters")).expect("the folder is writable");
    for file in ["ledger.db", "clusters/test.kubeconfig"] {
        fs::copy(template.join(file), state.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
    }
    // Each world has its own seal key, so that seals of other worlds in the cluster prove nothing about this ledger.
    let key = state.join("seal.key");
    fs::write(&key, [uuid::Uuid::new_v4().into_bytes(), uuid::Uuid::new_v4().into_bytes()].concat())
        .expect("the folder is writable");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("the file belongs to the test");
}

fn make(world: &World) -> PathBuf {
    let servers = &world.servers;
    let state = servers.folder().join("template");
    let runtime = tokio::runtime::Runtime::new().expect("the system allows a runtime");
    let ledger = runtime.block_on(async {
        let (store, _lock) = Store::create(&state).await.expect("the folder is writable");
        let state = store.state().clone();
        store.close().await.expect("the ledger closes");
        state
    });
    let policy = world.policy_for_init(&servers.cluster);
    let request = InitRequest {
        policy: &policy,
        cluster: &ClusterName("test".into()),
        admin_kubeconfig: &servers.cluster.admin_kubeconfig,
        daemon_kubeconfig: &state.join("clusters/test.kubeconfig"),
        state_dir: &state,
        ledger: &ledger,
        administrators: None,
    };
    // `init` waits 15 s until the API server enforces its policies. A busy server needs longer.
    let init = || runtime.block_on(bootstrap::init(request));
    init().or_else(|_| init()).expect("init succeeds on the test's servers");
    state
}
