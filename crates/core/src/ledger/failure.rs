//! Steps that failed for an account and are retried, and suspensions that have begun and must be completed.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

/// A step that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The step: `apply`, `certificate`, `home`, …
    pub step: String,
    /// The reason and the remedy, as a text for administrators.
    pub reason: String,
    /// When the step first failed.
    pub since: Timestamp,
    /// The number of failed attempts since then.
    pub attempts: u64,
    /// The step is not retried before this time.
    pub next_try: Timestamp,
}

impl Failure {
    /// Returns the record of a suspension that has begun and has not failed. If the daemon is killed during the
    /// suspension, it finds this record after its restart.
    #[must_use]
    pub fn begun(now: Timestamp) -> Self {
        Self { step: SUSPEND.to_owned(), reason: "begun".to_owned(), since: now, attempts: 0, next_try: now }
    }

    /// Whether the step waits for its next attempt. If the time of that attempt is further away than any backoff, it
    /// comes from a wrong clock, and the step is due at once.
    #[must_use]
    pub fn waits(&self, now: Timestamp) -> bool {
        let longest = if self.is_of_removal() { LAST_REMOVAL_RETRY } else { LAST_RETRY };
        self.next_try > now && self.next_try.duration_since(now) <= longest
    }

    /// Returns the record of a delivery that another program undid before the inspections after the delivery were done.
    /// `before` is the former record. `attempts` counts how often this happened before in a row.
    #[must_use]
    pub fn overwritten(reason: String, before: Option<&Self>, now: Timestamp) -> Self {
        let before = before.filter(|before| before.is_of_overwritten());
        let attempts = before.map_or(0, |before| before.attempts + 1);
        // The first retry is immediate: kubectl may have written back the file that it read before the delivery.
        let minutes = u32::try_from(attempts).unwrap_or(u32::MAX).min(7);
        let wait = (SignedDuration::from_secs(30) * 2_i32.pow(minutes)).min(LAST_RETRY);
        Self {
            step: OVERWRITTEN.to_owned(),
            reason,
            since: before.map_or(now, |before| before.since),
            attempts,
            next_try: if attempts == 0 { now } else { now.saturating_add(wait).unwrap_or(Timestamp::MAX) },
        }
    }

    /// Whether the record is one of [`Failure::overwritten`]. Such a record stays after the next delivery, until the
    /// inspections after that delivery are done, because it counts the deliveries in a row.
    #[must_use]
    pub fn is_of_overwritten(&self) -> bool {
        self.step == OVERWRITTEN
    }

    /// Whether the record is one of [`Failure::begun`].
    #[must_use]
    pub fn is_begun(&self) -> bool {
        self.step == SUSPEND
    }

    /// Whether the failed step takes access away. Such a step has its own backoff, and does not wait for other failed
    /// steps.
    #[must_use]
    pub fn is_of_removal(&self) -> bool {
        self.step == REMOVAL || self.is_of_later_removal()
    }

    /// Whether a step that takes access away failed after all objects that give access were written or deleted.
    #[must_use]
    pub fn is_of_later_removal(&self) -> bool {
        self.step == LATER_REMOVAL || self.step == HOMES_REMOVAL
    }

    /// Whether the steps that take access away are done in the cluster, and only files in homes are left.
    #[must_use]
    pub fn is_of_homes(&self) -> bool {
        self.step == HOMES_REMOVAL
    }

    /// Whether only steps in foreign namespaces failed. The makers of these namespaces can cause such failures, so no
    /// other step waits for them.
    #[must_use]
    pub fn is_of_adopted(&self) -> bool {
        self.step == ADOPTED
    }

    /// Whether a suspension has begun or a deletion is running, and nothing has failed.
    #[must_use]
    pub fn is_under_way(&self) -> bool {
        self.attempts == 0 && (self.step == "deletion" || self.is_begun())
    }

