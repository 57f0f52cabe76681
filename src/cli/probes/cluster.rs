//! Checks whether a cluster is reached through each of its endpoints, and whether the daemon has the rights that it
//! needs.

use kube::config::AuthInfo;

use super::confinement::confinement;
use super::kinds::kinds;
use super::webhook::webhook;
use super::{Finding, authority};
use crate::bootstrap::AccessError;
use crate::bootstrap::webhook::{Absent, absent, is_service_address};
use crate::cli::context::ledger_of;
use crate::errors::chain;
use crate::execute::endpoint::{self, Verdict};
use crate::identity::ClusterName;
use crate::inventory::adopted::{self, Weaker};
use crate::ledger::LedgerState;
use crate::observed::adopted_watch;
use crate::policy::{Cluster, Endpoint, Policy};
use crate::settings::{self, Settings};
use crate::store::is_before_init;
use crate::{bootstrap, daemon};

/// The greatest tolerated difference of clocks, in seconds. With a larger one, new certificates may be "not yet valid":
/// the Kubernetes signer backdates them by five minutes, but other authorities by less.
const SKEW: i64 = 60;
/// The number of missing rights that are named. If more are missing, they have the same cause.
const NAMED: usize = 8;

/// Checks one cluster through each endpoint, and as the daemon.
pub(crate) async fn cluster(settings: &Settings, name: &ClusterName, cluster: &Cluster) -> Vec<Finding> {
    let own = bootstrap::credential(&settings.clusters[name]).await.ok();
    let mut findings = Vec::new();
    for (endpoint_name, endpoint) in &cluster.endpoints {
        let subject = format!("cluster {name}, endpoint {endpoint_name}");
        findings.push(authority::bundle(&subject, endpoint).await);
        findings.push(reached(&subject, endpoint, own.as_ref()).await);
    }
    findings.extend(as_daemon(settings, name).await);
    findings
}

/// Requests the version, which needs no account, and compares the clocks by the time in the answer. Then tries the
/// daemon's credential.
async fn reached(subject: &str, endpoint: &Endpoint, own: Option<&AuthInfo>) -> Finding {
    let url = &endpoint.url;
    let remedy = "see url, ca, tls_server_name and proxy of this endpoint, and the firewall";
    let there = match endpoint::time(endpoint).await {
        Ok(there) => there,
        Err(why) => return Finding::bad(subject, format!("{url}: {why}"), remedy),
    };
    let skew = there.map(|there| there.as_second() - daemon::now().as_second());
    if let Some(skew) = skew.filter(|skew| skew.abs() > SKEW) {
        return Finding::bad(
            subject,
            format!("{url} answers; its clock differs from this host's by {skew} s"),
            "let both hosts follow the same time servers (timedatectl)",
        );
    }
    let clocks = if skew.is_some() { ", clocks agree" } else { "" };
    let Some(own) = own else { return Finding::good(subject, format!("{url} answers{clocks}")) };
    match endpoint::verdict(endpoint, own.clone(), None).await {
        Verdict::Accepted => Finding::good(subject, format!("{url} answers and knows the daemon{clocks}")),
        Verdict::NotReached(why) => Finding::bad(subject, format!("{url}: {why}"), remedy),
        Verdict::Refused(why) => Finding::bad(
            subject,
            format!("{url} answers, but refuses the daemon's credential: {why}"),
            "a proxy before the API server must pass TLS through, and the API server must trust the signer (--client-ca-file)",
        ),
    }
}

async fn as_daemon(settings: &Settings, name: &ClusterName) -> Vec<Finding> {
    let subject = format!("cluster {name}, as the daemon");
    let init = format!("bursar init --admin-kubeconfig FILE --cluster {name}");
    if let Ok(Some((_, ends))) = bootstrap::own_certificate(&settings.clusters[name])
        && ends <= daemon::now()
    {
        return vec![Finding::bad(&subject, format!("the daemon's own certificate expired at {ends:.0}"), init)];
    }
    let client = match bootstrap::client(&settings.clusters[name]).await {
        Ok(client) => client,
        Err(error) => return vec![Finding::bad(&subject, chain(&error), init)],
    };
    let ledger = match ledger_of(settings).await {
        Ok(ledger) => ledger,
        Err(failure) if is_before_init(&settings.state_dir) => return vec![Finding::bad(&subject, failure.text, init)],
        // `super::ledger` reports a ledger that was lost or cannot be read.
        Err(_) => return Vec::new(),
    };
    if let Some(finding) = owned(&subject, &client, &ledger, init.clone()).await {
        return vec![finding];
    }
    match bootstrap::missing(&client, &settings.policy, name, &ledger).await {
        Err(error) => vec![Finding::bad(&subject, chain(&error), "see the API server's load and log")],
        Ok(missing) if !missing.is_empty() => vec![Finding::bad(&subject, may_not(&missing), init)],
        Ok(_) => {
            let mut findings = vec![Finding::good(&subject, "has all the rights that it needs")];
            findings.extend(confinement(settings, name, &client, (&ledger, &init)).await);
            findings.extend(kinds(&settings.policy, name, &client, &init).await);
            findings
                .extend(absent(&settings.policy, name, &client).await.into_iter().map(|absent| lacks(name, &absent)));
            findings.extend(levels(&settings.policy, name, &client, &init).await);
            findings.extend(services(settings, name, &client).await);
            findings.extend(webhook(settings, name, &client, init).await);
            findings
        }
    }
}

