//! Tests of statements in a read that are not believed until something else proves them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use jiff::{SignedDuration, Timestamp};

use super::tests::policy;
use super::{ReadChanges, due, transition};
use crate::identity::{AccountKind, DirectoryId, Gid, PosixIdentity};
use crate::ledger::change::Change;
use crate::ledger::doubt::Question;
use crate::ledger::server::SourceMark;
use crate::ledger::{Account, LedgerState, Lifecycle, Note, Order, OrderKind, Suspension};
use crate::plan::guard::{Bounds, approve, guard};
use crate::plan::{Plan, Refusal};
use crate::policy::Policy;
use crate::snapshot::freshness::{Behind, Marks, Stamp};
use crate::snapshot::held::Held;
use crate::snapshot::named::MemberName;
use crate::snapshot::proof::{EntryPlace, Proof};
use crate::snapshot::{Completeness, DirectorySnapshot, Entry, RejectedEntry, Role, SourceRead};

pub(super) const SOURCE: &str = "people";
pub(super) const HOUR: i64 = 3600;

/// A directory as reads show it, and the ledger that records them.
pub(super) struct Story {
    pub(super) ledger: LedgerState,
    pub(super) policy: Policy,
    pub(super) now: Timestamp,
    pub(super) events: Vec<String>,
}

pub(super) fn person(number: i64) -> Entry {
    let name = format!("p{number}");
    let id = 20_000 + number;
    Entry {
        posix: Some(PosixIdentity {
            uid: id.try_into().expect("the uid is valid"),
            gid: id.try_into().expect("the gid is valid"),
            groups: BTreeSet::new(),
        }),
        home: Some(PathBuf::from(format!("/home/{name}"))),
        mail: Some(format!("{name}@example.org")),
        ssh_keys: BTreeSet::from([format!("ssh-ed25519 {name}")]),
        ..Entry::new(AccountKind::User, format!("u{number}"), format!("uid={name},ou=people,dc=x"), name)
    }
}

pub(super) fn people(count: i64) -> Vec<Entry> {
    (0..count).map(person).collect()
}

pub(super) fn group(name: &str, members: &[i64]) -> Entry {
    let members = members.iter().map(|number| (DirectoryId(format!("u{number}")), Role::Member)).collect();
    Entry { members, ..Entry::new(AccountKind::Group, format!("g-{name}"), format!("cn={name},ou=groups,dc=x"), name) }
}

pub(super) fn read(entries: Vec<Entry>) -> SourceRead {
    let kinds = [AccountKind::Tool, AccountKind::User, AccountKind::Group];
    let kinds = kinds.into_iter().filter(|kind| entries.iter().any(|entry| entry.kind == *kind));
    SourceRead { server: Some("a".to_owned()), ..SourceRead::complete(SOURCE, kinds.collect::<Vec<_>>(), entries) }
}

pub(super) fn marks(text: &str) -> Marks {
    let stamp = Stamp::parse(text).expect("the time is valid");
    Marks { changes: BTreeMap::from([("dc=x 001".to_owned(), stamp)]), ..Marks::default() }
}

pub(super) fn controller(name: &str) -> Marks {
    Marks { controller: Some(name.to_owned()), ..Marks::default() }
}

impl Story {
    pub(super) fn begin(entries: Vec<Entry>) -> Self {
        let ledger = LedgerState { ledger_id: "L".to_owned(), ..LedgerState::default() };
        let now = Timestamp::from_second(1_790_000_000).expect("the time is valid");
        let mut story = Self { ledger, policy: policy(24 * HOUR), now, events: Vec::new() };
        story.hears(read(entries));
        story
    }

    pub(super) fn hears(&mut self, read: SourceRead) -> Vec<Refusal> {
        let snapshot = DirectorySnapshot { reads: vec![read], ..DirectorySnapshot::default() };
        let ReadChanges { changes, events } = transition(&self.ledger, &snapshot, &self.policy, self.now);
        self.ledger.apply_all(&changes);
        self.events.extend(events.into_iter().map(|event| event.action));
        let (_, refusals) = guard(Plan::default(), &Bounds::of(&self.ledger, &self.policy), self.now);
        self.ledger.refusals = refusals.iter().map(Refusal::record).collect();
        refusals
    }

