//! Judges existing objects as if they were created now: by [`decide`] itself, and by those rules of the API server's
//! policies that can be checked from the object alone.

mod adopted;
mod hosts;

use std::borrow::Cow;
use std::collections::BTreeSet;

use regex::Regex;
use serde::Serialize;
use serde_json::Value;

pub use self::adopted::{AdoptedRules, by_adopting};
pub use self::hosts::own_hosts;
use self::hosts::{has_own_hosts, hostnames, is_of, is_served_by_annotation};
use super::value::Json;
use super::{Decision, Finding, Operation, POD_BYTES, Resolved, Review, Rule, TOO_LARGE, User, decide};
use crate::contract::SERVICE_ACCOUNT_PREFIX;
use crate::rules::server::{HostField, PORT_SYSCTLS, SAFE_SYSCTLS, ServerRule, ServerRules};
use crate::rules::{HostRules, Mode, Rules};

/// The API group and the resource of objects that are judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JudgedKind<'k> {
    /// The API group; empty for the core group.
    pub group: &'k str,
    /// The plural of the kind, such as `pods`.
    pub resource: &'k str,
}

/// The kinds that rules apply to, except the kinds in `hosts.fields`. Owners come before the objects that they create.
pub const KINDS: [JudgedKind<'static>; 17] = [
    kind("", "pods"),
    kind("", "replicationcontrollers"),
    kind("", "persistentvolumeclaims"),
    kind("", "services"),
    kind("apps", "deployments"),
    kind("apps", "replicasets"),
    kind("apps", "statefulsets"),
    kind("apps", "daemonsets"),
    kind("batch", "cronjobs"),
    kind("batch", "jobs"),
    kind("networking.k8s.io", "ingresses"),
    kind("gateway.networking.k8s.io", "httproutes"),
    kind("gateway.networking.k8s.io", "grpcroutes"),
    kind("gateway.networking.k8s.io", "tlsroutes"),
    kind("gateway.networking.k8s.io", "gateways"),
    kind("gateway.networking.k8s.io", "tcproutes"),
    kind("gateway.networking.k8s.io", "udproutes"),
];

const fn kind(group: &'static str, resource: &'static str) -> JudgedKind<'static> {
    JudgedKind { group, resource }
}

/// The checks that are left out, because an existing object does not show whether it passes them. The texts are for
/// administrators.
pub const NOT_JUDGED: [&str; 4] = [
    "scheduling: nodeName of running pods, because the scheduler sets it; templates are judged",
    "claims: the storage class that a claim without one would get",
    "bursar-tokens: Secrets with a token of a service account, because they may not be read",
    "bursar-size: labels, finalizers, owner references and managedFields",
];

/// A rule that an existing object breaks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Broken {
    /// The rule's name, such as `uid`; [`LACKS`] if a running pod lacks what the webhook adds to new ones.
    pub rule: &'static str,
    /// What would happen to a new object that breaks the rule.
    pub mode: Mode,
    pub text: String,
}

/// The pseudo rule of running pods that lack what the webhook adds to new ones.
pub const LACKS: &str = "filled in";

/// The API server's policy on grace periods.
pub const GRACE: &str = "bursar-grace";

/// The API server's policy on service accounts of Bursar, and on Secrets with their tokens.
pub const TOKENS: &str = "bursar-tokens";

/// The rules of a class that the API server evaluates, for the objects of one namespace.
#[derive(Debug, Clone, Copy)]
pub struct NamespaceRules<'r> {
    pub server: &'r ServerRules,
    /// The mode of each rule for which no administrator chose a mode.
    pub unchosen: Mode,
    pub hosts: &'r HostRules,
    /// The patterns of the namespace's hosts ([`own_hosts`]).
    pub own_hosts: &'r [String],
    /// The `hosts.fields` of all classes that share a policy. In objects of these kinds, hosts in annotations are
    /// judged too.
    pub fields: &'r BTreeSet<HostField>,
}

