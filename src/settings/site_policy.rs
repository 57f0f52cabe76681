//! Checks whether NetworkPolicies among the manifests of a class let its pods reach a server. Policies add up, so they
//! allow what the class's network forbids.

use std::collections::BTreeSet;

use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicyPeer, NetworkPolicyPort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::Value;

use crate::kinds::{ManagedKind, ObjectKind};
use crate::policy::{NetworkProfile, Range, Target, Who};

/// The label that the API server sets on every namespace.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// Whether the manifest lets pods reach anything outside their namespace.
pub(super) fn reaches_out(manifest: &Value) -> bool {
    let is_outside = |peer: &NetworkPolicyPeer| peer.ip_block.is_some() || peer.namespace_selector.is_some();
    rules(manifest).iter().any(|rule| peers(rule).is_none_or(|peers| peers.iter().any(is_outside)))
}

/// Whether the manifest lets pods reach chosen pods of other namespaces.
pub(super) fn reaches_other_namespaces(manifest: &Value) -> bool {
    rules(manifest).iter().filter_map(peers).flatten().any(|peer| peer.namespace_selector.is_some())
}

/// Returns why the manifest lets pods reach `target`; `None` if it does not.
pub(super) fn reaches(manifest: &Value, target: &Target) -> Option<String> {
    let why = rules(manifest).iter().find_map(|rule| by_rule(rule, target))?;
    let name = manifest["metadata"]["name"].as_str().unwrap_or_default();
    Some(format!("NetworkPolicy {name} in its manifests: {why}"))
}

/// Returns the egress rules of a NetworkPolicy; none for any other manifest, and for one that the API server refuses.
fn rules(manifest: &Value) -> Vec<NetworkPolicyEgressRule> {
    if ObjectKind::of_manifest(manifest) != ManagedKind::NetworkPolicy {
        return Vec::new();
    }
    let policy = serde_json::from_value::<NetworkPolicy>(manifest.clone()).unwrap_or_default();
    let Some(spec) = policy.spec else { return Vec::new() };
    let types = spec.policy_types.unwrap_or_default();
    let has_egress = types.is_empty() || types.iter().any(|one| one == "Egress");
    spec.egress.filter(|_| has_egress).unwrap_or_default()
}

/// Returns the peers of a rule; `None` if it allows every destination.
fn peers(rule: &NetworkPolicyEgressRule) -> Option<&[NetworkPolicyPeer]> {
    rule.to.as_deref().filter(|peers| !peers.is_empty())
}

fn by_rule(rule: &NetworkPolicyEgressRule, target: &Target) -> Option<String> {
    let is_on = is_on(rule.ports.as_deref().unwrap_or_default(), &target.ports);
    match peers(rule) {
        None => is_on.then(|| "it allows every destination".to_owned()),
        Some(peers) => peers.iter().find_map(|peer| by_peer(peer, is_on, target)),
    }
}

/// Whether one of the rule's ports is one of the target's. A rule without ports is for all of them.
fn is_on(ports: &[NetworkPolicyPort], of_target: &BTreeSet<u16>) -> bool {
    let has_one = |port: &NetworkPolicyPort| match &port.port {
        Some(IntOrString::Int(first)) => {
            let range = *first..=port.end_port.unwrap_or(*first);
            of_target.iter().any(|number| range.contains(&i32::from(*number)))
        }
        // The pods that are reached decide which port has the name.
        Some(IntOrString::String(_)) | None => true,
    };
    ports.is_empty() || of_target.is_empty() || ports.iter().any(has_one)
}

