//! The daemon's work by this process, while no daemon runs: under the same lock, as the same user. The only file of the
//! command that opens the ledger for writing.

use std::sync::Arc;

use super::context::{become_bursar, may_act};
use super::exit::{Exit, Failure};
use crate::control::api::{CycleReport, OrderAnswer, OrderRequest, PlanAnswer, Refusal};
use crate::engine::{Engine, EngineError};
use crate::settings::Settings;
use crate::telemetry::Metrics;
use crate::{cycle, daemon};

/// What a cycle would do now.
pub(super) async fn plan(settings: Settings) -> Result<PlanAnswer, Failure> {
    let mut engine = open(settings).await?;
    let answer = cycle::preview(&mut engine).await;
    close(engine, answer).await
}

/// One cycle to its end.
pub(super) async fn cycle(settings: Settings) -> Result<CycleReport, Failure> {
    let mut engine = open(settings).await?;
    let report = cycle::run(&mut engine, "sync").await;
    close(engine, report).await
}

/// Writes orders down; the next cycle carries them out.
pub(super) async fn orders(
    settings: Settings,
    actor: &str,
    orders: &[OrderRequest],
) -> Result<Vec<OrderAnswer>, Failure> {
    let mut engine = open(settings).await?;
    let written = write(&mut engine, actor, orders).await;
    Ok(close(engine, written).await??)
}

async fn write(
    engine: &mut Engine,
    actor: &str,
    orders: &[OrderRequest],
) -> Result<Result<Vec<OrderAnswer>, Refusal>, EngineError> {
    let mut answers = Vec::new();
    for order in orders {
        match engine.order(actor, order).await? {
            Ok(text) => {
                answers.push(OrderAnswer { text: format!("{text}; the next cycle carries it out"), report: None });
            }
            Err(refusal) => return Ok(Err(refusal)),
        }
    }
    Ok(Ok(answers))
}

async fn open(settings: Settings) -> Result<Engine, Failure> {
    if !may_act() {
        let text = format!(
            "bursard does not answer at {}, and without it this needs root or user bursar; start it with \
             `systemctl start bursard`",
            settings.control_socket.display()
        );
        return Err(Failure::new(Exit::Unavailable, text));
    }
    become_bursar()?;
    Ok(Engine::open(settings, Arc::new(Metrics::default()), daemon::now).await?)
}

async fn close<T>(engine: Engine, result: Result<T, EngineError>) -> Result<T, Failure> {
    let closed = engine.close().await;
    let value = result?;
    closed?;
    Ok(value)
}
