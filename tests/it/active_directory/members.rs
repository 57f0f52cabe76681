//! Nested groups, and groups with more members than the server sends at once.

use std::fmt::Write as _;

use bursar::snapshot::Role;
use bursar_directory::{SourceConfig, SourceKind};
use bursar_testkit::samba::{Samba, group_ldif, person_ldif};

use super::source;
use crate::directory::{members, read, why};

fn in_parts(mut source: SourceConfig, size: u32) -> SourceConfig {
    if let SourceKind::Ldap(ldap) = &mut source.kind {
        ldap.members_at_once = Some(size);
    }
    source
}

#[tokio::test(flavor = "multi_thread")]
async fn members_that_are_sent_in_parts_are_all_read() {
    let (samba, base) = Samba::with_unit("part");
    let people: Vec<String> = (0..25).map(|at| format!("part-{at:02}")).collect();
    let ldif = people.iter().fold(String::new(), |ldif, name| ldif + &person_ldif(&base, name, "") + "\n");
    samba.add_ldif(&ldif);
    let dns: Vec<String> = people.iter().map(|name| format!("CN={name},{base}")).collect();
    samba.add_ldif(&group_ldif(&base, "part-all", &dns));
    samba.add_ldif(&group_ldif(&base, "part-none", &[]));
    samba.add_ldif(&group_ldif(&base, "part-ten", &dns[..10]));
    // If asked for ten members, the server says that there are more.
    let first = samba.search(&format!("CN=part-all,{base}"), "(objectClass=*)", &["member;range=0-9"]);
    assert_eq!(first.matches("member;range=0-9: ").count(), 10, "{first}");

    for size in [1, 2, 10, 24, 25, 26, 1500] {
        let read = read(in_parts(source(samba, &base), size)).await;
        assert_eq!(why(&read), "complete", "{size} at once");
        assert_eq!(members(&read, "part-all"), people, "{size} at once");
        assert_eq!(members(&read, "part-ten"), people[..10], "{size} at once");
        assert_eq!(members(&read, "part-none"), [""; 0], "{size} at once");
    }
    let whole = read(source(samba, &base)).await;
    assert_eq!(members(&whole, "part-all"), people);
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_while_a_group_is_read_hide_no_member() {
    let (samba, base) = Samba::with_unit("move");
    let people: Vec<String> = (0..12).map(|at| format!("move-{at:02}")).collect();
    samba.add_ldif(&people.iter().fold(String::new(), |ldif, name| ldif + &person_ldif(&base, name, "") + "\n"));
    let dns: Vec<String> = people.iter().map(|name| format!("CN={name},{base}")).collect();
    samba.add_ldif(&group_ldif(&base, "move-all", &dns));
    let (mover, group) = (dns[3].clone(), format!("CN=move-all,{base}"));
    let moving = tokio::task::spawn_blocking(move || {
        for _ in 0..8 {
            for change in ["delete", "add"] {
                samba.modify_ldif(&format!("dn: {group}\nchangetype: modify\n{change}: member\nmember: {mover}\n\n"));
            }
        }
    });
    while !moving.is_finished() {
        let read = read(in_parts(source(samba, &base), 1)).await;
        if why(&read) == "complete" {
            let members = members(&read, "move-all");
            let gone: Vec<_> = people.iter().filter(|name| !members.contains(&name.as_str())).collect();
            assert!(gone.is_empty() || gone == [&people[3]], "{gone:?} were members all the time");
        } else {
            assert!(why(&read).contains("changed while it was read"), "{}", why(&read));
        }
    }
    moving.await.expect("the other task does not panic");
    let after = read(in_parts(source(samba, &base), 1)).await;
    assert_eq!(why(&after), "complete");
    assert_eq!(members(&after, "move-all"), people);
}

#[tokio::test(flavor = "multi_thread")]
async fn nested_groups_are_resolved_and_cycles_cut() {
    let (samba, base) = Samba::with_unit("nest");
    let dn = |name: &str| format!("CN=nest-{name},{base}");
    let mut ldif = String::new();
    for name in ["alice", "bob", "carol"] {
        let _ = writeln!(ldif, "{}", person_ldif(&base, &format!("nest-{name}"), ""));
    }
    samba.add_ldif(&ldif);
    samba.add_ldif(&group_ldif(&base, "nest-inner", &[dn("carol")]));
    samba.add_ldif(&group_ldif(&base, "nest-middle", &[dn("bob"), dn("inner")]));
    samba.add_ldif(&group_ldif(&base, "nest-outer", &[dn("alice"), dn("middle")]));
    samba.modify_ldif(&format!("dn: {}\nchangetype: modify\nadd: member\nmember: {}\n\n", dn("inner"), dn("outer")));
    samba.modify_ldif(&format!(
        "dn: {}\nchangetype: modify\nadd: managedBy\nmanagedBy: {}\n\n",
        dn("inner"),
        dn("bob")
    ));
    let mut source = source(samba, &base);
    source.attributes.managers = Some("managedBy".to_owned());
    let read = read(source).await;
    assert_eq!((why(&read), read.rejected.len()), ("complete", 0));
    let entry = |name: &str| read.entries.iter().find(|entry| entry.name == name).expect("the entry was read");
    assert_eq!(entry("nest-inner").members[&entry("nest-bob").id], Role::Manager);
    assert_eq!(entry("nest-outer").members[&entry("nest-bob").id], Role::Member);
    for group in ["nest-outer", "nest-middle", "nest-inner"] {
        assert_eq!(members(&read, group), ["nest-alice", "nest-bob", "nest-carol"]);
    }
}
