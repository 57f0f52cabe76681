//! A namespace in a file: every object of it as JSON, Secrets encrypted, packed as `tar.zst`. What is in the file is told
//! by `archive.json` in it; whether it is still as it was written, by its digest in the ledger.
//!
//! | in the file | what |
//! |---|---|
//! | `archive.json` | [`About`] |
//! | `objects/PLURAL.GROUP/NAME.json` | one object, as the API server showed it, without `managedFields` and `status` |
//! | `secrets.age` | the Secrets, a JSON list, encrypted to the age recipient (age-encryption.org/v1) |

mod file;
mod secret;

use std::collections::BTreeMap;
use std::io::{self, Read, Write as _};
use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

pub use self::file::{Archives, Written};
pub use self::secret::{Identities, Recipient};
use crate::identity::{AccountId, AccountName, ClusterName, NamespaceName};
use crate::kinds::{ManagedKind, ObjectKind};

/// Layout of the file.
const VERSION: u32 = 1;
const ABOUT: &str = "archive.json";
const OBJECTS: &str = "objects/";
const SECRETS: &str = "secrets.age";

/// What zstd calls its default: archives are made rarely and kept long, and a higher level gives JSON little more.
const LEVEL: i32 = 3;

/// Why an archive could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// A file or folder cannot be used.
    #[error("cannot read or write {path}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It was read back, and is not what was written.
    #[error("{0} was read back and is not what was written")]
    Differs(PathBuf),
    /// It is not what the ledger says was written.
    #[error("{path} is not as it was written: its digest is {found}, and the ledger has {expected}")]
    Altered {
        /// Which.
        path: PathBuf,
        /// Hex SHA-256.
        found: String,
        /// Hex SHA-256.
        expected: String,
    },
    /// It cannot be unpacked.
    #[error("the archive cannot be unpacked")]
    Unpack(#[source] io::Error),
    /// It is no archive of ours.
    #[error("{0} in the archive is not what it should be")]
    Content(String),
    /// Secrets could not be encrypted.
    #[error("the Secrets cannot be encrypted")]
    Encrypt(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// No identity opens the Secrets.
    #[error("the Secrets cannot be decrypted with these identities")]
    Decrypt(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Whose namespace it was, and what is in the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// Version of the layout.
    pub version: u32,
    /// From where.
    pub cluster: ClusterName,
    /// Which.
    pub namespace: NamespaceName,
    /// Its name then.
    pub account: AccountName,
    /// The ledger's immutable id.
    pub account_id: AccountId,
    /// Generation of the account at that time.
    pub generation: u64,
    /// When.
    pub at: Timestamp,
    /// How many are in the file, Secrets included.
    pub objects: u64,
    /// How many Secrets are in it, encrypted.
    pub secrets: u64,
    /// How many Secrets are not.
    pub left_out: u64,
    /// To whom they are encrypted.
    pub recipient: Option<String>,
    /// What its workloads were before the suspension.
    pub workloads: Vec<Workload>,
}

/// A workload that a suspension stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workload {
    /// `apps/v1`.
    pub api_version: String,
    /// `Deployment`.
    pub kind: String,
    /// `metadata.name`.
    pub name: String,
    /// `spec.replicas`; absent for what is suspended otherwise.
    pub replicas: Option<i32>,
}

/// An object and the name by which the API server lists its kind: `deployments.apps`, `configmaps`.
pub type Listed = (String, Value);

/// What an archive is made of.
#[derive(Debug, Clone, PartialEq)]
pub struct Content {
    /// Numbers and recipient are filled in by [`pack`].
    pub about: About,
    /// Every object, Secrets among them.
    pub objects: Vec<Listed>,
}

impl About {
    /// Describes a namespace whose objects are not counted yet.
    #[must_use]
    pub fn of(
        (cluster, namespace): (ClusterName, NamespaceName),
        (account, account_id, generation): (AccountName, AccountId, u64),
        workloads: Vec<Workload>,
        at: Timestamp,
    ) -> Self {
        Self {
            version: VERSION,
            cluster,
            namespace,
            account,
            account_id,
            generation,
            at,
            objects: 0,
            secrets: 0,
            left_out: 0,
            recipient: None,
            workloads,
        }
    }
}

/// The files of an archive by their names in it.
type Files = BTreeMap<String, Vec<u8>>;

/// An archive in memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Packed {
    /// What it says of itself.
    pub about: About,
    files: Files,
    bytes: Vec<u8>,
}

