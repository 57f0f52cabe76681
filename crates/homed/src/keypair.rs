//! Decides whether a private key belongs to a certificate, and finds our private keys in a text. Does not read files.

use std::collections::BTreeSet;
use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};
use x509_parser::pem::parse_x509_pem;
use x509_parser::prelude::parse_x509_certificate;
use zeroize::Zeroizing;

/// A parsed certificate.
pub(super) struct Certificate {
    /// The certificate in PEM, encoded again, so that it contains nothing else of the text, such as a private key.
    pub(super) pem: String,
    /// `SubjectPublicKeyInfo`, DER.
    public_key: Vec<u8>,
    /// Whether the subject has a group of Bursar, as it has in every certificate that the daemon requests.
    is_ours: bool,
}

/// The largest certificate that is parsed, in bytes of DER. Ours have less than 2 KiB. A larger one, which a user can
/// write, would not fit into an answer of the server.
const MAX_CERTIFICATE_BYTES: usize = 32 * 1024;

/// Parses the first certificate of a PEM text. Returns `None` if the first block is not a certificate.
pub(super) fn certificate(pem: &[u8]) -> Option<Certificate> {
    let (_, block) = parse_x509_pem(pem).ok()?;
    if block.label != "CERTIFICATE" || block.contents.len() > MAX_CERTIFICATE_BYTES {
        return None;
    }
    let (rest, certificate) = parse_x509_certificate(&block.contents).ok()?;
    if !rest.is_empty() {
        return None;
    }
    let mut groups = certificate.subject().iter_organization().filter_map(|group| group.as_str().ok());
    let is_ours = groups.any(|group| group.starts_with(OUR_GROUPS));
    Some(Certificate { pem: encode(&block.contents), public_key: certificate.public_key().raw.to_vec(), is_ours })
}

/// The prefix of the groups of accounts.
const OUR_GROUPS: &str = "bursar:";
/// `-----BEGIN ` in base64, the beginning of a certificate or a key in a kubeconfig.
const BEGIN: &str = "LS0tLS1CRUdJTi";

/// Returns the text without the private keys of our certificates; `None` if it has none. Other keys stay. The text need
/// not parse. Our keys are removed because Bursar will revoke their credentials.
pub(super) fn without_our_keys(text: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    with_our_keys_as(text, None, |_| None)
}

/// Returns the text with blanks, which are base64 too, in place of the private keys of our certificates within `places`;
/// `None` if there are none. If `places` is `None`, all our keys are blanked. The text keeps its length.
pub(super) fn with_blank_keys(text: &[u8], places: Option<&[Range<usize>]>) -> Option<Zeroizing<Vec<u8>>> {
    with_our_keys_as(text, places, |byte| Some(if byte == b'=' { b'=' } else { b'A' }))
}

/// Returns the text with the result of `blank` for each byte of our keys within `places`.
fn with_our_keys_as(
    text: &[u8],
    places: Option<&[Range<usize>]>,
    blank: impl Fn(u8) -> Option<u8>,
) -> Option<Zeroizing<Vec<u8>>> {
    let is_base64 = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=');
    // The places and public keys of private keys in the text, and the public keys of our certificates.
    let (mut keys, mut ours) = (Vec::new(), BTreeSet::new());
    let mut start = 0;
    for word in text.split(|byte| !is_base64(byte)) {
        let place = start..start + word.len();
        start = place.end + 1;
        let pem = word.starts_with(BEGIN.as_bytes()).then(|| STANDARD.decode(word).ok().map(Zeroizing::new)).flatten();
        let Some(pem) = pem else { continue };
        if let Some(certificate) = certificate(&pem).filter(|found| found.is_ours) {
            ours.extend(certificate.public_key.strip_prefix(&P256_HEAD).map(<[u8]>::to_vec));
        }
        keys.extend(public_key(&pem).map(|key| (place, key)));
    }
    let is_within = |key: &Range<usize>| {
        places.is_none_or(|places| places.iter().any(|place| place.start <= key.start && key.end <= place.end))
    };
    keys.retain(|(place, key)| ours.contains(key) && is_within(place));
    if keys.is_empty() {
        return None;
    }
    let mut out = Zeroizing::new(Vec::with_capacity(text.len()));
    let mut end = 0;
    for (place, _) in keys {
        out.extend_from_slice(&text[end..place.start]);
        end = place.end;
        out.extend(text[place].iter().copied().filter_map(&blank));
    }
    out.extend_from_slice(&text[end..]);
    Some(out)
}

/// The DER bytes of a `SubjectPublicKeyInfo` before an uncompressed point on P-256 (RFC 5480): algorithm
/// `id-ecPublicKey`, curve `prime256v1`, and the head of a bit string of 65 bytes.
const P256_HEAD: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce,
    0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// Whether a private key (PEM, PKCS#8) belongs to the certificate. Bursar's keys are P-256 keys; for a key of another
/// kind, this returns `false`.
pub(super) fn belongs_to(key_pem: &Zeroizing<Vec<u8>>, certificate: &Certificate) -> bool {
    public_key(key_pem).is_some_and(|key| certificate.public_key.strip_prefix(&P256_HEAD) == Some(key.as_slice()))
}

/// Returns the uncompressed public point of a private P-256 key (PEM, PKCS#8).
fn public_key(key_pem: &Zeroizing<Vec<u8>>) -> Option<Vec<u8>> {
    let der = std::str::from_utf8(key_pem).ok().and_then(pkcs8)?;
    let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &der, &SystemRandom::new()).ok()?;
    Some(key.public_key().as_ref().to_vec())
}

