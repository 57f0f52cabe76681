//! Runs each read of a directory as a task. A cycle takes the reads that have finished; each read that finishes later
//! starts another cycle. So a change in one directory does not wait for another directory whose read takes minutes, and
//! an order aborts no read.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bursar_directory::sync::kept::Kept;
use bursar_directory::{Known, Pass, SourceConfig, SyncCache};
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::task::AbortOnDropHandle;

use crate::policy::{Class, Policy};
use crate::snapshot::SourceRead;

/// How long a scheduled cycle waits for the other sources after the first one has answered. Most take less than a
/// second, and then one cycle is enough.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

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
pub(super) const LOOK: Duration = Duration::from_secs(1);

/// The reads that are in progress, or finished and not taken yet.
#[derive(Default)]
pub(super) struct Reads {
    tasks: Mutex<BTreeMap<String, Reading>>,
    answers: Arc<FinishedReads>,
}

struct Reading {
    terms: Arc<Terms>,
    whole: bool,
    /// Whether an administrator has asked for a read that begins after this one.
    is_outdated: bool,
    task: AbortOnDropHandle<()>,
}

/// The configuration of a read. If it changes, the read is dropped, because its entries are made by these rules.
/// Otherwise the ledger would keep, for example, the home that a new entry got from the former prefix.
#[derive(PartialEq)]
struct Terms {
    source: SourceConfig,
    classes: BTreeMap<String, Class>,
    home_prefixes: Vec<PathBuf>,
}

impl Terms {
    fn of(source: &SourceConfig, policy: &Policy) -> Self {
        let Policy { classes, home_prefixes, .. } = policy;
        Self { source: source.clone(), classes: classes.clone(), home_prefixes: home_prefixes.clone() }
    }

    fn are_in_force(&self, sources: &[SourceConfig], policy: &Policy) -> bool {
        sources.contains(&self.source) && self.classes == policy.classes && self.home_prefixes == policy.home_prefixes
    }
}

struct FinishedRead {
    terms: Arc<Terms>,
    at: Instant,
    /// What the server had pushed when the read began.
    pushed: Option<Arc<Kept>>,
    read: SourceRead,
}

#[derive(Default)]
struct FinishedReads {
    reads: Mutex<BTreeMap<String, FinishedRead>>,
    come: Notify,
    /// Whether a cycle waits for answers.
    attended: AtomicBool,
}

