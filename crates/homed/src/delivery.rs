//! The work on a kubeconfig: inspects, tests, writes, removes and restores it. Runs in the worker, which has become the
//! owner of the home.

use std::cell::Cell;
use std::path::{Path, PathBuf};

use bursar_protocol::{
    Answer, EntryNames, HomeError, Inspection, KubeconfigEntries, PlannedEntries, TOKEN, TOKEN_FILES, TokenFiles,
    UserProof, Written, claims, folder,
};
use zeroize::Zeroizing;

use crate::document::DocumentError;
use crate::exchange::{Exchanged, Patience, exchange, overwrite, settled, sweep_lock, test_exchange};
use crate::files::{Directory, Existing, Home};
use crate::keypair;
use crate::kubeconfig::{self, Delivered, KubeconfigError};
use crate::worker::CpuLimit;

/// Suffix of the file that keeps the user's part of the last kubeconfig that we replaced.
const KEPT: &str = ".bursar-kept";
/// Suffix, followed by a date, of the copy of a kubeconfig that did not parse, or whose user's part a restoration that
/// was interrupted replaced. The copy lacks only our keys.
const BACKUP: &str = ".bursar-backup-";
/// The time in nanoseconds after a write during which a file that does not parse may still be incomplete, because a
/// program is writing it.
const HALF_WRITTEN: i128 = 60_000_000_000;

/// The most bytes of backups that one request reads: some hundred backups of usual files.
const BACKUP_BYTES: usize = 4 * 1024 * 1024;

/// The size in bytes of the largest file in which our keys are overwritten. It may be too large to be edited.
const BLANKED_BYTES: usize = 8 * 1024 * 1024;

/// Bytes reserved for what planned entries do not have yet: a certificate and its key, or the files of a token.
const SECRET_BYTES: usize = 8 * 1024;

/// Returns the room in bytes that a delivery needs. Until the rename, the old file exists too, and so does the copy of
/// the user's part that an earlier delivery kept.
fn room(delivered: &Delivered) -> usize {
    let bytes = |text: &Option<Zeroizing<String>>| text.as_ref().map_or(0, |text| text.len());
    bytes(&delivered.text) + bytes(&delivered.kept) + SECRET_BYTES
}

/// The kubeconfig of a request.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) home: &'a Home,
    /// The path of the kubeconfig, relative to the home.
    pub(super) file: &'a Path,
    pub(super) patience: Patience,
    /// The time for the name of a backup, `20260131T235959Z` in UTC.
    pub(super) date: &'a str,
    pub(super) cpu: &'a CpuLimit,
}

/// Returns the last component of a path.
pub(super) fn name_of(file: &Path) -> &Path {
    file.file_name().map_or(file, Path::new)
}

