//! The daemon admission policy: the requests that the API server refuses to the daemon regardless of its roles. The
//! daemon cannot change it.
//!
//! RBAC cannot express "only in tenants' namespaces" or "only to those groups". This ValidatingAdmissionPolicy can, and
//! it fails closed: a request that no rule allows is refused. It applies to user `bursar:daemon` and to every member of
//! a group `bursar:daemon#…`. The rights are bound to the group, so a certificate with that group and another user name
//! has them too.

mod adopted;
mod own_namespace;
mod validations;

use std::collections::BTreeSet;

use serde_json::{Value, json};

use self::adopted::left_behind;
use self::validations::validations;
use super::approver;
use super::needs::{Confinement, Needs};
use super::roles::{MARK, NAMESPACE, OWN_NAMESPACES, labels};
use crate::contract::{ADOPT, CLASS, MANAGED_BY, MANAGER, SELFTEST, STATE, TenantState};
use crate::desired::volume::PERSONAL_NAMESPACE;
use crate::execute::evict::{DEFAULT_ACCOUNT, TOKEN_SECRET};
use crate::kinds::ManagedKind;
use crate::policy::{DAEMON_USER, daemon_group};

/// The name of the policy and of its binding.
pub const DAEMON_ADMISSION_POLICY: &str = "bursar-cage";

/// The beginning of every refusal by this policy. A refusal without it comes from something else.
pub const REFUSAL: &str = "ValidatingAdmissionPolicy 'bursar-cage'";

/// The beginning of the message of each rule of this policy.
pub const RULE: &str = "bursar-cage: ";

const API_VERSION: &str = "admissionregistration.k8s.io/v1";

/// The policy and its binding.
#[must_use]
pub fn daemon_admission_policy(needs: &Needs, confinement: &Confinement) -> [Value; 2] {
    let policy = json!({
        "apiVersion": API_VERSION,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": DAEMON_ADMISSION_POLICY, "labels": labels()},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "matchPolicy": "Equivalent",
                "namespaceSelector": {},
                "objectSelector": {},
                "resourceRules": [{
                    "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"], "operations": ["*"], "scope": "*",
                }],
            },
            // Reviews (SelfSubjectReview, SelfSubjectAccessReview) are sent by POST, but change nothing.
            "matchConditions": [
                {"name": "daemon", "expression": by_the_daemon()},
                {"name": "writes", "expression":
                    "!(request.resource.group in ['authentication.k8s.io', 'authorization.k8s.io'])"},
            ],
            "variables": variables(needs),
            "validations": validations(needs, confinement),
        },
    });
    let binding = json!({
        "apiVersion": API_VERSION,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": DAEMON_ADMISSION_POLICY, "labels": labels()},
        "spec": {"policyName": DAEMON_ADMISSION_POLICY, "validationActions": ["Deny"]},
    });
    [policy, binding]
}

/// The condition that matches the daemon's requests: its user name, or the group that its rights are bound to.
#[must_use]
pub fn by_the_daemon() -> String {
    format!(
        "request.userInfo.username == {user} || (has(request.userInfo.groups) && \
         request.userInfo.groups.exists(g, g.startsWith({group})))",
        user = text(DAEMON_USER),
        group = text(&daemon_group(""))
    )
}

