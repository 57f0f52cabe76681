//! Claims and their storage: NFS volumes that only one claim can bind, claims of a storage class, and personal storage
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

/// The size in both volume and claim. The NFS server enforces the real quota. The size must be equal in both and must
/// never change, because a claim cannot shrink. It is small, because it counts in `requests.storage`.
const NOMINAL_SIZE: &str = "1Gi";

/// The namespace of personal claims. `bursar init` creates it. No tenant has rights in it, and nothing in it is ever
/// deleted.
pub const PERSONAL_NAMESPACE: &str = "bursar-storage";

/// The Secret that names a tenant's personal storage: keys `namespace` and `claim`, on NFS also `server` and `path`.
pub const PERSONAL_SECRET: &str = "bursar-storage";

/// Returns every object of the class's volumes.
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

/// Returns the directories, owned by `owner`, that must exist before the volumes are created, by the names of the
/// volumes.
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

/// The namespace and name of a claim.
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

/// Returns the name of the volume. No namespace's name contains `.`, so two tenants never share a name.
fn volume_name(place: &Place<'_>, volume: &Volume) -> String {
    format!("bursar-{}.{}", place.namespace, volume.name)
}

/// Returns a volume and the only claim that can bind it.
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

/// Returns the Secret that names the personal storage. `export` has the server and the path, which are known only if
/// Bursar creates the volume.
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

/// Returns the fields of a volume or claim that Kubernetes does not allow to change. The ledger keeps them.
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
