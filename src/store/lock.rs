//! The writer's lock: `flock` on `ledger.lock` next to the ledger. Every write requires the token, so there is only one
//! writer at a time.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::StoreError;

/// Proof that only this process writes to the ledger, the clusters and the homes. The kernel releases the lock when the
/// process ends, also after a crash.
#[derive(Debug)]
pub struct CycleLock {
    file: File,
}

impl CycleLock {
    /// Takes the lock of the ledger in `state_dir`. Returns [`StoreError::Busy`] if another process holds it.
    pub fn take(state_dir: &Path) -> Result<Self, StoreError> {
        let path = state_dir.join("ledger.lock");
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            // The group has no access: a user who can open the file, even only for reading, can take the lock and stop
            // the daemon.
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

    /// Device and inode of the locked file. They identify this daemon within one boot: a copy of the folder has another
    /// inode.
    pub fn place(&self) -> std::io::Result<(u64, u64)> {
        self.file.metadata().map(|file| (file.dev(), file.ino()))
    }
}

impl Drop for CycleLock {
    /// Unlocks explicitly. Closing the file is not enough, because a child process that is being started may still hold
    /// a copy of the descriptor.
    fn drop(&mut self) {
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}
