//! The steps of a plan. An [`Action`] holds every choice that its execution needs, and no secret.

use std::fmt;

use jiff::Timestamp;
use serde::Serialize;

use crate::contract::is_sealed_as_suspended;
use crate::desired::quota::stops_pods;
use crate::desired::{DesiredCredential, DesiredHome, DesiredNotice, DirectoryTarget, Proof};
use crate::identity::{ClusterName, HostName, NamespaceName};
use crate::inventory::pods::Maker;
use crate::json_text::JsonText;
use crate::kinds::{ManagedKind, ObjectKey, Stage};
use crate::ledger::{Archive, Certificate, StoppedWorkload};
use crate::packed_text::DigestText;
use crate::policy::PodSecurity;

/// One step: a write to a cluster or a home, or a check there.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "action")]
pub enum Action {
    /// Writes an object by server-side apply.
    Apply {
        key: ObjectKey,
        manifest: JsonText,
        /// The digest of `manifest`.
        wanted: DigestText,
        /// `metadata.uid` of the object that the cluster showed. `None` if the cluster showed no such object. If
        /// somebody creates an object of this name before the write, that object is left alone.
        uid: Option<String>,
        reason: Reason,
    },
    /// Creates the directory of a volume if it is missing. The directory is never changed or deleted.
    MakeDirectory {
        /// The cluster of the volume.
        cluster: ClusterName,
        directory: DirectoryTarget,
    },
    /// Deletes an object with a UID precondition.
    Delete {
        key: ObjectKey,
        /// The UID that the object must still have.
        uid: String,
        reason: Reason,
    },
    /// Sets the Pod Security level of a foreign namespace, unless somebody has set a level since.
    SetLevel {
        cluster: ClusterName,
        namespace: NamespaceName,
        /// The UID that the object must still have.
        uid: String,
        level: PodSecurity,
    },
    /// Stops every top-level workload of a namespace, and records its former state.
    StopWorkloads { cluster: ClusterName, namespace: NamespaceName },
    /// Deletes what gives access to a namespace without a credential that Bursar issued: Secrets with service account
    /// tokens, and the `default` service account. Lists the objects that were changed since a time.
    Evict {
        cluster: ClusterName,
        namespace: NamespaceName,
        /// If `None`, no changed objects are listed.
        since: Option<Timestamp>,
    },
    /// Warns the people of a namespace that it will be suspended if nothing runs in it.
    WarnIdle {
        cluster: ClusterName,
        namespace: NamespaceName,
        /// When the namespace became idle.
        idle_since: Timestamp,
        /// When the namespace will be suspended.
        until: Timestamp,
        /// The value of [`crate::ledger::idle::Idleness::seconds`] after the warning.
        #[serde(skip)]
        counted: u64,
    },
    /// Deletes a pod whose lifetime is over, and the objects of its job.
    ReapPod {
        cluster: ClusterName,
        namespace: NamespaceName,
        name: String,
        /// The UID that the object must still have.
        uid: String,
        /// The job (label `job`) whose services, config maps and secrets are deleted too.
        job: Option<String>,
        /// The controller that would recreate the pod. The controller is stopped first. Set only if the class limits
        /// lifetimes.
        maker: Option<Box<Maker>>,
        reason: Reason,
    },
    /// Tells the people of a pod when its lifetime ends.
    WarnPod {
        cluster: ClusterName,
        namespace: NamespaceName,
        name: String,
        /// The UID that the object must still have.
        uid: String,
        until: Timestamp,
    },
    /// Restores the former state of the workloads that a suspension stopped.
    ResumeWorkloads { cluster: ClusterName, namespace: NamespaceName, stopped: Vec<(ObjectKey, StoppedWorkload)> },
    /// Waits until the API server no longer grants the holder of an older credential any right that Bursar's bindings
    /// gave. Then looks for foreign bindings that name this holder.
    ProveRevoked {
        cluster: ClusterName,
        /// A name that belongs only to the holder of the older credential.
        alone: Holder,
        /// The names by which foreign bindings may refer to the holder.
        known_as: Vec<Holder>,
        /// Every binding of Bursar that names any generation of the account.
        bound: Vec<Bound>,
    },
    /// Writes every object of a namespace into a file, reads the file back and compares.
    Archive {
        cluster: ClusterName,
        namespace: NamespaceName,
        /// Name of the file.
        file: String,
    },
    /// Deletes an archived namespace. If the archive file was changed or is old, the namespace is archived again first.
    DeleteNamespace {
        cluster: ClusterName,
        namespace: NamespaceName,
        /// The UID that the object must still have.
        uid: String,
        /// The newest archive of the namespace, with the name of its file.
        archived: Option<Box<(String, Archive)>>,
        /// The name of the file for a new archive.
        file: String,
    },
    /// Checks whether a deleted namespace is gone, and if not, what blocks it.
    AwaitDeletion {
        cluster: ClusterName,
        namespace: NamespaceName,
        /// The UID of the deleted namespace. A namespace of this name with another UID was not created by this ledger.
        uid: String,
    },
    /// Tests that the home is writable, issues the credential, and writes the kubeconfig.
    Deliver {
        cluster: ClusterName,
        /// The subject of the credential, and the content of its kubeconfig.
        credential: Box<DesiredCredential>,
        /// The generation of the credential.
        generation: u64,
        home: Box<DesiredHome>,
        /// The file of the last delivery, if it was another file. Our entries are removed from that file together with
        /// this delivery.
        former: Option<Box<DesiredHome>>,
        /// The hosts whose credentials the delivery replaces in the same file. The ledger forgets them.
        replaced: Vec<HostName>,
        reason: Reason,
    },
    /// Removes Bursar's entries from a kubeconfig, or replaces them with a notice.
    RemoveKubeconfig {
        cluster: ClusterName,
        /// The host whose kubeconfig this is.
        host: HostName,
        home: Box<DesiredHome>,
        /// The account's present home, if it is another home and the end of a delivery into it was not recorded. Our
        /// entries are removed from this home too.
        unrecorded: Option<Box<DesiredHome>>,
        /// If `None`, the entries are removed.
        notice: Option<Box<DesiredNotice>>,
        reason: Reason,
    },
    /// Writes exactly these SSH keys into Bursar's block of a home's `authorized_keys`. Without keys, removes the
    /// block.
    SshKeys {
        /// The cluster by which the step is listed, although keys belong to no cluster.
        cluster: ClusterName,
        home: Box<DesiredHome>,
        /// Valid lines.
        keys: Vec<String>,
        /// The digest of `keys`.
        digest: String,
        /// Why the keys are written; `None` if they were delivered already and are only checked.
        reason: Option<Reason>,
    },
    /// Checks that the kubeconfig still holds what was delivered.
    InspectKubeconfig {
        cluster: ClusterName,
        /// The host whose kubeconfig this is.
        host: HostName,
        home: Box<DesiredHome>,
        expected: Expected,
    },
}

