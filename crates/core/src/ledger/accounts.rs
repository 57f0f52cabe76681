//! The accounts of the ledger, by id.
//!
//! An account in the map is shared by the copies of the map, by the change that set the account, and by plans.
//! Otherwise the cycle that creates all tenants would hold every account several times.

use std::ops::Index;
use std::sync::Arc;

use super::Account;
use crate::identity::AccountId;
use crate::shared_map::{Difference, SharedMap};

/// Accounts by id. A clone only copies a pointer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Accounts(SharedMap<AccountId, Arc<Account>>);

impl Accounts {
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[must_use]
    pub fn contains_key(&self, id: &AccountId) -> bool {
        self.0.contains_key(id)
    }

    #[must_use]
    pub fn get(&self, id: &AccountId) -> Option<&Account> {
        self.shared(id).map(Arc::as_ref)
    }

    /// Like [`Accounts::get`], for callers that keep the account.
    #[must_use]
    pub fn shared(&self, id: &AccountId) -> Option<&Arc<Account>> {
        self.0.get(id)
    }

    /// Returns the account for changes. If something shares it, the map gets a copy.
    pub fn get_mut(&mut self, id: &AccountId) -> Option<&mut Account> {
        self.0.get_mut(id).map(Arc::make_mut)
    }

    /// Inserts or replaces an account.
    pub fn insert(&mut self, account: impl Into<Arc<Account>>) {
        let account = account.into();
        self.0.insert(account.id.clone(), account);
    }

    /// Removes an account, and returns it.
    pub fn remove(&mut self, id: &AccountId) -> Option<Account> {
        self.0.remove(id).map(Arc::unwrap_or_clone)
    }

    /// Returns all ids in their order.
    pub fn keys(&self) -> impl Iterator<Item = &AccountId> + Clone {
        self.0.keys()
    }

    /// Returns all accounts, in the order of their ids.
    pub fn values(&self) -> impl Iterator<Item = &Account> + Clone {
        self.0.values().map(Arc::as_ref)
    }

    /// Returns all accounts for changes.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut Account> {
        self.0.values_mut().map(Arc::make_mut)
    }

    /// Returns all accounts, in the order of their ids.
    pub fn into_values(self) -> impl Iterator<Item = Arc<Account>> {
        self.0.into_iter().map(|(_, account)| account)
    }

    /// Returns the accounts that differ from `before` ([`SharedMap::differences`]).
    #[must_use]
    pub fn differences<'a>(&'a self, before: &'a Self) -> Vec<Difference<'a, AccountId, Arc<Account>>> {
        self.0.differences(&before.0)
    }

    /// [`SharedMap::address`].
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn address(&self) -> usize {
        self.0.address()
    }
}

impl Index<&AccountId> for Accounts {
    type Output = Account;

    fn index(&self, id: &AccountId) -> &Account {
        &self.0[id]
    }
}

impl FromIterator<Account> for Accounts {
    fn from_iter<I: IntoIterator<Item = Account>>(accounts: I) -> Self {
        Self(accounts.into_iter().map(|account| (account.id.clone(), Arc::new(account))).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::AccountKind;
    use crate::ledger::change::Change;
    use crate::plan::testing::World;

    #[test]
    fn a_change_the_ledger_its_copies_and_a_plan_share_one_account() {
        let mut world = World::new();
        let id = world.add(AccountKind::Tool, "foo", Some(52_503));
        let account = Arc::new(world.ledger.accounts[&id].clone());
        world.ledger.apply(&Change::Account(Arc::clone(&account)));
        assert!(Arc::ptr_eq(&world.plan().accounts[0].before, &account));
        let copy = world.ledger.clone();
        world.account(&id).generation = 7;
        assert_eq!(copy.accounts[&id].generation, 0, "a change affects no copy");
        assert!(copy.accounts.shared(&id).is_some_and(|shared| Arc::ptr_eq(shared, &account)));
    }
}
