//! Parses a certificate request (PKCS#10, RFC 2986) into a [`Requested`].
//!
//! The signer reads the same bytes with another parser (Go's), so anything that two parsers could read in two ways is
//! an error.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use x509_parser::asn1_rs::{Any, Oid, Tag};
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
    for (kind, value) in attributes(info.subject.as_raw()).ok_or_else(unreadable)? {
        let value = value.to_owned();
        if kind == OID_X509_COMMON_NAME {
            names.push(value);
        } else if kind == OID_X509_ORGANIZATION_NAME {
            organizations.push(value);
        } else if kind == OID_X509_SERIALNUMBER {
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

/// Returns type and value of each attribute of a subject; `None` if any byte of it is something else. `x509_parser`
/// ignores the rest of a sequence or set from the first element that it cannot read (for example an empty set), and Go
/// reads that rest, so `X509Name` could lack groups that the certificate gets.
fn attributes(subject: &[u8]) -> Option<Vec<(Oid<'_>, &str)>> {
    let [name]: [Any<'_>; 1] = elements(subject)?.try_into().ok()?;
    let mut attributes = Vec::new();
    for set in contents(&name, Tag::Sequence)? {
        for attribute in contents(&set, Tag::Set)? {
            let [kind, value]: [Any<'_>; 2] = contents(&attribute, Tag::Sequence)?.try_into().ok()?;
            // Go decodes other kinds of strings differently: a BMPString has two bytes for each character.
            let is_text = [Tag::Utf8String, Tag::PrintableString].contains(&value.tag());
            if kind.tag() != Tag::Oid || !is_text || value.header.is_constructed() {
                return None;
            }
            attributes.push((Oid::try_from(kind).ok()?, std::str::from_utf8(value.data).ok()?));
        }
    }
    Some(attributes)
}

fn contents<'a>(element: &Any<'a>, tag: Tag) -> Option<Vec<Any<'a>>> {
    if element.tag() == tag && element.header.is_constructed() { elements(element.data) } else { None }
}

/// Reads all bytes as a series of elements.
fn elements(mut der: &[u8]) -> Option<Vec<Any<'_>>> {
    let mut elements = Vec::new();
    while !der.is_empty() {
        let (rest, element) = Any::from_der(der).ok()?;
        if !element.header.is_universal() {
            return None;
        }
        elements.push(element);
        der = rest;
    }
    Some(elements)
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
    use rcgen::{CertificateParams, DistinguishedName, DnType, DnValue, KeyPair, PublicKeyData as _};

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

    const SEQUENCE: u8 = 0x30;
    const SET: u8 = 0x31;
    const UTF8: u8 = 0x0c;
    /// ecdsa-with-SHA256.
    const ALGORITHM: [u8; 12] = [0x30, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];

    fn der(tag: u8, contents: &[&[u8]]) -> Vec<u8> {
        let contents = contents.concat();
        let length = match u16::try_from(contents.len()).expect("a request is short").to_be_bytes() {
            [0, low @ 0..0x80] => vec![low],
            [0, low] => vec![0x81, low],
            [high, low] => vec![0x82, high, low],
        };
        [vec![tag], length, contents].concat()
    }

    /// Returns an attribute, whose type is 2.5.4 and this number.
    fn attribute(number: u8, tag: u8, value: &str) -> Vec<u8> {
        der(SEQUENCE, &[&[6, 3, 0x55, 4, number], &der(tag, &[value.as_bytes()])])
    }

    /// Parses a request with this subject. It has no valid signature, because only the API server verifies it.
    fn with_subject(sets: &[&[u8]]) -> Result<Vec<String>, String> {
        let key = KeyPair::generate().expect("ring makes a key").subject_public_key_info();
        let info = der(SEQUENCE, &[&[2, 1, 0], &der(SEQUENCE, sets), &key, &[0xa0, 0]]);
        let request = BASE64.encode(der(SEQUENCE, &[&info, &ALGORITHM, &[3, 2, 0, 0]]));
        parse_pem(format!("{BEGIN}\n{request}\n{END}\n").as_bytes()).map(|requested| requested.organizations)
    }

    #[test]
    fn every_byte_of_a_subject_is_read() {
        let (name, group) = (attribute(3, UTF8, "tool:foo"), attribute(10, UTF8, "bursar:tools"));
        let (hidden, null, empty) = (attribute(10, UTF8, "kubeadm:cluster-admins"), [5_u8, 0], der(SET, &[]));
        let own = der(SET, &[&name, &group]);
        assert_eq!(with_subject(&[&own]), Ok(vec!["bursar:tools".to_owned()]));
        assert_eq!(with_subject(&[&der(SET, &[&name]), &der(SET, &[&group])]), Ok(vec!["bursar:tools".to_owned()]));
        let rest = der(SET, &[&hidden]);
        // Go reads what follows an empty set.
        assert_eq!(with_subject(&[&own, &empty, &rest]), Err(UNREADABLE.to_owned()));
        assert_eq!(with_subject(&[&own, &null, &rest]), Err(UNREADABLE.to_owned()));
        assert_eq!(with_subject(&[&der(SET, &[&name, &group, &null, &hidden])]), Err(UNREADABLE.to_owned()));
        // A text of another class, and one that consists of parts: Go skips them.
        for tag in [UTF8 | 0x80, UTF8 | 0x20] {
            let name = attribute(3, tag, "tool:foo");
            assert_eq!(with_subject(&[&der(SET, &[&name, &group])]), Err(UNREADABLE.to_owned()), "{tag:#x}");
        }
    }
}
