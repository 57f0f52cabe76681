//! Watches each object of the daemon's confinement by name and compares it with the object that this version and
//! configuration create. A probe tests whether the API server enforces the policy.
//!
//! The daemon repairs at once what it may write: the webhook's configurations and the backstop's bindings. To repair
//! the other objects, an administrator runs `bursar init`.

pub(super) mod difference;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bursar_watch::listing_again;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ApiResource, DynamicObject, PostParams};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

use self::difference::{changed_since_noted, difference, digest, note};
use super::daemon_admission_policy::{DAEMON_ADMISSION_POLICY, REFUSAL, daemon_admission_policy};
use super::needs::Needs;
use super::owner::Said;
use super::webhook::adopted_rules::{self, Adopting};
use super::webhook::remembered::remembered;
use super::webhook::{self, APPROVALS, WEBHOOK, WebhookRequest, backstop, mutates, server_rules};
use super::{AccessError, answered};
use crate::identity::ClusterName;
use crate::policy::Policy;

const GROUP: &str = "admissionregistration.k8s.io";

/// The kinds of the confinement, each with its plural.
const VALIDATING_POLICY: (&str, &str) = ("ValidatingAdmissionPolicy", "validatingadmissionpolicies");
const VALIDATING_BINDING: (&str, &str) = ("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings");
const MUTATING_POLICY: (&str, &str) = ("MutatingAdmissionPolicy", "mutatingadmissionpolicies");
const MUTATING_BINDING: (&str, &str) = ("MutatingAdmissionPolicyBinding", "mutatingadmissionpolicybindings");
const VALIDATING_HOOKS: (&str, &str) = ("ValidatingWebhookConfiguration", "validatingwebhookconfigurations");
const MUTATING_HOOKS: (&str, &str) = ("MutatingWebhookConfiguration", "mutatingwebhookconfigurations");

/// An object that differs from what it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Breach {
    /// Kind and name, for example `ValidatingAdmissionPolicy bursar-cage`.
    pub object: String,
    /// The difference and the remedy.
    pub what: String,
    /// Whether the daemon repairs the object.
    pub repairable: bool,
    /// Whether `init` created the object from an older configuration, and nobody changed it since.
    pub outdated: bool,
}

/// The result of a comparison.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Compared {
    pub breaches: Vec<Breach>,
    /// The objects that their watches have not listed yet.
    pub unlisted: Vec<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Expected {
    pub manifest: Value,
    /// Whether the daemon may write the object.
    pub repairable: bool,
    /// Whether the object depends on the configuration that `init` was given. Such an object is compared with the
    /// annotations that `init` wrote on it. If `init` was given a configuration other than the current one, the object
    /// is outdated.
    pub noted: bool,
    /// Whether the object is a rule for adopted namespaces, which does not confine the daemon. If such an object
    /// differs, an administrator has not run `init` yet. If `manifest` has no `spec`, the object should not exist.
    pub rule: bool,
}

/// Kind and name.
type Name = (String, String);

#[derive(Debug, Clone, Default)]
enum Seen {
    /// The watch has not listed the object yet.
    #[default]
    NotYet,
    /// The daemon has no right to watch it.
    Forbidden,
    Absent,
    Present(Box<Value>),
}

/// The watches of the confinement. They end when this value is dropped.
#[derive(Debug)]
pub struct ConfinementWatch {
    seen: Arc<Mutex<BTreeMap<Name, Seen>>>,
    version: Arc<AtomicU64>,
    /// The names of the rules for adopted namespaces.
    rules: Vec<String>,
    _tasks: Vec<AbortOnDropHandle<()>>,
}

impl ConfinementWatch {
    /// Starts the watches. Every change notifies `changed`. `mutates` says whether the server has mutating admission
    /// policies. `rules` are the names of the rules for adopted namespaces. Must be called within a Tokio runtime.
    #[must_use]
    pub fn start(client: &Client, mutates: bool, rules: Vec<String>, changed: &Arc<Notify>) -> Self {
        let seen: Arc<Mutex<BTreeMap<Name, Seen>>> = Arc::default();
        let version = Arc::new(AtomicU64::new(0));
        let of_rules =
            rules.iter().flat_map(|name| [VALIDATING_POLICY, VALIDATING_BINDING].map(|kind| (kind, name.clone())));
        let tasks = names(mutates).into_iter().chain(of_rules).map(|(kind, name)| {
            seen.lock().insert((kind.0.to_owned(), name.clone()), Seen::NotYet);
            let task =
                follow(client.clone(), kind, name, Arc::clone(&seen), (Arc::clone(&version), Arc::clone(changed)));
            AbortOnDropHandle::new(tokio::spawn(task))
        });
        let tasks = tasks.collect();
        Self { seen, version, rules, _tasks: tasks }
    }

