//! Why a step of an account in a cluster failed: what is wrong, and the remedy.

use bursar_homed::client::HomedClientError;
use bursar_protocol::HomeError;
use thiserror::Error;

use super::request::RequestError;
use super::signing::SigningError;
use crate::archive::ArchiveError;
use crate::bootstrap::AccessError;
use crate::bootstrap::daemon_admission_policy::RULE;
use crate::desired::credential;
use crate::errors::chain;
use crate::identity::{ClusterName, NamespaceName};
use crate::kinds::{ManagedKind, ObjectKey, ObjectKind};
use crate::ledger::{CERTIFICATE, FOREIGN};

/// A step that failed. It ends what is left of its account in its cluster, and nobody else's.
#[derive(Debug, Error)]
pub enum StepError {
    /// An object of that name is not ours.
    #[error("{} belongs to somebody else", named(key))]
    Foreign {
        /// Which.
        key: ObjectKey,
    },
    /// An object of ours is on its way out, so a write to it would be lost.
    #[error("{} is being deleted", named(key))]
    Deleting {
        /// Which.
        key: ObjectKey,
    },
    /// Nothing can be made in a namespace on its way out.
    #[error("namespace {} is being deleted", key.namespace.as_deref().unwrap_or(&key.name))]
    NamespaceDeleting {
        /// What was to be made in it.
        key: ObjectKey,
    },
    /// Its namespace is not there.
    #[error("{} cannot be made: its namespace is gone", named(key))]
    NoNamespace {
        /// What was to be made in it.
        key: ObjectKey,
    },
    /// A volume's server or path cannot be changed (Kubernetes: `spec.persistentVolumeSource` is immutable).
    #[error("{} cannot get another server or path", named(key))]
    VolumeMoved {
        /// Which.
        key: ObjectKey,
        /// The refusal.
        #[source]
        source: RequestError,
    },
    /// The server, or an admission rule in it, refused an object.
    #[error("{}", named(key))]
    Refused {
        /// Which.
        key: ObjectKey,
        /// The refusal.
        #[source]
        source: RequestError,
    },
    /// A site manifest names a kind that the cluster does not have.
    #[error("the cluster has no kind {kind} in {}", kind.api_version())]
    UnknownKind {
        /// Which.
        kind: ObjectKind,
    },
    /// A request was not carried out.
    #[error("a request to the API server failed")]
    Request(#[from] RequestError),
    /// A workload could not be stopped or resumed.
    #[error("cannot stop or start {}", named(key))]
    Workload {
        /// Which.
        key: ObjectKey,
        /// Why.
        #[source]
        source: RequestError,
    },
    /// A pod past its lifetime, its controller, or what belongs to its job could not be ended. A tenant can make so much of it
    /// that the cluster gives no answer in time, so it is no loss of the cluster.
    #[error("cannot end {}, past its lifetime", named(key))]
    Outlived {
        /// Which.
        key: ObjectKey,
        /// Why.
        #[source]
        source: RequestError,
    },
    /// Nothing was done in a home.
    #[error("bursar-homed cannot do the work in the account's home")]
    Home(#[from] HomedClientError),
    /// `bursar-homed` answered another question.
    #[error("bursar-homed gave an answer to another request")]
    HomeAnswer,
    /// No certificate was issued or delivered; the reason carries its remedy.
    #[error(transparent)]
    Credential(Box<dyn std::error::Error + Send + Sync>),
    /// No certificate was asked for, because requests of others were not answered: nothing is known of the account.
    #[error(transparent)]
    SignerNotAsked(SigningError),
    /// A kind of object could not be listed, so the archive would not be whole.
    #[error("the archive is not whole: {what} cannot be listed")]
    Listing {
        /// Where.
        cluster: ClusterName,
        /// `deployments.apps`, or a version of an API group.
        what: String,
        /// Why.
        #[source]
        source: Box<RequestError>,
    },
    /// The archive's file.
    #[error("cannot write the archive of the namespace")]
    Archive(#[from] ArchiveError),
    /// What wrote the archive's file ended.
    #[error("the archive was not written")]
    Task(#[source] tokio::task::JoinError),
    /// Data would be deleted with a namespace.
    #[error("namespace {namespace} is archived and not deleted: the data of {} would go with it", volumes(claims))]
    Data {
        /// Which.
        namespace: NamespaceName,
        /// Claims, each with its volume.
        claims: Vec<(String, String)>,
    },
    /// A namespace that was deleted is still there.
    #[error("namespace {namespace} is being deleted: {why}")]
    Terminating {
        /// Which.
        namespace: NamespaceName,
        /// What keeps it.
        why: String,
        /// It is not only a matter of time.
        stuck: bool,
    },
    /// The plan names a cluster that is not connected.
    #[error("cluster {0} is not connected")]
    NoCluster(ClusterName),
    /// An older certificate still opens something.
    #[error("an older credential of {user} may still {what} ({why})")]
    StillAllowed {
        /// Its name for the API server.
        user: String,
        /// Verb and resource.
        what: String,
        /// By which binding, as the API server says it.
        why: String,
    },
    /// What lets somebody act in a suspended namespace could not be removed.
    #[error("tokens of service accounts in namespace {namespace} are not removed")]
    Eviction {
        /// Where.
        cluster: ClusterName,
        /// Where.
        namespace: NamespaceName,
        /// Why.
        #[source]
        source: Box<RequestError>,
    },
    /// Others are made in the place of workloads that are stopped.
    #[error("namespace {namespace}: workloads are made again while they are stopped")]
    Restarting {
        /// Where.
        namespace: NamespaceName,
    },
    /// A binding would name a generation that the cluster's mark does not have yet.
    #[error("the mark of the generations in use (ConfigMap bursar-mark) is not raised in cluster {cluster}")]
    Unmarked {
        /// Which.
        cluster: ClusterName,
        /// Why.
        #[source]
        source: Box<AccessError>,
    },
    /// The ledger did not take what was done.
    #[error("the ledger could not be written")]
    NotRecorded,
}

impl StepError {
    /// One word for the ledger, metrics and logs.
    #[must_use]
    pub const fn step(&self) -> &'static str {
        match self {
            Self::Foreign { .. } => FOREIGN,
            Self::Deleting { .. } | Self::NamespaceDeleting { .. } | Self::NoNamespace { .. } => "deleting",
            Self::VolumeMoved { .. } => "volume",
            Self::Refused { .. } | Self::UnknownKind { .. } => "apply",
            Self::Request(_) | Self::NoCluster(_) | Self::Unmarked { .. } => "cluster",
            Self::Workload { .. } | Self::Outlived { .. } | Self::Restarting { .. } => "workloads",
            Self::Home(_) | Self::HomeAnswer => "home",
            Self::Credential(_) | Self::SignerNotAsked(_) => CERTIFICATE,
            Self::StillAllowed { .. } => "revocation",
            Self::Eviction { .. } => "eviction",
            Self::Listing { .. } | Self::Archive(_) | Self::Task(_) => "archive",
            Self::Data { .. } | Self::Terminating { .. } => "deletion",
            Self::NotRecorded => "ledger",
        }
    }

    /// The cluster gave no answer at all.
    #[must_use]
    pub const fn is_loss(&self) -> bool {
        let (Self::Request(source) | Self::Workload { source, .. }) = self else { return false };
        source.is_loss()
    }

    /// Returns whether the daemon admission policy refused an object.
    #[must_use]
    pub fn is_by_our_policy(&self) -> bool {
        matches!(self, Self::Refused { source: RequestError::Refused(status), .. } if status.message.contains(RULE))
    }

    /// It is about the cluster, not about a home.
    #[must_use]
    pub const fn is_of_nobodys_home(&self) -> bool {
        !matches!(self, Self::Home(_) | Self::HomeAnswer | Self::Credential(_) | Self::SignerNotAsked(_))
    }

    /// A home on an export that hangs: whatever else is to be done there would hang too.
    #[must_use]
    pub const fn is_of_an_export(&self) -> bool {
        matches!(
            self,
            Self::Home(
                HomedClientError::TimedOut(_)
                    | HomedClientError::NotListening { .. }
                    | HomedClientError::Home(HomeError::TimedOut { .. } | HomeError::Unavailable { .. })
            )
        )
    }

    /// Another program uses a file in a home: it will not for long.
    #[must_use]
    pub const fn is_in_use(&self) -> bool {
        matches!(self, Self::Home(HomedClientError::Home(HomeError::InUse { .. })))
    }

    /// It takes its time, and nothing is wrong.
    #[must_use]
    pub const fn is_under_way(&self) -> bool {
        matches!(self, Self::Terminating { stuck: false, .. })
    }

    /// What is wrong, its cause and the remedy: the text of `status`.
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
                "somebody may hold tokens of it, so no order takes it over; `kubectl delete serviceaccount {} -n {}`",
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
                Some(format!("install what defines {kind}, or take it out of the class's manifests"))
            }
            Self::Refused { key, source } | Self::Workload { key, source } | Self::Outlived { key, source } => {
                remedy_of_refusal(&key.cluster, source)
            }
            Self::Request(source) => remedy_of_request(source),
            Self::Home(HomedClientError::Home(error)) => Some(error.remedy()),
            Self::HomeAnswer => Some("restart bursard and bursar-homed: their versions differ".into()),
            Self::StillAllowed { .. } => {
                Some("remove this user or group from the binding, which Bursar did not create".into())
            }
            Self::Unmarked { cluster, .. } => Some(format!(
                "no binding gets a new generation until then; to give the daemon the rights: bursar init --cluster {cluster}"
            )),
            Self::NoCluster(cluster) => Some(format!("see `bursar status` for cluster {cluster}")),
            Self::Restarting { namespace } => Some(format!(
                "find out who makes them: `kubectl get pods,deployments -n {namespace} -o yaml --show-managed-fields`; it \
                 is tried again each minute"
            )),
            Self::NotRecorded => Some("see the daemon's log; free space in state_dir if there is none".into()),
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
            | Self::Credential(_)
            | Self::SignerNotAsked(_)
            | Self::Task(_)
            | Self::Terminating { .. } => None,
        }
    }
}

