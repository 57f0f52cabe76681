//! Runs each read of a directory as a task. A cycle takes the reads that have finished; each read that finishes later
//! starts another cycle. So a change in one directory does not wait for another directory whose read takes minutes.
//!
//! Only another configuration ends a read early. If an administrator asks for the present state, a read in progress may
//! already have passed an entry that changed since: its answer is used, and another read follows.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
    /// For [`PATIENCE`] after the first has answered, and no longer than [`LONGEST`] after a read began.
    AfterAnswer,
    /// For [`PATIENCE`] after a read began, and no longer than [`Self::AfterAnswer`].
    FromStart,
}

/// How long a cycle waits for a read if no source has answered. Otherwise a single source that hangs would delay repairs
/// in clusters, and the reads of other sources, until its deadline. Most reads are shorter, and then one cycle is enough.
const LONGEST: Duration = Duration::from_secs(10);
/// How often a waiting cycle checks whether a read ended without an answer.
pub(super) const LOOK: Duration = Duration::from_secs(1);

/// The reads that are in progress, or finished and not taken yet.
#[derive(Default)]
pub(super) struct Reads {
    sources: Mutex<BTreeMap<String, SourceReads>>,
    answers: Arc<FinishedReads>,
    progress: ReadProgress,
}

/// How many entries each read in progress has received so far, by source. Clones share the counts.
#[derive(Clone, Default)]
pub(crate) struct ReadProgress(Arc<Mutex<BTreeMap<String, Arc<AtomicU64>>>>);

impl ReadProgress {
    /// Returns the present counts.
    pub(crate) fn counts(&self) -> BTreeMap<String, u64> {
        let counts = self.0.lock();
        counts.iter().map(|(source, entries)| (source.clone(), entries.load(Ordering::Relaxed))).collect()
    }

    /// Shows a read of `source` until the returned value is dropped.
    fn begin(&self, source: &str) -> Counted {
        let counted = Counted { all: self.clone(), source: source.to_owned(), entries: Arc::default() };
        self.0.lock().insert(source.to_owned(), Arc::clone(&counted.entries));
        counted
    }
}

/// A read whose entries are counted.
struct Counted {
    all: ReadProgress,
    source: String,
    entries: Arc<AtomicU64>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        // Another read may have replaced this one.
        let mut all = self.all.0.lock();
        if all.get(&self.source).is_some_and(|entries| Arc::ptr_eq(entries, &self.entries)) {
            all.remove(&self.source);
        }
    }
}

/// The reads of one source. Requests are those of administrators for the present state; they are numbered.
#[derive(Default)]
struct SourceReads {
    /// The read that is in progress, or whose answer is not taken yet.
    reading: Option<Reading>,
    requests: u64,
    /// The last request of an order. An answer of an earlier read does not carry the order out.
    ordered: u64,
    /// How many requests the last read knew when it began.
    begun: u64,
    /// The same for the last read whose answer was taken.
    taken: u64,
    /// Whether a full read was asked for while a read of changes was in progress.
    is_whole_due: bool,
}

struct Reading {
    terms: Arc<Terms>,
    began: Instant,
    whole: bool,
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
    /// The same value as in the [`Reading`]. It distinguishes this answer from that of another read of the source.
    terms: Arc<Terms>,
    /// How many requests the read knew when it began.
    requests: u64,
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
    attended: Arc<AtomicBool>,
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

    /// Returns the progress of the reads.
    pub(super) fn progress(&self) -> ReadProgress {
        self.progress.clone()
    }

    /// Drops reads and answers that were asked for under another configuration. Requests that they would have answered
    /// are due again.
    pub(super) fn keep(&self, sources: &[SourceConfig], policy: &Policy) {
        for reads in self.sources.lock().values_mut() {
            if reads.reading.take_if(|reading| !reading.terms.are_in_force(sources, policy)).is_some() {
                reads.begun = reads.taken;
            }
        }
        self.answers.reads.lock().retain(|_, answer| answer.terms.are_in_force(sources, policy));
    }

    /// Records that an administrator asks for the present state of `source`. The next read to begin knows of it, and so
    /// does [`Self::is_outstanding`], by the returned number of requests. If `is_order`, only that read may carry out an
    /// order.
    pub(super) fn request(&self, source: &str, is_order: bool) -> u64 {
        let mut sources = self.sources.lock();
        let reads = sources.entry(source.to_owned()).or_default();
        reads.requests += 1;
        if is_order {
            reads.ordered = reads.requests;
        }
        reads.requests
    }

    /// Whether the answer to the request with this number will come, or came and was not taken yet.
    pub(super) fn is_outstanding(&self, source: &str, request: u64) -> bool {
        self.sources.lock().get(source).is_some_and(|reads| {
            let is_coming = || reads.begun < request || self.is_running(source, reads) || self.has_answered(source);
            reads.taken < request && is_coming()
        })
    }

