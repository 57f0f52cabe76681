//! Observes a ResourceQuota in a cluster: how much of it is in use, and what other clients wrote into it.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::contract::MANAGER;

/// The use and the edits of a quota. Most quotas have neither, so no value is stored for them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObservedQuota {
    /// `status.used` without zero amounts.
    pub used: BTreeMap<String, String>,
    /// All of `spec.hard`, if another client set any amount in it; otherwise empty.
    pub edited: BTreeMap<String, String>,
    /// The other field managers that wrote to `spec.hard`, such as `kubectl-edit`.
    pub editors: Vec<String>,
}

/// Returns the use and the edits of a ResourceQuota; `None` if it has neither.
#[must_use]
pub fn observe(object: &Value) -> Option<ObservedQuota> {
    let editors = editors(object);
    let edited = if editors.is_empty() { BTreeMap::new() } else { amounts(&object["spec"]["hard"]) };
    let mut used = amounts(&object["status"]["used"]);
    used.retain(|_, amount| amount != "0");
    let empty = used.is_empty() && edited.is_empty();
    (!empty).then_some(ObservedQuota { used, edited, editors })
}

fn editors(object: &Value) -> Vec<String> {
    let entries = object["metadata"]["managedFields"].as_array().into_iter().flatten();
    let of_others = entries.filter(|entry| {
        let ours = entry["manager"] == MANAGER && entry["operation"] == "Apply";
        !ours && entry["subresource"].is_null() && entry["fieldsV1"]["f:spec"]["f:hard"].is_object()
    });
    of_others.filter_map(|entry| entry["manager"].as_str().map(str::to_owned)).collect()
}

/// Returns the amounts of a quota that are texts.
#[must_use]
pub fn amounts(amounts: &Value) -> BTreeMap<String, String> {
    let amounts = amounts.as_object().into_iter().flatten();
    amounts.filter_map(|(resource, amount)| Some((resource.clone(), amount.as_str()?.to_owned()))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn quota(editor: &str, subresource: &Value, pods: &str) -> Value {
        json!({
            "kind": "ResourceQuota",
            "metadata": {"managedFields": [
                {"manager": "bursar", "operation": "Apply", "fieldsV1": {"f:spec": {"f:hard": {"f:pods": {}}}}},
                {"manager": editor, "operation": "Update", "subresource": subresource,
                 "fieldsV1": {"f:spec": {"f:hard": {"f:pods": {}}}}},
            ]},
            "spec": {"hard": {"pods": "16"}},
            "status": {"used": {"pods": pods}},
        })
    }

    #[test]
    fn an_edit_counts_and_a_status_write_of_a_controller_does_not() {
        assert_eq!(observe(&quota("kube-controller-manager", &json!("status"), "0")), None);
        let edited = observe(&quota("kubectl-edit", &Value::Null, "3")).expect("the quota is edited and in use");
        assert_eq!((edited.edited["pods"].as_str(), edited.used["pods"].as_str()), ("16", "3"));
        assert_eq!(edited.editors, ["kubectl-edit"]);
    }
}
