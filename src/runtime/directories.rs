//! Reads the directories: decides which directories a cycle reads, and whether it reads all entries or only changes.
//! Also follows the directories that report their changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use jiff::Timestamp;
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

use super::lookups::{self, LookUps};
use super::reads::{Patience, ReadProgress, ReadRequest, Reads};
use super::realm::with_made;
use crate::ledger::server::SourceMark;
use crate::ledger::{LedgerState, transition};
use crate::merge::merge;
use crate::orders::request::Trigger;
use crate::policy::{Policy, Realm};
use crate::snapshot::{Comparison, DirectorySnapshot, SourceRead};
use bursar_directory::ldap::follow::follow;
use bursar_directory::{Known, LastRead, Pass, SourceConfig, SyncCache};

/// Requests for the present state of sources: the number of the request, by source. 0 means that nobody asked.
pub(crate) type ReadRequests = BTreeMap<String, u64>;

pub struct Directories {
    sources: Vec<SourceConfig>,
    /// What is cached of the sources between two cycles.
    cache: Option<SyncCache>,
    /// The tasks of sources whose servers report their changes.
    followers: Vec<Follower>,
    changed: Arc<Notify>,
    /// The reads in progress.
    reads: Reads,
    lookups: LookUps,
    /// Whether later cycles take the answers that come late.
    has_later_cycles: bool,
}

/// A task that keeps the cache of a source up to date. It ends with the runtime.
struct Follower {
    source: SourceConfig,
    _task: AbortOnDropHandle<()>,
}

/// The other state that a read of the directories needs.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    pub(crate) ledger: &'a LedgerState,
    pub(crate) policy: &'a Policy,
    /// The realm that Bursar writes to. Users that Bursar made there are not entries of the directory.
    pub(crate) realm: Option<&'a Realm>,
    pub(crate) now: Timestamp,
}

impl Directories {
    /// `steps` is incremented for each page that is read. It distinguishes a hung read from a slow one.
    pub(super) fn of(sources: Vec<SourceConfig>, steps: Arc<AtomicU64>) -> Self {
        Self {
            sources,
            cache: Some(SyncCache::counting(steps)),
            followers: Vec::new(),
            changed: Arc::new(Notify::new()),
            reads: Reads::default(),
            lookups: LookUps::default(),
            has_later_cycles: false,
        }
    }

    /// Limits how long `Trigger::Sync` and `Trigger::Order` wait for a slow source, because a later cycle takes its
    /// answer.
    pub(crate) fn expect_later_cycles(&mut self) {
        self.has_later_cycles = true;
    }

    pub(super) fn keep_nothing(&mut self) {
        self.cache = None;
    }

    pub(super) fn reload(&mut self, sources: Vec<SourceConfig>) {
        self.sources = sources;
    }

    /// Allows a bind to each server at once, because an administrator says that the password has been corrected.
    pub(crate) fn forget_refusals(&self) {
        if let Some(cache) = &self.cache {
            cache.forget_refusals();
        }
    }

    /// Records that `bursar sync` asks for the present state of all sources. If one of them is being read, another read
    /// follows. Returns the number of the request for each source.
    pub(crate) fn request_all(&self) -> ReadRequests {
        self.request(false, |_| true)
    }

    /// Like [`Self::request_all`], for the sources whose reads an order waits for. The order is not carried out from
    /// the answer of a read that began before the request.
    pub(crate) fn request_for_order(&self, is_asked: impl Fn(&str) -> bool) -> ReadRequests {
        self.request(true, is_asked)
    }

    fn request(&self, is_order: bool, is_asked: impl Fn(&str) -> bool) -> ReadRequests {
        let asked = self.sources.iter().map(|source| &source.name).filter(|source| is_asked(source));
        let request = |source: &String| {
            self.lookups.forget(source);
            (source.clone(), self.reads.request(source, is_order))
        };
        asked.map(request).collect()
    }

    /// Returns those of `requests` that are not answered yet. A source that is no longer configured will not answer.
    pub(crate) fn outstanding(&self, requests: &ReadRequests) -> ReadRequests {
        let is_outstanding = |source: &str, request: u64| {
            self.sources.iter().any(|known| known.name == source) && self.reads.is_outstanding(source, request)
        };
        let outstanding = requests.iter().filter(|(source, request)| is_outstanding(source, **request));
        outstanding.map(|(source, request)| (source.clone(), *request)).collect()
    }

