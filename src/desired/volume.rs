//! Static NFS volumes: a PersistentVolume that only one claim may bind, and that claim. PURE: no runtime, no client, no
//! file system, no clock.

use serde_json::{Value, json};

use super::Place;
use super::manifest::fill;
use crate::policy::{Class, StaticVolume};

/// The size that volume and claim name. The NFS server's own quota decides; this number only has to be the same in
/// both, must never change (a claim cannot shrink), and counts in `requests.storage`, so it is small.
const NOMINAL_SIZE: &str = "1Gi";

/// A volume and its claim for each static volume of the class.
#[must_use]
pub fn static_volumes(place: &Place<'_>, class: &Class) -> Vec<Value> {
    class.volumes.iter().flat_map(|volume| [persistent_volume(place, volume), claim(place, volume)]).collect()
}

/// The volume's name: `.` is in no namespace's name, so no two tenants meet.
fn name(place: &Place<'_>, volume: &StaticVolume) -> String {
    format!("bursar-{}.{}", place.namespace, volume.name)
}

fn persistent_volume(place: &Place<'_>, volume: &StaticVolume) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name(place, volume)},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "capacity": {"storage": NOMINAL_SIZE},
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": place.namespace,
                "name": volume.name,
            },
            "nfs": {"server": volume.server, "path": fill(&volume.path, place)},
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
        },
    })
}

fn claim(place: &Place<'_>, volume: &StaticVolume) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": volume.name, "namespace": place.namespace},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": NOMINAL_SIZE}},
            "storageClassName": "",
            "volumeName": name(place, volume),
        },
    })
}
