//! Why the daemon has no access to a cluster, or why `init` could not create it, with the remedy.

use std::path::PathBuf;

use thiserror::Error;

use super::webhook::replaced_by;
use crate::execute::authority::VerifyError;
use crate::execute::request::RequestError;
use crate::execute::signing::SigningError;
use crate::identity::ClusterName;
use crate::kinds::ObjectKind;
use crate::observed::cluster::WatchError;
use crate::rules::approver::ApproverRulesError;

/// A failure of [`super::client`], [`super::init()`], [`super::renew`], [`super::owner`] or [`super::webhook`].
#[derive(Debug, Error)]
pub enum AccessError {
    /// The file cannot be read.
    #[error("kubeconfig {} cannot be read (`bursar init` makes the daemon's)", path.display())]
    Unread {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The file is not YAML, for the reason in `why`.
    #[error("kubeconfig {} is not a kubeconfig: {why}", path.display())]
    Malformed { path: PathBuf, why: String },
    /// A part of the kubeconfig is missing or wrong.
    #[error("kubeconfig {} cannot be used", path.display())]
    Kubeconfig {
        path: PathBuf,
        #[source]
        source: Box<kube::config::KubeconfigError>,
    },
    /// The file cannot be used, for the reason in `what`.
    #[error("kubeconfig {}: {what}", path.display())]
    Incomplete { path: PathBuf, what: &'static str },
    /// No client can be built from the kubeconfig.
    #[error("kubeconfig {} cannot be used", path.display())]
    Client {
        path: PathBuf,
        #[source]
        source: WatchError,
    },
    /// A request to the API server failed or was refused.
    #[error("{what}")]
    Api {
        /// The request.
        what: String,
        #[source]
        source: Box<kube::Error>,
    },
    /// Objects that a check needs could not be listed.
    #[error("{what} cannot be listed")]
    Unlisted {
        /// The objects.
        what: &'static str,
        #[source]
        source: RequestError,
    },
    /// The API server did not answer in time.
    #[error("{what}: no answer within 30 s; check that the API server runs and can be reached from this host")]
    TimedOut {
        /// The request.
        what: String,
    },
    /// The mark is higher than any generation that this process wrote, or names another process as its holder.
    #[error(
        "bursar-mark proves that the ledger is out of date or that another process replaced this one; nothing is written, \
         and the daemon exits"
    )]
    Behind,
    /// The write of the mark hangs.
    #[error("ConfigMap bursar-mark in namespace bursar was not written within {seconds} s; the write is retried")]
    NotRaised {
        /// How long a step waited.
        seconds: u64,
    },
    /// Another client changed the mark between each read and write.
    #[error("another client keeps changing ConfigMap bursar-mark in namespace bursar; the write is retried")]
    Contended,
    /// Another ledger owns this cluster.
    #[error(
        "the cluster belongs to ledger {found}, and this is {ours} (ConfigMap bursar-owner in namespace bursar); \
         `bursar takeover` on this host takes it over, after the other daemon was stopped"
    )]
    OtherOwner {
        /// The id of that ledger.
        found: String,
        /// The id of this ledger.
        ours: String,
    },
    /// The administrator's kubeconfig is for a cluster other than the named one.
    #[error(
        "{} reaches a cluster other than {cluster}: their ConfigMaps bursar-owner differ; name an administrator's kubeconfig \
         of {cluster} with --admin-kubeconfig", path.display()
    )]
    OtherCluster {
        /// The named cluster.
        cluster: ClusterName,
        /// The administrator's kubeconfig.
        path: PathBuf,
    },
    /// The given credential is one that Bursar issued, so it would lose its rights during the removal.
    #[error("{} is a credential that Bursar issued; name a kubeconfig of the cluster's administrator", .0.display())]
    OfBursar(PathBuf),
    /// The cluster has no objects of Bursar, so it is probably the wrong one.
    #[error("cluster {cluster}: the cluster that {} reaches has no objects of Bursar; nothing was removed", path.display())]
    NothingOfBursar {
        /// The named cluster.
        cluster: ClusterName,
        /// The administrator's kubeconfig.
        path: PathBuf,
    },
    /// The configuration names a ClusterRole that does not exist.
    #[error("ClusterRole {0} is not in the cluster; make it, or take it out of the configuration's classes")]
    NoSuchRole(String),
    /// A site manifest has a kind that does not exist or is not namespaced.
    #[error(
        "the cluster has no namespaced kind {kind} in {}; install what defines it, or take it out of the manifests",
        kind.api_version()
    )]
    NoSuchKind { kind: ObjectKind },
    #[error("cannot generate a private key")]
    Key(#[source] rcgen::Error),
    /// The daemon's certificate was not issued.
    #[error("cannot obtain a certificate for bursar:daemon")]
    Signing(#[source] SigningError),
    /// The webhook's certificate was not issued to the daemon.
    #[error(
        "cannot obtain a certificate for bursar:webhook; if an approver is installed, or if the installed webhook does not \
         run, an administrator must have it signed: add --admin-kubeconfig FILE"
    )]
    WebhookSigning(#[source] SigningError),
    /// The issued certificate differs from the request.
    #[error("the certificate for bursar:daemon cannot be used")]
    Certificate(#[source] VerifyError),
    /// The daemon's certificate has expired.
    #[error("the daemon's own certificate expired at {0:.0}; run bursar init")]
    Ended(jiff::Timestamp),
    /// The API server identifies the new credential as another user.
    #[error("the API server identifies the holder of the new certificate as {0:?} instead of bursar:daemon")]
    Stranger(String),
    /// The API server allowed a request that the daemon admission policy must refuse.
    #[error(
        "the API server does not enforce ValidatingAdmissionPolicy bursar-cage; no credential was written; Bursar needs \
         Kubernetes 1.30 or newer with the admission plugin ValidatingAdmissionPolicy enabled"
    )]
    PolicyNotEnforced,
    /// The daemon's new rights did not take effect.
    #[error("the daemon's new role is not in force after 15 s: {0}")]
    NoRights(String),
    /// An older `init` gave the daemon too few rights.
    #[error(
        "{what}: the daemon has no right to do this, because an older `bursar init` gave it none for the webhook; run: \
         bursar init"
    )]
    Outdated {
        /// The request.
        what: String,
        /// The answer of the API server.
        #[source]
        source: Box<kube::Error>,
    },
    /// The webhook is installed, but does not become available.
    #[error(
        "Deployment bursar-webhook in namespace bursar is not available after {} s ({why}); the webhook is not in force \
         yet. See `kubectl -n bursar get pods` and the image",
        waited.as_secs()
    )]
    NotAvailable {
        /// How long the installation waited.
        waited: std::time::Duration,
        /// The last state of the Deployment.
        why: String,
    },
    /// The webhook outside the cluster does not answer.
    #[error(
        "the webhook at {url} does not answer after {} s ({why}); its files are written, and {standing}. Start it \
         (systemctl enable --now bursar-webhook on its host), then install again",
        waited.as_secs()
    )]
    NoReview {
        /// Its URL.
        url: String,
        /// What is in force.
        standing: String,
        /// How long the installation waited.
        waited: std::time::Duration,
        /// The last error.
        why: String,
    },
    /// The approver is installed, but does not become available.
    #[error(
        "Deployment bursar-approver in namespace bursar-approver is not available after {} s ({why}); the daemon approves as \
         before. See `kubectl -n bursar-approver get pods` and the image",
        waited.as_secs()
    )]
    ApproverNotAvailable {
        /// How long the installation waited.
        waited: std::time::Duration,
        /// The last state of the Deployment.
        why: String,
    },
    /// This version cannot read the approver's rules.
    #[error(
        "cannot read the rules in ConfigMap bursar-approver of namespace bursar-approver; run `bursar approver install` again"
    )]
    ApproverRules(#[source] ApproverRulesError),
    /// No ledger owns this cluster.
    #[error("the cluster belongs to no ledger yet: run `bursar init`")]
    NoOwner,
    /// A self-test needs the webhook, which is not installed.
    #[error("the webhook is not installed in this cluster: `bursar webhook install`")]
    NoWebhook,
    /// Another process of this host has the webhook's lock.
    #[error("another process, such as bursard, is changing the webhook of cluster {cluster}; run the command again")]
    WebhookBusy { cluster: ClusterName },
    /// This host did not install the webhook of the cluster.
    #[error(
        "cluster {cluster} has a webhook that this host did not install, so its address, image and authority may be a \
         thief's; run: {}", replaced_by(.cluster)
    )]
    ForeignWebhook { cluster: ClusterName },
    /// The API server does not trust this host's new certificate authority yet.
    #[error(
        "the API server does not trust this host's new CA yet; try again in an hour, or uninstall the webhook first"
    )]
    NotBelieved,
    #[error("{} cannot be read", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{} cannot be written", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

impl AccessError {
    /// Whether the API server answered that the object does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Api { source, .. } if matches!(&**source, kube::Error::Api(status) if status.code == 404))
    }

    /// Whether the API server answered the request, and refused it.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Api { source, .. } if matches!(&**source, kube::Error::Api(_)))
    }

    /// Whether the object was created, changed or removed by somebody else since it was read.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Api { source, .. } if matches!(&**source, kube::Error::Api(status) if matches!(status.code, 404 | 409)))
    }
}
