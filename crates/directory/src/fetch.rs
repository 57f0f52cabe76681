//! Reads all sources side by side and makes one [`DirectorySnapshot`] of their answers. Whatever happens to a source
//! is data in its own read; there is no error that could lose what another one answered.

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

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
use crate::progress::Counting;
use crate::source::SourceConfig;
use crate::sync::incremental;
use crate::sync::kept::{ServerHistory, SyncCache};

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

/// What the ledger knows of the servers of each source.
pub type Known = BTreeMap<String, LastRead>;

/// How far the servers of a source were.
#[derive(Debug, Clone, Default)]
pub struct LastRead {
    /// The server that answered last.
    pub server: String,
    /// How far it was.
    pub marks: Arc<Marks>,
}

/// One pass over `sources`, which are in their order of precedence. Accounts that expired before `now` are disabled.
/// Dropped, it ends all reads; what is kept of a source is then what it was.
///
/// # Panics
///
/// If the system gives no more threads.
pub async fn fetch(sources: &[SourceConfig], pass: &Pass, policy: &Policy, now: Timestamp) -> DirectorySnapshot {
    fetch_after(sources, pass, &Known::new(), policy, now).await
}

/// The same after what the ledger knows of the servers: one that is behind that is not used.
///
/// # Panics
///
/// If the system gives no more threads.
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
        apart(known.steps.clone(), async move || read(&source, &pass, &known, &rules).await)
    });
    let reads = join_all(reads).await;
    merge::merge(reads, policy)
}

/// What is known of the servers of `source` before one is asked.
pub(crate) fn servers(source: &SourceConfig, pass: &Pass, known: &Known) -> ServerHistory {
    let known = known.get(&source.name).cloned().unwrap_or_default();
    match pass {
        Pass::Once => ServerHistory::after(known),
        Pass::Changes(memory) | Pass::Whole(memory) => memory.know(&source.name, known),
    }
}

/// Runs `asking` on a thread of its own, and counts its pages in `steps`. A connection and its reader hand each other every
/// entry, and waking another thread each time takes longer than reading it; and nothing else of the daemon waits while many
/// are checked. If it is dropped, `asking` ends.
pub(crate) async fn apart<T, A>(steps: Option<Arc<AtomicU64>>, asking: A) -> T
where
    T: Send + 'static,
    A: AsyncFnOnce() -> T + Send + 'static,
{
    let (_wanted, mut unwanted) = oneshot::channel::<()>();
    let asking = spawn_blocking(move || {
        let runtime = runtime::Builder::new_current_thread().enable_all().build().expect("a runtime on this thread");
        let _counting = Counting::into(steps);
        let answer = runtime.block_on(async {
            tokio::select! {
                answer = asking() => Some(answer),
                _ = &mut unwanted => None,
            }
        });
        // A name that is still being resolved (getaddrinfo, on a thread of its own) is not waited for.
        runtime.shutdown_background();
        answer
    });
    match asking.await {
        Ok(answer) => answer.expect("who waits wants it"),
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

/// The read that took longer than it may: nothing of it is left.
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
