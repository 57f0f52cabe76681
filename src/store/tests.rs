//! Tests of the store on real SQLite files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;

use proptest::prelude::*;
use serde_json::json;
use sqlx::ConnectOptions as _;
use sqlx::sqlite::SqliteConnectOptions;

use super::*;
use crate::contract::exception::ExceptedRule;
use crate::errors::chain;
use crate::identity::{AccountId, AccountKind, AccountName, ClusterName, DirectoryId, HostName, PosixIdentity};
use crate::json_text::JsonText;
use crate::kinds::{ManagedKind, ObjectKey, ObjectKind, ObjectName};
use crate::ledger::change::{Change, Event, RefusalRecord};
use crate::ledger::exception::{Exception, ExceptionKey};
use crate::ledger::gaps::Proved;
use crate::ledger::idle::Idleness;
use crate::ledger::pace::PaceRecord;
use crate::ledger::quota::{OverrideKey, QuotaOverride};
use crate::ledger::realm::RealmAccount;
use crate::ledger::revocation::BulkRevocation;
use crate::ledger::{
    Absence, Account, Certificate, CredentialKey, Delivery, Failure, Lifecycle, Note, ObjectRecord, Order, OrderKind,
    SourceState, Spending, StoppedWorkload, Suspension, Tenant, UnknownCertificate, Unresolved,
};
use crate::snapshot::{Completeness, RejectedEntry, Rejection, Role};

impl Store {
    /// Creates a ledger in a folder of its own.
    pub(crate) async fn scratch() -> (tempfile::TempDir, Self, CycleLock) {
        let folder = tempfile::tempdir().expect("the temporary folder is writable");
        let (store, lock) = Self::create(folder.path()).await.expect("a new ledger opens");
        (folder, store, lock)
    }
}

fn key(id: &AccountId) -> CredentialKey {
    CredentialKey::new(id.clone(), ClusterName("prod".into()))
}

pub(super) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_790_000_000 + second).expect("the time is valid")
}

pub(super) fn account(number: u8, members: &[u8], leaving: bool, state: Lifecycle, second: i64) -> Account {
    let members: BTreeMap<_, _> =
        members.iter().map(|member| (DirectoryId(format!("d{member}")), Role::Member)).collect();
    let (id, entry) = (AccountId(format!("a{number}").into()), DirectoryId(format!("d{number}")));
    let name = AccountName { kind: AccountKind::Tool, name: format!("tool{number}") };
    Account {
        dn: format!("cn=tool{number}"),
        home: Some("/home/x".into()),
        leaving: if leaving { members.keys().cloned().collect() } else { BTreeSet::new() },
        members,
        state,
        generation: second.unsigned_abs(),
        ..Account::new(id, name, "people", entry, at(second))
    }
}

/// Sets every optional field.
fn filled(account: Account, second: i64) -> Account {
    Account {
        name: format!("{}-renamed", account.name),
        posix: Some(PosixIdentity {
            uid: 52503.try_into().expect("the number is a uid"),
            gid: 52503.try_into().expect("the number is a gid"),
            groups: BTreeSet::from([500.try_into().expect("the number is a gid")]),
        }),
        mail: Some("a@example.org".to_owned()),
        display_name: Some("Ä \"quoted\" name".to_owned()),
        ssh_keys: ["ssh-ed25519 AAAA ann".to_owned(), "two".to_owned()].into(),
        disabled: Some("mark: x".to_owned()),
        absence: Some(Absence { since: at(second), counted_at: at(second), seconds: 7, due: at(99) }),
        suspension: Some(Box::new(Suspension::by(note("mining")))),
        revocation: Some(Box::new(note("laptop stolen"))),
        ..account
    }
}

