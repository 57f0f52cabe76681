//! The configuration of a realm as plain values. Nothing here connects to a server.

use std::collections::BTreeSet;
use std::time::Duration;

use reqwest::Url;

use crate::source::{CONNECT_TIMEOUT, LOGIN_IN_URL, Secret, SourceError, TIMEOUT, has_login};

/// The default time between two reads. Keycloak does not report changes, and reading 5,000 people keeps it busy for
/// some seconds.
pub const INTERVAL: Duration = Duration::from_mins(5);
/// The number of entries in one page; Keycloak's own console requests the same number. Larger pages are much slower,
/// because Keycloak looks for each user of a page among all users before that user (26.4, just started: 0.7 s for 100
/// users, 10 s for 1,000, 220 s for 5,000).
pub const PAGE_SIZE: u32 = 100;

/// How a realm is reached, and with which client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeycloakConfig {
    /// `https://host[:port][/path]`: the part of the URL before `/realms/`.
    pub url: String,
    /// The realm whose users and groups are read.
    pub realm: String,
    /// A client of the realm with a service account.
    pub client_id: String,
    /// The secret of the client.
    pub client_secret: Option<Secret>,
    /// Whether the secret and the answers may cross the network in plain text.
    pub allow_plaintext: bool,
    /// A PEM bundle with the only issuers that are trusted; `None` for the system's.
    pub ca_pem: Option<String>,
    /// The time between two reads. A cycle that begins earlier does not read this source.
    pub interval: Duration,
    /// Entries in a page.
    pub page_size: u32,
    /// The limit of TCP and TLS together.
    pub connect_timeout: Duration,
    /// The limit of each request.
    pub timeout: Duration,
    /// Ids of users that Bursar created for people of other sources. These users do not count as entries of this
    /// source.
    pub made: BTreeSet<String>,
}

impl KeycloakConfig {
    /// Returns a configuration with the defaults and without a secret.
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

    /// Returns the parsed `url`; `None` if it is not a usable URL of a server.
    pub(super) fn server(&self) -> Option<Url> {
        let url = Url::parse(&self.url).ok()?;
        let plain = url.username().is_empty() && url.password().is_none() && url.query().is_none();
        let known = matches!(url.scheme(), "https" | "http") && url.has_host() && url.fragment().is_none();
        (plain && known).then_some(url)
    }

    /// Checks everything that can be checked without reaching the server.
    pub fn check(&self) -> Result<(), SourceError> {
        let wrong = |key, why: String| Err(SourceError::new(key, why));
        if has_login(&self.url) {
            return wrong("url", LOGIN_IN_URL.to_owned());
        }
        let Some(url) = self.server() else {
            return wrong("url", format!("{:?} is not https://host, with :port and path or without", self.url));
        };
        if url.scheme() == "http" && !self.allow_plaintext {
            return wrong("url", format!("{:?} needs https://, or allow_plaintext = true", self.url));
        }
        if self.url.contains("/realms") {
            return wrong("url", format!("{:?} is the URL of a realm; remove /realms and what follows it", self.url));
        }
        for (key, value) in [("realm", &self.realm), ("client_id", &self.client_id)] {
            if value.is_empty() || value == "." || value == ".." {
                return wrong(key, format!("{value:?} is not a valid name"));
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
    fn a_url_must_name_the_server_and_be_encrypted() {
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
    fn a_client_needs_a_secret() {
        let config = config("https://sso");
        let none = KeycloakConfig { client_secret: None, ..config.clone() };
        assert_eq!(none.check().map_err(|error| error.key), Err("client_secret"));
        assert!(!format!("{config:?}").contains("hunter2"), "the secret is never printed");
    }
}
