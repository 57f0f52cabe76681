//! Certificates and tokens that were issued, and their deliveries to homes.

use std::path::{Path, PathBuf};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::change::Change;
use super::{LedgerState, Lifecycle};
use crate::identity::{AccountId, ClusterName, HostName};
use crate::packed_text::DigestText;
use crate::policy::DAEMON_USER;

/// A certificate or token that was issued and delivered. Its key is not stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Certificate {
    /// The `credential-id` in the API server's audit events: for a certificate, the SHA-256 of its DER in hex; for a
    /// token, its `jti`.
    pub fingerprint: DigestText,
    /// The generation in the subject's generation group, or in the name of the service account.
    pub generation: u64,
    /// The name by which the API server knows the holder: the common name at the time of issue, or
    /// `system:serviceaccount:NAMESPACE:NAME`.
    pub subject: String,
    /// The beginning of the validity, as the certificate or token has it.
    pub not_before: Timestamp,
    /// The end of the validity, as the certificate or token has it.
    pub not_after: Timestamp,
    /// When the renewal is due: after 2/3 of the real lifetime, with jitter.
    pub renew_after: Timestamp,
    /// `metadata.uid` of the Secret that a token is bound to; `None` for a certificate.
    pub bound_to: Option<String>,
}

/// A certificate that was signed for a request in the daemon's name that the daemon did not make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnknownCertificate {
    /// The subject, end, request and fingerprint, for administrators.
    pub text: String,
    /// When it was first seen.
    pub since: Timestamp,
    pub not_after: Timestamp,
}

impl UnknownCertificate {
    /// Returns the text of a certificate. A request's name contains no comma, so the last `, good until` ends
    /// `subject`.
    #[must_use]
    pub fn text(subject: &str, not_after: Timestamp, request: &str, fingerprint: &str) -> String {
        format!("{subject}, good until {not_after:.0} (request {request}, X509SHA256={fingerprint})")
    }

    /// Whether the certificate belongs to a daemon with another ledger. Such a certificate has rights only through a
    /// group that names the other ledger, so a takeover has ended them. Every other certificate has the rights of its
    /// name until it expires.
    fn is_of_a_former_daemon(&self, ledger_id: &str) -> bool {
        let subject = self.text.rsplit_once(", good until ").map(|(subject, _)| subject);
        let of_daemon = format!("CN={DAEMON_USER}, O={DAEMON_USER}#");
        subject
            .and_then(|subject| subject.strip_prefix(&of_daemon))
            .is_some_and(|ledger| ledger != ledger_id && !ledger.contains(','))
    }
}

/// The key of a credential. An account has one credential in each cluster or, if hosts have credentials of their own,
/// one for each of these hosts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CredentialKey {
    #[serde(rename = "account_id")]
    pub account: AccountId,
    /// The cluster that accepts the credential.
    pub cluster: ClusterName,
    /// The host that the credential is for.
    pub host: HostName,
}

impl CredentialKey {
    /// Returns the key of a credential that is not for a particular host.
    #[must_use]
    pub fn new(account: AccountId, cluster: ClusterName) -> Self {
        Self { account, cluster, host: HostName::any() }
    }

    /// Returns the key that sorts before all other keys of an account.
    fn first_of(account: &AccountId) -> Self {
        Self::new(account.clone(), ClusterName::default())
    }

    /// Returns the key of the credential for one host.
    #[must_use]
    pub fn on(self, host: &HostName) -> Self {
        Self { host: host.clone(), ..self }
    }
}

/// A file that was delivered to a home: a kubeconfig or SSH keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    pub path: PathBuf,
    /// The home, or the folder of a host, that the file is in. `None` in rows of older versions, which means the
    /// account's home.
    pub home: Option<PathBuf>,
    /// The mount point of the file system that had the home when it was last checked.
    pub mount: Option<PathBuf>,
    /// Digest (hex SHA-256) of what was delivered, without the key: endpoints, names, namespace, fingerprint.
    pub digest: DigestText,
    /// When the file was written.
    pub at: Timestamp,
    /// When the file was last found correct, or was written. `None` if it was found broken and must be written again.
    pub checked_at: Option<Timestamp>,
}

/// The prefix of [`Delivery::digest`] if the file has no credential. The views in the database use it too.
const NOTICE: &str = "notice:";
/// [`Delivery::digest`] if our entries were removed. The row lasts until the last inspection after the removal.
const REMOVED: &str = "notice:removed";
/// How long the row of a removal is kept at most. Its inspections are repeated while they fail, but a home or an account
/// may be gone for good. A day is enough to start `bursar-homed` or a file server again.
const REMOVED_KEPT: SignedDuration = SignedDuration::from_hours(24);

impl Delivery {
    /// Returns the digest of a delivered notice.
    #[must_use]
    pub fn notice(digest: &str) -> String {
        format!("{NOTICE}{digest}")
    }

    /// Whether the file is a notice of a suspension instead of a credential.
    #[must_use]
    pub fn is_notice(&self) -> bool {
        !self.may_hold_a_credential() && !self.is_removed()
    }

    /// Returns the row after the removal of our entries.
    #[must_use]
    pub fn removed(self, now: Timestamp) -> Self {
        Self { digest: REMOVED.into(), at: now, checked_at: Some(now), ..self }
    }