    /// Whether a step with this name works on the cluster's objects, so that it may depend on a quota.
    #[must_use]
    pub fn is_of_objects(step: &str) -> bool {
        ["apply", "cluster", "deleting", FOREIGN, REMOVAL].contains(&step)
    }

    /// Whether issuing or delivering the credential failed. The cluster's objects are then as desired.
    #[must_use]
    pub fn is_of_delivery(&self) -> bool {
        [CERTIFICATE, "home", "revocation", MISSING_HOME, OVERWRITTEN].contains(&self.step.as_str())
    }

    /// Whether our entries are to be removed from a home that is missing. The home may be gone for good, so the failure
    /// delays only steps in homes, and the removal is retried each hour.
    #[must_use]
    pub fn is_of_missing_home(&self) -> bool {
        self.step == MISSING_HOME
    }
}

/// The longest wait between two attempts, so that a repair by a person is noticed within an hour.
pub const LAST_RETRY: SignedDuration = SignedDuration::from_hours(1);
/// Like [`LAST_RETRY`], but for steps that take access away. Until the retry, a person has access that they should not
/// have.
pub const LAST_REMOVAL_RETRY: SignedDuration = SignedDuration::from_mins(1);

/// [`Failure::step`] if no certificate or token could be issued.
pub const CERTIFICATE: &str = "certificate";
/// [`Failure::step`] of a suspension that has begun.
const SUSPEND: &str = "suspend";
/// [`Failure::step`] if an object with the desired name does not belong to Bursar.
pub const FOREIGN: &str = "foreign";
/// [`Failure::step`] if an object whose write or deletion takes access away could not be written or deleted.
pub const REMOVAL: &str = "removal";
/// [`Failure::step`] of the other steps that take access away: those for workloads, pods, tokens and homes. A tenant
/// can make some of these steps fail, so the objects do not wait for them.
pub const LATER_REMOVAL: &str = "removal of workloads and files";
/// [`Failure::step`] if the steps that take access away are done in the cluster, and only files in homes are left.
pub const HOMES_REMOVAL: &str = "removal of files";
/// [`Failure::step`] if our entries are to be removed from a home that is missing because its file system is not
/// mounted.
pub const MISSING_HOME: &str = "missing home";
/// [`Failure::step`] if another program removes or changes our entries soon after each delivery.
pub const OVERWRITTEN: &str = "overwritten kubeconfig";
/// [`Failure::step`] of steps in namespaces that others create.
pub const ADOPTED: &str = "adopted namespace";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delivery_that_is_undone_again_and_again_is_repeated_hourly_at_last() {
        let now: Timestamp = "2026-05-03T12:00:00Z".parse().expect("the time is valid");
        let mut before: Option<Failure> = None;
        let waits = (0..10).map(|_| {
            let next = Failure::overwritten("why".to_owned(), before.as_ref(), now);
            let wait = next.next_try.duration_since(now).as_mins();
            before = Some(next);
            wait
        });
        assert_eq!(waits.collect::<Vec<_>>(), [0, 1, 2, 4, 8, 16, 32, 60, 60, 60]);
        let other = Failure { step: "home".to_owned(), attempts: 7, ..Failure::begun(now) };
        assert_eq!(Failure::overwritten("why".to_owned(), Some(&other), now).attempts, 0);
    }

    #[test]
    fn an_attempt_that_a_wrong_clock_delayed_is_due_at_once() {
        let now: Timestamp = "2026-05-03T12:00:00Z".parse().expect("the time is valid");
        let waits = |step: &str, wait: SignedDuration| {
            Failure { step: step.to_owned(), attempts: 9, next_try: now + wait, ..Failure::begun(now) }.waits(now)
        };
        assert!(waits("apply", LAST_RETRY) && waits(REMOVAL, LAST_REMOVAL_RETRY));
        assert!(!waits("apply", SignedDuration::ZERO));
        assert!(!waits("apply", LAST_RETRY + SignedDuration::from_secs(1)));
        assert!(!waits(REMOVAL, SignedDuration::from_mins(2)));
    }
}
