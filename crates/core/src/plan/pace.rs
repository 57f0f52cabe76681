//! Rolls out a change of the policy: to one tenant first, then to `change_per_cycle` tenants per cycle. The rollout
//! pauses while a tenant of the latest batch fails.
//!
//! Only steps that the policy causes wait. A waiting tenant keeps its present objects. Its repairs, renewals and orders
//! go on, and so do changes of its own name, ids and overrides.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::guard::Bounds;
use super::{AccountPlan, Action, Reason};
use crate::desired::DesiredTenant;
use crate::identity::{AccountId, AccountName, ClusterName};
use crate::inventory::ClusterInventory;
use crate::kinds::{ManagedKind, ObjectKey};
use crate::ledger::change::Event;
use crate::ledger::pace::PaceRecord;
use crate::ledger::{LedgerState, ObjectRecord};

/// The progress of a policy change in a class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyProgress {
    pub class: String,
    /// The number of tenants that got the change.
    pub done: u64,
    /// The number of tenants that wait.
    pub waiting: u64,
    /// The accounts whose new failures paused the change.
    pub stopped_by: BTreeSet<AccountName>,
}

impl PolicyProgress {
    /// Returns the progress of every unfinished policy change.
    #[must_use]
    pub fn of(ledger: &LedgerState) -> Vec<Self> {
        ledger.paces.iter().map(|(class, pace)| Self::of_class(class, pace, ledger)).collect()
    }

    pub(super) fn of_class(class: &str, pace: &PaceRecord, ledger: &LedgerState) -> Self {
        let stopped_by = ledger.stopped_by(pace);
        Self { class: class.to_owned(), done: pace.done, waiting: pace.waiting, stopped_by }
    }
}

impl std::fmt::Display for PolicyProgress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { class, done, waiting, stopped_by: _ } = self;
        write!(f, "policy change of class {class}: {done} of {} tenants have it{}", done + waiting, self.stop())
    }
}

impl PolicyProgress {
    /// Returns the line of a plan for the tenants that the plan does not reach.
    #[must_use]
    pub fn ahead(&self) -> String {
        let Self { class, done, waiting, stopped_by: _ } = self;
        let all = done + waiting;
        format!("policy change of class {class}: {waiting} of {all} tenants wait for later cycles{}", self.stop())
    }

    fn stop(&self) -> String {
        if self.stopped_by.is_empty() {
            return String::new();
        }
        let names: Vec<String> = self.stopped_by.iter().map(ToString::to_string).collect();
        format!(
            "; paused, because these accounts have failed since they got the change: {}. The change continues when they work again",
            names.join(", ")
        )
    }
}

/// Whether the policy causes an action: the tenant's own data did not change since the tenant was last settled, and
/// nobody else changed the object.
pub(super) fn is_policy(
    place: (&AccountId, &ClusterName),
    tenant: &DesiredTenant,
    action: &Action,
    ledger: &LedgerState,
    there: &ClusterInventory,
) -> bool {
    let known = ledger.settled.get(&(place.0.clone(), place.1.clone()));
    if !known.is_some_and(|own| own.is_empty() || *own == tenant.own) {
        return false;
    }
    match action {
        Action::Apply { key, reason: Reason::Changed(_), .. } => ledger
            .objects
            .get(key)
            .zip(there.objects.get(key))
            .is_some_and(|(record, found)| record.observed == found.digest && record.uid == found.uid),
        Action::Apply { key, reason: Reason::Missing, uid, .. } => uid.is_none() && !ledger.objects.contains_key(key),
        // The directory belongs to a volume that the policy adds.
        Action::MakeDirectory { directory, .. } => {
            let mut its = tenant.directories.iter().filter(|(_, target)| *target == directory);
            its.any(|(volume, _)| !ledger.objects.contains_key(&volume_key(place.1, volume)))
        }
        Action::Delete { reason, .. } => *reason == Reason::Orphaned,
        // A failed delivery is retried without pacing, because its cause is no longer known.
        Action::Deliver { reason: Reason::Changed(_), .. } => {
            !ledger.failures.contains_key(&(place.0.clone(), place.1.clone()))
        }
        // If others delete a namespace and create it again, its bindings are not paced. The level, which must be set
        // before the bindings, is not paced either.
        Action::SetLevel { namespace, .. } => {
            let here = |key: &&ObjectKey| key.namespace.as_deref() == Some(namespace.as_str());
            let known = || tenant.objects.keys().filter(here).filter_map(|key| Some((key, ledger.objects.get(key)?)));
            let stands = |(key, record): (&ObjectKey, &ObjectRecord)| {
                there.objects.get(key).is_some_and(|found| found.uid == record.uid)
            };
            known().next().is_none() || known().any(stands)
        }
        // If the person had changed the keys, `own` would differ, or the step would have another reason.
        Action::SshKeys { reason: Some(Reason::Missing | Reason::Orphaned), .. } => true,
        _ => false,
    }
}