    /// Whether our entries were removed from the file.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.digest == REMOVED
    }

    /// Whether a credential was written into the file, and neither replaced by a notice nor removed.
    #[must_use]
    pub fn may_hold_a_credential(&self) -> bool {
        !self.digest.unpacked().is_some_and(|text| text.starts_with(NOTICE))
    }

    /// Whether this row may be replaced by the row of a credential that is about to be written into `file`. It must not
    /// be replaced if it leads to a credential, or to entries in another file.
    #[must_use]
    pub fn gives_way_to(&self, file: &Path) -> bool {
        self.is_removed() || (self.is_notice() && self.path == file)
    }

    /// Returns the row for the time between the decision to write the file and the answer of `bursar-homed`.
    #[must_use]
    pub fn pending(self) -> Self {
        Self { digest: "".into(), checked_at: None, ..self }
    }

    /// Whether the file may have been written, but the answer is not recorded.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.digest.is_empty()
    }
}

impl LedgerState {
    /// Returns when the first valid certificate expires. Tokens are left out, because they expire every hour.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Timestamp> {
        let certificates = self.good().filter(|certificate| certificate.bound_to.is_none());
        certificates.map(|certificate| certificate.not_after).min()
    }

    /// Returns since when the renewal of a valid certificate or token is due; `None` if none is.
    #[must_use]
    pub fn overdue_since(&self, now: Timestamp) -> Option<Timestamp> {
        self.good().map(|certificate| certificate.renew_after).filter(|due| *due <= now).min()
    }

    /// Returns the changes that forget removals whose inspections did not end in time. If the clock was set back, a
    /// removal far in the future is forgotten too.
    #[must_use]
    pub fn old_removals(&self, now: Timestamp) -> Vec<Change> {
        let is_old =
            |delivery: &Delivery| delivery.is_removed() && now.duration_since(delivery.at).abs() > REMOVED_KEPT;
        let old = self.deliveries.iter().filter(|(_, delivery)| is_old(delivery));
        old.map(|(key, _)| Change::Delivery(key.clone(), None)).collect()
    }

    /// Returns the certificates and tokens of an account, sorted by cluster and host.
    pub fn certificates_of<'a>(
        &'a self,
        account: &'a AccountId,
    ) -> impl Iterator<Item = (&'a CredentialKey, &'a Certificate)> {
        self.certificates.range(CredentialKey::first_of(account)..).take_while(move |(key, _)| key.account == *account)
    }

    /// Returns the delivered kubeconfigs of an account, sorted by cluster and host.
    pub fn deliveries_of<'a>(
        &'a self,
        account: &'a AccountId,
    ) -> impl Iterator<Item = (&'a CredentialKey, &'a Delivery)> {
        self.deliveries.range(CredentialKey::first_of(account)..).take_while(move |(key, _)| key.account == *account)
    }

    /// Returns the unknown certificates that may still give rights.
    pub fn valid_unknown_certificates(
        &self,
        now: Timestamp,
    ) -> impl Iterator<Item = (&ClusterName, &UnknownCertificate)> {
        let valid = self.unknown_certificates.iter();
        let valid = valid.filter(move |(_, it)| it.not_after > now && !it.is_of_a_former_daemon(&self.ledger_id));
        valid.map(|((cluster, _), unknown)| (cluster, unknown))
    }

    /// Returns the valid certificates and tokens (view `expiring_certificates`). Those of a suspended account or of an
    /// older generation are already invalid, and are not renewed.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_takeover_ends_only_unknown_certificates_of_the_former_daemon() {
        let mut ledger = LedgerState { ledger_id: "former".to_owned(), ..LedgerState::default() };
        let subjects = [
            "CN=bursar:daemon, O=bursar:daemon#former",
            "CN=bursar:daemon, O=bursar:daemon#former, O=kubeadm:cluster-admins",
            "CN=bursar:daemon, O=bursar:daemon#former, good until 2026-01-01T00:00:00Z (request x, O=system:nodes",
            "CN=mallory, O=bursar:daemon#former",
            "CN=system:kube-controller-manager",
        ];
        let now = Timestamp::UNIX_EPOCH;
        let not_after = now + jiff::SignedDuration::from_hours(24);
        let recorded = subjects.iter().enumerate().map(|(number, subject)| {
            let text = UnknownCertificate::text(subject, not_after, "csr-1", "00ff");
            let unknown = UnknownCertificate { text, since: now, not_after };
            Change::UnknownCertificate(ClusterName("prod".into()), number.to_string(), unknown)
        });
        ledger.apply_all(&recorded.collect::<Vec<_>>());
        assert_eq!(ledger.valid_unknown_certificates(now).count(), subjects.len());
        ledger.apply_all(&[Change::LedgerId("another".to_owned())]);
        let left: Vec<&str> = ledger.valid_unknown_certificates(now).map(|(_, it)| it.text.as_str()).collect();
        assert_eq!(left.len(), subjects.len() - 1, "{left:?}");
        assert!(left.iter().zip(&subjects[1..]).all(|(text, subject)| text.starts_with(subject)), "{left:?}");
        assert_eq!(ledger.valid_unknown_certificates(not_after).count(), 0);
    }

    #[test]
    fn the_row_of_a_new_credential_replaces_no_row_that_leads_to_another_file() {
        let [file, other] = ["/home/foo/.kube/config", "/data/foo/.kube/config"].map(Path::new);
        let (digest, at) = (DigestText::from("00ff"), Timestamp::UNIX_EPOCH);
        let delivery = Delivery { path: file.to_owned(), home: None, mount: None, digest, at, checked_at: Some(at) };
        let notice = Delivery { digest: Delivery::notice("00ff").as_str().into(), ..delivery.clone() };
        assert!(notice.gives_way_to(file) && !notice.gives_way_to(other));
        assert!([file, other].iter().all(|file| !delivery.gives_way_to(file)));
        let removed = delivery.removed(at);
        assert!([file, other].iter().all(|file| removed.gives_way_to(file)));
    }
}
