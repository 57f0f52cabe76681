//! What an administrator let through for a while.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

/// How long an approval holds: long enough for the next cycle, too short to be forgotten.
pub const APPROVAL_HOLDS: SignedDuration = SignedDuration::from_hours(1);

/// Whether an administrator approved the hash, and the approval is not over. One that ends later than any approval was
/// given by a clock that was wrong.
#[must_use]
pub fn is_approved(approvals: &BTreeMap<String, Timestamp>, hash: &str, now: Timestamp) -> bool {
    approvals.get(hash).is_some_and(|until| *until > now && until.duration_since(now) <= APPROVAL_HOLDS)
}
