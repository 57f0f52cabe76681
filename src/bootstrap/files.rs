//! Files that only the daemon reads: written whole or not at all, 0600 from their first byte on. They are their writer's:
//! `init` becomes the daemon's user for it ([`crate::privilege::as_bursar`]), for that user could turn whatever it may
//! write into a link before root follows it.

use std::fs::{File, OpenOptions, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::Path;

use ring::rand::{SecureRandom as _, SystemRandom};
use zeroize::Zeroizing;

use super::AccessError;

/// The seed of the seal (`contract::Sealer`).
pub const SEAL_KEY: &str = "seal.key";

/// Writes a file that only its owner may read, and puts it in the place of an older one.
pub(super) fn replace(path: &Path, content: &[u8]) -> Result<(), AccessError> {
    replace_as(path, content, 0o600, None)
}

/// The same with another mode, and for another owner (uid, gid). Both are set on the open file: a user who may write in
/// the folder could put a link in its place.
pub fn replace_as(path: &Path, content: &[u8], mode: u32, owner: Option<(u32, u32)>) -> Result<(), AccessError> {
    let in_place = || -> std::io::Result<()> {
        let folder = folder(path)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let beside = folder.join(format!(".{name}.new"));
        // Left behind by a run that was killed.
        match std::fs::remove_file(&beside) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        write_new(&beside, content, mode, owner)?;
        std::fs::rename(&beside, path)?;
        File::open(folder)?.sync_all()
    };
    in_place().map_err(|source| AccessError::Write { path: path.to_owned(), source })
}

/// Draws the seal's key if there is none yet; `true`: it was drawn now. One that is there is never replaced: every
/// namespace's seal rests on it.
pub(super) fn ensure_seal_key(state_dir: &Path) -> Result<bool, AccessError> {
    let path = state_dir.join(SEAL_KEY);
    let failed = |source| AccessError::Write { path: path.clone(), source };
    let mut seed = Zeroizing::new([0_u8; 32]);
    SystemRandom::new().fill(&mut *seed).map_err(|_| failed(std::io::Error::other("no random numbers")))?;
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
    // Whatever the umask said.
    file.set_permissions(Permissions::from_mode(mode))?;
    file.write_all(content)?;
    file.sync_all()
}

/// The folder of a file, made if it is not there.
fn folder(path: &Path) -> std::io::Result<&Path> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.exists() {
        std::fs::DirBuilder::new().recursive(true).mode(0o750).create(folder)?;
    }
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_key_is_drawn_once() {
        let folder = tempfile::TempDir::new().expect("a folder");
        let state_dir = folder.path().join("state");
        assert!(ensure_seal_key(&state_dir).expect("written"));
        let key = std::fs::read(state_dir.join(SEAL_KEY)).expect("a key");
        assert_eq!(key.len(), 32);
        assert!(!ensure_seal_key(&state_dir).expect("kept"));
        assert_eq!(std::fs::read(state_dir.join(SEAL_KEY)).expect("a key"), key);
    }

    #[test]
    fn a_file_is_replaced_and_private() {
        let folder = tempfile::TempDir::new().expect("a folder");
        let path = folder.path().join("clusters/prod.kubeconfig");
        replace(&path, b"old").expect("written");
        replace(&path, b"new").expect("written");
        assert_eq!(std::fs::read(&path).expect("a file"), b"new");
        let mode = std::fs::metadata(&path).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(path.parent().expect("a folder")).expect("a folder").count(), 1);
    }
}
