//! Everything a cycle works with, opened once: the ledger and its lock, the seal, the clusters, the homes. `bursard`
//! keeps one for its life, `bursar sync --once` for one cycle.

mod ask;
mod health;
mod link;
mod realm;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bursar_directory::{Memory, SourceConfig};
use bursar_homed::client::HomedClient;
use jiff::Timestamp;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

pub(crate) use self::ask::tell_repairs;
pub use self::health::back_up;
use crate::bootstrap::{Ownership, SEAL_KEY};
use crate::contract::Sealer;
use crate::control::api::{ClusterStatus, CycleReport, Failing, OrderAnswer, Status};
use crate::desired::Deriver;
use crate::errors::chain;
use crate::execute::{self, Effects};
use crate::identity::ClusterName;
use crate::inventory::Inventory;
use crate::ledger::change::Event;
use crate::orders::request::OrderRequest;
use crate::orders::{self, Written};
use crate::plan;
use crate::policy::Policy;
use crate::report;
use crate::settings::{Settings, SettingsErrors};
use crate::store::{CycleEnd, CycleLock, Store, StoreError, holding_the_wal};
use crate::telemetry::SharedMetrics;

/// How long the first listing of a cluster may take before a cycle goes on without it.
const FIRST_LISTING: Duration = Duration::from_secs(30);

/// Where the time comes from: the daemon's clock in whole seconds, which is what the ledger keeps. A parameter, for the
/// wall clock is read in `daemon.rs` and `cli` only.
pub type Clock = fn() -> Timestamp;

/// What keeps Bursar from working at all.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A password that is not there.
    #[error(transparent)]
    Settings(#[from] SettingsErrors),
    /// The ledger.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The seal's key.
    #[error("{path} cannot be used; `bursar init` makes it")]
    Seal {
        /// Where it should be.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Another ledger owns a cluster.
    #[error(
        "cluster {cluster} belongs to the ledger {owner}, and this one is {own}: \
         two would undo each other's work. If this host is to take over: bursar takeover"
    )]
    NotOwner {
        /// Which.
        cluster: ClusterName,
        /// Whose it is.
        owner: String,
        /// Who we are.
        own: String,
    },
}

/// See the module.
pub struct Engine {
    pub(crate) settings: Settings,
    pub(crate) sources: Vec<SourceConfig>,
    /// What is known of them between two cycles.
    memory: Option<Memory>,
    /// Those whose servers tell their changes.
    followers: Vec<ask::Follower>,
    told: Arc<Notify>,
    pub(crate) store: Store,
    pub(crate) lock: CycleLock,
    pub(crate) sealer: Sealer,
    pub(crate) deriver: Deriver,
    pub(crate) effects: Effects,
    pub(crate) clock: Clock,
    /// Cancelled: the cycle that runs ends after what is under way. A child of `stop`.
    pub(crate) cut: CancellationToken,
    /// That a cycle goes on.
    pub(crate) progress: Progress,
    /// Cancelled: what is under way is finished, nothing more is begun.
    stop: CancellationToken,
    metrics: SharedMetrics,
    changed: Arc<Notify>,
    soon: Arc<Notify>,
    trouble: BTreeMap<ClusterName, String>,
    links: BTreeMap<ClusterName, link::Link>,
    reaching: BTreeMap<ClusterName, link::Reaching>,
    realm: Option<Box<realm::RealmLink>>,
    last: Option<CycleReport>,
    health: health::Health,
}

/// Counts the steps of cycles, so that one that hangs can be told from one that is long.
#[derive(Debug, Clone, Default)]
pub struct Progress(Arc<AtomicU64>);

