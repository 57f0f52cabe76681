//! One endpoint of a cluster, asked as its users' `kubectl` will: by its URL, its CA bundle, its `tls-server-name` and its
//! proxy. Nothing is written there.

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

/// One review takes milliseconds.
const DEADLINE: Duration = Duration::from_secs(5);
/// The API server's word for whom it does not know.
const ANONYMOUS: &str = "system:anonymous";

/// What an endpoint makes of a credential.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It knows its holder.
    Accepted,
    /// Nobody answered, with why: it may be meant for other networks.
    NotReached(String),
    /// Somebody answered, and one side does not trust the other.
    Refused(String),
}

/// Asks who the holder of a credential is; `user`: whom it should be taken for, where that is known.
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
            Verdict::Refused(format!("it takes its holder for {found:?}"))
        }
        Ok(Err(kube::Error::Api(status))) if status.code == 401 => {
            Verdict::Refused("the API server does not trust the authority that signed it (401)".to_owned())
        }
        // It knows its holder, and does not offer the review, or not to everybody.
        Ok(Err(kube::Error::Api(status))) if matches!(status.code, 403 | 404) => Verdict::Accepted,
        Ok(Err(error)) if is_about_trust(&error) => Verdict::Refused(chain(&error)),
        Ok(Err(error)) => Verdict::NotReached(chain(&error)),
        Err(_) => Verdict::NotReached(format!("no answer within {} s", DEADLINE.as_secs())),
    }
}

/// Asks for the version, which needs no account. Any answer will do; `None`: it does not say what time it is there.
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

/// RFC 9110, 5.6.7.
fn parsed(date: &str) -> Option<Timestamp> {
    rfc2822::DateTimeParser::new().parse_timestamp(date).ok()
}

fn client(endpoint: &Endpoint, auth: AuthInfo) -> Result<Client, String> {
    let Endpoint { url, ca_pem, tls_server_name, proxy } = endpoint;
    let authority = x509_parser::pem::Pem::iter_from_buffer(ca_pem.as_bytes())
        .map(|block| block.map(|block| block.contents))
        .collect::<Result<Vec<_>, _>>();
    let mut config = Config::new(url.parse().map_err(|_| "its URL is none".to_owned())?);
    config.root_cert = Some(authority.map_err(|_| "its CA bundle is no PEM".to_owned())?);
    config.tls_server_name.clone_from(tls_server_name);
    config.proxy_url =
        proxy.as_deref().map(str::parse).transpose().map_err(|_| "its proxy's URL is none".to_owned())?;
    config.default_retry = false;
    config.connect_timeout = Some(DEADLINE);
    config.auth_info = auth;
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

    #[test]
    fn the_date_header_of_an_answer_is_parsed() {
        let there = parsed("Sat, 21 Nov 2026 06:01:00 GMT").expect("a time");
        assert_eq!(there.to_string(), "2026-11-21T06:01:00Z");
        assert_eq!(parsed("yesterday"), None);
    }
}
