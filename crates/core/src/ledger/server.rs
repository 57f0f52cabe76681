//! What is remembered of the servers of a source.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::snapshot::freshness::Marks;

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

/// The beginning of another server's answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// When.
    pub at: Timestamp,
    /// The server before it.
    pub former: String,
}

/// How a server was when it was last asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerState {
    /// When.
    pub at: Timestamp,
    /// How far it was behind what was known, in seconds; 0: it was not.
    pub lag_seconds: Option<i64>,
    /// Why it was not used.
    pub why: Option<String>,
}

impl ServerState {
    /// `3h 12m behind`, or how else it is.
    #[must_use]
    pub fn lag(&self) -> String {
        match (&self.why, self.lag_seconds) {
            (None, _) => "up to date".to_owned(),
            (Some(_), None) => "behind".to_owned(),
            (Some(_), Some(seconds)) => format!("{:#} behind", SignedDuration::from_secs(seconds)),
        }
    }
}
