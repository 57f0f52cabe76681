//! `bursar webhook selftest`: sends dry-run requests that must be allowed and requests that must be refused, in a
//! namespace of its own that is sealed for one class after the other. Only the namespace is stored.
//! `claims.storage_classes` is not tested, because the requests are the daemon's, and the rule exempts its claims.

use std::time::Duration;

use http::Request;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::review::is_denied;
use super::server_rules;
use super::{AccessError, WEBHOOK, WebhookRequest, found, if_outdated, wait_for};
use crate::admission::image::NO_IMAGES;
use crate::bootstrap::answered;
use crate::contract::{self, CLASS, Identity, LIFETIME, SELFTEST, TenantState};
use crate::desired::quota::{DEFAULTS, traps};
use crate::desired::server_rules::unchosen;
use crate::errors::chain;
use crate::identity::{AccountId, AccountName, DirectoryId, Gid, NamespaceName, PosixIdentity, Uid};
use crate::policy::Class;
use crate::rules::server::{ServerRule, ServerRules};
use crate::rules::{ClassRules, Mode};

/// The sysctl for the lowest port that a pod may listen on. The restricted Pod Security Standard lets every pod set it.
const PORTS: &str = "net.ipv4.ip_unprivileged_port_start";
/// The uid that the namespace is sealed for. No tenant is expected to have it.
const RUNS_AS: u32 = 65533;
/// How long to wait until the webhook sees a new seal, which normally takes a second.
const HEARD_WITHIN: Duration = Duration::from_secs(30);
/// How long to wait until the policies see the namespace's new class, which normally takes a second too.
const POLICIES_HEAR_WITHIN: Duration = Duration::from_secs(5);

/// A request of the self-test and its result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tried {
    /// The class whose rules were tested.
    pub class: String,
    /// For example `a pod that runs as root`.
    pub what: &'static str,
    /// Whether the request must be refused.
    pub must_be_refused: bool,
    /// What went wrong; `None` if the result is right.
    pub wrong: Option<String>,
    /// The remedy, if it is not to install the webhook again.
    pub remedy: Option<String>,
}

/// Tests the rules of every class.
///
/// # Errors
/// There is no webhook, or the namespace cannot be written. A request with the wrong result is reported in [`Tried`].
pub async fn selftest(client: &Client, request: WebhookRequest<'_>) -> Result<Vec<Tried>, AccessError> {
    found(client).await?.ok_or(AccessError::NoWebhook)?;
    let mut tried = Vec::new();
    for (class, rules) in &request.rules().classes {
        seal(client, request, class, rules).await?;
        tried.extend(of_class(client, class, rules).await?);
        let Some(known) = request.policy.classes.get(class) else { continue };
        tried.extend(under_quota(known, request));
        let unchosen = unchosen(request.ledger.older_than_rules);
        // The API server sees the class through a watch, so the first request may need a few seconds.
        let mut patience = POLICIES_HEAR_WITHIN;
        for (what, path, object) in refused_by_server(&known.admission.server, unchosen, rules) {
            let answer = wait_for(patience, async || Ok(must_refuse(client, path, &object).await)).await?;
            patience = Duration::ZERO;
            tried.push(Tried { class: class.clone(), what, must_be_refused: true, wrong: answer.err(), remedy: None });
        }
    }
    Ok(tried)
}

/// Seals the namespace for a class.
async fn seal(
    client: &Client,
    request: WebhookRequest<'_>,
    class: &str,
    rules: &ClassRules,
) -> Result<(), AccessError> {
    match seal_manifest(request, class, rules) {
        Some(manifest) => seal_with(client, &manifest).await,
        None => Ok(()),
    }
}

