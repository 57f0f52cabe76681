//! A new credential, tried at the cluster's endpoints before it replaces the one that works, and what is known of
//! the endpoints.
//!
//! Whether an endpoint takes our certificates is a matter of the endpoint (its URL, its CA bundle, the client
//! authority of the API server behind it) and not of the account, whose certificate was checked. So an endpoint is
//! tried with one account's credential in five minutes, not with each of thousands.
//!
//! **An endpoint that fails is a finding, not a lost credential.** While the file in the home is good, only a new one that
//! every endpoint takes replaces it. When it is not good any more (revoked, broken, due for renewal, or there is none), the
//! default endpoint decides: one of several that fails must not cost people the others.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bursar_protocol::UserProof;
use kube::config::AuthInfo;
use secrecy::SecretString;
use sha2::{Digest as _, Sha256};
use thiserror::Error;
use tokio::time::Instant;

use super::endpoint::{Verdict, verdict};
use crate::policy::Endpoint;

/// How long an answer is believed: long enough that renewing 10,000 asks a handful of times, short enough that a
/// change of the endpoint is noticed within one round of failures.
const BELIEVED: Duration = Duration::from_mins(5);
/// How long a refusal is believed, so that a remedy takes effect soon.
const REFUSAL_BELIEVED: Duration = Duration::from_secs(30);
/// Between two looks at an endpoint at which nothing was tried meanwhile: nobody renews for hours in a small site.
const LOOK_EVERY: Duration = Duration::from_mins(15);

/// Why the credential is not delivered. The text carries the remedy.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "endpoint {endpoint} ({url}) does not take the credential: {why}; the old kubeconfig is kept; \
     check the endpoint's url, ca, tls_server_name and proxy in bursar.toml"
)]
pub struct EndpointProbeError {
    /// Its name.
    pub endpoint: String,
    /// Where it is.
    pub url: String,
    /// What it said.
    pub why: String,
}

/// The endpoints of one cluster, and the one of them that `kubectl` takes by itself.
#[derive(Debug, Clone, Copy)]
pub struct Endpoints<'a> {
    /// By name.
    pub all: &'a BTreeMap<String, Endpoint>,
    /// Its name.
    pub default: &'a str,
    /// What is tried there: what takes tokens need not take certificates.
    pub kind: &'static str,
}

/// What stands in the home meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Old {
    /// A file that works and has time left: there is no hurry to replace it.
    Good,
    /// None, or one that is not good any more.
    Spent,
}

/// What the endpoints of one cluster said lately.
#[derive(Debug, Default)]
pub struct EndpointProbes {
    said: Mutex<BTreeMap<Key, Said>>,
    /// Held while something is tried; all others wait for it.
    turn: tokio::sync::Mutex<()>,
}

