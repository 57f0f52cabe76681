//! The daemon's own credential: a client certificate of user `bursar:daemon` in the group of its ledger
//! ([`policy::daemon_group`]). The administrator requests the first one, and the daemon renews it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::{SelfSubjectReview, UserInfo};
use kube::api::PostParams;
use kube::config::{AuthInfo, Cluster, Context, Kubeconfig, NamedAuthInfo, NamedCluster, NamedContext};
use kube::{Api, Client};
use secrecy::SecretString;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use super::owner::owner_and_said;
use super::webhook::WEBHOOK_LIFETIME;
use super::{AccessError, answered, client_of, files, read};
use crate::certificate::{self, Asked, Issued};
use crate::errors::chain;
use crate::execute::authority::verified;
use crate::execute::keypair::{Names, NewKey};
use crate::execute::request::ApiServer;
use crate::execute::signing::{Unsigned, sign};
use crate::identity::ClusterName;
use crate::policy::{self, DAEMON_USER};

/// The user's name in the daemon's kubeconfig. A file without it is an administrator's own and is not changed.
const USER_ENTRY: &str = "bursar-daemon";

/// A month, renewed after 20 days. A daemon that was off for ten days still has access, and a stolen copy of the file
/// becomes useless after a month.
pub const OWN_LIFETIME: Duration = Duration::from_hours(30 * 24);

pub(super) struct OwnCredential {
    pub(super) kubeconfig: Kubeconfig,
    pub(super) issued: Issued,
}

/// The result of a renewal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Renewal {
    /// The certificate is not due yet.
    NotDue {
        renew_after: Timestamp,
        /// When the certificate expires.
        not_after: Timestamp,
    },
    /// The file contains a new certificate. Clients with the old one must be replaced.
    Renewed {
        /// When the next renewal is due.
        renew_after: Timestamp,
        /// When the new certificate expires.
        not_after: Timestamp,
    },
    /// The renewal failed, but the current certificate is still valid.
    Postponed {
        /// The error with its causes.
        why: String,
        /// When the current certificate expires.
        not_after: Timestamp,
    },
    /// The kubeconfig is an administrator's own, so the daemon does not renew it.
    NotOurs,
}

/// Renews the daemon's certificate after 2/3 of its lifetime, with that certificate as credential, and replaces the
/// file. If the signer is unavailable, nothing is lost: the current certificate works until it expires.
pub async fn renew(kubeconfig: &Path, cluster: &ClusterName, now: Timestamp) -> Result<Renewal, AccessError> {
    let file = read(kubeconfig)?;
    let Some(user) = own_user(&file) else { return Ok(Renewal::NotOurs) };
    let data = user.auth_info.as_ref().and_then(|user| user.client_certificate_data.as_deref());
    let pem = data.and_then(|data| BASE64.decode(data).ok());
    let issued = pem.as_deref().and_then(certificate::validity).ok_or_else(|| AccessError::Incomplete {
        path: kubeconfig.to_owned(),
        what: "the daemon's certificate in it cannot be read; `bursar init` makes a new one",
    })?;
    let (renew_after, not_after) = (certificate::renew_after(&issued), issued.not_after);
    if not_after <= now {
        // The API server rejects an expired certificate, and its answer would not say why.
        return Err(AccessError::Ended(not_after));
    }
    if now < renew_after {
        return Ok(Renewal::NotDue { renew_after, not_after });
    }
    let group =
        pem.as_deref().and_then(certificate::subject).and_then(|subject| subject.organizations.into_iter().next());
    match renewed(file, kubeconfig, cluster, group.as_deref()).await {
        Ok(issued) => {
            let renew_after = certificate::renew_after(&issued);
            Ok(Renewal::Renewed { renew_after, not_after: issued.not_after })
        }
        Err(error) if now < not_after => Ok(Renewal::Postponed { why: chain(&error), not_after }),
        Err(error) => Err(error),
    }
}

/// Fingerprint and expiry of the daemon's own certificate; `None` if the kubeconfig is an administrator's own.
pub fn own_certificate(kubeconfig: &Path) -> Result<Option<(String, Timestamp)>, AccessError> {
    let file = read(kubeconfig)?;
    let data = own_user(&file).and_then(|user| user.auth_info.as_ref()?.client_certificate_data.clone());
    let issued = data.and_then(|data| BASE64.decode(data).ok()).and_then(|pem| certificate::validity(&pem));
    Ok(issued.map(|issued| (issued.fingerprint, issued.not_after)))
}

/// The message for an expired certificate of the daemon.
#[must_use]
pub fn ended(at: Timestamp) -> String {
    format!("the daemon's own certificate expired at {at:.0}; run bursar init")
}