/// Returns the namespace's manifest with a seal for the class.
pub(super) fn seal_manifest(request: WebhookRequest<'_>, class: &str, rules: &ClassRules) -> Option<Value> {
    let namespace = NamespaceName::try_from(SELFTEST.to_owned()).ok()?;
    let (uid, gid) = (Uid::try_from(i64::from(RUNS_AS)).ok()?, Gid::try_from(i64::from(RUNS_AS)).ok()?);
    let identity = Identity {
        cluster: request.cluster.clone(),
        namespace,
        id: AccountId(SELFTEST.into()),
        directory_id: DirectoryId(SELFTEST.to_owned()),
        account: AccountName { kind: crate::identity::AccountKind::Tool, name: SELFTEST.to_owned() },
        class: class.to_owned(),
        posix: Some(PosixIdentity { uid, gid, groups: std::collections::BTreeSet::new() }),
        generation: 0,
        state: TenantState::Active,
        exceptions: std::collections::BTreeSet::new(),
    };
    // If the webhook fills in the fields of the restricted level, a plain pod must satisfy that level.
    let level = if rules.restricted { "restricted" } else { "privileged" };
    Some(json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": SELFTEST,
            "labels": {CLASS: class, "pod-security.kubernetes.io/enforce": level},
            "annotations": contract::annotate(&identity, request.sealer),
        },
    }))
}

/// Applies the manifest of the sealed namespace.
pub(super) async fn seal_with(client: &Client, manifest: &Value) -> Result<(), AccessError> {
    let what = format!("Namespace {SELFTEST}");
    let api = Api::<Namespace>::all(client.clone());
    let parameters = PatchParams::apply(WEBHOOK).force();
    let applied = answered(&what, api.patch(SELFTEST, &parameters, &Patch::Apply(manifest))).await;
    applied.map(drop).map_err(|error| if_outdated(&what, error))
}

async fn of_class(client: &Client, class: &str, rules: &ClassRules) -> Result<Vec<Tried>, AccessError> {
    let plain = plain(rules);
    let is_closed = allows_no_image(rules);
    // Repeated until the webhook has seen the seal.
    let ready = wait_for(HEARD_WITHIN, async || {
        Ok(match create_pod(client, &pod(rules, &plain)).await {
            Ok(_) if is_closed => Err("it was allowed".to_owned()),
            Ok(pod) => expected(&pod, rules).map_or(Ok(()), Err),
            Err(why) if is_closed && is_denied(&why) && why.contains(NO_IMAGES) => Ok(()),
            Err(why) => Err(why),
        })
    });
    let tried =
        |what, must_be_refused, wrong| Tried { class: class.to_owned(), what, must_be_refused, wrong, remedy: None };
    if is_closed {
        // A pod with another fault would be refused because of its image, which proves nothing about another rule.
        return Ok(vec![tried("a pod with any image", true, ready.await?.err())]);
    }
    let mut all = vec![tried("a plain pod", false, ready.await?.err())];
    for (what, mode, spec) in refused(&plain) {
        if mode(rules) == Mode::Enforce {
            let wrong = match create_pod(client, &pod(rules, &spec)).await {
                Ok(_) => Some("it was allowed".to_owned()),
                // The refusal must come from the webhook: the backstop refuses some of these too, and would hide a
                // broken webhook.
                Err(why) if is_denied(&why) => None,
                Err(why) => Some(format!("it was not refused by the webhook, but by: {why}")),
            };
            all.push(tried(what, true, wrong));
        }
    }
    Ok(all)
}

/// Judges a plain pod by the quotas and the defaults of the class, as the API server does in namespaces of its tenants.
/// The namespace of the self-test has neither, because only a controller puts a new quota in force. Returns `None` for
/// a class without quotas.
fn under_quota(class: &Class, request: WebhookRequest<'_>) -> Option<Tried> {
    let traps: Vec<&str> = traps(class, request.policy, request.ledger, request.cluster).into_iter().collect();
    let is_trap = !traps.is_empty();
    (is_trap || !class.quota.is_empty()).then(|| Tried {
        class: class.name.clone(),
        what: "a plain pod under the quota",
        must_be_refused: false,
        wrong: is_trap.then(|| {
            let traps = traps.join(", ");
            format!("a quota or an override limits {traps}, for which the class gives no default")
        }),
        remedy: is_trap.then(|| {
            let class = &class.name;
            format!("give [class.{class}] defaults, for example {DEFAULTS}, then: systemctl reload bursard")
        }),
    })
}

/// The spec of a pod with nothing but its image.
fn plain(rules: &ClassRules) -> Value {
    json!({"containers": [{"name": "selftest", "image": image_for(rules)}]})
}

/// A pod with this spec, and with a lifetime if the class requires one.
fn pod(rules: &ClassRules, spec: &Value) -> Value {
    const HOUR: u64 = 3600;
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "selftest"}, "spec": spec});
    if rules.lifetimes.required {
        let seconds = rules.lifetimes.max.unwrap_or(HOUR).min(HOUR);
        pod["metadata"]["annotations"] = json!({LIFETIME: format!("{seconds}s")});
    }
    pod
}

