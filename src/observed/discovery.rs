//! Asks an API server for the kinds that a site adds to those of every cluster. It asks, and changes nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use kube::Client;
use kube::core::ApiResource;

use crate::kinds::{Kind, everywhere};

/// A kind as kube's dynamic API wants it.
#[must_use]
pub fn resource(kind: &Kind) -> ApiResource {
    let (group, version) = kind.api_version.split_once('/').unwrap_or(("", &kind.api_version));
    ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version: kind.api_version.clone(),
        kind: kind.kind.clone(),
        plural: kind.plural.clone(),
    }
}

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
    fn kube_asks_for_the_group_and_the_version_apart() {
        let binding = everywhere("rbac.authorization.k8s.io/v1", "RoleBinding").expect("known");
        assert_eq!(resource(&binding).group, "rbac.authorization.k8s.io");
    }
}
