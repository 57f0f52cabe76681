//! Reads `credential` of `[class.NAME]`: its kind, and the keys of that kind.

use std::path::PathBuf;
use std::time::Duration;

use bursar_protocol::Grant;
use regex::Regex;

use super::class::{Known, absolute, unknown};
use super::table::{Table, absolute_path};
use crate::identity::{AccountKind, ClusterName, HostName};
use crate::policy::{Cluster, CredentialKind, CredentialRule, OidcRule, TOKEN_LIFETIME_MAX};

/// The default lifetime of certificates: short enough that a lost certificate is worth little, and long enough that an
/// outage over a long weekend does no harm.
pub(super) const LIFETIME: Duration = Duration::from_hours(7 * 24);
/// The least lifetime that the API server accepts, for certificates and tokens (`spec.expirationSeconds`).
const LIFETIME_MIN: Duration = Duration::from_mins(10);
/// The greatest lifetime of certificates. No signer grants more, and it must fit into `expirationSeconds`.
const LIFETIME_MAX: Duration = Duration::from_hours(10 * 365 * 24);
/// The default lifetime of tokens: a leaked token is worth little, and the daemon has the last 20 minutes to renew it.
pub(super) const TOKEN_LIFETIME: Duration = Duration::from_hours(1);
/// The maximum number of hosts in a class. Bursar watches one Secret for each host, by its name. A host is a system
/// outside the cluster, such as a compute element; its nodes do not count as hosts.
const HOSTS_MAX: usize = 50;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Word {
    Certificate,
    ServiceAccount,
    Oidc,
}

const WORDS: [(&str, Word); 3] =
    [("certificate", Word::Certificate), ("service-account", Word::ServiceAccount), ("oidc", Word::Oidc)];

/// Reads the credential of a class for accounts of this kind.
pub(super) fn credential(
    table: &Table<'_>,
    kind: Option<AccountKind>,
    clusters: &[ClusterName],
    known: &Known<'_>,
) -> Option<CredentialRule> {
    let fields = table.has("credential").then(|| table.section("credential"))?;
    let word = if fields.has("kind") { fields.choice("kind", &WORDS)? } else { Word::Certificate };
    let proof = match word {
        Word::Certificate => {
            fields.only(&["kind", "lifetime", "endpoints"]);
            CredentialKind::Certificate { lifetime: lifetime(&fields, LIFETIME, LIFETIME_MAX, "10y", "7d") }
        }
        Word::ServiceAccount => {
            fields.only(&["kind", "lifetime", "endpoints", "hosts", "directory"]);
            if !table.has("namespace") {
                fields.wrong("kind", "a service account needs a namespace; for example namespace = \"tool-{name}\"");
            }
            let hosts = hosts(&fields);
            CredentialKind::ServiceAccount {
                lifetime: lifetime(&fields, TOKEN_LIFETIME, TOKEN_LIFETIME_MAX, "30d", "1h"),
                directory: directory(&fields, &hosts, known),
                hosts,
            }
        }
        Word::Oidc => {
            fields.only(&["kind", "endpoints", "issuer", "client_id", "scopes", "grant", "user"]);
            if kind != Some(AccountKind::User) {
                fields.wrong("kind", "kind = \"oidc\" needs from = \"users\", because a tool cannot log in");
            }
            CredentialKind::Oidc(oidc(&fields)?)
        }
    };
    Some(CredentialRule { kind: proof, endpoints: endpoints(&fields, clusters, known) })
}

fn lifetime(fields: &Table<'_>, default: Duration, most: Duration, said: &str, example: &str) -> Duration {
    let lifetime = fields.duration("lifetime", default);
    if !(LIFETIME_MIN..=most).contains(&lifetime) {
        fields.wrong("lifetime", format!("must be between 10m and {said}; for example {example:?}"));
    }
    lifetime
}

fn hosts(fields: &Table<'_>) -> Vec<HostName> {
    let label = Regex::new("^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")
        .expect("the constant is a valid regex, which a test compiles");
    let hosts = fields.texts("hosts").unwrap_or_default();
    if hosts.is_empty() {
        fields.wrong("hosts", "missing: each host has a token of its own; for example [\"ce1\"]");
    }
    if hosts.len() > HOSTS_MAX {
        fields.wrong("hosts", format!("there are more than {HOSTS_MAX}; list systems, not their nodes"));
    }
    for (index, host) in hosts.iter().enumerate() {
        if !label.is_match(host) {
            let what = "may have only lower case letters, digits and '-', at most 40 of them; for example \"ce1\"";
            fields.wrong("hosts", format!("{host:?} {what}"));
        } else if hosts[..index].contains(host) {
            fields.wrong("hosts", format!("{host:?} is listed twice"));
        }
    }
    hosts.into_iter().map(HostName).collect()
}

