//! Watches a cluster's pods while a reaper is enabled. Writes nothing. Start and end of a pod are in its status, so
//! metadata alone would not be enough; the rest of the pod is not kept.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use kube::api::ObjectMeta;
use kube::core::{NotUsed, Object};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use parking_lot::Mutex;
use serde::Deserialize;
use tokio_util::task::AbortOnDropHandle;

use super::discovery::resource;
use crate::contract::{ENDS_AT, JOB, LIFETIME};
use crate::errors::chain;
use crate::inventory::pods::{GRACE, Lifetime, Maker, ObservedPod, PodInventory};
use crate::kinds::{ObjectKind, everywhere};

/// The delay after an error. The pods are then listed again, because the watch does not report changes that it missed.
const AGAIN: Duration = Duration::from_secs(5);

/// The watch. It ends when this is dropped.
#[derive(Debug)]
pub struct PodWatch {
    shared: Arc<Mutex<State>>,
    _task: AbortOnDropHandle<()>,
}

#[derive(Debug, Default)]
struct State {
    pods: Arc<PodInventory>,
    /// What the current list has found so far.
    list: BTreeMap<(String, String), ObservedPod>,
    ready: bool,
    error: Option<String>,
}

type Pod = Object<NotUsed, Status>;

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    phase: Option<String>,
    start_time: Option<Time>,
}

impl PodWatch {
    /// Starts the watch. Must be called within a runtime.
    #[must_use]
    pub fn start(client: &Client) -> Self {
        let shared = Arc::new(Mutex::new(State::default()));
        let task = AbortOnDropHandle::new(tokio::spawn(watch(Arc::clone(&shared), client.clone())));
        Self { shared, _task: task }
    }

    /// Returns all pods; `None` while they are not known, so that no reaper acts.
    #[must_use]
    pub fn inventory(&self) -> Option<Arc<PodInventory>> {
        let state = self.shared.lock();
        state.ready.then(|| Arc::clone(&state.pods))
    }

    /// Returns why the pods are not known.
    #[must_use]
    pub fn error(&self) -> Option<String> {
        self.shared.lock().error.clone()
    }
}

async fn watch(shared: Arc<Mutex<State>>, client: Client) {
    let Some(kind) = everywhere(&ObjectKind::of("v1", "Pod")) else { return };
    loop {
        let api = Api::<Pod>::all_with(client.clone(), &resource(&kind));
        let mut events = std::pin::pin!(watcher(api, watcher::Config::default()));
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => shared.lock().take(event),
                Err(error) => {
                    let mut state = shared.lock();
                    state.ready = false;
                    state.error = Some(format!("cannot watch the pods: {}", chain(&error)));
                    break;
                }
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
}

impl State {
    fn take(&mut self, event: Event<Pod>) {
        match event {
            Event::Init => self.list.clear(),
            Event::InitApply(pod) => {
                if let Some((key, Some(pod))) = seen(&pod) {
                    self.list.insert(key, pod);
                }
            }
            Event::InitDone => {
                self.pods = Arc::new(PodInventory { pods: std::mem::take(&mut self.list) });
                self.ready = true;
                self.error = None;
            }
            Event::Apply(pod) => match seen(&pod) {
                Some((key, Some(pod))) => drop(Arc::make_mut(&mut self.pods).pods.insert(key, pod)),
                Some((key, None)) => drop(Arc::make_mut(&mut self.pods).pods.remove(&key)),
                None => {}
            },
            Event::Delete(pod) => {
                if let Some((key, _)) = seen(&pod) {
                    Arc::make_mut(&mut self.pods).pods.remove(&key);
                }
            }
        }
    }
}

fn seen(pod: &Pod) -> Option<((String, String), Option<ObservedPod>)> {
    let key = (pod.metadata.namespace.clone()?, pod.metadata.name.clone()?);
    let status = pod.status.as_ref();
    let started = status.and_then(|status| status.start_time.as_ref()).map(|time| time.0);
    let phase = status.and_then(|status| status.phase.as_deref());
    Some((key, observe(&pod.metadata, started, phase)))
}

/// Converts a pod; `None` if it has no uid or creation time. Pods with our label count too: Bursar makes no pods, and
/// controllers copy labels that tenants write.
fn observe(metadata: &ObjectMeta, started: Option<Timestamp>, phase: Option<&str>) -> Option<ObservedPod> {
    let labels = metadata.labels.as_ref();
    let label = |key: &str| labels.and_then(|labels| labels.get(key)).filter(|value| !value.is_empty());
    let annotation = |key: &str| metadata.annotations.as_ref().and_then(|annotations| annotations.get(key));
    Some(ObservedPod {
        uid: metadata.uid.clone()?,
        created: metadata.creation_timestamp.as_ref()?.0,
        started,
        lifetime: Lifetime::read(annotation(LIFETIME).map(String::as_str)),
        job: label(JOB).cloned(),
        finished: matches!(phase, Some("Succeeded" | "Failed")),
        ends_by: metadata
            .deletion_timestamp
            .as_ref()
            .filter(|_| metadata.deletion_grace_period_seconds.unwrap_or(0) <= GRACE)
            .map(|time| time.0),
        told: annotation(ENDS_AT).cloned(),
        maker: maker(metadata),
    })
}

fn maker(metadata: &ObjectMeta) -> Option<Maker> {
    let owners = metadata.owner_references.iter().flatten();
    let owner = owners.into_iter().find(|owner| owner.controller == Some(true))?;
    let OwnerReference { kind, name, uid, .. } = owner.clone();
    Some(Maker { kind, name, uid })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::contract::{MANAGED_BY, MANAGER};

    fn observed(mut metadata: Value) -> Option<ObservedPod> {
        metadata["uid"] = json!("uid");
        metadata["creationTimestamp"] = json!("2026-05-01T00:00:00Z");
        observe(&serde_json::from_value(metadata).expect("the JSON is metadata"), None, None)
    }

    #[test]
    fn a_pod_with_our_label_is_observed() {
        assert!(observed(json!({"labels": {MANAGED_BY: MANAGER}})).is_some());
    }

    #[test]
    fn a_pod_with_a_very_long_grace_period_does_not_end_soon() {
        let ends = |seconds: i64| {
            let metadata = json!({"deletionTimestamp": "2026-05-01T01:00:00Z", "deletionGracePeriodSeconds": seconds});
            observed(metadata).expect("the pod is observed").ends_by.is_some()
        };
        assert!(ends(0) && ends(GRACE));
        assert!(!ends(GRACE + 1) && !ends(315_360_000));
        assert_eq!(observed(json!({})).expect("the pod is observed").ends_by, None);
    }
}
