//! The arguments of `bursar adopt`, which orders Bursar to take over something that it otherwise leaves alone.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};

use super::{MaybeReasoned, MaybeWhy};

/// Commands of `adopt`.
#[derive(Debug, Subcommand)]
pub enum Adopt {
    /// Accept the account's new uid from the directory; its home must belong to that uid
    Uid(MaybeReasoned),
    /// Give the account's names, uid and volumes to another directory entry with the same name
    Account(AdoptAccount),
    /// Make an existing namespace a tenant's, even if its name does not follow the class's rule. The admission policy
    /// also requires this consent in the cluster: kubectl label namespace NAME bursar.dev/adopt=true
    Namespace(AdoptNamespace),
    /// Take over an object that has the name of a tenant's object, and change it to what Bursar expects
    Object(AdoptObject),
    /// Adopt everything that a file lists, in one cycle
    Import {
        /// A file with one adoption per line, as after `adopt`: namespace tool-foo --tool foo --ticket T14
        file: PathBuf,
    },
}

/// The arguments of `adopt account`.
#[derive(Debug, Args)]
pub struct AdoptAccount {
    #[command(flatten)]
    pub target: MaybeReasoned,
    /// Id of the entry; needed if several entries have the name of the account
    #[arg(long, value_name = "ID")]
    pub entry: Option<String>,
}

/// The arguments of `adopt namespace`.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("owner").required(true).args(["tool", "user", "group"])))]
pub struct AdoptNamespace {
    /// Name of the namespace
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
    #[command(flatten)]
    pub why: MaybeWhy,
}

/// The arguments of `adopt object`.
#[derive(Debug, Args)]
pub struct AdoptObject {
    /// Kind of the object: resourcequota, rolebinding, …
    pub kind: String,
    /// NAMESPACE/NAME; for an object without a namespace, NAME
    pub object: String,
    #[command(flatten)]
    pub why: MaybeWhy,
}
