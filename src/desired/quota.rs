//! ResourceQuota and LimitRange of a tenant. PURE: no runtime, no client, no file system, no clock.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::contract::MANAGER;
use crate::identity::NamespaceName;
use crate::ledger::quota::QuotaOverride;
use crate::policy::Class;

/// Overrides that hold, by resource.
pub type Overrides<'a> = BTreeMap<&'a str, &'a QuotaOverride>;

/// The class whose quota a tenant of several has: the first that has one.
#[must_use]
pub fn class_of<'a>(classes: &[&'a Class]) -> Option<&'a Class> {
    let mut with_namespace = classes.iter().copied().filter(|class| class.namespace.is_some());
    let first = with_namespace.clone().next();
    with_namespace.find(|class| !class.quota.is_empty()).or(first)
}

/// The quota: exactly the keys that the class and the overrides name, for a key left out is unlimited, never 0. Without
/// any key there is no object at all. What the class locks no override changes, also one that was given before.
#[must_use]
pub fn resource_quota(namespace: &NamespaceName, class: &Class, overrides: &Overrides<'_>) -> Option<Value> {
    let mut hard: BTreeMap<&str, &str> =
        class.quota.iter().map(|(resource, amount)| (resource.as_str(), amount.as_str())).collect();
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
