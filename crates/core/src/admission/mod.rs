//! Turns a review, the identity of the tenant and the rules of its class into a [`Decision`], so that no pod runs as
//! another account. [`decide`] returns an answer for every input, and refuses what it cannot read. An object that
//! already has all changes is allowed without a patch.

mod approval;
pub mod approver;
pub mod certificate_request;
mod claim;
pub mod decision;
pub mod existing;
mod host;
pub mod image;
mod ingress;
mod inject;
mod json;
mod own_objects;
mod pod;
pub mod review;
pub mod sender;
pub mod tenant;
mod uid;
pub mod value;
mod volume;

pub use decision::{Decision, Finding, PatchOperation, Rule};
pub use ingress::{HARMLESS as HARMLESS_ANNOTATIONS, serves};
pub use review::{Operation, Review, ReviewError, User, answer};
pub use tenant::{Resolved, Unresolved};
pub use volume::{OWN as OWN_SOURCES, PROJECTED as PROJECTED_SOURCES};

use crate::contract::TenantState;
use crate::rules::Rules;
use decision::difference;
use json::{Malformed, at, object, quoted};
use pod::Pod;
use tenant::Tenant;
use value::Json;

/// The most bytes that a pod may take in etcd when the webhook sees it: half of what etcd accepts. A deletion first
/// writes into the pod, so a pod that fills etcd's limit cannot be deleted. The other half is for parts that the
/// webhook does not see: the status, and labels, finalizers and owner references, which the policy `bursar-size`
/// limits.
pub const POD_BYTES: usize = 3 << 18;
/// Why a pod may not take more than [`POD_BYTES`].
pub const TOO_LARGE: &str = "a pod of more than 768 KiB could grow until it cannot be deleted";

/// The kinds of objects in a tenant's namespace that the rules of a class apply to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Concern {
    Pod,
    /// A template of pods: the path to it, and the same path for messages.
    Template(&'static [&'static str], &'static str),
    Served(ingress::RoutingKind),
    Claim,
}

const TEMPLATE: Concern = Concern::Template(&["spec", "template"], "spec.template.");
const CRON_JOB: Concern =
    Concern::Template(&["spec", "jobTemplate", "spec", "template"], "spec.jobTemplate.spec.template.");

/// Returns the kind of object of a review; `None` if no rule applies. Subresources of pods are included if they can
/// change what the pod runs. Other resources are checked only without a subresource.
fn concern(review: &Review<'_>) -> Option<Concern> {
    match (&*review.group, &*review.resource, &*review.subresource) {
        ("", "pods", "" | "ephemeralcontainers" | "resize") => Some(Concern::Pod),
        ("apps", "deployments" | "replicasets" | "statefulsets" | "daemonsets", "")
        | ("batch", "jobs", "")
        | ("", "replicationcontrollers", "") => Some(TEMPLATE),
        ("batch", "cronjobs", "") => Some(CRON_JOB),
        ("", "persistentvolumeclaims", "") => Some(Concern::Claim),
        (group, resource, "") => ingress::RoutingKind::of(group, resource).map(Concern::Served),
        _ => None,
    }
}

/// Returns the answer to the API server for `review`, which concerns an object in the namespace of `tenant`. If
/// [`Review::needs_identity`] returns false, `tenant` is not read.
#[must_use]
pub fn decide(rules: &Rules, tenant: &Resolved, review: &Review<'_>) -> Decision {
    let mut decision = Decision::default();
    if let Err(malformed) = judge(rules, tenant, review, &mut decision) {
        decision.refuse(malformed.finding());
    }
    if let Resolved::Sealed(identity) = tenant {
        decision.except(&identity.exceptions);
    }
    if !decision.is_allowed() {
        decision.patch.clear();
    }
    decision
}

impl Review<'_> {
    /// Whether [`decide`] needs to know the tenant of the namespace. The tenant is not needed for namespaces
    /// themselves, deletions, and resources that no class has rules for. It is not needed for updates of claims either,
    /// because Bursar's own claims may be in namespaces without a tenant.
    #[must_use]
    pub fn needs_identity(&self) -> bool {
        match self.operation {
            Operation::Create => concern(self).is_some(),
            Operation::Update => concern(self).is_some_and(|concern| concern != Concern::Claim),
            Operation::Delete | Operation::Connect => false,
        }
    }
}

