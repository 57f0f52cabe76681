//! The roles that `init` creates: the daemon's rights, and the roles that the daemon may bind but not change.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::approver;
use super::daemon_admission_policy::DAEMON_ADMISSION_POLICY;
use super::needs::{ARCHIVE_ROLE, CLUSTER_ADMIN_USER, Confinement, Needs, TENANT_ROLE};
use super::webhook::adopted_rules::Adopting;
use super::webhook::{APPROVALS, SECRET, WEBHOOK, backstop, server_rules};
use crate::contract::{CLASS, MANAGED_BY, SELFTEST};
use crate::desired::rbac::impersonation_role;
use crate::desired::volume::PERSONAL_NAMESPACE;
use crate::execute::evict::DEFAULT_ACCOUNT;
use crate::execute::signing::SIGNER;
use crate::kinds::{MANAGED_VERBS, ManagedKind, Row, ServedKind, Stage, Watch};
use crate::policy::daemon_group;

/// The field manager and the managed-by label of the objects that `init` makes. It differs from the daemon's, which
/// marks objects of tenants.
pub const INIT_MANAGER: &str = "bursar-init";
/// The name of the daemon's ClusterRole and Roles, and of their bindings.
pub const DAEMON_ROLE: &str = "bursar-daemon";
/// Bursar's own namespace.
pub const NAMESPACE: &str = "bursar";
/// Bursar's own namespaces, which contain nothing of a tenant. Claims are in [`PERSONAL_NAMESPACE`].
pub const OWN_NAMESPACES: [&str; 3] = [NAMESPACE, approver::NAMESPACE, SELFTEST];
/// The ConfigMap that names the ledger that owns the cluster.
pub const OWNER: &str = "bursar-owner";
/// The ConfigMap with the highest generation in use and the process that runs.
pub const MARK: &str = "bursar-mark";

const RBAC: &str = "rbac.authorization.k8s.io";
const ADMISSION: &str = "admissionregistration.k8s.io";
/// The verbs on objects that the daemon watches and never writes.
const SEEN: &[&str] = &["list", "watch"];
const RBAC_V1: &str = "rbac.authorization.k8s.io/v1";

/// Returns the kinds that the daemon makes for tenants in every cluster, except namespaces.
pub(super) fn managed() -> impl Iterator<Item = ManagedKind> {
    let kinds = ManagedKind::ALL.iter().copied();
    kinds.filter(|kind| kind.row().watch == Watch::ByLabel && kind.row().stage != Stage::Namespace)
}

/// One rule for all kinds of an API group that need the same verbs.
fn managed_rules() -> impl Iterator<Item = Value> {
    let mut rules: BTreeMap<(&str, &[&str]), Vec<&str>> = BTreeMap::new();
    for kind in managed() {
        rules.entry((kind.group(), kind.row().verbs)).or_default().push(kind.row().plural);
    }
    rules.into_iter().map(|((group, verbs), resources)| rule(group, &resources, verbs))
}

fn rule_of(kind: ManagedKind) -> Value {
    rule(kind.group(), &[kind.row().plural], kind.row().verbs)
}

/// The labels of every manifest of `init`.
pub(super) fn labels() -> Value {
    json!({MANAGED_BY: INIT_MANAGER, "app.kubernetes.io/part-of": "bursar"})
}

pub(super) fn cluster_role(name: &str, rules: &[Value]) -> Value {
    json!({
        "apiVersion": RBAC_V1,
        "kind": "ClusterRole",
        "metadata": {"name": name, "labels": labels()},
        "rules": rules,
    })
}

/// The binding of user `bursar:cluster-admin`, which administrators impersonate, to `cluster-admin`.
pub(super) const CLUSTER_ADMIN_BINDING: &str = "bursar-cluster-admin";

fn daemon_subject(ledger_id: &str) -> Value {
    json!({"apiGroup": RBAC, "kind": "Group", "name": daemon_group(ledger_id)})
}

