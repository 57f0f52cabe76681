//! The pod specs of a request: a pod's own, or a workload's template. Which rule looks at which part, and what may be
//! filled in. PURE: no runtime, no client, no file system, no clock.
//!
//! A new pod is looked at whole and filled in. Of a changed one, only what differs from what it was: an old pod must still
//! be able to lose its finalizer. A template is looked at so that people see the error at once, and never filled in: that
//! would fight whoever applies it again.

use serde_json::Value;

use super::decision::{Decision, Finding, Rule};
use super::json::{Malformed, at, field, list, quoted, text};
use super::tenant::Tenant;
use super::{host, image, inject, uid, volume};
use crate::contract::{LIFETIME, lifetime};

/// Lists of containers, and what their members are called.
pub(super) const CONTAINERS: [(&str, &str); 3] =
    [("containers", "container"), ("initContainers", "init container"), ("ephemeralContainers", "ephemeral container")];

/// A pod, or what pods are made from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pod<'a> {
    /// What has `metadata` and `spec`.
    pub(super) object: &'a Value,
    /// The same before the request.
    pub(super) old: Option<&'a Value>,
    /// `spec.template.` before each path of a message; empty for a pod.
    pub(super) path: &'static str,
}

/// A container of any kind.
#[derive(Debug, Clone, Copy)]
pub(super) struct Container<'a> {
    /// `containers`.
    pub(super) list: &'static str,
    pub(super) index: usize,
    /// `init container "setup"`, for messages.
    kind: &'static str,
    name: &'a str,
    pub(super) value: &'a Value,
    /// The container of that name in the same list before the request.
    pub(super) old: Option<&'a Value>,
}

impl<'a> Pod<'a> {
    pub(super) fn spec(&self) -> Result<&'a Value, Malformed> {
        field(self.object, "spec").ok_or_else(|| Malformed(format!("{}spec is missing", self.path)))
    }

    pub(super) fn is_template(&self) -> bool {
        !self.path.is_empty()
    }

    /// Whether it is a pod that there was not, and so one that can be filled in.
    pub(super) fn is_new(&self) -> bool {
        self.old.is_none() && !self.is_template()
    }

    /// The value at `keys`, if it is not what it was.
    pub(super) fn changed(&self, keys: &[&str]) -> Option<&'a Value> {
        changed(self.object, self.old, keys)
    }

    /// Whether the value at `keys` is another than it was, or is gone.
    pub(super) fn differs(&self, keys: &[&str]) -> bool {
        self.old.is_none_or(|old| at(old, keys) != at(self.object, keys))
    }

    /// All containers. A list of containers of a kind that this program does not know is malformed: nobody could say as
    /// whom they run.
    pub(super) fn containers(&self) -> Result<Vec<Container<'a>>, Malformed> {
        let spec = self.spec()?;
        let fields = spec.as_object().ok_or_else(|| Malformed(format!("{}spec is not an object", self.path)))?;
        let known = |key: &String| CONTAINERS.iter().any(|(list, _)| list == key);
        if let Some(key) = fields.keys().find(|key| key.to_ascii_lowercase().ends_with("containers") && !known(key)) {
            return Err(Malformed(format!("{}spec has {}, which this webhook does not know", self.path, quoted(key))));
        }
        let old = self.old.and_then(|old| field(old, "spec"));
        let mut containers = Vec::new();
        for (key, kind) in CONTAINERS {
            let before = old.map_or(Ok(&[][..]), |old| list(old, key))?;
            for (index, value) in list(spec, key)?.iter().enumerate() {
                let name = text(value, "name")?;
                let same_name = |old: &&Value| old.get("name").and_then(Value::as_str) == Some(name);
                let old = before.iter().find(|old| *old == value).or_else(|| before.iter().find(same_name));
                containers.push(Container { list: key, index, kind, name, value, old });
            }
        }
        Ok(containers)
    }

    /// Volumes that are new, or not what they were.
    pub(super) fn changed_volumes(&self) -> Result<Vec<&'a Value>, Malformed> {
        let volumes = list(self.spec()?, "volumes")?;
        let before = match self.old.and_then(|old| field(old, "spec")) {
            Some(old) => list(old, "volumes")?,
            None => &[],
        };
        Ok(volumes.iter().filter(|volume| !before.contains(volume)).collect())
    }
}

impl<'a> Container<'a> {
    /// `container "web"`.
    pub(super) fn who(&self) -> String {
        format!("{} {}", self.kind, quoted(self.name))
    }

    pub(super) fn changed(&self, keys: &[&str]) -> Option<&'a Value> {
        changed(self.value, self.old, keys)
    }

    /// Where it is in the pod.
    pub(super) fn of<'v>(&self, spec: &'v mut Value) -> Option<&'v mut Value> {
        spec.get_mut(self.list)?.get_mut(self.index)
    }
}

fn changed<'a>(new: &'a Value, old: Option<&Value>, keys: &[&str]) -> Option<&'a Value> {
    at(new, keys).filter(|value| old.and_then(|old| at(old, keys)) != Some(value))
}

/// Looks at all of a pod or template.
pub(super) fn check(pod: &Pod<'_>, tenant: &Tenant<'_>, decision: &mut Decision) -> Result<(), Malformed> {
    let containers = pod.containers()?;
    uid::check(pod, &containers, tenant, decision)?;
    host::check(pod, &containers, tenant, decision)?;
    image::check(pod, &containers, tenant, decision)?;
    volume::check(pod, tenant, decision)?;
    check_lifetime(pod, tenant, decision)
}

/// The pod as it should be. Of one that there was already only new ephemeral containers are filled in, for nothing else
/// of it can change.
pub(super) fn filled(pod: &Pod<'_>, tenant: &Tenant<'_>) -> Result<Value, Malformed> {
    let containers = pod.containers()?;
    let mut object = pod.object.clone();
    let metadata = pod.object.get("metadata").unwrap_or(&Value::Null);
    if let Some(spec) = object.get_mut("spec") {
        uid::fill(spec, pod, &containers, tenant);
        inject::fill(spec, metadata, pod, &containers, tenant);
    }
    Ok(object)
}

fn check_lifetime(pod: &Pod<'_>, tenant: &Tenant<'_>, decision: &mut Decision) -> Result<(), Malformed> {
    let Some(value) = pod.changed(&["metadata", "annotations", LIFETIME]) else { return Ok(()) };
    let given = value.as_str().ok_or_else(|| Malformed(format!("annotation {LIFETIME} is not a text")))?;
    if lifetime(given).is_none() {
        decision.found(
            tenant.rules.lifetime,
            Finding {
                rule: Rule::Lifetime,
                what: format!("annotation {LIFETIME} is {}", quoted(given)),
                why: "that is no time to live".to_owned(),
                cure: "write a duration like \"90m\", \"24h\" or \"7d\"".to_owned(),
            },
        );
    }
    Ok(())
}
