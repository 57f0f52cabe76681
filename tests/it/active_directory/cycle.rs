//! A person of a domain gets a kubeconfig, and loses access when disabled.

use bursar_testkit::Servers;
use bursar_testkit::samba::{DOMAIN_DN, SLICE, Samba, group_ldif, person_ldif};

use super::{LONG_AGO, rid};
use crate::world::{World, all_is_well};

/// Makes a world that also reads the organizational unit `base` of the domain. `more` is configuration of that source.
fn world(samba: &Samba, name: &str, base: &str, more: &str) -> World {
    let homes = Servers::shared().folder().join(name).join("homes/home");
    let configuration = format!(
        r#"
[[source]]
name     = "domain"
type     = "ad"
urls     = ["{url}"]
ca       = "{ca}"
bind_dn  = "bursar@ad.example.org"
password = {{ file = "{password}" }}
[source.users]
base = "OU=people,{base}"
[source.groups]
base = "OU=groups,{base}"
{more}

[limits]
suspend_per_day = {{ count = 20 }}

[class.person]
from         = "users"
when         = {{ base = "{base}" }}
clusters     = ["test"]
namespace    = "{name}-p-{{name}}"
home         = {{ prefix = "{homes}", kubeconfig = ".kube/config", create = false }}
quota        = {{ pods = "4" }}
credential   = {{ kind = "certificate", lifetime = "7d", endpoints = ["internal"] }}
"#,
        url = samba.ldaps_url,
        ca = samba.ca_pem.display(),
        password = samba.reader_password.display(),
        homes = homes.display(),
    );
    for unit in ["people", "groups", "tools"] {
        samba.add_ldif(&format!("dn: OU={unit},{base}\nobjectClass: organizationalUnit\nou: {unit}\n\n"));
    }
    World::with(name, &configuration)
}

fn replace(samba: &Samba, dn: &str, attribute: &str, value: &str) {
    samba.modify_ldif(&format!("dn: {dn}\nchangetype: modify\nreplace: {attribute}\n{attribute}: {value}\n\n"));
}

#[test]
fn a_disabled_person_of_the_domain_is_suspended_and_resumed() {
    let (samba, base) = Samba::with_unit("cycle");
    let mut world = world(samba, "adc", &base, "");
    let dn = format!("CN=cyc-alice,OU=people,{base}");
    samba.add_ldif(&person_ldif(&format!("OU=people,{base}"), "cyc-alice", ""));
    let uid = SLICE + rid(samba, &dn);
    let kubeconfig = world.make_home("home", "cyc-alice", uid, SLICE + 513);

    all_is_well(&world.cycle());
    assert!(world.works(&kubeconfig));
    let rows = world.rows("SELECT name, uid, gid, source, state FROM users WHERE name = 'cyc-alice'");
    assert_eq!((&rows[0]["uid"], &rows[0]["gid"]), (&uid.into(), &(SLICE + 513).into()));
    assert_eq!((&rows[0]["source"], &rows[0]["state"]), (&"domain".into(), &"active".into()));
    let annotation = world.kubectl(&["get", "namespace", "adc-p-cyc-alice", "-o", "yaml"]);
    assert!(annotation.contains(&format!("bursar.dev/uid: \"{uid}\"")), "{annotation}");
    for said in [world.bursar("status"), world.bursar("doctor"), world.plan().text] {
        assert!(said.contains("uids from SIDs, because no account has a uidNumber"), "{said}");
    }

    let state = |world: &World| world.rows("SELECT state FROM users WHERE name = 'cyc-alice'")[0]["state"].clone();
    let disabled = [("userAccountControl", "546", "544"), ("accountExpires", LONG_AGO, "0")];
    for (attribute, off, on) in disabled {
        replace(samba, &dn, attribute, off);
        world.cycle();
        assert_eq!(state(&world), "suspended", "{attribute}");
        assert!(!world.works(&kubeconfig), "{attribute}");
        replace(samba, &dn, attribute, on);
        all_is_well(&world.cycle());
        assert_eq!(state(&world), "active", "{attribute}");
        assert!(world.works(&kubeconfig), "{attribute}");
    }
}

