//! What the ledger keeps of the servers of a source.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::snapshot::freshness::{Marks, SETTLES};

/// The replication state that the servers of a source last showed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceMark {
    /// The server that answered last; empty if an administrator accepted any next answer.
    pub server: String,
    /// The newest marks that were shown.
    pub marks: Marks,
    /// When the marks were recorded.
    pub at: Timestamp,
    /// Set if another server answers, which cannot be compared with the former one.
    pub moved: Option<Moved>,
    /// An administrator accepts the next complete read as it is.
    pub accepted: bool,
}

impl SourceMark {
    /// Returns the mark of a source whose next complete read is accepted as it is.
    #[must_use]
    pub fn accepted(at: Timestamp) -> Self {
        Self { server: String::new(), marks: Marks::default(), at, moved: None, accepted: true }
    }
}

/// Another server answers than before, and either may be behind the other.
///
/// Once [`SETTLES`] is over, each of them has everything that one of them has shown. So an answer may add access only
/// if no answer within that time contradicted it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// When a server last answered instead of another one.
    pub at: Timestamp,
    /// The server that answered before.
    pub former: String,
    /// When the current series of changes began, in which each change follows the one before within [`SETTLES`]. `None`
    /// means `at`.
    #[serde(default)]
    pub since: Option<Timestamp>,
    /// The former server answers again, and only one other server answered in between. Accounts that it does not show
    /// count as absent, as before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_back: bool,
    /// What the last answer showed and is not believed yet, by its digest, and since when every answer has shown it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub shown: BTreeMap<String, Timestamp>,
}

impl Moved {
    /// Whether the server may still be behind, so that a missing entry proves nothing. The time counts from the first
    /// change, so that servers that take turns cannot delay removals for ever.
    #[must_use]
    pub fn is_fresh(&self, now: Timestamp) -> bool {
        !self.is_back && is_recent(self.since.unwrap_or(self.at), now)
    }

    /// Whether the server may still be behind in what it shows. A time in the future comes from a wrong clock.
    #[must_use]
    pub fn stands(&self, now: Timestamp) -> bool {
        is_recent(self.at, now)
    }
}

fn is_recent(at: Timestamp, now: Timestamp) -> bool {
    now.duration_since(at).abs() < SETTLES
}

/// The state of a server when it was last asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerState {
    /// When the server was asked.
    pub at: Timestamp,
    /// How many seconds the server was behind the known state; 0 if it was not. `None` if it does not show its state.
    pub lag_seconds: Option<i64>,
    /// Why its answer was not used.
    pub why: Option<String>,
}

impl ServerState {
    /// Returns a text such as `3h 12m behind`.
    #[must_use]
    pub fn lag(&self) -> String {
        match (&self.why, self.lag_seconds) {
            (None, Some(_)) => "up to date".to_owned(),
            (None, None) => {
                "does not show its replication state, and may be behind: let Bursar read contextCSN, entryCSN and \
                 modifyTimestamp there"
                    .to_owned()
            }
            (Some(_), None) => "behind".to_owned(),
            (Some(_), Some(seconds)) => format!("{:#} behind", SignedDuration::from_secs(seconds)),
        }
    }
}
