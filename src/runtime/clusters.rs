//! Connects the clusters, keeps watching whether they still belong to this ledger and process, and connects a cluster
//! again if anything about its connection changed.

mod connect;
mod reach;
mod upkeep;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::config::AuthInfo;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use self::connect::Reaching;
use self::reach::digest;
use super::RuntimeError;
use super::asking::Asking;
use super::confine::{Confinement, Suspects};
use crate::bootstrap::webhook::Kept;
use crate::bootstrap::{self, AccessError, KnownGenerations, MarkKeeper, OwnerWatch, Ownership, Reserved};
use crate::contract::Sealer;
use crate::control::api::ClusterStatus;
use crate::errors::chain;
use crate::execute::workloads::SuspendedPods;
use crate::execute::{ClusterEffects, Effects};
use crate::identity::ClusterName;
use crate::inventory::Inventory;
use crate::ledger::LedgerState;
use crate::runtime::review::Review;
use crate::settings::Settings;
use crate::telemetry::SharedMetrics;
use bursar_homed::client::HomedClient;

/// How long the first listing of a cluster may take before a cycle goes on without it.
const FIRST_LISTING: Duration = Duration::from_secs(30);

/// Shown for a cluster that did not answer in time.
const NO_ANSWER: &str = "no answer yet";

/// How long a process that ends waits until the marks in its clusters are raised.
const LAST_WRITES: Duration = Duration::from_secs(5);

pub struct Clusters {
    /// The connected clusters, the homes and the archives.
    pub(crate) effects: Effects,
    pub(super) links: BTreeMap<ClusterName, Link>,
    reaching: BTreeMap<ClusterName, Reaching>,
    /// Why the other clusters are not connected.
    trouble: BTreeMap<ClusterName, String>,
    /// Notified when a cluster changed since the last plan.
    pub(crate) changed: Arc<Notify>,
    urgent: Arc<Notify>,
    /// Cancelled when another ledger takes over a cluster, or a cluster proves that the process was rolled back.
    stop: CancellationToken,
    /// The ledger's last generation when the process opened it. If the ledger has never written the mark of a cluster,
    /// a mark up to this generation is expected there.
    opened: u64,
    /// For each cluster that the process has tried to connect to: the generations that it may find there. A higher one
    /// proves a rollback.
    generations: BTreeMap<ClusterName, Arc<KnownGenerations>>,
    /// The pods of suspended tenants that ran when they were last counted.
    pub(crate) suspended_pods: BTreeMap<ClusterName, SuspendedPods>,
    /// Whether a cluster was connected since the start, which shows that the ledger is not an old one. A reload that
    /// drops the connection does not change that.
    is_proven: bool,
}

/// The state outside [`Clusters`] that is needed to connect a cluster.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) settings: &'a Settings,
    pub(super) ledger: &'a LedgerState,
    pub(super) sealer: &'a Arc<Sealer>,
    pub(super) metrics: &'a SharedMetrics,
    pub(super) now: Timestamp,
    /// Whether the ledger takes writes. If not, no certificate is renewed.
    pub(super) renew: bool,
    /// Identifies this process; see `Ledger::instance`.
    pub(super) instance: &'a str,
}

/// The connection to a cluster, and what shows whether the cluster still belongs to this ledger.
pub(super) struct Link {
    pub(super) owner: OwnerWatch,
    mark: Arc<MarkKeeper>,
    _mark_watch: Option<AbortOnDropHandle<()>>,
    /// The write of a higher mark, while it runs.
    raising: Option<AbortOnDropHandle<()>>,
    /// When the daemon's own certificate has to be renewed; `None` for an administrator's own kubeconfig.
    renew_after: Option<Timestamp>,
    pub(super) client: kube::Client,
    /// The credential with which the daemon authenticates.
    credential: AuthInfo,
    /// The digest of the kubeconfig when it was read.
    file: Option<[u8; 32]>,
    /// When the webhook is checked next; `None` means at once.
    pub(super) webhook_due: Option<Timestamp>,
    pub(super) is_without_webhook: bool,
    pub(super) review: Review,
    /// Whether the configuration was reloaded since the CA in the daemon's own kubeconfig was last compared with it.
    reconfigured: bool,
    /// The comparison of that CA, while it runs.
    pub(super) following: Option<Asking<Result<bool, AccessError>>>,
    pub(super) keeping: Option<Asking<Result<Kept, AccessError>>>,
    /// Whether the webhook's objects in the cluster differ from what was installed.
    pub(super) weakened: bool,
    /// Fingerprint and end of the daemon's own certificate.
    pub(super) own: Option<(String, Timestamp)>,
    pub(super) confinement: Confinement,
    pub(super) suspects: Suspects,
}

impl Link {
    /// Returns the ledger that owns the cluster, as far as the daemon knows.
    fn owner(&self) -> Ownership {
        self.owner.receiver().borrow().clone()
    }

