//! Tests that members leave within their own limits even if the removal of their account is refused.

use std::collections::BTreeSet;

use jiff::SignedDuration;

use crate::identity::{AccountId, AccountKind};
use crate::ledger::{Absence, Failure, Lifecycle, OrderKind, REMOVAL};
use crate::plan::testing::{SOURCE, World, prod};
use crate::policy::Limit;
use crate::snapshot::Completeness;

const fn count(count: u64) -> Limit {
    Limit { count, percent: None }
}

fn leaves(world: &mut World, group: &AccountId, member: &AccountId) {
    let member = world.account(member).directory_id.clone();
    world.account(group).leaving.insert(member);
}

fn has(world: &World, group: &AccountId, member: &AccountId) -> bool {
    world.ledger.accounts[group].members.contains_key(&world.ledger.accounts[member].directory_id)
}

/// Returns the names in bindings, without generations.
fn people(world: &World, namespace: &str) -> BTreeSet<String> {
    let bound = world.bound.iter().filter(|(key, _)| key.namespace.as_deref() == Some(namespace));
    bound.flat_map(|(_, names)| names).map(|name| name.split('#').next().unwrap_or_default().to_owned()).collect()
}

fn of(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| format!("bursar:user:{name}")).collect()
}

/// Returns two tools that ann and ben maintain.
fn tools() -> (World, [AccountId; 4]) {
    let mut world = World::new();
    let ann = world.add(AccountKind::User, "ann", Some(20_001));
    let ben = world.add(AccountKind::User, "ben", Some(20_002));
    let [foo, bar] =
        [("foo", 52_503), ("bar", 52_504)].map(|(name, uid)| world.add(AccountKind::Tool, name, Some(uid)));
    for tool in [&foo, &bar] {
        world.join(tool, &ann);
        world.join(tool, &ben);
    }
    world.cycles(3);
    (world, [ann, ben, foo, bar])
}

/// Makes the removal of an account due, and lets a limit refuse it: by a mark, or by an absence.
fn refused(world: &mut World, id: &AccountId, by_mark: bool) {
    let now = world.now;
    if by_mark {
        world.policy.limits.disable_per_cycle = count(0);
        world.account(id).disabled = Some("mark".to_owned());
    } else {
        world.policy.limits.suspend_per_cycle = count(0);
        let absence = Absence { since: now, counted_at: now, seconds: 60 * 3600, due: now };
        world.account(id).absence = Some(absence);
    }
}

#[test]
fn a_leaving_member_revokes_the_certificate_of_a_tool_whose_suspension_is_refused() {
    for by_mark in [true, false] {
        let (mut world, [ann, ben, foo, _]) = tools();
        let before = world.ledger.accounts[&foo].generation;
        refused(&mut world, &foo, by_mark);
        leaves(&mut world, &foo, &ann);
        world.cycles(3);
        let account = &world.ledger.accounts[&foo];
        assert!(account.state == Lifecycle::Active && account.generation > before, "by mark: {by_mark}");
        assert!(!has(&world, &foo, &ann) && has(&world, &foo, &ben));
        let now = format!("bursar:tool:foo#{}", account.generation);
        assert!(world.bound.values().flatten().any(|name| *name == now), "{:?}", world.bound);
        let (approved, refusals) = world.guarded();
        assert!(approved.accounts().iter().all(|plan| !plan.changes_something()), "{:?}", approved.accounts());
        assert_eq!(refusals.len(), 1);
    }
}

#[test]
fn members_of_a_tool_whose_suspension_is_refused_have_their_own_limit() {
    for by_mark in [true, false] {
        let (mut world, [ann, ben, foo, bar]) = tools();
        world.policy.limits.remove_members_per_day = count(9);
        world.policy.limits.remove_members_per_cycle = count(1);
        refused(&mut world, &foo, by_mark);
        leaves(&mut world, &foo, &ann);
        leaves(&mut world, &bar, &ben);
        world.cycle();
        assert!(!has(&world, &bar, &ben) && has(&world, &foo, &ann), "the limit allows one member; by mark: {by_mark}");
        world.policy.limits.remove_members_per_cycle = count(0);
        world.cycle();
        assert!(has(&world, &foo, &ann), "the limit allows no member");
        let (_, refusals) = world.guarded();
        let limits: Vec<&str> = refusals.iter().map(|refusal| refusal.limit.as_str()).collect();
        assert!(limits.contains(&"remove_members_per_cycle"), "{limits:?}");
        world.policy.limits.remove_members_per_cycle = count(1);
        world.cycle();
        assert!(!has(&world, &foo, &ann));
    }
}

