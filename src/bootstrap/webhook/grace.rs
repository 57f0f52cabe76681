//! The policy against long grace periods.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::backstop::{self, GRACE};
use super::server_rules::{old_pod_spec, pod_spec, resource, resource_rule, variable};
use crate::contract::CLASS;
use crate::rules::server::LONGEST_GRACE;

/// Limits the grace periods that pods may have, and that deletions and evictions of pods may ask for. `longest` has the
/// limits in seconds by class; for all other classes the limit is [`LONGEST_GRACE`]. The grace period of a pod cannot
/// be changed, so updates of pods are not checked. A template is checked if the update changes it.
pub(super) fn policy(longest: &BTreeMap<String, i64>) -> Value {
    let same = |field: &str| format!("(variables.updates && variables.spec.?{field} == variables.old.?{field})");
    let period = |of: &str| format!("{of}.?terminationGracePeriodSeconds.orValue(0) <= variables.longest");
    let probes = |list: &str| {
        let probe = |probe: &str| period(&format!("c.?{probe}"));
        let each = format!("{} && {}", probe("livenessProbe"), probe("startupProbe"));
        format!("({} || variables.spec.?{list}.orValue([]).all(c, {each}))", same(list))
    };
    let ends = "request.operation == 'DELETE' || has(request.subResource)";
    let asked = |options: &str| format!("{options}.?gracePeriodSeconds.orValue(0) <= variables.longest");
    let rule = |expression: String, problem: &str, field: &str| {
        json!({
            "expression": expression,
            "messageExpression": format!("'{problem}: set {field} to ' + string(variables.longest) + ' or less'"),
            "message": format!("{problem}: set {field} to a shorter time"),
        })
    };
    let validations = [
        rule(
            format!("{ends} || {} || {}", same("terminationGracePeriodSeconds"), period("variables.spec")),
            "the pod could go on for too long after its end",
            "terminationGracePeriodSeconds",
        ),
        rule(
            format!("{ends} || ({} && {})", probes("containers"), probes("initContainers")),
            "a container could go on for too long after its end",
            "terminationGracePeriodSeconds of its probes",
        ),
        rule(
            // The API server writes the period of the pod itself into the options of a deletion that names none, so a pod
            // that is older than this policy may keep its period. Otherwise its controller could not delete it.
            format!(
                "request.operation != 'DELETE' || {} || request.options.gracePeriodSeconds <= \
                 dyn(oldObject).spec.?terminationGracePeriodSeconds.orValue(0)",
                asked("request.?options")
            ),
            "the pod could go on for too long after its deletion",
            "gracePeriodSeconds",
        ),
        rule(
            format!("!has(request.subResource) || {}", asked("dyn(object).?deleteOptions")),
            "the pod could go on for too long",
            "gracePeriodSeconds of deleteOptions",
        ),
    ];
    let of = |group: &str, resources: &[&str], operations: &[&str]| {
        let mut rule = resource_rule(group, resources);
        rule["operations"] = json!(operations);
        rule
    };
    let mut policy = backstop::policy("ValidatingAdmissionPolicy", GRACE, &[], json!({"validations": validations}));
    policy["spec"]["matchConstraints"]["resourceRules"] = json!([
        of("", &["pods"], &["CREATE", "DELETE"]),
        of("", &["pods/eviction"], &["CREATE"]),
        resource_rule("", &["replicationcontrollers"]),
        resource_rule("apps", &["deployments", "replicasets", "statefulsets", "daemonsets"]),
        resource_rule("batch", &["jobs", "cronjobs"]),
    ]);
    // The names of classes contain no quotes. The first entry gives an otherwise empty map its type.
    let limits: Vec<String> = longest.iter().map(|(class, longest)| format!(", '{class}': {longest}")).collect();
    let class = format!("namespaceObject.metadata.?labels[?'{CLASS}'].orValue('')");
    policy["spec"]["variables"] = json!([
        variable("longest", format!("{{'': 0{}}}[?{class}].orValue({LONGEST_GRACE})", limits.concat())),
        variable("resource", resource()),
        variable("updates", "request.operation == 'UPDATE'"),
        variable("spec", pod_spec("object")),
        variable("old", old_pod_spec()),
    ]);
    policy
}
