use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::directory::Role;
use crate::identity::{AccountId, AccountKind, ClusterName, DirectoryId};
use crate::ledger::change::{Change, Event};
use crate::ledger::{
    Account, Certificate, Delivery, Failure, Lifecycle, Note, ObjectKey, ObjectRecord, Spending, Tenant,
};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_790_000_000 + second).expect("a time")
}

fn account(number: u8, members: &[u8], leaving: bool, state: Lifecycle, second: i64) -> Account {
    let members: BTreeMap<_, _> =
        members.iter().map(|member| (DirectoryId(format!("d{member}")), Role::Member)).collect();
    Account {
        id: AccountId(format!("a{number}")),
        kind: AccountKind::Tool,
        name: format!("tool{number}"),
        kubernetes_name: format!("tool{number}"),
        source: "people".to_owned(),
        directory_id: DirectoryId(format!("d{number}")),
        dn: format!("cn=tool{number}"),
        posix: None,
        home: Some("/home/x".into()),
        mail: None,
        display_name: None,
        disabled: None,
        leaving: if leaving { members.keys().cloned().collect() } else { BTreeSet::new() },
        members,
        absence: None,
        state,
        since: at(second),
        suspension: None,
        generation: second.unsigned_abs(),
        revocation: None,
    }
}

fn change() -> impl Strategy<Value = Change> {
    let id = || (0_u8..4).prop_map(|n| AccountId(format!("a{n}")));
    let cluster = || ClusterName("prod".to_owned());
    let states = prop::sample::select(vec![Lifecycle::New, Lifecycle::Active, Lifecycle::Suspended]);
    prop_oneof![
        (0_u8..4, prop::collection::vec(0_u8..5, 0..4), any::<bool>(), states, 0_i64..9).prop_map(
            |(n, members, leaving, state, second)| Change::Account(Box::new(account(
                n, &members, leaving, state, second
            )))
        ),
        (id(), any::<bool>()).prop_map(|(id, held)| Change::Hold(id, held.then(|| note("hold")))),
        (id(), any::<bool>(), 0_u64..3).prop_map(move |(id, there, n)| Change::Object(
            ObjectKey {
                cluster: cluster(),
                api_version: "v1".to_owned(),
                kind: "ResourceQuota".to_owned(),
                namespace: (n > 0).then(|| format!("ns{n}")),
                name: "bursar".to_owned()
            },
            there.then(|| ObjectRecord {
                account: id,
                uid: n.to_string(),
                wanted: "w".to_owned(),
                observed: "o".to_owned(),
                detail: Some(json!({"pods": "16"}))
            }),
        )),
        (id(), 0_u64..3).prop_map(move |(id, n)| Change::Certificate(
            id.clone(),
            ClusterName("prod".to_owned()),
            (n > 0).then(|| Certificate {
                fingerprint: format!("{}-{n}", id.0),
                generation: n,
                subject: "tool:x".to_owned(),
                not_before: at(0),
                not_after: at(9),
                renew_after: at(5),
            })
        )),
        (id(), any::<bool>()).prop_map(|(id, there)| Change::Delivery(
            id,
            ClusterName("prod".to_owned()),
            there.then(|| Delivery {
                path: "/home/x/.kube/config".into(),
                digest: "d".to_owned(),
                at: at(1),
                checked_at: None,
            })
        )),
        (id(), any::<bool>()).prop_map(|(id, there)| Change::Failure(
            id,
            ClusterName("prod".to_owned()),
            there.then(|| Failure {
                step: "apply".to_owned(),
                reason: "r".to_owned(),
                since: at(1),
                attempts: 2,
                next_try: at(3),
            })
        )),
        (0_u64..5).prop_map(|n| Change::Approval(format!("h{}", n % 2), (n > 1).then(|| at(5)))),
        (1_u64..5).prop_map(|n| Change::Spent(Spending::Suspend, "tool".to_owned(), n, at(1))),
        (0_u64..99).prop_map(Change::LastGeneration),
    ]
}

fn note(reason: &str) -> Note {
    Note { actor: "root".to_owned(), reason: reason.to_owned(), ticket: None, at: at(0) }
}

fn event(action: &str) -> Event {
    Event {
        actor: "bursar".to_owned(),
        account: None,
        account_id: None,
        action: action.to_owned(),
        reason: "a 'reason' with \"quotes\"".to_owned(),
        ticket: Some("T1".to_owned()),
        plan: None,
        detail: json!({"b": 1, "a": [null, "x"]}),
    }
}

