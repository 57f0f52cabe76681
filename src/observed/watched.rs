//! Which kinds of a cluster are watched. PURE: no runtime, no client, no file system, no clock.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::desired::credential;
use crate::desired::volume::PERSONAL_SECRET;
use crate::identity::ClusterName;
use crate::kinds::WatchedKind;
use crate::ledger::LedgerState;
use crate::policy::{CredentialRule, Policy, VolumeKind};

/// Kinds that every tenant may have, cluster-wide by our label. Secrets are not among them: they are watched by name,
/// so that the daemon need not be allowed to read others' (RBAC `resourceNames`).
const MANAGED: &[(&str, &str)] = &[
    ("v1", "Namespace"),
    ("v1", "ResourceQuota"),
    ("v1", "LimitRange"),
    ("v1", "PersistentVolume"),
    ("v1", "PersistentVolumeClaim"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
    ("rbac.authorization.k8s.io/v1", "RoleBinding"),
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"),
];

/// The kinds that Bursar itself makes.
#[must_use]
pub fn managed_kinds() -> Vec<WatchedKind> {
    let kind = |(api_version, kind): &(&str, &str)| WatchedKind {
        api_version: (*api_version).to_owned(),
        kind: (*kind).to_owned(),
        only: None,
    };
    MANAGED.iter().map(kind).collect()
}

/// Kinds beside [`managed_kinds`] in `cluster`: those of site manifests, and those that once were and of which the
/// ledger still knows an object, for what is not watched cannot be seen to be gone. Secrets each by its name.
#[must_use]
pub fn site_kinds(policy: &Policy, ledger: &LedgerState, cluster: &ClusterName) -> Vec<WatchedKind> {
    let listing = |api_version: &str, kind: &str, name: &str| WatchedKind {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        only: (kind == "Secret").then(|| name.to_owned()),
    };
    let here = || policy.classes.values().filter(|class| class.clusters.contains(cluster));
    let wanted = here().flat_map(|class| &class.manifests).map(|manifest| {
        let text = |pointer: &str| manifest.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        listing(text("/apiVersion"), text("/kind"), text("/metadata/name"))
    });
    let volumes = here().flat_map(|class| &class.volumes);
    let personal = volumes.filter(|volume| matches!(volume.kind, VolumeKind::Personal(_)));
    let personal = personal.map(|_| listing("v1", "Secret", PERSONAL_SECRET));
    let credentials = here().filter_map(|class| class.credential.as_ref()).flat_map(CredentialRule::hosts);
    let tokens = credentials
        .flat_map(|host| [listing("v1", "ServiceAccount", ""), listing("v1", "Secret", &credential::secret(host))]);
    let known = ledger.objects.keys().filter(|key| key.cluster == *cluster);
    let known = known.map(|key| listing(&key.api_version, &key.kind, &key.name));
    let kinds: BTreeSet<_> = wanted.chain(personal).chain(tokens).chain(known).collect();
    let managed = managed_kinds();
    kinds.into_iter().filter(|kind| !managed.contains(kind)).collect()
}
