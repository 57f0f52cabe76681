//! Finds the accounts behind something that a log names: a uid, a credential, a pod, a host or a mail address. Shows
//! them as they were at a given time, and says which former facts the ledger does not keep. Changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::admission::serves;
use crate::contract::exception::ExceptedRule;
use crate::contract::{Identity, TenantState};
use crate::desired::rules::rules;
use crate::desired::{ClassesOfNamespaces as Classes, classes_of_namespaces};
use crate::identity::{AccountId, ClusterName, is_dns_label};
use crate::ledger::{LedgerState, Tenant};
use crate::policy::{Class, CredentialRule, Policy};
use crate::rules::{ClassRules, Mode};
use crate::store::{ReadStore, StoreError};

/// The prefix of a certificate's digits in audit events (`credential-id`, Kubernetes 1.30 and later).
const CERTIFICATE: &str = "X509SHA256=";
/// The prefix of a token's id in audit events.
const TOKEN: &str = "JTI=";
/// The time that stands for "now" in the queries. It is later than everything in the ledger, and before the open end,
/// so the answer is the newest that the ledger has, also in a backup.
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
/// changes only by an order, which the history records. The history also has the beginnings of former states.
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

/// Something that a log names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum What {
    /// The uid of a process or file.
    Uid(u32),
    /// The fingerprint of a certificate, or the id of a token.
    Credential(String),
    /// A pod or a former pod: namespace and name.
    Pod(String, String),
    /// The host of an Ingress, or an external host with its own tokens.
    Host(String),
    /// The mail address of a person.
    Mail(String),
}

/// A text that has none of these forms.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is none of: a uid (52503), {CERTIFICATE}… with 64 digits or {TOKEN}… from an audit event, NAMESPACE/POD, a host \
     (foo.tools.example.org), a mail address"
)]
pub struct NoShape(String);

impl FromStr for What {
    type Err = NoShape;

    fn from_str(text: &str) -> Result<Self, NoShape> {
        let wrong = || NoShape(text.to_owned());
        if let Some(id) = credential_id(text) {
            return Ok(Self::Credential(id));
        }
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            return text.parse().map(Self::Uid).map_err(|_| wrong());
        }
        if let Some((name, domain)) = text.split_once('@') {
            let is_mail = !name.is_empty() && is_host(&domain.to_ascii_lowercase());
            let is_plain = !text.contains(|c: char| c.is_whitespace() || c.is_control());
            return if is_mail && is_plain { Ok(Self::Mail(text.to_owned())) } else { Err(wrong()) };
        }
        if let Some((namespace, pod)) = text.split_once('/') {
            let is_pod = is_host(namespace) && !namespace.contains('.') && is_host(pod);
            return if is_pod { Ok(Self::Pod(namespace.to_owned(), pod.to_owned())) } else { Err(wrong()) };
        }
        let host = text.to_ascii_lowercase();
        let named = host.strip_prefix("*.").unwrap_or(&host);
        if is_host(named) { Ok(Self::Host(host)) } else { Err(wrong()) }
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uid(uid) => uid.fmt(f),
            Self::Credential(id) if is_fingerprint(id) => write!(f, "{CERTIFICATE}{id}"),
            Self::Credential(id) => write!(f, "{TOKEN}{id}"),
            Self::Pod(namespace, pod) => write!(f, "{namespace}/{pod}"),
            Self::Host(text) | Self::Mail(text) => text.fmt(f),
        }
    }
}

impl TryFrom<String> for What {
    type Error = NoShape;

    fn try_from(text: String) -> Result<Self, NoShape> {
        text.parse()
    }
}

impl From<What> for String {
    fn from(what: What) -> Self {
        what.to_string()
    }
}

/// Whether the text is a DNS name (RFC 1123). Names of pods are DNS names too.
fn is_host(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_dns_label)
}

