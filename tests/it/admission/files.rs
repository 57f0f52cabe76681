//! The webhook's certificate and rules change while it serves.

use std::fs;
use std::io::{Read as _, Write as _};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bursar::bootstrap;
use bursar_testkit::ready::{DEADLINE, wait_for};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

use super::site::{Site, pod};
use crate::world::runtime;

/// Sends dry runs for pods of tool foo as fast as possible until `stop`. Returns how many were sent, and the refusals.
pub fn load(site: &Site, stop: &AtomicBool) -> (usize, Vec<String>) {
    runtime().block_on(async {
        let client = bootstrap::client(&site.cluster.admin_kubeconfig).await.expect("the kubeconfig is valid");
        let api = Api::<Pod>::namespaced(client, "tool-foo");
        let (done, parameters) = (AtomicUsize::new(0), PostParams { dry_run: true, ..PostParams::default() });
        let plain: Pod = serde_json::from_value(pod("load")).expect("the value is a pod");
        let one = async || {
            let mut refused = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                if let Err(error) = api.create(&parameters, &plain).await {
                    refused.push(error.to_string());
                }
                done.fetch_add(1, Ordering::Relaxed);
            }
            refused
        };
        let refused = futures::future::join_all((0..4).map(|_| one())).await;
        (done.load(Ordering::Relaxed), refused.concat())
    })
}

