//! Compares the replication state that a server reports with what was seen before, to notice a server that is behind.
//!
//! A server that is behind shows people who left as present, with their former rights. Its answer is not used, and
//! another server is asked.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::identity::DirectoryId;

/// How many of the most recently changed entries are remembered for a server other than Active Directory. A server that
/// is behind lacks the newest changes, so remembering more entries would prove nothing further. With this number, the
/// row in the ledger stays below about 20 KiB.
pub const WITNESSES: usize = 256;

/// If another server answers, which cannot be compared with the former server, no access is added for this time.
/// Between sites, Active Directory replicates every 15 minutes at best and every three hours by default; people wait
/// about half an hour for a new account before they ask.
pub const SETTLES: SignedDuration = SignedDuration::from_mins(30);

/// How far the clocks of two servers may differ, and how long a change may take from one to the other, before this
/// counts as a fault. Kerberos tolerates the same difference.
pub const SKEW: SignedDuration = SignedDuration::from_mins(5);

/// The replication state that a server reports.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marks {
    /// `contextCSN` (OpenLDAP): the time of the newest change of each server id, by suffix and server id.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub changes: BTreeMap<String, Stamp>,
    /// `highestCommittedUSN` (Active Directory), by the `invocationId` of the database that it counts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counts: BTreeMap<String, u64>,
    /// The domain controller (Active Directory). The `counts` of two controllers cannot be compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<String>,
    /// When the most recently changed entries were changed, by their ids. Empty for Active Directory.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub entries: BTreeMap<DirectoryId, Stamp>,
    /// Whether the last answer had none of these marks, so that it may be arbitrarily old.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub silent: bool,
    /// The choice that the first complete read made for `ids = "auto"` (Active Directory).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ids: Option<DecidedIds>,
}

/// The source of the uids and gids of a directory, once it is decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DecidedIds {
    /// `uidNumber` and `gidNumber`.
    Attributes,
    /// The SIDs of the accounts.
    Sid,
}

/// Evidence that a server is behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Behind {
    /// How far the server is behind; `None` if that is unknown.
    pub lag: Option<SignedDuration>,
    /// The evidence, as a text for administrators.
    pub why: String,
}

impl Marks {
    /// Whether the server reports no marks at all.
    #[must_use]
    pub fn says_nothing(&self) -> bool {
        self.changes.is_empty() && self.counts.is_empty() && self.entries.is_empty() && self.controller.is_none()
    }

    /// Returns the evidence that a server with the marks `shown` is behind `self`; `None` if there is none.
    #[must_use]
    pub fn behind(&self, shown: &Self) -> Option<Behind> {
        // A single write after a restore moves `contextCSN` forward, but leaves all other entries in their old state.
        self.changes_behind(shown).or_else(|| self.counts_behind(shown)).or_else(|| self.entries_behind(shown))
    }

    /// Whether `shown` has a `contextCSN` of each known server id, so that [`Self::behind`] notices each change that
    /// the server lacks. Entries prove less: they show no deletion that the server lacks.
    #[must_use]
    pub fn is_comparable(&self, shown: &Self) -> bool {
        !self.changes.is_empty() && self.changes.keys().all(|key| shown.changes.contains_key(key))
    }

    /// Whether `shown` comes from another server whose marks cannot be compared with `self`, or from a domain
    /// controller whose database was restored. A server without marks cannot be compared with any other.
    #[must_use]
    pub fn is_of_another(&self, shown: &Self) -> bool {
        match (&self.controller, &shown.controller) {
            (Some(known), Some(other)) => known != other || self.is_restored(shown),
            _ => !self.says_nothing() && (self.silent || !self.is_comparable(shown)),
        }
    }

    /// Whether `shown` comes from the last domain controller, but from a database that was never seen before. A
    /// restored controller gets a new `invocationId`, and its counts cannot be compared with the former ones.
    #[must_use]
    pub fn is_restored(&self, shown: &Self) -> bool {
        let is_new = !self.counts.is_empty() && !shown.counts.is_empty();
        is_new && self.controller == shown.controller && shown.counts.keys().all(|id| !self.counts.contains_key(id))
    }

    /// Whether `shown` has an older `contextCSN`. Such an answer is used only if the server has newer entries. The
    /// server may have crashed, or it may be another server of the same name in the middle of a refresh.
    #[must_use]
    pub fn has_older_changes(&self, shown: &Self) -> bool {
        self.changes_behind(shown).is_some()
    }

    fn changes_behind(&self, shown: &Self) -> Option<Behind> {
        let late = self.changes.iter().filter_map(|(key, known)| {
            let has = shown.changes.get(key).filter(|has| has.is_before(*known))?;
            Some((known.since(*has), key, *known, *has))
        });
        let (lag, key, known, has) = late.max_by_key(|(lag, ..)| *lag)?;
        let why = format!("its contextCSN {key} is {has}, but {known} was seen before");
        Some(Behind { lag: Some(lag), why })
    }

