//! Directories as they are: reads of a real `slapd`, and what is said of a read when something is in its way.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bursar::directory::source::{LdapConfig, LdifConfig, Secret};
use bursar::directory::{Completeness, Preset, SourceConfig, SourceKind, SourceRead, fetch};
use bursar::identity::AccountKind;
use bursar::policy::{Lifecycle, Limit, Limits, Policy};
use rustix::process::Signal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::servers::folder::Folder;
use crate::servers::ldif::{group_of_names_ldif, person_dn, person_ldif, unit_ldif};
use crate::servers::pki::Authority;
use crate::servers::sample;
use crate::servers::slapd::{BASE_DN, READER_DN, READER_PASSWORD, Slapd, SlapdOptions};

/// A server with the sample directory, and what else `options` says.
fn site(options: SlapdOptions) -> Slapd {
    Slapd::start(&SlapdOptions { bulk_load: sample::toolforge() + &sample::rfc2307() + &options.bulk_load, ..options })
}

fn ldap(urls: &[&str], slapd: &Slapd) -> LdapConfig {
    LdapConfig {
        ca_pem: Some(std::fs::read_to_string(&slapd.ca_pem).expect("the authority's certificate")),
        bind_dn: Some(READER_DN.to_owned()),
        password: Some(Secret::new(READER_PASSWORD.to_owned())),
        connect_timeout: Duration::from_secs(2),
        ..LdapConfig::new(urls.iter().map(|url| (*url).to_owned()).collect())
    }
}

fn toolforge(ldap: LdapConfig) -> SourceConfig {
    let tree = |kind, unit: &str| Some(Preset::Toolforge.tree(kind, &format!("{unit},{BASE_DN}")));
    SourceConfig {
        name: "people".to_owned(),
        kind: SourceKind::Ldap(ldap),
        sentinels: vec![sample::SENTINEL_DN.to_owned()],
        tools: tree(AccountKind::Tool, "ou=servicegroups"),
        users: tree(AccountKind::User, "ou=people"),
        groups: tree(AccountKind::Group, "ou=groups"),
        attributes: Preset::Toolforge.attributes(),
    }
}

fn policy() -> Policy {
    let limit = Limit { count: 1, percent: None };
    Policy {
        site: "test".to_owned(),
        classes: BTreeMap::new(),
        networks: BTreeMap::new(),
        clusters: BTreeMap::new(),
        limits: Limits {
            suspend_per_cycle: limit,
            suspend_per_day: limit,
            delete_per_cycle: limit,
            delete_per_day: limit,
            remove_members_per_cycle: limit,
            remove_members_per_day: limit,
            change_per_cycle: limit,
        },
        lifecycle: Lifecycle {
            absent_for: Duration::ZERO,
            retention: Duration::ZERO,
            delete_after: Duration::ZERO,
            revoke_on_member_removed: true,
        },
        home_prefixes: vec![PathBuf::from("/data/project"), PathBuf::from("/home")],
    }
}

async fn read(source: SourceConfig) -> SourceRead {
    assert_eq!(source.check(), Ok(()));
    fetch(&[source], &policy()).await.reads.pop().expect("one read for each source")
}

fn names(read: &SourceRead, kind: AccountKind) -> Vec<&str> {
    read.entries.iter().filter(|entry| entry.kind == kind).map(|entry| entry.name.as_str()).collect()
}

/// The names of an entry's members.
fn members<'a>(read: &'a SourceRead, name: &str) -> Vec<&'a str> {
    let entry = read.entries.iter().find(|entry| entry.name == name).expect("it is there");
    let people = read.entries.iter().filter(|person| entry.members.contains_key(&person.id));
    people.map(|person| person.name.as_str()).collect()
}

fn why(read: &SourceRead) -> &str {
    match &read.completeness {
        Completeness::Complete => "complete",
        Completeness::Partial { why } => why,
    }
}

