//! The presets rfc2307bis and freeipa on a real `slapd` with their schemas, and binding with a client certificate.

use std::path::{Path, PathBuf};

use bursar::identity::AccountKind;
use bursar::snapshot::SourceRead;
use bursar_directory::source::{ClientIdentity, LdapConfig, Secret};
use bursar_directory::{Preset, SourceConfig};
use bursar_testkit::ldif::{person_dn, person_ldif, replace_ldif, unit_ldif};
use bursar_testkit::slapd::{BASE_DN, READER_DN, Slapd, SlapdOptions};

use super::{assert_why, ldap, members, names, read, site, toolforge, why};
use crate::world::{World, all_is_well};

/// Schema of 389-ds that slapd lacks. In 389-ds, only the server writes these attributes; here, the tests write them.
const DIRECTORY_SERVER: &str = "\
    include /etc/ldap/schema/dsee.schema\n\
    attributetype ( 2.16.840.1.113730.3.1.610 NAME 'nsAccountLock' EQUALITY caseIgnoreMatch\n  \
      SYNTAX 1.3.6.1.4.1.1466.115.121.1.15 SINGLE-VALUE )\n\
    attributetype ( 2.16.840.1.113719.1.301.4.6.1 NAME 'krbPrincipalExpiration' EQUALITY generalizedTimeMatch\n  \
      ORDERING generalizedTimeOrderingMatch SYNTAX 1.3.6.1.4.1.1466.115.121.1.24 SINGLE-VALUE )\n\
    objectclass ( 1.3.6.1.4.1.32473.1.1 NAME 'directoryServerEntry' SUP top AUXILIARY\n  \
      MAY ( nsUniqueId $ nsAccountLock $ krbPrincipalExpiration ) )";

fn bis(database_lines: &[&str], global_lines: &[&str]) -> Slapd {
    let slapd = Slapd::start(&SlapdOptions {
        posix_schema: Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/rfc2307bis.schema"),
        database_lines: database_lines.iter().map(|line| (*line).to_owned()).collect(),
        global_lines: global_lines.iter().map(|line| (*line).to_owned()).collect(),
        ..SlapdOptions::default()
    });
    slapd.add_ldif(&(unit_ldif(BASE_DN, "people") + &unit_ldif(BASE_DN, "groups")));
    slapd
}

fn group_dn(name: &str) -> String {
    format!("cn={name},ou=groups,{BASE_DN}")
}

/// A group in the form of both presets: groupOfNames and posixGroup in one entry.
fn group(name: &str, gid: u32, members: &[String], more: &str) -> String {
    let members = members.iter().fold(String::new(), |lines, member| lines + "member: " + member + "\n");
    let dn = group_dn(name);
    format!(
        "dn: {dn}\nobjectClass: groupOfNames\nobjectClass: posixGroup\n{more}cn: {name}\ngidNumber: {gid}\n{members}\n"
    )
}

fn source(preset: Preset, ldap: LdapConfig) -> SourceConfig {
    let tree = |kind, unit: &str| Some(preset.tree(kind, &format!("ou={unit},{BASE_DN}")));
    SourceConfig {
        sentinels: Vec::new(),
        tools: None,
        users: tree(AccountKind::User, "people"),
        groups: tree(AccountKind::Group, "groups"),
        attributes: preset.attributes(),
        ..toolforge(ldap)
    }
}

fn gids(read: &SourceRead, name: &str) -> Vec<u32> {
    let entry = read.entries.iter().find(|entry| entry.name == name).expect("the entry is in the read");
    entry.posix.iter().flat_map(|posix| &posix.groups).map(|gid| gid.get()).collect()
}

#[tokio::test]
async fn rfc2307bis_groups_name_people_and_groups_by_dn() {
    let slapd = bis(&[], &[]);
    let dn = |name| person_dn(BASE_DN, name);
    slapd.add_ldif(&(person_ldif(BASE_DN, "alice", 2001) + &person_ldif(BASE_DN, "bob", 2002)));
    slapd.add_ldif(&group("inner", 3001, &[dn("bob")], ""));
    slapd.add_ldif(&group("outer", 3002, &[dn("alice"), group_dn("inner")], "objectClass: top\n"));
    let found = read(source(Preset::Rfc2307bis, ldap(&[&slapd.ldaps_url], &slapd))).await;
    assert_eq!((why(&found), found.rejected.len()), ("complete", 0));
    assert_eq!(members(&found, "outer"), ["alice", "bob"]);
    assert_eq!((gids(&found, "alice"), gids(&found, "bob")), (vec![3002], vec![3001, 3002]));
}

#[tokio::test]
async fn rfc2307bis_groups_with_hidden_members_make_the_read_partial() {
    let slapd = bis(&["access to attrs=member by * none"], &[]);
    slapd.add_ldif(&person_ldif(BASE_DN, "alice", 2001));
    slapd.add_ldif(&group("lab", 3001, &[person_dn(BASE_DN, "alice")], ""));
    let mut source = source(Preset::Rfc2307bis, ldap(&[&slapd.ldaps_url], &slapd));
    assert_why(&read(source.clone()).await, &["members are hidden in 1 groups"]);
    source.attributes.members_required = false;
    assert_eq!(why(&read(source).await), "complete");
}

