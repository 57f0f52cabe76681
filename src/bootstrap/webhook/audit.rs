//! Judges the existing objects in namespaces of tenants and in adopted ones, and reports the rules that they break.
//! Writes nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use kube::Client;
use serde::Serialize;
use serde_json::{Value, json};

use super::super::{AccessError, answered};
use super::WebhookRequest;
use crate::admission::Resolved;
use crate::admission::existing::{Broken, GRACE, JudgedKind, KINDS, NOT_JUDGED, TOKENS, by_server, by_webhook};
use crate::contract::exception::ExceptedRule;
use crate::contract::{CLASS, identity_of};
use crate::desired::former_classes;
use crate::desired::server_rules::{adopting, unchosen};
use crate::errors::chain;
use crate::execute::request::{ApiServer, Ask};
use crate::execute::workloads::selects;
use crate::identity::NamespaceName;
use crate::inventory::adopted::wanted;
use crate::observed::adopted_watch;
use crate::rules::Mode;
use crate::rules::server::ServerRules;
use crate::telemetry::SharedMetrics;

/// A rule that an object breaks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BrokenRule {
    /// For example `tool:foo`; empty if the namespace has no valid seal, or is adopted.
    pub account: String,
    /// The class that the namespace's label names, or that adopts the namespace.
    pub class: String,
    pub namespace: String,
    /// For example `pods/web`.
    pub object: String,
    /// The rule, and what is wrong.
    #[serde(flatten)]
    pub broken: Broken,
    /// Whether an administrator excepted the account from this rule.
    pub excepted: bool,
}

/// The result of an audit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Audit {
    /// Number of namespaces: those of tenants, and adopted ones.
    pub namespaces: u64,
    /// Number of judged objects.
    pub objects: u64,
    /// Sorted by account, namespace, object and rule.
    pub found: Vec<BrokenRule>,
    /// Rules with mode `off`, by class.
    pub off: BTreeMap<String, Vec<String>>,
    /// What the audit does not judge ([`NOT_JUDGED`]).
    pub not_judged: Vec<&'static str>,
    /// Kinds that could not be listed, with the error.
    pub unread: BTreeMap<String, String>,
}

/// The tenant of a namespace.
struct Tenant {
    account: String,
    class: String,
    resolved: Resolved,
    /// The tenant's exceptions. `resolved` does not have them, so that the audit also finds what they allow.
    exceptions: BTreeSet<ExceptedRule>,
}

