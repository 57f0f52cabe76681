//! `bursar history [KIND NAME]`: lists what was done and who ordered it, oldest first.

use super::arguments::{Account, History};
use super::context::Context;
use super::exit::{Exit, Failure};
use super::{output, show};

/// Selects the newest `?1` events; -1 selects all.
const ALL: &str = "SELECT at, actor, account, action, reason, ticket, plan, json(detail) AS detail
    FROM event ORDER BY id DESC LIMIT CAST(?1 AS INTEGER)";
/// Selects the events of one account by id, so that the history continues after a rename, and by name for accounts that
/// had the name before. All three conditions use the index on `account_id`, so that a history of years is not read
/// whole for one account.
const OF_ONE: &str = "SELECT at, actor, account, action, reason, ticket, plan, json(detail) AS detail FROM event
    WHERE account_id = ?3
       OR (account_id IN (SELECT n.account_id FROM account_name n JOIN account a ON a.id = n.account_id
                          WHERE a.kind || ':' || n.name = ?2) AND account = ?2)
       OR (account_id IS NULL AND account = ?2)
    ORDER BY id DESC LIMIT CAST(?1 AS INTEGER)";

pub(super) async fn run(context: &Context, arguments: &History) -> Result<Exit, Failure> {
    let mut store = context.store().await?;
    let last = arguments.last.map_or("-1".to_owned(), |last| last.to_string());
    let mut rows = match (arguments.kind, arguments.name.as_ref()) {
        (Some(kind), Some(name)) => {
            let account = Account { kind, name: name.clone() };
            let row = show::account_row(&mut store, &account).await?;
            let id = row.and_then(|row| row.get("id")?.as_str().map(str::to_owned));
            let rows = store.rows(OF_ONE, &[last, format!("{kind}:{name}"), id.clone().unwrap_or_default()]).await?;
            if rows.is_empty() && id.is_none() {
                return Err(Failure::no_account(kind, name));
            }
            rows
        }
        _ => store.rows(ALL, &[last]).await?,
    };
    rows.reverse();
    for row in &mut rows {
        // The ledger stores the detail as text. Programs get the JSON value.
        if let Some(detail) = row.get_mut("detail")
            && let Some(value) = detail.as_str().and_then(|text| serde_json::from_str(text).ok())
        {
            *detail = value;
        }
    }
    output::list(context, &rows, &["at", "actor", "account", "action", "reason", "ticket"], "no events")
}
