//! Records in the state folder which webhook this host installed, so that the daemon notices if the webhook's
//! configurations disappear from the cluster.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::WebhookRequest;
use crate::bootstrap::{AccessError, files};
use crate::identity::ClusterName;
use crate::privilege;
use crate::rules::senders::Senders;

const FILE: &str = "installed.json";

/// The input of the installed configurations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remembered {
    /// The webhook's URL; `None` if it runs in the cluster.
    pub url: Option<String>,
    /// The authorities that the API server was told to trust, PEM.
    pub authorities: String,
    /// When the webhook's certificate is due for renewal.
    pub renew_after: Timestamp,
    /// When the webhook's certificate expires.
    pub not_after: Timestamp,
    /// The clients that may send reviews. A record of an older version does not have this field.
    #[serde(default)]
    pub senders: Senders,
}

fn path(state_dir: &Path, cluster: &ClusterName) -> PathBuf {
    state_dir.join("webhook").join(cluster.0.as_str()).join(FILE)
}

/// Returns what was installed from this host; `None` if nothing was, or if it was uninstalled.
pub fn remembered(request: WebhookRequest<'_>) -> Result<Option<Remembered>, AccessError> {
    let path = path(request.state_dir, request.cluster);
    let text = match std::fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(AccessError::Read { path, source }),
    };
    let parsed = serde_json::from_slice(&text);
    parsed.map(Some).map_err(|error| AccessError::Read { path, source: error.into() })
}

/// Writes the record as the daemon's user, who owns the file.
pub(super) async fn remember(request: WebhookRequest<'_>, what: &Remembered) -> Result<(), AccessError> {
    let path = path(request.state_dir, request.cluster);
    let text = serde_json::to_vec_pretty(what);
    let written = privilege::as_bursar(async {
        let text = text.map_err(|error| AccessError::Write { path: path.clone(), source: error.into() })?;
        files::replace(&path, &text)
    });
    written.await.map_err(|error| AccessError::Write { path: path.clone(), source: error.into() })?
}

/// Removes the record after an administrator uninstalled the webhook.
pub(in crate::bootstrap) async fn forget(state_dir: &Path, cluster: &ClusterName) -> Result<(), AccessError> {
    let path = path(state_dir, cluster);
    let removed = privilege::as_bursar(async {
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    });
    let failed = |source| AccessError::Write { path: path.clone(), source };
    removed.await.map_err(|error| failed(error.into()))?.map_err(failed)
}