    fn counts_behind(&self, shown: &Self) -> Option<Behind> {
        let mut late = self.counts.iter().filter_map(|(key, known)| {
            let has = shown.counts.get(key).filter(|has| *has < known)?;
            let why = format!(
                "its highestCommittedUSN is {has}, but was {known} before with the same invocationId {key}: \
                 its database was restored to an older state"
            );
            Some(Behind { lag: None, why })
        });
        late.next()
    }

    /// Whether the only evidence that a server is behind may come from a slow clock. If an entry is changed again on a
    /// server with a slow clock, its time goes back by less than [`SKEW`]. This is assumed if no server has shown the
    /// newer time for that long, and there is no `contextCSN` to decide. Otherwise the source would count as behind
    /// until somebody changes the entry again.
    #[must_use]
    pub fn is_slow_clock(&self, shown: &Self, now: Timestamp) -> bool {
        let mut late = self.late_entries(shown);
        let Some((lag, _, known, _)) = late.next() else { return false };
        let is_old = known.second.saturating_add(SKEW.as_secs()) <= now.as_second();
        late.next().is_none() && lag < SKEW && is_old && self.changes.is_empty() && shown.changes.is_empty()
    }

    /// Returns the entries that went back to an older state: by how much, the id, the known time and the time now
    /// shown.
    fn late_entries<'a>(
        &'a self,
        shown: &'a Self,
    ) -> impl Iterator<Item = (SignedDuration, &'a DirectoryId, Stamp, Stamp)> {
        self.entries.iter().filter_map(|(id, known)| {
            let has = shown.entries.get(id).filter(|has| has.is_before(*known))?;
            Some((known.since(*has), id, *known, *has))
        })
    }

    fn entries_behind(&self, shown: &Self) -> Option<Behind> {
        let late: Vec<_> = self.late_entries(shown).collect();
        let count = late.len();
        let (lag, id, known, has) = late.into_iter().max_by_key(|(lag, ..)| *lag)?;
        let why =
            format!("{count} of its entries went back to an older state: {id} changed at {known}, but shows {has}");
        Some(Behind { lag: Some(lag), why })
    }

    /// Returns the marks after a server showed `shown`. Times in the future are ignored: they come from a wrong clock,
    /// and would make each later change look old.
    #[must_use]
    pub fn advanced(&self, shown: &Self, now: Timestamp) -> Self {
        let mut after = self.clone();
        for (key, stamp) in shown.changes.iter().filter(|(_, stamp)| stamp.is_past(now)) {
            let known = after.changes.entry(key.clone()).or_insert(*stamp);
            *known = (*known).max(*stamp);
        }
        for (key, count) in &shown.counts {
            let known = after.counts.entry(key.clone()).or_insert(*count);
            *known = (*known).max(*count);
        }
        for (id, stamp) in shown.entries.iter().filter(|(_, stamp)| stamp.is_past(now)) {
            after.entries.insert(id.clone(), *stamp);
        }
        after.ids = after.ids.or(shown.ids);
        after.controller = shown.controller.clone().or(after.controller);
        after.silent = shown.says_nothing();
        after.entries = newest(after.entries, WITNESSES);
        after
    }
}

/// Returns the `count` entries that changed last.
#[must_use]
pub fn newest(entries: BTreeMap<DirectoryId, Stamp>, count: usize) -> BTreeMap<DirectoryId, Stamp> {
    if entries.len() <= count {
        return entries;
    }
    let mut sorted: Vec<(Stamp, DirectoryId)> = entries.into_iter().map(|(id, stamp)| (stamp, id)).collect();
    sorted.sort_unstable_by(|a, b| b.cmp(a));
    sorted.into_iter().take(count).map(|(stamp, id)| (id, stamp)).collect()
}

/// A time as directories write it: `20261121002119.123456Z` in a CSN, `20261121002119Z` in `modifyTimestamp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp {
    /// Seconds since 1970.
    second: i64,
    /// `None` if the time has no fraction.
    micro: Option<u32>,
}

