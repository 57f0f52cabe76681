//! Tests random histories of a directory, from its answers to the executed steps.
//!
//! Entries appear, disappear, are renamed, change their uid, and are created again under an old name. The group that
//! gives people a class appears and disappears too. Administrators adopt uids and accounts. Reads are partial, servers
//! lag, attributes and members vanish, and the clock jumps. In every case, no account is suspended, no account regains
//! access, and no namespace is deleted without proof. No uid belongs to two accounts, and no uid changes without an
//! order. In the end, nothing is left to plan.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;

use super::Planner;
use super::property_tests::cases;
use super::testing::{SOURCE, World};
use crate::desired::Transition;
use crate::identity::{AccountId, AccountKind, DirectoryId, PosixIdentity, Uid, kubernetes_name};
use crate::ledger::{Account, Lifecycle, OrderKind, Suspension};
use crate::snapshot::freshness::{Marks, Stamp};
use crate::snapshot::{Completeness, DirectorySnapshot, Entry, Role, SourceRead};

const DAY: u64 = 24 * 3600;
/// The retention of suspended accounts, which is short so that histories of a few days contain archives and deletions.
const RETENTION: u64 = 30 * 3600;
/// The longest part of a gap between two complete reads that counts.
const HOUR: i64 = 3600;
/// The number of tools that may appear and disappear.
const TOOLS: usize = 5;
/// The number of people who always exist. They are numerous enough that the loss of an attribute by all of them is
/// doubted.
const PEOPLE: i64 = 12;
/// The group whose members have class `admin`.
const ADMINS: &str = "k8s-admins";
/// The people who maintain the permanent tools and are in [`ADMINS`].
const MEMBERS: [&str; 2] = ["alice", "p1"];

/// An event for the tool with this number, or for the group.
#[derive(Debug, Clone)]
enum Happening {
    Comes(usize),
    Goes(usize),
    Renamed(usize, u8),
    OtherUid(usize, i64),
    /// The entry is replaced by another one with the same name and uid.
    Reborn(usize),
    Maintained(usize, bool),
    Marked(usize, bool),
    /// An administrator adopts the uid of the tool's entry.
    Adopts(usize),
    /// An administrator assigns the account with the entry's name to the entry.
    Inherits(usize),
    /// [`ADMINS`] exists or, if `false`, is gone.
    Group(bool),
}

/// How a read shows the directory.
#[derive(Debug, Clone, Copy, PartialEq)]
enum View {
    Whole,
    /// A limit cuts the answer.
    Cut,
    /// The server is this many reads behind.
    Behind(usize),
    /// An access rule of the directory hides mail and SSH keys.
    WithoutAttributes,
    /// An access rule of the directory hides members.
    WithoutMembers,
    /// The answer lacks its sentinel, because it comes from another directory: some entries are missing, others are
    /// new, and no entry shows a mark.
    Foreign,
}

/// The events before a read, the minutes that pass, and how the read shows the directory.
type Step = (Vec<Happening>, i64, View);

fn step() -> impl Strategy<Value = Step> {
    let who = 0..TOOLS;
    let happening = prop_oneof![
        3 => who.clone().prop_map(Happening::Comes),
        4 => who.clone().prop_map(Happening::Goes),
        1 => (who.clone(), 0_u8..8).prop_map(|(who, name)| Happening::Renamed(who, name)),
        1 => (who.clone(), 0_i64..8).prop_map(|(who, uid)| Happening::OtherUid(who, uid)),
        1 => who.clone().prop_map(Happening::Reborn),
        1 => (who.clone(), any::<bool>()).prop_map(|(who, on)| Happening::Maintained(who, on)),
        1 => who.clone().prop_map(Happening::Adopts),
        1 => who.clone().prop_map(Happening::Inherits),
        1 => (who, any::<bool>()).prop_map(|(who, on)| Happening::Marked(who, on)),
        1 => any::<bool>().prop_map(Happening::Group),
    ];
    let minutes = prop_oneof![4 => 1_i64..90, 2 => 90_i64..3000, 1 => -2000_i64..0, 1 => 59_000_i64..60_000];
    let view = prop_oneof![
        12 => Just(View::Whole),
        3 => Just(View::Cut),
        2 => (1_usize..4).prop_map(View::Behind),
        1 => Just(View::WithoutAttributes),
        1 => Just(View::WithoutMembers),
        1 => Just(View::Foreign),
    ];
    (prop::collection::vec(happening, 0..3), minutes, view)
}

