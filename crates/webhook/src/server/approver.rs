//! `bursar-webhook approve`: watches the daemon's certificate requests and approves the requests that
//! [`bursar_core::admission::approver`] permits. It denies requests that can never become valid. All other requests
//! stay pending: they are logged once, counted, and judged again until they are decided or deleted.
//!
//! Two approvers may run at the same time. If both approve a request, the second approval conflicts, which is not an
//! error.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bursar_watch::listing_again;
use futures::StreamExt as _;
use http::Request;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};
use parking_lot::{Mutex, RwLock};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::{Notify, Semaphore};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use super::files::ApproverFiles;
use super::handler::{HttpResponse, health};
use super::metrics::ApproverMetrics;
use super::{ServerError, client, serve_health};
use crate::index::{Index, Trust};
use bursar_core::admission::approver::{Asked, Judgement, SIGNER, Wanted, judge};
use bursar_core::admission::tenant::Resolved;
use bursar_core::contract::NAMESPACE_HINT;
use bursar_core::errors::chain;
use bursar_core::rules::approver::ApproverRules;

/// The time between two reads of the files.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The time between two judgements of a pending request. No event reports what the request waits for.
const JUDGED_AGAIN: Duration = Duration::from_secs(5);
/// The most requests that are judged at a time. The signer issues 20 certificates a second, and each judgement takes
/// one or two API requests of 5 ms.
const AT_A_TIME: usize = 16;
/// The deadline of a judgement. A later judgement retries the approval.
const DEADLINE: Duration = Duration::from_secs(10);

/// A request that is neither approved nor denied.
struct Pending {
    request: CertificateSigningRequest,
    /// The reason why the request waits; `None` before its first judgement.
    why: Option<String>,
    /// Whether the request is being judged now.
    judged: bool,
}

impl Pending {
    fn is_newer_than(&self, request: &CertificateSigningRequest) -> bool {
        self.request.metadata.resource_version != request.metadata.resource_version
    }
}

struct Approver {
    rules: RwLock<Arc<ApproverRules>>,
    client: RwLock<Client>,
    index: Arc<Index>,
    /// The pending requests by uid.
    pending: Mutex<BTreeMap<String, Pending>>,
    listed: Mutex<Option<String>>,
    places: Semaphore,
    metrics: ApproverMetrics,
}

/// Approves requests until `stop`.
///
/// # Errors
/// Fails only at the start. If the API server is down later, `/readyz` shows it.
pub async fn run(dir: &Path, health: SocketAddr, stop: CancellationToken) -> Result<(), ServerError> {
    let files = ApproverFiles::open(dir).map_err(|why| ServerError::ApproverFiles { dir: dir.to_owned(), why })?;
    let client = client(files.kubeconfig()).await.map_err(ServerError::ApiServer)?;
    let probes = TcpListener::bind(health).await.map_err(|source| ServerError::Listen { address: health, source })?;
    let approver = Arc::new(Approver {
        rules: RwLock::new(files.rules()),
        client: RwLock::new(client),
        index: Arc::new(Index::default()),
        pending: Mutex::default(),
        listed: Mutex::new(Some("certificate requests are not listed yet".to_owned())),
        places: Semaphore::new(AT_A_TIME),
        metrics: ApproverMetrics::default(),
    });
    let keeping = tokio::spawn(keep_up(files, Arc::clone(&approver)));
    let probing = Arc::clone(&approver);
    let probing = tokio::spawn(serve_health(probes, move |request| probing.health(request)));
    tracing::info!(%health, "approving");
    stop.cancelled().await;
    keeping.abort();
    probing.abort();
    Ok(())
}

/// Runs the watches, and starts them again when the files change.
async fn keep_up(mut files: ApproverFiles, approver: Arc<Approver>) {
    let mut watches = start(&files, &approver);
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let changed = files.look();
        if changed.rules {
            *approver.rules.write() = files.rules();
        }
        if changed.access {
            match client(files.kubeconfig()).await {
                Ok(client) => *approver.client.write() = client,
                Err(error) => tracing::error!(error, "the new kubeconfig cannot be used; the old one stays in use"),
            }
        }
        if changed.rules || changed.access {
            watches.iter().for_each(AbortHandle::abort);
            watches = start(&files, &approver);
        }
    }
}

fn start(files: &ApproverFiles, approver: &Arc<Approver>) -> [AbortHandle; 2] {
    let rules = files.rules();
    let trust = Trust { cluster: rules.cluster.clone(), public_keys: rules.public_keys().unwrap_or_default() };
    let client = approver.client.read().clone();
    let index = tokio::spawn(Arc::clone(&approver.index).watch(client.clone(), trust));
    let requests = tokio::spawn(follow(Arc::clone(approver), client));
    [index.abort_handle(), requests.abort_handle()]
}

