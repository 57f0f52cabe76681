//! Restores the objects of an archive in its tenant's empty namespace, with the rights of an administrator, because the
//! daemon may not create them.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use thiserror::Error;

use crate::archive::{About, Listed, Workload};
use crate::contract::{ContractError, MANAGED_BY, MANAGER, TenantState, identity_of};
use crate::errors::chain;
use crate::execute::StepError;
use crate::execute::listing::{ListedPart, everything};
use crate::execute::request::{ApiServer, Ask, RequestError};
use crate::execute::workloads::PARKED;
use crate::kinds::{Data, ObjectKind, ServedKind};

/// Why nothing was restored.
#[derive(Debug, Error)]
pub enum RestoreError {
    /// The namespace does not exist. The daemon creates it for a tenant that is served.
    #[error("namespace {0} does not exist: Bursar creates it when its account is in the directory again")]
    Absent(String),
    /// The owner of the namespace cannot be determined.
    #[error("cannot determine the owner of namespace {namespace}")]
    Unsealed {
        namespace: String,
        #[source]
        source: ContractError,
    },
    /// The namespace belongs to another account.
    #[error("namespace {namespace} belongs to {holder}, and the archive to {account}")]
    Other {
        namespace: String,
        /// The owner of the namespace.
        holder: String,
        /// The owner of the archive.
        account: String,
    },
    /// The namespace is suspended.
    #[error("namespace {0} is suspended, and restored workloads could not run; first run: bursar resume")]
    Suspended(String),
    /// The namespace is not empty, and nothing is overwritten.
    #[error(
        "namespace {namespace} is not empty: {found}; delete them first, because `archive apply` overwrites nothing"
    )]
    NotEmpty {
        namespace: String,
        /// The objects in it.
        found: String,
    },
    /// The namespace cannot be listed.
    #[error("cannot list the objects of namespace {namespace}")]
    Look {
        namespace: String,
        #[source]
        source: StepError,
    },
    /// The API server did not answer.
    #[error("a request to the API server failed")]
    Request(#[from] RequestError),
}

/// The result for each object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Applied {
    /// Created objects, such as `deployments.apps/web`.
    pub made: Vec<String>,
    /// Objects that were left out, with the reason.
    pub left: Vec<(String, &'static str)>,
    /// Objects that the API server refused, with the reason.
    pub failed: Vec<(String, String)>,
    /// What an administrator still has to do.
    pub next: Vec<String>,
}

/// Creates the objects. `public_keys` are those of the seal.
///
/// # Errors
/// The namespace is not the account's, not served, or not empty. Then nothing was created. Refusals of single objects
/// are in [`Applied`].
pub async fn apply(
    server: &ApiServer,
    about: &About,
    objects: Vec<Listed>,
    public_keys: &[[u8; 32]],
) -> Result<Applied, RestoreError> {
    is_the_tenants(server, about, public_keys).await?;
    let namespace = about.namespace.to_string();
    let there = everything(server, &about.namespace, ListedPart::Whole).await;
    let there = there.map_err(|source| RestoreError::Look { namespace: namespace.clone(), source })?;
    let foreign: Vec<String> = there.iter().filter(|(_, object)| left(object, about).is_none()).map(named).collect();
    if !foreign.is_empty() {
        return Err(RestoreError::NotEmpty { namespace, found: foreign.join(", ") });
    }
    let mut applied = Applied::default();
    let mut objects: Vec<Listed> = objects;
    objects.sort_by_key(|(kind, _)| rank(kind));
    for listed in objects {
        if let Some(why) = left(&listed.1, about) {
            applied.left.push((named(&listed), why));
            continue;
        }
        let (kind, object) = &listed;
        match server.ask(&path(kind, object, about), Ask::Create(&fresh(object, &about.workloads))).await {
            Ok(_) => {
                applied.next.extend(waits(object));
                applied.made.push(named(&listed));
            }
            Err(error) => applied.failed.push((named(&listed), chain(&error))),
        }
    }
    Ok(applied)
}

