//! One tenant floods the webhook, also without the API server in between. The pods of another tenant are still
//! admitted.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bursar_testkit::https::trusting;
use bursar_testkit::ready::{DEADLINE, wait_for};
use futures::future::join_all;
use http::Method;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::sender::Sender;
use super::site::{Site, pod, pod_in};

/// As many connections as the webhook accepts. A quarter of them come from the address of the API server.
const IDLE: usize = 1024;
const ADDRESSES: usize = 4;
/// The number of bodies of 1 to 7 MiB.
const LARGE: usize = 60;
/// The number of bodies that are decided together with those of other tenants.
const SMALL: usize = 20;
const MIB: usize = 1 << 20;
/// The number of wrong values in one body: half of the maximum that is read. A small body has a quarter of this number.
const WRONG: usize = 500_000;
/// The limit of the p99 of another tenant's pods, on a machine that does nothing else.
const P99: Duration = Duration::from_secs(1);
/// The limit of the webhook's container (`packaging/webhook`).
const MEMORY: u64 = 512 << 20;
/// The least time for which reviews of the other tenant are measured, so that idle connections end and are reopened,
/// too.
const AT_LEAST: Duration = Duration::from_secs(12);
/// How long the kubelet waits for probes.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Clone)]
struct Target {
    port: u16,
    tls: Arc<ClientConfig>,
}

impl Target {
    fn of(site: &Site) -> Self {
        let authorities = tempfile::NamedTempFile::new().expect("the system allows a temporary file");
        std::fs::write(authorities.path(), site.authorities()).expect("the folder is writable");
        Self { port: site.port, tls: trusting(authorities.path()) }
    }

    async fn connect(&self, from: Ipv4Addr, protocol: &[u8]) -> io::Result<TlsStream<TcpStream>> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from((from, 0)))?;
        let stream = socket.connect(SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))).await?;
        stream.set_nodelay(true)?;
        let mut tls = (*self.tls).clone();
        tls.alpn_protocols = vec![protocol.to_vec()];
        let name = ServerName::try_from("127.0.0.1").expect("the name is valid");
        TlsConnector::from(Arc::new(tls)).connect(name, stream).await
    }

    async fn http2(
        &self,
        from: Ipv4Addr,
    ) -> io::Result<(SendRequest<Full<Bytes>>, impl Future<Output = hyper::Result<()>> + use<>)> {
        let stream = TokioIo::new(self.connect(from, b"h2").await?);
        http2::handshake(TokioExecutor::new(), stream).await.map_err(io::Error::other)
    }
}

