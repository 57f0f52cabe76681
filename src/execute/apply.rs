//! Server-side apply of one object that is ours, or of one that is not there: never of somebody else's.
//!
//! Apply would take over a foreign object silently. So each apply names what it may meet. An object that we know is
//! named by its uid, so that an object recreated by somebody else conflicts. An object that we do not know is named by
//! a `resourceVersion` that no object has ([`NO_OBJECT`]), so that anything that stands there conflicts, and nothing is
//! read before something is made. Only an administrator's order takes over what is somebody else's.

use serde_json::{Value, json};

use super::StepError;
use super::request::{ApiAnswer, ApiServer, Ask, RequestError};
use crate::contract::{MANAGED_BY, MANAGER, identity_of};
use crate::desired::credential::of_service_account;
use crate::desired::of_generation_group;
use crate::identity::{AccountId, NamespaceName};
use crate::kinds::{Data, ObjectKey};
use crate::observed::cache::is_released;
use crate::packed_text::UuidText;

/// An object that is now as we want it.
#[derive(Debug, Clone, PartialEq)]
pub struct Applied {
    /// As the server shows it.
    pub object: Value,
    /// It was made now.
    pub created: bool,
    /// It was somebody else's until now.
    pub adopted: bool,
}

/// The revision of a store in which nothing was ever written (etcd begins with it), so no object's. An API server makes
/// an object that is applied with it, and answers 409 if one is there: measured on 1.36, not documented, and held by the
/// tests of this module.
const NO_OBJECT: &str = "1";

/// What has to be so of an object that is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim<'a> {
    /// Nothing: an administrator's order takes it over.
    Any,
    /// It is ours.
    Ours,
    /// It is a service account that has our label, or this uid: somebody may hold tokens of one that others made. Everybody
    /// may call a field manager `bursar`; only we set the label.
    Made(Option<&'a UuidText>),
    /// It is a namespace whose seal names this account. Others can set labels, and would keep what they put into the
    /// namespace beforehand.
    Sealed(&'a AccountId),
}

/// Makes the object be as `manifest` says; `uid` is its own, if we know it.
pub async fn apply(
    server: &ApiServer,
    key: &ObjectKey,
    manifest: &Value,
    uid: Option<&str>,
    claim: Claim<'_>,
) -> Result<Applied, StepError> {
    let path = path_of(server, key).await?;
    if let (Some(mark), Some(generation)) = (server.mark(), highest_generation(manifest))
        && let Err(source) = mark.raise(generation).await
    {
        if let Some(uid) = uid {
            // Whom it should not name any more goes out of it all the same. What comes of that, the next plan sees.
            let covered = without(manifest, |subject| generation_of(subject).is_none_or(|it| mark.covers(it)));
            apply_where(server, &path, &covered, "uid", uid).await.map_err(|error| refused(key, error))?;
        }
        return Err(StepError::Unmarked { cluster: server.cluster.clone(), source: Box::new(source) });
    }
    let known = match uid {
        None => None,
        // It is read and compared with the claim.
        Some(_) if matches!(claim, Claim::Sealed(_)) => None,
        Some(uid) => match apply_where(server, &path, manifest, "uid", uid).await {
            // It is gone, or another one stands there: as if we knew nothing.
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

/// The highest generation that an object gives rights to: by a group, or by a service account.
fn highest_generation(manifest: &Value) -> Option<u64> {
    manifest["subjects"].as_array().into_iter().flatten().filter_map(generation_of).max()
}

fn generation_of(subject: &Value) -> Option<u64> {
    let name = subject["name"].as_str()?;
    of_generation_group(name).map(|(_, generation)| generation).or_else(|| of_service_account(name))
}

/// A binding with the subjects of which `keeps` says so.
fn without(manifest: &Value, keeps: impl Fn(&Value) -> bool) -> Value {
    let mut manifest = manifest.clone();
    if let Some(subjects) = manifest["subjects"].as_array_mut() {
        subjects.retain(keeps);
    }
    manifest
}

/// The path of an object.
pub(super) async fn path_of(server: &ApiServer, key: &ObjectKey) -> Result<String, StepError> {
    let kind = server.kind(&key.kind).await?.ok_or_else(|| StepError::UnknownKind { kind: key.kind.clone() })?;
    Ok(kind.path(key.namespace.as_deref(), Some(&key.name)))
}

/// Whether an object is ours: it carries our label, or somebody took the label off and the fields that we applied
/// still say whose it is.
pub(super) fn is_ours(object: &Value) -> bool {
    let entries = object["metadata"]["managedFields"].as_array();
    object["metadata"]["labels"][MANAGED_BY] == MANAGER
        || entries.into_iter().flatten().any(|entry| entry["manager"] == MANAGER && entry["operation"] == "Apply")
}

/// Makes an object that is not there.
async fn create(
    server: &ApiServer,
    key: &ObjectKey,
    path: &str,
    manifest: &Value,
    claim: Claim<'_>,
) -> Result<Applied, StepError> {
    match apply_where(server, path, manifest, "resourceVersion", NO_OBJECT).await {
        Ok(answer) => Ok(Applied { object: answer.object, created: answer.created, adopted: false }),
        // One is there. It may be a former self of ours.
        Err(error) if error.code() == Some(409) => {
            let found = server.ask(path, Ask::Get).await.map_err(|error| refused(key, error))?;
            apply_found(server, key, path, manifest, (&found.object, claim)).await
        }
        Err(error) => Err(refused(key, error)),
    }
}

/// Applies to an object that was read just now.
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

/// Where nothing keeps the mark, nothing has the key of the seal.
fn is_sealed_for(server: &ApiServer, key: &ObjectKey, found: &Value, account: &AccountId) -> bool {
    let Some(mark) = server.mark() else { return is_ours(found) };
    let Ok(namespace) = NamespaceName::try_from(key.name.clone()) else { return false };
    let texts = |part: &str| serde_json::from_value(found["metadata"][part].clone()).unwrap_or_default();
    let (labels, annotations) = (texts("labels"), texts("annotations"));
    let proven = identity_of(&key.cluster, &namespace, &labels, &annotations, &[mark.public_key()]);
    proven.is_ok_and(|identity| identity.id == *account)
}

/// Applies where the object's `metadata` has this value, and nowhere else.
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

/// Makes a Released volume available to its claim: the reference stays, the claim that is gone is forgotten.
async fn bind_again(server: &ApiServer, key: &ObjectKey, path: &str, applied: &Applied) -> Result<Applied, StepError> {
    let unbound = json!({
        "metadata": {"uid": applied.object["metadata"]["uid"]},
        "spec": {"claimRef": {"uid": null, "resourceVersion": null}},
    });
    let answer = server.ask(path, Ask::Merge(&unbound)).await.map_err(|error| refused(key, error))?;
    Ok(Applied { object: answer.object, created: applied.created, adopted: applied.adopted })
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
        422 if key.kind.data() == Data::Volume && status.message.contains("immutable") => {
            StepError::VolumeMoved { key, source: RequestError::Refused(status) }
        }
        _ => StepError::Refused { key, source: RequestError::Refused(status) },
    }
}
