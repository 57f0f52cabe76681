//! What the approver of a cluster is told: the versioned `rules.json`, whole or not at all.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use regex::Regex;
use serde::{Deserialize, Serialize};

use crate::identity::{AccountKind, ClusterName};

/// The layout of `rules.json` that this program reads and writes.
pub const VERSION: u32 = 1;

/// What the approver of a cluster goes by. Only `bursar approver install` writes it, as that cluster's administrator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApproverRules {
    /// [`VERSION`].
    pub version: u32,
    /// The cluster that seals must be for.
    pub cluster: ClusterName,
    /// The name by which the API server knows the daemon.
    pub daemon: String,
    /// The ledger that owns the cluster: the daemon's group ends with it.
    pub ledger: String,
    /// The longest life of the daemon's own certificate, in seconds.
    pub own_lifetime: u64,
    /// By name.
    pub classes: BTreeMap<String, ApprovedClass>,
    /// Accounts that may hold roles in the whole cluster; empty: any account of a class that has them.
    pub administrators: BTreeSet<String>,
    /// Public keys of the seal: 32 bytes each, base64.
    pub seal: Vec<String>,
}

/// The certificates that a class has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApprovedClass {
    /// The part of the user's name before the colon.
    pub kind: AccountKind,
    /// What an account's name must look like: the class's `name_pattern`.
    pub names: String,
    /// The group of all accounts of that kind.
    pub kind_group: String,
    /// The longest life, in seconds.
    pub lifetime: u64,
    /// Its accounts have namespaces, by whose seal they are known.
    pub has_namespaces: bool,
    /// Its accounts hold roles in the whole cluster.
    pub has_cluster_roles: bool,
}

/// Why a text is no [`ApproverRules`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApproverRulesError {
    /// Not JSON, or not of this shape.
    #[error("the approver's rules.json does not parse: {0}")]
    Unreadable(String),
    /// Written by another version of `bursar`.
    #[error(
        "the approver's rules.json has version {0}, and this program reads version {VERSION}; run `bursar approver install` \
         of the approver's version"
    )]
    Version(u64),
    /// A pattern of names.
    #[error("the approver's rules.json: class {class}: names: {why}")]
    Pattern {
        class: String,
        /// What is wrong.
        why: String,
    },
    /// A key of the seal.
    #[error("the approver's rules.json: seal has a text that is no Ed25519 key of 32 bytes in base64")]
    Seal,
}

impl ApproverRules {
    /// From the text of `rules.json`: whole, or not at all.
    pub fn parse(text: &[u8]) -> Result<Self, ApproverRulesError> {
        let unreadable = |error: serde_json::Error| ApproverRulesError::Unreadable(error.to_string());
        let value: serde_json::Value = serde_json::from_slice(text).map_err(unreadable)?;
        match value.get("version").and_then(serde_json::Value::as_u64) {
            Some(version) if version != u64::from(VERSION) => return Err(ApproverRulesError::Version(version)),
            _ => {}
        }
        let rules: Self = serde_json::from_value(value).map_err(unreadable)?;
        for (class, ApprovedClass { names, .. }) in &rules.classes {
            let wrong =
                |error: regex::Error| ApproverRulesError::Pattern { class: class.clone(), why: error.to_string() };
            Regex::new(names).map_err(wrong)?;
        }
        rules.public_keys().ok_or(ApproverRulesError::Seal)?;
        Ok(rules)
    }

    /// The text of `rules.json`, the same for the same rules.
    ///
    /// # Panics
    ///
    /// Never: texts, numbers, lists and maps with text keys are JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("texts, numbers, lists and maps with text keys are JSON")
    }

    /// The keys by which namespaces are sealed; `None`: one of them is no key.
    #[must_use]
    pub fn public_keys(&self) -> Option<Vec<[u8; 32]>> {
        let keys: Option<Vec<[u8; 32]>> =
            self.seal.iter().map(|key| BASE64.decode(key).ok()?.try_into().ok()).collect();
        keys.filter(|keys| !keys.is_empty())
    }

    /// The group of the daemon's certificates.
    pub(crate) fn daemon_group(&self) -> String {
        format!("{}#{}", self.daemon, self.ledger)
    }
}
