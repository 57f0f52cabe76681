//! Finds the accounts of entries in the ledger, to decide which entry keeps a contested name or uid.

use std::cell::OnceCell;

use foldhash::HashMap;

use super::Claim;
use crate::identity::DirectoryId;
use crate::ledger::{Account, LedgerState, Lifecycle, OrderKind};

/// The relation of an entry to the account to which a name or uid belongs; the strongest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Standing {
    /// The account belongs to the entry.
    Owner,
    /// An administrator ordered that the entry gets the account.
    Ordered,
    None,
}

pub(super) struct Owners<'a> {
    ledger: &'a LedgerState,
    /// Accounts by source and id; computed only if two entries have one name or uid.
    accounts: OnceCell<HashMap<(&'a str, &'a DirectoryId), &'a Account>>,
}

impl<'a> Owners<'a> {
    pub(super) const fn of(ledger: &'a LedgerState) -> Self {
        Self { ledger, accounts: OnceCell::new() }
    }

    /// Returns the entry's relation to the account that has the claimed name.
    pub(super) fn of_name(&self, claim: &Claim<'_>) -> Standing {
        self.standing(claim, |account| {
            account.kind == claim.kind && account.name == claim.name && account.state != Lifecycle::Deleted
        })
    }

    /// Returns the entry's relation to the account that has, or once had, the claimed uid.
    pub(super) fn of_uid(&self, claim: &Claim<'_>) -> Standing {
        let uid = claim.entry.and_then(|entry| entry.posix.as_ref()).map(|posix| posix.uid);
        let owner = uid.and_then(|uid| self.ledger.uid_history.get(&uid));
        self.standing(claim, |account| owner == Some(&account.id))
    }

    fn standing(&self, claim: &Claim<'_>, has: impl Fn(&Account) -> bool) -> Standing {
        let Some(id) = claim.id else { return Standing::None };
        let accounts = self.accounts.get_or_init(|| {
            let accounts = self.ledger.accounts.values();
            accounts.map(|account| ((account.source.as_str(), &account.directory_id), account)).collect()
        });
        if let Some(account) = accounts.get(&(claim.read.source.as_str(), id)) {
            return if has(account) { Standing::Owner } else { Standing::None };
        }
        let mut orders = self.ledger.orders.iter().filter(|order| order.what == OrderKind::AdoptAccount);
        let order = orders.find(|order| order.object.as_deref() == Some(id.0.as_str()));
        let ordered = order.and_then(|order| self.ledger.accounts.get(&order.account));
        if ordered.is_some_and(has) { Standing::Ordered } else { Standing::None }
    }
}
