//! The installation of the webhook: in the cluster, where the daemon maintains the webhook, or outside, with files. The
//! manifests are built in `manifests`, `configurations` and `backstop`; `authority` manages the certificate authorities
//! that the API server trusts for the webhook.
//!
//! The daemon installs the webhook with its own credential. `init` gives it the right to write certain objects by name,
//! and webhook configurations, which the admission policy limits to tenants' namespaces. The daemon may not write
//! policies.

mod absent;
pub mod adopted_rules;
pub mod audit;
mod authority;
pub mod backstop;
pub mod configurations;
mod grace;
mod install;
mod keep;
pub(super) mod manifests;
mod outside;
pub mod remembered;
mod review;
mod selftest;
mod senders;
pub mod server_rules;
mod service_address;

use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};

pub use self::absent::{Absent, absent};
pub(super) use self::authority::OUTSIDE as WEBHOOK_LIFETIME;
pub use self::install::{audits_rules, expected, fixed, install, manifests, uninstall};
pub use self::keep::{Kept, keep};
pub(super) use self::manifests::identity;
pub use self::outside::{Outside, write_outside};
pub use self::review::Question;
pub use self::selftest::{Tried, selftest};
pub use self::senders::ClientCertificate;
pub use self::service_address::is_service_address;
use super::roles::managed;
use super::{AccessError, answered, owner};
use crate::contract::{MANAGED_BY, Sealer};
use crate::desired::rules::rules;
use crate::desired::watched::site_kinds;
use crate::identity::ClusterName;
use crate::kinds::{ObjectKind, ServedKind};
use crate::ledger::LedgerState;
use crate::observed::discovery::{Kinds, resource};
use crate::policy::Policy;
use crate::rules::{Rules, seal_text};

/// The name of the Deployment, Service, budget, ConfigMap, service account, role and two configurations. It is also the
/// field manager of the daemon's writes to them.
pub const WEBHOOK: &str = "bursar-webhook";
/// The configuration for the daemon's own approvals.
pub const APPROVALS: &str = "bursar-approvals";
/// The Secret with the serving certificate.
pub const SECRET: &str = "bursar-webhook-tls";
/// The number of the webhook's pods, and of those that an update adds.
pub(super) const REPLICAS: u64 = 2;
/// See [`REPLICAS`].
pub(super) const SURGE: u64 = 1;
/// The user name of a webhook outside the cluster, in its client certificate.
pub const WEBHOOK_USER: &str = "bursar:webhook";
/// The holder of that certificate, in the label of its request.
pub const WEBHOOK_HOLDER: &str = "bursar-webhook";

/// Files outside the cluster that expire within this time should be renewed.
pub const ENDS_SOON: jiff::SignedDuration = jiff::SignedDuration::from_hours(30 * 24);

const GROUP: &str = "admissionregistration.k8s.io/v1";

/// How the API server reaches the webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reached {
    /// By Service `bursar-webhook` in namespace `bursar`.
    Service,
    /// At `https://host:port`.
    Url(String),
}

/// The input of all operations on the webhook.
#[derive(Debug, Clone, Copy)]
pub struct WebhookRequest<'a> {
    /// The configuration, from which the rules are derived.
    pub policy: &'a Policy,
    pub cluster: &'a ClusterName,
    /// The ledger that must own the cluster.
    pub ledger: &'a LedgerState,
    /// The state folder, which contains the authorities.
    pub state_dir: &'a Path,
    /// The sealer whose public key the webhook gets.
    pub sealer: &'a Sealer,
    pub now: Timestamp,
}

/// An object that was written or removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wrote {
    /// Kind and name, for example `Deployment bursar-webhook`.
    pub what: String,
    /// Whether it was removed instead of written.
    pub removed: bool,
}

/// The result of an installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installed {
    /// All objects, in the order of their writes.
    pub wrote: Vec<Wrote>,
    /// When the certificate expires.
    pub not_after: Timestamp,
    /// Whether the webhook demands a client certificate from the API server.
    pub client: ClientCertificate,
}

