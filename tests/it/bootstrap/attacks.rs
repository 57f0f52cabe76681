//! Attacks by somebody who stole the daemon's credential from the control host. The table of attacks is tried without
//! an approver and with one, each time as `bursar:daemon` and under another name in the daemon's group. Attacks that
//! cannot be refused are listed here and, in the same words, in docs/threat-model.md.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bursar::bootstrap::approver::{self, ApproverLocation, ApproverRequest};
use bursar::bootstrap::{self, Renewal};
use bursar::contract::{Identity, SELFTEST, Sealer, TenantState, annotate};
use bursar::execute::keypair::{Names, NewKey};
use bursar::execute::request::{ApiServer, Ask};
use bursar::execute::signing::{SigningError, Unsigned, sign};
use bursar::identity::{AccountId, DirectoryId, NamespaceName};
use bursar::policy::daemon_group;
use bursar_testkit::binaries::program;
use bursar_testkit::ports::free_port;
use bursar_testkit::process::{Process, run};
use bursar_testkit::ready::{DEADLINE, wait_for};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::site::{LEDGER, Site, archive_binding, binding, empty, name, namespace, ours, said};
use crate::world::{extend, runtime};

const THREATS: &str = include_str!("../../../docs/threat-model.md");
const ALICE: &str = "bursar:user:alice#7";

/// Namespaces that are not a tenant's. In each of them, others have one object of each kind that a thief could want.
const PLACES: [&str; 4] = ["kube-system", "foreign", "adopted", approver::NAMESPACE];
const MERGE: &str = "merge";
const UNLABEL: &str = r#"[{"op": "remove", "path": "/metadata/labels/of-the-site"}]"#;

/// An attack: its description, and the requests that it consists of.
struct Row {
    attack: &'static str,
    /// For each request, the arguments of kubectl and its standard input.
    sends: Vec<(Vec<String>, String)>,
}

fn row(attack: &'static str, sends: Vec<(Vec<String>, String)>) -> Row {
    Row { attack, sends }
}

fn apply(object: &Value) -> (Vec<String>, String) {
    let arguments = ["apply", "--server-side", "--force-conflicts", "--field-manager=bursar", "-f", "-"];
    (arguments.map(str::to_owned).to_vec(), object.to_string())
}

fn tried(object: &Value) -> (Vec<String>, String) {
    let (mut arguments, input) = apply(object);
    arguments.push("--dry-run=server".to_owned());
    (arguments, input)
}

fn create(object: &Value) -> (Vec<String>, String) {
    (["create", "-f", "-"].map(str::to_owned).to_vec(), object.to_string())
}

fn kubectl(arguments: &[&str]) -> (Vec<String>, String) {
    (arguments.iter().map(|argument| (*argument).to_owned()).collect(), String::new())
}

/// A merge patch, which kubectl cannot send to a subresource without reading it first.
fn merge(path: &str, change: &Value) -> (Vec<String>, String) {
    (vec![MERGE.to_owned(), path.to_owned()], change.to_string())
}

/// An apply with a field manager that is not the daemon's.
fn by_another(object: &Value) -> (Vec<String>, String) {
    let (arguments, input) = apply(object);
    (arguments.into_iter().map(|one| one.replace("=bursar", "=another")).collect(), input)
}

/// The object with its name as the prefix of a generated name.
fn unnamed(mut object: Value) -> Value {
    object["metadata"]["generateName"] = object["metadata"]["name"].take();
    object["metadata"].as_object_mut().expect("the value is an object").remove("name");
    object
}

fn unlabelled(mut object: Value) -> Value {
    object["metadata"]["labels"] = json!({});
    object
}

/// The object with an owner that does not exist, so that Kubernetes' garbage collector deletes it.
fn owned(mut object: Value) -> Value {
    let owner = json!({"apiVersion": "v1", "kind": "Namespace", "name": "none", "uid": "none"});
    object["metadata"]["ownerReferences"] = json!([owner]);
    object
}

/// The object with a finalizer that nobody removes, so that it stays after its deletion.
fn finalized(mut object: Value) -> Value {
    object["metadata"]["finalizers"] = json!(["example.org/x"]);
    object
}

fn mark(generation: &str) -> Value {
    ours("v1", "ConfigMap", "bursar-mark", Some("bursar"), &json!({"data": {"generation": generation}}))
}

fn patched(namespace: &str, binding: &str, patch: &Value) -> (Vec<String>, String) {
    kubectl(&["patch", "rolebinding", binding, "-n", namespace, "--type=merge", "-p", &patch.to_string()])
}

/// The patch by which the daemon takes all subjects out of a binding whose label somebody removed.
fn emptied() -> Value {
    json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": "bursar"}}, "subjects": null})
}

/// Returns a request for a client certificate with this subject.
fn request(name: &str, subject: (&str, &[&str]), spec: &Value) -> Value {
    let (common_name, organizations) = subject;
    let key = rcgen::KeyPair::generate().expect("a key can be generated");
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    for organization in organizations {
        params.distinguished_name.push(rcgen::DnType::OrganizationName, *organization);
    }
    params.distinguished_name.push(rcgen::DnType::CommonName, common_name);
    let pem = params.serialize_request(&key).and_then(|request| request.pem()).expect("the request can be signed");
    let mut fields = json!({
        "request": BASE64.encode(pem), "usages": ["client auth", "digital signature"],
        "signerName": "kubernetes.io/kube-apiserver-client", "expirationSeconds": 3600,
    });
    for (field, value) in spec.as_object().into_iter().flatten() {
        fields[field] = value.clone();
    }
    if fields["expirationSeconds"].is_null() {
        fields.as_object_mut().expect("the fields are an object").remove("expirationSeconds");
    }
    ours("certificates.k8s.io/v1", "CertificateSigningRequest", name, None, &json!({"spec": fields}))
}

fn der(tag: u8, contents: &[&[u8]]) -> Vec<u8> {
    let contents = contents.concat();
    let length = match u16::try_from(contents.len()).expect("a request is short").to_be_bytes() {
        [0, low @ 0..0x80] => vec![low],
        [0, low] => vec![0x81, low],
        [high, low] => vec![0x82, high, low],
    };
    [vec![tag], length, contents].concat()
}

