//! The revocation of a whole class: one account first, then so many in a cycle, and no further before the newest have
//! their new certificates.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Account, LedgerState, Lifecycle, Note, Order};
use crate::identity::{AccountId, AccountName, ClusterName};
use crate::policy::Limit;

/// One class on its way to new certificates. An account that waits has an [`Order`] whose `bulk` is the class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BulkRevocation {
    /// Who ordered it, when and why.
    pub note: Note,
    /// When the newest were revoked.
    pub at: Timestamp,
    /// The newest. The next wait until these have their new certificates.
    pub last: BTreeSet<AccountId>,
    /// How many were revoked.
    pub done: u64,
}

impl LedgerState {
    /// Accounts that wait for their part of the revocation of `class`, held ones apart: theirs comes with their release.
    pub fn waiting_for_revocation(&self, class: &str) -> impl Iterator<Item = &Account> {
        let waits = |order: &&Order| order.bulk.as_deref() == Some(class) && !self.holds.contains_key(&order.account);
        self.orders.iter().filter(waits).filter_map(|order| self.accounts.get(&order.account))
    }

    /// Orders that the next plan is to carry out: all but those that wait for their turn. `pace`: how many of a class
    /// with so many accounts may be revoked in a cycle.
    #[must_use]
    pub fn orders_due(&self, pace: Limit) -> Vec<&Order> {
        if self.revocations.is_empty() {
            return self.orders.iter().collect();
        }
        let mut due: BTreeSet<&AccountId> = BTreeSet::new();
        for (class, revocation) in &self.revocations {
            let goes_on = revocation.last.iter().all(|id| !self.is_being_revoked(id));
            if !goes_on || !self.newly_failing(&revocation.last, revocation.at).is_empty() {
                continue;
            }
            let mut waiting: Vec<&Account> = self.waiting_for_revocation(class).collect();
            waiting.sort_by_key(|account| (&account.name, &account.id));
            let all = revocation.done + waiting.len() as u64;
            let turn = if revocation.done == 0 { 1 } else { pace.allowed(all) };
            due.extend(waiting.iter().take(usize::try_from(turn).unwrap_or(usize::MAX)).map(|account| &account.id));
        }
        // An account with an order of its own carries out all its orders at once, so that its turn in the bulk
        // revocation does not revoke it a second time.
        let is_due = |order: &Order| order.bulk.as_ref().is_none_or(|class| !self.revocations.contains_key(class));
        let alone: BTreeSet<&AccountId> =
            self.orders.iter().filter(|order| is_due(order)).map(|order| &order.account).collect();
        let turn = |order: &&Order| due.contains(&order.account) || alone.contains(&order.account);
        self.orders.iter().filter(turn).collect()
    }

    /// Its generation is a new one and its home still has a certificate of an older.
    #[must_use]
    pub fn is_being_revoked(&self, id: &AccountId) -> bool {
        self.being_revoked_in(id).next().is_some()
    }

    /// Where that is so.
    pub fn being_revoked_in<'a>(&'a self, id: &'a AccountId) -> impl Iterator<Item = &'a ClusterName> {
        let account = self.accounts.get(id).filter(|account| account.state == Lifecycle::Active);
        let held = self.certificates_of(id);
        held.filter(move |(key, certificate)| {
            account.is_some_and(|account| account.generation != certificate.generation)
                && self.deliveries.get(key).is_some_and(|delivery| !delivery.is_notice())
        })
        .map(|(key, _)| &key.cluster)
    }

    /// Accounts that were revoked and do not have their new certificate yet, by name.
    #[must_use]
    pub fn being_revoked(&self) -> BTreeSet<AccountName> {
        let revoked = self.accounts.values().filter(|account| self.is_being_revoked(&account.id));
        revoked.map(Account::account_name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::AccountKind;
    use crate::ledger::OrderKind;
    use crate::ledger::change::Change;
    use crate::plan::testing::World;

    const PACE: Limit = Limit { count: 2, percent: None };

    fn note(world: &World) -> Note {
        Note { actor: "ann".to_owned(), reason: "stolen".to_owned(), ticket: None, at: world.now }
    }

    fn site() -> World {
        let mut world = World::new();
        for (uid, name) in (52_501..).zip(["ta", "tb", "tc", "td"]) {
            world.add(AccountKind::Tool, name, Some(uid));
        }
        world.cycle();
        let note = note(&world);
        let ids: Vec<AccountId> = world.ledger.accounts.keys().cloned().collect();
        for (id, account) in (1..).zip(ids) {
            let (what, bulk) = (OrderKind::Revoke, Some("tool".to_owned()));
            world.ledger.orders.push(Order { id, account, what, note: note.clone(), bulk, object: None });
        }
        let revocation = BulkRevocation { note, at: world.now, last: BTreeSet::new(), done: 0 };
        world.ledger.apply(&Change::Revocation("tool".to_owned(), Some(revocation)));
        world
    }

    fn due(world: &World) -> Vec<&str> {
        let orders = world.ledger.orders_due(PACE);
        let mut names: Vec<&str> =
            orders.iter().map(|order| world.ledger.accounts[&order.account].name.as_str()).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn a_bulk_revocation_starts_with_one_account_and_waits_for_its_certificate() {
        let mut world = site();
        assert_eq!(due(&world), ["ta"]);
        let ta = world.id(AccountKind::Tool, "ta");
        let revocation = world.ledger.revocations.get_mut("tool").expect("one");
        (revocation.done, revocation.last) = (1, BTreeSet::from([ta.clone()]));
        world.ledger.orders.retain(|order| order.account != ta);
        assert_eq!(due(&world), ["tb", "tc"]);
        world.account(&ta).generation += 1;
        assert!(due(&world).is_empty() && world.ledger.is_being_revoked(&ta));
    }

    #[test]
    fn an_order_of_its_own_takes_the_other_along_and_who_is_held_waits() {
        let mut world = site();
        let (ta, td) = (world.id(AccountKind::Tool, "ta"), world.id(AccountKind::Tool, "td"));
        let note = note(&world);
        world.ledger.holds.insert(ta, note.clone());
        world.ledger.orders.push(Order { id: 9, account: td, what: OrderKind::Revoke, note, bulk: None, object: None });
        assert_eq!(due(&world), ["tb", "td", "td"]);
    }
}
