//! Keeps what the daemon installed in connected clusters up to date: the CA in its own kubeconfig, and the webhook.

use jiff::SignedDuration;

use super::connect::RENEWAL_AGAIN;
use super::reach::followed;
use super::{Clusters, Context, Link, is_away, suspect};
use crate::bootstrap::webhook::{self, Kept};
use crate::errors::chain;
use crate::runtime::asking::{Asking, OwnedRequest, PATIENCE as SOON};
use crate::settings::Settings;

/// The pause between two checks whether a webhook was installed and is up to date. Its certificate is replaced ten days
/// before it expires.
const WEBHOOK_AGAIN: SignedDuration = SignedDuration::from_hours(24);

impl Clusters {
    /// Drops the clusters whose kubeconfig got another CA with the new configuration, so that they are connected again.
    pub(super) async fn follow(&mut self, settings: &Settings) {
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
    pub(in crate::runtime) async fn keep_webhooks(&mut self, context: Context<'_>) {
        let now = context.now;
        let (there, changed) = (&self.effects.clusters, &self.changed);
        // A time that is further away than any pause was set while the clock was ahead.
        let is_due = |due| due <= now || due > now + WEBHOOK_AGAIN;
        let due = self.links.iter_mut().filter(|(_, link)| link.webhook_due.is_none_or(is_due));
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
                        tracing::warn!(%cluster, remedy, "the webhook outside the cluster has older rules");
                    }
                    if let Some(not_after) = not_after.filter(|ends| *ends <= now + webhook::ENDS_SOON) {
                        tracing::warn!(%cluster, %not_after, "the certificate of the webhook outside the cluster expires soon");
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
}
