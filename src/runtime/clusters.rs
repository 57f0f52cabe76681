//! Connects the clusters, keeps watching whether they still belong to this ledger and process, and connects a cluster
//! again if anything about its connection changed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kube::config::AuthInfo;
use sha2::{Digest as _, Sha256};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::RuntimeError;
use super::asking::{Asking, OwnedRequest, PATIENCE as SOON};
use super::confine::{Confinement, Suspects};
use crate::bootstrap::webhook::{self, Kept};
use crate::bootstrap::{
    self, AccessError, Claim, Found, KnownGenerations, MarkKeeper, MarkOwner, OwnerWatch, Ownership, Renewal, Reserved,
    Said,
};
use crate::contract::Sealer;
use crate::control::api::ClusterStatus;
use crate::errors::chain;
use crate::execute::{ClusterEffects, Effects};
use crate::identity::ClusterName;
use crate::inventory::Inventory;
use crate::ledger::LedgerState;
use crate::policy::Cluster;
use crate::runtime::review::Review;
use crate::settings::Settings;
use crate::telemetry::SharedMetrics;
use bursar_homed::client::HomedClient;

/// How long the first listing of a cluster may take before a cycle goes on without it.
const FIRST_LISTING: Duration = Duration::from_secs(30);

/// The pause between two attempts to renew the daemon's own certificate. The certificate is still valid for days, and
/// each attempt may wait for a signer.
const RENEWAL_AGAIN: SignedDuration = SignedDuration::from_hours(1);
/// How long a cycle waits for a renewal. Approval and signature normally take a second.
const RENEWED_WITHIN: Duration = Duration::from_secs(5);

/// The pause between two checks whether a webhook was installed and is up to date. Its certificate is replaced ten days
/// before it expires.
const WEBHOOK_AGAIN: SignedDuration = SignedDuration::from_hours(24);

/// How long a cycle waits for a cluster that is being connected. Even a slow cluster connects faster.
const PATIENCE: Duration = Duration::from_secs(10);
/// The same for a cluster that did not answer in time before.
const ALREADY_LATE: Duration = Duration::from_secs(1);
/// Shown for a cluster that did not answer in time.
const NO_ANSWER: &str = "no answer yet";

/// How long the end of a process waits for the marks that are being raised.
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
    /// The ledger's last generation when it was opened. It counts for a cluster whose mark the ledger never wrote.
    opened: u64,
    /// The generations that this process may find, for each cluster that it connected to or tried to.
    generations: BTreeMap<ClusterName, Arc<KnownGenerations>>,
    /// The pods of suspended tenants that ran when they were last counted.
    pub(crate) suspended_pods: BTreeMap<ClusterName, usize>,
}

/// The other state that connecting a cluster needs.
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

/// The connection to a cluster, and what shows whether the cluster still belongs to us.
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
    /// When the webhook is checked next; `None` is at once.
    pub(super) webhook_due: Option<Timestamp>,
    pub(super) is_without_webhook: bool,
    pub(super) review: Review,
    /// The configuration was reloaded, so the daemon's own kubeconfig may need its new CA.
    reconfigured: bool,
    pub(super) following: Option<Asking<Result<bool, AccessError>>>,
    pub(super) keeping: Option<Asking<Result<Kept, AccessError>>>,
    /// The webhook's installed objects differ from what was installed.
    pub(super) weakened: bool,
    /// Fingerprint and end of the daemon's own certificate.
    pub(super) own: Option<(String, Timestamp)>,
    pub(super) confinement: Confinement,
    pub(super) suspects: Suspects,
}

/// A cluster that answered.
pub(super) struct Reached {
    client: kube::Client,
    /// The ledger that owns it.
    owner: String,
    /// The choices that an administrator made for it.
    said: Said,
    mark: (MarkOwner, Found),
    /// The highest generation in a seal, if it is higher than expected.
    sealed: Option<u64>,
    renewal: Option<Renewal>,
    credential: AuthInfo,
    file: Option<[u8; 32]>,
    own: Option<(String, Timestamp)>,
}

/// A cluster that is being asked. The task ends with the runtime.
type Reaching = AbortOnDropHandle<Result<Reached, AccessError>>;

impl Link {
    /// Returns which ledger and process own the cluster, as far as that is known.
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