/// What a read needs.
pub(super) struct ReadRequest<'a> {
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
        self.answers.reads.lock().contains_key(source)
    }

    /// Drops reads and answers that were asked for under another configuration.
    pub(super) fn keep(&self, sources: &[SourceConfig], policy: &Policy) {
        self.tasks.lock().retain(|_, reading| reading.terms.are_in_force(sources, policy));
        self.answers.reads.lock().retain(|_, answer| answer.terms.are_in_force(sources, policy));
    }

    /// Marks every read that is in progress or not taken yet, so that its source is read again. An administrator asks
    /// for the present state, and such a read may have passed an entry before the entry changed.
    pub(super) fn outdate(&self) {
        self.tasks.lock().values_mut().for_each(|reading| reading.is_outdated = true);
    }

    /// Begins to read a source, unless such a read is in progress. A full read replaces a read of changes.
    pub(super) fn begin(&self, question: ReadRequest<'_>) {
        let ReadRequest { asked, source, pass, known, policy, now, changed } = question;
        let name = source.name.clone();
        let answered = self.has_answered(&name);
        let mut tasks = self.tasks.lock();
        let pass = match pass {
            // If an outdated read is the scheduled full read, the read that replaces it is full too.
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
        self.answers.reads.lock().remove(&name);
        let (answers, terms) = (Arc::clone(&self.answers), Arc::new(Terms::of(asked, &policy)));
        let made_by = Arc::clone(&terms);
        let pushed = pass.cache().and_then(|cache| cache.live(&source));
        let reading = async move {
            let sources = [source];
            let snapshot = bursar_directory::fetch_after(&sources, &pass, &known, &policy, now).await;
            let at = self::now();
            let of = |read: SourceRead| {
                let (terms, pushed) = (Arc::clone(&made_by), pushed.clone());
                (read.source.clone(), FinishedRead { terms, at, pushed, read })
            };
            answers.reads.lock().extend(snapshot.reads.into_iter().map(of));
            answers.come.notify_one();
            if !answers.attended.load(Ordering::Relaxed) {
                changed.notify_one();
            }
        };
        let task = AbortOnDropHandle::new(tokio::spawn(reading));
        tasks.insert(name, Reading { terms, whole, is_outdated: false, task });
    }

    /// Waits until all of `wanted` have answered, or until `patience` is over. The time since the first answer also
    /// counts if an order cut an earlier cycle short; otherwise frequent orders would keep the answer from being used.
    pub(super) async fn wait(&self, wanted: &BTreeSet<String>, patience: Patience) {
        let _attended = Attended::by(&self.answers);
        let mut over = (patience == Patience::FromStart).then(|| now() + PATIENCE);
        while !wanted.iter().all(|source| self.is_done(source)) {
            if patience == Patience::AfterAnswer {
                over = self.first_answer(wanted).map(|first| first + PATIENCE);
            }
            tokio::select! {
                () = self.answers.come.notified() => {}
                () = sleep(LOOK) => {}
                () = sleep_until(over.unwrap_or_else(now)), if over.is_some() => return,
            }
        }
    }

    fn first_answer(&self, wanted: &BTreeSet<String>) -> Option<Instant> {
        let answers = self.answers.reads.lock();
        wanted.iter().filter_map(|source| answers.get(source)).map(|answer| answer.at).min()
    }

    /// Whether a server has pushed changes since the beginning of a read whose answer is not taken yet.
    pub(super) fn is_behind(&self, source: &SourceConfig, cache: &SyncCache) -> bool {
        let answers = self.answers.reads.lock();
        let pushed = answers.get(&source.name).and_then(|answer| answer.pushed.as_ref());
        pushed.is_some_and(|before| cache.live(source).is_some_and(|now| !Arc::ptr_eq(before, &now)))
    }

    /// Passes the answers to `confirm`, in the order of `sources`, and forgets them when `confirm` is done. If the
    /// cycle is cut short before that, the next cycle takes the answers.
    pub(super) async fn take<T>(&self, sources: &[SourceConfig], confirm: impl AsyncFnOnce(Vec<SourceRead>) -> T) -> T {
        let answered: Vec<SourceRead> = {
            let answers = self.answers.reads.lock();
            sources.iter().filter_map(|source| Some(answers.get(&source.name)?.read.clone())).collect()
        };
        let names: BTreeSet<String> = answered.iter().map(|read| read.source.clone()).collect();
        let confirmed = confirm(answered).await;
        self.answers.reads.lock().retain(|name, _| !names.contains(name));
        self.tasks.lock().retain(|name, reading| !reading.task.is_finished() && !names.contains(name));
        confirmed
    }

    fn is_done(&self, source: &str) -> bool {
        self.has_answered(source) || self.tasks.lock().get(source).is_none_or(|reading| reading.task.is_finished())
    }
}

/// A cycle waits for answers until this value is dropped.
struct Attended<'a>(&'a FinishedReads);

impl<'a> Attended<'a> {
    fn by(answers: &'a FinishedReads) -> Self {
        answers.attended.store(true, Ordering::Relaxed);
        Self(answers)
    }
}

impl Drop for Attended<'_> {
    fn drop(&mut self) {
        self.0.attended.store(false, Ordering::Relaxed);
    }
}

