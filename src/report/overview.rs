//! A report on a site for managers and auditors: one read of the whole ledger, as lists of limited length. Changes
//! nothing; `cli::page` renders it as a page.

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use serde_json::{Map, Value};
use sqlx::AssertSqlSafe;

use crate::policy::{Class, Policy};
use crate::store::{ReadStore, StoreError};

/// The report lists the changes of this period.
const CHANGES: SignedDuration = SignedDuration::from_hours(30 * 24);
/// The maximum number of listed accounts of each kind. Sites have at most this many, and a browser still shows the page
/// at once.
const ACCOUNTS: u64 = 10_000;
/// The maximum number of rows in every other list. Longer lists are for `sqlite3`, not for a page.
const OTHERS: u64 = 500;

/// The state of a site according to its ledger.
#[derive(Debug, Serialize)]
pub struct Overview {
    /// The site's name in the configuration.
    pub site: String,
    /// When the ledger was read.
    pub at: Timestamp,
    pub ledger: String,
    /// The id of the newest event.
    pub events: i64,
    /// The hash of the newest event, for `bursar ledger verify --head`.
    pub head: String,
    /// When the last cycle ended; `None` before the first.
    pub last_cycle: Option<String>,
    pub sections: Vec<Section>,
}

#[derive(Debug, Serialize)]
pub struct Section {
    /// A short name for links and programs.
    pub id: &'static str,
    /// The heading.
    pub title: &'static str,
    /// An explanation of the list.
    pub note: String,
    /// Keys of the rows, in display order.
    pub columns: &'static [&'static str],
    /// The rows up to the limit.
    pub rows: Vec<Map<String, Value>>,
    /// Number of rows beyond the limit.
    pub more: u64,
}

/// A list with its query. `?1` is the beginning of the reported changes.
struct Part {
    id: &'static str,
    title: &'static str,
    note: &'static str,
    columns: &'static [&'static str],
    bound: u64,
    query: &'static str,
}

