//! Merges the reads of several sources into one [`DirectorySnapshot`], in which names and uids are unique and every
//! name fits the classes that select the entry. Sources are in the order of precedence.
//!
//! Entries that lose a conflict are rejected, not dropped: they count as present and are shown, but have no effect.
//! Conflicts with earlier accounts (`uid_history`) are left to the ledger.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hash;

use foldhash::{HashMap, HashMapExt as _};

use crate::identity::{AccountKind, DirectoryId};
use crate::policy::Policy;
use crate::select::selects;
use crate::snapshot::named::Nested;
use crate::snapshot::person::{Same, same_people};
use crate::snapshot::{DirectorySnapshot, Entry, RejectedEntry, SourceRead};

/// Makes the snapshot. `reads` keep their order.
#[must_use]
pub fn merge(mut reads: Vec<SourceRead>, policy: &Policy) -> DirectorySnapshot {
    // The second pass is needed because an entry may be the same person as an entry that the first pass rejects.
    for _ in 0..2 {
        let same = same_people(&reads);
        let losers: Losers = reads.iter().flat_map(|read| misfits(read, policy, &same)).collect();
        if losers.is_empty() {
            break;
        }
        reject(&mut reads, losers);
    }
    let losers = names_taken(&reads, &same_people(&reads));
    reject(&mut reads, losers);
    let losers = uids_taken(&reads, &same_people(&reads));
    reject(&mut reads, losers);
    DirectorySnapshot { reads, unasked: BTreeSet::new() }
}

/// The reasons for which entries are rejected, by source and id.
type Losers = BTreeMap<(String, DirectoryId), String>;

fn reject(reads: &mut [SourceRead], mut losers: Losers) {
    if losers.is_empty() {
        return;
    }
    for read in reads {
        let entries = std::mem::take(&mut read.entries);
        for entry in entries {
            match losers.remove(&(read.source.clone(), entry.id.clone())) {
                None => read.entries.push(entry),
                Some(why) => {
                    if entry.kind != AccountKind::User {
                        let members = entry.members.into_keys().collect();
                        let group = read.nesting.add(Nested { members, parts: Vec::new() });
                        read.nesting.name(entry.id.clone(), group);
                    }
                    read.rejected.push(RejectedEntry {
                        source: read.source.clone(),
                        kind: entry.kind,
                        dn: entry.dn,
                        name: Some(entry.name),
                        id: Some(entry.id),
                        disabled: entry.disabled,
                        why,
                    });
                }
            }
        }
        read.rejected.sort();
    }
}

/// Returns the entries whose name does not fit the pattern of a class that selects them. If several classes select an
/// entry, its name must fit all of them; otherwise it would be a tenant of some of its classes only.
fn misfits(read: &SourceRead, policy: &Policy, same: &Same<'_>) -> Losers {
    let groups: BTreeMap<&str, &Entry> = read
        .entries
        .iter()
        .filter(|entry| entry.kind == AccountKind::Group)
        .map(|group| (group.name.as_str(), group))
        .collect();
    let mut losers = Losers::new();
    for entry in read.entries.iter().filter(|entry| !same.contains_key(&(read.source.as_str(), &entry.id))) {
        let in_group = |name: &str| groups.get(name).is_some_and(|group| group.members.contains_key(&entry.id));
        let misfit = policy.classes.values().find(|class| {
            !class.name_pattern.0.is_match(&entry.name) && selects(class, entry.kind, &entry.dn, in_group)
        });
        if let Some(class) = misfit {
            let pattern = class.name_pattern.0.as_str();
            let why = format!("name {:?} does not fit {pattern} (class {})", entry.name, class.name);
            losers.insert((read.source.clone(), entry.id.clone()), why);
        }
    }
    losers
}

/// Returns the entries that lose a conflict about a name. Among entries with the same kind and name, the first source
/// wins; within a source the older entry, then the lower id.
fn names_taken(reads: &[SourceRead], same: &Same<'_>) -> Losers {
    let claims = claims(reads, same).map(|claim| ((claim.entry.kind, claim.entry.name.as_str()), claim));
    taken(
        claims,
        |claim| (claim.place, age(claim.entry)),
        |(kind, name), claim, holder| {
            let held = &holder.entry.dn;
            if holder.place == claim.place {
                format!("{kind} {name} is also the name of {held}, which is older")
            } else {
                format!("{kind} {name} comes from source {} ({held}), which has precedence", holder.read.source)
            }
        },
    )
}

