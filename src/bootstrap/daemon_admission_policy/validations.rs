//! The rules of the daemon admission policy, each with the message of its refusal.

use serde_json::{Value, json};

use super::{RULE, is, own_namespace, template_pattern, text, texts};
use crate::bootstrap::OWN_LIFETIME;
use crate::bootstrap::needs::{ARCHIVE_ROLE, Confinement, Needs};
use crate::bootstrap::roles::OWN_NAMESPACES;
use crate::bootstrap::webhook::{WEBHOOK_HOLDER, WEBHOOK_LIFETIME, WEBHOOK_USER};
use crate::contract::mark::HIGHEST;
use crate::contract::{ENDS_AT, JOB, MANAGED_BY, POD_SECURITY_ENFORCE, PREFIX, SELFTEST, STATE, TenantState};
use crate::desired::credential::SECRET_PREFIX;
use crate::desired::rbac::ARCHIVE_BINDING;
use crate::desired::volume::PERSONAL_NAMESPACE;
use crate::execute::signing::{self, SIGNER, USAGES};
use crate::kinds::ManagedKind;
use crate::policy::{DAEMON_USER, TOKEN_LIFETIME_MAX, daemon_group};

/// The pattern of the generation groups that `desired::generation_group` names. It matches no group of Kubernetes
/// (`system:…`).
const GENERATION_GROUP: &str = "^bursar:(tool|user|group):.+#[0-9]+$";

/// The pattern of the service accounts that `desired::credential` names.
const SERVICE_ACCOUNT: &str = "^bursar-g[0-9]+$";

/// The prefix of the labels that set the Pod Security levels of a namespace.
const POD_SECURITY: &str = "pod-security.kubernetes.io/";
/// The label with the version of a Pod Security level.
const ENFORCE_VERSION: &str = "pod-security.kubernetes.io/enforce-version";
/// The label that the API server gives every namespace.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

