//! Whether an issued client certificate is the one that was asked for, and what it really grants. PURE: no runtime, no
//! client, no file system, no clock.
//!
//! The signer decides about lifetime and may drop parts of the subject (Kubernetes' own drops every attribute that it
//! does not know), so nothing is taken from the request that the certificate itself can tell.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use sha2::{Digest as _, Sha256};
use x509_parser::certificate::X509Certificate;
use x509_parser::error::X509Error;
use x509_parser::oid_registry::{OID_X509_COMMON_NAME, OID_X509_ORGANIZATION_NAME, OID_X509_SERIALNUMBER};
use x509_parser::pem::Pem;
use x509_parser::prelude::parse_x509_certificate;

use crate::ledger::Certificate;

/// What was asked of the signer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked<'a> {
    /// CN: the user's name.
    pub common_name: &'a str,
    /// O, each: the user's groups.
    pub organizations: BTreeSet<&'a str>,
    /// serialNumber of the subject (RFC 4519, 2.31).
    pub serial_number: Option<&'a str>,
    /// Our key's `SubjectPublicKeyInfo`, DER (RFC 5280, 4.1).
    pub public_key: &'a [u8],
    /// Whom the API server believes about clients (`--client-ca-file`), PEM; absent: it does not say.
    pub authorities: Option<&'a str>,
}

/// What was issued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issued {
    /// SHA-256 of the DER, hex: what the API server's audit events call `credential-id`.
    pub fingerprint: String,
    /// From the certificate.
    pub not_before: Timestamp,
    /// From the certificate.
    pub not_after: Timestamp,
}

impl Issued {
    /// As the ledger keeps it. `bound_to`: the Secret that a token ends with.
    #[must_use]
    pub fn of(self, subject: String, generation: u64, bound_to: Option<String>) -> Certificate {
        let renew_after = renew_after(&self);
        let Self { fingerprint, not_before, not_after } = self;
        Certificate { fingerprint, generation, subject, not_before, not_after, renew_after, bound_to }
    }
}

/// Why an issued certificate is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    /// No certificate at all.
    #[error("the signer answered with something that is no certificate")]
    Unreadable,
    /// It is for another key.
    #[error("the certificate is not for our key")]
    ForeignKey,
    /// The API server would know its holder by another name, or by other groups.
    #[error("the certificate's subject is {found}, not {asked}")]
    Subject {
        /// What stands in it.
        found: String,
        /// What we asked for.
        asked: String,
    },
    /// The API server would not take it from a client.
    #[error("the certificate is not for clients (extended key usage clientAuth)")]
    NotForClients,
    /// The API server does not trust who signed it.
    #[error("the certificate is signed by {0}, which is not among the API server's client authorities")]
    Untrusted(String),
    /// It ends before it begins, or has no time at all.
    #[error("the certificate's validity cannot be used")]
    Validity,
}

/// Checks the first certificate of a PEM text against what was asked; what follows it are those by which it was signed.
pub fn verify(pem: &[u8], asked: &Asked<'_>) -> Result<Issued, CertificateError> {
    let blocks = blocks(pem)?;
    let chain = certificates(&blocks)?;
    let (Some(block), Some(certificate)) = (blocks.first(), chain.first()) else {
        return Err(CertificateError::Unreadable);
    };
    if certificate.public_key().raw != asked.public_key {
        return Err(CertificateError::ForeignKey);
    }
    check_subject(certificate, asked)?;
    let usage = certificate.extended_key_usage().map_err(|_| CertificateError::Unreadable)?;
    if !usage.is_some_and(|usage| usage.value.client_auth) {
        return Err(CertificateError::NotForClients);
    }
    if let Some(authorities) = asked.authorities {
        check_chain(&chain, authorities)?;
    }
    issued(block, certificate).filter(|issued| issued.not_before < issued.not_after).ok_or(CertificateError::Validity)
}

/// The subject of a certificate, and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// CN.
    pub common_name: String,
    /// O, each.
    pub organizations: BTreeSet<String>,
    /// serialNumber.
    pub serial_number: Option<String>,
    /// `SubjectPublicKeyInfo`, DER.
    pub public_key: Vec<u8>,
}

