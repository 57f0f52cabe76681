//! `bursard`: one loop over a closed set of events, in which the schedule, drift, the control socket and signals meet.
//! If events ask for a cycle while one runs, one more cycle serves them all. An order cuts a long cycle short; the rest
//! of that cycle follows after the order. In the daemon, only this module reads the wall clock, runs the scheduler and
//! notifies systemd.

mod candidate;
mod disk;
mod events;
mod inbox;
mod own;
mod proof;
mod schedule;

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use sd_notify::NotifyState;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_cron_scheduler::{JobScheduler, JobSchedulerError};
use tokio_util::sync::CancellationToken;

use self::events::{changes, drift, listen, take_signals};
use self::inbox::{Event, Inbox, UnderWay, health, notify};
use self::schedule::{schedule, watch_clock};
use crate::control::api::proof::RevocationProof;
use crate::control::api::{CycleReport, OrderAnswer};
use crate::control::server::{Question, Reply, Request};
use crate::cycle;
use crate::errors::chain;
use crate::execute::Extent;
use crate::orders::request::{RequestRefusal, Trigger};
use crate::report;
use crate::runtime::directories::ReadRequests;
use crate::runtime::{Runtime, RuntimeError};
use crate::settings::{Settings, SettingsErrors};
use crate::telemetry::Metrics;

