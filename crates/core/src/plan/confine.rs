//! What of a plan goes on where the daemon's confinement is not whole (`[security] require_confinement`): what takes access
//! away. PURE: no runtime, no client, no file system, no clock.

use std::collections::BTreeSet;

use super::{AccountPlan, Action};
use crate::desired::{Regeneration, Transition};
use crate::identity::ClusterName;

/// Takes out what grants or repairs something in these clusters. Nothing of it is remembered, so it is planned again.
pub(super) fn confine(accounts: &mut Vec<AccountPlan>, unconfined: &BTreeSet<ClusterName>) {
    if unconfined.is_empty() {
        return;
    }
    let is_there = |action: &Action| unconfined.contains(action.cluster());
    accounts.retain(|plan| takes_away(plan) || !plan.actions.iter().any(is_there));
    for plan in accounts.iter_mut().filter(|plan| plan.actions.iter().any(is_there)) {
        // A new credential is a grant; the older ones end without it.
        plan.retain_steps(|_, action| !is_there(action) || !matches!(action, Action::Deliver { .. }));
        plan.paced.clear();
    }
}

/// A suspension and what follows it, a revocation, members who leave.
fn takes_away(plan: &AccountPlan) -> bool {
    let by_life = match &plan.transition {
        None => false,
        Some(Transition::Create | Transition::Resume) => return false,
        Some(transition) => matches!(transition, Transition::Suspend(_)),
    };
    let is_revoked = plan.regenerated.as_ref().is_some_and(|why| *why != Regeneration::First);
    by_life || is_revoked || !plan.leaving.is_empty()
}
