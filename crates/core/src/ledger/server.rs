//! What is remembered of the servers of a source.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::snapshot::freshness::{Marks, SETTLES};

/// How far the servers of a source were.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceMark {
    /// The server that answered last; empty: an administrator accepted whatever answers next.
    pub server: String,
    /// How far they were.
    pub marks: Marks,
    /// When that was written down.
    pub at: Timestamp,
    /// Another server answers, which cannot be compared with the former one.
    pub moved: Option<Moved>,
    /// An administrator accepts what the next complete read says.
    pub accepted: bool,
}

impl SourceMark {
    /// Nothing is known of the servers, and an administrator accepts what they say next.
    #[must_use]
    pub fn accepted(at: Timestamp) -> Self {
        Self { server: String::new(), marks: Marks::default(), at, moved: None, accepted: true }
    }
}

/// Another server answers than the one before it, and either may be behind the other.
///
/// What one of them showed at a time, each of them has when [`SETTLES`] is over. So an answer may widen what no answer
/// within that time was against.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// When a server last answered instead of another one.
    pub at: Timestamp,
    /// The server before it.
    pub former: String,
    /// When the first of the servers began that have taken turns without a pause; `at` if it is absent.
    #[serde(default)]
    pub since: Option<Timestamp>,
    /// The former server answers again, and only one other did meanwhile: what it does not show is not there, as before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_back: bool,
    /// What the last answer showed and is not believed yet, by its digest, and since when every answer has shown it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub shown: BTreeMap<String, Timestamp>,
}

impl Moved {
    /// Whether the server may still be behind the former one so that what it does not show proves nothing. Servers that take
    /// turns must not hold removals back for ever, so it is counted from the first of them.
    #[must_use]
    pub fn is_fresh(&self, now: Timestamp) -> bool {
        !self.is_back && is_recent(self.since.unwrap_or(self.at), now)
    }

    /// Whether the server may still be behind in what it shows. A time to come was given by a clock that was wrong.
    #[must_use]
    pub fn stands(&self, now: Timestamp) -> bool {
        is_recent(self.at, now)
    }
}

fn is_recent(at: Timestamp, now: Timestamp) -> bool {
    now.duration_since(at).abs() < SETTLES
}

/// How a server was when it was last asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerState {
    /// When.
    pub at: Timestamp,
    /// How far it was behind what was known, in seconds; 0: it was not. Absent where it does not say how far it is.
    pub lag_seconds: Option<i64>,
    /// Why it was not used.
    pub why: Option<String>,
}

impl ServerState {
    /// `3h 12m behind`, or how else it is.
    #[must_use]
    pub fn lag(&self) -> String {
        match (&self.why, self.lag_seconds) {
            (None, Some(_)) => "up to date".to_owned(),
            (None, None) => {
                "does not say how far it is, and may be behind: let Bursar read contextCSN, entryCSN and modifyTimestamp there"
                    .to_owned()
            }
            (Some(_), None) => "behind".to_owned(),
            (Some(_), Some(seconds)) => format!("{:#} behind", SignedDuration::from_secs(seconds)),
        }
    }
}
