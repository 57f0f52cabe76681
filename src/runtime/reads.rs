//! Reads of directories that are under way, each a task of its own: a cycle takes what has come, and what comes later sets off
//! another one. So a mark in one directory does not wait for another that takes minutes, and an order cuts no read short.

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

/// A scheduled cycle waits so long for other sources after the first one has answered: most take less than a second, and then
/// one cycle does.
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
/// How often it is looked whether a read ended without an answer.
const LOOK: Duration = Duration::from_secs(1);

/// All that are under way, or have answered and are not taken yet.
#[derive(Default)]
pub(super) struct Reads {
    tasks: Mutex<BTreeMap<String, Reading>>,
    answers: Arc<Answers>,
}

struct Reading {
    /// As it is configured: what another configuration asks is another read.
    asked: SourceConfig,
    whole: bool,
    task: AbortOnDropHandle<()>,
}

#[derive(Default)]
struct Answers {
    reads: Mutex<BTreeMap<String, SourceRead>>,
    come: Notify,
    /// Somebody waits for them.
    attended: AtomicBool,
}

/// What is asked of a source.
pub(super) struct Question<'a> {
    /// As it is configured.
    pub(super) asked: &'a SourceConfig,
    /// As it is read.
    pub(super) source: SourceConfig,
    pub(super) pass: Pass,
    pub(super) known: Known,
    pub(super) policy: Policy,
    pub(super) now: Timestamp,
    /// Notified of an answer that nobody waits for.
    pub(super) changed: Arc<Notify>,
}

impl Reads {
    /// Whether `source` has answered, and nobody took it.
    pub(super) fn has_answered(&self, source: &str) -> bool {
        locked(&self.answers.reads).contains_key(source)
    }

    /// Forgets what is asked otherwise now.
    pub(super) fn keep(&self, sources: &[SourceConfig]) {
        locked(&self.tasks).retain(|_, reading| sources.contains(&reading.asked));
        locked(&self.answers.reads).retain(|name, _| sources.iter().any(|source| source.name == *name));
    }

    /// Begins to read a source, unless that is under way. A read of all of it takes the place of one of its changes.
    pub(super) fn begin(&self, question: Question<'_>) {
        let Question { asked, source, pass, known, policy, now, changed } = question;
        let (name, whole) = (source.name.clone(), matches!(pass, Pass::Whole(_)));
        let answered = self.has_answered(&name);
        let mut tasks = locked(&self.tasks);
        let goes_on = |reading: &Reading| (reading.whole || !whole) && (answered || !reading.task.is_finished());
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
        tasks.insert(name, Reading { asked: asked.clone(), whole, task });
    }

    /// Until all of `wanted` have answered, or `patience` is over.
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

    /// Gives what has answered, in the order of `sources`, to `confirm`, and forgets it when that is done. A cycle that is
    /// cut short before leaves the answers to the next one.
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

/// Somebody waits, until it is dropped.
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
    // A value is put in in one step: a thread that panicked left it whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[expect(clippy::disallowed_methods, reason = "how long a cycle waits is no decision about the directory")]
fn now() -> Instant {
    Instant::now()
}