#[expect(clippy::too_many_lines, reason = "a table, one row for each rule")]
pub(super) fn validations(needs: &Needs, confinement: &Confinement) -> Value {
    let rule =
        |message: &str, expression: String| json!({"message": format!("{RULE}{message}"), "expression": expression});
    json!([
        rule(
            "the daemon may not run commands in pods, or connect to anything through the API server",
            "request.operation != 'CONNECT'".to_owned()
        ),
        rule(
            "the daemon may not write in namespaces of Kubernetes or of the approver",
            "!variables.reserved".to_owned()
        ),
        rule(
            "the daemon may create only namespaces with label bursar.dev/class, change only those with this label or \
             bursar.dev/adopt, delete only those of suspended tenants, and set the Pod Security level of an adopted \
             namespace only if it has none",
            namespaces()
        ),
        rule(
            "the daemon may give a namespace only a Pod Security level that a class names; after a change of pod_security \
             run `bursar init` again",
            levels(needs)
        ),
        rule(
            "the daemon may give a new namespace only a name of a class; after a change of the names of namespaces run \
             `bursar init` again",
            format!("!(variables.isNamespace && variables.new) || {}", is_tenants("variables.name", needs))
        ),
        rule(
            "the daemon may change only its own labels and annotations of a namespace, and no finalizers, because other \
             programs rely on the rest; a webhook that adds some must exclude the daemon",
            metadata()
        ),
        rule(
            "the daemon may not change the owners of an object, because Kubernetes deletes an object if its owner does \
             not exist; a webhook that adds some must exclude the daemon",
            format!("!variables.writes || {}", unchanged("ownerReferences"))
        ),
        rule(
            "the daemon may not change the finalizers of bindings, of webhook configurations and of objects in its own \
             namespaces, because these would stay in force after their deletion",
            format!(
                "!variables.writes || !(variables.isBinding || variables.isClusterBinding || variables.isHooks || \
                 variables.place in {}) || {}",
                texts(OWN_NAMESPACES),
                unchanged("finalizers")
            )
        ),
        rule(
            "the daemon may write only in tenants' namespaces (label bursar.dev/class); in adopted namespaces it may write \
             only its own bindings and limits, in its own namespace only the webhook's objects, and in the namespace for \
             storage that outlives its account only claims, which it may not delete",
            places()
        ),
        rule(
            "the daemon may delete only its own objects, pods, objects with a job label, the webhook's network policy, and \
             in namespaces of suspended tenants service account default and Secrets with tokens",
            deletions(needs)
        ),
        rule("the mark of the generations in use may only rise, and may be neither deleted nor made immutable", mark()),
        rule(
            "the daemon may bind only roles of the configuration, with its label, and only to holders of its credentials \
             and to service account default",
            bindings()
        ),
        rule(
            "the daemon may read everything of a tenant only while the tenant is suspended, by binding bursar:archive",
            format!(
                "!variables.isBinding || !variables.writes || variables.role != {archive} || \
                (variables.suspendedPlace && variables.name == {binding} && variables.subjects.all(s, s.kind == 'Group' && \
                s.name.startsWith({group}) && s.name in request.userInfo.groups))",
                archive = text(ARCHIVE_ROLE),
                binding = text(ARCHIVE_BINDING),
                group = text(&daemon_group(""))
            )
        ),
        rule(&admins_message(confinement), admin_bindings(needs, confinement)),
        rule(
            "the daemon may write only its own NFS volumes, each for one claim of a tenant and with reclaim policy Retain; \
             after a change of the names of namespaces run `bursar init` again",
            volumes(needs)
        ),
        rule(
            "the daemon may write only service accounts named bursar-gN, and request only tokens that are bound to the \
             Secret of a host",
            accounts()
        ),
        rule(
            "the daemon may not write Secrets that Kubernetes fills with a token",
            "!variables.isSecret || !variables.writes || \
             object.?type.orValue('') != 'kubernetes.io/service-account-token'"
                .to_owned()
        ),
        rule(&requests_message(needs, confinement), requests(needs, confinement)),
        rule(
            "the daemon may create pods only in namespace bursar-selftest, and only in a dry run",
            format!(
                "!(variables.isPod && variables.new) || (variables.place == {} && has(request.dryRun) && request.dryRun)",
                text(SELFTEST),
            )
        ),
        rule("the daemon may change nothing of a pod except annotation bursar.dev/ends-at", pods()),
        rule(
            "the daemon may write only the webhook configurations that this version installs, which match only tenants' \
             namespaces and the daemon's own objects, change only pods and claims, and fail closed; after an upgrade run \
             `bursar init` again",
            own_namespace::hooks()
        ),
        rule(
            "the daemon may not delete webhook configurations; an administrator may (bursar webhook uninstall)",
            "!variables.isHooks || variables.writes".to_owned()
        ),
        rule(
            "the webhook must run as its own service account in two pods, with the requests and the grace period of \
             `bursar webhook install`, with limits of cpu, memory and ephemeral-storage only, and may mount only its own \
             ConfigMap and Secret; a policy that changes Deployments must exclude it",
            own_namespace::deployment()
        ),
        rule("the webhook's Service must have type ClusterIP and no external addresses", own_namespace::service()),
        rule(
            "the daemon may write only these cluster-wide objects: namespaces, volumes, certificate requests, webhook \
             configurations and bindings of admin roles",
            "variables.namespaced || variables.isNamespace || variables.isVolume || variables.isRequest || \
             variables.isClusterBinding || variables.isHooks"
                .to_owned()
        ),
    ])
}

fn places() -> String {
    format!(
        "!variables.namespaced || variables.tenantPlace || variables.adoptedPlace || variables.leftBehind || variables.ownPlace || \
         variables.isMark || \
         (variables.place == {selftest} && variables.new && variables.dryRun) || \
         (variables.place == {storage} && {claims} && !variables.deletes)",
        selftest = text(SELFTEST),
        storage = text(PERSONAL_NAMESPACE),
        claims = is(ManagedKind::PersistentVolumeClaim),
    )
}

