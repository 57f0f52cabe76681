//! Checks every 15 minutes whether each webhook answers, by a test review that the API server sends to it. Runs in
//! parallel to the cycles. A webhook that does not answer blocks every pod of the tenants, and nothing else would
//! report it.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use tokio_util::task::AbortOnDropHandle;

use super::clusters::{Clusters, Context};
use crate::bootstrap::webhook::remembered::remembered;
use crate::bootstrap::webhook::{Question, WebhookRequest};
use crate::control::api::WebhookAnswer;
use crate::desired::rules::unenforced;

/// The pause between two reviews.
const EVERY: SignedDuration = SignedDuration::from_mins(15);

/// The last review of a cluster's webhook.
#[derive(Default)]
pub(super) struct Review {
    asked_at: Option<Timestamp>,
    answer: Arc<Mutex<Option<WebhookAnswer>>>,
    /// The rules that are not enforced, because no webhook is installed.
    pub(super) unenforced: Option<String>,
    asking: Option<AbortOnDropHandle<()>>,
}

impl Review {
    /// Returns the result of the last review.
    pub(super) fn answer(&self) -> Option<WebhookAnswer> {
        self.answer.lock().clone()
    }

    fn is_due(&self, now: Timestamp) -> bool {
        self.asked_at.is_none_or(|at| at + EVERY <= now || at > now)
    }
}

impl Clusters {
    /// Starts the reviews that are due. No cycle waits for their results.
    pub(super) fn review_webhooks(&mut self, Context { settings, ledger, sealer, now, .. }: Context<'_>) {
        for (cluster, link) in &mut self.links {
            // A webhook that this host did not install may enforce the rules; the confinement reports it.
            let is_without = link.is_without_webhook && !link.confinement.has_foreign_webhook();
            let unenforced = is_without.then(|| unenforced(&settings.policy, cluster, ledger));
            link.review.unenforced = unenforced.flatten();
        }
        let away = |cluster| self.effects.clusters.get(cluster).is_none_or(|it| it.watch.health().error.is_some());
        let due = self.links.iter_mut().filter(|(cluster, link)| link.review.is_due(now) && !away(cluster));
        for (cluster, link) in due {
            let (policy, state_dir) = (&settings.policy, settings.state_dir.as_path());
            let request = WebhookRequest { policy, cluster, ledger, state_dir, sealer, now };
            // If the record cannot be read, `keep_webhooks` reports it.
            let installed = remembered(state_dir, cluster).is_ok_and(|installed| installed.is_some());
            let question = if installed { Question::of(&link.client, request) } else { None };
            let Some(question) = question else {
                link.review = Review { unenforced: link.review.unenforced.take(), ..Review::default() };
                continue;
            };
            let (answer, cluster) = (Arc::clone(&link.review.answer), cluster.clone());
            link.review.asked_at = Some(now);
            link.review.asking = Some(AbortOnDropHandle::new(tokio::spawn(async move {
                let trouble = question.ask().await.err();
                if let Some(why) = &trouble {
                    tracing::error!(%cluster, error = why, "the webhook does not answer");
                }
                *answer.lock() = Some(WebhookAnswer { at: now, trouble });
            })));
        }
    }
}
