//! Requests on the control socket that change the ledger, and the triggers of a cycle.

use std::collections::BTreeMap;
use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::contract::exception::ExceptedRule;
use crate::identity::{AccountKind, AccountName, ClusterName};

/// An administrator's order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "order")]
pub enum OrderRequest {
    /// Suspend the account until it is resumed.
    Suspend(Target),
    /// Suspend the account until a given time, or until it is resumed earlier.
    #[serde(rename = "suspend until")]
    SuspendUntil(SuspendUntil),
    /// End a suspension that was ordered.
    Resume(Target),
    /// Put the account on hold: plans are made and shown, but not carried out.
    Hold(Target),
    /// End a hold.
    Release(Target),
    /// Make every older certificate of the account invalid, and deliver a new one.
    Revoke(Target),
    /// Suspend the account, and remove what a holder of its credential may have left in its namespaces.
    Evict(Evict),
    /// End an eviction, and start the named workloads again.
    #[serde(rename = "resume starting")]
    ResumeStarting(ResumeStarting),
    /// Revoke every account of a class: first one, then the others at the pace of `limits.change_per_cycle`.
    #[serde(rename = "revoke class")]
    RevokeClass(RevokeClass),
    /// Set amounts of a quota for one account instead of the class's.
    #[serde(rename = "quota set")]
    QuotaSet(QuotaSet),
    /// Return to the amounts of the class.
    #[serde(rename = "quota unset")]
    QuotaUnset(QuotaUnset),
    /// Except an account from admission rules.
    #[serde(rename = "exception set")]
    ExceptionSet(ExceptionSet),
    /// Remove exceptions, so that the rules apply again.
    #[serde(rename = "exception unset")]
    ExceptionUnset(ExceptionUnset),
    /// Accept the uid that the directory now has for the account.
    #[serde(rename = "adopt uid")]
    AdoptUid(Target),
    /// Assign the account to the other directory entry that has its name.
    #[serde(rename = "adopt account")]
    AdoptAccount(Target),
    /// Assign the account to the directory entry with this id.
    #[serde(rename = "adopt entry")]
    AdoptEntry(AdoptEntry),
    /// Take over a foreign object that stands where an object of a tenant should be.
    #[serde(rename = "adopt object")]
    AdoptObject(AdoptObject),
    /// Accept the next answer of a source, although its servers seem to have an older state than before.
    #[serde(rename = "accept directory")]
    AcceptDirectory(AcceptDirectory),
    /// Record in the history that an archive was restored.
    Restored {
        target: Target,
        /// The name of the archive's file.
        file: String,
        /// The number of objects that were created.
        objects: u64,
    },
    /// Record in the history that the user's part of a kubeconfig was restored.
    #[serde(rename = "kubeconfig restored")]
    KubeconfigRestored {
        target: Target,
        file: PathBuf,
        /// Whether the file has Bursar's entries; if not, they are delivered again.
        complete: bool,
    },
    /// Allow exactly the refused set of changes, once, within an hour.
    Approve {
        /// The hash that `plan` and `status` print.
        hash: String,
    },
}

/// `bursar directory accept`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceptDirectory {
    /// The configured name of the source.
    pub source: String,
    /// The reason in the administrator's words, for the history.
    pub reason: Option<String>,
    /// The administrator's ticket.
    pub ticket: Option<String>,
}

/// The request to adopt an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdoptObject {
    /// `resourcequota tool-foo/bursar`, `namespace tool-foo`.
    pub object: String,
    /// The new owner. If `None`, the object goes to the account that it blocks.
    pub owner: Option<AccountName>,
    /// The reason in the administrator's words, for the history.
    pub reason: Option<String>,
    /// The administrator's ticket.
    pub ticket: Option<String>,
}

/// The account that an order concerns, and the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// `tool`, `user` or `group`.
    pub kind: AccountKind,
    /// The current name of the account, or its id in the ledger.
    pub name: String,
    /// The reason in the administrator's words, for the history.
    pub reason: Option<String>,
    /// The administrator's ticket.
    pub ticket: Option<String>,
}

/// `bursar adopt account --entry`. This is a separate order, so that an older daemon, which does not know it, refuses
/// the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdoptEntry {
    pub target: Target,
    /// The id of the entry.
    pub entry: String,
}

/// `bursar suspend --until`. This is a separate order, so that an older daemon, which does not know it, refuses the
/// request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuspendUntil {
    pub target: Target,
    /// When the account resumes, unless it is suspended for another reason too.
    pub until: Timestamp,
}

