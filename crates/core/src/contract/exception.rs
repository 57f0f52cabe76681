//! Rules that one account can be excepted from, and how its namespace says so.

use std::collections::BTreeSet;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A rule that an account can be excepted from. None of them is what keeps a pod from running as another account, or from
/// passing for one: those are always in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExceptedRule {
    /// Where images come from.
    Images,
    /// Hosts of ingresses and routes.
    Hosts,
    /// What pods mount.
    Volumes,
    /// How long pods live.
    Lifetime,
}

impl ExceptedRule {
    /// In order.
    pub const ALL: [Self; 4] = [Self::Images, Self::Hosts, Self::Volumes, Self::Lifetime];

    /// The rule's name in configuration and messages.
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

/// A name that no such rule has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no account can be excepted from a rule of this name")]
pub struct NoException;

impl FromStr for ExceptedRule {
    type Err = NoException;

    fn from_str(text: &str) -> Result<Self, NoException> {
        Self::ALL.into_iter().find(|rule| rule.as_str() == text).ok_or(NoException)
    }
}

/// The value of the annotation.
#[must_use]
pub(super) fn text_of(rules: &BTreeSet<ExceptedRule>) -> String {
    rules.iter().map(|rule| rule.as_str()).collect::<Vec<_>>().join(",")
}

/// From the value of the annotation.
pub(super) fn read(text: &str) -> Result<BTreeSet<ExceptedRule>, NoException> {
    text.split(',').map(str::parse).collect()
}
