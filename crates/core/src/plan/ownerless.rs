//! Plans the removal of role bindings whose account the ledger does not know. They exist if the ledger was restored
//! from a backup that is older than the account, and neither a directory nor a seal has shown the account since. No
//! decision in the ledger justifies the access that such a binding gives.
//!
//! A binding does not name the ledger that made it. So a binding is removed only if a class of the configuration could
//! have made it. All other bindings are only reported.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use super::loss::Kept;
use super::{AccountPlan, Action, Reason};
use crate::desired::AccountIntent;
use crate::desired::rbac::cluster_wide_roles;
use crate::identity::{AccountId, AccountKind, AccountName, ClusterName, DirectoryId, name_in};
use crate::inventory::ObservedObject;
use crate::kinds::{ManagedKind, ObjectKey};
use crate::ledger::{Account, LedgerState, Lifecycle};
use crate::policy::{Class, Policy};

/// Follows the class in the name under which limits count bindings without an account. They are counted separately, so
/// that a person whom the ledger does not know cannot create such bindings to use up the limits of the class's
/// accounts. No class has a name with a space.
const UNKNOWN: &str = " (unknown)";

/// Returns the class without [`UNKNOWN`]. The percentages of limits refer to the accounts of this class.
pub(super) fn sized_as(class: &str) -> &str {
    class.strip_suffix(UNKNOWN).unwrap_or(class)
}

/// Finds the class that could have made a binding.
pub(super) struct Makers<'a> {
    policy: &'a Policy,
    /// The active and the held accounts. The plans of these accounts decide about their bindings.
    names: BTreeSet<(AccountKind, &'a str)>,
    /// The namespaces of these accounts.
    namespaces: BTreeSet<(&'a ClusterName, &'a str)>,
}

impl<'a> Makers<'a> {
    pub(super) fn of(policy: &'a Policy, ledger: &'a LedgerState) -> Self {
        let stays = |it: &&'a Account| it.state == Lifecycle::Active || ledger.holds.contains_key(&it.id);
        let accounts: Vec<&'a Account> = ledger.accounts.values().filter(stays).collect();
        let tenants = accounts.iter().flat_map(|account| ledger.tenants_of(&account.id));
        let namespaces = tenants.filter_map(|(cluster, tenant)| Some((cluster, tenant.namespace.as_ref()?.as_str())));
        let namespaces = namespaces.collect();
        let names = accounts.iter().map(|account| (account.kind, account.kubernetes_name.as_str())).collect();
        Self { policy, names, namespaces }
    }

    /// Returns the class that could have made the binding, and the account that its name stands for. Returns `None` if
    /// no class could have made it, or if this account is in the ledger and is active or held.
    pub(super) fn of_binding(&self, key: &ObjectKey) -> Option<(&'a str, AccountName)> {
        let mut classes = self.policy.classes.values().filter(|class| class.clusters.contains(&key.cluster));
        let (class, account) = classes.find_map(|class| Some((class, account(class, key)?)))?;
        let place = key.namespace.as_deref().map(|namespace| (&key.cluster, namespace));
        let is_known = self.names.contains(&(account.kind, account.name.as_str()))
            || place.is_some_and(|place| self.namespaces.contains(&place));
        (!is_known).then_some((class.name.as_str(), account))
    }
}

/// Returns the account for which the class would make a binding of this name.
fn account(class: &Class, key: &ObjectKey) -> Option<AccountName> {
    let kind = class.from.account_kind()?;
    let name = match (&key.namespace, &class.namespace) {
        (Some(namespace), Some(pattern)) => name_in(pattern, namespace)?,
        (Some(_), None) => return None,
        (None, _) => {
            let (role, of_kind, name) = cluster_wide(key)?;
            let is_of_class = of_kind == kind && cluster_wide_roles(class).any(|it| it == role);
            (is_of_class && class.name_pattern.0.is_match(name)).then_some(name)?
        }
    };
    Some(AccountName { kind, name: name.to_owned() })
}