fn posix(number: i64) -> PosixIdentity {
    PosixIdentity {
        uid: number.try_into().expect("the id is in range"),
        gid: number.try_into().expect("the id is in range"),
        groups: BTreeSet::new(),
    }
}

fn entry(kind: AccountKind, id: &str, name: &str, uid: i64) -> Entry {
    let homes = if kind == AccountKind::Tool { "/data/project" } else { "/home" };
    Entry {
        posix: Some(posix(uid)),
        home: Some(format!("{homes}/{name}").into()),
        ..Entry::new(kind, id, format!("cn={name},ou={kind}s,dc=example,dc=org"), name)
    }
}

fn person(number: i64) -> Entry {
    let name = format!("p{number}");
    Entry {
        mail: Some(format!("{name}@example.org")),
        ssh_keys: BTreeSet::from([format!("ssh-ed25519 {name}")]),
        ..entry(AccountKind::User, &name, &name, 21_000 + number)
    }
}

fn members() -> BTreeMap<DirectoryId, Role> {
    MEMBERS.map(|id| (DirectoryId(id.to_owned()), Role::Member)).into()
}

/// Returns a tool that two people always maintain. An access rule that hides members empties the list.
fn maintained(name: &str, uid: i64) -> Entry {
    Entry { members: members(), ..entry(AccountKind::Tool, name, name, uid) }
}

fn admins() -> Entry {
    let dn = format!("cn={ADMINS},ou=groups,dc=example,dc=org");
    Entry { members: members(), ..Entry::new(AccountKind::Group, ADMINS, dn, ADMINS) }
}

/// A directory, Bursar's world, and the facts that Bursar should know.
struct Story {
    world: World,
    planner: Planner,
    entries: BTreeMap<usize, Entry>,
    /// Whether the directory has [`ADMINS`].
    has_group: bool,
    born: u32,
    /// How long each entry has been missing from complete reads, and when that was last counted.
    absent: BTreeMap<DirectoryId, (u64, Timestamp)>,
    /// The members of each entry in the newest complete read.
    maintained: BTreeMap<DirectoryId, BTreeSet<DirectoryId>>,
    /// How long complete reads have shown each account without access, and when that was last counted.
    ended: BTreeMap<AccountId, (u64, Timestamp)>,
    uids: BTreeMap<Uid, AccountId>,
    /// Accounts whose uid may change in the next read, by order of an administrator.
    adopts: BTreeSet<AccountId>,
    identities: BTreeMap<AccountId, Uid>,
    /// The entries of the directory at each read.
    before: Vec<Vec<Entry>>,
}

impl Story {
    fn new() -> Self {
        let mut story = Self {
            world: World::new(),
            planner: Planner::default(),
            entries: BTreeMap::new(),
            has_group: true,
            born: 0,
            absent: BTreeMap::new(),
            maintained: BTreeMap::new(),
            ended: BTreeMap::new(),
            adopts: BTreeSet::new(),
            uids: BTreeMap::new(),
            identities: BTreeMap::new(),
            before: Vec::new(),
        };
        story.world.policy.lifecycle.retention = std::time::Duration::from_secs(RETENTION);
        (0..TOOLS).for_each(|who| story.happens(&Happening::Comes(who)));
        story
    }

