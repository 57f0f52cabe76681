//! Tests that each workspace gets its own uid, which no other account had or gets.

use std::collections::BTreeMap;

use super::*;
use crate::identity::{AccountId, ClusterName, DirectoryId};
use crate::ledger::Lifecycle;
use crate::ledger::cluster_recovery::{Facts, Tenancy, learn};
use crate::plan::testing::{World, course, workspace_of};

fn uid(number: i64) -> Uid {
    Uid::try_from(number).expect("the uid is valid")
}

fn range(first: i64, last: i64) -> UidRange {
    UidRange { first: uid(first), last: uid(last) }
}

/// Returns a site whose workspaces get uids from `range`.
fn world(range: UidRange) -> World {
    let mut world = World::new();
    let mut course = course();
    workspace_of(&mut course).uid_range = Some(range);
    world.policy.classes.insert(course.name.clone(), course);
    world
}

fn group(world: &mut World, name: &str, gid: i64) -> AccountId {
    let id = world.add(AccountKind::Group, name, None);
    world.account(&id).gid = gid.try_into().ok();
    id
}

fn own(world: &World, id: &AccountId) -> Option<(u32, u32)> {
    let posix = world.ledger.accounts[id].posix.as_ref()?;
    Some((posix.uid.get(), posix.gid.get()))
}

#[test]
fn each_workspace_gets_a_uid_once_and_with_the_gid_of_its_group() {
    let mut world = world(range(70_000, 70_009));
    let algebra = group(&mut world, "algebra", 600);
    world.cycle();
    assert_eq!(own(&world, &algebra), Some((70_000, 600)));
    let maths = group(&mut world, "maths", 601);
    world.cycle();
    assert_eq!((own(&world, &algebra), own(&world, &maths)), (Some((70_000, 600)), Some((70_001, 601))));
    assert_eq!(world.ledger.uid_history.get(&uid(70_001)), Some(&maths));
    assert_eq!(highest(&world.ledger, &world.policy), BTreeSet::from([uid(70_001)]));
}

#[test]
fn the_uid_of_an_ended_workspace_is_never_assigned_again() {
    let mut world = world(range(70_000, 70_009));
    let algebra = group(&mut world, "algebra", 600);
    world.cycle();
    world.account(&algebra).state = Lifecycle::Deleted;
    let maths = group(&mut world, "maths", 601);
    // Lower uids are free, but stay unused: the ledger may have forgotten a workspace that had such a uid.
    world.ledger.used_uids.insert(uid(70_003), world.now);
    world.cycle();
    assert_eq!(own(&world, &maths), Some((70_004, 601)));
}

#[test]
fn uids_that_the_directory_uses_are_skipped() {
    let mut world = world(range(70_000, 70_009));
    let old = world.add(AccountKind::Tool, "old", Some(70_000));
    world.ledger.uid_history.insert(uid(70_000), old);
    let algebra = group(&mut world, "algebra", 600);
    world.cycle();
    assert_eq!(own(&world, &algebra), Some((70_001, 600)));
}

#[test]
fn a_used_up_range_blocks_only_new_workspaces() {
    let mut world = world(range(70_000, 70_000));
    let algebra = group(&mut world, "algebra", 600);
    world.cycle();
    let maths = group(&mut world, "maths", 601);
    world.cycle();
    let plan = world.plan();
    assert_eq!((own(&world, &algebra), own(&world, &maths)), (Some((70_000, 600)), None));
    let states = [&algebra, &maths].map(|id| world.ledger.accounts[id].state);
    assert_eq!(states, [Lifecycle::Active, Lifecycle::New]);
    let [notice] = plan.notices.as_slice() else { panic!("{:?}", plan.notices) };
    assert_eq!(notice.account.to_string(), "group:maths");
    assert!(notice.text.contains("uid_range 70000-70000 of class course is used up"), "{}", notice.text);
}

#[test]
fn a_group_without_a_gid_gets_a_notice_instead_of_a_workspace() {
    let mut world = world(range(70_000, 70_009));
    let algebra = world.add(AccountKind::Group, "algebra", None);
    world.cycle();
    let plan = world.plan();
    assert_eq!(world.ledger.accounts[&algebra].state, Lifecycle::New);
    assert!(plan.notices[0].text.contains("give its entry a gidNumber"), "{:?}", plan.notices);
}

