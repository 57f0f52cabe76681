//! `bursar init`: makes what the daemon needs and cannot make itself, as the administrator, and may be repeated.
//!
//! The daemon admission policy comes before the daemon's rights, and a new credential is written only when the API
//! server was seen to enforce it against it.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::ClusterResourceScope;
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::rbac::v1::{AggregationRule, ClusterRole, ClusterRoleBinding};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::approver::{self, ApproverRequest};
use super::confinement::{Probed, note, probe};
use super::daemon_admission_policy::daemon_admission_policy;
use super::needs::Needs;
use super::own::OwnCredential;
use super::owner::{Said, owner_and_said};
use super::roles::{self, INIT_MANAGER};
use super::webhook::{self, adopted_rules, backstop, mutates, server_rules};
use super::{AccessError, answered, client_of, files, mark, own, owner, read};
use crate::contract::{MANAGED_BY, Sealer};
use crate::desired::approver_rules::unknown_classes;
use crate::execute::request::ApiServer;
use crate::identity::ClusterName;
use crate::kinds::{ObjectKind, ServedKind};
use crate::ledger::LedgerState;
use crate::observed::discovery::{Kinds, resource};
use crate::policy::Policy;
use crate::privilege;

/// A new policy and a new role are in force within a second or so; informers of a busy API server lag a few more.
const IN_FORCE_WITHIN: Duration = Duration::from_secs(15);
/// Between two looks whether they are.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// What `init` is to do.
#[derive(Debug, Clone, Copy)]
pub struct InitRequest<'a> {
    /// The configuration, from which the daemon's rights follow.
    pub policy: &'a Policy,
    /// Which cluster.
    pub cluster: &'a ClusterName,
    /// An administrator's access to it. Read once, not kept.
    pub admin_kubeconfig: &'a Path,
    /// `[cluster.NAME] kubeconfig`: where the daemon's goes.
    pub daemon_kubeconfig: &'a Path,
    /// Where `seal.key` is.
    pub state_dir: &'a Path,
    /// The ledger that is to own the cluster.
    pub ledger: &'a LedgerState,
    /// Accounts that may hold admin and impersonation roles; `None`: as an administrator said before.
    pub administrators: Option<&'a BTreeSet<String>>,
}

/// What `init` did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitReport {
    /// Every object, in the order in which they were made.
    pub made: Vec<Made>,
    /// The daemon's kubeconfig, which was written.
    pub kubeconfig: PathBuf,
    /// When its certificate ends; the daemon renews it before.
    pub not_after: Timestamp,
    /// `seal.key` was drawn now.
    pub seal_key_drawn: bool,
    /// An approver is there that goes by other rules than these: `bursar approver install` tells it.
    pub approver_outdated: bool,
}

/// One object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    /// `ClusterRole bursar-daemon`.
    pub what: String,
    /// What was done to it.
    pub did: Did,
}

/// What was done to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Did {
    /// It was not there.
    Created,
    /// It was another.
    Changed,
    /// It was as it should be.
    Kept,
    /// An earlier `init` made it, and the configuration needs it no longer.
    Removed,
}

/// As [`init()`], but also if another ledger owned the cluster until now: the rights of that ledger's daemon end with
/// it.
pub async fn take_over(request: InitRequest<'_>) -> Result<InitReport, AccessError> {
    make(request, true).await
}

/// Makes the daemon's access to a cluster. Repeated, it changes what the configuration changed, and issues the daemon
/// another certificate.
pub async fn init(request: InitRequest<'_>) -> Result<InitReport, AccessError> {
    make(request, false).await
}

/// What [`init()`] would make but the credential, in the order in which it would: nothing is written anywhere.
///
/// # Errors
/// The cluster does not answer, is another ledger's, or lacks what the configuration names.
pub async fn dry_run(request: InitRequest<'_>) -> Result<Vec<Value>, AccessError> {
    let client = client_of(read(request.admin_kubeconfig)?, request.admin_kubeconfig).await?;
    let needs = Needs::of(request.policy, request.cluster, request.ledger);
    let ledger_id = &request.ledger.ledger_id;
    nobody_elses(&client, ledger_id).await?;
    let mut said = said_before(&client).await?;
    if let Some(administrators) = request.administrators {
        said.administrators.clone_from(administrators);
    }
    wanted(&client, &needs, ledger_id, &said).await
}

