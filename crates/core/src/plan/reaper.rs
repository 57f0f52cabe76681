//! Plans the deletion of pods whose lifetime is over, with the objects of their job.
//!
//! Tenants write lifetimes and labels, so both are untrusted. A lifetime that cannot be parsed is ignored. A job label
//! affects only objects in the pod's own namespace, and only if no other pod of that job continues.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::tenant::{Found, Look};
use super::{AccountPlan, Action, Reason};
use crate::contract::exception::ExceptedRule;
use crate::identity::AccountName;
use crate::inventory::pods::{Lifetime, ObservedPod, is_late};
use crate::policy::{ClassLifetimes, PodReaper};

/// Deletions and suspensions that are due but left to later cycles.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Waiting {
    /// The number of pods that are still to be deleted.
    pub pods: u64,
    /// Idle accounts that are still to be suspended.
    pub idle: Vec<AccountName>,
}

/// Adds the deletion of a tenant's due pods to `found`, and the warnings of pods that are due soon.
pub(super) fn pods(look: Look<'_>, rules: &PodReaper, found: &mut Found) {
    let Some(namespace) = look.tenant.namespace.as_ref() else { return };
    let Some(pods) = look.inventory.pods.get(look.cluster) else { return };
    let (ending, there): (Vec<_>, Vec<_>) =
        pods.of_namespace(namespace.as_str()).partition(|(_, pod)| pod.ends_by.is_some());
    found.notices.extend(late(&ending, look.now).map(|(name, by)| {
        format!(
            "pod {namespace}/{name} should have ended by {by:.0} and may still run: its node does not answer, or waits for \
             an earlier, longer grace period: restart the kubelet of the node"
        )
    }));
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
            "pod {namespace}/{name}{others}: lifetime {text:?} is ignored: it is not a duration such as \"90m\""
        ));
    }
    let is_excepted = look.ledger.excepted(look.id, look.cluster).contains(&ExceptedRule::Lifetime);
    let class = rules
        .classes
        .get(&look.tenant.class)
        .map(|class| ClassLifetimes { lifetimes: class.lifetimes.unless(is_excepted), ..*class });
    let class = class.as_ref();
    let ends = |pod: &ObservedPod| until(pod, rules.lifetime, class);
    let due = |pod: &ObservedPod| ends(pod).filter(|until| *until <= look.now);
    // While any pod of a job is not due, the objects of that job stay.
    let goes_on: BTreeSet<&str> =
        there.iter().filter(|(_, pod)| due(pod).is_none()).filter_map(|(_, pod)| pod.job.as_deref()).collect();
    found.take(there.iter().filter_map(|(name, pod)| {
        Some(Action::ReapPod {
            cluster: look.cluster.clone(),
            namespace: namespace.clone(),
            name: (*name).to_owned(),
            uid: pod.uid.clone(),
            job: pod.job.clone().filter(|job| !goes_on.contains(job.as_str())),
            maker: pod.maker.clone().filter(|_| class.is_some_and(|class| !class.lifetimes.is_unbound())).map(Box::new),
            reason: Reason::Outlived(due(pod)?),
        })
    }));
    let warn = class.map_or(Duration::ZERO, |class| class.warn);
    let told = to_tell(&there, ends, warn, look.now);
    let told = told.into_iter().take(usize::try_from(rules.per_cycle).unwrap_or(usize::MAX));
    found.actions.extend(told.map(|(name, pod, until)| Action::WarnPod {
        cluster: look.cluster.clone(),
        namespace: namespace.clone(),
        name: name.to_owned(),
        uid: pod.uid.clone(),
        until,
    }));
}

/// Returns the deleted pods that run longer than their grace period. The API server cannot end them.
fn late<'p>(ending: &[(&'p str, &'p ObservedPod)], now: Timestamp) -> impl Iterator<Item = (&'p str, Timestamp)> {
    let running = ending.iter().filter(|(_, pod)| pod.started.is_some() && !pod.finished);
    running.filter_map(move |(name, pod)| Some((*name, pod.ends_by.filter(|by| is_late(*by, now))?)))
}

/// Returns when the pod's lifetime is over; `None` if the pod has no end, or did not start. The limits of the class are
/// applied here too, because the webhook may have been down when the pod was created.
fn until(pod: &ObservedPod, otherwise: Option<Duration>, class: Option<&ClassLifetimes>) -> Option<Timestamp> {
    let said = match &pod.lifetime {
        Lifetime::For(lifetime) => Some(*lifetime),
        Lifetime::Unsaid => class.and_then(|class| class.lifetimes.default.map(Duration::from_secs)).or(otherwise),
        Lifetime::Unreadable(_) => None,
    };
    let lifetime = class.map_or(said, |class| class.lifetimes.of(said));
    let seconds = i64::try_from(lifetime?.as_secs()).ok()?;
    Timestamp::from_second(pod.started?.as_second().checked_add(seconds)?).ok()
}

/// Returns the pods whose lifetime ends soon and whose people were not warned of this end. The pod's annotation records
/// the announced end, so people are warned again if the end moves.
fn to_tell<'p>(
    there: &[(&'p str, &'p ObservedPod)],
    ends: impl Fn(&ObservedPod) -> Option<Timestamp>,
    warn: Duration,
    now: Timestamp,
) -> Vec<(&'p str, &'p ObservedPod, Timestamp)> {
    let warn = SignedDuration::try_from(warn).unwrap_or(SignedDuration::MAX);
    let near = |until: &Timestamp| *until > now && until.duration_since(now) <= warn;
    let running = there.iter().filter(|(_, pod)| !pod.finished && !warn.is_zero());
    let mut told: Vec<_> = running
        .filter_map(|(name, pod)| Some((*name, *pod, ends(pod).filter(near)?)))
        .filter(|(_, pod, until)| pod.told.as_deref() != Some(&format!("{until:.0}")))
        .collect();
    told.sort_by_key(|(name, _, until)| (*until, *name));
    told
}

