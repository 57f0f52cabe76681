//! ConfigMap `bursar-mark`: the highest generation in use in a cluster, and which process of the owning ledger runs.
//!
//! A ledger that was restored from a snapshot sees in the mark that it is behind. A copy that is not behind has the
//! same id, so a process asks before it runs: it writes a claim, which the running process sees and refuses. This file
//! reads the mark, and its [`MarkKeeper`] raises the mark before a binding in the cluster names a higher generation.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::roles::{MARK, NAMESPACE, labels};
use super::{AccessError, answered};
use crate::contract::mark::{LEDGER, Mark};
use crate::contract::{self, CLASS, MANAGED_BY, MANAGER, Sealer};
use crate::errors::chain;
use crate::identity::{ClusterName, NamespaceName, Uid};
use crate::ledger::LedgerState;
use crate::ledger::workspace_uid::highest;
use crate::policy::Policy;

/// The key of the process that runs.
const HOLDER: &str = "holder";
/// The key of the process that asks whether it may run.
const CLAIM: &str = "claim";
/// The key of the claim that was refused last.
const REFUSED: &str = "refused";

/// How long a claim waits for a refusal.
const CLAIM_WAITS: Duration = Duration::from_secs(10);
/// The interval between two reads while a claim waits.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// A `resourceVersion` that no object has. An apply with it creates the object, or fails with 409 if the object exists.
const NO_OBJECT: &str = "1";

/// The mark that a cluster has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Found {
    /// The daemon may not read the mark, because an older `init` did not give it the right.
    Hidden,
    /// There is no mark.
    #[default]
    Absent,
    /// The mark belongs to another ledger or was edited, so it proves nothing.
    Unproven {
        /// The ledger that the mark names.
        ledger: String,
    },
    /// The mark of this ledger.
    Own(Own),
}

/// A mark that this ledger signed with the seal's key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Own {
    /// The highest generation in use.
    pub generation: u64,
    uids: BTreeSet<Uid>,
    holder: Option<String>,
    claim: Option<String>,
    refused: Option<String>,
}

/// The ledger and the process whose mark is read and written.
#[derive(Debug, Clone)]
pub struct MarkOwner {
    pub cluster: ClusterName,
    pub ledger_id: String,
    /// The key that signs the mark.
    pub sealer: Arc<Sealer>,
    /// An id of the process that no other running process has.
    pub instance: String,
}

impl MarkOwner {
    fn found(&self, map: &ConfigMap) -> Found {
        let data = map.data.as_ref().unwrap_or(const { &BTreeMap::new() });
        let text = |key: &str| data.get(key).cloned();
        match Mark::verified(data, &self.cluster, &[self.sealer.public_key()]) {
            Some(Mark { ledger, generation, uids }) if ledger == self.ledger_id => {
                Found::Own(Own { generation, uids, holder: text(HOLDER), claim: text(CLAIM), refused: text(REFUSED) })
            }
            _ => Found::Unproven { ledger: text(LEDGER).unwrap_or_default() },
        }
    }

    /// Reads the mark.
    pub async fn read(&self, client: &Client) -> Result<Found, AccessError> {
        match answered("ConfigMap bursar-mark", maps(client).get_opt(MARK)).await {
            Ok(found) => Ok(found.map_or(Found::Absent, |map| self.found(&map))),
            Err(AccessError::Api { source, .. }) if is_code(&source, 403) => Ok(Found::Hidden),
            Err(error) => Err(error),
        }
    }

    /// Returns the highest generation above `last` that a sealed namespace proves. Only seals that claim a higher
    /// generation are verified.
    pub async fn sealed_beyond(&self, client: &Client, last: u64) -> Result<Option<u64>, AccessError> {
        let ours = ListParams::default().labels(&format!("{MANAGED_BY}={MANAGER},{CLASS}"));
        let namespaces = Api::<Namespace>::all(client.clone());
        let namespaces = answered("namespaces", namespaces.list_metadata(&ours)).await?;
        let keys = [self.sealer.public_key()];
        let beyond = namespaces.iter().filter_map(|namespace| {
            contract::says_generation(namespace.annotations()).filter(|generation| *generation > last)?;
            let name = NamespaceName::try_from(namespace.name_any()).ok()?;
            let (labels, annotations) = (namespace.labels(), namespace.annotations());
            let identity = contract::identity_of(&self.cluster, &name, labels, annotations, &keys).ok()?;
            Some(identity.generation)
        });
        Ok(beyond.max())
    }
}