    /// Returns the notification of changes that must not wait for further ones.
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

    /// Asks the clusters that are not connected, and those in which the daemon's certificate is due for renewal. Writes
    /// nothing but a renewed credential.
    ///
    /// # Errors
    /// As [`super::Runtime::connect`].
    pub(super) async fn ask(&mut self, context: Context<'_>) -> Result<Vec<Answer<Reached>>, RuntimeError> {
        if context.renew {
            self.follow(context.settings).await;
        }
        self.reach(context);
        let answers = self.reached().await;
        // All answers are checked before anything is written to any cluster.
        for (cluster, answer) in &answers {
            if let Ok(reached) = answer {
                owned_by(cluster, &reached.owner, &context.ledger.ledger_id)?;
                let proven = exceeded(&reached.mark.1, reached.sealed, &self.generations[cluster]);
                not_behind(cluster, proven, context.ledger.last_generation)?;
            }
        }
        Ok(answers)
    }

    /// Connects the clusters that answered. Their marks may be written.
    ///
    /// # Errors
    /// As [`super::Runtime::connect`].
    pub(super) async fn connect(
        &mut self,
        answers: Vec<Answer<Reached>>,
        context: Context<'_>,
    ) -> Result<(), RuntimeError> {
        let reserved = Reserved::of(context.ledger, &context.settings.policy);
        for (cluster, answer) in claimed(answers, reserved, &self.generations).await? {
            match answer {
                Ok((reached, mark)) => {
                    self.trouble.remove(&cluster);
                    self.take(cluster, reached, mark, context);
                }
                Err(why) => {
                    tracing::warn!(%cluster, error = why, "not connected");
                    self.trouble.insert(cluster, why);
                }
            }
        }
        for (cluster, link) in &self.links {
            if let Some(effects) = self.effects.clusters.get(cluster) {
                effects.server.let_approve(link.owner.said().approver.is_none());
                effects.server.endpoint_probes().look_after(&effects.face.endpoints, &link.credential);
            }
        }
        if context.renew {
            self.keep_webhooks(context).await;
            self.review_webhooks(context);
        }
        self.confine(context).await;
        Ok(())
    }

    /// Begins to connect the clusters that are not connected or must be reconnected.
    fn reach(&mut self, context: Context<'_>) {
        let Context { settings, ledger, sealer, now, renew, instance, .. } = context;
        let due = |link: &Link| link.renew_after.is_some_and(|due| due <= now);
        for (cluster, kubeconfig) in &settings.clusters {
            let settled = self.effects.clusters.contains_key(cluster) && !self.links.get(cluster).is_some_and(due);
            if !settled && !self.reaching.contains_key(cluster) {
                let face = settings.policy.clusters[cluster].clone();
                let owner = MarkOwner {
                    cluster: cluster.clone(),
                    ledger_id: ledger.ledger_id.clone(),
                    sealer: Arc::clone(sealer),
                    instance: instance.to_owned(),
                };
                let generations = self.generations.entry(cluster.clone()).or_insert_with(|| {
                    let marked = ledger.cluster_marks.get(cluster).copied().unwrap_or(self.opened);
                    Arc::new(KnownGenerations::new(marked, self.stop.clone(), Arc::clone(&self.changed)))
                });
                let known = (owner, Arc::clone(generations));
                let asked = reach(kubeconfig.clone(), face, known, renew.then_some(now));
                self.reaching.insert(cluster.clone(), AbortOnDropHandle::new(tokio::spawn(asked)));
            }
        }
    }

    /// Returns the clusters that answered. If a cluster does not answer in time, its request goes on, and the next
    /// cycle takes the answer.
    async fn reached(&mut self) -> Vec<(ClusterName, Result<Reached, String>)> {
        let trouble = &self.trouble;
        let waited = self.reaching.iter_mut().map(|(cluster, asked)| {
            let patience = if trouble.contains_key(cluster) { ALREADY_LATE } else { PATIENCE };
            async move { (cluster.clone(), tokio::time::timeout(patience, asked).await) }
        });
        let waited = futures::future::join_all(waited).await;
        let answers = waited.into_iter().map(|(cluster, answer)| {
            let answer = match answer {
                Ok(Ok(answer)) => answer.map_err(|error| chain(&error)),
                Ok(Err(error)) => Err(chain(&error)),
                Err(_) => return (cluster, Err(NO_ANSWER.to_owned())),
            };
            self.reaching.remove(&cluster);
            (cluster, answer)
        });
        answers.collect()
    }

