//! What this host installed, in the state folder: by it the daemon knows that what is gone was there.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::WebhookRequest;
use crate::bootstrap::{AccessError, files};
use crate::identity::ClusterName;
use crate::privilege;
use crate::rules::senders::Senders;

const FILE: &str = "installed.json";

/// What the configurations were made with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remembered {
    /// Where the webhook is; absent: in the cluster.
    pub url: Option<String>,
    /// Whom the API server was told to believe about it, PEM.
    pub authorities: String,
    /// When its certificate is to be replaced.
    pub renew_after: Timestamp,
    /// When its certificate ends.
    pub not_after: Timestamp,
    /// Who may send reviews. A record of an older version does not have it.
    #[serde(default)]
    pub senders: Senders,
}

fn path(state_dir: &Path, cluster: &ClusterName) -> PathBuf {
    state_dir.join("webhook").join(&cluster.0).join(FILE)
}

/// What was installed here; `None`: nothing, or it was removed.
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

/// As the daemon's user, whose file it is.
pub(super) async fn remember(request: WebhookRequest<'_>, what: &Remembered) -> Result<(), AccessError> {
    let path = path(request.state_dir, request.cluster);
    let text = serde_json::to_vec_pretty(what);
    let written = privilege::as_bursar(async {
        let text = text.map_err(|error| AccessError::Write { path: path.clone(), source: error.into() })?;
        files::replace(&path, &text)
    });
    written.await.map_err(|error| AccessError::Write { path: path.clone(), source: error.into() })?
}

/// It was removed by an administrator's order.
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
