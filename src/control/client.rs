//! `bursar`'s end of the control socket: sends one request and returns its answer. If no answer comes, the error says
//! whether the daemon does not run, refuses, or broke the connection.

use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::api::{CycleReport, OrderAnswer, OwnRequest, PlanAnswer, PlanRequest, Status, StillReading, WhoRequest};
use crate::orders::request::{EnsureAnswer, EnsureRequest, OrderRequest, RequestRefusal};

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens on the socket.
    #[error("bursard does not answer at {}; start it with `systemctl start bursard`", socket.display())]
    Absent { socket: PathBuf },
    /// This user may not open the socket.
    #[error("you may not use {}; ask an administrator to add you to group bursar", socket.display())]
    Forbidden { socket: PathBuf },
    /// The daemon refused the request.
    #[error("{}", .0.text)]
    Refused(RequestRefusal),
    /// The connection broke, for example because the daemon was stopped meanwhile.
    #[error("the connection to bursard broke; see `journalctl -u bursard`")]
    Broken(#[source] reqwest::Error),
    /// The daemon accepted the connection, and then did not answer.
    #[error(
        "bursard is running but has not answered for {} s; see `systemctl status bursard`",
        STATUS_DEADLINE.as_secs()
    )]
    Silent,
    /// The answer is not valid JSON of the expected type.
    #[error("bursar cannot read the answer of bursard, whose version may differ; run: systemctl restart bursard")]
    Answer(#[source] serde_json::Error),
}

/// The daemon answers a request for its status without waiting for a cycle, so a longer wait means that it hangs.
const STATUS_DEADLINE: Duration = Duration::from_secs(15);

/// A client of the daemon at one socket. It connects with the first request, and waits as long as a cycle takes.
#[derive(Debug)]
pub struct ControlClient {
    socket: PathBuf,
    http: reqwest::Client,
}

impl ControlClient {
    /// Returns a client of the daemon at `socket`. The process needs a default TLS provider, although nothing is
    /// encrypted.
    pub fn new(socket: &Path) -> Result<Self, ClientError> {
        // A Unix socket needs no certificate authority. Without this line, `build` fails on a host without certificate
        // authorities (package ca-certificates).
        let builder = reqwest::Client::builder().unix_socket(socket).no_proxy().tls_certs_only([]);
        let http = builder.build().map_err(ClientError::Broken)?;
        Ok(Self { socket: socket.to_path_buf(), http })
    }

    /// Returns the daemon's status.
    pub async fn status(&self) -> Result<Status, ClientError> {
        let answer = self.answer(self.http.get(url("/v1/status")));
        tokio::time::timeout(STATUS_DEADLINE, answer).await.unwrap_or(Err(ClientError::Silent))
    }

    /// Returns what a cycle would do.
    pub async fn plan(&self, request: &PlanRequest) -> Result<PlanAnswer, ClientError> {
        self.post("/v1/plan", request).await
    }

    /// Starts a cycle, and returns its report when it has ended. The report names the sources that have not answered
    /// yet.
    pub async fn sync(&self) -> Result<CycleReport, ClientError> {
        self.answer(self.http.post(url("/v1/sync"))).await
    }

    /// Waits until one of these sources has answered, and returns the report of the cycle that used the answer.
    pub async fn sync_rest(&self, reading: &BTreeMap<String, StillReading>) -> Result<CycleReport, ClientError> {
        self.post("/v1/sync/rest", reading).await
    }

    /// Gives orders, and waits for the cycle that carries them out.
    pub async fn order(&self, orders: &[OrderRequest]) -> Result<OrderAnswer, ClientError> {
        self.post("/v1/orders", orders).await
    }

    /// Asks for a working kubeconfig of an account. The daemon does not wait for a cycle, but answers at once.
    pub async fn ensure(&self, request: &EnsureRequest) -> Result<EnsureAnswer, ClientError> {
        self.post("/v1/ensure", request).await
    }

    /// Returns what the ledger has about one of the caller's accounts, as `bursar show --json`.
    pub async fn show(&self, request: &OwnRequest) -> Result<Value, ClientError> {
        self.post("/v1/own/show", request).await
    }

    /// Explains the state of one of the caller's accounts, as `bursar why --json`.
    pub async fn why(&self, request: &OwnRequest) -> Result<Value, ClientError> {
        self.post("/v1/own/why", request).await
    }

    /// Finds which of the caller's accounts something in a log belongs to, as `bursar who --json`.
    pub async fn who(&self, request: &WhoRequest) -> Result<Value, ClientError> {
        self.post("/v1/own/who", request).await
    }

    async fn post<T: DeserializeOwned>(&self, path: &str, body: &(impl Serialize + ?Sized)) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).map_err(ClientError::Answer)?;
        self.answer(self.http.post(url(path)).header("content-type", "application/json").body(body)).await
    }

    async fn answer<T: DeserializeOwned>(&self, request: reqwest::RequestBuilder) -> Result<T, ClientError> {
        let response = request.send().await.map_err(|error| self.unsent(error))?;
        let served = response.status().is_success();
        let body = response.bytes().await.map_err(ClientError::Broken)?;
        if served {
            return serde_json::from_slice(&body).map_err(ClientError::Answer);
        }
        Err(serde_json::from_slice(&body).map_or_else(ClientError::Answer, ClientError::Refused))
    }

    fn unsent(&self, error: reqwest::Error) -> ClientError {
        let socket = self.socket.clone();
        match innermost(&error) {
            Some(io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => ClientError::Absent { socket },
            Some(io::ErrorKind::PermissionDenied) => ClientError::Forbidden { socket },
            _ if error.is_connect() => ClientError::Absent { socket },
            _ => ClientError::Broken(error),
        }
    }
}

/// Returns the kind of the innermost I/O error, which comes from the operating system.
fn innermost(error: &reqwest::Error) -> Option<io::ErrorKind> {
    let mut kind = None;
    let mut cause: Option<&(dyn Error + 'static)> = error.source();
    while let Some(error) = cause {
        kind = error.downcast_ref::<io::Error>().map(io::Error::kind).or(kind);
        cause = error.source();
    }
    kind
}

/// HTTP requires a host, but this name has no effect.
fn url(path: &str) -> String {
    format!("http://bursard{path}")
}
