//! Gets a certificate from the cluster's own signer: creates a request, approves it, and waits until it is issued,
//! denied, failed or deleted. One watch for each cluster serves all callers that wait.
//!
//! Each holder has at most one request, with a name made from the holder. A request that an earlier run left behind is
//! removed first. The approval names the uid of the request that Bursar created, so a request that somebody put in its
//! place is never approved.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bursar_homed::breaker::{BACKOFF, Breaker};
use parking_lot::Mutex;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use super::csr_watch::{HOLDER, Outcome};
use super::record::Recorder;
use super::request::{ApiServer, Ask, RequestError};
use crate::contract::{MANAGED_BY, MANAGER, NAMESPACE_HINT};
use crate::identity::{ClusterName, kubernetes_name};
use crate::kinds::{ObjectKey, ObjectKind};
use crate::ledger::change::Change;

/// The signer whose certificates the API server accepts from clients (Kubernetes, "Certificates and CSRs").
pub const SIGNER: &str = "kubernetes.io/kube-apiserver-client";
/// The usages of client certificates.
pub const USAGES: [&str; 2] = ["client auth", "digital signature"];
/// Annotation with the holder's name.
const ACCOUNT: &str = "bursar.dev/account";

const API_VERSION: &str = "certificates.k8s.io/v1";
const KIND: &str = "CertificateSigningRequest";
const PATH: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";

/// How long to wait for a certificate after the approval. The signer needs 0.2 s on an idle control plane, and 14 s for
/// the last of 300 requests at its default rate of 20 a second. If it takes longer, the signer probably does not run,
/// and the tenant's backoff is the better place to wait.
const DEADLINE: Duration = Duration::from_secs(30);

/// How long a holder counts as unapproved after its last request. A failed request is repeated at least hourly, so this
/// ends only if nobody asks for the certificate any more, for example because the account left.
const COUNTS_FOR: Duration = Duration::from_hours(2);

/// A certificate to be signed.
#[derive(Debug, Clone, Copy)]
pub struct Unsigned<'a> {
    /// The immutable id of the holder.
    pub holder: &'a str,
    /// The name of the account, such as `tool:foo`.
    pub account: &'a str,
    /// The request (PKCS#10) as PEM.
    pub request: &'a str,
    /// The lifetime that is requested from the signer.
    pub lifetime: Duration,
    /// A namespace of the holder, in which the approver finds its seal.
    pub namespace: Option<&'a str>,
    /// Stored before the request is made, so that a process that is killed knows its requests when it starts again.
    pub record: Option<(&'a Recorder, &'a Change)>,
}

/// Why there is no certificate. The text contains the remedy.
#[derive(Debug, Error)]
pub enum SigningError {
    /// The API server did not carry out a request.
    #[error("cannot create or read the certificate request")]
    Request(#[from] RequestError),
    /// A request with this name belongs to somebody else.
    #[error("certificate request {0} exists and is not Bursar's; if nobody needs it, run: kubectl delete csr {0}")]
    Foreign(String),
    /// Somebody denied the request.
    #[error(
        "the certificate request was denied: {0}; find out which controller or administrator denies requests of user bursar:daemon"
    )]
    Denied(String),
    /// The signer refused the request.
    #[error("the signer refused the certificate request: {0}")]
    Failed(String),
    /// The request was deleted before it was signed.
    #[error("the certificate request was deleted before it was signed; Bursar creates it again")]
    Gone,
    /// The approved request was not signed in time.
    #[error(
        "no certificate within {} s of the approval; check that kube-controller-manager runs with \
         --cluster-signing-cert-file and that its csrsigning controller is on",
        DEADLINE.as_secs()
    )]
    NotSigned,
    /// The approver did not approve the request in time.
    #[error(
        "the approver did not approve the request within {} s; see its log (Deployment bursar-approver in namespace \
         bursar-approver, or where `bursar-webhook approve` runs); after a change of classes run `bursar approver install`",
        DEADLINE.as_secs()
    )]
    NotApproved,
    /// The signer did not answer the requests of other accounts, so it is not asked.
    #[error(
        "the signer of cluster {cluster} did not answer the requests of several accounts and is asked again in {} s; see \
         what failed first in `bursar status`",
        wait.as_secs().max(1)
    )]
    NotAsked {
        cluster: ClusterName,
        /// How long until it is asked again.
        wait: Duration,
    },
    /// The ledger did not take the record, so nothing was requested.
    #[error("the ledger did not record the certificate request")]
    NotRecorded,
    /// The cluster's certificate requests cannot be watched.
    #[error("cannot watch the certificate requests of cluster {cluster}: {why}")]
    NotWatched { cluster: ClusterName, why: String },
}

/// Stops asking a signer that does not answer the requests of several accounts. Otherwise each account would wait for
/// `DEADLINE`, and delay the rest of the cycle.
#[derive(Debug)]
pub struct SignerBreaker {
    breaker: Mutex<Breaker<String>>,
    /// The holders whose last request the approver did not approve in time, and when that was.
    unapproved: Mutex<BTreeMap<String, Instant>>,
}

