//! Servers that are behind an earlier read: no part of their answers is used.

use std::collections::BTreeMap;
use std::sync::Arc;

use bursar::daemon;
use bursar::snapshot::freshness::Marks;
use bursar::snapshot::{Completeness, SourceRead};
use bursar_directory::{Known, LastRead, Pass, SourceConfig, SyncCache, fetch_after};

use super::proxy::{Fault, Proxy};
use super::{assert_same, ldap, policy, read, site, toolforge, why};
use bursar_testkit::ldif::{person_dn, person_ldif};
use bursar_testkit::slapd::{BASE_DN, Slapd, SlapdOptions};

/// A server, and a copy of it to which nothing is replicated from now on.
pub(super) fn two_servers(options: &SlapdOptions) -> (Slapd, Slapd) {
    let (ahead, behind) = (site(options.clone()), Slapd::start(options));
    behind.start_copy(&ahead.dump());
    (ahead, behind)
}

pub(super) fn source(servers: &[&Slapd]) -> SourceConfig {
    let mut config = ldap(&[], servers[0]);
    config.urls = servers.iter().map(|server| server.ldaps_url.clone()).collect();
    // Each server has its own authority.
    let ca = servers.iter().map(|server| std::fs::read_to_string(&server.ca_pem).expect("the file is readable"));
    config.ca_pem = Some(ca.collect());
    toolforge(config)
}

async fn read_after(source: &SourceConfig, pass: &Pass, marks: &Marks) -> SourceRead {
    read_after_answer(source, pass, marks, "").await
}

/// Like [`read_after`], if `server` answered last.
pub(super) async fn read_after_answer(source: &SourceConfig, pass: &Pass, marks: &Marks, server: &str) -> SourceRead {
    let last = LastRead { server: server.to_owned(), marks: Arc::new(marks.clone()), ..LastRead::default() };
    let known: Known = BTreeMap::from([(source.name.clone(), last)]);
    let sources = std::slice::from_ref(source);
    let mut snapshot = fetch_after(sources, pass, &known, &policy(), daemon::now()).await;
    snapshot.reads.pop().expect("every source has a read")
}

fn change(slapd: &Slapd) {
    let dn = person_dn(BASE_DN, "alice");
    slapd
        .modify_ldif(&format!("dn: {dn}\nchangetype: modify\nreplace: displayName\ndisplayName: Alice the Second\n\n"));
}

fn host(slapd: &Slapd) -> &str {
    slapd.ldaps_url.trim_start_matches("ldaps://")
}

#[tokio::test]
async fn the_next_server_is_asked_if_the_first_is_behind() {
    let (ahead, behind) = two_servers(&SlapdOptions::default());
    change(&ahead);
    let seen = read(source(&[&ahead])).await;
    assert_eq!(seen.marks.changes.len(), 1, "{:?}", seen.marks);
    let both = source(&[&behind, &ahead]);
    for pass in [Pass::Once, Pass::Changes(SyncCache::default()), Pass::Whole(SyncCache::default())] {
        let found = read_after(&both, &pass, &seen.marks).await;
        assert_same(&found, &seen);
        assert_eq!(found.server.as_deref(), Some(host(&ahead)));
        assert!(found.behind[host(&behind)].why.contains("contextCSN"), "{:?}", found.behind);
    }
}

#[tokio::test]
async fn a_source_whose_servers_are_all_behind_gives_no_answer() {
    let (ahead, behind) = two_servers(&SlapdOptions::default());
    change(&ahead);
    let seen = read(source(&[&ahead])).await;
    let alone = source(&[&behind]);
    let memory = SyncCache::default();
    for pass in [Pass::Once, Pass::Changes(memory.clone()), Pass::Changes(memory)] {
        let found = read_after(&alone, &pass, &seen.marks).await;
        assert!(
            matches!(&found.completeness, Completeness::Stale { server, .. } if server == host(&behind)),
            "{}",
            why(&found)
        );
        assert_eq!((found.entries.len(), found.rejected.len(), found.server), (0, 0, None));
    }
    assert_eq!(
        why(&read_after(&alone, &Pass::Once, &Marks::default()).await),
        "complete",
        "without an earlier read, no server is behind"
    );
}