/// The generations and uids that a ledger has assigned.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reserved {
    /// The highest generation.
    pub generation: u64,
    /// [`crate::ledger::workspace_uid::highest`].
    pub uids: BTreeSet<Uid>,
}

impl Reserved {
    /// Returns what `ledger` has assigned.
    #[must_use]
    pub fn of(ledger: &LedgerState, policy: &Policy) -> Self {
        Self { generation: ledger.last_generation, uids: highest(ledger, policy) }
    }
}

/// Maintains the mark of one connected cluster.
pub struct MarkKeeper {
    owner: MarkOwner,
    client: Client,
    api: Api<ConfigMap>,
    found: Mutex<Found>,
    /// The values to which the mark is raised. They cover all accounts known so far, so that many accounts need one
    /// write.
    reserved: Mutex<Reserved>,
    writing: tokio::sync::Mutex<()>,
    lost: AtomicBool,
}

impl std::fmt::Debug for MarkKeeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MarkKeeper").field("owner", &self.owner).field("found", &self.found).finish_non_exhaustive()
    }
}

/// The answer to the question whether another process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// This process runs, or the cluster cannot tell.
    Held,
    /// No process refused; [`MarkKeeper::take_over`] may follow.
    Free,
    /// Another process runs.
    Refused,
}

impl MarkKeeper {
    /// Starts with the mark `found`, for a ledger that has assigned `last`.
    #[must_use]
    pub fn new(client: &Client, owner: MarkOwner, found: Found, last: Reserved) -> Arc<Self> {
        Arc::new(Self {
            owner,
            client: client.clone(),
            api: maps(client),
            found: Mutex::new(found),
            reserved: Mutex::new(last),
            writing: tokio::sync::Mutex::default(),
            lost: AtomicBool::new(false),
        })
    }

    /// Returns the public key of the seal.
    #[must_use]
    pub fn public_key(&self) -> [u8; 32] {
        self.owner.sealer.public_key()
    }

