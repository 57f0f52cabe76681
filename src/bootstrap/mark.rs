//! ConfigMap `bursar-mark`: the highest generation in use in a cluster, and which process of the owning ledger runs.
//!
//! A ledger that was restored from a snapshot learns from the mark that it is out of date. A copy that is up to date
//! has the same id, so a process asks before it runs: it writes a claim, which a running process sees and refuses. This
//! file reads the mark, and its [`MarkKeeper`] raises the mark before a binding in the cluster names a higher
//! generation.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::runtime::watcher::{self, Event};
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
use crate::observed::listing_again;
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
/// How long an execution waits for the mark that it reads first.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(5);
/// How often a write is tried if somebody else writes the mark at the same time.
const WRITES: usize = 3;
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
        /// Its `resourceVersion`.
        version: String,
    },
    /// The mark of this ledger.
    Own(Own),
}

/// A mark that this ledger signed with the seal's key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Own {
    /// The highest generation in use.
    pub generation: u64,
    version: String,
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
        let version = map.resource_version().unwrap_or_default();
        match Mark::verified(data, &self.cluster, &[self.sealer.public_key()]) {
            Some(Mark { ledger, generation, uids }) if ledger == self.ledger_id => {
                let (holder, claim, refused) = (text(HOLDER), text(CLAIM), text(REFUSED));
                Found::Own(Own { generation, version, uids, holder, claim, refused })
            }
            _ => Found::Unproven { ledger: text(LEDGER).unwrap_or_default(), version },
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

/// The generations that this process may find in one cluster. It lives longer than a connection.
///
/// Nobody else writes the mark. If the mark is higher than these generations, a process that knew more wrote it: the
/// ledger was rolled back before this process opened it, or the process itself was rolled back with the memory of its
/// virtual machine. The ledger's current generation cannot show this, because new accounts and orders raise it.
#[derive(Debug)]
pub struct KnownGenerations {
    known: Mutex<Known>,
    stop: CancellationToken,
    changed: Arc<Notify>,
}

#[derive(Debug)]
struct Known {
    /// The highest generation that this process wrote to the mark, or that the ledger may have written before.
    marked: u64,
    /// Higher generations that this process sent to the mark. They may have been written even if no answer came.
    sent: BTreeSet<u64>,
    /// The highest generation that seals may name.
    sealed: u64,
    /// A higher generation in the mark.
    beyond: Option<u64>,
}

impl KnownGenerations {
    /// Starts with the highest generation that the ledger may have written to the mark. A higher mark cancels `stop`.
    #[must_use]
    pub fn new(marked: u64, stop: CancellationToken, changed: Arc<Notify>) -> Self {
        let known = Known { marked, sent: BTreeSet::new(), sealed: marked, beyond: None };
        Self { known: Mutex::new(known), stop, changed }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the highest of the generations found in the mark and in seals, if one of them proves a rollback.
    #[must_use]
    pub fn exceeded(&self, marked: Option<u64>, sealed: Option<u64>) -> Option<u64> {
        let known = self.lock();
        let marked = marked.filter(|generation| !known.explains(*generation));
        known.beyond.max(marked).max(sealed.filter(|generation| *generation > known.sealed))
    }

    /// Returns the generation in the mark that proves a rollback, if one was found while the cluster was connected.
    #[must_use]
    pub fn beyond(&self) -> Option<u64> {
        self.lock().beyond
    }

    /// Returns the highest generation that seals may name.
    #[must_use]
    pub fn sealed(&self) -> u64 {
        self.lock().sealed
    }

    fn may_seal(&self, generation: u64) {
        let mut known = self.lock();
        known.sealed = known.sealed.max(generation);
    }

    /// A generation is sent to the mark. Returns whether it was never sent before.
    fn sends(&self, generation: u64) -> bool {
        let mut known = self.lock();
        generation > known.marked && known.sent.insert(generation)
    }

    fn was_not_written(&self, generation: u64) {
        self.lock().sent.remove(&generation);
    }

    /// The mark has this generation.
    fn hear(&self, generation: u64) {
        let mut known = self.lock();
        if known.explains(generation) {
            known.marked = known.marked.max(generation);
            let marked = known.marked;
            known.sent.retain(|sent| *sent > marked);
        } else {
            known.beyond = known.beyond.max(Some(generation));
            drop(known);
            self.stop.cancel();
            self.changed.notify_one();
        }
    }
}

impl Known {
    fn explains(&self, generation: u64) -> bool {
        generation <= self.marked || self.sent.contains(&generation)
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
    generations: Arc<KnownGenerations>,
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
    pub fn new(
        client: &Client,
        owner: MarkOwner,
        found: Found,
        last: Reserved,
        generations: Arc<KnownGenerations>,
    ) -> Arc<Self> {
        Arc::new(Self {
            owner,
            client: client.clone(),
            api: maps(client),
            found: Mutex::new(found),
            reserved: Mutex::new(last),
            generations,
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

    fn take(&self, found: Found) -> Found {
        if let Found::Own(own) = &found {
            self.generations.hear(own.generation);
        }
        // An API server that just started, or a role that is being replaced, may refuse one read. What is known stays.
        if found != Found::Hidden {
            self.found().clone_from(&found);
        }
        found
    }

    /// Whether the mark proves that this process is older than the cluster.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.generations.beyond().is_some()
    }

    /// Reads the mark, and returns whether anything may be written in the cluster. The watch alone cannot tell: if this
    /// process was rolled back with its memory, its connections are broken, and it hears of the mark only later. If the
    /// mark cannot be read, only the watch can tell; usually the next requests then fail too.
    pub async fn confirm(&self) -> bool {
        if *self.found() != Found::Hidden {
            let _ = tokio::time::timeout(CONFIRMED_WITHIN, self.read()).await;
        }
        !self.is_behind()
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
        if self.is_behind() {
            return false;
        }
        match &*self.found() {
            Found::Own(own) => own.generation >= generation,
            Found::Absent => false,
            // Editing the mark must not stop the daemon. The mark of a former owner is replaced.
            Found::Unproven { ledger, .. } => *ledger == self.owner.ledger_id,
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
        for _ in 0..WRITES {
            if self.is_behind() {
                return Err(AccessError::Behind);
            }
            if self.covers(generation) && self.has_uids() {
                return Ok(());
            }
            let generation = generation.max(self.reserved().generation);
            match self.write(generation).await {
                // The mark was created, changed or removed in between, so it is read again.
                Err(error) if error.is_conflict() => drop(self.read().await?),
                written => return written,
            }
        }
        Err(AccessError::Contended)
    }

    /// Writes the mark if it is still the known one.
    async fn write(&self, generation: u64) -> Result<(), AccessError> {
        let found = self.found().clone();
        let is_first = self.generations.sends(generation);
        let written = match found {
            Found::Own(Own { version, .. }) | Found::Unproven { version, .. } => {
                let change = json!({"metadata": {"resourceVersion": version}, "data": self.signed(generation)});
                self.patch(&by_us(), &Patch::Merge(change)).await
            }
            Found::Absent | Found::Hidden => self.create(generation).await,
        };
        if is_first && written.as_ref().is_err_and(AccessError::is_conflict) {
            self.generations.was_not_written(generation);
        }
        written
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
        self.generations.may_seal(last);
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
            Found::Absent => match self.write(last).await {
                Ok(()) => return Ok(Claim::Held),
                Err(error) if error.is_conflict() => match self.read().await? {
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
            let mut events = std::pin::pin!(listing_again(keeper.api.clone(), config));
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
        let Found::Own(own) = self.take(self.owner.found(map)) else { return };
        let me = &self.owner.instance;
        if own.holder.as_deref().is_some_and(|holder| holder != me) {
            self.lost.store(true, Ordering::Relaxed);
            stop.cancel();
            changed.notify_one();
        } else if !self.is_behind()
            && let Some(claim) = own.claim.filter(|claim| claim != me)
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
        Ok(self.take(self.owner.read(&self.client).await?))
    }

    fn signed(&self, generation: u64) -> Value {
        let mut uids = self.reserved().uids.clone();
        if let (true, Found::Own(own)) = (uids.is_empty(), &*self.found()) {
            // No class has a range of uids now. The mark keeps its uids, because a class may get a range later.
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
        self.patch(&by_us(), &Patch::Merge(json!({"data": data}))).await
    }

    async fn patch(&self, parameters: &PatchParams, patch: &Patch<Value>) -> Result<(), AccessError> {
        let written = answered("ConfigMap bursar-mark", self.api.patch(MARK, parameters, patch)).await?;
        self.take(self.owner.found(&written));
        Ok(())
    }
}

/// Returns what the cluster's mark proves to a ledger that is being rebuilt. The mark must be signed with one of these
/// keys, but may name any ledger. The inner `Err` says why the mark is not trusted.
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

fn by_us() -> PatchParams {
    PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() }
}

fn maps(client: &Client) -> Api<ConfigMap> {
    Api::namespaced(client.clone(), NAMESPACE)
}

fn is_code(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: &str = "this process";

    fn owner() -> MarkOwner {
        let sealer = Sealer::from_seed(&[7; 32]).expect("32 bytes are a seed");
        let (ledger_id, instance) = ("a1".to_owned(), ME.to_owned());
        MarkOwner { cluster: ClusterName("prod".to_owned()), ledger_id, sealer: Arc::new(sealer), instance }
    }

    fn map(generation: u64) -> ConfigMap {
        let owner = owner();
        let mark = Mark { ledger: owner.ledger_id, generation, uids: BTreeSet::new() };
        let mut data = mark.signed(&owner.cluster, &owner.sealer);
        data.insert(HOLDER.to_owned(), ME.to_owned());
        ConfigMap { data: Some(data), ..ConfigMap::default() }
    }

    fn generations(opened: u64) -> (Arc<KnownGenerations>, CancellationToken) {
        let stop = CancellationToken::new();
        (Arc::new(KnownGenerations::new(opened, stop.clone(), Arc::default())), stop)
    }

    /// A snapshot of a virtual machine restored the process with its memory.
    #[tokio::test]
    async fn a_running_process_stops_when_the_mark_is_higher_than_what_it_wrote() {
        let (generations, stop) = generations(90);
        let config = kube::Config::new(http::Uri::from_static("https://127.0.0.1:9"));
        let client = Client::try_from(config).expect("the configuration is valid");
        let found = owner().found(&map(90));
        // Meanwhile the rolled-back ledger has assigned generations above the mark.
        let reserved = Reserved { generation: 110, ..Reserved::default() };
        let keeper = MarkKeeper::new(&client, owner(), found, reserved, generations);
        assert!(keeper.covers(90));
        keeper.heard(&map(90), &CancellationToken::new(), &Notify::new()).await;
        assert!(!keeper.is_behind() && !stop.is_cancelled());
        keeper.heard(&map(103), &CancellationToken::new(), &Notify::new()).await;
        assert!(keeper.is_behind() && stop.is_cancelled());
        assert!(!keeper.covers(90), "no binding is written any more");
        assert!(matches!(keeper.raise(90).await, Err(AccessError::Behind)));
        assert!(!keeper.confirm().await, "although the cluster does not answer");
    }

    #[tokio::test]
    async fn a_mark_that_was_readable_stays_known_if_one_read_is_refused() {
        let (generations, _) = generations(90);
        let config = kube::Config::new(http::Uri::from_static("https://127.0.0.1:9"));
        let client = Client::try_from(config).expect("a client");
        let keeper = MarkKeeper::new(&client, owner(), owner().found(&map(90)), Reserved::default(), generations);
        keeper.take(Found::Hidden);
        assert!(keeper.covers(90) && !keeper.covers(91));
    }

    #[test]
    fn a_generation_that_was_sent_without_an_answer_is_our_own() {
        let (generations, stop) = generations(90);
        assert!(generations.sends(95));
        assert!(!generations.sends(95) && !generations.sends(90));
        generations.hear(95);
        generations.hear(92);
        assert_eq!((generations.beyond(), stop.is_cancelled()), (None, false));
        // This one was refused with a conflict, so somebody else wrote it.
        assert!(generations.sends(96));
        generations.was_not_written(96);
        generations.hear(96);
        assert_eq!((generations.beyond(), stop.is_cancelled()), (Some(96), true));
    }

    /// While the cluster was away, the ledger caught up with the mark.
    #[test]
    fn a_mark_is_compared_with_the_ledger_as_it_was_opened() {
        let (generations, _) = generations(100);
        assert_eq!(generations.exceeded(Some(100), Some(100)), None);
        assert_eq!(generations.exceeded(Some(106), None), Some(106));
        assert_eq!(generations.exceeded(None, Some(104)), Some(104));
        // What this process reserves while the cluster is connected may be in seals, but not in the mark before it is
        // sent.
        generations.may_seal(106);
        assert_eq!(generations.exceeded(Some(106), Some(106)), Some(106));
        generations.sends(106);
        assert_eq!(generations.exceeded(Some(106), Some(106)), None);
    }
}