pub(super) fn cluster_role_binding(name: &str, role: &str, subject: &Value) -> Value {
    json!({
        "apiVersion": RBAC_V1,
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name, "labels": labels()},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [subject],
    })
}

pub(super) fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": resources, "verbs": verbs})
}

/// The daemon's ClusterRole. `manifest_kinds` are the kinds of site manifests, with the plurals that this server
/// reports.
#[must_use]
pub fn daemon(needs: &Needs, confinement: &Confinement, manifest_kinds: &[ServedKind]) -> Value {
    let mut rules = vec![
        // The admission policy lets the daemon delete only namespaces of suspended tenants.
        rule_of(ManagedKind::Namespace),
        rule("certificates.k8s.io", &["certificatesigningrequests"], &["get", "list", "watch", "create", "delete"]),
        // A suspension stops workloads, and a resumption restores them.
        rule("apps", &["deployments", "statefulsets", "replicasets"], &["get", "list"]),
        rule("apps", &["deployments/scale", "statefulsets/scale", "replicasets/scale"], &["patch"]),
        rule("apps", &["daemonsets"], &["get", "list", "patch"]),
        rule("batch", &["jobs", "cronjobs"], &["get", "list", "patch"]),
        rule("", &["replicationcontrollers"], &["get", "list"]),
        rule("", &["replicationcontrollers/scale"], &["patch"]),
        rule("", &["pods"], &["list", "delete"]),
        // The daemon asks whether a revoked credential has lost its rights.
        rule("authorization.k8s.io", &["subjectaccessreviews"], &["create"]),
        // `get`: `bursar doctor` reads what these roles may write. A revocation reads what they granted, to check that
        // the revoked credential has lost it.
        named(RBAC, "clusterroles", needs.bindable(), &["bind", "get"]),
        // An eviction deletes the service account that the pods of a suspended tenant ran as.
        named("", "serviceaccounts", [DEFAULT_ACCOUNT], &["get", "delete"]),
    ];
    rules.extend(managed_rules());
    rules.extend(manifest_kinds.iter().map(|kind| rule(kind.group(), &[&kind.plural], MANAGED_VERBS)));
    if !needs.secrets.is_empty() {
        let Row { plural, verbs, .. } = ManagedKind::Secret.row();
        rules.push(named(ManagedKind::Secret.group(), plural, &needs.secrets, verbs));
    }
    if !needs.hosts.is_empty() {
        // The admission policy limits this to Bursar's service accounts, by their names (`bursar-g…`).
        rules.push(rule_of(ManagedKind::ServiceAccount));
        rules.push(rule("", &["serviceaccounts/token"], &["create"]));
    }
    if needs.reaps_pods || needs.reaps_namespaces {
        rules.push(rule("", &["pods"], &["watch"]));
    }
    if needs.reaps_namespaces || needs.warns_of_pods {
        rules.push(rule("", &["events"], &["create"]));
    }
    if needs.warns_of_pods {
        // The admission policy limits this to the annotation `bursar.dev/ends-at`.
        rules.push(rule("", &["pods"], &["patch"]));
    }
    if needs.reaps_pods {
        // `deletecollection` by label, because `list` would let the daemon read Secrets. The admission policy demands
        // the label `job`.
        rules.push(rule("", &["services", "configmaps", "secrets"], &["deletecollection"]));
    }
    if !confinement.approver {
        rules.push(rule("certificates.k8s.io", &["certificatesigningrequests/approval"], &["patch"]));
        rules.push(named("certificates.k8s.io", "signers", [SIGNER], &["approve"]));
    }
    rules.extend(webhook_configurations());
    let adopting: Vec<String> = needs.rules.adopting.iter().flat_map(Adopting::names).collect();
    if !adopting.is_empty() {
        rules.push(named(ADMISSION, "validatingadmissionpolicies", &adopting, SEEN));
        rules.push(named(ADMISSION, "validatingadmissionpolicybindings", &adopting, SEEN));
    }
    cluster_role(DAEMON_ROLE, &rules)
}

