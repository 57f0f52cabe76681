//! Decides which kinds are watched in a cluster.

use std::collections::BTreeSet;

use crate::desired::credential;
use crate::desired::volume::PERSONAL_SECRET;
use crate::identity::ClusterName;
use crate::kinds::{ManagedKind, ObjectKind, Watch, WatchedKind};
use crate::ledger::LedgerState;
use crate::policy::{CredentialRule, Policy};

/// Returns the kinds that are watched in every cluster.
#[must_use]
pub fn managed_kinds() -> Vec<WatchedKind> {
    let everywhere = ManagedKind::ALL.iter().filter(|kind| kind.row().watch == Watch::ByLabel);
    everywhere.map(|kind| (*kind).into()).collect()
}

/// Returns the kinds that are watched in `cluster` in addition to [`managed_kinds`]. These are the kinds of site
/// manifests, and the kinds of the objects that the ledger still has: if an object is not watched, its removal is not
/// noticed. Secrets are watched by name.
#[must_use]
pub fn site_kinds(policy: &Policy, ledger: &LedgerState, cluster: &ClusterName) -> Vec<WatchedKind> {
    let listing = |kind: ObjectKind, name: &str| match kind.watch() {
        Watch::ByName => WatchedKind { kind, only: Some(name.to_owned()) },
        Watch::ByLabel | Watch::IfUsed => WatchedKind { kind, only: None },
    };
    let here = || policy.classes.values().filter(|class| class.clusters.contains(cluster));
    let wanted = here().flat_map(|class| &class.manifests).map(|manifest| {
        listing(ObjectKind::of_manifest(manifest), manifest["metadata"]["name"].as_str().unwrap_or_default())
    });
    let volumes = here().flat_map(|class| &class.volumes);
    let personal = volumes.filter(|volume| volume.kind.is_personal());
    let personal = personal.map(|_| listing(ManagedKind::Secret.into(), PERSONAL_SECRET));
    let credentials = here().filter_map(|class| class.credential.as_ref()).flat_map(CredentialRule::hosts);
    let tokens = credentials.flat_map(|host| {
        let secret = listing(ManagedKind::Secret.into(), &credential::secret(host));
        [ManagedKind::ServiceAccount.into(), secret]
    });
    let known = ledger.objects.keys().filter(|key| key.cluster == *cluster);
    let known = known.map(|key| listing(key.kind.clone(), &key.name));
    let kinds: BTreeSet<_> = wanted.chain(personal).chain(tokens).chain(known).collect();
    let managed = managed_kinds();
    kinds.into_iter().filter(|kind| !managed.contains(kind)).collect()
}
