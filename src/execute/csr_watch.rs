//! Watches a cluster's certificate requests that have our label. One watch for each cluster serves all callers that
//! wait.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt as _, watcher::watcher};
use kube::{Api, Client};
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};
use tokio_util::task::AbortOnDropHandle;

use crate::certificate::{self, Subject};
use crate::contract::{MANAGED_BY, MANAGER};
use crate::errors::chain;
use crate::policy::DAEMON_USER;

/// The label with the holder's id, by which requests that were left behind are found.
pub(super) const HOLDER: &str = "bursar.dev/id";

/// The watch. It runs until it is dropped.
#[derive(Debug)]
pub struct CsrWatch {
    shared: Arc<Shared>,
    _task: AbortOnDropHandle<()>,
}

/// Started with the first request for a certificate, so that a daemon that issues none watches nothing.
pub type LazyCsrWatch = OnceLock<CsrWatch>;

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    listed: watch::Sender<bool>,
}

/// All maps have the uid as key, because a recreated request with the same name is another request.
#[derive(Debug, Default)]
struct State {
    known: BTreeMap<String, Seen>,
    waiters: BTreeMap<String, oneshot::Sender<Outcome>>,
    list: BTreeMap<String, Seen>,
    /// The uids of requests that this process made.
    made: BTreeSet<String>,
    /// The digests of the keys for which an earlier process made requests.
    requested: BTreeSet<String>,
    signed: BTreeMap<String, Signed>,
    trouble: Option<String>,
}

#[derive(Debug)]
struct Seen {
    name: String,
    holder: String,
    approved: bool,
    outcome: Option<Outcome>,
    /// Whether the API server recorded that the daemon made the request.
    by_the_daemon: bool,
}

/// A certificate that was signed for a request in the daemon's name that no process of this ledger made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signed {
    /// The common name and the organizations.
    pub subject: String,
    /// The SHA-256 of its DER, in hex.
    pub fingerprint: String,
    /// When it expires.
    pub not_after: Timestamp,
    pub request: String,
}

/// The outcome of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The certificate as PEM.
    Issued(Vec<u8>),
    /// The reason.
    Denied(String),
    /// The reason.
    Failed(String),
    /// The request was deleted.
    Gone,
}

impl CsrWatch {
    /// Starts the watch. `requested` are the digests of the keys for which an earlier process made requests. Must be
    /// called within a Tokio runtime.
    #[must_use]
    pub fn start(client: &Client, requested: BTreeSet<String>) -> Self {
        let state = Mutex::new(State { requested, ..State::default() });
        let shared = Arc::new(Shared { state, listed: watch::Sender::new(false) });
        let task = AbortOnDropHandle::new(tokio::spawn(run(Arc::clone(&shared), client.clone())));
        Self { shared, _task: task }
    }

    /// Waits until all existing requests have been listed. If that takes longer than `deadline`, returns why.
    pub(super) async fn ready(&self, deadline: Duration) -> Result<(), String> {
        let mut listed = self.shared.listed.subscribe();
        // The sender lives as long as `self`.
        if let Ok(Ok(_)) = tokio::time::timeout(deadline, listed.wait_for(|listed| *listed)).await {
            return Ok(());
        }
        Err(self.trouble().unwrap_or_else(|| "no answer yet".to_owned()))
    }

    /// Returns why the watch does not work at present.
    pub(super) fn trouble(&self) -> Option<String> {
        self.shared.state.lock().trouble.clone()
    }

    /// Returns name and uid of all requests of a holder.
    pub(super) fn left_behind(&self, holder: &str) -> Vec<(String, String)> {
        let state = self.shared.state.lock();
        let of_holder = state.known.iter().filter(|(_, seen)| seen.holder == holder);
        of_holder.map(|(uid, seen)| (seen.name.clone(), uid.clone())).collect()
    }

    /// Returns a channel for the outcome of the request with this uid.
    pub(super) fn outcome(&self, uid: &str) -> oneshot::Receiver<Outcome> {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.shared.state.lock();
        match state.known.get(uid).and_then(|seen| seen.outcome.clone()) {
            // If the caller has dropped the receiver, nobody needs the outcome.
            Some(outcome) => drop(sender.send(outcome)),
            None => drop(state.waiters.insert(uid.to_owned(), sender)),
        }
        receiver
    }

