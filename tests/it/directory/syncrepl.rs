//! Reads of changes (RFC 4533) from a real `slapd`: the changes that it reports or has forgotten, and other servers or
//! databases.

use std::sync::Arc;
use std::time::Duration;

use bursar::identity::AccountKind;
use bursar::snapshot::{SourceRead, Way};
use bursar_directory::source::{LdapConfig, SidMapping};
use bursar_directory::sync::kept::{Kept, Mark};
use bursar_directory::{Pass, Preset, SourceConfig, SourceKind, SyncCache};
use bursar_testkit::ldif::{
    group_of_names_ldif, person_dn, person_ldif, replace_ldif, tool_account_dn, tool_group_dn, tool_ldif,
    toolforge_units_ldif, unit_ldif,
};
use bursar_testkit::sample::{self, sentinel_ldif};
use bursar_testkit::slapd::{BASE_DN, Slapd, SlapdOptions};
use rustix::process::Signal;

use super::{assert_same, assert_why, ldap, names, read, read_by, site, toolforge, why};

/// A source with its cache.
struct Followed {
    source: SourceConfig,
    memory: SyncCache,
}

impl Followed {
    fn of(ldap: LdapConfig) -> Self {
        Self { source: toolforge(ldap), memory: SyncCache::default() }
    }

    async fn changes(&self) -> SourceRead {
        read_by(&self.source, &Pass::Changes(self.memory.clone())).await
    }

    async fn whole(&self) -> SourceRead {
        read_by(&self.source, &Pass::Whole(self.memory.clone())).await
    }

    fn kept(&self) -> Arc<Kept> {
        self.memory.of(&self.source).expect("something is kept")
    }

    /// Alters the cache.
    fn spoil(&self, how: impl FnOnce(&mut Kept)) {
        let mut kept = (*self.kept()).clone();
        how(&mut kept);
        self.memory.keep(&self.source.name, Arc::new(kept));
    }

    /// Checks that a read of changes shows the same as a full read.
    async fn is_right(&self) -> SourceRead {
        let told = self.changes().await;
        assert_same(&told, &read(self.source.clone()).await);
        assert_eq!(told.way, Way::Incremental);
        told
    }
}

fn follow(slapd: &Slapd) -> Followed {
    Followed::of(ldap(&[&slapd.ldaps_url], slapd))
}

#[tokio::test]
async fn each_change_is_reported_once() {
    let slapd = site(SlapdOptions::default());
    let followed = follow(&slapd);
    followed.is_right().await;
    let kept = followed.kept();
    followed.is_right().await;
    assert_eq!(
        (&kept.mark, &kept.mirror),
        (&followed.kept().mark, &followed.kept().mirror),
        "the cache did not change"
    );

    slapd.add_ldif(&tool_ldif(BASE_DN, "new", 52600, &["alice", "bob"]));
    slapd.modify_ldif(&replace_ldif(&tool_account_dn(BASE_DN, "foo"), "homeDirectory", &["/data/project/other"]));
    assert!(names(&followed.is_right().await, AccountKind::Tool).contains(&"new"));
    // Alice no longer matches the filter, and Bob is moved out of the base.
    let alice = person_dn(BASE_DN, "alice");
    slapd.modify_ldif(&format!(
        "dn: {alice}\nchangetype: modify\ndelete: objectClass\nobjectClass: posixAccount\n-\ndelete: uidNumber\n-\n\
         delete: gidNumber\n-\ndelete: homeDirectory\n-\ndelete: loginShell\n\n"
    ));
    let bob = person_dn(BASE_DN, "bob");
    slapd.modify_ldif(&format!(
        "dn: {bob}\nchangetype: modrdn\nnewrdn: uid=bob\ndeleteoldrdn: 0\nnewsuperior: {BASE_DN}\n\n"
    ));
    let carol = person_dn(BASE_DN, "carol");
    slapd.modify_ldif(&format!("dn: {carol}\nchangetype: modrdn\nnewrdn: uid=carola\ndeleteoldrdn: 1\n\n"));
    slapd.delete(&person_dn(BASE_DN, "dave"));
    let told = followed.is_right().await;
    let people = names(&told, AccountKind::User);
    assert!(people.contains(&"carola") && !["alice", "bob", "carol", "dave"].iter().any(|gone| people.contains(gone)));

    // The server does not report the entries below a container that was renamed, but a group names one of them.
    let people = format!("ou=people,{BASE_DN}");
    let (guests, visitors) = (format!("ou=guests,{people}"), format!("ou=visitors,{people}"));
    slapd.add_ldif(&unit_ldif(&people, "guests"));
    slapd.add_ldif(&person_ldif(BASE_DN, "guest", 2100).replace(&people, &guests));
    followed.is_right().await;
    slapd.modify_ldif(&format!("dn: {guests}\nchangetype: modrdn\nnewrdn: ou=visitors\ndeleteoldrdn: 1\n\n"));
    let group = tool_group_dn(BASE_DN, "visit");
    slapd.add_ldif(&tool_ldif(BASE_DN, "visit", 52601, &[]));
    slapd.add_ldif(&group_of_names_ldif(&group, "tools.visit", &[format!("uid=guest,{visitors}")]));
    followed.is_right().await;
}