impl Stamp {
    /// Parses the time of a CSN, or an RFC 4517 time in UTC. Returns `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let time = text.split('#').next()?.strip_suffix('Z')?;
        let (digits, fraction) = match time.split_once(['.', ',']) {
            Some((digits, fraction)) => (digits, Some(fraction)),
            None => (time, None),
        };
        if digits.len() != 14 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let number = |from: usize, to: usize| digits.get(from..to)?.parse::<i64>().ok();
        let (year, month, day) = (number(0, 4)?, number(4, 6)?, number(6, 8)?);
        let (hour, minute, second) = (number(8, 10)?, number(10, 12)?, number(12, 14)?);
        if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
            return None;
        }
        let second = days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
        let micro = match fraction {
            None => None,
            // `modifyTimestamp` of other servers has three digits, a CSN six.
            Some(fraction) if (1..=6).contains(&fraction.len()) => {
                let scale = 10_u32.pow(6 - u32::try_from(fraction.len()).ok()?);
                Some(fraction.parse::<u32>().ok()? * scale)
            }
            Some(_) => return None,
        };
        Some(Self { second, micro })
    }

    /// Whether `self` is earlier than `other`. If either has no fraction, only the seconds are compared.
    #[must_use]
    pub fn is_before(self, other: Self) -> bool {
        match (self.micro, other.micro) {
            (Some(own), Some(others)) => (self.second, own) < (other.second, others),
            _ => self.second < other.second,
        }
    }

    /// Whether the time is not after `now`. A time in the future comes from a wrong clock.
    #[must_use]
    pub fn is_past(self, now: Timestamp) -> bool {
        self.second <= now.as_second()
    }

    fn since(self, earlier: Self) -> SignedDuration {
        SignedDuration::from_secs(self.second.saturating_sub(earlier.second))
    }
}

/// Returns the days from 1 January 1970 to a day of the Gregorian calendar. A calendar library would take longer than
/// the read itself, which has tens of thousands of times.
const fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year - era * 400;
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

impl std::fmt::Display for Stamp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Ok(time) = Timestamp::from_second(self.second) else { return write!(f, "{}", self.second) };
        match self.micro {
            None => write!(f, "{}", time.strftime("%Y%m%d%H%M%SZ")),
            Some(micro) => write!(f, "{}.{micro:06}Z", time.strftime("%Y%m%d%H%M%S")),
        }
    }
}

