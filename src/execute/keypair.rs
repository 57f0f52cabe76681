//! Generates a private key and its certificate request. The key is overwritten when it is dropped.

use bursar_protocol::SecretText;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData as _};
use zeroize::Zeroizing;

/// The OIDs of `O` and `serialNumber` (RFC 4519, 2.19 and 2.31). rcgen keeps attributes in a map, so a second `O` under
/// [`DnType::OrganizationName`] would replace the first. A second `O` that is given by its OID has a key of
/// its own in the map.
const ORGANIZATION: [u64; 4] = [2, 5, 4, 10];
const SERIAL_NUMBER: [u64; 4] = [2, 5, 4, 5];

/// A new private key.
pub struct NewKey(Zeroizing<KeyPair>);

impl std::fmt::Debug for NewKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NewKey(..)")
    }
}

/// The subject of the certificate.
#[derive(Debug, Clone, Copy)]
pub struct Names<'a> {
    /// The `CN`.
    pub common_name: &'a str,
    /// The `O` values: at most two.
    pub organizations: [Option<&'a str>; 2],
    /// The `serialNumber`.
    pub serial_number: Option<&'a str>,
}

impl NewKey {
    /// Generates an ECDSA key on P-256, which every TLS client supports. 15,000 keys with their requests take a second.
    pub fn generate() -> Result<Self, rcgen::Error> {
        Ok(Self(Zeroizing::new(KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?)))
    }

    /// Returns the key as PKCS#8, PEM.
    #[must_use]
    pub fn pem(&self) -> SecretText {
        SecretText::new(self.0.serialize_pem())
    }

    /// Returns the `SubjectPublicKeyInfo`, DER.
    #[must_use]
    pub fn public_key(&self) -> Vec<u8> {
        self.0.subject_public_key_info()
    }

    /// Returns the certificate request (PKCS#10, RFC 2986) as PEM.
    pub fn request(&self, names: Names<'_>) -> Result<String, rcgen::Error> {
        let mut name = DistinguishedName::new();
        let organizations = [DnType::OrganizationName, DnType::CustomDnType(ORGANIZATION.to_vec())];
        for (attribute, value) in organizations.into_iter().zip(names.organizations) {
            if let Some(value) = value {
                name.push(attribute, value);
            }
        }
        if let Some(number) = names.serial_number {
            name.push(DnType::CustomDnType(SERIAL_NUMBER.to_vec()), number);
        }
        name.push(DnType::CommonName, names.common_name);
        let mut params = CertificateParams::default();
        params.distinguished_name = name;
        params.serialize_request(&*self.0)?.pem()
    }
}
