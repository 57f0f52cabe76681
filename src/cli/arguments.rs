//! The command line of `bursar`.

mod adopt;
mod approver;
mod directory;
mod help;
mod names;
mod order;
mod own;
mod webhook;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use jiff::Timestamp;

use crate::identity::AccountKind;
use crate::report::who::what::What;

pub use self::adopt::{Adopt, AdoptAccount, AdoptNamespace, AdoptObject};
pub use self::approver::{Approver, ApproverInstall, ApproverUninstall};
pub use self::directory::{Accept, Diff, Directory};
pub use self::help::{GROUPS, add_usage, command, parsed, ungrouped};
pub use self::names::NameKind;
pub use self::order::{
    Exception, ExceptionSet, ExceptionUnset, MaybeReasoned, MaybeWhy, Quota, QuotaSet, QuotaUnset, Reasoned, Resume,
    Revoke, Suspend, Why,
};
pub use self::own::Own;
pub use self::webhook::{Webhook, WebhookAudit, WebhookCluster, WebhookInstall, WebhookManifests, WebhookUninstall};

/// Keeps the accounts of a shared Kubernetes cluster in step with a directory.
#[derive(Debug, Parser)]
#[command(name = "bursar", version, after_help = EXIT_CODES)]
pub struct Arguments {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

/// The exit codes, for the help.
pub const EXIT_CODES: &str = "Exit codes:
   0  done, or nothing to do
   1  failed
   2  changes pending (plan) or differences (directory diff)
   3  refused by a limit
   4  no such account or archive
  64  wrong arguments
  69  daemon not reachable
  75  busy
  77  not allowed
  78  wrong configuration";

/// Returns a parser for a kind of account, whose errors list the kinds.
fn kind() -> impl clap::builder::TypedValueParser<Value = AccountKind> {
    PossibleValuesParser::new(["tool", "user", "group"]).try_map(|kind| kind.parse::<AccountKind>())
}

/// Parses a duration. The error shows an example.
fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a duration; for example 30s, 15m or 3d");
    crate::settings::duration(text).ok_or_else(wrong)
}

/// The heading of the options that every command has, in the help of a command.
const EVERY: &str = "Options of every command";

/// Options of every command.
#[derive(Debug, Args)]
pub struct Global {
    /// Configuration file
    #[arg(long, global = true, help_heading = EVERY, env = "BURSAR_CONFIG", hide_env_values = true, default_value = crate::settings::DEFAULT_PATH, value_name = "FILE")]
    pub config: PathBuf,
    /// Whether the command line or the environment names the configuration file.
    #[arg(skip)]
    pub config_is_named: bool,
    /// Ledger file to read instead of the configured one
    #[arg(long, global = true, help_heading = EVERY, env = "BURSAR_LEDGER", hide_env_values = true, value_name = "FILE")]
    pub ledger: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true, help_heading = EVERY)]
    pub json: bool,
    /// Do not fold lines and tables into the terminal's columns
    #[arg(long, global = true, help_heading = EVERY)]
    pub wide: bool,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Give the daemon its access to a cluster, as that cluster's administrator
    Init(Init),
    /// Check the configuration without contacting anything
    Check,
    /// Check the connections, permissions, homes and clocks, and name a remedy for each problem
    Doctor,
    /// Show what the next cycle would do, also under another --config, or until a later day (--at)
    Plan(Plan),
    /// Start a cycle now and follow it
    Sync(Sync),
    /// Show sources, clusters, the last cycle, failures and refusals
    Status,
    /// List tools
    Tools(Filter),
    /// List users
    Users(Filter),
    /// Show everything about an account, or about yourself
    Show(Own),
    /// Explain an account from directory entry to objects, or name the missing step
    Why(Own),
    /// Find the account and the people behind a uid, certificate, token, pod, host or mail address, now or at a time
    Who(Who),
    /// Show what was done and who ordered it
    History(History),
    /// List valid certificates and tokens by expiry, or find the holder of one
    Certs(Certs),
    /// Write a page for managers and auditors: accounts, access, exceptions, failures, changes
    Report(Report),
    /// Invalidate all credentials of an account and deliver new ones
    Revoke(Revoke),
    /// Wait for a working kubeconfig and record the use (for login hooks)
    Ensure(Ensure),
    /// Take away an account's access until `resume`, or until a given time
    Suspend(Suspend),
    /// End an ordered suspension
    Resume(Resume),
    /// Stop all changes to an account, but keep planning and showing them
    Hold(Reasoned),
    /// End a hold
    Release(MaybeReasoned),
    /// Show what Bursar wrote in a home, or restore what it replaced
    #[command(subcommand)]
    Home(Home),
    /// Override the quota of an account
    #[command(subcommand)]
    Quota(Quota),
    /// Except an account from admission rules, for a time
    #[command(subcommand)]
    Exception(Exception),
    /// Allow exactly one refused set of changes, once, within the hour
    Approve {
        /// Hash that `plan` and `status` print
        hash: String,
    },
    /// Let Bursar take over a uid, a directory entry, a namespace or an object
    #[command(subcommand)]
    Adopt(Adopt),
    /// Accept the next read of a directory, or compare configurations and servers
    #[command(subcommand)]
    Directory(Directory),
    /// List, show and restore archives of deleted namespaces
    #[command(subcommand)]
    Archive(Archive),
    /// Make this host's ledger the owner of the clusters; the former owner stops writing at once
    Takeover(Takeover),
    /// Remove Bursar from a cluster; tenants keep their namespaces and data
    Uninstall(Uninstall),
    /// Manage the webhook that refuses pods with another tenant's uid
    #[command(subcommand)]
    Webhook(Webhook),
    /// Manage the approver, which approves certificate requests instead of the daemon
    #[command(subcommand)]
    Approver(Approver),
    /// Verify, back up, restore or rebuild the ledger
    #[command(subcommand)]
    Ledger(Ledger),
    /// Print shell completions
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the manual page, in roff
    Man(Man),
    /// Print names for shell completions
    #[command(hide = true)]
    Names {
        /// Kind of the names
        #[arg(value_parser = names::name_kind())]
        kind: NameKind,
    },
}

