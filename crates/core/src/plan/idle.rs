//! Counts how long namespaces are idle. The evidence is a watch that shows all pods and, if the site has one, a
//! Prometheus that shows which namespaces are in use.
//!
//! Idle time is counted like absence, as a sum of gaps of at most an hour each. Therefore it does not grow by more than
//! an hour if the daemon was off, the cluster did not answer, or the clock jumps.

use jiff::Timestamp;

use super::tenant::{Found, Look};
use super::{AccountPlan, Action};
use crate::desired::Transition;
use crate::identity::{AccountId, ClusterName};
use crate::inventory::Inventory;
use crate::kinds::ObjectKey;
use crate::ledger::change::Change;
use crate::ledger::gaps::{self, later};
use crate::ledger::idle::Idleness;
use crate::ledger::{LedgerState, Lifecycle, Suspension, Tenant};
use crate::policy::NamespaceReaper;

/// The shortest time in seconds between two records of idle time, unless a warning or a suspension becomes due.
const COUNT_EVERY: i64 = 1800;

/// Returns the changes of the recorded idle times after this look at the pods.
#[must_use]
pub fn count(ledger: &LedgerState, inventory: &Inventory, rules: &NamespaceReaper, now: Timestamp) -> Vec<Change> {
    let changed = ledger.tenants.iter().filter_map(|(place, tenant)| {
        let before = ledger.idle.get(place);
        let served = ledger.accounts.get(&place.0).is_some_and(|account| account.state == Lifecycle::Active);
        // If the cluster does not show its pods, the idle time that was counted stays.
        let used = if served { used(place, tenant, inventory, rules, now)? } else { Used::Now };
        let after = match (used, before) {
            (Used::Now, None) => return None,
            (Used::Now, Some(_)) => None,
            (Used::Until(last), Some(before)) if last.max(ledger.asked(&place.0, now)) <= Some(before.since) => {
                Some(counted(before, rules, now)?)
            }
            (Used::Until(_), _) => {
                let due = later(now, rules.idle_for.as_secs());
                Some(Idleness { since: now, counted_at: now, seconds: 0, due, warned_at: None })
            }
        };
        Some(Change::Idle(place.0.clone(), place.1.clone(), after))
    });
    changed.collect()
}

enum Used {
    /// Something runs, or the namespace has the annotation that keeps it.
    Now,
    /// Nothing runs. The last known use is the creation of a finished pod, or the time in the annotation of the last
    /// use.
    Until(Option<Timestamp>),
}

/// Returns the use of a tenant's namespace; `None` if its cluster or the evidence is unknown. An annotation later than
/// `now` comes from a wrong clock and does not count.
fn used(
    place: &(AccountId, ClusterName),
    tenant: &Tenant,
    inventory: &Inventory,
    rules: &NamespaceReaper,
    now: Timestamp,
) -> Option<Used> {
    let Some(namespace) = &tenant.namespace else { return Some(Used::Now) };
    let pods = inventory.pods.get(&place.1)?;
    let object = inventory.clusters.get(&place.1)?.objects.get(&ObjectKey::namespace(&place.1, namespace))?;
    if rules.evidence.contains_key(&place.1) && inventory.in_use.get(&place.1)?.contains(namespace.as_str()) {
        return Some(Used::Now);
    }
    if object.spared {
        return Some(Used::Now);
    }
    let mut last = object.last_use().filter(|used| *used <= now);
    for (_, pod) in pods.of_namespace(namespace.as_str()) {
        if !pod.finished {
            return Some(Used::Now);
        }
        last = last.max(Some(pod.created));
    }
    Some(Used::Until(last))
}

/// Returns the idle time after this look; `None` if it need not be recorded yet.
fn counted(before: &Idleness, rules: &NamespaceReaper, now: Timestamp) -> Option<Idleness> {
    let gap = now.as_second() - before.counted_at.as_second();
    let seconds = before.seconds + gaps::counted(gap);
    let after = Idleness { counted_at: now, seconds, ..before.clone() };
    let news = (after.wants_warning(rules) && !before.wants_warning(rules))
        || (after.is_due(rules, now) && before.seconds < rules.idle_for.as_secs());
    if (0..COUNT_EVERY).contains(&gap) && !news {
        return None;
    }
    let due = if after.warned_at.is_some() {
        after.due
    } else {
        later(now, rules.idle_for.as_secs().saturating_sub(seconds))
    };
    Some(Idleness { due, ..after })
}

/// Adds a warning for the people of a namespace that will be suspended soon because it is idle.
pub(super) fn warnings(look: Look<'_>, rules: &NamespaceReaper, found: &mut Found) {
    let place = (look.id.clone(), look.cluster.clone());
    let idle = look.ledger.idle.get(&place).filter(|idle| idle.wants_warning(rules));
    let namespace = look.tenant.namespace.as_ref().filter(|_| !look.tenant.suspended);
    found.actions.extend(idle.zip(namespace).map(|(idle, namespace)| Action::WarnIdle {
        cluster: look.cluster.clone(),
        namespace: namespace.clone(),
        idle_since: idle.since,
        until: idle.due_after_warning(rules, look.now),
        counted: idle.counted_at_warning(rules),
    }));
}

/// Returns the accounts that are due but exceed `per_cycle`. The accounts that have been idle longest are suspended
/// first.
pub(super) fn over(accounts: &[AccountPlan], per_cycle: u64) -> Vec<&AccountPlan> {
    let mut due: Vec<(Timestamp, &AccountPlan)> = accounts
        .iter()
        .filter_map(|plan| match &plan.transition {
            Some(Transition::Suspend(Suspension::Idle { since })) => Some((*since, plan)),
            _ => None,
        })
        .collect();
    due.sort_by_key(|(since, plan)| (*since, &plan.id));
    due.into_iter().skip(usize::try_from(per_cycle).unwrap_or(usize::MAX)).map(|(_, plan)| plan).collect()
}