#[tokio::test]
async fn an_inconsistent_cache_causes_a_full_read() {
    let slapd = site(SlapdOptions::default());
    let followed = follow(&slapd);
    followed.is_right().await;
    let cookies = |cookie: &[u8]| {
        let kinds = [AccountKind::Tool, AccountKind::User, AccountKind::Group];
        Mark::Syncrepl(kinds.map(|kind| (kind, cookie.to_vec())).into())
    };
    for garbage in [&b"garbage"[..], b"rid=000,csn=", b"csn=20990101000000.000000Z#000000#000#000000", &[0xff, 0, 1]] {
        followed.spoil(|kept| kept.mark = cookies(garbage));
        slapd.delete(&person_dn(BASE_DN, "erin"));
        followed.is_right().await;
        assert_ne!(followed.kept().mark, cookies(garbage));
        slapd.add_ldif(&person_ldif(BASE_DN, "erin", 2005));
        followed.is_right().await;
    }
    followed.spoil(|kept| kept.server = "another.example.org".to_owned());
    followed.spoil(|kept| kept.mirror = bursar_directory::sync::mirror::Mirror::default());
    followed.is_right().await;
    // The cache does not answer another query, such as one with another filter.
    let mut other = Followed { source: followed.source.clone(), memory: followed.memory.clone() };
    other.source.users.as_mut().expect("the source has users").filter = "(uid=erin)".to_owned();
    other.source.sentinels.clear();
    assert_eq!(names(&other.is_right().await, AccountKind::User), ["erin"]);
}

#[tokio::test]
async fn a_server_that_forgot_changes_reports_the_entries_that_remain() {
    let slapd = site(SlapdOptions { sessionlog: 2, ..SlapdOptions::default() });
    let followed = follow(&slapd);
    followed.is_right().await;
    for name in ["alice", "bob", "carol", "dave", "erin"] {
        slapd.delete(&person_dn(BASE_DN, name));
    }
    slapd.add_ldif(&person_ldif(BASE_DN, "zoe", 2100));
    assert!(names(&followed.is_right().await, AccountKind::User).contains(&"zoe"));
}

#[tokio::test]
async fn another_database_under_the_same_name_is_read_from_the_beginning() {
    let slapd = site(SlapdOptions::default());
    let followed = follow(&slapd);
    followed.is_right().await;
    let units = toolforge_units_ldif(BASE_DN) + &sentinel_ldif(BASE_DN);
    // The database is newer than the cache and has none of its people.
    slapd.start_with(&(units.clone() + &person_ldif(BASE_DN, "zoe", 2100)));
    assert_eq!(names(&followed.is_right().await, AccountKind::User), ["novaadmin", "zoe"]);
    // The same after a write, which makes the database newer still.
    slapd.start_with(&(units + &person_ldif(BASE_DN, "yves", 2101)));
    slapd.add_ldif(&person_ldif(BASE_DN, "xenia", 2102));
    assert_eq!(names(&followed.is_right().await, AccountKind::User), ["novaadmin", "xenia", "yves"]);
}

