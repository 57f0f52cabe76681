//! Decides what is due in an account's life: creation, suspension, resumption, the end, or a new generation.

use jiff::Timestamp;

use super::{EndOfTenant, Regeneration, Transition};
use crate::ledger::{Account, Ending, Lifecycle, Note, Order, OrderKind, Suspension};
use crate::policy::LifecycleDelays;

/// The decision about an account.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Verdict {
    pub(super) transition: Option<Transition>,
    pub(super) regenerated: Option<Regeneration>,
    /// Whether the account has no access after the transition.
    pub(super) suspended: bool,
    /// The step that the end of the account requires for its namespaces.
    pub(super) end: Option<EndOfTenant>,
}

impl Verdict {
    /// Suspended, and nothing is due.
    pub(super) const SUSPENDED: Self = Self { transition: None, regenerated: None, suspended: true, end: None };
}

/// The facts on which the verdict depends.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Evidence<'a> {
    pub(super) account: &'a Account,
    /// Whether a class takes the account.
    pub(super) wanted: bool,
    /// Open orders, from the oldest to the newest.
    pub(super) orders: &'a [&'a Order],
    pub(super) lifecycle: &'a LifecycleDelays,
    /// Whether absences, disabling marks and lost classes count. If not, the verdict is what remains to do if the guard
    /// refuses every removal.
    pub(super) removals: bool,
    /// Whether leaving members count.
    pub(super) leavings: bool,
    pub(super) namespaces: Namespaces,
    /// Whether the account has credentials that a leaving member may have copied.
    pub(super) shared: bool,
    /// Since when nothing has run in any of its namespaces; `None` if this is not long enough for a suspension.
    pub(super) idle: Option<Timestamp>,
    /// The time of the last request for the account.
    pub(super) asked: Option<Timestamp>,
    pub(super) now: Timestamp,
}

/// The namespaces of an account.
#[derive(Debug, Clone, Copy)]
pub(super) struct Namespaces {
    pub(super) count: u64,
    /// Whether all namespaces were archived during the present suspension.
    pub(super) archived: bool,
    /// Whether no namespace exists any more.
    pub(super) gone: bool,
}

/// Whether complete reads have not shown the account for `absent_for`. If `absent_for` is `0s`, the first such read is
/// enough.
pub(super) fn is_absent(account: &Account, lifecycle: &LifecycleDelays) -> bool {
    account.absence.is_some_and(|absence| absence.seconds >= lifecycle.absent_for.as_secs())
}

/// Decides what is due. Returns `None` if the account is not a tenant and nothing makes it one.
pub(super) fn verdict(evidence: Evidence<'_>) -> Option<Verdict> {
    let Evidence { account, wanted, .. } = evidence;
    let cause = cause(evidence);
    let transition = match (account.state, cause) {
        (Lifecycle::New, Some(cause)) if cause.ordered().is_some() => Some(Transition::Suspend(cause)),
        (Lifecycle::New, None) if wanted && account.absence.is_none() => Some(Transition::Create),
        (Lifecycle::New, _) | (Lifecycle::Deleted, Some(_)) => return None,
        // Only a directory entry brings a deleted account back. It is not enough that a class takes the account again.
        (Lifecycle::Deleted, None) if account.absence.is_some() => return None,
        (Lifecycle::Archived, Some(cause)) => archived(evidence, cause),
        (Lifecycle::Active, Some(cause)) => Some(Transition::Suspend(cause)),
        (Lifecycle::Active, None) => None,
        (Lifecycle::Suspended | Lifecycle::Archived | Lifecycle::Deleted, None) => Some(Transition::Resume),
        (Lifecycle::Suspended, Some(cause)) => {
            let same = account.suspension.as_deref().is_some_and(|known| is_same(known, &cause));
            let ends = same && is_over(evidence) && evidence.namespaces.archived;
            if same { ends.then_some(Transition::Archive) } else { Some(Transition::Suspend(cause)) }
        }
    };
    let suspended = match &transition {
        Some(Transition::Suspend(_) | Transition::Archive | Transition::Delete { .. } | Transition::Gone) => true,
        Some(Transition::Create | Transition::Resume) => false,
        None => matches!(account.state, Lifecycle::Suspended | Lifecycle::Archived),
    };
    let end = match (&transition, account.state, account.ending) {
        (Some(Transition::Delete { .. } | Transition::Gone), ..)
        | (None, Lifecycle::Archived, Some(Ending::Deletion { .. })) => Some(EndOfTenant::Delete),
        (None, Lifecycle::Suspended, _) if is_over(evidence) => Some(EndOfTenant::Archive),
        _ => None,
    };
    let regenerated = regenerated(evidence, suspended);
    Some(Verdict { transition, regenerated, suspended, end })
}

