//! Finds the accounts behind something that a log names: a uid, a credential, a pod, a host or a mail address. Shows
//! them as they were at a given time, and says which former facts the ledger does not keep. Changes nothing.

pub mod what;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use self::what::What;
use crate::admission::serves;
use crate::contract::exception::ExceptedRule;
use crate::contract::{Identity, TenantState};
use crate::desired::rules::rules;
use crate::desired::{ClassesOfNamespaces as Classes, classes_of_namespaces};
use crate::identity::{AccountId, ClusterName};
use crate::ledger::{LedgerState, Tenant};
use crate::policy::{Class, CredentialRule, Policy};
use crate::rules::{ClassRules, Mode};
use crate::store::{ReadStore, StoreError};

/// The time that stands for "now" in the queries. It is later than every entry of the ledger, and earlier than the end
/// of rows that have not ended (`…59Z`), so a query returns the newest state, also in a backup.
const LATEST: &str = "9999-12-31T23:59:58Z";

/// The certificate or token with id `?1`, and its present holder.
const CREDENTIAL: &str = "SELECT a.kind || ':' || a.name AS account, a.state, c.cluster, c.host, c.subject, c.fingerprint, c.not_before, c.not_after,
       c.newest = 1 AND c.generation = a.generation AND a.state = 'active' AS good, a.id
FROM certificate c JOIN account a ON a.id = c.account_id WHERE c.fingerprint = ?1";

/// The accounts that own namespace `?1`. Here and below, `?2` is the time.
const OF_NAMESPACE: &str =
    "SELECT account_id AS id, cluster, 'namespaces' AS origin FROM tenant WHERE namespace = ?1 AND created_at <= ?2
UNION ALL
SELECT account_id, cluster, 'namespaces, adopted' FROM adopted_namespace
WHERE namespace = ?1 AND account_id IS NOT NULL AND since <= ?2
UNION ALL
SELECT account_id, cluster, 'former owners of adopted namespaces' FROM adopted_before
WHERE namespace = ?1 AND at_start <= ?2 AND at_end > ?2";

/// The accounts with a token for host `?1`. Expired tokens are found only by their id.
const OF_HOST: &str =
    "SELECT DISTINCT c.account_id AS id, c.cluster FROM certificate c JOIN account a ON a.id = c.account_id
WHERE c.host = ?1 AND c.not_before <= ?2
  AND CASE ?2 WHEN '9999-12-31T23:59:58Z' THEN c.newest = 1 AND c.generation = a.generation AND a.state = 'active'
      ELSE c.not_after > ?2 END";

/// The accounts of `?1`, a JSON array of ids, as they were at `?2`. An account that was not known yet has no row. A uid
/// changes only by an order, which the history records. The history also records when each former state began.
const ACCOUNTS: &str = "WITH life AS (
  SELECT a.id AS id,
         (SELECT max(ac.at_start) FROM activity ac WHERE ac.account_id = a.id AND ac.at_start <= ?2 AND ac.at_end > ?2)
           AS active_since,
         (SELECT max(e.id) FROM event e WHERE e.account_id = a.id AND e.at <= ?2
          AND e.action IN ('suspended', 'archived', 'deleted', 'learned')) AS last
  FROM account a WHERE a.id IN (SELECT value FROM json_each(?1))
)
SELECT a.id, a.kind || ':' || n.name AS account, a.kind || ':' || a.name AS name_now,
       CASE WHEN ?2 = '9999-12-31T23:59:58Z' THEN a.state WHEN life.active_since IS NOT NULL THEN 'active'
            WHEN e.action = 'learned' THEN e.detail ->> 'state' ELSE coalesce(e.action, 'new') END AS state,
       CASE WHEN ?2 = '9999-12-31T23:59:58Z' THEN a.since ELSE coalesce(life.active_since, e.at,
            (SELECT min(f.at_start) FROM account_name f WHERE f.account_id = a.id)) END AS since,
       coalesce((SELECT u.detail ->> 'before' FROM event u WHERE u.account_id = a.id AND u.action = 'uid adopted'
                 AND u.at > ?2 ORDER BY u.id LIMIT 1), a.uid) AS uid,
       a.mail, a.display_name, a.source
FROM life JOIN account a ON a.id = life.id
JOIN account_name n ON n.account_id = a.id AND n.at_start <= ?2 AND n.at_end > ?2
LEFT JOIN event e ON e.id = life.last
ORDER BY 2";

