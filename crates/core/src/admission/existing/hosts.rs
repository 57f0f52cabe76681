//! Judges hosts in annotations and in the fields of `hosts.fields`, with the same verdicts as the policies of the API
//! server.

use std::collections::BTreeSet;

use serde_json::Value;

use super::super::ingress::is_own;
use super::{JudgedKind, text};
use crate::identity::name_in;
use crate::rules::server::{HOST_ANNOTATIONS, HostField, Step};

/// Returns the patterns of the hosts of one namespace. `patterns` are those of its class, and `named` is the class's
/// pattern for names of namespaces.
#[must_use]
pub fn own_hosts(patterns: &[String], named: &str, namespace: &str) -> Vec<String> {
    let Some(name) = name_in(named, namespace) else { return Vec::new() };
    patterns.iter().map(|pattern| pattern.replace("{name}", name)).collect()
}

pub(super) fn is_of(field: &HostField, kind: JudgedKind<'_>) -> bool {
    field.group == kind.group && field.plural == kind.resource
}

/// Whether controllers serve the hosts in annotations of this kind.
pub(super) fn is_served_by_annotation(kind: JudgedKind<'_>, fields: &BTreeSet<HostField>) -> bool {
    match (kind.group, kind.resource) {
        ("", "services" | "pods") | ("gateway.networking.k8s.io", "gateways" | "tcproutes" | "udproutes") => true,
        _ => fields.iter().any(|field| is_of(field, kind)),
    }
}

/// Returns the annotations that name a host of somebody else. Only three sets of annotations are checked: names that
/// end in the word `hostname`, [`HOST_ANNOTATIONS`], and the annotations that the class adds.
pub(super) fn hostnames(own_hosts: &[String], added: &BTreeSet<String>, annotations: &Value) -> Vec<String> {
    let names_hosts = |key: &str| {
        let singular = key.strip_suffix('s').unwrap_or(key);
        let before = singular.strip_suffix("hostname");
        before.is_some_and(|before| !before.ends_with(|last: char| last.is_ascii_lowercase()))
            || singular.ends_with("Hostname")
            || HOST_ANNOTATIONS.contains(&key)
            || added.contains(key)
    };
    let of_hosts = annotations.as_object().into_iter().flatten().filter(|(key, _)| names_hosts(key));
    let foreign = of_hosts.filter(|(_, hosts)| !text(hosts).split(',').all(|host| is_own(own_hosts, host.trim())));
    foreign.map(|(key, _)| format!("annotation {key:?} has a host of somebody else")).collect()
}

/// Whether every host at `path` belongs to the namespace.
pub(super) fn has_own_hosts(value: &Value, path: &[Step], optional: bool, own_hosts: &[String]) -> bool {
    let Some((Step { name, each }, rest)) = path.split_first() else {
        return value.as_str().is_some_and(|host| is_own(own_hosts, host));
    };
    let all = |item: &Value| has_own_hosts(item, rest, optional, own_hosts);
    match value.get(name) {
        None => optional,
        Some(next) if !*each => all(next),
        Some(Value::Array(items)) => (optional || !items.is_empty()) && items.iter().all(all),
        Some(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{NamespaceRules, by_server, kind};
    use super::*;
    use crate::rules::server::ServerRules;
    use crate::rules::{HostRules, Mode};

    #[test]
    fn hosts_in_annotations_and_further_kinds_are_found() {
        let (services, widgets) = (kind("", "services"), kind("example.org", "widgets"));
        let gateways = kind("gateway.networking.k8s.io", "gateways");
        let of = |path: &str, kind: JudgedKind<'_>, object: &Value| {
            let field = HostField::parse("widgets.example.org", path).expect("the text names a field");
            let host_annotations = ["example.org/serves".to_owned()].into();
            let server = ServerRules { host_fields: [field].into(), host_annotations, ..ServerRules::default() };
            let hosts = HostRules { mode: Mode::Warn, allow: Vec::new(), annotations: Vec::new() };
            let own_hosts = own_hosts(&["{name}.example.org".to_owned()], "tool-{name}", "tool-foo");
            let (unchosen, fields) = (Mode::Enforce, &server.host_fields);
            let rules = NamespaceRules { server: &server, unchosen, hosts: &hosts, own_hosts: &own_hosts, fields };
            let broken = by_server(&rules, kind, object).into_iter();
            broken.map(|broken| (broken.rule, broken.mode)).collect::<Vec<_>>()
        };
        for (key, value, found) in [
            ("external-dns.alpha.kubernetes.io/hostname", "foo.example.org, foo.example.org", 0),
            ("external-dns.alpha.kubernetes.io/hostname", "foo.example.org,bar.example.org", 1),
            ("example.org/hostnames", "", 1),
            ("example.org/myhostname", "bar.example.org", 0),
            ("example.org/myHostname", "bar.example.org", 1),
            ("example.org/note", "bar.example.org", 0),
            ("example.org/serves", "bar.example.org", 1),
            ("example.org/serves", "foo.example.org", 0),
            ("dns.alpha.kubernetes.io/external", "foo.example.org, bar.example.org", 1),
            ("dns.alpha.kubernetes.io/internal", "foo.example.org", 0),
            ("zalando.org/dnsname", "bar.example.org", 1),
        ] {
            let annotations = json!({key: value});
            let object = json!({"metadata": {"annotations": annotations}, "spec": {"hosts": ["foo.example.org"]}});
            let passed_on = json!({"spec": {"infrastructure": {"annotations": annotations}}});
            for (kind, object) in [(services, &object), (widgets, &object), (gateways, &object), (gateways, &passed_on)]
            {
                let expected = [("services", Mode::Enforce)];
                assert_eq!(of("spec.hosts[]", kind, object), expected[..found], "{key} {value}");
            }
        }
        for (path, spec, found) in [
            ("spec.hosts[]", json!({"hosts": ["foo.example.org"]}), 0),
            ("spec.hosts[]", json!({"hosts": ["foo.example.org", "bar.example.org"]}), 1),
            ("spec.hosts[]", json!({"hosts": []}), 1),
            ("spec.hosts[]?", json!({"hosts": []}), 0),
            ("spec.hosts[]?", json!({"hosts": "foo.example.org"}), 1),
            ("spec.hosts[].name", json!({"hosts": [{"name": "foo.example.org"}, {}]}), 1),
            ("spec.hosts[].name?", json!({"hosts": [{"name": "foo.example.org"}, {}]}), 0),
            ("spec.host", json!({"host": "foo.example.org"}), 0),
            ("spec.host", json!({"host": 7}), 1),
            ("spec.host", json!({}), 1),
            ("spec.host?", json!({}), 0),
        ] {
            let expected = [("hosts.fields", Mode::Warn)];
            assert_eq!(of(path, widgets, &json!({"spec": spec})), expected[..found], "{path} {spec}");
        }
    }
}
