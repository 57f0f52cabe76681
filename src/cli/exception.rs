//! `bursar exception set|unset|list`: excepts one account from admission rules.

use super::arguments::{Exception, ExceptionSet, ExceptionUnset, MaybeAccount};
use super::context::Context;
use super::exit::{Exit, Failure};
use super::{order, output, show};
use crate::contract::exception::ExceptedRule;
use crate::identity::ClusterName;
use crate::orders::request::{self, OrderRequest};
use clap::builder::{PossibleValuesParser, TypedValueParser};

const COLUMNS: [&str; 7] = ["account", "cluster", "rule", "ticket", "until", "actor", "reason"];

pub(super) async fn run(context: &Context, exception: Exception) -> Result<Exit, Failure> {
    match exception {
        Exception::Set(ExceptionSet { target, rules, until, cluster }) => {
            let set =
                request::ExceptionSet { target: target.into(), rules, until, cluster: cluster.map(ClusterName::from) };
            order::give(context, vec![OrderRequest::ExceptionSet(set)]).await
        }
        Exception::Unset(ExceptionUnset { target, rules, cluster }) => {
            let unset =
                request::ExceptionUnset { target: target.into(), rules, cluster: cluster.map(ClusterName::from) };
            order::give(context, vec![OrderRequest::ExceptionUnset(unset)]).await
        }
        Exception::List(arguments) => list(context, arguments).await,
    }
}

async fn list(context: &Context, asked: MaybeAccount) -> Result<Exit, Failure> {
    let mut store = context.store().await?;
    let account = show::listed(&mut store, asked).await?;
    let query = "SELECT * FROM exceptions WHERE ?1 IN ('', account) ORDER BY account, rule, cluster";
    let rows = store.rows(query, &[account]).await?;
    output::list(context, &rows, &COLUMNS, "no exceptions")
}

/// Returns a parser for rules from which an account can be excepted.
pub(super) fn rule() -> impl TypedValueParser<Value = ExceptedRule> {
    PossibleValuesParser::new(ExceptedRule::ALL.map(ExceptedRule::as_str)).try_map(|text| text.parse::<ExceptedRule>())
}