/// Follows the requests of the signer, and judges pending ones again.
async fn follow(approver: Arc<Approver>, client: Client) {
    let config = watcher::Config::default().fields(&format!("spec.signerName={SIGNER}"));
    // After an error, a new list shows that the watch works again, even if there is no request.
    let mut events = std::pin::pin!(listing_again(Api::<CertificateSigningRequest>::all(client), config));
    let mut again = tokio::time::interval(JUDGED_AGAIN);
    let mut listed: Vec<String> = Vec::new();
    let changed = Arc::new(Notify::new());
    loop {
        let event = tokio::select! {
            _ = again.tick() => {
                Approver::judge_all(&approver, &changed);
                continue;
            }
            () = changed.notified() => continue,
            event = events.next() => event,
        };
        match event {
            None => return,
            Some(Err(error)) => {
                approver.is_listed(Some(format!("certificate requests are not watched: {}", chain(&error))));
            }
            Some(Ok(Event::Init)) => listed.clear(),
            Some(Ok(Event::InitApply(request))) => {
                listed.extend(request.metadata.uid.clone());
                Approver::see(&approver, request, &changed);
            }
            Some(Ok(Event::InitDone)) => {
                approver.pending.lock().retain(|uid, _| listed.contains(uid));
                approver.is_listed(None);
            }
            Some(Ok(Event::Apply(request))) => {
                approver.is_listed(None);
                Approver::see(&approver, request, &changed);
            }
            Some(Ok(Event::Delete(request))) => {
                drop(request.metadata.uid.map(|uid| approver.pending.lock().remove(&uid)));
            }
        }
    }
}

impl Approver {
    fn is_listed(&self, trouble: Option<String>) {
        let mut listed = self.listed.lock();
        if let Some(why) = trouble.as_ref().filter(|_| listed.as_ref() != trouble.as_ref()) {
            tracing::warn!(
                error = why,
                "the watch of certificate requests failed; no request is approved until it works again"
            );
        }
        *listed = trouble;
    }

    fn see(approver: &Arc<Self>, request: CertificateSigningRequest, changed: &Arc<Notify>) {
        let Some(uid) = request.metadata.uid.clone() else { return };
        if is_decided(&request) {
            approver.pending.lock().remove(&uid);
            return;
        }
        let rules = approver.rules();
        if judge(&rules, &asked(&request)) == Judgement::NotOurs {
            approver.pending.lock().remove(&uid);
            return;
        }
        match approver.pending.lock().entry(uid.clone()) {
            Entry::Occupied(mut known) => known.get_mut().request = request,
            Entry::Vacant(place) => drop(place.insert(Pending { request, why: None, judged: false })),
        }
        Self::judge_one(approver, &uid, changed);
    }

    fn judge_all(approver: &Arc<Self>, changed: &Arc<Notify>) {
        let waiting: Vec<String> = approver.pending.lock().keys().cloned().collect();
        for uid in &waiting {
            Self::judge_one(approver, uid, changed);
        }
    }

    /// Judges a request in a task of its own, so that a live read for one request does not delay the others.
    fn judge_one(approver: &Arc<Self>, uid: &str, changed: &Arc<Notify>) {
        let request = match approver.pending.lock().get_mut(uid) {
            Some(pending) if !pending.judged => {
                pending.judged = true;
                pending.request.clone()
            }
            _ => return,
        };
        let (approver, uid, changed) = (Arc::clone(approver), uid.to_owned(), Arc::clone(changed));
        tokio::spawn(async move {
            let outcome = match approver.places.acquire().await {
                Ok(_place) => tokio::time::timeout(DEADLINE, approver.decide(&request)).await,
                Err(_) => return,
            };
            let outcome = outcome.unwrap_or_else(|_| Outcome::Waits("the API server does not answer".to_owned()));
            if approver.note(&uid, &request, outcome) {
                Self::judge_one(&approver, &uid, &changed);
            }
            changed.notify_one();
        });
    }

    fn rules(&self) -> Arc<ApproverRules> {
        Arc::clone(&self.rules.read())
    }

    async fn decide(&self, request: &CertificateSigningRequest) -> Outcome {
        let rules = self.rules();
        let judgement = judge(&rules, &asked(request));
        let judgement = match judgement {
            Judgement::Sealed(wanted) => match self.sealed(request, &wanted).await {
                Ok(()) => Judgement::Approve,
                Err(why) => Judgement::Waits(why),
            },
            judgement => judgement,
        };
        match judgement {
            Judgement::NotOurs => Outcome::Gone,
            Judgement::Sealed(_) => Outcome::Waits("its namespace is not known yet".to_owned()),
            Judgement::Waits(why) => Outcome::Waits(why),
            Judgement::Approve => {
                self.conclude(request, "Approved", "BursarApproved", "the request matches the approver's rules").await
            }
            Judgement::Never(why) => self.conclude(request, "Denied", "BursarDenied", &why).await,
        }
    }

