//! Tests a new credential at the cluster's endpoints before it replaces the working one, and remembers the results.
//!
//! Whether an endpoint accepts our certificates depends on the endpoint (its URL, its CA bundle, the client authority
//! of the API server behind it) and not on the account, whose certificate was verified. So each endpoint is tested with
//! one account's credential every five minutes, not with each of thousands.
//!
//! **An endpoint that fails is a finding, not a lost credential.** While the file in the home is good, only a
//! credential that every endpoint accepts replaces it. If the file is missing, revoked, broken or due for renewal, only
//! the default endpoint decides: a failure of another endpoint must not keep people from the default one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bursar_protocol::UserProof;
use kube::config::AuthInfo;
use parking_lot::Mutex;
use secrecy::SecretString;
use sha2::{Digest as _, Sha256};
use thiserror::Error;
use tokio::time::Instant;

use super::endpoint::{Verdict, verdict};
use crate::policy::Endpoint;

/// How long a result is valid: long enough that 10,000 renewals test an endpoint only a few times, and short enough
/// that a change of the endpoint is noticed soon.
const BELIEVED: Duration = Duration::from_mins(5);
/// How long a refusal is valid. It is short, so that a remedy takes effect soon.
const REFUSAL_BELIEVED: Duration = Duration::from_secs(30);
/// How often an endpoint is checked with the daemon's own credential if no renewal tests it. In a small site, hours can
/// pass between two renewals.
const LOOK_EVERY: Duration = Duration::from_mins(15);

/// Why the credential is not delivered. The text contains the remedy.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "endpoint {endpoint} ({url}) does not accept the credential: {why}; the old kubeconfig is kept; \
     check the endpoint's url, ca, tls_server_name and proxy in bursar.toml"
)]
pub struct EndpointProbeError {
    pub endpoint: String,
    pub url: String,
    /// The reason that the endpoint gave.
    pub why: String,
}

/// The endpoints of one cluster, and the default one, which `kubectl` uses without further options.
#[derive(Debug, Clone, Copy)]
pub struct Endpoints<'a> {
    /// By name.
    pub all: &'a BTreeMap<String, Endpoint>,
    /// The name of the default endpoint.
    pub default: &'a str,
    /// The kind of credential. An endpoint that accepts tokens may refuse certificates.
    pub kind: &'static str,
}

/// The state of the file in the home before the delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Old {
    /// The file works and is not due for renewal, so there is no hurry to replace it.
    Good,
    /// The file is missing or no longer good.
    Spent,
}

/// The recent results of the endpoints of one cluster.
#[derive(Debug, Default)]
pub struct EndpointProbes {
    said: Mutex<BTreeMap<Key, Said>>,
    /// Held during a test. Other callers wait for its result.
    turn: tokio::sync::Mutex<()>,
}

/// The kind of credential, and the digest of the endpoint.
type Key = (&'static str, [u8; 32]);

/// The kind of the daemon's own credential.
const CERTIFICATE: &str = "certificate";

#[derive(Debug, Clone)]
struct Said {
    at: Instant,
    verdict: Verdict,
    /// Whether the verdict is about a credential for a home. If not, it is about the daemon's own credential.
    tried: bool,
}

/// A credential, and the name that the API server should give its holder.
#[derive(Debug, Clone, Copy)]
pub struct Credential<'a> {
    /// The common name, or the service account.
    pub user: &'a str,
    /// The credential with its secret.
    pub proof: &'a UserProof,
}

impl Credential<'_> {
    fn auth(self) -> AuthInfo {
        let mut auth = AuthInfo::default();
        match self.proof {
            UserProof::Certificate { certificate_pem, key_pem } => {
                auth.client_certificate_data = Some(BASE64.encode(certificate_pem));
                auth.client_key_data = Some(SecretString::from(BASE64.encode(key_pem.expose())));
            }
            UserProof::Token(files) => auth.token = Some(SecretString::from(files.token.expose())),
            UserProof::Login(_) | UserProof::Notice(_) => {}
        }
        auth
    }
}