async fn is_the_tenants(server: &ApiServer, about: &About, public_keys: &[[u8; 32]]) -> Result<(), RestoreError> {
    let name = about.namespace.to_string();
    let found = match server.ask(&format!("/api/v1/namespaces/{name}"), Ask::Get).await {
        Ok(found) => found.object,
        Err(error) if error.code() == Some(404) => return Err(RestoreError::Absent(name)),
        Err(error) => return Err(error.into()),
    };
    let texts = |key: &str| -> BTreeMap<String, String> {
        serde_json::from_value(found["metadata"][key].clone()).unwrap_or_default()
    };
    let identity = identity_of(&about.cluster, &about.namespace, &texts("labels"), &texts("annotations"), public_keys)
        .map_err(|source| RestoreError::Unsealed { namespace: name.clone(), source })?;
    if identity.id != about.account_id {
        let (holder, account) = (identity.account.to_string(), about.account.to_string());
        return Err(RestoreError::Other { namespace: name, holder, account });
    }
    if identity.state == TenantState::Suspended { Err(RestoreError::Suspended(name)) } else { Ok(()) }
}

fn named((kind, object): &Listed) -> String {
    format!("{kind}/{}", object["metadata"]["name"].as_str().unwrap_or_default())
}

/// Returns why an object is left out; `None` if it is restored.
fn left(object: &Value, about: &About) -> Option<&'static str> {
    let metadata = &object["metadata"];
    let owners = metadata["ownerReferences"].as_array();
    let (kind, name) = (object["kind"].as_str().unwrap_or_default(), metadata["name"].as_str().unwrap_or_default());
    match kind {
        _ if metadata["labels"][MANAGED_BY] == MANAGER => Some("Bursar creates it"),
        _ if owners.into_iter().flatten().any(|owner| owner["controller"] == true) => Some("its controller creates it"),
        "Event" | "Endpoints" | "EndpointSlice" | "Lease" => Some("Kubernetes creates it"),
        "ConfigMap" if name == "kube-root-ca.crt" => Some("Kubernetes creates it"),
        "ServiceAccount" if name == "default" => Some("Kubernetes creates it"),
        "Secret" if object["type"] == "kubernetes.io/service-account-token" => Some("Kubernetes creates it"),
        "Pod" => Some("bare pods are not restored"),
        "Job" if !is_stopped(object, &about.workloads) => Some("it was finished, and would run again"),
        _ => None,
    }
}

fn stopped<'w>(object: &Value, workloads: &'w [Workload]) -> Option<&'w Workload> {
    workloads.iter().find(|workload| {
        object["apiVersion"] == workload.api_version
            && object["kind"] == workload.kind
            && object["metadata"]["name"] == workload.name
    })
}

fn is_stopped(object: &Value, workloads: &[Workload]) -> bool {
    stopped(object, workloads).is_some()
}

/// Returns the order of creation: objects that others need come first.
fn rank(kind: &str) -> u8 {
    let group = kind.split_once('.').map_or("", |(_, group)| group);
    match kind {
        "serviceaccounts" => 0,
        "secrets" | "configmaps" | "persistentvolumeclaims" => 1,
        "roles.rbac.authorization.k8s.io" => 2,
        _ if ["apps", "batch"].contains(&group) => 4,
        _ => 3,
    }
}

/// Returns the path at which objects of this kind are created.
fn path(kind: &str, object: &Value, about: &About) -> String {
    let plural = kind.split('.').next().unwrap_or(kind);
    let text = |key: &str| object[key].as_str().unwrap_or_default().to_owned();
    let kind =
        ServedKind { api_version: text("apiVersion"), kind: text("kind"), plural: plural.to_owned(), namespaced: true };
    kind.path(Some(about.namespace.as_str()), None)
}