/// Whether the class refuses every pod because of its image.
fn allows_no_image(rules: &ClassRules) -> bool {
    rules.images.mode == Mode::Enforce && rules.images.allow.is_empty()
}

/// Objects that each break one of the rules that the API server enforces, each with its description and its resource.
/// If the class refuses every pod, there are no pods among them.
fn refused_by_server(
    server: &ServerRules,
    unchosen: Mode,
    rules: &ClassRules,
) -> Vec<(&'static str, &'static str, Value)> {
    let enforces = |rule: &ServerRule, allowed: &str| {
        rule.mode.unwrap_or(unchosen) == Mode::Enforce && !rule.allow.contains(allowed)
    };
    let runs = !allows_no_image(rules);
    let pod = |key: &str, value: Value| {
        let mut spec = plain(rules);
        spec[key] = value;
        pod(rules, &spec)
    };
    let ports = json!({"sysctls": [{"name": PORTS, "value": "0"}]});
    let balancer = json!({"type": "LoadBalancer", "ports": [{"port": 80}]});
    let backend = json!({"service": {"name": "selftest", "port": {"number": 80}}});
    let elsewhere = json!({"ingressClassName": "selftest.invalid", "defaultBackend": backend});
    let ingress = json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "spec": elsewhere});
    let service = json!({"apiVersion": "v1", "kind": "Service", "spec": balancer});
    let tried = [
        (enforces(&server.services, "LoadBalancer"), "a load balancer", "services", service),
        (
            runs && enforces(&server.scheduling, "nodeName"),
            "a pod that names its node",
            "pods",
            pod("nodeName", json!("n")),
        ),
        (runs && enforces(&server.sysctls, PORTS), "a pod that opens low ports", "pods", pod("securityContext", ports)),
        (enforces(&server.ingress, "ingress *"), "an ingress of another class", "ingresses", ingress),
    ];
    tried.into_iter().filter(|tried| tried.0).map(|(_, what, plural, object)| (what, plural, object)).collect()
}

/// Sends an object that the API server's admission policies must refuse.
async fn must_refuse(client: &Client, plural: &str, object: &Value) -> Result<(), String> {
    let mut object = object.clone();
    object["metadata"]["name"] = json!("selftest");
    let version = object["apiVersion"].as_str().unwrap_or_default();
    let root = if version.contains('/') { "apis" } else { "api" };
    let uri = format!("/{root}/{version}/namespaces/{SELFTEST}/{plural}?dryRun=All");
    let request = Request::post(uri).header("content-type", "application/json").body(object.to_string().into_bytes());
    let request = request.map_err(|error| error.to_string())?;
    match client.request::<Value>(request).await {
        Ok(_) => Err("it was allowed".to_owned()),
        Err(kube::Error::Api(status)) if status.message.contains(server_rules::POLICIES[0]) => Ok(()),
        Err(error) => Err(format!("it was not refused by the policy, but by: {}", chain(&error))),
    }
}

/// Returns what is wrong with a plain pod that was allowed.
fn expected(pod: &Pod, rules: &ClassRules) -> Option<String> {
    if rules.uid.mode != Mode::Enforce {
        return None;
    }
    let context = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    let uid = context.and_then(|context| context.run_as_user);
    (uid != Some(i64::from(RUNS_AS))).then(|| format!("it would run as {uid:?}, not as {RUNS_AS}"))
}

type ModeOf = fn(&ClassRules) -> Mode;

