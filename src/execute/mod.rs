//! Carries out the approved plan. Only this module writes to clusters and homes. The plan made every choice; this
//! module adds the order, the pace and the handling of failures.
//!
//! Accounts are processed in parallel, and each cluster independently, so that a cluster that hangs delays no tenant of
//! another one. In each cluster, the steps that take access away come first, for all accounts, and each of them is
//! tried even if others fail. Then each account's other steps follow in the order of the plan, and a failure ends the
//! rest of its steps in that cluster.

pub mod apply;
pub mod authority;
pub mod credential;
pub mod csr_watch;
mod ending;
pub mod endpoint;
pub mod endpoint_probe;
pub mod error;
pub mod evict;
pub mod home;
pub mod idle;
pub mod keypair;
pub mod level;
pub mod listing;
pub mod pace;
pub mod prune;
pub mod realm;
pub mod reap;
pub mod record;
pub mod refusal;
pub mod request;
pub mod signing;
mod tenant;
pub mod token;
pub mod workloads;

use std::collections::BTreeMap;
use std::sync::Arc;

use bursar_homed::client::HomedClient;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use jiff::Timestamp;
use kube::Client;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use self::refusal::Others;
use self::request::ApiServer;
use self::tenant::TenantExecution;
use crate::archive::Archives;
use crate::desired::watched::{managed_kinds, site_kinds};
use crate::identity::ClusterName;
use crate::inventory::adopted;
use crate::ledger::LedgerState;
use crate::observed::adopted_watch::AdoptedWatch;
use crate::observed::cluster::ClusterWatch;
use crate::observed::pod_watch::PodWatch;
use crate::observed::prometheus::UseWatch;
use crate::plan::{AccountPlan, Action, ApprovedPlan};
use crate::policy::{Cluster, Policy};
use crate::telemetry::SharedMetrics;
pub use error::StepError;
pub use record::{Record, Recorder};
pub use tenant::{BOUND_BY_OTHERS, REFUSED};

/// The number of accounts of one cluster that are processed in parallel. It equals the largest width of the pace: each
/// account has at most a few open requests, and an account that waits for a certificate or a home uses no place in the
/// pace.
const ACCOUNTS_AT_A_TIME: usize = 32;

/// Everything that an execution can write to.
#[derive(Debug)]
pub struct Effects {
    pub clusters: BTreeMap<ClusterName, ClusterEffects>,
    /// The client of `bursar-homed`.
    pub homes: HomedClient,
    /// Where namespaces are archived before they are deleted.
    pub archives: Archives,
}

/// A cluster that can be written to.
#[derive(Debug)]
pub struct ClusterEffects {
    /// The client of its API server.
    pub server: ApiServer,
    /// The watches of its objects, which are told of every write.
    pub watch: ClusterWatch,
    /// Its endpoints, as kubeconfigs name them.
    pub face: Cluster,
    /// Its pods, if a reaper is on.
    pub pods: Option<PodWatch>,
    /// The namespaces that its Prometheus shows in use, if idle namespaces are searched for.
    pub in_use: Option<UseWatch>,
    /// Foreign namespaces, if a class adopts some.
    pub adopted: Option<AdoptedWatch>,
}

impl ClusterEffects {
    /// Starts the watches of a cluster, and makes it ready to be written to. A change of a foreign namespace notifies
    /// `soon`, because it must be handled at once; every other change notifies `changed`.
    #[must_use]
    pub fn start(
        cluster: ClusterName,
        client: Client,
        face: Cluster,
        (policy, ledger): (&Policy, &LedgerState),
        metrics: &SharedMetrics,
        (changed, soon): (&Arc<Notify>, &Arc<Notify>),
    ) -> Self {
        let kinds = managed_kinds().into_iter().chain(site_kinds(policy, ledger, &cluster)).collect();
        let watch = ClusterWatch::start(&client, cluster.clone(), kinds, Arc::clone(changed));
        watch.share(ledger.objects.keys().filter(|key| key.cluster == cluster).cloned().collect());
        let pods = policy.reapers.look_at_pods().then(|| PodWatch::start(&client));
        let in_use = policy.reapers.namespaces.as_ref().and_then(|rules| UseWatch::start(&cluster, rules));
        let adopted = AdoptedWatch::start(&client, adopted::wanted(policy, &cluster), Arc::clone(soon));
        Self { pods, in_use, adopted, server: ApiServer::new(cluster, client, Arc::clone(metrics)), watch, face }
    }