/// The errors that end the daemon.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The configuration is wrong.
    #[error(transparent)]
    Settings(#[from] SettingsErrors),
    /// The ledger or the seal cannot be used, or a cluster belongs to another ledger.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// A socket or the signals cannot be set up.
    #[error("{what}")]
    Socket {
        /// The path or address of the socket.
        what: String,
        #[source]
        source: std::io::Error,
    },
    /// The schedule cannot be started.
    #[error("cannot start the schedule; check [schedule] in the configuration")]
    Schedule(#[from] JobSchedulerError),
}

/// Returns the current time in whole seconds, which is what the ledger keeps.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "the one place where the wall clock is read")]
pub fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

/// After this time, a cycle begins no further grants and repairs; the next cycle makes them. Planning 10,000 accounts
/// again takes less than a second, so a bootstrap loses little time.
const SLICE: Duration = Duration::from_secs(30);

/// How long a caller waits for the reads that carry out its orders. Most reads end before, even if one that is in
/// progress must end first. A directory that hangs does not: then the caller learns which source the orders wait for.
const READS_WAIT: Duration = Duration::from_mins(1);

/// Runs the daemon until SIGTERM or SIGINT.
///
/// # Errors
/// The errors that keep the daemon from working at all. Everything else is a state that `bursar status` shows.
pub async fn run(config: PathBuf) -> Result<(), DaemonError> {
    let settings = Settings::load(&config)?;
    warn(&settings);
    let mut runtime = Runtime::open(settings, Arc::new(Metrics::default()), now).await?;
    let stop = CancellationToken::new();
    let (sender, events) = mpsc::channel(64);
    let (request_sender, requests) = mpsc::channel(64);
    let sources = [
        take_signals(sender.clone())?,
        tokio::spawn(drift(runtime.changed(), runtime.clusters.urgent(), sender.clone())),
        tokio::spawn(changes(runtime.directories.changed(), sender.clone())),
        tokio::spawn(watch_clock(sender.clone())),
    ];
    runtime.work.slice = Some(SLICE);
    runtime.directories.expect_later_cycles();
    runtime.directories.follow();
    let listeners = listen(runtime.settings(), request_sender, &stop).await?;
    let scheduler = schedule(runtime.settings(), &sender).await?;
    notify(&[NotifyState::Ready]);
    tracing::info!(site = %runtime.settings().policy.site, "ready");
    let (due, waiters) = (BTreeSet::new(), Waiters::default());
    let (inbox, disk) = (Inbox::new(events, requests), disk::Begun::default());
    let daemon =
        Loop { config, runtime, inbox, scheduler, sender, due, served_logins: false, waiters, disk, looking: None };
    let result = Box::pin(daemon.run()).await;
    notify(&[NotifyState::Stopping]);
    stop.cancel();
    sources.iter().for_each(tokio::task::JoinHandle::abort);
    for listener in listeners {
        // The clients get their answers, or learn that the daemon stops.
        let _ = tokio::time::timeout(Duration::from_secs(2), listener).await;
    }
    result
}

struct Loop {
    config: PathBuf,
    runtime: Runtime,
    inbox: Inbox,
    scheduler: JobScheduler,
    sender: mpsc::Sender<Event>,
    /// The cycles that are due. One cycle serves several of them, see [`Loop::cycle`].
    due: BTreeSet<Trigger>,
    /// Whether the last cycle served only people who wait at a login.
    served_logins: bool,
    waiters: Waiters,
    disk: disk::Begun,
    /// Sends the event for `Runtime::next_look`.
    looking: Option<JoinHandle<()>>,
}

/// The callers that wait for the end of a cycle.
#[derive(Default)]
struct Waiters {
    /// Callers of `sync`, with the reads that each has asked for.
    syncs: Vec<(ReadRequests, Reply<CycleReport>)>,
    /// Callers that have a report, and wait for the sources that it lacks.
    rests: Vec<(ReadRequests, Reply<CycleReport>)>,
    /// Callers that wait for the cycle of their orders.
    orders: Vec<OrderWaiter>,
    /// Callers whose orders wait for reads after that cycle.
    reads: Vec<OrderWaiter>,
}

/// A caller that waits for orders to be carried out.
struct OrderWaiter {
    answer: OrderAnswer,
    /// The reads that carry out the orders.
    reads: ReadRequests,
    /// When the caller is answered even if these reads have not ended.
    until: Instant,
    reply: Reply<OrderAnswer>,
}

impl Loop {
    async fn run(mut self) -> Result<(), DaemonError> {
        self.due.insert(Trigger::Start);
        self.runtime.ledger.tell_the_head();
        let under_way = UnderWay::begin(&mut self.runtime);
        self.inbox.during(&under_way, self.runtime.start()).await?;
        // An order that arrived during the start goes first.
        if !under_way.work.interrupt.is_cancelled() {
            self.cycle().await?;
        }
        loop {
            // Events that arrive during a turn are handled in the next one. Otherwise, a stream of questions could
            // delay a cycle without end.
            let mut turn = self.inbox.len();
            while let Some(event) = self.inbox.ready(&mut turn) {
                if self.take(event).await?.is_break() {
                    return Box::pin(self.end()).await;
                }
            }
            if self.due.is_empty() {
                let event = self.inbox.next().await;
                if self.take(event).await?.is_break() {
                    return Box::pin(self.end()).await;
                }
                // Other events that are ready may ask for the same cycle.
                continue;
            }
            self.cycle().await?;
            if self.runtime.work.stop.is_cancelled() {
                self.runtime.must_own()?;
                return Box::pin(self.end()).await;
            }
        }
    }

    async fn end(mut self) -> Result<(), DaemonError> {
        self.waiters.tell_that_it_stops();
        self.scheduler.shutdown().await?;
        Ok(Box::pin(self.runtime.close()).await?)
    }

    /// Handles an event, or notes that a cycle is due.
    async fn take(&mut self, event: Event) -> Result<ControlFlow<()>, DaemonError> {
        match event {
            Event::Stop => return Ok(ControlFlow::Break(())),
            Event::Tick => drop(self.due.insert(Trigger::Schedule)),
            Event::FullRead => drop(self.due.insert(Trigger::FullRead)),
            Event::Change => drop(self.due.insert(Trigger::Change)),
            Event::Drift => drop(self.due.insert(Trigger::Drift)),
            Event::Backup => self.back_up(),
            Event::BackedUp(result) => self.backed_up(result),
            Event::Day => self.runtime.ledger.tell_the_head(),
            Event::TryDisk => self.try_disk().await?,
            Event::Reload => self.reload().await?,
            Event::LateReads => {
                if let Some(report) = self.runtime.ledger.last_cycle().cloned() {
                    self.answer_orders(&report).await;
                }
            }
            Event::ClockSetBack => {
                tracing::warn!("the clock was set back; the schedule begins again");
                self.reschedule().await?;
                self.due.insert(Trigger::Schedule);
            }
            Event::Asked(request) => self.asked(request).await?,
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Handles a request. If the caller is gone, a question is not answered, but orders are carried out.
    async fn asked(&mut self, request: Request) -> Result<(), DaemonError> {
        // A login's request is recorded even if its caller is gone, so that the account exists at the next login.
        if request.is_abandoned() && !matches!(request, Request::Ensure(..)) {
            return Ok(());
        }
        match request {
            Request::Alive(reply) => drop(reply.send(Ok(health(&self.runtime)))),
            Request::Status(reply) => drop(reply.send(Ok(self.runtime.status()))),
            Request::Metrics(reply) => drop(reply.send(Ok(self.runtime.exposition()))),
            Request::Plan(request, trusted, reply) => {
                let ask = match candidate::ask(&self.config, self.runtime.settings(), request, trusted) {
                    Ok(ask) => ask,
                    Err(refusal) => {
                        drop(reply.send(Err(refusal)));
                        return Ok(());
                    }
                };
                let under_way = UnderWay::begin(&mut self.runtime);
                let preview = Box::pin(cycle::preview_of(&mut self.runtime, &ask));
                let answer = self.inbox.during(&under_way, preview).await;
                let answer = match answer {
                    // A missing password of the other configuration is not a failure of the daemon.
                    Err(RuntimeError::Settings(errors)) => Err(candidate::wrong(&errors)),
                    answer => Ok(answer?),
                };
                drop(reply.send(answer));
            }
            Request::Sync(reply) => {
                // A refused password is tried again only once for each request, because repeated attempts with a wrong
                // password would lock the account in the directory.
                self.runtime.directories.forget_refusals();
                let reads = self.runtime.directories.request_all();
                self.waiters.syncs.push((reads, reply));
                self.due.insert(Trigger::Sync);
            }
            Request::SyncRest(reading, reply) => {
                let reads = reading.into_iter().map(|(source, reading)| (source, reading.request)).collect();
                self.waiters.rests.push((reads, reply));
                self.answer_rests();
            }
            Request::Own(Question::Show, uid, request, reply) => {
                drop(reply.send(
                    own::show(self.runtime.ledger.state(), &self.runtime.settings().ledger(), uid, &request).await,
                ));
            }
            Request::Own(Question::Why, uid, request, reply) => {
                drop(reply.send(own::why(self.runtime.ledger.state(), &self.runtime.settings().policy, uid, &request)));
            }
            Request::Who(uid, request, reply) => {
                let (ledger, settings) = (self.runtime.ledger.state(), self.runtime.settings());
                let answer = own::who(ledger, &settings.policy, &settings.ledger(), uid, &request).await;
                drop(reply.send(answer));
            }
            Request::Ensure(asker, request, reply) => {
                let Runtime { ledger, settings, .. } = &mut self.runtime;
                let (answer, wants) = match own::ensure(ledger, &settings.policy, &asker, &request).await {
                    Err(error) if error.is_of_the_disk() => (Err(self.stuck(&error)), None),
                    answer => answer.map_err(RuntimeError::from)?,
                };
                self.due.extend(wants);
                drop(reply.send(answer));
            }
            Request::Orders(actor, orders, reply) => {
                let (answer, reads) = match self.runtime.order_reads(&actor, &orders).await {
                    Err(RuntimeError::Store(error)) if error.is_of_the_disk() => {
                        drop(reply.send(Err(self.stuck(&error))));
                        return Ok(());
                    }
                    answer => answer?,
                };
                if answer.text.is_empty() {
                    drop(reply.send(Ok(answer)));
                } else {
                    let until = inbox::now() + READS_WAIT;
                    if !reads.is_empty() {
                        self.answer_at(until);
                    }
                    self.waiters.orders.push(OrderWaiter { answer, reads, until, reply });
                    self.due.insert(Trigger::Order);
                }
            }
        }
        Ok(())
    }

    /// Runs the cycle that is due first. A cycle for orders serves only them; any other cycle serves all that are due.
    /// A cycle for logins also runs alone, but only every other time, because people may log in without end.
    async fn cycle(&mut self) -> Result<(), DaemonError> {
        let is_for_logins = self.waiters.orders.is_empty() && self.due.contains(&Trigger::Order);
        if is_for_logins && self.served_logins && self.due.len() > 1 {
            self.due.remove(&Trigger::Order);
        }
        let Some(trigger) = self.due.pop_first() else { return Ok(()) };
        self.served_logins = is_for_logins && trigger == Trigger::Order;
        let others = if trigger == Trigger::Order { BTreeSet::new() } else { std::mem::take(&mut self.due) };
        let extent = if self.due.is_empty() { Extent::All } else { Extent::Urgent };
        let before = self.runtime.ledger.revoked();
        let under_way = UnderWay::begin(&mut self.runtime);
        let report = match self.inbox.during(&under_way, cycle::run(&mut self.runtime, trigger, extent)).await {
            Err(RuntimeError::Store(error)) if error.is_of_the_disk() => {
                return self.without_disk(&error, trigger).await;
            }
            report => report?,
        };
        log(&report);
        self.look_again();
        if self.runtime.directories.has_due_reads() {
            self.due.insert(Trigger::Change);
        }
        // A revocation that made progress goes on at once, and so does a handover that is ready. Anything else waits
        // for the schedule.
        let Runtime { ledger, settings, .. } = &self.runtime;
        if ledger.revoked() != before || ledger.state().hands_over(&settings.policy.clusters) {
            self.due.insert(Trigger::Pace);
        }
        let is_sliced = under_way.work.slice_over.is_cancelled() && report.left > 0;
        if under_way.work.interrupt.is_cancelled() {
            self.due.insert(trigger);
            self.due.extend(others);
            return Ok(());
        }
        if trigger != Trigger::Order {
            self.inbox.cuts = 0;
        }
        if is_sliced {
            // The rest needs no second full read, and reads no source before its interval is over. If a change of a
            // source ended the slice, the next cycle reads that source and also carries out the rest.
            let is_hurried = under_way.work.hurry.is_cancelled();
            self.due.insert(if is_hurried { Trigger::Change } else { Trigger::Schedule });
        }
        if trigger == Trigger::Order {
            let waiters = &mut self.waiters;
            waiters.reads.append(&mut waiters.orders);
        }
        if trigger == Trigger::Order || !is_sliced {
            self.answer_orders(&report).await;
        }
        if trigger.asks() && !is_sliced {
            self.answer_syncs(&report);
        }
        self.answer_rests();
        Ok(())
    }

    fn answer_syncs(&mut self, report: &CycleReport) {
        for (reads, reply) in self.waiters.syncs.drain(..) {
            let reading = self.runtime.still_reading(self.runtime.directories.outstanding(&reads));
            let _ = reply.send(Ok(CycleReport { reading, ..report.clone() }));
        }
    }

    /// Answers the callers for whom another source has answered, with the report of the last cycle. If a cycle is due that
    /// reads, it may still have to use an answer, and answers them afterwards.
    fn answer_rests(&mut self) {
        if self.due.iter().any(|trigger| trigger.asks()) {
            return;
        }
        let Some(report) = self.runtime.ledger.last_cycle() else { return };
        for (reads, reply) in std::mem::take(&mut self.waiters.rests) {
            let outstanding = self.runtime.directories.outstanding(&reads);
            if !outstanding.is_empty() && outstanding == reads {
                self.waiters.rests.push((reads, reply));
            } else {
                let reading = self.runtime.still_reading(outstanding);
                let _ = reply.send(Ok(CycleReport { reading, ..report.clone() }));
            }
        }
    }

    /// Sends the event for callers whose reads have not ended by then.
    fn answer_at(&self, until: Instant) {
        let sender = self.sender.clone();
        tokio::spawn(async move {
            tokio::time::sleep_until(until).await;
            // If the loop has ended, it needs no event.
            let _ = sender.send(Event::LateReads).await;
        });
    }

    /// Answers the callers whose orders wait for no read, and those who have waited for [`READS_WAIT`].
    async fn answer_orders(&mut self, report: &CycleReport) {
        let Runtime { ledger, settings, directories, .. } = &self.runtime;
        // An order may be carried out before all its sources have answered.
        let outstanding = |reads: &ReadRequests| {
            let mut outstanding = directories.outstanding(reads);
            outstanding.retain(|source, _| ledger.state().waits_for(source));
            outstanding
        };
        let now = inbox::now();
        let is_over = |waiter: &mut OrderWaiter| waiter.until <= now || outstanding(&waiter.reads).is_empty();
        let answered: Vec<OrderWaiter> = self.waiters.reads.extract_if(.., is_over).collect();
        for OrderWaiter { mut answer, reads, until: _, reply } in answered {
            let late = self
                .runtime
                .still_reading(outstanding(&reads))
                .into_iter()
                .map(|(source, reading)| RequestRefusal { exit_code: 1, text: format!("source {source}: {reading}") });
            let proofs = proof::of(ledger.state(), &settings.ledger(), &answer.revoked).await;
            let unread = proofs.as_ref().err().map(|error| {
                let text = format!("the revocation is recorded, but its proof cannot be read: {}", chain(error));
                RequestRefusal { exit_code: 1, text }
            });
            answer.proofs = proofs.unwrap_or_default();
            let mut open = report::unfinished::after(report, &answer);
            open.extend(unread);
            open.extend(late);
            open.extend(answer.proofs.iter().filter_map(RevocationProof::open));
            let _ = reply.send(Ok(OrderAnswer { open, report: Some(report.clone()), ..answer }));
        }
    }

    /// Schedules the cycle for `Runtime::next_look`: for a check of a delivery, or for a retry.
    fn look_again(&mut self) {
        if let Some(later) = self.looking.take() {
            later.abort();
        }
        let Some(wait) = self.runtime.next_look() else { return };
        let sender = self.sender.clone();
        self.looking = Some(tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            // If the loop has ended, it needs no event.
            let _ = sender.send(Event::Drift).await;
        }));
    }

    async fn reschedule(&mut self) -> Result<(), DaemonError> {
        let next = schedule(self.runtime.settings(), &self.sender).await?;
        Ok(std::mem::replace(&mut self.scheduler, next).shutdown().await?)
    }

    /// Applies the configuration if it is valid; otherwise keeps the old one.
    async fn reload(&mut self) -> Result<(), DaemonError> {
        notify(&[NotifyState::Reloading]);
        match Settings::load(&self.config).and_then(|settings| self.runtime.reload(settings)) {
            Ok(()) => {
                warn(self.runtime.settings());
                self.runtime.directories.follow();
                self.reschedule().await?;
                self.due.insert(Trigger::Reload);
                tracing::info!("configuration reloaded");
            }
            Err(errors) => {
                tracing::error!(error = %chain(&errors), "the old configuration stays in force");
                self.runtime.refuse(&errors);
            }
        }
        notify(&[NotifyState::Ready]);
        Ok(())
    }
}

fn warn(settings: &Settings) {
    for warning in &settings.warnings {
        tracing::warn!(warning, "configuration");
    }
}

impl Waiters {
    /// Answers the callers that wait for orders: the orders are recorded, and the next cycle carries them out. Callers
    /// that wait for a cycle learn of the stop when their reply is dropped.
    fn tell_that_it_stops(&mut self) {
        for OrderWaiter { answer, reply, .. } in self.orders.drain(..).chain(self.reads.drain(..)) {
            let text = "the daemon is stopping; the next cycle carries out the order".to_owned();
            let _ = reply.send(Ok(OrderAnswer { open: vec![RequestRefusal { exit_code: 1, text }], ..answer }));
        }
    }
}

fn log(report: &CycleReport) {
    let CycleReport { id, trigger, changed, unchanged, actions, failing, rejected, partial, refusals, pace, .. } =
        report;
    if *changed == 0 && failing.is_empty() && partial.is_empty() && refusals.is_empty() {
        return tracing::debug!(cycle = id, trigger = trigger.name(), unchanged, "nothing to do");
    }
    let trigger = trigger.name();
    tracing::info!(cycle = id, trigger, changed, unchanged, actions, failing = failing.len(), rejected, "cycle");
    for (source, why) in partial {
        tracing::warn!(cycle = id, source, why, "partial");
    }
    for failing in failing {
        let (step, reason) = (&failing.step, &failing.reason);
        tracing::warn!(cycle = id, account = %failing.account, action = step, reason, "failing");
    }
    for progress in pace {
        let (class, done, waiting) = (&progress.class, progress.done, progress.waiting);
        let reason = progress.to_string();
        if progress.stopped_by.is_empty() {
            tracing::info!(cycle = id, class, done, waiting, reason, "pace");
        } else {
            tracing::warn!(cycle = id, class, done, waiting, reason, "pace");
        }
    }
    for refusal in refusals {
        tracing::warn!(cycle = id, limit = refusal.limit, hash = refusal.hash, reason = refusal.why, "refused");
    }
}
