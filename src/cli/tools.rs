//! `bursar tools`: lists the tools in the ledger.

use serde_json::Value;

use super::arguments::Filter;
use super::context::Context;
use super::exit::{Exit, Failure};
use super::output::{self, Row};

pub(super) async fn run(context: &Context, filter: &Filter) -> Result<Exit, Failure> {
    let rows = context.store().await?.rows("SELECT * FROM tools ORDER BY name", &[]).await?;
    let columns = ["name", "uid", "namespace", "state", "since", "certificate_until", "last_error"];
    list(context, filter, rows, ("tools", &columns))
}

/// Prints the rows that pass the filter. `what` names the rows in messages; `columns` are the columns to show.
pub(super) fn list(
    context: &Context,
    filter: &Filter,
    rows: Vec<Row>,
    (what, columns): (&str, &[&str]),
) -> Result<Exit, Failure> {
    let rows: Vec<Row> = rows.into_iter().filter(|row| passes(filter, row)).collect();
    output::list(context, &rows, columns, &none(filter, what))
}

fn none(filter: &Filter, what: &str) -> String {
    match (filter.failing, filter.suspended) {
        (true, _) => format!("no failing {what}"),
        (_, true) => format!("no suspended {what}"),
        _ => format!("no {what} in the ledger"),
    }
}

fn passes(filter: &Filter, row: &Row) -> bool {
    (!filter.failing || row.get("last_error").is_some_and(|error| !error.is_null()))
        && (!filter.suspended || row.get("state").and_then(Value::as_str) == Some("suspended"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn filters_use_state_and_last_error() {
        let row = |state: &str, error: Value| {
            json!({"state": state, "last_error": error}).as_object().cloned().unwrap_or_default()
        };
        let (failing, suspended) =
            (Filter { failing: true, suspended: false }, Filter { failing: false, suspended: true });
        assert!(passes(&failing, &row("active", json!("full"))) && !passes(&failing, &row("active", Value::Null)));
        assert!(passes(&suspended, &row("suspended", Value::Null)) && !passes(&suspended, &row("active", json!("x"))));
    }
}
