//! The answers of the directories, as plain values: entries, rejected entries, and whether each read was complete.
//!
//! A missing answer is never treated as an empty one: only a [`Completeness::Complete`] read proves that an account is
//! absent.

pub mod difference;
pub mod dn;
pub mod freshness;
pub mod held;
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
use self::held::{GidClaim, Held};
use self::named::{AttributeLabels, Dangling, Nesting};
use self::proof::Proof;
use crate::identity::{AccountId, AccountKind, DirectoryId, Gid, PosixIdentity};

/// One pass over all sources, in order of precedence.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DirectorySnapshot {
    /// One read for each source that was asked, even if it did not answer.
    pub reads: Vec<SourceRead>,
    /// Sources that were not asked in this pass, or have not answered yet. Their known state stays.
    pub unasked: BTreeSet<String>,
    /// Sources whose last answer, here or in the ledger, comes from a read that began before an order which waits for
    /// them. Such a read carries out no order and ends none; another read follows.
    pub outdated: BTreeSet<String>,
}

/// The answer of one source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceRead {
    /// The configured name of the source.
    pub source: String,
    /// The server that answered (host of the URL), or the file; `None` if no server answered.
    pub server: Option<String>,
    /// Whether an account that is missing from `entries` is absent.
    pub completeness: Completeness,
    /// Whether a sentinel is missing, or hides an attribute that it must show. The answer may then come from another
    /// directory, or hide the marks of disabled accounts.
    pub lacks_sentinel: bool,
    /// Where uids and gids came from, as a text for administrators; `None` if there is no choice.
    pub numbers: Option<String>,
    /// The kinds that were asked for. The read says nothing about accounts of other kinds.
    pub kinds: BTreeSet<AccountKind>,
    /// The valid entries, sorted by kind and name.
    pub entries: Vec<Entry>,
    /// Entries that failed a check. They count as present.
    pub rejected: Vec<RejectedEntry>,
    /// The known facts about the rejected entries, by their DNs.
    pub held: BTreeMap<String, Held>,
    /// The groups and tools that show a gid, sorted.
    pub gids: Vec<GidClaim>,
    /// Gids that members keep but do not get, because it is unknown which of several groups gives them.
    pub kept_gids: BTreeMap<DirectoryId, BTreeSet<Gid>>,
    /// Why some valid entries lack something that they show, as texts for administrators.
    pub remarks: BTreeMap<DirectoryId, String>,
    /// How long the read took.
    pub took: Duration,
    /// How the source was read.
    pub way: Way,
    /// The result of comparing the incremental entries with a full read; `None` if no comparison was made.
    pub compared: Option<Comparison>,
    /// The replication state that the server reports.
    pub marks: Marks,
    /// Servers that were not used, because they are behind a state that was seen before.
    pub behind: BTreeMap<String, Behind>,
    /// Members that groups and tools name and that have no entry.
    pub dangling: Dangling,
    /// The members of rejected groups and tools.
    pub nesting: Nesting,
    /// The names of the attributes.
    pub labels: AttributeLabels,
    /// The answers of the source's servers about accounts that are about to be suspended for absence. `None` if the
    /// servers were not asked; the read alone then decides.
    pub proofs: Option<BTreeMap<DirectoryId, Proof>>,
    /// Accounts about which the source's servers are still being asked. Their absences wait for the answers.
    pub unanswered: BTreeSet<DirectoryId>,
}

impl SourceRead {
    /// Returns a complete full read of everything that a source was asked for.
    #[must_use]
    pub fn complete(source: &str, kinds: impl IntoIterator<Item = AccountKind>, entries: Vec<Entry>) -> Self {
        Self {
            source: source.to_owned(),
            server: None,
            completeness: Completeness::Complete,
            lacks_sentinel: false,
            numbers: None,
            kinds: kinds.into_iter().collect(),
            entries,
            rejected: Vec::new(),
            held: BTreeMap::new(),
            gids: Vec::new(),
            kept_gids: BTreeMap::new(),
            remarks: BTreeMap::new(),
            took: Duration::ZERO,
            way: Way::Full,
            compared: None,
            marks: Marks::default(),
            behind: BTreeMap::new(),
            dangling: Dangling::default(),
            nesting: Nesting::default(),
            labels: AttributeLabels::default(),
            proofs: None,
            unanswered: BTreeSet::new(),
        }
    }
}

/// The differences between a full read and the entries that were kept up to date by changes. The differences are
/// already repaired.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Comparison {
    /// The number of entries that differed.
    pub differences: u64,
    /// Some of the differences, as texts for administrators.
    pub examples: Vec<String>,
}