#[track_caller]
fn assert_why(read: &SourceRead, parts: &[&str]) {
    for part in parts {
        assert!(why(read).contains(part), "{part:?} is not in {:?}", why(read));
    }
}

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
        let tool = read.entries.iter().find(|entry| entry.name == name).expect("the tool");
        assert_eq!(tool.posix.as_ref().map(|posix| posix.uid.get()), Some(uid));
        assert_eq!(tool.home, Some(PathBuf::from(format!("/data/project/{name}"))));
        assert!(tool.created.is_some() && tool.id.0.len() == 36, "{tool:?}");
        assert_eq!(members(&read, name), maintainers);
    }
    let mut people: Vec<_> = sample::PEOPLE.iter().map(|(name, _)| *name).chain(["novaadmin"]).collect();
    people.sort_unstable();
    assert_eq!(names(&read, AccountKind::User), people);
    let alice = read.entries.iter().find(|entry| entry.name == "alice").expect("alice");
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
async fn twenty_thousand_entries_come_in_pages() {
    let bulk_load =
        (0..20_000).fold(String::new(), |ldif, at| ldif + &person_ldif(BASE_DN, &format!("u{at}"), 10_000 + at));
    // The server itself limits what is not paged.
    let database_lines = vec![format!("limits dn.exact=\"{READER_DN}\" size=1000 size.prtotal=unlimited")];
    let slapd = site(SlapdOptions { database_lines, bulk_load, ..SlapdOptions::default() });
    let read = read(toolforge(ldap(&[&slapd.ldaps_url], &slapd))).await;
    assert_eq!(why(&read), "complete");
    assert_eq!(names(&read, AccountKind::User).len(), 20_000 + sample::PEOPLE.len() + 1);
    println!("20,000 people over LDAPS: {:?}", read.took);
}

#[tokio::test]
async fn a_server_of_another_authority_is_not_trusted() {
    let slapd = site(SlapdOptions::default());
    for url in [&slapd.ldaps_url, &slapd.ldap_url] {
        let mut config = ldap(&[url], &slapd);
        config.starttls = true;
        config.ca_pem = Some(Authority::new("somebody else").identity().certificate.clone());
        let read = read(toolforge(config)).await;
        let server = url.split("//").last().unwrap_or_default();
        assert_why(&read, &[server, "UnknownIssuer"]);
        assert_eq!((read.entries.len(), read.server), (0, None));
    }
}

#[tokio::test]
async fn a_wrong_password_is_said_and_tried_on_one_server_only() {
    let slapd = site(SlapdOptions::default());
    let mut config = ldap(&[&slapd.ldaps_url, &slapd.ldaps_url], &slapd);
    config.password = Some(Secret::new("wrong".to_owned()));
    let read = read(toolforge(config)).await;
    assert_why(&read, &["bind as cn=bursar,dc=example,dc=org refused: wrong name or password (49)"]);
    assert_eq!(why(&read).matches("bind as").count(), 1);
}

#[tokio::test]
async fn the_second_server_is_asked_where_the_first_refuses() {
    let slapd = site(SlapdOptions::default());
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let silent = format!("ldaps://{}", silent.local_addr().expect("its address"));
    let mut config = ldap(&["ldaps://127.0.0.1:1", &silent, &slapd.ldaps_url], &slapd);
    config.connect_timeout = Duration::from_millis(500);
    let found = read(toolforge(config.clone())).await;
    assert_eq!(why(&found), "complete");
    assert_eq!(found.server.as_deref(), slapd.ldaps_url.strip_prefix("ldaps://"));
    config.urls.pop();
    let lost = read(toolforge(config)).await;
    assert_why(&lost, &["127.0.0.1:1: cannot connect: Connection refused", &silent[8..]]);
}

#[tokio::test]
async fn an_unknown_base_leaves_the_other_trees_readable() {
    let slapd = site(SlapdOptions::default());
    let mut source = toolforge(ldap(&[&slapd.ldaps_url], &slapd));
    source.tools = Some(Preset::Toolforge.tree(AccountKind::Tool, "ou=nowhere,dc=example,dc=org"));
    let read = read(source).await;
    assert_why(&read, &["tools beneath ou=nowhere,dc=example,dc=org: no such base (32)"]);
    assert_eq!(names(&read, AccountKind::User).len(), 13);
}

