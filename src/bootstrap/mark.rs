//! ConfigMap `bursar-mark`: the highest generation in use in a cluster, and which process of the owning ledger runs.
//!
//! A ledger that was restored from a snapshot learns from the mark that it is out of date. An up-to-date copy of the
//! ledger has the same id and generations, so each process asks before it runs: it writes a claim to the mark, and a
//! process that already runs refuses the claim. This file reads the mark, and [`keeper::MarkKeeper`] raises it before a
//! binding in the cluster names a higher generation.

pub(super) mod generations;
pub(super) mod keeper;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{DeleteParams, ListParams};
use kube::{Api, Client, ResourceExt as _};

use self::generations::Reserved;
use super::roles::{MARK, NAMESPACE};
use super::{AccessError, answered};
use crate::contract::mark::{LEDGER, Mark};
use crate::contract::{self, CLASS, MANAGED_BY, MANAGER, Sealer};
use crate::identity::{ClusterName, NamespaceName, Uid};

/// The key of the process that runs.
const HOLDER: &str = "holder";
/// The key of the process that asks whether it may run.
const CLAIM: &str = "claim";
/// The key of the claim that was refused last.
const REFUSED: &str = "refused";

/// The mark that a cluster has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum FoundMark {
    /// The daemon may not read the mark, because an older `init` did not give it the right.
    Hidden,
    /// There is no mark.
    #[default]
    Absent,
    /// The mark belongs to another ledger or was edited, so it proves nothing.
    Unproven {
        /// The ledger that the mark names.
        ledger: String,
        /// The `resourceVersion` of the mark.
        version: String,
    },
    /// The mark of this ledger.
    Own(Own),
}

/// A mark that this ledger signed with the seal's key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Own {
    /// The highest generation in use.
    pub generation: u64,
    version: String,
    uids: BTreeSet<Uid>,
    holder: Option<String>,
    claim: Option<String>,
    refused: Option<String>,
}

/// The ledger and the process whose mark is read and written.
#[derive(Debug, Clone)]
pub struct MarkOwner {
    pub cluster: ClusterName,
    pub ledger_id: String,
    /// The key that signs the mark.
    pub sealer: Arc<Sealer>,
    /// An id of the process that no other running process has.
    pub instance: String,
}

impl MarkOwner {
    fn found(&self, map: &ConfigMap) -> FoundMark {
        let data = map.data.as_ref().unwrap_or(const { &BTreeMap::new() });
        let text = |key: &str| data.get(key).cloned();
        let version = map.resource_version().unwrap_or_default();
        match Mark::verified(data, &self.cluster, &[self.sealer.public_key()]) {
            Some(Mark { ledger, generation, uids }) if ledger == self.ledger_id => {
                let (holder, claim, refused) = (text(HOLDER), text(CLAIM), text(REFUSED));
                FoundMark::Own(Own { generation, version, uids, holder, claim, refused })
            }
            _ => FoundMark::Unproven { ledger: text(LEDGER).unwrap_or_default(), version },
        }
    }

    /// Reads the mark.
    pub async fn read(&self, client: &Client) -> Result<FoundMark, AccessError> {
        match answered("ConfigMap bursar-mark", maps(client).get_opt(MARK)).await {
            Ok(found) => Ok(found.map_or(FoundMark::Absent, |map| self.found(&map))),
            Err(AccessError::Api { source, .. }) if is_code(&source, 403) => Ok(FoundMark::Hidden),
            Err(error) => Err(error),
        }
    }

    /// Returns the highest generation above `last` that a sealed namespace proves. Only seals that claim a higher
    /// generation are verified.
    pub async fn sealed_beyond(&self, client: &Client, last: u64) -> Result<Option<u64>, AccessError> {
        let ours = ListParams::default().labels(&format!("{MANAGED_BY}={MANAGER},{CLASS}"));
        let namespaces = Api::<Namespace>::all(client.clone());
        let namespaces = answered("namespaces", namespaces.list_metadata(&ours)).await?;
        let keys = [self.sealer.public_key()];
        let beyond = namespaces.iter().filter_map(|namespace| {
            contract::says_generation(namespace.annotations()).filter(|generation| *generation > last)?;
            let name = NamespaceName::try_from(namespace.name_any()).ok()?;
            let (labels, annotations) = (namespace.labels(), namespace.annotations());
            let identity = contract::identity_of(&self.cluster, &name, labels, annotations, &keys).ok()?;
            Some(identity.generation)
        });
        Ok(beyond.max())
    }
}

/// Returns what the cluster's mark proves to a ledger that is being rebuilt. The mark must be signed with one of these
/// keys, but may name any ledger. The inner `Err` says why the mark is not trusted.
pub(super) async fn proven(
    client: &Client,
    cluster: &ClusterName,
    public_keys: &[[u8; 32]],
) -> Result<Result<Reserved, String>, AccessError> {
    let Some(map) = answered("ConfigMap bursar-mark", maps(client).get_opt(MARK)).await? else {
        return Ok(Ok(Reserved::default()));
    };
    let proven = Mark::verified(&map.data.unwrap_or_default(), cluster, public_keys);
    Ok(proven
        .map(|Mark { ledger: _, generation, uids }| Reserved { generation, uids })
        .ok_or_else(|| format!("ConfigMap {MARK} in {cluster} is not signed by this key")))
}

/// As the administrator, removes a mark that is not this ledger's own. Returns whether there was one.
pub(super) async fn remove_unproven(
    client: &Client,
    cluster: &ClusterName,
    ledger_id: &str,
    public_key: [u8; 32],
) -> Result<bool, AccessError> {
    let api = maps(client);
    let Some(map) = answered("ConfigMap bursar-mark", api.get_opt(MARK)).await? else { return Ok(false) };
    let mark = map.data.and_then(|data| Mark::verified(&data, cluster, &[public_key]));
    if mark.is_some_and(|mark| mark.ledger == ledger_id) {
        return Ok(false);
    }
    match answered("ConfigMap bursar-mark", api.delete(MARK, &DeleteParams::default())).await {
        Err(AccessError::Api { source, .. }) if is_code(&source, 404) => Ok(false),
        deleted => deleted.map(|_| true),
    }
}

fn maps(client: &Client) -> Api<ConfigMap> {
    Api::namespaced(client.clone(), NAMESPACE)
}

fn is_code(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

#[cfg(test)]
mod tests;