/// A mark that is not a number was not written by the daemon, so the daemon may replace it. An immutable mark could
/// not rise any more.
fn mark() -> String {
    let generation = |object: &str| format!("string({object}.?data.?{HIGHEST}.orValue(''))");
    let is_number = |object: &str| format!("{}.matches('^[0-9]{{1,18}}$')", generation(object));
    format!(
        "!variables.isMark || (variables.writes && !object.?immutable.orValue(false) && {} && \
         (variables.new || !{} || int({}) >= int({})))",
        is_number("object"),
        is_number("oldObject"),
        generation("object"),
        generation("oldObject"),
    )
}

/// The daemon may change only the annotation `bursar.dev/ends-at`. Any other change could run code in the pod.
fn pods() -> String {
    let annotations = |object: &str| format!("{object}.metadata.?annotations.orValue({{}})");
    let (new, old, ends) = (annotations("object"), annotations("oldObject"), text(ENDS_AT));
    let same = ["labels", "finalizers"].map(|field| format!("object.metadata.?{field} == oldObject.metadata.?{field}"));
    format!(
        "!(variables.isPod && variables.writes && variables.old) || (object.spec == oldObject.spec && {} && \
         {new}.all(k, k == {ends} || {old}[?k].orValue('') == {new}[k]) && {old}.all(k, k == {ends} || k in {new}))",
        same.join(" && ")
    )
}

/// Objects of a job may be deleted by its label, without being read. All pods may be deleted, because nothing else
/// stops the bare pods of a suspended tenant.
fn deletions(needs: &Needs) -> String {
    let own = "!variables.namespaced || !variables.deletes || variables.managedBefore || variables.isPod || variables.evicts || variables.ownPlace";
    if !needs.reaps_pods {
        return own.to_owned();
    }
    format!(
        "{own} || (request.resource.group == '' && request.resource.resource in ['services', 'configmaps', 'secrets'] && \
         !variables.dryRun && oldObject.metadata.?labels[?{}].orValue('') != '')",
        text(JOB)
    )
}

/// Conditions for a subject `s`: a generation group, a service account of a generation, or a user of an issuer.
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

/// Every binding must have our label, by which administrators find and delete all of them after a theft. The binding
/// may lack the label before the write: an order adopts a foreign binding, and a repair restores a label that somebody
/// removed.
fn bindings() -> String {
    format!(
        "!variables.isBinding || !variables.writes || (variables.managedNow && (variables.role == {archive} || \
         (variables.role != '' && variables.subjects.all(s, (({holders}) && (variables.role in variables.roles || variables.adoptedPlace)) || \
         (s.kind == 'ServiceAccount' && s.name == 'default' && s.?namespace.orValue('') == variables.place && \
         (variables.role in variables.serviceAccountRoles || variables.adoptedPlace))))))",
        archive = text(ARCHIVE_ROLE),
        holders = holders().join(" || "),
    )
}

fn admins_message(Confinement { administrators, .. }: &Confinement) -> String {
    if administrators.is_empty() {
        return "the daemon may bind admin roles only to holders of its credentials".to_owned();
    }
    let names: Vec<&str> = administrators.iter().map(String::as_str).collect();
    format!(
        "the daemon may bind admin roles only to the listed administrators ({}); to add one, run `bursar init \
         --administrators` again",
        names.join(", ")
    )
}