/// Judges all objects in tenants' namespaces by the rules of `request.policy`. `step` is called before each kind with
/// its name and the number of objects judged so far.
///
/// # Errors
/// The namespaces cannot be listed. A kind that cannot be listed is reported in [`Audit::unread`].
pub async fn audit(
    client: &Client,
    request: WebhookRequest<'_>,
    mut step: impl FnMut(&str, u64),
) -> Result<Audit, AccessError> {
    let rules = request.rules();
    let keys = [request.sealer.public_key()];
    let mut tenants: BTreeMap<String, Tenant> = BTreeMap::new();
    let server = ApiServer::new(request.cluster.clone(), client.clone(), SharedMetrics::default());
    let label = CLASS.replace('/', "%2F");
    let listed = server.pages("/api/v1/namespaces", &label, Ask::Get, |namespace| {
        let metadata = &namespace["metadata"];
        let map =
            |key: &str| serde_json::from_value::<BTreeMap<String, String>>(metadata[key].clone()).unwrap_or_default();
        let (labels, annotations) = (map("labels"), map("annotations"));
        let name = metadata["name"].as_str().unwrap_or_default().to_owned();
        let Ok(namespace) = NamespaceName::try_from(name.clone()) else { return };
        let mut resolved = Resolved::of(identity_of(request.cluster, &namespace, &labels, &annotations, &keys));
        let (account, exceptions) = match &mut resolved {
            Resolved::Sealed(identity) => (identity.account.to_string(), std::mem::take(&mut identity.exceptions)),
            Resolved::Unresolved(_) => (String::new(), BTreeSet::new()),
        };
        let class = labels.get(CLASS).cloned().unwrap_or_default();
        tenants.insert(name, Tenant { account, class, resolved, exceptions });
    });
    listed.await.map_err(|source| AccessError::Unlisted { what: "namespaces", source })?;
    let unchosen = unchosen(request.ledger.older_than_rules);
    let (former, unknown) = (former_classes(request.ledger, request.policy, request.cluster), ServerRules::default());
    let adopted = adopted(client, request).await?;
    let (namespaces, not_judged) = ((tenants.len() + adopted.len()) as u64, NOT_JUDGED.to_vec());
    let mut audit = Audit { namespaces, not_judged, off: off(request, unchosen), ..Audit::default() };
    let mut deployments: HashMap<String, Value> = HashMap::new();
    for kind in KINDS {
        let name =
            if kind.group.is_empty() { kind.resource.to_owned() } else { format!("{}.{}", kind.resource, kind.group) };
        let path = match path(client, kind).await {
            Ok(Some(path)) => path,
            Ok(None) => continue,
            Err(error) => {
                audit.unread.insert(name, chain(&error));
                continue;
            }
        };
        step(&name, audit.objects);
        let (mut objects, mut found) = (0, Vec::new());
        let listed = server.pages(&path, "", Ask::Get, |object| {
            let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
            let (tenant, adopting) = (tenants.get(namespace), adopted.get(namespace));
            if tenant.is_none() && adopting.is_none() {
                return;
            }
            objects += 1;
            // The template of a Deployment was judged with the Deployment, so its ReplicaSets are skipped. Pods are
            // judged themselves.
            if kind.resource == "replicasets" && follows(&object, &deployments) {
                return;
            }
            if kind.resource == "deployments" {
                let uid = object["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
                let selector = &object["spec"]["selector"];
                deployments.insert(uid, json!({"metadata": {"namespace": namespace}, "spec": {"selector": selector}}));
            }
            let name = format!("{}/{}", kind.resource, object["metadata"]["name"].as_str().unwrap_or_default());
            for (class, server) in adopting.into_iter().flatten() {
                let broken = by_server(server, Mode::Off, kind, &object).into_iter();
                // These two policies apply only in tenants' namespaces.
                let broken = broken.filter(|broken| ![GRACE, TOKENS].contains(&broken.rule));
                found.extend(broken.map(|broken| BrokenRule {
                    account: String::new(),
                    class: (*class).to_owned(),
                    namespace: namespace.to_owned(),
                    object: name.clone(),
                    excepted: false,
                    broken,
                }));
            }
            let Some(tenant) = tenant else { return };
            let mut broken = by_webhook(&rules, &tenant.resolved, kind, &object);
            let class = request.policy.classes.get(&tenant.class).or_else(|| former.get(&tenant.class).copied());
            let server = class.map_or(&unknown, |class| &class.admission.server);
            broken.extend(by_server(server, unchosen, kind, &object));
            found.extend(broken.into_iter().map(|broken| BrokenRule {
                account: tenant.account.clone(),
                class: tenant.class.clone(),
                namespace: namespace.to_owned(),
                object: name.clone(),
                excepted: tenant.exceptions.iter().any(|rule| rule.as_str() == broken.rule),
                broken,
            }));
        });
        let listed = listed.await;
        audit.objects += objects;
        audit.found.extend(found);
        if let Err(error) = listed {
            audit.unread.insert(name, chain(&error));
        }
    }
    audit.found.sort_by(|one, other| {
        let key = |found: &BrokenRule| {
            (found.account.clone(), found.namespace.clone(), found.object.clone(), found.broken.rule)
        };
        key(one).cmp(&key(other))
    });
    Ok(audit)
}

/// The classes that adopt a namespace, by namespace, each with its name and the rules that the API server evaluates.
async fn adopted<'p>(
    client: &Client,
    request: WebhookRequest<'p>,
) -> Result<BTreeMap<String, Vec<(&'p str, &'p ServerRules)>>, AccessError> {
    let WebhookRequest { policy, cluster, .. } = request;
    let found = answered("namespaces", adopted_watch::listed(client, &wanted(policy, cluster))).await?;
    let theirs = found.into_iter().filter(|(_, one)| !one.ours).map(|(name, one)| {
        let selects = |selector: &str| one.selectors.contains(selector);
        let classes = adopting(policy, cluster)
            .filter(|(class, _)| class.adopts().is_some_and(|adopts| selects(adopts.selector.as_str())))
            .map(|(class, admission)| (class.name.as_str(), &admission.server));
        (name.to_string(), classes.collect())
    });
    Ok(theirs.collect())
}

