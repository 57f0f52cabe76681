//! Reads `[network.NAME]`: profiles in addition to the built-in `open` and `isolated`.

use std::collections::BTreeMap;

use serde_json::Value;

use super::table::{Table, ValueKind};
use crate::identity::is_dns_label;
use crate::policy::{Namespaces, NetworkProfile, Peer, Port, Range, Selector, Who};

/// The built-in profiles.
const BUILT_IN: [&str; 2] = ["isolated", "open"];
pub(super) const CIDR: ValueKind = ValueKind("a range of addresses", "\"192.0.2.0/24\"");

/// Returns all profiles by name, with the built-in ones.
pub(super) fn networks(root: &Table<'_>) -> BTreeMap<String, NetworkProfile> {
    let mut networks = BTreeMap::from([
        ("open".to_owned(), NetworkProfile::open()),
        ("isolated".to_owned(), NetworkProfile::isolated()),
    ]);
    for (name, table) in root.named("network") {
        table.only(&["allow_ingress", "allow_egress"]);
        if BUILT_IN.contains(&name.as_str()) {
            table.wrong_itself("is built in; give yours another name");
        }
        let peers = |key: &str, direction: &str| {
            table.list(key).iter().filter_map(|peer| self::peer(peer, direction)).collect()
        };
        let profile = NetworkProfile {
            default_deny: true,
            allow_ingress: peers("allow_ingress", "from"),
            allow_egress: peers("allow_egress", "to"),
        };
        networks.insert(name, profile);
    }
    networks
}

/// Reads one rule. `direction` is `from` or `to`.
fn peer(table: &Table<'_>, direction: &str) -> Option<Peer> {
    let whom = [direction, "namespaces", "namespace_labels", "cidr"];
    table.only(&[&whom[..], &["pods", "except", "ports"]].concat());
    if whom.iter().filter(|key| table.has(key)).count() != 1 {
        table.wrong_itself(format!(
            "needs one of {}; for example {{ {direction} = \"own-namespace\" }}",
            whom.join(", ")
        ));
        return None;
    }
    let who = who(table, direction)?;
    let goes_with = |key: &str, what: &str| {
        if table.has(key) {
            table.wrong(key, format!("is allowed only with {what}"));
        }
    };
    match &who {
        Who::Addresses { .. } => goes_with("pods", &format!("{direction}, namespaces and namespace_labels")),
        Who::Pods { .. } => goes_with("except", "cidr"),
        Who::Dns => ["except", "pods", "ports"].iter().for_each(|key| goes_with(key, "peers other than dns")),
    }
    Some(Peer { who, ports: ports(table) })
}

fn who(table: &Table<'_>, direction: &str) -> Option<Who> {
    if table.has("cidr") {
        let range = table.parsed("cidr", CIDR, Range::parse)?;
        return Some(Who::Addresses { range, except: except(table, &range) });
    }
    let namespaces = if table.has("namespace_labels") {
        Namespaces::Labelled(selector(table, "namespace_labels")?)
    } else if let Some(name) = table.text("namespaces") {
        if !is_dns_label(&name) {
            table.wrong("namespaces", format!("{name:?} is not a namespace's name; for example \"ingress-nginx\""));
        }
        Namespaces::Named(name)
    } else {
        let (ingress, egress) = ([("own-namespace", false)], [("own-namespace", false), ("dns", true)]);
        if table.choice(direction, if direction == "to" { &egress[..] } else { &ingress })? {
            return Some(Who::Dns);
        }
        Namespaces::Own
    };
    let labels = if table.has("pods") { Some(selector(table, "pods")?) } else { None };
    Some(Who::Pods { namespaces, labels })
}

fn selector(table: &Table<'_>, key: &str) -> Option<Selector> {
    let read = Selector::parse(&table.text(key)?);
    if let Err(why) = &read {
        table.wrong(key, format!("{why}; for example \"app=web\""));
    }
    read.ok()
}

fn except(table: &Table<'_>, range: &Range) -> Vec<Range> {
    let texts = table.texts("except").unwrap_or_default();
    let parsed = texts.iter().filter_map(|text| {
        // Kubernetes refuses an exception that is not smaller than the range.
        let within = Range::parse(text).filter(|inner| range.covers(inner) && inner != range);
        if within.is_none() {
            table.wrong("except", format!("{text:?} is not a part of {range}; for example \"192.0.2.7/32\""));
        }
        within
    });
    parsed.collect()
}

fn ports(table: &Table<'_>) -> Vec<Port> {
    let Some(value) = table.value("ports") else { return Vec::new() };
    let ports: Option<Vec<Port>> = value.as_array().and_then(|list| list.iter().map(port).collect());
    ports.filter(|ports| !ports.is_empty()).unwrap_or_else(|| {
        table.wrong("ports", format!("{value} is not a list of ports; for example [443, \"443/udp\"]"));
        Vec::new()
    })
}

/// Parses a port such as `443`, `"443"`, `"443/tcp"` or `"443/udp"`.
fn port(value: &Value) -> Option<Port> {
    let text = value.as_str().map(str::to_owned).or_else(|| value.as_u64().map(|number| number.to_string()))?;
    let (number, protocol) = text.split_once('/').unwrap_or((&text, "tcp"));
    let number = number.parse().ok().filter(|number| *number > 0)?;
    matches!(protocol, "tcp" | "udp").then(|| Port { number, udp: protocol == "udp" })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ports_are_tcp_unless_they_end_with_udp() {
        let udp = Port { number: 53, udp: true };
        assert_eq!([json!(443), json!("443"), json!("443/tcp")].map(|value| port(&value)), [Some(Port::tcp(443)); 3]);
        assert_eq!(port(&json!("53/udp")), Some(udp));
        for wrong in [json!(0), json!(65_536), json!("53/sctp"), json!("dns"), json!(-1), json!(true), json!("")] {
            assert_eq!(port(&wrong), None, "{wrong}");
        }
    }
}