/// Opens connections that send nothing but `SETTINGS`, again and again.
async fn idle(target: Target, from: Ipv4Addr, opened: Arc<AtomicUsize>) -> Infallible {
    loop {
        if let Ok((_send, connection)) = target.http2(from).await {
            opened.fetch_add(1, Ordering::Relaxed);
            let _ = connection.await;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Sends one byte of a large body ten times a second, again and again.
async fn slow(target: Target, head: &'static str) -> Infallible {
    loop {
        if let Ok(mut stream) = target.connect(Ipv4Addr::LOCALHOST, b"http/1.1").await {
            let mut sent = stream.write_all(head.as_bytes()).await;
            while sent.is_ok() {
                tokio::time::sleep(Duration::from_millis(100)).await;
                sent = async {
                    stream.write_all(b"1\r\n \r\n").await?;
                    stream.flush().await
                }
                .await;
            }
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Returns a pod with an argument of this size.
fn large_pod(size: usize) -> Value {
    let mut pod = pod_in("tool-bar", "large");
    pod["spec"]["containers"][0]["args"] = json!(["x".repeat(size)]);
    pod
}

/// Returns a pod with this many wrong values.
fn wrong_pod(value: i64, count: usize) -> Value {
    let mut pod = pod_in("tool-bar", "large");
    pod["spec"]["securityContext"] = json!({"supplementalGroups": vec![value; count]});
    pod
}

/// Returns the body of a review of a pod.
fn body(pod: &Value) -> Bytes {
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "flood", "operation": "CREATE", "resource": {"group": "", "version": "v1", "resource": "pods"},
        "name": "large", "namespace": "tool-bar", "userInfo": {"username": "tool:bar"}, "object": pod,
    }});
    Bytes::from(review.to_string())
}

/// Sends a review until it is decided. Returns how often the webhook had no room for it.
async fn decided(target: Target, body: Bytes) -> usize {
    let mut times = 0;
    loop {
        if let Ok((mut send, connection)) = target.http2(Ipv4Addr::new(127, 0, 0, 9)).await {
            let connection = tokio::spawn(connection);
            let request = http::Request::post(format!("https://127.0.0.1:{}/validate", target.port));
            let answer = send.send_request(request.body(Full::new(body.clone())).expect("the request is valid")).await;
            connection.abort();
            match answer {
                Ok(answer) if answer.status() == 200 => return times,
                Ok(answer) if answer.status() == 503 => assert_eq!(answer.headers()["retry-after"], "1"),
                // The body arrived too slowly, because the machine is busy.
                Ok(answer) => assert_eq!(answer.status(), 408),
                Err(_) => {}
            }
        }
        times += 1;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

#[test]
fn a_flood_of_one_tenant_delays_neither_other_tenants_nor_probes() {
    let site = Site::alone();
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).expect("the limit can be raised");
    let (target, sender, opened) = (Target::of(&site), Sender::new(&site), Arc::new(AtomicUsize::new(0)));
    let flood = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("the system allows a runtime");
    let address =
        |number: usize| Ipv4Addr::new(127, 0, 0, u8::try_from(number % ADDRESSES + 1).expect("the number is small"));
    for number in 0..IDLE {
        flood.spawn(idle(target.clone(), address(number), Arc::clone(&opened)));
    }
    for head in [
        "POST /validate HTTP/1.1\r\nHost: webhook\r\nContent-Length: 7000000\r\n\r\n",
        "POST /validate HTTP/1.1\r\nHost: webhook\r\nTransfer-Encoding: chunked\r\n\r\n",
        "POST /validate HTTP/1.1\r\nHost: webhook\r\nContent-Length: 200000\r\n\r\n",
    ] {
        flood.spawn(slow(target.clone(), head));
    }
    wait_for("all idle connections are open", DEADLINE, || (opened.load(Ordering::Relaxed) >= IDLE).then_some(()));

    #[expect(clippy::disallowed_methods, reason = "this test measures times")]
    let now = Instant::now;
    let began = now();
    let large = |number: usize| {
        // Two digits and a comma for each value make more than 1 MiB.
        let pod = if number.is_multiple_of(2) { wrong_pod(10, WRONG) } else { large_pod(MIB + number % 7 * MIB) };
        let body = body(&pod);
        assert!((MIB..8 * MIB).contains(&body.len()), "{}", body.len());
        body
    };
    let small = (0..SMALL).map(|_| body(&wrong_pod(0, WRONG / 4)));
    let bodies = (0..LARGE).map(large).chain(small).map(|body| flood.spawn(decided(target.clone(), body)));
    let bodies = flood.spawn(join_all(bodies.collect::<Vec<_>>()));
    let (mut times, mut slowest_probe, mut slowest_other) = (Vec::new(), Duration::ZERO, Duration::ZERO);
    sender.runtime.block_on(async {
        while began.elapsed() < AT_LEAST || (!bodies.is_finished() && began.elapsed() < DEADLINE) {
            let asked = now();
            let answer = sender.plain_pod().await;
            times.push(asked.elapsed());
            assert!(answer.is_success(), "after {:?}: {}", asked.elapsed(), answer.message());
            if times.len().is_multiple_of(10) {
                let asked = now();
                let (status, text) = site.health("/readyz");
                assert_eq!(status, 200, "{text}");
                slowest_probe = slowest_probe.max(asked.elapsed());
                // A request without the webhook shows how busy the machine is.
                let asked = now();
                site.cluster.run(&["get", "--raw", "/version"], "");
                slowest_other = slowest_other.max(asked.elapsed());
            }
        }
    });
    times.sort();
    let p99 = times[times.len() * 99 / 100];
    eprintln!("{} pods, p99 {p99:?}; slowest probe {slowest_probe:?}; {opened:?} idle connections", times.len());
    assert!(times.len() > 50 && p99 < P99 + slowest_other, "{p99:?} of {}, {slowest_other:?}", times.len());
    assert!(slowest_probe < PATIENCE + slowest_other, "{slowest_probe:?}, {slowest_other:?}");
    assert!(bodies.is_finished(), "not all bodies were decided within {DEADLINE:?}");
    let again: Vec<usize> = flood
        .block_on(bodies)
        .expect("the flood ends without a panic")
        .into_iter()
        .map(|times| times.expect("no review panics"))
        .collect();
    assert!(again.iter().any(|times| *times > 0), "the flood was too small: there was always room for it");
    flood.shutdown_background();
    let status = std::fs::read_to_string(format!("/proc/{}/status", site.webhook().id())).expect("the webhook runs");
    let peak =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    let peak = peak.expect("the kernel reports the peak") << 10;
    eprintln!("the webhook took {} MiB at most", peak >> 20);
    assert!(peak < MEMORY, "{peak}");
}

#[test]
fn the_largest_objects_can_be_edited_suspended_and_deleted() {
    let site = Site::shared();
    let sender = Sender::new(&site);
    sender.runtime.block_on(async {
        largest_workload(&sender).await;
        largest_pod(&sender).await;
    });
    site.delete("cronjob", "large", "tool-foo");
}

async fn largest_workload(sender: &Sender) {
    let mut template = pod("large");
    template["metadata"] = json!({"labels": {"a": "b"}});
    template["spec"]["restartPolicy"] = json!("Never");
    // etcd accepts 1.5 MiB, and the API server writes each `<` as six bytes.
    template["spec"]["containers"][0]["args"] = json!(["<".repeat(14 * MIB / 10)]);
    let large = json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "large", "namespace": "tool-foo"},
        "spec": {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": {"template": template}}}});
    let jobs = "/apis/batch/v1/namespaces/tool-foo/cronjobs";
    let created = sender.as_foo(Method::POST, jobs, &large).await;
    assert!(created.is_success(), "{}", created.message());
    // The webhook is asked about the template, with the old and the new object.
    let edited = json!({"spec": {"jobTemplate": {"metadata": {"annotations": {"a": "b"}}}}});
    let stopped = json!({"spec": {"suspend": true}});
    for patch in [edited, stopped] {
        let patched = sender.as_foo(Method::PATCH, &format!("{jobs}/large"), &patch).await;
        assert!(patched.is_success(), "{}", patched.message());
    }
}

async fn largest_pod(sender: &Sender) {
    let with = |name: &str, size: usize| {
        let mut large = pod(name);
        large["metadata"]["finalizers"] = json!(["example.org/x"]);
        large["spec"]["containers"][0]["args"] = json!(["<".repeat(size)]);
        large
    };
    let labels = |count: usize| -> Value {
        let label = |number: usize| (format!("{number:0>63}"), json!("x".repeat(63)));
        json!({"metadata": {"labels": (0..count).map(label).collect::<serde_json::Map<_, _>>()}})
    };
    let owner = |number: usize, name: String| json!({"apiVersion": "v1", "kind": "Node", "name": name, "uid": number.to_string()});
    // The API server removes duplicate references.
    let owners: Vec<Value> = (0..33).map(|number| owner(number, "x".to_owned())).collect();
    let finalizers: Vec<String> = (0..33).map(|number| format!("example.org/{number}")).collect();
    // The client chooses the name of the manager in these entries.
    let managed = |number: usize, key: &str| {
        json!({
            "manager": format!("m{number}"), "operation": "Apply", "apiVersion": "v1", "time": "2026-05-03T12:00:00Z",
            "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": {"f:annotations": {format!("f:{key}"): {}}}},
        })
    };
    let pods = "/api/v1/namespaces/tool-foo/pods";
    let mut made = pod("managed");
    made["metadata"]["managedFields"] = json!([managed(1, &"x".repeat(300 << 10))]);
    let refused = sender.as_foo(Method::POST, pods, &made).await;
    assert!(refused.message().contains("KiB of metadata.managedFields"), "{} {}", refused.status, refused.message());
    let refused = sender.as_foo(Method::POST, pods, &with("larger", 800 << 10)).await;
    assert!(refused.message().contains("could grow until it cannot be deleted"), "{}", refused.message());
    let created = sender.as_foo(Method::POST, pods, &with("large", 760 << 10)).await;
    assert!(created.is_success(), "{}", created.message());
    let path = format!("{pods}/large");
    for (metadata, who) in [
        (json!({"annotations": {"a": "x".repeat(200 << 10)}}), "768 KiB"),
        (labels(129)["metadata"].clone(), "bursar-size"),
        (json!({"finalizers": finalizers}), "bursar-size"),
        (json!({"ownerReferences": owners}), "bursar-size"),
        (json!({"ownerReferences": [owner(1, "x".repeat(700 << 10))]}), "bursar-size"),
        (json!({"managedFields": [managed(1, &"x".repeat(300 << 10))]}), "bursar-size"),
        (
            json!({"managedFields": (0..3000).map(|number| managed(number, "xxxxxxxxxx")).collect::<Vec<_>>()}),
            "bursar-size",
        ),
        // A character may take four bytes in etcd, and a control character six.
        (json!({"ownerReferences": [owner(1, "\u{20000}".repeat(300))]}), "bursar-size"),
        (json!({"managedFields": [managed(1, &"\u{20000}".repeat(100 << 10))]}), "bursar-size"),
        (json!({"managedFields": [managed(1, &"\u{8}".repeat(80 << 10))]}), "bursar-size"),
        (json!({"managedFields": [managed(1, &"\u{1}".repeat(60 << 10))]}), "bursar-size"),
    ] {
        let refused = sender.as_foo(Method::PATCH, &path, &json!({"metadata": metadata})).await;
        let keys: Vec<&String> = metadata.as_object().into_iter().flat_map(|metadata| metadata.keys()).collect();
        let is_refused = !refused.is_success() && refused.message().contains(who);
        assert!(is_refused, "{keys:?}: {} {}", refused.status, refused.message());
    }
    let patched = sender.as_foo(Method::PATCH, &path, &labels(128)).await;
    assert!(patched.is_success(), "{}", patched.message());
    let deleted = sender.as_foo(Method::DELETE, &path, &json!({})).await;
    assert!(deleted.is_success(), "{}", deleted.message());
    let freed = sender.as_foo(Method::PATCH, &path, &json!({"metadata": {"finalizers": null}})).await;
    assert!(freed.is_success(), "{}", freed.message());
}