/// A bootstrap plans a dozen steps for each tenant, and each takes as much memory as the largest one.
const _: () = assert!(size_of::<Action>() <= 160);

/// An identity by which the API server knows the holder of a credential.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Holder {
    /// A user name.
    User(String),
    /// A group name.
    Group(String),
}

/// The role that a binding gives, and its scope.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Bound {
    /// `None` if the binding is for the whole cluster.
    pub namespace: Option<String>,
    /// The name of a `ClusterRole`. If empty, the proof tests a rule that nearly every role contains.
    pub role: String,
}

/// Which of the two lists of an account's plan an action belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The action removes access, or may remove it. It is executed before all actions of the other side, and is not
    /// delayed by their failures.
    Narrowing,
    /// The action grants, repairs, proves or cleans up.
    Other,
}

/// The state that an inspection of a kubeconfig should find.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Expected {
    /// A certificate with this [`crate::ledger::Certificate::fingerprint`].
    Certificate(String),
    /// A token with this fingerprint, and these entries. The token is in a file of its own, so it stays if another
    /// program writes older entries back.
    Token(String, Box<DesiredCredential>),
    /// These entries, which hold no secret. If they are missing, the inspection writes them again.
    Entries(Box<DesiredCredential>),
    /// This notice. If another program wrote the credential back, the inspection writes the notice again.
    Notice(Box<DesiredNotice>),
    /// No entry of ours. If another program wrote the credential back, the inspection removes it again.
    Nothing,
}

impl Expected {
    /// Returns what an inspection should find after the delivery of a credential; `None` if its certificate or token is
    /// not known.
    #[must_use]
    pub fn of(credential: &DesiredCredential, issued: Option<&Certificate>) -> Option<Self> {
        let fingerprint = issued.map(|issued| issued.fingerprint.to_string());
        Some(match &credential.proof {
            Proof::Certificate { .. } => Self::Certificate(fingerprint?),
            Proof::Token(_) => Self::Token(fingerprint?, Box::new(credential.clone())),
            Proof::Oidc(_) => Self::Entries(Box::new(credential.clone())),
        })
    }

    /// Whether the inspection only removes what another program wrote back. Such an inspection needs no cluster, and
    /// removes access like the removal before it.
    #[must_use]
    pub const fn is_nothing(&self) -> bool {
        matches!(self, Self::Nothing)
    }
}

impl Action {
    /// Whether the action concerns a credential, possibly a revoked one, or a home.
    #[must_use]
    pub const fn is_delivery(&self) -> bool {
        matches!(
            self,
            Self::ProveRevoked { .. }
                | Self::Deliver { .. }
                | Self::RemoveKubeconfig { .. }
                | Self::InspectKubeconfig { .. }
                | Self::SshKeys { .. }
        )
    }

