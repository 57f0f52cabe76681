//! Plans the removal of role bindings whose account the ledger does not know. They exist if the ledger was restored
//! from a backup that is older than the account, and neither a directory nor a seal has shown the account since. No
//! decision in the ledger justifies the access that such a binding gives.
//!
//! A binding does not name the ledger that made it. So a binding is removed only if a class of the configuration could
//! have made it, and no directory may still have its account. All other bindings are only reported.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::loss::Kept;
use super::{AccountPlan, Action, Reason};
use crate::desired::rbac::cluster_wide_roles;
use crate::desired::{AccountIntent, classes_if_asked};
use crate::identity::{
    AccountId, AccountKind, AccountName, ClusterName, DirectoryId, NamespaceName, kubernetes_name, name_in,
};
use crate::inventory::{Inventory, ObservedObject};
use crate::kinds::{ManagedKind, ObjectKey};
use crate::ledger::{Account, LedgerState, Lifecycle};
use crate::policy::{Class, Policy};

/// The suffix of the name by which limits count bindings without an account; before it comes the name of the class.
/// These bindings are counted separately. Otherwise somebody who creates such bindings could use up the limits for the
/// class's accounts. No class has a name with a space.
const UNKNOWN: &str = " (unknown)";

/// Returns the class without [`UNKNOWN`]. The percentages of limits refer to the accounts of this class.
pub(super) fn sized_as(class: &str) -> &str {
    class.strip_suffix(UNKNOWN).unwrap_or(class)
}

/// Finds the class that could have made a binding.
pub(super) struct Makers<'a> {
    policy: &'a Policy,
    ledger: &'a LedgerState,
    inventory: &'a Inventory,
    /// See [`Self::named`].
    by_name: OnceCell<BTreeMap<&'a str, Vec<&'a Account>>>,
}

impl<'a> Makers<'a> {
    pub(super) const fn of(policy: &'a Policy, ledger: &'a LedgerState, inventory: &'a Inventory) -> Self {
        Self { policy, ledger, inventory, by_name: OnceCell::new() }
    }

