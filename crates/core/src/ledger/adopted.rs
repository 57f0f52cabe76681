//! Foreign namespaces that a class adopts: the owner of each, or why it has none.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::LedgerState;
use crate::identity::{AccountId, ClusterName, NamespaceName};
use crate::kinds::ObjectKey;

/// A foreign namespace that a class adopts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdoptedNamespace {
    /// `metadata.uid`. A namespace that was deleted and created again has another one.
    pub uid: String,
    /// The class that adopts the namespace.
    pub class: String,
    /// The value of the annotation that names the owner.
    pub owner: Option<String>,
    /// The account that the annotation named when it was first read. The value changes only if the annotation changes,
    /// so another account that gets the name later gets nothing in the namespace.
    pub named: Option<AccountId>,
    /// The current owner.
    #[serde(rename = "account_id")]
    pub account: Option<AccountId>,
    /// Why the namespace has no owner. If both `account` and `why` are `None`, the namespace is passing from one owner
    /// to the next.
    pub why: Option<String>,
    /// Since when the namespace has this owner, or has none.
    pub since: Timestamp,
}

impl LedgerState {
    /// Whether a namespace in one of these clusters is passing to a new owner, and nothing of the former owner is left
    /// in it. The next plan hands such a namespace over.
    #[must_use]
    pub fn hands_over<V>(&self, clusters: &BTreeMap<ClusterName, V>) -> bool {
        let served = self.adopted.iter().filter(|((cluster, _), _)| clusters.contains_key(cluster));
        let mut passing = served.filter(|(_, namespace)| namespace.passes());
        passing.any(|((cluster, name), row)| !self.is_kept_from(row.named.as_ref(), cluster, name))
    }

    /// Whether the namespace contains objects of Bursar that belong to an account other than `next`. Objects of `next`
    /// itself, which stay if their removal was refused, do not count.
    #[must_use]
    pub fn is_kept_from(&self, next: Option<&AccountId>, cluster: &ClusterName, namespace: &NamespaceName) -> bool {
        let others = self.objects.iter().filter(|(_, record)| Some(&record.account) != next);
        others.into_iter().any(|(key, _)| is_in(key, cluster, namespace))
    }

    /// Whether the namespace contains any object of Bursar.
    #[must_use]
    pub fn has_objects_in(&self, cluster: &ClusterName, namespace: &NamespaceName) -> bool {
        self.objects.keys().any(|key| is_in(key, cluster, namespace))
    }
}

fn is_in(key: &ObjectKey, cluster: &ClusterName, namespace: &NamespaceName) -> bool {
    key.cluster == *cluster && key.namespace.as_deref() == Some(namespace.as_str())
}

impl AdoptedNamespace {
    /// Whether the namespace waits until nothing of the former owner is left.
    #[must_use]
    pub const fn passes(&self) -> bool {
        self.account.is_none() && self.why.is_none()
    }
}
