//! Packs a namespace into a `tar.zst` file: all its objects as JSON, with the Secrets encrypted. The file describes
//! itself in `archive.json`; the digest in the ledger shows whether it was altered.
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

pub use self::file::{Archives, VerifiedArchive};
pub use self::secret::{Identities, Recipient};
use crate::identity::{AccountId, AccountName, ClusterName, NamespaceName};
use crate::kinds::{ManagedKind, ObjectKind};

/// Version of the file's layout.
const VERSION: u32 = 1;
const ABOUT: &str = "archive.json";
const OBJECTS: &str = "objects/";
const SECRETS: &str = "secrets.age";

/// zstd's default. Archives are made rarely, and a higher level makes JSON hardly smaller.
const LEVEL: i32 = 3;

/// Why an archive could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// A file or folder cannot be used.
    #[error("cannot read or write {path}")]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The file that was read back differs from what was written.
    #[error("{0} differs from what was written to it; check the disk")]
    Differs(PathBuf),
    /// The file's digest differs from the digest in the ledger.
    #[error("{path} is not as it was written: its digest is {found}, and the ledger has {expected}")]
    Altered {
        path: PathBuf,
        /// Hex SHA-256.
        found: String,
        /// Hex SHA-256.
        expected: String,
    },
    /// The archive cannot be unpacked.
    #[error("the archive cannot be unpacked")]
    Unpack(#[source] io::Error),
    /// A file in the archive is missing or does not parse, or the layout has another version.
    #[error("{0} in the archive is missing, or not as this version of Bursar writes it")]
    Content(String),
    /// Secrets could not be encrypted.
    #[error("the Secrets cannot be encrypted")]
    Encrypt(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// None of the identities (private keys) decrypts the Secrets.
    #[error("the Secrets cannot be decrypted with these age identities")]
    Decrypt(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Describes the namespace and the content of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// Version of the layout.
    pub version: u32,
    pub cluster: ClusterName,
    pub namespace: NamespaceName,
    /// The account's name at that time.
    pub account: AccountName,
    /// The account's immutable id in the ledger.
    pub account_id: AccountId,
    /// Generation of the account at that time.
    pub generation: u64,
    pub at: Timestamp,
    /// Number of objects in the file, Secrets included.
    pub objects: u64,
    /// Number of encrypted Secrets in the file.
    pub secrets: u64,
    /// Number of Secrets that were left out.
    pub left_out: u64,
    /// The age public key that the Secrets are encrypted to.
    pub recipient: Option<String>,
    /// The state of the workloads before the suspension.
    pub workloads: Vec<Workload>,
}

/// A workload that a suspension stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workload {
    /// For example `apps/v1`.
    pub api_version: String,
    /// For example `Deployment`.
    pub kind: String,
    pub name: String,
    /// `spec.replicas`; `None` for a kind that is suspended in another way.
    pub replicas: Option<i32>,
}

/// An object, and the name of its kind in the API: `deployments.apps`, `configmaps`.
pub type Listed = (String, Value);

/// The content of an archive before it is packed.
#[derive(Debug, Clone, PartialEq)]
pub struct Content {
    /// [`pack`] fills in the counts and the recipient.
    pub about: About,
    /// All objects, Secrets included.
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
    /// The archive's description of itself.
    pub about: About,
    files: Files,
    bytes: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Unpacked {
    /// The archive's description of itself.
    pub about: About,
    /// Every object except the Secrets.
    pub objects: Vec<Listed>,
    secrets: Option<Vec<u8>>,
}

/// Packs a namespace. Without a recipient, its Secrets are left out and counted.
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
        return Err(ArchiveError::Content("a second object of the same name".to_owned()));
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
    /// Decrypts the Secrets; empty if the archive has none.
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

/// Removes the parts that the API server and controllers maintain.
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
            (ClusterName("prod".into()), "tool-foo".to_owned().try_into().expect("a name")),
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
        let packed = pack(content(), None).expect("the archive is packed");
        assert_eq!((packed.about.objects, packed.about.secrets, packed.about.left_out), (2, 0, 1));
        let unpacked = unpack(&packed.bytes).expect("the archive unpacks");
        assert_eq!(unpacked.about, packed.about);
        let [(kind, object), _] = unpacked.objects.as_slice() else { panic!("{:?}", unpacked.objects) };
        assert_eq!((kind.as_str(), object["data"]["key"].as_str()), ("configmaps", Some("plain")));
        assert!(object["status"].is_null() && object["metadata"]["managedFields"].is_null(), "{object}");
        assert!(
            unpacked.secrets(&Identities::default()).expect("an archive without Secrets needs no identity").is_empty()
        );
    }

    #[test]
    fn only_the_holder_of_the_identity_can_read_the_secrets() {
        let (identity, recipient) = secret::tests::pair();
        let packed = pack(content(), Some(&recipient)).expect("the archive is packed");
        assert_eq!((packed.about.objects, packed.about.secrets, packed.about.left_out), (3, 1, 0));
        let clear = "c2VjcmV0LWluLWNsZWFy";
        let shown = packed.files.values().any(|file| String::from_utf8_lossy(file).contains(clear));
        assert!(!shown, "a Secret is not encrypted");
        let unpacked = unpack(&packed.bytes).expect("the archive unpacks");
        let secrets = unpacked.secrets(&identity).expect("the identity decrypts the Secrets");
        assert_eq!(secrets[0].1["data"]["key"], clear);
        let (other, _) = secret::tests::pair();
        assert!(matches!(unpacked.secrets(&other), Err(ArchiveError::Decrypt(_))));
    }
}
