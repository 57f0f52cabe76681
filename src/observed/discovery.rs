//! Asks an API server about kinds that not every cluster has. Changes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::Client;
use kube::core::ApiResource;
use parking_lot::RwLock;

use crate::kinds::{ObjectKind, ServedKind, everywhere};

/// Converts a kind for kube's dynamic API.
#[must_use]
pub fn resource(kind: &ServedKind) -> ApiResource {
    let version = kind.api_version.split_once('/').map_or(kind.api_version.as_str(), |(_, version)| version);
    ApiResource {
        group: kind.group().to_owned(),
        version: version.to_owned(),
        api_version: kind.api_version.clone(),
        kind: kind.kind.clone(),
        plural: kind.plural.clone(),
    }
}

/// The kinds of one cluster that were resolved so far. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Kinds {
    discovered: Arc<RwLock<BTreeMap<ObjectKind, ServedKind>>>,
}

impl Kinds {
    /// Returns how the cluster serves the kind; `None` if it does not have the kind.
    pub async fn resolve(&self, client: &Client, kind: &ObjectKind) -> Result<Option<ServedKind>, kube::Error> {
        if let Some(known) = everywhere(kind) {
            return Ok(Some(known));
        }
        let known = self.discovered.read().get(kind).cloned();
        if known.is_some() {
            return Ok(known);
        }
        let found = discover(client, kind).await?;
        if let Some(found) = &found {
            self.discovered.write().insert(kind.clone(), found.clone());
        }
        Ok(found)
    }
}

async fn discover(client: &Client, kind: &ObjectKind) -> Result<Option<ServedKind>, kube::Error> {
    let api_version = kind.api_version();
    let listed = if api_version.contains('/') {
        client.list_api_group_resources(api_version).await
    } else {
        client.list_core_api_resources(api_version).await
    };
    let resources = match listed {
        Ok(listed) => listed.resources,
        // The group does not exist, because its custom resource definition is not installed.
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(None),
        Err(error) => return Err(error),
    };
    // The list also contains subresources, such as `pods/log`.
    let found = resources.into_iter().find(|resource| resource.kind == kind.as_str() && !resource.name.contains('/'));
    Ok(found.map(|resource| ServedKind {
        api_version: api_version.to_owned(),
        kind: kind.as_str().to_owned(),
        plural: resource.name,
        namespaced: resource.namespaced,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::ManagedKind;

    #[test]
    fn kube_gets_group_and_version_separately() {
        let binding = everywhere(&ManagedKind::RoleBinding.into()).expect("every cluster has role bindings");
        assert_eq!(resource(&binding).group, "rbac.authorization.k8s.io");
    }
}
