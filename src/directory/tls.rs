//! Whom a directory client trusts: the configured issuers and nobody else, or the system's where none is configured.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{self, PemObject};
use rustls::{ClientConfig, RootCertStore};

/// Why there is nobody to trust.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// `ca` cannot be parsed.
    #[error("ca is not PEM")]
    Pem(#[source] pem::Error),
    /// `ca` holds something that is no certificate of an issuer.
    #[error("ca holds a certificate that cannot be used")]
    Certificate(#[source] rustls::Error),
    /// `ca` is empty, or the system trusts nobody.
    #[error("{0} holds no certificate")]
    Empty(&'static str),
    /// ring supports the default protocol versions; this is here so that nothing needs a proof.
    #[error("no protocol version")]
    Protocol(#[source] rustls::Error),
}

/// A client that trusts the issuers in `ca_pem` only, or the system's where there is none.
pub fn client_config(ca_pem: Option<&str>) -> Result<Arc<ClientConfig>, TlsError> {
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
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ca_without_certificates_is_refused() {
        for nothing in ["", "hello\n"] {
            assert!(matches!(client_config(Some(nothing)), Err(TlsError::Empty("ca"))), "{nothing:?}");
        }
        let broken = "-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n";
        assert!(matches!(client_config(Some(broken)), Err(TlsError::Pem(_))));
    }
}
