//! Measures three things: the webhook's throughput, the webhook's memory with 10,000 namespaces, and the time that the
//! webhook adds to the creation of a pod. Run `make bench`, which needs `taskset` from util-linux.
//!
//! The throughput is compared with that of a server with the same TLS and HTTP code that reads each review and always
//! gives the same answer. The reviews are recorded from the API server. Each server runs on one core, and the load on
//! the other.

#![expect(clippy::disallowed_methods, reason = "a benchmark measures time")]

#[path = "admission/constant.rs"]
mod constant;
mod figures;
#[path = "admission/load.rs"]
mod load;
#[allow(dead_code, reason = "tests use the other items")]
#[path = "../tests/it/admission/site.rs"]
mod site;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use bursar::contract::{TenantState, annotate};
use bursar_testkit::ports::free_port;
use bursar_testkit::process::Process;
use bursar_testkit::ready::wait_for;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

use figures::{median, milliseconds};
use load::{Load, percentile};
use site::Site;

const ROUNDS: usize = 5;
const NAMESPACES: u32 = 10_000;
/// The number of pods that are created with the webhook. As many are created without it, one of each in turn.
const PODS: usize = 300;
const DEADLINE: Duration = Duration::from_mins(10);

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, constant, port, dir, record] = arguments.as_slice()
        && constant == "constant"
    {
        return constant::serve(port.parse().expect("the port is a number"), Path::new(dir), Path::new(record));
    }
    let mut site = Site::alone();
    on_core(1, std::process::id());
    on_core(0, site.webhook().id());
    let recorded = record(&site);
    println!("recorded: {} reviews, {} bytes on average", recorded.len(), recorded.concat().len() / recorded.len());
    throughput(&site, &recorded);
    latency(&site, &recorded);
    pods(&site);
    memory(&mut site);
}

fn on_core(core: u32, process: u32) {
    let pinned = Command::new("taskset").args(["-a", "-c", "-p", &core.to_string(), &process.to_string()]).output();
    assert!(pinned.expect("taskset is installed").status.success(), "no core {core}");
}

/// Starts a server with the webhook's certificate that always gives the same answer. The server writes each review that
/// it receives to folder `record`, unless `record` is empty.
fn constant(site: &Site, record: &Path) -> (Process, u16) {
    let port = free_port();
    let mut command = Command::new(std::env::current_exe().expect("the program knows its own path"));
    command.arg("constant").arg(port.to_string()).arg(site.dir()).arg(record);
    let server = Process::start("constant", &command, &site.log().with_extension("constant"));
    server.wait_until("a port", DEADLINE, || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
    (server, port)
}

/// Records the reviews that the API server sends to a webhook for some ordinary objects.
fn record(site: &Site) -> Vec<Vec<u8>> {
    let folder = site.dir().with_file_name("recorded");
    fs::create_dir_all(&folder).expect("the parent folder is writable");
    let (_server, port) = constant(site, &folder);
    let bundle = [
        "get",
        "mutatingwebhookconfiguration",
        "bursar-webhook",
        "-o",
        "jsonpath={.webhooks[0].clientConfig.caBundle}",
    ];
    let rule = |group: &str, resource: &str| json!({"apiGroups": [group], "apiVersions": ["*"], "operations": ["CREATE"], "resources": [resource]});
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "recorder"},
        "webhooks": [{
            "name": "recorder.example.org", "failurePolicy": "Ignore", "sideEffects": "None",
            "admissionReviewVersions": ["v1"], "namespaceSelector": {"matchLabels": {"bursar.dev/class": "tool"}},
            "clientConfig": {"url": format!("https://127.0.0.1:{port}/"), "caBundle": site.cluster.run(&bundle, "")},
            "rules": [rule("", "pods"), rule("apps", "deployments"), rule("networking.k8s.io", "ingresses"),
                rule("", "persistentvolumeclaims")],
        }],
    });
    site.cluster.run(&["create", "-f", "-"], &configuration.to_string());
    let objects = objects();
    let recorded = wait_for("recorded reviews", DEADLINE, || {
        for object in &objects {
            let made = site.tool("foo", &["create", "--dry-run=server", "-f", "-"], &object.to_string());
            assert!(made.status.success(), "{}", site::said(&made));
        }
        let files = fs::read_dir(&folder)
            .expect("the folder is readable")
            .map(|entry| fs::read(entry.expect("the folder is readable").path()).expect("the file is readable"));
        let files: Vec<Vec<u8>> = files.collect();
        (files.len() >= objects.len()).then_some(files)
    });
    site.cluster.run(&["delete", "validatingwebhookconfiguration", "recorder"], "");
    recorded
}

