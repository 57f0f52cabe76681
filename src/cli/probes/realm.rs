//! Checks whether the Keycloak realm that Bursar writes to can be reached, and whether Bursar has the rights that the
//! configuration needs. Writes nothing.

use bursar_directory::keycloak::{Administration, RealmError};
use bursar_directory::source::KeycloakConfig;

use super::{Finding, authority};
use crate::errors::chain;
use crate::plan::realm::PREFIX;
use crate::policy::Realm;
use crate::settings::Settings;

/// Client roles of `realm-management`.
const USERS: &str = "manage-users";
const CLIENTS: &str = "manage-clients";

pub(in crate::cli) async fn realm(settings: &Settings) -> Vec<Finding> {
    let Some(realm) = &settings.realm else { return Vec::new() };
    let subject = format!("realm {}", realm.rules.name);
    let (sources, wrong) = settings.usable_sources();
    let config = match settings.realm_connection(&sources) {
        Ok(Some(config)) => config,
        Ok(None) => return Vec::new(),
        Err(errors) => {
            let remedy = "put the secret where the configuration expects it, with mode 0640 and owner root:bursar";
            // The realm may use the connection of a source whose secret cannot be read.
            let errors = if wrong.is_empty() { errors.0 } else { wrong };
            return errors.into_iter().map(|error| Finding::bad(&subject, error, remedy)).collect();
        }
    };
    let mut findings: Vec<Finding> =
        config.ca_pem.iter().filter_map(|pem| authority::of_source(&subject, pem)).collect();
    findings.extend(look(&subject, &realm.rules, &config).await.unwrap_or_else(|error| {
        let remedy = "correct [realm]; until then, Bursar changes nothing in the realm, and everything else continues";
        vec![Finding::bad(&subject, chain(&error), remedy)]
    }));
    findings
}

async fn look(subject: &str, rules: &Realm, config: &KeycloakConfig) -> Result<Vec<Finding>, RealmError> {
    let mut realm = Administration::new(config)?;
    let rights = realm.rights().await?;
    let users = realm.users().await?.len();
    let mut findings = vec![Finding::good(subject, format!("{}: {users} users", config.url))];
    if let Some(client) = &rules.client {
        let found = realm.roles(client, PREFIX).await?.len();
        findings.push(Finding::good(subject, format!("client {client}: {found} roles of workspaces")));
    }
    // If the token does not list roles, the rights are not known, and no finding is made about them.
    let Some(rights) = rights else { return Ok(findings) };
    let has = |role: &str| rights.iter().any(|right| right == role);
    let account = format!("the service account of client {}", config.client_id);
    if !has(USERS) {
        let remedy = format!("give it the role {USERS} of realm-management");
        findings.push(Finding::bad(subject, format!("{account} may not write users"), remedy));
    }
    if rules.client.is_some() && !has(CLIENTS) {
        let text = format!("{account} may not create roles: it lacks {CLIENTS}, so an administrator must create them");
        findings.push(Finding::good(subject, text));
    }
    Ok(findings)
}
