//! One pass's conversation with a realm: the token of its service account, one request after the other, and lists in
//! pages that fit together.

use std::time::Duration;

use foldhash::HashSet;
use reqwest::{RequestBuilder, StatusCode, Url, redirect};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::super::source::Secret;
use super::super::tls::{TlsError, client_config};
use super::answer::{Listed, Refusal, Token};
use super::config::KeycloakConfig;

/// What went wrong while talking to a realm.
#[derive(Debug, thiserror::Error)]
pub enum RealmError {
    /// The configuration; `SourceConfig::check` finds it first.
    #[error("url, or client_secret, is not usable")]
    Config,
    /// No usable issuer.
    #[error("cannot use TLS")]
    Tls(#[from] TlsError),
    /// TCP or TLS.
    #[error("cannot connect; see url and ca")]
    Connect(#[source] reqwest::Error),
    /// The server stopped answering.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The connection ended, or what came was no HTTP.
    #[error("connection lost")]
    Lost(#[source] reqwest::Error),
    /// There is no token for us.
    #[error(
        "login of client {client} refused ({status}: {why}); see client_id and client_secret, and that the client has a \
         service account"
    )]
    Login {
        /// Whom we said we are.
        client: String,
        /// Of HTTP.
        status: StatusCode,
        /// The server's words.
        why: String,
    },
    /// Nothing at the realm's place.
    #[error("there is no realm {realm:?} ({why}); see realm and url")]
    NoRealm {
        /// Its name.
        realm: String,
        /// The server's words.
        why: String,
    },
    /// The service account lacks a role.
    #[error(
        "{what} refused ({status}: {why}); the service account of client {client} needs the role view-users of \
         realm-management"
    )]
    Forbidden {
        /// What was asked for.
        what: String,
        /// Whose service account.
        client: String,
        /// Of HTTP.
        status: StatusCode,
        /// The server's words.
        why: String,
    },
    /// Anything else but success.
    #[error("{what} answered {status}: {why}")]
    Answer {
        /// What was asked for.
        what: String,
        /// Of HTTP.
        status: StatusCode,
        /// The server's words.
        why: String,
    },
    /// No JSON, or not what it should be.
    #[error("the answer to {what} could not be parsed")]
    Malformed {
        /// What was asked for.
        what: String,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// What came does not fit together.
    #[error("{0} changed while they were read; the next cycle reads them again")]
    Changed(&'static str),
}

/// See the module.
pub(super) struct Session<'a> {
    config: &'a KeycloakConfig,
    url: Url,
    http: reqwest::Client,
    token: Option<(Secret, Instant)>,
}

impl<'a> Session<'a> {
    pub(super) fn new(config: &'a KeycloakConfig) -> Result<Self, RealmError> {
        config.check().map_err(|_| RealmError::Config)?;
        let url = config.server().ok_or(RealmError::Config)?;
        let trust = client_config(config.ca_pem.as_deref(), None)?;
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured((*trust).clone())
            .connect_timeout(config.connect_timeout)
            .timeout(config.timeout)
            // The token is for this server alone, and so is the way to it.
            .redirect(redirect::Policy::none())
            .no_proxy();
        Ok(Self { config, url, http: http.build().map_err(RealmError::Connect)?, token: None })
    }

    /// `host[:port]`.
    pub(super) fn server(&self) -> String {
        let host = self.url.host_str().unwrap_or_default();
        self.url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
    }

    /// Logs in (RFC 6749, 4.4).
    async fn login(&mut self) -> Result<(), RealmError> {
        let url = self.at(&["realms", &self.config.realm, "protocol", "openid-connect", "token"]);
        let secret = self.config.client_secret.as_ref().map(Secret::reveal);
        // In the header, which no server writes into its log of requests; percent-encoded there (RFC 6749, 2.3.1).
        let encoded = |text: &str| form_urlencoded(text);
        let request = self
            .http
            .post(url)
            .basic_auth(encoded(&self.config.client_id), secret.map(encoded))
            .header("content-type", "application/x-www-form-urlencoded")
            .body("grant_type=client_credentials");
        let asked = now();
        let (status, body) = self.send(request).await?;
        let why = || Refusal::of(&body);
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
        // Half of its life: a request that begins with it ends before it does.
        let until = asked + Duration::from_secs(token.expires_in) / 2;
        self.token = Some((Secret::new(token.access_token), until));
        Ok(())
    }

