//! The writer's lock: `flock` on `ledger.lock` beside the ledger. A writer must hold the token, so there are never two.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::StoreError;

/// Proof that this process alone writes to the ledger and to the world. The kernel takes it back when the process ends,
/// however it ends.
#[derive(Debug)]
pub struct CycleLock {
    file: File,
}

impl CycleLock {
    /// Takes the lock of the ledger in `state_dir`, or says who else may have it.
    pub fn take(state_dir: &Path) -> Result<Self, StoreError> {
        let path = state_dir.join("ledger.lock");
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            // Not for the group: a user who can open it, even only for reading, can take the lock and stop the daemon.
            .mode(0o600)
            .open(&path)
            .or_else(|error| match error.kind() {
                ErrorKind::ReadOnlyFilesystem => File::open(&path),
                _ => Err(error),
            })
            .map_err(|source| StoreError::File { path: path.clone(), source })?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { file }),
            Err(Errno::WOULDBLOCK) => Err(StoreError::Busy),
            Err(errno) => Err(StoreError::File { path, source: errno.into() }),
        }
    }

    /// Which file is locked: device and inode. A copy of the folder has another, and within one boot nobody else holds
    /// this one.
    pub fn place(&self) -> std::io::Result<(u64, u64)> {
        self.file.metadata().map(|file| (file.dev(), file.ino()))
    }
}

impl Drop for CycleLock {
    /// Said aloud, for closing is not enough: a child that is being started may still hold a copy of the descriptor.
    fn drop(&mut self) {
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}
