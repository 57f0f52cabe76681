//! The kinds of credentials, and what a class says of its own.

use std::path::PathBuf;
use std::time::Duration;

use bursar_protocol::Grant;
use serde::Serialize;

use crate::identity::HostName;

/// The longest life of a token that may be configured; the admission policy lets the daemon ask for no more.
pub const TOKEN_LIFETIME_MAX: Duration = Duration::from_hours(30 * 24);

/// What holders prove themselves with, and the endpoints it is delivered for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CredentialRule {
    /// With what.
    pub kind: CredentialKind,
    /// Names of the cluster's endpoints, one context each.
    pub endpoints: Vec<String>,
}

/// The kinds of credentials, and what differs between them. What bindings name as their subject, what is asked of whom,
/// and what stands in the home follow from this and nothing else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CredentialKind {
    /// A client certificate. Subject of the bindings: the generation group.
    Certificate {
        /// Asked of the signer (`spec.expirationSeconds`); it may grant less.
        lifetime: Duration,
    },
    /// A token for each host outside the cluster. Subject: a service account of the tenant's namespace, of one
    /// generation.
    ServiceAccount {
        /// Asked of the API server (`TokenRequest`, `spec.expirationSeconds`); it may grant less.
        lifetime: Duration,
        /// Who has one.
        hosts: Vec<HostName>,
        /// Where the files go instead of the home, with `{host}` and `{name}`.
        directory: Option<PathBuf>,
    },
    /// None of ours: kubelogin asks an issuer whom the API server trusts. Subject: a user by a template.
    Oidc(OidcRule),
}

/// How people prove themselves to an OIDC issuer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OidcRule {
    /// `--oidc-issuer-url`.
    pub issuer: String,
    /// `--oidc-client-id`; the client is a public one.
    pub client_id: String,
    /// `--oidc-extra-scope`, each.
    pub scopes: Vec<String>,
    /// `--grant-type`.
    pub grant: Grant,
    /// The name that the API server knows somebody by, with `{name}`.
    pub user: String,
}

impl CredentialRule {
    /// The hosts that have one each.
    #[must_use]
    pub fn hosts(&self) -> &[HostName] {
        match &self.kind {
            CredentialKind::ServiceAccount { hosts, .. } => hosts,
            CredentialKind::Certificate { .. } | CredentialKind::Oidc(_) => &[],
        }
    }
}
