//! `bursar webhook install --url … --write DIR`: writes the files of a webhook that runs outside the cluster.
//!
//! The state folder belongs to the daemon's user, and the files belong to the caller, who may be root: see
//! [`privilege::as_bursar`].

use std::collections::BTreeSet;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use kube::Client;
use kube::config::Cluster;
use serde_json::json;
use zeroize::Zeroizing;

use super::authority::{Authorities, OUTSIDE, Serving};
use super::install::{Times, configure};
use super::review::{Question, answers};
use super::senders::demand;
use super::{
    AccessError, ENDS_SOON, Installed, Reached, WEBHOOK_HOLDER, WEBHOOK_USER, WebhookRequest, found, must_be_ours,
};
use crate::bootstrap::{files, own, read};
use crate::certificate::{self, Asked};
use crate::execute::authority::verified;
use crate::execute::keypair::{Names, NewKey};
use crate::execute::request::ApiServer;
use crate::execute::signing::{Unsigned, sign};
use crate::privilege;
use crate::rules::senders::{ClientRules, Senders};
use crate::rules::{CERTIFICATE, KEY, KUBECONFIG, RULES, SEAL};

/// The result of [`prepare`].
struct Written {
    /// The name and text of each file, and whether only the file's owner may read it.
    files: Vec<(&'static str, Zeroizing<String>, bool)>,
    bundle: String,
    times: Times,
    senders: Senders,
}

/// A webhook outside the cluster whose files are written. No configuration refers to it yet.
pub struct Outside {
    url: String,
    folder: PathBuf,
    bundle: String,
    times: Times,
    senders: Senders,
}

/// Writes the files of a webhook at `url` into `folder`.
///
/// # Errors
/// A certificate is not issued, or a file cannot be written.
pub async fn write_outside(
    (client, admin): (&Client, Option<&Client>),
    daemon_kubeconfig: &Path,
    request: WebhookRequest<'_>,
    (url, folder): (&str, &Path),
) -> Result<Outside, AccessError> {
    must_be_ours(client, request).await?;
    let kept = kept(folder, request.now);
    let prepared =
        privilege::as_bursar(prepare((client, admin), daemon_kubeconfig, request, (url, kept.as_ref()))).await;
    let failed = |error: nix::Error| AccessError::Write { path: request.state_dir.to_owned(), source: error.into() };
    let Written { files, bundle, times, senders } = prepared.map_err(failed)??;
    write(folder, &files)?;
    Ok(Outside { url: url.to_owned(), folder: folder.to_owned(), bundle, times, senders })
}

impl Outside {
    /// Waits until the webhook answers one review. Once the configurations are in force, the API server refuses
    /// requests that the webhook does not answer. If the webhook already demands a client certificate, the review is
    /// sent through the API server.
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
        answers(&self.url, &self.bundle, question, within).await
    }

    /// Writes the configurations. If the API server then presents the configured client certificate, makes the webhook
    /// demand it.
    ///
    /// # Errors
    /// A request fails.
    pub async fn enforce(self, client: &Client, request: WebhookRequest<'_>) -> Result<Installed, AccessError> {
        let Self { url, folder, bundle, times, senders } = self;
        let mut wrote = Vec::new();
        configure(client, request, &Reached::Url(url), &bundle, (&times, &senders), &mut wrote).await?;
        let rules = async |demanded: &ClientRules| {
            write(&folder, &[(RULES, Zeroizing::new(request.rules_text(Some(demanded))), false)])
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

async fn prepare(
    (client, admin): (&Client, Option<&Client>),
    daemon_kubeconfig: &Path,
    request: WebhookRequest<'_>,
    (url, kept): (&str, Option<&KeptAccess>),
) -> Result<Written, AccessError> {
    let before = found(client).await?;
    let senders = request.begins_with(before.as_ref(), Some(url))?;
    let before = before.unwrap_or_default();
    let authorities = Authorities::open(request.state_dir, request.cluster, request.now)?;
    let bundle = authorities.bundle(&before.believed, request.now);
    let signed = authorities.sign(&[host(url)], OUTSIDE, &before.believed, request.now)?;
    let Serving { certificate, key, not_after, .. } = signed.ok_or(AccessError::NotBelieved)?;
    let reached = own::reached(&read(daemon_kubeconfig)?, daemon_kubeconfig)?;
    let is_same = |kept: &Cluster| {
        (&kept.server, &kept.certificate_authority_data) == (&reached.server, &reached.certificate_authority_data)
    };
    let (kubeconfig, kubeconfig_ends) = if let Some((_, text, ends)) = kept.filter(|(kept, ..)| is_same(kept)) {
        (text.clone(), *ends)
    } else {
        let server = ApiServer::new(request.cluster.clone(), admin.unwrap_or(client).clone(), Arc::default());
        let made = kubeconfig(&server, reached).await;
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
    Ok(Written { files, bundle, times: Times { renew_after: not_after, not_after }, senders })
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

/// Issues a client certificate to [`WEBHOOK_USER`] without a group, and returns a kubeconfig with it. `init` made the
/// user's role.
async fn kubeconfig(server: &ApiServer, reached: Cluster) -> Result<(Zeroizing<String>, jiff::Timestamp), AccessError> {
    let key = NewKey::generate().map_err(AccessError::Key)?;
    let names = Names { common_name: WEBHOOK_USER, organizations: [None, None], serial_number: None };
    let request = key.request(names).map_err(AccessError::Key)?;
    let unsigned = Unsigned {
        holder: WEBHOOK_HOLDER,
        account: WEBHOOK_USER,
        request: &request,
        lifetime: OUTSIDE,
        namespace: None,
        record: None,
    };
    let pem = sign(server, unsigned).await.map_err(AccessError::Signing)?;
    let public_key = key.public_key();
    let asked = Asked {
        common_name: WEBHOOK_USER,
        organizations: BTreeSet::new(),
        serial_number: None,
        public_key: &public_key,
        authorities: None,
    };
    let issued = verified(server, &pem, &asked).await.map_err(AccessError::Certificate)?;
    let name = &server.cluster.0;
    let file = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": reached}],
        "users": [{"name": WEBHOOK_USER, "user": {
            "client-certificate-data": BASE64.encode(&pem),
            "client-key-data": BASE64.encode(key.pem().expose()),
        }}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": WEBHOOK_USER}}],
        "current-context": name,
    });
    Ok((Zeroizing::new(format!("{file:#}\n")), issued.not_after))
}

/// Writes the files. If root writes them, they get the owner of the folder, which is the user that the webhook runs as.
fn write(folder: &Path, written: &[(&str, Zeroizing<String>, bool)]) -> Result<(), AccessError> {
    let failed = |source| AccessError::Write { path: folder.to_owned(), source };
    if !folder.exists() {
        std::fs::DirBuilder::new().recursive(true).mode(0o750).create(folder).map_err(failed)?;
    }
    let found = std::fs::metadata(folder).map_err(failed)?;
    let owner = nix::unistd::Uid::effective().is_root().then(|| (found.uid(), found.gid()));
    for (name, text, private) in written {
        files::replace_as(&folder.join(name), text.as_bytes(), if *private { 0o600 } else { 0o644 }, owner)?;
    }
    Ok(())
}
