//! What a request is held against before anything is touched: whose home, as whom, beneath which prefix. Pure.
//!
//! The server asks first, so that nothing is started in vain; the worker asks again, as it is the one that acts.

use std::path::{Component, Path, PathBuf};

use bursar_protocol::{GID_FLOOR, HomeError, HomeTarget, MAX_GROUPS, UID_FLOOR, USUAL_KUBECONFIG};
use serde::{Deserialize, Serialize};

/// Where homes may be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prefix {
    /// Absolute path; homes lie beneath it. It is the administrator's: symlinks in it are followed.
    pub path: PathBuf,
    /// Homes may be made here. Never on an export that squashes root.
    pub allow_create: bool,
}

/// What a request is held against, in the server and again in the worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bounds {
    /// Where homes may be.
    pub prefixes: Vec<Prefix>,
    /// Smallest uid [1000]: below are root and the system's own.
    pub uid_min: u32,
    /// Smallest gid [100], also of supplementary groups: below are `disk`, `shadow`, `sudo` and the like.
    pub gid_min: u32,
    /// What a new home is filled with.
    pub skeleton: Option<PathBuf>,
    /// The files that may be written, relative to a home. A caller who could choose them could write a `.bash_profile`.
    pub kubeconfigs: Vec<PathBuf>,
    /// Names of clusters and contexts that count as ours no matter who wrote them: those of a former system.
    pub take_over: Vec<String>,
    /// SSH keys may be written: a caller may then become anybody on every host with these homes.
    #[serde(default)]
    pub ssh_keys: bool,
}

impl Bounds {
    /// These prefixes, the usual lower ends.
    #[must_use]
    pub fn new(prefixes: Vec<Prefix>) -> Self {
        Self {
            prefixes,
            uid_min: UID_FLOOR,
            gid_min: GID_FLOOR,
            skeleton: None,
            kubeconfigs: vec![PathBuf::from(USUAL_KUBECONFIG)],
            take_over: Vec::new(),
            ssh_keys: false,
        }
    }

    /// The prefix of a target that may be touched; the longest, if prefixes lie within each other.
    ///
    /// Looks at the words of the request only; that no symlink leads elsewhere and that the home is the user's is
    /// for the worker to see.
    pub fn admit<'a>(&'a self, target: &HomeTarget) -> Result<&'a Prefix, HomeError> {
        let uid_min = self.uid_min.max(UID_FLOOR);
        let gid_min = self.gid_min.max(GID_FLOOR);
        if target.uid < uid_min || target.uid > i32::MAX as u32 {
            return Err(HomeError::UidTooLow { uid: target.uid, least: uid_min });
        }
        if let Some(gid) =
            std::iter::once(&target.gid).chain(&target.groups).find(|gid| **gid < gid_min || **gid > i32::MAX as u32)
        {
            return Err(HomeError::GidTooLow { gid: *gid, least: gid_min });
        }
        if target.groups.len() > MAX_GROUPS {
            return Err(HomeError::BadRequest { detail: format!("more than {MAX_GROUPS} groups") });
        }
        let bad = |path: &Path, detail: &str| HomeError::BadPath { path: path.to_owned(), detail: detail.to_owned() };
        if has_control_characters(&target.home) {
            return Err(bad(&target.home, "it has a control character"));
        }
        if !is_plain_relative(&target.kubeconfig) || has_control_characters(&target.kubeconfig) {
            return Err(bad(&target.kubeconfig, "the kubeconfig is not a plain path relative to the home"));
        }
        self.prefixes
            .iter()
            .filter(|prefix| {
                target.home.is_absolute() && target.home.strip_prefix(&prefix.path).is_ok_and(is_plain_relative)
            })
            .max_by_key(|prefix| prefix.path.components().count())
            .ok_or_else(|| HomeError::NotBeneathPrefix { home: target.home.clone() })
    }
}

