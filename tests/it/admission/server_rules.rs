//! The rules that the API server evaluates itself. An administrator without an exemption sends attacks and ordinary
//! objects, because a tenant's own role may not write all of these kinds.

#![expect(clippy::needless_pass_by_value, reason = "each call makes its values with json!")]

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use bursar::admission::existing::{GRACE, NamespaceRules, by_server};
use bursar::bootstrap;
use bursar::contract::TenantState;
use bursar::execute::request::{ApiServer, Ask};
use bursar::rules::Mode;
use bursar::rules::server::{ServerRule, ServerRules};
use bursar_testkit::process::run;
use bursar_testkit::ready::{DEADLINE, wait_for};
use http::Method;
use kube::Client;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::judge::kind_of;
use super::sender::ask;
use super::site::{Site, out, said};
use crate::world::{extend, runtime};

/// Class `tool` has no lists. Class `shop` has a list for each rule.
pub const TOOL: &str = "tool-foo";
/// A namespace of a class with an autoscaler in its manifests.
const TRIAL: &str = "trial-try";
pub const SHOP: &str = "shop-ann";
/// A host of [`SHOP`].
const OWN: Option<&str> = Some("ann.shop.example.org");

pub fn object(api_version: &str, kind: &str, namespace: &str, spec: Value) -> Value {
    let mut object =
        json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "x", "namespace": namespace}});
    object["spec"] = spec;
    object
}

fn service(namespace: &str, spec: Value) -> Value {
    let mut whole = json!({"ports": [{"port": 80}]});
    extend(&mut whole, &spec);
    object("v1", "Service", namespace, whole)
}

pub fn annotated(mut object: Value, key: &str, value: &str) -> Value {
    object["metadata"]["annotations"] = json!({key: value});
    object
}

/// Returns a pod and an object of every kind that makes pods, each with these fields in the spec of its pods.
pub fn pods(namespace: &str, fields: Value) -> Vec<Value> {
    let mut spec = json!({"containers": [{"name": "web", "image": "registry.example.org/web"}]});
    extend(&mut spec, &fields);
    let labels = json!({"app": "x"});
    let template = json!({"metadata": {"labels": labels}, "spec": spec});
    let mut once = template.clone();
    once["spec"]["restartPolicy"] = json!("Never");
    let selected = json!({"selector": {"matchLabels": labels}, "template": template});
    let mut of_stateful_set = selected.clone();
    of_stateful_set["serviceName"] = json!("x");
    vec![
        object("v1", "Pod", namespace, spec),
        object("apps/v1", "Deployment", namespace, selected.clone()),
        object("apps/v1", "ReplicaSet", namespace, selected.clone()),
        object("apps/v1", "StatefulSet", namespace, of_stateful_set),
        object("apps/v1", "DaemonSet", namespace, selected),
        object("v1", "ReplicationController", namespace, json!({"selector": labels, "template": template})),
        object("batch/v1", "Job", namespace, json!({"template": once})),
        object(
            "batch/v1",
            "CronJob",
            namespace,
            json!({"schedule": "0 0 * * *", "jobTemplate": {"spec": {"template": once}}}),
        ),
    ]
}

fn sysctl(name: &str, value: &str) -> Value {
    json!({"securityContext": {"sysctls": [{"name": name, "value": value}]}})
}

fn toleration(fields: Value) -> Value {
    json!({"tolerations": [fields]})
}

/// Ten years in seconds.
const YEARS: i64 = 315_360_000;
/// `max_grace_period` of class `shop`, in seconds.
const SHOP_GRACE: i64 = 604_800;

fn grace(seconds: i64) -> Value {
    json!({"terminationGracePeriodSeconds": seconds})
}

/// Returns a pod's fields with a container that has a probe with this grace period.
fn probed(list: &str, probe: &str, seconds: i64) -> Value {
    let mut container = json!({"name": "probed", "image": "registry.example.org/web"});
    if list == "initContainers" {
        container["restartPolicy"] = json!("Always");
    }
    container[probe] = json!({"exec": {"command": ["true"]}, "terminationGracePeriodSeconds": seconds});
    json!({list: [container]})
}

fn ingress(class: Option<&str>) -> Value {
    let backend = json!({"service": {"name": "x", "port": {"number": 80}}});
    let paths = json!([{"path": "/", "pathType": "Prefix", "backend": backend}]);
    let mut spec = json!({"rules": [{"host": "ann.shop.example.org", "http": {"paths": paths}}]});
    if let Some(class) = class {
        spec["ingressClassName"] = json!(class);
    }
    object("networking.k8s.io/v1", "Ingress", SHOP, spec)
}

fn gateway(namespace: &str, class: &str, host: Option<&str>) -> Value {
    let mut listener = json!({"name": "web", "port": 443, "protocol": "HTTPS"});
    if let Some(host) = host {
        listener["hostname"] = json!(host);
    }
    let spec = json!({"gatewayClassName": class, "listeners": [listener]});
    object("gateway.networking.k8s.io/v1", "Gateway", namespace, spec)
}

/// Returns a Gateway that gives its Service an annotation.
fn infrastructure(key: &str, value: &str) -> Value {
    let mut gateway = gateway(SHOP, "internal", OWN);
    gateway["spec"]["infrastructure"] = json!({"annotations": {key: value}});
    gateway
}

/// Returns a Gateway that asks for an address.
fn addressed(namespace: &str) -> Value {
    let mut gateway = gateway(namespace, "internal", OWN);
    gateway["spec"]["addresses"] = json!([{"type": "IPAddress", "value": "192.0.2.7"}]);
    gateway
}