/// Returns a request for a valid subject of tool foo, and for one more group after an empty set of attributes.
/// Kubernetes' signer ignores the empty set and reads the group.
fn request_with_hidden_group(name: &str, group: &str) -> Value {
    use rcgen::{PublicKeyData as _, SigningKey as _};
    let attribute = |number: u8, value: &str| {
        let text = der(0x0c, &[value.as_bytes()]);
        der(0x31, &[&der(0x30, &[&[6, 3, 0x55, 4, number], &text])])
    };
    let (kind, generation) = (attribute(10, "bursar:tools"), attribute(10, "bursar:tool:foo#1042"));
    let (id, user, hidden) = (attribute(5, "id-foo"), attribute(3, "tool:foo"), attribute(10, group));
    let subject = der(0x30, &[&kind, &generation, &id, &user, &der(0x31, &[]), &hidden]);
    let key = rcgen::KeyPair::generate().expect("a key can be generated");
    let info = der(0x30, &[&[2, 1, 0], &subject, &key.subject_public_key_info(), &[0xa0, 0]]);
    let signature = der(3, &[&[0], &key.sign(&info).expect("the key can sign")]);
    let ecdsa_with_sha256 = [0x30_u8, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];
    let signed = BASE64.encode(der(0x30, &[&info, &ecdsa_with_sha256, &signature]));
    let pem = format!("-----BEGIN CERTIFICATE REQUEST-----\n{signed}\n-----END CERTIFICATE REQUEST-----\n");
    request(name, ("tool:foo", &[]), &json!({"request": BASE64.encode(pem)}))
}

fn level(name: &str, more: &Value) -> Value {
    let mut object = namespace(name, &json!({"bursar.dev/class": "tool"}), "active");
    let labels = object["metadata"]["labels"].as_object_mut().expect("the value is an object");
    labels.remove("pod-security.kubernetes.io/enforce");
    labels.extend(more.as_object().cloned().expect("the value is an object"));
    object
}

fn webhook_deployment(change: impl Fn(&mut Value)) -> Value {
    let mut objects = bursar::bootstrap::webhook::fixed("registry.example.org/w");
    let mut deployment =
        objects.drain(..).find(|object| object["kind"] == "Deployment").expect("the manifest has this object");
    change(&mut deployment["spec"]["template"]["spec"]);
    deployment
}

fn volume(rest: &Value) -> Value {
    let mut spec = json!({
        "accessModes": ["ReadWriteMany"], "capacity": {"storage": "1Gi"}, "storageClassName": "",
        "nfs": {"server": "nfs.example.org", "path": "/srv"}, "claimRef": {"namespace": "tool-foo", "name": "home"},
    });
    for (field, value) in rest.as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    let spec: serde_json::Map<String, Value> = spec
        .as_object()
        .expect("the value is an object")
        .iter()
        .filter(|(_, value)| !value.is_null())
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect();
    ours("v1", "PersistentVolume", "bursar-stolen", None, &json!({"spec": spec}))
}

/// One object of each kind that the daemon may write, stop or delete in tenants' namespaces.
fn of_others() -> Value {
    let spec = json!({"containers": [{"name": "c", "image": "example.org/i"}]});
    let template = json!({"metadata": {"labels": {"app": "w"}}, "spec": spec});
    let workload = json!({"selector": {"matchLabels": {"app": "w"}}, "template": template});
    let of = |api_version: &str, kind: &str, field: &str, content: Value| json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "theirs"}, field: content});
    let items = [
        of("v1", "Pod", "spec", spec),
        of("v1", "ConfigMap", "data", json!({"a": "b"})),
        of("v1", "ResourceQuota", "spec", json!({"hard": {"pods": "100"}})),
        of("apps/v1", "Deployment", "spec", workload.clone()),
        of("apps/v1", "DaemonSet", "spec", workload),
    ];
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}

