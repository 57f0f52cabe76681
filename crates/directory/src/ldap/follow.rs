//! Follows a server that pushes each change (RFC 4533, refreshAndPersist). One task for each source keeps the mirror up
//! to date and reports its changes.
//!
//! The cache is up to date as long as the connection answers. A heartbeat sends other requests on the same connection,
//! because a search that waits for changes looks the same on a dead connection. While the task is not connected, each
//! cycle reads the source by its changes or in full, as it reads other sources.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bursar_core::errors::chain;
use bursar_core::identity::AccountKind;
use futures::stream::{BoxStream, select_all, unfold};
use futures::{FutureExt as _, StreamExt as _};
use ldap3::controls::RefreshMode;
use ldap3::{Ldap, ResultEntry};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

use super::connection::{Connection, ReadError, meaning};
use super::freshness::marks;
use super::search::Search;
use super::syncrepl::{Told, ask, believe, taken};
use crate::entry::assemble::{KINDS, RawRead};
use crate::source::{LdapConfig, SourceConfig, SourceKind};
use crate::sync::kept::{Kept, ServerHistory, SyncCache};

/// Changes that arrive within this time are taken together, because one change often consists of several (a tool has
/// two entries). The delay is too short to be noticed.
const SETTLES: Duration = Duration::from_millis(50);
/// How often the server is asked whether it is alive. A dead server is noticed after this time plus the source's
/// `timeout`.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// How often the task checks whether another read replaced the cache.
const LOOK: Duration = Duration::from_secs(1);
/// The pause between two connections; it doubles each time. A server that restarts is usually back within the first
/// pause, and a server that is away for a day is asked no more often than the cycles would ask it.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// A connection that lasted longer than this was good, so the next pause is [`FIRST_PAUSE`] again.
const GOOD: Duration = Duration::from_mins(1);

/// Follows `source` until the future is dropped. `changed` is notified after each change of the mirror has been stored.
/// No server is asked before the first read of the source, because that read says which servers are behind.
pub async fn follow(source: SourceConfig, memory: SyncCache, changed: Arc<Notify>) {
    let SourceKind::Ldap(config) = &source.kind else { return };
    let _ended = Ended { memory: &memory, source: &source.name };
    let mut pause = FIRST_PAUSE;
    loop {
        let Some(servers) = memory.servers(&source.name) else {
            sleep(FIRST_PAUSE).await;
            continue;
        };
        let began = now();
        let Err(why) = follow_once(config, &source, &memory, &servers, &changed).await;
        memory.stop_following(&source.name);
        if now() - began > GOOD {
            pause = FIRST_PAUSE;
        }
        tracing::warn!(source = source.name, why, again_in = ?pause, "the server does not push changes; polling for them");
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Reports on drop that the source is no longer followed.
struct Ended<'a> {
    memory: &'a SyncCache,
    source: &'a str,
}

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.memory.stop_following(self.source);
    }
}

/// Follows the source over one connection until it ends. Returns the reason as text.
async fn follow_once(
    config: &LdapConfig,
    source: &SourceConfig,
    memory: &SyncCache,
    servers: &ServerHistory,
    changed: &Notify,
) -> Result<Infallible, String> {
    let mut connection = Search::new(servers).open(config, source).await.map_err(|raw| why(&raw))?;
    let server = connection.server.clone();
    let found_wrong = memory.found_wrong(&source.name);
    let known = match memory.of(source).filter(|kept| kept.server == server) {
        Some(known) => known,
        None => begun(config, source, memory, &server, servers).await?,
    };
    let mut following =
        Following { source, memory, changed, server: &server, known, found_wrong, trees: BTreeMap::new(), live: false };
    let Err(error) = following.run(config, &mut connection).await;
    if !following.live && !error.ends_connection() {
        // The failure may be caused by the cache itself.
        memory.forget(&source.name);
    }
    let error = connection.diagnose(error).await;
    Err(format!("{server}: {}", chain(&error)))
}

/// Reads everything, and stores it with the cookies from which changes will be pushed.
async fn begun(
    config: &LdapConfig,
    source: &SourceConfig,
    memory: &SyncCache,
    server: &str,
    servers: &ServerHistory,
) -> Result<Arc<Kept>, String> {
    let kept = super::refresh(config, source, None, servers).await.map_err(|raw| match why(&raw) {
        none if none.is_empty() => format!("{server} does not push changes"),
        why => why,
    })?;
    if kept.server != server {
        return Err(format!("{} answers instead of {server}", kept.server));
    }
    let kept = Arc::new(kept);
    memory.keep(&source.name, Arc::clone(&kept));
    Ok(kept)
}

/// Returns the reasons why `raw` cannot be followed.
fn why(raw: &RawRead) -> String {
    let behind = raw.behind.iter().map(|(server, behind)| format!("{server} is behind: {}", behind.why));
    behind.chain(raw.problems.iter().cloned()).collect::<Vec<_>>().join("; ")
}