/// How a source is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// All entries are read.
    #[default]
    Full,
    /// The changes since the last read are read.
    Incremental,
    /// The server reports each change when it happens.
    Persist,
}

impl Way {
    /// Returns the name of the way. Names never change.
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
    /// Every page succeeded, paging ended, no limit was hit, no referral is left, and all sentinel entries were seen.
    Complete,
    /// The read is not complete. No account counts as missing because of it. Members and supplementary groups in it are
    /// believed, but there may be more.
    Partial {
        /// The reason, as a text for administrators.
        why: String,
    },
    /// Every server that answered is behind a state that was seen before. No part of the answers is used, as if the
    /// source had not answered.
    Stale {
        /// The first of these servers.
        server: String,
        /// The reason, as a text for administrators.
        why: String,
    },
}

impl Completeness {
    /// Returns what is wrong with the read; `None` if it is complete.
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

/// A valid entry of a tool, person or group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub kind: AccountKind,
    /// The id in the directory, which never changes.
    pub id: DirectoryId,
    /// The current DN, shown to people.
    pub dn: String,
    /// The current name without its prefix.
    pub name: String,
    /// The uid, the gid and the gids of the groups that name the entry; `None` for groups without a uid of their own.
    pub posix: Option<PosixIdentity>,
    /// The gid that a group gives its members.
    pub gid: Option<Gid>,
    /// `homeDirectory`, or a path made from the configured prefix and the name; `None` for groups.
    pub home: Option<PathBuf>,
    /// Whether the entry does not name its home, so that `home` was made from the configured prefix and the name.
    #[serde(default)]
    pub home_by_default: bool,
    /// Mail address of a person.
    pub mail: Option<String>,
    /// The value that identifies a person in every source, in lower case.
    #[serde(default)]
    pub person: Option<String>,
    /// Display name of a person.
    pub display_name: Option<String>,
    /// Public SSH keys of a person, as the directory has them, unchecked.
    #[serde(default)]
    pub ssh_keys: BTreeSet<String>,
    /// The mark that disables the account, as `attribute: value`.
    pub disabled: Option<String>,
    /// `createTimestamp`. If two new entries have the same uid, the older one gets it.
    pub created: Option<Timestamp>,
    /// The people who maintain the tool or belong to the group, each with the role. Nested groups are resolved.
    pub members: BTreeMap<DirectoryId, Role>,
    /// `objectSid` in lower case (Active Directory), by which other domains of the forest name the entry.
    #[serde(default)]
    pub sid: Option<String>,
}

impl Entry {
    /// Returns an entry without any optional field.
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

/// The role of a member in a tool or group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The group names the person by `member`, `memberUid` or `uniqueMember`.
    Member,
    /// The group names the person by the class's `managers` attribute.
    Manager,
}

/// An entry that failed a check. It is recorded and shown.
///
/// If its id is known, the account counts as present and keeps its last valid identity.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RejectedEntry {
    /// The source that has it.
    pub source: String,
    pub kind: AccountKind,
    pub dn: String,
    /// The name, if it could be read.
    pub name: Option<String>,
    /// The id, if it could be read.
    pub id: Option<DirectoryId>,
    /// The mark that disables the account, as `attribute: value`. A disabled account must lose its access even if, for
    /// example, its home is invalid.
    #[serde(default)]
    pub disabled: Option<String>,
    /// The failed check, with the value.
    pub why: String,
    /// A reason on which an order or another entry depends; `None` if there is none.
    #[serde(default)]
    pub reason: Option<Rejection>,
}

impl RejectedEntry {
    /// Returns `entry` of `source` as a rejected one.
    #[must_use]
    pub fn of(source: &str, entry: &Entry, why: String) -> Self {
        Self {
            source: source.to_owned(),
            kind: entry.kind,
            dn: entry.dn.clone(),
            name: Some(entry.name.clone()),
            id: Some(entry.id.clone()),
            disabled: entry.disabled.clone(),
            why,
            reason: None,
        }
    }
}

/// A reason for a rejection on which an order or another entry depends.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Rejection {
    /// The entry shows a uid other than that of its account. `bursar adopt uid` accepts the uid.
    OtherUid,
    /// The entry has the name of this account, or belongs to the same person. `bursar adopt account` assigns the
    /// account to the entry.
    OfAccount { account: AccountId },
    /// Another entry has the name of this entry, so this entry does not claim the name.
    NameTaken,
}