#[test]
fn nobody_leaves_a_tool_whose_suspension_is_refused_by_an_incomplete_read() {
    let (mut world, [ann, _, foo, _]) = tools();
    refused(&mut world, &foo, true);
    leaves(&mut world, &foo, &ann);
    world.source(Completeness::Partial { why: format!("size limit of {SOURCE}") });
    world.cycles(3);
    assert!(has(&world, &foo, &ann));
    assert_eq!(world.guarded().1.len(), 2, "{:?}", world.guarded().1);
    world.source(Completeness::Complete);
    world.cycle();
    assert!(!has(&world, &foo, &ann));
}

#[test]
fn people_leave_a_workspace_whose_suspension_is_refused_and_others_stay() {
    for by_mark in [true, false] {
        let (mut world, alice, algebra) = World::in_course();
        let [bob, carol] = [("bob", 20_002), ("carol", 20_003)].map(|(name, uid)| {
            let id = world.add(AccountKind::User, name, Some(uid));
            world.account(&id).dn = format!("uid={name},ou=students,dc=example,dc=org");
            world.join(&algebra, &id);
            id
        });
        world.cycles(3);
        let limits = &mut world.policy.limits;
        (limits.remove_members_per_day, limits.suspend_per_day, limits.disable_per_day) =
            (count(9), count(9), count(9));
        refused(&mut world, &algebra, by_mark);
        leaves(&mut world, &algebra, &bob);
        world.cycles(3);
        assert_eq!(people(&world, "workspace-algebra"), of(&["alice", "carol"]), "by mark: {by_mark}");
        // The refused suspension of carol keeps nobody else in the workspace.
        world.policy.limits.disable_per_cycle = count(0);
        world.account(&carol).disabled = Some("mark".to_owned());
        leaves(&mut world, &algebra, &alice);
        world.cycles(3);
        assert_eq!(people(&world, "workspace-algebra"), of(&["carol"]), "by mark: {by_mark}");
        world.policy.limits.disable_per_cycle = count(9);
        world.policy.limits.suspend_per_cycle = count(9);
        world.cycles(3);
        assert!(people(&world, "workspace-algebra").is_empty());
        assert!(world.plan().is_empty(), "{}", world.plan());
    }
}

#[test]
fn a_suspended_person_leaves_a_workspace_whose_suspension_is_refused() {
    let (mut world, alice, algebra) = World::in_course();
    refused(&mut world, &algebra, false);
    world.cycles(3);
    assert_eq!(people(&world, "workspace-algebra"), of(&["alice"]));
    world.account(&alice).disabled = Some("mark".to_owned());
    world.cycles(3);
    assert!(people(&world, "workspace-algebra").is_empty());
    assert_eq!(world.ledger.accounts[&algebra].state, Lifecycle::Active);
}

type Happens<'a> = &'a dyn Fn(&mut World);

#[test]
fn a_failed_removal_in_a_workspace_delays_no_other_removal() {
    let (mut site, alice, algebra) = World::in_course();
    let bob = site.add(AccountKind::User, "bob", Some(20_002));
    "uid=bob,ou=students,dc=example,dc=org".clone_into(&mut site.account(&bob).dn);
    site.join(&algebra, &bob);
    site.cycles(3);
    assert_eq!(people(&site, "workspace-algebra"), of(&["alice", "bob"]));
    let wait = SignedDuration::from_secs(30);
    let fails = |world: &mut World| {
        let (step, now) = (REMOVAL.to_owned(), world.now);
        let failure = Failure { step, attempts: 3, next_try: now + wait, ..Failure::begun(now) };
        world.ledger.failures.insert((algebra.clone(), prod()), failure);
    };
    let removes =
        |world: &World| world.plan().accounts.iter().any(|plan| plan.id == algebra && !plan.narrowing.is_empty());
    let happenings: [(&str, Happens<'_>); 3] = [
        ("a member leaves", &|world| leaves(world, &algebra, &alice)),
        ("a member is disabled", &|world| world.account(&alice).disabled = Some("mark".to_owned())),
        ("a member is revoked", &|world| {
            world.order(&alice, OrderKind::Revoke);
        }),
    ];
    for (what, happens) in happenings {
        let mut world = site.clone();
        fails(&mut world);
        happens(&mut world);
        assert!(removes(&world), "{what}");
        // The daemon is killed after it recorded its intents.
        let (approved, _) = world.guarded();
        world.execute_until(&approved, 0);
        assert!(removes(&world), "{what}, after a restart");
        fails(&mut world);
        assert!(!removes(&world), "{what}: the same removal waits for its next try");
        world.now += wait;
        assert!(removes(&world), "{what}, after the backoff");
    }
    // A removal that the guard refuses ends no backoff.
    let mut world = site.clone();
    fails(&mut world);
    world.policy.limits.remove_members_per_cycle = count(0);
    leaves(&mut world, &algebra, &alice);
    let (approved, _) = world.guarded();
    world.execute_until(&approved, 0);
    assert_eq!(world.ledger.failures[&(algebra.clone(), prod())].attempts, 3);
}
