//! The command line of `bursar`.

mod adopt;
mod approver;
mod directory;
mod help;
mod names;
mod own;

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use jiff::Timestamp;

use crate::identity::AccountKind;

pub use self::adopt::{Adopt, AdoptNamespace, AdoptObject};
pub use self::approver::{Approver, ApproverInstall, ApproverUninstall};
pub use self::directory::{Accept, Diff, Directory};
pub use self::help::{GROUPS, add_usage, command, parsed, ungrouped};
pub use self::names::NameKind;
pub use self::own::Own;

/// Keeps the accounts of a shared Kubernetes cluster: directory to namespaces, certificates and homes.
#[derive(Debug, Parser)]
#[command(name = "bursar", version, after_help = EXIT_CODES)]
pub struct Arguments {
    /// Options of every command.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 done, 1 failed, 2 changes pending (plan), 3 refused by a limit, \
    4 no such account, 64 usage, 69 daemon not reachable, 75 busy, 77 not allowed, 78 configuration";

/// A parser that lists the kinds there are.
fn kind() -> impl clap::builder::TypedValueParser<Value = AccountKind> {
    PossibleValuesParser::new(["tool", "user", "group"]).try_map(|kind| kind.parse::<AccountKind>())
}

/// A parser that shows what a duration looks like.
fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|_| format!("{text:?} is not a duration; for example 30s, 15m or 3d"))
}

/// Options of every command.
#[derive(Debug, Args)]
pub struct Global {
    /// The configuration
    #[arg(long, global = true, env = "BURSAR_CONFIG", hide_env_values = true, default_value = crate::settings::DEFAULT_PATH, value_name = "FILE")]
    pub config: PathBuf,
    /// The command line or the environment named the configuration.
    #[arg(skip)]
    pub config_is_named: bool,
    /// Another ledger to read
    #[arg(long, global = true, env = "BURSAR_LEDGER", hide_env_values = true, value_name = "FILE")]
    pub ledger: Option<PathBuf>,
    /// For programs
    #[arg(long, global = true)]
    pub json: bool,
    /// Do not fold lines and tables into the terminal's columns
    #[arg(long, global = true)]
    pub wide: bool,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Give the daemon its access to a cluster, as that cluster's administrator
    Init(Init),
    /// Check the configuration, and reach nothing
    Check,
    /// Reach everything: directory, cluster, permissions, homes, clock; each finding with its cure
    Doctor,
    /// Show what would be done, also by another configuration (--config), or until a day (--at)
    Plan(Plan),
    /// Ask for a cycle now and follow it
    Sync(Sync),
    /// How things stand
    Status,
    /// List tools
    Tools(Filter),
    /// List users
    Users(Filter),
    /// Everything about one account, or about yourself
    Show(Own),
    /// Directory attribute, rule, object; or the step that is missing
    Why(Own),
    /// What was done, and who asked for it
    History(History),
    /// Certificates that end soon, or the holder of one
    Certs(Certs),
    /// Make every older certificate worth nothing, and deliver a new one
    Revoke(Revoke),
    /// Wait for a working kubeconfig, and note the use: for login hooks
    Ensure(Ensure),
    /// Take the access away until `resume`, or until a time
    Suspend(Suspend),
    /// End an ordered suspension
    Resume(Resume),
    /// Plan for it, show it, and leave it alone
    Hold(Reasoned),
    /// End a hold
    Release(MaybeReasoned),
    /// What in a home is Bursar's, and the way back
    #[command(subcommand)]
    Home(Home),
    /// Other amounts for one account than its class gives
    #[command(subcommand)]
    Quota(Quota),
    /// Let exactly what was refused through, once, within the hour
    Approve {
        /// As printed by `plan` and `status`
        hash: String,
    },
    /// Let an account have what the directory says now, and Bursar did not take by itself
    #[command(subcommand)]
    Adopt(Adopt),
    /// What the directories say: whether it is believed, and what another configuration or server would say
    #[command(subcommand)]
    Directory(Directory),
    /// Namespaces that were deleted: what is in their files, and the way back
    #[command(subcommand)]
    Archive(Archive),
    /// Make this host's ledger the owner of the clusters; the former owner stops writing at once
    Takeover(Takeover),
    /// Take Bursar out of a cluster; what tenants have stays
    Uninstall(Uninstall),
    /// The webhook that refuses pods which would run as somebody else
    #[command(subcommand)]
    Webhook(Webhook),
    /// The approver of certificate requests, which takes `approve` away from the daemon
    #[command(subcommand)]
    Approver(Approver),
    /// The ledger's file
    #[command(subcommand)]
    Ledger(Ledger),
    /// Completions for a shell
    Completions {
        /// Which shell
        shell: Shell,
    },
    /// The manual page, in roff
    Man(Man),
    /// Names for the completions of shells
    #[command(hide = true)]
    Names {
        /// Whose
        #[arg(value_parser = names::name_kind())]
        kind: NameKind,
    },
}

