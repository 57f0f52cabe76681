//! `bursar uninstall`: removes Bursar from a cluster with the administrator's credential. Everything that grants access
//! or refuses requests is removed. The tenants' namespaces, quotas, network policies and volumes stay. The command can
//! be repeated.
//!
//! Objects are found by their label. Bindings are also found by their UID in the ledger and by their subjects, because a
//! binding without the label still gives access. Bindings that others made are reported and not removed.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use k8s_openapi::api::authentication::v1::UserInfo;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Preconditions};
use kube::core::ApiResource;
use serde::Deserialize as _;
use serde_json::Value;

use super::init::{Did, Made, nobody_elses};
use super::own::who;
use super::owner::owner;
use super::roles::{CLUSTER_ADMIN_BINDING, INIT_MANAGER, OWN_NAMESPACES};
use super::webhook::WEBHOOK;
use super::webhook::remembered::forget;
use super::{AccessError, answered, approver};
use crate::contract::{MANAGED_BY, MANAGER};
use crate::desired::rbac::ARCHIVE_BINDING;
use crate::execute::request::{ApiServer, RequestError};
use crate::identity::ClusterName;
use crate::kinds::{Detail, ManagedKind, ObjectKind, deletion};
use crate::ledger::LedgerState;
use crate::observed::discovery::{Kinds, resource};
use crate::plan::bound::{ISSUED, is_issued};

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
/// The values of label [`MANAGED_BY`] on Bursar's objects.
const MANAGERS: [&str; 4] = [MANAGER, INIT_MANAGER, WEBHOOK, approver::APPROVER];

/// The input of an uninstallation.
#[derive(Debug, Clone, Copy)]
pub struct UninstallRequest<'a> {
    pub cluster: &'a ClusterName,
    /// The ledger that must own the cluster. It records the bindings that the daemon made.
    pub ledger: &'a LedgerState,
    /// The state folder, which records that a webhook was installed.
    pub state_dir: &'a Path,
    /// A kubeconfig of the cluster's administrator.
    pub admin_kubeconfig: &'a Path,
    /// Whether nothing is removed, and only what would be removed is returned.
    pub dry_run: bool,
}

/// The result of an uninstallation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uninstalled {
    /// What was removed, or would be removed.
    pub removed: Vec<Made>,
    /// Bindings of others that give access to users, groups or service accounts of Bursar.
    pub left: Vec<LeftBinding>,
}

/// A binding that only the administrator can remove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftBinding {
    /// Kind, namespace and name, for example `RoleBinding tool-foo/readers`.
    pub what: String,
    /// The command that removes the binding.
    pub remedy: String,
}

/// Removes everything, or returns what would be removed.
///
/// # Errors
/// Another ledger owns the cluster, the cluster has nothing of Bursar, the credential was issued by Bursar, or a
/// request fails. Another attempt removes what is left.
pub async fn uninstall(request: UninstallRequest<'_>) -> Result<Uninstalled, AccessError> {
    let UninstallRequest { cluster, ledger, state_dir, admin_kubeconfig, dry_run } = request;
    let client = &super::client(admin_kubeconfig).await?;
    let UserInfo { username, groups, .. } = who("SelfSubjectReview", client).await?;
    if username.iter().chain(groups.iter().flatten()).any(|name| name.starts_with(ISSUED)) {
        return Err(AccessError::OfBursar(admin_kubeconfig.to_owned()));
    }
    nobody_elses(client, &ledger.ledger_id).await?;
    let Found { ours, left } = find(client, cluster, &recorded(ledger, cluster)).await?;
    if ours.is_empty() && left.is_empty() && owner(client).await?.is_none() {
        return Err(AccessError::NothingOfBursar { cluster: cluster.clone(), path: admin_kubeconfig.to_owned() });
    }
    let goes = |(kind, object): &(ApiResource, ObjectMeta)| {
        kind.kind != ManagedKind::Namespace.row().kind
            || object.name.as_deref().is_some_and(|name| OWN_NAMESPACES.contains(&name))
    };
    let mut removed = Vec::new();
    if !dry_run {
        // By the record, the daemon would write the configurations again, at once or after another `init`.
        forget(state_dir, cluster).await?;
    }
    for (kind, object) in ours.into_iter().filter(goes) {
        removed.push(remove(client, &kind, &object, dry_run).await?);
    }
    Ok(Uninstalled { removed, left })
}

