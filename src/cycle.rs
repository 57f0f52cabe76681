//! One cycle, written as a table of contents: each line is a stage, and its comment says what the stage touches.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bursar_directory::Pass;
use jiff::Timestamp;

use crate::bootstrap::Reserved;
use crate::contract::Sealer;
use crate::control::api::{CycleReport, PlanAnswer};
use crate::evolve::{Evolved, Followed, Inputs, evolve};
use crate::execute::{self, Extent, Recorder, Run};
use crate::identity::ClusterName;
use crate::inventory::Inventory;
use crate::ledger::LedgerState;
use crate::ledger::change::Event;
use crate::orders::request::Trigger;
use crate::outlook::{self, Difference, Lookahead, Outlook};
use crate::plan::display::Preview;
use crate::plan::{AccountPlan, Action, ApprovedPlan, Plan, Planner, Refusal};
use crate::policy::Policy;
use crate::report;
use crate::runtime::clusters::Clusters;
use crate::runtime::directories::Reader;
use crate::runtime::ledger::Ledger;
use crate::runtime::realm::{self, Following};
use crate::runtime::{Runtime, RuntimeError, StepCounter, Work};
use crate::settings::Settings;
use crate::snapshot::DirectorySnapshot;
use crate::store::StoreError;
use crate::telemetry::SharedMetrics;

/// Runs one cycle until every certificate is delivered or its delivery has failed. `work.interrupt` ends the cycle
/// early: no work for a further account begins, and work that is still in progress a second later is dropped.
///
/// # Errors
/// The ledger did not record what happened; then no further work begins. All other failures are states in the ledger: a
/// source that is Partial, a cluster that is unreachable, a tenant that fails.
pub async fn run(runtime: &mut Runtime, trigger: Trigger, extent: Extent) -> Result<CycleReport, RuntimeError> {
    let began = runtime.now();
    runtime.must_own()?;
    runtime.ledger.must_write().await?; // nothing is done that the ledger could not record
    let heard = hear(runtime, trigger).await?; // clusters: connect; directories: read
    let reading = heard.as_ref().map(|heard| runtime.directories.still_reading(heard)).unwrap_or_default();
    let reading = runtime.still_reading(reading);
    runtime.confine().await?; // the confinement: compared with the watches, and repaired
    let Runtime { settings, sealer, planner, ledger, clusters, realm, work, metrics, .. } = runtime;
    work.progress.step();
    if trigger == Trigger::FullRead {
        planner.forget();
    }
    if trigger.tries_all() {
        clusters.forget_repairs(); // a repair that another program undid waits no longer
    }

    let (inventory, now) = (clusters.inventory(), ledger.now()); // watch caches: read
    let readings = Readings { heard, inventory, policy: &settings.policy, sealer, now };
    let mut decided = decide(ledger, planner, readings).await?; // pure; ledger: two transactions
    decided.plan.accounts = Vec::new(); // only its counts and findings are needed from here on
    ledger.may_mark(clusters.marked()).await?; // ledger: before a mark is raised
    clusters.reserve(&Reserved::of(ledger.state(), &settings.policy)); // clusters: the mark, if it must be raised
    let clock = ledger.clock();
    let done = carry_out(ledger, &decided.approved, &work.progress, async |ledger, now, recorder| {
        let run = Run { ledger, now, clock, extent, stop: &work.interrupt, slice_over: &work.slice_over };
        tokio::select! {
            // clusters and homes: the only writes to them
            done = execute::execute(&decided.approved, &clusters.effects, run, &recorder) => done,
            () = work.cut() => execute::Report { left: decided.approved.accounts().len() as u64, ..Default::default() },
            never = work.over() => match never {},
        }
    })
    .await?;
    clusters.must_own(ledger.state())?; // before anything is written in the realm
    count(metrics, &decided, &done);
    recount(clusters, ledger, work, trigger, stopped(&decided.approved)).await; // clusters: pods of suspended tenants
    let (limits, changed) = (&settings.policy.limits, &clusters.changed);
    let following = Following { ledger: &mut *ledger, limits, work, metrics, changed, clusters, trigger, extent };
    let there = realm::serve(realm.as_deref_mut(), following).await?; // the realm: read when due, then updated

    let (times, refusals) = ((began, ledger.now()), [decided.refusals, there.refusals].concat());
    let report = report::cycle(trigger, times, ledger.state(), &decided.plan, &decided.approved, &refusals); // pure
    let clusters = clusters.status(ledger.now());
    let mut unfinished = report::unfinished::all(ledger.state(), &settings.policy, &clusters);
    unfinished.extend(realm.iter().flat_map(|realm| realm.unfinished(ledger.state())));
    let report = CycleReport {
        unfinished,
        away: report::away(&decided.plan, &clusters),
        actions: done.actions + there.actions,
        left: done.left,
        near: [report.near, there.near].concat(),
        realm: realm.as_ref().and_then(|realm| realm.trouble()),
        reading,
        ..report
    };
    Ok(ledger.finish(report).await?) // ledger: the cycle's own row
}

