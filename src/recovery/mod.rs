//! Recovers a lost ledger ([`rebuild()`]), lets a ledger from another host take over ([`remember`]), and restores a
//! namespace from its archive ([`archive`]). For the first two, clusters and homes are only read.

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

/// Returns which source has an entry: the source that showed it, or the only source that is configured.
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

/// Why the recovery failed. The ledger is as before.
#[derive(Debug, Error)]
pub enum RecoveryError {
    /// A password of the configuration cannot be read.
    #[error(transparent)]
    Settings(#[from] SettingsErrors),
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The seal's key cannot be read.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// A ledger exists already.
    #[error(
        "{0} exists already; check it with `bursar ledger verify`; if it is damaged, move it, its -wal and its -shm aside"
    )]
    There(PathBuf),
    /// The read of a directory is incomplete, so it does not prove which accounts are absent.
    #[error("the read of source {name} was incomplete ({why}); try again when the source answers completely")]
    Partial { name: String, why: String },
    /// A cluster's objects cannot be read.
    #[error("cannot read cluster {cluster}; without it, a rebuilt ledger would not know the cluster's tenants")]
    Cluster {
        cluster: ClusterName,
        #[source]
        source: AccessError,
    },
    /// The list of quotas cannot be written.
    #[error("cannot write the list of quotas that differ from those of the classes")]
    Quotas(#[source] Box<AccessError>),
    /// The homes cannot be read.
    #[error("cannot read the homes; without them, every certificate would be issued again")]
    Homes(#[source] HomedClientError),
}
