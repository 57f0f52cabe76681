//! Reads `[class.NAME.admission]`: a mode for each rule, what the rule allows, and limits.

use std::time::Duration;

use super::class::absolute;
use super::host::{has_name_as_label, is_host};
use super::server_rules::server_rules;
use super::table::Table;
use crate::admission::image::is_place;
use crate::identity::AccountKind;
use crate::policy::{Admission, Class, ClassLifetimes, PodSecurity, Reapers, VolumeRule};
use crate::rules::{AllowedVolume, ClaimRules, HostRules, ImageRules, Inject, Lifetimes, Mode, UidRules};

const KEYS: [&str; 12] = [
    "uid",
    "host",
    "images",
    "hosts",
    "volumes",
    "claims",
    "lifetime",
    "services",
    "scheduling",
    "sysctls",
    "ingress",
    "max_grace_period",
];
const MODES: [(&str, Mode); 4] =
    [("enforce", Mode::Enforce), ("warn", Mode::Warn), ("audit", Mode::Audit), ("off", Mode::Off)];

/// Reads the table. Missing keys have the values of [`Admission::default`].
pub(super) fn admission(table: &Table<'_>, kind: AccountKind, has_uids: bool) -> Admission {
    table.only(&KEYS);
    let default = Admission::default();
    let claims = claims(table);
    let (lifetime, lifetimes, lifetime_warning) = lifetime(table, default.lifetime);
    Admission {
        server: server_rules(table, claims.mode),
        uid: uid(table, default.uid, kind, has_uids),
        host: rule(table, "host", &[]).0.unwrap_or(default.host),
        images: images(table),
        hosts: hosts(table, default.hosts, "{name}"),
        volumes: volumes(table, default.volumes),
        claims,
        lifetime,
        lifetimes,
        lifetime_warning,
    }
}

/// Reads a rule that is written as `rule = "MODE"` or `rule = { mode = "MODE", … }`. Returns its mode, and the table of
/// the second form.
pub(super) fn rule<'a>(table: &Table<'a>, rule: &str, keys: &[&str]) -> (Option<Mode>, Option<Table<'a>>) {
    if !table.value(rule).is_some_and(serde_json::Value::is_object) {
        return (table.choice(rule, &MODES), None);
    }
    let fields = table.section(rule);
    fields.only(&[&["mode"], keys].concat());
    (fields.choice("mode", &MODES), Some(fields))
}

/// Reads the rule `uid`. If a class of groups has no range of uids, its pods have no uid to run as, and the rule is
/// off; Pod Security still keeps them from running as root.
fn uid(table: &Table<'_>, default: UidRules, kind: AccountKind, has_uids: bool) -> UidRules {
    if kind == AccountKind::Group && !has_uids {
        let is_off = table.value("uid").is_some_and(|value| value == Mode::Off.as_str());
        if table.has("uid") && !is_off {
            let why = "a group has no uid: give the class one for each workspace, for example uid_range = [70000, 79999]; \
                       or remove the key";
            table.wrong("uid", why);
        }
        return UidRules { mode: Mode::Off, ..default };
    }
    let (mode, fields) = rule(table, "uid", &["supplemental_groups", "privilege_escalation"]);
    let fields = fields.as_ref();
    let strict = fields.and_then(|fields| fields.choice("supplemental_groups", &[("strict", true), ("merge", false)]));
    UidRules {
        mode: mode.unwrap_or(default.mode),
        strict_groups: strict.unwrap_or(default.strict_groups),
        privilege_escalation: fields.map_or(default.privilege_escalation, |fields| {
            fields.switch("privilege_escalation", default.privilege_escalation)
        }),
    }
}

/// Returns the mode and the list of a rule that is off without a list. If the mode is set, the list must be given,
/// because a rule with a forgotten list would refuse everything. An empty list does that on purpose.
fn listed(
    table: &Table<'_>,
    name: &str,
    mode: Option<Mode>,
    fields: Option<&Table<'_>>,
    example: &str,
) -> (Mode, Vec<String>) {
    let allow = fields.and_then(|fields| fields.has("allow").then(|| fields.texts("allow").unwrap_or_default()));
    if allow.is_none() && mode.is_some_and(|mode| mode != Mode::Off) {
        let what = format!("needs a list; for example {{ mode = \"enforce\", allow = [{example:?}] }}");
        table.wrong(name, what);
    }
    match allow {
        Some(allow) => (mode.unwrap_or(Mode::Enforce), allow),
        None => (Mode::Off, Vec::new()),
    }
}

