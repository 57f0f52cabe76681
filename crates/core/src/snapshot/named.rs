//! Names in entries: members that no entry answers to, and what attributes are called.

use std::collections::{BTreeMap, BTreeSet};

use crate::identity::DirectoryId;

/// A member as a group names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemberName {
    /// By DN, canonical.
    Dn(String),
    /// By name (`memberUid`).
    Name(String),
}

/// Members that groups and tools name, and of which the read has no entry: who left, who is hidden, and who is elsewhere.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dangling {
    /// The entries that name each, by their ids.
    pub members: BTreeMap<MemberName, BTreeSet<DirectoryId>>,
    /// The groups and tools that each group is a part of: a member of the group is a member of them.
    pub parents: BTreeMap<DirectoryId, BTreeSet<DirectoryId>>,
}

impl Dangling {
    /// The entries that name a member, and all that those are a part of.
    #[must_use]
    pub fn holders(&self, name: &MemberName) -> BTreeSet<&DirectoryId> {
        let mut found = BTreeSet::new();
        let mut next: Vec<&DirectoryId> = self.members.get(name).into_iter().flatten().collect();
        while let Some(id) = next.pop() {
            if found.insert(id) {
                next.extend(self.parents.get(id).into_iter().flatten());
            }
        }
        found
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
    fn whoever_is_named_belongs_to_all_above() {
        let id = |text: &str| DirectoryId(text.to_owned());
        let name = MemberName::Name("alice".to_owned());
        let dangling = Dangling {
            members: BTreeMap::from([(name.clone(), BTreeSet::from([id("a")]))]),
            parents: BTreeMap::from([
                (id("a"), BTreeSet::from([id("b")])),
                (id("b"), BTreeSet::from([id("a"), id("c")])),
                (id("x"), BTreeSet::from([id("y")])),
            ]),
        };
        assert_eq!(dangling.holders(&name), [&id("a"), &id("b"), &id("c")].into());
        assert!(dangling.holders(&MemberName::Dn("alice".to_owned())).is_empty());
    }
}
