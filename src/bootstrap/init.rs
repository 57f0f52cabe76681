//! `bursar init`: with the administrator's credential, creates what the daemon needs and cannot create itself. The
//! command can be repeated.
//!
//! The daemon admission policy is created before the daemon gets rights. A new credential is written only after the API
//! server was seen to enforce the policy on it.

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
use super::confinement::difference::note;
use super::confinement::{Probed, probe};
use super::daemon_admission_policy::daemon_admission_policy;
use super::needs::Needs;
use super::own::OwnCredential;
use super::owner::{Said, owner_and_said};
use super::roles::{self, INIT_MANAGER};
use super::webhook::{self, adopted_rules, backstop, mutates, server_rules};
use super::{AccessError, answered, client_of, files, mark, own, owner, read};
use crate::contract::{MANAGED_BY, Sealer};
use crate::execute::request::ApiServer;
use crate::identity::ClusterName;
use crate::kinds::{ObjectKind, ServedKind};
use crate::ledger::LedgerState;
use crate::observed::discovery::{Kinds, resource};
use crate::policy::{Policy, daemon_group};
use crate::privilege;
use crate::store::SEAL_KEY;

/// A new policy and a new role take effect within about a second, or a few seconds more if the API server's informers
/// are busy.
const IN_FORCE_WITHIN: Duration = Duration::from_secs(15);
/// The interval between two checks.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The input of `init`.
#[derive(Debug, Clone, Copy)]
pub struct InitRequest<'a> {
    /// The configuration, from which the daemon's rights are derived.
    pub policy: &'a Policy,
    pub cluster: &'a ClusterName,
    /// A kubeconfig of the cluster's administrator. It is read once and not kept.
    pub admin_kubeconfig: &'a Path,
    /// `[cluster.NAME] kubeconfig`: the path to which the daemon's kubeconfig is written.
    pub daemon_kubeconfig: &'a Path,
    /// The folder of `seal.key`.
    pub state_dir: &'a Path,
    /// The ledger that will own the cluster.
    pub ledger: &'a LedgerState,
    /// Accounts that may have admin and impersonation roles; `None` to keep the list that the cluster records.
    pub administrators: Option<&'a BTreeSet<String>>,
}

/// The result of `init`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitReport {
    /// All objects that were created, changed, kept or removed, in this order.
    pub made: Vec<Made>,
    /// The path of the daemon's kubeconfig.
    pub kubeconfig: PathBuf,
    /// When the daemon's certificate expires. The daemon renews it earlier.
    pub not_after: Timestamp,
    /// Whether this run generated `seal.key`.
    pub seal_key_drawn: bool,
    /// The command that updates the cluster's approver, if it has other rules than this host needs.
    pub approver_outdated: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    /// Kind and name, for example `ClusterRole bursar-daemon`.
    pub what: String,
    pub did: Did,
}

/// The change that was made to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Did {
    /// The object did not exist.
    Created,
    /// The object differed.
    Changed,
    /// The object was already right.
    Kept,
    /// An earlier `init` created the object, and this configuration does not need it.
    Removed,
}

/// Like [`init()`], but succeeds even if another ledger owns the cluster, and ends the rights of that ledger's daemon.
pub async fn take_over(request: InitRequest<'_>) -> Result<InitReport, AccessError> {
    make(request, true).await
}

/// Creates the daemon's access to a cluster. Each repetition applies the changes of the configuration and issues a new
/// certificate to the daemon.
pub async fn init(request: InitRequest<'_>) -> Result<InitReport, AccessError> {
    make(request, false).await
}

