//! Reads all sources side by side and makes one [`DirectorySnapshot`] of their answers. Whatever happens to a source
//! is data in its own read; there is no error that could lose what another one answered.

use std::panic::resume_unwind;
use std::sync::Arc;

use bursar_core::merge;
use bursar_core::policy::Policy;
use bursar_core::snapshot::{DirectorySnapshot, SourceRead};
use futures::future::join_all;
use jiff::Timestamp;
use tokio::runtime;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use crate::entry::EntryRules;
use crate::entry::assemble::assemble;
use crate::source::SourceConfig;
use crate::sync::incremental;
use crate::sync::kept::SyncCache;

/// How much a pass asks for.
#[derive(Debug, Clone)]
pub enum Pass {
    /// All, and nothing of it is kept: what a command does that runs once.
    Once,
    /// What changed since the last pass, where a source can say so.
    Changes(SyncCache),
    /// All, compared with what its changes have made of it.
    Whole(SyncCache),
}

/// One pass over `sources`, which are in their order of precedence. Accounts that expired before `now` are disabled.
/// Dropped, it ends all reads; what is kept of a source is then what it was.
///
/// # Panics
///
/// If the system gives no more threads.
pub async fn fetch(sources: &[SourceConfig], pass: &Pass, policy: &Policy, now: Timestamp) -> DirectorySnapshot {
    let rules = Arc::new(EntryRules::of(policy, now));
    let reads = join_all(sources.iter().map(|source| apart(source.clone(), pass.clone(), Arc::clone(&rules)))).await;
    merge::merge(reads, policy)
}

/// Reads `source` on a thread of its own. A connection and its reader hand each other every entry, and waking another
/// thread each time takes longer than reading it; and nothing else of the daemon waits while many are checked.
async fn apart(source: SourceConfig, pass: Pass, rules: Arc<EntryRules>) -> SourceRead {
    let (_wanted, mut unwanted) = oneshot::channel::<()>();
    let reading = spawn_blocking(move || {
        let runtime = runtime::Builder::new_current_thread().enable_all().build().expect("a runtime on this thread");
        runtime.block_on(async {
            tokio::select! {
                read = read(&source, &pass, &rules) => Some(read),
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
async fn read(source: &SourceConfig, pass: &Pass, rules: &EntryRules) -> SourceRead {
    let begun = Instant::now();
    let mut read = match pass {
        Pass::Once => assemble(source, incremental::full(source).await, rules),
        Pass::Changes(memory) => incremental::changes(source, memory, rules).await,
        Pass::Whole(memory) => incremental::whole(source, memory, rules).await,
    };
    read.took = begun.elapsed();
    read
}
