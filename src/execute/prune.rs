//! Deletion of what is ours and no longer wanted, with a UID precondition: an object that somebody else recreated is
//! left alone. A binding that stays, for a finalizer keeps it, names nobody any more.

use serde_json::json;

use super::StepError;
use super::apply::{path_of, refused};
use super::request::{ApiServer, Ask};

use crate::contract::{MANAGED_BY, MANAGER};
use crate::kinds::{ObjectKey, Stage};

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deleted {
    /// Nothing is left of it.
    Gone,
    /// It goes when its finalizers have run; a namespace, when it is empty.
    Going,
    /// Another object of that name stands there, and stays.
    Replaced,
}

/// Deletes the object with this uid.
pub async fn delete(server: &ApiServer, key: &ObjectKey, uid: &str) -> Result<Deleted, StepError> {
    let path = path_of(server, key).await?;
    let deleted = once(server, key, &path, uid).await;
    if key.kind.stage() != Stage::Access {
        return deleted;
    }
    match deleted {
        Ok(Deleted::Going) => Ok(emptied(server, key, &path, uid).await?.unwrap_or(Deleted::Going)),
        // The confinement lets the daemon delete only what carries its label, which somebody may have taken off. A policy
        // refuses with 422 unless it names another reason.
        Err(StepError::Refused { key: of, source }) if matches!(source.code(), Some(403 | 422)) => {
            match emptied(server, key, &path, uid).await {
                Ok(None) => once(server, key, &path, uid).await,
                Ok(Some(gone)) => Ok(gone),
                Err(_) => Err(StepError::Refused { key: of, source }),
            }
        }
        deleted => deleted,
    }
}

/// Takes its subjects from a binding, which from then on carries our label. Returns what became of it if it is not there.
async fn emptied(server: &ApiServer, key: &ObjectKey, path: &str, uid: &str) -> Result<Option<Deleted>, StepError> {
    let nobody = json!({"metadata": {"uid": uid, "labels": {MANAGED_BY: MANAGER}}, "subjects": null});
    match server.ask(path, Ask::Merge(&nobody)).await {
        Ok(_) => Ok(None),
        Err(error) if error.code() == Some(404) => Ok(Some(Deleted::Gone)),
        Err(error) if error.is_other_uid() => match conflicting(server, key, path, uid).await? {
            // It is the one that is meant, and somebody wrote it at the same moment.
            Deleted::Going => Err(refused(key, error)),
            deleted => Ok(Some(deleted)),
        },
        Err(error) => Err(refused(key, error)),
    }
}

async fn once(server: &ApiServer, key: &ObjectKey, path: &str, uid: &str) -> Result<Deleted, StepError> {
    match server.ask(path, Ask::Delete { uid }).await {
        // A `Status` when it is gone, the object while it is going.
        Ok(answer) if answer.object["metadata"]["deletionTimestamp"].is_string() => Ok(Deleted::Going),
        Ok(_) => Ok(Deleted::Gone),
        Err(error) if error.code() == Some(404) => Ok(Deleted::Gone),
        // Either the uid is another's, or a namespace is already being emptied.
        Err(error) if error.code() == Some(409) => conflicting(server, key, path, uid).await,
        Err(error) => Err(refused(key, error)),
    }
}

async fn conflicting(server: &ApiServer, key: &ObjectKey, path: &str, uid: &str) -> Result<Deleted, StepError> {
    match server.ask(path, Ask::Get).await {
        Ok(found) if found.object["metadata"]["uid"] == uid => Ok(Deleted::Going),
        Ok(_) => Ok(Deleted::Replaced),
        Err(error) if error.code() == Some(404) => Ok(Deleted::Gone),
        Err(error) => Err(refused(key, error)),
    }
}