    /// Whether another configuration and ledger need the same watches.
    #[must_use]
    pub fn still_serves(&self, (policy, ledger): (&Policy, &LedgerState)) -> bool {
        let kinds = self.watch.kinds();
        let wanted = managed_kinds().into_iter().chain(site_kinds(policy, ledger, self.watch.cluster()));
        let looked = self.adopted.as_ref().map(|watch| watch.wanted().clone()).unwrap_or_default();
        looked == adopted::wanted(policy, self.watch.cluster())
            && kinds.iter().eq(&wanted.collect::<Vec<_>>())
            && self.pods.is_some() == policy.reapers.look_at_pods()
    }

    /// Returns the endpoints that refused a credential or were unreachable at the last check, with the reason.
    #[must_use]
    pub fn findings(&self) -> BTreeMap<String, String> {
        self.server.endpoint_probes().findings(&self.face.endpoints)
    }
}

/// How much of a plan is carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Everything, urgent accounts first.
    All,
    /// Only removals of access, and urgent accounts ([`AccountPlan::is_urgent`]). The rest is left to the next cycle.
    Urgent,
}

/// What all steps of one execution share.
#[derive(Debug, Clone, Copy)]
pub struct Run<'a> {
    /// The ledger as the plan saw it, with the intended changes.
    pub ledger: &'a LedgerState,
    /// When the execution began.
    pub now: Timestamp,
    /// Returns the current time. The backoff of a failed step and the inspections of a delivery count from the end of
    /// the step, which may be long after `now`.
    pub clock: fn() -> Timestamp,
    pub extent: Extent,
    /// If cancelled, work in progress is finished, and nothing new begins.
    pub stop: &'a CancellationToken,
    /// If cancelled, grants and repairs of further accounts are left to the next execution, and so are the remaining
    /// steps of an account that takes long. A child of `stop`.
    pub slice_over: &'a CancellationToken,
}

/// The result of an execution. `done`, `failed` and `left` count pairs of account and cluster.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Report {
    /// All steps were done.
    pub done: u64,
    /// A step failed.
    pub failed: u64,
    /// The number of steps of the executions that began, without checks of homes.
    pub actions: u64,
    /// Not begun or not finished, because the execution had to stop or its slice was over.
    pub left: u64,
    /// Objects that somebody had changed and that were repaired.
    pub drift_repaired: u64,
    /// Pods past their lifetime that were ended.
    pub reaped: u64,
    /// Kubeconfigs that were delivered again because somebody had changed or reverted them.
    pub repeated: u64,
}

impl Report {
    fn add(self, other: Self) -> Self {
        Self {
            done: self.done + other.done,
            failed: self.failed + other.failed,
            actions: self.actions + other.actions,
            left: self.left + other.left,
            drift_repaired: self.drift_repaired + other.drift_repaired,
            reaped: self.reaped + other.reaped,
            repeated: self.repeated + other.repeated,
        }
    }
}

/// Carries out the approved plan. Sends what was done to `recorder`, tenant by tenant. If the ledger does not record
/// something, no further step begins.
pub async fn execute(plan: &ApprovedPlan, effects: &Effects, run: Run<'_>, recorder: &Recorder) -> Report {
    let mut others: BTreeMap<&ClusterName, Others> = BTreeMap::new();
    for action in plan.accounts().iter().flat_map(AccountPlan::steps) {
        let others = others.entry(action.cluster()).or_default();
        if matches!(action, Action::ProveRevoked { .. })
            && let Some(shown) = effects.clusters.get(action.cluster()).and_then(|effects| effects.watch.inventory())
        {
            others.note(&shown, run.ledger);
        }
    }
    let mut clusters: BTreeMap<&ClusterName, Vec<TenantExecution<'_>>> = BTreeMap::new();
    let (urgent, mut rest): (Vec<_>, Vec<_>) = plan.accounts().iter().partition(|account| account.is_urgent());
    // Checks of homes come last. If a change in a directory cuts the execution short, checks are left over rather than
    // grants.
    rest.sort_by_key(|account| account.steps().all(Action::is_look));
    let mut left = 0;
    for account in urgent.into_iter().chain(rest) {
        let only_narrowing = run.extent == Extent::Urgent && !account.is_urgent();
        left += u64::from(only_narrowing && !account.actions.is_empty());
        for (cluster, steps) in by_cluster(account) {
            let Steps { narrowing, actions } = steps;
            let actions = if only_narrowing { Vec::new() } else { actions };
            let (plan, narrowed, is_whole) = (plan.hash(), None, !only_narrowing);
            let place = TenantExecution {
                account,
                plan,
                cluster,
                narrowing,
                actions,
                is_whole,
                narrowed,
                others: &others[cluster],
                effects,
                run,
                recorder,
            };
            clusters.entry(cluster).or_default().push(place);
        }
    }
    let clusters = clusters.into_values().map(in_cluster);
    let begin = Report { left, ..Report::default() };
    futures::future::join_all(clusters).await.into_iter().fold(begin, Report::add)
}