/// Returns a route that names no host itself.
fn route(kind: &str) -> Value {
    object("gateway.networking.k8s.io/v1", kind, SHOP, json!({"parentRefs": [{"name": "web"}]}))
}

fn widget(spec: Value) -> Value {
    object("example.org/v1", "Widget", SHOP, spec)
}

/// Returns a Gateway of another API group. Only the rule about its hosts knows its fields.
fn mesh_gateway(host: &str) -> Value {
    object("networking.istio.io/v1", "Gateway", SHOP, json!({"servers": [{"hosts": [host]}]}))
}

fn claim(fields: Value) -> Value {
    let mut spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    extend(&mut spec, &fields);
    object("v1", "PersistentVolumeClaim", SHOP, spec)
}

pub const HOSTNAME: &str = "external-dns.alpha.kubernetes.io/hostname";
/// An annotation that contains hosts although its name does not end in `hostname`.
pub const KOPS: &str = "dns.alpha.kubernetes.io/external";
/// An annotation of `hosts.host_annotations` in class `shop`.
const LISTED: &str = "example.org/serves";
const OLD_INGRESS_CLASS: &str = "kubernetes.io/ingress.class";
pub const OLD_STORAGE_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

/// Objects that must be refused, each with a part of the message.
fn attacks() -> Vec<(Value, &'static str)> {
    let mut attacks = vec![
        (service(TOOL, json!({"type": "NodePort"})), "would be of type NodePort"),
        (service(TOOL, json!({"type": "LoadBalancer"})), "would be of type LoadBalancer"),
        (service(TOOL, json!({"type": "ExternalName", "externalName": "db.example.org"})), "of type ExternalName"),
        (service(TOOL, json!({"externalIPs": ["192.0.2.7"]})), "remove spec.externalIPs"),
        (service(SHOP, json!({"type": "LoadBalancer"})), "would be of type LoadBalancer"),
        (service(SHOP, json!({"type": "NodePort", "externalIPs": ["192.0.2.7"]})), "remove spec.externalIPs"),
        (annotated(service(SHOP, json!({})), HOSTNAME, "bob.shop.example.org"), "a host of somebody else"),
        (
            annotated(service(SHOP, json!({})), HOSTNAME, "ann.shop.example.org, bob.shop.example.org"),
            "a host of somebody else",
        ),
        (
            annotated(service(SHOP, json!({})), "dns.example.org/internal-hostname", "*.shop.example.org"),
            "a host of somebody else",
        ),
        (
            annotated(service(SHOP, json!({})), KOPS, "ann.shop.example.org,bob.shop.example.org"),
            "a host of somebody else",
        ),
        (annotated(service(SHOP, json!({})), "zalando.org/dnsname", "bob.shop.example.org"), "a host of somebody else"),
        (annotated(service(SHOP, json!({})), LISTED, "bob.shop.example.org"), "a host of somebody else"),
        (annotated(gateway(SHOP, "internal", OWN), HOSTNAME, "bob.shop.example.org"), "a host of somebody else"),
        (infrastructure(HOSTNAME, "bob.shop.example.org"), "a host of somebody else"),
        (infrastructure(LISTED, "bob.shop.example.org"), "a host of somebody else"),
        (addressed(TOOL), "remove spec.addresses"),
        (addressed(SHOP), "remove spec.addresses"),
        (annotated(route("TCPRoute"), HOSTNAME, "bob.shop.example.org"), "a host of somebody else"),
        (annotated(route("UDPRoute"), HOSTNAME, "*"), "a host of somebody else"),
        (annotated(widget(json!({})), HOSTNAME, "bob.shop.example.org"), "a host of somebody else"),
        (annotated(mesh_gateway("ann.shop.example.org"), HOSTNAME, "bob.shop.example.org"), "a host of somebody else"),
        (ingress(Some("traefik")), "ingress class \"traefik\""),
        (ingress(None), "ingress class \"\""),
        (annotated(ingress(None), OLD_INGRESS_CLASS, "traefik"), "ingress class \"traefik\""),
        (gateway(SHOP, "external", Some("ann.shop.example.org")), "gateway class \"external\""),
        (gateway(SHOP, "internal", Some("bob.shop.example.org")), "use ann.shop.example.org or *.ann.shop.example.org"),
        (gateway(SHOP, "internal", Some("a.b.ann.shop.example.org")), "spec.listeners[].hostname"),
        (gateway(SHOP, "internal", Some("ANN.shop.example.org")), "spec.listeners[].hostname"),
        (gateway(SHOP, "internal", None), "spec.listeners[].hostname"),
        (widget(json!({"hosts": ["ann.shop.example.org", "bob.shop.example.org"]})), "spec.hosts[]"),
        (widget(json!({"hosts": ["*"]})), "spec.hosts[]"),
        (mesh_gateway("bob.shop.example.org"), "spec.servers[].hosts[]"),
        (claim(json!({"storageClassName": "gold"})), "storage class \"gold\""),
        (claim(json!({"storageClassName": ""})), "storage class \"\""),
        (claim(json!({})), "storage class \"\""),
        (
            claim(json!({"storageClassName": "fast", "volumeAttributesClassName": "gold"})),
            "would have volume attributes class \"gold\"",
        ),
        (annotated(pods(SHOP, json!({})).swap_remove(0), HOSTNAME, "bob.shop.example.org"), "a host of somebody else"),
        (annotated(pods(SHOP, json!({})).swap_remove(0), KOPS, "bob.shop.example.org"), "a host of somebody else"),
        (annotated(claim(json!({"storageClassName": "fast"})), OLD_STORAGE_CLASS, "gold"), "storage class \"gold\""),
    ];
    let mut of_pods = |namespace: &str, fields: Value, text: &'static str| {
        attacks.extend(pods(namespace, fields).into_iter().map(|object| (object, text)));
    };
    of_pods(TOOL, grace(YEARS), "set terminationGracePeriodSeconds to 300 or less");
    of_pods(SHOP, grace(SHOP_GRACE + 1), "set terminationGracePeriodSeconds to 604800 or less");
    for (list, probe) in
        [("containers", "livenessProbe"), ("containers", "startupProbe"), ("initContainers", "livenessProbe")]
    {
        of_pods(TOOL, probed(list, probe, YEARS), "set terminationGracePeriodSeconds of its probes to 300 or less");
    }
    of_pods(TOOL, json!({"schedulingGroup": {"podGroupName": "x"}}), "would belong to a scheduling group");
    of_pods(TOOL, json!({"nodeName": "node-1"}), "would run on node node-1, past the scheduler");
    for class in ["system-node-critical", "system-cluster-critical"] {
        of_pods(TOOL, json!({"priorityClassName": class}), "would have priorityClassName system-");
        of_pods(SHOP, json!({"priorityClassName": class}), "would have priorityClassName system-");
    }
    of_pods(SHOP, json!({"priorityClassName": "urgent"}), "would have priorityClassName urgent");
    of_pods(SHOP, json!({"runtimeClassName": "kata"}), "would have runtimeClassName kata");
    of_pods(SHOP, json!({"schedulerName": "mine"}), "would have schedulerName mine");
    of_pods(SHOP, toleration(json!({"operator": "Exists"})), "would tolerate taint \"\"");
    let listed = "of the pod, unless its runtime class or an admission plugin adds it, or ask";
    of_pods(SHOP, toleration(json!({"operator": "Exists"})), listed);
    of_pods(
        SHOP,
        toleration(json!({"key": "control-plane", "operator": "Exists"})),
        "would tolerate taint \"control-plane\"",
    );
    for (name, value) in [
        ("kernel.msgmax", "1"),
        ("kernel/msgmax", "1"),
        ("net.ipv4.ip_unprivileged_port_start", "0"),
        ("net.ipv4.ip_unprivileged_port_start", "1023"),
        ("net/ipv4/ip_unprivileged_port_start", "0"),
        ("net.ipv4.ip_local_port_range", "512 1023"),
    ] {
        of_pods(SHOP, sysctl(name, value), "would set sysctl");
    }
    attacks
}

