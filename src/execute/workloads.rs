//! Stops the workloads of a suspended tenant and gives them back what they were (§3). Only what nobody controls:
//! what a controller of the tenant's makes follows it.
//!
//! Finding comes first and stopping second, so that what they were is stored in between: a daemon that is killed
//! while it stops them still knows it.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::StepError;
use super::request::{ApiServer, Ask, RequestError};
use crate::identity::{ClusterName, NamespaceName};
use crate::kinds::{ObjectKey, ObjectKind, everywhere};
use crate::ledger::StoppedWorkload;

/// Makes a `DaemonSet`'s pods fit no node. There is no `/scale` for them.
pub const PARKED: &str = "bursar.dev/suspended";

/// How a kind is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    /// `/scale` to 0.
    Scale,
    /// `spec.suspend`.
    Suspend,
    /// A node selector that no node has.
    Park,
    /// Deletion.
    Delete,
}

/// In the order in which they are stopped: what makes others first, bare pods last.
const WORKLOADS: &[(&str, &str, How)] = &[
    ("batch/v1", "CronJob", How::Suspend),
    ("batch/v1", "Job", How::Suspend),
    ("apps/v1", "Deployment", How::Scale),
    ("apps/v1", "StatefulSet", How::Scale),
    ("apps/v1", "ReplicaSet", How::Scale),
    ("v1", "ReplicationController", How::Scale),
    ("apps/v1", "DaemonSet", How::Park),
    ("v1", "Pod", How::Delete),
];

fn how(key: &ObjectKey) -> Option<How> {
    WORKLOADS.iter().find(|known| ObjectKind::of(known.0, known.1) == key.kind).map(|known| known.2)
}

/// Everything in a namespace that runs or would run, with what it is.
pub async fn find(
    server: &ApiServer,
    namespace: &NamespaceName,
    now: Timestamp,
) -> Result<Vec<(ObjectKey, StoppedWorkload)>, StepError> {
    let mut found = Vec::new();
    for (api_version, kind, how) in WORKLOADS {
        let Some(known) = everywhere(&ObjectKind::of(api_version, kind)) else { continue };
        let listed = server.list(&known.path(Some(namespace.as_str()), None)).await?;
        let running = listed.iter().filter(|object| is_top_level(kind, object) && runs(*how, object));
        found.extend(running.map(|object| {
            let replicas = (*how == How::Scale).then(|| replicas(object));
            let uid = object["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
            (key(&server.cluster, api_version, kind, object), StoppedWorkload { uid, replicas, at: now })
        }));
    }
    Ok(found)
}

/// Stops what [`find`] found. What is gone meanwhile, or is another object by now, needs no stopping.
pub async fn stop(server: &ApiServer, found: &[(ObjectKey, StoppedWorkload)]) -> Result<(), StepError> {
    for (key, workload) in found {
        let Some(path) = path(key) else { continue };
        let stopped = match how(key) {
            Some(How::Scale) => scale(server, &path, &workload.uid, 0).await,
            Some(How::Suspend) => suspend(server, &path, &workload.uid, true).await,
            Some(How::Park) => park(server, &path, &workload.uid, json!("true")).await,
            Some(How::Delete) => server.ask(&path, Ask::Delete { uid: &workload.uid }).await.map(|_| ()),
            None => Ok(()),
        };
        match stopped {
            Err(error) if !is_gone(&error) => return Err(StepError::Workload { key: key.clone(), source: error }),
            _ => {}
        }
    }
    Ok(())
}

/// Gives one workload back what it was, unless it is gone or somebody has started it since. A bare pod is not made
/// again.
pub async fn resume(server: &ApiServer, key: &ObjectKey, workload: &StoppedWorkload) -> Result<(), StepError> {
    let (Some(path), Some(how)) = (path(key), how(key)) else { return Ok(()) };
    let resumed = match how {
        How::Delete => Ok(()),
        _ => resume_at(server, &path, how, workload).await,
    };
    match resumed {
        Err(error) if !is_gone(&error) => Err(StepError::Workload { key: key.clone(), source: error }),
        _ => Ok(()),
    }
}

async fn resume_at(server: &ApiServer, path: &str, how: How, workload: &StoppedWorkload) -> Result<(), RequestError> {
    let found = server.ask(path, Ask::Get).await?.object;
    let uid = workload.uid.as_str();
    if found["metadata"]["uid"] != uid || runs(how, &found) {
        return Ok(());
    }
    match how {
        How::Scale => scale(server, path, uid, workload.replicas.unwrap_or(1)).await,
        How::Suspend => suspend(server, path, uid, false).await,
        How::Park => park(server, path, uid, Value::Null).await,
        How::Delete => Ok(()),
    }
}

async fn scale(server: &ApiServer, path: &str, uid: &str, replicas: i32) -> Result<(), RequestError> {
    let change = json!({"metadata": {"uid": uid}, "spec": {"replicas": replicas}});
    server.ask(&format!("{path}/scale"), Ask::Merge(&change)).await.map(|_| ())
}

async fn suspend(server: &ApiServer, path: &str, uid: &str, suspend: bool) -> Result<(), RequestError> {
    let change = json!({"metadata": {"uid": uid}, "spec": {"suspend": suspend}});
    server.ask(path, Ask::Merge(&change)).await.map(|_| ())
}

async fn park(server: &ApiServer, path: &str, uid: &str, parked: Value) -> Result<(), RequestError> {
    let change = json!({
        "metadata": {"uid": uid},
        "spec": {"template": {"spec": {"nodeSelector": {PARKED: parked}}}},
    });
    server.ask(path, Ask::Merge(&change)).await.map(|_| ())
}

/// Gone, or another object by that name.
fn is_gone(error: &RequestError) -> bool {
    error.code() == Some(404) || error.is_other_uid()
}

/// Nobody controls it. A `Job` of a `CronJob` counts too: its maker does not stop it when it is suspended itself.
fn is_top_level(kind: &str, object: &Value) -> bool {
    let owners = object["metadata"]["ownerReferences"].as_array();
    let controller = owners.into_iter().flatten().find(|owner| owner["controller"] == true);
    controller.is_none_or(|controller| kind == "Job" && controller["kind"] == "CronJob")
}

fn runs(how: How, object: &Value) -> bool {
    let ends = object["metadata"]["deletionTimestamp"].is_string();
    !ends
        && match how {
            How::Scale => replicas(object) != 0,
            How::Suspend => object["spec"]["suspend"] != true && !is_finished(object),
            How::Park => object["spec"]["template"]["spec"]["nodeSelector"][PARKED].is_null(),
            How::Delete => !matches!(object["status"]["phase"].as_str(), Some("Succeeded" | "Failed")),
        }
}

/// Absent is 1 for every kind that can be scaled.
fn replicas(object: &Value) -> i32 {
    object["spec"]["replicas"].as_i64().and_then(|replicas| i32::try_from(replicas).ok()).unwrap_or(1)
}

fn is_finished(job: &Value) -> bool {
    let conditions = job["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|condition| {
        matches!(condition["type"].as_str(), Some("Complete" | "Failed")) && condition["status"] == "True"
    })
}

