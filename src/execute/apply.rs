//! Server-side apply of one object that is ours, or of one that is not there: never of somebody else's (§4).
//!
//! Apply would take over a foreign object without a word. So what we do not know is read first; what we know is
//! applied with its uid, so that an object made anew by somebody else conflicts; and what is not there is applied
//! without force, so that of an object that somebody makes between the reading and the writing no value is changed:
//! the answer's status tells that it was there (200 instead of 201), and what we added is taken back.

use serde_json::{Value, json};

use super::StepError;
use super::request::{Answer, ApiServer, Ask, RequestError};
use crate::contract::{MANAGED_BY, MANAGER};
use crate::ledger::ObjectKey;
use crate::observed::cache::is_released;

/// An object that is now as we want it.
#[derive(Debug, Clone, PartialEq)]
pub struct Applied {
    /// As the server shows it.
    pub object: Value,
    /// It was made now.
    pub created: bool,
}

/// What is known of the object that is to be applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known<'a> {
    /// It is ours and has this uid.
    Uid(&'a str),
    /// We made its namespace a moment ago: it need not be looked for.
    FreshNamespace,
    /// Nothing.
    Nothing,
}

/// Makes the object be as `manifest` says.
pub async fn apply(
    server: &ApiServer,
    key: &ObjectKey,
    manifest: &Value,
    known: Known<'_>,
) -> Result<Applied, StepError> {
    let path = path_of(server, key).await?;
    let applied = match known {
        Known::Uid(uid) => match apply_known(server, &path, manifest, uid).await {
            // It is gone, or another one stands there: as if we knew nothing.
            Err(error) if error.is_other_uid() => unknown(server, key, &path, manifest).await,
            Err(error) => Err(refused(key, error)),
            Ok(answer) => Ok(Applied { object: answer.object, created: false }),
        },
        Known::FreshNamespace => create(server, key, &path, manifest).await,
        Known::Nothing => unknown(server, key, &path, manifest).await,
    }?;
    if applied.object["metadata"]["deletionTimestamp"].is_string() {
        return Err(StepError::Deleting { key: key.clone() });
    }
    if is_released(&applied.object) {
        return bind_again(server, key, &path, &applied).await;
    }
    Ok(applied)
}

/// The path of an object.
pub(super) async fn path_of(server: &ApiServer, key: &ObjectKey) -> Result<String, StepError> {
    let kind = server.kind(&key.api_version, &key.kind).await?;
    let kind =
        kind.ok_or_else(|| StepError::UnknownKind { api_version: key.api_version.clone(), kind: key.kind.clone() })?;
    Ok(kind.path(key.namespace.as_deref(), Some(&key.name)))
}

/// Whether an object is ours: it carries our label, or somebody took the label off and the fields that we applied
/// still say whose it is.
pub(super) fn is_ours(object: &Value) -> bool {
    let entries = object["metadata"]["managedFields"].as_array();
    object["metadata"]["labels"][MANAGED_BY] == MANAGER
        || entries.into_iter().flatten().any(|entry| entry["manager"] == MANAGER && entry["operation"] == "Apply")
}

async fn unknown(server: &ApiServer, key: &ObjectKey, path: &str, manifest: &Value) -> Result<Applied, StepError> {
    match server.ask(path, Ask::Get).await {
        Ok(found) => apply_found(server, key, path, manifest, &found.object).await,
        Err(error) if error.code() == Some(404) => create(server, key, path, manifest).await,
        Err(error) => Err(refused(key, error)),
    }
}

/// Applies to an object that was read just now.
async fn apply_found(
    server: &ApiServer,
    key: &ObjectKey,
    path: &str,
    manifest: &Value,
    found: &Value,
) -> Result<Applied, StepError> {
    let uid = found["metadata"]["uid"].as_str().unwrap_or_default();
    if !is_ours(found) {
        return Err(StepError::Foreign { key: key.clone() });
    }
    if found["metadata"]["deletionTimestamp"].is_string() {
        return Err(StepError::Deleting { key: key.clone() });
    }
    let answer = apply_known(server, path, manifest, uid).await.map_err(|error| refused(key, error))?;
    Ok(Applied { object: answer.object, created: false })
}

