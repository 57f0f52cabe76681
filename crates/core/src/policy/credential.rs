//! The kinds of credentials, and the credential settings of a class.

use std::path::PathBuf;
use std::time::Duration;

use bursar_protocol::Grant;
use serde::Serialize;

use crate::identity::HostName;

/// The longest life of a token that may be configured. The admission policy does not let the daemon request a longer
/// life.
pub const TOKEN_LIFETIME_MAX: Duration = Duration::from_hours(30 * 24);

/// The kind of an account's credential, and the endpoints for which it is delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CredentialRule {
    pub kind: CredentialKind,
    /// Names of the cluster's endpoints. Each becomes one context of the kubeconfig.
    pub endpoints: Vec<String>,
}

/// The kinds of credentials. The kind alone decides the subject of bindings, the issuer of the credential, and what is
/// written to the home.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CredentialKind {
    /// A client certificate. The subject of bindings is the group of its generation.
    Certificate {
        /// The lifetime that the daemon requests (`spec.expirationSeconds`). The signer may grant less.
        lifetime: Duration,
    },
    /// A token for each host outside the cluster. The subject of bindings is a service account in the tenant's
    /// namespace; each generation has its own.
    ServiceAccount {
        /// The lifetime that the daemon requests (`TokenRequest`, `spec.expirationSeconds`). The API server may grant
        /// less.
        lifetime: Duration,
        /// The hosts. Each gets a token of its own.
        hosts: Vec<HostName>,
        /// The directory of the files, with `{host}` and `{name}`; `None` if they are in the home.
        directory: Option<PathBuf>,
    },
    /// Bursar issues nothing: kubelogin gets a token from an issuer that the API server trusts. The subject of bindings
    /// is a user.
    Oidc(OidcRule),
}

/// How people log in at an OIDC issuer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OidcRule {
    /// `--oidc-issuer-url`.
    pub issuer: String,
    /// `--oidc-client-id`. The client is public: it has no secret.
    pub client_id: String,
    /// One `--oidc-extra-scope` for each.
    pub scopes: Vec<String>,
    /// `--grant-type`.
    pub grant: Grant,
    /// The person's username in the API server, with `{name}`.
    pub user: String,
}

impl CredentialRule {
    /// Returns the hosts, each of which has a credential of its own.
    #[must_use]
    pub fn hosts(&self) -> &[HostName] {
        match &self.kind {
            CredentialKind::ServiceAccount { hosts, .. } => hosts,
            CredentialKind::Certificate { .. } | CredentialKind::Oidc(_) => &[],
        }
    }
}
