//! Decides which classes take an account. Each class selects accounts by kind, and by their groups or their place in
//! the directory.

use std::collections::{BTreeMap, BTreeSet};

use crate::identity::{AccountId, AccountKind, ClusterName};
use crate::json_text::JsonText;
use crate::kinds::ObjectKey;
use crate::ledger::{Account, LedgerState, Lifecycle, Tenant};
use crate::policy::{Class, LifecycleDelays, Policy, Provision, UidRange, When};

/// Directory groups by name, with nested groups resolved. Groups of several sources with the same name count as one.
pub struct Groups<'a>(BTreeMap<&'a str, Vec<Group<'a>>>);

struct Group<'a> {
    account: &'a Account,
    /// Whether the group is proved to be gone. If so, all its members leave.
    gone: bool,
}

impl<'a> Groups<'a> {
    /// Returns the groups of the ledger.
    #[must_use]
    pub fn of(ledger: &'a LedgerState, lifecycle: &LifecycleDelays) -> Self {
        Self::among(ledger.accounts.values().filter(|account| account.kind == AccountKind::Group), lifecycle)
    }

    /// Returns the groups among `accounts`.
    pub(super) fn among(accounts: impl IntoIterator<Item = &'a Account>, lifecycle: &LifecycleDelays) -> Self {
        let mut groups: BTreeMap<&str, Vec<Group<'_>>> = BTreeMap::new();
        for account in accounts {
            let gone = super::life::is_absent(account, lifecycle);
            groups.entry(&account.name).or_default().push(Group { account, gone });
        }
        Self(groups)
    }

    /// Whether the person is in the group, and is not leaving it.
    fn has(&self, group: &str, person: &Account) -> bool {
        self.named(group).any(|group| group.account.has_member(person) && !group.loses(person))
    }

    /// Like [`Self::keeps`], but a group that is gone counts too.
    fn had(&self, group: &str, person: &Account) -> bool {
        self.named(group).any(|group| group.account.has_member(person))
    }

    /// Whether the person is in a group with this name that is not gone. A person who is leaving the group counts too.
    #[must_use]
    pub fn keeps(&self, group: &str, person: &Account) -> bool {
        self.named(group).any(|group| group.account.has_member(person) && !group.gone)
    }

    fn named(&self, name: &str) -> impl Iterator<Item = &Group<'a>> {
        self.0.get(name).into_iter().flatten()
    }
}

impl Group<'_> {
    fn loses(&self, person: &Account) -> bool {
        self.gone || self.account.leaving.contains(&person.directory_id)
    }
}

/// The classes that take an account, now and before pending removals.
#[derive(Clone)]
pub(super) struct Taken<'p> {
    /// The classes that take the account now, sorted by name.
    pub(super) now: Vec<&'p Class>,
    /// The classes that would take the account if no pending removal from a group were carried out.
    pub(super) before: Vec<&'p Class>,
    /// The groups whose pending removals make the two lists differ.
    pub(super) rests_on: BTreeSet<AccountId>,
}

/// Returns the classes that take `account`. A class with provisioning on demand takes it only if `asked_for` is true.
pub(super) fn taken<'p>(
    account: &Account,
    policy: &'p Policy,
    groups: &Groups<'_>,
    asked_for: &dyn Fn(&Class) -> bool,
) -> Taken<'p> {
    let by = |in_group: &dyn Fn(&str) -> bool| -> Vec<&'p Class> {
        policy
            .classes
            .values()
            .filter(|class| crate::select::selects(class, account.kind, &account.dn, in_group) && asked_for(class))
            .collect()
    };
    let now = by(&|group| groups.has(group, account));
    let before = by(&|group| groups.had(group, account));
    let rests_on = before
        .iter()
        .filter(|class| !now.iter().any(|kept| kept.name == class.name))
        .filter_map(|class| match &class.when {
            Some(When::Group(group)) => Some(group),
            _ => None,
        })
        .flat_map(|group| groups.named(group))
        .filter(|group| group.account.has_member(account))
        .map(|group| group.account.id.clone())
        .collect();
    Taken { now, before, rests_on }
}

