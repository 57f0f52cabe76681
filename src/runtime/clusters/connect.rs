//! Asks the clusters that are not connected, claims those that answer, and begins to watch them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::reach::{Reached, Seen, reach};
use super::{Clusters, Context, Link, NO_ANSWER, OfCluster, not_behind, owned_by};
use crate::bootstrap::{
    self, AccessError, Claim, FoundMark, KnownGenerations, MarkKeeper, MarkOwner, Ownership, Renewal, Reserved,
};
use crate::errors::chain;
use crate::execute::ClusterEffects;
use crate::identity::ClusterName;
use crate::runtime::RuntimeError;
use crate::runtime::confine::Confinement;
use crate::runtime::review::Review;

/// The pause between two attempts to renew the daemon's own certificate. The certificate is still valid for days, and
/// each attempt may wait for a signer.
pub(super) const RENEWAL_AGAIN: SignedDuration = SignedDuration::from_hours(1);

/// How long a cycle waits for a cluster that is being connected. Even a slow cluster connects faster.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a cycle waits for a cluster that did not answer in time before.
const ALREADY_LATE: Duration = Duration::from_secs(1);

/// A cluster that is being asked. The task ends with the runtime.
pub(super) type Reaching = AbortOnDropHandle<Result<Reached, AccessError>>;

impl Clusters {
    /// Asks the clusters that are not connected, and those in which the daemon's certificate is due for renewal. Writes
    /// nothing but a renewed credential.
    pub(in crate::runtime) async fn ask(
        &mut self,
        context: Context<'_>,
    ) -> Result<Vec<OfCluster<Reached>>, RuntimeError> {
        if context.renew {
            self.follow(context.settings).await;
        }
        self.reach(context);
        let answers = self.reached().await;
        // All answers are checked before anything is written to any cluster.
        for (cluster, answer) in &answers {
            if let Ok(reached) = answer {
                owned_by(cluster, &reached.seen.owner, &context.ledger.ledger_id)?;
                let proven = reached.seen.exceeded(&self.generations[cluster]);
                not_behind(cluster, proven, context.ledger.last_generation)?;
            }
        }
        Ok(answers)
    }

    /// Connects the clusters that answered. Their marks may be written.
    pub(in crate::runtime) async fn connect(
        &mut self,
        answers: Vec<OfCluster<Reached>>,
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

    /// Begins to watch a cluster that belongs to this ledger.
    fn take(&mut self, cluster: ClusterName, reached: Reached, mark: Arc<MarkKeeper>, context: Context<'_>) {
        let Context { settings, ledger, metrics, now, .. } = context;
        let Reached { seen: Seen { client, said, .. }, renewal, credential, file, own, .. } = reached;
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
            _mark_watch: mark.watch(),
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
        let requested = ledger.requested.iter().filter(|(key, _)| key.cluster == cluster);
        effects.server.knows_requested(requested.map(|(_, digest)| digest.clone()).collect());
        self.effects.clusters.insert(cluster.clone(), effects);
        self.links.insert(cluster, link);
        self.is_proven = true;
    }
}

/// Makes this process the only one that manages the clusters that answered. It claims all of them before it takes over
/// any: another process that still runs may have lost its connection to some of them.
async fn claimed(
    answers: Vec<OfCluster<Reached>>,
    reserved: Reserved,
    generations: &BTreeMap<ClusterName, Arc<KnownGenerations>>,
) -> Result<Vec<OfCluster<(Reached, Arc<MarkKeeper>)>>, RuntimeError> {
    let claims = answers.into_iter().map(async |(cluster, answer)| {
        let reached = match answer {
            Ok(reached) => reached,
            Err(why) => return Ok((cluster, Err(why))),
        };
        let Seen { client, found, .. } = &reached.seen;
        match found {
            FoundMark::Hidden => {
                tracing::warn!(%cluster, remedy = "bursar init", "the daemon may not read bursar-mark: a ledger that is rolled back is not noticed");
            }
            FoundMark::Unproven { .. } => {
                tracing::warn!(%cluster, remedy = "bursar init", "bursar-mark was edited: a ledger that is rolled back is not noticed");
            }
            FoundMark::Absent | FoundMark::Own(_) => {}
        }
        let known = &generations[&cluster];
        let mark =
            MarkKeeper::new(client, reached.mark.clone(), found.clone(), reserved.clone(), Arc::clone(known));
        match mark.claim().await {
            Ok(Claim::Refused) => Err(RuntimeError::Copied { cluster }),
            Ok(claim) => {
                not_behind(&cluster, known.beyond(), reserved.generation)?;
                Ok((cluster, Ok((reached, mark, claim))))
            }
            Err(error) => Ok((cluster, Err(chain(&error)))),
        }
    });
    let claims: Vec<OfCluster<_>> = futures::future::join_all(claims).await.into_iter().collect::<Result<_, _>>()?;
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
