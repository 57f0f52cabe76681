//! A ledger that was lost or is another host's: made anew from what is left ([`rebuild()`]), or told that it is the owner
//! from now on ([`remember`]). Clusters and homes are only read here.

mod homes;
mod rebuild;
mod takeover;

use std::path::PathBuf;

use thiserror::Error;

pub use self::rebuild::{Rebuilt, rebuild};
pub use self::takeover::{Remembered, remember};
use crate::access::AccessError;
use crate::engine::EngineError;
use crate::homes::client::HomedClientError;
use crate::identity::ClusterName;
use crate::ledger::store::StoreError;
use crate::settings::SettingsErrors;

/// Why there is no ledger afterwards, or not another one than before.
#[derive(Debug, Error)]
pub enum RecoveryError {
    /// A password that is not there.
    #[error(transparent)]
    Settings(#[from] SettingsErrors),
    /// The ledger.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The seal's key.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// There is one.
    #[error("{0} is there: if it is damaged, move it aside, with its -wal and -shm; `bursar ledger verify` checks it")]
    There(PathBuf),
    /// There is none.
    #[error("{0} is not there: bring it with `bursar ledger restore FILE`, or `bursar ledger rebuild`")]
    Absent(PathBuf),
    /// A directory does not prove who is absent.
    #[error("source {name} does not answer completely ({why}); nothing depends on haste: try again when it does")]
    Partial {
        /// Which.
        name: String,
        /// Why.
        why: String,
    },
    /// A cluster does not tell what it has.
    #[error("cluster {cluster} cannot be read, and what it knows of its tenants would be lost")]
    Cluster {
        /// Which.
        cluster: ClusterName,
        /// Why.
        #[source]
        source: AccessError,
    },
    /// Homes cannot be looked into.
    #[error("homes cannot be looked into, and every certificate would be issued again")]
    Homes(#[source] HomedClientError),
}
