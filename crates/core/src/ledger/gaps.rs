//! Time that looks again and again prove, as a sum of the gaps between them: what was not looked at proves nothing.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

/// Longest gap between two looks that counts, in seconds: a daemon that was off for a month proves nothing of that month.
pub const LONGEST_GAP: i64 = 3600;

/// The part of `gap` that counts, in seconds. `gap` is negative if the clock was set back.
#[must_use]
pub fn counted(gap: i64) -> u64 {
    gap.clamp(0, LONGEST_GAP).unsigned_abs()
}

/// The time `seconds` after `now`.
#[must_use]
pub fn later(now: Timestamp, seconds: u64) -> Timestamp {
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    now.saturating_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX)
}

/// Time that looks proved since something began, with the last of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Proved {
    /// The last look that was counted.
    pub counted_at: Timestamp,
    /// The sum, in seconds.
    pub seconds: u64,
}

impl Proved {
    /// After a look of now.
    #[must_use]
    pub fn after(self, now: Timestamp) -> Self {
        let gap = now.as_second() - self.counted_at.as_second();
        Self { counted_at: now, seconds: self.seconds + counted(gap) }
    }
}

/// Absence that was proved, counted as a sum of gaps between complete reads, each gap at most an hour, so that a
/// clock that jumps or a daemon that was off suspends nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Absence {
    /// The first complete read without it.
    pub since: Timestamp,
    /// The last complete read without it.
    pub counted_at: Timestamp,
    /// The sum, in seconds.
    pub seconds: u64,
    /// When the suspension is due, if every read until then is complete.
    pub due: Timestamp,
}

/// How far the end of a suspended or archived account is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "ending")]
pub enum Ending {
    /// Counted towards `retention` while it is suspended, towards `delete_after` while it is archived: as an absence
    /// is, by complete reads alone.
    Waits(Absence),
    /// The guard let the deletion of its namespaces through.
    Deletion {
        /// When.
        at: Timestamp,
    },
}

impl Ending {
    /// What complete reads proved so far.
    #[must_use]
    pub const fn counted(&self) -> Option<&Absence> {
        match self {
            Self::Waits(counted) => Some(counted),
            Self::Deletion { .. } => None,
        }
    }
}
