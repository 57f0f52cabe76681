//! The arguments of `bursar webhook`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::{Admin, duration};

/// Commands of `webhook`.
#[derive(Debug, Subcommand)]
pub enum Webhook {
    /// Install or update the webhook, inside or outside the cluster
    Install(WebhookInstall),
    /// Remove the webhook; the backstop policy still refuses pods with other uids
    Uninstall(WebhookUninstall),
    /// Send dry-run requests that must pass and that must be refused
    Selftest(WebhookCluster),
    /// Print the objects of the webhook as YAML
    Manifests(WebhookManifests),
    /// Check existing objects against the rules, also those of another --config; change nothing
    Audit(WebhookAudit),
}

/// Selects the cluster.
#[derive(Debug, Clone, Args)]
pub struct WebhookCluster {
    /// Name of the cluster in the configuration; may be omitted if there is only one
    #[arg(long, value_name = "NAME")]
    pub cluster: Option<String>,
}

/// The arguments of `webhook install`.
#[derive(Debug, Args)]
pub struct WebhookInstall {
    #[command(flatten)]
    pub cluster: WebhookCluster,
    /// The webhook runs outside the cluster, and the API server reaches it at https://HOST:PORT
    #[arg(long, value_name = "URL", requires = "write", conflicts_with = "image")]
    pub url: Option<String>,
    /// With --url: the folder for the files that the webhook needs (`bursar-webhook --dir`)
    #[arg(long, value_name = "FOLDER", requires = "url")]
    pub write: Option<PathBuf>,
    /// With --write: kubeconfig of an administrator who approves the webhook's certificate if the daemon may not,
    /// because the installed webhook does not run or an approver is installed; read once and not kept
    #[arg(long, value_name = "FILE", requires = "write")]
    pub admin_kubeconfig: Option<PathBuf>,
    /// How long to wait for the webhook to answer a review: directly, before it is put in force (with --write), and
    /// through the API server, after that
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    pub wait: Duration,
    /// The image; default: [webhook] image of the configuration
    #[arg(long, value_name = "REFERENCE")]
    pub image: Option<String>,
}

/// The arguments of `webhook uninstall`.
#[derive(Debug, Args)]
pub struct WebhookUninstall {
    #[command(flatten)]
    pub cluster: WebhookCluster,
    /// Remove the backstop policy too; then nothing checks uids
    #[arg(long)]
    pub backstop: bool,
    #[command(flatten)]
    pub admin: Admin,
}

/// The arguments of `webhook audit`.
#[derive(Debug, Args)]
pub struct WebhookAudit {
    #[command(flatten)]
    pub cluster: WebhookCluster,
    /// The administrator's kubeconfig; read once and not kept. Default: $KUBECONFIG, or ~/.kube/config. If there is no
    /// such file, the daemon's own access is used, which cannot list all kinds
    #[arg(long, value_name = "FILE")]
    pub admin_kubeconfig: Option<PathBuf>,
}

/// The arguments of `webhook manifests`.
#[derive(Debug, Args)]
pub struct WebhookManifests {
    #[command(flatten)]
    pub cluster: WebhookCluster,
    /// The image; default: [webhook] image of the configuration
    #[arg(long, value_name = "REFERENCE")]
    pub image: Option<String>,
}
