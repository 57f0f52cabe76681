//! Who may do what: bindings of ClusterRoles to a tenant's generation group. PURE: no runtime, no client, no file
//! system, no clock.
//!
//! Every binding names the generation group, never the account: raising the generation and writing the bindings again
//! takes every older certificate's access away.

use serde_json::{Value, json};

use super::{Place, generation_group};
use crate::identity::NamespaceName;
use crate::ledger::Account;
use crate::policy::Class;

const GROUP: &str = "rbac.authorization.k8s.io";

/// The ClusterRole by which the admins of a class impersonate what the class names; made by `bursar init`.
#[must_use]
pub fn impersonation_role(class: &str) -> String {
    format!("bursar-impersonate-{class}")
}

/// Bindings in the tenant's namespace, of its holders and of its `default` service account.
#[must_use]
pub fn role_bindings(place: &Place<'_>, class: &Class) -> Vec<Value> {
    let holders = json!({
        "apiGroup": GROUP,
        "kind": "Group",
        "name": generation_group(&place.account.account_name(), place.generation),
    });
    let pods = json!({"kind": "ServiceAccount", "name": "default", "namespace": place.namespace});
    let of_holders =
        class.roles.iter().map(|role| role_binding(place.namespace, &format!("bursar-{role}"), role, &holders));
    let of_pods = class
        .service_account_roles
        .iter()
        .map(|role| role_binding(place.namespace, &format!("bursar-sa-{role}"), role, &pods));
    of_holders.chain(of_pods).collect()
}

fn role_binding(namespace: &NamespaceName, name: &str, role: &str, subject: &Value) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": name, "namespace": namespace},
        "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": role},
        "subjects": [subject],
    })
}

/// Cluster-wide bindings: the roles of a class without namespace, and impersonation of a class that has it.
#[must_use]
pub fn cluster_role_bindings(account: &Account, class: &Class, generation: u64) -> Vec<Value> {
    let roles = class.roles.iter().filter(|_| class.namespace.is_none()).cloned();
    let impersonation = (!class.impersonate.is_empty()).then(|| impersonation_role(&class.name));
    roles.chain(impersonation).map(|role| cluster_role_binding(account, &role, generation)).collect()
}

/// Named `bursar-ROLE:KIND:NAME`. A role may hold any of these characters, but neither kind nor name holds `:`, so no
/// two accounts meet.
fn cluster_role_binding(account: &Account, role: &str, generation: u64) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": format!("bursar-{role}:{}:{}", account.kind, account.kubernetes_name)},
        "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": role},
        "subjects": [{
            "apiGroup": GROUP,
            "kind": "Group",
            "name": generation_group(&account.account_name(), generation),
        }],
    })
}
