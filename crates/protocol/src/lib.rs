//! What `bursard` asks of `bursar-homed`, and what it is answered.
//!
//! A request is one line of JSON over a Unix stream socket, an answer is one line of JSON. The list of requests is
//! closed: there is no "write this file", only "make our entries be in the kubeconfig of this home".
//!
//! This crate has types, limits and checks of values only: no file, no socket, no clock. The daemon's decisions and
//! `bursar-homed`, which runs as root, share it and nothing else; so it depends on serde and small helpers alone.

mod entries;
mod error;
mod limits;
mod notice;
mod proof;
mod remedy;
mod secret;
mod ssh_key;
mod token;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use crate::entries::{
    ClusterEntry, ContextEntry, EntryNames, KubeconfigEntries, OurEntries, PlannedEntries, USER_PREFIX, is_our_user,
};
pub use crate::error::{HomeError, shown};
pub use crate::limits::{
    DAEMON_CONNECTIONS, GID_FLOOR, MAX_ANSWER_BYTES, MAX_CONCURRENT, MAX_CONNECTIONS, MAX_GROUPS, MAX_REQUEST_BYTES,
    UID_FLOOR, USUAL_KUBECONFIG, USUAL_REQUEST_BYTES,
};
pub use crate::notice::{Notice, is_plain};
pub use crate::proof::{
    Grant, Login, TOKEN, TOKEN_FILES, TokenFiles, UserEntry, UserProof, folder, is_issuer, is_word,
};
pub use crate::secret::SecretText;
pub use crate::ssh_key::{AUTHORIZED_KEYS, MAX_KEY_BYTES, MAX_KEYS, SshKey};
pub use crate::token::{Claims, claims};

/// Version of requests and answers. Server and client come from one package, but a daemon that was not restarted
/// after an upgrade may speak the older one; it is then told so instead of being misread.
pub const PROTOCOL_VERSION: u32 = 4;

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
    /// The mount point of the file system that the home was on when it was last seen. While something else is mounted
    /// there, or nothing, a home that is missing is not gone.
    #[serde(default)]
    pub mount: Option<PathBuf>,
}

impl HomeTarget {
    /// A target with the usual file, `.kube/config`, and no supplementary groups.
    #[must_use]
    pub fn new(home: impl Into<PathBuf>, uid: u32, gid: u32) -> Self {
        let kubeconfig = PathBuf::from(USUAL_KUBECONFIG);
        Self { home: home.into(), uid, gid, groups: Vec::new(), kubeconfig, mount: None }
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
    /// What is in the kubeconfig under our names. Changes nothing, a lock apart that a killed worker of ours left.
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
    /// As [`Work::TestWrite`], and what is planned is merged into the kubeconfig as it is, without a credential and without
    /// writing it: what stands in its way is known before anything is signed.
    TestDelivery {
        /// What is to come.
        planned: PlannedEntries,
        /// As in [`Work::WriteKubeconfig`].
        replace_unparsable: bool,
    },
    /// The home exists and is the user's; made if told so and if the server allows it for that prefix.
    EnsureHome {
        /// Make it if it is missing.
        create: bool,
        /// Copy the server's skeleton directory into a home that was made now.
        skeleton: bool,
    },
    /// Whether a home or the directory of a volume could be made there: one is begun, and taken back.
    TestCreate,
    /// The directory of a volume exists and is the user's; made, if the server allows it for that prefix, mode 0700.
    /// Nothing that exists is changed.
    MakeDirectory {
        /// Mode 2770: what is made in it belongs to its group.
        shared: bool,
    },
    /// Our entries are in the kubeconfig, everything else in it stays. A token and what belongs to it stand in files of
    /// their own beside it.
    WriteKubeconfig {
        /// What is to be there.
        entries: KubeconfigEntries,
        /// Keep a file that does not parse beside, and replace it; otherwise it is [`HomeError::NotYaml`].
        replace_unparsable: bool,
    },
    /// Our entries are not in the kubeconfig, everything else in it stays. Our files beside it are removed.
    RemoveKubeconfig {
        /// The names that are ours.
        names: EntryNames,
    },
    /// The user's part of the last kubeconfig that we replaced is there again, with our entries as they are now.
    RestoreKubeconfig,
    /// Exactly these keys are in our block of `.ssh/authorized_keys`, everything else in it stays. Without any there is no
    /// block; with some only if root allowed it, for who may write keys may become the user wherever sshd is.
    SshKeys {
        /// Lines that [`SshKey::parse`] takes.
        keys: Vec<String>,
    },
}

impl Work {
    /// The request's name, for logs.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Inspect { .. } => "inspect",
            Self::TestWrite { .. } => "test_write",
            Self::TestDelivery { .. } => "test_delivery",
            Self::EnsureHome { .. } => "ensure_home",
            Self::TestCreate => "test_create",
            Self::MakeDirectory { .. } => "make_directory",
            Self::WriteKubeconfig { .. } => "write_kubeconfig",
            Self::RemoveKubeconfig { .. } => "remove_kubeconfig",
            Self::RestoreKubeconfig => "restore_kubeconfig",
            Self::SshKeys { .. } => "ssh_keys",
        }
    }

    /// Whether it looks at the kubeconfig of its target, which then must be one that may be written. The others have a
    /// target of which they need no more than the home.
    #[must_use]
    pub fn is_about_the_kubeconfig(&self) -> bool {
        match self {
            Self::Inspect { .. }
            | Self::TestWrite { .. }
            | Self::TestDelivery { .. }
            | Self::WriteKubeconfig { .. }
            | Self::RemoveKubeconfig { .. }
            | Self::RestoreKubeconfig => true,
            Self::EnsureHome { .. } | Self::TestCreate | Self::MakeDirectory { .. } | Self::SshKeys { .. } => false,
        }
    }
}

