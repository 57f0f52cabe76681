//! The parts that a cycle works with: the ledger, the directories, the clusters and the realm. Each has its own state
//! and health. `bursard` opens them once for its life, `bursar sync --once` for one cycle.

mod asking;
pub mod clusters;
mod confine;
pub mod directories;
pub mod ledger;
mod lookups;
mod reads;
pub mod realm;
mod review;
mod status;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use self::clusters::{Clusters, Context};
use self::directories::{Directories, ReadRequests, Reader};
use self::ledger::Ledger;
pub(crate) use self::reads::ReadProgress;
use self::realm::RealmTarget;
use crate::contract::Sealer;
use crate::control::api::{OrderAnswer, StillReading};
use crate::identity::ClusterName;
use crate::orders::request::OrderRequest;
use crate::plan::Planner;
use crate::settings::{Settings, SettingsErrors};
use crate::store::{SEAL_KEY, StoreError};
use crate::telemetry::SharedMetrics;

/// Returns the time in whole seconds, which is what the ledger keeps. It is a parameter, because only `daemon.rs` and
/// `cli` may read the wall clock.
pub type Clock = fn() -> Timestamp;

/// Errors that keep Bursar from working at all.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// A password of the configuration cannot be read.
    #[error(transparent)]
    Settings(#[from] SettingsErrors),
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The seal's key cannot be read.
    #[error("cannot use the seal's key {path}; if it does not exist, run: bursar init")]
    Seal {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// Another ledger owns a cluster.
    #[error(
        "cluster {cluster} belongs to the ledger {owner}, and this one is {own}: \
         two would undo each other's work. To let this host take over, run: bursar takeover"
    )]
    NotOwner {
        cluster: ClusterName,
        /// The id of the ledger that owns it.
        owner: String,
        /// The id of this ledger.
        own: String,
    },
    /// The ledger is older than what a cluster proves.
    #[error(
        "the ledger is out of date: cluster {cluster} proves generation {proven}, and the ledger ends at {last}. It was \
         restored from a snapshot or a copy; nothing was written anywhere. To learn from the clusters what it lacks, run: \
         bursar takeover"
    )]
    Behind {
        /// The cluster that proves it.
        cluster: ClusterName,
        /// The generation in a signed mark or in a seal there.
        proven: u64,
        /// The last generation of the ledger.
        last: u64,
    },
    /// Another process runs with a copy of the ledger.
    #[error(
        "another daemon runs with a copy of this ledger and keeps cluster {cluster}: two would undo each other's work. To \
         let this host take over, run: bursar takeover"
    )]
    Copied {
        /// The cluster that shows it.
        cluster: ClusterName,
    },
}

pub struct Runtime {
    pub(crate) settings: Settings,
    pub(crate) sealer: Arc<Sealer>,
    pub(crate) planner: Planner,
    pub(crate) ledger: Ledger,
    pub(crate) directories: Directories,
    pub(crate) clusters: Clusters,
    pub(crate) realm: Option<Box<RealmTarget>>,
    pub(crate) work: Work,
    pub(crate) metrics: SharedMetrics,
    /// Why the last reload was refused; `None` if it succeeded.
    refused: Option<String>,
}

/// How long an order that arrives while the daemon starts waits for the clusters' objects, which are needed to carry
/// out the order. A cluster that hangs delays the order no longer than this.
const ORDERS_WAIT: Duration = Duration::from_secs(10);

/// Controls the current cycle and shows its progress.
#[derive(Debug, Clone, Default)]
pub struct Work {
    /// If cancelled, the current cycle ends after the work in progress. A child of `stop`.
    pub interrupt: CancellationToken,
    /// If cancelled, work in progress is finished, and nothing new begins.
    pub stop: CancellationToken,
    /// Cancelled when the time slice is over. A child of `interrupt`.
    pub slice_over: CancellationToken,
    /// Cancelled when a directory reports a change, which ends the time slice early.
    pub hurry: CancellationToken,
    /// How long a cycle may begin grants and repairs of further accounts; `None` if there is no limit. Removals of
    /// access are always carried out. The rest is left to the next cycle, which reads and plans first, so that slow
    /// accounts do not delay a suspension in a directory or a repair.
    pub slice: Option<Duration>,
    /// Shows whether the cycle makes progress.
    pub progress: StepCounter,
}