async fn apply_known(server: &ApiServer, path: &str, manifest: &Value, uid: &str) -> Result<Answer, RequestError> {
    let mut manifest = manifest.clone();
    manifest["metadata"]["uid"] = Value::String(uid.to_owned());
    server.ask(path, Ask::Apply { manifest: &manifest, force: true }).await
}

/// Makes an object that is not there.
async fn create(server: &ApiServer, key: &ObjectKey, path: &str, manifest: &Value) -> Result<Applied, StepError> {
    match server.ask(path, Ask::Apply { manifest, force: false }).await {
        Ok(answer) if answer.created || is_only_ours(&answer.object) => {
            Ok(Applied { object: answer.object, created: answer.created })
        }
        Ok(answer) => {
            withdraw(server, path, &answer.object).await.map_err(|error| refused(key, error))?;
            Err(StepError::Foreign { key: key.clone() })
        }
        // Somebody made it meanwhile, with other values: nothing was changed. It may be a former self of ours.
        Err(error) if error.code() == Some(409) => match server.ask(path, Ask::Get).await {
            Ok(found) => apply_found(server, key, path, manifest, &found.object).await,
            Err(error) => Err(refused(key, error)),
        },
        Err(error) => Err(refused(key, error)),
    }
}

/// Whether nobody but us ever set a field of it, controllers' `status` apart.
fn is_only_ours(object: &Value) -> bool {
    let entries = object["metadata"]["managedFields"].as_array();
    entries.is_some_and(|entries| {
        entries.iter().all(|entry| entry["manager"] == MANAGER || entry["subresource"].is_string())
    })
}

/// Takes back what an apply without force added to somebody else's object: fields that only we own go when they are
/// no longer applied, and no value of theirs was changed.
async fn withdraw(server: &ApiServer, path: &str, object: &Value) -> Result<(), RequestError> {
    let metadata = &object["metadata"];
    let empty = json!({
        "apiVersion": object["apiVersion"],
        "kind": object["kind"],
        "metadata": {"name": metadata["name"], "uid": metadata["uid"]},
    });
    server.ask(path, Ask::Apply { manifest: &empty, force: false }).await.map(|_| ())
}

/// Makes a Released volume available to its claim: the reference stays, the claim that is gone is forgotten.
async fn bind_again(server: &ApiServer, key: &ObjectKey, path: &str, applied: &Applied) -> Result<Applied, StepError> {
    let unbound = json!({
        "metadata": {"uid": applied.object["metadata"]["uid"]},
        "spec": {"claimRef": {"uid": null, "resourceVersion": null}},
    });
    let answer = server.ask(path, Ask::Merge(&unbound)).await.map_err(|error| refused(key, error))?;
    Ok(Applied { object: answer.object, created: applied.created })
}

/// What a refusal means for an object.
pub(super) fn refused(key: &ObjectKey, error: RequestError) -> StepError {
    let RequestError::Refused(status) = error else { return StepError::Request(error) };
    let key = key.clone();
    let terminating = status
        .details
        .as_ref()
        .is_some_and(|details| details.causes.iter().any(|cause| cause.reason == "NamespaceTerminating"));
    match status.code {
        403 if terminating => StepError::NamespaceDeleting { key },
        404 if status.details.as_ref().is_some_and(|details| details.kind == "namespaces") => {
            StepError::NoNamespace { key }
        }
        422 if key.kind == "PersistentVolume" && status.message.contains("immutable") => {
            StepError::VolumeMoved { key, source: RequestError::Refused(status) }
        }
        _ => StepError::Refused { key, source: RequestError::Refused(status) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_that_somebody_else_set_a_field_of_is_not_only_ours() {
        let object = |theirs: Value| json!({"metadata": {"managedFields": [{"manager": "bursar"}, theirs]}});
        assert!(is_only_ours(&object(json!({"manager": "kube-controller-manager", "subresource": "status"}))));
        assert!(!is_only_ours(&object(json!({"manager": "kubectl-create"}))));
        assert!(!is_only_ours(&json!({"metadata": {}})), "nothing is known of whose it is");
    }
}
