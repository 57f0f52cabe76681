//! How long something holds that was given for a time: overrides, exceptions, suspensions. Its end is counted in time that
//! looks proved, so that a clock that jumps, or a daemon that was off, ends nothing; and never before its time, if the
//! clock was ahead when it was given.

use jiff::Timestamp;

use super::LedgerState;
use super::change::Change;
use super::gaps::{Proved, later};

/// A count is written down at most this often (seconds), unless it ends something. Below
/// [`LONGEST_GAP`](super::gaps::LONGEST_GAP), or time would be lost.
const COUNT_EVERY: i64 = 1800;

/// From when until when, and how much of it was proved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Term {
    /// When it was given.
    pub from: Timestamp,
    /// Its end; absent: it has none.
    pub until: Option<Timestamp>,
    /// Time since `from` that counts; absent: nothing was counted yet.
    pub proved: Option<Proved>,
}

impl Term {
    /// Whether its end has not come.
    #[must_use]
    pub fn is_running(self) -> bool {
        self.lasts().is_none_or(|lasts| self.proved().seconds < lasts)
    }

    /// For how long it was given, in seconds.
    fn lasts(self) -> Option<u64> {
        self.until.map(|until| u64::try_from(until.duration_since(self.from).as_secs()).unwrap_or(0))
    }

    /// When it ends, if it is looked at until then; `None`: it has no end, or ended.
    #[must_use]
    pub fn due(self) -> Option<Timestamp> {
        let (lasts, proved) = (self.lasts().filter(|_| self.is_running())?, self.proved());
        Some(later(proved.counted_at, lasts - proved.seconds).max(self.until?))
    }

    /// [`Self::proved`] after `seconds` in which it was looked at all the while.
    #[must_use]
    pub fn after(self, seconds: u64) -> Proved {
        let Proved { counted_at, seconds: before } = self.proved();
        Proved { counted_at: later(counted_at, seconds), seconds: before + seconds }
    }

    fn proved(self) -> Proved {
        self.proved.unwrap_or(Proved { counted_at: self.from, seconds: 0 })
    }

    /// [`Self::proved`] after a look of now. `None`: the ledger need not hear of it yet.
    #[must_use]
    pub fn counted(self, now: Timestamp) -> Option<Proved> {
        let (lasts, before) = (self.lasts().filter(|_| self.is_running())?, self.proved());
        let mut after = before.after(now);
        // It was given by a clock that was ahead: its length is shorter than the time to its end.
        if self.until.is_some_and(|until| now < until) {
            after.seconds = after.seconds.min(lasts - 1);
        }
        let gap = now.as_second() - before.counted_at.as_second();
        let is_news = after.seconds >= lasts || !(0..COUNT_EVERY).contains(&gap);
        is_news.then_some(after)
    }
}

impl LedgerState {
    /// What this look adds to the time that was proved of what has an end.
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
        let start: Timestamp = "2026-05-03T12:00:00Z".parse().expect("a time");
        start + SignedDuration::from_hours(24 * days) + SignedDuration::from_secs(seconds)
    }

    /// Looked at each half an hour from then on: when it ends.
    fn ends(mut term: Term, mut now: Timestamp) -> Timestamp {
        while term.is_running() {
            now += SignedDuration::from_mins(30);
            term.proved = term.counted(now).or(term.proved);
        }
        now
    }

    #[test]
    fn what_is_given_by_a_clock_that_is_ahead_does_not_end_before_its_time() {
        let term = |from| Term { from, until: Some(at(32, 0)), proved: None };
        assert_eq!(ends(term(at(0, 0)), at(0, 0)), at(32, 0));
        // It said May 3rd plus 30 days; the next look is by the right clock.
        let ahead = term(at(30, 0));
        assert!(ahead.due().is_some_and(|due| due >= at(32, 0)));
        assert!((at(32, 0)..=at(32, 3600)).contains(&ends(ahead, at(0, 0))));
        // The clock jumps over the end: that proves nothing of the time between.
        let after = Term { proved: term(at(0, 0)).counted(at(40, 0)), ..term(at(0, 0)) };
        assert!(after.is_running());
    }
}
