//! `bursar directory`.

use clap::{Args, Subcommand};

/// Commands of `directory`.
#[derive(Debug, Subcommand)]
pub enum Directory {
    /// Take what a source says next as it is: a server was restored from a backup, or groups are empty on purpose
    Accept(Accept),
    /// Print the accounts that seem to be imported again, as lines for `adopt import`
    Imported,
    /// What a source says with another configuration (--config FILE), or what one server of it says (--server URL)
    Diff(Diff),
}

/// `directory accept`.
#[derive(Debug, Args)]
pub struct Accept {
    /// Its name in the configuration
    pub source: String,
    /// Why; the history keeps it
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
    /// Your ticket
    #[arg(long, value_name = "TEXT")]
    pub ticket: Option<String>,
}

/// `directory diff`.
#[derive(Debug, Args)]
pub struct Diff {
    /// Its name in the configuration; without it, all
    pub source: Option<String>,
    /// One server of it, as in urls
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
}
