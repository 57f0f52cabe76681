//! Sends the cases to the API server. A tenant's requests use the tenant's certificate; requests of others are sent by
//! an administrator who impersonates them.

use bursar::bootstrap;
use bursar_testkit::ready::{DEADLINE, wait_for};
use http::{Method, Request};
use http_body_util::BodyExt as _;
use kube::Client;
use kube::config::Kubeconfig;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::cases::Case;
use super::site::Site;
use crate::world::runtime;

/// A group whose members may do everything, but have no exemption.
const EVERYTHING: &str = "test:everything";

pub struct Answer {
    pub status: u16,
    pub body: Value,
}

impl Answer {
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    pub fn message(&self) -> &str {
        self.body["message"].as_str().unwrap_or_default()
    }
}

pub struct Sender {
    /// The runtime of the clients.
    pub runtime: Runtime,
    admin: Client,
    daemon: Client,
    /// Two clients for each tenant: one with its certificate, and one that may also do everything.
    tenants: Vec<(&'static str, Client, Client)>,
}

impl Sender {
    pub fn new(site: &Site) -> Self {
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "everything"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": EVERYTHING}],
        });
        let routes = ["HTTPRoute", "GRPCRoute", "TLSRoute"].map(route);
        let items: Vec<Value> = routes.into_iter().chain([binding]).collect();
        let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
        site.cluster.run(&["apply", "-f", "-"], &list.to_string());
        site.cluster.run(&["wait", "--for=condition=Established", "crd", "--all", "--timeout=240s"], "");
        let runtime = runtime();
        let connect =
            |path: &std::path::Path| runtime.block_on(bootstrap::client(path)).expect("the kubeconfig is valid");
        let tenant = |account: &str, more: &[&str]| connect(&certified(site, account, more));
        let tenants = [("foo", "tool:foo"), ("alice", "user:alice"), ("bob", "user:bob"), ("algebra", "group:algebra")]
            .map(|(name, account)| (name, tenant(account, &[]), tenant(account, &[EVERYTHING])));
        let (admin, daemon) = (connect(&site.cluster.admin_kubeconfig), connect(site.daemon_kubeconfig()));
        Self { runtime, admin, daemon, tenants: tenants.into() }
    }

    /// Sends a dry run for a plain pod of tool foo.
    pub async fn plain_pod(&self) -> Answer {
        let pod = super::site::pod("plain");
        self.as_foo(Method::POST, "/api/v1/namespaces/tool-foo/pods?dryRun=All", &pod).await
    }

    /// Sends a request as tool foo.
    pub async fn as_foo(&self, method: Method, path: &str, body: &Value) -> Answer {
        ask(&self.tenants[0].1, method, path, &[], Some(body)).await
    }

    /// Creates the objects that the cases change, as an administrator. Returns their paths.
    pub async fn make(&self, cases: &[&Case]) -> Result<Vec<String>, String> {
        let mut made = Vec::new();
        for case in cases {
            let Some(old) = &case.old else { continue };
            let client = if case.resource.starts_with("certificates") { &self.daemon } else { &self.admin };
            let answer = ask(client, Method::POST, &collection(case), &[], Some(old)).await;
            // If the API server refuses to create an object, it cannot be changed either. The case reports that when it
            // is sent.
            if answer.message().contains("bursar.dev") {
                return Err(answer.message().to_owned());
            }
            if object(case) != "/api/v1/namespaces/tool-foo" {
                made.push(object(case));
            }
        }
        Ok(made)
    }

    pub async fn remove(&self, made: &[String]) {
        for path in made {
            let free = json!({"metadata": {"finalizers": null}});
            ask(&self.admin, Method::PATCH, path, &[], Some(&free)).await;
            ask(&self.admin, Method::DELETE, &format!("{path}?gracePeriodSeconds=0"), &[], None).await;
        }
    }

    /// Sends a case. If RBAC refuses it to the tenant, it is sent again by a client that may do everything.
    pub async fn send(&self, case: &Case) -> Answer {
        let (method, path) = match case.operation.as_deref() {
            Some("UPDATE") => (Method::PUT, path(case)),
            Some("DELETE") => (Method::DELETE, path(case)),
            _ => (Method::POST, format!("{}?{DRY_RUN}", collection(case))),
        };
        let body = if case.is_update() {
            match self.changed(case).await {
                Ok(changed) => Some(changed),
                Err(not_made) => return not_made,
            }
        } else {
            case.object.clone()
        };
        let body = body.as_ref();
        if let Some(user) = &case.user {
            let mut who = vec![("Impersonate-User", user.as_str()), ("Impersonate-Group", "system:authenticated")];
            who.extend(
                case.groups.iter().map(String::as_str).chain([EVERYTHING]).map(|group| ("Impersonate-Group", group)),
            );
            return ask(&self.admin, method, &path, &who, body).await;
        }
        let (_, own, everything) =
            self.tenants.iter().find(|(name, ..)| *name == case.tenant().0).expect("the case has a tenant");
        let answer = ask(own, method.clone(), &path, &[], body).await;
        if answer.status == 403 && answer.message().contains(" cannot ") {
            return ask(everything, method, &path, &[], body).await;
        }
        answer
    }

    /// Returns the stored object with the case's changes, or the API server's answer if the object does not exist.
    async fn changed(&self, case: &Case) -> Result<Value, Answer> {
        let found = ask(&self.admin, Method::GET, &object(case), &[], None).await;
        if !found.is_success() {
            return Err(found);
        }
        let mut stored = found.body;
        let (old, new) = (
            case.old.as_ref().expect("the case has this object"),
            case.object.as_ref().expect("the case has this object"),
        );
        for operation in json_patch::diff(old, new).0 {
            // If the stored object differs, the API server has filled the value in, or the change is impossible.
            let _ = json_patch::patch(&mut stored, &[operation]);
        }
        // Controllers change the object meanwhile, which must not count as a conflict.
        stored["metadata"].as_object_mut().and_then(|metadata| metadata.remove("resourceVersion"));
        Ok(stored)
    }
}

