//! Finds kinds that the roles of tenants may write and that no admission rule checks.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::Client;

use super::Finding;
use crate::bootstrap::role_rules;
use crate::bootstrap::webhook::looked_at;
use crate::errors::chain;
use crate::identity::ClusterName;
use crate::policy::{Class, Policy};
use crate::rules::Mode;

/// Kinds that need no rule: outside their namespace they have no effect, or only an effect that the rules for pods
/// check. A role that is bound in a namespace gives no right to write kinds without a namespace.
const WITHIN: [(&str, &str); 22] = [
    ("", "configmaps"),
    ("", "secrets"),
    ("", "serviceaccounts"),
    ("", "resourcequotas"),
    ("", "limitranges"),
    ("", "persistentvolumes"),
    ("rbac.authorization.k8s.io", "rolebindings"),
    ("rbac.authorization.k8s.io", "clusterrolebindings"),
    ("", "events"),
    ("events.k8s.io", "events"),
    ("", "podtemplates"),
    ("", "pods/attach"),
    ("", "pods/eviction"),
    ("", "pods/exec"),
    ("", "pods/portforward"),
    ("", "pods/proxy"),
    ("", "services/proxy"),
    ("apps", "controllerrevisions"),
    ("apps", "deployments/rollback"),
    ("autoscaling", "horizontalpodautoscalers"),
    ("policy", "poddisruptionbudgets"),
    ("coordination.k8s.io", "leases"),
];
/// Kubernetes' role `edit` names this API group, although no supported version of Kubernetes serves it.
const NOT_SERVED: &str = "extensions";
/// A policy of a tenant adds to those of Bursar.
const NETWORK_POLICIES: &str = "networkpolicies.networking.k8s.io";
const GATEWAYS: (&str, &str) = ("gateway.networking.k8s.io", "gateways");
/// Routes without a field for hosts.
const ROUTES: [(&str, &str); 2] =
    [("gateway.networking.k8s.io", "tcproutes"), ("gateway.networking.k8s.io", "udproutes")];
const WRITES: [&str; 4] = ["create", "update", "patch", "*"];

pub(super) async fn kinds(policy: &Policy, cluster: &ClusterName, client: &Client, init: &str) -> Vec<Finding> {
    let subject = format!("cluster {cluster}, kinds of tenants");
    let classes: Vec<&Class> = policy.classes.values().filter(|class| class.clusters.contains(cluster)).collect();
    let roles: BTreeSet<&String> = classes.iter().flat_map(|class| class.roles_in_namespaces()).collect();
    let mut granted = BTreeMap::new();
    for role in roles {
        match role_rules(client, role).await {
            Ok(given) => drop(granted.insert(role.as_str(), given)),
            Err(error) => return vec![Finding::bad(subject, chain(&error), init)],
        }
    }
    let found = unseen_by_class(&classes, &granted).into_iter();
    found.map(|(kinds, classes)| Finding::good(&subject, said(&kinds, &classes))).collect()
}

/// Returns the kinds that tenants may write and that no rule of their class checks, each list with its classes.
fn unseen_by_class<'c>(
    classes: &[&'c Class],
    rules: &BTreeMap<&str, Vec<PolicyRule>>,
) -> BTreeMap<BTreeSet<String>, Vec<&'c str>> {
    let mut found: BTreeMap<BTreeSet<String>, Vec<&str>> = BTreeMap::new();
    for class in classes {
        let seen = seen(class);
        let rules = class.roles_in_namespaces().filter_map(|role| rules.get(role.as_str()));
        let kinds: BTreeSet<String> = rules.flat_map(|rules| unseen(rules, &seen)).collect();
        if !kinds.is_empty() {
            found.entry(kinds).or_default().push(&class.name);
        }
    }
    found
}

fn said(kinds: &BTreeSet<String>, classes: &[&str]) -> String {
    let opened = if kinds.contains(NETWORK_POLICIES) {
        "; because network policies add up, a tenant can allow what the network of the class forbids"
    } else {
        ""
    };
    let kinds: Vec<&str> = kinds.iter().map(String::as_str).collect();
    format!(
        "tenants of class {} may write {}, which no rule checks; if a field of one of them names a host, add the field to \
         admission.hosts.fields{opened}",
        classes.join(", "),
        kinds.join(", ")
    )
}

/// Returns the kinds that a rule of the class checks, or that need no rule. A Gateway serves the hosts of its listeners,
/// which only the rule about its fields knows.
fn seen(class: &Class) -> BTreeSet<(String, String)> {
    let (hosts, server) = match class.adopts() {
        Some(adopts) => (&adopts.admission.hosts, &adopts.admission.server),
        None => (&class.admission.hosts, &class.admission.server),
    };
    let kind = |(group, resource): &(&str, &str)| ((*group).to_owned(), (*resource).to_owned());
    let fields = server.host_fields.iter().filter(|_| hosts.mode != Mode::Off);
    let fields = fields.map(|field| (field.group.clone(), field.plural.clone()));
    // Without network policies of Bursar, a tenant has nothing to open.
    let open = (class.network == "open").then(|| kind(&("networking.k8s.io", "networkpolicies")));
    // The only rule on these routes is that on annotations.
    let are_judged = hosts.mode != Mode::Off && server.services.mode != Some(Mode::Off);
    let is_judged = |found: &(String, String)| {
        *found != kind(&GATEWAYS) && (are_judged || !ROUTES.iter().any(|route| *found == kind(route)))
    };
    let looked_at = looked_at().into_iter().filter(is_judged);
    looked_at.chain(fields).chain(open).chain(WITHIN.iter().map(kind)).collect()
}

