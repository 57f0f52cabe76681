//! The only part of Bursar that writes in homes: the requests that `bursar-homed` obeys, and their answers.
//!
//! A request is one line of JSON over a Unix stream socket, an answer is one line of JSON. The list of requests is
//! closed: there is no "write this file", only "make our entries be in the kubeconfig of this home". The daemon asks
//! ([`client`]); the server ([`server`]) checks who asks and starts a child ([`worker`]) which becomes the owner of
//! the home and only then touches a file ([`files`]). The merge ([`kubeconfig`]) happens in that child, so that a
//! user's other credentials never reach the server or the daemon.
//!
//! Here are types only: no file, no socket, no clock.

pub mod arguments;
pub mod breaker;
pub mod client;
pub mod document;
mod ensure;
mod error;
pub mod files;
mod keypair;
pub mod kubeconfig;
mod secret;
pub mod server;
pub mod worker;

use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use error::HomeError;
pub use secret::SecretText;

/// Version of requests and answers. Server and client come from one package, but a daemon that was not restarted
/// after an upgrade may speak the older one; it is then told so instead of being misread.
pub const PROTOCOL_VERSION: u32 = 1;

/// Longest request line, in bytes. A CA bundle of a hundred certificates, key and certificate for a handful of
/// endpoints stay below it; a larger one is an error of ours or an attack on the memory of a root process.
pub const MAX_REQUEST_BYTES: usize = 512 * 1024;

/// Longest answer line, in bytes: an answer carries at most one certificate and some names.
pub const MAX_ANSWER_BYTES: usize = 256 * 1024;

/// Whose home, and which file in it. Every request carries it and every request is checked against it again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HomeTarget {
    /// Absolute path of the home, beneath a configured prefix.
    pub home: PathBuf,
    /// The uid that owns the home and that the work is done as; at least 1000.
    pub uid: u32,
    /// Primary gid, at least 100.
    pub gid: u32,
    /// Supplementary gids, each at least 100, at most [`MAX_GROUPS`].
    #[serde(default)]
    pub groups: Vec<u32>,
    /// The kubeconfig, relative to the home, e.g. `.kube/config`.
    pub kubeconfig: PathBuf,
}

/// Most supplementary groups of a request; NFS with `sec=sys` carries only 16 of them to the server anyway, the rest
/// is for local file systems.
pub const MAX_GROUPS: usize = 1024;

impl HomeTarget {
    /// A target with the usual file, `.kube/config`, and no supplementary groups.
    #[must_use]
    pub fn new(home: impl Into<PathBuf>, uid: u32, gid: u32) -> Self {
        Self { home: home.into(), uid, gid, groups: Vec::new(), kubeconfig: PathBuf::from(".kube/config") }
    }
}

/// One request: what to do in which home.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// [`PROTOCOL_VERSION`] of the sender.
    pub version: u32,
    /// Whose home.
    pub target: HomeTarget,
    /// What to do there.
    pub work: Work,
}

impl Request {
    /// A request of this version.
    #[must_use]
    pub fn new(target: HomeTarget, work: Work) -> Self {
        Self { version: PROTOCOL_VERSION, target, work }
    }
}

/// The closed list of what can be asked. It grows by variants; nothing generic is ever added.
///
/// Tagged from outside: serde buffers the content of internally tagged enums, and a copy of a private key would stay
/// behind in that buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Work {
    /// What is in the kubeconfig under our names. Changes nothing.
    Inspect {
        /// The names that are ours.
        names: EntryNames,
    },
    /// Writes, syncs and removes a file where the kubeconfig will be, so that no certificate is asked for in vain.
    /// Makes the directory (`.kube`) if it is not there.
    TestWrite {
        /// As in [`Work::WriteKubeconfig`]: without it a file that does not parse is reported now.
        replace_unparsable: bool,
    },
    /// The home exists and is the user's; made if told so and if the server allows it for that prefix.
    EnsureHome {
        /// Make it if it is missing.
        create: bool,
        /// Copy the server's skeleton directory into a home that was made now.
        skeleton: bool,
    },
    /// Our entries are in the kubeconfig, everything else in it stays.
    WriteKubeconfig {
        /// What is to be there.
        entries: KubeconfigEntries,
        /// Keep a file that does not parse beside, and replace it; otherwise it is [`HomeError::NotYaml`].
        replace_unparsable: bool,
    },
    /// Our entries are not in the kubeconfig, everything else in it stays.
    RemoveKubeconfig {
        /// The names that are ours.
        names: EntryNames,
    },
}

impl Work {
    /// The request's name, for logs.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Inspect { .. } => "inspect",
            Self::TestWrite { .. } => "test_write",
            Self::EnsureHome { .. } => "ensure_home",
            Self::WriteKubeconfig { .. } => "write_kubeconfig",
            Self::RemoveKubeconfig { .. } => "remove_kubeconfig",
        }
    }
}

/// The entries that we own in a kubeconfig: one cluster and one context for each endpoint, and one user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KubeconfigEntries {
    /// Clusters, one for each endpoint.
    pub clusters: Vec<ClusterEntry>,
    /// The user with the credential.
    pub user: UserEntry,
    /// Contexts; the first becomes `current-context` of a file that has none.
    pub contexts: Vec<ContextEntry>,
}

/// `clusters[]` of a kubeconfig (client-go `clientcmd/api/v1.NamedCluster`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterEntry {
    /// The entry's name, by which it is found again.
    pub name: String,
    /// URL of the API server.
    pub server: String,
    /// CA bundle, PEM (not base64 of it).
    pub ca_pem: String,
    /// `tls-server-name`, where the URL's host is not in the certificate.
    #[serde(default)]
    pub tls_server_name: Option<String>,
    /// `proxy-url`.
    #[serde(default)]
    pub proxy: Option<String>,
}

