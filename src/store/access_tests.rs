//! Compares view `access_on` with a naive replay that records the account after every second.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::tests::{account, at, event};
use super::*;
use crate::identity::{AccountId, AccountKind, ClusterName, DirectoryId};
use crate::ledger::change::Change;
use crate::ledger::{Account, Lifecycle, Tenant};
use crate::snapshot::Role;

#[derive(Debug, Clone)]
enum Step {
    Rename(u8),
    Role(u8, Option<Role>),
    State(Lifecycle),
    /// The next step happens in a later second.
    Later,
}

fn step() -> impl Strategy<Value = Step> {
    let role = prop::sample::select(vec![None, Some(Role::Member), Some(Role::Manager)]);
    let state = prop::sample::select(vec![Lifecycle::Active, Lifecycle::Suspended]);
    prop_oneof![
        (0_u8..3).prop_map(Step::Rename),
        (1_u8..3, role).prop_map(|(member, role)| Step::Role(member, role)),
        state.prop_map(Step::State),
        Just(Step::Later),
        Just(Step::Later),
    ]
}

fn person(number: u8) -> Account {
    Account { kind: AccountKind::User, name: format!("p{number}"), ..account(number, &[], false, Lifecycle::New, 0) }
}

fn done(step: &Step, account: &mut Account, second: i64) {
    match step {
        Step::Rename(name) => account.name = format!("n{name}"),
        Step::Role(member, Some(role)) => {
            account.members.insert(DirectoryId(format!("d{member}")), *role);
        }
        Step::Role(member, None) => drop(account.members.remove(&DirectoryId(format!("d{member}")))),
        Step::State(state) if *state != account.state => (account.state, account.since) = (*state, at(second)),
        Step::State(_) | Step::Later => {}
    }
}

/// Returns the members that the view must show if the query names the account `name`. `stood` is the account as it was
/// at that time.
fn members(stood: &Account, name: &str) -> BTreeSet<(String, String)> {
    let role = |role: &Role| match role {
        Role::Member => "member".to_owned(),
        Role::Manager => "manager".to_owned(),
    };
    let members = stood.members.iter().map(|(id, is)| (format!("user:{}", id.0.replace('d', "p")), role(is)));
    let owner = (stood.kind == AccountKind::User).then(|| (format!("user:{name}"), "owner".to_owned()));
    if stood.state == Lifecycle::Active { members.chain(owner).collect() } else { BTreeSet::new() }
}

async fn check(kind: AccountKind, steps: Vec<Step>) {
    let (folder, mut store, lock) = Store::scratch().await;
    let mut own = Account { kind, name: "n0".to_owned(), ..account(0, &[], false, Lifecycle::Active, 0) };
    let tenant = Tenant { class: "c".to_owned(), namespace: None, created_at: at(0) };
    let known = |account: &Account| Change::Account(account.clone().into());
    let begin = [
        known(&person(1)),
        known(&person(2)),
        known(&own),
        Change::Tenant(AccountId("a0".into()), ClusterName("prod".into()), tenant),
    ];
    store.write(&lock, &begin, &[event("created")], at(0)).await.expect("the ledger is writable");
    let (mut second, mut stood) = (0, BTreeMap::new());
    for step in steps {
        done(&step, &mut own, second);
        store.write(&lock, &[known(&own)], &[], at(second)).await.expect("the ledger is writable");
        stood.insert(second, own.clone());
        second += i64::from(matches!(step, Step::Later));
    }
    store.close().await.expect("the ledger closes");
    let mut reader = ReadStore::open(&folder.path().join(FILE)).await.expect("the ledger opens");
    for (second, then) in stood {
        for name in ["n0", "n1", "n2"] {
            let binds = [format!("{}:{name}", own.kind), format!("{:.0}", at(second))];
            let query = "SELECT member, role FROM access_on WHERE account = ?1 AND at_start <= ?2 AND at_end > ?2";
            let rows = reader.rows(query, &binds).await.expect("the query is valid");
            let text = |value: &serde_json::Value| value.as_str().expect("the value is a text").to_owned();
            let found: BTreeSet<_> = rows.iter().map(|row| (text(&row["member"]), text(&row["role"]))).collect();
            // The present name of an account finds its whole history. A former name finds only the time during which
            // the account had that name.
            let is_asked_for = name == own.name || name == then.name;
            let expected = if is_asked_for { members(&then, name) } else { BTreeSet::new() };
            assert_eq!(found, expected, "{name} at {second}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn access_on_agrees_with_a_replay(
        kind in prop::sample::select(vec![AccountKind::Tool, AccountKind::User]),
        steps in prop::collection::vec(step(), 1..24),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("the system allows a runtime");
        runtime.block_on(check(kind, steps));
    }
}