/// Counts the pods of suspended tenants that still run. At the start and after a full read, it counts in all suspended
/// namespaces. Otherwise, it counts in the namespaces that had such pods at the last count, and in `stopped`, where
/// workloads were just stopped.
async fn recount(
    clusters: &mut Clusters,
    ledger: &Ledger,
    work: &Work,
    trigger: Trigger,
    mut stopped: BTreeSet<(ClusterName, String)>,
) {
    let is_counted_whole = matches!(trigger, Trigger::FullRead | Trigger::Start);
    for (cluster, pods) in &clusters.suspended_pods {
        // Pods that were counted may have ended, or their namespace may have been resumed.
        let open = pods.iter().filter(|(_, pods)| **pods > 0);
        stopped.extend(open.map(|(namespace, _)| (cluster.clone(), namespace.clone())));
    }
    if !is_counted_whole && stopped.is_empty() {
        return;
    }
    let only = (!is_counted_whole).then_some(&stopped);
    let counted = execute::workloads::running_suspended(&clusters.effects, ledger.state(), only, ledger.now());
    let counted = tokio::select! {
        counted = counted => counted,
        () = work.interrupt.cancelled() => return,
        () = work.hurry.cancelled(), if trigger != Trigger::FullRead => return,
        () = tokio::time::sleep(COUNTS_FOR), if trigger != Trigger::FullRead => return,
    };
    // A cluster that was not counted keeps its last count.
    for (cluster, pods) in counted {
        let known = clusters.suspended_pods.entry(cluster.clone()).or_default();
        known.retain(|namespace, _| !is_counted_whole && !stopped.contains(&(cluster.clone(), namespace.clone())));
        known.extend(pods);
    }
}

/// How long the pods of suspended tenants are counted, except at night. The answers to orders wait for the count.
const COUNTS_FOR: Duration = Duration::from_secs(10);

/// Returns the namespaces in which a plan stops workloads.
fn stopped(approved: &ApprovedPlan) -> BTreeSet<(ClusterName, String)> {
    let steps = approved.accounts().iter().flat_map(AccountPlan::steps);
    let stopped = steps.filter_map(|action| match action {
        Action::StopWorkloads { cluster, namespace } => Some((cluster.clone(), namespace.to_string())),
        _ => None,
    });
    stopped.collect()
}

/// What is previewed; the default is the next cycle.
#[derive(Debug, Default)]
pub struct Ask {
    /// Preview with this configuration instead of the one in force.
    pub other: Option<Box<Settings>>,
    /// Include what falls due until this time.
    pub at: Option<Timestamp>,
}

