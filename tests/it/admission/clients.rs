//! The client certificate of the API server. After a review has arrived with this certificate, the webhook demands it
//! from every client; before that, from nobody.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bursar_testkit::control_plane::ControlPlaneOptions;
use bursar_testkit::pki::{Authority, Identity, write_private, write_public};
use bursar_testkit::ready::{DEADLINE, wait_for};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::json;

use super::site::{Site, out, pod, said};

const NAME: &str = "front-proxy-client";
/// How long an API server waits for a webhook.
const PATIENCE: Duration = Duration::from_secs(10);

/// Writes the files with which an API server shows `client` to the webhook at `port`. Returns the argument that names
/// them.
fn admission_configuration(folder: &Path, port: u16, client: &Identity) -> String {
    let certificate = write_public(folder, "api-server-client.pem", &client.certificate);
    let key = write_private(folder, "api-server-client.key", &client.key);
    let user = json!({"name": format!("127.0.0.1:{port}"), "user": {
        "client-certificate": certificate, "client-key": key,
    }});
    let kubeconfig = json!({"apiVersion": "v1", "kind": "Config", "users": [user]});
    let kubeconfig = write_private(folder, "webhooks.kubeconfig", &kubeconfig.to_string());
    let plugins = ["MutatingAdmissionWebhook", "ValidatingAdmissionWebhook"].map(|name| {
        json!({"name": name, "configuration": {
            "apiVersion": "apiserver.config.k8s.io/v1", "kind": "WebhookAdmissionConfiguration", "kubeConfigFile": kubeconfig,
        }})
    });
    let configuration = json!({
        "apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration", "plugins": plugins,
    });
    let file = write_public(folder, "admission.yaml", &configuration.to_string());
    format!("--admission-control-config-file={}", file.display())
}

/// A connection to the port for reviews.
struct Connection(StreamOwned<ClientConnection, TcpStream>);

impl Connection {
    fn open(site: &Site, client: Option<&Identity>) -> Self {
        let mut roots = RootCertStore::empty();
        for authority in CertificateDer::pem_slice_iter(site.authorities().as_bytes()) {
            roots.add(authority.expect("the PEM is valid")).expect("the PEM is valid");
        }
        let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring supports both protocol versions")
            .with_root_certificates(roots);
        let config = match client {
            None => config.with_no_client_auth(),
            Some(client) => {
                let chain = CertificateDer::pem_slice_iter(client.certificate.as_bytes());
                let key = PrivateKeyDer::from_pem_slice(client.key.as_bytes()).expect("the key is valid");
                config
                    .with_client_auth_cert(chain.map(|one| one.expect("the PEM is valid")).collect(), key)
                    .expect("the key fits the certificate")
            }
        };
        let name = ServerName::try_from("127.0.0.1").expect("the name is valid");
        let connection = ClientConnection::new(Arc::new(config), name).expect("the TLS settings are valid");
        let socket = TcpStream::connect((Ipv4Addr::LOCALHOST, site.port)).expect("the server listens");
        socket.set_read_timeout(Some(PATIENCE)).expect("the timeout is not zero");
        Self(StreamOwned::new(connection, socket))
    }

    /// Sends a request and returns the status of the answer; an error if the webhook closes the connection.
    fn send(&mut self, path: &str, body: &str) -> io::Result<u16> {
        let length = body.len();
        write!(self.0, "POST {path} HTTP/1.1\r\nHost: webhook\r\nContent-Length: {length}\r\n\r\n{body}")?;
        let mut answer = Vec::new();
        loop {
            let mut byte = [0];
            self.0.read_exact(&mut byte)?;
            answer.push(byte[0]);
            if answer.ends_with(b"\r\n\r\n") {
                break;
            }
        }
        let head = String::from_utf8_lossy(&answer).to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
        io::copy(&mut io::Read::by_ref(&mut self.0).take(length.unwrap_or(0)), &mut io::sink())?;
        head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(|| io::Error::other(head.clone()))
    }

    fn review(&mut self) -> io::Result<u16> {
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "u", "operation": "DELETE", "resource": {"group": "", "version": "v1", "resource": "pods"},
        }});
        self.send("/validate", &review.to_string())
    }
}

/// Returns the status of a review on a new connection with this certificate; `None` if the webhook refuses the
/// connection.
fn review(site: &Site, client: Option<&Identity>) -> Option<u16> {
    Connection::open(site, client).review().ok()
}

fn keys(folder: &Path, authority: &Authority, name: &str) -> String {
    let file = write_public(folder, "client-ca.pem", &authority.identity().certificate);
    format!("[cluster.test.webhook]\nclient_ca = \"{}\"\nclient_name = \"{name}\"\n", file.display())
}

