//! A temporary folder that is removed even if the process that made it is killed.
//!
//! Dropping removes it. Statics are not dropped and a killed process drops nothing, so a reaper stands by: a shell that
//! waits for the end of its standard input, of which this process alone holds the other end, and then removes the
//! folder. The kernel closes that end however the process finishes.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Servers killed at the same moment may still create a file: try again for 10 s.
const REAPER: &str = r#"trap '' INT TERM HUP
read -r _
for _ in $(seq 100); do rm -rf -- "$1" && exit; sleep 0.1; done"#;

/// A folder below the system's temporary folder, gone when dropped or when this process ends.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    reaper: Child,
}

impl Folder {
    /// Creates `bursar-NAME-XXXXXX`, readable by all: servers and tests of other users work below it. Secrets have
    /// modes of their own.
    ///
    /// # Panics
    /// If the temporary folder is not writable or there is no `sh`.
    #[must_use]
    pub fn create(name: &str) -> Self {
        let path = tempfile::Builder::new()
            .prefix(&format!("bursar-{name}-"))
            .tempdir()
            .expect("a folder in the temporary folder")
            .keep();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("the mode of our own folder");
        let reaper = Command::new("sh")
            .args(["-c", REAPER, "reaper"])
            .arg(&path)
            // Its own group: Ctrl-C in a terminal and a runner's kill of our group must not reach it.
            .process_group(0)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("sh to remove the temporary folder in the end");
        Self { path, reaper }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(self.reaper.stdin.take());
        if let Err(error) = self.reaper.wait() {
            eprintln!("{}: the reaper was lost: {error}", self.path.display());
        }
    }
}
