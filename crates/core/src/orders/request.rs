//! Requests that change what the ledger keeps, as the control socket carries them, and what sets a cycle off.

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
    /// Suspend until resumed.
    Suspend(Target),
    /// Suspend until a moment, or until resumed.
    #[serde(rename = "suspend until")]
    SuspendUntil(SuspendUntil),
    /// End an ordered suspension.
    Resume(Target),
    /// Leave alone.
    Hold(Target),
    /// End a hold.
    Release(Target),
    /// Make every older certificate worth nothing, and deliver a new one.
    Revoke(Target),
    /// Suspend, and remove what somebody who had a credential may have left.
    Evict(Evict),
    /// End an eviction, and start again what is named.
    #[serde(rename = "resume starting")]
    ResumeStarting(ResumeStarting),
    /// Revoke every account of a class, one first and then at the pace of `limits.change_per_cycle`.
    #[serde(rename = "revoke class")]
    RevokeClass(RevokeClass),
    /// Give other amounts than the class does.
    #[serde(rename = "quota set")]
    QuotaSet(QuotaSet),
    /// Give the class's amounts again.
    #[serde(rename = "quota unset")]
    QuotaUnset(QuotaUnset),
    /// Except an account from admission rules.
    #[serde(rename = "exception set")]
    ExceptionSet(ExceptionSet),
    /// Let the rules hold again.
    #[serde(rename = "exception unset")]
    ExceptionUnset(ExceptionUnset),
    /// Take the uid that the directory has now.
    #[serde(rename = "adopt uid")]
    AdoptUid(Target),
    /// Give the account to the other entry of the directory that has its name.
    #[serde(rename = "adopt account")]
    AdoptAccount(Target),
    /// Take over what somebody else made where an object of a tenant's should be.
    #[serde(rename = "adopt object")]
    AdoptObject(AdoptObject),
    /// Take what a source says next, though its servers seem to have been set back.
    #[serde(rename = "accept directory")]
    AcceptDirectory(AcceptDirectory),
    /// What an archive has was made again: told, for the history.
    Restored {
        /// Whose.
        target: Target,
        /// Which archive.
        file: String,
        /// How many objects were made.
        objects: u64,
    },
    /// Let exactly what was refused through, once, within the hour.
    Approve {
        /// As printed by `plan` and `status`.
        hash: String,
    },
}

/// `bursar directory accept`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceptDirectory {
    /// Its configured name.
    pub source: String,
    /// In the administrator's words; for the history.
    pub reason: Option<String>,
    /// The administrator's ticket.
    pub ticket: Option<String>,
}

/// Which object, and whose it becomes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdoptObject {
    /// `resourcequota tool-foo/bursar`, `namespace tool-foo`.
    pub object: String,
    /// The new owner; `None`: the account in whose way it stands.
    pub owner: Option<AccountName>,
    /// In the administrator's words.
    pub reason: Option<String>,
    /// Their ticket.
    pub ticket: Option<String>,
}

/// Whom an order is about, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// `tool`, `user` or `group`.
    pub kind: AccountKind,
    /// Its current name, or the ledger's id of it.
    pub name: String,
    /// In the administrator's words; for the history.
    pub reason: Option<String>,
    /// The administrator's ticket.
    pub ticket: Option<String>,
}

/// `bursar suspend --until`. An order of its own, so that a daemon that does not know it refuses it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuspendUntil {
    /// Whom.
    pub target: Target,
    /// The account resumes then, unless something else suspends it.
    pub until: Timestamp,
}

/// `bursar revoke --evict`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evict {
    /// Whom.
    pub target: Target,
    /// What was changed in its namespaces since then is listed.
    pub since: Option<Timestamp>,
}

/// `bursar resume --start`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResumeStarting {
    /// Whom.
    pub target: Target,
    /// `deployment/web`, of what is stopped; `all` or `none` alone.
    pub start: Vec<String>,
}

/// `bursar revoke --all`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevokeClass {
    /// Whose accounts.
    pub class: String,
    /// In the administrator's words; for the history.
    pub reason: Option<String>,
    /// The administrator's ticket.
    pub ticket: Option<String>,
}

/// `bursar quota set`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaSet {
    /// Whose.
    pub target: Target,
    /// Amounts by resource, as Kubernetes writes both.
    pub amounts: BTreeMap<String, String>,
    /// From then on the class's amounts hold again; absent: never.
    pub until: Option<Timestamp>,
    /// Only in this cluster.
    pub cluster: Option<ClusterName>,
}

/// `bursar quota unset`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaUnset {
    /// Whose.
    pub target: Target,
    /// Which resources.
    pub resources: Vec<String>,
    /// Only what was given for this cluster; absent: all of it.
    pub cluster: Option<ClusterName>,
}

/// `bursar exception set`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExceptionSet {
    /// Who.
    pub target: Target,
    /// From what.
    pub rules: Vec<ExceptedRule>,
    /// From then on the rules hold again.
    pub until: Timestamp,
    /// Only in this cluster.
    pub cluster: Option<ClusterName>,
}

/// `bursar exception unset`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExceptionUnset {
    /// Who.
    pub target: Target,
    /// From what.
    pub rules: Vec<ExceptedRule>,
    /// Only what was given for this cluster; absent: all of it.
    pub cluster: Option<ClusterName>,
}

/// Somebody asks for an account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnsureRequest {
    /// `tool` or `user`.
    pub kind: AccountKind,
    /// Its current name, or the ledger's id of it.
    pub name: String,
    /// When they began to ask: of whom no later read of the directory knows, nobody knows.
    #[serde(default)]
    pub since: Option<Timestamp>,
}

/// How it is with the account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnsureAnswer {
    /// Its kubeconfig works. If not: ask again.
    pub ready: bool,
    /// For people.
    pub text: String,
    /// Where it is, once for each cluster.
    pub kubeconfigs: Vec<PathBuf>,
}

/// Why a request was not served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The exit code `bursar` should end with: 4 no such account, 64 usage, 77 not allowed, 1 anything else.
    pub exit_code: u8,
    /// For people, with the remedy.
    pub text: String,
}

/// What sets a cycle off. What comes first here goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Trigger {
    /// An administrator's order.
    Order,
    /// The schedule says that directories are to be read in full.
    #[serde(rename = "full_read")]
    FullRead,
    /// The daemon begins.
    Start,
    /// Another configuration is in force.
    Reload,
    /// Somebody asked for it.
    Sync,
    /// The schedule.
    Schedule,
    /// A directory told of a change.
    Change,
    /// Somebody whom the ledger does not know asks for an account. Everybody on the host may, without end.
    Login,
    /// A cluster is no longer as the plan knew it.
    Drift,
    /// What is paced goes on.
    Pace,
}

impl Trigger {
    /// Whether directories are read. Orders and drift are about what is known
    /// already: a directory that hangs must not hold up a revocation, nor be asked whenever somebody deletes a pod.
    #[must_use]
    pub const fn asks(self) -> bool {
        !matches!(self, Self::Order | Self::Drift | Self::Pace)
    }

    /// Whether clusters that were away are asked, too. A change is not to wait for one of them, nor somebody at a login.
    #[must_use]
    pub const fn connects(self) -> bool {
        self.asks() && !matches!(self, Self::Change | Self::Login)
    }

    /// As the ledger has it.
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