#[expect(clippy::disallowed_methods, reason = "how long a cycle waits is not a decision about the directory")]
pub(super) fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::SocketAddr;

    use bursar_directory::source::{LdapConfig, SidMapping, SourceKind};
    use bursar_directory::sync::kept::Mark;
    use bursar_directory::sync::mirror::Mirror;
    use bursar_directory::{LastRead, Preset};
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;
    use crate::identity::AccountKind;
    use crate::plan::testing::policy;
    use crate::snapshot::freshness::Marks;

    pub(in crate::runtime) fn people(server: SocketAddr) -> SourceConfig {
        let url = format!("ldap://{server}");
        SourceConfig {
            name: "people".to_owned(),
            kind: SourceKind::Ldap(LdapConfig { allow_plaintext: true, ..LdapConfig::new(vec![url]) }),
            sentinels: Vec::new(),
            tools: None,
            users: Some(Preset::Toolforge.tree(AccountKind::User, "ou=people,dc=example,dc=org")),
            groups: None,
            attributes: Preset::Toolforge.attributes(),
            sids: SidMapping::default(),
        }
    }

    fn question(asked: &SourceConfig, pass: Pass, policy: Policy) -> ReadRequest<'_> {
        let known = Known::from([("people".to_owned(), LastRead::default())]);
        let (source, changed) = (asked.clone(), Arc::default());
        ReadRequest { asked, source, pass, known, policy, now: Timestamp::UNIX_EPOCH, changed }
    }

    #[tokio::test]
    async fn a_read_by_the_former_rules_for_homes_is_dropped() {
        let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let asked = people(silent.local_addr().expect("the socket has an address"));
        let (reads, sources) = (Reads::default(), [asked.clone()]);
        let before = policy();
        reads.begin(question(&asked, Pass::Once, before.clone()));
        let answer = |policy: &Policy| {
            let read = SourceRead::complete("people", [AccountKind::User], Vec::new());
            let answer = FinishedRead { terms: Arc::new(Terms::of(&asked, policy)), at: now(), pushed: None, read };
            reads.answers.reads.lock().insert("people".to_owned(), answer);
        };
        answer(&before);
        let other_site = Policy { site: "other".to_owned(), ..before.clone() };
        reads.keep(&sources, &other_site);
        assert!(reads.has_answered("people") && reads.tasks.lock().len() == 1, "the entries are the same");
        let mut after = before;
        for class in after.classes.values_mut() {
            class.home.iter_mut().for_each(|home| home.prefix = PathBuf::from("/data/home"));
        }
        reads.keep(&sources, &after);
        assert!(!reads.has_answered("people") && reads.tasks.lock().is_empty());
    }

    #[tokio::test]
    async fn an_answer_from_before_a_pushed_change_is_recognised() {
        let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let asked = people(silent.local_addr().expect("the socket has an address"));
        let (reads, cache) = (Reads::default(), SyncCache::default());
        let pushed = || {
            let (marks, mark, mirror) = (Marks::default(), Mark::Syncrepl(BTreeMap::new()), Mirror::default());
            let (server, behind) = ("a".to_owned(), Vec::new());
            let kept = Arc::new(Kept { asked: asked.clone(), server, marks, behind, mark, mirror });
            assert!(cache.follow("people", Arc::clone(&kept), 0));
            kept
        };
        let read = SourceRead::complete("people", [AccountKind::User], Vec::new());
        let answer =
            FinishedRead { terms: Arc::new(Terms::of(&asked, &policy())), at: now(), pushed: Some(pushed()), read };
        reads.answers.reads.lock().insert("people".to_owned(), answer);
        assert!(!reads.is_behind(&asked, &cache));
        drop(pushed());
        assert!(reads.is_behind(&asked, &cache));
    }

    #[tokio::test]
    async fn an_answer_does_not_wait_again_after_an_order_cut_the_cycle_short() {
        let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let asked = people(silent.local_addr().expect("the socket has an address"));
        let slow = SourceConfig { name: "realm".to_owned(), ..asked.clone() };
        let reads = Reads::default();
        reads.begin(question(&slow, Pass::Once, policy()));
        let read = SourceRead::complete("people", [AccountKind::User], Vec::new());
        let at = now().checked_sub(PATIENCE).expect("the host has run for two seconds");
        let answer = FinishedRead { terms: Arc::new(Terms::of(&asked, &policy())), at, pushed: None, read };
        reads.answers.reads.lock().insert("people".to_owned(), answer);
        let began = now();
        let wanted = BTreeSet::from(["people".to_owned(), "realm".to_owned()]);
        reads.wait(&wanted, Patience::AfterAnswer).await;
        assert!(began.elapsed() < PATIENCE && !reads.has_answered("realm"));
    }

    #[tokio::test]
    async fn a_read_that_began_before_the_request_is_replaced() {
        let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let connected = async || timeout(Duration::from_secs(30), silent.accept()).await.expect("a read connects");
        let asked = people(silent.local_addr().expect("the socket has an address"));
        let (reads, cache) = (Reads::default(), SyncCache::default());
        let begin = |pass| reads.begin(question(&asked, pass, policy()));
        begin(Pass::Whole(cache.clone()));
        let first = connected().await;
        begin(Pass::Changes(cache.clone()));
        reads.outdate();
        begin(Pass::Changes(cache.clone()));
        // The read from before the request connected only once, so this is another read.
        let second = connected().await;
        assert!(reads.tasks.lock()["people"].whole, "the scheduled full read is not lost");
        begin(Pass::Changes(cache));
        assert!(!reads.tasks.lock()["people"].task.is_finished());
        drop((first, second));
    }
}
