//! Watches one cluster: keeps an inventory of digests of every object that has our label. Writes nothing.
//! [`super::cache`] decides which state replaces which.
//!
//! A cluster that does not answer has no inventory, which is not the same as an empty one. Its watches retry
//! automatically.

mod watching;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::api::ListParams;
use kube::core::DynamicObject;
use kube::runtime::watcher::Event;
use kube::{Api, Client};
use parking_lot::Mutex;
use serde_json::Value;
use thiserror::Error;
use tokio::sync::{Notify, watch};
use tokio_util::task::AbortOnDropHandle;

use self::watching::{explain, watch_kind};
use super::cache::{Cache, observe};
use crate::identity::ClusterName;
use crate::inventory::{ClusterInventory, ObservedObject};
use crate::kinds::{ObjectKey, WatchedKind};

/// If an API server does not list one object within this time, it counts as unreachable. It normally takes
/// milliseconds.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);

/// A watch ends after 290 s (kube's default), so a longer silence means a dead connection.
const READ_TIMEOUT: Duration = Duration::from_mins(5);
/// If an API server does not accept a connection within this time, it counts as down.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns a client of a cluster, configured for watches and writes.
pub fn connect(mut config: kube::Config) -> Result<Client, WatchError> {
    // kube's own retries of 429 and 503 would last for many minutes. The executor paces and repeats requests itself.
    config.default_retry = false;
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    config.reset_reader_on_write = true;
    bursar_watch::client(config).map_err(WatchError::Client)
}

/// Why a cluster has no inventory.
#[derive(Debug, Error)]
pub enum WatchError {
    /// The URL, a certificate or a key of the kubeconfig is not valid.
    #[error("the cluster's kubeconfig cannot be used")]
    Client(#[source] kube::Error),
    /// The cluster did not list all objects in time.
    #[error("cluster {cluster} did not list all its objects within {} s: {why}", waited.as_secs())]
    NotReady {
        cluster: ClusterName,
        waited: Duration,
        /// What it still waits for.
        why: String,
    },
}

/// The health of the watches, for `status`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterHealth {
    /// Whether there is an inventory and the cluster answers.
    pub ready: bool,
    /// The kinds that were not listed yet.
    pub waiting_for: Vec<String>,
    /// Why there is no inventory, with the cause and the remedy.
    pub error: Option<String>,
    /// Why the inventory lacks the objects of a kind that is not essential.
    pub blind: Option<String>,
    /// The number of Bursar's objects in the cluster.
    pub objects: usize,
}

/// The watches of one cluster. They end when this is dropped.
#[derive(Debug)]
pub struct ClusterWatch {
    shared: Arc<Shared>,
    _tasks: Vec<AbortOnDropHandle<()>>,
}

impl ClusterWatch {
    /// Starts the watches, and returns at once. `changed` is notified of everything that the plan did not know: drift,
    /// deleted objects, and that the cluster became reachable or unreachable. Our own writes ([`Self::write`]) do not
    /// notify it.
    ///
    /// Must be called within a Tokio runtime.
    #[must_use]
    pub fn start(client: &Client, cluster: ClusterName, kinds: Vec<WatchedKind>, changed: Arc<Notify>) -> Self {
        let shared = Arc::new(Shared::new(cluster, kinds, changed));
        let tasks = (0..shared.kinds.len())
            .map(|index| AbortOnDropHandle::new(tokio::spawn(watch_kind(Arc::clone(&shared), client.clone(), index))))
            .collect();
        Self { shared, _tasks: tasks }
    }

    /// Objects that are found from now on use the equal key in `keys`, if there is one, so that each key is in memory
    /// only once.
    pub fn share(&self, keys: BTreeSet<ObjectKey>) {
        self.shared.state.lock().cache.share(keys);
    }

    #[must_use]
    pub fn cluster(&self) -> &ClusterName {
        &self.shared.cluster
    }

    /// Returns the kinds that are watched.
    #[must_use]
    pub fn kinds(&self) -> &[WatchedKind] {
        &self.shared.kinds
    }

    /// Returns the inventory; `None` if the cluster does not answer, or not all objects were listed yet. A kind that is
    /// not essential and cannot be watched is in [`ClusterInventory::blind`].
    #[must_use]
    pub fn inventory(&self) -> Option<Arc<ClusterInventory>> {
        let state = self.shared.state.lock();
        state.is_ready().then(|| state.cache.inventory())
    }

