//! Why the daemon has no access, or `init` could not give it any: what is wrong, and the remedy.

use std::path::PathBuf;

use thiserror::Error;

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
    /// The file is not there, or is no kubeconfig.
    #[error("kubeconfig {} cannot be used", path.display())]
    Kubeconfig {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<kube::config::KubeconfigError>,
    },
    /// It lacks something.
    #[error("kubeconfig {}: {what}", path.display())]
    Incomplete {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        what: &'static str,
    },
    /// No client can be made of it.
    #[error("kubeconfig {} cannot be used", path.display())]
    Client {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: WatchError,
    },
    /// The API server did not carry out a request.
    #[error("{what}")]
    Api {
        /// What was to be done.
        what: String,
        /// What came of it.
        #[source]
        source: Box<kube::Error>,
    },
    /// What is to be judged is not known.
    #[error("{what} cannot be listed")]
    Unlisted {
        /// Which objects.
        what: &'static str,
        /// What came of it.
        #[source]
        source: RequestError,
    },
    /// No answer in time.
    #[error("{what}: no answer within 30 s; check that the API server runs and is reached from this host")]
    TimedOut {
        /// What was to be done.
        what: String,
    },
    /// Another ledger keeps this cluster.
    #[error(
        "the cluster belongs to ledger {found}, and this is {ours} (ConfigMap bursar-owner in namespace bursar); \
         `bursar takeover` on this host takes it over, after the other daemon was stopped"
    )]
    OtherOwner {
        /// Its id.
        found: String,
        /// Ours.
        ours: String,
    },
    /// The administrator's kubeconfig reaches another cluster than the one that is named.
    #[error(
        "{} reaches another cluster than {cluster}: their ConfigMaps bursar-owner differ; name an administrator's kubeconfig \
         of {cluster} with --admin-kubeconfig", path.display()
    )]
    OtherCluster {
        /// The one that is named.
        cluster: ClusterName,
        /// The administrator's kubeconfig.
        path: PathBuf,
    },
    /// The administrator's kubeconfig is one only by what is to be removed.
    #[error("{} is a credential that Bursar issued; name a kubeconfig of the cluster's administrator", .0.display())]
    OfBursar(PathBuf),
    /// There is nothing to remove: most likely it is another cluster.
    #[error("cluster {cluster}: the cluster of {} has nothing of Bursar; nothing was removed", path.display())]
    NothingOfBursar {
        /// The one that is named.
        cluster: ClusterName,
        /// The administrator's kubeconfig.
        path: PathBuf,
    },
    /// The configuration names a role that is not there.
    #[error("ClusterRole {0} is not in the cluster; make it, or take it out of the configuration's classes")]
    NoSuchRole(String),
    /// A site manifest names a kind that is not there, or not one of namespaces.
    #[error(
        "the cluster has no namespaced kind {kind} in {}; install what defines it, or take it out of the manifests",
        kind.api_version()
    )]
    NoSuchKind {
        /// Which.
        kind: ObjectKind,
    },
    /// No key was made.
    #[error("cannot generate a private key")]
    Key(#[source] rcgen::Error),
    /// No certificate was issued.
    #[error("cannot obtain a certificate for bursar:daemon")]
    Signing(#[source] SigningError),
    /// The webhook's certificate was not signed for the daemon.
    #[error(
        "no certificate for bursar:webhook; with --admin-kubeconfig FILE an administrator has it signed, as it must be where \
         an approver approves, or where the webhook that is in force does not run"
    )]
    WebhookSigning(#[source] SigningError),
    /// Another than was asked for was issued.
    #[error("the certificate for bursar:daemon cannot be used")]
    Certificate(#[source] VerifyError),
    /// Nobody takes the daemon's certificate any more.
    #[error("the daemon's own certificate ended at {0:.0}; run bursar init")]
    Ended(jiff::Timestamp),
    /// The new credential is not taken for what it is.
    #[error("the API server identifies the holder of the new certificate as {0:?} instead of bursar:daemon")]
    Stranger(String),
    /// The API server let the daemon's credential do what the daemon admission policy must refuse.
    #[error(
        "the API server does not enforce ValidatingAdmissionPolicy bursar-cage; no credential was written; Bursar needs \
         Kubernetes 1.30 or newer with that admission plugin on"
    )]
    PolicyNotEnforced,
    /// The daemon's new rights do not show.
    #[error("the daemon's new role is not in force after 15 s: {0}")]
    NoRights(String),
    /// The daemon's rights are those of an older `init`.
    #[error(
        "{what}: the daemon may not, because an older `bursar init` gave it no rights for the webhook; run: bursar init"
    )]
    Outdated {
        /// What was to be done.
        what: String,
        /// What the API server says.
        #[source]
        source: Box<kube::Error>,
    },
    /// The webhook is there, and does not run.
    #[error(
        "Deployment bursar-webhook in namespace bursar is not available after {} s ({why}); nothing waits for it yet. See \
         `kubectl -n bursar get pods` and the image",
        waited.as_secs()
    )]
    NotAvailable {
        /// How long it had.
        waited: std::time::Duration,
        /// What it says.
        why: String,
    },
    /// The webhook outside of the cluster does not answer.
    #[error(
        "the webhook at {url} does not answer after {} s ({why}); its files are written, and nothing is enforced yet. Start it \
         (systemctl enable --now bursar-webhook on its host), then install again",
        waited.as_secs()
    )]
    NoReview {
        /// Where it should be.
        url: String,
        /// How long it had.
        waited: std::time::Duration,
        /// What was seen last.
        why: String,
    },
    /// The approver is there, and does not run.
    #[error(
        "Deployment bursar-approver in namespace bursar-approver is not available after {} s ({why}); the daemon approves as \
         before. See `kubectl -n bursar-approver get pods` and the image",
        waited.as_secs()
    )]
    ApproverNotAvailable {
        /// How long it had.
        waited: std::time::Duration,
        /// What it says.
        why: String,
    },
    /// The approver goes by something that this version does not read.
    #[error("ConfigMap bursar-approver in namespace bursar-approver; run `bursar approver install` again")]
    ApproverRules(#[source] ApproverRulesError),
    /// Nobody keeps this cluster.
    #[error("the cluster belongs to no ledger yet: run `bursar init`")]
    NoOwner,
    /// There is no webhook to be tried.
    #[error("the webhook is not installed in this cluster: `bursar webhook install`")]
    NoWebhook,
    /// The API server does not believe any authority of this host yet.
    #[error(
        "the API server does not trust this host's new CA yet; try again in an hour, or uninstall the webhook first"
    )]
    NotBelieved,
    /// A file could not be read.
    #[error("{} cannot be read", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A file could not be written.
    #[error("{} cannot be written", path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

impl AccessError {
    /// The API server does not have the object.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Api { source, .. } if matches!(&**source, kube::Error::Api(status) if status.code == 404))
    }
}
