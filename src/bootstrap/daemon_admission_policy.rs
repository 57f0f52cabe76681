//! The daemon admission policy: what the API server refuses the daemon, whatever its roles say, and what the daemon
//! cannot change. PURE: no runtime, no client, no file system, no clock.
//!
//! RBAC cannot say "only in tenants' namespaces" or "only to those groups". This ValidatingAdmissionPolicy can, and it
//! fails closed: what it does not know is refused. It looks at requests of the daemon only, so nobody else waits for
//! it.

mod adopted;

use std::collections::BTreeSet;

use serde_json::{Value, json};

use self::adopted::left_behind;
use super::needs::{ARCHIVE_ROLE, Needs};
use super::roles::{NAMESPACE, OWNER, labels};
use super::webhook::configurations::by_the_daemon;
use crate::contract::{ADOPT, CLASS, JOB, MANAGED_BY, MANAGER, SELFTEST, STATE, TenantState};
use crate::desired::credential::SECRET_PREFIX;
use crate::desired::volume::PERSONAL_NAMESPACE;
use crate::execute::signing::SIGNER;
use crate::kinds::ManagedKind;
use crate::policy::{DAEMON_USER, TOKEN_LIFETIME_MAX};

/// Name of the policy and of its binding.
pub const DAEMON_ADMISSION_POLICY: &str = "bursar-cage";

const API_VERSION: &str = "admissionregistration.k8s.io/v1";

/// A generation group, as `desired::generation_group` writes it. Never `system:`.
const GENERATION_GROUP: &str = "^bursar:(tool|user|group):.+#[0-9]+$";

/// A service account of a generation, as `desired::credential` names it.
const SERVICE_ACCOUNT: &str = "^bursar-g[0-9]+$";