    /// Returns the accounts of the ledger with this name. The names are collected at the first call, because in most
    /// plans every binding is known.
    fn named(&self, name: &AccountName) -> Vec<&'a Account> {
        let by_name = self.by_name.get_or_init(|| {
            let mut by_name: BTreeMap<_, Vec<_>> = BTreeMap::new();
            for account in self.ledger.accounts.values() {
                by_name.entry(account.kubernetes_name.as_str()).or_default().push(account);
            }
            by_name
        });
        let same = by_name.get(name.name.as_str()).into_iter().flatten();
        same.filter(|account| account.kind == name.kind).copied().collect()
    }

    /// Returns the class that could have made the binding, and the account that its name stands for. Returns `None` if
    /// no class could have made it, or if an account of this name may have access ([`Self::may_have_access`]). The
    /// patterns of several classes may match, and then each of them names an account.
    pub(super) fn of_binding(&self, key: &ObjectKey) -> Option<(&'a str, AccountName)> {
        if key.namespace.as_deref().is_some_and(|namespace| !self.is_ours(&key.cluster, namespace)) {
            return None;
        }
        let classes = self.policy.classes.values().filter(|class| class.clusters.contains(&key.cluster));
        let makers = classes.filter_map(|class| Some((class.name.as_str(), account(class, key)?)));
        let makers: Vec<(&'a str, AccountName)> = makers.collect();
        let is_kept = makers.iter().any(|(_, name)| self.may_have_access(name, &key.cluster));
        makers.into_iter().next().filter(|_| !is_kept)
    }

    /// Whether the namespace has our label. A namespace that others made never becomes a tenant's, even if a pattern
    /// such as `{name}` matches it.
    fn is_ours(&self, cluster: &ClusterName, namespace: &str) -> bool {
        let there = self.inventory.clusters.get(cluster);
        let name = NamespaceName::try_from(namespace.to_owned()).ok();
        let key = name.map(|name| ObjectKey::namespace(cluster, &name));
        there.zip(key).is_some_and(|(there, key)| there.objects.contains_key(&key))
    }

    /// Whether an account of this name may have access in the cluster although this plan desires nothing there. This is
    /// so if the account is held, if a class takes it as soon as somebody asks for it, or if the ledger has no such
    /// account, but a rejected entry with this name.
    fn may_have_access(&self, name: &AccountName, cluster: &ClusterName) -> bool {
        let Self { policy, ledger, .. } = self;
        let is_taken = |account: &Account| {
            matches!(account.state, Lifecycle::New | Lifecycle::Active)
                && account.absence.is_none()
                && account.disabled.is_none()
                && classes_if_asked(account, ledger, policy).iter().any(|class| class.clusters.contains(cluster))
        };
        let accounts = self.named(name);
        if accounts.is_empty() {
            return ledger.rejected.iter().any(|entry| {
                let entry_name = entry.name.as_deref().map(kubernetes_name);
                entry.kind == name.kind && entry.disabled.is_none() && entry_name.as_ref() == Some(&name.name)
            });
        }
        accounts.iter().any(|account| ledger.holds.contains_key(&account.id) || is_taken(account))
    }

    /// Whether the ledger knows every account that a directory has. This is so if each source has answered completely
    /// since the ledger was rebuilt or restored, and none answers from a server that may be behind. A source that did
    /// not answer yet has no state, or the state of the backup.
    pub(super) fn all_have_answered(&self, learned_at: Option<Timestamp>, now: Timestamp) -> bool {
        let Self { policy, ledger, .. } = self;
        let has_answered = |source: &String| {
            let complete_at = ledger.sources.get(source).and_then(|state| state.complete_at);
            let moved = ledger.marks.get(source).and_then(|mark| mark.moved.as_ref());
            complete_at.is_some_and(|at| learned_at.is_none_or(|learned| at >= learned))
                && moved.is_none_or(|moved| !moved.is_fresh(now))
        };
        !policy.sources.is_empty() && policy.sources.iter().all(has_answered)
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
    let before = Arc::new(Account::new(id, account.clone(), "", DirectoryId(String::new()), now));
    let intent = AccountIntent::new(account.clone(), format!("{class}{UNKNOWN}"), 0);
    let remove = |(key, found): &(&ObjectKey, &ObservedObject)| Action::Delete {
        key: (*key).clone(),
        uid: found.uid.to_string(),
        reason: Reason::Orphaned,
    };
    let narrowing: Vec<Action> = bindings.iter().map(remove).collect();
    AccountPlan {
        ownerless: true,
        losses: (0..narrowing.len()).map(|place| (place, Kept::AsItIs)).collect(),
        ..AccountPlan::new(before, intent, narrowing, Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;
    use crate::ledger::server::{Moved, SourceMark};
    use crate::plan::guard::COMPLETENESS;
    use crate::plan::testing::{SOURCE, World, prod};
    use crate::policy::{Limit, Provision};
    use crate::snapshot::{Completeness, Entry, RejectedEntry};

    fn in_namespace(namespace: &str) -> ObjectKey {
        ObjectKey::new(&prod(), ManagedKind::RoleBinding, Some(namespace), "bursar-tenant")
    }

    fn in_the_cluster(name: &str) -> ObjectKey {
        ObjectKey::new(&prod(), ManagedKind::ClusterRoleBinding, None, name)
    }

    /// Returns the keys of the namespaces of these bindings.
    fn namespaces(bindings: &[ObjectKey]) -> impl Iterator<Item = ObjectKey> {
        let names = bindings.iter().filter_map(|key| key.namespace.as_deref());
        names.map(|name| ObjectKey::new(&prod(), ManagedKind::Namespace, None, name))
    }

    /// Returns a world with a tool, and with these bindings in namespaces of ours.
    fn world_with(strays: &[ObjectKey]) -> World {
        let (mut world, _) = World::with_foo();
        world.cycle();
        let found = ObservedObject { uid: "stray".into(), ..ObservedObject::default() };
        let missing: Vec<ObjectKey> =
            namespaces(strays).filter(|key| !world.inventory.clusters[&prod()].objects.contains_key(key)).collect();
        world.cluster().objects.extend(strays.iter().cloned().chain(missing).map(|key| (key, found.clone())));
        world.policy.limits.remove_access_per_cycle = Limit { count: 9, percent: None };
        world.policy.limits.remove_access_per_day = Limit { count: 9, percent: None };
        world
    }

    fn is_ownerless(world: &World, key: &ObjectKey) -> bool {
        Makers::of(&world.policy, &world.ledger, &world.inventory).of_binding(key).is_some()
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
        assert_eq!(world.plan().unknown.len(), kept.len() + namespaces(&strays).count());
    }

    #[test]
    fn a_pattern_that_matches_every_namespace_concerns_only_namespaces_of_ours() {
        let strays = ["kube-system", "vendor", "gone"].map(in_namespace);
        let mut world = world_with(&strays);
        world.class("tool").namespace = Some("{name}".to_owned());
        for namespace in namespaces(&strays[..2]) {
            world.cluster().objects.remove(&namespace);
        }
        assert_eq!(strays.each_ref().map(|key| is_ownerless(&world, key)), [false, false, true]);
        let labelled = ObservedObject { uid: "label".into(), ..ObservedObject::default() };
        world.cluster().objects.extend(namespaces(&strays[..1]).map(|key| (key, labelled.clone())));
        assert!(!is_ownerless(&world, &strays[0]), "the name is reserved");
    }

    #[test]
    fn a_binding_stays_if_an_account_may_have_it_by_another_pattern() {
        let key = in_namespace("tool-foo");
        let mut world = world_with(&[]);
        let all = world.policy.classes["student"].clone();
        let all = Class { name: "all".to_owned(), when: None, namespace: Some("{name}".to_owned()), ..all };
        world.policy.classes.insert("all".to_owned(), all);
        assert!(!is_ownerless(&world, &key), "the binding belongs to the tool foo, and not to a person named tool-foo");
    }

    #[test]
    fn a_class_of_another_cluster_could_not_have_made_a_binding() {
        let key = in_namespace("tool-gone");
        let mut world = world_with(std::slice::from_ref(&key));
        assert!(is_ownerless(&world, &key));
        world.class("tool").clusters = vec![ClusterName("b".into())];
        assert!(!is_ownerless(&world, &key));
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
        let until = world.now + SignedDuration::from_hours(1);
        world.policy.limits.remove_access_per_cycle = Limit { count: 0, percent: None };
        world.ledger.approvals.extend(parts.map(|part| (part, until)));
        world.cycle();
        assert!(left(&world, &strays).is_empty(), "an administrator approved the removal");
    }

    #[test]
    fn bindings_without_an_account_stay_until_every_source_has_answered_since_the_takeover() {
        let strays = [in_namespace("tool-gone")];
        let mut world = world_with(&strays);
        let stay = |world: &mut World, why: &str| {
            world.cycle();
            assert_eq!(left(world, &strays), strays, "{why}");
        };
        world.policy.sources.insert("tools".to_owned());
        stay(&mut world, "a source has never answered");
        world.policy.sources.remove("tools");
        world.now += SignedDuration::from_hours(26);
        world.ledger.learned_at = Some(world.now - SignedDuration::from_hours(25));
        stay(&mut world, "the last answer is that of the backup");
        assert!(world.plan().unknown.iter().any(|it| it.what.contains("a complete read of every directory")));
        world.source(Completeness::Complete);
        let moved = Moved { at: world.now, former: "ldap2.example.org".to_owned(), ..Moved::default() };
        let mark = SourceMark { moved: Some(moved), ..SourceMark::accepted(world.now) };
        world.ledger.marks.insert(SOURCE.to_owned(), mark);
        stay(&mut world, "the server may be behind");
        world.ledger.marks.clear();
        world.cycle();
        assert!(left(&world, &strays).is_empty());
    }

    #[test]
    fn bindings_of_a_held_account_or_one_that_a_class_takes_are_not_ownerless() {
        let key = in_namespace("tool-foo");
        let mut world = world_with(&[]);
        let foo = world.id(AccountKind::Tool, "foo");
        assert!(!is_ownerless(&world, &key));
        world.account(&foo).state = Lifecycle::New;
        world.class("tool").provision = Provision::OnDemand;
        assert!(!is_ownerless(&world, &key), "the next login brings the access back");
        world.account(&foo).disabled = Some("mark".to_owned());
        assert!(is_ownerless(&world, &key));
        world.account(&foo).disabled = None;
        world.account(&foo).state = Lifecycle::Deleted;
        assert!(is_ownerless(&world, &key));
        world.hold(&foo);
        assert!(!is_ownerless(&world, &key));
    }

    #[test]
    fn an_active_account_keeps_no_binding_in_a_cluster_where_no_class_takes_it() {
        let mut world = World::new();
        let alice = world.add(AccountKind::User, "alice", Some(20_001));
        world.account(&alice).state = Lifecycle::Active;
        let key = in_the_cluster("bursar-view:user:alice");
        assert!(is_ownerless(&world, &key), "alice has left the group of the class");
        let group = world.add(AccountKind::Group, "k8s-admins", None);
        world.join(&group, &alice);
        assert!(!is_ownerless(&world, &key));
    }

    #[test]
    fn a_binding_stays_if_the_entry_of_its_account_is_rejected() {
        let key = in_namespace("tool-gone");
        let mut world = world_with(std::slice::from_ref(&key));
        let entry = Entry::new(AccountKind::Tool, "id", "cn=Gone,dc=example,dc=org", "gone");
        let rejected = RejectedEntry::of(SOURCE, &entry, "it has no uid".to_owned());
        world.ledger.rejected.insert(rejected.clone());
        assert!(!is_ownerless(&world, &key));
        let disabled = Some("mark".to_owned());
        world.ledger.rejected = [RejectedEntry { disabled, ..rejected }].into();
        assert!(is_ownerless(&world, &key));
    }
}