/// The access rules in docs/directories.md, in the syntax of slapd.conf: its only block of code with `access to`.
fn rules_of_the_manual() -> Vec<&'static str> {
    let manual = include_str!("../../../docs/directories.md");
    let lines = manual.lines().skip_while(|line| !line.starts_with("    access to"));
    let found: Vec<&str> = lines.take_while(|line| line.starts_with("    ")).collect();
    let rules = |text: &str| text.matches("    access to ").count();
    assert_eq!(rules(&found.join("\n")), rules(manual), "the block has all rules of the page");
    found.into_iter().map(|line| &line[4..]).collect()
}

#[tokio::test]
async fn the_access_rules_of_the_manual_are_sufficient_and_minimal() {
    let before = ["access to attrs=userPassword by anonymous auth by * none"];
    let lines = [&before[..], &rules_of_the_manual(), &["access to * by * none"]].concat();
    let slapd = bis(&lines, &[]);
    slapd.add_ldif(&person_ldif(BASE_DN, "alice", 2001));
    slapd.add_ldif(&group("lab", 3001, &[person_dn(BASE_DN, "alice")], ""));
    let mut source = source(Preset::Rfc2307bis, ldap(&[&slapd.ldaps_url], &slapd));
    let found = read(source.clone()).await;
    assert_eq!((why(&found), found.rejected.len()), ("complete", 0));
    assert_eq!((members(&found, "lab"), gids(&found, "alice")), (vec!["alice"], vec![3001]));
    let alice = &found.entries[0];
    assert!(alice.mail.is_some() && alice.display_name.is_some() && alice.created.is_some(), "{alice:?}");
    assert_eq!(found.marks.changes.len(), 1, "the suffix shows its contextCSN: {:?}", found.marks);
    // Every person has the attribute `sn`, but the rules hide it.
    source.attributes.mail = "sn".to_owned();
    assert_eq!(read(source).await.entries[0].mail, None);
}

/// A person of `FreeIPA`, with the attributes that 389-ds would write itself.
fn ipa_person(name: &str, uid: u32, id: &str, more: &str) -> String {
    let person = person_ldif(BASE_DN, name, uid).trim_end().to_owned();
    format!("{person}\nobjectClass: directoryServerEntry\nnsUniqueId: {id}\n{more}\n")
}

const ID: &str = "a1b2c3d4-1dd211b2-8f6ac3d4-e5f60718";

/// The marks of the paragraph "Expiry" in docs/directories.md.
#[tokio::test]
async fn accounts_expire_by_shadow_expire_and_pwd_end_time() {
    let slapd = site(SlapdOptions::default());
    let marks = ["pwdAccountLockedTime=000001010000Z", "shadowExpire<today", "pwdEndTime<now"];
    let mut source = toolforge(ldap(&[&slapd.ldaps_url], &slapd));
    source.attributes.disabled = marks.map(|mark| mark.parse().expect("the mark is valid")).to_vec();
    for (name, days) in [("alice", "18000"), ("bob", "99999"), ("carol", "-1")] {
        slapd.modify_ldif(&format!(
            "dn: {}\nchangetype: modify\nadd: objectClass\nobjectClass: shadowAccount\n-\nadd: shadowExpire\n\
             shadowExpire: {days}\n\n",
            person_dn(BASE_DN, name)
        ));
    }
    for (name, end) in [("dave", "20200101000000Z"), ("erin", "20990101000000Z")] {
        slapd.modify_ldif(&replace_ldif(&person_dn(BASE_DN, name), "pwdEndTime", &[end]));
    }
    let found = read(source).await;
    assert_eq!((why(&found), found.rejected.len()), ("complete", 0));
    let people = found.entries.iter().filter(|entry| entry.kind == AccountKind::User);
    let disabled: Vec<_> = people.filter_map(|entry| Some((entry.name.as_str(), entry.disabled.as_deref()?))).collect();
    let expired = [("alice", "shadowExpire: 18000 (2019-04-14)"), ("dave", "pwdEndTime: 2020-01-01T00:00:00Z")];
    assert_eq!(disabled, expired);
}

