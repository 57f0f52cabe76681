//! Records in the state folder which webhook this host installed, so that the daemon notices if the webhook's
//! configurations disappear from the cluster.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use serde::{Deserialize, Serialize};

use super::authority::certificates;
use super::{InstalledWebhook, WebhookRequest, found};
use crate::bootstrap::{AccessError, files};
use crate::identity::ClusterName;
use crate::privilege;
use crate::rules::senders::Senders;
use crate::store::FileLock;

const FILE: &str = "installed.json";
const LOCK: &str = "lock";
/// The pause between two attempts to take the lock.
const AGAIN: Duration = Duration::from_millis(250);
/// One minute: an update of the webhook takes a few seconds.
const TRIES: usize = 240;

/// The right to write the webhook's configurations and their record. The daemon repairs the configurations by the
/// record, and a command replaces both. Without the lock, the daemon could write the former webhook over the new one.
#[derive(Debug)]
pub(super) struct Turn {
    _lock: FileLock,
}

/// Waits until no other process changes the webhook.
///
/// # Errors
/// Another process has the lock for a minute, or the lock cannot be opened.
pub(super) async fn turn(state_dir: &Path, cluster: &ClusterName) -> Result<Turn, AccessError> {
    let path = path(state_dir, cluster).with_file_name(LOCK);
    let failed = |source| AccessError::Write { path: path.clone(), source };
    let opened = privilege::as_bursar(async { files::open_lock(&path) }).await;
    let file = opened.map_err(|error| failed(error.into()))?.map_err(failed)?;
    match locked(file, TRIES).await.map_err(failed)? {
        Some(turn) => Ok(turn),
        None => Err(AccessError::WebhookBusy { cluster: cluster.clone() }),
    }
}

/// Takes the lock; `None` if another process has it at each try.
async fn locked(mut file: File, tries: usize) -> std::io::Result<Option<Turn>> {
    for _ in 0..tries {
        file = match FileLock::attempt(file)? {
            Ok(lock) => return Ok(Some(Turn { _lock: lock })),
            Err(file) => file,
        };
        tokio::time::sleep(AGAIN).await;
    }
    Ok(None)
}

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
pub fn remembered(state_dir: &Path, cluster: &ClusterName) -> Result<Option<Remembered>, AccessError> {
    let path = path(state_dir, cluster);
    let text = match std::fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(AccessError::Read { path, source }),
    };
    let parsed = serde_json::from_slice(&text);
    parsed.map(Some).map_err(|error| AccessError::Read { path, source: error.into() })
}

/// Returns the authorities that the API server trusts for the webhook, PEM; empty if no webhook is installed. They come
/// from this host's record, because those of `before`, the webhook in the cluster, may be a thief's.
///
/// # Errors
/// This host did not install the webhook, or the record cannot be read.
pub(super) fn believed(
    state_dir: &Path,
    cluster: &ClusterName,
    before: Option<&InstalledWebhook>,
) -> Result<String, AccessError> {
    match (remembered(state_dir, cluster)?, before) {
        (Some(remembered), _) => Ok(remembered.authorities),
        (None, None) => Ok(String::new()),
        (None, Some(_)) => Err(AccessError::ForeignWebhook { cluster: cluster.clone() }),
    }
}

/// Whether the cluster has a webhook that this host did not install, or that another host has replaced since. The record
/// of a replaced webhook is removed: by it, the daemon would write its former configurations again.
pub async fn is_foreign(client: &Client, state_dir: &Path, cluster: &ClusterName) -> Result<bool, AccessError> {
    let Some(found) = found(client).await? else { return Ok(false) };
    let Some(remembered) = remembered(state_dir, cluster)? else { return Ok(true) };
    if !is_replaced(&found, &remembered) {
        return Ok(false);
    }
    forget(state_dir, cluster).await?;
    Ok(true)
}

/// Whether the API server trusts none of the authorities that this host installed.
fn is_replaced(found: &InstalledWebhook, remembered: &Remembered) -> bool {
    certificates(&found.believed).is_disjoint(&certificates(&remembered.authorities))
}

/// Writes the record as the daemon's user, who owns the file.
pub(super) async fn remember(_turn: &Turn, request: WebhookRequest<'_>, what: &Remembered) -> Result<(), AccessError> {
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
    if !path.exists() {
        return Ok(());
    }
    // A repair that has begun ends first, and a later one finds no record.
    let _turn = turn(state_dir, cluster).await?;
    let removed = privilege::as_bursar(async {
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    });
    let failed = |source| AccessError::Write { path: path.clone(), source };
    removed.await.map_err(|error| failed(error.into()))?.map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pem(name: &str) -> String {
        format!("-----BEGIN CERTIFICATE-----\n{name}\n-----END CERTIFICATE-----\n")
    }

    fn trusting(name: &str) -> InstalledWebhook {
        InstalledWebhook { believed: pem(name), ..InstalledWebhook::default() }
    }

    #[tokio::test]
    async fn one_process_at_a_time_changes_a_webhook() {
        let folder = tempfile::tempdir().expect("the temporary folder is writable");
        let path = path(folder.path(), &ClusterName("prod".into())).with_file_name(LOCK);
        let open = || files::open_lock(&path).expect("the folder is writable");
        let first = locked(open(), 1).await.expect("the file can be locked");
        assert!(first.is_some());
        assert!(locked(open(), 2).await.expect("the file can be locked").is_none());
        drop(first);
        assert!(locked(open(), 1).await.expect("the file can be locked").is_some());
    }

    #[test]
    fn authorities_that_another_host_put_into_the_cluster_are_not_trusted() {
        let folder = tempfile::tempdir().expect("the temporary folder is writable");
        let cluster = ClusterName("prod".into());
        let thief = trusting("thief");
        let believed = |before| believed(folder.path(), &cluster, before);
        assert_eq!(believed(None).expect("no webhook is installed"), "");
        let error = believed(Some(&thief)).expect_err("this host did not install it").to_string();
        assert!(error.contains("bursar webhook uninstall --cluster prod"), "{error}");
        let remembered = Remembered {
            url: None,
            authorities: pem("own"),
            renew_after: Timestamp::UNIX_EPOCH,
            not_after: Timestamp::UNIX_EPOCH,
            senders: Senders::default(),
        };
        let path = path(folder.path(), &cluster);
        std::fs::create_dir_all(path.parent().expect("the path has a folder")).expect("the folder is writable");
        std::fs::write(&path, serde_json::to_vec(&remembered).expect("the record has a JSON form"))
            .expect("the folder is writable");
        assert_eq!(believed(Some(&thief)).expect("the record is readable"), pem("own"));
        assert!(is_replaced(&thief, &remembered) && !is_replaced(&trusting("own"), &remembered));
    }
}