/// Returns the groups without a uid that are or will be workspaces of a class with a uid range.
#[must_use]
pub fn groups_without_uid<'a>(ledger: &'a LedgerState, policy: &'a Policy) -> Vec<(&'a Account, &'a Class, UidRange)> {
    if policy.uid_ranges().next().is_none() {
        return Vec::new();
    }
    let groups = Groups::of(ledger, &policy.lifecycle);
    let live = |state| matches!(state, Lifecycle::New | Lifecycle::Active);
    let accounts = ledger.accounts.values();
    let without =
        accounts.filter(|account| account.kind == AccountKind::Group && account.posix.is_none() && live(account.state));
    without
        .filter_map(|account| {
            let asked = |_: &Class| true;
            let taken = taken(account, policy, &groups, &asked).now;
            let ranged = |class: &Class| class.workspace().and_then(|workspace| workspace.uid_range);
            taken.into_iter().find_map(|class| Some((account, class, ranged(class)?)))
        })
        .collect()
}

/// Returns the classes that take an account now, and the classes by which it became a tenant. All its objects come from
/// these classes.
#[must_use]
pub fn classes_of<'p>(account: &Account, ledger: &LedgerState, policy: &'p Policy) -> Vec<&'p Class> {
    classes_by(account, ledger, policy, &Groups::of(ledger, &policy.lifecycle))
}

/// Returns the accounts for which [`classes_of`] returns this class, and the accounts that became tenants by a class of
/// this name, even if that class is no longer configured.
#[must_use]
pub fn accounts_of<'a>(class: &str, ledger: &'a LedgerState, policy: &Policy) -> Vec<&'a Account> {
    let groups = Groups::of(ledger, &policy.lifecycle);
    let accounts = ledger.accounts.values().filter(|account| {
        ledger.tenants_of(&account.id).any(|(_, tenant)| tenant.class == class)
            || classes_by(account, ledger, policy, &groups).iter().any(|known| known.name == class)
    });
    accounts.collect()
}

/// Like [`classes_of`], for callers that have the groups of the ledger.
#[must_use]
pub fn classes_by<'p>(
    account: &Account,
    ledger: &LedgerState,
    policy: &'p Policy,
    groups: &Groups<'_>,
) -> Vec<&'p Class> {
    let asked = |class: &Class| class.provision == Provision::Always || ledger.last_use.contains_key(&account.id);
    let mut classes = taken(account, policy, groups, &asked).now;
    for class in ledger.tenants_of(&account.id).filter_map(|(_, tenant)| policy.classes.get(&tenant.class)) {
        if !classes.iter().any(|known| known.name == class.name) {
            classes.push(class);
        }
    }
    classes
}

/// The class of each tenant's namespace, by account and cluster.
pub type ClassesOfNamespaces<'a> = BTreeMap<&'a AccountId, BTreeMap<&'a ClusterName, &'a str>>;

/// Returns the class whose admission rules apply in each tenant's namespace, as the next plan seals it.
#[must_use]
pub fn classes_of_namespaces<'a>(ledger: &'a LedgerState, policy: &'a Policy) -> ClassesOfNamespaces<'a> {
    let groups = Groups::of(ledger, &policy.lifecycle);
    let mut classes = ClassesOfNamespaces::new();
    for account in ledger.accounts.values() {
        let tenants: Vec<_> = ledger.tenants_of(&account.id).collect();
        if tenants.is_empty() {
            continue;
        }
        let taken = taken(account, policy, &groups, &|class| is_asked_for(class, account, ledger, &tenants)).now;
        let of_account = tenants.iter().map(|(cluster, tenant)| {
            let here: Vec<&Class> = taken.iter().filter(|class| class.clusters.contains(cluster)).copied().collect();
            (*cluster, main(&here).map_or(tenant.class.as_str(), |class| class.name.as_str()))
        });
        classes.insert(&account.id, of_account.collect());
    }
    classes
}

