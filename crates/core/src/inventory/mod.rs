//! What is there: the state of clusters, homes and a realm as plain values.

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

/// What is there, as far as it was looked at.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Inventory {
    /// Clusters that answer; one that is absent here is not planned for, and its tenants show as waiting.
    /// Shared with the watch, which does not copy 100,000 objects for each plan.
    pub clusters: BTreeMap<ClusterName, Arc<ClusterInventory>>,
    /// Pods of clusters in which a reaper is on; one that is absent here has no evidence of anything.
    pub pods: BTreeMap<ClusterName, Arc<PodInventory>>,
    /// Namespaces that a cluster's Prometheus shows in use, where it is asked and answers.
    pub in_use: BTreeMap<ClusterName, Arc<BTreeSet<String>>>,
    /// Namespaces that others create, of clusters in which a class adopts some; one that is absent here shows none of
    /// them, which does not mean that there are none.
    pub adopted: BTreeMap<ClusterName, FoundNamespaces>,
    /// What `bursar-homed` answered about kubeconfigs that were inspected since the last cycle.
    pub homes: BTreeMap<(AccountId, ClusterName), HomeFinding>,
    /// Clusters in which the daemon's confinement is not known to be whole.
    pub unconfined: BTreeSet<ClusterName>,
}

/// The objects of one cluster that carry our label.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClusterInventory {
    /// By name.
    pub objects: SharedMap<ObjectKey, ObservedObject>,
    /// Objects that were repaired not long ago.
    pub repairs: BTreeMap<ObjectKey, Repairs>,
    /// Kinds that cannot be watched at present ([`WatchedKind::is_essential`] is none of them): what `objects` has of them,
    /// or lacks, proves nothing.
    pub blind: BTreeSet<WatchedKind>,
}

impl ClusterInventory {
    /// Whether nobody knows at present if the object is there, and how it is.
    #[must_use]
    pub fn is_blind_to(&self, key: &ObjectKey) -> bool {
        self.blind.iter().any(|watched| watched.has(key))
    }
}

/// An object with our label: a few dozen bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObservedObject {
    /// `metadata.uid`.
    pub uid: UuidText,
    /// `metadata.resourceVersion`, which orders the states of one object (Kubernetes 1.35, KEP-5504: it is a number that
    /// grows); 0 where it is none. The plan does not look at it.
    pub resource_version: u64,
    /// [`crate::digest::managed_digest`] of it.
    pub digest: DigestText,
    /// It is on its way out (`metadata.deletionTimestamp`).
    pub deleting: bool,
    /// The namespace is to be left alone although nothing runs in it.
    pub spared: bool,
    /// When the namespace was last used, as reported by the program that lets people in.
    pub last_use: Option<Timestamp>,
    /// What was observed of a quota; `None` if there is nothing to say.
    pub quota: Option<Arc<ObservedQuota>>,
    /// Who else changed it last: the program's name in `metadata.managedFields`.
    pub rival: Option<Arc<str>>,
}

/// What stands in a home, as `bursar-homed` sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HomeFinding {
    /// Our entry is there and is the delivered certificate, key and all.
    AsDelivered,
    /// It is not.
    Broken {
        /// For people.
        why: String,
    },
    /// It was not, and is again.
    Repaired {
        /// For people.
        why: String,
    },
}

/// One change of an object, by its `managedFields`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Touched {
    /// When.
    pub at: Timestamp,
    /// `deployments.apps/web`.
    pub object: String,
    /// The program, as it calls itself.
    pub by: String,
}
