//! The owner of a cluster: ConfigMap `bursar-owner` names the only ledger that may write there. The daemon can read the
//! ConfigMap but not change it. The ConfigMap therefore also records the administrator's choices at `init` and
//! `approver install`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use bursar_watch::listing_again;
use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::needs::Confinement;
use super::roles::{NAMESPACE, OWNER, labels};
use super::{AccessError, answered};
use crate::identity::ClusterName;
use crate::rules::approver::ApproverRules;

/// The key of the ledger's id.
pub const OWNER_KEY: &str = "ledger";
/// The key of the listed administrators, separated by commas; absent if none is listed.
const ADMINISTRATORS: &str = "administrators";
/// The key of the approver's rules, as in its `rules.json`; absent if there is no approver.
const APPROVER: &str = "approver";
/// The key of the time when the kubeconfig of an approver outside the cluster expires.
const APPROVER_UNTIL: &str = "approver-until";

/// An administrator's choices for a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Said {
    /// Accounts that may have admin and impersonation roles; empty if none are listed.
    pub administrators: BTreeSet<String>,
    /// The rules of the approver; `None` if there is none.
    pub approver: Option<ApproverRules>,
    /// When the certificate of an approver outside the cluster expires.
    pub approver_until: Option<Timestamp>,
}

impl Said {
    /// The administrator's choices that the daemon admission policy depends on.
    #[must_use]
    pub fn confinement(&self) -> Confinement {
        Confinement { administrators: self.administrators.clone(), approver: self.approver.is_some() }
    }
}

/// The owner of a cluster, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ownership {
    /// The cluster has not answered yet.
    Unknown,
    /// No ledger: `bursar init` was not run, or the ConfigMap was removed.
    Nobody,
    Ledger(String),
}

/// The id of the ledger that owns the cluster; `None` if `init` was not run.
pub async fn owner(client: &Client) -> Result<Option<String>, AccessError> {
    Ok(read(client).await?.and_then(|map| ledger_id(&map)))
}

/// Rejects an administrator's kubeconfig for a cluster other than the daemon's. Two clusters can have the same ledger,
/// so the UIDs of their `ConfigMap`s are compared, not the ledger's id. If the `ConfigMap` in the daemon's cluster
/// cannot be read, nothing is compared.
///
/// # Errors
/// The clusters differ, or a request to the administrator's cluster fails.
pub async fn must_be_same(cluster: &ClusterName, daemon: &Path, admin: &Path) -> Result<(), AccessError> {
    let Ok(client) = super::client(daemon).await else { return Ok(()) };
    let Ok(Some(ours)) = read(&client).await else { return Ok(()) };
    let theirs = read(&super::client(admin).await?).await?;
    if theirs.is_none_or(|theirs| theirs.metadata.uid == ours.metadata.uid) {
        return Ok(());
    }
    Err(AccessError::OtherCluster { cluster: cluster.clone(), path: admin.to_owned() })
}

/// Like [`owner`], with the administrator's choices.
pub async fn owner_and_said(client: &Client) -> Result<Option<(String, Said)>, AccessError> {
    Ok(read(client).await?.and_then(|map| Some((ledger_id(&map)?, said(&map)))))
}

async fn read(client: &Client) -> Result<Option<ConfigMap>, AccessError> {
    let api = Api::<ConfigMap>::namespaced(client.clone(), NAMESPACE);
    answered("ConfigMap bursar-owner", api.get_opt(OWNER)).await
}

/// A watch of the owner. The watch ends when this value is dropped.
#[derive(Debug)]
pub struct OwnerWatch {
    receiver: watch::Receiver<Ownership>,
    said: watch::Receiver<Said>,
    _task: AbortOnDropHandle<()>,
}

impl OwnerWatch {
    /// Returns a receiver of the newest owner and its changes.
    #[must_use]
    pub fn receiver(&self) -> watch::Receiver<Ownership> {
        self.receiver.clone()
    }

    /// Returns the newest known choices of the administrator.
    #[must_use]
    pub fn said(&self) -> Said {
        self.said.borrow().clone()
    }
}

/// Starts a watch of the owner. While the cluster does not answer, the last known owner stays. Must be called within a
/// runtime.
#[must_use]
pub fn watch_owner(client: &Client, said_before: Said) -> OwnerWatch {
    let (sender, receiver) = watch::channel(Ownership::Unknown);
    let (tell, said_receiver) = watch::channel(said_before);
    let api = Api::<ConfigMap>::namespaced(client.clone(), NAMESPACE);
    let config = watcher::Config::default().fields(&format!("metadata.name={OWNER}"));
    let task = tokio::spawn(async move {
        let mut events = std::pin::pin!(listing_again(api, config));
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

/// The ConfigMap for this ledger.
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

/// Reads the administrator's choices. If an approver's rules come from another version of `bursar` and cannot be read,
/// they are returned without classes: they only show that there is an approver.
fn said(map: &ConfigMap) -> Said {
    let text = |key: &str| map.data.as_ref()?.get(key).cloned();
    let administrators = text(ADMINISTRATORS).unwrap_or_default();
    let administrators = administrators.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned);
    let unread = || ApproverRules {
        version: 0,
        cluster: ClusterName::default(),
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