    /// Checks the sealed namespaces in the index. If none matches, reads the hinted namespace live, because the watch
    /// may not have reported a new seal yet.
    async fn sealed(&self, request: &CertificateSigningRequest, wanted: &Wanted) -> Result<(), String> {
        let is_ready = self.index.unready().is_none();
        let known = if is_ready { self.index.of_account(&wanted.account) } else { Vec::new() };
        let why = match wanted.is_in(&known) {
            Ok(()) => return Ok(()),
            Err(why) => why,
        };
        let annotations = request.metadata.annotations.as_ref();
        let Some(namespace) = annotations.and_then(|annotations| annotations.get(NAMESPACE_HINT)) else {
            return Err(why);
        };
        match self.index.read_live(namespace).await {
            Some(Resolved::Sealed(identity)) => wanted.is_in(&[identity]),
            Some(Resolved::Unresolved(unresolved)) => Err(format!("namespace {namespace}: {unresolved}")),
            None => Err(why),
        }
    }

    async fn conclude(
        &self,
        request: &CertificateSigningRequest,
        condition: &'static str,
        reason: &str,
        message: &str,
    ) -> Outcome {
        let metadata = &request.metadata;
        let name = metadata.name.as_deref().unwrap_or_default();
        // The patch contains uid and version, so that only the judged state of the request is approved, and no decision
        // of another client is overwritten.
        let change = json!({
            "metadata": {"uid": metadata.uid, "resourceVersion": metadata.resource_version},
            "status": {"conditions": [
                {"type": condition, "status": "True", "reason": reason, "message": message},
            ]},
        });
        let api: Api<CertificateSigningRequest> = Api::all(self.client.read().clone());
        match api.patch_approval(name, &PatchParams::default(), &Patch::Merge(&change)).await {
            Ok(_) => Outcome::Decided { condition, why: message.to_owned() },
            // The request is gone, or another client decided it. The watch will report which.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409 | 422) => Outcome::Gone,
            Err(error) => Outcome::Waits(chain(&error)),
        }
    }

    /// Records the outcome of a judgement. Returns whether the request changed meanwhile and must be judged again.
    fn note(&self, uid: &str, request: &CertificateSigningRequest, outcome: Outcome) -> bool {
        let name = request.metadata.name.as_deref().unwrap_or_default();
        let count = |verdict| self.metrics.judged(verdict);
        let mut all = self.pending.lock();
        let mut known = all.get_mut(uid);
        if let Some(pending) = &mut known {
            pending.judged = false;
        }
        match outcome {
            Outcome::Gone | Outcome::Waits(_) if known.as_ref().is_some_and(|it| it.is_newer_than(request)) => {
                return true;
            }
            Outcome::Gone => drop(all.remove(uid)),
            Outcome::Decided { condition: "Approved", .. } => {
                all.remove(uid);
                count("approved");
                tracing::info!(request = name, "approved");
            }
            Outcome::Decided { why, .. } => {
                all.remove(uid);
                count("denied");
                tracing::warn!(request = name, reason = why, "denied");
            }
            Outcome::Waits(why) => {
                let Some(pending) = known else { return false };
                if pending.why.as_ref() != Some(&why) {
                    tracing::warn!(request = name, reason = why, "not approved yet");
                    if pending.why.is_none() {
                        count("pending");
                    }
                    pending.why = Some(why);
                }
            }
        }
        false
    }

    fn health<B>(&self, request: &Request<B>) -> HttpResponse {
        health(request, || self.unready(), || self.exposition())
    }

    fn unready(&self) -> Option<String> {
        self.listed.lock().clone().or_else(|| self.index.unready())
    }

    fn exposition(&self) -> String {
        let waiting = self.pending.lock().values().filter(|pending| pending.why.is_some()).count();
        self.metrics.exposition(waiting, self.unready().is_none())
    }
}

/// The outcome of a judgement.
enum Outcome {
    Decided { condition: &'static str, why: String },
    Waits(String),
    Gone,
}

fn asked(request: &CertificateSigningRequest) -> Asked<'_> {
    let spec = &request.spec;
    Asked {
        signer: &spec.signer_name,
        user: spec.username.as_deref().unwrap_or_default(),
        groups: spec.groups.as_deref().unwrap_or_default(),
        usages: spec.usages.as_deref().unwrap_or_default(),
        expiration_seconds: spec.expiration_seconds,
        request: &spec.request.0,
    }
}

/// Whether the request is approved, denied, failed or issued.
fn is_decided(request: &CertificateSigningRequest) -> bool {
    let status = request.status.as_ref();
    status.is_some_and(|status| {
        status.certificate.is_some() || status.conditions.as_ref().is_some_and(|conditions| !conditions.is_empty())
    })
}
