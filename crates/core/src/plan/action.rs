//! One thing to do, with every choice made and no secret in it, and the reason for it.

use std::fmt;

use jiff::Timestamp;
use serde::Serialize;

use crate::contract::is_sealed_as_suspended;
use crate::desired::quota::stops_pods;
use crate::desired::{DesiredCredential, DesiredNotice, DirectoryTarget, HomeTarget};
use crate::identity::{ClusterName, HostName, NamespaceName};
use crate::inventory::pods::Maker;
use crate::json_text::JsonText;
use crate::kinds::{ManagedKind, ObjectKey, Stage};
use crate::ledger::{Archive, StoppedWorkload};
use crate::packed_text::DigestText;
use crate::policy::PodSecurity;

/// One write to the world.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "action")]
pub enum Action {
    /// Server-side apply.
    Apply {
        /// What.
        key: ObjectKey,
        /// Whole.
        manifest: JsonText,
        /// Digest of `manifest`.
        wanted: DigestText,
        /// `metadata.uid` we know it by. Absent: it is not there, and what stands there nevertheless and is foreign is
        /// left alone.
        uid: Option<String>,
        /// Why.
        reason: Reason,
    },
    /// The directory of a volume: made if it is missing, never changed, never deleted.
    MakeDirectory {
        /// Where its volume is.
        cluster: ClusterName,
        /// Which.
        directory: DirectoryTarget,
    },
    /// Deletion with a UID precondition.
    Delete {
        /// What.
        key: ObjectKey,
        /// Precondition.
        uid: String,
        /// Why.
        reason: Reason,
    },
    /// Gives a namespace of others a level of Pod Security. One that has a level by then keeps it.
    SetLevel {
        /// Where.
        cluster: ClusterName,
        /// Which.
        namespace: NamespaceName,
        /// Precondition.
        uid: String,
        /// Which level.
        level: PodSecurity,
    },
    /// Stops every top-level workload of a namespace and keeps what they were.
    StopWorkloads {
        /// Where.
        cluster: ClusterName,
        /// Where.
        namespace: NamespaceName,
    },
    /// Removes what lets somebody act in a namespace without a credential of ours: Secrets that hold tokens of service
    /// accounts, and the service account that pods run as by default. Lists what was changed since a time.
    Evict {
        /// Where.
        cluster: ClusterName,
        /// Where.
        namespace: NamespaceName,
        /// Absent: nothing is listed.
        since: Option<Timestamp>,
    },
    /// Tells the people of a namespace that it is suspended if nothing runs in it until then.
    WarnIdle {
        /// Where.
        cluster: ClusterName,
        /// Which.
        namespace: NamespaceName,
        /// Nothing ran in it since then.
        idle_since: Timestamp,
        /// When it is suspended.
        until: Timestamp,
        /// [`crate::ledger::idle::Idleness::seconds`] from then on.
        #[serde(skip)]
        counted: u64,
    },
    /// Deletes a pod whose life is over, with what belongs to its job.
    ReapPod {
        /// Where.
        cluster: ClusterName,
        /// Where.
        namespace: NamespaceName,
        /// Which.
        name: String,
        /// Precondition.
        uid: String,
        /// Whose services, config maps and secrets go too: label `job`.
        job: Option<String>,
        /// Would make it again, so it is stopped first: only where the class says how long its pods live.
        maker: Option<Maker>,
        /// Why.
        reason: Reason,
    },
    /// Tells the people of a pod when it ends.
    WarnPod {
        /// Where.
        cluster: ClusterName,
        /// Where.
        namespace: NamespaceName,
        /// Which.
        name: String,
        /// Precondition.
        uid: String,
        /// When.
        until: Timestamp,
    },
    /// Gives the workloads that a suspension stopped back what they were.
    ResumeWorkloads {
        /// Where.
        cluster: ClusterName,
        /// Where.
        namespace: NamespaceName,
        /// Which.
        stopped: Vec<(ObjectKey, StoppedWorkload)>,
    },
    /// Waits until the API server allows the holders of an older credential nothing of what bindings gave them, and
    /// looks for bindings of others that name them.
    ProveRevoked {
        /// Where.
        cluster: ClusterName,
        /// What only the older credential is called, and nobody else.
        alone: Holder,
        /// By what bindings of others may name its holder.
        known_as: Vec<Holder>,
        /// Every binding that names a generation of the account, or did.
        bound: Vec<Bound>,
    },
    /// Writes every object of a namespace into a file, reads it back and compares.
    Archive {
        /// Where.
        cluster: ClusterName,
        /// Which.
        namespace: NamespaceName,
        /// Name of the file.
        file: String,
    },
    /// Deletes an archived namespace, with a UID precondition. If the archive was changed since it was written, or is
    /// old, it is made again first.
    DeleteNamespace {
        /// Where.
        cluster: ClusterName,
        /// Which.
        namespace: NamespaceName,
        /// Precondition.
        uid: String,
        /// Its newest archive, and the name of its file.
        archived: Option<(String, Archive)>,
        /// Name of the archive file, if it must be made again.
        file: String,
    },
    /// Looks whether a namespace that was deleted is gone, and what keeps it.
    AwaitDeletion {
        /// Where.
        cluster: ClusterName,
        /// Which.
        namespace: NamespaceName,
        /// The one that was deleted; another of its name is somebody else's.
        uid: String,
    },
    /// A test write in the home, a credential of its kind, and the kubeconfig around it.
    Deliver {
        /// Where.
        cluster: ClusterName,
        /// For whom, and what the kubeconfig around it says.
        credential: DesiredCredential,
        /// Generation of the credential.
        generation: u64,
        /// Into which home.
        home: HomeTarget,
        /// Why.
        reason: Reason,
    },
    /// Takes our entries out of a kubeconfig, or leaves a notice in their place.
    RemoveKubeconfig {
        /// Where.
        cluster: ClusterName,
        /// The one of this host.
        host: HostName,
        /// Out of which home.
        home: HomeTarget,
        /// What people read there from then on.
        notice: Option<Box<DesiredNotice>>,
        /// Why.
        reason: Reason,
    },
    /// Exactly these SSH keys in our block of a home's `authorized_keys`; without any, no block.
    SshKeys {
        /// The cluster it is done with; the keys belong to no cluster.
        cluster: ClusterName,
        /// In which home.
        home: HomeTarget,
        /// Checked lines.
        keys: Vec<String>,
        /// Digest of `keys`.
        digest: String,
        /// Why they are written; `None` if they should be there already and are only checked.
        reason: Option<Reason>,
    },
    /// Looks whether what was delivered still stands there.
    InspectKubeconfig {
        /// Where.
        cluster: ClusterName,
        /// The one of this host.
        host: HostName,
        /// In which home.
        home: HomeTarget,
        /// What should be there.
        expected: Expected,
    },
}

