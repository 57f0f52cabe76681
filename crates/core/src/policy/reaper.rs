//! `[reaper]`: the unused workloads and namespaces that Bursar ends without an order.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::identity::ClusterName;
use crate::rules::Lifetimes;

/// `[reaper]`: the workloads and namespaces that Bursar ends without an order. A reaper that is `None` is off.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reapers {
    pub pods: Option<PodReaper>,
    /// The reaper of namespaces in which nothing runs.
    pub namespaces: Option<NamespaceReaper>,
}

impl Reapers {
    /// Whether people are warned before their pods end.
    #[must_use]
    pub fn warn_of_pods(&self) -> bool {
        self.pods.iter().flat_map(|pods| pods.classes.values()).any(|class| !class.warn.is_zero())
    }

    /// Whether pods must be watched.
    #[must_use]
    pub const fn look_at_pods(&self) -> bool {
        self.pods.is_some() || self.namespaces.is_some()
    }
}

/// `[reaper.namespaces]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceReaper {
    /// A namespace in which nothing ran for this time is suspended.
    pub idle_for: Duration,
    /// How long before the suspension the people of the namespace are warned.
    pub warn_for: Duration,
    /// The most namespaces that are suspended in one cycle.
    pub per_cycle: u64,
    /// Clusters in which a namespace is idle only if Prometheus answers and shows no use.
    pub evidence: BTreeMap<ClusterName, Evidence>,
}

/// `[reaper.namespaces.prometheus.CLUSTER]`: if the query shows that a namespace is in use, it is not idle.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Evidence {
    /// The base URL of its API; `/api/v1/query` is appended.
    pub url: String,
    /// The CA certificates in PEM, if the server's certificate comes from the site's own authority.
    pub ca_pem: Option<String>,
    /// The file of a bearer token. It is read again for each query.
    pub token: Option<PathBuf>,
    /// A query of Prometheus that returns a vector with label `namespace`. A value above 0 means that the namespace is
    /// in use.
    pub query: String,
    /// Namespaces that are always in use. An answer that lacks one of these is not trusted.
    pub control: Vec<String>,
}

/// `[reaper.pods]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodReaper {
    /// The lifetime of pods that do not set one; `None` if such pods have no end.
    pub lifetime: Option<Duration>,
    /// The most pods that are ended in one cycle.
    pub per_cycle: u64,
    /// The lifetimes of the classes that enforce them.
    pub classes: BTreeMap<String, ClassLifetimes>,
}

/// How long the pods of one class live, and when their people are warned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassLifetimes {
    pub lifetimes: Lifetimes,
    /// How long before the end people are warned; zero if they are not warned.
    pub warn: Duration,
}
