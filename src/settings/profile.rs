//! Reads the quota and the limit range of a class.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::table::{Table, ValueKind, nearest};
use crate::quantity::{MEASURED, is_count, is_counted, is_quantity, is_resource, resources};

pub(super) const QUANTITY: ValueKind = ValueKind("a quantity", "\"16\"");
const COUNT: ValueKind = ValueKind("a whole number", "\"16\"");

/// Reads `spec.hard` of the ResourceQuota.
pub(super) fn quota(table: &Table<'_>) -> BTreeMap<String, String> {
    let mut quota = BTreeMap::new();
    for resource in table.keys() {
        if !is_resource(&resource) {
            table.wrong(&resource, not_a_resource(&resource));
            continue;
        }
        if let Some(amount) = amount(table, &resource, is_counted(&resource)) {
            quota.insert(resource, amount);
        }
    }
    quota
}

fn amount(table: &Table<'_>, key: &str, counted: bool) -> Option<String> {
    let text = table.parsed(key, QUANTITY, |text| is_quantity(text).then(|| text.to_owned()))?;
    if counted {
        return table.parsed(key, COUNT, |text| is_count(text).then(|| text.to_owned()));
    }
    Some(text)
}

fn not_a_resource(resource: &str) -> String {
    match nearest(resource, &resources()) {
        Some(near) => format!("no quota has such a resource; did you mean {near:?}?"),
        None => "no quota has such a resource; for example \"requests.cpu\"".to_owned(),
    }
}

/// Reads the resources that no override may change.
pub(super) fn quota_locked(table: &Table<'_>) -> BTreeSet<String> {
    let locked = table.texts("quota_locked").unwrap_or_default();
    for resource in locked.iter().filter(|resource| !is_resource(resource)) {
        table.wrong("quota_locked", format!("{resource:?}: {}", not_a_resource(resource)));
    }
    locked.into_iter().collect()
}

/// Reads `spec.limits` of the LimitRange.
pub(super) fn limit_range(table: &Table<'_>) -> Value {
    const TYPES: [(&str, &str); 3] =
        [("container", "Container"), ("pod", "Pod"), ("persistent_volume_claim", "PersistentVolumeClaim")];
    const FIELDS: [(&str, &str); 5] = [
        ("default", "default"),
        ("default_request", "defaultRequest"),
        ("max", "max"),
        ("min", "min"),
        ("max_limit_request_ratio", "maxLimitRequestRatio"),
    ];
    table.only(&TYPES.map(|(key, _)| key));
    let limits = TYPES.iter().filter(|(key, _)| table.has(key)).map(|(key, kind)| {
        let section = table.section(key);
        section.only(&FIELDS.map(|(key, _)| key));
        let mut limit = Map::from_iter([("type".to_owned(), json!(kind))]);
        for (key, field) in FIELDS.iter().filter(|(key, _)| section.has(key)) {
            if *kind != "Container" && key.starts_with("default") {
                section.wrong(key, "only containers have defaults");
            }
            limit.insert((*field).to_owned(), resource_amounts(&section.section(key)));
        }
        Value::Object(limit)
    });
    limits.collect()
}

fn resource_amounts(table: &Table<'_>) -> Value {
    let known: Vec<&str> = MEASURED[..3].iter().copied().chain(["storage"]).collect();
    let plain: Vec<String> = table.keys();
    let named: Vec<&str> = plain.iter().map(String::as_str).filter(|key| key.contains('/')).collect();
    table.only(&[known, named].concat());
    let amounts = plain.iter().filter_map(|key| Some((key.clone(), json!(amount(table, key, false)?))));
    Value::Object(amounts.collect())
}
