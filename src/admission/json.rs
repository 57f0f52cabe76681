//! Raw objects, read by key: a value of another type than Kubernetes gives it is [`Malformed`], never absent. PURE: no
//! runtime, no client, no file system, no clock.

use serde_json::{Map, Value};

use super::decision::{Finding, Rule};

/// How much of a user's text a message repeats: enough to find it again, and no more than a line.
const QUOTED: usize = 120;

/// A part of an object has not the shape that Kubernetes gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) String);

impl Malformed {
    pub(super) fn finding(self) -> Finding {
        Finding {
            rule: Rule::Malformed,
            what: self.0,
            why: "no such object can be checked".to_owned(),
            cure: "send it as Kubernetes defines it".to_owned(),
        }
    }
}

/// The value of `key`. `null` is absent, as it is for the API server.
pub(super) fn field<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    value.get(key).filter(|value| !value.is_null())
}

/// The value at the end of `keys`.
pub(super) fn at<'a>(value: &'a Value, keys: &[&str]) -> Option<&'a Value> {
    keys.iter().try_fold(value, |value, key| field(value, key))
}

/// The object at `key`; absent: none.
pub(super) fn object<'a>(value: &'a Value, key: &str) -> Result<Option<&'a Map<String, Value>>, Malformed> {
    typed(value, key, "an object", Value::as_object)
}

/// The list at `key`, empty if absent.
pub(super) fn list<'a>(value: &'a Value, key: &str) -> Result<&'a [Value], Malformed> {
    Ok(typed(value, key, "a list", Value::as_array)?.map_or(&[], Vec::as_slice))
}

/// The text at `key`, empty if absent.
pub(super) fn text<'a>(value: &'a Value, key: &str) -> Result<&'a str, Malformed> {
    Ok(typed(value, key, "a text", Value::as_str)?.unwrap_or_default())
}

/// The texts of the list at `key`.
pub(super) fn texts<'a>(value: &'a Value, key: &str) -> Result<Vec<&'a str>, Malformed> {
    let text = |item: &'a Value| item.as_str().ok_or_else(|| Malformed(format!("{key} has what is not a text")));
    list(value, key)?.iter().map(text).collect()
}

/// The whole number at `key`.
pub(super) fn number(value: &Value, key: &str) -> Result<Option<i64>, Malformed> {
    typed(value, key, "a whole number", Value::as_i64)
}

/// The switch at `key`.
pub(super) fn switch(value: &Value, key: &str) -> Result<Option<bool>, Malformed> {
    typed(value, key, "true or false", Value::as_bool)
}

fn typed<'a, T>(
    value: &'a Value,
    key: &str,
    what: &str,
    read: impl Fn(&'a Value) -> Option<T>,
) -> Result<Option<T>, Malformed> {
    if !value.is_object() {
        return Err(Malformed(format!("what should have {key} is not an object")));
    }
    let Some(value) = field(value, key) else { return Ok(None) };
    read(value).map(Some).ok_or_else(|| Malformed(format!("{key} is not {what}")))
}

/// The object at `key`, made if it is not there; `None` if something else is.
pub(super) fn entry<'a>(value: &'a mut Value, key: &str) -> Option<&'a mut Value> {
    let slot = value.as_object_mut()?.entry(key).or_insert(Value::Null);
    if slot.is_null() {
        *slot = Value::Object(Map::new());
    }
    slot.is_object().then_some(slot)
}

/// The list at `key`, made if it is not there; `None` if something else is.
pub(super) fn entries<'a>(value: &'a mut Value, key: &str) -> Option<&'a mut Vec<Value>> {
    let slot = value.as_object_mut()?.entry(key).or_insert(Value::Null);
    if slot.is_null() {
        *slot = Value::Array(Vec::new());
    }
    slot.as_array_mut()
}

/// Puts `new` at `key` unless something is there.
pub(super) fn set_absent(value: &mut Value, key: &str, new: impl Into<Value>) {
    let Some(fields) = value.as_object_mut() else { return };
    if fields.get(key).is_none_or(Value::is_null) {
        fields.insert(key.to_owned(), new.into());
    }
}

/// A user's text for a message: quoted, escaped, and not longer than a line.
pub(super) fn quoted(text: &str) -> String {
    match text.char_indices().nth(QUOTED) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}
