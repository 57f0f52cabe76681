//! The directories that are read: which of them a cycle asks, how much, and which tell their changes by themselves.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

use super::realm::with_made;
use crate::ledger::LedgerState;
use crate::orders::request::Trigger;
use crate::policy::{Policy, Realm};
use crate::snapshot::{Comparison, DirectorySnapshot};
use bursar_directory::ldap::follow::follow;
use bursar_directory::{Pass, SourceConfig, SyncCache};

/// See the module.
pub struct Directories {
    sources: Vec<SourceConfig>,
    /// What is known of them between two cycles.
    cache: Option<SyncCache>,
    /// Those whose servers tell their changes.
    followers: Vec<Follower>,
    changed: Arc<Notify>,
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
    pub(super) fn of(sources: Vec<SourceConfig>) -> Self {
        Self { sources, cache: Some(SyncCache::default()), followers: Vec::new(), changed: Arc::new(Notify::new()) }
    }

    pub(super) fn keep_nothing(&mut self) {
        self.cache = None;
    }

    pub(super) fn reload(&mut self, sources: Vec<SourceConfig>) {
        self.sources = sources;
    }

    /// Notified whenever a directory has told of a change.
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

    /// Reads those that a cycle asks; on schedule those that are due.
    pub(crate) async fn read(&self, trigger: Trigger, reader: Reader<'_>) -> DirectorySnapshot {
        let (due, unasked) = self.due(trigger, reader);
        let read = bursar_directory::fetch(&due, &self.pass(trigger), reader.policy, reader.now).await;
        tell_repairs(&read);
        DirectorySnapshot { unasked, ..read }
    }

    /// Reads all of them, for a preview.
    pub(crate) async fn read_all(&self, reader: Reader<'_>) -> DirectorySnapshot {
        let all: Vec<SourceConfig> = self.sources.iter().map(|source| as_read(source, reader)).collect();
        bursar_directory::fetch(&all, &self.pass(Trigger::Sync), reader.policy, reader.now).await
    }

    /// How much a cycle asks its directories for.
    fn pass(&self, trigger: Trigger) -> Pass {
        match (&self.cache, trigger) {
            (None, _) => Pass::Once,
            (Some(cache), Trigger::FullRead) => Pass::Whole(cache.clone()),
            (Some(cache), _) => Pass::Changes(cache.clone()),
        }
    }

    /// The sources that a cycle asks, and the names of the others. `Trigger::Change` asks those that tell their changes. On
    /// schedule, one with an interval is left out until that is over; whoever asks for a cycle, or for what only a read can
    /// answer, asks all.
    fn due(&self, trigger: Trigger, reader: Reader<'_>) -> (Vec<SourceConfig>, BTreeSet<String>) {
        let waits = reader.ledger.orders.iter().any(|order| order.what.is_of_reads());
        let is_live = |source: &SourceConfig| self.cache.as_ref().is_some_and(|cache| cache.live(source).is_some());
        let is_due = |source: &&SourceConfig| match trigger {
            Trigger::Change if !waits => is_live(source),
            Trigger::Schedule if !waits => {
                let known = reader.ledger.sources.get(&source.name);
                known.is_none_or(|read| read.is_due(source.interval(), reader.now))
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
