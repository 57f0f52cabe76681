//! Rules of classes that the API server evaluates itself: Services, scheduling, sysctls, ingress and storage classes,
//! and hosts in further kinds.
//!
//! `init` makes a policy for each mode, which contains what the classes allow in that mode, so the daemon cannot change
//! what a policy does. The daemon writes the bindings, which never change. If a ConfigMap were the policies' parameter,
//! a change of the configuration would not need another `init`. But once the last binding that names a parameter kind
//! is removed, an API server never watches parameters of that kind again.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::adopted_rules::Adopting;
use super::backstop::{ACTIONS, API_VERSION, Binding, binding};
use super::configurations::of_tenants;
use super::grace;
use crate::bootstrap::daemon_admission_policy::by_the_daemon;
use crate::bootstrap::roles::labels as labels_of_init;
use crate::contract::{CLASS, GID, UID};
use crate::desired::server_rules::{AUTOSCALED, data, grace_periods, host_fields, names, of_unknown, unchosen};
use crate::identity::ClusterName;
use crate::ledger::LedgerState;
use crate::policy::Policy;
use crate::rules::Mode;
use crate::rules::server::{HOST_ANNOTATIONS, HostField, PORT_SYSCTLS, SAFE_SYSCTLS, Step};

const NAME: &str = "bursar-rules";
/// Names of the policies and of their bindings, one for each mode.
pub const POLICIES: [&str; 3] = ["bursar-rules-enforce", "bursar-rules-warn", "bursar-rules-audit"];

/// API group and resources that the policies match.
pub(super) const LOOKED_AT: [(&str, &[&str]); 5] = [
    ("", &["services", "pods", "replicationcontrollers", "persistentvolumeclaims"]),
    ("apps", &["deployments", "replicasets", "statefulsets", "daemonsets"]),
    ("batch", &["jobs", "cronjobs"]),
    ("networking.k8s.io", &["ingresses"]),
    ("gateway.networking.k8s.io", &["gateways", "tcproutes", "udproutes"]),
];
/// Resources without pods. The empty text stands for the kinds of `hosts.fields`.
const WITHOUT_PODS: &str =
    "['', 'services', 'persistentvolumeclaims', 'ingresses', 'gateways', 'tcproutes', 'udproutes']";

/// Stands in place of a rule's words, if a class does not have the rule in a mode. The words of a rule are the list of
/// what the class allows.
pub(super) const NO_RULE: &str = "-";

fn name(mode: Mode) -> String {
    format!("{NAME}-{}", mode.as_str())
}

/// The input of the policies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Given {
    /// What the classes allow, by mode.
    pub data: BTreeMap<Mode, BTreeMap<String, String>>,
    /// The classes that `data` is about.
    pub classes: BTreeSet<String>,
    /// What all other classes allow, by mode.
    pub otherwise: BTreeMap<Mode, BTreeMap<String, String>>,
    /// Fields with hosts in further kinds, of all classes.
    pub host_fields: BTreeSet<HostField>,
    /// The longest grace period in seconds, by class, if it is not the default.
    pub grace_periods: BTreeMap<String, i64>,
    /// Groups that may change our objects.
    pub exempt: Vec<String>,
    /// Classes that adopt namespaces.
    pub adopting: Vec<Adopting>,
}

impl Given {
    /// Derives the input from a configuration and a ledger.
    #[must_use]
    pub fn of(policy: &Policy, cluster: &ClusterName, ledger: &LedgerState) -> Self {
        let unchosen = unchosen(ledger.older_than_rules);
        Self {
            data: data(policy, cluster, (ledger, unchosen)).into_iter().collect(),
            classes: names(policy, cluster, ledger),
            otherwise: ACTIONS.iter().map(|(mode, _)| (*mode, of_unknown(*mode, unchosen))).collect(),
            host_fields: host_fields(policy, cluster),
            grace_periods: grace_periods(policy, cluster, ledger),
            exempt: policy.exempt.clone(),
            adopting: Adopting::of(policy, cluster),
        }
    }
}

