//! Admission policies for adopted namespaces. They contain the rules of `server_rules`, and the rules on hosts and
//! volumes that the webhook judges in tenants' namespaces.
//!
//! Adopted namespaces carry no seal. Therefore each class has policies of its own, which match namespaces by the
//! class's selector. `init` also makes the bindings, and the daemon may change neither them nor the policies.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::backstop::{ACTIONS, API_VERSION};
use super::configurations::ROUTES;
use super::server_rules::{
    NO_RULE, allowed_storage, foreign, literal, own_host, resource_rule, resource_rules, rule, storage_class,
    validations, variable, variables, words,
};
use crate::admission::{HARMLESS_ANNOTATIONS, OWN_SOURCES, PROJECTED_SOURCES};
use crate::bootstrap::roles::{OWN_NAMESPACES, labels as labels_of_init};
use crate::contract::{CLASS, MANAGED_BY, MANAGER};
use crate::desired::server_rules::{adopting, of_adopting};
use crate::desired::volume::PERSONAL_NAMESPACE;
use crate::identity::ClusterName;
use crate::policy::{AdoptedAdmission, Policy, Requirement, Selector};
use crate::rules::{AllowedVolume, Mode, PLACEHOLDER};

const NAME: &str = "bursar-adopted";
/// CEL for the name of the namespace.
const NAMESPACE: &str = "namespaceObject.metadata.name";
const IS_CLAIM: &str = "variables.resource == 'persistentvolumeclaims' && \
    'ReadWriteMany' in object.spec.?accessModes.orValue([])";
const IS_INGRESS: &str = "variables.resource == 'ingresses'";

/// A class that adopts namespaces: the input of its policies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adopting {
    class: String,
    selector: Selector,
    admission: AdoptedAdmission,
    /// The words of the rules (see `server_rules::words`), by mode. A mode without rules has no entry.
    words: BTreeMap<Mode, BTreeMap<String, String>>,
}

impl Adopting {
    /// Returns the classes that adopt namespaces in a cluster.
    #[must_use]
    pub fn of(policy: &Policy, cluster: &ClusterName) -> Vec<Self> {
        let classes = adopting(policy, cluster).filter_map(|(class, admission)| {
            let words = ACTIONS.map(|(mode, _)| (mode, of_adopting(class, admission, mode)));
            Some(Self {
                class: class.name.clone(),
                selector: class.adopts()?.selector.clone(),
                admission: admission.clone(),
                words: words.into_iter().filter(|(_, words)| !words.is_empty()).collect(),
            })
        });
        classes.collect()
    }

    /// Returns an example class with every kind of rule. It does not depend on the configuration.
    pub(in crate::bootstrap) fn example() -> Self {
        let admission = AdoptedAdmission {
            allowed_volumes: vec![
                AllowedVolume::Nfs { server: String::new(), path: "/".to_owned() },
                AllowedVolume::HostPath(format!("/{PLACEHOLDER}/")),
            ],
            ..AdoptedAdmission::default()
        };
        let selector = Selector::parse("example").expect("a key is a selector");
        let words = BTreeMap::from([(Mode::Enforce, BTreeMap::new())]);
        Self { class: "example".to_owned(), selector, admission, words }
    }

    /// Returns the names of all policies and bindings that the class can have.
    pub fn names(&self) -> impl Iterator<Item = String> {
        ACTIONS.iter().map(|(mode, _)| name(&self.class, *mode))
    }
}

fn name(class: &str, mode: Mode) -> String {
    format!("{NAME}-{class}-{}", mode.as_str())
}

/// Returns the policies and their bindings, each binding after its policy.
#[must_use]
pub fn manifests(classes: &[Adopting]) -> Vec<Value> {
    let manifests = classes.iter().flat_map(|class| {
        let modes = ACTIONS.iter().filter_map(move |(mode, action)| Some((mode, action, class.words.get(mode)?)));
        modes.flat_map(move |(mode, action, words)| {
            [policy(class, *mode, words), binding(&name(&class.class, *mode), action)]
        })
    });
    manifests.collect()
}

fn binding(name: &str, action: &str) -> Value {
    json!({
        "apiVersion": API_VERSION,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name, "labels": labels_of_init()},
        "spec": {"policyName": name, "validationActions": [action]},
    })
}

