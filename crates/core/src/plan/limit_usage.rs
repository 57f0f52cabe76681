//! Finds the limits that are nearly used up, so that administrators know before a limit refuses anything.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::budget::{ACCESS, BUDGETS};
use super::guard::{Bounds, Refusal};
use super::limit::{Limited, spent};
use crate::ledger::Spending;
use crate::policy::{Limit, Limits};

/// A limit is near if this share of it is used. For example, the default allows 20 suspensions a day, so this limit is
/// near when 4 are left.
const NEAR_PERCENT: u64 = 80;

/// The use of a limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitUse {
    /// The key in `[limits]`.
    pub limit: String,
    /// The class that the limit counts.
    pub class: String,
    /// What the limit counts, as in [`Refusal::what`].
    pub what: String,
    /// The amount after this plan. For a daily limit, it includes the last 24 hours.
    pub used: u64,
    /// The part of `used` that comes from this plan.
    pub now: u64,
    /// The amount that the limit allows in all.
    pub allowed: u64,
}

impl std::fmt::Display for LimitUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { limit, class, what, used, now, allowed } = self;
        let state = if used < allowed { "near" } else { "used up" };
        write!(f, "limit {limit} is {state}: {used} of {allowed} {what} of class {class}")?;
        if now > &0 { write!(f, ", {now} of them now") } else { Ok(()) }
    }
}

/// Returns the tighter limit of each class and budget, if that limit is near. A limit that refuses something is left
/// out, because the refusal reports it.
pub(super) fn near_limits(
    bounds: &Bounds,
    by_plan: &BTreeMap<(Spending, String), u64>,
    refusals: &[Refusal],
    now: Timestamp,
) -> Vec<LimitUse> {
    let classes = || bounds.tenants.keys();
    let budgets = BUDGETS.iter().chain([&ACCESS]);
    let uses = budgets.flat_map(|budget| classes().map(move |class| (budget, class))).map(|(budget, class)| {
        let spending = budget.limited.spending;
        let by_plan = by_plan.get(&(spending, class.clone())).copied().unwrap_or_default();
        let size = (budget.size)(bounds, class);
        let day = spent(&bounds.spent, spending, class, now);
        tighter(&budget.limited, &bounds.limits, class, size, (by_plan, day))
    });
    worth_saying(uses, refusals)
}

/// Keeps the limits that are near and refuse nothing.
pub(super) fn worth_saying(uses: impl Iterator<Item = LimitUse>, refusals: &[Refusal]) -> Vec<LimitUse> {
    let said =
        |found: &LimitUse| refusals.iter().any(|refusal| refusal.class == found.class && refusal.what == found.what);
    uses.filter(|found| is_near(found) && !said(found)).collect()
}

/// Returns the limit with the smaller remaining amount. If the amounts are equal, returns the daily limit, because its
/// amount takes longer to become free again.
pub(super) fn tighter(
    limited: &Limited,
    limits: &Limits,
    class: &str,
    size: u64,
    (by_plan, day): (u64, u64),
) -> LimitUse {
    let of = |(limit, allowed): (&str, fn(&Limits) -> Limit), used| LimitUse {
        limit: limit.to_owned(),
        class: class.to_owned(),
        what: limited.what.to_owned(),
        used,
        now: by_plan,
        allowed: allowed(limits).allowed(size),
    };
    let (per_day, per_cycle) = (of(limited.per_day, day + by_plan), of(limited.per_cycle, by_plan));
    if left(&per_cycle) < left(&per_day) { per_cycle } else { per_day }
}

fn left(found: &LimitUse) -> u64 {
    found.allowed.saturating_sub(found.used)
}

/// Whether the limit is near. A limit of 0 is never near, because an administrator chose to allow nothing.
fn is_near(found: &LimitUse) -> bool {
    found.used > 0 && found.allowed > 0 && found.used * 100 >= found.allowed * NEAR_PERCENT
}