impl Progress {
    pub(crate) fn step(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// How many there were.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Engine {
    /// Opens everything. A cluster that does not answer is a state, not an error; it is asked again in each cycle.
    ///
    /// # Errors
    /// The ledger or the seal cannot be used, or another ledger owns a cluster.
    pub async fn open(settings: Settings, metrics: SharedMetrics, clock: Clock) -> Result<Self, EngineError> {
        let (store, lock) = Store::open(&settings.state_dir).await?;
        let sealer = read_seal(&settings.state_dir)?;
        let homes =
            HomedClient::new(&settings.homes.socket, settings.homes.deadline).with_prefixes(&settings.homes.prefixes);
        let archives = settings.archives();
        archives.sweep();
        let stop = CancellationToken::new();
        let sources = settings.sources()?;
        let mut engine = Self {
            health: health::Health::of(&settings.state_dir),
            realm: realm::RealmLink::of(&settings, &sources, None)?,
            sources,
            memory: Some(Memory::default()),
            followers: Vec::new(),
            told: Arc::new(Notify::new()),
            settings,
            store,
            lock,
            sealer,
            deriver: Deriver::default(),
            effects: Effects { clusters: BTreeMap::new(), homes, archives },
            clock,
            cut: stop.child_token(),
            progress: Progress::default(),
            stop,
            metrics,
            changed: Arc::new(Notify::new()),
            soon: Arc::new(Notify::new()),
            trouble: BTreeMap::new(),
            links: BTreeMap::new(),
            reaching: BTreeMap::new(),
            last: None,
        };
        engine.connect().await?;
        for cluster in engine.effects.clusters.values() {
            if let Err(error) = cluster.watch.wait_until_ready(FIRST_LISTING).await {
                tracing::warn!(error = %chain(&error), "cluster");
            }
            if let Some(adopted) = &cluster.adopted {
                adopted.wait_until_ready(FIRST_LISTING).await;
            }
        }
        Ok(engine)
    }

    /// Closes the ledger so that everybody of the group can read it.
    pub async fn close(self) -> Result<(), EngineError> {
        Ok(self.store.close().await?)
    }

    /// Told whenever a cluster is no longer as the plan knew it.
    #[must_use]
    pub fn changed(&self) -> Arc<Notify> {
        Arc::clone(&self.changed)
    }

    /// Told whenever a directory has told of a change.
    #[must_use]
    pub fn told(&self) -> Arc<Notify> {
        Arc::clone(&self.told)
    }

    /// Told of what is to be served at once.
    #[must_use]
    pub fn soon(&self) -> Arc<Notify> {
        Arc::clone(&self.soon)
    }

    /// Cancel it to end the work for good, between two accounts.
    #[must_use]
    pub fn stop(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// What cuts the next cycle short, and how it says that it goes on.
    pub fn begin(&mut self) -> (CancellationToken, Progress) {
        self.cut = self.stop.child_token();
        (self.cut.clone(), self.progress.clone())
    }

    /// Whole seconds.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        (self.clock)()
    }

    /// The configuration in force.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Whether every cluster still belongs to this ledger.
    ///
    /// # Errors
    /// [`EngineError::NotOwner`].
    pub fn must_own(&self) -> Result<(), EngineError> {
        self.links.iter().try_for_each(|(cluster, link)| match link.owner() {
            Ownership::Ledger(owner) => self.owned_by(cluster, &owner),
            Ownership::Nobody | Ownership::Unknown => Ok(()),
        })
    }

    fn owned_by(&self, cluster: &ClusterName, owner: &str) -> Result<(), EngineError> {
        let own = &self.store.state().ledger_id;
        if owner == own {
            return Ok(());
        }
        Err(EngineError::NotOwner { cluster: cluster.clone(), owner: owner.to_owned(), own: own.clone() })
    }

    /// What the watches know; a cluster that is not ready is not in it.
    pub(crate) fn inventory(&self) -> Inventory {
        let clusters = self.effects.clusters.iter();
        let clusters = clusters.filter_map(|(name, cluster)| Some((name.clone(), cluster.watch.inventory()?)));
        let pods = self.effects.clusters.iter();
        let pods = pods.filter_map(|(name, cluster)| Some((name.clone(), cluster.pods.as_ref()?.inventory()?)));
        let in_use = self.effects.clusters.iter();
        let in_use = in_use.filter_map(|(name, cluster)| Some((name.clone(), cluster.in_use.as_ref()?.namespaces()?)));
        let adopted = self.effects.clusters.iter();
        let adopted =
            adopted.filter_map(|(name, cluster)| Some((name.clone(), cluster.adopted.as_ref()?.inventory()?)));
        let (clusters, pods, in_use) = (clusters.collect(), pods.collect(), in_use.collect());
        Inventory { clusters, pods, in_use, adopted: adopted.collect(), ..Inventory::default() }
    }

    pub(crate) fn count(&self, events: &[Event], done: &execute::Report, refusals: &[plan::Refusal]) {
        self.metrics.changed(events);
        self.metrics.drift_repaired(done.drift_repaired);
        self.metrics.reaped(done.reaped);
        for refusal in refusals {
            self.metrics.refused(&refusal.limit);
        }
    }

    /// Ends a cycle with its row.
    pub(crate) async fn finish(&mut self, mut report: CycleReport) -> Result<CycleReport, EngineError> {
        report.id = self.store.next_cycle();
        let end = CycleEnd {
            began: report.began,
            ended: report.ended,
            trigger: report.trigger.name().to_owned(),
            sources: self.store.state().sources.clone(),
            report: serde_json::to_value(&report).unwrap_or_default(),
        };
        self.store.finish(&self.lock, end).await?;
        self.metrics.cycle(["done", "failing", "", "refused"][usize::from(report.exit_code().min(3))]);
        self.last = Some(report.clone());
        Ok(report)
    }

    /// How many accounts of revocations that are under way were revoked, with how many such revocations there are.
    #[must_use]
    pub fn revoked(&self) -> (usize, u64) {
        let revocations = &self.store.state().revocations;
        (revocations.len(), revocations.values().map(|revocation| revocation.done).sum())
    }

    /// Whether a namespace passes from one owner to the next, and waits for nothing any more.
    #[must_use]
    pub fn hands_over(&self) -> bool {
        self.store.state().hands_over(&self.settings.policy.clusters)
    }

    /// Writes orders down. The next cycle carries them out.
    pub async fn order(&mut self, actor: &str, requests: &[OrderRequest]) -> Result<OrderAnswer, EngineError> {
        let now = self.now();
        Ok(write_down(&mut self.store, &self.lock, &self.settings.policy, actor, requests, now).await?)
    }

    /// How things stand.
    #[must_use]
    pub fn status(&self) -> Status {
        let mut clusters: BTreeMap<String, ClusterStatus> = self
            .trouble
            .iter()
            .map(|(cluster, why)| {
                let status = ClusterStatus { ready: false, trouble: Some(why.clone()), ..ClusterStatus::default() };
                (cluster.to_string(), status)
            })
            .collect();
        for (cluster, effects) in &self.effects.clusters {
            let health = effects.watch.health();
            let waiting = (!health.ready).then(|| format!("waiting for {}", health.waiting_for.join(", ")));
            let pods = || effects.pods.as_ref()?.error();
            let in_use = || effects.in_use.as_ref()?.error();
            let adopted = || effects.adopted.as_ref()?.error();
            let status = ClusterStatus {
                ready: health.ready,
                trouble: health.error.or(waiting).or_else(pods).or_else(in_use).or_else(adopted),
                objects: health.objects as u64,
                endpoints: effects.findings(),
            };
            clusters.insert(cluster.to_string(), status);
        }
        let status = report::status(&self.settings.policy.site, self.store.state(), clusters, self.last.clone());
        let wal = holding_the_wal(&self.settings.state_dir);
        let (ledger, backup) = (self.trouble().cloned(), self.backup_status().clone());
        Status { ledger, wal, backup, realm: self.realm_status(), ..status }
    }

    /// The Prometheus text.
    #[must_use]
    pub fn exposition(&self) -> String {
        let backup = self.backup_status();
        self.metrics.backup(backup.newest, backup.failed.is_some());
        if let Some(realm) = self.realm_status() {
            self.metrics.realm(realm.trouble.is_some(), realm.read_at, realm.waiting);
        }
        self.metrics.forget_endpoints();
        for (cluster, effects) in &self.effects.clusters {
            let findings = effects.findings();
            for endpoint in effects.face.endpoints.keys() {
                self.metrics.endpoint(&cluster.0, endpoint, findings.contains_key(endpoint));
            }
        }
        self.metrics.exposition(self.store.state(), self.now())
    }

    /// Tenants that fail now.
    #[must_use]
    pub fn failing(&self) -> Vec<Failing> {
        report::failing(self.store.state())
    }
}

/// Writes orders into a ledger, in one transaction, and says what they mean, or why some are none.
pub async fn write_down(
    store: &mut Store,
    lock: &CycleLock,
    policy: &Policy,
    actor: &str,
    requests: &[OrderRequest],
    now: Timestamp,
) -> Result<OrderAnswer, StoreError> {
    let Written { changes, events, texts, revoked, refused } =
        orders::write_all(store.state(), policy, actor, requests, now);
    store.write(lock, &changes, &events, now).await?;
    Ok(OrderAnswer { text: texts.join("\n"), refused, revoked, report: None })
}

/// The seal's key.
///
/// # Errors
/// It is not there, or no key.
pub fn read_seal(state_dir: &Path) -> Result<Sealer, EngineError> {
    let path = state_dir.join(SEAL_KEY);
    let seal = |source| EngineError::Seal { path: path.clone(), source };
    let seed = zeroize::Zeroizing::new(std::fs::read(&path).map_err(seal)?);
    Sealer::from_seed(&seed).map_err(|error| seal(io::Error::new(io::ErrorKind::InvalidData, error)))
}
