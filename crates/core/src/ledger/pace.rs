//! The progress of a change of the policy through the tenants that existed before it.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::LedgerState;
use crate::identity::{AccountId, AccountName};

/// The progress of one class's change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PaceRecord {
    /// [`crate::policy::Policy::revision`] of the class. If it changes, the roll-out begins again with one tenant.
    pub revision: String,
    /// When the first tenant got the change.
    pub began: Timestamp,
    /// When the last tenants got the change.
    pub at: Timestamp,
    /// The tenants that got the change last. The next tenants wait until all of these have the change, and while one of
    /// these fails.
    pub last: BTreeSet<AccountId>,
    /// The number of tenants that got the change.
    pub done: u64,
    /// The number of tenants that wait.
    pub waiting: u64,
    /// Whether a failure stopped the roll-out.
    pub stopped: bool,
}

impl LedgerState {
    /// Returns the accounts that began to fail after they got the change. These accounts stop the roll-out.
    #[must_use]
    pub fn stopped_by(&self, pace: &PaceRecord) -> BTreeSet<AccountName> {
        let failing = self.failures.iter().filter(|((account, _), failure)| {
            let counts = failure.attempts > 0 && !failure.is_of_realm() && !failure.is_of_adopted();
            counts && failure.since >= pace.at && pace.last.contains(account)
        });
        failing.filter_map(|((id, _), _)| Some(self.accounts.get(id)?.account_name())).collect()
    }
}
