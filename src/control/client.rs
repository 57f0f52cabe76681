//! `bursar`'s end of the control socket: one request, its answer, and the daemon that is not there told apart from one
//! that refuses.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::api::{CycleReport, OrderAnswer, OwnRequest, PlanAnswer, PlanRequest, Status, WhoRequest};
use crate::orders::request::{EnsureAnswer, EnsureRequest, OrderRequest, Refusal};

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens there.
    #[error("bursard does not answer at {}; start it with `systemctl start bursard`", socket.display())]
    Absent {
        /// The socket.
        socket: PathBuf,
    },
    /// The socket is not for this user.
    #[error("you may not use {}; ask an administrator to add you to group bursar", socket.display())]
    Forbidden {
        /// The socket.
        socket: PathBuf,
    },
    /// It answered that it will not.
    #[error("{}", .0.text)]
    Refused(Refusal),
    /// The conversation broke off: it was stopped meanwhile.
    #[error("the connection to bursard broke; see `journalctl -u bursard`")]
    Broken(#[source] reqwest::Error),
    /// What came back is nothing we know.
    #[error("bursar cannot read the answer of bursard, whose version may differ; run: systemctl restart bursard")]
    Answer(#[source] serde_json::Error),
}

/// A client of the daemon at one socket. It connects when first asked, and waits as long as a cycle takes.
#[derive(Debug)]
pub struct ControlClient {
    socket: PathBuf,
    http: reqwest::Client,
}

impl ControlClient {
    /// A client of the daemon at `socket`. The process needs a default TLS provider, though nothing is encrypted here.
    pub fn new(socket: &Path) -> Result<Self, ClientError> {
        // No authority is asked for at a socket; without this a host that has none (no ca-certificates) is an error.
        let builder = reqwest::Client::builder().unix_socket(socket).no_proxy().tls_certs_only([]);
        let http = builder.build().map_err(ClientError::Broken)?;
        Ok(Self { socket: socket.to_path_buf(), http })
    }

    /// How things stand.
    pub async fn status(&self) -> Result<Status, ClientError> {
        self.answer(self.http.get(url("/v1/status"))).await
    }

    /// What a cycle would do.
    pub async fn plan(&self, request: &PlanRequest) -> Result<PlanAnswer, ClientError> {
        self.answer(self.http.post(url("/v1/plan")).header("content-type", "application/json").body(json(request)?))
            .await
    }

    /// A cycle that begins after this, when it is done.
    pub async fn sync(&self) -> Result<CycleReport, ClientError> {
        self.answer(self.http.post(url("/v1/sync"))).await
    }

    /// Gives orders, and waits for the cycle that carries them out.
    pub async fn order(&self, orders: &[OrderRequest]) -> Result<OrderAnswer, ClientError> {
        self.answer(self.http.post(url("/v1/orders")).header("content-type", "application/json").body(json(&orders)?))
            .await
    }

    /// Asks for an account; answers at once.
    pub async fn ensure(&self, request: &EnsureRequest) -> Result<EnsureAnswer, ClientError> {
        self.answer(self.http.post(url("/v1/ensure")).header("content-type", "application/json").body(json(request)?))
            .await
    }

    /// What the ledger says of one's own, as `bursar show --json`.
    pub async fn show(&self, request: &OwnRequest) -> Result<Value, ClientError> {
        self.answer(self.http.post(url("/v1/own/show")).header("content-type", "application/json").body(json(request)?))
            .await
    }

    /// Why it is as it is, as `bursar why --json`.
    pub async fn why(&self, request: &OwnRequest) -> Result<Value, ClientError> {
        self.answer(self.http.post(url("/v1/own/why")).header("content-type", "application/json").body(json(request)?))
            .await
    }

    /// Who of one's own stands behind something, as `bursar who --json`.
    pub async fn who(&self, request: &WhoRequest) -> Result<Value, ClientError> {
        self.answer(self.http.post(url("/v1/own/who")).header("content-type", "application/json").body(json(request)?))
            .await
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

/// What the system said, at the bottom of the causes.
fn innermost(error: &reqwest::Error) -> Option<io::ErrorKind> {
    let mut kind = None;
    let mut cause: Option<&(dyn Error + 'static)> = error.source();
    while let Some(error) = cause {
        kind = error.downcast_ref::<io::Error>().map(io::Error::kind).or(kind);
        cause = error.source();
    }
    kind
}

/// The host is not looked at; HTTP wants one.
fn url(path: &str) -> String {
    format!("http://bursard{path}")
}

fn json(value: &impl Serialize) -> Result<Vec<u8>, ClientError> {
    serde_json::to_vec(value).map_err(ClientError::Answer)
}