/// Judges an object by the rules of the webhook. `resolved` is the tenant of its namespace.
#[must_use]
pub fn by_webhook(rules: &Rules, resolved: &Resolved, kind: JudgedKind<'_>, object: &Value) -> Vec<Broken> {
    if is_over(kind, object) {
        return Vec::new();
    }
    let text = |key: &str| Cow::from(object["metadata"][key].as_str().unwrap_or_default());
    let review = Review {
        uid: Cow::from(""),
        operation: Operation::Create,
        group: Cow::from(kind.group),
        version: Cow::from(""),
        resource: Cow::from(kind.resource),
        subresource: Cow::from(""),
        name: text("name"),
        namespace: text("namespace"),
        // The daemon sends this review, so that Bursar's own objects break no rule.
        user: User { name: Cow::from(rules.daemon.as_str()), groups: Vec::new() },
        object: Some(Json::from(object)),
        old_object: None,
        dry_run: true,
    };
    let size = |object: &Value| Json::from(object).stored();
    // A new pod has no status.
    let is_too_large = is_pod(kind) && size(object) - size(&object["status"]) > POD_BYTES;
    let Decision { refusals, warnings, audit, patch, left_out: _ } = decide(rules, resolved, &review);
    // A suspension refuses new pods only.
    let refusals = refusals.into_iter().filter(|finding| finding.rule != Rule::Suspended);
    let of =
        |mode: Mode| move |finding: Finding| Broken { rule: finding.rule.as_str(), mode, text: finding.to_string() };
    let mut broken: Vec<Broken> = refusals.map(of(Mode::Enforce)).collect();
    broken.extend(warnings.into_iter().map(of(Mode::Warn)));
    broken.extend(audit.into_iter().map(of(Mode::Audit)));
    if is_too_large {
        broken.push(Broken { rule: Rule::Malformed.as_str(), mode: Mode::Enforce, text: TOO_LARGE.to_owned() });
    }
    if is_pod(kind) && !patch.is_empty() {
        let paths: BTreeSet<&str> = patch.iter().map(|operation| operation.path.as_str()).collect();
        let shown: Vec<&str> = paths.iter().copied().take(3).collect();
        let more = paths.len().saturating_sub(shown.len());
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let text = format!(
            "it lacks {}{more}, which a new pod would get: delete it, and its controller creates a new one",
            shown.join(", ")
        );
        broken.push(Broken { rule: LACKS, mode: Mode::Enforce, text });
    }
    broken
}

/// Whether the kind is the core group's `pods`. A kind in `hosts.fields` may have the same plural.
fn is_pod(kind: JudgedKind<'_>) -> bool {
    (kind.group, kind.resource) == ("", "pods")
}

/// Whether the object has finished: a finished pod runs nothing, and a finished `Job` creates nothing.
fn is_over(kind: JudgedKind<'_>, object: &Value) -> bool {
    let ended =
        |condition: &Value| matches!(text(&condition["type"]), "Complete" | "Failed") && condition["status"] == "True";
    match (kind.group, kind.resource) {
        ("", "pods") => matches!(text(&object["status"]["phase"]), "Succeeded" | "Failed"),
        ("batch", "jobs") => list(&object["status"]["conditions"]).any(ended),
        _ => false,
    }
}

/// Judges an object of a tenant by the rules that the API server evaluates.
#[must_use]
pub fn by_server(rules: &NamespaceRules<'_>, kind: JudgedKind<'_>, object: &Value) -> Vec<Broken> {
    if is_over(kind, object) {
        return Vec::new();
    }
    let mut broken = Vec::new();
    let account = text(&object["spec"]["serviceAccountName"]);
    let generation = account.strip_prefix(SERVICE_ACCOUNT_PREFIX).unwrap_or_default();
    let is_ours_now = !generation.is_empty() && generation.bytes().all(|byte| byte.is_ascii_digit());
    if is_pod(kind) && is_ours_now {
        let text = format!("it runs as {account}, with the rights of the tenant's credential");
        broken.push(Broken { rule: TOKENS, mode: Mode::Enforce, text });
    }
    if let Some(spec) = pod_spec(kind, object) {
        broken.extend(breaches(GRACE, Mode::Enforce, grace(spec, rules.server.longest_grace)));
    }
    broken.extend(by_shared_rules(rules, kind, object));
    broken
}