/// Returns the name followed by a suffix.
fn beside_name(name: &Path, suffix: &str) -> PathBuf {
    let mut name = name.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Returns the error for a file into which our entries cannot be merged.
fn unusable(path: PathBuf, error: &KubeconfigError) -> HomeError {
    match error {
        KubeconfigError::Foreign(entry) => HomeError::ForeignEntry { path, entry: entry.clone() },
        KubeconfigError::Document(DocumentError::TooDeep | DocumentError::TooMuch) => {
            HomeError::TooComplex { path, detail: error.to_string() }
        }
        _ => HomeError::NotYaml { path, detail: error.to_string() },
    }
}

/// Whether kubectl cannot read the text either. Such text may be replaced if the class allows that. kubectl reads more
/// than Bursar: the first of several documents, the last of two equal keys, and files of any size.
fn is_junk(error: &KubeconfigError) -> bool {
    match error {
        KubeconfigError::Document(
            DocumentError::NotWritable
            | DocumentError::Utf16
            | DocumentError::Unusual { .. }
            | DocumentError::Character { .. }
            | DocumentError::SeveralDocuments
            | DocumentError::Tab { .. }
            | DocumentError::TooDeep
            | DocumentError::TooMuch,
        )
        | KubeconfigError::Unclear(_)
        | KubeconfigError::Shared(_)
        | KubeconfigError::Twice(_)
        | KubeconfigError::Foreign(_) => false,
        KubeconfigError::Document(
            DocumentError::NotUtf8(_) | DocumentError::Syntax { .. } | DocumentError::ComplexKey,
        )
        | KubeconfigError::Shape(_) => true,
    }
}

/// Refuses to replace a file that does not parse if another program may still be writing it.
fn refuse_half_written(directory: &Directory<'_>, name: &Path, existing: &Existing) -> Result<(), HomeError> {
    // A user can set the modification time, even to the future, so the age can be negative.
    let age = directory.temporary(b"")?.made_at()? - existing.version.changed_at();
    if !(0..=HALF_WRITTEN).contains(&age) {
        return Ok(());
    }
    let why = "it does not parse and was written less than a minute ago".to_owned();
    Err(HomeError::InUse { path: directory.path_of(name), why })
}

/// Whether the error says that a file or folder that we did not make has one of our names.
fn is_not_ours(error: &HomeError) -> bool {
    matches!(
        error,
        HomeError::NotADirectory { .. }
            | HomeError::NotARegularFile { .. }
            | HomeError::Symlink { .. }
            | HomeError::WrongOwner { .. }
            | HomeError::OtherFileSystem { .. }
    )
}

fn text(existing: &Existing) -> Result<&str, KubeconfigError> {
    let content = existing.content.as_slice();
    Ok(std::str::from_utf8(content).map_err(|error| match content {
        [0xFF, 0xFE, ..] | [0xFE, 0xFF, ..] => DocumentError::Utf16,
        _ => DocumentError::NotUtf8(error.valid_up_to()),
    })?)
}

fn bytes(text: Zeroizing<String>) -> Zeroizing<Vec<u8>> {
    let mut text = text;
    Zeroizing::new(std::mem::take(&mut *text).into_bytes())
}

/// The parts of a replaced file that are saved beside it.
struct Beside {
    /// The user's part, if it is worth keeping.
    kept: Option<Zeroizing<String>>,
    /// The whole file, if it does not parse.
    junk: Option<Zeroizing<Vec<u8>>>,
}

impl Place<'_> {
    fn name(&self) -> &Path {
        name_of(self.file)
    }

    pub(super) fn inspect(&self, names: &EntryNames) -> Result<Inspection, HomeError> {
        let Some(directory) = self.home.directory_of(self.file)? else { return Ok(Inspection::default()) };
        sweep_lock(&directory, self.name());
        // The user may have lost the file, and ask whether there is a copy.
        let kept = directory.read(&beside_name(self.name(), KEPT)).ok().flatten();
        let kept = kept.map(|kept| kept.content.len() as u64);
        let missing = Inspection { kept, ..Inspection::default() };
        let Some(mut existing) = directory.read(self.name())? else { return Ok(missing) };
        let look = |existing: &Existing| {
            self.cpu.heed(existing.content.len())?;
            Ok::<_, HomeError>(text(existing).and_then(|text| kubeconfig::inspect(text, names)))
        };
        let mut looked = look(&existing)?;
        if !looked.as_ref().is_ok_and(|found| found.ours.users.contains(&names.user)) {
            // Another program may be writing the file at this moment.
            let Some(settled) = settled(&directory, self.name(), self.patience)? else { return Ok(missing) };
            looked = look(&settled)?;
            existing = settled;
        }
        let (mut found, why) = match looked {
            Ok(found) => (found, None),
            Err(error) => (Inspection::default(), Some(error.to_string())),
        };
        found.ours = found.ours.told();
        Ok(Inspection {
            exists: true,
            owner: Some(existing.owner),
            mode: Some(existing.mode),
            token_id: self.token_id(&names.user)?,
            unreadable: why,
            kept,
            ..found
        })
    }

    /// Tests whether the kubeconfig can be edited and a file of its size be written. If `planned` is given, also tests
    /// whether the planned entries can be merged and written, because a credential is issued next. This test takes the
    /// lock and needs the room that the delivery will need. `planned` also has the names that count as ours.
    pub(super) fn test_write(
        &self,
        planned: Option<(&PlannedEntries, &[String])>,
        replace_unparsable: bool,
    ) -> Result<Answer, HomeError> {
        let directory = self.home.make_directory_of(self.file)?;
        sweep_lock(&directory, self.name());
        if let Some((planned, _)) = planned.filter(|(planned, _)| planned.token) {
            self.test_token(&planned.user)?;
        }
        let (keeps, size) = (Cell::new(false), Cell::new(0));
        let tried = |existing: Option<Existing>| {
            let Some(existing) = existing else { return Ok(Ok(0)) };
            self.cpu.heed(existing.content.len())?;
            let tried = text(&existing).and_then(|text| match planned {
                Some((planned, taken)) => {
                    let delivered = kubeconfig::deliver(text, &planned.with_nothing(), taken)?;
                    keeps.set(delivered.kept.is_some());
                    size.set(delivered.text.as_ref().map_or(0, |text| text.len() + SECRET_BYTES));
                    Ok(room(&delivered))
                }
                // Removing nothing checks the same conditions as adding entries.
                None => kubeconfig::remove(text, &EntryNames::default()).map(|_| 0),
            });
            match tried {
                Err(error) if replace_unparsable && is_junk(&error) => {
                    // The delivery keeps the whole file as a backup.
                    refuse_half_written(&directory, self.name(), &existing)
                        .map(|()| Ok(existing.content.len() + SECRET_BYTES))
                }
                tried => Ok::<_, HomeError>(tried),
            }
        };
        let bytes = match tried(directory.read(self.name())?)? {
            Ok(bytes) => bytes,
            // Another program may be writing the file at this moment.
            Err(_) => tried(settled(&directory, self.name(), self.patience)?)?
                .map_err(|error| unusable(directory.path_of(self.name()), &error))?,
        };
        directory.limit(self.name(), size.get() as u64)?;
        if keeps.get() {
            directory.read(&beside_name(self.name(), KEPT))?;
        }
        let now = directory.test_write(bytes)?;
        if planned.is_some() {
            test_exchange(&directory, self.name(), now, self.patience)?;
        }
        Ok(Answer::Writable)
    }

    pub(super) fn write(
        &self,
        entries: &KubeconfigEntries,
        taken: &[String],
        replace_unparsable: bool,
    ) -> Result<Written, HomeError> {
        let directory = self.home.make_directory_of(self.file)?;
        let name = self.name();
        let path = directory.path_of(name);
        let (mut written, mut narrowed) = (false, false);
        let exchanged = exchange(
            &directory,
            name,
            self.patience,
            |existing| {
                self.cpu.heed(existing.map_or(0, |existing| existing.content.len()))?;
                let merged = match existing {
                    None => kubeconfig::deliver("", entries, taken),
                    Some(existing) => text(existing).and_then(|text| kubeconfig::deliver(text, entries, taken)),
                };
                let (delivered, junk) = match (merged, existing) {
                    (Ok(delivered), _) => (delivered, None),
                    (Err(error), Some(existing)) if replace_unparsable && is_junk(&error) => {
                        refuse_half_written(&directory, name, existing)?;
                        let new = kubeconfig::deliver("", entries, taken);
                        (new.map_err(|error| unusable(path.clone(), &error))?, Some(existing.content.clone()))
                    }
                    (Err(error), _) => return Err(unusable(path.clone(), &error)),
                };
                // The token is written only if the kubeconfig that points to it can be merged, and before that
                // kubeconfig.
                if let UserProof::Token(files) = &entries.user.proof {
                    written |= self.write_token(&entries.user.name, files)?;
                }
                if let (None, Some(existing)) = (&delivered.text, existing) {
                    narrowed = directory.make_private(name, existing)?;
                }
                let wrong = || HomeError::BadRequest {
                    detail: "the context does not name the cluster and user of the request".into(),
                };
                let digest = delivered.digest.ok_or_else(wrong)?;
                Ok((delivered.text.map(bytes), (digest, Beside { kept: delivered.kept, junk })))
            },
            |(_, beside)| self.put_beside(&directory, beside),
            Ok,
        )?;
        let Exchanged { value: (entries_digest, beside), changed, overridden } = exchanged;
        let backup = beside.junk.map(|_| self.backup_name().display().to_string());
        if let UserProof::Notice(_) = &entries.user.proof {
            directory.sweep();
            // An error of this call is returned only at the end: a backup that cannot be cleaned must not keep our
            // token in the home.
            let cleaned = self.clean_backups(&directory);
            written |= self.remove_token(&entries.user.name)?;
            cleaned?;
        } else if !matches!(&entries.user.proof, UserProof::Token(_)) {
            // The files belong to a token that this credential replaced. If they cannot be removed, the credential works.
            written |= self.remove_token(&entries.user.name).unwrap_or_default();
        }
        let changed = changed || written || narrowed;
        let mount = self.home.mount();
        Ok(Written { changed, entries_digest, backup, overridden_lock: overridden, mount })
    }

    fn backup_name(&self) -> PathBuf {
        beside_name(self.name(), &format!("{BACKUP}{}", self.date))
    }

    /// Saves the parts of the file that the rename is about to replace. This is called again if the file changed
    /// meanwhile.
    fn put_beside(&self, directory: &Directory<'_>, Beside { kept, junk }: &Beside) -> Result<(), HomeError> {
        if let Some(junk) = junk {
            let without = keypair::without_our_keys(junk);
            // A hard link is not enough: if a program writes the file in place, the link shows the new content.
            directory.replace(&self.backup_name(), without.as_ref().unwrap_or(junk))?;
        }
        if let Some(kept) = kept {
            directory.keep_at(&beside_name(self.name(), KEPT), kept.as_bytes())?;
        }
        Ok(())
    }

    pub(super) fn remove(&self, names: &EntryNames) -> Result<Answer, HomeError> {
        // An error of this call is returned only at the end: token files that cannot be removed must not keep our key
        // in the kubeconfig.
        let gone = self.remove_token(&names.user);
        let Some(directory) = self.home.directory_of(self.file)? else { return Ok(Answer::Removed { changed: gone? }) };
        // A killed worker may have left a temporary file with a key.
        directory.sweep();
        let name = self.name();
        let exchanged = exchange(
            &directory,
            name,
            self.patience,
            |existing| {
                let Some(existing) = existing else { return Ok((None, Ok(true))) };
                self.cpu.heed(existing.content.len())?;
                let removed = text(existing).and_then(|text| {
                    let removed = kubeconfig::remove(text, names)?;
                    let is_left = kubeconfig::has_a_credential(removed.as_ref().map_or(text, |text| text.as_str()))?;
                    Ok((removed.map(bytes), Ok(!is_left)))
                });
                removed.or_else(|error| {
                    let error = unusable(directory.path_of(name), &error);
                    // A fault in the user's part must not keep our key in the file.
                    match keypair::without_our_keys(&existing.content) {
                        Some(without) => Ok((Some(without), Err(error))),
                        None => Err(error),
                    }
                })
            },
            |_| Ok(()),
            Ok,
        );
        let exchanged = match exchanged {
            Err(
                error @ (HomeError::NoSpace { .. }
                | HomeError::NoInodes { .. }
                | HomeError::Quota { .. }
                | HomeError::TooLarge { .. }),
            ) => {
                self.cpu.heed(BLANKED_BYTES)?;
                // If the text cannot be read, nothing says which of our keys belongs to this cluster.
                let blanked = |content: &[u8]| {
                    let text = std::str::from_utf8(content).ok();
                    let places = text.and_then(|text| kubeconfig::places_of(text, &names.user).ok());
                    keypair::with_blank_keys(content, places.as_deref())
                };
                // If this fails too, the first error is the one to remedy.
                if let Ok(Some(whole)) = self.home.directory_of(self.file) {
                    let _ = overwrite(&whole.reading(BLANKED_BYTES), name, self.patience, blanked);
                }
                Err(error)
            }
            exchanged => exchanged,
        };
        // An error of this call is returned only at the end, too.
        let cleaned = self.clean_backups(&directory);
        let exchanged = exchanged?;
        if exchanged.value? {
            match directory.remove(&beside_name(name, KEPT)) {
                Err(error) if is_not_ours(&error) => {}
                removed => drop(removed?),
            }
        }
        cleaned?;
        Ok(Answer::Removed { changed: gone? || exchanged.changed })
    }

    /// Removes our keys from backups, in which former versions left them. A backup that cannot be read stays as it is.
    /// A user can make any number of such files, so only the first [`BACKUP_BYTES`] are read, and only after the
    /// kubeconfig was written.
    fn clean_backups(&self, directory: &Directory<'_>) -> Result<(), HomeError> {
        let mut bytes = 0;
        for name in directory.beginning_with(&beside_name(self.name(), BACKUP)) {
            if bytes >= BACKUP_BYTES || self.patience.is_over() {
                break;
            }
            let Ok(Some(existing)) = directory.read(&name) else { continue };
            bytes += existing.content.len();
            self.cpu.heed(bytes)?;
            if let Some(without) = keypair::without_our_keys(&existing.content) {
                // If the old file stayed open, an NFS client would keep it under another name.
                drop(existing);
                directory.replace(&name, &without)?;
            }
        }
        Ok(())
    }

    /// Restores the user's part of the last file that we replaced, together with our current entries.
    pub(super) fn restore(&self) -> Result<Answer, HomeError> {
        let name = self.name();
        let kept_name = beside_name(name, KEPT);
        let nothing = |path: PathBuf| HomeError::NothingKept { path };
        let Some(directory) = self.home.directory_of(self.file)? else {
            return Err(nothing(self.file.to_owned()));
        };
        let copy = directory.read(&kept_name)?.ok_or_else(|| nothing(directory.path_of(&kept_name)))?;
        let wrong = |error: &KubeconfigError| unusable(directory.path_of(&kept_name), error);
        // The copy is a file of the user's too, and may be large.
        self.cpu.heed(copy.content.len())?;
        let kept = text(&copy).and_then(kubeconfig::without_our_users).map_err(|error| wrong(&error))?;
        // An NFS client would rename an open file away before another takes its place.
        drop(copy);
        let exchanged = exchange(
            &directory,
            name,
            self.patience,
            |existing| {
                self.cpu.heed(existing.map_or(0, |existing| existing.content.len()))?;
                let current =
                    existing.map(|existing| text(existing).and_then(|text| Ok((text, kubeconfig::take(text)?))));
                let (taken, beside) = if let Some(Ok((text, taken))) = current {
                    let kept = kubeconfig::users_part_worth_keeping(text).map_err(|error| wrong(&error))?;
                    (taken, Beside { kept, junk: None })
                } else {
                    let junk = existing.map(|existing| existing.content.clone());
                    (kubeconfig::Taken::default(), Beside { kept: None, junk })
                };
                let with_ours = kubeconfig::put_back(&kept, &taken).map_err(|error| wrong(&error))?;
                let content = with_ours.unwrap_or_else(|| kept.clone());
                let is_there = existing.is_some_and(|existing| existing.content.as_slice() == content.as_bytes());
                let content = (!is_there).then(|| bytes(content));
                Ok((content, (beside, taken.is_empty())))
            },
            |(Beside { kept, junk }, _)| {
                self.put_beside(&directory, &Beside { kept: None, junk: junk.clone() })?;
                // Between the two renames, this is the only copy of the replaced text. If they are interrupted, it stays
                // as a backup.
                kept.as_ref().map(|kept| directory.named(self.backup_name(), kept.as_bytes())).transpose()
            },
            // The kept copy is replaced only now, because until the first rename it may be the only copy.
            |replaced| replaced.map_or(Ok(()), |replaced| replaced.put_or_stay(&kept_name)),
        )?;
        let (_, is_without_ours) = exchanged.value;
        Ok(Answer::Restored { changed: exchanged.changed, complete: !is_without_ours })
    }

    /// Returns the path of a file in our user's folder, which lies beside the kubeconfig.
    fn beside(&self, user: &str, name: &str) -> Option<PathBuf> {
        Some(self.file.parent()?.join(folder(user)?).join(name))
    }

    /// Opens our user's folder, which has the file `path`. `None` if it does not exist, or if something that is not
    /// ours has its name.
    fn our_folder(&self, path: &Path) -> Result<Option<Directory<'_>>, HomeError> {
        // Errors of the folders above our folder are returned.
        if self.home.directory_of(self.file)?.is_none() {
            return Ok(None);
        }
        match self.home.directory_of(path) {
            Err(error) if is_not_ours(&error) => Ok(None),
            opened => opened,
        }
    }

    fn token_id(&self, user: &str) -> Result<Option<String>, HomeError> {
        let Some(path) = self.beside(user, TOKEN) else { return Ok(None) };
        let Some(directory) = self.our_folder(&path)? else { return Ok(None) };
        let existing = match directory.read(name_of(&path)) {
            Err(error) if is_not_ours(&error) => None,
            existing => existing?,
        };
        let Some(existing) = existing else { return Ok(None) };
        Ok(std::str::from_utf8(&existing.content).ok().and_then(claims).map(|claims| claims.id))
    }

    /// Writes the token files, which must happen before the kubeconfig points to them. Returns whether anything
    /// changed.
    fn write_token(&self, user: &str, files: &TokenFiles) -> Result<bool, HomeError> {
        let mut changed = false;
        for name in TOKEN_FILES {
            let Some(path) = self.beside(user, name) else { continue };
            let directory = self.home.make_directory_of(&path)?;
            directory.sweep();
            changed |= directory.keep_at(name_of(&path), files.content(name).as_bytes())?;
        }
        Ok(changed)
    }

    /// Tests whether the token files can be written.
    fn test_token(&self, user: &str) -> Result<(), HomeError> {
        for name in TOKEN_FILES {
            let Some(path) = self.beside(user, name) else { continue };
            self.home.make_directory_of(&path)?.read(name_of(&path))?;
        }
        Ok(())
    }

    fn remove_token(&self, user: &str) -> Result<bool, HomeError> {
        let mut changed = false;
        for name in TOKEN_FILES {
            let Some(path) = self.beside(user, name) else { continue };
            let Some(directory) = self.our_folder(&path)? else { return Ok(changed) };
            // A temporary file of a killed worker may contain a token too.
            directory.sweep();
            changed |= match directory.remove(name_of(&path)) {
                Err(error) if is_not_ours(&error) => false,
                removed => removed?,
            };
        }
        if let (Some(above), Some(folder)) = (self.home.directory_of(self.file)?, folder(user)) {
            above.remove_directory(Path::new(folder))?;
        }
        Ok(changed)
    }
}
