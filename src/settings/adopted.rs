//! Reads what is special in a `[class.NAME]` with `from = "adopted"`: namespaces that others create.

use super::table::Table;
use crate::policy::{Adopts, Selector};

/// Keys of such a class alone.
pub(super) const OF_ADOPTED: [&str; 2] = ["selector", "owner_annotation"];
/// Keys that say something of a namespace that we make, or of a holder's own credential.
const STRANGE: [&str; 17] = [
    "namespace",
    "name_pattern",
    "home",
    "credential",
    "impersonate",
    "provision",
    "pod_security",
    "quota_locked",
    "quota_from_workspaces",
    "volumes",
    "admission",
    "member_roles",
    "manager_roles",
    "managers",
    "member_quota",
    "tier",
    "uid_range",
];

/// What the class adopts.
pub(super) fn adopts(table: &Table<'_>) -> Option<Adopts> {
    for key in STRANGE.iter().filter(|key| table.has(key)) {
        table.wrong(
            key,
            "not allowed with from = \"adopted\": set it in the class of the namespaces' owners (from = \"users\")",
        );
    }
    if table.section("drift").value("quota").is_some_and(|mode| mode == "adopt") {
        table.section("drift").wrong("quota", "overrides are of accounts' own namespaces; one of: revert, report");
    }
    let selector = table.required("selector", "app.kubernetes.io/part-of=kubeflow-profile")?;
    let selector = Selector::parse(&selector);
    if let Err(why) = &selector {
        let example = "app.kubernetes.io/part-of=kubeflow-profile";
        table.wrong("selector", format!("{why}; for example {example:?}"));
    }
    let owner_annotation = table.required("owner_annotation", "owner")?;
    if !is_annotation(&owner_annotation) {
        table.wrong("owner_annotation", format!("{owner_annotation:?} is no annotation; for example \"owner\""));
    }
    Some(Adopts { selector: selector.ok()?, owner_annotation })
}

fn is_annotation(text: &str) -> bool {
    let name = text.split_once('/').map_or(text, |(_, name)| name);
    (1..=63).contains(&name.len())
        && text.len() <= 253 + 64
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c))
}
