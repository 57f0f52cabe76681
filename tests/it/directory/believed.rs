//! Which parts of a server's answer are trusted, if access rules hide attributes or members, or if entries are imported
//! again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bursar::daemon;
use bursar::identity::AccountKind;
use bursar::ledger::LedgerState;
use bursar::ledger::doubt::Question;
use bursar::ledger::transition::{ReadChanges, transition};
use bursar::plan::guard::{Bounds, approve, guard};
use bursar::plan::{Plan, Refusal};
use bursar::policy::Policy;
use bursar::snapshot::Completeness;
use bursar_directory::source::{LdapConfig, Sentinel};
use bursar_directory::{Pass, SourceConfig, fetch};

use super::proxy::{Fault, Proxy, operation};
use super::{ldap, policy, read, site, toolforge, why};
use bursar_testkit::ldif::{
    group_ldif, person_dn, person_ldif, replace_ldif, tool_group_dn, tool_ldif, toolforge_units_ldif, unit_ldif,
};
use bursar_testkit::sample;
use bursar_testkit::slapd::{BASE_DN, Slapd, SlapdOptions};

/// A ledger to which the answers of a directory are applied again and again.
pub struct Story {
    source: SourceConfig,
    pub ledger: LedgerState,
    policy: Policy,
}

impl Story {
    pub fn of(source: SourceConfig) -> Self {
        let ledger = LedgerState { ledger_id: "L".to_owned(), ..LedgerState::default() };
        Self { source, ledger, policy: policy() }
    }

    pub async fn hears(&mut self) -> Vec<Refusal> {
        let (sources, now) = (std::slice::from_ref(&self.source), daemon::now());
        let snapshot = fetch(sources, &Pass::Once, &self.policy, now).await;
        let ReadChanges { changes, .. } = transition(&self.ledger, &snapshot, &self.policy, now);
        self.ledger.apply_all(&changes);
        let (_, refusals) = guard(Plan::default(), &Bounds::of(&self.ledger, &self.policy), now);
        self.ledger.refusals = refusals.iter().map(Refusal::record).collect();
        refusals
    }

    pub fn count(&self, kind: AccountKind, has: impl Fn(&bursar::ledger::Account) -> bool) -> usize {
        self.ledger.accounts.values().filter(|account| account.kind == kind && has(account)).count()
    }

    pub fn completeness(&self) -> String {
        self.ledger.sources[&self.source.name].completeness.to_string()
    }
}

fn hiding(attributes: &str) -> SlapdOptions {
    SlapdOptions { database_lines: vec![format!("access to attrs={attributes} by * none")], ..SlapdOptions::default() }
}

#[tokio::test]
async fn a_hidden_attribute_is_kept_until_an_administrator_approves_its_loss() {
    let slapd = site(SlapdOptions::default());
    let mut story = Story::of(toolforge(ldap(&[&slapd.ldaps_url], &slapd)));
    assert_eq!(story.hears().await, []);
    let mails = |story: &Story| story.count(AccountKind::User, |account| account.mail.is_some());
    let homes =
        |story: &Story| -> Vec<_> { story.ledger.accounts.values().map(|account| account.home.clone()).collect() };
    let (before, homes_before) = (mails(&story), homes(&story));
    assert!(before >= 10, "{before} people have a mail address");

    slapd.start_configured(&hiding("mail,homeDirectory"));
    let refusals = story.hears().await;
    let texts: Vec<String> = refusals.iter().map(ToString::to_string).collect();
    let mail = texts.iter().find(|text| text.contains("mail: ")).unwrap_or_else(|| panic!("{texts:?}"));
    assert!(mail.contains(&format!("{before} accounts")) && mail.contains("0 have it now"), "{mail}");
    assert_eq!(story.completeness(), "complete");
    assert_eq!((mails(&story), homes(&story)), (before, homes_before.clone()));
    // A second read changes nothing.
    assert_eq!(story.hears().await, refusals);

    let of_mail = refusals.iter().find(|refusal| refusal.what == "mail").and_then(|refusal| refusal.hash.clone());
    let approval = approve(&story.ledger, &of_mail.expect("the refusal can be approved"), daemon::now())
        .expect("the refusal waits for approval");
    story.ledger.apply_all(&approval);
    let left = story.hears().await;
    assert!(left.iter().all(|refusal| refusal.what != "mail"), "{left:?}");
    assert_eq!((mails(&story), homes(&story)), (0, homes_before), "a hidden home does not change the known one");
}

