//! Finds readers that hold the ledger for so long that its WAL grows: SQLite moves pages from the WAL into the file
//! only up to the point where the oldest reader began. Such readers are reported, not ended.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use nix::unistd::{Uid, User};

use super::{FILE, with};

/// The length in bytes from which a WAL counts as grown. SQLite empties the WAL at 4 MB unless a reader holds it, so a
/// WAL that is longer than this was held by a reader.
const LONG: u64 = 64 << 20;

/// The bytes of the `-shm` file that readers lock (sqlite.org/walformat.html, `WAL_READ_LOCK`).
const READ_LOCKS: std::ops::RangeInclusive<u64> = 123..=127;

/// Returns the length of a WAL that has grown, in MiB, and the processes that read now (`sqlite3 (pid 4711, alice)`);
/// `None` if the WAL is short or no process reads.
#[must_use]
pub fn holding_the_wal(state_dir: &Path) -> Option<(u64, Vec<String>)> {
    let length = fs::metadata(with(&state_dir.join(FILE), "-wal")).ok()?.len();
    let readers = if length > LONG { readers(state_dir) } else { Vec::new() };
    (!readers.is_empty()).then_some((length >> 20, readers))
}

/// Other processes that read now, from `/proc/locks` (`1: POSIX  ADVISORY  READ 4711 fe:00:5440033 124 124`).
fn readers(state_dir: &Path) -> Vec<String> {
    let Ok(index) = fs::metadata(with(&state_dir.join(FILE), "-shm")) else { return Vec::new() };
    let of_the_ledger = format!(":{}", index.ino());
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let holder = |line: &str| -> Option<u32> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "POSIX", _, "READ", pid, file, first, _] = words[..] else { return None };
        let is_read = file.ends_with(&of_the_ledger) && READ_LOCKS.contains(&first.parse().ok()?);
        pid.parse().ok().filter(|pid| is_read && *pid != std::process::id())
    };
    let pids: std::collections::BTreeSet<u32> = locks.lines().filter_map(holder).collect();
    pids.into_iter().map(named).collect()
}

fn named(pid: u32) -> String {
    let folder = format!("/proc/{pid}");
    let program = fs::read_to_string(format!("{folder}/comm")).unwrap_or_default();
    let uid = fs::metadata(&folder).map(|process| Uid::from_raw(process.uid())).ok();
    let user = uid.map(|uid| User::from_uid(uid).ok().flatten().map_or_else(|| uid.to_string(), |user| user.name));
    format!("{} (pid {pid}, {})", program.trim(), user.unwrap_or_default())
}
