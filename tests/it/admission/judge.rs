//! Checks that `bursar webhook audit` and the policies of the API server give the same answer for random objects.

use std::collections::BTreeMap;

use bursar::admission::existing::{JudgedKind, KINDS, NamespaceRules, by_server, own_hosts};
use bursar::bootstrap;
use bursar::desired::server_rules::host_fields;
use bursar::policy::{Admission, Class};
use bursar::rules::Mode;
use futures::StreamExt as _;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};

use super::server_rules::{SHOP, TOOL, object, pods, prepare};
use super::site::{Site, name};
use crate::world::runtime;

/// The number of random objects in `make test`. `BURSAR_TEST_PODS` overrides it (`make soak`: 2,000).
const OBJECTS: usize = 300;

/// Kinds of `hosts.fields`.
const OF_FIELDS: [JudgedKind<'static>; 2] = [
    JudgedKind { group: "example.org", resource: "widgets" },
    JudgedKind { group: "networking.istio.io", resource: "gateways" },
];

/// Returns none of the values, or one of them.
fn maybe(values: &'static [&'static str]) -> impl Strategy<Value = Option<&'static str>> {
    prop_oneof![3 => Just(None), 2 => select(values).prop_map(Some)]
}

fn set(fields: &mut Value, key: &str, value: Option<&str>) {
    if let Some(value) = value {
        fields[key] = json!(value);
    }
}

/// Returns a pod, or an object that makes pods, with random fields in the spec of its pods.
fn of_pods() -> impl Strategy<Value = Value> {
    let sysctls = (
        select(&[
            "net.ipv4.ip_unprivileged_port_start",
            "net/ipv4/ip_unprivileged_port_start",
            "net.ipv4.ip_local_port_range",
            "kernel.shm_rmid_forced",
            "kernel.msgmax",
            "net.core.somaxconn",
        ]),
        select(&[
            "0",
            "1023",
            "1024",
            "+1024",
            "01024",
            "65535",
            "100000",
            "1024 60999",
            "1024\t60999",
            "1024 x",
            "512 60999",
        ]),
    );
    let toleration = (maybe(&["gpu", "control-plane", "node.kubernetes.io/not-ready"]), any::<bool>());
    (
        select(&[TOOL, SHOP]),
        0..8_usize,
        maybe(&["batch", "urgent", "system-node-critical"]),
        maybe(&["gvisor", "kata"]),
        maybe(&["volcano", "mine", "default-scheduler"]),
        maybe(&["node-1"]),
        proptest::option::of(toleration),
        proptest::option::of(sysctls),
    )
        .prop_map(|(namespace, kind, priority, runtime, scheduler, node, toleration, sysctl)| {
            let mut fields = json!({});
            set(&mut fields, "priorityClassName", priority);
            set(&mut fields, "runtimeClassName", runtime);
            set(&mut fields, "schedulerName", scheduler);
            // The scheduler writes this field into pods, so it is judged only in templates.
            set(&mut fields, "nodeName", node.filter(|_| kind != 0));
            if let Some((key, is_equal)) = toleration {
                let mut toleration = json!({"operator": "Exists"});
                set(&mut toleration, "key", key);
                if let (true, Some(_)) = (is_equal, key) {
                    toleration["operator"] = json!("Equal");
                    toleration["value"] = json!("x");
                }
                fields["tolerations"] = json!([toleration]);
            }
            if let Some((name, value)) = sysctl {
                fields["securityContext"] = json!({"sysctls": [{"name": name, "value": value}]});
            }
            pods(namespace, fields).swap_remove(kind)
        })
}

fn of_services() -> impl Strategy<Value = Value> {
    let kinds = maybe(&["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"]);
    let hosts = maybe(&["ann.shop.example.org", "bob.shop.example.org", "ann.shop.example.org,*"]);
    let keys = &[
        "external-dns.alpha.kubernetes.io/hostname",
        "dns.alpha.kubernetes.io/internal",
        "example.org/serves",
        "example.org/myhostname",
        "example.org/myHostname",
    ];
    let annotation = (select(keys), hosts);
    (select(&[TOOL, SHOP]), kinds, any::<bool>(), annotation).prop_map(|(namespace, kind, takes, (key, hosts))| {
        let mut spec = json!({"ports": [{"port": 80}]});
        set(&mut spec, "type", kind);
        if kind == Some("ExternalName") {
            spec["externalName"] = json!("db.example.org");
        }
        if takes {
            spec["externalIPs"] = json!(["192.0.2.7"]);
        }
        let mut service = object("v1", "Service", namespace, spec);
        set(&mut service["metadata"]["annotations"], key, hosts);
        service
    })
}