/// Copies the configuration's CA bundle into the daemon's kubeconfig, if both name the same URL and the API server can
/// be reached with that bundle. An administrator then has to replace a CA in one place only. Returns whether the file
/// was written.
pub async fn follow(kubeconfig: &Path, face: &policy::Cluster) -> Result<bool, AccessError> {
    let mut file = read(kubeconfig)?;
    if own_user(&file).is_none() {
        return Ok(false);
    }
    let reached = reached(&file, kubeconfig)?;
    let url = reached.server.as_deref().unwrap_or_default().trim_end_matches('/');
    let endpoint = face.endpoints.values().find(|endpoint| endpoint.url.trim_end_matches('/') == url);
    let wanted = endpoint.map(|endpoint| BASE64.encode(&endpoint.ca_pem));
    let Some(wanted) = wanted.filter(|wanted| reached.certificate_authority_data.as_ref() != Some(wanted)) else {
        return Ok(false);
    };
    for cluster in file.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
        cluster.certificate_authority = None;
        cluster.certificate_authority_data = Some(wanted.clone());
    }
    let client = client_of(file.clone(), kubeconfig).await?;
    if who_am_i(&client).await.is_ok_and(|who| who == DAEMON_USER) {
        write(&file, kubeconfig)?;
        return Ok(true);
    }
    Ok(false)
}

async fn renewed(
    file: Kubeconfig,
    path: &Path,
    cluster: &ClusterName,
    group: Option<&str>,
) -> Result<Issued, AccessError> {
    let reached = reached(&file, path)?;
    let client = client_of(file, path).await?;
    let said = owner_and_said(&client).await?.map(|(_, said)| said);
    let server = ApiServer::new(cluster.clone(), client, Arc::default());
    server.let_approve(said.is_none_or(|said| said.approver.is_none()));
    let new = obtain(&server, reached, group, path).await?;
    write(&new.kubeconfig, path)?;
    Ok(new.issued)
}

/// Fails unless `init` may write the file: it does not exist, or an earlier `init` wrote it. Any other file may be the
/// only access to a cluster.
pub(super) fn must_be_ours(path: &Path) -> Result<(), AccessError> {
    if !path.exists() || read(path).is_ok_and(|file| own_user(&file).is_some()) {
        return Ok(());
    }
    Err(AccessError::Incomplete {
        path: path.to_owned(),
        what: "`bursar init` did not write it, so it is not replaced; move it away, or name another file in [cluster]",
    })
}

fn own_user(file: &Kubeconfig) -> Option<&NamedAuthInfo> {
    file.auth_infos.iter().find(|user| user.name == USER_ENTRY)
}

/// Requests and approves a certificate with the rights of `server`'s client, and checks that the API server identifies
/// its holder as the daemon.
pub(super) async fn obtain(
    server: &ApiServer,
    reached: Cluster,
    group: Option<&str>,
    path: &Path,
) -> Result<OwnCredential, AccessError> {
    let key = NewKey::generate().map_err(AccessError::Key)?;
    // `init` and a renewal can run at the same time; with different names, each removes only its own request.
    let holder = format!("{USER_ENTRY}-{}", hex::encode(&Sha256::digest(key.public_key())[..8]));
    let (pem, issued) = signed(server, &key, (&holder, DAEMON_USER, group), OWN_LIFETIME).await?;
    let kubeconfig = kubeconfig(&server.cluster, reached, &pem, &key);
    let client = client_of(kubeconfig.clone(), path).await?;
    let who = who_am_i(&client).await?;
    if who != DAEMON_USER {
        return Err(AccessError::Stranger(who));
    }
    Ok(OwnCredential { kubeconfig, issued })
}

/// Requests and approves a certificate of one of Bursar's programs, and checks it. Returns the certificate as PEM, and
/// its fingerprint and validity.
pub(super) async fn signed(
    server: &ApiServer,
    key: &NewKey,
    (holder, user, group): (&str, &str, Option<&str>),
    lifetime: Duration,
) -> Result<(Vec<u8>, Issued), AccessError> {
    let names = Names { common_name: user, organizations: [group, None], serial_number: None };
    let request = key.request(names).map_err(AccessError::Key)?;
    let unsigned = Unsigned { holder, account: user, request: &request, lifetime, namespace: None, record: None };
    let pem = sign(server, unsigned).await.map_err(AccessError::Signing)?;
    let asked = Asked {
        common_name: user,
        organizations: group.into_iter().collect(),
        serial_number: None,
        public_key: &key.public_key(),
        authorities: None,
    };
    let issued = verified(server, &pem, &asked).await.map_err(AccessError::Certificate)?;
    Ok((pem, issued))
}

