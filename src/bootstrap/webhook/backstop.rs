//! The uid rule as policies that the API server evaluates itself, whether the webhook runs or not.
//!
//! `init` makes the policies, which have no effect without bindings. `bursar webhook install` makes the bindings, one
//! for each mode, which put the policies in force for classes. The daemon therefore cannot change what a policy does.
//! Otherwise it could write a mutating policy that changes anything: Kubernetes exempts admission policies from
//! admission policies, so the daemon admission policy could not prevent it.
//!
//! The expressions check the same as `admission::uid`. They see a pod after the webhook or the mutating policy has
//! filled in its fields, so they require these fields.

use serde_json::{Value, json};

use super::configurations::of_tenants;
use super::{labels, server_rules};
use crate::admission::existing;
use crate::bootstrap::daemon_admission_policy::by_the_daemon;
use crate::bootstrap::roles::labels as labels_of_init;
use crate::contract::{CLASS, SERVICE_ACCOUNT_PREFIX};
use crate::execute::evict::TOKEN_SECRET;
use crate::rules::{Mode, Rules, UidRules};

/// The policies on uid, gid and groups, validating and mutating.
pub const UID: &str = "bursar-uid";
/// The policies against groups that images add, for classes that do not allow them.
pub const GROUPS: &str = "bursar-groups";
/// The policies that keep a container from becoming another uid, for classes without `privilege_escalation`.
pub const ESCALATION: &str = "bursar-escalation";
/// The policy against tokens that outlive a revocation: Secrets that Kubernetes fills with a token, and pods that use
/// one of our service accounts (also one of a later generation).
pub const TOKENS: &str = existing::TOKENS;
/// The policy against pods that cannot be deleted.
pub const SIZE: &str = "bursar-size";
/// The policy against long grace periods ([`super::grace`]).
pub const GRACE: &str = existing::GRACE;
pub const POLICIES: [&str; 6] = [UID, GROUPS, ESCALATION, TOKENS, SIZE, GRACE];
/// The policies that apply to every class.
pub const OF_EVERY_CLASS: [&str; 3] = [TOKENS, SIZE, GRACE];
/// The policies that also have a mutating version, which fills in what the validating one requires.
pub const MUTATING: [&str; 3] = [UID, GROUPS, ESCALATION];

const PODS_AND_EPHEMERAL: [&str; 2] = ["pods", "pods/ephemeralcontainers"];
pub(super) const API_VERSION: &str = "admissionregistration.k8s.io/v1";
/// The modes of bindings, with the API server's names for them.
pub(super) const ACTIONS: [(Mode, &str); 3] = [(Mode::Enforce, "Deny"), (Mode::Warn, "Warn"), (Mode::Audit, "Audit")];

/// The validating policies, without [`GRACE`], which depends on the configuration.
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

/// The most bytes of `metadata.managedFields`, which clients may write themselves. A pod of 768 KiB with the largest
/// possible number of fields needs less. The rest of etcd's 1.5 MiB is for the status.
const MANAGED_FIELDS: usize = 256 << 10;

/// Limits the parts of a pod that nothing else limits and that the webhook does not see. If they fill the pod up to
/// etcd's limit, the pod cannot be deleted, because a deletion first writes into the pod.
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
            [o.apiVersion, o.kind, o.name, o.uid].all(text, bytes(text).size() <= 320))";
    let texts = |object: &str| format!("{object}.metadata.?managedFields.orValue([]).map(entry, '%s'.format([entry]))");
    let sum = |texts: &str| format!("{texts}.map(text, bytes(text).size()).sum()");
    // A control character takes six bytes in etcd, but may take only two bytes in these texts.
    let third = MANAGED_FIELDS / 3;
    let managed = format!(
        "variables.size <= {third} || (variables.size <= {MANAGED_FIELDS} && \
         !variables.managed.exists(text, text.matches('[\\\\\\\\]([abfv]|x[01])'))) || \
         (request.operation == 'UPDATE' && variables.before > {MANAGED_FIELDS} && variables.size <= variables.before)"
    );
    let validations = json!([
        most("labels", "{}", 128),
        most("finalizers", "[]", 32),
        most("ownerReferences", "[]", 32),
        {"expression": short, "message": "an owner reference of the pod is too long: remove it"},
        {
            "expression": managed,
            "message": format!(
                "a pod may have {} KiB of metadata.managedFields, so that it can always be deleted: remove some",
                MANAGED_FIELDS >> 10
            ),
        },
    ]);
    let kinds = ["pods", "pods/ephemeralcontainers", "pods/resize"];
    let mut policy = policy("ValidatingAdmissionPolicy", SIZE, &kinds, json!({"validations": validations}));
    policy["spec"]["matchConstraints"]["resourceRules"][0]["operations"] = json!(["CREATE", "UPDATE"]);
    policy["spec"]["variables"] = json!([
        {"name": "managed", "expression": texts("object")},
        {"name": "size", "expression": sum("variables.managed")},
        {"name": "before", "expression": sum(&texts("oldObject"))},
    ]);
    policy
}

