//! The uid rule as policies that the API server evaluates itself, webhook or not. PURE: no runtime, no client, no file
//! system, no clock.
//!
//! `init` makes the policies, which alone do nothing; `bursar webhook install` makes the bindings, one for each mode,
//! that put them in force for classes. So the daemon cannot change what a policy does, which of a mutating one would
//! be anything: of admission's own objects no policy sees these, and the admission policy could not hold it.
//!
//! The expressions say what `admission::uid` says, of what is left when everything was filled in: they demand what the
//! webhook, or the mutating policy, fills in.

use serde_json::{Value, json};

use super::configurations::of_tenants;
use super::{labels, server_rules};
use crate::bootstrap::daemon_admission_policy::by_the_daemon;
use crate::bootstrap::roles::labels as labels_of_init;
use crate::contract::CLASS;
use crate::desired::credential::SERVICE_ACCOUNT_PREFIX;
use crate::execute::evict::TOKEN_SECRET;
use crate::rules::{Mode, Rules, UidRules};

/// The policy of uid, gid and groups, validating and mutating.
pub const UID: &str = "bursar-uid";
/// Name of the policy against groups that images add, for classes that take none from them.
pub const GROUPS: &str = "bursar-groups";
/// Name of the policy against ways to another uid, for classes without `privilege_escalation`.
pub const ESCALATION: &str = "bursar-escalation";
/// Name of the policy against tokens that outlive a revocation: in Secrets that Kubernetes fills, and of a service account of
/// ours in pods, which wait for the account of the next generation. It holds for every class, whatever the mode of its uid
/// rule.
pub const TOKENS: &str = "bursar-tokens";
/// Name of the policy against pods that nobody can delete. It holds for every class, as that of tokens does.
pub const SIZE: &str = "bursar-size";
pub const POLICIES: [&str; 5] = [UID, GROUPS, ESCALATION, TOKENS, SIZE];
/// Those of them that also fill in what they demand.
pub const MUTATING: [&str; 3] = [UID, GROUPS, ESCALATION];

const PODS_AND_EPHEMERAL: [&str; 2] = ["pods", "pods/ephemeralcontainers"];
pub(super) const API_VERSION: &str = "admissionregistration.k8s.io/v1";
/// Modes that a binding can have, and what the API server calls them.
pub(super) const ACTIONS: [(Mode, &str); 3] = [(Mode::Enforce, "Deny"), (Mode::Warn, "Warn"), (Mode::Audit, "Audit")];

/// The validating policies.
pub(in crate::bootstrap) fn validating() -> [Value; 5] {
    let uid = policy("ValidatingAdmissionPolicy", UID, &PODS_AND_EPHEMERAL, json!({"validations": uid_validations()}));
    let escalation = policy("ValidatingAdmissionPolicy", ESCALATION, &PODS_AND_EPHEMERAL, {
        json!({"validations": escalation_validations()})
    });
    let expression = "!has(object.spec.securityContext) ? false : \
        object.spec.securityContext.?supplementalGroupsPolicy.orValue('') == 'Strict'";
    let groups = policy("ValidatingAdmissionPolicy", GROUPS, &["pods"], {
        json!({"validations": [{
            "expression": expression,
            "message": "the pod would be in the groups that its images name: set spec.securityContext.\
                        supplementalGroupsPolicy to Strict",
        }]})
    });
    [uid, groups, escalation, tokens(), size()]
}

