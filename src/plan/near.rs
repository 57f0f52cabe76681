//! Which limits are nearly used up: said before they refuse anything. PURE: no runtime, no client, no file system, no
//! clock.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::budget::{BUDGETS, Budget};
use super::guard::{Bounds, Refusal};
use crate::ledger::Spending;

/// A limit is near when this share of it is used: of the 20 suspensions of a day that the default allows, 4 are left.
const NEAR_PERCENT: u64 = 80;

/// How much of a limit is used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitUse {
    /// The key in `[limits]`.
    pub limit: String,
    /// The class that it counts.
    pub class: String,
    /// `suspensions`, `members` or `deletions`.
    pub what: String,
    /// After this plan; of a day's limit in the last 24 hours.
    pub used: u64,
    /// By this plan.
    pub now: u64,
    /// All that it allows.
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

/// Of each class and budget the tighter limit, if it is near and refuses nothing, for then it is said already.
pub(super) fn near(
    bounds: &Bounds,
    spent: &BTreeMap<(Spending, String), u64>,
    refusals: &[Refusal],
    now: Timestamp,
) -> Vec<LimitUse> {
    let mut near = Vec::new();
    for budget in &BUDGETS {
        for class in bounds.tenants.keys() {
            let by_plan = spent.get(&(budget.spending, class.clone())).copied().unwrap_or_default();
            let tighter = uses(bounds, budget, class, by_plan, now).into_iter().min_by_key(left);
            let said = |found: &LimitUse| {
                refusals.iter().any(|refusal| refusal.class == found.class && refusal.what == found.what)
            };
            near.extend(tighter.filter(|found| is_near(found) && !said(found)));
        }
    }
    near
}

/// Of the day first, which takes longer to be free again.
fn uses(bounds: &Bounds, budget: &Budget, class: &str, by_plan: u64, now: Timestamp) -> [LimitUse; 2] {
    let size = (budget.size)(bounds).get(class).copied().unwrap_or_default();
    let of = |(limit, allowed): (&str, u64), used| LimitUse {
        limit: limit.to_owned(),
        class: class.to_owned(),
        what: budget.what.to_owned(),
        used,
        now: by_plan,
        allowed,
    };
    let per_day = (budget.per_day.1)(&bounds.limits).allowed(size);
    let per_cycle = (budget.per_cycle.1)(&bounds.limits).allowed(size);
    [
        of((budget.per_day.0, per_day), bounds.spent(budget.spending, class, now) + by_plan),
        of((budget.per_cycle.0, per_cycle), by_plan),
    ]
}

fn left(found: &LimitUse) -> u64 {
    found.allowed.saturating_sub(found.used)
}

/// One that allows nothing is a decision, and no news.
fn is_near(found: &LimitUse) -> bool {
    found.used > 0 && found.allowed > 0 && found.used * 100 >= found.allowed * NEAR_PERCENT
}
