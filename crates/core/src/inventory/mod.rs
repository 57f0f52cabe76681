//! The observed state of clusters, homes and a realm, as plain values.

pub mod adopted;
pub mod pods;
pub mod quota;
pub mod realm;
pub mod repairs;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use self::adopted::FoundNamespaces;
use self::pods::PodInventory;
use self::quota::ObservedQuota;
use self::repairs::Repairs;
use crate::identity::{AccountId, ClusterName};
use crate::kinds::{ObjectKey, WatchedKind};
use crate::packed_text::{DigestText, UuidText};
use crate::shared_map::SharedMap;

/// The observed state. A part that could not be observed is absent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Inventory {
    /// Clusters that answer. If a cluster is absent, nothing is planned for it, and its tenants are shown as waiting.
    /// Shared with the watch, so that a plan does not copy 100,000 objects.
    pub clusters: BTreeMap<ClusterName, Arc<ClusterInventory>>,
    /// Pods of the clusters in which a reaper is on. If a cluster is absent, its pods are unknown, and no reaper acts
    /// in it.
    pub pods: BTreeMap<ClusterName, Arc<PodInventory>>,
    /// Namespaces that a cluster's Prometheus shows in use. If a cluster is absent, its Prometheus was not asked or did
    /// not answer.
    pub in_use: BTreeMap<ClusterName, Arc<BTreeSet<String>>>,
    /// Foreign namespaces that the selectors of the classes match, by cluster. If a cluster is absent, its foreign
    /// namespaces are unknown.
    pub adopted: BTreeMap<ClusterName, FoundNamespaces>,
    /// The answers of `bursar-homed` about kubeconfigs that were inspected since the last cycle.
    pub homes: BTreeMap<(AccountId, ClusterName), HomeFinding>,
    /// Clusters in which the daemon's confinement is not confirmed: the admission policy that confines the daemon is
    /// missing, was changed, is not enforced, or has not been checked yet.
    pub unconfined: BTreeSet<ClusterName>,
}

/// The objects of one cluster that carry our label.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClusterInventory {
    pub objects: SharedMap<ObjectKey, ObservedObject>,
    /// Objects that were repaired recently.
    pub repairs: BTreeMap<ObjectKey, Repairs>,
    /// Kinds that cannot be watched at present, but never an essential kind ([`WatchedKind::is_essential`]). The state
    /// of their objects is unknown, even if `objects` has some.
    pub blind: BTreeSet<WatchedKind>,
}

impl ClusterInventory {
    /// Whether the state of the object is unknown, because its kind cannot be watched at present.
    #[must_use]
    pub fn is_blind_to(&self, key: &ObjectKey) -> bool {
        self.blind.iter().any(|watched| watched.has(key))
    }

    /// Returns the earliest time after `since` at which the wait of a repair ends; `None` if no repair waits.
    #[must_use]
    pub fn next_repair(&self, since: Timestamp, now: Timestamp) -> Option<Timestamp> {
        let ends = self.repairs.iter().map(|(key, repairs)| repairs.wait_after(since, key.kind.stage(), now));
        ends.flatten().min()
    }
}

/// The observed state of an object with our label. It is small, because there may be 100,000 of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObservedObject {
    /// `metadata.uid`.
    pub uid: UuidText,
    /// `metadata.resourceVersion`; 0 if it is not a number. Since Kubernetes 1.35 (KEP-5504) it is a growing number, so
    /// the watch uses it to drop an older state. Plans ignore it.
    pub resource_version: u64,
    /// [`crate::digest::managed_digest`] of the object, or `released` for a volume whose claim is gone.
    pub digest: DigestText,
    /// Whether the object is being deleted (`metadata.deletionTimestamp` is set).
    pub deleting: bool,
    /// Whether the namespace has the annotation `bursar.dev/keep: true`. If so, it counts as used although nothing runs
    /// in it.
    pub spared: bool,
    /// `None` if all fields of [`Rare`] are empty, as they are for most objects.
    pub rare: Option<Arc<Rare>>,
}

/// The parts of [`ObservedObject`] that few objects have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rare {
    /// When the namespace was last used, from the annotation `bursar.dev/last-use` that a portal or gateway of the site
    /// sets.
    pub last_use: Option<Timestamp>,
    /// The observed use and edits of a quota; `None` if there are none.
    pub quota: Option<ObservedQuota>,
    /// The last field manager other than Bursar that wrote to the object. Writes to subresources such as `status` do
    /// not count.
    pub rival: Option<String>,
    /// Whether the object is a binding that is being deleted and names nobody any more.
    pub emptied: bool,
}

impl Rare {
    /// Returns the parts; `None` if all of them are empty.
    #[must_use]
    pub fn if_any(self) -> Option<Arc<Self>> {
        (self != Self::default()).then(|| Arc::new(self))
    }
}

impl ObservedObject {
    /// Returns [`Rare::last_use`].
    #[must_use]
    pub fn last_use(&self) -> Option<Timestamp> {
        self.rare.as_ref()?.last_use
    }

    /// Returns [`Rare::quota`].
    #[must_use]
    pub fn quota(&self) -> Option<&ObservedQuota> {
        self.rare.as_ref()?.quota.as_ref()
    }

    /// Returns [`Rare::emptied`].
    #[must_use]
    pub fn is_emptied(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.emptied)
    }

    /// Returns [`Rare::rival`].
    #[must_use]
    pub fn rival(&self) -> Option<&str> {
        self.rare.as_ref()?.rival.as_deref()
    }
}

/// The state of our kubeconfig entry in a home, as `bursar-homed` reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HomeFinding {
    /// Our entry is present and holds the delivered credential, including its key.
    AsDelivered,
    /// The entry is missing or differs from the delivered one.
    Broken {
        /// The reason, as a text for administrators.
        why: String,
    },
    /// The entry was missing or differed, and `bursar-homed` has written it again.
    Repaired {
        /// The reason, as a text for administrators.
        why: String,
    },
}

/// A change of an object, from its `metadata.managedFields`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Touched {
    pub at: Timestamp,
    /// The object, such as `deployments.apps/web`.
    pub object: String,
    /// The field manager that made the change.
    pub by: String,
}
