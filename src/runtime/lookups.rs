//! Looks up accounts that reads no longer show, one task for each source. A cycle waits only briefly for a slow server:
//! it takes the server's marks at once, and only the absences wait. An answer that comes later starts another cycle. No
//! order aborts a look-up.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bursar_directory::confirm::look_up;
use bursar_directory::{Known, Pass, SourceConfig};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::task::AbortOnDropHandle;

use super::reads::{Attended, LOOK, PATIENCE, Patience, now};
use crate::identity::DirectoryId;
use crate::snapshot::proof::{Due, Proof, Verdict};
use crate::snapshot::{Completeness, DirectorySnapshot};

/// How long the proof of an absence is reused. A limit may refuse the suspension for days; without this time, each read
/// would ask all servers again. If a read shows the entry, the proof is dropped.
const PROVED: Duration = Duration::from_hours(1);
/// How long servers that disagree are not asked again. An absence is counted at the same intervals.
const DISAGREED: Duration = Duration::from_mins(5);

/// The look-ups that are in progress, and their answers.
#[derive(Default)]
pub(super) struct LookUps {
    sources: Arc<Mutex<BTreeMap<String, LookUp>>>,
    answered: Arc<Notify>,
}

/// The look-ups of one source.
struct LookUp {
    /// The source as configured. If the configuration changes, this value is dropped.
    source: SourceConfig,
    /// The accounts that the task asks for.
    asked: BTreeSet<DirectoryId>,
    task: Option<AbortOnDropHandle<()>>,
    /// When the task began. The time also distinguishes the answers of this task from those of an abandoned task.
    began: Instant,
    answers: BTreeMap<DirectoryId, Looked>,
    /// Whether a cycle waits for the answers. It does not if it has no complete read of the source.
    attended: Arc<AtomicBool>,
}

struct Looked {
    at: Instant,
    proof: Proof,
    /// Whether a read was judged by this answer.
    is_used: bool,
}

/// What look-ups need.
pub(super) struct LookUpRequest<'a> {
    pub(super) sources: &'a [SourceConfig],
    pub(super) pass: &'a Pass,
    pub(super) known: Known,
    /// The accounts whose absence would be due, by source.
    pub(super) due: BTreeMap<String, Vec<Due>>,
    pub(super) patience: Patience,
    /// Notified of answers for which no cycle waits.
    pub(super) changed: Arc<Notify>,
}

impl LookUps {
    /// Drops the answers of `source`, because an administrator asks for its present state. A look-up in progress goes on.
    pub(super) fn forget(&self, source: &str) {
        if let Some(look_up) = self.sources.lock().get_mut(source) {
            look_up.answers.clear();
        }
    }

    /// Whether there are answers about accounts of `source` that no read was judged by yet.
    pub(super) fn has_news(&self, source: &str) -> bool {
        let sources = self.sources.lock();
        sources.get(source).is_some_and(|look_up| look_up.answers.values().any(|answer| !answer.is_used))
    }

    /// Records in `snapshot` what the servers answer about the accounts that are due. Accounts for which no answer has
    /// arrived when the patience is over are `unanswered`.
    pub(super) async fn confirm(&self, question: LookUpRequest<'_>, snapshot: &mut DirectorySnapshot) {
        let LookUpRequest { sources, pass, known, mut due, patience, changed } = question;
        let mut wanted = BTreeMap::new();
        for read in snapshot.reads.iter_mut().filter(|read| read.completeness == Completeness::Complete) {
            let Some(source) = sources.iter().find(|source| source.name == read.source) else { continue };
            if !source.has_servers() {
                continue;
            }
            let due = due.remove(&read.source).unwrap_or_default();
            wanted.insert(read.source.clone(), due.iter().map(|due| due.id.clone()).collect::<BTreeSet<_>>());
            let server = read.server.clone().unwrap_or_default();
            self.begin(source, (pass, &known, &changed), &due, server);
        }
        self.wait(&wanted, patience).await;
        for read in &mut snapshot.reads {
            let Some(due) = wanted.remove(&read.source) else { continue };
            let proofs = self.take(&read.source, &due);
            read.unanswered = due.into_iter().filter(|id| !proofs.contains_key(id)).collect();
            read.proofs = Some(proofs);
        }
    }

