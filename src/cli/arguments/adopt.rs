//! `bursar adopt`: what Bursar does not take by itself.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};

use super::MaybeReasoned;

/// Commands of `adopt`.
#[derive(Debug, Subcommand)]
pub enum Adopt {
    /// Accept the account's new uid from the directory; its home must belong to that uid
    Uid(MaybeReasoned),
    /// Give the account's names, uid and volumes to another directory entry with the same name
    Account(MaybeReasoned),
    /// A namespace that is there already becomes a tenant's, also one whose name was made of the tenant's by another
    /// rule. The admission policy asks for consent in the cluster, too: kubectl label namespace NAME
    /// bursar.dev/adopt=true
    Namespace(AdoptNamespace),
    /// Take over an object that has the name of a tenant's object, and change it to what Bursar expects
    Object(AdoptObject),
    /// Adopt everything that a file lists, in one cycle
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
    /// Tool that gets the namespace
    #[arg(long, value_name = "NAME")]
    pub tool: Option<String>,
    /// User that gets the namespace
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// Group that gets the namespace
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
