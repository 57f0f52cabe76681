//! Carries out orders that give an account another uid or another entry. A read never does this without an order.
//!
//! The next read carries such an order out. If the directory does not match the order, the order lapses, so that it is
//! not carried out months later with different data.

use serde_json::{Value, json};

use super::{Judged, Memory};
use crate::identity::{AccountId, DirectoryId, PosixIdentity, kubernetes_name};
use crate::ledger::change::Change;
use crate::ledger::server::Moved;
use crate::ledger::{Account, Lifecycle, Order, OrderKind, SourceState};
use crate::snapshot::freshness::SETTLES;
use crate::snapshot::{Completeness, Entry, RejectedEntry};

impl<'a> Memory<'a> {
    /// Returns the order, unless the last read of the account's source began before it. The administrator may have
    /// corrected the directory since.
    pub(super) fn order(&self, account: &AccountId, what: OrderKind) -> Option<&'a Order> {
        let order = self.ledger.orders.iter().find(|order| order.account == *account && order.what == what)?;
        let known = self.ledger.accounts.get(account);
        known.is_none_or(|account| !self.snapshot.outdated.contains(&account.source)).then_some(order)
    }

    /// Returns the order that assigns `account` to the entry `entry`. Orders of older versions name no entry.
    pub(super) fn adoption(&self, account: &AccountId, entry: &DirectoryId) -> Option<&'a Order> {
        self.order(account, OrderKind::AdoptAccount)
            .filter(|order| order.object.as_ref().is_none_or(|object| *object == entry.0))
    }

    /// Returns the account that an order assigns to the new entry `entry`. The entry must have the account's name or
    /// belong to the same person. As long as the account's own entry exists, only an entry of the same person can get
    /// the account. An answer from before the order may show an entry that was removed since.
    pub(super) fn adopted_by(&mut self, source: &str, entry: &Entry) -> Option<&'a Account> {
        if self.ledger.orders.is_empty() || self.snapshot.outdated.contains(source) {
            return None;
        }
        let same_person = self.adopted_by_person(entry);
        let named = || self.ledger.accounts.get(self.named(entry.kind, &kubernetes_name(&entry.name))?);
        let account = same_person.or_else(named)?;
        let order = self.adoption(&account.id, &entry.id)?;
        if self.adopted.contains(&account.id) || (same_person.is_none() && !self.is_gone(account)) {
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

    /// Whether the account's own entry is proved to be absent, or its source is no longer configured. If servers take
    /// turns, the entry must have been absent for as long as a server may be behind.
    fn is_gone(&self, account: &Account) -> bool {
        let judged = self.judged.get(account.source.as_str());
        let holds = judged.map_or_else(|| self.moved(&account.source).is_some(), Judged::holds);
        let enough = if holds { SETTLES.as_secs().unsigned_abs() } else { 0 };
        let missed = || account.absence.is_some_and(|absence| absence.seconds >= enough);
        let is_proved = match judged {
            Some(judged) => judged.is_proof(self.now) && (!holds || missed()),
            None if self.snapshot.unasked.contains(&account.source) => missed() && self.was_complete(&account.source),
            None => true,
        };
        account.state == Lifecycle::Deleted || (!self.is_there(account) && is_proved)
    }

    /// Whether the last read of a source that is not asked now proved the absence of entries.
    fn was_complete(&self, source: &str) -> bool {
        let is_complete = |known: &SourceState| known.completeness == Completeness::Complete;
        self.ledger.sources.get(source).is_some_and(is_complete)
            && !self.moved(source).is_some_and(|moved| moved.is_fresh(self.now))
    }

    /// Returns the last change of a source's servers, if one of them may still be behind the other.
    fn moved(&self, source: &str) -> Option<&'a Moved> {
        self.ledger.marks.get(source)?.moved.as_ref().filter(|moved| moved.stands(self.now))
    }

    /// Whether this snapshot, or the last read of a source that was not asked now, proves the absence of entries.
    pub(super) fn is_proved(&self, source: &str) -> bool {
        self.judged.get(source).map_or_else(|| self.was_complete(source), |judged| judged.is_proof(self.now))
    }

    pub(super) fn all_proved(&self) -> bool {
        self.judged.values().all(|judged| judged.is_proof(self.now))
            && self.snapshot.unasked.iter().all(|source| self.was_complete(source))
    }

    pub(super) fn is_there(&self, account: &Account) -> bool {
        self.snapshot.reads.iter().filter(|read| read.source == account.source).any(|read| {
            read.entries.iter().any(|entry| entry.id == account.directory_id)
                || read.rejected.iter().any(|entry| entry.id.as_ref() == Some(&account.directory_id))
        })
    }

    /// Records the outcome of an order to adopt the uid of an entry that was seen.
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

    /// Ends the orders that are decided and were not carried out.
    pub(super) fn lapse(&mut self) {
        let done =
            |id: i64| self.result.changes.iter().any(|change| matches!(change, Change::OrderDone(over) if *over == id));
        let orders = self.ledger.orders.iter().filter(|order| order.what.is_of_reads() && !done(order.id));
        let decided: Vec<&Order> = orders.filter(|order| self.is_decided(order)).collect();
        for order in decided {
            let Some(account) = self.ledger.accounts.get(&order.account) else { continue };
            let why = match order.what {
                OrderKind::AdoptAccount if self.is_present(account) => "its own entry is in the directory".to_owned(),
                OrderKind::AdoptAccount => {
                    let is_meant = |entry: &&RejectedEntry| entry.id.as_ref().map(|id| &id.0) == order.object.as_ref();
                    let meant = self.rejected.iter().find(|entry| order.object.is_some() && is_meant(entry));
                    meant.map_or_else(|| "no other entry has its name".to_owned(), |entry| entry.why.clone())
                }
                _ => self
                    .rejected
                    .iter()
                    .find(|entry| entry.id.as_ref() == Some(&account.directory_id))
                    .map_or_else(|| "its entry is not in the directory".to_owned(), |entry| entry.why.clone()),
            };
            self.not_adopted(account, order, &why, Value::Null);
        }
    }

    /// Whether complete reads that began after the order have shown whether it can be carried out. Other sources are not
    /// waited for. The source of the entry must be in this snapshot, because only its read carries the order out; the
    /// source of the account may have answered before. While servers take turns, an order stays for twice [`SETTLES`]:
    /// first until every server can have the entry, and then until all servers have shown it. If several slow sources may
    /// have the entry, their answers are never in one snapshot. After four times [`SETTLES`], all have answered often
    /// enough.
    fn is_decided(&self, order: &Order) -> bool {
        let age = self.now.duration_since(order.note.at);
        let (is_old, is_overdue) = (age >= SETTLES * 2, age >= SETTLES * 4);
        let is_outdated = |source: &str| self.snapshot.outdated.contains(source);
        let mut asked = self.judged.iter().filter(|(source, _)| order.is_decided_by(source, self.ledger));
        let mut unasked = self.snapshot.unasked.iter().filter(|source| order.is_decided_by(source, self.ledger));
        let answered_before = |source: &String| {
            let complete_at = self.ledger.sources.get(source).and_then(|known| known.complete_at);
            (is_overdue || !order.is_carried_out_by(source, self.ledger))
                && complete_at.is_some_and(|at| at >= order.note.at)
                && self.was_complete(source)
                && (is_old || self.moved(source).is_none())
        };
        asked.all(|(source, judged)| !is_outdated(source) && judged.is_proof(self.now) && (is_old || !judged.holds()))
            && unasked.all(|source| !is_outdated(source) && answered_before(source))
    }

    /// Whether the account's own entry exists, as far as the last read of its source shows.
    fn is_present(&self, account: &Account) -> bool {
        if self.snapshot.unasked.contains(&account.source) { account.absence.is_none() } else { self.is_there(account) }
    }

    fn not_adopted(&mut self, account: &Account, order: &Order, why: &str, detail: Value) {
        let action = if order.what == OrderKind::AdoptAccount { "account not adopted" } else { "uid not adopted" };
        self.event(account, action, why, detail);
        self.by(order);
    }

    /// Attributes the newest event to the order, and completes the order.
    fn by(&mut self, order: &Order) {
        if let Some(event) = self.result.events.last_mut() {
            event.actor.clone_from(&order.note.actor);
            event.ticket.clone_from(&order.note.ticket);
        }
        self.result.changes.push(Change::OrderDone(order.id));
    }
}
