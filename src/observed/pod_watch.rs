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
use crate::contract::{ENDS_AT, JOB, LIFETIME, MANAGED_BY, MANAGER};
use crate::errors::chain;
use crate::inventory::pods::{Lifetime, Maker, ObservedPod, PodInventory};
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

/// A pod from what the API server shows; `None` for one of ours.
fn observe(metadata: &ObjectMeta, started: Option<Timestamp>, phase: Option<&str>) -> Option<ObservedPod> {
    let labels = metadata.labels.as_ref();
    let label = |key: &str| labels.and_then(|labels| labels.get(key)).filter(|value| !value.is_empty());
    if label(MANAGED_BY).is_some_and(|manager| manager == MANAGER) {
        return None;
    }
    let annotation = |key: &str| metadata.annotations.as_ref().and_then(|annotations| annotations.get(key));
    Some(ObservedPod {
        uid: metadata.uid.clone()?,
        created: metadata.creation_timestamp.as_ref()?.0,
        started,
        lifetime: Lifetime::read(annotation(LIFETIME).map(String::as_str)),
        job: label(JOB).cloned(),
        finished: matches!(phase, Some("Succeeded" | "Failed")),
        deleting: metadata.deletion_timestamp.is_some(),
        told: annotation(ENDS_AT).cloned(),
        maker: maker(metadata),
    })
}

fn maker(metadata: &ObjectMeta) -> Option<Maker> {
    let owners = metadata.owner_references.iter().flatten();
    let owner = owners.into_iter().find(|owner| owner.controller == Some(true))?;
    let OwnerReference { api_version, kind, name, uid, .. } = owner.clone();
    Some(Maker { api_version, kind, name, uid })
}
