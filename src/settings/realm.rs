//! Reads `[realm]`: a Keycloak realm that Bursar writes to. It uses the connection of a source, or keys of its own.

use std::path::Path;
use std::time::Duration;

use bursar_directory::keycloak::KeycloakConfig;
use bursar_directory::source::{Secret, SourceConfig, SourceError, SourceKind};

use super::keycloak;
use super::secret::SecretPlace;
use super::table::{DURATION, Table};
use crate::policy::Realm;

/// The settings of the realm.
#[derive(Debug, Clone, PartialEq)]
pub struct RealmSettings {
    /// The desired state of the realm.
    pub rules: Realm,
    /// The time between two reads.
    pub interval: Duration,
    /// The connection with the place of its secret; `None` if the realm uses the connection of a source.
    pub(super) own: Option<(KeycloakConfig, Option<SecretPlace>)>,
}

/// Keys of the connection, the same as those of a source.
const CONNECTION: [&str; 9] =
    ["url", "realm", "client_id", "client_secret", "ca", "allow_plaintext", "page_size", "connect_timeout", "timeout"];
const KEYS: [&str; 6] = ["source", "client", "required_actions", "mail", "adopt", "interval"];

/// Reads `[realm]`. Returns `None` if it is missing or has errors.
pub(super) fn realm(
    root: &Table<'_>,
    folder: &Path,
    sources: &[(SourceConfig, Option<SecretPlace>)],
) -> Option<RealmSettings> {
    if !root.has("realm") {
        return None;
    }
    let table = root.section("realm");
    table.only(&[&KEYS[..], &CONNECTION].concat());
    if !table.has("source") && !table.has("url") {
        let why =
            "missing; for example \"sso\", a [[source]] of type keycloak; or url, realm, client_id and client_secret";
        table.wrong("source", why);
        return None;
    }
    let (name, own) =
        if table.has("source") { (of_source(&table, sources)?, None) } else { own(&table, folder, sources)? };
    let rules = Realm {
        name,
        source: table.text("source"),
        client: table.text("client"),
        required_actions: table.texts("required_actions").unwrap_or_default(),
        mail: table.switch("mail", false),
        adopt: table.switch("adopt", false),
    };
    if let Some(odd) = rules.required_actions.iter().find(|action| !is_action(action)) {
        table.wrong("required_actions", format!("{odd:?} is not a required action; for example \"UPDATE_PASSWORD\""));
    }
    if rules.mail && rules.required_actions.is_empty() {
        table.wrong(
            "mail",
            "needs required_actions, for which the mail asks; for example required_actions = [\"UPDATE_PASSWORD\"]",
        );
    }
    let interval = table.duration("interval", keycloak::INTERVAL);
    if interval.is_zero() {
        table.wrong("interval", format!("0 leaves no time; for example {}", DURATION.1));
    }
    Some(RealmSettings { rules, interval, own })
}

/// Whether a text can be a required action. Extensions may use any letters.
fn is_action(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c))
}

/// Returns the realm of the source that `source` names.
fn of_source(table: &Table<'_>, sources: &[(SourceConfig, Option<SecretPlace>)]) -> Option<String> {
    for key in CONNECTION.iter().filter(|key| table.has(key)) {
        table.wrong(key, "is set by the source already; remove one of the two");
    }
    let name = table.text("source")?;
    let realms = || sources.iter().filter_map(|(source, _)| Some((&source.name, keycloak_of(source)?)));
    let found = realms().find(|(source, _)| **source == name);
    if found.is_none() {
        let known: Vec<&str> = realms().map(|(source, _)| source.as_str()).collect();
        let known = if known.is_empty() {
            "there is none; set url, realm, client_id and client_secret here instead".to_owned()
        } else {
            format!("there are: {}", known.join(", "))
        };
        table.wrong("source", format!("{name:?} is not a [[source]] of type keycloak; {known}"));
    }
    found.map(|(_, config)| config.realm.clone())
}

type Own = (KeycloakConfig, Option<SecretPlace>);

/// Reads the keys of the realm's own connection.
fn own(
    table: &Table<'_>,
    folder: &Path,
    sources: &[(SourceConfig, Option<SecretPlace>)],
) -> Option<(String, Option<Own>)> {
    let (kind, place) = keycloak::keycloak(table, folder)?;
    let SourceKind::Keycloak(config) = kind else { return None };
    let secret = place.as_ref().map(|_| Secret::new("read later".to_owned()));
    if let Err(SourceError { key, why }) = (KeycloakConfig { client_secret: secret, ..config.clone() }).check() {
        table.wrong(key, why);
    }
    let same = |other: &&KeycloakConfig| other.realm == config.realm && other.url == config.url;
    if let Some((source, _)) = sources.iter().find(|(source, _)| keycloak_of(source).as_ref().is_some_and(same)) {
        table.wrong("url", format!("is the url of source {0:?}; write source = {0:?} instead", source.name));
    }
    Some((config.realm.clone(), Some((config, place))))
}

fn keycloak_of(source: &SourceConfig) -> Option<&KeycloakConfig> {
    match &source.kind {
        SourceKind::Keycloak(config) => Some(config),
        SourceKind::Ldap(_) | SourceKind::Ldif(_) => None,
    }
}

impl RealmSettings {
    /// Returns the connection: that of a source, or the realm's own, whose secret is read now.
    pub(super) fn connection(&self, sources: &[SourceConfig]) -> Result<KeycloakConfig, String> {
        match &self.own {
            None => {
                let source = sources.iter().find(|source| Some(&source.name) == self.rules.source.as_ref());
                source.and_then(keycloak_of).cloned().ok_or_else(|| "realm.source: there is no such source".to_owned())
            }
            Some((config, place)) => {
                let secret = place.as_ref().map(SecretPlace::read).transpose();
                let secret = secret.map_err(|error| format!("realm.client_secret: {error}"))?;
                Ok(KeycloakConfig { client_secret: secret, ..config.clone() })
            }
        }
    }
}