/// An archive that was read.
#[derive(Debug, Clone, PartialEq)]
pub struct Unpacked {
    /// What it says of itself.
    pub about: About,
    /// Every object but the Secrets.
    pub objects: Vec<Listed>,
    secrets: Option<Vec<u8>>,
}

/// Packs a namespace. Without a recipient its Secrets are left out, and counted.
pub fn pack(content: Content, recipient: Option<&Recipient>) -> Result<Packed, ArchiveError> {
    let Content { mut about, objects } = content;
    let (secrets, others): (Vec<_>, Vec<_>) = objects.into_iter().partition(|(_, object)| is_secret(object));
    let mut files = Files::new();
    about.objects = others.len() as u64;
    for (kind, object) in others {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        files.insert(format!("{OBJECTS}{kind}/{name}.json"), text(&stripped(object)));
    }
    if files.len() as u64 != about.objects {
        return Err(ArchiveError::Content("an object of the name of another".to_owned()));
    }
    match recipient {
        _ if secrets.is_empty() => {}
        None => about.left_out = secrets.len() as u64,
        Some(recipient) => {
            about.secrets = secrets.len() as u64;
            about.objects += about.secrets;
            about.recipient = Some(recipient.to_string());
            let list: Vec<Value> = secrets.into_iter().map(|(_, secret)| stripped(secret)).collect();
            files.insert(SECRETS.to_owned(), recipient.encrypt(&text(&json!(list)))?);
        }
    }
    files.insert(ABOUT.to_owned(), text(&json!(about)));
    let bytes = compressed(&files, about.at).map_err(ArchiveError::Unpack)?;
    Ok(Packed { about, files, bytes })
}

/// Reads a packed archive.
pub fn unpack(bytes: &[u8]) -> Result<Unpacked, ArchiveError> {
    let mut files = files(bytes).map_err(ArchiveError::Unpack)?;
    let about = files.remove(ABOUT).unwrap_or_default();
    let about: About = serde_json::from_slice(&about).map_err(|_| ArchiveError::Content(ABOUT.to_owned()))?;
    if about.version != VERSION {
        return Err(ArchiveError::Content(format!("version {}", about.version)));
    }
    let secrets = files.remove(SECRETS);
    let object = |(path, bytes): (String, Vec<u8>)| {
        let wrong = || ArchiveError::Content(path.clone());
        let kind = path.strip_prefix(OBJECTS).and_then(|path| path.split_once('/')).ok_or_else(wrong)?.0.to_owned();
        Ok((kind, serde_json::from_slice(&bytes).map_err(|_| wrong())?))
    };
    let objects: Result<Vec<Listed>, ArchiveError> = files.into_iter().map(object).collect();
    Ok(Unpacked { about, objects: objects?, secrets })
}

impl Unpacked {
    /// The Secrets, where there are any.
    pub fn secrets(&self, identities: &Identities) -> Result<Vec<Listed>, ArchiveError> {
        let Some(secrets) = &self.secrets else { return Ok(Vec::new()) };
        let text = identities.decrypt(secrets)?;
        let list: Vec<Value> = serde_json::from_slice(&text).map_err(|_| ArchiveError::Content(SECRETS.to_owned()))?;
        Ok(list.into_iter().map(|secret| ("secrets".to_owned(), secret)).collect())
    }
}