    pub(super) fn later(&mut self, seconds: i64) {
        self.now += SignedDuration::from_secs(seconds);
    }

    pub(super) fn account(&self, name: &str) -> &Account {
        self.ledger.accounts.values().find(|account| account.name == name).expect("the account is known")
    }

    pub(super) fn count(&self, has: impl Fn(&Account) -> bool) -> usize {
        self.ledger.accounts.values().filter(|account| has(account)).count()
    }

    fn completeness(&self) -> &Completeness {
        &self.ledger.sources[SOURCE].completeness
    }

    pub(super) fn approve(&mut self, what: &str) {
        let hash = self
            .ledger
            .refusals
            .iter()
            .find(|refusal| refusal.why.contains(what))
            .expect("the change was refused")
            .hash
            .clone();
        let approval = approve(&self.ledger, &hash, self.now).expect("the refusal can be approved");
        self.ledger.apply_all(&approval);
    }
}

fn without(entries: &[Entry], from: usize, change: impl Fn(&mut Entry)) -> Vec<Entry> {
    let mut entries = entries.to_vec();
    entries.iter_mut().skip(from).for_each(change);
    entries
}

#[test]
fn the_loss_of_an_attribute_is_believed_only_if_half_of_the_accounts_still_show_it() {
    let no_mail = |entry: &mut Entry| entry.mail = None;
    let mails = |story: &Story| story.count(|account| account.mail.is_some());
    for (count, left, after) in [(12, 6, 6), (12, 5, 12), (12, 0, 12), (9, 0, 0)] {
        let all = people(count);
        let mut story = Story::begin(all.clone());
        let refusals = story.hears(read(without(&all, left, no_mail)));
        assert_eq!((mails(&story), refusals.is_empty()), (after, after == left), "{count} and {left}");
    }
    let all = people(12);
    let mut story = Story::begin(all.clone());
    story.hears(read(without(&all, 2, no_mail)));
    let text = &story.ledger.refusals[0].why;
    assert!(text.contains("mail: 12 accounts of people had it, 2 have it now"), "{text}");
    story.approve("mail");
    let part = story.ledger.approvals.keys().next().expect("the change was approved").clone();
    let given = story.ledger.approvals.insert(part.clone(), story.now + SignedDuration::from_hours(60 * 24));
    story.hears(read(without(&all, 2, no_mail)));
    assert_eq!(mails(&story), 12, "the approval comes from a wrong clock");
    story.ledger.approvals.extend(given.map(|until| (part, until)));
    story.hears(read(without(&all, 2, no_mail)));
    assert_eq!((mails(&story), story.ledger.refusals.len(), story.ledger.approvals.len()), (2, 0, 0));
    // The doubt ends without an order when the keys are shown again.
    let mut story = Story::begin(all.clone());
    story.hears(read(without(&all, 0, |entry| entry.ssh_keys.clear())));
    assert_eq!(story.count(|account| !account.ssh_keys.is_empty()), 12);
    story.hears(read(all));
    assert!(story.ledger.refusals.is_empty() && story.ledger.doubts.is_empty());
}

#[test]
fn gids_that_most_groups_no_longer_show_stay_until_an_approval() {
    let directory = |shown: i64| {
        let one = |number: i64| {
            let gid: Gid = (3000 + number).try_into().expect("the gid is valid");
            let gid = Some(gid).filter(|_| number < shown);
            let mut person = person(number);
            person.posix.as_mut().expect("the person has a uid").groups.extend(gid);
            [person, Entry { gid, ..group(&format!("g{number}"), &[number]) }]
        };
        read((0..12).flat_map(one).collect())
    };
    let has_gid = |account: &Account| account.posix.as_ref().is_some_and(|posix| !posix.groups.is_empty());
    for (shown, after) in [(6, 6), (5, 12)] {
        let mut story = Story::begin(directory(12).entries);
        story.hears(directory(shown));
        assert_eq!(story.count(has_gid), after, "{shown}");
    }
    let mut story = Story::begin(directory(12).entries);
    let refusals = story.hears(directory(2));
    assert!(refusals[0].to_string().contains("gidNumber: 12 accounts of people had it, 2 have it now"), "{refusals:?}");
    story.approve("gidNumber");
    for _ in 0..2 {
        story.hears(directory(2));
        assert_eq!((story.count(has_gid), story.ledger.doubts.len(), story.ledger.approvals.len()), (2, 0, 0));
    }
}

