//! Protects tenants' namespaces and all objects with Bursar's label. Only the daemon, Kubernetes itself and exempted
//! groups may change them.

use std::collections::BTreeSet;

use super::Concern;
use super::decision::{Decision, Finding, Rule};
use super::json::{Malformed, at, field, list, object, quoted};
use super::review::{Operation, Review};
use super::value::{Json, Object};
use crate::contract::{ADOPT, CLASS, LAST_USE, MANAGED_BY, MANAGER, PREFIX};
use crate::rules::Rules;

/// The prefix of the labels that set the Pod Security level of a namespace.
const POD_SECURITY: &str = "pod-security.kubernetes.io/";
/// The scheduler chooses the node of a claim that waits for its first pod, and writes an annotation for it. The
/// scheduler is not a service account, and its certificate names no group that a site could exempt.
const SCHEDULER: &str = "system:kube-scheduler";
/// Fields of `metadata` that every write changes.
const BOOKKEEPING: [&str; 3] = ["generation", "managedFields", "resourceVersion"];

/// Checks a request about a namespace, or about an object with Bursar's label.
pub(super) fn check(rules: &Rules, review: &Review<'_>, decision: &mut Decision) -> Result<(), Malformed> {
    if review.operation == Operation::Connect || passes(rules, review) {
        return Ok(());
    }
    let (new, old) = (review.object.as_ref(), review.old_object.as_ref());
    if review.operation == Operation::Delete && old.is_none() {
        // If a collection is deleted, the API server first sends one review without an object, and then a review for
        // each object.
        return Err(Malformed("the deletion does not contain the object".to_owned()));
    }
    if review.group.is_empty() && review.resource == "namespaces" {
        return namespace(review, new, old, decision);
    }
    let made = |object: Option<&Json<'_>>| {
        object.map_or(0, |object| made(review, object).filter(|object| is_marked(object)).count())
    };
    if made(new) > made(old) {
        decision.refuse(Finding {
            rule: Rule::Objects,
            what: format!("objects made from {} would carry label {MANAGED_BY}={MANAGER}", named(review)),
            why: "only Bursar's own objects do".to_owned(),
            remedy: "remove the label from its templates".to_owned(),
        });
    }
    let is_ours = |object: Option<&Json<'_>>| object.is_some_and(is_marked);
    let touched = match review.operation {
        Operation::Create => is_ours(new),
        Operation::Delete => is_ours(old),
        Operation::Update => (is_ours(new) || is_ours(old)) && differs(new, old),
        Operation::Connect => false,
    };
    if !touched || is_drivers_work(review, new, old)? {
        return Ok(());
    }
    let name = named(review);
    let label = format!("label {MANAGED_BY}={MANAGER}");
    let finding = if is_ours(old) {
        ours(&name, format!("{label} marks it as Bursar's"))
    } else {
        Finding {
            rule: Rule::Objects,
            what: format!("{name} would carry {label}"),
            why: "only Bursar's own objects do".to_owned(),
            remedy: "remove the label".to_owned(),
        }
    };
    decision.refuse(finding);
    Ok(())
}

fn named(review: &Review<'_>) -> String {
    match &*review.name {
        "" => review.resource.to_string(),
        name => format!("{} {}", review.resource, quoted(name)),
    }
}

fn is_marked(object: &Json<'_>) -> bool {
    label(object, MANAGED_BY) == Some(MANAGER)
}

/// Returns the templates from which controllers create pods, jobs and claims. The objects that a controller creates get
/// the labels of the template, so the labels of templates are checked too.
fn made<'v, 'a>(review: &Review<'_>, object: &'v Json<'a>) -> impl Iterator<Item = &'v Json<'a>> {
    let (template, pod) = match super::concern(review) {
        Some(Concern::Template(keys, _)) => (at(object, keys), at(object, keys)),
        Some(Concern::Pod) => (None, Some(object)),
        Some(Concern::Served(_) | Concern::Claim) | None => (None, None),
    };
    let of_sets = template.and(Some(object));
    let list = |value: Option<&'v Json<'a>>, key: &str| {
        value.and_then(|value| at(value, &["spec", key])).and_then(Json::as_list).unwrap_or_default().iter()
    };
    let ephemeral = list(pod, "volumes").filter_map(|volume| at(volume, &["ephemeral", "volumeClaimTemplate"]));
    let job = of_sets.and_then(|object| at(object, &["spec", "jobTemplate"]));
    template.into_iter().chain(job).chain(list(of_sets, "volumeClaimTemplates")).chain(ephemeral)
}

/// Whether the scheduler, or the controller of a storage driver (a service account outside the claim's namespace),
/// does its usual work on a claim. These clients write the claim's `/status`, finalizers and annotations, but none of
/// Bursar's own keys.
fn is_drivers_work(review: &Review<'_>, new: Option<&Json<'_>>, old: Option<&Json<'_>>) -> Result<bool, Malformed> {
    let account = review.user.name.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'));
    let is_elsewhere = account.is_some_and(|(namespace, _)| namespace != review.namespace);
    let is_claim = review.group.is_empty() && review.resource == "persistentvolumeclaims";
    if !(is_elsewhere || review.user.name == SCHEDULER) || !is_claim || review.operation != Operation::Update {
        return Ok(false);
    }
    let [new_spec, old_spec] = [new, old].map(|object| object.and_then(|object| field(object, "spec")));
    Ok(new_spec == old_spec && changes(new, old)?.iter().all(|part| part == "finalizers"))
}

