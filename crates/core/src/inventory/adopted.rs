//! Namespaces that others create and that a class's selector takes, as the API server shows them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::contract::POD_SECURITY_ENFORCE;
use crate::identity::{ClusterName, NamespaceName};
use crate::policy::{Adopts, PodSecurity, Policy, Selector};

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
    /// Its level of Pod Security, as its label says.
    pub level: Option<String>,
}

/// A level of Pod Security that is weaker than the class asks for. Only the maker of the namespace changes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weaker {
    /// For people.
    pub what: String,
    /// A command.
    pub remedy: String,
}

impl fmt::Display for Weaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; run: {}", self.what, self.remedy)
    }
}

impl FoundNamespace {
    /// What is said of a level that is weaker than the class asks for.
    #[must_use]
    pub fn weaker(&self, name: &NamespaceName, class: &str, wanted: PodSecurity) -> Option<Weaker> {
        let level = self.level.as_deref()?;
        let is_weaker = PodSecurity::of(level).is_none_or(|level| level < wanted);
        let wanted = wanted.as_str();
        is_weaker.then(|| Weaker {
            what: format!(
                "namespace {name} has Pod Security level {level:?}, class {class} asks for {wanted}, and Bursar changes no \
                 level that is there"
            ),
            remedy: format!("kubectl label namespace {name} {POD_SECURITY_ENFORCE}={wanted} --overwrite"),
        })
    }
}

/// All namespaces of a cluster whose level is weaker than their class asks for.
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