    /// Whether a read of `source` is in progress.
    pub(super) fn is_in_progress(&self, source: &str) -> bool {
        self.sources.lock().get(source).is_some_and(|reads| self.is_running(source, reads))
    }

    /// Whether another read of `source` is to begin at once: an administrator has asked for it, or the schedule for a
    /// full one, and the read that was then in progress has ended.
    pub(super) fn is_due(&self, source: &str) -> bool {
        let is_wanted = |reads: &SourceReads| reads.begun < reads.requests || reads.is_whole_due;
        self.sources.lock().get(source).is_some_and(|reads| is_wanted(reads) && !self.is_running(source, reads))
    }

    /// Begins to read a source, unless a read of it is in progress, or its current answer still waits to be taken.
    pub(super) fn begin(&self, question: ReadRequest<'_>) {
        let ReadRequest { asked, source, pass, known, policy, now, changed } = question;
        let name = source.name.clone();
        let mut sources = self.sources.lock();
        let reads = sources.entry(name.clone()).or_default();
        let is_whole = matches!(pass, Pass::Whole(_));
        let is_enough = !is_whole || reads.reading.as_ref().is_some_and(|reading| reading.whole);
        if self.is_running(&name, reads) {
            reads.is_whole_due |= !is_enough;
            return;
        }
        if is_enough && !reads.is_whole_due && reads.begun == reads.requests && self.has_answered(&name) {
            return;
        }
        let pass = match pass {
            Pass::Changes(cache) if reads.is_whole_due => Pass::Whole(cache),
            pass => pass,
        };
        let (whole, requests) = (matches!(pass, Pass::Whole(_)), reads.requests);
        (reads.begun, reads.is_whole_due) = (requests, false);
        let (answers, terms) = (Arc::clone(&self.answers), Arc::new(Terms::of(asked, &policy)));
        let made_by = Arc::clone(&terms);
        let pushed = pass.cache().and_then(|cache| cache.live(&source));
        let counted = self.progress.begin(&name);
        let entries = || Arc::clone(&counted.entries);
        let pass = match pass {
            Pass::Once => Pass::Once,
            Pass::Changes(cache) => Pass::Changes(cache.counting_entries(entries())),
            Pass::Whole(cache) => Pass::Whole(cache.counting_entries(entries())),
        };
        let reading = async move {
            let _counted = counted;
            let sources = [source];
            let snapshot = bursar_directory::fetch_after(&sources, &pass, &known, &policy, now).await;
            let at = self::now();
            let of = |read: SourceRead| {
                let (terms, pushed) = (Arc::clone(&made_by), pushed.clone());
                (read.source.clone(), FinishedRead { terms, requests, at, pushed, read })
            };
            answers.reads.lock().extend(snapshot.reads.into_iter().map(of));
            answers.come.notify_one();
            if !answers.attended.load(Ordering::Relaxed) {
                changed.notify_one();
            }
        };
        let task = AbortOnDropHandle::new(tokio::spawn(reading));
        reads.reading = Some(Reading { terms, began: self::now(), whole, task });
    }

    /// Waits until no read of `wanted` is in progress, or until `patience` is over. The time since a read began and since
    /// the first answer also counts if an earlier cycle waited; otherwise frequent orders would keep the answer from
    /// being used, and each cycle would wait again for a source that hangs.
    pub(super) async fn wait(&self, wanted: &BTreeSet<String>, patience: Patience) {
        let _attended = Attended::by(&self.answers.attended);
        while let Some(began) = self.last_began(wanted) {
            let latest = match patience {
                Patience::Endless => None,
                Patience::AfterAnswer => Some(began + LONGEST),
                Patience::FromStart => Some(began + PATIENCE),
            };
            let first = self.first_answer(wanted).filter(|_| patience != Patience::Endless);
            let over = first.map(|first| first + PATIENCE).into_iter().chain(latest).min();
            tokio::select! {
                () = self.answers.come.notified() => {}
                () = sleep(LOOK) => {}
                () = sleep_until(over.unwrap_or_else(now)), if over.is_some() => return,
            }
        }
    }