fn ours(what: &str, why: String) -> Finding {
    let remedy = "ask an administrator to change the configuration, or to exempt you".to_owned();
    Finding { rule: Rule::Objects, what: format!("{what} may not be changed or deleted"), why, remedy }
}

/// Whether the client keeps the cluster running, or is exempted by the configuration. Kubernetes' controllers may not
/// create objects that a class has rules for, because tenants decide the content of these objects.
fn passes(rules: &Rules, review: &Review<'_>) -> bool {
    let user = &review.user;
    let makes = || review.operation == Operation::Create && super::concern(review).is_some();
    user.name == rules.daemon
        || user.name == "system:apiserver"
        || (user.name.starts_with("system:serviceaccount:kube-system:") && !makes())
        || user.groups.iter().any(|group| group == "system:nodes" || rules.exempt.iter().any(|exempt| exempt == group))
}

/// Checks a request about a namespace. A tenant's namespace cannot be deleted, and its Bursar keys, owners and
/// finalizers cannot be changed. The tenant's people may change other labels and annotations.
fn namespace(
    review: &Review<'_>,
    new: Option<&Json<'_>>,
    old: Option<&Json<'_>>,
    decision: &mut Decision,
) -> Result<(), Malformed> {
    let is_tenant = |object: &Json<'_>| label(object, CLASS).is_some() || label(object, MANAGED_BY) == Some(MANAGER);
    if !new.is_some_and(is_tenant) && !old.is_some_and(is_tenant) {
        return Ok(());
    }
    let what = format!("namespace {}", quoted(&review.name));
    let why = || "it belongs to a tenant, and Bursar manages it".to_owned();
    match review.operation {
        Operation::Create => {
            let remedy = format!(
                "remove the labels {CLASS} and {MANAGED_BY}; the directory decides which namespaces tenants have"
            );
            let what = format!("{what} would belong to a tenant");
            decision.refuse(Finding {
                rule: Rule::Objects,
                what,
                why: "only Bursar creates namespaces of tenants".to_owned(),
                remedy,
            });
        }
        Operation::Delete => decision.refuse(ours(&what, why())),
        Operation::Update if !review.subresource.is_empty() => {
            if differs(new, old) {
                decision.refuse(ours(&format!("{} of {what}", quoted(&review.subresource)), why()));
            }
        }
        Operation::Update => {
            for key in changes(new, old)? {
                decision.refuse(ours(&format!("{} of {what}", quoted(&key)), why()));
            }
        }
        Operation::Connect => {}
    }
    Ok(())
}

/// Returns the protected keys and the parts of `metadata` that differ.
fn changes(new: Option<&Json<'_>>, old: Option<&Json<'_>>) -> Result<Vec<String>, Malformed> {
    let none = Json::object([]);
    let [new, old] = [new, old].map(|object| object.and_then(|object| field(object, "metadata")).unwrap_or(&none));
    let mut changed = Vec::new();
    for place in ["labels", "annotations"] {
        let (new, old) = (object(new, place)?, object(old, place)?);
        let keys: BTreeSet<&str> =
            [new, old].into_iter().flatten().flat_map(Object::iter).map(|(key, _)| key).collect();
        let differs = |key: &&str| {
            let [new, old] = [new, old].map(|fields| fields.and_then(|fields| fields.get(key)));
            is_protected(key) && new != old
        };
        changed.extend(keys.into_iter().filter(differs).map(str::to_owned));
    }
    for part in ["ownerReferences", "finalizers"] {
        if list(new, part)? != list(old, part)? {
            changed.push(part.to_owned());
        }
    }
    Ok(changed)
}

/// Whether only Bursar writes this label or annotation of a tenant's namespace. The label that allows an adoption, and
/// the last use that a portal reports, are written by others.
fn is_protected(key: &str) -> bool {
    key == MANAGED_BY || key.starts_with(POD_SECURITY) || (key.starts_with(PREFIX) && ![ADOPT, LAST_USE].contains(&key))
}

fn label<'v>(object: &'v Json<'_>, key: &str) -> Option<&'v str> {
    at(object, &["metadata", "labels", key]).and_then(Json::as_str)
}

fn differs(new: Option<&Json<'_>>, old: Option<&Json<'_>>) -> bool {
    let (Some(new), Some(old)) = (new, old) else { return new != old };
    let is_metadata = |key: &str| key == "metadata";
    others(new, is_metadata) != others(old, is_metadata)
        || others(&new["metadata"], is_bookkeeping) != others(&old["metadata"], is_bookkeeping)
}

fn is_bookkeeping(key: &str) -> bool {
    BOOKKEEPING.contains(&key)
}

/// Returns the fields that `left_out` does not name. If the value is not an object, returns it as the error.
fn others<'v, 'a>(
    value: &'v Json<'a>,
    left_out: fn(&str) -> bool,
) -> Result<Vec<(&'v str, &'v Json<'a>)>, &'v Json<'a>> {
    let fields = value.as_object().ok_or(value)?;
    Ok(fields.iter().filter(|(key, _)| !left_out(key)).collect())
}