fn tokens() -> Value {
    let is = |resource: &str| format!("request.resource.resource == '{resource}'");
    let ours = format!(".matches('^{SERVICE_ACCOUNT_PREFIX}[0-9]+$')");
    let validations = json!([
        {
            "expression": format!("!({}) || dyn(object).?type.orValue('') != '{TOKEN_SECRET}'", is("secrets")),
            "message": "a token in a Secret outlives every revocation: let the pod use a projected service account token",
        },
        {
            "expression": format!("!({}) || !dyn(object).spec.?serviceAccountName.orValue(''){ours}", is("pods")),
            "message": "the pod would have the rights of the tenant's credential, also after a revocation: use another \
                        serviceAccountName",
        },
        {
            "expression": format!("!({}) || {} || !object.metadata.name{ours}", is("serviceaccounts"), by_the_daemon()),
            "message": "only Bursar makes service accounts of this name: use another",
        },
    ]);
    let kinds = ["secrets", "pods", "serviceaccounts"];
    let mut policy = policy("ValidatingAdmissionPolicy", TOKENS, &kinds, json!({"validations": validations}));
    without_variables(&mut policy);
    policy
}

/// Bytes of `metadata.managedFields`, which clients may write themselves: a pod of 768 KiB that its containers' fields fill needs
/// less for each of them, and what is left of etcd's 1.5 MiB is for the status.
const MANAGED_FIELDS: usize = 256 << 10;

/// Limits the parts of a pod that nothing else limits and that the webhook is not asked about. A pod that fills etcd's limit by
/// them cannot be deleted, because a deletion writes into the pod first.
fn size() -> Value {
    let most = |field: &str, none: &str, most: usize| {
        let count = |object: &str| format!("{object}.metadata.?{field}.orValue({none}).size()");
        json!({
            "expression": format!(
                "{} <= {most} || (request.operation == 'UPDATE' && {} <= {})",
                count("object"), count("object"), count("oldObject"),
            ),
            "message": format!("a pod may have {most} metadata.{field}, so that it can always be deleted: remove some"),
        })
    };
    let short = "request.operation == 'UPDATE' && object.metadata.?ownerReferences == oldObject.metadata.?ownerReferences || \
        object.metadata.?ownerReferences.orValue([]).all(o, \
            [o.apiVersion, o.kind, o.name, o.uid].all(text, text.size() <= 320))";
    let managed = |object: &str| {
        format!("{object}.metadata.?managedFields.orValue([]).map(entry, '%s'.format([entry]).size()).sum()")
    };
    let validations = json!([
        most("labels", "{}", 128),
        most("finalizers", "[]", 32),
        most("ownerReferences", "[]", 32),
        {"expression": short, "message": "an owner reference of the pod is too long: remove it"},
        {
            "expression": format!(
                "{} <= {MANAGED_FIELDS} || (request.operation == 'UPDATE' && {} <= {})",
                managed("object"), managed("object"), managed("oldObject"),
            ),
            "message": format!(
                "a pod may have {} KiB of metadata.managedFields, so that it can always be deleted: remove some",
                MANAGED_FIELDS >> 10
            ),
        },
    ]);
    let kinds = ["pods", "pods/ephemeralcontainers", "pods/resize"];
    let mut policy = policy("ValidatingAdmissionPolicy", SIZE, &kinds, json!({"validations": validations}));
    policy["spec"]["matchConstraints"]["resourceRules"][0]["operations"] = json!(["CREATE", "UPDATE"]);
    without_variables(&mut policy);
    policy
}

fn without_variables(policy: &mut Value) {
    if let Some(spec) = policy["spec"].as_object_mut() {
        spec.remove("variables");
    }
}

/// The mutating policies, for servers that have the kind: what the webhook fills in.
pub(in crate::bootstrap) fn mutating() -> [Value; 3] {
    let absent = |field: &str, value: &str| {
        format!(
            "{field}: has(object.spec.securityContext) && has(object.spec.securityContext.{field}) ? \
             object.spec.securityContext.{field} : {value}"
        )
    };
    let applied = |fields: &str| {
        json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": format!(
            "Object{{spec: Object.spec{{securityContext: Object.spec.securityContext{{{fields}}}}}}}"
        )}})
    };
    let identity = [
        absent("runAsUser", "variables.uid"),
        absent("runAsGroup", "variables.gid"),
        absent("fsGroup", "variables.gid"),
        absent("runAsNonRoot", "true"),
    ];
    // An atomic list cannot be applied, and is added. There is a security context by then.
    let groups = json!({"patchType": "JSONPatch", "jsonPatch": {"expression":
        "has(object.spec.securityContext.supplementalGroups) || variables.groups.size() == 0 ? [] : \
         [JSONPatch{op: 'add', path: '/spec/securityContext/supplementalGroups', value: variables.groups}]"
    }});
    let fills = |mutations: &[Value]| json!({"reinvocationPolicy": "Never", "mutations": mutations});
    let strict = applied(&absent("supplementalGroupsPolicy", "'Strict'"));
    [
        policy("MutatingAdmissionPolicy", UID, &["pods"], fills(&[applied(&identity.join(", ")), groups])),
        policy("MutatingAdmissionPolicy", GROUPS, &["pods"], fills(&[strict])),
        policy("MutatingAdmissionPolicy", ESCALATION, &PODS_AND_EPHEMERAL, fills(&[no_escalation()])),
    ]
}

