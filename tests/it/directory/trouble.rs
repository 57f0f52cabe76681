//! What a disturbed read reports, and which entries it still returns.

use std::sync::Arc;
use std::time::Duration;

use bursar::identity::AccountKind;
use bursar::snapshot::Completeness;
use bursar_directory::source::{LdapConfig, Secret};
use bursar_directory::{Pass, Preset, SourceConfig, fetch};
use bursar_testkit::ldif::person_ldif;
use bursar_testkit::pki::Authority;
use bursar_testkit::sample;
use bursar_testkit::slapd::{BASE_DN, READER_DN, Slapd, SlapdOptions};
use rustix::process::Signal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::{assert_why, ldap, names, policy, read, site, toolforge, why};

#[tokio::test]
async fn a_certificate_of_another_authority_is_not_trusted() {
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
async fn a_wrong_password_is_reported_and_tried_on_one_server_only() {
    let slapd = site(SlapdOptions::default());
    let mut config = ldap(&[&slapd.ldaps_url, &slapd.ldaps_url], &slapd);
    config.password = Some(Secret::new("wrong".to_owned()));
    let read = read(toolforge(config)).await;
    assert_why(&read, &["bind as cn=bursar,dc=example,dc=org refused: wrong name or password (49)"]);
    assert_eq!(why(&read).matches("bind as").count(), 1);
}

#[tokio::test]
async fn the_next_server_is_asked_if_the_first_cannot_be_reached() {
    let slapd = site(SlapdOptions::default());
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("the system has a free port");
    let silent = format!("ldaps://{}", silent.local_addr().expect("a listener has an address"));
    let mut config = ldap(&["ldaps://127.0.0.1:1", &silent, &slapd.ldaps_url], &slapd);
    config.connect_timeout = Duration::from_secs(5);
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
async fn a_rule_that_hides_uids_rejects_all_entries_but_the_read_is_complete() {
    let database_lines = vec!["access to attrs=uidNumber by * none".to_owned()];
    let slapd = site(SlapdOptions { database_lines, ..SlapdOptions::default() });
    let read = read(toolforge(ldap(&[&slapd.ldaps_url], &slapd))).await;
    assert_eq!(why(&read), "complete");
    assert_eq!(read.rejected.len(), 6 + 13);
    for rejected in &read.rejected {
        assert_eq!(rejected.why, "uidNumber is missing, or hidden from Bursar");
        assert!(rejected.id.is_some() && rejected.name.is_some(), "{rejected:?}");
    }
    let group = read.entries.iter().find(|entry| entry.name == "k8s-admins").expect("the name exists");
    assert_eq!(group.members.len(), sample::ADMINS.len(), "members are recognized by id, not by uid");
}

#[tokio::test]
async fn a_rule_that_hides_members_makes_the_read_partial() {
    let database_lines = vec!["access to attrs=member by * none".to_owned()];
    let slapd = site(SlapdOptions { database_lines, ..SlapdOptions::default() });
    let read = read(toolforge(ldap(&[&slapd.ldaps_url], &slapd))).await;
    assert_why(&read, &["members are hidden in 7 groups, such as cn="]);
    assert_eq!(names(&read, AccountKind::Tool).len(), 6);
}

#[tokio::test]
async fn a_referral_makes_the_read_partial() {
    let slapd = site(SlapdOptions::default());
    slapd.add_ldif(
        "dn: ou=elsewhere,ou=people,dc=example,dc=org\nobjectClass: referral\nobjectClass: extensibleObject\n\
         ou: elsewhere\nref: ldap://elsewhere.example.org/ou=people,dc=elsewhere\n\n",
    );
    let read = read(toolforge(ldap(&[&slapd.ldaps_url], &slapd))).await;
    assert_why(&read, &["referral to ldap://elsewhere.example.org/", "was not followed"]);
    assert_eq!(names(&read, AccountKind::User).len(), 13);
}

/// Starts a proxy to `server`, and calls `then` once after `after` bytes of its answers.
async fn proxy(server: &str, after: usize, then: impl FnOnce() + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("the system has a free port");
    let url = format!("ldap://{}", listener.local_addr().expect("a listener has an address"));
    let server = server.trim_start_matches("ldap://").to_owned();
    tokio::spawn(async move {
        let (client, _) = listener.accept().await.expect("the listener accepts connections");
        let (mut from_client, mut to_client) = client.into_split();
        let (mut from_server, mut to_server) =
            TcpStream::connect(server).await.expect("the server listens").into_split();
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
    LdapConfig { allow_plaintext: true, page_size: 10, timeout: Duration::from_secs(5), ..ldap(&[url], slapd) }
}

#[tokio::test(flavor = "multi_thread")]
async fn if_the_server_is_killed_during_a_read_the_entries_so_far_are_kept() {
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
async fn a_read_from_a_frozen_server_ends_after_the_timeout() {
    let slapd = Arc::new(site(many_people()));
    let victim = Arc::clone(&slapd);
    let freeze = move || victim.with_process(|process| process.signal(Signal::STOP));
    let url = proxy(&slapd.ldap_url, 100_000, freeze).await;
    let found = read(toolforge(in_the_clear(&url, &slapd))).await;
    assert_why(&found, &["users beneath ou=people", "no answer within 5s"]);
    let bind = read(toolforge(in_the_clear(&slapd.ldap_url, &slapd))).await;
    assert_why(&bind, &["no answer within 5s"]);
    slapd.with_process(|process| process.signal(Signal::CONT));
}

#[tokio::test]
async fn an_answer_that_is_not_ldap_makes_the_read_partial() {
    let slapd = site(SlapdOptions::default());
    // An entry without attributes, on which ldap3 panics; a length without content; text.
    let answers: [&[u8]; 3] =
        [b"\x30\x0a\x02\x01\x01\x64\x05\x04\x03cn=", b"\x30\x84\xff\xff\xff\xff", b"HTTP/1.1 400\r\n\r\n"];
    for answer in answers {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("the system has a free port");
        let url = format!("ldap://{}", listener.local_addr().expect("a listener has an address"));
        tokio::spawn(async move {
            let (mut client, _) = listener.accept().await.expect("the listener accepts connections");
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

/// A BER element.
fn ber(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let length = u8::try_from(content.len()).expect("the length fits in a byte");
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
    let stopped = "the server stopped paging before the last page (after 2 entries)";
    let limited = "administrative limit of the server exceeded (11) (after 1 entries)";
    let complete = "no usable entryUUID in 1 entries";
    for (answers, expected) in [
        (vec![page(2, 0, Some(b"x")), page(3, 0, None)], stopped),
        (vec![page(2, 11, Some(b"x")), page(3, 0, Some(b""))], limited),
        (vec![page(2, 0, Some(b"x")), page(3, 0, Some(b""))], complete),
        (vec![page(2, 0, None)], complete),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("the system has a free port");
        let url = format!("ldap://{}", listener.local_addr().expect("a listener has an address"));
        tokio::spawn(async move {
            let (mut client, _) = listener.accept().await.expect("the listener accepts connections");
            // The first answer refuses the read of the root DSE (50), so its features and state stay unknown.
            for answer in std::iter::once(page(1, 50, None)).chain(answers) {
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
async fn a_failing_source_does_not_affect_another() {
    let slapd = site(SlapdOptions::default());
    let good = toolforge(ldap(&[&slapd.ldaps_url], &slapd));
    let bad = SourceConfig { name: "bad".to_owned(), ..toolforge(ldap(&["ldaps://127.0.0.1:1"], &slapd)) };
    let snapshot = fetch(&[bad, good], &Pass::Once, &policy(), bursar::daemon::now()).await;
    assert_eq!(snapshot.reads.iter().map(|read| read.source.as_str()).collect::<Vec<_>>(), ["bad", "people"]);
    assert_ne!(snapshot.reads[0].completeness, Completeness::Complete);
    assert_eq!(why(&snapshot.reads[1]), "complete");
}
