//! Finds the programs and data that tests need: our own programs, and the servers and data that scripts of the tests
//! build once.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

/// The root folder of the workspace.
#[must_use]
pub fn sources() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/testkit is two folders deep")
}

/// The folder with etcd, kube-apiserver, kube-controller-manager and kubectl. If it does not exist, the programs are
/// built (5 to 10 minutes, once) with progress on standard error.
#[must_use]
pub fn control_plane() -> PathBuf {
    made_by("tests/cluster/build.sh")
}

/// Runs a script of the sources, which creates a folder unless it exists, and returns the folder that the script
/// prints.
#[must_use]
pub fn made_by(script: &str) -> PathBuf {
    let script = sources().join(script);
    let output = Command::new(&script)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}", script.display()));
    assert!(output.status.success(), "{} failed ({})", script.display(), output.status);
    let folder = String::from_utf8(output.stdout).expect("the path is UTF-8");
    PathBuf::from(folder.trim_end())
}

/// Returns the path of a program of this workspace, in the build of the running test, example or benchmark. Cargo
/// passes this path (`CARGO_BIN_EXE_…`) only to tests of the program's own package, and builds the program only for
/// such tests. If `BURSAR_TEST_PROGRAMS` is set, programs are taken from that folder unchecked, for hosts without the
/// sources.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    if let Some(folder) = std::env::var_os("BURSAR_TEST_PROGRAMS") {
        return Path::new(&folder).join(name);
    }
    let own = std::env::current_exe().expect("the path of this program is known");
    // target/debug/deps/it-…, target/debug/examples/demo
    let built = own.parent().and_then(Path::parent).expect("the program is in one of Cargo's folders").join(name);
    match up_to_date(&built, &files_of(&package_of(name))) {
        Ok(()) => built,
        Err(reason) => panic!("{reason}; build it with `{}`", command(&built, name)),
    }
}

/// Returns the command that builds the program. Benchmarks use folder `release`, into which profile `bench` builds.
fn command(built: &Path, name: &str) -> String {
    let is_figure = built.parent().is_some_and(|folder| folder.ends_with("release"));
    format!("cargo build --workspace{} --bin {name}", if is_figure { " --profile bench" } else { "" })
}

/// Fails if a source is newer than the program.
fn up_to_date(built: &Path, sources: &[PathBuf]) -> Result<(), String> {
    let changed = |path: &Path| {
        let at = std::fs::metadata(path).and_then(|metadata| metadata.modified());
        at.map_err(|error| format!("{}: {error}", path.display()))
    };
    let made: SystemTime = changed(built)?;
    for source in sources {
        if changed(source)? > made {
            return Err(format!("{} is older than {}", built.display(), source.display()));
        }
    }
    Ok(())
}

/// Returns the folder of the package that contains a program: `crates/homed` for `bursar-homed`.
fn package_of(name: &str) -> PathBuf {
    let member = name.strip_prefix("bursar-").map(|name| sources().join("crates").join(name));
    member.filter(|folder| folder.exists()).unwrap_or_else(|| sources().to_owned())
}

/// Returns the source files of a package and of those of our crates that the package depends on. Files of tests are
/// left out, because they are not part of programs. Cargo writes no list of source files for programs that it builds
/// for a test.
fn files_of(package: &Path) -> Vec<PathBuf> {
    let (mut packages, mut found) = (vec![package.to_owned()], Vec::new());
    let mut at = 0;
    while let Some(folder) = packages.get(at).cloned() {
        let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap_or_default();
        let dependencies = manifest.lines().skip_while(|line| *line != "[dependencies]").skip(1);
        let ours =
            dependencies.take_while(|line| !line.starts_with('[')).filter_map(|line| line.strip_prefix("bursar-"));
        for name in ours.filter_map(|line| line.split(['.', ' ']).next()) {
            let other = sources().join("crates").join(name);
            if !packages.contains(&other) {
                packages.push(other);
            }
        }
        rust_files(&folder.join("src"), &mut found);
        at += 1;
    }
    found
}

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_name().to_string_lossy().contains("test") {
            continue;
        }
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, write};
    use std::time::Duration;

    use super::*;
    use crate::folder::Folder;

    #[test]
    fn a_program_that_is_older_than_a_source_is_stale() {
        let folder = Folder::create("programs");
        let (built, source) = (folder.path().join("tool"), folder.path().join("a file.rs"));
        let sources = [source.clone()];
        let missing = up_to_date(&built, &sources);
        assert!(missing.is_err_and(|reason| reason.contains("tool: No such file")), "the program does not exist");
        write(&source, "").expect("the folder is writable");
        write(&built, "").expect("the folder is writable");
        assert_eq!(up_to_date(&built, &sources), Ok(()));
        let later = std::fs::metadata(&built)
            .and_then(|metadata| metadata.modified())
            .expect("the program has a modification time");
        let file = File::options().write(true).open(&source).expect("the source exists");
        file.set_modified(later + Duration::from_secs(1)).expect("the modification time can be set");
        let stale = up_to_date(&built, &sources);
        assert!(stale.is_err_and(|reason| reason.contains("is older than")), "the source has changed since");
    }

    #[test]
    fn a_program_is_built_from_its_package_and_our_crates_that_it_needs() {
        let files = files_of(&package_of("bursar-homed"));
        let has = |file: &str| files.contains(&sources().join("crates").join(file));
        assert!(has("homed/src/main.rs") && has("homed/src/server.rs") && has("protocol/src/lib.rs"), "{files:?}");
        assert!(!has("homed/src/kubeconfig_tests.rs") && !has("homed/tests/start.rs"), "{files:?}");
        assert!(files_of(&package_of("bursard")).contains(&sources().join("src/bin/bursard.rs")));
    }
}
