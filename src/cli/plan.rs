//! `bursar plan`: prints what the next cycle would do, also under another configuration, or what falls due until a day.

use super::arguments::Plan;
use super::context::Context;
use super::exit::{Exit, Failure};
use super::{local, output};
use crate::control::api::{ConfigText, PlanRequest};
use crate::control::client::ClientError;
use crate::daemon;

pub(super) async fn run(context: &Context, Plan { at }: Plan) -> Result<Exit, Failure> {
    if let Some(at) = at.filter(|at| *at <= daemon::now()) {
        return Err(Failure::new(
            Exit::Usage,
            format!("--at {at} is in the past; give a later day, for example 2027-03-01"),
        ));
    }
    let settings = context.settings()?;
    let config = context.global.config_is_named.then(|| config(context)).transpose()?;
    let progress = output::progress("reading directories and clusters");
    let answer = match context.daemon()?.plan(&PlanRequest { config, at }).await {
        Err(ClientError::Absent { .. }) => Box::pin(local::plan(settings, at)).await?,
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

/// Reads the configuration that `--config` or `BURSAR_CONFIG` names, to send it to the daemon.
fn config(context: &Context) -> Result<ConfigText, Failure> {
    let file = &context.global.config;
    let failed = |error| Failure::new(Exit::Failed, format!("{}: {error}", file.display()));
    let text = std::fs::read_to_string(file).map_err(failed)?;
    Ok(ConfigText { file: std::path::absolute(file).map_err(failed)?, text })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::AccountKind;
    use crate::ledger::Absence;
    use crate::plan::display::Preview;
    use crate::plan::testing::World;

    #[test]
    fn a_plan_is_the_golden_at_80_columns() {
        let mut world = World::new();
        let old = world.add(AccountKind::Tool, "old", Some(52_101));
        let gone = world.add(AccountKind::Tool, "gone", Some(52_102));
        world.cycle();
        world.add(AccountKind::Tool, "foo", Some(52_503));
        let (since, due) = (world.now - jiff::SignedDuration::from_hours(26), world.now);
        let absence = Absence { since, counted_at: world.now, seconds: 26 * 3600, due };
        for id in [&old, &gone] {
            world.account(id).absence = Some(absence);
        }
        let (plan, (approved, refusals)) = (world.plan(), world.guarded());
        output::is_golden("plan", &Preview::of(&world.ledger, &plan, &approved, &refusals).to_string());
    }
}