/// Returns the bindings. They match all tenants; the policy decides which classes have which rule.
#[must_use]
pub fn bindings() -> Vec<Binding> {
    let bindings = ACTIONS.map(|(mode, action)| {
        let spec = json!({
            "policyName": name(mode),
            "validationActions": [action],
            "matchResources": {"matchPolicy": "Equivalent", "objectSelector": {}, "namespaceSelector": of_tenants()},
        });
        binding("ValidatingAdmissionPolicyBinding", &name(mode), &spec)
    });
    bindings.into()
}

/// Returns the policies that depend on the configuration: one for each mode, and the one on grace periods.
#[must_use]
pub fn policies(given: &Given) -> Vec<Value> {
    let of_modes = ACTIONS.iter().map(|(mode, _)| policy(*mode, given));
    of_modes.chain([grace::policy(&given.grace_periods)]).collect()
}

fn policy(mode: Mode, given: &Given) -> Value {
    let Given { data, classes, otherwise, host_fields: fields, grace_periods: _, exempt, adopting: _ } = given;
    let nothing = BTreeMap::new();
    let of_mode = |words: &BTreeMap<Mode, BTreeMap<String, String>>| literal(words.get(&mode).unwrap_or(&nothing));
    // No class has the name `-`. This entry gives an otherwise empty list its type.
    let known: Vec<String> = std::iter::once(NO_RULE).chain(classes.iter().map(String::as_str)).map(quoted).collect();
    let mut rules = resource_rules(fields);
    rules.push(resource_rule("*", &["*/scale"]));
    let mut judged = validations(fields);
    judged.push(scale(exempt));
    let otherwise = format!("variables.class in [{}] ? {{'': ''}} : {}", known.join(", "), of_mode(otherwise));
    let class = format!("namespaceObject.metadata.?labels[?'{CLASS}'].orValue('')");
    json!({
        "apiVersion": API_VERSION,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name(mode), "labels": labels_of_init()},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "matchPolicy": "Equivalent", "namespaceSelector": of_tenants(), "objectSelector": {},
                "resourceRules": rules,
            },
            "variables": variables(&class, of_mode(data), otherwise),
            "validations": judged,
        },
    })
}

pub(super) fn resource_rules(fields: &BTreeSet<HostField>) -> Vec<Value> {
    let kinds = kinds_of(fields).into_iter().map(|(group, plural)| resource_rule(group, &[plural]));
    LOOKED_AT.iter().map(|(group, resources)| resource_rule(group, resources)).chain(kinds).collect()
}

/// API group and plural of the kinds that have one of the fields.
fn kinds_of(fields: &BTreeSet<HostField>) -> BTreeSet<(&str, &str)> {
    fields.iter().map(|field| (&*field.group, &*field.plural)).collect()
}

pub(super) fn validations(fields: &BTreeSet<HostField>) -> Vec<Value> {
    [services(fields), scheduling(), sysctls(), classes(), fields.iter().map(host_field).collect()].concat()
}

/// Returns `data` as a CEL map. Quotes and backslashes are removed, so that no text can end its literal. The names that
/// a class may use contain neither.
pub(super) fn literal(data: &BTreeMap<String, String>) -> String {
    let entries: Vec<String> = data.iter().map(|(key, words)| format!("{}: {}", quoted(key), quoted(words))).collect();
    // The first entry gives an otherwise empty map its type.
    format!("{{{}}}", std::iter::once("'': ''".to_owned()).chain(entries).collect::<Vec<_>>().join(", "))
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace(['\'', '\\'], "").replace('\n', "\\n"))
}

pub(super) fn resource_rule(group: &str, resources: &[&str]) -> Value {
    json!({
        "apiGroups": [group], "apiVersions": ["*"], "resources": resources, "operations": ["CREATE", "UPDATE"],
        "scope": "Namespaced",
    })
}

/// Returns CEL for the name of the resource if it is one of [`LOOKED_AT`], otherwise ''. A kind of another API group
/// can have the same name and other fields, and a subresource has other fields too.
pub(super) fn resource() -> String {
    let name = "request.resource.resource";
    let one = |(group, resources): &(&str, &[&str])| {
        format!("(request.resource.group == '{group}' && {name} in ['{}'])", resources.join("', '"))
    };
    format!(
        "!has(request.subResource) && ({}) ? {name} : ''",
        LOOKED_AT.iter().map(one).collect::<Vec<_>>().join(" || ")
    )
}

