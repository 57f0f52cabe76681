//! Tests of two sources that have the same people.

use std::collections::BTreeSet;

use super::super::tests::policy;
use super::super::{ReadChanges, transition};
use crate::identity::{AccountKind, PosixIdentity};
use crate::ledger::change::Change;
use crate::ledger::{Account, LedgerState, Note, Order, OrderKind};
use crate::merge::merge;
use crate::snapshot::{Completeness, DirectorySnapshot, Entry, SourceRead};

type People<'a> = &'a [(&'a str, i64, &'a str)];

fn read(source: &str, people: People<'_>, completeness: Completeness) -> SourceRead {
    let entry = |(name, uid, person): &(&str, i64, &str)| Entry {
        posix: Some(PosixIdentity {
            uid: (*uid).try_into().expect("the uid is valid"),
            gid: 500.try_into().expect("the gid is valid"),
            groups: BTreeSet::new(),
        }),
        person: Some((*person).to_owned()).filter(|person| !person.is_empty()),
        ..Entry::new(AccountKind::User, format!("{source}-{name}"), format!("uid={name},o={source}"), *name)
    };
    SourceRead { completeness, ..SourceRead::complete(source, [AccountKind::User], people.iter().map(entry).collect()) }
}

#[derive(Default)]
struct Story {
    ledger: LedgerState,
    now: i64,
}

impl Story {
    fn reads(&mut self, staff: Option<People<'_>>, guests: People<'_>) {
        let policy = policy(0);
        self.now += 60;
        let staff = match staff {
            Some(people) => read("staff", people, Completeness::Complete),
            None => read("staff", &[], Completeness::Partial { why: "down".to_owned() }),
        };
        let reads = vec![staff, read("guests", guests, Completeness::Complete)];
        let snapshot: DirectorySnapshot = merge(reads, BTreeSet::new(), &policy, &self.ledger);
        let now = jiff::Timestamp::from_second(1_790_000_000 + self.now).expect("the time is valid");
        let ReadChanges { changes, .. } = transition(&self.ledger, &snapshot, &policy, now);
        self.ledger.apply_all(&changes);
    }

    fn accounts(&self) -> Vec<(&str, &str)> {
        let mut all: Vec<_> =
            self.ledger.accounts.values().map(|one| (one.name.as_str(), one.source.as_str())).collect();
        all.sort_unstable();
        all
    }

    fn account(&self, name: &str) -> &Account {
        self.ledger.accounts.values().find(|account| account.name == name).expect("the account exists")
    }

    fn rejected(&self) -> Vec<&str> {
        self.ledger.rejected.iter().map(|entry| entry.why.as_str()).collect()
    }

    fn adopt(&mut self, name: &str) {
        let note = Note {
            actor: "root".to_owned(),
            reason: "the same".to_owned(),
            ticket: None,
            at: jiff::Timestamp::from_second(0).expect("the time is valid"),
        };
        let account = self.account(name).id.clone();
        let order = Order { id: 1, account, what: OrderKind::AdoptAccount, note, bulk: None, object: None };
        self.ledger.apply(&Change::Order(order));
    }
}

#[test]
fn a_person_in_two_sources_has_one_account_from_the_earlier_source() {
    let mut story = Story::default();
    let guests: People<'_> = &[("a.smith", 2001, "1"), ("carol", 2003, "3")];
    story.reads(Some(&[("alice", 2001, "1"), ("bob", 2002, "2")]), guests);
    assert_eq!(story.accounts(), [("alice", "staff"), ("bob", "staff"), ("carol", "guests")]);
    assert_eq!(story.rejected(), [""; 0]);
    // The result is the same while the earlier source is down.
    story.reads(None, guests);
    assert_eq!((story.accounts().len(), story.rejected()), (3, vec![]));
    assert!(story.ledger.accounts.values().all(|account| account.absence.is_none()));
}

#[test]
fn a_person_who_leaves_the_earlier_source_is_absent_until_given_the_later_entry() {
    let mut story = Story::default();
    let guests: People<'_> = &[("a.smith", 2001, "1"), ("carol", 2003, "3")];
    story.reads(Some(&[("alice", 2001, "1"), ("bob", 2002, "2")]), guests);
    let id = story.account("alice").id.clone();
    story.reads(Some(&[("bob", 2002, "2")]), guests);
    assert!(story.account("alice").absence.is_some());
    story.reads(Some(&[("bob", 2002, "2")]), guests);
    assert!(story.rejected()[0].contains("bursar adopt account user alice"), "{:?}", story.rejected());
    story.adopt("alice");
    story.reads(Some(&[("bob", 2002, "2")]), guests);
    let account = story.account("a.smith");
    assert_eq!((&account.id, account.source.as_str(), account.absence), (&id, "guests", None));
    story.reads(Some(&[("bob", 2002, "2")]), guests);
    assert_eq!((story.accounts().len(), story.rejected()), (3, vec![]));
}

#[test]
fn an_account_of_the_later_source_moves_only_by_order() {
    let mut story = Story::default();
    let guests: People<'_> = &[("carol", 2003, "3")];
    story.reads(Some(&[("bob", 2002, "2")]), guests);
    let id = story.account("carol").id.clone();
    let staff: People<'_> = &[("bob", 2002, "2"), ("c.jones", 2003, "3")];
    story.reads(Some(staff), guests);
    assert_eq!(story.accounts(), [("bob", "staff"), ("carol", "guests")]);
    assert!(story.rejected()[0].contains("bursar adopt account user carol"), "{:?}", story.rejected());
    story.adopt("carol");
    story.reads(Some(staff), guests);
    assert_eq!(story.accounts(), [("bob", "staff"), ("c.jones", "staff")]);
    assert_eq!(story.account("c.jones").id, id);
    story.reads(Some(staff), guests);
    assert_eq!((story.accounts().len(), story.rejected()), (2, vec![]));
    assert!(story.account("c.jones").absence.is_none());
}

#[test]
fn two_existing_accounts_stay_separate_and_an_ambiguous_person_matches_none() {
    let mut story = Story::default();
    story.reads(Some(&[("alice", 2001, "")]), &[("a.smith", 2011, "1")]);
    story.reads(Some(&[("alice", 2001, "1")]), &[("a.smith", 2011, "1")]);
    assert_eq!(story.accounts(), [("a.smith", "guests"), ("alice", "staff")]);
    assert_eq!(story.rejected(), [""; 0]);
    let mut story = Story::default();
    story.reads(Some(&[("alice", 2001, "1"), ("bob", 2002, "1")]), &[("c", 2003, "1")]);
    assert_eq!(story.accounts(), [("alice", "staff"), ("bob", "staff")]);
    assert!(story.rejected()[0].contains("several entries of an earlier source"), "{:?}", story.rejected());
}

#[test]
fn an_account_is_given_to_another_person_only_if_its_own_entry_is_proved_to_be_gone() {
    let mut story = Story::default();
    let other: People<'_> = &[("alice", 2001, "9")];
    story.reads(Some(&[("alice", 2001, "1"), ("bob", 2002, "2")]), other);
    story.adopt("alice");
    for _ in 0..3 {
        story.reads(None, other);
        assert_eq!((story.account("alice").source.as_str(), story.ledger.orders.len()), ("staff", 1));
    }
    story.reads(Some(&[("bob", 2002, "2")]), other);
    assert_eq!((story.account("alice").source.as_str(), story.ledger.orders.len()), ("guests", 0));
}
