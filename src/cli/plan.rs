//! `bursar plan`: what would be done, also by another configuration, and what falls due later.

use super::arguments::Plan;
use super::context::Context;
use super::exit::{Exit, Failure};
use super::{local, output};
use crate::control::api::{ConfigText, PlanRequest};
use crate::control::client::ClientError;
use crate::daemon;

pub(super) async fn run(context: &Context, Plan { at }: Plan) -> Result<Exit, Failure> {
    if let Some(at) = at.filter(|at| *at <= daemon::now()) {
        return Err(Failure::new(Exit::Usage, format!("--at {at}: is past; name a later day, for example 2027-03-01")));
    }
    let config = context.global.config_is_named.then(|| config(context)).transpose()?;
    let progress = output::progress("reading directories and clusters");
    let answer = match context.daemon()?.plan(&PlanRequest { config, at }).await {
        Err(ClientError::Absent { .. }) => Box::pin(local::plan(context.settings()?, at)).await?,
        answer => answer?,
    };
    progress.finish_and_clear();
    if context.global.json {
        output::json(&answer.plan)?;
    } else {
        output::signed(answer.text);
    }
    Ok(Exit::of(answer.exit_code))
}

/// The configuration that `--config` names. The daemon plans it; one that is wrong is refused here, and with all that is wrong.
fn config(context: &Context) -> Result<ConfigText, Failure> {
    context.settings()?;
    let file = &context.global.config;
    let failed = |error| Failure::new(Exit::Failed, format!("{}: {error}", file.display()));
    let text = std::fs::read_to_string(file).map_err(failed)?;
    Ok(ConfigText { file: std::path::absolute(file).map_err(failed)?, text })
}