pub(super) fn variable(name: &str, expression: impl Into<Value>) -> Value {
    json!({"name": name, "expression": expression.into()})
}

/// CEL for the words of a rule: the list of what the class allows.
pub(super) fn words(key: &str) -> String {
    format!(
        "variables.given[?variables.class + '.{key}'].orValue(variables.otherwise[?'{key}'].orValue('{NO_RULE}'))\
         .split('\\n').filter(w, w != '')"
    )
}

/// CEL for the spec of the pods that `object` makes, or of the pod itself.
pub(super) fn pod_spec(object: &str) -> String {
    format!(
        "variables.resource in {WITHOUT_PODS} ? dyn({{}}) : variables.resource == 'pods' ? dyn({object}.spec) : \
         variables.resource == 'cronjobs' ? dyn({object}.spec.jobTemplate.spec.template.?spec.orValue({{}})) : \
         dyn({object}.spec.?template.?spec.orValue({{}}))"
    )
}

/// CEL for what [`pod_spec`] was before an update.
pub(super) fn old_pod_spec() -> String {
    format!("variables.updates ? ({}) : dyn({{}})", pod_spec("oldObject"))
}

/// Returns the variables of a policy. `class` is CEL for the name of the class, `given` for the words of the classes,
/// and `otherwise` for those of the rules that `given` does not have.
pub(super) fn variables(class: &str, given: String, otherwise: String) -> Vec<Value> {
    let around = "variables.pattern[0].split('{name}')";
    let namespace = "namespaceObject.metadata.name";
    let annotation = |key: &str| format!("namespaceObject.metadata.?annotations[?'{key}'].orValue('')");
    let ours = format!(
        "{}.map(o, o.replace('{{name}}', variables.name).replace('{{namespace}}', {namespace})\
         .replace('{{class}}', variables.class).replace('{{uid}}', {}).replace('{{gid}}', {}))",
        words("ours"),
        annotation(UID),
        annotation(GID),
    );
    vec![
        variable("given", given),
        variable("class", class.to_owned()),
        variable("otherwise", otherwise),
        variable("resource", resource()),
        variable("updates", "request.operation == 'UPDATE'".to_owned()),
        variable("object", "request.kind.kind.lowerAscii() + ' ' + object.metadata.?name.orValue('')".to_owned()),
        variable("services", words("services")),
        variable("scheduling", words("scheduling")),
        variable("sysctls", words("sysctls")),
        variable("ingress", words("ingress")),
        variable("storage", words("storage")),
        variable("fields", words("host-fields")),
        variable("hostAnnotations", words("host-annotations")),
        variable("patterns", words("hosts")),
        variable("pattern", words("namespace")),
        // The part of the namespace's name that stands for `{name}` in the class's pattern.
        variable(
            "name",
            format!(
                "variables.pattern != ['{NO_RULE}'] && {around}.size() == 2 && {namespace}.startsWith({around}[0]) && \
                 {namespace}.endsWith({around}[1]) && {namespace}.size() > {around}[0].size() + {around}[1].size() ? \
                 {namespace}.substring({around}[0].size(), {namespace}.size() - {around}[1].size()) : ''"
            ),
        ),
        variable(
            "hosts",
            "variables.name == '' ? [] : variables.patterns.map(p, p.replace('{name}', variables.name))".to_owned(),
        ),
        variable("ours", ours),
        variable("spec", pod_spec("object")),
        variable("old", old_pod_spec()),
    ]
}

/// The most comparisons of a search for each item of one list in another list. CEL's cost limit does not count these
/// comparisons, but they take time. Beyond this number, nothing is searched, and every item is checked like a new one.
pub(super) const COMPARISONS: usize = 100_000;

