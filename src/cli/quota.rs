//! `bursar quota set|unset|list|import`: overrides the amounts of the class for one account.

use std::collections::BTreeMap;
use std::path::Path;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use serde_json::Value;

use super::arguments::{Command, MaybeAccount, Quota, QuotaSet, QuotaUnset};
use super::context::Context;
use super::exit::{Exit, Failure};
use super::{lines, order, output, show};
use crate::identity::ClusterName;
use crate::orders::request::{self, OrderRequest, Target};

/// Selects every override, or those of the account `?1`, such as `tool:foo`.
const LIST: &str =
    "SELECT a.kind || ':' || a.name AS account, a.id, nullif(q.cluster, '') AS cluster, q.resource, q.amount,
       q.note ->> 'ticket' AS ticket, q.until, q.note ->> 'actor' AS actor, q.note ->> 'reason' AS reason,
       q.note ->> 'at' AS at
    FROM quota_override q JOIN account a ON a.id = q.account_id
    WHERE ?1 IN ('', a.kind || ':' || a.name) ORDER BY 1, q.resource, q.cluster";
const COLUMNS: [&str; 8] = ["account", "cluster", "resource", "amount", "ticket", "until", "actor", "at"];

pub(super) async fn run(context: &Context, quota: Quota) -> Result<Exit, Failure> {
    match quota {
        Quota::Set(arguments) => order::give(context, vec![set(arguments)]).await,
        Quota::Unset(arguments) => order::give(context, vec![unset(arguments)]).await,
        Quota::List(arguments) => list(context, arguments).await,
        Quota::Import { file } => {
            let orders = read(&file)?;
            order::give(context, orders).await
        }
    }
}

fn set(arguments: QuotaSet) -> OrderRequest {
    let QuotaSet { target, amounts, cluster, until } = arguments;
    OrderRequest::QuotaSet(request::QuotaSet {
        target: target.into(),
        amounts: amounts.into_iter().collect(),
        until,
        cluster,
    })
}

fn unset(arguments: QuotaUnset) -> OrderRequest {
    let QuotaUnset { target, resources, cluster } = arguments;
    OrderRequest::QuotaUnset(request::QuotaUnset { target: target.into(), resources, cluster })
}

async fn list(context: &Context, asked: MaybeAccount) -> Result<Exit, Failure> {
    let mut store = context.store().await?;
    let account = show::listed(&mut store, asked).await?;
    let mut rows = store.rows(LIST, &[account]).await?;
    if !context.global.json {
        for until in rows.iter_mut().filter_map(|row| row.get_mut("until")).filter(|until| is_open(until)) {
            *until = Value::Null;
        }
    }
    output::list(context, &rows, &COLUMNS, "no overrides")
}

/// Whether an override has no end. In the database and in JSON, its end is a time that sorts after all others.
fn is_open(until: &Value) -> bool {
    until.as_str().is_some_and(|until| until.starts_with("9999-12-31"))
}

/// Reads a file with the output of `quota list --json`, or with lines in the syntax of `bursar quota set`.
fn read(file: &Path) -> Result<Vec<OrderRequest>, Failure> {
    lines::read(file, |text| if text.trim_start().starts_with('[') { of_rows(text) } else { of_lines(text) })
}

fn of_rows(text: &str) -> (Vec<OrderRequest>, Vec<String>) {
    let rows: Vec<Value> = match serde_json::from_str(text) {
        Ok(rows) => rows,
        Err(error) => return (Vec::new(), vec![error.to_string()]),
    };
    let orders =
        rows.iter().enumerate().map(|(index, row)| of_row(row).map_err(|why| format!("row {}: {why}", index + 1)));
    lines::sorted(orders)
}

fn of_row(row: &Value) -> Result<OrderRequest, String> {
    let text = |key: &str| row[key].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let needed = |key: &str| text(key).ok_or_else(|| format!("{key} is missing"));
    let account: crate::identity::AccountName =
        needed("account")?.parse().map_err(|error: crate::identity::IdentityError| error.to_string())?;
    let until = text("until").filter(|_| !is_open(&row["until"]));
    Ok(OrderRequest::QuotaSet(request::QuotaSet {
        target: Target { kind: account.kind, name: account.name, reason: text("reason"), ticket: text("ticket") },
        amounts: BTreeMap::from([(needed("resource")?, needed("amount")?)]),
        until: until.map(|until| moment(&until)).transpose()?,
        cluster: text("cluster").map(ClusterName::from),
    }))
}

