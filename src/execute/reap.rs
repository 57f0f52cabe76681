//! Deletes a pod past its lifetime. Before that, stops the controllers that would recreate the pod, and deletes the
//! other objects of its job. The pod is deleted last, so that a daemon that was killed in between finds it after its
//! restart. The objects of the job are deleted by their label without being read, so the daemon needs no right to read
//! Secrets.
//!
//! All these objects are made by tenants, who can make a write fail (with an object as large as etcd allows, or more
//! objects than can be deleted in time). The pod is deleted even if everything else fails.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::request::{ApiServer, Ask, RequestError};
use super::{StepError, workloads};
use crate::contract::{ENDS_AT, JOB, MANAGED_BY, MANAGER};
use crate::identity::NamespaceName;
use crate::inventory::pods::Maker;
use crate::kinds::{ObjectKey, ObjectKind, everywhere};
use crate::ledger::LedgerState;

/// The kinds of objects that may belong to a job.
const COMPANIONS: [&str; 3] = ["Service", "ConfigMap", "Secret"];

/// What was ended: the pod, and what belongs to it.
#[derive(Debug, Default)]
pub struct Reaped {
    /// Deleted objects, as `kind/name`. Includes the pod itself.
    pub gone: Vec<String>,
    /// Controllers that were stopped, as `kind/name`.
    pub stopped: Vec<String>,
    /// The first failure of something other than the pod.
    pub failed: Option<StepError>,
}

/// Ends the pod with this uid, the controllers that would recreate it, and, if there is a `job`, the objects of that
/// job.
pub async fn reap(
    (server, ledger): (&ApiServer, &LedgerState),
    namespace: &NamespaceName,
    (name, uid): (&str, &str),
    job: Option<&str>,
    maker: Option<&Maker>,
) -> Result<Reaped, StepError> {
    let mut reaped = Reaped::default();
    if let Some(maker) = maker {
        let stopping = workloads::stop_maker(server, ledger, namespace, maker, &mut reaped.stopped).await;
        reaped.failed = stopping.err();
    }
    for kind in COMPANIONS.iter().filter(|_| job.is_some()) {
        let Some(known) = everywhere(&ObjectKind::of("v1", kind)) else { continue };
        let selector = format!("labelSelector={JOB}={},{MANAGED_BY}!={MANAGER}", job.unwrap_or_default());
        let path = known.path(Some(namespace.as_str()), None);
        match server.ask(&path, Ask::DeleteSelected { selector: &selector }).await {
            Ok(answer) => {
                let items = answer.object["items"].as_array().into_iter().flatten();
                let names = items.filter_map(|item| Some(format!("{kind}/{}", item["metadata"]["name"].as_str()?)));
                reaped.gone.extend(names);
            }
            Err(source) => {
                let key = key(server, kind, namespace, "");
                reaped.failed.get_or_insert(StepError::Outlived { key, source });
                break;
            }
        }
    }
    let Some(pod) = everywhere(&ObjectKind::of("v1", "Pod")) else { return Ok(reaped) };
    match workloads::end(server, &pod.path(Some(namespace.as_str()), Some(name)), uid).await {
        Ok(()) => reaped.gone.push(format!("Pod/{name}")),
        // The pod is gone, or another pod has its name. Its controller may have gone together with it.
        Err(error) if error.code() == Some(404) || error.is_other_uid() => {
            reaped.failed.take_if(|error| matches!(error, StepError::NoController { .. }));
        }
        // If even this small request got no answer, the cluster counts as unreachable, and the error stops all further
        // steps there.
        Err(source) if source.is_loss() => {
            return Err(StepError::Workload { key: key(server, "Pod", namespace, name), source });
        }
        Err(source) => return Err(StepError::Outlived { key: key(server, "Pod", namespace, name), source }),
    }
    Ok(reaped)
}

pub(super) fn key(server: &ApiServer, kind: &str, namespace: &NamespaceName, name: &str) -> ObjectKey {
    ObjectKey::new(&server.cluster, ObjectKind::of("v1", kind), Some(namespace.as_str()), name)
}

/// Returns the error of a warning. If the request got no answer, the cluster counts as unreachable, and the error stops
/// all further steps there.
fn unwarned(key: ObjectKey, source: RequestError) -> StepError {
    if source.is_loss() { StepError::Request(source) } else { StepError::Unwarned { key, source } }
}

/// Warns the users of a pod in advance, with the time at which the pod will end. Writes an annotation, which also
/// prevents a second warning, and an event. If the annotation is refused, for example because the pod's annotations
/// leave no room for another one, there is no warning and no error; only 403 is an error.
pub async fn warn(
    server: &ApiServer,
    namespace: &NamespaceName,
    (name, uid): (&str, &str),
    until: Timestamp,
    now: Timestamp,
) -> Result<(), StepError> {
    let Some(pods) = everywhere(&ObjectKind::of("v1", "Pod")) else { return Ok(()) };
    let until = format!("{until:.0}");
    let change = json!({"metadata": {"uid": uid, "annotations": {ENDS_AT: until}}});
    match server.ask(&pods.path(Some(namespace.as_str()), Some(name)), Ask::Merge(&change)).await {
        Ok(_) => {}
        // A tenant can cause other refusals than 403, even a 500, by a pod that is as large as etcd permits. An error
        // would stop the account's further steps in the cluster. A later cycle tries again.
        Err(error) if error.code().is_some_and(|code| code != 403) => return Ok(()),
        Err(error) => return Err(unwarned(key(server, "Pod", namespace, name), error)),
    }
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name, "uid": uid});
    let message = format!("This pod ends {until}, when its lifetime is over. Save its work before then.");
    let told = event(server, namespace, ("bursar-lifetime-", "LifetimeEnds"), &pod, &message, now);
    told.await.map_err(|error| unwarned(key(server, "Pod", namespace, name), error))
}

/// Makes an event of type `Warning` about an object in the tenant's namespace. Its name begins with `name`.
pub(super) async fn event(
    server: &ApiServer,
    namespace: &NamespaceName,
    (name, reason): (&str, &str),
    object: &Value,
    message: &str,
    now: Timestamp,
) -> Result<(), RequestError> {
    let at = format!("{now:.0}");
    let event = json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": name, "namespace": namespace},
        "involvedObject": object,
        "type": "Warning",
        "reason": reason,
        "message": message,
        "source": {"component": "bursar"},
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    });
    let path = format!("/api/v1/namespaces/{namespace}/events");
    server.ask(&path, Ask::Create(&event)).await.map(drop)
}

/// Returns the details for the history.
#[must_use]
pub fn detail(namespace: &NamespaceName, job: Option<&str>, reaped: &Reaped) -> Value {
    let Reaped { gone, stopped, failed } = reaped;
    let mut detail = json!({"namespace": namespace, "job": job, "deleted": gone});
    if !stopped.is_empty() {
        detail["stopped"] = json!(stopped);
    }
    if let Some(error) = failed {
        detail["failed"] = json!(error.reason());
    }
    detail
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::ClusterName;

    #[test]
    fn a_failed_warning_does_not_say_that_the_pod_is_past_its_lifetime() {
        let cluster = ClusterName("prod".into());
        let key = ObjectKey::new(&cluster, ObjectKind::of("v1", "Pod"), Some("tool-foo"), "web");
        let refused = unwarned(key.clone(), RequestError::Overloaded);
        assert!(refused.reason().starts_with("cannot warn the users of Pod web in namespace tool-foo"), "{refused}");
        assert!(!refused.is_loss() && unwarned(key, RequestError::TimedOut { cluster }).is_loss());
    }
}