#[tokio::test]
async fn freeipa_entries_have_ns_unique_id_and_marks_of_disabled_accounts() {
    let slapd = bis(&[], &[DIRECTORY_SERVER]);
    slapd.add_ldif(&ipa_person("alice", 2001, ID, "nsAccountLock: FALSE\n"));
    slapd.add_ldif(&ipa_person("bob", 2002, "b", "nsAccountLock: TRUE\n"));
    slapd.add_ldif(&ipa_person("carol", 2003, "c", "krbPrincipalExpiration: 20200101000000Z\n"));
    slapd.add_ldif(&ipa_person("dave", 2004, "d", "krbPrincipalExpiration: 20990101000000Z\n"));
    let found = read(source(Preset::FreeIpa, ldap(&[&slapd.ldaps_url], &slapd))).await;
    assert_eq!(why(&found), "complete");
    let marks: Vec<_> = found.entries.iter().map(|entry| (entry.id.0.as_str(), entry.disabled.as_deref())).collect();
    let expired = "krbPrincipalExpiration: 2020-01-01T00:00:00Z";
    assert_eq!(marks, [(ID, None), ("b", Some("nsAccountLock: TRUE")), ("c", Some(expired)), ("d", None)]);

    slapd.modify_ldif(&replace_ldif(&person_dn(BASE_DN, "bob"), "nsAccountLock", &[]));
    let found = read(source(Preset::FreeIpa, ldap(&[&slapd.ldaps_url], &slapd))).await;
    assert_eq!(found.entries[1].disabled, None);
}

#[tokio::test]
async fn freeipa_groups_with_hidden_members_get_them_from_member_of() {
    let dn = |name| person_dn(BASE_DN, name);
    let fill = |slapd: &Slapd| {
        slapd.add_ldif(&(ipa_person("alice", 2001, "a", "") + &ipa_person("bob", 2002, "b", "")));
        let class = "objectClass: directoryServerEntry\nnsUniqueId: g";
        slapd.add_ldif(&group("inner", 3001, &[dn("bob")], &format!("{class}1\n")));
        slapd.add_ldif(&group("outer", 3002, &[dn("alice"), group_dn("inner")], &format!("{class}2\n")));
    };
    let open = bis(&[], &[DIRECTORY_SERVER]);
    fill(&open);
    let seen = read(source(Preset::FreeIpa, ldap(&[&open.ldaps_url], &open))).await;
    let hidden = bis(&["access to attrs=member by * none"], &[DIRECTORY_SERVER]);
    fill(&hidden);
    let said = read(source(Preset::FreeIpa, ldap(&[&hidden.ldaps_url], &hidden))).await;
    for found in [seen, said] {
        assert_eq!((why(&found), found.rejected.len()), ("complete", 0));
        assert_eq!(names(&found, AccountKind::User), ["alice", "bob"]);
        assert_eq!(members(&found, "outer"), ["alice", "bob"]);
        assert_eq!(members(&found, "inner"), ["bob"]);
    }
}

fn identity(certificate: &Path) -> ClientIdentity {
    let text = |path: PathBuf| std::fs::read_to_string(path).expect("the file is readable");
    ClientIdentity {
        certificate_pem: text(certificate.to_path_buf()),
        key: Some(Secret::new(text(certificate.with_extension("key")))),
    }
}

#[tokio::test]
async fn a_client_certificate_authenticates_the_reader() {
    // Without a bind, the access rule for the reader does not apply, and no entry is visible.
    let slapd = super::site(SlapdOptions::default());
    let with = |identity: Option<ClientIdentity>, url: &str| {
        let config = ldap(&[url], &slapd);
        toolforge(LdapConfig { bind_dn: None, password: None, identity, starttls: url == slapd.ldap_url, ..config })
    };
    for url in [&slapd.ldaps_url, &slapd.ldap_url] {
        let found = read(with(Some(identity(&slapd.client_pem)), url)).await;
        assert_eq!(why(&found), "complete", "{READER_DN} sees all over {url}");
        assert_eq!(names(&found, AccountKind::Tool).len(), 6);
    }
    assert_why(&read(with(None, &slapd.ldaps_url)).await, &["users beneath ou=people"]);

    let other = bursar_testkit::pki::Authority::new("somebody else").client("bursar", "daemons");
    let stranger = ClientIdentity { certificate_pem: other.certificate, key: Some(Secret::new(other.key)) };
    let refused = read(with(Some(stranger), &slapd.ldaps_url)).await;
    assert_ne!(why(&refused), "complete");
    let broken = ClientIdentity { certificate_pem: "hello".to_owned(), key: Some(Secret::new("x".to_owned())) };
    assert_why(&read(with(Some(broken), &slapd.ldaps_url)).await, &["client_certificate or client_key is not PEM"]);
}

#[test]
fn a_site_with_a_client_certificate_works_and_doctor_shows_its_expiry() {
    let mut world = World::new("external");
    let password = format!("password  = {{ file = \"{}/ldap-password\" }}\n", world.folder.display());
    world.configure(&format!("bind_dn   = \"{READER_DN}\"\n"), "");
    let certificate = &world.servers.slapd.client_pem;
    let (certificate, key) = (certificate.display(), certificate.with_extension("key"));
    let identity = format!("client_certificate = \"{certificate}\"\nclient_key = {{ file = \"{}\" }}\n", key.display());
    world.configure(&password, &identity);
    world.tool("ext", 62_801, &[]);
    all_is_well(&world.cycle());
    let said = world.bursar("doctor");
    assert!(said.contains("source people, client_certificate: it is good until "), "{said}");
}
