//! Builds the ResourceQuota and the LimitRange of a tenant.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{Groups, classes_by};
use crate::contract::MANAGER;
use crate::identity::{ClusterName, NamespaceName};
use crate::kinds::{ManagedKind, ObjectKey};
use crate::ledger::LedgerState;
use crate::ledger::quota::{OverrideKey, QuotaOverride};
use crate::policy::{Class, FromWorkspaces, Policy, Workspace};
use crate::quantity::{compare, sum};

/// Overrides that are in force, by resource.
pub type Overrides<'a> = BTreeMap<&'a str, &'a QuotaOverride>;

/// Returns the class whose quota applies to a tenant of several classes: the first class with a quota.
#[must_use]
pub fn class_of<'a>(classes: &[&'a Class]) -> Option<&'a Class> {
    let mut with_namespace = classes.iter().copied().filter(|class| class.namespace.is_some());
    let first = with_namespace.clone().next();
    with_namespace.find(|class| !class.quota.is_empty()).or(first)
}

/// Returns the amounts that `workspaces` change in the quota of a person's own namespace.
#[must_use]
pub fn from_workspaces(class: &Class, workspaces: &[&Workspace]) -> BTreeMap<String, String> {
    let Some(way) = class.quota_from_workspaces() else { return BTreeMap::new() };
    if way == FromWorkspaces::Tier {
        let highest = workspaces.iter().max_by_key(|workspace| workspace.tier);
        return highest.map(|workspace| workspace.member_quota.clone()).unwrap_or_default();
    }
    let mut amounts: BTreeMap<String, String> = BTreeMap::new();
    for (resource, given) in workspaces.iter().flat_map(|workspace| &workspace.member_quota) {
        let before = amounts.get(resource).or_else(|| class.quota.get(resource));
        let after = match (before, way) {
            (None, _) => Some(given.clone()),
            (Some(before), FromWorkspaces::Sum) => sum(before, given),
            (Some(before), _) => {
                Some(if compare(before, given) == Some(Ordering::Less) { given } else { before }.clone())
            }
        };
        amounts.extend(after.map(|amount| (resource.clone(), amount)));
    }
    amounts
}

/// Returns the quota. It has exactly the keys that the class and the overrides name, because a missing key means
/// unlimited, not 0. Returns no object if there is no key. Overrides replace amounts from workspaces. An override of a
/// resource that the class locks has no effect, even if it was set before the lock.
#[must_use]
pub fn resource_quota(
    namespace: &NamespaceName,
    class: &Class,
    granted: &BTreeMap<String, String>,
    overrides: &Overrides<'_>,
) -> Option<Value> {
    let mut hard: BTreeMap<&str, &str> =
        class.quota.iter().chain(granted).map(|(resource, amount)| (resource.as_str(), amount.as_str())).collect();
    let given = overrides.iter().filter(|(resource, _)| !class.quota_locked.contains(**resource));
    hard.extend(given.map(|(resource, given)| (*resource, given.amount.as_str())));
    (!hard.is_empty()).then(|| {
        json!({
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": MANAGER, "namespace": namespace},
            "spec": {"hard": hard},
        })
    })
}

/// The quota by which the API server itself refuses every new pod of a suspended tenant. It works for pods of any
/// controller, and even if the webhook does not run.
const SUSPENDED: &str = "bursar-suspended";

/// Returns the quota of a suspended namespace.
#[must_use]
pub fn no_pods(namespace: &NamespaceName) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": SUSPENDED, "namespace": namespace},
        "spec": {"hard": {"pods": "0"}},
    })
}

/// Whether the object is the quota of a suspended namespace.
#[must_use]
pub fn stops_pods(key: &ObjectKey) -> bool {
    key.kind == ManagedKind::ResourceQuota && key.name == SUSPENDED
}

/// Returns those of `resources` for which the class gives containers no default. If a quota names such a resource, the
/// API server refuses every pod that does not set it. As in a LimitRange, `max` is also a default limit, a default
/// limit is also a default request, and so is `min`.
#[must_use]
pub fn without_default<'r>(class: &Class, resources: impl IntoIterator<Item = &'r str>) -> Vec<&'r str> {
    let limits = class.limit_range.as_ref().and_then(Value::as_array);
    let containers = limits.into_iter().flatten().filter(|limit| limit["type"] == "Container");
    let gives = |fields: &[&str], resource: &str| {
        containers.clone().any(|limit| fields.iter().any(|field| !limit[*field][resource].is_null()))
    };
    let is_missing = |resource: &&str| match *resource {
        "limits.cpu" | "limits.memory" => !gives(&["default", "max"], &resource["limits.".len()..]),
        "cpu" | "memory" | "requests.cpu" | "requests.memory" => {
            let plain = resource.trim_start_matches("requests.");
            !gives(&["defaultRequest", "default", "max", "min"], plain)
        }
        _ => false,
    };
    resources.into_iter().filter(is_missing).collect()
}

/// An example of defaults that let pods without resources pass every quota.
pub const DEFAULTS: &str = "limit_range = { container = { default = { cpu = \"500m\", memory = \"512Mi\" } } }";

/// Returns the resources that a pod must set because of a quota ([`without_default`]); otherwise the API server refuses
/// the pod. Covers the tenants of the class in the cluster, with the quota of the class, of workspaces, and of
/// overrides.
#[must_use]
pub fn traps<'p>(
    class: &'p Class,
    policy: &'p Policy,
    ledger: &'p LedgerState,
    cluster: &ClusterName,
) -> BTreeSet<&'p str> {
    let adds = class.quota_from_workspaces().is_some();
    let workspaces = policy.classes.values().filter(|_| adds).filter_map(Class::workspace);
    let added = workspaces.flat_map(|workspace| workspace.member_quota.keys());
    let groups = Groups::of(ledger, &policy.lifecycle);
    let is_of_class = |key: &&OverrideKey| {
        let account = ledger.accounts.get(&key.account);
        let given = account.and_then(|account| class_of(&classes_by(account, ledger, policy, &groups)));
        given.is_some_and(|given| given.name == class.name)
    };
    let here = |key: &&OverrideKey| key.cluster.as_ref().is_none_or(|only| only == cluster);
    let overrides = ledger.overrides.iter().filter(|(_, given)| given.is_in_force()).map(|(key, _)| key);
    let overridden = overrides.filter(here).filter(is_of_class).map(|key| &key.resource);
    let overridden = overridden.filter(|resource| !class.quota_locked.contains(*resource));
    let resources = class.quota.keys().chain(added).chain(overridden);
    without_default(class, resources.map(String::as_str)).into_iter().collect()
}

/// Returns the LimitRange of the class; `None` if the class has none.
#[must_use]
pub fn limit_range(namespace: &NamespaceName, class: &Class) -> Option<Value> {
    class.limit_range.as_ref().map(|limits| {
        json!({
            "apiVersion": "v1",
            "kind": "LimitRange",
            "metadata": {"name": MANAGER, "namespace": namespace},
            "spec": {"limits": limits},
        })
    })
}
