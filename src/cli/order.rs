//! `bursar suspend|resume|hold|release|revoke|approve`, and what `quota` asks for: orders, given to the daemon, or
//! written down by this process while there is none.

use serde_json::Value;

use super::arguments::{Account, Adopt, MaybeReasoned, Reasoned, Revoke};
use super::context::{Context, daemon};
use super::exit::{Exit, Failure};
use super::output::clean;
use super::{local, output, sync};
use crate::control::api::{OrderRequest, Refusal, Target};
use crate::control::client::ClientError;
use crate::identity::AccountName;

/// The orders that name an account.
#[derive(Debug, Clone, Copy)]
pub(super) enum Order {
    Suspend,
    Resume,
    Hold,
    Release,
}

/// Accounts of a class whose certificates are good, by id, for two may have one name.
const OF_CLASS: &str =
    "SELECT DISTINCT a.kind || ':' || a.id AS account FROM tenant t JOIN account a ON a.id = t.account_id
    WHERE t.class = ?1 AND a.state = 'active' AND a.generation > 0 ORDER BY 1";

pub(super) async fn reasoned(context: &Context, order: Order, arguments: Reasoned) -> Result<Exit, Failure> {
    let Reasoned { account, reason, ticket } = arguments;
    maybe_reasoned(context, order, MaybeReasoned { account, reason: Some(reason), ticket }).await
}

pub(super) async fn maybe_reasoned(context: &Context, order: Order, arguments: MaybeReasoned) -> Result<Exit, Failure> {
    let MaybeReasoned { account: Account { kind, name }, reason, ticket } = arguments;
    let target = Target { kind, name, reason, ticket };
    let request = match order {
        Order::Suspend => OrderRequest::Suspend(target),
        Order::Resume => OrderRequest::Resume(target),
        Order::Hold => OrderRequest::Hold(target),
        Order::Release => OrderRequest::Release(target),
    };
    give(context, vec![request]).await
}

pub(super) async fn adopt(context: &Context, command: Adopt) -> Result<Exit, Failure> {
    let Adopt::Uid(MaybeReasoned { account: Account { kind, name }, reason, ticket }) = command;
    give(context, vec![OrderRequest::AdoptUid(Target { kind, name, reason, ticket })]).await
}

pub(super) async fn approve(context: &Context, hash: String) -> Result<Exit, Failure> {
    give(context, vec![OrderRequest::Approve { hash }]).await
}

pub(super) async fn revoke(context: &Context, arguments: Revoke) -> Result<Exit, Failure> {
    let Revoke { kind, name, all: _, class, reason, ticket } = arguments;
    let accounts = match (kind, name, class) {
        (Some(kind), Some(name), _) => vec![AccountName { kind, name }],
        (_, _, Some(class)) => of_class(context, &class).await?,
        _ => Vec::new(),
    };
    let request = |AccountName { kind, name }| {
        OrderRequest::Revoke(Target { kind, name, reason: Some(reason.clone()), ticket: ticket.clone() })
    };
    give(context, accounts.into_iter().map(request).collect()).await
}

async fn of_class(context: &Context, class: &str) -> Result<Vec<AccountName>, Failure> {
    let rows = context.store().await?.rows(OF_CLASS, &[class.to_owned()]).await?;
    if rows.is_empty() {
        return Err(Failure::new(Exit::NoAccount, format!("class {class:?} has no account with a certificate")));
    }
    let accounts = rows.iter().filter_map(|row| row.get("account").and_then(Value::as_str)?.parse().ok());
    Ok(accounts.collect())
}

/// By the daemon, or by this process under the same lock. What could be written down is, whatever is refused beside it.
pub(super) async fn give(context: &Context, orders: Vec<OrderRequest>) -> Result<Exit, Failure> {
    let settings = context.settings()?;
    let progress = output::progress("the order is carried out");
    let answer = match daemon(&settings)?.order(&orders).await {
        Err(ClientError::Absent { .. }) => local::orders(&settings, &context.actor, &orders).await?,
        answer => answer?,
    };
    progress.finish_and_clear();
    if context.global.json && !answer.text.is_empty() {
        output::json(&answer)?;
    } else {
        answer.text.lines().for_each(|line| output::line(clean(line)));
        if let Some(report) = &answer.report {
            output::line(sync::text(report));
        }
    }
    refused(answer.refused)
}

/// Ends as the first of them says.
fn refused(refusals: Vec<Refusal>) -> Result<Exit, Failure> {
    let Some(exit_code) = refusals.first().map(|refusal| refusal.exit_code) else { return Ok(Exit::Done) };
    let text = refusals.into_iter().map(|refusal| refusal.text).collect::<Vec<_>>().join("\n");
    Err(Refusal { exit_code, text }.into())
}