fn policy(class: &Adopting, mode: Mode, words: &BTreeMap<String, String>) -> Value {
    let Adopting { class: class_name, selector, admission, words: _ } = class;
    let fields = &admission.server.host_fields;
    let [_, (gateway, routes)] = ROUTES;
    let rules: Vec<Value> = resource_rules(fields).into_iter().chain([resource_rule(gateway, routes)]).collect();
    let mut variables = variables(&format!("'{class_name}'"), literal(words), "{'': ''}".to_owned());
    variables.extend(own_variables(admission));
    let validations = [own_validations(admission), validations(fields)].concat();
    json!({
        "apiVersion": API_VERSION,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name(class_name, mode), "labels": labels_of_init()},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "matchPolicy": "Equivalent", "namespaceSelector": selected(selector), "objectSelector": {},
                "resourceRules": rules,
            },
            "matchConditions": [{"name": "adoptable", "expression": adoptable()}],
            "variables": variables,
            "validations": validations,
        },
    })
}

/// Returns the class's selector, narrowed so that it matches no namespaces of tenants or of Bursar.
fn selected(selector: &Selector) -> Value {
    let not_ours =
        [Requirement::Absent(CLASS.to_owned()), Requirement::NotIn(MANAGED_BY.to_owned(), vec![MANAGER.to_owned()])];
    let requirements = selector.requirements().iter().chain(&not_ours);
    json!({"matchExpressions": requirements.map(Requirement::expression).collect::<Vec<_>>()})
}

/// CEL that is false for namespaces that are never adopted, whatever labels they have.
fn adoptable() -> String {
    let own: Vec<&str> = ["default", "system"].into_iter().chain(OWN_NAMESPACES).chain([PERSONAL_NAMESPACE]).collect();
    format!("!(request.namespace.startsWith('kube-') || request.namespace in ['{}'])", own.join("', '"))
}

fn own_variables(admission: &AdoptedAdmission) -> Vec<Value> {
    let [_, (gateway, routes)] = ROUTES;
    let outside = foreign("?volumes", "v", &allowed_volume(&admission.allowed_volumes));
    vec![
        variable("readWriteMany", words("read-write-many")),
        variable("volumes", words("volumes")),
        variable("routes", words("routes")),
        variable("outside", outside),
        variable(
            "isRoute",
            format!(
                "request.resource.group == '{gateway}' && request.resource.resource in ['{}']",
                routes.join("', '")
            ),
        ),
        variable("foreign", annotations(&admission.hosts.annotations)),
    ]
}

fn own_validations(admission: &AdoptedAdmission) -> Vec<Value> {
    let classes: Vec<&str> =
        admission.read_write_many.allow.iter().filter_map(|class| class.strip_prefix("class ")).collect();
    let storage = if let [one] = &*classes {
        format!("set spec.storageClassName to \"{one}\"")
    } else {
        format!("set spec.storageClassName to one of \"{}\"", classes.join("\", \""))
    };
    let mut all = vec![
        rule(
            ("readWriteMany", IS_CLAIM),
            &allowed_storage("readWriteMany"),
            &format!("'is ReadWriteMany and would have storage class \"' + {} + '\"'", storage_class("object")),
            (&storage, "claims.read_write_many"),
        ),
        rule(
            ("volumes", "variables.outside.size() > 0"),
            "false",
            "'would mount volume \"' + variables.outside[0].name + '\", which is from outside the namespace'",
            ("use a PersistentVolumeClaim", "volumes"),
        ),
        rule(
            ("routes", &format!("{IS_INGRESS} || variables.isRoute")),
            "variables.foreign.size() == 0",
            "'has annotation ' + variables.foreign[0]",
            ("remove it", "hosts.annotations"),
        ),
    ];
    all.extend(hosts());
    all
}

/// CEL for the keys of annotations that are neither harmless nor allowed. Annotations that an update does not change
/// are left out.
fn annotations(allowed: &[String]) -> String {
    let new = "object.metadata.?annotations.orValue({})";
    let covered = allowed.iter().map(|key| match key.strip_suffix('*') {
        Some(prefix) => format!(" || k.startsWith('{prefix}')"),
        None => format!(" || k == '{key}'"),
    });
    format!(
        "variables.updates && object.metadata.?annotations == oldObject.metadata.?annotations ? [] : \
         dyn({new}).filter(k, !(k in ['{}'] || (variables.updates && \
         k in oldObject.metadata.?annotations.orValue({{}}) && oldObject.metadata.annotations[k] == {new}[k]){}))",
        HARMLESS_ANNOTATIONS.join("', '"),
        covered.collect::<String>(),
    )
}

