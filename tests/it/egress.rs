//! Network profiles on the real API server, and the warnings about a class whose pods reach a file server.

use serde_json::{Value, json};

use crate::world::{World, all_is_well};

const NETWORK: &str = r#"
[network.lab]
allow_ingress = [{ namespaces = "ingress-nginx", pods = "app=ingress", ports = [8443] }]
allow_egress = [
  { to = "dns" },
  { to = "own-namespace", pods = "app in (db, cache)" },
  { namespace_labels = "team=web,!old", ports = ["53/udp"] },
  { cidr = "203.0.113.0/24", except = ["203.0.113.16/28"], ports = [443, "443/udp"] },
]
"#;

fn world(name: &str) -> World {
    let mut world = World::with(name, NETWORK);
    world.configure("network      = \"isolated\"", "network      = \"lab\"");
    world.configure("nfs.example.org", "203.0.113.7");
    world
}

#[test]
fn a_profile_becomes_network_policies_that_no_later_cycle_changes() {
    let mut world = world("egress");
    world.tool("foo", 63_101, &[]);
    all_is_well(&world.cycle());
    let found = world.kubectl(&["get", "networkpolicies", "-n", &world.namespace("foo"), "-o", "json"]);
    let found: Value = serde_json::from_str(&found).expect("kubectl prints JSON");
    let specs: Vec<&Value> =
        found["items"].as_array().expect("kubectl prints a list").iter().map(|item| &item["spec"]).collect();
    let has = |direction: &str, rule: &Value| specs.iter().any(|spec| spec[direction][0] == *rule);
    let ports = |ports: &[(&str, u16)]| -> Value {
        ports.iter().map(|(protocol, port)| json!({"protocol": protocol, "port": port})).collect()
    };
    let outside = json!({
        "to": [{"ipBlock": {"cidr": "203.0.113.0/24", "except": ["203.0.113.16/28"]}}],
        "ports": ports(&[("TCP", 443), ("UDP", 443)]),
    });
    let labelled = json!({
        "to": [{"namespaceSelector": {"matchExpressions": [
            {"key": "team", "operator": "In", "values": ["web"]}, {"key": "old", "operator": "DoesNotExist"},
        ]}}],
        "ports": ports(&[("UDP", 53)]),
    });
    assert!(has("egress", &outside) && has("egress", &labelled), "{found:#}");
    assert_eq!(specs.len(), 6, "{found:#}");
    let second = world.cycle();
    assert_eq!(second.actions, 0, "{second:#?}");
}

#[test]
fn doctor_and_check_report_a_class_whose_pods_reach_a_file_server() {
    let mut world = world("reached");
    let of_network = |world: &World| {
        let (wrong, _) = crate::doctor::wrong(world, &[]);
        wrong
            .into_iter()
            .filter(|(subject, ..)| subject == "class tool, network")
            .map(|(_, text, _)| text)
            .collect::<Vec<_>>()
    };
    // The profile allows the address of the file server, but not its ports.
    assert_eq!(of_network(&world), Vec::<String>::new());
    world.configure("ports = [443, \"443/udp\"]", "ports = [443, 2049]");
    let reached = "nfs.server 203.0.113.7 (cidr 203.0.113.0/24 has 203.0.113.7)";
    assert_eq!(of_network(&world), [format!("its pods reach {reached}")]);
    let said = world.bursar("check");
    assert!(said.contains("warning: class.tool.network: pods reach nfs.server 203.0.113.7"), "{said}");
    // `except` leaves the file server out, but another rule allows it again.
    world.configure("except = [\"203.0.113.16/28\"]", "except = [\"203.0.113.0/28\"]");
    assert_eq!(of_network(&world), Vec::<String>::new());
    world.configure("{ to = \"dns\" },", "{ to = \"dns\" }, { cidr = \"203.0.113.7/32\" },");
    assert_eq!(of_network(&world), ["its pods reach nfs.server 203.0.113.7 (cidr 203.0.113.7/32 has 203.0.113.7)"]);
}