#[test]
fn the_first_uid_number_of_a_domain_changes_no_uids() {
    let (samba, base) = Samba::with_unit("frozen");
    let mut world = world(samba, "adf", &base, "");
    let people = format!("OU=people,{base}");
    let dns = ["frz-alice", "frz-bob"].map(|name| format!("CN={name},{people}"));
    samba.add_ldif(&person_ldif(&people, "frz-alice", ""));
    samba.add_ldif(&person_ldif(&people, "frz-bob", ""));
    let uids = [&dns[0], &dns[1]].map(|dn| SLICE + rid(samba, dn));
    let kubeconfigs = [
        world.make_home("home", "frz-alice", uids[0], SLICE + 513),
        world.make_home("home", "frz-bob", uids[1], SLICE + 513),
    ];
    all_is_well(&world.cycle());

    samba.modify_ldif(&format!(
        "dn: {}\nchangetype: modify\nadd: uidNumber\nuidNumber: 10001\n-\nadd: gidNumber\ngidNumber: 20001\n\n",
        dns[0]
    ));
    world.cycle();
    let rows = world.rows("SELECT uid, state FROM users WHERE source = 'domain' ORDER BY name");
    let known: Vec<_> = rows.iter().map(|row| (row["uid"].clone(), row["state"].clone())).collect();
    assert_eq!(known, uids.map(|uid| (uid.into(), "active".into())), "both people keep their uids");
    assert!(kubeconfigs.iter().all(|kubeconfig| world.works(kubeconfig)));
    let status = world.bursar("status");
    assert!(status.contains("as the first complete read decided, though 1 of 2 accounts have a uidNumber"), "{status}");
    assert!(!status.contains("rejected: user frz-"), "{status}");

    // An administrator can order a new decision. Even then no account gets another uid.
    world.stop();
    let (code, said) = crate::runbooks::follow(&world, "bursar directory accept domain --reason numbers");
    assert_eq!(code, Some(0), "{said}");
    world.cycle();
    let status = world.bursar("status");
    assert!(status.contains("uids from attributes, because 1 of 2 accounts have a uidNumber"), "{status}");
    assert!(status.contains("rejected: user frz-alice: uid changed from"), "{status}");
    assert!(status.contains("rejected: user frz-bob: uidNumber is missing"), "{status}");

    world.configure("type     = \"ad\"", "type     = \"ad\"\nids = \"sid\"");
    all_is_well(&world.cycle());
    assert!(!world.bursar("status").contains("rejected: user frz-"));
}

/// There are two domains: the server's own, and one from a file with an account that the server knows as a foreign
/// security principal.
#[test]
fn a_foreign_principal_is_matched_by_its_sid() {
    let (samba, base) = Samba::with_unit("forest");
    let file = Servers::shared().folder().join("adx-child.ldif");
    let sid = "S-1-5-21-2222-3333-4444-1104";
    let people = "OU=people,DC=child,DC=example";
    let account = |name: &str, sid: &str, number: u32| {
        format!(
            "dn: CN={name},{people}\nobjectClass: user\nobjectCategory: person\nsAMAccountName: {name}\nobjectSid: {sid}\n\
             objectGUID:: {guid}\nprimaryGroupID: 513\nuserAccountControl: 512\n\n",
            guid =
                base64::Engine::encode(&base64::engine::general_purpose::STANDARD, [number.to_le_bytes(); 4].concat()),
        )
    };
    let child = account("adx-carol", sid, 71_104) + &account("adx-dave", "S-1-5-21-2222-3333-4444-1105", 71_105);
    std::fs::write(&file, child).expect("the folder is writable");
    let source = format!(
        "[[source]]\nname = \"child\"\ntype = \"ldif\"\npreset = \"ad\"\npaths = [\"{}\"]\n[source.users]\n\
         base = \"{people}\"\nfilter = \"(objectClass=user)\"\n",
        file.display()
    );
    let mut world = world(samba, "adx", &base, &source);
    let (homes, groups) = (format!("OU=people,{base}"), format!("OU=groups,{base}"));
    samba.add_ldif(&person_ldif(&homes, "adx-alice", ""));
    // The server creates the foreign security principal itself.
    let principal = format!("CN={sid},CN=ForeignSecurityPrincipals,{DOMAIN_DN}");
    samba.add_ldif(&group_ldif(&groups, "adx-team", &[format!("CN=adx-alice,{homes}"), format!("<SID={sid}>")]));

    let members = |world: &World| {
        let query = "SELECT member FROM memberships WHERE account = 'group:adx-team' ORDER BY member";
        world
            .rows(query)
            .into_iter()
            .map(|row| row["member"].as_str().unwrap_or_default().to_owned())
            .collect::<Vec<_>>()
    };
    world.cycle();
    world.cycle();
    assert_eq!(members(&world), ["user:adx-alice", "user:adx-carol"], "{}", world.bursar("status"));
    assert!(!world.bursar("status").contains("have no entry"));

    // A member that is in no configured domain is counted.
    let stranger = "S-1-5-21-2222-3333-4444-9999";
    samba.modify_ldif(&format!(
        "dn: CN=adx-team,{groups}\nchangetype: modify\nadd: member\n\
         member: <SID={stranger}>\n-\ndelete: member\nmember: {principal}\n\n"
    ));
    // The group begins to name somebody without an entry, so a removal needs another complete read.
    world.cycle();
    world.cycle();
    assert_eq!(members(&world), ["user:adx-alice"]);
    let status = world.bursar("status");
    assert!(status.contains("1 members of 1 groups and tools have no entry in any source"), "{status}");
    assert!(status.contains(&format!("group:adx-team: 1, such as {}", stranger.to_lowercase())), "{status}");
}

