//! The pods of a cluster, with what the reapers need: their start, their lifetime and their job.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::contract::lifetime;

/// How many characters of an unreadable lifetime Bursar keeps. Tenants write this text, so it can have any length.
const SHOWN: usize = 40;

/// The grace period, in seconds, with which Bursar deletes pods. Bursar ignores the pod's own value, because a tenant
/// may set it to years.
pub const GRACE: i64 = 30;

/// How long a kubelet may need to report the end of a pod after its grace period.
const REPORTED_WITHIN: SignedDuration = SignedDuration::from_mins(1);

/// Returns whether the kubelet should have reported the pod's end by now. `ends_by` is `metadata.deletionTimestamp`.
#[must_use]
pub fn is_late(ends_by: Timestamp, now: Timestamp) -> bool {
    now.duration_since(ends_by) > REPORTED_WITHIN
}

/// The pods of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodInventory {
    /// Pods by namespace and name.
    pub pods: BTreeMap<(String, String), ObservedPod>,
}

/// The observed state of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedPod {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.creationTimestamp`.
    pub created: Timestamp,
    /// `status.startTime`, which is set when a node has accepted the pod.
    pub started: Option<Timestamp>,
    /// The lifetime in the annotation [`LIFETIME`](crate::contract::LIFETIME).
    pub lifetime: Lifetime,
    /// The label [`JOB`](crate::contract::JOB).
    pub job: Option<String>,
    /// Whether the pod has succeeded or failed.
    pub finished: bool,
    /// `metadata.deletionTimestamp`, if the pod is being deleted with a grace period of at most [`GRACE`] seconds.
    pub ends_by: Option<Timestamp>,
    /// The annotation [`ENDS_AT`](crate::contract::ENDS_AT): the end that was announced to the pod's people.
    pub told: Option<String>,
    /// The controller that would recreate the pod.
    pub maker: Option<Maker>,
}

/// A controller, from the `ownerReferences` of an object that it made. Tenants can write `ownerReferences`, so Bursar
/// reads the controller itself before it relies on such a reference. Like Kubernetes' controllers, Bursar ignores the
/// API version in the reference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Maker {
    /// The kind, such as `ReplicaSet`.
    pub kind: String,
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
}

/// The lifetime that a pod asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lifetime {
    /// The pod has no such annotation.
    Unsaid,
    /// A duration, counted from the start of the pod.
    For(Duration),
    /// The annotation is not a duration. This is the beginning of its text.
    Unreadable(String),
}

impl Lifetime {
    /// Parses the annotation [`LIFETIME`](crate::contract::LIFETIME). `said` is `None` if the annotation is absent.
    #[must_use]
    pub fn read(said: Option<&str>) -> Self {
        said.map_or(Self::Unsaid, |text| {
            lifetime(text).map_or_else(|| Self::Unreadable(text.chars().take(SHOWN).collect()), Self::For)
        })
    }
}

impl PodInventory {
    /// Returns the pods of a namespace with their names.
    pub fn of_namespace<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = (&'a str, &'a ObservedPod)> {
        let from = (namespace.to_owned(), String::new());
        let there = self.pods.range(from..).take_while(move |((place, _), _)| place == namespace);
        there.map(|((_, name), pod)| (name.as_str(), pod))
    }
}
