//! The daemon's end of the control socket: authenticates the peer, parses the request, hands it to the event loop and
//! sends the loop's answer back. It decides nothing else and writes nothing.

use std::io;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::Duration;

use axum::extract::rejection::JsonRejection;
use axum::extract::{DefaultBodyLimit, Extension, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Serialize;
use serde_json::Value;
use tokio::net::UnixListener;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::api::{CycleReport, OrderAnswer, OwnRequest, PlanAnswer, PlanRequest, Status, WhoRequest};
use super::caller::Caller;
use super::connections;
use crate::orders::ensure::Asker;
use crate::orders::request::{EnsureAnswer, EnsureRequest, OrderRequest, Refusal};

/// Largest request body: an order with a long reason is a few hundred bytes, and there may be one for every account.
const BODY_LIMIT: usize = 8 << 20;
/// The loop answers in milliseconds.
const ALIVE_WITHIN: Duration = Duration::from_secs(5);

/// What the loop is asked, and where its answer goes.
#[derive(Debug)]
pub enum Request {
    /// Whether the loop turns, and a cycle that is under way goes on; and how it is.
    Alive(Reply<String>),
    /// How things stand.
    Status(Reply<Status>),
    /// What a cycle would do. `true`: the caller may have the daemon read what another configuration names.
    Plan(PlanRequest, bool, Reply<PlanAnswer>),
    /// A cycle that begins after this.
    Sync(Reply<CycleReport>),
    /// An administrator's orders.
    Orders(String, Vec<OrderRequest>, Reply<OrderAnswer>),
    /// Somebody asks for an account.
    Ensure(Asker, EnsureRequest, Reply<EnsureAnswer>),
    /// The process of this uid asks about its own.
    Own(Question, u32, OwnRequest, Reply<Value>),
    /// The process of this uid asks who of its own stands behind something.
    Who(u32, WhoRequest, Reply<Value>),
    /// The Prometheus text.
    Metrics(Reply<String>),
}

/// What somebody asks about their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// What there is.
    Show,
    /// Why it is so.
    Why,
}

/// Where an answer goes.
pub type Reply<T> = oneshot::Sender<Result<T, Refusal>>;

/// Takes the place of the socket that an earlier daemon left at `path`; a file that is no socket stays. Mode 0666: who
/// may do what is decided by peer credentials, so that a caller without rights reads why instead of "permission
/// denied".
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    // Any other file stays, and the bind fails because it is there.
    if std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
    Ok(listener)
}

/// Serves until `stop`, then finishes the requests that are open.
pub async fn serve(listener: UnixListener, request_sender: mpsc::Sender<Request>, stop: CancellationToken) {
    connections::serve(listener, routes(request_sender), |stream| stream.peer_cred().ok(), stop).await;
}

/// Only metrics and health, for the TCP listener of `[metrics] listen`.
pub async fn serve_metrics(
    listener: tokio::net::TcpListener,
    request_sender: mpsc::Sender<Request>,
    stop: CancellationToken,
) {
    let routes = Router::new()
        .route(
            "/metrics",
            get(|State(request_sender): State<RequestSender>| async move { metrics_text(&request_sender).await }),
        )
        .route("/healthz", get(healthz))
        .with_state(request_sender);
    connections::serve(listener, routes, |_| None, stop).await;
}

type RequestSender = mpsc::Sender<Request>;

fn routes(request_sender: RequestSender) -> Router {
    Router::new()
        .route("/v1/status", get(status))
        .route(
            "/v1/plan",
            post(plan).get(|request_sender, caller| plan(request_sender, caller, Ok(Json(PlanRequest::default())))),
        )
        .route("/v1/sync", post(sync))
        .route("/v1/orders", post(orders))
        .route("/v1/ensure", post(ensure))
        .route("/v1/own/show", post(|caller, request_sender, body| own(Question::Show, caller, request_sender, body)))
        .route("/v1/own/why", post(|caller, request_sender, body| own(Question::Why, caller, request_sender, body)))
        .route("/v1/own/who", post(who))
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .layer(DefaultBodyLimit::max(BODY_LIMIT))
        .with_state(request_sender)
}

fn reader(caller: Option<&Caller>) -> Result<(), Refusal> {
    match caller {
        Some(caller) if caller.may_read => Ok(()),
        _ => Err(not_allowed("reading needs group bursar")),
    }
}

fn administrator(caller: Option<Caller>) -> Result<String, Refusal> {
    match caller {
        Some(caller) if caller.may_order => Ok(caller.actor),
        _ => Err(not_allowed("orders need root, or both groups bursar and bursar-admin")),
    }
}

async fn status(State(request_sender): State<RequestSender>, Extension(caller): Extension<Option<Caller>>) -> Response {
    answer(async {
        reader(caller.as_ref())?;
        ask(&request_sender, Request::Status).await
    })
    .await
}

async fn plan(
    State(request_sender): State<RequestSender>,
    Extension(caller): Extension<Option<Caller>>,
    body: Result<Json<PlanRequest>, JsonRejection>,
) -> Response {
    answer(async {
        reader(caller.as_ref())?;
        let Json(request) = body.map_err(|error| Refusal { exit_code: 64, text: error.body_text() })?;
        let trusted = caller.is_some_and(|caller| caller.may_read_secrets);
        ask(&request_sender, |reply| Request::Plan(request, trusted, reply)).await
    })
    .await
}

