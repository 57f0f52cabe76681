//! The budgets of `[limits]`: what each budget counts, and how much of it a plan uses.

use super::guard::Bounds;
use super::limit::Limited;
use super::ownerless::sized_as;
use super::{AccountPlan, Action, Reason, hash, loss};
use crate::desired::Transition;
use crate::kinds::Stage;
use crate::ledger::{Failure, Lifecycle, Spending, Suspension};

/// A budget of `[limits]`. Changes that an administrator ordered use no budget.
pub(super) struct Budget {
    pub(super) limited: Limited,
    /// Returns the number of a class to which percentages refer.
    pub(super) size: fn(&Bounds, &str) -> u64,
    /// Returns how much of the budget an account's plan uses.
    pub(super) amount: fn(&AccountPlan) -> u64,
    /// Returns the hash by which an administrator approves the account's part.
    pub(super) part: fn(&AccountPlan) -> String,
}

/// The budgets that refuse an account's whole plan, so that [`AccountPlan::otherwise`] is executed instead.
pub(super) const BUDGETS: [Budget; 5] = [RESUMPTIONS, MARKS, SUSPENSIONS, MEMBERS, DELETIONS];

fn tenants(bounds: &Bounds, class: &str) -> u64 {
    bounds.tenants.get(sized_as(class)).copied().unwrap_or_default()
}

/// Removals of access that are caused neither by a suspension nor by a leaving member. Only these steps are refused,
/// not the whole plan ([`loss::keep`]).
pub(super) const ACCESS: Budget = Budget {
    limited: Limited {
        spending: Spending::RemoveAccess,
        what: REMOVED,
        per_cycle: ("remove_access_per_cycle", |limits| limits.remove_access_per_cycle),
        per_day: ("remove_access_per_day", |limits| limits.remove_access_per_day),
    },
    size: tenants,
    amount: loss::count,
    part: |plan| hash::part(&loss::alone(plan)),
};

/// The name of what [`ACCESS`] counts: each foreign namespace in which an account loses access, and each cluster in
/// which it loses any other access.
pub(super) const REMOVED: &str = "removals of access";

/// If a directory shows hundreds of former members again, it may be a stale replica, or restored from a backup.
const RESUMPTIONS: Budget = Budget {
    limited: Limited {
        spending: Spending::Resume,
        what: RESUMED,
        per_cycle: ("resume_per_cycle", |limits| limits.resume_per_cycle),
        per_day: ("resume_per_day", |limits| limits.resume_per_day),
    },
    size: tenants,
    amount: |plan| u64::from(is_resumption(plan)),
    part: hash::part,
};

/// Suspensions of accounts that a directory locks out. They have a budget of their own, because many absences must not
/// delay the suspension of a dismissed person.
const MARKS: Budget = Budget {
    limited: Limited {
        spending: Spending::Disable,
        what: "suspensions by a mark",
        per_cycle: ("disable_per_cycle", |limits| limits.disable_per_cycle),
        per_day: ("disable_per_day", |limits| limits.disable_per_day),
    },
    size: tenants,
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
    size: tenants,
    amount: |plan| u64::from(is_counted(plan)),
    part: hash::part,
};

/// Members who leave a group or a tool. They are counted even if the removal of the group or tool itself is refused.
pub(super) const MEMBERS: Budget = Budget {
    limited: Limited {
        spending: Spending::RemoveMembers,
        what: "members",
        per_cycle: ("remove_members_per_cycle", |limits| limits.remove_members_per_cycle),
        per_day: ("remove_members_per_day", |limits| limits.remove_members_per_day),
    },
    size: |bounds, class| bounds.members.get(class).copied().unwrap_or_default(),
    amount: |plan| plan.leaving.len() as u64,
    part: hash::part,
};

/// Deletions of namespaces. Each deletion is counted once, when it is allowed, even if it takes several cycles.
const DELETIONS: Budget = Budget {
    limited: Limited {
        spending: Spending::Delete,
        what: "deletions",
        per_cycle: ("delete_per_cycle", |limits| limits.delete_per_cycle),
        per_day: ("delete_per_day", |limits| limits.delete_per_day),
    },
    size: tenants,
    amount: |plan| match plan.transition {
        Some(Transition::Delete { namespaces }) => namespaces,
        _ => 0,
    },
    part: hash::part,
};

/// The name of the unit of [`RESUMPTIONS`].
pub(super) const RESUMED: &str = "resumptions";

/// Whether access returns only because a directory shows the account again. If the cause is an order, or a login to an
/// account that was suspended for idleness, returns false.
fn is_resumption(plan: &AccountPlan) -> bool {
    plan.transition == Some(Transition::Resume)
        && plan.orders.is_empty()
        && !Suspension::is_ordered(plan.before.suspension.as_deref())
        && !matches!(plan.before.suspension.as_deref(), Some(Suspension::Idle { .. }))
}

fn is_marked(plan: &AccountPlan) -> bool {
    matches!(plan.transition, Some(Transition::Suspend(Suspension::Disabled { .. })))
}

/// Whether the plan suspends the account, in one cluster or in all, without an order. Suspensions by a mark are counted
/// in [`MARKS`]. If an account without a namespace is suspended because it left a group, it is counted in [`MEMBERS`]
/// instead, unless the group itself is gone.
pub(super) fn is_counted(plan: &AccountPlan) -> bool {
    plan.before.state == Lifecycle::Active
        && match &plan.transition {
            Some(Transition::Suspend(Suspension::Absent | Suspension::Idle { .. })) => true,
            Some(Transition::Suspend(Suspension::Left)) => !plan.left || plan.begun.values().any(Failure::is_begun),
            Some(_) => false,
            // The class gave up one of the account's clusters. The suspension there is counted only in the cycle in
            // which it begins.
            None => plan.steps().any(|action| match action {
                Action::StopWorkloads { cluster, .. } => plan.begun.get(cluster).is_some_and(Failure::is_begun),
                Action::Delete { key, reason, .. } => *reason == Reason::Suspended && key.kind.stage() == Stage::Access,
                _ => false,
            }),
        }
}
