//! Where programs and data are: our own, and what scripts of the tests make once.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

/// The folder of the sources: of the whole workspace.
///
/// # Panics
/// Not at all: this crate is in `crates/testkit`.
#[must_use]
pub fn sources() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/testkit is two folders deep")
}

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
    let script = sources().join(script);
    let output = Command::new(&script)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}", script.display()));
    assert!(output.status.success(), "{} failed ({})", script.display(), output.status);
    let folder = String::from_utf8(output.stdout).expect("a path in UTF-8");
    PathBuf::from(folder.trim_end())
}

/// A program of this workspace, as it was built for the test, example or benchmark that runs. Cargo tells the path of a
/// program (`CARGO_BIN_EXE_…`) only to tests of the program's own package, and builds it only for those.
/// `BURSAR_TEST_PROGRAMS` is a folder whose programs are taken as they are, where there are no sources.
///
/// # Panics
/// If it is not built, or was built from older sources than those that are here: with the command that builds it.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    if let Some(folder) = std::env::var_os("BURSAR_TEST_PROGRAMS") {
        return Path::new(&folder).join(name);
    }
    let own = std::env::current_exe().expect("the path of this program");
    // target/debug/deps/it-…, target/debug/examples/demo
    let built = own.parent().and_then(Path::parent).expect("it is in a folder of cargo's").join(name);
    match up_to_date(&built) {
        Ok(()) => built,
        Err(reason) => panic!("{reason}; build it with `{}`", command(&built, name)),
    }
}

/// The figures' programs are in the folder of the profile `release`, and are not built by it.
fn command(built: &Path, name: &str) -> String {
    let is_figure = built.parent().is_some_and(|folder| folder.ends_with("release"));
    format!("cargo build --workspace{} --bin {name}", if is_figure { " --profile bench" } else { "" })
}

/// Compares a program with the sources that it was made of. Cargo writes their names beside it, those of our other
/// crates among them.
fn up_to_date(built: &Path) -> Result<(), String> {
    let changed = |path: &Path| std::fs::metadata(path).and_then(|metadata| metadata.modified());
    let made = changed(built).map_err(|error| format!("{}: {error}", built.display()))?;
    let list = built.with_extension("d");
    let text = std::fs::read_to_string(&list).map_err(|error| format!("{}: {error}", list.display()))?;
    for source in listed(&text) {
        let at: SystemTime = changed(&source).map_err(|error| format!("{}: {error}", source.display()))?;
        if at > made {
            return Err(format!("{} is older than {}", built.display(), source.display()));
        }
    }
    Ok(())
}

/// The files of a list in the manner of make: `TARGET: FILE FILE…`, where a blank in a name has a backslash before it.
fn listed(text: &str) -> Vec<PathBuf> {
    let files = text.lines().next().and_then(|line| line.split_once(": ")).map_or("", |(_, files)| files);
    let mut found = vec![String::new()];
    let mut rest = files.chars();
    while let Some(character) = rest.next() {
        match (character, found.last_mut()) {
            ('\\', Some(name)) => name.extend(rest.next()),
            (' ', _) => found.push(String::new()),
            (_, Some(name)) => name.push(character),
            (_, None) => {}
        }
    }
    found.into_iter().filter(|name| !name.is_empty()).map(PathBuf::from).collect()
}

#[cfg(test)]
mod tests {
    use std::fs::{File, write};
    use std::time::Duration;

    use super::*;
    use crate::folder::Folder;

    #[test]
    fn program_that_is_older_than_a_source_is_stale() {
        let folder = Folder::create("programs");
        let (built, source) = (folder.path().join("tool"), folder.path().join("a file.rs"));
        assert!(up_to_date(&built).is_err_and(|reason| reason.contains("tool: No such file")), "there is none");
        write(&source, "").expect("a source");
        write(&built, "").expect("a program");
        let list = format!("{}: {}\n", built.display(), source.display().to_string().replace(' ', "\\ "));
        write(folder.path().join("tool.d"), list).expect("its list");
        assert_eq!(up_to_date(&built), Ok(()));
        let later = std::fs::metadata(&built).and_then(|metadata| metadata.modified()).expect("its time");
        let file = File::options().write(true).open(&source).expect("the source");
        file.set_modified(later + Duration::from_secs(1)).expect("a later change");
        assert!(
            up_to_date(&built).is_err_and(|reason| reason.contains("is older than")),
            "the source has changed since"
        );
        std::fs::remove_file(&source).expect("it goes");
        assert!(up_to_date(&built).is_err(), "a source is gone");
    }
}
