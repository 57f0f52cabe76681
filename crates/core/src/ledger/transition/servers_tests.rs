//! Tests with domain controllers that answer in turn, each of which may be behind the others.

use std::collections::BTreeMap;
use std::path::PathBuf;

use proptest::prelude::*;

use super::doubt_tests::{HOUR, Story, controller, group, marks, people, person, read};
use crate::identity::DirectoryId;
use crate::ledger::{Note, Order, OrderKind};
use crate::snapshot::freshness::{Marks, Stamp};
use crate::snapshot::{Completeness, Entry, Role, SourceRead};

/// Returns a read of this domain controller, which is also the name of the server.
fn read_of(controller_name: &str, entries: &[Entry]) -> SourceRead {
    SourceRead {
        server: Some(controller_name.to_owned()),
        marks: controller(controller_name),
        ..read(entries.to_vec())
    }
}

#[test]
fn for_half_an_hour_another_controller_adds_no_access() {
    let mut all = people(3);
    all.push(group("a", &[0]));
    all[0].disabled = Some("mark: yes".to_owned());
    let mut story = Story::begin(all.clone());
    story.hears(read_of("dc1", &all));
    let mut other = all.clone();
    other[0].disabled = None;
    other[1].disabled = Some("mark: yes".to_owned());
    other[2].ssh_keys.insert("ssh-ed25519 new".to_owned());
    other[3] = group("a", &[0, 2]);
    other.push(person(9));
    story.later(60);
    story.hears(read_of("dc2", &other));
    assert!(story.events.contains(&"directory server changed".to_owned()));
    let widened = |story: &Story| {
        (
            story.account("p0").disabled.is_none(),
            story.account("p2").ssh_keys.len() == 2,
            story.account("a").members.len() == 2,
            story.count(|account| account.name == "p9") == 1,
        )
    };
    assert_eq!(widened(&story), (false, false, false, false));
    assert!(story.account("p1").disabled.is_some(), "a mark does not wait");
    story.later(29 * 60);
    story.hears(read_of("dc2", &other));
    assert_eq!(widened(&story), (false, false, false, false));
    story.later(2 * 60);
    story.hears(read_of("dc2", &other));
    assert_eq!(widened(&story), (true, true, true, true));
    assert!(story.ledger.rejected.is_empty());
}

#[test]
fn for_half_an_hour_a_server_without_marks_adds_no_access() {
    let mut all = people(2);
    all[0].disabled = Some("mark: yes".to_owned());
    let of = |server: &str, marks: Marks, entries: &[Entry]| SourceRead {
        server: Some(server.to_owned()),
        marks,
        ..read(entries.to_vec())
    };
    let entry = Stamp::parse("20260901000000Z").expect("the time is valid");
    let entries = Marks { entries: [(DirectoryId("u1".to_owned()), entry)].into(), ..Marks::default() };
    let mut former = all.clone();
    former[0].disabled = None;
    // One name may stand for several servers.
    for server in ["a", "b"] {
        for shown in [marks("20260901000000Z"), entries.clone()] {
            let mut story = Story::begin(all.clone());
            story.hears(of("a", shown.clone(), &all));
            for (minutes, is_enabled) in [(1, false), (29, false), (2, true)] {
                story.later(minutes * 60);
                story.hears(of(server, Marks::default(), &former));
                assert_eq!(story.account("p0").disabled.is_none(), is_enabled, "{server} {shown:?}");
            }
            assert_eq!(story.events.iter().filter(|event| *event == "directory server changed").count(), 1);
            let lag = story.ledger.sources["people"].servers[server].lag();
            assert!(lag.contains("does not show its replication state"), "{lag}");
            let mark = &story.ledger.marks["people"].marks;
            assert_eq!((&mark.changes, &mark.entries), (&shown.changes, &shown.entries), "the known marks stay");
        }
    }
    // A read that was cut off may lack marks that the server has.
    let mut story = Story::begin(all.clone());
    story.hears(of("a", entries, &all));
    let why = "cut".to_owned();
    story.hears(SourceRead { completeness: Completeness::Partial { why }, ..of("a", Marks::default(), &all) });
    assert!(!story.events.contains(&"directory server changed".to_owned()));
}