    /// Returns why the daemon's own certificate cannot be used, if it has expired. Without this, only a time-out would
    /// show it.
    fn ended(&self, now: Timestamp) -> Option<String> {
        self.own.as_ref().filter(|(_, ends)| *ends <= now).map(|(_, ends)| bootstrap::ended(*ends))
    }
}

impl Clusters {
    /// `opened` is the ledger's last generation.
    pub(super) fn of(settings: &Settings, stop: CancellationToken, opened: u64) -> Self {
        let effects = Effects { clusters: BTreeMap::new(), homes: homes(settings), archives: settings.archives() };
        effects.archives.sweep();
        Self {
            effects,
            links: BTreeMap::new(),
            reaching: BTreeMap::new(),
            trouble: BTreeMap::new(),
            changed: Arc::new(Notify::new()),
            urgent: Arc::new(Notify::new()),
            stop,
            opened,
            generations: BTreeMap::new(),
            suspended_pods: BTreeMap::new(),
            is_proven: false,
        }
    }

    pub(super) async fn wait_for_first_listing(&self) {
        let listed = self.effects.clusters.values().map(async |cluster| {
            if let Err(error) = cluster.watch.wait_until_ready(FIRST_LISTING).await {
                tracing::warn!(error = %chain(&error), "the daemon goes on without the cluster's objects");
            }
            if let Some(adopted) = &cluster.adopted {
                adopted.wait_until_ready(FIRST_LISTING).await;
            }
        });
        futures::future::join_all(listed).await;
    }

    /// Returns the notification of changes that start a cycle without a debounce.
    #[must_use]
    pub fn urgent(&self) -> Arc<Notify> {
        Arc::clone(&self.urgent)
    }

    /// Checks that every cluster still belongs to this ledger and to this process, and that none of them proves that
    /// the process was rolled back.
    pub(crate) fn must_own(&self, ledger: &LedgerState) -> Result<(), RuntimeError> {
        self.links.iter().try_for_each(|(cluster, link)| match link.owner() {
            Ownership::Ledger(owner) => owned_by(cluster, &owner, &ledger.ledger_id),
            Ownership::Nobody | Ownership::Unknown => Ok(()),
        })?;
        let lost = self.links.iter().find(|(_, link)| link.mark.is_lost());
        lost.map_or(Ok(()), |(cluster, _)| Err(RuntimeError::Copied { cluster: cluster.clone() }))?;
        let mut generations = self.generations.iter();
        generations.try_for_each(|(cluster, known)| not_behind(cluster, known.beyond(), ledger.last_generation))
    }

    /// Whether no cluster has answered since the start, so that the ledger may have been rolled back unnoticed.
    pub(super) fn is_unproven(&self) -> bool {
        !self.is_proven && !self.trouble.is_empty()
    }

    /// Reads the marks of the clusters that answer. If one of them proves that this process was rolled back, the
    /// process is stopped.
    pub(super) async fn confirm(&self) {
        let there = self.links.iter().filter(|(cluster, _)| !is_away(&self.effects.clusters, cluster));
        futures::future::join_all(there.map(|(_, link)| link.mark.confirm())).await;
    }

    /// Returns the clusters whose marks [`Self::reserve`] may raise.
    pub(crate) fn marked(&self) -> impl Iterator<Item = &ClusterName> {
        self.links.keys()
    }

    /// Raises the marks that are lower than `reserved`, which the ledger has given out. Does not wait for the writes.
    pub(crate) fn reserve(&mut self, reserved: &Reserved) {
        for link in self.links.values_mut() {
            if let Some(raising) = link.mark.reserve(reserved) {
                link.raising = Some(raising);
            }
        }
    }

    /// Waits until the marks that are being raised are written.
    pub(super) async fn end(&mut self) {
        let raising = self.links.values_mut().filter_map(|link| link.raising.take());
        // A mark that is not raised in time is raised at the next start.
        let _ = tokio::time::timeout(LAST_WRITES, futures::future::join_all(raising)).await;
    }

    /// Returns what the watches have observed. A cluster that is not ready is left out.
    pub(crate) fn inventory(&self) -> Inventory {
        fn shown<T>(
            clusters: &BTreeMap<ClusterName, ClusterEffects>,
            of: impl Fn(&ClusterEffects) -> Option<T>,
        ) -> BTreeMap<ClusterName, T> {
            clusters.iter().filter_map(|(name, cluster)| Some((name.clone(), of(cluster)?))).collect()
        }
        let clusters = &self.effects.clusters;
        Inventory {
            clusters: shown(clusters, |cluster| cluster.watch.inventory()),
            pods: shown(clusters, |cluster| cluster.pods.as_ref()?.inventory()),
            in_use: shown(clusters, |cluster| cluster.in_use.as_ref()?.namespaces()),
            adopted: shown(clusters, |cluster| cluster.adopted.as_ref()?.inventory()),
            unconfined: self.unconfined(),
            ..Inventory::default()
        }
    }