/// Returns all attacks except approvals, which take two steps.
#[expect(clippy::too_many_lines, reason = "a table, one row for each attack")]
fn rows() -> Vec<Row> {
    let hook = |change: &dyn Fn(&mut Value)| {
        let mut hook = json!({
            "name": "approvals.bursar.dev", "clientConfig": {"url": "https://127.0.0.1:1/validate"}, "sideEffects": "None",
            "admissionReviewVersions": ["v1"], "failurePolicy": "Fail",
            "rules": [{"apiGroups": ["certificates.k8s.io"], "apiVersions": ["*"], "operations": ["UPDATE"],
                "resources": ["certificatesigningrequests/approval"], "scope": "Cluster"}],
        });
        change(&mut hook);
        json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "bursar-approvals"}, "webhooks": [hook]})
    };
    let mut secret =
        ours("v1", "Secret", "pull", Some("tool-foo"), &json!({"type": "kubernetes.io/service-account-token"}));
    secret["metadata"]["annotations"] = json!({"kubernetes.io/service-account.name": "default"});
    let mut service = bursar::bootstrap::webhook::fixed("w")
        .into_iter()
        .find(|object| object["kind"] == "Service")
        .expect("the manifest has this object");
    service["spec"]["externalIPs"] = json!(["10.0.0.1"]);
    let pod = |place: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": place},
            "spec": {"containers": [{"name": "c", "image": "x"}]}})
    };
    let eviction =
        json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p", "namespace": "tool-foo"}});
    let with = |place: &str, metadata: Value| {
        let mut object = namespace(place, &json!({"bursar.dev/class": "tool"}), "active");
        for (field, values) in metadata.as_object().expect("the metadata is an object") {
            match (&mut object["metadata"][field], values) {
                (Value::Object(fields), Value::Object(values)) => fields.extend(values.clone()),
                (field, values) => *field = values.clone(),
            }
        }
        apply(&object)
    };
    let generated = unnamed(namespace("evil-", &json!({"bursar.dev/class": "tool"}), "active"));
    let mut unending = namespace("tool-evil", &json!({"bursar.dev/class": "tool"}), "active");
    unending["spec"] = json!({"finalizers": ["kubernetes", "example.org/x"]});
    let admitted = json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": "tool-foo", "labels": {"resource.kubernetes.io/admin-access": "true"}}});
    let many = |change: Value| {
        let mut deployment = webhook_deployment(|_| ());
        extend(&mut deployment["spec"], &change);
        apply(&deployment)
    };
    let mut immutable = mark("42");
    immutable["immutable"] = json!(true);
    let mut both = binding(Some("adopted"), "edit", "Group", ALICE);
    both["subjects"]
        .as_array_mut()
        .expect("the subjects are a list")
        .push(json!({"kind": "ServiceAccount", "name": "default", "namespace": "adopted"}));
    vec![
        row(
            "creates a namespace without the label of a class, or with a name that no class gives",
            vec![
                apply(&namespace("tool-evil", &json!({}), "active")),
                apply(&namespace("tool-evil", &json!({"bursar.dev/adopt": "yes"}), "active")),
                apply(&namespace("operators", &json!({"bursar.dev/class": "tool"}), "active")),
                create(&generated),
            ],
        ),
        row(
            "gives a tenant's namespace labels, annotations, owners or finalizers that other programs obey",
            vec![
                with("tool-evil", json!({"labels": {"resource.kubernetes.io/admin-access": "true"}})),
                with("tool-foo", json!({"labels": {"resource.kubernetes.io/admin-access": "true"}})),
                kubectl(&["label", "namespace", "tool-foo", "of-the-site=other", "--overwrite"]),
                kubectl(&["label", "namespace", "tool-foo", "of-the-site-"]),
                with("tool-foo", json!({"annotations": {"scheduler.alpha.kubernetes.io/node-selector": "a=b"}})),
                kubectl(&["annotate", "namespace", "tool-foo", "example.org/of-the-site-"]),
                with("tool-foo", json!({"finalizers": ["example.org/x"]})),
                create(&unending),
                merge("/api/v1/namespaces/tool-foo/finalize", &json!({"spec": {"finalizers": []}})),
                merge("/api/v1/namespaces/tool-foo/status", &json!({"status": {"phase": "Terminating"}})),
                by_another(&admitted),
                kubectl(&["patch", "namespace", "tool-foo", "--type=json", "-p", UNLABEL]),
                // The garbage collector would delete the namespace, because its owner does not exist.
                with(
                    "tool-foo",
                    json!({"ownerReferences": [
                        {"apiVersion": "v1", "kind": "Namespace", "name": "none", "uid": "none", "blockOwnerDeletion": true},
                    ]}),
                ),
            ],
        ),
        row("gives the pods of an adopted namespace the roles of its owners", vec![apply(&both)]),
        row(
            "binds a role that the class of a namespace does not have",
            ["adopted", "tool-foo"]
                .into_iter()
                .flat_map(|place| {
                    let unnamed = unnamed(binding(Some(place), "bursar-tenant", "Group", "system:authenticated"));
                    ["admin", "cluster-admin", "bursar-daemon", "bursar-impersonate-admin"]
                        .map(|role| apply(&binding(Some(place), role, "Group", ALICE)))
                        .into_iter()
                        .chain([create(&unnamed), apply(&archive_binding(place, "Group", &daemon_group(LEDGER)))])
                })
                .chain([
                    apply(&binding(Some("tool-foo"), "bursar-tenant", "Group", "bursar:daemon#7")),
                    apply(&binding(Some("tool-foo"), "bursar-tenant", "ServiceAccount", "default")),
                ])
                .collect(),
        ),
        row(
            "creates a binding without Bursar's label, removes this label, or binds the archive's role under another name or to \
             another ledger's daemon",
            vec![
                apply(&unlabelled(binding(Some("tool-foo"), "bursar-tenant", "Group", "bursar:tool:mallory#1"))),
                merge(
                    "/apis/rbac.authorization.k8s.io/v1/namespaces/tool-foo/rolebindings/bursar-view",
                    &json!({"metadata": {"labels": null}}),
                ),
                apply(&unlabelled(archive_binding("tool-asleep", "Group", &daemon_group(LEDGER)))),
                apply(&binding(Some("tool-asleep"), "bursar-archive", "Group", &daemon_group(LEDGER))),
                apply(&archive_binding("tool-asleep", "Group", &daemon_group("former"))),
                apply(&archive_binding("tool-asleep", "User", "bursar:daemon")),
            ],
        ),
        row(
            "writes, stops or deletes objects in a namespace that is not a tenant's",
            PLACES
                .into_iter()
                .flat_map(|place| {
                    let written = |api_version: &str, kind: &str, rest: Value| {
                        apply(&ours(api_version, kind, "bursar", Some(place), &rest))
                    };
                    let dropped = json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]});
                    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                        "metadata": {"name": "evil", "namespace": place}});
                    [
                        written("v1", "ConfigMap", json!({"data": {"a": "b"}})),
                        written("v1", "ResourceQuota", json!({"spec": {"hard": {"pods": "0"}}})),
                        written("networking.k8s.io/v1", "NetworkPolicy", json!({"spec": dropped})),
                        create(&lease),
                        merge(
                            &format!("/apis/apps/v1/namespaces/{place}/daemonsets/theirs"),
                            &json!({"metadata": {"labels": {"a": "b"}}}),
                        ),
                        merge(
                            &format!("/apis/apps/v1/namespaces/{place}/deployments/theirs/scale"),
                            &json!({"spec": {"replicas": 0}}),
                        ),
                        kubectl(&["delete", "pod", "theirs", "-n", place]),
                        kubectl(&["delete", "configmap", "theirs", "-n", place]),
                        kubectl(&["delete", "resourcequota", "theirs", "-n", place]),
                        kubectl(&["delete", "--raw", &format!("/api/v1/namespaces/{place}/configmaps")]),
                        kubectl(&["delete", "--raw", &format!("/api/v1/namespaces/{place}/resourcequotas")]),
                    ]
                })
                .collect(),
        ),
        row(
            "lowers, breaks or deletes the mark of the generations in use",
            vec![
                apply(&mark("41")),
                apply(&mark("")),
                apply(&mark("-1")),
                apply(&mark("9999999999999999999")),
                by_another(&mark("41")),
                apply(&immutable),
                kubectl(&["delete", "configmap", "bursar-mark", "-n", "bursar"]),
            ],
        ),
        row(
            "has Kubernetes delete an object, by an owner that does not exist",
            vec![
                apply(&owned(mark("42"))),
                tried(&owned(webhook_deployment(|_| ()))),
                merge(
                    "/api/v1/namespaces/tool-foo/persistentvolumeclaims/theirs",
                    &json!({"metadata": owned(json!({}))["metadata"]}),
                ),
            ],
        ),
        row(
            "keeps a binding in force after its deletion, by a finalizer",
            vec![
                apply(&finalized(binding(Some("tool-foo"), "bursar-tenant", "Group", ALICE))),
                apply(&finalized(binding(None, "bursar-impersonate-admin", "Group", ALICE))),
                merge(
                    "/apis/rbac.authorization.k8s.io/v1/namespaces/tool-foo/rolebindings/bursar-view",
                    &json!({"metadata": finalized(json!({}))["metadata"]}),
                ),
                apply(&finalized(mark("42"))),
            ],
        ),
        row("creates a namespace without a Pod Security level", vec![apply(&level("tool-evil", &json!({})))]),
        row(
            "creates a namespace at a level that no class names",
            vec![
                apply(&level("tool-evil", &json!({"pod-security.kubernetes.io/enforce": "privileged"}))),
                apply(&level("tool-evil", &json!({"pod-security.kubernetes.io/enforce": "baseline"}))),
            ],
        ),
        row(
            "creates a namespace at an old version of a level",
            vec![apply(&level(
                "tool-evil",
                &json!({
                    "pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/enforce-version": "v1.0",
                }),
            ))],
        ),
        row(
            "lowers the level of a tenant's namespace",
            vec![kubectl(&[
                "label",
                "namespace",
                "tool-foo",
                "pod-security.kubernetes.io/enforce=privileged",
                "--overwrite",
            ])],
        ),
        row(
            "creates or claims a namespace of Kubernetes, of Bursar or of the approver",
            vec![
                apply(&namespace("kube-evil", &json!({"bursar.dev/class": "tool"}), "active")),
                apply(&namespace("kube-system", &json!({"bursar.dev/class": "tool"}), "active")),
                apply(&namespace("bursar", &json!({"bursar.dev/class": "tool"}), "active")),
                apply(&namespace("bursar-approver", &json!({"bursar.dev/class": "tool"}), "active")),
                apply(&namespace("bursar-storage", &json!({"bursar.dev/class": "tool"}), "active")),
            ],
        ),
        row(
            "binds a role in a namespace of Kubernetes, of Bursar or of the approver",
            vec![
                apply(&binding(Some("kube-system"), "bursar-tenant", "Group", ALICE)),
                apply(&binding(Some("bursar"), "bursar-tenant", "Group", ALICE)),
                apply(&binding(Some("bursar-selftest"), "bursar-tenant", "Group", ALICE)),
                apply(&binding(Some("bursar-approver"), "bursar-tenant", "Group", ALICE)),
            ],
        ),
        row(
            "creates bindings or limits in a namespace of Bursar that has the labels of an adopting class",
            ["bursar-selftest", "bursar"]
                .into_iter()
                .flat_map(|place| {
                    let limit = json!({"type": "Container", "default": {"cpu": "1"}});
                    let limits = ours("v1", "LimitRange", "bursar", Some(place), &json!({"spec": {"limits": [limit]}}));
                    [apply(&binding(Some(place), "edit", "Group", ALICE)), apply(&limits)]
                })
                .collect(),
        ),
        row(
            "gives an adopted namespace a level other than that of its class, or changes an existing level",
            [
                ("adopted", &["pod-security.kubernetes.io/enforce=privileged"][..]),
                ("adopted", &["pod-security.kubernetes.io/enforce=restricted"]),
                ("adopted", &["pod-security.kubernetes.io/enforce=baseline", "a=b"]),
                ("adopted", &["pod-security.kubernetes.io/enforce=baseline", "lab-"]),
                ("adopted", &["pod-security.kubernetes.io/enforce-version=v1.0"]),
                (
                    "adopted",
                    &["pod-security.kubernetes.io/enforce=baseline", "pod-security.kubernetes.io/enforce-version=v1.0"],
                ),
                ("levelled", &["pod-security.kubernetes.io/enforce=baseline"]),
                ("levelled", &["pod-security.kubernetes.io/enforce=privileged"]),
                ("levelled", &["pod-security.kubernetes.io/enforce-"]),
                ("foreign", &["pod-security.kubernetes.io/enforce=baseline"]),
                ("foreign", &["pod-security.kubernetes.io/enforce=baseline", "lab=yes"]),
                ("bursar", &["pod-security.kubernetes.io/enforce=baseline"]),
                ("kube-public", &["pod-security.kubernetes.io/enforce=baseline"]),
            ]
            .map(|(place, labels)| kubectl(&[&["label", "namespace", place, "--overwrite"], labels].concat()))
            .into_iter()
            .chain([
                kubectl(&["annotate", "namespace", "adopted", "a=b"]),
                apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "adopted",
                    "labels": {"pod-security.kubernetes.io/enforce": "baseline"}, "finalizers": ["example.org/x"]}})),
            ])
            .collect(),
        ),
        row(
            "changes the rules of adopted namespaces",
            vec![
                kubectl(&["label", "validatingadmissionpolicy", "bursar-adopted-lab-enforce", "a=b"]),
                kubectl(&["delete", "validatingadmissionpolicy", "bursar-adopted-lab-enforce"]),
                kubectl(&["delete", "validatingadmissionpolicybinding", "bursar-adopted-lab-enforce"]),
            ],
        ),
        row(
            "binds an admin or impersonation role to somebody who is not a listed administrator",
            vec![
                apply(&binding(None, "bursar-impersonate-admin", "Group", "bursar:user:mallory#7")),
                apply(&binding(None, "bursar-impersonate-admin", "Group", "bursar:tool:foo#1042")),
                apply(&binding(None, "bursar-impersonate-admin", "Group", "bursar:user:alice")),
                apply(&binding(None, "bursar-impersonate-admin", "Group", "bursar:user:alice#7#x")),
                apply(&binding(None, "view", "Group", "bursar:daemon#7")),
                apply(&binding(None, "bursar-impersonate-admin", "User", "bursar:daemon")),
            ],
        ),
        row("binds cluster-admin", vec![apply(&binding(None, "cluster-admin", "Group", ALICE))]),
        row(
            "removes a webhook configuration or a binding of the backstop",
            vec![
                kubectl(&["delete", "validatingwebhookconfiguration", "bursar-webhook"]),
                kubectl(&["delete", "validatingwebhookconfiguration", "bursar-approvals"]),
                kubectl(&["delete", "mutatingwebhookconfiguration", "bursar-webhook"]),
                kubectl(&["delete", "validatingadmissionpolicybinding", "bursar-uid-enforce"]),
                kubectl(&["delete", "mutatingadmissionpolicybinding", "bursar-uid-enforce"]),
            ],
        ),
        row(
            "weakens a webhook configuration",
            vec![
                tried(&hook(&|hook| hook["failurePolicy"] = json!("Ignore"))),
                tried(&hook(&|hook| hook["matchConditions"] = json!([{"name": "never", "expression": "false"}]))),
                tried(&hook(&|hook| hook["objectSelector"] = json!({"matchLabels": {"no": "body"}}))),
                tried(&hook(&|hook| hook["rules"][0]["resources"] = json!(["secrets"]))),
            ],
        ),
        row(
            "changes the policy, the role or the bindings that confine the daemon, or the owner of the cluster",
            vec![
                kubectl(&["label", "validatingadmissionpolicy", "bursar-cage", "a=b"]),
                kubectl(&["delete", "validatingadmissionpolicy", "bursar-cage"]),
                kubectl(&["delete", "validatingadmissionpolicybinding", "bursar-cage"]),
                kubectl(&["label", "clusterrole", "bursar-daemon", "a=b"]),
                kubectl(&["delete", "clusterrolebinding", "bursar-daemon"]),
                merge("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/bursar-daemon", &emptied()),
                merge("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/bursar-cluster-admin", &emptied()),
                kubectl(&[
                    "patch",
                    "configmap",
                    "bursar-owner",
                    "-n",
                    "bursar",
                    "-p",
                    r#"{"data":{"administrators":"mallory"}}"#,
                ]),
                kubectl(&["delete", "configmap", "bursar-owner", "-n", "bursar"]),
                kubectl(&["delete", "--raw", "/api/v1/namespaces/bursar/configmaps"]),
            ],
        ),
        row(
            "runs the webhook's Deployment as another account, or with another Secret",
            vec![
                apply(&webhook_deployment(|pod| pod["serviceAccountName"] = json!("default"))),
                apply(&webhook_deployment(|pod| {
                    pod["volumes"] = json!([{"name": "files", "secret": {"secretName": "other"}}]);
                })),
                apply(&webhook_deployment(|pod| {
                    pod["containers"][0]["envFrom"] = json!([{"secretRef": {"name": "other"}}]);
                })),
                apply(&webhook_deployment(|pod| {
                    pod["initContainers"] = json!([{"name": "i", "image": "x"}]);
                })),
            ],
        ),
        row(
            "runs many or large pods as the webhook, with the priority of system pods",
            vec![
                many(json!({"replicas": 1000})),
                many(json!({"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1000}}})),
                many(json!({"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "100%"}}})),
                // Pods that terminate are not counted.
                apply(&webhook_deployment(|pod| pod["terminationGracePeriodSeconds"] = json!(31_536_000))),
                apply(&webhook_deployment(|pod| pod["containers"][0]["resources"]["requests"]["cpu"] = json!("64"))),
                apply(&webhook_deployment(|pod| {
                    pod["containers"][0]["resources"]["limits"]["example.org/gpu"] = json!("1");
                })),
            ],
        ),
        row("gives the webhook's Service an address that is not the webhook's", vec![apply(&service)]),
        row(
            "requests a certificate that never expires, or for another signer or use",
            vec![
                create(&request("evil", ("tool:foo", &[]), &json!({"expirationSeconds": null}))),
                create(&request("evil", ("tool:foo", &[]), &json!({"expirationSeconds": 3_153_600_000_u64 / 100}))),
                create(&request("evil", ("tool:foo", &[]), &json!({"signerName": "kubernetes.io/kubelet-serving"}))),
                create(&request(
                    "evil",
                    ("tool:foo", &[]),
                    &json!({
                        "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
                    }),
                )),
                create(&request("evil", ("tool:foo", &[]), &json!({"signerName": "example.org/signer"}))),
                create(&request("evil", ("tool:foo", &[]), &json!({"usages": ["server auth"]}))),
            ],
        ),
        row(
            "requests the token of another service account",
            vec![
                kubectl(&["create", "token", "default", "-n", "kube-system"]),
                kubectl(&["create", "token", "bursar-webhook", "-n", "bursar"]),
                kubectl(&["create", "token", "default", "-n", "tool-foo"]),
                apply(&secret),
            ],
        ),
        row(
            "creates a volume on a host path, or a volume that somebody else's claim would bind",
            vec![
                apply(&volume(&json!({"nfs": null, "hostPath": {"path": "/"}}))),
                apply(&volume(&json!({"claimRef": null}))),
                apply(&volume(&json!({"storageClassName": "fast"}))),
                apply(&volume(&json!({"claimRef": {"namespace": "kube-system", "name": "data"}}))),
                apply(&volume(&json!({"claimRef": {"namespace": "foreign", "name": "data"}}))),
                apply(&volume(&json!({"claimRef": {"namespace": "bursar-selftest", "name": "data"}}))),
                apply(&volume(&json!({"claimRef": {"namespace": "x-tool-foo", "name": "data"}}))),
            ],
        ),
        row(
            "creates a volume whose files Kubernetes deletes, or makes an existing volume one",
            vec![
                apply(&volume(&json!({"persistentVolumeReclaimPolicy": "Recycle"}))),
                apply(&volume(&json!({"persistentVolumeReclaimPolicy": "Delete"}))),
                merge(
                    "/api/v1/persistentvolumes/bursar-kept",
                    &json!({"spec": {"persistentVolumeReclaimPolicy": "Recycle"}}),
                ),
            ],
        ),
        row(
            "runs a pod, executes a command in one, evicts one, or connects to a pod or a node",
            vec![
                create(&pod("tool-foo")),
                create(&pod("bursar-selftest")),
                create(&pod("bursar")),
                kubectl(&["exec", "p", "-n", "tool-foo", "--", "id"]),
                (
                    ["create", "--raw", "/api/v1/namespaces/tool-foo/pods/p/eviction", "-f", "-"]
                        .map(str::to_owned)
                        .to_vec(),
                    eviction.to_string(),
                ),
                kubectl(&["get", "nodes"]),
                kubectl(&["get", "--raw", "/api/v1/nodes/n/proxy/pods"]),
                kubectl(&["taint", "nodes", "n", "a=b:NoExecute"]),
            ],
        ),
        row(
            "reads Secrets",
            vec![
                kubectl(&["get", "secrets", "-n", "kube-system"]),
                kubectl(&["get", "secrets", "-A"]),
                kubectl(&["get", "secret", "bursar-webhook-tls", "-n", "bursar"]),
            ],
        ),
        row(
            "impersonates",
            vec![
                kubectl(&["get", "namespaces", "--as=bursar:cluster-admin"]),
                kubectl(&["get", "namespaces", "--as=system:admin", "--as-group=system:masters"]),
                kubectl(&["get", "namespaces", "--as=bursar:daemon", "--as-uid=another"]),
                kubectl(&["get", "namespaces", "--as=system:serviceaccount:kube-system:generic-garbage-collector"]),
            ],
        ),
        row(
            "creates a binding with a subject in a namespace of others",
            vec![
                apply(&binding(Some("foreign"), "edit", "Group", ALICE)),
                patched(
                    "foreign",
                    "bursar-left",
                    &json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": "bursar"}}, "subjects": [{
                        "kind": "Group", "name": ALICE, "apiGroup": "rbac.authorization.k8s.io",
                    }]}),
                ),
                patched(
                    "foreign",
                    "theirs",
                    &json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": "bursar"}}}),
                ),
                patched("foreign", "theirs", &emptied()),
                patched("kube-system", "bursar-left", &emptied()),
                patched("bursar", "bursar-left", &emptied()),
            ],
        ),
        row(
            "deletes objects that are not Bursar's",
            vec![
                kubectl(&["delete", "persistentvolumeclaim", "theirs", "-n", "tool-foo"]),
                kubectl(&["delete", "namespace", "foreign"]),
                // Only an eviction removes these two, and only in the namespace of a suspended tenant.
                kubectl(&["delete", "serviceaccount", "default", "-n", "tool-foo"]),
                kubectl(&["delete", "serviceaccount", "default", "-n", "kube-system"]),
                kubectl(&["delete", "--raw", "/api/v1/namespaces/tool-foo/secrets"]),
                kubectl(&["delete", "namespace", "tool-foo"]),
                kubectl(&["delete", "namespace", SELFTEST]),
                kubectl(&["delete", "persistentvolume", "theirs"]),
                kubectl(&["delete", "csr", "of-others"]),
            ],
        ),
    ]
}

