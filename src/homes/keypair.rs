//! Whether a certificate and a private key belong together. Bytes in, no file.

use x509_parser::pem::parse_x509_pem;
use x509_parser::prelude::parse_x509_certificate;
use zeroize::Zeroizing;

/// A certificate that really is one.
pub(super) struct Certificate {
    /// The first certificate, written anew: whatever else stood beside it (a key, say) is not in it.
    pub(super) pem: String,
    /// `SubjectPublicKeyInfo`, DER.
    public_key: Vec<u8>,
}

/// The first certificate of a PEM text.
pub(super) fn certificate(pem: &[u8]) -> Option<Certificate> {
    let (_, block) = parse_x509_pem(pem).ok()?;
    if block.label != "CERTIFICATE" {
        return None;
    }
    let (rest, certificate) = parse_x509_certificate(&block.contents).ok()?;
    if !rest.is_empty() {
        return None;
    }
    Some(Certificate { pem: encode(&block.contents), public_key: certificate.public_key().raw.to_vec() })
}

/// Whether a private key (PEM, PKCS#8) is the certificate's.
pub(super) fn belongs_to(key_pem: &Zeroizing<Vec<u8>>, certificate: &Certificate) -> bool {
    use rcgen::PublicKeyData as _;
    std::str::from_utf8(key_pem)
        .ok()
        .and_then(|pem| rcgen::KeyPair::from_pem(pem).ok())
        .is_some_and(|key| key.subject_public_key_info() == certificate.public_key)
}

/// RFC 7468: lines of 64 characters.
fn encode(der: &[u8]) -> String {
    use base64::Engine as _;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let mut pem = String::from("-----BEGIN CERTIFICATE-----\n");
    for line in text.as_bytes().chunks(64) {
        pem.extend(line.iter().map(|byte| char::from(*byte)));
        pem.push('\n');
    }
    pem + "-----END CERTIFICATE-----\n"
}