    /// Whether a read is to begin at once, see [`Reads::is_due`].
    pub(crate) fn has_due_reads(&self) -> bool {
        self.sources.iter().any(|source| self.reads.is_due(&source.name))
    }

    /// Returns the sources that have no answer in `snapshot` and whose reads are in progress. The request numbers are
    /// 0, because the result is not a request of an administrator.
    pub(crate) fn still_reading(&self, snapshot: &DirectorySnapshot) -> ReadRequests {
        let reading = snapshot.unasked.iter().filter(|source| self.reads.is_in_progress(source));
        reading.map(|source| (source.clone(), 0)).collect()
    }

    /// Returns the progress of the reads.
    pub(crate) fn progress(&self) -> ReadProgress {
        self.reads.progress()
    }

    /// Notified whenever a directory reports a change.
    #[must_use]
    pub fn changed(&self) -> Arc<Notify> {
        Arc::clone(&self.changed)
    }

    /// Follows the sources that are configured to report their changes, and stops following all others.
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

    /// Reads the sources that the cycle asks. A slow source does not delay the others: another cycle takes its answer.
    /// If the returned future is dropped, the reads go on.
    pub(crate) async fn read(&self, trigger: Trigger, reader: Reader<'_>) -> DirectorySnapshot {
        self.reads.keep(&self.sources, reader.policy);
        let (due, unasked) = self.due(trigger, reader);
        let pass = self.pass(trigger);
        for source in due {
            let Some(asked) = self.sources.iter().find(|asked| asked.name == source.name) else { continue };
            let (policy, changed) = (reader.policy.clone(), Arc::clone(&self.changed));
            let (pass, known) = (pass.clone(), known(reader));
            self.reads.begin(ReadRequest { asked, source, pass, known, policy, now: reader.now, changed });
        }
        // A login waits only briefly, because any user on the host can cause one. A cycle for an order or a change may
        // ask only one source. If only one source is asked, `AfterAnswer` has no earlier answer to count from, so the
        // wait counts from the start of the read.
        let patience = match trigger {
            Trigger::Sync | Trigger::Order if !self.has_later_cycles => Patience::Endless,
            Trigger::Login | Trigger::Order | Trigger::Change => Patience::FromStart,
            _ => Patience::AfterAnswer,
        };
        let wanted = self.sources.iter().map(|source| source.name.clone()).filter(|name| !unasked.contains(name));
        let wanted: BTreeSet<String> = wanted.collect();
        self.reads.wait(&wanted, patience).await;
        let confirmed = async |reads: Vec<SourceRead>, outdated: BTreeSet<String>| {
            let answered: BTreeSet<String> = reads.iter().map(|read| read.source.clone()).collect();
            let others = unasked.union(&wanted).filter(|source| !answered.contains(*source)).cloned().collect();
            let mut snapshot = merge(reads, others, reader.policy, reader.ledger);
            snapshot.outdated = outdated;
            let due = transition::due(reader.ledger, &snapshot, reader.policy, reader.now);
            // A command that runs once has no later cycle.
            let patience = if self.cache.is_none() { Patience::Endless } else { patience };
            let (sources, pass, known) = (&self.sources, &pass, known(reader));
            let changed = Arc::clone(&self.changed);
            let question = lookups::LookUpRequest { sources, pass, known, due, patience, changed };
            self.lookups.confirm(question, &mut snapshot).await;
            snapshot
        };
        // The answer that is taken now may be older than the last change, for example if an order interrupted an
        // earlier cycle.
        let is_behind =
            |source: &SourceConfig| self.cache.as_ref().is_some_and(|cache| self.reads.is_behind(source, cache));
        if self.sources.iter().any(is_behind) {
            self.changed.notify_one();
        }
        let snapshot = self.reads.take(&self.sources, confirmed).await;
        tell_repairs(&snapshot);
        snapshot
    }

    /// Reads `sources` of another configuration, for a preview. The cache of the sources in force stays unchanged.
    pub(crate) async fn read_others(&self, sources: &[SourceConfig], reader: Reader<'_>) -> DirectorySnapshot {
        if *sources == *self.sources {
            return self.read_all(reader).await;
        }
        preview(sources, &Pass::Once, reader).await
    }

    /// Reads all sources, for a preview.
    pub(crate) async fn read_all(&self, reader: Reader<'_>) -> DirectorySnapshot {
        preview(&self.sources, &self.pass(Trigger::Schedule), reader).await
    }

