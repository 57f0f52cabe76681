//! The directories that are read: which of them a cycle asks, how much, and which tell their changes by themselves.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use jiff::Timestamp;
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

use super::reads::{Patience, Question, Reads};
use super::realm::with_made;
use crate::ledger::server::SourceMark;
use crate::ledger::{LedgerState, transition};
use crate::merge::merge;
use crate::orders::request::Trigger;
use crate::policy::{Policy, Realm};
use crate::snapshot::{Comparison, DirectorySnapshot, SourceRead};
use bursar_directory::ldap::follow::follow;
use bursar_directory::{Known, LastRead, Pass, SourceConfig, SyncCache};

/// See the module.
pub struct Directories {
    sources: Vec<SourceConfig>,
    /// What is known of them between two cycles.
    cache: Option<SyncCache>,
    /// Those whose servers tell their changes.
    followers: Vec<Follower>,
    changed: Arc<Notify>,
    /// Reads that are under way.
    reads: Reads,
}

/// A task that keeps what is known of a directory fresh; it ends with its runtime.
struct Follower {
    source: SourceConfig,
    _task: AbortOnDropHandle<()>,
}

/// What a read of the directories needs to know of all else.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    pub(crate) ledger: &'a LedgerState,
    pub(crate) policy: &'a Policy,
    /// The realm that is written to: who of it was made by us is no entry of it.
    pub(crate) realm: Option<&'a Realm>,
    pub(crate) now: Timestamp,
}

impl Directories {
    /// `steps` counts the pages of reads, so that one that hangs can be told from one that is long.
    pub(super) fn of(sources: Vec<SourceConfig>, steps: Arc<AtomicU64>) -> Self {
        Self {
            sources,
            cache: Some(SyncCache::counting(steps)),
            followers: Vec::new(),
            changed: Arc::new(Notify::new()),
            reads: Reads::default(),
        }
    }

    pub(super) fn keep_nothing(&mut self) {
        self.cache = None;
    }

    pub(super) fn reload(&mut self, sources: Vec<SourceConfig>) {
        self.sources = sources;
    }

    /// Lets each server be bound to again at once: an administrator says that the password is right now.
    pub(crate) fn forget_refusals(&self) {
        if let Some(cache) = &self.cache {
            cache.forget_refusals();
        }
    }

    /// Notified whenever a directory reports a change.
    #[must_use]
    pub fn changed(&self) -> Arc<Notify> {
        Arc::clone(&self.changed)
    }

    /// Lets the servers tell their changes of the sources that are configured so, as they are configured now.
    pub fn follow(&mut self) {
        let Some(cache) = &self.cache else { return };
        let wanted = |source: &SourceConfig| source.persists() && self.sources.contains(source);
        self.followers.retain(|follower| wanted(&follower.source));
        for source in self.sources.iter().filter(|source| source.persists()) {
            if !self.followers.iter().any(|follower| follower.source == *source) {
                let task = follow(source.clone(), cache.clone(), Arc::clone(&self.changed));
                let task = AbortOnDropHandle::new(tokio::spawn(task));
                self.followers.push(Follower { source: source.clone(), _task: task });
            }
        }
    }

    /// Reads those that a cycle asks; on schedule those that are due. Those that take longer than others are left to a cycle of
    /// their own then. If it is dropped, what is under way goes on.
    pub(crate) async fn read(&self, trigger: Trigger, reader: Reader<'_>) -> DirectorySnapshot {
        let (due, unasked) = self.due(trigger, reader);
        self.reads.keep(&self.sources);
        let pass = self.pass(trigger);
        for source in due {
            let Some(asked) = self.sources.iter().find(|asked| asked.name == source.name) else { continue };
            let (policy, changed) = (reader.policy.clone(), Arc::clone(&self.changed));
            let (pass, known) = (pass.clone(), known(reader.ledger));
            self.reads.begin(Question { asked, source, pass, known, policy, now: reader.now, changed });
        }
        // Who asks for a cycle waits for all sources; what begins by itself leaves the slow ones to a cycle of their own. The
        // schedule never waits for what anybody on the host asked for.
        let patience = match trigger {
            Trigger::Sync | Trigger::Order => Patience::Endless,
            Trigger::Login => Patience::FromStart,
            _ => Patience::AfterAnswer,
        };
        let wanted = self.sources.iter().map(|source| source.name.clone()).filter(|name| !unasked.contains(name));
        let wanted: BTreeSet<String> = wanted.collect();
        self.reads.wait(&wanted, patience).await;
        let confirmed = async |reads: Vec<SourceRead>| {
            let mut snapshot = merge(reads, reader.policy);
            let answered: BTreeSet<String> = snapshot.reads.iter().map(|read| read.source.clone()).collect();
            snapshot.unasked = unasked.union(&wanted).filter(|source| !answered.contains(*source)).cloned().collect();
            confirm(&self.sources, &pass, reader, &mut snapshot).await;
            snapshot
        };
        let snapshot = self.reads.take(&self.sources, confirmed).await;
        tell_repairs(&snapshot);
        snapshot
    }