#[test]
fn an_entry_without_a_home_keeps_the_last_one() {
    let all: Vec<Entry> = people(12)
        .into_iter()
        .map(|entry| Entry { home: Some(PathBuf::from(format!("/elsewhere/{}", entry.name))), ..entry })
        .collect();
    let mut story = Story::begin(all.clone());
    let by_default = |entry: &mut Entry| {
        entry.home = Some(PathBuf::from(format!("/home/{}", entry.name)));
        entry.home_by_default = true;
    };
    let refusals = story.hears(read(without(&all, 11, by_default)));
    assert_eq!((story.account("p11").home.clone(), refusals.len()), (Some(PathBuf::from("/elsewhere/p11")), 0));
    let refusals = story.hears(read(without(&all, 2, by_default)));
    assert!(refusals[0].to_string().contains("homeDirectory: 11 accounts"), "{}", refusals[0]);
    assert_eq!(story.account("p5").home, Some(PathBuf::from("/elsewhere/p5")));
    let moved = |entry: &mut Entry| entry.home = Some(PathBuf::from(format!("/new/{}", entry.name)));
    story.hears(read(without(&all, 0, moved)));
    assert_eq!(story.account("p5").home, Some(PathBuf::from("/new/p5")), "a home that is shown is used");
}

#[test]
fn a_partial_read_enables_nobody() {
    let mut all = people(3);
    all[0].disabled = Some("mark: yes".to_owned());
    let mut story = Story::begin(all.clone());
    all[0].disabled = None;
    let partial = Completeness::Partial { why: "sentinel".to_owned() };
    story.hears(SourceRead { completeness: partial, ..read(all.clone()) });
    assert_eq!(story.account("p0").disabled.as_deref(), Some("mark: yes"));
    story.hears(read(all));
    assert_eq!(story.account("p0").disabled, None);
}

/// Such an answer comes from another directory, or hides the marks of disabled accounts.
#[test]
fn an_answer_without_its_sentinels_adds_nothing_and_removes_nothing() {
    let mut all = people(4);
    all[0].disabled = Some("mark: yes".to_owned());
    all.push(group("a", &[0, 1]));
    let mut story = Story::begin(all.clone());
    story.hears(SourceRead { marks: marks("20260901000000.0Z"), ..read(all.clone()) });
    let mut other = all.clone();
    other[0].disabled = None;
    other[1].disabled = Some("mark: yes".to_owned());
    other[2].ssh_keys = BTreeSet::from(["ssh-ed25519 other".to_owned()]);
    other[3].name = "q3".to_owned();
    other[4] = group("a", &[1, 2]);
    other.extend([person(9), group("wheel", &[9])]);
    let before = story.ledger.clone();
    for _ in 0..48 {
        let why = "sentinel not found".to_owned();
        let shown = SourceRead { marks: marks("20260902000000.0Z"), lacks_sentinel: true, ..read(other.clone()) };
        story.hears(SourceRead { completeness: Completeness::Partial { why }, ..shown });
        story.later(HOUR);
        let mut expected = before.accounts.clone();
        for account in expected.values_mut().filter(|account| account.name == "p1") {
            account.disabled = Some("mark: yes".to_owned());
        }
        assert_eq!(story.ledger.accounts, expected, "only a new mark is believed");
        assert_eq!(story.ledger.marks, before.marks, "the right server is not behind another directory");
    }
    let why: Vec<&str> = story.ledger.rejected.iter().map(|rejected| rejected.why.as_str()).collect();
    assert!(why.len() == 2 && why.iter().all(|why| why.contains("sentinel")), "{why:?}");
    story.hears(SourceRead { marks: marks("20260902000000.0Z"), ..read(other) });
    assert_eq!((story.ledger.rejected.len(), story.count(|account| account.name == "p9")), (0, 1));
}