/// What the first certificate of a PEM text says of its holder. Nothing of it is proved.
#[must_use]
pub fn subject(pem: &[u8]) -> Option<Subject> {
    let blocks = blocks(pem).ok()?;
    let certificates = certificates(&blocks).ok()?;
    let certificate = certificates.first()?;
    let values = |oid| {
        let attributes = certificate.subject().iter_by_oid(oid).filter_map(|attribute| attribute.as_str().ok());
        attributes.map(str::to_owned).collect::<Vec<_>>()
    };
    Some(Subject {
        common_name: values(&OID_X509_COMMON_NAME).into_iter().next()?,
        organizations: values(&OID_X509_ORGANIZATION_NAME).into_iter().collect(),
        serial_number: values(&OID_X509_SERIALNUMBER).into_iter().next(),
        public_key: certificate.public_key().raw.to_vec(),
    })
}

/// SHA-256 of a certificate's DER, hex.
#[must_use]
pub fn fingerprint(der: &[u8]) -> String {
    hex::encode(Sha256::digest(der))
}

/// What the first certificate of a PEM text grants; `None` if there is none.
#[must_use]
pub fn validity(pem: &[u8]) -> Option<Issued> {
    let blocks = blocks(pem).ok()?;
    let chain = certificates(&blocks).ok()?;
    issued(blocks.first()?, chain.first()?)
}

fn issued(block: &Pem, certificate: &X509Certificate<'_>) -> Option<Issued> {
    let time = |seconds| Timestamp::from_second(seconds).ok();
    Some(Issued {
        fingerprint: fingerprint(&block.contents),
        not_before: time(certificate.validity().not_before.timestamp())?,
        not_after: time(certificate.validity().not_after.timestamp())?,
    })
}

/// When another one is to be asked for: at 2/3 of the lifetime that was really granted, earlier or later by up to a
/// tenth of that. What decides is the certificate's own hash, so thousands that were issued in one minute are not
/// renewed in one minute, and the same certificate is always due at the same time.
#[must_use]
pub fn renew_after(issued: &Issued) -> Timestamp {
    let lifetime = issued.not_after.duration_since(issued.not_before).as_secs();
    let two_thirds = lifetime / 3 * 2;
    let swing = two_thirds / 10;
    let hash = u32::from_str_radix(issued.fingerprint.get(..8).unwrap_or("0"), 16).unwrap_or(0);
    // From -swing to +swing; `swing` is at most 10^11 s, so the product fits.
    let jitter = i64::from(hash) * (2 * swing) / i64::from(u32::MAX) - swing;
    let after = SignedDuration::from_secs(two_thirds + jitter);
    issued.not_before.saturating_add(after).unwrap_or(issued.not_after)
}

/// The certificates of a PEM text; anything else in it is passed over, as Go does.
fn blocks(pem: &[u8]) -> Result<Vec<Pem>, CertificateError> {
    let blocks = Pem::iter_from_buffer(pem).filter(|block| block.as_ref().map_or(true, |it| it.label == "CERTIFICATE"));
    blocks.collect::<Result<_, _>>().map_err(|_| CertificateError::Unreadable)
}

fn certificates(blocks: &[Pem]) -> Result<Vec<X509Certificate<'_>>, CertificateError> {
    let parsed = blocks.iter().map(|block| {
        let (rest, certificate) = parse_x509_certificate(&block.contents).ok()?;
        rest.is_empty().then_some(certificate)
    });
    parsed.collect::<Option<_>>().ok_or(CertificateError::Unreadable)
}

