//! Whom an API server believes about its clients, as it says itself: ConfigMap `extension-apiserver-authentication` in
//! `kube-system`, which every API server keeps for those that extend it. Asked once, and again when a certificate is not
//! signed by any of them: the authorities may have been replaced meanwhile.

use std::sync::Arc;

use tokio::sync::Mutex;

use super::request::{ApiServer, Ask, RequestError};
use crate::certificate::{Asked, CertificateError, Issued, verify};

const PATH: &str = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
/// Its key: the file of `--client-ca-file`.
const KEY: &str = "client-ca-file";

/// What the API server said; nothing yet at first.
#[derive(Debug, Default)]
pub struct ClientAuthorities(Mutex<Option<Said>>);

/// PEM; `None`: it does not say, or not to us.
type Said = Option<Arc<str>>;

/// Checks a certificate against what was asked and against those whom the API server believes. An API server that does
/// not say whom is not held against it: the probe of the endpoints comes after.
pub async fn verified(server: &ApiServer, pem: &[u8], asked: &Asked<'_>) -> Result<Issued, VerifyError> {
    let against = |said: &Said| verify(pem, &Asked { authorities: said.as_deref(), ..asked.clone() });
    match against(&said(server, false).await?) {
        Err(CertificateError::Untrusted(_)) => Ok(against(&said(server, true).await?)?),
        result => Ok(result?),
    }
}

/// Why a certificate is not known to be good.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// It is not.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The API server was not asked whom it believes.
    #[error("the API server's client authorities cannot be read")]
    Request(#[from] RequestError),
}

/// What it said, or says now; all others wait for the one who asks.
async fn said(server: &ApiServer, anew: bool) -> Result<Said, RequestError> {
    let mut known = server.authorities().0.lock().await;
    if let Some(said) = known.as_ref().filter(|_| !anew) {
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
