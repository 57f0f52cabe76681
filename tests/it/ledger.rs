//! The ledger as administrators read it: with plain `sqlite3`, by the examples of `docs/ledger.md`, as a member of the
//! group, and while the daemon writes.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::world::runtime;
use bursar::contract::exception::ExceptedRule;
use bursar::identity::{AccountId, AccountKind, AccountName, ClusterName, DirectoryId, PosixIdentity};
use bursar::kinds::{ManagedKind, ObjectKey};
use bursar::ledger::change::{Change, Event};
use bursar::ledger::exception::{Exception, ExceptionKey};
use bursar::ledger::idle::Idleness;
use bursar::ledger::quota::{OverrideKey, QuotaOverride};
use bursar::ledger::realm::RealmAccount;
use bursar::ledger::{
    Absence, Account, Archive, Certificate, CredentialKey, Delivery, Failure, Lifecycle, Note, ObjectRecord, Tenant,
};
use bursar::snapshot::Role;
use bursar::store::{FILE, Store, holding_the_wal};
use bursar_testkit::folder::Folder;
use jiff::Timestamp;
use serde_json::json;

const DOCUMENT: &str = include_str!("../../docs/ledger.md");
pub const VIEWS: [&str; 15] = [
    "tools",
    "users",
    "admins",
    "memberships",
    "namespaces",
    "quotas",
    "exceptions",
    "expiring_certificates",
    "failing",
    "pending_removals",
    "history",
    "access_on",
    "archives",
    "idle",
    "realm_users",
];

fn day(text: &str) -> Timestamp {
    format!("2026-{text}:00:00Z").parse().expect("the time is valid")
}

fn account(kind: AccountKind, name: &str, uid: u32) -> Account {
    let number = i64::from(uid);
    let (id, entry) = (AccountId(format!("id-{name}").into()), DirectoryId(format!("entry-{name}")));
    Account {
        dn: format!("cn={name}"),
        posix: Some(PosixIdentity {
            uid: number.try_into().expect("the number is valid"),
            gid: number.try_into().expect("the number is valid"),
            groups: BTreeSet::new(),
        }),
        home: Some(format!("/data/project/{name}").into()),
        ..Account::new(id, AccountName { kind, name: name.to_owned() }, "people", entry, day("05-01T08"))
    }
}

fn served(account: Account) -> Account {
    Account { state: Lifecycle::Active, generation: 1, ..account }
}

fn maintained(account: Account, people: &[&str]) -> Account {
    let member = |name: &&str| (DirectoryId(format!("entry-{name}")), Role::Member);
    Account { members: people.iter().map(member).collect(), ..account }
}

fn tenant(account: &Account, class: &str, namespace: Option<&str>) -> Change {
    let namespace = namespace.map(|name| name.to_owned().try_into().expect("the name is valid"));
    let tenant = Tenant { class: class.to_owned(), namespace, created_at: account.since };
    Change::Tenant(account.id.clone(), ClusterName("prod".into()), tenant)
}

fn key(account: &Account) -> CredentialKey {
    CredentialKey::new(account.id.clone(), ClusterName("prod".into()))
}

fn certificate(account: &Account, digits: &str, not_after: &str, renew_after: &str) -> Change {
    let certificate = Certificate {
        fingerprint: digits.repeat(8).into(),
        generation: account.generation,
        subject: account.account_name().to_string(),
        not_before: day("05-29T08"),
        not_after: day(not_after),
        renew_after: day(renew_after),
        bound_to: None,
    };
    Change::Certificate(key(account), Some(certificate))
}

fn quota(account: &Account, namespace: &str) -> Change {
    let key = ObjectKey::new(&ClusterName("prod".into()), ManagedKind::ResourceQuota, Some(namespace), "bursar");
    let record = ObjectRecord {
        account: account.id.clone(),
        uid: "u".into(),
        wanted: "w".into(),
        observed: "o".into(),
        detail: Some((&json!({"limits.memory": "8Gi", "pods": "16"})).into()),
    };
    Change::Object(key, Some(record))
}

