//! Receives the events of the daemon. While a cycle runs, this module answers questions with the state from before the
//! cycle, cuts the cycle short for an order or a change, and ends the cycle at a stop. It also tells systemd's watchdog
//! that the cycle makes progress.

use std::collections::VecDeque;
use std::sync::LazyLock;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::sync::mpsc;
use tokio::time::{Instant, Interval, MissedTickBehavior};

use crate::control::api::Status;
use crate::control::server::Request;
use crate::orders::request::RequestRefusal;
use crate::runtime::{ReadProgress, Runtime, StepCounter, Work};
use crate::store::StoreError;
use crate::store::backup::Backup;

/// How long work in progress may go on after a stop. It is below systemd's default `TimeoutStopSec` of 90 s.
const SOFT_STOP: Duration = Duration::from_mins(1);
/// If no step of a cycle ends for this long, the cycle hangs. The deadline of every request is far shorter.
const HANGS: Duration = Duration::from_mins(10);
/// How long a change in a directory waits for the running cycle before it cuts the cycle short. Most cycles end within
/// this time. Each cycle in a row that was cut doubles the time.
const PATIENCE: Duration = Duration::from_millis(200);
/// The most cycles in a row that changes cut short. The next one runs to its end, because changes may never stop.
const MOST_CUTS: u32 = 4;
/// How long a person at a login waits before the running cycle is cut short, unless the cycle before was cut. This is
/// longer, because every local user can ask.
const PATIENCE_OF_PEOPLE: Duration = Duration::from_secs(1);
/// The number of requests that may wait for the end of a cycle. Users without the right to read may have only half as
/// many connections open, so their requests reach this limit only if callers have gone away.
const WAITING_REQUESTS: usize = 64;
/// How often progress is checked if systemd's watchdog is off.
const LOOK: Duration = Duration::from_secs(10);

/// What the daemon reacts to.
#[derive(Debug)]
pub(super) enum Event {
    /// A scheduled cycle.
    Tick,
    /// A scheduled full read of the directories.
    FullRead,
    /// A directory reported a change.
    Change,
    /// A cluster changed since the last plan.
    Drift,
    /// A request over the control socket.
    Asked(Request),
    /// The wall clock was set back.
    ClockSetBack,
    /// A scheduled backup of the ledger.
    Backup,
    /// A backup succeeded or failed.
    BackedUp(Result<Backup, StoreError>),
    /// A day has passed, so the head of the history is logged.
    Day,
    /// It is time to check whether the ledger takes writes again.
    TryDisk,
    /// A caller has waited long enough for the reads that carry out its orders.
    LateReads,
    /// SIGHUP.
    Reload,
    /// SIGTERM or SIGINT.
    Stop,
}

/// A value that is built at the first question.
type Later<T> = LazyLock<T, Box<dyn FnOnce() -> T + Send>>;

/// Work that is about to begin: the state before it, and the controls that cut it short and show its progress.
pub(super) struct UnderWay {
    status: Later<Status>,
    reading: ReadProgress,
    exposition: Later<String>,
    health: String,
    pub(super) work: Work,
}

impl UnderWay {
    pub(super) fn begin(runtime: &mut Runtime) -> Self {
        let work = runtime.begin();
        let status = LazyLock::new(runtime.status_later());
        let exposition = LazyLock::new(runtime.exposition_later());
        Self { status, reading: runtime.directories.progress(), exposition, health: health(runtime), work }
    }
}

/// Returns the text of `/healthz` for a daemon that does not hang. A ledger that takes no writes is reported, but is no
/// reason for a restart: the daemon goes on reading, and recovers by itself.
pub(super) fn health(runtime: &Runtime) -> String {
    match runtime.ledger.trouble() {
        Some(trouble) => format!("degraded: the ledger takes no writes: {}", trouble.why),
        None => "ok".to_owned(),
    }
}

pub(super) struct Inbox {
    events: mpsc::Receiver<Event>,
    /// Requests of clients. They have a channel of their own, because clients may fill it without end. The schedule,
    /// signals and changes must not wait for a place in it.
    requests: mpsc::Receiver<Request>,
    /// Events that came during a cycle and wait for its end.
    waiting: VecDeque<Event>,
    /// The number of cycles that changes or logins cut short since a cycle last finished.
    pub(super) cuts: u32,
    pulse: Interval,
}

