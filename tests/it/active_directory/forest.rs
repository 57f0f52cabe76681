//! Members from another domain of the forest: a foreign security principal in a real domain, and accounts of that domain
//! in the groups of a second one.

use std::collections::BTreeSet;
use std::fs;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bursar::daemon;
use bursar::ledger::LedgerState;
use bursar::ledger::transition::transition;
use bursar_directory::source::LdifConfig;
use bursar_directory::{Pass, Preset, SourceConfig, SourceKind, fetch};
use bursar_testkit::samba::{Samba, group_ldif, person_ldif};

use super::source;
use crate::directory::policy;
use bursar::identity::AccountKind;

const OTHER_DN: &str = "DC=other,DC=example,DC=org";
/// The SID of the second domain, without a RID.
const OTHER_SID: [u32; 4] = [21, 1_111_111_111, 222_222_222, 333_333_333];

fn sid(rid: u32) -> String {
    let parts = OTHER_SID.iter().chain([&rid]).flat_map(|part| part.to_le_bytes());
    STANDARD.encode([1, 5, 0, 0, 0, 0, 0, 5].into_iter().chain(parts).collect::<Vec<u8>>())
}

fn guid(number: u8) -> String {
    STANDARD.encode([number; 16])
}

/// The second domain: one person, and one group with `members`.
fn other(members: &[String]) -> String {
    let members: String = members.iter().map(|dn| format!("member: {dn}\n")).collect();
    format!(
        "dn: {OTHER_DN}\nobjectClass: domain\n\n\
         dn: CN=frst-eve,{OTHER_DN}\nobjectClass: user\nobjectCategory: person\nsAMAccountName: frst-eve\n\
         userAccountControl: 512\naccountExpires: 0\nprimaryGroupID: 513\nobjectGUID:: {}\nobjectSid:: {}\n\n\
         dn: CN=frst-guests,{OTHER_DN}\nobjectClass: group\nsAMAccountName: frst-guests\ngroupType: -2147483646\n\
         objectGUID:: {}\nobjectSid:: {}\n{members}\n",
        guid(1),
        sid(1104),
        guid(2),
        sid(1105),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn members_of_another_domain_are_found_by_sid_and_by_dn() {
    let samba = Samba::shared();
    let base = samba.unit("frst");
    samba.add_ldif(&person_ldif(&base, "frst-alice", ""));
    let [_, two, three, four] = OTHER_SID;
    let eve = format!("<SID=S-1-5-21-{two}-{three}-{four}-1104>");
    let nobody = format!("<SID=S-1-5-21-{two}-{three}-{four}-4711>");
    samba.add_ldif(&group_ldif(&base, "frst-staff", &[format!("CN=frst-alice,{base}"), eve, nobody]));
    let shown = samba.search(&format!("CN=frst-staff,{base}"), "(objectClass=*)", &["member"]);
    assert_eq!(shown.matches("CN=ForeignSecurityPrincipals").count(), 2, "{shown}");

    let folder = tempfile::tempdir().expect("a folder can be made");
    let file = folder.path().join("other.ldif");
    let alice = format!("cn=Frst-Alice,{base}");
    fs::write(&file, other(&[alice, format!("CN=frst-gone,{base}")])).expect("the folder is writable");
    let opened = fs::File::options().append(true).open(&file).expect("the file can be opened");
    opened.set_modified(std::time::UNIX_EPOCH).expect("the file can be dated back");
    let exported = SourceConfig {
        name: "other".to_owned(),
        kind: SourceKind::Ldif(LdifConfig { paths: vec![file] }),
        users: Some(Preset::Ad.tree(AccountKind::User, OTHER_DN)),
        groups: Some(Preset::Ad.tree(AccountKind::Group, OTHER_DN)),
        ..source(samba, &base)
    };
    let sources = [source(samba, &base), exported];
    let mut ledger = LedgerState { ledger_id: "L".to_owned(), ..LedgerState::default() };
    // The first pass creates the accounts; members from other domains are looked up in the ledger.
    for _ in 0..2 {
        let now = daemon::now();
        let snapshot = fetch(&sources, &Pass::Once, &policy(), now).await;
        for read in &snapshot.reads {
            assert_eq!(crate::directory::why(read), "complete", "{}", read.source);
            assert!(read.rejected.is_empty(), "{:?}", read.rejected);
        }
        for change in &transition(&ledger, &snapshot, &policy(), now).changes {
            ledger.apply(change);
        }
    }
    let account = |name: &str| ledger.accounts.values().find(|account| account.name == name).expect("it is known");
    let members = |group: &str| account(group).members.keys().cloned().collect::<BTreeSet<_>>();
    let id = |name: &str| account(name).directory_id.clone();
    assert_eq!(members("frst-staff"), BTreeSet::from([id("frst-alice"), id("frst-eve")]));
    assert_eq!(members("frst-guests"), BTreeSet::from([id("frst-alice")]));
    for source in ["ad", "other"] {
        let unresolved = &ledger.sources[source].unresolved;
        assert_eq!((unresolved.groups, unresolved.members), (1, 1), "{source}: {unresolved:?}");
    }
}
