//! `bursar show KIND NAME`: everything that the ledger knows of one account.

use serde_json::{Value, json};

use super::arguments::Account;
use super::context::Context;
use super::exit::{Exit, Failure};
use super::output::{self, Row};
use crate::identity::AccountKind;
use crate::ledger::store::ReadStore;
use crate::orders::meant;

/// What is shown beside the account itself: title, columns, query by `?1` = `tool:foo`.
const PARTS: [(&str, &[&str], &str); 10] = [
    (
        "members",
        &["member", "role", "since"],
        "SELECT member, role, since FROM memberships WHERE account = ?1 ORDER BY 1",
    ),
    (
        "member_of",
        &["account", "role", "since"],
        "SELECT account, role, since FROM memberships WHERE member = ?1 ORDER BY 1",
    ),
    (
        "namespaces",
        &["cluster", "namespace", "class", "created_at"],
        "SELECT cluster, namespace, class, created_at FROM namespaces WHERE account = ?1 ORDER BY 1",
    ),
    (
        "quotas",
        &["namespace", "resource", "amount", "override_ticket", "override_until"],
        "SELECT * FROM quotas WHERE namespace IN (SELECT namespace FROM namespaces WHERE account = ?1) ORDER BY 1, 2",
    ),
    (
        "certificates",
        &["cluster", "kind", "host", "fingerprint", "not_after", "renew_after"],
        "SELECT cluster, kind, host, fingerprint, not_after, renew_after FROM expiring_certificates WHERE account = ?1",
    ),
    (
        "deliveries",
        &["cluster", "host", "path", "at", "checked_at"],
        "SELECT d.cluster, d.host, d.path, d.at, d.checked_at FROM delivery d JOIN account a ON a.id = d.account_id WHERE a.kind || ':' || a.name = ?1 ORDER BY 1",
    ),
    (
        "hold",
        &["actor", "reason", "ticket", "at"],
        "SELECT h.note ->> 'actor' AS actor, h.note ->> 'reason' AS reason, h.note ->> 'ticket' AS ticket, h.note ->> 'at' AS at FROM hold h JOIN account a ON a.id = h.account_id WHERE a.kind || ':' || a.name = ?1",
    ),
    (
        "failing",
        &["step", "reason", "since", "attempts", "next_try"],
        "SELECT step, reason, since, attempts, next_try FROM failing WHERE account = ?1",
    ),
    (
        "pending_removals",
        &["what", "absent_since", "on"],
        "SELECT what, absent_since, \"on\" FROM pending_removals WHERE account = ?1",
    ),
    (
        "archives",
        &["cluster", "namespace", "at", "objects", "secrets", "file"],
        "SELECT cluster, namespace, at, objects, secrets, file FROM archives WHERE account = ?1 ORDER BY at",
    ),
];

pub(super) async fn run(context: &Context, account: &Account) -> Result<Exit, Failure> {
    let mut store = context.store().await?;
    let Some(row) = account_row(&mut store, account).await? else {
        return Err(Failure::no_account(account.kind, &account.name));
    };
    let shown = row.get("name").and_then(Value::as_str).unwrap_or(&account.name);
    let name = format!("{}:{shown}", account.kind);
    let mut parts: Vec<(&str, &[&str], Vec<Row>)> = Vec::new();
    for (title, columns, query) in PARTS {
        parts.push((title, columns, store.rows(query, std::slice::from_ref(&name)).await?));
    }
    let tight = over_quota(&mut store, &name).await?;
    if !tight.is_empty() {
        parts.push(("over_quota", &["namespace", "resource", "amount", "used"], tight));
    }
    if context.global.json {
        let mut value = json!({"account": name});
        value["ledger"] = Value::Object(row);
        for (title, _, rows) in parts {
            value[title] = json!(rows);
        }
        output::json(&value)?;
        return Ok(Exit::Done);
    }
    output::line(format!("{name}\n{}", output::pairs(&row)));
    for (title, columns, rows) in parts.iter().filter(|(_, _, rows)| !rows.is_empty()) {
        output::line(format!("\n{}\n{}", title.replace('_', " "), output::table(rows, columns)));
    }
    Ok(Exit::Done)
}

/// Quotas of the account that gave less than was in use, when the last cycle looked.
async fn over_quota(store: &mut ReadStore, name: &str) -> Result<Vec<Row>, Failure> {
    let report = store.last_report().await?.unwrap_or_default();
    let all = report["over_quota"].as_array().cloned().unwrap_or_default();
    let own = all.into_iter().filter(|over| over["account"] == name);
    Ok(own.filter_map(|over| over.as_object().cloned()).collect())
}

/// The account's row of its view, by name or id; of several that have the name the one that is served.
pub(super) async fn account_row(store: &mut ReadStore, account: &Account) -> Result<Option<Row>, Failure> {
    let query = match account.kind {
        AccountKind::Tool => "SELECT * FROM tools WHERE ?1 IN (name, id) ORDER BY since",
        AccountKind::User => "SELECT * FROM users WHERE ?1 IN (name, id) ORDER BY since",
        AccountKind::Group => {
            "SELECT id, name, gid, state, since, source, directory_id FROM account
             WHERE kind = 'group' AND ?1 IN (name, id) ORDER BY since"
        }
    };
    let rows = store.rows(query, std::slice::from_ref(&account.name)).await?;
    one_of(account, &rows)
}

/// As [`crate::orders::find`] tells them apart.
fn one_of(account: &Account, rows: &[Row]) -> Result<Option<Row>, Failure> {
    let found = meant(rows, |row| row.get("state").and_then(Value::as_str).unwrap_or_default());
    if found.is_some() || rows.is_empty() {
        return Ok(found.cloned());
    }
    let text = format!(
        "{} {:?} is the name of several; say which by its id instead of the name:\n{}",
        account.kind,
        account.name,
        output::table(rows, &["id", "name", "uid", "state", "since", "directory_id"])
    );
    Err(Failure::new(Exit::Usage, text))
}