/// Returns the certificate that the webhook shows on a new connection. openssl must trust it, as the API server would.
pub fn shown(site: &Site) -> String {
    let authorities = tempfile::NamedTempFile::new().expect("the system allows a temporary file");
    fs::write(authorities.path(), site.authorities()).expect("the folder is writable");
    let mut command = std::process::Command::new("openssl");
    command.args(["s_client", "-verify_return_error", "-connect", &format!("127.0.0.1:{}", site.port), "-CAfile"]);
    let output = bursar_testkit::process::run(
        {
            command.arg(authorities.path());
            command
        },
        "",
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn no_review_fails_while_certificate_and_authority_change() {
    let site = Site::alone();
    let file = || fs::read_to_string(site.dir().join("tls.crt")).expect("the file is readable");
    let stop = AtomicBool::new(false);
    let (done, refused) = std::thread::scope(|scope| {
        let load = scope.spawn(|| load(&site, &stop));
        let before = site.authorities();
        for _ in 0..3 {
            let old = file();
            // The successor of the expiring authority signs from now on: see `Site::start`.
            site.install();
            assert_ne!(file(), old);
            wait_for("new connections show the new certificate", DEADLINE, || {
                shown(&site).contains(&file()).then_some(())
            });
        }
        assert_eq!(site.authorities(), before, "the API server trusts both authorities all the time");
        stop.store(true, Ordering::Relaxed);
        load.join().expect("the thread does not panic")
    });
    assert!(done > 100, "only {done} reviews were sent");
    assert!(refused.is_empty(), "{} of {done}: {:?}", refused.len(), refused.first());
}

#[test]
fn invalid_rules_are_reported_and_the_old_ones_stay_in_force() {
    let site = Site::alone();
    let file = site.dir().join("rules.json");
    let right = fs::read_to_string(&file).expect("the file is readable");
    let wrong = || site.metric("bursar_webhook_file_wrong{file=\"rules\"}");
    assert_eq!(wrong(), Some(0.0));
    fs::write(&file, right.replace("\"version\": 1", "\"version\": 99")).expect("the folder is writable");
    wait_for("the metric reports the wrong file", DEADLINE, || (wrong() == Some(1.0)).then_some(()));
    let log = || fs::read_to_string(site.log()).expect("the log is readable");
    wait_for("the log names the reason", DEADLINE, || log().contains("has version 99").then_some(()));
    let mut root = pod("root");
    root["spec"]["securityContext"] = json!({"runAsUser": 0});
    assert!(site.create(&root).expect_err("the old rules are still enforced").contains("uid 0"));
    assert_eq!(site.health("/readyz").0, 200);

    fs::write(&file, right.replace("registry.example.org/", "other.example.org/")).expect("the folder is writable");
    wait_for("other rules are in force", DEADLINE, || {
        let refused = site.create(&pod("now-refused")).err()?;
        refused.contains("other.example.org").then_some(())
    });
    assert_eq!(wrong(), Some(0.0));
}

#[test]
fn the_second_port_serves_health_and_metrics() {
    let site = Site::shared();
    assert_eq!(site.health("/healthz"), (200, "ok\n".to_owned()));
    let _ = site.create(&pod("../refused-by-its-name"));
    for name in ["bursar_webhook_index_age_seconds", "bursar_webhook_index_namespaces"] {
        assert!(site.metric(name).is_some(), "{name}: {}", site.health("/metrics").1);
    }
    let ends = site.metric("bursar_webhook_certificate_expiry_seconds").expect("the webhook has a certificate");
    assert!(ends > 300.0 * 24.0 * 3600.0, "{ends}");
    assert!(site.metric("bursar_webhook_index_namespaces") >= Some(3.0));
}

#[test]
fn a_malformed_review_gets_a_clean_400() {
    let site = Site::shared();
    let post = |path: &str, body: Vec<u8>, more: &[&str]| {
        let file = tempfile::NamedTempFile::new().expect("the system allows a temporary file");
        fs::write(file.path(), body).expect("the folder is writable");
        let mut command = std::process::Command::new("curl");
        command.args(["-sk", "-o", "/dev/null", "-w", "%{http_code} %{http_version}", "--data-binary"]);
        command.arg(format!("@{}", file.path().display())).args(["-H", "Expect:"]).args(more);
        let answer = command.arg(format!("{}{path}", site.url())).output().expect("curl is installed");
        String::from_utf8(answer.stdout).expect("the output is UTF-8")
    };
    // Other tests use up the connections of this address, and an idle one may be closed. An API server would try again,
    // too.
    let answered = |path: &str, body: Vec<u8>, more: &[&str]| {
        wait_for("the webhook answers", DEADLINE, || {
            Some(post(path, body.clone(), more)).filter(|answer| answer != "000 0")
        })
    };
    assert_eq!(answered("/validate", b"not JSON".to_vec(), &[]), "400 2");
    assert_eq!(answered("/validate", b"{}".to_vec(), &["--http1.1"]), "400 1.1");
    assert_eq!(answered("/mutate", vec![b' '; 21 << 20], &["--http1.1"]), "413 1.1");
    assert_eq!(answered("/elsewhere", b"{}".to_vec(), &[]), "404 2");
    assert_eq!(answered("/validate", b"{}".to_vec(), &["-X", "PUT"]), "405 2");
    assert_eq!(post("/validate", b"{}".to_vec(), &["--tls-max", "1.1"]), "000 0");
    assert_eq!(answered("/validate", b"{}".to_vec(), &["--tls-max", "1.2"]), "400 2");
}

#[test]
fn the_webhook_finishes_open_reviews_before_it_stops() {
    let site = Site::alone();
    let authorities = tempfile::NamedTempFile::new().expect("the system allows a temporary file");
    fs::write(authorities.path(), site.authorities()).expect("the folder is writable");
    let trust = bursar_testkit::https::trusting(authorities.path());
    let socket = std::net::TcpStream::connect(("127.0.0.1", site.port)).expect("the server listens");
    let name = rustls::pki_types::ServerName::try_from("127.0.0.1").expect("the name is valid");
    let connection = rustls::ClientConnection::new(trust, name).expect("the TLS settings are valid");
    let mut stream = rustls::StreamOwned::new(connection, socket);
    let head = "POST /validate HTTP/1.1\r\nHost: webhook\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{";
    stream.write_all(head.as_bytes()).and_then(|()| stream.flush()).expect("the first half of a review is sent");
    // A later request was answered, so the webhook has received the first half.
    assert_eq!(site.health("/healthz").0, 200);
    site.webhook().signal(rustix::process::Signal::TERM);
    wait_for("new connections are refused", DEADLINE, || {
        std::net::TcpStream::connect(("127.0.0.1", site.port)).is_err().then_some(())
    });
    stream.write_all(b"}").and_then(|()| stream.flush()).expect("the second half is sent");
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("AdmissionReview"), "{answer}");
    assert_eq!(site.webhook().wait(DEADLINE).code(), Some(0));
}