/// The condition of bindings of admin roles. These roles apply to the whole cluster, so no service account may get one.
/// If administrators are listed, no credential of another account is bound, even if it was issued properly. Only the
/// kinds of credentials that classes of administrators have are allowed.
fn admin_bindings(needs: &Needs, Confinement { administrators, .. }: &Confinement) -> String {
    let listed = (!administrators.is_empty()).then(|| {
        let names: Vec<String> = administrators.iter().map(|name| name.replace('.', "[.]")).collect();
        format!("({})", names.join("|"))
    });
    let mut subjects: Vec<String> = Vec::new();
    if !needs.admin_groups.is_empty() {
        let pattern = listed
            .as_ref()
            .map_or_else(|| GENERATION_GROUP.to_owned(), |names| format!("^bursar:user:{names}#[0-9]+$"));
        subjects.push(format!("(s.kind == 'Group' && s.name.matches({}))", text(&pattern)));
    }
    for template in &needs.admin_users {
        let pattern = template_pattern(template, listed.as_deref().unwrap_or("[^:]+"));
        subjects.push(format!("(s.kind == 'User' && s.name.matches({}))", text(&pattern)));
    }
    if subjects.is_empty() {
        subjects.push("false".to_owned());
    }
    format!(
        "!variables.isClusterBinding || (variables.managedNow && (variables.managedBefore || variables.empties) && \
         variables.name.startsWith('bursar-') && (!variables.writes || (variables.role in variables.adminRoles && \
         variables.subjects.all(s, {}))))",
        subjects.join(" || ")
    )
}

/// A volume without a claim, or with a storage class, could be bound by any waiting claim. A volume has no namespace,
/// so `namespaceObject` is not available and the rule cannot check the label of the claim's namespace. It checks the
/// name instead. With the policy `Recycle`, Kubernetes would delete all files below the volume's path as root.
fn volumes(needs: &Needs) -> String {
    let place = "object.spec.?claimRef.?namespace.orValue('')";
    format!(
        "!variables.isVolume || (variables.managedNow && variables.managedBefore && (!variables.writes || \
         (has(object.spec.nfs) && object.spec.?storageClassName.orValue('') == '' && \
         object.spec.?persistentVolumeReclaimPolicy.orValue('Retain') == 'Retain' && !{place}.startsWith('kube-') && !({place} in {own}) && ({place} == {storage} || {}))))",
        is_tenants(place, needs),
        storage = text(PERSONAL_NAMESPACE),
        own = texts(["", "default"].into_iter().chain(OWN_NAMESPACES)),
    )
}

/// A service account must have the name of a generation. Its tokens must be bound to the Secret of a host and must not
/// live longer than the maximum.
fn accounts() -> String {
    format!(
        "!variables.isAccount || variables.evicts || (variables.name.matches('{SERVICE_ACCOUNT}') && \
                 (variables.sub == 'token' ? \
                 object.spec.?boundObjectRef.kind.orValue('') == 'Secret' && \
                 object.spec.?boundObjectRef.name.orValue('').startsWith({secret}) && \
                 object.spec.?expirationSeconds.orValue(0) <= {most} : \
                 variables.sub == '' && variables.managedNow && (variables.writes || variables.managedBefore)))",
        secret = text(SECRET_PREFIX),
        most = TOKEN_LIFETIME_MAX.as_secs()
    )
}

/// Allows namespaces of tenants. Only those of suspended tenants may be deleted.
fn namespaces() -> String {
    format!(
        "!variables.isNamespace || variables.levels || (variables.sub == '' && variables.writes && variables.classNow && \
                 (variables.new || variables.classBefore || variables.adoptable)) || \
                 (variables.deletes && variables.classBefore && variables.managedBefore && variables.name != {selftest} && \
                 oldObject.metadata.?annotations[?{state}].orValue('') == {suspended})",
        selftest = text(SELFTEST),
        state = text(STATE),
        suspended = text(TenantState::Suspended.as_str())
    )
}

/// CEL that is true if a class, or a tenant of the ledger, gives a namespace this name.
fn is_tenants(name: &str, needs: &Needs) -> String {
    let patterns = texts(needs.namespaces.iter().map(|pattern| template_pattern(pattern, "[a-z0-9-]+")));
    format!("{patterns}.exists(p, {name}.matches(p))")
}