    /// Records that this process made the request with this uid.
    pub(super) fn made(&self, uid: &str) {
        let mut state = self.shared.state.lock();
        state.made.insert(uid.to_owned());
        state.signed.remove(uid);
    }

    /// Takes the certificates that were signed for requests in the daemon's name that no process of this ledger made.
    /// Each is returned once.
    #[must_use]
    pub fn signed(&self) -> Vec<Signed> {
        std::mem::take(&mut self.shared.state.lock().signed).into_values().collect()
    }

    /// Whether the request with this uid was approved.
    pub(super) fn is_approved(&self, uid: &str) -> bool {
        self.shared.state.lock().known.get(uid).is_some_and(|seen| seen.approved)
    }

    /// Records that Bursar removed the request, before the watch shows it.
    pub(super) fn removed(&self, uid: &str) {
        let mut state = self.shared.state.lock();
        state.known.remove(uid);
        state.waiters.remove(uid);
    }
}

impl Shared {
    fn event(&self, event: Event<CertificateSigningRequest>) {
        let mut state = self.state.lock();
        state.trouble = None;
        match event {
            Event::Init => state.list.clear(),
            Event::InitApply(request) => state.list.extend(seen(request)),
            Event::InitDone => {
                let list = std::mem::take(&mut state.list);
                let before = std::mem::take(&mut state.known);
                // A request that is no longer listed was deleted while the watch was broken.
                before.keys().filter(|uid| !list.contains_key(*uid)).for_each(|uid| state.tell(uid, Outcome::Gone));
                for (uid, seen) in list {
                    state.saw(uid, seen);
                }
                self.listed.send_replace(true);
            }
            Event::Apply(request) => {
                if let Some((uid, seen)) = seen(request) {
                    state.saw(uid, seen);
                }
            }
            Event::Delete(request) => {
                if let Some(uid) = request.metadata.uid {
                    state.known.remove(&uid);
                    state.tell(&uid, Outcome::Gone);
                }
            }
        }
    }
}

impl State {
    fn saw(&mut self, uid: String, seen: Seen) {
        if let Some(Outcome::Issued(pem)) =
            seen.outcome.as_ref().filter(|_| seen.by_the_daemon && !self.made.contains(&uid))
        {
            let subject = certificate::subject(pem);
            let is_ours = |it: &Subject| self.requested.contains(&certificate::fingerprint(&it.public_key));
            if !subject.as_ref().is_some_and(is_ours) {
                self.signed.extend(signed(pem, subject, &seen.name).map(|signed| (uid.clone(), signed)));
            }
        }
        if let Some(outcome) = seen.outcome.clone() {
            self.tell(&uid, outcome);
        }
        self.known.insert(uid, seen);
    }

    fn tell(&mut self, uid: &str, outcome: Outcome) {
        if let Some(waiter) = self.waiters.remove(uid) {
            // If this fails, the caller has stopped waiting.
            drop(waiter.send(outcome));
        }
    }
}

fn seen(request: CertificateSigningRequest) -> Option<(String, Seen)> {
    let CertificateSigningRequest { metadata, spec, status } = request;
    let holder = metadata.labels.and_then(|mut labels| labels.remove(HOLDER)).unwrap_or_default();
    let status = status.unwrap_or_default();
    let condition = |kind: &str| {
        let found = status.conditions.iter().flatten().find(|condition| condition.type_ == kind)?;
        Some([found.reason.as_deref(), found.message.as_deref()].into_iter().flatten().collect::<Vec<_>>().join(": "))
    };
    let outcome = condition("Denied")
        .map(Outcome::Denied)
        .or_else(|| condition("Failed").map(Outcome::Failed))
        .or_else(|| status.certificate.clone().map(|certificate| Outcome::Issued(certificate.0)));
    let approved = condition("Approved").is_some();
    let is_its = |group: &String| group.strip_prefix(DAEMON_USER).is_some_and(|rest| rest.starts_with('#'));
    let by_the_daemon = spec.username.as_deref() == Some(DAEMON_USER) || spec.groups.iter().flatten().any(is_its);
    Some((metadata.uid?, Seen { name: metadata.name?, holder, approved, outcome, by_the_daemon }))
}

fn signed(pem: &[u8], subject: Option<Subject>, request: &str) -> Option<Signed> {
    let issued = certificate::validity(pem)?;
    let subject = subject.map_or_else(
        || "an unreadable subject".to_owned(),
        |subject| {
            let groups: Vec<String> = subject.organizations.iter().map(|group| format!(", O={group}")).collect();
            format!("CN={}{}", subject.common_name, groups.concat())
        },
    );
    Some(Signed { subject, fingerprint: issued.fingerprint, not_after: issued.not_after, request: request.to_owned() })
}

