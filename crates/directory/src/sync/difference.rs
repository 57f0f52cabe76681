//! Compares a full read with the entries that result from incremental reads.

use std::collections::{BTreeMap, BTreeSet};

use bursar_core::identity::{AccountKind, DirectoryId};
use bursar_core::snapshot::{Comparison, Entry, RejectedEntry, SourceRead};

/// The most differences that are listed. Further differences are only counted, because they usually have the same
/// cause.
const TOLD: usize = 20;

/// Returns the differences between `full` and `after`, the incremental state. Entries that changed between `before` and
/// `after`, while the full read ran, are left out, because it is unknown which state the full read saw.
pub(crate) fn compare(before: &SourceRead, full: &SourceRead, after: &SourceRead) -> Comparison {
    let [before, full, after] = [before, full, after].map(rows);
    let keys: BTreeSet<_> = full.keys().chain(after.keys()).collect();
    let differs = |key: &&&Key<'_>| full.get(**key) != after.get(**key) && before.get(**key) == after.get(**key);
    let different: Vec<_> = keys.iter().filter(differs).collect();
    let tell = |key: &Key<'_>| match (full.get(key), after.get(key)) {
        (Some(row), None) => format!("{} was missing", row.name()),
        (None, Some(row)) => format!("{} was no longer in the directory", row.name()),
        (Some(row), Some(_)) => format!("{} was out of date", row.name()),
        (None, None) => String::new(),
    };
    let examples = different.iter().take(TOLD).map(|key| tell(key)).collect();
    Comparison { differences: different.len() as u64, examples }
}

type Key<'a> = (AccountKind, Option<&'a DirectoryId>, &'a str);

#[derive(PartialEq)]
enum Row<'a> {
    Entry(&'a Entry),
    Rejected(&'a RejectedEntry),
}

impl Row<'_> {
    fn name(&self) -> String {
        match self {
            Self::Entry(entry) => format!("{} {}", entry.kind, entry.name),
            Self::Rejected(entry) => format!("{} {}", entry.kind, entry.dn),
        }
    }
}

/// Returns the entries by id, and those without an id by DN.
fn rows(read: &SourceRead) -> BTreeMap<Key<'_>, Row<'_>> {
    let entries = read.entries.iter().map(|entry| ((entry.kind, Some(&entry.id), ""), Row::Entry(entry)));
    let rejected = read.rejected.iter().map(|entry| {
        let dn = if entry.id.is_some() { "" } else { entry.dn.as_str() };
        ((entry.kind, entry.id.as_ref(), dn), Row::Rejected(entry))
    });
    entries.chain(rejected).collect()
}

#[cfg(test)]
mod tests {

    use super::*;

    fn read(groups: &[(&str, &str)]) -> SourceRead {
        let entry = |(id, name): &(&str, &str)| Entry::new(AccountKind::Group, *id, format!("cn={name}"), *name);
        SourceRead::complete("people", BTreeSet::new(), groups.iter().map(entry).collect())
    }

    #[test]
    fn a_comparison_reports_differences_and_ignores_concurrent_changes() {
        let full = read(&[("1", "same"), ("2", "new"), ("3", "other name"), ("5", "renamed just now")]);
        let before = read(&[("1", "same"), ("3", "old name"), ("4", "dead"), ("5", "not renamed yet")]);
        let after = read(&[("1", "same"), ("3", "old name"), ("4", "dead"), ("5", "renamed again")]);
        let found = compare(&before, &full, &after);
        assert_eq!(found.differences, 3);
        assert_eq!(
            found.examples,
            ["group new was missing", "group other name was out of date", "group dead was no longer in the directory"]
        );
        assert_eq!(compare(&after, &after, &after), Comparison::default());
    }

    #[test]
    fn many_differences_are_counted_and_not_listed() {
        let names: Vec<(String, String)> = (0..50).map(|at| (at.to_string(), format!("g{at}"))).collect();
        let names: Vec<(&str, &str)> = names.iter().map(|(id, name)| (id.as_str(), name.as_str())).collect();
        let found = compare(&read(&[]), &read(&names), &read(&[]));
        assert_eq!((found.differences, found.examples.len()), (50, TOLD));
    }
}
