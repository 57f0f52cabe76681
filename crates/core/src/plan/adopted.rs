//! Decides the owner of each foreign namespace that a class adopts, from what the clusters show and the ledger records.
//!
//! Anybody with write access to the namespace can set its annotation. Therefore the annotation counts only if it names
//! a known account that the class allows. It means the account that had the name when the annotation was first read,
//! even if another account gets that name later.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Action, tenant};
use crate::desired::Groups;
use crate::identity::{AccountId, AccountKind, ClusterName, NamespaceName};
use crate::inventory::Inventory;
use crate::inventory::adopted::{FoundNamespace, FoundNamespaces};
use crate::kinds::ObjectKey;
use crate::ledger::adopted::AdoptedNamespace;
use crate::ledger::change::{Change, Event};
use crate::ledger::{Account, LedgerState, Lifecycle};
use crate::policy::{Adopts, Class, Policy};
use crate::select::admits;

/// A namespace that a class would adopt, but that has no owner.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Unowned {
    pub cluster: ClusterName,
    pub namespace: NamespaceName,
    pub class: String,
    /// The reason and the remedy, as a text for administrators.
    pub why: String,
}

impl Unowned {
    /// Returns all namespaces without an owner in the ledger.
    #[must_use]
    pub fn of(ledger: &LedgerState) -> Vec<Self> {
        let unowned = ledger.adopted.iter().filter_map(|((cluster, namespace), known)| {
            let why = known.why.clone()?;
            Some(Self { cluster: cluster.clone(), namespace: namespace.clone(), class: known.class.clone(), why })
        });
        unowned.collect()
    }
}

impl std::fmt::Display for Unowned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { cluster, namespace, class, why } = self;
        write!(f, "namespace {namespace}  has no owner in cluster {cluster} (class {class}): {why}")
    }
}

/// Whether an object of an account is in a foreign namespace. Only kinds that Bursar writes into adopted namespaces
/// count; `is_own` returns whether a namespace is the account's own.
#[must_use]
pub fn is_of_others(key: &ObjectKey, is_own: impl Fn(&str) -> bool) -> bool {
    key.kind.in_adopted() && key.namespace.as_deref().is_some_and(|there| !is_own(there))
}

/// Returns the foreign namespace that the step writes to, if any.
#[must_use]
pub fn foreign_namespace(action: &Action, is_own: impl Fn(&str) -> bool) -> Option<&str> {
    match action {
        Action::SetLevel { namespace, .. } => Some(namespace.as_str()),
        Action::Apply { key, .. } | Action::Delete { key, .. } if is_of_others(key, &is_own) => {
            key.namespace.as_deref()
        }
        _ => None,
    }
}

/// Returns the steps that set the Pod Security level of adopted namespaces without one. A namespace with a weaker level
/// only causes a notice.
pub(super) fn levels(look: tenant::Look<'_>, notices: &mut Vec<String>) -> Vec<Action> {
    let Some(shown) = look.inventory.adopted.get(look.cluster) else { return Vec::new() };
    let mut actions = Vec::new();
    for (namespace, (class, level)) in &look.tenant.levels {
        let Some(found) = shown.get(namespace).filter(|found| !found.ours && !found.deleting) else { continue };
        if found.level.is_none() {
            let (cluster, uid) = (look.cluster.clone(), found.uid.clone());
            actions.push(Action::SetLevel { cluster, namespace: namespace.clone(), uid, level: *level });
        }
        notices.extend(found.weaker(namespace, class, *level).map(|weaker| weaker.to_string()));
    }
    actions
}

/// Returns the changes of owners after this look at the clusters. If a cluster does not answer, only changes of owner
/// that have already begun are completed.
#[must_use]
pub fn look(ledger: &LedgerState, inventory: &Inventory, policy: &Policy, now: Timestamp) -> (Vec<Change>, Vec<Event>) {
    let (mut changes, mut events) = (Vec::new(), Vec::new());
    let classes: Vec<(&Class, &Adopts)> =
        policy.classes.values().filter_map(|class| Some((class, class.adopts()?))).collect();
    if classes.is_empty() && ledger.adopted.is_empty() {
        return (changes, events);
    }
    let groups = Groups::of(ledger, &policy.lifecycle);
    let nothing = FoundNamespaces::new();
    for cluster in policy.clusters.keys() {
        let here: Vec<_> = classes.iter().copied().filter(|(class, _)| class.clusters.contains(cluster)).collect();
        let shown = if here.is_empty() {
            inventory.clusters.contains_key(cluster).then_some(&nothing)
        } else {
            inventory.adopted.get(cluster)
        };
        let known = ledger.adopted.keys().filter(|(known, _)| known == cluster).map(|(_, namespace)| namespace);
        let names: BTreeSet<&NamespaceName> = known.chain(shown.into_iter().flat_map(BTreeMap::keys)).collect();
        for name in names {
            let place = (cluster.clone(), name.clone());
            let before = ledger.adopted.get(&place);
            let look = Look { ledger, groups: &groups, classes: &here, cluster, name, before, now };
            let after = match shown {
                Some(shown) => look.judged(shown.get(name).filter(|found| !found.ours)),
                None => before.map(|before| look.handed_over(before.clone())),
            };
            if before != after.as_ref() {
                events.extend(told(ledger, &place, before, after.as_ref()));
                changes.push(Change::Adopted(place.0, place.1, after));
            }
        }
    }
    (changes, events)
}