    fn happens(&mut self, what: &Happening) {
        let born = self.born;
        self.born += 1;
        let made = |who: usize| {
            let uid = 53_000 + i64::try_from(who).expect("the number is small");
            entry(AccountKind::Tool, &format!("{who}-{born}"), &format!("tool{who}"), uid)
        };
        match what {
            Happening::Comes(who) => drop(self.entries.entry(*who).or_insert_with(|| made(*who))),
            Happening::Goes(who) => drop(self.entries.remove(who)),
            Happening::Reborn(who) => drop(self.entries.insert(*who, made(*who))),
            Happening::Renamed(who, name) => self.edit(*who, |entry| entry.name = format!("tool{name}")),
            Happening::OtherUid(who, uid) => self.edit(*who, |entry| entry.posix = Some(posix(53_000 + uid))),
            Happening::Maintained(who, true) => self.edit(*who, |entry| {
                entry.members.insert(DirectoryId("alice".to_owned()), Role::Member);
            }),
            Happening::Maintained(who, false) => self.edit(*who, |entry| entry.members.clear()),
            Happening::Adopts(who) => self.adopt(*who),
            Happening::Inherits(who) => self.inherit(*who),
            Happening::Group(exists) => self.has_group = *exists,
            Happening::Marked(who, on) => self.edit(*who, |entry| entry.disabled = on.then(|| "mark: yes".to_owned())),
        }
    }

    fn adopt(&mut self, who: usize) {
        let Some(id) = self.entries.get(&who).map(|entry| entry.id.clone()) else { return };
        let found = self.world.ledger.accounts.values().find(|account| account.directory_id == id);
        let Some(account) = found.map(|account| account.id.clone()) else { return };
        self.adopts.insert(account.clone());
        self.world.order(&account, OrderKind::AdoptUid);
    }

    fn inherit(&mut self, who: usize) {
        let Some(name) = self.entries.get(&who).map(|entry| kubernetes_name(&entry.name)) else { return };
        let is_named = |account: &&Account| account.kind == AccountKind::Tool && account.kubernetes_name == name;
        let named = self.world.ledger.accounts.values().find(is_named).map(|account| account.id.clone());
        if let Some(account) = named {
            self.world.order(&account, OrderKind::AdoptAccount);
        }
    }

    fn edit(&mut self, who: usize, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.entries.get_mut(&who) {
            change(entry);
        }
    }

