//! ResourceQuota and LimitRange of a tenant.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::contract::MANAGER;
use crate::identity::NamespaceName;
use crate::kinds::{ManagedKind, ObjectKey};
use crate::ledger::quota::QuotaOverride;
use crate::policy::{Class, FromWorkspaces, Workspace};
use crate::quantity::{compare, sum};

/// Overrides that hold, by resource.
pub type Overrides<'a> = BTreeMap<&'a str, &'a QuotaOverride>;

/// The class whose quota a tenant of several has: the first that has one.
#[must_use]
pub fn class_of<'a>(classes: &[&'a Class]) -> Option<&'a Class> {
    let mut with_namespace = classes.iter().copied().filter(|class| class.namespace.is_some());
    let first = with_namespace.clone().next();
    with_namespace.find(|class| !class.quota.is_empty()).or(first)
}

/// The amounts of somebody's own namespace that `workspaces` change, in place of their class's.
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

/// The quota: exactly the keys that the class and the overrides name, for a key left out is unlimited, never 0. Without
/// any key there is no object at all. What workspaces gave comes before overrides. What the class locks no override
/// changes, also one that was given before.
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

/// Name of the quota by which the API server itself refuses every new pod of a suspended tenant, no matter who makes
/// the pod and whether the webhook runs.
const SUSPENDED: &str = "bursar-suspended";

/// The quota of a suspended namespace.
#[must_use]
pub fn no_pods(namespace: &NamespaceName) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": SUSPENDED, "namespace": namespace},
        "spec": {"hard": {"pods": "0"}},
    })
}

/// Whether it is the quota of a suspended namespace.
#[must_use]
pub fn stops_pods(key: &ObjectKey) -> bool {
    key.kind == ManagedKind::ResourceQuota && key.name == SUSPENDED
}

/// Returns those of a quota's `resources` that each container has to name and for which the class gives no default. With
/// them in its quota the API server refuses every plain pod. A limit is also a default request, and `max` a default limit, as
/// Kubernetes fills a LimitRange in.
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

/// Defaults and bounds of single containers.
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