fn rejected(number: u8) -> RejectedEntry {
    RejectedEntry {
        source: "people".to_owned(),
        kind: AccountKind::Tool,
        dn: format!("cn=weird{number}"),
        name: (number > 1).then(|| "weird".to_owned()),
        id: (number > 2).then(|| DirectoryId(format!("d{number}"))),
        disabled: None,
        why: "uid 0".to_owned(),
        reason: match number {
            0 => None,
            1 => Some(Rejection::OtherUid),
            2 => Some(Rejection::NameTaken),
            _ => Some(Rejection::OfAccount { account: AccountId("a1".into()) }),
        },
    }
}

fn refusal(number: u8) -> RefusalRecord {
    RefusalRecord {
        hash: format!("h{number}"),
        limit: "suspend_per_cycle".to_owned(),
        why: "1 left".to_owned(),
        accounts: vec![account(number, &[], false, Lifecycle::New, 0).account_name()],
        parts: vec!["p".to_owned()],
    }
}

fn delivery(home: Option<&str>) -> Delivery {
    Delivery {
        path: "/home/x/.kube/config".into(),
        home: home.map(Into::into),
        mount: home.map(|_| "/home".into()),
        digest: "d".into(),
        at: at(1),
        checked_at: None,
    }
}

fn change() -> impl Strategy<Value = Change> {
    let id = || (0_u8..4).prop_map(|n| AccountId(format!("a{n}").into()));
    let cluster = || ClusterName("prod".into());
    let states = prop::sample::select(vec![Lifecycle::New, Lifecycle::Active, Lifecycle::Suspended]);
    prop_oneof![
        (0_u8..4, prop::collection::vec(0_u8..5, 0..4), any::<bool>(), states, 0_i64..9, any::<bool>()).prop_map(
            |(n, members, leaving, state, second, full)| {
                let account = account(n, &members, leaving, state, second);
                Change::Account(if full { filled(account, second) } else { account }.into())
            }
        ),
        (id(), any::<bool>()).prop_map(|(id, held)| Change::Hold(id, held.then(|| note("hold")))),
        (id(), any::<bool>(), 0_u64..3).prop_map(move |(id, there, n)| Change::Object(
            ObjectKey::from(ObjectName {
                cluster: cluster(),
                kind: ManagedKind::ResourceQuota.into(),
                namespace: (n > 0).then(|| format!("ns{n}").into()),
                name: "bursar".into()
            }),
            there.then(|| ObjectRecord {
                account: id,
                uid: n.to_string().into(),
                wanted: "w".into(),
                observed: "o".into(),
                detail: Some(JsonText::from(&json!({"pods": "16"})))
            }),
        )),
        (id(), 0_u64..3).prop_map(move |(id, n)| Change::Certificate(
            CredentialKey { host: HostName(if n > 1 { "ce1".to_owned() } else { String::new() }), ..key(&id) },
            (n > 0).then(|| Certificate {
                fingerprint: format!("{}-{n}", id.0).into(),
                generation: n,
                subject: "tool:x".to_owned(),
                not_before: at(0),
                not_after: at(9),
                renew_after: at(5),
                bound_to: (n > 1).then(|| "u".to_owned()),
            })
        )),
        (id(), any::<bool>()).prop_map(|(id, there)| Change::Delivery(key(&id), there.then(|| delivery(None)))),
        (id(), any::<bool>()).prop_map(|(id, there)| Change::Requested(key(&id), there.then(|| "aa".to_owned()))),
        (0_u8..2).prop_map(move |n| Change::UnknownCertificate(
            cluster(),
            format!("f{n}"),
            UnknownCertificate { text: "CN=x".to_owned(), since: at(1), not_after: at(9) }
        )),
        (id(), any::<bool>()).prop_map(|(id, there)| Change::SshDelivery(id, there.then(|| delivery(Some("/home/x"))))),
        (id(), any::<bool>()).prop_map(|(id, there)| Change::Failure(
            id,
            ClusterName("prod".into()),
            there.then(|| Failure {
                step: "apply".to_owned(),
                reason: "r".to_owned(),
                since: at(1),
                attempts: 2,
                next_try: at(3),
            })
        )),
        (0_u64..5).prop_map(|n| Change::Approval(format!("h{}", n % 2), (n > 1).then(|| at(5)))),
        (0_u8..4, 0_i64..3).prop_map(|(n, uid)| Change::Uid(
            (3000 + uid).try_into().expect("the number is a uid"),
            AccountId(format!("a{n}").into())
        )),
        (0_i64..3).prop_map(|uid| Change::UsedUid((70_000 + uid).try_into().expect("the number is a uid"), at(uid))),
        (0_u8..4, any::<bool>()).prop_map(|(n, admin)| Change::Tenant(
            AccountId(format!("a{n}").into()),
            ClusterName("prod".into()),
            Tenant {
                class: "tool".to_owned(),
                namespace: (!admin).then(|| serde_json::from_value(json!(format!("tool-{n}"))).expect("a name")),
                created_at: at(0),
            }
        )),
        prop::collection::btree_set((0_u8..5).prop_map(rejected), 0..3).prop_map(Change::Rejected),
        (0_i64..3, 0_u8..4).prop_map(|(number, n)| Change::Order(Order {
            id: number,
            account: AccountId(format!("a{n}").into()),
            what: if n == 2 { OrderKind::AdoptObject } else { OrderKind::Suspend },
            note: note("order"),
            bulk: (n == 1).then(|| "tool".to_owned()),
            object: (n == 2).then(|| "namespace tool-foo".to_owned()),
        })),
        (0_i64..3).prop_map(Change::OrderDone),
        prop::collection::vec((0_u8..5).prop_map(refusal), 0..3).prop_map(Change::Refusals),
        (id(), any::<bool>(), any::<bool>()).prop_map(move |(id, there, scaled)| Change::Stopped(
            id,
            ObjectKey::from(ObjectName {
                cluster: cluster(),
                kind: ObjectKind::of("apps/v1", "Deployment"),
                namespace: Some("ns1".into()),
                name: "web".into()
            }),
            there.then(|| StoppedWorkload { uid: "u".to_owned(), replicas: scaled.then_some(2), at: at(3) }),
        )),
        (1_u64..5).prop_map(|n| Change::Spent(Spending::Suspend, "tool".to_owned(), n, at(1))),
        (0_u64..99).prop_map(Change::LastGeneration),
        (0_u64..99).prop_map(|generation| Change::ClusterMark(ClusterName("prod".into()), generation)),
        (0_u8..3).prop_map(|id| Change::LedgerId(format!("ledger{id}"))),
        quota_and_pace(),
        super::adopted_tests::change(),
    ]
}

