//! The budgets of `[limits]`: what each counts, and what of a plan uses it.

use std::collections::BTreeMap;

use super::guard::Bounds;
use super::limit::Limited;
use super::{AccountPlan, Action};
use crate::desired::Transition;
use crate::ledger::{Failure, Lifecycle, Spending, Suspension};

/// One budget and what it counts.
pub(super) struct Budget {
    pub(super) limited: Limited,
    pub(super) size: fn(&Bounds) -> &BTreeMap<String, u64>,
    /// How much of it an account's plan uses.
    pub(super) amount: fn(&AccountPlan) -> u64,
}

/// All of them.
pub(super) const BUDGETS: [Budget; 4] = [RESUMPTIONS, SUSPENSIONS, MEMBERS, DELETIONS];

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
};

const MEMBERS: Budget = Budget {
    limited: Limited {
        spending: Spending::RemoveMembers,
        what: "members",
        per_cycle: ("remove_members_per_cycle", |limits| limits.remove_members_per_cycle),
        per_day: ("remove_members_per_day", |limits| limits.remove_members_per_day),
    },
    size: |bounds| &bounds.members,
    amount: |plan| plan.leaving.len() as u64,
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
};

/// What [`RESUMPTIONS`] counts.
pub(super) const RESUMED: &str = "resumptions";

/// Access that comes back because a directory says so: nobody ordered it, and nobody asked for the account.
fn is_resumption(plan: &AccountPlan) -> bool {
    plan.transition == Some(Transition::Resume)
        && plan.orders.is_empty()
        && !matches!(plan.before.suspension, Some(Suspension::Ordered(_) | Suspension::Idle { .. }))
}

/// A suspension that takes something away and that nobody ordered, in one cluster or in all. Somebody without a namespace
/// who leaves a group was counted as that group's member.
fn is_counted(plan: &AccountPlan) -> bool {
    plan.before.state == Lifecycle::Active
        && match &plan.transition {
            Some(Transition::Suspend(Suspension::Absent | Suspension::Disabled { .. } | Suspension::Idle { .. })) => {
                true
            }
            Some(Transition::Suspend(Suspension::Left)) => {
                plan.rests_on.is_empty() || plan.begun.values().any(Failure::is_begun)
            }
            Some(_) => false,
            // Its class gave up one of its clusters.
            None => plan.steps().any(|action| matches!(action, Action::StopWorkloads { .. })),
        }
}
