//! `bursar webhook install --url … --write DIR`: writes the files of a webhook that runs outside the cluster.
//!
//! The state folder belongs to the daemon's user, and the files belong to the caller, who may be root: see
//! [`privilege::as_bursar`].

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use kube::Client;
use kube::config::Cluster;
use zeroize::Zeroizing;

use super::authority::{Authorities, OUTSIDE, Serving};
use super::install::{Times, configure};
use super::remembered::{believed, turn};
use super::review::{Question, answers};
use super::senders::demand;
use super::{
    AccessError, ENDS_SOON, Installed, Reached, WEBHOOK_HOLDER, WEBHOOK_USER, WebhookRequest, found, must_be_ours,
};
use crate::bootstrap::{files, own, read};
use crate::certificate;
use crate::execute::request::ApiServer;
use crate::privilege;
use crate::rules::senders::{ClientRules, Senders};
use crate::rules::{CERTIFICATE, KEY, KUBECONFIG, RULES, SEAL};

/// The name and text of each file, and whether only the file's owner may read it.
type NamedFiles = Vec<(&'static str, Zeroizing<String>, bool)>;

/// A webhook outside the cluster whose files are written. No configuration refers to it yet.
pub struct Outside {
    url: String,
    folder: PathBuf,
    bundle: String,
    times: Times,
    senders: Senders,
    /// The client certificate that the webhook at the former URL demands.
    demanded: Option<ClientRules>,
    /// What is in force until the configurations are written.
    standing: String,
}

/// Writes the files of a webhook at `url` into `folder`.
pub async fn write_outside(
    (client, admin): (&Client, Option<&Client>),
    daemon_kubeconfig: &Path,
    request: WebhookRequest<'_>,
    (url, folder): (&str, &Path),
) -> Result<Outside, AccessError> {
    must_be_ours(client, request).await?;
    let kept = kept(folder, request.now);
    let prepared =
        privilege::as_bursar(prepare((client, admin), daemon_kubeconfig, request, (url, folder, kept.as_ref()))).await;
    let failed = |error: nix::Error| AccessError::Write { path: request.state_dir.to_owned(), source: error.into() };
    let (files, outside) = prepared.map_err(failed)??;
    files::replace_in(folder, &files)?;
    Ok(outside)
}

impl Outside {
    /// Waits until the webhook answers one review. Once the configurations are in force, the API server refuses
    /// requests that the webhook does not answer. If the webhook already demands a client certificate, the review is
    /// sent through the API server. If the webhook does not answer, the former rules are written back: a webhook that
    /// stays in force may use the same files, and demands its certificate again.
    ///
    /// # Errors
    /// The webhook does not answer within `within`.
    pub async fn answers(
        &self,
        client: &Client,
        request: WebhookRequest<'_>,
        within: Duration,
    ) -> Result<(), AccessError> {
        let question = self.senders.client.as_ref().and_then(|_| Question::of(client, request));
        let answered = answers(&self.url, &self.bundle, question, (within, &self.standing)).await;
        if answered.is_err() && self.demanded != self.senders.client {
            let rules = Zeroizing::new(request.rules_text(self.demanded.as_ref()));
            files::replace_in(&self.folder, &[(RULES, rules, false)])?;
        }
        answered
    }

    /// Writes the configurations. If the API server then presents the configured client certificate, makes the webhook
    /// demand it.
    pub async fn enforce(self, client: &Client, request: WebhookRequest<'_>) -> Result<Installed, AccessError> {
        let Self { url, folder, bundle, times, senders, .. } = self;
        let mut wrote = Vec::new();
        let turn = turn(request.state_dir, request.cluster).await?;
        configure(&turn, client, request, (&Reached::Url(url), &bundle), (&times, &senders), &mut wrote).await?;
        drop(turn);
        let rules = async |demanded: &ClientRules| {
            files::replace_in(&folder, &[(RULES, Zeroizing::new(request.rules_text(Some(demanded))), false)])
        };
        let demanded = demand(client, request, &senders, rules).await?;
        Ok(Installed { wrote, not_after: times.not_after, client: demanded })
    }
}

/// The kubeconfig of a webhook that was installed here before, with its cluster and expiry.
type KeptAccess = (Cluster, Zeroizing<String>, jiff::Timestamp);

/// Returns the webhook's kubeconfig if its certificate is valid for another month. It is reused, because a new
/// certificate could not be approved while the installed webhook does not run.
fn kept(folder: &Path, now: jiff::Timestamp) -> Option<KeptAccess> {
    let text = Zeroizing::new(std::fs::read_to_string(folder.join(KUBECONFIG)).ok()?);
    let file = kube::config::Kubeconfig::from_yaml(&text).ok()?;
    let user = file.auth_infos.iter().find(|user| user.name == WEBHOOK_USER)?.auth_info.as_ref()?;
    let pem = BASE64.decode(user.client_certificate_data.as_ref()?).ok()?;
    let not_after = certificate::validity(&pem)?.not_after;
    let reached = file.clusters.first()?.cluster.clone()?;
    (not_after > now + ENDS_SOON).then_some((reached, text, not_after))
}

/// Returns the files of the webhook, without writing them.
async fn prepare(
    (client, admin): (&Client, Option<&Client>),
    daemon_kubeconfig: &Path,
    request: WebhookRequest<'_>,
    (url, folder, kept): (&str, &Path, Option<&KeptAccess>),
) -> Result<(NamedFiles, Outside), AccessError> {
    let before = found(client).await?;
    let senders = request.begins_with(before.as_ref(), Some(url))?;
    // A webhook that is in force may use the same folder, until the API server calls the new URL.
    let former = before.as_ref().and_then(|before| before.url.as_deref());
    let demanded = match former {
        Some(former) => request.begins_with(before.as_ref(), Some(former))?.client,
        None => None,
    };
    let standing = match (&before, former) {
        (None, _) => "nothing is enforced yet".to_owned(),
        (Some(_), Some(former)) => format!("the webhook at {former} stays in force"),
        (Some(_), None) => "the webhook in the cluster stays in force".to_owned(),
    };
    let hosts: BTreeSet<String> = [Some(url), former].into_iter().flatten().map(host).collect();
    let hosts: Vec<String> = hosts.into_iter().collect();
    let believed = believed(request.state_dir, request.cluster, before.as_ref())?;
    let authorities = Authorities::open(request.state_dir, request.cluster, request.now)?;
    let bundle = authorities.bundle(&believed, request.now);
    let signed = authorities.sign(&hosts, OUTSIDE, &believed, request.now)?;
    let Serving { certificate, key, not_after, .. } = signed.ok_or(AccessError::NotBelieved)?;
    let reached = own::reached(&read(daemon_kubeconfig)?, daemon_kubeconfig)?;
    let is_same = |kept: &Cluster| {
        (&kept.server, &kept.certificate_authority_data) == (&reached.server, &reached.certificate_authority_data)
    };
    let (kubeconfig, kubeconfig_ends) = if let Some((_, text, ends)) = kept.filter(|(kept, ..)| is_same(kept)) {
        (text.clone(), *ends)
    } else {
        let server = ApiServer::new(request.cluster.clone(), admin.unwrap_or(client).clone(), Arc::default());
        // `init` made the user's role.
        let made = own::access_file(&server, reached, (WEBHOOK_USER, WEBHOOK_HOLDER, WEBHOOK_USER)).await;
        made.map_err(|error| if admin.is_none() { of_daemon(error) } else { error })?
    };
    let not_after = not_after.min(kubeconfig_ends);
    let files = vec![
        (CERTIFICATE, Zeroizing::new(certificate), false),
        (KEY, key, true),
        (RULES, Zeroizing::new(request.rules_text(senders.client.as_ref())), false),
        (SEAL, Zeroizing::new(request.seal()), false),
        (KUBECONFIG, kubeconfig, true),
    ];
    let times = Times { renew_after: not_after, not_after };
    let (url, folder) = (url.to_owned(), folder.to_owned());
    Ok((files, Outside { url, folder, bundle, times, senders, demanded, standing }))
}

/// Turns a failure to get the webhook's certificate with the daemon's rights into an error that names the remedy.
fn of_daemon(error: AccessError) -> AccessError {
    match error {
        AccessError::Signing(source) => AccessError::WebhookSigning(source),
        error => error,
    }
}

/// The host of a URL that was checked before.
fn host(url: &str) -> String {
    let url = reqwest::Url::parse(url).ok();
    let host = url.as_ref().and_then(reqwest::Url::host_str).unwrap_or_default();
    host.trim_matches(['[', ']']).to_owned()
}