fn archive(account: &Account) -> Change {
    let archive = Archive {
        account: account.id.clone(),
        cluster: ClusterName("prod".into()),
        namespace: "tool-foo".to_owned().try_into().expect("the name is valid"),
        generation: account.generation,
        digest: "5f2e8c1d".repeat(8),
        bytes: 14_230,
        objects: 23,
        secrets: 2,
        left_out: 0,
        at: day("05-11T09"),
    };
    Change::Archive("tool-foo.prod-2026-05-11T090000Z.tar.zst".to_owned(), archive)
}

fn more_pods(account: &Account) -> Change {
    let key = OverrideKey { account: account.id.clone(), resource: "pods".to_owned(), cluster: None };
    let ticket = Some("T123".to_owned());
    let note = Note { actor: "carol".to_owned(), reason: "a course".to_owned(), ticket, at: account.since };
    let until = "2027-01-01T00:00:00Z".parse().expect("the time is valid");
    Change::Override(key, Some(QuotaOverride { amount: "16".to_owned(), until: Some(until), note, proved: None }))
}

fn excepted(account: &Account) -> Change {
    let key = ExceptionKey { account: account.id.clone(), rule: ExceptedRule::Images, cluster: None };
    let ticket = Some("T124".to_owned());
    let note = Note { actor: "carol".to_owned(), reason: "a course".to_owned(), ticket, at: account.since };
    let until = "2026-09-01T00:00:00Z".parse().expect("the time is valid");
    Change::Exception(key, Some(Exception { until, note, proved: None }))
}

fn unused(account: &Account) -> Change {
    let (since, due) = (day("05-02T06"), day("06-01T06"));
    let idle =
        Idleness { since, counted_at: day("05-30T06"), seconds: 28 * 86_400, due, warned_at: Some(day("05-25T06")) };
    Change::Idle(account.id.clone(), ClusterName("prod".into()), Some(idle))
}

fn in_realm(account: &Account) -> Change {
    let user = RealmAccount {
        user_id: Some("2b0e1c52-61f7-4d0a-9f4e-0d5c3a9b7e11".to_owned()),
        asked: day("05-01T08").as_millisecond(),
        adopted: false,
        name: account.name.clone(),
        mail: account.mail.clone(),
        display_name: None,
        enabled: true,
        mail_due: true,
        mailed_at: Some(day("05-01T08")),
    };
    Change::RealmAccount(account.id.clone(), "research".to_owned(), user)
}

fn known(account: &Account) -> Change {
    Change::Account(account.clone().into())
}

fn uid(account: &Account) -> Change {
    Change::Uid(account.posix.as_ref().expect("the account has a uid").uid, account.id.clone())
}

fn event(account: &Account, actor: &str, action: &str, reason: &str, ticket: Option<&str>) -> Event {
    Event {
        actor: actor.to_owned(),
        account: Some(account.account_name()),
        account_id: Some(account.id.clone()),
        action: action.to_owned(),
        reason: reason.to_owned(),
        ticket: ticket.map(str::to_owned),
        plan: None,
        detail: json!({}).into(),
    }
}