/// `users[]` of a kubeconfig, with the credential inline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserEntry {
    /// The entry's name, by which it is found again.
    pub name: String,
    /// The certificate, PEM; public.
    pub certificate_pem: String,
    /// The private key, PEM.
    pub key_pem: SecretText,
}

/// `contexts[]` of a kubeconfig.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContextEntry {
    /// The entry's name, by which it is found again.
    pub name: String,
    /// Name of one of our clusters.
    pub cluster: String,
    /// Name of our user.
    pub user: String,
    /// The tenant's namespace.
    #[serde(default)]
    pub namespace: Option<String>,
}

/// The names by which our entries are found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EntryNames {
    /// Our clusters.
    pub clusters: Vec<String>,
    /// Our user.
    pub user: String,
    /// Our contexts.
    pub contexts: Vec<String>,
}

impl KubeconfigEntries {
    /// The names of these entries.
    #[must_use]
    pub fn names(&self) -> EntryNames {
        EntryNames {
            clusters: self.clusters.iter().map(|cluster| cluster.name.clone()).collect(),
            user: self.user.name.clone(),
            contexts: self.contexts.iter().map(|context| context.name.clone()).collect(),
        }
    }
}

/// What was done or found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Answer {
    /// To [`Work::Inspect`].
    Inspected(Inspection),
    /// To [`Work::TestWrite`]: a file could be written there.
    Writable,
    /// To [`Work::EnsureHome`].
    HomeReady {
        /// It was made now.
        created: bool,
    },
    /// To [`Work::WriteKubeconfig`].
    Written(Written),
    /// To [`Work::RemoveKubeconfig`].
    Removed {
        /// The file was changed; `false` if nothing of ours was there, or no file.
        changed: bool,
    },
}

/// A kubeconfig that now holds our entries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Written {
    /// The file was written; `false` if it already said all of it.
    pub changed: bool,
    /// [`Inspection::entries_digest`] of what is now there.
    pub entries_digest: String,
    /// Name of the file beside it that keeps what did not parse.
    pub backup: Option<String>,
}

/// What [`Work::Inspect`] tells: nothing of the user's, and of ours only what is public.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Inspection {
    /// The file is there.
    pub exists: bool,
    /// It is a kubeconfig that can be merged into.
    pub parses: bool,
    /// Owner of the file.
    pub owner: Option<u32>,
    /// Permission bits of the file, e.g. `0o600`.
    pub mode: Option<u32>,
    /// The certificate under our user's name, PEM, made anew from what it decodes to.
    pub certificate_pem: Option<String>,
    /// The key under our user's name belongs to that certificate.
    pub key_matches: bool,
    /// `current-context`, if it is one of ours.
    pub current_context: Option<String>,
    /// SHA-256 (hex) of the clusters and contexts under our names, as far as we manage them: the same as when they
    /// were written unless somebody changed them. `None` if one of them is missing.
    pub entries_digest: Option<String>,
}

/// One answer line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Response {
    /// [`PROTOCOL_VERSION`] of the server.
    pub version: u32,
    /// What came of it.
    pub result: Result<Answer, HomeError>,
}

impl Response {
    /// An answer of this version.
    #[must_use]
    pub fn new(result: Result<Answer, HomeError>) -> Self {
        Self { version: PROTOCOL_VERSION, result }
    }

    /// The line that goes over the socket, with its line feed.
    #[must_use]
    pub fn to_line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).unwrap_or_else(|_| {
            br#"{"version":1,"result":{"Err":{"unavailable":{"detail":"the answer could not be encoded"}}}}"#.to_vec()
        });
        line.push(b'\n');
        line
    }
}

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
}

/// Smallest uid that anything is ever done as, whatever the settings say (Debian policy 9.2.2, `UID_MIN`).
pub const UID_FLOOR: u32 = 1000;
/// Smallest gid, whatever the settings say (Debian policy 9.2.2: 0 to 99 are globally allocated to the system).
pub const GID_FLOOR: u32 = 100;

impl Bounds {
    /// These prefixes, the usual lower ends.
    #[must_use]
    pub fn new(prefixes: Vec<Prefix>) -> Self {
        Self { prefixes, uid_min: UID_FLOOR, gid_min: GID_FLOOR, skeleton: None }
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
        if !is_plain_relative(&target.kubeconfig) {
            return Err(HomeError::BadRequest {
                detail: format!(
                    "kubeconfig `{}` is not a plain path relative to the home",
                    target.kubeconfig.display()
                ),
            });
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

/// At least one component, and only names: no root, no `..`, no NUL, nothing longer than a path may be.
fn is_plain_relative(path: &Path) -> bool {
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
            assert!(matches!(bounds().admit(&target), Err(HomeError::BadRequest { .. })), "{kubeconfig}");
        }
    }

    #[test]
    fn requests_are_closed_and_survive_the_wire() {
        let request =
            Request::new(HomeTarget::new("/home/a", 52503, 52503), Work::Inspect { names: EntryNames::default() });
        let line = serde_json::to_string(&request).expect("encodes");
        assert_eq!(serde_json::from_str::<Request>(&line).expect("decodes"), request);
        let odd = line.replace("\"inspect\"", "\"run_command\"");
        assert!(serde_json::from_str::<Request>(&odd).is_err());
        let odd = line.replace("\"uid\":", "\"also\":1,\"uid\":");
        assert!(serde_json::from_str::<Request>(&odd).is_err());
    }
}
