//! The certificate authorities that the API server trusts for the webhook. Bursar generates them, keeps them in the
//! state folder, and signs the webhook's certificates with them.
//!
//! An authority signs only after the API server has had time to trust it, and is trusted until it expires. A pod of the
//! webhook can therefore still present an older certificate without being rejected.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType, date_time_ymd,
};
use x509_parser::pem::Pem;
use zeroize::Zeroizing;

use crate::bootstrap::{AccessError, files};
use crate::certificate::{self, Issued};
use crate::identity::ClusterName;

/// An authority is valid for four years and replaced after two. A certificate for a year (outside the cluster)
/// therefore never outlives its authority.
const AUTHORITY: Duration = Duration::from_hours(4 * 365 * 24);
const REPLACED_AFTER: SignedDuration = SignedDuration::from_hours(2 * 365 * 24);
/// The lifetime of a certificate in the cluster. It is renewed after two thirds.
pub(super) const WITHIN: Duration = Duration::from_hours(30 * 24);
/// The lifetime of a certificate outside the cluster, which is not renewed automatically.
pub const OUTSIDE: Duration = Duration::from_hours(365 * 24);
/// Certificates are backdated by this time, so that a host whose clock is slow by less than this accepts them.
const BACKDATED: SignedDuration = SignedDuration::from_mins(5);
/// API servers apply a new configuration within seconds. An API server that works never needs an hour.
pub(super) const SETTLES: SignedDuration = SignedDuration::from_hours(1);

/// One of Bursar's certificate authorities.
struct Authority {
    pem: String,
    key: Zeroizing<String>,
    issued: Issued,
}

/// All authorities of this host, oldest first.
pub(super) struct Authorities {
    folder: PathBuf,
    own: Vec<Authority>,
}

/// A serving certificate of the webhook.
pub(super) struct Serving {
    pub(super) certificate: String,
    pub(super) key: Zeroizing<String>,
    pub(super) renew_after: Timestamp,
    pub(super) not_after: Timestamp,
}

impl Authorities {
    /// Loads the authorities in `state_dir`. Adds one if there is none, or if the newest one must be replaced.
    pub(super) fn open(state_dir: &Path, cluster: &ClusterName, now: Timestamp) -> Result<Self, AccessError> {
        let folder = state_dir.join("webhook").join(cluster.0.as_str());
        let mut own = Vec::new();
        let entries = std::fs::read_dir(&folder).into_iter().flatten().filter_map(Result::ok);
        // The name of a file is the time in seconds at which it was made.
        let names: BTreeSet<PathBuf> = entries.map(|entry| entry.path()).collect();
        for path in names.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "pem")) {
            let text = std::fs::read_to_string(&path).map(Zeroizing::new);
            let text = text.map_err(|source| AccessError::Read { path: path.clone(), source })?;
            let authority = authority(&text).ok_or(AccessError::Incomplete {
                path,
                what: "it is not a certificate authority of Bursar; move it away",
            })?;
            if authority.issued.not_after > now {
                own.push(authority);
            }
        }
        let mut authorities = Self { folder, own };
        if authorities.own.last().is_none_or(|newest| newest.issued.not_before + REPLACED_AFTER <= now) {
            authorities.make(cluster, now)?;
        }
        Ok(authorities)
    }

    fn make(&mut self, cluster: &ClusterName, now: Timestamp) -> Result<(), AccessError> {
        let made = new_authority(cluster, now).map_err(AccessError::Key)?;
        let text = Zeroizing::new(format!("{}{}", made.pem, made.key.as_str()));
        files::replace(&self.folder.join(format!("{:012}.pem", now.as_second())), text.as_bytes())?;
        self.own.push(made);
        Ok(())
    }

    /// Returns the authorities that the API server must trust: those of this host, and the unexpired authorities of
    /// `believed`, which the API server trusts already and whose files may be lost.
    pub(super) fn bundle(&self, believed: &str, now: Timestamp) -> String {
        let mut bundle: Vec<String> = self.own.iter().map(|authority| authority.pem.trim().to_owned()).collect();
        for pem in certificates(believed) {
            let ends = certificate::validity(pem.as_bytes()).map(|issued| issued.not_after);
            if ends.is_some_and(|ends| ends > now) && !bundle.contains(&pem) {
                bundle.push(pem);
            }
        }
        bundle.join("\n") + "\n"
    }

    /// Returns a certificate for `names`, signed by the newest authority that the API server has trusted for a while.
    /// If there is none, the oldest authority that it trusts signs. If the API server trusts only others, returns
    /// `None`, and the caller must wait. If `believed` is empty, no webhook is installed, and the oldest authority
    /// signs.
    pub(super) fn sign(
        &self,
        names: &[String],
        lifetime: Duration,
        believed: &str,
        now: Timestamp,
    ) -> Result<Option<Serving>, AccessError> {
        let believed = certificates(believed);
        let settled = |authority: &&Authority| {
            believed.contains(authority.pem.trim()) && authority.issued.not_before + BACKDATED + SETTLES <= now
        };
        let signer = self.own.iter().rev().find(settled);
        let oldest =
            || self.own.iter().find(|authority| believed.is_empty() || believed.contains(authority.pem.trim()));
        match signer.or_else(oldest) {
            Some(signer) => new_certificate(signer, names, lifetime, now).map(Some).map_err(AccessError::Key),
            None => Ok(None),
        }
    }
}

