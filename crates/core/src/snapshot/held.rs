//! The names and gids that rejected entries hold, and the groups that give gids. `merge` needs both, so that no entry
//! gets a name or a gid only because its holder is rejected, listed later or younger.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::identity::{DirectoryId, Gid, Uid};

/// The known facts about a rejected entry.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Held {
    /// When the entry was created. The time decides which of two entries gets a name that both claim.
    pub created: Option<Timestamp>,
    /// The uid of an entry that lost a conflict with another entry; `None` if it was rejected for another reason.
    pub uid: Option<Uid>,
    /// The gids of the groups that name the entry. The entry's account keeps no other gids.
    pub groups: BTreeSet<Gid>,
    /// The SSH keys of a person. The entry's account keeps no other keys.
    pub ssh_keys: BTreeSet<String>,
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
    /// The accounts that the group names. `None` if no other group of the read shows the gid: everybody who has the gid
    /// is then in this group.
    pub members: Option<BTreeSet<DirectoryId>>,
}

/// The accounts that get a gid from a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Gives {
    /// The members of the group get the gid.
    Members,
    /// Members who have the gid already keep it, and nobody else gets it, because it is unknown which of several groups
    /// is meant.
    Kept,
    /// The gid is the primary gid of a tool. Only the group of its maintainers gives it to others.
    Nobody,
}

impl GidClaim {
    /// Whether both are the same group, or a tool and the group of its maintainers.
    #[must_use]
    pub fn belongs_to(&self, other: &Self) -> bool {
        self.dn == other.dn || self.ids.iter().any(|id| other.ids.contains(id))
    }
}
