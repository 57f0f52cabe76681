//! Tests how a read of the directories changes the ledger.

use std::path::PathBuf;
use std::time::Duration;

use super::*;
use crate::ledger::change::Change;
use crate::ledger::{Note, Order};
use crate::policy::LifecycleDelays;
use crate::snapshot::Role;
use crate::snapshot::named::{MemberName, Nested};

const MINUTE: i64 = 60;
const HOUR: i64 = 3600;

pub(super) fn policy(absent_for: i64) -> Policy {
    let policy = crate::plan::testing::policy();
    let absent_for = Duration::from_secs(absent_for.unsigned_abs());
    Policy { classes: BTreeMap::new(), lifecycle: LifecycleDelays { absent_for, ..policy.lifecycle }, ..policy }
}

fn tool(id: &str, name: &str, uid: i64) -> Entry {
    Entry {
        posix: Some(PosixIdentity {
            uid: uid.try_into().expect("the uid is valid"),
            gid: uid.try_into().expect("the gid is valid"),
            groups: BTreeSet::new(),
        }),
        home: Some(PathBuf::from(format!("/data/project/{name}"))),
        ..Entry::new(AccountKind::Tool, id, format!("cn={name}"), name)
    }
}

fn maintained(mut tool: Entry, members: &[&str]) -> Entry {
    tool.members = members.iter().map(|member| (DirectoryId((*member).to_owned()), Role::Member)).collect();
    tool
}

/// A directory and a ledger over time.
struct Story {
    ledger: LedgerState,
    policy: Policy,
    /// The kinds that the configuration asks for.
    kinds: BTreeSet<AccountKind>,
    now: i64,
    events: Vec<String>,
}

impl Story {
    fn begin(entries: &[Entry]) -> Self {
        let ledger = LedgerState { ledger_id: "L".to_owned(), ..LedgerState::default() };
        let kinds = BTreeSet::from([AccountKind::Tool, AccountKind::User, AccountKind::Group]);
        let mut story = Self { ledger, policy: policy(24 * HOUR), kinds, now: 1_790_000_000, events: Vec::new() };
        story.reads(entries, &[], Completeness::Complete);
        story
    }

    /// Runs a pass in which no source was due. Returns whether anything was written.
    fn unasked(&mut self) -> bool {
        let unasked = BTreeSet::from(["people".to_owned()]);
        self.pass(&DirectorySnapshot { unasked, ..DirectorySnapshot::default() })
    }

    /// Returns whether anything was written.
    fn reads(&mut self, entries: &[Entry], rejected: &[RejectedEntry], completeness: Completeness) -> bool {
        let read = SourceRead {
            completeness,
            rejected: rejected.to_vec(),
            ..SourceRead::complete("people", self.kinds.clone(), entries.to_vec())
        };
        self.pass(&DirectorySnapshot { reads: vec![read], ..DirectorySnapshot::default() })
    }

    fn pass(&mut self, snapshot: &DirectorySnapshot) -> bool {
        let now = Timestamp::from_second(self.now).expect("the time is valid");
        let ReadChanges { changes, events } = transition(&self.ledger, snapshot, &self.policy, now);
        self.ledger.apply_all(&changes);
        self.events.extend(events.iter().map(|event| event.action.clone()));
        changes.iter().any(|change| !matches!(change, Change::Sources(_)))
    }

    fn later(&mut self, seconds: i64, entries: &[Entry]) -> bool {
        self.now += seconds;
        self.reads(entries, &[], Completeness::Complete)
    }

    fn account(&self, name: &str) -> &Account {
        self.ledger.accounts.values().find(|account| account.name == name).expect("the account is known")
    }

    fn absent(&self, name: &str) -> Option<u64> {
        self.account(name).absence.map(|absence| absence.seconds)
    }

    fn why_rejected(&self) -> String {
        self.ledger.rejected.iter().map(|rejected| rejected.why.clone()).collect::<Vec<_>>().join("; ")
    }
}

fn partial() -> Completeness {
    Completeness::Partial { why: "size limit".to_owned() }
}

fn rejected(id: &str) -> RejectedEntry {
    RejectedEntry {
        source: "people".to_owned(),
        kind: AccountKind::Tool,
        dn: "cn=foo".to_owned(),
        name: None,
        id: Some(DirectoryId(id.to_owned())),
        disabled: None,
        why: "no uidNumber".to_owned(),
        reason: None,
    }
}

