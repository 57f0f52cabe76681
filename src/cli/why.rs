//! `bursar why [KIND NAME]`: explains an account, from the directory entry over the rule to each object, or names the
//! missing step. If the caller may not read the ledger, the daemon answers about the caller's own account.

use serde_json::{Value, json};

use super::arguments::{Account as Named, Own};
use super::context::Context;
use super::exit::{Exit, Failure};
use super::output::{self, clean};
use crate::control::api::OwnRequest;
use crate::orders;
use crate::report::why::{Step, chain, unknown};

pub(super) async fn run(context: &Context, asked: Own) -> Result<Exit, Failure> {
    let read = match asked.account() {
        Some(account) => all(context, &account).await,
        None => Err(Failure::new(Exit::Forbidden, "yourself")),
    };
    let (why, exit) = match read {
        Err(Failure { exit: Exit::Forbidden, .. }) => {
            let of = asked.account().map(|account| account.to_name());
            (context.daemon()?.why(&OwnRequest { of }).await?, Exit::Done)
        }
        why => why?,
    };
    if context.global.json {
        output::json(&why)?;
        return Ok(exit);
    }
    output::line(why["account"].as_str().unwrap_or_default());
    let steps: Vec<Step> = serde_json::from_value(why["steps"].clone()).unwrap_or_default();
    for step in &steps {
        output::signed(format!("{} {:<12} {}", if step.ok { "+" } else { "!" }, step.at, clean(&step.text)));
    }
    Ok(exit)
}

async fn all(context: &Context, named: &Named) -> Result<(Value, Exit), Failure> {
    let settings = context.settings()?;
    let ledger = context.store().await?.state().await?;
    let (steps, exit) = match orders::find(&ledger, named.kind, &named.name) {
        Ok(account) => (chain(account, &ledger, &settings.policy), Exit::Done),
        Err(refusal) if refusal.exit_code == Exit::NoAccount as u8 => {
            (unknown(named.kind, &named.name, &ledger), Exit::NoAccount)
        }
        Err(refusal) => return Err(refusal.into()),
    };
    Ok((json!({"account": named.to_name(), "steps": steps}), exit))
}