#[test]
fn a_rejected_entry_loses_the_ssh_keys_that_it_no_longer_shows() {
    let keys = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    let rejected = |names: &[&str], completeness: Completeness| {
        let Entry { kind, dn, name, id, .. } = person(0);
        let held = Held { ssh_keys: keys(names), ..Held::default() };
        let entry = RejectedEntry {
            source: SOURCE.to_owned(),
            kind,
            dn: dn.clone(),
            name: Some(name),
            id: Some(id),
            disabled: None,
            why: "no home".to_owned(),
            reason: None,
        };
        let read = read(people(3).split_off(1));
        SourceRead { rejected: vec![entry], held: BTreeMap::from([(dn, held)]), completeness, ..read }
    };
    let mut all = people(3);
    all[0].ssh_keys = keys(&["good", "stolen"]);
    let mut story = Story::begin(all);
    let partial = Completeness::Partial { why: "size limit".to_owned() };
    for (shown, completeness, expected) in [
        (&["good"][..], partial, &["good", "stolen"][..]),
        (&["good", "new"], Completeness::Complete, &["good"]),
        (&[], Completeness::Complete, &[]),
    ] {
        story.hears(rejected(shown, completeness));
        assert_eq!(story.account("p0").ssh_keys, keys(expected), "{shown:?}");
    }
}

#[test]
fn a_rule_that_hides_the_ssh_keys_and_makes_entries_invalid_takes_no_key() {
    let mut story = Story::begin(people(12));
    let with_keys = |story: &Story| story.count(|account| !account.ssh_keys.is_empty());
    let hidden = |from: usize| {
        let mut read = read(people(12));
        for entry in read.entries.split_off(from) {
            read.held.insert(entry.dn.clone(), Held::default());
            read.rejected.push(RejectedEntry::of(SOURCE, &entry, "uidNumber is missing".to_owned()));
        }
        read
    };
    let refusals = story.hears(hidden(2));
    let text: String = refusals.iter().map(ToString::to_string).collect();
    assert!(text.contains("sshPublicKey: 12 accounts of people had it, 2 have it now"), "{text}");
    assert_eq!((with_keys(&story), story.completeness()), (12, &Completeness::Complete));
    story.hears(hidden(8));
    assert_eq!(with_keys(&story), 8, "most entries show keys, so the others lost them");
}

#[test]
fn groups_that_become_empty_in_one_read_are_doubted_and_a_single_group_is_not() {
    let with = |groups: &[(&str, &[i64])]| {
        let groups = groups.iter().map(|(name, members)| group(name, members));
        people(6).into_iter().chain(groups).collect::<Vec<_>>()
    };
    let mut story = Story::begin(with(&[("a", &[0, 1]), ("b", &[2, 3]), ("c", &[4])]));
    let leaving = |story: &Story| story.count(|account| !account.leaving.is_empty());
    story.hears(read(with(&[("a", &[]), ("b", &[]), ("c", &[4])])));
    assert!(
        story.completeness().to_string().contains("2 groups became empty in the same read"),
        "{}",
        story.completeness()
    );
    assert_eq!(leaving(&story), 0);
    story.hears(read(with(&[("a", &[]), ("b", &[2, 3]), ("c", &[4])])));
    assert_eq!((story.completeness(), leaving(&story)), (&Completeness::Complete, 1));
    // One person was the only member of both groups.
    let mut story = Story::begin(with(&[("a", &[0]), ("b", &[0]), ("c", &[4])]));
    story.hears(read(with(&[("a", &[]), ("b", &[]), ("c", &[4])])));
    assert_eq!((story.completeness(), leaving(&story)), (&Completeness::Complete, 2));
    // An administrator accepts the empty groups.
    let mut story = Story::begin(with(&[("a", &[0, 1]), ("b", &[2, 3])]));
    let empty = || read(with(&[("a", &[]), ("b", &[])]));
    story.hears(empty());
    assert_ne!(story.completeness(), &Completeness::Complete);
    let mark = SourceMark::accepted(story.now);
    story.ledger.apply(&Change::SourceMark(SOURCE.to_owned(), Some(mark)));
    story.hears(SourceRead { marks: marks("20260901000000.0Z"), ..empty() });
    assert_eq!((story.completeness(), leaving(&story)), (&Completeness::Complete, 2));
    assert!(!story.ledger.waits_for_a_read());
}