/// A foreign namespace and the inputs for the choice of its owner.
struct Look<'a> {
    ledger: &'a LedgerState,
    groups: &'a Groups<'a>,
    classes: &'a [(&'a Class, &'a Adopts)],
    cluster: &'a ClusterName,
    name: &'a NamespaceName,
    before: Option<&'a AdoptedNamespace>,
    now: Timestamp,
}

impl Look<'_> {
    /// Returns the record of the namespace; `None` if no class adopts it and nothing of Bursar is left in it.
    fn judged(&self, found: Option<&FoundNamespace>) -> Option<AdoptedNamespace> {
        let classes = found.map_or_else(Vec::new, |found| self.adopting(found));
        let (Some(found), Some((class, adopts))) = (found, classes.first()) else {
            let before = self.before?;
            let left = before.account.is_some() || self.ledger.has_objects_in(self.cluster, self.name);
            let why = format!("it is gone, or class {} no longer selects it", before.class);
            return left.then(|| self.since(AdoptedNamespace { account: None, why: Some(why), ..before.clone() }));
        };
        let owner = found.annotations.get(&adopts.owner_annotation).cloned();
        let same = self.before.filter(|before| before.uid == found.uid && before.owner == owner);
        let named = match same.and_then(|before| before.named.clone()) {
            Some(named) => Ok(named),
            None => self.named(owner.as_deref(), &adopts.owner_annotation),
        };
        let others: Vec<&str> = classes.iter().skip(1).map(|(class, _)| class.name.as_str()).collect();
        let (named, why) = match named {
            _ if !others.is_empty() => {
                let others = others.join(", ");
                (None, Some(format!("class {others} adopts it too; change the selectors so that only one matches")))
            }
            Ok(named) => {
                let why = self.refused(&named, class, found);
                (Some(named), why)
            }
            Err(why) => (None, Some(why)),
        };
        let after = AdoptedNamespace {
            uid: found.uid.clone(),
            class: class.name.clone(),
            owner,
            named,
            account: self.before.and_then(|before| before.account.clone()),
            why,
            since: self.now,
        };
        Some(self.handed_over(after))
    }

    fn adopting(&self, found: &FoundNamespace) -> Vec<(&Class, &Adopts)> {
        let takes = |adopts: &Adopts| found.selectors.contains(adopts.selector.as_str());
        self.classes.iter().copied().filter(|(_, adopts)| takes(adopts)).collect()
    }

    /// Sets the owner. If the owner changes, the namespace has no owner for a while, because the objects of the former
    /// owner are removed before the next owner gets any.
    fn handed_over(&self, mut after: AdoptedNamespace) -> AdoptedNamespace {
        let next = after.named.clone().filter(|_| after.why.is_none());
        let passed = || after.account.is_none() && !self.ledger.is_kept_from(next.as_ref(), self.cluster, self.name);
        after.account = match &next {
            Some(_) if after.account == next || passed() => next,
            _ => None,
        };
        self.since(after)
    }

    fn since(&self, after: AdoptedNamespace) -> AdoptedNamespace {
        let same = self.before.filter(|before| before.account == after.account);
        AdoptedNamespace { since: same.map_or(self.now, |before| before.since), ..after }
    }

    /// Returns the account that the annotation names by `user:NAME`, `NAME`, or the mail address of exactly one
    /// account.
    fn named(&self, owner: Option<&str>, annotation: &str) -> Result<AccountId, String> {
        let Some(owner) = owner.filter(|owner| !owner.is_empty()) else {
            return Err(format!("it has no annotation {annotation}"));
        };
        let name = owner.strip_prefix("user:").unwrap_or(owner);
        let people = || {
            let people = self.ledger.accounts.values().filter(|account| account.kind == AccountKind::User);
            people.filter(|account| !has_ended(account))
        };
        let by_name: Vec<&Account> = people().filter(|account| account.name == name).collect();
        let has_mail = |account: &&Account| {
            owner.contains('@') && account.mail.as_ref().is_some_and(|mail| mail.eq_ignore_ascii_case(owner))
        };
        let by_mail: Vec<&Account> = people().filter(has_mail).collect();
        match (by_name.as_slice(), by_mail.as_slice()) {
            ([one], _) | ([], [one]) => Ok(one.id.clone()),
            ([], []) => Err(format!(
                "annotation {annotation} names {owner:?}, who is in no source; correct the annotation, or add the \
                 person to a source"
            )),
            _ => Err(format!(
                "annotation {annotation} names {owner:?}, which matches several accounts; write user:NAME instead"
            )),
        }
    }

    /// Returns why the named account does not become the owner; `None` if it does.
    fn refused(&self, named: &AccountId, class: &Class, found: &FoundNamespace) -> Option<String> {
        if found.deleting {
            return Some("it is being deleted by somebody".to_owned());
        }
        let Some(account) = self.ledger.accounts.get(named).filter(|account| !has_ended(account)) else {
            return Some(
                "the account that its annotation named is gone, and another account has the name now: assign the namespace \
                         by user:NAME, or remove the annotation and set it again"
                    .to_owned(),
            );
        };
        let keeps = |group: &str| self.groups.keeps(group, account);
        let allowed = admits(class, &account.dn, keeps);
        (!allowed).then(|| {
            format!(
                "its annotation names {}, which does not match `when` of class {}",
                account.account_name(),
                class.name
            )
        })
    }
}