/// Objects that must be allowed.
fn ordinary() -> Vec<Value> {
    let mut ordinary = vec![
        service(TOOL, json!({})),
        service(TOOL, json!({"clusterIP": "None"})),
        annotated(service(TOOL, json!({})), "prometheus.io/scrape", "true"),
        service(SHOP, json!({"type": "NodePort"})),
        annotated(service(SHOP, json!({})), HOSTNAME, "ann.shop.example.org,a.ann.shop.example.org"),
        ingress(Some("nginx")),
        gateway(SHOP, "internal", OWN),
        gateway(SHOP, "internal", Some("*.ann.shop.example.org")),
        annotated(gateway(SHOP, "internal", OWN), HOSTNAME, "a.ann.shop.example.org"),
        annotated(service(SHOP, json!({})), KOPS, "ann.shop.example.org"),
        annotated(service(SHOP, json!({})), LISTED, "ann.shop.example.org"),
        infrastructure(HOSTNAME, "ann.shop.example.org"),
        infrastructure("example.org/note", "bob.shop.example.org"),
        annotated(route("TCPRoute"), HOSTNAME, "ann.shop.example.org"),
        annotated(widget(json!({})), HOSTNAME, "ann.shop.example.org"),
        annotated(widget(json!({})), "example.org/note", "bob.shop.example.org"),
        // Class `tool` has no list of gateway classes or hosts.
        gateway(TOOL, "external", Some("anything.example.org")),
        widget(json!({"hosts": ["ann.shop.example.org"]})),
        widget(json!({})),
        json!({"apiVersion": "example.org/v1", "kind": "Widget", "metadata": {"name": "bare", "namespace": SHOP}}),
        mesh_gateway("ann.shop.example.org"),
        claim(json!({"storageClassName": "standard"})),
        claim(json!({"storageClassName": "standard", "volumeAttributesClassName": "fast"})),
        annotated(pods(SHOP, json!({})).swap_remove(0), HOSTNAME, "ann.shop.example.org"),
        claim(json!({"accessModes": ["ReadWriteMany"]})),
    ];
    let mut of_pods = |namespace: &str, fields: Value| ordinary.extend(pods(namespace, fields));
    of_pods(TOOL, grace(300));
    of_pods(SHOP, grace(SHOP_GRACE));
    of_pods(SHOP, probed("containers", "startupProbe", SHOP_GRACE));
    of_pods(TOOL, probed("containers", "livenessProbe", 300));
    of_pods(SHOP, json!({"schedulingGroup": {"podGroupName": "x"}}));
    of_pods(TOOL, json!({"priorityClassName": "urgent", "schedulerName": "mine", "runtimeClassName": "kata"}));
    of_pods(TOOL, toleration(json!({"operator": "Exists"})));
    of_pods(SHOP, json!({"priorityClassName": "batch", "schedulerName": "volcano", "runtimeClassName": "gvisor"}));
    of_pods(SHOP, json!({"nodeName": "node-1", "schedulerName": "default-scheduler"}));
    of_pods(SHOP, toleration(json!({"key": "gpu", "operator": "Exists"})));
    of_pods(SHOP, toleration(json!({"key": "node.kubernetes.io/not-ready", "operator": "Exists"})));
    of_pods(SHOP, sysctl("net.core.somaxconn", "1024"));
    of_pods(SHOP, sysctl("kernel.shm_rmid_forced", "1"));
    of_pods(SHOP, sysctl("net.ipv4.ip_unprivileged_port_start", "1024"));
    of_pods(SHOP, sysctl("net.ipv4.ip_local_port_range", "32768 60999"));
    ordinary
}

