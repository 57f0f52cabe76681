//! What is there: the state of clusters and homes as plain values. The types here, `digest` and `certificate` are
//! PURE; `cluster` watches and `homes` asks.

pub mod digest;

use std::collections::BTreeMap;

use crate::identity::{AccountId, ClusterName};
use crate::ledger::ObjectKey;

/// What is there, as far as it was looked at.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Inventory {
    /// Clusters that answer; one that is absent here is not planned for, and its tenants show as waiting.
    pub clusters: BTreeMap<ClusterName, ClusterInventory>,
    /// What `bursar-homed` answered about kubeconfigs that were inspected since the last cycle.
    pub homes: BTreeMap<(AccountId, ClusterName), HomeFinding>,
}

/// The objects of one cluster that carry our label.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClusterInventory {
    /// By name.
    pub objects: BTreeMap<ObjectKey, ObservedObject>,
}

/// An object with our label: a few dozen bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedObject {
    /// `metadata.uid`.
    pub uid: String,
    /// [`digest::managed_digest`] of it.
    pub digest: String,
    /// It is on its way out (`metadata.deletionTimestamp`).
    pub deleting: bool,
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
}