#[test]
fn an_unchanged_directory_changes_nothing() {
    let entries = [tool("1", "foo", 52503), maintained(tool("2", "bar", 52504), &["a"])];
    let mut story = Story::begin(&entries);
    assert_eq!(story.ledger.accounts.len(), 2);
    assert!(!story.later(MINUTE, &entries));
    assert_eq!(story.events, ["seen", "seen"]);
}

#[test]
fn a_rename_keeps_the_account_and_its_kubernetes_name() {
    let mut story = Story::begin(&[tool("1", "foo", 52503)]);
    let before = story.account("foo").clone();
    story.later(MINUTE, &[tool("1", "new", 52503)]);
    let after = story.account("new");
    assert_eq!((&after.id, after.kubernetes_name.as_str()), (&before.id, "foo"));
    assert_eq!(story.events, ["seen", "renamed", "changed"], "its home is renamed too");
}

#[test]
fn a_rejected_tool_loses_the_members_that_it_names_no_longer() {
    let people = [1, 2, 3].map(|number| Entry {
        kind: AccountKind::User,
        ..tool(&format!("u{number}"), &format!("p{number}"), 20_000 + number)
    });
    let all = |tool: Entry| people.iter().cloned().chain([tool]).collect::<Vec<_>>();
    let mut story = Story::begin(&all(maintained(tool("1", "foo", 52503), &["u1", "u2", "u3"])));
    let mut hears = |members: &[&str], completeness: Completeness, missing: Option<&str>| {
        let mut read =
            SourceRead { completeness, ..SourceRead::complete("people", story.kinds.clone(), people.to_vec()) };
        read.entries.retain(|entry| Some(entry.name.as_str()) != missing);
        let members = members.iter().map(|id| DirectoryId((*id).to_owned())).collect();
        let group = read.nesting.add(Nested { members, parts: Vec::new() });
        read.nesting.name(DirectoryId("1".to_owned()), group);
        read.rejected.push(rejected("1"));
        if let Some(name) = missing {
            read.dangling.add(MemberName::Name(name.to_owned()), DirectoryId("1".to_owned()), Role::Member);
        }
        story.now += MINUTE;
        story.pass(&DirectorySnapshot { reads: vec![read], ..DirectorySnapshot::default() });
        let leaving = &story.account("foo").leaving;
        (story.account("foo").members.len(), leaving.iter().map(|id| id.0.clone()).collect::<Vec<_>>())
    };
    assert_eq!(hears(&["u1"], partial(), None), (3, vec![]), "a partial read proves nothing");
    assert_eq!(
        hears(&["u1", "u2", "u9"], Completeness::Complete, Some("p3")),
        (3, vec![]),
        "p3 is named, but has no entry"
    );
    assert_eq!(hears(&["u1", "u9"], Completeness::Complete, None), (3, vec!["u2".to_owned(), "u3".to_owned()]));
    // A member who is named again stays while the tool is rejected.
    assert_eq!(hears(&["u1", "u2"], Completeness::Complete, None), (3, vec!["u3".to_owned()]));
    assert_eq!(hears(&["u1", "u3"], partial(), None), (3, vec![]), "a partial read does not prove that u2 left");
}

/// Reads only source `sso`, like a source with its own interval.
fn alone(story: &mut Story, entries: Vec<Entry>) {
    let read = SourceRead::complete("sso", [AccountKind::Tool], entries);
    story.now += MINUTE;
    let unasked = BTreeSet::from(["people".to_owned()]);
    story.pass(&DirectorySnapshot { reads: vec![read], unasked, ..DirectorySnapshot::default() });
}

#[test]
fn nobody_gets_a_name_that_an_account_of_another_source_has() {
    let mut story = Story::begin(&[tool("1", "foo", 52503), tool("2", "bar", 52504)]);
    alone(&mut story, vec![tool("9", "new", 52999)]);
    let id = story.account("new").id.clone();
    alone(&mut story, vec![tool("9", "foo", 52999)]);
    assert_eq!(story.ledger.accounts.get(&id).map(|account| account.name.as_str()), Some("new"));
    let why = story.why_rejected();
    assert!(why.contains("was renamed to foo, but source people already has tool:foo"), "{why}");
    // A new entry does not get the new name of a renamed account either.
    story.later(MINUTE, &[tool("1", "foo", 52503), tool("2", "renamed", 52504)]);
    alone(&mut story, vec![tool("9", "new", 52999), tool("8", "renamed", 52998)]);
    assert_eq!(story.ledger.accounts.len(), 3);
    story.later(MINUTE, &[tool("1", "former", 52503), tool("2", "renamed", 52504)]);
    alone(&mut story, vec![tool("9", "foo", 52999)]);
    assert_eq!(story.account("foo").id, id, "no account has the name any more");
}