/// What was tried, and the digest of the endpoint.
type Key = (&'static str, [u8; 32]);

/// What the daemon's own credential is.
const CERTIFICATE: &str = "certificate";

#[derive(Debug, Clone)]
struct Said {
    at: Instant,
    verdict: Verdict,
    /// Whether the verdict is about a credential for a home; otherwise it is about the daemon's own.
    tried: bool,
}

/// A credential and the name that the API server should know its holder by.
#[derive(Debug, Clone, Copy)]
pub struct Credential<'a> {
    /// CN, or the service account.
    pub user: &'a str,
    /// With its secret.
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
    /// Whether a credential was refused a moment ago: then there is no sense in asking for another.
    pub fn recall(&self, endpoints: Endpoints<'_>, old: Old) -> Result<(), EndpointProbeError> {
        let said = self.lock();
        objection(endpoints, old, |endpoint| tried(&said, endpoints.kind, endpoint))
    }

    /// Tries the credential at those endpoints whose answer is not known; all others wait for it meanwhile.
    pub async fn attempt(
        &self,
        endpoints: Endpoints<'_>,
        credential: Credential<'_>,
        old: Old,
    ) -> Result<(), EndpointProbeError> {
        let _turn = self.turn.lock().await;
        let unknown: Vec<&Endpoint> = {
            let said = self.lock();
            endpoints.all.values().filter(|endpoint| tried(&said, endpoints.kind, endpoint).is_none()).collect()
        };
        let asked = unknown.into_iter().map(async |endpoint| {
            (key(endpoints.kind, endpoint), verdict(endpoint, credential.auth(), Some(credential.user)).await)
        });
        let answers = futures::future::join_all(asked).await;
        self.record(answers, true);
        let said = self.lock();
        objection(endpoints, old, |endpoint| tried(&said, endpoints.kind, endpoint))
    }

    /// Asks those endpoints again of which nothing was heard for a while, or nothing good, with the daemon's own
    /// credential. Returns at once. Must be called within a runtime.
    pub fn look_after(self: &Arc<Self>, endpoints: &BTreeMap<String, Endpoint>, own: &AuthInfo) {
        let due: Vec<Endpoint> = {
            let said = self.lock();
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

    /// Endpoints that did not take a credential when they were last asked, with why and the remedy.
    #[must_use]
    pub fn findings(&self, endpoints: &BTreeMap<String, Endpoint>) -> BTreeMap<String, String> {
        let said = self.lock();
        let found = endpoints.iter().filter_map(|(name, endpoint)| {
            let (_, digest) = key(CERTIFICATE, endpoint);
            let mut about = said.iter().filter(|((_, of), _)| *of == digest).map(|(_, said)| &said.verdict);
            let finding = match about.find(|verdict| **verdict != Verdict::Accepted)? {
                Verdict::Accepted => return None,
                Verdict::NotReached(why) => format!(
                    "{} is not reached from this host: {why}; it is delivered all the same, for it may be meant for other \
                     networks",
                    endpoint.url
                ),
                Verdict::Refused(why) => format!(
                    "{} does not take our credentials: {why}; check its url, ca, tls_server_name and proxy in bursar.toml",
                    endpoint.url
                ),
            };
            Some((name.clone(), finding))
        });
        found.collect()
    }

    #[expect(clippy::disallowed_methods, reason = "says when a verdict was given")]
    fn record(&self, answers: Vec<(Key, Verdict)>, tried: bool) {
        let at = Instant::now();
        let said = answers.into_iter().map(|(key, verdict)| (key, Said { at, verdict, tried }));
        self.lock().extend(said);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Said>> {
        // No code panics while it holds the lock.
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What keeps a credential from being delivered, of what is known so far; of what is not known, nothing.
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
        // A URL with a slip of the pen in it looks the same from here.
        Some((name, endpoint, why)) if all_away => error(name, endpoint, why),
        _ => Ok(()),
    }
}

/// What an endpoint said of a credential for a home, if it is still believed.
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

/// Destructured, so that a new field of an endpoint cannot be forgotten.
fn key(kind: &'static str, endpoint: &Endpoint) -> Key {
    let Endpoint { url, ca_pem, tls_server_name, proxy } = endpoint;
    let text = serde_json::json!([url, ca_pem, tls_server_name, proxy]).to_string();
    (kind, Sha256::digest(text).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes of it, where `inside` is the default endpoint and `outside` the other one.
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
    fn a_good_file_is_replaced_only_by_one_that_every_endpoint_takes() {
        let (yes, no) = (&Verdict::Accepted, &Verdict::Refused("who?".to_owned()));
        let away = &Verdict::NotReached("nobody".to_owned());
        let decided = |inside, outside| decided(Some(inside), Some(outside), Old::Good);
        assert_eq!(decided(yes, yes), None);
        assert_eq!(decided(yes, away), None, "it may be meant for other networks");
        assert_eq!(decided(yes, no).as_deref(), Some("outside"));
        assert_eq!(decided(no, yes).as_deref(), Some("inside"));
        assert_eq!(decided(away, away).as_deref(), Some("inside"), "nobody at all takes it");
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
    fn an_endpoint_that_was_not_reached_decides_nothing() {
        assert_eq!(decided(None, None, Old::Good), None);
        assert_eq!(decided(None, Some(&Verdict::NotReached("nobody".to_owned())), Old::Good), None);
    }
}
