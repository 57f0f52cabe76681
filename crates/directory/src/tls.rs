//! The TLS configuration of directory clients: the issuers that they trust, and their own certificate, if one is
//! configured. If no issuers are configured, clients trust those of the system.

use std::sync::Arc;

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::source::{ClientIdentity, Secret};

/// Why a TLS client cannot be configured.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("ca is not PEM")]
    Pem(#[source] pem::Error),
    /// `ca` holds a certificate that cannot be used as an issuer.
    #[error("ca holds a certificate that cannot be used")]
    Certificate(#[source] rustls::Error),
    /// `ca` holds no certificate, or the system trusts no issuer.
    #[error("{0} holds no certificate")]
    Empty(&'static str),
    #[error("client_certificate or client_key is not PEM")]
    IdentityPem(#[source] pem::Error),
    /// The certificate and the key are not a pair, or `ring` does not support the type of the key.
    #[error("client_certificate and client_key cannot be used")]
    Identity(#[source] rustls::Error),
    /// Never happens: `ring` supports the default protocol versions. The variant avoids an `expect`.
    #[error("TLS is not available: no protocol version is supported")]
    Protocol(#[source] rustls::Error),
}

/// Returns a client that trusts only the issuers in `ca_pem`, or the system's if `ca_pem` is `None`. If a server asks
/// for a certificate, the client shows `identity`.
pub fn client_config(ca_pem: Option<&str>, identity: Option<&ClientIdentity>) -> Result<Arc<ClientConfig>, TlsError> {
    let mut roots = RootCertStore::empty();
    match ca_pem {
        Some(pem) => {
            for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
                roots.add(certificate.map_err(TlsError::Pem)?).map_err(TlsError::Certificate)?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    if roots.is_empty() {
        return Err(TlsError::Empty(if ca_pem.is_some() { "ca" } else { "the system's trust store" }));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Protocol)?
        .with_root_certificates(roots);
    let Some(ClientIdentity { certificate_pem, key }) = identity else {
        return Ok(Arc::new(config.with_no_client_auth()));
    };
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate_pem.as_bytes()).collect();
    let key = key.as_ref().map(Secret::reveal).unwrap_or_default();
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(TlsError::IdentityPem)?;
    let chain = chain.map_err(TlsError::IdentityPem)?;
    Ok(Arc::new(config.with_client_auth_cert(chain, key).map_err(TlsError::Identity)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ca_without_certificates_is_refused() {
        for nothing in ["", "hello\n"] {
            assert!(matches!(client_config(Some(nothing), None), Err(TlsError::Empty("ca"))), "{nothing:?}");
        }
        let broken = "-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n";
        assert!(matches!(client_config(Some(broken), None), Err(TlsError::Pem(_))));
    }
}
