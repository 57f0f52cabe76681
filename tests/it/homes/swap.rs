//! Directories and links are swapped while homed writes. Homed must not write outside the home or change the owner
//! of a file.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use bursar_homed::client::MAX_CONCURRENT;
use bursar_protocol::{HomeError, HomeTarget};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::{Homed, UID, entries, make_directory, make_file, names_in, soak, write};

/// Swaps two names again and again, for each pair in turn.
struct Swapper {
    stop: Arc<AtomicBool>,
    swaps: Arc<AtomicU32>,
    thread: JoinHandle<()>,
}

impl Swapper {
    fn start(pairs: Vec<(PathBuf, PathBuf)>) -> Self {
        let (stop, swaps) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
        let thread = std::thread::spawn({
            let (stop, swaps) = (stop.clone(), swaps.clone());
            move || {
                while !stop.load(Ordering::Relaxed) {
                    for (one, other) in &pairs {
                        // A name may be missing for a moment, because homed renames files too.
                        if renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).is_ok() {
                            swaps.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    std::thread::sleep(Duration::from_micros(50));
                }
            }
        });
        Self { stop, swaps, thread }
    }

    fn end(self) -> u32 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the thread does not panic");
        self.swaps.load(Ordering::Relaxed)
    }
}

/// Returns every file and folder beneath a folder. Links are not followed.
fn beneath(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = vec![folder.to_owned()];
    while let Some(path) = left.pop() {
        if fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir()) {
            left.extend(
                fs::read_dir(&path)
                    .expect("the folder is readable")
                    .map(|entry| entry.expect("the folder is readable").path()),
            );
        }
        found.push(path);
    }
    found
}

#[tokio::test]
async fn homed_does_not_follow_a_directory_that_becomes_a_symlink() {
    let server = Homed::start(&[]);
    let target = server.home("foo");
    let outside = server.folder.path().join("outside");
    make_directory(&outside, UID);
    make_file(&outside.join("config"), UID, b"theirs: 1\n");
    make_directory(&target.home.join(".kube"), UID);
    symlink(&outside, target.home.join("link")).expect("the folder is writable");
    let swapper = Swapper::start(vec![(target.home.join(".kube"), target.home.join("link"))]);
    let both = [entries("1"), entries("2")];
    let (mut written, mut refused, mut round) = (0, 0, 0);
    while round < 500 || (round < 50_000 && (written <= 20 || refused <= 20)) {
        round += 1;
        match server.ask(&target, write(both[round % 2].clone())).await {
            Ok(_) => written += 1,
            Err(HomeError::Symlink { .. } | HomeError::NotADirectory { .. }) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    let swaps = swapper.end();
    assert!(written > 20 && refused > 20, "{written} written, {refused} refused, {swaps} swaps");
    assert_eq!(names_in(&outside), ["config"]);
    assert_eq!(fs::read(outside.join("config")).expect("the file is readable"), b"theirs: 1\n");
}

/// Folders, files and whole homes are swapped with links to a victim's, while homed writes into as many homes in
/// parallel as it does in production. The attacker also owns the folder that contains the homes.
#[tokio::test]
async fn no_write_escapes_the_home_or_changes_owner_while_paths_are_swapped() {
    let server = Homed::start(&[]);
    let shared = server.folder.path().join("homes/shared");
    make_directory(&shared, UID + 9);
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    fs::set_permissions(&shared, open).expect("tests run as root, who may change modes");
    let victim = shared.join("victim");
    make_directory(&victim, UID + 1);
    make_directory(&victim.join(".kube"), UID + 1);
    make_file(&victim.join(".kube/config"), UID + 1, b"theirs: 1\n");
    let homes: Vec<PathBuf> = (0..MAX_CONCURRENT).map(|number| shared.join(format!("h{number}"))).collect();
    for home in &homes {
        make_directory(home, UID);
        make_directory(&home.join(".kube"), UID);
        make_directory(&home.join("other"), UID);
        symlink(victim.join(".kube"), home.join("link")).expect("the folder is writable");
        symlink(victim.join(".kube/config"), home.join(".kube/link")).expect("the folder is writable");
        make_file(&home.join(".kube/config"), UID, b"");
        fs::hard_link(victim.join(".kube/config"), home.join(".kube/hard")).expect("the folder is writable");
    }
    symlink(&victim, shared.join("link")).expect("the folder is writable");
    let mut pairs: Vec<_> = homes
        .iter()
        .flat_map(|home| {
            let kube = home.join(".kube");
            [
                (kube.clone(), home.join("link")),
                (kube.join("config"), kube.join("link")),
                (kube.join("config"), kube.join("hard")),
                (kube, home.join("other")),
            ]
        })
        .collect();
    pairs.push((homes[0].clone(), shared.join("link")));
    pairs.push((homes[1].clone(), victim.clone()));
    let swapper = Swapper::start(pairs);

    let both = [entries("1"), entries("2")];
    let writer = async |home: &Path| {
        let target = HomeTarget::new(home, UID, UID);
        let (mut written, mut refused, mut round) = (0, 0, 0);
        let rounds = soak(1_600, 20_000) / MAX_CONCURRENT;
        while round < rounds || (round < 100 * rounds && (written <= 5 || refused <= 5)) {
            round += 1;
            match server.ask(&target, write(both[round % 2].clone())).await {
                Ok(_) => written += 1,
                Err(
                    HomeError::Symlink { .. }
                    | HomeError::WrongOwner { .. }
                    | HomeError::NotADirectory { .. }
                    | HomeError::MissingHome { .. }
                    | HomeError::AccessDenied { .. }
                    // ENOENT: a name disappeared between two steps.
                    | HomeError::Io { errno: 2, .. },
                ) => refused += 1,
                Err(error) => panic!("{error:?}"),
            }
        }
        (written, refused)
    };
    let counts = futures::future::join_all(homes.iter().map(|home| writer(home))).await;
    let swaps = swapper.end();
    for &(written, refused) in &counts {
        assert!(written > 5 && refused > 5, "{counts:?}, {swaps} swaps");
    }

    let mut owners = Vec::new();
    for path in beneath(server.folder.path()) {
        let found = fs::symlink_metadata(&path).expect("the file exists");
        let content = if found.is_file() { fs::read(&path).expect("the file is readable") } else { Vec::new() };
        if String::from_utf8_lossy(&content).contains("bursar-toolforge") {
            owners.push((found.uid(), found.mode() & 0o7777));
        }
        if found.uid() == UID + 1 && found.is_file() {
            assert_eq!(content, b"theirs: 1\n", "{}", path.display());
        }
    }
    assert!(!owners.is_empty() && owners.iter().all(|owner| *owner == (UID, 0o600)), "{owners:?}");
    // The victim's folder, wherever it is now, must be unchanged.
    let victims = beneath(&shared).into_iter().filter(|path| {
        fs::symlink_metadata(path).is_ok_and(|found| found.uid() == UID + 1 && found.is_dir())
            && path.ends_with(".kube")
    });
    for folder in victims {
        assert_eq!(names_in(&folder), ["config"], "{}", folder.display());
    }
}
