//! Builds LDIF (RFC 2849) of people, tools and groups. Each function returns complete records, each ending with an
//! empty line.

use std::fmt::Write as _;

/// The number of the primary group that all people share, as at Toolforge.
pub const PEOPLE_GID: u32 = 500;

/// The organizational unit `ou=NAME,PARENT`.
#[must_use]
pub fn unit_ldif(parent: &str, name: &str) -> String {
    format!("dn: ou={name},{parent}\nobjectClass: organizationalUnit\nou: {name}\n\n")
}

/// The units of Toolforge below `base`: `ou=people`, `ou=servicegroups`, `ou=groups`, and `ou=people,ou=servicegroups`
/// for the accounts of tools.
#[must_use]
pub fn toolforge_units_ldif(base: &str) -> String {
    [
        unit_ldif(base, "people"),
        unit_ldif(base, "servicegroups"),
        unit_ldif(&format!("ou=servicegroups,{base}"), "people"),
        unit_ldif(base, "groups"),
    ]
    .concat()
}

/// The DN that [`person_ldif`] gives a person.
#[must_use]
pub fn person_dn(base: &str, name: &str) -> String {
    format!("uid={name},ou=people,{base}")
}

/// A person: posixAccount and inetOrgPerson, with a home in /home and a mail address.
#[must_use]
pub fn person_ldif(base: &str, name: &str, uid: u32) -> String {
    let title = title(name);
    format!(
        "dn: {}\n\
         objectClass: inetOrgPerson\n\
         objectClass: posixAccount\n\
         objectClass: ldapPublicKey\n\
         uid: {name}\n\
         cn: {title}\n\
         sn: {title}\n\
         displayName: {title} Example\n\
         mail: {name}@example.org\n\
         uidNumber: {uid}\n\
         gidNumber: {PEOPLE_GID}\n\
         homeDirectory: /home/{name}\n\
         loginShell: /bin/bash\n\n",
        person_dn(base, name)
    )
}

/// The DN of a tool's account, the first of its two entries.
#[must_use]
pub fn tool_account_dn(base: &str, name: &str) -> String {
    format!("uid=tools.{name},ou=people,ou=servicegroups,{base}")
}

/// The DN of a tool's group of maintainers, the second of its two entries.
#[must_use]
pub fn tool_group_dn(base: &str, name: &str) -> String {
    format!("cn=tools.{name},ou=servicegroups,{base}")
}

/// A tool as at Toolforge: a posixAccount with its home in /data/project, and a groupOfNames with the same cn. The
/// group's members are the DNs of `maintainers` in `ou=people`. Without maintainers there is no group, because a
/// groupOfNames must have a member.
#[must_use]
pub fn tool_ldif(base: &str, name: &str, uid: u32, maintainers: &[&str]) -> String {
    let home = format!("/data/project/{name}");
    let account = tool_account_ldif(base, name, uid, &home);
    if maintainers.is_empty() { account } else { account + &tool_group_ldif(base, name, maintainers) }
}

/// The account of a tool.
#[must_use]
pub fn tool_account_ldif(base: &str, name: &str, uid: u32, home: &str) -> String {
    format!(
        "dn: {}\n\
         objectClass: person\n\
         objectClass: posixAccount\n\
         objectClass: shadowAccount\n\
         uid: tools.{name}\n\
         cn: tools.{name}\n\
         sn: tools.{name}\n\
         uidNumber: {uid}\n\
         gidNumber: {uid}\n\
         homeDirectory: {home}\n\
         loginShell: /bin/bash\n\n",
        tool_account_dn(base, name)
    )
}

/// The group of a tool's maintainers.
#[must_use]
pub fn tool_group_ldif(base: &str, name: &str, maintainers: &[&str]) -> String {
    let members: Vec<String> = maintainers.iter().map(|person| person_dn(base, person)).collect();
    group_of_names_ldif(&tool_group_dn(base, name), &format!("tools.{name}"), &members)
}

/// A groupOfNames `cn=NAME,ou=groups` of people.
#[must_use]
pub fn group_ldif(base: &str, name: &str, members: &[&str]) -> String {
    let members: Vec<String> = members.iter().map(|person| person_dn(base, person)).collect();
    group_of_names_ldif(&format!("cn={name},ou=groups,{base}"), name, &members)
}

/// A groupOfNames with any members, given by DN: nested groups, unknown DNs, cycles.
#[must_use]
pub fn group_of_names_ldif(dn: &str, name: &str, member_dns: &[String]) -> String {
    let mut ldif = format!("dn: {dn}\nobjectClass: groupOfNames\ncn: {name}\n");
    add_values(&mut ldif, "member", member_dns);
    ldif
}

/// A posixGroup (RFC 2307) `cn=NAME,ou=groups`. Its members are names.
#[must_use]
pub fn posix_group_ldif(base: &str, name: &str, gid: u32, members: &[&str]) -> String {
    let mut ldif = format!("dn: cn={name},ou=groups,{base}\nobjectClass: posixGroup\ncn: {name}\ngidNumber: {gid}\n");
    add_values(&mut ldif, "memberUid", members);
    ldif
}

/// A change for `Slapd::modify_ldif` that disables an account as Toolforge does, with the password policy
/// `cn=disabled`.
#[must_use]
pub fn disable_ldif(dn: &str) -> String {
    let policy = crate::slapd::DISABLED_POLICY_DN;
    format!("dn: {dn}\nchangetype: modify\nreplace: pwdPolicySubentry\npwdPolicySubentry: {policy}\n\n")
}

/// A change that undoes [`disable_ldif`].
#[must_use]
pub fn enable_ldif(dn: &str) -> String {
    format!("dn: {dn}\nchangetype: modify\ndelete: pwdPolicySubentry\n\n")
}

/// A change that replaces the values of `attribute`. Without values, it removes the attribute.
#[must_use]
pub fn replace_ldif(dn: &str, attribute: &str, values: &[&str]) -> String {
    let mut ldif = format!("dn: {dn}\nchangetype: modify\nreplace: {attribute}\n");
    add_values(&mut ldif, attribute, values);
    ldif
}

fn add_values(ldif: &mut String, attribute: &str, values: &[impl AsRef<str>]) {
    for value in values {
        let _ = writeln!(ldif, "{attribute}: {}", value.as_ref());
    }
    ldif.push('\n');
}

fn title(name: &str) -> String {
    let mut letters = name.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}