async fn make(request: InitRequest<'_>, from_anybody: bool) -> Result<InitReport, AccessError> {
    own::must_be_ours(request.daemon_kubeconfig)?;
    let admin = read(request.admin_kubeconfig)?;
    let reached = own::reached(&admin, request.admin_kubeconfig)?;
    let client = client_of(admin, request.admin_kubeconfig).await?;
    let needs = Needs::of(request.policy, request.cluster, request.ledger);
    let ledger_id = &request.ledger.ledger_id;
    owner::must_be_same(request.cluster, request.daemon_kubeconfig, request.admin_kubeconfig).await?;
    if !from_anybody {
        nobody_elses(&client, ledger_id).await?;
    }
    let mut said = said_before(&client).await?;
    if let Some(administrators) = request.administrators {
        said.administrators.clone_from(administrators);
    }
    if from_anybody && said.approver.is_some() {
        let public_key = public_key(request.state_dir).await?;
        let InitRequest { policy, cluster, ledger, admin_kubeconfig, administrators, .. } = request;
        let handed = ApproverRequest { policy, cluster, ledger, admin_kubeconfig, public_key, administrators };
        approver::hand_over(handed, &client, &mut said).await?;
    }
    let approver_outdated = match &said.approver {
        Some(rules) => {
            rules.ledger != *ledger_id
                || rules.administrators != said.administrators
                || !unknown_classes(request.policy, request.cluster, rules).is_empty()
        }
        None => false,
    };
    let mut made = make_all(&client, &needs, ledger_id, &said).await?;
    let server = ApiServer::new(request.cluster.clone(), client.clone(), Arc::default());
    let group = roles::daemon_group(ledger_id);
    let new = own::obtain(&server, reached, Some(&group), request.daemon_kubeconfig).await?;
    enforced(&client_of(new.kubeconfig.clone(), request.daemon_kubeconfig).await?).await?;
    let seal_key_drawn = write(&new, request).await?;
    // Another ledger's is nobody's any more, and the daemon can neither lower nor delete it.
    if mark::remove_unproven(&client, request.cluster, ledger_id, public_key(request.state_dir).await?).await? {
        made.push(Made { what: format!("ConfigMap {}", roles::MARK), did: Did::Removed });
    }
    Ok(InitReport {
        made,
        kubeconfig: request.daemon_kubeconfig.to_owned(),
        not_after: new.issued.not_after,
        seal_key_drawn,
        approver_outdated,
    })
}

/// The seal of this host, drawn if there is none yet.
async fn public_key(state_dir: &Path) -> Result<[u8; 32], AccessError> {
    let path = state_dir.join(files::SEAL_KEY);
    let failed = |source| AccessError::Read { path: path.clone(), source };
    let read = privilege::as_bursar(async {
        files::ensure_seal_key(state_dir)?;
        let seed = zeroize::Zeroizing::new(std::fs::read(&path).map_err(failed)?);
        let sealer = Sealer::from_seed(&seed);
        Ok(sealer.map_err(|error| failed(std::io::Error::new(std::io::ErrorKind::InvalidData, error)))?.public_key())
    });
    read.await.map_err(|error| failed(error.into()))?
}

/// What an administrator said of the cluster. An approver is there if its own ConfigMap is: nobody but an administrator
/// writes that one.
async fn said_before(client: &Client) -> Result<Said, AccessError> {
    let mut said = owner_and_said(client).await?.map(|(_, said)| said).unwrap_or_default();
    if let Some(rules) = approver::found(client).await? {
        said.approver = Some(rules);
    } else {
        (said.approver, said.approver_until) = (None, None);
    }
    Ok(said)
}

/// Makes everything but the credential, as an administrator.
pub(super) async fn make_all(
    client: &Client,
    needs: &Needs,
    ledger_id: &str,
    said: &Said,
) -> Result<Vec<Made>, AccessError> {
    let manifests = wanted(client, needs, ledger_id, said).await?;
    let mut made = Vec::new();
    for manifest in &manifests {
        made.push(apply(client, manifest).await?);
    }
    made.extend(prune::<ValidatingAdmissionPolicyBinding>(client, &manifests).await?);
    made.extend(prune::<ValidatingAdmissionPolicy>(client, &manifests).await?);
    made.extend(prune::<ClusterRoleBinding>(client, &manifests).await?);
    made.extend(prune::<ClusterRole>(client, &manifests).await?);
    Ok(made)
}

