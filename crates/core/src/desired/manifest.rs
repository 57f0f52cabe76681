//! Site manifests: turns parsed YAML with placeholders in its strings into an object of a tenant.
//!
//! Values are put into strings that are already parsed, so a value cannot end its string and change the structure.
//! Placeholders in values are not replaced: a person named `{uid}` keeps that name.

use serde_json::{Map, Value};

use super::Place;

/// Returns the object, which is always in the tenant's namespace. Returns `None` if it has no `apiVersion`, kind or
/// name.
#[must_use]
pub fn render(template: &Value, place: &Place<'_>) -> Option<Value> {
    let mut object = filled(template, place);
    object.get("apiVersion")?.as_str()?;
    object.get("kind")?.as_str()?;
    let metadata = object.get_mut("metadata")?.as_object_mut()?;
    metadata.get("name")?.as_str()?;
    metadata.insert("namespace".to_owned(), Value::String(place.namespace.to_string()));
    Some(object)
}

fn filled(value: &Value, place: &Place<'_>) -> Value {
    match value {
        Value::String(text) => Value::String(fill(text, place)),
        Value::Array(items) => items.iter().map(|item| filled(item, place)).collect(),
        Value::Object(fields) => Value::Object(
            fields.iter().map(|(key, value)| (fill(key, place), filled(value, place))).collect::<Map<_, _>>(),
        ),
        other => other.clone(),
    }
}

/// Replaces `{name}`, `{namespace}`, `{uid}`, `{gid}`, `{account}` and `{class}` with the tenant's values. Any other
/// text in braces stays. `{uid}` and `{gid}` stay if the account has none.
#[must_use]
pub fn fill(text: &str, place: &Place<'_>) -> String {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find('{') {
        let (before, from) = rest.split_at(start);
        filled.push_str(before);
        let value = from.find('}').and_then(|end| Some((end, value(&from[1..end], place)?)));
        if let Some((end, value)) = value {
            filled.push_str(&value);
            rest = &from[end + 1..];
        } else {
            filled.push('{');
            rest = &from[1..];
        }
    }
    filled + rest
}

fn value(placeholder: &str, place: &Place<'_>) -> Option<String> {
    let posix = place.account.posix.as_ref();
    match placeholder {
        "name" => Some(place.account.kubernetes_name.clone()),
        "namespace" => Some(place.namespace.to_string()),
        "uid" => posix.map(|posix| posix.uid.to_string()),
        "gid" => posix.map(|posix| posix.gid.to_string()),
        "account" => Some(place.account.account_name().to_string()),
        "class" => Some(place.class.to_owned()),
        _ => None,
    }
}