#[tokio::test]
async fn a_size_limit_makes_the_read_partial() {
    let database_lines = vec![format!("limits dn.exact=\"{READER_DN}\" size.prtotal=5 size=5")];
    let slapd = site(SlapdOptions { database_lines, ..SlapdOptions::default() });
    for page_size in [1000, 2] {
        let mut config = ldap(&[&slapd.ldaps_url], &slapd);
        config.page_size = page_size;
        let read = read(toolforge(config)).await;
        assert_why(&read, &["size limit of the server exceeded (4)", "users beneath", "(after "]);
    }
}

#[tokio::test]
async fn a_read_without_the_sentinel_is_partial() {
    let slapd = site(SlapdOptions::default());
    slapd.delete(sample::SENTINEL_DN);
    let read = read(toolforge(ldap(&[&slapd.ldaps_url], &slapd))).await;
    assert_eq!(why(&read), format!("sentinel not found: {}", sample::SENTINEL_DN));
    assert_eq!(names(&read, AccountKind::User).len(), 12);
}

#[tokio::test]
async fn a_rule_that_hides_uids_rejects_all_and_loses_nobody() {
    let database_lines = vec!["access to attrs=uidNumber by * none".to_owned()];
    let slapd = site(SlapdOptions { database_lines, ..SlapdOptions::default() });
    let read = read(toolforge(ldap(&[&slapd.ldaps_url], &slapd))).await;
    assert_eq!(why(&read), "complete");
    assert_eq!(read.rejected.len(), 6 + 13);
    for rejected in &read.rejected {
        assert_eq!(rejected.why, "uidNumber is missing, or hidden from us");
        assert!(rejected.id.is_some() && rejected.name.is_some(), "{rejected:?}");
    }
    let group = read.entries.iter().find(|entry| entry.name == "k8s-admins").expect("the group");
    assert_eq!(group.members.len(), sample::ADMINS.len(), "members are known by id, not by uid");
}

#[tokio::test]
async fn a_referral_left_over_makes_the_read_partial() {
    let slapd = site(SlapdOptions::default());
    slapd.add_ldif(
        "dn: ou=elsewhere,ou=people,dc=example,dc=org\nobjectClass: referral\nobjectClass: extensibleObject\n\
         ou: elsewhere\nref: ldap://elsewhere.example.org/ou=people,dc=elsewhere\n\n",
    );
    let read = read(toolforge(ldap(&[&slapd.ldaps_url], &slapd))).await;
    assert_why(&read, &["referral to ldap://elsewhere.example.org/", "was not followed"]);
    assert_eq!(names(&read, AccountKind::User).len(), 13);
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
    slapd.modify_ldif(&crate::servers::ldif::disable_ldif(&crate::servers::ldif::tool_account_dn(BASE_DN, "corge")));
    let read = read(toolforge(ldap(&[&slapd.ldaps_url], &slapd))).await;
    let disabled: Vec<_> = read.entries.iter().filter(|entry| entry.disabled.is_some()).collect();
    assert_eq!(disabled.len(), 1);
    let mark = "pwdPolicySubentry: cn=disabled,ou=ppolicies,dc=example,dc=org";
    assert_eq!((disabled[0].name.as_str(), disabled[0].disabled.as_deref()), ("corge", Some(mark)));
}

#[tokio::test]
async fn groups_in_groups_are_resolved_and_cycles_end() {
    let slapd = site(SlapdOptions::default());
    let dn = |name: &str| format!("cn={name},ou=groups,{BASE_DN}");
    slapd.add_ldif(&group_of_names_ldif(&dn("inner"), "inner", &[dn("outer"), person_dn(BASE_DN, "bob")]));
    slapd.add_ldif(&group_of_names_ldif(&dn("outer"), "outer", &[dn("inner"), dn("k8s-admins")]));
    let read = read(toolforge(ldap(&[&slapd.ldaps_url], &slapd))).await;
    assert_eq!(members(&read, "inner"), ["alice", "bob", "heidi"]);
    assert_eq!(members(&read, "outer"), ["alice", "bob", "heidi"]);
}