#[tokio::test]
async fn a_rule_that_hides_ssh_keys_and_makes_the_entries_invalid_removes_no_key() {
    let slapd = site(SlapdOptions::default());
    for (name, _) in sample::PEOPLE {
        let key = format!("ssh-ed25519 {name}");
        slapd.modify_ldif(&replace_ldif(&person_dn(BASE_DN, name), "sshPublicKey", &[&key]));
    }
    let mut story = Story::of(toolforge(ldap(&[&slapd.ldaps_url], &slapd)));
    story.hears().await;
    let keys = |story: &Story| story.count(AccountKind::User, |account| !account.ssh_keys.is_empty());
    assert_eq!(keys(&story), sample::PEOPLE.len());
    slapd.start_configured(&hiding("uidNumber,sshPublicKey"));
    let refusals: String = story.hears().await.iter().map(ToString::to_string).collect();
    assert!(refusals.contains("sshPublicKey: 12 accounts of people had it, 0 have it now"), "{refusals}");
    assert_eq!((story.completeness().as_str(), keys(&story)), ("complete", sample::PEOPLE.len()));
}

#[tokio::test]
async fn a_sentinel_must_show_its_attributes() {
    let slapd = site(SlapdOptions::default());
    let dn = person_dn(BASE_DN, "niaj");
    let mark = "pwdAccountLockedTime";
    slapd.modify_ldif(&format!("dn: {dn}\nchangetype: modify\nadd: {mark}\n{mark}: 000001010000Z\n\n"));
    let mut source = toolforge(ldap(&[&slapd.ldaps_url], &slapd));
    source.sentinels = vec![Sentinel { dn, attributes: vec![mark.to_owned()] }];
    let mut story = Story::of(source.clone());
    story.hears().await;
    let disabled = |story: &Story| story.count(AccountKind::User, |account| account.disabled.is_some());
    assert_eq!((story.completeness().as_str(), disabled(&story)), ("complete", 1));
    slapd.start_configured(&hiding(mark));
    story.hears().await;
    assert!(story.completeness().contains("does not show pwdAccountLockedTime"), "{}", story.completeness());
    assert_eq!(disabled(&story), 1, "a rule that hides the mark enables nobody");
    assert!(why(&read(source).await).contains("sentinel"));
    // The server hides whether a new person is disabled.
    slapd.add_ldif(&person_ldif(BASE_DN, "zoe", 2100));
    story.hears().await;
    let new = |story: &Story| story.count(AccountKind::User, |account| account.name == "zoe");
    assert_eq!(new(&story), 0);
    slapd.start_configured(&SlapdOptions::default());
    story.hears().await;
    assert_eq!((story.completeness().as_str(), new(&story)), ("complete", 1));
}

#[tokio::test]
async fn another_directory_without_the_sentinel_adds_nobody() {
    let slapd = site(SlapdOptions::default());
    let right = toolforge(ldap(&[&slapd.ldaps_url], &slapd));
    let mut story = Story::of(right.clone());
    story.hears().await;
    let before = story.ledger.accounts.clone();
    // The server's name now leads to the directory of a laboratory, which may also lack some of the bases.
    for units in [toolforge_units_ldif(BASE_DN), unit_ldif(BASE_DN, "people")] {
        let bulk_load = units + &person_ldif(BASE_DN, "eve", 2100);
        let other = Slapd::start(&SlapdOptions { bulk_load, ..SlapdOptions::default() });
        story.source = toolforge(ldap(&[&other.ldaps_url], &other));
        for _ in 0..2 {
            story.hears().await;
            assert!(story.completeness().contains("sentinel not found"), "{}", story.completeness());
            assert_eq!(story.ledger.accounts, before);
        }
        let why: Vec<&str> = story.ledger.rejected.iter().map(|entry| entry.why.as_str()).collect();
        assert!(matches!(why[..], [why] if why.contains("does not show the sentinels")), "{why:?}");
        story.source = right.clone();
        story.hears().await;
        assert_eq!((story.completeness().as_str(), &story.ledger.accounts), ("complete", &before));
        assert!(story.ledger.rejected.is_empty(), "{:?}", story.ledger.rejected);
    }
}

