//! Everything a cycle works with, opened once: the ledger and its lock, the seal, the clusters, the homes. `bursard`
//! keeps one for its life, `bursar sync --once` for one cycle.

mod ask;
mod health;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

pub use self::health::back_up;
use crate::access::webhook::{self, Kept, WebhookRequest};
use crate::access::{self, AccessError, OwnerWatch, Ownership, Renewal, SEAL_KEY};
use crate::contract::Sealer;
use crate::control::api::{ClusterStatus, CycleReport, Failing, OrderAnswer, OrderRequest, Status};
use crate::desired::Deriver;
use crate::directory::SourceConfig;
use crate::execute::{self, ClusterEffects, Effects};
use crate::homes::client::HomedClient;
use crate::identity::ClusterName;
use crate::ledger::change::Event;
use crate::ledger::store::{CycleEnd, CycleLock, Store, StoreError, holding_the_wal};
use crate::observed::Inventory;
use crate::orders::{self, Written};
use crate::plan;
use crate::policy::Policy;
use crate::report;
use crate::settings::{Settings, SettingsErrors};
use crate::telemetry::SharedMetrics;

/// How long the first listing of a cluster may take before a cycle goes on without it.
const FIRST_LISTING: Duration = Duration::from_secs(30);

/// Between two tries to renew the daemon's own certificate: there are days left, and each try may wait for a signer.
const RENEWAL_AGAIN: SignedDuration = SignedDuration::from_hours(1);

