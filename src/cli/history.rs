//! `bursar history [KIND NAME]`: what was done, and who asked for it, oldest first.

use super::arguments::{Account, History};
use super::context::Context;
use super::exit::{Exit, Failure};
use super::{output, show};

const ALL: &str =
    "SELECT at, actor, account, action, reason, ticket, plan, json(detail) AS detail FROM event ORDER BY id";
/// By id, so that a history goes on over a rename.
const OF_ONE: &str = "SELECT at, actor, account, action, reason, ticket, plan, json(detail) AS detail FROM event
    WHERE account = ?1 OR account_id = ?2 ORDER BY id";

pub(super) async fn run(context: &Context, arguments: &History) -> Result<Exit, Failure> {
    let mut store = context.store().await?;
    let mut rows = match (arguments.kind, arguments.name.as_ref()) {
        (Some(kind), Some(name)) => {
            let account = Account { kind, name: name.clone() };
            let row = show::account_row(&mut store, &account).await?;
            let id = row.and_then(|row| row.get("id")?.as_str().map(str::to_owned));
            let rows = store.rows(OF_ONE, &[format!("{kind}:{name}"), id.clone().unwrap_or_default()]).await?;
            if rows.is_empty() && id.is_none() {
                return Err(Failure::no_account(kind, name));
            }
            rows
        }
        _ => store.rows(ALL, &[]).await?,
    };
    let skipped = arguments.last.map_or(0, |last| rows.len().saturating_sub(last));
    rows.drain(..skipped);
    for row in &mut rows {
        // Stored as text; programs want the value.
        if let Some(detail) = row.get_mut("detail")
            && let Some(value) = detail.as_str().and_then(|text| serde_json::from_str(text).ok())
        {
            *detail = value;
        }
    }
    if context.global.json {
        output::json(&rows)?;
    } else if rows.is_empty() {
        output::line("nothing yet");
    } else {
        output::line(output::table(&rows, &["at", "actor", "account", "action", "reason", "ticket"]));
    }
    Ok(Exit::Done)
}
