//! Shared parts of the tests that read real directories.

pub mod believed;
mod lookup;
mod persist;
mod presets;
mod proxy;
mod read;
mod stale;
mod syncrepl;
mod syncrepl_random;
mod trouble;

use std::collections::BTreeMap;
use std::time::Duration;

use bursar::daemon;
use bursar::identity::AccountKind;
use bursar::policy::{LifecycleDelays, Policy};
use bursar::snapshot::{Completeness, SourceRead};
use bursar_directory::source::{LdapConfig, Secret, SidMapping};
use bursar_directory::{Pass, Preset, SourceConfig, SourceKind, fetch};
use bursar_testkit::sample;
use bursar_testkit::slapd::{BASE_DN, READER_DN, READER_PASSWORD, Slapd, SlapdOptions};

/// A server with the sample directory and the entries of `options`.
fn site(options: SlapdOptions) -> Slapd {
    Slapd::start(&SlapdOptions { bulk_load: sample::toolforge() + &sample::rfc2307() + &options.bulk_load, ..options })
}

fn ldap(urls: &[&str], slapd: &Slapd) -> LdapConfig {
    LdapConfig {
        ca_pem: Some(std::fs::read_to_string(&slapd.ca_pem).expect("the file is readable")),
        bind_dn: Some(READER_DN.to_owned()),
        password: Some(Secret::new(READER_PASSWORD.to_owned())),
        connect_timeout: Duration::from_secs(10),
        ..LdapConfig::new(urls.iter().map(|url| (*url).to_owned()).collect())
    }
}

fn toolforge(ldap: LdapConfig) -> SourceConfig {
    let tree = |kind, unit: &str| Some(Preset::Toolforge.tree(kind, &format!("{unit},{BASE_DN}")));
    SourceConfig {
        name: "people".to_owned(),
        kind: SourceKind::Ldap(ldap),
        sentinels: vec![sample::SENTINEL_DN.into()],
        tools: tree(AccountKind::Tool, "ou=servicegroups"),
        users: tree(AccountKind::User, "ou=people"),
        groups: tree(AccountKind::Group, "ou=groups"),
        attributes: Preset::Toolforge.attributes(),
        sids: SidMapping::default(),
    }
}

pub fn policy() -> Policy {
    let policy = bursar::plan::testing::policy();
    let lifecycle = LifecycleDelays { absent_for: Duration::ZERO, ..policy.lifecycle };
    Policy { classes: BTreeMap::new(), lifecycle, ..policy }
}

pub async fn read(source: SourceConfig) -> SourceRead {
    read_by(&source, &Pass::Once).await
}

pub async fn read_by(source: &SourceConfig, pass: &Pass) -> SourceRead {
    assert_eq!(source.check(), Ok(()));
    let sources = std::slice::from_ref(source);
    fetch(sources, pass, &policy(), daemon::now()).await.reads.pop().expect("every source has a read")
}

/// Checks that `told`, which was read through the directory's reports of changes, equals `full`, which was read in
/// full.
#[track_caller]
pub fn assert_same(told: &SourceRead, full: &SourceRead) {
    assert_eq!((why(told), why(full)), ("complete", "complete"));
    for (told, full) in told.entries.iter().zip(&full.entries) {
        assert_eq!(told, full);
    }
    assert_eq!((told.entries.len(), &told.rejected), (full.entries.len(), &full.rejected));
}

pub fn names(read: &SourceRead, kind: AccountKind) -> Vec<&str> {
    read.entries.iter().filter(|entry| entry.kind == kind).map(|entry| entry.name.as_str()).collect()
}

/// The names of the people who are members of an entry.
pub fn members<'a>(read: &'a SourceRead, name: &str) -> Vec<&'a str> {
    let entry = read.entries.iter().find(|entry| entry.name == name).expect("the entry is in the read");
    let people = read.entries.iter().filter(|person| entry.members.contains_key(&person.id));
    people.map(|person| person.name.as_str()).collect()
}

pub fn why(read: &SourceRead) -> &str {
    match &read.completeness {
        Completeness::Complete => "complete",
        Completeness::Partial { why } | Completeness::Stale { why, .. } => why,
    }
}

#[track_caller]
pub fn assert_why(read: &SourceRead, parts: &[&str]) {
    for part in parts {
        assert!(why(read).contains(part), "{part:?} is not in {:?}", why(read));
    }
}
