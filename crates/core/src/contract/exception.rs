//! The rules that an account can be excepted from, and the annotation that lists them.

use std::collections::BTreeSet;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A rule that an account can be excepted from. Rules that keep a pod from running as another account, or from posing
/// as one, are not in this enum: no account is ever excepted from them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExceptedRule {
    /// The registries that images come from.
    Images,
    /// The hosts of ingresses and routes.
    Hosts,
    /// The volumes that pods mount.
    Volumes,
    /// How long pods live.
    Lifetime,
}

impl ExceptedRule {
    /// All rules, in their order.
    pub const ALL: [Self; 4] = [Self::Images, Self::Hosts, Self::Volumes, Self::Lifetime];

    /// Returns the rule's name in the configuration and in messages.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Images => "images",
            Self::Hosts => "hosts",
            Self::Volumes => "volumes",
            Self::Lifetime => "lifetime",
        }
    }
}

impl std::fmt::Display for ExceptedRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The text does not name a rule that an account can be excepted from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("there is no exception from a rule of this name; it must be images, hosts, volumes or lifetime")]
pub struct NoException;

impl FromStr for ExceptedRule {
    type Err = NoException;

    fn from_str(text: &str) -> Result<Self, NoException> {
        Self::ALL.into_iter().find(|rule| rule.as_str() == text).ok_or(NoException)
    }
}

/// Returns the value of the annotation.
#[must_use]
pub(super) fn text_of(rules: &BTreeSet<ExceptedRule>) -> String {
    rules.iter().map(|rule| rule.as_str()).collect::<Vec<_>>().join(",")
}

/// Parses the value of the annotation.
pub(super) fn read(text: &str) -> Result<BTreeSet<ExceptedRule>, NoException> {
    text.split(',').map(str::parse).collect()
}