const PARTS: [Part; 17] = [
    Part {
        id: "states",
        title: "Accounts by state",
        note: "new: seen in the directory, and not served yet",
        columns: &["kind", "state", "accounts"],
        bound: OTHERS,
        query: "SELECT kind, state, count(*) AS accounts FROM account GROUP BY 1, 2 ORDER BY 1, 2",
    },
    Part {
        id: "classes",
        title: "Tenants by class",
        note: "",
        columns: &["class", "cluster", "state", "tenants"],
        bound: OTHERS,
        query: "SELECT class, cluster, state, count(*) AS tenants FROM (
                  SELECT t.class, t.cluster, a.state FROM tenant t JOIN account a ON a.id = t.account_id
                  UNION ALL
                  SELECT n.class, n.cluster, coalesce(a.state, 'without an owner')
                  FROM adopted_namespace n LEFT JOIN account a ON a.id = n.account_id)
                GROUP BY 1, 2, 3 ORDER BY 1, 2, 3",
    },
    Part {
        id: "administrators",
        title: "Rights in a whole cluster",
        note: "",
        columns: &["account", "uid", "mail", "state", "cluster", "binding", "certificate_until"],
        bound: OTHERS,
        query: "SELECT a.kind || ':' || a.name AS account, a.uid, a.mail, a.state, o.cluster, o.name AS binding,
                       (SELECT min(c.not_after) FROM certificate c WHERE c.account_id = a.id AND c.cluster = o.cluster
                        AND c.newest = 1 AND c.generation = a.generation) AS certificate_until
                FROM object o JOIN account a ON a.id = o.account_id WHERE o.kind = 'ClusterRoleBinding'
                ORDER BY 1, o.cluster, o.name",
    },
    Part {
        id: "failing",
        title: "Failing",
        note: "",
        columns: &["account", "cluster", "step", "reason", "since", "attempts", "next_try"],
        bound: OTHERS,
        query: "SELECT a.kind || ':' || a.name AS account, f.cluster, f.step, f.reason, f.since, f.attempts, f.next_try
                FROM failure f JOIN account a ON a.id = f.account_id WHERE f.attempts > 0 ORDER BY f.since, 1",
    },
    Part {
        id: "rejected",
        title: "Rejected directory entries",
        note: "An entry that fails a check gets nothing new, and keeps what it had.",
        columns: &["source", "kind", "name", "dn", "why"],
        bound: OTHERS,
        query: "SELECT source, kind, name, dn, why FROM rejected_entry ORDER BY source, kind, name, dn",
    },
    Part {
        id: "refusals",
        title: "Held back, waiting for approval",
        note: "bursar approve HASH allows exactly one of these, once.",
        columns: &["hash", "limit", "why", "number", "accounts"],
        bound: OTHERS,
        query: "SELECT hash, \"limit\", why, json_array_length(accounts) AS number,
                       (SELECT group_concat(value, ', ') FROM (SELECT value FROM json_each(accounts) LIMIT 20)) AS accounts
                FROM refusal ORDER BY place",
    },
    Part {
        id: "removals",
        title: "Pending removals",
        note: "These follow if the directory stays as it is. A removal whose day is past is held back.",
        columns: &["account", "what", "absent_since", "on"],
        bound: OTHERS,
        query: "SELECT account, what, absent_since, \"on\" FROM pending_removals ORDER BY \"on\", account",
    },
    Part {
        id: "overrides",
        title: "Quotas that differ from the class",
        note: "",
        columns: &["account", "cluster", "resource", "amount", "ticket", "until", "actor", "reason", "at"],
        bound: OTHERS,
        query: "SELECT a.kind || ':' || a.name AS account, nullif(q.cluster, '') AS cluster, q.resource, q.amount,
                       q.note ->> 'ticket' AS ticket, q.until, q.note ->> 'actor' AS actor, q.note ->> 'reason' AS reason,
                       q.note ->> 'at' AS at
                FROM quota_override q JOIN account a ON a.id = q.account_id ORDER BY 1, q.resource, q.cluster",
    },
    Part {
        id: "exceptions",
        title: "Exceptions from admission rules",
        note: "",
        columns: &["account", "cluster", "rule", "ticket", "until", "actor", "reason", "at"],
        bound: OTHERS,
        query: "SELECT * FROM exceptions ORDER BY until, account, rule",
    },
    Part {
        id: "holds",
        title: "Held accounts",
        note: "Plans show what a held account needs, but nothing is changed before it is released.",
        columns: &["account", "actor", "reason", "ticket", "at"],
        bound: OTHERS,
        query: "SELECT a.kind || ':' || a.name AS account, h.note ->> 'actor' AS actor, h.note ->> 'reason' AS reason,
                       h.note ->> 'ticket' AS ticket, h.note ->> 'at' AS at
                FROM hold h JOIN account a ON a.id = h.account_id ORDER BY 1",
    },
    Part {
        id: "credentials",
        title: "Certificates and tokens, the next to expire first",
        note: "Bursar renews each after renew_after. If that time is past, the credential is also listed as failing.",
        columns: &["account", "cluster", "kind", "host", "not_after", "renew_after"],
        bound: OTHERS,
        query: "SELECT account, cluster, kind, host, not_after, renew_after FROM expiring_certificates
                ORDER BY not_after, account",
    },
    Part {
        id: "tools",
        title: "Tools",
        note: "",
        columns: &["name", "uid", "namespaces", "class", "state", "since", "last_use", "people"],
        bound: ACCOUNTS,
        query: "SELECT t.name, t.uid,
                       (SELECT group_concat(x.namespace || ' (' || x.cluster || ')', ', ') FROM tenant x
                        WHERE x.account_id = t.id) AS namespaces,
                       (SELECT group_concat(DISTINCT x.class) FROM tenant x WHERE x.account_id = t.id) AS class,
                       t.state, t.since, t.last_use,
                       (SELECT group_concat(ms.member, ', ') FROM membership_named ms
                        WHERE ms.account_id = t.id AND ms.at_end = '9999-12-31T23:59:59Z') AS people
                FROM tools t ORDER BY t.name",
    },
    Part {
        id: "people",
        title: "People",
        note: "People who only maintain tools stay new: they have nothing of their own in a cluster.",
        columns: &["name", "mail", "uid", "namespaces", "class", "state", "since", "last_use"],
        bound: ACCOUNTS,
        query: "SELECT u.name, u.mail, u.uid,
                       (SELECT group_concat(coalesce(x.namespace, 'whole cluster') || ' (' || x.cluster || ')', ', ')
                        FROM tenant x WHERE x.account_id = u.id) AS namespaces,
                       (SELECT group_concat(DISTINCT x.class) FROM tenant x WHERE x.account_id = u.id) AS class,
                       u.state, u.since, u.last_use
                FROM users u ORDER BY u.name",
    },
    Part {
        id: "workspaces",
        title: "Workspaces, and namespaces that others created",
        note: "",
        columns: &["namespace", "cluster", "class", "account", "state", "since", "people", "why"],
        bound: ACCOUNTS,
        query: "SELECT t.namespace, t.cluster, t.class, 'group:' || a.name AS account, a.state, t.created_at AS since,
                       (SELECT group_concat(ms.member || CASE ms.role WHEN 'manager' THEN ' (manager)' ELSE '' END
                               || CASE p.state WHEN 'active' THEN '' ELSE ' (no access)' END, ', ')
                        FROM membership_named ms LEFT JOIN account p ON p.id = ms.member_id
                        WHERE ms.account_id = a.id AND ms.at_end = '9999-12-31T23:59:59Z') AS people,
                       NULL AS why
                FROM tenant t JOIN account a ON a.id = t.account_id WHERE a.kind = 'group'
                UNION ALL
                SELECT n.namespace, n.cluster, n.class, a.kind || ':' || a.name, a.state, n.since, NULL, n.why
                FROM adopted_namespace n LEFT JOIN account a ON a.id = n.account_id
                ORDER BY 1, 2",
    },
    Part {
        id: "archives",
        title: "Archives of deleted namespaces",
        note: "",
        columns: &["at", "account", "cluster", "namespace", "file", "objects", "secrets", "left_out", "bytes"],
        bound: OTHERS,
        query: "SELECT at, account, cluster, namespace, file, objects, secrets, left_out, bytes FROM archives
                ORDER BY at DESC, file",
    },
    Part {
        id: "actions",
        title: "Changes of the last 30 days, counted",
        note: "",
        columns: &["action", "events", "first", "last"],
        bound: OTHERS,
        query: "SELECT action, count(*) AS events, min(at) AS first, max(at) AS last FROM event WHERE at >= ?1
                GROUP BY action ORDER BY 2 DESC, 1",
    },
    Part {
        id: "changes",
        title: "Changes of the last 30 days, newest first",
        note: "",
        columns: &["at", "actor", "account", "action", "reason", "ticket"],
        bound: OTHERS,
        query: "SELECT at, actor, account, action, reason, ticket FROM event WHERE at >= ?1 ORDER BY id DESC",
    },
];

