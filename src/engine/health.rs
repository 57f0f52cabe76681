//! Whether the ledger takes writes, and what its backups are: what keeps nobody from reading.

use std::path::Path;

use jiff::Timestamp;

use super::{Engine, EngineError};
use crate::control::api::{BackupStatus, LedgerTrouble};
use crate::errors::chain;
use crate::ledger::change::Change;
use crate::store::backup::{self, Backup};
use crate::store::{ReadStore, StoreError};

/// What the engine knows of its ledger's file.
#[derive(Debug, Default)]
pub(super) struct Health {
    trouble: Option<LedgerTrouble>,
    backup: BackupStatus,
}

impl Health {
    /// As the state folder shows it.
    pub(super) fn of(state_dir: &Path) -> Self {
        let backup = BackupStatus { newest: backup::newest(state_dir), failed: None };
        Self { trouble: None, backup }
    }
}

impl Engine {
    /// Whether what is done can be remembered; tried anew where it could not. Without it nothing is written anywhere.
    ///
    /// # Errors
    /// [`EngineError::Store`], which [`StoreError::is_of_the_disk`] while waiting may cure it.
    pub async fn must_write(&mut self) -> Result<(), EngineError> {
        if self.store.is_stuck() {
            self.store.recover(&self.lock).await?;
        } else {
            self.store.has_room()?;
        }
        if let Some(trouble) = self.health.trouble.take() {
            tracing::info!(since = %trouble.since, "the ledger takes writes again");
        }
        self.metrics.ledger_stuck(false);
        Ok(())
    }

    /// Whether what is done now can be remembered, as far as that is seen without a write.
    pub(super) fn may_write(&self) -> bool {
        !self.store.is_stuck() && self.store.has_room().is_ok()
    }

    /// The ledger did not take a write.
    pub fn is_stuck(&mut self, error: &StoreError) {
        let why = chain(error);
        let since = self.health.trouble.as_ref().map_or_else(|| self.now(), |trouble| trouble.since);
        if self.health.trouble.is_none() {
            tracing::error!(error = why, "the ledger takes no writes: nothing is written anywhere until it does");
        }
        let waiting = self.health.trouble.take().map_or(0, |trouble| trouble.waiting);
        self.health.trouble = Some(LedgerTrouble { why, since, waiting });
        self.metrics.ledger_stuck(true);
    }

    /// What the directories said while nothing could be written, and for how many accounts something waits.
    pub(crate) fn heard(&mut self, changes: &[Change], waiting: u64) {
        self.store.hear(changes);
        if let Some(trouble) = &mut self.health.trouble {
            trouble.waiting = waiting;
        }
    }

    /// Why the ledger takes no writes.
    #[must_use]
    pub const fn trouble(&self) -> Option<&LedgerTrouble> {
        self.health.trouble.as_ref()
    }

    pub(super) const fn backup_status(&self) -> &BackupStatus {
        &self.health.backup
    }

    /// A backup ended.
    pub fn backed_up(&mut self, result: Result<Backup, StoreError>) {
        match result {
            Ok(Backup { path, at, events, head }) => {
                tracing::info!(file = %path.display(), events, head, "backup");
                self.health.backup = BackupStatus { newest: Some(at), failed: None };
            }
            Err(error) => {
                let why = chain(&error);
                tracing::error!(error = why, "no backup of the ledger");
                self.health.backup.failed = Some(why);
            }
        }
    }

    /// Says in the journal where the history ends: whoever keeps the journal can tell later that nothing of it was cut
    /// off or written anew.
    pub fn tell_the_head(&self) {
        let (events, head) = self.store.head();
        tracing::info!(ledger = self.store.state().ledger_id, events, head, "history");
    }
}

/// Copies the ledger of `state_dir` into its backups, beside whoever writes it.
pub async fn back_up(state_dir: std::path::PathBuf, now: Timestamp) -> Result<Backup, StoreError> {
    let mut ledger = ReadStore::open(&state_dir.join(crate::store::FILE)).await?;
    backup::nightly(&mut ledger, &state_dir, now).await
}