/// Returns the role, the kind and the name in the name of a `ClusterRoleBinding`, `bursar-ROLE:KIND:NAME`.
pub(super) fn cluster_wide(key: &ObjectKey) -> Option<(&str, AccountKind, &str)> {
    if key.kind != ManagedKind::ClusterRoleBinding {
        return None;
    }
    let mut parts = key.name.strip_prefix("bursar-")?.rsplitn(3, ':');
    let (name, kind, role) = (parts.next()?, parts.next()?, parts.next()?);
    Some((role, kind.parse().ok()?, name))
}

/// Bindings that are to be removed, by the class that could have made them, and the account.
pub(super) type Ownerless<'a> = BTreeMap<(&'a str, AccountName), Vec<(&'a ObjectKey, &'a ObservedObject)>>;

/// Returns the plans that remove the bindings, one for each account.
pub(super) fn removals(bindings: &Ownerless<'_>, now: Timestamp) -> impl Iterator<Item = AccountPlan> {
    bindings.iter().map(move |((class, account), bindings)| removal(class, account, bindings, now))
}

fn removal(
    class: &str,
    account: &AccountName,
    bindings: &[(&ObjectKey, &ObservedObject)],
    now: Timestamp,
) -> AccountPlan {
    // No account of the ledger has this id, so the plan is never mistaken for the plan of a known account.
    let id = AccountId(format!("unknown {class} {account}").into());
    let intent = AccountIntent {
        account: account.clone(),
        posix: None,
        class: format!("{class}{UNKNOWN}"),
        transition: None,
        generation: 0,
        regenerated: None,
        held: None,
        orders: Vec::new(),
        ordered: None,
        adopts: BTreeSet::new(),
        awaited: false,
        leaving: BTreeMap::new(),
        rests_on: BTreeSet::new(),
        keeps_people: false,
        returning: BTreeMap::new(),
    };
    let remove = |(key, found): &(&ObjectKey, &ObservedObject)| Action::Delete {
        key: (*key).clone(),
        uid: found.uid.to_string(),
        reason: Reason::Orphaned,
    };
    let narrowing: Vec<Action> = bindings.iter().map(remove).collect();
    AccountPlan {
        ownerless: true,
        intent: Arc::new(intent),
        losses: (0..narrowing.len()).map(|place| (place, Kept::AsItIs)).collect(),
        narrowing: Arc::new(narrowing),
        actions: Arc::default(),
        adopted: Vec::new(),
        namespaces: Vec::new(),
        is_own: false,
        paced: BTreeSet::new(),
        left: false,
        settles: Vec::new(),
        standing: BTreeMap::new(),
        places: Vec::new(),
        forgotten: Vec::new(),
        labelled: Vec::new(),
        begun: BTreeMap::new(),
        before: Arc::new(Account::new(id.clone(), account.clone(), "", DirectoryId(String::new()), now)),
        otherwise: None,
        id,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Note;
    use crate::plan::guard::COMPLETENESS;
    use crate::plan::testing::{World, prod};
    use crate::policy::Limit;
    use crate::snapshot::Completeness;

    fn in_namespace(namespace: &str) -> ObjectKey {
        ObjectKey::new(&prod(), ManagedKind::RoleBinding, Some(namespace), "bursar-tenant")
    }

    fn in_the_cluster(name: &str) -> ObjectKey {
        ObjectKey::new(&prod(), ManagedKind::ClusterRoleBinding, None, name)
    }

    fn world_with(strays: &[ObjectKey]) -> World {
        let mut world = World::new();
        world.add(AccountKind::Tool, "foo", Some(52_503));
        world.cycle();
        let found = ObservedObject { uid: "stray".into(), ..ObservedObject::default() };
        world.cluster().objects.extend(strays.iter().map(|key| (key.clone(), found.clone())));
        world.policy.limits.remove_access_per_cycle = Limit { count: 9, percent: None };
        world.policy.limits.remove_access_per_day = Limit { count: 9, percent: None };
        world
    }

    fn left(world: &World, strays: &[ObjectKey]) -> Vec<ObjectKey> {
        let there = &world.inventory.clusters[&prod()].objects;
        strays.iter().filter(|key| there.contains_key(*key)).cloned().collect()
    }

    #[test]
    fn a_binding_is_removed_only_if_a_class_could_have_made_it() {
        let removed = [
            in_namespace("tool-gone"),
            in_namespace("user-zoe"),
            in_the_cluster("bursar-view:user:zoe"),
            in_the_cluster("bursar-bursar-impersonate-admin:user:zoe"),
        ];
        let kept = [
            in_namespace("other-gone"),
            in_the_cluster("bursar-view:tool:zoe"),
            in_the_cluster("bursar-edit:user:zoe"),
            in_the_cluster("bursar-view:user:9"),
            in_the_cluster("view:user:zoe"),
        ];
        let strays = [removed.as_slice(), kept.as_slice()].concat();
        let mut world = world_with(&strays);
        let text = world.plan().to_string();
        assert!(text.contains("- tool gone") && text.contains("not in the ledger"), "{text}");
        world.cycle();
        assert_eq!(left(&world, &strays), kept);
        assert!(world.plan().is_empty(), "{}", world.plan());
        assert_eq!(world.plan().unknown.len(), kept.len());
    }

    #[test]
    fn a_class_of_another_cluster_could_not_have_made_a_binding() {
        let mut world = World::new();
        let key = in_namespace("tool-gone");
        let made = |world: &World| Makers::of(&world.policy, &world.ledger).of_binding(&key).is_some();
        assert!(made(&world));
        let tool = world.policy.classes.get_mut("tool").expect("the policy has the class");
        tool.clusters = vec![ClusterName("b".into())];
        assert!(!made(&world));
    }

    #[test]
    fn bindings_without_an_account_stay_until_every_source_was_read_completely() {
        let strays = [in_namespace("tool-gone")];
        let mut world = world_with(&strays);
        let sources = std::mem::take(&mut world.ledger.sources);
        world.cycle();
        assert_eq!(left(&world, &strays), strays, "no source was read");
        world.ledger.sources = sources;
        world.source(Completeness::Partial { why: "size limit".to_owned() });
        let (_, refusals) = world.guarded();
        assert!(matches!(&refusals[..], [refusal] if refusal.limit == COMPLETENESS), "{refusals:?}");
        world.cycle();
        assert_eq!(left(&world, &strays), strays, "the last read is partial");
        world.source(Completeness::Complete);
        world.cycle();
        assert!(left(&world, &strays).is_empty());
    }

    #[test]
    fn bindings_without_an_account_use_no_limit_of_the_accounts() {
        let strays = ["tool-foo", "tool-gone", "tool-lost"].map(in_namespace);
        let mut world = world_with(&strays);
        world.policy.limits.remove_access_per_cycle = Limit { count: 1, percent: None };
        let (approved, refusals) = world.guarded();
        assert!(matches!(&refusals[..], [refusal] if refusal.class == "tool (unknown)"), "{refusals:?}");
        world.execute(&approved);
        assert_eq!(left(&world, &strays), [in_namespace("tool-lost")]);
        let parts = refusals.into_iter().flat_map(|refusal| refusal.parts);
        let until = world.now + jiff::SignedDuration::from_hours(1);
        world.policy.limits.remove_access_per_cycle = Limit { count: 0, percent: None };
        world.ledger.approvals.extend(parts.map(|part| (part, until)));
        world.cycle();
        assert!(left(&world, &strays).is_empty(), "an administrator approved the removal");
    }

    #[test]
    fn bindings_of_an_active_or_held_account_of_the_ledger_are_not_ownerless() {
        let mut world = world_with(&[]);
        let foo = world.id(AccountKind::Tool, "foo");
        let key = in_namespace("tool-foo");
        let is_ownerless = |world: &World| Makers::of(&world.policy, &world.ledger).of_binding(&key).is_some();
        assert!(!is_ownerless(&world));
        world.account(&foo).state = Lifecycle::Deleted;
        assert!(is_ownerless(&world));
        let note = Note { actor: "root".to_owned(), reason: "audit".to_owned(), ticket: None, at: world.now };
        world.ledger.holds.insert(foo, note);
        assert!(!is_ownerless(&world));
    }
}