    /// Asks for `path` of the realm.
    pub(super) async fn get<T: DeserializeOwned>(
        &mut self,
        path: &[&str],
        query: &[(&str, &str)],
    ) -> Result<T, RealmError> {
        let what = path.join("/");
        let url = self.at(&[&["admin", "realms", self.config.realm.as_str()], path].concat());
        let fresh = self.token.as_ref().is_some_and(|(_, until)| *until > now());
        if !fresh {
            self.login().await?;
        }
        let mut answer = self.authorised(&url, query).await?;
        // Keys were exchanged, or sessions ended by an administrator: a new token is as good as the first.
        if answer.0 == StatusCode::UNAUTHORIZED && fresh {
            self.login().await?;
            answer = self.authorised(&url, query).await?;
        }
        let (status, body) = answer;
        match status {
            StatusCode::OK => parse(&what, &body),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                let client = self.config.client_id.clone();
                Err(RealmError::Forbidden { what, client, status, why: Refusal::of(&body) })
            }
            _ => Err(RealmError::Answer { what, status, why: Refusal::of(&body) }),
        }
    }

    async fn authorised(&self, url: &Url, query: &[(&str, &str)]) -> Result<(StatusCode, Vec<u8>), RealmError> {
        let token = self.token.as_ref().map_or("", |(token, _)| token.reveal());
        self.send(self.http.get(url.clone()).query(query).bearer_auth(token)).await
    }

    /// Asks for all of a list, page by page. Each page begins with the last of the one before: where it does not, the
    /// list has moved beneath us, and what was in between was never shown.
    pub(super) async fn list<T: Listed + DeserializeOwned>(
        &mut self,
        path: &[&str],
        brief: bool,
        mut each: impl FnMut(T),
    ) -> Result<usize, RealmError> {
        let brief = if brief { "true" } else { "false" };
        let size = self.config.page_size as usize;
        let mut seen: HashSet<String> = HashSet::default();
        let mut last: Option<String> = None;
        loop {
            let overlap = usize::from(last.is_some());
            let (first, max) = ((seen.len() - overlap).to_string(), (size + overlap).to_string());
            let query = [("first", first.as_str()), ("max", max.as_str()), ("briefRepresentation", brief)];
            let page: Vec<T> = self.get(path, &query).await?;
            let full = page.len() >= size + overlap;
            let mut page = page.into_iter();
            if last.is_some() && page.next().is_none_or(|item| Some(item.id()) != last.as_deref()) {
                return Err(RealmError::Changed(T::WHAT));
            }
            for item in page {
                last = Some(item.id().to_owned());
                if !seen.insert(item.id().to_owned()) {
                    return Err(RealmError::Changed(T::WHAT));
                }
                each(item);
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

    async fn send(&self, request: RequestBuilder) -> Result<(StatusCode, Vec<u8>), RealmError> {
        let failed = |error: reqwest::Error| match error.without_url() {
            error if error.is_connect() => RealmError::Connect(error),
            error if error.is_timeout() => RealmError::Timeout(self.config.timeout),
            error => RealmError::Lost(error),
        };
        let response = request.send().await.map_err(failed)?;
        let status = response.status();
        Ok((status, response.bytes().await.map_err(failed)?.to_vec()))
    }
}

fn parse<T: for<'de> Deserialize<'de>>(what: &str, body: &[u8]) -> Result<T, RealmError> {
    serde_json::from_slice(body).map_err(|source| RealmError::Malformed { what: what.to_owned(), source })
}

/// As a value in a form.
fn form_urlencoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._*".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[expect(clippy::disallowed_methods, reason = "measures how long a token is good for")]
fn now() -> Instant {
    Instant::now()
}
