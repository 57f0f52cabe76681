//! The webhook with the real API server, which calls it by URL on loopback.

mod adopted_rules;
mod agreement;
mod away;
mod cases;
mod clients;
mod exceptions;
mod fields;
mod files;
mod flood;
mod installed;
mod judge;
mod keeps;
mod sender;
mod server_rules;
mod site;
mod subresources;

use bursar_testkit::ready::{DEADLINE, wait_for};
use serde_json::json;

use self::site::{Site, out, pod, pod_in, said};
use crate::world::runtime;

use bursar::errors::chain;

#[test]
fn a_plain_pod_runs_with_the_uid_of_its_tool() {
    let site = Site::shared();
    let stored = site.create(&pod("plain")).expect("the pod is allowed");
    let context = &stored["spec"]["securityContext"];
    assert_eq!(
        context,
        &json!({
            "runAsUser": 52503, "runAsGroup": 52503, "fsGroup": 52503, "runAsNonRoot": true,
            "supplementalGroups": [50000, 50001], "supplementalGroupsPolicy": "Strict",
            "seccompProfile": {"type": "RuntimeDefault"},
        })
    );
    let of_container = &stored["spec"]["containers"][0]["securityContext"];
    assert_eq!(of_container, &json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}));
    site.delete("pod", "plain", "tool-foo");
}

#[test]
fn a_refusal_names_object_problem_and_remedy() {
    let site = Site::shared();
    let mut root = pod("root");
    root["spec"]["containers"][0]["securityContext"] = json!({"runAsUser": 0});
    let refused = site.create(&root).expect_err("the pod would run as root");
    let text = "container \"web\" would run as uid 0; tool foo runs as 52503: remove securityContext.runAsUser";
    assert!(refused.contains(text) && refused.contains("pods.bursar.dev"), "{refused}");
    let mut elsewhere = pod("elsewhere");
    elsewhere["spec"]["containers"][0]["image"] = json!("registry.example.org.evil.com/web");
    let refused = site.create(&elsewhere).expect_err("the class does not allow this registry");
    assert!(refused.contains("registry.example.org.evil.com"), "{refused}");
    // The log line does not contain the body of the review.
    let log = wait_for("the log has the refusal", DEADLINE, || {
        let log = std::fs::read_to_string(site.log()).unwrap_or_default();
        log.lines().find(|line| line.contains("\"refused\"") && line.contains("evil.com")).map(str::to_owned)
    });
    let line: serde_json::Value = serde_json::from_str(&log).expect("the text is JSON");
    assert_eq!((&line["user"], &line["rule"]), (&json!("tool:foo"), &json!("images")));
    assert!(!log.contains("containers"), "{log}");
}

#[test]
fn a_class_that_only_warns_allows_the_pod_with_a_warning() {
    let site = Site::shared();
    let mut root = pod_in("trial-try", "root");
    root["spec"]["securityContext"] = json!({"runAsUser": 0});
    let created = site.tool("try", &["create", "-f", "-", "--dry-run=server"], &root.to_string());
    assert!(created.status.success(), "{}", said(&created));
    assert!(said(&created).contains("would run as uid 0"), "{}", said(&created));
}

#[test]
fn the_clusters_default_storage_class_does_not_count_as_a_choice() {
    let site = Site::alone();
    let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "provisioner": "example.org/none",
        "metadata": {"name": "standard", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}});
    site.cluster.run(&["create", "-f", "-"], &class.to_string());
    let class_of = |mode: &str| {
        let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": "data", "namespace": "tool-foo"},
            "spec": {"accessModes": [mode], "resources": {"requests": {"storage": "1Gi"}}}});
        let path = "jsonpath={.spec.storageClassName}";
        let made = site.tool("foo", &["create", "--dry-run=server", "-f", "-", "-o", path], &claim.to_string());
        assert!(made.status.success(), "{}", said(&made));
        out(&made)
    };
    wait_for("Kubernetes knows its default class", DEADLINE, || {
        (class_of("ReadWriteOnce") == "standard").then_some(())
    });
    assert_eq!(class_of("ReadWriteMany"), "nfs-client");
    site.cluster.run(&["delete", "storageclass", "standard"], "");
}

#[test]
fn a_suspended_tenant_gets_no_pods_until_it_is_resumed() {
    let site = Site::shared();
    let dry_run = |name: &str| {
        let pod = pod_in("tool-asleep", name).to_string();
        site.tool("asleep", &["create", "-f", "-", "--dry-run=server"], &pod)
    };
    site.tenant("tool", "asleep", 52510, bursar::contract::TenantState::Suspended);
    wait_for("the webhook notices the suspension", DEADLINE, || {
        said(&dry_run("a")).contains("tool asleep is suspended").then_some(())
    });
    site.tenant("tool", "asleep", 52510, bursar::contract::TenantState::Active);
    wait_for("the webhook notices the resumption", DEADLINE, || dry_run("b").status.success().then_some(()));
}