#[test]
fn a_named_member_without_an_entry_stays_until_the_absence_is_due() {
    let all = |members: &[i64]| people(3).into_iter().chain([group("a", members)]).collect::<Vec<_>>();
    let mut story = Story::begin(all(&[0, 1]));
    let named = || {
        let mut read = read(all(&[1]).into_iter().filter(|entry| entry.name != "p0").collect());
        let dn = crate::snapshot::dn::Dn::parse("uid=p0,ou=people,dc=x").canonical().to_owned();
        read.dangling.add(MemberName::Dn(dn), DirectoryId("g-a".to_owned()), Role::Member);
        read
    };
    for _ in 0..25 {
        story.hears(named());
        assert!(
            story.account("a").leaving.is_empty() || story.account("p0").absence.is_some_and(|it| it.seconds >= 86_400)
        );
        story.later(HOUR);
    }
    story.hears(named());
    assert_eq!(story.account("a").leaving.len(), 1, "the absence is due");
    // A member whom the group does not name any more leaves at once.
    let mut story = Story::begin(all(&[0, 1]));
    story.hears(read(all(&[1])));
    assert_eq!(story.account("a").leaving.len(), 1);
}

#[test]
fn five_people_with_new_ids_raise_a_doubt() {
    let again = |from: i64, count: i64| {
        let renewed = |entry: Entry| Entry { id: DirectoryId(format!("again-{}", entry.id)), ..entry };
        people(8)
            .into_iter()
            .enumerate()
            .map(|(at, entry)| {
                let at = i64::try_from(at).expect("the number is small");
                if at >= from && at < from + count { renewed(entry) } else { entry }
            })
            .collect::<Vec<_>>()
    };
    for (count, question) in [(4, false), (5, true), (8, true)] {
        let mut story = Story::begin(people(8));
        for _ in 0..30 {
            story.hears(read(again(0, count)));
            story.later(HOUR);
        }
        let absent = story.count(|account| account.absence.is_some());
        let asked = story.ledger.doubts.keys().any(|key| key.question == Question::Import);
        assert_eq!((asked, absent == 0), (question, question), "{count}");
        assert_eq!(story.ledger.accounts.len(), 8, "no account is adopted, and none is new");
    }
    // The administrator adopts most of them; the others stay until the last one is decided.
    let mut story = Story::begin(people(8));
    story.hears(read(again(0, 8)));
    let note = Note { actor: "a".to_owned(), reason: "r".to_owned(), ticket: None, at: story.now };
    let doubted = |story: &Story| story.ledger.doubts.values().map(|doubt| doubt.accounts.len()).collect::<Vec<_>>();
    let adopt = |story: &mut Story, from: i64, to: i64| {
        for number in from..to {
            let account = story.account(&format!("p{number}")).id.clone();
            let (what, note, object) = (OrderKind::AdoptAccount, note.clone(), Some(format!("again-u{number}")));
            story.ledger.orders.push(Order { id: number, account, what, note, bulk: None, object });
        }
        story.hears(read(again(0, 8)));
        assert_eq!(story.ledger.orders, []);
    };
    adopt(&mut story, 0, 6);
    for _ in 0..30 {
        assert_eq!((doubted(&story), story.count(|account| account.absence.is_some())), (vec![2], 0));
        story.later(HOUR);
        story.hears(read(again(0, 8)));
    }
    adopt(&mut story, 6, 8);
    assert_eq!((doubted(&story), story.ledger.rejected.len()), (vec![], 0));
    // While the identity of the entries is in doubt, groups keep their members.
    let grouped = |entries: Vec<Entry>, members: Vec<DirectoryId>| {
        let members = members.into_iter().map(|id| (id, Role::Member)).collect();
        let group = Entry { members, ..group("a", &[]) };
        entries.into_iter().chain([group]).collect::<Vec<_>>()
    };
    let ids = |entries: &[Entry]| entries[..3].iter().map(|entry| entry.id.clone()).collect::<Vec<_>>();
    let (before, after) = (people(8), again(0, 8));
    let mut story = Story::begin(grouped(before.clone(), ids(&before)));
    story.hears(read(grouped(after.clone(), ids(&after))));
    let members: Vec<_> = story.account("a").members.keys().cloned().collect();
    assert_eq!((members, story.account("a").leaving.len()), (ids(&before), 0));
    // Entries with other uids belong to other people.
    let mut story = Story::begin(people(8));
    let mut others = again(0, 8);
    for (entry, uid) in others.iter_mut().zip(30_000_i64..) {
        entry.posix.as_mut().expect("the uid is present").uid = uid.try_into().expect("the uid is valid");
    }
    story.hears(read(others.clone()));
    assert_eq!(story.count(|account| account.absence.is_some()), 8);
    // Entries of other people that only have the names hide no import, whichever of the two the merge rejects.
    for entry in &mut others {
        (entry.id, entry.dn) = (DirectoryId(format!("other-{}", entry.id)), format!("ou=b,{}", entry.dn));
    }
    for is_valid in [false, true] {
        let mut story = Story::begin(people(8));
        let (again, others) = (again(0, 8), others.clone());
        let (valid, rejected) = if is_valid { (again, others) } else { (others, again) };
        let mut read = read(valid);
        for entry in &rejected {
            let uid = entry.posix.as_ref().map(|posix| posix.uid);
            read.held.insert(entry.dn.clone(), Held { uid, ..Held::default() });
            read.rejected.push(RejectedEntry::of(SOURCE, entry, "its name is taken".to_owned()));
        }
        story.hears(read);
        assert_eq!((doubted(&story), story.count(|account| account.absence.is_some())), (vec![8], 0), "{is_valid}");
    }
}