    /// Drops the clusters whose kubeconfig got another CA with the new configuration, so that they are connected again.
    async fn follow(&mut self, settings: &Settings) {
        let (there, changed) = (&self.effects.clusters, &self.changed);
        let due = self.links.iter_mut().filter(|(_, link)| link.reconfigured || link.following.is_some());
        let asked = due.map(async |(cluster, link)| {
            if std::mem::take(&mut link.reconfigured) {
                let (cluster, kubeconfig) = (cluster.clone(), settings.clusters[cluster].clone());
                let face = settings.policy.clusters[&cluster].clone();
                let follow = async move { followed(&cluster, &kubeconfig, &face).await };
                link.following = Some(Asking::begin(follow, changed));
            }
            (cluster, Asking::answer(&mut link.following, Some(SOON)).await)
        });
        let mut followed = Vec::new();
        for (cluster, answer) in futures::future::join_all(asked).await {
            match answer {
                Some(Ok(true)) => followed.push(cluster.clone()),
                Some(Ok(false)) => {}
                Some(Err(error)) => {
                    tracing::warn!(%cluster, error = chain(&error), "cannot update the daemon's own kubeconfig");
                }
                None => suspect(there, cluster),
            }
        }
        self.effects.clusters.retain(|cluster, _| !followed.contains(cluster));
    }

    /// Updates the webhooks that are due. A failure is logged and retried, because the webhook works until its
    /// certificate expires.
    pub(super) async fn keep_webhooks(&mut self, context: Context<'_>) {
        let now = context.now;
        let (there, changed) = (&self.effects.clusters, &self.changed);
        let due = self.links.iter_mut().filter(|(_, link)| link.webhook_due.is_none_or(|due| due <= now));
        let due = due.filter(|(cluster, _)| !is_away(there, cluster));
        let asked = due.map(async |(cluster, link)| {
            let Link { client, weakened, keeping, .. } = &mut *link;
            keeping.get_or_insert_with(|| {
                let (client, request, weakened) = (client.clone(), OwnedRequest::of(context, cluster), *weakened);
                Asking::begin(async move { webhook::keep(&client, request.borrowed(), weakened).await }, changed)
            });
            let kept = Asking::answer(keeping, Some(SOON)).await;
            (cluster, link, kept)
        });
        for (cluster, link, kept) in futures::future::join_all(asked).await {
            let Some(kept) = kept else {
                suspect(there, cluster);
                continue;
            };
            let again = now + WEBHOOK_AGAIN;
            link.is_without_webhook = matches!(kept, Ok(Kept::Absent));
            link.webhook_due = Some(match kept {
                Ok(Kept::Absent) => again,
                Ok(Kept::Well { due, wrote }) => {
                    link.weakened = false;
                    if wrote {
                        link.confinement.forget_expected();
                        tracing::info!(%cluster, "the webhook was brought up to date");
                    }
                    due.min(again)
                }
                Ok(Kept::Outside { not_after, outdated }) => {
                    link.weakened = false;
                    if outdated {
                        let remedy = "bursar webhook install --url … --write …";
                        tracing::warn!(%cluster, remedy, "the webhook outside of the cluster has older rules");
                    }
                    if let Some(not_after) = not_after.filter(|ends| *ends <= now + webhook::ENDS_SOON) {
                        tracing::warn!(%cluster, %not_after, "the certificate of the webhook outside of the cluster expires soon");
                    }
                    again
                }
                Err(error) => {
                    tracing::warn!(%cluster, error = chain(&error), "cannot update the webhook; it is retried");
                    now + RENEWAL_AGAIN
                }
            });
        }
    }

