//! The three kinds of credentials: how the holder proves its identity, which subject bindings name, and where the
//! kubeconfig is put.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};

use super::{DesiredCredential, DesiredHome, Place, Proof, Subject, TokenOf, generation_group};
use crate::contract::SERVICE_ACCOUNT_PREFIX;
use crate::digest::digest;
use crate::identity::{HostName, NamespaceName};
use crate::kinds::{ManagedKind, ObjectKey, ObjectKind};
use crate::ledger::Account;
use crate::policy::{Cluster, CredentialKind, CredentialRule, Endpoint, HomeRule};

/// The prefix of the names of Secrets that tokens are bound to. The host follows.
pub const SECRET_PREFIX: &str = "bursar-host-";

/// Returns the generation in the name of one of our service accounts.
#[must_use]
pub fn of_service_account(name: &str) -> Option<u64> {
    name.strip_prefix(SERVICE_ACCOUNT_PREFIX)?.parse().ok()
}

/// Returns the subject of the certificate. It never begins with `system:`, and a tool and a user with the same name
/// have different subjects.
#[must_use]
pub fn subject(account: &Account, generation: u64) -> Subject {
    let name = account.account_name();
    Subject {
        common_name: name.to_string(),
        kind_group: format!("bursar:{}s", account.kind),
        generation_group: generation_group(&name, generation),
        serial_number: account.id.0.to_string(),
    }
}

/// Returns the name of a generation's service account. A new generation gets a new service account, for which no token
/// exists yet.
#[must_use]
pub fn service_account(generation: u64) -> String {
    format!("{SERVICE_ACCOUNT_PREFIX}{generation}")
}

/// Returns the name of the Secret that the tokens of one host are bound to. The Secret is empty.
#[must_use]
pub fn secret(host: &HostName) -> String {
    format!("{SECRET_PREFIX}{host}")
}

/// Returns the subject by which bindings name the holders of an account's credential.
#[must_use]
pub fn holder(
    account: &Account,
    generation: u64,
    namespace: Option<&NamespaceName>,
    rule: Option<&CredentialRule>,
) -> Value {
    const GROUP: &str = "rbac.authorization.k8s.io";
    match (rule.map(|rule| &rule.kind), namespace) {
        (Some(CredentialKind::ServiceAccount { .. }), Some(namespace)) => {
            json!({"kind": "ServiceAccount", "name": service_account(generation), "namespace": namespace})
        }
        (Some(CredentialKind::Oidc(oidc)), _) => {
            json!({"apiGroup": GROUP, "kind": "User", "name": oidc.user.replace("{name}", &account.name)})
        }
        // A service account gets no rights outside its own namespace. So bindings in all other places name a group that
        // has no members.
        (None | Some(CredentialKind::Certificate { .. } | CredentialKind::ServiceAccount { .. }), _) => {
            let group = generation_group(&account.account_name(), generation);
            json!({"apiGroup": GROUP, "kind": "Group", "name": group})
        }
    }
}

/// Whether a subject is a service account. The token of a service account is for a machine, and is valid only for the
/// namespace of that account.
#[must_use]
pub fn is_service_account(subject: &Value) -> bool {
    subject["kind"] == ManagedKind::ServiceAccount.row().kind
}

/// Returns the objects that a service account credential needs in the namespace: the service account, and a Secret for
/// each host.
#[must_use]
pub fn objects(place: &Place<'_>, rule: &CredentialRule) -> Vec<Value> {
    let CredentialKind::ServiceAccount { hosts, .. } = &rule.kind else { return Vec::new() };
    let account = json!({
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": service_account(place.generation), "namespace": place.namespace},
        "automountServiceAccountToken": false,
    });
    let secrets = hosts.iter().map(|host| {
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": secret(host), "namespace": place.namespace},
            "type": "Opaque",
        })
    });
    std::iter::once(account).chain(secrets).collect()
}

/// Whether the object is a service account with a name that Bursar uses. If somebody else created it, they may hold
/// tokens for it.
#[must_use]
pub fn is_token_holder(key: &ObjectKey) -> bool {
    key.kind == ManagedKind::ServiceAccount && of_service_account(&key.name).is_some()
}

