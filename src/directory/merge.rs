//! Reads of several sources, in their order of precedence, become one [`DirectorySnapshot`] in which no name and no
//! uid is there twice and every name fits the classes that would take it. PURE: no runtime, no client, no file system,
//! no clock.
//!
//! Who loses is rejected, not dropped: present, shown, and without effect. Collisions with the past (`uid_history`)
//! are the ledger's business.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::dn::Dn;
use super::{DirectorySnapshot, Entry, RejectedEntry, SourceRead};
use crate::identity::{AccountKind, DirectoryId, Uid};
use crate::policy::{Class, Policy, When};

/// Whether `class` is made from an account of this kind, at this DN, in these groups.
///
/// `in_group` says whether the account belongs to the directory group of that name, nested groups included. Asked the
/// same way of a snapshot and of the ledger.
#[must_use]
pub fn selects(class: &Class, kind: AccountKind, dn: &str, in_group: impl Fn(&str) -> bool) -> bool {
    class.from.account_kind() == Some(kind)
        && match &class.when {
            None => true,
            Some(When::Group(group)) => in_group(group),
            Some(When::Base(base)) => Dn::parse(dn).is_within(&Dn::parse(base)),
        }
}

/// Makes the snapshot. The order of `reads` stays.
#[must_use]
pub fn merge(mut reads: Vec<SourceRead>, policy: &Policy) -> DirectorySnapshot {
    let losers = reads.iter().flat_map(|read| misfits(read, policy)).collect();
    reject(&mut reads, losers);
    let losers = names_taken(&reads);
    reject(&mut reads, losers);
    let losers = uids_taken(&reads);
    reject(&mut reads, losers);
    DirectorySnapshot { reads }
}

/// Why entries are rejected, by source and id.
type Losers = BTreeMap<(String, DirectoryId), String>;

fn reject(reads: &mut [SourceRead], mut losers: Losers) {
    for read in reads {
        let entries = std::mem::take(&mut read.entries);
        for entry in entries {
            match losers.remove(&(read.source.clone(), entry.id.clone())) {
                None => read.entries.push(entry),
                Some(why) => read.rejected.push(RejectedEntry {
                    source: read.source.clone(),
                    kind: entry.kind,
                    dn: entry.dn,
                    name: Some(entry.name),
                    id: Some(entry.id),
                    why,
                }),
            }
        }
        read.rejected.sort();
    }
}

/// Entries whose name does not fit a class that would take them. With several classes it must fit each: a class that
/// would pass over what it was told to take is a surprise, and so is half a tenant.
fn misfits(read: &SourceRead, policy: &Policy) -> Losers {
    let groups: BTreeMap<&str, &Entry> = read
        .entries
        .iter()
        .filter(|entry| entry.kind == AccountKind::Group)
        .map(|group| (group.name.as_str(), group))
        .collect();
    let mut losers = Losers::new();
    for entry in &read.entries {
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

/// Of entries of one kind and name the first source's stays; within a source the older, then the lower id.
fn names_taken(reads: &[SourceRead]) -> Losers {
    let mut holders: BTreeMap<(AccountKind, &str), (&SourceRead, &Entry)> = BTreeMap::new();
    let mut losers = Losers::new();
    for read in reads {
        let mut entries: Vec<&Entry> = read.entries.iter().collect();
        entries.sort_by_key(|entry| age(entry));
        for entry in entries {
            match holders.get(&(entry.kind, entry.name.as_str())) {
                None => {
                    holders.insert((entry.kind, &entry.name), (read, entry));
                }
                Some((first, holder)) => {
                    let account = format!("{} {}", entry.kind, entry.name);
                    let why = if first.source == read.source {
                        format!("{account} is also {}, which is older", holder.dn)
                    } else {
                        format!("{account} is taken from source {} ({})", first.source, holder.dn)
                    };
                    losers.insert((read.source.clone(), entry.id.clone()), why);
                }
            }
        }
    }
    losers
}

/// Of entries of one uid the older stays, then the one with the lower id, whatever their source.
fn uids_taken(reads: &[SourceRead]) -> Losers {
    let mut entries: Vec<(&SourceRead, &Entry, Uid)> = reads
        .iter()
        .flat_map(|read| read.entries.iter().map(move |entry| (read, entry)))
        .filter_map(|(read, entry)| entry.posix.as_ref().map(|posix| (read, entry, posix.uid)))
        .collect();
    entries.sort_by_key(|(_, entry, _)| age(entry));
    let mut holders: BTreeMap<Uid, &Entry> = BTreeMap::new();
    let mut losers = Losers::new();
    for (read, entry, uid) in entries {
        match holders.get(&uid) {
            None => {
                holders.insert(uid, entry);
            }
            Some(holder) => {
                let why = format!("uid {uid} is held by {} {} ({})", holder.kind, holder.name, holder.dn);
                losers.insert((read.source.clone(), entry.id.clone()), why);
            }
        }
    }
    losers
}

/// Oldest first; an entry that hides its age is the youngest.
fn age(entry: &Entry) -> (Reverse<bool>, Option<jiff::Timestamp>, DirectoryId) {
    (Reverse(entry.created.is_some()), entry.created, entry.id.clone())
}

/// The groups of a read that `id` belongs to, nested ones included.
#[must_use]
pub fn groups_of<'a>(read: &'a SourceRead, id: &DirectoryId) -> BTreeSet<&'a str> {
    read.entries
        .iter()
        .filter(|entry| entry.kind == AccountKind::Group && entry.members.contains_key(id))
        .map(|group| group.name.as_str())
        .collect()
}