/// The time since which the ledger knows each account of `?1`.
const KNOWN: &str = "SELECT a.id, a.kind || ':' || a.name AS account, min(n.at_start) AS since
FROM account a JOIN account_name n ON n.account_id = a.id WHERE a.id IN (SELECT value FROM json_each(?1)) GROUP BY a.id";

const NAMESPACES: &str = "WITH owned AS (
  SELECT account_id, cluster, namespace, NULL AS class, class AS first_class, created_at AS at_start,
         '9999-12-31T23:59:59Z' AS at_end FROM tenant
  UNION ALL
  SELECT account_id, cluster, namespace, class, NULL, since, '9999-12-31T23:59:59Z' FROM adopted_namespace
  UNION ALL
  SELECT account_id, cluster, namespace, NULL, NULL, at_start, at_end FROM adopted_before
)
SELECT account_id AS id, cluster, namespace, class, first_class FROM owned
WHERE account_id IN (SELECT value FROM json_each(?1)) AND at_start <= ?2 AND at_end > ?2 ORDER BY cluster, namespace";

/// The members of the accounts of `?1` at `?2`, and whether each had access. The bindings of a workspace name only
/// active people.
const PEOPLE: &str = "SELECT ms.account_id AS id, ms.member, ms.role, ms.at_start AS since,
       (SELECT p.mail FROM account p WHERE p.id = ms.member_id AND p.kind = 'user') AS mail,
       a.kind <> 'group' OR EXISTS (SELECT 1 FROM activity ac WHERE ac.account_id = ms.member_id
                                    AND ac.at_start <= ?2 AND ac.at_end > ?2) AS access
FROM membership_named ms JOIN account a ON a.id = ms.account_id
WHERE ms.account_id IN (SELECT value FROM json_each(?1)) AND ms.at_start <= ?2 AND ms.at_end > ?2 ORDER BY ms.member";

type Row = Map<String, Value>;

/// Returns the certificate or token with this id, with the present state of its holder, and the holder's id.
pub async fn credential(store: &mut ReadStore, id: &str) -> Result<Option<(String, Row)>, StoreError> {
    let Some(mut row) = store.rows(CREDENTIAL, &[id.to_owned()]).await?.pop() else { return Ok(None) };
    let holder = taken(&mut row, "id");
    let good = row.get("good").and_then(Value::as_i64) == Some(1);
    row.insert("good".to_owned(), Value::Bool(good));
    Ok(Some((holder, row)))
}

/// The accounts that were found, by id and with the reasons, and further notes.
#[derive(Debug, Default)]
struct FoundAccounts {
    by: BTreeMap<String, Vec<String>>,
    credential: Option<Row>,
    notes: Vec<String>,
}

impl FoundAccounts {
    fn add(&mut self, id: &str, by: String) {
        self.by.entry(id.to_owned()).or_default().push(by);
    }
}

