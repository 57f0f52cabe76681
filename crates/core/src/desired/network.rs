//! NetworkPolicies of a tenant: one policy that denies everything, and one policy for each peer that the profile
//! allows.
//!
//! NetworkPolicies are additive, so with one object for each peer, a change of the profile changes a single object.

use serde_json::{Value, json};

use crate::identity::{NamespaceName, kubernetes_name};
use crate::policy::{Namespaces, NetworkProfile, Peer, Requirement, Selector, Who};

/// The namespace of the cluster's DNS in every distribution that passes the conformance tests.
const DNS_NAMESPACE: &str = "kube-system";
/// The label that the API server sets on every namespace.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

impl NetworkProfile {
    /// Returns the built-in profile `open`, which has no policy.
    #[must_use]
    pub fn open() -> Self {
        Self::default()
    }

    /// Returns the built-in profile `isolated`: a tenant's pods reach only each other and the DNS.
    #[must_use]
    pub fn isolated() -> Self {
        Self {
            default_deny: true,
            allow_ingress: vec![Peer::own_namespace()],
            allow_egress: vec![Peer::dns(), Peer::own_namespace()],
        }
    }
}

/// Returns the policies of a profile; `open` has none.
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

/// Returns one rule of `ingress` or `egress`; `direction` is `from` or `to`.
fn rule(peer: &Peer, direction: &str) -> Value {
    let port = |number: u16, udp: bool| json!({"protocol": if udp { "UDP" } else { "TCP" }, "port": number});
    let ports: Vec<Value> = match peer.who {
        Who::Dns => vec![port(53, true), port(53, false)],
        Who::Pods { .. } | Who::Addresses { .. } => peer.ports.iter().map(|it| port(it.number, it.udp)).collect(),
    };
    let mut rule = json!({direction: [of(&peer.who)]});
    if !ports.is_empty() {
        rule["ports"] = json!(ports);
    }
    rule
}

/// Returns a peer as NetworkPolicies describe it.
fn of(who: &Who) -> Value {
    let named = |name: &str| json!({"matchLabels": {NAMESPACE_NAME: name}});
    match who {
        Who::Dns => json!({"namespaceSelector": named(DNS_NAMESPACE)}),
        Who::Pods { namespaces, labels } => {
            let mut pods = match namespaces {
                Namespaces::Own => json!({"podSelector": {}}),
                Namespaces::Named(name) => json!({"namespaceSelector": named(name)}),
                Namespaces::Labelled(selector) => json!({"namespaceSelector": label_selector(selector)}),
            };
            if let Some(labels) = labels {
                pods["podSelector"] = label_selector(labels);
            }
            pods
        }
        Who::Addresses { range, except } => {
            let mut block = json!({"cidr": range.to_string()});
            if !except.is_empty() {
                block["except"] = except.iter().map(ToString::to_string).collect();
            }
            json!({"ipBlock": block})
        }
    }
}

fn label_selector(selector: &Selector) -> Value {
    json!({"matchExpressions": selector.requirements().iter().map(Requirement::expression).collect::<Vec<_>>()})
}