    /// Returns when the last of the reads in progress began.
    fn last_began(&self, wanted: &BTreeSet<String>) -> Option<Instant> {
        let sources = self.sources.lock();
        let running = sources.iter().filter(|(name, reads)| wanted.contains(*name) && self.is_running(name, reads));
        running.filter_map(|(_, reads)| reads.reading.as_ref()).map(|reading| reading.began).max()
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

    /// Passes the answers to `confirm`, in the order of `sources`, with the names of the sources that have not answered
    /// the last request of an order. Forgets the answers when `confirm` is done. If the cycle is cut short before
    /// that, the next cycle takes the answers.
    pub(super) async fn take<T>(
        &self,
        sources: &[SourceConfig],
        confirm: impl AsyncFnOnce(Vec<SourceRead>, BTreeSet<String>) -> T,
    ) -> T {
        let (mut answered, mut taken) = (Vec::new(), BTreeMap::new());
        {
            let answers = self.answers.reads.lock();
            for answer in sources.iter().filter_map(|source| answers.get(&source.name)) {
                answered.push(answer.read.clone());
                taken.insert(answer.read.source.clone(), (Arc::clone(&answer.terms), answer.requests));
            }
        }
        let outdated = self.outdated(sources, |source| taken.get(source).map(|(_, requests)| *requests));
        let confirmed = confirm(answered, outdated).await;
        // While `confirm` ran, the next read may have answered.
        let is_taken = |name: &String, terms: &Arc<Terms>| {
            taken.get(name).is_some_and(|(of_taken, _)| Arc::ptr_eq(of_taken, terms))
        };
        self.answers.reads.lock().retain(|name, answer| !is_taken(name, &answer.terms));
        let mut all = self.sources.lock();
        for (name, reads) in &mut *all {
            reads.taken = taken.get(name).map_or(reads.taken, |(_, requests)| reads.taken.max(*requests));
            reads.reading = reads.reading.take().filter(|reading| !is_taken(name, &reading.terms));
        }
        confirmed
    }

    /// Returns those of `sources` that have not answered the last request of an order. `taking` returns how many requests
    /// the read knew whose answer is being taken.
    fn outdated(&self, sources: &[SourceConfig], taking: impl Fn(&str) -> Option<u64>) -> BTreeSet<String> {
        let all = self.sources.lock();
        let names = sources.iter().map(|source| &source.name);
        let outdated = names
            .filter(|name| all.get(*name).is_some_and(|reads| taking(name).unwrap_or(reads.taken) < reads.ordered));
        outdated.cloned().collect()
    }

    /// Whether a read is in progress. It may have answered a moment before its task ends.
    fn is_running(&self, source: &str, reads: &SourceReads) -> bool {
        reads.reading.as_ref().is_some_and(|reading| {
            let answers = self.answers.reads.lock();
            let has_answered = answers.get(source).is_some_and(|answer| Arc::ptr_eq(&answer.terms, &reading.terms));
            !has_answered && !reading.task.is_finished()
        })
    }
}

/// A cycle waits for answers until this value is dropped.
pub(super) struct Attended(Arc<AtomicBool>);

impl Attended {
    pub(super) fn by(attended: &Arc<AtomicBool>) -> Self {
        attended.store(true, Ordering::Relaxed);
        Self(Arc::clone(attended))
    }
}

impl Drop for Attended {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
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
        let request = reads.request("people", false);
        reads.begin(question(&asked, Pass::Once, before.clone()));
        let answer = |policy: &Policy| {
            let read = SourceRead::complete("people", [AccountKind::User], Vec::new());
            let terms = Arc::new(Terms::of(&asked, policy));
            let answer = FinishedRead { terms, requests: 0, at: now(), pushed: None, read };
            reads.answers.reads.lock().insert("people".to_owned(), answer);
        };
        answer(&before);
        let other_site = Policy { site: "other".to_owned(), ..before.clone() };
        reads.keep(&sources, &other_site);
        assert!(reads.has_answered("people") && reads.is_in_progress("people"), "the entries are the same");
        let mut after = before;
        for class in after.classes.values_mut() {
            class.home.iter_mut().for_each(|home| home.prefix = PathBuf::from("/data/home"));
        }
        reads.keep(&sources, &after);
        assert!(!reads.has_answered("people") && !reads.is_in_progress("people"));
        assert!(reads.is_due("people") && reads.is_outstanding("people", request), "the request is not forgotten");
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
        let (terms, pushed_before) = (Arc::new(Terms::of(&asked, &policy())), Some(pushed()));
        let answer = FinishedRead { terms, requests: 0, at: now(), pushed: pushed_before, read };
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
        let terms = Arc::new(Terms::of(&asked, &policy()));
        let answer = FinishedRead { terms, requests: 0, at, pushed: None, read };
        reads.answers.reads.lock().insert("people".to_owned(), answer);
        let began = now();
        let wanted = BTreeSet::from(["people".to_owned(), "realm".to_owned()]);
        reads.wait(&wanted, Patience::AfterAnswer).await;
        assert!(began.elapsed() < PATIENCE && !reads.has_answered("realm"));
    }

    /// Reads `people`, as a cycle would.
    fn begin(reads: &Reads, asked: &SourceConfig, pass: Pass) {
        reads.begin(question(asked, pass, policy()));
    }

