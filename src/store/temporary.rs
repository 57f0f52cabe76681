//! A folder for copies of a ledger that exist only while they are read.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;

/// A folder that only this user can read. It is removed on drop.
#[derive(Debug)]
pub struct Temporary(pub PathBuf);

impl Temporary {
    /// Returns what to do if no folder can be made, or if it has too little space.
    #[must_use]
    pub fn remedy() -> String {
        let folder = std::env::temp_dir();
        format!("free some space in {}, or set TMPDIR to a folder with room for the ledger", folder.display())
    }

    /// Makes a folder in the system's folder of temporary files.
    pub fn new() -> io::Result<Self> {
        let folder = std::env::temp_dir().join(format!("bursar-{}", uuid::Uuid::new_v4()));
        DirBuilder::new().mode(0o700).create(&folder)?;
        Ok(Self(folder))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // If the folder cannot be removed, the system's cleaning of temporary files removes it.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
