//! What a source says that is not believed until something else proves it.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Absence;
use crate::identity::{AccountId, AccountKind};

/// Which doubt.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DoubtKey {
    pub source: String,
    /// About which accounts.
    pub kind: AccountKind,
    /// What is doubted.
    pub question: Question,
}

/// What is doubted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Question {
    /// An attribute of this name is gone from most accounts that showed it.
    Attribute(String),
    /// The same of the attribute of uids, by which nobody loses anything.
    Uid(String),
    /// Accounts are missing, and others have their names and uids.
    Import,
    /// The servers disagree whether this account is there, or none could be asked for it.
    Absence(AccountId),
}

/// What is known of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Doubt {
    /// Since when.
    pub since: Timestamp,
    /// How many accounts there were, or showed it.
    pub before: u64,
    /// How many do now.
    pub now: u64,
    /// The accounts it is about, if it is about some.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub accounts: BTreeSet<AccountId>,
    /// What the servers say, if one could be asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<String>,
    /// How long complete reads counted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted: Option<Absence>,
}

impl DoubtKey {
    /// What an approval names: the same while it stands, whatever the numbers are.
    #[must_use]
    pub fn part(&self) -> String {
        let text = format!("{}\n{}\n{:?}", self.source, self.kind, self.question);
        hex::encode(Sha256::digest(text))
    }
}
