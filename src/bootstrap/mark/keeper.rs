//! Maintains the mark of one connected cluster: raises it, claims it for this process, and refuses the claims of other
//! processes with the same ledger.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bursar_watch::listing_again;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::generations::{KnownGenerations, Reserved};
use super::{CLAIM, FoundMark, HOLDER, MarkOwner, Own, REFUSED, maps};
use crate::bootstrap::roles::{MARK, NAMESPACE, labels};
use crate::bootstrap::{AccessError, answered};
use crate::contract::MANAGER;
use crate::contract::mark::Mark;
use crate::errors::chain;

/// How long a claim waits for a refusal.
const CLAIM_WAITS: Duration = Duration::from_secs(10);
/// The interval between two reads while a claim waits.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How long an execution waits for its read of the mark, which precedes every write.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(5);
/// The pause between two reads while the watch is broken. [`CLAIM_WAITS`] is longer than this pause plus a read, so
/// this process refuses a claim in time once the cluster answers again. The watch's own pause may be longer.
const LOOK_WHILE_BROKEN: Duration = Duration::from_secs(2);
/// How many times a write is tried if another client writes the mark at the same time.
const WRITES: usize = 3;
/// How long a step that takes access away waits for a raised mark. If the mark's write hangs, such steps of other accounts
/// must not wait for it one after the other.
const RAISED_WITHIN: Duration = Duration::from_secs(10);
/// A `resourceVersion` that no object has. An apply with it creates the object, or fails with 409 if the object exists.
const NO_OBJECT: &str = "1";

/// Maintains the mark of one connected cluster.
pub struct MarkKeeper {
    owner: MarkOwner,
    client: Client,
    api: Api<ConfigMap>,
    found: Mutex<FoundMark>,
    /// The values to which the mark is raised. They cover all accounts known so far, so that many accounts need one
    /// write.
    reserved: Mutex<Reserved>,
    generations: Arc<KnownGenerations>,
    writing: tokio::sync::Mutex<()>,
    /// When [`Self::raise_soon`] last gave up.
    pub(super) late: Mutex<Option<Instant>>,
    /// This process is the holder. If the mark names another holder later, this process was replaced.
    holds: AtomicBool,
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
    /// This process is the holder, or the mark cannot name a holder.
    Held,
    /// No process refused the claim; [`MarkKeeper::take_over`] may follow.
    Free,
    /// Another process runs and refused the claim.
    Refused,
}

