//! Private certificate authorities for the test servers.

use std::fs::Permissions;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};

/// A certificate and its key, as PEM.
#[derive(Debug)]
pub struct Identity {
    pub certificate: String,
    /// The private key, PKCS #8.
    pub key: String,
}

/// An authority that signs server and client certificates.
pub struct Authority {
    identity: Identity,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Creates a self-signed authority.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self::with(name, CertificateParams::default())
    }

    /// Like [`Self::new`], valid until midnight of a day (UTC).
    #[must_use]
    pub fn until(name: &str, (year, month, day): (i32, u8, u8)) -> Self {
        let mut params = CertificateParams::default();
        params.not_after = rcgen::date_time_ymd(year, month, day);
        Self::with(name, params)
    }

    fn with(name: &str, mut params: CertificateParams) -> Self {
        let key = KeyPair::generate().expect("the system gives randomness");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key).expect("the parameters are valid");
        let identity = Identity { certificate: certificate.pem(), key: key.serialize_pem() };
        Self { identity, issuer: Issuer::new(params, key) }
    }

    /// The authority's own certificate and key.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// A certificate for a server on loopback: `localhost`, 127.0.0.1, and further DNS names.
    #[must_use]
    pub fn server(&self, names: &[&str]) -> Identity {
        let names: Vec<String> = std::iter::once("localhost").chain(names.iter().copied()).map(Into::into).collect();
        let mut params = CertificateParams::new(names).expect("the names are DNS names");
        params.subject_alt_names.push(SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        params.distinguished_name.push(DnType::CommonName, "localhost");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(params)
    }

    /// A client certificate. For Kubernetes, `name` is the user and `organization` the only group: a
    /// `DistinguishedName` of rcgen keeps only the last of several organizations.
    #[must_use]
    pub fn client(&self, name: &str, organization: &str) -> Identity {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.distinguished_name.push(DnType::OrganizationName, organization);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params)
    }

    fn sign(&self, mut params: CertificateParams) -> Identity {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().expect("the system gives randomness");
        let certificate = params.signed_by(&key, &self.issuer).expect("the parameters are valid");
        Identity { certificate: certificate.pem(), key: key.serialize_pem() }
    }
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

/// Writes a file that all can read, and returns its path.
pub fn write_public(folder: &Path, name: &str, content: &str) -> PathBuf {
    write(folder, name, content, 0o644)
}

/// Writes a file that only its owner can read, and returns its path.
pub fn write_private(folder: &Path, name: &str, content: &str) -> PathBuf {
    write(folder, name, content, 0o600)
}

fn write(folder: &Path, name: &str, content: &str, mode: u32) -> PathBuf {
    let path = folder.join(name);
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(&path, ""))
        .and_then(|()| std::fs::set_permissions(&path, Permissions::from_mode(mode)))
        .and_then(|()| std::fs::write(&path, content))
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    path
}
