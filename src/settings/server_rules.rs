//! Reads the rules of `[class.NAME.admission]` that the API server evaluates itself.

use std::collections::BTreeSet;
use std::time::Duration;

use super::admission::rule;
use super::table::Table;
use crate::rules::Mode;
use crate::rules::server::{ANY, HostField, LONGEST_GRACE, ServerRule, ServerRules};

/// The words of `services.allow`: types of Services, and the field for external addresses.
const SERVICES: [&str; 4] = ["NodePort", "LoadBalancer", "ExternalName", "externalIPs"];
/// Keys of `scheduling` that are lists, and the word before each of their names.
const SCHEDULING: [(&str, &str); 4] = [
    ("priority_classes", "priority"),
    ("runtime_classes", "runtime"),
    ("schedulers", "scheduler"),
    ("tolerations", "toleration"),
];
/// Keys of `scheduling` that permit a field, and the name of the field.
const SWITCHES: [(&str, &str); 2] = [("node_name", "nodeName"), ("scheduling_group", "schedulingGroup")];
const INGRESS: [(&str, &str); 2] = [("classes", "ingress"), ("gateway_classes", "gateway")];

/// `terminationGracePeriodSeconds` of a pod that does not name it.
const LEAST_GRACE: u64 = 30;

/// Reads the rules. `claims` is the mode of the rule `claims`, which also applies to storage classes.
pub(super) fn server_rules(table: &Table<'_>, claims: Mode) -> ServerRules {
    ServerRules {
        services: services(table),
        scheduling: scheduling(table),
        sysctls: sysctls(table),
        ingress: ingress(table),
        storage: storage(table, claims),
        host_fields: host_fields(table),
        host_annotations: host_annotations(table),
        longest_grace: longest_grace(table),
    }
}

/// Reads `max_grace_period`.
fn longest_grace(table: &Table<'_>) -> i64 {
    const KEY: &str = "max_grace_period";
    let seconds = table.duration(KEY, Duration::from_secs(LONGEST_GRACE.unsigned_abs())).as_secs();
    if seconds < LEAST_GRACE && !table.is_wrong(KEY) {
        table.wrong(KEY, "is less than 30s, which Kubernetes gives to every pod that names no grace period");
    }
    seconds.cast_signed()
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

/// Returns `WORD NAME` for each name of each list, and `WORD *` if there is no list.
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

/// Reads a list of names, which become words in an expression of the API server.
pub(super) fn names(fields: &Table<'_>, key: &str) -> Vec<String> {
    let is_plain = |one: char| one.is_ascii_alphanumeric() || "-_./".contains(one);
    let names = fields.texts(key).unwrap_or_default();
    for name in names.iter().filter(|name| !name.chars().all(is_plain)) {
        fields.wrong(key, format!("{name:?} is not a name; write each name, without wildcards"));
    }
    names
}

fn scheduling(table: &Table<'_>) -> ServerRule {
    let keys = SCHEDULING.map(|(key, _)| key);
    let (mode, fields) = rule(table, "scheduling", &[&keys[..], &SWITCHES.map(|(key, _)| key)].concat());
    let mut allow = listed(fields.as_ref(), &SCHEDULING);
    let on = SWITCHES.iter().filter(|(key, _)| fields.as_ref().is_some_and(|fields| fields.switch(key, false)));
    allow.extend(on.map(|(_, field)| (*field).to_owned()));
    ServerRule { mode, allow }
}

fn sysctls(table: &Table<'_>) -> ServerRule {
    let (mode, fields) = rule(table, "sysctls", &["allow"]);
    let allow = fields.map(|fields| names(&fields, "allow")).unwrap_or_default();
    // Kubernetes accepts slashes instead of dots, but the policy compares with dots.
    ServerRule { mode, allow: allow.into_iter().map(|name| name.replace('/', ".")).collect() }
}

/// Reads the rule `ingress`, which is off without a list.
fn ingress(table: &Table<'_>) -> ServerRule {
    let (mode, fields) = rule(table, "ingress", &INGRESS.map(|(key, _)| key));
    let has_list = fields.as_ref().is_some_and(|fields| INGRESS.iter().any(|(key, _)| fields.has(key)));
    if mode.is_some_and(|mode| mode != Mode::Off) && !has_list {
        table.wrong("ingress", "needs a list; for example { mode = \"enforce\", classes = [\"nginx\"] }");
    }
    let unlisted = if has_list { Mode::Enforce } else { Mode::Off };
    ServerRule { mode: Some(mode.unwrap_or(unlisted)), allow: listed(fields.as_ref(), &INGRESS) }
}

/// Reads the rule for storage classes. It is off without a list, and otherwise has the mode of `claims`.
fn storage(table: &Table<'_>, mode: Mode) -> ServerRule {
    let Some(fields) = detailed(table, "claims").filter(|fields| fields.has("storage_classes")) else {
        return ServerRules::default().storage;
    };
    let classes = names(&fields, "storage_classes");
    let filled = fields.value("storage_class").and_then(serde_json::Value::as_str);
    if let Some(filled) = filled.filter(|filled| !classes.iter().any(|class| class == filled)) {
        fields.wrong("storage_classes", format!("{filled:?} is missing, although storage_class fills it in"));
    }
    ServerRule { mode: Some(mode), allow: classes.into_iter().map(|class| format!("class {class}")).collect() }
}

/// Returns the table of a rule; `None` if the rule is written as a mode only. The table's other keys are checked
/// elsewhere.
fn detailed<'a>(table: &Table<'a>, rule: &str) -> Option<Table<'a>> {
    table.value(rule).is_some_and(serde_json::Value::is_object).then(|| table.section(rule))
}

/// Returns the table of the rule `hosts` if it has `key`, which lists `what` may name hosts.
fn hosts_with<'a>(table: &Table<'a>, key: &str, what: &str) -> Option<Table<'a>> {
    let hosts = detailed(table, "hosts").filter(|hosts| hosts.has(key))?;
    if !hosts.has("allow") {
        hosts.wrong(key, format!("needs allow, the hosts that the {what} may name"));
    }
    Some(hosts)
}

fn host_annotations(table: &Table<'_>) -> BTreeSet<String> {
    let hosts = hosts_with(table, "host_annotations", "annotations");
    hosts.map(|hosts| names(&hosts, "host_annotations")).into_iter().flatten().collect()
}

fn host_fields(table: &Table<'_>) -> BTreeSet<HostField> {
    let Some(hosts) = hosts_with(table, "fields", "fields") else { return BTreeSet::new() };
    let fields = hosts.section("fields");
    let mut found = BTreeSet::new();
    for kind in fields.keys() {
        for path in fields.texts(&kind).unwrap_or_default() {
            let Some(field) = HostField::parse(&kind, &path) else {
                let example = "\"gateways.gateway.networking.k8s.io\" = [\"spec.listeners[].hostname\"]";
                fields.wrong(&kind, format!("{path:?} is not a field of a kind; for example {example}"));
                continue;
            };
            found.insert(field);
        }
    }
    found
}