/// Every object, for this server's kinds and roles.
async fn wanted(client: &Client, needs: &Needs, ledger_id: &str, said: &Said) -> Result<Vec<Value>, AccessError> {
    let manifest_kinds = look(client, needs).await?;
    let edit = edit(client).await?;
    let backstop = backstop(client, needs).await?;
    Ok(manifests(needs, &manifest_kinds, &edit, &backstop, (ledger_id, said)))
}

/// As the daemon's user, whose files they are.
async fn write(new: &OwnCredential, request: InitRequest<'_>) -> Result<bool, AccessError> {
    let path = request.daemon_kubeconfig;
    let written = privilege::as_bursar(async {
        own::write(&new.kubeconfig, path)?;
        files::ensure_seal_key(request.state_dir)
    });
    written.await.map_err(|error| AccessError::Write { path: path.to_owned(), source: error.into() })?
}

/// Everything, in an order in which no moment gives the daemon more than the end does: the policy before the binding.
fn manifests(
    needs: &Needs,
    manifest_kinds: &[ServedKind],
    edit: &[Value],
    backstop: &[Value],
    (ledger_id, said): (&str, &Said),
) -> Vec<Value> {
    let confinement = said.confinement();
    let mut manifests = vec![roles::own_namespace(), owner::manifest(ledger_id, said)];
    if needs.personal_storage {
        manifests.push(roles::personal_namespace());
    }
    let [mut policy, binding] = daemon_admission_policy(needs, &confinement);
    note(&mut policy);
    manifests.extend([policy, binding]);
    manifests.extend_from_slice(backstop);
    manifests.extend(webhook::identity());
    manifests.push(roles::selftest_namespace());
    manifests.extend([roles::tenant(edit), roles::archive()]);
    manifests.extend(roles::impersonation(needs));
    manifests.push(roles::daemon(needs, &confinement, manifest_kinds));
    manifests.extend(roles::daemon_in_namespace(ledger_id));
    manifests.extend(roles::daemon_in_selftest(ledger_id));
    manifests.push(roles::daemon_reads_authorities(ledger_id));
    manifests.push(roles::daemon_binding(ledger_id));
    manifests
}

/// The policies of the backstop and of the rules, which do nothing before `bursar webhook install` binds them, and those of
/// adopted namespaces with their bindings.
async fn backstop(client: &Client, needs: &Needs) -> Result<Vec<Value>, AccessError> {
    let mut policies = backstop::validating().to_vec();
    let of_classes = server_rules::policies(&needs.rules).into_iter();
    policies.extend(of_classes.chain(adopted_rules::manifests(&needs.rules.adopting)).map(|mut manifest| {
        note(&mut manifest);
        manifest
    }));
    if mutates(client).await? {
        policies.extend(backstop::mutating());
    }
    Ok(policies)
}

pub(super) async fn nobody_elses(client: &Client, ledger_id: &str) -> Result<(), AccessError> {
    match owner::owner(client).await? {
        Some(found) if found != ledger_id => Err(AccessError::OtherOwner { found, ours: ledger_id.to_owned() }),
        _ => Ok(()),
    }
}

/// Before anything is written: what the configuration names is there.
async fn look(client: &Client, needs: &Needs) -> Result<Vec<ServedKind>, AccessError> {
    let made = needs.made();
    let roles = Api::<ClusterRole>::all(client.clone());
    for role in needs.bindable().into_iter().filter(|role| !made.contains(role)) {
        let found = answered(&format!("ClusterRole {role}"), roles.get_metadata_opt(&role)).await?;
        found.ok_or(AccessError::NoSuchRole(role))?;
    }
    let kinds = Kinds::default();
    let mut found = Vec::new();
    for kind in &needs.manifest_kinds {
        let what = format!("kind {kind} in {}", kind.api_version());
        let resolved = answered(&what, kinds.resolve(client, kind)).await?;
        let missing = || AccessError::NoSuchKind { kind: kind.clone() };
        found.push(resolved.filter(|kind| kind.namespaced).ok_or_else(missing)?);
    }
    Ok(found)
}

