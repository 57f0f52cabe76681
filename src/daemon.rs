//! `bursard`: one loop over one closed set of events. The schedule, drift, the control socket and signals all meet here;
//! a cycle runs to its end, and what asks for one meanwhile gets one more. The wall clock, the scheduler and systemd's
//! notifications live only here.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio_cron_scheduler::{Job, JobScheduler, JobSchedulerError};
use tokio_util::sync::CancellationToken;

use crate::control::api::{CycleReport, OrderAnswer};
use crate::control::server::{self, Reply, Request};
use crate::cycle;
use crate::engine::{Engine, EngineError};
use crate::report;
use crate::settings::{Settings, SettingsErrors};
use crate::telemetry::Metrics;

/// How long a stopping daemon lets what is under way go on. Below systemd's default `TimeoutStopSec` of 90 s.
const SOFT_STOP: Duration = Duration::from_mins(1);
/// Drift comes in bursts (somebody deletes a namespace: eleven objects go); one cycle repairs them together.
const DRIFT_SETTLES: Duration = Duration::from_millis(500);

/// What ends the daemon.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The configuration.
    #[error(transparent)]
    Settings(#[from] SettingsErrors),
    /// The ledger, the seal or an owner.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A socket.
    #[error("{what}")]
    Socket {
        /// Which.
        what: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The schedule.
    #[error("the schedule")]
    Schedule(#[from] JobSchedulerError),
}

/// The time, in whole seconds: what the ledger keeps.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "the one place where the wall clock is read")]
pub fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

/// Why a cycle begins.
#[derive(Debug)]
enum Event {
    /// The schedule says so.
    Tick,
    /// A cluster is no longer as the plan knew it.
    Drift,
    /// Somebody asks over the control socket.
    Asked(Request),
    /// SIGHUP.
    Reload,
    /// SIGTERM or SIGINT.
    Stop,
}

/// Runs until SIGTERM.
///
/// # Errors
/// What keeps it from working at all; everything else is a state that `bursar status` shows.
pub async fn run(config: PathBuf) -> Result<(), DaemonError> {
    let settings = Settings::load(&config)?;
    let engine = Engine::open(settings, Arc::new(Metrics::default()), now).await?;
    let stop = CancellationToken::new();
    let (sender, events) = mpsc::channel(64);
    let listeners = listen(engine.settings(), &sender, &stop).await?;
    let scheduler = schedule(engine.settings(), &sender).await?;
    let sources = [
        take_signals(sender.clone())?,
        tokio::spawn(drift(engine.changed(), sender.clone())),
        tokio::spawn(watchdog()),
    ];
    notify(&[NotifyState::Ready]);
    tracing::info!(site = %engine.settings().policy.site, "ready");
    let daemon = Loop { config, engine, events, scheduler, sender, waiting: Vec::new() };
    let result = daemon.run().await;
    notify(&[NotifyState::Stopping]);
    stop.cancel();
    sources.iter().for_each(tokio::task::JoinHandle::abort);
    for listener in listeners {
        // Its clients have been answered or told that the daemon stops.
        let _ = tokio::time::timeout(Duration::from_secs(2), listener).await;
    }
    result
}

struct Loop {
    config: PathBuf,
    engine: Engine,
    events: mpsc::Receiver<Event>,
    scheduler: JobScheduler,
    sender: mpsc::Sender<Event>,
    /// Requests that came during a cycle and wait for its end.
    waiting: Vec<Event>,
}

/// Who waits for the end of the next cycle.
#[derive(Default)]
struct Waiters {
    syncs: Vec<Reply<CycleReport>>,
    orders: Vec<(String, Reply<OrderAnswer>)>,
}

impl Loop {
    async fn run(mut self) -> Result<(), DaemonError> {
        let mut trigger = Some("start");
        let mut waiters = Waiters::default();
        loop {
            if let Some(why) = trigger.take() {
                let report = self.cycle(why).await?;
                waiters.answer(&report);
                if self.engine.stop().is_cancelled() {
                    self.engine.must_own()?;
                    break;
                }
            }
            let event = if self.waiting.is_empty() { self.events.recv().await } else { Some(self.waiting.remove(0)) };
            match event {
                None | Some(Event::Stop) => {
                    waiters.tell_that_it_stops();
                    break;
                }
                Some(Event::Tick) => trigger = Some("schedule"),
                Some(Event::Drift) => trigger = Some("drift"),
                Some(Event::Reload) => trigger = self.reload().await?.then_some("reload"),
                Some(Event::Asked(request)) => trigger = self.asked(request, &mut waiters).await?,
            }
            // Whatever else has come asks for the same cycle.
            if trigger.is_some() {
                trigger = self.gather(trigger, &mut waiters).await?;
            }
        }
        self.scheduler.shutdown().await?;
        Ok(self.engine.close().await?)
    }

    /// A cycle; what comes meanwhile waits, but a stop ends it early between two steps.
    async fn cycle(&mut self, trigger: &str) -> Result<CycleReport, DaemonError> {
        let stop = self.engine.stop();
        // Who looks during a long cycle sees how things stood when it began.
        let (status, exposition) = (self.engine.status(), self.engine.exposition());
        let work = cycle::run(&mut self.engine, trigger);
        tokio::pin!(work);
        let mut deadline: Option<tokio::time::Instant> = None;
        let report = loop {
            let expired = async {
                match deadline {
                    Some(deadline) => tokio::time::sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                report = &mut work => break report?,
                Some(event) = self.events.recv() => match event {
                    Event::Stop if deadline.is_none() => {
                        stop.cancel();
                        deadline = Some(soft_stop());
                    }
                    Event::Stop => std::process::exit(1),
                    Event::Asked(Request::Status(reply)) => drop(reply.send(Ok(status.clone()))),
                    Event::Asked(Request::Metrics(reply)) => drop(reply.send(Ok(exposition.clone()))),
                    event => self.waiting.push(event),
                },
                () = expired => {
                    tracing::error!("what was under way did not end in time");
                    std::process::exit(1);
                }
            }
        };
        log(&report);
        Ok(report)
    }

    /// Takes every event that is there already, so that they share the cycle that is about to begin.
    async fn gather(
        &mut self,
        trigger: Option<&'static str>,
        waiters: &mut Waiters,
    ) -> Result<Option<&'static str>, DaemonError> {
        let mut rest = std::mem::take(&mut self.waiting);
        let mut stopping = false;
        while let Ok(event) = self.events.try_recv() {
            rest.push(event);
        }
        for event in rest {
            match event {
                Event::Tick | Event::Drift => {}
                Event::Asked(request) => {
                    self.asked(request, waiters).await?;
                }
                Event::Stop => {
                    // Not after a whole cycle: systemd waits for it.
                    stopping = true;
                    self.waiting.insert(0, Event::Stop);
                }
                Event::Reload => self.waiting.push(Event::Reload),
            }
        }
        Ok(trigger.filter(|_| !stopping))
    }

    /// Answers, or says why a cycle is to begin.
    async fn asked(&mut self, request: Request, waiters: &mut Waiters) -> Result<Option<&'static str>, DaemonError> {
        // Whoever asked may be gone; then nobody needs the answer.
        match request {
            Request::Status(reply) => drop(reply.send(Ok(self.engine.status()))),
            Request::Metrics(reply) => drop(reply.send(Ok(self.engine.exposition()))),
            Request::Plan(reply) if reply.is_closed() => {}
            Request::Plan(reply) => drop(reply.send(Ok(cycle::preview(&mut self.engine).await?))),
            Request::Sync(reply) => {
                waiters.syncs.push(reply);
                return Ok(Some("sync"));
            }
            Request::Order(actor, order, reply) => match self.engine.order(&actor, &order).await? {
                Ok(text) => {
                    waiters.orders.push((text, reply));
                    return Ok(Some("order"));
                }
                Err(refusal) => drop(reply.send(Err(refusal))),
            },
        }
        Ok(None)
    }

    /// Puts the configuration in force if it is right; keeps the old one if not.
    async fn reload(&mut self) -> Result<bool, DaemonError> {
        notify(&[NotifyState::Reloading]);
        let right = match Settings::load(&self.config).and_then(|settings| self.engine.reload(settings)) {
            Ok(()) => {
                let next = schedule(self.engine.settings(), &self.sender).await?;
                std::mem::replace(&mut self.scheduler, next).shutdown().await?;
                tracing::info!("configuration reloaded");
                true
            }
            Err(errors) => {
                tracing::error!(error = %report::chain(&errors), "the old configuration stays in force");
                false
            }
        };
        notify(&[NotifyState::Ready]);
        Ok(right)
    }
}

impl Waiters {
    /// What was written down is not lost; who waits for a cycle hears that there is none (the dropped reply says so).
    fn tell_that_it_stops(&mut self) {
        for (text, reply) in self.orders.drain(..) {
            let text = format!("{text}; the next cycle carries it out, the daemon is stopping");
            let _ = reply.send(Ok(OrderAnswer { text, report: None }));
        }
    }

    fn answer(&mut self, report: &CycleReport) {
        for reply in self.syncs.drain(..) {
            let _ = reply.send(Ok(report.clone()));
        }
        for (text, reply) in self.orders.drain(..) {
            let _ = reply.send(Ok(OrderAnswer { text, report: Some(report.clone()) }));
        }
    }
}

fn log(report: &CycleReport) {
    let CycleReport { id, trigger, changed, unchanged, actions, failing, rejected, partial, refusals, .. } = report;
    if *changed == 0 && failing.is_empty() && partial.is_empty() && refusals.is_empty() {
        return tracing::debug!(cycle = id, trigger, unchanged, "nothing to do");
    }
    tracing::info!(cycle = id, trigger, changed, unchanged, actions, failing = failing.len(), rejected, "cycle");
    for (source, why) in partial {
        tracing::warn!(cycle = id, source, why, "partial");
    }
    for failing in failing {
        let (step, reason) = (&failing.step, &failing.reason);
        tracing::warn!(cycle = id, account = %failing.account, action = step, reason, "failing");
    }
    for refusal in refusals {
        tracing::warn!(cycle = id, limit = refusal.limit, hash = refusal.hash, reason = refusal.why, "refused");
    }
}

#[expect(clippy::disallowed_methods, reason = "how long a cycle may still go on is no decision")]
fn soft_stop() -> tokio::time::Instant {
    tokio::time::Instant::now() + SOFT_STOP
}

async fn schedule(settings: &Settings, sender: &mpsc::Sender<Event>) -> Result<JobScheduler, DaemonError> {
    let scheduler = JobScheduler::new().await?;
    let sender = sender.clone();
    // The crate's expressions begin with seconds; zones are frozen at creation there, so UTC.
    let job = Job::new_async(format!("0 {}", settings.schedule.cycle), move |_, _| {
        let sender = sender.clone();
        Box::pin(async move {
            // A loop that is busy has this tick's cycle ahead of it anyway.
            let _ = sender.try_send(Event::Tick);
        })
    })?;
    scheduler.add(job).await?;
    scheduler.start().await?;
    Ok(scheduler)
}

async fn drift(changed: Arc<tokio::sync::Notify>, sender: mpsc::Sender<Event>) {
    loop {
        changed.notified().await;
        tokio::time::sleep(DRIFT_SETTLES).await;
        if sender.send(Event::Drift).await.is_err() {
            return;
        }
    }
}

/// Signals are taken over before systemd hears that the daemon is ready: a SIGHUP any earlier would end it.
fn take_signals(sender: mpsc::Sender<Event>) -> Result<tokio::task::JoinHandle<()>, DaemonError> {
    let take = |kind| signal(kind).map_err(|source| DaemonError::Socket { what: "signals".to_owned(), source });
    let mut terminate = take(SignalKind::terminate())?;
    let mut interrupt = take(SignalKind::interrupt())?;
    let mut hangup = take(SignalKind::hangup())?;
    Ok(tokio::spawn(async move {
        loop {
            let event = tokio::select! {
                _ = terminate.recv() => Event::Stop,
                _ = interrupt.recv() => Event::Stop,
                _ = hangup.recv() => Event::Reload,
            };
            if sender.send(event).await.is_err() {
                return;
            }
        }
    }))
}

/// Tells systemd at half its interval that the runtime still turns.
async fn watchdog() {
    let Some(interval) = sd_notify::watchdog_enabled() else { return };
    loop {
        notify(&[NotifyState::Watchdog]);
        tokio::time::sleep(interval / 2).await;
    }
}

fn notify(states: &[NotifyState<'_>]) {
    // Without systemd there is nobody to tell.
    let _ = sd_notify::notify(states);
}

async fn listen(
    settings: &Settings,
    sender: &mpsc::Sender<Event>,
    stop: &CancellationToken,
) -> Result<Vec<tokio::task::JoinHandle<()>>, DaemonError> {
    let (desk, mut requests) = mpsc::channel(64);
    let forward = sender.clone();
    tokio::spawn(async move {
        while let Some(request) = requests.recv().await {
            if forward.send(Event::Asked(request)).await.is_err() {
                return;
            }
        }
    });
    let socket = |what: String| move |source| DaemonError::Socket { what, source };
    let path = &settings.control_socket;
    let control = server::bind(path).map_err(socket(path.display().to_string()))?;
    let mut tasks = vec![tokio::spawn(served(server::serve(control, desk.clone(), stop.clone())))];
    if let Some(address) = settings.metrics {
        let listener =
            tokio::net::TcpListener::bind(address).await.map_err(socket(format!("metrics.listen {address}")))?;
        tasks.push(tokio::spawn(served(server::serve_metrics(listener, desk, stop.clone()))));
    }
    Ok(tasks)
}

async fn served(serving: impl Future<Output = std::io::Result<()>>) {
    if let Err(error) = serving.await {
        tracing::error!(%error, "listener");
    }
}
