//! What `bursar doctor` reaches: directories, clusters, homes and the daemon, each answer as a finding. Nothing is
//! changed anywhere.

use std::time::Duration;

use jiff::Timestamp;
use jiff::fmt::rfc2822;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::api::{Api, PostParams};
use serde::Serialize;
use x509_parser::pem::Pem;

use crate::access::webhook::{self, ENDS_SOON, Found, WebhookRequest};
use crate::control::client::{ClientError, ControlClient};
use crate::directory::{self, Completeness};
use crate::identity::ClusterName;
use crate::ledger::store::ReadStore;
use crate::observed::prometheus;
use crate::policy::{Cluster, Endpoint};
use crate::settings::Settings;
use crate::{access, daemon, engine, report};

/// More than this, and certificates are "not yet valid" where they are used.
const SKEW: i64 = 30;
/// Time to make and spread another CA before this one ends.
const CA_ENDS_SOON: i64 = 30 * 24 * 3600;
/// An answer that takes longer is none.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the daemon does in every cluster: group, resource, verb.
const NEEDED: [(&str, &str, &str); 9] = [
    ("", "namespaces", "create"),
    ("", "namespaces", "watch"),
    ("", "resourcequotas", "patch"),
    ("", "limitranges", "patch"),
    ("networking.k8s.io", "networkpolicies", "patch"),
    ("rbac.authorization.k8s.io", "rolebindings", "patch"),
    ("rbac.authorization.k8s.io", "rolebindings", "delete"),
    ("certificates.k8s.io", "certificatesigningrequests", "create"),
    ("certificates.k8s.io", "certificatesigningrequests", "watch"),
];

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    /// What was looked at.
    pub(super) subject: String,
    /// What was found.
    pub(super) text: String,
    /// What to do; nothing where all is well.
    pub(super) cure: Option<String>,
}

impl Finding {
    fn good(subject: impl Into<String>, text: impl Into<String>) -> Self {
        Self { subject: subject.into(), text: text.into(), cure: None }
    }

    fn bad(subject: impl Into<String>, text: impl Into<String>, cure: impl Into<String>) -> Self {
        Self { subject: subject.into(), text: text.into(), cure: Some(cure.into()) }
    }
}

/// Reads every directory once.
pub(super) async fn sources(settings: &Settings) -> Vec<Finding> {
    let sources = match settings.sources() {
        Ok(sources) => sources,
        Err(errors) => {
            let cure = "put the password where the configuration says, 0640 root:bursar";
            return errors.0.iter().map(|error| Finding::bad("password", error, cure)).collect();
        }
    };
    let snapshot = directory::fetch(&sources, &settings.policy).await;
    let mut findings = Vec::new();
    for read in &snapshot.reads {
        let subject = format!("source {}", read.source);
        let server = read.server.as_deref().unwrap_or("no server");
        // Every directory has some that are not tenants; they are no trouble of the site's.
        let rejected = match read.rejected.len() {
            0 => String::new(),
            count => format!(", {count} rejected (`bursar status` names each with what is wrong)"),
        };
        let count = read.entries.len();
        findings.push(match &read.completeness {
            Completeness::Complete => Finding::good(&subject, format!("{server}: complete, {count} entries{rejected}")),
            Completeness::Partial { why } => Finding::bad(
                &subject,
                format!("{server}: partial: {why}"),
                "until it is complete nobody of this source is suspended for absence; see urls, bind_dn, password, base",
            ),
        });
    }
    findings
}

/// Reaches one cluster by each endpoint and as the daemon.
pub(super) async fn cluster(settings: &Settings, name: &ClusterName, cluster: &Cluster) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (endpoint_name, endpoint) in &cluster.endpoints {
        let subject = format!("cluster {name}, endpoint {endpoint_name}");
        findings.push(authority(&subject, &endpoint.ca_pem));
        findings.push(reached(&subject, endpoint).await);
    }
    findings.extend(as_daemon(settings, name).await);
    findings
}

