//! The files of `state_dir/archive`. Each is written completely or not at all, only user `bursar` can read it, and it
//! gets its name only after it was read back and compared.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::{About, ArchiveError, Packed, Recipient, Unpacked, digest, files, unpack};
use crate::ledger::Archive;

/// The ending of a file that is still being written.
const PARTIAL: &str = ".partial";

/// The folder of the archives, and the key that their Secrets are encrypted to.
#[derive(Debug, Clone, PartialEq)]
pub struct Archives {
    folder: PathBuf,
    /// `None` to leave Secrets out.
    pub recipient: Option<Recipient>,
}

/// An archive file that was written and verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedArchive {
    /// Hex SHA-256.
    pub digest: String,
    /// The size in bytes.
    pub bytes: u64,
}

impl VerifiedArchive {
    /// Returns the ledger's record of this archive.
    #[must_use]
    pub fn row(self, about: About) -> Archive {
        Archive {
            account: about.account_id,
            cluster: about.cluster,
            namespace: about.namespace,
            generation: about.generation,
            digest: self.digest,
            bytes: self.bytes,
            objects: about.objects,
            secrets: about.secrets,
            left_out: about.left_out,
            at: about.at,
        }
    }
}

impl Archives {
    /// The archives of a state folder.
    #[must_use]
    pub fn of(state_dir: &Path, recipient: Option<Recipient>) -> Self {
        Self { folder: state_dir.join("archive"), recipient }
    }

    #[must_use]
    pub fn path(&self, file: &str) -> PathBuf {
        self.folder.join(file)
    }

    /// Writes an archive with mode 0600, reads it back and compares it. The file gets its name after the comparison.
    pub fn write(&self, file: &str, packed: &Packed) -> Result<VerifiedArchive, ArchiveError> {
        let at = |path: &Path| {
            let path = path.to_owned();
            move |source| ArchiveError::File { path, source }
        };
        let (path, partial) = (self.path(file), self.path(&format!("{file}{PARTIAL}")));
        if !self.folder.is_dir() {
            DirBuilder::new().recursive(true).mode(0o700).create(&self.folder).map_err(at(&self.folder))?;
        }
        let read = write_whole(&partial, &packed.bytes).and_then(|()| fs::read(&partial));
        let read = read.map_err(at(&partial)).inspect_err(|_| {
            // Each attempt uses another name, so the partial files of failed attempts would accumulate on a full disk.
            let _ = fs::remove_file(&partial);
        })?;
        if read != packed.bytes || files(&read).ok().as_ref() != Some(&packed.files) {
            return Err(ArchiveError::Differs(partial));
        }
        fs::rename(&partial, &path).map_err(at(&path))?;
        File::open(&self.folder).and_then(|folder| folder.sync_all()).map_err(at(&self.folder))?;
        Ok(VerifiedArchive { digest: digest(&read), bytes: read.len() as u64 })
    }

    /// Reads an archive, if its digest is the expected one.
    pub fn read(&self, file: &str, expected: &str) -> Result<Unpacked, ArchiveError> {
        unpack(&self.verified(file, expected)?)
    }

    /// Returns the file's content, if its digest is the expected one.
    pub fn verified(&self, file: &str, expected: &str) -> Result<Vec<u8>, ArchiveError> {
        let path = self.path(file);
        let bytes = fs::read(&path).map_err(|source| ArchiveError::File { path: path.clone(), source })?;
        let found = digest(&bytes);
        if found == expected {
            return Ok(bytes);
        }
        Err(ArchiveError::Altered { path, found, expected: expected.to_owned() })
    }

    /// The names of all archives, sorted; empty if the folder does not exist.
    #[must_use]
    pub fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> = names.filter(|name| name.ends_with(".tar.zst")).collect();
        names.sort();
        names
    }

    /// Reads an archive whose digest is not in the ledger. Returns the archive's description of itself, and the file's
    /// digest and size.
    pub fn found(&self, file: &str) -> Result<(About, VerifiedArchive), ArchiveError> {
        let path = self.path(file);
        let bytes = fs::read(&path).map_err(|source| ArchiveError::File { path, source })?;
        let written = VerifiedArchive { digest: digest(&bytes), bytes: bytes.len() as u64 };
        Ok((unpack(&bytes)?.about, written))
    }

    /// Removes the partial files of a daemon that was killed. Nothing refers to them.
    pub fn sweep(&self) {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let partial = entries.filter(|entry| entry.file_name().to_string_lossy().ends_with(PARTIAL));
        partial.for_each(|entry| drop(fs::remove_file(entry.path())));
    }
}

fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::archive::{About, Content, pack};
    use crate::identity::{AccountId, ClusterName};

    fn packed() -> Packed {
        let about = About::of(
            (ClusterName("prod".into()), "tool-foo".to_owned().try_into().expect("a name")),
            ("tool:foo".parse().expect("a name"), AccountId("a1".into()), 7),
            Vec::new(),
            jiff::Timestamp::UNIX_EPOCH,
        );
        pack(Content { about, objects: Vec::new() }, None).expect("the archive is packed")
    }

    #[test]
    fn only_the_owner_can_read_an_archive_and_an_altered_one_is_refused() {
        let folder = tempfile::tempdir().expect("the temporary folder is writable");
        let archives = Archives::of(folder.path(), None);
        let packed = packed();
        let written = archives.write("a.tar.zst", &packed).expect("the folder is writable");
        let path = archives.path("a.tar.zst");
        let mode = |path: &Path| fs::metadata(path).expect("the path exists").permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().expect("the path has a parent"))), (0o600, 0o700));
        assert_eq!(archives.read("a.tar.zst", &written.digest).expect("read").about, packed.about);
        fs::write(archives.path("b.tar.zst.partial"), "half").expect("the folder is writable");
        archives.sweep();
        assert!(!archives.path("b.tar.zst.partial").exists());
        let mut altered = fs::read(&path).expect("read");
        altered[20] ^= 1;
        fs::write(&path, altered).expect("the folder is writable");
        assert!(matches!(archives.read("a.tar.zst", &written.digest), Err(ArchiveError::Altered { .. })));
    }
}
