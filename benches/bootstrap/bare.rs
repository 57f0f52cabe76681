//! The upper bound for a bootstrap: processes a given number of tenants at a time, each object with one POST and each
//! certificate with its four requests. Nothing is read, recorded, checked or delivered. The loop uses the daemon's
//! credential, so that the API server's authorization and admission are the same.
//!
//! A POST is the cheapest write. Bursar writes by server-side apply, because only that records which fields are its
//! own. The same loop with apply shows the additional cost in the API server.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bursar::contract::{MANAGED_BY, MANAGER};
use bursar::execute::keypair::{Names, NewKey};
use bursar::execute::signing::SIGNER;
use bursar::kinds::{ObjectKind, everywhere};
use bursar::observed::cluster::connect;
use futures::StreamExt as _;
use http::{Method, Request, header};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, Config};
use serde_json::{Value, json};
use tokio::sync::oneshot;

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum How {
    Post,
    Apply,
}

type Waiters = Arc<Mutex<BTreeMap<String, oneshot::Sender<()>>>>;

/// Creates the objects of each tenant, namespace first, and a certificate for it. Returns the duration.
pub async fn create(kubeconfig: &Path, tenants: Vec<Vec<Value>>, how: How, width: usize) -> Duration {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).expect("the kubeconfig is readable");
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    let client = connect(config.expect("the kubeconfig is valid")).expect("the TLS settings are valid");
    let waiters = Waiters::default();
    let (listed, ready) = oneshot::channel();
    let watching = tokio::spawn(watch(client.clone(), Arc::clone(&waiters), listed));
    ready.await.expect("the watch begins");
    let (client, waiters) = (&client, &waiters);
    let began = Instant::now();
    let work: Vec<_> = tenants.iter().map(|objects| tenant(client, waiters, objects, how)).collect();
    futures::stream::iter(work).buffer_unordered(width).collect::<Vec<()>>().await;
    let took = began.elapsed();
    watching.abort();
    took
}

async fn tenant(client: &Client, waiters: &Waiters, objects: &[Value], how: How) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    for object in objects {
        let kind = everywhere(&ObjectKind::of_manifest(object)).expect("every cluster has this kind");
        let metadata = &object["metadata"];
        let path = |name| kind.path(metadata["namespace"].as_str(), name);
        match how {
            How::Post => send(client, Method::POST, &path(None), "application/json", object).await,
            How::Apply => {
                let path = path(metadata["name"].as_str());
                send(client, Method::PATCH, &path, "application/apply-patch+yaml", object).await;
            }
        }
    }
    certificate(client, waiters, &text(&objects[0]["metadata"]["name"])).await;
}

async fn certificate(client: &Client, waiters: &Waiters, name: &str) {
    let account = format!("tool:{name}");
    let key = NewKey::generate().expect("a key can be generated");
    let groups = [Some("bursar:tools"), Some("bursar:tool:bare#1")];
    let names = Names { common_name: &account, organizations: groups, serial_number: Some("bare") };
    let object = json!({
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": format!("bursar-{name}"), "labels": {MANAGED_BY: MANAGER}},
        "spec": {
            "request": BASE64.encode(key.request(names).expect("a key signs its own request")),
            "signerName": SIGNER,
            "expirationSeconds": 604_800,
            "usages": ["client auth", "digital signature"],
        },
    });
    let approval = json!({"status": {"conditions": [{
        "type": "Approved", "status": "True", "reason": "BursarApproved", "message": "requested by a benchmark",
    }]}});
    let (tell, told) = oneshot::channel();
    waiters.lock().unwrap_or_else(PoisonError::into_inner).insert(format!("bursar-{name}"), tell);
    send(client, Method::POST, REQUESTS, "application/json", &object).await;
    let path = format!("{REQUESTS}/bursar-{name}");
    send(client, Method::PATCH, &format!("{path}/approval"), "application/merge-patch+json", &approval).await;
    tokio::time::timeout(Duration::from_mins(1), told)
        .await
        .expect("the cluster signs within a minute")
        .expect("the watch lasts");
    send(client, Method::DELETE, &path, "application/json", &json!({})).await;
}

/// Notifies the task that waits for the certificate of a request.
async fn watch(client: Client, waiters: Waiters, listed: oneshot::Sender<()>) {
    let config = watcher::Config::default().labels(&format!("{MANAGED_BY}={MANAGER}"));
    let mut events = std::pin::pin!(watcher(Api::<CertificateSigningRequest>::all(client), config).default_backoff());
    let mut listed = Some(listed);
    while let Some(event) = events.next().await {
        match event.expect("the watch lasts") {
            watcher::Event::InitDone => listed.take().into_iter().for_each(tell),
            watcher::Event::Apply(request) if request.status.as_ref().is_some_and(|s| s.certificate.is_some()) => {
                let name = request.metadata.name.unwrap_or_default();
                waiters.lock().unwrap_or_else(PoisonError::into_inner).remove(&name).into_iter().for_each(tell);
            }
            _ => {}
        }
    }
}

fn tell(waiter: oneshot::Sender<()>) {
    // The send fails if the task no longer waits.
    let _ = waiter.send(());
}

async fn send(client: &Client, method: Method, path: &str, content_type: &str, body: &Value) {
    let request = Request::builder()
        .method(&method)
        .uri(format!("{path}?fieldManager=bursar"))
        .header(header::ACCEPT, "application/json")
        .header(header::CONTENT_TYPE, content_type)
        .body(Body::from(body.to_string().into_bytes()))
        .expect("the request is valid");
    let response = client.send(request).await.expect("the API server answers");
    let status = response.status();
    let answer = response.into_body().collect_bytes().await.expect("the whole answer");
    assert!(status.is_success(), "{method} {path}: {status}: {}", String::from_utf8_lossy(&answer));
}
