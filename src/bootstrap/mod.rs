//! The daemon's own access to a cluster. `init` creates it with the administrator's credential, `renew` renews it, and
//! `owner` reads which ledger owns the cluster. The manifests are built in `needs`, `roles` and
//! `daemon_admission_policy`.
//!
//! Architecture invariant: only [`init()`] and the approver's installation write roles, admission policies or the
//! owner, and only with the administrator's credential, which is read once and not kept. The daemon installs and
//! maintains the webhook ([`webhook`]) with its own credential, and the daemon admission policy limits what it may
//! request.

pub mod approver;
pub mod confinement;
pub mod daemon_admission_policy;
mod error;
mod facts;
mod files;
mod init;
mod mark;
pub mod needs;
mod own;
mod owner;
mod rights;
pub mod roles;
mod uninstall;
pub mod webhook;

use std::path::Path;
use std::time::Duration;

use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};

pub use error::AccessError;
pub use facts::{facts, quotas};
pub use files::replace_as;
pub use init::{Did, InitReport, InitRequest, Made, dry_run, init, take_over};
pub use mark::generations::{KnownGenerations, Reserved};
pub use mark::keeper::{Claim, MarkKeeper};
pub use mark::{FoundMark, MarkOwner};
pub use own::{OWN_LIFETIME, Renewal, ended, follow, own_certificate, renew};
pub use owner::{OWNER_KEY, OwnerWatch, Ownership, Said, must_be_same, owner, owner_and_said, watch_owner};
pub use rights::{missing, role_rules};
pub use roles::{NAMESPACE, OWNER};
pub use uninstall::{LeftBinding, UninstallRequest, Uninstalled, uninstall};

use crate::observed::cluster::connect;

/// How long to wait for an answer: as long as the executor waits. An API server that works answers sooner.
const DEADLINE: Duration = Duration::from_secs(30);

/// Returns a client for the current context of a kubeconfig, configured for watches and writes ([`connect`]).
/// Certificates are read once, so a renewal needs a new client.
pub async fn client(kubeconfig: &Path) -> Result<Client, AccessError> {
    client_of(read(kubeconfig)?, kubeconfig).await
}

/// Returns the URL of the API server in the current context of a kubeconfig.
pub async fn server(kubeconfig: &Path) -> Result<String, AccessError> {
    let url = config_of(read(kubeconfig)?, kubeconfig).await?.cluster_url.to_string();
    Ok(url.trim_end_matches('/').to_owned())
}

/// Returns the credential of a kubeconfig's current user.
pub async fn credential(kubeconfig: &Path) -> Result<AuthInfo, AccessError> {
    Ok(config_of(read(kubeconfig)?, kubeconfig).await?.auth_info)
}

fn read(path: &Path) -> Result<Kubeconfig, AccessError> {
    let path = path.to_owned();
    Kubeconfig::read_from(&path).map_err(|error| match error {
        KubeconfigError::ReadConfig(source, _) => AccessError::Unread { path, source },
        // The other lines of the error quote the file, which contains keys and tokens.
        KubeconfigError::Parse(error) => {
            let why = error.to_string().lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
            AccessError::Malformed { path, why }
        }
        error => AccessError::Kubeconfig { path, source: Box::new(error) },
    })
}

async fn config_of(kubeconfig: Kubeconfig, path: &Path) -> Result<Config, AccessError> {
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .map_err(|source| AccessError::Kubeconfig { path: path.to_owned(), source: Box::new(source) })
}

async fn client_of(kubeconfig: Kubeconfig, path: &Path) -> Result<Client, AccessError> {
    connect(config_of(kubeconfig, path).await?).map_err(|source| AccessError::Client { path: path.to_owned(), source })
}

/// Waits for the answer of a request. `what` names the request in an error.
async fn answered<T>(what: &str, asked: impl Future<Output = Result<T, kube::Error>>) -> Result<T, AccessError> {
    match tokio::time::timeout(DEADLINE, asked).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(source)) => Err(AccessError::Api { what: what.to_owned(), source: Box::new(source) }),
        Err(_) => Err(AccessError::TimedOut { what: what.to_owned() }),
    }
}