impl Default for SignerBreaker {
    fn default() -> Self {
        Self { breaker: Mutex::new(Breaker::new(BACKOFF)), unapproved: Mutex::default() }
    }
}

impl SignerBreaker {
    fn heard<T>(&self, holder: &str, answer: &Result<T, SigningError>, now: Instant) {
        let (is_signed_or_refused, is_judged) = match answer {
            Ok(_) | Err(SigningError::Denied(_) | SigningError::Failed(_)) => (true, true),
            Err(SigningError::NotSigned) => (false, true),
            Err(SigningError::NotApproved) => (false, false),
            Err(_) => return,
        };
        if is_judged {
            self.unapproved.lock().remove(holder);
        } else {
            self.unapproved.lock().insert(holder.to_owned(), now);
        }
        let mut breaker = self.breaker.lock();
        if is_signed_or_refused {
            breaker.answered();
        } else if breaker.timed_out(holder.to_owned(), now) {
            tracing::warn!("the signer does not answer");
        }
    }

    fn unapproved(&self, now: Instant) -> usize {
        let mut unapproved = self.unapproved.lock();
        unapproved.retain(|_, at| now.saturating_duration_since(*at) < COUNTS_FOR);
        unapproved.len()
    }
}

/// Returns how many holders wait for a certificate because the approver does not approve their requests. If it does not
/// run, only the daemon can know this.
#[must_use]
pub fn unapproved(server: &ApiServer) -> usize {
    if server.approves() { 0 } else { server.signer().unapproved(now()) }
}

/// A request that the breaker admitted. If it ends without an answer, or is dropped, the next request may try again.
struct Admitted<'a>(&'a SignerBreaker);

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        self.0.breaker.lock().not_tried();
    }
}

#[expect(clippy::disallowed_methods, reason = "how long a signer is left alone is not a decision about an account")]
fn now() -> Instant {
    Instant::now()
}

/// Requests a certificate, and returns its PEM. The request is removed afterwards, even after a failure.
pub async fn sign(server: &ApiServer, unsigned: Unsigned<'_>) -> Result<Vec<u8>, SigningError> {
    let admitted = server.signer().breaker.lock().admit(now());
    admitted.map_err(|wait| SigningError::NotAsked { cluster: server.cluster.clone(), wait })?;
    let _admitted = Admitted(server.signer());
    let answer = ask(server, unsigned).await;
    server.signer().heard(unsigned.holder, &answer, now());
    answer
}

async fn ask(server: &ApiServer, unsigned: Unsigned<'_>) -> Result<Vec<u8>, SigningError> {
    let watch = server.certificates();
    if let Err(why) = watch.ready(DEADLINE).await {
        return Err(SigningError::NotWatched { cluster: server.cluster.clone(), why });
    }
    for (name, uid) in watch.left_behind(unsigned.holder) {
        remove(server, &name, &uid).await?;
    }
    if let Some((recorder, change)) = unsigned.record {
        recorder.store(vec![change.clone()], Vec::new()).await.map_err(|_| SigningError::NotRecorded)?;
    }
    let name = name(unsigned.account, unsigned.holder);
    let uid = create(server, &name, unsigned).await?;
    watch.made(&uid);
    let outcome = approved(server, &name, &uid).await;
    let removed = remove(server, &name, &uid).await;
    let certificate = outcome?;
    // The certificate was issued. If the request was not removed, the holder's next request removes it.
    drop(removed);
    Ok(certificate)
}

/// Returns the key of the request, for error messages.
#[must_use]
pub fn key(cluster: &ClusterName, unsigned: &Unsigned<'_>) -> ObjectKey {
    ObjectKey::new(cluster, ObjectKind::of(API_VERSION, KIND), None, &name(unsigned.account, unsigned.holder))
}

/// Returns the name of the request for an account's certificate. It includes a hash of the holder, so that two holders
/// with one name, such as the daemons of two ledgers, do not remove each other's requests.
#[must_use]
pub fn name(account: &str, holder: &str) -> String {
    format!("bursar-{}-{}", kubernetes_name(account), hex::encode(&Sha256::digest(holder)[..4]))
}

async fn create(server: &ApiServer, name: &str, unsigned: Unsigned<'_>) -> Result<String, SigningError> {
    let mut object = json!({
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": name,
            "labels": {MANAGED_BY: MANAGER, HOLDER: unsigned.holder},
            "annotations": {ACCOUNT: unsigned.account},
        },
        "spec": {
            "request": BASE64.encode(unsigned.request),
            "signerName": SIGNER,
            "expirationSeconds": i32::try_from(unsigned.lifetime.as_secs()).unwrap_or(i32::MAX),
            "usages": USAGES,
        },
    });
    if let Some(namespace) = unsigned.namespace {
        object["metadata"]["annotations"][NAMESPACE_HINT] = json!(namespace);
    }
    match server.ask(PATH, Ask::Create(&object)).await {
        Ok(made) => Ok(uid(&made.object)),
        Err(error) if error.code() == Some(409) => {
            remove_unseen(server, name).await?;
            Ok(uid(&server.ask(PATH, Ask::Create(&object)).await?.object))
        }
        Err(error) => Err(error.into()),
    }
}