    /// Returns the names of the rules that are watched.
    #[must_use]
    pub fn rules(&self) -> &[String] {
        &self.rules
    }

    /// Returns a number that grows with each change.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Returns what is wrong if the cluster has webhook configurations with Bursar's names, and this host installed none.
    pub fn foreign(&self, state_dir: &Path, cluster: &ClusterName) -> Result<Option<String>, AccessError> {
        let seen = self.seen.lock();
        let there = seen.iter().filter(|((kind, _), seen)| is_hooks(kind) && matches!(seen, Seen::Present(_)));
        let there: Vec<String> = there.map(|((kind, name), _)| format!("{kind} {name}")).collect();
        drop(seen);
        if there.is_empty() || remembered(state_dir, cluster)?.is_some() {
            return Ok(None);
        }
        Ok(Some(format!(
            "not installed by this host, so its address, image and authority may be a thief's: {}",
            there.join(", ")
        )))
    }

    /// Returns the differences. An object that cannot be watched counts as a difference. The other objects are compared
    /// nevertheless.
    #[must_use]
    pub fn compare(&self, expected: &[Expected]) -> Compared {
        let seen = self.seen.lock();
        let mut compared = Compared::default();
        for Expected { manifest, repairable, noted, rule } in expected {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let (kind, name) = (text(&manifest["kind"]), text(&manifest["metadata"]["name"]));
            let object = format!("{kind} {name}");
            let (mut outdated, mut repairable) = (false, *repairable);
            let what = match seen.get(&(kind, name)).cloned().unwrap_or_default() {
                Seen::Absent | Seen::Forbidden if *rule => {
                    outdated = true;
                    manifest["spec"].is_object().then(|| "is not in force".to_owned())
                }
                Seen::Present(_) if *rule && manifest["spec"].is_null() => {
                    outdated = true;
                    Some("comes from an older configuration".to_owned())
                }
                Seen::NotYet => {
                    compared.unlisted.push(object);
                    continue;
                }
                Seen::Forbidden => {
                    repairable = false;
                    Some("cannot be watched".to_owned())
                }
                Seen::Absent => Some("is gone".to_owned()),
                Seen::Present(stored) if *noted => changed_since_noted(manifest, &stored).or_else(|| {
                    outdated = digest(&manifest["spec"]) != digest(&stored["spec"]);
                    outdated.then(|| "was made from an older configuration".to_owned())
                }),
                Seen::Present(stored) => difference(manifest, &stored)
                    .map(|field| format!("differs from what this version of bursar creates, in field {field}")),
            };
            if let Some(what) = what {
                let remedy = if repairable { "the daemon writes it again" } else { "run bursar init" };
                compared.breaches.push(Breach { object, what: format!("{what}; {remedy}"), repairable, outdated });
            }
        }
        // Webhook configurations are expected only if this host installed a webhook. Until their watches have listed
        // them, it is not known that there is no foreign one.
        for ((kind, name), seen) in seen.iter().filter(|((kind, _), _)| is_hooks(kind)) {
            if expected.iter().any(|it| it.manifest["kind"] == **kind && it.manifest["metadata"]["name"] == **name) {
                continue;
            }
            let object = format!("{kind} {name}");
            match seen {
                Seen::NotYet => compared.unlisted.push(object),
                Seen::Forbidden => {
                    let what = "cannot be watched; run bursar init".to_owned();
                    compared.breaches.push(Breach { object, what, repairable: false, outdated: false });
                }
                Seen::Absent | Seen::Present(_) => {}
            }
        }
        compared
    }
}

fn is_hooks(kind: &str) -> bool {
    kind == VALIDATING_HOOKS.0 || kind == MUTATING_HOOKS.0
}

/// Returns the kinds and names of the watched objects, except the rules for adopted namespaces.
fn names(mutates: bool) -> Vec<((&'static str, &'static str), String)> {
    let mut names = vec![
        (VALIDATING_POLICY, DAEMON_ADMISSION_POLICY.to_owned()),
        (VALIDATING_BINDING, DAEMON_ADMISSION_POLICY.to_owned()),
        (VALIDATING_HOOKS, WEBHOOK.to_owned()),
        (VALIDATING_HOOKS, APPROVALS.to_owned()),
        (MUTATING_HOOKS, WEBHOOK.to_owned()),
    ];
    names.extend(backstop::POLICIES.map(|name| (VALIDATING_POLICY, name.to_owned())));
    names.extend(server_rules::POLICIES.map(|name| (VALIDATING_POLICY, name.to_owned())));
    names.extend(backstop::names(VALIDATING_BINDING.0).into_iter().map(|name| (VALIDATING_BINDING, name)));
    if mutates {
        names.extend(backstop::MUTATING.map(|name| (MUTATING_POLICY, name.to_owned())));
        names.extend(backstop::names(MUTATING_BINDING.0).into_iter().map(|name| (MUTATING_BINDING, name)));
    }
    names
}