/// `plan`.
#[derive(Debug, Args)]
pub struct Plan {
    /// Show what falls due until the beginning of this day (UTC), or until this moment
    #[arg(long, value_name = "TIME", value_parser = super::quota::moment)]
    pub at: Option<jiff::Timestamp>,
}

/// `man`.
#[derive(Debug, Args)]
pub struct Man {
    /// A file for each command, into this folder
    #[arg(long, value_name = "FOLDER")]
    pub out: Option<PathBuf>,
}

/// `init`.
#[derive(Debug, Args)]
pub struct Init {
    /// The administrator's kubeconfig: read once, and not kept
    #[arg(long, value_name = "FILE")]
    pub admin_kubeconfig: PathBuf,
    /// The cluster's name in the configuration
    #[arg(long, value_name = "NAME")]
    pub cluster: String,
    /// The only accounts that may hold admin and impersonation roles, with commas; kept by a later `init` without it, and
    /// ended by ""
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub administrators: Option<Vec<String>>,
    /// Print as YAML what it would make in the cluster, and write nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// `uninstall`.
#[derive(Debug, Args)]
pub struct Uninstall {
    /// Which cluster.
    #[command(flatten)]
    pub cluster: WebhookCluster,
    /// The administrator's kubeconfig: read once, and not kept
    #[arg(long, value_name = "FILE")]
    pub admin_kubeconfig: PathBuf,
    /// Say what would go, and remove nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// `takeover`.
#[derive(Debug, Args)]
pub struct Takeover {
    /// The administrator's kubeconfig, read once and not kept; for each cluster, where there are several: NAME=FILE.
    /// Without it: $KUBECONFIG, or ~/.kube/config
    #[arg(long, value_name = "[NAME=]FILE")]
    pub admin_kubeconfig: Vec<String>,
}

/// `sync`.
#[derive(Debug, Args)]
pub struct Sync {
    /// Without a daemon: one cycle by this process
    #[arg(long)]
    pub once: bool,
    /// Wait for the cycle's end (the default)
    #[arg(long)]
    pub wait: bool,
}

/// `tools`, `users`.
#[derive(Debug, Args)]
pub struct Filter {
    /// Only those with a failing step
    #[arg(long, conflicts_with = "suspended")]
    pub failing: bool,
    /// Only suspended ones
    #[arg(long)]
    pub suspended: bool,
}

/// An account.
#[derive(Debug, Clone, Args)]
pub struct Account {
    /// What it is
    #[arg(value_parser = kind())]
    pub kind: AccountKind,
    /// Its name in the directory
    pub name: String,
}

/// `history`.
#[derive(Debug, Args)]
pub struct History {
    /// What it is; without it, everything
    #[arg(requires = "name", value_parser = kind())]
    pub kind: Option<AccountKind>,
    /// Its name in the directory
    pub name: Option<String>,
    /// Only so many, the newest
    #[arg(long, value_name = "COUNT")]
    pub last: Option<usize>,
}

/// `certs`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Certs {
    /// Only those that end within this time
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub expiring: Option<Duration>,
    /// Something else about certificates
    #[command(subcommand)]
    pub command: Option<CertsCommand>,
}

/// Commands of `certs`.
#[derive(Debug, Subcommand)]
pub enum CertsCommand {
    /// The holder of the certificate that an audit event names
    Who {
        /// `credential-id` of the audit event: X509SHA256=…, or the digits alone
        fingerprint: String,
    },
}

/// `revoke`.
#[derive(Debug, Args)]
pub struct Revoke {
    /// What it is
    #[arg(requires = "name", required_unless_present = "all", value_parser = kind())]
    pub kind: Option<AccountKind>,
    /// Its name in the directory
    pub name: Option<String>,
    /// All accounts of --class
    #[arg(long, requires = "class", conflicts_with = "kind")]
    pub all: bool,
    /// With --all: of which class
    #[arg(long, value_name = "NAME", requires = "all")]
    pub class: Option<String>,
    /// Suspend it too, stop what runs, and remove tokens of service accounts, until `resume`
    #[arg(long, conflicts_with = "all")]
    pub evict: bool,
    /// With --evict: list what was changed in its namespaces since then
    #[arg(long, value_name = "TIME", requires = "evict", value_parser = super::quota::moment)]
    pub since: Option<Timestamp>,
    /// Why; the history keeps it
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
    /// Your ticket
    #[arg(long, value_name = "TEXT")]
    pub ticket: Option<String>,
}

/// `ensure`.
#[derive(Debug, Args)]
pub struct Ensure {
    /// Whose.
    #[command(flatten)]
    pub account: Account,
    /// Not longer than this
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    pub timeout: Duration,
}

/// `suspend`.
#[derive(Debug, Args)]
pub struct Suspend {
    /// Whom, and why.
    #[command(flatten)]
    pub target: Reasoned,
    /// Resume by itself at the beginning of this day (UTC), or at this moment; counted while the daemon runs
    #[arg(long, value_name = "TIME", value_parser = super::quota::moment)]
    pub until: Option<Timestamp>,
}

/// An order that must say why.
#[derive(Debug, Args)]
pub struct Reasoned {
    /// Whom.
    #[command(flatten)]
    pub account: Account,
    /// Why; the history keeps it
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
    /// Your ticket
    #[arg(long, value_name = "TEXT")]
    pub ticket: Option<String>,
}

/// An order that may say why.
#[derive(Debug, Args)]
pub struct MaybeReasoned {
    /// Whom.
    #[command(flatten)]
    pub account: Account,
    /// Why; the history keeps it
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Your ticket
    #[arg(long, value_name = "TEXT")]
    pub ticket: Option<String>,
}

/// `resume`.
#[derive(Debug, Args)]
pub struct Resume {
    /// Whom, and why.
    #[command(flatten)]
    pub target: MaybeReasoned,
    /// After an eviction: what starts again (`deployment/web`), `all` or `none`
    #[arg(long, value_name = "KIND/NAME", value_delimiter = ',')]
    pub start: Vec<String>,
}

/// Commands of `archive`.
#[derive(Debug, Subcommand)]
pub enum Archive {
    /// Every archive, or those of one account
    List(ArchiveList),
    /// What is in a file; refused if it is not as it was written
    Show(ArchiveFile),
    /// Make what is in a file again, in an empty namespace of its account
    Apply(ArchiveApply),
}

/// `archive list`.
#[derive(Debug, Args)]
pub struct ArchiveList {
    /// What it is; without it, everybody's
    #[arg(requires = "name", value_parser = kind())]
    pub kind: Option<AccountKind>,
    /// Its name in the directory
    pub name: Option<String>,
}

/// `archive show`.
#[derive(Debug, Args)]
pub struct ArchiveFile {
    /// As `archive list` names it
    pub file: String,
}

/// `archive apply`.
#[derive(Debug, Args)]
pub struct ArchiveApply {
    /// As `archive list` names it
    pub file: String,
    /// What `age-keygen` wrote for the recipient; without it Secrets are left out
    #[arg(long, value_name = "FILE")]
    pub identity: Option<PathBuf>,
    /// The administrator's kubeconfig, read once and not kept. Without it: $KUBECONFIG, or ~/.kube/config
    #[arg(long, value_name = "FILE")]
    pub admin_kubeconfig: Option<PathBuf>,
    /// Why; the history keeps it
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Your ticket
    #[arg(long, value_name = "TEXT")]
    pub ticket: Option<String>,
}

/// Commands of `home`.
#[derive(Debug, Subcommand)]
pub enum Home {
    /// What in an account's kubeconfig is Bursar's, and whether an earlier part of the user's is kept
    Show(Account),
    /// Put the user's part back as it was before Bursar last replaced the file, with Bursar's entries of now
    Restore(Account),
}

/// Commands of `quota`.
#[derive(Debug, Subcommand)]
pub enum Quota {
    /// Give other amounts
    Set(QuotaSet),
    /// Give the class's amounts again
    Unset(QuotaUnset),
    /// What is given, to whom, on which ticket, and until when
    List(QuotaList),
    /// Give all that a file says
    Import {
        /// Lines as after `quota set`, or what `quota list --json` printed
        file: PathBuf,
    },
}

/// `quota set`.
#[derive(Debug, Args)]
pub struct QuotaSet {
    /// Whose.
    #[command(flatten)]
    pub account: Account,
    /// As Kubernetes writes both, for example limits.cpu=8
    #[arg(required = true, value_name = "RESOURCE=AMOUNT", value_parser = super::quota::amount)]
    pub amounts: Vec<(String, String)>,
    /// Only in this cluster
    #[arg(long, value_name = "NAME")]
    pub cluster: Option<String>,
    /// The class's amount holds again from the beginning of this day (UTC), or from this moment
    #[arg(long, value_name = "DAY", value_parser = super::quota::moment)]
    pub until: Option<jiff::Timestamp>,
    /// Why; the history keeps it
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Your ticket
    #[arg(long, value_name = "TEXT")]
    pub ticket: Option<String>,
}

/// `quota unset`.
#[derive(Debug, Args)]
pub struct QuotaUnset {
    /// Whose.
    #[command(flatten)]
    pub account: Account,
    /// For example limits.cpu
    #[arg(required = true, value_name = "RESOURCE")]
    pub resources: Vec<String>,
    /// Only what was given for this cluster
    #[arg(long, value_name = "NAME")]
    pub cluster: Option<String>,
    /// Why; the history keeps it
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Your ticket
    #[arg(long, value_name = "TEXT")]
    pub ticket: Option<String>,
}

/// `quota list`.
#[derive(Debug, Args)]
pub struct QuotaList {
    /// What it is; without it, everybody's
    #[arg(requires = "name", value_parser = kind())]
    pub kind: Option<AccountKind>,
    /// Its name in the directory
    pub name: Option<String>,
}

/// Commands of `ledger`.
#[derive(Debug, Clone, Subcommand)]
pub enum Ledger {
    /// Prove that nothing of the history was changed
    Verify {
        /// A hash that the journal told: the history must still have its event
        #[arg(long, value_name = "HASH", value_parser = super::ledger::event_hash)]
        head: Option<String>,
    },
    /// Copy the ledger as it is now into a new file, beside a running daemon
    Backup {
        /// Must not be there yet
        file: PathBuf,
    },
    /// Put a backup in the place of the ledger; what is there stays beside it
    Restore {
        /// The backup
        file: PathBuf,
        /// Also if the ledger that is there is whole and knows more
        #[arg(long)]
        older: bool,
    },
    /// Rebuild a lost ledger from directory, clusters and homes
    Rebuild {
        /// An administrator's kubeconfig, read once and not kept; for each cluster, where there are several: NAME=FILE.
        /// Without it: the daemon's own
        #[arg(long, value_name = "[NAME=]FILE")]
        admin_kubeconfig: Vec<String>,
    },
}

/// Commands of `webhook`.
#[derive(Debug, Subcommand)]
pub enum Webhook {
    /// Put it in force, in the cluster or outside of it; again, to bring it up to date
    Install(WebhookInstall),
    /// Remove it; pods of other uids stay refused, by the backstop
    Uninstall(WebhookUninstall),
    /// Send dry-run requests that must pass and that must be refused
    Selftest(WebhookCluster),
    /// Print what would be there, as YAML
    Manifests(WebhookManifests),
    /// Judge what runs already, also by another --config, and write nothing
    Audit(WebhookAudit),
}

/// Selects the cluster.
#[derive(Debug, Clone, Args)]
pub struct WebhookCluster {
    /// The cluster's name in the configuration; needless if there is one only
    #[arg(long, value_name = "NAME")]
    pub cluster: Option<String>,
}

/// `webhook install`.
#[derive(Debug, Args)]
pub struct WebhookInstall {
    /// Which cluster.
    #[command(flatten)]
    pub cluster: WebhookCluster,
    /// It runs outside of the cluster, where the API server reaches it: https://HOST:PORT
    #[arg(long, value_name = "URL", requires = "write", conflicts_with = "image")]
    pub url: Option<String>,
    /// With --url: the folder for the files that it needs (`bursar-webhook --dir`)
    #[arg(long, value_name = "FOLDER", requires = "url")]
    pub write: Option<PathBuf>,
    /// With --write: an administrator's kubeconfig, who has the webhook's certificate signed where the daemon may not: a
    /// webhook that does not run refuses it, and an approver does. Read once, and not kept
    #[arg(long, value_name = "FILE", requires = "write")]
    pub admin_kubeconfig: Option<PathBuf>,
    /// With --write: how long the webhook may take until it answers one review; only then it is in force
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    pub wait: Duration,
    /// The image; default: [webhook] image of the configuration
    #[arg(long, value_name = "REFERENCE")]
    pub image: Option<String>,
}

/// `webhook uninstall`.
#[derive(Debug, Args)]
pub struct WebhookUninstall {
    /// Which cluster.
    #[command(flatten)]
    pub cluster: WebhookCluster,
    /// The backstop too: from then on nothing looks at uids
    #[arg(long)]
    pub backstop: bool,
    /// The administrator's kubeconfig, read once and not kept: the daemon may not remove its webhooks. Without it:
    /// $KUBECONFIG, or ~/.kube/config
    #[arg(long, value_name = "FILE")]
    pub admin_kubeconfig: Option<PathBuf>,
}

/// `webhook audit`.
#[derive(Debug, Args)]
pub struct WebhookAudit {
    /// Which cluster.
    #[command(flatten)]
    pub cluster: WebhookCluster,
    /// The administrator's kubeconfig, who may list everything: read once, and not kept. Without it: $KUBECONFIG, or
    /// ~/.kube/config, or the daemon's own access, which does not list all kinds
    #[arg(long, value_name = "FILE")]
    pub admin_kubeconfig: Option<PathBuf>,
}

/// `webhook manifests`.
#[derive(Debug, Args)]
pub struct WebhookManifests {
    /// Which cluster.
    #[command(flatten)]
    pub cluster: WebhookCluster,
    /// The image; default: [webhook] image of the configuration
    #[arg(long, value_name = "REFERENCE")]
    pub image: Option<String>,
}