/// CEL for the items in a list of the pod's spec for which `own` is false, without those that an update keeps. If the
/// list stays the same, nothing is searched, so that a finalizer can be removed from any object.
pub(super) fn foreign(list: &str, item: &str, own: &str) -> String {
    let [new, old] = ["spec", "old"].map(|of| format!("variables.{of}.{list}"));
    let (all, before) = (format!("{new}.orValue([])"), format!("{old}.orValue([])"));
    format!(
        "({new} == {old} ? [] : {all}.filter({item}, !({own} || \
         (size({all}) * size({before}) <= {COMPARISONS} && {item} in {before}))))"
    )
}

/// A validation: `expression` must hold. `message` computes the refusal, and `fallback` is used if that fails.
fn validation(expression: &str, message: &str, fallback: &str) -> Value {
    json!({"expression": expression, "messageExpression": message, "message": fallback})
}

/// A sentence in the form of the webhook's: object, problem, remedy. `problem` is CEL; the others are texts.
fn sentence(problem: &str, remedy: &str, key: &str) -> String {
    format!(
        "variables.object + ' ' + {problem} + ', which class ' + variables.class + ' does not allow: {remedy}, or ask an \
         administrator for admission.{key}'"
    )
}

/// Returns the validation of a rule for the objects for which `applies` is true. If the class does not have the rule in
/// this mode, the validation succeeds.
pub(super) fn rule((words, applies): (&str, &str), holds: &str, problem: &str, (remedy, key): (&str, &str)) -> Value {
    validation(
        &format!("!({applies}) || '{NO_RULE}' in variables.{words} || ({holds})"),
        &sentence(problem, remedy, key),
        &format!("the class does not allow it: {remedy}, or ask an administrator for admission.{key}"),
    )
}

/// CEL that is true if a host belongs to the tenant, with the same verdicts as `admission::ingress`. If the first label
/// of a pattern is `*`, it matches any single label.
pub(super) fn own_host(host: &str) -> String {
    format!(
        "variables.hosts.exists(p, p.startsWith('*.') ? {host}.matches('^([*]|[a-z0-9]([-a-z0-9]*[a-z0-9])?)[.]') && \
         {host}.substring({host}.indexOf('.')) == p.substring(1) : {host} == p)"
    )
}

fn services(fields: &BTreeSet<HostField>) -> Vec<Value> {
    let is = "variables.resource == 'services'";
    let kind = |object: &str| format!("{object}.spec.?type.orValue('ClusterIP')");
    let (new, old) = (kind("object"), kind("oldObject"));
    let external_name = |object: &str| format!("{object}.spec.?externalName.orValue('')");
    let kinds = format!(
        "{new} in ['ClusterIP'] + variables.services || (variables.updates && {new} == {old} && {} == {})",
        external_name("object"),
        external_name("oldObject")
    );
    // A controller may give the addresses of a Gateway to a Service outside the namespace, as its externalIPs.
    let own_addresses = |field: &str| {
        let [new, old] = ["object", "oldObject"].map(|object| format!("{object}.spec.?{field}.orValue([])"));
        format!(
            "'externalIPs' in variables.services || (variables.updates && {new} == {old}) || \
             {new}.all(a, variables.updates && a in {old})"
        )
    };
    // Controllers serve the hosts in such annotations of Services, pods, Gateways, routes and the kinds of other
    // controllers. The rule on annotations of ingresses and of routes with hostnames is stricter.
    let wrong = foreign_hosts("metadata.?annotations");
    // A controller gives these annotations to the Service that it makes for the Gateway, in any namespace.
    let passed_on = foreign_hosts("spec.?infrastructure.?annotations");
    let has_hosts = format!("!('{NO_RULE}' in variables.patterns)");
    let of_fields = kinds_of(fields).into_iter().map(|(group, plural)| format!(" || {}", is_kind(group, plural)));
    let in_annotations = format!(
        "(variables.resource in ['services', 'pods', 'gateways', 'tcproutes', 'udproutes']{}) && {has_hosts}",
        of_fields.collect::<String>()
    );
    let is_gateway = "variables.resource == 'gateways'";
    let of_annotations = |applies: &str, wrong: &str| {
        rule(
            ("services", applies),
            &format!("{wrong}.size() == 0"),
            &format!("'has an annotation ' + {wrong}[0] + ' with a host of somebody else'"),
            ("use a host of your own", "hosts"),
        )
    };
    vec![
        rule(("services", is), &kinds, &format!("'would be of type ' + {new}"), ("remove spec.type", "services")),
        rule(
            ("services", is),
            &own_addresses("externalIPs"),
            "'would take addresses of others by externalIPs'",
            ("remove spec.externalIPs", "services"),
        ),
        rule(
            ("services", is_gateway),
            &own_addresses("addresses"),
            "'would take addresses of others'",
            ("remove spec.addresses", "services"),
        ),
        of_annotations(&in_annotations, &wrong),
        of_annotations(&format!("{is_gateway} && {has_hosts}"), &passed_on),
    ]
}

