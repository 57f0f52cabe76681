//! The arguments of orders: `suspend`, `resume`, `revoke`, `quota`, `exception`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use jiff::Timestamp;

use super::{Account, MaybeAccount, kind};
use crate::contract::exception::ExceptedRule;
use crate::identity::{AccountKind, ClusterName};

/// The arguments of `revoke`.
#[derive(Debug, Args)]
pub struct Revoke {
    /// Kind of account
    #[arg(requires = "name", required_unless_present = "all", value_parser = kind())]
    pub kind: Option<AccountKind>,
    /// Name in the directory
    pub name: Option<String>,
    /// All accounts of --class
    #[arg(long, requires = "class", conflicts_with = "kind")]
    pub all: bool,
    /// With --all: the class of the accounts
    #[arg(long, value_name = "NAME", requires = "all")]
    pub class: Option<String>,
    /// Also suspend the account, stop its workloads, and remove tokens of its service accounts, until `resume`
    #[arg(long, conflicts_with = "all")]
    pub evict: bool,
    /// With --evict: list the changes in its namespaces since this time
    #[arg(long, value_name = "TIME", requires = "evict", value_parser = crate::cli::quota::moment)]
    pub since: Option<Timestamp>,
    #[command(flatten)]
    pub why: Why,
}

/// The arguments of `suspend`.
#[derive(Debug, Args)]
pub struct Suspend {
    #[command(flatten)]
    pub target: Reasoned,
    /// Resume automatically on this day (00:00 UTC) or at this time; only time in which the daemon runs counts
    #[arg(long, value_name = "TIME", value_parser = crate::cli::quota::moment)]
    pub until: Option<Timestamp>,
}

/// The reason of an order that needs one.
#[derive(Debug, Args)]
pub struct Why {
    /// Reason; the history keeps it
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
    /// Ticket; the history keeps it
    #[arg(long, value_name = "TEXT")]
    pub ticket: Option<String>,
}

/// The optional reason of an order.
#[derive(Debug, Clone, Args)]
pub struct MaybeWhy {
    /// Reason; the history keeps it
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Ticket; the history keeps it
    #[arg(long, value_name = "TEXT")]
    pub ticket: Option<String>,
}

/// The target of an order that needs a reason.
#[derive(Debug, Args)]
pub struct Reasoned {
    #[command(flatten)]
    pub account: Account,
    #[command(flatten)]
    pub why: Why,
}

/// The target of an order whose reason is optional.
#[derive(Debug, Clone, Args)]
pub struct MaybeReasoned {
    #[command(flatten)]
    pub account: Account,
    #[command(flatten)]
    pub why: MaybeWhy,
}

/// The arguments of `resume`.
#[derive(Debug, Args)]
pub struct Resume {
    #[command(flatten)]
    pub target: MaybeReasoned,
    /// After an eviction: the workloads to start again (`deployment/web`), or `all` or `none`
    #[arg(long, value_name = "KIND/NAME", value_delimiter = ',')]
    pub start: Vec<String>,
}

/// Commands of `quota`.
#[derive(Debug, Subcommand)]
pub enum Quota {
    /// Set amounts
    Set(QuotaSet),
    /// Go back to the amounts of the class
    Unset(QuotaUnset),
    /// List the overrides with account, ticket and end
    List(MaybeAccount),
    /// Set all overrides that a file lists
    Import {
        /// A file with one override per line, as after `quota set`, or with the output of `quota list --json`
        file: PathBuf,
    },
}

/// The arguments of `quota set`.
#[derive(Debug, Args)]
pub struct QuotaSet {
    #[command(flatten)]
    pub target: MaybeReasoned,
    /// Resource and quantity in the notation of Kubernetes, for example limits.cpu=8
    #[arg(required = true, value_name = "RESOURCE=AMOUNT", value_parser = crate::cli::quota::amount)]
    pub amounts: Vec<(String, String)>,
    /// Only in this cluster
    #[arg(long, value_name = "NAME")]
    pub cluster: Option<ClusterName>,
    /// The class's amount applies again from this day (00:00 UTC) or time
    #[arg(long, value_name = "DAY", value_parser = crate::cli::quota::moment)]
    pub until: Option<Timestamp>,
}

/// The arguments of `quota unset`.
#[derive(Debug, Args)]
pub struct QuotaUnset {
    #[command(flatten)]
    pub target: MaybeReasoned,
    /// Resource, for example limits.cpu
    #[arg(required = true, value_name = "RESOURCE")]
    pub resources: Vec<String>,
    /// Only the override for this cluster
    #[arg(long, value_name = "NAME")]
    pub cluster: Option<ClusterName>,
}

/// Commands of `exception`.
#[derive(Debug, Subcommand)]
pub enum Exception {
    /// Except an account from rules
    Set(ExceptionSet),
    /// End an exception, so that the rules apply again
    Unset(ExceptionUnset),
    /// List the exceptions with account, ticket and end
    List(MaybeAccount),
}

/// The arguments of `exception set`.
#[derive(Debug, Args)]
#[command(mut_arg("reason", |reason| {
    reason.required_unless_present("ticket").help("Reason; the history keeps it; --reason or --ticket is required")
}))]
pub struct ExceptionSet {
    #[command(flatten)]
    pub target: MaybeReasoned,
    /// The rules, as `webhook audit` names them
    #[arg(required = true, value_name = "RULE", value_parser = crate::cli::exception::rule())]
    pub rules: Vec<ExceptedRule>,
    /// The rules apply again from this day (00:00 UTC) or time
    #[arg(long, value_name = "DAY", value_parser = crate::cli::quota::moment)]
    pub until: Timestamp,
    /// Only in this cluster
    #[arg(long, value_name = "NAME")]
    pub cluster: Option<ClusterName>,
}

/// The arguments of `exception unset`.
#[derive(Debug, Args)]
pub struct ExceptionUnset {
    #[command(flatten)]
    pub target: MaybeReasoned,
    /// The rules
    #[arg(required = true, value_name = "RULE", value_parser = crate::cli::exception::rule())]
    pub rules: Vec<ExceptedRule>,
    /// Only the exception for this cluster
    #[arg(long, value_name = "NAME")]
    pub cluster: Option<ClusterName>,
}