#[test]
fn accounts_of_one_source_may_exchange_their_names() {
    let mut story = Story::begin(&[tool("1", "foo", 52503), tool("2", "bar", 52504), tool("3", "baz", 52505)]);
    let before = story.account("foo").id.clone();
    story.later(MINUTE, &[tool("1", "bar", 52503), tool("2", "baz", 52504), tool("3", "foo", 52505)]);
    assert_eq!((&story.account("bar").id, story.ledger.rejected.len()), (&before, 0));
}

#[test]
fn an_entry_that_becomes_another_kind_is_disabled_by_its_mark() {
    let mut story = Story::begin(&[tool("1", "foo", 52503), tool("2", "bar", 52504)]);
    let mark = || Some("mark: yes".to_owned());
    let user = |disabled| Entry { kind: AccountKind::User, disabled, ..tool("1", "foo", 52503) };
    story.later(MINUTE, &[user(mark()), tool("2", "bar", 52504)]);
    assert!(story.why_rejected().contains("a tool cannot become a user"), "{}", story.why_rejected());
    assert_eq!(story.account("foo").disabled, mark());
    story.later(MINUTE, &[user(None), tool("2", "bar", 52504)]);
    assert_eq!(story.account("foo").disabled, mark(), "a rejected entry lifts no mark");
}

#[test]
fn the_same_name_with_another_id_gets_nothing_of_the_old_account() {
    let mut story = Story::begin(&[tool("1", "foo", 52503), tool("2", "bar", 52504)]);
    story.later(MINUTE, &[tool("9", "foo", 52999), tool("2", "bar", 52504)]);
    assert_eq!(story.ledger.accounts.len(), 2);
    assert_eq!(story.absent("foo"), Some(0));
    assert!(story.why_rejected().contains("bursar adopt account tool foo"), "{}", story.why_rejected());
}

#[test]
fn a_uid_never_silently_becomes_another() {
    let mut story = Story::begin(&[tool("1", "foo", 52503)]);
    story.later(MINUTE, &[tool("1", "foo", 52999)]);
    assert_eq!(story.account("foo").posix.as_ref().map(|posix| posix.uid.get()), Some(52503));
    assert!(story.why_rejected().contains("bursar adopt uid tool foo"), "{}", story.why_rejected());
    assert!(!story.later(MINUTE, &[tool("1", "foo", 52999)]), "the rejection is recorded once");
}

#[test]
fn an_entry_that_is_not_accepted_gains_no_gid_and_loses_those_of_groups_that_do_not_name_it() {
    let with = |uid: i64, gids: &[i64]| {
        let mut entry = tool("1", "foo", uid);
        let gids = gids.iter().map(|gid| (*gid).try_into().expect("the gid is valid"));
        entry.posix.as_mut().expect("the tool has a uid").groups = gids.collect();
        entry
    };
    let gids = |story: &Story| {
        let posix = story.account("foo").posix.as_ref().expect("the tool has a uid");
        posix.groups.iter().map(|gid| i64::from(gid.get())).collect::<Vec<_>>()
    };
    let held = |gids: &[i64]| {
        let groups = with(52503, gids).posix.map(|posix| posix.groups).unwrap_or_default();
        BTreeMap::from([("cn=foo".to_owned(), crate::snapshot::held::Held { groups, ..Default::default() })])
    };
    let read = |gids: &[i64], is_rejected: bool, completeness| {
        let shown = if is_rejected { Vec::new() } else { vec![with(52999, gids)] };
        let rejected = if is_rejected { vec![rejected("1")] } else { Vec::new() };
        let whole = SourceRead::complete("people", [AccountKind::Tool], shown);
        SourceRead { rejected, held: held(gids), completeness, ..whole }
    };
    for is_rejected in [true, false] {
        let mut story = Story::begin(&[with(52503, &[5000, 6000])]);
        let mut hears = |read: SourceRead| {
            story.now += MINUTE;
            story.pass(&DirectorySnapshot { reads: vec![read], ..DirectorySnapshot::default() });
            assert_eq!(story.account("foo").posix.as_ref().map(|posix| posix.uid.get()), Some(52503));
            gids(&story)
        };
        assert_eq!(hears(read(&[], is_rejected, partial())), [5000, 6000]);
        assert_eq!(hears(read(&[6000, 7000], is_rejected, Completeness::Complete)), [6000], "{is_rejected}");
        assert_eq!(hears(read(&[], is_rejected, Completeness::Complete)), [0; 0], "{is_rejected}");
    }
}