fn quota_and_pace() -> impl Strategy<Value = Change> {
    let id = || (0_u8..4).prop_map(|n| AccountId(format!("a{n}").into()));
    let cluster = || ClusterName("prod".into());
    prop_oneof![
        (id(), 0_u8..3).prop_map(move |(id, own)| Change::Settled(id, cluster(), format!("own{own}").into())),
        (id(), any::<bool>(), any::<bool>(), any::<bool>()).prop_map(move |(account, there, ends, here)| {
            let key = OverrideKey { account, resource: "pods".to_owned(), cluster: here.then(cluster) };
            let proved = ends.then(|| Proved { counted_at: at(3), seconds: 7 });
            let given =
                QuotaOverride { amount: "8".to_owned(), until: ends.then(|| at(9)), note: note("more"), proved };
            Change::Override(key, there.then_some(given))
        }),
        (id(), any::<bool>(), any::<bool>(), any::<bool>()).prop_map(move |(account, there, counted, here)| {
            let rule = if counted { ExceptedRule::Images } else { ExceptedRule::Volumes };
            let proved = counted.then(|| Proved { counted_at: at(3), seconds: 7 });
            let given = Exception { until: at(9), note: note("a course"), proved };
            Change::Exception(ExceptionKey { account, rule, cluster: here.then(cluster) }, there.then_some(given))
        }),
        (any::<bool>(), any::<bool>()).prop_map(|(there, stopped)| {
            let pace = PaceRecord {
                revision: "r".to_owned(),
                began: at(1),
                at: at(2),
                last: BTreeSet::from([AccountId("a1".into())]),
                done: 1,
                waiting: 7,
                stopped,
            };
            Change::Pace("tool".to_owned(), there.then_some(pace))
        }),
        (id(), any::<bool>(), any::<bool>()).prop_map(move |(id, there, warned)| {
            let warned_at = warned.then(|| at(4));
            let idle = Idleness { since: at(1), counted_at: at(3), seconds: 2, due: at(9), warned_at };
            Change::Idle(id, cluster(), there.then_some(idle))
        }),
        (id(), 0_i64..9).prop_map(|(id, second)| Change::Used(id, at(second))),
        (id(), any::<bool>()).prop_map(|(id, there)| Change::RealmAccount(
            id,
            "lab".to_owned(),
            RealmAccount::sample(there)
        )),
        (any::<bool>(), 0_u64..3).prop_map(|(there, done)| {
            let [last, earlier] = ["a2", "a1"].map(|id| BTreeSet::from([AccountId(id.into())]));
            let revocation = BulkRevocation { note: note("stolen"), at: at(3), last, earlier, done };
            Change::Revocation("tool".to_owned(), there.then_some(revocation))
        }),
    ]
}