const DRY_RUN: &str = "dryRun=All&fieldValidation=Strict";

/// Returns `/apis/GROUP/VERSION/namespaces/NAMESPACE/RESOURCE`, and the subresource.
fn parts(case: &Case) -> (String, Option<String>) {
    let parts: Vec<&str> = case.resource.split('/').collect();
    let (root, rest) = if parts[0].starts_with('v') {
        ("/api".to_owned(), &parts[..])
    } else {
        (format!("/apis/{}", parts[0]), &parts[1..])
    };
    let is_clusterwide = ["namespaces", "certificatesigningrequests"].contains(&rest[1]);
    let within = if is_clusterwide { String::new() } else { format!("/namespaces/{}", case.tenant().1) };
    (format!("{root}/{}{within}/{}", rest[0], rest[1]), rest.get(2).map(|sub| format!("/{sub}")))
}

fn collection(case: &Case) -> String {
    parts(case).0
}

fn object(case: &Case) -> String {
    let either = case.old.as_ref().or(case.object.as_ref()).expect("the case has this object");
    format!("{}/{}", parts(case).0, either["metadata"]["name"].as_str().expect("a name is a string"))
}

fn path(case: &Case) -> String {
    format!("{}{}?{DRY_RUN}", object(case), parts(case).1.unwrap_or_default())
}

pub async fn ask(client: &Client, method: Method, path: &str, who: &[(&str, &str)], body: Option<&Value>) -> Answer {
    let kind = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
    let mut request = Request::builder().method(method).uri(path).header("Content-Type", kind);
    for (name, value) in who {
        request = request.header(*name, *value);
    }
    let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
    let request = request.body(kube::client::Body::from(body)).expect("the request is valid");
    let response = client.send(request).await.unwrap_or_else(|error| panic!("{path}: {error}"));
    let status = response.status().as_u16();
    let bytes = response.into_body().collect().await.expect("the answer has a body").to_bytes();
    Answer { status, body: serde_json::from_slice(&bytes).unwrap_or_default() }
}

/// Returns a kubeconfig with a certificate for an account, as the daemon would deliver it.
fn certified(site: &Site, account: &str, more: &[&str]) -> std::path::PathBuf {
    let (kind, name) = account.split_once(':').expect("the name has two parts");
    let key = rcgen::KeyPair::generate().expect("a key can be generated");
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, account);
    for group in [format!("bursar:{kind}s"), format!("bursar:{account}#1")]
        .iter()
        .map(String::as_str)
        .chain(more.iter().copied())
    {
        params.distinguished_name.push(rcgen::DnType::OrganizationName, group);
    }
    let csr = format!("tenant-{name}-{}", more.len());
    let request = params.serialize_request(&key).and_then(|request| request.pem()).expect("the request is valid");
    let encode = |text: &str| base64::Engine::encode(&base64::engine::general_purpose::STANDARD, text);
    let object = json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": csr},
        "spec": {"request": encode(&request), "usages": ["client auth"], "expirationSeconds": 3600,
            "signerName": "kubernetes.io/kube-apiserver-client"},
    });
    site.cluster.run(&["delete", "csr", &csr, "--ignore-not-found"], "");
    site.cluster.run(&["create", "-f", "-"], &object.to_string());
    site.cluster.run(&["certificate", "approve", &csr], "");
    let certificate = wait_for("the certificate is issued", DEADLINE, || {
        let found = site.cluster.run(&["get", "csr", &csr, "-o", "jsonpath={.status.certificate}"], "");
        (!found.is_empty()).then_some(found)
    });
    let kubeconfig = Kubeconfig::read_from(&site.cluster.admin_kubeconfig).expect("the kubeconfig is readable");
    let mut kubeconfig = serde_json::to_value(kubeconfig).expect("the value has a JSON form");
    kubeconfig["users"][0]["user"] =
        json!({"client-certificate-data": certificate, "client-key-data": encode(&key.serialize_pem())});
    let path = site.dir().with_file_name(format!("{csr}.kubeconfig"));
    std::fs::write(&path, kubeconfig.to_string()).expect("the folder is writable");
    path
}

/// Returns the definition of a kind of the Gateway API. Only the webhook knows the fields of its objects.
pub fn route(kind: &str) -> Value {
    let plural = format!("{}s", kind.to_lowercase());
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.gateway.networking.k8s.io"),
            "annotations": {"api-approved.kubernetes.io": "unapproved, a test"}},
        "spec": {"group": "gateway.networking.k8s.io", "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase(), "listKind": format!("{kind}List")},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]},
    })
}
