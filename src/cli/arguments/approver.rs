//! The arguments of `bursar approver`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{Admin, WebhookCluster};

/// Commands of `approver`.
#[derive(Debug, Subcommand)]
pub enum Approver {
    /// Install or update the approver, inside or outside the cluster; run it again after a change of classes
    Install(ApproverInstall),
    /// Remove the approver, and give the daemon back its right to approve
    Uninstall(ApproverUninstall),
}

/// The arguments of `approver install`.
#[derive(Debug, Args)]
pub struct ApproverInstall {
    #[command(flatten)]
    pub cluster: WebhookCluster,
    #[command(flatten)]
    pub admin: Admin,
    /// The approver runs outside the cluster, and needs the files in this folder (`bursar-webhook approve --dir`)
    #[arg(long, value_name = "FOLDER", conflicts_with = "image")]
    pub write: Option<PathBuf>,
    /// The image, by digest; default: [webhook] image of the configuration
    #[arg(long, value_name = "REFERENCE")]
    pub image: Option<String>,
    /// The only accounts that may hold admin and impersonation roles, separated by commas, as for `init`
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub administrators: Option<Vec<String>>,
}

/// The arguments of `approver uninstall`.
#[derive(Debug, Args)]
pub struct ApproverUninstall {
    #[command(flatten)]
    pub cluster: WebhookCluster,
    #[command(flatten)]
    pub admin: Admin,
}
