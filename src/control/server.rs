//! The daemon's end of the control socket: identifies the peer, parses the request, passes it to the event loop and
//! sends back the loop's answer. It decides nothing except who may ask, and writes nothing.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::Duration;

use axum::extract::rejection::JsonRejection;
use axum::extract::{Extension, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::Value;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::api::{CycleReport, OrderAnswer, OwnRequest, PlanAnswer, PlanRequest, Status, StillReading, WhoRequest};
use super::caller::{Caller, Peer};
use super::connections;
use crate::orders::ensure::Asker;
use crate::orders::request::{EnsureAnswer, EnsureRequest, OrderRequest, RequestRefusal};

/// How long the loop may take to answer `/healthz`. It normally answers in milliseconds.
const ALIVE_WITHIN: Duration = Duration::from_secs(5);

/// A request to the event loop, with the channel for its answer.
#[derive(Debug)]
pub enum Request {
    /// Asks for the text of `/healthz`. The answer is a refusal if a cycle hangs.
    Alive(Reply<String>),
    /// The status.
    Status(Reply<Status>),
    /// The plan of a cycle. If the `bool` is `true`, the daemon may read the files that the caller's configuration
    /// names.
    Plan(PlanRequest, bool, Reply<PlanAnswer>),
    /// Runs a cycle that begins after this request.
    Sync(Reply<CycleReport>),
    /// Waits until a cycle has used the answer of one of these sources.
    SyncRest(BTreeMap<String, StillReading>, Reply<CycleReport>),
    /// Orders of the administrator with this name.
    Orders(String, Vec<OrderRequest>, Reply<OrderAnswer>),
    /// A request for an account.
    Ensure(Asker, EnsureRequest, Reply<EnsureAnswer>),
    /// A question of the process with this uid about its own accounts.
    Own(Question, u32, OwnRequest, Reply<Value>),
    /// The process with this uid asks which of its own accounts something in a log belongs to.
    Who(u32, WhoRequest, Reply<Value>),
    /// The Prometheus text.
    Metrics(Reply<String>),
}

impl Request {
    /// Whether every user on the host may make this request.
    #[must_use]
    pub const fn is_open_to_all(&self) -> bool {
        matches!(self, Self::Own(..) | Self::Who(..) | Self::Ensure(..))
    }

    /// Whether the request can be dropped because its caller is gone. Orders and cycles are never dropped.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        match self {
            Self::Alive(reply) | Self::Metrics(reply) => reply.is_closed(),
            Self::Status(reply) => reply.is_closed(),
            Self::SyncRest(_, reply) => reply.is_closed(),
            Self::Plan(_, _, reply) => reply.is_closed(),
            Self::Ensure(_, _, reply) => reply.is_closed(),
            Self::Own(_, _, _, reply) | Self::Who(_, _, reply) => reply.is_closed(),
            Self::Sync(_) | Self::Orders(..) => false,
        }
    }

    /// Answers with `refusal`. If the caller is gone, the refusal is dropped.
    pub fn refuse(self, refusal: RequestRefusal) {
        match self {
            Self::Alive(reply) | Self::Metrics(reply) => drop(reply.send(Err(refusal))),
            Self::Status(reply) => drop(reply.send(Err(refusal))),
            Self::Plan(_, _, reply) => drop(reply.send(Err(refusal))),
            Self::Sync(reply) | Self::SyncRest(_, reply) => drop(reply.send(Err(refusal))),
            Self::Orders(_, _, reply) => drop(reply.send(Err(refusal))),
            Self::Ensure(_, _, reply) => drop(reply.send(Err(refusal))),
            Self::Own(_, _, _, reply) | Self::Who(_, _, reply) => drop(reply.send(Err(refusal))),
        }
    }
}

/// A question of a caller about their own accounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// As `bursar show`.
    Show,
    /// As `bursar why`.
    Why,
}

/// The channel for an answer.
pub type Reply<T> = oneshot::Sender<Result<T, RequestRefusal>>;

