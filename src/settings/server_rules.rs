//! The rules of `[class.NAME.admission]` that the API server evaluates itself.

use std::collections::BTreeSet;

use super::admission::rule;
use super::table::Table;
use crate::rules::Mode;
use crate::rules::server::{ANY, HostField, ServerRule, ServerRules};

/// What `services.allow` may name: types of Services, and the field that takes addresses.
const SERVICES: [&str; 4] = ["NodePort", "LoadBalancer", "ExternalName", "externalIPs"];
/// Keys of `scheduling` that are lists, and the word for their names.
const SCHEDULING: [(&str, &str); 4] = [
    ("priority_classes", "priority"),
    ("runtime_classes", "runtime"),
    ("schedulers", "scheduler"),
    ("tolerations", "toleration"),
];
const INGRESS: [(&str, &str); 2] = [("classes", "ingress"), ("gateway_classes", "gateway")];

/// `claims`: the mode of the rule of that name, which storage classes share.
pub(super) fn server_rules(table: &Table<'_>, claims: Mode) -> ServerRules {
    ServerRules {
        services: services(table),
        scheduling: scheduling(table),
        sysctls: sysctls(table),
        ingress: ingress(table),
        storage: storage(table, claims),
        host_fields: host_fields(table),
    }
}

fn services(table: &Table<'_>) -> ServerRule {
    let (mode, fields) = rule(table, "services", &["allow"]);
    let allow = fields.as_ref().and_then(|fields| fields.texts("allow")).unwrap_or_default();
    if let Some(fields) = &fields {
        for word in allow.iter().filter(|word| !SERVICES.contains(&word.as_str())) {
            fields.wrong("allow", format!("{word:?} is none of: {}", SERVICES.join(", ")));
        }
    }
    ServerRule { mode, allow: allow.into_iter().collect() }
}

/// `WORD NAME` for each name of each list, and `WORD *` where there is no list.
fn listed(fields: Option<&Table<'_>>, lists: &[(&str, &str)]) -> BTreeSet<String> {
    let mut allow = BTreeSet::new();
    for (key, word) in lists {
        match fields.filter(|fields| fields.has(key)) {
            None => drop(allow.insert(format!("{word} {ANY}"))),
            Some(fields) => allow.extend(names(fields, key).into_iter().map(|name| format!("{word} {name}"))),
        }
    }
    allow
}

/// Names of a list, which become words of an expression of the API server.
pub(super) fn names(fields: &Table<'_>, key: &str) -> Vec<String> {
    let is_plain = |one: char| one.is_ascii_alphanumeric() || "-_./".contains(one);
    let names = fields.texts(key).unwrap_or_default();
    for name in names.iter().filter(|name| !name.chars().all(is_plain)) {
        fields.wrong(key, format!("{name:?} is not a name; name each"));
    }
    names
}

fn scheduling(table: &Table<'_>) -> ServerRule {
    let keys = SCHEDULING.map(|(key, _)| key);
    let (mode, fields) = rule(table, "scheduling", &[&keys[..], &["node_name"]].concat());
    let mut allow = listed(fields.as_ref(), &SCHEDULING);
    if fields.is_some_and(|fields| fields.switch("node_name", false)) {
        allow.insert("nodeName".to_owned());
    }
    ServerRule { mode, allow }
}

fn sysctls(table: &Table<'_>) -> ServerRule {
    let (mode, fields) = rule(table, "sysctls", &["allow"]);
    let allow = fields.map(|fields| names(&fields, "allow")).unwrap_or_default();
    // Kubernetes takes a slash for a dot, and the policy knows dots.
    ServerRule { mode, allow: allow.into_iter().map(|name| name.replace('/', ".")).collect() }
}

/// Off without a list.
fn ingress(table: &Table<'_>) -> ServerRule {
    let (mode, fields) = rule(table, "ingress", &INGRESS.map(|(key, _)| key));
    let has_list = fields.as_ref().is_some_and(|fields| INGRESS.iter().any(|(key, _)| fields.has(key)));
    if mode.is_some_and(|mode| mode != Mode::Off) && !has_list {
        table.wrong("ingress", "needs a list; for example { mode = \"enforce\", classes = [\"nginx\"] }");
    }
    let unlisted = if has_list { Mode::Enforce } else { Mode::Off };
    ServerRule { mode: Some(mode.unwrap_or(unlisted)), allow: listed(fields.as_ref(), &INGRESS) }
}

/// Off without a list; otherwise in the mode of `claims`.
fn storage(table: &Table<'_>, mode: Mode) -> ServerRule {
    let Some(fields) = detailed(table, "claims").filter(|fields| fields.has("storage_classes")) else {
        return ServerRules::default().storage;
    };
    let classes = names(&fields, "storage_classes");
    let filled = fields.value("storage_class").and_then(serde_json::Value::as_str);
    if let Some(filled) = filled.filter(|filled| !classes.iter().any(|class| class == filled)) {
        fields.wrong("storage_classes", format!("{filled:?} is missing, which storage_class fills in"));
    }
    ServerRule { mode: Some(mode), allow: classes.into_iter().map(|class| format!("class {class}")).collect() }
}

/// The table of a rule whose other keys are read elsewhere; `None` if the rule is a mode alone.
fn detailed<'a>(table: &Table<'a>, rule: &str) -> Option<Table<'a>> {
    table.value(rule).is_some_and(serde_json::Value::is_object).then(|| table.section(rule))
}

fn host_fields(table: &Table<'_>) -> BTreeSet<HostField> {
    let Some(hosts) = detailed(table, "hosts").filter(|hosts| hosts.has("fields")) else { return BTreeSet::new() };
    if !hosts.has("allow") {
        hosts.wrong("fields", "needs allow, the hosts that the fields may name");
    }
    let fields = hosts.section("fields");
    let mut found = BTreeSet::new();
    for kind in fields.keys() {
        for path in fields.texts(&kind).unwrap_or_default() {
            let Some(field) = HostField::parse(&kind, &path) else {
                let example = "\"gateways.gateway.networking.k8s.io\" = [\"spec.listeners[].hostname\"]";
                fields.wrong(&kind, format!("{path:?} is no field of a kind; for example {example}"));
                continue;
            };
            found.insert(field);
        }
    }
    found
}