    /// Reads the directory, and returns whether the read is complete. Some tools and people always exist, because an
    /// empty read would not be complete.
    fn read(&mut self, view: View) -> Result<bool, TestCaseError> {
        let stays = [maintained("stays", 53_900), maintained("keeps", 53_901)];
        let stays = stays.into_iter().chain([entry(AccountKind::User, "alice", "alice", 20_001)]);
        let stays = stays.chain(self.has_group.then(admins));
        let all: Vec<Entry> = self.entries.values().cloned().chain(stays).chain((0..PEOPLE).map(person)).collect();
        self.before.push(all.clone());
        let newest = self.before.len() - 1;
        let (at, mut shown) = match view {
            View::Behind(count) => (newest.saturating_sub(count), self.before[newest.saturating_sub(count)].clone()),
            _ => (newest, all.clone()),
        };
        for entry in &mut shown {
            match view {
                View::WithoutAttributes => {
                    entry.mail = None;
                    entry.ssh_keys.clear();
                }
                View::WithoutMembers => entry.members.clear(),
                View::Foreign => entry.disabled = None,
                View::Whole | View::Cut | View::Behind(_) => {}
            }
        }
        if view == View::Foreign {
            shown.truncate(shown.len() - 5);
            shown.extend([maintained("foreign", 53_950), person(PEOPLE + 1)]);
        }
        let completeness = match view {
            View::Cut => Completeness::Partial { why: "size limit".to_owned() },
            View::Foreign => Completeness::Partial { why: "sentinel not found".to_owned() },
            _ => Completeness::Complete,
        };
        let mut snapshot = self.world.answer(shown, completeness);
        self.mark(&mut snapshot, at);
        snapshot.reads.iter_mut().for_each(|read| read.lacks_sentinel = view == View::Foreign);
        let before = self.world.ledger.accounts.clone();
        let entries = snapshot.reads.iter().flat_map(|read| &read.entries);
        let rejected = snapshot.reads.iter().flat_map(|read| &read.rejected).filter_map(|entry| entry.id.clone());
        let present: BTreeSet<DirectoryId> = entries.clone().map(|entry| entry.id.clone()).chain(rejected).collect();
        self.world.remember(&snapshot);
        let complete = self.world.ledger.sources[SOURCE].completeness == Completeness::Complete;
        prop_assert!(!(complete && matches!(view, View::Cut | View::WithoutMembers | View::Foreign)), "{view:?}");
        if view == View::Foreign {
            prop_assert_eq!(&before, &self.world.ledger.accounts, "another directory changes no account");
        }
        if complete {
            self.maintained =
                entries.map(|entry| (entry.id.clone(), entry.members.keys().cloned().collect())).collect();
        }
        // Another directory proves no presence.
        if view != View::Foreign {
            self.count(&present, complete);
        }
        self.count_ended(complete);
        for account in self.world.ledger.accounts.values().filter(|account| account.dn.contains("cn=p")) {
            let has = account.mail.is_some() && !account.ssh_keys.is_empty();
            prop_assert!(has, "{} lost what a rule hid", account.name);
        }
        Ok(complete)
    }

    /// Adds the replication state of the server. If the server is behind, the read becomes stale and empty.
    fn mark(&self, snapshot: &mut DirectorySnapshot, at: usize) {
        let stamp = Stamp::parse(&format!("20000101{:02}{:02}{:02}Z", at / 3600, at / 60 % 60, at % 60))
            .expect("the text is a timestamp");
        let marks = Marks { changes: BTreeMap::from([("dc=x 001".to_owned(), stamp)]), ..Marks::default() };
        let behind = self.world.ledger.marks.get(SOURCE).and_then(|known| known.marks.behind(&marks));
        for read in &mut snapshot.reads {
            read.marks = marks.clone();
            if let Some(behind) = &behind {
                let completeness = Completeness::Stale { server: "a".to_owned(), why: behind.why.clone() };
                *read = SourceRead { completeness, ..SourceRead::complete(SOURCE, read.kinds.clone(), Vec::new()) };
            }
        }
    }

    /// Counts how long accounts have had no access. If an account has access, its count starts again.
    fn count_ended(&mut self, complete: bool) {
        let now = self.world.now;
        for account in self.world.ledger.accounts.values() {
            if !matches!(account.state, Lifecycle::Suspended | Lifecycle::Archived) {
                self.ended.remove(&account.id);
            } else if complete {
                let (seconds, counted) = self.ended.entry(account.id.clone()).or_insert((0, now));
                *seconds += (now.as_second() - counted.as_second()).clamp(0, HOUR).unsigned_abs();
                *counted = now;
            }
        }
    }

    fn count(&mut self, present: &BTreeSet<DirectoryId>, complete: bool) {
        let now = self.world.now;
        for account in self.world.ledger.accounts.values() {
            let id = &account.directory_id;
            if present.contains(id) {
                self.absent.remove(id);
            } else if complete {
                let (seconds, counted) = self.absent.entry(id.clone()).or_insert((0, now));
                *seconds += (now.as_second() - counted.as_second()).clamp(0, HOUR).unsigned_abs();
                *counted = now;
            }
        }
    }

