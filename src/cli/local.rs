//! Does the daemon's work in this process while the daemon does not run, under the same lock and as the same user. No
//! other file of the command opens the ledger for writing.

use std::sync::Arc;

use jiff::Timestamp;

use super::context::{become_bursar, may_act};
use super::exit::{Exit, Failure};
use crate::control::api::{CycleReport, OrderAnswer, PlanAnswer};
use crate::cycle::Ask;
use crate::execute::Extent;
use crate::orders::request::{OrderRequest, Trigger};
use crate::runtime::ledger::write_down;
use crate::runtime::{Runtime, RuntimeError};
use crate::settings::Settings;
use crate::store::{Store, is_before_init};
use crate::telemetry::Metrics;
use crate::{cycle, daemon};

/// Returns what a cycle would do.
pub(super) async fn plan(settings: Settings, at: Option<Timestamp>) -> Result<PlanAnswer, Failure> {
    act(&settings)?;
    if is_before_init(&settings.state_dir) {
        return Ok(cycle::preview_before_init(&settings, daemon::now()).await?);
    }
    let mut runtime = open(settings).await?;
    let answer = cycle::preview_of(&mut runtime, &Ask { other: None, at }).await;
    Box::pin(close(runtime, answer)).await
}

/// Runs one cycle to its end.
pub(super) async fn cycle(settings: Settings) -> Result<CycleReport, Failure> {
    let mut runtime = open(settings).await?;
    let report = cycle::run(&mut runtime, Trigger::Sync, Extent::All).await;
    Box::pin(close(runtime, report)).await
}

/// Records orders in the ledger, and the next cycle carries them out. No cluster needs to answer for this.
pub(super) async fn orders(settings: &Settings, actor: &str, orders: &[OrderRequest]) -> Result<OrderAnswer, Failure> {
    act(settings)?;
    let (mut store, lock) = Store::open(&settings.state_dir).await.map_err(RuntimeError::from)?;
    let answer = write_down(&mut store, &lock, &settings.policy, actor, orders, daemon::now())
        .await
        .map_err(RuntimeError::from)?;
    store.close().await.map_err(RuntimeError::from)?;
    let later = |text: &str| format!("{text}; the next cycle carries it out");
    Ok(OrderAnswer { text: answer.text.lines().map(later).collect::<Vec<_>>().join("\n"), ..answer })
}

async fn open(settings: Settings) -> Result<Runtime, Failure> {
    act(&settings)?;
    let mut runtime = Runtime::open(settings, Arc::new(Metrics::default()), daemon::now).await?;
    runtime.start().await?;
    Ok(runtime.reading_once())
}

/// Becomes user `bursar`, who may write in the state folder, or fails if the caller may not do that.
fn act(settings: &Settings) -> Result<(), Failure> {
    if may_act() {
        return become_bursar();
    }
    let text = format!(
        "bursard does not answer at {}, and without bursard this command needs root or user bursar; start it with \
         `systemctl start bursard`",
        settings.control_socket.display()
    );
    Err(Failure::new(Exit::Unavailable, text))
}

async fn close<T>(runtime: Runtime, result: Result<T, RuntimeError>) -> Result<T, Failure> {
    let closed = Box::pin(runtime.close()).await;
    let value = result?;
    closed?;
    Ok(value)
}