pub fn kind(group: &str, kind: &str) -> Value {
    let plural = format!("{}s", kind.to_lowercase());
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}"),
            "annotations": {"api-approved.kubernetes.io": "unapproved, a test"}},
        "spec": {"group": group, "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase(), "listKind": format!("{kind}List")},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]},
    })
}

/// Creates everything that the objects refer to, so that only a rule can refuse them. One thread at a time, because one
/// of two concurrent applies that create the same object fails.
pub fn prepare(site: &Site) -> Meddler {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let class = |kind: &str, api_version: &str, name: &str, more: Value| {
        let mut class = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}});
        extend(&mut class, &more);
        class
    };
    let priority = |name: &str| class("PriorityClass", "scheduling.k8s.io/v1", name, json!({"value": 1}));
    // The API server adds these tolerations to pods before it evaluates the rules.
    let added = json!({"tolerations": [{"key": "gpu", "operator": "Exists"}]});
    let runtime =
        |name: &str| class("RuntimeClass", "node.k8s.io/v1", name, json!({"handler": name, "scheduling": added}));
    let items = [
        priority("batch"),
        priority("urgent"),
        runtime("gvisor"),
        runtime("kata"),
        kind("gateway.networking.k8s.io", "Gateway"),
        kind("gateway.networking.k8s.io", "TCPRoute"),
        kind("gateway.networking.k8s.io", "UDPRoute"),
        kind("example.org", "Widget"),
        kind("networking.istio.io", "Gateway"),
    ];
    site.cluster.run(&["apply", "-f", "-"], &json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string());
    site.cluster.run(&["wait", "--for=condition=Established", "crd", "--all", "--timeout=240s"], "");
    site.tenant("shop", "ann", 52601, TenantState::Active);
    let meddler = Meddler::new(site);
    // Wait until the webhook knows the tenant, and the policies are in force.
    wait_for("a plain pod passes, and a pod of class tool with a node name is refused", DEADLINE, || {
        let [plain, chosen] = [json!({}), json!({"nodeName": "n"})].map(|fields| pods(SHOP, fields).swap_remove(0));
        let [_, refused] = [json!({}), json!({"nodeName": "n"})].map(|fields| pods(TOOL, fields).swap_remove(0));
        let answers = [plain, chosen, refused].map(|pod| meddler.create(&pod));
        (answers.map(|answer| answer.is_ok()) == [true, true, false]).then_some(())
    });
    meddler
}

/// An administrator without an exemption. It sends hundreds of requests without starting a process for each.
pub struct Meddler {
    runtime: Runtime,
    admin: Client,
}

impl Meddler {
    fn new(site: &Site) -> Self {
        let runtime = runtime();
        let admin =
            runtime.block_on(bootstrap::client(&site.cluster.admin_kubeconfig)).expect("the kubeconfig is valid");
        Self { runtime, admin }
    }

    /// Creates an object with a dry run. Returns the message of a refusal.
    pub fn create(&self, object: &Value) -> Result<(), String> {
        let text = |value: &Value| value.as_str().expect("the value is a string").to_owned();
        let (version, kind) = (text(&object["apiVersion"]), text(&object["kind"]).to_lowercase());
        let root = if version.contains('/') { "apis" } else { "api" };
        let ending = if kind.ends_with('s') { "es" } else { "s" };
        let namespace = text(&object["metadata"]["namespace"]);
        let path = format!("/{root}/{version}/namespaces/{namespace}/{kind}{ending}?dryRun=All");
        let who = [("Impersonate-User", "meddler")];
        let answer = self.runtime.block_on(ask(&self.admin, Method::POST, &path, &who, Some(object)));
        if answer.is_success() { Ok(()) } else { Err(answer.message().to_owned()) }
    }
}

/// The rules that the API server evaluates in namespaces of tenants, as an audit names them.
pub const SERVER_RULES: [&str; 7] =
    ["services", "scheduling", "sysctls", "ingress", "claims.storage_classes", "hosts.fields", GRACE];

/// Returns these rules with empty lists: an object that a list allows then breaks its rule.
pub fn allows_nothing(rules: &ServerRules) -> ServerRules {
    let nothing = || ServerRule { mode: Some(Mode::Enforce), ..ServerRule::default() };
    // The compiler asks for a new rule, which needs a name in `SERVER_RULES`.
    ServerRules {
        services: nothing(),
        scheduling: nothing(),
        sysctls: nothing(),
        ingress: nothing(),
        storage: nothing(),
        host_fields: rules.host_fields.clone(),
        host_annotations: rules.host_annotations.clone(),
        longest_grace: 0,
    }
}

#[test]
fn every_rule_of_the_api_server_has_an_attack_and_an_ordinary_object() {
    let site = Site::shared();
    let admission = &site.settings.policy.classes["shop"].admission;
    let server = &allows_nothing(&admission.server);
    let (hosts, fields) = (&admission.hosts, &server.host_fields);
    let rules = NamespaceRules { server, unchosen: Mode::Enforce, hosts, own_hosts: &[], fields };
    let checks = |objects: &[Value]| -> BTreeSet<&'static str> {
        let broken = objects.iter().flat_map(|object| by_server(&rules, kind_of(object), object));
        broken.map(|broken| broken.rule).collect()
    };
    let attacks: Vec<Value> = attacks().into_iter().map(|(object, _)| object).collect();
    let expected = BTreeSet::from(SERVER_RULES);
    assert_eq!(checks(&attacks), expected, "attacks");
    assert_eq!(checks(&ordinary()), expected, "ordinary objects");
}

