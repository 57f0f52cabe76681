//! A new credential, tried at the cluster's endpoints before it replaces the one that works (§5).
//!
//! Whether an endpoint takes our certificates is a matter of the endpoint (its URL, its CA bundle, the client authority
//! of the API server behind it) and not of the account, whose certificate was checked. So an endpoint is tried with one
//! account's credential in five minutes, not with each of thousands. One that is not reached from this host is not
//! held against the credential: it may be meant for other networks.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::PostParams;
use kube::{Api, Client, Config};
use secrecy::SecretString;
use sha2::{Digest as _, Sha256};
use thiserror::Error;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::desired::Proof;
use crate::directory::chain;
use crate::homes::UserProof;
use crate::policy::Endpoint;

/// How long an answer is believed: long enough that renewing 10,000 asks a handful of times, short enough that a change
/// of the endpoint is noticed within one round of failures.
const BELIEVED: Duration = Duration::from_mins(5);
/// How long a refusal is believed, so that whoever cured it need not wait.
const REFUSAL_BELIEVED: Duration = Duration::from_secs(30);
/// One review takes milliseconds.
const DEADLINE: Duration = Duration::from_secs(5);

/// Why the credential is not delivered. The text carries the cure.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "endpoint {endpoint} ({url}) does not take the credential: {why}; the old kubeconfig is kept; check the endpoint's url and ca in bursar.toml"
)]
pub struct TrialError {
    /// Its name.
    pub endpoint: String,
    /// Where it is.
    pub url: String,
    /// What it said.
    pub why: String,
}

/// What the endpoints of one cluster said lately.
#[derive(Debug, Default)]
pub struct Trials(Mutex<BTreeMap<[u8; 32], (Instant, Verdict)>>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    Accepted,
    NotReached,
    Refused(String),
}

/// A credential and the name that the API server should know its holder by.
#[derive(Debug, Clone, Copy)]
pub struct Credential<'a> {
    /// CN, or the service account.
    pub user: &'a str,
    /// With its secret.
    pub proof: &'a UserProof,
}

impl Trials {
    /// Whether one of the endpoints refused a credential a moment ago: then there is no sense in asking for another.
    pub async fn recall(&self, kind: &Proof, endpoints: &BTreeMap<String, Endpoint>) -> Result<(), TrialError> {
        let verdicts = self.0.lock().await;
        for (name, endpoint) in endpoints {
            if let Some(Verdict::Refused(why)) = fresh(&verdicts, kind, endpoint) {
                return Err(refused(name, endpoint, why));
            }
        }
        Ok(())
    }

    /// Tries the credential at those endpoints whose answer is not known; all others wait for it meanwhile.
    #[expect(clippy::disallowed_methods, reason = "says when a verdict was given")]
    pub async fn attempt(
        &self,
        kind: &Proof,
        endpoints: &BTreeMap<String, Endpoint>,
        credential: Credential<'_>,
    ) -> Result<(), TrialError> {
        let mut verdicts = self.0.lock().await;
        let unknown = endpoints.values().filter(|endpoint| fresh(&verdicts, kind, endpoint).is_none());
        let asked = unknown.map(async |endpoint| (key(kind, endpoint), verdict(endpoint, credential).await));
        let said = futures::future::join_all(asked).await;
        let now = Instant::now();
        verdicts.extend(said.into_iter().map(|(key, verdict)| (key, (now, verdict))));
        for (name, endpoint) in endpoints {
            if let Some(Verdict::Refused(why)) = fresh(&verdicts, kind, endpoint) {
                return Err(refused(name, endpoint, why));
            }
        }
        Ok(())
    }
}

fn refused(name: &str, endpoint: &Endpoint, why: &str) -> TrialError {
    TrialError { endpoint: name.to_owned(), url: endpoint.url.clone(), why: why.to_owned() }
}

