//! Checks the hosts and annotations of an `Ingress`, an `HTTPRoute` and similar kinds.
//!
//! Hosts are compared label by label, as they are written. The API server and the controllers accept only lower case
//! without a dot at the end, so a host in any other form belongs to no tenant.

use std::collections::BTreeSet;

use super::decision::{Decision, Finding, Rule};
use super::json::{Malformed, at, field, list, object, quoted, text, texts};
use super::tenant::Tenant;
use super::value::{Json, Object};
use crate::contract::Identity;
use crate::rules::{ClassRules, Mode};

/// Annotations that no controller uses for routing, and that common tools write by themselves.
pub const HARMLESS: [&str; 4] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    "kubernetes.io/description",
    "meta.helm.sh/release-name",
    "meta.helm.sh/release-namespace",
];

/// A host that an object uses, and the place in the object that names it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Use<'a> {
    place: HostPlace,
    /// The host; empty if the object is for every host.
    host: &'a str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum HostPlace {
    Rule,
    Tls,
    DefaultBackend,
    Route,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RoutingKind {
    /// `Ingress` of `networking.k8s.io/v1`.
    Ingress,
    /// `HTTPRoute`, `GRPCRoute` and `TLSRoute` of `gateway.networking.k8s.io`.
    Route,
}

/// Checks the hosts and annotations that differ from the old object.
pub(super) fn check(
    kind: RoutingKind,
    new: &Json<'_>,
    old: Option<&Json<'_>>,
    tenant: &Tenant<'_>,
    decision: &mut Decision,
) -> Result<(), Malformed> {
    let rules = &tenant.rules.hosts;
    if rules.mode == Mode::Off {
        return Ok(());
    }
    let uses = |object: &'_ Json<'_>| match kind {
        RoutingKind::Ingress => of_ingress(object).map(owned),
        RoutingKind::Route => of_route(object).map(owned),
    };
    let before: BTreeSet<(HostPlace, String)> = old.map_or(Ok(Vec::new()), uses)?.into_iter().collect();
    let hosts: Vec<String> = patterns(tenant).collect();
    for (place, host) in uses(new)?.into_iter().filter(|used| !before.contains(used)) {
        if !hosts.iter().any(|pattern| is_match(pattern, &host)) {
            decision.found(rules.mode, finding(&Use { place, host: &host }, tenant, &hosts));
        }
    }
    annotations(new, old, tenant, decision)
}

fn owned(uses: Vec<Use<'_>>) -> Vec<(HostPlace, String)> {
    uses.into_iter().map(|used| (used.place, used.host.to_owned())).collect()
}

fn of_ingress<'v>(object: &'v Json<'_>) -> Result<Vec<Use<'v>>, Malformed> {
    let spec = field(object, "spec").ok_or_else(|| Malformed("spec is missing".to_owned()))?;
    let mut uses = Vec::new();
    if self::object(spec, "defaultBackend")?.is_some() {
        uses.push(Use { place: HostPlace::DefaultBackend, host: "" });
    }
    for rule in list(spec, "rules")? {
        uses.push(Use { place: HostPlace::Rule, host: text(rule, "host")? });
    }
    for tls in list(spec, "tls")? {
        let hosts = texts(tls, "hosts")?;
        if hosts.is_empty() {
            uses.push(Use { place: HostPlace::Tls, host: "" });
        }
        uses.extend(hosts.into_iter().map(|host| Use { place: HostPlace::Tls, host }));
    }
    Ok(uses)
}

fn of_route<'v>(object: &'v Json<'_>) -> Result<Vec<Use<'v>>, Malformed> {
    let spec = field(object, "spec").ok_or_else(|| Malformed("spec is missing".to_owned()))?;
    let hosts = texts(spec, "hostnames")?;
    if hosts.is_empty() {
        return Ok(vec![Use { place: HostPlace::Route, host: "" }]);
    }
    Ok(hosts.into_iter().map(|host| Use { place: HostPlace::Route, host }).collect())
}

/// Returns the tenant's hosts.
fn patterns<'a>(tenant: &'a Tenant<'_>) -> impl Iterator<Item = String> + 'a {
    own_patterns(tenant.rules).filter_map(|pattern| tenant.fill(pattern))
}

/// Returns the patterns in which `{name}` is a whole label. Other patterns are ignored, because a host that matches
/// them could belong to several tenants.
fn own_patterns(rules: &ClassRules) -> impl Iterator<Item = &String> {
    rules.hosts.allow.iter().filter(|pattern| pattern.split('.').any(|label| label == "{name}"))
}

