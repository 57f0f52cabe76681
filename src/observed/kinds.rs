//! From `apiVersion` and `kind` to the path of an API server: a table of the kinds that every cluster has, and
//! discovery for those that a site adds. It asks, and changes nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use kube::Client;
use kube::core::ApiResource;

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

    /// As kube's dynamic API wants it.
    #[must_use]
    pub fn resource(&self) -> ApiResource {
        let (group, version) = self.api_version.split_once('/').unwrap_or(("", &self.api_version));
        ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            api_version: self.api_version.clone(),
            kind: self.kind.clone(),
            plural: self.plural.clone(),
        }
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

/// The kinds of one cluster, as far as they were asked for. Clones share what they learned.
#[derive(Debug, Clone, Default)]
pub struct Kinds {
    discovered: Arc<RwLock<BTreeMap<(String, String), Kind>>>,
}

impl Kinds {
    /// The kind of that name; `None` if the cluster has no such kind.
    pub async fn resolve(&self, client: &Client, api_version: &str, kind: &str) -> Result<Option<Kind>, kube::Error> {
        if let Some(known) = everywhere(api_version, kind) {
            return Ok(Some(known));
        }
        let key = (api_version.to_owned(), kind.to_owned());
        let known = self.discovered.read().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        if known.is_some() {
            return Ok(known);
        }
        let found = discover(client, api_version, kind).await?;
        if let Some(found) = &found {
            self.discovered.write().unwrap_or_else(PoisonError::into_inner).insert(key, found.clone());
        }
        Ok(found)
    }
}

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

async fn discover(client: &Client, api_version: &str, kind: &str) -> Result<Option<Kind>, kube::Error> {
    let listed = if api_version.contains('/') {
        client.list_api_group_resources(api_version).await
    } else {
        client.list_core_api_resources(api_version).await
    };
    let resources = match listed {
        Ok(listed) => listed.resources,
        // The group is not served: its custom resource definition is not installed.
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(None),
        Err(error) => return Err(error),
    };
    // Subresources are listed beside their resource, as `pods/log`.
    let found = resources.into_iter().find(|resource| resource.kind == kind && !resource.name.contains('/'));
    Ok(found.map(|resource| Kind {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        plural: resource.name,
        namespaced: resource.namespaced,
    }))
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
        assert_eq!(binding.resource().group, "rbac.authorization.k8s.io");
    }
}