/// Returns the kinds that `rules` allow to write and that are not in `seen`, such as
/// `widgets.example.org`.
fn unseen(rules: &[PolicyRule], seen: &BTreeSet<(String, String)>) -> BTreeSet<String> {
    let writes = |rule: &&PolicyRule| rule.verbs.iter().any(|verb| WRITES.contains(&verb.as_str()));
    let mut unseen = BTreeSet::new();
    for rule in rules.iter().filter(writes) {
        for group in rule.api_groups.iter().flatten().filter(|group| *group != NOT_SERVED) {
            for resource in rule.resources.iter().flatten() {
                let is_seen = seen.contains(&(group.clone(), resource.clone())) || resource.ends_with("/scale");
                if !is_seen && (group.as_str(), resource.as_str()) == GATEWAYS {
                    unseen.insert(format!("the hosts of {resource}.{group}"));
                } else if !is_seen {
                    unseen.insert(if group.is_empty() { resource.clone() } else { format!("{resource}.{group}") });
                }
            }
        }
    }
    unseen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::testing::{course, policy, profile, workspace_of};
    use crate::policy::From;
    use crate::rules::server::HostField;

    fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> PolicyRule {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        PolicyRule {
            api_groups: Some(vec![group.to_owned()]),
            resources: Some(texts(resources)),
            verbs: texts(verbs),
            ..PolicyRule::default()
        }
    }

    #[test]
    fn only_kinds_that_no_rule_checks_are_named() {
        let seen = seen(&policy().classes["tool"]);
        let rules = [
            rule("", &["pods", "pods/exec", "services", "configmaps", "persistentvolumeclaims"], &["create"]),
            rule("apps", &["deployments", "deployments/scale", "statefulsets"], &["*"]),
            rule("networking.k8s.io", &["ingresses", "ingresses/status", "networkpolicies"], &["patch"]),
            rule("", &["resourcequotas", "namespaces"], &["*"]),
            rule("gateway.networking.k8s.io", &["gateways", "httproutes", "tcproutes", "xroutes"], &["create", "get"]),
            rule("cert-manager.io", &["certificates"], &["get", "list"]),
            rule("example.org", &["*"], &["*"]),
            rule("", &["endpoints"], &["update"]),
            rule("extensions", &["deployments"], &["update"]),
        ];
        let named: Vec<String> = unseen(&rules, &seen).into_iter().collect();
        assert_eq!(
            named,
            [
                "*.example.org",
                "endpoints",
                "ingresses/status.networking.k8s.io",
                "networkpolicies.networking.k8s.io",
                "tcproutes.gateway.networking.k8s.io",
                "the hosts of gateways.gateway.networking.k8s.io",
                "xroutes.gateway.networking.k8s.io"
            ]
        );
    }

    #[test]
    fn each_class_is_judged_by_its_own_roles_and_fields() {
        let mut policy = policy();
        let field = |kind: &str, path: &str| HostField::parse(kind, path).expect("the text names a field");
        let fields = || {
            [
                field("gateways.gateway.networking.k8s.io", "spec.listeners[].hostname"),
                field("widgets.example.org", "spec.host"),
            ]
        };
        let tool = policy.classes.get_mut("tool").expect("the policy has this class");
        (tool.admission.hosts.mode, tool.admission.server.host_fields) = (Mode::Enforce, fields().into());
        let mut adopting = profile();
        let From::Adopted(adopts) = &mut adopting.from else { panic!("the class adopts namespaces") };
        // A rule that is off checks nothing.
        adopts.admission.server.host_fields = fields().into();
        let mut workspaces = course();
        workspace_of(&mut workspaces).managers = vec!["manager".to_owned()];
        let classes = [&policy.classes["tool"], &policy.classes["admin"], &adopting, &workspaces];
        let writes = vec![
            rule("gateway.networking.k8s.io", &["gateways"], &["create"]),
            rule("example.org", &["widgets"], &["create"]),
        ];
        let only_managers =
            vec![rule("networking.k8s.io", &["networkpolicies"], &["*"]), rule("example.org", &["parts"], &["*"])];
        let all = vec![rule("", &["nodes"], &["*"])];
        let rules = BTreeMap::from([("bursar-tenant", writes), ("manager", only_managers), ("view", all)]);
        let found = unseen_by_class(&classes, &rules);
        let found: Vec<(Vec<&str>, Vec<&str>)> = found
            .iter()
            .map(|(kinds, classes)| (classes.clone(), kinds.iter().map(String::as_str).collect()))
            .collect();
        let hosts = "the hosts of gateways.gateway.networking.k8s.io";
        // No network policy of Bursar restricts the workspaces.
        assert_eq!(
            found,
            [
                (vec!["profile"], vec!["nodes", hosts, "widgets.example.org"]),
                (vec!["course"], vec!["parts.example.org", hosts, "widgets.example.org"]),
            ]
        );
    }
}