/// Returns what a cycle would do now. Decides with the same function as a cycle, and writes nothing, not even what was
/// read.
///
/// # Errors
/// A cluster shows that this ledger must not be used, or a password of the other configuration cannot be read.
pub async fn preview_of(runtime: &mut Runtime, ask: &Ask) -> Result<PlanAnswer, RuntimeError> {
    runtime.connect().await?; // clusters that were unreachable: tried again
    let reader = runtime.reader();
    let heard = runtime.directories.read_all(reader).await; // directories: read
    let other = match &ask.other {
        Some(other) => {
            let reader = Reader { policy: &other.policy, ..reader };
            Some((other, runtime.directories.read_others(&other.sources()?, reader).await)) // directories: read
        }
        None => None,
    };
    let Runtime { settings, sealer, planner, ledger, clusters, realm, work, .. } = runtime;
    let (inventory, now) = (clusters.inventory(), ledger.now()); // watch caches: read
    let mut readings = Readings { heard: Some(heard), inventory, policy: &settings.policy, sealer, now };
    let mut evolved = evolve(readings.with(ledger.state()), planner); // pure
    let (mut difference, mut new) = (None, Vec::new());
    if let Some((other, heard)) = other {
        new.extend(other.policy.clusters.keys().filter(|cluster| !settings.policy.clusters.contains_key(*cluster)));
        readings = Readings { heard: Some(heard), policy: &other.policy, ..readings };
        readings.inventory.clusters.extend(new.iter().map(|cluster| ((*cluster).clone(), Arc::default())));
        let theirs = evolve(readings.with(ledger.state()), &mut Planner::default()); // pure
        difference = Some(Difference::of(&evolved, &theirs, &other.policy, now));
        evolved = theirs;
    }
    let outlook = match ask.at {
        Some(at) => Some(look_ahead(readings.with(ledger.state()), at, work).await), // pure
        None => None,
    };
    let Evolved { known, plan, approved, refusals, .. } = &evolved;
    let mut preview = Preview::of(known, plan, approved, refusals);
    let is_same_realm = ask.other.as_ref().is_none_or(|other| other.realm == settings.realm);
    let followed = match realm {
        // the realm: read
        Some(realm) if is_same_realm => Some(realm.preview(&evolved.after(), &readings.policy.limits, now).await),
        _ => None,
    };
    if let Some(followed) = &followed {
        preview = preview.with_realm(match followed {
            Ok(Followed { plan, approved, refusals }) => Ok((plan, approved, refusals)),
            Err(why) => Err(why),
        });
    }
    let away = report::away(plan, &clusters.status(now));
    let away = away.into_iter().filter_map(|(cluster, away)| Some(format!("! cluster {cluster}: {}", away.why?)));
    let own = (ledger.state().ledger_id.as_str(), sealer.public_key());
    let outdated = clusters.outdated_approvers(readings.policy, own).into_iter();
    let outdated = outdated.map(|(cluster, notice)| format!("! cluster {cluster}: {notice}"));
    let empty = new.iter().map(|cluster| format!("as if cluster {cluster} were empty: it is not in force yet"));
    let notices = outdated.chain(away).chain(empty);
    let mut text = notices.fold(preview.to_string(), |text, notice| format!("{}\n{notice}", text.trim_end()));
    let more = [difference.as_ref().map(ToString::to_string), outlook.as_ref().map(ToString::to_string)];
    more.into_iter().flatten().for_each(|more| text = format!("{}\n\n{more}", text.trim_end()));
    let plan = outlook::with(preview.json(), difference.as_ref(), outlook.as_ref());
    Ok(PlanAnswer { text, plan, exit_code: preview.exit_code() })
}

/// Looks ahead, and lets other work run in between. If an order or the end of the daemon cuts it short, the outlook
/// ends early.
async fn look_ahead(inputs: Inputs<'_>, at: Timestamp, work: &Work) -> Outlook {
    let mut lookahead = Lookahead::new(inputs, at);
    while !work.interrupt.is_cancelled() && lookahead.step(inputs) {
        work.progress.step();
        tokio::task::yield_now().await;
    }
    lookahead.into_outlook()
}

/// Returns what the first cycle would do, before a ledger and a seal exist. Covers only the directories, as if all
/// clusters were empty.
pub async fn preview_before_init(settings: &Settings, now: Timestamp) -> Result<PlanAnswer, RuntimeError> {
    // directories: read
    let heard = bursar_directory::fetch(&settings.sources()?, &Pass::Once, &settings.policy, now).await;
    let sealer = Sealer::from_seed(&[0; 32]).map_err(|error| RuntimeError::Seal {
        path: settings.state_dir.clone(),
        source: std::io::Error::new(std::io::ErrorKind::InvalidData, error),
    })?;
    let clusters = settings.policy.clusters.keys().map(|cluster| (cluster.clone(), Arc::default())).collect();
    let inventory = Inventory { clusters, ..Inventory::default() };
    let readings = Readings { heard: Some(heard), inventory, policy: &settings.policy, sealer: &sealer, now };
    let evolved = evolve(readings.with(&LedgerState::default()), &mut Planner::default()); // pure
    let Evolved { known, plan, approved, refusals, .. } = &evolved;
    let preview = Preview::of(known, plan, approved, refusals);
    let text = format!(
        "{preview}`bursar init` was not run yet: this plan covers the directories only, as if all clusters were empty"
    );
    Ok(PlanAnswer { text, plan: preview.json(), exit_code: preview.exit_code() })
}

/// Goes on reading while the ledger takes no writes: keeps in memory what the directories show, and counts the accounts
/// that have something to do. Writes nothing.
pub async fn read_on(runtime: &mut Runtime) -> Result<(), RuntimeError> {
    let Some(heard) = ask(runtime, Trigger::Schedule).await else { return Ok(()) }; // directories: read
    let Runtime { settings, sealer, planner, ledger, clusters, .. } = runtime;
    let (inventory, now) = (clusters.inventory(), ledger.now()); // watch caches: read
    let readings = Readings { heard: Some(heard), inventory, policy: &settings.policy, sealer, now };
    let Evolved { seen, approved, .. } = evolve(readings.with(ledger.state()), planner); // pure
    ledger.hear(&seen.changes, approved.accounts().len() as u64);
    Ok(())
}