#[test]
fn a_tool_of_the_domain_gets_its_maintainers_from_the_group_with_its_cn() {
    let (samba, base) = Samba::with_unit("tools");
    let more = format!("[source.tools]\nbase = \"OU=tools,{base}\"\n[source.attributes]\ngroup_name = \"cn\"\n");
    let mut world = world(samba, "adt", &base, &more);
    let (people, groups) = (format!("OU=people,{base}"), format!("OU=groups,{base}"));
    let person = |name: &str| format!("CN={name},{people}");
    samba.add_ldif(&person_ldif(&people, "adt-alice", ""));
    samba.add_ldif(&person_ldif(&people, "adt-bob", ""));
    samba.add_ldif(&person_ldif(&format!("OU=tools,{base}"), "adt-tool", ""));
    let team = format!("CN=adt-team,{groups}");
    samba.add_ldif(&group_ldif(&groups, "adt-team", &[person("adt-bob")]));
    // A sAMAccountName is unique in a domain, so the group has another one.
    let group = group_ldif(&groups, "adt-tool", &[person("adt-alice"), team]);
    samba.add_ldif(&group.replace("sAMAccountName: adt-tool", "sAMAccountName: adt-tool-maintainers"));
    let dn = format!("CN=adt-tool,OU=tools,{base}");
    let kubeconfig = world.make_home("data/project", "adt-tool", SLICE + rid(samba, &dn), SLICE + 513);
    for name in ["adt-alice", "adt-bob"] {
        world.make_home("home", name, SLICE + rid(samba, &person(name)), SLICE + 513);
    }

    all_is_well(&world.cycle());
    assert!(world.works(&kubeconfig));
    let rows = world.rows("SELECT member FROM memberships WHERE account = 'tool:adt-tool' ORDER BY member");
    let members: Vec<_> = rows.iter().map(|row| row["member"].clone()).collect();
    assert_eq!(members, ["user:adt-alice", "user:adt-bob"]);
    replace(samba, &dn, "userAccountControl", "546");
    world.cycle();
    assert_eq!(world.rows("SELECT state FROM tools WHERE name = 'adt-tool'")[0]["state"], "suspended");
    assert!(!world.works(&kubeconfig));
    replace(samba, &dn, "userAccountControl", "544");
    all_is_well(&world.cycle());
    assert!(world.works(&kubeconfig));
}

/// In a domain, a `cn` has one value, which is unique only in its organizational unit.
#[test]
fn a_second_group_with_the_cn_of_a_tool_makes_nobody_a_maintainer() {
    let (samba, base) = Samba::with_unit("twice");
    let more = format!("[source.tools]\nbase = \"OU=tools,{base}\"\n[source.attributes]\ngroup_name = \"cn\"\n");
    let mut world = world(samba, "adw", &base, &more);
    let (people, groups) = (format!("OU=people,{base}"), format!("OU=groups,{base}"));
    samba.add_ldif(&person_ldif(&people, "adw-alice", ""));
    samba.add_ldif(&person_ldif(&people, "adw-mallory", ""));
    samba.add_ldif(&person_ldif(&format!("OU=tools,{base}"), "adw-tool", ""));
    let group = |unit: &str, member: &str| {
        let group = group_ldif(unit, "adw-tool", &[format!("CN={member},{people}")]);
        group.replace("sAMAccountName: adw-tool", &format!("sAMAccountName: of-{member}"))
    };
    samba.add_ldif(&group(&groups, "adw-alice"));
    let dn = format!("CN=adw-tool,OU=tools,{base}");
    world.make_home("data/project", "adw-tool", SLICE + rid(samba, &dn), SLICE + 513);
    for name in ["adw-alice", "adw-mallory"] {
        world.make_home("home", name, SLICE + rid(samba, &format!("CN={name},{people}")), SLICE + 513);
    }
    let members = |world: &World| {
        let rows = world.rows("SELECT member FROM memberships WHERE account = 'tool:adw-tool' ORDER BY member");
        rows.iter().map(|row| row["member"].clone()).collect::<Vec<_>>()
    };
    all_is_well(&world.cycle());
    assert_eq!(members(&world), ["user:adw-alice"]);

    // The server may list either group first.
    for unit in ["a-lab", "z-lab"] {
        let place = format!("OU={unit},{groups}");
        samba.add_ldif(&format!("dn: {place}\nobjectClass: organizationalUnit\nou: {unit}\n\n"));
        samba.add_ldif(&group(&place, "adw-mallory"));
        world.cycle();
        assert_eq!(members(&world), ["user:adw-alice"], "{unit}");
        let status = world.bursar("status");
        assert!(status.contains("rejected: tool adw-tool: 2 groups have its name"), "{status}");
        samba.modify_ldif(&format!("dn: CN=adw-tool,{place}\nchangetype: delete\n\n"));
        all_is_well(&world.cycle());
        assert_eq!(members(&world), ["user:adw-alice"], "{unit}");
    }
}