/// As the API server does it (Go, `Certificate.Verify`): each is signed by the next one, and one of them by an
/// authority. Times are not looked at: an authority that has ended is found by the endpoint probe.
fn check_chain(chain: &[X509Certificate<'_>], authorities: &str) -> Result<(), CertificateError> {
    let authorities = blocks(authorities.as_bytes())?;
    let authorities = certificates(&authorities)?;
    let mut last = String::new();
    for (index, certificate) in chain.iter().enumerate() {
        if authorities.iter().any(|authority| is_signed(certificate, authority)) {
            return Ok(());
        }
        last = certificate.issuer().to_string();
        if !chain.get(index + 1).is_some_and(|next| next.is_ca() && is_signed(certificate, next)) {
            break;
        }
    }
    Err(CertificateError::Untrusted(last))
}

/// A kind of signature that cannot be checked here (P-521, say) is not held against a certificate of the right issuer.
fn is_signed(certificate: &X509Certificate<'_>, by: &X509Certificate<'_>) -> bool {
    let verified = || certificate.verify_signature(Some(by.public_key()));
    certificate.issuer().as_raw() == by.subject().as_raw()
        && matches!(verified(), Ok(()) | Err(X509Error::SignatureUnsupportedAlgorithm))
}

/// Nothing but what was asked: a group more would be a right more.
fn check_subject(certificate: &X509Certificate<'_>, asked: &Asked<'_>) -> Result<(), CertificateError> {
    let mut names = Vec::new();
    let mut organizations = BTreeSet::new();
    let mut serial_numbers = Vec::new();
    let mut others = false;
    for attribute in certificate.subject().iter_attributes() {
        let value = attribute.as_str().unwrap_or_default();
        let oid = attribute.attr_type();
        if *oid == OID_X509_COMMON_NAME {
            names.push(value);
        } else if *oid == OID_X509_ORGANIZATION_NAME {
            organizations.insert(value);
        } else if *oid == OID_X509_SERIALNUMBER {
            serial_numbers.push(value);
        } else {
            others = true;
        }
    }
    let serial_number: Vec<&str> = asked.serial_number.into_iter().collect();
    let same = names == [asked.common_name]
        && organizations == asked.organizations
        && serial_numbers == serial_number
        && !others;
    same.then_some(())
        .ok_or_else(|| CertificateError::Subject { found: certificate.subject().to_string(), asked: text(asked) })
}

fn text(asked: &Asked<'_>) -> String {
    let organizations = asked.organizations.iter().map(|name| format!("O={name}"));
    let serial_number = asked.serial_number.map(|number| format!("serialNumber={number}"));
    let name = Some(format!("CN={}", asked.common_name));
    organizations.chain(serial_number).chain(name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, PublicKeyData as _};

    use super::*;

    const DAY: i64 = 86_400;

    fn params() -> CertificateParams {
        let mut params = CertificateParams::default();
        let name = &mut params.distinguished_name;
        *name = rcgen::DistinguishedName::new();
        name.push(DnType::OrganizationName, "bursar:tools");
        name.push(DnType::CustomDnType(vec![2, 5, 4, 10]), "bursar:tool:foo#3");
        name.push(DnType::CustomDnType(vec![2, 5, 4, 5]), "0a1b");
        name.push(DnType::CommonName, "tool:foo");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params
    }

    fn verified(params: &CertificateParams, key: &KeyPair, asked_key: &KeyPair) -> Result<Issued, CertificateError> {
        let pem = params.self_signed(key).expect("a certificate").pem();
        let public_key = asked_key.subject_public_key_info();
        let asked = Asked {
            common_name: "tool:foo",
            organizations: ["bursar:tools", "bursar:tool:foo#3"].into(),
            serial_number: Some("0a1b"),
            public_key: &public_key,
            authorities: None,
        };
        verify(pem.as_bytes(), &asked)
    }

    #[test]
    fn certificate_of_another_authority_is_not_trusted() {
        let authority = |name: &str| {
            let mut params = CertificateParams::default();
            params.distinguished_name.push(DnType::CommonName, name);
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
            let key = KeyPair::generate().expect("a key");
            (params.self_signed(&key).expect("an authority").pem(), rcgen::Issuer::new(params, key))
        };
        let (root_pem, root) = authority("root");
        let (other_pem, other) = authority("other");
        // The same name, and another key.
        let (impostor_pem, _) = authority("root");
        let mut between = CertificateParams::default();
        between.distinguished_name.push(DnType::CommonName, "between");
        between.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let between_key = KeyPair::generate().expect("a key");
        let between_pem = between.signed_by(&between_key, &root).expect("an authority").pem();
        let between = rcgen::Issuer::new(between, between_key);
        let key = KeyPair::generate().expect("a key");
        let public_key = key.subject_public_key_info();
        let trusted = |pem: String, authorities: &str| {
            let asked = Asked {
                common_name: "tool:foo",
                organizations: ["bursar:tools", "bursar:tool:foo#3"].into(),
                serial_number: Some("0a1b"),
                public_key: &public_key,
                authorities: Some(authorities),
            };
            match verify(pem.as_bytes(), &asked) {
                Ok(_) => true,
                Err(CertificateError::Untrusted(_)) => false,
                Err(error) => panic!("{error}"),
            }
        };
        let by = |issuer| params().signed_by(&key, issuer).expect("a certificate").pem();
        assert!(trusted(by(&root), &root_pem));
        assert!(trusted(by(&root), &format!("{other_pem}{root_pem}")), "a rollover's bundle");
        assert!(!trusted(by(&other), &root_pem));
        assert!(!trusted(by(&root), &impostor_pem));
        assert!(!trusted(by(&between), &root_pem), "who signed it is not known");
        assert!(trusted(by(&between) + &between_pem, &root_pem));
    }

    #[test]
    fn a_certificate_as_requested_is_accepted() {
        let key = KeyPair::generate().expect("a key");
        let issued = verified(&params(), &key, &key).expect("as asked");
        assert_eq!(issued.fingerprint.len(), 64);
    }

    #[test]
    fn certificates_that_differ_from_the_request_are_refused() {
        let key = KeyPair::generate().expect("a key");
        let other = KeyPair::generate().expect("a key");
        assert_eq!(verified(&params(), &other, &key), Err(CertificateError::ForeignKey));
        let more = |change: &dyn Fn(&mut CertificateParams)| {
            let mut params = params();
            change(&mut params);
            verified(&params, &key, &key)
        };
        let subject = |result| matches!(result, Err(CertificateError::Subject { .. }));
        assert!(subject(more(&|params| params.distinguished_name.push(DnType::OrganizationalUnitName, "x"))));
        assert!(subject(more(&|params| params.distinguished_name.push(DnType::CommonName, "tool:bar"))));
        assert!(subject(more(&|params| params.distinguished_name.push(DnType::OrganizationName, "system:masters"))));
        assert!(subject(more(&|params| {
            params.distinguished_name.push(DnType::CustomDnType(vec![2, 5, 4, 5]), "ffff");
        })));
        let server = more(&|params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth]);
        assert_eq!(server, Err(CertificateError::NotForClients));
        let asked = Asked {
            common_name: "x",
            organizations: BTreeSet::new(),
            serial_number: None,
            public_key: &[],
            authorities: None,
        };
        assert_eq!(verify(b"no certificate", &asked), Err(CertificateError::Unreadable));
    }

    #[test]
    fn renewals_of_one_minute_are_spread_over_a_fifth_of_the_time() {
        let begin = Timestamp::UNIX_EPOCH;
        let end = Timestamp::from_second(7 * DAY).expect("a time");
        let due = |number: u32| {
            let fingerprint = fingerprint(&number.to_be_bytes());
            renew_after(&Issued { fingerprint, not_before: begin, not_after: end }).as_second()
        };
        let times: Vec<i64> = (0..10_000).map(due).collect();
        let (two_thirds, swing) = (14 * DAY / 3, 14 * DAY / 30);
        assert!(times.iter().all(|time| (two_thirds - swing..=two_thirds + swing).contains(time)));
        let mut by_hour = std::collections::BTreeMap::<i64, usize>::new();
        for time in &times {
            *by_hour.entry(time / 3600).or_default() += 1;
        }
        assert!(by_hour.len() >= 22 && by_hour.values().all(|count| *count < 700), "{by_hour:?}");
    }
}
