//! The kinds of objects. [`ManagedKind`] is the table of the kinds that Bursar creates; the other types address any
//! kind at the API server, and name one object.

mod managed;

use std::cmp::Ordering;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use serde::Serialize;
use serde::ser::{SerializeStruct as _, Serializer};
use serde_json::Value;

use crate::identity::{ClusterName, NamespaceName, shell_word};
use crate::shared_text::SharedText;

pub use managed::{Data, Detail, DriftKey, MANAGED_VERBS, ManagedKind, Row, Stage, Watch};

/// Names one object of a cluster. Copies of a key share one [`ObjectName`], because the ledger, the watch and the
/// desired state each have a key for every object.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ObjectKey(Arc<ObjectName>);

/// The content of an [`ObjectKey`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct ObjectName {
    pub cluster: ClusterName,
    /// The API version and the kind; in JSON, the fields `api_version` and `kind`.
    #[serde(flatten)]
    pub kind: ObjectKind,
    /// `metadata.namespace`; `None` for cluster-scoped objects.
    pub namespace: Option<SharedText>,
    /// `metadata.name`.
    pub name: SharedText,
}

#[cfg(any(test, feature = "testing"))]
impl ObjectKey {
    /// Returns the address of the shared name. All copies of a key have the same address.
    #[must_use]
    pub fn address(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }
}

impl From<ObjectName> for ObjectKey {
    fn from(name: ObjectName) -> Self {
        Self(Arc::new(name))
    }
}

impl Deref for ObjectKey {
    type Target = ObjectName;

    fn deref(&self) -> &ObjectName {
        &self.0
    }
}

impl PartialOrd for ObjectKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ObjectKey {
    fn cmp(&self, other: &Self) -> Ordering {
        if Arc::ptr_eq(&self.0, &other.0) { Ordering::Equal } else { self.0.cmp(&other.0) }
    }
}

impl fmt::Display for ObjectKey {
    /// Writes, for example, `ResourceQuota bursar in namespace tool-foo`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)?;
        self.namespace.as_ref().map_or(Ok(()), |namespace| write!(f, " in namespace {namespace}"))
    }
}

impl Serialize for ObjectKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl ObjectKey {
    /// Returns the key in the form that `bursar adopt` takes: `resourcequota tool-foo/bursar`, `namespace tool-foo`.
    #[must_use]
    pub fn said(&self) -> String {
        let place = self.namespace.as_ref().map(|namespace| format!("{namespace}/")).unwrap_or_default();
        format!("{} {place}{}", self.kind.as_str().to_lowercase(), self.name)
    }

    /// Returns the command that deletes the object.
    #[must_use]
    pub fn deletion(&self) -> String {
        deletion(self.kind.as_str(), self.namespace.as_deref(), &self.name)
    }

    #[must_use]
    pub fn new(cluster: &ClusterName, kind: impl Into<ObjectKind>, namespace: Option<&str>, name: &str) -> Self {
        let (namespace, name) = (namespace.map(Into::into), name.into());
        ObjectName { cluster: cluster.clone(), kind: kind.into(), namespace, name }.into()
    }

    /// Returns the key of a namespace.
    #[must_use]
    pub fn namespace(cluster: &ClusterName, name: &NamespaceName) -> Self {
        Self::new(cluster, ManagedKind::Namespace, None, name.as_str())
    }
}

/// Returns the command that deletes an object. The names of roles and bindings may have any characters.
#[must_use]
pub fn deletion(kind: &str, namespace: Option<&str>, name: &str) -> String {
    let place = namespace.map(|namespace| format!(" -n {namespace}")).unwrap_or_default();
    format!("kubectl delete {} {}{place}", kind.to_lowercase(), shell_word(name))
}

/// The kind of an object: a row of the table, or any other kind.
///
/// Kinds are ordered by their API version and name as texts, so that maps, goldens and hashes do not depend on the
/// table.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ObjectKind {
    Managed(ManagedKind),
    /// A kind of a site's manifest or of a tenant's workload. Only [`ObjectKind::of`] creates this variant, so it never
    /// holds a managed kind.
    Other(Box<OtherKind>),
}

/// A kind that is not in the table.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OtherKind {
    api_version: String,
    kind: String,
}

impl ObjectKind {
    /// Returns the kind with this API version and name.
    #[must_use]
    pub fn of(api_version: &str, kind: &str) -> Self {
        match ManagedKind::of(api_version, kind) {
            Some(managed) => Self::Managed(managed),
            None => Self::Other(Box::new(OtherKind { api_version: api_version.to_owned(), kind: kind.to_owned() })),
        }
    }

    /// Returns the kind of a manifest, from its `apiVersion` and `kind`.
    #[must_use]
    pub fn of_manifest(manifest: &Value) -> Self {
        let text = |key: &str| manifest[key].as_str().unwrap_or_default();
        Self::of(text("apiVersion"), text("kind"))
    }

    /// Returns the API version, such as `rbac.authorization.k8s.io/v1`.
    #[must_use]
    pub fn api_version(&self) -> &str {
        match self {
            Self::Managed(kind) => kind.row().api_version,
            Self::Other(kind) => &kind.api_version,
        }
    }

