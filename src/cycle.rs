//! One cycle: the product as a table of contents. Each line is a stage; the comment says what it touches.

use jiff::Timestamp;

use crate::contract::Sealer;
use crate::control::api::{CycleReport, PlanAnswer};
use crate::desired::Deriver;
use crate::evolve::{Evolved, Followed, Inputs, evolve};
use crate::execute::{self, Extent, Recorder, Run};
use crate::inventory::Inventory;
use crate::ledger::LedgerState;
use crate::ledger::change::Event;
use crate::orders::request::Trigger;
use crate::plan::display::Preview;
use crate::plan::{ApprovedPlan, Plan, Refusal};
use crate::policy::Policy;
use crate::report;
use crate::runtime::ledger::Ledger;
use crate::runtime::realm::{self, Following};
use crate::runtime::{Progress, Runtime, RuntimeError};
use crate::snapshot::DirectorySnapshot;
use crate::store::StoreError;
use crate::telemetry::SharedMetrics;

/// Runs one cycle to its end: certificates delivered or failed. `work.interrupt` ends it early, between two accounts.
///
/// # Errors
/// Only if the ledger does not take what happened; then nothing more is begun. Everything else is a state in the ledger: a
/// source that is Partial, a cluster that is away, a tenant that fails.
pub async fn run(runtime: &mut Runtime, trigger: Trigger, extent: Extent) -> Result<CycleReport, RuntimeError> {
    let began = runtime.now();
    runtime.must_own()?;
    runtime.ledger.must_write().await?; // what cannot be remembered is not done
    let heard = hear(runtime, trigger).await?; // clusters: connect; directories: read
    runtime.confine().await; // what confines the daemon: compared with what the watches heard, and repaired
    let Runtime { settings, sealer, deriver, ledger, clusters, realm, work, metrics, .. } = runtime;
    work.progress.step();

    let (inventory, now) = (clusters.inventory(), ledger.now()); // watch caches: read
    let readings = Readings { heard, inventory, policy: &settings.policy, sealer, now };
    let decided = decide(ledger, deriver, readings).await?; // pure; ledger: two transactions
    clusters.reserve(ledger.state().last_generation); // clusters: the mark, if a generation was drawn
    let done = carry_out(ledger, &decided.approved, &work.progress, async |ledger, now, recorder| {
        let run = Run { ledger, now, extent, stop: &work.interrupt };
        tokio::select! {
            done = execute::execute(&decided.approved, &clusters.effects, run, &recorder) => done, // clusters and homes: the only writes to them
            never = work.over() => match never {},
        }
    })
    .await?;
    count(metrics, &decided, &done);
    let (limits, changed) = (&settings.policy.limits, &*clusters.changed);
    let following = Following { ledger: &mut *ledger, limits, work, metrics, changed, trigger, extent };
    let there = realm::serve(realm.as_deref_mut(), following).await?; // the realm: read when due, made as the ledger has it

    let (times, refusals) = ((began, ledger.now()), [decided.refusals, there.refusals].concat());
    let report = report::cycle(trigger, times, ledger.state(), &decided.plan, &decided.approved, &refusals); // pure
    let unfinished = report::unfinished::all(ledger.state(), &clusters.status(ledger.now()));
    let report = CycleReport {
        unfinished,
        actions: done.actions + there.actions,
        left: done.left,
        near: [report.near, there.near].concat(),
        realm: realm.as_ref().and_then(|realm| realm.trouble()),
        ..report
    };
    Ok(ledger.finish(report).await?) // ledger: the cycle's own row
}

/// What a cycle would do now, by the same function. Nothing is written, not even what was read.
pub async fn preview(runtime: &mut Runtime) -> Result<PlanAnswer, RuntimeError> {
    runtime.connect().await?; // clusters that were away: asked whether they are back
    let heard = runtime.directories.read_all(runtime.reader()).await; // directories: read
    let Runtime { settings, sealer, deriver, ledger, clusters, realm, .. } = runtime;
    let (inventory, now) = (clusters.inventory(), ledger.now()); // watch caches: read
    let readings = Readings { heard: Some(heard), inventory, policy: &settings.policy, sealer, now };
    let evolved = evolve(readings.with(ledger.state()), deriver); // pure
    let Evolved { known, plan, approved, refusals, after, .. } = &evolved;
    let mut preview = Preview::of(known, plan, approved, refusals);
    let followed = match realm {
        Some(realm) => Some(realm.preview(after, &settings.policy.limits, now).await), // the realm: read
        None => None,
    };
    if let Some(followed) = &followed {
        preview = preview.with_realm(match followed {
            Ok(Followed { plan, approved, refusals }) => Ok((plan, approved, refusals)),
            Err(why) => Err(why),
        });
    }
    let notices = clusters.approver_notices(&settings.policy);
    let text = notices.into_iter().fold(preview.to_string(), |text, notice| format!("{text}\n{notice}"));
    Ok(PlanAnswer { text, plan: preview.json(), exit_code: preview.exit_code() })
}

