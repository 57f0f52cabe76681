//! What a holder proves itself with, and where it is put: certificate subject, kubeconfig shape, home. PURE: no
//! runtime, no client, no file system, no clock.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{DesiredCredential, HomeTarget, Subject, generation_group};
use crate::identity::NamespaceName;
use crate::ledger::Account;
use crate::observed::digest::digest;
use crate::policy::{Cluster, CredentialRule, Endpoint, HomeRule};

/// The certificate's subject (§5). Never `system:`; a tool and a user of one name are two subjects.
#[must_use]
pub fn subject(account: &Account, generation: u64) -> Subject {
    let name = account.account_name();
    Subject {
        common_name: name.to_string(),
        kind_group: format!("bursar:{}s", account.kind),
        generation_group: generation_group(&name, generation),
        serial_number: account.id.0.clone(),
    }
}

/// The credential of an account in a cluster, in whose contexts `namespace` is the default.
#[must_use]
pub fn credential(
    account: &Account,
    rule: &CredentialRule,
    cluster: &Cluster,
    namespace: Option<&NamespaceName>,
    generation: u64,
) -> DesiredCredential {
    let endpoints: BTreeMap<String, Endpoint> = rule
        .endpoints
        .iter()
        .filter_map(|name| cluster.endpoints.get(name).map(|endpoint| (name.clone(), endpoint.clone())))
        .collect();
    let first = rule.endpoints.first().filter(|_| !endpoints.contains_key(&cluster.default_endpoint));
    let default_endpoint = first.unwrap_or(&cluster.default_endpoint).clone();
    let subject = subject(account, generation);
    let digest = digest(&json!({
        "common_name": subject.common_name,
        "kind_group": subject.kind_group,
        "serial_number": subject.serial_number,
        "lifetime": rule.lifetime.as_secs(),
        "endpoints": endpoints.iter().map(|(name, endpoint)| (name, shape(endpoint))).collect::<BTreeMap<_, _>>(),
        "default_endpoint": default_endpoint,
        "namespace": namespace,
    }));
    DesiredCredential {
        subject,
        lifetime: rule.lifetime,
        endpoints,
        default_endpoint,
        namespace: namespace.cloned(),
        digest,
    }
}

/// Destructured, so that a new field of an endpoint cannot be forgotten.
fn shape(endpoint: &Endpoint) -> Value {
    let Endpoint { url, ca_pem, tls_server_name, proxy } = endpoint;
    json!({"url": url, "ca": ca_pem, "tls_server_name": tls_server_name, "proxy": proxy})
}

/// Where the kubeconfig goes; nowhere for an account without a uid or a home.
#[must_use]
pub fn home(account: &Account, rule: &HomeRule) -> Option<HomeTarget> {
    Some(HomeTarget {
        home: account.home.clone()?,
        posix: account.posix.clone()?,
        kubeconfig: rule.kubeconfig.clone(),
        create: rule.create,
    })
}