impl EndpointProbes {
    /// Fails if a credential was refused a moment ago, because another credential would be refused too.
    pub fn recall(&self, endpoints: Endpoints<'_>, old: Old) -> Result<(), EndpointProbeError> {
        let said = self.said.lock();
        objection(endpoints, old, |endpoint| tried(&said, endpoints.kind, endpoint))
    }

    /// Tests the credential at the endpoints that have no valid result. Concurrent callers wait for the results.
    pub async fn attempt(
        &self,
        endpoints: Endpoints<'_>,
        credential: Credential<'_>,
        old: Old,
    ) -> Result<(), EndpointProbeError> {
        let _turn = self.turn.lock().await;
        let unknown: Vec<&Endpoint> = {
            let said = self.said.lock();
            endpoints.all.values().filter(|endpoint| tried(&said, endpoints.kind, endpoint).is_none()).collect()
        };
        let asked = unknown.into_iter().map(async |endpoint| {
            (key(endpoints.kind, endpoint), verdict(endpoint, credential.auth(), Some(credential.user)).await)
        });
        let answers = futures::future::join_all(asked).await;
        self.record(answers, true);
        let said = self.said.lock();
        objection(endpoints, old, |endpoint| tried(&said, endpoints.kind, endpoint))
    }

    /// Checks endpoints with the daemon's own credential if their last result is old or not good. Returns at once. Must
    /// be called within a Tokio runtime.
    pub fn look_after(self: &Arc<Self>, endpoints: &BTreeMap<String, Endpoint>, own: &AuthInfo) {
        let due: Vec<Endpoint> = {
            let said = self.said.lock();
            endpoints.values().filter(|endpoint| is_due(said.get(&key(CERTIFICATE, endpoint)))).cloned().collect()
        };
        if due.is_empty() {
            return;
        }
        let (endpoint_probes, own) = (Arc::clone(self), own.clone());
        tokio::spawn(async move {
            let asked = due
                .iter()
                .map(async |endpoint| (key(CERTIFICATE, endpoint), verdict(endpoint, own.clone(), None).await));
            let answers = futures::future::join_all(asked).await;
            endpoint_probes.record(answers, false);
        });
    }

    /// Returns the endpoints that refused a credential or were unreachable at the last check, with the reason and the
    /// remedy.
    #[must_use]
    pub fn findings(&self, endpoints: &BTreeMap<String, Endpoint>) -> BTreeMap<String, String> {
        let said = self.said.lock();
        let found = endpoints.iter().filter_map(|(name, endpoint)| {
            let (_, digest) = key(CERTIFICATE, endpoint);
            let mut about = said.iter().filter(|((_, of), _)| *of == digest).map(|(_, said)| &said.verdict);
            let finding = match about.find(|verdict| **verdict != Verdict::Accepted)? {
                Verdict::Accepted => return None,
                Verdict::NotReached(why) => format!(
                    "{} cannot be reached from this host: {why}; credentials are delivered anyway, because it may be \
                     meant for other networks",
                    endpoint.url
                ),
                Verdict::Refused(why) => format!(
                    "{} does not accept Bursar's credentials: {why}; check its url, ca, tls_server_name and proxy in bursar.toml",
                    endpoint.url
                ),
            };
            Some((name.clone(), finding))
        });
        found.collect()
    }

    #[expect(clippy::disallowed_methods, reason = "records when a verdict was given")]
    fn record(&self, answers: Vec<(Key, Verdict)>, tried: bool) {
        let at = Instant::now();
        let said = answers.into_iter().map(|(key, verdict)| (key, Said { at, verdict, tried }));
        self.said.lock().extend(said);
    }
}

