//! Foreign namespaces that a class's selector matches, as the API server shows them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::contract::POD_SECURITY_ENFORCE;
use crate::identity::{ClusterName, NamespaceName};
use crate::policy::{Adopts, PodSecurity, Policy, Selector};

/// The foreign namespaces of one cluster, by name.
pub type FoundNamespaces = BTreeMap<NamespaceName, FoundNamespace>;

/// A foreign namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FoundNamespace {
    /// `metadata.uid`.
    pub uid: String,
    /// The selectors that match it.
    pub selectors: BTreeSet<String>,
    /// The values of the annotations in which classes look for the owner (`owner_annotation`).
    pub annotations: BTreeMap<String, String>,
    /// Whether the namespace is Bursar's own (label `bursar.dev/class`, or managed by `bursar`). If so, it is not
    /// adopted.
    pub ours: bool,
    /// Whether the namespace is being deleted.
    pub deleting: bool,
    /// The Pod Security level in its label; `None` without that label.
    pub level: Option<String>,
}

/// A Pod Security level that is weaker than the class asks for. Bursar does not change it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weaker {
    /// The problem, as a text for administrators.
    pub what: String,
    /// The command that remedies it.
    pub remedy: String,
}

impl fmt::Display for Weaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; run: {}", self.what, self.remedy)
    }
}

impl FoundNamespace {
    /// Returns the finding if the level is weaker than `wanted`.
    #[must_use]
    pub fn weaker(&self, name: &NamespaceName, class: &str, wanted: PodSecurity) -> Option<Weaker> {
        let level = self.level.as_deref()?;
        let is_weaker = PodSecurity::of(level).is_none_or(|level| level < wanted);
        let wanted = wanted.as_str();
        is_weaker.then(|| Weaker {
            what: format!(
                "namespace {name} has Pod Security level {level:?}, but class {class} asks for {wanted}; Bursar does not \
                 change an existing level"
            ),
            remedy: format!("kubectl label namespace {name} {POD_SECURITY_ENFORCE}={wanted} --overwrite"),
        })
    }
}

/// Returns a finding for each namespace of a cluster whose level is weaker than its class asks for.
#[must_use]
pub fn weaker(policy: &Policy, cluster: &ClusterName, found: &FoundNamespaces) -> Vec<Weaker> {
    let here = policy.classes.values().filter(|class| class.clusters.contains(cluster));
    let classes: Vec<(&str, &Selector, PodSecurity)> = here
        .filter_map(|class| {
            let Adopts { selector, pod_security, .. } = class.adopts()?;
            Some((class.name.as_str(), selector, (*pod_security)?))
        })
        .collect();
    let each = found.iter().filter(|(_, one)| !one.ours && !one.deleting).flat_map(|(name, one)| {
        let theirs = classes.iter().filter(|(_, selector, _)| one.selectors.contains(selector.as_str()));
        theirs.filter_map(move |(class, _, wanted)| one.weaker(name, class, *wanted))
    });
    each.collect()
}

/// The annotations to read, by selector.
pub type Wanted = BTreeMap<String, BTreeSet<String>>;

/// Returns the selectors and owner annotations of the classes that adopt namespaces in `cluster`.
#[must_use]
pub fn wanted(policy: &Policy, cluster: &ClusterName) -> Wanted {
    let here = policy.classes.values().filter(|class| class.clusters.contains(cluster));
    let mut wanted = Wanted::new();
    for Adopts { selector, owner_annotation, .. } in here.filter_map(|class| class.adopts()) {
        wanted.entry(selector.as_str().to_owned()).or_default().insert(owner_annotation.clone());
    }
    wanted
}

/// Merges what several selectors found. If several selectors match the same namespace, the results are combined.
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
