//! What a cycle works with, opened once, by what it serves: the ledger, the directories, the clusters, the realm. Each has
//! its own state and health. `bursard` keeps one for its life, `bursar sync --once` for one cycle.

mod asking;
pub mod clusters;
mod confine;
pub mod directories;
pub mod ledger;
mod reads;
pub mod realm;
mod review;
mod status;

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
use self::directories::{Directories, Reader};
use self::ledger::Ledger;
use self::realm::RealmTarget;
use crate::bootstrap::SEAL_KEY;
use crate::contract::Sealer;
use crate::control::api::OrderAnswer;
use crate::identity::ClusterName;
use crate::orders::request::OrderRequest;
use crate::plan::Planner;
use crate::settings::{Settings, SettingsErrors};
use crate::store::StoreError;
use crate::telemetry::SharedMetrics;

/// Where the time comes from: the daemon's clock in whole seconds, which is what the ledger keeps. A parameter, for the
/// wall clock is read in `daemon.rs` and `cli` only.
pub type Clock = fn() -> Timestamp;

/// What keeps Bursar from working at all.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// A password that is not there.
    #[error(transparent)]
    Settings(#[from] SettingsErrors),
    /// The ledger.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The seal's key.
    #[error("{path} cannot be used; `bursar init` makes it")]
    Seal {
        /// Where it should be.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Another ledger owns a cluster.
    #[error(
        "cluster {cluster} belongs to the ledger {owner}, and this one is {own}: \
         two would undo each other's work. If this host is to take over: bursar takeover"
    )]
    NotOwner {
        /// Which.
        cluster: ClusterName,
        /// Whose it is.
        owner: String,
        /// Who we are.
        own: String,
    },
    /// The ledger was rolled back.
    #[error(
        "the ledger is older than what was done with it: cluster {cluster} proves generation {proven}, and the ledger ends \
         at {last}. It came from a snapshot or a copy; nothing was written anywhere. bursar takeover learns from the clusters \
         what it has forgotten"
    )]
    Behind {
        /// Which cluster shows it.
        cluster: ClusterName,
        /// The generation that a signed mark or a seal there has.
        proven: u64,
        /// The ledger's last one.
        last: u64,
    },
    /// Two processes with one ledger.
    #[error(
        "another daemon runs with a copy of this ledger and keeps cluster {cluster}: two would undo each other's work. If \
         this host is to take over: bursar takeover"
    )]
    Copied {
        /// Which cluster shows it.
        cluster: ClusterName,
    },
}

/// See the module.
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
}

/// An order that comes while the daemon starts waits so long for what the clusters show: an order cannot be carried out where
/// nothing is known. A cluster that hangs delays it no longer than this.
const ORDERS_WAIT: Duration = Duration::from_secs(10);

/// The cycle that runs: how it is ended, and how it says that it goes on.
#[derive(Debug, Clone, Default)]
pub struct Work {
    /// Cancelled: the cycle that runs ends after what is under way. A child of `stop`.
    pub interrupt: CancellationToken,
    /// Cancelled: what is under way is finished, nothing more is begun.
    pub stop: CancellationToken,
    /// Cancelled: the time slice is over. A child of `interrupt`.
    pub slice_over: CancellationToken,
    /// How long a cycle begins grants and repairs of further accounts; what takes access away is always carried out. The rest is
    /// left to the next one, which reads and plans first, so that those that are slow do not hold up a mark in a directory or a
    /// repair. `None`: to its end.
    pub slice: Option<Duration>,
    /// That a cycle goes on.
    pub progress: Progress,
}

impl Work {
    /// Ends the time slice.
    pub(crate) async fn over(&self) -> Infallible {
        if let Some(slice) = self.slice {
            tokio::time::sleep(slice).await;
            self.slice_over.cancel();
        }
        std::future::pending().await
    }
}

/// Counts the steps of cycles, so that one that hangs can be told from one that is long.
#[derive(Debug, Clone, Default)]
pub struct Progress(Arc<AtomicU64>);

impl Progress {
    pub(crate) fn step(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// What counts them.
    fn counter(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.0)
    }

    /// How many there were.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Runtime {
    /// Opens what is on this host.
    ///
    /// # Errors
    /// The ledger or the seal cannot be used.
    pub async fn open(settings: Settings, metrics: SharedMetrics, clock: Clock) -> Result<Self, RuntimeError> {
        let ledger = Ledger::open(&settings.state_dir, clock, &metrics).await?;
        let sealer = Arc::new(read_seal(&settings.state_dir)?);
        let sources = settings.sources()?;
        let realm = RealmTarget::of(&settings, &sources, None)?;
        let stop = CancellationToken::new();
        let interrupt = stop.child_token();
        let slice_over = interrupt.child_token();
        let work = Work { interrupt, stop, slice_over, slice: None, progress: Progress::default() };
        let clusters = Clusters::of(&settings, work.stop.clone());
        let directories = Directories::of(sources, work.progress.counter());
        let planner = Planner::default();
        Ok(Self { settings, sealer, planner, ledger, directories, clusters, realm, work, metrics })
    }

