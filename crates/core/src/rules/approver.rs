//! The rules of the approver of a cluster: the versioned `rules.json`, read as a whole or not at all.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use regex::Regex;
use serde::{Deserialize, Serialize};

use crate::identity::{AccountKind, ClusterName};

pub const VERSION: u32 = 1;

/// The certificates that the approver of a cluster may approve. Only `bursar approver install` writes these rules, with
/// the rights of the cluster's administrator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApproverRules {
    /// The version of the rules, always [`VERSION`].
    pub version: u32,
    /// The cluster that seals must name.
    pub cluster: ClusterName,
    /// The daemon's username in the API server.
    pub daemon: String,
    /// The id of the ledger that owns the cluster. The name of the daemon's group ends with this id.
    pub ledger: String,
    /// The longest life of the daemon's own certificate, in seconds.
    pub own_lifetime: u64,
    pub classes: BTreeMap<String, ApprovedClass>,
    /// Accounts that may hold roles in the whole cluster. If empty, every account of a class with such roles may.
    pub administrators: BTreeSet<String>,
    /// The public keys that verify seals: 32 bytes each, in base64.
    pub seal: Vec<String>,
}

/// The certificates that a class may get.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApprovedClass {
    /// The part of the username before the colon.
    pub kind: AccountKind,
    /// The pattern that an account's name must match: the class's `name_pattern`.
    pub names: String,
    /// The group of all accounts of this kind.
    pub kind_group: String,
    /// The longest life of a certificate, in seconds.
    pub lifetime: u64,
    /// Whether its accounts have namespaces, whose seals identify them.
    pub has_namespaces: bool,
    /// Whether its accounts hold roles in the whole cluster.
    pub has_cluster_roles: bool,
}

impl ApprovedClass {
    /// Whether `wanted` differs from this class in nothing but a shorter lifetime.
    fn covers(&self, wanted: &Self) -> bool {
        wanted.lifetime <= self.lifetime && Self { lifetime: self.lifetime, ..wanted.clone() } == *self
    }
}

/// Why a text is not a valid [`ApproverRules`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApproverRulesError {
    /// The text is not JSON, or does not have the structure of [`ApproverRules`].
    #[error("the approver's rules.json does not parse: {0}")]
    Unreadable(String),
    /// Another version of `bursar` wrote the file.
    #[error(
        "the approver's rules.json has version {0}, and this program reads version {VERSION}; run `bursar approver install` \
         of the approver's version"
    )]
    Version(u64),
    /// The pattern of a class is not a regular expression.
    #[error("the approver's rules.json: class {class}: names: {why}")]
    Pattern { class: String, why: String },
    /// A key of the seal is malformed, or there is none.
    #[error(
        "the approver's rules.json: seal is empty, or contains a text that is not an Ed25519 key of 32 bytes in base64"
    )]
    Seal,
}

impl ApproverRules {
    /// Parses the text of `rules.json`. If any part is wrong, returns an error.
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

    /// Returns the text of `rules.json`. Equal rules give equal texts.
    ///
    /// # Panics
    ///
    /// Never, because texts, numbers, lists and maps with text keys can always be written as JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("texts, numbers, lists and maps with text keys are JSON")
    }

    /// Returns the keys that verify seals; `None` if there is no key, or a text is not a key.
    #[must_use]
    pub fn public_keys(&self) -> Option<Vec<[u8; 32]>> {
        let keys: Option<Vec<[u8; 32]>> =
            self.seal.iter().map(|key| BASE64.decode(key).ok()?.try_into().ok()).collect();
        keys.filter(|keys| !keys.is_empty())
    }

    /// Returns the parts of `wanted` that these rules do not cover, as texts for administrators; empty if they cover
    /// everything. Until the rules are installed again, the certificates concerned wait, or seals of a former key are
    /// still trusted.
    #[must_use]
    pub fn lacks(&self, wanted: &Self) -> Vec<String> {
        let differs = [
            (self.ledger != wanted.ledger, "the id of the ledger"),
            (self.seal != wanted.seal, "the key of the seals"),
            (self.administrators != wanted.administrators, "the listed administrators"),
        ];
        let differs = differs.into_iter().filter(|(differs, _)| *differs).map(|(_, what)| what.to_owned());
        let is_covered = |name: &String, class| self.classes.get(name).is_some_and(|known| known.covers(class));
        let classes = wanted.classes.iter().filter(|(name, class)| !is_covered(name, class));
        differs.chain(classes.map(|(name, _)| format!("class {name}"))).collect()
    }

    /// Returns the group of the daemon's certificates.
    pub(crate) fn daemon_group(&self) -> String {
        format!("{}#{}", self.daemon, self.ledger)
    }
}
