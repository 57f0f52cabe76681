//! The only place that sends requests to an API server. Each request is paced, counted and has a deadline. It is
//! repeated only if the server said that it did nothing.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::{Method, Request, StatusCode, header};
use kube::Client;
use kube::client::Body;
use kube::core::Status;
use serde_json::{Value, json};
use thiserror::Error;
use tokio::time::Instant;

use super::authority::ClientAuthorities;
use super::csr_watch::{CsrWatch, LazyCsrWatch};
use super::endpoint_probe::EndpointProbes;
use super::pace::{Outcome, Pace};
use super::signing::SignerBreaker;
use crate::bootstrap::MarkKeeper;
use crate::identity::ClusterName;
use crate::kinds::{ObjectKind, ServedKind};
use crate::observed::discovery::Kinds;
use crate::telemetry::SharedMetrics;

/// The deadline of a request. It is longer than an etcd needs to elect a new leader, and shorter than the API server's
/// own (`--request-timeout` is 60 s), because a request that hangs uses one of the few places that [`Pace`] gives.
const DEADLINE: Duration = Duration::from_secs(30);

/// How often a request is sent if the server answers 429 or 503 and so did not carry it out. After that, the tenant
/// fails and its own backoff applies.
const TRIES: u32 = 4;

/// JSON is valid YAML (Kubernetes API conventions, server-side apply).
const APPLY: &str = "application/apply-patch+yaml";
const MERGE: &str = "application/merge-patch+json";
const JSON: &str = "application/json";
/// Lists only the metadata of each object.
const METADATA: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

/// The number of objects in a page of a list, as in kubectl.
const PAGE: usize = 500;

/// The client of one API server.
pub struct ApiServer {
    pub cluster: ClusterName,
    /// From [`crate::observed::cluster::connect`].
    pub client: Client,
    metrics: SharedMetrics,
    pace: Pace,
    kinds: Kinds,
    certificates: LazyCsrWatch,
    requested: OnceLock<BTreeSet<String>>,
    signer: SignerBreaker,
    endpoint_probes: Arc<EndpointProbes>,
    authorities: ClientAuthorities,
    approves: AtomicBool,
    mark: OnceLock<Arc<MarkKeeper>>,
}

impl fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiServer").field("cluster", &self.cluster).field("pace", &self.pace).finish_non_exhaustive()
    }
}

