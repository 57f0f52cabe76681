//! The roles that `init` makes: what the daemon may do, and what it may bind but not make. PURE: no runtime, no client,
//! no file system, no clock.

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
use crate::policy::DAEMON_USER;

/// Field manager of what `init` makes, and its label. Not the daemon's: what carries that is a tenant's.
pub const INIT_MANAGER: &str = "bursar-init";
/// Name of the daemon's ClusterRole, its binding, its Role and that one's binding.
pub const DAEMON_ROLE: &str = "bursar-daemon";
/// Our own namespace.
pub const NAMESPACE: &str = "bursar";
/// Our own namespaces that hold nothing of a tenant. Claims are in [`PERSONAL_NAMESPACE`].
pub const OWN_NAMESPACES: [&str; 3] = [NAMESPACE, approver::NAMESPACE, SELFTEST];
/// The ConfigMap that says whose the cluster is.
pub const OWNER: &str = "bursar-owner";
/// The ConfigMap with the highest generation in use, and who runs.
pub const MARK: &str = "bursar-mark";

const RBAC: &str = "rbac.authorization.k8s.io";
const ADMISSION: &str = "admissionregistration.k8s.io";
/// What is watched and never written.
const SEEN: &[&str] = &["list", "watch"];
const RBAC_V1: &str = "rbac.authorization.k8s.io/v1";

/// What the daemon makes for tenants in every cluster, in their namespaces or beside them.
pub(super) fn managed() -> impl Iterator<Item = ManagedKind> {
    let kinds = ManagedKind::ALL.iter().copied();
    kinds.filter(|kind| kind.row().watch == Watch::ByLabel && kind.row().stage != Stage::Namespace)
}

/// One rule for the kinds of an API group that need the same verbs.
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

/// What every manifest of `init` carries.
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

/// The group that the daemon's rights are bound to. It belongs to the ledger: a new owner of the cluster binds another
/// group, and the former owner's certificate is worth nothing from that moment, wherever a copy of it is.
#[must_use]
pub fn daemon_group(ledger_id: &str) -> String {
    format!("{DAEMON_USER}#{ledger_id}")
}

/// Binding of those who act as the cluster's administrator by a role of Bursar.
pub(super) const CLUSTER_ADMIN_BINDING: &str = "bursar-cluster-admin";

fn daemon_subject(ledger_id: &str) -> Value {
    json!({"apiGroup": RBAC, "kind": "Group", "name": daemon_group(ledger_id)})
}

fn cluster_role_binding(name: &str, role: &str, subject: &Value) -> Value {
    json!({
        "apiVersion": RBAC_V1,
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name, "labels": labels()},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [subject],
    })
}

fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": resources, "verbs": verbs})
}

/// The daemon's ClusterRole. `manifest_kinds` are those of site manifests, as this server calls them.
#[must_use]
pub fn daemon(needs: &Needs, confinement: &Confinement, manifest_kinds: &[ServedKind]) -> Value {
    let mut rules = vec![
        // Deleted are those of tenants that were suspended and archived: the admission policy says so.
        rule_of(ManagedKind::Namespace),
        rule("certificates.k8s.io", &["certificatesigningrequests"], &["get", "list", "watch", "create", "delete"]),
        // A suspension stops workloads, a resumption gives them back what they were.
        rule("apps", &["deployments", "statefulsets", "replicasets"], &["get", "list"]),
        rule("apps", &["deployments/scale", "statefulsets/scale", "replicasets/scale"], &["patch"]),
        rule("apps", &["daemonsets"], &["get", "list", "patch"]),
        rule("batch", &["jobs", "cronjobs"], &["get", "list", "patch"]),
        rule("", &["replicationcontrollers"], &["get", "list"]),
        rule("", &["replicationcontrollers/scale"], &["patch"]),
        rule("", &["pods"], &["list", "delete"]),
        // Whether a revoked certificate is worth nothing.
        rule("authorization.k8s.io", &["subjectaccessreviews"], &["create"]),
        json!({
            "apiGroups": [RBAC],
            "resources": ["clusterroles"],
            "resourceNames": needs.bindable(),
            // `bursar doctor` reads what they may write, and a revocation what its holder may do.
            "verbs": ["bind", "get"],
        }),
        // An eviction deletes the service account that a suspended tenant's pods ran as.
        named("", "serviceaccounts", [DEFAULT_ACCOUNT], &["get", "delete"]),
    ];
    rules.extend(managed_rules());
    rules.extend(manifest_kinds.iter().map(|kind| rule(kind.group(), &[&kind.plural], MANAGED_VERBS)));
    if !needs.secrets.is_empty() {
        let Row { plural, verbs, .. } = ManagedKind::Secret.row();
        rules.push(named(ManagedKind::Secret.group(), plural, &needs.secrets, verbs));
    }
    if !needs.hosts.is_empty() {
        // The admission policy knows by their names which are ours.
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
        // One annotation and nothing else: the admission policy says so.
        rules.push(rule("", &["pods"], &["patch"]));
    }
    if needs.reaps_pods {
        // Deleted by their label, unread: what may list Secrets may read them. The admission policy knows the label.
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

fn named(group: &str, resource: &str, names: impl serde::Serialize, verbs: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": [resource], "resourceNames": names, "verbs": verbs})
}

/// The webhook's configurations and the backstop's bindings, each by its name: watched and repaired, and never removed.
/// The policies are watched only: of admission's own policies and bindings the admission policy sees none, and a mutating
/// policy could be anything.
fn webhook_configurations() -> Vec<Value> {
    const KEPT: &[&str] = &["get", "list", "watch", "create", "patch"];
    const KEPT_AND_SEEN: &[&str] = &["list", "watch", "create", "patch"];
    let (validating, mutating) = ("ValidatingAdmissionPolicyBinding", "MutatingAdmissionPolicyBinding");
    vec![
        // What is installed, and until when its certificate is good, is read off this one.
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

/// In our own namespace the daemon reads whose the cluster is, and keeps the webhook. The certificate's Secret it only
/// writes.
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

/// Where the daemon tries what the webhook and the API server refuse: by the admission policy without effect.
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
    let binding = json!({
        "apiVersion": RBAC_V1,
        "kind": "RoleBinding",
        "metadata": {"name": DAEMON_ROLE, "namespace": namespace, "labels": labels()},
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": DAEMON_ROLE},
        "subjects": [daemon_subject(ledger_id)],
    });
    [role, binding]
}

/// Where claims are that outlive their account.
pub(super) fn personal_namespace() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": PERSONAL_NAMESPACE, "labels": labels()},
    })
}

