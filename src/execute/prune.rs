//! Deletes objects of Bursar that are no longer wanted, with a UID precondition, so that an object that somebody else
//! recreated is left alone. If a finalizer keeps a binding, its subjects are removed.

use serde_json::json;

use super::StepError;
use super::apply::{path_of, refused};
use super::request::{ApiServer, Ask};

use crate::contract::{MANAGED_BY, MANAGER};
use crate::kinds::{ObjectKey, Stage};

/// The result of a deletion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deleted {
    /// The object is gone.
    Gone,
    /// The object is deleted when its finalizers have run; a namespace, when it is empty.
    Going,
    /// Another object has the name, and stays.
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
        // The daemon may delete only objects with its label, which somebody may have removed. A policy refuses with 422
        // unless it names another reason.
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

/// Removes the subjects of a binding, and sets our label. Returns the state of the deletion if the binding no longer
/// exists.
async fn emptied(server: &ApiServer, key: &ObjectKey, path: &str, uid: &str) -> Result<Option<Deleted>, StepError> {
    let nobody = json!({"metadata": {"uid": uid, "labels": {MANAGED_BY: MANAGER}}, "subjects": null});
    match server.ask(path, Ask::Merge(&nobody)).await {
        Ok(_) => Ok(None),
        Err(error) if error.code() == Some(404) => Ok(Some(Deleted::Gone)),
        Err(error) if error.is_other_uid() => match conflicting(server, key, path, uid).await? {
            // It is the right object, but somebody wrote it at the same moment.
            Deleted::Going => Err(refused(key, error)),
            deleted => Ok(Some(deleted)),
        },
        Err(error) => Err(refused(key, error)),
    }
}

async fn once(server: &ApiServer, key: &ObjectKey, path: &str, uid: &str) -> Result<Deleted, StepError> {
    match server.ask(path, Ask::Delete { uid }).await {
        // The answer is a `Status` if the object is gone, and the object if it is still being deleted.
        Ok(answer) if answer.object["metadata"]["deletionTimestamp"].is_string() => Ok(Deleted::Going),
        Ok(_) => Ok(Deleted::Gone),
        Err(error) if error.code() == Some(404) => Ok(Deleted::Gone),
        // Either another object has the name, or the namespace is already being emptied.
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
