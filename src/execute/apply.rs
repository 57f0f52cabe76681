//! Writes one object by server-side apply. The object is Bursar's or does not exist yet. An object of somebody else is
//! taken over only if an administrator orders that.
//!
//! Apply would silently take over a foreign object, so each request names the object that it expects. A known object is
//! named by its uid, so that the request conflicts if somebody else recreated the object. For an unknown object, the
//! request names a `resourceVersion` that no object has ([`NO_OBJECT`]): if an object exists, the request conflicts, so
//! nothing has to be read before a creation.

use std::time::Duration;

use serde_json::{Value, json};

use super::StepError;
use super::request::{ApiAnswer, ApiServer, Ask, RequestError};
use crate::bootstrap::MarkKeeper;
use crate::contract::{MANAGED_BY, MANAGER, identity_of};
use crate::desired::credential::of_service_account;
use crate::desired::of_generation_group;
use crate::identity::{AccountId, NamespaceName};
use crate::kinds::{Data, ObjectKey};
use crate::observed::cache::is_released;
use crate::packed_text::UuidText;

/// How long a write to a binding waits for the mark before it at least removes the subjects that must lose access. The
/// removal needs no mark.
const TAKES_WITHOUT_MARK: Duration = Duration::from_secs(1);

/// The result of a successful apply: the object is as desired.
#[derive(Debug, Clone, PartialEq)]
pub struct Applied {
    /// The object as the API server shows it.
    pub object: Value,
    /// Whether the object was created.
    pub created: bool,
    /// Whether the object belonged to somebody else before.
    pub adopted: bool,
}

/// A `resourceVersion` that no object has: etcd's revision before the first write. If the object does not exist, an API
/// server creates it; if it exists, the answer is 409. This was measured on Kubernetes 1.36 and is not documented; the
/// tests of this module check it.
const NO_OBJECT: &str = "1";

