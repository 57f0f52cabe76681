//! What a plan does of the revocation of a class, and how far that is.
//!
//! Who comes next is said by [`LedgerState::orders_due`]; here is what the ledger learns of those who came.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::guard::ApprovedPlan;
use crate::identity::{AccountId, AccountName};
use crate::ledger::LedgerState;
use crate::ledger::change::{Change, Event};
use crate::ledger::revocation::BulkRevocation;

/// How far the revocation of a class is, for people and programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    pub class: String,
    /// Accounts that were revoked, without `under_way`. The homes of those that fail still have an older certificate.
    pub done: u64,
    /// Accounts that were revoked and do not have their new certificate yet, or that bindings still name as before.
    pub under_way: u64,
    /// Accounts that wait for their turn, with the certificate they had.
    pub waiting: u64,
    /// Held accounts, which get their turn after their release.
    #[serde(default)]
    pub held: u64,
    /// Until when the newest hold up the next ones at most; absent: they hold up nobody.
    #[serde(default)]
    pub holds_up_until: Option<Timestamp>,
    /// Whose failures stopped it.
    pub stopped_by: BTreeSet<AccountName>,
}

impl Progress {
    /// Progress of every revocation under way.
    #[must_use]
    pub fn of(ledger: &LedgerState) -> Vec<Self> {
        let of_class = |(class, revocation): (&String, &BulkRevocation)| {
            let under_way = ledger.under_way(revocation).len() as u64;
            Self {
                class: class.clone(),
                done: revocation.done.saturating_sub(under_way),
                under_way,
                waiting: ledger.waiting_for_revocation(class).count() as u64,
                held: ledger.held_in_revocation(class).count() as u64,
                holds_up_until: ledger.holds_up_until(revocation),
                stopped_by: ledger.pauses(revocation),
            }
        };
        ledger.revocations.iter().map(of_class).collect()
    }

    /// All of them.
    #[must_use]
    pub fn all(&self) -> u64 {
        self.done + self.under_way + self.waiting + self.held
    }

    /// Whether what is left waits for something else than the next cycles: a cluster, a home, or a release.
    #[must_use]
    pub fn is_at_rest(&self, now: Timestamp) -> bool {
        self.waiting == 0 && self.under_way + self.held > 0 && self.holds_up_until.is_none_or(|until| until <= now)
    }
}

impl std::fmt::Display for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { class, done, under_way, waiting, held, holds_up_until: _, stopped_by } = self;
        write!(f, "revocation of class {class}: {done} of {} are revoked, {waiting} waiting", self.all())?;
        for (count, what) in [(under_way, "under way"), (held, "held")] {
            if *count > 0 {
                write!(f, ", {count} {what}")?;
            }
        }
        if stopped_by.is_empty() {
            return Ok(());
        }
        let names: Vec<String> = stopped_by.iter().map(ToString::to_string).collect();
        write!(f, "; paused, because these fail: {}. It continues when they are fixed", names.join(", "))
    }
}

/// What the ledger records in the transaction that raises the generations: a daemon that is killed after it revokes
/// nobody twice and leaves nobody out.
#[must_use]
pub fn advance(approved: &ApprovedPlan, ledger: &LedgerState, now: Timestamp) -> (Vec<Change>, Vec<Event>) {
    if ledger.revocations.is_empty() {
        return (Vec::new(), Vec::new());
    }
    let carried: BTreeSet<i64> = approved.accounts().iter().flat_map(|plan| plan.orders.iter().copied()).collect();
    let (mut changes, mut events) = (Vec::new(), Vec::new());
    for (class, before) in &ledger.revocations {
        let mut of_class = ledger.orders.iter().filter(|order| order.bulk.as_ref() == Some(class));
        let carried = of_class.clone().filter(|order| carried.contains(&order.id));
        let revoked: BTreeSet<AccountId> = carried.map(|order| order.account.clone()).collect();
        if !revoked.is_empty() {
            let done = before.done + revoked.len() as u64;
            let earlier = ledger.under_way(before);
            let after = BulkRevocation { note: before.note.clone(), at: now, last: revoked, earlier, done };
            changes.push(Change::Revocation(class.clone(), Some(after)));
        } else if of_class.next().is_none() && ledger.under_way(before).is_empty() {
            changes.push(Change::Revocation(class.clone(), None));
            events.push(over(class, before));
        }
    }
    (changes, events)
}

fn over(class: &str, revocation: &BulkRevocation) -> Event {
    let BulkRevocation { note, at: _, last: _, earlier: _, done } = revocation;
    Event::new("class revoked", note.reason.clone(), json!({"class": class, "accounts": done})).by(note)
}
