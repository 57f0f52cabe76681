//! Checks a request before anything is touched: the uid, the groups, the paths and the prefix.
//!
//! The server checks first, so that no worker is started for a request that is refused. The worker checks again,
//! because it does the work.

use std::path::{Component, Path, PathBuf};

use bursar_protocol::{GID_FLOOR, HomeError, HomeTarget, MAX_GROUPS, UID_FLOOR};
use serde::{Deserialize, Serialize};

/// A directory beneath which homes may be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prefix {
    /// An absolute path. It comes from the administrator, so symlinks in it are followed.
    pub path: PathBuf,
    /// Whether missing homes may be made here. Must be false for an export that squashes root.
    pub allow_create: bool,
}

/// The limits for requests. The server checks them first, and then the worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bounds {
    pub prefixes: Vec<Prefix>,
    /// A folder whose files are copied into a new home.
    pub skeleton: Option<PathBuf>,
    /// The kubeconfigs that may be written, relative to a home. If the client could choose any file, it could write a
    /// `.bash_profile`.
    pub kubeconfigs: Vec<PathBuf>,
    /// Names of clusters and contexts of a former system. Entries with these names count as ours.
    pub take_over: Vec<String>,
    /// Whether SSH keys may be written. If so, the client can log in as any user on every host with these homes.
    pub ssh_keys: bool,
    /// Former mount points. The daemon's record of a mount at or beneath one does not count.
    pub former_mounts: Vec<PathBuf>,
}

impl Bounds {
    /// Checks a target and returns its prefix. If prefixes lie within each other, the longest counts.
    ///
    /// Checks only the text of the request. The worker must check that no symlink leads elsewhere and that the home
    /// belongs to the user.
    pub fn admit<'a>(&'a self, target: &HomeTarget) -> Result<&'a Prefix, HomeError> {
        if !(UID_FLOOR..=i32::MAX as u32).contains(&target.uid) {
            return Err(HomeError::UidTooLow { uid: target.uid, least: UID_FLOOR });
        }
        let is_admitted = |gid: &u32| (GID_FLOOR..=i32::MAX as u32).contains(gid);
        if let Some(gid) = std::iter::once(&target.gid).chain(&target.groups).find(|gid| !is_admitted(gid)) {
            return Err(HomeError::GidTooLow { gid: *gid, least: GID_FLOOR });
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

    /// Checks that root allows the kubeconfig of a target. Only for requests that use it; a probe of an export and a
    /// directory of a volume have none.
    pub fn admit_file(&self, target: &HomeTarget) -> Result<(), HomeError> {
        if self.kubeconfigs.contains(&target.kubeconfig) {
            return Ok(());
        }
        Err(HomeError::PathNotAllowed { path: target.kubeconfig.clone() })
    }

    /// Whether root listed a former mount point that contains the target's recorded mount or, without a record, its
    /// home.
    #[must_use]
    pub fn is_former(&self, target: &HomeTarget) -> bool {
        let place = target.mount.as_ref().unwrap_or(&target.home);
        self.former_mounts.iter().any(|former| place.starts_with(former))
    }
}

fn has_control_characters(path: &Path) -> bool {
    path.to_string_lossy().chars().any(char::is_control)
}

/// Whether a path consists of one or more names: it is not absolute, has no `..` and no NUL, and is not too long.
pub(crate) fn is_plain_relative(path: &Path) -> bool {
    let text = path.as_os_str().as_encoded_bytes();
    text.len() < 4096
        && !text.contains(&0)
        && path.file_name().is_some()
        && path.components().all(|component| matches!(component, Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use bursar_protocol::USUAL_KUBECONFIG;

    use super::*;

    fn bounds() -> Bounds {
        Bounds {
            prefixes: vec![
                Prefix { path: "/home".into(), allow_create: false },
                Prefix { path: "/home/tools".into(), allow_create: true },
            ],
            skeleton: None,
            kubeconfigs: vec![PathBuf::from(USUAL_KUBECONFIG)],
            take_over: Vec::new(),
            ssh_keys: false,
            former_mounts: Vec::new(),
        }
    }

    #[test]
    fn longest_prefix_wins() {
        let bounds = bounds();
        assert!(
            bounds
                .admit(&HomeTarget::new("/home/tools/foo", 52503, 52503))
                .expect("the home is beneath a prefix")
                .allow_create
        );
        assert!(
            !bounds
                .admit(&HomeTarget::new("/home/alice", 52503, 52503))
                .expect("the home is beneath a prefix")
                .allow_create
        );
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
        let bounds = bounds();
        for uid in [0, 1, 999, u32::MAX, u32::MAX - 1, i32::MAX as u32 + 1] {
            let refused = bounds.admit(&HomeTarget::new("/home/a", uid, 52503)).expect_err("the uid must be refused");
            assert_eq!(refused, HomeError::UidTooLow { uid, least: 1000 });
        }
        let refused = bounds.admit(&HomeTarget::new("/home/a", 52503, 0)).expect_err("the gid must be refused");
        assert_eq!(refused, HomeError::GidTooLow { gid: 0, least: 100 });
        let target = HomeTarget { groups: vec![52503, 42], ..HomeTarget::new("/home/a", 52503, 52503) };
        assert_eq!(
            bounds.admit(&target).expect_err("the group must be refused"),
            HomeError::GidTooLow { gid: 42, least: 100 }
        );
    }

    #[test]
    fn kubeconfig_must_be_a_plain_relative_path() {
        for kubeconfig in ["/etc/passwd", "../x", ".kube/../../x", "", ".", "./a", "a/.."] {
            let target = HomeTarget { kubeconfig: kubeconfig.into(), ..HomeTarget::new("/home/a", 52503, 52503) };
            assert!(matches!(bounds().admit(&target), Err(HomeError::BadPath { .. })), "{kubeconfig}");
        }
    }

    #[test]
    fn only_a_kubeconfig_that_root_allows_is_admitted() {
        for kubeconfig in [".bash_profile", ".ssh/authorized_keys", ".kube/config2", ".kube", ".kube/config/x"] {
            let target = HomeTarget { kubeconfig: kubeconfig.into(), ..HomeTarget::new("/home/a", 52503, 52503) };
            assert_eq!(bounds().admit_file(&target), Err(HomeError::PathNotAllowed { path: kubeconfig.into() }));
        }
        let target = HomeTarget { kubeconfig: ".kube/k8s".into(), ..HomeTarget::new("/home/a", 52503, 52503) };
        assert!(Bounds { kubeconfigs: vec![".kube/k8s".into()], ..bounds() }.admit_file(&target).is_ok());
    }
}
