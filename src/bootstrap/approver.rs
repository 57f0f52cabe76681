//! The approver of a cluster, as `bursar approver install` creates it with an administrator's credential. Once it is
//! installed, the daemon only requests certificates and cannot approve any.
//!
//! A subject that can run pods in the approver's namespace, or change the approver's rules, is in effect a cluster
//! administrator. Therefore the daemon has no rights, labels or files in that namespace.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::DeleteParams;
use kube::{Api, Client};
use serde_json::{Value, json};
use zeroize::Zeroizing;

use super::init::{apply, make_all};
use super::needs::Needs;
use super::owner::{Said, owner_and_said};
use super::roles::{cluster_role, cluster_role_binding, named, rule};
use super::webhook::wait_for;
use super::{AccessError, Made, OWN_LIFETIME, answered, client, files, own, read};
use crate::contract::MANAGED_BY;
use crate::desired::approver_rules::{Owned, approver_rules};
use crate::execute::request::ApiServer;
use crate::execute::signing::SIGNER;
use crate::identity::ClusterName;
use crate::ledger::LedgerState;
use crate::policy::Policy;
use crate::rules::approver::ApproverRules;
use crate::rules::{KUBECONFIG, RULES};

pub const NAMESPACE: &str = "bursar-approver";
/// The name of the ConfigMap, the Deployment, the service account and the roles.
pub const APPROVER: &str = "bursar-approver";

/// An unprivileged uid. The image has no users.
const RUNS_AS: u64 = 65532;
const HEALTH: u16 = 9445;
/// The folder of the rules in the container.
const FILES: &str = "/etc/bursar-approver";
/// Enough time for a node to pull the image, and for the approver to list requests and namespaces.
const AVAILABLE_WITHIN: Duration = Duration::from_mins(3);

/// The input of an installation.
#[derive(Debug, Clone, Copy)]
pub struct ApproverRequest<'a> {
    /// The configuration, from which the rules are derived.
    pub policy: &'a Policy,
    pub cluster: &'a ClusterName,
    pub ledger: &'a LedgerState,
    /// A kubeconfig of the cluster's administrator. It is read once and not kept.
    pub admin_kubeconfig: &'a Path,
    /// The public key of the seals.
    pub public_key: [u8; 32],
    /// Accounts that may have admin and impersonation roles; `None` to keep the list that the cluster records.
    pub administrators: Option<&'a BTreeSet<String>>,
}

/// Where the approver runs.
#[derive(Debug, Clone, Copy)]
pub enum ApproverLocation<'a> {
    /// As a Deployment with two replicas of this image.
    Inside {
        /// A reference with a digest.
        image: &'a str,
    },
    /// On a host of the administrator's choice, with the files in this folder.
    Outside {
        /// The files get the owner of this folder.
        folder: &'a Path,
    },
}

/// The result of an installation or removal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApproverReport {
    /// Every object, in the order of creation.
    pub made: Vec<Made>,
    /// When the certificate of an approver outside the cluster expires.
    pub not_after: Option<Timestamp>,
}

impl ApproverRequest<'_> {
    fn needs(&self) -> Needs {
        Needs::of(self.policy, self.cluster, self.ledger)
    }

    fn rules(&self, administrators: &BTreeSet<String>) -> ApproverRules {
        rules(self.policy, self.cluster, (&self.ledger.ledger_id, self.public_key), administrators)
    }

    /// Returns the administrator's choices that the cluster records. Fails if another ledger owns the cluster.
    async fn said(&self, client: &Client) -> Result<Said, AccessError> {
        let ours = &self.ledger.ledger_id;
        match owner_and_said(client).await? {
            Some((found, said)) if found == *ours => Ok(said),
            Some((found, _)) => Err(AccessError::OtherOwner { found, ours: ours.clone() }),
            None => Err(AccessError::NoOwner),
        }
    }
}

fn rules(
    policy: &Policy,
    cluster: &ClusterName,
    (ledger, public_key): (&str, [u8; 32]),
    administrators: &BTreeSet<String>,
) -> ApproverRules {
    approver_rules(policy, cluster, Owned { ledger, administrators, public_key, own_lifetime: OWN_LIFETIME })
}

/// Returns what differs between the rules of the cluster's approver and this configuration, ledger and seal key, as
/// texts. Empty if nothing differs, or if there is no approver. `bursar approver install` updates the rules.
#[must_use]
pub fn lacks(policy: &Policy, cluster: &ClusterName, own: (&str, [u8; 32]), said: &Said) -> Vec<String> {
    let known = said.approver.as_ref();
    known.map(|known| known.lacks(&rules(policy, cluster, own, &said.administrators))).unwrap_or_default()
}

/// Returns the command by which an administrator updates the approver's rules.
#[must_use]
pub fn update(cluster: &ClusterName, said: &Said) -> String {
    let outside = if said.approver_until.is_some() { " --write FOLDER" } else { "" };
    format!("bursar approver install --cluster {cluster} --admin-kubeconfig FILE{outside}")
}