impl Overview {
    /// Reads everything as it is at one moment, although the daemon may be writing.
    pub async fn read(store: &mut ReadStore, policy: &Policy, now: Timestamp) -> Result<Self, StoreError> {
        store.keep_the_moment().await?;
        let head = "SELECT l.id AS ledger, coalesce(e.id, 0) AS events, coalesce(e.hash, '') AS head,
                           (SELECT ended FROM cycle ORDER BY id DESC LIMIT 1) AS last_cycle
                    FROM ledger l LEFT JOIN event e ON e.id = (SELECT max(id) FROM event)";
        let head = store.rows(head, &[]).await?.pop().unwrap_or_default();
        let text = |key: &str| head.get(key).and_then(Value::as_str).map(str::to_owned);
        let begin = now.saturating_sub(CHANGES).unwrap_or(Timestamp::MIN);
        let binds = [format!("{begin:.0}")];
        let mut sections = Vec::new();
        for part in PARTS {
            let mut section = part.read(store, &binds).await?;
            if section.id == "administrators" {
                let classes = policy.classes.values().filter(|class| class.has_cluster_roles());
                section.note = classes.map(rights).collect::<Vec<_>>().join("; ");
            }
            sections.push(section);
        }
        Ok(Self {
            site: policy.site.clone(),
            at: now,
            ledger: text("ledger").unwrap_or_default(),
            events: head.get("events").and_then(Value::as_i64).unwrap_or_default(),
            head: text("head").unwrap_or_default(),
            last_cycle: text("last_cycle"),
            sections,
        })
    }
}

