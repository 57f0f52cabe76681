//! Quota overrides: what an administrator gave one account beside its class, and until when.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{LedgerState, Note};
use crate::identity::{AccountId, ClusterName};

/// Actor of an override that was made with `kubectl`: the API server says by which program, not by whom.
pub const UNKNOWN: &str = "unknown";

/// What is overridden. Where both are there, the one for a cluster holds before the one for all.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct OverrideKey {
    /// Whose.
    pub account: AccountId,
    /// A key of `spec.hard`.
    pub resource: String,
    /// Absent: in every cluster.
    pub cluster: Option<ClusterName>,
}

/// Another amount than the class's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaOverride {
    /// As Kubernetes writes it.
    pub amount: String,
    /// From then on the class's amount holds again; absent: never.
    pub until: Option<Timestamp>,
    /// Who gave it, why, on which ticket, and when.
    pub note: Note,
}

impl QuotaOverride {
    /// Whether it holds.
    #[must_use]
    pub fn is_in_force(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| until > now)
    }

    /// `override T123 until 2027-01-01`.
    #[must_use]
    pub fn said(&self) -> String {
        let by = self.note.ticket.clone().unwrap_or_else(|| format!("by {}", self.note.actor));
        match self.until {
            Some(until) => format!("override {by} until {}", day(until)),
            None => format!("override {by}"),
        }
    }
}

/// A moment, short where it is the beginning of a day.
#[must_use]
pub fn day(moment: Timestamp) -> String {
    let text = format!("{moment:.0}");
    text.strip_suffix("T00:00:00Z").map_or_else(|| text.clone(), str::to_owned)
}

impl LedgerState {
    /// Every override of an account, sorted by resource, also one that has ended and was not removed yet.
    pub fn overrides_of<'a>(
        &'a self,
        account: &'a AccountId,
    ) -> impl Iterator<Item = (&'a OverrideKey, &'a QuotaOverride)> {
        let from = OverrideKey { account: account.clone(), resource: String::new(), cluster: None };
        self.overrides.range(from..).take_while(move |(key, _)| key.account == *account)
    }

    /// What holds of them in one cluster, by resource.
    #[must_use]
    pub fn overrides_in<'a>(
        &'a self,
        account: &'a AccountId,
        cluster: &ClusterName,
        now: Timestamp,
    ) -> BTreeMap<&'a str, &'a QuotaOverride> {
        let here = |key: &OverrideKey| key.cluster.as_ref().is_none_or(|there| there == cluster);
        // One for all clusters sorts before one for this, so the latter stays.
        let holds = self.overrides_of(account).filter(|(key, given)| here(key) && given.is_in_force(now));
        holds.map(|(key, given)| (key.resource.as_str(), given)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    #[test]
    fn an_override_holds_until_its_end_and_the_one_of_a_cluster_before_the_one_of_all() {
        let mut ledger = LedgerState::default();
        let (account, prod) = (AccountId("a".to_owned()), ClusterName("prod".to_owned()));
        let note = Note { actor: "root".to_owned(), reason: String::new(), ticket: None, at: at(0) };
        let mut give = |cluster: Option<&ClusterName>, amount: &str, until| {
            let key = OverrideKey { account: account.clone(), resource: "pods".to_owned(), cluster: cluster.cloned() };
            let given = QuotaOverride { amount: amount.to_owned(), until, note: note.clone() };
            ledger.overrides.insert(key, given);
        };
        give(None, "20", None);
        give(Some(&prod), "40", Some(at(100)));
        let amount = |now| ledger.overrides_in(&account, &prod, at(now))["pods"].amount.as_str();
        assert_eq!((amount(99), amount(100)), ("40", "20"));
        let other = ClusterName("test".to_owned());
        assert_eq!(ledger.overrides_in(&account, &other, at(0))["pods"].amount, "20");
        assert!(ledger.overrides_in(&AccountId("b".to_owned()), &prod, at(0)).is_empty());
    }

    #[test]
    fn midnight_is_a_day() {
        assert_eq!(day("2027-01-01T00:00:00Z".parse().expect("a time")), "2027-01-01");
        assert_eq!(day("2027-01-01T08:00:00Z".parse().expect("a time")), "2027-01-01T08:00:00Z");
    }
}
