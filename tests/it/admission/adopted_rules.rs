//! The rules of a class that adopts namespaces apply in namespaces that its selector matches, and in no other. An
//! administrator without an exemption and the controllers of Kubernetes send attacks and ordinary objects.

#![expect(clippy::needless_pass_by_value, reason = "each call makes its values with json!")]

use std::collections::BTreeSet;

use bursar::admission::existing::{Broken, GRACE, by_adopting};
use bursar::bootstrap::webhook::audit::{hosts_of_adopted, rules_of_adopted};
use bursar::policy::AdoptedAdmission;
use bursar::rules::server::ServerRule;
use bursar::rules::{HostRules, Mode};
use bursar_testkit::ready::{DEADLINE, wait_for};
use serde_json::{Value, json};

use super::judge::kind_of;
use super::sender::route;
use super::server_rules::{
    HOSTNAME, KOPS, Meddler, OLD_STORAGE_CLASS, SERVER_RULES, allows_nothing, annotated, kind, object, pods,
    refuses_templates,
};
use super::site::{Site, out, said};
use crate::world::extend;

const LAB: &str = "lab-ann";
/// A namespace without the label that the class selects.
const FOREIGN: &str = "lab-foreign";
const LABEL: &str = "test.example.org/profile=yes";
const OWN: &str = "lab-ann.lab.example.org";

fn claim(modes: &[&str], fields: Value) -> Value {
    let mut spec = json!({"accessModes": modes, "resources": {"requests": {"storage": "1Gi"}}});
    extend(&mut spec, &fields);
    object("v1", "PersistentVolumeClaim", LAB, spec)
}

fn shared(fields: Value) -> Value {
    claim(&["ReadWriteMany"], fields)
}

fn nameless(mut object: Value) -> Value {
    object["metadata"] = json!({"generateName": "data-", "namespace": LAB});
    object
}

fn volume(source: Value) -> Value {
    let mut volume = source;
    volume["name"] = json!("data");
    json!({"volumes": [volume]})
}

fn nfs(server: &str, path: &str) -> Value {
    volume(json!({"nfs": {"server": server, "path": path}}))
}

fn host_path(path: &str) -> Value {
    volume(json!({"hostPath": {"path": path}}))
}

fn token(audience: &str) -> Value {
    volume(json!({"projected": {"sources": [{"serviceAccountToken": {"audience": audience, "path": "token"}}]}}))
}