#[test]
fn a_recorded_uid_never_passes_to_another_account() {
    let mut story = Story::begin(&[tool("1", "foo", 52503), tool("2", "bar", 52504)]);
    story.later(MINUTE, &[tool("2", "bar", 52504), tool("3", "thief", 52503)]);
    assert_eq!(story.ledger.accounts.len(), 2);
    assert!(story.why_rejected().contains("uid 52503 belongs"), "{}", story.why_rejected());
}

/// A policy whose workspaces have the uids from 70000 to 70999.
fn with_workspaces(mut policy: Policy) -> Policy {
    let range = crate::policy::UidRange {
        first: 70_000.try_into().expect("the uid is valid"),
        last: 70_999.try_into().expect("the uid is valid"),
    };
    let mut course = crate::plan::testing::course();
    crate::plan::testing::workspace_of(&mut course).uid_range = Some(range);
    policy.classes.insert(course.name.clone(), course);
    policy
}

#[test]
fn a_directory_entry_with_the_uid_of_workspaces_is_a_conflict() {
    let mut story = Story::begin(&[tool("1", "old", 70_001)]);
    story.policy = with_workspaces(story.policy);
    story.later(MINUTE, &[tool("1", "old", 70_001), tool("2", "new", 70_002), tool("3", "far", 71_000)]);
    let rejected: Vec<&str> = story.ledger.rejected.iter().filter_map(|entry| entry.name.as_deref()).collect();
    assert_eq!(rejected, ["new", "old"]);
    assert!(
        story.ledger.rejected.iter().all(|entry| entry.why.contains("is in uid_range 70000-70999 of class course"))
    );
    assert!(story.account("old").posix.is_some(), "a rejected entry keeps its former identity");
    assert!(story.ledger.accounts.values().all(|account| account.name != "new"));
    assert!(story.account("far").posix.is_some());
}

#[test]
fn a_workspace_keeps_its_uid_and_follows_the_gid_of_its_group() {
    let group = |gid: i64| Entry {
        gid: gid.try_into().ok(),
        ..Entry::new(AccountKind::Group, "1", "cn=algebra".to_owned(), "algebra")
    };
    let mut story = Story::begin(&[group(600)]);
    let mut account = story.account("algebra").clone();
    let uid = 70_000.try_into().expect("the uid is valid");
    account.posix = account.gid.map(|gid| PosixIdentity { uid, gid, groups: BTreeSet::new() });
    story.ledger.apply(&Change::Account(account.into()));
    assert!(!story.later(MINUTE, &[group(600)]));
    story.later(MINUTE, &[group(601)]);
    let account = story.account("algebra");
    let posix = account.posix.as_ref().expect("the workspace has a uid");
    assert_eq!((posix.uid, Some(posix.gid), posix.gid.get()), (uid, account.gid, 601));
}

#[test]
fn a_rejected_entry_with_a_known_id_counts_as_present_and_keeps_its_identity() {
    let mut story = Story::begin(&[tool("1", "foo", 52503)]);
    story.now += MINUTE;
    story.reads(&[], &[rejected("1")], Completeness::Complete);
    assert_eq!(story.absent("foo"), None);
    assert!(story.account("foo").posix.is_some());
}

#[test]
fn an_entry_whose_mark_cannot_be_read_stays_disabled() {
    let mut story = Story::begin(&[tool("1", "foo", 52503)]);
    story.later(MINUTE, &[Entry { disabled: Some("locked".to_owned()), ..tool("1", "foo", 52503) }]);
    story.now += MINUTE;
    story.reads(&[], &[rejected("1")], Completeness::Complete);
    assert_eq!(story.account("foo").disabled.as_deref(), Some("locked"));
    story.later(MINUTE, &[tool("1", "foo", 52503)]);
    assert_eq!(story.account("foo").disabled, None);
}

#[test]
fn a_partial_read_proves_nobody_absent_and_removes_no_member() {
    let mut story = Story::begin(&[maintained(tool("1", "foo", 52503), &["a", "b"]), tool("2", "bar", 52504)]);
    story.now += MINUTE;
    story.reads(&[maintained(tool("1", "foo", 52503), &["a"])], &[], partial());
    assert_eq!(story.absent("bar"), None);
    assert!(story.account("foo").leaving.is_empty());
}

