//! Namespaces that others create and that a class's selector takes, as the API server shows them.

use std::collections::{BTreeMap, BTreeSet};

use crate::identity::{ClusterName, NamespaceName};
use crate::policy::{Adopts, Policy};

/// Those of one cluster.
pub type FoundNamespaces = BTreeMap<NamespaceName, FoundNamespace>;

/// One of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FoundNamespace {
    /// `metadata.uid`.
    pub uid: String,
    /// Selectors that take it.
    pub selectors: BTreeSet<String>,
    /// Those annotations that name owners.
    pub annotations: BTreeMap<String, String>,
    /// It is a tenant's, or something else of ours.
    pub ours: bool,
    /// It is on its way out.
    pub deleting: bool,
}

/// What is looked at: annotations, by selector.
pub type Wanted = BTreeMap<String, BTreeSet<String>>;

/// What the classes of `cluster` look at.
#[must_use]
pub fn wanted(policy: &Policy, cluster: &ClusterName) -> Wanted {
    let here = policy.classes.values().filter(|class| class.clusters.contains(cluster));
    let mut wanted = Wanted::new();
    for Adopts { selector, owner_annotation, .. } in here.filter_map(|class| class.adopts()) {
        wanted.entry(selector.as_str().to_owned()).or_default().insert(owner_annotation.clone());
    }
    wanted
}

/// What several selectors found, as one.
#[must_use]
pub fn together<'a>(found: impl IntoIterator<Item = &'a FoundNamespaces>) -> FoundNamespaces {
    let mut all = FoundNamespaces::new();
    for (name, one) in found.into_iter().flatten() {
        let known = all.entry(name.clone()).or_insert_with(|| one.clone());
        known.selectors.extend(one.selectors.iter().cloned());
        known.annotations.extend(one.annotations.clone());
    }
    all
}
