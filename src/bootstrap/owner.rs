//! Whose a cluster is: ConfigMap `bursar-owner` names the one ledger that may write there. The daemon reads it and
//! cannot change it, so it also says what an administrator said at `init` and `approver install`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt as _, watcher::watcher};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::needs::Confinement;
use super::roles::{NAMESPACE, OWNER, labels};
use super::{AccessError, answered};
use crate::identity::ClusterName;
use crate::rules::approver::ApproverRules;

/// Its key.
pub const OWNER_KEY: &str = "ledger";
/// Names of the listed administrators, with commas; absent: none is listed.
const ADMINISTRATORS: &str = "administrators";
/// What the approver was told, as its `rules.json`; absent: there is none.
const APPROVER: &str = "approver";
/// When the kubeconfig of an approver outside of the cluster ends.
const APPROVER_UNTIL: &str = "approver-until";

/// What an administrator said of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Said {
    /// Who may hold admin and impersonation roles; empty: nobody said.
    pub administrators: BTreeSet<String>,
    /// What its approver goes by; `None`: there is no approver.
    pub approver: Option<ApproverRules>,
    /// When the files of an approver outside of the cluster end.
    pub approver_until: Option<Timestamp>,
}

impl Said {
    /// What the daemon admission policy is made with.
    #[must_use]
    pub fn confinement(&self) -> Confinement {
        Confinement { administrators: self.administrators.clone(), approver: self.approver.is_some() }
    }
}

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
    Ok(read(client).await?.and_then(|map| ledger_id(&map)))
}

/// Refuses an administrator's kubeconfig that reaches another cluster than the daemon's. Two clusters can have one ledger, so
/// the owner's name is no proof: the ConfigMap's UID is. If the daemon cannot read its own, nothing is compared.
///
/// # Errors
/// The clusters differ, or the administrator's does not answer.
pub async fn must_be_same(cluster: &ClusterName, daemon: &Path, admin: &Path) -> Result<(), AccessError> {
    let Ok(client) = super::client(daemon).await else { return Ok(()) };
    let Ok(Some(ours)) = read(&client).await else { return Ok(()) };
    let theirs = read(&super::client(admin).await?).await?;
    if theirs.is_none_or(|theirs| theirs.metadata.uid == ours.metadata.uid) {
        return Ok(());
    }
    Err(AccessError::OtherCluster { cluster: cluster.clone(), path: admin.to_owned() })
}

/// The same, with what an administrator said.
pub async fn owner_and_said(client: &Client) -> Result<Option<(String, Said)>, AccessError> {
    Ok(read(client).await?.and_then(|map| Some((ledger_id(&map)?, said(&map)))))
}

async fn read(client: &Client) -> Result<Option<ConfigMap>, AccessError> {
    let api = Api::<ConfigMap>::namespaced(client.clone(), NAMESPACE);
    answered("ConfigMap bursar-owner", api.get_opt(OWNER)).await
}

/// A watch of the owner, until it is dropped.
#[derive(Debug)]
pub struct OwnerWatch {
    receiver: watch::Receiver<Ownership>,
    said: watch::Receiver<Said>,
    _task: AbortOnDropHandle<()>,
}

impl OwnerWatch {
    /// The newest of what was heard, and its changes.
    #[must_use]
    pub fn receiver(&self) -> watch::Receiver<Ownership> {
        self.receiver.clone()
    }

    /// What an administrator said, as heard last.
    #[must_use]
    pub fn said(&self) -> Said {
        self.said.borrow().clone()
    }
}

/// Watches the owner. While the cluster does not answer, what was heard last stands. Must be called within a runtime.
#[must_use]
pub fn watch_owner(client: &Client, said_before: Said) -> OwnerWatch {
    let (sender, receiver) = watch::channel(Ownership::Unknown);
    let (tell, said_receiver) = watch::channel(said_before);
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
                    tell.send_replace(said(&map));
                    continue;
                }
                Ok(Event::InitDone) => listed.clone(),
                Ok(Event::Apply(map)) => {
                    tell.send_replace(said(&map));
                    of(&map)
                }
                Ok(Event::Delete(_)) => Ownership::Nobody,
                Err(_) => continue,
            };
            sender.send_if_modified(|now| std::mem::replace(now, heard.clone()) != heard);
        }
    });
    OwnerWatch { receiver, said: said_receiver, _task: AbortOnDropHandle::new(task) }
}

/// The ConfigMap of a ledger.
pub(super) fn manifest(ledger_id: &str, said: &Said) -> Value {
    let Said { administrators, approver, approver_until } = said;
    let mut data = json!({OWNER_KEY: ledger_id});
    if !administrators.is_empty() {
        let names: Vec<&str> = administrators.iter().map(String::as_str).collect();
        data[ADMINISTRATORS] = json!(names.join(","));
    }
    if let Some(rules) = approver {
        data[APPROVER] = json!(rules.to_json());
    }
    if let Some(until) = approver_until {
        data[APPROVER_UNTIL] = json!(until.to_string());
    }
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": OWNER, "namespace": NAMESPACE, "labels": labels()},
        "data": data,
    })
}

fn of(map: &ConfigMap) -> Ownership {
    ledger_id(map).map_or(Ownership::Nobody, Ownership::Ledger)
}

/// Rules that another version of `bursar` wrote say no more than that there is an approver: one without a class.
fn said(map: &ConfigMap) -> Said {
    let text = |key: &str| map.data.as_ref()?.get(key).cloned();
    let administrators = text(ADMINISTRATORS).unwrap_or_default();
    let administrators = administrators.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned);
    let unread = || ApproverRules {
        version: 0,
        cluster: ClusterName(String::new()),
        daemon: String::new(),
        ledger: String::new(),
        own_lifetime: 0,
        classes: BTreeMap::new(),
        administrators: BTreeSet::new(),
        seal: Vec::new(),
    };
    Said {
        administrators: administrators.collect(),
        approver: text(APPROVER).map(|rules| ApproverRules::parse(rules.as_bytes()).unwrap_or_else(|_| unread())),
        approver_until: text(APPROVER_UNTIL).and_then(|until| until.parse().ok()),
    }
}

fn ledger_id(map: &ConfigMap) -> Option<String> {
    map.data.as_ref()?.get(OWNER_KEY).cloned()
}