#[test]
fn an_answer_without_any_tool_is_not_complete() {
    let mut story = Story::begin(&[tool("1", "foo", 52503)]);
    story.later(MINUTE, &[]);
    assert_eq!(story.absent("foo"), None);
    let source = &story.ledger.sources["people"];
    assert!(matches!(&source.completeness, Completeness::Partial { why } if why.contains("ledger knows 1")));
    assert_ne!(source.complete_at, Some(source.read_at));
}

#[test]
fn a_kind_that_is_no_longer_asked_for_stays_as_it_was_and_the_read_is_complete() {
    let group = |mut entry: Entry| {
        (entry.kind, entry.posix) = (AccountKind::Group, None);
        entry
    };
    let foo = tool("1", "foo", 52503);
    let admins = group(maintained(tool("2", "admins", 52504), &["a"]));
    let mut story = Story::begin(&[foo.clone(), admins]);
    story.kinds.remove(&AccountKind::Group);
    story.later(HOUR, std::slice::from_ref(&foo));
    assert_eq!(story.ledger.sources["people"].completeness, Completeness::Complete);
    assert_eq!(story.absent("admins"), None);
    assert_eq!(story.account("admins").members.len(), 1);
}

#[test]
fn an_answer_without_any_tool_is_complete_when_the_last_one_was_suspended_by_order() {
    let mut story = Story::begin(&[tool("1", "foo", 52503)]);
    let mut foo = story.account("foo").clone();
    let note = Note { actor: "root".to_owned(), reason: "gone".to_owned(), ticket: None, at: Timestamp::UNIX_EPOCH };
    foo.suspension = Some(Box::new(Suspension::by(note)));
    story.ledger.apply(&Change::Account(foo.into()));
    story.later(MINUTE, &[]);
    assert_eq!(story.ledger.sources["people"].completeness, Completeness::Complete);
}

#[test]
fn absence_is_the_sum_of_gaps_of_an_hour_at_most() {
    let stays = tool("2", "bar", 52504);
    let mut story = Story::begin(&[tool("1", "foo", 52503), stays.clone()]);
    story.later(MINUTE, std::slice::from_ref(&stays));
    assert_eq!(story.absent("foo"), Some(0), "the absence begins with the first read without the entry");
    story.later(10 * MINUTE, std::slice::from_ref(&stays));
    assert_eq!(story.absent("foo"), Some(600));
    story.later(30 * 24 * HOUR, std::slice::from_ref(&stays));
    assert_eq!(story.absent("foo"), Some(600 + 3600), "the daemon was off for a month");
    story.later(-10 * 24 * HOUR, std::slice::from_ref(&stays));
    assert_eq!(story.absent("foo"), Some(600 + 3600), "the clock was set back");
    story.later(MINUTE, &[tool("1", "foo", 52503), stays]);
    assert_eq!(story.absent("foo"), None);
    assert_eq!(story.events.last().map(String::as_str), Some("back"));
}

#[test]
fn absence_is_counted_when_it_becomes_due_and_not_each_minute_before() {
    let stays = tool("2", "bar", 52504);
    let mut story = Story::begin(&[tool("1", "foo", 52503), stays.clone()]);
    story.policy = policy(100);
    assert!(story.later(MINUTE, std::slice::from_ref(&stays)));
    assert!(!story.later(MINUTE, std::slice::from_ref(&stays)));
    assert!(story.later(MINUTE, std::slice::from_ref(&stays)));
    assert_eq!(story.absent("foo"), Some(120));
}

#[test]
fn members_join_at_once_and_are_only_marked_as_leaving() {
    let mut story = Story::begin(&[maintained(tool("1", "foo", 52503), &["a"])]);
    story.later(MINUTE, &[maintained(tool("1", "foo", 52503), &["b"])]);
    let foo = story.account("foo");
    let named = |members: &mut dyn Iterator<Item = &DirectoryId>| members.map(|id| id.0.clone()).collect::<Vec<_>>();
    assert_eq!(named(&mut foo.members.keys()), ["a", "b"]);
    assert_eq!(named(&mut foo.leaving.iter()), ["a"]);
    story.later(MINUTE, &[maintained(tool("1", "foo", 52503), &["a", "b"])]);
    assert!(story.account("foo").leaving.is_empty());
}

#[test]
fn a_partial_read_forgets_only_the_rejections_that_it_shows_to_be_over() {
    let mut story = Story::begin(&[tool("1", "foo", 52503), tool("2", "bar", 52504)]);
    let other = RejectedEntry { dn: "cn=weird".to_owned(), id: Some(DirectoryId("7".to_owned())), ..rejected("1") };
    story.now += MINUTE;
    story.reads(&[tool("2", "bar", 52504)], &[rejected("1"), other.clone()], Completeness::Complete);
    assert_eq!(story.ledger.rejected.len(), 2);
    story.now += MINUTE;
    story.reads(&[tool("1", "foo", 52503)], &[], partial());
    assert_eq!(story.ledger.rejected, BTreeSet::from([other]));
}