async fn sync(State(request_sender): State<RequestSender>, Extension(caller): Extension<Option<Caller>>) -> Response {
    answer(async {
        administrator(caller)?;
        ask(&request_sender, Request::Sync).await
    })
    .await
}

async fn orders(
    State(request_sender): State<RequestSender>,
    Extension(caller): Extension<Option<Caller>>,
    body: Result<Json<Vec<OrderRequest>>, JsonRejection>,
) -> Response {
    answer(async {
        let actor = administrator(caller)?;
        let Json(orders) = body.map_err(|error| Refusal { exit_code: 64, text: error.body_text() })?;
        ask(&request_sender, |reply| Request::Orders(actor, orders, reply)).await
    })
    .await
}

/// Anybody may ask; the loop knows whose account it is.
async fn ensure(
    State(request_sender): State<RequestSender>,
    Extension(caller): Extension<Option<Caller>>,
    body: Result<Json<EnsureRequest>, JsonRejection>,
) -> Response {
    answer(async {
        let caller = caller.ok_or_else(|| not_allowed("nobody knows who asks"))?;
        let Json(request) = body.map_err(|error| Refusal { exit_code: 64, text: error.body_text() })?;
        let Caller { actor, uid, name, may_order, may_read: _, may_read_secrets: _ } = caller;
        let asker = Asker { actor, uid, name, may_order };
        ask(&request_sender, |reply| Request::Ensure(asker, request, reply)).await
    })
    .await
}

/// Anybody may ask; the loop knows what is theirs.
async fn own(
    question: Question,
    Extension(caller): Extension<Option<Caller>>,
    State(request_sender): State<RequestSender>,
    body: Result<Json<OwnRequest>, JsonRejection>,
) -> Response {
    answer(async {
        let caller = caller.ok_or_else(|| not_allowed("nobody knows who asks"))?;
        let Json(request) = body.map_err(|error| Refusal { exit_code: 64, text: error.body_text() })?;
        ask(&request_sender, |reply| Request::Own(question, caller.uid, request, reply)).await
    })
    .await
}

/// Anybody may ask; the loop knows what is theirs.
async fn who(
    Extension(caller): Extension<Option<Caller>>,
    State(request_sender): State<RequestSender>,
    body: Result<Json<WhoRequest>, JsonRejection>,
) -> Response {
    answer(async {
        let caller = caller.ok_or_else(|| not_allowed("nobody knows who asks"))?;
        let Json(request) = body.map_err(|error| Refusal { exit_code: 64, text: error.body_text() })?;
        ask(&request_sender, |reply| Request::Who(caller.uid, request, reply)).await
    })
    .await
}

async fn metrics(
    State(request_sender): State<RequestSender>,
    Extension(caller): Extension<Option<Caller>>,
) -> Response {
    match reader(caller.as_ref()) {
        Ok(()) => metrics_text(&request_sender).await,
        Err(refusal) => refused(refusal),
    }
}

/// 200 while the daemon works, 503 and why when it hangs.
async fn healthz(State(request_sender): State<RequestSender>) -> Response {
    let asked = tokio::time::timeout(ALIVE_WITHIN, ask(&request_sender, Request::Alive));
    let silent = || Refusal { exit_code: 69, text: "the daemon does not answer itself".to_owned() };
    match asked.await.unwrap_or_else(|_| Err(silent())) {
        Ok(health) => format!("{health}\n").into_response(),
        Err(refusal) => refused(refusal),
    }
}

async fn metrics_text(request_sender: &RequestSender) -> Response {
    const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    match ask(request_sender, Request::Metrics).await {
        Ok(text) => ([(axum::http::header::CONTENT_TYPE, OPENMETRICS)], text).into_response(),
        Err(refusal) => refused(refusal),
    }
}

async fn ask<T>(request_sender: &RequestSender, request: impl FnOnce(Reply<T>) -> Request) -> Result<T, Refusal> {
    let (reply, answer) = oneshot::channel();
    let gone = || Refusal { exit_code: 69, text: "the daemon is stopping".to_owned() };
    request_sender.send(request(reply)).await.map_err(|_| gone())?;
    answer.await.map_err(|_| gone())?
}

async fn answer<T: Serialize>(work: impl Future<Output = Result<T, Refusal>>) -> Response {
    match work.await {
        Ok(value) => Json(value).into_response(),
        Err(refusal) => refused(refusal),
    }
}

fn refused(refusal: Refusal) -> Response {
    let status = match refusal.exit_code {
        4 => StatusCode::NOT_FOUND,
        64 => StatusCode::BAD_REQUEST,
        77 => StatusCode::FORBIDDEN,
        69 => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    (status, Json(refusal)).into_response()
}

fn not_allowed(text: &str) -> Refusal {
    Refusal { exit_code: 77, text: text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_a_socket_is_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("control.sock");
        std::fs::write(&path, "notes").expect("written");
        assert!(bind(&path).is_err());
        assert_eq!(std::fs::read_to_string(&path).expect("it stays"), "notes");
        std::fs::remove_file(&path).expect("removed");
        drop(bind(&path).expect("a new socket"));
        bind(&path).expect("the socket of an earlier daemon is replaced");
    }
}
