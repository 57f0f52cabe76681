//! Digests of desired objects, and of the fields that Bursar manages in observed objects. Equal digests mean that
//! nothing needs to be done.

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::contract::MANAGER;

/// Returns the SHA-256 of a value in hex. The order of keys does not change it.
#[must_use]
pub fn digest(value: &Value) -> String {
    let mut value = value.clone();
    value.sort_all_objects();
    hex::encode(Sha256::digest(value.to_string()))
}

/// Returns the [`digest`] of the fields, with their values, that Bursar's field manager owns in an object
/// (`metadata.managedFields`, Kubernetes' `FieldsV1`).
///
/// A field that others add does not change the digest. If others change a field that Bursar owned, Bursar no longer
/// owns it, and the digest changes.
#[must_use]
pub fn managed_digest(object: &Value) -> String {
    let managed = object["metadata"]["managedFields"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|entry| entry["manager"] == MANAGER && entry["operation"] == "Apply")
        .and_then(|entry| entry["fieldsV1"].as_object())
        .map_or(Value::Null, |fields| project(object, fields));
    digest(&managed)
}

/// Returns the part of `value` that `fields`, a `FieldsV1` node, names.
fn project(value: &Value, fields: &Map<String, Value>) -> Value {
    let mut kept = Map::new();
    for (path, below) in fields {
        let Some(found) = element(value, path) else { continue };
        let part = match below.as_object() {
            Some(below) if below.keys().any(|key| key != ".") => project(found, below),
            _ => found.clone(),
        };
        kept.insert(path.clone(), part);
    }
    Value::Object(kept)
}

/// Returns the element that one segment of a path names: `f:NAME` is a field, `k:{..}` an item with these keys,
/// `v:VALUE` an item with this value, and `i:N` an item at this index.
fn element<'a>(value: &'a Value, segment: &str) -> Option<&'a Value> {
    let (how, what) = segment.split_once(':')?;
    match how {
        "f" => value.get(what),
        "i" => value.get(what.parse::<usize>().ok()?),
        "k" => {
            let keys: Map<String, Value> = serde_json::from_str(what).ok()?;
            value.as_array()?.iter().find(|item| keys.iter().all(|(key, want)| item.get(key) == Some(want)))
        }
        "v" => {
            let want: Value = serde_json::from_str(what).ok()?;
            value.as_array()?.iter().find(|item| **item == want)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn quota(pods: &str, ours: &Value, label: &str) -> Value {
        json!({
            "metadata": {
                "labels": {"app": "x", "theirs": label},
                "resourceVersion": label,
                "managedFields": [
                    {"manager": "kubectl-edit", "operation": "Update", "fieldsV1": {"f:metadata": {"f:labels": {"f:theirs": {}}}}},
                    {"manager": "bursar", "operation": "Apply", "fieldsV1": ours},
                ],
            },
            "spec": {"hard": {"pods": pods}},
        })
    }

    #[test]
    fn only_fields_of_our_manager_count_in_the_managed_digest() {
        let all = json!({"f:metadata": {"f:labels": {"f:app": {}}}, "f:spec": {"f:hard": {"f:pods": {}}}});
        let less = json!({"f:metadata": {"f:labels": {"f:app": {}}}});
        let before = managed_digest(&quota("16", &all, "1"));
        assert_eq!(before, managed_digest(&quota("16", &all, "2")), "a label of another manager does not count");
        assert_ne!(before, managed_digest(&quota("32", &all, "1")), "a changed value of our field counts");
        assert_ne!(before, managed_digest(&quota("16", &less, "1")), "a field that we lost counts");
    }

    #[test]
    fn items_are_found_by_keys_value_and_index() {
        let object = json!({"list": [{"name": "a", "x": 1}, {"name": "b", "x": 2}], "set": ["p", "q"]});
        let fields =
            json!({"f:list": {"k:{\"name\":\"b\"}": {".": {}, "f:x": {}}}, "f:set": {"v:\"q\"": {}, "i:0": {}}});
        let kept = project(&object, fields.as_object().expect("the fields are an object"));
        assert_eq!(kept, json!({"f:list": {"k:{\"name\":\"b\"}": {"f:x": 2}}, "f:set": {"v:\"q\"": "q", "i:0": "p"}}));
    }
}