/// Keeps at most `per_cycle` deletions of pods, and prefers the pods that have been due longest. Returns the number of
/// deletions that wait.
pub(super) fn cap(accounts: &mut Vec<AccountPlan>, per_cycle: u64) -> u64 {
    let mut due: Vec<(Timestamp, String)> = accounts.iter().flat_map(|plan| plan.steps().filter_map(key)).collect();
    due.sort();
    let over: BTreeSet<(Timestamp, String)> =
        due.into_iter().skip(usize::try_from(per_cycle).unwrap_or(usize::MAX)).collect();
    if over.is_empty() {
        return 0;
    }
    accounts.retain_mut(|plan| {
        plan.retain_steps(|_, action| key(action).is_none_or(|key| !over.contains(&key)));
        !plan.is_idle()
    });
    over.len() as u64
}

/// Returns since when a pod is due, with its UID; `None` if the action deletes no pod.
fn key(action: &Action) -> Option<(Timestamp, String)> {
    match action {
        Action::ReapPod { uid, reason: Reason::Outlived(until), .. } => Some((*until, uid.clone())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::Lifetimes;

    const HOUR: u64 = 3600;

    fn at(text: &str) -> Timestamp {
        text.parse().expect("the text is a timestamp")
    }

    /// Returns a pod that started at midnight. A `lifetime` of `-` means that the pod has no lifetime.
    fn pod(lifetime: &str) -> ObservedPod {
        ObservedPod {
            uid: "uid".to_owned(),
            created: at("2026-05-01T00:00:00Z"),
            started: Some(at("2026-05-01T00:00:00Z")),
            lifetime: Lifetime::read((lifetime != "-").then_some(lifetime)),
            job: None,
            finished: false,
            ends_by: None,
            told: None,
            maker: None,
        }
    }

    fn class(max: Option<u64>, default: Option<u64>) -> ClassLifetimes {
        ClassLifetimes { lifetimes: Lifetimes { max, default, required: false }, warn: Duration::from_secs(HOUR) }
    }

    #[test]
    fn the_lifetime_of_the_class_bounds_that_of_the_pod() {
        let hours = |pod: &ObservedPod, class: Option<&ClassLifetimes>| {
            let seconds =
                until(pod, Some(Duration::from_secs(30 * HOUR)), class)?.duration_since(pod.started?).as_secs();
            Some(seconds / HOUR.cast_signed())
        };
        let both = class(Some(24 * HOUR), Some(8 * HOUR));
        for (said, expected) in [("4h", 4), ("24h", 24), ("30d", 24), ("-", 8), ("soon", 8)] {
            assert_eq!(hours(&pod(said), Some(&both)), Some(expected), "{said}");
        }
        let most = class(Some(24 * HOUR), None);
        assert_eq!(["-", "soon", "25h"].map(|said| hours(&pod(said), Some(&most))), [Some(24); 3]);
        let default = class(None, Some(8 * HOUR));
        assert_eq!(["-", "30d", "soon"].map(|said| hours(&pod(said), Some(&default))), [Some(8), Some(720), Some(8)]);
        assert_eq!(["-", "90d", "soon"].map(|said| hours(&pod(said), None)), [Some(30), Some(2160), None]);
        assert_eq!(
            hours(&ObservedPod { started: None, ..pod("4h") }, Some(&both)),
            None,
            "a pod that did not start has no end"
        );
    }

    #[test]
    fn a_deleted_pod_that_runs_a_minute_longer_than_its_grace_period_is_reported() {
        let reported = |pod: &ObservedPod, now: &str| late(&[("web", pod)], at(now)).count();
        let web = ObservedPod { ends_by: Some(at("2026-05-01T01:00:30Z")), ..pod("-") };
        assert_eq!(reported(&web, "2026-05-01T01:01:30Z"), 0);
        assert_eq!(reported(&web, "2026-05-01T01:01:31Z"), 1);
        assert_eq!(reported(&ObservedPod { finished: true, ..web.clone() }, "2026-05-02T00:00:00Z"), 0);
        assert_eq!(reported(&ObservedPod { started: None, ..web }, "2026-05-02T00:00:00Z"), 0);
    }

    #[test]
    fn a_pods_end_is_announced_once_and_again_if_it_moves() {
        let class = class(Some(24 * HOUR), None);
        let told = |pod: &ObservedPod, now: &str| {
            let ends = |pod: &ObservedPod| until(pod, None, Some(&class));
            to_tell(&[("web", pod)], ends, class.warn, at(now)).into_iter().map(|(.., until)| until.to_string()).next()
        };
        let mut web = pod("4h");
        assert_eq!(told(&web, "2026-05-01T02:59:59Z"), None);
        assert_eq!(told(&web, "2026-05-01T03:00:00Z").as_deref(), Some("2026-05-01T04:00:00Z"));
        assert_eq!(told(&web, "2026-05-01T04:00:00Z"), None, "there is no warning after the time has come");
        web.told = Some("2026-05-01T04:00:00Z".to_owned());
        assert_eq!(told(&web, "2026-05-01T03:30:00Z"), None);
        web.lifetime = Lifetime::read(Some("5h"));
        assert_eq!(told(&web, "2026-05-01T04:10:00Z").as_deref(), Some("2026-05-01T05:00:00Z"));
        assert_eq!(told(&ObservedPod { finished: true, ..web }, "2026-05-01T04:10:00Z"), None);
    }
}
