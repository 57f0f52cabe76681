//! Undisturbed reads of a real `slapd` and of files.

use std::fmt::Write as _;
use std::path::PathBuf;

use bursar::identity::AccountKind;
use bursar::snapshot::SourceRead;
use bursar_directory::source::{LdapConfig, LdifConfig};
use bursar_directory::{Preset, SourceConfig, SourceKind};
use bursar_testkit::folder::Folder;
use bursar_testkit::ldif::{group_of_names_ldif, person_dn, person_ldif, unit_ldif};
use bursar_testkit::sample;
use bursar_testkit::slapd::{BASE_DN, READER_DN, SlapdOptions};

use super::{assert_why, ldap, members, names, read, site, toolforge, why};

#[tokio::test]
async fn toolforge_tree_gives_six_tools_with_maintainers_and_twelve_people() {
    let slapd = site(SlapdOptions::default());
    let read = read(toolforge(ldap(&[&slapd.ldaps_url], &slapd))).await;
    assert_eq!(why(&read), "complete");
    assert_eq!(read.rejected, []);
    assert_eq!(read.server.as_deref(), slapd.ldaps_url.strip_prefix("ldaps://"));
    let mut tools: Vec<_> = sample::TOOLS.iter().map(|(name, ..)| *name).collect();
    tools.sort_unstable();
    assert_eq!(names(&read, AccountKind::Tool), tools);
    for (name, uid, maintainers) in sample::TOOLS {
        let tool = read.entries.iter().find(|entry| entry.name == name).expect("the name exists");
        assert_eq!(tool.posix.as_ref().map(|posix| posix.uid.get()), Some(uid));
        assert_eq!(tool.home, Some(PathBuf::from(format!("/data/project/{name}"))));
        assert!(tool.created.is_some() && tool.id.0.len() == 36, "{tool:?}");
        assert_eq!(members(&read, name), maintainers);
    }
    let mut people: Vec<_> = sample::PEOPLE.iter().map(|(name, _)| *name).chain(["novaadmin"]).collect();
    people.sort_unstable();
    assert_eq!(names(&read, AccountKind::User), people);
    let alice = read.entries.iter().find(|entry| entry.name == "alice").expect("the entry was read");
    assert_eq!(alice.mail.as_deref(), Some("alice@example.org"));
    assert_eq!(alice.display_name.as_deref(), Some("Alice Example"));
    assert_eq!(members(&read, "k8s-admins"), sample::ADMINS);
}

#[tokio::test]
async fn rfc2307_tree_gives_members_by_name() {
    let slapd = site(SlapdOptions::default());
    let tree = |kind, unit: &str| Some(Preset::Rfc2307.tree(kind, &format!("ou={unit},{}", sample::RFC2307_BASE)));
    let mut config = ldap(&[&slapd.ldap_url], &slapd);
    config.starttls = true;
    let read = read(SourceConfig {
        sentinels: Vec::new(),
        tools: tree(AccountKind::Tool, "services"),
        users: tree(AccountKind::User, "people"),
        groups: tree(AccountKind::Group, "groups"),
        attributes: Preset::Rfc2307.attributes(),
        ..toolforge(config)
    })
    .await;
    assert_eq!(why(&read), "complete");
    assert_eq!(names(&read, AccountKind::User), sample::RFC2307_PEOPLE.map(|(name, _)| name));
    for (name, gid, people) in sample::RFC2307_TOOLS {
        assert_eq!(members(&read, name), people);
        let person = read.entries.iter().find(|entry| entry.name == people[0]).and_then(|entry| entry.posix.as_ref());
        assert_eq!(person.map(|posix| posix.groups.iter().map(|gid| gid.get()).collect()), Some(vec![gid]));
    }
    assert_eq!(members(&read, "k8s-admins"), ["sybil"]);
}

#[tokio::test]
async fn twenty_thousand_entries_are_read_in_pages() {
    let bulk_load =
        (0..20_000).fold(String::new(), |ldif, at| ldif + &person_ldif(BASE_DN, &format!("u{at}"), 10_000 + at));
    // The server limits the size of searches without paging.
    let database_lines = vec![format!("limits dn.exact=\"{READER_DN}\" size=1000 size.prtotal=unlimited")];
    let slapd = site(SlapdOptions { database_lines, bulk_load, ..SlapdOptions::default() });
    let read = read(toolforge(ldap(&[&slapd.ldaps_url], &slapd))).await;
    assert_eq!(why(&read), "complete");
    assert_eq!(names(&read, AccountKind::User).len(), 20_000 + sample::PEOPLE.len() + 1);
    println!("20,000 people over LDAPS: {:?}", read.took);
}

