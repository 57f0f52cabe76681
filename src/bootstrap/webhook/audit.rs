//! What runs in tenants' namespaces already, and which rules it breaks. Reads, and writes nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use kube::Client;
use serde::Serialize;
use serde_json::{Value, json};

use super::super::{AccessError, answered};
use super::WebhookRequest;
use crate::admission::Resolved;
use crate::admission::existing::{Broken, KINDS, Kind, NOT_JUDGED, by_server, by_webhook};
use crate::contract::exception::ExceptedRule;
use crate::contract::{CLASS, identity_of};
use crate::desired::server_rules::unchosen;
use crate::errors::chain;
use crate::execute::request::{ApiServer, Ask};
use crate::execute::workloads::selects;
use crate::identity::NamespaceName;
use crate::rules::Mode;
use crate::telemetry::SharedMetrics;

/// A rule that something breaks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Found {
    /// `tool:foo`; empty if the namespace proves nobody's.
    pub account: String,
    /// The class that the namespace says.
    pub class: String,
    /// Where it is.
    pub namespace: String,
    /// `pods/web`.
    pub object: String,
    /// Which rule, and what is wrong.
    #[serde(flatten)]
    pub broken: Broken,
    /// An administrator excepted the account from the rule.
    pub excepted: bool,
}

/// What an audit came to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Audit {
    /// Namespaces of tenants.
    pub namespaces: u64,
    /// Objects that were judged.
    pub objects: u64,
    /// By account, object and rule.
    pub found: Vec<Found>,
    /// Rules by class that are off, and so judge nothing.
    pub off: BTreeMap<String, Vec<String>>,
    /// What of the rules no object shows.
    pub not_judged: Vec<&'static str>,
    /// Kinds that could not be listed, with why.
    pub unread: BTreeMap<String, String>,
}

/// Whose a namespace is.
struct Tenant {
    account: String,
    class: String,
    resolved: Resolved,
    /// Taken out of `resolved`, so that all that they let pass is found.
    exceptions: BTreeSet<ExceptedRule>,
}

/// Judges everything in tenants' namespaces by the rules of `request.policy`. `step` hears of each page: what is listed,
/// and how many objects were judged.
///
/// # Errors
/// Namespaces cannot be listed. A kind that cannot be is told in [`Audit::unread`].
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
    let (namespaces, not_judged) = (tenants.len() as u64, NOT_JUDGED.to_vec());
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
            let Some(tenant) = tenants.get(namespace) else { return };
            objects += 1;
            // What a Deployment made of its template was judged with it; pods are judged themselves.
            if kind.resource == "replicasets" && follows(&object, &deployments) {
                return;
            }
            if kind.resource == "deployments" {
                let uid = object["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
                let selector = &object["spec"]["selector"];
                deployments.insert(uid, json!({"metadata": {"namespace": namespace}, "spec": {"selector": selector}}));
            }
            let mut broken = by_webhook(&rules, &tenant.resolved, kind, &object);
            let class = request.policy.classes.get(&tenant.class);
            broken.extend(
                class.into_iter().flat_map(|class| by_server(&class.admission.server, unchosen, kind, &object)),
            );
            let object = format!("{}/{}", kind.resource, object["metadata"]["name"].as_str().unwrap_or_default());
            found.extend(broken.into_iter().map(|broken| Found {
                account: tenant.account.clone(),
                class: tenant.class.clone(),
                namespace: namespace.to_owned(),
                object: object.clone(),
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
        let key =
            |found: &Found| (found.account.clone(), found.namespace.clone(), found.object.clone(), found.broken.rule);
        key(one).cmp(&key(other))
    });
    Ok(audit)
}

/// Whether a `ReplicaSet` is a Deployment's, which scales it. Tenants write `ownerReferences`: one that names anything else
/// excuses nothing.
fn follows(object: &Value, deployments: &HashMap<String, Value>) -> bool {
    let owners = object["metadata"]["ownerReferences"].as_array();
    let owner = owners.into_iter().flatten().find(|owner| owner["controller"] == true);
    let found = owner.and_then(|owner| deployments.get(owner["uid"].as_str()?));
    found.is_some_and(|deployment| {
        deployment["metadata"]["namespace"] == object["metadata"]["namespace"] && selects(deployment, object)
    })
}

/// Where a kind is listed in the whole cluster; `None`: the cluster does not have it.
async fn path(client: &Client, kind: Kind) -> Result<Option<String>, AccessError> {
    let Kind { group, resource } = kind;
    if group.is_empty() {
        return Ok(Some(format!("/api/v1/{resource}")));
    }
    let what = "API groups are listed";
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

/// Rules that are off, by class.
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
