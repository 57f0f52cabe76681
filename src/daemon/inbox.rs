//! What comes in, and who is told meanwhile that the daemon is alive: while a cycle runs, questions are answered with how
//! things stood when it began, an order cuts it short, a stop ends it, and systemd's watchdog hears that it goes on.

use std::collections::VecDeque;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::sync::mpsc;
use tokio::time::{Instant, Interval, MissedTickBehavior};

use crate::control::api::Status;
use crate::control::server::Request;
use crate::orders::request::Refusal;
use crate::runtime::{Progress, Runtime, Work};
use crate::store::StoreError;
use crate::store::backup::Backup;

/// How long a stopping daemon lets what is under way go on. Below systemd's default `TimeoutStopSec` of 90 s.
const SOFT_STOP: Duration = Duration::from_mins(1);
/// A cycle of which no step ends for so long hangs: every request has a deadline far below.
const HANGS: Duration = Duration::from_mins(10);
/// So long may a cycle keep somebody waiting at a login. Cut at once, cycles would never end while many people log in.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often that is looked at where systemd does not ask.
const LOOK: Duration = Duration::from_secs(10);

/// Why the daemon does something.
#[derive(Debug)]
pub(super) enum Event {
    /// The schedule says so.
    Tick,
    /// The schedule says that directories are to be read in full.
    FullRead,
    /// A directory told of a change.
    Change,
    /// A cluster is no longer as the plan knew it.
    Drift,
    /// Somebody asks over the control socket.
    Asked(Request),
    /// The schedule says that the ledger is to be copied.
    Backup,
    /// It was, or was not.
    BackedUp(Result<Backup, StoreError>),
    /// A day is over: the history's head goes to the journal.
    Day,
    /// Whether the ledger takes writes again is to be looked at.
    TryDisk,
    /// SIGHUP.
    Reload,
    /// SIGTERM or SIGINT.
    Stop,
}

/// Work that is about to begin: how things stand before it, how it is cut short or ended, and how it says that it goes on.
pub(super) struct UnderWay {
    status: Status,
    exposition: String,
    health: String,
    pub(super) work: Work,
}

impl UnderWay {
    pub(super) fn begin(runtime: &mut Runtime) -> Self {
        let work = runtime.begin();
        let (status, exposition, health) = (runtime.status(), runtime.exposition(), health(runtime));
        Self { status, exposition, health, work }
    }
}

/// What `/healthz` says of a loop that turns. A ledger that takes no writes is said and is no reason to restart the
/// daemon: it goes on reading, and recovers by itself.
pub(super) fn health(runtime: &Runtime) -> String {
    match runtime.ledger.trouble() {
        Some(trouble) => format!("degraded: the ledger takes no writes: {}", trouble.why),
        None => "ok".to_owned(),
    }
}

pub(super) struct Inbox {
    events: mpsc::Receiver<Event>,
    /// What came during a cycle and waits for its end.
    waiting: VecDeque<Event>,
    /// A cycle was cut short for somebody at a login, and none has come to its end since. Until then none is cut for that:
    /// everybody on the host may ask, without end.
    pub(super) cut_for_login: bool,
    pulse: Interval,
}

impl Inbox {
    pub(super) fn new(events: mpsc::Receiver<Event>) -> Self {
        let mut pulse = tokio::time::interval(sd_notify::watchdog_enabled().map_or(LOOK, |every| every / 2));
        pulse.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { events, waiting: VecDeque::new(), cut_for_login: false, pulse }
    }

    /// How much is there already.
    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.events.len()
    }

    /// One of `turn` events; a stop always has its turn.
    pub(super) fn ready(&mut self, turn: &mut usize) -> Option<Event> {
        if *turn == 0 && !matches!(self.waiting.front(), Some(Event::Stop)) {
            return None;
        }
        *turn = turn.saturating_sub(1);
        self.waiting.pop_front().or_else(|| self.events.try_recv().ok())
    }

    /// Waits for the next.
    pub(super) async fn next(&mut self) -> Event {
        loop {
            tokio::select! {
                event = self.events.recv() => return event.unwrap_or(Event::Stop),
                _ = self.pulse.tick() => notify(&[NotifyState::Watchdog]),
            }
        }
    }

    /// Does `work` to its end.
    pub(super) async fn during<T>(&mut self, under_way: &UnderWay, work: impl Future<Output = T>) -> T {
        let UnderWay { status, exposition, health, work: Work { interrupt, stop, progress, .. } } = under_way;
        tokio::pin!(work);
        let (mut deadline, mut patience) = (None, None);
        let may_be_cut = !self.cut_for_login;
        let mut alive = Alive { steps: progress.steps(), since: now() };
        loop {
            tokio::select! {
                done = &mut work => return done,
                Some(event) = self.events.recv() => match event {
                    Event::Stop if deadline.is_none() => {
                        stop.cancel();
                        deadline = Some(now() + SOFT_STOP);
                        self.waiting.push_front(Event::Stop);
                    }
                    Event::Stop => std::process::exit(1),
                    Event::Asked(Request::Status(reply)) => drop(reply.send(Ok(status.clone()))),
                    Event::Asked(Request::Metrics(reply)) => drop(reply.send(Ok(exposition.clone()))),
                    Event::Asked(Request::Alive(reply)) => {
                        drop(reply.send(alive.check(progress).map(|()| health.clone())));
                    }
                    event => {
                        match event {
                            Event::Asked(Request::Orders(..)) => interrupt.cancel(),
                            Event::Asked(Request::Ensure(..)) if may_be_cut => {
                                patience.get_or_insert_with(|| now() + PATIENCE);
                            }
                            _ => {}
                        }
                        self.waiting.push_back(event);
                    }
                },
                _ = self.pulse.tick() => match alive.check(progress) {
                    Ok(()) => notify(&[NotifyState::Watchdog]),
                    // systemd ends and restarts the daemon when it hears nothing.
                    Err(refusal) => tracing::error!("{}", refusal.text),
                },
                () = at(patience) => {
                    interrupt.cancel();
                    self.cut_for_login = true;
                    patience = None;
                }
                () = at(deadline) => {
                    tracing::error!("work in progress did not finish in time after the stop; exiting");
                    std::process::exit(1);
                }
            }
        }
    }
}

/// When a step of the cycle last ended.
struct Alive {
    steps: u64,
    since: Instant,
}

impl Alive {
    fn check(&mut self, progress: &Progress) -> Result<(), Refusal> {
        if progress.steps() != self.steps {
            *self = Self { steps: progress.steps(), since: now() };
        }
        if self.since + HANGS > now() {
            return Ok(());
        }
        let text = format!("the cycle hangs: none of its steps ended in {} minutes", HANGS.as_secs() / 60);
        Err(Refusal { exit_code: 69, text })
    }
}

async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

#[expect(clippy::disallowed_methods, reason = "how long a cycle takes is no decision")]
fn now() -> Instant {
    Instant::now()
}

/// Tells systemd.
pub(super) fn notify(states: &[NotifyState<'_>]) {
    // Without systemd there is nobody to tell.
    let _ = sd_notify::notify(states);
}
