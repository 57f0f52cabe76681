//! `bursar adopt`: what Bursar does not take by itself.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};

use super::MaybeReasoned;

/// Commands of `adopt`.
#[derive(Debug, Subcommand)]
pub enum Adopt {
    /// The uid that the directory has now becomes the account's; its home must belong to that uid
    Uid(MaybeReasoned),
    /// Another entry of the directory that has the account's name gets what is the account's: names, uid, volumes
    Account(MaybeReasoned),
    /// A namespace that is there already becomes a tenant's, also one whose name was made of the tenant's by another
    /// rule. The admission policy asks for consent in the cluster, too: kubectl label namespace NAME
    /// bursar.dev/adopt=true
    Namespace(AdoptNamespace),
    /// What somebody else made where an object of a tenant's should be becomes the tenant's, and is as Bursar wants it
    Object(AdoptObject),
    /// All that a file says, in one cycle
    Import {
        /// Lines as after `adopt`: namespace tool-foo --tool foo --ticket T14
        file: PathBuf,
    },
}

/// `adopt namespace`.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("owner").required(true).args(["tool", "user", "group"])))]
pub struct AdoptNamespace {
    /// Its name
    pub namespace: String,
    /// The tool whose it becomes
    #[arg(long, value_name = "NAME")]
    pub tool: Option<String>,
    /// The user whose it becomes
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// The group whose it becomes
    #[arg(long, value_name = "NAME")]
    pub group: Option<String>,
    /// Why; the history keeps it
    #[arg(long)]
    pub reason: Option<String>,
    /// Ticket; the history keeps it
    #[arg(long)]
    pub ticket: Option<String>,
}

/// `adopt object`.
#[derive(Debug, Args)]
pub struct AdoptObject {
    /// What it is: resourcequota, rolebinding, …
    pub kind: String,
    /// NAMESPACE/NAME, or NAME of what is in no namespace
    pub object: String,
    /// Why; the history keeps it
    #[arg(long)]
    pub reason: Option<String>,
    /// Ticket; the history keeps it
    #[arg(long)]
    pub ticket: Option<String>,
}