/// Returns the object as it was probably submitted. Workloads are as before the suspension.
fn fresh(object: &Value, workloads: &[Workload]) -> Value {
    const OF_THE_SERVER: [&str; 9] = [
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "generation",
        "selfLink",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "ownerReferences",
        "finalizers",
    ];
    let mut fresh = object.clone();
    if let Some(metadata) = fresh["metadata"].as_object_mut() {
        metadata.retain(|key, _| !OF_THE_SERVER.contains(&key.as_str()));
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.retain(|key, _| !key.starts_with("pv.kubernetes.io/"));
        }
    }
    match object["kind"].as_str() {
        Some("Service") => forget(&mut fresh, "/spec", &["clusterIP", "clusterIPs"], |value| {
            *value == json!("None") || *value == json!(["None"])
        }),
        Some("ServiceAccount") => forget(&mut fresh, "", &["secrets"], |_| false),
        Some("Job") if object["spec"]["manualSelector"] != true => {
            const MADE: [&str; 4] =
                ["controller-uid", "job-name", "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name"];
            forget(&mut fresh, "/spec", &["selector"], |_| false);
            forget(&mut fresh, "/spec/template/metadata/labels", &MADE, |_| false);
            forget(&mut fresh, "/metadata/labels", &MADE, |_| false);
        }
        _ => {}
    }
    if let Some(workload) = stopped(object, workloads) {
        match (workload.replicas, workload.kind.as_str()) {
            (Some(replicas), _) => fresh["spec"]["replicas"] = json!(replicas),
            (None, "CronJob" | "Job") => fresh["spec"]["suspend"] = json!(false),
            (None, _) => forget(&mut fresh, "/spec/template/spec/nodeSelector", &[PARKED], |_| false),
        }
    }
    fresh
}

fn forget(object: &mut Value, at: &str, keys: &[&str], keep: impl Fn(&Value) -> bool) {
    if let Some(fields) = object.pointer_mut(at).and_then(Value::as_object_mut) {
        fields.retain(|key, value| !keys.contains(&key.as_str()) || keep(value));
    }
}

/// Returns the remedy for a claim whose volume was kept: the volume still refers to the deleted claim.
fn waits(object: &Value) -> Option<String> {
    let volume =
        object["spec"]["volumeName"].as_str().filter(|_| ObjectKind::of_manifest(object).data() == Data::Claim)?;
    let claim = object["metadata"]["name"].as_str()?;
    Some(format!(
        "claim {claim} waits for volume {volume}: kubectl patch pv {volume} --type=json -p \
         '[{{\"op\":\"remove\",\"path\":\"/spec/claimRef/uid\"}}]'"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_are_restored_as_they_were_before_the_suspension() {
        let workload = |kind: &str, replicas| Workload {
            api_version: "apps/v1".to_owned(),
            kind: kind.to_owned(),
            name: "web".to_owned(),
            replicas,
        };
        let workloads = [workload("Deployment", Some(3)), workload("DaemonSet", None)];
        let object = |kind: &str, spec: Value| {
            json!({
                "apiVersion": "apps/v1", "kind": kind, "spec": spec,
                "metadata": {"name": "web", "uid": "u", "resourceVersion": "1", "finalizers": ["x"], "labels": {"a": "b"}},
            })
        };
        let made = fresh(&object("Deployment", json!({"replicas": 0})), &workloads);
        assert_eq!(made["spec"]["replicas"], 3);
        assert_eq!(made["metadata"], json!({"name": "web", "labels": {"a": "b"}}));
        let parked = json!({"template": {"spec": {"nodeSelector": {PARKED: "true", "disk": "ssd"}}}});
        let made = fresh(&object("DaemonSet", parked), &workloads);
        assert_eq!(made["spec"]["template"]["spec"]["nodeSelector"], json!({"disk": "ssd"}));
    }

    #[test]
    fn restored_services_and_jobs_lose_fields_that_the_server_assigned() {
        let service = |ip: &str| json!({"kind": "Service", "spec": {"clusterIP": ip, "clusterIPs": [ip], "ports": []}});
        assert_eq!(fresh(&service("10.0.0.7"), &[])["spec"], json!({"ports": []}));
        assert_eq!(fresh(&service("None"), &[])["spec"], service("None")["spec"]);
        let job = json!({"kind": "Job", "spec": {
            "selector": {}, "template": {"metadata": {"labels": {"batch.kubernetes.io/controller-uid": "u", "a": "b"}}},
        }});
        assert_eq!(fresh(&job, &[])["spec"], json!({"template": {"metadata": {"labels": {"a": "b"}}}}));
    }
}