pub(super) fn named(group: &str, resource: &str, names: impl serde::Serialize, verbs: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": [resource], "resourceNames": names, "verbs": verbs})
}

/// The daemon watches and repairs the webhook's configurations and the backstop's bindings, each by name, and never
/// deletes them. It only watches the policies: Kubernetes exempts admission policies and their bindings from admission
/// policies, so nothing would limit what the daemon writes, and a mutating policy can change any object.
fn webhook_configurations() -> Vec<Value> {
    const KEPT: &[&str] = &["get", "list", "watch", "create", "patch"];
    const KEPT_AND_SEEN: &[&str] = &["list", "watch", "create", "patch"];
    let (validating, mutating) = ("ValidatingAdmissionPolicyBinding", "MutatingAdmissionPolicyBinding");
    vec![
        // From this configuration the daemon reads what is installed and when its certificate expires.
        named(ADMISSION, "validatingwebhookconfigurations", [WEBHOOK, APPROVALS], KEPT),
        named(ADMISSION, "mutatingwebhookconfigurations", [WEBHOOK], KEPT_AND_SEEN),
        named(ADMISSION, "validatingadmissionpolicies", [DAEMON_ADMISSION_POLICY], SEEN),
        named(ADMISSION, "validatingadmissionpolicies", backstop::POLICIES, SEEN),
        named(ADMISSION, "validatingadmissionpolicies", server_rules::POLICIES, SEEN),
        named(ADMISSION, "mutatingadmissionpolicies", backstop::MUTATING, SEEN),
        named(ADMISSION, "validatingadmissionpolicybindings", [DAEMON_ADMISSION_POLICY], SEEN),
        named(ADMISSION, "validatingadmissionpolicybindings", backstop::names(validating), KEPT_AND_SEEN),
        named(ADMISSION, "mutatingadmissionpolicybindings", backstop::names(mutating), KEPT_AND_SEEN),
    ]
}

/// The daemon's rights in namespace `bursar`: it reads which ledger owns the cluster, writes the mark, and maintains
/// the webhook. It may write the Secret with the webhook's certificate, and so sees it only in the answer to a write.
#[must_use]
pub fn daemon_in_namespace(ledger_id: &str) -> [Value; 2] {
    const APPLIED: &[&str] = &["create", "patch"];
    let rules = [
        named("", "configmaps", [OWNER], &["get", "list", "watch"]),
        named("", "configmaps", [MARK], &["get", "list", "watch", "create", "patch"]),
        named("", "configmaps", [WEBHOOK], APPLIED),
        named("", "secrets", [SECRET], APPLIED),
        named("", "services", [WEBHOOK], APPLIED),
        named("policy", "poddisruptionbudgets", [WEBHOOK], APPLIED),
        named("apps", "deployments", [WEBHOOK], &["get", "create", "patch"]),
    ];
    role_of_daemon(ledger_id, NAMESPACE, &rules)
}

/// The daemon's rights in the namespace of the self-test, where it tests what the webhook and the API server refuse.
/// The admission policy allows dry runs only.
#[must_use]
pub fn daemon_in_selftest(ledger_id: &str) -> [Value; 2] {
    let tried = [rule("", &["pods", "services"], &["create"]), rule("networking.k8s.io", &["ingresses"], &["create"])];
    role_of_daemon(ledger_id, SELFTEST, &tried)
}

fn role_of_daemon(ledger_id: &str, namespace: &str, rules: &[Value]) -> [Value; 2] {
    let role = json!({
        "apiVersion": RBAC_V1,
        "kind": "Role",
        "metadata": {"name": DAEMON_ROLE, "namespace": namespace, "labels": labels()},
        "rules": rules,
    });
    [role, binding_of_daemon(ledger_id, namespace, DAEMON_ROLE)]
}

