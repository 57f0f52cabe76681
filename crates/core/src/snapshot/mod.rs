//! What the directories say, as a value: entries, what was wrong with some of them, and whether each read was complete.
//!
//! A missing answer is never an empty answer: a read that is not [`Completeness::Complete`] proves nobody's absence.

pub mod difference;
pub mod dn;
pub mod freshness;
pub mod named;
pub mod person;
pub mod proof;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use self::freshness::{Behind, Marks};
use self::named::{AttributeLabels, Dangling, Nesting};
use self::proof::Proof;
use crate::identity::{AccountKind, DirectoryId, Gid, PosixIdentity};

/// One pass over all sources, in their order of precedence.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DirectorySnapshot {
    /// One read for each source that was asked, also for those that did not answer.
    pub reads: Vec<SourceRead>,
    /// Sources that were not asked in this pass. What is known of them stays as it was.
    pub unasked: BTreeSet<String>,
}

/// What one source answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceRead {
    /// Its configured name.
    pub source: String,
    /// The server that answered (host of the URL), or the file; absent where none did.
    pub server: Option<String>,
    /// Whether absence from `entries` means anything.
    pub completeness: Completeness,
    /// Where uids and gids came from, for people; absent where there is no choice.
    pub numbers: Option<String>,
    /// What was asked for: of another kind absence means nothing.
    pub kinds: BTreeSet<AccountKind>,
    /// Valid entries, sorted by kind and name.
    pub entries: Vec<Entry>,
    /// Entries that failed a check; present all the same.
    pub rejected: Vec<RejectedEntry>,
    /// How long the read took.
    pub took: Duration,
    /// How it was read.
    pub way: Way,
    /// What a comparison of its changes with a full read found; absent where none was made.
    pub compared: Option<Comparison>,
    /// How far the server is, in its own words.
    pub marks: Marks,
    /// Servers that are behind what was known, and so were not used.
    pub behind: BTreeMap<String, Behind>,
    /// Members that are named and not there.
    pub dangling: Dangling,
    /// Whom rejected groups and tools name.
    pub nesting: Nesting,
    /// What the attributes are called.
    pub labels: AttributeLabels,
    /// What its servers say of accounts that are about to be suspended for their absence; `None`: they were not asked, and
    /// the read alone counts.
    pub proofs: Option<BTreeMap<DirectoryId, Proof>>,
}

impl SourceRead {
    /// All that a source was asked for, read in full in no time.
    #[must_use]
    pub fn complete(source: &str, kinds: impl IntoIterator<Item = AccountKind>, entries: Vec<Entry>) -> Self {
        Self {
            source: source.to_owned(),
            server: None,
            completeness: Completeness::Complete,
            numbers: None,
            kinds: kinds.into_iter().collect(),
            entries,
            rejected: Vec::new(),
            took: Duration::ZERO,
            way: Way::Full,
            compared: None,
            marks: Marks::default(),
            behind: BTreeMap::new(),
            dangling: Dangling::default(),
            nesting: Nesting::default(),
            labels: AttributeLabels::default(),
            proofs: None,
        }
    }
}

/// What was one way in a full read and another in what the changes had made. It is repaired when this is told.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Comparison {
    /// How many entries.
    pub differences: u64,
    /// Some of them, for people.
    pub examples: Vec<String>,
}

/// How a source is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// All of it.
    #[default]
    Full,
    /// What changed since the last read, asked for.
    Incremental,
    /// The server tells each change when it happens.
    Persist,
}

impl Way {
    /// One word, stable.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Incremental => "incremental",
            Self::Persist => "persist",
        }
    }
}

/// Whether a read proves absence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "completeness")]
pub enum Completeness {
    /// Every page answered success, paging ended, no limit was hit, no referral left, all sentinels seen.
    Complete,
    /// Anything else. Nobody of this source is missing because of it; members and supplementary groups that it
    /// shows are there, but more may be.
    Partial {
        /// Why, for people.
        why: String,
    },
    /// The server that answered is behind what was heard before, and so is every other that did. Nothing of what they say
    /// is used: the source did not answer.
    Stale {
        /// The first of them.
        server: String,
        /// Why, for people.
        why: String,
    },
}

impl Completeness {
    /// What is wrong with it; `None`: it is complete.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        match self {
            Self::Complete => None,
            Self::Partial { .. } | Self::Stale { .. } => Some(self.to_string()),
        }
    }
}

impl fmt::Display for Completeness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Complete => f.write_str("complete"),
            Self::Partial { why } => write!(f, "partial: {why}"),
            Self::Stale { server, why } => write!(f, "stale: {server} is behind: {why}"),
        }
    }
}

/// One valid tool, person or group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// What it is.
    pub kind: AccountKind,
    /// Its immutable id.
    pub id: DirectoryId,
    /// Where it is, for people; may change.
    pub dn: String,
    /// Its name, prefix stripped; may change.
    pub name: String,
    /// uid, gid and the gids of the groups that name it; absent for groups without a uid of their own.
    pub posix: Option<PosixIdentity>,
    /// Own gid of a group.
    pub gid: Option<Gid>,
    /// `homeDirectory`, or the prefix and the name; absent for groups.
    pub home: Option<PathBuf>,
    /// The entry does not say where its home is: it is made of the prefix and the name.
    #[serde(default)]
    pub home_by_default: bool,
    /// Mail address of a person.
    pub mail: Option<String>,
    /// What tells a person apart in every source that has them, in lower case.
    #[serde(default)]
    pub person: Option<String>,
    /// Display name of a person.
    pub display_name: Option<String>,
    /// Public SSH keys of a person, as the directory has them, unchecked.
    #[serde(default)]
    pub ssh_keys: BTreeSet<String>,
    /// The mark that disables it, as `attribute: value`.
    pub disabled: Option<String>,
    /// `createTimestamp`: of two new entries with one uid the older wins.
    pub created: Option<Timestamp>,
    /// People who maintain the tool or belong to the group, nested groups resolved, with their role.
    pub members: BTreeMap<DirectoryId, Role>,
    /// `objectSid` in lower case (Active Directory): what other domains of a forest call it.
    #[serde(default)]
    pub sid: Option<String>,
}

impl Entry {
    /// An entry that says nothing but who it is.
    #[must_use]
    pub fn new(kind: AccountKind, id: impl Into<String>, dn: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            kind,
            id: DirectoryId(id.into()),
            dn: dn.into(),
            name: name.into(),
            posix: None,
            gid: None,
            home: None,
            home_by_default: false,
            mail: None,
            person: None,
            display_name: None,
            ssh_keys: BTreeSet::new(),
            disabled: None,
            created: None,
            members: BTreeMap::new(),
            sid: None,
        }
    }
}

/// What a member is in a tool or group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Named by `member`, `memberUid` or `uniqueMember`.
    Member,
    /// Named by the class's `managers` attribute.
    Manager,
}

/// An entry that failed a check: recorded, shown, counted, and nothing else stops.
///
/// With a known id it counts as present and its account keeps the last good identity.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RejectedEntry {
    /// The source that has it.
    pub source: String,
    /// What it would have been.
    pub kind: AccountKind,
    /// Where it is.
    pub dn: String,
    /// Its name, if it has one.
    pub name: Option<String>,
    /// Its immutable id, if it could be read.
    pub id: Option<DirectoryId>,
    /// The mark that disables it, as `attribute: value`: an account that is locked out does not stay because of a bad
    /// home.
    #[serde(default)]
    pub disabled: Option<String>,
    /// What is wrong, with the value.
    pub why: String,
}
