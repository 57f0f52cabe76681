//! Whether a certificate and a private key belong together. Bytes in, no file.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};
use x509_parser::pem::parse_x509_pem;
use x509_parser::prelude::parse_x509_certificate;
use zeroize::Zeroizing;

/// A certificate that really is one.
pub(super) struct Certificate {
    /// The first certificate, encoded again: anything else that stood beside it (a key, say) is not in it.
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

/// `SubjectPublicKeyInfo` of a point on P-256, uncompressed, without the point (RFC 5480): algorithm `id-ecPublicKey`,
/// curve `prime256v1`, and the head of a bit string of 65 bytes.
const P256_HEAD: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce,
    0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// Whether a private key (PEM, PKCS#8) is the certificate's. Bursar's keys are P-256 keys: a key of another kind is not
/// one of them, and belongs to nothing.
pub(super) fn belongs_to(key_pem: &Zeroizing<Vec<u8>>, certificate: &Certificate) -> bool {
    let key = std::str::from_utf8(key_pem)
        .ok()
        .and_then(pkcs8)
        .and_then(|der| EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &der, &SystemRandom::new()).ok());
    key.is_some_and(|key| certificate.public_key.strip_prefix(&P256_HEAD) == Some(key.public_key().as_ref()))
}

/// The bytes between the marks of a PEM text. No copy of them stays behind.
fn pkcs8(pem: &str) -> Option<Zeroizing<Vec<u8>>> {
    let (_, rest) = pem.split_once("-----BEGIN PRIVATE KEY-----")?;
    let (body, _) = rest.split_once("-----END PRIVATE KEY-----")?;
    // As long as the text: a buffer that grows leaves copies behind.
    let mut text = Zeroizing::new(String::with_capacity(body.len()));
    text.extend(body.split_ascii_whitespace());
    let mut der = Zeroizing::new(Vec::with_capacity(text.len()));
    STANDARD.decode_vec(text.as_bytes(), &mut der).ok()?;
    Some(der)
}

/// RFC 7468: lines of 64 characters.
fn encode(der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let mut pem = String::from("-----BEGIN CERTIFICATE-----\n");
    for line in text.as_bytes().chunks(64) {
        pem.extend(line.iter().map(|byte| char::from(*byte)));
        pem.push('\n');
    }
    pem + "-----END CERTIFICATE-----\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_ours_if_it_is_of_p256_and_belongs_together() {
        let pair = |algorithm| {
            let key = rcgen::KeyPair::generate_for(algorithm).expect("key");
            let signed = rcgen::CertificateParams::new(vec![]).expect("params").self_signed(&key).expect("signs");
            let certificate = certificate(signed.pem().as_bytes()).expect("a certificate");
            (certificate, Zeroizing::new(key.serialize_pem().into_bytes()))
        };
        let (certificate, key) = pair(&rcgen::PKCS_ECDSA_P256_SHA256);
        assert!(belongs_to(&key, &certificate));
        let broken = String::from_utf8_lossy(&key).replace('\n', "\r\n");
        assert!(belongs_to(&Zeroizing::new(broken.into_bytes()), &certificate), "lines may end as on Windows");
        for algorithm in [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ECDSA_P384_SHA384, &rcgen::PKCS_ED25519] {
            let (other, other_key) = pair(algorithm);
            assert!(!belongs_to(&other_key, &certificate), "{algorithm:?}");
            assert!(!belongs_to(&key, &other), "{algorithm:?}");
        }
        let (foreign, foreign_key) = pair(&rcgen::PKCS_ED25519);
        assert!(!belongs_to(&foreign_key, &foreign), "a pair that is not of P-256 is not ours");
        for none in ["", "-----BEGIN PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----\n!\n-----END PRIVATE KEY-----"] {
            assert!(!belongs_to(&Zeroizing::new(none.as_bytes().to_vec()), &certificate), "{none}");
        }
    }
}
