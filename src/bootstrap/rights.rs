//! Checks whether the daemon has the rights that `init` grants: asks the API server, as the daemon, about every rule of
//! its roles. Nothing is changed.

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::Value;

use super::needs::Needs;
use super::owner::owner_and_said;
use super::{AccessError, answered, roles};
use crate::identity::ClusterName;
use crate::kinds::ServedKind;
use crate::ledger::LedgerState;
use crate::observed::discovery::Kinds;
use crate::policy::Policy;

/// Number of concurrent reviews. The roles need about a hundred, and each takes a millisecond.
const AT_A_TIME: usize = 8;

/// Returns the rights that the daemon needs for this configuration and lacks, for example `patch resourcequotas`.
pub async fn missing(
    client: &Client,
    policy: &Policy,
    cluster: &ClusterName,
    ledger: &LedgerState,
) -> Result<Vec<String>, AccessError> {
    let needs = Needs::of(policy, cluster, ledger);
    let said = owner_and_said(client).await?.map(|(_, said)| said).unwrap_or_default();
    let mut wanted = wanted(&roles::daemon(&needs, &said.confinement(), &kinds(client, &needs).await?));
    for [role, _] in [roles::daemon_in_namespace(&ledger.ledger_id), roles::daemon_in_selftest(&ledger.ledger_id)] {
        wanted.extend(self::wanted(&role));
    }
    let asked = wanted.into_iter().map(async |right| {
        let allowed = allowed(client, right.clone()).await?;
        Ok((!allowed).then(|| text(&right)))
    });
    let said: Vec<Option<String>> = futures::stream::iter(asked).buffered(AT_A_TIME).try_collect().await?;
    Ok(said.into_iter().flatten().collect())
}

/// Returns the rules of a ClusterRole.
///
/// # Errors
/// The role does not exist, or the daemon may not read it.
pub async fn role_rules(client: &Client, role: &str) -> Result<Vec<PolicyRule>, AccessError> {
    let api = Api::<ClusterRole>::all(client.clone());
    let found = answered(&format!("ClusterRole {role}"), api.get(role)).await?;
    Ok(found.rules.unwrap_or_default())
}

/// Resolves the kinds of the site manifests. Kinds that the cluster lacks are left out: another check reports them.
async fn kinds(client: &Client, needs: &Needs) -> Result<Vec<ServedKind>, AccessError> {
    let kinds = Kinds::default();
    let mut found = Vec::new();
    for kind in &needs.manifest_kinds {
        let what = format!("kind {kind} in {}", kind.api_version());
        found.extend(answered(&what, kinds.resolve(client, kind)).await?);
    }
    Ok(found)
}

/// Returns every right of a Role or ClusterRole separately.
fn wanted(role: &Value) -> Vec<ResourceAttributes> {
    let texts = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let mut wanted = Vec::new();
    for rule in role["rules"].as_array().into_iter().flatten() {
        let names = match texts(&rule["resourceNames"]) {
            names if names.is_empty() => vec![None],
            names => names.into_iter().map(Some).collect(),
        };
        for group in texts(&rule["apiGroups"]) {
            for resource in texts(&rule["resources"]) {
                let (resource, subresource) = match resource.split_once('/') {
                    Some((resource, subresource)) => (resource.to_owned(), Some(subresource.to_owned())),
                    None => (resource, None),
                };
                for verb in texts(&rule["verbs"]) {
                    wanted.extend(names.iter().map(|name| ResourceAttributes {
                        group: Some(group.clone()),
                        resource: Some(resource.clone()),
                        subresource: subresource.clone(),
                        name: name.clone(),
                        namespace: role["metadata"]["namespace"].as_str().map(str::to_owned),
                        verb: Some(verb.clone()),
                        ..ResourceAttributes::default()
                    }));
                }
            }
        }
    }
    wanted
}

fn text(right: &ResourceAttributes) -> String {
    let part =
        |part: &Option<String>, before: &str| part.as_ref().map(|part| format!("{before}{part}")).unwrap_or_default();
    let ResourceAttributes { verb, resource, subresource, name, namespace, .. } = right;
    let what = format!("{}{}", part(resource, " "), part(subresource, "/"));
    format!("{}{what}{}{}", part(verb, ""), part(name, " "), part(namespace, " in "))
}

async fn allowed(client: &Client, right: ResourceAttributes) -> Result<bool, AccessError> {
    let what = format!("access review: {}", text(&right));
    let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(right), ..Default::default() };
    let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
    let (api, parameters) = (Api::all(client.clone()), PostParams::default());
    let answer: SelfSubjectAccessReview = answered(&what, api.create(&parameters, &review)).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::needs::Confinement;

    #[test]
    fn every_right_of_a_role_is_listed() {
        let [role, _] = roles::daemon_in_selftest("id");
        let said: Vec<String> = wanted(&role).iter().map(text).collect();
        let kinds = ["pods", "services", "ingresses"].map(|kind| format!("create {kind} in bursar-selftest"));
        assert_eq!(said, kinds);
        let said: Vec<String> =
            wanted(&roles::daemon(&Needs::default(), &Confinement::default(), &[])).iter().map(text).collect();
        for right in ["patch certificatesigningrequests/approval", "bind clusterroles bursar-archive", "list pods"] {
            assert!(said.contains(&right.to_owned()), "{right}: {said:?}");
        }
        assert!(said.len() > 50, "{}", said.len());
    }
}
