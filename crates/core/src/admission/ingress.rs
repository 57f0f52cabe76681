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

/// Annotations that common tools write by themselves, and that no controller uses for routing.
pub const HARMLESS: [&str; 4] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    "kubernetes.io/description",
    "meta.helm.sh/release-name",
    "meta.helm.sh/release-namespace",
];

/// A host that an object uses, and the place in the object that names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
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

impl RoutingKind {
    /// Returns `None` for a kind whose hosts the rule does not check.
    pub(super) fn of(group: &str, resource: &str) -> Option<Self> {
        match (group, resource) {
            ("networking.k8s.io", "ingresses") => Some(Self::Ingress),
            ("gateway.networking.k8s.io", "httproutes" | "grpcroutes" | "tlsroutes") => Some(Self::Route),
            _ => None,
        }
    }
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
    let before: BTreeSet<Use<'_>> = old.map_or(Ok(Vec::new()), |old| uses(kind, old))?.into_iter().collect();
    let hosts: Vec<String> = patterns(tenant).collect();
    for used in uses(kind, new)?.into_iter().filter(|used| !before.contains(used)) {
        if !is_own(&hosts, used.host) {
            decision.found(rules.mode, finding(&used, tenant, &hosts));
        }
    }
    annotations(new, old, tenant, decision)
}

/// Returns what an object says about hosts that no pattern in `hosts` matches, such as `host "x" is somebody else's`.
pub(super) fn foreign_hosts(kind: RoutingKind, object: &Json<'_>, hosts: &[String]) -> Result<Vec<String>, Malformed> {
    let foreign = uses(kind, object)?.into_iter().filter(|used| !is_own(hosts, used.host));
    Ok(foreign.map(|used| used.problem()).collect())
}

/// Whether one of the patterns matches the host.
pub(super) fn is_own(patterns: &[String], host: &str) -> bool {
    patterns.iter().any(|pattern| is_match(pattern, host))
}

fn uses<'v>(kind: RoutingKind, object: &'v Json<'_>) -> Result<Vec<Use<'v>>, Malformed> {
    match kind {
        RoutingKind::Ingress => of_ingress(object),
        RoutingKind::Route => of_route(object),
    }
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

impl Use<'_> {
    /// Returns what is wrong if no pattern matches the host.
    fn problem(&self) -> String {
        let every = "is for every host";
        match (self.place, self.host) {
            (HostPlace::DefaultBackend, _) => format!("spec.defaultBackend {every}"),
            (HostPlace::Rule, "") => format!("a rule without host {every}"),
            (HostPlace::Tls, "") => format!("a TLS entry without hosts {every}"),
            (HostPlace::Route, "") => format!("a route without hostnames {every}"),
            (HostPlace::Tls, host) => format!("TLS host {} is somebody else's", quoted(host)),
            (_, host) => format!("host {} is somebody else's", quoted(host)),
        }
    }
}

fn finding(used: &Use<'_>, tenant: &Tenant<'_>, hosts: &[String]) -> Finding {
    let (why, remedy) = match hosts {
        [] => (format!("{} has no host", tenant.who()), "ask an administrator for one".to_owned()),
        [host] => (format!("{} has {host}", tenant.who()), format!("use {host}")),
        _ => (format!("{} has {}", tenant.who(), hosts.join(", ")), "use one of them".to_owned()),
    };
    Finding { rule: Rule::Hosts, what: used.problem(), why, remedy }
}

fn annotations(
    new: &Json<'_>,
    old: Option<&Json<'_>>,
    tenant: &Tenant<'_>,
    decision: &mut Decision,
) -> Result<(), Malformed> {
    let rules = &tenant.rules.hosts;
    for (key, value) in foreign_annotations(new, &rules.annotations)? {
        if old.and_then(|old| at(old, &["metadata", "annotations", key])) == Some(value) {
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

/// Returns the annotations that are neither harmless nor allowed.
pub(super) fn foreign_annotations<'v, 'a>(
    new: &'v Json<'a>,
    allowed: &[String],
) -> Result<Vec<(&'v str, &'v Json<'a>)>, Malformed> {
    let Some(metadata) = field(new, "metadata") else { return Ok(Vec::new()) };
    let all = object(metadata, "annotations")?.into_iter().flat_map(Object::iter);
    let is_fine = |key: &str| HARMLESS.contains(&key) || allowed.iter().any(|allowed| is_covered(allowed, key));
    Ok(all.filter(|(key, _)| !is_fine(key)).collect())
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