/// An installed webhook, as its configuration in the cluster describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InstalledWebhook {
    /// The authorities that the API server trusts, PEM.
    believed: String,
    /// The URL of a webhook outside the cluster.
    pub url: Option<String>,
    /// When its certificate is due for renewal.
    renew_after: Option<Timestamp>,
    /// When its certificate expires.
    pub not_after: Option<Timestamp>,
    /// The annotation [`configurations::GIVEN`].
    given: String,
}

impl WebhookRequest<'_> {
    fn rules(&self) -> Rules {
        rules(self.policy, self.cluster, self.ledger)
    }

    fn seal(&self) -> String {
        seal_text(&[self.sealer.public_key()])
    }

    /// Digest of everything that the configuration determines.
    fn given(&self, objects: &[(String, String)]) -> String {
        let text = format!("{}{}{objects:?}", self.rules().to_json(), self.seal());
        hex::encode(digest(&SHA256, text.as_bytes()))
    }

    /// Whether the installed webhook has the current rules and keys.
    pub async fn is_given(&self, client: &Client, found: &InstalledWebhook) -> Result<bool, AccessError> {
        Ok(found.given == self.given(&self.objects(client).await?))
    }

    /// API group and plural of the kinds that tenants get, with those of site manifests.
    async fn objects(&self, client: &Client) -> Result<Vec<(String, String)>, AccessError> {
        let mut objects = managed_objects();
        for site in site_kinds(self.policy, self.ledger, self.cluster) {
            // A kind that no longer exists has no objects.
            if let Some(kind) = resolve(client, &site.kind).await? {
                objects.push((kind.group().to_owned(), kind.plural));
            }
        }
        objects.sort();
        objects.dedup();
        Ok(objects)
    }
}

/// API group and plural of the kinds that tenants get in every class.
pub(super) fn managed_objects() -> Vec<(String, String)> {
    managed().map(|kind| (kind.group().to_owned(), kind.row().plural.to_owned())).collect()
}

/// API group and resource of everything that a rule judges, in the webhook or in a policy.
#[must_use]
pub fn looked_at() -> Vec<(String, String)> {
    let all = configurations::looked_at().into_iter().chain(server_rules::LOOKED_AT);
    all.flat_map(|(group, resources)| resources.iter().map(move |one| (group.to_owned(), (*one).to_owned()))).collect()
}

/// Returns the installed webhook; `None` if there is none.
pub async fn found(client: &Client) -> Result<Option<InstalledWebhook>, AccessError> {
    let api = Api::<ValidatingWebhookConfiguration>::all(client.clone());
    let found = answered("ValidatingWebhookConfiguration bursar-webhook", api.get_opt(WEBHOOK)).await?;
    Ok(found.map(|found| {
        let hook = found.webhooks.iter().flatten().next().map(|hook| &hook.client_config);
        let annotation = |key: &str| found.annotations().get(key).cloned();
        let time = |key: &str| annotation(key).and_then(|text| text.parse().ok());
        InstalledWebhook {
            believed: hook
                .and_then(|hook| hook.ca_bundle.as_ref())
                .map(|bundle| String::from_utf8_lossy(&bundle.0).into_owned())
                .unwrap_or_default(),
            url: hook.and_then(|hook| hook.url.as_deref()).map(|url| url.trim_end_matches("/validate").to_owned()),
            renew_after: time(configurations::RENEW_AFTER),
            not_after: time(configurations::UNTIL),
            given: annotation(configurations::GIVEN).unwrap_or_default(),
        }
    }))
}

/// Returns the commands that replace a webhook that this host did not install.
#[must_use]
pub fn replaced_by(cluster: &ClusterName) -> String {
    format!(
        "bursar webhook uninstall --cluster {cluster} --admin-kubeconfig FILE, and then: bursar webhook install --cluster \
         {cluster}"
    )
}

/// Fails unless this ledger owns the cluster.
async fn must_be_ours(client: &Client, request: WebhookRequest<'_>) -> Result<(), AccessError> {
    let ours = &request.ledger.ledger_id;
    match owner::owner(client).await? {
        Some(found) if found == *ours => Ok(()),
        Some(found) => Err(AccessError::OtherOwner { found, ours: ours.clone() }),
        None => Err(AccessError::NoOwner),
    }
}