#[test]
fn for_half_an_hour_a_server_that_shows_one_older_entry_adds_no_access() {
    let mut all = people(3);
    all.push(group("a", &[0, 1]));
    let of = |time: &str, entries: &[Entry]| {
        let stamp = Stamp::parse(time).expect("the time is valid");
        let entries_of = [(DirectoryId("u2".to_owned()), stamp)].into();
        let marks = Marks { entries: entries_of, ..Marks::default() };
        SourceRead { server: Some("a".to_owned()), marks, ..read(entries.to_vec()) }
    };
    let mut story = Story::begin(all.clone());
    story.hears(of("20260901000140Z", &all));
    let mut other = all.clone();
    other[0].disabled = Some("mark: yes".to_owned());
    other[2].ssh_keys.insert("ssh-ed25519 new".to_owned());
    other[3] = group("a", &[0, 2]);
    let back = || of("20260901000000Z", &other);
    for (minutes, is_settled) in [(1, false), (29, false), (2, true)] {
        story.later(minutes * 60);
        story.hears(back());
        let (marked, keys) = (story.account("p0").disabled.is_some(), story.account("p2").ssh_keys.len());
        let (members, leaving) = (story.account("a").members.len(), story.account("a").leaving.len());
        let expected = if is_settled { (true, 2, 3, 1) } else { (true, 1, 2, 0) };
        assert_eq!((marked, keys, members, leaving), expected, "after {minutes} more minutes");
    }
    assert_eq!(story.events.iter().filter(|event| *event == "directory server changed").count(), 1);
}

/// The server crashed, or another server of the same name is in the middle of a refresh.
#[test]
fn a_server_whose_context_csn_is_older_than_its_entries_adds_no_access() {
    let all = people(3);
    let gone = person(9);
    let of = |time: &str, entries: &[Entry]| SourceRead { marks: marks(time), ..read(entries.to_vec()) };
    let mut story = Story::begin(all.clone());
    story.hears(of("20260901000200.0Z", &all));
    let more = [&all[..], std::slice::from_ref(&gone)].concat();
    for _ in 0..3 {
        story.later(60);
        story.hears(of("20260901000100.0Z", &more));
        assert_eq!(story.count(|account| account.name == "p9"), 0);
    }
    assert_eq!(story.events.iter().filter(|event| *event == "directory server changed").count(), 1);
    // The next write proves that the server is not behind, and half an hour is over.
    story.later(30 * 60);
    story.hears(of("20260901000300.0Z", &more));
    assert_eq!(story.count(|account| account.name == "p9"), 1);
}

#[test]
fn another_controller_of_the_same_name_adds_no_access_until_the_former_one_agrees() {
    let mut all = people(2);
    all.push(group("a", &[0]));
    let of = |name: &str, entries: &[Entry]| SourceRead {
        server: Some("ad.example.org".to_owned()),
        marks: controller(name),
        ..read(entries.to_vec())
    };
    let mut story = Story::begin(all.clone());
    story.hears(of("dc1", &all));
    let mut other = all.clone();
    let member = DirectoryId("u0".to_owned());
    other[2].members.insert(member.clone(), Role::Manager);
    if let Some(posix) = &mut other[1].posix {
        posix.gid = 500.try_into().expect("the gid is valid");
    }
    let widened = |story: &Story| {
        let group = story.account("p1").posix.as_ref().expect("p1 has an identity").gid
            == 500.try_into().expect("the gid is valid");
        (story.account("a").members[&member], group)
    };
    story.later(60);
    story.hears(of("dc2", &other));
    assert_eq!(widened(&story), (Role::Member, false));
    other[2].members.insert(DirectoryId("u1".to_owned()), Role::Member);
    story.later(60);
    story.hears(of("dc1", &other));
    assert_eq!(story.account("a").members.len(), 1, "the other controller did not show the second member");
    assert_eq!(widened(&story), (Role::Manager, true));
}

