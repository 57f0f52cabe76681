//! Why a step of an account in a cluster failed: the problem and the remedy.

use std::path::PathBuf;

use bursar_homed::client::HomedClientError;
use bursar_protocol::HomeError;
use thiserror::Error;

use super::request::RequestError;
use super::signing::SigningError;
use crate::archive::ArchiveError;
use crate::bootstrap::AccessError;
use crate::bootstrap::daemon_admission_policy::RULE;
use crate::desired::{DesiredHome, credential};
use crate::errors::chain;
use crate::identity::{ClusterName, NamespaceName};
use crate::kinds::{ManagedKind, ObjectKey, ObjectKind};
use crate::ledger::{CERTIFICATE, FOREIGN, OVERWRITTEN};

/// A failed step. It ends the rest of its account's steps in its cluster, and affects no other account.
#[derive(Debug, Error)]
pub enum StepError {
    /// An object with this name does not belong to Bursar.
    #[error("{key} belongs to somebody else")]
    Foreign { key: ObjectKey },
    /// An object of Bursar is being deleted, so a write to it would be lost.
    #[error("{key} is being deleted")]
    Deleting { key: ObjectKey },
    /// Nothing can be created in a namespace that is being deleted.
    #[error("namespace {} is being deleted", key.namespace.as_deref().unwrap_or(&key.name))]
    NamespaceDeleting {
        /// The object that was to be created in it.
        key: ObjectKey,
    },
    /// The object's namespace does not exist.
    #[error("{key} cannot be created: its namespace does not exist")]
    NoNamespace {
        /// The object that was to be created in it.
        key: ObjectKey,
    },
    /// A volume's server or path cannot be changed (Kubernetes: `spec.persistentVolumeSource` is immutable).
    #[error("the configuration gives {key} another server or path, but those of a volume cannot change")]
    VolumeMoved {
        key: ObjectKey,
        /// The refusal.
        #[source]
        source: RequestError,
    },
    /// The API server, or one of its admission rules, refused an object.
    #[error("{key}")]
    Refused {
        key: ObjectKey,
        /// The refusal.
        #[source]
        source: RequestError,
    },
    /// A site manifest names a kind that the cluster does not have.
    #[error("the cluster has no kind {kind} in {}", kind.api_version())]
    UnknownKind { kind: ObjectKind },
    /// The API server did not carry out a request.
    #[error("a request to the API server failed")]
    Request(#[from] RequestError),
    /// A workload could not be stopped or resumed.
    #[error("cannot stop or start {key}")]
    Workload {
        key: ObjectKey,
        #[source]
        source: RequestError,
    },
    /// A pod past its lifetime, its controller or objects of its job could not be deleted. A tenant can create so many
    /// of these objects that the API server does not answer in time, so the cluster does not count as lost.
    #[error("cannot end {key}, which is past its lifetime")]
    Outlived {
        key: ObjectKey,
        #[source]
        source: RequestError,
    },
    /// The users of a pod could not be warned before its lifetime ends.
    #[error("cannot warn the users of {key} that its lifetime ends")]
    Unwarned {
        key: ObjectKey,
        #[source]
        source: RequestError,
    },
    /// The owner reference of a pod past its lifetime, or of its controller, is wrong, so an unknown controller may
    /// create the pod again.
    #[error("a pod past its lifetime was deleted, but may be recreated: no {key} has the uid in its owner reference")]
    NoController { key: ObjectKey },
    /// The work in a home was not done.
    #[error("bursar-homed cannot do the work in the account's home")]
    Home(#[from] HomedClientError),
    /// A credential was issued, but could not be written. This is retried less often than [`Self::Home`], because each
    /// attempt issues another credential.
    #[error("bursar-homed cannot write a new credential into the account's home")]
    Undelivered(#[source] HomedClientError),
    /// `bursar-homed` answered another request.
    #[error("bursar-homed gave an answer to another request")]
    HomeAnswer,
    /// Another program undid a delivery before the inspections after it were done.
    #[error("another program takes Bursar's entries out of {} after each delivery", file.display())]
    Overwritten { file: PathBuf },
    /// No certificate was issued or delivered. The error contains the remedy.
    #[error(transparent)]
    Credential(Box<dyn std::error::Error + Send + Sync>),
    /// No certificate was requested, because the signer did not answer requests of other accounts. The account is not
    /// at fault.
    #[error(transparent)]
    SignerNotAsked(SigningError),
    /// A kind of object could not be listed, so the archive would be incomplete.
    #[error("cannot archive the namespace completely: {what} cannot be listed")]
    Listing {
        cluster: ClusterName,
        /// A kind such as `deployments.apps`, or a version of an API group.
        what: String,
        #[source]
        source: Box<RequestError>,
    },
    /// The archive's file could not be written.
    #[error("cannot write the archive of the namespace")]
    Archive(#[from] ArchiveError),
    /// The task that wrote the archive's file failed.
    #[error("the archive of the namespace was not written")]
    Task(#[source] tokio::task::JoinError),
    /// The deletion of a namespace would delete data.
    #[error(
        "namespace {namespace} is archived, but not deleted: the data of {} would be deleted with it",
        volumes(claims)
    )]
    Data {
        namespace: NamespaceName,
        /// The claims, each with its volume.
        claims: Vec<(String, String)>,
    },
    /// A namespace that was deleted still exists.
    #[error("namespace {namespace} is being deleted: {why}")]
    Terminating {
        namespace: NamespaceName,
        /// What keeps it from ending.
        why: String,
        /// Whether the deletion needs somebody's help to end.
        stuck: bool,
    },
    /// The plan names a cluster that is not connected.
    #[error("cluster {0} is not connected")]
    NoCluster(ClusterName),
    /// An older credential still has rights.
    #[error("an older credential of {user} may still {what} ({why})")]
    StillAllowed {
        /// The user name in the API server.
        user: String,
        /// The verb and the resource.
        what: String,
        /// The binding that grants it, in the words of the API server.
        why: String,
    },
    /// Tokens that would let somebody act in a suspended namespace could not be removed.
    #[error("cannot remove the tokens of service accounts in namespace {namespace}")]
    Eviction {
        cluster: ClusterName,
        namespace: NamespaceName,
        #[source]
        source: Box<RequestError>,
    },
    /// Workloads are recreated while they are stopped.
    #[error("workloads in namespace {namespace} are recreated while they are stopped")]
    Restarting { namespace: NamespaceName },
    /// A binding would name a generation that the cluster's mark does not have yet.
    #[error("cannot raise the mark of the generations in use (ConfigMap bursar-mark) in cluster {cluster}")]
    Unmarked {
        cluster: ClusterName,
        #[source]
        source: Box<AccessError>,
    },
    /// The ledger did not record what was done.
    #[error("cannot write the ledger")]
    NotRecorded,
}

impl StepError {
    /// The name of the kind of step, for the ledger, metrics and logs.
    #[must_use]
    pub const fn step(&self) -> &'static str {
        match self {
            Self::Foreign { .. } => FOREIGN,
            Self::Deleting { .. } | Self::NamespaceDeleting { .. } | Self::NoNamespace { .. } => "deleting",
            Self::VolumeMoved { .. } => "volume",
            Self::Refused { .. } | Self::UnknownKind { .. } => "apply",
            Self::Request(_) | Self::NoCluster(_) | Self::Unmarked { .. } => "cluster",
            Self::Workload { .. }
            | Self::Outlived { .. }
            | Self::Unwarned { .. }
            | Self::NoController { .. }
            | Self::Restarting { .. } => "workloads",
            Self::Home(_) | Self::Undelivered(_) | Self::HomeAnswer => "home",
            Self::Overwritten { .. } => OVERWRITTEN,
            Self::Credential(_) | Self::SignerNotAsked(_) => CERTIFICATE,
            Self::StillAllowed { .. } => "revocation",
            Self::Eviction { .. } => "eviction",
            Self::Listing { .. } | Self::Archive(_) | Self::Task(_) => "archive",
            Self::Data { .. } | Self::Terminating { .. } => "deletion",
            Self::NotRecorded => "ledger",
        }
    }

    /// Whether the cluster did not answer at all.
    #[must_use]
    pub const fn is_loss(&self) -> bool {
        let (Self::Request(source) | Self::Workload { source, .. }) = self else { return false };
        source.is_loss()
    }

    /// Whether the error concerns a file in a home that could not be changed.
    #[must_use]
    pub const fn is_of_a_file(&self) -> bool {
        matches!(self, Self::Home(_) | Self::HomeAnswer)
    }

    /// Whether `home`, which was a mount point itself, is missing: the folder does not exist, and nothing is mounted
    /// there.
    #[must_use]
    pub fn misses(&self, home: &DesiredHome) -> bool {
        matches!(self, Self::Home(HomedClientError::Home(HomeError::MissingPrefix { prefix })) if *prefix == home.home)
    }

    /// Whether the home's path is a symbolic link, for example because the home was moved and the link leads there.
    #[must_use]
    pub fn is_of_a_link(&self, home: &DesiredHome) -> bool {
        matches!(self, Self::Home(HomedClientError::Home(HomeError::Symlink { path })) if *path == home.home)
    }

    /// Returns whether the daemon admission policy refused an object.
    #[must_use]
    pub fn is_by_our_policy(&self) -> bool {
        matches!(self, Self::Refused { source: RequestError::Refused(status), .. } if status.message.contains(RULE))
    }

    /// Whether the error concerns the cluster, and not a home or a credential.
    #[must_use]
    pub const fn is_of_nobodys_home(&self) -> bool {
        !matches!(
            self,
            Self::Home(_)
                | Self::Undelivered(_)
                | Self::HomeAnswer
                | Self::Overwritten { .. }
                | Self::Credential(_)
                | Self::SignerNotAsked(_)
        )
    }

    /// Whether a home is on an export that hangs. All other work on that export would hang too.
    #[must_use]
    pub const fn is_of_an_export(&self) -> bool {
        let (Self::Home(error) | Self::Undelivered(error)) = self else { return false };
        matches!(
            error,
            HomedClientError::TimedOut(_)
                | HomedClientError::NotListening { .. }
                | HomedClientError::Home(HomeError::TimedOut { .. } | HomeError::Unavailable { .. })
        )
    }

    /// Whether another program uses a file in a home, which normally lasts only a moment.
    #[must_use]
    pub const fn is_in_use(&self) -> bool {
        matches!(self, Self::Home(HomedClientError::Home(HomeError::InUse { .. })))
    }

    /// Whether the step takes time although nothing is wrong.
    #[must_use]
    pub const fn is_under_way(&self) -> bool {
        matches!(self, Self::Terminating { stuck: false, .. })
    }

    /// Returns the problem, its cause and the remedy, as `status` shows them.
    #[must_use]
    pub fn reason(&self) -> String {
        match self.remedy() {
            Some(remedy) => format!("{}; {remedy}", chain(self)),
            None => chain(self),
        }
    }

    fn remedy(&self) -> Option<String> {
        match self {
            Self::Foreign { key } if credential::is_token_holder(key) => Some(format!(
                "somebody may hold tokens of it, so no order takes it over; delete it: `kubectl delete serviceaccount {} -n {}`",
                key.name,
                key.namespace.as_deref().unwrap_or_default()
            )),
            Self::Foreign { key } => Some(adopt(key)),
            Self::Deleting { .. } | Self::NamespaceDeleting { .. } | Self::NoNamespace { .. } => {
                Some("Bursar creates it again after the deletion; `kubectl get -o yaml` shows finalizers that block it".into())
            }
            Self::VolumeMoved { key, .. } => Some(format!(
                "write the old server and path back into the configuration; to move the data, copy it, delete the claim \
                 and `kubectl delete persistentvolume {}` (the data stays); Bursar then creates both",
                key.name
            )),
            Self::UnknownKind { kind, .. } => {
                Some(format!("install the definition of {kind}, or remove it from the class's manifests"))
            }
            Self::Refused { key, source }
            | Self::Workload { key, source }
            | Self::Outlived { key, source }
            | Self::Unwarned { key, source } => remedy_of_refusal(&key.cluster, source),
            Self::Request(source) => remedy_of_request(source),
            Self::Home(HomedClientError::Home(error)) | Self::Undelivered(HomedClientError::Home(error)) => {
                Some(error.remedy())
            }
            Self::Overwritten { .. } => Some(
                "let its owner find the program that replaces the file, such as a cron job or a manager of dotfiles, and \
                 add the entries to its copy; the delivery is repeated at most hourly until then"
                    .into(),
            ),
            Self::HomeAnswer => Some("restart bursard and bursar-homed: their versions differ".into()),
            Self::StillAllowed { .. } => {
                Some("remove this user or group from the binding, which Bursar did not create".into())
            }
            Self::Unmarked { cluster, .. } => Some(format!(
                "no binding gets a new generation until then; to give the daemon the rights: bursar init --cluster {cluster}"
            )),
            Self::NoCluster(cluster) => Some(format!("see `bursar status` for cluster {cluster}")),
            Self::Restarting { namespace } => Some(format!(
                "find out who creates them: `kubectl get pods,deployments -n {namespace} -o yaml --show-managed-fields`; it \
                 is retried every minute"
            )),
            Self::NoController { key } => Some(format!(
                "find out who creates the pods: `kubectl get pods -n {} -o yaml`, in metadata.ownerReferences",
                key.namespace.as_deref().unwrap_or_default()
            )),
            Self::NotRecorded => Some("see the daemon's log; if the disk is full, free space in state_dir".into()),
            Self::Eviction { cluster, source, .. } | Self::Listing { cluster, source, .. } => {
                remedy_of_refusal(cluster, source)
                    .or_else(|| Some("repair that API, or remove its APIService; nothing is deleted until then".into()))
            }
            Self::Archive(_) => Some("make state_dir/archive writable; nothing is deleted until then".into()),
            Self::Data { namespace, claims } => Some(format!(
                "copy what is worth keeping, then `kubectl delete pvc {} -n {namespace}`; or keep it: {}",
                claims.iter().map(|(claim, _)| claim.as_str()).collect::<Vec<_>>().join(" "),
                retain(claims)
            )),
            Self::Terminating { stuck: true, .. } => Some(
                "it ends when the controller that set the finalizer removes it; Bursar never removes finalizers of others"
                    .into(),
            ),
            Self::Home(_)
            | Self::Undelivered(_)
            | Self::Credential(_)
            | Self::SignerNotAsked(_)
            | Self::Task(_)
            | Self::Terminating { .. } => None,
        }
    }
}

/// Returns, for example, `claim data (volume pvc-1)`.
fn volumes(claims: &[(String, String)]) -> String {
    let named = claims.iter().map(|(claim, volume)| format!("claim {claim} (volume {volume})"));
    named.collect::<Vec<_>>().join(", ")
}

fn retain(claims: &[(String, String)]) -> String {
    let patch = |(_, volume): &(String, String)| {
        format!("`kubectl patch pv {volume} -p '{{\"spec\":{{\"persistentVolumeReclaimPolicy\":\"Retain\"}}}}'`")
    };
    claims.iter().map(patch).collect::<Vec<_>>().join(", ")
}

fn adopt(key: &ObjectKey) -> String {
    let object = if key.kind == ManagedKind::Namespace { "" } else { "object " };
    format!("it is left alone; `bursar adopt {object}{}` takes it over", key.said())
}

fn remedy_of_refusal(cluster: &ClusterName, source: &RequestError) -> Option<String> {
    let RequestError::Refused(status) = source else { return remedy_of_request(source) };
    // Kubernetes' authorizer says `User "x" cannot VERB resource`; admission plugins use other words.
    let remedy =
        || format!("to give the daemon the rights that this configuration needs: bursar init --cluster {cluster}");
    lacks_rights(status).then(remedy)
}

fn lacks_rights(status: &kube::core::Status) -> bool {
    status.code == 403 && status.message.contains(" cannot ")
}

fn remedy_of_request(source: &RequestError) -> Option<String> {
    match source {
        RequestError::Unreachable { .. } | RequestError::TimedOut { .. } => {
            Some("check that the API server runs and can be reached from this host".into())
        }
        RequestError::Refused(status) if status.code == 401 => {
            Some("the daemon's credential is not accepted: `bursar init` makes a new one".into())
        }
        RequestError::Refused(status) if lacks_rights(status) => {
            Some("to give the daemon the rights that this version needs: bursar init".into())
        }
        RequestError::Overloaded => Some("it is retried automatically, at longer intervals".into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_object_names_the_command_that_takes_it_over() {
        let key = ObjectKey::new(&ClusterName("prod".into()), ManagedKind::ResourceQuota, Some("tool-foo"), "bursar");
        let error = StepError::Foreign { key };
        assert_eq!(
            error.reason(),
            "ResourceQuota bursar in namespace tool-foo belongs to somebody else; it is left alone; \
             `bursar adopt object resourcequota tool-foo/bursar` takes it over"
        );
    }
}