/// Returns the decoded bytes of a PEM private key, without leaving copies of them in memory.
fn pkcs8(pem: &str) -> Option<Zeroizing<Vec<u8>>> {
    let (_, rest) = pem.split_once("-----BEGIN PRIVATE KEY-----")?;
    let (body, _) = rest.split_once("-----END PRIVATE KEY-----")?;
    // The full capacity at once: a buffer that grows would leave copies.
    let mut text = Zeroizing::new(String::with_capacity(body.len()));
    text.extend(body.split_ascii_whitespace());
    let mut der = Zeroizing::new(Vec::with_capacity(text.len()));
    STANDARD.decode_vec(text.as_bytes(), &mut der).ok()?;
    Some(der)
}

/// Encodes a certificate in PEM with lines of 64 characters (RFC 7468).
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
    use crate::kubeconfig;

    /// Returns the values of a certificate with this group, and of its key.
    fn pair(group: &str) -> (String, String) {
        let key = rcgen::KeyPair::generate().expect("ring makes a key");
        let mut params = rcgen::CertificateParams::new(vec![]).expect("the parameters are valid");
        params.distinguished_name.push(rcgen::DnType::OrganizationName, group);
        let signed = params.self_signed(&key).expect("the certificate can be signed");
        (STANDARD.encode(signed.pem()), STANDARD.encode(key.serialize_pem()))
    }

    fn blank(key: &str) -> String {
        key.chars().map(|c| if c == '=' { c } else { 'A' }).collect()
    }

    #[test]
    fn only_the_key_of_one_user_is_blanked_in_a_text_that_parses() {
        let ((first, key), (second, other_key)) = (pair("bursar:tools"), pair("bursar:tools"));
        let text = |key: &str| {
            format!(
                "users:\n- user:\n    client-key-data: {other_key}\n    client-certificate-data: {second}\n  name: \
                 bursar-test\n- name: bursar-prod\n  user:\n    client-certificate-data: {first}\n    client-key-data: \
                 |\n      {key}\n- {{name: bursar-dev, user: {{client-certificate-data: {second}, client-key-data: \
                 {other_key}}}}}\ncontexts: []\n"
            )
        };
        let places = kubeconfig::places_of(&text(&key), "bursar-prod").expect("the text is a kubeconfig");
        let blanked = with_blank_keys(text(&key).as_bytes(), Some(&places)).expect("the text has a key of the user");
        assert_eq!(String::from_utf8_lossy(&blanked), text(&blank(&key)));
        assert_eq!(with_blank_keys(&blanked, Some(&places)), None);
    }

    #[test]
    fn only_our_keys_are_removed_from_a_text_even_if_it_does_not_parse() {
        let ((certificate, key), (others, other_key)) = (pair("bursar:tools"), pair("staff"));
        for (before, between, behind) in [(": : \nk: ", "\nc: ", "\n"), ("{\"k\":\"", "\", c: \"", "\"")] {
            let text =
                |key: &str| format!("é{before}{key}{between}{certificate}\"{others}\" {other_key}{behind}\u{fe}");
            let without = without_our_keys(text(&key).as_bytes()).expect("the text has a key of ours");
            assert_eq!(String::from_utf8_lossy(&without), text(""));
            assert_eq!(without_our_keys(&without), None);
            let blanked = with_blank_keys(text(&key).as_bytes(), None).expect("the text has a key of ours");
            assert_eq!(String::from_utf8_lossy(&blanked), text(&blank(&key)));
        }
        assert_eq!(without_our_keys(format!("{certificate} {}", &key[..key.len() - 8]).as_bytes()), None);
        assert_eq!(without_our_keys(b""), None);
    }

    #[test]
    fn a_certificate_that_would_not_fit_into_an_answer_is_ignored() {
        let signed = |names: usize| {
            let names: Vec<String> = (0..names).map(|number| format!("{number}.example.org")).collect();
            let key = rcgen::KeyPair::generate().expect("ring makes a key");
            let params = rcgen::CertificateParams::new(names).expect("the names are valid");
            params.self_signed(&key).expect("the certificate can be signed").pem()
        };
        assert!(certificate(signed(2).as_bytes()).is_some());
        assert!(certificate(signed(3_000).as_bytes()).is_none());
    }

    #[test]
    fn a_key_belongs_to_a_certificate_if_it_is_its_p256_key() {
        let pair = |algorithm| {
            let key = rcgen::KeyPair::generate_for(algorithm).expect("ring makes a key");
            let signed = rcgen::CertificateParams::new(vec![])
                .expect("the parameters are valid")
                .self_signed(&key)
                .expect("the certificate can be signed");
            let certificate = certificate(signed.pem().as_bytes()).expect("the text is a certificate");
            (certificate, Zeroizing::new(key.serialize_pem().into_bytes()))
        };
        let (certificate, key) = pair(&rcgen::PKCS_ECDSA_P256_SHA256);
        assert!(belongs_to(&key, &certificate));
        let broken = String::from_utf8_lossy(&key).replace('\n', "\r\n");
        assert!(
            belongs_to(&Zeroizing::new(broken.into_bytes()), &certificate),
            "a key with CRLF line ends was not accepted"
        );
        for algorithm in [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ECDSA_P384_SHA384, &rcgen::PKCS_ED25519] {
            let (other, other_key) = pair(algorithm);
            assert!(!belongs_to(&other_key, &certificate), "{algorithm:?}");
            assert!(!belongs_to(&key, &other), "{algorithm:?}");
        }
        let (foreign, foreign_key) = pair(&rcgen::PKCS_ED25519);
        assert!(!belongs_to(&foreign_key, &foreign), "a key that is not a P-256 key was accepted");
        for none in ["", "-----BEGIN PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----\n!\n-----END PRIVATE KEY-----"] {
            assert!(!belongs_to(&Zeroizing::new(none.as_bytes().to_vec()), &certificate), "{none}");
        }
    }
}
