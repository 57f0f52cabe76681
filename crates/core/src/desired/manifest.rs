//! Site templates: parsed YAML with placeholders in its strings becomes a tenant's object.
//!
//! Values go into strings that were parsed already, never into text, so no value can end its string and become
//! structure. What a value says is not looked at again: a person named `{uid}` stays that.

use serde_json::{Map, Value};

use super::Place;

/// The object, in the tenant's namespace whatever the template says. `None`: it has no kind or no name.
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

/// Puts the tenant's values in place of `{name}`, `{namespace}`, `{uid}`, `{gid}`, `{account}` and `{class}`. Any other
/// brace, and a number that the account does not have, stays as it is.
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