fn volume_key(cluster: &ClusterName, name: &str) -> ObjectKey {
    ObjectKey::new(cluster, ManagedKind::PersistentVolume, None, name)
}

/// The result of [`pace`].
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Paced {
    /// The policy changes in progress after this plan, by class.
    pub(super) under_way: BTreeMap<String, PaceRecord>,
    /// The records that change in the ledger; `None` removes a record.
    pub(super) records: BTreeMap<String, Option<PaceRecord>>,
    /// Events for the history.
    pub(super) events: Vec<Event>,
}

/// Decides which accounts wait, and removes the steps that the policy causes from their plans.
pub(super) fn pace(accounts: &mut Vec<AccountPlan>, bounds: &Bounds, now: Timestamp) -> Paced {
    let mut by_class: BTreeMap<&str, Vec<&AccountPlan>> =
        bounds.paces.keys().map(|class| (class.as_str(), Vec::new())).collect();
    for plan in accounts.iter().filter(|plan| !plan.paced.is_empty() && (!plan.is_urgent() || plan.awaited)) {
        by_class.entry(&plan.class).or_default().push(plan);
    }
    let mut paced = Paced::default();
    let mut waiting: BTreeSet<AccountId> = BTreeSet::new();
    for (class, mut plans) in by_class {
        plans.sort_by_key(|plan| (bounds.failing.contains(&plan.id), &plan.account, &plan.id));
        let (after, through) = next(class, &plans, bounds, now);
        waiting.extend(plans.iter().map(|plan| plan.id.clone()).filter(|id| !through.contains(id)));
        let before = bounds.paces.get(class);
        if before != after.as_ref() {
            paced.events.extend(told(class, before, after.as_ref()));
            paced.records.insert(class.to_owned(), after.clone());
        }
        paced.under_way.extend(after.map(|after| (class.to_owned(), after)));
    }
    accounts.retain_mut(|plan| {
        if waiting.contains(&plan.id) {
            let held = std::mem::take(&mut plan.paced);
            plan.retain_steps(|place, _| !held.contains(&place));
            return !plan.is_idle();
        }
        true
    });
    paced
}

/// Returns the record after this cycle, and the accounts that get the change in it. `plans` are the plans of all
/// accounts that lack the change, in the order in which they get it.
fn next(
    class: &str,
    plans: &[&AccountPlan],
    bounds: &Bounds,
    now: Timestamp,
) -> (Option<PaceRecord>, BTreeSet<AccountId>) {
    let revision = bounds.revisions.get(class).cloned().unwrap_or_default();
    let ids = |plans: &[&AccountPlan]| -> BTreeSet<AccountId> { plans.iter().map(|plan| plan.id.clone()).collect() };
    let waiting = |through: &BTreeSet<AccountId>| (plans.len() - through.len()) as u64;
    let Some(known) = bounds.paces.get(class).filter(|known| known.revision == revision) else {
        let through = ids(&plans[..plans.len().min(1)]);
        let record = PaceRecord {
            revision,
            began: now,
            at: now,
            done: through.len() as u64,
            waiting: waiting(&through),
            last: through.clone(),
            stopped: false,
        };
        return ((record.waiting > 0).then_some(record), through);
    };
    let stopped = bounds.stopped.contains(class);
    if plans.is_empty() && !stopped {
        return (None, BTreeSet::new());
    }
    let (again, others): (Vec<&AccountPlan>, Vec<&AccountPlan>) =
        plans.iter().copied().partition(|plan| known.last.contains(&plan.id));
    let mut record = PaceRecord { stopped, ..known.clone() };
    let mut through = ids(&again);
    if !stopped && again.is_empty() {
        let size = bounds.tenants.get(class).copied().unwrap_or_default();
        let allowed = usize::try_from(bounds.limits.change_per_cycle.allowed(size)).unwrap_or(usize::MAX);
        through = ids(&others[..others.len().min(allowed)]);
        if !through.is_empty() {
            record.at = now;
            record.last.clone_from(&through);
            record.done += through.len() as u64;
        }
    }
    record.waiting = waiting(&through);
    (Some(record), through)
}

fn told(class: &str, before: Option<&PaceRecord>, after: Option<&PaceRecord>) -> Option<Event> {
    let (action, reason) = match (before, after) {
        (Some(before), Some(after)) if before.revision == after.revision => match (before.stopped, after.stopped) {
            (false, true) => ("policy change stopped", "a tenant that got the change fails"),
            (true, false) => ("policy change goes on", "the failures are fixed"),
            _ => return None,
        },
        (_, Some(_)) => ("policy change begun", "the configuration or the program changed"),
        (Some(_), None) => ("policy change done", "no account waits for it any more"),
        (None, None) => return None,
    };
    let record = after.or(before)?;
    let PaceRecord { done, waiting, revision, .. } = record;
    let detail = json!({"class": class, "done": done, "waiting": waiting, "revision": revision});
    Some(Event::new(action, format!("class {class}: {reason}"), detail))
}
