//! One request of the API server becomes its answer: body, identity, decision, answer, a line in the log if it is refused.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use bursar_core::admission::decision::{Decision, Finding, Rule};
use bursar_core::admission::review::{Review, answer};
use bursar_core::admission::tenant::{Resolved, Unresolved};
use bursar_core::admission::{Operation, decide};
use bursar_core::rules::Rules;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body as _, Bytes, Incoming};
use jiff::Timestamp;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::metrics::{Gauges, Metrics};
use crate::index::Index;

/// The largest body that is read: a review carries two objects, and the API server takes objects of 3 MiB.
pub const BODY_LIMIT: usize = 8 << 20;

/// Until a body is there. The API server sends it in one go.
const BODY_WITHIN: Duration = Duration::from_secs(10);

/// Bodies that are being read may take so much memory together, in KiB. A body counts as it comes in, so who sends
/// slowly keeps nobody out.
const BUFFERED: usize = 64 << 10;

/// Larger bodies are parsed a few at a time: small numbers in a list take 16 times their text.
const LARGE: usize = 256 << 10;
const LARGE_AT_A_TIME: usize = 2;

/// The media type of metrics.
pub(super) const METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Characters of a refusal in the log: names in it are a user's, and not yet checked.
const LOGGED: usize = 300;

/// Which of the two webhooks asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// `/mutate`: the answer may change the object.
    Mutate,
    /// `/validate`: the object is as it will be stored.
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

