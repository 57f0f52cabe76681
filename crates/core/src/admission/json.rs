//! Accessors for raw objects. A value of another type than Kubernetes defines is [`Malformed`]. It never counts as
//! absent.

use super::decision::{Finding, Rule};
use super::value::{Json, Object};

/// The greatest number of characters of a user's text that a message repeats: enough to recognize it, and at most a
/// line.
const QUOTED: usize = 120;

/// Describes a part of an object that does not have the structure of its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) String);

impl Malformed {
    pub(super) fn finding(self) -> Finding {
        Finding {
            rule: Rule::Malformed,
            what: self.0,
            why: "such an object cannot be checked".to_owned(),
            remedy: "correct the field; `kubectl explain` shows its type".to_owned(),
        }
    }
}

/// Returns the value of `key`. As in the API server, `null` counts as absent.
pub(super) fn field<'v, 'a>(value: &'v Json<'a>, key: &str) -> Option<&'v Json<'a>> {
    value.get(key).filter(|value| !value.is_null())
}

/// Returns the value at the end of the path `keys`.
pub(super) fn at<'v, 'a>(value: &'v Json<'a>, keys: &[&str]) -> Option<&'v Json<'a>> {
    keys.iter().try_fold(value, |value, key| field(value, key))
}

/// Returns the object at `key`; `None` if it is absent.
pub(super) fn object<'v, 'a>(value: &'v Json<'a>, key: &str) -> Result<Option<&'v Object<'a>>, Malformed> {
    typed(value, key, "an object", Json::as_object)
}

/// Returns the list at `key`; an empty one if it is absent.
pub(super) fn list<'v, 'a>(value: &'v Json<'a>, key: &str) -> Result<&'v [Json<'a>], Malformed> {
    Ok(typed(value, key, "a list", Json::as_list)?.unwrap_or_default())
}

/// Returns the text at `key`; an empty one if it is absent.
pub(super) fn text<'v>(value: &'v Json<'_>, key: &str) -> Result<&'v str, Malformed> {
    Ok(typed(value, key, "a string", Json::as_str)?.unwrap_or_default())
}

/// Returns the texts of the list at `key`.
pub(super) fn texts<'v>(value: &'v Json<'_>, key: &str) -> Result<Vec<&'v str>, Malformed> {
    let text = |item: &'v Json<'_>| {
        item.as_str().ok_or_else(|| Malformed(format!("{key} contains an item that is not a string")))
    };
    list(value, key)?.iter().map(text).collect()
}

/// Returns the integer at `key`.
pub(super) fn number(value: &Json<'_>, key: &str) -> Result<Option<i64>, Malformed> {
    typed(value, key, "a whole number", Json::as_i64)
}

/// Returns the boolean at `key`.
pub(super) fn switch(value: &Json<'_>, key: &str) -> Result<Option<bool>, Malformed> {
    typed(value, key, "true or false", Json::as_bool)
}

fn typed<'v, 'a, T>(
    value: &'v Json<'a>,
    key: &str,
    what: &str,
    read: impl Fn(&'v Json<'a>) -> Option<T>,
) -> Result<Option<T>, Malformed> {
    let fields = value.as_object().ok_or_else(|| Malformed(format!("the parent of {key} is not an object")))?;
    let Some(value) = fields.get(key).filter(|value| !value.is_null()) else { return Ok(None) };
    read(value).map(Some).ok_or_else(|| Malformed(format!("{key} is not {what}")))
}

/// Returns the object at `key`. If `key` is absent, inserts an empty object. If another value is there, returns `None`.
pub(super) fn entry<'v, 'a>(value: &'v mut Json<'a>, key: &'a str) -> Option<&'v mut Json<'a>> {
    let slot = value.as_object_mut()?.entry(key);
    if slot.is_null() {
        *slot = Json::object([]);
    }
    slot.as_object().is_some().then_some(slot)
}

/// Returns the list at `key`. If `key` is absent, inserts an empty list. If another value is there, returns `None`.
pub(super) fn entries<'v, 'a>(value: &'v mut Json<'a>, key: &'a str) -> Option<&'v mut Vec<Json<'a>>> {
    let slot = value.as_object_mut()?.entry(key);
    if slot.is_null() {
        *slot = Json::List(Vec::new());
    }
    slot.as_list_mut()
}

/// Sets `key` to `new`, unless it has a value.
pub(super) fn set_absent<'a>(value: &mut Json<'a>, key: &'a str, new: impl Into<Json<'a>>) {
    let Some(fields) = value.as_object_mut() else { return };
    let slot = fields.entry(key);
    if slot.is_null() {
        *slot = new.into();
    }
}

/// Returns a user's text for a message: quoted, escaped, and cut to a line.
pub(super) fn quoted(text: &str) -> String {
    match text.char_indices().nth(QUOTED) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}
