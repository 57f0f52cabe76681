//! Terms of overrides, exceptions and suspensions with an end. The end is counted in observed time, so a clock that
//! jumps, or a daemon that was off, does not end a term early. A term never ends before its date, even if the clock was
//! ahead when the term began.

use jiff::Timestamp;

use super::LedgerState;
use super::change::Change;
use super::gaps::{Proved, later};

/// A count is recorded at most this often (seconds), unless it ends a term. The interval is less than
/// [`LONGEST_GAP`](super::gaps::LONGEST_GAP), because a longer gap would not count completely.
const COUNT_EVERY: i64 = 1800;

/// The beginning and the end of a term, and the part of it that was observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Term {
    /// The beginning.
    pub from: Timestamp,
    /// The end; `None` if there is none.
    pub until: Option<Timestamp>,
    /// The observed time since `from`; `None` if nothing was counted yet.
    pub proved: Option<Proved>,
}

impl Term {
    /// Whether the end has not come yet.
    #[must_use]
    pub fn is_running(self) -> bool {
        self.lasts().is_none_or(|lasts| self.proved().seconds < lasts)
    }

    /// Returns the length of the term in seconds.
    fn lasts(self) -> Option<u64> {
        self.until.map(|until| u64::try_from(until.duration_since(self.from).as_secs()).unwrap_or(0))
    }

    /// Returns when the term ends, if it is observed until then. Returns `None` if it has no end or has ended.
    #[must_use]
    pub fn due(self) -> Option<Timestamp> {
        let (lasts, proved) = (self.lasts().filter(|_| self.is_running())?, self.proved());
        Some(later(proved.counted_at, lasts - proved.seconds).max(self.until?))
    }

    /// Returns [`Self::proved`] after `seconds` of uninterrupted observation.
    #[must_use]
    pub fn after(self, seconds: u64) -> Proved {
        let Proved { counted_at, seconds: before } = self.proved();
        Proved { counted_at: later(counted_at, seconds), seconds: before + seconds }
    }

    fn proved(self) -> Proved {
        self.proved.unwrap_or(Proved { counted_at: self.from, seconds: 0 })
    }

    /// Returns [`Self::proved`] after a look at `now`, or `None` if it need not be recorded yet.
    #[must_use]
    pub fn counted(self, now: Timestamp) -> Option<Proved> {
        let (lasts, before) = (self.lasts().filter(|_| self.is_running())?, self.proved());
        let mut after = before.after(now);
        // If the clock was ahead at the beginning, the counted length is shorter than the real time to the end.
        if self.until.is_some_and(|until| now < until) {
            after.seconds = after.seconds.min(lasts - 1);
        }
        let gap = now.as_second() - before.counted_at.as_second();
        let is_news = after.seconds >= lasts || !(0..COUNT_EVERY).contains(&gap);
        is_news.then_some(after)
    }
}

impl LedgerState {
    /// Returns the changes that record the observed time of every term after a look at `now`.
    #[must_use]
    pub fn count_terms(&self, now: Timestamp) -> Vec<Change> {
        [self.count_overrides(now), self.count_exceptions(now), self.count_suspensions(now)].concat()
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    fn at(days: i64, seconds: i64) -> Timestamp {
        let start: Timestamp = "2026-05-03T12:00:00Z".parse().expect("the time is valid");
        start + SignedDuration::from_hours(24 * days) + SignedDuration::from_secs(seconds)
    }

    /// Returns when the term ends, if it is looked at every half hour from `now` on.
    fn ends(mut term: Term, mut now: Timestamp) -> Timestamp {
        while term.is_running() {
            now += SignedDuration::from_mins(30);
            term.proved = term.counted(now).or(term.proved);
        }
        now
    }

    #[test]
    fn a_term_that_began_while_the_clock_was_ahead_does_not_end_early() {
        let term = |from| Term { from, until: Some(at(32, 0)), proved: None };
        assert_eq!(ends(term(at(0, 0)), at(0, 0)), at(32, 0));
        // The wrong clock was 30 days ahead of May 3rd; the next look is by the right clock.
        let ahead = term(at(30, 0));
        assert!(ahead.due().is_some_and(|due| due >= at(32, 0)));
        assert!((at(32, 0)..=at(32, 3600)).contains(&ends(ahead, at(0, 0))));
        // The clock jumps beyond the end, which proves nothing about the time in between.
        let after = Term { proved: term(at(0, 0)).counted(at(40, 0)), ..term(at(0, 0)) };
        assert!(after.is_running());
    }
}