    /// Reads `sources` as another configuration has them, for a preview. What is known of those in force stays as it is.
    pub(crate) async fn read_others(&self, sources: &[SourceConfig], reader: Reader<'_>) -> DirectorySnapshot {
        if *sources == *self.sources {
            return self.read_all(reader).await;
        }
        preview(sources, &Pass::Once, reader).await
    }

    /// Reads all of them, for a preview.
    pub(crate) async fn read_all(&self, reader: Reader<'_>) -> DirectorySnapshot {
        preview(&self.sources, &self.pass(Trigger::Schedule), reader).await
    }

    /// How much a cycle asks its directories for.
    fn pass(&self, trigger: Trigger) -> Pass {
        match (&self.cache, trigger) {
            (None, _) => Pass::Once,
            (Some(cache), Trigger::FullRead) => Pass::Whole(cache.clone()),
            (Some(cache), _) => Pass::Changes(cache.clone()),
        }
    }

    /// The sources that a cycle asks, and the names of the others. `Trigger::Change` asks only sources that tell their
    /// changes. A scheduled cycle leaves out a source with an interval until that is over, and one for a login what was
    /// asked lately. A cycle that an administrator asks for, or that is to answer what only a read can, asks all.
    fn due(&self, trigger: Trigger, reader: Reader<'_>) -> (Vec<SourceConfig>, BTreeSet<String>) {
        let waits = reader.ledger.waits_for_a_read();
        let is_live = |source: &SourceConfig| self.cache.as_ref().is_some_and(|cache| cache.live(source).is_some());
        let is_due = |source: &&SourceConfig| match trigger {
            Trigger::Change if !waits => is_live(source) || self.reads.has_answered(&source.name),
            Trigger::Schedule if !waits => {
                let known = reader.ledger.sources.get(&source.name);
                known.is_none_or(|read| read.is_due(source.interval(), reader.now))
            }
            Trigger::Login if !waits => {
                let known = reader.ledger.sources.get(&source.name);
                known.is_none_or(|read| read.is_due_for_logins(reader.now))
            }
            _ => true,
        };
        let (due, others): (Vec<_>, Vec<_>) = self.sources.iter().partition(is_due);
        (
            due.into_iter().map(|source| as_read(source, reader)).collect(),
            others.into_iter().map(|source| source.name.clone()).collect(),
        )
    }
}

/// How far the servers of each source were.
async fn preview(sources: &[SourceConfig], pass: &Pass, reader: Reader<'_>) -> DirectorySnapshot {
    let all: Vec<SourceConfig> = sources.iter().map(|source| as_read(source, reader)).collect();
    let known = known(reader.ledger);
    let mut snapshot = bursar_directory::fetch_after(&all, pass, &known, reader.policy, reader.now).await;
    confirm(&all, pass, reader, &mut snapshot).await;
    snapshot
}

fn known(ledger: &LedgerState) -> Known {
    let last = |mark: &SourceMark| LastRead { server: mark.server.clone(), marks: Arc::new(mark.marks.clone()) };
    ledger.marks.iter().map(|(source, mark)| (source.clone(), last(mark))).collect()
}

/// Asks the servers for each account alone whose absence would be due.
async fn confirm(sources: &[SourceConfig], pass: &Pass, reader: Reader<'_>, snapshot: &mut DirectorySnapshot) {
    let due = transition::due(reader.ledger, snapshot, reader.policy, reader.now);
    Box::pin(bursar_directory::confirm(sources, pass, &known(reader.ledger), &due, snapshot)).await;
}

fn as_read(source: &SourceConfig, reader: Reader<'_>) -> SourceConfig {
    with_made(source, reader.realm, reader.ledger)
}

/// Says in the journal what a full read found that no change had told.
fn tell_repairs(snapshot: &DirectorySnapshot) {
    for read in &snapshot.reads {
        let Some(Comparison { differences, examples }) = &read.compared else { continue };
        if *differences > 0 {
            let examples = examples.join(", ");
            tracing::warn!(source = read.source, differences, examples, "a full read differs from the changes");
        } else {
            tracing::info!(source = read.source, "a full read shows what the changes made");
        }
    }
}