impl Part {
    async fn read(self, store: &mut ReadStore, binds: &[String]) -> Result<Section, StoreError> {
        let Self { id, title, note, columns, bound, query } = self;
        let rows = store.rows(AssertSqlSafe(format!("{query} LIMIT {bound}")), binds).await?;
        let mut more = 0;
        if rows.len() as u64 == bound {
            let count = store.rows(AssertSqlSafe(format!("SELECT count(*) AS all_rows FROM ({query})")), binds).await?;
            let all = count.first().and_then(|row| row.get("all_rows")?.as_u64()).unwrap_or_default();
            more = all.saturating_sub(bound);
        }
        Ok(Section { id, title, note: note.to_owned(), columns, rows, more })
    }
}

/// For example `class admin has the roles view and may act as bursar:cluster-admin`.
fn rights(class: &Class) -> String {
    let Class { name, roles, impersonate, .. } = class;
    let roles = if class.namespace.is_none() { format!(" has the roles {}", roles.join(", ")) } else { String::new() };
    let act = if impersonate.is_empty() { String::new() } else { format!(" may act as {}", impersonate.join(", ")) };
    let and = if roles.is_empty() || act.is_empty() { "" } else { " and" };
    format!("class {name}{roles}{and}{act}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::identity::{AccountId, AccountKind, AccountName, ClusterName, DirectoryId};
    use crate::ledger::change::Change;
    use crate::ledger::{Account, Lifecycle, Tenant};
    use crate::plan::testing::policy;
    use crate::snapshot::Role;
    use crate::store::{FILE, Store};

    #[tokio::test]
    async fn lists_of_a_large_site_are_limited_and_count_the_rest() {
        let (folder, mut store, lock) = Store::scratch().await;
        let now = Timestamp::UNIX_EPOCH;
        let new = |kind, name: String| {
            let (id, entry) = (AccountId(name.as_str().into()), DirectoryId(name.clone()));
            Account::new(id, AccountName { kind, name }, "people", entry, now)
        };
        let known = |account: Account| Change::Account(account.into());
        let mut changes = vec![known(new(AccountKind::User, "ann".to_owned()))];
        for number in 0..=ACCOUNTS {
            let members = [(DirectoryId("ann".to_owned()), Role::Member)].into();
            let tool = new(AccountKind::Tool, format!("tool{number:05}"));
            let namespace = Some(tool.name.clone().try_into().expect("the name is a namespace name"));
            let tenant = Tenant { class: "tool".to_owned(), namespace, created_at: now };
            changes.push(Change::Tenant(tool.id.clone(), ClusterName("prod".into()), tenant));
            changes.push(known(Account { state: Lifecycle::Active, members, ..tool }));
        }
        store.write(&lock, &changes, &[], now).await.expect("the ledger is writable");
        store.close().await.expect("the ledger closes");
        let mut reader = ReadStore::open(&folder.path().join(FILE)).await.expect("the ledger opens");
        let overview = Overview::read(&mut reader, &policy(), now).await.expect("the ledger is readable");
        let section = |id: &str| {
            overview.sections.iter().find(|section| section.id == id).expect("the overview has this section")
        };
        let tools = section("tools");
        assert_eq!((tools.rows.len() as u64, tools.more), (ACCOUNTS, 1));
        let first = json!({"name": "tool00000", "uid": null, "namespaces": "tool00000 (prod)", "class": "tool",
            "state": "active", "since": "1970-01-01T00:00:00Z", "last_use": null, "people": "user:ann"});
        assert_eq!(Value::Object(tools.rows[0].clone()), first);
        assert_eq!(section("classes").rows[0]["tenants"], ACCOUNTS + 1);
        assert_eq!(
            section("administrators").note,
            "class admin has the roles view and may act as bursar:cluster-admin"
        );
        // Every column of a list must be in its query's rows.
        for section in overview.sections.iter().filter(|section| !section.rows.is_empty()) {
            let all = section.columns.iter().all(|column| section.rows[0].contains_key(*column));
            assert!(all, "{}", section.id);
        }
    }
}
