//! The pod spec of a request, from a pod or from a workload's template. Decides which rule checks which part, and what
//! is filled in.
//!
//! A new pod is checked as a whole and filled in. In a changed pod, only the differences are checked, so that the
//! finalizer of an old pod can still be removed. A template is checked too, so that people see an error at once when
//! they apply the template. A template is never filled in, because the added fields would conflict with the tool that
//! applies the template again.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use humantime::format_duration;

use super::decision::{Decision, Finding, PatchOperation, Rule, difference};
use super::json::{Malformed, at, entry, field, list, number, object, quoted, set_absent, text};
use super::tenant::Tenant;
use super::value::Json;
use super::{host, image, inject, uid, volume};
use crate::contract::{LIFETIME, lifetime};
use crate::rules::Mode;

/// The lists of containers, and the word for one of their items.
pub(super) const CONTAINERS: [(&str, &str); 3] =
    [("containers", "container"), ("initContainers", "init container"), ("ephemeralContainers", "ephemeral container")];

/// The most containers in one pod. No node runs a pod with more, and filling in a container takes many times the memory
/// of its text.
const MOST_CONTAINERS: usize = 1000;

/// A pod, or the template of pods.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pod<'a> {
    /// The object that has `metadata` and `spec`.
    pub(super) object: &'a Json<'a>,
    /// The object before the request.
    pub(super) old: Option<&'a Json<'a>>,
    /// The text before each path in messages: empty for a pod, `spec.template.` for a template.
    pub(super) path: &'static str,
}

/// A container from any of the lists of [`CONTAINERS`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Container<'a> {
    /// The key of the list, such as `containers`.
    pub(super) list: &'static str,
    pub(super) index: usize,
    /// The word for messages, such as `init container`.
    kind: &'static str,
    name: &'a str,
    pub(super) value: &'a Json<'a>,
    /// The container with this name in the same list before the request.
    pub(super) old: Option<&'a Json<'a>>,
}

impl<'a> Pod<'a> {
    pub(super) fn spec(&self) -> Result<&'a Json<'a>, Malformed> {
        field(self.object, "spec").ok_or_else(|| Malformed(format!("{}spec is missing", self.path)))
    }

    pub(super) fn is_template(&self) -> bool {
        !self.path.is_empty()
    }

    /// Whether the pod is being created, so that it can be filled in.
    pub(super) fn is_new(&self) -> bool {
        self.old.is_none() && !self.is_template()
    }

    /// Returns the value at `keys` if it differs from the old object.
    pub(super) fn changed(&self, keys: &[&str]) -> Option<&'a Json<'a>> {
        changed(self.object, self.old, keys)
    }

    /// Returns the fields of the pod's own security context that differ from the old object.
    pub(super) fn changed_context(&self) -> Result<Option<Cow<'a, Json<'a>>>, Malformed> {
        changed_context(self.spec()?, self.old.and_then(|old| field(old, "spec")))
    }

    /// Whether the value at `keys` was changed or removed. In a new object, every value counts as changed.
    pub(super) fn differs(&self, keys: &[&str]) -> bool {
        self.old.is_none_or(|old| at(old, keys) != at(self.object, keys))
    }

    /// Returns all containers. If the spec has a list of containers of an unknown kind, returns an error, because such
    /// containers would pass unchecked.
    pub(super) fn containers(&self) -> Result<Vec<Container<'a>>, Malformed> {
        let spec = self.spec()?;
        let fields = spec.as_object().ok_or_else(|| Malformed(format!("{}spec is not an object", self.path)))?;
        let known = |key: &str| CONTAINERS.iter().any(|(list, _)| *list == key);
        if let Some(key) = fields.iter().map(|(key, _)| key).find(|key| is_containers(key) && !known(key)) {
            return Err(Malformed(format!("{}spec has {}, which this webhook does not know", self.path, quoted(key))));
        }
        let old = self.old.and_then(|old| field(old, "spec"));
        let mut containers = Vec::new();
        for (key, kind) in CONTAINERS {
            let before = old.map_or(Ok(BTreeMap::new()), |old| by_name(old, key))?;
            for (index, value) in list(spec, key)?.iter().enumerate() {
                let name = text(value, "name")?;
                containers.push(Container { list: key, index, kind, name, value, old: before.get(name).copied() });
            }
        }
        if containers.len() > MOST_CONTAINERS {
            return Err(Malformed(format!("{}spec has more than {MOST_CONTAINERS} containers", self.path)));
        }
        Ok(containers)
    }

    /// Returns the volumes that are new or differ from the old object.
    pub(super) fn changed_volumes(&self) -> Result<Vec<&'a Json<'a>>, Malformed> {
        let before = match self.old.and_then(|old| field(old, "spec")) {
            Some(old) => by_name(old, "volumes")?,
            None => BTreeMap::new(),
        };
        let volumes = list(self.spec()?, "volumes")?.iter();
        Ok(volumes.filter(|volume| before.get(name(volume)).is_none_or(|old| old != volume)).collect())
    }
}