/// CEL for the annotations at `path` that name a host of somebody else, without those that an update keeps.
fn foreign_hosts(path: &str) -> String {
    let (new, old) = (format!("object.{path}.orValue({{}})"), format!("oldObject.{path}"));
    let known = HOST_ANNOTATIONS.join("', '");
    format!(
        "{new}.filter(k, \
         (k.matches('(^|[^a-z])hostnames?$|Hostnames?$') || k in ['{known}'] || k in variables.hostAnnotations) && \
         !(variables.updates && {old}[?k].orValue('') == {new}[k]) && !{new}[k].split(',').all(h, {}))",
        own_host("h.trim()")
    )
}

fn scheduling() -> Vec<Value> {
    let is = format!("!(variables.resource in {WITHOUT_PODS})");
    let at = |of: &str, field: &str| format!("variables.{of}.?{field}.orValue('')");
    let key = "scheduling";
    // A name is allowed if the class lists it, if it did not change, or if it is the default.
    let named = |field: &str, word: &str, plain: &str, unless: &str| {
        let (new, old) = (at("spec", field), at("old", field));
        let holds = format!(
            "{new} in [dyn('{plain}'), dyn(''), {old}] || '{word} ' + {new} in variables.{key} || ('{word} *' in variables.{key}{unless})"
        );
        rule(
            (key, &is),
            &holds,
            &format!("'would have {field} ' + {new}"),
            (&format!("remove {field} from the spec of the pod"), key),
        )
    };
    let no_system = format!(" && !{}.startsWith('system-')", at("spec", "priorityClassName"));
    let (node, old_node) = (at("spec", "nodeName"), at("old", "nodeName"));
    let group = "schedulingGroup";
    // Kubernetes adds the tolerations for its own node conditions.
    let tolerations = foreign(
        "?tolerations",
        "t",
        &format!(
            "'toleration *' in variables.{key} || t.?key.orValue('').startsWith('node.kubernetes.io/') || \
             'toleration ' + t.?key.orValue('') in variables.{key}"
        ),
    );
    vec![
        rule(
            (key, &is),
            &format!("'nodeName' in variables.{key} || {node} in [dyn(''), {old_node}]"),
            &format!("'would run on node ' + {node} + ', past the scheduler'"),
            ("remove nodeName from the spec of the pod", key),
        ),
        // A group of pods has a priority of its own.
        rule(
            (key, &is),
            &format!("'schedulingGroup' in variables.{key} || variables.spec.?{group} == variables.old.?{group}"),
            "'would belong to a scheduling group'",
            ("remove schedulingGroup from the spec of the pod", key),
        ),
        named("priorityClassName", "priority", "", &no_system),
        named("runtimeClassName", "runtime", "", ""),
        named("schedulerName", "scheduler", "default-scheduler", ""),
        rule(
            (key, &is),
            &format!("{tolerations}.size() == 0"),
            &format!("'would tolerate taint \"' + {tolerations}[0].?key.orValue('') + '\"'"),
            ("remove it from the tolerations of the pod, unless its runtime class or an admission plugin adds it", key),
        ),
    ]
}

/// CEL that is true for an object of this kind, and false for its subresources.
fn is_kind(group: &str, plural: &str) -> String {
    format!(
        "(request.resource.group == '{group}' && request.resource.resource == '{plural}' && !has(request.subResource))"
    )
}

