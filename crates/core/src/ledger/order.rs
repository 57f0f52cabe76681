//! Orders of administrators, and the notes that say who gave them and why.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{LedgerState, Suspension};
use crate::identity::{AccountId, DirectoryId};

/// The actor, the reason, the ticket and the time of an order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Note {
    /// The login name, or `bursar`.
    pub actor: String,
    /// The reason, in the actor's words.
    pub reason: String,
    /// The actor's ticket.
    pub ticket: Option<String>,
    pub at: Timestamp,
}

/// An administrator's order. `Hold`, `Release` and `Approve` take effect when they are recorded; the orders here need a
/// plan or a read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// The id of its row.
    pub id: i64,
    /// The account that the order concerns.
    pub account: AccountId,
    pub what: OrderKind,
    /// The actor, the time and the reason.
    pub note: Note,
    /// The class whose revocation the order is a part of; `None` if the order is for this account alone.
    pub bulk: Option<String>,
    /// For [`OrderKind::AdoptObject`], the object as [`ObjectKey::said`](crate::kinds::ObjectKey::said) returns it; for
    /// [`OrderKind::AdoptAccount`], the id of the entry; for [`OrderKind::Evict`], the time since which changes are
    /// listed; for [`OrderKind::Suspend`], its end.
    pub object: Option<String>,
}

impl Order {
    /// Returns the suspension that the order asks for, if any.
    #[must_use]
    pub fn suspends(&self) -> Option<Suspension> {
        match self.what {
            OrderKind::Suspend => {
                Some(Suspension::Ordered { note: self.note.clone(), until: self.moment(), proved: None })
            }
            OrderKind::Evict => Some(Suspension::Evicted { note: self.note.clone(), since: self.moment() }),
            OrderKind::Resume
            | OrderKind::Revoke
            | OrderKind::AdoptUid
            | OrderKind::AdoptAccount
            | OrderKind::AdoptObject => None,
        }
    }

    /// Whether the order waits for `source`: a read of it carries the order out, or shows that the order cannot be
    /// carried out.
    #[must_use]
    pub fn is_decided_by(&self, source: &str, ledger: &LedgerState) -> bool {
        self.what.is_of_reads() && (self.has_account_in(source, ledger) || self.is_carried_out_by(source, ledger))
    }

    /// Whether a read of `source` carries the order out.
    #[must_use]
    pub fn is_carried_out_by(&self, source: &str, ledger: &LedgerState) -> bool {
        match self.what {
            OrderKind::AdoptUid => self.has_account_in(source, ledger),
            OrderKind::AdoptAccount => self.may_have_entry_in(source, ledger),
            OrderKind::Suspend | OrderKind::Resume | OrderKind::Revoke | OrderKind::Evict | OrderKind::AdoptObject => {
                false
            }
        }
    }

    fn has_account_in(&self, source: &str, ledger: &LedgerState) -> bool {
        ledger.accounts.get(&self.account).is_some_and(|account| account.source == source)
    }

    /// Whether `source` may have the entry that gets the account. If no rejected entry has the id, every source may
    /// have it. Orders of older versions name no entry.
    fn may_have_entry_in(&self, source: &str, ledger: &LedgerState) -> bool {
        let Some(entry) = &self.object else { return true };
        let is_meant = |id: &DirectoryId| id.0 == *entry;
        let mut known = ledger.rejected.iter().filter(|known| known.id.as_ref().is_some_and(is_meant)).peekable();
        known.peek().is_none() || known.any(|known| known.source == source)
    }

    fn moment(&self) -> Option<Timestamp> {
        self.object.as_deref()?.parse().ok()
    }
}

/// The kinds of [`Order`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OrderKind {
    /// Suspend the account until it is resumed, or until the end of the suspension.
    Suspend,
    /// End an ordered suspension.
    Resume,
    /// Give the account a new generation, so that every older certificate becomes invalid.
    Revoke,
    /// Suspend the account, and remove what an intruder may have left in its namespaces: tokens and workloads.
    Evict,
    /// Accept the uid that the directory now has for the account. The next read carries this out.
    #[serde(rename = "adopt uid")]
    AdoptUid,
    /// Assign the account to another directory entry that has its name. The next read carries this out.
    #[serde(rename = "adopt account")]
    AdoptAccount,
    /// Take over a foreign object that stands where an object of the account should be. The order applies once.
    #[serde(rename = "adopt object")]
    AdoptObject,
}

impl OrderKind {
    /// Whether a read of the directories carries the order out. All others need a plan.
    #[must_use]
    pub const fn is_of_reads(self) -> bool {
        matches!(self, Self::AdoptUid | Self::AdoptAccount)
    }

    /// Whether the order takes access away, or blocks its return.
    #[must_use]
    pub const fn takes_access(self) -> bool {
        match self {
            Self::Suspend | Self::Revoke | Self::Evict => true,
            Self::Resume | Self::AdoptUid | Self::AdoptAccount | Self::AdoptObject => false,
        }
    }

    /// Whether the order takes access away or gives it back, including files in homes.
    #[must_use]
    pub const fn is_of_access(self) -> bool {
        match self {
            Self::Suspend | Self::Resume | Self::Revoke | Self::Evict => true,
            Self::AdoptUid | Self::AdoptAccount | Self::AdoptObject => false,
        }
    }
}
