//! The presets: the attribute names and filters of known kinds of directory.

use std::str::FromStr;

use bursar_core::identity::AccountKind;

use crate::entry::mark::{DisabledMark, MarkTest};
use crate::entry::numbers::{GROUP_TYPE, OBJECT_SID, PRIMARY_GROUP};
use crate::keycloak;
use crate::source::{SourceError, Tree};

/// How the attributes are named. Case does not matter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttributeNames {
    /// The immutable id.
    pub id: String,
    /// The time at which the entry was created.
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
    /// The display name: the first of these attributes that the entry has.
    pub display_name: Vec<String>,
    /// Public SSH keys of a person.
    pub ssh_keys: String,
    /// Marks that disable an entry; any one of them disables it.
    pub disabled: Vec<DisabledMark>,
    /// Members of a group by DN.
    pub member_dns: Vec<String>,
    /// Members of a group by name.
    pub member_names: Vec<String>,
    /// Groups of an account by DN. They are used only for groups that show no members.
    pub member_of: Vec<String>,
    /// Whether every groupOfNames has a member (RFC 4519, 3.5), so that a group that shows no members hides them. False
    /// for 389-ds and `FreeIPA`, where a group may be empty.
    pub members_required: bool,
    /// The attribute that identifies a person in every source. If `None`, entries of two sources are always two
    /// different people.
    pub person: Option<String>,
    /// Managers of a group or tool by DN (a class's `managers`).
    pub managers: Option<String>,
    /// Whether this is an Active Directory. Its ids are `objectGUID`s, and numbers may come from SIDs. Names of
    /// accounts are converted to lower case, as SSSD does, because Active Directory compares them without case.
    pub windows: bool,
}

impl AttributeNames {
    /// Returns the attributes that a search for entries of `kind` requests.
    #[must_use]
    pub fn wanted(&self, kind: AccountKind) -> Vec<String> {
        let mut wanted = vec!["objectClass", &self.id, &self.created];
        let people = [&self.uid, &self.gid, &self.home, &self.mail].into_iter().chain(&self.display_name);
        let people = people.chain(&self.person);
        let groups = self.member_dns.iter().chain(&self.member_names).chain(&self.managers);
        match kind {
            AccountKind::Tool => {
                wanted.extend([self.tool_name.as_str(), &self.group_name]);
                wanted.extend(people.chain(&self.member_of).map(String::as_str));
                wanted.extend(groups.map(String::as_str));
            }
            AccountKind::User => {
                wanted.extend([self.user_name.as_str(), &self.ssh_keys]);
                wanted.extend(people.chain(&self.member_of).map(String::as_str));
            }
            AccountKind::Group => {
                wanted.extend([self.group_name.as_str(), &self.gid]);
                wanted.extend(groups.chain(&self.member_of).map(String::as_str));
            }
        }
        if self.windows {
            wanted.extend([OBJECT_SID, PRIMARY_GROUP, GROUP_TYPE]);
        }
        wanted.extend(self.disabled.iter().map(|mark| mark.attribute.as_str()));
        let mut names: Vec<String> = wanted.into_iter().map(str::to_owned).collect();
        names.sort_by_key(|name| name.to_lowercase());
        names.dedup_by_key(|name| name.to_lowercase());
        names
    }
}

/// A known kind of directory, with its attribute names and filters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preset {
    /// Wikimedia Toolforge: a tool is a posixAccount and a groupOfNames with the same cn, `tools.NAME`.
    Toolforge,
    /// RFC 2307: posixAccount and posixGroup with `memberUid`. `member` and `uniqueMember` are read as well.
    Rfc2307,
    /// draft-howard-rfc2307bis: a posixGroup is also a groupOfNames or similar, and names its members by DN.
    Rfc2307bis,
    /// `FreeIPA`, and other 389-ds servers with the same names.
    FreeIpa,
    /// Active Directory and Samba.
    Ad,
    /// A realm of Keycloak: Keycloak's own properties keep their names, and all other names come from RFC 2307.
    Keycloak,
}

