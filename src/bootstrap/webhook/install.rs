//! `bursar webhook install` and `uninstall` in the cluster, and their manifests.
//!
//! The configurations are written after the webhook has become available, and removed before the webhook is.

use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use kube::api::ListParams;
use kube::{Api, Client};
use serde_json::{Value, json};

use super::authority::{Authorities, Serving, WITHIN};
use super::backstop::bindings;
use super::configurations::{GIVEN, Hooks, RENEW_AFTER, UNTIL};
use super::manifests::{config_map, identity, network_policy, secret, workload};
use super::remembered::{Remembered, Turn, believed, forget, remember, remembered, turn};
use super::senders::demand;
use super::server_rules::Given;
use super::{
    APPROVALS, AccessError, GROUP, Installed, Reached, SECRET, WEBHOOK, WebhookRequest, Wrote, adopted_rules, api,
    backstop, found, must_be_ours, put, remove, server_rules, wait_for,
};
use crate::bootstrap::{NAMESPACE, answered, roles};
use crate::rules::senders::{ClientRules, Senders};

const NETWORK_POLICY: (&str, &str, Option<&str>) = ("networking.k8s.io/v1", "NetworkPolicy", Some(NAMESPACE));

/// Enough time for a node to pull the image, and for the webhook to list the namespaces.
const AVAILABLE_WITHIN: Duration = Duration::from_mins(3);

/// Installs the webhook in the cluster, or updates it.
///
/// # Errors
/// The webhook does not become available, or a request fails. If it does not become available, no configuration is
/// written.
pub async fn install(client: &Client, request: WebhookRequest<'_>, image: &str) -> Result<Installed, AccessError> {
    must_be_ours(client, request).await?;
    let before = found(client).await?;
    let senders = request.begins_with(before.as_ref(), None)?;
    let believed = believed(request.state_dir, request.cluster, before.as_ref())?;
    let authorities = Authorities::open(request.state_dir, request.cluster, request.now)?;
    let bundle = authorities.bundle(&believed, request.now);
    let names = within_names();
    let serving = authorities.sign(&names, WITHIN, &believed, request.now)?.ok_or(AccessError::NotBelieved)?;
    let mut wrote = Vec::new();
    put(client, &secret(&serving.certificate, &serving.key), &mut wrote).await?;
    let rules = |demanded: Option<&ClientRules>| config_map(&request.rules_text(demanded), &request.seal());
    put(client, &rules(senders.client.as_ref()), &mut wrote).await?;
    for manifest in workload(image) {
        put(client, &manifest, &mut wrote).await?;
    }
    if senders.api_server_cidrs.is_empty() {
        remove(client, NETWORK_POLICY, WEBHOOK, &mut wrote).await?;
    } else {
        put(client, &network_policy(&senders.api_server_cidrs), &mut wrote).await?;
    }
    available(client).await?;
    let turn = turn(request.state_dir, request.cluster).await?;
    let reached = Reached::Service;
    configure(&turn, client, request, (&reached, &bundle), (&Times::from(&serving), &senders), &mut wrote).await?;
    drop(turn);
    let enforce = async |demanded: &ClientRules| put(client, &rules(Some(demanded)), &mut Vec::new()).await;
    let demanded = demand(client, request, &senders, enforce).await?;
    Ok(Installed { wrote, not_after: serving.not_after, client: demanded })
}

/// The names by which API servers reach the webhook's Service.
pub(super) fn within_names() -> Vec<String> {
    [".svc", ".svc.cluster.local", ""].iter().map(|suffix| format!("{WEBHOOK}.{NAMESPACE}{suffix}")).collect()
}

async fn available(client: &Client) -> Result<(), AccessError> {
    let api = Api::<Deployment>::namespaced(client.clone(), NAMESPACE);
    let looked = wait_for(AVAILABLE_WITHIN, async || {
        let deployment = answered("Deployment bursar-webhook", api.get(WEBHOOK)).await?;
        let generation = deployment.metadata.generation;
        let status = deployment.status.unwrap_or_default();
        let of = |count: Option<i32>| count.unwrap_or(0);
        let (updated, available) = (of(status.updated_replicas), of(status.available_replicas));
        let is_new = status.observed_generation == generation;
        Ok(if is_new && updated > 0 && available >= updated {
            Ok(())
        } else {
            Err(format!("{updated} updated pods, {available} available"))
        })
    });
    looked.await?.map_err(|why| AccessError::NotAvailable { waited: AVAILABLE_WITHIN, why })
}