/// Returns the validations of hosts in ingresses and routes, with the same verdicts as `admission::ingress`.
fn hosts() -> Vec<Value> {
    let of_routes = |object: &str| format!("{object}.?spec.?hostnames.orValue([])");
    let of_rules = |object: &str| format!("{object}.spec.?rules.orValue([]).map(r, string(r.?host.orValue('')))");
    let tls = |object: &str| format!("{object}.spec.?tls.orValue([])");
    // A part that an update does not change is not searched, because the API server cancels a search that takes too
    // long.
    let same = |field: &str| format!("(variables.updates && object.spec.?{field} == oldObject.spec.?{field})");
    let is_default = |object: &str| format!("{object}.spec.?defaultBackend.hasValue()");
    let own = |host: &str, old: &str| format!("({} || (variables.updates && {host} in {old}))", own_host(host));
    let remedy =
        "(variables.hosts.size() == 0 ? 'ask an administrator for a host' : 'use ' + variables.hosts.join(' or '))";
    let hosts = |applies: &str, holds: &str, problem: &str| {
        json!({
            "expression": format!("!({applies}) || '{NO_RULE}' in variables.routes || ({holds})"),
            "messageExpression": format!("variables.object + ' {problem}: ' + {remedy}"),
            "message": format!("the object {problem}: use a host of your own"),
        })
    };
    let (new_routes, old_routes) = (of_routes("object"), of_routes("oldObject"));
    vec![
        hosts(
            IS_INGRESS,
            &format!("!{} || (variables.updates && {})", is_default("object"), is_default("oldObject")),
            "has spec.defaultBackend, which is for every host",
        ),
        hosts(
            IS_INGRESS,
            &format!("{} || {}.all(h, {})", same("rules"), of_rules("object"), own("h", &of_rules("oldObject"))),
            "has a rule with a host that is not yours, or without one",
        ),
        hosts(
            IS_INGRESS,
            &format!(
                "{} || {}.all(t, (t.?hosts.orValue([]).size() > 0 && t.hosts.all(h, {})) || \
                 (variables.updates && {}.exists(o, o.?hosts.orValue([]) == t.?hosts.orValue([]))))",
                same("tls"),
                tls("object"),
                own_host("h"),
                tls("oldObject")
            ),
            "has a TLS entry with a host that is not yours, or without one",
        ),
        hosts(
            "variables.isRoute",
            &format!(
                "(variables.updates && {new_routes} == {old_routes}) || ({new_routes}.size() > 0 && {new_routes}.all(h, {}))",
                own("h", &old_routes)
            ),
            "has a hostname that is not yours, or none",
        ),
    ]
}

/// CEL that is true if volume `v` comes from the namespace or is allowed, with the same verdicts as
/// `admission::volume`.
fn allowed_volume(allowed: &[AllowedVolume]) -> String {
    let list = |texts: &mut dyn Iterator<Item = &str>| format!("['{}']", texts.collect::<Vec<_>>().join("', '"));
    let of = |which: fn(&AllowedVolume) -> Option<&str>| allowed.iter().filter_map(which);
    let drivers = list(&mut of(|volume| match volume {
        AllowedVolume::Csi(driver) => Some(driver),
        _ => None,
    }));
    let sources: Vec<&str> = of(|volume| match volume {
        AllowedVolume::Source(source) => Some(source),
        _ => None,
    })
    .collect();
    // A token without an audience is for the API server, like the token that every pod has.
    let audiences = list(&mut std::iter::once("").chain(of(|volume| match volume {
        AllowedVolume::Token(audience) => Some(audience),
        _ => None,
    })));
    let own = list(
        &mut OWN_SOURCES.into_iter().filter(|source| *source != "projected").chain(["name"]).chain(sources.clone()),
    );
    let parts = list(&mut PROJECTED_SOURCES.into_iter().filter(|part| *part != "serviceAccountToken").chain(sources));
    let exports = allowed.iter().filter_map(|volume| match volume {
        AllowedVolume::Nfs { server, path } => {
            Some(format!("(v.nfs.server == '{server}' && {})", covers(path, path.ends_with('/'))))
        }
        _ => None,
    });
    let folders = allowed.iter().filter_map(|volume| match volume {
        // The owner of a folder may put a link into it, so nothing beneath a tenant's folder is allowed.
        AllowedVolume::HostPath(path) => Some(covers(path, path.ends_with('/') && !path.contains(PLACEHOLDER))),
        _ => None,
    });
    let projected = format!(
        "v.projected.?sources.orValue([]).all(s, dyn(s).all(f, s[f] == null || f in {parts} || \
         (f == 'serviceAccountToken' && s.serviceAccountToken.?audience.orValue('') in {audiences})))"
    );
    format!(
        "dyn(v).all(k, v[k] == null || k in {own} || (k == 'projected' && {projected}) || \
         (k == 'nfs' && {}) || (k == 'hostPath' && {}) || (k == 'csi' && v.csi.driver in {drivers}))",
        at_path("v.nfs.path", &exports.collect::<Vec<_>>()),
        at_path("v.hostPath.path", &folders.collect::<Vec<_>>()),
    )
}