/// The kinds of requests.
#[derive(Debug, Clone, Copy)]
pub enum Ask<'a> {
    Get,
    /// Server-side apply of a manifest. Fields that others own become Bursar's.
    Apply(&'a Value),
    /// Like [`Self::Apply`], but refused (409) if somebody else owns a field with another value.
    ApplyUnowned(&'a Value),
    /// A JSON merge patch (RFC 7386).
    Merge(&'a Value),
    /// Creation by POST.
    Create(&'a Value),
    /// Deletion of all objects of a path that the selector matches. The answer has only the metadata of the deleted
    /// objects.
    DeleteSelected {
        /// A URL parameter such as `labelSelector=job=a`.
        selector: &'a str,
    },
    /// The metadata of all objects of a path.
    ListMetadata,
    /// Deletion of the pod with this uid, with this grace period.
    DeleteWithin {
        /// `preconditions.uid`.
        uid: &'a str,
        /// `gracePeriodSeconds`.
        seconds: i64,
    },
    /// Deletion of the object with this uid. Its dependents are deleted in the background.
    Delete {
        /// `preconditions.uid`.
        uid: &'a str,
    },
}

impl Ask<'_> {
    /// Returns the verb for the metrics.
    #[must_use]
    pub const fn verb(&self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Apply(_) | Self::ApplyUnowned(_) => "apply",
            Self::Merge(_) => "patch",
            Self::Create(_) => "create",
            Self::DeleteSelected { .. } => "deletecollection",
            Self::ListMetadata => "list",
            Self::Delete { .. } | Self::DeleteWithin { .. } => "delete",
        }
    }

    fn request(&self, path: &str) -> Result<Request<Body>, RequestError> {
        let accept = if matches!(self, Self::DeleteSelected { .. } | Self::ListMetadata) { METADATA } else { JSON };
        let (method, query, content_type, body) = match self {
            Self::Get | Self::ListMetadata => (Method::GET, "", JSON, Vec::new()),
            Self::Apply(manifest) => {
                (Method::PATCH, "?fieldManager=bursar&force=true", APPLY, manifest.to_string().into_bytes())
            }
            Self::ApplyUnowned(manifest) => {
                (Method::PATCH, "?fieldManager=bursar", APPLY, manifest.to_string().into_bytes())
            }
            Self::Merge(change) => (Method::PATCH, "?fieldManager=bursar", MERGE, change.to_string().into_bytes()),
            Self::Create(object) => (Method::POST, "?fieldManager=bursar", JSON, object.to_string().into_bytes()),
            Self::DeleteSelected { selector } => {
                let options = json!({"propagationPolicy": "Background"});
                (Method::DELETE, &*format!("?{selector}"), JSON, options.to_string().into_bytes())
            }
            Self::Delete { uid } => {
                let options = json!({"preconditions": {"uid": uid}, "propagationPolicy": "Background"});
                (Method::DELETE, "", JSON, options.to_string().into_bytes())
            }
            Self::DeleteWithin { uid, seconds } => {
                let options = json!({"preconditions": {"uid": uid}, "gracePeriodSeconds": seconds});
                (Method::DELETE, "", JSON, options.to_string().into_bytes())
            }
        };
        Request::builder()
            .method(method)
            .uri(format!("{path}{query}"))
            .header(header::ACCEPT, accept)
            .header(header::CONTENT_TYPE, content_type)
            .body(Body::from(body))
            .map_err(RequestError::Unsendable)
    }
}

/// The answer to a request that the server carried out.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiAnswer {
    /// Whether the object did not exist before (201).
    pub created: bool,
    /// The object, or a `Status`.
    pub object: Value,
}

/// Why a request failed. It may still have been carried out if no answer came.
#[derive(Debug, Error)]
pub enum RequestError {
    /// The URL is not valid.
    #[error("the request cannot be sent")]
    Unsendable(#[source] http::Error),
    /// The server refused the request.
    #[error("{} ({})", .0.message, .0.code)]
    Refused(Box<Status>),
    /// The server answered 429 or 503 each time.
    #[error("the API server is overloaded (429 or 503, {TRIES} times)")]
    Overloaded,
    /// The connection, TLS or the name resolution failed.
    #[error("cannot reach cluster {cluster}")]
    Unreachable {
        cluster: ClusterName,
        #[source]
        source: Box<kube::Error>,
    },
    /// The server did not answer in time.
    #[error("cluster {cluster} did not answer within {} s", DEADLINE.as_secs())]
    TimedOut { cluster: ClusterName },
    /// The answer is not JSON.
    #[error("cannot read the API server's answer")]
    Unreadable(#[source] serde_json::Error),
}

impl RequestError {
    /// Returns the HTTP status of a refusal.
    #[must_use]
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Refused(status) => Some(status.code),
            _ => None,
        }
    }

    /// Whether there was no answer at all.
    #[must_use]
    pub const fn is_loss(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::TimedOut { .. })
    }

    /// Whether the request was refused because its uid is not the object's. Measured on Kubernetes 1.36: a deleted
    /// object conflicts (409); for a recreated object, `metadata.uid` is reported as an immutable field that changed
    /// (422).
    #[must_use]
    pub fn is_other_uid(&self) -> bool {
        let Self::Refused(status) = self else { return false };
        let causes = status.details.iter().flat_map(|details| &details.causes);
        status.code == 409 || (status.code == 422 && causes.into_iter().any(|cause| cause.field == "metadata.uid"))
    }
}