fn binding_of_daemon(ledger_id: &str, namespace: &str, role: &str) -> Value {
    json!({
        "apiVersion": RBAC_V1,
        "kind": "RoleBinding",
        "metadata": {"name": DAEMON_ROLE, "namespace": namespace, "labels": labels()},
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": role},
        "subjects": [daemon_subject(ledger_id)],
    })
}

fn namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels()}})
}

/// The namespace of the claims that outlive their account.
pub(super) fn personal_namespace() -> Value {
    namespace(PERSONAL_NAMESPACE)
}

/// The namespace `bursar`. Pod Security restricts all pods there, because the daemon may write a Deployment. The
/// admission policy keeps the daemon from changing the namespace itself.
pub(super) fn own_namespace() -> Value {
    let mut namespace = namespace(NAMESPACE);
    namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] = json!("restricted");
    namespace
}

/// The namespace of the self-test. It has the class label, so requests there are sent to the webhook. It has no seal,
/// so the webhook refuses them all.
pub(super) fn selftest_namespace() -> Value {
    let mut namespace = own_namespace();
    namespace["metadata"]["name"] = json!(SELFTEST);
    namespace["metadata"]["labels"][CLASS] = json!(SELFTEST);
    namespace
}

/// Lets the daemon read which certificate authorities the API server trusts for clients. They are public; Kubernetes
/// ships this Role so that extension API servers can read them.
#[must_use]
pub fn daemon_reads_authorities(ledger_id: &str) -> Value {
    binding_of_daemon(ledger_id, "kube-system", "extension-apiserver-authentication-reader")
}

/// Binds the daemon's ClusterRole to the group of the ledger.
#[must_use]
pub fn daemon_binding(ledger_id: &str) -> Value {
    cluster_role_binding(DAEMON_ROLE, DAEMON_ROLE, &daemon_subject(ledger_id))
}

/// The role for archives and evictions. It allows the daemon to list all objects of a namespace, including Secrets, and
/// to delete Secrets with tokens by their type. The admission policy lets the daemon bind the role only to itself and
/// only in namespaces of suspended tenants. The role lacks `get`, because `get` on `*` includes subresources such as
/// `pods/exec`, and so gives access to pods.
#[must_use]
pub fn archive() -> Value {
    cluster_role(ARCHIVE_ROLE, &[rule("*", &["*"], &["list"]), rule("", &["secrets"], &["deletecollection"])])
}

/// Returns one ClusterRole for each class with `impersonate` and, if one of them impersonates `bursar:cluster-admin`,
/// that user's binding.
#[must_use]
pub fn impersonation(needs: &Needs) -> Vec<Value> {
    let roles = needs.impersonated.iter().map(|(class, users)| {
        let rule = named("", "users", users, &["impersonate"]);
        cluster_role(&impersonation_role(class), &[rule])
    });
    let admin = needs.impersonated.values().flatten().any(|user| user == CLUSTER_ADMIN_USER);
    let user = json!({"apiGroup": RBAC, "kind": "User", "name": CLUSTER_ADMIN_USER});
    let binding = admin.then(|| cluster_role_binding(CLUSTER_ADMIN_BINDING, "cluster-admin", &user));
    roles.chain(binding).collect()
}

/// Returns the tenants' role: this server's `edit`, as it is aggregated now, without the rights that would undo a
/// tenant's isolation. These are writing network policies (a further policy can only allow more), requesting tokens of
/// service accounts, and impersonating service accounts. The role grants no writes to quotas and limit ranges either,
/// even if a site aggregated them to `edit`.
#[must_use]
pub fn tenant(edit: &[Value]) -> Value {
    let rules: Vec<Value> = edit.iter().flat_map(without_escape).collect();
    cluster_role(TENANT_ROLE, &rules)
}