/// `allowPrivilegeEscalation: false` for containers that do not say it: those of a new pod, and new ephemeral ones. An old
/// one cannot change, so it is left out.
fn no_escalation() -> Value {
    let filled = |list: &str, which: &str| {
        format!(
            "{list}: object.spec.?{list}.orValue([]).filter(c, {which}).map(c, Object.spec.{list}{{name: c.name, \
             securityContext: Object.spec.{list}.securityContext{{allowPrivilegeEscalation: \
             c.?securityContext.?allowPrivilegeEscalation.orValue(false)}}}})"
        )
    };
    let is_added = "request.operation == 'CREATE' || \
        !oldObject.spec.?ephemeralContainers.orValue([]).exists(o, o.name == c.name)";
    let lists = [
        filled("containers", "request.operation == 'CREATE'"),
        filled("initContainers", "request.operation == 'CREATE'"),
        filled("ephemeralContainers", is_added),
    ];
    json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": format!(
        "Object{{spec: Object.spec{{{}}}}}", lists.join(", ")
    )}})
}

fn policy(kind: &str, name: &str, resources: &[&str], rest: Value) -> Value {
    let rules: Vec<Value> = resources
        .iter()
        .map(|resource| {
            let operation = if resource.contains('/') { "UPDATE" } else { "CREATE" };
            json!({
                "apiGroups": [""], "apiVersions": ["v1"], "resources": [resource], "operations": [operation],
                "scope": "Namespaced",
            })
        })
        .collect();
    let mut policy = json!({
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {"name": name, "labels": labels_of_init()},
        "spec": {
            "failurePolicy": "Fail",
            // In the policy too: no binding can widen it.
            "matchConstraints": {
                "matchPolicy": "Equivalent", "namespaceSelector": of_tenants(), "objectSelector": {},
                "resourceRules": rules,
            },
            "variables": variables(),
        },
    });
    if let (Some(spec), Value::Object(rest)) = (policy["spec"].as_object_mut(), rest) {
        spec.extend(rest);
    }
    policy
}

/// An annotation that is missing or no number is an error, and so a refusal.
fn variables() -> Value {
    json!([
        {"name": "uid", "expression": "int(namespaceObject.metadata.annotations['bursar.dev/uid'])"},
        {"name": "gid", "expression": "int(namespaceObject.metadata.annotations['bursar.dev/gid'])"},
        {"name": "groups", "expression":
            "namespaceObject.metadata.annotations['bursar.dev/groups'].split(',').filter(g, g != '').map(g, int(g))"},
    ])
}

/// Security contexts: of an update, those of the ephemeral containers that are new; of a new pod, those of all containers.
const CONTEXTS: &str = "(request.operation == 'UPDATE' ? \
    object.spec.?ephemeralContainers.orValue([]).filter(c, \
        !(c in oldObject.spec.?ephemeralContainers.orValue([]))).map(c, c.?securityContext) : \
    object.spec.containers.map(c, c.?securityContext) + \
    object.spec.?initContainers.orValue([]).map(c, c.?securityContext) + \
    object.spec.?ephemeralContainers.orValue([]).map(c, c.?securityContext))";

