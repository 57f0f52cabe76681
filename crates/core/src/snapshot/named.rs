//! Names in entries: members that no entry answers to, and what attributes are called.

use std::collections::{BTreeMap, BTreeSet};

use super::Role;
use super::dn::Dn;
use crate::identity::DirectoryId;

/// Where a domain keeps its entries for members of other domains (MS-ADTS 6.1.1.4.9).
const FOREIGN_PRINCIPALS: &str = ",cn=foreignsecurityprincipals,";

/// A member as a group names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemberName {
    /// By DN, canonical.
    Dn(String),
    /// By name (`memberUid`).
    Name(String),
    /// By the security identifier of an account of another domain, in lower case: a foreign security principal.
    Sid(String),
}

impl MemberName {
    /// The name that `dn` stands for. A foreign security principal is named by the SID in its DN.
    #[must_use]
    pub fn of(dn: &Dn) -> Self {
        let text = dn.canonical();
        let sid = text.split_once(FOREIGN_PRINCIPALS).and_then(|(first, _)| first.strip_prefix("cn="));
        match sid.filter(|sid| sid.starts_with("s-1-5-21-") && !sid.contains(',')) {
            Some(sid) => Self::Sid(sid.to_owned()),
            None => Self::Dn(text.to_owned()),
        }
    }
}

impl std::fmt::Display for MemberName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Dn(text) | Self::Name(text) | Self::Sid(text) => f.write_str(text),
        }
    }
}

/// Members that groups and tools name, and of which the read has no entry: who left, who is hidden, and who is elsewhere.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dangling {
    /// The entries that name each, by their ids, and as what.
    pub members: BTreeMap<MemberName, BTreeMap<DirectoryId, Role>>,
    /// The groups and tools that each group is a part of: a member of the group is a member of them.
    pub parents: BTreeMap<DirectoryId, BTreeSet<DirectoryId>>,
}

impl Dangling {
    /// The entries that name a member, with what it is there, and all that those are a part of. A manager of a group is
    /// a plain member of the groups that contain it.
    #[must_use]
    pub fn holders(&self, name: &MemberName) -> BTreeMap<&DirectoryId, Role> {
        let mut found = BTreeMap::new();
        let direct = self.members.get(name).into_iter().flatten();
        let mut next: Vec<(&DirectoryId, Role)> = direct.map(|(id, role)| (id, *role)).collect();
        while let Some((id, role)) = next.pop() {
            let known = found.insert(id, role.max(found.get(id).copied().unwrap_or(role)));
            if known.is_none() {
                next.extend(self.parents.get(id).into_iter().flatten().map(|parent| (parent, Role::Member)));
            }
        }
        found
    }

    /// Adds that `id` names `name` as `role`.
    pub fn add(&mut self, name: MemberName, id: DirectoryId, role: Role) {
        let known = self.members.entry(name).or_default().entry(id).or_insert(role);
        *known = (*known).max(role);
    }
}

/// Whom rejected groups and tools name, by the groups in them, so that it is no larger than what was read. It adds nobody;
/// it tells whom they name no longer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Nesting {
    /// Where each of them is in `groups`.
    entries: BTreeMap<DirectoryId, usize>,
    groups: Vec<Nested>,
}

/// One group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Nested {
    /// The accounts that it names itself.
    pub members: BTreeSet<DirectoryId>,
    /// The groups that it names.
    pub parts: Vec<usize>,
}

impl Nesting {
    /// Adds a group, and returns where it is.
    pub fn add(&mut self, group: Nested) -> usize {
        self.groups.push(group);
        self.groups.len() - 1
    }

    /// The group that was added as `at` is `entry`, or lists its maintainers.
    pub fn name(&mut self, entry: DirectoryId, at: usize) {
        self.entries.insert(entry, at);
    }

    /// Returns whom a rejected entry names, however deep, with cycles cut. `None`: it is no group, or shows no members.
    #[must_use]
    pub fn members(&self, entry: &DirectoryId) -> Option<BTreeSet<&DirectoryId>> {
        let start = *self.entries.get(entry)?;
        let (mut members, mut seen, mut next) = (BTreeSet::new(), BTreeSet::from([start]), vec![start]);
        while let Some(group) = next.pop().and_then(|at| self.groups.get(at)) {
            members.extend(&group.members);
            next.extend(group.parts.iter().copied().filter(|part| seen.insert(*part)));
        }
        Some(members).filter(|members| !members.is_empty())
    }
}

/// What the attributes of a source are called that are believed to be gone only if they are proved to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttributeLabels {
    /// Home directory.
    pub home: String,
    /// SSH keys.
    pub ssh_keys: String,
    /// Mail address.
    pub mail: String,
    /// POSIX user id.
    pub uid: String,
}

impl Default for AttributeLabels {
    fn default() -> Self {
        Self {
            home: "homeDirectory".to_owned(),
            ssh_keys: "sshPublicKey".to_owned(),
            mail: "mail".to_owned(),
            uid: "uidNumber".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_principal_is_named_by_its_sid() {
        let name = |dn: &str| MemberName::of(&Dn::parse(dn)).to_string();
        let sid = "S-1-5-21-1-2-3-1104";
        assert_eq!(name(&format!("CN={sid},CN=ForeignSecurityPrincipals,DC=a,DC=x")), "s-1-5-21-1-2-3-1104");
        for dn in [
            format!("cn={sid},cn=users,dc=a"),
            "cn=s-1-5-11,cn=foreignsecurityprincipals,dc=a".to_owned(),
            format!("cn={sid},ou=x,cn=foreignsecurityprincipals,dc=a"),
        ] {
            assert_eq!(name(&dn), Dn::parse(&dn).canonical(), "no account of another domain");
        }
    }

    #[test]
    fn a_member_belongs_to_every_group_above() {
        let id = |text: &str| DirectoryId(text.to_owned());
        let name = MemberName::Name("alice".to_owned());
        let dangling = Dangling {
            members: BTreeMap::from([(name.clone(), BTreeMap::from([(id("a"), Role::Manager)]))]),
            parents: BTreeMap::from([
                (id("a"), BTreeSet::from([id("b")])),
                (id("b"), BTreeSet::from([id("a"), id("c")])),
                (id("x"), BTreeSet::from([id("y")])),
            ]),
        };
        let (a, b, c) = (id("a"), id("b"), id("c"));
        let expected = [(&a, Role::Manager), (&b, Role::Member), (&c, Role::Member)];
        assert_eq!(dangling.holders(&name), expected.into());
        assert!(dangling.holders(&MemberName::Dn("alice".to_owned())).is_empty());
    }
}