/// Pod specs that each break one rule.
fn refused(plain: &Value) -> Vec<(&'static str, ModeOf, Value)> {
    let with = |change: &dyn Fn(&mut Value)| {
        let mut spec = plain.clone();
        change(&mut spec);
        spec
    };
    let uid: ModeOf = |rules| rules.uid.mode;
    let host: ModeOf = |rules| rules.host;
    let images: ModeOf = |rules| rules.images.mode;
    let volumes: ModeOf = |rules| rules.volumes.mode;
    vec![
        ("a pod that runs as root", uid, with(&|spec| spec["securityContext"] = json!({"runAsUser": 0}))),
        (
            "a pod that runs as another uid",
            uid,
            with(&|spec| {
                spec["securityContext"] = json!({"runAsUser": RUNS_AS + 1});
            }),
        ),
        (
            "an init container that runs as root",
            uid,
            with(&|spec| {
                spec["initContainers"] = json!([{
                    "name": "init", "image": spec["containers"][0]["image"], "securityContext": {"runAsUser": 0},
                }]);
            }),
        ),
        (
            "a pod in another group",
            uid,
            with(&|spec| {
                spec["securityContext"] = json!({"supplementalGroups": [RUNS_AS + 1]});
            }),
        ),
        (
            "a container that may escalate privileges",
            |rules| if rules.uid.privilege_escalation { Mode::Off } else { rules.uid.mode },
            with(&|spec| {
                spec["containers"][0]["securityContext"] = json!({"allowPrivilegeEscalation": true});
            }),
        ),
        ("a pod in the node's network", host, with(&|spec| spec["hostNetwork"] = json!(true))),
        (
            "an image from elsewhere",
            images,
            with(&|spec| {
                spec["containers"][0]["image"] = json!("elsewhere.invalid/selftest");
            }),
        ),
        (
            "a folder of the node",
            volumes,
            with(&|spec| {
                spec["volumes"] = json!([{"name": "node", "hostPath": {"path": "/etc"}}]);
            }),
        ),
    ]
}

/// An image reference that the class allows. The image need not exist.
pub(super) fn image_for(rules: &ClassRules) -> String {
    let images = &rules.images;
    let place =
        images.allow.first().filter(|_| images.mode != Mode::Off).map_or("registry.example.org/", String::as_str);
    let place = place.replace("{name}", SELFTEST);
    let path = if place.ends_with('/') { "selftest" } else { "" };
    let digest = if images.digest { format!("@sha256:{}", "0".repeat(64)) } else { String::new() };
    format!("{place}{path}{digest}")
}

/// Creates a pod in a dry run.
pub(super) async fn create(client: &Client, spec: &Value) -> Result<Pod, String> {
    create_pod(client, &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "selftest"}, "spec": spec}))
        .await
}

/// Like [`create`], for a pod with its metadata.
pub(super) async fn create_pod(client: &Client, pod: &Value) -> Result<Pod, String> {
    let pod: Pod = serde_json::from_value(pod.clone()).map_err(|error| error.to_string())?;
    let parameters = PostParams { dry_run: true, ..PostParams::default() };
    let created = answered("a pod", Api::<Pod>::namespaced(client.clone(), SELFTEST).create(&parameters, &pod)).await;
    created.map_err(|error| match error {
        AccessError::Api { source, .. } => match *source {
            kube::Error::Api(status) => status.message.clone(),
            other => other.to_string(),
        },
        other => other.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::Rules;

    fn tool() -> ClassRules {
        let text = include_bytes!("../../../tests/data/admission/rules.json");
        Rules::parse(text).expect("the rules are valid").classes.remove("tool").expect("the rules have this class")
    }

    #[test]
    fn pods_have_a_lifetime_if_the_class_requires_one() {
        let mut rules = tool();
        assert!(pod(&rules, &plain(&rules))["metadata"]["annotations"].is_null());
        rules.lifetimes.required = true;
        for (max, text) in [(None, "3600s"), (Some(604_800), "3600s"), (Some(60), "60s")] {
            rules.lifetimes.max = max;
            let tried = refused_by_server(&ServerRules::default(), Mode::Enforce, &rules);
            let pods = tried.iter().map(|(_, _, object)| object).filter(|object| object["kind"] == "Pod");
            let pods: Vec<&Value> = pods.collect();
            assert_eq!(pods.len(), 2);
            assert!(pods.iter().all(|pod| pod["metadata"]["annotations"][LIFETIME] == text), "{pods:?}");
        }
    }

    #[test]
    fn a_class_that_allows_no_image_is_not_tested_with_pods() {
        let mut rules = tool();
        assert!(!allows_no_image(&rules));
        rules.images.allow.clear();
        let tried = refused_by_server(&ServerRules::default(), Mode::Enforce, &rules);
        let what: Vec<&str> = tried.iter().map(|(what, ..)| *what).collect();
        assert_eq!(what, ["a load balancer"]);
    }
}