fn note(reason: &str) -> Note {
    Note { actor: "root".to_owned(), reason: reason.to_owned(), ticket: None, at: at(0) }
}

pub(super) fn event(action: &str) -> Event {
    let detail = json!({"b": 1, "a": [null, "x"]});
    Event { ticket: Some("T1".to_owned()), ..Event::new(action, "a 'reason' with \"quotes\"", detail) }
}

fn cycle_end(ended: Timestamp) -> CycleEnd {
    let source = SourceState {
        server: Some("ldap1".to_owned()),
        completeness: Completeness::Partial { why: "size limit".to_owned() },
        entries: 3,
        took_ms: 2,
        read_at: at(1),
        complete_at: Some(at(0)),
        numbers: None,
        way: crate::snapshot::Way::Full,
        compared: None,
        servers: BTreeMap::new(),
        failures: 0,
        unresolved: Unresolved::default(),
    };
    CycleEnd {
        began: at(0),
        ended,
        trigger: "sync".to_owned(),
        sources: BTreeMap::from([("people".to_owned(), source)]),
        report: json!({"actions": 0}),
        shorter: None,
    }
}

#[tokio::test]
async fn old_cycles_keep_a_short_report_and_old_certificates_their_owner() {
    let (folder, mut store, lock) = Store::scratch().await;
    store.write(&lock, &everybody(), &[event("seen")], at(0)).await.expect("the ledger is writable");
    let key = CredentialKey::new(AccountId("a1".into()), ClusterName("prod".into()));
    let day = 24 * 3600;
    for (number, ends) in [(1, day), (2, 30 * day), (3, 60 * day)] {
        let certificate = Certificate {
            fingerprint: format!("{number:064}").into(),
            generation: 1,
            subject: "tool:tool1".to_owned(),
            not_before: at(0),
            not_after: at(ends),
            renew_after: at(0),
            bound_to: None,
        };
        let change = Change::Certificate(key.clone(), Some(certificate));
        store.write(&lock, &[change], &[event("issued")], at(0)).await.expect("the ledger is writable");
    }
    let unknown = |number: u8, ends| {
        let unknown = UnknownCertificate { text: "CN=x".to_owned(), since: at(0), not_after: at(ends) };
        Change::UnknownCertificate(ClusterName("prod".into()), format!("f{number}"), unknown)
    };
    let unknown = [unknown(1, day), unknown(2, 30 * day)];
    store.write(&lock, &unknown, &[event("unknown certificate")], at(0)).await.expect("the ledger is writable");
    for second in [2 * day, 2 * day + 60] {
        let shorter = Some(json!({"left_out": {"failing": 9}}));
        store.finish(&lock, CycleEnd { shorter, ..cycle_end(at(second)) }).await.expect("the ledger is writable");
    }
    let mut reader = ReadStore::open(&folder.path().join(FILE)).await.expect("the ledger opens");
    let mut told = async |query: &'static str| {
        let rows = reader.rows(query, &[]).await.expect("the query is valid");
        rows.iter().map(|row| row.values().map(ToString::to_string).collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
    };
    let reports = told("SELECT report ->> '$.left_out.failing' AS it FROM cycle ORDER BY id").await;
    assert_eq!(reports, ["9", "null"], "the newest report is complete");
    let kept = "SELECT subject, cluster FROM certificate ORDER BY fingerprint";
    assert_eq!(told(kept).await, ["\"\" \"\"", "\"prod\" \"tool:tool1\"", "\"prod\" \"tool:tool1\""]);
    let two_years = 2 * 366 * day;
    store.finish(&lock, cycle_end(at(two_years))).await.expect("the ledger is writable");
    assert_eq!(told("SELECT account_id FROM certificate").await, ["\"a1\"", "\"a1\""]);
    assert_eq!(told("SELECT fingerprint FROM unknown_certificate").await, ["\"f2\""]);
    let (file, memory) = reopened(store, folder.path()).await;
    assert_eq!(file, memory);
}

