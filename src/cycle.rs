//! One cycle: the product as a table of contents. Each line is a stage; the comment says what it touches.

use bursar_directory as directory;
use jiff::Timestamp;

use crate::contract::Sealer;
use crate::control::api::{CycleReport, PlanAnswer};
use crate::desired::Deriver;
use crate::engine::{Clock, Engine, EngineError, Progress, tell_repairs};
use crate::evolve::{Evolved, Followed, Inputs, evolve};
use crate::execute::{self, Extent, Recorder, Run};
use crate::inventory::Inventory;
use crate::ledger::LedgerState;
use crate::ledger::change::{Change, Event};
use crate::orders::request::Trigger;
use crate::plan::display::Preview;
use crate::plan::{ApprovedPlan, Plan, Refusal};
use crate::policy::Policy;
use crate::report;
use crate::snapshot::DirectorySnapshot;
use crate::store::{CycleLock, Store, StoreError};

/// Runs one cycle to its end: certificates delivered or failed. `engine.cut` ends it early, between two accounts.
///
/// # Errors
/// Only if the ledger does not take what happened; then nothing more is begun. Everything else is a state in the ledger: a
/// source that is Partial, a cluster that is away, a tenant that fails.
pub async fn run(engine: &mut Engine, trigger: Trigger, extent: Extent) -> Result<CycleReport, EngineError> {
    let began = engine.now();
    engine.must_own()?;
    engine.must_write().await?; // what cannot be remembered is not done
    let heard = hear(engine, trigger).await?; // clusters: connect; directories: read
    engine.progress.step();

    let (inventory, now) = (engine.inventory(), engine.now()); // watch caches: read
    let readings = Readings { heard, inventory, policy: &engine.settings.policy, sealer: &engine.sealer, now };
    let mut writer = Writer { store: &mut engine.store, lock: &engine.lock, clock: engine.clock };
    let decided = decide(&mut writer, &mut engine.deriver, readings).await?; // pure; ledger: two transactions
    let (effects, stop, progress) = (&engine.effects, &engine.cut, &engine.progress);
    let done = carry_out(&mut writer, &decided.approved, progress, async |ledger, now, recorder| {
        let run = Run { ledger, now, extent, stop };
        execute::execute(&decided.approved, effects, run, &recorder).await // clusters and homes: the only writes to them
    })
    .await?;
    engine.count(&decided.events, &done, &decided.refusals);
    let there = engine.serve_realm(trigger, extent).await?; // the realm: read when due, made as the ledger has it

    let (times, refusals) = ((began, engine.now()), [decided.refusals, there.refusals].concat());
    let report = report::cycle(trigger, times, engine.store.state(), &decided.plan, &decided.approved, &refusals); // pure
    let report = CycleReport {
        actions: done.actions + there.actions,
        left: done.left,
        near: [report.near, there.near].concat(),
        realm: engine.realm_trouble(),
        ..report
    };
    engine.finish(report).await // ledger: the cycle's own row
}

/// What a cycle would do now, by the same function. Nothing is written, not even what was read.
pub async fn preview(engine: &mut Engine) -> Result<PlanAnswer, EngineError> {
    engine.connect().await?; // clusters that were away: asked whether they are back
    let pass = engine.pass(Trigger::Sync);
    let heard = directory::fetch(&engine.all_sources(), &pass, &engine.settings.policy, engine.now()).await;
    let (inventory, now) = (engine.inventory(), engine.now()); // watch caches: read
    let readings =
        Readings { heard: Some(heard), inventory, policy: &engine.settings.policy, sealer: &engine.sealer, now };
    let evolved = evolve(readings.with(engine.store.state()), &mut engine.deriver); // pure
    let realm = engine.preview_realm(&evolved.after).await; // the realm: read
    let Evolved { known, plan, approved, refusals, .. } = &evolved;
    let mut preview = Preview::of(known, plan, approved, refusals);
    if let Some(realm) = &realm {
        preview = preview.with_realm(match realm {
            Ok(Followed { plan, approved, refusals }) => Ok((plan, approved, refusals)),
            Err(why) => Err(why),
        });
    }
    Ok(PlanAnswer { text: preview.to_string(), plan: preview.json(), exit_code: preview.exit_code() })
}