    /// Executes a cycle, and checks that every removal in it is proved.
    fn cycle(&mut self, complete: bool) -> Result<(), TestCaseError> {
        let incremental = self.planner.plan(self.world.inputs());
        prop_assert_eq!(&self.world.plan(), &incremental, "the incremental plan equals the full plan");
        let (approved, _) = self.world.guarded();
        let group = DirectoryId(ADMINS.to_owned());
        for plan in approved.accounts() {
            let id = &plan.before.directory_id;
            if plan.transition == Some(Transition::Suspend(Suspension::Absent)) {
                let absent = self.absent.get(id).map_or(0, |(seconds, _)| *seconds);
                prop_assert!(complete && absent >= DAY, "{} is suspended after {absent} s", plan.account);
            }
            if let Some(Transition::Suspend(Suspension::Disabled { .. })) = &plan.transition {
                prop_assert!(plan.before.disabled.is_some());
            }
            if plan.transition == Some(Transition::Suspend(Suspension::Left)) {
                let absent = self.absent.get(&group).map_or(0, |(seconds, _)| *seconds);
                prop_assert!(complete && absent >= DAY, "{} left a class after {absent} s", plan.account);
            }
            if plan.transition == Some(Transition::Resume) {
                let rests_on = match plan.before.suspension.as_deref() {
                    Some(Suspension::Absent) => Some(id),
                    Some(Suspension::Left) => Some(&group),
                    _ => None,
                };
                let is_absent = rests_on.is_some_and(|entry| self.absent.contains_key(entry));
                prop_assert!(!is_absent, "{} resumes without proof", plan.account);
            }
            if matches!(plan.transition, Some(Transition::Delete { .. })) {
                let waited = self.ended.get(&plan.id).map_or(0, |(seconds, _)| *seconds);
                let gone = self.absent.contains_key(id) || plan.before.disabled.is_some();
                prop_assert!(complete && gone && waited >= RETENTION, "{} is deleted after {waited} s", plan.account);
            }
            for member in plan.leaving.keys() {
                let still = self.maintained.get(id).is_some_and(|members| members.contains(member));
                prop_assert!(complete && !still, "{} loses {member} without proof", plan.account);
            }
        }
        self.world.execute(&approved);
        Ok(())
    }

    fn identities_are_one_to_one(&mut self) -> Result<(), TestCaseError> {
        for account in self.world.ledger.accounts.values() {
            let Some(posix) = &account.posix else { continue };
            let holder = self.uids.entry(posix.uid).or_insert_with(|| account.id.clone());
            prop_assert_eq!(&*holder, &account.id, "uid {} belongs to two accounts", posix.uid);
            let uid = self.identities.entry(account.id.clone()).or_insert(posix.uid);
            if self.adopts.contains(&account.id) {
                *uid = posix.uid;
            }
            prop_assert_eq!(*uid, posix.uid, "{} has another uid", &account.name);
            prop_assert_eq!(self.world.ledger.uid_history.get(&posix.uid), Some(&account.id));
        }
        // An order ends with the next complete read. Until then it stays in the ledger.
        let orders = &self.world.ledger.orders;
        self.adopts.retain(|id| orders.iter().any(|order| order.account == *id));
        Ok(())
    }
}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn no_history_of_a_directory_removes_access_without_proof(history in prop::collection::vec(step(), 1..40)) {
        let mut story = Story::new();
        let mut complete = story.read(View::Whole)?;
        story.cycle(complete)?;
        for (happenings, minutes, view) in &history {
            for what in happenings {
                story.happens(what);
            }
            story.world.now += SignedDuration::from_mins(*minutes);
            complete = story.read(*view)?;
            story.identities_are_one_to_one()?;
            story.cycle(complete)?;
        }
        for _ in 0..6 {
            story.cycle(complete)?;
        }
        let (approved, refusals) = story.world.guarded();
        let left: Vec<_> = approved.accounts().iter().filter(|plan| plan.changes_something()).collect();
        prop_assert!(left.is_empty(), "{left:#?}");
        prop_assert!(!refusals.is_empty() || story.world.plan().is_empty(), "{}", story.world.plan());
    }
}