#[test]
fn an_edited_annotation_invalidates_the_identity() {
    let site = Site::shared();
    let namespace = site.tenant("tool", "edited", 52511, bursar::contract::TenantState::Active);
    let arguments = ["annotate", "namespace", &namespace, "bursar.dev/uid=52503", "--overwrite"];
    let refused = site.meddler(&arguments, "");
    assert!(said(&refused).contains("namespaces.bursar.dev"), "{}", said(&refused));
    // An administrator whom the webhook exempts can edit the annotation, but the namespace then loses its identity.
    site.cluster.run(&arguments, "");
    wait_for("the webhook notices the changed annotation", DEADLINE, || {
        let pod = pod_in(&namespace, "a").to_string();
        let refused = site.tool("edited", &["create", "-f", "-", "--dry-run=server"], &pod);
        said(&refused).contains("seal does not match").then_some(())
    });
}

#[test]
fn only_the_daemon_may_change_its_namespaces_and_objects() {
    let site = Site::shared();
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota",
        "metadata": {"name": "bursar", "namespace": "tool-bar", "labels": {"app.kubernetes.io/managed-by": "bursar"}},
        "spec": {"hard": {"pods": "16"}},
    });
    let mut command = site.cluster.kubectl_as(site.daemon_kubeconfig());
    command.args(["apply", "--server-side", "--field-manager=bursar", "-f", "-"]);
    let applied = bursar_testkit::process::run(command, &quota.to_string());
    assert!(applied.status.success(), "{}", said(&applied));

    let forged = json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": "tool-forged", "labels": {"bursar.dev/class": "tool"}}});
    let finalize = r#"{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"tool-bar","labels":{"bursar.dev/class":"x"}},"spec":{"finalizers":[]}}"#;
    let stolen = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "mine", "namespace": "tool-bar", "labels": {"app.kubernetes.io/managed-by": "bursar"}}});
    let cases: [(&[&str], String); 9] = [
        (&["label", "namespace", "tool-bar", "bursar.dev/class-"], String::new()),
        (&["label", "namespace", "tool-bar", "bursar.dev/class=trial", "--overwrite"], String::new()),
        (
            &["label", "namespace", "tool-bar", "pod-security.kubernetes.io/enforce=privileged", "--overwrite"],
            String::new(),
        ),
        (&["delete", "namespace", "tool-bar", "--wait=false"], String::new()),
        (&["create", "-f", "-"], forged.to_string()),
        (&["replace", "--raw", "/api/v1/namespaces/tool-bar/finalize", "-f", "-"], finalize.to_owned()),
        (&["patch", "quota", "bursar", "-n", "tool-bar", "-p", r#"{"spec":{"hard":{"pods":"99"}}}"#], String::new()),
        (&["label", "quota", "bursar", "-n", "tool-bar", "app.kubernetes.io/managed-by-"], String::new()),
        (&["delete", "quota", "bursar", "-n", "tool-bar"], String::new()),
    ];
    for (arguments, input) in cases {
        let refused = site.meddler(arguments, &input);
        let text = said(&refused);
        assert!(!refused.status.success(), "{arguments:?} was allowed: {}", out(&refused));
        assert!(text.contains("namespaces.bursar.dev") || text.contains("objects.bursar.dev"), "{arguments:?}: {text}");
    }
    // On a kind that no class creates here, the label means nothing.
    let harmless = site.meddler(&["create", "-f", "-", "--dry-run=server"], &stolen.to_string());
    assert!(harmless.status.success(), "{}", said(&harmless));
    let own = site.meddler(&["annotate", "namespace", "tool-bar", "contact=alice", "--overwrite"], "");
    assert!(own.status.success(), "{}", said(&own));
    site.cluster.run(&["patch", "quota", "bursar", "-n", "tool-bar", "-p", r#"{"spec":{"hard":{"pods":"20"}}}"#], "");
}

#[test]
fn only_the_daemon_may_change_its_objects_in_foreign_namespaces() {
    let site = Site::shared();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": "profile-ann", "labels": {"app.kubernetes.io/part-of": "kubeflow-profile"}}});
    let labels = json!({"app.kubernetes.io/managed-by": "bursar"});
    let object = |api_version: &str, kind: &str, name: &str, spec: serde_json::Value| {
        json!({"apiVersion": api_version, "kind": kind, "spec": spec,
            "metadata": {"name": name, "namespace": "profile-ann", "labels": labels}})
    };
    let quota = object("v1", "ResourceQuota", "bursar", json!({"hard": {"pods": "16"}}));
    let deny = object("networking.k8s.io/v1", "NetworkPolicy", "bursar-default-deny", json!({"podSelector": {}}));
    let claim = object("v1", "PersistentVolumeClaim", "scratch", {
        json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}})
    });
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [namespace, quota, deny, claim]});
    site.cluster.run(&["apply", "-f", "-"], &list.to_string());
    site.cluster.run(&["create", "rolebinding", "ann", "--clusterrole=edit", "--user=ann", "-n", "profile-ann"], "");

    let ann = |arguments: &[&str], input: &str| site.kubectl_as(&["--as=ann", "-n", "profile-ann"], arguments, input);
    let (policy, finalizer) = ("networkpolicy/bursar-default-deny", r#"{"metadata":{"finalizers":["example.org/x"]}}"#);
    let more = object("networking.k8s.io/v1", "NetworkPolicy", "bursar-allow", json!({"podSelector": {}})).to_string();
    let cases: [(&[&str], &str); 7] = [
        (&["delete", policy], ""),
        (&["delete", "networkpolicies", "--all"], ""),
        (&["patch", policy, "--type=merge", "-p", r#"{"spec":{"ingress":[{}]}}"#], ""),
        (&["patch", policy, "--type=merge", "-p", finalizer], ""),
        (&["label", policy, "app.kubernetes.io/managed-by-"], ""),
        (&["create", "-f", "-"], &more),
        (&["patch", "pvc", "scratch", "-p", finalizer], ""),
    ];
    for (arguments, input) in cases {
        let refused = ann(arguments, input);
        assert!(!refused.status.success() && said(&refused).contains("objects.bursar.dev"), "{}", said(&refused));
    }
    // The creator of such namespaces has every right in them.
    let raised = site
        .meddler(&["patch", "quota", "bursar", "-n", "profile-ann", "-p", r#"{"spec":{"hard":{"pods":"99"}}}"#], "");
    assert!(said(&raised).contains("objects.bursar.dev"), "{}", said(&raised));
    let own = more.replace("bursar-allow", "ann").replace(r#""app.kubernetes.io/managed-by":"bursar""#, "");
    let created = ann(&["create", "-f", "-"], &own);
    assert!(created.status.success(), "{}", said(&created));
    // The webhook knows no tenant of this namespace, and the scheduler needs none.
    let node = ["annotate", "pvc", "scratch", "-n", "profile-ann", "volume.kubernetes.io/selected-node=node-1"];
    let scheduler = ["--as=system:kube-scheduler", "--as-group=system:authenticated"];
    let chosen = site.kubectl_as(&scheduler, &node, "");
    assert!(chosen.status.success(), "{}", said(&chosen));
    site.cluster.run(&["delete", "namespace", "profile-ann", "--timeout=60s"], "");
}

#[test]
fn a_portal_may_report_a_use_and_change_nothing_else() {
    let site = Site::shared();
    let annotate = |annotation: &str| {
        let arguments = ["annotate", "namespace", "tool-bar", annotation, "--overwrite", "--dry-run=server"];
        site.meddler(&arguments, "")
    };
    let used = annotate("bursar.dev/last-use=2026-05-03T08:00:00Z");
    assert!(used.status.success(), "{}", said(&used));
    for annotation in ["bursar.dev/idle-until=2026-05-03T08:00:00Z", "bursar.dev/keep=true"] {
        let refused = annotate(annotation);
        assert!(said(&refused).contains("namespaces.bursar.dev"), "{annotation}: {}", said(&refused));
    }
}

#[test]
fn the_daemon_cannot_approve_a_certificate_for_a_stranger() {
    let site = Site::shared();
    let key = rcgen::KeyPair::generate().expect("a key can be generated");
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, "cluster-boss");
    let request = params.serialize_request(&key).and_then(|request| request.pem()).expect("the request is valid");
    let request = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, request);
    let object = json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"name": "boss", "labels": {"app.kubernetes.io/managed-by": "bursar"}},
        "spec": {"request": request, "usages": ["client auth"], "signerName": "kubernetes.io/kube-apiserver-client",
            "expirationSeconds": 3600},
    });
    let daemon = |arguments: &[&str], input: &str| {
        let mut command = site.cluster.kubectl_as(site.daemon_kubeconfig());
        command.args(arguments);
        bursar_testkit::process::run(command, input)
    };
    let created = daemon(&["create", "-f", "-"], &object.to_string());
    assert!(created.status.success(), "{}", said(&created));
    let approval = json!({"status": {"conditions": [
        {"type": "Approved", "status": "True", "reason": "Test", "message": "test"},
    ]}});
    let refused = runtime().block_on(async {
        let client = bursar::bootstrap::client(site.daemon_kubeconfig()).await.expect("the kubeconfig is valid");
        let server = bursar::execute::request::ApiServer::new(site::name(), client, std::sync::Arc::default());
        let path = "/apis/certificates.k8s.io/v1/certificatesigningrequests/boss/approval";
        server.ask(path, bursar::execute::request::Ask::Merge(&approval)).await
    });
    let refused = chain(&refused.expect_err("the certificate is for a stranger"));
    assert!(refused.contains("approvals.bursar.dev"), "{refused}");
    let deleted = daemon(&["delete", "csr", "boss"], "");
    assert!(deleted.status.success(), "{}", said(&deleted));
}