fn is_fingerprint(id: &str) -> bool {
    id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Returns the fingerprint as 64 lower-case hex digits, or the id of a token unchanged. Accepts the forms of audit
/// events and openssl.
#[must_use]
pub fn credential_id(text: &str) -> Option<String> {
    if let Some(id) = text.strip_prefix(TOKEN) {
        return Some(id.to_owned()).filter(|id| !id.is_empty());
    }
    let digits = text.strip_prefix(CERTIFICATE).unwrap_or(text).replace(':', "").to_ascii_lowercase();
    Some(digits).filter(|digits| is_fingerprint(digits))
}

/// The certificate or token with this id, as its holder is now, and the id of that account.
pub async fn credential(store: &mut ReadStore, id: &str) -> Result<Option<(String, Row)>, StoreError> {
    let Some(mut row) = store.rows(CREDENTIAL, &[id.to_owned()]).await?.pop() else { return Ok(None) };
    let holder = taken(&mut row, "id");
    let good = row.get("good").and_then(Value::as_i64) == Some(1);
    row.insert("good".to_owned(), Value::Bool(good));
    Ok(Some((holder, row)))
}

/// The accounts that were found, by id and with the reasons, and further notes.
#[derive(Debug, Default)]
struct Found {
    by: BTreeMap<String, Vec<String>>,
    credential: Option<Row>,
    notes: Vec<String>,
}

impl Found {
    fn add(&mut self, id: &str, by: String) {
        self.by.entry(id.to_owned()).or_default().push(by);
    }
}

/// Returns the answer to `bursar who`, as `--json` prints it; `answers` is empty if nobody stands behind `what`. `now`
/// is the newest state and the configuration, which determine the present classes. If it is `None`, a host is not found
/// by the classes that may serve it.
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
        found.notes.push(format!("{account} stands behind it, but the ledger knows that account only since {since}"));
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
    let cluster = ClusterName(text(row, "cluster"));
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
) -> Result<Found, StoreError> {
    let mut found = Found::default();
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
        What::Host(_) => Some("hosts of classes and exceptions, and no tokens of a host that have ended"),
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
    found: &mut Found,
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
mod tests {
    use jiff::SignedDuration;

    use super::*;
    use crate::identity::{AccountKind, AccountName, DirectoryId, PosixIdentity};
    use crate::ledger::change::{Change, Event};
    use crate::ledger::exception::{Exception, ExceptionKey};
    use crate::ledger::{Account, Lifecycle, Note};
    use crate::plan::testing::World;
    use crate::store::{FILE, Store};

    #[test]
    fn a_text_is_recognized_by_its_form() {
        let what = |text: &str| text.parse::<What>().ok();
        let digits = "9a".repeat(32);
        assert_eq!(what("52503"), Some(What::Uid(52_503)));
        for text in [format!("X509SHA256={digits}"), vec!["9A"; 32].join(":"), digits.clone()] {
            assert_eq!(what(&text), Some(What::Credential(digits.clone())), "{text}");
        }
        assert_eq!(what("JTI=4f0c-1"), Some(What::Credential("4f0c-1".to_owned())));
        assert_eq!(what("tool-foo/web-1.x"), Some(What::Pod("tool-foo".to_owned(), "web-1.x".to_owned())));
        assert_eq!(what("Foo.Tools.example.org"), Some(What::Host("foo.tools.example.org".to_owned())));
        assert_eq!(what("*.foo.example.org"), Some(What::Host("*.foo.example.org".to_owned())));
        assert_eq!(what("ce1"), Some(What::Host("ce1".to_owned())));
        assert_eq!(what("Alice.L@example.org"), Some(What::Mail("Alice.L@example.org".to_owned())));
        for wrong in [
            "",
            "-5",
            "99999999999999999999",
            "X509SHA256=12",
            "JTI=",
            "tool:foo",
            "a b",
            "a_b",
            "@example.org",
            "a@",
            "a@b@c",
            "a b@c",
            "/pod",
            "ns/",
            "a/b/c",
            "a.b/web",
            "a..b",
            "-a.b",
        ] {
            assert_eq!(what(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_question_parses_from_its_own_text() {
        for text in ["52503", "JTI=4f0c", "tool-foo/web", "foo.example.org", "a@b.org"] {
            assert_eq!(text.parse::<What>().expect(text).to_string(), text);
        }
        let digits = format!("X509SHA256={}", "9a".repeat(32));
        assert_eq!(digits.parse::<What>().expect("a fingerprint").to_string(), digits);
    }

    fn served_by(world: &World, host: &str) -> (Vec<String>, Vec<String>) {
        let mut found = Found::default();
        let classes = classes_of_namespaces(&world.ledger, &world.policy);
        served((&world.ledger, &world.policy), &classes, host, None, &mut found);
        (found.by.into_values().flatten().collect(), found.notes)
    }

    #[test]
    fn a_host_leads_to_its_tenant_and_names_exceptions() {
        let mut world = World::new();
        let foo = world.add(AccountKind::Tool, "foo", Some(52_503));
        world.add(AccountKind::Tool, "bar", Some(52_504));
        world.policy.classes.retain(|name, _| name == "tool");
        let class = world.policy.classes.get_mut("tool").expect("a class");
        class.admission.hosts.allow = vec!["{name}.tools.example.org".to_owned()];
        world.cycle();
        let by = "class tool lets it serve {name}.tools.example.org in cluster prod".to_owned();
        let lax = "any tenant of class tool may serve it: rule hosts is not enforced".to_owned();
        assert_eq!(served_by(&world, "foo.tools.example.org"), (vec![by.clone()], vec![lax]));

        world.policy.classes.get_mut("tool").expect("a class").admission.hosts.mode = Mode::Enforce;
        assert_eq!(served_by(&world, "foo.tools.example.org"), (vec![by], Vec::new()));
        assert_eq!(served_by(&world, "tools.example.org"), (Vec::new(), Vec::new()));
        let note = Note { actor: "ann".to_owned(), reason: "x".to_owned(), ticket: None, at: world.now };
        let key = ExceptionKey { account: foo, rule: ExceptedRule::Hosts, cluster: None };
        world.ledger.exceptions.insert(key, Exception { until: world.now, note, proved: None });
        let (_, notes) = served_by(&world, "www.example.org");
        assert_eq!(notes, ["tool:foo may serve it: it is excepted from rule hosts until 2026-05-03T12:00:00Z"]);
    }

    #[test]
    fn a_host_is_served_by_the_class_that_admission_asks_for() {
        let mut world = World::new();
        let foo = world.add(AccountKind::Tool, "foo", Some(52_503));
        world.policy.classes.retain(|name, _| name == "tool");
        world.cycle();
        // Another class selects the tool now; the ledger remembers the first one.
        let mut class = world.policy.classes.remove("tool").expect("a class");
        class.name = "web".to_owned();
        class.admission.hosts.mode = Mode::Enforce;
        class.admission.hosts.allow = vec!["{name}.web.example.org".to_owned()];
        world.policy.classes.insert("web".to_owned(), class);
        world.cycle();
        assert_eq!(world.ledger.tenants_of(&foo).next().map(|(_, tenant)| tenant.class.as_str()), Some("tool"));
        let by = "class web lets it serve {name}.web.example.org in cluster prod".to_owned();
        assert_eq!(served_by(&world, "foo.web.example.org"), (vec![by], Vec::new()));
    }

    #[tokio::test]
    async fn a_suspended_member_of_a_workspace_has_no_access() {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut store, lock) = Store::open(folder.path()).await.expect("a new ledger");
        let day = |day: i8| Timestamp::UNIX_EPOCH + SignedDuration::from_hours(24 * i64::from(day));
        let new = |kind, name: &str| {
            let (id, directory_id) = (AccountId(name.into()), DirectoryId(format!("{name}-id")));
            let account = AccountName { kind, name: name.to_owned() };
            Account { state: Lifecycle::Active, ..Account::new(id, account, "people", directory_id, day(1)) }
        };
        let people = ["ann", "ben", "eve"].map(|name| new(AccountKind::User, name));
        // No class selects eve, so she is no tenant.
        let people = people.map(|person| match person.name.as_str() {
            "eve" => Account { state: Lifecycle::New, ..person },
            _ => person,
        });
        let members =
            people.iter().map(|person| (person.directory_id.clone(), crate::snapshot::Role::Member)).collect();
        let group = Account { members, ..new(AccountKind::Group, "lab") };
        let namespace = Some("workspace-lab".to_owned().try_into().expect("a name"));
        let tenant = Tenant { class: "course".to_owned(), namespace, created_at: day(1) };
        let cluster = ClusterName("prod".to_owned());
        let known = people.iter().chain([&group]).map(|account| Change::Account(Box::new(account.clone())));
        let begin: Vec<Change> = known.chain([Change::Tenant(group.id.clone(), cluster, tenant)]).collect();
        store.write(&lock, &begin, &[], day(1)).await.expect("written");
        let ben = Account { state: Lifecycle::Suspended, since: day(5), ..people[1].clone() };
        store.write(&lock, &[Change::Account(Box::new(ben))], &[], day(5)).await.expect("suspended");
        store.close().await.expect("closed");
        let mut reader = ReadStore::open(&folder.path().join(FILE)).await.expect("readable");
        let pod = What::Pod("workspace-lab".to_owned(), "web".to_owned());
        for (at, expected) in [(None, vec!["user:ann"]), (Some(day(3)), vec!["user:ann", "user:ben"])] {
            let found = answer(&mut reader, None, &pod, at).await.expect("an answer");
            let people = found["answers"][0]["people"].as_array().cloned().unwrap_or_default();
            let with: Vec<_> =
                people.iter().filter(|it| it["access"] == true).filter_map(|it| it["member"].as_str()).collect();
            assert_eq!((with, people.len()), (expected, 3), "{found:#}");
        }
        let query = "SELECT member, at_end FROM access_on WHERE account = 'group:lab' ORDER BY member";
        let rows = reader.rows(query, &[]).await.expect("rows");
        let rows: Vec<_> = rows.iter().map(|row| (text(row, "member"), text(row, "at_end"))).collect();
        let open = |name: &str, end: &str| (format!("user:{name}"), end.to_owned());
        assert_eq!(rows, [open("ann", "9999-12-31T23:59:59Z"), open("ben", "1970-01-06T00:00:00Z")]);
    }

    #[tokio::test]
    async fn a_former_uid_leads_to_its_account_only_until_the_change() {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut store, lock) = Store::open(folder.path()).await.expect("a new ledger");
        let day = |day: i8| Timestamp::UNIX_EPOCH + SignedDuration::from_hours(24 * i64::from(day));
        let name = AccountName { kind: AccountKind::Tool, name: "foo".to_owned() };
        let id = AccountId("foo".into());
        let with = |uid: i64| {
            let (uid, gid) = (uid.try_into().expect("a uid"), uid.try_into().expect("a gid"));
            let posix = Some(PosixIdentity { uid, gid, groups: BTreeSet::new() });
            let account = Account::new(id.clone(), name.clone(), "people", DirectoryId("d".to_owned()), day(1));
            [Change::Account(Box::new(Account { posix, ..account })), Change::Uid(uid, id.clone())]
        };
        store.write(&lock, &with(5_000), &[], day(1)).await.expect("written");
        let adopted = Event {
            actor: "ann".to_owned(),
            account: Some(name.clone()),
            account_id: Some(id.clone()),
            action: "uid adopted".to_owned(),
            reason: "moved".to_owned(),
            ticket: None,
            plan: None,
            detail: json!({"before": 5_000, "after": 6_000}),
        };
        store.write(&lock, &with(6_000), &[adopted], day(10)).await.expect("written");
        store.close().await.expect("closed");
        let mut reader = ReadStore::open(&folder.path().join(FILE)).await.expect("readable");
        let mut ask = async |uid, at| answer(&mut reader, None, &What::Uid(uid), at).await.expect("an answer");
        let now = ask(5_000, None).await;
        let by = now["answers"][0]["found_by"][0].as_str().unwrap_or_default().to_owned();
        assert!(by.starts_with("a former uid: the account has 6000 now"), "{now:#}");
        assert_eq!(ask(5_000, Some(day(5))).await["answers"][0]["uid"], 5_000);
        let later = ask(5_000, Some(day(11))).await;
        let note = json!(["tool:foo had uid 6000 then, and 5000 at another time"]);
        assert_eq!((&later["answers"], &later["notes"]), (&json!([]), &note));
    }
}