    /// Asks for the accounts without an answer, unless a look-up of the source is in progress. Answers about accounts
    /// that are no longer due are dropped, because a read has shown them since.
    fn begin(
        &self,
        source: &SourceConfig,
        (pass, known, changed): (&Pass, &Known, &Arc<Notify>),
        due: &[Due],
        server: String,
    ) {
        let mut sources = self.sources.lock();
        if sources.get(&source.name).is_some_and(|look_up| look_up.source != *source) {
            sources.remove(&source.name);
        }
        let began = now();
        let of_source = sources.entry(source.name.clone()).or_insert_with(|| LookUp::of(source, began));
        let ids: BTreeSet<&DirectoryId> = due.iter().map(|due| &due.id).collect();
        of_source.asked.retain(|id| ids.contains(id));
        of_source.answers.retain(|id, answer| ids.contains(id) && answer.is_valid(began));
        let missing: Vec<Due> = due.iter().filter(|due| !of_source.answers.contains_key(&due.id)).cloned().collect();
        if missing.is_empty() || of_source.is_running() {
            return;
        }
        of_source.asked = missing.iter().map(|due| due.id.clone()).collect();
        of_source.began = began;
        let (all, answered) = (Arc::clone(&self.sources), Arc::clone(&self.answered));
        let (attended, changed) = (Arc::clone(&of_source.attended), Arc::clone(changed));
        let (source, pass, marks) = (source.clone(), pass.clone(), known.clone());
        let asking = async move {
            let mut proofs = look_up(&source, &pass, &marks, missing, server).await.unwrap_or_default();
            if let Some(known) = all.lock().get_mut(&source.name).filter(|known| known.began == began) {
                let at = now();
                for id in std::mem::take(&mut known.asked) {
                    let proof = proofs.remove(&id).unwrap_or_default();
                    known.answers.insert(id, Looked { at, proof, is_used: false });
                }
            }
            answered.notify_one();
            if !attended.load(Ordering::Relaxed) {
                changed.notify_one();
            }
        };
        of_source.task = Some(AbortOnDropHandle::new(tokio::spawn(asking)));
    }

    /// Waits until no look-up of `wanted` is in progress, or until the patience is over.
    async fn wait(&self, wanted: &BTreeMap<String, BTreeSet<DirectoryId>>, patience: Patience) {
        let _attended: Vec<Attended> = {
            let sources = self.sources.lock();
            let asked = wanted.keys().filter_map(|source| sources.get(source));
            asked.map(|look_up| Attended::by(&look_up.attended)).collect()
        };
        loop {
            let first = {
                let sources = self.sources.lock();
                let running = wanted.keys().filter_map(|source| sources.get(source)).filter(|it| it.is_running());
                let Some(first) = running.map(|look_up| look_up.began).min() else { return };
                first
            };
            tokio::select! {
                () = self.answered.notified() => {}
                () = sleep(LOOK) => {}
                () = sleep_until(first + PATIENCE), if patience != Patience::Endless => return,
            }
        }
    }

    /// Returns the answers about the accounts that are `due`.
    fn take(&self, source: &str, due: &BTreeSet<DirectoryId>) -> BTreeMap<DirectoryId, Proof> {
        let mut sources = self.sources.lock();
        let Some(look_up) = sources.get_mut(source) else { return BTreeMap::new() };
        let known = look_up.answers.iter_mut().filter(|(id, _)| due.contains(id));
        known
            .map(|(id, answer)| {
                answer.is_used = true;
                (id.clone(), answer.proof.clone())
            })
            .collect()
    }
}

impl LookUp {
    fn of(source: &SourceConfig, began: Instant) -> Self {
        let (asked, answers, attended) = (BTreeSet::new(), BTreeMap::new(), Arc::default());
        Self { source: source.clone(), asked, task: None, began, answers, attended }
    }

    fn is_running(&self) -> bool {
        !self.asked.is_empty() && self.task.as_ref().is_some_and(|task| !task.is_finished())
    }
}

