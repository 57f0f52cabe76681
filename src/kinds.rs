//! Kinds of objects: how the API server addresses them, in what order they are applied, and which object is meant.
//! PURE: no runtime, no client, no file system, no clock.

use serde::{Deserialize, Serialize};

use crate::identity::{ClusterName, NamespaceName};

/// Names one object of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ObjectKey {
    /// The cluster.
    pub cluster: ClusterName,
    /// `apiVersion`, e.g. `rbac.authorization.k8s.io/v1`.
    pub api_version: String,
    /// `kind`.
    pub kind: String,
    /// `metadata.namespace`; absent for what is cluster-scoped.
    pub namespace: Option<String>,
    /// `metadata.name`.
    pub name: String,
}

impl ObjectKey {
    /// As people name it to `bursar adopt`: `resourcequota tool-foo/bursar`, `namespace tool-foo`.
    #[must_use]
    pub fn said(&self) -> String {
        let place = self.namespace.as_ref().map(|namespace| format!("{namespace}/")).unwrap_or_default();
        format!("{} {place}{}", self.kind.to_lowercase(), self.name)
    }

    /// Of a namespace.
    #[must_use]
    pub fn namespace(cluster: &ClusterName, name: &NamespaceName) -> Self {
        Self {
            cluster: cluster.clone(),
            api_version: "v1".to_owned(),
            kind: "Namespace".to_owned(),
            namespace: None,
            name: name.to_string(),
        }
    }
}

/// A kind of object, as the API server addresses it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kind {
    /// `v1`, `rbac.authorization.k8s.io/v1`.
    pub api_version: String,
    /// `RoleBinding`.
    pub kind: String,
    /// `rolebindings`.
    pub plural: String,
    /// It lives in namespaces.
    pub namespaced: bool,
}

impl Kind {
    /// The path of one object, or of all of them where `name` is absent; in all namespaces where `namespace` is.
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

/// Kinds of every cluster (`kubectl api-resources`): apiVersion, kind, plural, namespaced.
const EVERYWHERE: &[(&str, &str, &str, bool)] = &[
    ("certificates.k8s.io/v1", "CertificateSigningRequest", "certificatesigningrequests", false),
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies", false),
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", false),
    ("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", "validatingwebhookconfigurations", false),
    ("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations", false),
    ("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", true),
    ("v1", "Namespace", "namespaces", false),
    ("v1", "PersistentVolume", "persistentvolumes", false),
    ("v1", "ResourceQuota", "resourcequotas", true),
    ("v1", "LimitRange", "limitranges", true),
    ("v1", "PersistentVolumeClaim", "persistentvolumeclaims", true),
    ("v1", "Secret", "secrets", true),
    ("v1", "ConfigMap", "configmaps", true),
    ("v1", "Service", "services", true),
    ("v1", "ServiceAccount", "serviceaccounts", true),
    ("v1", "Pod", "pods", true),
    ("v1", "ReplicationController", "replicationcontrollers", true),
    ("apps/v1", "Deployment", "deployments", true),
    ("apps/v1", "StatefulSet", "statefulsets", true),
    ("apps/v1", "ReplicaSet", "replicasets", true),
    ("apps/v1", "DaemonSet", "daemonsets", true),
    ("batch/v1", "CronJob", "cronjobs", true),
    ("batch/v1", "Job", "jobs", true),
    ("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies", true),
    ("rbac.authorization.k8s.io/v1", "Role", "roles", true),
    ("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings", true),
    ("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles", false),
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "clusterrolebindings", false),
];

/// A kind of the table.
#[must_use]
pub fn everywhere(api_version: &str, kind: &str) -> Option<Kind> {
    EVERYWHERE.iter().find(|known| known.0 == api_version && known.1 == kind).map(|known| Kind {
        api_version: known.0.to_owned(),
        kind: known.1.to_owned(),
        plural: known.2.to_owned(),
        namespaced: known.3,
    })
}

/// What is watched, and what a list is complete for: a kind, or its objects of one name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct WatchedKind {
    /// `apiVersion`.
    pub api_version: String,
    /// `kind`.
    pub kind: String,
    /// Objects of this name only.
    pub only: Option<String>,
}

/// Kinds are applied in this order and deleted in the reverse of it: a namespace before what is in it, and the
/// bindings last, so that nobody works in a namespace whose quota and policies are not there yet.
#[must_use]
pub fn apply_order(kind: &str) -> u8 {
    match kind {
        "Namespace" => 0,
        "ResourceQuota" | "LimitRange" | "NetworkPolicy" => 1,
        "PersistentVolume" => 2,
        "RoleBinding" | "ClusterRoleBinding" => 4,
        _ => 3,
    }
}

/// Kinds that give access.
#[must_use]
pub fn is_binding(kind: &str) -> bool {
    matches!(kind, "RoleBinding" | "ClusterRoleBinding")
}

/// The key in a class's `drift` that speaks of objects of this kind.
#[must_use]
pub fn drift_key(kind: &str) -> &'static str {
    match kind {
        "Namespace" => "namespace",
        "ResourceQuota" => "quota",
        "LimitRange" => "limits",
        "NetworkPolicy" => "network",
        "RoleBinding" | "ClusterRoleBinding" => "roles",
        "PersistentVolume" | "PersistentVolumeClaim" => "volumes",
        _ => "manifests",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_the_api_server() {
        let binding = everywhere("rbac.authorization.k8s.io/v1", "RoleBinding").expect("known");
        assert_eq!(
            binding.path(Some("tool-foo"), Some("bursar-edit")),
            "/apis/rbac.authorization.k8s.io/v1/namespaces/tool-foo/rolebindings/bursar-edit"
        );
        let namespace = everywhere("v1", "Namespace").expect("known");
        assert_eq!(namespace.path(Some("ignored"), Some("tool-foo")), "/api/v1/namespaces/tool-foo");
        assert_eq!(namespace.path(None, None), "/api/v1/namespaces");
    }
}
