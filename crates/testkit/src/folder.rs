//! A temporary folder that is removed even if its process is killed.
//!
//! [`Folder`] removes the folder when it is dropped. But statics are not dropped, and a killed process drops nothing.
//! Therefore a second process, the reaper, removes the folder. It is a shell that waits for the end of its standard
//! input, a pipe whose other end only this process holds. However this process ends, the kernel then closes that end.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Servers that are killed at the same moment may still create files, so the removal is retried for 10 s.
const REAPER: &str = r#"trap '' INT TERM HUP
read -r _
for _ in $(seq 100); do rm -rf -- "$1" && exit; sleep 0.1; done"#;

/// A folder in the system's temporary folder. The folder is removed when this value is dropped or the process ends.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    reaper: Child,
}

impl Folder {
    /// Creates `bursar-NAME-XXXXXX`, readable by all, because servers and tests of other users use it. Secrets in it
    /// have their own modes.
    #[must_use]
    pub fn create(name: &str) -> Self {
        let path = tempfile::Builder::new()
            .prefix(&format!("bursar-{name}-"))
            .tempdir()
            .expect("the temporary folder is writable")
            .keep();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))
            .expect("the mode of our own folder can be set");
        let reaper = Command::new("sh")
            .args(["-c", REAPER, "reaper"])
            .arg(&path)
            // In its own process group, so that Ctrl-C in a terminal, or a test runner that kills our group, does not
            // kill the reaper.
            .process_group(0)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("`sh`, which removes the temporary folder at the end, is installed");
        Self { path, reaper }
    }

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
