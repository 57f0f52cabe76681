//! Deletion of what is ours and no longer wanted, with a UID precondition: an object that somebody else recreated is
//! left alone.

use super::StepError;
use super::apply::{path_of, refused};
use super::request::{ApiServer, Ask};

use crate::kinds::ObjectKey;

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
    match server.ask(&path, Ask::Delete { uid }).await {
        // A `Status` when it is gone, the object while it is going.
        Ok(answer) if answer.object["metadata"]["deletionTimestamp"].is_string() => Ok(Deleted::Going),
        Ok(_) => Ok(Deleted::Gone),
        Err(error) if error.code() == Some(404) => Ok(Deleted::Gone),
        // Either the uid is another's, or a namespace is already being emptied.
        Err(error) if error.code() == Some(409) => conflicting(server, key, &path, uid).await,
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
