//! How a read of a realm reports problems, and that no problem makes an account appear missing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bursar::identity::{AccountKind, DirectoryId};
use bursar::snapshot::Completeness;
use bursar::snapshot::proof::{Due, EntryPlace};
use bursar_directory::keycloak;
use bursar_directory::source::{KeycloakConfig, Secret};
use bursar_testkit::pki::Authority;
use serde_json::{Value, json};

use super::proxy::{Fate, between};
use super::{Realm, person, source};
use crate::directory::{assert_why, names, read, why};

/// What happens to a request, and the message that is expected.
type Spoilt = (fn() -> Fate, &'static str);

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_login_reports_the_reason() {
    let realm = Realm::new("wrong", &[person("alice", 2001, &[])], &[]);
    let good = realm.config();
    let wrong = KeycloakConfig { client_secret: Some(Secret::new("hunter2".to_owned())), ..good.clone() };
    let told = read(source(wrong)).await;
    assert_why(&told, &["login of client bursar refused (401 Unauthorized: ", "see client_id and client_secret"]);
    assert!(!why(&told).contains("hunter2"), "{}", why(&told));
    let client = KeycloakConfig { client_id: "nobody".to_owned(), ..good.clone() };
    assert_why(&read(source(client)).await, &["login of client nobody refused"]);
    let elsewhere = KeycloakConfig { realm: "no where".to_owned(), ..good.clone() };
    assert_why(&read(source(elsewhere)).await, &["there is no realm \"no where\" (Realm does not exist)"]);
    let path = KeycloakConfig { url: format!("{}/auth", good.url), ..good.clone() };
    assert_why(&read(source(path)).await, &["there is no realm \"wrong\"", "see realm and url"]);
    let gone = KeycloakConfig { url: "https://127.0.0.1:1".to_owned(), ..good.clone() };
    assert_why(&read(source(gone)).await, &["cannot connect; see url and ca", "Connection refused"]);
    let stranger = Authority::new("somebody else").identity().certificate.clone();
    let untrusted = KeycloakConfig { ca_pem: Some(stranger), ..good.clone() };
    assert_why(&read(source(untrusted)).await, &["cannot connect; see url and ca", "UnknownIssuer"]);

    realm.ask("PUT", "", &json!({"enabled": false}));
    assert_why(&read(source(good.clone())).await, &["login of client bursar refused", "Realm not enabled"]);
    realm.ask("PUT", "", &json!({"enabled": true}));
    assert_eq!(why(&read(source(good)).await), "complete", "the next read recovers without help");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_role_the_read_fails_and_names_the_role() {
    let people = [person("alice", 2001, &[])];
    let none = Realm::with("roleless", &people, &[], Some("ADMIN_EDIT"), &[]);
    assert_why(
        &read(none.source()).await,
        &["refused (403 Forbidden", "needs the role view-users of realm-management"],
    );
    let few = Realm::with("few", &people, &[], Some("ADMIN_EDIT"), &["query-users", "query-groups"]);
    let found = read(few.source()).await;
    assert_ne!(found.completeness, Completeness::Complete);
    assert_why(&found, &["view-users"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_changes_during_the_read_is_partial() {
    let people: Vec<_> = (0..6).map(|n| person(&format!("d{n}-drift"), 2000 + n, &["/all"])).collect();
    let groups = json!({"name": "all", "subGroups": [{"name": "one"}, {"name": "two"}, {"name": "three"}]});
    let drift: [(&'static str, &str, &str); 4] = [
        // A user on the first page is deleted, so the first user of the next page is skipped.
        ("drift-a", "/users?first=1&", "users changed while they were read"),
        // A user is deleted and another one is added, so the counts agree.
        ("drift-b", "/users?first=1&", "users changed while they were read"),
        ("drift-d", "/children?first=1&", "groups changed while they were read"),
        ("drift-e", "/members?first=1&", "members of a group changed while they were read"),
    ];
    for (name, at, expected) in drift {
        let realm = Realm::new(name, &people, std::slice::from_ref(&groups));
        let delete = |path: String| move |realm: &Realm| drop(realm.ask("DELETE", &path, &Value::Null));
        let all =
            realm.ask("GET", "/groups", &Value::Null)[0]["id"].as_str().expect("the realm has a group").to_owned();
        let part = realm.ask("GET", &format!("/groups/{all}/children"), &Value::Null)[0]["id"].clone();
        let first = format!("/users/{}", realm.id("d0-drift"));
        let act: Box<dyn Fn(&Realm) + Send + Sync> = match name {
            "drift-a" => Box::new(delete(first)),
            "drift-b" => Box::new(move |realm| {
                delete(first.clone())(realm);
                realm.ask("POST", "/users", &person("z-drift", 2100, &[]));
            }),
            "drift-d" => Box::new(delete(format!("/groups/{}", part.as_str().expect("an id is a string")))),
            _ => Box::new(delete(format!("{first}/groups/{all}"))),
        };
        let done = AtomicBool::new(false);
        let mover = Realm { name, server: realm.server };
        let (config, _) = between(&realm, move |path| {
            if path.contains(at) && !done.swap(true, Ordering::Relaxed) {
                act(&mover);
            }
            Fate::Passed
        })
        .await;
        let found = read(source(KeycloakConfig { page_size: 2, ..config })).await;
        assert_why(&found, &[expected]);
        assert_eq!(why(&read(realm.source()).await), "complete", "{name}: the next read is complete");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn users_added_during_a_read_do_not_make_it_partial() {
    let people: Vec<_> = (0..6).map(|n| person(&format!("m{n}-came"), 2000 + n, &[])).collect();
    // Users are added before all others (which shifts the pages), at the end, and after the last page was read.
    for (name, at, comes) in [
        ("came-a", "/users?first=1&", "a-came"),
        ("came-b", "/users?first=1&", "z-came"),
        ("came-c", "/groups/count", "z-came"),
    ] {
        let realm = Realm::new(name, &people, &[]);
        let mover = Realm { name, server: realm.server };
        let done = AtomicBool::new(false);
        let (config, _) = between(&realm, move |path| {
            if path.contains(at) && !done.swap(true, Ordering::Relaxed) {
                // Three users, which fill more than a page.
                for more in 0..3 {
                    mover.ask("POST", "/users", &person(&format!("{comes}{more}"), 2100 + more, &[]));
                }
            }
            Fate::Passed
        })
        .await;
        let found = read(source(KeycloakConfig { page_size: 2, ..config })).await;
        assert_eq!(why(&found), "complete", "{name}");
        let known = names(&found, AccountKind::User);
        assert!((0..6).all(|n| known.contains(&format!("m{n}-came").as_str())), "{name}: {known:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_request_makes_the_read_partial() {
    let people: Vec<_> = (0..4).map(|n| person(&format!("t{n}-trouble"), 2000 + n, &["/all"])).collect();
    let realm = Realm::new("trouble", &people, &[json!({"name": "all"})]);
    let (config, asked) = between(&realm, |_| Fate::Passed).await;
    assert_eq!(why(&read(source(config)).await), "complete");
    let requests = asked.lock().expect("no thread panics with the lock").clone();
    assert_eq!(requests.len(), 9, "{requests:?}");
    let spoil: [Spoilt; 8] = [
        (|| Fate::Answered(500, r#"{"error": "unknown_error"}"#), "500 Internal Server Error: unknown_error"),
        (|| Fate::Answered(503, "<html>"), "503 Service Unavailable: no reason given"),
        (|| Fate::Answered(404, "{}"), "404 Not Found"),
        (|| Fate::Answered(302, ""), "302 Found"),
        (|| Fate::Answered(200, "[{\"id\": 1}]"), "could not be parsed"),
        (|| Fate::Answered(200, ""), "could not be parsed"),
        (|| Fate::Cut(0), "connection lost"),
        (|| Fate::Silent, "no answer within 300ms"),
    ];
    for path in &requests {
        for (fate, expected) in spoil {
            let at = path.split('?').next().expect("a split gives at least one part").to_owned();
            let (config, _) =
                between(&realm, move |path| if path.starts_with(&at) { fate() } else { Fate::Passed }).await;
            let timeout = if expected.ends_with("300ms") { Duration::from_millis(300) } else { config.timeout };
            let found = read(source(KeycloakConfig { timeout, ..config })).await;
            assert_ne!(found.completeness, Completeness::Complete, "{path}: {expected}");
            // If a login gets a 404, the message differs.
            let told = why(&found).contains(expected) || why(&found).contains("there is no realm");
            assert!(told, "{path}: {expected}: {}", why(&found));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_is_cut_anywhere_is_partial() {
    let people: Vec<_> = (0..3).map(|n| person(&format!("c{n}-cut"), 2000 + n, &[])).collect();
    let realm = Realm::new("cut", &people, &[]);
    for after in (1..1500).step_by(149) {
        let (config, _) =
            between(&realm, move |path| if path.contains("/users?") { Fate::Cut(after) } else { Fate::Passed }).await;
        assert_why(&read(source(config)).await, &["connection lost"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_renewed_before_it_expires_and_when_it_is_rejected() {
    let people: Vec<_> = (0..6).map(|n| person(&format!("n{n}-token"), 2000 + n, &[])).collect();
    let realm = Realm::new("token", &people, &[]);
    realm.ask("PUT", "", &json!({"accessTokenLifespan": 8}));
    let (config, asked) = between(&realm, |path| {
        if path.contains("/users?") {
            std::thread::sleep(Duration::from_millis(4400));
        }
        Fate::Passed
    })
    .await;
    let found = read(source(KeycloakConfig { page_size: 3, ..config })).await;
    assert_eq!((why(&found), names(&found, AccountKind::User).len()), ("complete", 6));
    let logins = |asked: &std::sync::Mutex<Vec<String>>| {
        asked.lock().expect("no thread panics with the lock").iter().filter(|path| path.ends_with("/token")).count()
    };
    assert!(logins(&asked) >= 3, "{asked:?}");

    realm.ask("PUT", "", &json!({"accessTokenLifespan": 300}));
    let once = AtomicBool::new(true);
    let (config, asked) = between(&realm, move |path| {
        let taken = path.contains("/groups?") && once.swap(false, Ordering::Relaxed);
        if taken { Fate::Answered(401, "{}") } else { Fate::Passed }
    })
    .await;
    assert_eq!(why(&read(source(config)).await), "complete");
    assert_eq!(logins(&asked), 2);
}

/// Before an account is suspended for absence, the realm is asked for this account alone.
#[tokio::test(flavor = "multi_thread")]
async fn an_account_is_looked_up_by_its_id_and_an_error_proves_nothing() {
    let users = ["here", "gone", "broken", "later"].map(|name| person(name, 2001, &[]));
    let realm = Realm::new("lookup", &users, &[json!({"name": "staff"})]);
    let [here, gone, broken, later] = ["here", "gone", "broken", "later"].map(|name| realm.id(name));
    let groups = realm.ask("GET", "/groups", &Value::Null);
    let staff = groups[0]["id"].as_str().expect("the realm has a group").to_owned();
    realm.ask("DELETE", &format!("/users/{gone}"), &Value::Null);
    let due = |id: &str, kind| Due { id: DirectoryId(id.to_owned()), kind, dn: String::new() };
    let of_user = |id: &str| due(id, AccountKind::User);
    let all = [of_user(&here), of_user(&gone), due(&staff, AccountKind::Group), of_user(&broken), of_user(&later)];
    let failing = format!("/users/{broken}");
    let judge = move |path: &str| if path.ends_with(&failing) { Fate::Answered(500, "") } else { Fate::Passed };
    let (config, _) = between(&realm, judge).await;
    let proofs = keycloak::look_up(&config, &source(config.clone()), &all).await;
    let places =
        |due: &Due| proofs.get(&due.id).map(|proof| proof.servers.iter().map(|(_, place)| place).collect::<Vec<_>>());
    let inside = |dn: String| EntryPlace::Inside { dn };
    let (person, group) = (inside(format!("users/{here}")), inside(format!("groups/{staff}")));
    let expected = [Some(vec![&person]), Some(vec![&EntryPlace::Nowhere]), Some(vec![&group]), None, None];
    assert_eq!(all.each_ref().map(places), expected, "after an error, the next read asks again");
}