#[tokio::test]
async fn a_server_that_is_down_or_hung_does_not_change_the_cache() {
    let slapd = site(SlapdOptions::default());
    let mut ldap = ldap(&[&slapd.ldaps_url], &slapd);
    ldap.timeout = Duration::from_secs(5);
    ldap.connect_timeout = Duration::from_secs(5);
    let followed = Followed::of(ldap);
    followed.is_right().await;
    let kept = followed.kept();

    slapd.with_process(|process| process.signal(Signal::STOP));
    assert_why(&followed.changes().await, &["within 5s"]);
    slapd.with_process(|process| process.signal(Signal::CONT));
    followed.is_right().await;
    slapd.stop();
    assert_why(&followed.changes().await, &["cannot connect"]);
    assert!(followed.kept().mirror == kept.mirror);
    slapd.start_again();
    slapd.delete(&person_dn(BASE_DN, "alice"));
    followed.is_right().await;
}

/// After a restart, slapd's contextCSN comes from its last checkpoint, and is older than the newest entries until the
/// next write.
#[tokio::test]
async fn after_a_server_was_killed_no_account_is_lost() {
    let slapd = site(SlapdOptions::default());
    let before = follow(&slapd);
    before.is_right().await;
    slapd.add_ldif(&person_ldif(BASE_DN, "zoe", 2100));
    slapd.modify_ldif(&replace_ldif(&person_dn(BASE_DN, "bob"), "homeDirectory", &["/home/other"]));
    slapd.stop();
    slapd.start_again();
    let after = follow(&slapd);
    for followed in [&before, &after] {
        assert!(names(&followed.is_right().await, AccountKind::User).contains(&"zoe"));
    }
    slapd.add_ldif(&person_ldif(BASE_DN, "yves", 2101));
    slapd.delete(&person_dn(BASE_DN, "dave"));
    for followed in [&before, &after] {
        assert!(names(&followed.is_right().await, AccountKind::User).contains(&"yves"));
    }
}

#[tokio::test]
async fn another_server_is_read_from_the_beginning() {
    let (first, second) = (site(SlapdOptions::default()), site(SlapdOptions::default()));
    second.delete(&person_dn(BASE_DN, "alice"));
    let mut both = ldap(&[&first.ldaps_url, &second.ldaps_url], &first);
    let authorities =
        [&first.ca_pem, &second.ca_pem].map(|pem| std::fs::read_to_string(pem).expect("the file is readable"));
    both.ca_pem = Some(authorities.concat());
    let followed = Followed::of(both);
    assert!(names(&followed.is_right().await, AccountKind::User).contains(&"alice"));
    first.stop();
    assert!(!names(&followed.is_right().await, AccountKind::User).contains(&"alice"));
    first.start_again();
    assert!(names(&followed.is_right().await, AccountKind::User).contains(&"alice"));
}

#[tokio::test]
async fn an_empty_directory_is_partial_because_of_the_sentinel() {
    let slapd = site(SlapdOptions::default());
    let followed = follow(&slapd);
    followed.is_right().await;
    slapd.start_with(&toolforge_units_ldif(BASE_DN));
    let told = followed.changes().await;
    assert_why(&told, &["sentinel not found"]);
    assert_eq!((told.entries.len(), told.way), (0, Way::Incremental));
}

#[tokio::test]
async fn changes_that_cannot_be_reported_cause_a_full_read() {
    let bare = site(SlapdOptions { syncprov: false, ..SlapdOptions::default() });
    let full = |told: &SourceRead| assert_eq!((why(told), told.way), ("complete", Way::Full));
    full(&follow(&bare).changes().await);
    full(&follow(&bare).whole().await);
    let slapd = site(SlapdOptions::default());
    let never = Followed::of(LdapConfig { way: Way::Full, ..ldap(&[&slapd.ldaps_url], &slapd) });
    full(&never.changes().await);
    let mut by_member_of = follow(&slapd);
    by_member_of.source.attributes.member_of = vec!["memberOf".to_owned()];
    full(&by_member_of.changes().await);
    // The limit applies to syncrepl, but not to paged searches.
    let limit = format!("limits dn.exact=\"{}\" size=5 size.prtotal=unlimited", bursar_testkit::slapd::READER_DN);
    let limited = site(SlapdOptions { database_lines: vec![limit], ..SlapdOptions::default() });
    let mut paged = follow(&limited);
    if let SourceKind::Ldap(ldap) = &mut paged.source.kind {
        ldap.page_size = 5;
    }
    full(&paged.changes().await);
}

