//! The changes of a domain, as its controller reports them. After each poll, Bursar must know what a full read would
//! show.

mod history;
mod proxied;

use bursar::identity::AccountKind;
use bursar::snapshot::{SourceRead, Way};
use bursar_directory::source::{LdapConfig, Secret};
use bursar_directory::{Pass, SourceConfig, SyncCache};
use bursar_testkit::samba::{ADMINISTRATOR, ADMINISTRATOR_PASSWORD, Samba, group_ldif, person_ldif};

use super::proxy::Proxy;
use super::{DOMAIN_DN, READER, READER_PASSWORD, source, with};
use crate::directory::{members, names, read, read_by, why};

/// A source that is polled for its changes.
struct Polled {
    source: SourceConfig,
    memory: SyncCache,
}

impl Polled {
    fn new(source: SourceConfig) -> Self {
        Self { source, memory: SyncCache::default() }
    }

    async fn poll(&self) -> SourceRead {
        read_by(&self.source, &Pass::Changes(self.memory.clone())).await
    }

    /// Polls and reads in full. Both must give the same result.
    async fn check(&self, what: &str) -> SourceRead {
        let polled = self.poll().await;
        assert_eq!((why(&polled), polled.way), ("complete", Way::Incremental), "{what}");
        assert_same(&polled, &read(self.source.clone()).await, what);
        polled
    }
}

/// Checks that the two reads have the same rows.
#[track_caller]
fn assert_same(polled: &SourceRead, full: &SourceRead, what: &str) {
    assert_eq!(polled.completeness, full.completeness, "{what}");
    assert_eq!(polled.numbers, full.numbers, "{what}");
    for (one, other) in polled.entries.iter().zip(&full.entries) {
        assert_eq!(one, other, "{what}");
    }
    assert_eq!(polled.entries.len(), full.entries.len(), "{what}");
    assert_eq!(polled.rejected, full.rejected, "{what}");
}

/// Returns the source with a filter whose result changes without a change of the entry, so that `uSNChanged` must be
/// used.
fn by_usn(mut source: SourceConfig, banned: &str) -> SourceConfig {
    let users = source.users.as_mut().expect("the source has users");
    users.filter = format!("(&(objectCategory=person)(objectClass=user)(!(memberOf={banned})))");
    SourceConfig { name: "by-usn".to_owned(), ..source }
}

fn rename(dn: &str, name: &str, place: &str) -> String {
    format!("dn: {dn}\nchangetype: modrdn\nnewrdn: {name}\ndeleteoldrdn: 1\nnewsuperior: {place}\n\n")
}

fn delete(dn: &str) -> String {
    format!("dn: {dn}\nchangetype: delete\n\n")
}

fn change(dn: &str, how: &str, attribute: &str, value: &str) -> String {
    format!("dn: {dn}\nchangetype: modify\n{how}: {attribute}\n{attribute}: {value}\n\n")
}

