//! `bursar exception set|unset|list`: excepts one account from admission rules.

use super::arguments::{Exception, ExceptionSet, ExceptionUnset};
use super::context::Context;
use super::exit::{Exit, Failure};
use super::{order, show};
use crate::contract::exception::ExceptedRule;
use crate::orders::request::{self, OrderRequest};
use clap::builder::{PossibleValuesParser, TypedValueParser};

const LIST: &str = "SELECT * FROM exceptions WHERE ?1 IN ('', account) ORDER BY account, rule, cluster";
const COLUMNS: [&str; 7] = ["account", "cluster", "rule", "ticket", "until", "actor", "reason"];

pub(super) async fn run(context: &Context, exception: Exception) -> Result<Exit, Failure> {
    match exception {
        Exception::Set(ExceptionSet { target, rules, until, cluster }) => {
            let set = request::ExceptionSet { target: target.into(), rules, until, cluster };
            order::give(context, vec![OrderRequest::ExceptionSet(set)]).await
        }
        Exception::Unset(ExceptionUnset { target, rules, cluster }) => {
            let unset = request::ExceptionUnset { target: target.into(), rules, cluster };
            order::give(context, vec![OrderRequest::ExceptionUnset(unset)]).await
        }
        Exception::List(arguments) => show::list(context, arguments, LIST, &COLUMNS, "no exceptions").await,
    }
}

/// Returns a parser for rules from which an account can be excepted.
pub(super) fn rule() -> impl TypedValueParser<Value = ExceptedRule> {
    PossibleValuesParser::new(ExceptedRule::ALL.map(ExceptedRule::as_str)).try_map(|text| text.parse::<ExceptedRule>())
}
