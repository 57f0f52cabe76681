//! Statements of a source that are not believed until something else proves them.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Absence;
use crate::identity::{AccountId, AccountKind};

/// Identifies a doubt.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DoubtKey {
    pub source: String,
    /// The kind of accounts that the doubt concerns.
    pub kind: AccountKind,
    pub question: Question,
}

/// The statement that is doubted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Question {
    /// The attribute with this name is gone from most accounts that had it.
    Attribute(String),
    /// The attribute for uids is gone from most accounts that had it. No uid changes even if the attribute really is
    /// gone, so this doubt needs no approval.
    Uid(String),
    /// Accounts are missing, and new entries have their names and uids.
    Import,
    /// The servers disagree about whether this account exists, or no server could be asked for it.
    Absence(AccountId),
    /// Several groups became empty in the same read. They keep their members.
    Emptied,
    /// A group no longer names some people, but names an entry that the read lacks. This entry may be one of these
    /// people, renamed during the read. The next complete read decides; for people of another domain of the forest, a
    /// later read of their own source decides.
    Renamed,
}

/// The known facts about a doubt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Doubt {
    /// When the doubt began.
    pub since: Timestamp,
    /// The number of accounts before. For an attribute, only accounts that had it count.
    pub before: u64,
    /// The number of accounts now, counted in the same way.
    pub now: u64,
    /// The accounts that the doubt concerns; empty if it concerns no particular accounts.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub accounts: BTreeSet<AccountId>,
    /// The servers' answers, if any server could be asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<String>,
    /// How long complete reads have counted the absence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted: Option<Absence>,
}

impl DoubtKey {
    /// Returns the hash by which an approval names the doubt. It stays the same while only the numbers change.
    #[must_use]
    pub fn part(&self) -> String {
        let text = format!("{}\n{}\n{:?}", self.source, self.kind, self.question);
        hex::encode(Sha256::digest(text))
    }
}