/// API groups in which a rule may undo a tenant's isolation. A rule that names all their resources is left out (RBAC
/// has no exceptions, so the tenant gets less rather than more). Calico and Cilium are included, because a further
/// policy of theirs can also allow more.
const SENSITIVE: &[&str] = &[
    "*",
    "",
    "networking.k8s.io",
    "discovery.k8s.io",
    "extensions",
    "policy.networking.k8s.io",
    "cilium.io",
    "crd.projectcalico.org",
    "projectcalico.org",
];

/// Resources that say where a Service sends its traffic. A tenant who writes an address there can reach that address in
/// spite of the egress policies (CVE-2021-25740). `edit` lets tenants write `endpoints` in clusters that were created
/// before Kubernetes 1.22.
const ADDRESSES: &[&str] = &["endpoints", "endpointslices", "pods/status", "services/status", "ingresses/status"];

/// The verbs that a tenant keeps on resources that only Bursar and administrators write.
const READ: &[&str] = &["get", "list", "watch"];

/// Returns `rule` without the rights that would undo the isolation: one rule for the resources that keep all verbs, and
/// one for each resource that loses some.
fn without_escape(rule: &Value) -> Vec<Value> {
    let texts =
        |key: &str| -> Vec<&str> { rule[key].as_array().into_iter().flatten().filter_map(Value::as_str).collect() };
    let (groups, resources, verbs) = (texts("apiGroups"), texts("resources"), texts("verbs"));
    if rule["resources"].is_null() {
        return vec![rule.clone()];
    }
    let is_sensitive = groups.iter().any(|group| SENSITIVE.contains(group));
    let mut kept: Vec<&str> = Vec::new();
    let mut rules = Vec::new();
    for resource in resources {
        let left: Vec<&str> = match resource {
            "serviceaccounts/token" => continue,
            wild if wild.contains('*') && is_sensitive => continue,
            _ if resource == ManagedKind::ServiceAccount.row().plural => {
                verbs.iter().copied().filter(|verb| !["impersonate", "*"].contains(verb)).collect()
            }
            _ if is_read_only(resource) => readable(&verbs),
            _ => verbs.clone(),
        };
        if left == verbs {
            kept.push(resource);
        } else if !left.is_empty() {
            rules.push(json!({"apiGroups": groups, "resources": [resource], "verbs": left}));
        }
    }
    if !kept.is_empty() {
        let mut rest = rule.clone();
        rest["resources"] = json!(kept);
        rules.insert(0, rest);
    }
    rules
}

/// Whether tenants may only read the resource: only the daemon and administrators write it, it is a network policy of
/// another API (`ciliumnetworkpolicies`), or it is one of [`ADDRESSES`].
fn is_read_only(resource: &str) -> bool {
    let mut ours = ManagedKind::ALL.iter().map(|kind| kind.row());
    ours.any(|row| !row.tenants_may_write && row.plural == resource)
        || resource.ends_with(ManagedKind::NetworkPolicy.row().plural)
        || ADDRESSES.contains(&resource)
}

