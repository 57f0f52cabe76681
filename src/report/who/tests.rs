//! Tests how a text from a log is recognized, and which accounts and hosts it leads to.

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
    assert_eq!(digits.parse::<What>().expect("the text is a fingerprint").to_string(), digits);
}

fn served_by(world: &World, host: &str) -> (Vec<String>, Vec<String>) {
    let mut found = FoundAccounts::default();
    let classes = classes_of_namespaces(&world.ledger, &world.policy);
    served((&world.ledger, &world.policy), &classes, host, None, &mut found);
    (found.by.into_values().flatten().collect(), found.notes)
}

#[test]
fn a_host_leads_to_its_tenant_and_names_exceptions() {
    let (mut world, foo) = World::with_foo();
    world.add(AccountKind::Tool, "bar", Some(52_504));
    world.policy.classes.retain(|name, _| name == "tool");
    let class = world.class("tool");
    class.admission.hosts.allow = vec!["{name}.tools.example.org".to_owned()];
    world.cycle();
    let by = "class tool lets it serve {name}.tools.example.org in cluster prod".to_owned();
    let lax = "any tenant of class tool may serve it: rule hosts is not enforced".to_owned();
    assert_eq!(served_by(&world, "foo.tools.example.org"), (vec![by.clone()], vec![lax]));

    world.class("tool").admission.hosts.mode = Mode::Enforce;
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
    let (mut world, foo) = World::with_foo();
    world.policy.classes.retain(|name, _| name == "tool");
    world.cycle();
    // Another class selects the tool now; the ledger remembers the first one.
    let mut class = world.policy.classes.remove("tool").expect("the class exists");
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
    let (folder, mut store, lock) = Store::scratch().await;
    let day = |day: i8| Timestamp::UNIX_EPOCH + SignedDuration::from_hours(24 * i64::from(day));
    let new = |kind, name: &str| {
        let (id, directory_id) = (AccountId(name.into()), DirectoryId(format!("{name}-id")));
        let account = AccountName { kind, name: name.to_owned() };
        Account { state: Lifecycle::Active, ..Account::new(id, account, "people", directory_id, day(1)) }
    };
    let people = ["ann", "ben", "eve"].map(|name| new(AccountKind::User, name));
    // No class selects eve, so she is not a tenant.
    let people = people.map(|person| match person.name.as_str() {
        "eve" => Account { state: Lifecycle::New, ..person },
        _ => person,
    });
    let members = people.iter().map(|person| (person.directory_id.clone(), crate::snapshot::Role::Member)).collect();
    let group = Account { members, ..new(AccountKind::Group, "lab") };
    let namespace = Some("workspace-lab".to_owned().try_into().expect("a name"));
    let tenant = Tenant { class: "course".to_owned(), namespace, created_at: day(1) };
    let cluster = ClusterName("prod".into());
    let known = people.iter().chain([&group]).map(|account| Change::Account(account.clone().into()));
    let begin: Vec<Change> = known.chain([Change::Tenant(group.id.clone(), cluster, tenant)]).collect();
    store.write(&lock, &begin, &[], day(1)).await.expect("the ledger is writable");
    let ben = Account { state: Lifecycle::Suspended, since: day(5), ..people[1].clone() };
    store.write(&lock, &[Change::Account(ben.into())], &[], day(5)).await.expect("the ledger is writable");
    store.close().await.expect("the ledger closes");
    let mut reader = ReadStore::open(&folder.path().join(FILE)).await.expect("the ledger opens");
    let pod = What::Pod("workspace-lab".to_owned(), "web".to_owned());
    for (at, expected) in [(None, vec!["user:ann"]), (Some(day(3)), vec!["user:ann", "user:ben"])] {
        let found = answer(&mut reader, None, &pod, at).await.expect("an answer");
        let people = found["answers"][0]["people"].as_array().cloned().unwrap_or_default();
        let with: Vec<_> =
            people.iter().filter(|it| it["access"] == true).filter_map(|it| it["member"].as_str()).collect();
        assert_eq!((with, people.len()), (expected, 3), "{found:#}");
    }
    let query = "SELECT member, at_end FROM access_on WHERE account = 'group:lab' ORDER BY member";
    let rows = reader.rows(query, &[]).await.expect("the query is valid");
    let rows: Vec<_> = rows.iter().map(|row| (text(row, "member"), text(row, "at_end"))).collect();
    let open = |name: &str, end: &str| (format!("user:{name}"), end.to_owned());
    assert_eq!(rows, [open("ann", "9999-12-31T23:59:59Z"), open("ben", "1970-01-06T00:00:00Z")]);
}

#[tokio::test]
async fn a_former_uid_leads_to_its_account_only_until_the_change() {
    let (folder, mut store, lock) = Store::scratch().await;
    let day = |day: i8| Timestamp::UNIX_EPOCH + SignedDuration::from_hours(24 * i64::from(day));
    let name = AccountName { kind: AccountKind::Tool, name: "foo".to_owned() };
    let id = AccountId("foo".into());
    let with = |uid: i64| {
        let (uid, gid) = (uid.try_into().expect("the number is a uid"), uid.try_into().expect("the number is a gid"));
        let posix = Some(PosixIdentity { uid, gid, groups: BTreeSet::new() });
        let account = Account::new(id.clone(), name.clone(), "people", DirectoryId("d".to_owned()), day(1));
        [Change::Account(Account { posix, ..account }.into()), Change::Uid(uid, id.clone())]
    };
    store.write(&lock, &with(5_000), &[], day(1)).await.expect("the ledger is writable");
    let adopted = Event {
        actor: "ann".to_owned(),
        account: Some(name.clone()),
        account_id: Some(id.clone()),
        action: "uid adopted".to_owned(),
        reason: "moved".to_owned(),
        ticket: None,
        plan: None,
        detail: json!({"before": 5_000, "after": 6_000}).into(),
    };
    store.write(&lock, &with(6_000), &[adopted], day(10)).await.expect("the ledger is writable");
    store.close().await.expect("the ledger closes");
    let mut reader = ReadStore::open(&folder.path().join(FILE)).await.expect("the ledger opens");
    let mut ask = async |uid, at| answer(&mut reader, None, &What::Uid(uid), at).await.expect("an answer");
    let now = ask(5_000, None).await;
    let by = now["answers"][0]["found_by"][0].as_str().unwrap_or_default().to_owned();
    assert!(by.starts_with("a former uid: the account has 6000 now"), "{now:#}");
    assert_eq!(ask(5_000, Some(day(5))).await["answers"][0]["uid"], 5_000);
    let later = ask(5_000, Some(day(11))).await;
    let note = json!(["tool:foo had uid 6000 then, and 5000 at another time"]);
    assert_eq!((&later["answers"], &later["notes"]), (&json!([]), &note));
}