/// Binds the control socket, and replaces the socket that an earlier daemon left at `path`. Its mode is 0666, because
/// peer credentials decide what a caller may do: a caller without rights gets the reason instead of "permission
/// denied".
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    // A file that is not a socket is not removed. Then `bind` fails.
    if std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
    Ok(listener)
}

/// Serves until `stop`, then finishes the requests that are open.
pub async fn serve(listener: UnixListener, request_sender: mpsc::Sender<Request>, stop: CancellationToken) {
    let peer = |stream: &UnixStream| stream.peer_cred().ok().map(Peer::from);
    connections::serve(listener, routes(request_sender), peer, Caller::of, stop).await;
}

/// Serves only metrics and health, for the TCP listener of `[metrics] listen`.
pub async fn serve_metrics(
    listener: tokio::net::TcpListener,
    request_sender: mpsc::Sender<Request>,
    stop: CancellationToken,
) {
    let routes = Router::new()
        .route("/metrics", get(|State(sender): Sender| metrics_text(sender)))
        .route("/healthz", get(healthz))
        .with_state(request_sender);
    connections::serve(listener, routes, |_| None, Caller::of, stop).await;
}

type Sender = State<mpsc::Sender<Request>>;
type By = Extension<Option<Caller>>;
type Body<T> = Result<Json<T>, JsonRejection>;
type JsonResult<T> = Result<Json<T>, Refused>;

fn routes(sender: mpsc::Sender<Request>) -> Router {
    Router::new()
        .route("/v1/status", get(status))
        .route("/v1/plan", post(plan).get(|sender, caller| plan(sender, caller, Ok(Json(PlanRequest::default())))))
        .route("/v1/sync", post(sync))
        .route("/v1/sync/rest", post(sync_rest))
        .route("/v1/orders", post(orders))
        .route("/v1/ensure", post(ensure))
        .route("/v1/own/show", post(|caller, sender, body| own(Question::Show, caller, sender, body)))
        .route("/v1/own/why", post(|caller, sender, body| own(Question::Why, caller, sender, body)))
        .route("/v1/own/who", post(who))
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .with_state(sender)
}

fn reader(caller: Option<&Caller>) -> Result<(), RequestRefusal> {
    match caller {
        Some(caller) if caller.may_read => Ok(()),
        _ => Err(not_allowed("reading needs group bursar")),
    }
}

fn administrator(caller: Option<Caller>) -> Result<String, RequestRefusal> {
    match caller {
        Some(caller) if caller.may_order => Ok(caller.actor),
        _ => Err(not_allowed("orders need root, or both groups bursar and bursar-admin")),
    }
}

fn known(caller: Option<Caller>) -> Result<Caller, RequestRefusal> {
    caller.ok_or_else(|| not_allowed("the user of this process is unknown"))
}

fn parsed<T>(body: Body<T>) -> Result<T, RequestRefusal> {
    body.map(|Json(request)| request).map_err(|error| RequestRefusal { exit_code: 64, text: error.body_text() })
}

async fn status(State(sender): Sender, Extension(caller): By) -> JsonResult<Status> {
    reader(caller.as_ref())?;
    ask(&sender, Request::Status).await
}

async fn plan(State(sender): Sender, Extension(caller): By, body: Body<PlanRequest>) -> JsonResult<PlanAnswer> {
    reader(caller.as_ref())?;
    let request = parsed(body)?;
    let trusted = caller.is_some_and(|caller| caller.may_read_secrets);
    ask(&sender, |reply| Request::Plan(request, trusted, reply)).await
}

async fn sync(State(sender): Sender, Extension(caller): By) -> JsonResult<CycleReport> {
    administrator(caller)?;
    ask(&sender, Request::Sync).await
}

async fn sync_rest(
    State(sender): Sender,
    Extension(caller): By,
    body: Body<BTreeMap<String, StillReading>>,
) -> JsonResult<CycleReport> {
    administrator(caller)?;
    let reading = parsed(body)?;
    ask(&sender, |reply| Request::SyncRest(reading, reply)).await
}

