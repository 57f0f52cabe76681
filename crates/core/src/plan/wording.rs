//! Renders numbers and lists of objects for the text of a plan.

use crate::kinds::{ManagedKind, ObjectKey, ObjectKind};

/// Returns a number of directory entries, such as `1 entry`.
#[must_use]
pub fn counted_entries(count: u64) -> String {
    if count == 1 { "1 entry".to_owned() } else { format!("{} entries", number(count)) }
}

pub(super) fn counted(count: u64, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{} {noun}s", number(count)) }
}

/// Formats a number with a space between thousands: `3 512`.
pub(super) fn number(number: u64) -> String {
    let digits = number.to_string();
    let head = digits.len() % 3;
    let groups = digits.as_bytes()[head..].chunks(3).map(String::from_utf8_lossy);
    let first = (head > 0).then(|| digits[..head].into());
    first.into_iter().chain(groups).collect::<Vec<_>>().join(" ")
}

/// Lists objects by kind: a namespace with its name, several objects with their number.
pub(super) fn objects<'a>(keys: impl Iterator<Item = &'a ObjectKey>) -> Vec<String> {
    let mut kinds: Vec<(&ObjectKind, Vec<&ObjectKey>)> = Vec::new();
    for key in keys {
        match kinds.iter_mut().find(|(kind, _)| **kind == key.kind) {
            Some((_, keys)) => keys.push(key),
            None => kinds.push((&key.kind, vec![key])),
        }
    }
    kinds.sort_by_key(|(kind, _)| kind.place_in_text());
    kinds
        .into_iter()
        .map(|(kind, keys)| match keys.as_slice() {
            [key] if *kind == ManagedKind::Namespace => format!("{} {}", kind.noun(), key.name),
            [_] => kind.noun().to_owned(),
            keys => format!("{} {}", keys.len(), kind.nouns()),
        })
        .collect()
}
