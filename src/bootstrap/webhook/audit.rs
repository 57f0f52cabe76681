//! Judges the existing objects in namespaces of tenants and in adopted ones, and reports the rules that they break.
//! Writes nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use kube::Client;
use serde::Serialize;
use serde_json::{Value, json};

use super::super::{AccessError, answered};
use super::WebhookRequest;
use crate::admission::Resolved;
use crate::admission::existing::{
    AdoptedRules, Broken, JudgedKind, KINDS, NOT_JUDGED, NamespaceRules, by_adopting, by_server, by_webhook, own_hosts,
};
use crate::contract::exception::ExceptedRule;
use crate::contract::{CLASS, identity_of};
use crate::desired::former_classes;
use crate::desired::server_rules::{adopting, classes, host_fields, unchosen};
use crate::errors::chain;
use crate::execute::request::{ApiServer, Ask};
use crate::execute::workloads::selects;
use crate::identity::NamespaceName;
use crate::inventory::adopted::wanted;
use crate::observed::adopted_watch;
use crate::policy::{Admission, AdoptedAdmission};
use crate::rules::Mode;
use crate::rules::server::{HostField, ServerRules};
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
struct Tenant<'p> {
    account: String,
    class: String,
    /// The settings of the class; `None` if the policy has no such class.
    admission: Option<&'p Admission>,
    own_hosts: Vec<String>,
    resolved: Resolved,
    /// The tenant's exceptions. `resolved` does not have them, so that the audit also finds what they allow.
    exceptions: BTreeSet<ExceptedRule>,
}

/// A class that adopts a namespace.
struct Adopting<'p> {
    class: &'p str,
    admission: &'p AdoptedAdmission,
    own_hosts: Vec<String>,
}

/// Judges all objects in namespaces of tenants and in adopted ones by the rules of `request.policy`. `step` is called
/// before each kind with its name and the number of objects judged so far.
///
/// # Errors
/// The namespaces cannot be listed. A kind that cannot be listed is reported in [`Audit::unread`].
pub async fn audit(
    client: &Client,
    request: WebhookRequest<'_>,
    mut step: impl FnMut(&str, u64),
) -> Result<Audit, AccessError> {
    let rules = request.rules();
    let server = ApiServer::new(request.cluster.clone(), client.clone(), SharedMetrics::default());
    let tenants = tenants(&server, request).await?;
    let unchosen = unchosen(request.ledger.older_than_rules);
    let (fields, unknown) = (host_fields(request.policy, request.cluster), Admission::default());
    let adopted = adopted(client, request).await?;
    let (namespaces, not_judged) = ((tenants.len() + adopted.len()) as u64, NOT_JUDGED.to_vec());
    let mut audit = Audit { namespaces, not_judged, off: off(request, unchosen), ..Audit::default() };
    let mut deployments: HashMap<String, Value> = HashMap::new();
    for kind in kinds(request, &fields) {
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
            if (kind.group, kind.resource) == ("apps", "replicasets") && follows(&object, &deployments) {
                return;
            }
            if (kind.group, kind.resource) == ("apps", "deployments") {
                let uid = object["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
                let selector = &object["spec"]["selector"];
                deployments.insert(uid, json!({"metadata": {"namespace": namespace}, "spec": {"selector": selector}}));
            }
            let name = format!("{}/{}", kind.resource, object["metadata"]["name"].as_str().unwrap_or_default());
            for Adopting { class, admission, own_hosts } in adopting.into_iter().flatten() {
                let rules = rules_of_adopted(admission, namespace, own_hosts);
                found.extend(by_adopting(&rules, kind, &object).into_iter().map(|broken| BrokenRule {
                    account: String::new(),
                    class: (*class).to_owned(),
                    namespace: namespace.to_owned(),
                    object: name.clone(),
                    excepted: false,
                    broken,
                }));
            }
            let Some(tenant) = tenant else { return };
            let Admission { server, hosts, .. } = tenant.admission.unwrap_or(&unknown);
            let rules_of_server =
                NamespaceRules { server, unchosen, hosts, own_hosts: &tenant.own_hosts, fields: &fields };
            let mut broken = by_webhook(&rules, &tenant.resolved, kind, &object);
            broken.extend(by_server(&rules_of_server, kind, &object));
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

/// Returns the tenants of namespaces, by namespace.
async fn tenants<'p>(
    server: &ApiServer,
    request: WebhookRequest<'p>,
) -> Result<BTreeMap<String, Tenant<'p>>, AccessError> {
    let keys = [request.sealer.public_key()];
    let former = former_classes(request.ledger, request.policy, request.cluster);
    let mut tenants: BTreeMap<String, Tenant<'p>> = BTreeMap::new();
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
        // The policies know a class that has no namespaces here only as a former class.
        let present = classes(request.policy, request.cluster).find(|known| known.name == class);
        let known = present.or_else(|| former.get(&class).copied());
        let admission = known.map(|class| &class.admission);
        let named = known.and_then(|class| class.namespace.as_deref()).unwrap_or_default();
        let patterns = admission.map(|admission| admission.hosts.allow.as_slice()).unwrap_or_default();
        let own_hosts = own_hosts(patterns, named, &name);
        tenants.insert(name, Tenant { account, class, admission, own_hosts, resolved, exceptions });
    });
    listed.await.map_err(|source| AccessError::Unlisted { what: "namespaces", source })?;
    Ok(tenants)
}

