//! Names that entries contain: members for which the read has no entry, and the names of attributes.

use std::collections::{BTreeMap, BTreeSet};

use super::Role;
use super::dn::Dn;
use crate::identity::{AccountKind, DirectoryId};

/// The part of a DN that marks entries for members from other domains (MS-ADTS 6.1.1.4.9).
const FOREIGN_PRINCIPALS: &str = ",cn=foreignsecurityprincipals,";

/// A member, as a group names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemberName {
    /// The canonical DN.
    Dn(String),
    /// The name in `memberUid`.
    Name(String),
    /// The SID, in lower case, of an account in another domain (a foreign security principal).
    Sid(String),
}

impl MemberName {
    /// Returns the name for a member's `dn`. A foreign security principal is named by the SID in its DN.
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

/// Members that groups and tools name and for which the read has no entry: the members left, are hidden, or are in
/// another source.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dangling {
    /// The ids of the entries that name each member, with the member's role in each.
    pub members: BTreeMap<MemberName, BTreeMap<DirectoryId, Role>>,
    /// The groups and tools that contain each group. Members of a group also belong to its parents.
    pub parents: BTreeMap<DirectoryId, BTreeSet<DirectoryId>>,
}

impl Dangling {
    /// Returns the entries that name a member, and all groups and tools that contain these entries, with the member's
    /// role. A manager of a group is a plain member of the groups that contain it.
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

    /// Records that the entry `id` names `name` in `role`.
    pub fn add(&mut self, name: MemberName, id: DirectoryId, role: Role) {
        let known = self.members.entry(name).or_default().entry(id).or_insert(role);
        *known = (*known).max(role);
    }
}

/// The members of rejected groups and tools, stored as a graph of groups so that it is not larger than the read. The
/// graph adds no members; it only shows which members are still named.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Nesting {
    /// The index of each entry in `groups`.
    entries: BTreeMap<DirectoryId, usize>,
    groups: Vec<Nested>,
}

/// One group in [`Nesting`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Nested {
    /// The accounts that the group names itself.
    pub members: BTreeSet<DirectoryId>,
    /// The indexes of the groups that it names.
    pub parts: Vec<usize>,
}

impl Nesting {
    /// Adds a group, and returns its index.
    pub fn add(&mut self, group: Nested) -> usize {
        self.groups.push(group);
        self.groups.len() - 1
    }

    /// Records that the group at index `at` is `entry`, or that it lists the maintainers of `entry`.
    pub fn name(&mut self, entry: DirectoryId, at: usize) {
        self.entries.insert(entry, at);
    }

    /// Returns the members of a rejected entry, at any depth. Returns `None` if the entry is not a group or shows no
    /// members.
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

/// The names of the attributes of a source that count as removed only with proof, and the prefixes of its names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttributeLabels {
    pub home: String,
    pub ssh_keys: String,
    pub mail: String,
    pub uid: String,
    /// The attribute for the gids of groups.
    pub gid: String,
    /// The prefix that names of each kind have in the directory and not in the ledger.
    pub prefixes: BTreeMap<AccountKind, String>,
    /// Whether groups may still list a member by a DN that the member no longer has.
    pub stale_dns: bool,
    /// Whether groups may still list a member by a name that the member no longer has.
    pub stale_names: bool,
}

impl AttributeLabels {
    /// Returns the name by which groups list an account with this name in the ledger (`memberUid`). Groups have no such
    /// name. A tool has such a name only if tools have a prefix, because a name without a prefix may also be a person's
    /// name.
    #[must_use]
    pub fn member_name(&self, kind: AccountKind, name: &str) -> Option<String> {
        let prefix = self.prefixes.get(&kind).map_or("", String::as_str);
        let has_one = kind == AccountKind::User || (kind == AccountKind::Tool && !prefix.is_empty());
        has_one.then(|| format!("{prefix}{name}"))
    }
}

impl Default for AttributeLabels {
    fn default() -> Self {
        Self {
            home: "homeDirectory".to_owned(),
            ssh_keys: "sshPublicKey".to_owned(),
            mail: "mail".to_owned(),
            uid: "uidNumber".to_owned(),
            gid: "gidNumber".to_owned(),
            prefixes: BTreeMap::new(),
            stale_dns: true,
            stale_names: true,
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
            assert_eq!(name(&dn), Dn::parse(&dn).canonical(), "this DN is not that of a foreign account");
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
