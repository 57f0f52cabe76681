//! A server that tells each change when it happens (RFC 4533, refreshAndPersist): one task for a source, which keeps its
//! mirror fresh and says when it changed.
//!
//! What is kept is up to date as long as the connection answers: a heartbeat asks for something else beside the searches,
//! for a search that waits looks the same on a wire that was cut. Without it the source is read by its changes or in full
//! in each cycle, as others are, while the task tries again.

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

/// A change seldom comes alone (a tool is two entries): what comes within this is one. Nobody notices it.
const SETTLES: Duration = Duration::from_millis(50);
/// How often the server is asked whether it is there. A dead one is known after this and the source's `timeout`.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// How often it is looked whether somebody else replaced what is kept.
const LOOK: Duration = Duration::from_secs(1);
/// Between two connections, doubled each time: a server that restarts is there within the first, and one that is away
/// for a day is not asked more often than by the cycles.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// A connection that held so long was good: the next pause is the first again.
const GOOD: Duration = Duration::from_mins(1);

/// Follows `source` for ever; drop it to end it. `changed` is told whenever the mirror is another, after it is kept.
pub async fn follow(source: SourceConfig, memory: SyncCache, changed: Arc<Notify>) {
    let SourceKind::Ldap(config) = &source.kind else { return };
    let _ended = Ended { memory: &memory, source: &source.name };
    let mut pause = FIRST_PAUSE;
    loop {
        let began = now();
        let Err(why) = follow_once(config, &source, &memory, &changed).await;
        memory.stop_following(&source.name);
        if now() - began > GOOD {
            pause = FIRST_PAUSE;
        }
        tracing::warn!(source = source.name, why, again_in = ?pause, "the server does not push changes; polling for them");
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Reports that the source is no longer followed, however following ended.
struct Ended<'a> {
    memory: &'a SyncCache,
    source: &'a str,
}

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.memory.stop_following(self.source);
    }
}

/// Over one connection, until it ends: why, for people.
async fn follow_once(
    config: &LdapConfig,
    source: &SourceConfig,
    memory: &SyncCache,
    changed: &Notify,
) -> Result<Infallible, String> {
    let servers = memory.servers(&source.name);
    let mut connection = Search::new(&servers).open(config, source).await.map_err(|raw| why(&raw))?;
    let server = connection.server.clone();
    let known = match memory.of(source).filter(|kept| kept.server == server) {
        Some(known) => known,
        None => begun(config, source, memory, &server, &servers).await?,
    };
    let mut following =
        Following { source, memory, changed, server: &server, known, trees: BTreeMap::new(), live: false };
    let Err(error) = following.run(config, &mut connection).await;
    if !following.live && !error.ends_connection() {
        // What is kept may be why.
        memory.forget(&source.name, &following.known);
    }
    let error = connection.diagnose(error).await;
    Err(format!("{server}: {}", chain(&error)))
}

/// The beginning: all that there is, and from where on changes are told.
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

/// Why there is nothing to follow.
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
    /// What was told since `known`.
    trees: BTreeMap<AccountKind, Told>,
    /// `known` is what is kept, and up to date.
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
                    // Whatever has come with it.
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
            let told = Told::since(Some(&self.known), kind);
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

    /// Keeps what was told.
    fn keep(&mut self) -> Result<(), ReadError> {
        self.look()?;
        if !self.live {
            believe(&self.known, &self.trees)?;
            if self.trees.values().any(|told| told.news.is_by_silence()) {
                return Err(ReadError::Answer("the server does not report deleted entries".to_owned()));
            }
        }
        let trees: BTreeMap<_, _> = self.trees.iter_mut().map(|(kind, told)| (*kind, told.next())).collect();
        let is_news = trees.iter().any(|(kind, told)| self.known.mirror.is_changed_by(*kind, &told.news));
        self.known = Arc::new(taken(self.source, self.server, &self.known, trees)?);
        self.memory.follow(&self.source.name, Arc::clone(&self.known));
        if !self.live {
            tracing::info!(source = self.source.name, server = self.server, "the server pushes changes");
        }
        if is_news || !self.live {
            self.changed.notify_one();
        }
        self.live = true;
        Ok(())
    }

    /// A comparison with a full read may have found that what is kept is wrong.
    fn look(&self) -> Result<(), ReadError> {
        if self.live && !self.memory.holds(&self.source.name, &self.known) {
            return Err(ReadError::Answer("the pushed changes are inconsistent and are read again".to_owned()));
        }
        Ok(())
    }
}

type Items<'s> = BoxStream<'s, (AccountKind, Result<ResultEntry, ReadError>)>;

/// Ends when the server does not answer. It is asked how far it is: what it tells meanwhile is as new.
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

#[expect(clippy::disallowed_methods, reason = "when to look again is no decision about the directory")]
fn now() -> Instant {
    Instant::now()
}