fn unit_ldif(dn: &str) -> String {
    format!("dn: {dn}\nobjectClass: organizationalUnit\n\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reused_name_does_not_inherit_groups() {
    let (samba, base) = Samba::with_unit("left");
    let away = samba.unit("left-away");
    let alice = format!("CN=left-alice,{base}");
    samba.add_ldif(&person_ldif(&base, "left-alice", ""));
    samba.add_ldif(&group_ldif(&base, "left-admins", std::slice::from_ref(&alice)));
    samba.add_ldif(&group_ldif(&base, "left-banned", &[]));
    let banned = format!("CN=left-banned,{base}");
    let both = [Polled::new(source(samba, &base)), Polled::new(by_usn(source(samba, &base), &banned))];
    for polled in &both {
        let found = polled.check("at first").await;
        assert_eq!(members(&found, "left-admins"), ["left-alice"]);
    }
    // The person leaves the base. The group shows her new DN, and the server does not report that.
    samba.modify_ldif(&rename(&alice, "CN=left-alice", &away));
    for polled in &both {
        assert_eq!(members(&polled.check("she left").await, "left-admins"), [""; 0]);
    }
    let again = person_ldif(&base, "left-alice", "").replace("sAMAccountName: left-alice", "sAMAccountName: left-two");
    samba.add_ldif(&again);
    for polled in &both {
        let found = polled.check("another has her name").await;
        assert_eq!((members(&found, "left-admins"), names(&found, AccountKind::User)), (vec![], vec!["left-two"]));
    }
    samba.modify_ldif(&rename(&format!("CN=left-alice,{away}"), "CN=left-back", &base));
    for polled in &both {
        assert_eq!(members(&polled.check("she is back").await, "left-admins"), ["left-alice"]);
    }
    samba.modify_ldif(&change(&banned, "add", "member", &format!("CN=left-back,{base}")));
    assert_eq!(members(&both[0].check("banned").await, "left-admins"), ["left-alice"]);
    assert_eq!(members(&both[1].check("banned").await, "left-admins"), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_beneath_a_container_move_with_it() {
    let (samba, base) = Samba::with_unit("beneath");
    let unit = format!("OU=physics,{base}");
    samba.add_ldif(&unit_ldif(&unit));
    samba.add_ldif(&person_ldif(&unit, "ben-alice", ""));
    samba.add_ldif(&group_ldif(&base, "ben-lab", &[format!("CN=ben-alice,{unit}")]));
    let polled = Polled::new(source(samba, &base));
    polled.check("at first").await;
    samba.modify_ldif(&rename(&unit, "OU=chemistry", &base));
    let found = polled.check("renamed").await;
    assert_eq!(members(&found, "ben-lab"), ["ben-alice"]);
    assert!(found.entries.iter().any(|entry| entry.dn.contains("OU=chemistry")));
    let away = samba.unit("beneath-away");
    samba.modify_ldif(&rename(&format!("OU=chemistry,{base}"), "OU=chemistry", &away));
    let found = polled.check("moved away").await;
    assert_eq!((names(&found, AccountKind::User), members(&found, "ben-lab")), (vec![], vec![]));
    samba.modify_ldif(&rename(&format!("OU=chemistry,{away}"), "OU=physics", &base));
    assert_eq!(members(&polled.check("moved back").await, "ben-lab"), ["ben-alice"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_entry_keeps_its_identity() {
    let (samba, base) = Samba::with_unit("restored");
    samba.add_ldif(&person_ldif(&base, "res-alice", ""));
    let polled = Polled::new(source(samba, &base));
    let before = polled.check("at first").await;
    let (id, dn) = (before.entries[0].id.clone(), before.entries[0].dn.clone());
    samba.modify_ldif(&delete(&dn));
    assert_eq!(polled.check("deleted").await.entries, []);
    samba.restore(&format!("CN=res-alice\\0ADEL:{id},CN=Deleted Objects,{DOMAIN_DN}"), &dn);
    let after = polled.check("restored").await;
    let found = after.entries.iter().map(|entry| &entry.id).chain(after.rejected.iter().flat_map(|one| &one.id));
    assert_eq!(found.collect::<Vec<_>>(), [&id]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_that_sees_deletions_needs_no_list() {
    // The test has its own server, because entries that other tests create or rename would cause a list, too.
    let samba = &Samba::start();
    let base = samba.unit("sees");
    for name in ["sees-alice", "sees-bob"] {
        samba.add_ldif(&person_ldif(&base, name, ""));
    }
    samba.add_ldif(&group_ldif(&base, "sees-lab", &[format!("CN=sees-alice,{base}"), format!("CN=sees-bob,{base}")]));
    let proxy = Proxy::before(samba).await;
    let through = |name: &str, password: &str| {
        let (bind_dn, password) = (Some(name.to_owned()), Some(Secret::new(password.to_owned())));
        Polled::new(with(LdapConfig { bind_dn, password, ..proxy.ldap(samba) }, &base))
    };
    let plain = through(READER, READER_PASSWORD);
    let privileged = through(ADMINISTRATOR, ADMINISTRATOR_PASSWORD);
    plain.poll().await;
    privileged.poll().await;
    // A deleted object proves that the account can see deletions.
    samba.modify_ldif(&delete(&format!("CN=sees-bob,{base}")));
    for (polled, lists) in [(&plain, true), (&privileged, false)] {
        proxy.begin();
        let found = polled.poll().await;
        assert_eq!(proxy.asked("uSNChanged") > 0, lists, "a list of all objects requests uSNChanged");
        assert!(!proxy.started_over());
        assert_eq!((why(&found), members(&found, "sees-lab")), ("complete", vec!["sees-alice"]));
        polled.check("deleted").await;
    }
    proxy.begin();
    privileged.poll().await;
    assert_eq!(proxy.asked("unixHomeDirectory"), 1, "the attribute is only named in the request for changes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduled_full_read_agrees() {
    let (samba, base) = Samba::with_unit("agree");
    samba.add_ldif(&person_ldif(&base, "agr-alice", ""));
    let polled = Polled::new(source(samba, &base));
    polled.check("at first").await;
    samba.add_ldif(&person_ldif(&base, "agr-bob", ""));
    let whole = read_by(&polled.source, &Pass::Whole(polled.memory.clone())).await;
    assert_eq!(names(&whole, AccountKind::User), ["agr-alice", "agr-bob"]);
    assert_eq!(whole.compared.map(|compared| compared.differences), Some(0));
}
