//! The ledger's records of the servers of a source.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::snapshot::freshness::{Marks, SETTLES};

/// The replication state that the servers of a source last showed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceMark {
    /// The server that answered last; empty if an administrator accepted the next answer of any server.
    pub server: String,
    /// The newest marks that were shown.
    pub marks: Marks,
    /// When the marks were recorded.
    pub at: Timestamp,
    /// The last change from one server to another, if the marks of the two cannot be compared.
    pub moved: Option<Moved>,
    /// Whether an administrator accepts the next complete read as it is.
    pub accepted: bool,
}

impl SourceMark {
    /// Returns the mark of a source whose next complete read is accepted as it is.
    #[must_use]
    pub fn accepted(at: Timestamp) -> Self {
        Self { server: String::new(), marks: Marks::default(), at, moved: None, accepted: true }
    }
}

/// The answers come from a different server than before, and each of the two servers may be behind the other.
///
/// After [`SETTLES`], each server has everything that the other has shown. So an answer may add access only if no
/// answer within that time contradicts it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// When a server last answered instead of another one.
    pub at: Timestamp,
    /// The server that answered before.
    pub former: String,
    /// When the current series of changes began, in which each change comes within [`SETTLES`] of the change before it.
    /// `None` means `at`.
    #[serde(default)]
    pub since: Option<Timestamp>,
    /// Whether the former server answers again, and only one other server answered in between. Accounts that the former
    /// server does not show count as absent, as before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_back: bool,
    /// The parts of the last answer that are not believed yet: the digest of each, and since when every answer has
    /// shown it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub shown: BTreeMap<String, Timestamp>,
}

impl Moved {
    /// Whether the server may still be behind, so that a missing entry proves nothing. The time counts from the first
    /// change of the series, so that servers that take turns cannot delay removals forever.
    #[must_use]
    pub fn is_fresh(&self, now: Timestamp) -> bool {
        !self.is_back && is_recent(self.since.unwrap_or(self.at), now)
    }

    /// Whether the statements of the server may still be outdated. A time in the future comes from a wrong clock.
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
    /// How many seconds the server was behind the known state; 0 if it was not behind. `None` if it does not show its
    /// state.
    pub lag_seconds: Option<i64>,
    /// Why the server's answer was not used.
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
