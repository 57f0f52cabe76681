//! The events of the random histories, and the site in which they happen.

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;
use proptest::prelude::*;

use crate::identity::{AccountId, AccountKind, DirectoryId};
use crate::inventory::adopted::FoundNamespace;
use crate::kinds::{ManagedKind, ObjectKey, WatchedKind};
use crate::ledger::{Absence, Failure, LedgerState, Lifecycle, Note, Order, OrderKind, Suspension};
use crate::plan::testing::{World, course, prod, profile};
use crate::policy::{Class, From, Limit, Selector, When};
use crate::snapshot::Completeness;

/// An event for the account with this number, or for all accounts.
#[derive(Debug, Clone)]
pub(super) enum Happening {
    Absent(usize, u64),
    Back(usize),
    Disabled(usize, bool),
    Rename(usize),
    Ordered(usize, OrderKind),
    Held(usize, bool),
    Loses(usize),
    Fails(usize),
    Edited(usize),
    Vanished(usize),
    Source(bool),
    Cluster(bool),
    Hours(i64),
    Limit(u64),
    Quota(u8),
    Role(bool),
    Blind(bool),
    /// Somebody deletes the tool's namespace, which a finalizer keeps; `false`: it is gone.
    Terminating(usize, bool),
    /// The class of students, or the class that adopts namespaces, selects nothing; `false`: it selects again.
    Selector(bool),
    /// The ledger is copied.
    Copied,
    /// The ledger is rolled back to the copy, and takes over the clusters.
    RolledBack,
    /// The copy runs elsewhere and takes over the clusters. The former ledger is the copy from now on.
    Elsewhere,
}

pub(super) fn happening() -> impl Strategy<Value = Happening> {
    let who = 0..ACCOUNTS;
    let order = prop_oneof![Just(OrderKind::Suspend), Just(OrderKind::Resume), Just(OrderKind::Revoke)];
    prop_oneof![
        (who.clone(), 0_u64..48).prop_map(|(who, hours)| Happening::Absent(who, hours)),
        who.clone().prop_map(Happening::Back),
        (who.clone(), any::<bool>()).prop_map(|(who, on)| Happening::Disabled(who, on)),
        who.clone().prop_map(Happening::Rename),
        (who.clone(), order).prop_map(|(who, order)| Happening::Ordered(who, order)),
        (who.clone(), any::<bool>()).prop_map(|(who, on)| Happening::Held(who, on)),
        who.clone().prop_map(Happening::Loses),
        who.prop_map(Happening::Fails),
        (0_usize..40).prop_map(Happening::Edited),
        (0_usize..40).prop_map(Happening::Vanished),
        any::<bool>().prop_map(Happening::Source),
        any::<bool>().prop_map(Happening::Cluster),
        (1_i64..80).prop_map(Happening::Hours),
        (0_u64..4).prop_map(Happening::Limit),
        (1_u8..4).prop_map(Happening::Quota),
        any::<bool>().prop_map(Happening::Role),
        any::<bool>().prop_map(Happening::Blind),
        (4..ACCOUNTS, any::<bool>()).prop_map(|(who, on)| Happening::Terminating(who, on)),
        any::<bool>().prop_map(Happening::Selector),
        Just(Happening::Copied),
        Just(Happening::RolledBack),
        Just(Happening::Elsewhere),
    ]
}

/// The site has four tools with two maintainers each, two people (one of them an admin), one student, and the group of
/// admins.
const ACCOUNTS: usize = 8;

pub(super) fn site() -> (World, Vec<AccountId>) {
    let mut world = World::new();
    let alice = world.add(AccountKind::User, "alice", Some(20_001));
    let bob = world.add(AccountKind::User, "bob", Some(20_002));
    let student = world.add(AccountKind::User, "student", Some(20_003));
    world.account(&student).dn = "uid=student,ou=students,dc=example,dc=org".to_owned();
    let admins = world.add(AccountKind::Group, "k8s-admins", None);
    world.join(&admins, &alice);
    let mut ids = vec![alice.clone(), bob.clone(), student, admins];
    for number in 0..4 {
        let tool = world.add(AccountKind::Tool, &format!("tool{number}"), Some(52_500 + number));
        world.join(&tool, &alice);
        world.join(&tool, &bob);
        ids.push(tool);
    }
    assert_eq!(ids.len(), ACCOUNTS);
    (world, ids)
}

