//! The engine's clusters: connected, kept ours, and connected anew when anything about them changed.

use std::path::Path;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use kube::config::AuthInfo;
use sha2::{Digest as _, Sha256};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::{Engine, EngineError};
use crate::access::webhook::{self, Kept, WebhookRequest};
use crate::access::{self, AccessError, OwnerWatch, Ownership, Renewal};
use crate::execute::ClusterEffects;
use crate::homes::client::HomedClient;
use crate::identity::ClusterName;
use crate::policy::Cluster;
use crate::report;
use crate::settings::{Settings, SettingsErrors};

/// Between two tries to renew the daemon's own certificate: there are days left, and each try may wait for a signer.
const RENEWAL_AGAIN: SignedDuration = SignedDuration::from_hours(1);

/// Between two looks whether a webhook was installed, and is well. Its certificate is replaced ten days before it ends.
const WEBHOOK_AGAIN: SignedDuration = SignedDuration::from_hours(24);

/// What keeps a connected cluster ours.
pub(super) struct Link {
    owner: OwnerWatch,
    /// When the daemon's own certificate is due; never for an administrator's own kubeconfig.
    renew_after: Option<Timestamp>,
    client: kube::Client,
    /// What the daemon proves itself with.
    credential: AuthInfo,
    /// What its kubeconfig said when it was read.
    file: Option<[u8; 32]>,
    /// When the webhook is to be looked at; `None`: now.
    webhook_due: Option<Timestamp>,
    /// The configuration was read anew: the daemon's own kubeconfig may have to follow it.
    reconfigured: bool,
}

impl Link {
    /// Who owns the cluster, as far as is known.
    pub(super) fn owner(&self) -> Ownership {
        self.owner.receiver().borrow().clone()
    }
}

impl Engine {
    /// Puts another configuration in force. A cluster of which nothing changed stays connected.
    pub fn reload(&mut self, settings: Settings) -> Result<(), SettingsErrors> {
        self.sources = settings.sources()?;
        self.effects.homes =
            HomedClient::new(&settings.homes.socket, settings.homes.deadline).with_prefixes(&settings.homes.prefixes);
        self.effects.archives = settings.archives();
        let known = (&settings.policy, self.store.state());
        let links = &self.links;
        self.effects.clusters.retain(|cluster, effects| {
            let Some(face) = settings.policy.clusters.get(cluster) else { return false };
            effects.face.clone_from(face);
            let file = settings.clusters.get(cluster).and_then(|path| digest(path));
            let read = links.get(cluster).and_then(|link| link.file);
            file.is_some() && file == read && effects.still_serves(known)
        });
        self.links.retain(|cluster, _| self.effects.clusters.contains_key(cluster));
        for link in self.links.values_mut() {
            // Its rules may be others.
            link.webhook_due = None;
            link.reconfigured = true;
        }
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
        if renew {
            self.follow().await;
        }
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
        for (cluster, link) in &self.links {
            if let Some(effects) = self.effects.clusters.get(cluster) {
                effects.server.trials().look_after(&effects.face.endpoints, &link.credential);
            }
        }
        if renew {
            self.keep_webhooks(now).await;
        }
        Ok(())
    }

    /// Clusters whose CA is another since the configuration was read anew are connected anew.
    async fn follow(&mut self) {
        for (cluster, link) in self.links.iter_mut().filter(|(_, link)| link.reconfigured) {
            link.reconfigured = false;
            let (kubeconfig, face) = (&self.settings.clusters[cluster], &self.settings.policy.clusters[cluster]);
            match followed(cluster, kubeconfig, face).await {
                Ok(true) => drop(self.effects.clusters.remove(cluster)),
                Ok(false) => {}
                Err(error) => tracing::warn!(%cluster, error = report::chain(&error), "the daemon's own kubeconfig"),
            }
        }
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
        let face = &self.settings.policy.clusters[cluster];
        if renew {
            followed(cluster, kubeconfig, face).await.map_err(access)?;
        }
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
        let link = Link {
            owner: access::watch_owner(&client),
            renew_after,
            client: client.clone(),
            credential: access::credential(kubeconfig).await.map_err(access)?,
            file: digest(kubeconfig),
            webhook_due: None,
            reconfigured: false,
        };
        tokio::spawn(end_when_taken_over(
            link.owner.receiver(),
            self.store.state().ledger_id.clone(),
            self.stop.clone(),
            self.changed(),
        ));
        let (face, known) = (face.clone(), (&self.settings.policy, self.store.state()));
        Ok((ClusterEffects::start(cluster.clone(), client, face, known, &self.metrics, &self.changed), link))
    }
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

/// The daemon's own kubeconfig has the CA that the configuration has; `true`: since now.
async fn followed(cluster: &ClusterName, kubeconfig: &Path, face: &Cluster) -> Result<bool, AccessError> {
    let changed = access::follow(kubeconfig, face).await?;
    if changed {
        tracing::info!(%cluster, "the daemon's own kubeconfig has the CA of the configuration now");
    }
    Ok(changed)
}

/// SHA-256 of a file; `None`: it cannot be read.
fn digest(path: &Path) -> Option<[u8; 32]> {
    std::fs::read(path).ok().map(|content| Sha256::digest(zeroize::Zeroizing::new(content).as_slice()).into())
}
