//! What failed for an account and is tried again; and what has begun and is not to be forgotten.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// A step that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Which: `apply`, `certificate`, `home`, …
    pub step: String,
    /// Why, for people, with the cure.
    pub reason: String,
    /// When it first failed.
    pub since: Timestamp,
    /// How often since.
    pub attempts: u64,
    /// Not before this.
    pub next_try: Timestamp,
}

impl Failure {
    /// A suspension that has begun and has not failed. If the daemon is killed in the middle, it finds this record
    /// after its restart.
    #[must_use]
    pub fn begun(now: Timestamp) -> Self {
        Self { step: SUSPEND.to_owned(), reason: "begun".to_owned(), since: now, attempts: 0, next_try: now }
    }

    /// See [`Failure::begun`].
    #[must_use]
    pub fn is_begun(&self) -> bool {
        self.step == SUSPEND
    }

    /// A step that takes access away failed. It has a backoff of its own, and others wait for it, not it for them.
    #[must_use]
    pub fn is_of_removal(&self) -> bool {
        self.step == REMOVAL
    }

    /// A deletion that takes its time, and of which nothing failed.
    #[must_use]
    pub fn is_under_way(&self) -> bool {
        self.attempts == 0 && self.step == "deletion"
    }

    /// The certificate or its way into the home failed; the cluster's objects are as they should be.
    #[must_use]
    pub fn is_of_delivery(&self) -> bool {
        ["certificate", "home", "revocation"].contains(&self.step.as_str())
    }
}

/// [`Failure::step`] of what has begun.
const SUSPEND: &str = "suspend";
/// [`Failure::step`] of what takes access away.
pub const REMOVAL: &str = "removal";
