//! A proxy between Bursar and a realm. It forwards requests, except those that a test answers in another way.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bursar_directory::source::KeycloakConfig;
use reqwest::Certificate;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::Realm;

/// What happens to a request.
pub enum Fate {
    /// The server's answer is returned.
    Passed,
    /// This status and body are returned.
    Answered(u16, &'static str),
    /// This many bytes of the server's answer are returned, then the connection is closed.
    Cut(usize),
    /// The server handles the request, but its answer is dropped.
    Lost,
    /// There is no answer for a minute.
    Silent,
}

type Judge = dyn Fn(&str) -> Fate + Send + Sync;

/// Returns the configuration of a realm behind a proxy that asks `judge` about each request (path and query), and the
/// list of all requests.
pub async fn between(
    realm: &Realm,
    judge: impl Fn(&str) -> Fate + Send + Sync + 'static,
) -> (KeycloakConfig, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("the system has a free port");
    let url = format!("http://{}", listener.local_addr().expect("a listener has an address"));
    let config = KeycloakConfig { url, allow_plaintext: true, ca_pem: None, ..realm.config() };
    // Even for plain HTTP, the client loads the host's trusted authorities. This fails on a host that has none, so the
    // configuration names one.
    let config = KeycloakConfig { ca_pem: realm.config().ca_pem, ..config };
    let pem = realm.config().ca_pem.expect("the PEM is valid");
    let trusted = Certificate::from_pem_bundle(pem.as_bytes()).expect("the PEM is valid");
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client =
        reqwest::Client::builder().tls_certs_only(trusted).no_proxy().build().expect("the TLS settings are valid");
    let (judge, server): (Arc<Judge>, _) = (Arc::new(judge), realm.server.url.clone());
    let asked = Arc::new(Mutex::new(Vec::new()));
    let requests = Arc::clone(&asked);
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let (judge, client, server, requests) = (judge.clone(), client.clone(), server.clone(), requests.clone());
            tokio::spawn(async move {
                let _ = serve(socket, &*judge, &client, &server, &requests).await;
            });
        }
    });
    (config, asked)
}

/// Handles one request, then closes the connection.
async fn serve(
    mut socket: TcpStream,
    judge: &Judge,
    client: &reqwest::Client,
    server: &str,
    requests: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let mut bytes = Vec::new();
    let head = loop {
        if socket.read_buf(&mut bytes).await? == 0 {
            return Ok(());
        }
        if let Some(end) = bytes.windows(4).position(|end| end == b"\r\n\r\n") {
            break String::from_utf8_lossy(&bytes[..end]).into_owned();
        }
    };
    let mut lines = head.lines();
    let mut request = lines.next().unwrap_or_default().split(' ');
    let (method, path) = (request.next().unwrap_or_default(), request.next().unwrap_or_default().to_owned());
    let fields: Vec<(String, &str)> =
        lines.filter_map(|line| line.split_once(": ")).map(|(name, value)| (name.to_lowercase(), value)).collect();
    let length =
        fields.iter().find(|(name, _)| name == "content-length").map_or(0, |(_, text)| text.parse().unwrap_or(0));
    let mut body = bytes.split_off(head.len() + 4);
    while body.len() < length {
        socket.read_buf(&mut body).await?;
    }
    requests.lock().expect("no thread panics with the lock").push(path.clone());
    // `judge` may wait for the server, so it may block.
    let fate = tokio::task::block_in_place(|| judge(&path));
    let (status, mut answer) = match fate {
        Fate::Answered(status, text) => (status, text.as_bytes().to_vec()),
        Fate::Silent => {
            tokio::time::sleep(Duration::from_mins(1)).await;
            return Ok(());
        }
        Fate::Passed | Fate::Cut(_) | Fate::Lost => {
            let mut onward =
                client.request(method.parse().expect("the method is valid"), format!("{server}{path}")).body(body);
            for (name, value) in fields.iter().filter(|(name, _)| name != "host" && name != "content-length") {
                onward = onward.header(name, *value);
            }
            let answer = onward.send().await.expect("the server answers");
            (answer.status().as_u16(), answer.bytes().await.expect("the answer has a body").to_vec())
        }
    };
    if matches!(fate, Fate::Lost) {
        return Ok(());
    }
    let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", answer.len());
    if let Fate::Cut(after) = fate {
        answer.truncate(after);
    }
    socket.write_all(&[head.as_bytes(), &answer].concat()).await?;
    socket.shutdown().await
}
