//! The watch of a cluster's pods, for the reapers, and only while one of them is on. It reads, and writes nothing. Start and
//! end of a pod stand in its status, so metadata alone would not do; of the rest nothing is kept.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use kube::api::ObjectMeta;
use kube::core::{NotUsed, Object};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use serde::Deserialize;
use tokio_util::task::AbortOnDropHandle;

use super::discovery::resource;
use crate::contract::{ENDS_AT, JOB, LIFETIME};
use crate::errors::chain;
use crate::inventory::pods::{GRACE, Lifetime, Maker, ObservedPod, PodInventory};
use crate::kinds::{ObjectKind, everywhere};

/// After an error the pods are listed again: what was missed meanwhile would not be told.
const AGAIN: Duration = Duration::from_secs(5);

/// The watch, until it is dropped.
#[derive(Debug)]
pub struct PodWatch {
    shared: Arc<Mutex<State>>,
    _task: AbortOnDropHandle<()>,
}

#[derive(Debug, Default)]
struct State {
    pods: Arc<PodInventory>,
    /// What the list that is under way found so far.
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
    /// Begins to watch. Must be called within a runtime.
    #[must_use]
    pub fn start(client: &Client) -> Self {
        let shared = Arc::new(Mutex::new(State::default()));
        let task = AbortOnDropHandle::new(tokio::spawn(watch(Arc::clone(&shared), client.clone())));
        Self { shared, _task: task }
    }

    /// All pods; absent while they are not known, which is no evidence of anything.
    #[must_use]
    pub fn inventory(&self) -> Option<Arc<PodInventory>> {
        let state = lock(&self.shared);
        state.ready.then(|| Arc::clone(&state.pods))
    }

    /// Why they are not known.
    #[must_use]
    pub fn error(&self) -> Option<String> {
        lock(&self.shared).error.clone()
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    // No code panics while it holds the lock; if it did, each value is still whole.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn watch(shared: Arc<Mutex<State>>, client: Client) {
    let Some(kind) = everywhere(&ObjectKind::of("v1", "Pod")) else { return };
    loop {
        let api = Api::<Pod>::all_with(client.clone(), &resource(&kind));
        let mut events = std::pin::pin!(watcher(api, watcher::Config::default()));
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => lock(&shared).take(event),
                Err(error) => {
                    let mut state = lock(&shared);
                    state.ready = false;
                    state.error = Some(format!("pods are not seen: {}", chain(&error)));
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

/// A pod from what the API server shows; `None` if it is no stored object. No label excludes one: Bursar makes no pods, and
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
        deleting: metadata.deletion_timestamp.is_some() && metadata.deletion_grace_period_seconds.unwrap_or(0) <= GRACE,
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
        observe(&serde_json::from_value(metadata).expect("metadata"), None, None)
    }

    #[test]
    fn a_pod_with_our_label_is_seen_as_any_other() {
        assert!(observed(json!({"labels": {MANAGED_BY: MANAGER}})).is_some());
    }

    #[test]
    fn a_pod_that_takes_years_to_end_is_still_there() {
        let deleting = |seconds: i64| {
            let metadata = json!({"deletionTimestamp": "2026-05-01T01:00:00Z", "deletionGracePeriodSeconds": seconds});
            observed(metadata).expect("a pod").deleting
        };
        assert!(deleting(0) && deleting(GRACE));
        assert!(!deleting(GRACE + 1) && !deleting(315_360_000));
        assert!(!observed(json!({})).expect("a pod").deleting);
    }
}
