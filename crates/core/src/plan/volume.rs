//! Finds changes of volumes that are impossible, and volumes that are never deleted. Both are only reported.

use std::cmp::Ordering;

use serde_json::Value;

use crate::desired::volume::{PERSONAL_NAMESPACE, fixed};
use crate::json_text::JsonText;
use crate::kinds::{Data, ObjectKey};
use crate::ledger::ObjectRecord;
use crate::quantity::compare;

/// Returns why an existing volume or claim cannot become the desired one, with the remedy; `None` if it can.
pub(super) fn immovable(key: &ObjectKey, record: &ObjectRecord, manifest: &Value) -> Option<String> {
    let was = record.detail.as_ref()?.value();
    let wanted = fixed(&key.kind, manifest)?;
    let cluster = &key.cluster;
    if key.kind.data() == Data::Volume {
        let named = |nfs: &Value| format!("{}:{}", text(&nfs["server"]), text(&nfs["path"]));
        let claim = |of: &Value| format!("{}/{}", text(&of["namespace"]), text(&of["name"]));
        let (holder, new) = (claim(&was["claim"]), claim(&wanted["claim"]));
        if holder != new {
            return Some(format!(
                "volume {} in cluster {cluster} belongs to claim {holder} and is not given to {new}, because its data \
                 could then belong to somebody else. To allow this, delete claim {holder} and run `kubectl delete pv {}`: \
                 no data is deleted",
                key.name, key.name
            ));
        }
        let claim = &manifest["spec"]["claimRef"];
        return (was["nfs"] != wanted["nfs"]).then(|| {
            format!(
                "volume {} in cluster {cluster} stays at {}: a volume cannot move to {}. To move it, copy the data, then run \
                 `kubectl delete pvc {} -n {}` and `kubectl delete pv {}`: Bursar creates both again, and no data is deleted. \
                 Or configure the old server and path again",
                key.name,
                named(&was["nfs"]),
                named(&wanted["nfs"]),
                text(&claim["name"]),
                text(&claim["namespace"]),
                key.name
            )
        });
    }
    let namespace = key.namespace.as_deref().unwrap_or_default();
    let fields = ["accessModes", "storageClassName", "volumeName"];
    if let Some(field) = fields.iter().find(|field| was[**field] != wanted[**field]) {
        return Some(format!(
            "claim {} in namespace {namespace} keeps its {field} {}: a claim cannot change it to {}. To change it, copy the \
             data to another claim and delete this one: Bursar creates it again",
            key.name, was[*field], wanted[*field]
        ));
    }
    let (is, asked) = (text(&was["storage"]), text(&wanted["storage"]));
    (compare(asked, is)? == Ordering::Less).then(|| {
        format!("claim {} in namespace {namespace} keeps its size of {is}: a claim cannot shrink to {asked}", key.name)
    })
}

/// Returns the notice for a volume or claim that is no longer desired, but is kept.
pub(super) fn kept(key: &ObjectKey) -> String {
    let Some(namespace) = &key.namespace else {
        return format!(
            "volume {} is kept after its account was deleted; if nobody needs its data, run: kubectl delete pv {}",
            key.name, key.name
        );
    };
    format!(
        "claim {} in namespace {namespace} is kept, although no account needs it any more, because its data might be deleted \
         with it; if nobody needs the data, run: kubectl delete pvc {} -n {namespace}",
        key.name, key.name
    )
}

/// Whether the object must be kept because its deletion could delete data: a claim of a storage class, or a personal
/// volume that outlives its account.
pub(super) fn holds_data(key: &ObjectKey, record: &ObjectRecord) -> bool {
    let known = record.detail.as_ref().map(JsonText::value);
    let detail = |field: &str| known.as_ref().map(|detail| &detail[field]);
    match key.kind.data() {
        Data::Claim => {
            key.namespace.as_deref() == Some(PERSONAL_NAMESPACE) || !detail("volumeName").is_some_and(Value::is_string)
        }
        Data::Volume => detail("claim").is_some_and(|claim| text(&claim["namespace"]) == PERSONAL_NAMESPACE),
        Data::None => false,
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::identity::{AccountId, ClusterName};
    use crate::kinds::{ManagedKind, ObjectKind};

    fn key(kind: ManagedKind, namespace: Option<&str>) -> ObjectKey {
        ObjectKey::new(&ClusterName("prod".into()), kind, namespace, "home")
    }

    fn record(manifest: &Value) -> ObjectRecord {
        let text = String::new;
        let account = AccountId("a".into());
        ObjectRecord {
            account,
            uid: text().into(),
            wanted: text().into(),
            observed: text().into(),
            detail: fixed(&ObjectKind::of_manifest(manifest), manifest).as_ref().map(JsonText::from),
        }
    }

    fn claim(size: &str, class: &str) -> Value {
        let spec = json!({"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": size}},
            "storageClassName": class});
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": spec})
    }

    #[test]
    fn a_volume_does_not_move_and_the_notice_names_the_remedy() {
        let volume = |path: &str| {
            json!({"apiVersion": "v1", "kind": "PersistentVolume", "spec": {"nfs": {"server": "nfs", "path": path},
                "claimRef": {"name": "home", "namespace": "tool-foo"}}})
        };
        let key = key(ManagedKind::PersistentVolume, None);
        assert_eq!(immovable(&key, &record(&volume("/a")), &volume("/a")), None);
        let why = immovable(&key, &record(&volume("/a")), &volume("/b")).expect("the change is refused");
        for part in ["nfs:/a", "nfs:/b", "kubectl delete pvc home -n tool-foo", "kubectl delete pv home"] {
            assert!(why.contains(part), "{why}");
        }
    }

    #[test]
    fn a_claim_grows_and_neither_shrinks_nor_changes_its_class() {
        let key = key(ManagedKind::PersistentVolumeClaim, Some("tool-foo"));
        let look = |was: &Value, wanted: &Value| immovable(&key, &record(was), wanted);
        for (was, wanted, refused) in [
            ("1Gi", "2Gi", false),
            ("1Gi", "1024Mi", false),
            ("1Gi", "1G", true),
            ("2Gi", "1Gi", true),
            ("1e9", "1G", false),
            ("1Ti", "1000Gi", true),
            ("100k", "1Ki", true),
        ] {
            assert_eq!(look(&claim(was, "fast"), &claim(wanted, "fast")).is_some(), refused, "{was} to {wanted}");
        }
        assert!(
            look(&claim("1Gi", "fast"), &claim("1Gi", "slow"))
                .expect("the change is refused")
                .contains("storageClassName")
        );
    }

    #[test]
    fn only_a_claim_of_a_kept_volume_may_be_deleted() {
        let tenants = key(ManagedKind::PersistentVolumeClaim, Some("tool-foo"));
        let mut bound = claim("1Gi", "");
        bound["spec"]["volumeName"] = json!("bursar-tool-foo.home");
        assert!(!holds_data(&tenants, &record(&bound)));
        assert!(holds_data(&tenants, &record(&claim("1Gi", "fast"))));
        assert!(holds_data(&key(ManagedKind::PersistentVolumeClaim, Some(PERSONAL_NAMESPACE)), &record(&bound)));
    }
}