/// Writes the history that the document describes.
pub async fn story(state_dir: &Path) -> Store {
    let (mut store, lock) = Store::create(state_dir).await.expect("the ledger can be opened");
    let people = [
        Account { mail: Some("alice@example.org".to_owned()), ..account(AccountKind::User, "alice", 3001) },
        account(AccountKind::User, "bob", 3002),
        served(account(AccountKind::User, "carol", 3003)),
    ];
    let carol = people[2].clone();
    let mut web = maintained(served(account(AccountKind::Tool, "foo", 52503)), &["alice"]);
    let mut old = maintained(served(account(AccountKind::Tool, "old", 52504)), &["bob"]);
    let mut begin: Vec<Change> =
        people.iter().chain([&web, &old]).flat_map(|account| [known(account), uid(account)]).collect();
    begin.extend([tenant(&carol, "admin", None), tenant(&web, "tool", Some("tool-foo"))]);
    begin.extend([tenant(&old, "tool", Some("tool-old")), quota(&web, "tool-foo"), quota(&old, "tool-old")]);
    begin.push(more_pods(&web));
    begin.push(excepted(&web));
    begin.push(Change::Used(carol.id.clone(), day("05-30T07")));
    begin.push(unused(&old));
    begin.push(in_realm(&people[0]));
    begin.push(certificate(&carol, "11aa22bb", "06-06T08", "06-03T18"));
    let created = event(&web, "bursar", "created", "new", None);
    store.write(&lock, &begin, &[created], day("05-01T08")).await.expect("the ledger can be written");

    web = maintained(web, &["alice", "bob"]);
    store.write(&lock, &[known(&web)], &[], day("05-05T08")).await.expect("bob joins");

    web = Account { state: Lifecycle::Suspended, since: day("05-10T09"), ..web };
    let suspended = event(&web, "carol", "suspended", "mining", Some("T9"));
    store.write(&lock, &[known(&web)], &[suspended], web.since).await.expect("the ledger can be written");
    store.write(&lock, &[archive(&web)], &[], day("05-11T09")).await.expect("the ledger can be written");
    web = Account { state: Lifecycle::Active, since: day("05-12T09"), generation: 2, ..web };
    let resumed = event(&web, "carol", "resumed", "talked to them", Some("T9"));
    store.write(&lock, &[known(&web)], &[resumed], web.since).await.expect("the ledger can be written");

    web = Account { name: "web".to_owned(), ..web };
    let renamed = event(&web, "bursar", "renamed", "renamed in the directory", None);
    store.write(&lock, &[known(&web)], &[renamed], day("05-20T08")).await.expect("the ledger can be written");
    web = maintained(web, &["bob"]);
    store.write(&lock, &[known(&web)], &[], day("05-25T08")).await.expect("alice leaves");
    let certificate = certificate(&web, "9a19ac7c", "06-05T08", "06-02T18");
    store.write(&lock, &[certificate], &[], day("05-29T08")).await.expect("the ledger can be written");

    let (since, due) = (day("05-31T20"), day("06-01T20"));
    old = Account { absence: Some(Absence { since, counted_at: since, seconds: 0, due }), ..old };
    store.write(&lock, &[known(&old)], &[], since).await.expect("the ledger can be written");
    old = Account { leaving: old.members.keys().cloned().collect(), ..old };
    let failure = Failure {
        step: "home".to_owned(),
        reason: "the disk quota is used up".to_owned(),
        since: day("05-31T21"),
        attempts: 4,
        next_try: day("06-01T01"),
    };
    let failing = Change::Failure(old.id.clone(), ClusterName("prod".into()), Some(failure));
    let delivery = Delivery {
        path: "/data/project/foo/.kube/config".into(),
        home: None,
        mount: None,
        digest: "d".into(),
        at: day("05-29T08"),
        checked_at: None,
    };
    let file = "/data/project/foo/.ssh/authorized_keys".into();
    let keys = Delivery { path: file, home: Some("/data/project/foo".into()), ..delivery.clone() };
    web.ssh_keys = ["ssh-ed25519 AAAA web".to_owned()].into();
    let keys = [known(&web), Change::SshDelivery(web.id.clone(), Some(keys))];
    store.write(&lock, &keys, &[], day("05-31T22")).await.expect("the ledger can be written");
    let delivered = Change::Delivery(key(&web), Some(delivery));
    store
        .write(&lock, &[known(&old), failing, delivered], &[], day("05-31T22"))
        .await
        .expect("the ledger can be written");
    store
}

pub fn sqlite3(ledger: &Path, statement: &str) -> Output {
    let mut command = Command::new("sqlite3");
    command.args(["-header", "-column"]).arg(ledger).arg(statement).current_dir("/");
    command.output().expect("sqlite3 (`make packages` installs it)")
}

/// Returns what a command printed, without the blanks at the ends of lines.
pub fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// Returns the statements of the document, with the answers that it shows.
fn examples() -> Vec<(&'static str, &'static str)> {
    let blocks = DOCUMENT.split("```sql\n").skip(1);
    blocks
        .filter_map(|block| {
            let (statement, rest) = block.split_once("```\n```\n")?;
            Some((statement, rest.split_once("```").map_or(rest, |(answer, _)| answer)))
        })
        .collect()
}

