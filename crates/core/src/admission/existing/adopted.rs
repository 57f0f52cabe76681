//! Judges existing objects in adopted namespaces, with the same verdicts as the policies of the API server.

use serde_json::Value;

use super::super::ingress::{RoutingKind, foreign_annotations, foreign_hosts};
use super::super::json::{Malformed, list as items};
use super::super::value::Json;
use super::super::volume::{Allowed, from_outside};
use super::{Broken, JudgedKind, NamespaceRules, breaches, by_shared_rules, is_over, list, pod_spec, storage_class};
use crate::rules::server::ServerRule;
use crate::rules::{AllowedVolume, Mode, PLACEHOLDER};

/// The rules for the objects of one adopted namespace. The API server evaluates all of them.
#[derive(Debug, Clone, Copy)]
pub struct AdoptedRules<'r> {
    /// The rules that tenants' namespaces have too.
    pub shared: NamespaceRules<'r>,
    pub namespace: &'r str,
    /// The mode of the rule `volumes`.
    pub volumes: Mode,
    pub allowed_volumes: &'r [AllowedVolume],
    pub read_write_many: &'r ServerRule,
}

/// Judges an object in an adopted namespace.
#[must_use]
pub fn by_adopting(rules: &AdoptedRules<'_>, kind: JudgedKind<'_>, object: &Value) -> Vec<Broken> {
    if is_over(kind, object) {
        return Vec::new();
    }
    let AdoptedRules { shared, namespace, volumes, allowed_volumes, read_write_many } = *rules;
    let mut broken = by_shared_rules(&shared, kind, object);
    let mut judge = |rule: &'static str, mode: Mode, problems: Result<Vec<String>, Malformed>| {
        let problems = problems.unwrap_or_else(|malformed| vec![malformed.finding().to_string()]);
        broken.extend(breaches(rule, mode, problems));
    };
    if let Some(routing) = RoutingKind::of(kind.group, kind.resource) {
        let (object, mode) = (Json::from(object), shared.hosts.mode);
        judge("hosts", mode, foreign_hosts(routing, &object, shared.own_hosts));
        let foreign = foreign_annotations(&object, &shared.hosts.annotations);
        let problems = |found: Vec<(&str, &Json<'_>)>| -> Vec<String> {
            found.into_iter().map(|(key, _)| format!("annotation {key:?} is not allowed")).collect()
        };
        judge("annotations", mode, foreign.map(problems));
    }
    if let Some(spec) = pod_spec(kind, object) {
        let fill = |text: &str| Some(text.replace(PLACEHOLDER, namespace));
        judge("volumes", volumes, outside(spec, Allowed { volumes: allowed_volumes, fill: &fill }));
    }
    let is_claim = (kind.group, kind.resource) == ("", "persistentvolumeclaims");
    if is_claim && list(&object["spec"]["accessModes"]).any(|mode| mode == "ReadWriteMany") {
        let class = storage_class(object);
        let wrong = !read_write_many.allow.contains(&format!("class {class}"));
        let problem = wrong.then(|| format!("it is ReadWriteMany and has storage class {class:?}"));
        let mode = read_write_many.mode.unwrap_or(shared.unchosen);
        judge("claims.read_write_many", mode, Ok(problem.into_iter().collect()));
    }
    broken
}

/// Returns the volumes of a pod that come from outside the namespace and are not allowed.
fn outside(spec: &Value, allowed: Allowed<'_>) -> Result<Vec<String>, Malformed> {
    let spec = Json::from(spec);
    let mut found = Vec::new();
    for volume in items(&spec, "volumes")? {
        found.extend(from_outside(volume, allowed)?.into_iter().map(|(_, part)| part.what));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::super::{kind, own_hosts};
    use super::*;
    use crate::rules::HostRules;
    use crate::rules::server::ServerRules;

    #[test]
    fn in_adopted_namespaces_hosts_volumes_and_claims_are_judged() {
        let (server, fields) = (ServerRules::default(), BTreeSet::new());
        let read_write_many = ServerRule { mode: Some(Mode::Audit), allow: ["class nfs".to_owned()].into() };
        let hosts = HostRules {
            mode: Mode::Warn,
            allow: vec!["{name}.lab.example.org".to_owned()],
            annotations: vec!["example.org/*".to_owned()],
        };
        let own_hosts = own_hosts(&hosts.allow, "{name}", "lab-ann");
        let allowed = [AllowedVolume::Nfs { server: "nfs".to_owned(), path: format!("/srv/{PLACEHOLDER}/") }];
        let of = |kind: JudgedKind<'_>, object: Value| {
            let shared = NamespaceRules {
                server: &server,
                unchosen: Mode::Off,
                hosts: &hosts,
                own_hosts: &own_hosts,
                fields: &fields,
            };
            let rules = AdoptedRules {
                shared,
                namespace: "lab-ann",
                volumes: Mode::Enforce,
                allowed_volumes: &allowed,
                read_write_many: &read_write_many,
            };
            let broken = by_adopting(&rules, kind, &object).into_iter();
            broken.map(|broken| (broken.rule, broken.mode)).collect::<Vec<_>>()
        };
        let (ingresses, claims) = (kind("networking.k8s.io", "ingresses"), kind("", "persistentvolumeclaims"));
        let ingress = |host: &str, key: &str| json!({"metadata": {"annotations": {key: ""}}, "spec": {"rules": [{"host": host}]}});
        let own = "lab-ann.lab.example.org";
        assert_eq!(of(ingresses, ingress(own, "example.org/x")), []);
        assert_eq!(of(ingresses, ingress("bob.lab.example.org", "example.org/x")), [("hosts", Mode::Warn)]);
        assert_eq!(of(ingresses, ingress(own, "evil.example.org/x")), [("annotations", Mode::Warn)]);
        assert_eq!(of(kind("gateway.networking.k8s.io", "tlsroutes"), json!({"spec": {}})), [("hosts", Mode::Warn)]);
        for (path, expected) in [("/srv/lab-ann/x", &[][..]), ("/srv/lab-bob", &[("volumes", Mode::Enforce)])] {
            let spec = json!({"volumes": [{"name": "data", "nfs": {"server": "nfs", "path": path}}]});
            assert_eq!(of(kind("", "pods"), json!({"spec": spec})), expected, "{path}");
            assert_eq!(
                of(kind("apps", "deployments"), json!({"spec": {"template": {"spec": spec}}})),
                expected,
                "{path}"
            );
        }
        let claim = |mode: &str, class: &str| json!({"spec": {"accessModes": [mode], "storageClassName": class}});
        assert_eq!(of(claims, claim("ReadWriteMany", "gold")), [("claims.read_write_many", Mode::Audit)]);
        assert_eq!(of(claims, claim("ReadWriteMany", "nfs")), []);
        assert_eq!(of(claims, claim("ReadWriteOnce", "gold")), []);
        let grace = json!({"terminationGracePeriodSeconds": 4000});
        assert_eq!(of(kind("", "pods"), json!({"spec": grace})), [], "policy bursar-grace is for tenants");
    }
}