async fn follow(
    client: Client,
    (kind, plural): (&'static str, &'static str),
    name: String,
    seen: Arc<Mutex<BTreeMap<Name, Seen>>>,
    (version, changed): (Arc<AtomicU64>, Arc<Notify>),
) {
    let resource = ApiResource {
        group: GROUP.to_owned(),
        version: "v1".to_owned(),
        api_version: format!("{GROUP}/v1"),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    };
    let api = Api::<DynamicObject>::all_with(client, &resource);
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut events = std::pin::pin!(listing_again(api, config));
    let key = (kind.to_owned(), name);
    let mut listed = Seen::Absent;
    while let Some(event) = events.next().await {
        let now = match event {
            Ok(Event::Init) => {
                listed = Seen::Absent;
                continue;
            }
            Ok(Event::InitApply(object)) => {
                listed = Seen::Present(Box::new(seen_of(object)));
                continue;
            }
            Ok(Event::InitDone) => std::mem::replace(&mut listed, Seen::Absent),
            Ok(Event::Apply(object)) => Seen::Present(Box::new(seen_of(object))),
            Ok(Event::Delete(_)) => Seen::Absent,
            Err(error) if is_forbidden(&error) => Seen::Forbidden,
            Err(_) => continue,
        };
        let before = seen.lock().insert(key.clone(), now.clone()).unwrap_or_default();
        let is_same = match (&before, &now) {
            (Seen::Absent, Seen::Absent) | (Seen::Forbidden, Seen::Forbidden) => true,
            (Seen::Present(before), Seen::Present(now)) => content(before) == content(now),
            _ => false,
        };
        if !is_same {
            version.fetch_add(1, Ordering::AcqRel);
            changed.notify_one();
        }
    }
}

fn is_forbidden(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::InitialListFailed(kube::Error::Api(status)) if status.code == 403)
}

/// Returns the part of an object that is kept.
fn seen_of(mut object: DynamicObject) -> Value {
    let annotations = object.metadata.annotations.unwrap_or_default();
    json!({
        "spec": object.data["spec"].take(),
        "webhooks": object.data["webhooks"].take(),
        "metadata": {"annotations": annotations},
    })
}

/// Returns the parts of an object that are compared. The status is not compared, because the API server writes it.
fn content(object: &Value) -> [&Value; 3] {
    [&object["spec"], &object["webhooks"], &object["metadata"]]
}

/// The result of the probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Probed {
    /// The daemon admission policy refused the request.
    Refused,
    /// The request was allowed.
    LetThrough,
    /// Something else refused the request, so the policy was not tested.
    ByAnother(String),
}

/// Tests whether the API server enforces the policy: as the daemon, requests a namespace without a class in a dry run,
/// which this policy must refuse.
pub async fn probe(client: &Client) -> Result<Probed, AccessError> {
    let api = Api::<Namespace>::all(client.clone());
    let mut probe = Namespace::default();
    probe.metadata.name = Some("bursar-probe".to_owned());
    let parameters = PostParams { dry_run: true, ..PostParams::default() };
    match answered("the daemon admission policy", api.create(&parameters, &probe)).await {
        Ok(_) => Ok(Probed::LetThrough),
        Err(AccessError::Api { source, what }) => match *source {
            kube::Error::Api(status) if status.message.contains(REFUSAL) => Ok(Probed::Refused),
            kube::Error::Api(status) if status.code < 500 => Ok(Probed::ByAnother(status.message.clone())),
            source => Err(AccessError::Api { what, source: Box::new(source) }),
        },
        Err(error) => Err(error),
    }
}