/// `bursar revoke --evict`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evict {
    pub target: Target,
    /// Since when changes of objects in the account's namespaces are listed.
    pub since: Option<Timestamp>,
}

/// `bursar resume --start`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResumeStarting {
    pub target: Target,
    /// Stopped workloads such as `deployment/web`, or only `all` or `none`.
    pub start: Vec<String>,
}

/// `bursar revoke --all`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevokeClass {
    pub class: String,
    /// The reason in the administrator's words, for the history.
    pub reason: Option<String>,
    /// The administrator's ticket.
    pub ticket: Option<String>,
}

/// `bursar quota set`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaSet {
    pub target: Target,
    /// Kubernetes quantities, by resource name.
    pub amounts: BTreeMap<String, String>,
    /// When the class's amounts apply again; `None` if never.
    pub until: Option<Timestamp>,
    /// If set, the override is for this cluster only.
    pub cluster: Option<ClusterName>,
}

/// `bursar quota unset`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaUnset {
    pub target: Target,
    pub resources: Vec<String>,
    /// If set, only overrides for this cluster are removed; otherwise all.
    pub cluster: Option<ClusterName>,
}

/// `bursar exception set`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExceptionSet {
    pub target: Target,
    pub rules: Vec<ExceptedRule>,
    /// When the rules apply again.
    pub until: Timestamp,
    /// If set, the exception is for this cluster only.
    pub cluster: Option<ClusterName>,
}

/// `bursar exception unset`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExceptionUnset {
    pub target: Target,
    pub rules: Vec<ExceptedRule>,
    /// If set, only exceptions for this cluster are removed; otherwise all.
    pub cluster: Option<ClusterName>,
}

/// A request to have an account ready (`bursar ensure`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnsureRequest {
    /// `tool` or `user`.
    pub kind: AccountKind,
    /// The current name of the account, or its id in the ledger.
    pub name: String,
    /// When the caller began to ask. If a read of the directories that began later does not show the account, it does
    /// not exist.
    #[serde(default)]
    pub since: Option<Timestamp>,
}

/// The state of the account that was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnsureAnswer {
    /// Whether its kubeconfig works. If not, the caller asks again later.
    pub ready: bool,
    /// The state, as a text for people.
    pub text: String,
    /// The paths of its kubeconfigs, one for each cluster.
    pub kubeconfigs: Vec<PathBuf>,
}

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestRefusal {
    /// The exit code of `bursar`: 4 if the account does not exist, 64 for wrong usage, 77 if the caller is not allowed,
    /// otherwise 1.
    pub exit_code: u8,
    /// The problem and its remedy, as a text for people.
    pub text: String,
}

/// The cause of a cycle. If several are pending, the first in this order is served first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Trigger {
    /// An administrator's order.
    Order,
    /// The schedule asks for a full read of the directories.
    #[serde(rename = "full_read")]
    FullRead,
    /// The daemon starts.
    Start,
    /// Another configuration is in force.
    Reload,
    /// An administrator asked for a cycle.
    Sync,
    /// The schedule.
    Schedule,
    /// A directory reported a change.
    Change,
    /// A person whom the ledger does not know asks for an account. Every user of the host may do this as often as they
    /// like.
    Login,
    /// The objects in a cluster differ from those that the plan was made for.
    Drift,
    /// A change that is spread over cycles continues.
    Pace,
}

impl Trigger {
    /// Whether directories are read. Orders and drift need no new read, because a directory that hangs must not delay a
    /// revocation, and a directory must not be asked each time an object in a cluster changes.
    #[must_use]
    pub const fn asks(self) -> bool {
        !matches!(self, Self::Order | Self::Drift | Self::Pace)
    }

    /// Whether unreachable clusters are tried again. A change in a directory and a person at a login must not wait for
    /// them.
    #[must_use]
    pub const fn connects(self) -> bool {
        self.asks() && !matches!(self, Self::Change | Self::Login)
    }

    /// Whether steps that wait after an error or a conflict are tried again at once. They are if the daemon starts or
    /// reloads its configuration, in a full read, and if an administrator asks for a cycle.
    #[must_use]
    pub const fn tries_all(self) -> bool {
        matches!(self, Self::Sync | Self::FullRead | Self::Start | Self::Reload)
    }

    /// Returns the name that the ledger uses.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Order => "order",
            Self::FullRead => "full_read",
            Self::Start => "start",
            Self::Reload => "reload",
            Self::Sync => "sync",
            Self::Schedule => "schedule",
            Self::Change => "change",
            Self::Login => "login",
            Self::Drift => "drift",
            Self::Pace => "pace",
        }
    }
}
