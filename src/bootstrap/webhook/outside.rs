//! `bursar webhook install --url … --write DIR`: the files of a webhook that runs outside of the cluster.
//!
//! The state folder is the daemon's user's, and the files are the caller's, who may be root: see [`privilege::as_bursar`].

use std::collections::BTreeSet;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use kube::Client;
use kube::config::Cluster;
use serde_json::json;
use zeroize::Zeroizing;

use super::authority::{Authorities, OUTSIDE, Serving};
use super::install::{Times, configure};
use super::{
    APPROVALS, AccessError, GROUP, Installed, Reached, WEBHOOK_USER, WebhookRequest, found, must_be_ours, remove,
};
use crate::bootstrap::{files, own, read};
use crate::certificate::Asked;
use crate::execute::authority::verified;
use crate::execute::keypair::{Names, NewKey};
use crate::execute::request::ApiServer;
use crate::execute::signing::{Unsigned, sign};
use crate::privilege;
use crate::rules::{CERTIFICATE, KEY, KUBECONFIG, RULES, SEAL};

/// What outlives the installation, by name; those that only their owner may read are marked.
struct Written {
    files: Vec<(&'static str, Zeroizing<String>, bool)>,
    bundle: String,
    times: Times,
}

/// Writes the files of a webhook at `url` into `folder`, and puts the configurations in force, webhook running or not.
///
/// # Errors
/// The cluster does not sign or take something, or a file cannot be written.
pub async fn install_outside(
    client: &Client,
    daemon_kubeconfig: &Path,
    request: WebhookRequest<'_>,
    (url, folder): (&str, &Path),
) -> Result<Installed, AccessError> {
    must_be_ours(client, request).await?;
    let mut wrote = Vec::new();
    // A webhook that does not run must not keep its own certificate from being approved.
    remove(client, (GROUP, "ValidatingWebhookConfiguration", None), APPROVALS, &mut wrote).await?;
    wrote.clear();
    let prepared = privilege::as_bursar(prepare(client, daemon_kubeconfig, request, url)).await;
    let failed = |error: nix::Error| AccessError::Write { path: request.state_dir.to_owned(), source: error.into() };
    let Written { files, bundle, times } = prepared.map_err(failed)??;
    write(folder, &files)?;
    configure(client, request, &Reached::Url(url.to_owned()), &bundle, &times, &mut wrote).await?;
    Ok(Installed { wrote, not_after: times.not_after })
}

async fn prepare(
    client: &Client,
    daemon_kubeconfig: &Path,
    request: WebhookRequest<'_>,
    url: &str,
) -> Result<Written, AccessError> {
    let before = found(client).await?.unwrap_or_default();
    let authorities = Authorities::open(request.state_dir, request.cluster, request.now)?;
    let bundle = authorities.bundle(&before.believed, request.now);
    let signed = authorities.sign(&[host(url)], OUTSIDE, &before.believed, request.now)?;
    let Serving { certificate, key, not_after, .. } = signed.ok_or(AccessError::NotBelieved)?;
    let server = ApiServer::new(request.cluster.clone(), client.clone(), Arc::default());
    let reached = own::reached(&read(daemon_kubeconfig)?, daemon_kubeconfig)?;
    let (kubeconfig, kubeconfig_ends) = kubeconfig(&server, reached).await?;
    let not_after = not_after.min(kubeconfig_ends);
    let files = vec![
        (CERTIFICATE, Zeroizing::new(certificate), false),
        (KEY, key, true),
        (RULES, Zeroizing::new(request.rules().to_json()), false),
        (SEAL, Zeroizing::new(request.seal()), false),
        (KUBECONFIG, kubeconfig, true),
    ];
    Ok(Written { files, bundle, times: Times { renew_after: not_after, not_after } })
}

/// The host of a URL that `bursar` has checked.
fn host(url: &str) -> String {
    let url = reqwest::Url::parse(url).ok();
    let host = url.as_ref().and_then(reqwest::Url::host_str).unwrap_or_default();
    host.trim_matches(['[', ']']).to_owned()
}

/// A client certificate of [`WEBHOOK_USER`], in no group, whose role `init` made.
async fn kubeconfig(server: &ApiServer, reached: Cluster) -> Result<(Zeroizing<String>, jiff::Timestamp), AccessError> {
    let key = NewKey::generate().map_err(AccessError::Key)?;
    let names = Names { common_name: WEBHOOK_USER, organizations: [None, None], serial_number: None };
    let request = key.request(names).map_err(AccessError::Key)?;
    let unsigned = Unsigned { holder: "bursar-webhook", account: WEBHOOK_USER, request: &request, lifetime: OUTSIDE };
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

/// Of root's the files are those of the folder's owner: whom the webhook runs as.
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