/// What was done or found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Answer {
    /// To [`Work::Inspect`].
    Inspected(Inspection),
    /// To [`Work::TestWrite`] and [`Work::TestCreate`]: a file could be written, a home made there.
    Writable,
    /// To [`Work::EnsureHome`] and [`Work::MakeDirectory`].
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
    /// To [`Work::RestoreKubeconfig`].
    Restored {
        /// The file was changed; `false` if it said so already.
        changed: bool,
        /// Entries of ours are in it; if not, they are to be delivered again.
        complete: bool,
    },
    /// To [`Work::SshKeys`].
    SshKeys {
        /// The file was changed; `false` if it said so already.
        changed: bool,
        /// As in [`HomeTarget::mount`], now.
        mount: Option<PathBuf>,
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
    /// Seconds that a lock of another program had been there, which was overridden.
    #[serde(default)]
    pub overridden_lock: Option<u64>,
    /// As in [`HomeTarget::mount`], now.
    pub mount: Option<PathBuf>,
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
    /// The certificate under our user's name, PEM, encoded again from what it decodes to.
    pub certificate_pem: Option<String>,
    /// The key under our user's name belongs to that certificate.
    pub key_matches: bool,
    /// The `jti` of the token in our file beside it, which is public; of the token nothing else is told.
    #[serde(default)]
    pub token_id: Option<String>,
    /// `current-context`, if it is one of ours.
    pub current_context: Option<String>,
    /// SHA-256 (hex) of what stands under our names, as far as we manage it and it is not secret: the same as when they
    /// were written unless somebody changed them. `None` if one of them is missing.
    pub entries_digest: Option<String>,
    /// Why it cannot be merged into.
    #[serde(default)]
    pub unreadable: Option<String>,
    /// What in it is ours, of whichever cluster.
    #[serde(default)]
    pub ours: OurEntries,
    /// Bytes of the user's part of the last file that we replaced, if it is kept.
    #[serde(default)]
    pub kept: Option<u64>,
    /// As in [`HomeTarget::mount`], now.
    pub mount: Option<PathBuf>,
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

#[cfg(test)]
mod tests {
    use super::*;

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