fn images(table: &Table<'_>) -> ImageRules {
    const EXAMPLE: &str = "registry.example.org/";
    let (mode, fields) = rule(table, "images", &["allow", "digest"]);
    let (mode, allow) = listed(table, "images", mode, fields.as_ref(), EXAMPLE);
    let digest = fields.as_ref().is_some_and(|fields| fields.switch("digest", false));
    if let Some(fields) = &fields {
        for place in allow.iter().filter(|place| !is_place(place)) {
            fields.wrong("allow", format!("{place:?} is not a registry with a path; for example {EXAMPLE:?}"));
        }
    }
    ImageRules { mode, allow, digest }
}

/// Reads the rule `hosts`. `own` is the placeholder in patterns for the name of the tenant or namespace.
pub(super) fn hosts(table: &Table<'_>, default: HostRules, own: &str) -> HostRules {
    let example = format!("{own}.tools.example.org");
    let (mode, fields) = rule(table, "hosts", &["allow", "annotations", "fields", "host_annotations"]);
    let (mode, allow) = listed(table, "hosts", mode, fields.as_ref(), &example);
    let Some(fields) = fields else { return HostRules { mode, allow, ..default } };
    for host in &allow {
        let pattern = host.replace(own, "{name}");
        if host.matches(own).count() != 1 {
            fields.wrong("allow", format!("{host:?} would be the same for every tenant; for example {example:?}"));
        } else if !has_name_as_label(&pattern) {
            let why = "so two tenants could get the same host";
            fields.wrong(
                "allow",
                format!("{host:?} has other text next to {own} in a label, {why}; for example {example:?}"),
            );
        } else if !is_host(&pattern) || host.matches('{').count() != 1 {
            fields.wrong("allow", format!("{host:?} is not a host; for example {example:?}"));
        }
    }
    let annotations = fields.texts("annotations").unwrap_or(default.annotations);
    for key in annotations.iter().filter(|key| key.trim_end_matches("/*").contains('*') || key.is_empty()) {
        fields.wrong("annotations", format!("{key:?} is not an annotation; for example \"cert-manager.io/*\""));
    }
    HostRules { mode, allow, annotations }
}

fn volumes(table: &Table<'_>, default: VolumeRule) -> VolumeRule {
    const WORDS: [(&str, Inject); 3] =
        [("none", Inject::None), ("containers", Inject::Containers), ("all", Inject::All)];
    let (mode, fields) = rule(table, "volumes", &["allow", "inject", "node_selector"]);
    let mode = mode.unwrap_or(default.mode);
    let Some(fields) = fields else { return VolumeRule { mode, ..default } };
    let allow = allowed_volumes(&fields);
    let selector = fields.section("node_selector");
    let labels = selector.keys().into_iter().filter_map(|key| Some((key.clone(), selector.text(&key)?)));
    VolumeRule {
        mode,
        allow,
        inject: fields.choice("inject", &WORDS).unwrap_or(default.inject),
        node_selector: labels.collect(),
    }
}

pub(super) fn allowed_volumes(fields: &Table<'_>) -> Vec<AllowedVolume> {
    let texts = fields.texts("allow").unwrap_or_default();
    let allow = texts.iter().filter_map(|text| {
        let volume = allowed_volume(text);
        if volume.is_none() {
            let examples = "\"nfs.example.org:/srv/dumps/\", \"/public/dumps/\", \"csi:DRIVER\", \"token:AUDIENCE\"";
            fields.wrong("allow", format!("{text:?} is not a volume; for example {examples}"));
        }
        volume
    });
    allow.collect()
}

fn allowed_volume(text: &str) -> Option<AllowedVolume> {
    let path = |text: &str| {
        (absolute(text).is_some() && !text.contains("//") && !text.contains("/./")).then(|| text.to_owned())
    };
    if text.starts_with('/') {
        return path(text).map(AllowedVolume::HostPath);
    }
    let named = |name: &str| (!name.is_empty()).then(|| name.to_owned());
    match text.split_once(':') {
        Some(("csi", driver)) => named(driver).map(AllowedVolume::Csi),
        Some(("token", audience)) => named(audience).map(AllowedVolume::Token),
        Some((server, rest)) if !server.is_empty() => {
            Some(AllowedVolume::Nfs { server: server.to_owned(), path: path(rest)? })
        }
        None if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric()) => {
            // These kinds have a form of their own, which names the server, path or driver.
            (!matches!(text, "nfs" | "hostPath" | "csi")).then(|| AllowedVolume::Source(text.to_owned()))
        }
        _ => None,
    }
}

