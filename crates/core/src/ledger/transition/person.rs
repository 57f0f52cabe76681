//! One person in two sources: whose account an entry is, where the attribute that tells people apart says so.
//!
//! An account stays with the source that it was recorded with. It passes to another entry of its person only where an
//! administrator says so: an attribute that people could write must not move an account.

use std::collections::BTreeMap;

use super::Memory;
use crate::identity::{AccountId, AccountKind};
use crate::ledger::change::Change;
use crate::ledger::{Account, LedgerState, Lifecycle, OrderKind};
use crate::snapshot::Entry;

/// What an entry of an unknown id is, whose person the ledger may know.
pub(super) enum Person {
    /// Nobody that we know: a new account.
    New,
    /// Somebody who has an account by another entry, which serves.
    Served,
    /// Rejected, with why.
    Refused(String),
}

/// Accounts by what tells their person apart.
pub(super) fn by_value(ledger: &LedgerState) -> BTreeMap<&str, Vec<&Account>> {
    let mut persons: BTreeMap<&str, Vec<&Account>> = BTreeMap::new();
    for (id, person) in &ledger.persons {
        persons.entry(person).or_default().extend(ledger.accounts.get(id));
    }
    persons
}

impl<'a> Memory<'a> {
    /// An entry of a later source is a person of an earlier one; its own account, if it has one, stays as it is.
    pub(super) fn is_same(&mut self, source: &str, entry: &Entry, known: Option<&Account>) -> bool {
        let Some(of) = self.same.get(&(source, &entry.id)) else { return false };
        if let [_] = of.as_slice() {
            return known.is_none_or(|account| self.adopted.contains(&account.id));
        }
        let others: Vec<&str> = of.iter().map(|entry| entry.dn.as_str()).collect();
        let why = format!("it is the same person as several entries of an earlier source: {}", others.join("; "));
        if known.is_none() {
            self.reject(source, entry, why);
        }
        known.is_none()
    }

    pub(super) fn person(&self, source: &str, entry: &Entry) -> Person {
        let owners: Vec<&Account> = self
            .of_person(entry)
            .iter()
            .copied()
            .filter(|account| account.source != source && account.state != Lifecycle::Deleted)
            .collect();
        let [owner] = owners.as_slice() else {
            let names: Vec<String> = owners.iter().map(|account| account.account_name().to_string()).collect();
            return if names.is_empty() {
                Person::New
            } else {
                Person::Refused(format!("it is the same person as several accounts: {}", names.join(", ")))
            };
        };
        if !self.is_there(owner) && owner.absence.is_none() {
            return Person::Served;
        }
        Person::Refused(format!(
            "it is the same person as {} of source {}; if this entry is to have that account: bursar adopt account user {}",
            owner.account_name(),
            owner.source,
            owner.name
        ))
    }

    /// The account of its person that is to be this entry's.
    pub(super) fn adopted_by_person(&self, entry: &Entry) -> Option<&'a Account> {
        let mut owners = self.of_person(entry).iter().copied();
        owners.find(|account| self.order(&account.id, OrderKind::AdoptAccount).is_some())
    }

    fn of_person(&self, entry: &Entry) -> &[&'a Account] {
        let person = entry.person.as_deref().filter(|_| entry.kind == AccountKind::User);
        person.and_then(|person| self.persons.get(person)).map_or(&[], Vec::as_slice)
    }

    /// A value that is hidden all at once stays.
    pub(super) fn remember_person(&mut self, id: &AccountId, entry: &Entry) {
        let person = entry.person.as_ref().filter(|person| self.ledger.persons.get(id) != Some(*person));
        self.result.changes.extend(person.map(|person| Change::Person(id.clone(), person.clone())));
    }
}

#[cfg(test)]
#[path = "person_tests.rs"]
mod tests;