/// An execution with its number in the order of the plan.
type Numbered<'a> = (usize, TenantExecution<'a>);

/// Carries out all plans of one cluster: first, for all accounts, the steps that take access away; then the rest.
async fn in_cluster(places: Vec<TenantExecution<'_>>) -> Report {
    let effects = places.first().and_then(|place| place.effects.clusters.get(place.cluster));
    if let Some(mark) = effects.and_then(|effects| effects.server.mark())
        && !mark.confirm().await
    {
        // The process was rolled back or replaced, so the daemon exits.
        return Report::default();
    }
    let (narrowing, others): (Vec<_>, Vec<_>) =
        places.into_iter().enumerate().partition(|(_, place)| !place.narrowing.is_empty());
    // All bindings are removed before the execution waits for any workload or home.
    let without_access: Vec<_> =
        futures::stream::iter(narrowing).map(narrow_objects).buffer_unordered(ACCOUNTS_AT_A_TIME).collect().await;
    let narrowed: Vec<_> =
        futures::stream::iter(without_access).map(narrow).buffer_unordered(ACCOUNTS_AT_A_TIME).collect().await;
    let (reports, rests): (Vec<Report>, Vec<_>) = narrowed.into_iter().unzip();
    let mut rest: Vec<_> = rests.into_iter().flatten().chain(others).collect();
    rest.sort_by_key(|(number, _)| *number);
    let begin = reports.into_iter().fold(Report::default(), Report::add);
    futures::stream::iter(rest)
        .map(begun)
        .buffer_unordered(ACCOUNTS_AT_A_TIME)
        .fold(begin, |sum, one| std::future::ready(sum.add(one)))
        .await
}

/// An execution with what was done to its objects.
type Begun<'a> = (Numbered<'a>, (tenant::Done, Vec<StepError>));

/// Boxed, so that 10,000 executions that have not begun take little memory, and so that the compiler accepts them as
/// `Send`.
fn narrow_objects((number, place): Numbered<'_>) -> BoxFuture<'_, Begun<'_>> {
    Box::pin(async move {
        let begun = place.narrow_objects().await;
        ((number, place), begun)
    })
}

/// Boxed for the same reasons.
fn narrow(((number, place), begun): Begun<'_>) -> BoxFuture<'_, (Report, Option<Numbered<'_>>)> {
    Box::pin(async move {
        let (report, rest) = place.narrow(begun).await;
        (report, rest.map(|rest| (number, rest)))
    })
}

/// Boxed for the same reasons.
fn begun((_, place): Numbered<'_>) -> BoxFuture<'_, Report> {
    Box::pin(place.carry_out())
}

/// An account's steps in one cluster, in the order of the plan.
#[derive(Default)]
struct Steps<'a> {
    narrowing: Vec<&'a Action>,
    actions: Vec<&'a Action>,
}

fn by_cluster(account: &AccountPlan) -> BTreeMap<&ClusterName, Steps<'_>> {
    let mut clusters: BTreeMap<&ClusterName, Steps<'_>> = BTreeMap::new();
    for action in account.narrowing.iter() {
        clusters.entry(action.cluster()).or_default().narrowing.push(action);
    }
    for action in account.actions.iter() {
        clusters.entry(action.cluster()).or_default().actions.push(action);
    }
    clusters
}
