//! The rules that the daemon gives to the webhook: the versioned `rules.json`, and the names of the files next to it.
//!
//! The daemon makes the file from the configuration (`desired::rules`), in which every pattern was checked. The webhook
//! accepts a file as a whole or keeps its previous rules. An unknown key is an error, so that an older webhook cannot
//! ignore a rule that a newer daemon wrote.

pub mod approver;
pub mod senders;
pub mod server;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};

use self::senders::ClientRules;
use crate::identity::ClusterName;

pub const VERSION: u32 = 1;

/// The server's certificate and its intermediate certificates, PEM.
pub const CERTIFICATE: &str = "tls.crt";
/// The server's private key, PEM.
pub const KEY: &str = "tls.key";
/// The file with the output of [`Rules::to_json`].
pub const RULES: &str = "rules.json";
/// The public keys that verify seals, one per line: 32 bytes in base64.
pub const SEAL: &str = "seal.pub";
/// The kubeconfig that reaches the API server from outside; the file does not exist if the webhook runs in the cluster.
pub const KUBECONFIG: &str = "kubeconfig";

/// The placeholder for the name of the namespace in patterns of a class that adopts namespaces.
pub const PLACEHOLDER: &str = "{namespace}";

/// Returns the content of [`SEAL`].
#[must_use]
pub fn seal_text(keys: &[[u8; 32]]) -> String {
    keys.iter().map(|key| BASE64.encode(key) + "\n").collect()
}

/// Everything that a decision needs in addition to the review and the tenant's identity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    /// The version of the rules, always [`VERSION`].
    pub version: u32,
    /// The cluster that seals must name.
    pub cluster: ClusterName,
    /// The daemon's username in the API server.
    pub daemon: String,
    /// Groups that may change tenants' namespaces and Bursar's objects. Pods are never exempt.
    pub exempt: Vec<String>,
    pub classes: BTreeMap<String, ClassRules>,
    /// The client certificate that senders of reviews must show; `None` if every client is answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<ClientRules>,
}

/// Why a text is not a valid [`Rules`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RulesError {
    /// The text is not JSON, or does not have the structure of [`Rules`].
    #[error("rules.json does not parse: {0}")]
    Unreadable(String),
    /// Another version of the daemon wrote the file.
    #[error(
        "rules.json has version {0}, and this program reads version {VERSION}: install the webhook of the daemon's version"
    )]
    Version(u64),
}

impl Rules {
    /// Parses the text of `rules.json`.
    pub fn parse(text: &[u8]) -> Result<Self, RulesError> {
        let unreadable = |error: serde_json::Error| RulesError::Unreadable(error.to_string());
        let value: serde_json::Value = serde_json::from_slice(text).map_err(unreadable)?;
        match value.get("version").and_then(serde_json::Value::as_u64) {
            Some(version) if version != u64::from(VERSION) => Err(RulesError::Version(version)),
            _ => serde_json::from_value(value).map_err(unreadable),
        }
    }

    /// Returns the text of `rules.json`. Equal rules give equal texts.
    ///
    /// # Panics
    ///
    /// Never, because texts, lists and maps with text keys can always be written as JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("texts, lists and maps with text keys are JSON")
    }
}

/// What happens if an object breaks a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The rule is not checked.
    Off,
    /// The finding is only an annotation of the audit event; the user sees nothing.
    Audit,
    /// The user is warned, and the object passes unchanged.
    Warn,
    /// A wrong value is refused, and an absent value is filled in.
    #[default]
    Enforce,
}

impl Mode {
    /// Returns the word for the mode in the configuration and in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Audit => "audit",
            Self::Warn => "warn",
            Self::Enforce => "enforce",
        }
    }
}

/// The rules of one class. Where a field allows placeholders, `{name}`, `{namespace}`, `{account}`, `{class}`, `{uid}`
/// and `{gid}` stand for the tenant's values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassRules {
    /// The pattern of the class's namespaces, such as `tool-{name}`. `{name}` is taken from the sealed namespace,
    /// because the namespace of an account never changes. `None` if the class adopts namespaces, which have no
    /// `{name}`.
    pub namespace: Option<String>,
    /// Whether the webhook fills in the fields that the restricted Pod Security Standard requires.
    pub restricted: bool,
    /// The user and groups that pods run as.
    pub uid: UidRules,
    /// Namespaces, ports and privileges of the node.
    pub host: Mode,
    /// The registries that images may come from.
    pub images: ImageRules,
    /// The hosts that an Ingress or a route may serve.
    pub hosts: HostRules,
    /// Volumes from outside the namespace that pods may mount, and volumes that the webhook adds.
    pub volumes: VolumeRules,
    pub claims: ClaimRules,
    /// What happens if a pod's lifetime does not parse or breaks [`ClassRules::lifetimes`].
    pub lifetime: Mode,
    /// How long pods may live. Rules that an older daemon wrote do not have this key.
    #[serde(default, skip_serializing_if = "Lifetimes::is_unbound")]
    pub lifetimes: Lifetimes,
}

/// `admission.lifetime`, in seconds from a pod's start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lifetimes {
    /// The longest life of any pod.
    pub max: Option<u64>,
    /// The lifetime of pods that do not name one.
    pub default: Option<u64>,
    /// Whether pods that do not name a lifetime are refused.
    pub required: bool,
}

