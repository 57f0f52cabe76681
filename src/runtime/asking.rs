//! Questions to one cluster or realm that a cycle needs answered, and that it does not wait for long: the work of the others
//! goes on.

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

/// How long a cycle waits for an answer: longer than a busy server takes, short enough for a revocation elsewhere.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// A question that is asked until it is answered or dropped.
pub(super) struct Asking<T> {
    task: AbortOnDropHandle<T>,
    changed: Arc<Notify>,
    /// A cycle waited already.
    is_late: bool,
}

impl<T: Send + 'static> Asking<T> {
    /// Begins to ask. An answer that came too late for a cycle that waited notifies `changed`. Must be called within a
    /// runtime.
    pub(super) fn begin(question: impl Future<Output = T> + Send + 'static, changed: &Arc<Notify>) -> Self {
        let task = AbortOnDropHandle::new(tokio::spawn(question));
        Self { task, changed: Arc::clone(changed), is_late: false }
    }

    /// The answer to what is asked in `place`, which is empty then. `None`: there is none yet, and a later cycle takes it,
    /// without waiting for it again. `patience`: how long this one waits; absent: to the end.
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
        // The runtime ends.
        Err(Err(_)) => std::future::pending().await,
    }
}

/// What a question takes along: it may outlive its cycle.
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
    async fn a_cycle_waits_once_for_a_late_answer_and_a_later_one_takes_it() {
        let (changed, (tell, told)) = (Arc::default(), tokio::sync::oneshot::channel());
        let mut asking = Some(Asking::begin(told, &changed));
        let soon = Some(Duration::from_millis(1));
        assert!(Asking::answer(&mut asking, soon).await.is_none());
        let again = tokio::time::timeout(PATIENCE, Asking::answer(&mut asking, Some(Duration::MAX))).await;
        assert!(again.is_ok_and(|answer| answer.is_none()), "nobody waits twice");
        tell.send(7).expect("it is asked");
        changed.notified().await;
        let answer = Asking::answer(&mut asking, soon).await;
        assert!(matches!(answer, Some(Ok(7))) && asking.is_none());
    }
}