#[test]
fn for_half_an_hour_another_controller_proves_no_absence() {
    let mut all = people(3);
    all.push(group("a", &[0, 1]));
    all[0].home = Some(PathBuf::from("/home/new"));
    let mut former = all.clone();
    former[0].home = Some(PathBuf::from("/home/old"));
    former[0].name = "q0".to_owned();
    former[3].members.remove(&DirectoryId("u1".to_owned()));
    former.remove(2);
    let begin = || {
        let mut story = Story::begin(all.clone());
        story.hears(read_of("dc1", &all));
        story
    };
    let mut story = begin();
    let before = story.ledger.accounts.clone();
    for _ in 0..29 {
        story.later(60);
        story.hears(read_of("dc2", &former));
        assert_eq!(story.ledger.accounts, before);
    }
    story.hears(read_of("dc1", &all));
    assert_eq!(story.ledger.accounts, before, "the former controller agrees with the ledger");

    // If three servers take turns, a statement that all of them show waits for half an hour.
    let mut story = begin();
    former.push(person(9));
    for turn in 0..12 {
        story.later(180);
        story.hears(read_of(["dc2", "dc3", "dc1"][turn % 3], &former));
        let has_left = !story.account("a").leaving.is_empty();
        let is_new = story.count(|account| account.name == "p9") == 1;
        assert_eq!((has_left, is_new), (turn >= 10, turn >= 10), "{turn}");
    }
}

#[test]
fn a_change_of_controllers_in_the_future_delays_nothing() {
    let mut story = Story::begin(people(3));
    story.hears(read_of("dc1", &people(3)));
    story.later(365 * 24 * HOUR);
    story.hears(read_of("dc2", &people(3)));
    story.later(-365 * 24 * HOUR);
    story.hears(read_of("dc2", &people(4)));
    assert_eq!(story.count(|account| account.name == "p3"), 1);
}

#[test]
fn a_mark_that_one_controller_showed_stays_while_two_others_take_turns() {
    let mut all = people(3);
    all.push(group("a", &[0, 1]));
    all[0].disabled = Some("mark: yes".to_owned());
    let of = |server: &str, entries: &[Entry]| SourceRead { marks: controller(server), ..read(entries.to_vec()) };
    let mut story = Story::begin(all.clone());
    story.hears(of("dc1", &all));
    let mut behind = all.clone();
    behind[0].disabled = None;
    behind[3] = group("a", &[1]);
    for turn in 0..29 {
        story.later(60);
        story.hears(of(["dc2", "dc3"][turn % 2], &behind));
        assert!(story.account("p0").disabled.is_some() && story.account("a").leaving.is_empty(), "{turn}");
    }
    // The former server was unreachable, and lacks what another server showed meanwhile.
    let mut marked = all.clone();
    marked[1].disabled = Some("mark: yes".to_owned());
    story.hears(of("dc2", &marked));
    story.later(60);
    story.hears(of("dc1", &all));
    assert!(story.account("p1").disabled.is_some());
}

#[test]
fn adoptions_do_not_wait_for_ever_while_controllers_take_turns() {
    let all = people(3);
    let of = |turn: usize, entries: &[Entry]| SourceRead {
        marks: controller(["dc1", "dc2", "dc3"][turn % 3]),
        ..read(entries.to_vec())
    };
    let mut story = Story::begin(all.clone());
    let mut turns = 0..;
    let mut hear = |story: &mut Story, entries: &[Entry], minutes: usize| {
        for turn in turns.by_ref().take(minutes / 5) {
            story.hears(of(turn, entries));
            story.later(300);
        }
    };
    hear(&mut story, &all, 60);
    let again = Entry { id: DirectoryId("again".to_owned()), ..person(0) };
    let after = [&[again], &all[1..]].concat();
    hear(&mut story, &after, 10);
    let account = story.account("p0").id.clone();
    let note = Note { actor: "root".to_owned(), reason: "the same".to_owned(), ticket: None, at: story.now };
    let adopts = |account| Order { id: 1, account, what: OrderKind::AdoptAccount, note, bulk: None, object: None };
    story.ledger.orders.push(adopts(account));
    hear(&mut story, &after, 15);
    assert_eq!((story.ledger.orders.len(), story.account("p0").directory_id.0.as_str()), (1, "u0"));
    hear(&mut story, &after, 45);
    assert_eq!((story.ledger.orders.len(), story.account("p0").directory_id.0.as_str()), (0, "again"));
    // No entry matches this order.
    let account = story.account("p1").id.clone();
    let note = Note { actor: "root".to_owned(), reason: "the same".to_owned(), ticket: None, at: story.now };
    story.ledger.orders.push(Order { id: 2, account, what: OrderKind::AdoptAccount, note, bulk: None, object: None });
    hear(&mut story, &after, 70);
    assert!(story.ledger.orders.is_empty() && story.events.contains(&"account not adopted".to_owned()));
}

