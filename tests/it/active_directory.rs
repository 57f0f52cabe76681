//! Reads of a real domain controller, and a cycle from there to a kubeconfig.

mod cycle;
mod incremental;
mod members;
mod numbers;
mod proxy;

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use bursar::identity::AccountKind;
use bursar::snapshot::freshness::Marks;
use bursar::snapshot::proof::{Due, EntryPlace};
use bursar::snapshot::{Completeness, DirectorySnapshot};
use bursar_directory::entry::sid::Sid;
use bursar_directory::source::{LdapConfig, Secret, SidMapping};
use bursar_directory::{Known, LastRead, Pass, Preset, SourceConfig, SourceKind, SyncCache, confirm, fetch_after};
use bursar_testkit::samba::{DOMAIN_DN, READER, READER_PASSWORD, Samba, password, person_ldif};

use crate::directory::{assert_why, names, policy, read, why};

/// 1 January 2020 in the format of `accountExpires`.
const LONG_AGO: &str = "132223104000000000";

fn ldap(samba: &Samba, url: &str) -> LdapConfig {
    LdapConfig {
        ca_pem: Some(std::fs::read_to_string(&samba.ca_pem).expect("the file is readable")),
        bind_dn: Some(READER.to_owned()),
        password: Some(Secret::new(READER_PASSWORD.to_owned())),
        connect_timeout: Duration::from_secs(10),
        ..LdapConfig::new(vec![url.to_owned()])
    }
}

/// Returns a source with the people and groups beneath `base`, read with the preset.
fn source(samba: &Samba, base: &str) -> SourceConfig {
    with(ldap(samba, &samba.ldaps_url), base)
}

fn with(ldap: LdapConfig, base: &str) -> SourceConfig {
    SourceConfig {
        name: "ad".to_owned(),
        kind: SourceKind::Ldap(ldap),
        sentinels: Vec::new(),
        tools: None,
        users: Some(Preset::Ad.tree(AccountKind::User, base)),
        groups: Some(Preset::Ad.tree(AccountKind::Group, base)),
        attributes: Preset::Ad.attributes(),
        sids: SidMapping::default(),
    }
}

/// Returns the RID of an object, as the administrator's tools show it.
fn rid(samba: &Samba, dn: &str) -> u32 {
    let found = samba.search(dn, "(objectSid=*)", &["objectSid"]);
    let value =
        found.lines().find_map(|line| line.strip_prefix("objectSid:: ")).expect("the entry has a SID in base64");
    let bytes = base64::engine::general_purpose::STANDARD.decode(value).expect("the value is base64");
    let (_, rid) = Sid::from_bytes(&bytes).and_then(|sid| sid.in_domain()).expect("the SID belongs to the domain");
    assert_eq!(bytes[bytes.len() - 4..], rid.to_le_bytes());
    rid
}

#[tokio::test(flavor = "multi_thread")]
async fn the_id_is_the_guid_in_the_servers_notation() {
    let (samba, base) = Samba::with_unit("guid");
    samba.add_ldif(&person_ldif(&base, "guid-Alice", "displayName: Alice Example\nmail: alice@example.org\n"));
    let before = read(source(samba, &base)).await;
    assert_eq!(why(&before), "complete");
    let alice = &before.entries[0];
    assert_eq!(alice.name, "guid-alice", "names are converted to lower case");
    assert_eq!(alice.mail.as_deref(), Some("alice@example.org"));
    assert_eq!(alice.display_name.as_deref(), Some("Alice Example"));
    assert!(alice.created.is_some());
    // The server accepts this text as a DN (MS-ADTS 3.1.1.3.1.2.4).
    let found = samba.search(&format!("<GUID={}>", alice.id), "(objectClass=*)", &["sAMAccountName"]);
    assert!(found.contains("sAMAccountName: guid-Alice"), "{found}");

    samba.modify_ldif(&format!(
        "dn: {dn}\nchangetype: modify\nreplace: sAMAccountName\nsAMAccountName: guid-alicia\n\n\
         dn: {dn}\nchangetype: modrdn\nnewrdn: CN=guid-alicia\ndeleteoldrdn: 1\n\n",
        dn = alice.dn
    ));
    let after = read(source(samba, &base)).await;
    assert_eq!((after.entries[0].name.as_str(), &after.entries[0].id), ("guid-alicia", &alice.id));
    assert_eq!(after.entries[0].posix, alice.posix);
}

