//! Runs each read of a directory as a task. A cycle takes the reads that have finished; each read that finishes later
//! starts another cycle. So a change in one directory does not wait for another directory whose read takes minutes, and
//! an order aborts no read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bursar_directory::{Known, Pass, SourceConfig};
use jiff::Timestamp;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::task::AbortOnDropHandle;

use crate::policy::Policy;
use crate::snapshot::SourceRead;

/// How long a scheduled cycle waits for the other sources after the first one has answered. Most take less than a
/// second, and then one cycle is enough.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long a cycle waits for its sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    /// Until all have answered.
    Endless,
    /// For [`PATIENCE`] after the first has answered.
    AfterAnswer,
    /// For [`PATIENCE`].
    FromStart,
}
/// How often a waiting cycle checks whether a read ended without an answer.
const LOOK: Duration = Duration::from_secs(1);

/// The reads that are in progress, or finished and not taken yet.
#[derive(Default)]
pub(super) struct Reads {
    tasks: Mutex<BTreeMap<String, Reading>>,
    answers: Arc<Answers>,
}

struct Reading {
    /// The source as configured. If the configuration changes, this read is dropped.
    asked: SourceConfig,
    whole: bool,
    /// Somebody has asked for a read that begins later.
    is_outdated: bool,
    task: AbortOnDropHandle<()>,
}

#[derive(Default)]
struct Answers {
    reads: Mutex<BTreeMap<String, SourceRead>>,
    come: Notify,
    /// Whether a cycle waits for answers.
    attended: AtomicBool,
}

/// What a read needs.
pub(super) struct Question<'a> {
    /// The source as configured.
    pub(super) asked: &'a SourceConfig,
    /// The source as it is read, with the users that Bursar made in its realm.
    pub(super) source: SourceConfig,
    pub(super) pass: Pass,
    pub(super) known: Known,
    pub(super) policy: Policy,
    pub(super) now: Timestamp,
    /// Notified of an answer for which no cycle waits.
    pub(super) changed: Arc<Notify>,
}

impl Reads {
    /// Returns whether `source` has answered, and no cycle took the answer yet.
    pub(super) fn has_answered(&self, source: &str) -> bool {
        locked(&self.answers.reads).contains_key(source)
    }

    /// Drops reads of sources whose configuration changed, and answers of sources that are gone.
    pub(super) fn keep(&self, sources: &[SourceConfig]) {
        locked(&self.tasks).retain(|_, reading| sources.contains(&reading.asked));
        locked(&self.answers.reads).retain(|name, _| sources.iter().any(|source| source.name == *name));
    }

    /// Marks every read that is in progress or not taken yet, so that its source is read again: an administrator asks
    /// for the present state, and such a read may have passed an entry before it changed.
    pub(super) fn outdate(&self) {
        locked(&self.tasks).values_mut().for_each(|reading| reading.is_outdated = true);
    }

    /// Begins to read a source, unless such a read is in progress. A full read replaces a read of changes.
    pub(super) fn begin(&self, question: Question<'_>) {
        let Question { asked, source, pass, known, policy, now, changed } = question;
        let name = source.name.clone();
        let answered = self.has_answered(&name);
        let mut tasks = locked(&self.tasks);
        let pass = match pass {
            // The scheduled full read is not lost if it is outdated.
            Pass::Changes(cache) if tasks.get(&name).is_some_and(|reading| reading.whole) => Pass::Whole(cache),
            pass => pass,
        };
        let whole = matches!(pass, Pass::Whole(_));
        let goes_on = |reading: &Reading| {
            !reading.is_outdated && (reading.whole || !whole) && (answered || !reading.task.is_finished())
        };
        if tasks.get(&name).is_some_and(goes_on) {
            return;
        }
        locked(&self.answers.reads).remove(&name);
        let answers = Arc::clone(&self.answers);
        let reading = async move {
            let sources = [source];
            let snapshot = bursar_directory::fetch_after(&sources, &pass, &known, &policy, now).await;
            locked(&answers.reads).extend(snapshot.reads.into_iter().map(|read| (read.source.clone(), read)));
            answers.come.notify_one();
            if !answers.attended.load(Ordering::Relaxed) {
                changed.notify_one();
            }
        };
        let task = AbortOnDropHandle::new(tokio::spawn(reading));
        tasks.insert(name, Reading { asked: asked.clone(), whole, is_outdated: false, task });
    }