/// The minimum time in which an execution may begin grants and repairs, so that a directory that changes all the time
/// does not stop them.
const LEAST_SLICE: Duration = Duration::from_millis(100);
/// How long the work in progress may go on after an order arrived. Otherwise, a signer, a home or a cluster that hangs
/// would delay the order until the deadline of its request.
const IN_FLIGHT: Duration = Duration::from_secs(1);

impl Work {
    /// Waits for the end of the time slice, and cancels `slice_over`. Never returns.
    pub(crate) async fn over(&self) -> Infallible {
        let slice = async {
            match self.slice {
                Some(slice) => tokio::time::sleep(slice).await,
                None => std::future::pending().await,
            }
        };
        let hurried = async {
            tokio::time::sleep(LEAST_SLICE).await;
            self.hurry.cancelled().await;
        };
        tokio::select! {
            () = slice => {}
            () = hurried => {}
        }
        self.slice_over.cancel();
        std::future::pending().await
    }

    /// Waits until the cycle was interrupted [`IN_FLIGHT`] ago. The caller then drops the work in progress, as if the
    /// process had been killed, and the next cycle continues it. After a stop, work in progress may finish, so this
    /// never returns.
    pub(crate) async fn cut(&self) {
        self.interrupt.cancelled().await;
        tokio::time::sleep(IN_FLIGHT).await;
        if self.stop.is_cancelled() {
            std::future::pending::<()>().await;
        }
    }
}

/// Counts the steps of cycles, to tell a cycle that hangs from a long one.
#[derive(Debug, Clone, Default)]
pub struct StepCounter(Arc<AtomicU64>);

impl StepCounter {
    pub(crate) fn step(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn counter(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.0)
    }

    /// Returns the number of steps so far.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Runtime {
    /// Opens the ledger, the seal and the sources of the configuration. Does not connect to clusters.
    pub async fn open(settings: Settings, metrics: SharedMetrics, clock: Clock) -> Result<Self, RuntimeError> {
        let ledger = Ledger::open(&settings.state_dir, clock, &metrics).await?;
        let sealer = Arc::new(read_seal(&settings.state_dir)?);
        let sources = settings.sources()?;
        let realm = RealmTarget::of(&settings, settings.realm_connection(&sources)?, None);
        let stop = CancellationToken::new();
        let interrupt = stop.child_token();
        let slice_over = interrupt.child_token();
        let hurry = CancellationToken::new();
        let work = Work { interrupt, stop, slice_over, hurry, slice: None, progress: StepCounter::default() };
        let clusters = Clusters::of(&settings, work.stop.clone(), ledger.state().last_generation);
        let directories = Directories::of(sources, work.progress.counter());
        let planner = Planner::default();
        Ok(Self { settings, sealer, planner, ledger, directories, clusters, realm, work, metrics, refused: None })
    }

    /// Connects to all clusters, and waits until they have listed their objects, or for `ORDERS_WAIT` after an order
    /// arrived. A cluster that does not answer is not an error; each later cycle asks it again.
    ///
    /// # Errors
    /// Another ledger owns a cluster, or a cluster proves that this ledger is older.
    pub async fn start(&mut self) -> Result<(), RuntimeError> {
        self.connect().await?;
        let an_order_waited = async {
            self.work.interrupt.cancelled().await;
            tokio::time::sleep(ORDERS_WAIT).await;
        };
        tokio::select! {
            () = self.clusters.wait_for_first_listing() => {}
            () = an_order_waited => {}
            () = self.work.stop.cancelled() => {}
        }
        Ok(())
    }

    /// Closes the ledger in such a way that every member of the group can read it.
    pub async fn close(mut self) -> Result<(), RuntimeError> {
        self.clusters.end().await;
        Ok(self.ledger.close().await?)
    }

    /// Returns a runtime for a process that reads its directories once: it caches nothing of them, and asks no server
    /// for a point from which a later read could continue.
    #[must_use]
    pub fn reading_once(mut self) -> Self {
        self.directories.keep_nothing();
        self
    }

    /// Notified when a cluster changed since the last plan.
    #[must_use]
    pub fn changed(&self) -> Arc<Notify> {
        Arc::clone(&self.clusters.changed)
    }

    /// Renews the tokens that cut the next cycle short, and returns the controls of that cycle.
    pub fn begin(&mut self) -> Work {
        self.work.interrupt = self.work.stop.child_token();
        self.work.slice_over = self.work.interrupt.child_token();
        self.work.hurry = CancellationToken::new();
        self.work.clone()
    }