    /// Returns the name of the kind, such as `RoleBinding`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Managed(kind) => kind.row().kind,
            Self::Other(kind) => &kind.kind,
        }
    }

    /// Returns the row that applies to the kind. A kind of another API with the name of a managed kind, such as
    /// Calico's `NetworkPolicy`, uses that row too, because both kinds serve the same purpose.
    fn row(&self) -> Option<&'static Row> {
        match self {
            Self::Managed(kind) => Some(kind.row()),
            Self::Other(kind) => ManagedKind::named(&kind.kind).map(ManagedKind::row),
        }
    }

    /// When objects of the kind are applied and deleted.
    #[must_use]
    pub fn stage(&self) -> Stage {
        self.row().map_or(Stage::Content, |row| row.stage)
    }

    /// The key of a class's `drift` that applies to the kind.
    #[must_use]
    pub fn drift(&self) -> DriftKey {
        self.row().map_or(DriftKey::Manifests, |row| row.drift)
    }

    /// The word for one object in plans.
    #[must_use]
    pub fn noun(&self) -> &str {
        self.row().map_or(self.as_str(), |row| row.noun)
    }

    /// The word for several objects in plans.
    #[must_use]
    pub fn nouns(&self) -> String {
        self.row().map_or_else(|| format!("{}s", self.as_str()), |row| row.nouns.to_owned())
    }

    /// See [`Row::place_in_text`].
    #[must_use]
    pub fn place_in_text(&self) -> u8 {
        self.row().map_or(managed::OTHERS_IN_TEXT, |row| row.place_in_text)
    }

    /// How the daemon watches the kind.
    #[must_use]
    pub fn watch(&self) -> Watch {
        self.row().map_or(Watch::IfUsed, |row| row.watch)
    }

    /// Whether the daemon creates objects of this kind in namespaces that a class adopts.
    #[must_use]
    pub fn in_adopted(&self) -> bool {
        self.row().is_some_and(|row| row.in_adopted)
    }

    /// The data that a deletion can destroy.
    #[must_use]
    pub fn data(&self) -> Data {
        self.row().map_or(Data::None, |row| row.data)
    }

    /// The part of an applied object that the ledger stores in addition to its digests.
    #[must_use]
    pub fn detail(&self) -> Detail {
        self.row().map_or(Detail::None, |row| row.detail)
    }

    /// Whether a class may have manifests of this kind.
    #[must_use]
    pub fn site_may_bring(&self) -> bool {
        self.row().map_or_else(|| !CLUSTER_WIDE.contains(&self.as_str()), |row| row.site_may_bring)
    }
}

/// Kinds, in addition to those of the table, that manifests of a class must not have: they are cluster-scoped or grant
/// rights.
const CLUSTER_WIDE: [&str; 6] = [
    "ClusterRole",
    "CustomResourceDefinition",
    "Node",
    "StorageClass",
    "ValidatingWebhookConfiguration",
    "MutatingWebhookConfiguration",
];

impl From<ManagedKind> for ObjectKind {
    fn from(kind: ManagedKind) -> Self {
        Self::Managed(kind)
    }
}

impl PartialEq<ManagedKind> for ObjectKind {
    fn eq(&self, other: &ManagedKind) -> bool {
        matches!(self, Self::Managed(kind) if kind == other)
    }
}

impl PartialOrd for ObjectKind {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ObjectKind {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            // Most comparisons are between objects of one kind.
            (Self::Managed(one), Self::Managed(other)) if one == other => Ordering::Equal,
            _ => (self.api_version(), self.as_str()).cmp(&(other.api_version(), other.as_str())),
        }
    }
}

impl Serialize for ObjectKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("ObjectKind", 2)?;
        fields.serialize_field("api_version", self.api_version())?;
        fields.serialize_field("kind", self.as_str())?;
        fields.end()
    }
}

/// Writes the name of the kind, such as `RoleBinding`.
impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A kind as an API server serves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedKind {
    /// `v1`, `rbac.authorization.k8s.io/v1`.
    pub api_version: String,
    /// `RoleBinding`.
    pub kind: String,
    /// `rolebindings`.
    pub plural: String,
    /// Whether its objects are in namespaces.
    pub namespaced: bool,
}

impl ServedKind {
    /// The API group; empty for the core group.
    #[must_use]
    pub fn group(&self) -> &str {
        group(&self.api_version)
    }

    /// Returns the path of one object. Without `name`, returns the path of all objects; without `namespace`, the path
    /// for all namespaces.
    #[must_use]
    pub fn path(&self, namespace: Option<&str>, name: Option<&str>) -> String {
        let root = if self.api_version.contains('/') { "/apis" } else { "/api" };
        let mut path = format!("{root}/{}", self.api_version);
        if let Some(namespace) = namespace.filter(|_| self.namespaced) {
            path.push_str("/namespaces/");
            path.push_str(namespace);
        }
        path.push('/');
        path.push_str(&self.plural);
        if let Some(name) = name {
            path.push('/');
            path.push_str(name);
        }
        path
    }
}

