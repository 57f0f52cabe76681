//! A session with a realm for one pass. It gets the token of the service account, sends one request after the other,
//! and reads lists in overlapping pages.

use std::collections::BTreeMap;
use std::time::Duration;

use foldhash::HashSet;
use reqwest::{Method, RequestBuilder, StatusCode, Url, redirect};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::Instant;

use super::answer::{ErrorBody, Listed, Token};
use super::config::KeycloakConfig;
use crate::source::Secret;
use crate::tls::{TlsError, client_config};

/// An error while talking to a realm.
#[derive(Debug, thiserror::Error)]
pub enum RealmError {
    /// The configuration is wrong. `SourceConfig::check` finds this first.
    #[error("url or client_secret is not usable")]
    Config,
    /// There is no usable issuer, or the certificate is unusable.
    #[error("cannot use TLS")]
    Tls(#[from] TlsError),
    #[error("cannot connect; see url and ca")]
    Connect(#[source] reqwest::Error),
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The connection ended, or the answer is not HTTP.
    #[error("connection lost")]
    Lost(#[source] reqwest::Error),
    /// The realm refused to issue a token.
    #[error(
        "login of client {client} refused ({status}: {why}); see client_id and client_secret, and that the client has a \
         service account"
    )]
    Login {
        /// The client's id.
        client: String,
        status: StatusCode,
        /// The server's own text.
        why: String,
    },
    /// The URL has no realm of this name.
    #[error("there is no realm {realm:?} ({why}); see realm and url")]
    NoRealm {
        realm: String,
        /// The server's own text.
        why: String,
    },
    /// The service account lacks a role for reading.
    #[error(
        "{what} refused ({status}: {why}); the service account of client {client} needs the role view-users of \
         realm-management"
    )]
    Forbidden {
        /// The path of the request.
        what: String,
        /// The id of the client.
        client: String,
        status: StatusCode,
        /// The server's own text.
        why: String,
    },
    /// The service account lacks a role for changes.
    #[error(
        "{what} refused ({status}: {why}); the service account of client {client} needs the role {role} of realm-management"
    )]
    Lacks {
        /// The path of the request.
        what: String,
        /// The id of the client.
        client: String,
        status: StatusCode,
        /// The server's own text.
        why: String,
        role: &'static str,
    },
    /// The list of users is empty, although Bursar has created some. A client that may search for users but not view
    /// them gets an empty list.
    #[error("the realm shows no users, although Bursar created some; check that its client has the role manage-users")]
    Nobody,
    /// The client that owns the roles does not exist.
    #[error("there is no client {0:?} in the realm; create it, or correct client in [realm]")]
    NoClient(String),
    /// Any other status than success.
    #[error("{what} answered {status}: {why}")]
    Answer {
        /// The path of the request.
        what: String,
        status: StatusCode,
        /// The server's own text.
        why: String,
    },
    /// The answer is not JSON, or does not have the expected structure.
    #[error("the answer to {what} could not be parsed")]
    Malformed {
        /// The path of the request.
        what: String,
        #[source]
        source: serde_json::Error,
    },
    /// The pages of a list do not fit together.
    #[error("{0} changed while they were read; the next cycle reads them again")]
    Changed(&'static str),
}

/// A session with one realm, used for one pass.
#[derive(Debug)]
pub(super) struct Session {
    config: KeycloakConfig,
    url: Url,
    http: reqwest::Client,
    token: Option<(Secret, Instant)>,
    /// The number of requests since they were last counted, by method.
    asked: BTreeMap<&'static str, u64>,
}

/// A response of the server.
struct RawResponse {
    status: StatusCode,
    /// The header `Location`: the URL of a new object.
    location: Option<String>,
    body: Vec<u8>,
}

impl Session {
    pub(super) fn new(config: &KeycloakConfig) -> Result<Self, RealmError> {
        config.check().map_err(|_| RealmError::Config)?;
        let url = config.server().ok_or(RealmError::Config)?;
        let trust = client_config(config.ca_pem.as_deref(), None)?;
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured((*trust).clone())
            .connect_timeout(config.connect_timeout)
            .timeout(config.timeout)
            // The token is meant only for this server, so requests follow no redirect and use no proxy.
            .redirect(redirect::Policy::none())
            .no_proxy();
        let http = http.build().map_err(RealmError::Connect)?;
        Ok(Self { config: config.clone(), url, http, token: None, asked: BTreeMap::new() })
    }