/// The labels of the webhook's objects. They differ from the daemon's, which mark objects of tenants.
fn labels() -> Value {
    json!({MANAGED_BY: WEBHOOK, "app.kubernetes.io/part-of": "bursar"})
}

/// Whether this server supports mutating admission policies.
pub async fn mutates(client: &Client) -> Result<bool, AccessError> {
    Ok(resolve(client, &ObjectKind::of(GROUP, "MutatingAdmissionPolicy")).await?.is_some())
}

async fn resolve(client: &Client, kind: &ObjectKind) -> Result<Option<ServedKind>, AccessError> {
    answered(&format!("kind {kind} in {}", kind.api_version()), Kinds::default().resolve(client, kind)).await
}

/// Applies `manifest` with our field manager. Does nothing if the server does not have the kind.
async fn put(client: &Client, manifest: &Value, wrote: &mut Vec<Wrote>) -> Result<(), AccessError> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (kind, name) = (text(&manifest["kind"]), text(&manifest["metadata"]["name"]));
    let what = format!("{kind} {name}");
    let namespace = manifest["metadata"]["namespace"].as_str();
    let Some(api) = api(client, &text(&manifest["apiVersion"]), &kind, namespace).await? else { return Ok(()) };
    let parameters = PatchParams::apply(WEBHOOK).force();
    let patched = answered(&what, api.patch(&name, &parameters, &Patch::Apply(manifest))).await;
    patched.map_err(|error| if_outdated(&what, error))?;
    wrote.push(Wrote { what, removed: false });
    Ok(())
}

/// Removes an object if it exists.
async fn remove(
    client: &Client,
    (api_version, kind, namespace): (&str, &str, Option<&str>),
    name: &str,
    wrote: &mut Vec<Wrote>,
) -> Result<(), AccessError> {
    let what = format!("{kind} {name}");
    let Some(api) = api(client, api_version, kind, namespace).await? else { return Ok(()) };
    match answered(&what, api.delete(name, &DeleteParams::background())).await {
        Ok(_) => wrote.push(Wrote { what, removed: true }),
        Err(AccessError::Api { source, .. }) if matches!(&*source, kube::Error::Api(status) if status.code == 404) => {}
        Err(error) => return Err(if_outdated(&what, error)),
    }
    Ok(())
}

/// Returns `None` if the server does not have the kind.
async fn api(
    client: &Client,
    api_version: &str,
    kind: &str,
    namespace: Option<&str>,
) -> Result<Option<Api<DynamicObject>>, AccessError> {
    let Some(kind) = resolve(client, &ObjectKind::of(api_version, kind)).await? else { return Ok(None) };
    let resource = resource(&kind);
    Ok(Some(match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }))
}

fn if_outdated(what: &str, error: AccessError) -> AccessError {
    match error {
        AccessError::Api { source, .. } if matches!(&*source, kube::Error::Api(status) if status.code == 403 && status.message.contains("cannot")) => {
            AccessError::Outdated { what: what.to_owned(), source }
        }
        error => error,
    }
}

/// Waits until `look` succeeds. After `within` it returns the last failure.
#[expect(clippy::disallowed_methods, reason = "waits for the API server, with a deadline")]
pub(super) async fn wait_for<T>(
    within: Duration,
    mut look: impl AsyncFnMut() -> Result<Result<T, String>, AccessError>,
) -> Result<Result<T, String>, AccessError> {
    const LOOK_EVERY: Duration = Duration::from_millis(500);
    let begun = tokio::time::Instant::now();
    loop {
        match look().await? {
            Ok(found) => return Ok(Ok(found)),
            Err(why) if begun.elapsed() > within => return Ok(Err(why)),
            Err(_) => tokio::time::sleep(LOOK_EVERY).await,
        }
    }
}

/// Returns the manifests as one YAML stream.
pub fn yaml(manifests: &[Value]) -> Result<String, String> {
    let documents: Result<Vec<String>, _> = manifests.iter().map(serde_saphyr::to_string).collect();
    Ok(documents.map_err(|error| error.to_string())?.join("---\n"))
}
