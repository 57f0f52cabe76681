//! `bursar ledger verify|backup`: verifies the history, and copies the ledger into a file.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::json;

use super::context::Context;
use super::exit::{Exit, Failure};
use super::output;
use crate::store::{FILE, ReadStore};

/// Verifies the history. `told` is the hash of an event that must be in it.
pub(super) async fn verify(context: &Context, told: Option<String>) -> Result<Exit, Failure> {
    let mut store = context.store().await?;
    let progress = output::progress("checking the history");
    let checked = store.verify().await;
    progress.finish_and_clear();
    let (last, hash) = checked.map_err(|error| Failure::from(anyhow::Error::new(error)))?;
    if let Some(told) = told {
        let found = store.rows("SELECT id FROM event WHERE hash = ?1", std::slice::from_ref(&told)).await?;
        if found.is_empty() {
            let text =
                format!("no event has the hash {told}: it is mistyped, or the history was truncated or rewritten");
            return Err(Failure::new(Exit::Failed, text));
        }
    }
    if context.global.json {
        output::json(&json!({"ok": true, "events": last, "head": hash}))?;
    } else {
        output::line(format!("the history is intact: {last} events, head {hash}"));
    }
    Ok(Exit::Done)
}

/// Checks the format of an event's hash, so that a typing error does not look like a truncated history.
pub(super) fn event_hash(text: &str) -> Result<String, String> {
    if text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(text.to_ascii_lowercase());
    }
    Err("the hash of an event has 64 hexadecimal digits, as in the journal and in `bursar ledger verify`".to_owned())
}

/// Copies the ledger into a new file. The caller opens the file and user `bursar` opens the ledger, so the copy is
/// first made in a temporary folder.
pub(super) async fn backup(context: &Context, path: &Path) -> Result<Exit, Failure> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let mut file = file.map_err(|error| {
        let remedy = match error.kind() {
            io::ErrorKind::AlreadyExists => "name a file that does not exist; a backup never replaces a file",
            _ => "name a file in a folder in which you may write",
        };
        Failure::new(Exit::Failed, format!("{}: {error}; {remedy}", path.display()))
    })?;
    let progress = output::progress("copying the ledger");
    let copied = copy(context, &mut file).await;
    progress.finish_and_clear();
    let events = copied.inspect_err(|_| {
        // An incomplete backup is useless. If root has become `bursar`, the file cannot be removed, and stays empty.
        let _ = std::fs::remove_file(path);
    })?;
    if context.global.json {
        output::json(&json!({"file": path, "events": events}))?;
    } else {
        output::line(format!("{}: the ledger with {events} events, verified", path.display()));
    }
    Ok(Exit::Done)
}

async fn copy(context: &Context, file: &mut File) -> Result<i64, Failure> {
    let mut store = context.store().await?;
    let folder = Temporary::new().context("cannot create a temporary folder for the copy")?;
    let copy = folder.0.join(FILE);
    store.copy_into(&copy).await?;
    let verified = ReadStore::open(&copy).await?.verify().await;
    let (events, _) = verified.map_err(|error| Failure::from(anyhow::Error::new(error)))?;
    let written = File::open(&copy).and_then(|mut copy| io::copy(&mut copy, file)).and_then(|_| file.sync_all());
    written.context("cannot write the backup")?;
    Ok(events)
}

/// A folder that only this user can read. It is removed on drop.
pub(super) struct Temporary(pub(super) PathBuf);

impl Temporary {
    pub(super) fn new() -> io::Result<Self> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_has_64_digits() {
        assert_eq!(event_hash(&"9A".repeat(32)), Ok("9a".repeat(32)));
        for wrong in ["00".to_owned(), "9a".repeat(33), "xy".repeat(32)] {
            assert!(event_hash(&wrong).is_err(), "{wrong}");
        }
    }
}
