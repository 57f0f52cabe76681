//! `bursar plan`: what would be done.

use super::context::Context;
use super::exit::{Exit, Failure};
use super::{local, output};
use crate::control::client::ClientError;

pub(super) async fn run(context: &Context) -> Result<Exit, Failure> {
    let settings = context.settings()?;
    let progress = output::progress("reading directories and clusters");
    let answer = match context.daemon()?.plan().await {
        Err(ClientError::Absent { .. }) => Box::pin(local::plan(settings)).await?,
        answer => answer?,
    };
    progress.finish_and_clear();
    if context.global.json {
        output::json(&answer.plan)?;
    } else {
        output::line(answer.text);
    }
    Ok(Exit::of(answer.exit_code))
}
