//! Runs requests to a cluster or a realm in the background. A cycle waits only briefly for each answer, so that a slow
//! server does not delay the others.

use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

use super::clusters::Context;
use crate::bootstrap::webhook::WebhookRequest;
use crate::contract::Sealer;
use crate::identity::ClusterName;
use crate::ledger::LedgerState;
use crate::policy::Policy;

/// How long a cycle waits for an answer: long enough for a busy server, and so short that it hardly delays a revocation in
/// another cluster.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// A request that runs until it is answered or dropped.
pub(super) struct Asking<T> {
    task: AbortOnDropHandle<T>,
    changed: Arc<Notify>,
    /// Whether a cycle has already waited for the answer.
    is_late: bool,
}

impl<T: Send + 'static> Asking<T> {
    /// Begins the request. If the answer comes after a cycle has stopped waiting, `changed` is notified. Must be called
    /// within a Tokio runtime.
    pub(super) fn begin(question: impl Future<Output = T> + Send + 'static, changed: &Arc<Notify>) -> Self {
        let task = AbortOnDropHandle::new(tokio::spawn(question));
        Self { task, changed: Arc::clone(changed), is_late: false }
    }

    /// Takes the answer of the request in `place`, and empties `place`. Waits for at most `patience`, or as long as
    /// it takes if `patience` is `None`. Returns `None` if no answer has come. Then a later cycle takes the answer, and
    /// does not wait again.
    pub(super) async fn answer(place: &mut Option<Self>, patience: Option<Duration>) -> Option<T> {
        let asking = place.as_mut()?;
        let patience = match patience {
            None => Duration::MAX,
            Some(_) if asking.is_late => Duration::ZERO,
            Some(patience) => patience,
        };
        if let Ok(answer) = tokio::time::timeout(patience, joined(&mut asking.task)).await {
            *place = None;
            return Some(answer);
        }
        if !asking.is_late {
            let Self { mut task, changed, .. } = place.take()?;
            let tells = Arc::clone(&changed);
            let task = tokio::spawn(async move {
                let answer = joined(&mut task).await;
                tells.notify_one();
                answer
            });
            *place = Some(Self { task: AbortOnDropHandle::new(task), changed, is_late: true });
        }
        None
    }
}

async fn joined<T>(task: &mut AbortOnDropHandle<T>) -> T {
    match task.await.map_err(tokio::task::JoinError::try_into_panic) {
        Ok(answer) => answer,
        Err(Ok(panic)) => resume_unwind(panic),
        // The Tokio runtime is shutting down.
        Err(Err(_)) => std::future::pending().await,
    }
}

/// An owned copy of a webhook request, because the task that uses it may outlive its cycle.
pub(super) struct OwnedRequest {
    policy: Policy,
    cluster: ClusterName,
    ledger: LedgerState,
    state_dir: PathBuf,
    sealer: Arc<Sealer>,
    now: Timestamp,
}

impl OwnedRequest {
    pub(super) fn of(Context { settings, ledger, sealer, now, .. }: Context<'_>, cluster: &ClusterName) -> Self {
        let (policy, state_dir) = (settings.policy.clone(), settings.state_dir.clone());
        Self { policy, cluster: cluster.clone(), ledger: ledger.clone(), state_dir, sealer: Arc::clone(sealer), now }
    }

    pub(super) fn borrowed(&self) -> WebhookRequest<'_> {
        let Self { policy, cluster, ledger, state_dir, sealer, now } = self;
        WebhookRequest { policy, cluster, ledger, state_dir, sealer, now: *now }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_cycle_waits_once_for_a_late_answer_and_a_later_cycle_takes_it() {
        let (changed, (tell, told)) = (Arc::default(), tokio::sync::oneshot::channel());
        let mut asking = Some(Asking::begin(told, &changed));
        let soon = Some(Duration::from_millis(1));
        assert!(Asking::answer(&mut asking, soon).await.is_none());
        let again = tokio::time::timeout(PATIENCE, Asking::answer(&mut asking, Some(Duration::MAX))).await;
        assert!(again.is_ok_and(|answer| answer.is_none()), "a cycle waits only once");
        tell.send(7).expect("the request still runs");
        changed.notified().await;
        let answer = Asking::answer(&mut asking, soon).await;
        assert!(matches!(answer, Some(Ok(7))) && asking.is_none());
    }
}
