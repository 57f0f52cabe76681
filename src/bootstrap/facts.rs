//! Reads what a cluster shows about the ledger that made its tenants: sealed namespaces, and the generations in
//! bindings.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, ResourceQuota};
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, RoleBinding, Subject};
use kube::api::{ListParams, PartialObjectMeta};
use kube::{Api, Client, ResourceExt as _};

use super::mark::generations::Reserved;
use super::{AccessError, answered};
use crate::contract::{self, CLASS, MANAGED_BY, MANAGER};
use crate::desired::of_generation_group;
use crate::identity::{ClusterName, NamespaceName};
use crate::kinds::{ManagedKind, ObjectKey};
use crate::ledger::cluster_recovery::{Facts, Tenancy};

/// Reads the facts. A namespace that no key of `public_keys` sealed is left out and reported as a doubt.
pub async fn facts(client: &Client, cluster: &ClusterName, public_keys: &[[u8; 32]]) -> Result<Facts, AccessError> {
    let ours = ListParams::default().labels(&format!("{MANAGED_BY}={MANAGER}"));
    let namespaces = Api::<Namespace>::all(client.clone());
    let namespaces = answered("namespaces", namespaces.list_metadata(&ours)).await?;
    let bindings = answered("role bindings", Api::<RoleBinding>::all(client.clone()).list(&ours)).await?;
    let cluster_bindings = Api::<ClusterRoleBinding>::all(client.clone());
    let cluster_bindings = answered("cluster role bindings", cluster_bindings.list(&ours)).await?;
    let mut facts = Facts { clusters: BTreeSet::from([cluster.clone()]), ..Facts::default() };
    match super::mark::proven(client, cluster, public_keys).await? {
        Ok(Reserved { generation, uids }) => {
            facts.marks.insert(cluster.clone(), generation);
            facts.marked_uids = uids;
        }
        Err(doubt) => facts.doubts.push(doubt),
    }
    for namespace in namespaces.iter().filter(|namespace| namespace.labels().contains_key(CLASS)) {
        match tenancy(namespace, cluster, public_keys) {
            Ok(tenancy) => facts.tenancies.push(tenancy),
            Err(why) => {
                let name = namespace.name_any();
                facts.doubts.push(format!("namespace {name} in {cluster} is not taken: {why}"));
            }
        }
    }
    let bindings = bindings.into_iter().map(|binding| (ManagedKind::RoleBinding, binding.metadata, binding.subjects));
    let cluster_bindings = cluster_bindings.into_iter();
    let cluster_bindings =
        cluster_bindings.map(|binding| (ManagedKind::ClusterRoleBinding, binding.metadata, binding.subjects));
    for (kind, metadata, subjects) in bindings.chain(cluster_bindings) {
        let name = metadata.name.unwrap_or_default();
        let key = ObjectKey::new(cluster, kind, metadata.namespace.as_deref(), &name);
        facts.add_binding(key, subjects.iter().flatten().filter_map(bound).collect());
    }
    Ok(facts)
}

/// Returns `spec.hard` of our quotas, by namespace and name.
pub async fn quotas(client: &Client) -> Result<BTreeMap<(String, String), BTreeMap<String, String>>, AccessError> {
    let ours = ListParams::default().labels(&format!("{MANAGED_BY}={MANAGER}"));
    let found = answered("quotas", Api::<ResourceQuota>::all(client.clone()).list(&ours)).await?;
    let hard = found.into_iter().map(|quota| {
        let place = (quota.namespace().unwrap_or_default(), quota.name_any());
        let hard = quota.spec.and_then(|spec| spec.hard).unwrap_or_default();
        (place, hard.into_iter().map(|(resource, amount)| (resource, amount.0)).collect())
    });
    Ok(hard.collect())
}

fn tenancy(
    namespace: &PartialObjectMeta<Namespace>,
    cluster: &ClusterName,
    public_keys: &[[u8; 32]],
) -> Result<Tenancy, String> {
    let name = NamespaceName::try_from(namespace.name_any()).map_err(|error| error.to_string())?;
    let identity = contract::identity_of(cluster, &name, namespace.labels(), namespace.annotations(), public_keys);
    let identity = identity.map_err(|error| error.to_string())?;
    let created = namespace.metadata.creation_timestamp.as_ref().map(|time| time.0);
    // The ledger stores whole seconds.
    let created_at = created.and_then(|time| Timestamp::from_second(time.as_second()).ok());
    Ok(Tenancy { identity, created_at: created_at.unwrap_or(Timestamp::UNIX_EPOCH) })
}

fn bound(subject: &Subject) -> Option<(crate::identity::AccountName, u64)> {
    (subject.kind == "Group").then(|| of_generation_group(&subject.name)).flatten()
}