fn has_ended(account: &Account) -> bool {
    matches!(account.state, Lifecycle::Archived | Lifecycle::Deleted)
}

fn told(
    ledger: &LedgerState,
    (cluster, namespace): &(ClusterName, NamespaceName),
    before: Option<&AdoptedNamespace>,
    after: Option<&AdoptedNamespace>,
) -> Vec<Event> {
    let owner = |row: Option<&AdoptedNamespace>| row.and_then(|row| row.account.clone());
    if owner(before) == owner(after) {
        return Vec::new();
    }
    let event = |id: AccountId, action: &str, reason: String, class: &str| Event {
        account: ledger.accounts.get(&id).map(Account::account_name),
        account_id: Some(id),
        ..Event::new(action, reason, json!({"cluster": cluster, "namespace": namespace, "class": class}))
    };
    let why = after.and_then(|after| after.why.clone()).unwrap_or_else(|| "it has another owner now".to_owned());
    let released = before.and_then(|row| Some(event(row.account.clone()?, "namespace released", why, &row.class)));
    let adopted = after.and_then(|row| {
        let said = row.owner.clone().unwrap_or_default();
        Some(event(row.account.clone()?, "namespace adopted", format!("its annotation says {said:?}"), &row.class))
    });
    released.into_iter().chain(adopted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::AccountPlan;
    use crate::plan::testing::{World, prod, profile};

    /// Returns a world in which alice owns an adopted namespace.
    fn profiled() -> (World, AccountId) {
        let mut world = World::new();
        let alice = world.add(AccountKind::User, "alice", Some(20_001));
        world.account(&alice).dn = "uid=alice,ou=students,dc=example,dc=org".to_owned();
        world.policy.classes.insert("profile".to_owned(), profile());
        let found = FoundNamespace {
            selectors: BTreeSet::from(["part-of=profiles".to_owned()]),
            annotations: BTreeMap::from([("owner".to_owned(), "alice".to_owned())]),
            ..FoundNamespace::default()
        };
        let name = NamespaceName::try_from("lab-a".to_owned()).expect("the text is a namespace name");
        world.inventory.adopted.entry(prod()).or_default().insert(name, found);
        world.look();
        (world, alice)
    }

    #[test]
    fn unknown_bindings_in_adopted_namespaces_use_no_budget() {
        let (mut world, alice) = profiled();
        world.cycles(2);
        world.policy.limits.remove_access_per_cycle = crate::policy::Limit { count: 0, percent: None };
        let own = world
            .ledger
            .objects
            .keys()
            .find(|key| key.namespace.as_deref() == Some("lab-a"))
            .expect("the namespace has a binding");
        let key = ObjectKey::from(crate::kinds::ObjectName {
            cluster: prod(),
            kind: crate::kinds::ManagedKind::RoleBinding.into(),
            namespace: own.namespace.clone(),
            name: "bursar-again".into(),
        });
        for _ in 0..3 {
            let found = crate::inventory::ObservedObject { uid: "stray".into(), ..Default::default() };
            world.cluster().objects.insert(key.clone(), found);
            let (_, refusals) = world.guarded();
            assert!(refusals.is_empty(), "{refusals:?}");
            world.cycle();
            assert!(!world.cluster().objects.contains_key(&key));
        }
        assert!(
            world.ledger.spent.is_empty() && world.ledger.accounts.contains_key(&alice),
            "{:?}",
            world.ledger.spent
        );
    }

    #[test]
    fn a_missing_level_is_set_before_bindings_and_a_weaker_level_causes_a_notice() {
        let (mut world, alice) = profiled();
        let class = world.class("profile");
        let crate::policy::From::Adopted(adopts) = &mut class.from else { panic!("the class adopts namespaces") };
        adopts.pod_security = Some(crate::policy::PodSecurity::Baseline);
        let steps = |world: &World| -> Vec<Action> { world.plan().accounts[0].steps().cloned().collect() };
        let all = steps(&world);
        let is_level = |action: &Action| matches!(action, Action::SetLevel { .. });
        let is_elsewhere = |action: &Action| {
            is_level(action) || matches!(action, Action::Apply { key, .. } if key.namespace.as_deref() == Some("lab-a"))
        };
        let there: Vec<&Action> = all.iter().filter(|action| is_elsewhere(action)).collect();
        assert!(is_level(there[0]) && there[1..].iter().all(|action| !is_level(action)), "{there:#?}");
        world.cycle();
        assert!(world.plan().is_empty(), "{}", world.plan());
        let level = |world: &mut World, level: Option<&str>| {
            let name = NamespaceName::try_from("lab-a".to_owned()).expect("the text is a namespace name");
            let found = world.inventory.adopted.get_mut(&prod()).and_then(|found| found.get_mut(&name));
            found.expect("the namespace is in the inventory").level = level.map(str::to_owned);
        };
        for (there, told) in [("baseline", 0), ("restricted", 0), ("privileged", 1), ("odd", 1)] {
            level(&mut world, Some(there));
            let plan = world.plan();
            assert!(plan.accounts.iter().flat_map(AccountPlan::steps).all(|action| !is_level(action)), "{there}");
            let notices = plan.notices.iter().filter(|notice| notice.text.contains("Pod Security level"));
            assert_eq!(notices.count(), told, "{there}: {:?}", plan.notices);
        }
        // A namespace that lost its owner gets no level.
        level(&mut world, None);
        world.account(&alice).state = Lifecycle::Archived;
        world.look();
        assert!(world.plan().accounts.iter().flat_map(AccountPlan::steps).all(|action| !is_level(action)));
    }

    fn is_elsewhere(action: &Action) -> bool {
        foreign_namespace(action, |namespace| namespace != "lab-a").is_some()
    }

    #[test]
    fn a_failure_in_adopted_namespaces_delays_only_steps_there() {
        let (mut world, alice) = profiled();
        let (step, reason) = (crate::ledger::ADOPTED.to_owned(), "somebody else's".to_owned());
        let next_try = world.now + jiff::SignedDuration::from_mins(5);
        let failure = crate::ledger::Failure { step, reason, since: world.now, attempts: 4, next_try };
        world.cycles(2);
        world.ledger.settled.clear();
        world.ledger.deliveries.clear();
        world.cluster().objects.retain(|key, _| key.namespace.as_deref() != Some("lab-a"));
        world.ledger.failures.insert((alice.clone(), prod()), failure);
        let plan = world.plan();
        let planned = plan.accounts.iter().find(|plan| plan.id == alice).expect("alice has a plan");
        let is_delivery = |action: &Action| matches!(action, Action::Deliver { .. });
        assert!(planned.steps().any(is_delivery) && !planned.steps().any(is_elsewhere), "{planned:#?}");
        assert!(planned.settles.is_empty(), "steps in the namespace are left");
        assert!(
            plan.notices.iter().any(|notice| notice.text.contains("adopted namespace fails")),
            "{:?}",
            plan.notices
        );
        world.now = next_try;
        let plan = world.plan();
        assert!(plan.accounts.iter().flat_map(AccountPlan::steps).any(is_elsewhere), "the step is tried again");
    }

    #[test]
    fn steps_in_adopted_namespaces_wait_for_every_failure_and_stop_no_policy_change() {
        let (mut world, alice) = profiled();
        world.cycles(2);
        world.ledger.settled.clear();
        world.cluster().objects.retain(|key, _| key.namespace.as_deref() != Some("lab-a"));
        let next_try = world.now + jiff::SignedDuration::from_mins(5);
        let mut fails = |step: &str| {
            let (step, reason) = (step.to_owned(), "broken".to_owned());
            let failure = crate::ledger::Failure { step, reason, since: world.now, attempts: 4, next_try };
            world.ledger.failures.insert((alice.clone(), prod()), failure);
            let elsewhere = world.plan().accounts.iter().flat_map(AccountPlan::steps).any(is_elsewhere);
            let pace = crate::ledger::pace::PaceRecord {
                revision: "r".to_owned(),
                began: world.now,
                at: world.now,
                last: std::collections::BTreeSet::from([alice.clone()]),
                done: 1,
                waiting: 7,
                stopped: false,
            };
            (elsewhere, world.ledger.stopped_by(&pace).len())
        };
        assert_eq!(fails("home"), (false, 1));
        assert_eq!(fails(crate::ledger::ADOPTED), (false, 0));
    }

    #[test]
    fn nobody_is_bound_before_the_level_in_namespaces_that_were_created_again() {
        let (mut world, alice) = profiled();
        let class = world.class("profile");
        let crate::policy::From::Adopted(adopts) = &mut class.from else { panic!("the class adopts namespaces") };
        adopts.pod_security = Some(crate::policy::PodSecurity::Baseline);
        let bob = world.add(AccountKind::User, "bob", Some(20_002));
        world.account(&bob).dn = "uid=bob,ou=students,dc=example,dc=org".to_owned();
        let name = |name: &str| NamespaceName::try_from(name.to_owned()).expect("the text is a namespace name");
        let found = world.inventory.adopted.get_mut(&prod()).expect("the cluster has adopted namespaces");
        let mut another = found[&name("lab-a")].clone();
        another.annotations.insert("owner".to_owned(), "bob".to_owned());
        found.insert(name("lab-b"), another);
        world.cycles(4);
        assert!(world.plan().is_empty(), "{}", world.plan());
        // Somebody deletes both namespaces, and creates them again without a level.
        let is_there = |key: &ObjectKey| key.namespace.as_deref().is_some_and(|there| there.starts_with("lab-"));
        world.cluster().objects.retain(|key, _| !is_there(key));
        for found in world.inventory.adopted.get_mut(&prod()).expect("the cluster has adopted namespaces").values_mut()
        {
            found.level = None;
        }
        world.policy.limits.change_per_cycle = crate::policy::Limit { count: 0, percent: None };
        world.look();
        let (approved, _) = world.guarded();
        for id in [&alice, &bob] {
            let plan = approved.accounts().iter().find(|plan| plan.id == *id).expect("each account has a plan");
            let level = plan.steps().position(|action| matches!(action, Action::SetLevel { .. }));
            let bound = plan.steps().position(|action| matches!(action, Action::Apply { key, .. } if is_there(key)));
            assert!(bound.is_none_or(|bound| level.is_some_and(|level| level < bound)), "{plan:#?}");
        }
    }

    #[test]
    fn steps_in_adopted_namespaces_follow_the_delivery() {
        let (mut world, alice) = profiled();
        let plan = world.plan();
        let actions: Vec<Action> = plan.accounts[0].steps().cloned().collect();
        let is_elsewhere = |action: &Action| match action {
            Action::Apply { key, .. } => key.namespace.as_deref() == Some("lab-a"),
            _ => false,
        };
        let first = actions.iter().position(is_elsewhere).expect("the plan writes into the namespace");
        assert!(actions[..first].iter().any(|action| matches!(action, Action::Deliver { .. })), "{actions:#?}");
        assert_eq!(actions[first..].iter().filter(|action| is_elsewhere(action)).count(), 3);
        assert_eq!(actions.len(), first + 3);
        // An existing binding is changed before the delivery, because it may name a revoked generation.
        world.cycle();
        let note = world.note("stolen");
        world.account(&alice).revocation = Some(Box::new(note));
        let plan = world.plan();
        let actions: Vec<Action> = plan.accounts[0].steps().cloned().collect();
        let bound = actions.iter().position(is_elsewhere).expect("the plan changes the binding");
        let delivered = actions.iter().position(|action| matches!(action, Action::Deliver { .. }));
        assert!(delivered.is_some_and(|delivered| bound < delivered), "{actions:#?}");
    }
}