/// Returns the rules of the cluster's approver; `None` if there is none.
pub async fn found(client: &Client) -> Result<Option<ApproverRules>, AccessError> {
    let api = Api::<ConfigMap>::namespaced(client.clone(), NAMESPACE);
    let map = answered("ConfigMap bursar-approver", api.get_opt(APPROVER)).await?;
    let text = map.and_then(|map| map.data?.remove(RULES));
    text.map(|text| ApproverRules::parse(text.as_bytes())).transpose().map_err(AccessError::ApproverRules)
}

/// Installs the approver or updates its rules. Then removes `approve` from the daemon's role.
///
/// # Errors
/// Another ledger owns the cluster, a request fails, or the approver does not become available. If it is not available,
/// the daemon keeps its right to approve.
pub async fn install(request: ApproverRequest<'_>, place: ApproverLocation<'_>) -> Result<ApproverReport, AccessError> {
    let client = client(request.admin_kubeconfig).await?;
    let mut said = request.said(&client).await?;
    if let Some(administrators) = request.administrators {
        said.administrators.clone_from(administrators);
    }
    let rules = request.rules(&said.administrators);
    let (mut made, mut not_after) = (Vec::new(), None);
    let subject = match place {
        ApproverLocation::Inside { .. } => json!({"kind": "ServiceAccount", "name": APPROVER, "namespace": NAMESPACE}),
        ApproverLocation::Outside { folder } => {
            let user = user();
            let reached = own::reached(&read(request.admin_kubeconfig)?, request.admin_kubeconfig)?;
            let server = ApiServer::new(request.cluster.clone(), client.clone(), Arc::default());
            let (kubeconfig, ends) = own::access_file(&server, reached, (APPROVER, APPROVER, &user)).await?;
            let rules = Zeroizing::new(rules.to_json());
            files::replace_in(folder, &[(KUBECONFIG, kubeconfig, true), (RULES, rules, false)])?;
            not_after = Some(ends);
            json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user})
        }
    };
    for manifest in [namespace(), service_account(), role(), binding(&subject), config_map(&rules)] {
        made.push(apply(&client, &manifest).await?);
    }
    match place {
        ApproverLocation::Inside { image } => {
            for manifest in workload(image) {
                made.push(apply(&client, &manifest).await?);
            }
            available(&client).await?;
        }
        // An earlier approver in the cluster lost its right when the binding changed.
        ApproverLocation::Outside { .. } => remove_workload(&client).await?,
    }
    (said.approver, said.approver_until) = (Some(rules), not_after);
    made.extend(make_all(&client, &request.needs(), &request.ledger.ledger_id, &said).await?);
    Ok(ApproverReport { made, not_after })
}

/// Gives the daemon's role `approve` again, and removes the approver.
///
/// # Errors
/// Another ledger owns the cluster, or a request fails. Another attempt removes what is left.
pub async fn uninstall(request: ApproverRequest<'_>) -> Result<ApproverReport, AccessError> {
    let client = client(request.admin_kubeconfig).await?;
    let mut said = request.said(&client).await?;
    (said.approver, said.approver_until) = (None, None);
    let made = make_all(&client, &request.needs(), &request.ledger.ledger_id, &said).await?;
    let parameters = DeleteParams::background();
    let gone = |error: AccessError| if error.is_not_found() { Ok(()) } else { Err(error) };
    let bindings = Api::<ClusterRoleBinding>::all(client.clone());
    answered("ClusterRoleBinding bursar-approver", bindings.delete(APPROVER, &parameters))
        .await
        .map(drop)
        .or_else(gone)?;
    let roles = Api::<ClusterRole>::all(client.clone());
    answered("ClusterRole bursar-approver", roles.delete(APPROVER, &parameters)).await.map(drop).or_else(gone)?;
    let maps = Api::<ConfigMap>::namespaced(client.clone(), NAMESPACE);
    answered("ConfigMap bursar-approver", maps.delete(APPROVER, &parameters)).await.map(drop).or_else(gone)?;
    let namespaces = Api::<Namespace>::all(client.clone());
    answered("Namespace bursar-approver", namespaces.delete(NAMESPACE, &parameters)).await.map(drop).or_else(gone)?;
    Ok(ApproverReport { made, not_after: None })
}

/// Gives an approver in the cluster the rules of another ledger. After a takeover it must approve for that ledger.
pub(super) async fn hand_over(
    request: ApproverRequest<'_>,
    client: &Client,
    said: &mut Said,
) -> Result<(), AccessError> {
    let rules = request.rules(&said.administrators);
    apply(client, &config_map(&rules)).await?;
    said.approver = Some(rules);
    Ok(())
}

/// Returns a user name that no earlier certificate has. Certificates of former approvers therefore have no rights.
fn user() -> String {
    format!("bursar:approver#{}", uuid::Uuid::new_v4().simple())
}