/// Our own namespace. Pod Security restricts what runs there, no matter who wrote it, because the daemon may write a
/// Deployment there. The admission policy keeps the daemon from changing the namespace itself.
pub(super) fn own_namespace() -> Value {
    let mut namespace = json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": NAMESPACE, "labels": labels()},
    });
    namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] = json!("restricted");
    namespace
}

/// The namespace of the self-test. It carries our label, so the webhook meets what is done there; unsealed as it is,
/// the webhook refuses all of it.
pub(super) fn selftest_namespace() -> Value {
    let mut namespace = own_namespace();
    namespace["metadata"]["name"] = json!(SELFTEST);
    namespace["metadata"]["labels"][CLASS] = json!(SELFTEST);
    namespace
}

/// The daemon reads whom the API server believes about clients: public, and what every extension API server reads, by
/// the Role that Kubernetes ships for it.
#[must_use]
pub fn daemon_reads_authorities(ledger_id: &str) -> Value {
    json!({
        "apiVersion": RBAC_V1,
        "kind": "RoleBinding",
        "metadata": {"name": DAEMON_ROLE, "namespace": "kube-system", "labels": labels()},
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": "extension-apiserver-authentication-reader"},
        "subjects": [daemon_subject(ledger_id)],
    })
}

/// The daemon's ClusterRole is the daemon's.
#[must_use]
pub fn daemon_binding(ledger_id: &str) -> Value {
    cluster_role_binding(DAEMON_ROLE, DAEMON_ROLE, &daemon_subject(ledger_id))
}

/// Lists everything of a namespace, Secrets too, and removes Secrets with tokens by their type, for an eviction. The
/// admission policy lets the daemon bind it to itself in suspended tenants' namespaces only. Never `get`: of
/// subresources that would be a way into pods.
#[must_use]
pub fn archive() -> Value {
    cluster_role(ARCHIVE_ROLE, &[rule("*", &["*"], &["list"]), rule("", &["secrets"], &["deletecollection"])])
}

/// One role for each class with `impersonate`, and the user that admins become.
#[must_use]
pub fn impersonation(needs: &Needs) -> Vec<Value> {
    let roles = needs.impersonated.iter().map(|(class, users)| {
        let rule = json!({"apiGroups": [""], "resources": ["users"], "resourceNames": users, "verbs": ["impersonate"]});
        cluster_role(&impersonation_role(class), &[rule])
    });
    let admin = needs.impersonated.values().flatten().any(|user| user == CLUSTER_ADMIN_USER);
    let user = json!({"apiGroup": RBAC, "kind": "User", "name": CLUSTER_ADMIN_USER});
    let binding = admin.then(|| cluster_role_binding(CLUSTER_ADMIN_BINDING, "cluster-admin", &user));
    roles.chain(binding).collect()
}

/// `edit` of this server, as its aggregation stands now, less what would undo a tenant's isolation: writing network
/// policies (they only add up), minting service-account tokens, and impersonating service accounts. Quotas and limits
/// are not written by it either, whatever a site aggregated to it.
#[must_use]
pub fn tenant(edit: &[Value]) -> Value {
    let rules: Vec<Value> = edit.iter().flat_map(without_escape).collect();
    cluster_role(TENANT_ROLE, &rules)
}

/// API groups in which a rule may undo a tenant's isolation: a rule that names all their resources is left out (RBAC
/// knows no "but"; a tenant has less then, not more). Those of Calico and Cilium too, whose policies add up likewise.
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

/// Resources that say where a Service sends its traffic. A tenant who writes an address there reaches it past the egress
/// policies (CVE-2021-25740). `edit` has the first one in clusters that were made before Kubernetes 1.22.
const ADDRESSES: &[&str] = &["endpoints", "endpointslices", "pods/status", "services/status", "ingresses/status"];

/// What a tenant may do to things that only we and administrators write.
const READ: &[&str] = &["get", "list", "watch"];

/// A rule, or what is left of it, one for each resource that loses something.
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

/// What only the daemon and administrators write, network policies of other APIs (`ciliumnetworkpolicies`), and
/// [`ADDRESSES`].
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

    /// A daemon whose role was made by the previous version has the same rights; `init` need not run again.
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
    fn an_approver_takes_exactly_the_right_to_approve() {
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
    fn nothing_grants_escalation_or_all_secrets() {
        let text = daemon(&Needs::default(), &Confinement::default(), &[]).to_string();
        assert!(!text.contains("escalate") && !text.contains("impersonate"), "{text}");
        assert!(!text.contains("secrets") && !text.contains('*'), "{text}");
    }
}
