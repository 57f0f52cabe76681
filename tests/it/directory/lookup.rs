//! Accounts that a read did not show are looked up separately on every server before they are suspended.

use std::collections::BTreeMap;

use bursar::daemon;
use bursar::identity::AccountKind;
use bursar::ledger::LedgerState;
use bursar::ledger::doubt::Question;
use bursar::ledger::transition::{ReadChanges, due, transition};
use bursar::snapshot::DirectorySnapshot;
use bursar::snapshot::proof::EntryPlace;
use bursar_directory::{Known, Pass, SourceConfig, confirm, fetch};

use super::{ldap, policy, site, toolforge};
use bursar_testkit::ldif::person_dn;
use bursar_testkit::slapd::{BASE_DN, Slapd, SlapdOptions};

struct Story {
    source: SourceConfig,
    ledger: LedgerState,
    events: Vec<String>,
}

impl Story {
    async fn begin(source: SourceConfig) -> Self {
        let ledger = LedgerState { ledger_id: "L".to_owned(), ..LedgerState::default() };
        let mut story = Self { source, ledger, events: Vec::new() };
        let snapshot = story.reads().await;
        story.remembers(&snapshot);
        story
    }

    async fn reads(&self) -> DirectorySnapshot {
        fetch(std::slice::from_ref(&self.source), &Pass::Once, &policy(), daemon::now()).await
    }

    /// Looks the due accounts up on the servers of `asked`.
    async fn confirmed(&self, asked: &SourceConfig, mut snapshot: DirectorySnapshot) -> DirectorySnapshot {
        let due = due(&self.ledger, &snapshot, &policy(), daemon::now());
        confirm(std::slice::from_ref(asked), &Pass::Once, &Known::new(), &due, &mut snapshot).await;
        snapshot
    }

    fn remembers(&mut self, snapshot: &DirectorySnapshot) {
        let ReadChanges { changes, events } = transition(&self.ledger, snapshot, &policy(), daemon::now());
        self.ledger.apply_all(&changes);
        self.events.extend(events.into_iter().map(|event| format!("{}: {}", event.action, event.reason)));
    }

    fn is_absent(&self, name: &str) -> bool {
        let mut accounts = self.ledger.accounts.values();
        accounts.find(|account| account.name == name).expect("the name exists").absence.is_some()
    }
}

fn only_places(snapshot: &DirectorySnapshot) -> Vec<EntryPlace> {
    let proofs = snapshot.reads[0].proofs.as_ref().expect("the servers were asked");
    proofs.values().flat_map(|proof| proof.servers.iter().map(|(_, place)| place.clone())).collect()
}

#[tokio::test]
async fn an_entry_moved_out_of_the_base_is_absent_and_the_history_names_its_dn() {
    let slapd = site(SlapdOptions::default());
    let mut story = Story::begin(toolforge(ldap(&[&slapd.ldaps_url], &slapd))).await;
    let (bob, elsewhere) = (person_dn(BASE_DN, "bob"), format!("uid=bob,{BASE_DN}"));
    slapd.modify_ldif(&format!(
        "dn: {bob}\nchangetype: modrdn\nnewrdn: uid=bob\ndeleteoldrdn: 0\nnewsuperior: {BASE_DN}\n\n"
    ));
    slapd.delete(&person_dn(BASE_DN, "carol"));
    let snapshot = story.confirmed(&story.source, story.reads().await).await;
    let places = only_places(&snapshot);
    assert_eq!(places.len(), 2);
    assert!(
        places.contains(&EntryPlace::Nowhere) && places.contains(&EntryPlace::Outside { dn: elsewhere.clone() }),
        "{places:?}"
    );
    story.remembers(&snapshot);
    assert!(story.is_absent("bob") && story.is_absent("carol") && !story.is_absent("alice"));
    assert!(
        story.events.iter().any(|event| event.contains("moved to") && event.contains(&elsewhere)),
        "{:?}",
        story.events
    );
}

#[tokio::test]
async fn an_entry_found_by_lookup_is_present_although_the_read_lacked_it() {
    let slapd = site(SlapdOptions::default());
    let mut story = Story::begin(toolforge(ldap(&[&slapd.ldaps_url], &slapd))).await;
    let mut snapshot = story.reads().await;
    snapshot.reads[0].entries.retain(|entry| entry.name != "bob");
    let snapshot = story.confirmed(&story.source, snapshot).await;
    assert!(matches!(only_places(&snapshot)[..], [EntryPlace::Inside { .. }]));
    story.remembers(&snapshot);
    assert!(!story.is_absent("bob"));
    assert!(story.events.iter().any(|event| event.starts_with("present after all")), "{:?}", story.events);
}

#[tokio::test]
async fn only_an_account_on_which_servers_disagree_waits() {
    let (slapd, other) = (site(SlapdOptions::default()), Slapd::start(&SlapdOptions::default()));
    other.start_copy(&slapd.dump());
    let mut story = Story::begin(toolforge(ldap(&[&slapd.ldaps_url], &slapd))).await;
    slapd.delete(&person_dn(BASE_DN, "bob"));
    slapd.delete(&person_dn(BASE_DN, "carol"));
    other.delete(&person_dn(BASE_DN, "carol"));
    let mut both = ldap(&[&slapd.ldaps_url, &other.ldaps_url], &slapd);
    both.ca_pem =
        Some([&slapd, &other].map(|one| std::fs::read_to_string(&one.ca_pem).expect("the file is readable")).concat());
    // With an `absent_for` of 0, the freshest server would decide immediately.
    let mut policy = policy();
    policy.lifecycle.absent_for = std::time::Duration::from_secs(1);
    let mut snapshot = story.reads().await;
    let due: BTreeMap<_, _> = due(&story.ledger, &snapshot, &super::policy(), daemon::now());
    confirm(&[toolforge(both)], &Pass::Once, &Known::new(), &due, &mut snapshot).await;
    let now = daemon::now();
    let later = now + jiff::SignedDuration::from_secs(10);
    for now in [now, later] {
        let ReadChanges { changes, .. } = transition(&story.ledger, &snapshot, &policy, now);
        story.ledger.apply_all(&changes);
    }
    let absent = |name: &str| {
        let account = story.ledger.accounts.values().find(|account| account.name == name).expect("the name exists");
        account.absence.map_or(0, |absence| absence.seconds)
    };
    assert!(absent("carol") >= 1, "all servers agree that carol left");
    assert_eq!(absent("bob"), 0, "bob waits");
    let doubted: Vec<_> =
        story.ledger.doubts.keys().filter(|key| matches!(key.question, Question::Absence(_))).collect();
    assert_eq!((doubted.len(), doubted[0].kind), (1, AccountKind::User));
}