/// Adds a workspace with the student and bob, and a foreign namespace of the student, which a class adopts.
pub(super) fn with_workspace(world: &mut World, ids: &[AccountId]) {
    let course = Class { when: Some(When::Base("cn=algebra,ou=groups,dc=example,dc=org".to_owned())), ..course() };
    let algebra = world.add(AccountKind::Group, "algebra", None);
    ids[1..3].iter().for_each(|member| world.join(&algebra, member));
    for class in [course, profile()] {
        world.policy.classes.insert(class.name.clone(), class);
    }
    let namespace = "profile-student".to_owned().try_into().expect("the text is a namespace name");
    let found = FoundNamespace {
        uid: "student".to_owned(),
        selectors: BTreeSet::from(["part-of=profiles".to_owned()]),
        annotations: BTreeMap::from([("owner".to_owned(), "student".to_owned())]),
        ..FoundNamespace::default()
    };
    world.inventory.adopted.entry(prod()).or_default().insert(namespace, found);
}

pub(super) fn happen(world: &mut World, ids: &[AccountId], what: &Happening) {
    let now = world.now;
    let note = Note { actor: "root".to_owned(), reason: "because".to_owned(), ticket: None, at: now };
    match what {
        Happening::Absent(who, hours) => {
            let absence = Absence { since: now, counted_at: now, seconds: hours * 3600, due: now };
            world.account(&ids[*who]).absence = Some(absence);
        }
        Happening::Back(who) => world.account(&ids[*who]).absence = None,
        Happening::Disabled(who, on) => world.account(&ids[*who]).disabled = on.then(|| "mark: yes".to_owned()),
        Happening::Rename(who) => world.account(&ids[*who]).name.push('x'),
        Happening::Ordered(who, what) => {
            let id = world.ledger.orders.last().map_or(1, |order| order.id + 1);
            world.ledger.orders.push(Order {
                id,
                account: ids[*who].clone(),
                what: *what,
                note,
                bulk: None,
                object: None,
            });
        }
        Happening::Held(who, true) => drop(world.ledger.holds.insert(ids[*who].clone(), note)),
        Happening::Held(who, false) => drop(world.ledger.holds.remove(&ids[*who])),
        Happening::Loses(who) => {
            let account = world.account(&ids[*who]);
            let first: Option<DirectoryId> = account.members.keys().next().cloned();
            account.leaving.extend(first);
        }
        Happening::Fails(who) => {
            let failure = Failure {
                step: "apply".to_owned(),
                reason: "no".to_owned(),
                since: now,
                attempts: 1,
                next_try: now + SignedDuration::from_mins(1),
            };
            world.ledger.failures.insert((ids[*who].clone(), prod()), failure);
        }
        Happening::Edited(nth) => {
            if world.inventory.clusters.contains_key(&prod())
                && let Some(found) = world.cluster().objects.values_mut().nth(*nth)
            {
                found.digest = "edited".into();
            }
        }
        Happening::Vanished(nth) => {
            if world.inventory.clusters.contains_key(&prod()) {
                let key = world.cluster().objects.keys().nth(*nth).cloned();
                key.map(|key| world.cluster().objects.remove(&key));
            }
        }
        Happening::Source(true) => world.source(Completeness::Complete),
        Happening::Source(false) => world.source(Completeness::Partial { why: "cut".to_owned() }),
        Happening::Cluster(_) => {}
        Happening::Hours(hours) => world.now += SignedDuration::from_hours(*hours),
        Happening::Limit(count) => {
            let limit = Limit { count: *count, percent: None };
            let limits = &mut world.policy.limits;
            (limits.suspend_per_cycle, limits.suspend_per_day) = (limit, limit);
            (limits.disable_per_cycle, limits.disable_per_day) = (limit, limit);
            (limits.remove_access_per_cycle, limits.remove_access_per_day) = (limit, limit);
        }
        Happening::Blind(on) => {
            if world.inventory.clusters.contains_key(&prod()) {
                let kinds = ManagedKind::ALL.iter().map(|kind| WatchedKind::from(*kind));
                world.cluster().blind = kinds.filter(|kind| *on && !kind.is_essential()).collect();
            }
        }
        Happening::Role(given) => {
            let tool = world.policy.classes.get_mut("tool").expect("the policy has this class");
            tool.roles.truncate(1);
            tool.roles.extend(given.then(|| "view".to_owned()));
        }
        Happening::Terminating(who, on) => terminating(world, &ids[*who], *on),
        Happening::Selector(nothing) => {
            let classes = &mut world.policy.classes;
            let student = classes.get_mut("student").expect("the policy has this class");
            let base = if *nothing { "ou=nobody" } else { "ou=students" };
            student.when = Some(When::Base(format!("{base},dc=example,dc=org")));
            if let Some(From::Adopted(adopts)) = classes.get_mut("profile").map(|class| &mut class.from) {
                let selector = if *nothing { "part-of=others" } else { "part-of=profiles" };
                adopts.selector = Selector::parse(selector).expect("the selector is valid");
            }
        }
        Happening::Copied | Happening::RolledBack | Happening::Elsewhere => {}
        Happening::Quota(pods) => {
            let tool = world.policy.classes.get_mut("tool").expect("the policy has this class");
            tool.quota.insert("pods".to_owned(), pods.to_string());
        }
    }
}