#[test]
fn the_api_server_refuses_attacks_and_names_the_remedy() {
    let site = Site::shared();
    let meddler = prepare(&site);
    let attacks = attacks();
    assert!(attacks.len() > 100, "{}", attacks.len());
    let wrong = attacks.iter().filter_map(|(object, text)| {
        let answer = meddler.create(object).err().unwrap_or_else(|| "(it was allowed)".to_owned());
        let is_right = answer.contains("'bursar-") && answer.contains(text);
        (!is_right).then(|| format!("{object}\n  expected {text:?}, got: {answer}"))
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_rules_of_the_api_server_allow_ordinary_objects() {
    let site = Site::shared();
    let meddler = prepare(&site);
    let wrong = ordinary().into_iter().filter_map(|object| {
        let why = meddler.create(&object).err()?;
        Some(format!("{object}\n  {why}"))
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_class_that_the_policies_do_not_know_has_the_rules_of_a_class_without_keys() {
    let site = Site::shared();
    let meddler = prepare(&site);
    let place = "unknown-class";
    let labels = json!({"bursar.dev/class": "nobody"});
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": place, "labels": labels}});
    site.cluster.run(&["apply", "-f", "-"], &namespace.to_string());
    wait_for("the policies know the namespace", DEADLINE, || {
        meddler.create(&service(place, json!({"type": "NodePort"}))).err()
    });
    let deployment = |fields: Value| pods(place, fields).swap_remove(1);
    for refused in [
        service(place, json!({"type": "NodePort"})),
        service(place, json!({"externalIPs": ["192.0.2.7"]})),
        deployment(json!({"nodeName": "node-1"})),
        deployment(json!({"priorityClassName": "system-node-critical"})),
        deployment(sysctl("kernel.msgmax", "1")),
    ] {
        let why = meddler.create(&refused).expect_err("the rules refuse the object");
        assert!(why.contains("bursar-rules-enforce"), "{refused}: {why}");
    }
    let mut token = json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token"});
    token["metadata"] = json!({"name": "x", "namespace": place,
        "annotations": {"kubernetes.io/service-account.name": "default"}});
    let why = meddler.create(&token).expect_err("the policy refuses the token");
    assert!(why.contains("bursar-tokens"), "{why}");
    assert_eq!(meddler.create(&service(place, json!({}))), Ok(()));
    site.cluster.run(&["delete", "namespace", place, "--wait=false"], "");
}

#[test]
fn deletions_and_evictions_may_not_ask_for_a_long_grace_period() {
    let site = Site::shared();
    let meddler = prepare(&site);
    let mut pod = pods(TOOL, json!({})).swap_remove(0);
    pod["metadata"]["name"] = json!("ending");
    pod["metadata"]["labels"] = json!({"app": "ending"});
    site.create(&pod).expect("the pod is allowed");
    bind(&site, "ending", TOOL);
    let pods = format!("/api/v1/namespaces/{TOOL}/pods");
    let one = format!("{pods}/ending");
    let ask = |method: Method, path: &str, body: Option<&Value>| {
        let who = [("Impersonate-User", "meddler")];
        meddler.runtime.block_on(ask(&meddler.admin, method, path, &who, body))
    };
    for (seconds, allowed) in [(YEARS, false), (301, false), (300, true), (0, true)] {
        let options = json!({"gracePeriodSeconds": seconds, "dryRun": ["All"]});
        let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": {"name": "ending", "namespace": TOOL}, "deleteOptions": options});
        let query = format!("gracePeriodSeconds={seconds}&dryRun=All");
        for (what, answer) in [
            ("a deletion with options", ask(Method::DELETE, &one, Some(&options))),
            ("a deletion with a query", ask(Method::DELETE, &format!("{one}?{query}"), None)),
            (
                "a deletion of a collection",
                ask(Method::DELETE, &format!("{pods}?{query}&labelSelector=app%3Dending"), None),
            ),
            ("an eviction", ask(Method::POST, &format!("{one}/eviction?dryRun=All"), Some(&eviction))),
        ] {
            let is_refused = answer.message().contains("'bursar-grace'") && answer.message().contains("to 300 or less");
            assert_eq!((answer.is_success(), is_refused), (allowed, !allowed), "{what}: {}", answer.message());
        }
    }
    site.delete("pod", "ending", TOOL);
}

/// Gives a pod a node that does not exist. The API server removes a pod without a node at once, whatever the grace
/// period.
fn bind(site: &Site, name: &str, namespace: &str) {
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "nowhere"}});
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}/binding");
    site.cluster.run(&["create", "--raw", &path, "-f", "-"], &binding.to_string());
}

#[test]
fn a_pod_that_is_older_than_the_limit_of_grace_periods_can_be_deleted() {
    let site = Site::shared();
    let meddler = prepare(&site);
    let place = "older-pods";
    site.cluster.run(&["create", "namespace", place], "");
    wait_for("the namespace has its default service account", DEADLINE, || {
        let found = site.cluster.run(&["get", "serviceaccounts", "-n", place, "-o", "name"], "");
        found.contains("serviceaccount/default").then_some(())
    });
    site.cluster.run(&["create", "-f", "-"], &pods(place, grace(YEARS)).swap_remove(0).to_string());
    bind(&site, "x", place);
    site.cluster.run(&["label", "namespace", place, "bursar.dev/class=nobody"], "");
    wait_for("the policies know the namespace", DEADLINE, || {
        let why = meddler.create(&pods(place, grace(YEARS)).swap_remove(1)).err()?;
        why.contains("bursar-grace").then_some(())
    });
    let delete = |more: &str| {
        let deleted = site.meddler(&["delete", "pod", "x", "-n", place, "--wait=false", "--dry-run=server", more], "");
        (deleted.status.success(), said(&deleted))
    };
    for period in ["--grace-period=-1", "--grace-period=30"] {
        let (is_deleted, why) = delete(period);
        assert!(is_deleted, "{period}: {why}");
    }
    let (is_deleted, why) = delete("--grace-period=315360001");
    assert!(!is_deleted && why.contains("bursar-grace"), "{why}");
    site.delete("pod", "x", place);
    site.cluster.run(&["delete", "namespace", place, "--wait=false"], "");
}

#[test]
fn a_pod_gets_no_host_of_others_by_an_update() {
    let site = Site::shared();
    let _meddler = prepare(&site);
    let mut pod = pods(SHOP, json!({})).swap_remove(0);
    pod["metadata"]["name"] = json!("served");
    site.cluster.run(&["create", "-f", "-"], &pod.to_string());
    let annotate = |host: &str| {
        let text = format!("{HOSTNAME}={host}");
        site.meddler(&["annotate", "pod", "served", "-n", SHOP, "--overwrite", &text], "")
    };
    let refused = annotate("bob.shop.example.org");
    assert!(said(&refused).contains("a host of somebody else"), "{}", said(&refused));
    let allowed = annotate("ann.shop.example.org");
    assert!(allowed.status.success(), "{}", said(&allowed));
    site.delete("pod", "served", SHOP);
}

#[test]
fn only_the_daemon_scales_objects_of_site_manifests() {
    let site = Site::shared();
    let _meddler = prepare(&site);
    let autoscaler = "system:serviceaccount:kube-system:horizontal-pod-autoscaler";
    let role = ["create", "clusterrolebinding", "autoscaler", "--clusterrole=cluster-admin", "--user", autoscaler];
    site.cluster.run(&role, "");
    for (name, labels) in [("proxy-ann", json!({"app.kubernetes.io/managed-by": "bursar"})), ("own", json!({}))] {
        let mut deployment = pods(SHOP, json!({})).swap_remove(1);
        deployment["metadata"]["name"] = json!(name);
        deployment["metadata"]["labels"] = labels;
        deployment["spec"]["replicas"] = json!(0);
        site.cluster.run(&["create", "-f", "-"], &deployment.to_string());
    }
    let scale = |name: &'static str| ["scale", "deployment", name, "-n", SHOP, "--replicas=0"];
    for name in ["proxy-ann", "own"] {
        let as_autoscaler = site.kubectl_as(&[&format!("--as={autoscaler}")], &scale(name), "");
        for answer in [site.tool("ann", &scale(name), ""), as_autoscaler, site.meddler(&scale(name), "")] {
            let is_refused = said(&answer).contains("deployments proxy-ann may not be scaled");
            assert_eq!((answer.status.success(), is_refused), (name == "own", name != "own"), "{}", said(&answer));
        }
    }
    let scaled = runtime().block_on(async {
        let client = bootstrap::client(site.daemon_kubeconfig()).await.expect("the kubeconfig is valid");
        let server = ApiServer::new(super::site::name(), client, std::sync::Arc::default());
        let path = format!("/apis/apps/v1/namespaces/{SHOP}/deployments/proxy-ann/scale");
        server.ask(&path, Ask::Merge(&json!({"spec": {"replicas": 0}}))).await
    });
    scaled.unwrap_or_else(|error| panic!("{error}"));
    site.cluster.run(&["delete", "deployment", "proxy-ann", "own", "-n", SHOP], "");
    site.cluster.run(&["delete", "clusterrolebinding", "autoscaler"], "");
}

#[test]
fn controllers_scale_only_objects_that_an_autoscaler_of_the_class_names() {
    let site = Site::shared();
    let _meddler = prepare(&site);
    let mut deployment = pods(TRIAL, json!({})).swap_remove(1);
    deployment["metadata"]["labels"] = json!({"app.kubernetes.io/managed-by": "bursar"});
    deployment["spec"]["replicas"] = json!(0);
    for name in ["queue-try", "fixed-try"] {
        deployment["metadata"]["name"] = json!(name);
        site.cluster.run(&["create", "-f", "-"], &deployment.to_string());
    }
    let account = |namespace: &str, name: &str| format!("system:serviceaccount:{namespace}:{name}");
    for (user, may) in [
        (account("keda", "keda-operator"), true),
        (account("kube-system", "horizontal-pod-autoscaler"), true),
        ("system:kube-controller-manager".to_owned(), true),
        (account(TRIAL, "default"), false),
        ("meddler".to_owned(), false),
    ] {
        let role = ["create", "clusterrolebinding", "scales", "--clusterrole=cluster-admin", "--user", &user];
        site.cluster.run(&role, "");
        // The autoscaler of the class names only one of the two.
        for (name, may) in [("queue-try", may), ("fixed-try", false)] {
            let scale = ["scale", "deployment", name, "-n", TRIAL, "--replicas=0"];
            let answer = site.kubectl_as(&[&format!("--as={user}")], &scale, "");
            let is_refused = said(&answer).contains(&format!("deployments {name} may not be scaled"));
            assert_eq!((answer.status.success(), is_refused), (may, !may), "{user}: {}", said(&answer));
        }
        site.cluster.run(&["delete", "clusterrolebinding", "scales"], "");
    }
    site.cluster.run(&["delete", "deployment", "queue-try", "fixed-try", "-n", TRIAL], "");
}

#[test]
fn claims_that_controllers_make_from_templates_have_an_allowed_storage_class() {
    let site = Site::shared();
    let _meddler = prepare(&site);
    refuses_templates(&site, SHOP, "ReadWriteOnce", "would have storage class \"gold\"");
}

/// Creates a `StatefulSet` and a pod with claims of storage class `gold`, and checks that the claims are refused.
pub fn refuses_templates(site: &Site, namespace: &str, access_mode: &str, message: &str) {
    let template = json!({"accessModes": [access_mode], "storageClassName": "gold",
        "resources": {"requests": {"storage": "1Gi"}}});
    let mut set = pods(namespace, json!({})).swap_remove(3);
    set["metadata"]["name"] = json!("templated");
    set["spec"]["volumeClaimTemplates"] = json!([{"metadata": {"name": "data"}, "spec": template}]);
    let volume = json!({"name": "data", "ephemeral": {"volumeClaimTemplate": {"spec": template}}});
    let mut pod = pods(namespace, json!({"volumes": [volume]})).swap_remove(0);
    pod["metadata"]["name"] = json!("ephemeral");
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [set, pod]});
    site.cluster.run(&["create", "-f", "-"], &list.to_string());
    for name in ["templated", "ephemeral"] {
        wait_for("an event shows the refusal", DEADLINE, || {
            let path = "jsonpath={.items[*].message}";
            let field = format!("--field-selector=involvedObject.name={name}");
            let events = site.cluster.run(&["get", "events", "-n", namespace, &field, "-o", path], "");
            events.contains(message).then_some(())
        });
    }
    assert_eq!(site.cluster.run(&["get", "pvc", "-n", namespace, "-o", "name"], ""), "");
    site.cluster.run(&["delete", "statefulset/templated", "-n", namespace, "--cascade=foreground"], "");
    site.delete("pod", "ephemeral", namespace);
}