/// When a certificate is due for renewal, and when it expires.
pub(super) struct Times {
    pub(super) renew_after: jiff::Timestamp,
    pub(super) not_after: jiff::Timestamp,
}

impl From<&Serving> for Times {
    fn from(serving: &Serving) -> Self {
        Self { renew_after: serving.renew_after, not_after: serving.not_after }
    }
}

/// Writes the webhook configurations and the bindings of the backstop.
pub(super) async fn configure(
    turn: &Turn,
    client: &Client,
    request: WebhookRequest<'_>,
    (reached, bundle): (&Reached, &str),
    (times, senders): (&Times, &Senders),
    wrote: &mut Vec<Wrote>,
) -> Result<(), AccessError> {
    let objects = request.objects(client).await?;
    let rules = request.rules();
    let hooks = Hooks {
        reached,
        authorities: bundle,
        exempt: &rules.exempt,
        objects: &objects,
        annotations: json!({
            UNTIL: times.not_after.to_string(),
            RENEW_AFTER: times.renew_after.to_string(),
            GIVEN: request.given(&objects),
        }),
    };
    let url = match reached {
        Reached::Service => None,
        Reached::Url(url) => Some(url.clone()),
    };
    let Times { renew_after, not_after } = *times;
    let (authorities, senders) = (bundle.to_owned(), senders.clone());
    let record = Remembered { url, authorities, renew_after, not_after, senders };
    // Configurations without a record count as somebody else's.
    if remembered(request.state_dir, request.cluster)?.is_none() {
        remember(turn, request, &record).await?;
    }
    for manifest in hooks.configurations() {
        put(client, &manifest, wrote).await?;
    }
    for manifest in in_force(request) {
        put(client, &manifest, wrote).await?;
    }
    remember(turn, request, &record).await
}

/// Returns the configurations and bindings as they should be. `remembered` records the webhook that this host
/// installed.
pub async fn expected(
    client: &Client,
    request: WebhookRequest<'_>,
    remembered: &Remembered,
) -> Result<Vec<Value>, AccessError> {
    let reached = remembered.url.clone().map_or(Reached::Service, Reached::Url);
    let objects = request.objects(client).await?;
    let rules = request.rules();
    let hooks = Hooks {
        reached: &reached,
        authorities: &remembered.authorities,
        exempt: &rules.exempt,
        objects: &objects,
        annotations: json!({}),
    };
    Ok(hooks.configurations().into_iter().chain(in_force(request)).collect())
}

/// The bindings that put the policies in force.
fn in_force(request: WebhookRequest<'_>) -> Vec<Value> {
    let bindings = bindings(&request.rules()).into_iter().chain(server_rules::bindings());
    bindings.map(|binding| binding.manifest).collect()
}

/// Updates the classes in the bindings of a backstop whose webhook was uninstalled. Writes nothing if the first binding
/// is missing: [`uninstall`] removes that binding first, so the backstop was removed too.
pub(super) async fn keep_backstop(client: &Client, request: WebhookRequest<'_>) -> Result<(), AccessError> {
    for (index, binding) in bindings(&request.rules()).into_iter().chain(server_rules::bindings()).enumerate() {
        let Some(api) = api(client, GROUP, binding.kind, None).await? else { continue };
        // The daemon may list each binding by its name.
        let named = ListParams::default().fields(&format!("metadata.name={}", binding.name));
        let found = answered(&format!("{} {}", binding.kind, binding.name), api.list(&named)).await?;
        match found.items.first() {
            None if index == 0 => return Ok(()),
            Some(found) if found.data["spec"] == binding.manifest["spec"] => {}
            _ => put(client, &binding.manifest, &mut Vec::new()).await?,
        }
    }
    Ok(())
}

