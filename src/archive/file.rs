//! The files of `state_dir/archive`: written whole or not at all, readable by user `bursar` alone, and read back before
//! anybody rests on them.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::{About, ArchiveError, Packed, Recipient, Unpacked, digest, files, unpack};
use crate::ledger::Archive;

/// What a file that is not whole yet is called.
const PARTIAL: &str = ".partial";

/// The folder of archives, and whom their Secrets are encrypted to.
#[derive(Debug, Clone, PartialEq)]
pub struct Archives {
    folder: PathBuf,
    /// Absent: Secrets are left out.
    pub recipient: Option<Recipient>,
}

/// A file that holds what was packed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// Hex SHA-256.
    pub digest: String,
    /// Its size.
    pub bytes: u64,
}

impl Written {
    /// As the ledger keeps it.
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
    /// Those of a state folder.
    #[must_use]
    pub fn of(state_dir: &Path, recipient: Option<Recipient>) -> Self {
        Self { folder: state_dir.join("archive"), recipient }
    }

    /// Where the file of this name is.
    #[must_use]
    pub fn path(&self, file: &str) -> PathBuf {
        self.folder.join(file)
    }

    /// Writes an archive, mode 0600, reads it back and compares. Only then it has its name.
    pub fn write(&self, file: &str, packed: &Packed) -> Result<Written, ArchiveError> {
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
            // Each try has a name of its own: on a full disk the halves would keep it full.
            let _ = fs::remove_file(&partial);
        })?;
        if read != packed.bytes || files(&read).ok().as_ref() != Some(&packed.files) {
            return Err(ArchiveError::Differs(partial));
        }
        fs::rename(&partial, &path).map_err(at(&path))?;
        File::open(&self.folder).and_then(|folder| folder.sync_all()).map_err(at(&self.folder))?;
        Ok(Written { digest: digest(&read), bytes: read.len() as u64 })
    }

    /// The archive, if the file is as it was written.
    pub fn read(&self, file: &str, expected: &str) -> Result<Unpacked, ArchiveError> {
        unpack(&self.verified(file, expected)?)
    }

    /// The file's content, if it is as it was written.
    pub fn verified(&self, file: &str, expected: &str) -> Result<Vec<u8>, ArchiveError> {
        let path = self.path(file);
        let bytes = fs::read(&path).map_err(|source| ArchiveError::File { path: path.clone(), source })?;
        let found = digest(&bytes);
        if found == expected {
            return Ok(bytes);
        }
        Err(ArchiveError::Altered { path, found, expected: expected.to_owned() })
    }

    /// The names of all archives, in their order; of a folder that is not there none.
    #[must_use]
    pub fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> = names.filter(|name| name.ends_with(".tar.zst")).collect();
        names.sort();
        names
    }

    /// An archive of which no ledger has the digest: what it says of itself, and how it is now.
    pub fn found(&self, file: &str) -> Result<(About, Written), ArchiveError> {
        let path = self.path(file);
        let bytes = fs::read(&path).map_err(|source| ArchiveError::File { path, source })?;
        let written = Written { digest: digest(&bytes), bytes: bytes.len() as u64 };
        Ok((unpack(&bytes)?.about, written))
    }

    /// Removes what a daemon that was killed left half written. Nothing rests on it.
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
            (ClusterName("prod".to_owned()), "tool-foo".to_owned().try_into().expect("a name")),
            ("tool:foo".parse().expect("a name"), AccountId("a1".into()), 7),
            Vec::new(),
            jiff::Timestamp::UNIX_EPOCH,
        );
        pack(Content { about, objects: Vec::new() }, None).expect("packed")
    }

    #[test]
    fn a_file_is_whole_and_its_owners_alone_and_an_altered_one_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let archives = Archives::of(folder.path(), None);
        let packed = packed();
        let written = archives.write("a.tar.zst", &packed).expect("written");
        let path = archives.path("a.tar.zst");
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().expect("a folder"))), (0o600, 0o700));
        assert_eq!(archives.read("a.tar.zst", &written.digest).expect("read").about, packed.about);
        fs::write(archives.path("b.tar.zst.partial"), "half").expect("written");
        archives.sweep();
        assert!(!archives.path("b.tar.zst.partial").exists());
        let mut altered = fs::read(&path).expect("read");
        altered[20] ^= 1;
        fs::write(&path, altered).expect("written");
        assert!(matches!(archives.read("a.tar.zst", &written.digest), Err(ArchiveError::Altered { .. })));
    }
}