/// Removes a request of Bursar that the watch has not shown yet.
async fn remove_unseen(server: &ApiServer, name: &str) -> Result<(), SigningError> {
    match server.ask(&format!("{PATH}/{name}"), Ask::Get).await {
        Ok(found) if found.object["metadata"]["labels"][MANAGED_BY] == MANAGER => {
            remove(server, name, &uid(&found.object)).await
        }
        Ok(_) => Err(SigningError::Foreign(name.to_owned())),
        Err(error) if error.code() == Some(404) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

async fn approved(server: &ApiServer, name: &str, uid: &str) -> Result<Vec<u8>, SigningError> {
    // With the uid, the patch conflicts if somebody replaced the request.
    let approval = json!({"metadata": {"uid": uid}, "status": {"conditions": [{
        "type": "Approved", "status": "True", "reason": "BursarApproved", "message": "requested by Bursar itself",
    }]}});
    let outcome = server.certificates().outcome(uid);
    let by_us = server.approves();
    if by_us {
        match server.ask(&format!("{PATH}/{name}/approval"), Ask::Merge(&approval)).await {
            // An approver was installed a moment ago, so the request waits for it.
            Err(error) if is_not_ours_to_do(&error) => server.let_approve(false),
            approved => drop(approved?),
        }
    }
    match tokio::time::timeout(DEADLINE, outcome).await {
        Ok(Ok(Outcome::Issued(certificate))) => Ok(certificate),
        Ok(Ok(Outcome::Denied(why))) => Err(SigningError::Denied(why)),
        Ok(Ok(Outcome::Failed(why))) => Err(SigningError::Failed(why)),
        Ok(Ok(Outcome::Gone)) => Err(SigningError::Gone),
        Ok(Err(_)) => Err(SigningError::NotSigned),
        // If the watch is broken, it does not show whether the certificate was signed.
        Err(_) => match server.certificates().trouble() {
            Some(why) => Err(SigningError::NotWatched { cluster: server.cluster.clone(), why }),
            None if server.approves() || server.certificates().is_approved(uid) => Err(SigningError::NotSigned),
            None => Err(SigningError::NotApproved),
        },
    }
}

/// Whether RBAC refused the approval, because only an approver may approve.
fn is_not_ours_to_do(error: &RequestError) -> bool {
    let RequestError::Refused(status) = error else { return false };
    let by_rbac = ["cannot patch resource", "not permitted to approve"];
    status.code == 403 && by_rbac.iter().any(|text| status.message.contains(text))
}

async fn remove(server: &ApiServer, name: &str, uid: &str) -> Result<(), SigningError> {
    match server.ask(&format!("{PATH}/{name}"), Ask::Delete { uid }).await {
        // The request is gone, or another one has its name.
        Err(error) if !matches!(error.code(), Some(404 | 409)) => Err(error.into()),
        _ => {
            server.certificates().removed(uid);
            Ok(())
        }
    }
}

fn uid(object: &Value) -> String {
    object["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signer_that_does_not_answer_several_accounts_is_paused_until_it_answers() {
        let signer = SignerBreaker::default();
        let late = Err::<(), _>(SigningError::NotSigned);
        signer.heard("a", &late, now());
        signer.heard("a", &late, now());
        signer.heard("b", &late, now());
        assert!(signer.breaker.lock().admit(now()).is_ok(), "two accounts may be at fault themselves");
        signer.heard("c", &late, now());
        let wait = signer.breaker.lock().admit(now()).expect_err("the signer is paused");
        assert!(wait <= BACKOFF);
        assert!(signer.breaker.lock().admit(now() + wait).is_ok(), "after the pause one request tests the signer");
        assert!(signer.breaker.lock().admit(now() + wait).is_err(), "only one request tests it");
        signer.heard("d", &Err::<(), _>(SigningError::Denied("no".to_owned())), now());
        assert!(signer.breaker.lock().admit(now()).is_ok(), "a refusal is an answer");
    }

    #[test]
    fn holders_whose_requests_nobody_approves_are_counted_until_one_is_approved() {
        let (signer, begin) = (SignerBreaker::default(), now());
        let not_approved = Err::<(), _>(SigningError::NotApproved);
        signer.heard("a", &not_approved, begin);
        signer.heard("a", &not_approved, begin);
        signer.heard("b", &not_approved, begin);
        signer.heard("c", &Err::<(), _>(SigningError::NotSigned), begin);
        assert_eq!(signer.unapproved(begin), 2);
        signer.heard("a", &Err::<(), _>(SigningError::Gone), begin);
        assert_eq!(signer.unapproved(begin), 2, "a deleted request says nothing about the approver");
        signer.heard("a", &Ok(()), begin);
        assert_eq!(signer.unapproved(begin), 1);
        assert_eq!(signer.unapproved(begin + COUNTS_FOR), 0, "nobody asks for it any more");
    }
}
