//! Reads the keys that are special in a `[class.NAME]` with `from = "adopted"`, which adopts namespaces that others
//! create.

use super::admission::{allowed_volumes, hosts, rule};
use super::server_rules::{names, server_rules};
use super::table::Table;
use crate::policy::{AdoptedAdmission, Adopts, PodSecurity, Selector};
use crate::rules::server::{ServerRule, ServerRules};
use crate::rules::{AllowedVolume, Mode, PLACEHOLDER};

/// Keys that only such a class has.
pub(super) const OF_ADOPTED: [&str; 2] = ["selector", "owner_annotation"];
/// Keys about namespaces that Bursar makes, or about credentials, which such a class must not have.
const STRANGE: [&str; 15] = [
    "namespace",
    "name_pattern",
    "home",
    "credential",
    "impersonate",
    "provision",
    "quota_locked",
    "quota_from_workspaces",
    "volumes",
    "member_roles",
    "manager_roles",
    "managers",
    "member_quota",
    "tier",
    "uid_range",
];

/// Rules that the API server can evaluate without knowing the owner of a namespace.
const RULES: [&str; 7] = ["hosts", "volumes", "claims", "services", "scheduling", "sysctls", "ingress"];
/// Rules that need the seal of a tenant's namespace, or the webhook.
const OF_TENANTS: [&str; 5] = ["uid", "host", "images", "lifetime", "max_grace_period"];

/// Reads what the class adopts.
pub(super) fn adopts(table: &Table<'_>) -> Option<Adopts> {
    for key in STRANGE.iter().filter(|key| table.has(key)) {
        table.wrong(
            key,
            "not allowed with from = \"adopted\": set it in the class of the namespaces' owners (from = \"users\")",
        );
    }
    if table.section("drift").value("quota").is_some_and(|mode| mode == "adopt") {
        table
            .section("drift")
            .wrong("quota", "overrides exist for accounts' own namespaces only; one of: revert, report");
    }
    let selector = table.required("selector", "app.kubernetes.io/part-of=kubeflow-profile")?;
    let selector = Selector::parse(&selector);
    if let Err(why) = &selector {
        let example = "app.kubernetes.io/part-of=kubeflow-profile";
        table.wrong("selector", format!("{why}; for example {example:?}"));
    }
    let owner_annotation = table.required("owner_annotation", "owner")?;
    if !is_annotation(&owner_annotation) {
        table.wrong("owner_annotation", format!("{owner_annotation:?} is not an annotation; for example \"owner\""));
    }
    let admission = Box::new(admission(&table.section("admission")));
    // `privileged` is not a choice, because namespaces without a level have it anyway.
    let levels = [("baseline", PodSecurity::Baseline), ("restricted", PodSecurity::Restricted)];
    let pod_security = table.choice("pod_security", &levels);
    Some(Adopts { selector: selector.ok()?, owner_annotation, admission, pod_security })
}

/// Reads the rules. A missing rule is off, because the makers of these namespaces may need what it refuses.
fn admission(table: &Table<'_>) -> AdoptedAdmission {
    for key in OF_TENANTS.iter().filter(|key| table.has(key)) {
        table.wrong(
            key,
            format!("is for tenants' namespaces only; the rules for adopted namespaces are: {}", RULES.join(", ")),
        );
    }
    table.only(&[&RULES[..], &OF_TENANTS].concat());
    let default = AdoptedAdmission::default();
    let (claims, read_write_many) = claims(table);
    let (volumes, allowed_volumes) = volumes(table);
    let chosen = |name: &str, rule: ServerRule| ServerRule {
        mode: Some(rule.mode.unwrap_or(if table.has(name) { Mode::Enforce } else { Mode::Off })),
        ..rule
    };
    let server = server_rules(table, claims);
    let hosts = hosts(table, default.hosts, PLACEHOLDER);
    for key in hosts.annotations.iter().filter(|key| !is_annotation(key.trim_end_matches("/*"))) {
        table
            .section("hosts")
            .wrong("annotations", format!("{key:?} is not an annotation; for example \"cert-manager.io/*\""));
    }
    AdoptedAdmission {
        hosts,
        volumes,
        allowed_volumes,
        read_write_many,
        server: ServerRules {
            services: chosen("services", server.services),
            scheduling: chosen("scheduling", server.scheduling),
            sysctls: chosen("sysctls", server.sysctls),
            ..server
        },
    }
}

/// Returns the mode of the rule `claims`, and the rule for `ReadWriteMany`.
fn claims(table: &Table<'_>) -> (Mode, ServerRule) {
    let off = ServerRule { mode: Some(Mode::Off), ..ServerRule::default() };
    if !table.has("claims") {
        return (Mode::Off, off);
    }
    let (mode, fields) = rule(table, "claims", &["read_write_many", "storage_classes"]);
    let mode = mode.unwrap_or(Mode::Enforce);
    let has = |key: &str| fields.as_ref().is_some_and(|fields| fields.has(key));
    if mode != Mode::Off && !has("read_write_many") && !has("storage_classes") {
        let example = "{ mode = \"enforce\", read_write_many = [\"nfs-csi\"] }";
        table.wrong("claims", format!("needs a list; for example {example}"));
    }
    match fields.filter(|fields| fields.has("read_write_many")) {
        Some(fields) => {
            let classes = names(&fields, "read_write_many");
            let allow = classes.into_iter().map(|class| format!("class {class}")).collect();
            (mode, ServerRule { mode: Some(mode), allow })
        }
        None => (mode, off),
    }
}

/// Reads the rule `volumes`. The allowed volumes become texts in an expression of the API server.
fn volumes(table: &Table<'_>) -> (Mode, Vec<AllowedVolume>) {
    if !table.has("volumes") {
        return (Mode::Off, Vec::new());
    }
    let (mode, fields) = rule(table, "volumes", &["allow"]);
    let allowed = fields.as_ref().map(allowed_volumes).unwrap_or_default();
    let is_odd = |one: char| "'\"\\{}".contains(one) || one.is_whitespace() || one.is_control();
    for volume in allowed.iter().filter(|volume| volume.to_string().replace(PLACEHOLDER, "").contains(is_odd)) {
        let why = "has characters that are not allowed here; the only placeholder is {namespace}";
        table.section("volumes").wrong("allow", format!("\"{volume}\" {why}"));
    }
    (mode.unwrap_or(Mode::Enforce), allowed)
}

fn is_annotation(text: &str) -> bool {
    let name = text.split_once('/').map_or(text, |(_, name)| name);
    (1..=63).contains(&name.len())
        && text.len() <= 253 + 64
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c))
}