/// Returns the objects of the confinement, and the ways in which an attacker on this host could become cluster
/// administrator.
pub async fn expected(
    client: &Client,
    request: WebhookRequest<'_>,
    said: &Said,
) -> Result<(Vec<Expected>, Vec<String>), AccessError> {
    let needs = Needs::of(request.policy, request.cluster, request.ledger);
    let ways = ways_to_administrator(&needs, said);
    let fixed = |manifest| Expected { manifest, repairable: false, noted: false, rule: false };
    let [policy, binding] = daemon_admission_policy(&needs, &said.confinement());
    let mut expected = vec![noted(policy, false), fixed(binding)];
    expected.extend(backstop::validating().into_iter().map(fixed));
    expected.extend(server_rules::policies(&needs.rules).into_iter().map(|manifest| noted(manifest, false)));
    expected.extend(rules(&needs.rules.adopting));
    let has_mutating = mutates(client).await?;
    if has_mutating {
        expected.extend(backstop::mutating().into_iter().map(fixed));
    }
    if let Some(remembered) = remembered(request.state_dir, request.cluster)? {
        let kept = |manifest| Expected { manifest, repairable: true, noted: false, rule: false };
        expected.extend(webhook::expected(client, request, &remembered).await?.into_iter().map(kept));
    }
    if !has_mutating {
        expected.retain(|expected| expected.manifest["kind"] != MUTATING_BINDING.0);
    }
    Ok((expected, ways))
}

/// Returns the names of all rules that classes with `from = "adopted"` can have.
#[must_use]
pub fn rule_names(policy: &Policy, cluster: &ClusterName) -> Vec<String> {
    Adopting::of(policy, cluster).iter().flat_map(Adopting::names).collect()
}

/// Returns the manifests of the rules for adopted namespaces. A rule that should not exist has a manifest without
/// `spec`.
fn rules(adopting: &[Adopting]) -> Vec<Expected> {
    let mut wanted = adopted_rules::manifests(adopting);
    for name in adopting.iter().flat_map(Adopting::names) {
        if !wanted.iter().any(|manifest| manifest["metadata"]["name"] == *name) {
            let absent = [VALIDATING_POLICY, VALIDATING_BINDING]
                .map(|(kind, _)| json!({"kind": kind, "metadata": {"name": name}}));
            wanted.extend(absent);
        }
    }
    wanted.into_iter().map(|manifest| noted(manifest, true)).collect()
}

fn noted(mut manifest: Value, rule: bool) -> Expected {
    note(&mut manifest);
    Expected { manifest, repairable: false, noted: true, rule }
}

/// Returns the ways in which an attacker on this host could become cluster administrator. Empty if there is none.
#[must_use]
pub fn ways_to_administrator(needs: &Needs, said: &Said) -> Vec<String> {
    let mut ways = Vec::new();
    if said.approver.is_none() {
        ways.push(
            "it approves its own certificate requests, and no policy can read their subjects (bursar approver install)"
                .to_owned(),
        );
    }
    if said.administrators.is_empty() && !needs.admin_roles.is_empty() {
        ways.push(
            "no administrators are listed, so it may bind admin roles to any account (bursar init --administrators)"
                .to_owned(),
        );
    }
    if needs.levels.contains("privileged") {
        ways.push("a class has pod_security = \"privileged\"".to_owned());
    }
    if !needs.adopted.is_empty() {
        let classes: Vec<&str> = needs.adopted.keys().map(String::as_str).collect();
        ways.push(format!(
            "class {} adopts namespaces whose Pod Security level others choose: in a namespace without a level it could \
             let any credential run privileged pods",
            classes.join(", ")
        ));
    }
    if !needs.admin_groups.is_empty() {
        let classes: Vec<&str> = needs.admin_groups.iter().map(String::as_str).collect();
        ways.push(format!(
            "class {} impersonates, or has roles in the whole cluster, by certificates: it could get a certificate in the \
             name of a listed administrator; OIDC is recommended for such a class",
            classes.join(", ")
        ));
    }
    ways
}

/// Returns a sentence about the classes with `impersonate`, whatever credentials they have; `None` if there is none.
/// The directory decides who is in such a class.
#[must_use]
pub fn administrators_by_directory(policy: &Policy, cluster: &ClusterName) -> Option<String> {
    let classes = policy.classes.values().filter(|class| class.clusters.contains(cluster));
    let classes: Vec<String> = classes
        .filter(|class| !class.impersonate.is_empty())
        .map(|class| format!("class {} (impersonates {})", class.name, class.impersonate.join(", ")))
        .collect();
    (!classes.is_empty()).then(|| {
        format!(
            "by way of the directory, everybody in these classes is a cluster administrator: {}",
            classes.join(", ")
        )
    })
}

/// Joins the result of [`ways_to_administrator`] into one sentence. `None` if there is no way.
#[must_use]
pub fn sentence(ways: &[String]) -> Option<String> {
    (!ways.is_empty()).then(|| format!("this host can make itself cluster administrator: {}", ways.join("; ")))
}

#[cfg(test)]
mod tests;