/// Returns the answer to `bursar who`, as `--json` prints it; `answers` is empty if `what` belongs to no account. `now`
/// is the newest state and the configuration, which determine the present classes. If `now` is `None`, the answer about
/// a host leaves out the classes that may serve it.
pub async fn answer(
    store: &mut ReadStore,
    now: Option<(&LedgerState, &Policy)>,
    what: &What,
    at: Option<Timestamp>,
) -> Result<Value, StoreError> {
    let moment = at.map_or_else(|| LATEST.to_owned(), |at| format!("{at:.0}"));
    let classes = now.map(|(ledger, policy)| classes_of_namespaces(ledger, policy)).unwrap_or_default();
    let mut found = found(store, now.map(|now| (now, &classes)), what, at, &moment).await?;
    let binds = [json!(found.by.keys().collect::<Vec<_>>()).to_string(), moment];
    let accounts = store.rows(ACCOUNTS, &binds).await?;
    let mut namespaces = by_id(store.rows(NAMESPACES, &binds).await?);
    let mut people = by_id(store.rows(PEOPLE, &binds).await?);
    let mut answers = Vec::new();
    for mut account in accounts {
        let id = text(&account, "id");
        let mut by = found.by.remove(&id).unwrap_or_default();
        if let What::Uid(asked) = what
            && account.get("uid").and_then(Value::as_i64) != Some(i64::from(*asked))
        {
            let (name, other) = (text(&account, "account"), account.get("uid").unwrap_or(&Value::Null).to_string());
            if at.is_some() {
                found.notes.push(format!("{name} had uid {other} then, and {asked} at another time"));
                continue;
            }
            by = vec![format!("a former uid: the account has {other} now; see event \"uid adopted\" in its history")];
        }
        if account["name_now"] == account["account"] {
            account.remove("name_now");
        }
        let (mut namespaces, mut people) =
            (namespaces.remove(&id).unwrap_or_default(), people.remove(&id).unwrap_or_default());
        // The ledger keeps no former classes.
        let classes = classes.get(&AccountId(id.as_str().into())).filter(|_| at.is_none());
        for row in &mut namespaces {
            name_class(row, classes);
        }
        let has_access = account["state"] == "active" && !namespaces.is_empty();
        if text(&account, "account").starts_with("user:") {
            let own = json!({"member": account["account"], "role": "owner", "since": account["since"],
                "mail": account["mail"], "access": 1});
            people.extend(own.as_object().cloned());
        }
        for person in &mut people {
            let access = has_access && person["access"] == 1;
            person.insert("access".to_owned(), Value::Bool(access));
        }
        account.insert("namespaces".to_owned(), json!(namespaces));
        account.insert("access".to_owned(), json!(has_access));
        account.insert("people".to_owned(), json!(people));
        account.insert("found_by".to_owned(), json!(by));
        answers.push(account);
    }
    let unknown = json!(found.by.keys().collect::<Vec<_>>()).to_string();
    for row in store.rows(KNOWN, &[unknown]).await? {
        let (account, since) = (text(&row, "account"), text(&row, "since"));
        found
            .notes
            .push(format!("it belonged to {account} later: the ledger has known that account only since {since}"));
    }
    Ok(json!({"what": what, "at": at, "answers": answers, "credential": found.credential, "notes": found.notes}))
}

/// Sets `class` to the present class of a namespace. If that is unknown, the row keeps `first_class`, the class by
/// which the account got the namespace.
fn name_class(row: &mut Row, classes: Option<&BTreeMap<&ClusterName, &str>>) {
    if row["first_class"].is_null() {
        row.remove("first_class");
        return;
    }
    row.remove("class");
    let cluster = ClusterName::from(text(row, "cluster"));
    if let Some(class) = classes.and_then(|classes| classes.get(&cluster)) {
        row.remove("first_class");
        row.insert("class".to_owned(), Value::from(*class));
    }
}