/// Decides what is due after the namespaces were archived. A deletion that has begun is completed even if an
/// administrator orders something else, because half-deleted namespaces are useless.
fn archived(evidence: Evidence<'_>, cause: Suspension) -> Option<Transition> {
    let Evidence { account, lifecycle, namespaces, .. } = evidence;
    match account.ending {
        Some(Ending::Deletion { .. }) => namespaces.gone.then_some(Transition::Gone),
        _ if cause.ordered().is_some() => Some(Transition::Suspend(cause)),
        Some(Ending::Waits(counted)) if counted.seconds >= lifecycle.delete_after.as_secs() => {
            Some(Transition::Delete { namespaces: namespaces.count })
        }
        _ => None,
    }
}

/// Whether the suspension has lasted for `retention`. A suspension by order or for idleness does not end this way.
fn is_over(evidence: Evidence<'_>) -> bool {
    let Evidence { account, lifecycle, namespaces, .. } = evidence;
    let endless = Suspension::is_ordered(account.suspension.as_deref())
        || matches!(account.suspension.as_deref(), Some(Suspension::Idle { .. }));
    let counted = account.ending.as_ref().and_then(Ending::counted);
    !endless && namespaces.count > 0 && counted.is_some_and(|counted| counted.seconds >= lifecycle.retention.as_secs())
}

/// Returns why the account should have no access. Orders take precedence over marks, and marks over absence.
fn cause(evidence: Evidence<'_>) -> Option<Suspension> {
    let Evidence { account, wanted, orders, lifecycle, removals, idle, asked, .. } = evidence;
    let ends = matches!(account.state, Lifecycle::Suspended | Lifecycle::Archived | Lifecycle::Deleted);
    let standing = account.suspension.as_deref().cloned().filter(|_| ends);
    let mut ordered = standing.clone().filter(|standing| standing.ordered().is_some() && !standing.is_over());
    for order in orders {
        match order.what {
            OrderKind::Suspend | OrderKind::Evict => ordered = order.suspends(),
            OrderKind::Resume => ordered = None,
            OrderKind::Revoke | OrderKind::AdoptUid | OrderKind::AdoptAccount | OrderKind::AdoptObject => {}
        }
    }
    let resumed = orders.last().is_some_and(|order| order.what == OrderKind::Resume);
    if ordered.is_some() || !removals {
        return ordered;
    }
    match &account.disabled {
        Some(mark) => Some(Suspension::Disabled { mark: mark.clone() }),
        None if is_absent(account, lifecycle) => Some(Suspension::Absent),
        None if !wanted => Some(Suspension::Left),
        // The counted absence is short again, but the entry is still missing: this suspension ends only when a read
        // shows the entry.
        None if account.absence.is_some() && standing == Some(Suspension::Absent) => standing,
        None if matches!(standing, Some(Suspension::Idle { .. }))
            && !resumed
            && asked.is_none_or(|asked| asked <= account.since) =>
        {
            standing
        }
        None => idle.filter(|_| account.state == Lifecycle::Active).map(|since| Suspension::Idle { since }),
    }
}

/// Whether the known suspension covers the cause already. Another order is always a new cause, because it may change
/// the end of the suspension or evict workloads again.
fn is_same(known: &Suspension, cause: &Suspension) -> bool {
    kind(known) == kind(cause) && (cause.ordered().is_none() || known == cause)
}

fn kind(suspension: &Suspension) -> u8 {
    match suspension {
        Suspension::Ordered { .. } => 0,
        Suspension::Disabled { .. } => 1,
        Suspension::Absent => 2,
        Suspension::Left => 3,
        Suspension::Idle { .. } => 4,
        Suspension::Evicted { .. } => 5,
    }
}

/// Returns why all older certificates must become invalid; `None` if they need not. A suspension raises the generation,
/// and no certificate is issued for the new generation, so a suspended account has nothing to revoke.
fn regenerated(evidence: Evidence<'_>, suspended: bool) -> Option<Regeneration> {
    let Evidence { account, orders, lifecycle, leavings, shared, now, .. } = evidence;
    match (account.state, suspended) {
        (Lifecycle::Active, true) => Some(Regeneration::Suspended),
        (_, false) if account.generation == 0 => Some(Regeneration::First),
        (Lifecycle::Active, false) => {
            let ordered = orders.iter().rev().find(|order| order.what == OrderKind::Revoke);
            let left = leavings && shared && lifecycle.revoke_on_member_removed && !account.leaving.is_empty();
            let left = left.then(|| Note {
                actor: "bursar".to_owned(),
                reason: "a member left".to_owned(),
                ticket: None,
                at: now,
            });
            ordered
                .map(|order| order.note.clone())
                .or_else(|| account.revocation.as_deref().cloned())
                .or(left)
                .map(Regeneration::Revoked)
        }
        // It is unknown who holds certificates of a generation that was learned from a cluster, so such an account gets
        // another generation before it gets access.
        (_, false) => account.revocation.as_deref().cloned().map(Regeneration::Revoked),
        (_, true) => None,
    }
}