fn authority(text: &str) -> Option<Authority> {
    let pems: Vec<Pem> = Pem::iter_from_buffer(text.as_bytes()).collect::<Result<_, _>>().ok()?;
    let [_, _] = pems.as_slice() else { return None };
    let end = text.find("-----END CERTIFICATE-----")? + "-----END CERTIFICATE-----".len();
    let (pem, key) = text.split_at(end);
    let issued = certificate::validity(pem.as_bytes())?;
    let key = Zeroizing::new(key.trim_start().to_owned());
    KeyPair::from_pem(&key).ok()?;
    Some(Authority { pem: format!("{pem}\n"), key, issued })
}

/// The certificates of a bundle, each trimmed.
pub(super) fn certificates(bundle: &str) -> BTreeSet<String> {
    const END: &str = "-----END CERTIFICATE-----";
    bundle
        .split_inclusive(END)
        .map(|pem| pem.replace('\r', "").trim().to_owned())
        .filter(|pem| pem.ends_with(END))
        .collect()
}

fn new_authority(cluster: &ClusterName, now: Timestamp) -> Result<Authority, rcgen::Error> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, format!("bursar webhook {cluster} {}", now.as_second()));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let issued = valid(&mut params, AUTHORITY, now);
    let key = KeyPair::generate()?;
    let pem = params.self_signed(&key)?.pem().replace('\r', "");
    Ok(Authority { pem, key: Zeroizing::new(key.serialize_pem()), issued })
}

fn new_certificate(
    signer: &Authority,
    names: &[String],
    lifetime: Duration,
    now: Timestamp,
) -> Result<Serving, rcgen::Error> {
    let mut params = CertificateParams::default();
    for name in names {
        let name = match name.parse::<IpAddr>() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) => SanType::DnsName(name.as_str().try_into()?),
        };
        params.subject_alt_names.push(name);
    }
    params.distinguished_name.push(DnType::CommonName, "bursar-webhook");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    let issued = valid(&mut params, lifetime, now);
    let authority = Issuer::from_ca_cert_pem(&signer.pem, KeyPair::from_pem(&signer.key)?)?;
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &authority)?.pem().replace('\r', "");
    Ok(Serving {
        certificate,
        key: Zeroizing::new(key.serialize_pem()),
        renew_after: certificate::renew_after(&issued),
        not_after: issued.not_after,
    })
}

/// Sets the validity, and returns it.
fn valid(params: &mut CertificateParams, lifetime: Duration, now: Timestamp) -> Issued {
    let not_before = now - BACKDATED;
    let not_after = now.saturating_add(lifetime).unwrap_or(Timestamp::MAX);
    let seconds = |at: Timestamp| Duration::from_secs(u64::try_from(at.as_second()).unwrap_or(0));
    let epoch = date_time_ymd(1970, 1, 1);
    params.not_before = epoch + seconds(not_before);
    params.not_after = epoch + seconds(not_after);
    Issued { fingerprint: String::new(), not_before, not_after }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(days: i64) -> Timestamp {
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().expect("the time is valid");
        start + SignedDuration::from_hours(24 * days)
    }

    fn open(folder: &Path, days: i64) -> Authorities {
        Authorities::open(folder, &ClusterName("prod".into()), at(days)).expect("the folder has no broken authority")
    }

    fn sign(authorities: &Authorities, believed: &str, days: i64) -> Option<Serving> {
        let names = ["localhost".to_owned(), "10.0.0.5".to_owned()];
        authorities.sign(&names, WITHIN, believed, at(days)).expect("the authority signs")
    }

    /// Whether an authority in `bundle` signed the certificate, according to openssl.
    fn is_signed_by(serving: &Serving, bundle: &str) -> bool {
        let folder = tempfile::TempDir::new().expect("the temporary folder is writable");
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).expect("the folder is writable");
            path
        };
        let mut command = std::process::Command::new("openssl");
        command.args(["verify", "-no_check_time", "-CAfile"]).arg(file("ca.pem", bundle));
        command.arg(file("leaf.pem", &serving.certificate)).output().expect("openssl is installed").status.success()
    }

    #[test]
    fn a_new_authority_signs_after_it_was_trusted_for_a_while() {
        let folder = tempfile::TempDir::new().expect("the temporary folder is writable");
        let first = open(folder.path(), 0);
        let old = first.bundle("", at(0));
        let serving = sign(&first, "", 0).expect("no other authority is trusted");
        assert!(is_signed_by(&serving, &old));
        assert!(serving.not_after > at(29) && serving.renew_after > at(17) && serving.renew_after < at(24));

        assert_eq!(open(folder.path(), 500).own.len(), 1, "the authority is kept in its file");
        let both = open(folder.path(), 800);
        let bundle = both.bundle(&old, at(800));
        assert_eq!(certificates(&bundle).len(), 2);
        let serving = sign(&both, &old, 800).expect("the old authority signs");
        assert!(is_signed_by(&serving, &old), "the API server does not trust the new authority yet");
        let serving = sign(&open(folder.path(), 801), &bundle, 801).expect("the new authority signs");
        assert!(is_signed_by(&serving, &bundle) && !is_signed_by(&serving, &old));

        let one = open(folder.path(), 1500).bundle(&bundle, at(1500));
        assert_eq!(certificates(&one).len(), 1, "an expired authority is no longer trusted");
    }

    #[test]
    fn after_the_files_of_an_authority_were_lost_the_next_one_waits_until_it_is_trusted() {
        let (here, there) = (
            tempfile::TempDir::new().expect("the temporary folder is writable"),
            tempfile::TempDir::new().expect("the temporary folder is writable"),
        );
        let former = open(here.path(), 0).bundle("", at(0));
        let other = open(there.path(), 10);
        assert!(sign(&other, &former, 10).is_none());
        let both = other.bundle(&former, at(10));
        assert_eq!(certificates(&both).len(), 2);
        assert!(is_signed_by(&sign(&other, &both, 11).expect("the authority is trusted"), &both));
    }
}