/// Returns an error if the known results forbid the delivery. An endpoint without a result forbids nothing.
fn objection<'v>(
    endpoints: Endpoints<'_>,
    old: Old,
    said: impl Fn(&Endpoint) -> Option<&'v Verdict>,
) -> Result<(), EndpointProbeError> {
    let error = |name: &String, endpoint: &Endpoint, why: &str| {
        Err(EndpointProbeError { endpoint: name.clone(), url: endpoint.url.clone(), why: why.to_owned() })
    };
    let mut away = None;
    for (name, endpoint) in endpoints.all {
        match said(endpoint) {
            Some(Verdict::Refused(why)) if old == Old::Good || name == endpoints.default => {
                return error(name, endpoint, why);
            }
            Some(Verdict::NotReached(why)) if old == Old::Good => away = away.or(Some((name, endpoint, why))),
            _ => {}
        }
    }
    let all_away = endpoints.all.values().all(|endpoint| matches!(said(endpoint), Some(Verdict::NotReached(_))));
    match away {
        // If no endpoint can be reached, the cause may be a typing error in a URL.
        Some((name, endpoint, why)) if all_away => error(name, endpoint, why),
        _ => Ok(()),
    }
}

/// Returns the result of an endpoint for a credential of a home, if it is still valid.
fn tried<'v>(said: &'v BTreeMap<Key, Said>, kind: &'static str, endpoint: &Endpoint) -> Option<&'v Verdict> {
    let said = said.get(&key(kind, endpoint)).filter(|said| said.tried)?;
    (said.at.elapsed() < believed(&said.verdict)).then_some(&said.verdict)
}

const fn believed(verdict: &Verdict) -> Duration {
    if matches!(verdict, Verdict::Refused(_)) { REFUSAL_BELIEVED } else { BELIEVED }
}

fn is_due(said: Option<&Said>) -> bool {
    said.is_none_or(|said| {
        let every = if said.verdict == Verdict::Accepted { LOOK_EVERY } else { REFUSAL_BELIEVED };
        said.at.elapsed() >= every
    })
}

/// Destructures the endpoint, so that a new field cannot be forgotten.
fn key(kind: &'static str, endpoint: &Endpoint) -> Key {
    let Endpoint { url, ca_pem, tls_server_name, proxy } = endpoint;
    let text = serde_json::json!([url, ca_pem, tls_server_name, proxy]).to_string();
    (kind, Sha256::digest(text).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the endpoint that forbids the delivery. `inside` is the default endpoint and `outside` the other one.
    fn decided(inside: Option<&Verdict>, outside: Option<&Verdict>, old: Old) -> Option<String> {
        let endpoint =
            |url: &str| Endpoint { url: url.to_owned(), ca_pem: String::new(), tls_server_name: None, proxy: None };
        let all = ["inside", "outside"].map(|name| (name.to_owned(), endpoint(name))).into();
        let said = |endpoint: &Endpoint| if endpoint.url == "inside" { inside } else { outside };
        objection(Endpoints { all: &all, default: "inside", kind: CERTIFICATE }, old, said)
            .err()
            .map(|error| error.endpoint)
    }

    #[test]
    fn a_good_file_is_replaced_only_by_a_credential_that_every_reachable_endpoint_accepts() {
        let (yes, no) = (&Verdict::Accepted, &Verdict::Refused("who?".to_owned()));
        let away = &Verdict::NotReached("nobody".to_owned());
        let decided = |inside, outside| decided(Some(inside), Some(outside), Old::Good);
        assert_eq!(decided(yes, yes), None);
        assert_eq!(decided(yes, away), None, "it may be meant for other networks");
        assert_eq!(decided(yes, no).as_deref(), Some("outside"));
        assert_eq!(decided(no, yes).as_deref(), Some("inside"));
        assert_eq!(decided(away, away).as_deref(), Some("inside"), "no endpoint can be reached");
    }

    #[test]
    fn without_a_good_file_the_default_endpoint_decides() {
        let (yes, no) = (&Verdict::Accepted, &Verdict::Refused("who?".to_owned()));
        let away = &Verdict::NotReached("nobody".to_owned());
        let decided = |inside, outside| decided(Some(inside), Some(outside), Old::Spent);
        assert_eq!(decided(yes, no), None);
        assert_eq!(decided(away, no), None);
        assert_eq!(decided(away, away), None);
        assert_eq!(decided(no, yes).as_deref(), Some("inside"));
    }

    #[test]
    fn an_endpoint_without_a_result_forbids_nothing() {
        assert_eq!(decided(None, None, Old::Good), None);
        assert_eq!(decided(None, Some(&Verdict::NotReached("nobody".to_owned())), Old::Good), None);
    }
}
