//! How far a change of the policy has reached the tenants that existed before it.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::LedgerState;
use crate::identity::{AccountId, AccountName};

/// One class on its way from one policy to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PaceRecord {
    /// [`crate::policy::Policy::revision`] of the class: another revision starts again with one tenant.
    pub revision: String,
    /// When the first tenant was let through.
    pub began: Timestamp,
    /// When the newest tenants were let through.
    pub at: Timestamp,
    /// The newest tenants. The next ones wait until these have the change, and while one of these fails.
    pub last: BTreeSet<AccountId>,
    /// How many were let through.
    pub done: u64,
    /// How many wait.
    pub waiting: u64,
    /// A failure stopped the change.
    pub stopped: bool,
}

impl LedgerState {
    /// Accounts that began to fail after they received the change: these stop it.
    #[must_use]
    pub fn stopped_by(&self, pace: &PaceRecord) -> BTreeSet<AccountName> {
        let failing = self.failures.iter().filter(|((account, _), failure)| {
            failure.attempts > 0 && !failure.is_of_realm() && failure.since >= pace.at && pace.last.contains(account)
        });
        failing.filter_map(|((id, _), _)| Some(self.accounts.get(id)?.account_name())).collect()
    }
}