    /// Whether there is an inventory.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.shared.state.lock().is_ready()
    }

    /// Probes the cluster after a request got no answer. If the probe gets none either, the cluster counts as
    /// unreachable until it answers. A watch alone would notice a hung server only after minutes of silence.
    pub fn suspect(&self) {
        self.shared.doubt.notify_one();
    }

    /// Waits until there is an inventory.
    pub async fn wait_until_ready(&self, timeout: Duration) -> Result<(), WatchError> {
        let mut ready = self.shared.ready.subscribe();
        // The sender lives as long as `self`.
        if let Ok(Ok(_)) = tokio::time::timeout(timeout, ready.wait_for(|ready| *ready)).await {
            return Ok(());
        }
        let health = self.health();
        let why = health.error.unwrap_or_else(|| format!("waiting for {}", health.waiting_for.join(", ")));
        Err(WatchError::NotReady { cluster: self.shared.cluster.clone(), waited: timeout, why })
    }

    /// Returns the health of the watches.
    #[must_use]
    pub fn health(&self) -> ClusterHealth {
        let state = self.shared.state.lock();
        let waiting = self.shared.kinds.iter().zip(&state.kinds).filter(|(_, state)| !state.listed);
        ClusterHealth {
            ready: state.is_ready(),
            waiting_for: waiting.map(|(watched, _)| watched.kind.to_string()).collect(),
            error: self.shared.errors(&state, true).next(),
            blind: self.shared.errors(&state, false).next(),
            objects: state.cache.inventory().objects.len(),
        }
    }

    /// Records that an object which somebody had changed or deleted was applied again.
    pub fn repaired(&self, key: &ObjectKey, now: Timestamp) {
        self.shared.state.lock().cache.repaired(key, now);
    }

    /// Forgets all repairs, so that no further one waits.
    pub fn forget_repairs(&self) {
        self.shared.state.lock().cache.forget_repairs();
    }

    /// Announces a write of Bursar. The result must be held until the write has ended.
    #[must_use]
    pub fn write<'a>(&'a self, key: &'a ObjectKey) -> Writing<'a> {
        self.shared.state.lock().cache.write_begins(key);
        Writing { shared: &self.shared, key }
    }
}

/// A write in progress. Meanwhile, what the watch reports of the object counts as our own change, unless the server's
/// answer differs.
#[derive(Debug)]
pub struct Writing<'a> {
    shared: &'a Shared,
    key: &'a ObjectKey,
}

impl Writing<'_> {
    /// Records the object in the server's answer, so that the next plan sees it even before the watch reports it.
    #[must_use]
    pub fn applied(self, answer: &Value) -> ObservedObject {
        let observed = observe(&self.key.kind, answer);
        self.shared.state.lock().cache.applied(self.key, &observed);
        observed
    }

    /// Records that the server accepted the deletion. `gone` is false if finalizers still hold the object.
    pub fn deleted(self, gone: bool) {
        self.shared.state.lock().cache.deleted(self.key, gone);
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        if self.shared.state.lock().cache.write_ends(self.key) {
            self.shared.changed.notify_one();
        }
    }
}

#[derive(Debug)]
struct Shared {
    cluster: ClusterName,
    kinds: Vec<WatchedKind>,
    state: Mutex<State>,
    ready: watch::Sender<bool>,
    changed: Arc<Notify>,
    /// Notified if the first kind must be probed.
    doubt: Notify,
}

#[derive(Debug)]
struct State {
    cache: Cache,
    /// In the order of `Shared::kinds`.
    kinds: Vec<KindState>,
}

#[derive(Debug, Default)]
struct KindState {
    /// See [`WatchedKind::is_essential`].
    is_essential: bool,
    /// Whether all objects of the kind were listed once.
    listed: bool,
    /// What the current list has found so far.
    list: Option<Vec<(ObjectKey, ObservedObject)>>,
    /// Why the watch does not work at present.
    error: Option<String>,
}

impl State {
    fn is_ready(&self) -> bool {
        self.kinds.iter().all(|kind| match &kind.error {
            None => kind.listed,
            Some(_) => !kind.is_essential,
        })
    }
}

impl Shared {
    fn new(cluster: ClusterName, kinds: Vec<WatchedKind>, changed: Arc<Notify>) -> Self {
        let state = |kind: &WatchedKind| KindState { is_essential: kind.is_essential(), ..KindState::default() };
        let states = kinds.iter().map(state).collect();
        let state = State { cache: Cache::new(cluster.clone()), kinds: states };
        Self {
            cluster,
            kinds,
            state: Mutex::new(state),
            ready: watch::Sender::new(false),
            changed,
            doubt: Notify::new(),
        }
    }