    /// Returns the current time in whole seconds.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.ledger.now()
    }

    /// Returns the time until a cycle that neither the schedule nor an event starts: for [`Ledger::next_look`], for a
    /// repair that waits because a program undid the last ones, or because a realm that did not answer is tried again.
    #[must_use]
    pub fn next_look(&self) -> Option<Duration> {
        let now = self.now();
        let realm = self.realm.as_ref().and_then(|realm| realm.next_try()).filter(|at| *at >= now);
        // A repair that became due while the last cycle ran may be missing in that cycle's plan.
        let since = self.ledger.last_cycle().map_or(now, |cycle| cycle.began.min(now));
        let repair = self.clusters.next_repair(since, now);
        let wait = |at: Timestamp| Duration::try_from(at.duration_since(now)).unwrap_or_default();
        let waits = realm.into_iter().chain(repair).map(|at| wait(at).max(Duration::from_secs(1)));
        self.ledger.next_look().into_iter().chain(waits).min()
    }

    /// Returns the configuration in force.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Checks that every cluster still belongs to this ledger and to this process, and that none proves a rollback.
    ///
    /// # Errors
    /// [`RuntimeError::NotOwner`], [`RuntimeError::Copied`], [`RuntimeError::Behind`].
    pub fn must_own(&self) -> Result<(), RuntimeError> {
        self.clusters.must_own(self.ledger.state())
    }

    /// Connects the clusters that are not connected, and reconnects those in which the daemon's certificate is due for
    /// renewal.
    ///
    /// # Errors
    /// Another ledger owns a cluster, or this ledger is older or a copy. An unreachable cluster is not an error; the
    /// next cycle asks it again.
    pub async fn connect(&mut self) -> Result<(), RuntimeError> {
        let Self { settings, sealer, ledger, clusters, metrics, .. } = self;
        let (now, renew, instance) = (ledger.now(), ledger.may_write(), ledger.instance());
        let context = Context { settings, ledger: ledger.state(), sealer, metrics, now, renew, instance: &instance };
        let answers = clusters.ask(context).await?;
        if renew {
            let answered = answers.iter().filter(|(_, answer)| answer.is_ok());
            ledger.may_mark(answered.map(|(cluster, _)| cluster)).await?;
        }
        let context = Context { settings, ledger: ledger.state(), sealer, metrics, now, renew, instance: &instance };
        clusters.connect(answers, context).await
    }

    /// Checks the daemon's confinement in each cluster, and repairs the parts that the daemon may write. If nothing
    /// changed, no cluster is asked.
    ///
    /// # Errors
    /// The ledger did not record a certificate that was signed for a request that Bursar did not make.
    pub async fn confine(&mut self) -> Result<(), RuntimeError> {
        let Self { settings, sealer, ledger, clusters, metrics, .. } = self;
        let (now, renew, instance) = (ledger.now(), ledger.may_write(), ledger.instance());
        let context = Context { settings, ledger: ledger.state(), sealer, metrics, now, renew, instance: &instance };
        clusters.confine(context).await;
        let (changes, events) = clusters.unknown_certificates();
        if renew && !changes.is_empty() {
            ledger.write(&changes, &events, now).await?;
        }
        Ok(())
    }

    /// Returns the state that a read of the directories needs.
    pub(crate) fn reader(&self) -> Reader<'_> {
        let realm = self.realm.as_deref().map(RealmTarget::rules);
        Reader { ledger: self.ledger.state(), policy: &self.settings.policy, realm, now: self.now() }
    }

    /// Applies another configuration. Unchanged connections and the caches of unchanged sources are kept.
    ///
    /// # Errors
    /// A key differs that only a restart applies, or a password cannot be read. The old configuration stays in force.
    pub fn reload(&mut self, settings: Settings) -> Result<(), SettingsErrors> {
        let fixed = self.settings.only_at_start(&settings);
        if !fixed.is_empty() {
            let wrong = |key| format!("{key}: cannot change while bursard runs; run: systemctl restart bursard");
            return Err(SettingsErrors(fixed.into_iter().map(wrong).collect()));
        }
        let sources = settings.sources()?;
        let connection = settings.realm_connection(&sources)?;
        // Nothing fails from here on, so the former connections stay in use if the reload is refused.
        self.realm = RealmTarget::of(&settings, connection, self.realm.take());
        self.directories.reload(sources);
        self.clusters.reload(&settings, self.ledger.state());
        self.settings = settings;
        self.refused = None;
        Ok(())
    }

    /// Records that a reload was refused, for the status.
    pub fn refuse(&mut self, errors: &SettingsErrors) {
        let (file, now, why) = (self.settings.file.display(), self.now(), errors.0.join("; "));
        self.refused = Some(format!(
            "{file} was refused at the reload of {now:.0}, and the former configuration stays in force: {why}"
        ));
    }

    /// Records orders. The next cycle carries them out.
    pub async fn order(&mut self, actor: &str, requests: &[OrderRequest]) -> Result<OrderAnswer, RuntimeError> {
        Ok(self.order_reads(actor, requests).await?.0)
    }

    /// Like [`Self::order`]. Also returns the reads that carry the orders out; none if the orders need no read.
    pub(crate) async fn order_reads(
        &mut self,
        actor: &str,
        requests: &[OrderRequest],
    ) -> Result<(OrderAnswer, ReadRequests), RuntimeError> {
        let before: BTreeSet<i64> = self.ledger.state().orders.iter().map(|order| order.id).collect();
        let answer = self.ledger.order(&self.settings.policy, actor, requests).await?;
        let ledger = self.ledger.state();
        let is_accepted = |source: &str| {
            let mut accepted = requests.iter().filter_map(|request| match request {
                OrderRequest::AcceptDirectory(wanted) => Some(&wanted.source),
                _ => None,
            });
            accepted.any(|accepted| accepted == source)
        };
        // Earlier orders may wait for other sources, which must not delay this caller.
        let is_decided_by = |source: &str| {
            let mut new = ledger.orders.iter().filter(|order| !before.contains(&order.id));
            new.any(|order| order.is_decided_by(source, ledger))
        };
        let reads = self.directories.request_for_order(|source| is_accepted(source) || is_decided_by(source));
        Ok((answer, reads))
    }

    /// Returns the progress of the reads that `requests` wait for, by source.
    pub(crate) fn still_reading(&self, requests: ReadRequests) -> BTreeMap<String, StillReading> {
        let (counts, sources) = (self.directories.progress().counts(), &self.ledger.state().sources);
        let of = |(source, request): (String, u64)| {
            let entries = counts.get(&source).copied().unwrap_or_default();
            let last = sources.get(&source).map(|known| known.read_at);
            (source, StillReading { entries, last, request })
        };
        requests.into_iter().map(of).collect()
    }
}