#[test]
fn every_example_of_the_document_gives_the_answer_that_it_shows() {
    let folder = Folder::create("ledger-document");
    let runtime = runtime();
    let store = runtime.block_on(story(folder.path()));
    runtime.block_on(store.close()).expect("the ledger closes");
    let ledger = folder.path().join(FILE);
    let mut wrong = String::new();
    for (statement, answer) in examples() {
        let found = printed(&sqlite3(&ledger, statement));
        if found != answer {
            writeln!(wrong, "{statement}```\n```\n{found}```\n").expect("writing to a string cannot fail");
        }
    }
    assert!(wrong.is_empty(), "docs/ledger.md should say:\n\n{wrong}");
}

#[test]
fn the_document_has_an_example_of_every_view() {
    let examples = examples();
    for view in VIEWS {
        assert!(DOCUMENT.contains(&format!("\n## {view}\n")), "{view} has no section");
        let from = format!("FROM {view}");
        let asked = |(statement, _): &(&str, &str)| {
            statement.split(&from).skip(1).any(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
        };
        assert!(examples.iter().any(asked), "{view} has no example");
    }
}

#[test]
fn every_view_has_the_documented_columns() {
    let folder = Folder::create("ledger-columns");
    let runtime = runtime();
    let store = runtime.block_on(story(folder.path()));
    let promised = [
        "id name uid gid home namespace state since generation certificate_until delivered_at source directory_id last_error last_use",
        "id name uid gid home mail state since is_admin source directory_id last_error last_use",
        "name uid since certificate_until",
        "account member role since",
        "cluster namespace class account uid state created_at",
        "namespace resource amount from_class override_ticket override_until",
        "account cluster rule until ticket actor reason at",
        "account cluster fingerprint not_after renew_after kind host",
        "account step reason since attempts next_try",
        "account what absent_since on",
        "at actor account action reason ticket plan detail",
        "account member namespace role at_start at_end",
        "account cluster namespace file at objects secrets left_out bytes digest",
        "account cluster since on warned_at",
        "account realm name user_id state origin mailed_at",
    ];
    for (view, columns) in VIEWS.into_iter().zip(promised) {
        let found = printed(&sqlite3(&folder.path().join(FILE), &format!("SELECT * FROM {view}")));
        let header: Vec<&str> =
            found.lines().next().expect("the history has a row in each view").split_whitespace().collect();
        assert_eq!(header.join(" "), columns, "{view}");
    }
    runtime.block_on(store.close()).expect("the ledger closes");
}

#[test]
fn a_reader_that_holds_the_wal_is_named_and_the_wal_shrinks_afterwards() {
    let folder = Folder::create("ledger-wal");
    let runtime = runtime();
    let (mut store, lock) = runtime.block_on(Store::create(folder.path())).expect("the ledger can be opened");
    let mut command = Command::new("sqlite3");
    command.arg("-readonly").arg(folder.path().join(FILE)).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut shell = command.spawn().expect("sqlite3 (`make packages` installs it)");
    let (mut asks, answers) =
        (shell.stdin.take().expect("the child has pipes"), shell.stdout.take().expect("the child has pipes"));
    writeln!(asks, "BEGIN; SELECT count(*) FROM account;").expect("the shell reads its input");
    BufReader::new(answers).lines().next().expect("the shell answers").expect("the shell answers");
    let foo = account(AccountKind::Tool, "foo", 52503);
    let mut write = |reason: &str| {
        let event = event(&foo, "bursar", "seen", reason, None);
        runtime.block_on(store.write(&lock, &[], &[event], foo.since)).expect("a reader does not block writers");
    };
    write("short");
    assert_eq!(holding_the_wal(folder.path()), None);
    for _ in 0..9 {
        write(&"x".repeat(8 << 20));
    }
    let (length, readers) = holding_the_wal(folder.path()).expect("the WAL has grown");
    assert!(length > 64 && readers.len() == 1, "{length} {readers:?}");
    assert!(readers[0].starts_with(&format!("sqlite3 (pid {}, ", shell.id())), "{readers:?}");
    drop(asks);
    shell.wait().expect("the process can be waited for");
    assert_eq!(holding_the_wal(folder.path()), None, "no reader is left");
    write("one");
    write("two");
    let length = std::fs::metadata(folder.path().join("ledger.db-wal")).expect("the path exists").len();
    assert!(length <= 4 << 20, "{length}");
}