fn key(cluster: &ClusterName, api_version: &str, kind: &str, object: &Value) -> ObjectKey {
    let metadata = &object["metadata"];
    ObjectKey {
        cluster: cluster.clone(),
        kind: ObjectKind::of(api_version, kind),
        namespace: metadata["namespace"].as_str().map(str::to_owned),
        name: metadata["name"].as_str().unwrap_or_default().to_owned(),
    }
}

fn path(key: &ObjectKey) -> Option<String> {
    let kind = everywhere(&key.kind)?;
    Some(kind.path(key.namespace.as_deref(), Some(&key.name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_nobody_controls_is_stopped() {
        let owned = |kind: &str| json!({"metadata": {"ownerReferences": [{"kind": kind, "controller": true}]}});
        assert!(is_top_level("ReplicaSet", &json!({"metadata": {}})));
        assert!(!is_top_level("ReplicaSet", &owned("Deployment")));
        assert!(!is_top_level("Pod", &owned("ReplicaSet")));
        assert!(is_top_level("Job", &owned("CronJob")));
        assert!(!is_top_level("Job", &owned("Workflow")));
        let watcher = json!({"metadata": {"ownerReferences": [{"kind": "Chart", "controller": false}]}});
        assert!(is_top_level("Deployment", &watcher));
    }

    #[test]
    fn what_does_not_run_is_not_stopped_and_so_not_resumed() {
        assert!(runs(How::Scale, &json!({"spec": {}})));
        assert!(!runs(How::Scale, &json!({"spec": {"replicas": 0}})));
        assert!(!runs(How::Suspend, &json!({"spec": {"suspend": true}})));
        let done = json!({"spec": {}, "status": {"conditions": [{"type": "Complete", "status": "True"}]}});
        assert!(!runs(How::Suspend, &done));
        assert!(!runs(How::Delete, &json!({"status": {"phase": "Succeeded"}})));
        assert!(runs(How::Park, &json!({"spec": {"template": {"spec": {}}}})));
    }
}