struct Following<'a> {
    source: &'a SourceConfig,
    memory: &'a SyncCache,
    changed: &'a Notify,
    server: &'a str,
    known: Arc<Kept>,
    /// How often the cache had been found wrong when `known` was taken from it.
    found_wrong: u64,
    /// The messages of the server since `known`, by tree.
    trees: BTreeMap<AccountKind, Told>,
    /// Whether `known` is in the cache, and is up to date.
    live: bool,
}

impl Following<'_> {
    async fn run(&mut self, config: &LdapConfig, connection: &mut Connection) -> Result<Infallible, ReadError> {
        let mut items = select_all(self.ask(config, connection).await?);
        let heartbeat = beat(connection.ldap.clone(), config, self.source, self.memory);
        tokio::pin!(heartbeat);
        let mut due = None;
        let mut look = tokio::time::interval(LOOK);
        loop {
            tokio::select! {
                item = items.next() => {
                    let (kind, item) = item.ok_or(ReadError::Closed)?;
                    self.take(kind, item?)?;
                    // Take everything that has arrived already.
                    while let Some(Some((kind, item))) = items.next().now_or_never() {
                        self.take(kind, item?)?;
                    }
                    if self.live {
                        due.get_or_insert_with(|| now() + SETTLES);
                    } else if self.trees.values().all(|told| told.refreshed) {
                        self.keep()?;
                    }
                }
                () = at(due) => {
                    due = None;
                    self.keep()?;
                }
                _ = look.tick() => self.look()?,
                Err(error) = &mut heartbeat => return Err(error),
            }
        }
    }

    async fn ask<'s>(&mut self, config: &LdapConfig, connection: &mut Connection) -> Result<Vec<Items<'s>>, ReadError> {
        let mut streams = Vec::new();
        for kind in KINDS {
            let Some(tree) = self.source.tree(kind) else { continue };
            let told = Told::since(self.source, Some(&self.known), kind);
            let mode = RefreshMode::RefreshAndPersist;
            let stream = ask(connection, self.source, (kind, tree), mode, told.cookie(), config.timeout).await?;
            self.trees.insert(kind, told);
            streams.push(
                unfold(Some(stream), move |stream| async move {
                    let mut stream = stream?;
                    match stream.next().await {
                        Ok(Some(item)) => Some(((kind, Ok(item)), Some(stream))),
                        Ok(None) => {
                            let answer = stream.finish().await;
                            Some(((kind, Err(ReadError::Answer(meaning(&answer)))), None))
                        }
                        Err(error) => Some(((kind, Err(ReadError::Lost(error))), None)),
                    }
                })
                .boxed(),
            );
        }
        Ok(streams)
    }

    fn take(&mut self, kind: AccountKind, item: ResultEntry) -> Result<(), ReadError> {
        self.trees.get_mut(&kind).map_or(Ok(()), |told| told.take(item))
    }

    /// Stores the messages of the server.
    fn keep(&mut self) -> Result<(), ReadError> {
        if !self.live {
            believe(&self.known, &self.trees)?;
            if self.trees.values().any(|told| told.news.is_by_silence()) {
                return Err(ReadError::Answer("the server does not report deleted entries".to_owned()));
            }
        }
        let trees: BTreeMap<_, _> = self.trees.iter_mut().map(|(kind, told)| (*kind, told.next())).collect();
        let is_news = trees.iter().any(|(kind, told)| self.known.mirror.is_changed_by(*kind, &told.news));
        self.known = Arc::new(taken(self.source, self.server, &self.known, trees)?);
        if !self.memory.follow(&self.source.name, Arc::clone(&self.known), self.found_wrong) {
            return Err(found_wrong());
        }
        if !self.live {
            tracing::info!(source = self.source.name, server = self.server, "the server pushes changes");
        }
        if is_news || !self.live {
            self.changed.notify_one();
        }
        self.live = true;
        Ok(())
    }

    /// Fails if the cache has been dropped, because a comparison with a full read found errors in it.
    fn look(&self) -> Result<(), ReadError> {
        if self.memory.found_wrong(&self.source.name) == self.found_wrong { Ok(()) } else { Err(found_wrong()) }
    }
}

fn found_wrong() -> ReadError {
    ReadError::Answer("the pushed changes are inconsistent and are read again".to_owned())
}

type Items<'s> = BoxStream<'s, (AccountKind, Result<ResultEntry, ReadError>)>;

/// Ends when the server does not answer. The heartbeat asks for the replication state and stores it. The pushed changes
/// are at least as new as this state.
async fn beat(
    mut ldap: Ldap,
    config: &LdapConfig,
    source: &SourceConfig,
    memory: &SyncCache,
) -> Result<Infallible, ReadError> {
    loop {
        sleep(HEARTBEAT).await;
        let shown = marks(&mut ldap, config, source).await?;
        memory.shown(&source.name, shown);
    }
}

async fn at(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}

#[expect(clippy::disallowed_methods, reason = "when to look again is not a decision about the directory")]
fn now() -> Instant {
    Instant::now()
}