/// The approver approves this certificate too, because nothing distinguishes it from that of a real administrator.
const ADMINISTRATOR: &str = "gets a certificate for a listed administrator";

/// Subjects of certificates that the attacker requests and approves. No policy can read the subject of a request, so
/// only an approver can prevent this.
const SIGNED: [(&str, &str, &[&str]); 6] = [
    (ADMINISTRATOR, "user:alice", &["bursar:users", ALICE]),
    (
        "gets a certificate with the daemon's group for another name",
        "mallory",
        &["bursar:daemon#11111111-2222-3333-4444-555555555555"],
    ),
    ("gets a certificate for bursar:cluster-admin", "bursar:cluster-admin", &[]),
    ("gets a certificate for a controller of Kubernetes", "system:kube-controller-manager", &[]),
    ("gets a certificate with a group of administrators", "tool:foo", &["kubeadm:cluster-admins"]),
    ("gets a certificate for a node", "system:node:n", &["system:nodes"]),
];

const APPROVES_OTHERS: &str = "approves a request of somebody else, or for another signer";
/// Requests that an administrator made: name and signer.
const OF_OTHERS: [(&str, &str); 2] =
    [("of-others", "kubernetes.io/kube-apiserver-client"), ("of-kubelets", "kubernetes.io/kubelet-serving")];

