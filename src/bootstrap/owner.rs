//! Whose a cluster is: ConfigMap `bursar-owner` names the one ledger that may write there (§5).

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt as _, watcher::watcher};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::roles::{NAMESPACE, OWNER, labels};
use super::{AccessError, answered};

/// Its key.
pub const OWNER_KEY: &str = "ledger";

/// What the cluster says of its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ownership {
    /// It was not heard yet.
    Unknown,
    /// Nobody: `bursar init` was not run, or somebody removed it.
    Nobody,
    /// The ledger with this id.
    Ledger(String),
}

/// The id of the ledger that keeps this cluster; `None`: `init` was not run here.
pub async fn owner(client: &Client) -> Result<Option<String>, AccessError> {
    let api = Api::<ConfigMap>::namespaced(client.clone(), NAMESPACE);
    let found = answered("ConfigMap bursar-owner", api.get_opt(OWNER)).await?;
    Ok(found.and_then(|map| ledger_id(&map)))
}

/// A watch of the owner, until it is dropped.
#[derive(Debug)]
pub struct OwnerWatch {
    receiver: watch::Receiver<Ownership>,
    _task: AbortOnDropHandle<()>,
}

impl OwnerWatch {
    /// The newest of what was heard, and its changes.
    #[must_use]
    pub fn receiver(&self) -> watch::Receiver<Ownership> {
        self.receiver.clone()
    }
}

/// Watches the owner. While the cluster does not answer, what was heard last stands. Must be called within a runtime.
#[must_use]
pub fn watch_owner(client: &Client) -> OwnerWatch {
    let (sender, receiver) = watch::channel(Ownership::Unknown);
    let api = Api::<ConfigMap>::namespaced(client.clone(), NAMESPACE);
    let config = watcher::Config::default().fields(&format!("metadata.name={OWNER}"));
    let task = tokio::spawn(async move {
        let mut events = std::pin::pin!(watcher(api, config).default_backoff());
        let mut listed = Ownership::Nobody;
        while let Some(event) = events.next().await {
            let heard = match event {
                Ok(Event::Init) => {
                    listed = Ownership::Nobody;
                    continue;
                }
                Ok(Event::InitApply(map)) => {
                    listed = of(&map);
                    continue;
                }
                Ok(Event::InitDone) => listed.clone(),
                Ok(Event::Apply(map)) => of(&map),
                Ok(Event::Delete(_)) => Ownership::Nobody,
                Err(_) => continue,
            };
            sender.send_if_modified(|now| std::mem::replace(now, heard.clone()) != heard);
        }
    });
    OwnerWatch { receiver, _task: AbortOnDropHandle::new(task) }
}

/// The ConfigMap of a ledger.
pub(super) fn manifest(ledger_id: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": OWNER, "namespace": NAMESPACE, "labels": labels()},
        "data": {OWNER_KEY: ledger_id},
    })
}

fn of(map: &ConfigMap) -> Ownership {
    ledger_id(map).map_or(Ownership::Nobody, Ownership::Ledger)
}

fn ledger_id(map: &ConfigMap) -> Option<String> {
    map.data.as_ref()?.get(OWNER_KEY).cloned()
}
