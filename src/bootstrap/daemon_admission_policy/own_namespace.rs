//! What the daemon writes of its webhook: the objects in namespace `bursar`, each by its name, and the configurations by
//! which the API server asks it. PURE: no runtime, no client, no file system, no clock.

use super::{by_the_daemon, double, text};
use crate::bootstrap::NAMESPACE;
use crate::bootstrap::webhook::{SECRET, WEBHOOK};
use crate::contract::{CLASS, MANAGED_BY, MANAGER};

/// Whether the request writes one of the webhook's objects. It removes none: an administrator's uninstall does.
pub(super) fn place() -> String {
    let objects = [
        ("", "configmaps", WEBHOOK),
        ("", "secrets", SECRET),
        ("", "services", WEBHOOK),
        ("apps", "deployments", WEBHOOK),
        ("policy", "poddisruptionbudgets", WEBHOOK),
    ];
    let objects: Vec<String> = objects
        .iter()
        .map(|(group, resource, name)| {
            format!("({} && variables.name == {})", super::resource(group, resource), text(name))
        })
        .collect();
    format!(
        "variables.place == {} && variables.writes && variables.sub == '' && ({})",
        text(NAMESPACE),
        objects.join(" || ")
    )
}

/// The webhook's pods run as its own service account, and mount its own files. Another account beside it, or another
/// Secret, would be theirs by a Deployment.
pub(super) fn deployment() -> String {
    let pod = "object.spec.template.spec";
    format!(
        "!({is_ours}) || ({pod}.?serviceAccountName.orValue('') == {name} && {pod}.?serviceAccount.orValue({name}) == {name} && \
         {pod}.containers.size() == 1 && {pod}.?initContainers.orValue([]).size() == 0 && \
         {pod}.containers.all(c, c.?envFrom.orValue([]).size() == 0 && c.?env.orValue([]).all(e, !has(e.valueFrom))) && \
         {pod}.?volumes.orValue([]).all(v, v.?projected.?sources.orValue([]).size() > 0 && v.projected.sources.all(s, \
         s.?secret.?name.orValue('') == {secret} || s.?configMap.?name.orValue('') == {name})))",
        is_ours = format!("variables.ownPlace && {}", super::resource("apps", "deployments")),
        name = text(WEBHOOK),
        secret = text(SECRET),
    )
}

/// A Service with addresses of others would be sent what is meant for them.
pub(super) fn service() -> String {
    format!(
        "!(variables.ownPlace && {}) || (object.spec.?type.orValue('ClusterIP') == 'ClusterIP' && \
         object.spec.?externalIPs.orValue([]).size() == 0)",
        super::resource("", "services")
    )
}

/// A webhook sees whole objects, and a mutating one changes them: one that met all of the cluster would own it. So each
/// must be one of: for what lives in tenants' namespaces; for objects that carry our labels; for what the daemon itself
/// does.
pub(super) fn hooks() -> String {
    let selects = |selector: &str, key: &str, rest: &str| {
        format!("w.?{selector}.?matchExpressions.orValue([]).exists(e, e.key == {} && {rest})", text(key))
    };
    let in_tenants = selects("namespaceSelector", CLASS, "e.operator == 'Exists'");
    let is_tenant = selects("objectSelector", CLASS, "e.operator == 'Exists'");
    let is_ours =
        selects("objectSelector", MANAGED_BY, &format!("e.operator == 'In' && e.values == [{}]", text(MANAGER)));
    let by_the_daemon =
        format!("w.?matchConditions.orValue([]).exists(c, c.expression == {})", double(&by_the_daemon()));
    let namespaced = "w.?rules.orValue([]).all(r, r.?scope.orValue('*') == 'Namespaced')";
    let mutable = "w.?rules.orValue([]).all(r, r.?apiGroups.orValue([]) == [''] && r.?resources.orValue([]).all(x, x in \
                   ['pods', 'pods/ephemeralcontainers', 'persistentvolumeclaims']))";
    format!(
        "variables.hooks.all(w, (({in_tenants}) && {namespaced}) || ({is_tenant}) || ({is_ours}) || ({by_the_daemon})) && \
         (request.resource.resource != 'mutatingwebhookconfigurations' || \
         variables.hooks.all(w, ({in_tenants}) && {namespaced} && {mutable}))"
    )
}
