//! Recovery of a ledger that was lost ([`rebuild()`]: rebuilt from what is left) or that comes from another host
//! ([`remember`]: told that it is the owner from now on), with clusters and homes only read; and of a namespace from
//! its archive ([`archive`]).

pub mod archive;
mod homes;
pub mod quotas;
mod rebuild;
mod takeover;

use std::collections::BTreeMap;
use std::path::PathBuf;

use bursar_homed::client::HomedClientError;
use thiserror::Error;

pub use self::rebuild::{Rebuilt, rebuild};
pub use self::takeover::{Remembered, remember};
use crate::bootstrap::AccessError;
use crate::identity::{ClusterName, DirectoryId};
use crate::runtime::RuntimeError;
use crate::settings::{Settings, SettingsErrors};
use crate::snapshot::DirectorySnapshot;
use crate::store::StoreError;

/// Which directory has an entry: the one that was read with it, or the only one there is.
fn source_of(settings: &Settings, snapshot: &DirectorySnapshot) -> impl Fn(&DirectoryId) -> Option<String> {
    let mut sources: BTreeMap<DirectoryId, String> = BTreeMap::new();
    for read in &snapshot.reads {
        let ids = read.entries.iter().map(|entry| &entry.id);
        let rejected = read.rejected.iter().filter_map(|entry| entry.id.as_ref());
        for id in ids.chain(rejected) {
            sources.entry(id.clone()).or_insert_with(|| read.source.clone());
        }
    }
    let mut names = settings.source_names();
    let only = names.next().filter(|_| names.next().is_none()).map(str::to_owned);
    move |id| sources.get(id).or(only.as_ref()).cloned()
}

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
    Runtime(#[from] RuntimeError),
    /// There is one.
    #[error(
        "{0} exists already; check it with `bursar ledger verify`; if it is damaged, move it, its -wal and its -shm aside"
    )]
    There(PathBuf),
    /// There is none.
    #[error("{0} does not exist; run: bursar ledger restore FILE, or: bursar ledger rebuild")]
    Absent(PathBuf),
    /// A directory does not prove who is absent.
    #[error("the read of source {name} was incomplete ({why}); try again when the source answers completely")]
    Partial {
        /// Which.
        name: String,
        /// Why.
        why: String,
    },
    /// A cluster does not tell what it has.
    #[error("cannot read cluster {cluster}; without it, a rebuilt ledger would not know the cluster's tenants")]
    Cluster {
        /// Which.
        cluster: ClusterName,
        /// Why.
        #[source]
        source: AccessError,
    },
    /// The file of quotas.
    #[error("the quotas that differ from the classes' cannot be listed")]
    Quotas(#[source] Box<AccessError>),
    /// Homes .
    #[error("cannot read the homes; without them, every certificate would be issued again")]
    Homes(#[source] HomedClientError),
}
