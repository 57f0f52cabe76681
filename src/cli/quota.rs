//! `bursar quota set|unset|list|import`: overrides the amounts of the class for one account.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use serde::Deserialize;
use serde_json::Value;

use super::arguments::{Command, MaybeAccount, Quota, QuotaSet, QuotaUnset};
use super::context::Context;
use super::exit::{Exit, Failure};
use super::{lines, order, output, show};
use crate::identity::{AccountName, ClusterName};
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
        Quota::Set(arguments) => {
            let order = set(arguments).map_err(|why| Failure::new(Exit::Usage, why))?;
            order::give(context, vec![order]).await
        }
        Quota::Unset(arguments) => order::give(context, vec![unset(arguments)]).await,
        Quota::List(arguments) => list(context, arguments).await,
        Quota::Import { file } => {
            let orders = read(&file)?;
            order::give(context, orders).await
        }
    }
}

fn set(arguments: QuotaSet) -> Result<OrderRequest, String> {
    let QuotaSet { target, amounts: given, cluster, until } = arguments;
    let mut amounts = BTreeMap::new();
    for (resource, amount) in given {
        if let Some(first) = amounts.insert(resource.clone(), amount.clone()) {
            return Err(format!("{resource} is given twice: {first} and {amount}; give one amount"));
        }
    }
    Ok(OrderRequest::QuotaSet(request::QuotaSet { target: target.into(), amounts, until, cluster }))
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
        for until in
            rows.iter_mut().filter_map(|row| row.get_mut("until")).filter(|until| until.as_str().is_some_and(is_open))
        {
            *until = Value::Null;
        }
    }
    output::list(context, &rows, &COLUMNS, "no overrides")
}

/// Whether an override has no end. In the database and in JSON, its end is a time that sorts after all others.
fn is_open(until: &str) -> bool {
    until.starts_with("9999-12-31")
}

/// Reads a file with the output of `quota list --json`, or with lines in the syntax of `bursar quota set`.
fn read(file: &Path) -> Result<Vec<OrderRequest>, Failure> {
    lines::read(file, |text| {
        let (orders, mut wrong) = if text.trim_start().starts_with('[') { of_rows(text) } else { of_lines(text) };
        wrong.extend(twice(&orders));
        (orders, wrong)
    })
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

/// The columns of [`LIST`].
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    account: AccountName,
    resource: String,
    amount: String,
    cluster: Option<ClusterName>,
    until: Option<String>,
    reason: Option<String>,
    ticket: Option<String>,
    #[serde(rename = "id")]
    _id: Option<String>,
    #[serde(rename = "actor")]
    _actor: Option<String>,
    #[serde(rename = "at")]
    _at: Option<String>,
}

fn of_row(row: &Value) -> Result<OrderRequest, String> {
    let row = Row::deserialize(row).map_err(|error| error.to_string())?;
    let until = row.until.filter(|until| !until.is_empty() && !is_open(until));
    Ok(OrderRequest::QuotaSet(request::QuotaSet {
        target: Target { kind: row.account.kind, name: row.account.name, reason: row.reason, ticket: row.ticket },
        amounts: BTreeMap::from([(row.resource, row.amount)]),
        until: until.map(|until| moment(&until)).transpose()?,
        cluster: row.cluster,
    }))
}

/// Returns an error for each amount that a later one would replace.
fn twice(orders: &[OrderRequest]) -> Vec<String> {
    let mut known = BTreeSet::new();
    let sets = orders.iter().filter_map(|order| match order {
        OrderRequest::QuotaSet(set) => Some(set),
        _ => None,
    });
    let amounts = sets.flat_map(|set| {
        set.amounts.keys().map(move |resource| (set.target.kind, &set.target.name, resource, &set.cluster))
    });
    let again = amounts.filter(|amount| !known.insert(*amount));
    again
        .map(|(kind, name, resource, _)| format!("{kind}:{name}: {resource} is given twice; give one amount"))
        .collect()
}

fn of_lines(text: &str) -> (Vec<OrderRequest>, Vec<String>) {
    lines::parsed(text, &["quota", "set"], |command| match command {
        Command::Quota(Quota::Set(arguments)) => Some(set(arguments)),
        _ => None,
    })
}

/// Parses a day, which means its beginning in UTC, or a time.
pub(super) fn moment(text: &str) -> Result<Timestamp, String> {
    let wrong = || {
        let why = if is_open(text) {
            "is too late; without --until there is no end"
        } else if text.contains('T') && !text.ends_with('Z') {
            "has no time zone; for example 2027-01-01T12:00:00Z"
        } else {
            "is neither a day nor a time; for example 2027-01-01, or 2027-01-01T12:00:00Z"
        };
        format!("{text:?} {why}")
    };
    // `Date` ignores the time in a text such as `2027-01-01 12:00`, so a day has no other characters.
    if let Ok(day) = text.parse::<Date>()
        && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-')
    {
        return day.to_zoned(TimeZone::UTC).map(|zoned| zoned.timestamp()).map_err(|_| wrong());
    }
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
        for wrong in ["tomorrow", "2027-13-01", "2027-01-01 12:00", "2027-01-01t12:00", "2027-01-01[Europe/Berlin]"] {
            assert!(moment(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_override_without_an_end_is_open() {
        assert!(is_open("9999-12-31T23:59:59Z") && !is_open("2027-01-01T00:00:00Z"));
        assert!(moment("9999-12-31").is_err_and(|why| why.contains("without --until")));
        assert!(moment("2027-01-01T12:00").is_err_and(|why| why.contains("time zone")));
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
        let rest = r#""account": "tool:foo", "resource": "pods", "amount": "4""#;
        for wrong in [
            r#"{"account": "foo"}"#.to_owned(),
            format!(r#"{{{rest}, "untill": "2027-01-01"}}"#),
            format!(r#"{{{rest}, "until": 20270101}}"#),
            format!(r#"{{{rest}, "cluster": ["prod"]}}"#),
            format!(r#"{{{rest}, "clusters": "prod"}}"#),
        ] {
            assert_eq!(of_rows(&format!("[{wrong}]")).1.len(), 1, "{wrong}");
        }
    }

    #[test]
    fn an_amount_that_a_later_one_would_replace_is_refused() {
        let twice = |text: &str| twice(&of_lines(text).0).len();
        assert_eq!(twice("tool foo pods=4\ntool foo pods=5\n"), 1);
        assert_eq!(twice("tool foo pods=4\ntool foo pods=5 --cluster prod\ntool bar pods=4\nuser foo pods=4\n"), 0);
        let (orders, wrong) = of_lines("tool foo pods=4 pods=5\n");
        assert!(orders.is_empty() && wrong[0].contains("pods is given twice: 4 and 5"), "{wrong:?}");
    }
}