impl ApiServer {
    /// Returns an API server with its own pace.
    #[must_use]
    pub fn new(cluster: ClusterName, client: Client, metrics: SharedMetrics) -> Self {
        Self {
            cluster,
            client,
            metrics,
            pace: Pace::default(),
            kinds: Kinds::default(),
            certificates: LazyCsrWatch::new(),
            requested: OnceLock::new(),
            signer: SignerBreaker::default(),
            endpoint_probes: Arc::default(),
            authorities: ClientAuthorities::default(),
            approves: AtomicBool::new(true),
            mark: OnceLock::new(),
        }
    }

    /// Whether the daemon approves certificate requests here; otherwise an approver does.
    #[must_use]
    pub fn approves(&self) -> bool {
        self.approves.load(Ordering::Relaxed)
    }

    /// Sets whether the daemon approves certificate requests here.
    pub fn let_approve(&self, approves: bool) {
        self.approves.store(approves, Ordering::Relaxed);
    }

    /// Returns the watch of our certificate requests, and starts it at the first call. Must be called within a Tokio
    /// runtime.
    pub fn certificates(&self) -> &CsrWatch {
        let requested = || self.requested.get().cloned().unwrap_or_default();
        self.certificates.get_or_init(|| CsrWatch::start(&self.client, requested()))
    }

    /// Returns the state of the signer.
    pub(super) const fn signer(&self) -> &SignerBreaker {
        &self.signer
    }

    /// Returns the results of the endpoint probes.
    #[must_use]
    pub const fn endpoint_probes(&self) -> &Arc<EndpointProbes> {
        &self.endpoint_probes
    }

    /// Sets the digests of the keys for which an earlier process made certificate requests. Has no effect after the
    /// first call of [`Self::certificates`].
    pub fn knows_requested(&self, keys: BTreeSet<String>) {
        // They are set once, before the connection is used.
        let _ = self.requested.set(keys);
    }

    /// Sets the keeper of the mark. From then on, the mark gets each generation before an object names that generation.
    pub fn keep_mark(&self, keeper: Arc<MarkKeeper>) {
        // There is one keeper for the life of a connection.
        let _ = self.mark.set(keeper);
    }

    /// Returns the keeper of the mark, if one is set.
    pub(super) fn mark(&self) -> Option<&Arc<MarkKeeper>> {
        self.mark.get()
    }

    /// Returns the certificate authorities that the server trusts for its clients.
    pub(super) const fn authorities(&self) -> &ClientAuthorities {
        &self.authorities
    }

    /// Returns how the cluster serves the kind; `None` if it has no such kind.
    pub async fn kind(&self, kind: &ObjectKind) -> Result<Option<ServedKind>, RequestError> {
        let resolved = tokio::time::timeout(DEADLINE, self.kinds.resolve(&self.client, kind)).await;
        match resolved {
            Ok(Ok(kind)) => Ok(kind),
            Ok(Err(kube::Error::Api(status))) => Err(RequestError::Refused(status)),
            Ok(Err(source)) => Err(self.unreachable(source)),
            Err(_) => Err(RequestError::TimedOut { cluster: self.cluster.clone() }),
        }
    }

    /// Sends a request, and waits for the answer. `path` comes from [`ServedKind::path`].
    pub async fn ask(&self, path: &str, ask: Ask<'_>) -> Result<ApiAnswer, RequestError> {
        self.ask_as(ask.verb(), path, ask).await
    }

    /// Returns all objects of a kind in a namespace.
    pub async fn list(&self, path: &str) -> Result<Vec<Value>, RequestError> {
        self.collect(path, Ask::Get).await
    }

    /// Returns only the metadata of all objects of a kind in a namespace.
    pub async fn list_metadata(&self, path: &str) -> Result<Vec<Value>, RequestError> {
        self.collect(path, Ask::ListMetadata).await
    }

    async fn collect(&self, path: &str, ask: Ask<'_>) -> Result<Vec<Value>, RequestError> {
        let mut items = Vec::new();
        self.pages(path, "", ask, |item| items.push(item)).await.map(|()| items)
    }

