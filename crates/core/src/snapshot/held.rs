//! What entries hold although they are rejected, and which groups give which gids. `merge` needs both, so that nobody
//! gets a name or a gid only because its holder is rejected, listed later or younger.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::identity::{DirectoryId, Gid};

/// What is known of a rejected entry.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Held {
    /// When the entry was created. It decides who has a name that two entries claim.
    pub created: Option<Timestamp>,
    /// The gids of the groups that name the entry. Its account keeps no other ones.
    pub groups: BTreeSet<Gid>,
}

/// A group or tool that shows a gid.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct GidClaim {
    pub gid: Gid,
    pub dn: String,
    /// The name as the directory writes it.
    pub name: String,
    /// The entry itself, and the tools whose maintainers it lists. Claims that share an id do not conflict.
    pub ids: Vec<DirectoryId>,
    pub created: Option<Timestamp>,
    pub gives: Gives,
    /// The accounts that the group names. `None` if no other group of the read shows the gid: then these are all who
    /// have it.
    pub members: Option<BTreeSet<DirectoryId>>,
}

/// Who gets a gid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Gives {
    /// The members get it.
    Members,
    /// Members who have it keep it, because it is unknown which of several groups is meant.
    Kept,
    /// The gid is the primary one of a tool. Only the group of its maintainers gives it to others.
    Nobody,
}

impl GidClaim {
    /// Whether both are the same group, or a tool and the group of its maintainers.
    #[must_use]
    pub fn belongs_to(&self, other: &Self) -> bool {
        self.dn == other.dn || self.ids.iter().any(|id| other.ids.contains(id))
    }
}