/// Returns the pattern of the class that lets the tenant serve `host`, if there is one.
#[must_use]
pub fn serves<'r>(identity: &Identity, rules: &'r ClassRules, host: &str) -> Option<&'r str> {
    let tenant = Tenant { identity, rules };
    let fits = |pattern: &&String| tenant.fill(pattern).is_some_and(|filled| is_match(&filled, host));
    own_patterns(rules).find(fits).map(String::as_str)
}

/// Whether `host` matches `pattern`. If the first label of the pattern is `*`, it matches any label, even `*`.
fn is_match(pattern: &str, host: &str) -> bool {
    match pattern.strip_prefix("*.") {
        Some(rest) => host.split_once('.').is_some_and(|(first, after)| is_label(first) && after == rest),
        None => host == pattern,
    }
}

fn is_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    text == "*" || (!text.is_empty() && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-'))
}

fn finding(used: &Use<'_>, tenant: &Tenant<'_>, hosts: &[String]) -> Finding {
    let every = "is for every host";
    let what = match (used.place, used.host) {
        (HostPlace::DefaultBackend, _) => format!("spec.defaultBackend {every}"),
        (HostPlace::Rule, "") => format!("a rule without host {every}"),
        (HostPlace::Tls, "") => format!("a TLS entry without hosts {every}"),
        (HostPlace::Route, "") => format!("a route without hostnames {every}"),
        (HostPlace::Tls, host) => format!("TLS host {} is somebody else's", quoted(host)),
        (_, host) => format!("host {} is somebody else's", quoted(host)),
    };
    let (why, remedy) = match hosts {
        [] => (format!("{} has no host", tenant.who()), "ask an administrator for one".to_owned()),
        [host] => (format!("{} has {host}", tenant.who()), format!("use {host}")),
        _ => (format!("{} has {}", tenant.who(), hosts.join(", ")), "use one of them".to_owned()),
    };
    Finding { rule: Rule::Hosts, what, why, remedy }
}

fn annotations(
    new: &Json<'_>,
    old: Option<&Json<'_>>,
    tenant: &Tenant<'_>,
    decision: &mut Decision,
) -> Result<(), Malformed> {
    let Some(metadata) = field(new, "metadata") else { return Ok(()) };
    let rules = &tenant.rules.hosts;
    for (key, value) in object(metadata, "annotations")?.into_iter().flat_map(Object::iter) {
        let is_same = old.and_then(|old| at(old, &["metadata", "annotations", key])) == Some(value);
        if is_same || HARMLESS.contains(&key) || rules.annotations.iter().any(|allowed| is_covered(allowed, key)) {
            continue;
        }
        let why = match rules.annotations.as_slice() {
            [] => "it can take over other hosts".to_owned(),
            allowed => format!("allowed are {}", allowed.join(", ")),
        };
        let what = format!("annotation {} may not be set", quoted(key));
        let remedy = "remove it, or ask an administrator to allow it".to_owned();
        decision.found(rules.mode, Finding { rule: Rule::Annotations, what, why, remedy });
    }
    Ok(())
}

fn is_covered(allowed: &str, key: &str) -> bool {
    match allowed.strip_suffix('*') {
        Some(prefix) => prefix.ends_with('/') && key.starts_with(prefix),
        None => key == allowed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_exact_host_matches() {
        let own = "foo.tools.example.org";
        assert!(is_match(own, own));
        for other in [
            "foo.tools.example.org.evil",
            "foo.tools.example.org.",
            "FOO.tools.example.org",
            "xfoo.tools.example.org",
            "a.foo.tools.example.org",
            "*.tools.example.org",
            "tools.example.org",
            "foo-tools.example.org",
            "foo.tools.example.org:443",
            "foo.tools.example.orɡ",
            "",
        ] {
            assert!(!is_match(own, other), "{other}");
        }
    }

    #[test]
    fn a_wildcard_in_a_pattern_matches_one_label() {
        let pattern = "*.foo.tools.example.org";
        assert!(is_match(pattern, "a.foo.tools.example.org") && is_match(pattern, "*.foo.tools.example.org"));
        for other in
            ["foo.tools.example.org", ".foo.tools.example.org", "a.b.foo.tools.example.org", "A.foo.tools.example.org"]
        {
            assert!(!is_match(pattern, other), "{other}");
        }
    }
}
