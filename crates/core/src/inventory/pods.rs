//! Pods as the reapers see them: when they began, how long they may live, to what job they belong.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::contract::lifetime;

/// Tenants write lifetimes: so many characters of one that does not parse are kept.
const SHOWN: usize = 40;

/// Seconds that a pod which Bursar ends may take: Kubernetes' default. A tenant may ask for years
/// (`terminationGracePeriodSeconds`).
pub const GRACE: i64 = 30;

/// Pods of a cluster by namespace and name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodInventory {
    /// By namespace, then name.
    pub pods: BTreeMap<(String, String), ObservedPod>,
}

/// One pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedPod {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.creationTimestamp`.
    pub created: Timestamp,
    /// `status.startTime`: a node has it.
    pub started: Option<Timestamp>,
    /// Annotation [`LIFETIME`](crate::contract::LIFETIME).
    pub lifetime: Lifetime,
    /// Label [`JOB`](crate::contract::JOB).
    pub job: Option<String>,
    /// Succeeded or Failed.
    pub finished: bool,
    /// It is on its way out, and takes no longer than [`GRACE`].
    pub deleting: bool,
    /// Annotation [`ENDS_AT`](crate::contract::ENDS_AT): its people were told so.
    pub told: Option<String>,
    /// The controller that would make it again.
    pub maker: Option<Maker>,
}

/// A controller, as the `ownerReferences` of what it made name it. Tenants write these: it is read before it is believed.
/// Controllers ignore the version in them, so Bursar does, too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Maker {
    /// `ReplicaSet`.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
}

/// How long a pod may live.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lifetime {
    /// It does not say.
    Unsaid,
    /// So long from its start.
    For(Duration),
    /// It says something else; the beginning of it.
    Unreadable(String),
}

impl Lifetime {
    /// Reads annotation [`LIFETIME`](crate::contract::LIFETIME), where there is one.
    #[must_use]
    pub fn read(said: Option<&str>) -> Self {
        said.map_or(Self::Unsaid, |text| {
            lifetime(text).map_or_else(|| Self::Unreadable(text.chars().take(SHOWN).collect()), Self::For)
        })
    }
}

impl PodInventory {
    /// Pods of a namespace, by name.
    pub fn of_namespace<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = (&'a str, &'a ObservedPod)> {
        let from = (namespace.to_owned(), String::new());
        let there = self.pods.range(from..).take_while(move |((place, _), _)| place == namespace);
        there.map(|((_, name), pod)| (name.as_str(), pod))
    }
}