impl<'a> Container<'a> {
    /// Returns the container's name in messages, such as `container "web"`.
    pub(super) fn who(&self) -> String {
        format!("{} {}", self.kind, quoted(self.name))
    }

    /// Returns the fields of the container's security context that differ from the old object.
    pub(super) fn changed_context(&self) -> Result<Option<Cow<'a, Json<'a>>>, Malformed> {
        changed_context(self.value, self.old)
    }

    /// Returns the host ports that the container did not have before.
    pub(super) fn changed_host_ports(&self) -> Result<BTreeSet<i64>, Malformed> {
        let before = self.old.map_or(Ok(BTreeSet::new()), host_ports)?;
        Ok(host_ports(self.value)?.difference(&before).copied().collect())
    }

    /// Returns this container in `spec`, a copy of the pod's spec that is being filled in.
    pub(super) fn of<'v, 's>(&self, spec: &'v mut Json<'s>) -> Option<&'v mut Json<'s>> {
        spec.get_mut(self.list)?.as_list_mut()?.get_mut(self.index)
    }
}

fn is_containers(key: &str) -> bool {
    let end = key.len().checked_sub("containers".len()).and_then(|at| key.get(at..));
    end.is_some_and(|end| end.eq_ignore_ascii_case("containers"))
}

/// Returns the items of a list by their names, which are unique in Kubernetes.
fn by_name<'v, 'a>(value: &'v Json<'a>, key: &str) -> Result<BTreeMap<&'v str, &'v Json<'a>>, Malformed> {
    Ok(list(value, key)?.iter().map(|value| (name(value), value)).collect())
}

fn name<'v>(value: &'v Json<'_>) -> &'v str {
    value.get("name").and_then(Json::as_str).unwrap_or_default()
}

fn host_ports(container: &Json<'_>) -> Result<BTreeSet<i64>, Malformed> {
    let ports = list(container, "ports")?.iter().map(|port| number(port, "hostPort"));
    let ports: Vec<Option<i64>> = ports.collect::<Result<_, _>>()?;
    Ok(ports.into_iter().flatten().filter(|port| *port != 0).collect())
}

fn changed<'a>(new: &'a Json<'a>, old: Option<&Json<'_>>, keys: &[&str]) -> Option<&'a Json<'a>> {
    at(new, keys).filter(|value| old.and_then(|old| at(old, keys)) != Some(value))
}

/// Returns the fields of `securityContext` that differ from the old object; `None` if no field does.
fn changed_context<'a>(new: &'a Json<'a>, old: Option<&Json<'_>>) -> Result<Option<Cow<'a, Json<'a>>>, Malformed> {
    let Some(fields) = object(new, "securityContext")?.filter(|fields| !fields.is_empty()) else { return Ok(None) };
    let Some(old) = old.and_then(|old| field(old, "securityContext")) else {
        return Ok(Some(Cow::Borrowed(&new["securityContext"])));
    };
    let mut fields = fields.clone();
    fields.retain(|key, value| field(old, key) != Some(value));
    Ok((!fields.is_empty()).then_some(Cow::Owned(Json::Object(fields))))
}

/// Checks a whole pod or template, and returns its containers.
pub(super) fn check<'a>(
    pod: &Pod<'a>,
    tenant: &Tenant<'_>,
    decision: &mut Decision,
) -> Result<Vec<Container<'a>>, Malformed> {
    let containers = pod.containers()?;
    uid::check(pod, &containers, tenant, decision)?;
    host::check(pod, &containers, tenant, decision)?;
    image::check(pod, &containers, tenant, decision)?;
    volume::check(pod, tenant, decision)?;
    check_lifetime(pod, tenant, decision)?;
    Ok(containers)
}