    fn found(&self) -> MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reserved(&self) -> MutexGuard<'_, Reserved> {
        self.reserved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, map: &ConfigMap) -> Found {
        let found = self.owner.found(map);
        self.found().clone_from(&found);
        found
    }

    /// Whether another process of the same ledger has taken over.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// Whether the mark contains all uids. A mark that cannot be read counts as complete.
    fn has_uids(&self) -> bool {
        match &*self.found() {
            Found::Own(own) => {
                let reserved = self.reserved();
                reserved.uids.is_empty() || own.uids == reserved.uids
            }
            Found::Absent | Found::Unproven { .. } | Found::Hidden => true,
        }
    }

    /// Whether bindings may name `generation` without another write.
    #[must_use]
    pub fn covers(&self, generation: u64) -> bool {
        match &*self.found() {
            Found::Own(own) => own.generation >= generation,
            Found::Absent => false,
            // Editing the mark must not stop the daemon. The mark of a former owner is replaced.
            Found::Unproven { ledger } => *ledger == self.owner.ledger_id,
            Found::Hidden => true,
        }
    }

    /// Raises the mark to at least `generation`.
    ///
    /// # Errors
    /// The mark was not raised, so no binding may name the generation.
    pub async fn raise(&self, generation: u64) -> Result<(), AccessError> {
        if self.covers(generation) && self.has_uids() {
            return Ok(());
        }
        let _writing = self.writing.lock().await;
        if self.covers(generation) && self.has_uids() {
            return Ok(());
        }
        let generation = generation.max(self.reserved().generation);
        let absent = *self.found() == Found::Absent;
        let written = if absent { self.create(generation).await } else { self.merge(self.signed(generation)).await };
        match written {
            Ok(()) => Ok(()),
            // The mark was created or removed in between, so it is read again.
            Err(AccessError::Api { source, .. }) if is_code(&source, 404) || is_code(&source, 409) => {
                let found = self.read().await?;
                match found {
                    Found::Absent => self.create(generation).await,
                    _ if self.covers(generation) => Ok(()),
                    _ => self.merge(self.signed(generation)).await,
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Notes what the ledger has assigned. If the mark is lower, raises it in the background.
    #[must_use]
    pub fn reserve(self: &Arc<Self>, reserved: &Reserved) -> Option<AbortOnDropHandle<()>> {
        let last = {
            let mut known = self.reserved();
            known.generation = known.generation.max(reserved.generation);
            known.uids.clone_from(&reserved.uids);
            known.generation
        };
        if self.covers(last) && self.has_uids() {
            return None;
        }
        let keeper = Arc::clone(self);
        Some(AbortOnDropHandle::new(tokio::spawn(async move {
            if let Err(error) = keeper.raise(last).await {
                let (cluster, error) = (&keeper.owner.cluster, chain(&error));
                tracing::warn!(%cluster, error, "the mark of the generations in use is not raised");
            }
        })))
    }

    /// Asks whether another process runs. An existing holder is not replaced.
    pub async fn claim(&self) -> Result<Claim, AccessError> {
        let me = &self.owner.instance;
        let (found, last) = (self.found().clone(), self.reserved().generation);
        let holder = match found {
            Found::Hidden | Found::Unproven { .. } => return Ok(Claim::Held),
            Found::Own(own) => own.holder,
            Found::Absent => match self.create(last).await {
                Ok(()) => return Ok(Claim::Held),
                Err(AccessError::Api { source, .. }) if is_code(&source, 409) => match self.read().await? {
                    Found::Own(own) => own.holder,
                    _ => return Ok(Claim::Held),
                },
                Err(error) => return Err(error),
            },
        };
        match holder {
            Some(holder) if holder == *me => Ok(Claim::Held),
            None => Ok(Claim::Free),
            Some(holder) => self.claim_from(&holder).await,
        }
    }

    /// Makes this process the holder, after a [`Claim::Free`].
    pub async fn take_over(&self) -> Result<(), AccessError> {
        self.merge(json!({HOLDER: self.owner.instance, CLAIM: null, REFUSED: null})).await
    }

    #[expect(clippy::disallowed_methods, reason = "waits for a refusal, with a deadline")]
    async fn claim_from(&self, holder: &str) -> Result<Claim, AccessError> {
        let me = &self.owner.instance;
        let cluster = &self.owner.cluster;
        tracing::info!(%cluster, "this ledger ran elsewhere, or before a reboot: asking whether it still does");
        self.merge(json!({CLAIM: me, REFUSED: null})).await?;
        let begun = tokio::time::Instant::now();
        while begun.elapsed() < CLAIM_WAITS {
            tokio::time::sleep(LOOK_EVERY).await;
            let Found::Own(own) = self.read().await? else { return Ok(Claim::Held) };
            let mine = own.claim.as_deref() == Some(me) && own.holder.as_deref() == Some(holder);
            if !mine || own.refused.as_deref() == Some(me) {
                return Ok(Claim::Refused);
            }
        }
        Ok(Claim::Free)
    }

    /// Watches the mark until the handle is dropped. Refuses claims, and stops the daemon if another process has taken
    /// over.
    #[must_use]
    pub fn watch(self: &Arc<Self>, stop: CancellationToken, changed: Arc<Notify>) -> Option<AbortOnDropHandle<()>> {
        if *self.found() == Found::Hidden {
            return None;
        }
        let keeper = Arc::clone(self);
        let config = watcher::Config::default().fields(&format!("metadata.name={MARK}"));
        Some(AbortOnDropHandle::new(tokio::spawn(async move {
            let mut events = std::pin::pin!(watcher(keeper.api.clone(), config).default_backoff());
            while let Some(event) = events.next().await {
                match event {
                    Ok(Event::Apply(map) | Event::InitApply(map)) => keeper.heard(&map, &stop, &changed).await,
                    Ok(Event::Delete(_)) => {
                        *keeper.found() = Found::Absent;
                        changed.notify_one();
                    }
                    Ok(Event::Init | Event::InitDone) | Err(_) => {}
                }
            }
        })))
    }

    async fn heard(&self, map: &ConfigMap, stop: &CancellationToken, changed: &Notify) {
        let Found::Own(own) = self.take(map) else { return };
        let me = &self.owner.instance;
        if own.holder.as_deref().is_some_and(|holder| holder != me) {
            self.lost.store(true, Ordering::Relaxed);
            stop.cancel();
            changed.notify_one();
        } else if let Some(claim) = own.claim.filter(|claim| claim != me)
            && own.refused.as_deref() != Some(&*claim)
        {
            let cluster = &self.owner.cluster;
            tracing::warn!(%cluster, "a copy of this ledger asked to run in this one's place, and was refused");
            if let Err(error) = self.merge(json!({REFUSED: claim})).await {
                tracing::error!(%cluster, error = chain(&error), "the copy of this ledger was not refused");
            }
        }
    }

    async fn read(&self) -> Result<Found, AccessError> {
        let found = self.owner.read(&self.client).await?;
        self.found().clone_from(&found);
        Ok(found)
    }

    fn signed(&self, generation: u64) -> Value {
        let mut uids = self.reserved().uids.clone();
        if let (true, Found::Own(own)) = (uids.is_empty(), &*self.found()) {
            // No class has a range of uids now, but the mark keeps the uids for classes that may get one.
            uids.clone_from(&own.uids);
        }
        let mark = Mark { ledger: self.owner.ledger_id.clone(), generation, uids };
        let mut data = json!(mark.signed(&self.owner.cluster, &self.owner.sealer));
        data[HOLDER] = json!(self.owner.instance);
        data
    }

    async fn create(&self, generation: u64) -> Result<(), AccessError> {
        let manifest = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": MARK, "namespace": NAMESPACE, "labels": labels(), "resourceVersion": NO_OBJECT},
            "data": self.signed(generation),
        });
        self.patch(&PatchParams::apply(MANAGER).force(), &Patch::Apply(manifest)).await
    }

    async fn merge(&self, data: Value) -> Result<(), AccessError> {
        let parameters = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        self.patch(&parameters, &Patch::Merge(json!({"data": data}))).await
    }

    async fn patch(&self, parameters: &PatchParams, patch: &Patch<Value>) -> Result<(), AccessError> {
        let written = answered("ConfigMap bursar-mark", self.api.patch(MARK, parameters, patch)).await?;
        self.take(&written);
        Ok(())
    }
}

/// For a ledger that is rebuilt: returns what a mark proves that was signed with one of these keys, whatever ledger it
/// names. The inner `Err` says why the mark is not trusted.
pub(super) async fn proven(
    client: &Client,
    cluster: &ClusterName,
    public_keys: &[[u8; 32]],
) -> Result<Result<Reserved, String>, AccessError> {
    let Some(map) = answered("ConfigMap bursar-mark", maps(client).get_opt(MARK)).await? else {
        return Ok(Ok(Reserved::default()));
    };
    let proven = Mark::verified(&map.data.unwrap_or_default(), cluster, public_keys);
    Ok(proven
        .map(|Mark { ledger: _, generation, uids }| Reserved { generation, uids })
        .ok_or_else(|| format!("ConfigMap {MARK} in {cluster} is not signed by this key")))
}

/// As the administrator, removes a mark that is not this ledger's own. Returns whether there was one.
pub(super) async fn remove_unproven(
    client: &Client,
    cluster: &ClusterName,
    ledger_id: &str,
    public_key: [u8; 32],
) -> Result<bool, AccessError> {
    let api = maps(client);
    let Some(map) = answered("ConfigMap bursar-mark", api.get_opt(MARK)).await? else { return Ok(false) };
    let mark = map.data.and_then(|data| Mark::verified(&data, cluster, &[public_key]));
    if mark.is_some_and(|mark| mark.ledger == ledger_id) {
        return Ok(false);
    }
    match answered("ConfigMap bursar-mark", api.delete(MARK, &DeleteParams::default())).await {
        Err(AccessError::Api { source, .. }) if is_code(&source, 404) => Ok(false),
        deleted => deleted.map(|_| true),
    }
}

fn maps(client: &Client) -> Api<ConfigMap> {
    Api::namespaced(client.clone(), NAMESPACE)
}

fn is_code(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}
