//! The certificate authorities that an API server trusts for its clients, from ConfigMap
//! `extension-apiserver-authentication` in `kube-system`, which every API server keeps for extension API servers. The
//! authorities are read once. If none of them signed a certificate, they may have been replaced, so they are read
//! again.

use std::sync::Arc;

use tokio::sync::Mutex;

use super::request::{ApiServer, Ask, RequestError};
use crate::certificate::{Asked, CertificateError, Issued, verify};

const PATH: &str = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
/// The key in the ConfigMap: the content of `--client-ca-file`.
const KEY: &str = "client-ca-file";

/// The authorities as last read; `None` if they were not read yet.
#[derive(Debug, Default)]
pub struct ClientAuthorities(Mutex<Option<Said>>);

/// The authorities as PEM; `None` if the ConfigMap does not have them, or the daemon may not read it.
type Said = Option<Arc<str>>;

/// Checks that a certificate has the requested content, and that an authority signed it that the API server trusts. If
/// the authorities are unknown, only the content is checked: the test of the endpoints follows anyway.
pub async fn verified(server: &ApiServer, pem: &[u8], asked: &Asked<'_>) -> Result<Issued, VerifyError> {
    let against = |said: &Said| verify(pem, &Asked { authorities: said.as_deref(), ..asked.clone() });
    match against(&said(server, false).await?) {
        Err(CertificateError::Untrusted(_)) => Ok(against(&said(server, true).await?)?),
        result => Ok(result?),
    }
}

/// Why a certificate is not known to be valid.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The certificate is not valid.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The authorities could not be read.
    #[error("the API server's client authorities cannot be read")]
    Request(#[from] RequestError),
}

/// Returns the authorities, and reads them if `again` or if they are unknown. Concurrent callers wait for one read.
async fn said(server: &ApiServer, again: bool) -> Result<Said, RequestError> {
    let mut known = server.authorities().0.lock().await;
    if let Some(said) = known.as_ref().filter(|_| !again) {
        return Ok(said.clone());
    }
    let said = match server.ask(PATH, Ask::Get).await {
        Ok(found) => found.object["data"][KEY].as_str().map(Arc::from),
        Err(error) if matches!(error.code(), Some(403 | 404)) => None,
        Err(error) => return Err(error),
    };
    *known = Some(said.clone());
    Ok(said)
}
