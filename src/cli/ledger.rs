//! `bursar ledger verify|backup`: verifies the history, and copies the ledger into a file.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::Context as _;
use serde_json::json;

use super::context::Context;
use super::exit::{Exit, Failure};
use super::output;
use crate::store::{FILE, ReadStore, Temporary};

/// Verifies the history. `told` is the hash of an event that must be in it.
pub(super) async fn verify(context: &Context, told: Option<String>) -> Result<Exit, Failure> {
    let mut store = context.store_as_it_is().await?;
    let progress = output::progress("checking the history");
    let checked = store.verify().await;
    progress.finish_and_clear();
    let (last, hash) = checked?;
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

/// Copies the ledger into a new file. The copy is first made and verified in a temporary folder, because user `bursar`
/// reads the ledger, and the caller writes the file. The file gets its name only when it is complete.
pub(super) async fn backup(context: &Context, path: &Path) -> Result<Exit, Failure> {
    let failed =
        |error: &io::Error, remedy: &str| Failure::new(Exit::Failed, format!("{}: {error}; {remedy}", path.display()));
    if path.symlink_metadata().is_ok() {
        let error = io::Error::from(io::ErrorKind::AlreadyExists);
        return Err(failed(&error, "name a file that does not exist; a backup never replaces a file"));
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let beside = path.with_file_name(format!(".{name}.new"));
    // A killed run may have left it.
    let _ = fs::remove_file(&beside);
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside);
    let mut file = file.map_err(|error| failed(&error, "name a file in a folder in which you may write"))?;
    let progress = output::progress("copying the ledger");
    let copied = copy(context, &mut file).await.and_then(|events| {
        fs::rename(&beside, path).map_err(|error| failed(&error, "name another file"))?;
        Ok(events)
    });
    progress.finish_and_clear();
    let events = copied.inspect_err(|_| {
        // An incomplete backup is useless. If it cannot be removed now, the next backup to this name removes it.
        let _ = fs::remove_file(&beside);
    })?;
    if context.global.json {
        output::json(&json!({"file": path, "events": events}))?;
    } else {
        output::line(format!("{}: the ledger with {events} events, verified", path.display()));
    }
    Ok(Exit::Done)
}

async fn copy(context: &Context, file: &mut File) -> Result<i64, Failure> {
    let copied = async {
        let mut store = context.store_as_it_is().await?;
        let folder = Temporary::new().with_context(Temporary::remedy)?;
        let copy = folder.0.join(FILE);
        store.copy_into(&copy).await?;
        let (events, _) = ReadStore::open(&copy).await?.verify().await?;
        Ok::<_, Failure>((folder, copy, events))
    };
    let (_folder, copy, events) = context.reading(copied).await?;
    let written = File::open(&copy).and_then(|mut copy| io::copy(&mut copy, file)).and_then(|_| file.sync_all());
    written.context("cannot write the backup")?;
    Ok(events)
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