#[tokio::test]
async fn groups_that_lose_all_members_in_one_read_keep_them_as_hidden() {
    let slapd = site(SlapdOptions::default());
    let mut source = toolforge(ldap(&[&slapd.ldaps_url], &slapd));
    source.attributes.members_required = false;
    let mut story = Story::of(source);
    story.hears().await;
    let members =
        |story: &Story| -> usize { story.ledger.accounts.values().map(|account| account.members.len()).sum() };
    let leaving =
        |story: &Story| -> usize { story.ledger.accounts.values().map(|account| account.leaving.len()).sum() };
    let before = members(&story);
    assert!(before > 10);
    slapd.start_configured(&hiding("member"));
    story.hears().await;
    assert!(story.completeness().contains("became empty in the same read"), "{}", story.completeness());
    assert_eq!((members(&story), leaving(&story)), (before, 0));
    slapd.start_configured(&SlapdOptions::default());
    story.hears().await;
    assert_eq!((story.completeness().as_str(), leaving(&story)), ("complete", 0));
}

#[tokio::test]
async fn hidden_members_stay_if_the_rule_makes_their_own_entries_invalid_too() {
    let groups = group_ldif(BASE_DN, "staff", &["alice", "bob"]) + &group_ldif(BASE_DN, "lab", &["carol"]);
    let slapd = site(SlapdOptions { bulk_load: groups, ..SlapdOptions::default() });
    let mut source = toolforge(ldap(&[&slapd.ldaps_url], &slapd));
    source.attributes.members_required = false;
    let mut story = Story::of(source);
    story.hears().await;
    let members = |story: &Story| {
        let groups = story.ledger.accounts.values().filter(|account| account.kind == AccountKind::Group);
        groups.map(|group| (group.members.len(), group.leaving.len())).collect::<Vec<_>>()
    };
    let before = members(&story);
    assert_eq!((before.len(), before.iter().map(|(members, _)| members).sum::<usize>()), (3, 5));
    slapd.start_configured(&hiding("member,uidNumber"));
    story.hears().await;
    assert!(story.completeness().contains("became empty in the same read"), "{}", story.completeness());
    assert_eq!(members(&story), before);
}

#[tokio::test]
async fn a_member_without_an_entry_stays_until_the_absence_is_due() {
    let slapd = site(SlapdOptions::default());
    let mut story = Story::of(toolforge(ldap(&[&slapd.ldaps_url], &slapd)));
    story.policy.lifecycle.absent_for = std::time::Duration::from_hours(24);
    story.hears().await;
    slapd.delete(&person_dn(BASE_DN, "bob"));
    story.hears().await;
    let bob =
        story.ledger.accounts.values().find(|account| account.name == "bob").expect("bob exists").directory_id.clone();
    let holding = |story: &Story| story.count(AccountKind::Tool, |tool| tool.members.contains_key(&bob));
    let leaving = |story: &Story| story.count(AccountKind::Tool, |tool| tool.leaving.contains(&bob));
    assert_eq!((holding(&story), leaving(&story)), (2, 0));
    story.policy.lifecycle.absent_for = std::time::Duration::ZERO;
    story.hears().await;
    assert_eq!(leaving(&story), 2, "the absence is due");
}