/// What is in force.
#[derive(Debug, Clone)]
pub struct InForce {
    /// What is decided by.
    pub rules: Arc<Rules>,
    /// When the certificate ends.
    pub not_after: Timestamp,
    /// Files whose newest content is not.
    pub wrong: [(&'static str, bool); 4],
}

/// Everything that an answer takes.
#[derive(Debug)]
pub struct ReviewHandler {
    /// Whose namespaces are.
    pub index: Arc<Index>,
    /// What is counted.
    pub metrics: Metrics,
    in_force: RwLock<Arc<InForce>>,
    clock: fn() -> Timestamp,
    buffered: Semaphore,
    large: Semaphore,
}

/// An answer.
pub type Answer = Response<Full<Bytes>>;

impl ReviewHandler {
    /// With nothing asked yet.
    #[must_use]
    pub fn new(in_force: InForce, index: Arc<Index>, clock: fn() -> Timestamp) -> Self {
        Self {
            index,
            metrics: Metrics::default(),
            in_force: RwLock::new(Arc::new(in_force)),
            clock,
            buffered: Semaphore::new(BUFFERED),
            large: Semaphore::new(LARGE_AT_A_TIME),
        }
    }

    /// Decides by `in_force` from now on.
    pub fn put_in_force(&self, in_force: InForce) {
        *self.in_force.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(in_force);
    }

    fn in_force(&self) -> Arc<InForce> {
        Arc::clone(&self.in_force.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Answers the API server.
    #[expect(clippy::disallowed_methods, reason = "measures how long a review takes")]
    pub async fn review(&self, request: Request<Incoming>) -> Answer {
        let (parts, body) = request.into_parts();
        // Read first: a peer that is answered while it still sends may never see the answer.
        let body = tokio::time::timeout(BODY_WITHIN, self.body(body)).await;
        let phase = match (&parts.method, parts.uri.path()) {
            (&Method::POST, "/mutate") => Phase::Mutate,
            (&Method::POST, "/validate") => Phase::Validate,
            (_, "/mutate" | "/validate") => return text(StatusCode::METHOD_NOT_ALLOWED, "reviews are sent by POST"),
            _ => return text(StatusCode::NOT_FOUND, "there are /mutate and /validate"),
        };
        let (body, _room) = match body {
            Ok(Ok(body)) => body,
            Ok(Err((status, why))) => return self.unreadable(phase, status, why),
            Err(_) => return self.unreadable(phase, StatusCode::REQUEST_TIMEOUT, "the body did not come in time"),
        };
        let _alone = if body.len() > LARGE { self.large.acquire().await.ok() } else { None };
        let began = Instant::now();
        let review = match Review::parse(&body) {
            Ok(review) => review,
            Err(error) => return self.unreadable(phase, StatusCode::BAD_REQUEST, &error.to_string()),
        };
        let decision = self.decide(phase, &review).await;
        self.metrics.decided(phase.as_str(), &decision, began.elapsed());
        if !decision.is_allowed() {
            log(&review, &decision);
        }
        respond(StatusCode::OK, "application/json", answer(&review.uid, &decision))
    }

    async fn decide(&self, phase: Phase, review: &Review<'_>) -> Decision {
        let tenant = if review.needs_identity() {
            self.index.resolve(&review.namespace).await
        } else {
            Arc::new(Resolved::Unresolved(Unresolved::Unknown))
        };
        let in_force = self.in_force();
        // One connection carries the reviews of all tenants: none of them may end it.
        let decided = std::panic::catch_unwind(AssertUnwindSafe(|| decide(&in_force.rules, &tenant, review)));
        let decision = decided.unwrap_or_else(|_| {
            tracing::error!(uid = %review.uid, "a decision panicked; the request is refused");
            refused("the webhook failed over this object", "a fault of Bursar's", "report it, with the object")
        });
        settle(phase, review, decision)
    }

    /// The body, and the room that it takes.
    async fn body(
        &self,
        mut body: Incoming,
    ) -> Result<(Vec<u8>, Option<SemaphorePermit<'_>>), (StatusCode, &'static str)> {
        let said = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
        let (mut bytes, mut room) = (Vec::with_capacity(said.min(LARGE)), None::<SemaphorePermit<'_>>);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| (StatusCode::BAD_REQUEST, "the body broke off"))?;
            let Some(data) = frame.data_ref() else { continue };
            if bytes.len() + data.len() > BODY_LIMIT {
                drop((bytes, room));
                while body.frame().await.is_some_and(|frame| frame.is_ok()) {}
                return Err((StatusCode::PAYLOAD_TOO_LARGE, "the body is larger than 8 MiB"));
            }
            let kibibytes = u32::try_from(data.len().div_ceil(1024)).unwrap_or(u32::MAX);
            if let Ok(more) = self.buffered.acquire_many(kibibytes).await {
                match &mut room {
                    Some(room) => room.merge(more),
                    None => room = Some(more),
                }
            }
            bytes.extend_from_slice(data);
        }
        Ok((bytes, room))
    }

    fn unreadable(&self, phase: Phase, status: StatusCode, why: &str) -> Answer {
        self.metrics.unreadable(phase.as_str());
        text(status, why)
    }

    /// Answers the kubelet and Prometheus.
    #[must_use]
    pub fn health<B>(&self, request: &Request<B>) -> Answer {
        match request.uri().path() {
            "/healthz" => text(StatusCode::OK, "ok"),
            "/readyz" => match self.unready() {
                None => text(StatusCode::OK, "ok"),
                Some(why) => text(StatusCode::SERVICE_UNAVAILABLE, &why),
            },
            "/metrics" => respond(StatusCode::OK, METRICS, self.exposition()),
            _ => text(StatusCode::NOT_FOUND, "there are /healthz, /readyz and /metrics"),
        }
    }

    fn unready(&self) -> Option<String> {
        let not_after = self.in_force().not_after;
        let ended = (not_after <= (self.clock)()).then(|| format!("the serving certificate ended {not_after:.0}"));
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

/// Selects what is said of a decision in which phase: warnings once, changes where they can be made. If a change is
/// still missing when nothing can be changed any more, something else removed it again.
fn settle(phase: Phase, review: &Review<'_>, mut decision: Decision) -> Decision {
    match phase {
        Phase::Mutate => {
            decision.warnings.clear();
            decision.audit.clear();
        }
        Phase::Validate if decision.is_allowed() && !decision.patch.is_empty() => {
            let patch = std::mem::take(&mut decision.patch);
            let fields: Vec<&str> = patch.iter().map(|change| change.path.as_str()).collect();
            decision.refusals = refused(
                &format!("{} {:?} lacks {}", review.resource, review.name, fields.join(", ")),
                "another admission webhook or policy took off what Bursar had filled in",
                "set it, or let that one leave it alone",
            )
            .refusals;
        }
        Phase::Validate => decision.patch.clear(),
    }
    decision
}

fn refused(what: &str, why: &str, cure: &str) -> Decision {
    let finding = Finding { rule: Rule::Malformed, what: what.to_owned(), why: why.to_owned(), cure: cure.to_owned() };
    Decision { refusals: vec![finding], ..Decision::default() }
}

/// Logs one line for each refusal. Only the fields that identify the body are in it, and the reason, cut short.
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

pub(super) fn text(status: StatusCode, text: &str) -> Answer {
    respond(status, "text/plain; charset=utf-8", format!("{text}\n"))
}

pub(super) fn respond(status: StatusCode, kind: &'static str, body: String) -> Answer {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use bursar_core::admission::decision::PatchOperation;
    use serde_json::json;

    use super::*;

    fn review() -> Review<'static> {
        let body = r#"{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "u",
            "operation": "CREATE", "name": "web", "resource": {"group": "", "version": "v1", "resource": "pods"}}}"#;
        Review::parse(body.as_bytes()).expect("a review")
    }

    #[test]
    fn what_somebody_took_off_again_is_refused() {
        let change = PatchOperation { op: "add", path: "/spec/x".to_owned(), value: json!(1) };
        let decision = Decision { patch: vec![change], ..Decision::default() };
        assert_eq!(settle(Phase::Mutate, &review(), decision.clone()), decision);
        let settled = settle(Phase::Validate, &review(), decision);
        assert!(settled.patch.is_empty() && settled.message().contains("/spec/x"), "{}", settled.message());
    }

    #[test]
    fn warnings_are_said_once() {
        let finding = refused("a", "b", "c").refusals;
        let decision = Decision { warnings: finding.clone(), audit: finding, ..Decision::default() };
        assert_eq!(settle(Phase::Mutate, &review(), decision.clone()), Decision::default());
        assert_eq!(settle(Phase::Validate, &review(), decision.clone()), decision);
    }
}