#[test]
fn a_class_without_a_range_assigns_no_uids() {
    let mut world = World::new();
    world.policy.classes.insert("course".to_owned(), course());
    let algebra = group(&mut world, "algebra", 600);
    world.cycle();
    assert_eq!((own(&world, &algebra), world.ledger.accounts[&algebra].state), (None, Lifecycle::Active));
}

fn tenancy(world: &World, id: &AccountId) -> Tenancy {
    let account = &world.ledger.accounts[id];
    let identity = crate::contract::Identity {
        cluster: ClusterName("prod".into()),
        namespace: format!("workspace-{}", account.kubernetes_name).try_into().expect("the namespace name is valid"),
        id: id.clone(),
        directory_id: account.directory_id.clone(),
        account: account.account_name(),
        class: "course".to_owned(),
        posix: account.posix.clone(),
        generation: account.generation,
        state: crate::contract::TenantState::Active,
        exceptions: std::collections::BTreeSet::new(),
    };
    Tenancy { identity, created_at: world.now }
}

/// Returns the ledger after it learned from the clusters. The directory has only the entries of `listed`.
fn learned(world: &World, ledger: LedgerState, facts: &Facts, listed: &[&AccountId]) -> LedgerState {
    let listed: Vec<&DirectoryId> = listed.iter().map(|id| &world.ledger.accounts[*id].directory_id).collect();
    let source = |id: &DirectoryId| listed.contains(&id).then(|| "people".to_owned());
    let lesson = learn(&ledger, facts, &world.policy, &source, "carol", world.now);
    let mut ledger = ledger;
    ledger.apply_all(&lesson.changes);
    ledger
}

#[test]
fn a_lost_ledger_assigns_no_uid_that_a_cluster_shows() {
    let mut world = world(range(70_000, 70_009));
    let [algebra, maths] = [("algebra", 600), ("maths", 601)].map(|(name, gid)| group(&mut world, name, gid));
    world.cycle();
    let facts = Facts {
        tenancies: vec![tenancy(&world, &algebra), tenancy(&world, &maths)],
        marked_uids: BTreeSet::from([uid(70_005)]),
        ..Facts::default()
    };
    // No directory has group maths any more, but its namespace stays and runs with its uid.
    let ledger = learned(&world, LedgerState::default(), &facts, &[&algebra]);
    let before = world.ledger.accounts[&algebra].posix.clone();
    assert_eq!((&ledger.accounts[&algebra].posix, ledger.accounts.len()), (&before, 1));
    assert_eq!(ledger.accounts[&algebra].gid, before.map(|posix| posix.gid));
    let of_maths = world.ledger.accounts[&maths].posix.as_ref().expect("maths has a uid").uid;
    assert!(ledger.used_uids.contains_key(&of_maths) && ledger.used_uids.contains_key(&uid(70_005)));
    assert_eq!(next(&ledger, &given(&ledger), range(70_000, 70_009)), Some(uid(70_006)));
}

#[test]
fn an_older_ledger_learns_the_uids_that_were_assigned_since() {
    let mut world = world(range(70_000, 70_009));
    let algebra = group(&mut world, "algebra", 600);
    let before = world.ledger.clone();
    world.cycle();
    let facts = Facts { tenancies: vec![tenancy(&world, &algebra)], ..Facts::default() };
    let ledger = learned(&world, before.clone(), &facts, &[&algebra]);
    assert_eq!(ledger.accounts[&algebra].posix, world.ledger.accounts[&algebra].posix);
    assert_eq!(ledger.uid_history.get(&uid(70_000)), Some(&algebra));
    // If the uid was assigned to another account since then, neither account gets the uid of the other.
    let mut other = before;
    let maths = AccountId("maths".to_owned().into());
    other.uid_history = BTreeMap::from([(uid(70_000), maths)]).into();
    let ledger = learned(&world, other, &facts, &[&algebra]);
    assert_eq!(ledger.accounts[&algebra].posix, None);
}