impl MarkKeeper {
    /// Creates the keeper of the mark `found`, for a ledger that has assigned `last`.
    #[must_use]
    pub fn new(
        client: &Client,
        owner: MarkOwner,
        found: FoundMark,
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
            late: Mutex::default(),
            holds: AtomicBool::new(false),
            lost: AtomicBool::new(false),
        })
    }

    /// Returns the public key of the seal.
    #[must_use]
    pub fn public_key(&self) -> [u8; 32] {
        self.owner.sealer.public_key()
    }

    pub(super) fn take(&self, found: FoundMark) -> FoundMark {
        if let FoundMark::Own(own) = &found {
            self.generations.hear(own.generation);
            let is_held = own.holder.as_deref().is_none_or(|holder| holder == self.owner.instance);
            if self.holds.load(Ordering::Relaxed) && !is_held {
                self.lost.store(true, Ordering::Relaxed);
                self.generations.stop();
            }
        }
        // While the API server starts or a role is replaced, a read may be refused. Then the known mark is kept.
        if found != FoundMark::Hidden {
            self.found.lock().clone_from(&found);
        }
        found
    }

    /// Whether the mark proves that the cluster has seen a later state of the ledger than this process knows.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.generations.beyond().is_some()
    }

    /// Reads the mark, and returns whether anything may be written in the cluster. The watch alone is not enough: if
    /// this process was rolled back with its memory, or the cluster was unreachable, the watch is broken and reports
    /// the mark only later. If this read fails, the last known mark decides; usually the next requests then fail too.
    pub async fn confirm(&self) -> bool {
        if *self.found.lock() != FoundMark::Hidden {
            self.look().await;
        }
        self.may_write()
    }

    /// Whether the ledger was not rolled back and no other process has replaced this one.
    #[must_use]
    pub fn may_write(&self) -> bool {
        !self.is_behind() && !self.is_lost()
    }

    /// Whether another process of the same ledger has taken over.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// Whether the mark contains all uids. A mark that cannot be read counts as complete.
    fn has_uids(&self) -> bool {
        match &*self.found.lock() {
            FoundMark::Own(own) => {
                let reserved = self.reserved.lock();
                reserved.uids.is_empty() || own.uids == reserved.uids
            }
            FoundMark::Absent | FoundMark::Unproven { .. } | FoundMark::Hidden => true,
        }
    }

    /// Whether bindings may name `generation` without another write.
    #[must_use]
    pub fn covers(&self, generation: u64) -> bool {
        if !self.may_write() {
            return false;
        }
        match &*self.found.lock() {
            FoundMark::Own(own) => own.generation >= generation,
            FoundMark::Absent => false,
            // Editing the mark must not stop the daemon. The mark of a former owner is replaced.
            FoundMark::Unproven { ledger, .. } => *ledger == self.owner.ledger_id,
            FoundMark::Hidden => true,
        }
    }

    /// Whether the mark covers `generation`, or may have covered it before somebody deleted or replaced the mark.
    /// Bindings that name such a generation may keep it.
    #[must_use]
    pub fn has_covered(&self, generation: u64) -> bool {
        let is_gone = !matches!(*self.found.lock(), FoundMark::Own(_));
        self.covers(generation) || (is_gone && self.may_write() && generation <= self.generations.marked())
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
            // A write would make this process the holder again.
            if !self.may_write() {
                return Err(AccessError::Behind);
            }
            if self.covers(generation) && self.has_uids() {
                return Ok(());
            }
            let generation = generation.max(self.reserved.lock().generation);
            match self.write(generation).await {
                // The mark was created, changed or removed in between, so it is read again.
                Err(error) if error.is_conflict() => drop(self.read().await?),
                written => return written,
            }
        }
        Err(AccessError::Contended)
    }

    /// Like [`Self::raise`], for a step that takes access away: gives up after [`RAISED_WITHIN`]. For the same time
    /// after that, further calls fail at once.
    ///
    /// # Errors
    /// As [`Self::raise`].
    #[expect(clippy::disallowed_methods, reason = "measures how long ago a write hung")]
    pub async fn raise_soon(&self, generation: u64) -> Result<(), AccessError> {
        if self.covers(generation) && self.has_uids() {
            return Ok(());
        }
        let is_late = self.late.lock().is_some_and(|since| since.elapsed() < RAISED_WITHIN);
        if !is_late {
            if let Ok(raised) = tokio::time::timeout(RAISED_WITHIN, self.raise(generation)).await {
                return raised;
            }
            *self.late.lock() = Some(Instant::now());
        }
        Err(AccessError::NotRaised { seconds: RAISED_WITHIN.as_secs() })
    }

    /// Writes the mark if it is still the known one.
    async fn write(&self, generation: u64) -> Result<(), AccessError> {
        let found = self.found.lock().clone();
        let is_first = self.generations.sends(generation);
        let written = match found {
            FoundMark::Own(Own { version, .. }) | FoundMark::Unproven { version, .. } => {
                let change = json!({"metadata": {"resourceVersion": version}, "data": self.signed(generation)});
                self.patch(&by_us(), &Patch::Merge(change)).await
            }
            FoundMark::Absent | FoundMark::Hidden => self.create(generation).await,
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
            let mut known = self.reserved.lock();
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
                tracing::warn!(%cluster, error, "cannot raise the mark of generations; the next cycle tries again");
            }
        })))
    }

    /// Asks whether another process runs. An existing holder is not replaced.
    pub async fn claim(&self) -> Result<Claim, AccessError> {
        let claim = self.claimed().await?;
        self.holds.fetch_or(claim == Claim::Held, Ordering::Relaxed);
        Ok(claim)
    }

    async fn claimed(&self) -> Result<Claim, AccessError> {
        let me = &self.owner.instance;
        let (found, last) = (self.found.lock().clone(), self.reserved.lock().generation);
        let holder = match found {
            FoundMark::Hidden | FoundMark::Unproven { .. } => return Ok(Claim::Held),
            FoundMark::Own(own) => own.holder,
            FoundMark::Absent => match self.write(last).await {
                Ok(()) => return Ok(Claim::Held),
                Err(error) if error.is_conflict() => match self.read().await? {
                    FoundMark::Own(own) => own.holder,
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
        self.merge(json!({HOLDER: self.owner.instance, CLAIM: null, REFUSED: null})).await?;
        self.holds.store(true, Ordering::Relaxed);
        Ok(())
    }

    #[expect(clippy::disallowed_methods, reason = "waits for a refusal, with a deadline")]
    async fn claim_from(&self, holder: &str) -> Result<Claim, AccessError> {
        let me = &self.owner.instance;
        let cluster = &self.owner.cluster;
        tracing::info!(%cluster, "another process ran with this ledger before: asking whether it still runs");
        self.merge(json!({CLAIM: me, REFUSED: null})).await?;
        let begun = Instant::now();
        while begun.elapsed() < CLAIM_WAITS {
            tokio::time::sleep(LOOK_EVERY).await;
            let FoundMark::Own(own) = self.read().await? else { return Ok(Claim::Held) };
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
    pub fn watch(self: &Arc<Self>) -> Option<AbortOnDropHandle<()>> {
        if *self.found.lock() == FoundMark::Hidden {
            return None;
        }
        let keeper = Arc::clone(self);
        let config = watcher::Config::default().fields(&format!("metadata.name={MARK}"));
        Some(AbortOnDropHandle::new(tokio::spawn(async move {
            let mut events = std::pin::pin!(listing_again(keeper.api.clone(), config));
            let mut is_broken = false;
            loop {
                let event = tokio::select! {
                    event = events.next() => event,
                    () = tokio::time::sleep(LOOK_WHILE_BROKEN), if is_broken => {
                        keeper.look().await;
                        continue;
                    }
                };
                match event {
                    Some(Ok(Event::Apply(map) | Event::InitApply(map))) => keeper.heard(&map).await,
                    Some(Ok(Event::Delete(_))) => {
                        *keeper.found.lock() = FoundMark::Absent;
                        keeper.generations.notify();
                    }
                    Some(Ok(Event::Init)) => {}
                    Some(Ok(Event::InitDone)) => is_broken = false,
                    Some(Err(_)) => is_broken = true,
                    None => return,
                }
            }
        })))
    }

    pub(super) async fn heard(&self, map: &ConfigMap) {
        let found = self.take(self.owner.found(map));
        self.refuse(found).await;
    }

    /// Reads the mark, and refuses a claim in it.
    async fn look(&self) {
        let looked = async {
            if let Ok(found) = self.read().await {
                self.refuse(found).await;
            }
        };
        let _ = tokio::time::timeout(CONFIRMED_WITHIN, looked).await;
    }

    async fn refuse(&self, found: FoundMark) {
        let FoundMark::Own(own) = found else { return };
        if self.may_write()
            && let Some(claim) = own.claim.filter(|claim| *claim != self.owner.instance)
            && own.refused.as_deref() != Some(&*claim)
        {
            let cluster = &self.owner.cluster;
            tracing::warn!(%cluster, "a process with a copy of this ledger asked to run instead of this process, and was refused");
            if let Err(error) = self.merge(json!({REFUSED: claim})).await {
                tracing::error!(%cluster, error = chain(&error), "cannot refuse the process with a copy of this ledger");
            }
        }
    }

    async fn read(&self) -> Result<FoundMark, AccessError> {
        Ok(self.take(self.owner.read(&self.client).await?))
    }

    fn signed(&self, generation: u64) -> Value {
        let mut uids = self.reserved.lock().uids.clone();
        if let (true, FoundMark::Own(own)) = (uids.is_empty(), &*self.found.lock()) {
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

fn by_us() -> PatchParams {
    PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() }
}
