//! `bursar show [KIND NAME]`: prints everything that the ledger knows about one account. If the caller may not read the
//! ledger, the daemon answers about the caller's own account. If no daemon runs, callers who may read the ledger still
//! get an answer.

use nix::unistd::Uid;
use serde_json::Value;

use super::arguments::{Account, MaybeAccount, Own};
use super::context::Context;
use super::exit::{Exit, Failure};
use super::output::{self, Row};
use crate::control::api::OwnRequest;
use crate::identity::AccountName;
use crate::ledger::LedgerState;
use crate::orders::meant;
use crate::report::own;
use crate::store::{ReadStore, facts};

pub(super) async fn run(context: &Context, asked: Own) -> Result<Exit, Failure> {
    let facts = match asked.account() {
        Some(account) => match all(context, &account).await {
            Err(Failure { exit: Exit::Forbidden, .. }) => of_daemon(context, Some(account.to_name())).await?,
            facts => facts?,
        },
        None => match of_daemon(context, None).await {
            Err(absent @ Failure { exit: Exit::Unavailable, .. }) => {
                let (mut store, ledger, uid) = without_daemon(context, absent).await?;
                let account = own::find(&ledger, uid, &OwnRequest { of: None })?;
                let named = Account { kind: account.kind, name: account.id.0.to_string() };
                let row = known(&mut store, &named).await?;
                facts::of(&mut store, account.kind, row, !own::has_namesake(&ledger, account)).await?
            }
            facts => facts?,
        },
    };
    if context.global.json {
        output::json(&facts)?;
    } else {
        print(&facts);
    }
    Ok(Exit::Done)
}

async fn of_daemon(context: &Context, of: Option<AccountName>) -> Result<Value, Failure> {
    Ok(context.daemon()?.show(&OwnRequest { of }).await?)
}

/// Opens the ledger for a question about the caller's own account, because no daemon runs. Returns the ledger and the
/// caller's uid. If the caller may not read the ledger, fails with `absent`, which says that no daemon answers.
pub(super) async fn without_daemon(
    context: &Context,
    absent: Failure,
) -> Result<(ReadStore, LedgerState, u32), Failure> {
    // Read before root becomes user `bursar`.
    let uid = Uid::current().as_raw();
    let mut store = context.store().await.map_err(|_| absent)?;
    let ledger = store.state().await?;
    Ok((store, ledger, uid))
}

async fn all(context: &Context, account: &Account) -> Result<Value, Failure> {
    let mut store = context.store().await?;
    let row = known(&mut store, account).await?;
    Ok(facts::of(&mut store, account.kind, row, true).await?)
}

fn print(facts: &Value) {
    let name = facts["account"].as_str().unwrap_or_default();
    let row = facts["ledger"].as_object().cloned().unwrap_or_default();
    output::line(format!("{name}\n{}", output::pairs(&row)));
    for (title, columns) in facts::titles() {
        let rows = facts[title].as_array().into_iter().flatten().filter_map(Value::as_object);
        let rows: Vec<Row> = rows.cloned().collect();
        if !rows.is_empty() {
            output::line(format!("\n{}\n{}", title.replace('_', " "), output::table(&rows, columns)));
        }
    }
}

/// Returns the account's row in the view of its kind, by name or id. If several accounts have the name, returns the active
/// one.
pub(super) async fn account_row(store: &mut ReadStore, account: &Account) -> Result<Option<Row>, Failure> {
    let rows = facts::named(store, account.kind, &account.name).await?;
    one_of(account, &rows)
}

async fn known(store: &mut ReadStore, account: &Account) -> Result<Row, Failure> {
    let row = account_row(store, account).await?;
    row.ok_or_else(|| Failure::no_account(account.kind, &account.name))
}

/// Returns the account to list, such as `tool:foo`; an empty text for all accounts.
pub(super) async fn listed(store: &mut ReadStore, asked: MaybeAccount) -> Result<String, Failure> {
    let MaybeAccount { kind: Some(kind), name: Some(name) } = asked else { return Ok(String::new()) };
    let row = known(store, &Account { kind, name }).await?;
    Ok(format!("{kind}:{}", row.get("name").and_then(Value::as_str).unwrap_or_default()))
}

/// Lists the rows that belong to the account, or all rows.
pub(super) async fn list(
    context: &Context,
    asked: MaybeAccount,
    query: &'static str,
    columns: &[&str],
    none: &str,
) -> Result<Exit, Failure> {
    let mut store = context.store().await?;
    let account = listed(&mut store, asked).await?;
    output::list(context, &store.rows(query, &[account]).await?, columns, none)
}

/// Chooses one of several rows with the same name, by the rule of [`crate::orders::find`].
fn one_of(account: &Account, rows: &[Row]) -> Result<Option<Row>, Failure> {
    let found = meant(rows, |row| row.get("state").and_then(Value::as_str).unwrap_or_default());
    if found.is_some() || rows.is_empty() {
        return Ok(found.cloned());
    }
    let text = format!(
        "{} {:?} is ambiguous; use the id of the account instead of its name:\n{}",
        account.kind,
        account.name,
        output::table(rows, &["id", "name", "uid", "state", "since", "directory_id"])
    );
    Err(Failure::new(Exit::Usage, text))
}
