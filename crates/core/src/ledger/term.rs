//! How long something holds that was given for a time: overrides, exceptions, suspensions. Its end is counted in time that
//! looks proved, so that a clock that jumps, or a daemon that was off, ends nothing.

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
        Some(later(proved.counted_at, lasts - proved.seconds))
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
        let after = before.after(now);
        let gap = now.as_second() - before.counted_at.as_second();
        let is_news = after.seconds >= lasts || !(0..COUNT_EVERY).contains(&gap);
        is_news.then_some(after)
    }
}

impl LedgerState {
    /// What this look adds to the time that was proved of what has an end.
    #[must_use]
    pub fn count_terms(&self, now: Timestamp) -> Vec<Change> {
        [self.count_overrides(now), self.count_suspensions(now)].concat()
    }
}
