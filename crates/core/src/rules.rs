//! What the webhook is told of each class: the versioned `rules.json`, and the names of the files beside it.
//!
//! The daemon makes it from the configuration (`desired::rules`), where every pattern was checked; the webhook
//! takes it whole or keeps what it has. A key that it does not know is an error: an older webhook must not leave out a
//! rule that a newer daemon wrote.

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

/// The layout of `rules.json` that this program reads and writes.
pub const VERSION: u32 = 1;

/// Certificate of the server, PEM, with those between it and the authority.
pub const CERTIFICATE: &str = "tls.crt";
/// Its private key, PEM.
pub const KEY: &str = "tls.key";
/// What [`Rules::to_json`] writes.
pub const RULES: &str = "rules.json";
/// Public keys of the seal: 32 bytes each, base64, a line each.
pub const SEAL: &str = "seal.pub";
/// How the API server is reached from outside; absent within the cluster.
pub const KUBECONFIG: &str = "kubeconfig";

/// The text of [`SEAL`].
#[must_use]
pub fn seal_text(keys: &[[u8; 32]]) -> String {
    keys.iter().map(|key| BASE64.encode(key) + "\n").collect()
}

/// Everything that a decision needs besides review and identity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    /// [`VERSION`].
    pub version: u32,
    /// The cluster that seals must be for.
    pub cluster: ClusterName,
    /// The name the API server knows the daemon by.
    pub daemon: String,
    /// Groups that may change namespaces of tenants and objects of ours. Pods are never exempt.
    pub exempt: Vec<String>,
    /// Rules by class.
    pub classes: BTreeMap<String, ClassRules>,
    /// The certificate without which nobody is answered; absent: everybody is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<ClientRules>,
}

/// Why a text is no [`Rules`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RulesError {
    /// Not JSON, or not of this shape.
    #[error("rules.json does not parse: {0}")]
    Unreadable(String),
    /// Written by another version of the daemon.
    #[error(
        "rules.json has version {0}, and this program reads version {VERSION}: install the webhook of the daemon's version"
    )]
    Version(u64),
}

impl Rules {
    /// From the text of `rules.json`.
    pub fn parse(text: &[u8]) -> Result<Self, RulesError> {
        let unreadable = |error: serde_json::Error| RulesError::Unreadable(error.to_string());
        let value: serde_json::Value = serde_json::from_slice(text).map_err(unreadable)?;
        match value.get("version").and_then(serde_json::Value::as_u64) {
            Some(version) if version != u64::from(VERSION) => Err(RulesError::Version(version)),
            _ => serde_json::from_value(value).map_err(unreadable),
        }
    }

    /// The text of `rules.json`, the same for the same rules.
    ///
    /// # Panics
    ///
    /// Never: texts, lists and maps with text keys are JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("texts, lists and maps with text keys are JSON")
    }
}

/// What happens to what a rule finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Nothing is looked at.
    Off,
    /// An annotation of the audit event; the user sees nothing.
    Audit,
    /// The user is warned; the object passes as it is.
    Warn,
    /// Refused; what is absent is filled in.
    #[default]
    Enforce,
}

impl Mode {
    /// The word of configuration and metrics.
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

/// The rules of a class. In texts that say so, `{name}`, `{namespace}`, `{account}`, `{class}`, `{uid}` and `{gid}`
/// stand for the tenant's own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassRules {
    /// The class's pattern of namespaces, `tool-{name}`: `{name}` is what stands in its place in the sealed namespace,
    /// for that is frozen when the account is new. Absent: namespaces that others named, which have no `{name}`.
    pub namespace: Option<String>,
    /// Fill in what the restricted Pod Security Standard asks of a pod.
    pub restricted: bool,
    /// Who a pod runs as.
    pub uid: UidRules,
    /// Host namespaces, ports, privileges.
    pub host: Mode,
    /// Where images come from.
    pub images: ImageRules,
    /// What an Ingress or route may serve.
    pub hosts: HostRules,
    /// What a pod may mount from outside, and what it is given.
    pub volumes: VolumeRules,
    /// Claims.
    pub claims: ClaimRules,
    /// What happens to lifetimes of pods that do not parse, or are not as [`ClassRules::lifetimes`] says.
    pub lifetime: Mode,
    /// How long pods may live. Rules that an older daemon wrote do not have the key.
    #[serde(default, skip_serializing_if = "Lifetimes::is_unbound")]
    pub lifetimes: Lifetimes,
}