/// Other programs act on labels and annotations of a namespace: they leave its pods unchecked, run them on other nodes,
/// or give them devices of all tenants.
fn metadata() -> String {
    let same = |field: &str, own: &str| {
        let (new, old) = (format!("object.metadata.?{field}.orValue({{}})"), format!("variables.{field}Before"));
        format!(
            "({new} == {old} || ({new}.all(k, {own} || (k in {old} && {old}[k] == {new}[k])) && \
             {old}.all(k, {own} || k in {new})))"
        )
    };
    let labels = format!(
        "k.startsWith('{PREFIX}') || k.startsWith('{POD_SECURITY}') || k == '{MANAGED_BY}' || \
         (variables.new && k == '{NAME_LABEL}')"
    );
    format!(
        "!variables.isNamespace || !variables.writes || ({} && {} && {} && \
         (!variables.new || object.?spec.?finalizers.orValue([]).all(f, f == 'kubernetes')))",
        same("labels", &labels),
        same("annotations", &format!("k.startsWith('{PREFIX}')")),
        unchanged("finalizers"),
    )
}

/// CEL that is true if the written object has the same values in this list of its metadata as before, or none if it is
/// new.
fn unchanged(field: &str) -> String {
    format!(
        "(variables.new ? object.?metadata.?{field}.orValue([]).size() == 0 : \
         object.?metadata.?{field} == oldObject.?metadata.?{field})"
    )
}

/// An older version of a level demands less of pods, so a namespace must have the latest version or keep its version.
/// The namespace of the self-test may have any level: no pod is ever created there and no subject bound, and Pod
/// Security must not hide what the webhook refuses.
fn levels(needs: &Needs) -> String {
    format!(
        "!variables.isNamespace || !variables.writes || variables.levels || variables.name == {selftest} || \
         (object.metadata.?labels[?{enforce}].orValue('') in {levels} && \
         (object.metadata.?labels[?{version}].orValue('latest') == 'latest' || (variables.old && \
         object.metadata.labels[{version}] == oldObject.metadata.?labels[?{version}].orValue(''))))",
        selftest = text(SELFTEST),
        enforce = text(POD_SECURITY_ENFORCE),
        version = text(ENFORCE_VERSION),
        levels = texts(&needs.levels),
    )
}

/// The longest lifetime in seconds that the daemon may request: its own or that of a class.
fn longest(needs: &Needs) -> u64 {
    needs.lifetime.max(OWN_LIFETIME).as_secs()
}

fn requests_message(needs: &Needs, confinement: &Confinement) -> String {
    let approves =
        if confinement.approver { "may not approve any (the approver does)" } else { "may approve only its own" };
    format!(
        "the daemon may request only client certificates that end within {} s, and {approves}; for a class with a longer \
         lifetime run `bursar init` again",
        longest(needs)
    )
}

/// The certificate of a webhook outside the cluster lasts a year, and its request has a fixed name. If no approver is
/// installed, any subject can be requested under that name, because CEL cannot read the subject.
fn requests(needs: &Needs, confinement: &Confinement) -> String {
    let longest = longest(needs);
    let limit = if confinement.approver {
        longest.to_string()
    } else {
        let webhook = text(&signing::name(WEBHOOK_USER, WEBHOOK_HOLDER));
        format!("(variables.name == {webhook} ? {} : {longest})", WEBHOOK_LIFETIME.as_secs())
    };
    let within = |object: &str| {
        format!(
            "{object}.spec.signerName == {} && {object}.spec.?expirationSeconds.orValue({most}) <= {limit} && \
             {object}.spec.?usages.orValue([]).all(u, u in {})",
            text(SIGNER),
            texts(USAGES),
            most = i32::MAX,
        )
    };
    let approves = if confinement.approver {
        "false".to_owned()
    } else {
        format!(
            "variables.sub == 'approval' && oldObject.spec.username == {} && {}",
            text(DAEMON_USER),
            within("oldObject")
        )
    };
    format!(
        "!variables.isRequest || (variables.deletes ? variables.managedBefore : variables.managedNow && \
         (variables.new ? {} : {approves}))",
        within("object")
    )
}