/// A port that passes everything on to `server`, and does `then` once when `after` bytes have come back.
async fn proxy(server: &str, after: usize, then: impl FnOnce() + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("ldap://{}", listener.local_addr().expect("its address"));
    let server = server.trim_start_matches("ldap://").to_owned();
    tokio::spawn(async move {
        let (client, _) = listener.accept().await.expect("a client");
        let (mut from_client, mut to_client) = client.into_split();
        let (mut from_server, mut to_server) = TcpStream::connect(server).await.expect("the server").into_split();
        tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
        let (mut passed, mut then, mut buffer) = (0, Some(then), [0; 4096]);
        while let Ok(count @ 1..) = from_server.read(&mut buffer).await {
            passed += count;
            if passed > after
                && let Some(then) = then.take()
            {
                then();
            }
            if to_client.write_all(&buffer[..count]).await.is_err() {
                break;
            }
        }
    });
    url
}

fn many_people() -> SlapdOptions {
    let bulk_load =
        (0..2000).fold(String::new(), |ldif, at| ldif + &person_ldif(BASE_DN, &format!("u{at}"), 10_000 + at));
    SlapdOptions { bulk_load, ..SlapdOptions::default() }
}

fn in_the_clear(url: &str, slapd: &Slapd) -> LdapConfig {
    LdapConfig { allow_plaintext: true, page_size: 10, timeout: Duration::from_secs(1), ..ldap(&[url], slapd) }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_killed_in_the_middle_leaves_what_was_read() {
    let slapd = Arc::new(site(many_people()));
    let victim = Arc::clone(&slapd);
    let url = proxy(&slapd.ldap_url, 100_000, move || victim.stop()).await;
    let read = read(toolforge(in_the_clear(&url, &slapd))).await;
    assert_why(&read, &["users beneath ou=people", "connection lost: "]);
    let people = names(&read, AccountKind::User).len();
    assert!((50..2000).contains(&people), "{people} were read");
    assert_eq!(names(&read, AccountKind::Tool).len(), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_server_is_left_after_the_timeout() {
    let slapd = Arc::new(site(many_people()));
    let victim = Arc::clone(&slapd);
    let freeze = move || victim.with_process(|process| process.signal(Signal::STOP));
    let url = proxy(&slapd.ldap_url, 100_000, freeze).await;
    let found = read(toolforge(in_the_clear(&url, &slapd))).await;
    assert_why(&found, &["users beneath ou=people", "no answer within 1s"]);
    let bind = read(toolforge(in_the_clear(&slapd.ldap_url, &slapd))).await;
    assert_why(&bind, &["no answer within 1s"]);
    slapd.with_process(|process| process.signal(Signal::CONT));
}

#[tokio::test]
async fn an_answer_that_is_no_ldap_is_a_reason_and_no_panic() {
    let slapd = site(SlapdOptions::default());
    // An entry without attributes, at which ldap3 panics; a length without bytes; text.
    let answers: [&[u8]; 3] =
        [b"\x30\x0a\x02\x01\x01\x64\x05\x04\x03cn=", b"\x30\x84\xff\xff\xff\xff", b"HTTP/1.1 400\r\n\r\n"];
    for answer in answers {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("ldap://{}", listener.local_addr().expect("its address"));
        tokio::spawn(async move {
            let (mut client, _) = listener.accept().await.expect("a client");
            let mut request = [0; 1024];
            let _ = client.read(&mut request).await;
            let _ = client.write_all(answer).await;
            let _ = client.read(&mut request).await;
        });
        let mut config = in_the_clear(&url, &slapd);
        config.bind_dn = None;
        let read = read(toolforge(config)).await;
        assert_ne!(read.completeness, Completeness::Complete, "{answer:?}");
        assert_why(&read, &[&url[7..]]);
    }
}

/// An element of BER.
fn ber(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let length = u8::try_from(content.len()).expect("short form");
    assert!(length < 128, "short form");
    [&[tag, length][..], &content].concat()
}

/// An entry, and the end of a search with this result code and paging cookie.
fn page(message: u8, code: u8, cookie: Option<&[u8]>) -> Vec<u8> {
    let id = ber(2, &[&[message]]);
    let entry = ber(0x64, &[&ber(4, &[b"uid=a,ou=people,dc=example,dc=org"]), &ber(0x30, &[])]);
    let done = ber(0x65, &[&ber(10, &[&[code]]), &ber(4, &[]), &ber(4, &[])]);
    let control = |cookie: &[u8]| {
        let value = ber(0x30, &[&ber(2, &[&[0]]), &ber(4, &[cookie])]);
        ber(0xa0, &[&ber(0x30, &[&ber(4, &[b"1.2.840.113556.1.4.319"]), &ber(4, &[&value])])])
    };
    let controls = cookie.map(control).unwrap_or_default();
    [ber(0x30, &[&id, &entry]), ber(0x30, &[&id, &done, &controls])].concat()
}

#[tokio::test]
async fn every_page_counts_not_only_the_last() {
    let slapd = site(SlapdOptions::default());
    let stopped = "paging stopped without an end (after 2 entries)";
    let limited = "administrative limit of the server exceeded (11) (after 1 entries)";
    let complete = "entryUUID is missing or hidden in 1 entries";
    for (answers, expected) in [
        (vec![page(1, 0, Some(b"x")), page(2, 0, None)], stopped),
        (vec![page(1, 11, Some(b"x")), page(2, 0, Some(b""))], limited),
        (vec![page(1, 0, Some(b"x")), page(2, 0, Some(b""))], complete),
        (vec![page(1, 0, None)], complete),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("ldap://{}", listener.local_addr().expect("its address"));
        tokio::spawn(async move {
            let (mut client, _) = listener.accept().await.expect("a client");
            for answer in answers {
                let mut request = [0; 4096];
                let _ = client.read(&mut request).await;
                let _ = client.write_all(&answer).await;
            }
            let _ = client.read(&mut [0; 64]).await;
        });
        let mut config = in_the_clear(&url, &slapd);
        config.bind_dn = None;
        let source = SourceConfig { tools: None, groups: None, sentinels: Vec::new(), ..toolforge(config) };
        assert_why(&read(source).await, &[expected]);
    }
}

#[tokio::test]
async fn the_same_tree_from_a_file_is_the_same_but_for_its_ids() {
    let folder = Folder::create("ldif");
    let units = unit_ldif(BASE_DN, "unused");
    std::fs::write(folder.path().join("1.ldif"), units).expect("a file");
    std::fs::write(folder.path().join("2.ldif"), sample::toolforge()).expect("a file");
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
    std::fs::write(&file, broken).expect("a file");
    let partial = read(source(folder.path().to_path_buf())).await;
    let expected = format!("{}:{}: neither name: value, nor a comment", file.display(), lines + 2);
    assert_eq!(why(&partial), expected);
    assert_eq!(names(&partial, AccountKind::Tool).len(), 6, "what stands before it is used");

    let absent = read(source(folder.path().join("absent.ldif"))).await;
    assert_why(&absent, &["absent.ldif: cannot be read: No such file or directory"]);
}

#[tokio::test]
async fn one_source_in_trouble_does_not_touch_another() {
    let slapd = site(SlapdOptions::default());
    let good = toolforge(ldap(&[&slapd.ldaps_url], &slapd));
    let bad = SourceConfig { name: "bad".to_owned(), ..toolforge(ldap(&["ldaps://127.0.0.1:1"], &slapd)) };
    let snapshot = fetch(&[bad, good], &policy()).await;
    assert_eq!(snapshot.reads.iter().map(|read| read.source.as_str()).collect::<Vec<_>>(), ["bad", "people"]);
    assert_ne!(snapshot.reads[0].completeness, Completeness::Complete);
    assert_eq!(why(&snapshot.reads[1]), "complete");
}

#[tokio::test]
async fn attributes_may_be_called_otherwise() {
    let slapd = site(SlapdOptions::default());
    let mut source = toolforge(ldap(&[&slapd.ldaps_url], &slapd));
    source.attributes.disabled = vec!["loginShell=/bin/bash".parse().expect("a mark")];
    let read = read(source).await;
    let alice = read.entries.iter().find(|entry| entry.name == "alice").and_then(|entry| entry.disabled.as_deref());
    assert_eq!(alice, Some("loginShell: /bin/bash"));
}