/// The presets by name.
pub const PRESETS: [(&str, Preset); 6] = [
    ("toolforge", Preset::Toolforge),
    ("rfc2307", Preset::Rfc2307),
    ("rfc2307bis", Preset::Rfc2307bis),
    ("freeipa", Preset::FreeIpa),
    ("ad", Preset::Ad),
    ("keycloak", Preset::Keycloak),
];

impl FromStr for Preset {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<Self, SourceError> {
        let found = PRESETS.iter().find(|(name, _)| *name == text).map(|(_, preset)| *preset);
        found.ok_or_else(|| {
            let names = PRESETS.map(|(name, _)| name).join(", ");
            SourceError::new("preset", format!("{text:?} is none of: {names}"))
        })
    }
}

impl Preset {
    /// Returns the attribute names that this preset uses.
    #[must_use]
    pub fn attributes(self) -> AttributeNames {
        let texts = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let mark = |attribute: &str, test: MarkTest| DisabledMark { attribute: attribute.to_owned(), test };
        let value = |text: &str| MarkTest::Value(text.to_owned());
        // The value that password policies use for "locked until an administrator unlocks it"
        // (draft-behera-ldap-password-policy, 5.3.3). Any other time is a temporary lockout after wrong passwords,
        // which does not disable an account.
        let locked = mark("pwdAccountLockedTime", value("000001010000Z"));
        let names = AttributeNames {
            id: "entryUUID".to_owned(),
            created: "createTimestamp".to_owned(),
            tool_name: "uid".to_owned(),
            user_name: "uid".to_owned(),
            group_name: "cn".to_owned(),
            uid: "uidNumber".to_owned(),
            gid: "gidNumber".to_owned(),
            home: "homeDirectory".to_owned(),
            mail: "mail".to_owned(),
            display_name: texts(&["displayName", "cn"]),
            // The name comes from the schema openssh-lpk. SSSD and the LDAP helpers of OpenSSH use the same name.
            ssh_keys: "sshPublicKey".to_owned(),
            disabled: vec![locked.clone()],
            member_dns: texts(&["member", "uniqueMember"]),
            member_names: texts(&["memberUid"]),
            member_of: Vec::new(),
            members_required: false,
            person: None,
            managers: None,
            windows: false,
        };
        match self {
            Self::Rfc2307 => names,
            Self::Toolforge => AttributeNames {
                tool_name: "cn".to_owned(),
                disabled: vec![locked, mark("pwdPolicySubentry", value("cn=disabled,*"))],
                members_required: true,
                ..names
            },
            Self::Rfc2307bis => AttributeNames { member_names: Vec::new(), members_required: true, ..names },
            Self::FreeIpa => AttributeNames {
                id: "nsUniqueId".to_owned(),
                ssh_keys: "ipaSshPubKey".to_owned(),
                disabled: vec![
                    mark("nsAccountLock", MarkTest::Present),
                    mark("krbPrincipalExpiration", MarkTest::Past),
                ],
                member_dns: texts(&["member"]),
                member_names: Vec::new(),
                member_of: texts(&["memberOf"]),
                ..names
            },
            Self::Ad => AttributeNames {
                id: "objectGUID".to_owned(),
                created: "whenCreated".to_owned(),
                tool_name: "sAMAccountName".to_owned(),
                user_name: "sAMAccountName".to_owned(),
                group_name: "sAMAccountName".to_owned(),
                home: "unixHomeDirectory".to_owned(),
                // 2 is ACCOUNTDISABLE (MS-ADTS 2.2.16). A lockout after wrong passwords is another bit, which does not
                // disable an account.
                disabled: vec![mark("userAccountControl", MarkTest::Bits(2)), mark("accountExpires", MarkTest::Past)],
                member_dns: texts(&["member"]),
                member_names: Vec::new(),
                windows: true,
                ..names
            },
            Self::Keycloak => AttributeNames {
                id: "id".to_owned(),
                created: "createdTimestamp".to_owned(),
                user_name: "username".to_owned(),
                group_name: "name".to_owned(),
                mail: "email".to_owned(),
                display_name: texts(&["displayName", "name"]),
                disabled: vec![mark("enabled", value("false"))],
                member_dns: texts(&[keycloak::MEMBER]),
                member_names: Vec::new(),
                ..names
            },
        }
    }

