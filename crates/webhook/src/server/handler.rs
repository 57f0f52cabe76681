//! Answers one request of the API server: reads the body, resolves the tenant, decides, answers, and logs refusals.

mod body;

use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bursar_core::admission::decision::{Decision, Finding, Rule};
use bursar_core::admission::review::{Review, answer};
use bursar_core::admission::sender::probe;
use bursar_core::admission::tenant::{Resolved, Unresolved};
use bursar_core::admission::{Operation, decide};
use bursar_core::rules::{Mode, Rules};
use http::{Method, Request, Response, StatusCode, Version, header};
use http_body_util::Full;
use hyper::body::{Body as _, Bytes, Incoming};
use jiff::{SignedDuration, Timestamp};
use parking_lot::{Mutex, RwLock};
use rustls::pki_types::CertificateDer;
use tokio::sync::Semaphore;

use self::body::{BODY_LIMIT, TOO_MANY, VALUES, discard, read, too_large, values};
use super::clients::{Clients, Peer, Peers};
use super::metrics::{Gauges, Metrics};
use super::room::{BODY_WITHIN, Room};
use crate::index::Index;

/// Bodies up to this size are small. Nearly every review of a pod is.
const SMALL: usize = 256 << 10;
/// The memory for small bodies and for large bodies. The two are separate, so that large bodies never keep small ones
/// out.
const SMALL_ROOM: usize = 16 << 20;
const LARGE_ROOM: usize = 48 << 20;
/// After this time, a slow body yields its memory to others if there is no free memory. A small body arrives in one
/// piece, a large one in several.
const SMALL_PATIENCE: Duration = Duration::ZERO;
const LARGE_PATIENCE: Duration = Duration::from_millis(500);

/// The seconds after which an overloaded webhook may be asked again. API servers retry within their own deadline.
const AGAIN: header::HeaderValue = header::HeaderValue::from_static("1");

/// The time between two log lines about refused handshakes.
const TOLD_EVERY: SignedDuration = SignedDuration::from_secs(10);

const METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The most characters of a refusal in the log, because it contains names that users choose and nobody has checked.
const LOGGED: usize = 300;

/// The webhook configuration that sent the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// `/mutate`: the answer may change the object.
    Mutate,
    /// `/validate`: the object will be stored as it is.
    Validate,
}

impl Phase {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Mutate => "mutate",
            Self::Validate => "validate",
        }
    }
}