    /// Passes each object of a list to `each`, page by page. `labels` is a label selector; if it is empty, all objects
    /// are listed.
    pub async fn pages(
        &self,
        path: &str,
        labels: &str,
        ask: Ask<'_>,
        mut each: impl FnMut(Value),
    ) -> Result<(), RequestError> {
        let selector = if labels.is_empty() { String::new() } else { format!("&labelSelector={labels}") };
        let mut next = String::new();
        loop {
            let mut page = self.ask_as("list", &format!("{path}?limit={PAGE}{selector}{next}"), ask).await?.object;
            if let Some(Value::Array(items)) = page.get_mut("items").map(Value::take) {
                items.into_iter().for_each(&mut each);
            }
            match page["metadata"]["continue"].as_str() {
                // The token is URL-safe base64 (apiserver `storage.EncodeContinue`).
                Some(token) if !token.is_empty() => next = format!("&continue={token}"),
                _ => return Ok(()),
            }
        }
    }

    async fn ask_as(&self, verb: &str, path: &str, ask: Ask<'_>) -> Result<ApiAnswer, RequestError> {
        for _ in 0..TRIES {
            if let Some(answer) = self.attempt(verb, ask.request(path)?).await? {
                return Ok(answer);
            }
        }
        Err(RequestError::Overloaded)
    }

    /// Sends a request once. Returns `None` if the server did nothing and wants to be asked later.
    #[expect(clippy::disallowed_methods, reason = "measures the latency, which sets the width")]
    async fn attempt(&self, verb: &str, request: Request<Body>) -> Result<Option<ApiAnswer>, RequestError> {
        let place = self.pace.enter().await;
        self.metrics.request(&self.cluster.0, verb);
        let began = Instant::now();
        let exchanged = tokio::time::timeout(DEADLINE, exchange(&self.client, request)).await;
        let (status, retry_after, body) = match exchanged {
            Ok(Ok(exchanged)) => exchanged,
            Ok(Err(source)) => {
                place.leave(Outcome::Lost);
                return Err(self.unreachable(source));
            }
            Err(_) => {
                place.leave(Outcome::Lost);
                return Err(RequestError::TimedOut { cluster: self.cluster.clone() });
            }
        };
        // Without `Retry-After`, a 503 may mean that an aggregated API is down. It then counts as an ordinary answer.
        let busy = status == StatusCode::TOO_MANY_REQUESTS
            || (status == StatusCode::SERVICE_UNAVAILABLE && retry_after.is_some());
        if busy {
            place.leave(Outcome::Throttled(retry_after));
            return Ok(None);
        }
        place.leave(Outcome::Answered(began.elapsed()));
        if status.is_success() {
            let object = serde_json::from_slice(&body).map_err(RequestError::Unreadable)?;
            return Ok(Some(ApiAnswer { created: status == StatusCode::CREATED, object }));
        }
        Err(RequestError::Refused(Box::new(refusal(status, &body))))
    }

    fn unreachable(&self, source: kube::Error) -> RequestError {
        RequestError::Unreachable { cluster: self.cluster.clone(), source: Box::new(source) }
    }
}

async fn exchange(
    client: &Client,
    request: Request<Body>,
) -> Result<(StatusCode, Option<Duration>, Vec<u8>), kube::Error> {
    let response = client.send(request).await?;
    let status = response.status();
    let retry_after = response.headers().get(header::RETRY_AFTER);
    // Kubernetes sends seconds (RFC 9110, 10.2.3, also allows a date).
    let retry_after = retry_after.and_then(|value| value.to_str().ok()?.parse().ok()).map(Duration::from_secs);
    let body = response.into_body().collect_bytes().await?;
    Ok((status, retry_after, body.to_vec()))
}

/// Returns the `Status` of a refusal. If a proxy answered with something else, its first line becomes the message.
fn refusal(status: StatusCode, body: &[u8]) -> Status {
    serde_json::from_slice(body).unwrap_or_else(|_| {
        let text = String::from_utf8_lossy(body);
        let line = text.lines().next().unwrap_or_default();
        Status::failure(line, "NotAStatus").with_code(status.as_u16())
    })
}
