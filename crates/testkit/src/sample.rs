//! The sample directory: 12 people and 6 tools in the form of Toolforge, and a smaller site in the form of RFC 2307.

use crate::ldif::{
    PEOPLE_GID, group_ldif, person_dn, person_ldif, posix_group_ldif, tool_ldif, toolforge_units_ldif, unit_ldif,
};
use crate::slapd::BASE_DN;

/// The people and their uids.
pub const PEOPLE: [(&str, u32); 12] = [
    ("alice", 2001),
    ("bob", 2002),
    ("carol", 2003),
    ("dave", 2004),
    ("erin", 2005),
    ("frank", 2006),
    ("grace", 2007),
    ("heidi", 2008),
    ("ivan", 2009),
    ("judy", 2010),
    ("mallory", 2011),
    ("niaj", 2012),
];

/// The tools with their uids and maintainers.
pub const TOOLS: [(&str, u32, &[&str]); 6] = [
    ("baz", 52501, &["carol"]),
    ("qux", 52502, &["dave", "erin"]),
    ("foo", 52503, &["alice", "bob"]),
    ("bar", 52504, &["bob"]),
    ("quux", 52505, &["frank", "grace", "heidi"]),
    ("corge", 52506, &["ivan", "judy", "mallory", "niaj"]),
];

/// The members of the group `k8s-admins`.
pub const ADMINS: [&str; 2] = ["alice", "heidi"];

/// The DN of the entry without which a read of this directory is not complete.
pub const SENTINEL_DN: &str = "uid=novaadmin,ou=people,dc=example,dc=org";

/// The uid of that entry, which is a posixAccount but not an inetOrgPerson.
pub const SENTINEL_UID: u32 = 2000;

/// The base of the RFC 2307 site.
pub const RFC2307_BASE: &str = "ou=rfc2307,dc=example,dc=org";

/// The people of the RFC 2307 site.
pub const RFC2307_PEOPLE: [(&str, u32); 4] = [("olivia", 3001), ("peggy", 3002), ("rupert", 3003), ("sybil", 3004)];

/// The tools of the RFC 2307 site with their number (for the account and its posixGroup) and members.
pub const RFC2307_TOOLS: [(&str, u32, &[&str]); 2] =
    [("garply", 53001, &["olivia", "peggy"]), ("waldo", 53002, &["rupert"])];

/// Everything below [`BASE_DN`] except the RFC 2307 site: units, people, tools, the group `k8s-admins`, and the
/// sentinel.
#[must_use]
pub fn toolforge() -> String {
    let mut ldif = toolforge_units_ldif(BASE_DN);
    ldif.push_str(&sentinel_ldif(BASE_DN));
    ldif.extend(PEOPLE.iter().map(|(name, uid)| person_ldif(BASE_DN, name, *uid)));
    ldif.extend(TOOLS.iter().map(|(name, uid, maintainers)| tool_ldif(BASE_DN, name, *uid, maintainers)));
    ldif.push_str(&group_ldif(BASE_DN, "k8s-admins", &ADMINS));
    ldif
}

/// The sentinel `uid=novaadmin,ou=people` below `base`.
#[must_use]
pub fn sentinel_ldif(base: &str) -> String {
    format!(
        "dn: {}\n\
         objectClass: account\n\
         objectClass: posixAccount\n\
         uid: novaadmin\n\
         cn: novaadmin\n\
         uidNumber: {SENTINEL_UID}\n\
         gidNumber: {PEOPLE_GID}\n\
         homeDirectory: /home/novaadmin\n\n",
        person_dn(base, "novaadmin")
    )
}

/// A site in the form of RFC 2307 below [`RFC2307_BASE`]: posixAccounts, and posixGroups whose members are names. Tools
/// are accounts in `ou=services`.
#[must_use]
pub fn rfc2307() -> String {
    let mut ldif = unit_ldif(BASE_DN, "rfc2307");
    ldif.extend(["people", "services", "groups"].map(|unit| unit_ldif(RFC2307_BASE, unit)));
    ldif.extend(RFC2307_PEOPLE.iter().map(|(name, uid)| account_ldif("people", name, *uid, PEOPLE_GID, "/home")));
    for (name, uid, members) in RFC2307_TOOLS {
        ldif.push_str(&account_ldif("services", name, uid, uid, "/data/project"));
        ldif.push_str(&posix_group_ldif(RFC2307_BASE, name, uid, members));
    }
    ldif.push_str(&posix_group_ldif(RFC2307_BASE, "k8s-admins", 3500, &["sybil"]));
    ldif
}

fn account_ldif(unit: &str, name: &str, uid: u32, gid: u32, homes: &str) -> String {
    format!(
        "dn: uid={name},ou={unit},{RFC2307_BASE}\n\
         objectClass: account\n\
         objectClass: posixAccount\n\
         uid: {name}\n\
         cn: {name}\n\
         uidNumber: {uid}\n\
         gidNumber: {gid}\n\
         homeDirectory: {homes}/{name}\n\
         loginShell: /bin/bash\n\n"
    )
}