fn ingress(host: Option<&str>, more: Value) -> Value {
    let backend = json!({"service": {"name": "x", "port": {"number": 80}}});
    let mut rule = json!({"http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]}});
    if let Some(host) = host {
        rule["host"] = json!(host);
    }
    let mut spec = json!({"ingressClassName": "nginx", "rules": [rule]});
    extend(&mut spec, &more);
    object("networking.k8s.io/v1", "Ingress", LAB, spec)
}

fn http_route(hosts: &[&str]) -> Value {
    object("gateway.networking.k8s.io/v1", "HTTPRoute", LAB, json!({"hostnames": hosts}))
}

fn tls_route(hosts: &[&str]) -> Value {
    object("gateway.networking.k8s.io/v1", "TLSRoute", LAB, json!({"hostnames": hosts}))
}

fn service(spec: Value) -> Value {
    let mut whole = json!({"ports": [{"port": 80}]});
    extend(&mut whole, &spec);
    object("v1", "Service", LAB, whole)
}

fn widget(host: &str) -> Value {
    object("example.org/v1", "Widget", LAB, json!({"hosts": [host]}))
}

fn gateway(spec: Value) -> Value {
    object("gateway.networking.k8s.io/v1", "Gateway", LAB, spec)
}

const OUTSIDE: &str = "would mount volume \"data\", which is from outside the namespace";

/// Objects that must be refused, each with a part of the message.
fn attacks() -> Vec<(Value, &'static str)> {
    const MANY: &str = "is ReadWriteMany and would have storage class \"gold\"";
    const NONE: &str = "is ReadWriteMany and would have storage class \"\"";
    let gold = json!({"storageClassName": "gold"});
    let from_another =
        json!({"storageClassName": "gold", "dataSource": {"kind": "PersistentVolumeClaim", "name": "y"}});
    let mut attacks = vec![
        // Claims that applications really write, and variations.
        (shared(gold.clone()), MANY),
        (
            shared(gold.clone()),
            "set spec.storageClassName to \"nfs-csi\", or ask an administrator for admission.claims",
        ),
        (shared(json!({})), NONE),
        (shared(json!({"storageClassName": ""})), NONE),
        (shared(json!({"storageClassName": "", "volumeName": "pv"})), NONE),
        (shared(json!({"storageClassName": "gold", "volumeName": "pv"})), MANY),
        (claim(&["ReadWriteOnce", "ReadWriteMany"], gold.clone()), MANY),
        (nameless(shared(gold.clone())), MANY),
        (shared(from_another), MANY),
        (annotated(shared(json!({"storageClassName": "nfs-csi"})), OLD_STORAGE_CLASS, "gold"), MANY),
        (claim(&["ReadWriteOnce"], json!({"storageClassName": "bronze"})), "storage class \"bronze\""),
        (
            claim(&["ReadWriteOnce"], json!({"storageClassName": "gold", "volumeAttributesClassName": "bronze"})),
            "volume attributes class \"bronze\"",
        ),
        (ingress(Some("bob.lab.example.org"), json!({})), "has a rule with a host that is not yours"),
        (ingress(Some("lab-ann.lab.example.org.evil.org"), json!({})), "has a rule with a host that is not yours"),
        (
            ingress(Some("a.b.lab-ann.lab.example.org"), json!({})),
            "use lab-ann.lab.example.org or *.lab-ann.lab.example.org",
        ),
        (ingress(None, json!({})), "has a rule with a host that is not yours, or without one"),
        (
            ingress(Some(OWN), json!({"defaultBackend": {"service": {"name": "x", "port": {"number": 80}}}})),
            "has spec.defaultBackend, which is for every host",
        ),
        (ingress(Some(OWN), json!({"tls": [{"hosts": [OWN, "bob.lab.example.org"]}]})), "has a TLS entry with a host"),
        (ingress(Some(OWN), json!({"tls": [{"secretName": "x"}]})), "has a TLS entry with a host"),
        (ingress(Some(OWN), json!({"ingressClassName": "traefik"})), "ingress class \"traefik\""),
        (
            annotated(ingress(Some(OWN), json!({})), "nginx.ingress.kubernetes.io/server-snippet", ""),
            "has annotation nginx.ingress.kubernetes.io/server-snippet",
        ),
        (annotated(ingress(Some(OWN), json!({})), "cert-manager.iox/a", "b"), "has annotation cert-manager.iox/a"),
        (http_route(&["bob.lab.example.org"]), "has a hostname that is not yours, or none"),
        (http_route(&[OWN, "*"]), "has a hostname that is not yours, or none"),
        (http_route(&[]), "has a hostname that is not yours, or none"),
        (annotated(http_route(&[OWN]), "example.org/x", "y"), "has annotation example.org/x"),
        (tls_route(&["bob.lab.example.org"]), "has a hostname that is not yours, or none"),
        (tls_route(&[]), "has a hostname that is not yours, or none"),
        (widget("bob.lab.example.org"), "spec.hosts[]"),
        (annotated(service(json!({})), HOSTNAME, "bob.lab.example.org"), "a host of somebody else"),
        (annotated(service(json!({})), KOPS, "bob.lab.example.org"), "a host of somebody else"),
        (gateway(json!({"addresses": [{"value": "192.0.2.7"}]})), "remove spec.addresses"),
        (
            gateway(json!({"infrastructure": {"annotations": {HOSTNAME: "bob.lab.example.org"}}})),
            "a host of somebody else",
        ),
        (service(json!({"type": "NodePort"})), "would be of type NodePort"),
        (service(json!({"externalIPs": ["192.0.2.7"]})), "remove spec.externalIPs"),
    ];
    let mut of_pods = |fields: Value, text: &'static str| {
        attacks.extend(pods(LAB, fields).into_iter().map(|object| (object, text)));
    };
    for outside in [
        nfs("nfs.example.org", "/srv/lab-bob"),
        nfs("nfs.example.org", "/srv/lab-annx"),
        nfs("nfs.example.org", "/srv/lab-ann/../lab-bob"),
        nfs("nfs.example.org", "/srv//lab-ann"),
        nfs("nfs.example.org", "/srv/public/x"),
        nfs("nfs.example.org", "/"),
        nfs("other.example.org", "/srv/lab-ann"),
        host_path("/etc"),
        host_path("/scratch/lab-ann/x"),
        host_path("/scratch/lab-bob"),
        volume(json!({"csi": {"driver": "nfs.example.org"}})),
        volume(json!({"iscsi": {"targetPortal": "192.0.2.7:3260", "iqn": "iqn.2001-04.com.example:x", "lun": 0}})),
        token("vault"),
    ] {
        of_pods(outside, OUTSIDE);
    }
    of_pods(json!({"nodeName": "node-1"}), "would run on node node-1, past the scheduler");
    of_pods(json!({"priorityClassName": "urgent"}), "would have priorityClassName urgent");
    of_pods(json!({"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}}), "would set sysctl");
    attacks
}

/// Objects that must be allowed.
fn ordinary() -> Vec<Value> {
    let mut ordinary = vec![
        shared(json!({"storageClassName": "nfs-csi"})),
        nameless(shared(json!({"storageClassName": "nfs-csi"}))),
        claim(&["ReadWriteOnce"], json!({"storageClassName": "gold"})),
        claim(&["ReadOnlyMany"], json!({"storageClassName": "gold"})),
        ingress(Some(OWN), json!({"tls": [{"hosts": [OWN, "a.lab-ann.lab.example.org"]}]})),
        ingress(Some("*.lab-ann.lab.example.org"), json!({})),
        annotated(ingress(Some(OWN), json!({})), "cert-manager.io/issuer", "site"),
        annotated(ingress(Some(OWN), json!({})), "kubectl.kubernetes.io/last-applied-configuration", "{}"),
        http_route(&[OWN]),
        tls_route(&[OWN]),
        widget(OWN),
        service(json!({})),
        annotated(service(json!({})), HOSTNAME, OWN),
        annotated(service(json!({})), KOPS, OWN),
        gateway(json!({"infrastructure": {"annotations": {HOSTNAME: OWN}}})),
    ];
    let mut of_pods = |fields: Value| ordinary.extend(pods(LAB, fields));
    let ephemeral = json!({"volumeClaimTemplate": {"spec": {
        "accessModes": ["ReadWriteOnce"], "storageClassName": "gold", "resources": {"requests": {"storage": "1Gi"}},
    }}});
    for fields in [
        json!({}),
        volume(json!({"emptyDir": {}})),
        volume(json!({"configMap": {"name": "x"}})),
        volume(json!({"persistentVolumeClaim": {"claimName": "x"}})),
        volume(json!({"ephemeral": ephemeral})),
        nfs("nfs.example.org", "/srv/lab-ann"),
        nfs("nfs.example.org", "/srv/lab-ann/models/"),
        nfs("nfs.example.org", "/srv/public"),
        host_path("/scratch/lab-ann"),
        host_path("/data"),
        host_path("/data/models"),
        volume(json!({"csi": {"driver": "secrets.example.org"}})),
        token("istio-ca"),
        token(""),
        json!({"priorityClassName": "batch"}),
        json!({"securityContext": {"sysctls": [{"name": "net.core.somaxconn", "value": "1024"}]}}),
    ] {
        of_pods(fields);
    }
    ordinary
}

/// Creates the namespaces and everything that the objects refer to, so that only a rule can refuse them.
fn prepare(site: &Site) -> Meddler {
    let meddler = super::server_rules::prepare(site);
    let namespace = |name: &str| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    let [http, tls] = ["HTTPRoute", "TLSRoute"].map(route);
    let items = [namespace(LAB), namespace(FOREIGN), http, tls, kind("example.org", "Widget")];
    site.cluster.run(&["apply", "-f", "-"], &json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string());
    site.cluster.run(&["label", "namespace", LAB, LABEL, "--overwrite"], "");
    site.cluster.run(&["wait", "--for=condition=Established", "crd", "--all", "--timeout=240s"], "");
    wait_for("a plain pod passes, and a path of the node is refused", DEADLINE, || {
        let [plain, refused] = [json!({}), host_path("/etc")].map(|fields| pods(LAB, fields).swap_remove(0));
        (meddler.create(&plain).is_ok() && meddler.create(&refused).is_err()).then_some(())
    });
    meddler
}

/// Judges an object as `bursar webhook audit` does.
fn audited(site: &Site, object: &Value) -> Vec<Broken> {
    let adopts = site.settings.policy.classes["profile"].adopts().expect("the class adopts namespaces");
    let own_hosts = hosts_of_adopted(&adopts.admission, LAB);
    by_adopting(&rules_of_adopted(&adopts.admission, LAB, &own_hosts), kind_of(object), object)
}

/// Returns the rules that check one of the objects: those that would refuse it if the class allowed nothing.
fn checks(site: &Site, objects: &[Value]) -> BTreeSet<&'static str> {
    let adopts = site.settings.policy.classes["profile"].adopts().expect("the class adopts namespaces");
    let nothing = AdoptedAdmission {
        hosts: HostRules { mode: Mode::Enforce, allow: Vec::new(), annotations: Vec::new() },
        volumes: Mode::Enforce,
        allowed_volumes: Vec::new(),
        read_write_many: ServerRule { mode: Some(Mode::Enforce), ..ServerRule::default() },
        server: allows_nothing(&adopts.admission.server),
    };
    let rules = rules_of_adopted(&nothing, LAB, &[]);
    objects.iter().flat_map(|object| by_adopting(&rules, kind_of(object), object)).map(|broken| broken.rule).collect()
}

#[test]
fn every_rule_of_adopted_namespaces_has_an_attack_and_an_ordinary_object() {
    let site = Site::shared();
    let mut rules: BTreeSet<&str> = ["hosts", "annotations", "volumes", "claims.read_write_many"].into();
    // Policy `bursar-grace` is for tenants only.
    rules.extend(SERVER_RULES.into_iter().filter(|rule| *rule != GRACE));
    let attacks: Vec<Value> = attacks().into_iter().map(|(object, _)| object).collect();
    assert_eq!(checks(&site, &attacks), rules, "attacks");
    assert_eq!(checks(&site, &ordinary()), rules, "ordinary objects");
}

#[test]
fn attacks_in_adopted_namespaces_are_refused_and_the_remedy_is_named() {
    let site = Site::shared();
    let meddler = prepare(&site);
    let attacks = attacks();
    assert!(attacks.len() > 150, "{}", attacks.len());
    let wrong = attacks.iter().filter_map(|(object, text)| {
        let answer = meddler.create(object).err().unwrap_or_else(|| "(it was allowed)".to_owned());
        let is_right = answer.contains("'bursar-adopted-profile-enforce'") && answer.contains(text);
        (!is_right).then(|| format!("{object}\n  expected {text:?}, got: {answer}"))
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // The scheduler gives running pods a node, so the audit judges it in templates only.
    let is_judged = |object: &Value| object["kind"] != "Pod" || object["spec"]["nodeName"].is_null();
    let missed = attacks.iter().filter(|(object, _)| is_judged(object) && audited(&site, object).is_empty());
    let missed: Vec<String> = missed.map(|(object, _)| object.to_string()).collect();
    assert!(missed.is_empty(), "the audit does not find:\n{}", missed.join("\n"));
}

#[test]
fn ordinary_objects_are_allowed_in_adopted_namespaces_and_everything_in_others() {
    let site = Site::shared();
    let meddler = prepare(&site);
    let found: Vec<Broken> = ordinary().iter().flat_map(|object| audited(&site, object)).collect();
    assert!(found.is_empty(), "the audit finds {found:#?}");
    let elsewhere = attacks().into_iter().map(|(mut object, _)| {
        object["metadata"]["namespace"] = json!(FOREIGN);
        object
    });
    let wrong = ordinary().into_iter().chain(elsewhere).filter_map(|object| {
        let why = meddler.create(&object).err()?;
        Some(format!("{object}\n  {why}"))
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn claims_that_controllers_make_from_templates_are_judged_too() {
    let site = Site::shared();
    prepare(&site);
    refuses_templates(&site, LAB, "ReadWriteMany", "is ReadWriteMany and would have storage class \"gold\"");
}

#[test]
fn violations_older_than_the_label_may_stay_but_not_get_worse() {
    let site = Site::shared();
    prepare(&site);
    let place = "lab-old";
    let label = |label: &str| site.cluster.run(&["label", "namespace", place, label], "");
    site.cluster.run(&["create", "namespace", place], "");
    let there = |mut object: Value, name: &str| {
        object["metadata"]["namespace"] = json!(place);
        object["metadata"]["name"] = json!(name);
        object["metadata"]["finalizers"] = json!(["example.org/x"]);
        object
    };
    let tls = json!({"tls": [{"hosts": ["bob.lab.example.org"]}]});
    let items = [
        there(annotated(ingress(Some("bob.lab.example.org"), tls), "example.org/x", "y"), "old"),
        there(pods(LAB, host_path("/etc")).swap_remove(1), "old"),
        there(shared(json!({"storageClassName": "gold"})), "old"),
        there(http_route(&["bob.lab.example.org"]), "old"),
    ];
    let kinds = ["ingress", "deployment", "pvc", "httproute"];
    site.cluster.run(&["create", "-f", "-"], &json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string());
    let patch = |kind: &str, patch: Value| {
        let patch = patch.to_string();
        let arguments = ["patch", kind, "old", "-n", place, "--type=merge", "--dry-run=server", "-p", &patch];
        let patched = site.meddler(&arguments, "");
        if patched.status.success() { Ok(()) } else { Err(said(&patched)) }
    };
    let worse = json!({"spec": {"rules": [{"host": "eve.lab.example.org"}]}});
    let is_judged = || patch("ingress", worse.clone()).is_err();
    assert!(!is_judged());
    for _ in 0..2 {
        label(LABEL);
        wait_for("the rules apply to the namespace", DEADLINE, || is_judged().then_some(()));
        for kind in kinds {
            for passes in [json!({"metadata": {"labels": {"a": "b"}}}), json!({"metadata": {"finalizers": null}})] {
                assert_eq!(patch(kind, passes.clone()), Ok(()), "{kind} {passes}");
            }
        }
        assert_eq!(patch("deployment", json!({"spec": {"replicas": 0}})), Ok(()));
        let more = json!({"name": "more", "hostPath": {"path": "/var"}});
        let old = json!({"name": "data", "hostPath": {"path": "/etc"}});
        for (kind, refused, text) in [
            ("ingress", worse.clone(), "has a rule with a host that is not yours"),
            ("ingress", json!({"spec": {"tls": [{"hosts": ["eve.lab.example.org"]}]}}), "has a TLS entry with a host"),
            ("ingress", json!({"metadata": {"annotations": {"example.org/x": "z"}}}), "has annotation example.org/x"),
            ("ingress", json!({"metadata": {"annotations": {"example.org/y": ""}}}), "has annotation example.org/y"),
            (
                "deployment",
                json!({"spec": {"template": {"spec": {"volumes": [old, more]}}}}),
                "would mount volume \"more\"",
            ),
            ("httproute", json!({"spec": {"hostnames": []}}), "has a hostname that is not yours, or none"),
            ("httproute", json!({"spec": {"hostnames": ["bob.lab.example.org", "*"]}}), "has a hostname"),
        ] {
            let why = patch(kind, refused.clone()).expect_err("the rules refuse the change");
            assert!(why.contains(text), "{kind} {refused}: {why}");
        }
        // The rules end when the label is removed.
        label("test.example.org/profile-");
        wait_for("the rules no longer apply", DEADLINE, || (!is_judged()).then_some(()));
    }
    for kind in kinds {
        site.cluster
            .run(&["patch", kind, "old", "-n", place, "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#], "");
    }
    site.cluster.run(&["delete", "namespace", place, "--wait=false"], "");
}

#[test]
fn the_audit_finds_violations_in_adopted_namespaces() {
    let site = Site::shared();
    prepare(&site);
    let place = "lab-audited";
    site.cluster.run(&["create", "namespace", place], "");
    let mut open = service(json!({"type": "NodePort"}));
    open["metadata"] = json!({"name": "open", "namespace": place});
    site.cluster.run(&["create", "-f", "-"], &open.to_string());
    site.cluster.run(&["label", "namespace", place, LABEL], "");
    let admin = site.cluster.admin_kubeconfig.to_str().expect("the path is UTF-8");
    let audited = site.bursar(&["--json", "webhook", "audit", "--cluster", "test", "--admin-kubeconfig", admin]);
    let audited: Value = serde_json::from_str(&out(&audited)).unwrap_or_else(|_| panic!("{}", said(&audited)));
    let found = audited["found"].as_array().expect("the findings are a list");
    let found: Vec<&Value> = found.iter().filter(|found| found["namespace"] == place).collect();
    let [one] = &*found else { panic!("{found:?}") };
    assert_eq!(
        [&one["class"], &one["object"], &one["rule"], &one["mode"]],
        ["profile", "services/open", "services", "enforce"]
    );
    site.cluster.run(&["delete", "namespace", place, "--wait=false"], "");
}

/// Objects with many items that all pass: an update that keeps them neither takes long nor fails.
#[test]
fn large_objects_can_be_changed_and_removed() {
    let site = Site::shared();
    prepare(&site);
    // 600 different lists of nine hosts: each list encodes a number in binary, with one host for 0 and one for 1.
    let spelled =
        |number: usize| (0..9).map(move |bit| if number >> bit & 1 == 0 { OWN } else { "a.lab-ann.lab.example.org" });
    let entry = |number: usize| json!({"hosts": spelled(number).chain([OWN; 3].into_iter().take(number >> 9)).collect::<Vec<_>>()});
    let mut large = ingress(Some(OWN), json!({"tls": (0..600).map(entry).collect::<Vec<_>>()}));
    large["metadata"]["name"] = json!("large");
    large["metadata"]["finalizers"] = json!(["example.org/x"]);
    let mut pod = pods(LAB, json!({})).swap_remove(0);
    pod["metadata"]["name"] = json!("large");
    pod["spec"]["volumes"] = (0..12_000).map(|number| json!({"name": format!("v{number:05}")})).collect();
    for object in [&large, &pod] {
        let created = site.meddler(&["create", "-f", "-"], &object.to_string());
        assert!(created.status.success(), "{}", said(&created));
    }
    let patch = |kind: &str, patch: Value| {
        let patched = site.meddler(&["patch", kind, "large", "-n", LAB, "--type=merge", "-p", &patch.to_string()], "");
        assert!(patched.status.success(), "{kind}: {}", said(&patched));
    };
    let began = std::time::Instant::now();
    patch("pod", json!({"metadata": {"labels": {"a": "b"}}}));
    // A comparison of each volume with every other one would take half a minute.
    assert!(began.elapsed() < std::time::Duration::from_secs(10), "{:?}", began.elapsed());
    patch("ingress", json!({"metadata": {"labels": {"a": "b"}}}));
    patch("ingress", json!({"metadata": {"finalizers": null}}));
    site.delete("ingress", "large", LAB);
    site.delete("pod", "large", LAB);
}

#[test]
fn the_daemon_cannot_change_the_rules_of_adopted_namespaces() {
    let site = Site::shared();
    for kind in ["validatingadmissionpolicy", "validatingadmissionpolicybinding"] {
        for arguments in [
            &["delete", kind, "bursar-adopted-profile-enforce", "--dry-run=server"][..],
            &["label", kind, "bursar-adopted-profile-enforce", "a=b", "--dry-run=server"],
        ] {
            let mut command = site.cluster.kubectl_as(site.daemon_kubeconfig());
            command.args(arguments);
            let refused = bursar_testkit::process::run(command, "");
            assert!(said(&refused).contains("forbidden"), "{arguments:?}: {}", said(&refused));
        }
    }
}
