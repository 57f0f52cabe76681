//! `bursar exception set|unset|list`: admission rules that do not hold for one account.

use super::arguments::{Account, Exception, ExceptionList, ExceptionSet, ExceptionUnset};
use super::context::Context;
use super::exit::{Exit, Failure};
use super::{order, output};
use crate::contract::exception::ExceptedRule;
use crate::identity::ClusterName;
use crate::orders::request::{OrderRequest, Target};
use clap::builder::{PossibleValuesParser, TypedValueParser};

const COLUMNS: [&str; 7] = ["account", "cluster", "rule", "ticket", "until", "actor", "reason"];

pub(super) async fn run(context: &Context, exception: Exception) -> Result<Exit, Failure> {
    match exception {
        Exception::Set(ExceptionSet { account, rules, until, cluster, reason, ticket }) => {
            let set = crate::orders::request::ExceptionSet {
                target: Target { kind: account.kind, name: account.name, reason, ticket },
                rules,
                until,
                cluster: cluster.map(ClusterName),
            };
            order::give(context, vec![OrderRequest::ExceptionSet(set)]).await
        }
        Exception::Unset(ExceptionUnset { account, rules, cluster, reason, ticket }) => {
            let unset = crate::orders::request::ExceptionUnset {
                target: Target { kind: account.kind, name: account.name, reason, ticket },
                rules,
                cluster: cluster.map(ClusterName),
            };
            order::give(context, vec![OrderRequest::ExceptionUnset(unset)]).await
        }
        Exception::List(arguments) => list(context, &arguments).await,
    }
}

async fn list(context: &Context, arguments: &ExceptionList) -> Result<Exit, Failure> {
    let mut store = context.store().await?;
    let account = match (arguments.kind, &arguments.name) {
        (Some(kind), Some(name)) => {
            let account = Account { kind, name: name.clone() };
            let row = super::show::account_row(&mut store, &account).await?;
            let row = row.ok_or_else(|| Failure::no_account(kind, name))?;
            format!("{kind}:{}", row.get("name").and_then(serde_json::Value::as_str).unwrap_or_default())
        }
        _ => String::new(),
    };
    let query = "SELECT * FROM exceptions WHERE ?1 IN ('', account) ORDER BY account, rule, cluster";
    let rows = store.rows(query, &[account]).await?;
    if context.global.json {
        output::json(&rows)?;
    } else if rows.is_empty() {
        output::line("no exceptions");
    } else {
        output::line(output::table(&rows, &COLUMNS));
    }
    Ok(Exit::Done)
}

/// One of the rules that there can be an exception from.
pub(super) fn rule() -> impl TypedValueParser<Value = ExceptedRule> {
    PossibleValuesParser::new(ExceptedRule::ALL.map(ExceptedRule::as_str)).try_map(|text| text.parse::<ExceptedRule>())
}
