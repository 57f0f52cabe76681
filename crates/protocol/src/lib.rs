//! The requests of `bursard` to `bursar-homed`, and the answers.
//!
//! A request is one line of JSON over a Unix stream socket, and so is an answer. The list of requests is closed: no
//! request writes an arbitrary file, only Bursar's entries in the kubeconfig of a home.
//!
//! This crate has only types, limits and checks of values: no file, socket or clock. It is the only code that the
//! daemon shares with `bursar-homed`, which runs as root, so it depends only on serde and small helpers.

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
pub use crate::notice::{SuspensionNotice, is_plain};
pub use crate::proof::{
    Grant, Login, TOKEN, TOKEN_FILES, TokenFiles, UserEntry, UserProof, folder, is_issuer, is_word,
};
pub use crate::secret::SecretText;
pub use crate::ssh_key::{AUTHORIZED_KEYS, MAX_KEY_BYTES, MAX_KEYS, SshKey};
pub use crate::token::{Claims, claims};

/// The version of requests and answers. Server and client come from one package, but a daemon that was not restarted
/// after an upgrade may use the older version. It then gets an error instead of being misread.
pub const PROTOCOL_VERSION: u32 = 4;

/// The home of a request, and the kubeconfig in it. `bursar-homed` checks the target of every request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HomeTarget {
    /// The absolute path of the home, beneath a configured prefix.
    pub home: PathBuf,
    /// The uid that owns the home and does the work; at least 1000.
    pub uid: u32,
    /// The primary gid; at least 100.
    pub gid: u32,
    /// Supplementary gids: at most [`MAX_GROUPS`], each at least 100.
    #[serde(default)]
    pub groups: Vec<u32>,
    /// The kubeconfig, relative to the home, e.g. `.kube/config`.
    pub kubeconfig: PathBuf,
    /// The mount point of the file system on which the home was last seen. If nothing is mounted there now, a missing
    /// home does not count as gone, and another folder in its place is not used.
    #[serde(default)]
    pub mount: Option<PathBuf>,
}

impl HomeTarget {
    /// Returns a target with the usual kubeconfig, `.kube/config`, and no supplementary groups.
    #[must_use]
    pub fn new(home: impl Into<PathBuf>, uid: u32, gid: u32) -> Self {
        let kubeconfig = PathBuf::from(USUAL_KUBECONFIG);
        Self { home: home.into(), uid, gid, groups: Vec::new(), kubeconfig, mount: None }
    }
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// [`PROTOCOL_VERSION`] of the sender.
    pub version: u32,
    pub target: HomeTarget,
    pub work: Work,
}

impl Request {
    /// Returns a request of this version.
    #[must_use]
    pub fn new(target: HomeTarget, work: Work) -> Self {
        Self { version: PROTOCOL_VERSION, target, work }
    }
}

/// The closed list of requests. New requests become new variants; a generic request is never added.
///
/// The enum is tagged externally, because serde buffers the content of internally tagged enums, and a copy of a private
/// key would stay in that buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Work {
    /// Reports what the kubeconfig has under Bursar's names. Changes nothing, but removes the lock of a worker that was
    /// killed.
    Inspect {
        /// The names of Bursar's entries.
        names: EntryNames,
    },
    /// Writes, syncs and removes a file next to the kubeconfig, so that no certificate is requested in vain. Creates
    /// the directory (`.kube`) if it is missing.
    TestWrite {
        /// As in [`Work::WriteKubeconfig`]. If false, a file that does not parse is reported now.
        replace_unparsable: bool,
    },
    /// Like [`Work::TestWrite`]. In addition, merges the planned entries, without a credential, into the kubeconfig in
    /// memory, so that obstacles are known before anything is signed.
    TestDelivery {
        /// The entries to deliver later.
        planned: PlannedEntries,
        /// As in [`Work::WriteKubeconfig`].
        replace_unparsable: bool,
    },
    /// Checks that the home exists and belongs to the user. Creates it if `create` is set and the server allows it for
    /// the prefix.
    EnsureHome {
        /// Whether a missing home is created.
        create: bool,
        /// Whether the server's skeleton directory is copied into a home that was created by this request.
        skeleton: bool,
    },
    /// Checks whether a home or the directory of a volume could be created: starts to create one, and removes it again.
    TestCreate,
    /// Checks that the directory of a volume exists and belongs to the user. Creates a missing one with mode 0700, if
    /// the server allows it for the prefix. Nothing that exists is changed.
    MakeDirectory {
        /// Whether the mode is 2770 instead, so that new files belong to the directory's group.
        shared: bool,
    },
    /// Merges Bursar's entries into the kubeconfig, and keeps everything else. A token is written to files of its own
    /// next to it (see [`TokenFiles`]).
    WriteKubeconfig {
        /// The entries to write.
        entries: KubeconfigEntries,
        /// Whether a file that does not parse is kept as a backup and replaced; otherwise the result is
        /// [`HomeError::NotYaml`].
        replace_unparsable: bool,
    },
    /// Removes Bursar's entries from the kubeconfig, and Bursar's files next to it. Keeps everything else.
    RemoveKubeconfig {
        /// The names of Bursar's entries.
        names: EntryNames,
    },
    /// Restores the user's part of the last kubeconfig that Bursar replaced, together with Bursar's current entries.
    RestoreKubeconfig,
    /// Makes Bursar's block of `.ssh/authorized_keys` contain exactly these keys, and keeps everything else. Without
    /// keys, the block is removed. Keys are written only with `--ssh-keys`, because a key lets its owner log in as the
    /// user.
    SshKeys {
        /// Lines that [`SshKey::parse`] accepts.
        keys: Vec<String>,
    },
}

