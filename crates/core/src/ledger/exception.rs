//! Exceptions: admission rules that do not apply to one account, and until when.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::change::Change;
use super::gaps::Proved;
use super::term::Term;
use super::{LedgerState, Note};
use crate::contract::exception::ExceptedRule;
use crate::identity::{AccountId, ClusterName};

/// The account that is excepted, and the rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExceptionKey {
    pub account: AccountId,
    pub rule: ExceptedRule,
    /// `None` if the exception is for every cluster.
    pub cluster: Option<ClusterName>,
}

/// The end of an exception, and who set it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exception {
    /// When the rule applies again.
    pub until: Timestamp,
    /// The actor, the reason, the ticket and the time.
    pub note: Note,
    /// The observed time since `note.at`, which counts towards `until`; `None` if nothing was counted yet.
    pub proved: Option<Proved>,
}

impl Exception {
    /// Returns the term of the exception.
    #[must_use]
    pub const fn term(&self) -> Term {
        Term { from: self.note.at, until: Some(self.until), proved: self.proved }
    }
}

impl LedgerState {
    pub(super) fn count_exceptions(&self, now: Timestamp) -> Vec<Change> {
        let counted = self.exceptions.iter().filter_map(|(key, given)| {
            let proved = Some(given.term().counted(now)?);
            Some(Change::Exception(key.clone(), Some(Exception { proved, ..given.clone() })))
        });
        counted.collect()
    }

    /// Returns every exception of an account, sorted by rule, including those that ended and were not removed yet.
    pub fn exceptions_of<'a>(
        &'a self,
        account: &'a AccountId,
    ) -> impl Iterator<Item = (&'a ExceptionKey, &'a Exception)> {
        let from = ExceptionKey { account: account.clone(), rule: ExceptedRule::ALL[0], cluster: None };
        self.exceptions.range(from..).take_while(move |(key, _)| key.account == *account)
    }

    /// Returns the rules that an account is excepted from in one cluster.
    #[must_use]
    pub fn excepted(&self, account: &AccountId, cluster: &ClusterName) -> BTreeSet<ExceptedRule> {
        let here = |key: &ExceptionKey| key.cluster.as_ref().is_none_or(|there| there == cluster);
        let holds = self.exceptions_of(account).filter(|(key, given)| here(key) && given.term().is_running());
        holds.map(|(key, _)| key.rule).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exception_applies_in_its_cluster_until_observed_time_ends_it() {
        let at = |second: i64| Timestamp::from_second(second).expect("the time is valid");
        let mut ledger = LedgerState::default();
        let (account, prod) = (AccountId("a".into()), ClusterName("prod".into()));
        let note = Note { actor: "root".to_owned(), reason: String::new(), ticket: None, at: at(0) };
        for (rule, cluster) in [(ExceptedRule::Volumes, Some(&prod)), (ExceptedRule::Images, None)] {
            let key = ExceptionKey { account: account.clone(), rule, cluster: cluster.cloned() };
            ledger.exceptions.insert(key, Exception { until: at(7200), note: note.clone(), proved: None });
        }
        let of = |ledger: &LedgerState, cluster: &str| ledger.excepted(&account, &ClusterName(cluster.into()));
        assert_eq!(of(&ledger, "prod"), BTreeSet::from([ExceptedRule::Images, ExceptedRule::Volumes]));
        assert_eq!(of(&ledger, "test"), BTreeSet::from([ExceptedRule::Images]));
        assert!(ledger.excepted(&AccountId("b".into()), &prod).is_empty());
        // The daemon was off for a year, of which one hour counts.
        ledger.apply_all(&ledger.count_exceptions(at(31_536_000)));
        assert_eq!(of(&ledger, "prod").len(), 2);
        ledger.apply_all(&ledger.count_exceptions(at(31_539_600)));
        assert!(of(&ledger, "prod").is_empty());
    }
}