/// CEL that is true if one of the conditions `any` is true for `p`, the path without a slash at its end. A path that
/// can be read in two ways (with `//`, `.` or `..`) is never allowed.
fn at_path(path: &str, any: &[String]) -> String {
    if any.is_empty() {
        return "false".to_owned();
    }
    format!(
        "[{path}.size() > 1 && {path}.endsWith('/') ? {path}.substring(0, {path}.size() - 1) : {path}].exists(p, \
         p.matches('^(/|(/[^/]+)+)$') && !p.split('/').exists(part, part in ['.', '..']) && ({}))",
        any.join(" || ")
    )
}

/// CEL that is true if path `p` is `allowed` or, if `beneath` is set, lies beneath it.
fn covers(allowed: &str, beneath: bool) -> String {
    let folder = allowed.strip_suffix('/').unwrap_or(allowed).split(PLACEHOLDER).map(|text| format!("'{text}'"));
    let folder = folder.collect::<Vec<_>>().join(&format!(" + {NAMESPACE} + "));
    if beneath { format!("(p == {folder} || p.startsWith({folder} + '/'))") } else { format!("p == {folder}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::testing::{policy as sample, prod, profile};
    use crate::policy::{Class, From};
    use crate::rules::server::ServerRule;

    fn given(change: impl FnOnce(&mut AdoptedAdmission)) -> Vec<Adopting> {
        let mut policy = sample();
        let mut class: Class = profile();
        let From::Adopted(adopts) = &mut class.from else { panic!("the class adopts namespaces") };
        change(&mut adopts.admission);
        policy.classes.insert(class.name.clone(), class);
        Adopting::of(&policy, &prod())
    }

    fn names(classes: &[Adopting]) -> Vec<String> {
        let name = |manifest: &Value| manifest["metadata"]["name"].as_str().map(str::to_owned);
        manifests(classes).iter().filter_map(name).collect()
    }

    #[test]
    fn a_class_without_rules_has_no_policies_and_each_mode_has_one() {
        let without = given(|_| ());
        assert_eq!((without.len(), names(&without).len()), (1, 0));
        let hosts = |admission: &mut AdoptedAdmission| {
            admission.hosts.mode = Mode::Enforce;
            admission.volumes = Mode::Audit;
            // The words of other rules need no policy of their own.
            admission.server.host_annotations = ["example.org/serves".to_owned()].into();
        };
        let each = |mode: &str| [format!("bursar-adopted-profile-{mode}"), format!("bursar-adopted-profile-{mode}")];
        assert_eq!(names(&given(hosts)), [each("enforce"), each("audit")].concat());
        let claims = given(|admission| {
            admission.read_write_many = ServerRule { mode: Some(Mode::Warn), ..ServerRule::default() };
        });
        assert_eq!(names(&claims), each("warn"));
        assert_eq!(
            manifests(&claims)[1]["spec"],
            json!({"policyName": each("warn")[0], "validationActions": ["Warn"]})
        );
    }

    #[test]
    fn the_selector_matches_no_namespace_of_a_tenant_or_of_bursar() {
        let selector = Selector::parse("a=b,c notin (d),e,!f").expect("the text is a selector");
        assert_eq!(
            selected(&selector),
            json!({"matchExpressions": [
                {"key": "a", "operator": "In", "values": ["b"]},
                {"key": "c", "operator": "NotIn", "values": ["d"]},
                {"key": "e", "operator": "Exists"},
                {"key": "f", "operator": "DoesNotExist"},
                {"key": "bursar.dev/class", "operator": "DoesNotExist"},
                {"key": "app.kubernetes.io/managed-by", "operator": "NotIn", "values": ["bursar"]},
            ]})
        );
        let never = adoptable();
        assert!(never.contains("startsWith('kube-')") && never.contains("'bursar-selftest'"), "{never}");
    }
}