#[test]
fn an_approved_loss_of_an_attribute_takes_effect_after_a_change_of_controllers() {
    let all = people(12);
    let bare: Vec<Entry> = all.iter().cloned().map(|entry| Entry { mail: None, ..entry }).collect();
    let mut story = Story::begin(all.clone());
    story.hears(read_of("dc1", &all));
    story.hears(read_of("dc1", &bare));
    story.approve("mail");
    for (minutes, mails) in [(1, 12), (29, 12), (2, 0)] {
        story.later(minutes * 60);
        story.hears(read_of("dc2", &bare));
        assert_eq!(story.count(|account| account.mail.is_some()), mails, "after {minutes} more minutes");
    }
    story.later(HOUR);
    assert!(story.hears(read_of("dc2", &bare)).is_empty() && story.ledger.approvals.is_empty());
}

#[test]
fn for_half_an_hour_a_restored_controller_adds_no_access() {
    let mut all = people(3);
    all[0].disabled = Some("mark: yes".to_owned());
    let of = |database: &str, entries: &[Entry]| {
        let counts = BTreeMap::from([(database.to_owned(), 100)]);
        let marks = Marks { counts, ..controller("dc1") };
        SourceRead { server: Some("a".to_owned()), marks, ..read(entries.to_vec()) }
    };
    let mut story = Story::begin(all.clone());
    story.hears(of("first", &all));
    let mut backup = all.clone();
    backup[0].disabled = None;
    backup.push(person(9));
    for (minutes, is_settled) in [(1, false), (29, false), (2, true)] {
        story.later(minutes * 60);
        story.hears(of("second", &backup));
        let is_new = story.count(|account| account.name == "p9") == 1;
        assert_eq!((story.account("p0").disabled.is_none(), is_new), (is_settled, is_settled));
    }
    assert_eq!(story.events.iter().filter(|event| *event == "directory server changed").count(), 1);
    // Both databases are known now.
    story.later(60);
    story.hears(of("second", &[&backup[..], &[person(8)]].concat()));
    assert_eq!(story.count(|account| account.name == "p8"), 1);
}

#[test]
fn for_half_an_hour_a_server_that_may_lack_changes_adds_no_access() {
    let stamp = |text: &str| Stamp::parse(text).expect("the time is valid");
    let csn = |ids: &[&str]| Marks {
        changes: ids.iter().map(|id| ((*id).to_owned(), stamp("20260901000000.0Z"))).collect(),
        ..Marks::default()
    };
    let entries = Marks { entries: [(DirectoryId("u1".to_owned()), stamp("20260901000000Z"))].into(), ..csn(&[]) };
    let mut all = people(3);
    let gone = all.remove(0);
    for (known, shown, holds) in [
        // The other server has never heard of the changes of server 002.
        (csn(&["dc=x 001", "dc=x 002"]), csn(&["dc=x 001"]), true),
        (csn(&["dc=x 001"]), csn(&["dc=x 001", "dc=x 002"]), false),
        // The times of entries do not show that the other server lacks a deletion.
        (entries.clone(), entries.clone(), true),
    ] {
        let of = |server: &str, marks: &Marks, entries: &[Entry]| SourceRead {
            server: Some(server.to_owned()),
            marks: marks.clone(),
            ..read(entries.to_vec())
        };
        let mut story = Story::begin(all.clone());
        story.hears(of("a", &known, &all));
        story.later(60);
        story.hears(of("b", &shown, &[&all[..], std::slice::from_ref(&gone)].concat()));
        assert_eq!(story.count(|account| account.name == "p0"), usize::from(!holds), "{shown:?}");
        // The same server shows its own changes.
        let mut story = Story::begin(all.clone());
        story.hears(of("a", &known, &all));
        story.later(60);
        story.hears(of("a", &known, &[&all[..], std::slice::from_ref(&gone)].concat()));
        assert_eq!(story.count(|account| account.name == "p0"), 1, "{known:?}");
    }
}