#[tokio::test]
async fn without_context_csn_a_stale_server_is_recognized_by_its_entries() {
    let hidden = vec!["access to attrs=contextCSN by * none".to_owned()];
    let (ahead, behind) = two_servers(&SlapdOptions { database_lines: hidden, ..SlapdOptions::default() });
    change(&ahead);
    let seen = read(source(&[&ahead])).await;
    assert!(seen.marks.changes.is_empty() && seen.marks.entries.len() > 20, "{:?}", seen.marks);
    let found = read_after(&source(&[&behind, &ahead]), &Pass::Changes(SyncCache::default()), &seen.marks).await;
    assert_eq!((why(&found), found.server.as_deref()), ("complete", Some(host(&ahead))));
    assert!(found.behind[host(&behind)].why.contains("went back"), "{:?}", found.behind);
    let alone = read_after(&source(&[&behind]), &Pass::Once, &seen.marks).await;
    assert!(matches!(alone.completeness, Completeness::Stale { .. }), "{}", why(&alone));
    // The connection breaks before the last tree was read.
    let proxy = Proxy::to(&behind.ldaps_url).await;
    let cut = toolforge(ldap(&[&proxy.url("ldaps")], &behind));
    assert_eq!(why(&read(cut.clone()).await), "complete");
    proxy.set(Fault::Cut(proxy.bytes() - 200));
    let found = read_after(&cut, &Pass::Once, &seen.marks).await;
    assert!(matches!(found.completeness, Completeness::Stale { .. }), "{}", why(&found));
}

#[tokio::test]
async fn a_restored_server_is_stale_after_somebody_wrote_to_it() {
    let slapd = site(SlapdOptions::default());
    let backup = slapd.dump();
    change(&slapd);
    let source = source(&[&slapd]);
    let seen = read(source.clone()).await;
    let server = seen.server.clone().expect("a server answered");
    slapd.start_copy(&backup);
    // Now its contextCSN is newer than the one that was seen.
    let bob = person_dn(BASE_DN, "bob");
    slapd.modify_ldif(&format!("dn: {bob}\nchangetype: modify\nreplace: displayName\ndisplayName: Bobby\n\n"));
    for pass in [Pass::Once, Pass::Changes(SyncCache::default())] {
        let found = read_after_answer(&source, &pass, &seen.marks, &server).await;
        assert!(matches!(found.completeness, Completeness::Stale { .. }), "{}", why(&found));
        assert!(found.behind[host(&slapd)].why.contains("went back"), "{:?}", found.behind);
    }
    // An entry that is added by LDAP gets a new time, even if it existed before.
    let seen = read(source.clone()).await;
    slapd.delete(&bob);
    slapd.add_ldif(&person_ldif(BASE_DN, "bob", 2002));
    assert_eq!(why(&read_after_answer(&source, &Pass::Once, &seen.marks, &server).await), "complete");
}

#[tokio::test]
async fn a_server_is_not_stale_after_the_deletion_of_its_newest_entry() {
    for lines in [Vec::new(), vec!["access to attrs=contextCSN by * none".to_owned()]] {
        let slapd = site(SlapdOptions { database_lines: lines, ..SlapdOptions::default() });
        slapd.add_ldif(&person_ldif(BASE_DN, "newest", 20_001));
        let source = source(&[&slapd]);
        let seen = read(source.clone()).await;
        slapd.delete(&person_dn(BASE_DN, "newest"));
        let found = read_after(&source, &Pass::Once, &seen.marks).await;
        assert_eq!((why(&found), found.behind.len()), ("complete", 0));
        assert_eq!(found.entries.len() + 1, seen.entries.len());
    }
}

#[tokio::test]
async fn a_killed_server_is_not_stale_after_its_restart() {
    let slapd = site(SlapdOptions::default());
    let source = source(&[&slapd]);
    change(&slapd);
    let seen = read(source.clone()).await;
    slapd.stop();
    slapd.start_again();
    let pass = Pass::Changes(SyncCache::default());
    let server = seen.server.clone().expect("a server answered");
    let found = read_after_answer(&source, &pass, &seen.marks, &server).await;
    assert_same(&found, &seen);
}

