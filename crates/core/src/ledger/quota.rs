//! Quota overrides: amounts that an administrator set for one account instead of its class's, and until when.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::change::Change;
use super::gaps::Proved;
use super::term::Term;
use super::{LedgerState, Note};
use crate::identity::{AccountId, ClusterName};

/// The actor of an override that Bursar adopted from an edit with `kubectl`: `managedFields` names the program, not the
/// person.
pub const UNKNOWN: &str = "unknown";

/// The account and the resource of an override. An override for one cluster takes precedence over an override for all
/// clusters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct OverrideKey {
    pub account: AccountId,
    /// A key of `spec.hard`.
    pub resource: String,
    /// `None` if the override is for every cluster.
    pub cluster: Option<ClusterName>,
}

/// An amount that replaces the class's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaOverride {
    /// A Kubernetes quantity, such as `16Gi`.
    pub amount: String,
    /// When the class's amount applies again; `None` if never.
    pub until: Option<Timestamp>,
    /// The actor, the reason, the ticket and the time.
    pub note: Note,
    /// The observed time since `note.at`. Only observed time counts towards `until`, so a clock that jumps or a daemon
    /// that was off does not end the override. `None` if nothing was counted yet.
    pub proved: Option<Proved>,
}

impl QuotaOverride {
    /// Whether the override applies.
    #[must_use]
    pub fn is_in_force(&self) -> bool {
        self.term().is_running()
    }

    /// Returns the term of the override.
    #[must_use]
    pub const fn term(&self) -> Term {
        Term { from: self.note.at, until: self.until, proved: self.proved }
    }

    /// Returns a text such as `override T123 until 2027-01-01`.
    #[must_use]
    pub fn said(&self) -> String {
        let by = self.note.ticket.clone().unwrap_or_else(|| format!("by {}", self.note.actor));
        match self.until {
            Some(until) => format!("override {by} until {}", day(until)),
            None => format!("override {by}"),
        }
    }
}

/// Formats a timestamp; midnight UTC becomes the date alone.
#[must_use]
pub fn day(moment: Timestamp) -> String {
    let text = format!("{moment:.0}");
    text.strip_suffix("T00:00:00Z").map_or_else(|| text.clone(), str::to_owned)
}

impl LedgerState {
    pub(super) fn count_overrides(&self, now: Timestamp) -> Vec<Change> {
        let counted = self.overrides.iter().filter_map(|(key, given)| {
            let proved = Some(given.term().counted(now)?);
            Some(Change::Override(key.clone(), Some(QuotaOverride { proved, ..given.clone() })))
        });
        counted.collect()
    }

    /// Returns every override of an account, sorted by resource, including those that ended and were not removed yet.
    pub fn overrides_of<'a>(
        &'a self,
        account: &'a AccountId,
    ) -> impl Iterator<Item = (&'a OverrideKey, &'a QuotaOverride)> {
        let from = OverrideKey { account: account.clone(), resource: String::new(), cluster: None };
        self.overrides.range(from..).take_while(move |(key, _)| key.account == *account)
    }

    /// Returns the overrides that are in force in one cluster, by resource.
    #[must_use]
    pub fn overrides_in<'a>(
        &'a self,
        account: &'a AccountId,
        cluster: &ClusterName,
    ) -> BTreeMap<&'a str, &'a QuotaOverride> {
        let here = |key: &OverrideKey| key.cluster.as_ref().is_none_or(|there| there == cluster);
        // A key without a cluster sorts before the key of this cluster, so `collect` keeps the override of this
        // cluster.
        let holds = self.overrides_of(account).filter(|(key, given)| here(key) && given.is_in_force());
        holds.map(|(key, given)| (key.resource.as_str(), given)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("the time is valid")
    }

    #[test]
    fn an_override_of_one_cluster_wins_over_one_of_all_clusters_until_it_ends() {
        let mut ledger = LedgerState::default();
        let (account, prod) = (AccountId("a".into()), ClusterName("prod".into()));
        let note = Note { actor: "root".to_owned(), reason: String::new(), ticket: None, at: at(0) };
        let mut give = |cluster: Option<&ClusterName>, amount: &str, until| {
            let key = OverrideKey { account: account.clone(), resource: "pods".to_owned(), cluster: cluster.cloned() };
            let given = QuotaOverride { amount: amount.to_owned(), until, note: note.clone(), proved: None };
            ledger.overrides.insert(key, given);
        };
        give(None, "20", None);
        give(Some(&prod), "40", Some(at(100)));
        let other = ClusterName("test".into());
        assert_eq!(ledger.overrides_in(&account, &other)["pods"].amount, "20");
        assert!(ledger.overrides_in(&AccountId("b".into()), &prod).is_empty());
        let mut amount = |now| {
            ledger.apply_all(&ledger.count_overrides(at(now)));
            ledger.overrides_in(&account, &prod)["pods"].amount.clone()
        };
        assert_eq!((amount(99), amount(100)), ("40".to_owned(), "20".to_owned()));
    }

    #[test]
    fn only_observed_time_ends_an_override_and_it_is_not_written_each_minute() {
        let mut ledger = LedgerState::default();
        let key = OverrideKey { account: AccountId("a".into()), resource: "pods".to_owned(), cluster: None };
        let note = Note { actor: "root".to_owned(), reason: String::new(), ticket: None, at: at(0) };
        let until = Some(at(3 * 3600));
        ledger.overrides.insert(key.clone(), QuotaOverride { amount: "20".to_owned(), until, note, proved: None });
        // The time of each look in seconds, and whether that look writes a new count.
        for (now, is_written) in [(60, false), (1800, true), (2_000_000, true), (2_000_060, false), (1_000_000, true)] {
            let changes = ledger.count_overrides(at(now));
            assert_eq!(!changes.is_empty(), is_written, "{now}");
            ledger.apply_all(&changes);
        }
        assert_eq!(ledger.overrides[&key].proved.map(|proved| proved.seconds), Some(1800 + 3600));
        for now in [1_003_600, 1_005_399] {
            ledger.apply_all(&ledger.count_overrides(at(now)));
        }
        assert!(ledger.overrides[&key].is_in_force(), "the override has one second left");
        ledger.apply_all(&ledger.count_overrides(at(1_005_400)));
        assert!(!ledger.overrides[&key].is_in_force());
    }

    #[test]
    fn midnight_is_written_as_a_date() {
        assert_eq!(day("2027-01-01T00:00:00Z".parse().expect("the time is valid")), "2027-01-01");
        assert_eq!(day("2027-01-01T08:00:00Z".parse().expect("the time is valid")), "2027-01-01T08:00:00Z");
    }
}