#[test]
fn marks_count_at_once_and_are_recorded_once() {
    let mut marked = tool("1", "foo", 52503);
    marked.disabled = Some("pwdPolicySubentry: cn=disabled".to_owned());
    let mut story = Story::begin(&[tool("1", "foo", 52503)]);
    story.now += MINUTE;
    story.reads(std::slice::from_ref(&marked), &[], partial());
    assert_eq!(story.account("foo").disabled, marked.disabled);
    assert!(!story.later(MINUTE, &[marked]));
    story.later(MINUTE, &[tool("1", "foo", 52503)]);
    assert_eq!(story.account("foo").disabled, None);
    assert_eq!(story.events, ["seen", "disabled", "enabled"]);
}

#[test]
fn a_gid_and_a_home_follow_the_directory_and_the_history_says_so() {
    let mut story = Story::begin(&[tool("1", "foo", 52503)]);
    let mut moved = tool("1", "foo", 52503);
    moved.home = Some(PathBuf::from("/data/other/foo"));
    story.later(MINUTE, std::slice::from_ref(&moved));
    assert_eq!(story.account("foo").home, moved.home);
    assert_eq!(story.events, ["seen", "changed"]);
}

#[test]
fn a_source_that_is_not_read_stays_as_it_was() {
    let mut story = Story::begin(&[tool("1", "foo", 52503)]);
    let read = SourceRead::complete("sso", [AccountKind::Tool], vec![tool("1", "bar", 52504)]);
    let now = Timestamp::from_second(story.now + MINUTE).expect("the time is valid");
    let seen = transition(
        &story.ledger,
        &DirectorySnapshot { reads: vec![read], ..DirectorySnapshot::default() },
        &story.policy,
        now,
    );
    story.ledger.apply_all(&seen.changes);
    assert_eq!(story.absent("foo"), None);
    assert_ne!(story.account("foo").id, story.account("bar").id, "the same id in another source is another account");
}

#[test]
fn a_suspension_without_delay_is_due_in_the_first_complete_read_without_the_entry() {
    let stays = tool("2", "bar", 52504);
    let mut story = Story::begin(&[tool("1", "foo", 52503), stays.clone()]);
    story.policy = policy(0);
    story.later(MINUTE, std::slice::from_ref(&stays));
    let absence = story.account("foo").absence.expect("foo is absent");
    assert_eq!((absence.seconds, absence.due), (0, absence.since));
}

fn adopt(story: &mut Story, name: &str) {
    let account = story.account(name).id.clone();
    let note = Note {
        actor: "root".to_owned(),
        reason: "recreated".to_owned(),
        ticket: None,
        at: Timestamp::from_second(story.now).expect("the time is valid"),
    };
    story.ledger.orders.push(Order { id: 1, account, what: OrderKind::AdoptAccount, note, bulk: None, object: None });
}

#[test]
fn an_account_that_another_entry_adopts_keeps_everything() {
    let mut story = Story::begin(&[tool("1", "foo", 52503), tool("2", "bar", 52504)]);
    let before = story.account("foo").clone();
    let recreated = [tool("9", "foo", 52503), tool("2", "bar", 52504)];
    story.later(MINUTE, &recreated);
    adopt(&mut story, "foo");
    story.later(MINUTE, &recreated);
    let after = story.account("foo");
    assert_eq!(after.directory_id, DirectoryId("9".to_owned()));
    assert_eq!((&after.id, &after.posix, &after.absence), (&before.id, &before.posix, &None));
    assert_eq!(story.why_rejected(), "");
    assert!(story.ledger.orders.is_empty());
    assert!(!story.later(MINUTE, &recreated), "the entry is adopted only once");
}

#[test]
fn an_account_is_given_only_to_the_entry_that_the_order_names() {
    let mut story = Story::begin(&[tool("1", "foo", 52503), tool("2", "bar", 52504)]);
    let puppet = [tool("8", "foo", 52503), tool("2", "bar", 52504)];
    story.later(MINUTE, &puppet);
    adopt(&mut story, "foo");
    story.ledger.orders[0].object = Some("9".to_owned());
    story.later(MINUTE, &puppet);
    assert_eq!(story.account("foo").directory_id, DirectoryId("1".to_owned()));
    assert_eq!((story.ledger.orders.len(), story.events.last().map(String::as_str)), (0, Some("account not adopted")));
    adopt(&mut story, "foo");
    story.ledger.orders[0].object = Some("9".to_owned());
    story.later(MINUTE, &[tool("9", "foo", 52503), tool("2", "bar", 52504)]);
    assert_eq!(story.account("foo").directory_id, DirectoryId("9".to_owned()));
}