fn escalation_validations() -> Value {
    json!([
        {"expression": format!("{CONTEXTS}.all(s, !s.?allowPrivilegeEscalation.orValue(true))"),
            "message": "a container could become another uid: set its securityContext.allowPrivilegeEscalation to false"},
        {"expression": format!("{CONTEXTS}.all(s, !s.?privileged.orValue(false))"),
            "message": "a container would be privileged: remove its securityContext.privileged"},
        {"expression": format!("{CONTEXTS}.all(s, s.?capabilities.?add.orValue([]).all(a, a == 'NET_BIND_SERVICE'))"),
            "message": "a container adds capabilities: remove all but NET_BIND_SERVICE from its \
                        securityContext.capabilities.add"},
    ])
}

fn uid_validations() -> Value {
    let containers = CONTEXTS;
    let pod = "object.spec.?securityContext";
    let own = |field: &str, variable: &str| {
        format!(
            "(request.operation == 'UPDATE' || {pod}.?{field}.orValue(variables.{variable}) == variables.{variable}) && \
             {containers}.all(s, s.?{field}.or({pod}.?{field}).orValue(-1) == variables.{variable})"
        )
    };
    let is = |what: &str, variable: &str, field: &str| {
        format!(
            "'the pod would run as another {what} than ' + string(variables.{variable}) + ': leave {field} out, or set it \
             to ' + string(variables.{variable})"
        )
    };
    json!([
        {"expression": own("runAsUser", "uid"), "messageExpression": is("uid", "uid", "runAsUser"),
            "message": "the pod would run as another uid"},
        {"expression": own("runAsGroup", "gid"), "messageExpression": is("gid", "gid", "runAsGroup"),
            "message": "the pod would run as another gid"},
        {"expression": format!("request.operation == 'UPDATE' || {pod}.?fsGroup.orValue(variables.gid) == variables.gid"),
            "message": "its volumes would belong to another gid: leave fsGroup out"},
        {"expression": format!(
            "request.operation == 'UPDATE' || {pod}.?supplementalGroups.orValue([]).all(g, g == variables.gid || \
             g in variables.groups)"),
            "message": "the pod would be in another's groups: leave supplementalGroups out"},
        {"expression": format!(
            "(request.operation == 'UPDATE' || {pod}.?runAsNonRoot.orValue(true)) && \
             {containers}.all(s, s.?runAsNonRoot.orValue(true))"),
            "message": "the pod says that it may run as root: leave runAsNonRoot out"},
        {"expression": format!(
            "(request.operation == 'UPDATE' || (!{pod}.?windowsOptions.hasValue() && \
             object.spec.?os.?name.orValue('linux') == 'linux')) && {containers}.all(s, !s.?windowsOptions.hasValue())"),
            "message": "only Linux knows uids: leave os and windowsOptions out"},
    ])
}

/// One binding: its kind, its name, and what it should be. One without classes meets nothing: the daemon removes none.
#[derive(Debug, Clone, PartialEq)]
pub struct Binding {
    /// `ValidatingAdmissionPolicyBinding`, `MutatingAdmissionPolicyBinding`.
    pub kind: &'static str,
    /// `bursar-uid-enforce`.
    pub name: String,
    /// The manifest.
    pub manifest: Value,
}

/// Every binding that there can be.
#[must_use]
pub fn bindings(rules: &Rules) -> Vec<Binding> {
    let mut bindings = Vec::new();
    for policy in POLICIES {
        let is_for = |rules: &UidRules| match policy {
            GROUPS => rules.strict_groups,
            ESCALATION => !rules.privilege_escalation,
            _ => true,
        };
        for (mode, action) in ACTIONS {
            let meets = |rules: &UidRules| match policy {
                TOKENS | SIZE => mode == Mode::Enforce,
                _ => rules.mode == mode && is_for(rules),
            };
            let classes = rules.classes.iter().filter(|(_, class)| meets(&class.uid));
            let classes: Vec<&String> = classes.map(|(name, _)| name).collect();
            let name = format!("{policy}-{}", mode.as_str());
            let spec =
                json!({"policyName": policy, "validationActions": [action], "matchResources": matching(&classes)});
            bindings.push(binding("ValidatingAdmissionPolicyBinding", &name, &spec));
            if mode == Mode::Enforce && MUTATING.contains(&policy) {
                let spec = json!({"policyName": policy, "matchResources": matching(&classes)});
                bindings.push(binding("MutatingAdmissionPolicyBinding", &name, &spec));
            }
        }
    }
    bindings
}