/// Accounts come first, as in a real history: the file refuses rows of accounts that it does not know.
fn everybody() -> Vec<Change> {
    (0..4).map(|n| Change::Account(account(n, &[], false, Lifecycle::New, 0).into())).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn file_and_memory_stay_equal(batches in prop::collection::vec(prop::collection::vec(change(), 1..12), 1..6)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("the system allows a runtime");
        runtime.block_on(async {
            let (folder, mut store, lock) = Store::scratch().await;
            store.write(&lock, &everybody(), &[event("begin")], at(0)).await.expect("the ledger is writable");
            for (n, batch) in batches.iter().enumerate() {
                let n = i64::try_from(n).expect("the number is small");
                store.write(&lock, batch, &[event("a"), event("b")], at(10 + n)).await.expect("the ledger is writable");
            }
            store.finish(&lock, cycle_end(at(20))).await.expect("the ledger is writable");
            let memory = store.state().clone();
            store.close().await.expect("the ledger closes");
            let mut reader = ReadStore::open(&folder.path().join(FILE)).await.expect("the ledger opens");
            let file = reader.state().await.expect("the ledger is readable");
            assert_eq!(file, memory);
            let (events, _) = reader.verify().await.expect("the chain holds");
            assert_eq!(events, 1 + 2 * i64::try_from(batches.len()).expect("the number is small"));
        });
    }
}

#[tokio::test]
async fn only_create_makes_a_ledger() {
    let folder = tempfile::tempdir().expect("the temporary folder is writable");
    let write = |name: &str| fs::write(folder.path().join(name), "").expect("the folder is writable");
    assert!(is_before_init(folder.path()));
    assert!(matches!(Store::open(folder.path()).await, Err(StoreError::Absent(_))));
    write(FILE);
    assert!(is_before_init(folder.path()), "the first init was killed");
    assert!(matches!(Store::open(folder.path()).await, Err(StoreError::Absent(_))));
    write("ledger.db-wal");
    assert!(!is_before_init(folder.path()), "the WAL may have the content");
    for name in [FILE, "ledger.db-wal"] {
        fs::remove_file(folder.path().join(name)).expect("the file exists");
    }
    write(SEAL_KEY);
    assert!(!is_before_init(folder.path()));
    assert!(matches!(Store::open(folder.path()).await, Err(StoreError::Lost { .. })), "the file is missing");
    write(FILE);
    assert!(matches!(Store::open(folder.path()).await, Err(StoreError::Lost { .. })), "the file is empty");
    let (store, lock) = Store::create(folder.path()).await.expect("the rebuild makes a ledger");
    store.close().await.expect("the ledger closes");
    drop(lock);
    Store::open(folder.path()).await.expect("the ledger exists");
}