/// `claim data (volume pvc-1)`.
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

/// `ResourceQuota bursar in namespace tool-foo`.
fn named(key: &ObjectKey) -> String {
    match &key.namespace {
        Some(namespace) => format!("{} {} in namespace {namespace}", key.kind, key.name),
        None => format!("{} {}", key.kind, key.name),
    }
}

fn adopt(key: &ObjectKey) -> String {
    let object = if key.kind == ManagedKind::Namespace { "" } else { "object " };
    format!("it is left alone; `bursar adopt {object}{}` takes it over", key.said())
}

fn remedy_of_refusal(cluster: &ClusterName, source: &RequestError) -> Option<String> {
    let RequestError::Refused(status) = source else { return remedy_of_request(source) };
    // Kubernetes' authorizer says `User "x" cannot VERB resource`; admission says something else.
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
            Some("check that the API server runs and is reached from this host".into())
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
    use crate::kinds::ObjectName;

    #[test]
    fn a_foreign_object_names_the_command_that_takes_it_over() {
        let key = ObjectKey::from(ObjectName {
            cluster: ClusterName("prod".to_owned()),
            kind: ManagedKind::ResourceQuota.into(),
            namespace: Some("tool-foo".to_owned()),
            name: "bursar".to_owned(),
        });
        let error = StepError::Foreign { key };
        assert_eq!(
            error.reason(),
            "ResourceQuota bursar in namespace tool-foo belongs to somebody else; it is left alone; \
             `bursar adopt object resourcequota tool-foo/bursar` takes it over"
        );
    }
}