/// Names of all bindings of a kind: what the daemon may write.
pub(in crate::bootstrap) fn names(kind: &str) -> Vec<String> {
    let (policies, modes, more): (&[&str], &[&str], &[&str]) = if kind.starts_with("Mutating") {
        (&MUTATING, &["enforce"], &[])
    } else {
        (&POLICIES, &["enforce", "warn", "audit"], &server_rules::POLICIES)
    };
    let own = policies.iter().flat_map(|policy| modes.iter().map(move |mode| format!("{policy}-{mode}")));
    own.chain(more.iter().map(|name| (*name).to_owned())).collect()
}

fn matching(classes: &[&String]) -> Value {
    // A selector without values is no selector; nothing has a label and has it not.
    let expressions = if classes.is_empty() {
        json!([{"key": CLASS, "operator": "Exists"}, {"key": CLASS, "operator": "DoesNotExist"}])
    } else {
        json!([{"key": CLASS, "operator": "In", "values": classes}])
    };
    json!({
        "matchPolicy": "Equivalent",
        "objectSelector": {},
        "namespaceSelector": {"matchExpressions": expressions},
    })
}

pub(super) fn binding(kind: &'static str, name: &str, spec: &Value) -> Binding {
    let manifest = json!({
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {"name": name, "labels": labels()},
        "spec": spec,
    });
    Binding { kind, name: name.to_owned(), manifest }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desired::rules::rules;
    use crate::plan::testing::{policy as sample, prod};

    #[test]
    fn the_daemon_may_write_every_binding_there_can_be_and_no_other() {
        for kind in ["ValidatingAdmissionPolicyBinding", "MutatingAdmissionPolicyBinding"] {
            let made: Vec<String> = bindings(&rules(&sample(), &prod()))
                .into_iter()
                .chain(server_rules::bindings())
                .filter(|binding| binding.kind == kind)
                .map(|binding| binding.name)
                .collect();
            assert_eq!(made, names(kind));
        }
    }

    fn meets_a_class(binding: &Binding) -> bool {
        let expressions = binding.manifest.pointer("/spec/matchResources/namespaceSelector/matchExpressions");
        expressions.is_some_and(|expressions| expressions[0]["operator"] == "In")
    }

    #[test]
    fn a_binding_of_a_mode_without_classes_meets_nothing() {
        let all = bindings(&rules(&sample(), &prod()));
        let wanted: Vec<&str> =
            all.iter().filter(|binding| meets_a_class(binding)).map(|binding| binding.name.as_str()).collect();
        assert_eq!(
            wanted,
            [
                "bursar-uid-enforce",
                "bursar-uid-enforce",
                "bursar-groups-enforce",
                "bursar-groups-enforce",
                "bursar-escalation-enforce",
                "bursar-escalation-enforce",
                "bursar-tokens-enforce",
                "bursar-size-enforce"
            ]
        );
    }

    #[test]
    fn a_class_that_may_escalate_keeps_the_rest_of_the_backstop() {
        let mut rules = rules(&sample(), &prod());
        for class in rules.classes.values_mut() {
            class.uid.privilege_escalation = true;
        }
        let met: Vec<String> = bindings(&rules).into_iter().filter(meets_a_class).map(|binding| binding.name).collect();
        assert!(met.iter().all(|name| !name.starts_with(ESCALATION)) && met.contains(&"bursar-uid-enforce".to_owned()));
    }
}