/// A right that RBAC cannot narrow: the bindings of the backstop, by name.
const OTHER_POLICY: &str = "points a binding of the backstop at another policy of the cluster";

struct Attacked {
    site: Site,
    /// The daemon's credential, and one with another name in its group.
    credentials: [PathBuf; 2],
}

impl Attacked {
    fn start() -> Self {
        let site = Site::alone_with("alice");
        site.cluster.run(&["create", "-n", "tool-foo", "-f", "-"], &json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "theirs"},
            "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": ""},
        }).to_string());
        site.cluster.run(
            &["create", "-n", "tool-foo", "-f", "-"],
            &json!({
                "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
                "metadata": {"name": "token", "annotations": {"kubernetes.io/service-account.name": "default"}},
            })
            .to_string(),
        );
        site.cluster.run(&["create", "namespace", approver::NAMESPACE], "");
        site.cluster.run(&["label", "namespace", "tool-foo", "of-the-site=yes"], "");
        site.cluster.run(&["annotate", "namespace", "tool-foo", "example.org/of-the-site=yes"], "");
        for (name, signer) in OF_OTHERS {
            let mut request = request(name, ("tool:foo", &[]), &json!({"signerName": signer}));
            request["metadata"]["labels"] = json!({});
            site.cluster.run(&["create", "-f", "-"], &request.to_string());
        }
        // The daemon itself may give this namespace any level.
        let mut selftest = namespace(SELFTEST, &json!({"bursar.dev/class": SELFTEST}), "suspended");
        selftest["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] = json!("privileged");
        site.must("apply", &selftest);
        site.cluster.run(&["label", "namespace", SELFTEST, "lab=yes"], "");
        site.cluster.run(&["label", "namespace", "bursar", "lab=yes"], "");
        for (place, name) in [
            ("foreign", "bursar-left"),
            ("foreign", "theirs"),
            ("kube-system", "bursar-left"),
            ("bursar", "bursar-left"),
        ] {
            let role = "--clusterrole=bursar-tenant";
            site.cluster.run(&["create", "rolebinding", name, role, "--user=somebody", "-n", place], "");
        }
        // The class selects these namespaces. In `bare`, which has no level, the daemon may set one, as below. The
        // attacks on `adopted` and `levelled` are refused.
        let namespace = |name: &str, labels: Value| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}});
        let levelled = json!({"lab": "yes", "pod-security.kubernetes.io/enforce": "restricted"});
        for adopted in [
            namespace("adopted", json!({"lab": "yes"})),
            namespace("bare", json!({"lab": "yes"})),
            namespace("levelled", levelled),
        ] {
            site.cluster.run(&["create", "-f", "-"], &adopted.to_string());
        }
        site.cluster.run(&["label", "namespace", "kube-public", "lab=yes"], "");
        for place in PLACES {
            site.cluster.wait_for_pods(place);
            site.cluster.run(&["create", "-n", place, "-f", "-"], &of_others().to_string());
        }
        let mut kept = volume(&json!({"persistentVolumeReclaimPolicy": "Retain"}));
        kept["metadata"]["name"] = json!("bursar-kept");
        site.must("apply", &kept);
        let mut volume = volume(&json!({}));
        volume["metadata"] = json!({"name": "theirs"});
        site.cluster.run(&["create", "-f", "-"], &volume.to_string());
        site.must("apply", &mark("42"));
        site.must("apply", &binding(Some("tool-foo"), "view", "ServiceAccount", "default"));
        site.must("apply", &binding(Some("adopted"), "edit", "Group", ALICE));
        site.must("apply", &namespace("bare", json!({"pod-security.kubernetes.io/enforce": "baseline"})));
        let mallory = forged(&site);
        let credentials = [site.daemon_kubeconfig(), mallory];
        Self { site, credentials }
    }

    fn send(&self, kubeconfig: &Path, (arguments, input): &(Vec<String>, String)) -> Result<(), String> {
        if let [first, path] = arguments.as_slice()
            && first == MERGE
        {
            return Self::patch(kubeconfig, path, &serde_json::from_str(input).expect("the patch is JSON"));
        }
        let mut command = self.site.cluster.kubectl_as(kubeconfig);
        command.args(arguments);
        let output = run(command, input);
        if output.status.success() { Ok(()) } else { Err(said(&output)) }
    }

    /// Tries every attack with both credentials. Returns those that succeeded. A running approver must deny each of the
    /// daemon's own requests; it does not look at those of other names.
    fn go_through(&self, has_approver: bool) -> BTreeSet<&'static str> {
        // The two credentials are tried in parallel, because most of a request's time is spent in kubectl.
        let mut through: BTreeSet<&'static str> = std::thread::scope(|scope| {
            let both =
                self.credentials.each_ref().map(|kubeconfig| scope.spawn(move || self.go_through_as(kubeconfig)));
            both.into_iter().flat_map(|one| one.join().expect("the thread tried all attacks")).collect()
        });
        for (attack, common_name, organizations) in SIGNED {
            for (number, kubeconfig) in self.credentials.iter().enumerate() {
                let asked = request(&format!("evil-{number}"), (common_name, organizations), &json!({}));
                assert_eq!(
                    self.send(kubeconfig, &create(&asked)),
                    Ok(()),
                    "everybody may create a certificate request"
                );
                if Self::approve(kubeconfig, &format!("evil-{number}")) {
                    through.insert(attack);
                } else if has_approver && number == 0 {
                    self.wait_until_denied("evil-0");
                }
                self.site.cluster.run(&["delete", "csr", &format!("evil-{number}"), "--ignore-not-found"], "");
            }
        }
        for (name, _) in OF_OTHERS {
            if self.credentials.iter().any(|kubeconfig| Self::approve(kubeconfig, name)) {
                through.insert(APPROVES_OTHERS);
            }
        }
        through
    }

    fn go_through_as(&self, kubeconfig: &Path) -> BTreeSet<&'static str> {
        let mut through = BTreeSet::new();
        for Row { attack, sends } in rows() {
            for sent in &sends {
                match self.send(kubeconfig, sent) {
                    Ok(()) => {
                        println!("let through: {attack}: {sent:?} by {}", kubeconfig.display());
                        through.insert(attack);
                    }
                    Err(why) => {
                        let by = ["bursar-cage", "orbidden", "not permitted", "unable to upgrade"];
                        assert!(
                            by.iter().any(|by| why.contains(by)),
                            "{attack}: {sent:?} was not refused by the policy or by RBAC: {why}"
                        );
                    }
                }
            }
        }
        through
    }

    /// Waits until the approver denies this request.
    fn wait_until_denied(&self, name: &str) {
        wait_for("the approver denies the request", DEADLINE, || {
            let conditions = ["get", "csr", name, "-o", "jsonpath={.status.conditions[*].type}"];
            let conditions = self.site.cluster.run(&conditions, "");
            assert!(!conditions.contains("Approved"), "{name}");
            conditions.contains("Denied").then_some(())
        });
    }

    fn approve(kubeconfig: &Path, name: &str) -> bool {
        let approved = json!({"status": {"conditions": [
            {"type": "Approved", "status": "True", "reason": "Test", "message": "test"},
        ]}});
        let path = format!("/apis/certificates.k8s.io/v1/certificatesigningrequests/{name}/approval");
        Self::patch(kubeconfig, &path, &approved).is_ok()
    }

    fn patch(kubeconfig: &Path, path: &str, change: &Value) -> Result<(), String> {
        runtime().block_on(async {
            let client = bootstrap::client(kubeconfig).await.expect("the kubeconfig is valid");
            let server = ApiServer::new(super::site::name(), client, Arc::default());
            server.ask(path, Ask::Merge(change)).await.map(drop).map_err(|error| error.to_string())
        })
    }
}

