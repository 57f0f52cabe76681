//! Merges the reads of several sources into one [`DirectorySnapshot`], in which names and uids are unique and every
//! name fits the classes that select the entry. Sources are in the order of precedence.
//!
//! Entries that lose a conflict are rejected, not dropped: they count as present and are shown, but have no effect. If
//! the ledger's account of an entry already has the name, uid or gid, that entry keeps it, even if others are older.
//! Conflicts with accounts whose entries are not in the reads are left to the ledger, except for gids.

mod gids;
mod owners;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hash;

use foldhash::{HashMap, HashMapExt as _, HashSet};

use self::owners::{Owners, Standing};
use crate::identity::{AccountKind, DirectoryId};
use crate::ledger::LedgerState;
use crate::policy::Policy;
use crate::select::selects;
use crate::snapshot::held::Held;
use crate::snapshot::named::Nested;
use crate::snapshot::person::{Same, same_people};
use crate::snapshot::{Completeness, DirectorySnapshot, Entry, RejectedEntry, Rejection, SourceRead};

/// Makes the snapshot. `reads` keep their order; `unasked` are the other sources of the configuration.
#[must_use]
pub fn merge(
    mut reads: Vec<SourceRead>,
    unasked: BTreeSet<String>,
    policy: &Policy,
    ledger: &LedgerState,
) -> DirectorySnapshot {
    let owners = Owners::of(ledger);
    // The second pass is needed because an entry may be the same person as an entry that the first pass rejects.
    for _ in 0..2 {
        let same = same_people(&reads);
        let losers: Losers = reads.iter().flat_map(|read| misfits(read, policy, &same)).collect();
        if losers.is_empty() {
            break;
        }
        reject(&mut reads, losers, None);
    }
    let losers = names_taken(&reads, &same_people(&reads), &owners);
    reject(&mut reads, losers, Some(&Rejection::NameTaken));
    let losers = names_kept(&reads, &unasked, &same_people(&reads), &owners, ledger);
    reject(&mut reads, losers, Some(&Rejection::NameTaken));
    let losers = uids_taken(&reads, &same_people(&reads), &owners);
    reject(&mut reads, losers, None);
    gids::withhold(&mut reads, &unasked, ledger, policy);
    DirectorySnapshot { reads, unasked, outdated: BTreeSet::new() }
}

/// The reasons for which entries are rejected, by source and id.
type Losers = BTreeMap<(String, DirectoryId), String>;