/// Returns the names of former classes that namespaces in `cluster` may still carry, each with the class that takes the
/// accounts of these namespaces now. The rules of that class apply until the label changes. A name is left out if its
/// accounts are now taken by several classes, or by none.
#[must_use]
pub fn former_classes<'p>(
    ledger: &LedgerState,
    policy: &'p Policy,
    cluster: &ClusterName,
) -> BTreeMap<String, &'p Class> {
    let has_namespaces = |class: &&Class| class.clusters.contains(cluster) && class.namespace.is_some();
    // After the label has changed, the name of the class by which the account became a tenant is still included. So no
    // rules change when the rename is complete.
    let mut accounts: BTreeMap<String, Vec<(&AccountId, bool)>> = BTreeMap::new();
    for ((id, _), tenant) in ledger.tenants.iter().filter(|((_, at), _)| at == cluster) {
        let Some(namespace) = &tenant.namespace else { continue };
        let record = ledger.objects.get(&ObjectKey::namespace(cluster, namespace));
        let written = record.and_then(|record| record.detail.as_ref()).map(JsonText::value);
        let label = written.as_ref().and_then(|written| written["class"].as_str());
        for name in BTreeSet::from([label.unwrap_or(&tenant.class), tenant.class.as_str()]) {
            if !policy.classes.get(name).is_some_and(|class| has_namespaces(&class)) {
                accounts.entry(name.to_owned()).or_default().push((id, label == Some(name)));
            }
        }
    }
    if accounts.is_empty() {
        return BTreeMap::new();
    }
    let groups = Groups::of(ledger, &policy.lifecycle);
    let now = |id: &AccountId| {
        let account = ledger.accounts.get(id)?;
        let tenants: Vec<_> = ledger.tenants_of(id).collect();
        let taken = taken(account, policy, &groups, &|class| is_asked_for(class, account, ledger, &tenants)).now;
        let here: Vec<&Class> = taken.into_iter().filter(|class| class.clusters.contains(cluster)).collect();
        main(&here).filter(has_namespaces)
    };
    let by_name = accounts.into_iter().filter_map(|(name, accounts)| {
        // Returns the classes that now take the accounts, each with the number of its accounts. `carried` selects the
        // accounts whose label has this name (`true`) or another name (`false`).
        let classes = |carried: bool| -> BTreeMap<&'p str, (usize, &'p Class)> {
            let mut classes = BTreeMap::new();
            let ids = accounts.iter().filter(|(_, carries)| *carries == carried).map(|(id, _)| *id);
            ids.filter_map(now).for_each(|class| classes.entry(class.name.as_str()).or_insert((0, class)).0 += 1);
            classes
        };
        let carriers = classes(true);
        Some((name, if carriers.is_empty() { successor(classes(false), ledger)? } else { only(carriers)? }))
    });
    by_name.collect()
}

fn only<'p>(classes: BTreeMap<&str, (usize, &'p Class)>) -> Option<&'p Class> {
    let mut classes = classes.into_values();
    classes.next().filter(|_| classes.next().is_none()).map(|(_, class)| class)
}

/// Returns the class that a former class became, for accounts without a recorded label. Older versions recorded no
/// labels. `classes` are the classes that now take the accounts that began in the former class. Some of these accounts
/// may have moved to another class long before.
fn successor<'p>(mut classes: BTreeMap<&'p str, (usize, &'p Class)>, ledger: &LedgerState) -> Option<&'p Class> {
    let begun: BTreeSet<&str> = ledger.tenants.values().map(|tenant| tenant.class.as_str()).collect();
    if classes.keys().any(|class| !begun.contains(class)) {
        classes.retain(|class, _| !begun.contains(class));
        return only(classes);
    }
    classes.into_values().max_by_key(|(accounts, _)| *accounts).map(|(_, class)| class)
}

/// Returns the class of an account's own namespace in a cluster. `classes` are the classes that take the account there.
pub(super) fn main<'p>(classes: &[&'p Class]) -> Option<&'p Class> {
    classes.iter().find(|class| class.namespace.is_some()).or(classes.first()).copied()
}

/// Whether the account was asked for, or the class does not require that.
pub(super) fn is_asked_for(
    class: &Class,
    account: &Account,
    ledger: &LedgerState,
    tenants: &[(&ClusterName, &Tenant)],
) -> bool {
    class.provision == Provision::Always
        || ledger.last_use.contains_key(&account.id)
        || tenants.iter().any(|(_, tenant)| tenant.class == class.name)
}

/// Returns the classes that take an account, or would if the account was asked for.
#[must_use]
pub fn classes_if_asked<'p>(account: &Account, ledger: &LedgerState, policy: &'p Policy) -> Vec<&'p Class> {
    taken(account, policy, &Groups::of(ledger, &policy.lifecycle), &|_| true).now
}

/// Whether a class takes an account, or would if the account was asked for.
#[must_use]
pub fn takes(ledger: &LedgerState, policy: &Policy, account: &Account) -> bool {
    !classes_if_asked(account, ledger, policy).is_empty()
}
