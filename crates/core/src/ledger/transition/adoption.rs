//! What an administrator lets an account have, which no read takes by itself: another uid, another entry.
//!
//! The next read carries such an order out. One that finds the directory otherwise is over: it must not be carried out
//! months later, with whatever the directory says then.

use serde_json::{Value, json};

use super::Memory;
use crate::identity::{AccountId, PosixIdentity, kubernetes_name};
use crate::ledger::change::Change;
use crate::ledger::{Account, Order, OrderKind};
use crate::snapshot::Entry;

impl<'a> Memory<'a> {
    pub(super) fn order(&self, account: &AccountId, what: OrderKind) -> Option<&'a Order> {
        self.ledger.orders.iter().find(|order| order.account == *account && order.what == what)
    }

    /// The account whose name this entry of an unknown id has, if it is to have what is that account's. An account whose
    /// own entry is still there is given to nobody but an entry of the same person.
    pub(super) fn adopted_by(&mut self, source: &str, entry: &Entry) -> Option<&'a Account> {
        if self.ledger.orders.is_empty() {
            return None;
        }
        let same_person = self.adopted_by_person(entry);
        let named = || self.ledger.accounts.get(self.named(entry.kind, &kubernetes_name(&entry.name))?);
        let account = same_person.or_else(named)?;
        let order = self.order(&account.id, OrderKind::AdoptAccount)?;
        if self.adopted.contains(&account.id) || (self.is_there(account) && same_person.is_none()) {
            return None;
        }
        self.adopted.insert(account.id.clone());
        let before = json!({"source": account.source, "directory_id": account.directory_id});
        let after = json!({"source": source, "directory_id": entry.id, "dn": entry.dn});
        let detail = json!({"before": before, "after": after});
        self.event(account, "account adopted", &order.note.reason, detail);
        self.by(order);
        Some(account)
    }

    pub(super) fn is_there(&self, account: &Account) -> bool {
        self.snapshot.reads.iter().filter(|read| read.source == account.source).any(|read| {
            read.entries.iter().any(|entry| entry.id == account.directory_id)
                || read.rejected.iter().any(|entry| entry.id.as_ref() == Some(&account.directory_id))
        })
    }

    /// Tells what came of an order about the uid of an entry that was seen.
    pub(super) fn uid_adopted(
        &mut self,
        account: &Account,
        entry: &Entry,
        order: &Order,
        adopted: bool,
        taken: Option<&str>,
    ) {
        let uid = |posix: &Option<PosixIdentity>| posix.as_ref().map(|posix| posix.uid);
        let detail = json!({"before": uid(&account.posix), "after": uid(&entry.posix)});
        if adopted {
            self.event(account, "uid adopted", &order.note.reason, detail);
            self.by(order);
        } else {
            self.not_adopted(account, order, taken.unwrap_or("the directory has the account's own uid"), detail);
        }
    }

    /// Orders that nothing in a complete read answers to.
    pub(super) fn lapse(&mut self) {
        if !self.all_complete {
            return;
        }
        let done =
            |id: i64| self.result.changes.iter().any(|change| matches!(change, Change::OrderDone(over) if *over == id));
        let waiting: Vec<&Order> =
            self.ledger.orders.iter().filter(|order| order.what.is_of_reads() && !done(order.id)).collect();
        for order in waiting {
            let Some(account) = self.ledger.accounts.get(&order.account) else { continue };
            let why = match order.what {
                OrderKind::AdoptAccount if self.is_there(account) => "its own entry is in the directory".to_owned(),
                OrderKind::AdoptAccount => "no other entry has its name".to_owned(),
                _ => self
                    .rejected
                    .iter()
                    .find(|entry| entry.id.as_ref() == Some(&account.directory_id))
                    .map_or_else(|| "its entry is not in the directory".to_owned(), |entry| entry.why.clone()),
            };
            self.not_adopted(account, order, &why, Value::Null);
        }
    }

    fn not_adopted(&mut self, account: &Account, order: &Order, why: &str, detail: Value) {
        let action = if order.what == OrderKind::AdoptAccount { "account not adopted" } else { "uid not adopted" };
        self.event(account, action, why, detail);
        self.by(order);
    }

    /// The newest event is this order's.
    fn by(&mut self, order: &Order) {
        if let Some(event) = self.result.events.last_mut() {
            event.actor.clone_from(&order.note.actor);
            event.ticket.clone_from(&order.note.ticket);
        }
        self.result.changes.push(Change::OrderDone(order.id));
    }
}