/// What idle namespaces are judged by, beside their pods.
pub(super) async fn evidence(settings: &Settings) -> Vec<Finding> {
    let mut findings = Vec::new();
    let rules = settings.policy.reapers.namespaces.iter();
    for (cluster, evidence) in rules.flat_map(|rules| &rules.evidence) {
        let subject = format!("reaper.namespaces.prometheus.{cluster}");
        findings.push(match prometheus::ask(evidence).await {
            Ok(in_use) => Finding::good(subject, format!("{}: {} namespaces in use", evidence.url, in_use.len())),
            Err(error) => Finding::bad(
                subject,
                format!("{}: {}", evidence.url, report::chain(&error)),
                "until it answers no namespace of the cluster counts as idle; see url, ca, token, query, control",
            ),
        });
    }
    findings
}

fn authority(subject: &str, pem: &str) -> Finding {
    let now = daemon::now().as_second();
    let ends = Pem::iter_from_buffer(pem.as_bytes())
        .filter_map(|pem| pem.ok()?.parse_x509().ok().map(|ca| ca.validity().not_after.timestamp()))
        .max();
    match ends.and_then(|ends| Some((ends, Timestamp::from_second(ends).ok()?))) {
        None => Finding::bad(subject, "its ca has no certificate", "put the cluster's CA in PEM in the file of `ca`"),
        Some((ends, at)) if ends < now + CA_ENDS_SOON => {
            Finding::bad(subject, format!("its CA ends {at}"), "put the new CA beside the old one in the file of `ca`")
        }
        Some((_, at)) => Finding::good(subject, format!("its CA is good until {at}")),
    }
}

/// Asks for the version, which needs no account, and compares clocks by the answer.
async fn reached(subject: &str, endpoint: &Endpoint) -> Finding {
    match asked(endpoint).await {
        Err(error) => {
            let cure = "see url, ca, tls_server_name and proxy of this endpoint, and the firewall";
            Finding::bad(subject, format!("{}: {}", endpoint.url, report::chain(&error)), cure)
        }
        Ok(None) => Finding::good(subject, format!("{} answers", endpoint.url)),
        Ok(Some(date)) => match skew(&date, daemon::now()) {
            Some(skew) if skew.abs() > SKEW => Finding::bad(
                subject,
                format!("{} answers; its clock differs from ours by {skew} s", endpoint.url),
                "let both hosts follow the same time servers (timedatectl)",
            ),
            _ => Finding::good(subject, format!("{} answers, clocks agree", endpoint.url)),
        },
    }
}

async fn asked(endpoint: &Endpoint) -> reqwest::Result<Option<String>> {
    let authorities = reqwest::Certificate::from_pem_bundle(endpoint.ca_pem.as_bytes())?;
    let mut builder = reqwest::Client::builder().tls_certs_only(authorities).timeout(PATIENCE);
    builder = match &endpoint.proxy {
        Some(proxy) => builder.proxy(reqwest::Proxy::all(proxy)?),
        None => builder.no_proxy(),
    };
    let response = builder.build()?.get(format!("{}/version", endpoint.url.trim_end_matches('/'))).send().await?;
    Ok(response.headers().get("date").and_then(|date| date.to_str().ok()).map(str::to_owned))
}

/// Seconds that `date` (RFC 9110, 5.6.7) is ahead of `now`.
fn skew(date: &str, now: Timestamp) -> Option<i64> {
    let there = rfc2822::DateTimeParser::new().parse_timestamp(date).ok()?;
    Some(there.as_second() - now.as_second())
}