/// Returns the pod's `spec` with everything filled in. In an existing pod, only new ephemeral containers are filled in,
/// because the other fields that the webhook fills in cannot change.
pub(super) fn filled<'a>(
    pod: &Pod<'a>,
    containers: &[Container<'a>],
    tenant: &Tenant<'a>,
) -> Result<Json<'a>, Malformed> {
    let mut spec = pod.spec()?.clone();
    uid::fill(&mut spec, pod, containers, tenant);
    inject::fill(&mut spec, pod, containers, tenant);
    Ok(spec)
}

/// Returns the changes to the `metadata` of a new pod: its lifetime, if the annotation is absent.
pub(super) fn filled_metadata(pod: &Pod<'_>, tenant: &Tenant<'_>) -> Result<Vec<PatchOperation>, Malformed> {
    let rules = tenant.lifetimes();
    let Some(metadata) =
        field(pod.object, "metadata").filter(|_| tenant.rules.lifetime == Mode::Enforce && pod.is_new())
    else {
        return Ok(Vec::new());
    };
    let deadline = deadline(pod)?;
    let Some(given) = rules.of(deadline).filter(|_| !rules.is_unbound()) else { return Ok(Vec::new()) };
    let mut filled = metadata.clone();
    if let Some(annotations) = entry(&mut filled, "annotations") {
        set_absent(annotations, LIFETIME, format_duration(given).to_string());
    }
    Ok(difference("/metadata", metadata, &filled))
}

/// Returns `spec.activeDeadlineSeconds`, after which Kubernetes itself ends the pod.
fn deadline(pod: &Pod<'_>) -> Result<Option<Duration>, Malformed> {
    let seconds = number(pod.spec()?, "activeDeadlineSeconds")?;
    Ok(seconds.and_then(|seconds| u64::try_from(seconds).ok()).map(Duration::from_secs))
}

/// Checks the lifetime of a pod, which the pod's annotation or deadline sets. Refuses a lifetime beyond the class's
/// maximum, an annotation that is not a duration, the removal of the annotation and, if the class requires lifetimes, a
/// new pod without one.
fn check_lifetime(pod: &Pod<'_>, tenant: &Tenant<'_>, decision: &mut Decision) -> Result<(), Malformed> {
    let rules = &tenant.rules.lifetimes;
    let max = rules.max.map(Duration::from_secs);
    let mut found = |what: String, why: String, remedy: String| {
        decision.found(tenant.rules.lifetime, Finding { rule: Rule::Lifetime, what, why, remedy });
    };
    let at_most = |max: Duration| format!("pods of {} live {} at most", tenant.who(), format_duration(max));
    let keys = ["metadata", "annotations", LIFETIME];
    if let Some(value) = pod.changed(&keys) {
        let given = value.as_str().ok_or_else(|| Malformed(format!("annotation {LIFETIME} is not a string")))?;
        let what = format!("annotation {LIFETIME} is {}", quoted(given));
        match (lifetime(given), max) {
            (None, _) => {
                let remedy = "write a duration like \"90m\", \"24h\" or \"7d\"".to_owned();
                found(what, "that is not a duration above zero".to_owned(), remedy);
            }
            (Some(own), Some(max)) if own > max => found(what, at_most(max), "write a shorter time".to_owned()),
            (Some(_), _) => {}
        }
    }
    let deadline = deadline(pod)?;
    if let (Some(own), Some(max)) = (deadline, max)
        && own > max
        && pod.differs(&["spec", "activeDeadlineSeconds"])
    {
        let what = format!("{}spec.activeDeadlineSeconds is {}", pod.path, own.as_secs());
        found(what, at_most(max), format!("write at most {}", max.as_secs()));
    }
    if at(pod.object, &keys).is_some() || rules.is_unbound() {
        return Ok(());
    }
    let was_there = pod.old.is_some_and(|old| at(old, &keys).is_some());
    let is_made = pod.old.is_none() && deadline.is_none();
    if was_there && (rules.required || !pod.is_template()) {
        let what = format!("annotation {LIFETIME} is removed");
        let why = format!("pods of {} must keep this annotation", tenant.who());
        found(what, why, "keep the annotation in the request".to_owned());
    } else if is_made && rules.required {
        let what = if pod.is_template() { "a pod of the template" } else { "the pod" };
        let why = format!("pods of {} must have a lifetime", tenant.who());
        let remedy = format!("set annotation {LIFETIME} to a duration like \"90m\" or \"24h\"");
        found(format!("{what} does not say how long it lives"), why, remedy);
    }
    Ok(())
}
