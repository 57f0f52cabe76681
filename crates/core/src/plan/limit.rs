//! One limit at work: what it leaves, what fits into that, and what an approval lets through.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::hash;
use crate::ledger::{Spending, Spent};
use crate::policy::{Limit, Limits};

/// A day of the limits.
const DAY: SignedDuration = SignedDuration::from_hours(24);

/// Something that `[limits]` bounds, in a cycle and in a day.
pub(super) struct Limited {
    pub(super) spending: Spending,
    pub(super) what: &'static str,
    pub(super) per_cycle: (&'static str, fn(&Limits) -> Limit),
    pub(super) per_day: (&'static str, fn(&Limits) -> Limit),
}

impl Limited {
    /// The key of the tighter of the two limits, and what it leaves of a class of this size.
    pub(super) fn left(&self, limits: &Limits, size: u64, spent: u64) -> (&'static str, u64) {
        let per_cycle = (self.per_cycle.1)(limits).allowed(size);
        let per_day = (self.per_day.1)(limits).allowed(size).saturating_sub(spent);
        if per_day < per_cycle { (self.per_day.0, per_day) } else { (self.per_cycle.0, per_cycle) }
    }

    pub(super) fn has_key(&self, key: &str) -> bool {
        [self.per_cycle.0, self.per_day.0].contains(&key)
    }
}

/// What the last 24 hours used of a limit. What a wrong clock put further ahead than a day is not of them.
pub(super) fn spent(all: &[Spent], spending: Spending, class: &str, now: Timestamp) -> u64 {
    let day = all.iter().filter(|spent| spent.spending == spending && spent.class == class);
    day.filter(|spent| now.duration_since(spent.at).abs() < DAY).map(|spent| spent.amount).sum()
}

/// What a limit says of several amounts; places in their list.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    /// Those that do not fit.
    pub(super) refused: BTreeSet<usize>,
    /// Those that an approval lets through, with it.
    pub(super) approved: BTreeMap<usize, String>,
    /// The approval of all that did not fit, if there is one.
    pub(super) whole: Option<String>,
}

/// Judges amounts, given in the order in which they come first. `part` is the hash of the one in a place.
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
    use crate::identity::AccountKind;
    use crate::ledger::approval::APPROVAL_HOLDS;
    use crate::ledger::{Lifecycle, Spending};
    use crate::plan::hash;
    use crate::plan::testing::World;

    fn in_60_days(world: &World) -> Timestamp {
        world.now + SignedDuration::from_hours(60 * 24)
    }

    /// A tool that the directory locks out, where nothing but one suspension a day is allowed.
    fn locked_out() -> (World, crate::identity::AccountId) {
        let mut world = World::new();
        let foo = world.add(AccountKind::Tool, "foo", Some(52_503));
        (0..2).for_each(|_| drop(world.cycle()));
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
    fn an_approval_of_a_wrong_clock_approves_nothing() {
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
    fn a_home_that_a_wrong_clock_looked_into_is_looked_into_again() {
        let (mut world, foo) = locked_out();
        world.account(&foo).disabled = None;
        let at = in_60_days(&world);
        world.ledger.deliveries.values_mut().for_each(|delivery| delivery.checked_at = Some(at));
        let looks = |world: &World| world.plan().accounts.iter().flat_map(|plan| &plan.actions).count();
        assert_eq!(looks(&world), 1);
        world.cycle();
        assert_eq!(looks(&world), 0);
    }
}
