//! Types for POSIX ids, directory ids and names. They are parsed once, where data comes in, and are valid from then on.
//!
//! Only `bursar_directory::entry` parses uids of a directory. Every [`Uid`] is in the range for tenants' pods.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::packed_text::IdText;
use crate::shared_text::SharedText;

/// The lowest uid that a tenant may have. Lower uids belong to accounts of the system (`login.defs`, `UID_MIN`).
pub const UID_MIN: u32 = 1000;
/// The lowest gid that a tenant may have. Some sites put all people into one group between 100 and 999 (`users` is
/// 100).
pub const GID_MIN: u32 = 100;
/// The highest uid and gid. Excluded are 2^31 - 1 and all ids that programs with signed 32-bit numbers read as
/// negative, such as -1 and -2 for "nobody".
pub const ID_MAX: u32 = 2_147_483_646;
/// The longest name for Kubernetes. With prefixes and suffixes, it still fits the 63 characters of a DNS label (RFC
/// 1123).
pub const KUBERNETES_NAME_MAX: usize = 53;

/// Why a value from a directory, a configuration or an annotation is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// A uid outside [`UID_MIN`]..=[`ID_MAX`].
    #[error("uid {0} is not in {UID_MIN}..{ID_MAX}")]
    UidOutOfRange(i64),
    /// A gid outside [`GID_MIN`]..=[`ID_MAX`].
    #[error("gid {0} is not in {GID_MIN}..{ID_MAX}")]
    GidOutOfRange(i64),
    /// The text is not a decimal number.
    #[error("{0:?} is not a number")]
    NotANumber(String),
    /// The text is not a DNS label (RFC 1123).
    #[error("{0:?} is not a namespace name: lower case letters, digits and '-', at most 63, no '-' at either end")]
    NotANamespace(String),
    /// A namespace that belongs to Kubernetes or to Bursar.
    #[error("namespace {0:?} is reserved")]
    ReservedNamespace(String),
    /// The text is not `tool:NAME`, `user:NAME` or `group:NAME`.
    #[error("{0:?} is not an account: tool:NAME, user:NAME or group:NAME")]
    NotAnAccount(String),
}

/// A POSIX user id that a tenant may run as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "i64", into = "i64")]
pub struct Uid(u32);

/// A POSIX group id that a tenant may run as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "i64", into = "i64")]
pub struct Gid(u32);

macro_rules! posix_id {
    ($name:ident, $min:expr, $error:ident) => {
        impl $name {
            /// Returns the number.
            #[must_use]
            pub const fn get(self) -> u32 {
                self.0
            }
        }

        impl TryFrom<i64> for $name {
            type Error = IdentityError;

            fn try_from(number: i64) -> Result<Self, IdentityError> {
                u32::try_from(number)
                    .ok()
                    .filter(|id| ($min..=ID_MAX).contains(id))
                    .map(Self)
                    .ok_or(IdentityError::$error(number))
            }
        }

        impl From<$name> for i64 {
            fn from(id: $name) -> i64 {
                i64::from(id.0)
            }
        }

        impl FromStr for $name {
            type Err = IdentityError;

            fn from_str(text: &str) -> Result<Self, IdentityError> {
                text.parse::<i64>().map_err(|_| IdentityError::NotANumber(text.to_owned())).and_then(Self::try_from)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

posix_id!(Uid, UID_MIN, UidOutOfRange);
posix_id!(Gid, GID_MIN, GidOutOfRange);

/// The POSIX ids of an account, from its directory entry. The webhook checks pods against them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PosixIdentity {
    /// The user id.
    pub uid: Uid,
    /// The primary group id.
    pub gid: Gid,
    /// The supplementary group ids, without the primary one.
    pub groups: BTreeSet<Gid>,
}

/// The immutable id of a directory entry: `entryUUID`, `nsUniqueId`, `objectGUID`, or Keycloak's id.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DirectoryId(pub String);

/// The immutable id of an account in the ledger, and the `serialNumber` in its certificates.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AccountId(pub IdText);

impl AccountId {
    /// Returns the id of the account that `source` knows as `id`. The id is derived and not random. Otherwise a crash
    /// before it is stored could give one entry two ids.
    #[must_use]
    pub fn derive(ledger: &str, source: &str, id: &DirectoryId) -> Self {
        let digest = Sha256::new()
            .chain_update(ledger)
            .chain_update([0])
            .chain_update(source)
            .chain_update([0])
            .chain_update(&id.0)
            .finalize();
        Self(hex::encode(&digest[..16]).into())
    }
}

/// The name of a cluster in the configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClusterName(pub SharedText);

impl From<String> for ClusterName {
    fn from(name: String) -> Self {
        Self(name.into())
    }
}

/// The name of a host that has a credential of its own, as in the configuration. The name is empty if the credential is
/// for all hosts, as a certificate is.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HostName(pub String);

impl HostName {
    /// Returns the empty name, for a credential that is for all hosts.
    #[must_use]
    pub const fn any() -> Self {
        Self(String::new())
    }

    /// Whether the credential is for all hosts.
    #[must_use]
    pub const fn is_any(&self) -> bool {
        self.0.is_empty()
    }
}

macro_rules! text_display {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
    )*};
}

text_display!(DirectoryId, ClusterName, NamespaceName, HostName);

impl fmt::Display for AccountId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0.to_string())
    }
}