/// Returns all kinds that a rule of some class applies to: [`KINDS`], and those of `hosts.fields`. `fields` are those of
/// tenants' classes.
fn kinds<'k>(request: WebhookRequest<'k>, fields: &'k BTreeSet<HostField>) -> Vec<JudgedKind<'k>> {
    let adopting = adopting(request.policy, request.cluster);
    let of_adopting = adopting.flat_map(|(_, admission)| &admission.server.host_fields);
    let mut kinds: Vec<JudgedKind<'k>> = KINDS.into();
    for HostField { group, plural, .. } in fields.iter().chain(of_adopting) {
        let kind = JudgedKind { group, resource: plural };
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    kinds
}

/// The classes that adopt a namespace, by namespace.
async fn adopted<'p>(
    client: &Client,
    request: WebhookRequest<'p>,
) -> Result<BTreeMap<String, Vec<Adopting<'p>>>, AccessError> {
    let WebhookRequest { policy, cluster, .. } = request;
    let found = answered("namespaces", adopted_watch::listed(client, &wanted(policy, cluster))).await?;
    let theirs = found.into_iter().filter(|(_, one)| !one.ours).map(|(name, one)| {
        let name = name.to_string();
        let selects = |selector: &str| one.selectors.contains(selector);
        let classes = adopting(policy, cluster)
            .filter(|(class, _)| class.adopts().is_some_and(|adopts| selects(adopts.selector.as_str())));
        let classes = classes.map(|(class, admission)| Adopting {
            class: &class.name,
            admission,
            own_hosts: hosts_of_adopted(admission, &name),
        });
        let classes: Vec<Adopting<'p>> = classes.collect();
        (name, classes)
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
async fn path(client: &Client, kind: JudgedKind<'_>) -> Result<Option<String>, AccessError> {
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
    let WebhookRequest { policy, cluster, .. } = request;
    let tenants = classes(policy, cluster).map(|class| {
        let Admission {
            uid,
            host,
            images,
            hosts,
            volumes,
            claims,
            lifetime,
            lifetimes: _,
            lifetime_warning: _,
            server,
        } = &class.admission;
        let by_webhook = [
            ("uid", uid.mode),
            ("host", *host),
            ("images", images.mode),
            ("hosts", hosts.mode),
            ("volumes", volumes.mode),
            ("claims", claims.mode),
            ("lifetime", *lifetime),
        ];
        (class, [&by_webhook[..], &of_server(server, unchosen)].concat())
    });
    let adopting = adopting(policy, cluster).map(|(class, admission)| {
        let AdoptedAdmission { hosts, volumes, allowed_volumes: _, read_write_many, server } = admission;
        let read_write_many = ("claims.read_write_many", read_write_many.mode.unwrap_or(Mode::Off));
        let own = [("hosts", hosts.mode), ("volumes", *volumes), read_write_many];
        (class, [&own[..], &of_server(server, Mode::Off)].concat())
    });
    let off = tenants.chain(adopting).map(|(class, modes)| {
        let off = modes.into_iter().filter(|(_, mode)| *mode == Mode::Off).map(|(rule, _)| rule.to_owned());
        (class.name.clone(), off.collect::<Vec<_>>())
    });
    off.filter(|(_, rules)| !rules.is_empty()).collect()
}

fn of_server(server: &ServerRules, unchosen: Mode) -> [(&'static str, Mode); 5] {
    // The fields of `host_fields` have the mode of the rule `hosts`, and `host_annotations` that of `services`. Policy
    // `bursar-grace` is always enforced.
    let ServerRules {
        services,
        scheduling,
        sysctls,
        ingress,
        storage,
        host_fields: _,
        host_annotations: _,
        longest_grace: _,
    } = server;
    [
        ("services", services),
        ("scheduling", scheduling),
        ("sysctls", sysctls),
        ("ingress", ingress),
        ("claims.storage_classes", storage),
    ]
    .map(|(name, rule)| (name, rule.mode.unwrap_or(unchosen)))
}

/// Returns the patterns of the hosts of one adopted namespace.
#[must_use]
pub fn hosts_of_adopted(admission: &AdoptedAdmission, namespace: &str) -> Vec<String> {
    own_hosts(&admission.host_patterns().collect::<Vec<_>>(), "{name}", namespace)
}

/// Returns the rules by which an audit judges the objects of one adopted namespace. `own_hosts` are those of
/// [`hosts_of_adopted`].
#[must_use]
pub fn rules_of_adopted<'r>(
    admission: &'r AdoptedAdmission,
    namespace: &'r str,
    own_hosts: &'r [String],
) -> AdoptedRules<'r> {
    let AdoptedAdmission { hosts, volumes, allowed_volumes, read_write_many, server } = admission;
    let shared = NamespaceRules { server, unchosen: Mode::Off, hosts, own_hosts, fields: &server.host_fields };
    AdoptedRules { shared, namespace, volumes: *volumes, allowed_volumes, read_write_many }
}