fn sysctls() -> Vec<Value> {
    let is = format!("!(variables.resource in {WITHOUT_PODS})");
    // Kubernetes treats a slash as a dot.
    let name = "s.name.replace('/', '.')";
    let ports = PORT_SYSCTLS.map(|(sysctl, pattern)| format!("({name} == '{sysctl}' && s.value.matches('{pattern}'))"));
    let own = format!(
        "{name} in variables.sysctls || {name} in ['{safe}'] || {ports}",
        safe = SAFE_SYSCTLS.join("', '"),
        ports = ports.join(" || "),
    );
    let wrong = foreign("?securityContext.?sysctls", "s", &own);
    vec![rule(
        ("sysctls", &is),
        &format!("{wrong}.size() == 0"),
        &format!("'would set sysctl ' + {wrong}[0].name + ' = ' + {wrong}[0].value"),
        ("remove it from securityContext.sysctls of the pod", "sysctls"),
    )]
}

/// The rules on ingress, gateway and storage classes.
fn classes() -> Vec<Value> {
    // Controllers still honor the old annotation.
    let ingress = |object: &str| {
        format!(
            "[string({object}.spec.?ingressClassName.orValue('')), \
             string({object}.metadata.?annotations[?'kubernetes.io/ingress.class'].orValue(''))].filter(c, c != '')"
        )
    };
    let (new, old) = (ingress("object"), ingress("oldObject"));
    let of_ingress = format!(
        "'ingress *' in variables.ingress || (variables.updates && {new} == {old}) || ({new}.size() > 0 && \
         {new}.all(c, 'ingress ' + c in variables.ingress))"
    );
    let gateway = |object: &str| format!("{object}.spec.?gatewayClassName.orValue('')");
    let of_gateway = format!(
        "'gateway *' in variables.ingress || 'gateway ' + {new} in variables.ingress || (variables.updates && {new} == {old})",
        new = gateway("object"),
        old = gateway("oldObject")
    );
    let new = storage_class("object");
    let of_claim = allowed_storage("storage");
    let attributes = |object: &str| format!("{object}.spec.?volumeAttributesClassName.orValue('')");
    let (new_attributes, old_attributes) = (attributes("object"), attributes("oldObject"));
    let of_attributes = format!(
        "{new_attributes} == '' || 'class ' + {new_attributes} in variables.storage || \
         (variables.updates && {new_attributes} == {old_attributes})"
    );
    // The daemon's claims, for the volumes of a tenant class, have no storage class.
    let is_claim = format!("variables.resource == 'persistentvolumeclaims' && !({})", by_the_daemon());
    vec![
        rule(
            ("ingress", "variables.resource == 'ingresses'"),
            &of_ingress,
            &format!("'would be served by ingress class \"' + {}.join(', ') + '\"'", ingress("object")),
            ("use a class that is allowed", "ingress.classes"),
        ),
        rule(
            ("ingress", "variables.resource == 'gateways'"),
            &of_gateway,
            &format!("'would be served by gateway class \"' + {} + '\"'", gateway("object")),
            ("use a class that is allowed", "ingress.gateway_classes"),
        ),
        rule(
            ("storage", &is_claim),
            &of_claim,
            &format!("'would have storage class \"' + {new} + '\"'"),
            ("use a class that is allowed", "claims.storage_classes"),
        ),
        rule(
            ("storage", &is_claim),
            &of_attributes,
            &format!("'would have volume attributes class \"' + {new_attributes} + '\"'"),
            ("remove spec.volumeAttributesClassName", "claims.storage_classes"),
        ),
    ]
}

