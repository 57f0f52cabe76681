//! `bursar uninstall`: takes Bursar out of a cluster, as its administrator. What gives access or refuses something goes; what
//! tenants have (namespaces, quotas, network policies, volumes) stays. May be repeated.

use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Preconditions};
use kube::core::PartialObjectMeta;

use super::init::{Did, Made, nobody_elses};
use super::roles::{INIT_MANAGER, NAMESPACE};
use super::webhook::WEBHOOK;
use super::{AccessError, answered, approver};
use crate::contract::{MANAGED_BY, MANAGER, SELFTEST};
use crate::kinds::ObjectKind;
use crate::observed::discovery::{Kinds, resource};

const ADMISSION: &str = "admissionregistration.k8s.io/v1";
const RBAC: &str = "rbac.authorization.k8s.io/v1";

/// What goes, in this order: first what refuses everything that it cannot ask about, then the access, the daemon's too.
const KINDS: [(&str, &str); 10] = [
    (ADMISSION, "ValidatingWebhookConfiguration"),
    (ADMISSION, "MutatingWebhookConfiguration"),
    (RBAC, "ClusterRoleBinding"),
    (RBAC, "RoleBinding"),
    (ADMISSION, "ValidatingAdmissionPolicyBinding"),
    (ADMISSION, "MutatingAdmissionPolicyBinding"),
    (ADMISSION, "ValidatingAdmissionPolicy"),
    (ADMISSION, "MutatingAdmissionPolicy"),
    (RBAC, "Role"),
    (RBAC, "ClusterRole"),
];
/// Bursar's own namespaces, which hold nothing of a tenant.
const OWN: [&str; 3] = [approver::NAMESPACE, SELFTEST, NAMESPACE];

/// Removes everything, or says what would be if `dry_run`.
///
/// # Errors
/// The cluster is another ledger's, or does not take something; what is left is removed by another try.
pub async fn uninstall(client: &Client, ledger_id: &str, dry_run: bool) -> Result<Vec<Made>, AccessError> {
    nobody_elses(client, ledger_id).await?;
    let managers = [MANAGER, INIT_MANAGER, WEBHOOK, approver::APPROVER].join(",");
    let ours = ListParams::default().labels(&format!("{MANAGED_BY} in ({managers})"));
    let mut removed = Vec::new();
    for (api_version, kind) in KINDS {
        // An older server lacks some kinds, and so has none of them.
        let Some(api) = api(client, api_version, kind).await? else { continue };
        let found = answered(&format!("{kind}s"), api.list_metadata(&ours)).await?;
        for object in found {
            removed.push(remove(client, (api_version, kind), &object, dry_run).await?);
        }
    }
    let api = Api::<DynamicObject>::all_with(
        client.clone(),
        &kube::core::ApiResource::erase::<k8s_openapi::api::core::v1::Namespace>(&()),
    );
    let found = answered("namespaces", api.list_metadata(&ours)).await?;
    for namespace in found {
        if namespace.metadata.name.as_deref().is_some_and(|name| OWN.contains(&name)) {
            removed.push(remove(client, ("v1", "Namespace"), &namespace, dry_run).await?);
        }
    }
    Ok(removed)
}

async fn api(client: &Client, api_version: &str, kind: &str) -> Result<Option<Api<DynamicObject>>, AccessError> {
    let found = answered(kind, Kinds::default().resolve(client, &ObjectKind::of(api_version, kind))).await?;
    Ok(found.map(|kind| Api::all_with(client.clone(), &resource(&kind))))
}

async fn remove(
    client: &Client,
    (api_version, kind): (&str, &str),
    object: &PartialObjectMeta<DynamicObject>,
    dry_run: bool,
) -> Result<Made, AccessError> {
    let name = object.metadata.name.clone().unwrap_or_default();
    let place = object.metadata.namespace.as_ref().map(|place| format!("{place}/")).unwrap_or_default();
    let what = format!("{kind} {place}{name}");
    let made = Made { what: what.clone(), did: Did::Removed };
    let found = answered(&what, Kinds::default().resolve(client, &ObjectKind::of(api_version, kind))).await?;
    let Some(found) = found.filter(|_| !dry_run) else { return Ok(made) };
    let resource = resource(&found);
    let api = match &object.metadata.namespace {
        Some(namespace) => Api::<DynamicObject>::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let preconditions = Some(Preconditions { uid: object.metadata.uid.clone(), resource_version: None });
    let parameters = DeleteParams { preconditions, ..DeleteParams::background() };
    match answered(&what, api.delete(&name, &parameters)).await {
        Err(AccessError::Api { source, .. }) if matches!(&*source, kube::Error::Api(status) if status.code == 404) => {}
        done => drop(done?),
    }
    Ok(made)
}
