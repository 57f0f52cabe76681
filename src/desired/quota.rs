//! ResourceQuota and LimitRange of a tenant. PURE: no runtime, no client, no file system, no clock.

use serde_json::{Value, json};

use crate::contract::MANAGER;
use crate::identity::NamespaceName;
use crate::policy::Class;

/// The quota, exactly the keys that the class names: a key left out is unlimited, never 0. Without any key there is no
/// object at all.
#[must_use]
pub fn resource_quota(namespace: &NamespaceName, class: &Class) -> Option<Value> {
    (!class.quota.is_empty()).then(|| {
        json!({
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": MANAGER, "namespace": namespace},
            "spec": {"hard": class.quota},
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