fn judge(rules: &Rules, resolved: &Resolved, review: &Review<'_>, decision: &mut Decision) -> Result<(), Malformed> {
    if let ("certificates.k8s.io", "certificatesigningrequests", "approval") =
        (&*review.group, &*review.resource, &*review.subresource)
    {
        return approval::check(rules, review, decision);
    }
    own_objects::check(rules, review, decision)?;
    let Some(concern) = concern(review).filter(|_| review.needs_identity()) else { return Ok(()) };
    let new = review.object.as_ref().filter(|object| object.as_object().is_some());
    let new = new.ok_or_else(|| Malformed("the request has no object".to_owned()))?;
    let old = match review.operation {
        Operation::Create => None,
        _ => Some(review.old_object.as_ref().ok_or_else(|| Malformed("the request has no old object".to_owned()))?),
    };
    if old.is_some_and(|old| is_same(concern, new, old)) {
        // An unchanged object passes in any namespace, so that its finalizer can still be removed.
        return Ok(());
    }
    let tenant = match tenant_of(rules, resolved, review) {
        Ok(tenant) => tenant,
        Err(finding) => {
            decision.refuse(finding);
            return Ok(());
        }
    };
    match concern {
        Concern::Pod => {
            let pod = Pod { object: new, old, path: "" };
            if pod.is_new() && tenant.identity.state == TenantState::Suspended {
                decision.refuse(suspended(&tenant));
            }
            let containers = pod::check(&pod, &tenant, decision)?;
            decision.patch = difference("/spec", pod.spec()?, &pod::filled(&pod, &containers, &tenant)?);
            decision.patch.extend(pod::filled_metadata(&pod, &tenant)?);
        }
        Concern::Template(keys, path) => {
            object(new, "spec")?;
            if let Some(template) = at(new, keys) {
                let old = old.and_then(|old| at(old, keys));
                pod::check(&Pod { object: template, old, path }, &tenant, decision)?;
            }
        }
        Concern::Served(kind) => ingress::check(kind, new, old, &tenant, decision)?,
        Concern::Claim => {
            claim::check(new, &tenant, decision)?;
        }
    }
    Ok(())
}

/// Whether every part that a rule checks is unchanged. In a workload, rules check only the template, and not the node
/// selector in it. So a workload can always be scaled to 0, even if the webhook cannot resolve its tenant.
fn is_same(concern: Concern, new: &Json<'_>, old: &Json<'_>) -> bool {
    let same = |keys: &[&str]| at(new, keys) == at(old, keys);
    let Concern::Template(template, _) = concern else { return same(&["spec"]) && same(&["metadata", "annotations"]) };
    let keys = [template, &["spec"]].concat();
    let is_same_spec = match [new, old].map(|object| at(object, &keys).and_then(Json::as_object)) {
        [Some(new), Some(old)] => {
            let looked_at = |(key, _): &(&str, &Json<'_>)| *key != "nodeSelector";
            new.iter().filter(looked_at).eq(old.iter().filter(looked_at))
        }
        _ => same(&keys),
    };
    same(&[template, &["metadata"]].concat()) && is_same_spec
}

fn tenant_of<'a>(rules: &'a Rules, resolved: &'a Resolved, review: &Review<'_>) -> Result<Tenant<'a>, Finding> {
    let nobody = |why: String, remedy: &str| Finding {
        rule: Rule::Identity,
        what: format!("the tenant of namespace {} is unknown", quoted(&review.namespace)),
        why,
        remedy: remedy.to_owned(),
    };
    let restore = "ask an administrator to restore it with `bursar sync`";
    match resolved {
        Resolved::Sealed(identity)
            if identity.namespace.as_str() != review.namespace || identity.cluster != rules.cluster =>
        {
            Err(nobody("its seal names another namespace or cluster".to_owned(), restore))
        }
        Resolved::Sealed(identity) => {
            rules.classes.get(&identity.class).map(|rules| Tenant { identity, rules }).ok_or_else(|| {
                let why = format!("the webhook has no rules for class {}", quoted(&identity.class));
                nobody(why, "ask an administrator to look at `bursar status`")
            })
        }
        Resolved::Unresolved(why @ Unresolved::Stale { .. }) => Err(nobody(why.to_string(), "try again in a minute")),
        Resolved::Unresolved(why @ Unresolved::Unknown) => {
            Err(nobody(why.to_string(), "ask an administrator to look at `bursar status`"))
        }
        Resolved::Unresolved(why) => Err(nobody(why.to_string(), restore)),
    }
}

fn suspended(tenant: &Tenant<'_>) -> Finding {
    Finding {
        rule: Rule::Suspended,
        what: "no new pods can start in this namespace".to_owned(),
        why: format!("{} is suspended", tenant.who()),
        remedy: "ask an administrator to run `bursar resume`".to_owned(),
    }
}

#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod tests;