    /// Returns whether a cycle reads everything or only the changes.
    fn pass(&self, trigger: Trigger) -> Pass {
        match (&self.cache, trigger) {
            (None, _) => Pass::Once,
            (Some(cache), Trigger::FullRead) => Pass::Whole(cache.clone()),
            (Some(cache), _) => Pass::Changes(cache.clone()),
        }
    }

    /// Returns the sources that a cycle asks, and the names of the others. Every cycle asks the sources for which a
    /// read was requested. Cycles for orders, drift and pace ask no others. `Trigger::Change` also asks sources that
    /// report their changes or have answered meanwhile. A scheduled cycle skips a source until its interval is over,
    /// unless an order waits for it. A cycle for a login skips a source that was read recently. All other cycles ask
    /// all sources.
    ///
    /// If another read of a source was requested while a read was in progress, the next cycle of any kind after that
    /// read begins it. If the order is still not carried out after the other read, the next scheduled cycle reads the
    /// source again. If `Trigger::Change` did this, two slow sources would cause each other's reads without a pause.
    fn due(&self, trigger: Trigger, reader: Reader<'_>) -> (Vec<SourceConfig>, BTreeSet<String>) {
        let is_live = |source: &SourceConfig| self.cache.as_ref().is_some_and(|cache| cache.live(source).is_some());
        let is_due = |source: &&SourceConfig| match trigger {
            _ if self.reads.is_due(&source.name) => true,
            Trigger::Order | Trigger::Drift | Trigger::Pace => false,
            Trigger::Change => {
                is_live(source) || self.reads.has_answered(&source.name) || self.lookups.has_news(&source.name)
            }
            Trigger::Schedule => {
                let known = reader.ledger.sources.get(&source.name);
                reader.ledger.waits_for(&source.name)
                    || known.is_none_or(|read| read.is_due(source.interval(), reader.now))
            }
            Trigger::Login => {
                let known = reader.ledger.sources.get(&source.name);
                known.is_none_or(|read| read.is_due_for_logins(reader.now))
            }
            Trigger::FullRead | Trigger::Start | Trigger::Reload | Trigger::Sync => true,
        };
        let (due, others): (Vec<_>, Vec<_>) = self.sources.iter().partition(is_due);
        (
            due.into_iter().map(|source| as_read(source, reader)).collect(),
            others.into_iter().map(|source| source.name.clone()).collect(),
        )
    }
}

/// Reads the sources without changing what the cycles use.
async fn preview(sources: &[SourceConfig], pass: &Pass, reader: Reader<'_>) -> DirectorySnapshot {
    let all: Vec<SourceConfig> = sources.iter().map(|source| as_read(source, reader)).collect();
    let known = known(reader);
    let read = bursar_directory::fetch_after(&all, pass, &known, reader.policy, reader.now).await;
    let mut snapshot = merge(read.reads, BTreeSet::new(), reader.policy, reader.ledger);
    confirm(&all, pass, reader, &mut snapshot).await;
    snapshot
}

/// Returns the server and the change marks of the last read, for each source.
fn known(reader: Reader<'_>) -> Known {
    let now = reader.now;
    let last = |mark: &SourceMark| LastRead { server: mark.server.clone(), marks: Arc::new(mark.marks.clone()), now };
    reader.ledger.marks.iter().map(|(source, mark)| (source.clone(), last(mark))).collect()
}

/// Asks the servers separately about each account that is missing and would now be suspended.
async fn confirm(sources: &[SourceConfig], pass: &Pass, reader: Reader<'_>, snapshot: &mut DirectorySnapshot) {
    let due = transition::due(reader.ledger, snapshot, reader.policy, reader.now);
    Box::pin(bursar_directory::confirm(sources, pass, &known(reader), &due, snapshot)).await;
}

fn as_read(source: &SourceConfig, reader: Reader<'_>) -> SourceConfig {
    with_made(source, reader.realm, reader.ledger)
}

/// Logs what a full read found that the reported changes had missed.
fn tell_repairs(snapshot: &DirectorySnapshot) {
    for read in &snapshot.reads {
        let Some(Comparison { differences, examples }) = &read.compared else { continue };
        if *differences > 0 {
            let examples = examples.join(", ");
            tracing::warn!(source = read.source, differences, examples, "a full read differs from the changes");
        } else {
            tracing::info!(source = read.source, "a full read agrees with the changes");
        }
    }
}
