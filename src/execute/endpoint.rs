//! Tests one endpoint of a cluster in the same way as its users' `kubectl` reaches it: by its URL, its CA bundle, its
//! `tls-server-name` and its proxy. Writes nothing.

use std::time::Duration;

use http::{Request, header};
use jiff::Timestamp;
use jiff::fmt::rfc2822;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::PostParams;
use kube::client::Body;
use kube::config::AuthInfo;
use kube::{Api, Client, Config};

use crate::errors::chain;
use crate::policy::Endpoint;

/// How long a test may take; a review normally takes milliseconds.
const DEADLINE: Duration = Duration::from_secs(5);
/// The name that the API server gives to an unknown client.
const ANONYMOUS: &str = "system:anonymous";

/// The result of testing a credential at an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The endpoint knows the holder.
    Accepted,
    /// Nobody answered, for this reason. The endpoint may be meant for other networks.
    NotReached(String),
    /// The endpoint answered, and one side does not trust the other.
    Refused(String),
}

/// Asks the endpoint who the holder of a credential is. `user` is the expected name, if it is known.
pub async fn verdict(endpoint: &Endpoint, auth: AuthInfo, user: Option<&str>) -> Verdict {
    let client = match client(endpoint, auth) {
        Ok(client) => client,
        Err(why) => return Verdict::Refused(why),
    };
    let api = Api::<SelfSubjectReview>::all(client);
    let (parameters, review) = (PostParams::default(), SelfSubjectReview::default());
    match tokio::time::timeout(DEADLINE, api.create(&parameters, &review)).await {
        Ok(Ok(review)) => {
            let found = review.status.and_then(|status| status.user_info?.username).unwrap_or_default();
            if user.map_or(found != ANONYMOUS, |user| found == user) {
                return Verdict::Accepted;
            }
            Verdict::Refused(format!("it identifies the holder as {found:?}"))
        }
        Ok(Err(kube::Error::Api(status))) if status.code == 401 => {
            Verdict::Refused("the API server does not trust the authority that signed the credential (401)".to_owned())
        }
        // The endpoint knows the holder, but does not offer the review, or not to this user.
        Ok(Err(kube::Error::Api(status))) if matches!(status.code, 403 | 404) => Verdict::Accepted,
        Ok(Err(error)) if is_about_trust(&error) => Verdict::Refused(chain(&error)),
        Ok(Err(error)) => Verdict::NotReached(chain(&error)),
        Err(_) => Verdict::NotReached(format!("no answer within {} s", DEADLINE.as_secs())),
    }
}

/// Asks for the version, which needs no account, and returns the endpoint's time. `None` if the answer contains no
/// time.
pub async fn time(endpoint: &Endpoint) -> Result<Option<Timestamp>, String> {
    let client = client(endpoint, AuthInfo::default())?;
    let request = Request::get("/version").body(Body::empty()).map_err(|error| chain(&error))?;
    match tokio::time::timeout(DEADLINE, client.send(request)).await {
        Ok(Ok(response)) => {
            Ok(response.headers().get(header::DATE).and_then(|date| date.to_str().ok()).and_then(parsed))
        }
        Ok(Err(error)) => Err(chain(&error)),
        Err(_) => Err(format!("no answer within {} s", DEADLINE.as_secs())),
    }
}

/// Parses a date of RFC 9110, 5.6.7.
fn parsed(date: &str) -> Option<Timestamp> {
    rfc2822::DateTimeParser::new().parse_timestamp(date).ok()
}

fn client(endpoint: &Endpoint, auth: AuthInfo) -> Result<Client, String> {
    let Endpoint { url, ca_pem, tls_server_name, proxy } = endpoint;
    let authority = x509_parser::pem::Pem::iter_from_buffer(ca_pem.as_bytes())
        .map(|block| block.map(|block| block.contents))
        .collect::<Result<Vec<_>, _>>();
    let mut config = Config::new(url.parse().map_err(|_| "its URL is not valid".to_owned())?);
    config.root_cert = Some(authority.map_err(|_| "its CA bundle is not valid PEM".to_owned())?);
    config.tls_server_name.clone_from(tls_server_name);
    config.proxy_url =
        proxy.as_deref().map(str::parse).transpose().map_err(|_| "the URL of its proxy is not valid".to_owned())?;
    config.default_retry = false;
    config.connect_timeout = Some(DEADLINE);
    config.auth_info = auth;
    Client::try_from(config).map_err(|error| chain(&error))
}

/// Whether TLS failed: the endpoint answered, and one side does not trust the other.
fn is_about_trust(error: &(dyn std::error::Error + 'static)) -> bool {
    if error.is::<rustls::Error>() {
        return true;
    }
    // `source` of an I/O error skips the wrapped error and returns the source of that error.
    let wrapped = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    wrapped.is_some_and(|wrapped| is_about_trust(wrapped)) || error.source().is_some_and(is_about_trust)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tls_error_is_found_inside_other_errors() {
        let refusal = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        let wrapped = std::io::Error::other(std::io::Error::other(refusal));
        assert!(is_about_trust(&wrapped));
        assert!(!is_about_trust(&std::io::Error::other("connection refused")));
    }

    #[test]
    fn the_date_header_of_an_answer_is_parsed() {
        let there = parsed("Sat, 21 Nov 2026 06:01:00 GMT").expect("the header is a date");
        assert_eq!(there.to_string(), "2026-11-21T06:01:00Z");
        assert_eq!(parsed("yesterday"), None);
    }
}
