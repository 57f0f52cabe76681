//! What a log can name, as text.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::identity::is_dns_label;

/// The prefix of a certificate's digits in audit events (`credential-id`, Kubernetes 1.30 and later).
const CERTIFICATE: &str = "X509SHA256=";
/// The prefix of a token's id in audit events.
const TOKEN: &str = "JTI=";

/// Something that a log names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum What {
    /// The uid of a process or file.
    Uid(u32),
    /// The fingerprint of a certificate, or the id of a token.
    Credential(String),
    /// A pod or a former pod: namespace and name.
    Pod(String, String),
    /// The host of an Ingress, or an external host with its own tokens.
    Host(String),
    /// The mail address of a person.
    Mail(String),
}

/// A text that has none of these forms.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is none of: a uid (52503), {CERTIFICATE}… with 64 digits or {TOKEN}… from an audit event, NAMESPACE/POD, a host \
     (foo.tools.example.org), a mail address"
)]
pub struct NoShape(String);

impl FromStr for What {
    type Err = NoShape;

    fn from_str(text: &str) -> Result<Self, NoShape> {
        let wrong = || NoShape(text.to_owned());
        if let Some(id) = credential_id(text) {
            return Ok(Self::Credential(id));
        }
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            return text.parse().map(Self::Uid).map_err(|_| wrong());
        }
        if let Some((name, domain)) = text.split_once('@') {
            let is_mail = !name.is_empty() && is_host(&domain.to_ascii_lowercase());
            let is_plain = !text.contains(|c: char| c.is_whitespace() || c.is_control());
            return if is_mail && is_plain { Ok(Self::Mail(text.to_owned())) } else { Err(wrong()) };
        }
        if let Some((namespace, pod)) = text.split_once('/') {
            let is_pod = is_host(namespace) && !namespace.contains('.') && is_host(pod);
            return if is_pod { Ok(Self::Pod(namespace.to_owned(), pod.to_owned())) } else { Err(wrong()) };
        }
        let host = text.to_ascii_lowercase();
        let named = host.strip_prefix("*.").unwrap_or(&host);
        if is_host(named) { Ok(Self::Host(host)) } else { Err(wrong()) }
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uid(uid) => uid.fmt(f),
            Self::Credential(id) if is_fingerprint(id) => write!(f, "{CERTIFICATE}{id}"),
            Self::Credential(id) => write!(f, "{TOKEN}{id}"),
            Self::Pod(namespace, pod) => write!(f, "{namespace}/{pod}"),
            Self::Host(text) | Self::Mail(text) => text.fmt(f),
        }
    }
}

impl TryFrom<String> for What {
    type Error = NoShape;

    fn try_from(text: String) -> Result<Self, NoShape> {
        text.parse()
    }
}

impl From<What> for String {
    fn from(what: What) -> Self {
        what.to_string()
    }
}

/// Whether the text is a DNS name (RFC 1123). Names of pods are DNS names too.
fn is_host(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_dns_label)
}

fn is_fingerprint(id: &str) -> bool {
    id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Returns the fingerprint as 64 lower-case hex digits, or the id of a token unchanged. Accepts the forms of audit
/// events and openssl.
#[must_use]
pub fn credential_id(text: &str) -> Option<String> {
    if let Some(id) = text.strip_prefix(TOKEN) {
        return Some(id.to_owned()).filter(|id| !id.is_empty());
    }
    let digits = text.strip_prefix(CERTIFICATE).unwrap_or(text).replace(':', "").to_ascii_lowercase();
    Some(digits).filter(|digits| is_fingerprint(digits))
}