/// Returns a credential that an attacker obtained earlier: another name in the daemon's group.
fn forged(site: &Site) -> PathBuf {
    let key = NewKey::generate().expect("a key can be generated");
    let group = daemon_group(LEDGER);
    let names = Names { common_name: "mallory", organizations: [Some(&group), None], serial_number: None };
    let pem = key.request(names).expect("the request is valid");
    let request = json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"name": "mallory"}, "spec": {"request": BASE64.encode(pem), "usages": ["client auth"],
            "signerName": "kubernetes.io/kube-apiserver-client"}});
    site.cluster.run(&["create", "-f", "-"], &request.to_string());
    site.cluster.run(&["certificate", "approve", "mallory"], "");
    let certificate = wait_for("mallory has a certificate", DEADLINE, || {
        let found = site.cluster.run(&["get", "csr", "mallory", "-o", "jsonpath={.status.certificate}"], "");
        (!found.is_empty()).then_some(found)
    });
    let text = std::fs::read_to_string(site.daemon_kubeconfig()).expect("the kubeconfig is readable");
    let mut file: Value = serde_json::from_str(&text).expect("the text is JSON");
    let user = &mut file["users"][0]["user"];
    user["client-certificate-data"] = json!(certificate);
    user["client-key-data"] = json!(BASE64.encode(key.pem().expose()));
    let path = site.settings.state_dir.join("mallory.kubeconfig");
    std::fs::write(&path, file.to_string()).expect("the folder is writable");
    path
}

