//! Attribute names and filters of the kinds of directory that are known by name. PURE: no runtime, no client, no file
//! system, no clock.

use std::str::FromStr;

use super::source::{SourceError, Tree};
use crate::identity::AccountKind;

/// What the attributes are called, in any case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttributeNames {
    /// The immutable id.
    pub id: String,
    /// When the entry was made.
    pub created: String,
    /// A tool's name.
    pub tool_name: String,
    /// A person's name.
    pub user_name: String,
    /// A group's name.
    pub group_name: String,
    /// POSIX user id.
    pub uid: String,
    /// POSIX group id.
    pub gid: String,
    /// Home directory.
    pub home: String,
    /// Mail address.
    pub mail: String,
    /// Display name: the first of these that the entry has.
    pub display_name: Vec<String>,
    /// Marks that disable an entry; any one is enough.
    pub disabled: Vec<DisabledMark>,
    /// Members of a group by DN.
    pub member_dns: Vec<String>,
    /// Members of a group by name.
    pub member_names: Vec<String>,
    /// A groupOfNames has a member (RFC 4519, 3.5), so one that shows none hides them. Not so in 389-ds and `FreeIPA`,
    /// where such a group may be empty.
    pub members_required: bool,
    /// Managers of a group or tool by DN (a class's `managers`).
    pub managers: Option<String>,
}

impl AttributeNames {
    /// The attributes that a search for entries of `kind` asks for, and no others.
    #[must_use]
    pub fn wanted(&self, kind: AccountKind) -> Vec<String> {
        let mut wanted = vec!["objectClass", &self.id, &self.created];
        let people = [&self.uid, &self.gid, &self.home, &self.mail].into_iter().chain(&self.display_name);
        let groups = self.member_dns.iter().chain(&self.member_names).chain(&self.managers);
        match kind {
            AccountKind::Tool => {
                wanted.extend([self.tool_name.as_str(), &self.group_name]);
                wanted.extend(people.map(String::as_str));
                wanted.extend(groups.map(String::as_str));
            }
            AccountKind::User => {
                wanted.push(&self.user_name);
                wanted.extend(people.map(String::as_str));
            }
            AccountKind::Group => {
                wanted.extend([self.group_name.as_str(), &self.gid]);
                wanted.extend(groups.map(String::as_str));
            }
        }
        wanted.extend(self.disabled.iter().map(|mark| mark.attribute.as_str()));
        let mut names: Vec<String> = wanted.into_iter().map(str::to_owned).collect();
        names.sort_by_key(|name| name.to_lowercase());
        names.dedup_by_key(|name| name.to_lowercase());
        names
    }
}

/// An attribute that disables the entry that has it, written `attribute`, `attribute=value` or `attribute=begin*`.
///
/// Without a value its presence is enough, unless it says `FALSE` (`nsAccountLock: FALSE`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DisabledMark {
    /// Name of the attribute.
    pub attribute: String,
    /// What it must say, compared without case; a `*` at its end stands for anything.
    pub value: Option<String>,
}

impl DisabledMark {
    /// Whether `value` of this attribute disables.
    #[must_use]
    pub fn matches(&self, value: &str) -> bool {
        let value = value.to_lowercase();
        match self.value.as_deref().map(str::to_lowercase) {
            None => value != "false",
            Some(wanted) => wanted.strip_suffix('*').map_or(value == wanted, |begin| value.starts_with(begin)),
        }
    }
}

impl FromStr for DisabledMark {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<Self, SourceError> {
        let (attribute, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
        if !is_attribute_name(attribute) {
            return Err(SourceError::new("attributes.disabled", format!("{text:?} does not begin with an attribute")));
        }
        Ok(Self { attribute: attribute.to_owned(), value: value.map(str::to_owned) })
    }
}

/// Attribute names and filters of a known kind of directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preset {
    /// Wikimedia Toolforge: a tool is a posixAccount and a groupOfNames of one cn, `tools.NAME`.
    Toolforge,
    /// RFC 2307: posixAccount and posixGroup with `memberUid`; `member` and `uniqueMember` are read as well.
    Rfc2307,
}

