//! Namespaces that others create and a class adopts: whose each is, or why it is nobody's.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::LedgerState;
use crate::identity::{AccountId, ClusterName, NamespaceName};
use crate::kinds::ObjectKey;

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdoptedNamespace {
    /// `metadata.uid`: one made anew is another one.
    pub uid: String,
    /// The class that adopts it.
    pub class: String,
    /// What its annotation says.
    pub owner: Option<String>,
    /// The account that the annotation named when it was first read. It stays that one as long as the annotation does:
    /// whoever gets the name later gets nothing of it.
    pub named: Option<AccountId>,
    /// Whose it is now.
    #[serde(rename = "account_id")]
    pub account: Option<AccountId>,
    /// Why it is nobody's. Absent for one without `account`: it passes from one owner to the next.
    pub why: Option<String>,
    /// Since when it is this account's, or nobody's.
    pub since: Timestamp,
}

impl LedgerState {
    /// Whether in one of these clusters a namespace passes to somebody, with nothing of the former owner's left in it: the
    /// next plan gives it.
    #[must_use]
    pub fn hands_over<V>(&self, clusters: &BTreeMap<ClusterName, V>) -> bool {
        let served = self.adopted.iter().filter(|((cluster, _), _)| clusters.contains_key(cluster));
        let mut passing = served.filter(|(_, namespace)| namespace.passes());
        passing.any(|((cluster, name), row)| !self.is_kept_from(row.named.as_ref(), cluster, name))
    }

    /// Whether anything of ours in a namespace is another account's than `next`'s. What is its own already, because its
    /// release was refused, keeps nobody from it.
    #[must_use]
    pub fn is_kept_from(&self, next: Option<&AccountId>, cluster: &ClusterName, namespace: &NamespaceName) -> bool {
        let others = self.objects.iter().filter(|(_, record)| Some(&record.account) != next);
        others.into_iter().any(|(key, _)| is_in(key, cluster, namespace))
    }

    /// Whether anything of ours was left in a namespace.
    #[must_use]
    pub fn has_objects_in(&self, cluster: &ClusterName, namespace: &NamespaceName) -> bool {
        self.objects.keys().any(|key| is_in(key, cluster, namespace))
    }
}

fn is_in(key: &ObjectKey, cluster: &ClusterName, namespace: &NamespaceName) -> bool {
    key.cluster == *cluster && key.namespace.as_deref() == Some(namespace.as_str())
}

impl AdoptedNamespace {
    /// It waits until nothing of the former owner's is left.
    #[must_use]
    pub const fn passes(&self) -> bool {
        self.account.is_none() && self.why.is_none()
    }
}
