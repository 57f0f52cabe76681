//! Handles the ledger's disk: makes backups, and goes on reading while the ledger takes no writes.

use std::time::Duration;

use super::inbox::{self, Event};
use super::{DaemonError, Loop, OrderWaiter};
use crate::control::api::OrderAnswer;
use crate::cycle;
use crate::errors::chain;
use crate::orders::request::{RequestRefusal, Trigger};
use crate::runtime::RuntimeError;
use crate::runtime::ledger::back_up;
use crate::store::StoreError;
use crate::store::backup::Backup;

/// The pause between two checks whether the ledger takes writes again. It is short, because callers wait, and a check
/// only opens a file.
const TRY_AGAIN: Duration = Duration::from_secs(5);

/// Work that must not be started twice.
#[derive(Debug, Default)]
pub(super) struct Begun {
    /// Whether a backup is running.
    backup: bool,
    /// Whether an [`Event::TryDisk`] will come.
    trial: bool,
}

impl Loop {
    /// Copies the ledger in the background. The loop gets an event when the copy is done.
    pub(super) fn back_up(&mut self) {
        if std::mem::replace(&mut self.disk.backup, true) {
            return;
        }
        let (sender, state_dir, now) = (self.sender.clone(), self.runtime.settings().state_dir.clone(), super::now());
        tokio::spawn(async move {
            let result = back_up(state_dir, now).await;
            // If the loop has ended, it needs no event.
            let _ = sender.send(Event::BackedUp(result)).await;
        });
    }

    pub(super) fn backed_up(&mut self, result: Result<Backup, StoreError>) {
        self.disk.backup = false;
        self.runtime.ledger.backed_up(result);
    }

    /// Records that the ledger did not take a write. Returns the answer to the caller.
    pub(super) fn stuck(&mut self, error: &StoreError) -> RequestRefusal {
        self.runtime.ledger.is_stuck(error);
        if !std::mem::replace(&mut self.disk.trial, true) {
            let sender = self.sender.clone();
            tokio::spawn(async move {
                tokio::time::sleep(TRY_AGAIN).await;
                let _ = sender.send(Event::TryDisk).await;
            });
        }
        let text = format!("nothing was done, because the ledger takes no writes: {}", chain(error));
        RequestRefusal { exit_code: 1, text }
    }

    /// Ends a cycle that cannot run: answers those who wait for it and, if it would have read the directories, reads
    /// them.
    pub(super) async fn without_disk(&mut self, error: &StoreError, trigger: Trigger) -> Result<(), DaemonError> {
        let refusal = self.stuck(error);
        let waiters = &mut self.waiters;
        for (_, reply) in waiters.syncs.drain(..).chain(waiters.rests.drain(..)) {
            let _ = reply.send(Err(refusal.clone()));
        }
        for OrderWaiter { answer, reply, .. } in waiters.orders.drain(..).chain(waiters.reads.drain(..)) {
            let text = "the ledger takes no writes; the order is carried out when it does again".to_owned();
            let _ = reply.send(Ok(OrderAnswer { open: vec![RequestRefusal { exit_code: 1, text }], ..answer }));
        }
        if trigger.asks() {
            let under_way = inbox::UnderWay::begin(&mut self.runtime);
            self.inbox.during(&under_way, cycle::read_on(&mut self.runtime)).await?;
        }
        Ok(())
    }

    /// Checks whether the ledger takes writes again. If so, one cycle makes up for those that could not run.
    pub(super) async fn try_disk(&mut self) -> Result<(), DaemonError> {
        self.disk.trial = false;
        match self.runtime.ledger.must_write().await {
            Ok(()) => drop(self.due.insert(Trigger::Schedule)),
            Err(error) if error.is_of_the_disk() => drop(self.stuck(&error)),
            Err(other) => return Err(RuntimeError::from(other).into()),
        }
        Ok(())
    }
}