#[test]
fn after_the_api_server_has_shown_a_certificate_every_client_needs_it() {
    let (authority, strangers) = (Authority::new("api servers"), Authority::new("strangers"));
    let client = authority.client(NAME, "system");
    let mut site = Site::start_with(|folder, port| ControlPlaneOptions {
        api_server_arguments: vec![admission_configuration(folder, port, &client)],
        ..ControlPlaneOptions::default()
    });
    let folder = site.dir();
    let folder = folder.parent().expect("the path has a parent").to_owned();
    let doctor = |site: &Site| out(&site.bursar(&["doctor"]));
    assert_eq!(review(&site, None), Some(200));

    // The API server shows a certificate other than the one that the configuration names, so the webhook demands none.
    site.configure(&keys(&folder, &authority, "somebody-else"));
    let refused = site.try_install();
    assert_eq!(refused.status.code(), Some(1), "{}{}", out(&refused), said(&refused));
    let why = "it is for \"front-proxy-client\", and not for \"somebody-else\"";
    assert!(out(&refused).contains(why) && out(&refused).contains("is not demanded"), "{}", out(&refused));
    site.configure(&keys(&folder, &strangers, NAME));
    let refused = site.try_install();
    assert!(out(&refused).contains("UnknownIssuer"), "{}{}", out(&refused), said(&refused));
    assert_eq!(review(&site, None), Some(200));
    site.create(&pod("open")).expect("the pod is allowed");
    assert!(doctor(&site).contains("it does not demand the client certificate"), "{}", doctor(&site));

    // The API server shows the configured certificate.
    let mut early = Connection::open(&site, None);
    assert_eq!(early.send("/", "").expect("the webhook answers"), 404);
    site.configure(&keys(&folder, &authority, NAME));
    let installed = site.try_install();
    assert!(installed.status.success(), "{}{}", out(&installed), said(&installed));
    assert!(out(&installed).contains("the webhook answers only clients with the certificate"), "{}", out(&installed));
    wait_for("the webhook demands the certificate", DEADLINE, || review(&site, None).is_none().then_some(()));
    assert_eq!(early.review().expect("the webhook answers"), 403, "a connection from before is refused, too");
    let refused = |site: &Site| {
        let (wrong_name, wrong_authority) = (authority.client("kubelet", "system"), strangers.client(NAME, "system"));
        [None, Some(&wrong_name), Some(&wrong_authority)].map(|client| review(site, client))
    };
    assert_eq!(refused(&site), [None; 3]);
    assert_eq!(review(&site, Some(&client)), Some(200));
    assert_eq!(site.health("/readyz").0, 200);
    assert_eq!(site.health("/healthz").0, 200);
    let counted = "bursar_webhook_reviews_total{phase=\"handshake\",outcome=\"unidentified\"}";
    assert!(site.metric(counted).is_some_and(|count| count >= 4.0), "{}", site.health("/metrics").1);
    let log = std::fs::read_to_string(site.log()).expect("the log is readable");
    assert!(log.contains("a client without the certificate of client_ca and client_name was refused"), "{log}");
    site.create(&pod("closed")).expect("the pod is allowed");
    site.must(&["webhook", "selftest"]);
    assert!(!doctor(&site).contains("client certificate"), "{}", doctor(&site));

    // The demand stays in force after a restart and after another installation of the webhook.
    site.kill_webhook();
    site.start_webhook();
    assert_eq!(refused(&site), [None; 3]);
    site.install();
    assert_eq!(refused(&site), [None; 3]);
    // Configuring a certificate that the API server does not show changes nothing.
    site.configure(&keys(&folder, &strangers, NAME));
    assert_eq!(site.try_install().status.code(), Some(1));
    assert!(doctor(&site).contains("of an older client_ca or client_name"), "{}", doctor(&site));
    assert_eq!(refused(&site), [None; 3]);
    site.create(&pod("still")).expect("the pod is allowed");

    // Without these settings every client is answered again, but only after an installation.
    site.configure("");
    assert!(doctor(&site).contains("client_ca and client_name are not set"), "{}", doctor(&site));
    assert_eq!(review(&site, None), None);
    site.install();
    wait_for("the webhook demands no certificate", DEADLINE, || review(&site, None).filter(|status| *status == 200));
    site.create(&pod("open-again")).expect("the pod is allowed");
}

#[test]
fn an_api_server_without_a_certificate_can_still_use_the_webhook() {
    let site = Site::alone();
    let folder = site.dir();
    site.configure(&keys(folder.parent().expect("the path has a parent"), &Authority::new("api servers"), NAME));
    let installed = site.try_install();
    assert_eq!(installed.status.code(), Some(1), "{}{}", out(&installed), said(&installed));
    assert!(out(&installed).contains("does not show it to the webhook: it has none"), "{}", out(&installed));
    assert_eq!(review(&site, None), Some(200));
    site.create(&pod("without")).expect("the pod is allowed");
    site.delete("pod", "without", "tool-foo");
}
