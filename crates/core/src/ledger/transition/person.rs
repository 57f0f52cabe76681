//! Finds the account of a new entry if the person already has an entry in another source.
//!
//! An account stays with the source that it was recorded with. Only an administrator's order moves it to another entry
//! of the same person, because an attribute that people can write must not move an account.

use std::collections::BTreeMap;

use super::Memory;
use crate::identity::{AccountId, AccountKind};
use crate::ledger::change::Change;
use crate::ledger::{Account, LedgerState, Lifecycle};
use crate::snapshot::{Entry, Rejection};

/// The relation of a new entry to the accounts of its person.
pub(super) enum Person {
    /// The person is unknown, so the entry gets a new account.
    New,
    /// The person has an account by another entry, so this entry gets none.
    Served,
    /// The entry is rejected for this reason.
    Refused(String, Option<Rejection>),
}

/// Returns accounts by the value that identifies their person.
pub(super) fn by_value(ledger: &LedgerState) -> BTreeMap<&str, Vec<&Account>> {
    let mut persons: BTreeMap<&str, Vec<&Account>> = BTreeMap::new();
    for (id, person) in &ledger.persons {
        persons.entry(person).or_default().extend(ledger.accounts.get(id));
    }
    persons
}

impl<'a> Memory<'a> {
    /// Whether to skip an entry of a later source because an earlier source has the same person. An entry that already
    /// has an account of its own is not skipped.
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
                Person::Refused(format!("it is the same person as several accounts: {}", names.join(", ")), None)
            };
        };
        if !self.is_there(owner) && owner.absence.is_none() {
            return Person::Served;
        }
        let why = format!(
            "it is the same person as {} of source {}; to give that account to this entry, run: bursar adopt \
             account {}",
            owner.account_name(),
            owner.source,
            owner.account_name().words()
        );
        Person::Refused(why, Some(Rejection::OfAccount { account: owner.id.clone() }))
    }

    /// Returns an account of the entry's person that an order gives to this entry.
    pub(super) fn adopted_by_person(&self, entry: &Entry) -> Option<&'a Account> {
        let mut owners = self.of_person(entry).iter().copied();
        owners.find(|account| self.adoption(&account.id, &entry.id).is_some())
    }

    fn of_person(&self, entry: &Entry) -> &[&'a Account] {
        let person = entry.person.as_deref().filter(|_| entry.kind == AccountKind::User);
        person.and_then(|person| self.persons.get(person)).map_or(&[], Vec::as_slice)
    }

    /// Records the value that identifies the person. If the attribute is gone, the last value stays.
    pub(super) fn remember_person(&mut self, id: &AccountId, entry: &Entry) {
        let person = entry.person.as_ref().filter(|person| self.ledger.persons.get(id) != Some(*person));
        self.result.changes.extend(person.map(|person| Change::Person(id.clone(), person.clone())));
    }
}

#[cfg(test)]
#[path = "person_tests.rs"]
mod tests;
