//! Claims and what stands behind them: NFS volumes that only one claim may bind, claims of a storage class, and storage
//! that outlives its account.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::manifest::fill;
use super::{DirectoryTarget, Place};
use crate::identity::PosixIdentity;
use crate::kinds::{Data, ObjectKind};
use crate::policy::{Class, NfsVolume, Provisioned, Volume, VolumeKind};

/// The size that volume and claim name. The NFS server's own quota decides; this number only has to be the same in
/// both, must never change (a claim cannot shrink), and counts in `requests.storage`, so it is small.
const NOMINAL_SIZE: &str = "1Gi";

/// Where personal claims stand. `bursar init` makes it; no tenant has a right in it, and nothing in it is ever deleted.
pub const PERSONAL_NAMESPACE: &str = "bursar-storage";

/// The Secret that tells a tenant where its personal storage is: `namespace` and `claim`; on NFS also `server` and `path`.
pub const PERSONAL_SECRET: &str = "bursar-storage";

/// Every object of the class's volumes.
#[must_use]
pub fn volumes(place: &Place<'_>, class: &Class) -> Vec<Value> {
    let objects = class.volumes.iter().flat_map(|volume| match &volume.kind {
        VolumeKind::Static(nfs) | VolumeKind::Shared(nfs) => bound(place, volume, nfs, &tenants_claim(place, volume)),
        VolumeKind::Personal(nfs) => {
            let claim = personal_claim(place, volume);
            let mut objects = bound(place, volume, nfs, &claim);
            let export = [("server", nfs.server.clone()), ("path", fill(&nfs.path, place))];
            objects.push(secret(place, claim, export));
            objects
        }
        VolumeKind::Dynamic(asked) => vec![dynamic(&tenants_claim(place, volume), asked)],
        VolumeKind::PersonalDynamic(asked) => {
            let claim = personal_claim(place, volume);
            vec![dynamic(&claim, asked), secret(place, claim, [])]
        }
    });
    objects.collect()
}

/// Directories of `owner` that are to be there before the volume of this name is made.
#[must_use]
pub fn directories(
    place: &Place<'_>,
    class: &Class,
    owner: Option<&PosixIdentity>,
) -> BTreeMap<String, DirectoryTarget> {
    let Some(posix) = owner else { return BTreeMap::new() };
    let directories = class.volumes.iter().filter_map(|volume| {
        let target = DirectoryTarget {
            path: fill(volume.kind.nfs()?.directory.as_ref()?, place).into(),
            posix: posix.clone(),
            shared: matches!(volume.kind, VolumeKind::Shared(_)),
        };
        Some((volume_name(place, volume), target))
    });
    directories.collect()
}

/// Namespace and name of a claim.
struct ClaimName {
    namespace: String,
    name: String,
}

fn tenants_claim(place: &Place<'_>, volume: &Volume) -> ClaimName {
    ClaimName { namespace: place.namespace.to_string(), name: volume.name.clone() }
}

fn personal_claim(place: &Place<'_>, volume: &Volume) -> ClaimName {
    ClaimName { namespace: PERSONAL_NAMESPACE.to_owned(), name: format!("{}.{}", place.namespace, volume.name) }
}

/// The volume's name: `.` is in no namespace's name, so no two tenants meet.
fn volume_name(place: &Place<'_>, volume: &Volume) -> String {
    format!("bursar-{}.{}", place.namespace, volume.name)
}

/// A volume and the one claim that may bind it.
fn bound(place: &Place<'_>, volume: &Volume, nfs: &NfsVolume, claim: &ClaimName) -> Vec<Value> {
    let name = volume_name(place, volume);
    let mut persistent_volume = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "capacity": {"storage": NOMINAL_SIZE},
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": claim.namespace,
                "name": claim.name,
            },
            "nfs": {"server": nfs.server, "path": fill(&nfs.path, place)},
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
        },
    });
    if !nfs.options.is_empty() {
        persistent_volume["spec"]["mountOptions"] = json!(nfs.options);
    }
    let claim = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": claim.name, "namespace": claim.namespace},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": NOMINAL_SIZE}},
            "storageClassName": "",
            "volumeName": name,
        },
    });
    vec![persistent_volume, claim]
}

fn dynamic(claim: &ClaimName, Provisioned { storage_class, size, access }: &Provisioned) -> Value {
    let mut claim = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": claim.name, "namespace": claim.namespace},
        "spec": {"accessModes": [access], "resources": {"requests": {"storage": size}}},
    });
    if let Some(storage_class) = storage_class {
        claim["spec"]["storageClassName"] = json!(storage_class);
    }
    claim
}

/// `export`: server and path, known only where Bursar makes the volume.
fn secret(place: &Place<'_>, claim: ClaimName, export: impl IntoIterator<Item = (&'static str, String)>) -> Value {
    let claim = [("namespace", claim.namespace), ("claim", claim.name)];
    let data = claim.into_iter().chain(export).map(|(key, value)| (key, STANDARD.encode(value)));
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": PERSONAL_SECRET, "namespace": place.namespace},
        "type": "Opaque",
        "data": data.collect::<BTreeMap<_, _>>(),
    })
}

/// What the ledger keeps of a volume or a claim: what Kubernetes lets nobody change afterwards.
#[must_use]
pub fn fixed(kind: &ObjectKind, manifest: &Value) -> Option<Value> {
    let spec = &manifest["spec"];
    match kind.data() {
        Data::Volume => {
            let claim = &spec["claimRef"];
            Some(json!({"nfs": spec["nfs"], "claim": {"namespace": claim["namespace"], "name": claim["name"]}}))
        }
        Data::Claim => Some(json!({
            "accessModes": spec["accessModes"],
            "storage": spec["resources"]["requests"]["storage"],
            "storageClassName": spec["storageClassName"],
            "volumeName": spec["volumeName"],
        })),
        Data::None => None,
    }
}
