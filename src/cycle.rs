//! One cycle: the product as a table of contents. Each line is a stage; the comment says what it touches.

use crate::control::api::{CycleReport, PlanAnswer};
use crate::desired::DesiredState;
use crate::directory;
use crate::engine::{Engine, EngineError, tell_repairs};
use crate::execute::{self, Extent, Recorder, Run};
use crate::inventory::Inventory;
use crate::ledger::LedgerState;
use crate::ledger::transition::transition;
use crate::orders::request::Trigger;
use crate::plan::display::Preview;
use crate::plan::guard::{Bounds, guard};
use crate::plan::intents::overcome;
use crate::plan::quota::lapsed;
use crate::plan::revocation::advance;
use crate::plan::{self, ApprovedPlan, Plan, Refusal, adopted, idle};
use crate::policy::Policy;
use crate::report;
use crate::snapshot::DirectorySnapshot;

/// Runs one cycle to its end: certificates delivered or failed. `engine.cut` ends it early, between two accounts.
///
/// # Errors
/// Only if the ledger does not take what happened; then nothing more is begun. Everything else is a state in the ledger: a
/// source that is Partial, a cluster that is away, a tenant that fails.
pub async fn run(engine: &mut Engine, trigger: Trigger, extent: Extent) -> Result<CycleReport, EngineError> {
    let began = engine.now();
    engine.must_own()?;
    engine.must_write().await?; // what cannot be remembered is not done
    if trigger.asks() || engine.store.state().orders.iter().any(|order| order.what.is_of_reads()) {
        if trigger.connects() {
            engine.connect().await?; // clusters that were away: asked whether they are back
        }
        if let Some(snapshot) = ask(engine, trigger).await {
            let seen = transition(engine.store.state(), &snapshot, &engine.settings.policy, engine.now()); // pure
            engine.store.write(&engine.lock, &seen.changes, &seen.events, engine.now()).await?; // ledger: one transaction
        }
    }
    engine.progress.step();

    let now = engine.now();
    let inventory = engine.inventory(); // watch caches: read
    if let Some(rules) = &engine.settings.policy.reapers.namespaces {
        let seen = idle::count(engine.store.state(), &inventory, rules, now); // pure
        engine.store.write(&engine.lock, &seen, &[], now).await?; // ledger: one transaction
    }
    let (seen, told) = adopted::look(engine.store.state(), &inventory, &engine.settings.policy, now); // pure
    engine.store.write(&engine.lock, &seen, &told, now).await?; // ledger: one transaction
    let desired = engine.deriver.derive(engine.store.state(), &engine.settings.policy, &engine.sealer, now); // pure
    let Decision { plan, approved, refusals } =
        decide(desired, engine.store.state(), &inventory, &engine.settings.policy, now); // pure

    let (mut changes, mut events) = approved.intents(now); // pure
    changes.extend(overcome(&plan, engine.store.state(), &inventory, now)); // pure
    let (ended, told) = lapsed(engine.store.state(), now); // pure
    changes.extend(ended);
    events.extend(told);
    let (ended, told) = advance(&approved, engine.store.state(), now); // pure
    changes.extend(ended);
    events.extend(told);
    drop(inventory); // a snapshot that is held would be copied at the first write
    engine.store.write(&engine.lock, &changes, &events, now).await?; // ledger: state and generation, before anything is done
    let done = carry_out(engine, &approved, extent).await?; // clusters and homes: the only writes to the world
    engine.count(&events, &done, &refusals);
    let there = engine.serve_realm(trigger, extent).await?; // the realm: read when due, made as the ledger has it

    let times = (began, engine.now());
    let report = report::cycle(trigger, times, engine.store.state(), &plan, &approved, &refusals); // pure
    let report =
        CycleReport { actions: done.actions + there, left: done.left, realm: engine.realm_trouble(), ..report };
    engine.finish(report).await // ledger: the cycle's own row
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

/// What a cycle would do now. Nothing is written, not even what was read.
pub async fn preview(engine: &mut Engine) -> Result<PlanAnswer, EngineError> {
    engine.connect().await?;
    let pass = engine.pass(Trigger::Sync);
    let snapshot = directory::fetch(&engine.all_sources(), &pass, &engine.settings.policy, engine.now()).await;
    let now = engine.now();
    let mut ledger = engine.store.state().clone();
    for change in transition(&ledger, &snapshot, &engine.settings.policy, now).changes {
        ledger.apply(&change);
    }
    let inventory = engine.inventory();
    for change in adopted::look(&ledger, &inventory, &engine.settings.policy, now).0 {
        ledger.apply(&change);
    }
    let desired = crate::desired::derive(&ledger, &engine.settings.policy, &engine.sealer, now);
    let Decision { plan, approved, refusals } = decide(&desired, &ledger, &inventory, &engine.settings.policy, now);
    let mut after = ledger.clone();
    approved.intents(now).0.iter().for_each(|change| after.apply(change));
    let realm = engine.preview_realm(&after).await;
    let preview = Preview { realm: realm.as_ref(), ..Preview::of(&ledger, &plan, &approved, &refusals) };
    Ok(PlanAnswer { text: preview.to_string(), plan: preview.json(), exit_code: preview.exit_code() })
}

/// Reads on while the ledger takes no writes: what the directories say, and for how many accounts something waits.
/// Nothing is written.
pub async fn read_on(engine: &mut Engine) -> Result<(), EngineError> {
    let Some(snapshot) = ask(engine, Trigger::Schedule).await else { return Ok(()) };
    let now = engine.now();
    let mut ledger = engine.store.state().clone();
    let seen = transition(&ledger, &snapshot, &engine.settings.policy, now); // pure
    seen.changes.iter().for_each(|change| ledger.apply(change));
    let desired = crate::desired::derive(&ledger, &engine.settings.policy, &engine.sealer, now);
    let Decision { approved, .. } = decide(&desired, &ledger, &engine.inventory(), &engine.settings.policy, now);
    engine.heard(&seen.changes, approved.accounts().len() as u64);
    Ok(())
}

/// What is to be done, what of it the guard lets through, and what it holds back.
struct Decision {
    plan: Plan,
    approved: ApprovedPlan,
    refusals: Vec<Refusal>,
}

fn decide(
    desired: &DesiredState,
    ledger: &LedgerState,
    inventory: &Inventory,
    policy: &Policy,
    now: jiff::Timestamp,
) -> Decision {
    let plan = plan::plan(desired, ledger, inventory, now);
    let (approved, refusals) = guard(plan.clone(), &Bounds::of(ledger, policy), now);
    Decision { plan, approved, refusals }
}

/// Executes, and stores what was done while it is done. When the ledger does not take it, nothing more is begun.
async fn carry_out(
    engine: &mut Engine,
    approved: &ApprovedPlan,
    extent: Extent,
) -> Result<execute::Report, EngineError> {
    if approved.accounts().is_empty() {
        return Ok(execute::Report::default());
    }
    engine.store.prove(&engine.lock).await?;
    // The run keeps the ledger as the plan saw it; the store goes on with what is done.
    let ledger = engine.store.state().clone();
    let (recorder, mut records) = Recorder::channel();
    let run = Run { ledger: &ledger, now: engine.now(), extent, stop: &engine.cut };
    let work = async {
        let report = execute::execute(approved, &engine.effects, run, &recorder).await;
        drop(recorder);
        report
    };
    let store = async {
        let mut waiting = Vec::new();
        while records.recv_many(&mut waiting, RECORDS_AT_A_TIME).await > 0 {
            let changes: Vec<_> = waiting.iter().flat_map(|record| record.changes.iter().cloned()).collect();
            let events: Vec<_> = waiting.iter().flat_map(|record| record.events.iter().cloned()).collect();
            engine.store.write(&engine.lock, &changes, &events, (engine.clock)()).await?;
            engine.progress.step();
            for record in waiting.drain(..) {
                // Whoever no longer waits has nothing left to do.
                let _ = record.stored.send(());
            }
        }
        Ok::<(), EngineError>(())
    };
    // A store that fails drops the receiver: writers learn that nothing more is stored, and stop.
    let (report, stored) = tokio::join!(work, store);
    stored.map(|()| report)
}

/// Records stored in one transaction. Each transaction costs a sync of the disk (about 1 ms), so what has come together
/// meanwhile goes together.
const RECORDS_AT_A_TIME: usize = 64;