/// Returns the entries that lose a conflict about a uid. The older entry wins, then the lower id, regardless of the
/// source.
fn uids_taken(reads: &[SourceRead], same: &Same<'_>) -> Losers {
    let claims = claims(reads, same).filter_map(|claim| Some((claim.entry.posix.as_ref()?.uid, claim)));
    taken(
        claims,
        |claim| age(claim.entry),
        |uid, _, holder| {
            let Entry { kind, name, dn, .. } = holder.entry;
            format!("uid {uid} is held by {kind} {name} ({dn})")
        },
    )
}

/// An entry that may become an account.
#[derive(Clone, Copy)]
struct Claim<'a> {
    /// The index of its source among all sources.
    place: usize,
    read: &'a SourceRead,
    entry: &'a Entry,
}

/// Returns all entries except those that share the account of another entry; these claim no name and no uid.
fn claims<'a>(reads: &'a [SourceRead], same: &'a Same<'_>) -> impl Iterator<Item = Claim<'a>> + Clone {
    let of =
        |(place, read): (usize, &'a SourceRead)| read.entries.iter().map(move |entry| Claim { place, read, entry });
    reads
        .iter()
        .enumerate()
        .flat_map(of)
        .filter(|claim| !same.contains_key(&(claim.read.source.as_str(), &claim.entry.id)))
}