/// The condition that an existing object must meet before it is overwritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim<'a> {
    /// No condition, because an administrator ordered to take the object over.
    Any,
    /// The object is Bursar's.
    Ours,
    /// The object is a service account that has our label or this uid. The field manager proves nothing here: any
    /// client may call itself `bursar`, and somebody may hold tokens of a service account that others made. Only Bursar
    /// sets the label.
    Made(Option<&'a UuidText>),
    /// The object is a namespace whose seal names this account. A label proves nothing here: others can set it, and the
    /// objects that they put into the namespace would stay.
    Sealed(&'a AccountId),
}

/// Makes the object agree with `manifest`. `uid` is the uid of the known object.
pub async fn apply(
    server: &ApiServer,
    key: &ObjectKey,
    manifest: &Value,
    uid: Option<&str>,
    claim: Claim<'_>,
) -> Result<Applied, StepError> {
    let path = path_of(server, key).await?;
    if let (Some(mark), Some(generation)) = (server.mark(), highest_generation(manifest)) {
        let raised = match uid {
            None => mark.raise(generation).await,
            Some(uid) => {
                let mut raising = std::pin::pin!(mark.raise_soon(generation));
                let waited = tokio::time::timeout(TAKES_WITHOUT_MARK, &mut raising).await;
                if !matches!(waited, Ok(Ok(()))) {
                    take(server, mark, key, &path, manifest, uid).await?;
                }
                match waited {
                    Ok(raised) => raised,
                    Err(_) => raising.await,
                }
            }
        };
        raised.map_err(|source| StepError::Unmarked { cluster: server.cluster.clone(), source: Box::new(source) })?;
    }
    let known = match uid {
        None => None,
        // `create` reads the namespace and compares its seal.
        Some(_) if matches!(claim, Claim::Sealed(_)) => None,
        Some(uid) => match apply_where(server, &path, manifest, "uid", uid).await {
            // The object was deleted or recreated, so it is treated as unknown.
            Err(error) if error.is_other_uid() => None,
            answer => Some(answer.map_err(|error| refused(key, error))?),
        },
    };
    let applied = match known {
        Some(answer) => Applied { object: answer.object, created: false, adopted: false },
        None => create(server, key, &path, manifest, claim).await?,
    };
    if applied.object["metadata"]["deletionTimestamp"].is_string() {
        return Err(StepError::Deleting { key: key.clone() });
    }
    if is_released(&key.kind, &applied.object) {
        return bind_again(server, key, &path, &applied).await;
    }
    Ok(applied)
}

/// Removes the subjects from a binding that `manifest` no longer names, although the mark is not raised yet. The next
/// plan sees the result.
async fn take(
    server: &ApiServer,
    mark: &MarkKeeper,
    key: &ObjectKey,
    path: &str,
    manifest: &Value,
    uid: &str,
) -> Result<(), StepError> {
    if mark.may_write() {
        let covered = without(manifest, |subject| generation_of(subject).is_none_or(|it| mark.has_covered(it)));
        apply_where(server, path, &covered, "uid", uid).await.map_err(|error| refused(key, error))?;
    }
    Ok(())
}

/// Returns the highest generation that a binding gives rights to, by a group or by a service account.
fn highest_generation(manifest: &Value) -> Option<u64> {
    manifest["subjects"].as_array().into_iter().flatten().filter_map(generation_of).max()
}

fn generation_of(subject: &Value) -> Option<u64> {
    let name = subject["name"].as_str()?;
    of_generation_group(name).map(|(_, generation)| generation).or_else(|| of_service_account(name))
}

/// Returns the binding with only those subjects for which `keeps` is true.
fn without(manifest: &Value, keeps: impl Fn(&Value) -> bool) -> Value {
    let mut manifest = manifest.clone();
    if let Some(subjects) = manifest["subjects"].as_array_mut() {
        subjects.retain(keeps);
    }
    manifest
}

/// Returns the API path of an object.
pub(super) async fn path_of(server: &ApiServer, key: &ObjectKey) -> Result<String, StepError> {
    let kind = server.kind(&key.kind).await?.ok_or_else(|| StepError::UnknownKind { kind: key.kind.clone() })?;
    Ok(kind.path(key.namespace.as_deref(), Some(&key.name)))
}

/// Whether an object is Bursar's: it has Bursar's label, or the label was removed and the managed fields still show
/// that Bursar applied it.
pub(super) fn is_ours(object: &Value) -> bool {
    let entries = object["metadata"]["managedFields"].as_array();
    object["metadata"]["labels"][MANAGED_BY] == MANAGER
        || entries.into_iter().flatten().any(|entry| entry["manager"] == MANAGER && entry["operation"] == "Apply")
}

/// Creates an object. If it exists already, checks whether it may be written.
async fn create(
    server: &ApiServer,
    key: &ObjectKey,
    path: &str,
    manifest: &Value,
    claim: Claim<'_>,
) -> Result<Applied, StepError> {
    match apply_where(server, path, manifest, "resourceVersion", NO_OBJECT).await {
        Ok(answer) => Ok(Applied { object: answer.object, created: answer.created, adopted: false }),
        // The object exists. It may still be Bursar's, for example recreated or with another uid.
        Err(error) if error.code() == Some(409) => {
            let found = server.ask(path, Ask::Get).await.map_err(|error| refused(key, error))?;
            apply_found(server, key, path, manifest, (&found.object, claim)).await
        }
        Err(error) => Err(refused(key, error)),
    }
}

/// Applies to an object that was just read, if `claim` allows it.
async fn apply_found(
    server: &ApiServer,
    key: &ObjectKey,
    path: &str,
    manifest: &Value,
    (found, claim): (&Value, Claim<'_>),
) -> Result<Applied, StepError> {
    let uid = found["metadata"]["uid"].as_str().unwrap_or_default();
    let adopted = !is_ours(found) && !matches!(claim, Claim::Made(_));
    let is_deleting = found["metadata"]["deletionTimestamp"].is_string();
    let is_claimed = match claim {
        Claim::Any => true,
        Claim::Ours => !adopted,
        Claim::Made(known) => {
            found["metadata"]["labels"][MANAGED_BY] == MANAGER || known.is_some_and(|known| *known == uid)
        }
        Claim::Sealed(account) => is_deleting || is_sealed_for(server, key, found, account),
    };
    if !is_claimed {
        return Err(StepError::Foreign { key: key.clone() });
    }
    if is_deleting {
        return Err(StepError::Deleting { key: key.clone() });
    }
    let answer = apply_where(server, path, manifest, "uid", uid).await.map_err(|error| refused(key, error))?;
    Ok(Applied { object: answer.object, created: false, adopted })
}

/// Whether the namespace `found` is sealed for `account`. If no mark is kept, there is no key to check a seal with, and
/// the label decides.
fn is_sealed_for(server: &ApiServer, key: &ObjectKey, found: &Value, account: &AccountId) -> bool {
    let Some(mark) = server.mark() else { return is_ours(found) };
    let Ok(namespace) = NamespaceName::try_from(key.name.to_string()) else { return false };
    let texts = |part: &str| serde_json::from_value(found["metadata"][part].clone()).unwrap_or_default();
    let (labels, annotations) = (texts("labels"), texts("annotations"));
    let proven = identity_of(&key.cluster, &namespace, &labels, &annotations, &[mark.public_key()]);
    proven.is_ok_and(|identity| identity.id == *account)
}

/// Applies only if this field of the object's `metadata` has this value.
async fn apply_where(
    server: &ApiServer,
    path: &str,
    manifest: &Value,
    field: &str,
    value: &str,
) -> Result<ApiAnswer, RequestError> {
    let mut manifest = manifest.clone();
    manifest["metadata"][field] = Value::from(value);
    server.ask(path, Ask::Apply(&manifest)).await
}

/// Makes a released volume available to its claim again: the reference stays, and the uid of the deleted claim is
/// removed.
async fn bind_again(server: &ApiServer, key: &ObjectKey, path: &str, applied: &Applied) -> Result<Applied, StepError> {
    let unbound = json!({
        "metadata": {"uid": applied.object["metadata"]["uid"]},
        "spec": {"claimRef": {"uid": null, "resourceVersion": null}},
    });
    let answer = server.ask(path, Ask::Merge(&unbound)).await.map_err(|error| refused(key, error))?;
    Ok(Applied { object: answer.object, created: applied.created, adopted: applied.adopted })
}

/// Turns the error of a request into the error of the step on this object.
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
        422 if key.kind.data() == Data::Volume && status.message.contains("immutable") => {
            StepError::VolumeMoved { key, source: RequestError::Refused(status) }
        }
        _ => StepError::Refused { key, source: RequestError::Refused(status) },
    }
}