fn readable<'v>(verbs: &[&'v str]) -> Vec<&'v str> {
    verbs.iter().copied().filter(|verb| READ.contains(verb)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_cannot_undo_its_isolation() {
        let edit = [
            json!({"apiGroups": ["networking.k8s.io"], "resources": ["ingresses", "networkpolicies"],
                "verbs": ["create", "delete", "get"]}),
            json!({"apiGroups": [""], "resources": ["serviceaccounts"], "verbs": ["impersonate"]}),
            json!({"apiGroups": [""], "resources": ["serviceaccounts", "pods"], "verbs": ["create", "impersonate"]}),
            json!({"apiGroups": [""], "resources": ["serviceaccounts/token"], "verbs": ["create"]}),
            json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}),
            json!({"apiGroups": ["example.org"], "resources": ["*"], "verbs": ["*"]}),
            json!({"apiGroups": ["cilium.io"], "resources": ["*"], "verbs": ["get"]}),
            json!({"apiGroups": ["cilium.io"], "resources": ["ciliumnetworkpolicies"], "verbs": ["list", "patch"]}),
            json!({"apiGroups": [""], "resources": ["resourcequotas", "limitranges"], "verbs": ["get", "patch"]}),
            json!({"apiGroups": [""], "resources": ["resourcequotas", "bindings"], "verbs": ["get"]}),
            json!({"apiGroups": [""], "resources": ["endpoints", "services"], "verbs": ["create", "list", "update"]}),
            json!({"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "patch"]}),
            json!({"apiGroups": ["discovery.k8s.io"], "resources": ["*"], "verbs": ["patch"]}),
            json!({"apiGroups": [""], "resources": ["services/status", "pods/status"], "verbs": ["get", "patch"]}),
        ];
        assert_eq!(
            tenant(&edit)["rules"],
            json!([
                {"apiGroups": ["networking.k8s.io"], "resources": ["ingresses"], "verbs": ["create", "delete", "get"]},
                {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": ["get"]},
                {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "impersonate"]},
                {"apiGroups": [""], "resources": ["serviceaccounts"], "verbs": ["create"]},
                {"apiGroups": ["example.org"], "resources": ["*"], "verbs": ["*"]},
                {"apiGroups": ["cilium.io"], "resources": ["ciliumnetworkpolicies"], "verbs": ["list"]},
                {"apiGroups": [""], "resources": ["resourcequotas"], "verbs": ["get"]},
                {"apiGroups": [""], "resources": ["limitranges"], "verbs": ["get"]},
                {"apiGroups": [""], "resources": ["resourcequotas", "bindings"], "verbs": ["get"]},
                {"apiGroups": [""], "resources": ["services"], "verbs": ["create", "list", "update"]},
                {"apiGroups": [""], "resources": ["endpoints"], "verbs": ["list"]},
                {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get"]},
                {"apiGroups": [""], "resources": ["services/status"], "verbs": ["get"]},
                {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["get"]},
            ])
        );
    }

    /// The previous version made the same rules, so an upgrade does not need another `init`.
    #[test]
    fn the_table_gives_one_rule_for_each_api_group() {
        let verbs = ["get", "list", "watch", "create", "patch", "delete"];
        let rule = |group: &str, resources: &[&str]| rule(group, resources, &verbs);
        assert_eq!(rule_of(ManagedKind::Namespace), rule("", &["namespaces"]));
        assert_eq!(
            managed_rules().collect::<Vec<_>>(),
            [
                rule("", &["resourcequotas", "limitranges", "persistentvolumes", "persistentvolumeclaims"]),
                rule("networking.k8s.io", &["networkpolicies"]),
                rule(RBAC, &["rolebindings", "clusterrolebindings"]),
            ]
        );
    }

    #[test]
    fn with_an_approver_the_daemon_loses_only_the_right_to_approve() {
        let rules = |approver| {
            let confinement = Confinement { approver, ..Confinement::default() };
            daemon(&Needs::default(), &confinement, &[])["rules"].as_array().cloned().unwrap_or_default()
        };
        let (without, with) = (rules(false), rules(true));
        let taken: Vec<&Value> = without.iter().filter(|rule| !with.contains(rule)).collect();
        let approval = rule("certificates.k8s.io", &["certificatesigningrequests/approval"], &["patch"]);
        let signer = named("certificates.k8s.io", "signers", [SIGNER], &["approve"]);
        assert_eq!(taken, [&approval, &signer]);
        assert_eq!(with.len() + 2, without.len());
    }

    #[test]
    fn the_daemon_may_not_escalate_impersonate_or_read_secrets() {
        let text = daemon(&Needs::default(), &Confinement::default(), &[]).to_string();
        assert!(!text.contains("escalate") && !text.contains("impersonate"), "{text}");
        assert!(!text.contains("secrets") && !text.contains('*'), "{text}");
    }
}
