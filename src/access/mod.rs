//! The daemon's own access to a cluster: the client made from its kubeconfig, and whose cluster it is.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client};

use crate::observed::cluster::{WatchError, connect};

/// Bursar's own namespace.
pub const NAMESPACE: &str = "bursar";
/// `ConfigMap` in [`NAMESPACE`] that names the ledger to which the cluster belongs.
pub const OWNER: &str = "bursar-owner";
/// Its key.
pub const OWNER_KEY: &str = "ledger";

/// What keeps the daemon out of a cluster.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The kubeconfig cannot be used.
    #[error("{path}; `bursar init` makes it")]
    Kubeconfig {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: kube::config::KubeconfigError,
    },
    /// No client can be made.
    #[error(transparent)]
    Client(#[from] WatchError),
    /// The API server did not answer, or refused.
    #[error("{what}")]
    Request {
        /// What was asked.
        what: &'static str,
        /// Why.
        #[source]
        source: kube::Error,
    },
}

/// A client of the cluster that the daemon's kubeconfig names.
pub async fn client(kubeconfig: &Path) -> Result<Client, AccessError> {
    let wrong = |source| AccessError::Kubeconfig { path: kubeconfig.to_owned(), source };
    let file = Kubeconfig::read_from(kubeconfig).map_err(wrong)?;
    let config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.map_err(wrong)?;
    Ok(connect(config)?)
}

/// The id of the ledger that the cluster belongs to; nobody's before `bursar init`.
pub async fn owner(client: &Client) -> Result<Option<String>, AccessError> {
    let object = Api::<ConfigMap>::namespaced(client.clone(), NAMESPACE)
        .get_opt(OWNER)
        .await
        .map_err(|source| AccessError::Request { what: "whose cluster it is", source })?;
    Ok(object.and_then(|object| object.data?.remove(OWNER_KEY)))
}
