//! Reads what the views of the ledger show about one account.

use serde_json::{Map, Value, json};

use super::{ReadStore, StoreError};
use crate::identity::AccountKind;

/// A row of a view.
pub type Row = Map<String, Value>;

/// What is shown in addition to the account itself: title, columns, and the query (`?1` is `tool:foo`).
const PARTS: [(&str, &[&str], &str); 11] = [
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
        "exceptions",
        &["cluster", "rule", "ticket", "until", "reason"],
        "SELECT cluster, rule, ticket, until, reason FROM exceptions WHERE account = ?1 ORDER BY rule, cluster",
    ),
    (
        "certificates",
        &["cluster", "kind", "host", "fingerprint", "not_after", "renew_after"],
        "SELECT cluster, kind, host, fingerprint, not_after, renew_after FROM expiring_certificates WHERE account = ?1",
    ),
    (
        "deliveries",
        &["cluster", "host", "path", "at", "checked_at"],
        "SELECT d.cluster, d.host, d.path, d.at, d.checked_at FROM delivery d JOIN account a ON a.id = d.account_id WHERE a.kind || ':' || a.name = ?1 AND a.state <> 'deleted' AND d.digest <> 'notice:removed' ORDER BY 1",
    ),
    (
        "hold",
        &["actor", "reason", "ticket", "at"],
        "SELECT h.note ->> 'actor' AS actor, h.note ->> 'reason' AS reason, h.note ->> 'ticket' AS ticket, h.note ->> 'at' AS at FROM hold h JOIN account a ON a.id = h.account_id WHERE a.kind || ':' || a.name = ?1 AND a.state <> 'deleted'",
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

/// Columns of quotas that the last cycle found below what was in use.
const OVER_QUOTA: (&str, &[&str]) = ("over_quota", &["namespace", "resource", "amount", "used"]);

pub fn titles() -> impl Iterator<Item = (&'static str, &'static [&'static str])> {
    PARTS.iter().map(|(title, columns, _)| (*title, *columns)).chain([OVER_QUOTA])
}

/// Returns the rows of the accounts with this name or id.
pub async fn named(store: &mut ReadStore, kind: AccountKind, name: &str) -> Result<Vec<Row>, StoreError> {
    let query = match kind {
        AccountKind::Tool => "SELECT * FROM tools WHERE ?1 IN (name, id) ORDER BY since",
        AccountKind::User => "SELECT * FROM users WHERE ?1 IN (name, id) ORDER BY since",
        AccountKind::Group => {
            "SELECT id, name, gid, state, since, source, directory_id FROM account
             WHERE kind = 'group' AND ?1 IN (name, id) ORDER BY since"
        }
    };
    store.rows(query, &[name.to_owned()]).await
}

/// Returns the account of `row`, a result of [`named`]. If `beside` is set, adds the rows of each title.
pub async fn of(store: &mut ReadStore, kind: AccountKind, row: Row, beside: bool) -> Result<Value, StoreError> {
    let name = format!("{kind}:{}", row.get("name").and_then(Value::as_str).unwrap_or_default());
    let mut facts = json!({"account": name, "ledger": row});
    if !beside {
        return Ok(facts);
    }
    for (title, _, query) in PARTS {
        facts[title] = json!(store.rows(query, std::slice::from_ref(&name)).await?);
    }
    let over = over_quota(store, &name).await?;
    if !over.is_empty() {
        facts[OVER_QUOTA.0] = json!(over);
    }
    Ok(facts)
}

/// Returns the quotas of the account that the last cycle found below what was in use.
async fn over_quota(store: &mut ReadStore, name: &str) -> Result<Vec<Row>, StoreError> {
    let report = store.last_report().await?.unwrap_or_default();
    let all = report["over_quota"].as_array().cloned().unwrap_or_default();
    let own = all.into_iter().filter(|over| over["account"] == name);
    Ok(own.filter_map(|over| over.as_object().cloned()).collect())
}