impl Bounds {
    /// Whether the kubeconfig of a target is one that root named. Asked for works that look at it; a probe of an export
    /// or a directory of a volume has none.
    pub fn admit_file(&self, target: &HomeTarget) -> Result<(), HomeError> {
        if self.kubeconfigs.contains(&target.kubeconfig) {
            return Ok(());
        }
        Err(HomeError::PathNotAllowed { path: target.kubeconfig.clone() })
    }
}

fn has_control_characters(path: &Path) -> bool {
    path.to_string_lossy().chars().any(char::is_control)
}

/// At least one component, and only names: no root, no `..`, no NUL, nothing longer than a path may be.
pub(crate) fn is_plain_relative(path: &Path) -> bool {
    let text = path.as_os_str().as_encoded_bytes();
    text.len() < 4096
        && !text.contains(&0)
        && path.file_name().is_some()
        && path.components().all(|component| matches!(component, Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds() -> Bounds {
        Bounds::new(vec![
            Prefix { path: "/home".into(), allow_create: false },
            Prefix { path: "/home/tools".into(), allow_create: true },
        ])
    }

    #[test]
    fn longest_prefix_wins() {
        let bounds = bounds();
        assert!(bounds.admit(&HomeTarget::new("/home/tools/foo", 52503, 52503)).expect("beneath").allow_create);
        assert!(!bounds.admit(&HomeTarget::new("/home/alice", 52503, 52503)).expect("beneath").allow_create);
    }

    #[test]
    fn only_paths_beneath_a_prefix_are_admitted() {
        for home in [
            "/srv/foo",
            "/home",
            "/home/",
            "/homes/foo",
            "home/foo",
            "",
            "/home/../etc",
            "/home/a/../../etc",
            "/home/a/..",
            "/",
        ] {
            let refused = bounds().admit(&HomeTarget::new(home, 52503, 52503)).expect_err(home);
            assert!(matches!(refused, HomeError::NotBeneathPrefix { .. }), "{home}: {refused:?}");
        }
    }

    #[test]
    fn system_uids_and_gids_are_never_admitted() {
        let lax = Bounds { uid_min: 0, gid_min: 0, ..bounds() };
        for uid in [0, 1, 999, u32::MAX, u32::MAX - 1, i32::MAX as u32 + 1] {
            let refused = lax.admit(&HomeTarget::new("/home/a", uid, 52503)).expect_err("uid");
            assert_eq!(refused, HomeError::UidTooLow { uid, least: 1000 });
        }
        let refused = lax.admit(&HomeTarget::new("/home/a", 52503, 0)).expect_err("gid");
        assert_eq!(refused, HomeError::GidTooLow { gid: 0, least: 100 });
        let target = HomeTarget { groups: vec![52503, 42], ..HomeTarget::new("/home/a", 52503, 52503) };
        assert_eq!(lax.admit(&target).expect_err("group"), HomeError::GidTooLow { gid: 42, least: 100 });
    }

    #[test]
    fn kubeconfig_must_be_a_plain_relative_path() {
        for kubeconfig in ["/etc/passwd", "../x", ".kube/../../x", "", ".", "./a", "a/.."] {
            let target = HomeTarget { kubeconfig: kubeconfig.into(), ..HomeTarget::new("/home/a", 52503, 52503) };
            assert!(matches!(bounds().admit(&target), Err(HomeError::BadPath { .. })), "{kubeconfig}");
        }
    }

    #[test]
    fn only_a_kubeconfig_that_root_named_is_admitted() {
        for kubeconfig in [".bash_profile", ".ssh/authorized_keys", ".kube/config2", ".kube", ".kube/config/x"] {
            let target = HomeTarget { kubeconfig: kubeconfig.into(), ..HomeTarget::new("/home/a", 52503, 52503) };
            assert_eq!(bounds().admit_file(&target), Err(HomeError::PathNotAllowed { path: kubeconfig.into() }));
        }
        let target = HomeTarget { kubeconfig: ".kube/k8s".into(), ..HomeTarget::new("/home/a", 52503, 52503) };
        assert!(Bounds { kubeconfigs: vec![".kube/k8s".into()], ..bounds() }.admit_file(&target).is_ok());
    }
}