/// The rules of this server's `edit`. It is aggregated here as its controller does (`aggregationRule`), for in a
/// cluster that is just starting the controller has not come to it yet, and a tenant's role would be empty.
async fn edit(client: &Client) -> Result<Vec<Value>, AccessError> {
    let all = answered("ClusterRoles", Api::<ClusterRole>::all(client.clone()).list(&ListParams::default())).await?;
    let mut seen = BTreeSet::new();
    let mut rules = Vec::new();
    let mut waiting: Vec<&ClusterRole> = all.iter().filter(|role| role.name_any() == "edit").collect();
    while let Some(role) = waiting.pop() {
        if !seen.insert(role.name_any()) {
            continue;
        }
        match &role.aggregation_rule {
            Some(aggregation) => waiting.extend(all.iter().filter(|role| is_aggregated(aggregation, role))),
            None => rules.extend(role.rules.iter().flatten().filter_map(|rule| serde_json::to_value(rule).ok())),
        }
    }
    Ok(rules)
}

/// The built-in roles are selected by labels alone (`matchLabels`).
fn is_aggregated(aggregation: &AggregationRule, role: &ClusterRole) -> bool {
    let selectors = aggregation.cluster_role_selectors.iter().flatten();
    selectors
        .filter_map(|selector| selector.match_labels.as_ref())
        .any(|wanted| !wanted.is_empty() && wanted.iter().all(|(key, value)| role.labels().get(key) == Some(value)))
}

pub(super) async fn apply(client: &Client, manifest: &Value) -> Result<Made, AccessError> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (kind, name) = (text(&manifest["kind"]), text(&manifest["metadata"]["name"]));
    let what = format!("{kind} {name}");
    let resolved = answered(&what, Kinds::default().resolve(client, &ObjectKind::of_manifest(manifest))).await?;
    // All of ours are kinds of every cluster, this one's age permitting.
    let resource = resource(&resolved.ok_or(AccessError::PolicyNotEnforced)?);
    let api = match manifest["metadata"]["namespace"].as_str() {
        Some(namespace) => Api::<DynamicObject>::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let before = answered(&what, api.get_metadata_opt(&name)).await?;
    let parameters = PatchParams::apply(INIT_MANAGER).force();
    let after = answered(&what, api.patch(&name, &parameters, &Patch::Apply(manifest))).await?;
    let did = match before {
        None => Did::Created,
        Some(before) if is_same(&before.metadata, &after.metadata) => Did::Kept,
        Some(_) => Did::Changed,
    };
    Ok(Made { what, did })
}

/// Takes away what an earlier `init` made for a configuration that is no longer in force: rights that nobody needs, and rules
/// that no class has.
async fn prune<K>(client: &Client, wanted: &[Value]) -> Result<Vec<Made>, AccessError>
where
    K: Resource<Scope = ClusterResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let (api, kind) = (Api::<K>::all(client.clone()), K::kind(&()));
    let ours = ListParams::default().labels(&format!("{MANAGED_BY}={INIT_MANAGER}"));
    let found = answered(&format!("{kind}s of {INIT_MANAGER}"), api.list_metadata(&ours)).await?;
    let mut removed = Vec::new();
    for name in found.iter().map(ResourceExt::name_any) {
        if wanted.iter().any(|manifest| manifest["kind"] == *kind && manifest["metadata"]["name"] == *name) {
            continue;
        }
        let what = format!("{kind} {name}");
        answered(&what, api.delete(&name, &DeleteParams::default())).await?;
        removed.push(Made { what, did: Did::Removed });
    }
    Ok(removed)
}

/// An apply that changes nothing leaves the resource version; but of a ValidatingAdmissionPolicy, whose status is
/// applied too, it renews the time in `managedFields` (Kubernetes 1.36). The generation counts changes of the content.
fn is_same(before: &ObjectMeta, after: &ObjectMeta) -> bool {
    before.resource_version == after.resource_version
        || (before.generation.is_some() && before.generation == after.generation && before.labels == after.labels)
}

/// Checks that the credential is confined: as the daemon, a namespace without a class is refused, and it is the policy
/// that refuses it, not missing rights. Tried without effect (`dryRun=All`), until rights and policy are in force.
#[expect(clippy::disallowed_methods, reason = "waits for the API server, with a deadline")]
async fn enforced(daemon: &Client) -> Result<(), AccessError> {
    let begun = tokio::time::Instant::now();
    loop {
        let error = match probe(daemon).await? {
            Probed::Refused => return Ok(()),
            Probed::LetThrough => AccessError::PolicyNotEnforced,
            Probed::ByAnother(why) => AccessError::NoRights(why),
        };
        if begun.elapsed() > IN_FORCE_WITHIN {
            return Err(error);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
