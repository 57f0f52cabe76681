//! Proves that a revoked credential has no rights: asks the API server (`SubjectAccessReview`) about one rule of each
//! role that was bound to the credential's holder, until all rules are denied. A login attempt would prove no more, and
//! would need the key. Also finds bindings that others made and that name the holder.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::StepError;
use super::request::{ApiServer, Ask};
use crate::contract::{MANAGED_BY, MANAGER};
use crate::inventory::{ClusterInventory, ObservedObject};
use crate::kinds::{ManagedKind, ObjectKey, ObjectKind, Stage, everywhere};
use crate::ledger::LedgerState;
use crate::plan::bound::names;
use crate::plan::{Bound, Holder};

const PATH: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
/// How long to wait until the holder loses its rights. RBAC watches bindings, and follows a change within milliseconds.
const WITHIN: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_millis(100);
/// The number of reviews in parallel. A person may belong to dozens of workspaces.
const AT_A_TIME: usize = 8;

/// Waits until `alone` no longer has any right that `bound` gave it.
///
/// # Errors
/// [`StepError::StillAllowed`] with what is still allowed, and by which binding.
pub async fn refused(server: &ApiServer, alone: &Holder, bound: &[Bound]) -> Result<(), StepError> {
    let mut rules: BTreeMap<&str, Option<Value>> = BTreeMap::new();
    for Bound { role, .. } in bound {
        if !rules.contains_key(role.as_str()) {
            rules.insert(role, rule(server, role).await?);
        }
    }
    let reviews: Vec<Value> = bound
        .iter()
        .filter_map(|Bound { namespace, role }| review(alone, namespace.as_deref(), rules[role.as_str()].as_ref()?))
        .collect();
    let asked: Vec<_> = reviews.iter().map(|review| denied(server, alone, review)).collect();
    futures::stream::iter(asked).buffer_unordered(AT_A_TIME).try_collect().await
}

/// All bindings of a cluster that differ from what Bursar wrote. They are listed once for each execution, when the
/// first proof needs them.
#[derive(Debug, Default)]
pub struct Others {
    /// `metadata.uid` of bindings that have our label but differ from the ledger, because somebody edited or copied
    /// one.
    marked: OnceLock<BTreeSet<String>>,
    listed: OnceCell<Vec<(ManagedKind, Value)>>,
}

impl Others {
    /// Notes the bindings with our label that differ from the ledger. Must be called before anything is written,
    /// because a write of this execution would look like a difference.
    pub fn note(&self, shown: &ClusterInventory, ledger: &LedgerState) {
        self.marked.get_or_init(|| {
            let is_known = |key: &ObjectKey, found: &ObservedObject| {
                ledger.objects.get(key).is_some_and(|record| record.uid == found.uid && record.observed == found.digest)
            };
            let bindings = shown.objects.iter().filter(|(key, _)| key.kind.stage() == Stage::Access);
            bindings.filter(|(key, found)| !is_known(key, found)).map(|(_, found)| found.uid.to_string()).collect()
        });
    }
}

/// Returns the bindings that differ from what Bursar wrote and name one of these holders. A new generation does not
/// take away the rights that these bindings give.
pub async fn foreign(server: &ApiServer, others: &Others, known_as: &[Holder]) -> Result<Vec<String>, StepError> {
    let listed = others.listed.get_or_try_init(|| listed(server, others.marked.get())).await?;
    let mut found = Vec::new();
    for (kind, binding) in listed {
        let subjects = binding["subjects"].as_array();
        for subject in subjects.into_iter().flatten().filter(|subject| names(subject, known_as)) {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let place = binding["metadata"]["namespace"].as_str().map(|place| format!(" in namespace {place}"));
            found.push(format!(
                "{} {}{} gives {} {} to {} {}",
                kind.row().kind,
                text(&binding["metadata"]["name"]),
                place.unwrap_or_default(),
                text(&binding["roleRef"]["kind"]),
                text(&binding["roleRef"]["name"]),
                text(&subject["kind"]).to_lowercase(),
                text(&subject["name"])
            ));
        }
    }
    Ok(found)
}

