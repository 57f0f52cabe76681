//! LDIF (RFC 2849) of people, tools and groups. Each function gives whole records, with the empty line that ends them.

use std::fmt::Write as _;

/// The private group of all people, as at Toolforge.
pub const PEOPLE_GID: u32 = 500;

/// `ou=NAME,PARENT`.
#[must_use]
pub fn unit_ldif(parent: &str, name: &str) -> String {
    format!("dn: ou={name},{parent}\nobjectClass: organizationalUnit\nou: {name}\n\n")
}

/// The three units that Toolforge has, with the unit of the tools' own accounts: `ou=people`, `ou=servicegroups`,
/// `ou=people,ou=servicegroups` and `ou=groups`, below `base`.
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

/// The DN of the first of the two entries of a tool: the account.
#[must_use]
pub fn tool_account_dn(base: &str, name: &str) -> String {
    format!("uid=tools.{name},ou=people,ou=servicegroups,{base}")
}

/// The DN of the second of the two entries of a tool: the group of its maintainers.
#[must_use]
pub fn tool_group_dn(base: &str, name: &str) -> String {
    format!("cn=tools.{name},ou=servicegroups,{base}")
}

/// A tool as at Toolforge: a posixAccount, with its home in /data/project, and a groupOfNames of the same cn, whose
/// members are `maintainers`, by name, from `ou=people`. Without maintainers there is no group: a groupOfNames must
/// have a member.
#[must_use]
pub fn tool_ldif(base: &str, name: &str, uid: u32, maintainers: &[&str]) -> String {
    let home = format!("/data/project/{name}");
    let account = tool_account_ldif(base, name, uid, &home);
    if maintainers.is_empty() { account } else { account + &tool_group_ldif(base, name, maintainers) }
}

/// The first entry of a tool.
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

/// The second entry of a tool.
#[must_use]
pub fn tool_group_ldif(base: &str, name: &str, maintainers: &[&str]) -> String {
    let members: Vec<String> = maintainers.iter().map(|person| person_dn(base, person)).collect();
    group_of_names_ldif(&tool_group_dn(base, name), &format!("tools.{name}"), &members)
}

/// `cn=NAME,ou=groups`: a groupOfNames of people.
#[must_use]
pub fn group_ldif(base: &str, name: &str, members: &[&str]) -> String {
    let members: Vec<String> = members.iter().map(|person| person_dn(base, person)).collect();
    group_of_names_ldif(&format!("cn={name},ou=groups,{base}"), name, &members)
}

/// A groupOfNames with any members, given by DN: groups in groups, strangers, cycles.
#[must_use]
pub fn group_of_names_ldif(dn: &str, name: &str, member_dns: &[String]) -> String {
    let mut ldif = format!("dn: {dn}\nobjectClass: groupOfNames\ncn: {name}\n");
    add_values(&mut ldif, "member", member_dns);
    ldif
}

/// `cn=NAME,ou=groups`: a posixGroup (RFC 2307), whose members are names.
#[must_use]
pub fn posix_group_ldif(base: &str, name: &str, gid: u32, members: &[&str]) -> String {
    let mut ldif = format!("dn: cn={name},ou=groups,{base}\nobjectClass: posixGroup\ncn: {name}\ngidNumber: {gid}\n");
    add_values(&mut ldif, "memberUid", members);
    ldif
}

/// A change that marks an account disabled as Toolforge does, by the password policy `cn=disabled`. For
/// `Slapd::modify_ldif`.
#[must_use]
pub fn disable_ldif(dn: &str) -> String {
    let policy = crate::slapd::DISABLED_POLICY_DN;
    format!("dn: {dn}\nchangetype: modify\nreplace: pwdPolicySubentry\npwdPolicySubentry: {policy}\n\n")
}

/// The change that takes the mark of [`disable_ldif`] away.
#[must_use]
pub fn enable_ldif(dn: &str) -> String {
    format!("dn: {dn}\nchangetype: modify\ndelete: pwdPolicySubentry\n\n")
}

/// A change that gives `attribute` just these values; none removes it.
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
