//! Deletes a pod whose life is over, and before it what belongs to its job: a daemon that is killed in between finds the pod
//! again. What belongs to it is deleted by its label and read by nobody, so the daemon need not be allowed to read Secrets.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::StepError;
use super::request::{ApiServer, Ask, RequestError};
use crate::contract::{ENDS_AT, JOB, MANAGED_BY, MANAGER};
use crate::identity::NamespaceName;
use crate::kinds::{ObjectKey, ObjectKind, everywhere};

/// What may belong to a job.
const COMPANIONS: [&str; 3] = ["Service", "ConfigMap", "Secret"];

/// The pod with this uid, and with `job` its companions. Answers with `kind/name` of what is gone.
pub async fn reap(
    server: &ApiServer,
    namespace: &NamespaceName,
    (name, uid): (&str, &str),
    job: Option<&str>,
) -> Result<Vec<String>, StepError> {
    let mut gone = Vec::new();
    for kind in COMPANIONS.iter().filter(|_| job.is_some()) {
        let Some(known) = everywhere(&ObjectKind::of("v1", kind)) else { continue };
        let selector = format!("labelSelector={JOB}={},{MANAGED_BY}!={MANAGER}", job.unwrap_or_default());
        let path = known.path(Some(namespace.as_str()), None);
        let answer = server.ask(&path, Ask::DeleteSelected { selector: &selector }).await;
        let answer = answer.map_err(|error| failed(server, kind, namespace, "", error))?;
        let items = answer.object["items"].as_array().into_iter().flatten();
        gone.extend(items.filter_map(|item| Some(format!("{kind}/{}", item["metadata"]["name"].as_str()?))));
    }
    let Some(pod) = everywhere(&ObjectKind::of("v1", "Pod")) else { return Ok(gone) };
    match server.ask(&pod.path(Some(namespace.as_str()), Some(name)), Ask::Delete { uid }).await {
        Ok(_) => gone.push(format!("Pod/{name}")),
        // Gone already, or another one by that name.
        Err(error) if error.code() == Some(404) || error.is_other_uid() => {}
        Err(error) => return Err(failed(server, "Pod", namespace, name, error)),
    }
    Ok(gone)
}

fn failed(server: &ApiServer, kind: &str, namespace: &NamespaceName, name: &str, source: RequestError) -> StepError {
    let key = ObjectKey {
        cluster: server.cluster.clone(),
        kind: ObjectKind::of("v1", kind),
        namespace: Some(namespace.to_string()),
        name: name.to_owned(),
    };
    StepError::Workload { key, source }
}

/// Tells the people of a pod when it ends: by an event, and by its annotation, which also keeps them from being told twice.
pub async fn warn(
    server: &ApiServer,
    namespace: &NamespaceName,
    (name, uid): (&str, &str),
    until: Timestamp,
    now: Timestamp,
) -> Result<(), StepError> {
    let Some(pods) = everywhere(&ObjectKind::of("v1", "Pod")) else { return Ok(()) };
    let (until, at) = (format!("{until:.0}"), format!("{now:.0}"));
    let event = json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": "bursar-lifetime-", "namespace": namespace},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name, "uid": uid},
        "type": "Warning",
        "reason": "LifetimeEnds",
        "message": format!("This pod ends {until}, when its lifetime is over. Save what it works on before."),
        "source": {"component": "bursar"},
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    });
    let events = format!("/api/v1/namespaces/{namespace}/events");
    let told = server.ask(&events, Ask::Create(&event)).await.map(drop);
    told.map_err(|error| failed(server, "Event", namespace, "bursar-lifetime", error))?;
    let change = json!({"metadata": {"uid": uid, "annotations": {ENDS_AT: until}}});
    match server.ask(&pods.path(Some(namespace.as_str()), Some(name)), Ask::Merge(&change)).await {
        Ok(_) => Ok(()),
        Err(error) if error.code() == Some(404) || error.is_other_uid() => Ok(()),
        Err(error) => Err(failed(server, "Pod", namespace, name, error)),
    }
}

/// For the history.
#[must_use]
pub fn detail(namespace: &NamespaceName, job: Option<&str>, gone: &[String], stopped: &[String]) -> Value {
    let mut detail = json!({"namespace": namespace, "job": job, "deleted": gone});
    if !stopped.is_empty() {
        detail["stopped"] = json!(stopped);
    }
    detail
}
