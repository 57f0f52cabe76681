//! Pods that lived as long as they may, with what belongs to their job.
//!
//! Tenants write lifetimes and labels. One that cannot be read ends nothing; a label names companions in the pod's own
//! namespace, and only when no other pod of that job goes on.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;

use super::tenant::{Found, Look};
use super::{AccountPlan, Action, Reason};
use crate::identity::AccountName;
use crate::inventory::pods::{Lifetime, ObservedPod};
use crate::policy::PodReaper;

/// What is due, and left to later cycles.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Pods past their lifetime.
    pub pods: u64,
    /// Whose namespaces are idle.
    pub idle: Vec<AccountName>,
}

/// Adds the pods of a tenant that are due.
pub(super) fn pods(look: Look<'_>, rules: &PodReaper, found: &mut Found) {
    let Some(namespace) = look.tenant.namespace.as_ref() else { return };
    let Some(pods) = look.inventory.pods.get(look.cluster) else { return };
    let there: Vec<(&str, &ObservedPod)> =
        pods.of_namespace(namespace.as_str()).filter(|(_, pod)| !pod.deleting).collect();
    let unreadable: Vec<(&str, &str)> = there
        .iter()
        .filter_map(|(name, pod)| match &pod.lifetime {
            Lifetime::Unreadable(text) => Some((*name, text.as_str())),
            _ => None,
        })
        .collect();
    if let [(name, text), others @ ..] = unreadable.as_slice() {
        let others = if others.is_empty() { String::new() } else { format!(", and {} more pods", others.len()) };
        found.notices.push(format!(
            "pod {namespace}/{name}{others}: lifetime {text:?} is no duration; for example \"90m\". It is ignored"
        ));
    }
    let due = |pod: &ObservedPod| until(pod, rules.lifetime).filter(|until| *until <= look.now);
    // A job that has a pod which goes on keeps what belongs to it.
    let goes_on: BTreeSet<&str> =
        there.iter().filter(|(_, pod)| due(pod).is_none()).filter_map(|(_, pod)| pod.job.as_deref()).collect();
    found.actions.extend(there.iter().filter_map(|(name, pod)| {
        Some(Action::ReapPod {
            cluster: look.cluster.clone(),
            namespace: namespace.clone(),
            name: (*name).to_owned(),
            uid: pod.uid.clone(),
            job: pod.job.clone().filter(|job| !goes_on.contains(job.as_str())),
            reason: Reason::Outlived(due(pod)?),
        })
    }));
}

/// When its life is over; `None`: never, or it did not start.
fn until(pod: &ObservedPod, otherwise: Option<Duration>) -> Option<Timestamp> {
    let lifetime = match &pod.lifetime {
        Lifetime::For(lifetime) => Some(*lifetime),
        Lifetime::Unsaid => otherwise,
        Lifetime::Unreadable(_) => None,
    };
    let seconds = i64::try_from(lifetime?.as_secs()).ok()?;
    Timestamp::from_second(pod.started?.as_second().checked_add(seconds)?).ok()
}

/// Lets so many pods go in one cycle, those first that are due longest. Answers with how many wait.
pub(super) fn cap(accounts: &mut Vec<AccountPlan>, per_cycle: u64) -> u64 {
    let mut due: Vec<(Timestamp, String)> =
        accounts.iter().flat_map(|plan| plan.actions.iter().filter_map(key)).collect();
    due.sort();
    let over: BTreeSet<(Timestamp, String)> =
        due.into_iter().skip(usize::try_from(per_cycle).unwrap_or(usize::MAX)).collect();
    if over.is_empty() {
        return 0;
    }
    accounts.retain_mut(|plan| {
        plan.actions.retain(|action| key(action).is_none_or(|key| !over.contains(&key)));
        !plan.is_idle()
    });
    over.len() as u64
}

/// Due since then, and whose uid it is.
fn key(action: &Action) -> Option<(Timestamp, String)> {
    match action {
        Action::ReapPod { uid, reason: Reason::Outlived(until), .. } => Some((*until, uid.clone())),
        _ => None,
    }
}
