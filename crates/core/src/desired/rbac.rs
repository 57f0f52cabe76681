//! Bindings of ClusterRoles to a tenant's holders ([`super::credential::holder`]).
//!
//! A binding names a subject with a generation, never the account alone. Raising the generation and rewriting the
//! bindings revokes the access of every older credential. Users of an OIDC issuer have no generation.

use serde_json::{Value, json};

use super::Place;
use crate::contract::{MANAGED_BY, MANAGER};
use crate::identity::{ClusterName, NamespaceName};
use crate::kinds::{ManagedKind, ObjectKey};
use crate::ledger::Account;
use crate::policy::{Class, daemon_group};

const GROUP: &str = "rbac.authorization.k8s.io";

/// Returns the ClusterRole by which people of a class may impersonate the users that the class names. `bursar init`
/// creates it.
#[must_use]
pub fn impersonation_role(class: &str) -> String {
    format!("bursar-impersonate-{class}")
}

/// The ClusterRole by which an archive lists all objects of one suspended tenant. `bursar init` creates it.
pub const ARCHIVE_ROLE: &str = "bursar-archive";

/// The name of the binding of [`ARCHIVE_ROLE`]. The names of the bindings of classes begin with `bursar-`, so none of
/// them has this name.
pub const ARCHIVE_BINDING: &str = "bursar:archive";

/// Returns the key of the binding of [`ARCHIVE_ROLE`] to the daemon, which exists only while an archive is made.
#[must_use]
pub fn archive_binding(cluster: &ClusterName, namespace: &NamespaceName) -> ObjectKey {
    ObjectKey::new(cluster, ManagedKind::RoleBinding, Some(namespace.as_str()), ARCHIVE_BINDING)
}

/// Returns the manifest of [`archive_binding`] for the daemon of this ledger.
#[must_use]
pub fn archive_binding_manifest(namespace: &NamespaceName, ledger_id: &str) -> Value {
    let daemon = json!({"apiGroup": GROUP, "kind": "Group", "name": daemon_group(ledger_id)});
    let mut binding = role_binding(namespace, ARCHIVE_BINDING, ARCHIVE_ROLE, &[daemon]);
    binding["metadata"]["labels"] = json!({MANAGED_BY: MANAGER});
    binding
}

/// Returns the bindings in a namespace: bindings of the holders, if there are any, and bindings of the `default`
/// service account.
#[must_use]
pub fn role_bindings(place: &Place<'_>, class: &Class, holders: Option<&Value>) -> Vec<Value> {
    let pods = json!({"kind": "ServiceAccount", "name": "default", "namespace": place.namespace});
    let bind = |prefix: &str, role: &String, subject: &Value| {
        role_binding(place.namespace, &format!("{prefix}{role}"), role, std::slice::from_ref(subject))
    };
    let of_holders =
        holders.into_iter().flat_map(|holders| class.roles.iter().map(|role| bind("bursar-", role, holders)));
    let of_pods = class.service_account_roles.iter().map(|role| bind("bursar-sa-", role, &pods));
    of_holders.chain(of_pods).collect()
}

/// Returns the manifest of a binding that no class asks for any more, with these subjects. The name of the binding
/// contains its role.
#[must_use]
pub fn remembered_binding(account: &Account, key: &ObjectKey, subjects: &[Value]) -> Option<Value> {
    let mut binding = if key.kind == ManagedKind::RoleBinding {
        let is_of_pods = subjects
            .iter()
            .all(|subject| subject["kind"] == ManagedKind::ServiceAccount.row().kind && subject["name"] == "default");
        let role = key.name.strip_prefix(if is_of_pods { "bursar-sa-" } else { "bursar-" })?;
        let namespace = NamespaceName::try_from(key.namespace.as_ref()?.to_string()).ok()?;
        role_binding(&namespace, &key.name, role, subjects)
    } else {
        let of_account = format!(":{}:{}", account.kind, account.kubernetes_name);
        let role = key.name.strip_prefix("bursar-")?.strip_suffix(&of_account)?;
        cluster_role_binding(account, role, subjects.first()?)
    };
    binding["metadata"]["labels"] = json!({MANAGED_BY: MANAGER});
    Some(binding)
}

pub(super) fn role_binding(namespace: &NamespaceName, name: &str, role: &str, subjects: &[Value]) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": name, "namespace": namespace},
        "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": role},
        "subjects": subjects,
    })
}

/// Returns the cluster-wide bindings: the roles of a class without namespaces, and the impersonation role of any class
/// that has one.
#[must_use]
pub fn cluster_role_bindings(account: &Account, class: &Class, holders: &Value) -> Vec<Value> {
    cluster_wide_roles(class).map(|role| cluster_role_binding(account, &role, holders)).collect()
}

/// Returns the roles that the class binds in the whole cluster.
pub fn cluster_wide_roles(class: &Class) -> impl Iterator<Item = String> {
    let roles = class.roles.iter().filter(move |_| class.namespace.is_none()).cloned();
    let impersonation = (!class.impersonate.is_empty()).then(|| impersonation_role(&class.name));
    roles.chain(impersonation)
}

/// Returns a binding with the name `bursar-ROLE:KIND:NAME`. A role may contain `:`, but kind and name cannot, so two
/// accounts never share a name.
fn cluster_role_binding(account: &Account, role: &str, holders: &Value) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": format!("bursar-{role}:{}:{}", account.kind, account.kubernetes_name)},
        "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": role},
        "subjects": [holders],
    })
}