#[test]
fn violations_older_than_a_rule_may_stay_but_not_get_worse() {
    let site = Site::shared();
    let meddler = Meddler::new(&site);
    let namespace = site.tenant("shop", "old", 52602, TenantState::Active);
    let label = |label: &str| site.cluster.run(&["label", "namespace", &namespace, label], "");
    label("bursar.dev/class-");
    let mut old = service(&namespace, json!({"type": "LoadBalancer", "externalIPs": ["192.0.2.7"]}));
    old["metadata"]["finalizers"] = json!(["example.org/x"]);
    let mut elsewhere = service(&namespace, json!({"type": "ExternalName", "externalName": "a.example.org"}));
    elsewhere["metadata"]["name"] = json!("elsewhere");
    for old in [old, elsewhere] {
        wait_for("the services that violate the rules are created", DEADLINE, || {
            site.meddler(&["create", "-f", "-"], &old.to_string()).status.success().then_some(())
        });
    }
    label("bursar.dev/class=shop");
    wait_for("the rules apply to the namespace again", DEADLINE, || {
        meddler
            .create(&service(&namespace, json!({"type": "LoadBalancer", "ports": [{"port": 81}]})))
            .is_err_and(|why| why.contains("bursar-rules"))
            .then_some(())
    });
    let patch_of = |name: &str, patch: Value| {
        let patch = patch.to_string();
        let arguments = ["patch", "service", name, "-n", &namespace, "--type=merge", "--dry-run=server", "-p", &patch];
        let patched = site.meddler(&arguments, "");
        if patched.status.success() { Ok(()) } else { Err(said(&patched)) }
    };
    assert_eq!(patch_of("elsewhere", json!({"metadata": {"labels": {"a": "b"}}})), Ok(()));
    let why = patch_of("elsewhere", json!({"spec": {"externalName": "b.example.org"}}))
        .expect_err("the rules refuse the change");
    assert!(why.contains("of type ExternalName"), "{why}");
    let patch = |patch: Value| patch_of("x", patch);
    for passes in [
        json!({"metadata": {"labels": {"a": "b"}}}),
        json!({"metadata": {"finalizers": null}}),
        json!({"spec": {"ports": [{"port": 81}]}}),
        json!({"spec": {"externalIPs": null}}),
        json!({"spec": {"type": "ClusterIP", "externalIPs": null}}),
    ] {
        assert_eq!(patch(passes.clone()), Ok(()), "{passes}");
    }
    for (refused, text) in [
        (json!({"spec": {"externalIPs": ["192.0.2.7", "192.0.2.8"]}}), "remove spec.externalIPs"),
        (json!({"spec": {"type": "ExternalName", "externalName": "a.example.org"}}), "of type ExternalName"),
        (json!({"metadata": {"annotations": {HOSTNAME: "bob.shop.example.org"}}}), "a host of somebody else"),
    ] {
        let why = patch(refused.clone()).expect_err("the rules refuse the change");
        assert!(why.contains(text), "{refused}: {why}");
    }
    site.cluster.run(
        &["patch", "service", "x", "-n", &namespace, "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#],
        "",
    );
    site.cluster.run(&["delete", "service", "x", "elsewhere", "-n", &namespace], "");
}

#[test]
fn rules_that_are_newer_than_the_ledger_only_audit() {
    let site = Site::alone();
    let meddler = Meddler::new(&site);
    let ledger = site.settings.state_dir.join("ledger.db");
    let older = |older: &str| {
        let mut command = std::process::Command::new("sqlite3");
        command.arg(&ledger).arg(format!("UPDATE ledger SET older_than_rules = {older}"));
        assert!(run(command, "").status.success());
        let admin = site.cluster.admin_kubeconfig.to_str().expect("the path is UTF-8");
        site.must(&["init", "--cluster", "test", "--admin-kubeconfig", admin]);
    };
    let balancer = service(TOOL, json!({"type": "LoadBalancer"}));
    let webhook = || {
        let findings: Vec<Value> =
            serde_json::from_str(&out(&site.bursar(&["--json", "doctor"]))).expect("the text is JSON");
        let text = |finding: &Value| finding["text"].as_str().unwrap_or_default().to_owned();
        findings.iter().filter(|finding| !finding["remedy"].is_null()).map(text).collect::<Vec<_>>()
    };
    let named = |findings: &[String]| findings.iter().any(|text| text.contains("class.tool.admission.services"));
    let findings = webhook();
    assert!(meddler.create(&balancer).is_err() && !named(&findings), "{findings:?}");
    older("1");
    wait_for("the older ledger audits", DEADLINE, || meddler.create(&balancer).ok());
    let findings = webhook();
    assert!(named(&findings), "{findings:?}");
    // The daemon's confinement is unchanged, and no change is reported as missing.
    let chosen = site.bursar(&["--json", "doctor"]);
    assert!(!out(&chosen).contains("from an older configuration"), "{}", out(&chosen));
    // The rules stay if the webhook is uninstalled.
    site.uninstall(&[]);
    let findings = webhook();
    assert!(named(&findings), "{findings:?}");
    older("0");
    wait_for("the rules are enforced", DEADLINE, || meddler.create(&balancer).err());
}

#[test]
fn doctor_names_kinds_that_a_role_may_write_but_no_rule_checks() {
    let site = Site::alone();
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "bursar-tenant"},
        "rules": [{"apiGroups": ["example.org"], "resources": ["widgets", "gadgets"], "verbs": ["create"]}],
    });
    let read = ["get", "clusterrole", "bursar-tenant", "-o", "json"];
    let before: Value = serde_json::from_str(&site.cluster.run(&read, "")).expect("the text is JSON");
    let patch = json!([{"op": "add", "path": "/rules/-", "value": role["rules"][0]}]).to_string();
    site.cluster.run(&["patch", "clusterrole", "bursar-tenant", "--type=json", "-p", &patch], "");
    let findings: Vec<Value> =
        serde_json::from_str(&out(&site.bursar(&["--json", "doctor"]))).expect("the text is JSON");
    let patch = json!([{"op": "replace", "path": "/rules", "value": before["rules"]}]).to_string();
    site.cluster.run(&["patch", "clusterrole", "bursar-tenant", "--type=json", "-p", &patch], "");
    let of_kinds = findings.iter().filter(|finding| finding["subject"] == "cluster test, kinds of tenants");
    let texts: Vec<&str> = of_kinds.map(|found| found["text"].as_str().expect("the value is a string")).collect();
    // Only class `shop` lists a field of the widgets.
    for (class, knows) in [("shop", true), ("tool", false)] {
        let is_meant = |text: &&&str| {
            let (classes, _) = text.split_once(" may write ").expect("the text names classes and kinds");
            classes.split([' ', ',']).any(|word| word == class)
        };
        let text = texts.iter().find(is_meant).unwrap_or_else(|| panic!("{class}: {texts:?}"));
        assert!(text.contains("gadgets.example.org") && text.contains("widgets.example.org") != knows, "{text}");
        assert!(!text.contains("deployments") && !text.contains("services,"), "{text}");
    }
}