/// Resolves conflicts: among the claims with the same key, the one with the lowest `rank` wins, then the first. Returns
/// the others, with the reason from `why`.
fn taken<'a, K: Eq + Hash, R: Ord>(
    claims: impl Iterator<Item = (K, Claim<'a>)> + Clone,
    rank: impl Fn(&Claim<'a>) -> R,
    why: impl Fn(&K, &Claim<'a>, &Claim<'a>) -> String,
) -> Losers {
    let mut holders: HashMap<K, Claim<'a>> = HashMap::with_capacity(claims.clone().count());
    let mut contested = false;
    for (thing, claim) in claims.clone() {
        holders
            .entry(thing)
            .and_modify(|holder| {
                contested = true;
                if rank(&claim) < rank(holder) {
                    *holder = claim;
                }
            })
            .or_insert(claim);
    }
    let others = claims.filter(|_| contested).filter_map(|(thing, claim)| {
        let holder = holders.get(&thing).filter(|holder| !std::ptr::eq(holder.entry, claim.entry))?;
        Some(((claim.read.source.clone(), claim.entry.id.clone()), why(&thing, &claim, holder)))
    });
    others.collect()
}

/// Returns the rank of an entry by age, oldest first. An entry without a creation time counts as the youngest.
fn age(entry: &Entry) -> (Reverse<bool>, Option<jiff::Timestamp>, &DirectoryId) {
    (Reverse(entry.created.is_some()), entry.created, &entry.id)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use regex::Regex;

    use super::*;
    use crate::identity::{Gid, PosixIdentity, Uid};
    use crate::plan::testing;
    use crate::policy::{Class, From, Pattern, When};
    use crate::snapshot::Role;

    fn class(name: &str, from: From, when: Option<When>, pattern: &str) -> Class {
        let name_pattern = Pattern(Regex::new(pattern).expect("the pattern is a valid regex"));
        Class { name: name.to_owned(), from, when, name_pattern, ..testing::profile() }
    }

    fn policy(classes: Vec<Class>) -> Policy {
        let classes = classes.into_iter().map(|class| (class.name.clone(), class)).collect();
        Policy { classes, ..testing::policy() }
    }

    fn entry(kind: AccountKind, name: &str, id: &str, uid: i64, created: Option<i64>) -> Entry {
        let ids = Uid::try_from(uid).ok().zip(Gid::try_from(500).ok());
        Entry {
            posix: ids.map(|(uid, gid)| PosixIdentity { uid, gid, groups: BTreeSet::new() }),
            created: created.and_then(|second| jiff::Timestamp::from_second(second).ok()),
            ..Entry::new(kind, id, format!("uid={name},ou={id},dc=x"), name)
        }
    }

    fn read(source: &str, entries: Vec<Entry>) -> SourceRead {
        SourceRead::complete(source, [USER, TOOL, AccountKind::Group], entries)
    }

    fn outcome(snapshot: &DirectorySnapshot) -> (Vec<&str>, Vec<&str>) {
        let entries = snapshot.reads.iter().flat_map(|read| &read.entries).map(|entry| entry.id.0.as_str()).collect();
        let why = snapshot.reads.iter().flat_map(|read| &read.rejected).map(|r| r.why.as_str()).collect();
        (entries, why)
    }

    const USER: AccountKind = AccountKind::User;
    const TOOL: AccountKind = AccountKind::Tool;

    #[test]
    fn the_first_source_has_the_name() {
        let first = read("first", vec![entry(USER, "alice", "1", 2001, Some(9))]);
        let second =
            read("second", vec![entry(USER, "alice", "2", 2002, Some(1)), entry(TOOL, "alice", "3", 2003, None)]);
        let snapshot = merge(vec![first, second], &policy(Vec::new()));
        let why = "user alice comes from source first (uid=alice,ou=1,dc=x), which has precedence";
        assert_eq!(outcome(&snapshot), (vec!["1", "3"], vec![why]), "a tool and a user may share a name");
        assert_eq!(
            snapshot.reads[1].rejected[0].id,
            Some(DirectoryId("2".to_owned())),
            "a rejected entry counts as present"
        );
    }

    #[test]
    fn the_older_of_two_entries_with_one_uid_wins_then_the_lower_id() {
        let one = |created: Option<i64>, other: Option<i64>| {
            let entries = vec![entry(USER, "a", "1", 2001, created), entry(TOOL, "b", "2", 2001, other)];
            outcome(&merge(vec![read("s", entries)], &policy(Vec::new()))).0.concat()
        };
        assert_eq!(one(Some(1), Some(2)), "1");
        assert_eq!(one(Some(2), Some(1)), "2");
        assert_eq!(one(Some(1), Some(1)), "1");
        assert_eq!(one(None, Some(1)), "2", "an entry that hides its age cannot claim to be older");
        let entries = vec![entry(USER, "a", "1", 2001, Some(1)), entry(TOOL, "b", "2", 2001, Some(2))];
        let snapshot = merge(vec![read("s", entries)], &policy(Vec::new()));
        assert_eq!(outcome(&snapshot).1, ["uid 2001 is held by user a (uid=a,ou=1,dc=x)"]);
    }

    #[test]
    fn an_entry_rejected_for_its_name_holds_no_uid() {
        let first = read("first", vec![entry(USER, "alice", "1", 2001, Some(9))]);
        let second =
            read("second", vec![entry(USER, "alice", "2", 2002, Some(1)), entry(USER, "bob", "3", 2002, Some(5))]);
        assert_eq!(outcome(&merge(vec![first, second], &policy(Vec::new()))).0, ["1", "3"]);
    }

    #[test]
    fn a_name_must_fit_the_classes_that_take_it_and_no_others() {
        let mut admins = entry(AccountKind::Group, "admins", "g", 0, None);
        admins.members.insert(DirectoryId("2".to_owned()), Role::Member);
        let entries = vec![entry(USER, "Alice", "1", 2001, None), entry(USER, "Bob", "2", 2002, None), admins];
        let admin = class("admin", From::Users(None), Some(When::Group("admins".to_owned())), "^[a-z]+$");
        let tool = class("tool", From::Tools, None, "^[a-z]+$");
        let snapshot = merge(vec![read("s", entries)], &policy(vec![admin, tool]));
        let why = "name \"Bob\" does not fit ^[a-z]+$ (class admin)";
        assert_eq!(outcome(&snapshot), (vec!["1", "g"], vec![why]));
    }

    #[test]
    fn a_class_selects_by_kind_group_and_base() {
        let selected = |when, kind, dn: &str, groups: &[&str]| {
            selects(&class("c", From::Users(None), when, ""), kind, dn, |group| groups.contains(&group))
        };
        let group = || Some(When::Group("admins".to_owned()));
        let base = || Some(When::Base("ou=Courses, dc=x".to_owned()));
        assert!(selected(None, USER, "uid=a", &[]));
        assert!(!selected(None, TOOL, "uid=a", &[]));
        assert!(selected(group(), USER, "uid=a", &["admins"]));
        assert!(!selected(group(), USER, "uid=a", &["others"]));
        assert!(selected(base(), USER, "uid=a,OU=courses,dc=x", &[]));
        assert!(!selected(base(), USER, "uid=a,ou=others,dc=x", &[]));
        assert!(!selects(&testing::profile(), USER, "uid=a", |_| true));
    }
}
