//! Finds kinds that the roles of tenants may write and that no admission rule checks.

use std::collections::BTreeSet;

use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::Client;

use super::Finding;
use crate::bootstrap::role_rules;
use crate::bootstrap::webhook::looked_at;
use crate::desired::server_rules::{classes, host_fields};
use crate::errors::chain;
use crate::identity::ClusterName;
use crate::policy::Policy;

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
const WRITES: [&str; 4] = ["create", "update", "patch", "*"];

pub(super) async fn kinds(policy: &Policy, cluster: &ClusterName, client: &Client, init: &str) -> Option<Finding> {
    let subject = format!("cluster {cluster}, kinds of tenants");
    let mut found = BTreeSet::new();
    for role in roles(policy, cluster) {
        match role_rules(client, role).await {
            Ok(rules) => found.extend(unseen(&rules, &seen(policy, cluster))),
            Err(error) => return Some(Finding::bad(subject, chain(&error), init)),
        }
    }
    (!found.is_empty()).then(|| {
        let opened = if found.contains(NETWORK_POLICIES) {
            "; because network policies add up, a tenant can allow what the network of the class forbids"
        } else {
            ""
        };
        let names: Vec<String> = found.into_iter().collect();
        Finding::good(
            subject,
            format!(
                "tenants may write {}, which no rule checks; if a field of one of them names a host, add the field to \
                 admission.hosts.fields{opened}",
                names.join(", ")
            ),
        )
    })
}

/// Returns the roles that the classes of the cluster grant in namespaces.
fn roles<'p>(policy: &'p Policy, cluster: &'p ClusterName) -> BTreeSet<&'p str> {
    let roles = classes(policy, cluster).flat_map(|class| {
        let workspace =
            class.workspace().into_iter().flat_map(|workspace| workspace.members.iter().chain(&workspace.managers));
        class.roles.iter().chain(&class.service_account_roles).chain(workspace)
    });
    roles.map(String::as_str).collect()
}

fn seen(policy: &Policy, cluster: &ClusterName) -> BTreeSet<(String, String)> {
    let fields = host_fields(policy, cluster).into_iter().map(|field| (field.group, field.plural));
    let within = WITHIN.iter().map(|(group, resource)| ((*group).to_owned(), (*resource).to_owned()));
    looked_at().into_iter().chain(fields).chain(within).collect()
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
                if !is_seen {
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
    use crate::plan::testing::{policy, prod};

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
        let seen = seen(&policy(), &prod());
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
                "xroutes.gateway.networking.k8s.io"
            ]
        );
    }
}
