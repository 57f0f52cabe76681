//! Checks what a pod would get from its node: namespaces, ports, privileges, and requests that its kubelet sends for
//! it. `volume` checks paths of the node, by the stricter of the rules `host` and `volumes`.

use super::decision::{Decision, Finding, Rule};
use super::json::{Malformed, at, field, object, quoted, switch, text};
use super::pod::{Container, Pod};
use super::tenant::Tenant;
use super::value::{Json, Object};
use crate::rules::Mode;

/// Fields of a container that make the kubelet send requests from the node's own network, which bypasses network
/// policies.
const ASKED: [&[&str]; 5] = [
    &["livenessProbe"],
    &["readinessProbe"],
    &["startupProbe"],
    &["lifecycle", "postStart"],
    &["lifecycle", "preStop"],
];

/// Checks a pod and its containers. A value that does not differ from the old object passes.
pub(super) fn check(
    pod: &Pod<'_>,
    containers: &[Container<'_>],
    tenant: &Tenant<'_>,
    decision: &mut Decision,
) -> Result<(), Malformed> {
    let mode = tenant.rules.host;
    if mode == Mode::Off {
        return Ok(());
    }
    let mut found = |what: String, remedy: String| {
        let why = format!("{} has no rights on the node", tenant.who());
        decision.found(mode, Finding { rule: Rule::Host, what, why, remedy });
    };
    let spec = pod.spec()?;
    for key in spec.as_object().into_iter().flat_map(Object::iter).map(|(key, _)| key).filter(|key| is_of_the_host(key))
    {
        let is_on = switch(spec, key)? == Some(true);
        if is_on && pod.changed(&["spec", key]).is_some() {
            found(format!("the pod asks for {key}"), format!("remove {}spec.{key}", pod.path));
        }
    }
    if let Some(context) = pod.changed_context()?
        && is_host_process(&context)?
    {
        let path = format!("{}spec.securityContext.windowsOptions", pod.path);
        found("the pod asks for hostProcess".to_owned(), format!("remove {path}"));
    }
    for container in containers {
        let who = || container.who();
        for port in container.changed_host_ports()? {
            found(format!("{} asks for port {port} of the node", who()), "remove hostPort from its ports".to_owned());
        }
        for (path, host) in asked(container)? {
            let what = format!("{} makes its node send requests to {}", who(), quoted(host));
            found(what, format!("remove {path}.host, so that the node sends them to the pod"));
        }
        let Some(context) = container.changed_context()? else { continue };
        if switch(&context, "privileged")? == Some(true) {
            found(format!("{} asks to be privileged", who()), "remove securityContext.privileged".to_owned());
        }
        let mount = text(&context, "procMount")?;
        if !matches!(mount, "" | "Default") {
            found(
                format!("{} asks for procMount {}", who(), quoted(mount)),
                "remove securityContext.procMount".to_owned(),
            );
        }
        if is_host_process(&context)? {
            found(format!("{} asks for hostProcess", who()), "remove securityContext.windowsOptions".to_owned());
        }
    }
    Ok(())
}

/// Returns each new or changed host that a probe or hook makes the kubelet contact, with the path of its action.
fn asked<'a>(container: &Container<'a>) -> Result<Vec<(String, &'a str)>, Malformed> {
    let mut asked = Vec::new();
    for place in ASKED {
        let Some(handler) = at(container.value, place) else { continue };
        let old = container.old.and_then(|old| at(old, place));
        for how in ["httpGet", "tcpSocket"] {
            let Some(action) = field(handler, how) else { continue };
            let before = old.and_then(|old| field(old, how)).map_or(Ok(""), |old| text(old, "host"))?;
            let host = text(action, "host")?;
            if !host.is_empty() && host != before {
                asked.push((format!("{}.{how}", place.join(".")), host));
            }
        }
    }
    Ok(asked)
}

/// Whether the field shares something of the node: `hostPID`, `hostIPC`, `hostNetwork`, or a field of a later version.
/// `hostUsers: true` is the default, and a pod may always set it to false.
fn is_of_the_host(key: &str) -> bool {
    let rest = key.strip_prefix("host").unwrap_or_default();
    rest.starts_with(|first: char| first.is_ascii_uppercase()) && !matches!(rest, "Users" | "Aliases")
}

fn is_host_process(context: &Json<'_>) -> Result<bool, Malformed> {
    if object(context, "windowsOptions")?.is_none() {
        return Ok(false);
    }
    Ok(switch(&context["windowsOptions"], "hostProcess")? == Some(true))
}
