//! Writes files completely or not at all. A file has mode 0600 until its owner and mode are set. A new file belongs to
//! the user of the process. `init` therefore writes the daemon's files as the daemon's user
//! ([`crate::privilege::as_bursar`]): if root wrote them, that user could replace a path with a link, and root would
//! follow it.

use std::fs::{File, OpenOptions, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::Path;

use ring::rand::{SecureRandom as _, SystemRandom};
use zeroize::Zeroizing;

use super::AccessError;
use crate::store::{FileLock, SEAL_KEY};

/// Writes a file that only its owner can read, and replaces an older one.
pub(super) fn replace(path: &Path, content: &[u8]) -> Result<(), AccessError> {
    replace_as(path, content, 0o600, None)
}

/// Like [`replace`], with a mode and an owner (uid, gid). Both are set on the open file, because a user who may write
/// in the folder could replace the path with a link.
pub fn replace_as(path: &Path, content: &[u8], mode: u32, owner: Option<(u32, u32)>) -> Result<(), AccessError> {
    let in_place = || -> std::io::Result<()> {
        let folder = folder(path)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let beside = folder.join(format!(".{name}.new"));
        // Remove what a killed run left behind.
        match std::fs::remove_file(&beside) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        write_new(&beside, content, mode, owner).and_then(|()| std::fs::rename(&beside, path)).inspect_err(|_| {
            // On a full disk, an incomplete file would keep the last free space.
            let _ = std::fs::remove_file(&beside);
        })?;
        File::open(folder)?.sync_all()
    };
    in_place().map_err(|source| AccessError::Write { path: path.to_owned(), source })
}

/// Writes texts into files of `folder`, and creates the folder if it does not exist. The third value says whether only
/// the owner may read the file. If root writes the files, they get the owner of the folder, which is the user that the
/// program runs as.
pub(super) fn replace_in(folder: &Path, files: &[(&str, Zeroizing<String>, bool)]) -> Result<(), AccessError> {
    let failed = |source| AccessError::Write { path: folder.to_owned(), source };
    create(folder).map_err(failed)?;
    let found = std::fs::metadata(folder).map_err(failed)?;
    let owner = nix::unistd::Uid::effective().is_root().then(|| (found.uid(), found.gid()));
    files.iter().try_for_each(|(name, text, private)| {
        replace_as(&folder.join(name), text.as_bytes(), if *private { 0o600 } else { 0o644 }, owner)
    })
}

/// Like [`FileLock::open`], and creates the folder too.
pub(super) fn open_lock(path: &Path) -> std::io::Result<File> {
    folder(path)?;
    FileLock::open(path)
}

/// Generates the seal's key if there is none, and returns whether it did. An existing key is never replaced, because
/// every namespace's seal was made with it.
pub(super) fn ensure_seal_key(state_dir: &Path) -> Result<bool, AccessError> {
    let path = state_dir.join(SEAL_KEY);
    let failed = |source| AccessError::Write { path: path.clone(), source };
    let mut seed = Zeroizing::new([0_u8; 32]);
    SystemRandom::new()
        .fill(&mut *seed)
        .map_err(|_| failed(std::io::Error::other("the system gave no random bytes; run `bursar init` again")))?;
    folder(&path).map_err(failed)?;
    match write_new(&path, &*seed, 0o600, None) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(failed(error)),
    }
}

fn write_new(path: &Path, content: &[u8], mode: u32, owner: Option<(u32, u32)>) -> std::io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    if let Some((uid, gid)) = owner {
        fchown(&file, Some(uid), Some(gid))?;
    }
    // `open` applied the umask, and `mode` may be wider than 0600.
    file.set_permissions(Permissions::from_mode(mode))?;
    file.write_all(content)?;
    file.sync_all()
}

/// Returns the folder of a file, and creates it with mode 0750 if it does not exist.
fn folder(path: &Path) -> std::io::Result<&Path> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    create(folder)?;
    Ok(folder)
}

fn create(folder: &Path) -> std::io::Result<()> {
    if folder.exists() { Ok(()) } else { std::fs::DirBuilder::new().recursive(true).mode(0o750).create(folder) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_key_is_generated_once() {
        let folder = tempfile::TempDir::new().expect("the temporary folder is writable");
        let state_dir = folder.path().join("state");
        assert!(ensure_seal_key(&state_dir).expect("the folder is writable"));
        let key = std::fs::read(state_dir.join(SEAL_KEY)).expect("the key exists");
        assert_eq!(key.len(), 32);
        assert!(!ensure_seal_key(&state_dir).expect("the existing key is kept"));
        assert_eq!(std::fs::read(state_dir.join(SEAL_KEY)).expect("the key exists"), key);
    }

    #[test]
    fn a_replaced_file_is_private() {
        let folder = tempfile::TempDir::new().expect("the temporary folder is writable");
        let path = folder.path().join("clusters/prod.kubeconfig");
        replace(&path, b"old").expect("the folder is writable");
        replace(&path, b"new").expect("the folder is writable");
        assert_eq!(std::fs::read(&path).expect("the file exists"), b"new");
        let mode = std::fs::metadata(&path).expect("the file exists").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(
            std::fs::read_dir(path.parent().expect("the path has a parent")).expect("the folder exists").count(),
            1
        );
    }
}