/// Whether a `ReplicaSet` belongs to a Deployment, which scales it. Tenants can write `ownerReferences`, so the
/// Deployment must exist, be in the same namespace and select the `ReplicaSet`.
fn follows(object: &Value, deployments: &HashMap<String, Value>) -> bool {
    let owners = object["metadata"]["ownerReferences"].as_array();
    let owner = owners.into_iter().flatten().find(|owner| owner["controller"] == true);
    let found = owner.and_then(|owner| deployments.get(owner["uid"].as_str()?));
    found.is_some_and(|deployment| {
        deployment["metadata"]["namespace"] == object["metadata"]["namespace"] && selects(deployment, object)
    })
}

/// The path that lists a kind in the whole cluster; `None` if the cluster does not have the kind.
async fn path(client: &Client, kind: JudgedKind) -> Result<Option<String>, AccessError> {
    let JudgedKind { group, resource } = kind;
    if group.is_empty() {
        return Ok(Some(format!("/api/v1/{resource}")));
    }
    let what = "API groups";
    let groups = answered(what, client.list_api_groups()).await?;
    let Some(found) = groups.groups.into_iter().find(|known| known.name == group) else { return Ok(None) };
    let mut versions: BTreeSet<String> = BTreeSet::new();
    let preferred = found.preferred_version.map(|version| version.group_version);
    for version in preferred.into_iter().chain(found.versions.into_iter().map(|version| version.group_version)) {
        if !versions.insert(version.clone()) {
            continue;
        }
        let kinds = answered(what, client.list_api_group_resources(&version)).await?;
        if kinds.resources.iter().any(|known| known.name == resource) {
            return Ok(Some(format!("/apis/{version}/{resource}")));
        }
    }
    Ok(None)
}

/// Rules with mode `off`, by class.
fn off(request: WebhookRequest<'_>, unchosen: Mode) -> BTreeMap<String, Vec<String>> {
    let classes = crate::desired::server_rules::classes(request.policy, request.cluster);
    let off = classes.map(|class| {
        let admission = &class.admission;
        let server = &admission.server;
        let of = |mode: Option<Mode>| mode.unwrap_or(unchosen);
        let modes = [
            ("uid", admission.uid.mode),
            ("host", admission.host),
            ("images", admission.images.mode),
            ("hosts", admission.hosts.mode),
            ("volumes", admission.volumes.mode),
            ("claims", admission.claims.mode),
            ("lifetime", admission.lifetime),
            ("services", of(server.services.mode)),
            ("scheduling", of(server.scheduling.mode)),
            ("sysctls", of(server.sysctls.mode)),
            ("ingress", of(server.ingress.mode)),
            ("claims.storage_classes", of(server.storage.mode)),
        ];
        let off = modes.into_iter().filter(|(_, mode)| *mode == Mode::Off).map(|(rule, _)| rule.to_owned());
        (class.name.clone(), off.collect::<Vec<_>>())
    });
    off.filter(|(_, rules)| !rules.is_empty()).collect()
}