fn objects() -> [Value; 4] {
    let mut pod = site::pod("web");
    pod["spec"]["initContainers"] = json!([{"name": "init", "image": "registry.example.org/init"}]);
    let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": pod["spec"]});
    let of = |api_version: &str, kind: &str, spec: Value| json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "web", "namespace": "tool-foo"}, "spec": spec});
    let backend = json!({"service": {"name": "web", "port": {"number": 80}}});
    let paths = json!({"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]});
    let claim = json!({"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}});
    let deployment = json!({"selector": {"matchLabels": {"app": "web"}}, "template": template});
    [
        pod,
        of("apps/v1", "Deployment", deployment),
        of("networking.k8s.io/v1", "Ingress", json!({"rules": [{"host": "foo.tools.example.org", "http": paths}]})),
        of("v1", "PersistentVolumeClaim", claim),
    ]
}

/// Compares the maximum reviews per second of both servers.
fn throughput(site: &Site, recorded: &[Vec<u8>]) {
    let (server, port) = constant(site, Path::new(""));
    on_core(0, server.id());
    let (constant, webhook) = (Load::new(site, port), Load::new(site, site.port));
    let mut ratios: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let (theirs, ours) = (constant.full(recorded), webhook.full(recorded));
            println!(
                "constant answer: {theirs:.0} reviews/s, webhook: {ours:.0} reviews/s, ratio {:.2}",
                ours / theirs
            );
            ours / theirs
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    println!("throughput: median ratio {:.2} (goal 0.8)", ratios[ROUNDS / 2]);
}

/// Measures the duration of reviews at 2,000 per second, as seen by the client and in the webhook itself.
fn latency(site: &Site, recorded: &[Vec<u8>]) {
    let seconds = || site.metric("bursar_webhook_review_seconds_sum").expect("the webhook has this metric");
    let (before, spent) = (histogram(site), seconds());
    let times = Load::new(site, site.port).steady(recorded);
    let spent = seconds() - spent;
    let counts: Vec<(f64, f64)> =
        histogram(site).into_iter().zip(before).map(|((limit, after), (_, before))| (limit, after - before)).collect();
    let all = counts.last().expect("the histogram has buckets").1;
    let within =
        |part: f64| counts.iter().find(|(_, count)| *count >= all * part).map_or(f64::INFINITY, |(limit, _)| *limit);
    println!(
        "2,000 a second: at the client p50 {:.2} ms, p99 {:.2} ms; in the webhook p50 < {} ms, p99 < {} ms (goal 2), of {all}",
        milliseconds(percentile(&times, 0.5)),
        milliseconds(percentile(&times, 0.99)),
        within(0.5) * 1e3,
        within(0.99) * 1e3,
    );
    println!("one review is read and decided in {:.1} µs on average (goal 5)", spent / all * 1e6);
}

/// Returns the upper limit in seconds and the count of each bucket of the webhook's own histogram.
fn histogram(site: &Site) -> Vec<(f64, f64)> {
    let (_, text) = site.health("/metrics");
    let buckets = text.lines().filter_map(|line| {
        let (limit, count) = line.strip_prefix("bursar_webhook_review_seconds_bucket{le=\"")?.split_once("\"} ")?;
        Some((limit.parse().unwrap_or(f64::INFINITY), count.parse().ok()?))
    });
    buckets.collect()
}

/// Creates the same pod in a namespace with the webhook and in one without, in turn.
fn pods(site: &Site) {
    site.cluster.run(&["create", "namespace", "free"], "");
    let runtime = site::runtime();
    let (mut with, mut without) = (Vec::new(), Vec::new());
    runtime.block_on(async {
        let client = bursar::bootstrap::client(&site.cluster.admin_kubeconfig).await.expect("the kubeconfig is valid");
        let parameters = PostParams { dry_run: true, ..PostParams::default() };
        for round in 0..PODS * 2 {
            let (namespace, times) = if round % 2 == 0 { ("tool-foo", &mut with) } else { ("free", &mut without) };
            let mut pod: Pod = serde_json::from_value(site::pod_in(namespace, "bench")).expect("the manifest is a pod");
            pod.spec.as_mut().expect("the pod has a spec").automount_service_account_token = Some(false);
            let api = Api::<Pod>::namespaced(client.clone(), namespace);
            // The default service account is created shortly after the namespace.
            while round == 1 && api.create(&parameters, &pod).await.is_err() {}
            let began = Instant::now();
            api.create(&parameters, &pod).await.expect("the API server accepts the pod");
            times.push(began.elapsed());
        }
    });
    let (with, without) = (milliseconds(median(with)), milliseconds(median(without)));
    println!("a pod's creation: {with:.2} ms with the webhook (asked twice), {without:.2} ms without");
}

/// Measures the webhook's memory with all namespaces in the index: after it watched their creation, and after a restart
/// that listed them.
fn memory(site: &mut Site) {
    site::runtime().block_on(async {
        let client = bursar::bootstrap::client(&site.cluster.admin_kubeconfig).await.expect("the kubeconfig is valid");
        let api = Api::<Namespace>::all(client);
        let (sealer, parameters) = (site.sealer(), PostParams::default());
        let make = async |number: u32| {
            let name = format!("tool-t{number}");
            let uid = 100_000 + number;
            let account = format!("tool:t{number}");
            let identity = site::identity(&name, &account, (uid, uid, &[50_000, 50_001]), TenantState::Active);
            let manifest = json!({"metadata": {"name": name, "labels": {"bursar.dev/class": "tool"},
                "annotations": annotate(&identity, &sealer)}});
            let namespace: Namespace = serde_json::from_value(manifest).expect("the manifest is a namespace");
            api.create(&parameters, &namespace).await.expect("the API server accepts the namespace");
        };
        futures::stream::iter((0..NAMESPACES).map(make)).buffer_unordered(16).collect::<Vec<()>>().await;
    });
    let full = |site: &Site| {
        let known = || site.metric("bursar_webhook_index_namespaces").filter(|count| *count >= f64::from(NAMESPACES));
        wait_for("all namespaces in the index", DEADLINE, known);
        let status = fs::read_to_string(format!("/proc/{}/status", site.webhook().id())).expect("the webhook runs");
        let fields = status.lines().filter(|line| line.starts_with("VmRSS") || line.starts_with("VmHWM"));
        fields.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>().join(", ")
    };
    println!("{NAMESPACES} namespaces in the index: {} (goal 30 MiB)", full(site));
    site.kill_webhook();
    site.start_webhook();
    println!("the same after a new start: {}", full(site));
}
