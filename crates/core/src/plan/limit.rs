//! Applies one limit: computes the remaining amount, the amounts that fit, and those that pass by an approval.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::hash;
use crate::ledger::{Spending, Spent};
use crate::policy::{Limit, Limits};

/// The sliding window of the daily limits.
const DAY: SignedDuration = SignedDuration::from_hours(24);

/// A kind of change that `[limits]` bounds per cycle and per day.
pub(super) struct Limited {
    pub(super) spending: Spending,
    pub(super) what: &'static str,
    pub(super) per_cycle: (&'static str, fn(&Limits) -> Limit),
    pub(super) per_day: (&'static str, fn(&Limits) -> Limit),
}

impl Limited {
    /// Returns the key of the tighter limit and the amount that it still allows. `size` is the number that percentages
    /// refer to; `spent` is the amount of the last 24 hours.
    pub(super) fn left(&self, limits: &Limits, size: u64, spent: u64) -> (&'static str, u64) {
        let per_cycle = (self.per_cycle.1)(limits).allowed(size);
        let per_day = (self.per_day.1)(limits).allowed(size).saturating_sub(spent);
        if per_day < per_cycle { (self.per_day.0, per_day) } else { (self.per_cycle.0, per_cycle) }
    }

    pub(super) fn has_key(&self, key: &str) -> bool {
        [self.per_cycle.0, self.per_day.0].contains(&key)
    }
}

/// Returns the amount used in the last 24 hours. An entry dated a day or more in the future comes from a wrong clock
/// and is not counted.
pub(super) fn spent(all: &[Spent], spending: Spending, class: &str, now: Timestamp) -> u64 {
    let day = all.iter().filter(|spent| spent.spending == spending && spent.class == class);
    day.filter(|spent| now.duration_since(spent.at).abs() < DAY).map(|spent| spent.amount).sum()
}

/// The result of [`judge`]. All indexes refer to `amounts`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    /// Indexes that are refused.
    pub(super) refused: BTreeSet<usize>,
    /// Indexes that pass by an approval, each with the hash of its part.
    pub(super) approved: BTreeMap<usize, String>,
    /// The hash of the set of all amounts that did not fit, if that set is approved.
    pub(super) whole: Option<String>,
}

/// Decides which amounts fit into `left`. `amounts` is sorted by precedence. `part` returns the hash of the amount at
/// an index.
pub(super) fn judge(
    amounts: &[u64],
    left: u64,
    has_approval: impl Fn(&str) -> bool,
    part: impl Fn(usize) -> String,
) -> Verdict {
    let over = |places: &mut dyn Iterator<Item = usize>, mut left: u64| -> BTreeSet<usize> {
        places
            .filter(|place| {
                let fits = amounts[*place] <= left;
                left -= if fits { amounts[*place] } else { 0 };
                !fits
            })
            .collect()
    };
    let first = over(&mut (0..amounts.len()), left);
    let parts: BTreeMap<usize, String> = first.iter().map(|place| (*place, part(*place))).collect();
    let whole = Some(hash::of_parts(parts.values())).filter(|whole| has_approval(whole));
    let approved: BTreeMap<usize, String> =
        parts.into_iter().filter(|(_, part)| whole.is_some() || has_approval(part)).collect();
    let used: u64 = approved.keys().map(|place| amounts[*place]).sum();
    let mut others = (0..amounts.len()).filter(|place| !approved.contains_key(place));
    let refused = over(&mut others, left.saturating_sub(used));
    Verdict { refused, approved, whole }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::approval::APPROVAL_HOLDS;
    use crate::ledger::{Lifecycle, Spending};
    use crate::plan::hash;
    use crate::plan::testing::World;

    fn in_60_days(world: &World) -> Timestamp {
        world.now + SignedDuration::from_hours(60 * 24)
    }

    /// Returns a tool that the directory locks out, in a world that allows one such suspension a day.
    fn locked_out() -> (World, crate::identity::AccountId) {
        let (mut world, foo) = World::with_foo();
        world.cycles(2);
        world.account(&foo).disabled = Some("mark".to_owned());
        world.policy.limits.disable_per_day = Limit { count: 1, percent: None };
        (world, foo)
    }

    #[test]
    fn spending_dated_in_the_future_uses_no_budget() {
        let (mut world, foo) = locked_out();
        let at = |hours| world.now + SignedDuration::from_hours(hours);
        let spent = |at| Spent { spending: Spending::Disable, class: "tool".to_owned(), amount: 1, at };
        let is_spent = |at| super::spent(&[spent(at)], Spending::Disable, "tool", world.now) == 1;
        assert!(is_spent(at(-23)) && is_spent(at(1)) && !is_spent(at(-24)) && !is_spent(at(24)));
        world.ledger.spent.push(spent(in_60_days(&world)));
        world.cycle();
        assert_eq!(world.ledger.accounts[&foo].state, Lifecycle::Suspended);
    }

    #[test]
    fn an_approval_that_ends_too_far_in_the_future_is_ignored() {
        let (mut world, foo) = locked_out();
        world.policy.limits.disable_per_day = Limit { count: 0, percent: None };
        let part = hash::part(&world.plan().accounts[0]);
        world.ledger.approvals.insert(part.clone(), in_60_days(&world));
        world.cycle();
        assert_eq!(world.ledger.accounts[&foo].state, Lifecycle::Active);
        world.ledger.approvals.insert(part, world.now + APPROVAL_HOLDS);
        world.cycle();
        assert_eq!(world.ledger.accounts[&foo].state, Lifecycle::Suspended);
    }

    #[test]
    fn a_home_check_dated_in_the_future_is_repeated() {
        let (mut world, foo) = locked_out();
        world.account(&foo).disabled = None;
        let at = in_60_days(&world);
        world.ledger.deliveries.values_mut().for_each(|delivery| delivery.checked_at = Some(at));
        let looks = |world: &World| world.plan().accounts.iter().map(|plan| plan.actions.len()).sum::<usize>();
        assert_eq!(looks(&world), 1);
        world.cycle();
        assert_eq!(looks(&world), 0);
    }
}
