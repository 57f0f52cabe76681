//! Reads all sources in parallel and merges their answers into one [`DirectorySnapshot`]. A failure of a source is
//! recorded in its own read; no error can discard what another source answered.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::resume_unwind;
use std::sync::Arc;

use bursar_core::ledger::LedgerState;
use bursar_core::merge;
use bursar_core::policy::Policy;
use bursar_core::snapshot::freshness::Marks;
use bursar_core::snapshot::{DirectorySnapshot, SourceRead};
use futures::future::join_all;
use jiff::Timestamp;
use tokio::runtime;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};

use crate::entry::EntryRules;
use crate::entry::assemble::{RawRead, assemble};
use crate::progress::{Counters, Counting};
use crate::source::SourceConfig;
use crate::sync::incremental;
use crate::sync::kept::{ServerHistory, SyncCache};

/// How much a pass reads.
#[derive(Debug, Clone)]
pub enum Pass {
    /// Everything, without a cache: for a command that runs once.
    Once,
    /// The changes since the last pass, if the source can report them.
    Changes(SyncCache),
    /// Everything. Afterwards the cache, which was built from changes, is compared with the result.
    Whole(SyncCache),
}

impl Pass {
    /// Returns what is cached between two passes.
    #[must_use]
    pub const fn cache(&self) -> Option<&SyncCache> {
        match self {
            Self::Once => None,
            Self::Changes(cache) | Self::Whole(cache) => Some(cache),
        }
    }
}

/// The ledger's knowledge of the servers of each source, by the source's name.
pub type Known = BTreeMap<String, LastRead>;

/// The replication state that the servers of a source showed last.
#[derive(Debug, Clone, Default)]
pub struct LastRead {
    /// The server that answered last.
    pub server: String,
    /// Its replication state.
    pub marks: Arc<Marks>,
    /// The present time.
    pub now: Timestamp,
}

/// Reads `sources`, which are in order of precedence, and merges the reads without a ledger. Accounts that expired
/// before `now` are disabled. If the future is dropped, all reads end, and the caches stay as they were.
///
/// # Panics
///
/// If the system can start no more threads.
pub async fn fetch(sources: &[SourceConfig], pass: &Pass, policy: &Policy, now: Timestamp) -> DirectorySnapshot {
    let known = Known::new();
    let DirectorySnapshot { reads, .. } = Box::pin(fetch_after(sources, pass, &known, policy, now)).await;
    merge::merge(reads, BTreeSet::new(), policy, &LedgerState::default())
}

/// Like [`fetch`], with two differences. A server that is behind the state in the ledger is not used. The reads are not
/// merged yet, because the merge depends on the ledger (for example, on the account that has a name already), and the
/// ledger may change until the last source has answered.
///
/// # Panics
///
/// If the system can start no more threads.
pub async fn fetch_after(
    sources: &[SourceConfig],
    pass: &Pass,
    known: &Known,
    policy: &Policy,
    now: Timestamp,
) -> DirectorySnapshot {
    let rules = EntryRules::of(policy, now);
    let reads = sources.iter().map(|source| {
        let (source, pass, known) = (source.clone(), pass.clone(), servers(source, pass, known));
        let rules = EntryRules { ids: known.marks.ids, ..rules.clone() };
        apart(known.counters.clone(), async move || read(&source, &pass, &known, &rules).await)
    });
    DirectorySnapshot { reads: join_all(reads).await, ..DirectorySnapshot::default() }
}

/// Returns what is known about the servers of `source` before a server is asked.
pub(crate) fn servers(source: &SourceConfig, pass: &Pass, known: &Known) -> ServerHistory {
    let known = known.get(&source.name).cloned().unwrap_or_default();
    match pass {
        Pass::Once => ServerHistory::after(known),
        Pass::Changes(memory) | Pass::Whole(memory) => memory.know(&source.name, known),
    }
}

/// Runs `asking` on its own thread and counts its pages in `counters`. A connection hands every entry to its reader,
/// and waking another thread for each entry takes longer than reading it. On a thread of its own, the check of many
/// entries also delays nothing else in the daemon. If the future is dropped, `asking` ends.
pub(crate) async fn apart<T, A>(counters: Counters, asking: A) -> T
where
    T: Send + 'static,
    A: AsyncFnOnce() -> T + Send + 'static,
{
    let (_wanted, mut unwanted) = oneshot::channel::<()>();
    let asking = spawn_blocking(move || {
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime for this thread can be built");
        let _counting = Counting::into(counters);
        let answer = runtime.block_on(async {
            tokio::select! {
                answer = asking() => Some(answer),
                _ = &mut unwanted => None,
            }
        });
        // A name that is still being resolved (`getaddrinfo`, on its own thread) is not waited for.
        runtime.shutdown_background();
        answer
    });
    match asking.await {
        Ok(answer) => answer.expect("`asking` is only cancelled if this future is dropped"),
        Err(error) => resume_unwind(error.into_panic()),
    }
}

#[expect(clippy::disallowed_methods, reason = "measures how long a read took")]
async fn read(source: &SourceConfig, pass: &Pass, known: &ServerHistory, rules: &EntryRules) -> SourceRead {
    let begun = Instant::now();
    let reading = read_by(source, pass, known, rules);
    let mut read = match timeout(source.deadline(), reading).await {
        Ok(read) => read,
        Err(_) => late(source, rules),
    };
    read.took = begun.elapsed();
    read
}

/// Returns the read of a source that exceeded its deadline. It contains no entries.
fn late(source: &SourceConfig, rules: &EntryRules) -> SourceRead {
    let limit = humantime::format_duration(source.deadline());
    assemble(source, RawRead { problems: vec![format!("not read within {limit}")], ..RawRead::default() }, rules)
}

async fn read_by(source: &SourceConfig, pass: &Pass, known: &ServerHistory, rules: &EntryRules) -> SourceRead {
    match pass {
        Pass::Once => assemble(source, incremental::full(source, known).await, rules),
        Pass::Changes(memory) => incremental::changes(source, memory, known, rules).await,
        Pass::Whole(memory) => incremental::whole(source, memory, known, rules).await,
    }
}