/// Reads `directory`. It must contain `{host}` and `{name}`, because otherwise the tokens of two hosts or of two
/// tenants would be written to one file.
fn directory(fields: &Table<'_>, hosts: &[HostName], known: &Known<'_>) -> Option<PathBuf> {
    if !fields.has("directory") {
        if hosts.len() > 1 {
            let example = "for example \"/srv/outside/{host}/{name}\"";
            fields.wrong(
                "directory",
                format!(
                    "missing: a home has room for the token of one host only, and this class has {} hosts; {example}",
                    hosts.len()
                ),
            );
        }
        return None;
    }
    let directory = fields.parsed("directory", absolute_path("\"/srv/outside/{host}/{name}\""), absolute)?;
    let text = directory.display().to_string();
    for part in ["{name}", "{host}"] {
        if text.matches(part).count() != 1 && (part == "{name}" || hosts.len() > 1) {
            fields.wrong(
                "directory",
                format!("{text:?} needs {part} once; for example \"/srv/outside/{{host}}/{{name}}\""),
            );
        }
    }
    let before = text.split('{').next().unwrap_or_default();
    if !known.prefixes.iter().any(|allowed| PathBuf::from(before).starts_with(allowed)) {
        let prefixes: Vec<String> = known.prefixes.iter().map(|prefix| prefix.display().to_string()).collect();
        fields.wrong("directory", format!("{text:?} is beneath none of homes.prefixes: {}", prefixes.join(", ")));
    }
    Some(directory)
}

fn oidc(fields: &Table<'_>) -> Option<OidcRule> {
    let issuer = fields.required("issuer", "https://sso.example.org/realms/site");
    if let Some(issuer) = issuer.as_ref().filter(|issuer| !bursar_protocol::is_issuer(issuer)) {
        fields.wrong(
            "issuer",
            format!("{issuer:?} is not an https URL; for example \"https://sso.example.org/realms/site\""),
        );
    }
    let client_id = fields.required("client_id", "kubernetes");
    let scopes = fields.texts("scopes").unwrap_or_default();
    for (key, word) in client_id.iter().map(|id| ("client_id", id)).chain(scopes.iter().map(|it| ("scopes", it))) {
        if !bursar_protocol::is_word(word) {
            fields.wrong(key, format!("{word:?} may have only letters, digits and any of . _ : / + -"));
        }
    }
    let user = fields.required("user", "oidc:{name}")?;
    let before = user.split("{name}").next().unwrap_or_default();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".:_@/-".contains(&byte);
    if !user.replace("{name}", "").bytes().all(plain) {
        fields.wrong("user", format!("{user:?} may have only letters, digits and any of . : _ @ / -"));
    } else if user.matches("{name}").count() != 1 {
        fields.wrong("user", format!("{user:?} needs {{name}} once; for example \"oidc:{{name}}\""));
    } else if ["system:", "bursar:", "tool:", "user:", "group:"].iter().any(|taken| before.starts_with(taken)) {
        fields.wrong("user", format!("{user:?} is reserved for Kubernetes or Bursar; for example \"oidc:{{name}}\""));
    }
    let grants = [("auto", Grant::Auto), ("device-code", Grant::DeviceCode)];
    let grant = fields.choice("grant", &grants).unwrap_or_default();
    Some(OidcRule { issuer: issuer?, client_id: client_id?, scopes, grant, user })
}

fn endpoints(fields: &Table<'_>, clusters: &[ClusterName], known: &Known<'_>) -> Vec<String> {
    let clusters: Vec<&Cluster> = clusters.iter().filter_map(|name| known.clusters.get(name)).collect();
    let endpoints = fields.texts("endpoints").unwrap_or_else(|| {
        let mut defaults: Vec<String> = clusters.iter().map(|cluster| cluster.default_endpoint.clone()).collect();
        defaults.sort();
        defaults.dedup();
        defaults
    });
    if endpoints.is_empty() && fields.has("endpoints") {
        fields.wrong("endpoints", "is empty; for example [\"internal\"]");
    }
    for name in &endpoints {
        if !clusters.is_empty() && !clusters.iter().any(|cluster| cluster.endpoints.contains_key(name)) {
            let all = clusters.iter().flat_map(|cluster| cluster.endpoints.keys()).map(String::as_str);
            fields.wrong("endpoints", unknown(name, all, "[cluster.NAME.endpoint.NAME]"));
        }
    }
    endpoints
}