fn sealer(site: &Site) -> Sealer {
    Sealer::from_seed(&std::fs::read(site.settings.state_dir.join("seal.key")).expect("the seal key is readable"))
        .expect("the seal key is valid")
}

/// Issues a certificate for tool foo as the daemon does.
async fn issue(site: &Site, generation: u64) -> Result<Vec<u8>, SigningError> {
    issue_for(site, ("tool:foo", "bursar:tools", Some("tool-foo")), generation).await
}

async fn issue_for(
    site: &Site,
    (account, kind_group, namespace): (&str, &str, Option<&str>),
    generation: u64,
) -> Result<Vec<u8>, SigningError> {
    let client = bootstrap::client(&site.daemon_kubeconfig()).await.expect("the kubeconfig is valid");
    let server = ApiServer::new(name(), client, Arc::default());
    server.let_approve(false);
    let key = NewKey::generate().expect("a key can be generated");
    let group = format!("bursar:{account}#{generation}");
    let id = format!("id-{}", account.rsplit(':').next().expect("the account has a name"));
    let names =
        Names { common_name: account, organizations: [Some(kind_group), Some(&group)], serial_number: Some(&id) };
    let request = key.request(names).expect("a key signs its own request");
    let lifetime = Duration::from_hours(24);
    let unsigned = Unsigned { holder: &id, account, request: &request, lifetime, namespace, record: None };
    sign(&server, unsigned).await
}

fn seal(site: &Site, generation: u64, state: TenantState) {
    let identity = Identity {
        cluster: name(),
        namespace: NamespaceName::try_from("tool-foo".to_owned()).expect("the name is valid"),
        id: AccountId("id-foo".into()),
        directory_id: DirectoryId("d".to_owned()),
        account: "tool:foo".parse().expect("the account is valid"),
        class: "tool".to_owned(),
        posix: None,
        generation,
        state,
        exceptions: std::collections::BTreeSet::new(),
    };
    let mut object = namespace("tool-foo", &json!({"bursar.dev/class": "tool"}), "active");
    object["metadata"]["annotations"] = json!(annotate(&identity, &sealer(site)));
    site.must("apply", &object);
}

