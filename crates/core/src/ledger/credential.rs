//! What was issued and delivered.

use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{LedgerState, Lifecycle};
use crate::identity::{AccountId, ClusterName, HostName};

/// A certificate that was issued and delivered. The key is nowhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Certificate {
    /// What the API server's audit events call `credential-id`: of a certificate the SHA-256 of its DER, hex; of a token
    /// its `jti`.
    pub fingerprint: String,
    /// Generation of the subject's generation group, or of the service account.
    pub generation: u64,
    /// The name that the API server knows its holder by: the common name at the time of issue, or
    /// `system:serviceaccount:NAMESPACE:NAME`.
    pub subject: String,
    /// From the certificate or token itself.
    pub not_before: Timestamp,
    /// From the certificate or token itself.
    pub not_after: Timestamp,
    /// 2/3 of the real lifetime, jittered.
    pub renew_after: Timestamp,
    /// `metadata.uid` of the Secret that a token ends with; of a certificate none.
    pub bound_to: Option<String>,
}

/// What an account has one credential of: a cluster, and there each host that has one of its own.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CredentialKey {
    /// Whose.
    #[serde(rename = "account_id")]
    pub account: AccountId,
    /// Where it is good.
    pub cluster: ClusterName,
    /// For which host.
    pub host: HostName,
}

impl CredentialKey {
    /// The key of a credential that is for no host in particular.
    #[must_use]
    pub fn new(account: AccountId, cluster: ClusterName) -> Self {
        Self { account, cluster, host: HostName::any() }
    }

    /// The lowest of an account.
    fn first_of(account: &AccountId) -> Self {
        Self::new(account.clone(), ClusterName(String::new()))
    }

    /// The key of the credential for one host.
    #[must_use]
    pub fn on(self, host: &HostName) -> Self {
        Self { host: host.clone(), ..self }
    }
}

/// A kubeconfig that stands in a home.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    /// The file.
    pub path: PathBuf,
    /// The folder of a host that it is in as in a home; absent: the account's home.
    pub home: Option<PathBuf>,
    /// The mount point of the file system that the home was on when it was last seen.
    pub mount: Option<PathBuf>,
    /// Digest (hex SHA-256) of what we put in, without the key: endpoints, names, namespace, fingerprint.
    pub digest: String,
    /// When it was written.
    pub at: Timestamp,
    /// When it was last seen to be correct, its own writing included; `None` if it was seen broken and must be written
    /// again.
    pub checked_at: Option<Timestamp>,
}

/// How the digest of a delivery begins that is no credential, but tells people that they are suspended.
const NOTICE: &str = "notice:";

impl Delivery {
    /// The digest of a notice.
    #[must_use]
    pub fn notice(digest: &str) -> String {
        format!("{NOTICE}{digest}")
    }

    /// Whether what stands there is no credential, but tells people that they are suspended.
    #[must_use]
    pub fn is_notice(&self) -> bool {
        self.digest.starts_with(NOTICE)
    }
}

impl LedgerState {
    /// When the first of the certificates that are good ends. Tokens end every hour.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Timestamp> {
        let certificates = self.good().filter(|certificate| certificate.bound_to.is_none());
        certificates.map(|certificate| certificate.not_after).min()
    }

    /// Since when the renewal of a certificate or token that is good is due, if one is.
    #[must_use]
    pub fn overdue_since(&self, now: Timestamp) -> Option<Timestamp> {
        self.good().map(|certificate| certificate.renew_after).filter(|due| *due <= now).min()
    }

    /// Certificates and tokens of an account, sorted by cluster and host.
    pub fn certificates_of<'a>(
        &'a self,
        account: &'a AccountId,
    ) -> impl Iterator<Item = (&'a CredentialKey, &'a Certificate)> {
        self.certificates.range(CredentialKey::first_of(account)..).take_while(move |(key, _)| key.account == *account)
    }

    /// Files with a credential of an account, sorted by cluster and host.
    pub fn deliveries_of<'a>(
        &'a self,
        account: &'a AccountId,
    ) -> impl Iterator<Item = (&'a CredentialKey, &'a Delivery)> {
        self.deliveries.range(CredentialKey::first_of(account)..).take_while(move |(key, _)| key.account == *account)
    }

    /// Certificates and tokens (view `expiring_certificates`): one of a suspended account or of an older generation is
    /// worth nothing already, and nobody renews it.
    fn good(&self) -> impl Iterator<Item = &Certificate> {
        let good = self.certificates.iter().filter(|(key, certificate)| {
            let account = self.accounts.get(&key.account);
            account.is_some_and(|account| {
                account.state == Lifecycle::Active && account.generation == certificate.generation
            })
        });
        good.map(|(_, certificate)| certificate)
    }
}