/// The kind of directory entry that an account comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AccountKind {
    /// A service account of the directory, shared by the people who maintain it.
    Tool,
    /// A person.
    User,
    /// A directory group.
    Group,
}

impl AccountKind {
    /// Returns `tool`, `user` or `group`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tool => "tool",
            Self::User => "user",
            Self::Group => "group",
        }
    }
}

impl fmt::Display for AccountKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for AccountKind {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Self, IdentityError> {
        match text {
            "tool" => Ok(Self::Tool),
            "user" => Ok(Self::User),
            "group" => Ok(Self::Group),
            other => Err(IdentityError::NotAnAccount(other.to_owned())),
        }
    }
}

/// The name of an account with its kind, such as `tool:foo`. It is also the common name of the account's certificates.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AccountName {
    pub kind: AccountKind,
    /// The present name in the directory, without the prefix.
    pub name: String,
}

impl AccountName {
    /// Returns the name as the arguments of a command, such as `tool foo` or `group 'my lab'`.
    #[must_use]
    pub fn words(&self) -> String {
        format!("{} {}", self.kind, shell_word(&self.name))
    }
}

impl fmt::Display for AccountName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind, self.name)
    }
}

impl FromStr for AccountName {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Self, IdentityError> {
        match text.split_once(':') {
            Some((kind, name)) if !name.is_empty() => Ok(Self { kind: kind.parse()?, name: name.to_owned() }),
            _ => Err(IdentityError::NotAnAccount(text.to_owned())),
        }
    }
}

impl TryFrom<String> for AccountName {
    type Error = IdentityError;

    fn try_from(text: String) -> Result<Self, IdentityError> {
        text.parse()
    }
}

impl From<AccountName> for String {
    fn from(account: AccountName) -> String {
        account.to_string()
    }
}

/// Whether `text` is a DNS label as Kubernetes requires it (RFC 1123, lower case).
#[must_use]
pub fn is_dns_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&text.len()) && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

/// The name of a namespace that may belong to a tenant: an RFC 1123 label that is not reserved.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NamespaceName(String);