/// Whether the object is one of [`objects`].
#[must_use]
pub fn is_ours(key: &ObjectKey) -> bool {
    let ObjectKind::Managed(kind) = key.kind else { return false };
    match kind {
        ManagedKind::ServiceAccount => key.name.starts_with(SERVICE_ACCOUNT_PREFIX),
        ManagedKind::Secret => key.name.starts_with(SECRET_PREFIX),
        ManagedKind::Namespace
        | ManagedKind::RoleBinding
        | ManagedKind::ResourceQuota
        | ManagedKind::LimitRange
        | ManagedKind::PersistentVolume
        | ManagedKind::PersistentVolumeClaim
        | ManagedKind::NetworkPolicy
        | ManagedKind::ClusterRoleBinding => false,
    }
}

/// Returns the credentials of an account in a cluster: a single one, or one for each host. `namespace` is the default
/// of the contexts.
#[must_use]
pub fn credentials(
    account: &Account,
    rule: &CredentialRule,
    cluster: &Cluster,
    namespace: Option<&NamespaceName>,
    generation: u64,
) -> Vec<DesiredCredential> {
    let named = |name: &String| cluster.endpoints.get(name).map(|endpoint| (name.clone(), endpoint.clone()));
    let endpoints: Arc<BTreeMap<String, Endpoint>> = Arc::new(rule.endpoints.iter().filter_map(named).collect());
    let first = rule.endpoints.first().filter(|_| !endpoints.contains_key(&cluster.default_endpoint));
    let default_endpoint = first.unwrap_or(&cluster.default_endpoint).clone();
    let credential = |host: HostName, proof: Proof| {
        let mut shape = shape(&proof, &host);
        shape["endpoints"] =
            json!(endpoints.iter().map(|(name, endpoint)| (name, face(endpoint))).collect::<BTreeMap<_, _>>());
        shape["default_endpoint"] = json!(default_endpoint);
        shape["namespace"] = json!(namespace);
        DesiredCredential {
            proof,
            host,
            endpoints: Arc::clone(&endpoints),
            default_endpoint: default_endpoint.clone(),
            namespace: namespace.cloned(),
            digest: digest(&shape),
        }
    };
    match (&rule.kind, namespace) {
        (CredentialKind::Certificate { lifetime }, _) => {
            let subject = subject(account, generation);
            vec![credential(HostName::any(), Proof::Certificate { subject, lifetime: *lifetime })]
        }
        (CredentialKind::Oidc(oidc), _) => vec![credential(HostName::any(), Proof::Oidc(oidc.clone()))],
        (CredentialKind::ServiceAccount { lifetime, hosts, directory: _ }, Some(namespace)) => {
            let token = |host: &HostName| TokenOf {
                namespace: namespace.clone(),
                service_account: service_account(generation),
                secret: secret(host),
                lifetime: *lifetime,
            };
            hosts.iter().map(|host| credential(host.clone(), Proof::Token(token(host)))).collect()
        }
        (CredentialKind::ServiceAccount { .. }, None) => Vec::new(),
    }
}

/// Returns the parts of a kubeconfig that concern its holder, without the generation.
fn shape(proof: &Proof, host: &HostName) -> Value {
    match proof {
        Proof::Certificate { subject, lifetime } => json!({
            "common_name": subject.common_name,
            "kind_group": subject.kind_group,
            "serial_number": subject.serial_number,
            "lifetime": lifetime.as_secs(),
        }),
        Proof::Token(TokenOf { namespace: _, service_account: _, secret, lifetime }) => {
            json!({"secret": secret, "host": host, "lifetime": lifetime.as_secs()})
        }
        Proof::Oidc(oidc) => json!({"oidc": oidc}),
    }
}

/// The endpoint is destructured, so that a new field cannot be forgotten.
fn face(endpoint: &Endpoint) -> Value {
    let Endpoint { url, ca_pem, tls_server_name, proxy } = endpoint;
    json!({"url": url, "ca": ca_pem, "tls_server_name": tls_server_name, "proxy": proxy})
}

/// Returns where the kubeconfig is put; `None` if the account has no uid or no home.
#[must_use]
pub fn home(account: &Account, rule: &HomeRule, credential: Option<&CredentialRule>) -> Option<DesiredHome> {
    let directory = match credential.map(|rule| &rule.kind) {
        Some(CredentialKind::ServiceAccount { directory: Some(directory), .. }) => {
            let named = directory.to_string_lossy().replace("{name}", &account.kubernetes_name);
            Some(PathBuf::from(named))
        }
        _ => None,
    };
    Some(DesiredHome {
        home: directory.or_else(|| account.home.clone())?,
        posix: account.posix.clone()?,
        kubeconfig: rule.kubeconfig.clone(),
        create: rule.create,
        replace_unparsable: rule.replace_unparsable,
    })
}
