//! Requests about hostile homes, one after the other, through the socket. Each home is refused with its own reason and
//! a remedy, and left unchanged; or it is harmless, and the delivery succeeds. The cases are in `hostile_cases`.
//!
//! `BURSAR_TEST_HOMES=ASKED:PLANTED` runs them outside a temporary folder: ASKED is where homed finds the homes (an
//! NFS mount whose server squashes root), PLANTED is the same folder as root of the server sees it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt};
use std::path::{Path, PathBuf};

use bursar_protocol::{Answer, HomeError, HomeTarget, Work};

use super::hostile_cases::{CASES, Expect};
use super::{Homed, UID, entries, make_directory, parses, write};

/// A hostile home, and the folders around it.
pub struct Plot {
    /// The home, as root of the file server sees it.
    pub home: PathBuf,
    /// A folder of another account, next to the homes.
    pub outside: PathBuf,
    /// The target of the requests. A case may change it.
    pub target: HomeTarget,
}

impl Plot {
    /// Returns `.kube`, and makes it as its user would if it does not exist.
    pub fn kube(&self) -> PathBuf {
        let kube = self.home.join(".kube");
        if !kube.exists() {
            make_directory(&kube, UID);
        }
        kube
    }

    /// Returns `.kube/config`, and makes `.kube` if it does not exist.
    pub fn config(&self) -> PathBuf {
        self.kube().join("config")
    }
}

/// The folder of the homes: its path in requests to homed, and the path at which the tests fill it.
struct Ground {
    asked: PathBuf,
    planted: PathBuf,
}

impl Ground {
    fn of(homed: &Homed) -> Self {
        let local = homed.folder.path().join("homes");
        match std::env::var("BURSAR_TEST_HOMES") {
            Err(_) => Self { asked: local.clone(), planted: local },
            Ok(places) => {
                let (asked, planted) = places.split_once(':').expect("BURSAR_TEST_HOMES is ASKED:PLANTED");
                Self { asked: asked.into(), planted: planted.into() }
            }
        }
    }

    fn plot(&self, name: &str) -> Plot {
        let around = self.planted.join(name);
        fs::create_dir(&around).expect("the parent folder is writable");
        fs::set_permissions(&around, PermissionsExt::from_mode(0o755))
            .expect("tests run as root, who may change modes");
        let (home, outside) = (around.join("home"), around.join("outside"));
        make_directory(&home, UID);
        make_directory(&outside, UID + 1);
        Plot { home, outside, target: HomeTarget::new(self.asked.join(name).join("home"), UID, UID) }
    }
}

/// Returns everything beneath a folder: kind, mode, owner, size, and the content of small files.
fn snapshot(folder: &Path) -> BTreeMap<PathBuf, String> {
    let mut all = BTreeMap::new();
    let mut left = vec![folder.to_owned()];
    while let Some(path) = left.pop() {
        let Ok(found) = fs::symlink_metadata(&path) else { continue };
        let kind = found.file_type();
        if kind.is_dir() {
            left.extend(fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path()));
        }
        // Makes as few system calls as possible, because each takes time if 300 files are on NFS.
        let is_small = kind.is_file() && (1..64 * 1024).contains(&found.len());
        let content = if is_small { fs::read(&path).unwrap_or_default() } else { vec![] };
        let link = kind.is_symlink().then(|| fs::read_link(&path).ok());
        let kind = (kind.is_fifo(), kind.is_socket(), link);
        let who = (found.uid(), found.gid(), found.mode(), found.nlink(), found.len());
        all.insert(path, format!("{kind:?} {who:?} {}", String::from_utf8_lossy(&content)));
    }
    all
}

#[tokio::test]
async fn hostile_homes_are_refused_with_a_reason_and_left_unchanged() {
    assert!(CASES.len() >= 60, "{} cases", CASES.len());
    let probe = Homed::start(&[]);
    let ground = Ground::of(&probe);
    let homed = Homed::start(&["--prefix", ground.asked.to_str().expect("the path is UTF-8")]);
    let mut wrong = Vec::new();
    for case in CASES {
        let mut plot = ground.plot(case.name);
        (case.plant)(&mut plot);
        let around = ground.planted.join(case.name);
        let before = snapshot(&around);
        let ours = entries("1");
        let names = ours.names();
        let looks = [
            homed.ask(&plot.target, Work::Inspect { names: names.clone() }).await,
            homed.ask(&plot.target, Work::RemoveKubeconfig { names }).await,
        ];
        for look in looks {
            if let Err(error) = look {
                check_remedy(case.name, &error, &mut wrong);
            }
        }
        // A removal deletes what a killed worker left, because that may be a key.
        if snapshot(&around) != before && !case.name.starts_with("a killed worker") {
            wrong.push(format!("{}: an inspection or a removal changed something", case.name));
        }
        match (homed.ask(&plot.target, write(ours)).await, case.expect) {
            (Err(error), Expect::Refused(reason)) if error.reason() == reason => {
                check_remedy(case.name, &error, &mut wrong);
                let after = snapshot(&around);
                if after != before {
                    wrong.push(format!("{}: changed: {before:#?} {after:#?}", case.name));
                }
            }
            (Ok(Answer::Written(_)), Expect::Written(check)) => {
                let config = plot.home.join(&plot.target.kubeconfig);
                let found = fs::symlink_metadata(&config).expect("the path exists");
                if (found.uid(), found.mode()) != (UID, 0o100_600) || !parses(&config) {
                    wrong.push(format!("{}: uid {} mode {:o}", case.name, found.uid(), found.mode()));
                }
                check(&plot);
            }
            (answer, expected) => wrong.push(format!("{}: {answer:?}, not {expected:?}", case.name)),
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), CASES.len(), wrong.join("\n"));
}

/// Checks that the reason is specific, and that the remedy is more than a few words.
fn check_remedy(case: &str, error: &HomeError, wrong: &mut Vec<String>) {
    let odd = matches!(error, HomeError::WorkerDied { .. } | HomeError::TimedOut { .. } | HomeError::Io { .. });
    let names_no_file = error.remedy().contains(".lock.lock");
    if odd || names_no_file || error.remedy().len() < 20 || error.to_string().contains(char::is_control) {
        wrong.push(format!("{case}: {error:?}: {}", error.remedy()));
    }
}