    /// Waits until all of `wanted` have answered, or until `patience` is over.
    pub(super) async fn wait(&self, wanted: &BTreeSet<String>, patience: Patience) {
        let _attended = Attended::by(&self.answers);
        let mut over = (patience == Patience::FromStart).then(|| now() + PATIENCE);
        while !wanted.iter().all(|source| self.is_done(source)) {
            let some = wanted.iter().any(|source| self.has_answered(source));
            if patience == Patience::AfterAnswer && over.is_none() && some {
                over = Some(now() + PATIENCE);
            }
            tokio::select! {
                () = self.answers.come.notified() => {}
                () = sleep(LOOK) => {}
                () = sleep_until(over.unwrap_or_else(now)), if over.is_some() => return,
            }
        }
    }

    /// Passes the answers to `confirm`, in the order of `sources`, and forgets them when `confirm` is done. If the
    /// cycle is cut short before, the next one takes them.
    pub(super) async fn take<T>(&self, sources: &[SourceConfig], confirm: impl AsyncFnOnce(Vec<SourceRead>) -> T) -> T {
        let answered: Vec<SourceRead> = {
            let answers = locked(&self.answers.reads);
            sources.iter().filter_map(|source| answers.get(&source.name).cloned()).collect()
        };
        let names: BTreeSet<String> = answered.iter().map(|read| read.source.clone()).collect();
        let confirmed = confirm(answered).await;
        locked(&self.answers.reads).retain(|name, _| !names.contains(name));
        locked(&self.tasks).retain(|name, reading| !reading.task.is_finished() && !names.contains(name));
        confirmed
    }

    fn is_done(&self, source: &str) -> bool {
        self.has_answered(source) || locked(&self.tasks).get(source).is_none_or(|reading| reading.task.is_finished())
    }
}

/// A cycle waits for answers until this value is dropped.
struct Attended<'a>(&'a Answers);

impl<'a> Attended<'a> {
    fn by(answers: &'a Answers) -> Self {
        answers.attended.store(true, Ordering::Relaxed);
        Self(answers)
    }
}

impl Drop for Attended<'_> {
    fn drop(&mut self) {
        self.0.attended.store(false, Ordering::Relaxed);
    }
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each value is inserted in one step, so a thread that panicked left the map complete.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[expect(clippy::disallowed_methods, reason = "how long a cycle waits is no decision about the directory")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use bursar_directory::source::{LdapConfig, SidMapping, SourceKind};
    use bursar_directory::{LastRead, Preset, SyncCache};
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;
    use crate::identity::AccountKind;
    use crate::plan::testing::policy;

    #[tokio::test]
    async fn a_read_that_began_before_the_request_is_replaced() {
        let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let url = format!("ldap://{}", silent.local_addr().expect("the socket has an address"));
        let connected = async || timeout(Duration::from_secs(30), silent.accept()).await.expect("a read connects");
        let asked = SourceConfig {
            name: "people".to_owned(),
            kind: SourceKind::Ldap(LdapConfig { allow_plaintext: true, ..LdapConfig::new(vec![url]) }),
            sentinels: Vec::new(),
            tools: None,
            users: Some(Preset::Toolforge.tree(AccountKind::User, "ou=people,dc=example,dc=org")),
            groups: None,
            attributes: Preset::Toolforge.attributes(),
            sids: SidMapping::default(),
        };
        let (reads, cache) = (Reads::default(), SyncCache::default());
        let begin = |pass| {
            let known = Known::from([("people".to_owned(), LastRead::default())]);
            let (source, policy, changed) = (asked.clone(), policy(), Arc::default());
            let now = Timestamp::UNIX_EPOCH;
            reads.begin(Question { asked: &asked, source, pass, known, policy, now, changed });
        };
        begin(Pass::Whole(cache.clone()));
        let first = connected().await;
        begin(Pass::Changes(cache.clone()));
        reads.outdate();
        begin(Pass::Changes(cache.clone()));
        // The read before the request would have connected only once.
        let second = connected().await;
        assert!(locked(&reads.tasks)["people"].whole, "the scheduled full read is not lost");
        begin(Pass::Changes(cache));
        assert!(!locked(&reads.tasks)["people"].task.is_finished());
        drop((first, second));
    }
}