#[tokio::test]
async fn a_ledger_that_loses_its_content_while_it_is_open_is_not_created_again() {
    let (folder, mut store, lock) = Store::scratch().await;
    let path = folder.path().join(FILE);
    fs::write(&path, "").expect("the folder is writable");
    assert!(matches!(store.recover(&lock).await, Err(StoreError::Lost { .. })));
    assert!(!has_content(&path).expect("the file exists"));
}

#[tokio::test]
async fn a_restore_over_a_file_without_content_keeps_its_wal() {
    let (folder, mut store, lock) = Store::scratch().await;
    store.write(&lock, &everybody(), &[event("seen")], at(0)).await.expect("the ledger is writable");
    store.close().await.expect("the ledger closes");
    drop(lock);
    let (path, backup) = (folder.path().join(FILE), folder.path().join("backup"));
    fs::rename(&path, &backup).expect("the folder is writable");
    for file in [path.clone(), with(&path, "-wal")] {
        fs::write(file, "").expect("the folder is writable");
    }
    let mut backup = File::open(&backup).expect("the backup exists");
    let how = restore::Restoring { actor: "admin", older: false, ledger_id: "new", now: at(1) };
    let restored = restore::restore(folder.path(), &mut backup, how).await.expect("the backup is intact");
    assert_eq!(restored.forgotten, None, "the file had no events");
    assert!(with(&restored.replaced.expect("the file was moved"), "-wal").exists());
}

#[tokio::test]
async fn a_second_writer_is_refused() {
    let (folder, _store, _lock) = Store::scratch().await;
    assert!(matches!(Store::open(folder.path()).await, Err(StoreError::Busy)));
}

#[tokio::test]
async fn a_file_that_is_not_a_ledger_is_refused_and_the_error_names_the_remedy() {
    let folder = tempfile::tempdir().expect("the temporary folder is writable");
    std::fs::write(folder.path().join(FILE), vec![b'x'; 8192]).expect("the folder is writable");
    let error = Store::open(folder.path()).await.expect_err("the file is not a ledger");
    assert!(error.to_string().contains("bursar ledger restore"), "{error}");
}

#[tokio::test]
async fn triggers_reject_changes_to_the_history() {
    let (_folder, mut store, lock) = Store::scratch().await;
    store.write(&lock, &[], &[event("created"), event("suspended")], at(0)).await.expect("the ledger is writable");
    for statement in [
        "UPDATE event SET reason = 'x'",
        "DELETE FROM event",
        "REPLACE INTO event SELECT id, at, 'nobody', account, account_id, action, reason, ticket, plan, detail, previous, hash FROM event WHERE id = 2",
        "INSERT INTO event SELECT 9, at, actor, account, account_id, action, reason, ticket, plan, detail, hash, hash FROM event WHERE id = 2",
        "INSERT INTO event SELECT 3, at, actor, account, account_id, action, reason, ticket, plan, detail, 'x', hash FROM event WHERE id = 2",
    ] {
        let error =
            sqlx::query(statement).execute(&mut store.connection).await.expect_err("the history is append-only");
        assert!(error.to_string().contains("append-only"), "{error}");
    }
}

#[tokio::test]
async fn a_history_that_was_changed_in_the_file_fails_verification() {
    let (folder, mut store, lock) = Store::scratch().await;
    let events = [event("created"), event("suspended"), event("resumed")];
    store.write(&lock, &[], &events, at(0)).await.expect("the ledger is writable");
    for (forgery, found) in [
        ("UPDATE event SET actor = 'mallory' WHERE id = 2", "event 2 was changed"),
        ("DELETE FROM event WHERE id = 1", "event 2 stands where event 1 should"),
    ] {
        for trigger in ["event_is_never_changed", "event_is_never_removed"] {
            let drop = sqlx::AssertSqlSafe(format!("DROP TRIGGER IF EXISTS {trigger}"));
            sqlx::query(drop).execute(&mut store.connection).await.expect("the owner of the file can drop triggers");
        }
        sqlx::query(forgery).execute(&mut store.connection).await.expect("the history can be forged");
        let mut reader = ReadStore::open(&folder.path().join(FILE)).await.expect("the ledger opens");
        let error = reader.verify().await.expect_err("the chain is broken");
        assert!(error.to_string().contains(found), "{error}");
    }
}

