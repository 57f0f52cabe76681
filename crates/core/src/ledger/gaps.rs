//! Observed time: the sum of the gaps between successive looks. A gap that is longer than an hour counts as one hour.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

/// The longest part of the gap between two looks that counts, in seconds. If the daemon was off for a month, one hour
/// of that month counts.
pub const LONGEST_GAP: i64 = 3600;

/// Returns the part of `gap` that counts, in seconds. `gap` is negative if the clock was set back.
#[must_use]
pub fn counted(gap: i64) -> u64 {
    gap.clamp(0, LONGEST_GAP).unsigned_abs()
}

/// Returns the time `seconds` after `now`.
#[must_use]
pub fn later(now: Timestamp, seconds: u64) -> Timestamp {
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    now.saturating_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX)
}

/// The time that was observed since something began, and the last look that was counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Proved {
    /// The last look that was counted.
    pub counted_at: Timestamp,
    /// The sum, in seconds.
    pub seconds: u64,
}

impl Proved {
    /// Returns the observed time after a look at `now`.
    #[must_use]
    pub fn after(self, now: Timestamp) -> Self {
        let gap = now.as_second() - self.counted_at.as_second();
        Self { counted_at: now, seconds: self.seconds + counted(gap) }
    }
}

/// The observed time of an absence: the sum of the gaps between complete reads. Each gap counts as at most an hour, so
/// that a clock that jumps, or a daemon that was off, does not suspend an account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Absence {
    /// The first complete read that did not show the account.
    pub since: Timestamp,
    /// The last complete read that did not show the account.
    pub counted_at: Timestamp,
    /// The sum, in seconds.
    pub seconds: u64,
    /// When the suspension is due, if every read until then is complete.
    pub due: Timestamp,
}

/// The progress of a suspended or archived account towards its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "ending")]
pub enum Ending {
    /// Time that counts towards `retention` while the account is suspended, and towards `delete_after` while it is
    /// archived. Like an absence, only complete reads count it.
    Waits(Absence),
    /// The guard has allowed the deletion of its namespaces.
    Deletion {
        /// When the guard allowed it.
        at: Timestamp,
    },
}

impl Ending {
    /// Returns the time that complete reads have counted so far.
    #[must_use]
    pub const fn counted(&self) -> Option<&Absence> {
        match self {
            Self::Waits(counted) => Some(counted),
            Self::Deletion { .. } => None,
        }
    }
}