/// A person in the directory of the property test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Someone {
    there: bool,
    disabled: bool,
    member: bool,
    name: u8,
}

type State = [Someone; 3];

#[derive(Debug, Clone, Copy)]
enum Event {
    ComesOrGoes(usize),
    Marked(usize),
    Joins(usize),
    Renamed(usize),
}

/// The minutes that pass, a change in the directory, the server that answers, and how many minutes it is behind.
type Step = (i64, Option<Event>, usize, i64);

fn steps(lag: i64) -> impl Strategy<Value = Vec<Step>> {
    let who = 0..3_usize;
    let event = prop_oneof![
        who.clone().prop_map(Event::ComesOrGoes),
        who.clone().prop_map(Event::Marked),
        who.clone().prop_map(Event::Joins),
        who.prop_map(Event::Renamed),
    ];
    // One server may answer for a long time before another does.
    let server = prop_oneof![3 => Just(0_usize), 1 => Just(1_usize), 1 => Just(2_usize)];
    prop::collection::vec((1_i64..9, prop::option::weighted(0.3, event), server, 0..lag), 1..90)
}

/// Three servers of one directory, and the ledger that records their answers.
struct Servers {
    story: Story,
    minute: i64,
    /// The state of the directory from each minute on.
    truth: BTreeMap<i64, State>,
    /// For each server, the minute whose state it last showed, when it answered, and that state.
    answers: BTreeMap<usize, (i64, i64, State)>,
    /// The minute whose state made the ledger add each member.
    joined: BTreeMap<usize, i64>,
}

impl Servers {
    fn new() -> Self {
        let state = [Someone { there: true, disabled: false, member: true, name: 0 }; 3];
        let mut story = Story::begin(entries(&state));
        story.hears(SourceRead { marks: controller("dc0"), ..read(entries(&state)) });
        let answers = BTreeMap::from([(0, (0, 0, state))]);
        let joined = (0..3).map(|who| (who, 0)).collect();
        Self { story, minute: 0, truth: BTreeMap::from([(0, state)]), answers, joined }
    }

    fn at(&self, minute: i64) -> (i64, State) {
        self.truth
            .range(..=minute.max(0))
            .next_back()
            .map(|(since, state)| (*since, *state))
            .expect("there is a first state")
    }

    fn passes(&mut self, minutes: i64, event: Option<Event>) {
        self.minute += minutes;
        self.story.later(minutes * 60);
        let (_, mut state) = self.at(self.minute);
        match event {
            None => return,
            Some(Event::ComesOrGoes(who)) => state[who].there = !state[who].there,
            Some(Event::Marked(who)) => state[who].disabled = !state[who].disabled,
            Some(Event::Joins(who)) => state[who].member = !state[who].member,
            Some(Event::Renamed(who)) => state[who].name += 1,
        }
        self.truth.insert(self.minute, state);
    }

    /// Returns what the ledger knows of each person; `None` if there is no account.
    fn known(&self) -> [Option<Someone>; 3] {
        let group = self.story.account("a");
        let known = |who: usize| {
            let id = DirectoryId(format!("u{who}"));
            let account = self.story.ledger.accounts.values().find(|account| account.directory_id == id)?;
            let name = account.name.split_once('v').and_then(|(_, name)| name.parse().ok());
            Some(Someone {
                there: account.absence.is_none(),
                disabled: account.disabled.is_some(),
                member: group.members.contains_key(&id) && !group.leaving.contains(&id),
                name: name.unwrap_or(0),
            })
        };
        [known(0), known(1), known(2)]
    }