async fn run(shared: Arc<Shared>, client: Client) {
    let config = watcher::Config::default().labels(&format!("{MANAGED_BY}={MANAGER}"));
    let mut events = std::pin::pin!(watcher(Api::all(client), config).default_backoff());
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => shared.event(event),
            Err(error) => shared.state.lock().trouble = Some(chain(&error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use rcgen::PublicKeyData as _;
    use serde_json::{Value, json};

    use super::*;

    fn request(uid: &str, status: &Value) -> CertificateSigningRequest {
        serde_json::from_value(json!({
            "metadata": {"name": "bursar-tool-foo", "uid": uid, "labels": {HOLDER: "0a1b"}},
            "spec": {"request": "", "signerName": "kubernetes.io/kube-apiserver-client"},
            "status": status,
        }))
        .expect("the JSON is a request")
    }

    fn watch() -> CsrWatch {
        watch_after(BTreeSet::new())
    }

    fn watch_after(requested: BTreeSet<String>) -> CsrWatch {
        let state = Mutex::new(State { requested, ..State::default() });
        let shared = Arc::new(Shared { state, listed: watch::Sender::new(false) });
        CsrWatch { shared, _task: AbortOnDropHandle::new(tokio::spawn(std::future::pending::<()>())) }
    }

    #[tokio::test]
    async fn each_waiter_is_told_of_its_own_request() {
        let watch = watch();
        let (one, two) = (watch.outcome("1"), watch.outcome("2"));
        watch.shared.event(Event::Apply(request("1", &json!({}))));
        let denied = json!({"conditions": [{"type": "Denied", "status": "True", "reason": "No", "message": "never"}]});
        watch.shared.event(Event::Apply(request("2", &denied)));
        watch.shared.event(Event::Apply(request("1", &json!({"certificate": "cGVt"}))));
        assert_eq!(one.await, Ok(Outcome::Issued(b"pem".to_vec())));
        assert_eq!(two.await, Ok(Outcome::Denied("No: never".to_owned())));
        assert_eq!(
            watch.outcome("1").await,
            Ok(Outcome::Issued(b"pem".to_vec())),
            "the outcome was known before it was asked for"
        );
    }

    #[tokio::test]
    async fn a_certificate_for_the_key_of_a_recorded_request_is_known() {
        let [ours, theirs] = [(); 2].map(|()| rcgen::KeyPair::generate().expect("a key is generated"));
        let digest = certificate::fingerprint(&ours.subject_public_key_info());
        let watch = watch_after(BTreeSet::from([digest]));
        watch.shared.event(Event::Init);
        for (uid, key) in [("1", &ours), ("2", &theirs)] {
            let signed = rcgen::CertificateParams::default().self_signed(key).expect("a certificate is signed");
            let mut request = request(uid, &json!({}));
            request.metadata.name = Some(format!("request-{uid}"));
            request.spec.username = Some(DAEMON_USER.to_owned());
            let certificate = Some(k8s_openapi::ByteString(signed.pem().into_bytes()));
            request.status.get_or_insert_default().certificate = certificate;
            watch.shared.event(Event::InitApply(request));
        }
        watch.shared.event(Event::InitDone);
        let unknown: Vec<String> = watch.signed().into_iter().map(|signed| signed.request).collect();
        assert_eq!(unknown, ["request-2"]);
    }

    #[tokio::test]
    async fn a_new_list_ends_requests_that_it_lacks() {
        let watch = watch();
        watch.shared.event(Event::Apply(request("1", &json!({}))));
        let (seen, unseen) = (watch.outcome("1"), watch.outcome("2"));
        watch.shared.event(Event::Init);
        watch.shared.event(Event::InitApply(request("3", &json!({}))));
        watch.shared.event(Event::InitDone);
        assert_eq!(seen.await, Ok(Outcome::Gone));
        assert_eq!(watch.left_behind("0a1b"), [("bursar-tool-foo".to_owned(), "3".to_owned())]);
        // Request 2 was made after the list was read.
        watch.shared.event(Event::Apply(request("2", &json!({"certificate": "cGVt"}))));
        assert_eq!(unseen.await, Ok(Outcome::Issued(b"pem".to_vec())));
    }
}