fn group(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

/// Kinds that every cluster serves, in addition to those of the table: apiVersion, kind, plural, namespaced (see
/// `kubectl api-resources`).
const EVERYWHERE: &[(&str, &str, &str, bool)] = &[
    ("certificates.k8s.io/v1", "CertificateSigningRequest", "certificatesigningrequests", false),
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies", false),
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", false),
    ("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", "validatingwebhookconfigurations", false),
    ("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations", false),
    ("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", true),
    ("v1", "ConfigMap", "configmaps", true),
    ("v1", "Service", "services", true),
    ("v1", "Pod", "pods", true),
    ("v1", "ReplicationController", "replicationcontrollers", true),
    ("apps/v1", "Deployment", "deployments", true),
    ("apps/v1", "StatefulSet", "statefulsets", true),
    ("apps/v1", "ReplicaSet", "replicasets", true),
    ("apps/v1", "DaemonSet", "daemonsets", true),
    ("batch/v1", "CronJob", "cronjobs", true),
    ("batch/v1", "Job", "jobs", true),
    ("rbac.authorization.k8s.io/v1", "Role", "roles", true),
    ("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles", false),
];

/// Returns a kind that every cluster serves; `None` if the kind must be discovered.
#[must_use]
pub fn everywhere(kind: &ObjectKind) -> Option<ServedKind> {
    let (plural, namespaced) = match kind {
        ObjectKind::Managed(managed) => (managed.row().plural, managed.row().namespaced),
        ObjectKind::Other(other) => {
            let OtherKind { api_version, kind } = &**other;
            let known = EVERYWHERE.iter().find(|known| known.0 == api_version && known.1 == kind)?;
            (known.2, known.3)
        }
    };
    Some(ServedKind {
        api_version: kind.api_version().to_owned(),
        kind: kind.as_str().to_owned(),
        plural: plural.to_owned(),
        namespaced,
    })
}

/// The objects of one watch or list: all objects of a kind, or only the object with one name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct WatchedKind {
    pub kind: ObjectKind,
    /// If set, only objects with this name.
    pub only: Option<String>,
}

impl WatchedKind {
    /// Whether plans need the kind, because the kind is the namespace, limits tenants or grants access. If a cluster
    /// does not show such a kind, nothing is planned for the cluster. If any other kind cannot be watched, only the
    /// objects of that kind wait.
    #[must_use]
    pub const fn is_essential(&self) -> bool {
        let ObjectKind::Managed(kind) = &self.kind else { return false };
        kind.row().stage.is_essential()
    }

    /// Whether the watch includes the object.
    #[must_use]
    pub fn has(&self, key: &ObjectKey) -> bool {
        self.kind == key.kind && self.only.as_ref().is_none_or(|only| key.name == *only)
    }
}

impl From<ManagedKind> for WatchedKind {
    fn from(kind: ManagedKind) -> Self {
        Self { kind: kind.into(), only: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_the_api_server() {
        let binding = everywhere(&ManagedKind::RoleBinding.into()).expect("every cluster serves the kind");
        assert_eq!(
            binding.path(Some("tool-foo"), Some("bursar-edit")),
            "/apis/rbac.authorization.k8s.io/v1/namespaces/tool-foo/rolebindings/bursar-edit"
        );
        let namespace = everywhere(&ManagedKind::Namespace.into()).expect("every cluster serves the kind");
        assert_eq!(namespace.path(Some("ignored"), Some("tool-foo")), "/api/v1/namespaces/tool-foo");
        assert_eq!(namespace.path(None, None), "/api/v1/namespaces");
        assert_eq!(
            everywhere(&ObjectKind::of("apps/v1", "Deployment")).map(|kind| kind.plural),
            Some("deployments".to_owned())
        );
        assert_eq!(everywhere(&ObjectKind::of("example.org/v1", "Deployment")), None);
    }

    #[test]
    fn kinds_inside_and_outside_the_table_are_ordered_by_their_texts() {
        let texts = |kind: &ObjectKind| (kind.api_version().to_owned(), kind.as_str().to_owned());
        let others = [("apps/v1", "Deployment"), ("v1", "Pod"), ("v1", ""), ("", ""), ("w1", "A")];
        let mut kinds: Vec<ObjectKind> = ManagedKind::ALL.iter().map(|kind| (*kind).into()).collect();
        kinds.extend(others.map(|(api_version, kind)| ObjectKind::of(api_version, kind)));
        let mut by_text = kinds.clone();
        kinds.sort();
        by_text.sort_by_key(texts);
        assert_eq!(kinds, by_text);
    }

    #[test]
    fn a_kind_of_another_api_has_the_row_of_the_managed_kind_of_its_name() {
        let calico = ObjectKind::of("projectcalico.org/v3", "NetworkPolicy");
        assert!(calico != ManagedKind::NetworkPolicy);
        assert_eq!(
            (calico.stage(), calico.drift(), calico.noun()),
            (Stage::Limits, DriftKey::Network, "network policy")
        );
        assert!(!ObjectKind::of("example.org/v1", "Namespace").site_may_bring());
        assert!(!ObjectKind::of("storage.k8s.io/v1", "StorageClass").site_may_bring());
    }
}