    /// Returns the tree of `kind` beneath `base`, with the filter and prefix of this preset.
    #[must_use]
    pub fn tree(self, kind: AccountKind, base: &str) -> Tree {
        const GROUPS: &str = "(|(objectClass=posixGroup)(objectClass=groupOfNames)(objectClass=groupOfUniqueNames))";
        const GROUPS_BIS: &str = "(|(objectClass=posixGroup)(objectClass=groupOfNames)(objectClass=groupOfUniqueNames)\
                                  (objectClass=groupOfMembers))";
        const GROUPS_IPA: &str = "(|(objectClass=posixGroup)(objectClass=groupOfNames))";
        // Computers and trust accounts between domains are users too, so people are selected by their category.
        const PEOPLE_AD: &str = "(&(objectCategory=person)(objectClass=user))";
        let (filter, prefix) = match (self, kind) {
            // A realm has no filters: all its users and groups are read.
            (Self::Keycloak, _) => ("(objectClass=*)", None),
            (Self::Toolforge, AccountKind::Tool) => ("(cn=tools.*)", Some("tools.")),
            (Self::Ad, AccountKind::Tool | AccountKind::User) => (PEOPLE_AD, None),
            (_, AccountKind::Tool | AccountKind::User) => ("(objectClass=posixAccount)", None),
            (Self::Ad, AccountKind::Group) => ("(objectClass=group)", None),
            (Self::FreeIpa, AccountKind::Group) => (GROUPS_IPA, None),
            (Self::Rfc2307bis, AccountKind::Group) => (GROUPS_BIS, None),
            (Self::Toolforge | Self::Rfc2307, AccountKind::Group) => (GROUPS, None),
        };
        Tree { base: base.to_owned(), filter: filter.to_owned(), strip_prefix: prefix.map(str::to_owned) }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::entry::raw::RawEntry;

    #[test]
    fn a_lockout_does_not_disable_an_account() {
        let disables = |preset: Preset, attribute: &str, value: &str| {
            let raw = RawEntry::from_texts("cn=a", &[(attribute, value)]);
            preset
                .attributes()
                .disabled
                .iter()
                .any(|mark| mark.of(&raw, Timestamp::UNIX_EPOCH).is_ok_and(|it| it.is_some()))
        };
        assert!(disables(Preset::Toolforge, "pwdAccountLockedTime", "000001010000Z"));
        assert!(!disables(Preset::Toolforge, "pwdAccountLockedTime", "20261121002119Z"));
        assert!(disables(Preset::Toolforge, "pwdPolicySubentry", "cn=disabled,ou=ppolicies,dc=example,dc=org"));
        assert!(!disables(Preset::Toolforge, "pwdPolicySubentry", "cn=default,ou=ppolicies,dc=example,dc=org"));
        assert!(disables(Preset::FreeIpa, "nsAccountLock", "TRUE"));
        assert!(!disables(Preset::FreeIpa, "nsAccountLock", "FALSE"));
        assert!(disables(Preset::Ad, "userAccountControl", "514"));
        assert!(!disables(Preset::Ad, "userAccountControl", "528"));
    }

    #[test]
    fn presets_are_found_by_name() {
        for (name, preset) in PRESETS {
            assert_eq!(name.parse(), Ok(preset));
        }
        assert!("nis".parse::<Preset>().is_err_and(|error| error.why.contains("toolforge, rfc2307, rfc2307bis")));
    }

    #[test]
    fn sids_are_requested_only_from_active_directory() {
        let asked = |preset: Preset| preset.attributes().wanted(AccountKind::User).contains(&"objectSid".to_owned());
        assert_eq!([Preset::Ad, Preset::FreeIpa].map(asked), [true, false]);
    }

    #[test]
    fn only_used_attributes_are_requested() {
        let names = Preset::Rfc2307.attributes();
        assert!(!names.wanted(AccountKind::User).contains(&"memberUid".to_owned()));
        assert!(!names.wanted(AccountKind::Group).contains(&"homeDirectory".to_owned()));
        let tools = names.wanted(AccountKind::Tool);
        assert_eq!(tools.iter().filter(|name| *name == "cn").count(), 1);
    }
}
