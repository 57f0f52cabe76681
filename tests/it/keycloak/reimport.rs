//! A realm that is imported again while it is read.

use std::sync::atomic::{AtomicBool, Ordering};

use bursar::identity::AccountKind;
use bursar::ledger::doubt::Question;
use bursar_directory::source::KeycloakConfig;
use serde_json::{Value, json};

use super::proxy::{Fate, between};
use super::{Realm, person, source};
use crate::directory::believed::Story;

const PEOPLE: u32 = 8;

fn people(story: &Story) -> Vec<(&str, &str)> {
    let people = story.ledger.accounts.values().filter(|account| account.kind == AccountKind::User);
    people.map(|account| (account.name.as_str(), account.directory_id.0.as_str())).collect()
}

/// All users are deleted and created again with their names and uids, by one request in the middle of a read.
#[tokio::test(flavor = "multi_thread")]
async fn a_realm_that_is_imported_again_during_a_read_raises_a_doubt() {
    let users: Vec<Value> = (0..PEOPLE).map(|n| person(&format!("r{n}-again"), 2000 + n, &["/all"])).collect();
    for (name, at) in [
        ("again-a", "/users/count"),
        ("again-b", "/users?first=2&"),
        ("again-c", "/groups/count"),
        ("again-d", "/members?first=0&"),
    ] {
        let realm = Realm::new(name, &users, &[json!({"name": "all"})]);
        let importer = Realm { name, server: realm.server };
        let (again, armed) = (users.clone(), std::sync::Arc::new(AtomicBool::new(false)));
        let is_armed = std::sync::Arc::clone(&armed);
        let (config, _) = between(&realm, move |path| {
            if path.contains(at) && is_armed.swap(false, Ordering::Relaxed) {
                importer.ask("POST", "/partialImport", &json!({"ifResourceExists": "OVERWRITE", "users": again}));
            }
            Fate::Passed
        })
        .await;
        let mut story = Story::of(source(KeycloakConfig { page_size: 3, ..config }));
        story.hears().await;
        let before: Vec<(String, String)> =
            people(&story).iter().map(|(name, id)| ((*name).to_owned(), (*id).to_owned())).collect();
        assert_eq!((story.completeness().as_str(), before.len()), ("complete", 8));
        armed.store(true, Ordering::Relaxed);
        for read in 0..3 {
            story.hears().await;
            assert!(!armed.load(Ordering::Relaxed), "{name}: the realm was imported again");
            let now = people(&story);
            assert!(before.iter().map(|(name, id)| (name.as_str(), id.as_str())).eq(now), "{name} {read}");
            assert_eq!(story.count(AccountKind::User, |person| person.absence.is_some()), 0, "{name} {read}");
            let all = |group: &bursar::ledger::Account| group.members.len() == 8 && group.leaving.is_empty();
            assert_eq!(story.count(AccountKind::Group, all), 1, "{name} {read}");
        }
        assert_eq!(story.completeness(), "complete", "{name}");
        let doubt = story.ledger.doubts.iter().find(|(key, _)| key.question == Question::Import);
        assert_eq!(doubt.map(|(_, doubt)| doubt.accounts.len()), Some(8), "{name}");
        let id = realm.id("r0-again");
        assert!(before.iter().all(|(_, before)| *before != id), "{name}: the users have other ids");
    }
}