async fn found(
    store: &mut ReadStore,
    now: Option<((&LedgerState, &Policy), &Classes<'_>)>,
    what: &What,
    at: Option<Timestamp>,
    moment: &str,
) -> Result<FoundAccounts, StoreError> {
    let mut found = FoundAccounts::default();
    let binds = |what: &str| [what.to_owned(), moment.to_owned()];
    match what {
        What::Uid(uid) => {
            let query = "SELECT account_id AS id FROM uid_history WHERE uid = CAST(?1 AS INTEGER)";
            for row in store.rows(query, &[uid.to_string()]).await? {
                found.add(&text(&row, "id"), "its uid, which the ledger never gives to another account".to_owned());
            }
            let query = "SELECT at FROM used_uid WHERE uid = CAST(?1 AS INTEGER)";
            found.notes.extend(store.rows(query, &[uid.to_string()]).await?.iter().map(|row| {
                let at = text(row, "at");
                format!("a workspace had this uid before the ledger was rebuilt, restored or taken over ({at})")
            }));
        }
        What::Credential(id) => {
            if let Some((holder, row)) = credential(store, id).await? {
                let (begin, end) = (text(&row, "not_before"), text(&row, "not_after"));
                if at.is_some_and(|_| moment < begin.as_str() || moment > end.as_str()) {
                    found.notes.push(format!("it was not valid then, only from {begin} to {end}"));
                }
                found.add(&holder, "the credential was issued to it".to_owned());
                found.credential = Some(row);
            }
        }
        What::Pod(namespace, _) => {
            for row in store.rows(OF_NAMESPACE, &binds(namespace)).await? {
                let by = format!("its namespace in cluster {} ({})", text(&row, "cluster"), text(&row, "origin"));
                found.add(&text(&row, "id"), by);
            }
        }
        What::Host(host) => {
            for row in store.rows(OF_HOST, &binds(host)).await? {
                found.add(&text(&row, "id"), format!("it has a token of cluster {} there", text(&row, "cluster")));
            }
            if let Some(((ledger, policy), classes)) = now {
                served((ledger, policy), classes, host, at, &mut found);
            }
        }
        What::Mail(mail) => {
            let query = "SELECT id FROM account WHERE lower(mail) = lower(?1)";
            for row in store.rows(query, std::slice::from_ref(mail)).await? {
                found.add(&text(&row, "id"), "its mail address in the directory now".to_owned());
            }
        }
    }
    let unkept = match what {
        What::Mail(_) => Some("mail addresses"),
        What::Host(_) => Some("hosts of classes and exceptions, and no expired tokens of a host"),
        What::Uid(_) | What::Credential(_) | What::Pod(..) => None,
    };
    let unkept = unkept.filter(|_| at.is_some());
    if let (What::Pod(..), Some(_)) = (what, at) {
        found
            .notes
            .push("the ledger keeps no pods, so the answer names the owner of the namespace at that time".to_owned());
    }
    found.notes.extend(unkept.map(|what| format!("the ledger keeps no former {what}: the answer uses present ones")));
    Ok(found)
}

/// Adds the tenants whose class lets them serve `host`. The decision is made by the same function as in admission.
fn served(
    (ledger, policy): (&LedgerState, &Policy),
    of_namespaces: &Classes<'_>,
    host: &str,
    at: Option<Timestamp>,
    found: &mut FoundAccounts,
) {
    let mut lax = BTreeSet::new();
    for cluster in policy.clusters.keys() {
        let classes = rules(policy, cluster, ledger).classes;
        lax.extend(classes.iter().filter(|(_, rules)| rules.hosts.mode != Mode::Enforce).map(|(name, _)| name.clone()));
        let here = ledger
            .tenants
            .iter()
            .filter(|((_, of), tenant)| of == cluster && at.is_none_or(|at| tenant.created_at <= at));
        for ((id, _), tenant) in here {
            let class = of_namespaces.get(id).and_then(|of_account| of_account.get(cluster)).copied();
            let class = class.unwrap_or(&tenant.class);
            if let Some(pattern) = pattern(ledger, (id, cluster), (tenant, class), classes.get(class), host) {
                let by = format!("class {class} lets it serve {pattern} in cluster {cluster}");
                found.add(&id.to_string(), by);
            }
        }
    }
    let is_outside = |class: &&Class| class.credential.iter().flat_map(CredentialRule::hosts).any(|at| at.0 == host);
    let mut outside = policy.classes.values().filter(is_outside).peekable();
    if outside.peek().is_some() {
        found.notes.extend(outside.map(|class| format!("{host} is a host of class {}'s tokens", class.name)));
        return;
    }
    if !lax.is_empty() {
        let lax: Vec<_> = lax.into_iter().collect();
        found.notes.push(format!("any tenant of class {} may serve it: rule hosts is not enforced", lax.join(", ")));
    }
    let excepted = ledger.exceptions.iter().filter(|(key, _)| key.rule == ExceptedRule::Hosts);
    found.notes.extend(excepted.filter_map(|(key, exception)| {
        let account = ledger.accounts.get(&key.account)?.account_name();
        Some(format!("{account} may serve it: it is excepted from rule hosts until {:.0}", exception.until))
    }));
}

fn pattern<'r>(
    ledger: &LedgerState,
    (id, cluster): (&AccountId, &ClusterName),
    (tenant, class): (&Tenant, &str),
    rules: Option<&'r ClassRules>,
    host: &str,
) -> Option<&'r str> {
    let account = ledger.accounts.get(id)?;
    let identity = Identity {
        cluster: cluster.clone(),
        namespace: tenant.namespace.clone()?,
        id: id.clone(),
        directory_id: account.directory_id.clone(),
        account: account.account_name(),
        class: class.to_owned(),
        posix: account.posix.clone(),
        generation: account.generation,
        state: TenantState::Active,
        exceptions: BTreeSet::new(),
    };
    serves(&identity, rules?, host)
}

fn text(row: &Row, column: &str) -> String {
    row.get(column).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn taken(row: &mut Row, column: &str) -> String {
    let text = text(row, column);
    row.remove(column);
    text
}

/// Groups rows by the account that each is about.
fn by_id(rows: Vec<Row>) -> BTreeMap<String, Vec<Row>> {
    let mut all: BTreeMap<String, Vec<Row>> = BTreeMap::new();
    for mut row in rows {
        all.entry(taken(&mut row, "id")).or_default().push(row);
    }
    all
}

#[cfg(test)]
mod tests;