/// Between two looks whether a webhook was installed, and is well. Its certificate is replaced ten days before it ends.
const WEBHOOK_AGAIN: SignedDuration = SignedDuration::from_hours(24);

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
    /// A cluster cannot be reached.
    #[error("cluster {cluster}")]
    Access {
        /// Which.
        cluster: ClusterName,
        /// Why.
        #[source]
        source: access::AccessError,
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
    trouble: BTreeMap<ClusterName, String>,
    links: BTreeMap<ClusterName, Link>,
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

/// What keeps a connected cluster ours.
struct Link {
    owner: OwnerWatch,
    /// When the daemon's own certificate is due; never for an administrator's own kubeconfig.
    renew_after: Option<Timestamp>,
    client: kube::Client,
    /// When the webhook is to be looked at; `None`: now.
    webhook_due: Option<Timestamp>,
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
        let mut engine = Self {
            health: health::Health::of(&settings.state_dir),
            sources: settings.sources()?,
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
            trouble: BTreeMap::new(),
            links: BTreeMap::new(),
            last: None,
        };
        engine.connect().await?;
        for cluster in engine.effects.clusters.values() {
            if let Err(error) = cluster.watch.wait_until_ready(FIRST_LISTING).await {
                tracing::warn!(error = %report::chain(&error), "cluster");
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

    /// Puts another configuration in force. Clusters are connected anew, for anything about them may have changed.
    pub fn reload(&mut self, settings: Settings) -> Result<(), SettingsErrors> {
        self.sources = settings.sources()?;
        self.effects.homes =
            HomedClient::new(&settings.homes.socket, settings.homes.deadline).with_prefixes(&settings.homes.prefixes);
        self.effects.archives = settings.archives();
        self.effects.clusters.clear();
        self.links.clear();
        self.trouble.clear();
        self.settings = settings;
        Ok(())
    }

    /// Connects the clusters that are not, and those anew whose certificate of the daemon is due.
    ///
    /// # Errors
    /// Only [`EngineError::NotOwner`]: a cluster that is away is asked again in the next cycle.
    pub async fn connect(&mut self) -> Result<(), EngineError> {
        let (now, renew) = (self.now(), self.may_write());
        let due = |link: &Link| link.renew_after.is_some_and(|due| due <= now);
        let settled = |cluster: &ClusterName| {
            self.effects.clusters.contains_key(cluster) && !self.links.get(cluster).is_some_and(due)
        };
        let asked =
            self.settings.clusters.iter().filter(|(cluster, _)| !settled(cluster)).map(|(cluster, kubeconfig)| {
                let answer = self.connected(cluster, kubeconfig, renew);
                async move { (cluster.clone(), answer.await) }
            });
        for (cluster, answer) in futures::future::join_all(asked).await {
            match answer {
                Ok((effects, link)) => {
                    self.trouble.remove(&cluster);
                    self.effects.clusters.insert(cluster.clone(), effects);
                    self.links.insert(cluster, link);
                }
                Err(EngineError::Access { source, .. }) => {
                    let why = report::chain(&source);
                    tracing::warn!(%cluster, error = why, "not connected");
                    self.trouble.insert(cluster, why);
                }
                Err(other) => return Err(other),
            }
        }
        if renew {
            self.keep_webhooks(now).await;
        }
        Ok(())
    }

    /// Renews what is due of the webhooks. One that cannot be is told of, and tried again: it works until its end.
    async fn keep_webhooks(&mut self, now: Timestamp) {
        let due = self.links.iter_mut().filter(|(_, link)| link.webhook_due.is_none_or(|due| due <= now));
        for (cluster, link) in due {
            let (policy, state_dir) = (&self.settings.policy, self.settings.state_dir.as_path());
            let (ledger, sealer) = (self.store.state(), &self.sealer);
            let request = WebhookRequest { policy, cluster, ledger, state_dir, sealer, now };
            let again = now + WEBHOOK_AGAIN;
            link.webhook_due = Some(match Box::pin(webhook::keep(&link.client, request)).await {
                Ok(Kept::Absent) => again,
                Ok(Kept::Well { due, wrote }) => {
                    if wrote {
                        tracing::info!(%cluster, "the webhook was brought up to date");
                    }
                    due.min(again)
                }
                Ok(Kept::Outside { not_after, outdated }) => {
                    if outdated {
                        let cure = "bursar webhook install --url … --write …";
                        tracing::warn!(%cluster, cure, "the webhook outside of the cluster has older rules");
                    }
                    if let Some(not_after) = not_after.filter(|ends| *ends <= now + webhook::ENDS_SOON) {
                        tracing::warn!(%cluster, %not_after, "the files of the webhook outside of the cluster end soon");
                    }
                    again
                }
                Err(error) => {
                    tracing::warn!(%cluster, error = report::chain(&error), "the webhook was not looked after");
                    now + RENEWAL_AGAIN
                }
            });
        }
    }

    /// `renew`: what a certificate of our own that is due needs can be written.
    async fn connected(
        &self,
        cluster: &ClusterName,
        kubeconfig: &Path,
        renew: bool,
    ) -> Result<(ClusterEffects, Link), EngineError> {
        let access = |source| EngineError::Access { cluster: cluster.clone(), source };
        let renewal =
            if renew { Some(access::renew(kubeconfig, cluster, self.now()).await.map_err(access)?) } else { None };
        let client = access::client(kubeconfig).await.map_err(access)?;
        let owner = access::owner(&client).await.map_err(access)?;
        // A cluster that `init` has not come to yet must not stop the work in the others.
        let owner = owner.ok_or_else(|| {
            let what = "the cluster belongs to no ledger yet: run `bursar init`";
            access(AccessError::Incomplete { path: kubeconfig.to_owned(), what })
        })?;
        self.owned_by(cluster, &owner)?;
        let renew_after = match renewal {
            None => Some(self.now() + RENEWAL_AGAIN),
            Some(Renewal::NotDue { renew_after, .. } | Renewal::Renewed { renew_after, .. }) => Some(renew_after),
            Some(Renewal::Postponed { why, not_after }) => {
                tracing::warn!(%cluster, error = why, %not_after, "the daemon's own certificate is not renewed");
                Some(self.now() + RENEWAL_AGAIN)
            }
            Some(Renewal::NotOurs) => None,
        };
        let link = Link { owner: access::watch_owner(&client), renew_after, client: client.clone(), webhook_due: None };
        tokio::spawn(end_when_taken_over(
            link.owner.receiver(),
            self.store.state().ledger_id.clone(),
            self.stop.clone(),
            self.changed(),
        ));
        let face = self.settings.policy.clusters[cluster].clone();
        let known = (&self.settings.policy, self.store.state());
        Ok((ClusterEffects::start(cluster.clone(), client, face, known, &self.metrics, &self.changed), link))
    }

    /// Whether every cluster still belongs to this ledger.
    ///
    /// # Errors
    /// [`EngineError::NotOwner`].
    pub fn must_own(&self) -> Result<(), EngineError> {
        self.links.iter().try_for_each(|(cluster, link)| match &*link.owner.receiver().borrow() {
            Ownership::Ledger(owner) => self.owned_by(cluster, owner),
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
        let (clusters, pods, in_use) = (clusters.collect(), pods.collect(), in_use.collect());
        Inventory { clusters, pods, in_use, ..Inventory::default() }
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
                let status = ClusterStatus { ready: false, trouble: Some(why.clone()), objects: 0 };
                (cluster.to_string(), status)
            })
            .collect();
        for (cluster, effects) in &self.effects.clusters {
            let health = effects.watch.health();
            let waiting = (!health.ready).then(|| format!("waiting for {}", health.waiting_for.join(", ")));
            let pods = || effects.pods.as_ref()?.error();
            let in_use = || effects.in_use.as_ref()?.error();
            let status = ClusterStatus {
                ready: health.ready,
                trouble: health.error.or(waiting).or_else(pods).or_else(in_use),
                objects: health.objects as u64,
            };
            clusters.insert(cluster.to_string(), status);
        }
        let status = report::status(&self.settings.policy.site, self.store.state(), clusters, self.last.clone());
        let wal = holding_the_wal(&self.settings.state_dir);
        Status { ledger: self.trouble().cloned(), wal, backup: self.backup_status().clone(), ..status }
    }

    /// The Prometheus text.
    #[must_use]
    pub fn exposition(&self) -> String {
        let backup = self.backup_status();
        self.metrics.backup(backup.newest, backup.failed.is_some());
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

/// A former owner stops writing at once: what is under way is finished, nothing more is begun.
async fn end_when_taken_over(
    mut owner: watch::Receiver<Ownership>,
    own: String,
    stop: CancellationToken,
    changed: Arc<Notify>,
) {
    let other = |owner: &Ownership| matches!(owner, Ownership::Ledger(id) if *id != own);
    if owner.wait_for(other).await.is_ok() {
        stop.cancel();
        changed.notify_one();
    }
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