fn proved(mut read: SourceRead, id: &str, places: &[(&str, EntryPlace)]) -> SourceRead {
    let servers = places.iter().map(|(server, place)| ((*server).to_owned(), place.clone())).collect();
    let proofs = if places.is_empty() {
        BTreeMap::new()
    } else {
        BTreeMap::from([(DirectoryId(id.to_owned()), Proof { servers })])
    };
    read.proofs = Some(proofs);
    read
}

#[test]
fn no_absence_is_due_before_every_server_was_asked() {
    let there = || EntryPlace::Inside { dn: "uid=p0".to_owned() };
    let gone = |story: &mut Story| {
        for _ in 0..24 {
            story.hears(proved(read(people(3).split_off(1)), "u0", &[]));
            story.later(HOUR);
        }
    };
    let is_due = |story: &Story| story.account("p0").absence.is_some_and(|absence| absence.seconds >= 86_400);
    let asked = |story: &Story| {
        let snapshot = DirectorySnapshot { reads: vec![read(people(3).split_off(1))], ..DirectorySnapshot::default() };
        due(&story.ledger, &snapshot, &story.policy, story.now).remove(SOURCE).map_or(0, |due| due.len())
    };
    let begin = || {
        let mut story = Story::begin(people(3));
        story.account("p0");
        let id = story.account("p0").id.clone();
        story.ledger.accounts.get_mut(&id).expect("p0 has an account").state = Lifecycle::Active;
        assert_eq!(asked(&story), 0);
        gone(&mut story);
        assert_eq!((asked(&story), is_due(&story)), (1, false));
        story
    };
    let missing = |places: &[(&str, EntryPlace)]| proved(read(people(3).split_off(1)), "u0", places);
    let mut story = begin();
    let refusals = story.hears(missing(&[]));
    assert!(!is_due(&story), "no server could be asked");
    assert!(refusals[0].to_string().contains("no server of people could be asked for p0 alone"), "{}", refusals[0]);
    story.hears(missing(&[("a", EntryPlace::Nowhere), ("b", EntryPlace::Outside { dn: "uid=p0,ou=left".to_owned() })]));
    assert!(is_due(&story) && story.events.contains(&"absence proved".to_owned()));

    let mut story = begin();
    story.hears(missing(&[("a", there()), ("b", there())]));
    assert_eq!(story.account("p0").absence, None, "a wrong read makes nobody absent");

    for (freshest, other, due) in [(EntryPlace::Nowhere, there(), true), (there(), EntryPlace::Nowhere, false)] {
        let mut story = begin();
        let mut refusals = Vec::new();
        for _ in 0..24 {
            refusals = story.hears(missing(&[("a", freshest.clone()), ("b", other.clone())]));
            assert!(!is_due(&story), "the absence is not due while the servers disagree");
            story.later(HOUR);
        }
        assert!(refusals[0].to_string().contains("disagree about whether p0 is there"), "{}", refusals[0]);
        for _ in 0..2 {
            let left = story.hears(missing(&[("a", freshest.clone()), ("b", other.clone())]));
            assert_eq!((is_due(&story), left.len()), (due, 0), "the freshest server decides");
            story.later(60);
        }
    }
}