impl FromStr for Preset {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<Self, SourceError> {
        match text {
            "toolforge" => Ok(Self::Toolforge),
            "rfc2307" => Ok(Self::Rfc2307),
            other => Err(SourceError::new("preset", format!("{other:?} is none of: toolforge, rfc2307"))),
        }
    }
}

impl Preset {
    /// The attribute names of such a directory.
    #[must_use]
    pub fn attributes(self) -> AttributeNames {
        let mark = |attribute: &str, value: &str| DisabledMark {
            attribute: attribute.to_owned(),
            value: Some(value.to_owned()),
        };
        // The password policy's mark for "locked until an administrator unlocks it" (draft-behera-ldap-password-policy,
        // 5.3.3). Any other time is a lockout after wrong passwords, which disables nobody.
        let mut disabled = vec![mark("pwdAccountLockedTime", "000001010000Z")];
        if self == Self::Toolforge {
            disabled.push(mark("pwdPolicySubentry", "cn=disabled,*"));
        }
        let tool_name = if self == Self::Toolforge { "cn" } else { "uid" };
        AttributeNames {
            id: "entryUUID".to_owned(),
            created: "createTimestamp".to_owned(),
            tool_name: tool_name.to_owned(),
            user_name: "uid".to_owned(),
            group_name: "cn".to_owned(),
            uid: "uidNumber".to_owned(),
            gid: "gidNumber".to_owned(),
            home: "homeDirectory".to_owned(),
            mail: "mail".to_owned(),
            display_name: vec!["displayName".to_owned(), "cn".to_owned()],
            disabled,
            member_dns: vec!["member".to_owned(), "uniqueMember".to_owned()],
            member_names: vec!["memberUid".to_owned()],
            members_required: self == Self::Toolforge,
            managers: None,
        }
    }

    /// The tree of `kind` beneath `base`, with the filter and prefix such a directory has.
    #[must_use]
    pub fn tree(self, kind: AccountKind, base: &str) -> Tree {
        const GROUPS: &str = "(|(objectClass=posixGroup)(objectClass=groupOfNames)(objectClass=groupOfUniqueNames))";
        let (filter, prefix) = match (self, kind) {
            (Self::Toolforge, AccountKind::Tool) => ("(cn=tools.*)", Some("tools.")),
            (Self::Rfc2307, AccountKind::Tool) | (_, AccountKind::User) => ("(objectClass=posixAccount)", None),
            (_, AccountKind::Group) => (GROUPS, None),
        };
        Tree { base: base.to_owned(), filter: filter.to_owned(), strip_prefix: prefix.map(str::to_owned) }
    }
}

fn is_attribute_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b';'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lockout_is_no_disabled_mark() {
        let marks = Preset::Toolforge.attributes().disabled;
        let disables =
            |attribute: &str, value: &str| marks.iter().any(|mark| mark.attribute == attribute && mark.matches(value));
        assert!(disables("pwdAccountLockedTime", "000001010000Z"));
        assert!(!disables("pwdAccountLockedTime", "20261121002119Z"));
        assert!(disables("pwdPolicySubentry", "cn=disabled,ou=ppolicies,dc=example,dc=org"));
        assert!(!disables("pwdPolicySubentry", "cn=default,ou=ppolicies,dc=example,dc=org"));
        let present: Result<DisabledMark, _> = "nsAccountLock".parse();
        assert!(present.is_ok_and(|mark| mark.matches("TRUE") && !mark.matches("false")));
    }

    #[test]
    fn only_what_is_used_is_asked_for() {
        let names = Preset::Rfc2307.attributes();
        assert!(!names.wanted(AccountKind::User).contains(&"memberUid".to_owned()));
        assert!(!names.wanted(AccountKind::Group).contains(&"homeDirectory".to_owned()));
        let tools = names.wanted(AccountKind::Tool);
        assert_eq!(tools.iter().filter(|name| *name == "cn").count(), 1);
    }
}
