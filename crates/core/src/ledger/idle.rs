//! How long nothing has run in a namespace, and whether its people were warned.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::gaps::later;
use crate::policy::NamespaceReaper;

/// A namespace in which nothing ran at the last look.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Idleness {
    /// The first look at which nothing ran.
    pub since: Timestamp,
    /// The last look that was counted.
    pub counted_at: Timestamp,
    /// The observed time since `since`, in seconds.
    pub seconds: u64,
    /// When the suspension is due, if nothing runs until then.
    pub due: Timestamp,
    /// When its people were warned.
    pub warned_at: Option<Timestamp>,
}

impl Idleness {
    /// Whether the namespace has been idle long enough for a warning, and its people were not warned yet.
    #[must_use]
    pub fn wants_warning(&self, rules: &NamespaceReaper) -> bool {
        self.warned_at.is_none() && self.seconds + rules.warn_for.as_secs() >= rules.idle_for.as_secs()
    }

    /// Whether the namespace has been idle long enough, and its people were warned long enough ago.
    #[must_use]
    pub fn is_due(&self, rules: &NamespaceReaper, now: Timestamp) -> bool {
        self.seconds >= rules.idle_for.as_secs() && self.warned_at.is_some() && self.due <= now
    }

    /// Returns the value of `seconds` after a warning now. The value is lowered so that all of `warn_for` must still be
    /// observed after the warning, however long the namespace was idle before. A clock that jumps therefore cannot
    /// shorten the warning.
    #[must_use]
    pub fn counted_at_warning(&self, rules: &NamespaceReaper) -> u64 {
        self.seconds.min(rules.idle_for.as_secs().saturating_sub(rules.warn_for.as_secs()))
    }

    /// Returns the date of the suspension that a warning now announces.
    #[must_use]
    pub fn due_after_warning(&self, rules: &NamespaceReaper, now: Timestamp) -> Timestamp {
        let left = rules.idle_for.as_secs().saturating_sub(self.seconds).max(rules.warn_for.as_secs());
        later(now, left)
    }
}