fn reject(reads: &mut [SourceRead], mut losers: Losers, reason: Option<&Rejection>) {
    if losers.is_empty() {
        return;
    }
    for read in reads {
        let entries = std::mem::take(&mut read.entries);
        for entry in entries {
            match losers.remove(&(read.source.clone(), entry.id.clone())) {
                None => read.entries.push(entry),
                Some(why) => {
                    let rejected = RejectedEntry::of(&read.source, &entry, why);
                    read.rejected.push(RejectedEntry { reason: reason.cloned(), ..rejected });
                    if entry.kind != AccountKind::User {
                        let members = entry.members.into_keys().collect();
                        let group = read.nesting.add(Nested { members, parts: Vec::new() });
                        read.nesting.name(entry.id.clone(), group);
                    }
                    let uid = entry.posix.as_ref().map(|posix| posix.uid);
                    let groups = entry.posix.map(|posix| posix.groups).unwrap_or_default();
                    let held = Held { created: entry.created, uid, groups, ssh_keys: entry.ssh_keys };
                    read.held.insert(entry.dn, held);
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

/// Returns the entries that lose a conflict about a name. The entry whose account has the name keeps it. Otherwise the
/// first source wins; within a source, the older entry wins, then the one with the lower id. A rejected entry claims
/// its name too; otherwise another entry could get the name of a group that selects a class. A rejected person claims
/// the name only within its own source, because a source may list people without uids whom another source completes.
fn names_taken(reads: &[SourceRead], same: &Same<'_>, owners: &Owners<'_>) -> Losers {
    let rejected = reads.iter().enumerate().flat_map(|(place, read)| {
        let rejected = read.rejected.iter().enumerate();
        rejected.filter_map(move |(at, rejected)| Claim::of_rejected(place, read, at, rejected))
    });
    let (people, others): (Vec<_>, Vec<_>) = rejected.partition(|claim| claim.kind == AccountKind::User);
    let of_source = claims(reads, same).filter(|claim| claim.kind == AccountKind::User).chain(people);
    let of_source = of_source.map(|claim| ((claim.place, claim.name), claim));
    let mut losers = taken(of_source, |claim| (owners.of_name(claim), claim.place, claim.age()), why_of_name);
    let all = claims(reads, same).chain(others).map(|claim| ((claim.kind, claim.name), claim));
    losers.extend(taken(all, |claim| (owners.of_name(claim), claim.place, claim.age()), why_of_name));
    losers
}

/// Returns the entries whose name is claimed by an entry that was rejected before and may still exist, because its
/// source was not read, or not completely. As in [`names_taken`], a rejected person claims the name only within its own
/// source.
fn names_kept(
    reads: &[SourceRead],
    unasked: &BTreeSet<String>,
    same: &Same<'_>,
    owners: &Owners<'_>,
    ledger: &LedgerState,
) -> Losers {
    // The entries that incomplete reads show, by source and id. If the id cannot be read, the DN takes its place.
    let shown: HashSet<(&str, &str)> = reads
        .iter()
        .filter(|read| read.completeness != Completeness::Complete)
        .flat_map(|read| {
            let valid = read.entries.iter().map(|entry| entry.id.0.as_str());
            valid.chain(read.rejected.iter().map(key)).map(|key| (read.source.as_str(), key))
        })
        .collect();
    let is_lacking = |known: &RejectedEntry| match reads.iter().find(|read| read.source == known.source) {
        None => unasked.contains(&known.source),
        Some(read) => read.completeness != Completeness::Complete && !shown.contains(&(&*read.source, key(known))),
    };
    let mut before: BTreeMap<(AccountKind, &str), Vec<&RejectedEntry>> = BTreeMap::new();
    let claiming = ledger.rejected.iter().filter(|known| known.reason != Some(Rejection::NameTaken));
    for known in claiming.filter(|known| is_lacking(known)) {
        before.entry((known.kind, known.name.as_deref().unwrap_or_default())).or_default().push(known);
    }
    if before.is_empty() {
        return Losers::new();
    }
    let losers = claims(reads, same).filter_map(|claim| {
        let known = before.get(&(claim.kind, claim.name))?.iter();
        let mut known = known.filter(|known| claim.kind != AccountKind::User || known.source == claim.read.source);
        let known = known.next().filter(|_| owners.of_name(&claim) == Standing::None)?;
        let (Claim { kind, name, .. }, RejectedEntry { dn, source, .. }) = (claim, known);
        let why = format!(
            "{kind} {name} is also the name of {dn} in source {source}, which is rejected: correct or remove that entry; \
             a complete read of {source} then frees the name"
        );
        Some(((claim.read.source.clone(), claim.id?.clone()), why))
    });
    losers.collect()
}

/// Returns the id of an entry, or its DN if the id cannot be read.
fn key(entry: &RejectedEntry) -> &str {
    entry.id.as_ref().map_or(&entry.dn, |id| &id.0)
}

fn why_of_name<K>(_: &K, claim: &Claim<'_>, holder: &Claim<'_>) -> String {
    let (Claim { kind, name, .. }, held) = (claim, holder.dn);
    let is_rejected = if holder.entry.is_none() { "; that entry is rejected too" } else { "" };
    if holder.place < claim.place {
        let source = &holder.read.source;
        format!("{kind} {name} comes from source {source} ({held}), which has precedence{is_rejected}")
    } else if holder.place == claim.place && holder.age() < claim.age() {
        format!("{kind} {name} is also the name of {held}, which is older{is_rejected}")
    } else {
        format!("{kind} {name} is also the name of {held}, which has the account{is_rejected}")
    }
}

/// Returns the entries that lose a conflict about a uid. The entry whose account has the uid keeps it. Otherwise the
/// older entry wins, then the one with the lower id, regardless of the source.
fn uids_taken(reads: &[SourceRead], same: &Same<'_>, owners: &Owners<'_>) -> Losers {
    let claims = claims(reads, same).filter_map(|claim| Some((claim.entry?.posix.as_ref()?.uid, claim)));
    taken(
        claims,
        |claim| (owners.of_uid(claim), claim.age()),
        |uid, _, holder| {
            let Claim { kind, name, dn, .. } = holder;
            format!("uid {uid} is held by {kind} {name} ({dn})")
        },
    )
}

/// An entry that claims a name or a uid.
#[derive(Clone, Copy)]
struct Claim<'a> {
    /// The index of its source among all sources.
    place: usize,
    /// The index of the entry among the valid or the rejected entries.
    at: usize,
    read: &'a SourceRead,
    kind: AccountKind,
    name: &'a str,
    dn: &'a str,
    id: Option<&'a DirectoryId>,
    created: Option<jiff::Timestamp>,
    /// `None` if the entry is rejected.
    entry: Option<&'a Entry>,
}

impl<'a> Claim<'a> {
    fn of(place: usize, read: &'a SourceRead, at: usize, entry: &'a Entry) -> Self {
        let Entry { kind, name, dn, id, created, .. } = entry;
        Self { place, at, read, kind: *kind, name, dn, id: Some(id), created: *created, entry: Some(entry) }
    }

    /// Returns `None` if the entry has no readable name.
    fn of_rejected(place: usize, read: &'a SourceRead, at: usize, rejected: &'a RejectedEntry) -> Option<Self> {
        let RejectedEntry { kind, name, dn, id, .. } = rejected;
        let created = read.held.get(dn).and_then(|held| held.created);
        let (name, id) = (name.as_deref()?, id.as_ref());
        Some(Self { place, at, read, kind: *kind, name, dn, id, created, entry: None })
    }

    const fn is(&self, other: &Self) -> bool {
        self.place == other.place && self.at == other.at && self.entry.is_some() == other.entry.is_some()
    }

    /// Returns the rank of an entry by age, oldest first. An entry without a creation time counts as the youngest.
    const fn age(&self) -> (bool, Option<jiff::Timestamp>, Option<&'a DirectoryId>) {
        (self.created.is_none(), self.created, self.id)
    }
}

/// Returns all valid entries except entries that share the account of another entry; these claim no name and no uid.
fn claims<'a>(reads: &'a [SourceRead], same: &'a Same<'_>) -> impl Iterator<Item = Claim<'a>> + Clone {
    let of = |(place, read): (usize, &'a SourceRead)| {
        read.entries.iter().enumerate().map(move |(at, entry)| Claim::of(place, read, at, entry))
    };
    let shares = |claim: &Claim<'a>| {
        claim.entry.is_some_and(|entry| same.contains_key(&(claim.read.source.as_str(), &entry.id)))
    };
    reads.iter().enumerate().flat_map(of).filter(move |claim| !shares(claim))
}

/// Resolves conflicts: among the claims with the same key, the claim with the lowest `rank` wins; if several have it,
/// the first of them wins. Returns the other valid entries, with the reason from `why`.
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
        let holder = holders.get(&thing).filter(|holder| !holder.is(&claim))?;
        let entry = claim.entry?;
        Some(((claim.read.source.clone(), entry.id.clone()), why(&thing, &claim, holder)))
    });
    others.collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use regex::Regex;

    use super::*;
    use crate::identity::{AccountId, AccountName, Gid, PosixIdentity, Uid};
    use crate::ledger::{Account, Note, Order, OrderKind};
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
        let snapshot = merge(vec![first, second], BTreeSet::new(), &policy(Vec::new()), &LedgerState::default());
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
            outcome(&merge(vec![read("s", entries)], BTreeSet::new(), &policy(Vec::new()), &LedgerState::default()))
                .0
                .concat()
        };
        assert_eq!(one(Some(1), Some(2)), "1");
        assert_eq!(one(Some(2), Some(1)), "2");
        assert_eq!(one(Some(1), Some(1)), "1");
        assert_eq!(one(None, Some(1)), "2", "an entry that hides its age cannot claim to be older");
        let entries = vec![entry(USER, "a", "1", 2001, Some(1)), entry(TOOL, "b", "2", 2001, Some(2))];
        let snapshot = merge(vec![read("s", entries)], BTreeSet::new(), &policy(Vec::new()), &LedgerState::default());
        assert_eq!(outcome(&snapshot).1, ["uid 2001 is held by user a (uid=a,ou=1,dc=x)"]);
    }

    fn ledger(accounts: &[(&str, &Entry)]) -> LedgerState {
        let mut ledger = LedgerState::default();
        for (source, entry) in accounts {
            let name = AccountName { kind: entry.kind, name: entry.name.clone() };
            let id = AccountId::derive("L", source, &entry.id);
            let account = Account {
                posix: entry.posix.clone(),
                ..Account::new(id, name, source, entry.id.clone(), jiff::Timestamp::UNIX_EPOCH)
            };
            if let Some(posix) = &entry.posix {
                ledger.uid_history.insert(posix.uid, account.id.clone());
            }
            ledger.accounts.insert(account);
        }
        ledger
    }

    #[test]
    fn an_older_entry_takes_neither_name_nor_uid_of_an_account() {
        let alice = entry(USER, "alice", "1", 2001, Some(9));
        let merged = |known: &[(&str, &Entry)], puppet: &Entry| {
            let snapshot = merge(
                vec![read("s", vec![alice.clone(), puppet.clone()])],
                BTreeSet::new(),
                &policy(Vec::new()),
                &ledger(known),
            );
            let (ids, why) = outcome(&snapshot);
            (ids.concat(), why.concat())
        };
        let (named, numbered) = (entry(USER, "alice", "2", 2002, Some(1)), entry(USER, "bob", "2", 2001, Some(1)));
        let why = "user alice is also the name of uid=alice,ou=1,dc=x, which has the account".to_owned();
        assert_eq!(merged(&[("s", &alice)], &named), ("1".to_owned(), why));
        let why = "uid 2001 is held by user alice (uid=alice,ou=1,dc=x)".to_owned();
        assert_eq!(merged(&[("s", &alice)], &numbered), ("1".to_owned(), why));
        assert_eq!((merged(&[], &named).0, merged(&[], &numbered).0), ("2".to_owned(), "2".to_owned()));
        // `puppet` has an account with another name and uid.
        let bob = entry(USER, "bob", "2", 2002, Some(1));
        assert_eq!(merged(&[("s", &alice), ("s", &bob)], &named).0, "1");
        assert_eq!(merged(&[("s", &alice), ("s", &bob)], &numbered).0, "1");
        // The outcome is the same if the other entry is in a source with precedence.
        let reads = vec![read("first", vec![named]), read("second", vec![alice.clone()])];
        let snapshot = merge(reads, BTreeSet::new(), &policy(Vec::new()), &ledger(&[("second", &alice)]));
        assert_eq!(outcome(&snapshot).0, ["1"]);
        let uid: Option<crate::identity::Uid> = 2002_i64.try_into().ok();
        assert!(snapshot.reads[0].held.values().all(|held| held.uid == uid), "the uid of a loser is known");
    }

    #[test]
    fn a_rejected_entry_keeps_its_name() {
        let merged = |rejected: Option<i64>, valid: Option<i64>, known: bool| {
            let wheel = entry(AccountKind::Group, "wheel", "1", 0, None);
            let puppet = entry(AccountKind::Group, "wheel", "2", 0, valid);
            let mut read = read("s", vec![puppet.clone()]);
            let created = rejected.and_then(|second| jiff::Timestamp::from_second(second).ok());
            read.held.insert(wheel.dn.clone(), Held { created, ..Held::default() });
            read.rejected.push(rejected_entry("s", &wheel));
            let known = if known { ledger(&[("s", &puppet)]) } else { LedgerState::default() };
            let snapshot = merge(vec![read], BTreeSet::new(), &policy(Vec::new()), &known);
            let (ids, why) = outcome(&snapshot);
            (ids.concat(), why.concat())
        };
        let (ids, why) = merged(Some(1), Some(2), false);
        assert_eq!(ids, "");
        assert!(why.contains("which is older; that entry is rejected too"), "{why}");
        assert_eq!(merged(Some(2), Some(1), false).0, "2", "a younger entry that is rejected changes nothing");
        assert_eq!(merged(None, Some(1), false).0, "2");
        assert_eq!(merged(Some(1), Some(2), true).0, "2", "the account of the valid entry has the name");
    }

    fn rejected_entry(source: &str, entry: &Entry) -> RejectedEntry {
        RejectedEntry::of(source, entry, "gid 10 is out of range".to_owned())
    }

    #[test]
    fn a_rejected_entry_keeps_its_name_while_its_source_does_not_prove_that_it_is_gone() {
        let wheel = entry(AccountKind::Group, "wheel", "1", 0, Some(1));
        let puppet = entry(AccountKind::Group, "wheel", "2", 0, Some(2));
        let known = LedgerState { rejected: [rejected_entry("first", &wheel)].into(), ..LedgerState::default() };
        let merged = |reads: Vec<SourceRead>, known: &LedgerState| {
            let names = ["first", "second"].into_iter().filter(|name| reads.iter().all(|read| read.source != *name));
            let unasked = names.map(str::to_owned).collect();
            outcome(&merge(reads, unasked, &policy(Vec::new()), known)).0.concat()
        };
        let partial = |source: &str, entries: Vec<Entry>| SourceRead {
            completeness: Completeness::Partial { why: "slow".to_owned() },
            ..read(source, entries)
        };
        let second = || read("second", vec![puppet.clone()]);
        assert_eq!(merged(vec![second()], &known), "", "the first source was not asked");
        assert_eq!(merged(vec![partial("first", Vec::new()), second()], &known), "");
        assert_eq!(merged(vec![partial("first", vec![puppet.clone()])], &known), "");
        assert_eq!(merged(vec![read("first", Vec::new()), second()], &known), "2", "the entry is gone");
        assert_eq!(merged(vec![partial("first", vec![wheel.clone()])], &known), "1", "the entry was corrected");
        // An account is not renamed to this name either.
        let mut before = ledger(&[("second", &entry(AccountKind::Group, "x", "2", 0, None))]);
        before.rejected = known.rejected.clone();
        assert_eq!(merged(vec![second()], &before), "");
        let mut owner = ledger(&[("second", &puppet)]);
        owner.rejected = known.rejected.clone();
        assert_eq!(merged(vec![second()], &owner), "2", "the account of the second source has the name");
        // An entry that lost its name to another entry does not claim it any more.
        let lost = RejectedEntry { reason: Some(Rejection::NameTaken), ..rejected_entry("second", &puppet) };
        let known = LedgerState { rejected: [lost].into(), ..LedgerState::default() };
        assert_eq!(merged(vec![read("first", vec![wheel])], &known), "1");
        // The source is not configured any more.
        let known = LedgerState { rejected: [rejected_entry("third", &puppet)].into(), ..LedgerState::default() };
        assert_eq!(merged(vec![second()], &known), "2");
    }

    #[test]
    fn people_whose_entries_are_rejected_in_one_source_are_served_by_another() {
        let (realm, ldap) = (entry(USER, "alice", "1", 0, Some(1)), entry(USER, "alice", "2", 2001, Some(2)));
        let first = || SourceRead { rejected: vec![rejected_entry("first", &realm)], ..read("first", Vec::new()) };
        let second = || read("second", vec![ldap.clone()]);
        let known = LedgerState { rejected: [rejected_entry("first", &realm)].into(), ..LedgerState::default() };
        let merged = |reads: Vec<SourceRead>, unasked: &[&str], known: &LedgerState| {
            let unasked = unasked.iter().map(|source| (*source).to_owned()).collect();
            outcome(&merge(reads, unasked, &policy(Vec::new()), known)).0.concat()
        };
        for ledger in [LedgerState::default(), known] {
            assert_eq!(merged(vec![first(), second()], &[], &ledger), "2");
            assert_eq!(merged(vec![second()], &["first"], &ledger), "2");
        }
        // In its own source, the rejected entry keeps the name.
        let known = LedgerState { rejected: [rejected_entry("second", &realm)].into(), ..LedgerState::default() };
        let partial = SourceRead { completeness: Completeness::Partial { why: "slow".to_owned() }, ..second() };
        assert_eq!(merged(vec![partial], &[], &known), "");
    }

    #[test]
    fn the_entry_that_an_administrator_names_gets_the_name_and_the_uid() {
        let old = entry(USER, "alice", "1", 2001, Some(1));
        let mut known = ledger(&[("s", &old)]);
        let (puppet, new) = (entry(USER, "alice", "2", 2001, Some(2)), entry(USER, "alice", "3", 2001, Some(3)));
        let merged = |known: &LedgerState| {
            let snapshot =
                merge(vec![read("s", vec![puppet.clone(), new.clone()])], BTreeSet::new(), &policy(Vec::new()), known);
            outcome(&snapshot).0.concat()
        };
        assert_eq!(merged(&known), "2");
        known.orders.push(Order {
            id: 1,
            account: AccountId::derive("L", "s", &old.id),
            what: OrderKind::AdoptAccount,
            note: Note {
                actor: "root".to_owned(),
                reason: String::new(),
                ticket: None,
                at: jiff::Timestamp::UNIX_EPOCH,
            },
            bulk: None,
            object: Some("3".to_owned()),
        });
        assert_eq!(merged(&known), "3");
    }

    #[test]
    fn an_entry_rejected_for_its_name_holds_no_uid() {
        let first = read("first", vec![entry(USER, "alice", "1", 2001, Some(9))]);
        let second =
            read("second", vec![entry(USER, "alice", "2", 2002, Some(1)), entry(USER, "bob", "3", 2002, Some(5))]);
        assert_eq!(
            outcome(&merge(vec![first, second], BTreeSet::new(), &policy(Vec::new()), &LedgerState::default())).0,
            ["1", "3"]
        );
    }

    #[test]
    fn a_name_must_fit_the_classes_that_take_it_and_no_others() {
        let mut admins = entry(AccountKind::Group, "admins", "g", 0, None);
        admins.members.insert(DirectoryId("2".to_owned()), Role::Member);
        let entries = vec![entry(USER, "Alice", "1", 2001, None), entry(USER, "Bob", "2", 2002, None), admins];
        let admin = class("admin", From::Users(None), Some(When::Group("admins".to_owned())), "^[a-z]+$");
        let tool = class("tool", From::Tools, None, "^[a-z]+$");
        let snapshot =
            merge(vec![read("s", entries)], BTreeSet::new(), &policy(vec![admin, tool]), &LedgerState::default());
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