#[tokio::test]
async fn a_full_read_finds_and_repairs_unreported_changes() {
    let slapd = site(SlapdOptions::default());
    let followed = follow(&slapd);
    followed.is_right().await;
    let found = followed.whole().await;
    assert_same(&found, &read(followed.source.clone()).await);
    assert_eq!(found.compared.expect("a full read compares the entries").differences, 0);

    // Restores the earlier cache, as if the server had not reported a deletion and a change.
    let before = followed.kept().mirror.clone();
    slapd.delete(&person_dn(BASE_DN, "alice"));
    slapd.modify_ldif(&replace_ldif(&person_dn(BASE_DN, "bob"), "uidNumber", &["2950"]));
    slapd.add_ldif(&person_ldif(BASE_DN, "zoe", 2100));
    followed.is_right().await;
    followed.spoil(|kept| kept.mirror = before);
    assert!(names(&followed.changes().await, AccountKind::User).contains(&"alice"));
    let found = followed.whole().await;
    assert_same(&found, &read(followed.source.clone()).await);
    let found = found.compared.expect("a full read compares the entries");
    for told in ["user alice was no longer in the directory", "user bob was out of date", "user zoe was missing"] {
        assert!(found.examples.iter().any(|example| example == told), "{found:?}");
    }
    let again = followed.whole().await;
    assert_eq!(
        (again.compared.expect("a full read compares the entries").differences, again.way),
        (0, Way::Incremental)
    );
}

#[tokio::test]
async fn changes_of_rfc2307_groups_are_read() {
    let slapd = site(SlapdOptions::default());
    let tree = |kind, unit: &str| Some(Preset::Rfc2307.tree(kind, &format!("ou={unit},{}", sample::RFC2307_BASE)));
    let source = SourceConfig {
        sentinels: Vec::new(),
        tools: None,
        users: tree(AccountKind::User, "people"),
        groups: tree(AccountKind::Group, "groups"),
        attributes: Preset::Rfc2307.attributes(),
        sids: SidMapping::default(),
        ..toolforge(ldap(&[&slapd.ldaps_url], &slapd))
    };
    let followed = Followed { source, memory: SyncCache::default() };
    followed.is_right().await;
    let group = format!("cn=k8s-admins,ou=groups,{}", sample::RFC2307_BASE);
    slapd.modify_ldif(&replace_ldif(&group, "memberUid", &["olivia", "peggy"]));
    let told = followed.is_right().await;
    assert_eq!(super::members(&told, "k8s-admins"), ["olivia", "peggy"]);
}

/// The site's own ids look like UUIDs, but the server reports changes under its own ones.
#[tokio::test]
async fn ids_that_differ_from_those_of_the_control_are_noticed() {
    let slapd = site(SlapdOptions::default());
    let base = format!("ou=own,{BASE_DN}");
    let id = |number: u32| format!("00000000-0000-4000-8000-{number:012}");
    let person = |name: &str, number: u32| {
        person_ldif(&base, name, number).trim_end().to_owned() + &format!("\ndescription: {}\n\n", id(number))
    };
    slapd.add_ldif(&(unit_ldif(BASE_DN, "own") + &unit_ldif(&base, "people")));
    slapd.add_ldif(&(person("yan", 2401) + &person("zoe", 2402)));
    let mut followed = follow(&slapd);
    let source = &mut followed.source;
    (source.tools, source.groups, source.sentinels) = (None, None, Vec::new());
    source.users = Some(Preset::Toolforge.tree(AccountKind::User, &format!("ou=people,{base}")));
    source.attributes.id = "description".to_owned();
    let same = async || {
        let told = followed.changes().await;
        assert_same(&told, &read(followed.source.clone()).await);
        told
    };
    let ids = |read: &SourceRead| read.entries.iter().map(|entry| entry.id.0.clone()).collect::<Vec<_>>();
    assert_eq!(ids(&same().await), [id(2401), id(2402)]);
    slapd.modify_ldif(&replace_ldif(&person_dn(&base, "zoe"), "homeDirectory", &["/home/other"]));
    assert_eq!(ids(&same().await), [id(2401), id(2402)]);
    slapd.delete(&person_dn(&base, "yan"));
    slapd.add_ldif(&person("xia", 2403));
    assert_eq!(ids(&same().await), [id(2403), id(2402)]);
}