/// Returns findings about adopted namespaces with a weaker level of Pod Security than their class demands.
async fn levels(policy: &Policy, name: &ClusterName, client: &kube::Client, init: &str) -> Vec<Finding> {
    let subject = format!("cluster {name}, adopted namespaces");
    match adopted_watch::listed(client, &adopted::wanted(policy, name)).await {
        Ok(found) => {
            let weaker = adopted::weaker(policy, name, &found).into_iter();
            weaker.map(|Weaker { what, remedy }| Finding::bad(&subject, what, remedy)).collect()
        }
        Err(error) => vec![Finding::bad(&subject, chain(&error), init)],
    }
}

/// Returns findings about servers whose address belongs to a Service of the cluster, so that rules for pods may reach
/// them. The namespace is not known, so this is not counted as a problem.
async fn services(settings: &Settings, name: &ClusterName, client: &kube::Client) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (class, server) in settings::servers_by_address(settings, name) {
        for address in server.addresses {
            if is_service_address(client, address).await {
                let text = format!(
                    "its pods may reach {}: {address} belongs to a Service of cluster {name}, and the class has rules for \
                     pods of other namespaces; to have them checked, name the server as SERVICE.NAMESPACE.svc",
                    server.name
                );
                findings.push(Finding::good(format!("class {class}, network"), text));
            }
        }
    }
    findings
}

/// Returns the finding about a name that `scheduling` of a class lists and the cluster does not know. If the class has
/// several clusters, that can be right, because only some of them may have it.
fn lacks(cluster: &ClusterName, absent: &Absent<'_>) -> Finding {
    let Absent { class, key, what } = absent;
    let subject = format!("cluster {cluster}, scheduling of class {}", class.name);
    let text = format!("there is no {what}, which {key} lists, so pods that name it are refused");
    if class.clusters.len() > 1 {
        return Finding::good(subject, text);
    }
    let remedy = format!("create it, or remove it from class.{}.admission.scheduling.{key}", class.name);
    Finding::bad(subject, text, remedy)
}

fn may_not(missing: &[String]) -> String {
    let named = missing.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    match missing.len().saturating_sub(NAMED) {
        0 => format!("may not {named}"),
        more => format!("may not {named}, and {more} more"),
    }
}

/// Returns a finding if the cluster does not belong to this ledger.
async fn owned(subject: &str, client: &kube::Client, ledger: &LedgerState, init: String) -> Option<Finding> {
    let own = &ledger.ledger_id;
    match bootstrap::owner(client).await {
        Ok(Some(owner)) if owner == *own => None,
        Ok(Some(owner)) => Some(Finding::bad(
            subject,
            format!("the cluster belongs to ledger {owner}, but the ledger of this host is {own}"),
            "bursar takeover, after the other daemon was stopped",
        )),
        Ok(None) => Some(Finding::bad(subject, "the cluster belongs to no ledger", init)),
        Err(error) => Some(unasked(subject, &error, init)),
    }
}

/// Returns the finding about a request of the daemon that failed. `init` can help only if the API server answered.
fn unasked(subject: &str, error: &AccessError, init: String) -> Finding {
    let unreached = "see `server` in the daemon's kubeconfig, the firewall, and whether the API server runs";
    Finding::bad(subject, chain(error), if error.is_refusal() { init } else { unreached.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_does_not_answer_needs_no_init() {
        let remedy = |error: &AccessError| unasked("cluster prod", error, "bursar init".to_owned()).remedy;
        let silent = AccessError::TimedOut { what: "ConfigMap bursar-owner".to_owned() };
        assert!(remedy(&silent).is_some_and(|remedy| remedy.contains("whether the API server runs")));
        let status = kube::core::Status::failure("x cannot get", "Forbidden").with_code(403);
        let source = Box::new(kube::Error::Api(Box::new(status)));
        let refused = AccessError::Api { what: "ConfigMap bursar-owner".to_owned(), source };
        assert_eq!(remedy(&refused).as_deref(), Some("bursar init"));
    }

    #[test]
    fn at_most_eight_missing_rights_are_named() {
        let missing: Vec<String> = (0..10).map(|number| format!("get things{number}")).collect();
        assert_eq!(may_not(&missing[..1]), "may not get things0");
        assert!(may_not(&missing).ends_with("get things7, and 2 more"));
    }
}