    /// Returns `host[:port]`.
    pub(super) fn server(&self) -> String {
        let host = self.url.host_str().unwrap_or_default();
        self.url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
    }

    /// Gets a token with the client's secret (RFC 6749, 4.4).
    async fn login(&mut self) -> Result<(), RealmError> {
        let url = self.at(&["realms", &self.config.realm, "protocol", "openid-connect", "token"]);
        let secret = self.config.client_secret.as_ref().map(Secret::reveal);
        // The secret is sent in a header, because servers do not log headers. It must be percent-encoded (RFC 6749,
        // 2.3.1).
        let encoded = |text: &str| form_urlencoded(text);
        let request = self
            .http
            .post(url)
            .basic_auth(encoded(&self.config.client_id), secret.map(encoded))
            .header("content-type", "application/x-www-form-urlencoded")
            .body("grant_type=client_credentials");
        let asked = now();
        let RawResponse { status, body, .. } = self.send(request).await?;
        let why = || ErrorBody::of(&body);
        match status {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND => {
                return Err(RealmError::NoRealm { realm: self.config.realm.clone(), why: why() });
            }
            StatusCode::BAD_REQUEST | StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                return Err(RealmError::Login { client: self.config.client_id.clone(), status, why: why() });
            }
            _ => return Err(RealmError::Answer { what: "login".to_owned(), status, why: why() }),
        }
        let token: Token = parse("login", &body)?;
        // The token is used for half of its lifetime, so that it cannot expire during a request.
        let until = asked + Duration::from_secs(token.expires_in) / 2;
        self.token = Some((Secret::new(token.access_token), until));
        Ok(())
    }

    /// Sends a GET request for `path` of the realm.
    pub(super) async fn get<T: DeserializeOwned>(
        &mut self,
        path: &[&str],
        query: &[(&str, &str)],
    ) -> Result<T, RealmError> {
        let answer = self.ask(Method::GET, path, query, None).await?;
        parse(&path.join("/"), &answer.body)
    }

    /// Sends a request that changes `path` of the realm. Returns the `Location` of a new object.
    pub(super) async fn tell(
        &mut self,
        method: Method,
        path: &[&str],
        body: Option<&Value>,
    ) -> Result<Option<String>, RealmError> {
        Ok(self.ask(method, path, &[], body).await?.location)
    }

    async fn ask(
        &mut self,
        method: Method,
        path: &[&str],
        query: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Result<RawResponse, RealmError> {
        let what = path.join("/");
        let url = self.at(&[&["admin", "realms", self.config.realm.as_str()], path].concat());
        let fresh = self.token.as_ref().is_some_and(|(_, until)| *until > now());
        if !fresh {
            self.login().await?;
        }
        let mut answer = self.authorised(&method, &url, query, body).await?;
        // The server may have rotated its keys, or an administrator may have ended the session; a new token then works.
        if answer.status == StatusCode::UNAUTHORIZED && fresh {
            self.login().await?;
            answer = self.authorised(&method, &url, query, body).await?;
        }
        match answer.status {
            status if status.is_success() => Ok(answer),
            status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
                let client = self.config.client_id.clone();
                Err(RealmError::Forbidden { what, client, status, why: ErrorBody::of(&answer.body) })
            }
            status => Err(RealmError::Answer { what, status, why: ErrorBody::of(&answer.body) }),
        }
    }

    async fn authorised(
        &mut self,
        method: &Method,
        url: &Url,
        query: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Result<RawResponse, RealmError> {
        *self.asked.entry(verb(method)).or_default() += 1;
        let token = self.token.as_ref().map_or("", |(token, _)| token.reveal());
        let request = self.http.request(method.clone(), url.clone()).query(query).bearer_auth(token);
        let json = |body: &Value| {
            let request = request.try_clone()?;
            Some(request.header("content-type", "application/json").body(body.to_string()))
        };
        let request = body.and_then(json).unwrap_or(request);
        self.send(request).await
    }

    /// Returns the roles of Bursar's service account in `realm-management`, from a new token; `None` if the token has
    /// no roles.
    pub(super) async fn roles(&mut self) -> Result<Option<Vec<String>>, RealmError> {
        self.login().await?;
        Ok(self.token.as_ref().and_then(|(token, _)| super::answer::roles(token.reveal())))
    }

    /// Returns the number of requests since the last call, by method, without logins.
    pub(super) fn counted(&mut self) -> BTreeMap<&'static str, u64> {
        std::mem::take(&mut self.asked)
    }

    /// Reads a whole list, page by page. Each page overlaps the previous one by its last entry. If entries were added
    /// before that entry meanwhile, the page begins with entries that were shown already. If the page begins with
    /// anything else, an entry was removed, and the entries between the pages were skipped.
    pub(super) async fn list<T: Listed + DeserializeOwned>(
        &mut self,
        path: &[&str],
        more: &[(&str, &str)],
        mut each: impl FnMut(T),
    ) -> Result<usize, RealmError> {
        let size = self.config.page_size as usize;
        let mut seen: HashSet<String> = HashSet::default();
        let mut last: Option<String> = None;
        // The index of the last entry.
        let mut at = 0;
        loop {
            let overlap = usize::from(last.is_some());
            let (first, max) = (at.to_string(), (size + overlap).to_string());
            let query = [&[("first", first.as_str()), ("max", max.as_str())], more].concat();
            let page: Vec<T> = self.get(path, &query).await?;
            let (count, full) = (page.len(), page.len() >= size + overlap);
            crate::progress::page(count);
            let begins = page.iter().position(|item| Some(item.id()) == last.as_deref());
            let moved = page.iter().any(|item| seen.contains(item.id()));
            // The entries before the last entry are known, or were added meanwhile.
            let before = match (&last, begins) {
                (None, _) => 0,
                (Some(_), Some(place)) => place + 1,
                // More entries were added before this entry than a page holds.
                (Some(_), None) if full && moved => count,
                (Some(_), None) => return Err(RealmError::Changed(T::WHAT)),
            };
            at += if before == count && begins.is_none() { count } else { count.saturating_sub(1) };
            for (place, item) in page.into_iter().enumerate() {
                let is_new = seen.insert(item.id().to_owned());
                if !is_new && place >= before {
                    return Err(RealmError::Changed(T::WHAT));
                }
                if place >= before {
                    last = Some(item.id().to_owned());
                }
                if is_new {
                    each(item);
                }
            }
            if !full {
                return Ok(seen.len());
            }
        }
    }

    fn at(&self, path: &[&str]) -> Url {
        let mut url = self.url.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        url
    }

    async fn send(&self, request: RequestBuilder) -> Result<RawResponse, RealmError> {
        let failed = |error: reqwest::Error| match error.without_url() {
            error if error.is_connect() => RealmError::Connect(error),
            error if error.is_timeout() => RealmError::Timeout(self.config.timeout),
            error => RealmError::Lost(error),
        };
        let response = request.send().await.map_err(failed)?;
        let status = response.status();
        let location = response.headers().get("location").and_then(|at| at.to_str().ok()).map(str::to_owned);
        Ok(RawResponse { status, location, body: response.bytes().await.map_err(failed)?.to_vec() })
    }
}

/// Returns the verb that the metrics use for a method.
fn verb(method: &Method) -> &'static str {
    match *method {
        Method::GET => "get",
        Method::POST => "create",
        Method::PUT => "update",
        Method::DELETE => "delete",
        _ => "other",
    }
}

fn parse<T: for<'de> Deserialize<'de>>(what: &str, body: &[u8]) -> Result<T, RealmError> {
    serde_json::from_slice(body).map_err(|source| RealmError::Malformed { what: what.to_owned(), source })
}

/// Encodes a value as in a form.
fn form_urlencoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._*".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[expect(clippy::disallowed_methods, reason = "measures how long a token is good for")]
fn now() -> Instant {
    Instant::now()
}