/// Judges an object by the rules that namespaces of tenants and adopted ones share.
fn by_shared_rules(rules: &NamespaceRules<'_>, kind: JudgedKind<'_>, object: &Value) -> Vec<Broken> {
    let NamespaceRules { server, unchosen, hosts, own_hosts, fields } = *rules;
    let mut broken = Vec::new();
    let mut judge = |name: &'static str, rule: &ServerRule, problems: Vec<String>| {
        broken.extend(breaches(name, rule.mode.unwrap_or(unchosen), problems));
    };
    if let Some(spec) = pod_spec(kind, object) {
        judge("scheduling", &server.scheduling, scheduling(&server.scheduling, spec, kind.resource == "pods"));
        judge("sysctls", &server.sysctls, sysctls(&server.sysctls, spec));
    }
    let served = |annotations: &Value| {
        let off = hosts.mode == Mode::Off;
        if off { Vec::new() } else { hostnames(own_hosts, &server.host_annotations, annotations) }
    };
    if is_served_by_annotation(kind, fields) {
        judge("services", &server.services, served(&object["metadata"]["annotations"]));
    }
    match (kind.group, kind.resource) {
        ("", "services") => judge("services", &server.services, services(&server.services, &object["spec"])),
        ("networking.k8s.io", "ingresses") => judge("ingress", &server.ingress, ingress(&server.ingress, object)),
        ("gateway.networking.k8s.io", "gateways") => {
            let spec = &object["spec"];
            judge("services", &server.services, addresses(&server.services, spec, "addresses").into_iter().collect());
            judge("services", &server.services, served(&spec["infrastructure"]["annotations"]));
            let class = text(&spec["gatewayClassName"]);
            let wrong = !allows(&server.ingress, "gateway", class);
            judge("ingress", &server.ingress, wrong.then(|| format!("gateway class {class:?}")).into_iter().collect());
        }
        ("", "persistentvolumeclaims") if !is_ours(object) => {
            let class = storage_class(object);
            let wrong = !server.storage.allow.contains(&format!("class {class}"));
            let problem = wrong.then(|| format!("storage class {class:?}"));
            let attributes = text(&object["spec"]["volumeAttributesClassName"]);
            let wrong = !attributes.is_empty() && !server.storage.allow.contains(&format!("class {attributes}"));
            let of_attributes = wrong.then(|| format!("volume attributes class {attributes:?}"));
            judge("claims.storage_classes", &server.storage, problem.into_iter().chain(of_attributes).collect());
        }
        _ => {}
    }
    let of_kind = server.host_fields.iter().filter(|field| is_of(field, kind));
    let foreign = of_kind.filter(|field| !has_own_hosts(object, &field.path, field.optional, own_hosts));
    let problems =
        foreign.map(|field| format!("{field} has no host, or a host that belongs to somebody else")).collect();
    broken.extend(breaches("hosts.fields", hosts.mode, problems));
    broken
}

/// Returns the problems as breaches of a rule; nothing if the rule is off.
fn breaches(rule: &'static str, mode: Mode, problems: Vec<String>) -> impl Iterator<Item = Broken> {
    let problems = problems.into_iter().filter(move |_| mode != Mode::Off);
    problems.map(move |text| Broken { rule, mode, text })
}

/// Returns the storage class of a claim. The old annotation comes first.
fn storage_class(claim: &Value) -> &str {
    let old = claim["metadata"]["annotations"]["volume.beta.kubernetes.io/storage-class"].as_str();
    old.unwrap_or_else(|| text(&claim["spec"]["storageClassName"]))
}

