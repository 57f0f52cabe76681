//! Finds people by their entries in the directories.

use std::collections::BTreeMap;

use super::{Account, LedgerState};
use crate::identity::{AccountKind, DirectoryId};

/// Finds the person behind a member of a tool or group.
pub struct PeopleByEntry<'a>(BTreeMap<&'a DirectoryId, Vec<&'a Account>>);

impl<'a> PeopleByEntry<'a> {
    /// Returns the index of all people in `ledger`.
    #[must_use]
    pub fn of(ledger: &'a LedgerState) -> Self {
        let mut people: BTreeMap<&DirectoryId, Vec<&Account>> = BTreeMap::new();
        for person in ledger.accounts.values().filter(|account| account.kind == AccountKind::User) {
            people.entry(&person.directory_id).or_default().push(person);
        }
        Self(people)
    }

    /// Returns the person whose entry is `member`, if that person can be a member of `group`.
    #[must_use]
    pub fn get(&self, group: &Account, member: &DirectoryId) -> Option<&'a Account> {
        let people = self.0.get(member)?;
        let own = people.iter().find(|person| person.source == group.source);
        // If two other sources read the same domain, it is unknown which of their accounts the group means.
        let only = || match people.as_slice() {
            [person] => Some(person),
            _ => None,
        };
        own.or_else(only).copied().filter(|person| group.shares_members_with(person))
    }
}

impl Account {
    /// Whether a member of the group or tool can be the person: both are from the same source, or from domains of one
    /// forest. In another source, the same id may belong to another person.
    #[must_use]
    pub fn shares_members_with(&self, person: &Self) -> bool {
        self.source == person.source || (self.sid.is_some() && person.sid.is_some())
    }

    /// Whether the person maintains the tool or belongs to the group, even if the person is leaving.
    #[must_use]
    pub fn has_member(&self, person: &Self) -> bool {
        self.members.contains_key(&person.directory_id) && self.shares_members_with(person)
    }
}
