//! `access_on` against a replay by hand, second by second, of random histories: members come, go and change their role,
//! the tool is suspended, resumed and renamed.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use proptest::prelude::*;

use super::{FILE, ReadStore, Store};
use crate::directory::Role;
use crate::identity::{AccountId, AccountKind, ClusterName, DirectoryId};
use crate::ledger::change::Change;
use crate::ledger::{Account, Lifecycle, Tenant};

/// Something that happens to the tool.
#[derive(Debug, Clone)]
enum Happening {
    Joins(u8, Role),
    Marked(u8),
    Leaves(u8),
    Active(bool),
    Renamed(u8),
    Placed,
}

fn happening() -> impl Strategy<Value = Happening> {
    let role = prop_oneof![Just(Role::Member), Just(Role::Manager)];
    prop_oneof![
        4 => (0_u8..3, role).prop_map(|(who, role)| Happening::Joins(who, role)),
        1 => (0_u8..3).prop_map(Happening::Marked),
        2 => (0_u8..3).prop_map(Happening::Leaves),
        3 => any::<bool>().prop_map(Happening::Active),
        2 => (0_u8..3).prop_map(Happening::Renamed),
        1 => Just(Happening::Placed),
    ]
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_790_000_000 + second).expect("a time")
}

fn account(kind: AccountKind, id: &str, name: &str) -> Account {
    Account {
        id: AccountId(id.to_owned()),
        kind,
        name: name.to_owned(),
        kubernetes_name: id.to_owned(),
        source: "people".to_owned(),
        directory_id: DirectoryId(id.to_owned()),
        dn: format!("cn={name}"),
        posix: None,
        home: None,
        mail: None,
        display_name: None,
        disabled: None,
        members: BTreeMap::new(),
        leaving: BTreeSet::new(),
        absence: None,
        state: Lifecycle::New,
        since: at(0),
        suspension: None,
        generation: 0,
        revocation: None,
    }
}

fn person(who: u8) -> DirectoryId {
    DirectoryId(format!("p{who}"))
}

/// The tool after something happened to it.
fn after(tool: &Account, what: &Happening, now: Timestamp) -> Account {
    let mut tool = tool.clone();
    match what {
        Happening::Joins(who, role) => {
            tool.members.insert(person(*who), *role);
            tool.leaving.remove(&person(*who));
        }
        Happening::Marked(who) => {
            if tool.members.contains_key(&person(*who)) {
                tool.leaving.insert(person(*who));
            }
        }
        Happening::Leaves(who) => {
            tool.members.remove(&person(*who));
            tool.leaving.remove(&person(*who));
        }
        Happening::Active(active) => {
            let state = match (tool.state, active) {
                (Lifecycle::New, false) => Lifecycle::New,
                (_, true) => Lifecycle::Active,
                (_, false) => Lifecycle::Suspended,
            };
            if state != tool.state {
                (tool.state, tool.since) = (state, now);
            }
        }
        Happening::Renamed(name) => tool.name = format!("name{name}"),
        Happening::Placed => {}
    }
    tool
}

/// Who could use the tool in one second: its name, the member, the role.
type Access = BTreeSet<(String, String, String)>;

/// By hand: the state after all that happened up to this second, and the name that the tool has at the end beside the
/// one it had then.
fn by_hand(states: &[(i64, Account, bool)], second: i64) -> Access {
    let Some((_, tool, placed)) = states.iter().rev().find(|(then, ..)| *then <= second) else { return Access::new() };
    let last = states.last().map_or(&tool.name, |(_, last, _)| &last.name);
    if tool.state != Lifecycle::Active || !placed {
        return Access::new();
    }
    let role = |role: &Role| if *role == Role::Manager { "manager" } else { "member" }.to_owned();
    let names = BTreeSet::from([&tool.name, last]);
    let of = |name: &String| {
        let name = format!("tool:{name}");
        tool.members.iter().map(move |(member, at)| (name.clone(), format!("user:{member}"), role(at)))
    };
    names.into_iter().flat_map(of).collect()
}

async fn written(history: &[(Happening, i64)]) -> (tempfile::TempDir, Vec<(i64, Account, bool)>) {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut store, lock) = Store::open(folder.path()).await.expect("a new ledger");
    let mut tool = account(AccountKind::Tool, "t", "name0");
    let people = (0..3).map(|who| account(AccountKind::User, &format!("p{who}"), &format!("p{who}")));
    let begin: Vec<Change> = people.chain([tool.clone()]).map(|account| Change::Account(Box::new(account))).collect();
    store.write(&lock, &begin, &[], at(0)).await.expect("written");
    let (mut second, mut placed) = (0, false);
    let mut states = vec![(second, tool.clone(), placed)];
    for (what, later) in history {
        second += later;
        let now = at(second);
        tool = after(&tool, what, now);
        let mut changes = vec![Change::Account(Box::new(tool.clone()))];
        if matches!(what, Happening::Placed) && !placed {
            placed = true;
            let namespace = "tool-t".to_owned().try_into().expect("a name");
            let tenant = Tenant { class: "tool".to_owned(), namespace: Some(namespace), created_at: now };
            changes.push(Change::Tenant(tool.id.clone(), ClusterName("prod".to_owned()), tenant));
        }
        store.write(&lock, &changes, &[], now).await.expect("written");
        states.push((second, tool.clone(), placed));
    }
    store.close().await.expect("closed");
    (folder, states)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(48) })]

    #[test]
    fn access_on_is_what_a_replay_by_hand_gives(history in prop::collection::vec((happening(), 0_i64..3), 1..25)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (states, rows) = runtime.block_on(async {
            let (folder, states) = written(&history).await;
            let mut reader = ReadStore::open(&folder.path().join(FILE)).await.expect("readable");
            (states, reader.rows("SELECT * FROM access_on", &[]).await.expect("rows"))
        });
        let text = |row: &serde_json::Map<String, serde_json::Value>, key: &str| {
            row[key].as_str().unwrap_or_default().to_owned()
        };
        for second in 0..=states.last().map_or(0, |(second, ..)| second + 2) {
            let moment = format!("{:.0}", at(second));
            let then = rows.iter().filter(|row| text(row, "at_start") <= moment && text(row, "at_end") > moment);
            let found: Access =
                then.map(|row| (text(row, "account"), text(row, "member"), text(row, "role"))).collect();
            prop_assert_eq!(found, by_hand(&states, second), "in second {}", second);
        }
    }
}