async fn as_daemon(settings: &Settings, name: &ClusterName) -> Vec<Finding> {
    let kubeconfig = &settings.clusters[name];
    let subject = format!("cluster {name}, as the daemon");
    let init = format!("bursar init --admin-kubeconfig FILE --cluster {name}");
    let client = match access::client(kubeconfig).await {
        Ok(client) => client,
        Err(error) => return vec![Finding::bad(&subject, report::chain(&error), init)],
    };
    if let Some(finding) = owned(&subject, &client, settings).await {
        return vec![finding];
    }
    let mut missing = Vec::new();
    for (group, resource, verb) in NEEDED {
        match tokio::time::timeout(PATIENCE, allowed(&client, group, resource, verb)).await {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) => missing.push(format!("{verb} {resource}")),
            Ok(Err(error)) => return vec![Finding::bad(&subject, report::chain(&error), init)],
            Err(_) => return vec![Finding::bad(&subject, "no answer within 10 s", "see the API server's load")],
        }
    }
    if !missing.is_empty() {
        return vec![Finding::bad(&subject, format!("may not {}", missing.join(", ")), init)];
    }
    vec![Finding::good(&subject, "may do what it has to"), webhook(settings, name, &client, init).await]
}

/// Whether the webhook is there, has the configuration's rules, and files that hold a while.
async fn webhook(settings: &Settings, cluster: &ClusterName, client: &kube::Client, init: String) -> Finding {
    let subject = format!("cluster {cluster}, webhook");
    match webhook_found(settings, cluster, client).await {
        Ok(None) => Finding::good(
            &subject,
            "not installed: nothing looks at what tenants' pods run as (`bursar webhook install`)",
        ),
        Ok(Some((found, is_given))) => {
            installed(subject, cluster, (&found.url, found.not_after), is_given, daemon::now())
        }
        Err(error) => Finding::bad(&subject, error, init),
    }
}

/// Of an installed webhook's address, where it has one, and the end of its files.
fn installed(
    subject: String,
    cluster: &ClusterName,
    (url, not_after): (&Option<String>, Option<Timestamp>),
    is_given: bool,
    now: Timestamp,
) -> Finding {
    let again = match url {
        Some(url) => format!("bursar webhook install --cluster {cluster} --url {url} --write FOLDER"),
        None => "systemctl status bursard: the daemon renews it".to_owned(),
    };
    match not_after {
        Some(ends) if ends <= now + ENDS_SOON => {
            Finding::bad(subject, format!("its files are good until {ends:.0}"), again)
        }
        _ if !is_given => Finding::bad(subject, "it has rules of an older configuration", again),
        Some(ends) => Finding::good(subject, format!("installed, its files are good until {ends:.0}")),
        None => Finding::bad(subject, "nobody knows until when its files are good", again),
    }
}

async fn webhook_found(
    settings: &Settings,
    cluster: &ClusterName,
    client: &kube::Client,
) -> Result<Option<(Found, bool)>, String> {
    let chain = |error: &dyn std::error::Error| report::chain(error);
    let Some(found) = webhook::found(client).await.map_err(|error| chain(&error))? else { return Ok(None) };
    let sealer = engine::read_seal(&settings.state_dir).map_err(|error| chain(&error))?;
    let mut store = ReadStore::open(&settings.ledger()).await.map_err(|error| chain(&error))?;
    let ledger = store.state().await.map_err(|error| chain(&error))?;
    let (policy, state_dir, now) = (&settings.policy, settings.state_dir.as_path(), daemon::now());
    let request = WebhookRequest { policy, cluster, ledger: &ledger, state_dir, sealer: &sealer, now };
    let is_given = request.is_given(client, &found).await.map_err(|error| chain(&error))?;
    Ok(Some((found, is_given)))
}

/// What is wrong with whose the cluster is.
async fn owned(subject: &str, client: &kube::Client, settings: &Settings) -> Option<Finding> {
    let ledger = match ReadStore::open(&settings.ledger()).await {
        Ok(mut store) => store.state().await.map(|state| state.ledger_id),
        Err(error) => Err(error),
    };
    match (access::owner(client).await, ledger) {
        (Ok(Some(owner)), Ok(own)) if owner == own => None,
        (Ok(Some(owner)), Ok(own)) => Some(Finding::bad(
            subject,
            format!("the cluster belongs to ledger {owner}, and this one is {own}"),
            "bursar takeover, after the other daemon was stopped",
        )),
        (Ok(None), _) => Some(Finding::bad(subject, "the cluster belongs to no ledger", "bursar init")),
        (Err(error), _) => Some(Finding::bad(subject, report::chain(&error), "bursar init")),
        (_, Err(error)) => Some(Finding::bad(subject, report::chain(&error), "bursar ledger verify")),
    }
}

