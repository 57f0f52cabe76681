//! The arguments of `bursar directory`.

use clap::{Args, Subcommand};

use super::Why;

/// Commands of `directory`.
#[derive(Debug, Subcommand)]
pub enum Directory {
    /// Accept the next read of a source as it is, if a server was restored from a backup or groups are empty on purpose
    Accept(Accept),
    /// Print the accounts that seem to have been imported again, as lines for `adopt import`
    Imported,
    /// Compare a source under another configuration (--config FILE), or on one of its servers (--server URL)
    Diff(Diff),
}

/// The arguments of `directory accept`.
#[derive(Debug, Args)]
pub struct Accept {
    /// Name of the source in the configuration
    pub source: String,
    #[command(flatten)]
    pub why: Why,
}

/// The arguments of `directory diff`.
#[derive(Debug, Args)]
pub struct Diff {
    /// Name of the source in the configuration; if omitted, all sources are compared
    pub source: Option<String>,
    /// One server of the source, as in its `urls`
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
}