/// Sends the requests that neither RBAC nor the policy can refuse, because they are tasks of the daemon. The threat
/// model names each of them.
fn these_cannot_be_refused(attacked: &Attacked) {
    let site = &attacked.site;
    let can =
        |arguments: &(Vec<String>, String)| assert_eq!(attacked.send(&attacked.credentials[0], arguments), Ok(()));
    assert!(THREATS.contains(&format!("| {OTHER_POLICY} | **can**")), "the threat model says so");
    can(&tried(&webhook_deployment(|_| ())));
    // The garbage collector may delete this binding, because admission policies do not apply to it.
    assert!(THREATS.contains("Kubernetes delete them by an owner that does not exist"));
    let pointed = owned(json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "bursar-uid-enforce"}, "spec": {"policyName": "theirs", "validationActions": ["Warn"]},
    }));
    can(&apply(&pointed));
    let binding_of_backstop = ["validatingadmissionpolicybinding", "bursar-uid-enforce", "--ignore-not-found"];
    site.cluster.run(&[&["delete"], &binding_of_backstop[..]].concat(), "");

    assert!(THREATS.contains("labels an object in a tenant's namespace as Bursar's own, and then deletes it"));
    let claim = ["persistentvolumeclaim", "theirs", "-n", "tool-foo"];
    for arguments in [
        [&["label"], &claim[..], &["app.kubernetes.io/managed-by=bursar"]].concat(),
        [&["delete"], &claim[..], &["--dry-run=server"]].concat(),
    ] {
        can(&kubectl(&arguments));
    }
    site.cluster.run(&[&["label"], &claim[..], &["app.kubernetes.io/managed-by-"]].concat(), "");

    // The daemon made this binding. Then somebody removed its label, and the namespace is no longer adopted.
    assert!(THREATS.contains("changes a binding in a namespace of others so that it has no subject"));
    for arguments in [
        patched("foreign", "bursar-left", &emptied()),
        kubectl(&["delete", "rolebinding", "bursar-left", "-n", "foreign"]),
    ] {
        can(&arguments);
    }
    let again =
        ["create", "rolebinding", "bursar-left", "--clusterrole=bursar-tenant", "--user=somebody", "-n", "foreign"];
    site.cluster.run(&again, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_daemons_credential_does_not_give_control_over_the_cluster() {
    let attacked = tokio::task::spawn_blocking(Attacked::start).await.expect("the site starts");
    let attacked = Arc::new(attacked);
    let (site, again) = (&attacked.site, Arc::clone(&attacked));
    site.must("apply", &binding(None, "bursar-impersonate-admin", "Group", ALICE));
    let through = tokio::task::spawn_blocking(move || again.go_through(false)).await.expect("all attacks are tried");
    let signed: BTreeSet<&str> = SIGNED.iter().map(|(attack, ..)| *attack).collect();
    assert_eq!(through, signed, "without an approver");
    for attack in &through {
        assert!(THREATS.contains(attack), "docs/threat-model.md does not list this attack: {attack}");
    }
    for attack in rows().iter().map(|row| row.attack).chain([APPROVES_OTHERS]) {
        assert!(THREATS.contains(&format!("| {attack} | refused")), "docs/threat-model.md does not list {attack}");
    }
    these_cannot_be_refused(&attacked);

    // The approver is installed but does not run yet, so requests wait.
    let folder = tempfile::TempDir::new().expect("the system allows a temporary folder");
    let ledger = empty(LEDGER);
    let cluster = name();
    let installing = ApproverRequest {
        policy: &site.settings.policy,
        cluster: &cluster,
        ledger: &ledger,
        admin_kubeconfig: &site.cluster.admin_kubeconfig,
        public_key: sealer(site).public_key(),
        administrators: None,
    };
    approver::install(installing, ApproverLocation::Outside { folder: folder.path() })
        .await
        .unwrap_or_else(|e| panic!("{e:?}"));
    seal(site, 1042, TenantState::Active);
    let away = issue(site, 1042).await.expect_err("no approver runs");
    assert!(matches!(away, SigningError::NotApproved), "{away}");

    let health = free_port();
    let mut command = Command::new(program("bursar-webhook"));
    command.arg("approve").arg("--dir").arg(folder.path()).arg("--health").arg(format!("127.0.0.1:{health}"));
    let log = folder.path().join("approver.log");
    let _approver = Process::start("bursar-webhook", &command, &log);
    wait_for("the approver is ready", DEADLINE, || {
        let output = Command::new("curl").args(["-sf", &format!("http://127.0.0.1:{health}/readyz")]).output();
        output.expect("curl is installed").status.success().then_some(())
    });
    issue(site, 1042)
        .await
        .unwrap_or_else(|error| panic!("{error}: {}", std::fs::read_to_string(&log).expect("the log is readable")));
    let hidden = request_with_hidden_group("hidden", "kubeadm:cluster-admins");
    assert_eq!(attacked.send(&attacked.credentials[0], &create(&hidden)), Ok(()));
    attacked.wait_until_denied("hidden");
    site.cluster.run(&["delete", "csr", "hidden"], "");
    // The request has an older generation than the seal. It waits, because a later seal could still make it valid.
    let older = issue(site, 1041).await.expect_err("the namespace is sealed for another generation");
    assert!(matches!(older, SigningError::NotApproved), "{older}");
    let logged = std::fs::read_to_string(&log).expect("the log is readable");
    assert!(logged.contains("sealed for generation 1042 of tool:foo, not 1041"), "{logged}");

    issue_for(site, ("user:alice", "bursar:users", None), 7).await.unwrap_or_else(|error| panic!("{error}"));
    assert!(THREATS.contains(&format!("| {ADMINISTRATOR} | **can**")), "the threat model says so");

    // The daemon renews its own certificate through the approver.
    let copy = folder.path().join("own.kubeconfig");
    std::fs::copy(site.daemon_kubeconfig(), &copy).expect("the file can be copied");
    let renew_after =
        match bootstrap::renew(&copy, &name(), Timestamp::UNIX_EPOCH).await.expect("the renewal is not due") {
            Renewal::NotDue { renew_after, .. } => renew_after,
            other => panic!("{other:?}"),
        };
    let renewed = bootstrap::renew(&copy, &name(), renew_after).await;
    assert!(matches!(renewed, Ok(Renewal::Renewed { .. })), "{renewed:?}");

    let again = Arc::clone(&attacked);
    let through = tokio::task::spawn_blocking(move || again.go_through(true)).await.expect("all attacks are tried");
    assert_eq!(through, BTreeSet::new(), "with the approver");
    only_an_uninstall_gives_back_the_right_to_approve(&attacked, installing).await;
}

async fn only_an_uninstall_gives_back_the_right_to_approve(attacked: &Arc<Attacked>, installing: ApproverRequest<'_>) {
    let site = &attacked.site;
    let may_approve = || {
        let role = site.cluster.run(&["get", "clusterrole", "bursar-daemon", "-o", "json"], "");
        role.contains("\"approve\"") || role.contains("/approval")
    };
    assert!(!may_approve());

    // A repeated `init` does not give back the right to approve; an administrator's uninstall does.
    let init = || {
        let again = Arc::clone(attacked);
        tokio::task::spawn_blocking(move || again.site.init(LEDGER).expect("init succeeds"))
    };
    let report = init().await.expect("init does not panic");
    assert_eq!(report.approver_outdated, None);
    assert!(!may_approve());
    // With a new seal key, the approver still trusts the former one.
    let key = site.settings.state_dir.join("seal.key");
    let former = std::fs::read(&key).expect("the seal key is readable");
    std::fs::remove_file(&key).expect("the seal key can be removed");
    let report = init().await.expect("init does not panic");
    assert!(report.seal_key_drawn && report.approver_outdated.is_some(), "{report:?}");
    std::fs::write(&key, former).expect("the seal key is writable");
    // A takeover cannot write the files of an approver outside the cluster, and says so.
    for (ledger, is_outdated) in [("99999999-2222-3333-4444-555555555555", true), (LEDGER, false)] {
        let (ledger, kubeconfig) = (empty(ledger), site.daemon_kubeconfig());
        let report = bootstrap::take_over(site.request(&ledger, &kubeconfig)).await;
        let update = report.unwrap_or_else(|error| panic!("{error:?}")).approver_outdated;
        assert_eq!(update.is_some_and(|update| update.ends_with("--write FOLDER")), is_outdated);
    }
    // `init` does not give back the right either if the approver's ConfigMap is lost.
    site.cluster.run(&["delete", "configmap", approver::APPROVER, "-n", approver::NAMESPACE], "");
    let report = init().await.expect("init does not panic");
    assert!(report.approver_outdated.is_some(), "{report:?}");
    assert!(!may_approve());
    approver::uninstall(installing).await.unwrap_or_else(|error| panic!("{error:?}"));
    assert!(may_approve());
}