    /// Connects to all clusters, and waits until they have shown their objects, or an order arrived. A cluster that does
    /// not answer is a state, not an error; it is asked again in each cycle.
    ///
    /// # Errors
    /// Another ledger owns a cluster, or a cluster proves that this one is old.
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

    /// Closes the ledger so that everybody of the group can read it.
    pub async fn close(mut self) -> Result<(), RuntimeError> {
        self.clusters.end().await;
        Ok(self.ledger.close().await?)
    }

    /// For a process that reads its directories once: nothing of them is kept, and no server asked for what to ask it next.
    #[must_use]
    pub fn reading_once(mut self) -> Self {
        self.directories.keep_nothing();
        self
    }

    /// Notified whenever a cluster is no longer as the plan knew it.
    #[must_use]
    pub fn changed(&self) -> Arc<Notify> {
        Arc::clone(&self.clusters.changed)
    }

    /// What cuts the next cycle short, and how it says that it goes on.
    pub fn begin(&mut self) -> Work {
        self.work.interrupt = self.work.stop.child_token();
        self.work.slice_over = self.work.interrupt.child_token();
        self.work.clone()
    }

    /// Whole seconds.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.ledger.now()
    }

    /// How long until a cycle is due that neither the schedule nor anything else sets off: for [`Ledger::next_look`], or for a
    /// realm that did not answer.
    #[must_use]
    pub fn next_look(&self) -> Option<Duration> {
        let now = self.now();
        let realm = self.realm.as_ref().and_then(|realm| realm.next_try()).filter(|at| *at >= now);
        let realm = realm.and_then(|at| Duration::try_from(at.duration_since(now)).ok());
        let realm = realm.map(|wait| wait.max(Duration::from_secs(1)));
        self.ledger.next_look().into_iter().chain(realm).min()
    }

    /// The configuration in force.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Whether every cluster still belongs to this ledger, and to this process.
    ///
    /// # Errors
    /// [`RuntimeError::NotOwner`], [`RuntimeError::Copied`].
    pub fn must_own(&self) -> Result<(), RuntimeError> {
        self.clusters.must_own(&self.ledger.state().ledger_id)
    }

    /// Connects the clusters that are not, and those again whose certificate of the daemon is due.
    ///
    /// # Errors
    /// The cluster is another's, or the ledger is behind or a copy. A cluster that is away is asked again in the next cycle.
    pub async fn connect(&mut self) -> Result<(), RuntimeError> {
        let Self { settings, sealer, ledger, clusters, metrics, .. } = self;
        let (now, renew, instance) = (ledger.now(), ledger.may_write(), ledger.instance());
        let context = Context { settings, ledger: ledger.state(), sealer, metrics, now, renew, instance: &instance };
        clusters.connect(context).await
    }

    /// Compares what confines the daemon with what it should be, and has what the daemon may write written again. Nothing is
    /// asked where nothing changed.
    pub async fn confine(&mut self) {
        let Self { settings, sealer, ledger, clusters, metrics, .. } = self;
        let (now, renew, instance) = (ledger.now(), ledger.may_write(), ledger.instance());
        let context = Context { settings, ledger: ledger.state(), sealer, metrics, now, renew, instance: &instance };
        clusters.confine(context).await;
    }

    /// What a read of the directories needs to know of all else.
    pub(crate) fn reader(&self) -> Reader<'_> {
        let realm = self.realm.as_deref().map(RealmTarget::rules);
        Reader { ledger: self.ledger.state(), policy: &self.settings.policy, realm, now: self.now() }
    }

    /// Puts another configuration in force. What it leaves as it was goes on: connections, and what is known of sources.
    pub fn reload(&mut self, settings: Settings) -> Result<(), SettingsErrors> {
        let sources = settings.sources()?;
        // If the realm cannot be configured, the connection that there is stays as it was.
        settings.realm_connection(&sources)?;
        self.realm = RealmTarget::of(&settings, &sources, self.realm.take())?;
        self.directories.reload(sources);
        self.clusters.reload(&settings, self.ledger.state());
        self.settings = settings;
        Ok(())
    }

    /// Writes orders down. The next cycle carries them out.
    pub async fn order(&mut self, actor: &str, requests: &[OrderRequest]) -> Result<OrderAnswer, RuntimeError> {
        Ok(self.ledger.order(&self.settings.policy, actor, requests).await?)
    }
}

/// The seal's key.
///
/// # Errors
/// It is not there, or no key.
pub fn read_seal(state_dir: &Path) -> Result<Sealer, RuntimeError> {
    let path = state_dir.join(SEAL_KEY);
    let seal = |source| RuntimeError::Seal { path: path.clone(), source };
    let seed = zeroize::Zeroizing::new(std::fs::read(&path).map_err(seal)?);
    Sealer::from_seed(&seed).map_err(|error| seal(io::Error::new(io::ErrorKind::InvalidData, error)))
}