/// What a cluster has of Bursar.
#[derive(Default)]
struct Found {
    /// Bursar's objects, in the order of [`KINDS`].
    ours: Vec<(ApiResource, ObjectMeta)>,
    left: Vec<LeftBinding>,
}

/// Returns the `metadata.uid` of the bindings in `cluster` that the ledger records.
fn recorded(ledger: &LedgerState, cluster: &ClusterName) -> BTreeSet<String> {
    let bindings = ledger.objects.iter().filter(|(key, _)| key.kind.detail() == Detail::Subjects);
    bindings.filter(|(key, _)| key.cluster == *cluster).map(|(_, record)| record.uid.to_string()).collect()
}

async fn find(client: &Client, cluster: &ClusterName, recorded: &BTreeSet<String>) -> Result<Found, AccessError> {
    let server = ApiServer::new(cluster.clone(), client.clone(), Arc::default());
    let labelled = ListParams::default().labels(&format!("{MANAGED_BY} in ({})", MANAGERS.join(",")));
    let mut all = Found::default();
    for (api_version, name) in KINDS {
        let kind = ObjectKind::of(api_version, name);
        // An older server does not have some of the kinds.
        let Some(api) = answered(name, Kinds::default().resolve(client, &kind)).await? else { continue };
        let resource = resource(&api);
        let mut ours = Vec::new();
        if kind.detail() == Detail::Subjects {
            let unlisted = |source| AccessError::Unlisted { what: name, source };
            for binding in server.list(&api.path(None, None)).await.map_err(unlisted)? {
                let metadata = ObjectMeta::deserialize(&binding["metadata"]).map_err(RequestError::Unreadable);
                let metadata = metadata.map_err(unlisted)?;
                match Maker::of(&metadata, &binding["subjects"], recorded) {
                    Maker::Bursar => ours.push(metadata),
                    Maker::OthersForBursar => all.left.push(left(&resource, &metadata)),
                    Maker::Others => {}
                }
            }
        } else {
            let api = Api::<DynamicObject>::all_with(client.clone(), &resource);
            let listed = answered(&format!("{name}s"), api.list_metadata(&labelled)).await?;
            ours.extend(listed.items.into_iter().map(|object| object.metadata));
        }
        ours.sort_by_key(|object| object.name.as_deref() == Some(CLUSTER_ADMIN_BINDING));
        all.ours.extend(ours.into_iter().map(|object| (resource.clone(), object)));
    }
    Ok(all)
}

/// The maker of a binding, and whether the binding gives access to a holder of Bursar's credentials.
#[derive(Debug, PartialEq, Eq)]
enum Maker {
    Bursar,
    OthersForBursar,
    Others,
}

impl Maker {
    fn of(binding: &ObjectMeta, subjects: &Value, recorded: &BTreeSet<String>) -> Self {
        let label = binding.labels.as_ref().and_then(|labels| labels.get(MANAGED_BY));
        let is_marked = label.is_some_and(|label| MANAGERS.contains(&label.as_str()));
        if is_marked || binding.uid.as_ref().is_some_and(|uid| recorded.contains(uid)) {
            return Self::Bursar;
        }
        let subjects = || subjects.as_array().into_iter().flatten();
        let has_our_name =
            binding.name.as_ref().is_some_and(|name| name.starts_with("bursar-") || name == ARCHIVE_BINDING);
        match (subjects().any(is_ours), subjects().all(is_ours)) {
            // Bursar's bindings never name subjects of others, who would lose their access.
            (true, true) if has_our_name => Self::Bursar,
            (true, _) => Self::OthersForBursar,
            (false, _) => Self::Others,
        }
    }
}

/// Whether a subject is known by a credential of Bursar, or is a service account of the webhook or the approver. The
/// namespaces of these service accounts are removed, but somebody could make them again.
fn is_ours(subject: &Value) -> bool {
    is_issued(subject) || subject["namespace"].as_str().is_some_and(|namespace| OWN_NAMESPACES.contains(&namespace))
}

fn left(kind: &ApiResource, binding: &ObjectMeta) -> LeftBinding {
    let name = binding.name.as_deref().unwrap_or_default();
    let remedy = deletion(&kind.kind, binding.namespace.as_deref(), name);
    LeftBinding { what: said(kind, binding), remedy }
}