/// `admission.lifetime`: seconds, counted from a pod's start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lifetimes {
    /// No pod lives longer.
    pub max: Option<u64>,
    /// That of pods that do not say.
    pub default: Option<u64>,
    /// Pods that do not say are refused.
    pub required: bool,
}

impl Lifetimes {
    /// Nothing is said about them.
    #[must_use]
    pub fn is_unbound(&self) -> bool {
        *self == Self::default()
    }

    /// The same for an account that is excepted from the rule, if it is.
    #[must_use]
    pub fn unless(self, is_excepted: bool) -> Self {
        if is_excepted { Self { max: None, required: false, ..self } } else { self }
    }

    /// The longest life of a pod that says `said`, or nothing that can be read.
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
    /// What happens.
    pub mode: Mode,
    /// `supplementalGroupsPolicy: Strict` (Kubernetes 1.33): without it an image's own `/etc/group` adds groups.
    pub strict_groups: bool,
    /// Lets containers escalate: a setuid file of an image then becomes any uid. Rules that an older daemon wrote do not
    /// have the key.
    #[serde(default)]
    pub privilege_escalation: bool,
}

/// `admission.images`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageRules {
    /// What happens.
    pub mode: Mode,
    /// `registry[:port][/path]`, with placeholders: this path and all beneath it.
    pub allow: Vec<String>,
    /// Only references with a digest.
    pub digest: bool,
}

/// `admission.hosts`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostRules {
    /// What happens.
    pub mode: Mode,
    /// Hosts with placeholders, `{name}` among them; a first label `*` is any one label.
    pub allow: Vec<String>,
    /// Annotations of ingresses and routes: a key, or `prefix/*`.
    pub annotations: Vec<String>,
}

/// `admission.volumes`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeRules {
    /// What happens.
    pub mode: Mode,
    /// What a pod may mount besides what is its namespace's own.
    pub allow: Vec<AllowedVolume>,
    /// Which containers get [`VolumeRules::mounts`] unless the pod's label says otherwise.
    pub inject: Inject,
    /// Claims of the tenant's namespace that pods are given.
    pub mounts: Vec<Mount>,
    /// `HOME`, with placeholders; absent: left as it is.
    pub home: Option<String>,
    /// Added to the pod's `nodeSelector` where mounts are.
    pub node_selector: BTreeMap<String, String>,
}

/// A volume from outside the namespace. Paths and servers may have placeholders; a path that ends in `/` stands for all
/// beneath it too.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum AllowedVolume {
    /// `nfs`.
    Nfs {
        /// `nfs.server`.
        server: String,
        /// `nfs.path`.
        path: String,
    },
    /// `hostPath.path`.
    HostPath(String),
    /// `csi.driver` of an inline volume.
    Csi(String),
    /// A projected service-account token for this audience.
    Token(String),
    /// Any other source, by the name of its field (`iscsi`).
    Source(String),
}

impl AllowedVolume {
    /// Whether it says nothing of what is mounted from where: pods do.
    #[must_use]
    pub const fn is_judged_by_name_only(&self) -> bool {
        match self {
            Self::Csi(_) | Self::Source(_) => true,
            Self::Nfs { .. } | Self::HostPath(_) | Self::Token(_) => false,
        }
    }
}

impl fmt::Display for AllowedVolume {
    /// As the configuration writes it.
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

/// Which containers of a pod are given volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Inject {
    /// None.
    None,
    /// `spec.containers`.
    Containers,
    /// Init and ephemeral containers too.
    All,
}

impl Inject {
    /// From the word of configuration and label.
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

/// A claim and where pods find it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mount {
    /// Name of the claim.
    pub claim: String,
    /// `mountPath`, with placeholders.
    pub path: String,
}

/// `admission.claims`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClaimRules {
    /// What happens.
    pub mode: Mode,
    /// Storage class of `ReadWriteMany` claims that name none; absent: they are left alone.
    pub storage_class: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_program_takes_no_rules_that_it_does_not_know() {
        let error = |text: &str| Rules::parse(text.as_bytes()).expect_err("an error").to_string();
        assert!(error("{\"version\": 2, \"news\": true}").contains("has version 2"));
        let unknown = r#"{"version": 1, "cluster": "prod", "daemon": "d", "exempt": [], "classes": {}, "news": 1}"#;
        assert!(error(unknown).contains("unknown field `news`"));
        assert!(error("{}").contains("missing field") && error("[").contains("does not parse"));
    }

    #[test]
    fn modes_are_ordered_by_how_strict_they_are() {
        assert!(Mode::Off < Mode::Audit && Mode::Audit < Mode::Warn && Mode::Warn < Mode::Enforce);
    }
}