#[test]
fn a_former_entry_that_comes_back_is_rejected() {
    let mut story = Story::begin(&[tool("1", "foo", 52503), tool("2", "bar", 52504)]);
    adopt(&mut story, "foo");
    story.later(MINUTE, &[tool("9", "foo", 52503), tool("2", "bar", 52504)]);
    let known = story.ledger.accounts.clone();
    // Its name and uid are new, so only its id shows that it is the former entry.
    story.later(MINUTE, &[tool("9", "foo", 52503), tool("2", "bar", 52504), tool("1", "baz", 52505)]);
    assert_eq!(story.ledger.accounts, known);
    assert!(story.why_rejected().contains("its id belonged to tool:foo"), "{}", story.why_rejected());
}

#[test]
fn an_order_waits_only_for_the_sources_that_decide_it() {
    let mut story = Story::begin(&[tool("1", "foo", 52503), tool("2", "bar", 52504)]);
    let others = |sources: &[&str]| sources.iter().map(|source| (*source).to_owned()).collect::<BTreeSet<String>>();
    let hears = |story: &mut Story, source: &str, entries: &[Entry], unasked: &[&str], outdated: &[&str]| {
        story.now += MINUTE;
        let reads = vec![SourceRead::complete(source, story.kinds.clone(), entries.to_vec())];
        story.pass(&DirectorySnapshot { reads, unasked: others(unasked), outdated: others(outdated) });
    };
    let (foo, bar, recreated) = (tool("1", "foo", 52503), tool("2", "bar", 52504), tool("9", "foo", 52503));
    hears(&mut story, "guests", std::slice::from_ref(&recreated), &["people", "realm"], &[]);
    let order = |story: &mut Story| {
        adopt(story, "foo");
        story.ledger.orders[0].object = Some("9".to_owned());
    };
    let waiting = |story: &Story| ["guests", "people", "realm"].map(|source| story.ledger.waits_for(source));
    order(&mut story);
    assert_eq!(waiting(&story), [true, true, false]);
    // The own source was last read before the order, so nothing is decided.
    hears(&mut story, "guests", std::slice::from_ref(&recreated), &["people", "realm"], &["people"]);
    assert_eq!(story.ledger.orders.len(), 1);
    // A read that began before the order still shows the own entry, which was removed since.
    hears(&mut story, "people", &[foo, bar.clone()], &["guests", "realm"], &["people"]);
    assert_eq!(story.ledger.orders.len(), 1);
    hears(&mut story, "people", std::slice::from_ref(&bar), &["guests", "realm"], &[]);
    assert_eq!(story.ledger.orders.len(), 1, "the new entry is adopted when its source is read");
    // A read that began before the order shows the new entry, which may have been removed since.
    hears(&mut story, "guests", std::slice::from_ref(&recreated), &["people", "realm"], &["guests"]);
    assert_eq!((story.ledger.orders.len(), story.account("foo").source.as_str()), (1, "people"));
    hears(&mut story, "guests", std::slice::from_ref(&recreated), &["people", "realm"], &[]);
    assert_eq!((story.ledger.orders.len(), story.account("foo").source.as_str()), (0, "guests"));
    assert_eq!(waiting(&story), [false; 3]);

    // The own entry exists, so the order ends, although the realm is never read.
    hears(&mut story, "people", &[bar, tool("8", "foo", 52503)], &["guests", "realm"], &[]);
    order(&mut story);
    story.ledger.orders[0].object = Some("8".to_owned());
    hears(&mut story, "guests", &[recreated], &["people", "realm"], &[]);
    assert_eq!(story.ledger.orders.len(), 1, "the source of the entry has not answered");
    hears(&mut story, "people", &[tool("2", "bar", 52504), tool("8", "foo", 52503)], &["guests", "realm"], &[]);
    assert_eq!((story.ledger.orders.len(), story.events.last().map(String::as_str)), (0, Some("account not adopted")));
}