impl Serialize for Stamp {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Stamp {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom(format!("{text:?} is not a time")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(text: &str) -> Stamp {
        Stamp::parse(text).expect("the time is valid")
    }

    fn vector(pairs: &[(&str, &str)]) -> Marks {
        let changes = pairs.iter().map(|(key, text)| ((*key).to_owned(), stamp(text))).collect();
        Marks { changes, ..Marks::default() }
    }

    fn seen(pairs: &[(&str, &str)]) -> Marks {
        let entries = pairs.iter().map(|(id, text)| (DirectoryId((*id).to_owned()), stamp(text))).collect();
        Marks { entries, ..Marks::default() }
    }

    fn now() -> Timestamp {
        "2026-11-22T10:00:00Z".parse().expect("the time is valid")
    }

    #[test]
    fn times_are_read_and_written() {
        assert_eq!(stamp("19700101000000Z"), Stamp { second: 0, micro: None });
        assert_eq!(stamp("20261122100000Z").second, now().as_second());
        assert_eq!(stamp("20000229235959.000001Z#000000#001#000000").to_string(), "20000229235959.000001Z");
        assert_eq!(stamp("20261122100000.5Z").micro, Some(500_000));
        for wrong in ["", "2026", "20261122100000", "20261322100000Z", "20261122100000.1234567Z", "2026112210000éZ"] {
            assert_eq!(Stamp::parse(wrong), None, "{wrong}");
        }
        let json =
            serde_json::to_string(&vector(&[("x 001", "20261122100000.000007Z")])).expect("the marks become JSON");
        assert_eq!(json, r#"{"changes":{"x 001":"20261122100000.000007Z"}}"#);
        assert_eq!(
            serde_json::from_str::<Marks>(&json).expect("the marks are valid JSON"),
            vector(&[("x 001", "20261122100000.000007Z")])
        );
    }

    #[test]
    fn a_server_with_an_older_csn_of_a_shared_server_id_is_behind() {
        let known = vector(&[("001", "20261122090000.000002Z"), ("002", "20261122080000.0Z")]);
        assert_eq!(known.behind(&known), None);
        let behind = known.behind(&vector(&[("001", "20261122083000.000001Z"), ("002", "20261122080000.0Z")]));
        assert_eq!(behind.and_then(|behind| behind.lag), Some(SignedDuration::from_mins(30)));
        assert!(known.behind(&vector(&[("001", "20261122090000.000001Z")])).is_some(), "a microsecond counts");
        assert_eq!(known.behind(&vector(&[("001", "20261122090000.000002Z"), ("003", "20200101000000.0Z")])), None);
        assert_eq!(known.behind(&Marks::default()), None, "a server without marks is not behind");
    }

    #[test]
    fn a_lower_usn_is_behind_only_for_the_same_database() {
        let of = |id: &str, count| Marks { counts: BTreeMap::from([(id.to_owned(), count)]), ..Marks::default() };
        assert!(of("a", 100).behind(&of("a", 99)).is_some());
        assert_eq!(of("a", 100).behind(&of("a", 100)), None);
        assert_eq!(of("a", 100).behind(&of("b", 1)), None);
        assert!(of("a", 100).is_restored(&of("b", 1)) && !of("a", 100).is_restored(&of("a", 101)));
        assert_eq!(of("a", 100).advanced(&of("b", 1), now()).counts.len(), 2);
    }

    #[test]
    fn an_older_entry_is_behind_and_a_missing_one_is_not() {
        let known = seen(&[("old", "20261101000000Z"), ("newest", "20261122090000Z")]);
        assert_eq!(known.behind(&seen(&[("old", "20261101000000Z")])), None, "the newest entry was deleted");
        assert!(known.behind(&seen(&[("old", "20261101000000Z"), ("newest", "20261122085959Z")])).is_some());
        assert_eq!(known.behind(&seen(&[("newest", "20261122090000.5Z")])), None, "a fraction is not older");
        let exact = seen(&[("newest", "20261122090000.5Z")]);
        assert_eq!(exact.behind(&seen(&[("newest", "20261122090000Z")])), None, "a missing fraction is not older");
        // The server was restored from a backup, and a client wrote to it afterwards.
        let both = Marks { entries: known.entries.clone(), ..vector(&[("001", "20261122090000.0Z")]) };
        let older = seen(&[("newest", "20261122020000Z")]);
        let shown = Marks { entries: older.entries, ..vector(&[("001", "20261122093000.0Z")]) };
        assert!(both.behind(&shown).is_some());
        let added_again = seen(&[("newest", "20261122093000Z")]);
        let shown = Marks { entries: added_again.entries, ..vector(&[("001", "20261122093000.0Z")]) };
        assert_eq!(both.behind(&shown), None, "an entry that was added again has a new time");
    }

    #[test]
    fn one_entry_that_went_back_a_little_may_come_from_a_slow_clock() {
        let at = |minute: u32| format!("202611220940{minute:02}Z");
        let known = seen(&[("a", &at(59)), ("b", "20261101000000Z"), ("c", "20261102000000Z")]);
        let one = seen(&[("a", &at(1)), ("b", "20261101000000Z")]);
        assert!(known.behind(&one).is_some());
        assert!(known.is_slow_clock(&one, now()));
        let soon: Timestamp = "2026-11-22T09:45:58Z".parse().expect("the time is valid");
        assert!(!known.is_slow_clock(&one, soon), "a replica may be a few minutes behind");
        let other = [seen(&[("a", "20261122093000Z")]), seen(&[("a", &at(1)), ("b", "20261031235959Z")])];
        for shown in other.iter().chain([&known]) {
            assert!(!known.is_slow_clock(shown, now()), "{shown:?}");
        }
        let csn = vector(&[("001", "20261122090000.0Z")]);
        let with_csn = |marks: &Marks| Marks { changes: csn.changes.clone(), ..marks.clone() };
        assert!(!with_csn(&known).is_slow_clock(&with_csn(&one), now()));
        let after = known.advanced(&one, now());
        assert_eq!(after.behind(&one), None, "the server counts as behind only once");
    }

    #[test]
    fn a_mark_from_the_future_is_ignored() {
        let known = vector(&[("001", "20261122090000.0Z")]);
        let future = vector(&[("001", "20301122090000.0Z"), ("002", "20301122090000.0Z")]);
        assert_eq!(known.advanced(&future, now()), known);
        assert_eq!(known.behind(&vector(&[("001", "20261122093000.0Z")])), None);
        assert!(Marks::default().advanced(&seen(&[("a", "20301122090000Z")]), now()).says_nothing());
    }

    #[test]
    fn a_known_mark_never_decreases() {
        let known = vector(&[("001", "20261122090000.0Z")]);
        let after = known.advanced(&vector(&[("001", "20261122080000.0Z"), ("002", "20261122070000.0Z")]), now());
        assert_eq!(after, vector(&[("001", "20261122090000.0Z"), ("002", "20261122070000.0Z")]));
    }

    #[test]
    fn only_the_newest_entries_are_kept() {
        let many: Vec<(String, String)> =
            (0..300).map(|at| (format!("e{at}"), format!("20261101{:02}{:02}00Z", at / 60, at % 60))).collect();
        let many: Vec<(&str, &str)> = many.iter().map(|(id, text)| (id.as_str(), text.as_str())).collect();
        let after = Marks::default().advanced(&seen(&many), now());
        assert_eq!(after.entries.len(), WITNESSES);
        assert!(after.entries.contains_key(&DirectoryId("e299".to_owned())));
        assert!(!after.entries.contains_key(&DirectoryId("e0".to_owned())));
    }
}
