//! Reads a `[[source]]` that is a Keycloak realm.

use std::path::Path;
use std::time::Duration;

use bursar_directory::keycloak::{self, KeycloakConfig};
use bursar_directory::source::{Preset, SourceKind, Tree};

use super::secret::SecretPlace;
use super::source::ca;
use super::table::{DURATION, NUMBER, Table};
use crate::identity::AccountKind;
use crate::ledger::gaps;
pub(super) use bursar_directory::keycloak::INTERVAL;

/// The keys of other sources, each with the text that says what a realm has instead.
const OF_OTHERS: [(&str, &str); 14] = [
    ("urls", "a realm has one url"),
    ("bind_dn", "a realm identifies Bursar by client_id"),
    ("password", "a realm identifies Bursar by client_secret"),
    ("client_certificate", "a realm identifies Bursar by client_secret"),
    ("client_key", "a realm identifies Bursar by client_secret"),
    ("starttls", "a realm uses https"),
    ("incremental", "Keycloak does not report changes: it is read in full after each interval"),
    ("persist", "Keycloak does not report changes: it is read again after each interval"),
    ("members_at_once", "a realm's members are read in pages: page_size"),
    ("path", "a realm has a url"),
    ("paths", "a realm has a url"),
    ("tools", "a realm has people and groups; tools come from another source"),
    ("users", "all of a realm's users are read"),
    ("groups", "all of a realm's groups are read"),
];

/// Reads the realm, and the place of the secret of Bursar's client.
pub(super) fn keycloak(table: &Table<'_>, folder: &Path) -> Option<(SourceKind, Option<SecretPlace>)> {
    for (key, why) in OF_OTHERS.iter().filter(|(key, _)| table.has(key)) {
        table.wrong(key, *why);
    }
    let url = table.required("url", "https://sso.example.org");
    let realm = table.required("realm", "research");
    let client = table.required("client_id", "bursar");
    let secret = SecretPlace::of(table, "client_secret");
    let mut config = KeycloakConfig::new(url?, realm?, client?);
    config.allow_plaintext = table.switch("allow_plaintext", false);
    config.ca_pem = ca(table, folder);
    config.interval = table.duration("interval", config.interval);
    if config.interval > Duration::from_secs(gaps::LONGEST_GAP.unsigned_abs()) {
        // If the gap between two reads is longer, only an hour of it counts towards the absence of an account.
        table.wrong("interval", "is longer than an hour, so absences would count for less than they last");
    }
    config.connect_timeout = table.duration("connect_timeout", config.connect_timeout);
    config.timeout = table.duration("timeout", config.timeout);
    for (key, time) in [("connect_timeout", config.connect_timeout), ("timeout", config.timeout)] {
        if time.is_zero() {
            table.wrong(key, format!("0 leaves no time for an answer; for example {}", DURATION.1));
        }
    }
    if table.has("page_size") {
        config.page_size = table.parsed("page_size", NUMBER, |text| text.parse().ok()).unwrap_or(config.page_size);
    }
    Some((SourceKind::Keycloak(config), secret))
}

/// Returns where the realm's entries of a kind are.
pub(super) fn tree(realm: &KeycloakConfig, kind: AccountKind) -> Tree {
    Preset::Keycloak.tree(kind, &keycloak::base(&realm.realm, kind))
}