fn of_classes() -> impl Strategy<Value = Value> {
    let modes = select(&["ReadWriteOnce", "ReadWriteMany"]);
    let (old, classes) = (maybe(&["nginx", "traefik"]), maybe(&["nginx", "traefik"]));
    let (old_storage, storage) = (maybe(&["fast", "gold"]), maybe(&["", "standard", "fast", "gold"]));
    let ingress = (select(&[TOOL, SHOP]), old, classes).prop_map(|(namespace, old, class)| {
        let mut spec = json!({"rules": [{"host": "ann.shop.example.org"}]});
        set(&mut spec, "ingressClassName", class);
        let mut ingress = object("networking.k8s.io/v1", "Ingress", namespace, spec);
        set(&mut ingress["metadata"]["annotations"], "kubernetes.io/ingress.class", old);
        ingress
    });
    let claim = (select(&[TOOL, SHOP]), modes, old_storage, storage).prop_map(|(namespace, mode, old, class)| {
        let mut spec = json!({"accessModes": [mode], "resources": {"requests": {"storage": "1Gi"}}});
        set(&mut spec, "storageClassName", class);
        let mut claim = object("v1", "PersistentVolumeClaim", namespace, spec);
        set(&mut claim["metadata"]["annotations"], "volume.beta.kubernetes.io/storage-class", old);
        claim
    });
    let hosts = select(&["ann.shop.example.org", "bob.shop.example.org", "*.ann.shop.example.org", ""]);
    let passed_on = maybe(&["ann.shop.example.org", "bob.shop.example.org"]);
    let gateway = (select(&[TOOL, SHOP]), select(&["internal", "external"]), hosts, passed_on, any::<bool>());
    let gateway = gateway.prop_map(|(namespace, class, host, passed_on, takes)| {
        let listeners = json!([{"name": "web", "port": 443, "protocol": "HTTPS", "hostname": host}]);
        let mut spec = json!({"gatewayClassName": class, "listeners": listeners});
        if let Some(host) = passed_on {
            spec["infrastructure"] = json!({"annotations": {"dns.alpha.kubernetes.io/external": host}});
        }
        if takes {
            spec["addresses"] = json!([{"value": "192.0.2.7"}]);
        }
        object("gateway.networking.k8s.io/v1", "Gateway", namespace, spec)
    });
    prop_oneof![ingress, claim, gateway]
}

pub fn kind_of(object: &Value) -> JudgedKind<'static> {
    let group =
        object["apiVersion"].as_str().and_then(|version| version.split_once('/')).map_or("", |(group, _)| group);
    let kind = object["kind"].as_str().unwrap_or_default().to_lowercase();
    let plural = if kind.ends_with('s') { format!("{kind}es") } else { format!("{kind}s") };
    let mut kinds = KINDS.into_iter().chain(OF_FIELDS);
    let known = kinds.find(|known| known.group == group && known.resource == plural);
    known.unwrap_or_else(|| panic!("{group} {plural}"))
}

/// Returns for each object what the API server would store, or why it refuses.
fn asked(site: &Site, objects: &[Value]) -> Vec<Result<Value, String>> {
    runtime().block_on(async {
        let client = bootstrap::client(&site.cluster.admin_kubeconfig).await.expect("the kubeconfig is valid");
        let ask = async |object: &Value| {
            let (kind, namespace) =
                (kind_of(object), object["metadata"]["namespace"].as_str().expect("the value is a string"));
            let version = object["apiVersion"].as_str().expect("the value is a string");
            let root = if version.contains('/') { "apis" } else { "api" };
            let uri = format!("/{root}/{version}/namespaces/{namespace}/{}?dryRun=All", kind.resource);
            let request = http::Request::post(uri).header("content-type", "application/json");
            let request = request.body(object.to_string().into_bytes()).expect("the request is valid");
            match client.request::<Value>(request).await {
                Ok(stored) => Ok(stored),
                Err(kube::Error::Api(status)) => Err(status.message.clone()),
                Err(error) => panic!("{error}"),
            }
        };
        futures::stream::iter(objects.iter().map(ask)).buffered(8).collect().await
    })
}

#[test]
fn audit_and_policies_agree_on_random_objects() {
    let site = Site::shared();
    prepare(&site);
    let count = std::env::var("BURSAR_TEST_PODS").ok().and_then(|count| count.parse().ok()).unwrap_or(OBJECTS);
    let random = prop_oneof![6 => of_pods(), 1 => of_services(), 2 => of_classes()];
    let mut runner = TestRunner::new(Config::default());
    let objects: Vec<Value> =
        (0..count).map(|_| random.new_tree(&mut runner).expect("the strategy generates a value").current()).collect();
    let fields = host_fields(&site.settings.policy, &name());
    let (mut wrong, mut said) = (Vec::new(), BTreeMap::new());
    for (object, answer) in objects.iter().zip(asked(&site, &objects)) {
        let (class, namespace) = if object["metadata"]["namespace"] == SHOP { ("shop", SHOP) } else { ("tool", TOOL) };
        let Class { admission: Admission { server, hosts, .. }, namespace: named, .. } =
            &site.settings.policy.classes[class];
        let own_hosts = own_hosts(&hosts.allow, named.as_deref().unwrap_or_default(), namespace);
        let rules = NamespaceRules { server, unchosen: Mode::Enforce, hosts, own_hosts: &own_hosts, fields: &fields };
        let judged = |object: &Value| by_server(&rules, kind_of(object), object);
        let (answered, found) = match &answer {
            Ok(stored) => {
                let mut stored = stored.clone();
                // The audit reads items of lists, which have neither field.
                (stored["apiVersion"], stored["kind"]) = (object["apiVersion"].clone(), object["kind"].clone());
                ("let through", judged(&stored))
            }
            Err(why) if why.contains("bursar-rules-enforce") => ("refused", judged(object)),
            Err(_) => {
                *said.entry("refused by another rule").or_insert(0_usize) += 1;
                continue;
            }
        };
        *said.entry(answered).or_insert(0) += 1;
        if (answered == "refused") == found.is_empty() {
            wrong.push(format!("{object}\n  {answer:?}\n  judged: {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(said["refused"] > count / 10 && said["let through"] > count / 10, "{said:?}");
}
