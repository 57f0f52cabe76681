//! Checks that an issued client certificate is the one that was requested, and reads what it grants.
//!
//! The signer decides the lifetime and may drop parts of the subject (Kubernetes' own signer drops every attribute that
//! it does not know). So everything is read from the certificate and nothing from the request.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use sha2::{Digest as _, Sha256};
use x509_parser::certificate::X509Certificate;
use x509_parser::error::X509Error;
use x509_parser::oid_registry::{OID_X509_COMMON_NAME, OID_X509_ORGANIZATION_NAME, OID_X509_SERIALNUMBER};
use x509_parser::pem::Pem;
use x509_parser::prelude::parse_x509_certificate;

use crate::ledger::Certificate;

/// What was requested from the signer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked<'a> {
    /// The `CN`: the user's name.
    pub common_name: &'a str,
    /// The `O` values: the user's groups.
    pub organizations: BTreeSet<&'a str>,
    /// The `serialNumber` of the subject (RFC 4519, 2.31).
    pub serial_number: Option<&'a str>,
    /// The `SubjectPublicKeyInfo` of the generated key, DER (RFC 5280, 4.1).
    pub public_key: &'a [u8],
    /// The authorities that the API server trusts for clients (`--client-ca-file`), PEM; `None` if they are unknown.
    pub authorities: Option<&'a str>,
}

/// The issued certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issued {
    /// The SHA-256 of the DER, hex. The API server's audit events call it `credential-id`.
    pub fingerprint: String,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
}

impl Issued {
    /// Returns the ledger's record of this certificate or token. `bound_to` is the uid of the Secret whose deletion
    /// invalidates the token.
    #[must_use]
    pub fn of(self, subject: String, generation: u64, bound_to: Option<String>) -> Certificate {
        let renew_after = renew_after(&self);
        let Self { fingerprint, not_before, not_after } = self;
        Certificate {
            fingerprint: fingerprint.into(),
            generation,
            subject,
            not_before,
            not_after,
            renew_after,
            bound_to,
        }
    }
}

/// Why an issued certificate is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    /// The answer contains no certificate.
    #[error("the signer's answer is not a certificate")]
    Unreadable,
    /// The certificate is for another key.
    #[error("the certificate is not for the key of the request")]
    ForeignKey,
    /// The API server would give its holder another name or other groups.
    #[error("the certificate's subject is {found}, not {asked}")]
    Subject {
        /// The subject in the certificate.
        found: String,
        /// The subject that was requested.
        asked: String,
    },
    /// The API server would not accept it from a client.
    #[error("the certificate is not for clients (extended key usage clientAuth)")]
    NotForClients,
    /// The API server does not trust its signer.
    #[error("the certificate is signed by {0}, which is not among the API server's client authorities")]
    Untrusted(String),
    /// It expires before it becomes valid, or its times cannot be read.
    #[error("the certificate's validity period is empty or cannot be read")]
    Validity,
}

/// Checks the first certificate of a PEM text. The certificates after it are its intermediate authorities.
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
    /// The `CN`.
    pub common_name: String,
    /// The `O` values.
    pub organizations: BTreeSet<String>,
    /// The `serialNumber`.
    pub serial_number: Option<String>,
    /// The `SubjectPublicKeyInfo`, DER.
    pub public_key: Vec<u8>,
}

/// Returns the subject of the first certificate of a PEM text. Nothing of it is verified.
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

/// Returns the SHA-256 of a certificate's DER, hex.
#[must_use]
pub fn fingerprint(der: &[u8]) -> String {
    hex::encode(Sha256::digest(der))
}

/// Returns fingerprint and validity of the first certificate of a PEM text; `None` if there is none.
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

/// Returns when the certificate is renewed: after 2/3 of its actual lifetime, plus or minus up to a tenth of that. The
/// offset comes from the certificate's hash. So thousands of certificates from one minute are not renewed in one
/// minute, and each has a fixed time.
#[must_use]
pub fn renew_after(issued: &Issued) -> Timestamp {
    let lifetime = issued.not_after.duration_since(issued.not_before).as_secs();
    let two_thirds = lifetime / 3 * 2;
    let swing = two_thirds / 10;
    let hash = u32::from_str_radix(issued.fingerprint.get(..8).unwrap_or("0"), 16).unwrap_or(0);
    // The offset is from -swing to +swing. `swing` is at most 10^11 s, so the product fits.
    let jitter = i64::from(hash) * (2 * swing) / i64::from(u32::MAX) - swing;
    let after = SignedDuration::from_secs(two_thirds + jitter);
    issued.not_before.saturating_add(after).unwrap_or(issued.not_after)
}

/// Returns the certificates of a PEM text. Other blocks are skipped, as in Go.
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

/// Checks the chain as the API server does (Go, `Certificate.Verify`): each certificate is signed by the next one, and
/// one of them by an authority. Validity times are not checked: the endpoint probe notices an expired authority.
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

/// Whether `by` issued and signed the certificate. If a kind of signature cannot be checked here (P-521, for example),
/// the matching issuer is enough.
fn is_signed(certificate: &X509Certificate<'_>, by: &X509Certificate<'_>) -> bool {
    let verified = || certificate.verify_signature(Some(by.public_key()));
    certificate.issuer().as_raw() == by.subject().as_raw()
        && matches!(verified(), Ok(()) | Err(X509Error::SignatureUnsupportedAlgorithm))
}

/// Checks that the subject is exactly as requested, because each additional group would be an additional right.
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
        let pem = params.self_signed(key).expect("a certificate is signed").pem();
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
            let key = KeyPair::generate().expect("a key is generated");
            (params.self_signed(&key).expect("a certificate is signed").pem(), rcgen::Issuer::new(params, key))
        };
        let (root_pem, root) = authority("root");
        let (other_pem, other) = authority("other");
        // This authority has the same name and another key.
        let (impostor_pem, _) = authority("root");
        let mut between = CertificateParams::default();
        between.distinguished_name.push(DnType::CommonName, "between");
        between.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let between_key = KeyPair::generate().expect("a key is generated");
        let between_pem = between.signed_by(&between_key, &root).expect("a certificate is signed").pem();
        let between = rcgen::Issuer::new(between, between_key);
        let key = KeyPair::generate().expect("a key is generated");
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
        let by = |issuer| params().signed_by(&key, issuer).expect("a certificate is signed").pem();
        assert!(trusted(by(&root), &root_pem));
        assert!(trusted(by(&root), &format!("{other_pem}{root_pem}")), "a bundle with the old and the new authority");
        assert!(!trusted(by(&other), &root_pem));
        assert!(!trusted(by(&root), &impostor_pem));
        assert!(!trusted(by(&between), &root_pem), "the intermediate authority is missing");
        assert!(trusted(by(&between) + &between_pem, &root_pem));
    }

    #[test]
    fn a_certificate_as_requested_is_accepted() {
        let key = KeyPair::generate().expect("a key is generated");
        let issued = verified(&params(), &key, &key).expect("the certificate is as requested");
        assert_eq!(issued.fingerprint.len(), 64);
    }

    #[test]
    fn certificates_that_differ_from_the_request_are_refused() {
        let key = KeyPair::generate().expect("a key is generated");
        let other = KeyPair::generate().expect("a key is generated");
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
    fn renewals_of_certificates_from_one_minute_are_spread() {
        let begin = Timestamp::UNIX_EPOCH;
        let end = Timestamp::from_second(7 * DAY).expect("the second is a valid time");
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