#[test]
fn doctor_names_absent_classes_and_file_servers_behind_a_service() {
    let site = Site::alone();
    // The control plane has the range 10.96.0.0/16 for Services.
    site.configure(
        r#"[class.nodes]
from = "users"
clusters = ["test"]
namespace = "nodes-{name}"
network = "near"
volumes = [
    { name = "data", kind = "static", nfs = { server = "10.96.0.77", path = "/srv/{name}" } },
    { name = "more", kind = "static", nfs = { server = "192.0.2.77", path = "/srv/{name}" } },
]
[class.nodes.admission]
scheduling = { runtime_classes = ["late"], priority_classes = ["never", "system-node-critical"] }
[network.near]
allow_egress = [{ namespaces = "web" }]
"#,
    );
    let findings: Vec<Value> =
        serde_json::from_str(&out(&site.bursar(&["--json", "doctor"]))).expect("the text is JSON");
    let texts = findings.iter().filter(|finding| finding["subject"] == "class nodes, network");
    let texts: Vec<&str> = texts.map(|found| found["text"].as_str().expect("the value is a string")).collect();
    let expected = "its pods may reach nfs.server 10.96.0.77: 10.96.0.77 belongs to a Service of cluster test";
    assert!(matches!(&texts[..], [one] if one.starts_with(expected)), "{texts:?}");
    let lacks = || {
        let findings: Vec<Value> =
            serde_json::from_str(&out(&site.bursar(&["--json", "doctor"]))).expect("the text is JSON");
        let is_meant = |finding: &&Value| finding["subject"] == "cluster test, scheduling of class nodes";
        let found = findings.iter().filter(is_meant).filter(|finding| finding["remedy"].is_string());
        found.map(|finding| finding["text"].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    let text =
        |what: &str, key: &str| format!("there is no {what}, which {key} lists, so pods that name it are refused");
    let never = text("PriorityClass never", "priority_classes");
    assert_eq!(lacks(), [never.clone(), text("RuntimeClass late", "runtime_classes")]);
    let late = json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "late"}, "handler": "late"});
    site.cluster.run(&["create", "-f", "-"], &late.to_string());
    assert_eq!(lacks(), [never]);
    site.cluster.run(&["delete", "runtimeclass", "late"], "");
}
