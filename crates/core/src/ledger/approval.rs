//! Approvals of administrators, which are valid for a short time.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

/// How long an approval is valid: long enough for the next cycle, and too short to be forgotten.
pub const APPROVAL_HOLDS: SignedDuration = SignedDuration::from_hours(1);

/// Whether an administrator approved the hash and the approval is still valid. An approval whose end is later than
/// [`APPROVAL_HOLDS`] from now comes from a wrong clock and is ignored.
#[must_use]
pub fn is_approved(approvals: &BTreeMap<String, Timestamp>, hash: &str, now: Timestamp) -> bool {
    approvals.get(hash).is_some_and(|until| *until > now && until.duration_since(now) <= APPROVAL_HOLDS)
}