fn of_lines(text: &str) -> (Vec<OrderRequest>, Vec<String>) {
    lines::parsed(text, &["quota", "set"], |command| match command {
        Command::Quota(Quota::Set(arguments)) => Some(set(arguments)),
        _ => None,
    })
}

/// Parses a day, which means its beginning in UTC, or a time.
pub(super) fn moment(text: &str) -> Result<Timestamp, String> {
    if let Ok(day) = text.parse::<Date>()
        && !text.contains('T')
    {
        return day.to_zoned(TimeZone::UTC).map(|zoned| zoned.timestamp()).map_err(|error| error.to_string());
    }
    let wrong = || format!("{text:?} is neither a day nor a time; for example 2027-01-01, or 2027-01-01T12:00:00Z");
    let moment: Timestamp = text.parse().map_err(|_| wrong())?;
    Timestamp::from_second(moment.as_second()).map_err(|_| wrong())
}

/// Parses an amount such as `limits.cpu=8`.
pub(super) fn amount(text: &str) -> Result<(String, String), String> {
    let wrong = || format!("{text:?} is not RESOURCE=AMOUNT; for example limits.cpu=8");
    let (resource, amount) = text.split_once('=').ok_or_else(wrong)?;
    if resource.is_empty() || amount.is_empty() { Err(wrong()) } else { Ok((resource.to_owned(), amount.to_owned())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_begins_at_midnight_utc() {
        assert_eq!(moment("2027-01-01").expect("the text is a day").to_string(), "2027-01-01T00:00:00Z");
        assert_eq!(moment("2027-01-01T08:30:00.5Z").expect("the text is a time").to_string(), "2027-01-01T08:30:00Z");
        assert!(moment("tomorrow").is_err() && moment("2027-13-01").is_err());
    }

    #[test]
    fn an_override_without_an_end_is_open() {
        assert!(is_open(&"9999-12-31T23:59:59Z".into()));
        assert!(!is_open(&"2027-01-01T00:00:00Z".into()) && !is_open(&Value::Null));
    }

    #[test]
    fn a_file_without_orders_is_an_error() {
        let folder = tempfile::tempdir().expect("the temporary folder is writable");
        let file = folder.path().join("quotas");
        std::fs::write(&file, "# nothing yet\n\n").expect("the folder is writable");
        assert_eq!(read(&file).err().map(|failure| failure.exit), Some(Exit::Usage));
        std::fs::write(&file, "tool foo pods=4\n").expect("the folder is writable");
        assert_eq!(read(&file).map(|orders| orders.len()).ok(), Some(1));
    }

    #[test]
    fn a_file_has_lines_of_orders_or_the_json_of_a_list() {
        let text = "# since spring\n\ntool foo limits.cpu=8 --ticket T1 --until 2027-01-01\ntool bar pods=4 --reason \"a b\"\n";
        let (orders, wrong) = of_lines(text);
        assert_eq!((orders.len(), wrong), (2, Vec::new()));
        let OrderRequest::QuotaSet(second) = &orders[1] else { panic!("{orders:?}") };
        assert_eq!(second.target.reason.as_deref(), Some("a b"));
        let (_, wrong) = of_lines("tool foo\nuser\ntool foo pods=\ntool foo pods=4 --reason \"x\n");
        assert_eq!(wrong.len(), 4, "{wrong:?}");
        assert!(wrong[0].contains("RESOURCE=AMOUNT"), "it names what is missing: {wrong:?}");
        let row = r#"[{"account": "tool:foo", "cluster": null, "resource": "pods", "amount": "4",
                       "ticket": null, "until": "9999-12-31T23:59:59Z"}]"#;
        let (orders, wrong) = of_rows(row);
        assert_eq!((orders.len(), wrong), (1, Vec::new()));
        assert!(matches!(&orders[0], OrderRequest::QuotaSet(set) if set.until.is_none() && set.cluster.is_none()));
        assert_eq!(of_rows(r#"[{"account": "foo"}]"#).1.len(), 1);
    }
}