#[tokio::test]
async fn after_a_write_fails_on_a_full_disk_memory_equals_the_file_and_the_store_recovers() {
    let (folder, mut store, lock) = Store::scratch().await;
    store.write(&lock, &everybody(), &[], at(0)).await.expect("the ledger is writable");
    let before = store.state().clone();
    let pages: i64 = sqlx::query_scalar("PRAGMA page_count")
        .fetch_one(&mut store.connection)
        .await
        .expect("the pages can be counted");
    let limit = |pages: i64| sqlx::AssertSqlSafe(format!("PRAGMA max_page_count = {pages}"));
    sqlx::query(limit(pages)).execute(&mut store.connection).await.expect("the size of the file can be limited");
    let many: Vec<_> = (10..250).map(|n| Change::Account(account(n, &[], false, Lifecycle::New, 0).into())).collect();
    let error = store.write(&lock, &many, &[event("seen")], at(1)).await.expect_err("the disk is full");
    assert!(chain(&error).contains("disk is full"), "{}", chain(&error));
    assert!(error.is_of_the_disk() && store.is_stuck());
    assert_eq!(*store.state(), before);
    let refused = store.write(&lock, &many, &[event("seen")], at(2)).await;
    assert!(matches!(refused, Err(StoreError::Stuck)), "the file may know more than memory: {refused:?}");
    store.recover(&lock).await.expect("the new connection has no such limit");
    assert_eq!((store.is_stuck(), store.state()), (false, &before));
    store.write(&lock, &many, &[event("seen")], at(2)).await.expect("the ledger is writable");
    assert_eq!(
        ReadStore::open(&folder.path().join(FILE)).await.expect("the ledger opens").state().await.ok().as_ref(),
        Some(store.state())
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_during_writes_shows_one_moment() {
    let (folder, mut store, lock) = Store::scratch().await;
    store.write(&lock, &everybody(), &[event("begin")], at(0)).await.expect("the ledger is writable");
    let (path, done) = (folder.path().to_owned(), tokio_util::sync::CancellationToken::new());
    let ended = done.clone();
    let copies = tokio::spawn(async move {
        let mut reader = ReadStore::open(&path.join(FILE)).await.expect("the ledger opens");
        let mut lengths = Vec::new();
        while !ended.is_cancelled() {
            let second = i64::try_from(lengths.len()).expect("the number is small");
            let copy = backup::nightly(&mut reader, &path, at(second)).await.expect("the backup is written");
            let plain = path.join("plain.db");
            let (mut from, mut to) = (
                File::open(&copy.path).expect("the backup exists"),
                File::create(&plain).expect("the folder is writable"),
            );
            backup::unpack(&mut from, &mut to).expect("the backup decompresses");
            let mut copied = ReadStore::open(&plain).await.expect("the ledger opens");
            let accounts = copied.state().await.expect("the ledger is readable").accounts.len();
            // Each write adds one account and one event.
            let before = everybody().len();
            assert_eq!(i64::try_from(accounts - before).expect("the number is small"), copy.events - 1);
            lengths.push(copy.events);
        }
        lengths
    });
    for n in 100..250 {
        let change = Change::Account(account(n, &[], false, Lifecycle::New, 0).into());
        store.write(&lock, &[change], &[event("seen")], at(1)).await.expect("a backup does not block writes");
    }
    done.cancel();
    let lengths = copies.await.expect("every backup is complete");
    assert!(lengths.first() < lengths.last() && lengths.is_sorted(), "{lengths:?}");
}

#[tokio::test]
async fn a_cycle_without_changes_writes_one_row() {
    let (_folder, mut store, lock) = Store::scratch().await;
    store.write(&lock, &everybody(), &[event("seen")], at(0)).await.expect("the ledger is writable");
    store.finish(&lock, cycle_end(at(1))).await.expect("the ledger is writable");
    let changes = |store: Store| async move {
        let mut store = store;
        let total: i64 = sqlx::query_scalar("SELECT total_changes()")
            .fetch_one(&mut store.connection)
            .await
            .expect("the query is valid");
        (store, total)
    };
    let (mut store, before) = changes(store).await;
    store.write(&lock, &[Change::Sources(BTreeMap::new())], &[], at(2)).await.expect("nothing to write");
    store.finish(&lock, cycle_end(at(3))).await.expect("the ledger is writable");
    let (_store, after) = changes(store).await;
    assert_eq!(after - before, 1);
}

#[tokio::test]
async fn spending_older_than_the_window_is_deleted() {
    let (folder, mut store, lock) = Store::scratch().await;
    let week = 7 * 24 * 3600;
    let spent = |second| Change::Spent(Spending::Suspend, "tool".to_owned(), 1, at(second));
    store.write(&lock, &[spent(0), spent(100)], &[], at(100)).await.expect("the ledger is writable");
    store.finish(&lock, cycle_end(at(week + 50))).await.expect("the ledger is writable");
    assert_eq!(store.state().spent.len(), 1);
    let (file, memory) = reopened(store, folder.path()).await;
    assert_eq!(file, memory);
}

#[tokio::test]
async fn while_a_process_reads_a_closed_ledger_opening_fails() {
    let folder = tempfile::tempdir().expect("the temporary folder is writable");
    let path = folder.path().join(FILE);
    let (store, lock) = Store::create(folder.path()).await.expect("a new ledger opens");
    store.close().await.expect("the ledger closes");
    drop(lock);
    let mut reader =
        SqliteConnectOptions::new().filename(&path).read_only(true).connect().await.expect("the ledger opens");
    let mut read = reader.begin().await.expect("a long read");
    sqlx::query("SELECT * FROM account").fetch_all(&mut *read).await.expect("the query is valid");
    let error = Store::open(folder.path()).await.expect_err("a read is open");
    assert!(matches!(&error, StoreError::Read(file) if *file == path), "{error}");
    read.commit().await.expect("the read ends");
    Store::open(folder.path()).await.expect("the reader is done");
}

#[tokio::test]
async fn a_reader_does_not_block_closing_the_ledger() {
    let (folder, store, lock) = Store::scratch().await;
    let mut reader = ReadStore::open(&folder.path().join(FILE)).await.expect("the ledger opens");
    reader.state().await.expect("the reader is open and idle");
    store.close().await.expect("closed although a reader is open");
    drop(lock);
    reader.state().await.expect("the reader can still read");
    drop(reader);
    let (store, _lock) = Store::open(folder.path()).await.expect("the ledger can be opened");
    store.close().await.expect("the ledger closes");
    assert!(!folder.path().join("ledger.db-wal").exists());
}

#[tokio::test]
async fn the_group_can_read_the_files_but_not_the_lock() {
    let folder = tempfile::tempdir().expect("the temporary folder is writable");
    let state_dir = folder.path().join("state");
    let (_store, _lock) = Store::create(&state_dir).await.expect("a new ledger opens");
    for (file, mode) in [(".", 0o750), (FILE, 0o640), ("ledger.db-wal", 0o640), ("ledger.lock", 0o600)] {
        let found = fs::metadata(state_dir.join(file)).expect("the file exists").permissions().mode() & 0o777;
        assert_eq!(found, mode, "{file}");
    }
}

/// Returns the state that the file holds, and the state in memory when the store was closed.
async fn reopened(store: Store, state_dir: &Path) -> (LedgerState, LedgerState) {
    let memory = store.state().clone();
    store.close().await.expect("the ledger closes");
    let mut reader = ReadStore::open(&state_dir.join(FILE)).await.expect("the ledger opens");
    (reader.state().await.expect("the ledger is readable"), memory)
}
