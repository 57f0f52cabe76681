//! Tests of the numbers that accounts of Active Directory get as uid and gid.

use bursar::identity::AccountKind;
use bursar::snapshot::SourceRead;
use bursar_directory::source::Ids;
use bursar_testkit::samba::{SLICE, Samba, group_ldif, person_ldif};

use super::{rid, source};
use crate::directory::{members, read, why};

/// Returns uid, gid and supplementary gids.
fn posix(read: &SourceRead, name: &str) -> Option<(u32, u32, Vec<u32>)> {
    let entry = read.entries.iter().find(|entry| entry.kind == AccountKind::User && entry.name == name)?;
    let posix = entry.posix.as_ref()?;
    Some((posix.uid.get(), posix.gid.get(), posix.groups.iter().map(|gid| gid.get()).collect()))
}

#[tokio::test(flavor = "multi_thread")]
async fn people_without_uid_number_get_the_numbers_of_sssd() {
    let (samba, base) = Samba::with_unit("sid");
    samba.add_ldif(&person_ldif(&base, "sid-alice", ""));
    samba.add_ldif(&group_ldif(&base, "sid-lab", &[format!("CN=sid-alice,{base}")]));
    let list = group_ldif(&base, "sid-list", &[format!("CN=sid-alice,{base}")]);
    samba.add_ldif(&list.replace("objectClass: group\n", "objectClass: group\ngroupType: 2\n"));
    let read = read(source(samba, &base)).await;
    assert_eq!((why(&read), read.rejected.len()), ("complete", 0));
    let alice = SLICE + rid(samba, &format!("CN=sid-alice,{base}"));
    let lab = SLICE + rid(samba, &format!("CN=sid-lab,{base}"));
    assert_eq!(posix(&read, "sid-alice"), Some((alice, SLICE + 513, vec![lab])), "a distribution list gives no gid");
    assert_eq!(members(&read, "sid-list"), ["sid-alice"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn uid_numbers_and_sids_are_mixed_only_if_configured() {
    let (samba, base) = Samba::with_unit("mix");
    let home = "uidNumber: 10001\ngidNumber: 20001\nunixHomeDirectory: /home/alice\n";
    samba.add_ldif(&person_ldif(&base, "mix-alice", home));
    samba.add_ldif(&person_ldif(&base, "mix-bob", ""));
    let bob = SLICE + rid(samba, &format!("CN=mix-bob,{base}"));
    let mut source = source(samba, &base);
    let alone = read(source.clone()).await;
    assert_eq!(why(&alone), "complete");
    assert_eq!(posix(&alone, "mix-alice"), Some((10_001, 20_001, vec![])));
    assert_eq!(posix(&alone, "mix-bob"), None);
    let rejected = &alone.rejected[0];
    assert!(rejected.why.contains("uidNumber is missing") && rejected.why.contains("ids = \"mixed\""), "{rejected:?}");
    assert!(rejected.id.is_some(), "a rejected account is still present");

    source.sids.ids = Ids::Mixed;
    let mixed = read(source.clone()).await;
    assert_eq!(posix(&mixed, "mix-alice"), Some((10_001, 20_001, vec![])));
    assert_eq!(posix(&mixed, "mix-bob"), Some((bob, SLICE + 513, vec![])));

    source.sids.ids = Ids::Sid;
    let by_sid = read(source).await;
    let alice = SLICE + rid(samba, &format!("CN=mix-alice,{base}"));
    assert_eq!(posix(&by_sid, "mix-alice"), Some((alice, SLICE + 513, vec![])));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_group_has_its_people_as_members() {
    let (samba, base) = Samba::with_unit("prim");
    let (alice, lab) = (format!("CN=prim-alice,{base}"), format!("CN=prim-lab,{base}"));
    samba.add_ldif(&person_ldif(&base, "prim-alice", ""));
    samba.add_ldif(&group_ldif(&base, "prim-lab", std::slice::from_ref(&alice)));
    samba.add_ldif(&group_ldif(&base, "prim-all", std::slice::from_ref(&lab)));
    let number = rid(samba, &lab);
    samba.modify_ldif(&format!(
        "dn: {alice}\nchangetype: modify\nreplace: primaryGroupID\nprimaryGroupID: {number}\n\n"
    ));
    let listed = samba.search(&lab, "(objectClass=*)", &["member"]);
    assert!(!listed.contains("member: "), "the server still lists her: {listed}");
    let read = read(source(samba, &base)).await;
    assert_eq!(why(&read), "complete");
    assert_eq!(members(&read, "prim-lab"), ["prim-alice"]);
    assert_eq!(members(&read, "prim-all"), ["prim-alice"], "members of nested groups are included");
    assert_eq!(posix(&read, "prim-alice").map(|(_, gid, _)| gid), Some(SLICE + number));
}