/// Returns the validation that refuses to scale an object of a site manifest. A request for `/scale` shows no labels,
/// so neither the webhook's selector nor its rules find these objects. The autoscaler of a tenant is refused too. If an
/// autoscaler in the class's own manifests names the object, controllers outside the namespace may scale it, because
/// KEDA and others scale from zero themselves.
fn scale(exempt: &[String]) -> Value {
    let groups: Vec<String> =
        std::iter::once("system:nodes").chain(exempt.iter().map(String::as_str)).map(quoted).collect();
    let (user, accounts) = ("request.userInfo.username", "system:serviceaccount:");
    let system = format!("{accounts}kube-system:");
    let autoscaler = format!(
        "{user} == 'system:kube-controller-manager' || \
         ({user}.startsWith('{accounts}') && !{user}.startsWith('{accounts}' + request.namespace + ':'))"
    );
    let is_ours = |first: &str| {
        format!(
            "['*', request.resource.resource].exists(plural, \
             '{first}' + plural + '.' + request.resource.group + ' ' + request.name in variables.ours)"
        )
    };
    let expression = format!(
        "!has(request.subResource) || request.subResource != 'scale' || !{} || {by_daemon} || \
         {user} == 'system:apiserver' || \
         ({user}.startsWith('{system}') && {user} != '{system}horizontal-pod-autoscaler') || \
         ({} && ({autoscaler})) || \
         (has(request.userInfo.groups) && request.userInfo.groups.exists(group, group in [{groups}]))",
        is_ours(""),
        is_ours(&format!("{AUTOSCALED} ")),
        by_daemon = by_the_daemon(),
        groups = groups.join(", "),
    );
    let problem =
        "may not be scaled, because Bursar made it: ask an administrator to change the configuration, or to exempt you";
    validation(
        &expression,
        &format!("request.resource.resource + ' ' + request.name + ' {problem}'"),
        &format!("the object {problem}"),
    )
}

/// CEL for the storage class of a claim.
pub(super) fn storage_class(object: &str) -> String {
    format!(
        "{object}.metadata.?annotations[?'volume.beta.kubernetes.io/storage-class']\
         .orValue({object}.spec.?storageClassName.orValue(''))"
    )
}

/// CEL that is true if the words of a rule contain the claim's storage class, or if an update does not change it.
pub(super) fn allowed_storage(words: &str) -> String {
    let (new, old) = (storage_class("object"), storage_class("oldObject"));
    format!("'class ' + {new} in variables.{words} || (variables.updates && {new} == {old})")
}

/// Returns the validation that every host in the field belongs to the tenant. If an update does not change the
/// top-level field that contains it, the validation succeeds.
fn host_field(field: &HostField) -> Value {
    let HostField { group, plural, path, optional } = field;
    let applies = format!("{} && '{field}' in variables.fields", is_kind(group, plural));
    let first = path.first().map(|step| step.name.as_str()).unwrap_or_default();
    let is_same = format!("variables.updates && object[?'{first}'] == oldObject[?'{first}']");
    let path_text = field.to_string();
    let (_, path_text) = path_text.split_once(' ').unwrap_or_default();
    let path_text = path_text.trim_end_matches('?');
    let remedy = format!("use a host of your own in {path_text}");
    validation(
        &format!("!({applies}) || ({is_same}) || ({})", hosts_of("object", path, *optional, 0)),
        &format!(
            "variables.object + ' has a host in {path_text} that is not yours, or none: ' + (variables.hosts.size() == 0 ? \
             'ask an administrator for one' : 'use ' + variables.hosts.join(' or '))"
        ),
        &format!("the object has a host that is somebody else's: {remedy}"),
    )
}