#[test]
fn an_order_ends_although_two_slow_sources_never_answer_together() {
    let mut story = Story::begin(&[tool("1", "foo", 52503), tool("2", "bar", 52504)]);
    adopt(&mut story, "foo");
    // No source shows this entry, so each of them may have it.
    story.ledger.orders[0].object = Some("9".to_owned());
    let turns = [("people", tool("2", "bar", 52504), "guests"), ("guests", tool("5", "baz", 52505), "people")];
    let take_turns = |story: &mut Story| {
        for (source, entry, other) in &turns {
            story.now += MINUTE;
            let reads = vec![SourceRead::complete(source, story.kinds.clone(), vec![entry.clone()])];
            let unasked = BTreeSet::from([(*other).to_owned()]);
            story.pass(&DirectorySnapshot { reads, unasked, ..DirectorySnapshot::default() });
        }
    };
    take_turns(&mut story);
    assert_eq!(story.ledger.orders.len(), 1, "one of them may still show the entry");
    story.now += 120 * MINUTE;
    take_turns(&mut story);
    assert_eq!((story.ledger.orders.len(), story.events.contains(&"account not adopted".to_owned())), (0, true));
}

#[test]
fn a_read_that_began_before_an_order_adopts_no_uid() {
    let mut story = Story::begin(&[tool("1", "foo", 52503)]);
    let uid = |story: &Story| story.account("foo").posix.as_ref().map(|posix| posix.uid.get());
    story.later(MINUTE, &[tool("1", "foo", 52999)]);
    adopt(&mut story, "foo");
    story.ledger.orders[0].what = OrderKind::AdoptUid;
    // The administrator corrected the uid before the order.
    let read = |uid| vec![SourceRead::complete("people", [AccountKind::Tool], vec![tool("1", "foo", uid)])];
    let outdated = BTreeSet::from(["people".to_owned()]);
    story.pass(&DirectorySnapshot { reads: read(52999), outdated, ..DirectorySnapshot::default() });
    assert_eq!((uid(&story), story.ledger.orders.len()), (Some(52503), 1));
    story.pass(&DirectorySnapshot { reads: read(52555), ..DirectorySnapshot::default() });
    assert_eq!((uid(&story), story.ledger.orders.len()), (Some(52555), 0));
}

#[test]
fn an_account_whose_own_entry_exists_cannot_be_adopted() {
    let mut story = Story::begin(&[tool("1", "foo", 52503)]);
    adopt(&mut story, "foo");
    story.later(MINUTE, &[tool("9", "foo", 52999), tool("1", "foo", 52503)]);
    assert_eq!(story.account("foo").directory_id, DirectoryId("1".to_owned()));
    assert!(story.ledger.orders.is_empty());
    assert_eq!(story.events.last().map(String::as_str), Some("account not adopted"));
}

#[test]
fn a_source_that_is_not_asked_proves_nothing_and_loses_nothing() {
    let mut story = Story::begin(&[tool("1", "foo", 52503), tool("2", "bar", 52504)]);
    story.reads(&[tool("2", "bar", 52504)], &[rejected("3")], Completeness::Complete);
    let (sources, rejected, absent) =
        (story.ledger.sources.clone(), story.ledger.rejected.clone(), story.absent("foo"));
    for _ in 0..48 {
        story.now += HOUR;
        assert!(!story.unasked());
    }
    assert_eq!((&story.ledger.sources, &story.ledger.rejected), (&sources, &rejected));
    assert_eq!((story.absent("foo"), story.absent("bar")), (absent, None));
    story.later(60, &[tool("2", "bar", 52504)]);
    assert!(story.absent("foo") > absent, "an unobserved gap counts as at most an hour");
}

#[test]
fn a_source_is_asked_again_when_its_interval_is_over() {
    let story = Story::begin(&[tool("1", "foo", 52503)]);
    let mut source = story.ledger.sources["people"].clone();
    let at = |seconds: i64| Timestamp::from_second(story.now + seconds).expect("the time is valid");
    let five = Duration::from_mins(5);
    assert_eq!([0, 60, 269, 270, 300].map(|gap| source.is_due(five, at(gap))), [false, false, false, true, true]);
    assert!(source.is_due(five, at(-1)), "the clock was set back");
    assert!(source.is_due(Duration::ZERO, at(0)));
    source.completeness = partial();
    assert!(source.is_due(five, at(1)));
    let pauses = [1, 2, 3, 4, 5, 60].map(|failures| {
        let source = SourceState { failures, ..source.clone() };
        (0..400).find(|gap| source.is_due(five, at(*gap)))
    });
    assert_eq!(pauses, [27, 54, 108, 216, 270, 270].map(Some), "a realm that fails is asked less and less often");
}
