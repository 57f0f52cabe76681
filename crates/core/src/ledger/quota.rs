//! Quota overrides: what an administrator gave one account beside its class, and until when.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::change::Change;
use super::gaps::{Proved, later};
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
    /// The time since then that counts towards `until`: a clock that jumps, or a daemon that was off, ends nothing.
    /// Absent: nothing was counted yet.
    pub proved: Option<Proved>,
}

/// It is written down at most this often (seconds), unless it ends. Below [`gaps::LONGEST_GAP`], or time would be lost.
const COUNT_EVERY: i64 = 1800;

impl QuotaOverride {
    /// Whether it holds.
    #[must_use]
    pub fn is_in_force(&self) -> bool {
        self.lasts().is_none_or(|lasts| self.proved().seconds < lasts)
    }

    /// For how long it is given, in seconds.
    fn lasts(&self) -> Option<u64> {
        self.until.map(|until| u64::try_from(until.duration_since(self.note.at).as_secs()).unwrap_or(0))
    }

    /// When it ends, if it is looked at until then; `None`: it has no end, or ended.
    #[must_use]
    pub fn due(&self) -> Option<Timestamp> {
        let (lasts, proved) = (self.lasts().filter(|_| self.is_in_force())?, self.proved());
        Some(later(proved.counted_at, lasts - proved.seconds))
    }

    /// Counts `seconds` as if it had been looked at all the while.
    pub fn skip(&mut self, seconds: u64) {
        let Proved { counted_at, seconds: before } = self.proved();
        self.proved = Some(Proved { counted_at: later(counted_at, seconds), seconds: before + seconds });
    }

    fn proved(&self) -> Proved {
        self.proved.unwrap_or(Proved { counted_at: self.note.at, seconds: 0 })
    }

    /// After a look of now. `None`: the ledger need not hear of it yet.
    fn counted(&self, now: Timestamp) -> Option<Self> {
        let (lasts, before) = (self.lasts().filter(|_| self.is_in_force())?, self.proved());
        let after = before.after(now);
        let gap = now.as_second() - before.counted_at.as_second();
        let is_news = after.seconds >= lasts || !(0..COUNT_EVERY).contains(&gap);
        is_news.then(|| Self { proved: Some(after), ..self.clone() })
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
    /// What this look adds to the time that was proved of overrides with an end.
    #[must_use]
    pub fn count_overrides(&self, now: Timestamp) -> Vec<Change> {
        let counted = self.overrides.iter().filter_map(|(key, given)| Some((key.clone(), given.counted(now)?)));
        counted.map(|(key, given)| Change::Override(key, Some(given))).collect()
    }

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
    ) -> BTreeMap<&'a str, &'a QuotaOverride> {
        let here = |key: &OverrideKey| key.cluster.as_ref().is_none_or(|there| there == cluster);
        // One for all clusters sorts before one for this, so the latter stays.
        let holds = self.overrides_of(account).filter(|(key, given)| here(key) && given.is_in_force());
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
        let (account, prod) = (AccountId("a".into()), ClusterName("prod".to_owned()));
        let note = Note { actor: "root".to_owned(), reason: String::new(), ticket: None, at: at(0) };
        let mut give = |cluster: Option<&ClusterName>, amount: &str, until| {
            let key = OverrideKey { account: account.clone(), resource: "pods".to_owned(), cluster: cluster.cloned() };
            let given = QuotaOverride { amount: amount.to_owned(), until, note: note.clone(), proved: None };
            ledger.overrides.insert(key, given);
        };
        give(None, "20", None);
        give(Some(&prod), "40", Some(at(100)));
        let other = ClusterName("test".to_owned());
        assert_eq!(ledger.overrides_in(&account, &other)["pods"].amount, "20");
        assert!(ledger.overrides_in(&AccountId("b".into()), &prod).is_empty());
        let mut amount = |now| {
            ledger.apply_all(&ledger.count_overrides(at(now)));
            ledger.overrides_in(&account, &prod)["pods"].amount.clone()
        };
        assert_eq!((amount(99), amount(100)), ("40".to_owned(), "20".to_owned()));
    }

    #[test]
    fn an_override_ends_by_time_that_was_looked_at_and_is_not_written_each_minute() {
        let mut ledger = LedgerState::default();
        let key = OverrideKey { account: AccountId("a".into()), resource: "pods".to_owned(), cluster: None };
        let note = Note { actor: "root".to_owned(), reason: String::new(), ticket: None, at: at(0) };
        let until = Some(at(3 * 3600));
        ledger.overrides.insert(key.clone(), QuotaOverride { amount: "20".to_owned(), until, note, proved: None });
        // Seconds at which it is looked at, and whether the ledger hears of it.
        for (now, heard) in [(60, false), (1800, true), (2_000_000, true), (2_000_060, false), (1_000_000, true)] {
            let changes = ledger.count_overrides(at(now));
            assert_eq!(!changes.is_empty(), heard, "{now}");
            ledger.apply_all(&changes);
        }
        assert_eq!(ledger.overrides[&key].proved.map(|proved| proved.seconds), Some(1800 + 3600));
        for now in [1_003_600, 1_005_399] {
            ledger.apply_all(&ledger.count_overrides(at(now)));
        }
        assert!(ledger.overrides[&key].is_in_force(), "a second is left");
        ledger.apply_all(&ledger.count_overrides(at(1_005_400)));
        assert!(!ledger.overrides[&key].is_in_force());
    }

    #[test]
    fn midnight_is_a_day() {
        assert_eq!(day("2027-01-01T00:00:00Z".parse().expect("a time")), "2027-01-01");
        assert_eq!(day("2027-01-01T08:00:00Z".parse().expect("a time")), "2027-01-01T08:00:00Z");
    }
}