/// Returns CEL that is true if every host at `path` in `object` belongs to the tenant.
fn hosts_of(object: &str, path: &[Step], optional: bool, depth: usize) -> String {
    let mut at = object.to_owned();
    for (index, Step { name, each }) in path.iter().enumerate() {
        at = format!("{at}[?'{name}']");
        if !each {
            continue;
        }
        let (item, rest) = (format!("i{depth}"), &path[index + 1..]);
        let of_item = if rest.is_empty() { own_host(&item) } else { hosts_of(&item, rest, optional, depth + 1) };
        let some = if optional { String::new() } else { format!("{at}.orValue([]).size() > 0 && ") };
        return format!("{some}{at}.orValue([]).all({item}, {of_item})");
    }
    let absent = if optional { format!("!{at}.hasValue() || ") } else { String::new() };
    format!("{absent}{}", own_host(&format!("{at}.orValue('')")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_in_nested_lists_are_checked_and_may_be_absent_only_if_optional() {
        let of = |path: &str| {
            let field = HostField::parse("widgets.example.org", path).expect("the text names a field");
            hosts_of("object", &field.path, field.optional, 0)
        };
        let nested = of("spec.listeners[].hosts[]");
        assert!(nested.starts_with("object[?'spec'][?'listeners'].orValue([]).size() > 0 && "), "{nested}");
        assert!(nested.contains(".all(i0, i0[?'hosts'].orValue([]).size() > 0 && i0[?'hosts'].orValue([]).all(i1, "));
        assert!(of("spec.host").starts_with("variables.hosts.exists("));
        assert!(of("spec.host?").starts_with("!object[?'spec'][?'host'].hasValue() || "));
        assert!(!of("spec.hosts[]?").contains("size() > 0"));
    }

    #[test]
    fn a_kind_of_the_same_name_in_another_group_is_only_judged_by_its_hosts() {
        let resource = resource();
        assert!(resource.contains("(request.resource.group == 'gateway.networking.k8s.io' && "), "{resource}");
        let ending = " in ['gateways', 'tcproutes', 'udproutes'])) ? request.resource.resource : ''";
        assert!(resource.ends_with(ending), "{resource}");
        let field =
            HostField::parse("gateways.networking.istio.io", "spec.servers[].hosts[]").expect("the text names a field");
        let given = Given { host_fields: BTreeSet::from([field]), ..Given::default() };
        for policy in &policies(&given)[..ACTIONS.len()] {
            let validations = policy["spec"]["validations"].as_array().expect("the policy has validations");
            let by_name = |rule: &&Value| {
                let expression = rule["expression"].to_string();
                expression.contains("request.resource.resource") && !expression.contains("'scale'")
            };
            let of_hosts: Vec<&Value> = validations.iter().filter(by_name).collect();
            let is_meant = |rule: &&&Value| rule["expression"].to_string().contains("networking.istio.io");
            // One rule is about hosts in annotations, and the other about hosts in the field.
            assert_eq!((of_hosts.iter().filter(is_meant).count(), of_hosts.len()), (2, 2));
        }
    }

    #[test]
    fn a_class_that_the_policies_do_not_know_has_words_of_its_own() {
        let words = BTreeMap::from([("services".to_owned(), String::new())]);
        let otherwise = BTreeMap::from([(Mode::Enforce, words)]);
        let given = Given { classes: BTreeSet::from(["tool".to_owned()]), otherwise, ..Given::default() };
        let expression = |policy: &Value| {
            let variables = policy["spec"]["variables"].as_array().expect("the policy has variables");
            let found = variables
                .iter()
                .find(|variable| variable["name"] == "otherwise")
                .expect("the policy has this variable");
            found["expression"].as_str().expect("the value is a text").to_owned()
        };
        let [enforce, warn, ..] = &policies(&given)[..] else { panic!("each mode has one policy") };
        let known = "variables.class in ['-', 'tool'] ? {'': ''}";
        assert_eq!(expression(enforce), format!("{known} : {{'': '', 'services': ''}}"));
        assert_eq!(expression(warn), format!("{known} : {{'': ''}}"));
    }

    #[test]
    fn a_cel_literal_has_no_quotes_and_escapes_newlines() {
        let data = BTreeMap::from([("tool.services".to_owned(), "NodePort\nexternalIPs'+x\\".to_owned())]);
        assert_eq!(literal(&data), "{'': '', 'tool.services': 'NodePort\\nexternalIPs+x'}");
    }

    #[test]
    fn each_mode_has_a_policy_and_a_binding_of_the_same_name() {
        let named = |manifest: &Value| manifest["metadata"]["name"].as_str().map(str::to_owned);
        let policies: Vec<_> = policies(&Given::default())[..ACTIONS.len()].iter().filter_map(named).collect();
        let bindings: Vec<_> = bindings().into_iter().map(|binding| binding.name).collect();
        assert_eq!(
            (&policies[..], &bindings[..]),
            (&POLICIES.map(str::to_owned)[..], &POLICIES.map(str::to_owned)[..])
        );
    }

    #[test]
    fn a_host_field_with_a_quote_is_rejected() {
        assert_eq!(HostField::parse("widgets.example.org", "spec.a'b"), None);
        assert_eq!(HostField::parse("wid'gets.example.org", "spec.ab"), None);
    }
}