    /// Forgets conflicts about objects, so that the next plan repairs every object.
    pub(crate) fn forget_repairs(&self) {
        self.effects.clusters.values().for_each(|cluster| cluster.watch.forget_repairs());
    }

    /// Returns when the first repair that waits is due, if that is later than `since`.
    pub(super) fn next_repair(&self, since: Timestamp, now: Timestamp) -> Option<Timestamp> {
        let shown = self.effects.clusters.values().filter_map(|cluster| cluster.watch.inventory());
        shown.filter_map(|inventory| inventory.next_repair(since, now)).min()
    }

    /// Returns the status of each cluster.
    pub(crate) fn status(&self, now: Timestamp) -> BTreeMap<String, ClusterStatus> {
        let away = self.trouble.iter().map(|(cluster, why)| {
            let mut status = ClusterStatus { ready: false, trouble: Some(why.clone()), ..ClusterStatus::default() };
            self.confinement_status(cluster, &mut status);
            (cluster.to_string(), status)
        });
        let there = self.effects.clusters.iter().map(|(cluster, effects)| {
            let health = effects.watch.health();
            let waiting = (!health.ready).then(|| format!("waiting for {}", health.waiting_for.join(", ")));
            let pods = || effects.pods.as_ref()?.error();
            let in_use = || effects.in_use.as_ref()?.error();
            let adopted = || effects.adopted.as_ref()?.error();
            let ended = self.links.get(cluster).and_then(|link| link.ended(now));
            let mut status = ClusterStatus {
                ready: health.ready,
                trouble: ended
                    .or(health.error)
                    .or(waiting)
                    .or(health.blind)
                    .or_else(pods)
                    .or_else(in_use)
                    .or_else(adopted),
                objects: health.objects as u64,
                endpoints: effects.findings(),
                ..ClusterStatus::default()
            };
            self.confinement_status(cluster, &mut status);
            (cluster.to_string(), status)
        });
        away.chain(there).collect()
    }

    /// Applies another configuration. A cluster without any change stays connected.
    pub(super) fn reload(&mut self, settings: &Settings, ledger: &LedgerState) {
        self.effects.homes = homes(settings);
        self.effects.archives = settings.archives();
        let known = (&settings.policy, ledger);
        let links = &self.links;
        // The next cycle waits only briefly for clusters that did not answer before.
        self.trouble.retain(|_, why| why == NO_ANSWER);
        let away = self.effects.clusters.iter().filter(|(_, effects)| effects.watch.health().error.is_some());
        self.trouble.extend(away.map(|(cluster, _)| (cluster.clone(), NO_ANSWER.to_owned())));
        self.effects.clusters.retain(|cluster, effects| {
            let Some(face) = settings.policy.clusters.get(cluster) else { return false };
            effects.face.clone_from(face);
            let file = settings.clusters.get(cluster).and_then(|path| digest(path));
            let read = links.get(cluster).and_then(|link| link.file);
            file.is_some() && file == read && effects.still_serves(known)
        });
        self.links.retain(|cluster, _| self.effects.clusters.contains_key(cluster));
        for link in self.links.values_mut() {
            // The webhook's rules may have changed.
            (link.webhook_due, link.keeping) = (None, None);
            link.reconfigured = true;
            link.confinement.forget_expected();
        }
        let is_missing =
            |cluster: &ClusterName| settings.clusters.contains_key(cluster) && !self.links.contains_key(cluster);
        self.trouble.retain(|cluster, _| is_missing(cluster));
        self.reaching.clear();
    }
}

/// Returns whether a connected cluster is known not to answer.
pub(super) fn is_away(there: &BTreeMap<ClusterName, ClusterEffects>, cluster: &ClusterName) -> bool {
    there.get(cluster).is_some_and(|effects| effects.watch.health().error.is_some())
}

/// Lets the watch find out whether the cluster answers.
pub(super) fn suspect(there: &BTreeMap<ClusterName, ClusterEffects>, cluster: &ClusterName) {
    if let Some(effects) = there.get(cluster) {
        effects.watch.suspect();
    }
}

fn homes(settings: &Settings) -> HomedClient {
    HomedClient::new(&settings.homes.socket, settings.homes.deadline).with_prefixes(&settings.homes.prefixes)
}

fn owned_by(cluster: &ClusterName, owner: &str, own: &str) -> Result<(), RuntimeError> {
    if owner == own {
        return Ok(());
    }
    Err(RuntimeError::NotOwner { cluster: cluster.clone(), owner: owner.to_owned(), own: own.to_owned() })
}

/// `proven` is a generation that proves a rollback.
fn not_behind(cluster: &ClusterName, proven: Option<u64>, last: u64) -> Result<(), RuntimeError> {
    let behind = |proven| Err(RuntimeError::Behind { cluster: cluster.clone(), proven, last });
    proven.map_or(Ok(()), behind)
}

/// A cluster with its answer, or with the reason why there is none.
pub(super) type OfCluster<T> = (ClusterName, Result<T, String>);