fn claims(table: &Table<'_>) -> ClaimRules {
    let (mode, fields) = rule(table, "claims", &["storage_class", "storage_classes"]);
    let storage_class = fields.and_then(|fields| fields.text("storage_class"));
    ClaimRules { mode: mode.unwrap_or_default(), storage_class }
}

/// Reads the rule `lifetime`. Returns its mode, the lifetimes of pods, and how long before its end a pod gets a
/// warning.
fn lifetime(table: &Table<'_>, default: Mode) -> (Mode, Lifetimes, Duration) {
    let (mode, fields) = rule(table, "lifetime", &["max", "default", "required", "warn"]);
    let mode = mode.unwrap_or(default);
    let Some(fields) = fields else { return (mode, Lifetimes::default(), Duration::ZERO) };
    let time = |key: &str| {
        let time = fields.has(key).then(|| fields.duration(key, Duration::ZERO).as_secs());
        if time == Some(0) && !fields.is_wrong(key) {
            fields.wrong(key, "leaves no time: it is less than a second; for example \"24h\"");
        }
        time
    };
    let lifetimes =
        Lifetimes { max: time("max"), default: time("default"), required: fields.switch("required", false) };
    if lifetimes.default.zip(lifetimes.max).is_some_and(|(default, max)| default > max) {
        fields.wrong("default", "is longer than max; it must be at most as long");
    }
    if lifetimes.required && lifetimes.default.is_some() {
        fields.wrong("default", "is never used with required = true; remove one of the two");
    }
    let warn = if fields.has("warn") { Duration::from_secs(time("warn").unwrap_or_default()) } else { Duration::ZERO };
    (mode, lifetimes, warn)
}

/// Gives the reaper the lifetimes of the classes. If the reaper is off, each lifetime is an error, because nothing
/// would end pods.
pub(super) fn reaped(root: &Table<'_>, reapers: &mut Reapers, classes: &[Class]) {
    for class in classes {
        let Admission { lifetime, lifetimes, lifetime_warning: warn, .. } = class.admission;
        if lifetime != Mode::Enforce || (lifetimes.is_unbound() && warn.is_zero()) {
            continue;
        }
        if let Some(pods) = &mut reapers.pods {
            pods.classes.insert(class.name.clone(), ClassLifetimes { lifetimes, warn });
        } else {
            let why = "nothing ends pods: set enabled = true in [reaper.pods], and run `bursar init` again";
            root.section("class").section(&class.name).section("admission").wrong("lifetime", why);
        }
    }
}

/// Records an error if `privilege_escalation` is set with Pod Security `restricted`, which refuses it anyway.
pub(super) fn escalation_needs_a_lower_level(table: &Table<'_>, class: &Class) {
    if class.admission.uid.privilege_escalation && class.pod_security == PodSecurity::Restricted {
        let why = "Pod Security \"restricted\" refuses it anyway; remove it, or set pod_security = \"baseline\"";
        table.section("admission").section("uid").wrong("privilege_escalation", why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_volume_determines_its_kind() {
        let nfs = AllowedVolume::Nfs { server: "nfs.example.org".to_owned(), path: "/srv/{name}".to_owned() };
        assert_eq!(allowed_volume("nfs.example.org:/srv/{name}"), Some(nfs));
        assert_eq!(allowed_volume("/public/dumps/"), Some(AllowedVolume::HostPath("/public/dumps/".to_owned())));
        assert_eq!(allowed_volume("csi:x.example.org"), Some(AllowedVolume::Csi("x.example.org".to_owned())));
        assert_eq!(allowed_volume("token:vault"), Some(AllowedVolume::Token("vault".to_owned())));
        assert_eq!(allowed_volume("iscsi"), Some(AllowedVolume::Source("iscsi".to_owned())));
        for wrong in ["", "nfs", "csi", "hostPath", "/a/../b", "server:relative", "a b", ":/x", "token:", "/a//b"] {
            assert_eq!(allowed_volume(wrong), None, "{wrong}");
        }
    }
}