/// The arguments of `plan`.
#[derive(Debug, Args)]
pub struct Plan {
    /// Show everything that falls due until this day (00:00 UTC) or time
    #[arg(long, value_name = "TIME", value_parser = super::quota::moment)]
    pub at: Option<jiff::Timestamp>,
}

/// The arguments of `man`.
#[derive(Debug, Args)]
pub struct Man {
    /// Write one page for each command into this folder
    #[arg(long, value_name = "FOLDER")]
    pub out: Option<PathBuf>,
}

/// The kubeconfig of a cluster's administrator.
#[derive(Debug, Clone, Args)]
pub struct Admin {
    /// The administrator's kubeconfig; read once and not kept. Default: $KUBECONFIG, or ~/.kube/config
    #[arg(long, value_name = "FILE")]
    pub admin_kubeconfig: Option<PathBuf>,
}

impl Admin {
    /// Returns the file, if it is given.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        self.admin_kubeconfig.as_deref()
    }
}

/// The arguments of `init`.
#[derive(Debug, Args)]
pub struct Init {
    #[command(flatten)]
    pub admin: Admin,
    /// The cluster's name in the configuration
    #[arg(long, value_name = "NAME")]
    pub cluster: String,
    /// The only accounts that may hold admin and impersonation roles, separated by commas; a later `init` keeps them,
    /// and "" removes the restriction
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub administrators: Option<Vec<String>>,
    /// Print the objects that would be made in the cluster as YAML, and write nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// The arguments of `uninstall`.
#[derive(Debug, Args)]
pub struct Uninstall {
    #[command(flatten)]
    pub cluster: WebhookCluster,
    #[command(flatten)]
    pub admin: Admin,
    /// Show what would be removed, and remove nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// The arguments of `takeover`.
#[derive(Debug, Args)]
pub struct Takeover {
    /// The administrator's kubeconfig; read once and not kept. If there are several clusters, give NAME=FILE for each.
    /// Default: $KUBECONFIG, or ~/.kube/config
    #[arg(long, value_name = "[NAME=]FILE")]
    pub admin_kubeconfig: Vec<String>,
}

/// The arguments of `sync`.
#[derive(Debug, Args)]
pub struct Sync {
    /// Run one cycle in this process, without a daemon
    #[arg(long)]
    pub once: bool,
    /// Wait for the cycle's end, and until all sources have answered (the default)
    #[arg(long)]
    pub wait: bool,
}

/// The arguments of `tools` and `users`.
#[derive(Debug, Args)]
pub struct Filter {
    /// Only accounts with a failing step
    #[arg(long, conflicts_with = "suspended")]
    pub failing: bool,
    /// Only suspended accounts
    #[arg(long)]
    pub suspended: bool,
}

/// An account.
#[derive(Debug, Clone, Args)]
pub struct Account {
    /// Kind of account
    #[arg(value_parser = kind())]
    pub kind: AccountKind,
    /// Name in the directory
    pub name: String,
}

/// The arguments of `history`.
#[derive(Debug, Args)]
pub struct History {
    /// Kind of account; if omitted, the events of all accounts are shown
    #[arg(requires = "name", value_parser = kind())]
    pub kind: Option<AccountKind>,
    /// Name in the directory
    pub name: Option<String>,
    /// Show only the newest COUNT events
    #[arg(long, value_name = "COUNT")]
    pub last: Option<usize>,
}

/// The arguments of `who`.
#[derive(Debug, Args)]
pub struct Who {
    /// A uid, X509SHA256=… or JTI=… of an audit event, NAMESPACE/POD, a host, or a mail address
    pub what: What,
    /// Answer for this day (00:00 UTC) or time instead of now
    #[arg(long, value_name = "TIME", value_parser = super::quota::moment)]
    pub at: Option<Timestamp>,
}

/// The arguments of `report`.
#[derive(Debug, Args)]
pub struct Report {
    /// The HTML file to write, with mode 0600; with -, the page is printed
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
}

/// The arguments of `certs`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Certs {
    /// Only certificates and tokens that expire within this time
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub expiring: Option<Duration>,
    #[command(subcommand)]
    pub command: Option<CertsCommand>,
}

/// Commands of `certs`.
#[derive(Debug, Subcommand)]
pub enum CertsCommand {
    /// Find the holder of the credential that an audit event names
    Who {
        /// `credential-id` of the audit event: X509SHA256=… or JTI=…, or only the digits
        fingerprint: What,
    },
}

/// The arguments of `ensure`.
#[derive(Debug, Args)]
pub struct Ensure {
    #[command(flatten)]
    pub account: Account,
    /// Wait at most this long
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    pub timeout: Duration,
}

/// Commands of `archive`.
#[derive(Debug, Subcommand)]
pub enum Archive {
    /// List all archives, or those of one account
    List(MaybeAccount),
    /// Verify the digest of an archive, and show its contents
    Show(ArchiveFile),
    /// Restore an archive into an empty namespace of its account
    Apply(ArchiveApply),
}

/// One account, or all accounts.
#[derive(Debug, Args)]
pub struct MaybeAccount {
    /// Kind of account; if omitted, all accounts are listed
    #[arg(requires = "name", value_parser = kind())]
    pub kind: Option<AccountKind>,
    /// Name in the directory
    pub name: Option<String>,
}

/// The arguments of `archive show`.
#[derive(Debug, Args)]
pub struct ArchiveFile {
    /// Name of the archive, as in `archive list`
    pub file: String,
}

/// The arguments of `archive apply`.
#[derive(Debug, Args)]
pub struct ArchiveApply {
    /// Name of the archive, as in `archive list`
    pub file: String,
    /// Identity file (private key) from `age-keygen`; if omitted, Secrets are not restored
    #[arg(long, value_name = "FILE")]
    pub identity: Option<PathBuf>,
    #[command(flatten)]
    pub admin: Admin,
    #[command(flatten)]
    pub why: MaybeWhy,
}

/// Commands of `home`.
#[derive(Debug, Subcommand)]
pub enum Home {
    /// Show which entries of an account's kubeconfig belong to Bursar, and whether the user's part of a replaced file
    /// is kept
    Show(Account),
    /// Restore the user's part of the kubeconfig that Bursar last replaced; Bursar's current entries stay
    Restore(MaybeReasoned),
}

/// Commands of `ledger`.
#[derive(Debug, Clone, Subcommand)]
pub enum Ledger {
    /// Verify that the history was not changed
    Verify {
        /// Hash from the journal; the history must still contain its event
        #[arg(long, value_name = "HASH", value_parser = super::ledger::event_hash)]
        head: Option<String>,
    },
    /// Copy the ledger into a new file, also while the daemon runs
    Backup {
        /// File to write; it must not exist
        file: PathBuf,
    },
    /// Replace the ledger with a backup, and keep the old ledger beside it
    Restore {
        /// The backup
        file: PathBuf,
        /// Restore even if the current ledger is intact and has more events
        #[arg(long)]
        older: bool,
    },
    /// Rebuild a lost ledger from directory, clusters and homes
    Rebuild {
        /// An administrator's kubeconfig; read once and not kept. If there are several clusters, give NAME=FILE for
        /// each. Default: the daemon's own access
        #[arg(long, value_name = "[NAME=]FILE")]
        admin_kubeconfig: Vec<String>,
    },
}
