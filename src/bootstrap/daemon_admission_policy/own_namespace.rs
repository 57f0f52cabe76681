//! The part of the daemon admission policy for the webhook: the objects in namespace `bursar`, each by its name, and
//! the webhook configurations.

use serde_json::{Value, json};

use super::{literal, text};
use crate::bootstrap::NAMESPACE;
use crate::bootstrap::webhook::configurations::{Hooks, NOT_EXEMPT, OBJECTS};
use crate::bootstrap::webhook::manifests::{GRACE, requests};
use crate::bootstrap::webhook::{APPROVALS, REPLICAS, Reached, SECRET, SURGE, WEBHOOK, managed_objects};

/// The condition that the request writes one of the webhook's objects. The daemon may delete only the network policy,
/// because a webhook without it works as if `api_server_cidrs` were not set. The other objects are deleted when an
/// administrator uninstalls the webhook.
pub(super) fn place() -> String {
    let objects = [
        ("", "configmaps", WEBHOOK),
        ("", "secrets", SECRET),
        ("", "services", WEBHOOK),
        ("apps", "deployments", WEBHOOK),
        ("policy", "poddisruptionbudgets", WEBHOOK),
        ("networking.k8s.io", "networkpolicies", WEBHOOK),
    ];
    let objects: Vec<String> = objects
        .iter()
        .map(|(group, resource, name)| {
            format!("({} && variables.name == {})", super::resource(group, resource), text(name))
        })
        .collect();
    format!(
        "variables.place == {} && variables.sub == '' && ((variables.writes && ({})) || (variables.deletes && {}))",
        text(NAMESPACE),
        objects.join(" || "),
        objects[objects.len() - 1]
    )
}

/// The webhook's pods must run as the webhook's service account and mount only its own files. Otherwise a Deployment
/// could give them another service account or another Secret. Their priority is that of system pods, so many of them, or
/// large ones, would evict the pods of everybody else. Pods that terminate do not count as replicas, so their grace
/// period is limited.
pub(super) fn deployment() -> String {
    let pod = "object.spec.template.spec";
    format!(
        "!(variables.ownPlace && {deployments}) || (object.spec.?replicas.orValue(1) <= {replicas} && \
         object.spec.?strategy.?rollingUpdate.?maxSurge.orValue({surge}) == {surge} && \
         {pod}.?terminationGracePeriodSeconds.orValue({GRACE}) <= {GRACE} && \
         {pod}.?resources.orValue({{}}).size() == 0 && {pod}.containers.all(c, \
         c.?resources.?requests.orValue({{}}) == {requests} && \
         c.?resources.?limits.orValue({{}}).all(k, k in ['cpu', 'memory', 'ephemeral-storage']) && \
         [c.?livenessProbe, c.?startupProbe].all(p, p.?terminationGracePeriodSeconds.orValue({GRACE}) <= {GRACE})) && \
         {pod}.?serviceAccountName.orValue('') == {name} && {pod}.?serviceAccount.orValue({name}) == {name} && \
         {pod}.containers.size() == 1 && {pod}.?initContainers.orValue([]).size() == 0 && \
         {pod}.containers.all(c, c.?envFrom.orValue([]).size() == 0 && c.?env.orValue([]).all(e, !has(e.valueFrom))) && \
         {pod}.?volumes.orValue([]).all(v, v.?projected.?sources.orValue([]).size() > 0 && v.projected.sources.all(s, \
         s.?secret.?name.orValue('') == {secret} || s.?configMap.?name.orValue('') == {name})))",
        deployments = super::resource("apps", "deployments"),
        replicas = REPLICAS,
        surge = SURGE,
        requests = literal(&requests()),
        name = text(WEBHOOK),
        secret = text(SECRET),
    )
}

/// A Service with foreign addresses would receive the traffic for those addresses.
pub(super) fn service() -> String {
    format!(
        "!(variables.ownPlace && {}) || (object.spec.?type.orValue('ClusterIP') == 'ClusterIP' && \
         object.spec.?externalIPs.orValue([]).size() == 0)",
        super::resource("", "services")
    )
}

/// A webhook sees whole objects, and a mutating one can change them. A configuration that matches too much would
/// control the cluster; one that matches less than Bursar's, or fails open, would enforce nothing. Therefore each
/// configuration must be exactly the one that `bursar webhook install` writes. Only the webhook's address and the
/// exempt requests may differ.
pub(super) fn hooks() -> String {
    let sample = Hooks {
        reached: &Reached::Service,
        authorities: "",
        exempt: &[],
        objects: &managed_objects(),
        annotations: json!({}),
    };
    let wanted: Vec<String> = sample
        .configurations()
        .iter()
        .map(|configuration| {
            let resource = if configuration["kind"] == "MutatingWebhookConfiguration" {
                "mutatingwebhookconfigurations"
            } else {
                "validatingwebhookconfigurations"
            };
            let hooks = configuration["webhooks"].as_array().map_or(&[][..], Vec::as_slice);
            let each: Vec<String> = hooks.iter().enumerate().map(|(at, hook)| is(hook, at)).collect();
            let name = configuration["metadata"]["name"].as_str().unwrap_or_default();
            format!(
                "(request.resource.resource == '{resource}' && variables.name == {} && variables.hooks.size() == {} && {})",
                text(name),
                hooks.len(),
                each.join(" && ")
            )
        })
        .collect();
    debug_assert!(wanted.len() == 3 && wanted[2].contains(APPROVALS), "mutating, validating, approvals");
    format!("!variables.isHooks || !variables.writes || {}", wanted.join(" || "))
}

fn is(hook: &Value, at: usize) -> String {
    let stored = format!("variables.hooks[{at}]");
    let mut same: Vec<String> = ["name", "failurePolicy", "matchPolicy", "namespaceSelector", "objectSelector"]
        .iter()
        .map(|field| format!("{stored}.{field} == {}", literal(&hook[*field])))
        .collect();
    let conditions = hook["matchConditions"].as_array().map_or(&[][..], Vec::as_slice);
    same.push(format!("{stored}.?matchConditions.orValue([]).size() == {}", conditions.len()));
    for (at, condition) in conditions.iter().enumerate() {
        let whole = condition["name"] != NOT_EXEMPT;
        let field = if whole { "expression" } else { "name" };
        same.push(format!("{stored}.matchConditions[{at}].{field} == {}", literal(&condition[field])));
    }
    if hook["name"] == format!("{OBJECTS}.bursar.dev") {
        // The stored configuration also has rules for the kinds of site manifests, which are not known here.
        for rule in hook["rules"].as_array().into_iter().flatten() {
            same.push(format!("{stored}.rules.exists(r, r == {})", literal(rule)));
        }
    } else {
        same.push(format!("{stored}.rules == {}", literal(&hook["rules"])));
    }
    same.join(" && ")
}