impl Looked {
    /// Whether a read may be judged by this answer. The first read after the look-up always may, even an hour later.
    fn is_valid(&self, now: Instant) -> bool {
        let lasts = match self.proof.verdict() {
            Verdict::Gone => PROVED,
            Verdict::Disagreement { .. } => DISAGREED,
            Verdict::There | Verdict::Unknown => Duration::ZERO,
        };
        !self.is_used || now.duration_since(self.at) < lasts
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Poll;

    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;
    use crate::identity::AccountKind;
    use crate::runtime::reads::tests::people;
    use crate::snapshot::SourceRead;
    use crate::snapshot::proof::EntryPlace;

    fn due(number: u8) -> Due {
        Due { id: DirectoryId(format!("u{number}")), kind: AccountKind::User, dn: format!("uid=p{number}") }
    }

    fn question<'a>(sources: &'a [SourceConfig], due: &[Due], patience: Patience) -> LookUpRequest<'a> {
        let due = BTreeMap::from([("people".to_owned(), due.to_vec())]);
        LookUpRequest { sources, pass: &Pass::Once, known: Known::new(), due, patience, changed: Arc::default() }
    }

    fn snapshot() -> DirectorySnapshot {
        let reads = vec![SourceRead::complete("people", [AccountKind::User], Vec::new())];
        DirectorySnapshot { reads, ..DirectorySnapshot::default() }
    }

    #[tokio::test]
    async fn a_silent_server_holds_up_only_the_absence_and_no_order_ends_the_look_up() {
        let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let sources = [people(silent.local_addr().expect("the socket has an address"))];
        let look_ups = LookUps::default();
        // An order drops the cycle in the middle of the look-up.
        let mut cut = snapshot();
        let mut cycle = Box::pin(look_ups.confirm(question(&sources, &[due(1)], Patience::Endless), &mut cut));
        poll_fn(|context| {
            assert!(cycle.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
        drop(cycle);
        let connection = timeout(Duration::from_secs(30), silent.accept()).await.expect("the server is asked");
        for _ in 0..2 {
            let mut read = snapshot();
            let all = [due(1), due(2)];
            let confirm = look_ups.confirm(question(&sources, &all, Patience::AfterAnswer), &mut read);
            timeout(Duration::from_secs(20), confirm).await.expect("the cycle does not wait for the server");
            let read = &read.reads[0];
            assert_eq!((read.unanswered.len(), read.proofs.as_ref().map(BTreeMap::len)), (2, Some(0)));
        }
        look_ups.forget("people");
        assert!(look_ups.sources.lock()["people"].is_running(), "the first look-up goes on");
        drop(connection);
    }

    #[tokio::test]
    async fn an_answer_that_comes_while_a_cycle_waits_for_another_source_starts_a_cycle() {
        let look_ups = LookUps::default();
        let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let sources = [people(silent.local_addr().expect("the socket has an address"))];
        let changed = Arc::new(Notify::new());
        let mut read = snapshot();
        let asked =
            LookUpRequest { changed: Arc::clone(&changed), ..question(&sources, &[due(1)], Patience::FromStart) };
        look_ups.confirm(asked, &mut read).await;
        let others = BTreeMap::from([("realm".to_owned(), BTreeSet::new())]);
        let other = SourceConfig { name: "realm".to_owned(), ..sources[0].clone() };
        let mut hangs = LookUp::of(&other, now());
        hangs.asked.insert(due(2).id);
        hangs.task = Some(AbortOnDropHandle::new(tokio::spawn(std::future::pending())));
        look_ups.sources.lock().insert("realm".to_owned(), hangs);
        // The server breaks the connection, which ends the look-up.
        let (connection, _) = silent.accept().await.expect("the server is asked");
        drop((connection, silent));
        tokio::select! {
            () = look_ups.wait(&others, Patience::Endless) => panic!("the other look-up hangs"),
            told = timeout(Duration::from_secs(30), changed.notified()) => told.expect("a cycle is started"),
        }
    }

    #[tokio::test]
    async fn the_proof_of_an_absence_is_used_again_until_the_entry_is_shown() {
        // Nothing listens there any more, so a look-up proves nothing.
        let address = {
            let closed = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
            closed.local_addr().expect("the socket has an address")
        };
        let sources = [people(address)];
        let look_ups = LookUps::default();
        let confirmed = async |due: &[Due]| {
            let mut read = snapshot();
            look_ups.confirm(question(&sources, due, Patience::Endless), &mut read).await;
            let proofs = read.reads[0].proofs.take().expect("the source has servers");
            proofs.into_values().map(|proof| proof.verdict()).collect::<Vec<_>>()
        };
        assert_eq!(confirmed(&[due(1)]).await, [Verdict::Unknown]);
        let gone = Proof { servers: vec![("a".to_owned(), EntryPlace::Nowhere)] };
        let answered = |proof: &Proof| {
            let answer = Looked { at: now(), proof: proof.clone(), is_used: false };
            let mut sources = look_ups.sources.lock();
            sources.get_mut("people").expect("the source was asked").answers.insert(due(1).id, answer);
        };
        answered(&gone);
        for _ in 0..3 {
            assert_eq!(confirmed(&[due(1)]).await, [Verdict::Gone]);
        }
        assert_eq!(confirmed(&[]).await, [], "a read shows the entry");
        assert_eq!(confirmed(&[due(1)]).await, [Verdict::Unknown]);
        answered(&gone);
        look_ups.forget("people");
        assert_eq!(confirmed(&[due(1)]).await, [Verdict::Unknown], "an administrator asks for the present state");
        // An answer that proves nothing is used once.
        let answer = Looked { at: now(), proof: Proof::default(), is_used: true };
        assert!(!answer.is_valid(now()));
        assert!(Looked { is_used: false, ..answer }.is_valid(now() + PROVED * 2));
    }
}