#[tokio::test(flavor = "multi_thread")]
async fn disabled_and_expired_accounts_are_marked_and_locked_out_ones_are_not() {
    let (samba, base) = Samba::with_unit("marks");
    samba.modify_ldif(&format!(
        "dn: {DOMAIN_DN}\nchangetype: modify\nreplace: lockoutThreshold\nlockoutThreshold: 2\n\n"
    ));
    samba.add_ldif(&person_ldif(&base, "marks-off", "userAccountControl: 546\n"));
    samba.add_ldif(&person_ldif(&base, "marks-past", &format!("accountExpires: {LONG_AGO}\n")));
    samba.add_ldif(&person_ldif(&base, "marks-locked", ""));
    samba.add_ldif(&person_ldif(&base, "marks-fine", "accountExpires: 9223372036854775807\n"));
    for _ in 0..3 {
        let mut wrong = ldap(samba, &samba.ldaps_url);
        wrong.bind_dn = Some(format!("CN=marks-locked,{base}"));
        wrong.password = Some(Secret::new("wrong".to_owned()));
        assert_why(&read(with(wrong, &base)).await, &["refused: "]);
    }
    let locked = samba.search(&base, "(&(lockoutTime>=1)(sAMAccountName=marks-locked))", &["lockoutTime"]);
    assert!(locked.contains("lockoutTime: "), "no account is locked out: {locked}");

    let read = read(source(samba, &base)).await;
    assert_eq!(why(&read), "complete");
    let disabled: Vec<_> = read.entries.iter().map(|entry| (entry.name.as_str(), entry.disabled.as_deref())).collect();
    let expected = [
        ("marks-fine", None),
        ("marks-locked", None),
        ("marks-off", Some("userAccountControl: 546")),
        ("marks-past", Some("accountExpires: 2020-01-01T00:00:00Z")),
    ];
    assert_eq!(disabled, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_domain_is_complete_without_its_dns_zones() {
    let samba = Samba::shared();
    let mut source = source(samba, DOMAIN_DN);
    source.sentinels = vec![format!("CN=Administrator,CN=Users,{DOMAIN_DN}").as_str().into()];
    let found = read(source).await;
    assert_eq!(why(&found), "complete");
    assert!(names(&found, AccountKind::Group).contains(&"Domain Users"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_was_set_back_is_stale() {
    let samba = Samba::start();
    let base = samba.unit("usn");
    samba.add_ldif(&person_ldif(&base, "usn-alice", ""));
    let snapshot = samba.snapshot();
    let alice = format!("CN=usn-alice,{base}");
    samba.modify_ldif(&format!(
        "dn: {alice}\nchangetype: modify\nreplace: userAccountControl\nuserAccountControl: 514\n\n"
    ));
    samba.add_ldif(&person_ldif(&base, "usn-bob", ""));
    let seen = read(source(&samba, &base)).await;
    assert_eq!((seen.marks.counts.len(), seen.marks.controller.is_some()), (1, true), "{:?}", seen.marks);
    let after = async |source: SourceConfig, marks: &Marks| {
        let last = LastRead { marks: Arc::new(marks.clone()), ..LastRead::default() };
        let known: Known = [(source.name.clone(), last)].into();
        let (pass, now) = (Pass::Changes(SyncCache::default()), bursar::daemon::now());
        let sources = std::slice::from_ref(&source);
        fetch_after(sources, &pass, &known, &policy(), now).await.reads.pop().expect("the source was read")
    };
    assert_eq!(why(&after(source(&samba, &base), &seen.marks).await), "complete");
    let stale = after(source(&snapshot, &base), &seen.marks).await;
    assert_why(&stale, &["restored to an older state", "invocationId"]);
    assert!(matches!(stale.completeness, Completeness::Stale { .. }) && stale.entries.is_empty());
    // The next server is asked.
    let mut both = ldap(&samba, &snapshot.ldaps_url);
    both.urls.push(samba.ldaps_url.clone());
    both.ca_pem.iter_mut().for_each(|ca| *ca += &std::fs::read_to_string(&snapshot.ca_pem).expect("it is readable"));
    let found = after(with(both, &base), &seen.marks).await;
    assert_eq!((why(&found), found.behind.len(), &found.entries), ("complete", 1, &seen.entries));
    // A controller that was restored as the manual says has a new invocationId, which counts separately. Its state may
    // be old, so its answer is used like that of another controller.
    let counts = seen.marks.counts.values().map(|count| ("another".to_owned(), *count + 1_000_000)).collect();
    let before = Marks { counts, ..seen.marks.clone() };
    let found = after(source(&samba, &base), &before).await;
    assert_eq!(why(&found), "complete");
    assert!(before.is_of_another(&found.marks) && !seen.marks.is_of_another(&found.marks));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_absent_account_is_looked_up_by_its_guid() {
    let (samba, base) = Samba::with_unit("lookup");
    let elsewhere = samba.unit("lookup-left");
    for name in ["lookup-stays", "lookup-moves", "lookup-goes"] {
        samba.add_ldif(&person_ldif(&base, name, ""));
    }
    let source = source(samba, &base);
    let all = read(source.clone()).await;
    let dn = |name: &str| all.entries.iter().find(|entry| entry.name == name).expect("the entry was read").dn.clone();
    samba.modify_ldif(&format!(
        "dn: {}\nchangetype: modrdn\nnewrdn: CN=lookup-moves\ndeleteoldrdn: 1\nnewsuperior: {elsewhere}\n\n\
         dn: {}\nchangetype: delete\n\n",
        dn("lookup-moves"),
        dn("lookup-goes")
    ));
    let mut snapshot = DirectorySnapshot { reads: vec![read(source.clone()).await], ..DirectorySnapshot::default() };
    let due = all.entries.iter().map(|entry| Due { id: entry.id.clone(), kind: entry.kind, dn: entry.dn.clone() });
    let due = [(source.name.clone(), due.collect())].into();
    confirm(std::slice::from_ref(&source), &Pass::Once, &Known::new(), &due, &mut snapshot).await;
    let proofs = snapshot.reads[0].proofs.clone().expect("the servers were asked for the absent accounts");
    let place = |name: &str| {
        let id = &all.entries.iter().find(|entry| entry.name == name).expect("the entry was read").id;
        proofs[id].servers[0].1.clone()
    };
    assert!(matches!(place("lookup-stays"), EntryPlace::Inside { .. }));
    assert!(matches!(place("lookup-moves"), EntryPlace::Outside { dn } if dn.contains("lookup-left")));
    assert_eq!(place("lookup-goes"), EntryPlace::Nowhere);
}

#[tokio::test(flavor = "multi_thread")]
async fn start_tls_is_enough_and_plain_text_is_not() {
    let (samba, base) = Samba::with_unit("tls");
    samba.add_ldif(&person_ldif(&base, "tls-alice", ""));
    let mut starttls = ldap(samba, &samba.ldap_url);
    starttls.starttls = true;
    let found = read(with(starttls, &base)).await;
    assert_eq!((why(&found), names(&found, AccountKind::User)), ("complete", vec!["tls-alice"]));

    let mut plain = ldap(samba, &samba.ldap_url);
    plain.allow_plaintext = true;
    assert_why(&read(with(plain, &base)).await, &["stronger authentication required (8)"]);
    let mut stranger = ldap(samba, &samba.ldaps_url);
    stranger.ca_pem = Some(bursar_testkit::pki::Authority::new("somebody else").identity().certificate.clone());
    assert_why(&read(with(stranger, &base)).await, &["UnknownIssuer"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_bind_is_explained_in_words() {
    let (samba, base) = Samba::with_unit("bind");
    let password = format!("unicodePwd:: {}\n", password(READER_PASSWORD));
    let account = |name: &str, more: &str| samba.add_ldif(&person_ldif(&base, name, &(password.clone() + more)));
    account("bind-off", "userAccountControl: 514\n");
    account("bind-past", &format!("userAccountControl: 512\naccountExpires: {LONG_AGO}\n"));
    account("bind-new", "userAccountControl: 512\npwdLastSet: 0\n");
    let attempt = async |name: String, password: &str| {
        let mut config = ldap(samba, &samba.ldaps_url);
        config.bind_dn = Some(name);
        config.password = Some(Secret::new(password.to_owned()));
        read(with(config, &base)).await
    };
    let of = |name: &str| format!("CN={name},{base}");
    let wrong = attempt(of("bind-off"), "wrong").await;
    assert_why(&wrong, &["refused: the password is wrong", "wrong name or password (49)", "data 52e"]);
    let nobody = attempt("nobody@ad.example.org".to_owned(), "wrong").await;
    assert_why(&nobody, &["bind as nobody@ad.example.org refused", "(49)"]);
    for (name, words) in [
        ("bind-off", "it is disabled"),
        ("bind-past", "it has expired"),
        ("bind-new", "its password must be changed first"),
    ] {
        assert_why(&attempt(of(name), READER_PASSWORD).await, &[words, "(49)"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_that_hides_user_account_control_is_rejected_with_its_id() {
    let (samba, base) = Samba::with_unit("hide");
    samba.add_ldif(&person_ldif(&base, "hide-alice", "userAccountControl: 546\n"));
    let mut source = source(samba, &base);
    // If no entry has an attribute, it looks as if an access rule hid it.
    source.attributes.disabled = vec!["department&2".parse().expect("the mark is valid")];
    let found = read(source).await;
    assert_eq!(found.entries, []);
    let rejected = &found.rejected[0];
    assert_eq!(rejected.why, "department is missing, or hidden from Bursar");
    assert!(rejected.id.is_some(), "the account is present, and keeps what it has");
}