/// Reads the seal's key.
pub fn read_seal(state_dir: &Path) -> Result<Sealer, RuntimeError> {
    let path = state_dir.join(SEAL_KEY);
    let seal = |source| RuntimeError::Seal { path: path.clone(), source };
    let seed = zeroize::Zeroizing::new(std::fs::read(&path).map_err(seal)?);
    Sealer::from_seed(&seed).map_err(|error| seal(io::Error::new(io::ErrorKind::InvalidData, error)))
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    fn work() -> Work {
        let stop = CancellationToken::new();
        let interrupt = stop.child_token();
        let slice_over = interrupt.child_token();
        Work { interrupt, stop, slice_over, slice: Some(Duration::from_hours(1)), ..Work::default() }
    }

    #[tokio::test]
    async fn a_change_ends_the_time_slice_but_not_before_something_was_done() {
        let hurried = work();
        hurried.hurry.cancel();
        let over = timeout(LEAST_SLICE / 2, hurried.over()).await;
        assert!(over.is_err() && !hurried.slice_over.is_cancelled());
        let over = timeout(LEAST_SLICE * 20, hurried.over()).await;
        assert!(over.is_err() && hurried.slice_over.is_cancelled() && !hurried.interrupt.is_cancelled());
        let calm = work();
        let over = timeout(LEAST_SLICE * 2, calm.over()).await;
        assert!(over.is_err() && !calm.slice_over.is_cancelled());
    }

    #[tokio::test]
    async fn an_order_drops_work_that_hangs_and_a_stop_does_not() {
        let ordered = work();
        ordered.interrupt.cancel();
        timeout(IN_FLIGHT * 10, ordered.cut()).await.expect("the work is dropped");
        let stopped = work();
        stopped.stop.cancel();
        assert!(timeout(IN_FLIGHT * 2, stopped.cut()).await.is_err());
    }
}