fn said(kind: &ApiResource, object: &ObjectMeta) -> String {
    let place = object.namespace.as_ref().map(|place| format!("{place}/")).unwrap_or_default();
    format!("{} {place}{}", kind.kind, object.name.as_deref().unwrap_or_default())
}

async fn remove(client: &Client, kind: &ApiResource, object: &ObjectMeta, dry_run: bool) -> Result<Made, AccessError> {
    let what = said(kind, object);
    let made = Made { what: what.clone(), did: Did::Removed };
    if dry_run {
        return Ok(made);
    }
    let api = match &object.namespace {
        Some(namespace) => Api::<DynamicObject>::namespaced_with(client.clone(), namespace, kind),
        None => Api::all_with(client.clone(), kind),
    };
    let preconditions = Some(Preconditions { uid: object.uid.clone(), resource_version: None });
    let parameters = DeleteParams { preconditions, ..DeleteParams::background() };
    match answered(&what, api.delete(object.name.as_deref().unwrap_or_default(), &parameters)).await {
        Err(AccessError::Api { source, .. }) if matches!(&*source, kube::Error::Api(status) if status.code == 404) => {}
        done => drop(done?),
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::kinds::ServedKind;

    fn maker(label: Option<&str>, name: &str, subjects: &[(&str, &str)]) -> Maker {
        let labels = label.map(|label| BTreeMap::from([(MANAGED_BY.to_owned(), label.to_owned())]));
        let metadata = ObjectMeta {
            labels,
            name: Some(name.to_owned()),
            uid: Some(format!("uid-of-{name}")),
            ..ObjectMeta::default()
        };
        let subject = |(kind, name): &(&str, &str)| json!({"kind": kind, "namespace": "tool-foo", "name": name});
        let subjects: Vec<Value> = subjects.iter().map(subject).collect();
        Maker::of(&metadata, &json!(subjects), &BTreeSet::from(["uid-of-bursar-view".to_owned()]))
    }

    #[test]
    fn the_command_that_deletes_a_binding_runs_no_other_command() {
        let kind = resource(&ServedKind {
            api_version: RBAC.to_owned(),
            kind: "RoleBinding".to_owned(),
            plural: "rolebindings".to_owned(),
            namespaced: true,
        });
        let metadata = ObjectMeta {
            name: Some("a; rm -r ~".to_owned()),
            namespace: Some("tool-foo".to_owned()),
            ..ObjectMeta::default()
        };
        assert_eq!(left(&kind, &metadata).remedy, "kubectl delete rolebinding 'a; rm -r ~' -n tool-foo");
    }

    #[test]
    fn a_binding_without_the_label_is_known_by_the_ledger_or_by_name_and_subjects() {
        let group = ("Group", "bursar:tool:foo#7");
        let oidc = ("User", "oidc:alice");
        for manager in MANAGERS {
            assert_eq!(maker(Some(manager), "any", &[oidc]), Maker::Bursar);
        }
        // Nothing but the ledger tells that Bursar made a binding for a user of an OIDC issuer.
        assert_eq!(maker(None, "bursar-view", &[oidc]), Maker::Bursar);
        assert_eq!(maker(None, "bursar-edit", &[oidc]), Maker::Others);
        for ours in [group, ("User", "tool:foo"), ("Group", "bursar:tools"), ("ServiceAccount", "bursar-g7")] {
            assert_eq!(maker(None, "bursar-edit", &[ours]), Maker::Bursar, "{ours:?}");
            assert_eq!(maker(None, "readers", &[ours]), Maker::OthersForBursar, "{ours:?}");
            assert_eq!(maker(Some("helm"), "readers", &[ours]), Maker::OthersForBursar, "{ours:?}");
        }
        assert_eq!(maker(None, ARCHIVE_BINDING, &[("Group", "bursar:daemon#11111111")]), Maker::Bursar);
        assert_eq!(maker(None, "bursar-edit", &[group, ("User", "bob")]), Maker::OthersForBursar);
        assert_eq!(maker(None, "readers", &[("User", "bob"), group]), Maker::OthersForBursar);
        assert_eq!(maker(None, "bursar-edit", &[]), Maker::Others);
        assert_eq!(maker(None, "readers", &[("ServiceAccount", "default")]), Maker::Others);
    }
}