/// Returns the answers of the directories; `None` if this cycle does not read them. A cycle reads them if its trigger
/// asks for a read, or if its order waits for one.
async fn hear(runtime: &mut Runtime, trigger: Trigger) -> Result<Option<DirectorySnapshot>, RuntimeError> {
    let ledger = runtime.ledger.state();
    // Any other order is carried out first, and waits for no directory.
    let waits = trigger == Trigger::Order && ledger.waits_for_a_read();
    let waits = waits && ledger.orders.iter().all(|order| order.what.is_of_reads());
    if !trigger.asks() && !waits {
        return Ok(None);
    }
    if trigger.connects() {
        runtime.connect().await?; // clusters that were unreachable: tried again
    }
    Ok(ask(runtime, trigger).await)
}

/// Reads the directories; in a scheduled cycle, those that are due. Returns `None` if an order arrived: orders never
/// wait for a hung directory.
async fn ask(runtime: &Runtime, trigger: Trigger) -> Option<DirectorySnapshot> {
    tokio::select! {
        read = runtime.directories.read(trigger, runtime.reader()) => Some(read),
        () = runtime.work.interrupt.cancelled() => None,
    }
}

fn count(metrics: &SharedMetrics, decided: &Decided, done: &execute::Report) {
    metrics.changed(&decided.events);
    metrics.drift_repaired(done.drift_repaired);
    metrics.reaped(done.reaped);
    metrics.repeated(done.repeated);
    for refusal in &decided.refusals {
        metrics.refused(&refusal.limit);
    }
}

/// Everything, apart from the ledger, that the decisions of a cycle depend on.
struct Readings<'a> {
    heard: Option<DirectorySnapshot>,
    inventory: Inventory,
    policy: &'a Policy,
    sealer: &'a Sealer,
    now: Timestamp,
}

impl Readings<'_> {
    fn with<'a>(&'a self, ledger: &'a LedgerState) -> Inputs<'a> {
        let Self { heard, inventory, policy, sealer, now } = self;
        Inputs { ledger, heard: heard.as_ref(), inventory, policy, sealer, now: *now }
    }
}

/// The decisions of a cycle, and what it reports.
struct Decided {
    plan: Plan,
    approved: ApprovedPlan,
    refusals: Vec<Refusal>,
    events: Vec<Event>,
}

/// Decides, and records what was seen and what will be done, each in one transaction. The ledger therefore contains the
/// state and the generation of every change before the change is made.
async fn decide(ledger: &mut Ledger, planner: &mut Planner, readings: Readings<'_>) -> Result<Decided, StoreError> {
    let now = readings.now;
    let evolved = evolve(readings.with(ledger.state()), planner);
    let Evolved { seen, known, plan, approved, refusals, intended } = evolved;
    // These values are dropped first, because a write copies every map that they still share with the ledger.
    drop((readings, known));
    ledger.write(&seen.changes, &seen.events, now).await?;
    drop(seen);
    ledger.write(&intended.changes, &intended.events, now).await?;
    Ok(Decided { plan, approved, refusals, events: intended.events })
}

/// Executes the plan, and meanwhile stores what was done. If the ledger does not record something, no further work
/// begins.
async fn carry_out(
    ledger: &mut Ledger,
    approved: &ApprovedPlan,
    progress: &StepCounter,
    execute: impl AsyncFnOnce(&LedgerState, Timestamp, Recorder) -> execute::Report,
) -> Result<execute::Report, StoreError> {
    if approved.accounts().is_empty() {
        return Ok(execute::Report::default());
    }
    ledger.prove().await?;
    // The execution keeps the ledger as the plan saw it, while the store records what is done.
    let (planned, now) = (ledger.state().clone(), ledger.now());
    let (recorder, records) = Recorder::channel();
    let work = execute(&planned, now, recorder);
    let store = async {
        let (mut records, mut waiting) = (records, Vec::new());
        while records.recv_many(&mut waiting, RECORDS_AT_A_TIME).await > 0 {
            let changes: Vec<_> = waiting.iter().flat_map(|record| record.changes.iter().cloned()).collect();
            let events: Vec<_> = waiting.iter().flat_map(|record| record.events.iter().cloned()).collect();
            let now = ledger.now();
            ledger.write(&changes, &events, now).await?;
            progress.step();
            for record in waiting.drain(..) {
                // If the writer no longer waits, it needs no confirmation.
                let _ = record.stored.send(());
            }
        }
        Ok::<(), StoreError>(())
    };
    // If the store fails, it drops the receiver. The writers then learn that nothing more is stored, and stop.
    let (report, stored) = tokio::join!(work, store);
    stored.map(|()| report)
}

/// The number of records in one transaction. Each transaction costs a sync of the disk (about 1 ms), so records that
/// arrive during one transaction share the next one.
const RECORDS_AT_A_TIME: usize = 64;

#[cfg(test)]
mod tests;
