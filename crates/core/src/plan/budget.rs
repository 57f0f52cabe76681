//! The budgets of `[limits]`: what each counts, and what of a plan uses it.

use std::collections::BTreeMap;

use super::guard::Bounds;
use super::limit::Limited;
use super::{AccountPlan, Action, Reason, hash, loss};
use crate::desired::Transition;
use crate::kinds::Stage;
use crate::ledger::{Failure, Lifecycle, Spending, Suspension};

/// One budget and what it counts. What an administrator ordered uses none of any.
pub(super) struct Budget {
    pub(super) limited: Limited,
    pub(super) size: fn(&Bounds) -> &BTreeMap<String, u64>,
    /// How much of it an account's plan uses.
    pub(super) amount: fn(&AccountPlan) -> u64,
    /// The hash of what an approval lets through.
    pub(super) part: fn(&AccountPlan) -> String,
}

/// Those that refuse an account's whole plan: [`AccountPlan::otherwise`] is done instead.
pub(super) const BUDGETS: [Budget; 5] = [RESUMPTIONS, MARKS, SUSPENSIONS, MEMBERS, DELETIONS];

/// What is left when access goes neither by a suspension nor with a member: the steps alone are refused
/// ([`loss::keep`]).
pub(super) const ACCESS: Budget = Budget {
    limited: Limited {
        spending: Spending::RemoveAccess,
        what: REMOVED,
        per_cycle: ("remove_access_per_cycle", |limits| limits.remove_access_per_cycle),
        per_day: ("remove_access_per_day", |limits| limits.remove_access_per_day),
    },
    size: |bounds| &bounds.tenants,
    amount: loss::count,
    part: |plan| hash::part(&loss::alone(plan)),
};

/// What [`ACCESS`] counts: namespaces of others, and clusters in which an account loses anything else.
pub(super) const REMOVED: &str = "removals of access";

/// A directory that shows hundreds of people again who left may be behind, or restored from a backup.
const RESUMPTIONS: Budget = Budget {
    limited: Limited {
        spending: Spending::Resume,
        what: RESUMED,
        per_cycle: ("resume_per_cycle", |limits| limits.resume_per_cycle),
        per_day: ("resume_per_day", |limits| limits.resume_per_day),
    },
    size: |bounds| &bounds.tenants,
    amount: |plan| u64::from(is_resumption(plan)),
    part: hash::part,
};

/// Suspensions of accounts that a directory locks out. Nothing else uses this budget up: a mass of absences must not
/// keep the access of somebody who was dismissed.
const MARKS: Budget = Budget {
    limited: Limited {
        spending: Spending::Disable,
        what: "suspensions by a mark",
        per_cycle: ("disable_per_cycle", |limits| limits.disable_per_cycle),
        per_day: ("disable_per_day", |limits| limits.disable_per_day),
    },
    size: |bounds| &bounds.tenants,
    amount: |plan| u64::from(plan.before.state == Lifecycle::Active && is_marked(plan)),
    part: hash::part,
};

const SUSPENSIONS: Budget = Budget {
    limited: Limited {
        spending: Spending::Suspend,
        what: "suspensions",
        per_cycle: ("suspend_per_cycle", |limits| limits.suspend_per_cycle),
        per_day: ("suspend_per_day", |limits| limits.suspend_per_day),
    },
    size: |bounds| &bounds.tenants,
    amount: |plan| u64::from(is_counted(plan)),
    part: hash::part,
};

/// Members who leave, whether or not their account's own removal is refused.
pub(super) const MEMBERS: Budget = Budget {
    limited: Limited {
        spending: Spending::RemoveMembers,
        what: "members",
        per_cycle: ("remove_members_per_cycle", |limits| limits.remove_members_per_cycle),
        per_day: ("remove_members_per_day", |limits| limits.remove_members_per_day),
    },
    size: |bounds| &bounds.members,
    amount: |plan| plan.leaving.len() as u64,
    part: hash::part,
};

/// Counted when it is let through: that it takes several cycles is no further deletion.
const DELETIONS: Budget = Budget {
    limited: Limited {
        spending: Spending::Delete,
        what: "deletions",
        per_cycle: ("delete_per_cycle", |limits| limits.delete_per_cycle),
        per_day: ("delete_per_day", |limits| limits.delete_per_day),
    },
    size: |bounds| &bounds.tenants,
    amount: |plan| match plan.transition {
        Some(Transition::Delete { namespaces }) => namespaces,
        _ => 0,
    },
    part: hash::part,
};

/// What [`RESUMPTIONS`] counts.
pub(super) const RESUMED: &str = "resumptions";

/// Access that comes back because a directory says so: nobody ordered it, and nobody asked for the account.
fn is_resumption(plan: &AccountPlan) -> bool {
    plan.transition == Some(Transition::Resume)
        && plan.orders.is_empty()
        && !Suspension::is_ordered(plan.before.suspension.as_ref())
        && !matches!(plan.before.suspension, Some(Suspension::Idle { .. }))
}

fn is_marked(plan: &AccountPlan) -> bool {
    matches!(plan.transition, Some(Transition::Suspend(Suspension::Disabled { .. })))
}

/// A suspension that takes something away and that nobody ordered, in one cluster or in all; marks are counted apart.
/// Somebody without a namespace who leaves a group was counted as that group's member; of a group that is gone nobody was.
fn is_counted(plan: &AccountPlan) -> bool {
    plan.before.state == Lifecycle::Active
        && match &plan.transition {
            Some(Transition::Suspend(Suspension::Absent | Suspension::Idle { .. })) => true,
            Some(Transition::Suspend(Suspension::Left)) => !plan.left || plan.begun.values().any(Failure::is_begun),
            Some(_) => false,
            // Its class gave up one of its clusters. What is left of that was counted when it began.
            None => plan.steps().any(|action| match action {
                Action::StopWorkloads { cluster, .. } => plan.begun.get(cluster).is_some_and(Failure::is_begun),
                Action::Delete { key, reason, .. } => *reason == Reason::Suspended && key.kind.stage() == Stage::Access,
                _ => false,
            }),
        }
}