#[tokio::test]
async fn a_refused_bind_is_not_repeated_at_once() {
    let slapd = site(SlapdOptions::default());
    let mut config = ldap(&[&slapd.ldaps_url], &slapd);
    config.password = Some(bursar_directory::source::Secret::new("wrong".to_owned()));
    let source = toolforge(config);
    let memory = SyncCache::default();
    let pass = Pass::Changes(memory.clone());
    let said = |read: &SourceRead| (why(read).contains("refused"), why(read).contains("not tried again for"));
    assert_eq!(said(&read_after(&source, &pass, &Marks::default()).await), (true, false));
    assert_eq!(said(&read_after(&source, &pass, &Marks::default()).await), (true, true));
    let other = toolforge(ldap(&[&slapd.ldaps_url], &slapd));
    assert_eq!(
        why(&read_after(&other, &pass, &Marks::default()).await),
        "complete",
        "another password is tried at once"
    );
    assert_eq!(said(&read_after(&source, &pass, &Marks::default()).await), (true, false));
    memory.forget_refusals();
    assert_eq!(said(&read_after(&source, &pass, &Marks::default()).await), (true, false));
}

#[tokio::test]
async fn a_unix_socket_authenticates_the_reader() {
    let map = "authz-regexp \"^gidNumber=.*,cn=peercred,cn=external,cn=auth$\" \"cn=bursar,dc=example,dc=org\"";
    let slapd = site(SlapdOptions { global_lines: vec![map.to_owned()], ..SlapdOptions::default() });
    let mut config = ldap(&[&slapd.ldapi_url], &slapd);
    (config.bind_dn, config.password) = (None, None);
    let found = read(toolforge(config)).await;
    assert_same(&found, &read(toolforge(ldap(&[&slapd.ldaps_url], &slapd))).await);
    assert!(found.server.is_some_and(|server| server.starts_with('/')));
}

/// A name server with one SRV record, which it returns to every client.
async fn zone(target: &str, port: u16) -> std::net::SocketAddr {
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.expect("the system has a free port");
    let address = socket.local_addr().expect("a listener has an address");
    let mut data = [&[0, 10, 0, 5][..], &port.to_be_bytes()].concat();
    for label in target.split('.') {
        data.push(u8::try_from(label.len()).expect("the length fits in a byte"));
        data.extend(label.bytes());
    }
    data.push(0);
    tokio::spawn(async move {
        let mut question = [0; 512];
        while let Ok((length, client)) = socket.recv_from(&mut question).await {
            // The question without its OPT record.
            let mut answer = question[..length - 11].to_vec();
            answer[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0]);
            answer.extend([0xc0, 12, 0, 33, 0, 1, 0, 0, 0, 60, 0, u8::try_from(data.len()).expect("fits in a byte")]);
            answer.extend(&data);
            let _ = socket.send_to(&answer, client).await;
        }
    });
    address
}

#[tokio::test]
async fn servers_are_found_by_srv_records() {
    let slapd = site(SlapdOptions::default());
    let port = host(&slapd).rsplit(':').next().and_then(|port| port.parse().ok()).expect("the URL has a port");
    // The certificate is also valid for this name.
    let zone = zone("localhost", port).await;
    let mut config = ldap(&["ldaps://_ldap._tcp.example.org"], &slapd);
    config.dns = Some(zone);
    let found = read(toolforge(config.clone())).await;
    assert_eq!((why(&found), found.server.as_deref()), ("complete", Some(format!("localhost:{port}").as_str())));
    // A name server that never answers.
    let silent = tokio::net::UdpSocket::bind("127.0.0.1:0").await.expect("the system has a free port");
    config.dns = Some(silent.local_addr().expect("a listener has an address"));
    config.connect_timeout = std::time::Duration::from_millis(300);
    assert!(why(&read(toolforge(config)).await).contains("no SRV records within"));
}
