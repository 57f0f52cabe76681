//! What the people of a workspace get, there and in their own namespace.

use std::collections::BTreeMap;
use std::fmt;

use crate::identity::Uid;

/// How the quota of somebody's own namespace follows from the workspaces they belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FromWorkspaces {
    /// Their class's, and what each workspace adds.
    Sum,
    /// The largest amount of each resource.
    Max,
    /// What the workspace of the highest tier gives, in place of their class's.
    Tier,
}

/// What the people of a workspace get.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Workspace {
    /// ClusterRoles of its members, bound in its namespace.
    pub members: Vec<String>,
    /// The same of its managers.
    pub managers: Vec<String>,
    /// The attribute of its entry that names the managers; absent: it has none.
    pub named_by: Option<String>,
    /// What it does for the quota of each one's own namespace.
    pub member_quota: BTreeMap<String, String>,
    /// Its rank among the workspaces of one person.
    pub tier: u32,
    /// Where the uids of its workspaces come from; absent: they have none.
    pub uid_range: Option<UidRange>,
}

/// Uids for the workspaces of one class, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UidRange {
    /// The lowest.
    pub first: Uid,
    /// The highest.
    pub last: Uid,
}

impl UidRange {
    /// Whether `uid` is one of them.
    #[must_use]
    pub fn contains(self, uid: Uid) -> bool {
        (self.first..=self.last).contains(&uid)
    }

    /// Whether a uid is in both.
    #[must_use]
    pub fn meets(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

impl fmt::Display for UidRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}