#[expect(clippy::too_many_lines, reason = "a table, one row for each variable")]
fn variables(needs: &Needs) -> Value {
    let managed =
        |object: &str| format!("{object}.metadata.?labels[?{}].orValue('') == {}", text(MANAGED_BY), text(MANAGER));
    let list = |variable: &str, expression: String| json!({"name": variable, "expression": expression});
    json!([
        // Empty fields of the request are absent.
        list("sub", "has(request.subResource) ? request.subResource : ''".to_owned()),
        list("writes", "request.operation in ['CREATE', 'UPDATE']".to_owned()),
        list("deletes", "request.operation == 'DELETE'".to_owned()),
        list("new", "request.operation == 'CREATE'".to_owned()),
        list("old", "request.operation in ['UPDATE', 'DELETE']".to_owned()),
        list("place", "has(request.namespace) ? request.namespace : ''".to_owned()),
        // A stored object contains its name. The request has no name if the name is generated, or if a whole collection
        // is deleted.
        list(
            "name",
            "variables.old ? string(oldObject.?metadata.?name.orValue('')) : (has(request.name) && request.name != '' ? \
             request.name : (variables.new ? string(object.?metadata.?name.orValue('')) : ''))"
                .to_owned()
        ),
        list("isNamespace", is(ManagedKind::Namespace)),
        list("isVolume", is(ManagedKind::PersistentVolume)),
        list("isRequest", resource("certificates.k8s.io", "certificatesigningrequests")),
        list(
            "isHooks",
            "request.resource.group == 'admissionregistration.k8s.io' && request.resource.resource in \
             ['validatingwebhookconfigurations', 'mutatingwebhookconfigurations']"
                .to_owned()
        ),
        list("hooks", "variables.isHooks && variables.writes ? object.?webhooks.orValue([]) : []".to_owned()),
        list("isClusterBinding", is(ManagedKind::ClusterRoleBinding)),
        list("isBinding", is(ManagedKind::RoleBinding)),
        list("isPod", format!("{} && variables.sub == ''", resource("", "pods"))),
        list("namespaced", "!variables.isNamespace && variables.place != ''".to_owned()),
        list("reserved", reserved()),
        list("managedNow", format!("variables.writes ? {} : true", managed("object"))),
        list("managedBefore", format!("variables.old ? {} : true", managed("oldObject"))),
        list("classNow", format!("variables.writes && {} in object.metadata.?labels.orValue({{}})", text(CLASS))),
        list("classBefore", format!("variables.old && {} in oldObject.metadata.?labels.orValue({{}})", text(CLASS))),
        list("labelsBefore", "variables.old ? oldObject.metadata.?labels.orValue({}) : {}".to_owned()),
        list("annotationsBefore", "variables.old ? oldObject.metadata.?annotations.orValue({}) : {}".to_owned()),
        list("adoptable", format!("variables.old && {} in oldObject.metadata.?labels.orValue({{}})", text(ADOPT))),
        // The namespace of the self-test has the class label, but no subject may be bound in it.
        list(
            "tenantPlace",
            format!(
                "variables.namespaced && variables.place != {} && {} in namespaceObject.metadata.?labels.orValue({{}})",
                text(SELFTEST),
                text(CLASS)
            )
        ),
        list(
            "suspendedPlace",
            format!(
                "variables.tenantPlace && namespaceObject.metadata.?annotations[?{}].orValue('') == {}",
                text(STATE),
                text(TenantState::Suspended.as_str())
            )
        ),
        list("ownPlace", own_namespace::place()),
        list(
            "role",
            "variables.writes && has(object.roleRef) && object.roleRef.kind == 'ClusterRole' ? \
            object.roleRef.name : ''"
                .to_owned()
        ),
        list("subjects", "variables.writes ? object.?subjects.orValue([]) : []".to_owned()),
        // If somebody removed the label of one of the daemon's bindings, the daemon empties the binding before the
        // deletion.
        list(
            "empties",
            "(variables.isBinding || variables.isClusterBinding) && variables.writes && variables.old && \
             variables.sub == '' && variables.name.startsWith('bursar-') && variables.subjects.size() == 0"
                .to_owned()
        ),
        list(
            "isMark",
            format!(
                "variables.place == {} && variables.name == {} && {}",
                text(NAMESPACE),
                text(MARK),
                resource("", "configmaps")
            )
        ),
        list("roles", texts(&needs.roles)),
        list("adoptedPlace", adopted::place(needs)),
        list("levels", adopted::levels(needs)),
        // A binding without subjects grants nothing, so the daemon may empty its own bindings in every namespace.
        list(
            "leftBehind",
            format!(
                "variables.namespaced && ((variables.deletes && variables.managedBefore && {}) || \
                 (variables.empties && variables.isBinding && variables.managedNow && !(variables.place in {})))",
                left_behind(),
                texts(OWN_NAMESPACES)
            )
        ),
        list("isAccount", is(ManagedKind::ServiceAccount)),
        list("isSecret", is(ManagedKind::Secret)),
        // The answer to a deletion of a collection contains the objects, so a dry run would let the daemon read them.
        list("dryRun", "request.?dryRun.orValue(false)".to_owned()),
        // An eviction deletes the objects through which others can act in a suspended namespace without a credential of
        // Bursar: Secrets with tokens, and the default service account.
        list(
            "evicts",
            format!(
                "variables.suspendedPlace && variables.deletes && variables.sub == '' && !variables.dryRun && \
                 ((variables.isSecret && oldObject.?type.orValue('') == {}) || \
                 (variables.isAccount && variables.name == {}))",
                text(TOKEN_SECRET),
                text(DEFAULT_ACCOUNT)
            )
        ),
        list("userNames", texts(needs.users.iter().map(|user| user_pattern(user)).collect::<BTreeSet<_>>())),
        list("serviceAccountRoles", texts(&needs.service_account_roles)),
        list("adminRoles", texts(&needs.admin_roles)),
    ])
}