/// A limit may refuse a suspension whose absence was proved, and then the servers are asked again.
#[test]
fn an_absence_that_the_servers_do_not_confirm_again_is_no_longer_due() {
    let missing = |places: &[(&str, EntryPlace)]| proved(read(people(3).split_off(1)), "u0", places);
    let there = EntryPlace::Inside { dn: "uid=p0".to_owned() };
    let unanswered = SourceRead { unanswered: [DirectoryId("u0".to_owned())].into(), ..missing(&[]) };
    let (unasked, disagreement) = (missing(&[]), missing(&[("a", EntryPlace::Nowhere), ("b", there)]));
    for (limit, unproved) in [(24 * HOUR, vec![&unanswered, &unasked, &disagreement]), (0, vec![&unanswered, &unasked])]
    {
        let mut story = Story::begin(people(3));
        story.policy = policy(limit);
        let id = story.account("p0").id.clone();
        story.ledger.accounts.get_mut(&id).expect("p0 has an account").state = Lifecycle::Active;
        let is_due =
            |story: &Story| story.account("p0").absence.is_some_and(|absence| absence.seconds >= limit.unsigned_abs());
        for shown in unproved {
            while !is_due(&story) {
                story.later(HOUR);
                story.hears(missing(&[("a", EntryPlace::Nowhere)]));
            }
            story.later(60);
            story.hears(shown.clone());
            assert!(!is_due(&story), "{limit} {shown:?}");
        }
        story.later(60);
        story.hears(missing(&[("a", EntryPlace::Nowhere)]));
        assert!(is_due(&story), "the next proof counts at once");
    }
}