/// Accounts first, as every real history has them: the file refuses rows of nobody.
fn everybody() -> Vec<Change> {
    (0..4).map(|n| Change::Account(Box::new(account(n, &[], false, Lifecycle::New, 0)))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn file_and_memory_never_drift_apart(batches in prop::collection::vec(prop::collection::vec(change(), 1..12), 1..6)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let folder = tempfile::tempdir().expect("a folder");
            let (mut store, lock) = Store::open(folder.path()).await.expect("a new ledger");
            store.write(&lock, &everybody(), &[event("begin")], at(0)).await.expect("written");
            for (n, batch) in batches.iter().enumerate() {
                let n = i64::try_from(n).expect("few");
                store.write(&lock, batch, &[event("a"), event("b")], at(10 + n)).await.expect("written");
            }
            let memory = store.state().clone();
            store.close().await.expect("closed");
            let mut reader = ReadStore::open(&folder.path().join(FILE)).await.expect("readable");
            let file = reader.state().await.expect("loaded");
            assert_eq!(file, memory);
            let (events, _) = reader.verify().await.expect("the chain holds");
            assert_eq!(events, 1 + 2 * i64::try_from(batches.len()).expect("few"));
        });
    }
}

#[tokio::test]
async fn a_second_writer_is_told_to_wait() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_store, _lock) = Store::open(folder.path()).await.expect("a new ledger");
    assert!(matches!(Store::open(folder.path()).await, Err(StoreError::Busy)));
}

#[tokio::test]
async fn a_file_that_is_no_ledger_is_refused_with_the_cure() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join(FILE), vec![b'x'; 8192]).expect("a file");
    let error = Store::open(folder.path()).await.expect_err("no ledger");
    assert!(error.to_string().contains("bursar ledger restore"), "{error}");
}

#[tokio::test]
async fn history_cannot_be_changed_by_hand() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut store, lock) = Store::open(folder.path()).await.expect("a new ledger");
    store.write(&lock, &[], &[event("created")], at(0)).await.expect("written");
    for statement in ["UPDATE event SET reason = 'x'", "DELETE FROM event"] {
        let error = sqlx::query(statement).execute(&mut store.connection).await.expect_err("append-only");
        assert!(error.to_string().contains("append-only"), "{error}");
    }
}

#[tokio::test]
async fn access_lasts_while_a_member_belongs_and_the_tool_is_active() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut store, lock) = Store::open(folder.path()).await.expect("a new ledger");
    let mut alice = account(9, &[], false, Lifecycle::New, 0);
    alice.kind = AccountKind::User;
    alice.name = "alice".to_owned();
    let active =
        |members: &[u8], since| Change::Account(Box::new(account(1, members, false, Lifecycle::Active, since)));
    let tenant = Tenant { class: "tool".to_owned(), namespace: None, created_at: at(0) };
    let suspended = Change::Account(Box::new(account(1, &[9], false, Lifecycle::Suspended, 30)));
    let begin = [
        Change::Account(Box::new(alice)),
        active(&[], 0),
        Change::Tenant(AccountId("a1".to_owned()), ClusterName("prod".to_owned()), tenant),
    ];
    store.write(&lock, &begin, &[], at(0)).await.expect("written");
    store.write(&lock, &[active(&[9], 0)], &[], at(10)).await.expect("joins");
    store.write(&lock, &[suspended], &[], at(30)).await.expect("suspended");
    store.write(&lock, &[active(&[9], 40)], &[], at(40)).await.expect("resumed");
    store.write(&lock, &[active(&[], 40)], &[], at(50)).await.expect("leaves");
    store.close().await.expect("closed");
    let mut reader = ReadStore::open(&folder.path().join(FILE)).await.expect("readable");
    let rows = reader
        .rows("SELECT member, at_start, at_end FROM access_on WHERE account = 'tool:tool1' ORDER BY at_start", &[])
        .await
        .expect("rows");
    let spans: Vec<_> = rows.iter().map(|row| (row["at_start"].clone(), row["at_end"].clone())).collect();
    let open: Vec<_> = reader.rows("SELECT at_end FROM activity WHERE at_end > '9'", &[]).await.expect("rows");
    assert_eq!(open[0]["at_end"], "9999-12-31T23:59:59Z");
    let text = |second| json!(format!("{:.0}", at(second)));
    assert_eq!(spans, [(text(10), text(30)), (text(40), text(50))]);
    assert!(rows.iter().all(|row| row["member"] == "user:alice"));
}