/// Matches the namespaces of Kubernetes and of the approver and all objects in them. Also matches the namespaces
/// `bursar` and [`PERSONAL_NAMESPACE`], but not the objects in them.
fn reserved() -> String {
    format!(
        "[variables.place, variables.isNamespace ? variables.name : ''].exists(place, place.startsWith('kube-') || \
         place in ['default', {}] || (variables.isNamespace && place in [{}, {}]))",
        text(approver::NAMESPACE),
        text(NAMESPACE),
        text(PERSONAL_NAMESPACE)
    )
}

/// The condition that the request concerns an object of this kind.
fn is(kind: ManagedKind) -> String {
    resource(kind.group(), kind.row().plural)
}

fn resource(group: &str, resource: &str) -> String {
    format!("request.resource.group == '{group}' && request.resource.resource == '{resource}'")
}

/// A pattern of the user names that a template can produce. The name must not contain a colon, because that could match
/// the names of another template.
fn user_pattern(template: &str) -> String {
    template_pattern(template, "[^:]+")
}

/// Turns a template of users into a pattern, with `name` as the pattern of the placeholder.
fn template_pattern(template: &str, name: &str) -> String {
    // The dot is the only character of a template that has a special meaning in a pattern.
    format!("^{}$", template.replace('.', "[.]").replace("{name}", name))
}

/// Returns a CEL string. Quotes and backslashes are removed, so that a value cannot end the string; Bursar's values
/// contain neither.
fn text(value: &str) -> String {
    format!("'{}'", value.replace(['\'', '\\'], ""))
}

fn texts(values: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    let quoted: Vec<String> = values.into_iter().map(|value| text(value.as_ref())).collect();
    format!("[{}]", quoted.join(", "))
}

/// A value as a CEL literal that can be compared with a stored value. Kubernetes requires one type for all values of a
/// list or map, so each value is `dyn`.
fn literal(value: &Value) -> String {
    match value {
        Value::String(text) => format!("\"{}\"", text.replace(['"', '\\'], "")),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(|item| format!("dyn({})", literal(item))).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(fields) => {
            let fields: Vec<String> =
                fields.iter().map(|(key, value)| format!("{}: dyn({})", text(key), literal(value))).collect();
            format!("{{{}}}", fields.join(", "))
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_become_cel_literals() {
        let value = json!({"a": ["x", "y'z"], "b": {}, "c": true});
        assert_eq!(literal(&value), "{'a': dyn([dyn(\"x\"), dyn(\"y'z\")]), 'b': dyn({}), 'c': dyn(true)}");
    }
}
