//! What the configuration says about a realm, as plain values. Nothing here reaches anything.

use std::collections::BTreeSet;
use std::time::Duration;

use reqwest::Url;

use crate::source::{CONNECT_TIMEOUT, Secret, SourceError, TIMEOUT};

/// Between two reads. There is no way to ask Keycloak for changes, and 5,000 people are some seconds of its time.
pub const INTERVAL: Duration = Duration::from_mins(5);
/// Entries asked for in one page, as Keycloak's own console does. Each user of a page makes it look through all those before
/// (26.4, just started: 0.7 s for 100, 10 s for 1,000, 220 s for 5,000).
pub const PAGE_SIZE: u32 = 100;

/// How to reach a realm, and as whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeycloakConfig {
    /// `https://host[:port][/path]`, what comes before `/realms/`.
    pub url: String,
    /// The realm whose users and groups are read.
    pub realm: String,
    /// A client of that realm with a service account.
    pub client_id: String,
    /// Its secret.
    pub client_secret: Option<Secret>,
    /// Let the secret and the answers cross the network in the clear.
    pub allow_plaintext: bool,
    /// PEM bundle: the only issuers trusted; absent: the system's.
    pub ca_pem: Option<String>,
    /// Between two reads; a cycle that comes earlier goes without this source.
    pub interval: Duration,
    /// Entries in a page.
    pub page_size: u32,
    /// Limit of TCP and TLS together.
    pub connect_timeout: Duration,
    /// Limit of each request.
    pub timeout: Duration,
    /// Ids of users whom Bursar wrote there for people of other sources: they are no entries of this one.
    pub made: BTreeSet<String>,
}

impl KeycloakConfig {
    /// With the defaults, and no secret yet.
    #[must_use]
    pub fn new(url: String, realm: String, client_id: String) -> Self {
        Self {
            url,
            realm,
            client_id,
            client_secret: None,
            allow_plaintext: false,
            ca_pem: None,
            interval: INTERVAL,
            page_size: PAGE_SIZE,
            connect_timeout: CONNECT_TIMEOUT,
            timeout: TIMEOUT,
            made: BTreeSet::new(),
        }
    }

    /// Where the server is; `None`: `url` says it in no usable way.
    pub(super) fn server(&self) -> Option<Url> {
        let url = Url::parse(&self.url).ok()?;
        let plain = url.username().is_empty() && url.password().is_none() && url.query().is_none();
        let known = matches!(url.scheme(), "https" | "http") && url.has_host() && url.fragment().is_none();
        (plain && known).then_some(url)
    }

    /// Checks what can be checked without reaching anything.
    pub fn check(&self) -> Result<(), SourceError> {
        let wrong = |key, why: String| Err(SourceError::new(key, why));
        let Some(url) = self.server() else {
            return wrong("url", format!("{:?} is not https://host, with :port and path or without", self.url));
        };
        if url.scheme() == "http" && !self.allow_plaintext {
            return wrong("url", format!("{:?} needs https://, or allow_plaintext = true", self.url));
        }
        if self.url.contains("/realms") {
            return wrong("url", format!("{:?} is that of a realm; what comes before /realms is asked for", self.url));
        }
        for (key, value) in [("realm", &self.realm), ("client_id", &self.client_id)] {
            if value.is_empty() || value == "." || value == ".." {
                return wrong(key, format!("{value:?} is no name"));
            }
        }
        if self.client_secret.as_ref().is_none_or(|secret| secret.reveal().is_empty()) {
            return wrong(
                "client_secret",
                "the client needs one; for example { credential = \"keycloak-secret\" }".to_owned(),
            );
        }
        if self.page_size == 0 || i32::try_from(self.page_size).is_err() {
            return wrong("page_size", format!("{} is not in 1..2147483647", self.page_size));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str) -> KeycloakConfig {
        let config = KeycloakConfig::new(url.to_owned(), "research".to_owned(), "bursar".to_owned());
        KeycloakConfig { client_secret: Some(Secret::new("hunter2".to_owned())), ..config }
    }

    #[test]
    fn a_url_is_that_of_the_server_and_encrypted() {
        for good in ["https://sso.example.org", "https://sso:8443/auth/"] {
            assert_eq!(config(good).check(), Ok(()), "{good}");
        }
        for wrong in ["", "sso", "ldaps://sso", "https://", "https://a:b@sso", "https://sso?a", "https://sso/realms/a"]
        {
            assert_eq!(config(wrong).check().map_err(|error| error.key), Err("url"), "{wrong}");
        }
        let plain = config("http://sso");
        let why = r#"url: "http://sso" needs https://, or allow_plaintext = true"#;
        assert_eq!(plain.check().map_err(|error| error.to_string()), Err(why.to_owned()));
        assert_eq!(KeycloakConfig { allow_plaintext: true, ..plain }.check(), Ok(()));
    }

    #[test]
    fn a_client_without_a_secret_is_nobody() {
        let config = config("https://sso");
        let none = KeycloakConfig { client_secret: None, ..config.clone() };
        assert_eq!(none.check().map_err(|error| error.key), Err("client_secret"));
        assert!(!format!("{config:?}").contains("hunter2"), "never printed");
    }
}
