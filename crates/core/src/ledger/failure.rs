//! What failed for an account and is tried again; and what has begun and is not to be forgotten.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

/// A step that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Which: `apply`, `certificate`, `home`, …
    pub step: String,
    /// Why, for people, with the remedy.
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

    /// Whether it waits for its next try. A try that is further away than any backoff was set by a clock that was wrong: it
    /// is due at once.
    #[must_use]
    pub fn waits(&self, now: Timestamp) -> bool {
        let longest = if self.is_of_removal() { LAST_REMOVAL_RETRY } else { LAST_RETRY };
        self.next_try > now && self.next_try.duration_since(now) <= longest
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

    /// A deletion that takes its time, or a suspension that has begun, and of which nothing failed.
    #[must_use]
    pub fn is_under_way(&self) -> bool {
        self.attempts == 0 && (self.step == "deletion" || self.is_begun())
    }

    /// Whether a step of this name is about objects of the cluster, and so about what a quota asks for.
    #[must_use]
    pub fn is_of_objects(step: &str) -> bool {
        ["apply", "cluster", "deleting", FOREIGN, REMOVAL].contains(&step)
    }

    /// The certificate or its way into the home failed; the cluster's objects are as they should be.
    #[must_use]
    pub fn is_of_delivery(&self) -> bool {
        [CERTIFICATE, "home", "revocation"].contains(&self.step.as_str())
    }
}

/// The longest wait between two tries: a remedy by a person is noticed within the hour.
pub const LAST_RETRY: SignedDuration = SignedDuration::from_hours(1);
/// The same of what takes access away: until then somebody has access who should have none.
pub const LAST_REMOVAL_RETRY: SignedDuration = SignedDuration::from_mins(1);

/// Step of a failure: no certificate or token was issued.
pub const CERTIFICATE: &str = "certificate";
/// [`Failure::step`] of what has begun.
const SUSPEND: &str = "suspend";
/// Step of a failure: an object of that name belongs to somebody else.
pub const FOREIGN: &str = "foreign";
/// [`Failure::step`] of what takes access away.
pub const REMOVAL: &str = "removal";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_try_that_a_wrong_clock_put_off_is_due_at_once() {
        let now: Timestamp = "2026-05-03T12:00:00Z".parse().expect("a time");
        let waits = |step: &str, wait: SignedDuration| {
            Failure { step: step.to_owned(), attempts: 9, next_try: now + wait, ..Failure::begun(now) }.waits(now)
        };
        assert!(waits("apply", LAST_RETRY) && waits(REMOVAL, LAST_REMOVAL_RETRY));
        assert!(!waits("apply", SignedDuration::ZERO));
        assert!(!waits("apply", LAST_RETRY + SignedDuration::from_secs(1)));
        assert!(!waits(REMOVAL, SignedDuration::from_mins(2)));
    }
}
