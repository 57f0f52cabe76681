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

/// What the last 24 hours used of a limit.
pub(super) fn spent(all: &[Spent], spending: Spending, class: &str, now: Timestamp) -> u64 {
    let day = all.iter().filter(|spent| spent.spending == spending && spent.class == class);
    day.filter(|spent| spent.at + DAY > now).map(|spent| spent.amount).sum()
}

/// Whether an administrator approved the hash, and the approval is not over.
pub(super) fn is_approved(approvals: &BTreeMap<String, Timestamp>, hash: &str, now: Timestamp) -> bool {
    approvals.get(hash).is_some_and(|until| *until > now)
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
