//! The generations that a ledger has assigned, and the generations that a process may find in a cluster. If the process
//! finds a higher generation, its ledger was rolled back.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::identity::Uid;
use crate::ledger::LedgerState;
use crate::ledger::workspace_uid::highest;
use crate::policy::Policy;

/// The generations and uids that a ledger has assigned.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reserved {
    /// The highest generation.
    pub generation: u64,
    /// [`crate::ledger::workspace_uid::highest`].
    pub uids: BTreeSet<Uid>,
}

impl Reserved {
    /// Returns what `ledger` has assigned.
    #[must_use]
    pub fn of(ledger: &LedgerState, policy: &Policy) -> Self {
        Self { generation: ledger.last_generation, uids: highest(ledger, policy) }
    }
}

/// The generations that this process may find in one cluster. It lives longer than a connection.
///
/// Only a process with this ledger writes the mark. If the mark is higher than these generations, the process that
/// wrote the mark knew a later state. So either the ledger was rolled back before this process opened it, or this
/// process was rolled back with the memory of its virtual machine. The ledger's current generation cannot show this,
/// because new accounts and orders raise it.
#[derive(Debug)]
pub struct KnownGenerations {
    known: Mutex<Known>,
    stop: CancellationToken,
    changed: Arc<Notify>,
}

#[derive(Debug)]
struct Known {
    /// The highest generation that this process wrote to the mark, or that the ledger may have written before.
    marked: u64,
    /// Higher generations that this process sent to the mark. They may have been written even if no answer came.
    sent: BTreeSet<u64>,
    /// The highest generation that seals may name.
    sealed: u64,
    /// A higher generation in the mark.
    beyond: Option<u64>,
}

impl KnownGenerations {
    /// Starts with the highest generation that the ledger may have written to the mark. A higher mark cancels `stop`.
    #[must_use]
    pub fn new(marked: u64, stop: CancellationToken, changed: Arc<Notify>) -> Self {
        let known = Known { marked, sent: BTreeSet::new(), sealed: marked, beyond: None };
        Self { known: Mutex::new(known), stop, changed }
    }

    /// Returns the highest of the generations found in the mark and in seals, if one of them proves a rollback.
    #[must_use]
    pub fn exceeded(&self, marked: Option<u64>, sealed: Option<u64>) -> Option<u64> {
        let known = self.known.lock();
        let marked = marked.filter(|generation| !known.explains(*generation));
        known.beyond.max(marked).max(sealed.filter(|generation| *generation > known.sealed))
    }

    /// Returns the generation in the mark that proves a rollback, if one was found while the cluster was connected.
    #[must_use]
    pub fn beyond(&self) -> Option<u64> {
        self.known.lock().beyond
    }

    /// Returns the highest generation that seals may name.
    #[must_use]
    pub fn sealed(&self) -> u64 {
        self.known.lock().sealed
    }

    /// Returns the highest generation that this process found in the mark, or that the ledger may have written before.
    pub(super) fn marked(&self) -> u64 {
        self.known.lock().marked
    }

    pub(super) fn may_seal(&self, generation: u64) {
        let mut known = self.known.lock();
        known.sealed = known.sealed.max(generation);
    }

    /// Records that a generation is sent to the mark. Returns whether it was never sent before.
    pub(super) fn sends(&self, generation: u64) -> bool {
        let mut known = self.known.lock();
        generation > known.marked && known.sent.insert(generation)
    }

    pub(super) fn was_not_written(&self, generation: u64) {
        self.known.lock().sent.remove(&generation);
    }

    /// Records that the mark has this generation. Stops the process if the generation proves a rollback.
    pub(super) fn hear(&self, generation: u64) {
        let mut known = self.known.lock();
        if known.explains(generation) {
            known.marked = known.marked.max(generation);
            let marked = known.marked;
            known.sent.retain(|sent| *sent > marked);
        } else {
            known.beyond = known.beyond.max(Some(generation));
            drop(known);
            self.stop();
        }
    }

    /// Stops this process, because it must not write any more.
    pub(super) fn stop(&self) {
        self.stop.cancel();
        self.notify();
    }

    /// Requests a cycle, because the mark changed.
    pub(super) fn notify(&self) {
        self.changed.notify_one();
    }
}

impl Known {
    fn explains(&self, generation: u64) -> bool {
        generation <= self.marked || self.sent.contains(&generation)
    }
}
