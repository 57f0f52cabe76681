//! NetworkPolicies of a tenant: everything denied, then one policy for each peer that the profile allows.
//!
//! NetworkPolicies only add up, so one for each peer keeps a change of the profile a change of one object.

use serde_json::{Value, json};

use crate::identity::{NamespaceName, kubernetes_name};
use crate::policy::{NetworkProfile, Peer};

/// Where the cluster's DNS runs in every distribution that follows the conformance tests.
const DNS_NAMESPACE: &str = "kube-system";
/// Label that the API server puts on every namespace.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

impl NetworkProfile {
    /// The built-in profile `open`: no policy at all.
    #[must_use]
    pub fn open() -> Self {
        Self::default()
    }

    /// The built-in profile `isolated`: a tenant's pods reach each other and the DNS, and nobody else.
    #[must_use]
    pub fn isolated() -> Self {
        Self {
            default_deny: true,
            allow_ingress: vec![Peer::OwnNamespace],
            allow_egress: vec![Peer::Dns, Peer::OwnNamespace],
        }
    }
}

/// The policies of a profile; none for `open`.
#[must_use]
pub fn network_policies(namespace: &NamespaceName, profile: &NetworkProfile) -> Vec<Value> {
    let deny = profile.default_deny.then(|| {
        policy(namespace, "bursar-default-deny", json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}))
    });
    let ingress = profile.allow_ingress.iter().map(|peer| {
        let rule = json!({"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [rule(peer, "from")]});
        policy(namespace, &format!("bursar-allow-ingress-{}", name(peer)), rule)
    });
    let egress = profile.allow_egress.iter().map(|peer| {
        let rule = json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [rule(peer, "to")]});
        policy(namespace, &format!("bursar-allow-egress-{}", name(peer)), rule)
    });
    deny.into_iter().chain(ingress).chain(egress).collect()
}

fn policy(namespace: &NamespaceName, name: &str, spec: Value) -> Value {
    let mut policy = json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": namespace},
    });
    policy["spec"] = spec;
    policy
}

/// One rule of `ingress` or `egress`; `direction` is `from` or `to`.
fn rule(peer: &Peer, direction: &str) -> Value {
    match peer {
        Peer::OwnNamespace => json!({direction: [{"podSelector": {}}]}),
        Peer::Namespace(name) => json!({direction: [{"namespaceSelector": {"matchLabels": {NAMESPACE_NAME: name}}}]}),
        Peer::Dns => json!({
            direction: [{"namespaceSelector": {"matchLabels": {NAMESPACE_NAME: DNS_NAMESPACE}}}],
            "ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}],
        }),
        Peer::Cidr { cidr, ports } if ports.is_empty() => json!({direction: [{"ipBlock": {"cidr": cidr}}]}),
        Peer::Cidr { cidr, ports } => json!({
            direction: [{"ipBlock": {"cidr": cidr}}],
            "ports": ports.iter().map(|port| json!({"protocol": "TCP", "port": port})).collect::<Vec<_>>(),
        }),
    }
}

/// A name that differs where the peers differ.
fn name(peer: &Peer) -> String {
    match peer {
        Peer::OwnNamespace => "own-namespace".to_owned(),
        Peer::Dns => "dns".to_owned(),
        Peer::Namespace(name) => format!("namespace-{name}"),
        Peer::Cidr { cidr, ports } => {
            let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
            format!("cidr-{}", kubernetes_name(&format!("{cidr}:{}", ports.join(":"))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_that_differ_have_names_that_differ() {
        let cidr = |cidr: &str, ports: &[u16]| Peer::Cidr { cidr: cidr.to_owned(), ports: ports.to_vec() };
        let names = [
            cidr("192.0.2.0/24", &[443]),
            cidr("192.0.2.0/24", &[44, 3]),
            cidr("192.0.2.0/24", &[]),
            cidr("192.0.20.0/24", &[]),
        ]
        .map(|peer| name(&peer));
        let different: std::collections::BTreeSet<&String> = names.iter().collect();
        assert_eq!(different.len(), names.len(), "{names:?}");
    }
}