impl Work {
    /// Whether the request uses the kubeconfig of its target, whose path must then be permitted. Other requests use
    /// only the home of the target.
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

/// The result of a request that succeeded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Answer {
    /// The answer to [`Work::Inspect`].
    Inspected(Inspection),
    /// The answer to [`Work::TestWrite`], [`Work::TestDelivery`] and [`Work::TestCreate`]: the test succeeded.
    Writable,
    /// The answer to [`Work::EnsureHome`] and [`Work::MakeDirectory`].
    HomeReady {
        /// Whether this request created the home or directory.
        created: bool,
    },
    /// The answer to [`Work::WriteKubeconfig`].
    Written(Written),
    /// The answer to [`Work::RemoveKubeconfig`].
    Removed {
        /// Whether the file was changed; false if it had none of Bursar's entries, or did not exist.
        changed: bool,
    },
    /// The answer to [`Work::RestoreKubeconfig`].
    Restored {
        /// Whether the file was changed; false if it already had this content.
        changed: bool,
        /// Whether the file has Bursar's entries; if not, they must be delivered again.
        complete: bool,
    },
    /// The answer to [`Work::SshKeys`].
    SshKeys {
        /// Whether the file was changed; false if it already had this content.
        changed: bool,
        /// The current value for [`HomeTarget::mount`].
        mount: Option<PathBuf>,
    },
}

/// The state of a kubeconfig to which Bursar's entries were written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Written {
    /// Whether the file was changed; false if it already had this content.
    pub changed: bool,
    /// [`Inspection::entries_digest`] of the new content.
    pub entries_digest: String,
    /// The name of the backup, next to the kubeconfig, of a file that did not parse; `None` if there was none.
    pub backup: Option<String>,
    /// The age in seconds of another program's lock that was overridden; `None` if there was none.
    #[serde(default)]
    pub overridden_lock: Option<u64>,
    /// The current value for [`HomeTarget::mount`].
    pub mount: Option<PathBuf>,
}

/// The result of [`Work::Inspect`]. It contains nothing of the user's entries, and only public parts of Bursar's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Inspection {
    /// Whether the file exists.
    pub exists: bool,
    /// Whether the file is a kubeconfig that entries can be merged into.
    pub parses: bool,
    /// The uid of the file's owner.
    pub owner: Option<u32>,
    /// The permission bits of the file, such as `0o600`.
    pub mode: Option<u32>,
    /// The certificate of Bursar's user entry as PEM, encoded again after decoding.
    pub certificate_pem: Option<String>,
    /// Whether the key of Bursar's user entry belongs to that certificate.
    pub key_matches: bool,
    /// The `jti` of the token in Bursar's file. It is public, and nothing else of the token is reported.
    #[serde(default)]
    pub token_id: Option<String>,
    /// `current-context`, if it is one of Bursar's contexts.
    pub current_context: Option<String>,
    /// The SHA-256 (hex) of Bursar's entries, without secrets and fields that Bursar does not manage. It changes only
    /// if others change the entries. `None` if an entry is missing.
    pub entries_digest: Option<String>,
    /// Why nothing can be merged into the file.
    #[serde(default)]
    pub unreadable: Option<String>,
    /// The entries of Bursar in the file, for all clusters.
    #[serde(default)]
    pub ours: OurEntries,
    /// The size in bytes of the user's part of the last file that Bursar replaced, if it was kept.
    #[serde(default)]
    pub kept: Option<u64>,
    /// The current value for [`HomeTarget::mount`].
    pub mount: Option<PathBuf>,
}

/// One line of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Response {
    /// [`PROTOCOL_VERSION`] of the server.
    pub version: u32,
    pub result: Result<Answer, HomeError>,
}

impl Response {
    /// Returns an answer of this version.
    #[must_use]
    pub fn new(result: Result<Answer, HomeError>) -> Self {
        Self { version: PROTOCOL_VERSION, result }
    }

    /// Returns the line for the socket, including its line feed.
    #[must_use]
    pub fn to_line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).unwrap_or_else(|_| {
            let why = r#"{"Err":{"unavailable":{"detail":"the answer could not be encoded"}}}"#;
            format!(r#"{{"version":{PROTOCOL_VERSION},"result":{why}}}"#).into_bytes()
        });
        line.push(b'\n');
        line
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt as _;

    use super::*;

    #[test]
    fn an_answer_that_cannot_be_encoded_is_an_error_of_this_version() {
        let path = PathBuf::from(std::ffi::OsString::from_vec(vec![0xff]));
        let line = Response::new(Err(HomeError::MissingPrefix { prefix: path })).to_line();
        let answer: Response = serde_json::from_slice(&line).expect("the line is an answer");
        assert_eq!(answer.version, PROTOCOL_VERSION);
        assert!(matches!(answer.result, Err(HomeError::Unavailable { .. })), "{answer:?}");
    }

    #[test]
    fn requests_survive_json_and_unknown_ones_are_rejected() {
        let request =
            Request::new(HomeTarget::new("/home/a", 52503, 52503), Work::Inspect { names: EntryNames::default() });
        let line = serde_json::to_string(&request).expect("a request becomes JSON");
        assert_eq!(serde_json::from_str::<Request>(&line).expect("the line is a request"), request);
        let odd = line.replace("\"inspect\"", "\"run_command\"");
        assert!(serde_json::from_str::<Request>(&odd).is_err());
        let odd = line.replace("\"uid\":", "\"also\":1,\"uid\":");
        assert!(serde_json::from_str::<Request>(&odd).is_err());
    }
}
