//! Reads all sources side by side and makes one [`DirectorySnapshot`] of their answers. Whatever happens to a source
//! is data in its own read; there is no error that could lose what another one answered.

use std::panic::resume_unwind;
use std::sync::Arc;

use futures::future::join_all;
use jiff::Timestamp;
use tokio::runtime;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::assemble::{RawRead, assemble};
use super::entry::EntryRules;
use super::source::{SourceConfig, SourceKind};
use super::{DirectorySnapshot, SourceRead, keycloak, ldap, ldif, merge};
use crate::policy::Policy;

/// One pass over `sources`, which are in their order of precedence. Accounts that expired before `now` are disabled.
/// Dropped, it ends all reads.
///
/// # Panics
///
/// If the system gives no more threads.
pub async fn fetch(sources: &[SourceConfig], policy: &Policy, now: Timestamp) -> DirectorySnapshot {
    let rules = Arc::new(EntryRules::of(policy, now));
    let reads = join_all(sources.iter().map(|source| apart(source.clone(), Arc::clone(&rules)))).await;
    merge::merge(reads, policy)
}

/// Reads `source` on a thread of its own. A connection and its reader hand each other every entry, and waking another
/// thread each time takes longer than reading it; and nothing else of the daemon waits while many are checked.
async fn apart(source: SourceConfig, rules: Arc<EntryRules>) -> SourceRead {
    let (_wanted, mut unwanted) = oneshot::channel::<()>();
    let reading = spawn_blocking(move || {
        let runtime = runtime::Builder::new_current_thread().enable_all().build().expect("a runtime on this thread");
        runtime.block_on(async {
            tokio::select! {
                read = read(&source, &rules) => Some(read),
                _ = &mut unwanted => None,
            }
        })
    });
    match reading.await {
        Ok(read) => read.expect("who waits wants it"),
        Err(error) => resume_unwind(error.into_panic()),
    }
}

#[expect(clippy::disallowed_methods, reason = "measures how long a read took")]
async fn read(source: &SourceConfig, rules: &EntryRules) -> SourceRead {
    let begun = Instant::now();
    let raw: RawRead = match &source.kind {
        SourceKind::Ldap(config) => ldap::read(config, source).await,
        SourceKind::Ldif(config) => ldif::read(config, source).await,
        SourceKind::Keycloak(config) => keycloak::read(config, source).await,
    };
    let mut read = assemble(source, raw, rules);
    read.took = begun.elapsed();
    read
}