fn terminating(world: &mut World, id: &AccountId, begins: bool) {
    let tenant = world.ledger.tenants.get(&(id.clone(), prod()));
    let Some(namespace) = tenant.and_then(|tenant| tenant.namespace.clone()) else { return };
    if !world.inventory.clusters.contains_key(&prod()) {
        return;
    }
    let key = ObjectKey::namespace(&prod(), &namespace);
    let Some(found) = world.cluster().objects.get_mut(&key) else { return };
    if begins {
        found.deleting = true;
    } else if found.deleting {
        let is_in = |known: &ObjectKey| known.namespace.as_deref() == Some(namespace.as_str());
        world.cluster().objects.retain(|known, _| *known != key && !is_in(known));
        world.bound.retain(|known, _| !is_in(known));
    }
}

/// A copy of the ledger, with the names in bindings at that time.
#[derive(Debug, Default)]
pub(super) struct LedgerCopy {
    ledger: Option<LedgerState>,
    bound: BTreeMap<ObjectKey, Vec<String>>,
}

impl LedgerCopy {
    /// Copies the ledger, or lets the copy take over. Returns the broken promise, if any.
    pub(super) fn happens(&mut self, world: &mut World, what: &Happening) -> Result<(), String> {
        let older = match (what, &self.ledger) {
            (Happening::Copied, _) => {
                *self = Self { ledger: Some(world.ledger.clone()), bound: world.bound.clone() };
                return Ok(());
            }
            (Happening::RolledBack | Happening::Elsewhere, Some(older)) => older.clone(),
            _ => return Ok(()),
        };
        let is_less = |(key, names): (&ObjectKey, &Vec<String>)| {
            world.bound.get(key).is_some_and(|now| names.iter().any(|name| !now.contains(name)))
        };
        let is_taken = self.bound.iter().any(is_less);
        let objects = &world.inventory.clusters[&prod()].objects;
        let is_sealed = |id: &AccountId| {
            let place = world.ledger.tenants.get(&(id.clone(), prod())).and_then(|tenant| tenant.namespace.as_ref());
            place.is_some_and(|namespace| objects.contains_key(&ObjectKey::namespace(&prod(), namespace)))
        };
        let suspended = world.ledger.accounts.values().filter(|account| {
            account.state == Lifecycle::Suspended && Suspension::is_ordered(account.suspension.as_deref())
        });
        let is_known = |id: &AccountId| !world.ledger.failures.contains_key(&(id.clone(), prod()));
        let suspended: Vec<AccountId> =
            suspended.map(|account| account.id.clone()).filter(|id| is_sealed(id) && is_known(id)).collect();
        let former = Self { ledger: Some(world.ledger.clone()), bound: world.bound.clone() };
        let is_noticed = world.take_over(older);
        if is_taken && !is_noticed {
            return Err("access was taken away since the copy, and the marks do not show it".to_owned());
        }
        if let Some(id) = suspended.iter().find(|id| world.ledger.accounts[*id].state == Lifecycle::Active) {
            return Err(format!("{} was suspended, and is active again", world.ledger.accounts[id].name));
        }
        if matches!(what, Happening::Elsewhere) {
            *self = former;
        }
        Ok(())
    }
}