/// Issues a client certificate to `user`, and returns a kubeconfig with it, in which the user's entry is called `entry`,
/// and when the certificate expires.
pub(super) async fn access_file(
    server: &ApiServer,
    reached: Cluster,
    (entry, holder, user): (&str, &str, &str),
) -> Result<(Zeroizing<String>, Timestamp), AccessError> {
    let key = NewKey::generate().map_err(AccessError::Key)?;
    let (pem, issued) = signed(server, &key, (holder, user, None), WEBHOOK_LIFETIME).await?;
    let name = &server.cluster.0;
    let file = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": reached}],
        "users": [{"name": entry, "user": {
            "client-certificate-data": BASE64.encode(&pem),
            "client-key-data": BASE64.encode(key.pem().expose()),
        }}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": entry}}],
        "current-context": name,
    });
    Ok((Zeroizing::new(format!("{file:#}\n")), issued.not_after))
}

/// Returns how the current context reaches its cluster, with the CA certificates embedded.
pub(super) fn reached(file: &Kubeconfig, path: &Path) -> Result<Cluster, AccessError> {
    let incomplete = |what| AccessError::Incomplete { path: path.to_owned(), what };
    let context = file.contexts.iter().find(|context| Some(&context.name) == file.current_context.as_ref());
    let context = context.and_then(|context| context.context.as_ref());
    let context = context.ok_or_else(|| incomplete("it has no current context"))?;
    let cluster = file.clusters.iter().find(|cluster| cluster.name == context.cluster);
    let mut cluster = cluster
        .and_then(|cluster| cluster.cluster.clone())
        .ok_or_else(|| incomplete("the current context's cluster is not in it"))?;
    if cluster.insecure_skip_tls_verify == Some(true) {
        return Err(incomplete("it does not check the API server's certificate (insecure-skip-tls-verify)"));
    }
    if let Some(authority) =
        cluster.certificate_authority.take().filter(|_| cluster.certificate_authority_data.is_none())
    {
        let pem = std::fs::read(authority).map_err(|_| incomplete("its certificate-authority cannot be read"))?;
        cluster.certificate_authority_data = Some(BASE64.encode(pem));
    }
    Ok(cluster)
}

/// Writes the kubeconfig to its path.
pub(super) fn write(kubeconfig: &Kubeconfig, path: &Path) -> Result<(), AccessError> {
    // JSON is valid YAML. The buffer never grows, so no copy of the key stays in memory.
    let mut text = Zeroizing::new(Vec::with_capacity(64 * 1024));
    serde_json::to_writer_pretty(&mut *text, kubeconfig)
        .map_err(|error| AccessError::Write { path: path.to_owned(), source: error.into() })?;
    files::replace(path, &text)
}

fn kubeconfig(name: &ClusterName, cluster: Cluster, pem: &[u8], key: &NewKey) -> Kubeconfig {
    let user = AuthInfo {
        client_certificate_data: Some(BASE64.encode(pem)),
        client_key_data: Some(SecretString::from(BASE64.encode(key.pem().expose()))),
        ..AuthInfo::default()
    };
    let context = Context { cluster: name.to_string(), user: Some(USER_ENTRY.to_owned()), ..Context::default() };
    Kubeconfig {
        clusters: vec![NamedCluster { name: name.to_string(), cluster: Some(cluster), ..NamedCluster::default() }],
        auth_infos: vec![NamedAuthInfo {
            name: USER_ENTRY.to_owned(),
            auth_info: Some(user),
            ..NamedAuthInfo::default()
        }],
        contexts: vec![NamedContext { name: name.to_string(), context: Some(context), ..NamedContext::default() }],
        current_context: Some(name.to_string()),
        api_version: Some("v1".to_owned()),
        kind: Some("Config".to_owned()),
        ..Kubeconfig::default()
    }
}

async fn who_am_i(client: &Client) -> Result<String, AccessError> {
    Ok(who("SelfSubjectReview with the new certificate", client).await?.username.unwrap_or_default())
}

/// Returns the user as which the API server identifies the client.
pub(super) async fn who(what: &str, client: &Client) -> Result<UserInfo, AccessError> {
    let api = Api::<SelfSubjectReview>::all(client.clone());
    let (parameters, review) = (PostParams::default(), SelfSubjectReview::default());
    let review = answered(what, api.create(&parameters, &review)).await?;
    Ok(review.status.and_then(|status| status.user_info).unwrap_or_default())
}
