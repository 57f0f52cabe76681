//! Finds people who have entries in several sources: these entries have the same [`Entry::person`].

use std::collections::BTreeMap;

use super::{Entry, SourceRead};
use crate::identity::{AccountKind, DirectoryId};

/// Entries of people who also have an entry in an earlier source: by source and id, with the earlier entries. If there
/// are several earlier entries, it is unknown which one is the same person.
pub type Same<'a> = BTreeMap<(&'a str, &'a DirectoryId), Vec<&'a Entry>>;

/// Returns the entries of people who also have an entry in an earlier source. `reads` are in order of precedence.
#[must_use]
pub fn same_people(reads: &[SourceRead]) -> Same<'_> {
    let mut first: BTreeMap<&str, (&str, Vec<&Entry>)> = BTreeMap::new();
    let mut same = Same::new();
    for read in reads {
        for entry in read.entries.iter().filter(|entry| entry.kind == AccountKind::User) {
            let Some(person) = entry.person.as_deref() else { continue };
            let (source, entries) = first.entry(person).or_insert_with(|| (&read.source, Vec::new()));
            if *source == read.source {
                entries.push(entry);
            } else {
                same.insert((&read.source, &entry.id), entries.clone());
            }
        }
    }
    same
}

#[cfg(test)]
mod tests {

    use super::*;

    fn read(source: &str, people: &[(&str, Option<&str>)]) -> SourceRead {
        let entry = |(name, person): &(&str, Option<&str>)| Entry {
            person: person.map(str::to_owned),
            ..Entry::new(AccountKind::User, format!("{source}-{name}"), format!("uid={name},o={source}"), *name)
        };
        SourceRead::complete(source, [AccountKind::User], people.iter().map(entry).collect())
    }

    #[test]
    fn people_are_matched_to_the_first_source_that_has_them() {
        let reads = [
            read("staff", &[("alice", Some("1")), ("bob", Some("2")), ("twin", Some("3")), ("double", Some("3"))]),
            read("guests", &[("a.smith", Some("1")), ("carol", Some("4")), ("who", Some("3")), ("bob", None)]),
            read("alumni", &[("c", Some("4"))]),
        ];
        let same = same_people(&reads);
        let told: Vec<(&str, Vec<&str>)> = same
            .iter()
            .map(|((_, id), of)| (id.0.as_str(), of.iter().map(|entry| entry.name.as_str()).collect()))
            .collect();
        assert_eq!(
            told,
            [("alumni-c", vec!["carol"]), ("guests-a.smith", vec!["alice"]), ("guests-who", vec!["twin", "double"])]
        );
    }
}
