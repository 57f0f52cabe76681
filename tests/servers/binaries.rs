//! Where programs and data are that scripts of the tests make once.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The folder with etcd, kube-apiserver, kube-controller-manager and kubectl. Builds them if there is no such folder
/// yet (5 to 10 minutes, once), with its progress on standard error.
///
/// # Panics
/// If they cannot be built; the reason is on standard error.
#[must_use]
pub fn control_plane() -> PathBuf {
    made_by("tests/cluster/build.sh")
}

/// The folder that a script of the sources says, which it makes if it is not there yet.
///
/// # Panics
/// If the script fails; the reason is on standard error.
#[must_use]
pub fn made_by(script: &str) -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(script);
    let output = Command::new(&script)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}", script.display()));
    assert!(output.status.success(), "{} failed ({})", script.display(), output.status);
    let folder = String::from_utf8(output.stdout).expect("a path in UTF-8");
    PathBuf::from(folder.trim_end())
}