/// The policy and its binding.
#[must_use]
pub fn daemon_admission_policy(needs: &Needs) -> [Value; 2] {
    let policy = json!({
        "apiVersion": API_VERSION,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": DAEMON_ADMISSION_POLICY, "labels": labels()},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "matchPolicy": "Equivalent",
                "resourceRules": [{
                    "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"], "operations": ["*"], "scope": "*",
                }],
            },
            // Reviews of oneself and of rights are sent by POST, and change nothing.
            "matchConditions": [
                {"name": "daemon", "expression": format!("request.userInfo.username == {}", text(DAEMON_USER))},
                {"name": "writes", "expression":
                    "!(request.resource.group in ['authentication.k8s.io', 'authorization.k8s.io'])"},
            ],
            "variables": variables(needs),
            "validations": validations(),
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

fn variables(needs: &Needs) -> Value {
    let managed =
        |object: &str| format!("{object}.metadata.?labels[?{}].orValue('') == {}", text(MANAGED_BY), text(MANAGER));
    let list = |variable: &str, expression: String| json!({"name": variable, "expression": expression});
    json!([
        // Fields of the request that are empty are not there.
        list("sub", "has(request.subResource) ? request.subResource : ''".to_owned()),
        list("writes", "request.operation in ['CREATE', 'UPDATE']".to_owned()),
        list("place", "has(request.namespace) ? request.namespace : ''".to_owned()),
        // Of an object whose name is generated the request has none.
        list(
            "name",
            "has(request.name) && request.name != '' ? request.name : \
             (variables.writes ? string(object.?metadata.?name.orValue('')) : '')"
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
        list("namespaced", "!variables.isNamespace && variables.place != ''".to_owned()),
        list("new", "request.operation == 'CREATE'".to_owned()),
        list("old", "request.operation != 'CREATE'".to_owned()),
        list(
            "reserved",
            format!(
                "[variables.place, variables.isNamespace ? variables.name : ''].exists(place, place.startsWith('kube-') || \
             place == 'default' || (variables.isNamespace && place == {}))",
                text(NAMESPACE)
            )
        ),
        list("managedNow", format!("variables.writes ? {} : true", managed("object"))),
        list("managedBefore", format!("variables.old ? {} : true", managed("oldObject"))),
        list("classNow", format!("variables.writes && {} in object.metadata.?labels.orValue({{}})", text(CLASS))),
        list("classBefore", format!("variables.old && {} in oldObject.metadata.?labels.orValue({{}})", text(CLASS))),
        list("adoptable", format!("variables.old && {} in oldObject.metadata.?labels.orValue({{}})", text(ADOPT))),
        list(
            "tenantPlace",
            format!("variables.namespaced && {} in namespaceObject.metadata.?labels.orValue({{}})", text(CLASS))
        ),
        list(
            "suspendedPlace",
            format!(
                "variables.tenantPlace && namespaceObject.metadata.?annotations[?{}].orValue('') == {}",
                text(STATE),
                text(TenantState::Suspended.as_str())
            )
        ),
        list(
            "role",
            "variables.writes && has(object.roleRef) && object.roleRef.kind == 'ClusterRole' ? \
            object.roleRef.name : ''"
                .to_owned()
        ),
        list("subjects", "variables.writes ? object.?subjects.orValue([]) : []".to_owned()),
        list("roles", texts(&needs.roles)),
        list("adoptedPlace", adopted::place(needs)),
        list(
            "leftBehind",
            format!(
                "variables.namespaced && request.operation == 'DELETE' && variables.managedBefore && {}",
                left_behind()
            )
        ),
        list("isAccount", is(ManagedKind::ServiceAccount)),
        list("isSecret", is(ManagedKind::Secret)),
        list("userNames", texts(&needs.users.iter().map(|user| user_pattern(user)).collect::<BTreeSet<_>>())),
        list("serviceAccountRoles", texts(&needs.service_account_roles)),
        list("adminRoles", texts(&needs.admin_roles)),
    ])
}

/// Whether the request is for an object of this kind.
fn is(kind: ManagedKind) -> String {
    resource(kind.group(), kind.row().plural)
}

fn resource(group: &str, resource: &str) -> String {
    format!("request.resource.group == '{group}' && request.resource.resource == '{resource}'")
}

fn validations() -> Value {
    let rule = |message: &str, expression: String| json!({"message": message, "expression": expression});
    json!([
        rule(
            "bursar-cage: the daemon neither runs anything in pods nor speaks through the API server to anything",
            "request.operation != 'CONNECT'".to_owned()
        ),
        rule("bursar-cage: the daemon writes in no namespace of Kubernetes'", "!variables.reserved".to_owned()),
        rule(
            "bursar-cage: the daemon makes namespaces with bursar.dev/class only, changes those that carry it or \
             bursar.dev/adopt, and deletes those of suspended tenants",
            namespaces()
        ),
        rule(
            "bursar-cage: the daemon writes in namespaces with bursar.dev/class only, and in its own; in those that a class \
             adopts it binds and limits by objects of its own, and removes those again wherever they are; where storage \
             outlives its account it makes claims, and deletes none",
            format!(
                "!variables.namespaced || variables.tenantPlace || variables.adoptedPlace || variables.leftBehind || (variables.place == {} && \
                     variables.name != {} && request.resource.group != 'rbac.authorization.k8s.io') || \
                     (variables.place == {} && {} && request.operation != 'DELETE')",
                text(NAMESPACE),
                text(OWNER),
                text(PERSONAL_NAMESPACE),
                is(ManagedKind::PersistentVolumeClaim)
            )
        ),
        rule("bursar-cage: the daemon binds named roles to holders of its credentials only", bindings()),
        rule(
            "bursar-cage: the daemon reads all of a tenant only while it is suspended",
            format!(
                "!variables.isBinding || !variables.writes || variables.role != {archive} || \
                (variables.suspendedPlace && variables.subjects.all(s, s.kind == 'User' && s.name == {daemon}))",
                archive = text(ARCHIVE_ROLE),
                daemon = text(DAEMON_USER)
            )
        ),
        rule(
            "bursar-cage: the daemon removes its own bindings only",
            "!variables.isBinding || variables.writes || variables.managedBefore".to_owned()
        ),
        rule("bursar-cage: the daemon binds admin roles to holders of its credentials only", admin_bindings()),
        rule(
            "bursar-cage: the daemon makes NFS volumes of its own only",
            "!variables.isVolume || (variables.managedNow && variables.managedBefore && \
             (!variables.writes || has(object.spec.nfs)))"
                .to_owned()
        ),
        rule(
            "bursar-cage: the daemon makes service accounts of its own name only, and tokens of those that end with a \
             Secret of a host",
            accounts()
        ),
        rule(
            "bursar-cage: the daemon makes no Secret that Kubernetes fills with a token",
            "!variables.isSecret || !variables.writes || \
             object.?type.orValue('') != 'kubernetes.io/service-account-token'"
                .to_owned()
        ),
        rule(
            "bursar-cage: of tenants' services, config maps and secrets the daemon deletes its own, and those with a job label",
            companions()
        ),
        rule(
            "bursar-cage: the daemon asks for client certificates, and approves its own requests only",
            format!(
                "!variables.isRequest || (request.operation == 'DELETE' ? variables.managedBefore : \
                variables.managedNow && object.spec.signerName == {signer} && (variables.new || \
                (variables.sub == 'approval' && oldObject.spec.username == {daemon})))",
                signer = text(SIGNER),
                daemon = text(DAEMON_USER)
            )
        ),
        rule(
            "bursar-cage: the daemon makes pods in bursar-selftest only, and without effect",
            format!(
                "!({pods} && variables.new) || (variables.place == {} && has(request.dryRun) && request.dryRun)",
                text(SELFTEST),
                pods = "request.resource.group == '' && request.resource.resource == 'pods' && variables.sub == ''"
            )
        ),
        rule(
            "bursar-cage: the daemon's webhooks meet tenants' namespaces and objects of its own only, and change pods and \
             claims only",
            hooks()
        ),
        rule(
            "bursar-cage: of what is cluster-wide the daemon writes namespaces, volumes, certificate requests and admin \
             bindings only",
            "variables.namespaced || variables.isNamespace || variables.isVolume || variables.isRequest || \
             variables.isClusterBinding || variables.isHooks"
                .to_owned()
        ),
    ])
}

/// A generation group, a service account of a generation, and somebody whom an issuer vouches for, as a subject `s`.
fn holders() -> [String; 3] {
    [
        format!("(s.kind == 'Group' && s.name.matches('{GENERATION_GROUP}'))"),
        format!(
            "(s.kind == 'ServiceAccount' && s.name.matches('{SERVICE_ACCOUNT}') && s.?namespace.orValue('') == \
             variables.place)"
        ),
        "(s.kind == 'User' && variables.userNames.exists(u, s.name.matches(u)))".to_owned(),
    ]
}

fn bindings() -> String {
    format!(
        "!variables.isBinding || !variables.writes || variables.role == {archive} || \
         (variables.role != '' && variables.subjects.all(s, (({holders}) && (variables.role in variables.roles || variables.adoptedPlace)) || \
         (s.kind == 'ServiceAccount' && s.name == 'default' && s.?namespace.orValue('') == variables.place && \
         (variables.role in variables.serviceAccountRoles || variables.adoptedPlace))))",
        archive = text(ARCHIVE_ROLE),
        holders = holders().join(" || "),
    )
}

/// A service account has no rights in the whole cluster.
fn admin_bindings() -> String {
    let [group, _, user] = holders();
    format!(
        "!variables.isClusterBinding || (variables.managedNow && variables.managedBefore && \
         variables.name.startsWith('bursar-') && (!variables.writes || (variables.role in variables.adminRoles && \
         variables.subjects.all(s, {group} || {user}))))"
    )
}

/// Of the name of a generation; of tokens those that end with a Secret of a host, and with their time.
fn accounts() -> String {
    format!(
        "!variables.isAccount || (variables.name.matches('{SERVICE_ACCOUNT}') && (variables.sub == 'token' ? \
                 object.spec.?boundObjectRef.kind.orValue('') == 'Secret' && \
                 object.spec.?boundObjectRef.name.orValue('').startsWith({secret}) && \
                 object.spec.?expirationSeconds.orValue(0) <= {most} : \
                 variables.sub == '' && variables.managedNow && (variables.writes || variables.managedBefore)))",
        secret = text(SECRET_PREFIX),
        most = TOKEN_LIFETIME_MAX.as_secs()
    )
}

/// What belongs to a job is deleted unread, by its label: that label and no other.
fn companions() -> String {
    format!(
        "!(variables.tenantPlace && request.operation == 'DELETE' && request.resource.group == '' && \
         request.resource.resource in ['services', 'configmaps', 'secrets']) || variables.managedBefore || \
         oldObject.metadata.?labels[?{}].orValue('') != ''",
        text(JOB)
    )
}

/// Those of tenants, and of them only suspended ones are deleted: what was sealed so was archived or is about to be.
fn namespaces() -> String {
    format!(
        "!variables.isNamespace || (variables.sub == '' && variables.writes && variables.classNow && \
                 (variables.new || variables.classBefore || variables.adoptable)) || \
                 (request.operation == 'DELETE' && variables.classBefore && variables.managedBefore && \
                 oldObject.metadata.?annotations[?{state}].orValue('') == {suspended})",
        state = text(STATE),
        suspended = text(TenantState::Suspended.as_str())
    )
}

/// A webhook sees whole objects, and a mutating one changes them: one that met all of the cluster would own it. So each
/// must be one of: for what lives in tenants' namespaces; for objects that carry our labels; for what the daemon itself
/// does.
fn hooks() -> String {
    let selects = |selector: &str, key: &str, rest: &str| {
        format!("w.?{selector}.?matchExpressions.orValue([]).exists(e, e.key == {} && {rest})", text(key))
    };
    let in_tenants = selects("namespaceSelector", CLASS, "e.operator == 'Exists'");
    let is_tenant = selects("objectSelector", CLASS, "e.operator == 'Exists'");
    let is_ours =
        selects("objectSelector", MANAGED_BY, &format!("e.operator == 'In' && e.values == [{}]", text(MANAGER)));
    let by_the_daemon =
        format!("w.?matchConditions.orValue([]).exists(c, c.expression == {})", double(&by_the_daemon()));
    let namespaced = "w.?rules.orValue([]).all(r, r.?scope.orValue('*') == 'Namespaced')";
    let mutable = "w.?rules.orValue([]).all(r, r.?apiGroups.orValue([]) == [''] && r.?resources.orValue([]).all(x, x in \
                   ['pods', 'pods/ephemeralcontainers', 'persistentvolumeclaims']))";
    format!(
        "variables.hooks.all(w, (({in_tenants}) && {namespaced}) || ({is_tenant}) || ({is_ours}) || ({by_the_daemon})) && \
         (request.resource.resource != 'mutatingwebhookconfigurations' || \
         variables.hooks.all(w, ({in_tenants}) && {namespaced} && {mutable}))"
    )
}

/// The names that a template of users can make; a colon in the place of the name would lead to somebody else's.
fn user_pattern(template: &str) -> String {
    // Of the characters that a template may have only this one means something else in a pattern.
    format!("^{}$", template.replace('.', "[.]").replace("{name}", "[^:]+"))
}

/// A CEL string that may have single quotes in it.
fn double(value: &str) -> String {
    format!("\"{}\"", value.replace(['"', '\\'], ""))
}

/// A CEL string. None of ours has a quote or a backslash; one that had would end nothing, for both are left out.
pub(super) fn text(value: &str) -> String {
    format!("'{}'", value.replace(['\'', '\\'], ""))
}

pub(super) fn texts<'a>(values: impl IntoIterator<Item = &'a String>) -> String {
    let quoted: Vec<String> = values.into_iter().map(|value| text(value)).collect();
    format!("[{}]", quoted.join(", "))
}
