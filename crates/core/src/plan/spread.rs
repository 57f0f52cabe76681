//! Computes how many cycles a plan takes under the limits, if nothing else changes meanwhile.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use serde::Serialize;

use super::budget::{ACCESS, BUDGETS, Budget};
use super::guard::Bounds;
use super::limit::spent;
use super::pace::PolicyProgress;
use super::{AccountPlan, Plan};

/// A kind of change in one class that takes more than one cycle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Spread {
    /// The class that the limit counts.
    pub class: String,
    /// What the limit counts, as in a refusal, or `changes`.
    pub what: String,
    /// The number of changes.
    pub wanted: u64,
    /// The key of the limit that causes the most cycles.
    pub limit: String,
    /// The number of cycles; `None` if the limit allows no change.
    pub cycles: Option<u64>,
    /// The number of days that the cycles take; 1 if all cycles fit into today.
    pub days: u64,
}

impl Spread {
    /// Returns every change that takes more than one cycle.
    #[must_use]
    pub fn of(plan: &Plan, progress: &[PolicyProgress], bounds: &Bounds, now: Timestamp) -> Vec<Self> {
        let changes = progress.iter().filter(|progress| progress.waiting > 0).map(|progress| {
            let size = bounds.tenants.get(&progress.class).copied().unwrap_or_default();
            let per_cycle = bounds.limits.change_per_cycle.allowed(size);
            Self {
                class: progress.class.clone(),
                what: "changes".to_owned(),
                wanted: progress.done + progress.waiting,
                limit: "change_per_cycle".to_owned(),
                // The present cycle, plus the later cycles.
                cycles: (per_cycle > 0).then(|| 1 + progress.waiting.div_ceil(per_cycle)),
                days: 1,
            }
        });
        let limited = BUDGETS.iter().chain([&ACCESS]).flat_map(|budget| limited(budget, plan, bounds, now));
        changes.chain(limited).collect()
    }
}

fn limited(budget: &Budget, plan: &Plan, bounds: &Bounds, now: Timestamp) -> Vec<Spread> {
    let mut classes: BTreeMap<&str, u64> = BTreeMap::new();
    for plan in plan.accounts.iter().filter_map(AccountPlan::done) {
        *classes.entry(&plan.class).or_default() += (budget.amount)(plan);
    }
    let limited = &budget.limited;
    let of_class = |(class, wanted): (&str, u64)| {
        let size = (budget.size)(bounds, class);
        let (in_cycle, in_day) = (limited.per_cycle.1, limited.per_day.1);
        let (per_cycle, per_day) = (in_cycle(&bounds.limits).allowed(size), in_day(&bounds.limits).allowed(size));
        let today = per_day.saturating_sub(spent(&bounds.spent, limited.spending, class, now));
        if wanted <= per_cycle.min(today) {
            return None;
        }
        let days = if wanted <= today { 1 } else { 1 + (wanted - today).div_ceil(per_day.max(1)) };
        // If the limit per cycle is 0, no number of days is enough.
        let limit = if days > 1 && per_cycle > 0 { limited.per_day.0 } else { limited.per_cycle.0 };
        let of_day = |amount: u64| amount.div_ceil(per_cycle.max(1));
        let (first, later) = (wanted.min(today), wanted - wanted.min(today));
        let (full, rest) = (later / per_day.max(1), later % per_day.max(1));
        let cycles = of_day(first) + full * of_day(per_day) + of_day(rest);
        Some(Spread {
            class: class.to_owned(),
            what: limited.what.to_owned(),
            wanted,
            limit: limit.to_owned(),
            cycles: (per_cycle > 0 && per_day > 0).then_some(cycles),
            days,
        })
    };
    classes.into_iter().filter_map(of_class).collect()
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { class, what, wanted, limit, cycles, days } = self;
        write!(f, "limit {limit}: {wanted} {what} of class {class} take ")?;
        match (cycles, days) {
            (None, _) => write!(f, "forever, because the limit allows none: raise the limit"),
            (Some(cycles), 1) => f.write_str(&super::wording::counted(*cycles, "cycle")),
            (Some(cycles), days) => write!(f, "{} over {days} days", super::wording::counted(*cycles, "cycle")),
        }
    }
}