    /// Takes the answers, and returns their sources and the outdated sources.
    async fn taken(reads: &Reads, asked: &SourceConfig) -> (Vec<String>, BTreeSet<String>) {
        let names = async |answered: Vec<SourceRead>, outdated: BTreeSet<String>| {
            (answered.into_iter().map(|read| read.source).collect::<Vec<_>>(), outdated)
        };
        reads.take(std::slice::from_ref(asked), names).await
    }

    /// The terms of the read that is in progress or has just answered. Each read has its own value.
    fn terms(reads: &Reads) -> Arc<Terms> {
        let sources = reads.sources.lock();
        Arc::clone(&sources["people"].reading.as_ref().expect("a read was begun").terms)
    }

    /// Lets the read that is in progress answer.
    fn answer(reads: &Reads) {
        let (terms, requests) = (terms(reads), reads.sources.lock()["people"].begun);
        let read = SourceRead::complete("people", [AccountKind::User], Vec::new());
        let answer = FinishedRead { terms, requests, at: now(), pushed: None, read };
        reads.answers.reads.lock().insert("people".to_owned(), answer);
    }

    #[tokio::test]
    async fn a_request_ends_no_read_and_another_read_follows() {
        let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let asked = people(silent.local_addr().expect("the socket has an address"));
        let (reads, cache) = (Reads::default(), SyncCache::default());
        begin(&reads, &asked, Pass::Changes(cache.clone()));
        let first = terms(&reads);
        let request = reads.request("people", true);
        begin(&reads, &asked, Pass::Changes(cache.clone()));
        assert!(Arc::ptr_eq(&first, &terms(&reads)), "the first read goes on");
        assert!(reads.is_in_progress("people") && !reads.is_due("people") && reads.is_outstanding("people", request));
        answer(&reads);
        assert!(reads.has_answered("people") && reads.is_due("people"));
        begin(&reads, &asked, Pass::Changes(cache.clone()));
        let (name, second) = ("people".to_owned(), terms(&reads));
        assert!(!Arc::ptr_eq(&first, &second) && reads.is_in_progress("people"), "another read begins");
        let outdated = BTreeSet::from([name.clone()]);
        assert_eq!(taken(&reads, &asked).await, (vec![name.clone()], outdated), "the first answer is used");
        assert!(Arc::ptr_eq(&second, &terms(&reads)) && reads.is_outstanding("people", request));
        answer(&reads);
        begin(&reads, &asked, Pass::Changes(cache));
        assert!(Arc::ptr_eq(&second, &terms(&reads)), "its answer is used before the source is read again");
        assert_eq!(taken(&reads, &asked).await, (vec![name], BTreeSet::new()));
        assert!(!reads.is_outstanding("people", request) && !reads.is_due("people"));
        reads.request("people", false);
        assert_eq!(taken(&reads, &asked).await, (Vec::new(), BTreeSet::new()), "`bursar sync` delays no order");
        reads.request("people", true);
        let other = SourceConfig { name: "realm".to_owned(), ..asked.clone() };
        let outdated = taken(&reads, &other).await.1;
        assert!(outdated.is_empty(), "a source that is no longer configured will not answer");
    }

    #[tokio::test]
    async fn a_source_that_hangs_alone_delays_only_the_cycles_at_its_beginning() {
        let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let asked = people(silent.local_addr().expect("the socket has an address"));
        let reads = Reads::default();
        begin(&reads, &asked, Pass::Once);
        let wanted = BTreeSet::from(["people".to_owned()]);
        for (patience, longest) in [(Patience::FromStart, PATIENCE), (Patience::AfterAnswer, LONGEST)] {
            if let Some(reading) = &mut reads.sources.lock().get_mut("people").expect("a read was begun").reading {
                reading.began = now().checked_sub(longest).expect("the host has run for ten seconds");
            }
            let began = now();
            reads.wait(&wanted, patience).await;
            assert!(began.elapsed() < LOOK && reads.is_in_progress("people"), "{patience:?}");
        }
    }

    #[tokio::test]
    async fn a_full_read_follows_a_read_of_changes() {
        let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let asked = people(silent.local_addr().expect("the socket has an address"));
        let (reads, cache) = (Reads::default(), SyncCache::default());
        let is_whole = || reads.sources.lock()["people"].reading.as_ref().map(|reading| reading.whole);
        begin(&reads, &asked, Pass::Changes(cache.clone()));
        begin(&reads, &asked, Pass::Whole(cache.clone()));
        assert_eq!((is_whole(), reads.is_due("people")), (Some(false), false), "the first read goes on");
        answer(&reads);
        assert!(reads.is_due("people"));
        begin(&reads, &asked, Pass::Changes(cache));
        assert_eq!((is_whole(), reads.is_due("people")), (Some(true), false));
    }
}