fn without_variables(policy: &mut Value) {
    if let Some(spec) = policy["spec"].as_object_mut() {
        spec.remove("variables");
    }
}

/// The mutating policies, for servers that support them. They fill in what the webhook fills in.
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
    // An atomic list cannot be applied, so it is added by a JSON patch. The security context exists by then.
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

/// Sets `allowPrivilegeEscalation: false` on containers without the field: all containers of a new pod, and new
/// ephemeral containers. Existing containers cannot change, so they are left out.
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

pub(super) fn policy(kind: &str, name: &str, resources: &[&str], rest: Value) -> Value {
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
            // The policy has the constraints too, so that no binding can widen them.
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

/// If an annotation is missing or not a number, the expression fails, and the request is refused.
fn variables() -> Value {
    json!([
        {"name": "uid", "expression": "int(namespaceObject.metadata.annotations['bursar.dev/uid'])"},
        {"name": "gid", "expression": "int(namespaceObject.metadata.annotations['bursar.dev/gid'])"},
        {"name": "groups", "expression":
            "namespaceObject.metadata.annotations['bursar.dev/groups'].split(',').filter(g, g != '').map(g, int(g))"},
    ])
}

/// The security contexts to check: in an update those of new ephemeral containers, in a new pod those of all
/// containers. An update of more than 200 ephemeral containers checks all, because the search for new ones takes time.
const CONTEXTS: &str = "(request.operation == 'UPDATE' ? \
    object.spec.?ephemeralContainers.orValue([]).filter(c, \
        object.spec.ephemeralContainers.size() > 200 || \
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

/// A binding of a policy. A binding without classes matches nothing, and is kept because the daemon removes no
/// bindings.
#[derive(Debug, Clone, PartialEq)]
pub struct Binding {
    /// `ValidatingAdmissionPolicyBinding` or `MutatingAdmissionPolicyBinding`.
    pub kind: &'static str,
    /// For example `bursar-uid-enforce`.
    pub name: String,
    pub manifest: Value,
}

/// Returns all bindings, for every policy and mode.
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
            let is_of_every_class = OF_EVERY_CLASS.contains(&policy);
            let meets = |rules: &UidRules| !is_of_every_class && rules.mode == mode && is_for(rules);
            let classes = rules.classes.iter().filter(|(_, class)| meets(&class.uid));
            let classes: Vec<&String> = classes.map(|(name, _)| name).collect();
            let name = format!("{policy}-{}", mode.as_str());
            let mut matched = matching(&classes);
            if is_of_every_class && mode == Mode::Enforce {
                // This also matches namespaces of classes that the rules do not know yet.
                matched["namespaceSelector"] = of_tenants();
            }
            let spec = json!({"policyName": policy, "validationActions": [action], "matchResources": matched});
            bindings.push(binding("ValidatingAdmissionPolicyBinding", &name, &spec));
            if mode == Mode::Enforce && MUTATING.contains(&policy) {
                let spec = json!({"policyName": policy, "matchResources": matching(&classes)});
                bindings.push(binding("MutatingAdmissionPolicyBinding", &name, &spec));
            }
        }
    }
    bindings
}

/// Names of all bindings of a kind. The daemon may write only these.
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
    // A selector needs values. No namespace both has a label and lacks it, so this selector matches nothing.
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
    use crate::ledger::LedgerState;
    use crate::plan::testing::{policy as sample, prod};

    #[test]
    fn the_names_that_the_daemon_may_write_are_those_of_all_bindings() {
        for kind in ["ValidatingAdmissionPolicyBinding", "MutatingAdmissionPolicyBinding"] {
            let made: Vec<String> = bindings(&rules(&sample(), &prod(), &LedgerState::default()))
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
    fn a_binding_of_a_mode_without_classes_matches_nothing() {
        let all = bindings(&rules(&sample(), &prod(), &LedgerState::default()));
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
                "bursar-escalation-enforce"
            ]
        );
        let of_all = all
            .iter()
            .filter(|binding| binding.manifest["spec"]["matchResources"]["namespaceSelector"] == of_tenants());
        let of_all: Vec<&str> = of_all.map(|binding| binding.name.as_str()).collect();
        let named = OF_EVERY_CLASS.map(|policy| format!("{policy}-enforce"));
        assert_eq!(of_all, named, "a class without rules has these too");
    }

    #[test]
    fn a_class_that_may_escalate_keeps_the_other_policies() {
        let mut rules = rules(&sample(), &prod(), &LedgerState::default());
        for class in rules.classes.values_mut() {
            class.uid.privilege_escalation = true;
        }
        let met: Vec<String> = bindings(&rules).into_iter().filter(meets_a_class).map(|binding| binding.name).collect();
        assert!(met.iter().all(|name| !name.starts_with(ESCALATION)) && met.contains(&"bursar-uid-enforce".to_owned()));
    }
}