    /// Changes the state, and wakes those who wait for it. `change` returns whether the plan must know.
    fn update(&self, change: impl FnOnce(&mut State) -> bool) {
        let mut state = self.state.lock();
        let before = state.is_ready();
        let news = change(&mut state);
        let blind = self.blind(&state);
        let news = state.cache.blind(blind) || news;
        let after = state.is_ready();
        drop(state);
        self.ready.send_replace(after);
        // Before the first list is complete, there is no inventory to plan with.
        if before != after || (news && after) {
            self.changed.notify_one();
        }
    }

    /// Returns the kinds that cannot be watched, and without which there is an inventory nevertheless.
    fn blind(&self, state: &State) -> BTreeSet<WatchedKind> {
        let failing = self.kinds.iter().zip(&state.kinds).filter(|(_, it)| !it.is_essential && it.error.is_some());
        failing.map(|(watched, _)| watched.clone()).collect()
    }

    /// Returns the errors of the essential kinds if `essential` is set, otherwise the errors of the other kinds.
    fn errors(&self, state: &State, essential: bool) -> impl Iterator<Item = String> {
        let failing = self.kinds.iter().zip(&state.kinds).filter(move |(_, it)| it.is_essential == essential);
        failing.filter_map(move |(watched, it)| {
            let error = it.error.as_ref()?;
            Some(if essential { error.clone() } else { format!("{} cannot be watched: {error}", watched.kind) })
        })
    }

    fn event(&self, index: usize, event: Event<DynamicObject>) {
        let watched = &self.kinds[index];
        match event {
            Event::Init => self.update(|state| {
                state.kinds[index].list = Some(Vec::new());
                state.cache.list_begins(watched);
                false
            }),
            Event::InitApply(object) => {
                let Some(found) = self.observed(watched, object) else { return };
                if let Some(list) = &mut self.state.lock().kinds[index].list {
                    list.push(found);
                }
            }
            Event::InitDone => self.update(|state| {
                let kind = &mut state.kinds[index];
                kind.listed = true;
                kind.error = None;
                let found = kind.list.take();
                found.is_some_and(|found| state.cache.listed(watched, found))
            }),
            Event::Apply(object) => {
                let Some((key, object)) = self.observed(watched, object) else { return };
                self.update(|state| {
                    state.kinds[index].error = None;
                    state.cache.seen(&key, object)
                });
            }
            Event::Delete(object) => {
                let Some((key, object)) = self.observed(watched, object) else { return };
                self.update(|state| {
                    state.kinds[index].error = None;
                    state.cache.gone(&key, &object.uid)
                });
            }
        }
    }

    fn observed(&self, watched: &WatchedKind, object: DynamicObject) -> Option<(ObjectKey, ObservedObject)> {
        let key = ObjectKey::new(
            &self.cluster,
            watched.kind.clone(),
            object.metadata.namespace.as_deref(),
            object.metadata.name.as_deref()?,
        );
        // What was read as JSON can be written as JSON.
        let value = serde_json::to_value(object).ok()?;
        Some((key, observe(&watched.kind, &value)))
    }

    fn failed(&self, index: usize, why: String) {
        self.update(|state| {
            state.kinds[index].error = Some(why);
            false
        });
    }

    /// Records that the kind answers again. Before the first list, only a complete list proves that.
    fn works(&self, index: usize) {
        self.update(|state| {
            let kind = &mut state.kinds[index];
            if kind.listed {
                kind.error = None;
            }
            false
        });
    }

    /// Probes the kind. If there is no answer in time, an essential kind makes the cluster unreachable, and another
    /// kind becomes unknown.
    async fn probed(&self, index: usize, api: &Api<DynamicObject>, probe: &ListParams) {
        match tokio::time::timeout(ANSWERS_WITHIN, api.list_metadata(probe)).await {
            Ok(Ok(_)) => self.works(index),
            Ok(Err(error)) => self.failed(index, explain(&self.cluster, &error, &error)),
            Err(_) => {
                self.failed(index, format!("cluster {} does not answer; it is retried automatically", self.cluster));
            }
        }
    }

    /// Records that the cluster does not have the kind, and so no object of it.
    fn absent_kind(&self, index: usize) {
        let watched = &self.kinds[index];
        self.update(|state| {
            let kind = &mut state.kinds[index];
            kind.listed = true;
            kind.error = None;
            kind.list = None;
            state.cache.list_begins(watched);
            state.cache.listed(watched, Vec::new())
        });
    }

    /// Records that the first list takes long, so that nothing waits for a kind that is not essential.
    fn is_late(&self, index: usize) {
        self.update(|state| {
            let kind = &mut state.kinds[index];
            if !kind.listed && kind.error.is_none() {
                kind.error = Some("its objects were not listed yet".to_owned());
            }
            false
        });
    }

    fn is_failing(&self, index: usize) -> bool {
        self.state.lock().kinds[index].error.is_some()
    }
}
