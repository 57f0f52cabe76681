//! Parses a certificate request (PKCS#10, RFC 2986) into a [`Requested`].
//!
//! The signer reads the same bytes with another parser (Go's), so anything that two parsers could read in two ways is
//! an error.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use x509_parser::asn1_rs::Tag;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::oid_registry::{
    OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_NIST_EC_P384, OID_SIG_ED25519, OID_X509_COMMON_NAME,
    OID_X509_ORGANIZATION_NAME, OID_X509_SERIALNUMBER,
};
use x509_parser::prelude::FromDer as _;
use x509_parser::x509::SubjectPublicKeyInfo;

const BEGIN: &str = "-----BEGIN CERTIFICATE REQUEST-----";
const END: &str = "-----END CERTIFICATE REQUEST-----";

/// Describes the subject of a request that does not parse.
pub const UNREADABLE: &str = "a subject that cannot be read";

/// The parts of a request on which its approval depends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requested {
    /// The CN: the username.
    pub common_name: String,
    /// All O, in their order: the groups.
    pub organizations: Vec<String>,
    /// All values of serialNumber.
    pub serial_numbers: Vec<String>,
    /// Whether the request has more than a subject and a key, such as server names or extensions.
    pub asks_for_more: bool,
    /// Whether the key has a type that Bursar accepts: P-256, P-384, Ed25519.
    pub key_is_allowed: bool,
}

/// Parses `spec.request` of a `CertificateSigningRequest`, PEM in base64. The error describes the subject, for use in a
/// message.
pub fn parse(request: &str) -> Result<Requested, String> {
    let pem = BASE64.decode(request).map_err(|_| UNREADABLE.to_owned())?;
    parse_pem(&pem)
}

/// Parses the PEM of a request.
pub fn parse_pem(pem: &[u8]) -> Result<Requested, String> {
    let unreadable = || UNREADABLE.to_owned();
    let der = der(pem).ok_or_else(unreadable)?;
    let (rest, request) = X509CertificationRequest::from_der(&der).map_err(|_| unreadable())?;
    if !rest.is_empty() {
        return Err(unreadable());
    }
    let info = &request.certification_request_info;
    let (mut names, mut organizations, mut serial_numbers) = (Vec::new(), Vec::new(), Vec::new());
    for attribute in info.subject.iter_attributes() {
        // Go decodes other kinds of strings differently: a BMPString has two bytes for each character.
        if ![Tag::Utf8String, Tag::PrintableString].contains(&attribute.attr_value().tag()) {
            return Err(unreadable());
        }
        let value = attribute.as_str().map_err(|_| unreadable())?.to_owned();
        let kind = attribute.attr_type();
        if *kind == OID_X509_COMMON_NAME {
            names.push(value);
        } else if *kind == OID_X509_ORGANIZATION_NAME {
            organizations.push(value);
        } else if *kind == OID_X509_SERIALNUMBER {
            serial_numbers.push(value);
        } else {
            // The API server reads a uid from one of the remaining attributes, and a later version may read more.
            return Err(format!("a subject with attribute {kind}"));
        }
    }
    let count = names.len();
    let (1, Some(common_name)) = (count, names.pop()) else { return Err(format!("{count} users")) };
    Ok(Requested {
        common_name,
        organizations,
        serial_numbers,
        asks_for_more: !info.attributes().is_empty(),
        key_is_allowed: is_allowed(&info.subject_pki),
    })
}

fn is_allowed(key: &SubjectPublicKeyInfo<'_>) -> bool {
    let algorithm = &key.algorithm;
    if algorithm.algorithm == OID_SIG_ED25519 {
        return true;
    }
    let curve = algorithm.parameters.as_ref().and_then(|parameters| parameters.as_oid().ok());
    algorithm.algorithm == OID_KEY_TYPE_EC_PUBLIC_KEY
        && curve.is_some_and(|curve| curve == OID_EC_P256 || curve == OID_NIST_EC_P384)
}

/// Returns the content of the only PEM block. Parsers differ in what they skip before the block, so no text is accepted
/// around it.
fn der(pem: &[u8]) -> Option<Vec<u8>> {
    let pem = std::str::from_utf8(pem).ok()?;
    let body: String = pem.trim().strip_prefix(BEGIN)?.strip_suffix(END)?.split_ascii_whitespace().collect();
    BASE64.decode(body).ok()
}

#[cfg(test)]
mod tests {
    use rcgen::string::{BmpString, Ia5String, PrintableString, TeletexString};
    use rcgen::{CertificateParams, DistinguishedName, DnType, DnValue, KeyPair};

    use super::*;

    fn named(name: impl Into<DnValue>) -> Result<String, String> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("ring makes a key");
        let pem = params.serialize_request(&key).and_then(|request| request.pem()).expect("the parameters are valid");
        parse_pem(pem.as_bytes()).map(|requested| requested.common_name)
    }

    #[test]
    fn a_kind_of_string_that_go_decodes_differently_is_an_error() {
        assert_eq!(named("tool:foo"), Ok("tool:foo".to_owned()));
        let printable = PrintableString::try_from("tool:foo").expect("the text has printable characters only");
        assert_eq!(named(DnValue::PrintableString(printable)), Ok("tool:foo".to_owned()));
        // Go reads these eight bytes as four characters.
        let of_two_bytes = BmpString::from_utf16be(b"tool:foo".to_vec()).expect("the bytes are UTF-16");
        let teletex = TeletexString::try_from("tool:foo").expect("the text is ASCII");
        let ia5 = Ia5String::try_from("tool:foo").expect("the text is ASCII");
        for name in [DnValue::BmpString(of_two_bytes), DnValue::TeletexString(teletex), DnValue::Ia5String(ia5)] {
            assert_eq!(named(name.clone()), Err(UNREADABLE.to_owned()), "{name:?}");
        }
    }
}
