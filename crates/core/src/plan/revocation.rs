//! Records the progress of the revocation of a class after each plan.
//!
//! [`LedgerState::orders_due`] selects the accounts that are revoked next.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::guard::ApprovedPlan;
use crate::identity::{AccountId, AccountName};
use crate::ledger::LedgerState;
use crate::ledger::change::{Change, Event};
use crate::ledger::revocation::BulkRevocation;

/// The progress of the revocation of a class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevocationProgress {
    pub class: String,
    /// The number of accounts that were revoked, except those in `under_way`. If the delivery to an account failed, the
    /// home still has the older certificate.
    pub done: u64,
    /// The number of accounts that were revoked but have no new certificate yet, or that bindings still name with their
    /// old generation.
    pub under_way: u64,
    /// The number of accounts that still have their old certificate and wait for their turn.
    pub waiting: u64,
    /// The number of held accounts. Their turn comes after their release.
    #[serde(default)]
    pub held: u64,
    /// The time until which the latest batch may delay the next one; `None` if there is no delay.
    #[serde(default)]
    pub holds_up_until: Option<Timestamp>,
    /// The accounts whose failures paused the revocation.
    pub stopped_by: BTreeSet<AccountName>,
}

impl RevocationProgress {
    /// Returns the progress of every unfinished revocation.
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

    /// Returns the number of all accounts of the revocation.
    #[must_use]
    pub fn all(&self) -> u64 {
        self.done + self.under_way + self.waiting + self.held
    }

    /// Whether the revocation waits for something other than the next cycles: a cluster, a home, or the release of a
    /// held account.
    #[must_use]
    pub fn is_at_rest(&self, now: Timestamp) -> bool {
        self.waiting == 0 && self.under_way + self.held > 0 && self.holds_up_until.is_none_or(|until| until <= now)
    }
}

impl std::fmt::Display for RevocationProgress {
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
        write!(f, "; paused, because these accounts fail: {}. It continues when they are fixed", names.join(", "))
    }
}

/// Returns the changes and events that belong in the transaction which raises the generations. If the daemon is killed
/// after this transaction, no account is revoked twice or left out.
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