fn is_secret(object: &Value) -> bool {
    ObjectKind::of_manifest(object) == ManagedKind::Secret
}

/// Without what the API server and controllers keep for themselves.
fn stripped(mut object: Value) -> Value {
    if let Some(fields) = object.as_object_mut() {
        fields.remove("status");
    }
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
    object
}

fn text(value: &Value) -> Vec<u8> {
    format!("{value:#}\n").into_bytes()
}

fn compressed(files: &Files, at: Timestamp) -> io::Result<Vec<u8>> {
    let mut tar = tar::Builder::new(zstd::Encoder::new(Vec::new(), LEVEL)?);
    for (path, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(at.as_second().unsigned_abs());
        tar.append_data(&mut header, path, content.as_slice())?;
    }
    let mut compressed = tar.into_inner()?;
    compressed.flush()?;
    compressed.finish()
}

fn files(bytes: &[u8]) -> io::Result<Files> {
    let mut tar = tar::Archive::new(zstd::Decoder::new(bytes)?);
    let mut files = Files::new();
    for entry in tar.entries()? {
        let mut entry = entry?;
        let path = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let mut content = Vec::new();
        entry.read_to_end(&mut content)?;
        files.insert(path, content);
    }
    Ok(files)
}

fn digest(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content() -> Content {
        let about = About::of(
            (ClusterName("prod".to_owned()), "tool-foo".to_owned().try_into().expect("a name")),
            ("tool:foo".parse().expect("a name"), AccountId("a1".into()), 7),
            Vec::new(),
            Timestamp::UNIX_EPOCH,
        );
        let long = "x".repeat(250);
        let object = |kind: &str, name: &str, data: &str| {
            json!({
                "apiVersion": "v1", "kind": kind, "data": {"key": data}, "status": {"phase": "Bound"},
                "metadata": {"name": name, "uid": "u", "managedFields": [{"manager": "kubectl"}]},
            })
        };
        let objects = vec![
            ("configmaps".to_owned(), object("ConfigMap", &long, "plain")),
            ("roles.rbac.authorization.k8s.io".to_owned(), object("Role", "a:b", "plain")),
            ("secrets".to_owned(), object("Secret", "token", "c2VjcmV0LWluLWNsZWFy")),
        ];
        Content { about, objects }
    }

    #[test]
    fn an_archive_drops_status_and_managed_fields() {
        let packed = pack(content(), None).expect("packed");
        assert_eq!((packed.about.objects, packed.about.secrets, packed.about.left_out), (2, 0, 1));
        let unpacked = unpack(&packed.bytes).expect("unpacked");
        assert_eq!(unpacked.about, packed.about);
        let [(kind, object), _] = unpacked.objects.as_slice() else { panic!("{:?}", unpacked.objects) };
        assert_eq!((kind.as_str(), object["data"]["key"].as_str()), ("configmaps", Some("plain")));
        assert!(object["status"].is_null() && object["metadata"]["managedFields"].is_null(), "{object}");
        assert!(unpacked.secrets(&Identities::default()).expect("there are none").is_empty());
    }

    #[test]
    fn secrets_are_in_it_only_for_who_holds_the_identity() {
        let (identity, recipient) = secret::tests::pair();
        let packed = pack(content(), Some(&recipient)).expect("packed");
        assert_eq!((packed.about.objects, packed.about.secrets, packed.about.left_out), (3, 1, 0));
        let clear = "c2VjcmV0LWluLWNsZWFy";
        let shown = packed.files.values().any(|file| String::from_utf8_lossy(file).contains(clear));
        assert!(!shown, "a Secret is in clear");
        let unpacked = unpack(&packed.bytes).expect("unpacked");
        let secrets = unpacked.secrets(&identity).expect("decrypted");
        assert_eq!(secrets[0].1["data"]["key"], clear);
        let (other, _) = secret::tests::pair();
        assert!(matches!(unpacked.secrets(&other), Err(ArchiveError::Decrypt(_))));
    }
}
