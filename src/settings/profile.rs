//! Parts of a class: quota, limit range, volumes, admission.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::class::absolute;
use super::table::{Kind, Table, is_name, nearest};
use crate::policy::StaticVolume;
use crate::quantity::{MEASURED, is_count, is_counted, is_quantity, is_resource, resources};

const QUANTITY: Kind = Kind("a quantity", "\"16\"");
const COUNT: Kind = Kind("a whole number", "\"16\"");
const ABSOLUTE: Kind = Kind("an absolute path", "\"/srv/project/{name}\"");

/// `spec.hard` of the ResourceQuota.
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
        Some(near) => format!("no quota has such a resource; do you mean {near:?}?"),
        None => "no quota has such a resource; for example \"requests.cpu\"".to_owned(),
    }
}

/// Resources that no override may change.
pub(super) fn quota_locked(table: &Table<'_>) -> BTreeSet<String> {
    let locked = table.texts("quota_locked").unwrap_or_default();
    for resource in locked.iter().filter(|resource| !is_resource(resource)) {
        table.wrong("quota_locked", format!("{resource:?}: {}", not_a_resource(resource)));
    }
    locked.into_iter().collect()
}

/// `spec.limits` of the LimitRange.
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

/// NFS volumes.
pub(super) fn volumes(table: &Table<'_>) -> Vec<StaticVolume> {
    let mut names = BTreeSet::new();
    let tables = table.list("volumes");
    let volumes = tables.iter().filter_map(|volume| {
        volume.only(&["name", "kind", "nfs", "mount", "size", "storage_class"]);
        let kinds = [("static", true), ("dynamic", false), ("personal", false)];
        if !volume.has("kind") {
            volume.wrong("kind", "missing; for example \"static\"");
        }
        if volume.choice("kind", &kinds) == Some(false) {
            volume.not_yet("kind", "volumes are of kind static");
            return None;
        }
        let name = volume.required("name", "home");
        if let Some(name) = &name {
            if !is_name(name) {
                volume.wrong("name", format!("{name:?} is not a claim's name; for example \"home\""));
            }
            if !names.insert(name.clone()) {
                volume.wrong("name", format!("{name:?} is another volume's name too"));
            }
        }
        let (server, path) = nfs(volume);
        let mount = volume.parsed("mount", ABSOLUTE, |text| absolute(text).map(|_| text.to_owned()));
        Some(StaticVolume { name: name?, server: server?, path: path?, mount })
    });
    volumes.collect()
}

fn nfs(volume: &Table<'_>) -> (Option<String>, Option<String>) {
    if !volume.has("nfs") {
        volume.wrong("nfs", "missing; for example { server = \"nfs.example.org\", path = \"/srv/project/{name}\" }");
        return (None, None);
    }
    let nfs = volume.section("nfs");
    nfs.only(&["server", "path"]);
    let server = nfs.required("server", "nfs.example.org");
    if !nfs.has("path") {
        nfs.wrong("path", format!("missing; for example {}", ABSOLUTE.1));
    }
    (server, nfs.parsed("path", ABSOLUTE, |text| absolute(text).map(|_| text.to_owned())))
}

/// `[class.NAME.admission]`: checked here, served by the webhook of a later version.
pub(super) fn admission(table: &Table<'_>) {
    const RULES: [&str; 7] = ["uid", "host", "images", "hosts", "volumes", "claims", "lifetime"];
    const MODES: [(&str, ()); 4] = [("enforce", ()), ("warn", ()), ("audit", ()), ("off", ())];
    table.only(&RULES);
    for rule in RULES {
        if !table.value(rule).is_some_and(Value::is_object) {
            table.choice(rule, &MODES);
            continue;
        }
        let fields = table.section(rule);
        fields.only(&["mode", "allow"]);
        fields.choice("mode", &MODES);
        let allow = fields.texts("allow").unwrap_or_default();
        for host in allow.iter().filter(|host| rule == "hosts" && !host.contains("{name}")) {
            fields.wrong("allow", format!("{host:?} would be everybody's; for example \"{{name}}.tools.example.org\""));
        }
    }
}