    /// Returns the side of the action. The match is exhaustive, so that a new action has to take a side.
    #[must_use]
    pub fn side(&self) -> Side {
        let narrows = match self {
            Self::Apply { key, manifest, uid, .. } => match key.kind.stage() {
                // An existing binding may name an older generation, or a person who must lose access.
                Stage::Access => uid.is_some(),
                Stage::Namespace => uid.is_some() && is_sealed_as_suspended(&manifest.value()),
                Stage::Limits => stops_pods(key),
                Stage::Volume | Stage::Content => false,
            },
            // If a Secret or a service account is deleted, its tokens become invalid.
            Self::Delete { key, .. } => {
                key.kind.stage() == Stage::Access
                    || key.kind == ManagedKind::Secret
                    || key.kind == ManagedKind::ServiceAccount
            }
            Self::StopWorkloads { .. } | Self::Evict { .. } | Self::ReapPod { .. } => true,
            // A revoked credential is removed only after the proof that the API server refuses it.
            Self::RemoveKubeconfig { reason, .. } => *reason != Reason::Revoked,
            Self::SshKeys { keys, reason, .. } => keys.is_empty() || matches!(reason, Some(Reason::Changed(_))),
            Self::MakeDirectory { .. }
            | Self::SetLevel { .. }
            | Self::WarnIdle { .. }
            | Self::WarnPod { .. }
            | Self::ResumeWorkloads { .. }
            | Self::ProveRevoked { .. }
            | Self::Archive { .. }
            | Self::DeleteNamespace { .. }
            | Self::AwaitDeletion { .. }
            | Self::Deliver { .. } => false,
            Self::InspectKubeconfig { expected, .. } => expected.is_nothing(),
        };
        if narrows { Side::Narrowing } else { Side::Other }
    }

    /// Whether the action is only a check. It writes only if somebody else changed the file.
    #[must_use]
    pub const fn is_look(&self) -> bool {
        matches!(self, Self::InspectKubeconfig { .. } | Self::SshKeys { reason: None, .. })
    }

    /// Returns the cluster of the action.
    #[must_use]
    pub fn cluster(&self) -> &ClusterName {
        match self {
            Self::Apply { key, .. } | Self::Delete { key, .. } => &key.cluster,
            Self::MakeDirectory { cluster, .. }
            | Self::SetLevel { cluster, .. }
            | Self::StopWorkloads { cluster, .. }
            | Self::Evict { cluster, .. }
            | Self::WarnIdle { cluster, .. }
            | Self::ReapPod { cluster, .. }
            | Self::WarnPod { cluster, .. }
            | Self::ResumeWorkloads { cluster, .. }
            | Self::ProveRevoked { cluster, .. }
            | Self::Archive { cluster, .. }
            | Self::DeleteNamespace { cluster, .. }
            | Self::AwaitDeletion { cluster, .. }
            | Self::Deliver { cluster, .. }
            | Self::RemoveKubeconfig { cluster, .. }
            | Self::SshKeys { cluster, .. }
            | Self::InspectKubeconfig { cluster, .. } => cluster,
        }
    }
}

/// Why a step is done. The plan, the history, the log and `bursar why` show the same reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "reason", content = "detail")]
pub enum Reason {
    /// The object does not exist, or does not belong to Bursar yet.
    Missing,
    /// The desired state changed, in these fields.
    Changed(Vec<String>),
    /// Somebody else changed these fields.
    Drifted(Vec<String>),
    /// The credential expires at this time.
    Expiring(Timestamp),
    /// The generation of the credential is revoked.
    Revoked,
    /// The tenant is suspended.
    Suspended,
    /// The desired state no longer contains the object.
    Orphaned,
    /// The lifetime of the pod ended at this time.
    Outlived(Timestamp),
}

impl Reason {
    /// Whether a write for this reason undoes a change by somebody else. `is_recorded` says whether the ledger has a
    /// record of the object. If it has one, a missing object was deleted.
    #[must_use]
    pub const fn is_repair(&self, is_recorded: bool) -> bool {
        match self {
            Self::Drifted(_) => true,
            Self::Missing => is_recorded,
            Self::Changed(_)
            | Self::Expiring(_)
            | Self::Revoked
            | Self::Suspended
            | Self::Orphaned
            | Self::Outlived(_) => false,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("missing"),
            Self::Changed(fields) if fields.is_empty() => f.write_str("changed"),
            Self::Changed(fields) => write!(f, "{} changed", fields.join(", ")),
            Self::Drifted(fields) if fields.is_empty() => f.write_str("edited by somebody else"),
            Self::Drifted(fields) => write!(f, "{} edited by somebody else", fields.join(", ")),
            Self::Expiring(at) => write!(f, "expires {at:.0}"),
            Self::Revoked => f.write_str("revoked"),
            Self::Suspended => f.write_str("suspended"),
            Self::Orphaned => f.write_str("no longer wanted"),
            Self::Outlived(until) => write!(f, "lifetime over since {until:.0}"),
        }
    }
}