/// Returns the manifests that [`init()`] would apply, in their order. Nothing is written.
///
/// # Errors
/// A request fails, another ledger owns the cluster, or an object that the configuration names does not exist.
pub async fn dry_run(request: InitRequest<'_>) -> Result<Vec<Value>, AccessError> {
    let client = client_of(read(request.admin_kubeconfig)?, request.admin_kubeconfig).await?;
    let needs = Needs::of(request.policy, request.cluster, request.ledger);
    let ledger_id = &request.ledger.ledger_id;
    nobody_elses(&client, ledger_id).await?;
    let (said, _) = said(&client, request).await?;
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
    let (mut said, is_found) = said(&client, request).await?;
    // The rules of an approver outside the cluster are in files, which only an administrator can replace.
    if from_anybody && is_found && said.approver_until.is_none() {
        let public_key = public_key(request.state_dir).await?;
        let InitRequest { policy, cluster, ledger, admin_kubeconfig, administrators, .. } = request;
        let handed = ApproverRequest { policy, cluster, ledger, admin_kubeconfig, public_key, administrators };
        approver::hand_over(handed, &client, &mut said).await?;
    }
    let mut made = make_all(&client, &needs, ledger_id, &said).await?;
    let server = ApiServer::new(request.cluster.clone(), client.clone(), Arc::default());
    let group = daemon_group(ledger_id);
    let new = own::obtain(&server, reached, Some(&group), request.daemon_kubeconfig).await?;
    enforced(&client_of(new.kubeconfig.clone(), request.daemon_kubeconfig).await?).await?;
    let seal_key_drawn = write(&new, request).await?;
    let public_key = public_key(request.state_dir).await?;
    let lacks = approver::lacks(request.policy, request.cluster, (ledger_id, public_key), &said);
    let is_lost = said.approver.is_some() && !is_found;
    let approver_outdated = (is_lost || !lacks.is_empty()).then(|| approver::update(request.cluster, &said));
    // The mark of another ledger is obsolete, and the daemon can neither lower nor delete it.
    if mark::remove_unproven(&client, request.cluster, ledger_id, public_key).await? {
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

/// Returns the public key of this host's seal. Generates the key if there is none.
async fn public_key(state_dir: &Path) -> Result<[u8; 32], AccessError> {
    let path = state_dir.join(SEAL_KEY);
    let failed = |source| AccessError::Read { path: path.clone(), source };
    let read = privilege::as_bursar(async {
        files::ensure_seal_key(state_dir)?;
        let seed = zeroize::Zeroizing::new(std::fs::read(&path).map_err(failed)?);
        let sealer = Sealer::from_seed(&seed);
        Ok(sealer.map_err(|error| failed(std::io::Error::new(std::io::ErrorKind::InvalidData, error)))?.public_key())
    });
    read.await.map_err(|error| failed(error.into()))?
}

/// Returns the administrator's choices: those that the cluster records, and the list of administrators of the request.
/// Also returns whether the approver's own ConfigMap exists. If it is lost, the approver stays recorded, and the daemon
/// does not get back the right to approve: only `bursar approver uninstall` gives it back.
async fn said(client: &Client, request: InitRequest<'_>) -> Result<(Said, bool), AccessError> {
    let mut said = owner_and_said(client).await?.map(|(_, said)| said).unwrap_or_default();
    let found = approver::found(client).await?;
    let is_found = found.is_some();
    said.approver = found.or(said.approver);
    if let Some(administrators) = request.administrators {
        said.administrators.clone_from(administrators);
    }
    Ok((said, is_found))
}

/// Creates everything except the credential, with the administrator's client.
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

/// Returns the manifests of all objects, adapted to the kinds and roles of this server.
async fn wanted(client: &Client, needs: &Needs, ledger_id: &str, said: &Said) -> Result<Vec<Value>, AccessError> {
    let manifest_kinds = look(client, needs).await?;
    let edit = edit(client).await?;
    let backstop = backstop(client, needs).await?;
    Ok(manifests(needs, &manifest_kinds, &edit, &backstop, (ledger_id, said)))
}

/// Writes the kubeconfig and the seal's key as the daemon's user, who must own both files.
async fn write(new: &OwnCredential, request: InitRequest<'_>) -> Result<bool, AccessError> {
    let path = request.daemon_kubeconfig;
    let written = privilege::as_bursar(async {
        own::write(&new.kubeconfig, path)?;
        files::ensure_seal_key(request.state_dir)
    });
    written.await.map_err(|error| AccessError::Write { path: path.to_owned(), source: error.into() })?
}

/// Returns all manifests. The policy comes before the binding, so that the daemon never has more rights than at the
/// end.
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

/// Returns the policies of the backstop and of the classes' rules, which have no effect until `bursar webhook install`
/// binds them, and the policies for adopted namespaces with their bindings.
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

/// Checks before any write that the roles and kinds of the configuration exist, and returns the kinds.
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

/// Returns the rules of this server's `edit`, aggregated as its `aggregationRule` says. In a cluster that has just
/// started, the controller may not have aggregated them yet, and the tenants' role would be empty.
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

/// Whether the aggregation selects the role. The built-in roles are selected only by `matchLabels`.
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
    // Every supported cluster has the other kinds. Only admission policies can be missing, before Kubernetes 1.30.
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

/// Removes the objects of kind `K` that an earlier `init` made and that are not in `wanted`: rights that nobody needs
/// any more, and rules that no class has any more.
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

/// Whether the apply between `before` and `after` changed nothing. Such an apply keeps the resource version, except for
/// a ValidatingAdmissionPolicy: because its status is applied too, the apply changes a time in `managedFields`
/// (Kubernetes 1.36). So the generation, which counts changes of the content, is compared as well.
fn is_same(before: &ObjectMeta, after: &ObjectMeta) -> bool {
    before.resource_version == after.resource_version
        || (before.generation.is_some() && before.generation == after.generation && before.labels == after.labels)
}

/// Checks that the credential is confined: as the daemon, requests a namespace without a class in a dry run. The
/// request must fail because of the policy, not because of missing rights. Repeats this until rights and policy are in
/// force.
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