fn is_ours(object: &Value) -> bool {
    object["metadata"]["labels"][crate::contract::MANAGED_BY] == crate::contract::MANAGER
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Returns the longest grace period, in seconds, that the pods of a manifest ask for; 0 if it makes no pods.
#[must_use]
pub fn grace_of(manifest: &Value) -> i64 {
    let spec = &manifest["spec"];
    longest_grace(match text(&manifest["kind"]) {
        "Pod" => spec,
        "CronJob" => template(&spec["jobTemplate"]["spec"]),
        _ => template(spec),
    })
}

/// Returns the spec of the pods that an object with this spec makes.
fn template(spec: &Value) -> &Value {
    &spec["template"]["spec"]
}

fn longest_grace(spec: &Value) -> i64 {
    let lists = ["containers", "initContainers"].into_iter().flat_map(|containers| list(&spec[containers]));
    let probes = lists.flat_map(|container| [&container["livenessProbe"], &container["startupProbe"]]);
    let period = |of: &Value| of["terminationGracePeriodSeconds"].as_i64().unwrap_or_default();
    probes.chain([spec]).map(period).max().unwrap_or_default()
}

fn grace(spec: &Value, most: i64) -> Vec<String> {
    let longest = longest_grace(spec);
    let problem =
        (longest > most).then(|| format!("it asks for a grace period of {longest} s; at most {most} s are allowed"));
    problem.into_iter().collect()
}

/// Whether the rule allows `KIND NAME` or `KIND *`.
fn allows(rule: &ServerRule, kind: &str, name: &str) -> bool {
    rule.allow.contains(&format!("{kind} {name}")) || rule.allow.contains(&format!("{kind} *"))
}

fn pod_spec<'v>(kind: JudgedKind<'_>, object: &'v Value) -> Option<&'v Value> {
    let spec = &object["spec"];
    let spec = match (kind.group, kind.resource) {
        ("", "pods") => spec,
        ("batch", "cronjobs") => template(&spec["jobTemplate"]["spec"]),
        ("apps", _) | ("batch", "jobs") | ("", "replicationcontrollers") => template(spec),
        _ => return None,
    };
    spec.is_object().then_some(spec)
}

fn services(rule: &ServerRule, spec: &Value) -> Vec<String> {
    let kind = spec["type"].as_str().unwrap_or("ClusterIP");
    let mut problems = Vec::new();
    if kind != "ClusterIP" && !rule.allow.contains(kind) {
        problems.push(format!("its type is {kind}"));
    }
    problems.extend(addresses(rule, spec, "externalIPs"));
    problems
}

/// Returns what is wrong if the spec of a Service or a Gateway claims addresses in `field`.
fn addresses(rule: &ServerRule, spec: &Value, field: &str) -> Option<String> {
    let takes = list(&spec[field]).next().is_some() && !rule.allow.contains("externalIPs");
    takes.then(|| format!("it claims addresses by {field}"))
}

fn scheduling(rule: &ServerRule, spec: &Value, runs: bool) -> Vec<String> {
    let mut problems = Vec::new();
    let node = text(&spec["nodeName"]);
    if !runs && !node.is_empty() && !rule.allow.contains("nodeName") {
        problems.push(format!("it names node {node:?}, past the scheduler"));
    }
    if !spec["schedulingGroup"].is_null() && !rule.allow.contains("schedulingGroup") {
        problems.push("it belongs to a scheduling group".to_owned());
    }
    let named = [
        ("priorityClassName", "priority", ""),
        ("runtimeClassName", "runtime", ""),
        ("schedulerName", "scheduler", "default-scheduler"),
    ];
    for (field, word, plain) in named {
        let name = text(&spec[field]);
        let any = !(word == "priority" && name.starts_with("system-"));
        let allowed =
            rule.allow.contains(&format!("{word} {name}")) || (any && rule.allow.contains(&format!("{word} *")));
        if !(name.is_empty() || name == plain || allowed) {
            problems.push(format!("it has {field} {name:?}"));
        }
    }
    let keys = list(&spec["tolerations"]).map(|toleration| text(&toleration["key"]));
    let wrong = keys.filter(|key| !key.starts_with("node.kubernetes.io/") && !allows(rule, "toleration", key));
    problems.extend(wrong.map(|key| format!("it tolerates taint {key:?}")));
    problems
}

fn sysctls(rule: &ServerRule, spec: &Value) -> Vec<String> {
    let wrong = list(&spec["securityContext"]["sysctls"]).filter_map(|sysctl| {
        let (name, value) = (text(&sysctl["name"]).replace('/', "."), text(&sysctl["value"]));
        let leaves_ports = |(sysctl, pattern): &(&str, &str)| {
            *sysctl == name && Regex::new(pattern).is_ok_and(|pattern| pattern.is_match(value))
        };
        let fine = rule.allow.contains(&name)
            || SAFE_SYSCTLS.contains(&name.as_str())
            || PORT_SYSCTLS.iter().any(leaves_ports);
        (!fine).then(|| format!("it sets sysctl {name} = {value}"))
    });
    wrong.collect()
}

fn ingress(rule: &ServerRule, object: &Value) -> Vec<String> {
    let old = text(&object["metadata"]["annotations"]["kubernetes.io/ingress.class"]);
    let named: Vec<&str> =
        [text(&object["spec"]["ingressClassName"]), old].into_iter().filter(|class| !class.is_empty()).collect();
    if rule.allow.contains("ingress *") {
        return Vec::new();
    }
    if named.is_empty() {
        return vec!["it has no ingress class".to_owned()];
    }
    let wrong = named.into_iter().filter(|class| !allows(rule, "ingress", class));
    wrong.map(|class| format!("ingress class {class:?}")).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn broken(server: &ServerRules, kind: JudgedKind<'_>, object: &Value) -> Vec<(&'static str, Mode)> {
        let (hosts, fields) = (no_hosts(), BTreeSet::new());
        let rules = NamespaceRules { server, unchosen: Mode::Audit, hosts: &hosts, own_hosts: &[], fields: &fields };
        named(by_server(&rules, kind, object))
    }

    fn no_hosts() -> HostRules {
        HostRules { mode: Mode::Off, allow: Vec::new(), annotations: Vec::new() }
    }

    fn named(broken: Vec<Broken>) -> Vec<(&'static str, Mode)> {
        broken.into_iter().map(|broken| (broken.rule, broken.mode)).collect()
    }

    fn template(spec: &Value) -> Value {
        json!({"spec": {"template": {"spec": spec}}})
    }

    #[test]
    fn a_kind_of_another_group_with_the_plural_of_jobs_never_counts_as_finished() {
        let finished = json!({"status": {"conditions": [{"type": "Complete", "status": "True"}]}});
        assert!(is_over(kind("batch", "jobs"), &finished));
        assert!(!is_over(kind("example.org", "jobs"), &finished));
    }

    #[test]
    fn a_pod_that_is_too_large_or_runs_as_our_service_account_is_found() {
        let pods = kind("", "pods");
        let of = |account: &str| json!({"spec": {"serviceAccountName": account}});
        let found = |account: &str| broken(&ServerRules::default(), pods, &of(account));
        assert_eq!(found("bursar-g7"), [("bursar-tokens", Mode::Enforce)]);
        for other in ["", "default", "bursar-g", "bursar-g7x"] {
            assert_eq!(found(other), [], "{other}");
        }
        let rules =
            Rules::parse(include_bytes!("../../../../tests/data/admission/rules.json")).expect("the rules are valid");
        let large = |field: &str, size: usize| {
            let mut pod = json!({"metadata": {"name": "x", "namespace": "tool-foo"}, "spec": {"containers": []}});
            pod[field]["x"] = json!("x".repeat(size));
            let unknown = Resolved::Unresolved(crate::admission::Unresolved::Unknown);
            by_webhook(&rules, &unknown, pods, &pod).iter().any(|broken| broken.text == TOO_LARGE)
        };
        assert!(large("spec", POD_BYTES) && !large("spec", POD_BYTES / 2) && !large("status", POD_BYTES));
    }

    #[test]
    fn violations_are_found_in_pods_and_templates() {
        let mut server = ServerRules::default();
        let (pods, deployments) = (kind("", "pods"), kind("apps", "deployments"));
        let node = json!({"nodeName": "n1"});
        assert_eq!(broken(&server, deployments, &template(&node)), [("scheduling", Mode::Audit)]);
        assert_eq!(broken(&server, pods, &json!({"spec": node})), [], "the scheduler sets nodeName of running pods");
        server.scheduling.allow.insert("nodeName".to_owned());
        assert_eq!(broken(&server, deployments, &template(&node)), []);
        let urgent = json!({"priorityClassName": "system-node-critical"});
        assert_eq!(broken(&server, pods, &json!({"spec": urgent})).len(), 1, "`priority *` allows no system-*");
        let over = json!({"spec": urgent, "status": {"phase": "Succeeded"}});
        assert_eq!(broken(&server, pods, &over), []);
        let sysctl = |name: &str, value: &str| json!({"spec": {"securityContext": {"sysctls": [{"name": name, "value": value}]}}});
        for (name, value, found) in [
            ("kernel/shm_rmid_forced", "1", 0),
            ("net.ipv4.ip_unprivileged_port_start", "0", 1),
            ("net.ipv4.ip_unprivileged_port_start", "1024", 0),
            ("net.ipv4.ip_local_port_range", "512 60999", 1),
            ("kernel.msgmax", "1", 1),
        ] {
            assert_eq!(broken(&server, pods, &sysctl(name, value)).len(), found, "{name} {value}");
        }
    }

    #[test]
    fn grace_periods_and_scheduling_groups_are_found() {
        let server = ServerRules { longest_grace: 400, ..ServerRules::default() };
        let deployments = kind("apps", "deployments");
        let of = |spec: Value| broken(&server, deployments, &template(&spec));
        assert_eq!(of(json!({"terminationGracePeriodSeconds": 400})), []);
        let long = json!({"terminationGracePeriodSeconds": 401});
        assert_eq!(of(long.clone()), [(GRACE, Mode::Enforce)]);
        for list in ["containers", "initContainers"] {
            assert_eq!(of(json!({list: [{"livenessProbe": long}]})), [(GRACE, Mode::Enforce)], "{list}");
        }
        assert_eq!(of(json!({"schedulingGroup": {"podGroupName": "x"}})), [("scheduling", Mode::Audit)]);
    }

    #[test]
    fn services_ingresses_and_claims_outside_their_lists_are_found() {
        let mut server = ServerRules::default();
        let services = kind("", "services");
        let service = json!({"spec": {"type": "LoadBalancer", "externalIPs": ["192.0.2.7"]}});
        assert_eq!(broken(&server, services, &service).len(), 2);
        let gateways = kind("gateway.networking.k8s.io", "gateways");
        let gateway = json!({"spec": {"addresses": [{"value": "192.0.2.7"}]}});
        assert_eq!(broken(&server, gateways, &gateway), [("services", Mode::Audit)]);
        server.services.allow.insert("externalIPs".to_owned());
        assert_eq!(broken(&server, gateways, &gateway), []);
        server.services.mode = Some(Mode::Off);
        assert_eq!(broken(&server, services, &service), []);
        let ingress = json!({"metadata": {"annotations": {"kubernetes.io/ingress.class": "other"}}, "spec": {}});
        let claim = json!({"spec": {"storageClassName": "fast"}});
        let (ingresses, claims) = (kind("networking.k8s.io", "ingresses"), kind("", "persistentvolumeclaims"));
        assert_eq!(
            (broken(&server, ingresses, &ingress), broken(&server, claims, &claim)),
            (vec![], vec![]),
            "both rules are off"
        );
        let listed = |word: &str| ServerRule { mode: Some(Mode::Warn), allow: [word.to_owned()].into() };
        (server.ingress, server.storage) = (listed("ingress nginx"), listed("class slow"));
        assert_eq!(broken(&server, ingresses, &ingress), [("ingress", Mode::Warn)]);
        assert_eq!(
            broken(&server, ingresses, &json!({"spec": {}})),
            [("ingress", Mode::Warn)],
            "an ingress without a class"
        );
        assert_eq!(broken(&server, claims, &claim), [("claims.storage_classes", Mode::Warn)]);
        let faster = json!({"spec": {"storageClassName": "slow", "volumeAttributesClassName": "gold"}});
        assert_eq!(broken(&server, claims, &faster), [("claims.storage_classes", Mode::Warn)]);
        let ours = json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": "bursar"}}, "spec": {}});
        assert_eq!(broken(&server, claims, &ours), []);
    }
}