async fn allowed(client: &kube::Client, group: &str, resource: &str, verb: &str) -> kube::Result<bool> {
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                group: Some(group.to_owned()),
                resource: Some(resource.to_owned()),
                verb: Some(verb.to_owned()),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let answer = Api::all(client.clone()).create(&PostParams::default(), &review).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

/// Whether homes can be reached.
pub(super) async fn homes(settings: &Settings) -> Vec<Finding> {
    let socket = &settings.homes.socket;
    let mut findings = vec![match tokio::net::UnixStream::connect(socket).await {
        Ok(_) => Finding::good("homes", format!("bursar-homed listens at {}", socket.display())),
        Err(error) => {
            let text = format!("bursar-homed does not listen at {}: {error}", socket.display());
            Finding::bad("homes", text, "systemctl enable --now bursar-homed.socket")
        }
    }];
    for prefix in &settings.homes.prefixes {
        let subject = format!("homes beneath {}", prefix.display());
        let used = settings.policy.classes.values().filter_map(|class| class.home.as_ref());
        if !used.clone().any(|home| home.prefix.starts_with(prefix)) {
            continue;
        }
        findings.push(match tokio::time::timeout(PATIENCE, tokio::fs::metadata(prefix)).await {
            Ok(Ok(found)) if found.is_dir() => Finding::good(&subject, "there"),
            Ok(Ok(_)) => Finding::bad(&subject, "is no folder", "see homes.prefixes"),
            Ok(Err(error)) => Finding::bad(&subject, error.to_string(), "mount it, or see homes.prefixes"),
            Err(_) => Finding::bad(&subject, "no answer within 10 s", "see the file server"),
        });
    }
    findings
}

/// Whether the daemon runs.
pub(super) async fn daemon(settings: &Settings) -> Finding {
    let answer = match ControlClient::new(&settings.control_socket) {
        Ok(client) => client.status().await.map(|_| ()),
        Err(error) => Err(error),
    };
    let socket = settings.control_socket.display();
    match answer {
        Ok(()) => Finding::good("daemon", format!("answers at {socket}")),
        Err(ClientError::Absent { .. }) => {
            Finding::bad("daemon", format!("does not answer at {socket}"), "systemctl enable --now bursard")
        }
        Err(error) => Finding::bad("daemon", report::chain(&error), "journalctl -u bursard"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_compared_by_the_date_of_an_answer() {
        let now: Timestamp = "2026-11-21T06:00:00Z".parse().expect("a time");
        assert_eq!(skew("Sat, 21 Nov 2026 06:01:00 GMT", now), Some(60));
        assert_eq!(skew("yesterday", now), None);
    }

    #[test]
    fn outside_webhook_is_to_be_written_anew_30_days_before_its_end() {
        let ends: Timestamp = "2026-12-21T06:00:00Z".parse().expect("a time");
        let url = Some("https://hook.example.org:9443".to_owned());
        let found = |now: &str, is_given| {
            let cluster = ClusterName("prod".to_owned());
            installed("webhook".to_owned(), &cluster, (&url, Some(ends)), is_given, now.parse().expect("a time"))
        };
        let again = "bursar webhook install --cluster prod --url https://hook.example.org:9443 --write FOLDER";
        assert_eq!(found("2026-11-21T05:59:59Z", true).cure, None);
        let soon = found("2026-11-21T06:00:00Z", true);
        assert_eq!(soon.cure.as_deref(), Some(again));
        assert_eq!(soon.text, "its files are good until 2026-12-21T06:00:00Z");
        assert_eq!(found("2026-11-20T06:00:00Z", false).text, "it has rules of an older configuration");
    }
}