impl Inbox {
    pub(super) fn new(events: mpsc::Receiver<Event>, requests: mpsc::Receiver<Request>) -> Self {
        let mut pulse = tokio::time::interval(sd_notify::watchdog_enabled().map_or(LOOK, |every| every / 2));
        pulse.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { events, requests, waiting: VecDeque::new(), cuts: 0, pulse }
    }

    /// Returns the number of events that wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.events.len() + self.requests.len()
    }

    /// Returns one of the next `turn` events. A stop is always returned.
    pub(super) fn ready(&mut self, turn: &mut usize) -> Option<Event> {
        if *turn == 0 && !matches!(self.waiting.front(), Some(Event::Stop)) {
            return None;
        }
        *turn = turn.saturating_sub(1);
        let next = self.waiting.pop_front().or_else(|| self.events.try_recv().ok());
        next.or_else(|| self.requests.try_recv().ok().map(Event::Asked))
    }

    /// Waits for the next event.
    pub(super) async fn next(&mut self) -> Event {
        loop {
            tokio::select! {
                event = received(&mut self.events, &mut self.requests) => return event.unwrap_or(Event::Stop),
                _ = self.pulse.tick() => notify(&[NotifyState::Watchdog]),
            }
        }
    }

    /// Keeps an event until the work ends. Every user on the host may ask, so the number of questions that wait is
    /// limited.
    fn defer(&mut self, event: Event) {
        let Event::Asked(request) = event else { return self.waiting.push_back(event) };
        let is_full = |waiting: &VecDeque<Event>| {
            waiting.iter().filter(|event| matches!(event, Event::Asked(_))).count() >= WAITING_REQUESTS
        };
        if is_full(&self.waiting) {
            self.waiting.retain(|event| !matches!(event, Event::Asked(request) if request.is_abandoned()));
        }
        if request.is_open_to_all() && is_full(&self.waiting) {
            let text = "too many requests wait for the end of a cycle; try again in a minute".to_owned();
            return request.refuse(RequestRefusal { exit_code: 75, text });
        }
        self.waiting.push_back(Event::Asked(request));
    }

    /// Runs `work` to its end, and handles events meanwhile.
    pub(super) async fn during<T>(&mut self, under_way: &UnderWay, work: impl Future<Output = T>) -> T {
        let UnderWay { status, reading, exposition, health, work: Work { interrupt, hurry, stop, progress, .. } } =
            under_way;
        tokio::pin!(work);
        let (mut deadline, mut patience) = (None, None);
        let cuts = self.cuts;
        let mut alive = Alive { steps: progress.steps(), since: now() };
        loop {
            tokio::select! {
                done = &mut work => return done,
                Some(event) = received(&mut self.events, &mut self.requests) => match event {
                    Event::Stop if deadline.is_none() => {
                        stop.cancel();
                        deadline = Some(now() + SOFT_STOP);
                        self.waiting.push_front(Event::Stop);
                    }
                    Event::Stop => std::process::exit(1),
                    Event::Asked(Request::Status(reply)) => {
                        drop(reply.send(Ok(Status { reading: reading.counts(), ..Status::clone(status) })));
                    }
                    Event::Asked(Request::Metrics(reply)) => drop(reply.send(Ok(String::clone(exposition)))),
                    Event::Asked(Request::Alive(reply)) => {
                        drop(reply.send(alive.check(progress).map(|()| health.clone())));
                    }
                    event => {
                        match event {
                            Event::Asked(Request::Orders(..)) => interrupt.cancel(),
                            Event::Change => hurry.cancel(),
                            _ => {}
                        }
                        let most = match event {
                            Event::Change if cuts < MOST_CUTS => Some(PATIENCE * 2_u32.pow(cuts)),
                            Event::Asked(Request::Ensure(..)) if cuts == 0 => Some(PATIENCE_OF_PEOPLE),
                            _ => None,
                        };
                        if let Some(until) = most.map(|most| now() + most) {
                            patience = Some(patience.map_or(until, |known| until.min(known)));
                        }
                        self.defer(event);
                    }
                },
                _ = self.pulse.tick() => match alive.check(progress) {
                    Ok(()) => notify(&[NotifyState::Watchdog]),
                    // If systemd hears nothing, it restarts the daemon.
                    Err(refusal) => tracing::error!("{}", refusal.text),
                },
                () = at(patience) => {
                    interrupt.cancel();
                    self.cuts = cuts + 1;
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

async fn received(events: &mut mpsc::Receiver<Event>, requests: &mut mpsc::Receiver<Request>) -> Option<Event> {
    tokio::select! {
        biased;
        event = events.recv() => event,
        Some(request) = requests.recv() => Some(Event::Asked(request)),
    }
}

/// When the last step of the cycle ended.
struct Alive {
    steps: u64,
    since: Instant,
}

impl Alive {
    fn check(&mut self, progress: &StepCounter) -> Result<(), RequestRefusal> {
        if progress.steps() != self.steps {
            *self = Self { steps: progress.steps(), since: now() };
        }
        if self.since + HANGS > now() {
            return Ok(());
        }
        let text = format!("the cycle hangs: none of its steps ended in {} minutes", HANGS.as_secs() / 60);
        Err(RequestRefusal { exit_code: 69, text })
    }
}

async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

#[expect(clippy::disallowed_methods, reason = "how long a cycle takes is not a decision")]
pub(super) fn now() -> Instant {
    Instant::now()
}

/// Sends states to systemd.
pub(super) fn notify(states: &[NotifyState<'_>]) {
    // Without systemd, nobody is notified.
    let _ = sd_notify::notify(states);
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;
    use crate::control::api::OwnRequest;
    use crate::control::server::{Question, Reply};

    fn question(reply: Reply<serde_json::Value>) -> Request {
        Request::Own(Question::Show, 1000, OwnRequest { of: None }, reply)
    }

    #[tokio::test]
    async fn the_schedule_does_not_wait_for_a_place_among_requests() {
        let ((events, on_events), (requests, on_requests)) = (mpsc::channel(1), mpsc::channel(4));
        let mut inbox = Inbox::new(on_events, on_requests);
        while requests.try_send(question(oneshot::channel().0)).is_ok() {}
        assert!(events.try_send(Event::Tick).is_ok(), "requests fill only their own channel");
        assert_eq!(inbox.len(), 5);
        assert!(matches!(inbox.ready(&mut 5), Some(Event::Tick)));
        assert!(matches!(inbox.next().await, Event::Asked(_)));
    }

    #[tokio::test]
    async fn the_requests_that_wait_for_a_cycle_are_limited() {
        let (events, requests) = (mpsc::channel(1), mpsc::channel(1));
        let mut inbox = Inbox::new(events.1, requests.1);
        for _ in 0..1000 {
            inbox.defer(Event::Asked(question(oneshot::channel().0)));
            assert!(inbox.waiting.len() <= WAITING_REQUESTS);
        }
        let mut answers = Vec::new();
        for _ in 0..=WAITING_REQUESTS {
            let (reply, answer) = oneshot::channel();
            inbox.defer(Event::Asked(question(reply)));
            answers.push(answer);
        }
        let last = answers.pop().expect("a question was asked").await.expect("the last question is answered at once");
        assert_eq!(last.expect_err("the question is refused").exit_code, 75);
        assert!(answers.iter_mut().all(|answer| answer.try_recv().is_err()), "the others wait");
        let (reply, _caller) = oneshot::channel();
        inbox.defer(Event::Asked(Request::Orders("root".to_owned(), Vec::new(), reply)));
        inbox.defer(Event::Tick);
        assert_eq!(inbox.waiting.len(), WAITING_REQUESTS + 2, "orders and the schedule are always kept");
    }

    /// A cycle that ends only when it is cut short.
    fn endless() -> UnderWay {
        UnderWay {
            status: LazyLock::new(Box::new(|| panic!("nobody asks for the status"))),
            reading: ReadProgress::default(),
            exposition: LazyLock::new(Box::new(String::new)),
            health: String::new(),
            work: Work::default(),
        }
    }

    #[tokio::test]
    async fn frequent_changes_cut_four_cycles_in_a_row_and_each_later_than_the_one_before() {
        let ((events, on_events), requests) = (mpsc::channel(1), mpsc::channel(1));
        let mut inbox = Inbox::new(on_events, requests.1);
        for cuts in [0, 1, MOST_CUTS] {
            inbox.cuts = cuts;
            let (cycle, began) = (endless(), now());
            events.send(Event::Change).await.expect("the inbox exists");
            let end = tokio::time::timeout(PATIENCE * 5, cycle.work.interrupt.cancelled());
            let is_cut = inbox.during(&cycle, end).await.is_ok();
            assert_eq!((is_cut, inbox.cuts - cuts), (cuts < MOST_CUTS, u32::from(cuts < MOST_CUTS)), "{cuts}");
            assert!(began.elapsed() >= PATIENCE * (cuts + 1), "{cuts}");
            assert!(cycle.work.hurry.is_cancelled(), "{cuts}");
        }
    }
}
