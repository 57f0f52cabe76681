//! Carries out what was approved: the only writer to clusters and homes. The plan made every choice; here are order,
//! pace and what happens when something fails.
//!
//! Accounts are carried out side by side, each cluster on its own, so that a cluster that hangs holds up nobody else's
//! tenants. In each cluster the steps that take access away go first, for all accounts, and each of them is tried even
//! if others fail. Then the plan's order holds within one account; a failure ends the rest of it there.

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

/// Accounts of one cluster under way at a time. As many as the widest pace: each has at most a few requests open, and
/// one that waits for a certificate or a home leaves its place in the pace to others.
const ACCOUNTS_AT_A_TIME: usize = 32;

/// Everything that can be written to.
#[derive(Debug)]
pub struct Effects {
    /// Clusters that are connected.
    pub clusters: BTreeMap<ClusterName, ClusterEffects>,
    /// The writer in homes.
    pub homes: HomedClient,
    /// Where namespaces are written before they are deleted.
    pub archives: Archives,
}

/// One cluster that can be written to.
#[derive(Debug)]
pub struct ClusterEffects {
    /// Its API server.
    pub server: ApiServer,
    /// Its watches, which are told of every write.
    pub watch: ClusterWatch,
    /// Its endpoints, as kubeconfigs name them.
    pub face: Cluster,
    /// Its pods, while a reaper is on.
    pub pods: Option<PodWatch>,
    /// What its Prometheus shows in use, while idle namespaces are looked for.
    pub in_use: Option<UseWatch>,
    /// Namespaces of others, while a class adopts some.
    pub adopted: Option<AdoptedWatch>,
}

impl ClusterEffects {
    /// Begins to watch a cluster, and makes it ready to be written to. A change of what others create notifies `soon`,
    /// which must not wait; every other change notifies `changed`.
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
}

impl ClusterEffects {
    /// Whether this configuration and ledger watch the same in it.
    #[must_use]
    pub fn still_serves(&self, (policy, ledger): (&Policy, &LedgerState)) -> bool {
        let kinds = self.watch.kinds();
        let wanted = managed_kinds().into_iter().chain(site_kinds(policy, ledger, self.watch.cluster()));
        let looked = self.adopted.as_ref().map(|watch| watch.wanted().clone()).unwrap_or_default();
        looked == adopted::wanted(policy, self.watch.cluster())
            && kinds.iter().eq(&wanted.collect::<Vec<_>>())
            && self.pods.is_some() == policy.reapers.look_at_pods()
    }

    /// Endpoints that did not take credentials when they were last asked, with why.
    #[must_use]
    pub fn findings(&self) -> BTreeMap<String, String> {
        self.server.endpoint_probes().findings(&self.face.endpoints)
    }
}

/// How much of a plan is carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// All of it, what is urgent first.
    All,
    /// What takes access away or gives it back; the rest is left to a cycle that is waiting already.
    Urgent,
}

/// What all steps of one execution share.
#[derive(Debug, Clone, Copy)]
pub struct Run<'a> {
    /// The ledger as the plan saw it, with what was intended.
    pub ledger: &'a LedgerState,
    /// When it began.
    pub now: Timestamp,
    /// The time. The backoff of a step that failed begins when the step ended, which may be long after `now`.
    pub clock: fn() -> Timestamp,
    /// How much of the plan.
    pub extent: Extent,
    /// Cancelled: what is under way is finished, nothing more is begun.
    pub stop: &'a CancellationToken,
    /// Cancelled: grants and repairs of further accounts are left to the next execution. A child of `stop`.
    pub slice_over: &'a CancellationToken,
}

/// What came of it, counted by account and cluster.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Report {
    /// All of it was done.
    pub done: u64,
    /// A step failed.
    pub failed: u64,
    /// Steps of those that were begun, looks into homes apart.
    pub actions: u64,
    /// Not begun, because the execution was told to stop.
    pub left: u64,
    /// Objects that somebody had changed and that are as they should be again.
    pub drift_repaired: u64,
    /// Pods that were past their lifetime.
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

/// Carries out what the guard let through. What was done is handed to `recorder` tenant by tenant; when the ledger does
/// not take it, nothing more is begun.
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
    let (urgent, rest): (Vec<_>, Vec<_>) = plan.accounts().iter().partition(|account| account.is_urgent());
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

/// With its place among all.
type Numbered<'a> = (usize, TenantExecution<'a>);

/// What takes access away of all accounts, then everything else.
async fn in_cluster(places: Vec<TenantExecution<'_>>) -> Report {
    let (narrowing, others): (Vec<_>, Vec<_>) =
        places.into_iter().enumerate().partition(|(_, place)| !place.narrowing.is_empty());
    // The bindings of all accounts go before anybody's workloads or home is waited for.
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

/// With what became of its objects.
type Begun<'a> = (Numbered<'a>, (tenant::Done, Vec<StepError>));

/// Boxed, so that 10,000 that are not begun take no room, and so that the compiler sees that it can change threads.
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

/// What is to be done in one cluster, in the plan's order.
#[derive(Default)]
struct Steps<'a> {
    narrowing: Vec<&'a Action>,
    actions: Vec<&'a Action>,
}

fn by_cluster(account: &AccountPlan) -> BTreeMap<&ClusterName, Steps<'_>> {
    let mut clusters: BTreeMap<&ClusterName, Steps<'_>> = BTreeMap::new();
    for action in &account.narrowing {
        clusters.entry(action.cluster()).or_default().narrowing.push(action);
    }
    for action in &account.actions {
        clusters.entry(action.cluster()).or_default().actions.push(action);
    }
    clusters
}