/// Whether the API server evaluates the rules that only audit. Their binding stays if the webhook is uninstalled without
/// the backstop.
pub async fn audits_rules(client: &Client) -> Result<bool, AccessError> {
    let (kind, [_, _, name]) = ("ValidatingAdmissionPolicyBinding", server_rules::POLICIES);
    let Some(api) = api(client, GROUP, kind, None).await? else { return Ok(false) };
    // The daemon may list each binding by its name.
    let named = ListParams::default().fields(&format!("metadata.name={name}"));
    let found = answered(&format!("{kind} {name}"), api.list(&named)).await?;
    Ok(!found.items.is_empty())
}

/// Removes the webhook and, if `with_backstop` is set, the bindings of the backstop. Only an administrator may do this.
///
/// # Errors
/// A request fails. Another attempt removes what is left.
pub async fn uninstall(
    client: &Client,
    request: WebhookRequest<'_>,
    with_backstop: bool,
) -> Result<Vec<Wrote>, AccessError> {
    must_be_ours(client, request).await?;
    // By the record, a running daemon would write the configurations again.
    forget(request.state_dir, request.cluster).await?;
    let mut wrote = Vec::new();
    let validating = "ValidatingWebhookConfiguration";
    for (kind, name) in [(validating, APPROVALS), (validating, WEBHOOK), ("MutatingWebhookConfiguration", WEBHOOK)] {
        remove(client, (GROUP, kind, None), name, &mut wrote).await?;
    }
    for (api_version, kind, name) in [
        ("apps/v1", "Deployment", WEBHOOK),
        ("policy/v1", "PodDisruptionBudget", WEBHOOK),
        (NETWORK_POLICY.0, NETWORK_POLICY.1, WEBHOOK),
        ("v1", "Service", WEBHOOK),
        ("v1", "ConfigMap", WEBHOOK),
        ("v1", "Secret", SECRET),
    ] {
        remove(client, (api_version, kind, Some(NAMESPACE)), name, &mut wrote).await?;
    }
    if with_backstop {
        for binding in bindings(&request.rules()).into_iter().chain(server_rules::bindings()) {
            remove(client, (GROUP, binding.kind, None), &binding.name, &mut wrote).await?;
        }
    }
    Ok(wrote)
}

/// Returns the manifests that `init` and `install` apply, for printing or keeping. The Secret is left out, because it
/// contains the key.
pub async fn manifests(client: &Client, request: WebhookRequest<'_>, image: &str) -> Result<Vec<Value>, AccessError> {
    let before = found(client).await?;
    let url = before.as_ref().and_then(|before| before.url.clone());
    let Senders { client: demanded, api_server_cidrs } = request.begins_with(before.as_ref(), url.as_deref())?;
    let believed = believed(request.state_dir, request.cluster, before.as_ref())?;
    let authorities = Authorities::open(request.state_dir, request.cluster, request.now)?;
    let reached = url.map_or(Reached::Service, Reached::Url);
    let rules = request.rules();
    let objects = request.objects(client).await?;
    let hooks = Hooks {
        reached: &reached,
        authorities: &authorities.bundle(&believed, request.now),
        exempt: &rules.exempt,
        objects: &objects,
        annotations: json!({}),
    };
    let mut all = fixed(image);
    all.push(config_map(&request.rules_text(demanded.as_ref()), &request.seal()));
    if !api_server_cidrs.is_empty() {
        all.push(network_policy(&api_server_cidrs));
    }
    all.extend(hooks.configurations());
    all.extend(backstop::mutating());
    let given = Given::of(request.policy, request.cluster, request.ledger);
    all.extend(server_rules::policies(&given));
    all.extend(adopted_rules::manifests(&given.adopting));
    all.extend(in_force(request));
    Ok(all)
}

/// Returns the manifests that are the same in every cluster. `packaging/webhook` contains them as files.
#[must_use]
pub fn fixed(image: &str) -> Vec<Value> {
    let mut all = vec![roles::own_namespace()];
    all.extend(identity());
    all.extend(workload(image));
    all.extend(backstop::validating());
    all
}