#[tokio::test]
async fn a_rename_keeps_the_id() {
    let slapd = site(SlapdOptions::default());
    let source = toolforge(ldap(&[&slapd.ldaps_url], &slapd));
    let before = read(source.clone()).await;
    slapd.modify_ldif(&format!(
        "dn: {}\nchangetype: modrdn\nnewrdn: uid=alicia\ndeleteoldrdn: 1\n\n",
        person_dn(BASE_DN, "alice")
    ));
    let after = read(source).await;
    let id = |read: &SourceRead, name: &str| {
        read.entries.iter().find(|entry| entry.name == name).map(|entry| entry.id.clone())
    };
    assert!(id(&before, "alice").is_some());
    assert_eq!(id(&before, "alice"), id(&after, "alicia"));
}

#[tokio::test]
async fn a_disabled_mark_is_read() {
    let slapd = site(SlapdOptions::default());
    slapd.modify_ldif(&bursar_testkit::ldif::disable_ldif(&bursar_testkit::ldif::tool_account_dn(BASE_DN, "corge")));
    let read = read(toolforge(ldap(&[&slapd.ldaps_url], &slapd))).await;
    let disabled: Vec<_> = read.entries.iter().filter(|entry| entry.disabled.is_some()).collect();
    assert_eq!(disabled.len(), 1);
    let mark = "pwdPolicySubentry: cn=disabled,ou=ppolicies,dc=example,dc=org";
    assert_eq!((disabled[0].name.as_str(), disabled[0].disabled.as_deref()), ("corge", Some(mark)));
}

#[tokio::test]
async fn nested_groups_are_resolved_even_in_cycles() {
    let slapd = site(SlapdOptions::default());
    let dn = |name: &str| format!("cn={name},ou=groups,{BASE_DN}");
    slapd.add_ldif(&group_of_names_ldif(&dn("inner"), "inner", &[dn("outer"), person_dn(BASE_DN, "bob")]));
    slapd.add_ldif(&group_of_names_ldif(&dn("outer"), "outer", &[dn("inner"), dn("k8s-admins")]));
    let read = read(toolforge(ldap(&[&slapd.ldaps_url], &slapd))).await;
    assert_eq!(members(&read, "inner"), ["alice", "bob", "heidi"]);
    assert_eq!(members(&read, "outer"), ["alice", "bob", "heidi"]);
}

#[tokio::test]
async fn the_same_tree_can_be_read_from_files() {
    let folder = Folder::create("ldif");
    let units = unit_ldif(BASE_DN, "unused");
    std::fs::write(folder.path().join("1.ldif"), units).expect("the folder is writable");
    std::fs::write(folder.path().join("2.ldif"), sample::toolforge()).expect("the folder is writable");
    let source = |path: PathBuf| SourceConfig {
        kind: SourceKind::Ldif(LdifConfig { paths: vec![path] }),
        ..toolforge(LdapConfig::new(Vec::new()))
    };
    let whole = read(source(folder.path().to_path_buf())).await;
    assert_eq!(why(&whole), "complete");
    assert_eq!(names(&whole, AccountKind::Tool).len(), 6);
    assert_eq!(names(&whole, AccountKind::User).len(), 13);
    assert_eq!(members(&whole, "foo"), ["alice", "bob"]);

    let mut broken = sample::toolforge();
    let lines = broken.lines().count();
    let _ = write!(broken, "dn: cn=x\nbroken\n");
    let file = folder.path().join("2.ldif");
    std::fs::write(&file, broken).expect("the folder is writable");
    let partial = read(source(folder.path().to_path_buf())).await;
    let expected = format!("{}:{}: neither name: value, nor a comment", file.display(), lines + 2);
    assert_eq!(why(&partial), expected);
    assert_eq!(names(&partial, AccountKind::Tool).len(), 6, "entries before the error are used");

    let absent = read(source(folder.path().join("absent.ldif"))).await;
    assert_why(&absent, &["absent.ldif: cannot be read: No such file or directory"]);
}

#[tokio::test]
async fn a_custom_mark_of_disabled_accounts_is_read() {
    let slapd = site(SlapdOptions::default());
    let mut source = toolforge(ldap(&[&slapd.ldaps_url], &slapd));
    source.attributes.disabled = vec!["loginShell=/bin/bash".parse().expect("the mark is valid")];
    let read = read(source).await;
    let alice = read.entries.iter().find(|entry| entry.name == "alice").and_then(|entry| entry.disabled.as_deref());
    assert_eq!(alice, Some("loginShell: /bin/bash"));
}