fn fresh<'v>(
    verdicts: &'v BTreeMap<[u8; 32], (Instant, Verdict)>,
    kind: &Proof,
    endpoint: &Endpoint,
) -> Option<&'v Verdict> {
    let (at, verdict) = verdicts.get(&key(kind, endpoint))?;
    let believed = if matches!(verdict, Verdict::Refused(_)) { REFUSAL_BELIEVED } else { BELIEVED };
    (at.elapsed() < believed).then_some(verdict)
}

/// Destructured, so that a new field of an endpoint cannot be forgotten. What takes tokens need not take certificates.
fn key(kind: &Proof, endpoint: &Endpoint) -> [u8; 32] {
    let Endpoint { url, ca_pem, tls_server_name, proxy } = endpoint;
    let text = serde_json::json!([kind.noun(), url, ca_pem, tls_server_name, proxy]).to_string();
    Sha256::digest(text).into()
}

async fn verdict(endpoint: &Endpoint, credential: Credential<'_>) -> Verdict {
    // This build speaks to API servers without proxies only; such an endpoint is for others.
    if endpoint.proxy.is_some() {
        return Verdict::NotReached;
    }
    let client = match client(endpoint, credential) {
        Ok(client) => client,
        Err(why) => return Verdict::Refused(why),
    };
    let api = Api::<SelfSubjectReview>::all(client);
    let (parameters, review) = (PostParams::default(), SelfSubjectReview::default());
    let asked = tokio::time::timeout(DEADLINE, api.create(&parameters, &review)).await;
    match asked {
        Ok(Ok(review)) => {
            let user = review.status.and_then(|status| status.user_info?.username).unwrap_or_default();
            if user == credential.user {
                return Verdict::Accepted;
            }
            Verdict::Refused(format!("it takes its holder for {user:?}"))
        }
        Ok(Err(kube::Error::Api(status))) if status.code == 401 => {
            Verdict::Refused("the API server does not trust who signed it (401)".to_owned())
        }
        // It knows its holder, and does not offer the review, or not to everybody.
        Ok(Err(kube::Error::Api(status))) if matches!(status.code, 403 | 404) => Verdict::Accepted,
        Ok(Err(error)) if is_about_trust(&error) => Verdict::Refused(chain(&error)),
        Err(_) | Ok(Err(_)) => Verdict::NotReached,
    }
}

fn client(endpoint: &Endpoint, credential: Credential<'_>) -> Result<Client, String> {
    let url = endpoint.url.parse().map_err(|_| "its URL is none".to_owned())?;
    let authority = x509_parser::pem::Pem::iter_from_buffer(endpoint.ca_pem.as_bytes())
        .map(|block| block.map(|block| block.contents))
        .collect::<Result<Vec<_>, _>>();
    let mut config = Config::new(url);
    config.root_cert = Some(authority.map_err(|_| "its CA bundle is no PEM".to_owned())?);
    config.tls_server_name.clone_from(&endpoint.tls_server_name);
    config.default_retry = false;
    config.connect_timeout = Some(DEADLINE);
    match credential.proof {
        UserProof::Certificate { certificate_pem, key_pem } => {
            config.auth_info.client_certificate_data = Some(BASE64.encode(certificate_pem));
            config.auth_info.client_key_data = Some(SecretString::from(BASE64.encode(key_pem.expose())));
        }
        UserProof::Token(files) => config.auth_info.token = Some(SecretString::from(files.token.expose())),
        UserProof::Login(_) => {}
    }
    Client::try_from(config).map_err(|error| chain(&error))
}

/// Whether TLS failed: somebody is there, and one side does not trust the other.
fn is_about_trust(error: &(dyn std::error::Error + 'static)) -> bool {
    if error.is::<rustls::Error>() {
        return true;
    }
    // An I/O error does not name what it wraps as its source, but that one's source.
    let wrapped = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    wrapped.is_some_and(|wrapped| is_about_trust(wrapped)) || error.source().is_some_and(is_about_trust)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trust_is_found_beneath_what_wraps_it() {
        let refusal = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        let wrapped = std::io::Error::other(std::io::Error::other(refusal));
        assert!(is_about_trust(&wrapped));
        assert!(!is_about_trust(&std::io::Error::other("connection refused")));
    }
}