impl Lifetimes {
    /// Whether there is no limit, default or requirement.
    #[must_use]
    pub fn is_unbound(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the rule for an account: without `max` and `required` if the account is excepted.
    #[must_use]
    pub fn unless(self, is_excepted: bool) -> Self {
        if is_excepted { Self { max: None, required: false, ..self } } else { self }
    }

    /// Returns how long a pod may live; `None` if there is no limit. `said` is the lifetime in the pod's annotation;
    /// `None` if the annotation is absent or does not parse.
    #[must_use]
    pub fn of(&self, said: Option<Duration>) -> Option<Duration> {
        let max = self.max.map(Duration::from_secs);
        let own = said.or(self.default.map(Duration::from_secs));
        own.map(|own| max.map_or(own, |max| own.min(max))).or(max)
    }
}

/// `admission.uid`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UidRules {
    pub mode: Mode,
    /// Whether pods get `supplementalGroupsPolicy: Strict` (Kubernetes 1.33). Without it, the `/etc/group` of an image
    /// adds groups.
    pub strict_groups: bool,
    /// Whether containers may escalate privileges: a process that runs a setuid file of an image can then become any
    /// uid. Rules that an older daemon wrote do not have this key.
    #[serde(default)]
    pub privilege_escalation: bool,
}

/// `admission.images`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageRules {
    pub mode: Mode,
    /// `registry[:port][/path]`, with placeholders. Each entry permits this path and everything beneath it.
    pub allow: Vec<String>,
    /// Whether only references with a digest are permitted.
    pub digest: bool,
}

/// `admission.hosts`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostRules {
    pub mode: Mode,
    /// Hosts with placeholders, including `{name}`. A first label `*` matches any one label.
    pub allow: Vec<String>,
    /// Annotations that ingresses and routes may have: a key, or `prefix/*`.
    pub annotations: Vec<String>,
}

/// `admission.volumes`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeRules {
    pub mode: Mode,
    /// Volumes that a pod may mount in addition to those of its own namespace.
    pub allow: Vec<AllowedVolume>,
    /// The containers that get [`VolumeRules::mounts`], unless the pod's label chooses otherwise.
    pub inject: Inject,
    /// The claims of the tenant's namespace that the webhook mounts in pods.
    pub mounts: Vec<Mount>,
    /// The value of `HOME`, with placeholders; `None` if `HOME` is not set.
    pub home: Option<String>,
    /// Labels that are added to the `nodeSelector` of a pod with such mounts.
    pub node_selector: BTreeMap<String, String>,
}

/// A volume from outside the namespace. Paths and servers may have placeholders. A path that ends in `/` includes
/// everything beneath it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum AllowedVolume {
    /// An `nfs` volume.
    Nfs {
        /// `nfs.server`.
        server: String,
        /// `nfs.path`.
        path: String,
    },
    /// `hostPath.path`.
    HostPath(String),
    /// The `csi.driver` of an inline volume.
    Csi(String),
    /// A projected service-account token for this audience.
    Token(String),
    /// Any other volume source, by the name of its field (`iscsi`).
    Source(String),
}

impl AllowedVolume {
    /// Whether the rule names only the kind of volume, so that a pod chooses what is mounted and from where.
    #[must_use]
    pub const fn is_judged_by_name_only(&self) -> bool {
        match self {
            Self::Csi(_) | Self::Source(_) => true,
            Self::Nfs { .. } | Self::HostPath(_) | Self::Token(_) => false,
        }
    }
}

impl fmt::Display for AllowedVolume {
    /// Writes the volume as the configuration does.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nfs { server, path } => write!(f, "{server}:{path}"),
            Self::HostPath(path) => f.write_str(path),
            Self::Csi(driver) => write!(f, "csi:{driver}"),
            Self::Token(audience) => write!(f, "token:{audience}"),
            Self::Source(source) => f.write_str(source),
        }
    }
}

/// The containers of a pod that get volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Inject {
    None,
    /// `spec.containers`.
    Containers,
    /// All containers, including init and ephemeral ones.
    All,
}

impl Inject {
    /// Parses the word of the configuration or of the label.
    #[must_use]
    pub fn of(word: &str) -> Option<Self> {
        match word {
            "none" => Some(Self::None),
            "containers" => Some(Self::Containers),
            "all" => Some(Self::All),
            _ => None,
        }
    }
}

/// A claim, and the path at which it is mounted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mount {
    pub claim: String,
    /// `mountPath`, with placeholders.
    pub path: String,
}

/// `admission.claims`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClaimRules {
    pub mode: Mode,
    /// The storage class for `ReadWriteMany` claims that name none; `None` if such claims are not changed.
    pub storage_class: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_version_or_key_is_refused() {
        let error = |text: &str| Rules::parse(text.as_bytes()).expect_err("the text is not valid").to_string();
        assert!(error("{\"version\": 2, \"news\": true}").contains("has version 2"));
        let unknown = r#"{"version": 1, "cluster": "prod", "daemon": "d", "exempt": [], "classes": {}, "news": 1}"#;
        assert!(error(unknown).contains("unknown field `news`"));
        assert!(error("{}").contains("missing field") && error("[").contains("does not parse"));
    }

    #[test]
    fn modes_are_ordered_by_strictness() {
        assert!(Mode::Off < Mode::Audit && Mode::Audit < Mode::Warn && Mode::Warn < Mode::Enforce);
    }
}