async fn orders(
    State(sender): Sender,
    Extension(caller): By,
    body: Body<Vec<OrderRequest>>,
) -> JsonResult<OrderAnswer> {
    let (actor, orders) = (administrator(caller)?, parsed(body)?);
    ask(&sender, |reply| Request::Orders(actor, orders, reply)).await
}

/// Every user may ask; the event loop decides whether the account is the caller's.
async fn ensure(State(sender): Sender, Extension(caller): By, body: Body<EnsureRequest>) -> JsonResult<EnsureAnswer> {
    let (caller, request) = (known(caller)?, parsed(body)?);
    let Caller { actor, uid, name, may_order, may_read: _, may_read_secrets: _ } = caller;
    let asker = Asker { actor, uid, name, may_order };
    ask(&sender, |reply| Request::Ensure(asker, request, reply)).await
}

/// Every user may ask; the loop selects the caller's own accounts.
async fn own(
    question: Question,
    Extension(caller): By,
    State(sender): Sender,
    body: Body<OwnRequest>,
) -> JsonResult<Value> {
    let (caller, request) = (known(caller)?, parsed(body)?);
    ask(&sender, |reply| Request::Own(question, caller.uid, request, reply)).await
}

/// Every user may ask; the loop selects the caller's own accounts.
async fn who(Extension(caller): By, State(sender): Sender, body: Body<WhoRequest>) -> JsonResult<Value> {
    let (caller, request) = (known(caller)?, parsed(body)?);
    ask(&sender, |reply| Request::Who(caller.uid, request, reply)).await
}

async fn metrics(State(sender): Sender, Extension(caller): By) -> Result<Response, Refused> {
    reader(caller.as_ref())?;
    metrics_text(sender).await
}

/// Answers 200 while the daemon works, and 503 with the reason if it hangs.
async fn healthz(State(sender): Sender) -> Result<String, Refused> {
    let silent = "the event loop of bursard does not answer; run: systemctl restart bursard";
    let asked = tokio::time::timeout(ALIVE_WITHIN, ask(&sender, Request::Alive)).await;
    let Json(health) = asked.map_err(|_| RequestRefusal { exit_code: 69, text: silent.to_owned() })??;
    Ok(format!("{health}\n"))
}

async fn metrics_text(sender: mpsc::Sender<Request>) -> Result<Response, Refused> {
    const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let Json(text) = ask(&sender, Request::Metrics).await?;
    Ok(([(CONTENT_TYPE, OPENMETRICS)], text).into_response())
}

async fn ask<T>(sender: &mpsc::Sender<Request>, request: impl FnOnce(Reply<T>) -> Request) -> JsonResult<T> {
    let (reply, answer) = oneshot::channel();
    let gone = || RequestRefusal { exit_code: 69, text: "the daemon is stopping".to_owned() };
    sender.send(request(reply)).await.map_err(|_| gone())?;
    Ok(Json(answer.await.map_err(|_| gone())??))
}

struct Refused(RequestRefusal);

impl From<RequestRefusal> for Refused {
    fn from(refusal: RequestRefusal) -> Self {
        Self(refusal)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let status = match self.0.exit_code {
            4 => StatusCode::NOT_FOUND,
            64 => StatusCode::BAD_REQUEST,
            77 => StatusCode::FORBIDDEN,
            69 => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (status, Json(self.0)).into_response()
    }
}

fn not_allowed(text: &str) -> RequestRefusal {
    RequestRefusal { exit_code: 77, text: text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_a_socket_is_replaced() {
        let folder = tempfile::tempdir().expect("a temporary folder is created");
        let path = folder.path().join("control.sock");
        std::fs::write(&path, "notes").expect("the file is written");
        assert!(bind(&path).is_err());
        assert_eq!(std::fs::read_to_string(&path).expect("the file still exists"), "notes");
        std::fs::remove_file(&path).expect("the file is removed");
        drop(bind(&path).expect("a free path can be bound"));
        bind(&path).expect("the socket of an earlier daemon is replaced");
    }
}