fn by_peer(peer: &NetworkPolicyPeer, is_on: bool, target: &Target) -> Option<String> {
    if let Some(block) = &peer.ip_block {
        let range = Range::parse(&block.cidr).filter(|_| is_on)?;
        let except = block.except.iter().flatten().filter_map(|text| Range::parse(text)).collect();
        let allow_egress = vec![Who::Addresses { range, except }.into()];
        return NetworkProfile { default_deny: true, allow_ingress: Vec::new(), allow_egress }.reaches(target);
    }
    // As in profiles, the ports of pods are not compared with those of a Service.
    let (namespace, selector) = (target.namespace.as_ref()?, peer.namespace_selector.as_ref()?);
    match selector.match_labels.as_ref().and_then(|labels| labels.get(NAMESPACE_NAME)) {
        Some(name) if name != namespace => None,
        Some(_) => Some(format!("it is in namespace {namespace}")),
        None => Some(format!("namespace {namespace} may have the labels that it asks for")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn policy(spec: &Value) -> Value {
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "more"}, "spec": spec})
    }

    fn egress(rule: &Value) -> Value {
        policy(&json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [rule]}))
    }

    fn nfs(namespace: Option<&str>) -> Target {
        Target {
            name: "nfs.server nfs.example.org".to_owned(),
            addresses: BTreeSet::from(["192.0.2.7".parse().expect("the text is an address")]),
            namespace: namespace.map(str::to_owned),
            ports: BTreeSet::from([111, 2049]),
        }
    }

    #[test]
    fn a_policy_reaches_a_server_by_address_and_port() {
        let block = |more: &Value| {
            let mut rule = json!({"to": [{"ipBlock": {"cidr": "192.0.2.0/24"}}]});
            for (key, value) in more.as_object().expect("the value is an object") {
                rule[key] = value.clone();
            }
            egress(&rule)
        };
        for opened in [
            block(&json!({})),
            block(&json!({"ports": [{"port": 443}, {"protocol": "UDP", "port": 2049}]})),
            block(&json!({"ports": [{"port": 1024, "endPort": 4096}]})),
            block(&json!({"ports": [{"protocol": "TCP"}]})),
            block(&json!({"ports": []})),
            egress(&json!({})),
            egress(&json!({"to": []})),
            egress(&json!({"ports": [{"port": 2049}]})),
            // Without types, a policy with egress rules is about egress.
            policy(&json!({"podSelector": {"matchLabels": {"app": "web"}}, "egress": [{}]})),
        ] {
            assert!(reaches_out(&opened), "{opened}");
            let why = reaches(&opened, &nfs(None)).unwrap_or_else(|| panic!("{opened}"));
            assert!(why.starts_with("NetworkPolicy more in its manifests: "), "{why}");
        }
        for closed in [
            block(&json!({"ports": [{"port": 443}]})),
            block(&json!({"ports": [{"port": 1024, "endPort": 2048}]})),
            block(&json!({"to": [{"ipBlock": {"cidr": "192.0.2.0/24", "except": ["192.0.2.0/28"]}}]})),
            block(&json!({"to": [{"ipBlock": {"cidr": "198.51.100.0/24"}}]})),
            egress(&json!({"ports": [{"port": 443}]})),
            egress(&json!({"to": [{"podSelector": {}}]})),
            policy(&json!({"podSelector": {}, "policyTypes": ["Ingress"], "egress": [{}]})),
            policy(&json!({"podSelector": {}, "ingress": [{}]})),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "more"}}),
        ] {
            assert_eq!(reaches(&closed, &nfs(None)), None, "{closed}");
        }
    }

    #[test]
    fn a_policy_reaches_a_server_in_a_namespace_that_it_may_select() {
        let selected = |selector: &Value| egress(&json!({"to": [{"namespaceSelector": selector}]}));
        let named = |name: &str| selected(&json!({"matchLabels": {NAMESPACE_NAME: name}}));
        let (labelled, all) = (selected(&json!({"matchLabels": {"team": "web"}})), selected(&json!({})));
        let inside = nfs(Some("storage"));
        for opened in [&named("storage"), &labelled, &all] {
            assert!(reaches(opened, &inside).is_some() && reaches_other_namespaces(opened), "{opened}");
            assert_eq!(reaches(opened, &nfs(None)), None, "{opened}");
        }
        assert_eq!(reaches(&named("web"), &inside), None);
        let own = egress(&json!({"to": [{"podSelector": {}}]}));
        assert!(
            !reaches_other_namespaces(&own) && !reaches_out(&own) && !reaches_other_namespaces(&egress(&json!({})))
        );
    }
}