#[tokio::test]
async fn reimported_people_raise_a_doubt() {
    let slapd = site(SlapdOptions::default());
    let mut story = Story::of(toolforge(ldap(&[&slapd.ldaps_url], &slapd)));
    story.hears().await;
    let people = story.count(AccountKind::User, |_| true);
    for (name, _) in sample::PEOPLE {
        slapd.delete(&person_dn(BASE_DN, name));
    }
    let again = sample::PEOPLE.map(|(name, uid)| person_ldif(BASE_DN, name, uid));
    slapd.add_ldif(&again.concat());
    let refusals = story.hears().await;
    assert_eq!(story.count(AccountKind::User, |account| account.absence.is_some()), 0);
    assert_eq!(story.count(AccountKind::User, |_| true), people, "no entry is adopted, and no account is new");
    let doubt = story
        .ledger
        .doubts
        .iter()
        .find(|(key, _)| key.question == Question::Import)
        .expect("the ledger has a doubt about an import")
        .1;
    assert_eq!(doubt.accounts.len(), sample::PEOPLE.len());
    let text = refusals.iter().map(ToString::to_string).collect::<String>();
    assert!(text.contains("new import") && text.contains("bursar adopt import"), "{text}");
    assert_eq!(story.ledger.sources["people"].completeness, Completeness::Complete);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_who_is_renamed_between_two_searches_of_a_read_stays() {
    let slapd = Arc::new(site(SlapdOptions::default()));
    let proxy = Proxy::to(&slapd.ldap_url).await;
    let config = LdapConfig { allow_plaintext: true, ..ldap(&[&proxy.url("ldap")], &slapd) };
    let mut story = Story::of(toolforge(config));
    story.hears().await;
    let admins = |story: &Story| {
        let mut groups = story.ledger.accounts.values().filter(|account| account.kind == AccountKind::Group);
        let group = groups.find(|group| group.name == "k8s-admins").expect("the group has an account");
        (group.members.len(), group.leaving.len())
    };
    let is_known = |story: &Story, name: &str| story.count(AccountKind::User, |account| account.name == name) == 1;
    assert_eq!(admins(&story), (2, 0));

    let (old, new) = (person_dn(BASE_DN, "alice"), person_dn(BASE_DN, "alicia"));
    let named = [format!("cn=k8s-admins,ou=groups,{BASE_DN}"), tool_group_dn(BASE_DN, "foo")];
    let change = |dn: &String| {
        format!("dn: {dn}\nchangetype: modify\nadd: member\nmember: {new}\n-\ndelete: member\nmember: {old}\n\n")
    };
    let rename = format!("dn: {old}\nchangetype: modrdn\nnewrdn: uid=alicia\ndeleteoldrdn: 1\n\n")
        + &named.iter().map(change).collect::<String>();
    // Renames alice after the search for people has shown her and has ended, but before groups are searched.
    let (step, server) = (AtomicUsize::new(0), Arc::clone(&slapd));
    let renames = move |message: &mut Vec<u8>| {
        let has = |text: &str| message.windows(text.len()).any(|part| part == text.as_bytes());
        let (is_entry, is_end) = (message[operation(message)] == 0x64, message[operation(message)] == 0x65);
        if is_entry && has(&old) && has("uidNumber") {
            step.store(1, Ordering::SeqCst);
        } else if is_end && step.compare_exchange(1, 2, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            server.modify_ldif(&rename);
        }
    };
    proxy.set(Fault::Each(Arc::new(renames)));
    story.hears().await;
    proxy.set(Fault::None);
    assert_eq!((story.completeness().as_str(), admins(&story)), ("complete", (2, 0)));
    assert!(is_known(&story, "alice"), "she was renamed after the search for people");
    assert!(story.ledger.doubts.keys().any(|doubt| doubt.question == Question::Renamed));
    story.hears().await;
    assert_eq!(admins(&story), (2, 0));
    assert!(is_known(&story, "alicia") && story.ledger.doubts.is_empty());
}

/// The server does not change the members of groups when it renames an entry (no overlay `refint`).
#[tokio::test]
async fn nobody_joins_a_tool_by_the_former_dn_of_a_maintainer() {
    let slapd =
        site(SlapdOptions { bulk_load: tool_ldif(BASE_DN, "shared", 52_700, &["alice"]), ..Default::default() });
    let mut story = Story::of(toolforge(ldap(&[&slapd.ldaps_url], &slapd)));
    story.hears().await;
    let account = |story: &Story, name: &str| {
        let found = story.ledger.accounts.values().find(|account| account.name == name);
        found.unwrap_or_else(|| panic!("no {name}")).clone()
    };
    let maintainers = |story: &Story| {
        let tool = account(story, "shared");
        tool.members.keys().filter(|member| !tool.leaving.contains(*member)).cloned().collect::<BTreeSet<_>>()
    };
    let alice = account(&story, "alice").directory_id;
    assert_eq!(maintainers(&story), BTreeSet::from([alice.clone()]));
    let dn = person_dn(BASE_DN, "alice");
    let heir = account(&story, "bob").directory_id;
    for (from, to) in [(dn.clone(), "alicia"), (person_dn(BASE_DN, "bob"), "alice")] {
        slapd.modify_ldif(&format!("dn: {from}\nchangetype: modrdn\nnewrdn: uid={to}\ndeleteoldrdn: 1\n\n"));
    }
    for _ in 0..2 {
        story.hears().await;
        assert_eq!(maintainers(&story), BTreeSet::from([alice.clone()]));
        assert_eq!(account(&story, "alicia").directory_id, alice, "the id decides who is renamed");
        let why = story.ledger.rejected.iter().find(|entry| entry.dn == dn).map(|entry| entry.why.clone());
        assert!(why.as_ref().is_some_and(|why| why.contains("that user:alicia had before")), "{why:?}");
    }
    assert_eq!(account(&story, "alice").directory_id, heir);
    // The tool now has the new DN of the former alice, so its members were changed after the rename. The old DN among
    // them therefore means bob, who has the name alice now.
    slapd.modify_ldif(&format!(
        "dn: {}\nchangetype: modify\nadd: member\nmember: {}\n\n",
        tool_group_dn(BASE_DN, "shared"),
        person_dn(BASE_DN, "alicia")
    ));
    story.hears().await;
    assert_eq!(maintainers(&story), BTreeSet::from([alice, heir]));
}
