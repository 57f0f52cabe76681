//! Adds the tenant's claims, `HOME` and a node selector to pods.
//!
//! This is a convenience, so a pod's own settings stay: a mount at the same path, `HOME`, a node selector. The label
//! [`INJECT`] of a pod turns the injection off, or extends it to init and ephemeral containers.

use super::json::{at, entries, entry, field, list, set_absent};
use super::pod::{Container, Pod};
use super::tenant::Tenant;
use super::value::Json;
use crate::contract::INJECT;
use crate::rules::{Inject, Mode};

/// The longest name of a volume (RFC 1123 label).
const NAME_MAX: usize = 63;

/// Adds the class's mounts to a new pod, or to new ephemeral containers of an existing one.
pub(super) fn fill<'a>(spec: &mut Json<'a>, pod: &Pod<'a>, containers: &[Container<'a>], tenant: &Tenant<'a>) {
    let rules = &tenant.rules.volumes;
    let asked = at(pod.object, &["metadata", "labels", INJECT]).and_then(Json::as_str).and_then(Inject::of);
    let wants = |container: &&Container<'_>| match asked.unwrap_or(rules.inject) {
        Inject::None => false,
        Inject::Containers => container.list == "containers",
        Inject::All => true,
    };
    let is_open = |container: &&Container<'_>| {
        pod.is_new() || (container.old.is_none() && container.list == "ephemeralContainers")
    };
    let targets: Vec<&Container<'_>> = containers.iter().filter(wants).filter(is_open).collect();
    if rules.mode != Mode::Enforce || rules.mounts.is_empty() || targets.is_empty() {
        return;
    }
    let mut is_given = false;
    for mount in &rules.mounts {
        let Some(path) = tenant.fill(&mount.path) else { continue };
        let open: Vec<&&Container<'_>> =
            targets.iter().filter(|container| !mounts_at(container.value, &path)).collect();
        is_given |= open.len() < targets.len();
        if open.is_empty() {
            continue;
        }
        let Some(volume) = volume(spec, pod, &mount.claim) else { continue };
        for container in open {
            if let Some(mounts) = container.of(spec).and_then(|container| entries(container, "volumeMounts")) {
                mounts.push(Json::object([("name", volume.clone().into()), ("mountPath", path.clone().into())]));
                is_given = true;
            }
        }
    }
    if !is_given {
        return;
    }
    if let Some(home) = rules.home.as_deref().and_then(|home| tenant.fill(home)) {
        for container in &targets {
            if let Some(container) = container.of(spec) {
                set_home(container, home.clone());
            }
        }
    }
    if pod.is_new()
        && !rules.node_selector.is_empty()
        && let Some(selector) = entry(spec, "nodeSelector")
    {
        for (key, value) in &rules.node_selector {
            set_absent(selector, key, value.as_str());
        }
    }
}

/// Returns the name of the pod's volume for `claim`. If the pod is new, adds the volume; returns `None` if the volume
/// cannot be added or its name is taken.
fn volume<'a>(spec: &mut Json<'a>, pod: &Pod<'_>, claim: &'a str) -> Option<String> {
    let volumes = list(spec, "volumes").ok()?;
    let of_claim = |volume: &&Json<'_>| {
        let source = field(volume, "persistentVolumeClaim");
        source.is_some_and(|source| {
            source["claimName"].as_str() == Some(claim) && source["readOnly"].as_bool() != Some(true)
        })
    };
    if let Some(volume) = volumes.iter().find(of_claim) {
        return volume["name"].as_str().map(str::to_owned);
    }
    let mut name = format!("bursar-{claim}");
    name.truncate(NAME_MAX);
    let name = name.trim_end_matches('-').to_owned();
    if !pod.is_new() || volumes.iter().any(|volume| volume["name"].as_str() == Some(&name)) {
        return None;
    }
    let source = Json::object([("claimName", claim.into())]);
    let volume = Json::object([("name", name.clone().into()), ("persistentVolumeClaim", source)]);
    entries(spec, "volumes")?.push(volume);
    Some(name)
}

fn mounts_at(container: &Json<'_>, path: &str) -> bool {
    let same = |own: &str| own.trim_end_matches('/') == path.trim_end_matches('/');
    let mounts = container.get("volumeMounts").and_then(Json::as_list).into_iter().flatten();
    mounts.filter_map(|mount| mount["mountPath"].as_str()).any(same)
}

fn set_home(container: &mut Json<'_>, home: String) {
    if let Some(variables) = entries(container, "env")
        && !variables.iter().any(|variable| variable["name"].as_str() == Some("HOME"))
    {
        variables.push(Json::object([("name", "HOME".into()), ("value", home.into())]));
    }
}