/// Reads on while the ledger takes no writes: what the directories say, and for how many accounts something waits.
/// Nothing is written.
pub async fn read_on(engine: &mut Engine) -> Result<(), EngineError> {
    let Some(heard) = ask(engine, Trigger::Schedule).await else { return Ok(()) };
    let (inventory, now) = (engine.inventory(), engine.now()); // watch caches: read
    let readings =
        Readings { heard: Some(heard), inventory, policy: &engine.settings.policy, sealer: &engine.sealer, now };
    let Evolved { seen, approved, .. } = evolve(readings.with(engine.store.state()), &mut engine.deriver); // pure
    engine.heard(&seen.changes, approved.accounts().len() as u64);
    Ok(())
}

/// What the directories answer, if this cycle asks them: who asks for it does, and an order that only a read can carry out.
async fn hear(engine: &mut Engine, trigger: Trigger) -> Result<Option<DirectorySnapshot>, EngineError> {
    if !trigger.asks() && !engine.store.state().orders.iter().any(|order| order.what.is_of_reads()) {
        return Ok(None);
    }
    if trigger.connects() {
        engine.connect().await?; // clusters that were away: asked whether they are back
    }
    Ok(ask(engine, trigger).await)
}

/// Reads the directories, on schedule those that are due. `None`: an order came meanwhile, and is not to wait for a directory that hangs.
async fn ask(engine: &Engine, trigger: Trigger) -> Option<DirectorySnapshot> {
    let (due, unasked) = engine.due(trigger);
    let (pass, policy) = (engine.pass(trigger), &engine.settings.policy);
    tokio::select! {
        read = directory::fetch(&due, &pass, policy, engine.now()) => {
            tell_repairs(&read);
            Some(DirectorySnapshot { unasked, ..read })
        }
        () = engine.cut.cancelled() => None,
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

/// The ledger, as the one who may write it.
struct Writer<'a> {
    store: &'a mut Store,
    lock: &'a CycleLock,
    clock: Clock,
}

impl Writer<'_> {
    async fn write(&mut self, changes: &[Change], events: &[Event], now: Timestamp) -> Result<(), StoreError> {
        self.store.write(self.lock, changes, events, now).await
    }
}

/// Decides, and writes down what was seen and what will be done, each in one transaction: before anything is done the ledger
/// has state and generation of it.
async fn decide(writer: &mut Writer<'_>, deriver: &mut Deriver, readings: Readings<'_>) -> Result<Decided, StoreError> {
    let now = readings.now;
    let evolved = evolve(readings.with(writer.store.state()), deriver);
    let Evolved { seen, known, plan, approved, refusals, intended, after } = evolved;
    // What is shared would be copied at the first write.
    drop((readings, known, after));
    writer.write(&seen.changes, &seen.events, now).await?;
    writer.write(&intended.changes, &intended.events, now).await?;
    Ok(Decided { plan, approved, refusals, events: intended.events })
}

/// Executes, and stores what was done while it is done. When the ledger does not take it, nothing more is begun.
async fn carry_out(
    writer: &mut Writer<'_>,
    approved: &ApprovedPlan,
    progress: &Progress,
    execute: impl AsyncFnOnce(&LedgerState, Timestamp, Recorder) -> execute::Report,
) -> Result<execute::Report, StoreError> {
    if approved.accounts().is_empty() {
        return Ok(execute::Report::default());
    }
    writer.store.prove(writer.lock).await?;
    // The run keeps the ledger as the plan saw it; the store goes on with what is done.
    let (ledger, now) = (writer.store.state().clone(), (writer.clock)());
    let (recorder, mut records) = Recorder::channel();
    let work = execute(&ledger, now, recorder);
    let store = async {
        let mut waiting = Vec::new();
        while records.recv_many(&mut waiting, RECORDS_AT_A_TIME).await > 0 {
            let changes: Vec<_> = waiting.iter().flat_map(|record| record.changes.iter().cloned()).collect();
            let events: Vec<_> = waiting.iter().flat_map(|record| record.events.iter().cloned()).collect();
            let now = (writer.clock)();
            writer.write(&changes, &events, now).await?;
            progress.step();
            for record in waiting.drain(..) {
                // Whoever no longer waits has nothing left to do.
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
