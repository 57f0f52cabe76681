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
    lock: FileLock,
}

impl CycleLock {
    /// Takes the lock of the ledger in `state_dir`. Returns [`StoreError::Busy`] if another process holds it.
    pub fn take(state_dir: &Path) -> Result<Self, StoreError> {
        let path = state_dir.join("ledger.lock");
        let file = FileLock::open(&path).or_else(|error| match error.kind() {
            ErrorKind::ReadOnlyFilesystem => File::open(&path),
            _ => Err(error),
        });
        match file.and_then(FileLock::attempt) {
            Ok(Ok(lock)) => Ok(Self { lock }),
            Ok(Err(_)) => Err(StoreError::Busy),
            Err(source) => Err(StoreError::File { path, source }),
        }
    }

    /// Device and inode of the locked file. They identify this daemon within one boot: a copy of the folder has another
    /// inode.
    pub fn place(&self) -> std::io::Result<(u64, u64)> {
        self.lock.0.metadata().map(|file| (file.dev(), file.ino()))
    }
}

/// An exclusive lock on a file whose only use is to be locked. No other process has the lock at the same time.
#[derive(Debug)]
pub(crate) struct FileLock(File);

impl FileLock {
    /// Opens the file, and creates it if it does not exist.
    pub(crate) fn open(path: &Path) -> std::io::Result<File> {
        // The group has no access: a user who can open the file, even only for reading, can take the lock and stop the
        // daemon.
        OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)
    }

    /// Takes the lock. If another process has it, returns the file.
    pub(crate) fn attempt(file: File) -> std::io::Result<Result<Self, File>> {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Ok(Self(file))),
            Err(Errno::WOULDBLOCK) => Ok(Err(file)),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl Drop for FileLock {
    /// Unlocks explicitly. Closing the file is not enough, because a child process that is being started may still hold
    /// a copy of the descriptor.
    fn drop(&mut self) {
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}
