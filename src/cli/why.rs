//! `bursar why [KIND NAME]`: explains each step from an account's directory entry to its objects, and names a missing
//! step. If the caller may not read the ledger, the daemon answers about the caller's own account. If no daemon runs,
//! callers who may read the ledger still get an answer.

use serde_json::{Value, json};

use super::arguments::{Account as Named, Own};
use super::context::Context;
use super::exit::{Exit, Failure};
use super::output::{self, clean};
use super::show::without_daemon;
use crate::control::api::OwnRequest;
use crate::identity::AccountName;
use crate::orders;
use crate::report::own;
use crate::report::why::{Step, chain, unknown};

pub(super) async fn run(context: &Context, asked: Own) -> Result<Exit, Failure> {
    let (why, exit) = match asked.account() {
        Some(account) => match all(context, &account).await {
            Err(Failure { exit: Exit::Forbidden, .. }) => of_daemon(context, Some(account.to_name())).await?,
            why => why?,
        },
        None => match of_daemon(context, None).await {
            Err(absent @ Failure { exit: Exit::Unavailable, .. }) => {
                let (_, ledger, uid) = without_daemon(context, absent).await?;
                let policy = context.settings()?.policy;
                (own::why(own::find(&ledger, uid, &OwnRequest { of: None })?, &ledger, &policy), Exit::Done)
            }
            why => why?,
        },
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

async fn of_daemon(context: &Context, of: Option<AccountName>) -> Result<(Value, Exit), Failure> {
    Ok((context.daemon()?.why(&OwnRequest { of }).await?, Exit::Done))
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