fn labels() -> Value {
    json!({MANAGED_BY: APPROVER, "app.kubernetes.io/part-of": "bursar", "app.kubernetes.io/name": APPROVER})
}

fn object(api_version: &str, kind: &str) -> Value {
    json!({
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": APPROVER, "namespace": NAMESPACE, "labels": labels()},
    })
}

/// The namespace has no class label, so the webhook is not called for its pods and cannot block them.
fn namespace() -> Value {
    let mut labels = labels();
    labels["pod-security.kubernetes.io/enforce"] = json!("restricted");
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}})
}

fn service_account() -> Value {
    let mut account = object("v1", "ServiceAccount");
    account["automountServiceAccountToken"] = json!(false);
    account
}

fn role() -> Value {
    let rules = [
        rule("", &["namespaces"], &["get", "list", "watch"]),
        rule("certificates.k8s.io", &["certificatesigningrequests"], &["list", "watch"]),
        rule("certificates.k8s.io", &["certificatesigningrequests/approval"], &["patch"]),
        named("certificates.k8s.io", "signers", [SIGNER], &["approve"]),
    ];
    let mut role = cluster_role(APPROVER, &rules);
    role["metadata"]["labels"] = labels();
    role
}

fn binding(subject: &Value) -> Value {
    let mut binding = cluster_role_binding(APPROVER, APPROVER, subject);
    binding["metadata"]["labels"] = labels();
    binding
}

fn config_map(rules: &ApproverRules) -> Value {
    let mut map = object("v1", "ConfigMap");
    map["data"] = json!({RULES: rules.to_json()});
    map
}

fn workload(image: &str) -> [Value; 2] {
    let selector = json!({"app.kubernetes.io/name": APPROVER});
    let mut budget = object("policy/v1", "PodDisruptionBudget");
    budget["spec"] = json!({"minAvailable": 1, "selector": {"matchLabels": selector}});
    let probe = |path: &str| json!({"httpGet": {"path": path, "port": "health", "scheme": "HTTP"}, "periodSeconds": 5});
    let container = json!({
        "name": "approver",
        "image": image,
        "args": ["approve", "--dir", FILES, "--health", format!("0.0.0.0:{HEALTH}")],
        "ports": [{"name": "health", "containerPort": HEALTH, "protocol": "TCP"}],
        "livenessProbe": probe("/healthz"),
        "readinessProbe": probe("/readyz"),
        "resources": {"requests": {"cpu": "20m", "memory": "32Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "files", "mountPath": FILES, "readOnly": true}],
    });
    let mut deployment = object("apps/v1", "Deployment");
    deployment["spec"] = json!({
        "replicas": 2,
        "selector": {"matchLabels": selector},
        "template": {"metadata": {"labels": labels()}, "spec": {
            "serviceAccountName": APPROVER,
            "automountServiceAccountToken": true,
            "priorityClassName": "system-cluster-critical",
            "securityContext": {
                "runAsNonRoot": true, "runAsUser": RUNS_AS, "runAsGroup": RUNS_AS, "fsGroup": RUNS_AS,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{
                "weight": 100,
                "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": selector}},
            }]}},
            "containers": [container],
            "volumes": [{"name": "files", "configMap": {"name": APPROVER, "defaultMode": 0o440}}],
        }},
    });
    [budget, deployment]
}

async fn available(client: &Client) -> Result<(), AccessError> {
    let api = Api::<Deployment>::namespaced(client.clone(), NAMESPACE);
    let looked = wait_for(AVAILABLE_WITHIN, async || {
        let deployment = answered("Deployment bursar-approver", api.get(APPROVER)).await?;
        let generation = deployment.metadata.generation;
        let status = deployment.status.unwrap_or_default();
        let (updated, available) = (status.updated_replicas.unwrap_or(0), status.available_replicas.unwrap_or(0));
        Ok(if status.observed_generation == generation && updated > 0 && available >= updated {
            Ok(())
        } else {
            Err(format!("{updated} updated pods, {available} available"))
        })
    });
    looked.await?.map_err(|why| AccessError::ApproverNotAvailable { waited: AVAILABLE_WITHIN, why })
}

async fn remove_workload(client: &Client) -> Result<(), AccessError> {
    let api = Api::<Deployment>::namespaced(client.clone(), NAMESPACE);
    let removed = answered("Deployment bursar-approver", api.delete(APPROVER, &DeleteParams::background())).await;
    removed.map(drop).or_else(|error| if error.is_not_found() { Ok(()) } else { Err(error) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_approver_has_no_tenant_label_and_no_further_rights() {
        let namespace = namespace();
        assert!(namespace["metadata"]["labels"].get(crate::contract::CLASS).is_none());
        assert_eq!(namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"], "restricted");
        let rules = role()["rules"].to_string();
        assert!(!rules.contains("secrets") && !rules.contains('*'), "{rules}");
        assert!(user() != user());
    }
}