    /// A server answers. Checks that access is added and removed only with proof.
    fn answers(&mut self, server: usize, lag: i64) -> Result<(), TestCaseError> {
        let before = self.known();
        let version = self.answers.get(&server).map_or(0, |(version, ..)| *version).max(self.minute - lag);
        let (_, state) = self.at(version);
        self.story.hears(SourceRead { marks: controller(&format!("dc{server}")), ..read(entries(&state)) });
        self.answers.insert(server, (version, self.minute, state));
        let settles = |heard: &i64| self.minute - heard < 30;
        let lately: Vec<State> =
            self.answers.values().filter(|(_, heard, _)| settles(heard)).map(|(.., state)| *state).collect();
        for (who, (before, after)) in before.into_iter().zip(self.known()).enumerate() {
            let Some(after) = after else { continue };
            let nobody = Someone { there: false, disabled: true, member: false, name: u8::MAX };
            let known = before.unwrap_or(nobody);
            let all = |has: fn(&Someone, &Someone) -> bool| lately.iter().all(|state| has(&state[who], &after));
            prop_assert!(known.there || !after.there || all(|shown, _| shown.there), "{who} is back");
            prop_assert!(!known.disabled || after.disabled || all(|shown, _| !shown.disabled), "{who} is enabled");
            prop_assert!(known.member || !after.member || all(|shown, _| shown.there && shown.member), "{who} joined");
            prop_assert!(known.name == after.name || all(|shown, after| shown.name == after.name), "{who} is renamed");
            let is_far_behind = self.minute - version >= 30;
            let is_older = before.is_some() && known.name > after.name;
            prop_assert!(is_far_behind || !is_older, "{who} has an older name again");
            if !known.member && after.member {
                self.joined.insert(who, version);
            }
            let is_member = |state: &State| state[who].there && state[who].member;
            let learned = self.joined.get(&who).copied().unwrap_or(0);
            let mut since = self.truth.range(learned..).map(|(_, state)| state);
            // A server that is behind may show a removal that was reverted later, even if the removal is older.
            let is_removal = |(at, state): (&i64, &State)| is_member(&self.at(at - 1).1) && !is_member(state);
            let shown = self.truth.range(..=version).rev().take_while(|(_, state)| !is_member(state)).last();
            let was_removed = self.truth.range(self.minute - 30..).any(is_removal)
                || (!is_far_behind && shown.is_some_and(is_removal));
            let has_stayed = is_member(&self.at(learned).1) && since.all(is_member) && !was_removed;
            prop_assert!(!(known.member && !after.member && has_stayed), "{who} was removed, but never left");
        }
        Ok(())
    }
}

fn entries(state: &State) -> Vec<Entry> {
    let there = || state.iter().zip(0_i64..).filter(|(someone, _)| someone.there);
    let entry = |(someone, number): (&Someone, i64)| Entry {
        name: format!("p{number}v{}", someone.name),
        disabled: someone.disabled.then(|| "mark: yes".to_owned()),
        ..person(number)
    };
    let members: Vec<i64> = there().filter(|(someone, _)| someone.member).map(|(_, number)| number).collect();
    let group = group("a", &[&[7][..], &members].concat());
    there().map(entry).chain([person(7), group]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_access_is_added_against_an_answer_of_the_last_half_hour(history in steps(600)) {
        let mut servers = Servers::new();
        for (minutes, event, server, lag) in history {
            servers.passes(minutes, event);
            servers.joined.clear();
            servers.answers(server, lag)?;
        }
    }

    #[test]
    fn servers_that_take_turns_remove_no_valid_access_and_agree_within_an_hour(
        history in steps(30),
        turns in prop::collection::vec((0..3_usize, 0_i64..30), 22),
    ) {
        let mut servers = Servers::new();
        for (minutes, event, server, lag) in history {
            servers.passes(minutes, event);
            servers.answers(server, lag)?;
        }
        for (server, lag) in turns {
            servers.passes(3, None);
            servers.answers(server, lag)?;
        }
        let (_, state) = servers.at(servers.minute);
        for (known, truth) in servers.known().into_iter().zip(state) {
            let expected = Someone { member: truth.member && truth.there, ..truth };
            match known {
                Some(known) if truth.there => prop_assert_eq!(known, expected),
                known => prop_assert!(!truth.there && known.is_none_or(|known| !known.there && !known.member)),
            }
        }
    }
}