impl NamespaceName {
    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for NamespaceName {
    type Error = IdentityError;

    fn try_from(text: String) -> Result<Self, IdentityError> {
        if !is_dns_label(&text) {
            return Err(IdentityError::NotANamespace(text));
        }
        let reserved =
            text.starts_with("kube-") || ["default", "system", "bursar", "bursar-storage"].contains(&text.as_str());
        if reserved { Err(IdentityError::ReservedNamespace(text)) } else { Ok(Self(text)) }
    }
}

impl From<NamespaceName> for String {
    fn from(namespace: NamespaceName) -> String {
        namespace.0
    }
}

/// Returns a name of a directory entry in a form that Kubernetes accepts: in lower case, with `-` for other characters,
/// and with at most [`KUBERNETES_NAME_MAX`] characters. If this changes the name, six hex digits of the original's
/// SHA-256 are appended, so that `a.b` and `a-b` get different names.
#[must_use]
pub fn kubernetes_name(original: &str) -> String {
    let mapped: String = original
        .chars()
        .flat_map(char::to_lowercase)
        .map(|c| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' })
        .collect();
    let mapped = mapped.trim_matches('-');
    if mapped == original && original.len() <= KUBERNETES_NAME_MAX {
        return mapped.to_owned();
    }
    let digest = hex::encode(&Sha256::digest(original)[..3]);
    let kept: String = mapped.chars().take(KUBERNETES_NAME_MAX - digest.len() - 1).collect();
    let kept = kept.trim_end_matches('-');
    if kept.is_empty() { format!("x-{digest}") } else { format!("{kept}-{digest}") }
}

/// Returns `text` as one word of a shell command, in quotes if necessary. Names from a directory or a cluster may have
/// blanks, or characters that would begin another command.
#[must_use]
pub fn shell_word(text: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.:/@+=,%".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("'{}'", text.replace('\'', r"'\''")))
}

/// Returns the part of `namespace` that `{name}` matches in `pattern`; `None` if the namespace does not match the
/// pattern.
#[must_use]
pub fn name_in<'a>(pattern: &str, namespace: &'a str) -> Option<&'a str> {
    let (before, after) = pattern.split_once("{name}")?;
    namespace.strip_prefix(before)?.strip_suffix(after).filter(|name| !name.is_empty())
}

/// Returns the generation group of an account, such as `bursar:tool:foo#1042`. Bindings name this group, so once a
/// binding is rewritten with a higher generation, all older certificates have no access.
#[must_use]
pub fn generation_group(account: &AccountName, generation: u64) -> String {
    format!("bursar:{account}#{generation}")
}

/// Returns the account and the generation of a [`generation_group`]; `None` if `group` is not a generation group.
#[must_use]
pub fn of_generation_group(group: &str) -> Option<(AccountName, u64)> {
    let (account, generation) = group.strip_prefix("bursar:")?.rsplit_once('#')?;
    Some((account.parse().ok()?, generation.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn root_and_nobody_are_never_a_uid() {
        for number in [-1, 0, 1, 999, 2_147_483_647, 4_294_967_294, 4_294_967_295] {
            assert_eq!(Uid::try_from(number), Err(IdentityError::UidOutOfRange(number)));
        }
        assert_eq!("1000".parse::<Uid>().map(Uid::get), Ok(1000));
        assert_eq!("100".parse::<Gid>().map(Gid::get), Ok(100));
    }

    #[test]
    fn similar_directory_names_become_distinct_kubernetes_names() {
        assert_eq!(kubernetes_name("a-b"), "a-b");
        assert_ne!(kubernetes_name("a.b"), kubernetes_name("a-b"));
        assert_ne!(kubernetes_name("Alice"), kubernetes_name("alice"));
        assert_ne!(kubernetes_name("..."), kubernetes_name("___"));
    }

    #[test]
    fn a_name_in_a_command_stays_one_word() {
        let words = |name: &str| AccountName { kind: AccountKind::Group, name: name.to_owned() }.words();
        assert_eq!((words("my-lab_2.x"), words("my lab")), ("group my-lab_2.x".into(), "group 'my lab'".into()));
        assert_eq!(words("a;reboot"), "group 'a;reboot'");
        assert_eq!(shell_word("$(reboot)"), "'$(reboot)'");
        assert_eq!((shell_word("o'brien"), shell_word("")), (r"'o'\''brien'".into(), "''".into()));
    }

    #[test]
    fn reserved_namespaces_are_refused() {
        for name in ["kube-system", "default", "system", "bursar", "bursar-storage"] {
            assert_eq!(
                NamespaceName::try_from(name.to_owned()),
                Err(IdentityError::ReservedNamespace(name.to_owned()))
            );
        }
    }

    proptest! {
        #[test]
        fn every_name_becomes_a_label(original in "\\PC{1,80}") {
            let name = kubernetes_name(&original);
            prop_assert!(name.len() <= KUBERNETES_NAME_MAX);
            prop_assert!(NamespaceName::try_from(format!("tool-{name}")).is_ok(), "{name}");
        }
    }
}