/// Lists bindings with our label only if some of them are `marked`, because a large cluster has tens of thousands.
async fn listed(server: &ApiServer, marked: Option<&BTreeSet<String>>) -> Result<Vec<(ManagedKind, Value)>, StepError> {
    let marked = marked.filter(|marked| !marked.is_empty());
    let selector = if marked.is_none() { format!("{MANAGED_BY}!={MANAGER}") } else { String::new() };
    let is_other = |binding: &Value| {
        let metadata = &binding["metadata"];
        let is_marked = |marked: &BTreeSet<String>| metadata["uid"].as_str().is_some_and(|uid| marked.contains(uid));
        metadata["labels"][MANAGED_BY] != MANAGER || marked.is_some_and(is_marked)
    };
    let mut all = Vec::new();
    for kind in [ManagedKind::RoleBinding, ManagedKind::ClusterRoleBinding] {
        let Some(there) = everywhere(&ObjectKind::Managed(kind)) else { continue };
        let take = |binding: Value| all.extend(Some((kind, binding)).filter(|(_, binding)| is_other(binding)));
        server.pages(&there.path(None, None), &selector, Ask::Get, take).await?;
    }
    Ok(all)
}

/// Returns the first rule of a role; `None` if the role allows nothing.
async fn rule(server: &ApiServer, role: &str) -> Result<Option<Value>, StepError> {
    // Nearly every role allows this.
    let common = || Ok(Some(json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]})));
    if role.is_empty() {
        return common();
    }
    match server.ask(&format!("{ROLES}/{role}"), Ask::Get).await {
        Ok(mut found) => Ok(found.object["rules"].get_mut(0).map(Value::take)),
        // The role is gone, or the daemon's own role, made by an older version, does not let it read this role.
        Err(error) if matches!(error.code(), Some(403 | 404)) => common(),
        Err(error) => Err(error.into()),
    }
}

fn review(alone: &Holder, namespace: Option<&str>, rule: &Value) -> Option<Value> {
    let first = |key: &str, any: &str| match rule[key][0].as_str() {
        Some("*") => Some(any.to_owned()),
        first => first.map(str::to_owned),
    };
    let verb = first("verbs", "get")?;
    let mut spec = if let Some(resource) = first("resources", "pods") {
        let (resource, subresource) = resource.split_once('/').unwrap_or((&resource, ""));
        json!({"resourceAttributes": {
            "namespace": namespace, "verb": verb, "group": first("apiGroups", "")?, "resource": resource,
            "subresource": subresource, "name": first("resourceNames", ""),
        }})
    } else {
        json!({"nonResourceAttributes": {"path": first("nonResourceURLs", "/")?, "verb": verb}})
    };
    match alone {
        Holder::User(user) => spec["user"] = json!(user),
        Holder::Group(group) => spec["groups"] = json!([group]),
    }
    Some(json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}))
}

async fn denied(server: &ApiServer, alone: &Holder, review: &Value) -> Result<(), StepError> {
    let mut why = String::new();
    let denied = async {
        while let Some(allowed) = allowed(server, review).await? {
            why = allowed;
            tokio::time::sleep(AGAIN).await;
        }
        Ok::<(), StepError>(())
    };
    let asked = tokio::time::timeout(WITHIN, denied).await;
    let Ok(answer) = asked else {
        let asked = &review["spec"]["resourceAttributes"];
        let text = |key: &str| asked[key].as_str().unwrap_or_default();
        let place = asked["namespace"].as_str().map(|place| format!(" in {place}")).unwrap_or_default();
        let what = format!("{} {}{place}", text("verb"), text("resource"));
        let (Holder::User(user) | Holder::Group(user)) = alone;
        return Err(StepError::StillAllowed { user: user.clone(), what, why });
    };
    answer
}

/// Returns why the review is allowed; `None` if it is denied.
async fn allowed(server: &ApiServer, review: &Value) -> Result<Option<String>, StepError> {
    let status = server.ask(PATH, Ask::Create(review)).await?.object["status"].take();
    let why = status["reason"].as_str().unwrap_or_default().to_owned();
    Ok((status["allowed"] == true).then_some(why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_access_review_asks_as_the_old_generation_alone() {
        let group = Holder::Group("bursar:tool:foo#3".to_owned());
        let spec = |rule: Value| review(&group, Some("tool-foo"), &rule).map(|mut review| review["spec"].take());
        let asked =
            spec(json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]})).expect("the rule gives a review");
        assert_eq!(asked["groups"], json!(["bursar:tool:foo#3"]));
        assert!(asked["user"].is_null());
        assert_eq!(asked["resourceAttributes"]["resource"], "pods");
        let asked = spec(json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods/log"]}))
            .expect("the rule gives a review");
        assert_eq!(
            (&asked["resourceAttributes"]["resource"], &asked["resourceAttributes"]["subresource"]),
            (&json!("pods"), &json!("log"))
        );
        let asked = spec(json!({"verbs": ["get"], "nonResourceURLs": ["/metrics"]})).expect("the rule gives a review");
        assert_eq!(asked["nonResourceAttributes"]["path"], "/metrics");
        assert_eq!(spec(json!({})), None);
    }
}
