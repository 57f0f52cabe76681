//! Deletes a pod whose life is over, and before it what belongs to its job: a daemon that is killed in between finds the pod
//! again. What belongs to it is deleted by its label and read by nobody, so the daemon need not be allowed to read Secrets.

use serde_json::Value;

use super::StepError;
use super::request::{ApiServer, Ask, RequestError};
use crate::contract::{JOB, MANAGED_BY, MANAGER};
use crate::identity::NamespaceName;
use crate::kinds::{ObjectKey, ObjectKind, ObjectName, everywhere};

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
    let key = ObjectKey::from(ObjectName {
        cluster: server.cluster.clone(),
        kind: ObjectKind::of("v1", kind),
        namespace: Some(namespace.to_string()),
        name: name.to_owned(),
    });
    StepError::Workload { key, source }
}

/// For the history.
#[must_use]
pub fn detail(namespace: &NamespaceName, job: Option<&str>, gone: &[String]) -> Value {
    serde_json::json!({"namespace": namespace, "job": job, "deleted": gone})
}