/// Reads on while the ledger takes no writes: what the directories say, and for how many accounts something waits.
/// Nothing is written.
pub async fn read_on(runtime: &mut Runtime) -> Result<(), RuntimeError> {
    let Some(heard) = ask(runtime, Trigger::Schedule).await else { return Ok(()) }; // directories: read
    let Runtime { settings, sealer, deriver, ledger, clusters, .. } = runtime;
    let (inventory, now) = (clusters.inventory(), ledger.now()); // watch caches: read
    let readings = Readings { heard: Some(heard), inventory, policy: &settings.policy, sealer, now };
    let Evolved { seen, approved, .. } = evolve(readings.with(ledger.state()), deriver); // pure
    ledger.hear(&seen.changes, approved.accounts().len() as u64);
    Ok(())
}

/// What the directories answer, if this cycle asks them: who asks for it does, and an order that only a read can carry out.
async fn hear(runtime: &mut Runtime, trigger: Trigger) -> Result<Option<DirectorySnapshot>, RuntimeError> {
    if !trigger.asks() && !runtime.ledger.state().waits_for_a_read() {
        return Ok(None);
    }
    if trigger.connects() {
        runtime.connect().await?; // clusters that were away: asked whether they are back
    }
    Ok(ask(runtime, trigger).await)
}

/// Reads the directories, on schedule those that are due. Returns `None` if an order arrived: orders never wait for a
/// directory that hangs.
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

/// All that a cycle decides from but the ledger.
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

/// What a cycle carries out, and what it tells of it.
struct Decided {
    plan: Plan,
    approved: ApprovedPlan,
    refusals: Vec<Refusal>,
    events: Vec<Event>,
}

/// Decides, and writes down what was seen and what will be done, each in one transaction: before anything is done the ledger
/// has state and generation of it.
async fn decide(ledger: &mut Ledger, deriver: &mut Deriver, readings: Readings<'_>) -> Result<Decided, StoreError> {
    let now = readings.now;
    let evolved = evolve(readings.with(ledger.state()), deriver);
    let Evolved { seen, known, plan, approved, refusals, intended, after } = evolved;
    // What is shared would be copied at the first write.
    drop((readings, known, after));
    ledger.write(&seen.changes, &seen.events, now).await?;
    ledger.write(&intended.changes, &intended.events, now).await?;
    Ok(Decided { plan, approved, refusals, events: intended.events })
}

/// Executes, and stores what was done while it is done. When the ledger does not take it, nothing more is begun.
async fn carry_out(
    ledger: &mut Ledger,
    approved: &ApprovedPlan,
    progress: &Progress,
    execute: impl AsyncFnOnce(&LedgerState, Timestamp, Recorder) -> execute::Report,
) -> Result<execute::Report, StoreError> {
    if approved.accounts().is_empty() {
        return Ok(execute::Report::default());
    }
    ledger.prove().await?;
    // The run keeps the ledger as the plan saw it; the store goes on with what is done.
    let (planned, now) = (ledger.state().clone(), ledger.now());
    let (recorder, mut records) = Recorder::channel();
    let work = execute(&planned, now, recorder);
    let store = async {
        let mut waiting = Vec::new();
        while records.recv_many(&mut waiting, RECORDS_AT_A_TIME).await > 0 {
            let changes: Vec<_> = waiting.iter().flat_map(|record| record.changes.iter().cloned()).collect();
            let events: Vec<_> = waiting.iter().flat_map(|record| record.events.iter().cloned()).collect();
            let now = ledger.now();
            ledger.write(&changes, &events, now).await?;
            progress.step();
            for record in waiting.drain(..) {
                // A caller that no longer waits has nothing left to do.
                let _ = record.stored.send(());
            }
        }
        Ok::<(), StoreError>(())
    };
    // A store that fails drops the receiver: writers learn that nothing more is stored, and stop.
    let (report, stored) = tokio::join!(work, store);
    stored.map(|()| report)
}

/// Records stored in one transaction. Each transaction costs a sync of the disk (about 1 ms), so what has come together
/// meanwhile goes together.
const RECORDS_AT_A_TIME: usize = 64;

#[cfg(test)]
mod tests;
