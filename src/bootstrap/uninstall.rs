//! `bursar uninstall`: removes Bursar from a cluster with the administrator's credential. Everything that grants access
//! or refuses requests is removed. The tenants' namespaces, quotas, network policies and volumes stay. The command can
//! be repeated.

use std::path::Path;

use k8s_openapi::api::authentication::v1::UserInfo;
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Preconditions};
use kube::core::{ApiResource, PartialObjectMeta};

use super::init::{Did, Made, nobody_elses};
use super::own::who;
use super::owner::owner;
use super::roles::{CLUSTER_ADMIN_BINDING, INIT_MANAGER, OWN_NAMESPACES};
use super::webhook::WEBHOOK;
use super::webhook::remembered::forget;
use super::{AccessError, answered, approver};
use crate::contract::{MANAGED_BY, MANAGER};
use crate::identity::ClusterName;
use crate::kinds::{ManagedKind, ObjectKind};
use crate::observed::discovery::{Kinds, resource};

const ADMISSION: &str = "admissionregistration.k8s.io/v1";
const RBAC: &str = "rbac.authorization.k8s.io/v1";

/// The kinds that are removed, in this order. The webhook configurations come first, because they refuse requests when
/// the webhook is gone. Roles and bindings follow, so that the daemon has lost its rights before its policies are
/// removed. Last come the bindings that may give the administrator the right to do all this.
const KINDS: [(&str, &str); 11] = [
    (ADMISSION, "ValidatingWebhookConfiguration"),
    (ADMISSION, "MutatingWebhookConfiguration"),
    (RBAC, "RoleBinding"),
    (RBAC, "Role"),
    (RBAC, "ClusterRole"),
    (ADMISSION, "ValidatingAdmissionPolicyBinding"),
    (ADMISSION, "MutatingAdmissionPolicyBinding"),
    (ADMISSION, "ValidatingAdmissionPolicy"),
    (ADMISSION, "MutatingAdmissionPolicy"),
    ("v1", "Namespace"),
    (RBAC, "ClusterRoleBinding"),
];
/// The prefix of the users and groups that Bursar issues.
const GIVEN: &str = "bursar:";

/// The input of an uninstallation.
#[derive(Debug, Clone, Copy)]
pub struct UninstallRequest<'a> {
    pub cluster: &'a ClusterName,
    /// The ledger that must own the cluster.
    pub ledger_id: &'a str,
    /// The state folder, which records that a webhook was installed.
    pub state_dir: &'a Path,
    /// A kubeconfig of the cluster's administrator.
    pub admin_kubeconfig: &'a Path,
    /// Whether nothing is removed, and only what would be removed is returned.
    pub dry_run: bool,
}

/// Removes everything, or returns what would be removed.
///
/// # Errors
/// Another ledger owns the cluster, the cluster has nothing of Bursar, the credential was issued by Bursar, or a
/// request fails. Another attempt removes what is left.
pub async fn uninstall(request: UninstallRequest<'_>) -> Result<Vec<Made>, AccessError> {
    let UninstallRequest { cluster, ledger_id, state_dir, admin_kubeconfig, dry_run } = request;
    let client = &super::client(admin_kubeconfig).await?;
    let UserInfo { username, groups, .. } = who("SelfSubjectReview", client).await?;
    if username.iter().chain(groups.iter().flatten()).any(|name| name.starts_with(GIVEN)) {
        return Err(AccessError::OfBursar(admin_kubeconfig.to_owned()));
    }
    nobody_elses(client, ledger_id).await?;
    let all = all_of_ours(client).await?;
    if all.is_empty() && owner(client).await?.is_none() {
        return Err(AccessError::NothingOfBursar { cluster: cluster.clone(), path: admin_kubeconfig.to_owned() });
    }
    let name = |object: &Metadata| object.metadata.name.clone().unwrap_or_default();
    let goes = |(kind, object): &(ApiResource, Metadata)| {
        kind.kind != ManagedKind::Namespace.row().kind || OWN_NAMESPACES.contains(&&*name(object))
    };
    let mut removed = Vec::new();
    if !dry_run {
        // By the record, the daemon would write the configurations again, at once or after another `init`.
        forget(state_dir, cluster).await?;
    }
    for (kind, object) in all.into_iter().filter(goes) {
        removed.push(remove(client, &kind, &object, dry_run).await?);
    }
    Ok(removed)
}

type Metadata = PartialObjectMeta<DynamicObject>;

/// Returns all objects of [`KINDS`] with our labels, in the order of [`KINDS`].
async fn all_of_ours(client: &Client) -> Result<Vec<(ApiResource, Metadata)>, AccessError> {
    let managers = [MANAGER, INIT_MANAGER, WEBHOOK, approver::APPROVER].join(",");
    let ours = ListParams::default().labels(&format!("{MANAGED_BY} in ({managers})"));
    let mut all = Vec::new();
    for (api_version, kind) in KINDS {
        // An older server does not have some of the kinds.
        let served = answered(kind, Kinds::default().resolve(client, &ObjectKind::of(api_version, kind))).await?;
        let Some(served) = served else { continue };
        let resource = resource(&served);
        let api = Api::<DynamicObject>::all_with(client.clone(), &resource);
        let mut found = answered(&format!("{kind}s"), api.list_metadata(&ours)).await?.items;
        found.sort_by_key(|object| object.metadata.name.as_deref() == Some(CLUSTER_ADMIN_BINDING));
        all.extend(found.into_iter().map(|object| (resource.clone(), object)));
    }
    Ok(all)
}

async fn remove(client: &Client, kind: &ApiResource, object: &Metadata, dry_run: bool) -> Result<Made, AccessError> {
    let name = object.metadata.name.clone().unwrap_or_default();
    let place = object.metadata.namespace.as_ref().map(|place| format!("{place}/")).unwrap_or_default();
    let what = format!("{} {place}{name}", kind.kind);
    let made = Made { what: what.clone(), did: Did::Removed };
    if dry_run {
        return Ok(made);
    }
    let api = match &object.metadata.namespace {
        Some(namespace) => Api::<DynamicObject>::namespaced_with(client.clone(), namespace, kind),
        None => Api::all_with(client.clone(), kind),
    };
    let preconditions = Some(Preconditions { uid: object.metadata.uid.clone(), resource_version: None });
    let parameters = DeleteParams { preconditions, ..DeleteParams::background() };
    match answered(&what, api.delete(&name, &parameters)).await {
        Err(AccessError::Api { source, .. }) if matches!(&*source, kube::Error::Api(status) if status.code == 404) => {}
        done => drop(done?),
    }
    Ok(made)
}