/// What the API server takes the holder of a credential for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Holder {
    /// A user's name.
    User(String),
    /// A group's name.
    Group(String),
}

/// What a binding gives, and where.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Bound {
    /// Absent: in the whole cluster.
    pub namespace: Option<String>,
    /// A `ClusterRole`; empty: any rule that nearly every role has.
    pub role: String,
}

/// The side of a plan on which an action stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// It takes access away, or may do so. It is executed before every action of the other side and waits for no
    /// failure of one.
    Narrowing,
    /// It grants, repairs, proves or cleans up.
    Other,
}

/// What a look into a kubeconfig should find.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Expected {
    /// The certificate or token with this [`crate::ledger::Certificate::fingerprint`].
    Issued(String),
    /// These entries, in which nothing is secret: they are written again where they are not there.
    Entries(Box<DesiredCredential>),
}

impl Action {
    /// It is about a credential, which may be a revoked one, or a home.
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

    /// On which side of a plan it stands. The match is exhaustive, so that a new action has to take a side.
    #[must_use]
    pub fn side(&self) -> Side {
        let narrows = match self {
            Self::Apply { key, manifest, uid, .. } => match key.kind.stage() {
                // A binding that is there may name a person without a right to it, or an older generation.
                Stage::Access => uid.is_some(),
                Stage::Namespace => uid.is_some() && is_sealed_as_suspended(&manifest.value()),
                Stage::Limits => stops_pods(key),
                Stage::Volume | Stage::Content => false,
            },
            // Tokens end with their Secret and with their service account.
            Self::Delete { key, .. } => {
                key.kind.stage() == Stage::Access
                    || key.kind == ManagedKind::Secret
                    || key.kind == ManagedKind::ServiceAccount
            }
            Self::StopWorkloads { .. } | Self::Evict { .. } | Self::ReapPod { .. } => true,
            // A revoked one is proved to be worth nothing first.
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
            | Self::Deliver { .. }
            | Self::InspectKubeconfig { .. } => false,
        };
        if narrows { Side::Narrowing } else { Side::Other }
    }

    /// It changes nothing unless somebody else did.
    #[must_use]
    pub const fn is_look(&self) -> bool {
        matches!(self, Self::InspectKubeconfig { .. } | Self::SshKeys { reason: None, .. })
    }

    /// The cluster it is about.
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

/// Why something is done. The plan's text, the event's row, the log line and `bursar why` print the same reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "reason", content = "detail")]
pub enum Reason {
    /// It is not there.
    Missing,
    /// We want something else than before.
    Changed(Vec<String>),
    /// Somebody changed it.
    Drifted(Vec<String>),
    /// It ends soon.
    Expiring(Timestamp),
    /// Its generation is over.
    Revoked,
    /// Its tenant is suspended.
    Suspended,
    /// Nobody wants it any more.
    Orphaned,
    /// Its life was over then.
    Outlived(Timestamp),
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
