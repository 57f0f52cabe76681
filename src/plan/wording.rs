//! Numbers and objects in words, for plans. PURE: no runtime, no client, no file system, no clock.

use crate::kinds::ObjectKey;

pub(super) fn counted(count: u64, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{} {noun}s", number(count)) }
}

/// Thousands apart by a narrow gap: `3 512`.
pub(super) fn number(number: u64) -> String {
    let digits = number.to_string();
    let head = digits.len() % 3;
    let groups = digits.as_bytes()[head..].chunks(3).map(String::from_utf8_lossy);
    let first = (head > 0).then(|| digits[..head].into());
    first.into_iter().chain(groups).collect::<Vec<_>>().join(" ")
}

/// Objects by kind, in the order in which they come; of a namespace its name, of several the number.
pub(super) fn objects<'a>(keys: impl Iterator<Item = &'a ObjectKey>) -> Vec<String> {
    let mut kinds: Vec<(&str, Vec<&ObjectKey>)> = Vec::new();
    for key in keys {
        match kinds.iter_mut().find(|(kind, _)| *kind == key.kind) {
            Some((_, keys)) => keys.push(key),
            None => kinds.push((&key.kind, vec![key])),
        }
    }
    kinds.sort_by_key(|(kind, _)| place(kind));
    kinds
        .into_iter()
        .map(|(kind, keys)| match (kind, keys.as_slice()) {
            ("Namespace", [key]) => format!("namespace {}", key.name),
            (_, [_]) => noun(kind).to_owned(),
            (_, keys) => format!("{} {}", keys.len(), plural(kind)),
        })
        .collect()
}

fn place(kind: &str) -> u8 {
    match kind {
        "Namespace" => 0,
        "ResourceQuota" => 1,
        "LimitRange" => 2,
        "NetworkPolicy" => 3,
        "PersistentVolume" => 4,
        "PersistentVolumeClaim" => 5,
        "RoleBinding" | "ClusterRoleBinding" => 7,
        _ => 6,
    }
}

pub(super) fn noun(kind: &str) -> &str {
    match kind {
        "Namespace" => "namespace",
        "ResourceQuota" => "quota",
        "LimitRange" => "limits",
        "NetworkPolicy" => "network policy",
        "PersistentVolume" => "volume",
        "PersistentVolumeClaim" => "claim",
        "RoleBinding" => "role binding",
        "ServiceAccount" => "service account",
        "Secret" => "secret",
        "ClusterRoleBinding" => "cluster role binding",
        other => other,
    }
}

fn plural(kind: &str) -> String {
    match noun(kind) {
        "network policy" => "network policies".to_owned(),
        noun @ ("quota" | "limits") => noun.to_owned(),
        noun => format!("{noun}s"),
    }
}