    /// Begins to watch a cluster that belongs to us.
    fn take(&mut self, cluster: ClusterName, reached: Reached, mark: Arc<MarkKeeper>, context: Context<'_>) {
        let Context { settings, ledger, metrics, now, .. } = context;
        let Reached { client, said, renewal, credential, file, own, .. } = reached;
        let renew_after = match renewal {
            None => Some(now + RENEWAL_AGAIN),
            Some(Renewal::NotDue { renew_after, .. } | Renewal::Renewed { renew_after, .. }) => Some(renew_after),
            Some(Renewal::Postponed { why, not_after }) => {
                tracing::warn!(%cluster, error = why, %not_after, "the daemon's own certificate is not renewed");
                Some(now + RENEWAL_AGAIN)
            }
            Some(Renewal::NotOurs) => None,
        };
        let link = Link {
            owner: bootstrap::watch_owner(&client, said),
            _mark_watch: mark.watch(self.stop.clone(), Arc::clone(&self.changed)),
            mark: Arc::clone(&mark),
            raising: None,
            renew_after,
            client: client.clone(),
            credential,
            file,
            webhook_due: None,
            is_without_webhook: false,
            review: Review::default(),
            reconfigured: false,
            following: None,
            keeping: None,
            weakened: false,
            own,
            confinement: Confinement::default(),
            suspects: self.links.remove(&cluster).map(|link| link.suspects).unwrap_or_default(),
        };
        tokio::spawn(end_when_taken_over(
            link.owner.receiver(),
            ledger.ledger_id.clone(),
            self.stop.clone(),
            Arc::clone(&self.changed),
        ));
        let face = settings.policy.clusters[&cluster].clone();
        let known = (&settings.policy, ledger);
        let effects =
            ClusterEffects::start(cluster.clone(), client, face, known, metrics, (&self.changed, &self.urgent));
        effects.server.keep_mark(mark);
        self.effects.clusters.insert(cluster.clone(), effects);
        self.links.insert(cluster, link);
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

/// Returns the generation, from a mark or a seal, that proves a rollback.
fn exceeded(found: &Found, sealed: Option<u64>, generations: &KnownGenerations) -> Option<u64> {
    let marked = if let Found::Own(own) = found { Some(own.generation) } else { None };
    generations.exceeded(marked, sealed)
}

/// A cluster with its answer, or with the reason why there is none.
pub(super) type Answer<T> = (ClusterName, Result<T, String>);

/// Makes this process the only one that manages the clusters that answered. It claims all of them before it takes over
/// any: another process that still runs may have lost its connection to some of them.
async fn claimed(
    answers: Vec<Answer<Reached>>,
    reserved: Reserved,
    generations: &BTreeMap<ClusterName, Arc<KnownGenerations>>,
) -> Result<Vec<Answer<(Reached, Arc<MarkKeeper>)>>, RuntimeError> {
    let claims = answers.into_iter().map(async |(cluster, answer)| {
        let reached = match answer {
            Ok(reached) => reached,
            Err(why) => return Ok((cluster, Err(why))),
        };
        let (owner, found) = &reached.mark;
        match found {
            Found::Hidden => {
                tracing::warn!(%cluster, remedy = "bursar init", "the daemon may not read bursar-mark: a ledger that is rolled back is not noticed");
            }
            Found::Unproven { .. } => {
                tracing::warn!(%cluster, remedy = "bursar init", "bursar-mark was edited: a ledger that is rolled back is not noticed");
            }
            Found::Absent | Found::Own(_) => {}
        }
        let known = &generations[&cluster];
        let mark =
            MarkKeeper::new(&reached.client, owner.clone(), found.clone(), reserved.clone(), Arc::clone(known));
        match mark.claim().await {
            Ok(Claim::Refused) => Err(RuntimeError::Copied { cluster }),
            Ok(claim) => {
                not_behind(&cluster, known.beyond(), reserved.generation)?;
                Ok((cluster, Ok((reached, mark, claim))))
            }
            Err(error) => Ok((cluster, Err(chain(&error)))),
        }
    });
    let claims: Vec<Answer<_>> = futures::future::join_all(claims).await.into_iter().collect::<Result<_, _>>()?;
    let taken = claims.into_iter().map(async |(cluster, answer)| match answer {
        Ok((reached, mark, Claim::Free)) => match mark.take_over().await {
            Ok(()) => (cluster, Ok((reached, mark))),
            Err(error) => (cluster, Err(chain(&error))),
        },
        Ok((reached, mark, _)) => (cluster, Ok((reached, mark))),
        Err(why) => (cluster, Err(why)),
    });
    Ok(futures::future::join_all(taken).await)
}

/// What a cluster shows about its ledger.
struct Seen {
    client: kube::Client,
    owner: String,
    said: Said,
    found: Found,
    sealed: Option<u64>,
}

/// Reads who owns a cluster and which generations it has. Writes nothing.
async fn look(kubeconfig: &Path, mark: &MarkOwner, generations: &KnownGenerations) -> Result<Seen, AccessError> {
    let client = bootstrap::client(kubeconfig).await?;
    // This error concerns one cluster: the work in the others goes on.
    let what = "the cluster belongs to no ledger yet: run `bursar init`";
    let owner = bootstrap::owner_and_said(&client).await?;
    let (owner, said) = owner.ok_or_else(|| AccessError::Incomplete { path: kubeconfig.to_owned(), what })?;
    let found = mark.read(&client).await?;
    let sealed = mark.sealed_beyond(&client, generations.sealed()).await?;
    Ok(Seen { client, owner, said, found, sealed })
}

/// Asks a cluster with the daemon's own credential. If the credential is due for renewal and the cluster belongs to
/// this ledger, it is renewed first. `renew` is the current time, or `None` if the ledger takes no writes.
async fn reach(
    kubeconfig: PathBuf,
    face: Cluster,
    (mark, generations): (MarkOwner, Arc<KnownGenerations>),
    renew: Option<Timestamp>,
) -> Result<Reached, AccessError> {
    if renew.is_some() {
        followed(&mark.cluster, &kubeconfig, &face).await?;
    }
    let first = look(&kubeconfig, &mark, &generations).await;
    let is_ours =
        |seen: &Seen| seen.owner == mark.ledger_id && exceeded(&seen.found, seen.sealed, &generations).is_none();
    let renewal = match renew {
        // The cluster may not answer because the credential has expired.
        Some(now) if first.as_ref().map_or(true, is_ours) => {
            renewed(kubeconfig.clone(), mark.cluster.clone(), now).await?
        }
        _ => None,
    };
    let seen = match (first, &renewal) {
        (Ok(seen), None | Some(Renewal::NotDue { .. } | Renewal::NotOurs | Renewal::Postponed { .. })) => seen,
        (_, Some(Renewal::Renewed { .. })) => look(&kubeconfig, &mark, &generations).await?,
        (Err(error), _) => return Err(error),
    };
    let Seen { client, owner, said, found, sealed } = seen;
    let credential = bootstrap::credential(&kubeconfig).await?;
    let (file, own) = (digest(&kubeconfig), bootstrap::own_certificate(&kubeconfig)?);
    Ok(Reached { client, owner, said, mark: (mark, found), sealed, renewal, credential, file, own })
}

/// Renews the daemon's own certificate if that is due. Returns `None` if nobody has approved it in time. The request
/// goes on in the background, so that no revocation waits for an approver.
async fn renewed(kubeconfig: PathBuf, cluster: ClusterName, now: Timestamp) -> Result<Option<Renewal>, AccessError> {
    let renewing = tokio::spawn(async move { bootstrap::renew(&kubeconfig, &cluster, now).await });
    match tokio::time::timeout(RENEWED_WITHIN, renewing).await {
        Ok(Ok(renewal)) => renewal.map(Some),
        Ok(Err(_)) | Err(_) => Ok(None),
    }
}

/// Stops this process when another ledger takes over the cluster. Work in progress is finished, and nothing new begins.
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

/// Writes the CA of the configuration into the daemon's own kubeconfig. Returns whether the file changed.
async fn followed(cluster: &ClusterName, kubeconfig: &Path, face: &Cluster) -> Result<bool, AccessError> {
    let changed = bootstrap::follow(kubeconfig, face).await?;
    if changed {
        tracing::info!(%cluster, "wrote the CA of the configuration into the daemon's own kubeconfig");
    }
    Ok(changed)
}

/// Returns the SHA-256 of a file, or `None` if it cannot be read.
fn digest(path: &Path) -> Option<[u8; 32]> {
    std::fs::read(path).ok().map(|content| Sha256::digest(zeroize::Zeroizing::new(content).as_slice()).into())
}
