//! Manifests of the webhook in the cluster: its workload and its files.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use super::{REPLICAS, SECRET, SURGE, WEBHOOK, WEBHOOK_USER, labels};
use crate::bootstrap::NAMESPACE;
use crate::bootstrap::roles::{cluster_role, labels as labels_of_init};
use crate::rules::{CERTIFICATE, KEY, RULES, SEAL};

/// An unprivileged uid. The image has no users.
const RUNS_AS: u64 = 65532;
const PORT: u16 = 9443;
const HEALTH: u16 = 9444;
/// The folder of the files in the container.
const FILES: &str = "/etc/bursar-webhook";

fn selector() -> Value {
    json!({"app.kubernetes.io/name": WEBHOOK})
}

/// The identity of the webhook, which `init` creates: a service account if it runs in the cluster, a user if it runs
/// outside. The identity may only read namespaces.
pub(in crate::bootstrap) fn identity() -> [Value; 3] {
    let account = json!({
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": WEBHOOK, "namespace": NAMESPACE, "labels": labels_of_init()},
        "automountServiceAccountToken": false,
    });
    let rules = [json!({"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get", "list", "watch"]})];
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": WEBHOOK, "labels": labels_of_init()},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": WEBHOOK},
        "subjects": [
            {"kind": "ServiceAccount", "name": WEBHOOK, "namespace": NAMESPACE},
            {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": WEBHOOK_USER},
        ],
    });
    [account, cluster_role(WEBHOOK, &rules), binding]
}

/// The serving certificate and its key.
pub(super) fn secret(certificate: &str, key: &str) -> Value {
    let mut secret = object("v1", "Secret", SECRET);
    secret["type"] = json!("kubernetes.io/tls");
    secret["data"] = json!({CERTIFICATE: BASE64.encode(certificate), KEY: BASE64.encode(key)});
    secret
}

/// The rules and the public keys. They are in one object, so that they change together.
#[must_use]
pub fn config_map(rules: &str, seal: &str) -> Value {
    let mut map = object("v1", "ConfigMap", WEBHOOK);
    map["data"] = json!({RULES: rules, SEAL: seal});
    map
}

/// The grace period of a pod in seconds.
pub(in crate::bootstrap) const GRACE: u64 = 30;

#[must_use]
pub fn workload(image: &str) -> [Value; 3] {
    let mut service = object("v1", "Service", WEBHOOK);
    service["spec"] = json!({
        "selector": selector(),
        "ports": [{"name": "https", "port": 443, "targetPort": "https", "protocol": "TCP"}],
    });
    let mut budget = object("policy/v1", "PodDisruptionBudget", WEBHOOK);
    budget["spec"] = json!({"minAvailable": 1, "selector": {"matchLabels": selector()}});
    let mut deployment = object("apps/v1", "Deployment", WEBHOOK);
    deployment["spec"] = json!({
        "replicas": REPLICAS,
        "selector": {"matchLabels": selector()},
        // During an update, two pods continue to answer.
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": SURGE}},
        "template": {"metadata": {"labels": pod_labels()}, "spec": pod(image)},
    });
    [service, budget, deployment]
}

/// Lets only the addresses `api_servers` send reviews. The port of probes and metrics is open to all addresses, because
/// the address from which a kubelet probes depends on the network.
pub(super) fn network_policy(api_servers: &[String]) -> Value {
    let from: Vec<Value> = api_servers.iter().map(|range| json!({"ipBlock": {"cidr": range}})).collect();
    let port = |port: u16| json!([{"port": port, "protocol": "TCP"}]);
    let mut policy = object("networking.k8s.io/v1", "NetworkPolicy", WEBHOOK);
    policy["spec"] = json!({
        "podSelector": {"matchLabels": selector()},
        "policyTypes": ["Ingress"],
        "ingress": [{"from": from, "ports": port(PORT)}, {"ports": port(HEALTH)}],
    });
    policy
}

fn pod_labels() -> Value {
    let mut labels = labels();
    labels["app.kubernetes.io/name"] = json!(WEBHOOK);
    labels
}

fn pod(image: &str) -> Value {
    json!({
        "serviceAccountName": WEBHOOK,
        "automountServiceAccountToken": true,
        // Requests for pods of all tenants wait for these pods.
        "priorityClassName": "system-cluster-critical",
        "terminationGracePeriodSeconds": GRACE,
        "securityContext": {
            "runAsNonRoot": true, "runAsUser": RUNS_AS, "runAsGroup": RUNS_AS, "fsGroup": RUNS_AS,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{
            "weight": 100,
            "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": selector()}},
        }]}},
        "containers": [container(image)],
        // One volume has one `..data` link, so certificate, rules and keys change together.
        "volumes": [{"name": "files", "projected": {"defaultMode": 0o440, "sources": [
            {"secret": {"name": SECRET}},
            {"configMap": {"name": WEBHOOK}},
        ]}}],
    })
}

/// The resources that a pod requests.
pub(in crate::bootstrap) fn requests() -> Value {
    json!({"cpu": "50m", "memory": "64Mi"})
}

fn container(image: &str) -> Value {
    let probe = |path: &str| json!({"httpGet": {"path": path, "port": "health", "scheme": "HTTP"}, "periodSeconds": 5});
    json!({
        "name": "webhook",
        "image": image,
        "args": ["--dir", FILES, "--listen", format!("0.0.0.0:{PORT}"), "--health", format!("0.0.0.0:{HEALTH}")],
        "ports": [
            {"name": "https", "containerPort": PORT, "protocol": "TCP"},
            {"name": "health", "containerPort": HEALTH, "protocol": "TCP"},
        ],
        "livenessProbe": probe("/healthz"),
        "readinessProbe": probe("/readyz"),
        // Time for clients to notice that the pod terminates.
        "lifecycle": {"preStop": {"sleep": {"seconds": 5}}},
        "resources": {"requests": requests(), "limits": {"memory": "512Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "files", "mountPath": FILES, "readOnly": true}],
    })
}

fn object(api_version: &str, kind: &str, name: &str) -> Value {
    json!({
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels()},
    })
}