/// The valid content of the files.
#[derive(Debug, Clone)]
pub struct InForce {
    pub rules: Arc<Rules>,
    /// The clients that are answered; `None` for all.
    pub clients: Option<Arc<Clients>>,
    /// When the serving certificate expires.
    pub not_after: Timestamp,
    /// The files, and whether their newest content is refused.
    pub wrong: [(&'static str, bool); 4],
}

/// Answers reviews.
#[derive(Debug)]
pub struct ReviewHandler {
    /// The tenants of the namespaces.
    pub index: Arc<Index>,
    pub metrics: Metrics,
    in_force: RwLock<Arc<InForce>>,
    clock: fn() -> Timestamp,
    small: Room,
    large: Room,
    /// Lets large bodies be decided one after the other.
    turn: Semaphore,
    peers: Peers,
    /// When the log last reported a refused handshake.
    told: Mutex<Option<Timestamp>>,
}

pub type HttpResponse = Response<Full<Bytes>>;

impl ReviewHandler {
    /// Returns a handler that has answered nothing yet.
    #[must_use]
    pub fn new(in_force: InForce, index: Arc<Index>, clock: fn() -> Timestamp) -> Self {
        Self {
            index,
            metrics: Metrics::default(),
            in_force: RwLock::new(Arc::new(in_force)),
            clock,
            small: Room::new(SMALL_ROOM, SMALL_PATIENCE),
            large: Room::new(LARGE_ROOM, LARGE_PATIENCE),
            turn: Semaphore::new(1),
            peers: Peers::default(),
            told: Mutex::new(None),
        }
    }

    /// Uses `in_force` for all later decisions.
    pub fn put_in_force(&self, in_force: InForce) {
        *self.in_force.write() = Arc::new(in_force);
    }

    fn in_force(&self) -> Arc<InForce> {
        Arc::clone(&self.in_force.read())
    }

    /// Records a new connection, with the certificates that its client has shown.
    pub(super) fn peer(&self, address: IpAddr, chain: Option<&[CertificateDer<'_>]>) -> Arc<Peer> {
        let peer = Arc::new(Peer::new(address, chain));
        self.peers.add(&peer);
        peer
    }

    /// Logs a failed handshake if client certificates are required, because the API server shows the error only to its
    /// own users.
    pub(super) fn no_handshake(&self, address: IpAddr, error: &std::io::Error) {
        let is_theirs = error.kind() == std::io::ErrorKind::InvalidData;
        if !is_theirs || self.in_force().clients.is_none() {
            return;
        }
        self.metrics.unidentified("handshake");
        let (now, mut told) = ((self.clock)(), self.told.lock());
        if told.is_none_or(|told| now < told || now > told + TOLD_EVERY) {
            *told = Some(now);
            tracing::warn!(%address, %error, "a client without the certificate of client_ca and client_name was refused");
        }
    }

    /// Answers the API server. `begin` is called when the whole request has arrived.
    pub(super) async fn review(&self, request: Request<Incoming>, peer: &Peer, begin: impl FnOnce()) -> HttpResponse {
        let (phase, version, body) = routed(request);
        let phase = match phase {
            Ok(phase) => phase,
            Err((status, why)) => {
                discard(version, body);
                return text(status, why);
            }
        };
        if self.in_force().clients.as_ref().is_some_and(|clients| !peer.is_one_of(clients, (self.clock)())) {
            discard(version, body);
            self.metrics.unidentified(phase.as_str());
            return text(StatusCode::FORBIDDEN, "reviews need the client certificate of client_ca and client_name");
        }
        let length =
            body.size_hint().exact().map_or(BODY_LIMIT, |length| usize::try_from(length).unwrap_or(usize::MAX));
        if length > BODY_LIMIT {
            discard(version, body);
            return self.unreadable(phase, StatusCode::PAYLOAD_TOO_LARGE, "the body is larger than 20 MiB");
        }
        let room = if length > SMALL { &self.large } else { &self.small };
        let Some(place) = room.reserve(length).await else {
            discard(version, body);
            return self.overloaded(phase);
        };
        let read = |came| tokio::time::timeout(BODY_WITHIN, read(version, body, length, came));
        let body = match place.come(read).await {
            Some(Ok(Ok(body))) => body,
            Some(Ok(Err((status, why)))) => return self.unreadable(phase, status, why),
            Some(Err(_)) => {
                return self.unreadable(phase, StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time");
            }
            None => return self.overloaded(phase),
        };
        begin();
        let namespace = match self.judge(phase, &body, peer, None).await {
            Judged::Answered(answer) => return answer,
            Judged::Unknown(namespace) => namespace,
        };
        // The body was parsed and dropped, and is parsed again after this read: a parsed body takes many times its
        // reserved memory, and the read can take seconds.
        let Some(tenant) = place.wait(self.index.resolve(&namespace)).await else { return self.overloaded(phase) };
        match self.judge(phase, &body, peer, Some(tenant)).await {
            Judged::Answered(answer) => answer,
            Judged::Unknown(_) => self.overloaded(phase),
        }
    }

    /// Judges a body. Large bodies wait for each other, and do not use the threads that answer small ones.
    async fn judge(&self, phase: Phase, body: &[u8], peer: &Peer, tenant: Option<Arc<Resolved>>) -> Judged {
        if body.len() <= SMALL {
            return self.judge_now(phase, body, (peer, tenant), |_| None);
        }
        let _turn = self.turn.acquire().await;
        tokio::task::block_in_place(|| {
            let values = values(body);
            if values > VALUES {
                return Judged::Answered(self.unreadable(phase, StatusCode::PAYLOAD_TOO_LARGE, TOO_MANY));
            }
            let in_force = self.in_force();
            self.judge_now(phase, body, (peer, tenant), |review| {
                too_large(review, &in_force.rules.daemon, body.len(), values)
            })
        })
    }

    #[expect(clippy::disallowed_methods, reason = "measures how long a review takes")]
    fn judge_now(
        &self,
        phase: Phase,
        body: &[u8],
        (peer, tenant): (&Peer, Option<Arc<Resolved>>),
        too_large: impl FnOnce(&Review<'_>) -> Option<&'static str>,
    ) -> Judged {
        let began = Instant::now();
        let review = match Review::parse(body) {
            Ok(review) => review,
            Err(error) => {
                return Judged::Answered(self.unreadable(phase, StatusCode::BAD_REQUEST, &error.to_string()));
            }
        };
        peer.sent_a_review();
        if let Some(asked) = probe(&review) {
            let known = self.peers.known(peer, &asked, (self.clock)()).sentence();
            let decision = refused("this is not a pod but a question", &known, "nothing is stored");
            let answer = answer(&review.uid, &decision);
            return Judged::Answered(respond(StatusCode::OK, "application/json", answer));
        }
        let tenant = match tenant {
            Some(tenant) => tenant,
            None if !review.needs_identity() => Arc::new(Resolved::Unresolved(Unresolved::Unknown)),
            None => match self.index.known(&review.namespace) {
                Some(tenant) => tenant,
                None => return Judged::Unknown(review.namespace.into_owned()),
            },
        };
        let decision = match too_large(&review) {
            Some(why) => {
                let what = format!("{} {:?} is too large", review.resource, review.name);
                refused(&what, why, "keep data in ConfigMaps, or in a volume")
            }
            None => self.decide(phase, &review, &tenant),
        };
        self.metrics.decided(phase.as_str(), &decision, began.elapsed());
        if !decision.is_allowed() {
            log(&review, &decision);
        }
        Judged::Answered(respond(StatusCode::OK, "application/json", answer(&review.uid, &decision)))
    }

    fn decide(&self, phase: Phase, review: &Review<'_>, tenant: &Resolved) -> Decision {
        let in_force = self.in_force();
        // A panic must not end the connection, because it carries the reviews of all tenants.
        let decided = std::panic::catch_unwind(AssertUnwindSafe(|| decide(&in_force.rules, tenant, review)));
        let decision = decided.unwrap_or_else(|_| {
            tracing::error!(uid = %review.uid, "a decision panicked; the request is refused");
            refused("the webhook failed to check this object", "this is a bug in Bursar", "report it, with the object")
        });
        settle(phase, review, decision)
    }

    fn overloaded(&self, phase: Phase) -> HttpResponse {
        self.metrics.overloaded(phase.as_str());
        let mut answer = text(StatusCode::SERVICE_UNAVAILABLE, "too many reviews at a time");
        answer.headers_mut().insert(header::RETRY_AFTER, AGAIN);
        answer
    }

    fn unreadable(&self, phase: Phase, status: StatusCode, why: &str) -> HttpResponse {
        self.metrics.unreadable(phase.as_str());
        text(status, why)
    }

    /// Answers the kubelet and Prometheus.
    #[must_use]
    pub fn health<B>(&self, request: &Request<B>) -> HttpResponse {
        health(request, || self.unready(), || self.exposition())
    }

    fn unready(&self) -> Option<String> {
        let not_after = self.in_force().not_after;
        let ended = (not_after <= (self.clock)()).then(|| format!("the serving certificate expired at {not_after:.0}"));
        ended.or_else(|| self.index.unready())
    }

    fn exposition(&self) -> String {
        let in_force = self.in_force();
        self.metrics.exposition(Gauges {
            index_age: self.index.age(),
            namespaces: self.index.len(),
            certificate_seconds: in_force.not_after.as_second() - (self.clock)().as_second(),
            wrong: &in_force.wrong,
        })
    }
}

/// Takes a request apart, and drops its headers. No memory is reserved for headers: if they were kept until the body has
/// arrived, a client could make 16,000 requests with small bodies take a gibibyte.
fn routed<B>(request: Request<B>) -> (Result<Phase, (StatusCode, &'static str)>, Version, B) {
    let (parts, body) = request.into_parts();
    let phase = match (&parts.method, parts.uri.path()) {
        (&Method::POST, "/mutate") => Ok(Phase::Mutate),
        (&Method::POST, "/validate") => Ok(Phase::Validate),
        (_, "/mutate" | "/validate") => Err((StatusCode::METHOD_NOT_ALLOWED, "reviews are sent by POST")),
        _ => Err((StatusCode::NOT_FOUND, "not found: the paths are /mutate and /validate")),
    };
    (phase, parts.version, body)
}

/// The result of judging a body.
enum Judged {
    Answered(HttpResponse),
    /// The tenant of this namespace must first be read from the API server.
    Unknown(String),
}

/// Answers the kubelet and Prometheus. `unready` returns why the program is not ready.
pub(super) fn health<B>(
    request: &Request<B>,
    unready: impl FnOnce() -> Option<String>,
    exposition: impl FnOnce() -> String,
) -> HttpResponse {
    match request.uri().path() {
        "/healthz" => text(StatusCode::OK, "ok"),
        "/readyz" => match unready() {
            None => text(StatusCode::OK, "ok"),
            Some(why) => text(StatusCode::SERVICE_UNAVAILABLE, &why),
        },
        "/metrics" => respond(StatusCode::OK, METRICS, exposition()),
        _ => text(StatusCode::NOT_FOUND, "not found: the paths are /healthz, /readyz and /metrics"),
    }
}

/// Reduces a decision to what its phase reports: warnings only once, and changes only where they can be made. A change
/// that is still missing in the second phase was removed by another webhook.
fn settle(phase: Phase, review: &Review<'_>, mut decision: Decision) -> Decision {
    match phase {
        Phase::Mutate => {
            decision.warnings.clear();
            decision.audit.clear();
            decision.left_out.retain(|(mode, _), _| *mode == Mode::Enforce);
        }
        Phase::Validate if decision.is_allowed() && !decision.patch.is_empty() => {
            let patch = std::mem::take(&mut decision.patch);
            let fields: Vec<&str> = patch.iter().map(|change| change.path.as_str()).collect();
            decision.refusals = refused(
                &format!("{} {:?} lacks {}", review.resource, review.name, fields.join(", ")),
                "another admission webhook or policy removed what Bursar had set",
                "set them in the object, or exclude tenants' objects from the other webhook or policy",
            )
            .refusals;
        }
        Phase::Validate => decision.patch.clear(),
    }
    decision
}

fn refused(what: &str, why: &str, remedy: &str) -> Decision {
    let finding =
        Finding { rule: Rule::Malformed, what: what.to_owned(), why: why.to_owned(), remedy: remedy.to_owned() };
    Decision { refusals: vec![finding], ..Decision::default() }
}

/// Logs one line for each refusal: the fields that identify the object, and the reason, cut to [`LOGGED`] characters.
fn log(review: &Review<'_>, decision: &Decision) {
    let rules: Vec<&str> = decision.refusals.iter().map(|finding| finding.rule.as_str()).collect();
    let operation = match review.operation {
        Operation::Create => "create",
        Operation::Update => "update",
        Operation::Delete => "delete",
        Operation::Connect => "connect",
    };
    let short =
        |text: &str| text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(LOGGED).collect::<String>();
    tracing::info!(
        uid = short(&review.uid),
        operation,
        resource = short(&review.resource),
        subresource = short(&review.subresource),
        namespace = short(&review.namespace),
        name = short(&review.name),
        user = short(&review.user.name),
        rule = rules.join(","),
        reason = short(&decision.message()),
        dry_run = review.dry_run,
        "refused"
    );
}

pub(super) fn text(status: StatusCode, text: &str) -> HttpResponse {
    respond(status, "text/plain; charset=utf-8", format!("{text}\n"))
}

pub(super) fn respond(status: StatusCode, kind: &'static str, body: String) -> HttpResponse {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests;
