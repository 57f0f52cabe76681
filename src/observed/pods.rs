//! Pods as the reapers see them: when they began, how long they may live, to what job they belong. PURE: no runtime, no
//! client, no file system, no clock.
//!
//! What tenants write is kept short: a lifetime as a time or as the beginning of what it is instead.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use kube::api::ObjectMeta;

use crate::contract::{JOB, LIFETIME, MANAGED_BY, MANAGER, lifetime};

/// So much of a lifetime that is none is shown.
const SHOWN: usize = 40;

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
    /// Annotation [`LIFETIME`].
    pub lifetime: Lifetime,
    /// Label [`JOB`].
    pub job: Option<String>,
    /// Succeeded or Failed.
    pub finished: bool,
    /// It is on its way out.
    pub deleting: bool,
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

impl PodInventory {
    /// Pods of a namespace, by name.
    pub fn of_namespace<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = (&'a str, &'a ObservedPod)> {
        let from = (namespace.to_owned(), String::new());
        let there = self.pods.range(from..).take_while(move |((place, _), _)| place == namespace);
        there.map(|((_, name), pod)| (name.as_str(), pod))
    }
}

/// A pod from what the API server shows; `None` for one of ours.
#[must_use]
pub fn observe(metadata: &ObjectMeta, started: Option<Timestamp>, phase: Option<&str>) -> Option<ObservedPod> {
    let labels = metadata.labels.as_ref();
    let label = |key: &str| labels.and_then(|labels| labels.get(key)).filter(|value| !value.is_empty());
    if label(MANAGED_BY).is_some_and(|manager| manager == MANAGER) {
        return None;
    }
    let said = metadata.annotations.as_ref().and_then(|annotations| annotations.get(LIFETIME));
    Some(ObservedPod {
        uid: metadata.uid.clone()?,
        created: metadata.creation_timestamp.as_ref()?.0,
        started,
        lifetime: said.map_or(Lifetime::Unsaid, |text| {
            lifetime(text).map_or_else(|| Lifetime::Unreadable(text.chars().take(SHOWN).collect()), Lifetime::For)
        }),
        job: label(JOB).cloned(),
        finished: matches!(phase, Some("Succeeded" | "Failed")),
        deleting: metadata.deletion_timestamp.is_some(),
    })
}
