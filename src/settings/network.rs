//! `[network.NAME]`: profiles beside the built-in `open` and `isolated`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::table::{Kind, Table, is_name};
use crate::policy::{NetworkProfile, Peer};

/// The profiles that need no table.
const BUILT_IN: [&str; 2] = ["isolated", "open"];
const CIDR: Kind = Kind("a range of addresses", "\"192.0.2.0/24\"");

/// All profiles by name.
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

/// One rule; `direction` is `from` or `to`.
fn peer(table: &Table<'_>, direction: &str) -> Option<Peer> {
    table.only(&[direction, "namespaces", "cidr", "ports"]);
    let named = [direction, "namespaces", "cidr"].iter().filter(|key| table.has(key)).count();
    if named != 1 {
        table.wrong_itself(format!(
            "needs one of {direction}, namespaces, cidr; for example {{ {direction} = \"own-namespace\" }}"
        ));
        return None;
    }
    if table.has("ports") && !table.has("cidr") {
        table.wrong("ports", "goes with cidr only");
    }
    if table.has("cidr") {
        let cidr = table.parsed("cidr", CIDR, |text| is_cidr(text).then(|| text.to_owned()))?;
        return Some(Peer::Cidr { cidr, ports: ports(table) });
    }
    if let Some(name) = table.text("namespaces") {
        if !is_name(&name) {
            table.wrong("namespaces", format!("{name:?} is not a namespace's name; for example \"ingress-nginx\""));
        }
        return Some(Peer::Namespace(name));
    }
    let own = ("own-namespace", Peer::OwnNamespace);
    let (ingress, egress) = ([own.clone()], [own, ("dns", Peer::Dns)]);
    let peers: &[(&str, Peer)] = if direction == "to" { &egress } else { &ingress };
    let words: Vec<(&str, usize)> = peers.iter().enumerate().map(|(index, (word, _))| (*word, index)).collect();
    table.choice(direction, &words).map(|index| peers[index].1.clone())
}

fn ports(table: &Table<'_>) -> Vec<u16> {
    let Some(value) = table.value("ports") else { return Vec::new() };
    let port =
        |value: &serde_json::Value| value.as_u64().and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0);
    let ports: Option<Vec<u16>> = value.as_array().and_then(|list| list.iter().map(port).collect());
    ports.filter(|ports| !ports.is_empty()).unwrap_or_else(|| {
        table.wrong("ports", format!("{value} is not a list of ports; for example [443]"));
        Vec::new()
    })
}

fn is_cidr(text: &str) -> bool {
    let Some((address, length)) = text.split_once('/') else { return false };
    let most = match address.parse() {
        Ok(IpAddr::V4(_)) => 32,
        Ok(IpAddr::V6(_)) => 128,
        Err(_) => return false,
    };
    length.parse::<u8>().is_ok_and(|length| length <= most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_have_an_address_and_a_length() {
        assert!(is_cidr("192.0.2.0/24") && is_cidr("2001:db8::/32") && is_cidr("0.0.0.0/0"));
        assert!(!is_cidr("192.0.2.0") && !is_cidr("192.0.2.0/33") && !is_cidr("example.org/24"));
    }
}