/// Returns a name that differs for different peers. Peers that existed in earlier versions keep their names.
fn name(Peer { who, ports }: &Peer) -> String {
    let texts = ports.iter().map(ToString::to_string).collect::<Vec<_>>().join(":");
    let of_ports = if ports.is_empty() { String::new() } else { format!(" ports {texts}") };
    let (kind, more) = match who {
        Who::Dns => return "dns".to_owned(),
        Who::Addresses { range, except } => {
            let except: Vec<String> = except.iter().map(|range| format!(" except {range}")).collect();
            let except = except.concat();
            return format!("cidr-{}", kubernetes_name(&format!("{range}:{texts}{except}")));
        }
        Who::Pods { namespaces: Namespaces::Own, labels: None } if ports.is_empty() => {
            return "own-namespace".to_owned();
        }
        Who::Pods { namespaces: Namespaces::Named(name), labels: None } if ports.is_empty() => {
            return format!("namespace-{name}");
        }
        Who::Pods { namespaces, labels } => {
            let labels = labels.as_ref().map(|labels| format!(" pods {labels}")).unwrap_or_default();
            match namespaces {
                Namespaces::Own => ("own-namespace", labels),
                Namespaces::Named(name) => ("namespace", format!("{name}{labels}")),
                Namespaces::Labelled(selector) => ("namespaces", format!("{selector}{labels}")),
            }
        }
    };
    // A name never contains a space, so `kubernetes_name` always appends a digest here.
    format!("{kind}-{}", kubernetes_name(&format!("{more}{of_ports} ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Port, Range};

    #[test]
    fn peers_that_differ_have_names_that_differ() {
        let cidr = |cidr: &str, except: &[&str], ports: &[Port]| {
            let range = |text: &str| Range::parse(text).expect("the range is valid");
            let who = Who::Addresses { range: range(cidr), except: except.iter().map(|text| range(text)).collect() };
            Peer { who, ports: ports.to_vec() }
        };
        let pods = |namespaces: Namespaces, labels: Option<&str>, ports: &[Port]| {
            let labels = labels.map(|text| Selector::parse(text).expect("the selector is valid"));
            Peer { who: Who::Pods { namespaces, labels }, ports: ports.to_vec() }
        };
        let named = |name: &str| Namespaces::Named(name.to_owned());
        let labelled = |text: &str| Namespaces::Labelled(Selector::parse(text).expect("the selector is valid"));
        let (tcp, udp) = (Port::tcp, |number| Port { number, udp: true });
        let all = [
            Peer::dns(),
            Peer::own_namespace(),
            pods(Namespaces::Own, Some("app=db"), &[]),
            pods(Namespaces::Own, None, &[tcp(443)]),
            pods(Namespaces::Own, None, &[udp(443)]),
            Peer::namespace("web"),
            pods(named("web"), Some("app=db"), &[]),
            pods(named("web"), None, &[tcp(443)]),
            pods(labelled("team=web"), None, &[]),
            pods(labelled("team=web"), Some("app=db"), &[]),
            cidr("192.0.2.0/24", &[], &[tcp(443)]),
            cidr("192.0.2.0/24", &[], &[udp(443)]),
            cidr("192.0.2.0/24", &[], &[tcp(44), tcp(3)]),
            cidr("192.0.2.0/24", &[], &[]),
            cidr("192.0.2.0/24", &["192.0.2.7/32"], &[]),
            cidr("192.0.20.0/24", &[], &[]),
        ]
        .map(|peer| name(&peer));
        let different: std::collections::BTreeSet<&String> = all.iter().collect();
        assert_eq!(different.len(), all.len(), "{all:?}");
        let is_name = |name: &&String| {
            name.len() <= 63
                && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        };
        assert!(all.iter().all(|name| is_name(&name)), "{all:?}");
        // The names that earlier versions used.
        assert_eq!(name(&cidr("192.0.2.0/24", &[], &[tcp(443), tcp(8443)])), "cidr-192-0-2-0-24-443-8443-570d7f");
        assert_eq!((&*all[1], &*all[5]), ("own-namespace", "namespace-web"));
    }

    #[test]
    fn a_rule_contains_ports_exceptions_and_labels() {
        let selector = |text: &str| Selector::parse(text).expect("the selector is valid");
        let range = |text: &str| Range::parse(text).expect("the range is valid");
        let outside = Peer {
            who: Who::Addresses { range: range("0.0.0.0/0"), except: vec![range("10.0.0.0/8")] },
            ports: vec![Port::tcp(443), Port { number: 443, udp: true }],
        };
        assert_eq!(
            rule(&outside, "to"),
            json!({
                "to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8"]}}],
                "ports": [{"protocol": "TCP", "port": 443}, {"protocol": "UDP", "port": 443}],
            })
        );
        let who =
            Who::Pods { namespaces: Namespaces::Labelled(selector("team=web,!old")), labels: Some(selector("app")) };
        assert_eq!(
            rule(&who.into(), "from"),
            json!({"from": [{
                "namespaceSelector": {"matchExpressions": [
                    {"key": "team", "operator": "In", "values": ["web"]}, {"key": "old", "operator": "DoesNotExist"},
                ]},
                "podSelector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]},
            }]})
        );
    }
}