#[test]
fn the_servers_are_asked_once_for_an_account_that_is_not_served() {
    let missing = |places: &[(&str, EntryPlace)]| proved(read(people(3).split_off(1)), "u0", places);
    let asked = |story: &Story| {
        let snapshot = DirectorySnapshot { reads: vec![missing(&[])], ..DirectorySnapshot::default() };
        due(&story.ledger, &snapshot, &story.policy, story.now).remove(SOURCE).map_or(0, |due| due.len())
    };
    let note = Note { actor: "a".to_owned(), reason: "r".to_owned(), ticket: None, at: Timestamp::UNIX_EPOCH };
    let suspensions = [
        None,
        Some(Suspension::by(note.clone())),
        Some(Suspension::Evicted { note, since: None }),
        Some(Suspension::Idle { since: Timestamp::UNIX_EPOCH }),
        Some(Suspension::Left),
    ];
    for (suspension, limit) in suspensions.iter().flat_map(|suspension| [(suspension, 24 * HOUR), (suspension, 0)]) {
        let mut story = Story::begin(people(3));
        story.policy = policy(limit);
        let id = story.account("p0").id.clone();
        let p0 = story.ledger.accounts.get_mut(&id).expect("p0 has an account");
        p0.state = if suspension.is_some() { Lifecycle::Suspended } else { Lifecycle::New };
        p0.suspension = suspension.clone().map(Box::new);
        for hour in 0..25 {
            if asked(&story) > 0 {
                break;
            }
            assert!(hour < 24, "{suspension:?}: the absence became due without a question");
            story.hears(missing(&[]));
            story.later(HOUR);
        }
        // Without an answer, nothing is proved, and the next read asks again.
        let before = story.account("p0").absence;
        story.hears(SourceRead { unanswered: [DirectoryId("u0".to_owned())].into(), ..missing(&[]) });
        assert_eq!((story.account("p0").absence, asked(&story), story.ledger.doubts.len()), (before, 1, 0));
        story.hears(missing(&[("a", EntryPlace::Nowhere)]));
        assert!(story.events.contains(&"absence proved".to_owned()));
        for _ in 0..3 {
            story.later(HOUR);
            assert_eq!(asked(&story), 0, "nothing follows from the absence");
            // The time until the archive still counts.
            let known = |story: &Story| Account { ending: None, ..story.account("p0").clone() };
            let before = known(&story);
            story.hears(missing(&[]));
            assert_eq!(known(&story), before, "the absence is not counted any further");
        }
        story.hears(read(people(3)));
        assert_eq!(story.account("p0").absence, None);
    }
}

#[test]
fn a_stale_answer_is_not_used() {
    let mut story = Story::begin(people(12));
    let before = story.ledger.accounts.clone();
    let behind = Behind { lag: Some(SignedDuration::from_hours(3)), why: "contextCSN".to_owned() };
    let stale = SourceRead {
        completeness: Completeness::Stale { server: "a".to_owned(), why: "contextCSN".to_owned() },
        server: None,
        behind: BTreeMap::from([("a".to_owned(), behind)]),
        ..SourceRead::complete(SOURCE, [AccountKind::User], Vec::new())
    };
    for _ in 0..30 {
        story.hears(stale.clone());
        story.later(HOUR);
    }
    assert_eq!(story.ledger.accounts, before);
    let servers = &story.ledger.sources[SOURCE].servers;
    assert_eq!((servers["a"].lag_seconds, servers["a"].lag().contains("3h")), (Some(3 * HOUR), true));
}

#[test]
fn an_acceptance_is_used_up_by_one_read_of_a_server_without_marks() {
    let mut story = Story::begin(people(3));
    let now = story.now;
    story.ledger.apply(&Change::SourceMark(SOURCE.to_owned(), Some(SourceMark::accepted(now))));
    assert!(story.ledger.waits_for_a_read());
    story.later(60);
    story.hears(SourceRead { server: None, ..read(people(3)) });
    assert!(!story.ledger.waits_for_a_read());
}

#[test]
fn the_marks_of_a_server_are_recorded_together_with_other_changes() {
    let mut story = Story::begin(people(3));
    let at = |text: &str, entries: Vec<Entry>| SourceRead { marks: marks(text), ..read(entries) };
    story.hears(at("20260901000000.0Z", people(3)));
    let known = |story: &Story| story.ledger.marks[SOURCE].marks.clone();
    assert_eq!(known(&story), marks("20260901000000.0Z"));
    let quiet = |story: &Story, read: SourceRead| {
        let snapshot = DirectorySnapshot { reads: vec![read], ..DirectorySnapshot::default() };
        let changes = transition(&story.ledger, &snapshot, &story.policy, story.now).changes;
        changes.iter().all(|change| matches!(change, Change::Sources(_)))
    };
    story.later(60);
    assert!(quiet(&story, at("20260902000000.0Z", people(3))), "new marks alone are not written each minute");
    story.later(600);
    assert!(!quiet(&story, at("20260902000000.0Z", people(3))));
    story.hears(at("20260903000000.0Z", people(4)));
    assert_eq!(known(&story), marks("20260903000000.0Z"));
    story.hears(at("20990903000000.0Z", people(5)));
    assert_eq!(known(&story), marks("20260903000000.0Z"), "marks in the future are ignored");
}
